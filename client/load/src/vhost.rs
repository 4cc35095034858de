//! Queues to a vhost-user device (virtio), in memory that is shared with the back-end. With `--spin` the rings are
//! polled; otherwise the eventfd of a ring wakes this thread.

use crate::connection::{ConnectionLost, check_open};
use crate::options::Options;
use crate::report::{Negotiated, Rings};
use crate::session::{Misses, Outcome, Request, Session, SessionEvent, Work, pass_on};
use anyhow::{Context, Result, bail, ensure};
use lunar_core::mem::{PAGE, Region};
use lunar_core::time::Instant;
use lunar_reactor::{shared, unix};
use lunar_vhost_client::form::Form;
use lunar_vhost_client::lane::{Answer, Lane};
use lunar_vhost_client::layout::{Layout, Room};
use lunar_vhost_client::{Defect, message};
use lunar_vhost_user::config::RINGS_MAX;
use lunar_vhost_user::wire::{Code as MessageCode, HEADER_LEN, protocol};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

/// Back-ends share whole large pages only: DPDK, on which that of SPDK stands, registers memory in units of 2 MiB.
const ALIGNMENT: usize = 2 << 20;
/// The pause between two looks for the answer to a request that is waited for.
const LOOK_PAUSE: Duration = Duration::from_micros(100);

/// A kind of device under load.
pub(crate) trait Device: Copy {
    /// The form of its requests.
    type Form: Form;
    /// The request of a command. `tag`: no other request in progress has it.
    fn request(&self, command: &Request, tag: u64) -> <Self::Form as Form>::Request;
    /// The outcome of a command, whose slot has ended like this.
    fn outcome(lane: &Lane<Self::Form>, slot: u16, end: <Self::Form as Form>::End) -> Outcome;
}

/// The control socket of a back-end.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    socket: OwnedFd,
    timeout: Duration,
}

impl ControlSocket {
    pub(crate) fn connect(path: &str, timeout: Duration) -> Result<Self> {
        let socket = UnixStream::connect(path).with_context(|| format!("connecting to {path}"))?;
        Ok(Self { socket: socket.into(), timeout })
    }

    fn send(&self, code: MessageCode, payload: &[u8], files: &[BorrowedFd<'_>], needs_reply: bool) -> Result<()> {
        let bytes = message::message(code, payload, needs_reply);
        Ok(unix::send_waiting(&self.socket, &bytes, files, self.timeout).map_err(ConnectionLost)?)
    }

    pub(crate) fn reply(&self, code: MessageCode) -> Result<Vec<u8>> {
        let (mut bytes, mut files) = ([0; HEADER_LEN], Vec::new());
        unix::receive_waiting(&self.socket, &mut bytes, &mut files, self.timeout).map_err(ConnectionLost)?;
        let head = message::reply(&bytes)?;
        let mut payload = vec![0; head.len];
        unix::receive_waiting(&self.socket, &mut payload, &mut files, self.timeout).map_err(ConnectionLost)?;
        ensure!(head.code == code.0, Defect::Message);
        Ok(payload)
    }

    pub(crate) fn tell(&self, code: MessageCode, payload: &[u8], files: &[BorrowedFd<'_>]) -> Result<()> {
        self.send(code, payload, files, false)
    }

    /// Sends a message that the back-end has to acknowledge.
    fn have(&self, code: MessageCode, payload: &[u8], files: &[BorrowedFd<'_>]) -> Result<()> {
        self.send(code, payload, files, true)?;
        Ok(message::acknowledged(code, &self.reply(code)?)?)
    }

    fn number(&self, code: MessageCode) -> Result<u64> {
        self.send(code, &[], &[], false)?;
        Ok(message::number(&self.reply(code)?)?)
    }

    /// Agrees on the features that these functions accept; returns those of the device, and the number of its rings if
    /// the back-end tells it.
    pub(crate) fn negotiate(
        &self,
        features: impl FnOnce(u64) -> Result<u64, Defect>,
        protocol_features: impl FnOnce(u64) -> Result<u64, Defect>,
    ) -> Result<(u64, Option<u64>)> {
        let offered = self.number(MessageCode::GET_FEATURES)?;
        self.tell(MessageCode::SET_OWNER, &[], &[])?;
        // Changes of the device during a run are ignored.
        let accepted = protocol_features(self.number(MessageCode::GET_PROTOCOL_FEATURES)?)? & !protocol::BACKEND_REQ;
        self.tell(MessageCode::SET_PROTOCOL_FEATURES, &accepted.to_le_bytes(), &[])?;
        let has_many = accepted & protocol::MQ != 0;
        let rings = has_many.then(|| self.number(MessageCode::GET_QUEUE_NUM)).transpose()?;
        let features = features(offered)?;
        self.tell(MessageCode::SET_FEATURES, &features.to_le_bytes(), &[])?;
        Ok((features, rings))
    }

    /// Starts the ring of a queue, from its beginning.
    fn start(&self, ring: u16, (layout, queue): (&Layout, u16), kick: &OwnedFd, call: &OwnedFd) -> Result<()> {
        let number = u64::from(ring).to_le_bytes();
        self.tell(MessageCode::SET_VRING_NUM, &message::state(ring, layout.ring_size().into()), &[])?;
        self.tell(MessageCode::SET_VRING_BASE, &message::state(ring, 0), &[])?;
        self.have(MessageCode::SET_VRING_ADDR, &message::address(ring, layout.ring(queue)), &[])?;
        self.tell(MessageCode::SET_VRING_CALL, &number, &[call.as_fd()])?;
        self.have(MessageCode::SET_VRING_KICK, &number, &[kick.as_fd()])?;
        self.have(MessageCode::SET_VRING_ENABLE, &message::state(ring, 1), &[])
    }
}

/// The command of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Command {
    cookie: u32,
    reads: bool,
    /// Whether the memory of the slot contains data to write.
    is_filled: bool,
}

/// A queue of a device.
pub(crate) struct Queue<D: Device> {
    device: D,
    control: Rc<ControlSocket>,
    lane: Lane<D::Form>,
    layout: Layout,
    queue: u16,
    /// The ring of the queue.
    ring: u16,
    memory: Region,
    kick: OwnedFd,
    call: OwnedFd,
    /// An epoll descriptor that is readable when the back-end has answered, or the connection has ended.
    ready: OwnedFd,
    free: Vec<u16>,
    commands: Vec<Command>,
    /// Slots with an answer.
    ended: Vec<u16>,
    /// The length of a command's data, in bytes.
    bytes: usize,
    /// Whether the data is used, so that it is copied from and to the shared memory.
    copies: bool,
    spin: bool,
    misses: Misses,
    rings: u64,
}

impl<D: Device> Queue<D> {
    /// Carries out one request while there is no other. Returns its slot, and how it has ended.
    pub(crate) fn run(
        &mut self,
        request: &<D::Form as Form>::Request,
        timeout: Duration,
    ) -> Result<(u16, <D::Form as Form>::End)> {
        let slot = *self.free.last().context("the queue is full")?;
        ensure!(self.lane.begin(slot, request, Instant::default()), "the request has no room in the queue");
        self.send()?;
        let deadline = std::time::Instant::now() + timeout;
        while self.lane.collect(|_| {})? == 0 {
            check_open(&self.control.socket)?;
            ensure!(std::time::Instant::now() < deadline, "the target does not answer");
            std::thread::sleep(LOOK_PAUSE);
        }
        match self.lane.take(slot) {
            Some(Answer::Ended(end)) => Ok((slot, end)),
            Some(Answer::Expired) | None => bail!("no answer"),
        }
    }

    /// Reads the data of a slot.
    pub(crate) fn data(&self, slot: u16, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        let at = self.layout.place(self.queue, slot).data;
        if self.memory.read(at, &mut data) { data } else { Vec::new() }
    }

    pub(crate) fn lane(&self) -> &Lane<D::Form> {
        &self.lane
    }
}

impl<D: Device> Session for Queue<D> {
    // Polling a ring in memory costs nearly nothing.
    const POLLED_MAX: usize = usize::MAX;

    #[inline]
    fn room(&self) -> u32 {
        // There are as many slots as the depth of a session.
        self.free.len() as u32
    }

    #[inline]
    fn start(&mut self, request: Request) {
        let slot = self.free.pop().expect("the caller checks for room");
        let command = &mut self.commands[usize::from(slot)];
        (command.cookie, command.reads) = (request.cookie, matches!(request.work, Work::Read));
        // Data that is not read back is written once.
        let is_due = self.copies || !command.is_filled;
        if let (true, Work::Write(data)) = (is_due, &request.work) {
            let at = self.layout.place(self.queue, slot).data;
            command.is_filled = self.memory.write(at, data.bytes());
        }
        let tag = u64::from(self.queue) << 16 | u64::from(slot);
        let own = self.device.request(&request, tag);
        assert!(self.lane.begin(slot, &own, Instant::default()), "a free slot with room for the data");
    }

    #[inline]
    fn send(&mut self) -> Result<bool> {
        if self.lane.has_waiting() && self.lane.send() {
            rustix::io::write(&self.kick, &1_u64.to_ne_bytes())?;
            self.rings += 1;
        }
        Ok(true)
    }

    #[inline]
    fn take(&mut self, buffer: &mut [u8], on: &mut impl FnMut(SessionEvent<'_>)) -> Result<bool> {
        if !self.spin {
            // Reset the eventfd before the poll: a later answer signals it again.
            let _ = rustix::io::read(&self.call, &mut [0; 8]);
        }
        let mut ended = std::mem::take(&mut self.ended);
        self.lane.collect(|slot| ended.push(slot))?;
        let came = !ended.is_empty();
        for slot in ended.drain(..) {
            let Command { cookie, reads, .. } = self.commands[usize::from(slot)];
            let outcome = match self.lane.take(slot) {
                Some(Answer::Ended(end)) => D::outcome(&self.lane, slot, end),
                // No request expires here.
                Some(Answer::Expired) | None => Outcome::Failed("no answer".to_owned()),
            };
            self.free.push(slot);
            if reads && self.copies && outcome == Outcome::Good {
                let at = self.layout.place(self.queue, slot).data;
                pass_on((&self.memory, at, self.bytes), cookie, buffer, on);
            }
            on(SessionEvent::Done(cookie, outcome));
        }
        self.ended = ended;
        if self.misses.count(came, !self.spin) {
            check_open(&self.control.socket)?;
        }
        Ok(came)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn rings(&self) -> u64 {
        self.rings
    }
}

/// Stops a ring, so that the back-end does not use the memory any more.
pub(crate) fn close<D: Device>(queue: Queue<D>, _patience: Duration) {
    let stop = queue.control.tell(MessageCode::GET_VRING_BASE, &message::state(queue.ring, 0), &[]);
    // A missing answer is no error of the run.
    let _ = stop.and_then(|()| queue.control.reply(MessageCode::GET_VRING_BASE));
}

/// The properties of a device, as they are known before its queues are started.
pub(crate) struct Plan<D> {
    pub(crate) device: D,
    /// The ring of the first queue.
    pub(crate) first_ring: u16,
    /// The queues that the device has.
    pub(crate) queues: u64,
    /// The most bytes of a piece of data.
    pub(crate) piece: usize,
}

/// Starts all queues of a run.
pub(crate) fn start<D: Device>(control: ControlSocket, plan: &Plan<D>, options: &Options) -> Result<Vec<Queue<D>>> {
    let granted = plan.queues.min(RINGS_MAX as u64 - u64::from(plan.first_ring));
    let count = u16::try_from(options.sessions).ok().filter(|count| u64::from(*count) <= granted);
    let count = count.with_context(|| format!("the device has only {granted} queues: choose fewer --sessions"))?;
    let depth = u16::try_from(options.depth).context("--depth exceeds the entries of a ring")?;
    let bytes = options.bs as usize;
    let room = Room { pieces: bytes.div_ceil(plan.piece.max(PAGE)), control: <D::Form as Form>::CONTROL };
    let layout = Layout::with_room(count, depth, bytes, room).context("--depth exceeds the entries of a ring")?;
    let (file, memory) = shared::share("lunar-bench", layout.len().next_multiple_of(ALIGNMENT))
        .context("cannot allocate memory for the queues and their data")?;
    control.have(MessageCode::SET_MEM_TABLE, &message::memory(memory.len()), &[file.as_fd()])?;
    let control = Rc::new(control);
    let queues = (0..count).map(|queue| {
        let [kick, call] = [(), ()].map(|()| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK));
        let (kick, call) = (kick?, call?);
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&ready, &control.socket, EventData::new_u64(0), EventFlags::IN)?;
        epoll::add(&ready, &call, EventData::new_u64(1), EventFlags::IN)?;
        let lane = Lane::new(&memory, &layout, queue, plan.piece).context("the layout fits into its memory")?;
        lane.ask_to_notify(!options.spin);
        let ring = plan.first_ring + queue;
        control.start(ring, (&layout, queue), &kick, &call)?;
        Ok(Queue {
            device: plan.device,
            control: control.clone(),
            lane,
            layout,
            queue,
            ring,
            memory: memory.clone(),
            kick,
            call,
            ready,
            free: (0..depth).rev().collect(),
            commands: vec![Command::default(); depth.into()],
            ended: Vec::with_capacity(depth.into()),
            bytes,
            copies: options.verify || options.ack_log.is_some() || options.check_ack_log.is_some(),
            spin: options.spin,
            misses: Misses::default(),
            rings: 0,
        })
    });
    queues.collect()
}

/// The parameters of the queues. `max_transfer`: the longest transfer of a command, in bytes.
pub(crate) fn negotiated<D: Device>(queues: &[Queue<D>], max_transfer: u32) -> Negotiated {
    let entries = queues.first().map_or(0, |queue| queue.layout.ring_size());
    let window = queues.first().map_or(0, Session::room);
    Negotiated::VhostUser(Rings { max_transfer, entries, window })
}

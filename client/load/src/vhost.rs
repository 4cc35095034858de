//! Queues to a vhost-user disk (virtio-blk), in memory that is shared with the back-end. With `--spin` the rings are
//! polled; otherwise the eventfd of a ring wakes this thread.

use crate::connection::{ConnectionLost, check_open};
use crate::options::Options;
use crate::report::{Negotiated, Rings};
use crate::session::{Misses, Outcome, Request, Session, SessionEvent, Work, pass_on};
use crate::target::{Capacity, OpenSessions};
use anyhow::{Context, Result, ensure};
use lunar_blk::Code;
use lunar_core::mem::{PAGE, Region};
use lunar_core::time::Instant;
use lunar_reactor::{shared, unix};
use lunar_vhost_client::blk::{Blk, DiskLane, DiskRequest};
use lunar_vhost_client::disk::{self, Shape};
use lunar_vhost_client::form::Form;
use lunar_vhost_client::lane::Answer;
use lunar_vhost_client::layout::{Layout, Room};
use lunar_vhost_client::{Defect, message};
use lunar_vhost_user::wire::{Code as MessageCode, HEADER_LEN, protocol};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

/// Back-ends share whole large pages only: DPDK, on which that of SPDK stands, registers memory in units of 2 MiB.
const ALIGNMENT: usize = 2 << 20;

/// The control socket of a back-end.
#[derive(Debug)]
struct ControlSocket {
    socket: OwnedFd,
    timeout: Duration,
}

impl ControlSocket {
    fn connect(path: &str, timeout: Duration) -> Result<Self> {
        let socket = UnixStream::connect(path).with_context(|| format!("connecting to {path}"))?;
        Ok(Self { socket: socket.into(), timeout })
    }

    fn send(&self, code: MessageCode, payload: &[u8], files: &[BorrowedFd<'_>], needs_reply: bool) -> Result<()> {
        let bytes = message::message(code, payload, needs_reply);
        Ok(unix::send_waiting(&self.socket, &bytes, files, self.timeout).map_err(ConnectionLost)?)
    }

    fn reply(&self, code: MessageCode) -> Result<Vec<u8>> {
        let (mut bytes, mut files) = ([0; HEADER_LEN], Vec::new());
        unix::receive_waiting(&self.socket, &mut bytes, &mut files, self.timeout).map_err(ConnectionLost)?;
        let head = message::reply(&bytes)?;
        let mut payload = vec![0; head.len];
        unix::receive_waiting(&self.socket, &mut payload, &mut files, self.timeout).map_err(ConnectionLost)?;
        ensure!(head.code == code.0, Defect::Message);
        Ok(payload)
    }

    fn tell(&self, code: MessageCode, payload: &[u8], files: &[BorrowedFd<'_>]) -> Result<()> {
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

    /// Agrees on features; returns the disk and the number of its queues.
    fn negotiate(&self) -> Result<(Shape, u64)> {
        let offered = self.number(MessageCode::GET_FEATURES)?;
        self.tell(MessageCode::SET_OWNER, &[], &[])?;
        let accepted = disk::protocol_features(self.number(MessageCode::GET_PROTOCOL_FEATURES)?)?;
        // Changes of the disk during a run are ignored.
        let accepted = accepted & !protocol::BACKEND_REQ;
        self.tell(MessageCode::SET_PROTOCOL_FEATURES, &accepted.to_le_bytes(), &[])?;
        let has_many = accepted & protocol::MQ != 0;
        let queues = if has_many { self.number(MessageCode::GET_QUEUE_NUM)? } else { 1 };
        let features = disk::features(offered, true)?;
        self.tell(MessageCode::SET_FEATURES, &features.to_le_bytes(), &[])?;
        self.tell(MessageCode::GET_CONFIG, &message::config(), &[])?;
        let space = message::space(&self.reply(MessageCode::GET_CONFIG)?)?;
        Ok((Shape::of(features, &space)?, queues))
    }

    /// Starts a ring, from its beginning.
    fn start(&self, ring: u16, layout: &Layout, kick: &OwnedFd, call: &OwnedFd) -> Result<()> {
        let number = u64::from(ring).to_le_bytes();
        self.tell(MessageCode::SET_VRING_NUM, &message::state(ring, layout.ring_size().into()), &[])?;
        self.tell(MessageCode::SET_VRING_BASE, &message::state(ring, 0), &[])?;
        self.have(MessageCode::SET_VRING_ADDR, &message::address(ring, layout.ring(ring)), &[])?;
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

/// A queue of the disk.
#[derive(Debug)]
pub(crate) struct DiskQueue {
    control: Rc<ControlSocket>,
    lane: DiskLane,
    layout: Layout,
    queue: u16,
    memory: Region,
    kick: OwnedFd,
    call: OwnedFd,
    /// An epoll descriptor that is readable when the back-end has answered, or the connection has ended.
    ready: OwnedFd,
    free: Vec<u16>,
    commands: Vec<Command>,
    /// Slots with an answer.
    ended: Vec<u16>,
    /// The length of a command's data, in bytes, and of a logical block.
    bytes: usize,
    block_size: u64,
    /// Whether the data is used, so that it is copied from and to the shared memory.
    copies: bool,
    spin: bool,
    misses: Misses,
    rings: u64,
}

impl Session for DiskQueue {
    // Polling a ring in memory costs nearly nothing.
    const POLLED_MAX: usize = usize::MAX;

    #[inline]
    fn room(&self) -> u32 {
        // There are as many slots as the depth of a session.
        self.free.len() as u32
    }

    #[inline]
    fn start(&mut self, request: Request) {
        let Request { cookie, work, lba, bytes, .. } = request;
        let slot = self.free.pop().expect("the caller checks for room");
        let command = &mut self.commands[usize::from(slot)];
        (command.cookie, command.reads) = (cookie, matches!(work, Work::Read));
        let code = match work {
            Work::Read => Code::Read,
            Work::Write(data) => {
                // Data that is not read back is written once.
                if self.copies || !command.is_filled {
                    let at = self.layout.place(self.queue, slot).data;
                    command.is_filled = self.memory.write(at, data.bytes());
                }
                Code::Write
            }
            Work::Flush => Code::Flush,
        };
        let request = DiskRequest { code, offset: lba * self.block_size, len: bytes.into(), unmap: false };
        assert!(self.lane.begin(slot, &request, Instant::default()), "a free slot with room for the data");
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
                Some(Answer::Ended(Ok(()))) => Outcome::Good,
                Some(Answer::Ended(Err(why))) => Outcome::Failed(format!("{why:?}")),
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
pub(crate) fn close(session: DiskQueue, _patience: Duration) {
    let stop = session.control.tell(MessageCode::GET_VRING_BASE, &message::state(session.queue, 0), &[]);
    // A missing answer is no error of the run.
    let _ = stop.and_then(|()| session.control.reply(MessageCode::GET_VRING_BASE));
}

/// Opens all queues of a run.
pub(crate) fn open(options: &Options) -> Result<OpenSessions<DiskQueue>> {
    options.check_for_vhost_user().map_err(anyhow::Error::msg)?;
    let url = &options.url;
    let control = ControlSocket::connect(&url.host, options.timeout)?;
    let (shape, granted) = control.negotiate().with_context(|| url.to_string())?;
    let count = u16::try_from(options.sessions).ok().filter(|count| u64::from(*count) <= granted);
    let count = count.with_context(|| format!("the disk has only {granted} queues: choose fewer --sessions"))?;
    let depth = u16::try_from(options.depth).context("--depth exceeds the entries of a ring")?;
    let bytes = options.bs as usize;
    let (piece, _) = shape.pieces;
    let room = Room { pieces: bytes.div_ceil(piece.max(PAGE)), control: Blk::CONTROL };
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
        let lane = DiskLane::new(&memory, &layout, queue, piece).context("the layout fits into its memory")?;
        lane.ask_to_notify(!options.spin);
        control.start(queue, &layout, &kick, &call).with_context(|| url.to_string())?;
        Ok(DiskQueue {
            control: control.clone(),
            lane,
            layout,
            queue,
            memory: memory.clone(),
            kick,
            call,
            ready,
            free: (0..depth).rev().collect(),
            commands: vec![Command::default(); depth.into()],
            ended: Vec::with_capacity(depth.into()),
            bytes,
            block_size: shape.limits.block_size.into(),
            copies: options.verify || options.ack_log.is_some() || options.check_ack_log.is_some(),
            spin: options.spin,
            misses: Misses::default(),
            rings: 0,
        })
    });
    let active = queues.collect::<Result<Vec<_>>>()?;
    let block_size = shape.limits.block_size;
    let capacity = Capacity { blocks: shape.limits.capacity / u64::from(block_size), block_size };
    // Limited by what a slot has room for.
    let transfer_max = u32::try_from(shape.transfer(u32::MAX as usize)).unwrap_or(u32::MAX);
    let negotiated =
        Negotiated::VhostUser(Rings { max_transfer: transfer_max, entries: layout.ring_size(), window: depth.into() });
    Ok(OpenSessions { url: url.clone(), active, idle: Vec::new(), capacity, transfer_max, negotiated, logins: None })
}

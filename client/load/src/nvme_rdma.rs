//! Queues to namespaces of NVMe over RDMA subsystems. Each queue is a connection; all share the socket of this process.

use crate::nvme::{self, ADMIN_ENTRIES, BLOCKS_MAX};
use crate::options::Options;
use crate::rdma::{NotConnected, Port};
use crate::report::{Negotiated, RdmaQueues};
use crate::session::{Outcome, Request, Session, SessionEvent, Work};
use crate::target::{Capacity, DiscoveredTarget, OpenSessions, time_logins};
use anyhow::{Context, Result, anyhow, ensure};
use lunar_core::mem::{Sg, SgMut};
use lunar_core::outgoing::Moves;
use lunar_nvme::connect::DISCOVERY_NQN;
use lunar_nvme::{Sqe, Status};
use lunar_nvme_host::auth::Authentication;
use lunar_nvme_host::bringup::{self, Answer, Bringup, Info};
use lunar_nvme_host::command::{self, ANY_CONTROLLER};
use lunar_nvme_host::queue::AUTHENTICATION_REQUIRED;
use lunar_nvme_host::{Error, discovery, rdma};
use lunar_rdma::engine::ConnectionId;
use lunar_rdma::mad::Reason;
use lunar_rdma_client::keys::Registered;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The most memory for the data of all commands.
const MEMORY_MAX: usize = 16 << 30;
/// Memory for the data of admin commands of a controller: the longest is the discovery log page.
const ADMIN_BYTES: usize = 256 << 10;

/// The data of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    None,
    In,
    Out,
}

/// The command of a slot, whose number is its identifier and the place of its key.
#[derive(Default)]
struct Slot {
    cookie: u32,
    /// `None`: no command is outstanding.
    direction: Option<Direction>,
    /// Memory for the data of reads.
    memory: Option<SgMut>,
}

/// A queue, and the namespace of its commands; 0 for an admin queue.
pub(crate) struct NamespaceQueue {
    port: Rc<RefCell<Port>>,
    id: ConnectionId,
    namespace: u32,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// In-capsule data of a command, in bytes.
    in_capsule: usize,
    /// Whether the data is used, so that each write has its own.
    copies: bool,
    /// The data of writes that is not read back.
    payload: Option<Sg>,
    /// Readable when there is something to take.
    ready: Rc<OwnedFd>,
    /// Whether this queue receives the datagrams of all queues.
    receives: bool,
    /// Whether `ready` is an eventfd that has to be reset.
    is_signalled: bool,
    /// A command had no memory: the target does not acknowledge those before it, which keep theirs.
    lacks_memory: Cell<bool>,
}

/// The queues of a controller.
struct Controller {
    admin: NamespaceQueue,
    id: u16,
    info: Info,
}

impl NamespaceQueue {
    /// Connects a queue with so many entries, and authenticates the host if it has to be. Returns the queue and dword 0
    /// of the completion.
    fn connect(
        (port, options): (&Rc<RefCell<Port>>, &Options),
        subsystem: &str,
        (number, entries, controller): (u16, u16, u16),
        in_capsule: u32,
    ) -> Result<(Self, u32)> {
        let private = rdma::request(number, entries, controller);
        let connected = port.borrow_mut().connect((options.url.port, &private), options.timeout);
        let (id, reply) = connected.map_err(|why| explain(why, options))?;
        // A queue is full when one entry is left.
        let depth = rdma::accepted(&*reply)?.min(entries.saturating_sub(1)).max(1);
        let mut queue = Self {
            id,
            namespace: if number == 0 { 0 } else { options.url.unit },
            slots: (0..depth).map(|_| Slot::default()).collect(),
            free: (0..depth).rev().collect(),
            // Data of admin commands has no place in their capsules.
            in_capsule: if number == 0 { 0 } else { in_capsule as usize },
            copies: options.verify || options.ack_log.is_some() || options.check_ack_log.is_some(),
            payload: None,
            ready: port.borrow().ready(),
            receives: false,
            is_signalled: false,
            lacks_memory: Cell::default(),
            port: port.clone(),
        };
        let connect = nvme::connect(options, subsystem, number, entries, controller);
        let (sqe, data) = connect.entry();
        let answer = queue.call(sqe, &Moves::Out(lunar_core::outgoing::Data::new(data.into())), options.timeout)?;
        let result = answer.result as u32;
        if answer.status != Status::SUCCESS {
            return Err(Error::Connect(answer.status, result).into());
        }
        queue.authenticate(options, subsystem, result & AUTHENTICATION_REQUIRED != 0)?;
        Ok((queue, result))
    }

    fn authenticate(&mut self, options: &Options, subsystem: &str, is_required: bool) -> Result<()> {
        let mut authentication = match options.authentication(subsystem).map(Authentication::new) {
            Some(authentication) if is_required || authentication.is_mutual() => authentication,
            None if is_required => return Err(Error::KeyRequired.into()),
            _ => return Ok(()),
        };
        let mut next = Some(authentication.first());
        while let Some((sqe, moves)) = next {
            let answer = self.call(sqe, &moves, options.timeout)?;
            next = authentication.next(answer.status, &answer.data)?;
        }
        Ok(())
    }

    /// Memory for so many bytes.
    fn memory(&self, bytes: usize) -> Option<SgMut> {
        self.port.borrow().arena.take_sg(bytes)
    }

    /// A copy of bytes that the target reads.
    fn copy(&self, bytes: &[u8]) -> Option<Sg> {
        let mut memory = self.memory(bytes.len())?;
        memory.copy_from(0, bytes);
        Some(memory.share())
    }

    /// Registers memory for the command of a slot; returns its key.
    fn register(&self, cid: u16, memory: Registered) -> u32 {
        // Without a connection nothing is sent, and its end is reported.
        self.port.borrow_mut().keys(self.id).map_or(0, |keys| keys.register(cid, memory))
    }

    /// Sends a command, with data in its capsule.
    fn submit(&self, cid: u16, mut sqe: Sqe, data: Option<Sg>) {
        sqe.cid = cid.into();
        let mut port = self.port.borrow_mut();
        let Some(mut capsule) = port.copy(rdma::bytes(&sqe)) else { return self.lacks_memory.set(true) };
        data.into_iter().for_each(|data| capsule.append(data));
        port.send(self.id, capsule);
    }

    /// Sends a write.
    fn write(&self, cid: u16, sqe: Sqe, data: Sg) {
        // Commands have fewer bytes than a keyed data block.
        let len = data.len() as u32;
        if data.len() <= self.in_capsule {
            return self.submit(cid, rdma::in_capsule(sqe, len), Some(data));
        }
        let key = self.register(cid, Registered::Readable(data));
        self.submit(cid, rdma::keyed(sqe, key, len), None);
    }

    /// Sends a read into this memory.
    fn read(&self, cid: u16, sqe: Sqe, memory: SgMut) {
        let len = memory.len() as u32;
        let key = self.register(cid, Registered::Writable(memory));
        self.submit(cid, rdma::keyed(sqe, key, len), None);
    }

    /// Executes one command and waits for its completion.
    fn call(&mut self, sqe: Sqe, moves: &Moves, timeout: Duration) -> Result<Answer> {
        let cid = self.free.last().copied().context("the queue is full")?;
        match moves {
            Moves::Nothing => self.submit(cid, rdma::without_data(sqe), None),
            Moves::Out(data) => self.write(cid, sqe, self.copy(data.bytes()).context("no memory for data")?),
            Moves::In(len) => {
                let mut memory = self.memory(*len as usize).context("no memory for data")?;
                memory.fill_from(0, 0);
                self.read(cid, sqe, memory);
            }
        }
        let end = Instant::now() + timeout;
        loop {
            let mut port = self.port.borrow_mut();
            if let Some(response) = port.next_response(self.id) {
                ensure!(response.cid == cid, "a completion for a command that is not outstanding");
                let data = match port.keys(self.id).and_then(|keys| keys.take(cid)) {
                    Some(Registered::Writable(memory)) => memory.share().to_vec(),
                    _ => Vec::new(),
                };
                return Ok(Answer { status: response.status, result: response.result, data });
            }
            port.check(self.id)?;
            ensure!(Instant::now() < end, "the target does not answer");
            port.turn()?;
        }
    }

    /// The same for a command with an allocation length.
    fn call_admin(&mut self, sqe: Sqe, room: u32, timeout: Duration) -> Result<Answer> {
        self.call(sqe, &if room == 0 { Moves::Nothing } else { Moves::In(room) }, timeout)
    }

    /// Makes this queue receive the datagrams of all queues, or be told by a signal.
    fn attach(&mut self, receives: bool, polls: bool) -> Result<()> {
        self.receives = receives;
        if !receives {
            let signal = Rc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
            if !polls {
                self.port.borrow_mut().signal(self.id, signal.clone());
                self.is_signalled = true;
            }
            self.ready = signal;
        }
        Ok(())
    }
}

impl Session for NamespaceQueue {
    // Looking whether something has come for a queue costs nearly nothing; one of them receives.
    const POLLED_MAX: usize = usize::MAX;

    #[inline]
    fn room(&self) -> u32 {
        // A target that answers commands, but does not acknowledge them, gets no more.
        let waiting = self.port.borrow().unacknowledged(self.id) as usize;
        if waiting > 2 * self.slots.len() { 0 } else { self.free.len() as u32 }
    }

    fn start(&mut self, request: Request) {
        let Request { cookie, work, lba, blocks, bytes, fua } = request;
        let cid = self.free.pop().expect("the caller checks for room");
        let direction = match &work {
            Work::Read => Direction::In,
            Work::Write(_) => Direction::Out,
            Work::Flush => Direction::None,
        };
        let slot = &mut self.slots[usize::from(cid)];
        (slot.cookie, slot.direction) = (cookie, Some(direction));
        match work {
            Work::Read => {
                let kept = slot.memory.take();
                let Some(memory) = kept.or_else(|| self.memory(bytes as usize)) else {
                    return self.lacks_memory.set(true);
                };
                self.read(cid, command::read(self.namespace, lba, blocks, false), memory);
            }
            Work::Write(data) => {
                let kept = self.payload.clone().filter(|_| !self.copies);
                let Some(data) = kept.or_else(|| self.copy(data.bytes())) else { return self.lacks_memory.set(true) };
                if !self.copies {
                    self.payload = Some(data.clone());
                }
                self.write(cid, command::write(self.namespace, lba, blocks, fua), data);
            }
            Work::Flush => self.submit(cid, rdma::without_data(command::flush(self.namespace)), None),
        }
    }

    fn send(&mut self) -> Result<bool> {
        ensure!(
            !self.lacks_memory.get(),
            "the target does not acknowledge commands, which keep the memory of their data"
        );
        // When there is room again, the port is ready.
        self.port.borrow_mut().flush().map(|()| true)
    }

    fn take(&mut self, _buffer: &mut [u8], on: &mut impl FnMut(SessionEvent<'_>)) -> Result<bool> {
        if self.receives {
            self.port.borrow_mut().receive()?;
        } else if self.is_signalled {
            // Reset the eventfd before the look: a later response signals it again.
            let _ = rustix::io::read(&*self.ready, &mut [0; 8]);
        }
        let mut came = false;
        loop {
            let (response, memory) = {
                let mut port = self.port.borrow_mut();
                let Some(response) = port.next_response(self.id) else { break };
                (response, port.keys(self.id).and_then(|keys| keys.take(response.cid)))
            };
            came = true;
            let slot = self.slots.get_mut(usize::from(response.cid));
            let under_way = slot.and_then(|slot| slot.direction.take().map(|direction| (slot, direction)));
            let (slot, direction) = under_way.context("a completion for a command that is not outstanding")?;
            self.free.push(response.cid);
            let (cookie, is_good) = (slot.cookie, response.status == Status::SUCCESS);
            if let (Direction::In, Some(Registered::Writable(memory))) = (direction, memory) {
                let pieces = memory.pieces().iter().filter(|_| is_good);
                pieces.for_each(|piece| on(SessionEvent::Data(cookie, piece)));
                slot.memory = Some(memory);
            }
            let failed = || nvme::failure(response.status, response.retry);
            on(SessionEvent::Done(cookie, if is_good { Outcome::Good } else { failed() }));
        }
        let mut port = self.port.borrow_mut();
        port.check(self.id)?;
        // Otherwise acknowledgements leave together with the commands that follow.
        if self.receives && !came {
            port.flush()?;
        }
        Ok(came)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

/// Explains why a connection was not established.
fn explain(why: NotConnected, options: &Options) -> anyhow::Error {
    let (reason, private) = match why {
        NotConnected::Rejected(reason, private) => (reason, private),
        NotConnected::Other(why) => return why,
    };
    match reason {
        Reason::CONSUMER => match rdma::rejected(&*private) {
            Some(reason) => anyhow!("the target has rejected the connection of a queue: {reason:?}"),
            None => anyhow!("the target has rejected the connection of a queue, and names no reason"),
        },
        Reason::INVALID_SERVICE => anyhow!(
            "the target serves no NVMe over RDMA at port {}: give the port of its section [nvme-rdma.NAME] in the URL \
             (4420 if it has none)",
            options.url.port
        ),
        Reason::NO_RESOURCES => anyhow!("the target has no room for another connection: choose fewer --sessions"),
        Reason::INVALID_MTU => anyhow!("no path MTU fits both ends: the MTU of a network interface is too small"),
        reason => anyhow!("the target has rejected the connection of a queue: {reason:?}"),
    }
}

impl Controller {
    /// Connects an admin queue and initializes the controller. Without a namespace, of a discovery controller.
    fn open(
        port: &Rc<RefCell<Port>>,
        options: &Options,
        subsystem: &str,
        (queues, namespace): (u16, Option<u32>),
    ) -> Result<Self> {
        let numbers = (0, ADMIN_ENTRIES, ANY_CONTROLLER);
        let connected = NamespaceQueue::connect((port, options), subsystem, numbers, 0);
        let (mut admin, result) = connected.with_context(|| format!("connecting to {subsystem} at {}", options.url))?;
        let timeout = options.timeout;
        let bringup = Bringup::new(queues, namespace);
        let info = nvme::bring_up(bringup, timeout, |sqe, room| admin.call_admin(sqe, room, timeout))?;
        // Bits 15:00 of dword 0 of Connect.
        Ok(Self { admin, id: result as u16, info })
    }

    /// Connects the I/O queues.
    fn queues(&self, options: &Options, subsystem: &str, count: u16) -> Result<Vec<NamespaceQueue>> {
        let Info { queues: granted, entries_max, in_capsule, .. } = self.info;
        ensure!(count <= granted, "the controller has only {granted} I/O queues: choose fewer --sessions");
        // A queue is full when one entry is left.
        let wanted = u16::try_from(options.depth).unwrap_or(u16::MAX).saturating_add(1);
        let entries = wanted.clamp(2, entries_max.max(2));
        let port = &self.admin.port;
        let connect = |number| {
            let numbers = (number, entries, self.id);
            let connected = NamespaceQueue::connect((port, options), subsystem, numbers, in_capsule);
            connected.map(|(queue, _)| queue).with_context(|| format!("connecting queue {number} of {subsystem}"))
        };
        (1..=count).map(connect).collect()
    }
}

/// Disconnects a queue; the controller of an admin queue is shut down before, and its end waited for.
pub(crate) fn close(mut queue: NamespaceQueue, patience: Duration) {
    let is_admin = queue.namespace == 0;
    if is_admin {
        // A missing answer to a shutdown is no error of the run.
        let _ = queue.call_admin(bringup::shutdown(), 0, patience);
    }
    let mut port = queue.port.borrow_mut();
    port.disconnect(queue.id);
    if is_admin {
        port.close(patience);
    }
}

/// Memory for the data of all commands: of a read and of a write for each.
fn memory(options: &Options) -> Result<usize> {
    // Blocks of an arena have powers of two.
    let command = (options.bs as usize).next_power_of_two().max(4096) * 2;
    let commands = options.depth as usize * options.sessions as usize;
    let controllers = 1 + options.idle_sessions as usize;
    let bytes = command.saturating_mul(commands).saturating_add(controllers.saturating_mul(ADMIN_BYTES));
    ensure!(
        bytes <= MEMORY_MAX,
        "the data of all commands takes more than {} GiB: choose a smaller --depth, --bs or fewer --sessions",
        MEMORY_MAX >> 30
    );
    Ok(bytes)
}

/// Opens all queues of a run and identifies the namespace.
pub(crate) fn open(options: &Options) -> Result<OpenSessions<NamespaceQueue>> {
    options.check_for_nvme_rdma().map_err(anyhow::Error::msg)?;
    let (url, subsystem, count) = nvme::chosen(options, discover)?;
    ensure!(options.bs <= rdma::KEYED_MAX, "--bs exceeds the longest data block of NVMe over RDMA");
    let port = Rc::new(RefCell::new(Port::open(options, memory(options)?)?));
    let first = Controller::open(&port, options, &subsystem, (count, Some(url.unit)))?;
    let mut active = first.queues(options, &subsystem, count)?;
    let info = first.info;
    let negotiated = Negotiated::NvmeRdma(RdmaQueues {
        path_mtu: port.borrow().mtu(first.admin.id),
        flow_control: options.flow_control,
        in_capsule: info.in_capsule,
        max_transfer: info.transfer_max,
        entries_max: info.entries_max,
        window: active.first().map_or(0, Session::room),
    });
    let mut idle = vec![first.admin];
    let ((), logins) = time_logins(options.idle_sessions, || {
        for _ in 0..options.idle_sessions {
            let queues = options.idle_queues;
            let controller = Controller::open(&port, options, &subsystem, (queues.max(1), Some(url.unit)))?;
            idle.extend(controller.queues(options, &subsystem, queues)?);
            idle.push(controller.admin);
        }
        Ok(())
    })?;
    for (at, queue) in active.iter_mut().chain(&mut idle).enumerate() {
        queue.attach(at == 0, options.spin)?;
    }
    let capacity = Capacity { blocks: info.blocks, block_size: info.block_size };
    let transfer_max = info.transfer_max.min(BLOCKS_MAX.saturating_mul(info.block_size)).min(rdma::KEYED_MAX);
    Ok(OpenSessions { url, active, idle, capacity, transfer_max, negotiated, logins })
}

/// The subsystems that the discovery controller at the URL's address returns.
///
/// # Errors
/// If it cannot be reached or refuses discovery.
pub(crate) fn discover(options: &Options) -> Result<Vec<DiscoveredTarget>> {
    let port = Rc::new(RefCell::new(Port::open(options, ADMIN_BYTES)?));
    let mut controller = Controller::open(&port, options, DISCOVERY_NQN, (0, None))?;
    let page = nvme::discovery_page(|sqe, len| controller.admin.call_admin(sqe, len, options.timeout))?;
    close(controller.admin, options.timeout);
    Ok(nvme::subsystems(&page, discovery::RDMA))
}

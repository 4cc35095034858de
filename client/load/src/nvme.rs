//! Queues to namespaces of NVMe/TCP subsystems. A queue of the controller takes the place of an iSCSI session.

use crate::connection::{Connection, open_many};
use crate::options::Options;
use crate::report::{Negotiated, Queues};
use crate::session::{Outcome, Request, SessionEvent, StreamSession, Work};
use crate::target::{Capacity, DiscoveredTarget, OpenSessions, time_logins};
use crate::url::Url;
use anyhow::{Context, Result, anyhow, ensure};
use lunar_core::outgoing::{Moves, Outgoing};
use lunar_nvme::connect::DISCOVERY_NQN;
use lunar_nvme::{Sqe, Status};
use lunar_nvme_host::bringup::{self, Answer, Bringup, Info, Next};
use lunar_nvme_host::command::{self, ANY_CONTROLLER, Connect};
use lunar_nvme_host::discovery;
use lunar_nvme_host::queue::{ADMIN_IN_CAPSULE, Command, Event, Offer, Queue};
use std::time::{Duration, Instant};

/// The number of entries of admin queues: the smallest that is allowed.
pub(crate) const ADMIN_ENTRIES: u16 = 32;
/// The pause before a controller that is not ready is polled again.
const READY_PAUSE: Duration = Duration::from_millis(10);
/// The most logical blocks of one command: NLB has 16 bits and is zero-based.
pub(crate) const BLOCKS_MAX: u32 = 1 << 16;

/// A queue, and the namespace of its commands; 0 for an admin queue.
#[derive(Debug)]
pub(crate) struct NamespaceQueue {
    queue: Queue,
    namespace: u32,
}

impl StreamSession for NamespaceQueue {
    fn output(&self) -> &Outgoing {
        self.queue.output()
    }

    fn sent(&mut self, count: usize) {
        self.queue.sent(count);
    }

    fn room(&self) -> u32 {
        self.queue.room()
    }

    #[inline]
    fn start(&mut self, request: Request) {
        let Request { cookie, work, lba, blocks, bytes, fua } = request;
        let (sqe, moves) = match work {
            Work::Read => (command::read(self.namespace, lba, blocks, false), Moves::In(bytes)),
            Work::Write(data) => (command::write(self.namespace, lba, blocks, fua), Moves::Out(data)),
            Work::Flush => (command::flush(self.namespace), Moves::Nothing),
        };
        self.queue.submit(Command { cookie, sqe, moves }).expect("the caller checks for room");
    }

    #[inline]
    fn receive(&mut self, bytes: &[u8], on: &mut impl FnMut(SessionEvent<'_>)) -> Result<()> {
        self.queue.receive(bytes, &mut |event| match event {
            Event::Data { cookie, bytes, .. } => on(SessionEvent::Data(cookie, bytes)),
            Event::Done { cookie, status: Status::SUCCESS, .. } => on(SessionEvent::Done(cookie, Outcome::Good)),
            Event::Done { cookie, status, retry, .. } => on(SessionEvent::Done(cookie, failure(status, retry))),
            Event::Connected { .. } => {}
        })?;
        Ok(())
    }
}

#[cold]
pub(crate) fn failure(status: Status, retry: bool) -> Outcome {
    match status {
        Status::NOT_READY | Status::TRANSITION if retry => Outcome::Again,
        _ => Outcome::Failed(format!("{status:?}")),
    }
}

impl Connection<NamespaceQueue> {
    /// Sends and receives until `done` returns `true`.
    fn until(&mut self, timeout: Duration, mut is_done: impl FnMut(Event<'_>) -> bool) -> Result<()> {
        let mut done = false;
        self.exchange(timeout, |queue, bytes| {
            queue.queue.receive(bytes, &mut |event| done |= is_done(event))?;
            Ok(done)
        })
    }

    /// Executes one command and waits for its completion.
    fn call(&mut self, sqe: Sqe, room: u32, timeout: Duration) -> Result<Answer> {
        let moves = if room == 0 { Moves::Nothing } else { Moves::In(room) };
        let full = |_| anyhow!("the admin queue is full");
        self.session.queue.submit(Command { cookie: 0, sqe, moves }).map_err(full)?;
        let mut answer = Answer { status: Status::SUCCESS, result: 0, data: Vec::new() };
        self.until(timeout, |event| match event {
            Event::Data { bytes, .. } => {
                answer.data.extend_from_slice(bytes);
                false
            }
            Event::Done { status, result, .. } => {
                (answer.status, answer.result) = (status, result);
                true
            }
            Event::Connected { .. } => false,
        })?;
        Ok(answer)
    }
}

/// Shuts the controller of an admin queue down. The socket is closed with the connection.
pub(crate) fn close(mut connection: Connection<NamespaceQueue>, timeout: Duration) {
    if connection.session.namespace == 0 {
        // A missing answer to a shutdown is no error of the run.
        let _ = connection.call(bringup::shutdown(), 0, timeout);
    }
}

/// An initialized controller.
struct Controller {
    admin: Connection<NamespaceQueue>,
    id: u16,
    info: Info,
}

impl Controller {
    /// Connects an admin queue and initializes the controller. Without a namespace, of a discovery controller.
    fn open(options: &Options, subsystem: &str, queues: u16, namespace: Option<u32>) -> Result<Self> {
        let (url, timeout) = (&options.url, options.timeout);
        let connect = connect(options, subsystem, 0, ADMIN_ENTRIES, ANY_CONTROLLER);
        let queue = queue(options, ADMIN_IN_CAPSULE, connect);
        let mut admin = Connection::connect(url, NamespaceQueue { queue, namespace: 0 }, timeout)?;
        let mut id = 0;
        let connected = admin.until(timeout, |event| match event {
            Event::Connected { controller } => {
                id = controller;
                true
            }
            _ => false,
        });
        connected.with_context(|| format!("connecting to {subsystem} at {url}"))?;
        let info = bring_up(Bringup::new(queues, namespace), timeout, |sqe, room| admin.call(sqe, room, timeout))?;
        Ok(Self { admin, id, info })
    }

    /// Connects the I/O queues.
    fn queues(&self, options: &Options, subsystem: &str, count: u16) -> Result<Vec<Connection<NamespaceQueue>>> {
        let Info { queues: granted, entries_max, in_capsule, .. } = self.info;
        ensure!(count <= granted, "the controller has only {granted} I/O queues: choose fewer --sessions");
        // A queue is full when one entry is left.
        let wanted = u16::try_from(options.depth).unwrap_or(u16::MAX).saturating_add(1);
        let entries = wanted.clamp(2, entries_max.max(2));
        let queues = (1..=count).map(|queue| {
            let connect = connect(options, subsystem, queue, entries, self.id);
            NamespaceQueue { queue: self::queue(options, in_capsule, connect), namespace: options.url.unit }
        });
        open_many(&options.url, queues, options.timeout, |queue, bytes| {
            let mut done = false;
            queue.queue.receive(bytes, &mut |event| done |= matches!(event, Event::Connected { .. }))?;
            Ok(done)
        })
    }
}

/// Initializes a controller with `call`, which executes a command with an allocation length.
pub(crate) fn bring_up(
    mut bringup: Bringup,
    timeout: Duration,
    mut call: impl FnMut(Sqe, u32) -> Result<Answer>,
) -> Result<Info> {
    let (mut answer, end) = (call(bringup.first(), 0)?, Instant::now() + timeout);
    loop {
        answer = match bringup.next(&answer)? {
            Next::Command(sqe, room) => call(sqe, room)?,
            Next::Later(sqe) => {
                ensure!(Instant::now() < end, "the controller is not ready");
                std::thread::sleep(READY_PAUSE);
                call(sqe, 0)?
            }
            Next::Ready(info) => return Ok(info),
        };
    }
}

/// Creates a queue. If the host has a key, the queue can be authenticated.
fn queue(options: &Options, in_capsule: u32, connect: Connect) -> Queue {
    let (header_digest, data_digest) = (options.header_digest.is_wanted(), options.data_digest.is_wanted());
    let keys = options.authentication(&connect.subsystem);
    let queue = Queue::new(Offer { header_digest, data_digest, in_capsule }, connect);
    match keys {
        Some(keys) => queue.with_authentication(keys),
        None => queue,
    }
}

pub(crate) fn connect(options: &Options, subsystem: &str, queue: u16, entries: u16, controller: u16) -> Connect {
    Connect {
        queue,
        entries,
        controller,
        // Idle controllers send no Keep Alive commands.
        keep_alive: 0,
        flow_control: options.flow_control,
        subsystem: subsystem.to_owned(),
        host: options.host_nqn.clone(),
        host_id: host_id(&options.host_nqn),
    }
}

/// A host identifier that is derived from the NQN: the same host has the same identifier in each run.
fn host_id(name: &str) -> [u8; 16] {
    let sum = |seed| crc32c::crc32c_append(seed, name.as_bytes()).to_le_bytes();
    let mut id = [0; 16];
    id.chunks_exact_mut(4).zip(1..).for_each(|(part, seed)| part.copy_from_slice(&sum(seed)));
    id
}

/// The URL with its subsystem, which is the first that discovery returns unless the URL names one; the name of the
/// subsystem, and the number of I/O queues.
pub(crate) fn chosen(
    options: &Options,
    discover: impl FnOnce(&Options) -> Result<Vec<DiscoveredTarget>>,
) -> Result<(Url, String, u16)> {
    let mut url = options.url.clone();
    let subsystem = match &url.target {
        Some(name) => name.clone(),
        None => {
            let found = discover(options)?.into_iter().next();
            found.with_context(|| format!("discovery at {url} returned no subsystem: write its NQN behind it"))?.name
        }
    };
    url.target = Some(subsystem.clone());
    let count = u16::try_from(options.sessions).ok().filter(|count| *count < u16::MAX);
    Ok((url, subsystem, count.context("--sessions exceeds the number of queues of a controller")?))
}

/// Opens all queues of a run and identifies the namespace.
pub(crate) fn open(options: &Options) -> Result<OpenSessions<Connection<NamespaceQueue>>> {
    options.check_for_nvme().map_err(anyhow::Error::msg)?;
    let (url, subsystem, count) = chosen(options, discover)?;
    let first = Controller::open(options, &subsystem, count, Some(url.unit))?;
    let active = first.queues(options, &subsystem, count)?;
    let info = first.info;
    let negotiated = Negotiated::NvmeTcp(Queues {
        header_digest: options.header_digest.is_wanted(),
        data_digest: options.data_digest.is_wanted(),
        flow_control: options.flow_control,
        in_capsule: info.in_capsule,
        max_h2c_data: active[0].session.queue.h2c_data_max(),
        max_transfer: info.transfer_max,
        entries_max: info.entries_max,
        window: active[0].session.queue.room(),
    });
    let mut idle = vec![first.admin];
    let ((), logins) = time_logins(options.idle_sessions, || {
        for _ in 0..options.idle_sessions {
            let queues = options.idle_queues;
            let controller = Controller::open(options, &subsystem, queues.max(1), Some(url.unit))?;
            idle.extend(controller.queues(options, &subsystem, queues)?);
            idle.push(controller.admin);
        }
        Ok(())
    })?;
    let capacity = Capacity { blocks: info.blocks, block_size: info.block_size };
    let transfer_max = info.transfer_max.min(BLOCKS_MAX.saturating_mul(info.block_size));
    Ok(OpenSessions { url, active, idle, capacity, transfer_max, negotiated, logins })
}

/// The subsystems that the discovery controller at the URL's portal returns.
///
/// # Errors
/// If the portal cannot be reached or refuses discovery.
pub(crate) fn discover(options: &Options) -> Result<Vec<DiscoveredTarget>> {
    let mut controller = Controller::open(options, DISCOVERY_NQN, 0, None)?;
    let page = discovery_page(|sqe, len| controller.admin.call(sqe, len, options.timeout))?;
    close(controller.admin, options.timeout);
    Ok(subsystems(&page, discovery::TCP))
}

/// Reads the discovery log page with `call`, which executes a command with an allocation length.
pub(crate) fn discovery_page(mut call: impl FnMut(Sqe, u32) -> Result<Answer>) -> Result<Vec<u8>> {
    let (mut page, mut whole) = (Vec::new(), (discovery::ENTRIES_MAX + 1) * discovery::ENTRY_LEN);
    while let Some(left) = whole.checked_sub(u32::try_from(page.len())?).filter(|left| *left > 0) {
        let len = left.min((discovery::ENTRIES_MAX + 1) * discovery::ENTRY_LEN);
        let sqe = command::log_page(discovery::PAGE, u32::try_from(page.len())?, len);
        let answer = call(sqe, len)?;
        ensure!(answer.status == Status::SUCCESS, "Get Log Page (discovery) failed: {:?}", answer.status);
        ensure!(!answer.data.is_empty(), "the discovery log page is truncated");
        page.extend(answer.data);
        whole = discovery::length(&page).context("the discovery log page has too many records")?;
    }
    Ok(page)
}

/// The subsystems of a discovery log page over this transport, with all addresses of each.
pub(crate) fn subsystems(page: &[u8], transport: u8) -> Vec<DiscoveredTarget> {
    let mut found: Vec<DiscoveredTarget> = Vec::new();
    for subsystem in discovery::subsystems(page, transport) {
        let address = match subsystem.address.contains(':') {
            true => format!("[{}]:{}", subsystem.address, subsystem.service),
            false => format!("{}:{}", subsystem.address, subsystem.service),
        };
        match found.iter_mut().find(|known| known.name == subsystem.subsystem) {
            Some(known) => known.addresses.push(address),
            None => found.push(DiscoveredTarget { name: subsystem.subsystem, addresses: vec![address] }),
        }
    }
    found
}

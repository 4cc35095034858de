//! Namespaces behind NVMe/TCP: the queues of one controller are what sessions are to iSCSI.

use crate::driven::{Driven, Ending, Request, Told, Work};
use crate::link::{Link, open_many};
use crate::options::Options;
use crate::report::{Negotiated, Queues};
use crate::{Capacity, Found, Opened, timed};
use anyhow::{Context, Result, anyhow, ensure};
use lunar_core::outgoing::{Moves, Outgoing};
use lunar_nvme::connect::DISCOVERY_NQN;
use lunar_nvme::{Sqe, Status};
use lunar_nvme_host::bringup::{self, Answer, Bringup, Info, Next};
use lunar_nvme_host::command::{self, ANY_CONTROLLER, Connect};
use lunar_nvme_host::discovery;
use lunar_nvme_host::queue::{ADMIN_IN_CAPSULE, Command, Event, Offer, Queue};
use std::time::{Duration, Instant};

/// Entries of an admin queue: the fewest that there may be.
const ADMIN_ENTRIES: u16 = 32;
/// How long a controller that is not ready is left alone.
const READY_PAUSE: Duration = Duration::from_millis(10);
/// Blocks of one command: a number of 16 bits that counts from zero.
const BLOCKS_MAX: u32 = 1 << 16;

/// A queue, and the namespace that its commands are for.
#[derive(Debug)]
pub(crate) struct OfNamespace {
    queue: Queue,
    namespace: u32,
}

impl Driven for OfNamespace {
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
        self.queue.submit(Command { cookie, sqe, moves }).expect("no more are started than there is room for");
    }

    #[inline]
    fn receive(&mut self, bytes: &[u8], on: &mut impl FnMut(Told<'_>)) -> Result<()> {
        self.queue.receive(bytes, &mut |event| match event {
            Event::Data { cookie, bytes, .. } => on(Told::Data(cookie, bytes)),
            Event::Done { cookie, status: Status::SUCCESS, .. } => on(Told::Done(cookie, Ending::Good)),
            Event::Done { cookie, status, retry, .. } => on(Told::Done(cookie, not_good(status, retry))),
            Event::Connected { .. } => {}
        })?;
        Ok(())
    }
}

#[cold]
pub(crate) fn not_good(status: Status, retry: bool) -> Ending {
    match status {
        Status::NOT_READY | Status::TRANSITION if retry => Ending::Again,
        _ => Ending::Failed(format!("{status:?}")),
    }
}

impl Link<OfNamespace> {
    /// Sends and receives until `done` has seen enough.
    fn until(&mut self, patience: Duration, mut done: impl FnMut(Event<'_>) -> bool) -> Result<()> {
        let mut over = false;
        self.talk(patience, |queue, bytes| {
            queue.queue.receive(bytes, &mut |event| over |= done(event))?;
            Ok(over)
        })
    }

    /// Carries out one command and waits for its end.
    fn call(&mut self, sqe: Sqe, room: u32, patience: Duration) -> Result<Answer> {
        let moves = if room == 0 { Moves::Nothing } else { Moves::In(room) };
        let full = |_| anyhow!("the admin queue is full");
        self.session.queue.submit(Command { cookie: 0, sqe, moves }).map_err(full)?;
        let mut answer = Answer { status: Status::SUCCESS, result: 0, data: Vec::new() };
        self.until(patience, |event| match event {
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

/// Tells an admin queue's controller that the host goes; the socket closes with the link.
pub(crate) fn close(mut link: Link<OfNamespace>, patience: Duration) {
    if link.session.namespace == 0 {
        // A controller that does not answer loses nothing by it.
        let _ = link.call(bringup::shutdown(), 0, patience);
    }
}

/// A controller that serves.
struct Controller {
    admin: Link<OfNamespace>,
    id: u16,
    info: Info,
}

impl Controller {
    /// Connects an admin queue and does what a host does before it uses a namespace; without one, before it asks for
    /// a log page.
    fn open(options: &Options, subsystem: &str, queues: u16, namespace: Option<u32>) -> Result<Self> {
        let (url, patience) = (&options.url, options.timeout);
        let connect = connect(options, subsystem, 0, ADMIN_ENTRIES, ANY_CONTROLLER);
        let queue = queue(options, ADMIN_IN_CAPSULE, connect);
        let mut admin = Link::connect(url, OfNamespace { queue, namespace: 0 }, patience)?;
        let mut id = 0;
        let connected = admin.until(patience, |event| match event {
            Event::Connected { controller } => {
                id = controller;
                true
            }
            _ => false,
        });
        connected.with_context(|| format!("connecting to {subsystem} at {url}"))?;
        let mut way = Bringup::new(queues, namespace);
        let (mut answer, end) = (admin.call(way.first(), 0, patience)?, Instant::now() + patience);
        loop {
            answer = match way.next(&answer)? {
                Next::Command(sqe, room) => admin.call(sqe, room, patience)?,
                Next::Later(sqe) => {
                    ensure!(Instant::now() < end, "the controller does not become ready");
                    std::thread::sleep(READY_PAUSE);
                    admin.call(sqe, 0, patience)?
                }
                Next::Ready(info) => return Ok(Self { admin, id, info }),
            };
        }
    }

    /// Connects its I/O queues.
    fn queues(&self, options: &Options, subsystem: &str, count: u16) -> Result<Vec<Link<OfNamespace>>> {
        let Info { queues: granted, entries_max, in_capsule, .. } = self.info;
        ensure!(count <= granted, "the controller grants {granted} I/O queues");
        // A queue is full with one entry left.
        let wanted = u16::try_from(options.depth).unwrap_or(u16::MAX).saturating_add(1);
        let entries = wanted.clamp(2, entries_max.max(2));
        let queues = (1..=count).map(|queue| {
            let connect = connect(options, subsystem, queue, entries, self.id);
            OfNamespace { queue: self::queue(options, in_capsule, connect), namespace: options.url.unit }
        });
        open_many(&options.url, queues, options.timeout, |queue, bytes| {
            let mut over = false;
            queue.queue.receive(bytes, &mut |event| over |= matches!(event, Event::Connected { .. }))?;
            Ok(over)
        })
    }
}

/// A queue that is asked for so, by a host that can prove its name if it has a key.
fn queue(options: &Options, in_capsule: u32, connect: Connect) -> Queue {
    let (header_digest, data_digest) = (options.header_digest.is_wanted(), options.data_digest.is_wanted());
    let proof = options.proof(&connect.subsystem);
    let queue = Queue::new(Offer { header_digest, data_digest, in_capsule }, connect);
    match proof {
        Some(proof) => queue.with_authentication(proof),
        None => queue,
    }
}

fn connect(options: &Options, subsystem: &str, queue: u16, entries: u16, controller: u16) -> Connect {
    Connect {
        queue,
        entries,
        controller,
        // An idle host has nobody who would keep its controller alive.
        keep_alive: 0,
        flow_control: options.flow_control,
        subsystem: subsystem.to_owned(),
        host: options.host_nqn.clone(),
        host_id: host_id(&options.host_nqn),
    }
}

/// A host's identifier, made of its name: a host that comes again is the same one.
fn host_id(name: &str) -> [u8; 16] {
    let sum = |seed| crc32c::crc32c_append(seed, name.as_bytes()).to_le_bytes();
    let mut id = [0; 16];
    id.chunks_exact_mut(4).zip(1..).for_each(|(part, seed)| part.copy_from_slice(&sum(seed)));
    id
}

/// All queues of a run, and the namespace they are for.
pub(crate) fn open(options: &Options) -> Result<Opened<Link<OfNamespace>>> {
    options.check_for_nvme().map_err(anyhow::Error::msg)?;
    let mut url = options.url.clone();
    let subsystem = match &url.target {
        Some(name) => name.clone(),
        None => {
            let found = discover(options)?.into_iter().next();
            found.with_context(|| format!("{url} shows no subsystem"))?.name
        }
    };
    url.target = Some(subsystem.clone());
    let count = u16::try_from(options.sessions).ok().filter(|count| *count < u16::MAX);
    let count = count.context("--sessions: a controller has fewer queues")?;
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
    let ((), logins) = timed(options.idle_sessions, || {
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
    Ok(Opened { url, active, idle, capacity, transfer_max, negotiated, logins })
}

/// The subsystems that the discovery service at the URL's portal shows.
///
/// # Errors
/// When it is not there, or refuses.
pub(crate) fn discover(options: &Options) -> Result<Vec<Found>> {
    let mut controller = Controller::open(options, DISCOVERY_NQN, 0, None)?;
    let (mut page, mut whole) = (Vec::new(), (discovery::ENTRIES_MAX + 1) * discovery::ENTRY_LEN);
    while let Some(left) = whole.checked_sub(u32::try_from(page.len())?).filter(|left| *left > 0) {
        let len = left.min((discovery::ENTRIES_MAX + 1) * discovery::ENTRY_LEN);
        let sqe = command::log_page(discovery::PAGE, u32::try_from(page.len())?, len);
        let answer = controller.admin.call(sqe, len, options.timeout)?;
        ensure!(answer.status == Status::SUCCESS, "the discovery log page was refused: {:?}", answer.status);
        ensure!(!answer.data.is_empty(), "the discovery log page ends before its end");
        page.extend(answer.data);
        whole = discovery::length(&page).context("the discovery log page says that it has no end")?;
    }
    close(controller.admin, options.timeout);
    let mut found: Vec<Found> = Vec::new();
    for subsystem in discovery::subsystems(&page) {
        let address = match subsystem.address.contains(':') {
            true => format!("[{}]:{}", subsystem.address, subsystem.service),
            false => format!("{}:{}", subsystem.address, subsystem.service),
        };
        match found.iter_mut().find(|known| known.name == subsystem.subsystem) {
            Some(known) => known.addresses.push(address),
            None => found.push(Found { name: subsystem.subsystem, addresses: vec![address] }),
        }
    }
    Ok(found)
}

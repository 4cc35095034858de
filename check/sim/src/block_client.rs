//! Simulated clients of the block command set on the volumes that iSCSI initiators and NVMe hosts use, too. There is no
//! wire: a client posts requests to a [`Port`] of a core of the target, with its data in guest memory, as a transport
//! over shared memory would.

use crate::block_port::{Connection, Port, Posted};
use crate::job::{Job, Maker, Verdict};
use crate::model::ZEROES;
use crate::shared::Shared;
use crate::stamp::{self, SECTOR};
use lunar_blk::{Answer, ByteRange, Client, Code, Error};
use lunar_core::io::Extent;
use lunar_core::mem::Region;
use lunar_core::time::Instant;
use lunar_guest::Range;
use lunar_guest::memory::Memory;
use lunar_guest::scatter::ScatterList;
use lunar_reactor::Reactor;
use lunar_reactor::sim::Chance;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Longer than any request takes that is not lost: all stalls and slow operations together.
const REQUEST_TIME: Duration = Duration::from_secs(250);
/// The most requests of one client that are in progress.
const DEPTH_MAX: u64 = 8;
/// Guest memory of one request: as much as 48 blocks of 4 KiB take, in pieces with gaps between them.
const WINDOW: u64 = 256 << 10;
/// Where guest memory begins. It consists of two regions, which meet in the middle of a window.
const BASE: u64 = 0x10_0000;
/// Pieces of the data of one request at most.
const PIECES_MAX: u64 = 4;
/// The pause before a client looks for a port again.
const PORT_PAUSE: Duration = Duration::from_millis(20);

/// A request in progress.
struct Pending {
    lun: usize,
    job: Work,
    since: Instant,
    /// Its part of guest memory.
    window: u64,
    data: ScatterList,
}

enum Work {
    Job(Job),
    /// Extents, as a read that finds zeroes where nothing is allocated: the first sector, and sectors.
    Extents(Job, usize, usize),
}

/// One client.
pub struct BlockClient {
    shared: Rc<Shared>,
    chance: Chance,
    number: u8,
    depth: u64,
    caches_writes: bool,
    /// Requests that it will still start.
    left: u64,
    next: u64,
}

impl BlockClient {
    /// A client with this number.
    #[must_use]
    pub fn any(shared: &Rc<Shared>, mut chance: Chance, number: u8) -> Self {
        let (depth, left) = (chance.within(1..=DEPTH_MAX), chance.within(10..=120));
        let caches_writes = !chance.odds(250_000);
        Self { shared: shared.clone(), chance, number, depth, caches_writes, left, next: 0 }
    }

    /// Works until its requests are used up.
    pub async fn work(mut self) {
        let shared = self.shared.clone();
        while self.left > 0 && !shared.watch.is_wrong() {
            let ports = shared.ports.borrow().clone();
            let port = (!ports.is_empty()).then(|| self.chance.pick(&ports).clone());
            match port.filter(|port| port.is_open()) {
                Some(port) => self.live(&port).await,
                None => shared.core.sleep(PORT_PAUSE).await,
            }
        }
        shared.busy.set(shared.busy.get() - 1);
    }

    fn report(&self, what: impl Into<String>) {
        self.shared.watch.report(format!("block client {}: {}", self.number, what.into()));
    }

    fn connect(&mut self, port: &Port) -> Rc<Connection> {
        let client = || Client { name: format!("block client {}", self.number).into(), group: 0, read_only: false };
        let units = (0..port.units() as u32).map(lunar_core::unit::UnitId);
        let attachments: Vec<_> = units.filter_map(|unit| port.set().attach(unit, client())).collect();
        attachments.iter().for_each(|attachment| attachment.set_write_cache(self.caches_writes));
        let (all, first) = (self.depth * WINDOW, WINDOW / 2 + 512 * self.chance.within(0..=63));
        let mut memory = Memory::default();
        for (address, len) in [(BASE, first), (BASE + first, all - first)] {
            memory.map(address, len, Some(Region::zeroed(len as usize))).expect("nothing else is there");
        }
        let connection = Connection::new(memory, attachments);
        port.connect(&connection);
        connection
    }

    /// From the connection to a port to its end.
    async fn live(&mut self, port: &Rc<Port>) {
        let shared = self.shared.clone();
        let (connection, deaths) = (self.connect(port), shared.deaths.get());
        let mut pending = BTreeMap::<u64, Pending>::new();
        let mut was_aborted = false;
        while !connection.is_closed.get() && !shared.watch.is_wrong() {
            let is_open = port.is_open();
            while is_open && self.left > 0 && (pending.len() as u64) < self.depth && !self.chance.odds(300_000) {
                self.start(port, &connection, &mut pending);
            }
            if pending.is_empty() && (self.left == 0 || !is_open || self.chance.odds(20_000)) {
                break;
            }
            if self.chance.odds(5_000) {
                // As a guest that resets its device: requests are aborted.
                was_aborted = true;
                connection.attachments.iter().for_each(|attachment| _ = attachment.tasks.abort(|_| true));
            }
            let wants_more = is_open && self.left > 0 && (pending.len() as u64) < self.depth;
            let pause = if wants_more { self.chance.within(0..=3_000) } else { 1_000_000 };
            wait(&shared.core, &connection, shared.core.now() + Duration::from_micros(pause)).await;
            loop {
                let Some((number, result, answer)) = connection.ended.borrow_mut().pop_front() else { break };
                let Some(request) = pending.remove(&number) else {
                    self.report(format!("request {number} ended twice"));
                    break;
                };
                let may_end = was_aborted || shared.has_died_since(deaths);
                self.ended(&connection, (number, request), (result, answer), may_end);
            }
            for (number, request) in &pending {
                if shared.core.now().since(request.since) > REQUEST_TIME {
                    self.report(format!("request {number} has not ended"));
                }
            }
        }
        port.disconnect(&connection);
        for request in pending.into_values() {
            let (Work::Job(job) | Work::Extents(job, ..)) = request.job;
            job.unanswered(&shared.luns[request.lun]);
        }
    }

    /// Pieces of a window of guest memory that hold so many bytes.
    fn pieces(&mut self, window: u64, mut len: u64) -> ScatterList {
        let mut list = ScatterList::new();
        // The part of the window that holds no data, for gaps before each piece.
        let (mut at, mut spare) = (BASE + window * WINDOW, WINDOW - len);
        for piece in (0..PIECES_MAX).rev() {
            let gap = self.chance.within(0..=spare / 2);
            let count = if piece == 0 { len } else { self.chance.within(0..=len) };
            list.push(Range { address: at + gap, len: count });
            (at, spare, len) = (at + gap + count, spare - gap, len - count);
        }
        list
    }

    fn start(&mut self, port: &Rc<Port>, connection: &Rc<Connection>, pending: &mut BTreeMap<u64, Pending>) {
        let shared = self.shared.clone();
        let lun = self.chance.index(shared.luns.len());
        let window = (0..self.depth).find(|window| pending.values().all(|other| other.window != *window));
        let Some(window) = window else { return };
        let made = self.make(lun);
        let (number, len) = (self.next, made.len);
        (self.next, self.left) = (number + 1, self.left - 1);
        let data = self.pieces(window, len as u64);
        let mut done = 0;
        for range in data.iter() {
            let count = range.len as usize;
            // Bytes that a read leaves untouched must not look like data.
            let part = made.data.get(done..done + count).map_or_else(|| vec![0xa5; count], <[u8]>::to_vec);
            assert!(connection.memory.write(range.address, &part), "guest memory is there");
            done += count;
        }
        let (code, ranges) = (made.code, made.ranges);
        let job = made.job;
        shared
            .watch
            .world()
            .note(format_args!("block client {} request {number} unit {lun}: {code:?} {ranges:?}", self.number));
        pending.insert(number, Pending { lun, job, since: shared.core.now(), window, data: data.clone() });
        port.post(Posted {
            connection: connection.clone(),
            number,
            lun,
            code,
            ranges,
            durable: made.durable,
            unmap: made.unmap,
            data,
            is_direct: self.chance.coin(),
        });
    }

    fn make(&mut self, lun: usize) -> Made {
        let shared = self.shared.clone();
        let (lun, seed, is_cached) = (&shared.luns[lun], shared.watch.seed(), self.caches_writes);
        let which = self.chance.index(20);
        let mut maker = Maker { watch: &shared.watch, lun, chance: &mut self.chance, seen: &mut None };
        let blocks = maker.blocks();
        let sectors = maker.sectors(&blocks);
        let bytes = ByteRange { offset: (sectors.start * SECTOR) as u64, len: (sectors.len() * SECTOR) as u64 };
        let len = sectors.len() * SECTOR;
        let is_durable = lun.volume.is_durable() || !is_cached;
        let with = |code, job| Made { code, ranges: vec![bytes], job, ..Made::none() };
        let read = || lun.model.borrow_mut().begin_read();
        let zeroes = |hint| {
            let mut model = lun.model.borrow_mut();
            let write = model.begin_write(sectors.clone(), ZEROES);
            // With durable writes, changes of space end with a flush of their own.
            let flush = is_durable.then(|| model.begin_flush());
            Work::Job(Job::Write { write, flush, durable: is_durable, hint })
        };
        match which {
            0..7 => {
                let job = Job::Read { read: read(), first: sectors.start, wanted: len, expected: len, bytes: vec![] };
                Made { len, ..with(Code::Read, Work::Job(job)) }
            }
            7..12 => {
                let durable = maker.chance.odds(300_000);
                let mut model = lun.model.borrow_mut();
                let value = model.fresh_value();
                let write = model.begin_write(sectors.clone(), value);
                let data = stamp::fill(seed, sectors, value);
                let job = Job::Write { write, flush: None, durable: durable || is_durable, hint: false };
                Made { len, data, durable, ..with(Code::Write, Work::Job(job)) }
            }
            12 | 13 => {
                let flush = lun.model.borrow_mut().begin_flush();
                Made { code: Code::Flush, job: Work::Job(Job::Flush(flush)), ..Made::none() }
            }
            14 => with(Code::Discard, zeroes(true)),
            15 | 16 => Made { unmap: maker.chance.coin(), ..with(Code::WriteZeroes, zeroes(false)) },
            17 => {
                let job = Job::Read { read: read(), first: sectors.start, wanted: 0, expected: 0, bytes: vec![] };
                with(Code::Extents, Work::Extents(job, sectors.start, sectors.len()))
            }
            18 => Made { code: Code::Identify, job: Work::Job(Job::Harmless), ..Made::none() },
            _ => {
                let end = (lun.volume.sectors_max() * SECTOR) as u64;
                let block = u64::from(lun.volume.block_size);
                let bad = [(end, block), (end - block, 2 * block), (u64::MAX - 511, 512), (1, block), (0, block - 1)];
                let &(offset, len) = maker.chance.pick(&bad);
                let code = *maker.chance.pick(&[Code::Read, Code::Write, Code::Discard, Code::WriteZeroes]);
                Made { ranges: vec![ByteRange { offset, len }], ..with(code, Work::Job(Job::Illegal)) }
            }
        }
    }

    /// A request has ended. `may_end`: it may have been aborted, or lost with the target.
    fn ended(
        &mut self,
        connection: &Connection,
        (number, request): (u64, Pending),
        (result, answer): (Result<(), Error>, Answer),
        may_end: bool,
    ) {
        let shared = self.shared.clone();
        let Pending { lun, job, data, .. } = request;
        shared.watch.world().note(format_args!("block client {} request {number}: {result:?}", self.number));
        shared.watch.count_command();
        let (unit, faults) = (&shared.luns[lun], shared.faults.borrow());
        let (mut job, extents) = match job {
            Work::Job(job) => (job, None),
            Work::Extents(job, first, sectors) => (job, Some((first, sectors))),
        };
        let verdict = match (result, &job) {
            (Ok(()), Job::Illegal) => Err("an invalid request succeeded".to_owned()),
            (Ok(()), _) => Ok(Verdict::Good),
            (Err(Error::Invalid), Job::Illegal) => Ok(Verdict::Refused),
            // Memory may have run out in the middle.
            (Err(Error::NotReady), _) => Ok(Verdict::Failed),
            (Err(Error::IoError), _) if may_end || job.may_fail(unit, &faults) => Ok(Verdict::Failed),
            (Err(Error::NoSpace), _) if job.may_lack_space(unit, &faults) => Ok(Verdict::Failed),
            (Err(why), _) => Err(format!("{job:?} failed: {why:?}")),
        };
        if let (Ok(Verdict::Good), Job::Read { bytes, .. }, None) = (&verdict, &mut job, &extents) {
            for range in data.iter() {
                let mut part = vec![0; range.len as usize];
                assert!(connection.memory.read(range.address, &mut part), "guest memory is there");
                bytes.extend(part);
            }
        }
        let settled = match (verdict, extents, answer) {
            (Ok(Verdict::Good), Some((first, sectors)), Answer::Extents(extents)) => {
                let Job::Read { read, .. } = job else { return };
                let mut model = unit.model.borrow_mut();
                // Only one run of them: a read of the model is one of consecutive sectors.
                match free_run(first, sectors, &extents) {
                    Ok(Some((first, sectors))) => model.end_read(read, first, &vec![ZEROES; sectors]),
                    other => {
                        model.give_up_read(read);
                        other.map(drop)
                    }
                }
            }
            (Ok(Verdict::Good), Some(_), answer) => Err(format!("extents returned {answer:?}")),
            (verdict, ..) => verdict.and_then(|verdict| job.settled(&shared.watch, unit, verdict)).map(drop),
        };
        if let Err(what) = settled {
            self.report(format!("request {number}, unit {lun}: {what}"));
        }
    }
}

/// The first run of sectors that are not allocated; they read as zeroes.
fn free_run(first: usize, sectors: usize, extents: &[Extent]) -> Result<Option<(usize, usize)>, String> {
    let bytes: u64 = extents.iter().map(|extent| extent.len).sum();
    if bytes != (sectors * SECTOR) as u64 {
        return Err(format!("the extents of {sectors} sectors have {bytes} bytes"));
    }
    let mut at = first;
    for extent in extents {
        let count = extent.len as usize / SECTOR;
        if !extent.mapped {
            return Ok(Some((at, count)));
        }
        at += count;
    }
    Ok(None)
}

/// A request that was made.
struct Made {
    code: Code,
    ranges: Vec<ByteRange>,
    durable: bool,
    unmap: bool,
    /// Bytes that it moves, and those that it sends.
    len: usize,
    data: Vec<u8>,
    job: Work,
}

impl Made {
    fn none() -> Self {
        Self {
            code: Code::Identify,
            ranges: Vec::new(),
            durable: false,
            unmap: false,
            len: 0,
            data: Vec::new(),
            job: Work::Job(Job::Harmless),
        }
    }
}

/// Waits until a request has ended, the port is closed, or the time has come.
async fn wait(core: &Reactor, connection: &Connection, until: Instant) {
    let mut timer = pin!(core.sleep_until(until));
    poll_fn(|cx| {
        if connection.is_closed.get() || !connection.ended.borrow().is_empty() {
            return Poll::Ready(());
        }
        connection.set_waker(cx.waker().clone());
        timer.as_mut().poll(cx)
    })
    .await;
}

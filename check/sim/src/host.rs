//! A simulated NVMe host on the volumes that iSCSI initiators use, too: gets a controller, keeps commands under way, is
//! cut off or cuts itself off, and comes again, until its commands are used up and all that was uncertain is settled.

use crate::exchange::Woken;
use crate::initiator::Shared;
use crate::job::{Job, Maker, Verdict};
use crate::model::Value;
use crate::stamp::{self, SECTOR};
use crate::wire::{Controller, ENTRIES, Lost, Who};
use lunar_core::outgoing::{Data, Moves};
use lunar_core::time::Instant;
use lunar_nvme::command::{FUSE_FIRST, FUSE_SECOND};
use lunar_nvme::{Sqe, Status};
use lunar_nvme_host::Error;
use lunar_nvme_host::command::{self, opcode};
use lunar_nvme_host::queue::{Command, Event, Offer};
use lunar_reactor::sim::Chance;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Longer than any command takes that is not lost: all stalls and slow operations together.
const COMMAND_TIME: Duration = Duration::from_secs(180);
/// Longer than the target waits for data, or for a peer that takes nothing.
const TARGET_PATIENCE: Duration = Duration::from_secs(70);
/// Longer than it takes to get a controller.
const BRINGUP_TIME: Duration = Duration::from_secs(60);
/// Bring-ups that fail one after the other before something must be wrong.
const FAILURES_MAX: u32 = 500;
/// Commands that one host keeps under way at most; a fused operation is two.
const DEPTH_MAX: usize = ENTRIES as usize / 2 - 1;

/// A command under way.
struct Pending {
    lun: usize,
    since: Instant,
    what: What,
}

enum What {
    Job(Job),
    /// The first half of a fused operation, and how it ended. The job is that of the second.
    Compare(Option<Status>),
}

/// What was made: one command, or both halves of a fused operation.
struct Made {
    job: Job,
    compare: Option<(Sqe, Moves)>,
    command: (Sqe, Moves),
}

/// One host.
pub struct NvmeHost {
    shared: Rc<Shared>,
    chance: Chance,
    who: Who,
    depth: usize,
    /// Commands that it will still start.
    left: u64,
    /// Commands of connections that were lost, and since when.
    lost: Vec<(usize, Job, Instant)>,
    seen: Option<(u16, usize, Vec<Value>)>,
    failures: u32,
}

impl NvmeHost {
    /// A host with this number.
    #[must_use]
    pub fn any(shared: &Rc<Shared>, mut chance: Chance, number: u8) -> Self {
        let offer = Offer { header_digest: chance.coin(), data_digest: chance.coin(), in_capsule: 0 };
        let who = Who { number, offer, flow_control: chance.coin(), entries: ENTRIES };
        let depth = (1 << chance.within(0..=5)).min(DEPTH_MAX);
        let left = chance.within(10..=120);
        Self { shared: shared.clone(), chance, who, depth, left, lost: Vec::new(), seen: None, failures: 0 }
    }

    /// Works until its commands are used up.
    pub async fn work(mut self) {
        let shared = self.shared.clone();
        while self.left > 0 && !shared.watch.is_wrong() {
            self.life().await;
            let pause = Duration::from_micros(self.chance.within(0..=50_000));
            shared.core.sleep(pause).await;
        }
        // Nothing tells a host when the commands of a connection that was lost have ended; but they have to.
        let last = self.lost.iter().map(|(_, _, since)| *since).max();
        if let Some(last) = last.filter(|_| !shared.watch.is_wrong()) {
            shared.core.sleep_until(last + COMMAND_TIME + TARGET_PATIENCE).await;
        }
        self.lost.drain(..).for_each(|(lun, job, _)| job.unanswered(&shared.luns[lun]));
        shared.busy.set(shared.busy.get() - 1);
    }

    fn report(&self, what: impl Into<String>) {
        self.shared.watch.report(format!("host {}: {}", self.who.number, what.into()));
    }

    /// From Connect to the end of the connection.
    async fn life(&mut self) {
        let shared = self.shared.clone();
        let (deaths, until) = (shared.deaths.get(), shared.core.now() + BRINGUP_TIME);
        match Controller::open(shared.watch.world(), &shared.core, self.who, until).await {
            Ok(controller) => {
                self.failures = 0;
                let link = controller.io.peer.link();
                shared.watch.world().note(format_args!("link {link}: host {} has a queue", self.who.number));
                let life =
                    Life { deaths, pending: BTreeMap::new(), next: 0, from: [until; 2], strange: false, controller };
                self.live(life).await;
            }
            Err(why) => {
                self.failures += 1;
                let died = shared.has_died_since(deaths);
                if !is_excused(&why, died || shared.breaks(), died) {
                    self.report(format!("no controller: {why:?}"));
                } else if self.failures > FAILURES_MAX {
                    self.report("no bring-up succeeds any more");
                }
            }
        }
    }

    async fn live(&mut self, mut life: Life) {
        let shared = self.shared.clone();
        life.from = [shared.core.now(); 2];
        loop {
            if shared.watch.is_wrong() || self.chance.odds(2_000) && self.disturb(&mut life) {
                break;
            }
            while self.wants_more(&life) && !self.chance.odds(300_000) {
                self.start(&mut life);
            }
            if life.pending.is_empty() && self.left == 0 {
                break;
            }
            let now = shared.core.now();
            let pause = if self.wants_more(&life) { self.chance.within(0..=3_000) } else { 1_000_000 };
            let may = (now >= life.from[0], now >= life.from[1]);
            let mut until = now + Duration::from_micros(pause);
            for from in life.from.into_iter().filter(|from| *from > now) {
                until = until.min(from);
            }
            let most = 1 + self.chance.index(8192);
            match life.controller.io.wait(&shared.core, until, may, most).await {
                Woken::Bytes(bytes) => {
                    if let Err(why) = self.take_in(&mut life, &bytes) {
                        self.report(why.to_string());
                    }
                }
                Woken::Ended => {
                    if !(life.strange || shared.breaks() || shared.has_died_since(life.deaths)) {
                        self.report("the target closed the connection");
                    }
                    break;
                }
                Woken::Time => self.look_at_time(&life),
            }
        }
        let now = shared.core.now();
        for pending in life.pending.into_values() {
            if let What::Job(job) = pending.what {
                self.lost.push((pending.lun, job, now));
            }
        }
    }

    fn wants_more(&self, life: &Life) -> bool {
        self.left > 0 && life.pending.len() < self.depth && life.controller.io.queue.room() >= 2
    }

    /// Something that happens to connections. Says whether it ends this one.
    fn disturb(&mut self, life: &mut Life) -> bool {
        let what = self.chance.index(6);
        // Now and then longer than a target has patience.
        let patient = what < 4 || !self.chance.odds(100_000);
        let until = self.shared.core.now() + Duration::from_micros(self.chance.within(1..=3_000_000));
        let until = if patient { until } else { until + TARGET_PATIENCE };
        let controller = &life.controller;
        match what {
            0 => controller.io.peer.reset(),
            // With its admin queue a controller ends.
            1 => controller.admin.peer.reset(),
            2 => {}
            3 => controller.io.peer.stall(until),
            4 => life.from[0] = until,
            _ => life.from[1] = until,
        }
        life.strange |= !patient || what == 1;
        what == 0 || what == 2
    }

    fn start(&mut self, life: &mut Life) {
        let shared = self.shared.clone();
        let number = self.chance.index(shared.luns.len());
        let lun = &shared.luns[number];
        let mut maker = Maker { watch: &shared.watch, lun, chance: &mut self.chance, seen: &mut self.seen };
        let Made { job, compare, command } = any(&mut maker);
        let (world, link, since) = (shared.watch.world(), life.controller.io.peer.link(), shared.core.now());
        self.left -= 1;
        let halves = compare.map(|half| (half, None)).into_iter().chain([(command, Some(job))]);
        for ((sqe, moves), job) in halves {
            let cookie = life.next;
            life.next += 1;
            let (code, dwords) = (sqe.opcode, (sqe.cdw_pair(10), sqe.cdw(12)));
            world.note(format_args!(
                "link {link} command {cookie} namespace {}: {code:02x} {dwords:x?} {job:?}",
                number + 1
            ));
            if life.controller.io.queue.submit(Command { cookie, sqe, moves }).is_err() {
                self.report("a command did not start although there was room");
            }
            let what = job.map_or(What::Compare(None), What::Job);
            life.pending.insert(cookie, Pending { lun: number, since, what });
        }
    }

    fn take_in(&mut self, life: &mut Life, bytes: &[u8]) -> Result<(), Error> {
        let mut done = Vec::new();
        let pending = &mut life.pending;
        let heard = life.controller.io.queue.receive(bytes, &mut |event| match event {
            Event::Data { cookie, bytes: data, .. } => {
                if let Some(Pending { what: What::Job(Job::Read { bytes, .. }), .. }) = pending.get_mut(&cookie) {
                    bytes.extend_from_slice(data);
                }
            }
            Event::Done { cookie, status, .. } => done.push((cookie, status)),
            Event::Connected { .. } => {}
        });
        for (cookie, status) in done {
            self.done(life, cookie, status);
        }
        heard
    }

    fn done(&mut self, life: &mut Life, cookie: u32, status: Status) {
        let shared = self.shared.clone();
        let link = life.controller.io.peer.link();
        shared.watch.world().note(format_args!("link {link} command {cookie}: {status:?}"));
        if let Some(Pending { what: What::Compare(end), .. }) = life.pending.get_mut(&cookie) {
            *end = Some(status);
        }
        let compared =
            cookie.checked_sub(1).and_then(|first| life.pending.get(&first)).and_then(|first| match first.what {
                What::Compare(end) => end,
                What::Job(_) => None,
            });
        let Some(Pending { lun, what: What::Job(job), .. }) = life.pending.remove(&cookie) else { return };
        if let Job::CompareWrite { .. } = job {
            life.pending.remove(&(cookie - 1));
        }
        shared.watch.count_command();
        let unit = &shared.luns[lun];
        let first = match &job {
            Job::Read { first, .. } => *first,
            _ => 0,
        };
        let faults = shared.faults.borrow();
        let verdict = match (status, &job) {
            (Status::SUCCESS, Job::Illegal) => Err("an illegal request ended well".to_owned()),
            (Status::SUCCESS, _) => Ok(Verdict::Good),
            (Status::FUSED_FAILED, Job::CompareWrite { .. }) if compared == Some(Status::COMPARE_FAILURE) => {
                Ok(Verdict::Miscompare)
            }
            (Status::FUSED_FAILED, Job::CompareWrite { .. }) => Ok(Verdict::Failed),
            (Status::LBA_RANGE | Status::INVALID_OPCODE | Status::INVALID_NAMESPACE, Job::Illegal) => {
                Ok(Verdict::Refused)
            }
            // Memory may have run out in the middle.
            (Status::NOT_READY, _) => Ok(Verdict::Failed),
            (Status::READ_ERROR | Status::WRITE_FAULT, _) if job.may_fail(unit, &faults) => Ok(Verdict::Failed),
            (Status::CAPACITY, _) if job.may_lack_space(unit, &faults) => Ok(Verdict::Failed),
            (Status::ABORTED | Status::TRANSPORT_ERROR, _) if life.strange => Ok(Verdict::Failed),
            // A target that stops has no more patience with commands than its drain time.
            (Status::ABORTED, _) if shared.has_died_since(life.deaths) => Ok(Verdict::Failed),
            _ => Err(format!("{job:?} ended with {status:?}")),
        };
        let settled = verdict.and_then(|verdict| job.settled(&shared.watch, unit, verdict));
        match settled {
            Ok(values) if !values.is_empty() => self.seen = Some((unit.number, first, values)),
            Ok(_) => {}
            Err(what) => self.report(format!("command {cookie}, namespace {}: {what}", lun + 1)),
        }
    }

    fn look_at_time(&self, life: &Life) {
        let now = self.shared.core.now();
        for (cookie, pending) in &life.pending {
            if now.since(pending.since) > COMMAND_TIME + TARGET_PATIENCE {
                self.report(format!("command {cookie} is not answered"));
            }
        }
    }
}

/// One association of a host.
struct Life {
    controller: Controller,
    pending: BTreeMap<u32, Pending>,
    next: u32,
    /// It reads, and sends, nothing until then.
    from: [Instant; 2],
    /// Whether it was deaf or mute for so long that the target may give it up.
    strange: bool,
    deaths: u64,
}

/// Whether a bring-up may fail like this. `changed`: the network or the target may have taken the controller away
/// meanwhile. `died`: the target may have taken along what it never answered; who is cut off by the network is told.
#[must_use]
pub fn is_excused(why: &Lost, changed: bool, died: bool) -> bool {
    match why {
        Lost::Gone => changed,
        Lost::Time => died,
        Lost::Error(Error::Connect(Status::CONNECT_BUSY | Status::NOT_READY, _)) => true,
        Lost::Error(Error::Refused(_, Status::NOT_READY)) => true,
        Lost::Error(Error::Connect(..) | Error::Refused(..)) => changed,
        Lost::Error(_) => false,
    }
}

/// Any command.
fn any(maker: &mut Maker<'_>) -> Made {
    let one = |job, sqe, moves| Made { job, compare: None, command: (sqe, moves) };
    let namespace = u32::from(maker.lun.number) + 1;
    match maker.chance.index(20) {
        0..7 => read(maker, namespace),
        7..12 => write(maker, namespace),
        12 | 13 => {
            let flush = maker.lun.model.borrow_mut().begin_flush();
            one(Job::Flush(flush), command::flush(namespace), Moves::Nothing)
        }
        14 => {
            let blocks = maker.blocks();
            let (sqe, range) = command::deallocate(namespace, blocks.start as u64, blocks.len() as u32);
            let job = maker.zeroes(maker.sectors(&blocks), true);
            one(job, sqe, Moves::Out(Data::new(range.to_vec().into())))
        }
        15 | 16 => {
            let blocks = maker.blocks();
            let deallocate = maker.chance.coin();
            let sqe = command::write_zeroes(namespace, blocks.start as u64, blocks.len() as u32, deallocate);
            one(maker.zeroes(maker.sectors(&blocks), false), sqe, Moves::Nothing)
        }
        17 | 18 => compare_and_write(maker, namespace).unwrap_or_else(|| read(maker, namespace)),
        _ => illegal(maker, namespace),
    }
}

fn read(maker: &mut Maker<'_>, namespace: u32) -> Made {
    let blocks = maker.blocks();
    let sectors = maker.sectors(&blocks);
    let wanted = sectors.len() * SECTOR;
    let read = maker.lun.model.borrow_mut().begin_read();
    let job = Job::Read { read, first: sectors.start, wanted, expected: wanted, bytes: Vec::new() };
    let sqe = command::read(namespace, blocks.start as u64, blocks.len() as u32, maker.chance.odds(100_000));
    Made { job, compare: None, command: (sqe, Moves::In(wanted as u32)) }
}

fn write(maker: &mut Maker<'_>, namespace: u32) -> Made {
    let blocks = maker.blocks();
    let (sectors, fua) = (maker.sectors(&blocks), maker.chance.odds(300_000));
    let mut model = maker.lun.model.borrow_mut();
    let value = model.fresh_value();
    let write = model.begin_write(sectors.clone(), value);
    let data = stamp::fill(maker.watch.seed(), sectors, value);
    let durable = fua || maker.lun.volume.is_durable();
    let sqe = command::write(namespace, blocks.start as u64, blocks.len() as u32, fua);
    let job = Job::Write { write, flush: None, durable, hint: false };
    Made { job, compare: None, command: (sqe, Moves::Out(Data::new(data.into()))) }
}

/// The fused operation, on some of what was read last.
fn compare_and_write(maker: &mut Maker<'_>, namespace: u32) -> Option<Made> {
    let size = maker.lun.volume.block_sectors();
    let (first, expected) = maker.whole_blocks_seen(size)?;
    let (sectors, seed, fua) = (first..first + expected.len(), maker.watch.seed(), maker.chance.coin());
    let mut before = Vec::new();
    for (sector, value) in sectors.clone().zip(&expected) {
        before.extend(stamp::fill(seed, sector..sector + 1, *value));
    }
    let mut model = maker.lun.model.borrow_mut();
    let value = model.fresh_value();
    let data = stamp::fill(seed, sectors.clone(), value);
    let (write, read) = (model.begin_write(sectors, value), model.begin_read());
    let (lba, count) = ((first / size) as u64, (expected.len() / size) as u32);
    let mut compare = command::blocks(opcode::COMPARE, namespace, lba, count, 0);
    let mut sqe = command::write(namespace, lba, count, fua);
    (compare.flags, sqe.flags) = (FUSE_FIRST, FUSE_SECOND);
    let durable = fua || maker.lun.volume.is_durable();
    Some(Made {
        job: Job::CompareWrite { write, read, first, expected, durable },
        compare: Some((compare, Moves::Out(Data::new(before.into())))),
        command: (sqe, Moves::Out(Data::new(data.into()))),
    })
}

fn illegal(maker: &mut Maker<'_>, namespace: u32) -> Made {
    let volume = &maker.lun.volume;
    let end = (volume.sectors / volume.block_sectors()) as u64;
    let bytes = volume.block_size;
    let command = match maker.chance.index(5) {
        0 => (command::entry(0xfe, namespace), Moves::Nothing),
        1 => (command::read(namespace, end, 1, false), Moves::In(bytes)),
        2 => (command::read(namespace, u64::MAX, 2, false), Moves::In(2 * bytes)),
        3 => (command::read(namespace + 900, 0, 1, false), Moves::In(bytes)),
        _ => {
            let data = vec![0x5a; bytes as usize * 2];
            (command::write(namespace, end - 1, 2, false), Moves::Out(Data::new(data.into())))
        }
    };
    Made { job: Job::Illegal, compare: None, command }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_never_answered_is_excused_by_a_death_alone() {
        let refused = Lost::Error(Error::Refused("Identify", Status::INTERNAL_ERROR));
        let busy = Lost::Error(Error::Connect(Status::CONNECT_BUSY, 0));
        let excused =
            |changed, died| [&Lost::Gone, &Lost::Time, &refused, &busy].map(|why| is_excused(why, changed, died));
        assert_eq!(excused(false, false), [false, false, false, true]);
        assert_eq!(excused(true, false), [true, false, true, true], "the network breaks connections");
        assert_eq!(excused(true, true), [true; 4]);
    }
}

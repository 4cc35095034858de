//! A simulated NVMe/TCP host on the volumes that other clients use, too: connects a controller, keeps commands in
//! progress, loses or ends its connections, and connects again, until its commands are used up and the outcome of all
//! of them is known.

use crate::exchange::Woken;
use crate::job::{Job, Maker};
use crate::model::Value;
use crate::nvme_command::{Excuses, Made, any, judge};
use crate::shared::Shared;
use crate::wire::{Controller, ENTRIES, HostConfig, Lost};
use lunar_core::time::Instant;
use lunar_nvme::Status;
use lunar_nvme_host::Error;
use lunar_nvme_host::queue::{Command, Event, Offer};
use lunar_reactor::sim::Chance;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Longer than any command takes that is not lost, with all stalls and slow operations.
const COMMAND_TIME: Duration = Duration::from_secs(180);
/// Longer than the target waits for data, or for a client that receives nothing.
const TARGET_PATIENCE: Duration = Duration::from_secs(70);
/// Longer than the initialization of a controller takes.
const BRINGUP_TIME: Duration = Duration::from_secs(60);
/// Initializations that may fail one after the other; more are a violation.
const FAILURES_MAX: u32 = 500;
/// The most commands of one host that are in progress; a fused operation is two commands.
const DEPTH_MAX: usize = ENTRIES as usize / 2 - 1;

/// A command in progress.
struct Pending {
    lun: usize,
    since: Instant,
    part: Part,
}

enum Part {
    Job(Job),
    /// The first half of a fused operation, and its status. The job is that of the second half.
    Compare(Option<Status>),
}

/// One host.
pub struct NvmeHost {
    shared: Rc<Shared>,
    chance: Chance,
    config: HostConfig,
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
        let config = HostConfig { number, offer, flow_control: chance.coin(), entries: ENTRIES };
        let depth = (1 << chance.within(0..=5)).min(DEPTH_MAX);
        let left = chance.within(10..=120);
        Self { shared: shared.clone(), chance, config, depth, left, lost: Vec::new(), seen: None, failures: 0 }
    }

    /// Works until its commands are used up.
    pub async fn work(mut self) {
        let shared = self.shared.clone();
        while self.left > 0 && !shared.watch.is_wrong() {
            self.life().await;
            let pause = Duration::from_micros(self.chance.within(0..=50_000));
            shared.core.sleep(pause).await;
        }
        // A host is not told when the commands of a lost connection have ended. The target has to end them in time.
        let last = self.lost.iter().map(|(_, _, since)| *since).max();
        if let Some(last) = last.filter(|_| !shared.watch.is_wrong()) {
            shared.core.sleep_until(last + COMMAND_TIME + TARGET_PATIENCE).await;
        }
        self.lost.drain(..).for_each(|(lun, job, _)| job.unanswered(&shared.luns[lun]));
        shared.busy.set(shared.busy.get() - 1);
    }

    fn report(&self, what: impl Into<String>) {
        self.shared.watch.report(format!("host {}: {}", self.config.number, what.into()));
    }

    /// From Connect to the end of the connection.
    async fn life(&mut self) {
        let shared = self.shared.clone();
        let (deaths, until) = (shared.deaths.get(), shared.core.now() + BRINGUP_TIME);
        match Controller::open(shared.watch.world(), &shared.core, self.config, until).await {
            Ok(controller) => {
                self.failures = 0;
                let link = controller.io.peer.link();
                shared.watch.world().note(format_args!("link {link}: host {} has a queue", self.config.number));
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
            if let Part::Job(job) = pending.part {
                self.lost.push((pending.lun, job, now));
            }
        }
    }

    fn wants_more(&self, life: &Life) -> bool {
        self.left > 0 && life.pending.len() < self.depth && life.controller.io.queue.room() >= 2
    }

    /// An event that happens to connections. Returns whether it ends this connection.
    fn disturb(&mut self, life: &mut Life) -> bool {
        let what = self.chance.index(6);
        // Sometimes longer than the target waits.
        let patient = what < 4 || !self.chance.odds(100_000);
        let until = self.shared.core.now() + Duration::from_micros(self.chance.within(1..=3_000_000));
        let until = if patient { until } else { until + TARGET_PATIENCE };
        let controller = &life.controller;
        match what {
            0 => controller.io.peer.reset(),
            // A controller ends with its admin queue.
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
            let part = job.map_or(Part::Compare(None), Part::Job);
            life.pending.insert(cookie, Pending { lun: number, since, part });
        }
    }

    fn take_in(&mut self, life: &mut Life, bytes: &[u8]) -> Result<(), Error> {
        let mut done = Vec::new();
        let pending = &mut life.pending;
        let heard = life.controller.io.queue.receive(bytes, &mut |event| match event {
            Event::Data { cookie, bytes: data, .. } => {
                if let Some(Pending { part: Part::Job(Job::Read { bytes, .. }), .. }) = pending.get_mut(&cookie) {
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
        if let Some(Pending { part: Part::Compare(end), .. }) = life.pending.get_mut(&cookie) {
            *end = Some(status);
        }
        let compared =
            cookie.checked_sub(1).and_then(|first| life.pending.get(&first)).and_then(|first| match first.part {
                Part::Compare(end) => end,
                Part::Job(_) => None,
            });
        let Some(Pending { lun, part: Part::Job(job), .. }) = life.pending.remove(&cookie) else { return };
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
        // A target that stops aborts the commands that have not ended within its drain time.
        let is_aborted = matches!(status, Status::ABORTED | Status::QUEUE_DELETED);
        let may_abort = life.strange || is_aborted && shared.has_died_since(life.deaths);
        let excuses = Excuses { may_abort, lacks_memory: false };
        let verdict = judge(&job, (status, compared), unit, &faults, excuses);
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
    /// The host receives nothing until the first time, and sends nothing until the second.
    from: [Instant; 2],
    /// Whether the host was silent for so long that the target may end the connection.
    strange: bool,
    deaths: u64,
}

/// Whether an initialization may fail like this. `changed`: the network or the target may have ended the connection.
/// `died`: the target may have crashed without an answer; a connection that the network resets fails at once.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_crash_of_the_target_excuses_a_missing_answer() {
        let refused = Lost::Error(Error::Refused("Identify", Status::INTERNAL_ERROR));
        let busy = Lost::Error(Error::Connect(Status::CONNECT_BUSY, 0));
        let excused =
            |changed, died| [&Lost::Gone, &Lost::Time, &refused, &busy].map(|why| is_excused(why, changed, died));
        assert_eq!(excused(false, false), [false, false, false, true]);
        assert_eq!(excused(true, false), [true, false, true, true], "the network breaks connections");
        assert_eq!(excused(true, true), [true; 4]);
    }
}

//! A simulated virtual machine with an NVMe controller over vfio-user, on the volumes that other clients use, too:
//! keeps commands in progress, is killed, pauses, resets its controller, unmaps memory that commands use, and connects
//! again, until its commands are used up and all that was uncertain is settled.

use crate::job::{Job, Maker};
use crate::model::Value;
use crate::nvme_command::{Excuses, Made, any, judge};
use crate::shared::Shared;
use crate::vfio_control::{Control, Wake};
use crate::vfio_controller::{DATA_ADDRESS, Doorbells, ENTRIES, GuestConfig, QUEUES_MAX, VfioController};
use crate::wire::Lost;
use lunar_core::mem::Region;
use lunar_core::outgoing::Moves;
use lunar_core::time::Instant;
use lunar_nvme::{Sqe, Status};
use lunar_nvme_host::Error;
use lunar_nvme_host::command;
use lunar_nvme_host::rings::PAGE;
use lunar_reactor::sim::Chance;
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// Longer than any command takes that is not lost: all stalls and slow operations together.
const COMMAND_TIME: Duration = Duration::from_secs(250);
/// Longer than a set-up takes, after the commands of the connection before it.
const SETUP_TIME: Duration = Duration::from_secs(500);
/// The most pages of the data of one command: 48 blocks of 4 KiB that do not begin at the start of a page.
const DATA_PAGES: usize = 49;
/// The pages of a command: those of its data, and one for its PRP list.
const SLOT_PAGES: usize = DATA_PAGES + 1;
/// The most commands that one guest keeps in progress.
const DEPTH_MAX: u64 = 2 * (ENTRIES as u64 - 1);
/// The pause before a guest connects again to a socket at which no target listens.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);
/// Pauses between two polls of the completion queues.
const POLL_SOONEST: u64 = 20;
const POLL_LATEST: u64 = 20_000;
/// Set-ups that fail one after the other before something must be wrong.
const FAILURES_MAX: u32 = 500;
/// The odds of an event in one round of a guest, in parts of a million: a few in its life.
const DISTURBANCE: u32 = 20_000;
/// Longer than a signal is under way to a guest that waits for it.
const INTERRUPT_PAUSE: u64 = 1_000_000;

/// A command in progress, by its slot, which is its command identifier.
struct Pending {
    lun: usize,
    queue: usize,
    since: Instant,
    part: Part,
    /// The pieces of its data: offsets in the memory of the data, and bytes.
    pieces: Vec<(usize, usize)>,
    /// Whether memory was unmapped meanwhile.
    lacks_memory: bool,
}

enum Part {
    /// A command; the slot of the first half of a fused operation.
    Job(Job, Option<u16>),
    /// The first half of a fused operation, and its status. The job is that of the second half.
    Compare(Option<Status>),
}

/// One virtual machine.
pub struct Guest {
    shared: Rc<Shared>,
    chance: Chance,
    number: usize,
    config: GuestConfig,
    depth: usize,
    /// Commands that it will still start.
    left: u64,
    /// Commands of connections that were lost: they have ended when the target serves the next connection.
    lost: Vec<(usize, Job)>,
    seen: Option<(u16, usize, Vec<Value>)>,
    failures: u32,
}

impl Guest {
    /// A guest with this number, at the socket of this number.
    #[must_use]
    pub fn any(shared: &Rc<Shared>, mut chance: Chance, number: usize) -> Self {
        let depth = chance.within(2..=DEPTH_MAX) as usize;
        let pages = depth * SLOT_PAGES;
        let config = GuestConfig {
            doorbells: *chance.pick(&[Doorbells::Messages, Doorbells::Shadow, Doorbells::Mapped]),
            has_interrupts: chance.coin(),
            queues: 1 + chance.index(QUEUES_MAX.into()) as u16,
            data_len: pages * PAGE,
            first_len: chance.within(1..=pages as u64 - 1) as usize * PAGE,
        };
        let left = chance.within(10..=120);
        let (shared, lost) = (shared.clone(), Vec::new());
        Self { shared, chance, number, config, depth, left, lost, seen: None, failures: 0 }
    }

    /// Works until its commands are used up.
    pub async fn work(mut self) {
        let shared = self.shared.clone();
        while (self.left > 0 || !self.lost.is_empty()) && !shared.watch.is_wrong() {
            self.connect().await;
            let pause = Duration::from_micros(self.chance.within(0..=50_000));
            shared.core.sleep(pause).await;
        }
        shared.busy.set(shared.busy.get() - 1);
    }

    fn report(&self, what: impl Into<String>) {
        self.shared.watch.report(format!("guest {}: {}", self.number, what.into()));
    }

    fn note(&self, what: &str) {
        self.shared.watch.world().note(format_args!("guest {}: {what}", self.number));
    }

    /// From the connection to the socket to its end.
    async fn connect(&mut self) {
        let shared = self.shared.clone();
        let (deaths, until) = (shared.deaths.get(), shared.core.now() + SETUP_TIME);
        let path: &PathBuf = &shared.vm_sockets[self.number];
        let Some(control) = Control::connect(shared.watch.world(), &shared.core, path) else {
            if !shared.has_died_since(deaths) {
                self.report("no target listens at the socket");
            }
            return shared.core.sleep(CONNECT_PAUSE).await;
        };
        self.note(&format!("link {}, {:?}", control.link(), self.config));
        let lost = &mut self.lost;
        let on_connect = || lost.drain(..).for_each(|(lun, job)| job.unanswered(&shared.luns[lun]));
        match VfioController::open(&shared.core, control, self.config, until, on_connect).await {
            Ok(controller) => {
                self.failures = 0;
                let pending = BTreeMap::new();
                let life = Life { controller, pending, deaths, poll: POLL_SOONEST, is_over: false };
                self.live(life).await;
            }
            Err(why) => {
                self.failures += 1;
                if !is_excused(&why, shared.has_died_since(deaths)) {
                    self.report(format!("the controller cannot be set up: {why:?}"));
                } else if self.failures > FAILURES_MAX {
                    self.report("no set-up succeeds any more");
                }
            }
        }
    }

    async fn live(&mut self, mut life: Life) {
        let shared = self.shared.clone();
        while !life.is_over && !shared.watch.is_wrong() {
            if self.chance.odds(DISTURBANCE) {
                self.disturb(&mut life).await;
                continue;
            }
            while self.wants_more(&life) && !self.chance.odds(300_000) {
                self.start(&mut life);
            }
            life.controller.ring();
            if life.pending.is_empty() && self.left == 0 {
                self.leave(&mut life).await;
                break;
            }
            self.wait(&mut life).await;
            for (slot, pending) in &life.pending {
                if shared.core.now().since(pending.since) > COMMAND_TIME {
                    self.report(format!("command {slot} of queue {} is not completed", pending.queue + 1));
                }
            }
        }
        self.note(&format!("link {}: ends", life.controller.control.link()));
        self.lose(&mut life);
    }

    /// The connection is lost, with the commands in progress.
    fn lose(&mut self, life: &mut Life) {
        for pending in std::mem::take(&mut life.pending).into_values() {
            if let Part::Job(job, _) = pending.part {
                self.lost.push((pending.lun, job));
            }
        }
    }

    fn wants_more(&self, life: &Life) -> bool {
        self.left > 0
            && life.pending.len() + 2 <= self.depth
            && life.controller.queues.iter().any(|queue| queue.room() >= 2)
    }

    /// Waits for completions, an event of the connection, or the time of the next command.
    async fn wait(&mut self, life: &mut Life) {
        let shared = self.shared.clone();
        let now = shared.core.now();
        let mut pause = if self.wants_more(life) { self.chance.within(0..=3_000) } else { INTERRUPT_PAUSE };
        if !self.config.has_interrupts {
            pause = pause.min(life.poll);
            life.poll = (life.poll * 2).min(POLL_LATEST);
        }
        let until = now + Duration::from_micros(pause);
        let wake = life.controller.control.wait(&life.controller.interrupts, until).await;
        match wake {
            Wake::Closed => {
                life.is_over = true;
                if !shared.has_died_since(life.deaths) {
                    self.report("the target closed the connection");
                }
                return;
            }
            Wake::Message => return self.report("the target sent a message that no command asked for"),
            // A guest that waits for interrupts looks at its queues only when one has come.
            Wake::Time if self.config.has_interrupts => return,
            Wake::Time | Wake::Interrupt => {}
        }
        self.take(life);
    }

    /// Takes all completions.
    fn take(&mut self, life: &mut Life) {
        for queue in 0..life.controller.queues.len() {
            while let Some(done) = life.controller.queues[queue].take() {
                life.poll = POLL_SOONEST;
                self.completed(life, queue, done.cid, done.status);
            }
        }
    }

    /// An event that happens to virtual machines.
    async fn disturb(&mut self, life: &mut Life) {
        let shared = self.shared.clone();
        let until = shared.core.now() + COMMAND_TIME;
        let what = self.chance.index(7);
        self.note(["is killed", "pauses", "pauses", "unmaps", "unmaps", "disables its controller", "resets"][what]);
        let result = match what {
            0 => {
                life.is_over = true;
                Ok(())
            }
            1 | 2 => {
                let longest = if self.chance.odds(100_000) { 100_000_000 } else { 3_000_000 };
                shared.core.sleep(Duration::from_micros(self.chance.within(1..=longest))).await;
                Ok(())
            }
            3 | 4 => self.unmap(life, until).await,
            5 => life.controller.control.disable(until).await,
            _ => life.controller.reset(until).await,
        };
        let is_disabled = what >= 5 && result.is_ok();
        if is_disabled {
            // The completions of these commands are in queues that are gone.
            self.forget(life);
        }
        let result = if is_disabled { life.controller.initialize(until).await } else { result };
        life.check(self, result);
    }

    /// The controller was reset: its commands have ended, in one way or another.
    fn forget(&mut self, life: &mut Life) {
        for pending in std::mem::take(&mut life.pending).into_values() {
            if let Part::Job(job, _) = pending.part {
                job.unanswered(&self.shared.luns[pending.lun]);
            }
        }
    }

    /// Unmaps memory that commands in progress may use, and maps it again: meanwhile the target does not write to it.
    async fn unmap(&mut self, life: &mut Life, until: Instant) -> Result<(), Lost> {
        let region = self.chance.index(2);
        life.pending.values_mut().for_each(|pending| pending.lacks_memory = true);
        life.controller.ring();
        life.controller.unmap(region, until).await?;
        let before = self.digest(&life.controller.data, region);
        let pause = self.chance.within(0..=50_000);
        self.shared.core.sleep(Duration::from_micros(pause)).await;
        if self.digest(&life.controller.data, region) != before {
            self.report("the target wrote to memory that was unmapped");
        }
        life.controller.map(region, until).await
    }

    fn digest(&self, memory: &Region, region: usize) -> u64 {
        let (_, offset, len) = self.config.regions()[region];
        let mut bytes = vec![0; len as usize];
        assert!(memory.read(offset as usize, &mut bytes), "the memory of the guest is there");
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        hasher.finish()
    }

    /// Ends the connection when all commands were completed: by a shutdown, or without one.
    async fn leave(&mut self, life: &mut Life) {
        if self.chance.coin() {
            let shared = self.shared.clone();
            let until = shared.core.now() + COMMAND_TIME;
            let flushes: Vec<_> = shared.luns.iter().map(|lun| lun.model.borrow_mut().begin_flush()).collect();
            let result = life.controller.control.shut_down(until).await;
            // A shutdown flushes all namespaces, and does not report that a flush failed.
            let faults = shared.faults.borrow();
            let is_flushed = result.is_ok() && faults.sync_error + faults.write_error == 0;
            for (lun, flush) in shared.luns.iter().zip(flushes) {
                lun.model.borrow_mut().end_flush(flush, is_flushed);
            }
            drop(faults);
            life.check(self, result);
        }
    }

    fn start(&mut self, life: &mut Life) {
        let shared = self.shared.clone();
        let rooms = life.controller.queues.iter().enumerate().filter(|(_, queue)| queue.room() >= 2);
        let rooms: Vec<usize> = rooms.map(|(number, _)| number).collect();
        let queue = *self.chance.pick(&rooms);
        let number = self.chance.index(shared.luns.len());
        let lun = &shared.luns[number];
        let mut maker = Maker { watch: &shared.watch, lun, chance: &mut self.chance, seen: &mut self.seen };
        let Made { job, compare, command } = any(&mut maker);
        self.left -= 1;
        let first = compare.map(|half| self.submit(life, (number, queue), half, Part::Compare(None)));
        self.submit(life, (number, queue), command, Part::Job(job, first));
    }

    /// Writes a command to its queue, and its data to guest memory. Returns its slot.
    fn submit(&mut self, life: &mut Life, (lun, queue): (usize, usize), (sqe, moves): (Sqe, Moves), part: Part) -> u16 {
        let free = (0..self.depth as u16).find(|slot| !life.pending.contains_key(slot));
        let slot = free.expect("a guest starts no more commands than it has slots");
        let len = match &moves {
            Moves::Nothing => 0,
            Moves::In(len) => *len as usize,
            Moves::Out(data) => data.len(),
        };
        let (pieces, pointers) = self.place(&life.controller.data, slot, len);
        let mut done = 0;
        for (at, count) in &pieces {
            let bytes = match &moves {
                Moves::Out(data) => data.bytes()[done..done + count].to_vec(),
                // Bytes that a read leaves untouched must not look like data.
                _ => vec![0xa5; *count],
            };
            assert!(life.controller.data.write(*at, &bytes), "the memory of the guest is there");
            done += count;
        }
        let mut sqe = command::in_pages(sqe, pointers);
        sqe.cid = slot.into();
        let (code, dwords) = (sqe.opcode, (sqe.cdw_pair(10), sqe.cdw(12)));
        self.note(&format!("queue {} command {slot} namespace {}: {code:02x} {dwords:x?}", queue + 1, lun + 1));
        assert!(life.controller.queues[queue].submit(&sqe), "the caller checks for room");
        let since = self.shared.core.now();
        life.pending.insert(slot, Pending { lun, queue, since, part, pieces, lacks_memory: false });
        slot
    }

    /// Chooses pages for the data of a command, in any order, and writes its PRP list (NVMe Base 2.0 4.1.1).
    fn place(&mut self, memory: &Region, slot: u16, len: usize) -> (Vec<(usize, usize)>, [u64; 2]) {
        let start = usize::from(slot) * SLOT_PAGES;
        let mut pages: Vec<usize> = (start..start + DATA_PAGES).map(|page| page * PAGE).collect();
        self.chance.shuffle(&mut pages);
        let offset = match self.chance.index(3) {
            0 => 0,
            1 => 512 * self.chance.index(PAGE / 512),
            _ => 4 * self.chance.index(PAGE / 4),
        };
        let (mut pieces, mut left, mut from) = (Vec::new(), len, offset);
        while left > 0 {
            let count = left.min(PAGE - from);
            pieces.push((pages[pieces.len()] + from, count));
            (left, from) = (left - count, 0);
        }
        let address = |at: usize| DATA_ADDRESS + at as u64;
        let first = pieces.first().map_or(0, |(at, _)| address(*at));
        let second = match &pieces[..] {
            [] | [_] => 0,
            [_, (second, _)] => address(*second),
            [_, rest @ ..] => {
                let list = (start + DATA_PAGES) * PAGE;
                for (number, (at, _)) in rest.iter().enumerate() {
                    assert!(memory.write(list + 8 * number, &address(*at).to_le_bytes()), "the list is in the memory");
                }
                address(list)
            }
        };
        (pieces, [first, second])
    }

    fn completed(&mut self, life: &mut Life, queue: usize, slot: u16, status: Status) {
        let shared = self.shared.clone();
        self.note(&format!("queue {} command {slot}: {status:?}", queue + 1));
        match life.pending.get_mut(&slot) {
            Some(pending) if pending.queue != queue => {
                return self.report(format!("command {slot} is completed on queue {}", queue + 1));
            }
            Some(Pending { part: Part::Compare(end @ None), .. }) => {
                *end = Some(status);
                return;
            }
            Some(Pending { part: Part::Job(..), .. }) => {}
            Some(_) | None => return self.report(format!("command {slot} is completed twice")),
        }
        let Some(Pending { lun, part: Part::Job(mut job, half), pieces, lacks_memory, .. }) =
            life.pending.remove(&slot)
        else {
            return;
        };
        let compared = half.and_then(|half| life.pending.remove(&half)).and_then(|half| match half.part {
            Part::Compare(end) => end,
            Part::Job(..) => None,
        });
        shared.watch.count_command();
        let unit = &shared.luns[lun];
        let mut first_sector = 0;
        if let (Status::SUCCESS, Job::Read { bytes, first, .. }) = (status, &mut job) {
            first_sector = *first;
            for (at, count) in pieces {
                let mut part = vec![0; count];
                assert!(life.controller.data.read(at, &mut part), "the memory of the guest is there");
                bytes.extend(part);
            }
        }
        let excuses = Excuses { may_abort: shared.has_died_since(life.deaths), lacks_memory };
        let verdict = judge(&job, (status, compared), unit, &shared.faults.borrow(), excuses);
        match verdict.and_then(|verdict| job.settled(&shared.watch, unit, verdict)) {
            Ok(values) if !values.is_empty() => self.seen = Some((unit.number, first_sector, values)),
            Ok(_) => {}
            Err(what) => self.report(format!("command {slot}, namespace {}: {what}", lun + 1)),
        }
    }
}

/// One connection of a guest.
struct Life {
    controller: VfioController,
    pending: BTreeMap<u16, Pending>,
    deaths: u64,
    /// Microseconds until the next poll of the completion queues.
    poll: u64,
    is_over: bool,
}

impl Life {
    /// Ends the connection after a failed call; reports the failure unless the target has ended.
    fn check(&mut self, guest: &Guest, result: Result<(), Lost>) {
        if let Err(why) = result {
            self.is_over = true;
            if !is_excused(&why, guest.shared.has_died_since(self.deaths)) {
                guest.report(format!("a call of the control connection failed: {why:?}"));
            }
        }
    }
}

/// Whether a call may fail like this. `died`: the target has ended meanwhile.
fn is_excused(why: &Lost, died: bool) -> bool {
    match why {
        Lost::Gone | Lost::Time => died,
        // The arena may be empty.
        Lost::Error(Error::Refused(_, Status::NOT_READY)) => true,
        Lost::Error(Error::Refused(..) | Error::InvalidData(_)) => died,
        Lost::Error(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_the_target_excuses_a_lost_connection() {
        let refused = Lost::Error(Error::Refused("Identify", Status::INTERNAL_ERROR));
        let busy = Lost::Error(Error::Refused("Identify", Status::NOT_READY));
        let protocol = Lost::Error(Error::Protocol("any"));
        let excused = |died| [&Lost::Gone, &Lost::Time, &refused, &busy, &protocol].map(|why| is_excused(why, died));
        assert_eq!(excused(false), [false, false, false, true, false]);
        assert_eq!(excused(true), [true, true, true, true, false]);
    }
}

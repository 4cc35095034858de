//! File operations: their effects, times and failures.

use super::core_state::Kind;
use super::disk::{SECTOR, SPACE_BLOCK};
use super::job::{Job, handle_of};
use super::state::{Event, State};
use super::trace::Sum;
use crate::op::{Allocate, Handle, How, Op};
use lunar_core::io::{Done, Extent, Fault, Outcome};
use lunar_core::mem::Sg;
use std::ops::Range;

/// EINVAL: the error of unaligned direct I/O.
const UNALIGNED: Fault = Fault::Os(22);

impl State {
    pub(super) fn start_job(&mut self, core: usize, op: Op, done: Done) {
        let handle = handle_of(&op).cloned();
        let kind = handle.as_ref().and_then(|handle| self.cores[core].handles.get(&handle.id()));
        let Some(&Kind::File { disk, how, .. }) = kind else {
            return self.refuse(core, done, Fault::Gone, op.into_data(), handle);
        };
        if let Some(fault) = refusal(&op, how) {
            return self.refuse(core, done, fault, op.into_data(), handle);
        }
        let fault = self.fate(&op);
        let mark = self.disks[disk].mark();
        let key = self.serial();
        let writes_much = matches!(&op, Op::Write { data, .. } if data.len() > SECTOR);
        self.jobs.insert(key, Job { core, disk, how, op, done, fault, mark, applied: 0 });
        if self.eager {
            return self.finish(key);
        }
        let time = self.operation_time();
        let end = self.now + time;
        if writes_much && self.chance.coin() {
            let between = self.chance.within(self.now.0..=end.0);
            self.schedule(lunar_core::time::Instant(between), Event::Half(key));
        }
        self.schedule(end, Event::Finish(key));
    }

    /// Whether an operation fails, decided when it begins.
    fn fate(&mut self, op: &Op) -> Option<Fault> {
        let faults = self.faults.clone();
        let (medium, space) = match op {
            Op::Read { .. } => (faults.read_error, 0),
            Op::Write { .. } => (faults.write_error, faults.no_space),
            Op::Sync { .. } => (faults.sync_error, 0),
            Op::Allocate { .. } => (faults.write_error, faults.no_space),
            _ => (0, 0),
        };
        if self.chance.odds(medium) {
            return Some(Fault::Medium);
        }
        self.chance.odds(space).then_some(Fault::NoSpace)
    }

    /// A part of a write takes effect before it ends: readers may see it torn, a crash may keep it.
    pub(super) fn half_done(&mut self, key: u64) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let Op::Write { offset, data, .. } = &job.op else { return };
        if job.fault == Some(Fault::NoSpace) || out_of_space(&self.disks, self.faults.space, job.disk, *offset, data) {
            return;
        }
        let sectors = data.len().div_ceil(SECTOR);
        job.applied = self.chance.index(sectors);
        apply(&mut self.disks[job.disk], *offset, data, 0..job.applied);
    }

    pub(super) fn finish(&mut self, key: u64) {
        let Some(mut job) = self.jobs.remove(&key) else { return };
        let handle = job.handle();
        let id = handle.as_ref().map_or(0, Handle::id);
        let mut extent = Extent::default();
        let result = match job.fault {
            Some(fault) => {
                self.fail(&job, fault);
                Err(fault)
            }
            None => self.carry_out(&mut job, &mut extent),
        };
        let result = self.news(&job, id).map_or(result, Err);
        let core = job.core;
        let sum = match &job.op {
            Op::Read { into, .. } if result.is_ok() => Sum::of_in(into),
            Op::Write { data, .. } => Sum::of_out(data),
            _ => Sum::of(&[]),
        };
        self.note(format_args!("core {core} file {id}: {} {result:?} {sum}", Shown(&job.op)));
        let outcome = Outcome { result, data: job.op.into_data(), extent };
        self.answer(core, job.done, outcome, handle);
    }

    /// A sync and a durable write report writeback failures of any writer, once for each open file.
    fn news(&mut self, job: &Job, id: u32) -> Option<Fault> {
        let tells = match &job.op {
            Op::Sync { .. } => true,
            Op::Write { durable, .. } => *durable || job.how.durable,
            _ => false,
        };
        let failures = self.disks[job.disk].failures;
        match self.cores[job.core].handles.get_mut(&id) {
            Some(Kind::File { told, .. }) if tells && *told < failures => {
                *told = failures;
                Some(Fault::Medium)
            }
            _ => None,
        }
    }

    fn carry_out(&mut self, job: &mut Job, extent: &mut Extent) -> Result<u32, Fault> {
        let moved = match &mut job.op {
            Op::Read { offset, into, .. } => {
                self.disks[job.disk].read(to_usize(*offset), into);
                into.len()
            }
            Op::Write { offset, data, durable, .. } => {
                if out_of_space(&self.disks, self.faults.space, job.disk, *offset, data) {
                    return Err(Fault::NoSpace);
                }
                let disk = &mut self.disks[job.disk];
                let durable = *durable || job.how.durable;
                // A sync that failed meanwhile may have dropped the first part: a durable write notices.
                let first = if durable { 0 } else { job.applied };
                apply(disk, *offset, data, first..data.len().div_ceil(SECTOR));
                if durable {
                    disk.harden(to_usize(*offset)..to_usize(*offset) + data.len());
                }
                data.len()
            }
            Op::Sync { .. } => {
                self.disks[job.disk].sync(job.mark);
                0
            }
            Op::Allocate { how, offset, len, .. } => {
                let give_back = matches!(how, Allocate::Punch | Allocate::Discard);
                self.disks[job.disk].zero(to_usize(*offset)..to_usize(*offset + *len), give_back);
                0
            }
            Op::Extent { offset, len, .. } => {
                *extent = self.disks[job.disk].extent(to_usize(*offset), to_usize(*len));
                0
            }
            _ => 0,
        };
        Ok(u32::try_from(moved).unwrap_or(u32::MAX))
    }

    /// The effect of an operation that fails: a write has done any part of its work, a failed sync may drop data.
    fn fail(&mut self, job: &Job, fault: Fault) {
        let disk = &mut self.disks[job.disk];
        match (&job.op, fault) {
            (Op::Sync { .. }, _) => {
                disk.failures += 1;
                disk.fail_sync(job.mark, &mut self.chance);
            }
            (Op::Write { durable, .. }, Fault::Medium) => {
                // For I/O through the page cache, the writeback has failed.
                disk.failures += u64::from((*durable || job.how.durable) && !job.how.direct);
                self.cut_short(job);
            }
            _ => {}
        }
    }

    /// A write ends with any part of its work done.
    fn cut_short(&mut self, job: &Job) {
        if let Op::Write { offset, data, .. } = &job.op {
            let sectors = data.len().div_ceil(SECTOR);
            let first = self.chance.index(sectors + 1);
            let last = first + self.chance.index(sectors - first + 1);
            apply(&mut self.disks[job.disk], *offset, data, first..last);
        }
    }

    /// Ends the operations on one handle of a core.
    pub(super) fn cancel_jobs(&mut self, core: usize, id: u32) {
        let ours = |job: &Job| job.core == core && handle_of(&job.op).is_some_and(|handle| handle.id() == id);
        let keys: Vec<u64> = self.jobs.iter().filter(|(_, job)| ours(job)).map(|(key, _)| *key).collect();
        for key in keys {
            let Some(job) = self.jobs.remove(&key) else { continue };
            if self.chance.coin() {
                self.cut_short(&job);
            }
            let handle = job.handle();
            self.refuse(core, job.done, Fault::Aborted, job.op.into_data(), handle);
        }
    }

    /// Interrupts the operations of a core that has ended.
    pub(super) fn drop_jobs(&mut self, core: usize) {
        for (key, job) in std::mem::take(&mut self.jobs) {
            if job.core != core {
                self.jobs.insert(key, job);
                continue;
            }
            if self.chance.coin() {
                self.cut_short(&job);
            }
            self.left.jobs.push(job);
        }
    }
}

/// Operations that the kernel refuses before they reach the medium.
fn refusal(op: &Op, how: How) -> Option<Fault> {
    if how.read_only && matches!(op, Op::Write { .. } | Op::Allocate { .. } | Op::Copy { .. }) {
        return Some(Fault::Gone);
    }
    // The simulated file system has no reflinks: copies go through memory, where faults can occur. It does not report
    // its space.
    if matches!(op, Op::Copy { .. } | Op::Space { .. } | Op::Ready { .. } | Op::Signal { .. }) {
        return Some(Fault::Unsupported);
    }
    let whole = |bytes: usize| bytes.is_multiple_of(SECTOR);
    // Pieces may be guest memory, which has no references.
    let aligned =
        |offset: u64, len: usize, start: *const u8| whole(to_usize(offset)) && whole(len) && whole(start.addr());
    let fits = match op {
        Op::Read { offset, into, .. } => {
            into.pieces().iter().all(|piece| aligned(*offset, piece.len(), piece.as_ptr()))
        }
        Op::Write { offset, data, .. } => {
            data.pieces().iter().all(|piece| aligned(*offset, piece.len(), piece.as_ptr()))
        }
        _ => true,
    };
    (how.direct && !fits).then_some(UNALIGNED)
}

/// Writes some sectors' worth of `data` to its place.
fn apply(disk: &mut super::disk::Disk, offset: u64, data: &Sg, sectors: Range<usize>) {
    let range = (sectors.start * SECTOR).min(data.len())..(sectors.end * SECTOR).min(data.len());
    let mut bytes = vec![0; range.len()];
    data.copy_to(range.start, &mut bytes);
    disk.write(to_usize(offset) + range.start, &bytes);
}

fn out_of_space(disks: &[super::disk::Disk], space: Option<usize>, disk: usize, offset: u64, data: &Sg) -> bool {
    let Some(space) = space else { return false };
    let taken: usize = disks.iter().map(super::disk::Disk::takes).sum();
    let start = to_usize(offset);
    let wanted = disks[disk].wants(start..start + data.len());
    wanted > 0 && taken + wanted > space
}

/// A simulated file is small: what lies beyond any memory lies beyond its end.
fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX / SPACE_BLOCK)
}

/// An operation in a trace.
struct Shown<'a>(&'a Op);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Op::Read { offset, into, .. } => write!(f, "read {offset}+{}", into.len()),
            Op::Write { offset, data, durable, .. } => {
                write!(f, "write{} {offset}+{}", if *durable { " durable" } else { "" }, data.len())
            }
            Op::Sync { .. } => f.write_str("sync"),
            Op::Allocate { how, offset, len, .. } => write!(f, "{how:?} {offset}+{len}"),
            Op::Extent { offset, len, .. } => write!(f, "extent {offset}+{len}"),
            other => write!(f, "{other:?}"),
        }
    }
}

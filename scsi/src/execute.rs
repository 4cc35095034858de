//! A command from its CDB to its status: found, checked, admitted, planned, carried out.

use crate::admit::{Refusal, admit, nothing_stops, reaches};
use crate::cmd::lba_status;
use crate::command::{Command, Reply, Status, TaskAttribute};
use crate::context::Context;
use crate::fault;
use crate::log;
use crate::lu::{Change, LogicalUnit, MediumState};
use crate::nexus::{Addressee, Nexus};
use crate::plan::{Kept, Plan};
use crate::sense::{Asc, Sense, SenseData, SenseKey};
use crate::table::{Effect, Flow, Pulled, Row, find, rows};
use crate::target::Target;
use lunar_core::io::Fault;
use lunar_core::mem::{Arena, Sg};
use lunar_core::port::Transfer;
use lunar_core::protection::{INFO_BYTES, Kind};
use lunar_core::step::{self, Failure, Protected, Step, Tail, Tools, carry_out, carry_out_now};
use lunar_core::tally::Event;
use lunar_core::unit::Admitted;
use lunar_core::wire::Writer;
use std::borrow::Cow;
use std::ops::Range;

/// The longest answer: REPORT LUNS with every logical unit number there is.
const ANSWER_BYTES_MAX: usize = 8 + 8 * (crate::lun::LUNS_MAX as usize + 1);

impl Target {
    /// Carries a command out. Called in the order in which the commands of a nexus arrived: ORDERED relies on it.
    ///
    /// The reply is written where it will be read: moved up through futures it would cost more than the rest.
    pub async fn execute<T: Transfer>(
        &self,
        nexus: &Nexus,
        command: &Command,
        transfer: &T,
        tools: &mut Tools,
        reply: &mut Reply,
    ) {
        self.config.stats.commands.add(1);
        let addressee = nexus.addressee(command.lun);
        let _turn = match &addressee {
            Addressee::Disk(itl) => Some(itl.order.enter(command.attribute).await),
            _ => None,
        };
        let result = self.perform(nexus, &addressee, command, transfer, tools, reply).await;
        if transfer.aborted() {
            *reply = Reply::bare(Status::TASK_ABORTED);
        } else if let Err(refusal) = result {
            *reply = self.refuse(&refusal, &addressee);
        }
    }

    /// Carries out a read or a write, if nobody has to be waited for: nothing stands in its way, the store answers at
    /// once, and the data is there. Tells whether it has ended. If not, nothing was done, and [`Target::execute`] does
    /// it. Called in the same order.
    pub fn execute_now<T: Transfer>(
        &self,
        nexus: &Nexus,
        command: &Command,
        transfer: &T,
        arena: &Arena,
        reply: &mut Reply,
    ) -> bool {
        let addressee = nexus.addressee(command.lun);
        let Addressee::Disk(itl) = &addressee else { return false };
        let unit = &itl.lu.unit;
        let (Some(quick), true) = (unit.store.quick(), command.attribute == TaskAttribute::SIMPLE) else {
            return false;
        };
        // Who may not, or not yet, is told so by the other way.
        let cdb = command.cdb.bytes();
        let Ok(row) = find(cdb) else { return false };
        let moves = matches!(row.flow, Flow::In | Flow::Out) && itl.order.is_open() && nothing_stops(row, itl);
        if !moves || reaches(&row.policy, &addressee).is_err() || row.check(cdb).is_err() {
            return false;
        }
        let Ok(Plan::Do(mut step)) = self.plan(row, 0, nexus, &addressee, command, &[]) else { return false };
        let mut wanted = 0;
        let Ok(Some(moved @ 1..)) = fit(&mut step, itl.lu.block_size(), command, &mut wanted) else { return false };
        match carry_out_now(unit, quick, &step, transfer, arena, &mut reply.tail) {
            None => return false,
            Some(Ok(())) => {
                reply.wanted = wanted;
                self.count(row, moved);
                tally(row, moved, &itl.lu);
            }
            Some(Err(failure)) => {
                *reply = self.refuse(&failed(&itl.lu, &step, failure).wanting(wanted), &addressee);
            }
        }
        self.config.stats.commands.add(1);
        true
    }

    async fn perform<T: Transfer>(
        &self,
        nexus: &Nexus,
        addressee: &Addressee,
        command: &Command,
        transfer: &T,
        tools: &mut Tools,
        reply: &mut Reply,
    ) -> Result<(), Refusal> {
        // Asked first: a command that is not answered must not take a unit attention with it.
        if transfer.aborted() {
            return Err(Refusal::bare(Status::TASK_ABORTED));
        }
        let (row, amount) = self.admitted(addressee, command)?;
        let admitted = addressee.disk().map(|itl| Admitted::to(&itl.lu.unit));
        let mut moved = 0;
        let plan = if row.takes_list() {
            let list = pull_list(row, amount, addressee, command, transfer).await?;
            moved = list.len() as u64;
            reply.wanted = moved;
            self.plan(row, amount, nexus, addressee, command, &contiguous(&list))?
        } else {
            self.plan(row, amount, nexus, addressee, command, &[])?
        };
        if let (Addressee::Disk(itl), Some(admitted)) = (addressee, admitted) {
            // Its list may have been waited for.
            admitted.check().map_err(fault::transfer)?;
            let carrier = Carrier { target: self, lu: &itl.lu, admitted, command, transfer };
            match plan {
                Plan::Do(mut step) => moved += carrier.carry(&mut step, reply, tools).await?,
                Plan::Done => {}
                Plan::Conflict => return Err(Refusal::bare(Status::RESERVATION_CONFLICT)),
                Plan::Reserve(request) => self.reserve(nexus, command.tag, &itl.lu, &request).await?,
                Plan::Answer => return self.answer(tools, reply),
                Plan::Survey { lba, blocks, runs } => {
                    self.survey(&itl.lu, lba..lba + blocks, runs, amount, tools).await?;
                    return self.answer(tools, reply);
                }
                Plan::Log(ask) => return Box::pin(self.log(&itl.lu, ask, amount, tools, reply)).await,
                Plan::Move(to) => self.move_medium(nexus, &itl.lu, to).await?,
                Plan::ExitFailureMode => self.leave_failure(&itl.lu).await?,
                Plan::Renew(renewal) => self.renew(nexus, &itl.lu, *renewal, transfer, tools).await?,
                // Behind a pointer: it is larger than all the rest, and seldom.
                Plan::Copy(list) => Box::pin(self.copy(nexus, &itl.lu, &list, transfer, tools)).await?,
                Plan::Populate(ask, data, inactivity) => self.populate(nexus, &itl.lu, ask, *data, inactivity)?,
                Plan::Write(writing) => {
                    Box::pin(self.write_token(nexus, itl, &writing, transfer, tools)).await?;
                }
                Plan::StopCopy(id) => nexus.copies.stop(itl.lu.lun, id).await,
                Plan::Change { flush, keep, change } => {
                    self.change_and_keep(nexus, &itl.lu, change, keep).await?;
                    // After it, so that nothing is cached any more that was written before.
                    if flush {
                        carrier.carry(&mut Step::Flush, reply, tools).await?;
                    }
                }
            }
        } else if plan == Plan::Answer {
            return self.answer(tools, reply);
        }
        self.count(row, moved);
        if let Addressee::Disk(itl) = addressee {
            tally(row, moved, &itl.lu);
        }
        Ok(())
    }

    /// Makes a change on all cores; what it keeps is on the medium before.
    async fn change_and_keep(
        &self,
        nexus: &Nexus,
        lu: &LogicalUnit,
        change: Change,
        keep: Option<Box<Kept>>,
    ) -> Result<(), Refusal> {
        let Some(kept) = keep else {
            self.change(Some(nexus), lu.lun, change).await;
            return Ok(());
        };
        let (name, keep) = (kept.name, &lu.unit.keep);
        keep.keep(name, kept.bytes).await.map_err(fault::transfer)?;
        self.change(Some(nexus), lu.lun, change).await;
        // Of two cores that do this at once the later change is in force on both, but what was kept last may be the
        // other's. Each keeps again what is in force now: whoever made the later one does so last, for by then the
        // other has seen it.
        // It may have been put in place anew meanwhile.
        match self.unit(lu.lun).and_then(|lu| lu.kept(name)) {
            Some(bytes) => keep.keep(name, bytes).await.map_err(fault::transfer),
            None => Ok(()),
        }
    }

    async fn leave_failure(&self, lu: &LogicalUnit) -> Result<(), Refusal> {
        self.exit_failure_mode(lu.lun).await.map_err(|fault| match fault {
            // Another was faster, and begins one.
            Fault::Aborted => MediumState::Sanitizing.sense(lu).into(),
            other => fault::transfer(other),
        })
    }

    /// Finds the command's row, checks its CDB and admits it; with what the CDB says of lengths.
    pub(crate) fn admitted(&self, addressee: &Addressee, command: &Command) -> Result<(&'static Row, u32), Refusal> {
        let cdb = command.cdb.bytes();
        // There is no ACA that such a command could work in (SAM-5 8.8.5): NACA is refused.
        if command.attribute == TaskAttribute::ACA {
            return Err(Sense::illegal(Asc::INVALID_MESSAGE_ERROR).into());
        }
        let row = match find(cdb) {
            Ok(row) => row,
            Err(why) => return Err(unknown(why, cdb, addressee)),
        };
        reaches(&row.policy, addressee)?;
        row.check(cdb)?;
        admit(row, addressee)?;
        Ok((row, row.amount(cdb)?))
    }

    /// Has the command plan; what it answers is in `self.scratch`.
    pub(crate) fn plan(
        &self,
        row: &Row,
        amount: u32,
        nexus: &Nexus,
        addressee: &Addressee,
        command: &Command,
        list: &[u8],
    ) -> Result<Plan, Refusal> {
        let cdb = command.cdb.bytes();
        if row.flow != Flow::Answer {
            let mut cx = Context { target: self, nexus, addressee, command, out: Writer::new(&mut []) };
            return Ok(row.run(cdb, &mut cx, list)?);
        }
        let mut scratch = self.scratch.borrow_mut();
        let room = (amount as usize).min(ANSWER_BYTES_MAX);
        scratch.resize(room, 0);
        let mut cx = Context { target: self, nexus, addressee, command, out: Writer::new(&mut scratch) };
        let plan = row.run(cdb, &mut cx, list)?;
        let kept = cx.out.kept();
        scratch.truncate(kept);
        Ok(plan)
    }

    /// Writes the answer to GET LBA STATUS, which the store knows.
    async fn survey(
        &self,
        lu: &LogicalUnit,
        blocks: Range<u64>,
        runs: usize,
        amount: u32,
        tools: &mut Tools,
    ) -> Result<(), Refusal> {
        let geometry = &lu.unit.geometry;
        let block = u64::from(geometry.block_size);
        let len = (blocks.end - blocks.start) * block;
        let found = step::survey(&lu.unit, blocks.start * block, len, runs, tools).await;
        let found = found.map_err(fault::transfer)?;
        let mut scratch = self.scratch.borrow_mut();
        scratch.resize((amount as usize).min(ANSWER_BYTES_MAX), 0);
        let mut out = Writer::new(&mut scratch);
        lba_status::report(geometry, blocks, &found, &mut out);
        let kept = out.kept();
        scratch.truncate(kept);
        Ok(())
    }

    /// Writes a log page that tells how much space there is, which the store knows.
    async fn log(
        &self,
        lu: &LogicalUnit,
        ask: log::Ask,
        amount: u32,
        tools: &mut Tools,
        reply: &mut Reply,
    ) -> Result<(), Refusal> {
        lu.set_space(step::space(&lu.unit, tools).await);
        let mut scratch = self.scratch.borrow_mut();
        scratch.resize((amount as usize).min(ANSWER_BYTES_MAX), 0);
        let mut out = Writer::new(&mut scratch);
        ask.answer(lu, &mut out)?;
        let kept = out.kept();
        scratch.truncate(kept);
        drop(scratch);
        self.answer(tools, reply)
    }

    /// GOOD, with what the command wrote.
    fn answer(&self, tools: &Tools, reply: &mut Reply) -> Result<(), Refusal> {
        let scratch = self.scratch.borrow();
        reply.wanted = scratch.len() as u64;
        if !scratch.is_empty() {
            reply.tail.data = tools.arena.copy(&scratch).ok_or_else(|| Refusal::bare(Status::BUSY))?.into();
        }
        let stats = &self.config.stats;
        stats.read_commands.add(1);
        stats.read_bytes.add(reply.wanted);
        Ok(())
    }

    /// Counts a command that went well, and what it moved.
    fn count(&self, row: &Row, moved: u64) {
        let stats = &self.config.stats;
        match row.flow {
            Flow::In | Flow::Answer => {
                stats.read_commands.add(1);
                stats.read_bytes.add(moved);
            }
            Flow::Out | Flow::List | Flow::Block if moved > 0 => {
                stats.write_commands.add(1);
                stats.write_bytes.add(moved);
            }
            _ => {}
        }
    }

    /// How a command ends that the target has failed.
    #[cold]
    #[must_use]
    pub fn failed(&self) -> Reply {
        self.refuse(&Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE).into(), &Addressee::Nobody)
    }

    /// CHECK CONDITION and the like.
    #[cold]
    fn refuse(&self, refusal: &Refusal, addressee: &Addressee) -> Reply {
        let descriptor = match addressee {
            Addressee::Disk(itl) => itl.lu.mode().descriptor_sense,
            _ => false,
        };
        let stats = &self.config.stats;
        match refusal.status {
            Status::CHECK_CONDITION => stats.check_conditions.add(1),
            Status::BUSY => stats.busy_refused.add(1),
            _ => {}
        }
        let sense = refusal.sense.map_or_else(SenseData::default, |sense| sense.data(descriptor));
        Reply { sense, wanted: refusal.wanted, ..Reply::bare(refusal.status) }
    }
}

/// Carries steps out.
struct Carrier<'a, T> {
    target: &'a Target,
    lu: &'a LogicalUnit,
    admitted: Admitted<'a>,
    command: &'a Command,
    transfer: &'a T,
}

impl<T: Transfer> Carrier<'_, T> {
    /// Carries one out; tells how many bytes it moved.
    async fn carry(&self, step: &mut Step, reply: &mut Reply, tools: &mut Tools) -> Result<u64, Refusal> {
        let block = self.lu.block_size();
        let moved = fit(step, block, self.command, &mut reply.wanted)?;
        // What moves nothing was cut to nothing; the others have nothing to cut.
        if moved == Some(0) {
            return Ok(0);
        }
        let mut result = carry_out(self.admitted, step, self.transfer, tools, &mut reply.tail).await;
        if result.is_ok() && step.leaves_cached() && self.has_to_last() {
            result = carry_out(self.admitted, &Step::Flush, self.transfer, tools, &mut Tail::default()).await;
        }
        match result {
            Ok(()) => Ok(moved.unwrap_or(0)),
            Err(failure) => Err(failed(self.lu, step, failure).wanting(reply.wanted)),
        }
    }

    /// Whether what is written has to be on the medium when it is answered: asked now, for the cache may have been
    /// switched off while the data was waited for. A store without one has no need of a flush.
    fn has_to_last(&self) -> bool {
        let is_cached = |lu: &LogicalUnit| lu.mode().write_cache || !lu.unit.traits().write_cache;
        !self.target.unit(self.lu.lun).as_deref().map_or_else(|| is_cached(self.lu), is_cached)
    }
}

/// How a command ends whose step failed.
#[cold]
fn failed(lu: &LogicalUnit, step: &Step, failure: Failure) -> Refusal {
    let site = fault::Site::of(step, lu.block_size());
    if let Some(event) = site.error(failure) {
        lu.unit.tally.add(event, 1);
    }
    match lu.tray().sense(lu.kind) {
        // Taken out meanwhile.
        Some(sense) => sense.into(),
        None => site.refusal(failure),
    }
}

/// Why there is no row for a CDB. A service action may be wrong only where the addressee has the operation code.
#[cold]
fn unknown(why: Sense, cdb: &[u8], addressee: &Addressee) -> Refusal {
    let all = cdb.first().map_or(&[][..], |op| rows(*op));
    match addressee {
        Addressee::Nobody => Sense::illegal(Asc::LOGICAL_UNIT_NOT_SUPPORTED).into(),
        _ if all.iter().any(|row| reaches(&row.policy, addressee).is_ok()) => why.into(),
        _ => Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE).into(),
    }
}

/// Counts a command that went well for the log pages of its unit.
fn tally(row: &Row, moved: u64, lu: &LogicalUnit) {
    let (command, bytes) = match (row.flow, row.policy.effect) {
        (Flow::In, Effect::Read) => (Event::ReadCommand, Event::ReadBytes),
        (Flow::Out, Effect::Write) => (Event::WriteCommand, Event::WriteBytes),
        _ => return,
    };
    lu.unit.tally.add(command, 1);
    lu.unit.tally.add(bytes, moved);
}

/// Pulls what the command reads before it plans: no more than the initiator sends.
async fn pull_list<T: Transfer>(
    row: &Row,
    amount: u32,
    addressee: &Addressee,
    command: &Command,
    transfer: &T,
) -> Result<Sg, Refusal> {
    let length = match (row.flow, addressee) {
        (Flow::List, _) => amount.min(command.data_out),
        (Flow::Block, Addressee::Disk(itl)) if amount > 0 => {
            let carried = amount == Pulled::ProtectedBlock as u32 && itl.lu.protection() != Kind::None;
            let block = itl.lu.block_size() + if carried { INFO_BYTES as u32 } else { 0 };
            match command.data_out {
                // What it means that nothing comes, the command knows.
                0 => 0,
                sent if sent == block => block,
                _ => return Err(mismatch(u64::from(block))),
            }
        }
        _ => 0,
    };
    if length == 0 {
        return Ok(Sg::default());
    }
    let pulled = transfer.pull(0, length as usize).await;
    pulled.map_err(fault::transfer)
}

fn contiguous(list: &Sg) -> Cow<'_, [u8]> {
    match list.pieces() {
        [] => Cow::Borrowed(&[]),
        [one] => Cow::Borrowed(one),
        _ => Cow::Owned(list.to_vec()),
    }
}

/// The expected length is not what the CDB's lengths come to, and cutting the command would change its meaning
/// (FCP-4 9.4.2 names the choices; iSCSI leaves them open).
fn mismatch(wanted: u64) -> Refusal {
    Refusal::from(Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)).wanting(wanted)
}

/// Cuts a step to the blocks that the initiator sends or expects; adds what it would have moved to `wanted`. Tells how
/// many bytes it moves, `None` for a step that moves none. A part of a block is never written.
#[inline]
fn fit(step: &mut Step, block: u32, command: &Command, wanted: &mut u64) -> Result<Option<u64>, Refusal> {
    match step {
        Step::Protected(protected) => fit_protected(protected, u64::from(block), command, wanted),
        plain => fit_plain(plain, block, command, wanted),
    }
}

/// As [`fit`], for the blocks alone. In line: it is on the way of every command.
#[inline(always)]
fn fit_plain(step: &mut Step, block: u32, command: &Command, wanted: &mut u64) -> Result<Option<u64>, Refusal> {
    let (sends, expects) = (u64::from(command.data_out), u64::from(command.data_in));
    let block = u64::from(block);
    let cut = |len: &mut u64| match sends < *len {
        true if !sends.is_multiple_of(block) => Err(mismatch(*len)),
        true => Ok(std::mem::replace(len, sends)),
        false => Ok(*len),
    };
    let (whole, moved) = match step {
        Step::Read { len, .. } => {
            let whole = *len;
            // Divided only where it matters.
            if expects < whole {
                *len = whole.min(expects.next_multiple_of(block));
            }
            (whole, whole.min(expects))
        }
        Step::Write { len, .. }
        | Step::OrWrite { len, .. }
        | Step::WriteVerify { len, .. }
        | Step::Compare { len, block: None, .. } => (cut(len)?, *len),
        Step::WriteAtomic { len, .. } if sends < *len => return Err(mismatch(*len)),
        Step::WriteAtomic { len, .. } => (*len, *len),
        Step::Compare { block: Some(size), .. } if sends < u64::from(*size) => return Err(mismatch(u64::from(*size))),
        Step::Compare { block: Some(size), .. } => (u64::from(*size), u64::from(*size)),
        Step::CompareWrite { len, .. } if sends != 2 * *len => return Err(mismatch(2 * *len)),
        Step::CompareWrite { len, .. } => (2 * *len, 2 * *len),
        _ => return Ok(None),
    };
    *wanted += whole;
    Ok(Some(moved))
}

/// As [`fit`], for a step with which protection information may travel: counted in blocks without it, told with it.
#[cold]
fn fit_protected(
    protected: &mut Protected,
    block: u64,
    command: &Command,
    wanted: &mut u64,
) -> Result<Option<u64>, Refusal> {
    let plain = block as u32;
    if !protected.terms.carried {
        return fit_plain(&mut protected.step, plain, command, wanted);
    }
    let each = plain + INFO_BYTES as u32;
    // A part of a block stays one.
    let without = |bytes: u32| bytes / each * plain + (bytes % each).min(plain - 1);
    let with = |bytes: u64| bytes / block * u64::from(each) + bytes % block;
    let cut = Command { data_in: without(command.data_in), data_out: without(command.data_out), ..*command };
    let mut blocks = 0;
    let moved = fit_plain(&mut protected.step, plain, &cut, &mut blocks);
    *wanted += with(blocks);
    moved.map(|moved| moved.map(with)).map_err(|refusal| {
        let wanted = with(refusal.wanted);
        refusal.wanting(wanted)
    })
}

#[cfg(test)]
#[path = "execute_tests.rs"]
mod tests;

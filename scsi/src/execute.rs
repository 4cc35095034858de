//! Executes a command from its CDB to its status: lookup, check of the CDB, admission, plan, work.

use crate::admit::{Refusal, admit, nothing_stops};
use crate::change::{Change, ScsiChange};
use crate::command::{Command, Reply, Status, TaskAttribute};
use crate::context::Call;
use crate::device_types;
use crate::execute_others::others_of;
use crate::fault;
use crate::fit::{fit, mismatch};
use crate::lu::{Emulated, LogicalUnit};
use crate::lun::Lun;
use crate::nexus::{Addressee, ItlNexus, Nexus};
use crate::plan::Plan;
use crate::row::{Flow, Pulled, Row};
use crate::sense::{Asc, Sense, SenseData, SenseKey};
use crate::target::Target;
use lunar_core::mem::{Arena, Sg};
use lunar_core::port::Transfer;
use lunar_core::protection::{INFO_BYTES, Kind};
use lunar_core::slow::Ending;
use lunar_core::step::{Failure, FinalData, SlotContext, Step, carry_out, carry_out_now};
use lunar_core::tally::{Event, Tally, latency};
use lunar_core::traffic::Class;
use lunar_core::unit::Admitted;
use lunar_core::wire::Writer;
use lunar_unit::{Denial, Record, Refused, UnitChange};
use std::borrow::Cow;
use std::cell::RefMut;

/// Bytes of the longest answer: REPORT LUNS with all LUNs.
const ANSWER_BYTES_MAX: usize = 8 + 8 * (crate::lun::LUNS_MAX as usize + 1);

impl Target {
    /// Executes a command. Must be called in the order in which the commands of a nexus arrived: ORDERED relies on it.
    ///
    /// The reply is written in place: moving it through several futures would cost more than a small command.
    pub async fn execute<T: Transfer>(
        &self,
        nexus: &Nexus,
        command: &Command,
        transfer: &T,
        slot: &mut SlotContext,
        reply: &mut Reply,
    ) {
        let stats = &self.config.stats;
        let arrived = stats.now();
        stats.commands.add(1);
        let addressee = nexus.addressee(command.lun);
        let counters = addressee.counters(nexus);
        let _in_flight = counters.unit.map(Tally::begin);
        slot.watch.begin();
        let _turn = match &addressee {
            Addressee::Unit(itl) => Some(itl.order.enter(command.attribute).await),
            _ => None,
        };
        let call = Call { nexus, addressee: &addressee, device: device_types::of(&addressee), command };
        let result = self.perform(call, transfer, slot, reply).await;
        let nanoseconds = latency(arrived, stats.now());
        let timed = |ending, class| {
            counters.timed(stats, &slot.watch, nanoseconds, ending, (class, || name_of(call)));
        };
        if transfer.aborted() {
            let class = class_of(call);
            counters.failed(class, nanoseconds, Some(Event::Aborted));
            timed(Ending::Aborted, class);
            *reply = Reply::bare(Status::TASK_ABORTED);
            return;
        }
        match result {
            Ok((class, moved)) => {
                counters.ended(class, nanoseconds, moved);
                timed(Ending::Done, class);
            }
            Err(refusal) => {
                let class = class_of(call);
                counters.failed(class, nanoseconds, error_of(refusal.status));
                timed(Ending::Failed, class);
                *reply = self.refuse(&refusal, &addressee);
            }
        }
    }

    /// Counts a command that got no slot.
    #[cold]
    pub fn task_set_full(&self, nexus: &Nexus, lun: Lun) {
        self.config.stats.task_set_full.add(1);
        nexus.addressee(lun).counters(nexus).task_set_full();
    }

    /// Executes a read or a write if it need not wait: no condition can stop it, the store answers immediately, and the
    /// data has arrived. Returns whether the command has ended. If not, nothing was done, and [`Target::execute`] must
    /// be called. Both are called in the order of arrival.
    pub fn execute_now<T: Transfer>(
        &self,
        nexus: &Nexus,
        command: &Command,
        transfer: &T,
        arena: &Arena,
        reply: &mut Reply,
    ) -> bool {
        let addressee = nexus.addressee(command.lun);
        let Addressee::Unit(itl) = &addressee else { return false };
        let LogicalUnit::Emulated(lu) = &*itl.lu else { return false };
        let (Some(immediate), true) = (lu.unit.store.immediate(), command.attribute == TaskAttribute::SIMPLE) else {
            return false;
        };
        let stats = &self.config.stats;
        let begun = stats.sampler.begin(stats.commands.get(), stats.now());
        // `execute` reports all refusals.
        let cdb = command.cdb.bytes();
        let call = Call { nexus, addressee: &addressee, device: device_types::of(&addressee), command };
        let Ok(row) = call.device.find(cdb) else { return false };
        let moves = matches!(row.flow, Flow::In | Flow::Out) && itl.order.is_open() && nothing_stops(row, itl);
        if !moves || row.check(cdb).is_err() {
            return false;
        }
        let Ok(Plan::Do(mut step)) = self.plan(call, row, 0, &[]) else { return false };
        let mut wanted = 0;
        let Ok(Some(moved @ 1..)) = fit(&mut step, lu.block_size(), command, &mut wanted) else { return false };
        match carry_out_now(&lu.unit, immediate, &step, transfer, arena, &mut reply.final_data) {
            None => return false,
            Some(Ok(())) => {
                reply.wanted = wanted;
                self.count(row.flow, moved);
                addressee.counters(nexus).ended_at_once(stats, row.class, moved, begun);
            }
            Some(Err(failure)) => {
                addressee.counters(nexus).failed(row.class, 0, None);
                *reply = self.refuse(&failed(lu, &step, failure).wanting(wanted), &addressee);
            }
        }
        stats.commands.add(1);
        true
    }

    /// Returns the class of the command, and the bytes that it moved.
    async fn perform<T: Transfer>(
        &self,
        call: Call<'_>,
        transfer: &T,
        slot: &mut SlotContext,
        reply: &mut Reply,
    ) -> Result<(Class, u64), Refusal> {
        // Checked first: an aborted command is not answered, so it must not take a unit attention.
        if transfer.aborted() {
            return Err(Refusal::bare(Status::TASK_ABORTED));
        }
        let emulated = match call.addressee {
            Addressee::Unit(itl) => match &*itl.lu {
                LogicalUnit::Emulated(lu) => {
                    if let Some(others) = others_of(call, lu) {
                        return Box::pin(self.send_to_others(call, (itl, others), transfer, slot, reply)).await;
                    }
                    Some((itl, lu))
                }
                // Boxed: the futures of emulated logical units stay small.
                LogicalUnit::Forwarded(lu) => {
                    return Box::pin(self.forward(call, (itl, lu), transfer, slot, reply)).await;
                }
            },
            Addressee::WellKnown | Addressee::NoUnit => None,
        };
        let (row, amount) = self.admitted(call)?;
        let admitted = emulated.map(|(_, lu)| Admitted::to(&lu.unit));
        let mut moved = 0;
        let plan = if row.takes_list() {
            let list = pull_list(row, amount, call, transfer).await?;
            moved = list.len() as u64;
            reply.wanted = moved;
            self.plan(call, row, amount, &contiguous(&list))?
        } else {
            self.plan(call, row, amount, &[])?
        };
        if let (Some((itl, lu)), Some(admitted)) = (emulated, admitted) {
            // The medium may have been rewritten while the parameter list was awaited.
            admitted.check().map_err(fault::transfer)?;
            let carrier = Carrier { target: self, lu, admitted, command: call.command, transfer };
            match plan {
                Plan::Do(mut step) => moved += carrier.carry(&mut step, reply, slot).await?,
                Plan::Done => {}
                Plan::Answer => return self.answered(slot, reply),
                // Boxed: its future is large, and these plans are rare.
                plan => match Box::pin(self.work(call, itl, &carrier, (plan, amount), slot, reply)).await? {
                    Worked::Done => {}
                    Worked::Answered => return self.answered(slot, reply),
                },
            }
        } else if plan == Plan::Answer {
            return self.answered(slot, reply);
        }
        self.count(row.flow, moved);
        Ok((row.class, moved))
    }

    fn answered(&self, slot: &SlotContext, reply: &mut Reply) -> Result<(Class, u64), Refusal> {
        self.answer(slot, reply)?;
        Ok((Class::Other, reply.wanted))
    }

    /// Executes a plan that is neither a step nor an answer.
    async fn work<T: Transfer>(
        &self,
        call: Call<'_>,
        itl: &ItlNexus,
        carrier: &Carrier<'_, T>,
        (plan, amount): (Plan, u32),
        slot: &mut SlotContext,
        reply: &mut Reply,
    ) -> Result<Worked, Refusal> {
        let (nexus, lu, transfer) = (call.nexus, carrier.lu, carrier.transfer);
        match plan {
            Plan::Done | Plan::Do(_) => {}
            Plan::Answer => return Ok(Worked::Answered),
            Plan::Conflict => return Err(Refusal::bare(Status::RESERVATION_CONFLICT)),
            Plan::Forward(_) => return Err(Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE).into()),
            Plan::Propose(change) => self.propose(nexus, call.command.tag, &itl.lu, *change).await?,
            Plan::Survey { lba, blocks, runs } => {
                self.survey(lu, lba..lba + blocks, (runs, amount), transfer, slot).await?;
                return Ok(Worked::Answered);
            }
            Plan::Log(request) => {
                self.log(call, lu, &request, amount, slot).await?;
                return Ok(Worked::Answered);
            }
            Plan::Move(motion) => self.move_medium(nexus, lu, motion).await?,
            Plan::ExitFailureMode => self.exit_failure_mode(lu).await?,
            Plan::Rewrite(rewrite) => self.rewrite(nexus, lu, *rewrite, transfer, slot).await?,
            Plan::Copy(list) => self.copy(nexus, lu, &list, transfer, slot).await?,
            Plan::Populate(copy, data, timeout) => self.populate(nexus, lu, copy, *data, timeout)?,
            Plan::Write(writing) => self.write_token(nexus, itl, &writing, transfer, slot).await?,
            Plan::StopCopy(id) => nexus.copies.stop(lu.lun, id).await,
            Plan::Change { flush, record, change } => {
                self.change(nexus, lu, change, record).await?;
                // After the change, so that data written before it is flushed as well.
                if flush {
                    carrier.carry(&mut Step::Flush, reply, slot).await?;
                }
            }
        }
        Ok(Worked::Done)
    }

    /// Proposes a change of the unit state for a task of a nexus. Tasks that it aborts have ended when this returns.
    pub(crate) async fn propose(
        &self,
        nexus: &Nexus,
        tag: u64,
        lu: &LogicalUnit,
        change: UnitChange,
    ) -> Result<(), Refusal> {
        let is_aborted = nexus.tasks.until_aborted(|(t, l)| t == tag && nexus.is_at(lu.lun, l));
        let changed = self.config.units.change(lu, Some(&nexus.name), change, is_aborted).await;
        changed.map(drop).map_err(|refused| match (refused, lu.emulated()) {
            (Refused::Metadata(fault), _) => fault::transfer(fault),
            (Refused::Denied(Denial::Reservation(denial)), _) => denial.into(),
            (Refused::Denied(Denial::RemovalPrevented), _) => Sense::illegal(Asc::MEDIUM_REMOVAL_PREVENTED).into(),
            (Refused::Denied(_), Some(lu)) => lu.medium_sense().into(),
            (Refused::Denied(_), None) => Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE).into(),
        })
    }

    /// Proposes a change of the state that only SCSI has of a unit.
    async fn change(
        &self,
        nexus: &Nexus,
        lu: &Emulated,
        change: Change,
        record: Option<Box<Record>>,
    ) -> Result<(), Refusal> {
        let change = ScsiChange { change, record: record.map(|record| *record) };
        let changed = self.config.units.propose(&lu.unit, Some(&nexus.name), change.into()).await;
        changed.map(drop).map_err(|refused| match refused {
            Refused::Metadata(fault) => fault::transfer(fault),
            Refused::Denied(_) => lu.medium_sense().into(),
        })
    }

    /// Finds the row of a command, checks the CDB and admits the command. Returns [`Row::amount`] as well.
    pub(crate) fn admitted(&self, call: Call<'_>) -> Result<(&'static Row, u32), Refusal> {
        check_attribute(call.command)?;
        let cdb = call.command.cdb.bytes();
        let row = call.device.find(cdb)?;
        row.check(cdb)?;
        admit(row, call.addressee)?;
        Ok((row, row.amount(cdb)?))
    }

    /// Plans a command. Its Data-In is in `self.scratch` afterwards.
    pub(crate) fn plan(&self, call: Call<'_>, row: &Row, amount: u32, list: &[u8]) -> Result<Plan, Refusal> {
        let cdb = call.command.cdb.bytes();
        if row.flow != Flow::Answer {
            return Ok(row.run(cdb, &mut call.context(self, Writer::new(&mut [])), list)?);
        }
        let mut scratch = self.answer_memory(amount);
        let mut cx = call.context(self, Writer::new(&mut scratch));
        let plan = row.run(cdb, &mut cx, list)?;
        let kept = cx.out.kept();
        scratch.truncate(kept);
        Ok(plan)
    }

    /// Memory for an answer of at most `amount` bytes.
    pub(crate) fn answer_memory(&self, amount: u32) -> RefMut<'_, Vec<u8>> {
        let mut scratch = self.scratch.borrow_mut();
        scratch.resize((amount as usize).min(ANSWER_BYTES_MAX), 0);
        scratch
    }

    /// Ends a command with GOOD and the Data-In in `self.scratch`.
    pub(crate) fn answer(&self, slot: &SlotContext, reply: &mut Reply) -> Result<(), Refusal> {
        let scratch = self.scratch.borrow();
        reply.wanted = scratch.len() as u64;
        if !scratch.is_empty() {
            reply.final_data.data = slot.arena.copy(&scratch).ok_or_else(|| Refusal::bare(Status::BUSY))?.into();
        }
        let stats = &self.config.stats;
        stats.read_commands.add(1);
        stats.read_bytes.add(reply.wanted);
        Ok(())
    }

    /// Counts a successful command and the bytes that it moved.
    pub(crate) fn count(&self, flow: Flow, moved: u64) {
        let stats = &self.config.stats;
        match flow {
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

    /// The reply to a command that failed inside the target.
    #[cold]
    #[must_use]
    pub fn failed(&self) -> Reply {
        self.refuse(&Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE).into(), &Addressee::NoUnit)
    }

    /// The reply of a refusal.
    #[cold]
    fn refuse(&self, refusal: &Refusal, addressee: &Addressee) -> Reply {
        let descriptor = match addressee {
            Addressee::Unit(itl) => itl.lu.has_descriptor_sense(),
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

/// The end of the work of a plan.
enum Worked {
    /// Without Data-In, or its Data-In was sent.
    Done,
    /// Its Data-In is in `self.scratch`.
    Answered,
}

/// Refuses the task attribute ACA: ACA conditions do not exist, for NACA is refused (SAM-5 8.8.5).
pub(crate) fn check_attribute(command: &Command) -> Result<(), Sense> {
    match command.attribute {
        TaskAttribute::ACA => Err(Sense::illegal(Asc::INVALID_MESSAGE_ERROR)),
        _ => Ok(()),
    }
}

/// Executes the steps of a command.
struct Carrier<'a, T> {
    target: &'a Target,
    lu: &'a Emulated,
    admitted: Admitted<'a>,
    command: &'a Command,
    transfer: &'a T,
}

impl<T: Transfer> Carrier<'_, T> {
    /// Executes a step; returns the number of bytes that it moved.
    async fn carry(&self, step: &mut Step, reply: &mut Reply, slot: &mut SlotContext) -> Result<u64, Refusal> {
        let block = self.lu.block_size();
        let moved = fit(step, block, self.command, &mut reply.wanted)?;
        // A step that moves data was cut to length zero.
        if moved == Some(0) {
            return Ok(0);
        }
        let mut result = carry_out(self.admitted, step, self.transfer, slot, &mut reply.final_data).await;
        if result.is_ok() && step.leaves_cached() && self.has_to_last() {
            result = carry_out(self.admitted, &Step::Flush, self.transfer, slot, &mut FinalData::default()).await;
        }
        match result {
            Ok(()) => Ok(moved.unwrap_or(0)),
            Err(failure) => Err(failed(self.lu, step, failure).wanting(reply.wanted)),
        }
    }

    /// Whether written data must be flushed before the status: the write cache is disabled and the store has one.
    /// Checked after the write, because MODE SELECT may have disabled the cache while the data was awaited.
    fn has_to_last(&self) -> bool {
        let is_cached = |lu: &Emulated| lu.mode().write_cache || !lu.unit.traits().write_cache;
        let current = self.target.unit(self.lu.lun);
        !current.as_deref().and_then(LogicalUnit::emulated).map_or_else(|| is_cached(self.lu), is_cached)
    }
}

/// Status and sense data of a failed step.
#[cold]
fn failed(lu: &Emulated, step: &Step, failure: Failure) -> Refusal {
    let site = fault::Site::of(step, lu.block_size());
    if let Some(event) = site.error(failure) {
        lu.unit.tally.add(event, 1);
    }
    match lu.tray_sense() {
        // The medium was removed meanwhile.
        Some(sense) => sense.into(),
        None => site.refusal(failure),
    }
}

/// The class of a command that has failed.
#[cold]
fn class_of(call: Call<'_>) -> Class {
    call.device.find(call.command.cdb.bytes()).map_or(Class::Other, |row| row.class)
}

/// The name of a command, for the slow log.
#[cold]
fn name_of(call: Call<'_>) -> &'static str {
    call.device.find(call.command.cdb.bytes()).map_or("unknown command", |row| row.policy.name)
}

/// The kind of error of a command with this status; those of its steps are counted where they fail.
#[cold]
fn error_of(status: Status) -> Option<Event> {
    (status == Status::RESERVATION_CONFLICT).then_some(Event::Conflict)
}

/// Pulls the parameter list or block that a command needs for planning, but no more than the initiator sends.
pub(crate) async fn pull_list<T: Transfer>(
    row: &Row,
    amount: u32,
    call: Call<'_>,
    transfer: &T,
) -> Result<Sg, Refusal> {
    let emulated = call.addressee.itl().and_then(|itl| itl.lu.emulated());
    let length = match (row.flow, emulated) {
        (Flow::List, _) => amount.min(call.command.data_out),
        (Flow::Block, Some(lu)) if amount > 0 => {
            let carried = amount == Pulled::ProtectedBlock as u32 && lu.protection() != Kind::None;
            let block = lu.block_size() + if carried { INFO_BYTES as u32 } else { 0 };
            match call.command.data_out {
                // `run` decides on a missing block.
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

pub(crate) fn contiguous(list: &Sg) -> Cow<'_, [u8]> {
    match list.pieces() {
        [] => Cow::Borrowed(&[]),
        [one] => Cow::Borrowed(one),
        _ => Cow::Owned(list.to_vec()),
    }
}

#[cfg(test)]
#[path = "execute_tests.rs"]
mod tests;

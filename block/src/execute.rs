//! A request from its arrival to its result: admission, checks, planning, execution.

use crate::admit::{admit, check_ranges};
use crate::attachment::Attachment;
use crate::fault;
use crate::limits::EXTENTS_MAX;
use crate::request::{Answer, ByteRange, Error, Reply, Request};
use crate::set::BlockSet;
use crate::table::{Code, Flow, Plan, Row, find};
use crate::unit::BlockUnit;
use lunar_core::mem::Arena;
use lunar_core::port::Transfer;
use lunar_core::slow::Ending;
use lunar_core::step::{Failure, SlotContext, Step, carry_out, carry_out_now, survey};
use lunar_core::tally::{Event, Tally, latency};
use lunar_core::traffic::Class;
use lunar_core::unit::Admitted;
use std::slice;

impl BlockSet {
    /// Executes a request. The reply is written to its final place.
    pub async fn execute<T: Transfer>(
        &self,
        attachment: &Attachment,
        request: &Request<'_>,
        transfer: &T,
        slot: &mut SlotContext,
        reply: &mut Reply,
    ) {
        let arrived = self.stats.now();
        self.stats.commands.add(1);
        let unit = attachment.unit();
        let counters = attachment.counters(unit.as_deref());
        let _in_flight = counters.unit.map(Tally::begin);
        slot.watch.begin();
        let result = self.perform(attachment, unit.as_deref(), request, transfer, slot, reply).await;
        let nanoseconds = latency(arrived, self.stats.now());
        let ending = match &result {
            _ if transfer.aborted() => Ending::Aborted,
            Ok(_) => Ending::Done,
            Err(_) => Ending::Failed,
        };
        let named = (class(request.code), || find(request.code).policy.name);
        counters.timed(&self.stats, &slot.watch, nanoseconds, ending, named);
        reply.result = match result {
            _ if transfer.aborted() => {
                counters.failed(class(request.code), nanoseconds, Some(Event::Aborted));
                Err(Error::IoError)
            }
            Ok((class, moved)) => {
                counters.ended(class, nanoseconds, moved);
                Ok(())
            }
            Err(error) => {
                counters.failed(class(request.code), nanoseconds, error_of(&error));
                Err(error)
            }
        };
        if reply.result.is_err() {
            self.stats.check_conditions.add(1);
        }
    }

    /// Executes a read or a write that waits for nothing: the store answers at once, and the data has arrived. Returns
    /// whether the request has ended. If not, nothing was done, and [`BlockSet::execute`] executes it.
    pub fn execute_now<T: Transfer>(
        &self,
        attachment: &Attachment,
        request: &Request<'_>,
        transfer: &T,
        arena: &Arena,
        reply: &mut Reply,
    ) -> bool {
        let row = find(request.code);
        let Some(unit) = attachment.unit() else { return false };
        let Some(immediate) = unit.unit.store.immediate().filter(|_| row.policy.flow != Flow::None) else {
            return false;
        };
        let begun = self.stats.sampler.begin(self.stats.commands.get(), self.stats.now());
        // `execute` reports the error to the client.
        let Ok(Plan::Do(step)) = planned(row, attachment, request, &unit) else { return false };
        match carry_out_now(&unit.unit, immediate, &step, transfer, arena, &mut reply.final_data) {
            None => return false,
            Some(Ok(())) => {
                let bytes = self.count(row, &step);
                attachment.counters(Some(&unit)).ended_at_once(&self.stats, class(request.code), bytes, begun);
            }
            Some(Err(failure)) => {
                attachment.counters(Some(&unit)).failed(class(request.code), 0, None);
                reply.result = Err(failed(request.code, &unit, failure));
                self.stats.check_conditions.add(1);
            }
        }
        self.stats.commands.add(1);
        true
    }

    /// Returns the class of the request, and the bytes that it moved.
    async fn perform<T: Transfer>(
        &self,
        attachment: &Attachment,
        unit: Option<&BlockUnit>,
        request: &Request<'_>,
        transfer: &T,
        slot: &mut SlotContext,
        reply: &mut Reply,
    ) -> Result<(Class, u64), Error> {
        let row = find(request.code);
        let unit = unit.ok_or(Error::NotReady)?;
        let plan = planned(row, attachment, request, unit)?;
        let admitted = Admitted::to(&unit.unit);
        match plan {
            Plan::Done => {}
            Plan::Identify => reply.answer = Answer::Identity(unit.unit.identity.clone()),
            Plan::Survey(ByteRange { offset, len }) => {
                // Boxed, so that the future of reads and writes is not as large.
                let extents = Box::pin(survey(&unit.unit, offset, len, EXTENTS_MAX, transfer, slot)).await;
                reply.answer = Answer::Extents(extents.map_err(fault::of_fault)?);
            }
            Plan::Do(step) => {
                let flush = Step::Flush;
                // A step that moves data is durable by itself.
                let is_durable = request.durable || !attachment.caches_writes();
                let flushes = is_durable && row.policy.flow == Flow::None && step.leaves_cached();
                for step in slice::from_ref(&step).iter().chain(flushes.then_some(&flush)) {
                    let result = carry_out(admitted, step, transfer, slot, &mut reply.final_data).await;
                    result.map_err(|failure| failed(request.code, unit, failure))?;
                }
                return Ok((class(request.code), self.count(row, &step)));
            }
        }
        // It moved nothing.
        Ok((Class::Other, 0))
    }

    /// Counts a successful request; returns the bytes that it moved.
    fn count(&self, row: &Row, step: &Step) -> u64 {
        let (stats, bytes) = (&self.stats, fault::moved(step));
        match row.policy.flow {
            Flow::None => {}
            Flow::In => {
                stats.read_commands.add(1);
                stats.read_bytes.add(bytes);
            }
            Flow::Out => {
                stats.write_commands.add(1);
                stats.write_bytes.add(bytes);
            }
        }
        bytes
    }
}

/// The class of a request in metrics.
#[inline]
fn class(code: Code) -> Class {
    match code {
        Code::Read => Class::Read,
        Code::Write => Class::Write,
        Code::Discard => Class::Unmap,
        _ => Class::Other,
    }
}

/// The kind of error of a request that ends with this error; those of its steps are counted where they fail.
#[cold]
fn error_of(error: &Error) -> Option<Event> {
    matches!(error, Error::Conflict).then_some(Event::Conflict)
}

/// Admits a request, checks its ranges, and plans it.
#[inline]
fn planned(row: &Row, attachment: &Attachment, request: &Request<'_>, unit: &BlockUnit) -> Result<Plan, Error> {
    admit(&row.policy.admission, attachment, unit)?;
    check_ranges(&row.policy, request, &unit.unit)?;
    (row.run)(request, &attachment.context(unit))
}

#[cold]
fn failed(code: Code, unit: &BlockUnit, failure: Failure) -> Error {
    if let Some(event) = fault::event(failure, code) {
        unit.unit.tally.add(event, 1);
    }
    fault::error(failure)
}

#[cfg(test)]
#[path = "execute_tests.rs"]
mod tests;

//! A third-party copy from its first segment to its last.

use super::list::{Amount, CopyList, Cscd, End, Segment};
use super::results::{Ask, Running};
use super::tokens::Data;
use super::transfer::{Part, Writing};
use crate::admit::{Refusal, pass};
use crate::cmd::block::{READS, WRITES};
use crate::cmd::inquiry::DISK;
use crate::cmd::token::creator;
use crate::command::Status;
use crate::fault::Site;
use crate::lu::LogicalUnit;
use crate::nexus::{ItlNexus, Nexus};
use crate::sense::{Asc, Sense, SenseKey, Within};
use crate::table::{Code, Effect, Gate, Gates, OpCode, Policy, Reach};
use crate::target::Target;
use crate::vpd;
use lunar_core::io::Fault;
use lunar_core::mem::Sg;
use lunar_core::port::Transfer;
use lunar_core::step::{Failure, Step, Tail, Tools, carry_out};
use lunar_core::unit::Admitted;
use std::rc::Rc;
use std::time::Duration;

/// What stops a disk from being copied from: what stops reads. Only its unit attentions stay for the initiator's next
/// command to it: it did not send this one there.
const SOURCE: Policy = Policy {
    name: "copy source",
    clause: "SPC-4 5.16",
    code: Code::of(OpCode::THIRD_PARTY_COPY_OUT),
    effect: Effect::Read,
    gates: Gates { attention: Gate::Passes, ..READS },
};
/// What stops a disk from being copied to: what stops writes, but for unit attentions.
const DESTINATION: Policy = Policy {
    name: "copy destination",
    clause: "SPC-4 5.16",
    code: Code::of(OpCode::THIRD_PARTY_COPY_OUT),
    effect: Effect::Write,
    gates: Gates { attention: Gate::Passes, ..WRITES },
};

/// A segment that may be copied.
struct Between {
    source: Rc<ItlNexus>,
    at: u64,
    destination: Rc<ItlNexus>,
    offset: u64,
    len: u64,
}

/// Steps of a copy, which ends when its command is aborted, or COPY OPERATION ABORT wants it to.
struct Steps<'a, T> {
    running: &'a Running<'a>,
    transfer: &'a T,
}

/// One nexus's copy.
struct Operation<'a, T> {
    nexus: &'a Nexus,
    list: &'a CopyList,
    steps: Steps<'a, T>,
}

impl Target {
    /// Carries a third-party copy out, and keeps how it ended.
    pub(crate) async fn copy<T: Transfer>(
        &self,
        nexus: &Nexus,
        manager: &LogicalUnit,
        list: &CopyList,
        transfer: &T,
        tools: &mut Tools,
    ) -> Result<(), Refusal> {
        let running = nexus.copies.begin(manager.lun, list.ask)?;
        let steps = Steps { running: &running, transfer };
        let result = Operation { nexus, list, steps }.run(tools).await;
        self.config.stats.copied_bytes.add(running.bytes());
        running.end(&result, manager.mode().descriptor_sense);
        result
    }

    /// Makes a token, which the nexus asks for with its list identifier.
    pub(crate) fn populate(
        &self,
        nexus: &Nexus,
        lu: &LogicalUnit,
        ask: Ask,
        data: Data,
        inactivity: Duration,
    ) -> Result<(), Refusal> {
        nexus.copies.room(lu.lun, ask)?;
        let bytes = data.bytes();
        let token = self.config.tokens.make(creator(lu), data, inactivity);
        let token = token.ok_or(Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE))?;
        nexus.copies.populated(lu.lun, ask, bytes, token);
        Ok(())
    }

    /// Writes what a token stands for, and keeps how it ended.
    pub(crate) async fn write_token<T: Transfer>(
        &self,
        nexus: &Nexus,
        itl: &Rc<ItlNexus>,
        writing: &Writing,
        transfer: &T,
        tools: &mut Tools,
    ) -> Result<(), Refusal> {
        let running = nexus.copies.begin(itl.lu.lun, writing.ask)?;
        let result = Steps { running: &running, transfer }.write(nexus, itl, writing, tools).await;
        self.config.stats.copied_bytes.add(running.bytes());
        running.end(&result, itl.lu.mode().descriptor_sense);
        if let (Ok(()), Some(token)) = (&result, &writing.deletes) {
            self.config.tokens.delete(token);
        }
        result
    }
}

impl<T: Transfer> Operation<'_, T> {
    async fn run(&self, tools: &mut Tools) -> Result<(), Refusal> {
        let numbered = || self.list.segments.iter().zip(0_u16..);
        // All are looked at before the first is copied: what cannot be done is not begun.
        for (segment, number) in numbered() {
            self.part(segment).map_err(|refusal| copy_aborted(&refusal, number))?;
        }
        let mut written: Vec<Rc<ItlNexus>> = Vec::new();
        for (segment, number) in numbered() {
            let aborted = |refusal: Refusal| copy_aborted(&refusal, number);
            // Anew: a disk may have been reserved, protected or taken away meanwhile.
            let part = self.part(segment).map_err(aborted)?;
            if part.len > 0 {
                let lu = &part.destination.lu;
                let step =
                    Step::Copy { from: part.source.lu.unit.clone(), at: part.at, offset: part.offset, len: part.len };
                self.steps.step(lu, step, tools).await.map_err(aborted)?;
                if !written.iter().any(|itl| itl.lu.lun == lu.lun) {
                    written.push(part.destination.clone());
                }
            }
            self.steps.running.did(part.len);
        }
        // A copy leaves durability to a flush, as other writes do where the cache is on.
        for itl in written.iter().filter(|itl| !itl.lu.mode().write_cache) {
            let last = self.list.segments.len().saturating_sub(1) as u16;
            self.steps.step(&itl.lu, Step::Flush, tools).await.map_err(|refusal| copy_aborted(&refusal, last))?;
        }
        Ok(())
    }

    /// What a segment means, if it may be copied.
    fn part(&self, segment: &Segment) -> Result<Between, Refusal> {
        let source = self.disk(&segment.source)?;
        let destination = self.disk(&segment.destination)?;
        pass(&SOURCE, &source)?;
        pass(&DESTINATION, &destination)?;
        let len = match segment.amount {
            Amount::SourceBlocks(count) => u64::from(count) * u64::from(source.lu.block_size()),
            Amount::DestinationBlocks(count) => u64::from(count) * u64::from(destination.lu.block_size()),
            Amount::Bytes(count) => count.into(),
        };
        let at = place(&source.lu, &segment.source, segment, len)?;
        let offset = place(&destination.lu, &segment.destination, segment, len)?;
        Ok(Between { source, at, destination, offset, len })
    }

    /// The disk of one side of a segment: one that this nexus sees, and what the initiator takes it for.
    fn disk(&self, end: &End) -> Result<Rc<ItlNexus>, Sense> {
        let index = usize::from(end.cscd);
        let Some(cscd) = self.list.cscds.get(index) else {
            return Err(aborted_by(Asc::UNREACHABLE_COPY_TARGET).at(Within::Segment, end.cscd_at));
        };
        let in_cscd = |asc, at| aborted_by(asc).at(Within::List, self.list.header + index * size_of::<Cscd>() + at);
        if cscd.device_type() != DISK {
            return Err(in_cscd(Asc::INCORRECT_COPY_TARGET_DEVICE_TYPE, Cscd::DEVICE_AT));
        }
        let found = cscd
            .designator()
            .and_then(|(header, designator)| self.nexus.seek(|lu| vpd::is_named(lu, header, designator)));
        let Some(itl) = found else {
            return Err(in_cscd(Asc::COPY_TARGET_DEVICE_NOT_REACHABLE, Cscd::DESIGNATOR_AT));
        };
        if !Reach::Disk.covers(itl.lu.kind) {
            return Err(in_cscd(Asc::INCORRECT_COPY_TARGET_DEVICE_TYPE, Cscd::DEVICE_AT));
        }
        if cscd.block_size() != itl.lu.block_size() {
            return Err(in_cscd(Asc::INCORRECT_COPY_TARGET_DEVICE_TYPE, Cscd::BLOCK_AT));
        }
        Ok(itl)
    }
}

impl<T: Transfer> Steps<'_, T> {
    async fn step(&self, lu: &LogicalUnit, step: Step, tools: &mut Tools) -> Result<(), Refusal> {
        self.running.writes_to(Some(lu.lun));
        let result = carry_out(Admitted::to(&lu.unit), &step, self, tools, &mut Tail::default()).await;
        self.running.writes_to(None);
        match result {
            Ok(()) => Ok(()),
            Err(Failure::Fault { fault: Fault::Aborted, .. }) if self.running.is_stopped() => {
                Err(Sense::new(SenseKey::COPY_ABORTED, Asc::NO_ADDITIONAL_SENSE_INFORMATION).into())
            }
            Err(failure) => Err(Site::of(&step, lu.block_size()).refusal(failure)),
        }
    }

    async fn write(
        &self,
        nexus: &Nexus,
        itl: &Rc<ItlNexus>,
        writing: &Writing,
        tools: &mut Tools,
    ) -> Result<(), Refusal> {
        let lu = &itl.lu;
        for (Part { from, offset, len }, number) in writing.parts.iter().copied().zip(0_u16..) {
            let aborted = |refusal: Refusal| copy_aborted(&refusal, number);
            pass(&DESTINATION, itl).map_err(aborted)?;
            let step = match from {
                Some((unit, at)) => {
                    let gone = || Refusal::from(aborted_by(Asc::COPY_TARGET_DEVICE_NOT_REACHABLE));
                    let source = nexus.seek(|lu| lu.unit.id == unit).ok_or_else(gone).map_err(aborted)?;
                    pass(&SOURCE, &source).map_err(aborted)?;
                    Step::Copy { from: source.lu.unit.clone(), at, offset, len }
                }
                None => Step::Fill { offset, len, pattern: Vec::new(), unmap: lu.provisioning() },
            };
            self.step(lu, step, tools).await.map_err(aborted)?;
            self.running.did(len);
        }
        if !lu.mode().write_cache && !writing.parts.is_empty() {
            self.step(lu, Step::Flush, tools).await?;
        }
        Ok(())
    }
}

impl<T: Transfer> Transfer for Steps<'_, T> {
    async fn room(&self) -> Result<(), Fault> {
        self.transfer.room().await
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.transfer.pull(offset, len).await
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        self.transfer.push(offset, data)
    }

    fn aborted(&self) -> bool {
        self.transfer.aborted() || self.running.is_stopped()
    }
}

fn aborted_by(asc: Asc) -> Sense {
    Sense::new(SenseKey::COPY_ABORTED, asc)
}

/// The byte at which one side of a segment starts: whole blocks of the disk, and within it.
fn place(lu: &LogicalUnit, end: &End, segment: &Segment, len: u64) -> Result<u64, Sense> {
    let block = u64::from(lu.block_size());
    if !u64::from(end.offset).is_multiple_of(block) || !len.is_multiple_of(block) {
        return Err(aborted_by(Asc::UNEXPECTED_INEXACT_SEGMENT).at(Within::Segment, segment.amount_at));
    }
    let start = end.lba.checked_mul(block).and_then(|start| start.checked_add(end.offset.into()));
    match start {
        Some(start) if start.checked_add(len).is_some_and(|past| past <= lu.unit.geometry.bytes()) => Ok(start),
        _ => Err(aborted_by(Asc::NO_ADDITIONAL_SENSE_INFORMATION).at(Within::Segment, end.lba_at)),
    }
}

/// What a refusal by a disk means for the copy (SPC-4 5.16.8): COPY ABORTED, with the cause and the segment.
fn copy_aborted(refusal: &Refusal, number: u16) -> Refusal {
    let sense = match refusal.sense {
        Some(sense) => Sense { key: SenseKey::COPY_ABORTED, information: None, ..sense },
        None if refusal.status == Status::RESERVATION_CONFLICT => aborted_by(Asc::THIRD_PARTY_DEVICE_FAILURE),
        // Busy: the initiator tries again.
        None => return refusal.clone(),
    };
    Sense { segment: Some(number), ..sense }.into()
}

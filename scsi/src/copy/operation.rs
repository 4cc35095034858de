//! Third-party copies, from the first segment to the last.

use super::list::{Amount, CopyList, Cscd, End, Segment};
use super::results::{CopyRequest, Running};
use super::tokens::Data;
use super::transfer::{Part, TokenWrite};
use crate::admit::{Refusal, pass};
use crate::command::Status;
use crate::fault::Site;
use crate::lu::Emulated;
use crate::nexus::{ItlNexus, Nexus};
use crate::peripheral::PeripheralType;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};

use crate::sbc::token::creator;
use crate::sense::{Asc, Sense, SenseKey, Within};
use crate::spc::designator;
use crate::target::Target;
use lunar_core::io::Fault;
use lunar_core::mem::Sg;
use lunar_core::port::Transfer;
use lunar_core::step::{Failure, FinalData, SlotContext, Step, carry_out};
use lunar_core::unit::Admitted;
use std::rc::Rc;
use std::time::Duration;

/// Admission of a copy to a source: as for reads, but pending unit attentions are left to the next command to
/// that disk.
const SOURCE: Policy = Policy {
    name: "copy source",
    clause: "SPC-4 5.16",
    code: Code::of(OpCode::THIRD_PARTY_COPY_OUT),
    effect: Effect::Read,
    admission: Admission {
        needs: None,
        forwarded: Forwarding::Device,
        attention: Gate::Passes,
        spc2: Gate::Stops,
        persistent: Persistent::WriteExclusivePasses,
        alua: Alua::Active,
        not_ready: Gate::Stops,
        write_protect: Gate::Passes,
        timeout: Timeout::Transfer,
    },
};
/// Admission of a copy to a destination: as for writes, but pending unit attentions are left to the next command.
const DESTINATION: Policy = Policy {
    name: "copy destination",
    clause: "SPC-4 5.16",
    code: Code::of(OpCode::THIRD_PARTY_COPY_OUT),
    effect: Effect::Write,
    admission: Admission {
        needs: None,
        forwarded: Forwarding::Device,
        attention: Gate::Passes,
        spc2: Gate::Stops,
        persistent: Persistent::Conflict,
        alua: Alua::Active,
        not_ready: Gate::Stops,
        write_protect: Gate::Stops,
        timeout: Timeout::Transfer,
    },
};

/// A segment that was admitted, in bytes of its disks.
struct Between {
    source: Rc<ItlNexus>,
    at: u64,
    destination: Rc<ItlNexus>,
    offset: u64,
    len: u64,
}

/// Executes the steps of a copy until the command is aborted or COPY OPERATION ABORT stops the copy.
struct Steps<'a, T> {
    running: &'a Running<'a>,
    transfer: &'a T,
}

/// A copy of EXTENDED COPY.
struct Operation<'a, T> {
    nexus: &'a Nexus,
    list: &'a CopyList,
    steps: Steps<'a, T>,
}

impl Target {
    /// Executes EXTENDED COPY and keeps its result.
    pub(crate) async fn copy<T: Transfer>(
        &self,
        nexus: &Nexus,
        manager: &Emulated,
        list: &CopyList,
        transfer: &T,
        slot: &mut SlotContext,
    ) -> Result<(), Refusal> {
        let running = nexus.copies.begin(manager.lun, list.request)?;
        let steps = Steps { running: &running, transfer };
        let result = Operation { nexus, list, steps }.run(slot).await;
        self.config.stats.copied_bytes.add(running.bytes());
        running.end(&result, manager.mode().descriptor_sense);
        result
    }

    /// Executes POPULATE TOKEN: creates a token, which RECEIVE ROD TOKEN INFORMATION returns.
    pub(crate) fn populate(
        &self,
        nexus: &Nexus,
        lu: &Emulated,
        request: CopyRequest,
        data: Data,
        inactivity: Duration,
    ) -> Result<(), Refusal> {
        nexus.copies.room(lu.lun, request)?;
        let bytes = data.bytes();
        let token = self.config.tokens.make(creator(lu), data, inactivity);
        let token = token.ok_or(Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE))?;
        nexus.copies.populated(lu.lun, request, bytes, token);
        Ok(())
    }

    /// Executes WRITE USING TOKEN and keeps its result.
    pub(crate) async fn write_token<T: Transfer>(
        &self,
        nexus: &Nexus,
        itl: &ItlNexus,
        writing: &TokenWrite,
        transfer: &T,
        slot: &mut SlotContext,
    ) -> Result<(), Refusal> {
        let lu = itl.emulated()?;
        let running = nexus.copies.begin(lu.lun, writing.request)?;
        let result = Steps { running: &running, transfer }.write(nexus, itl, writing, slot).await;
        self.config.stats.copied_bytes.add(running.bytes());
        running.end(&result, lu.mode().descriptor_sense);
        if let (Ok(()), Some(token)) = (&result, &writing.deletes) {
            self.config.tokens.delete(token);
        }
        result
    }
}

impl<T: Transfer> Operation<'_, T> {
    async fn run(&self, slot: &mut SlotContext) -> Result<(), Refusal> {
        let numbered = || self.list.segments.iter().zip(0_u16..);
        // All segments are checked before the first one is copied.
        for (segment, number) in numbered() {
            self.part(segment).map_err(|refusal| copy_aborted(&refusal, number))?;
        }
        let mut written: Vec<Rc<ItlNexus>> = Vec::new();
        for (segment, number) in numbered() {
            let aborted = |refusal: Refusal| copy_aborted(&refusal, number);
            // Checked again: a disk may have been reserved, write-protected or removed meanwhile.
            let part = self.part(segment).map_err(aborted)?;
            if part.len > 0 {
                let Between { source, at, destination, offset, len } = &part;
                let from = source.emulated()?.unit.clone();
                let step = Step::Copy { from, at: *at, offset: *offset, len: *len };
                self.steps.step(destination.emulated()?, step, slot).await.map_err(aborted)?;
                if !written.iter().any(|itl| itl.lu.lun == destination.lu.lun) {
                    written.push(part.destination.clone());
                }
            }
            self.steps.running.did(part.len);
        }
        // Like other writes, a copy is durable at its end if the write cache is disabled.
        for lu in written.iter().filter_map(|itl| itl.lu.emulated()).filter(|lu| !lu.mode().write_cache) {
            let last = self.list.segments.len().saturating_sub(1) as u16;
            self.steps.step(lu, Step::Flush, slot).await.map_err(|refusal| copy_aborted(&refusal, last))?;
        }
        Ok(())
    }

    /// The segment in bytes of its disks, if it may be copied.
    fn part(&self, segment: &Segment) -> Result<Between, Refusal> {
        let source = self.disk(&segment.source)?;
        let destination = self.disk(&segment.destination)?;
        pass(&SOURCE, &source)?;
        pass(&DESTINATION, &destination)?;
        let (from, to) = (source.emulated()?, destination.emulated()?);
        let len = match segment.amount {
            Amount::SourceBlocks(count) => u64::from(count) * u64::from(from.block_size()),
            Amount::DestinationBlocks(count) => u64::from(count) * u64::from(to.block_size()),
            Amount::Bytes(count) => count.into(),
        };
        let at = place(from, &segment.source, segment, len)?;
        let offset = place(to, &segment.destination, segment, len)?;
        Ok(Between { source, at, destination, offset, len })
    }

    /// The disk of one side of a segment: a LUN of this nexus, with the device type and block length of its CSCD
    /// descriptor.
    fn disk(&self, end: &End) -> Result<Rc<ItlNexus>, Sense> {
        let index = usize::from(end.cscd);
        let Some(cscd) = self.list.cscds.get(index) else {
            return Err(aborted_by(Asc::UNREACHABLE_COPY_TARGET).at(Within::Segment, end.cscd_at));
        };
        let in_cscd = |asc, at| aborted_by(asc).at(Within::List, self.list.header + index * size_of::<Cscd>() + at);
        if cscd.device_type() != PeripheralType::DISK {
            return Err(in_cscd(Asc::INCORRECT_COPY_TARGET_DEVICE_TYPE, Cscd::DEVICE_AT));
        }
        let found = cscd
            .designator()
            .and_then(|(header, value)| self.nexus.seek(|lu| designator::is_named(lu.identity(), header, value)));
        let Some(itl) = found else {
            return Err(in_cscd(Asc::COPY_TARGET_DEVICE_NOT_REACHABLE, Cscd::DESIGNATOR_AT));
        };
        let disk = itl.lu.emulated().filter(|lu| lu.device_type == PeripheralType::DISK);
        let Some(disk) = disk else {
            return Err(in_cscd(Asc::INCORRECT_COPY_TARGET_DEVICE_TYPE, Cscd::DEVICE_AT));
        };
        if cscd.block_size() != disk.block_size() {
            return Err(in_cscd(Asc::INCORRECT_COPY_TARGET_DEVICE_TYPE, Cscd::BLOCK_AT));
        }
        Ok(itl)
    }
}

impl<T: Transfer> Steps<'_, T> {
    async fn step(&self, lu: &Emulated, step: Step, slot: &mut SlotContext) -> Result<(), Refusal> {
        self.running.writes_to(Some(lu.lun));
        let result = carry_out(Admitted::to(&lu.unit), &step, self, slot, &mut FinalData::default()).await;
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
        itl: &ItlNexus,
        writing: &TokenWrite,
        slot: &mut SlotContext,
    ) -> Result<(), Refusal> {
        let lu = itl.emulated()?;
        for (Part { from, offset, len }, number) in writing.parts.iter().copied().zip(0_u16..) {
            let aborted = |refusal: Refusal| copy_aborted(&refusal, number);
            pass(&DESTINATION, itl).map_err(aborted)?;
            let step = match from {
                Some((unit, at)) => {
                    let gone = || Refusal::from(aborted_by(Asc::COPY_TARGET_DEVICE_NOT_REACHABLE));
                    let source = nexus.seek(|lu| lu.id() == unit).ok_or_else(gone).map_err(aborted)?;
                    pass(&SOURCE, &source).map_err(aborted)?;
                    Step::Copy { from: source.emulated()?.unit.clone(), at, offset, len }
                }
                None => Step::Fill { offset, len, pattern: Vec::new(), unmap: lu.provisioning() },
            };
            self.step(lu, step, slot).await.map_err(aborted)?;
            self.running.did(len);
        }
        if !lu.mode().write_cache && !writing.parts.is_empty() {
            self.step(lu, Step::Flush, slot).await?;
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

/// The first byte of one side of a segment. The side must consist of whole blocks and lie within the disk.
fn place(lu: &Emulated, end: &End, segment: &Segment, len: u64) -> Result<u64, Sense> {
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

/// The refusal of a copy by a disk as sense data of the copy (SPC-4 5.16.8): COPY ABORTED with cause and segment
/// number.
fn copy_aborted(refusal: &Refusal, number: u16) -> Refusal {
    let sense = match refusal.sense {
        Some(sense) => Sense { key: SenseKey::COPY_ABORTED, information: None, ..sense },
        None if refusal.status == Status::RESERVATION_CONFLICT => aborted_by(Asc::THIRD_PARTY_DEVICE_FAILURE),
        // BUSY: the initiator repeats the command.
        None => return refusal.clone(),
    };
    Sense { segment: Some(number), ..sense }.into()
}

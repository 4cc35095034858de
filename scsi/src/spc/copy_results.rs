//! RECEIVE COPY STATUS, FAILURE DETAILS and OPERATING PARAMETERS, RECEIVE ROD TOKEN INFORMATION: results and limits of
//! third-party copies.

use crate::command::Status;
use crate::context::Context;
use crate::copy::list::{CSCDS_MAX, DESCRIPTOR_TYPES, DESCRIPTORS_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENTS_MAX};
use crate::copy::results::{COPIES_MAX, Record, State};
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::Sense;
use lunar_core::wire::{Writer, be};
use std::mem::offset_of;
use std::rc::Rc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Admission of all these commands.
const ASKS: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Refused,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Conflict,
    alua: Alua::Active,
    not_ready: Gate::Passes,
    write_protect: Gate::Passes,
    timeout: Timeout::Quick,
};

/// The CDB of all these commands. The list identifier has one byte, four bytes, or is reserved.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Receive<const ACTION: u8> {
    opcode: u8,
    action: u8,
    id: [u8; 4],
    reserved: [u8; 4],
    allocation: be::U32,
    reserved2: u8,
    control: u8,
}

/// RECEIVE COPY STATUS (LID1)
pub type ReceiveCopyStatusLid1 = Receive<0x00>;
/// RECEIVE COPY OPERATING PARAMETERS
pub type ReceiveCopyOperatingParameters = Receive<0x03>;
/// RECEIVE COPY FAILURE DETAILS (LID1)
pub type ReceiveCopyFailureDetailsLid1 = Receive<0x04>;
/// RECEIVE COPY STATUS (LID4)
pub type ReceiveCopyStatusLid4 = Receive<0x05>;
/// RECEIVE ROD TOKEN INFORMATION
pub type ReceiveRodTokenInformation = Receive<0x07>;
/// REPORT ALL ROD TOKENS
pub type ReportAllRodTokens = Receive<0x08>;

impl<const ACTION: u8> Receive<ACTION> {
    /// The usage mask; `id` is the one of the list identifier.
    const fn usage(id: [u8; 4]) -> Self {
        Self {
            opcode: OpCode::THIRD_PARTY_COPY_IN.0,
            action: ACTION,
            id,
            reserved: [0; 4],
            allocation: be::U32::MAX_VALUE,
            reserved2: 0,
            control: 0,
        }
    }

    const fn policy(name: &'static str, clause: &'static str) -> Policy {
        let code = Code::with_action(OpCode::THIRD_PARTY_COPY_IN, ACTION);
        Policy { name, clause, code, effect: Effect::None, admission: ASKS }
    }

    /// The copy with this list identifier that the nexus sent to this logical unit.
    fn record(&self, cx: &Context<'_>, id: u32) -> Result<Rc<Record>, Sense> {
        let record = cx.nexus.copies.find(cx.emulated()?.lun, id);
        record.ok_or(Sense::in_cdb(offset_of!(Self, id)))
    }
}

/// Writes the length of the data after the first four bytes into these.
fn close(out: &mut Writer<'_>) {
    // An answer is shorter than 1 MiB.
    let length = (out.written() - 4) as u32;
    out.patch(0, &length.to_be_bytes());
}

/// TRANSFER COUNT UNITS and TRANSFER COUNT, in the smallest unit in which the count fits 32 bits.
fn in_units(bytes: u64) -> (u8, u32) {
    (0..6).find_map(|unit| Some((unit, u32::try_from(bytes >> (10 * unit)).ok()?))).unwrap_or((6, u32::MAX))
}

impl CommandType for ReceiveCopyStatusLid1 {
    const POLICY: Policy = Self::policy("RECEIVE COPY STATUS (LID1)", "SPC-4 6.27");
    const USAGE: Self = Self::usage([0xff, 0, 0, 0]);
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let record = self.record(cx, self.id[0].into())?;
        let state = match record.state() {
            State::Running => 0,
            State::Good => 1,
            State::Failed(_) => 2,
        };
        let (unit, count) = in_units(record.bytes());
        cx.out.zeros(4).bytes(&[state]).bytes(&record.segments().to_be_bytes());
        cx.out.bytes(&[unit]).bytes(&count.to_be_bytes());
        close(&mut cx.out);
        Ok(Plan::Answer)
    }
}

impl CommandType for ReceiveCopyFailureDetailsLid1 {
    const POLICY: Policy = Self::policy("RECEIVE COPY FAILURE DETAILS (LID1)", "SPC-4 6.24");
    const USAGE: Self = Self::usage([0xff, 0, 0, 0]);
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let record = self.record(cx, self.id[0].into())?;
        let State::Failed(status) = record.state() else { return Err(Sense::in_cdb(offset_of!(Self, id))) };
        let sense = record.sense();
        cx.out.zeros(56).bytes(&[status.0, 0]).bytes(&(sense.len() as u16).to_be_bytes()).bytes(&sense);
        close(&mut cx.out);
        Ok(Plan::Answer)
    }
}

impl CommandType for ReceiveCopyStatusLid4 {
    const POLICY: Policy = Self::policy("RECEIVE COPY STATUS (LID4)", "SPC-4 6.26");
    const USAGE: Self = Self::usage([0xff; 4]);
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let record = self.record(cx, u32::from_be_bytes(self.id))?;
        write_status(&mut cx.out, &record, BYTES, record.bytes());
        close(&mut cx.out);
        Ok(Plan::Answer)
    }
}

/// TRANSFER COUNT UNITS: bytes.
const BYTES: u8 = 0x00;
/// TRANSFER COUNT UNITS: logical blocks.
const BLOCKS: u8 = 0xf1;

/// Writes the part that RECEIVE COPY STATUS (LID4) and RECEIVE ROD TOKEN INFORMATION share (SPC-4 6.26.2).
fn write_status(out: &mut Writer<'_>, record: &Record, units: u8, count: u64) {
    /// ESTIMATED STATUS UPDATE DELAY: unknown.
    const UNKNOWN_DELAY: u32 = 0xffff_fffe;
    let (state, status) = match record.state() {
        State::Running => (0x11, Status::GOOD),
        State::Good => (0x01, Status::GOOD),
        State::Failed(Status::TASK_ABORTED) => (0x60, Status::TASK_ABORTED),
        State::Failed(status) => (0x02, status),
    };
    let sense = record.sense();
    // SENSE DATA FIELD LENGTH and SENSE DATA LENGTH are equal. Sense data is far shorter than 256 bytes.
    let length = sense.len() as u8;
    out.zeros(4).bytes(&[record.request.action, state, 0, 0]).bytes(&UNKNOWN_DELAY.to_be_bytes());
    out.bytes(&[status.0, length, length, units]).bytes(&count.to_be_bytes());
    out.bytes(&record.segments().to_be_bytes()).zeros(6).bytes(&sense);
}

impl CommandType for ReceiveRodTokenInformation {
    const POLICY: Policy = Self::policy("RECEIVE ROD TOKEN INFORMATION", "SPC-4 6.29");
    const USAGE: Self = Self::usage([0xff; 4]);
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let record = self.record(cx, u32::from_be_bytes(self.id))?;
        let block = u64::from(cx.emulated()?.block_size());
        write_status(&mut cx.out, &record, BLOCKS, record.bytes() / block);
        match &record.token {
            Some(token) => {
                // One ROD token descriptor: its identifier and the token.
                let length = (size_of::<u16>() + size_of_val(&**token)) as u32;
                cx.out.bytes(&length.to_be_bytes()).zeros(size_of::<u16>()).put(&**token);
            }
            None => {
                cx.out.zeros(size_of::<u32>());
            }
        }
        close(&mut cx.out);
        Ok(Plan::Answer)
    }
}

impl CommandType for ReportAllRodTokens {
    const POLICY: Policy = Self::policy("REPORT ALL ROD TOKENS", "SPC-4 6.31");
    const USAGE: Self = Self::usage([0; 4]);
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let heads = cx.target.config().tokens.of_unit(cx.emulated()?.unit.id);
        cx.out.zeros(8);
        for head in &heads {
            cx.out.bytes(head);
        }
        close(&mut cx.out);
        Ok(Plan::Answer)
    }
}

impl CommandType for ReceiveCopyOperatingParameters {
    const POLICY: Policy = Self::policy("RECEIVE COPY OPERATING PARAMETERS", "SPC-4 6.25");
    const USAGE: Self = Self::usage([0; 4]);
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        /// SNLID: copies without list identifier are supported.
        const NO_IDENTIFIER: u8 = 0x01;
        let granularity = cx.emulated()?.block_size().ilog2() as u8;
        let out = &mut cx.out;
        out.zeros(4).bytes(&[NO_IDENTIFIER, 0, 0, 0]);
        out.bytes(&(CSCDS_MAX as u16).to_be_bytes()).bytes(&(SEGMENTS_MAX as u16).to_be_bytes());
        out.bytes(&(DESCRIPTORS_BYTES_MAX as u32).to_be_bytes()).bytes(&SEGMENT_BYTES_MAX.to_be_bytes());
        // No inline data, no held data, no stream devices; then two reserved bytes.
        out.zeros(4 + 4 + 4 + 2);
        out.bytes(&(COPIES_MAX as u16).to_be_bytes()).bytes(&[COPIES_MAX as u8, granularity, 0, 0]);
        out.zeros(3).bytes(&[DESCRIPTOR_TYPES.len() as u8]).bytes(&DESCRIPTOR_TYPES);
        close(out);
        Ok(Plan::Answer)
    }
}

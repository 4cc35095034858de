//! EXTENDED COPY and COPY OPERATION ABORT.

use crate::context::Context;
use crate::copy::list::{CopyList, LIST_BYTES_MAX};
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::{Asc, Sense};
use lunar_core::wire::be;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Admission to the logical unit that receives the command, which need be neither source nor destination. Sources and
/// destinations are admitted by [`crate::copy::operation`].
const MANAGES: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Refused,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Conflict,
    alua: Alua::Active,
    not_ready: Gate::Stops,
    write_protect: Gate::Passes,
    timeout: Timeout::Long,
};

/// EXTENDED COPY with a list identifier of either length.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ExtendedCopy<const ACTION: u8> {
    opcode: u8,
    action: u8,
    reserved: [u8; 8],
    length: be::U32,
    reserved2: u8,
    control: u8,
}

/// EXTENDED COPY (LID1)
pub type ExtendedCopyLid1 = ExtendedCopy<0x00>;
/// EXTENDED COPY (LID4)
pub type ExtendedCopyLid4 = ExtendedCopy<0x01>;

impl<const ACTION: u8> ExtendedCopy<ACTION> {
    const MASK: Self = Self {
        opcode: OpCode::THIRD_PARTY_COPY_OUT.0,
        action: ACTION,
        reserved: [0; 8],
        length: be::U32::MAX_VALUE,
        reserved2: 0,
        control: 0,
    };

    /// Bytes of the list to pull, limited to the length of the longest valid list.
    fn pulled(&self) -> u32 {
        self.length.get().min(LIST_BYTES_MAX as u32)
    }

    fn plan(&self, list: &[u8], parse: fn(&[u8], u8) -> Result<CopyList, Sense>) -> Result<Plan, Sense> {
        match self.length.get() as usize {
            0 => Ok(Plan::Done),
            length if length > list.len() => Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)),
            _ => Ok(Plan::Copy(Box::new(parse(list, ACTION)?))),
        }
    }
}

impl CommandType for ExtendedCopyLid1 {
    const POLICY: Policy = Policy {
        name: "EXTENDED COPY (LID1)",
        clause: "SPC-4 6.5",
        code: Code::with_action(OpCode::THIRD_PARTY_COPY_OUT, 0x00),
        effect: Effect::None,
        admission: MANAGES,
    };
    const USAGE: Self = Self::MASK;
    const DATA: Data<Self> = Data::List(Self::pulled);

    fn run(&self, _cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        self.plan(list, CopyList::lid1)
    }
}

impl CommandType for ExtendedCopyLid4 {
    const POLICY: Policy = Policy {
        name: "EXTENDED COPY (LID4)",
        clause: "SPC-4 6.4",
        code: Code::with_action(OpCode::THIRD_PARTY_COPY_OUT, 0x01),
        effect: Effect::None,
        admission: MANAGES,
    };
    const USAGE: Self = Self::MASK;
    const DATA: Data<Self> = Data::List(Self::pulled);

    fn run(&self, _cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        self.plan(list, CopyList::lid4)
    }
}

/// COPY OPERATION ABORT
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CopyOperationAbort {
    opcode: u8,
    action: u8,
    id: be::U32,
    reserved: [u8; 9],
    control: u8,
}

const ABORT_ACTION: u8 = 0x1c;

impl CommandType for CopyOperationAbort {
    const POLICY: Policy = Policy {
        name: "COPY OPERATION ABORT",
        clause: "SPC-4 6.3",
        code: Code::with_action(OpCode::THIRD_PARTY_COPY_OUT, ABORT_ACTION),
        effect: Effect::None,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::Refused,
            attention: Gate::Stops,
            // Only copies of the same nexus are found.
            spc2: Gate::Passes,
            persistent: Persistent::Passes,
            alua: Alua::Active,
            not_ready: Gate::Passes,
            write_protect: Gate::Passes,
            timeout: Timeout::Transfer,
        },
    };
    const USAGE: Self = Self {
        opcode: OpCode::THIRD_PARTY_COPY_OUT.0,
        action: ABORT_ACTION,
        id: be::U32::MAX_VALUE,
        reserved: [0; 9],
        control: 0,
    };
    const DATA: Data<Self> = Data::None;

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let id = self.id.get();
        match cx.nexus.copies.runs(cx.emulated()?.lun, id) {
            true => Ok(Plan::StopCopy(id)),
            false => Err(Sense::in_cdb(offset_of!(Self, id))),
        }
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;

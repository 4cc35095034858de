//! POPULATE TOKEN and WRITE USING TOKEN: a copy in two commands, which different initiators may send.

use super::block_range::GROUP;
use crate::context::Context;
use crate::copy::list::Cscd;
use crate::copy::results::CopyRequest;
use crate::copy::tokens::{Data as TokenData, Refused};
use crate::copy::transfer::{LIST_BYTES_MAX, Populate, TokenWrite, Write};
use crate::lu::Emulated;
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::{Asc, Sense, Within};
use lunar_core::wire::be;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A CDB with a list identifier and a parameter list.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TokenCommand<const ACTION: u8> {
    opcode: u8,
    action: u8,
    reserved: [u8; 4],
    id: be::U32,
    length: be::U32,
    group: u8,
    control: u8,
}

/// POPULATE TOKEN
pub type PopulateToken = TokenCommand<0x10>;
/// WRITE USING TOKEN
pub type WriteUsingToken = TokenCommand<0x11>;

impl<const ACTION: u8> TokenCommand<ACTION> {
    const MASK: Self = Self {
        opcode: OpCode::THIRD_PARTY_COPY_OUT.0,
        action: ACTION,
        reserved: [0; 4],
        id: be::U32::MAX_VALUE,
        length: be::U32::MAX_VALUE,
        group: GROUP,
        control: 0,
    };
    const CODE: Code = Code::with_action(OpCode::THIRD_PARTY_COPY_OUT, ACTION);

    fn request(&self) -> CopyRequest {
        CopyRequest { action: ACTION, id: Some(self.id.get()), keeps: true }
    }

    /// Bytes of the list to pull, limited to the length of the longest valid list.
    fn pulled(&self) -> u32 {
        self.length.get().min(LIST_BYTES_MAX as u32)
    }

    /// Whether there is a list. A list of length zero requests no copy.
    fn has(&self, list: &[u8]) -> Result<bool, Sense> {
        match self.length.get() as usize {
            0 => Ok(false),
            length if length > list.len() => Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)),
            _ => Ok(true),
        }
    }
}

impl CommandType for PopulateToken {
    const POLICY: Policy = Policy {
        name: "POPULATE TOKEN",
        clause: "SBC-3 5.7",
        code: Self::CODE,
        effect: Effect::Read,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::Refused,
            attention: Gate::Stops,
            spc2: Gate::Stops,
            persistent: Persistent::WriteExclusivePasses,
            alua: Alua::Active,
            not_ready: Gate::Stops,
            write_protect: Gate::Passes,
            timeout: Timeout::Transfer,
        },
    };
    const USAGE: Self = Self::MASK;
    const DATA: Data<Self> = Data::List(Self::pulled);

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.emulated()?;
        if !self.has(list)? {
            return Ok(Plan::Done);
        }
        let Populate { ranges, inactivity } = Populate::parse(list, lu)?;
        Ok(Plan::Populate(self.request(), Box::new(TokenData { unit: lu.unit.id, ranges: ranges.into() }), inactivity))
    }
}

impl CommandType for WriteUsingToken {
    const POLICY: Policy = Policy {
        name: "WRITE USING TOKEN",
        clause: "SBC-3 5.46",
        code: Self::CODE,
        effect: Effect::Write,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::Refused,
            attention: Gate::Stops,
            spc2: Gate::Stops,
            persistent: Persistent::Conflict,
            alua: Alua::Active,
            not_ready: Gate::Stops,
            write_protect: Gate::Stops,
            timeout: Timeout::Long,
        },
    };
    const USAGE: Self = Self::MASK;
    const DATA: Data<Self> = Data::List(Self::pulled);

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        if !self.has(list)? {
            return Ok(Plan::Done);
        }
        let write = Write::parse(list, cx.emulated()?)?;
        let data = if write.token.is_zero() { None } else { Some(stands_for(cx, &write)?) };
        let parts = write.parts(data.as_ref())?;
        let deletes = write.deletes.then_some(write.token);
        Ok(Plan::Write(Box::new(TokenWrite { request: self.request(), deletes, parts })))
    }
}

/// The data that a token represents, if the nexus has a LUN of its unit.
fn stands_for(cx: &Context<'_>, write: &Write) -> Result<TokenData, Sense> {
    let refused = |why| {
        let asc = match why {
            Refused::Type => Asc::UNSUPPORTED_TOKEN_TYPE,
            Refused::Length => Asc::INVALID_TOKEN_LENGTH,
            Refused::Unknown => Asc::TOKEN_UNKNOWN,
            Refused::Corrupt => Asc::TOKEN_CORRUPT,
        };
        Sense::illegal(asc).at(Within::List, Write::TOKEN_AT)
    };
    let data = cx.target.config().tokens.find(&write.token).map_err(refused)?;
    match cx.nexus.seek(|lu| lu.id() == data.unit) {
        Some(_) => Ok(data),
        // The same error as for an unknown token, so that the nexus learns nothing of other units.
        None => Err(refused(Refused::Unknown)),
    }
}

/// The CREATOR LOGICAL UNIT DESCRIPTOR of a token.
pub(crate) fn creator(lu: &Emulated) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(Cscd::of(lu).as_bytes());
    bytes
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;

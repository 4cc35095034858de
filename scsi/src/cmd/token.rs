//! POPULATE TOKEN and WRITE USING TOKEN: a copy in two steps, between which the token may go from host to host.

use super::block::{GROUP, LONG_WRITES, READS};
use crate::context::Context;
use crate::copy::list::Cscd;
use crate::copy::results::Ask;
use crate::copy::tokens::{Data as TokenData, Refused};
use crate::copy::transfer::{LIST_BYTES_MAX, Populate, Write, Writing};
use crate::plan::Plan;
use crate::sense::{Asc, Sense, Within};
use crate::table::{Code, CommandType, Data, Effect, OpCode, Policy};
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

    fn ask(&self) -> Ask {
        Ask { action: ACTION, id: Some(self.id.get()), keeps: true }
    }

    /// Bytes of the list that are pulled: no more than any list may have.
    fn pulled(&self) -> u32 {
        self.length.get().min(LIST_BYTES_MAX as u32)
    }

    /// Whether the list is there: a length of zero asks for nothing.
    fn has(&self, list: &[u8]) -> Result<bool, Sense> {
        match self.length.get() as usize {
            0 => Ok(false),
            length if length > list.len() => Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)),
            _ => Ok(true),
        }
    }
}

impl CommandType for PopulateToken {
    const POLICY: Policy =
        Policy { name: "POPULATE TOKEN", clause: "SBC-3 5.7", code: Self::CODE, effect: Effect::Read, gates: READS };
    const USAGE: Self = Self::MASK;
    const DATA: Data<Self> = Data::List(Self::pulled);

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.disk()?;
        if !self.has(list)? {
            return Ok(Plan::Done);
        }
        let Populate { ranges, inactivity } = Populate::parse(list, lu)?;
        Ok(Plan::Populate(self.ask(), Box::new(TokenData { unit: lu.unit.id, ranges: ranges.into() }), inactivity))
    }
}

impl CommandType for WriteUsingToken {
    const POLICY: Policy = Policy {
        name: "WRITE USING TOKEN",
        clause: "SBC-3 5.46",
        code: Self::CODE,
        effect: Effect::Write,
        gates: LONG_WRITES,
    };
    const USAGE: Self = Self::MASK;
    const DATA: Data<Self> = Data::List(Self::pulled);

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        if !self.has(list)? {
            return Ok(Plan::Done);
        }
        let write = Write::parse(list, cx.disk()?)?;
        let data = if write.token.is_zero() { None } else { Some(stands_for(cx, &write)?) };
        let parts = write.parts(data.as_ref())?;
        let deletes = write.deletes.then_some(write.token);
        Ok(Plan::Write(Box::new(Writing { ask: self.ask(), deletes, parts })))
    }
}

/// What a token stands for, if this nexus sees it.
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
    match cx.nexus.seek(|lu| lu.unit.id == data.unit) {
        Some(_) => Ok(data),
        // Not more than one who made it up is told.
        None => Err(refused(Refused::Unknown)),
    }
}

/// The logical unit that makes a token, as the token has it.
pub(crate) fn creator(lu: &crate::lu::LogicalUnit) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(Cscd::of(lu).as_bytes());
    bytes
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;

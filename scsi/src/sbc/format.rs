//! FORMAT UNIT and SANITIZE.

use crate::context::Context;
use crate::lu::Emulated;
use crate::plan::Plan;
use crate::policy::{
    Admission, Alua, Capability, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, SERVICE_ACTION_BITS,
    Timeout,
};
use crate::row::{CommandType, Data};
use crate::sbc::block_range::THIN;
use crate::sense::{Asc, Sense};
use lunar_core::protection::Kind;
use lunar_core::wire::be;
use lunar_unit::MediumState;
use lunar_unit::rewrite::request::{Pass, Rewrite, RewriteKind};
use lunar_unit::rewrite::task::Until;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The admission of commands that rewrite a medium.
const fn rewrites(needs: Option<&'static Capability>) -> Admission {
    Admission {
        needs,
        forwarded: Forwarding::Refused,
        attention: Gate::Stops,
        spc2: Gate::Stops,
        persistent: Persistent::Conflict,
        alua: Alua::Active,
        not_ready: Gate::Stops,
        write_protect: Gate::Stops,
        timeout: Timeout::Long,
    }
}

/// FORMAT UNIT: afterwards all blocks are zeroes, with the requested protection type. Other block lengths are not
/// supported.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FormatUnit {
    opcode: u8,
    flags: u8,
    vendor: u8,
    obsolete: [u8; 2],
    control: u8,
}

/// FMTPINFO: the protection type after the format.
const PROTECTION_INFORMATION: u8 = 0xc0;
/// LONGLIST: the long header.
const LONG_LIST: u8 = 0x20;
/// FMTDATA: there is a parameter list.
const FORMAT_DATA: u8 = 0x10;
/// CMPLST and DEFECT LIST FORMAT, which have no meaning for empty lists.
const DEFECTS: u8 = 0x08 | 0x07;
/// Parameter list: FOV, DPRY, DCRT, STPF. There is no certification, and there are no defect lists.
const OPTIONS: u8 = 0x80 | 0x40 | 0x20 | 0x10;
/// Parameter list: FOV.
const OPTIONS_VALID: u8 = 0x80;
/// Parameter list: IMMED.
const IMMEDIATE_FORMAT: u8 = 0x02;

/// The short header of the parameter list (SBC-3 5.3.2.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ShortHeader {
    protection: u8,
    flags: u8,
    defects: be::U16,
}

/// The long header of the parameter list (SBC-3 5.3.2.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LongHeader {
    protection: u8,
    flags: u8,
    reserved: u8,
    interval: u8,
    defects: be::U32,
}

/// PROTECTION FIELD USAGE of the parameter list.
const FIELD_USAGE: u8 = 0x07;

/// The protection type after FORMAT UNIT (SBC-3 table 39): type 0 in any case for a unit without protection
/// information.
fn kind(lu: &Emulated, information: u8, usage: u8) -> Result<Kind, Sense> {
    if information != 0 && lu.unit.protection.is_none() {
        return Err(Sense::bit_in_cdb(offset_of!(FormatUnit, flags), 7));
    }
    match (information, usage) {
        (0b00, 0) => Ok(Kind::None),
        (0b10, 0) => Ok(Kind::One),
        (0b11, 0) => Ok(Kind::Two),
        (0b11, 1) => Ok(Kind::Three),
        (0b01, _) => Err(Sense::bit_in_cdb(offset_of!(FormatUnit, flags), 7)),
        _ => Err(Sense::bit_in_list(offset_of!(ShortHeader, protection), 2)),
    }
}

/// The parameter list: PROTECTION FIELD USAGE, and IMMED.
fn listed(list: &[u8], is_long: bool) -> Result<(u8, bool), Sense> {
    const SHORT: Sense = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    let (protection, flags, defects_at, defects) = if is_long {
        let (header, _) = LongHeader::ref_from_prefix(list).map_err(|_| SHORT)?;
        if header.interval != 0 {
            return Err(Sense::in_list(offset_of!(LongHeader, interval)));
        }
        (header.protection, header.flags, offset_of!(LongHeader, defects), header.defects.get())
    } else {
        let (header, _) = ShortHeader::ref_from_prefix(list).map_err(|_| SHORT)?;
        (header.protection, header.flags, offset_of!(ShortHeader, defects), header.defects.get().into())
    };
    if protection & !FIELD_USAGE != 0 {
        return Err(Sense::in_list(offset_of!(ShortHeader, protection)));
    }
    let allowed = if flags & OPTIONS_VALID == 0 { 0 } else { OPTIONS };
    let extra = flags & !(allowed | IMMEDIATE_FORMAT);
    if let Some(bit) = extra.checked_ilog2() {
        return Err(Sense::bit_in_list(offset_of!(ShortHeader, flags), bit as u8));
    }
    if defects != 0 {
        return Err(Sense::in_list(defects_at));
    }
    Ok((protection, flags & IMMEDIATE_FORMAT != 0))
}

/// The plan of a rewrite; if `is_immediate`, the command ends when it has begun.
fn plan(kind: RewriteKind, passes: Vec<Pass>, is_immediate: bool) -> Plan {
    let until = if is_immediate { Until::Begun } else { Until::Ended };
    Plan::Rewrite(Box::new((Rewrite { kind, passes }, until)))
}

/// All zeroes; the space is deallocated if that is allowed.
fn zeroes(lu: &Emulated) -> Vec<Pass> {
    vec![Pass { pattern: Vec::new(), unmap: lu.provisioning() }]
}

impl CommandType for FormatUnit {
    const POLICY: Policy = Policy {
        name: "FORMAT UNIT",
        clause: "SBC-3 5.3",
        code: Code::of(OpCode::FORMAT_UNIT),
        effect: Effect::Rewrite,
        admission: rewrites(None),
    };
    const USAGE: Self = Self {
        opcode: OpCode::FORMAT_UNIT.0,
        flags: PROTECTION_INFORMATION | LONG_LIST | FORMAT_DATA | DEFECTS,
        vendor: 0,
        obsolete: [0; 2],
        control: 0,
    };
    const DATA: Data<Self> = Data::List(|cdb| match (cdb.flags & FORMAT_DATA != 0, cdb.flags & LONG_LIST != 0) {
        (false, _) => 0,
        (true, false) => size_of::<ShortHeader>() as u32,
        (true, true) => size_of::<LongHeader>() as u32,
    });

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.emulated()?;
        let (usage, immediate) = match self.flags & FORMAT_DATA != 0 {
            true => listed(list, self.flags & LONG_LIST != 0)?,
            false => (0, false),
        };
        let protection = Some(kind(lu, self.flags >> PROTECTION_INFORMATION.trailing_zeros(), usage)?);
        Ok(plan(RewriteKind::Format { protection }, zeroes(lu), immediate))
    }
}

/// SANITIZE, one type per service action.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Sanitize<const ACTION: u8> {
    opcode: u8,
    flags: u8,
    reserved: [u8; 5],
    length: be::U16,
    control: u8,
}

/// SANITIZE, OVERWRITE
pub type Overwrite = Sanitize<0x01>;
/// SANITIZE, BLOCK ERASE
pub type BlockErase = Sanitize<0x02>;
/// SANITIZE, EXIT FAILURE MODE
pub type ExitFailureMode = Sanitize<0x1f>;

/// Byte 1: IMMED.
const IMMEDIATE: u8 = 0x80;
/// Byte 1: AUSE, the state after a failure may be left without another SANITIZE.
const UNRESTRICTED_EXIT: u8 = 0x20;
/// The parameter list of OVERWRITE: INVERT, every second pass is the complement.
const INVERT: u8 = 0x80;
/// The parameter list of OVERWRITE: OVERWRITE COUNT.
const COUNT: u8 = 0x1f;

/// The parameter list of OVERWRITE, without the pattern that follows (SBC-3 5.24.2.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct OverwriteHeader {
    flags: u8,
    reserved: u8,
    length: be::U16,
}

impl<const ACTION: u8> Sanitize<ACTION> {
    const CODE: Code = Code::with_action(OpCode::SANITIZE, ACTION);

    const fn usage(flags: u8, length: be::U16) -> Self {
        assert!(ACTION & !SERVICE_ACTION_BITS == 0);
        Self { opcode: OpCode::SANITIZE.0, flags: flags | ACTION, reserved: [0; 5], length, control: 0 }
    }

    fn plan(&self, passes: Vec<Pass>) -> Plan {
        let kind = RewriteKind::Sanitize { can_exit: self.flags & UNRESTRICTED_EXIT != 0 };
        plan(kind, passes, self.flags & IMMEDIATE != 0)
    }
}

impl CommandType for Overwrite {
    const POLICY: Policy = Policy {
        name: "SANITIZE (OVERWRITE)",
        clause: "SBC-3 5.24",
        code: Self::CODE,
        effect: Effect::Rewrite,
        admission: rewrites(None),
    };
    const USAGE: Self = Self::usage(IMMEDIATE | UNRESTRICTED_EXIT, be::U16::MAX_VALUE);
    const DATA: Data<Self> = Data::List(|cdb| cdb.length.get().into());

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        let block = cx.emulated()?.block_size() as usize;
        let length = usize::from(self.length.get());
        // An error in the list is reported as an error in the CDB: initiators expect that.
        const WRONG: Sense = Sense::in_cdb(offset_of!(Overwrite, length));
        if length <= size_of::<OverwriteHeader>() || length > size_of::<OverwriteHeader>() + block {
            return Err(WRONG);
        }
        let list = list.get(..length).ok_or(const { Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR) })?;
        let (header, pattern) = OverwriteHeader::ref_from_prefix(list).map_err(|_| WRONG)?;
        let count = header.flags & COUNT;
        let is_known = header.flags & !(INVERT | COUNT) == 0 && header.reserved == 0;
        if !is_known || count == 0 || usize::from(header.length.get()) != pattern.len() {
            return Err(WRONG);
        }
        let pattern: Vec<u8> = pattern.iter().copied().cycle().take(block).collect();
        let complement: Vec<u8> = pattern.iter().map(|byte| !byte).collect();
        let inverts = |pass| header.flags & INVERT != 0 && pass % 2 == 1;
        let of = |pass| if inverts(pass) { &complement } else { &pattern };
        Ok(self.plan((0..count).map(|pass| Pass { pattern: of(pass).clone(), unmap: false }).collect()))
    }
}

impl CommandType for BlockErase {
    const POLICY: Policy = Policy {
        name: "SANITIZE (BLOCK ERASE)",
        clause: "SBC-3 5.24",
        code: Self::CODE,
        effect: Effect::Rewrite,
        admission: rewrites(Some(&THIN)),
    };
    const USAGE: Self = Self::usage(IMMEDIATE | UNRESTRICTED_EXIT, be::U16::ZERO);
    const DATA: Data<Self> = Data::None;

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        Ok(self.plan(zeroes(cx.emulated()?)))
    }
}

impl CommandType for ExitFailureMode {
    const POLICY: Policy = Policy {
        name: "SANITIZE (EXIT FAILURE MODE)",
        clause: "SBC-3 5.24",
        code: Self::CODE,
        effect: Effect::Rewrite,
        admission: rewrites(None),
    };
    const USAGE: Self = Self::usage(0, be::U16::ZERO);
    const DATA: Data<Self> = Data::None;

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        match cx.emulated()?.medium() {
            MediumState::SanitizeFailed { can_exit: true } => Ok(Plan::ExitFailureMode),
            MediumState::SanitizeFailed { can_exit: false } => Err(Sense::bit_in_cdb(1, 4)),
            _ => Ok(Plan::Done),
        }
    }
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;

//! The table of commands: one type per command, one row per type, and all that derives from the rows.
//!
//! A command is a type: its CDB as a struct of big-endian fields. Its one `impl` of [`CommandType`] says all
//! there is to say of it; nothing has a default, so nothing can be forgotten.

use crate::cmd;
use crate::context::Context;
use crate::plan::Plan;
use crate::sense::{Asc, Sense};
use lunar_core::codes;
use lunar_core::medium::MediumKind;
use lunar_core::wire::{Writer, be};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// Operation codes (SPC-4 annex E).
    pub struct OpCode(u8) {
        TEST_UNIT_READY = 0x00, REQUEST_SENSE = 0x03, FORMAT_UNIT = 0x04, READ_6 = 0x08, WRITE_6 = 0x0a,
        INQUIRY = 0x12, MODE_SELECT_6 = 0x15, RESERVE_6 = 0x16, RELEASE_6 = 0x17, MODE_SENSE_6 = 0x1a,
        START_STOP_UNIT = 0x1b, PREVENT_ALLOW_MEDIUM_REMOVAL = 0x1e, READ_CAPACITY_10 = 0x25, READ_10 = 0x28,
        WRITE_10 = 0x2a, SEEK_10 = 0x2b, WRITE_AND_VERIFY_10 = 0x2e, VERIFY_10 = 0x2f, PRE_FETCH_10 = 0x34,
        SYNCHRONIZE_CACHE_10 = 0x35, READ_DEFECT_DATA_10 = 0x37, WRITE_BUFFER = 0x3b, READ_BUFFER_10 = 0x3c,
        WRITE_SAME_10 = 0x41, UNMAP = 0x42, READ_TOC_PMA_ATIP = 0x43, GET_CONFIGURATION = 0x46, SANITIZE = 0x48,
        GET_EVENT_STATUS_NOTIFICATION = 0x4a, LOG_SELECT = 0x4c, LOG_SENSE = 0x4d, READ_DISC_INFORMATION = 0x51,
        READ_TRACK_INFORMATION = 0x52, MODE_SELECT_10 = 0x55, RESERVE_10 = 0x56, RELEASE_10 = 0x57,
        MODE_SENSE_10 = 0x5a, PERSISTENT_RESERVE_IN = 0x5e, PERSISTENT_RESERVE_OUT = 0x5f, VARIABLE_LENGTH = 0x7f,
        THIRD_PARTY_COPY_OUT = 0x83, THIRD_PARTY_COPY_IN = 0x84, READ_16 = 0x88, COMPARE_AND_WRITE = 0x89,
        WRITE_16 = 0x8a, ORWRITE_16 = 0x8b, WRITE_AND_VERIFY_16 = 0x8e, VERIFY_16 = 0x8f, PRE_FETCH_16 = 0x90,
        SYNCHRONIZE_CACHE_16 = 0x91, WRITE_SAME_16 = 0x93, READ_BUFFER_16 = 0x9b, WRITE_ATOMIC_16 = 0x9c,
        SERVICE_ACTION_IN_16 = 0x9e, REPORT_LUNS = 0xa0, MAINTENANCE_IN = 0xa3, MAINTENANCE_OUT = 0xa4,
        READ_12 = 0xa8, WRITE_12 = 0xaa, READ_DISC_STRUCTURE = 0xad, WRITE_AND_VERIFY_12 = 0xae, VERIFY_12 = 0xaf,
        READ_DEFECT_DATA_12 = 0xb7, READ_CD_MSF = 0xb9, MECHANISM_STATUS = 0xbd, READ_CD = 0xbe,
    }
}

/// Bits of CDB byte 1 that hold the service action.
pub const SERVICE_ACTION_BITS: u8 = 0x1f;

/// Where a CDB of variable length says how many bytes follow its first eight (SPC-4 4.2.3).
pub const ADDITIONAL_LENGTH_AT: usize = 7;
/// Where it has its service action.
pub const LONG_ACTION_AT: usize = 8;

/// ADDITIONAL CDB LENGTH of a command type.
#[must_use]
pub const fn additional_length<C>() -> u8 {
    (size_of::<C>() - LONG_ACTION_AT) as u8
}

/// What the first bytes of a CDB name it by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code {
    /// Operation code.
    pub op: OpCode,
    /// Service action, for an operation code that has them.
    pub action: Option<u16>,
}

impl Code {
    /// A command with an operation code of its own.
    #[must_use]
    pub const fn of(op: OpCode) -> Self {
        Self { op, action: None }
    }

    /// A command that shares its operation code.
    #[must_use]
    pub const fn with_action(op: OpCode, action: u8) -> Self {
        Self { op, action: Some(action as u16) }
    }

    /// A command whose CDB is of variable length (SPC-4 4.2.3).
    #[must_use]
    pub const fn long(action: u16) -> Self {
        Self { op: OpCode::VARIABLE_LENGTH, action: Some(action) }
    }

    /// Whether its service action is where CDBs of variable length have it.
    #[must_use]
    pub const fn is_long(self) -> bool {
        self.op.0 == OpCode::VARIABLE_LENGTH.0
    }
}

/// What a command does to the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing: it asks or sets what is not on the medium.
    None,
    /// Reads it.
    Read,
    /// Changes it.
    Write,
    /// Makes it anew, and so helps where that failed before.
    Renew,
}

/// Whether a condition stops a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gate {
    /// It does.
    Stops,
    /// It does not.
    Passes,
}

/// How a command fares when another nexus holds a persistent reservation and this one is not registered
/// as it would have to be (SPC-4 5.13.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persistent {
    /// Conflict, whatever the type.
    Conflict,
    /// Conflict, unless the type is Write Exclusive.
    WriteExclusivePasses,
    /// Allowed.
    Passes,
}

/// The states of asymmetric access that admit a command (SPC-4 5.15.2), from fewest to most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Alua {
    /// Active/optimized and active/non-optimized.
    Active,
    /// These and standby.
    Standby,
    /// All but transitioning.
    Settled,
    /// All.
    Every,
}

/// Who answers a command, or has a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Disks, with fixed or removable media.
    Disk,
    /// CD and DVD drives.
    Optical,
    /// Both.
    Unit,
    /// These and the well-known logical unit.
    WellKnown,
    /// These and LUNs that nobody has (SPC-4 6.6.2, SAM-5 5.11).
    Anywhere,
}

impl Reach {
    /// Whether a logical unit with such a medium is among them.
    #[must_use]
    pub const fn covers(self, kind: MediumKind) -> bool {
        match self {
            Self::Disk => !matches!(kind, MediumKind::Optical),
            Self::Optical => matches!(kind, MediumKind::Optical),
            Self::Unit | Self::WellKnown | Self::Anywhere => true,
        }
    }
}

/// What a unit must be capable of to have a command at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Nothing: every unit has it.
    Nothing,
    /// Logical block provisioning management (SBC-3 4.7).
    Provisioning,
    /// Writes that are on the medium all or not at all.
    AtomicWrites,
    /// Blocks of protection type 2: only then a CDB must have room for tags (SBC-3 4.22).
    TypeTwo,
}

/// How long a command may take: what REPORT SUPPORTED OPERATION CODES tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timeout {
    /// Answers from memory.
    Quick,
    /// Moves a bounded number of blocks.
    Transfer,
    /// Works through many blocks, or waits for the medium to have all that is cached.
    Long,
}

impl Timeout {
    /// Nominal processing time-out and recommended time-out, in seconds (SPC-4 6.35.4).
    #[must_use]
    pub const fn seconds(self) -> (u32, u32) {
        match self {
            Self::Quick => (1, 10),
            Self::Transfer => (10, 60),
            Self::Long => (60, 300),
        }
    }
}

/// What stops a command and what does not: read by `admit` alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gates {
    /// Who answers it.
    pub reach: Reach,
    /// What the unit must be capable of.
    pub needs: Needs,
    /// A pending unit attention.
    pub attention: Gate,
    /// An SPC-2 reservation of another nexus.
    pub spc2: Gate,
    /// A persistent reservation of another nexus.
    pub persistent: Persistent,
    /// The state of asymmetric access.
    pub alua: Alua,
    /// A unit that was stopped, or has no medium.
    pub not_ready: Gate,
    /// Write protection.
    pub write_protect: Gate,
    /// How long it may take.
    pub timeout: Timeout,
}

/// All there is to say of a command but how it reads its CDB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Its name in the standard.
    pub name: &'static str,
    /// Where the standard has it.
    pub clause: &'static str,
    /// What the CDB begins with.
    pub code: Code,
    /// What it does to the medium.
    pub effect: Effect,
    /// What stops it.
    pub gates: Gates,
}

/// The data of a command, and who moves it.
pub enum Data<C: 'static> {
    /// None.
    None,
    /// Data-In that `run` writes; the field is the allocation length.
    Answer(fn(&C) -> u32),
    /// A parameter list that is pulled before `run`; the field is its length.
    List(fn(&C) -> u32),
    /// One logical block that is pulled before `run`, if the CDB says so.
    Block(fn(&C) -> Pulled),
    /// Data-In that the step moves.
    In,
    /// Data-Out that the step moves.
    Out,
}

/// What is pulled where it is a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pulled {
    /// Nothing.
    Nothing,
    /// A block.
    Block,
    /// A block with its protection information, if blocks are protected.
    ProtectedBlock,
}

/// [`Data`] without its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// None.
    None,
    /// Data-In that `run` writes.
    Answer,
    /// A parameter list.
    List,
    /// One logical block.
    Block,
    /// Data-In that the step moves.
    In,
    /// Data-Out that the step moves.
    Out,
}

/// A command: its CDB.
pub trait CommandType: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Sized + 'static {
    /// All there is to say of it.
    const POLICY: Policy;
    /// The bits that the command evaluates; operation code and service action as they are (SPC-4 6.35.3).
    const USAGE: Self;
    /// Its data.
    const DATA: Data<Self>;

    /// Plans it. `list` is what was pulled: it may be shorter than asked for, when the initiator sends less.
    ///
    /// # Errors
    /// The sense data of CHECK CONDITION.
    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense>;
}

/// A command in the table.
#[derive(Clone, Copy)]
pub struct Row {
    /// All there is to say of it.
    pub policy: Policy,
    /// Bytes of the CDB.
    pub length: usize,
    /// Its data.
    pub flow: Flow,
    check: fn(&[u8]) -> Result<(), Sense>,
    amount: fn(&[u8]) -> Result<u32, Sense>,
    usage: fn(&mut Writer<'_>),
    run: Run,
}

/// Plans a command: CDB, what it sees, parameter list.
type Run = fn(&[u8], &mut Context<'_>, &[u8]) -> Result<Plan, Sense>;

impl Row {
    /// Refuses a CDB that is too short or has bits that the command does not evaluate.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB, with the byte and bit.
    pub fn check(&self, cdb: &[u8]) -> Result<(), Sense> {
        (self.check)(cdb)
    }

    /// Allocation length, parameter list length, or [`Pulled`]: as [`Row::flow`] has it.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB for a short CDB.
    pub fn amount(&self, cdb: &[u8]) -> Result<u32, Sense> {
        (self.amount)(cdb)
    }

    /// Writes what names the command into a CDB as long as its own: operation code, service action, length.
    pub fn name(&self, cdb: &mut [u8]) {
        let Code { op, action } = self.policy.code;
        cdb[0] = op.0;
        match action {
            Some(action) if self.policy.code.is_long() => {
                cdb[ADDITIONAL_LENGTH_AT] = (self.length - LONG_ACTION_AT) as u8;
                cdb[LONG_ACTION_AT..][..2].copy_from_slice(&action.to_be_bytes());
            }
            Some(action) => cdb[1] = cdb[1] & !SERVICE_ACTION_BITS | action as u8,
            None => {}
        }
    }

    /// Writes the usage map.
    pub fn usage(&self, out: &mut Writer<'_>) {
        (self.usage)(out);
    }

    /// Whether it reads a parameter list, or a block, before it plans.
    #[must_use]
    pub fn takes_list(&self) -> bool {
        matches!(self.flow, Flow::List | Flow::Block)
    }

    /// Plans the command.
    ///
    /// # Errors
    /// The sense data of CHECK CONDITION.
    pub fn run(&self, cdb: &[u8], cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        (self.run)(cdb, cx, list)
    }
}

/// The row of a command type.
#[must_use]
pub const fn row<C: CommandType>() -> Row {
    let flow = match C::DATA {
        Data::None => Flow::None,
        Data::Answer(_) => Flow::Answer,
        Data::List(_) => Flow::List,
        Data::Block(_) => Flow::Block,
        Data::In => Flow::In,
        Data::Out => Flow::Out,
    };
    Row {
        policy: C::POLICY,
        length: size_of::<C>(),
        flow,
        check: check::<C>,
        amount: amount::<C>,
        usage: usage::<C>,
        run: |cdb, cx, list| view::<C>(cdb)?.run(cx, list),
    }
}

fn view<C: CommandType>(cdb: &[u8]) -> Result<&C, Sense> {
    C::ref_from_prefix(cdb).map(|(cdb, _)| cdb).map_err(|_| Sense::in_cdb(cdb.len()))
}

fn check<C: CommandType>(cdb: &[u8]) -> Result<(), Sense> {
    let cdb = view::<C>(cdb)?.as_bytes();
    let usage = C::USAGE;
    let unknown = |(byte, mask): (&u8, &u8)| byte & !mask;
    let bits = || cdb.iter().zip(usage.as_bytes()).map(unknown);
    if bits().fold(0, |all, byte| all | byte) == 0 {
        return Ok(());
    }
    // The field pointer names the left-most bit of the first byte in error.
    let (byte, extra) = bits().enumerate().find(|(_, extra)| *extra != 0).unwrap_or_default();
    Err(Sense::bit_in_cdb(byte, extra.checked_ilog2().map_or(7, |bit| bit as u8)))
}

fn amount<C: CommandType>(cdb: &[u8]) -> Result<u32, Sense> {
    let cdb = view::<C>(cdb)?;
    Ok(match C::DATA {
        Data::Answer(length) | Data::List(length) => length(cdb),
        Data::Block(pulled) => pulled(cdb) as u32,
        Data::None | Data::In | Data::Out => 0,
    })
}

fn usage<C: CommandType>(out: &mut Writer<'_>) {
    out.put(&C::USAGE);
}

/// Declares the table from the list of types, in the order of operation codes and service actions.
macro_rules! table {
    ($($(#[$meta:meta])* $command:ty),* $(,)?) => {
        /// Every command.
        pub static TABLE: &[Row] = &[$(row::<$command>()),*];
        const CODES: &[Code] = &[$(<$command>::POLICY.code),*];
    };
}

table! {
    cmd::ready::TestUnitReady,
    cmd::ready::RequestSense,
    cmd::format::FormatUnit,
    cmd::read_write::Read6,
    cmd::read_write::Write6,
    cmd::inquiry::Inquiry,
    cmd::mode::ModeSelect6,
    cmd::reserve::Reserve6,
    cmd::reserve::Release6,
    cmd::mode::ModeSense6,
    cmd::ready::StartStopUnit,
    cmd::ready::PreventAllowMediumRemoval,
    cmd::capacity::ReadCapacity10,
    cmd::read_write::Read10,
    cmd::read_write::Write10,
    cmd::drive::Seek10,
    cmd::read_write::WriteAndVerify10,
    cmd::verify::Verify10,
    cmd::cache::PreFetch10,
    cmd::cache::SynchronizeCache10,
    cmd::defects::ReadDefectData10,
    cmd::buffer::WriteBuffer,
    cmd::buffer::ReadBuffer10,
    cmd::provisioning::WriteSame10,
    cmd::provisioning::Unmap,
    cmd::disc::ReadTocPmaAtip,
    cmd::drive::GetConfiguration,
    cmd::format::Overwrite,
    cmd::format::BlockErase,
    cmd::format::ExitFailureMode,
    cmd::drive::GetEventStatusNotification,
    cmd::log::LogSelect,
    cmd::log::LogSense,
    cmd::disc::ReadDiscInformation,
    cmd::disc::ReadTrackInformation,
    cmd::mode::ModeSelect10,
    cmd::reserve::Reserve10,
    cmd::reserve::Release10,
    cmd::mode::ModeSense10,
    cmd::persistent::ReadKeys,
    cmd::persistent::ReadReservation,
    cmd::persistent::ReportCapabilities,
    cmd::persistent::ReadFullStatus,
    cmd::persistent::Register,
    cmd::persistent::Reserve,
    cmd::persistent::Release,
    cmd::persistent::Clear,
    cmd::persistent::Preempt,
    cmd::persistent::PreemptAndAbort,
    cmd::persistent::RegisterAndIgnoreExistingKey,
    cmd::persistent::RegisterAndMove,
    cmd::read_write::Read32,
    cmd::verify::Verify32,
    cmd::read_write::Write32,
    cmd::read_write::WriteAndVerify32,
    cmd::provisioning::WriteSame32,
    cmd::lba_status::GetLbaStatus32,
    cmd::copy::ExtendedCopyLid1,
    cmd::copy::ExtendedCopyLid4,
    cmd::token::PopulateToken,
    cmd::token::WriteUsingToken,
    cmd::copy::CopyOperationAbort,
    cmd::copy_results::ReceiveCopyStatusLid1,
    cmd::copy_results::ReceiveCopyOperatingParameters,
    cmd::copy_results::ReceiveCopyFailureDetailsLid1,
    cmd::copy_results::ReceiveCopyStatusLid4,
    cmd::copy_results::ReceiveRodTokenInformation,
    cmd::copy_results::ReportAllRodTokens,
    cmd::read_write::Read16,
    cmd::verify::CompareAndWrite,
    cmd::read_write::Write16,
    cmd::atomic::OrWrite16,
    cmd::read_write::WriteAndVerify16,
    cmd::verify::Verify16,
    cmd::cache::PreFetch16,
    cmd::cache::SynchronizeCache16,
    cmd::provisioning::WriteSame16,
    cmd::buffer::ReadBuffer16,
    cmd::atomic::WriteAtomic16,
    cmd::capacity::ReadCapacity16,
    cmd::lba_status::GetLbaStatus16,
    cmd::luns::ReportLuns,
    cmd::information::ReportIdentifyingInformation,
    cmd::ports::ReportTargetPortGroups,
    cmd::supported::ReportSupportedOperationCodes,
    cmd::supported::ReportSupportedTaskManagementFunctions,
    cmd::clock::ReportTimestamp,
    cmd::information::SetIdentifyingInformation,
    cmd::ports::SetTargetPortGroups,
    cmd::clock::SetTimestamp,
    cmd::read_write::Read12,
    cmd::read_write::Write12,
    cmd::disc::ReadDiscStructure,
    cmd::read_write::WriteAndVerify12,
    cmd::verify::Verify12,
    cmd::defects::ReadDefectData12,
    cmd::read_cd::ReadCdMsf,
    cmd::drive::MechanismStatus,
    cmd::read_cd::ReadCd,
}

/// No row.
const NO_ROW: u8 = u8::MAX;

/// For each operation code the first of its rows.
static INDEX: [u8; 256] = index();

const fn order(code: Code) -> u32 {
    let action = match code.action {
        Some(action) => action,
        None => 0,
    };
    (code.op.0 as u32) << 16 | action as u32
}

const fn index() -> [u8; 256] {
    let mut index = [NO_ROW; 256];
    assert!(CODES.len() < NO_ROW as usize);
    let mut at = CODES.len();
    while at > 0 {
        at -= 1;
        assert!(at == 0 || order(CODES[at - 1]) < order(CODES[at]), "rows are in the order of their codes, each once");
        index[CODES[at].op.0 as usize] = at as u8;
    }
    index
}

/// The rows of an operation code: none, one, or one for each service action.
#[must_use]
pub fn rows(op: u8) -> &'static [Row] {
    let Some(rows) = TABLE.get(usize::from(INDEX[usize::from(op)])..) else { return &[] };
    let count = rows.iter().take_while(|row| row.policy.code.op.0 == op).count();
    &rows[..count]
}

/// The row of a CDB.
///
/// # Errors
/// INVALID COMMAND OPERATION CODE, or INVALID FIELD IN CDB for the service action.
pub fn find(cdb: &[u8]) -> Result<&'static Row, Sense> {
    const UNKNOWN: Sense = Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
    let op = *cdb.first().ok_or(UNKNOWN)?;
    let first = TABLE.get(usize::from(INDEX[usize::from(op)])).ok_or(UNKNOWN)?;
    if first.policy.code.action.is_none() {
        return Ok(first);
    }
    if first.policy.code.is_long() {
        return find_long(cdb);
    }
    let action = cdb.get(1).ok_or(Sense::in_cdb(1))? & SERVICE_ACTION_BITS;
    by_action(op, action.into()).ok_or(Sense::bit_in_cdb(1, 4))
}

fn by_action(op: u8, action: u16) -> Option<&'static Row> {
    rows(op).iter().find(|row| row.policy.code.action == Some(action))
}

/// The row of a CDB of variable length, which says twice how long it is (SPC-4 4.2.3).
fn find_long(cdb: &[u8]) -> Result<&'static Row, Sense> {
    let action = cdb.get(LONG_ACTION_AT..).and_then(|rest| be::U16::ref_from_prefix(rest).ok());
    let (action, _) = action.ok_or_else(|| Sense::in_cdb(cdb.len()))?;
    let row = by_action(OpCode::VARIABLE_LENGTH.0, action.get()).ok_or(Sense::in_cdb(LONG_ACTION_AT))?;
    let length = usize::from(cdb[ADDITIONAL_LENGTH_AT]) + LONG_ACTION_AT;
    if length == row.length { Ok(row) } else { Err(Sense::in_cdb(ADDITIONAL_LENGTH_AT)) }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;

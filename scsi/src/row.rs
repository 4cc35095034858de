//! The parts of a command table: a command type, its row, the table of a device type.
//!
//! A command is a type: its CDB as a struct of big-endian fields. One `impl` of [`CommandType`] declares all of its
//! facts; none has a default, so none can be forgotten.

use crate::context::Context;
use crate::lu::{DeviceState, Emulated};
use crate::nexus::ItlNexus;
use crate::page::{LogRow, ModeRow, VpdRow};
use crate::peripheral::PeripheralType;
use crate::plan::Plan;
use crate::policy::{
    ADDITIONAL_LENGTH_AT, Code, Effect, Forwarding, LONG_ACTION_AT, OpCode, Policy, SERVICE_ACTION_BITS,
};
use crate::sense::{Asc, Sense};
use lunar_core::medium::MediumKind;
use lunar_core::traffic::Class;
use lunar_core::wire::{Writer, be};
use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The data of a command, and whether `run` or the step moves it.
pub enum Data<C: 'static> {
    /// No data.
    None,
    /// Data-In that `run` writes; the function returns the allocation length.
    Answer(fn(&C) -> u32),
    /// A parameter list that is pulled before `run`; the function returns its length.
    List(fn(&C) -> u32),
    /// One logical block that is pulled before `run`, if the CDB asks for it.
    Block(fn(&C) -> Pulled),
    /// Data-In that the step moves.
    In,
    /// Data-Out that the step moves.
    Out,
}

/// The data that is pulled before `run` of a command with [`Data::Block`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pulled {
    /// No data.
    Nothing,
    /// A block.
    Block,
    /// A block with its protection information, if blocks are protected.
    ProtectedBlock,
}

/// [`Data`] without its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// No data.
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
    /// The declaration of the command apart from its CDB.
    const POLICY: Policy;
    /// The bits that the command evaluates; operation code and service action have their values (SPC-4 6.35.3).
    const USAGE: Self;
    /// The command's data.
    const DATA: Data<Self>;

    /// Plans the command. `list` is the parameter list or block that was pulled: it is shorter than requested when the
    /// initiator sends less.
    ///
    /// # Errors
    /// The sense data of CHECK CONDITION.
    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense>;
}

/// A command in a table.
#[derive(Clone, Copy)]
pub struct Row {
    /// The declaration of the command apart from its CDB.
    pub policy: Policy,
    /// Bytes of the CDB.
    pub length: usize,
    /// The command's data.
    pub flow: Flow,
    /// Its class in metrics.
    pub class: Class,
    check: fn(&[u8]) -> Result<(), Sense>,
    amount: fn(&[u8]) -> Result<u32, Sense>,
    usage: fn(&mut Writer<'_>),
    run: Run,
}

/// The class of a command in metrics.
const fn class(op: OpCode, flow: Flow, effect: Effect) -> Class {
    match (op, flow, effect) {
        (OpCode::UNMAP, ..) => Class::Unmap,
        (OpCode::COMPARE_AND_WRITE, ..) => Class::CompareAndWrite,
        (OpCode::THIRD_PARTY_COPY_OUT, _, Effect::Read | Effect::Write) => Class::Copy,
        (_, Flow::In, Effect::Read) => Class::Read,
        (_, Flow::Out, Effect::Write) => Class::Write,
        _ => Class::Other,
    }
}

/// Plans a command: CDB, context, parameter list.
type Run = fn(&[u8], &mut Context<'_>, &[u8]) -> Result<Plan, Sense>;

impl Row {
    /// The row of a command type.
    #[must_use]
    pub const fn of<C: CommandType>() -> Self {
        let flow = match C::DATA {
            Data::None => Flow::None,
            Data::Answer(_) => Flow::Answer,
            Data::List(_) => Flow::List,
            Data::Block(_) => Flow::Block,
            Data::In => Flow::In,
            Data::Out => Flow::Out,
        };
        Self {
            policy: C::POLICY,
            length: size_of::<C>(),
            flow,
            class: class(C::POLICY.code.op, flow, C::POLICY.effect),
            check: check::<C>,
            amount: amount::<C>,
            usage: usage::<C>,
            run: |cdb, cx, list| view::<C>(cdb)?.run(cx, list),
        }
    }

    /// The row of a command that only a device executes.
    #[must_use]
    pub const fn of_device(policy: Policy, length: usize, flow: Flow) -> Self {
        Self {
            policy,
            length,
            flow,
            class: class(policy.code.op, flow, policy.effect),
            check: |_| Ok(()),
            amount: |_| Ok(0),
            usage: |_| {},
            run: |_, _, _| Err(Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE)),
        }
    }

    /// The number by which rows are sorted.
    pub(crate) const fn key(&self) -> u32 {
        self.policy.code.order()
    }

    /// Refuses a CDB that is too short or sets bits that the command does not evaluate.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB, with the byte and bit.
    pub fn check(&self, cdb: &[u8]) -> Result<(), Sense> {
        (self.check)(cdb)
    }

    /// Allocation length, parameter list length, or [`Pulled`], depending on [`Row::flow`].
    ///
    /// # Errors
    /// INVALID FIELD IN CDB for a short CDB.
    pub fn amount(&self, cdb: &[u8]) -> Result<u32, Sense> {
        (self.amount)(cdb)
    }

    /// Writes operation code, service action and ADDITIONAL CDB LENGTH into a CDB of the command's length.
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

    /// Whether a parameter list or a block is pulled before `run`.
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

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Row({})", self.policy.name)
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

/// In an index: the operation code has no row.
const NO_ROW: u8 = u8::MAX;

/// The commands of a device type, in ascending order of their codes.
pub struct CommandTable {
    rows: &'static [Row],
    /// For each operation code the first of its rows.
    index: [u8; 256],
}

impl CommandTable {
    /// A table of these rows, which `command_rows!` has sorted.
    #[must_use]
    pub const fn new(rows: &'static [Row]) -> Self {
        let mut index = [NO_ROW; 256];
        assert!(rows.len() < NO_ROW as usize, "an index is one byte");
        let mut at = rows.len();
        while at > 0 {
            at -= 1;
            assert!(at == 0 || rows[at - 1].key() < rows[at].key(), "rows are sorted, and each code has one row");
            index[rows[at].policy.code.op.0 as usize] = at as u8;
        }
        Self { rows, index }
    }

    /// All rows.
    #[must_use]
    pub fn rows(&self) -> &'static [Row] {
        self.rows
    }

    /// The rows of an operation code: none, one, or one for each service action.
    #[must_use]
    pub fn rows_of(&self, op: u8) -> &'static [Row] {
        let Some(rows) = self.rows.get(usize::from(self.index[usize::from(op)])..) else { return &[] };
        let count = rows.iter().take_while(|row| row.policy.code.op.0 == op).count();
        &rows[..count]
    }

    /// Whether the table has a command of this code.
    #[must_use]
    pub fn has(&self, code: Code) -> bool {
        self.rows_of(code.op.0).iter().any(|row| row.policy.code == code)
    }

    /// The row of a CDB.
    ///
    /// # Errors
    /// INVALID COMMAND OPERATION CODE; INVALID FIELD IN CDB for an unknown service action.
    #[inline]
    pub fn find(&self, cdb: &[u8]) -> Result<&'static Row, Sense> {
        const UNKNOWN: Sense = Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
        let op = *cdb.first().ok_or(UNKNOWN)?;
        let first = self.rows.get(usize::from(self.index[usize::from(op)])).ok_or(UNKNOWN)?;
        if first.policy.code.action.is_none() {
            return Ok(first);
        }
        if first.policy.code.is_long() {
            return self.find_long(cdb);
        }
        let action = cdb.get(1).ok_or(Sense::in_cdb(1))? & SERVICE_ACTION_BITS;
        self.by_action(op, action.into()).ok_or(Sense::bit_in_cdb(1, 4))
    }

    fn by_action(&self, op: u8, action: u16) -> Option<&'static Row> {
        self.rows_of(op).iter().find(|row| row.policy.code.action == Some(action))
    }

    /// The row of a CDB of variable length. Its length must also be the one of its service action (SPC-4 4.2.3).
    fn find_long(&self, cdb: &[u8]) -> Result<&'static Row, Sense> {
        let action = cdb.get(LONG_ACTION_AT..).and_then(|rest| be::U16::ref_from_prefix(rest).ok());
        let (action, _) = action.ok_or_else(|| Sense::in_cdb(cdb.len()))?;
        let row = self.by_action(OpCode::VARIABLE_LENGTH.0, action.get()).ok_or(Sense::in_cdb(LONG_ACTION_AT))?;
        let length = usize::from(cdb[ADDITIONAL_LENGTH_AT]) + LONG_ACTION_AT;
        if length == row.length { Ok(row) } else { Err(Sense::in_cdb(ADDITIONAL_LENGTH_AT)) }
    }
}

/// Number of blocks and block length of the block descriptor of a logical unit (SPC-4 7.5.6).
pub type BlockDescriptor = fn(&Emulated) -> (u64, u32);

/// The fields of MODE SENSE and MODE SELECT data that differ between device types (SPC-4 7.5.5, 7.5.6).
#[derive(Clone, Copy)]
pub struct ModeHeader {
    /// DEVICE-SPECIFIC PARAMETER.
    pub device_specific: fn(&ItlNexus) -> u8,
    /// The block descriptor; `None` for a device type without block descriptors.
    pub block_descriptor: Option<BlockDescriptor>,
}

impl ModeHeader {
    /// The header of a device type without device-specific parameter and block descriptors.
    pub const NONE: Self = Self { device_specific: |_| 0, block_descriptor: None };
}

/// A peripheral device type: the commands and pages of its logical units.
pub struct DeviceType {
    /// PERIPHERAL DEVICE TYPE (SPC-4 6.6.2).
    pub code: PeripheralType,
    /// Its logical units, for the documentation.
    pub name: &'static str,
    /// The version descriptor of its command standard (SPC-4 6.6.2.2); `None` for SPC alone.
    pub standard: Option<u16>,
    /// The media of units that are emulated logical units of this device type.
    pub media: &'static [MediumKind],
    /// The state that emulated logical units of this device type have in addition to others, after power on.
    pub(crate) state: fn() -> DeviceState,
    /// Commands of emulated logical units.
    pub commands: CommandTable,
    /// Sense data of a command that has no row.
    pub unsupported: Asc,
    /// Vital product data pages of emulated logical units, in ascending order.
    pub vpd: &'static [VpdRow],
    /// Mode pages of emulated logical units, in ascending order.
    pub mode: &'static [ModeRow],
    /// Header of the mode parameter lists of emulated logical units.
    pub mode_header: ModeHeader,
    /// Log pages of emulated logical units, in ascending order.
    pub log: &'static [LogRow],
    /// Commands of forwarded logical units. A command without a row is admitted by
    /// [`UNKNOWN_COMMAND`](crate::policy::UNKNOWN_COMMAND).
    pub forwarded: CommandTable,
}

impl DeviceType {
    /// The row of a CDB for an emulated logical unit.
    ///
    /// # Errors
    /// [`DeviceType::unsupported`]; INVALID FIELD IN CDB for an unknown service action.
    #[inline]
    pub fn find(&self, cdb: &[u8]) -> Result<&'static Row, Sense> {
        self.commands.find(cdb).map_err(|sense| match sense.asc {
            Asc::INVALID_COMMAND_OPERATION_CODE => Sense::illegal(self.unsupported),
            _ => sense,
        })
    }

    /// The row of a CDB for a forwarded logical unit; `None` for a command that only the device knows.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB for an unknown service action of an operation code that never goes to the device.
    pub fn find_forwarded(&self, cdb: &[u8]) -> Result<Option<&'static Row>, Sense> {
        match self.forwarded.find(cdb) {
            Ok(row) => Ok(Some(row)),
            Err(sense) => {
                let rows = cdb.first().map_or(&[][..], |op| self.forwarded.rows_of(*op));
                let is_device = |row: &Row| {
                    let forwarded = row.policy.admission.forwarded;
                    matches!(forwarded, Forwarding::Device | Forwarding::DeviceThenAttention(_) | Forwarding::Counted)
                };
                if rows.is_empty() || rows.iter().any(is_device) { Ok(None) } else { Err(sense) }
            }
        }
    }
}

impl fmt::Debug for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceType({:?})", self.code)
    }
}

/// Declares functions that merge groups of rows into one sorted array.
macro_rules! merge {
    ($($row:ty, $merge:ident;)*) => {
        $(
            /// The rows of all groups in ascending order of their keys. `N` is the number of rows in `groups`.
            #[must_use]
            pub(crate) const fn $merge<const N: usize>(groups: &[&[$row]]) -> [$row; N] {
                let mut rows = [groups[0][0]; N];
                let (mut count, mut group) = (0, 0);
                while group < groups.len() {
                    let mut at = 0;
                    while at < groups[group].len() {
                        // Insertion sort.
                        let row = groups[group][at];
                        let mut place = count;
                        while place > 0 && rows[place - 1].key() > row.key() {
                            rows[place] = rows[place - 1];
                            place -= 1;
                        }
                        assert!(place == 0 || rows[place - 1].key() < row.key(), "two rows of one code");
                        rows[place] = row;
                        count += 1;
                        at += 1;
                    }
                    group += 1;
                }
                assert!(count == N);
                rows
            }
        )*
    };
}

merge! {
    Row, merge_commands;
    VpdRow, merge_vpd;
    ModeRow, merge_mode;
    LogRow, merge_log;
}

/// The number of rows in all groups.
#[must_use]
pub(crate) const fn count<T>(groups: &[&[T]]) -> usize {
    let (mut count, mut at) = (0, 0);
    while at < groups.len() {
        count += groups[at].len();
        at += 1;
    }
    count
}

/// A group of rows: `group!(Row: types)`.
macro_rules! group {
    ($row:ty: $($of:ty),* $(,)?) => {
        &[$(<$row>::of::<$of>()),*]
    };
}

/// All rows of some groups, sorted: `merged!(merge_commands: [Row; groups])`.
macro_rules! merged {
    ($merge:ident: [$row:ty; $($group:expr),* $(,)?]) => {{
        const GROUPS: &[&[$row]] = &[$($group),*];
        static ROWS: [$row; $crate::row::count(GROUPS)] = $crate::row::$merge(GROUPS);
        &ROWS
    }};
}

pub(crate) use {group, merged};

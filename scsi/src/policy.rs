//! The declaration of a command apart from its CDB: its code, its effect, and the conditions under which it is
//! executed.
//!
//! No field has a default: a command that leaves one out does not compile.

use crate::lu::Emulated;
pub use crate::operation_code::OpCode;
use crate::sense::Asc;
use std::fmt;

/// Bits of CDB byte 1 that hold the service action (SPC-4 4.2.5.2).
pub const SERVICE_ACTION_BITS: u8 = 0x1f;

/// Offset of ADDITIONAL CDB LENGTH in a CDB of variable length: the number of bytes after the first eight (SPC-4
/// 4.2.3).
pub const ADDITIONAL_LENGTH_AT: usize = 7;
/// Offset of the service action in a CDB of variable length (SPC-4 4.2.3).
pub const LONG_ACTION_AT: usize = 8;

/// ADDITIONAL CDB LENGTH of a command type.
#[must_use]
pub const fn additional_length<C>() -> u8 {
    (size_of::<C>() - LONG_ACTION_AT) as u8
}

/// Operation code and service action of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code {
    /// Operation code.
    pub op: OpCode,
    /// Service action, for an operation code that has service actions.
    pub action: Option<u16>,
}

impl Code {
    /// A command that is the only one of its operation code.
    #[must_use]
    pub const fn of(op: OpCode) -> Self {
        Self { op, action: None }
    }

    /// A command that is one service action of its operation code.
    #[must_use]
    pub const fn with_action(op: OpCode, action: u8) -> Self {
        Self { op, action: Some(action as u16) }
    }

    /// A command whose CDB is of variable length (SPC-4 4.2.3).
    #[must_use]
    pub const fn long(action: u16) -> Self {
        Self { op: OpCode::VARIABLE_LENGTH, action: Some(action) }
    }

    /// Whether the service action is where CDBs of variable length have it.
    #[must_use]
    pub const fn is_long(self) -> bool {
        self.op.0 == OpCode::VARIABLE_LENGTH.0
    }

    /// A number by which the rows of a table are sorted: operation code, then service action.
    #[must_use]
    pub(crate) const fn order(self) -> u32 {
        let action = match self.action {
            Some(action) => action,
            None => 0,
        };
        (self.op.0 as u32) << 16 | action as u32
    }
}

/// The effect of a command on the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The command does not access the medium.
    None,
    /// The command reads the medium.
    Read,
    /// The command changes the medium.
    Write,
    /// The command rewrites the whole medium. It is admitted after an earlier rewrite failed.
    Rewrite,
}

/// Whether a condition stops a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gate {
    /// The condition stops the command.
    Stops,
    /// The command is executed in spite of the condition.
    Passes,
}

/// The effect of a persistent reservation of another nexus that excludes this nexus on a command (SPC-4 5.13.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persistent {
    /// RESERVATION CONFLICT for every reservation type.
    Conflict,
    /// RESERVATION CONFLICT for every reservation type except Write Exclusive.
    WriteExclusivePasses,
    /// The command is executed.
    Passes,
}

/// The asymmetric access states in which a command is executed (SPC-4 5.15.2), from fewest to most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Alua {
    /// Active/optimized and active/non-optimized.
    Active,
    /// The active states and standby.
    Standby,
    /// All states except transitioning.
    Settled,
    /// All states.
    Every,
}

/// A capability that only some logical units of a device type have.
pub struct Capability {
    /// The logical units that have the capability, for the documentation.
    pub name: &'static str,
    /// Whether a logical unit has the capability.
    pub is_met: fn(&Emulated) -> bool,
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capability({})", self.name)
    }
}

impl PartialEq for Capability {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Capability {}

/// How a forwarded logical unit executes a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forwarding {
    /// Lunar executes the command, as on an emulated logical unit.
    Lunar,
    /// The device executes the command.
    Device,
    /// The device executes the command. If it ends with GOOD, a unit attention condition is established for all other
    /// nexuses: the device itself knows one initiator only.
    DeviceThenAttention(Asc),
    /// Lunar counts the requests of each nexus, and the device gets the sum (PREVENT ALLOW MEDIUM REMOVAL).
    Counted,
    /// INVALID COMMAND OPERATION CODE, unless the operator allows it: with this command the device could reach other
    /// logical units in spite of the LUN map, or lose its firmware or all of its data.
    Refused,
}

/// How long a command may take, as REPORT SUPPORTED OPERATION CODES reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timeout {
    /// The command is answered from memory.
    Quick,
    /// The command moves a bounded number of blocks.
    Transfer,
    /// The command processes many blocks, or waits until the cache is on the medium.
    Long,
}

impl Timeout {
    /// Nominal command processing timeout and recommended command timeout, in seconds (SPC-4 6.35.4).
    #[must_use]
    pub const fn seconds(self) -> (u32, u32) {
        match self {
            Self::Quick => (1, 10),
            Self::Transfer => (10, 60),
            Self::Long => (60, 300),
        }
    }
}

/// The conditions under which a command is executed. Only [`crate::admit`] decides by them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admission {
    /// The capability that the logical unit must have; otherwise it does not support the command.
    pub needs: Option<&'static Capability>,
    /// How a forwarded logical unit executes the command.
    pub forwarded: Forwarding,
    /// A pending unit attention condition.
    pub attention: Gate,
    /// An SPC-2 reservation of another nexus.
    pub spc2: Gate,
    /// A persistent reservation of another nexus.
    pub persistent: Persistent,
    /// The asymmetric access state.
    pub alua: Alua,
    /// A logical unit that is stopped or has no medium.
    pub not_ready: Gate,
    /// Write protection.
    pub write_protect: Gate,
    /// How long the command may take.
    pub timeout: Timeout,
}

/// The declaration of a command apart from its CDB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Name in the standard.
    pub name: &'static str,
    /// Clause of the standard, with its edition.
    pub clause: &'static str,
    /// Operation code and service action.
    pub code: Code,
    /// Effect on the medium.
    pub effect: Effect,
    /// Conditions under which the command is executed.
    pub admission: Admission,
}

/// The policy of a command of a forwarded logical unit that has no row: only the device knows it, so it may have any
/// effect.
pub static UNKNOWN_COMMAND: Policy = Policy {
    name: "command without a row",
    clause: "SPC-4 5.13.1",
    code: Code::of(OpCode(0xff)),
    effect: Effect::Write,
    admission: Admission {
        needs: None,
        forwarded: Forwarding::Device,
        attention: Gate::Stops,
        spc2: Gate::Stops,
        persistent: Persistent::Conflict,
        alua: Alua::Active,
        not_ready: Gate::Stops,
        write_protect: Gate::Stops,
        timeout: Timeout::Long,
    },
};

//! The policy of a command: its name, its code, its effects and what admits it.

/// A set of commands, by the queues that they are sent to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Set {
    /// Commands of the admin queue.
    Admin,
    /// Commands of I/O queues: the NVM command set.
    Io,
    /// Fabrics commands, which both kinds of queue have. Their code is the command type.
    Fabrics,
}

/// The code of a command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Code {
    /// The set of commands.
    pub set: Set,
    /// The opcode, or the type of a Fabrics command.
    pub op: u8,
}

/// The effect of a condition on a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gate {
    /// The command is refused.
    Stops,
    /// The command runs.
    Passes,
}

/// Whether a reservation of another host stops a command (NVMe Base 2.0 8.19.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persistent {
    /// Reservation Conflict under every type of reservation.
    Conflict,
    /// Reservation Conflict, except under the types of Write Exclusive.
    WriteExclusivePasses,
    /// The command runs.
    Passes,
}

/// The scope of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandScope {
    /// The controller. Only `run` looks at the namespace identifier, if anything does.
    Controller,
    /// One namespace, which must exist.
    Namespace,
    /// One namespace, or all of the controller.
    Namespaces,
}

/// The transports that have a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Every transport.
    Every,
    /// Transports whose queues are in the host's memory.
    Memory,
    /// Message-based transports (NVMe over Fabrics).
    Fabrics,
}

impl Transport {
    /// Whether a transport is one of them. `memory`: its queues are in the host's memory.
    #[must_use]
    pub fn has(self, memory: bool) -> bool {
        match self {
            Self::Every => true,
            Self::Memory => memory,
            Self::Fabrics => !memory,
        }
    }
}

/// The conditions of the admission of a command. Read by [`admit`](crate::admit::admit).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admission {
    /// The scope of the command.
    pub scope: CommandScope,
    /// The transports that have the command.
    pub transport: Transport,
    /// A discovery controller.
    pub discovery: Gate,
    /// A host that must authenticate and has not.
    pub unauthenticated: Gate,
    /// A controller that is not enabled.
    pub disabled: Gate,
    /// A reservation of another host.
    pub persistent: Persistent,
    /// A namespace that is not accessible through this controller (ANA).
    pub inaccessible: Gate,
    /// A rewrite of the medium in progress, or a failed sanitize.
    pub rewrite: Gate,
    /// A medium whose format is in progress or has failed.
    pub unformatted: Gate,
    /// Write protection.
    pub write_protect: Gate,
}

/// The effect of a command: its entry in the log page Commands Supported and Effects (NVMe Base 2.0 5.16.1.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing.
    None,
    /// The content of logical blocks (LBCC).
    Content,
    /// The content of all logical blocks. No other command of the namespace may run meanwhile (LBCC, CSE).
    Rewrite,
    /// The capabilities of the controller (CCC).
    Capabilities,
    /// The namespaces that exist, or those that controllers are attached to (NIC).
    Inventory,
}

impl Effect {
    /// The entry in the log page.
    #[must_use]
    pub fn entry(self) -> u32 {
        const SUPPORTED: u32 = 0x01;
        const CONTENT: u32 = 0x02;
        const INVENTORY: u32 = 0x08;
        const CAPABILITIES: u32 = 0x10;
        const ALONE_IN_NAMESPACE: u32 = 0x1_0000;
        SUPPORTED
            | match self {
                Self::None => 0,
                Self::Content => CONTENT,
                Self::Rewrite => CONTENT | ALONE_IN_NAMESPACE,
                Self::Capabilities => CAPABILITIES,
                Self::Inventory => INVENTORY,
            }
    }
}

/// The facts about a command. None has a default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// The name in the standard.
    pub name: &'static str,
    /// The clause of the standard.
    pub clause: &'static str,
    /// The code.
    pub code: Code,
    /// The effect of the command.
    pub effect: Effect,
    /// The admission of the command.
    pub admission: Admission,
}

//! The table of commands: one type per command, one row per type, and all that derives from the rows.
//!
//! Its one `impl` of [`CommandType`] says all there is to say of a command; nothing has a default, so nothing can be
//! forgotten. The entry is the same for all of them, so a type has no fields: `run` reads the dwords that are its own.

use crate::cmd;
use crate::command::{FABRICS, Refusal, Sqe};
use crate::context::Context;
use crate::plan::Plan;

/// The queues that have a command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Set {
    /// The admin queue.
    Admin,
    /// I/O queues: the NVM command set.
    Io,
    /// Queues over fabrics, of both kinds: the code is the type.
    Fabrics,
}

/// What names a command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Code {
    /// Where it is sent.
    pub set: Set,
    /// Operation code, or the type of a Fabrics command.
    pub op: u8,
}

/// Whether a condition stops a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gate {
    /// It does.
    Stops,
    /// It does not.
    Passes,
}

/// How a command fares under another host's reservation (NVMe Base 2.0 8.19.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persistent {
    /// Conflict, whatever the type.
    Conflict,
    /// Conflict, unless the type is Write Exclusive.
    WriteExclusivePasses,
    /// Allowed.
    Passes,
}

/// Whom a command is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// The controller: the namespace identifier is not looked at, or by `run` alone.
    Controller,
    /// One namespace, which has to be there.
    Namespace,
    /// One namespace, or all of them.
    Namespaces,
}

/// Which transports have a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Every one.
    Every,
    /// Those whose queues lie in the host's memory.
    Memory,
    /// Those with messages.
    Fabrics,
}

impl Transport {
    /// Whether a transport is one of them, whose queues lie in the host's memory or not.
    #[must_use]
    pub fn has(self, memory: bool) -> bool {
        match self {
            Self::Every => true,
            Self::Memory => memory,
            Self::Fabrics => !memory,
        }
    }
}

/// What stops a command and what does not: read by `admit` alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gates {
    /// Whom it is about.
    pub reach: Reach,
    /// Who has it.
    pub transport: Transport,
    /// A controller of a discovery service.
    pub discovery: Gate,
    /// A host that has still to prove its name.
    pub unproven: Gate,
    /// A controller that is not enabled.
    pub disabled: Gate,
    /// A reservation of another host.
    pub persistent: Persistent,
    /// A namespace that cannot be reached by this path now.
    pub inaccessible: Gate,
    /// A medium that is written anew.
    pub renewal: Gate,
    /// A medium that was not written anew to the end.
    pub unformatted: Gate,
    /// Write protection.
    pub write_protect: Gate,
}

/// What a command changes: bits of its entry in the log page Commands Supported and Effects (NVMe Base 2.0 5.16.1.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing.
    None,
    /// Logical blocks (LBCC).
    Content,
    /// Logical blocks, and no other command for the namespace may run meanwhile (LBCC, CSE).
    Renewal,
    /// What a controller can (CCC).
    Capabilities,
    /// Which namespaces there are, and who has them (NIC).
    Inventory,
}

impl Effect {
    /// The entry: supported, and the rest.
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
                Self::Renewal => CONTENT | ALONE_IN_NAMESPACE,
                Self::Capabilities => CAPABILITIES,
                Self::Inventory => INVENTORY,
            }
    }
}

/// All there is to say of a command but what it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Its name in the specification.
    pub name: &'static str,
    /// Where the specification has it.
    pub clause: &'static str,
    /// What names it.
    pub code: Code,
    /// What it changes.
    pub effect: Effect,
    /// What stops it.
    pub gates: Gates,
}

/// The data of a command, and who moves it.
#[derive(Clone, Copy)]
pub enum Data {
    /// None.
    None,
    /// Data to the host that `run` writes; the function gives its length.
    Answer(fn(&Sqe) -> u64),
    /// Data from the host that is pulled before `run`; the function gives its length.
    List(fn(&Sqe) -> u32),
    /// Data that the step moves.
    Step,
    /// None. The command is about queues in the host's memory: [`Subsystem::plan_queue_change`] plans it, and the
    /// transport carries it out.
    ///
    /// [`Subsystem::plan_queue_change`]: crate::subsystem::Subsystem::plan_queue_change
    Queues,
}

/// A command.
pub trait CommandType {
    /// All there is to say of it.
    const POLICY: Policy;
    /// Its data.
    const DATA: Data;

    /// Plans it. `list` is what was pulled, as long as [`Data::List`] says.
    ///
    /// # Errors
    /// How it ends that cannot be done.
    fn run(sqe: &Sqe, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Refusal>;
}

/// Plans a command: entry, what it sees, what was pulled.
type Run = fn(&Sqe, &mut Context<'_>, &[u8]) -> Result<Plan, Refusal>;

/// A command in the table.
#[derive(Clone, Copy)]
pub struct Row {
    /// All there is to say of it.
    pub policy: Policy,
    /// Its data.
    pub data: Data,
    /// Plans it.
    pub run: Run,
}

const fn row<C: CommandType>() -> Row {
    Row { policy: C::POLICY, data: C::DATA, run: C::run }
}

/// Declares the table from the list of types.
macro_rules! table {
    ($($command:ty),* $(,)?) => {
        /// Every command.
        pub static TABLE: &[Row] = &[$(row::<$command>()),*];
        const ALL: &[Code] = &[$(<$command>::POLICY.code),*];
    };
}

table! {
    cmd::queues::DeleteSubmissionQueue,
    cmd::queues::CreateSubmissionQueue,
    cmd::log::GetLogPage,
    cmd::queues::DeleteCompletionQueue,
    cmd::queues::CreateCompletionQueue,
    cmd::identify::Identify,
    cmd::admin::Abort,
    cmd::features::SetFeatures,
    cmd::features::GetFeatures,
    cmd::admin::AsynchronousEventRequest,
    cmd::manage::NamespaceManagement,
    cmd::sanitize::DeviceSelfTest,
    cmd::manage::NamespaceAttachment,
    cmd::admin::KeepAlive,
    cmd::queues::DoorbellBufferConfig,
    cmd::format::FormatNvm,
    cmd::sanitize::Sanitize,
    cmd::io::Flush,
    cmd::io::Write,
    cmd::io::Read,
    cmd::io::WriteUncorrectable,
    cmd::io::Compare,
    cmd::io::WriteZeroes,
    cmd::ranges::DatasetManagement,
    cmd::io::Verify,
    cmd::reserve::Register,
    cmd::reserve::Report,
    cmd::reserve::Acquire,
    cmd::reserve::Release,
    cmd::ranges::Copy,
    cmd::fabrics::PropertySet,
    cmd::fabrics::Connect,
    cmd::fabrics::PropertyGet,
    cmd::auth::AuthenticationSend,
    cmd::auth::AuthenticationReceive,
    cmd::fabrics::Disconnect,
}

/// Codes of one set.
const CODES: usize = 256;

/// Where each code of each set is in the table, one more; 0: nowhere.
static PLACES: [[u8; CODES]; 3] = places();

const fn places() -> [[u8; CODES]; 3] {
    let mut places = [[0; CODES]; 3];
    let mut at = 0;
    while at < ALL.len() {
        let code = ALL[at];
        places[code.set as usize][code.op as usize] = at as u8 + 1;
        at += 1;
    }
    places
}

/// The command of this code.
#[must_use]
pub fn find(code: Code) -> Option<&'static Row> {
    let place = PLACES[code.set as usize][usize::from(code.op)];
    TABLE.get(usize::from(place).wrapping_sub(1))
}

/// The command that an entry names on a queue of this identifier.
#[must_use]
pub fn find_entry(sqe: &Sqe, queue: u16) -> Option<&'static Row> {
    find(match (sqe.opcode, queue) {
        (FABRICS, _) => Code { set: Set::Fabrics, op: sqe.fabrics_type() },
        (op, 0) => Code { set: Set::Admin, op },
        (op, _) => Code { set: Set::Io, op },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_by_its_code_and_is_in_order() {
        for row in TABLE {
            let found = find(row.policy.code).expect("it is in the table");
            assert_eq!(found.policy, row.policy);
        }
        assert!(TABLE.windows(2).all(|two| two[0].policy.code < two[1].policy.code));
        assert!(find(Code { set: Set::Admin, op: 0xff }).is_none());
        assert!(TABLE.len() < 255, "places are bytes");
    }

    #[test]
    fn data_goes_the_way_that_the_code_says() {
        use crate::command::Direction;
        use zerocopy::FromZeros;
        for row in TABLE {
            let mut sqe = Sqe::new_zeroed();
            match row.policy.code.set {
                Set::Fabrics => (sqe.opcode, sqe.nsid) = (FABRICS, u32::from(row.policy.code.op).into()),
                _ => sqe.opcode = row.policy.code.op,
            }
            let agrees = match row.data {
                Data::Answer(_) => sqe.direction() == Direction::In,
                Data::List(_) => sqe.direction() == Direction::Out,
                Data::None | Data::Step | Data::Queues => true,
            };
            assert!(agrees, "{}", row.policy.name);
        }
    }
}

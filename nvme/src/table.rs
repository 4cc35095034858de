//! The table of commands: one type per command and one row per type. Admission, documentation and log pages are derived
//! from the rows.
//!
//! The `impl` of [`CommandType`] states every fact about a command. None has a default, so a command that forgets one
//! does not compile. All commands have the same submission queue entry, so the types have no fields: `run` reads the
//! dwords of its command.

use crate::cmd;
use crate::command::{FABRICS, Sqe};
use crate::row::{CommandType, Row};
use lunar_core::traffic::Class;

pub use crate::policy::{Code, Set};

const fn row<C: CommandType>() -> Row {
    Row { policy: C::POLICY, data: C::DATA, class: class(C::POLICY.code), run: C::run }
}

/// The class of a command in metrics. Only commands of a namespace count for a unit.
const fn class(code: Code) -> Class {
    match (code.set, code.op) {
        (Set::Io, 0x01) => Class::Write,
        (Set::Io, 0x02) => Class::Read,
        (Set::Io, 0x09) => Class::Unmap,
        (Set::Io, 0x19) => Class::Copy,
        _ => Class::Other,
    }
}

/// Declares the table from the list of types.
macro_rules! table {
    ($($command:ty),* $(,)?) => {
        /// All commands, in the order of their codes.
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
    cmd::namespace_management::NamespaceManagement,
    cmd::sanitize::DeviceSelfTest,
    cmd::namespace_management::NamespaceAttachment,
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

/// The number of codes of a set.
const CODES: usize = 256;

/// The index in the table of each code of each set, plus one. 0: there is no such command.
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

/// The command of an entry on the queue of this identifier.
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
    use crate::row::Data;

    #[test]
    fn every_command_is_found_by_its_code_and_the_table_is_in_order() {
        for row in TABLE {
            let found = find(row.policy.code).expect("a row");
            assert_eq!(found.policy, row.policy);
        }
        assert!(TABLE.windows(2).all(|two| two[0].policy.code < two[1].policy.code));
        assert!(find(Code { set: Set::Admin, op: 0xff }).is_none());
        assert!(TABLE.len() < 255, "places are bytes");
    }

    #[test]
    fn the_opcode_of_a_command_has_the_direction_of_its_data() {
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

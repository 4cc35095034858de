//! The table of commands: one type per command, one row per type, and everything that derives from the rows.
//!
//! The one `impl` of [`CommandType`] has all facts of a command. No fact has a default, so none can be forgotten.

use crate::cmd;
use crate::request::{ByteRange, Error, Request};
use lunar_core::step::Step;
use lunar_core::unit::Unit;
use std::ops::RangeInclusive;

/// Whether a condition stops a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gate {
    /// The command is refused.
    Stops,
    /// The command runs.
    Passes,
}

/// The effect of the reservation of another client on a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reservation {
    /// Conflict under every type.
    Conflict,
    /// Conflict, unless the type is Write Exclusive.
    WriteExclusivePasses,
    /// Allowed.
    Passes,
}

/// The conditions that stop a command: read by [`admit`](crate::admit::admit) alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admission {
    /// A reservation.
    pub reservation: Reservation,
    /// A path whose asymmetric access state is not active.
    pub inaccessible: Gate,
    /// A medium that was removed.
    pub removed: Gate,
    /// A medium that is being formatted or sanitized.
    pub rewrite: Gate,
    /// A medium whose format or sanitize did not finish.
    pub unformatted: Gate,
    /// Write protection.
    pub write_protect: Gate,
}

/// All facts of a command except its code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// The name, for logs and documents.
    pub name: &'static str,
    /// Numbers of ranges that a request may have.
    pub ranges: RangeInclusive<usize>,
    /// Most bytes of one range.
    pub bytes_max: u64,
    /// The direction of its data.
    pub flow: Flow,
    /// The conditions that stop it.
    pub admission: Admission,
}

/// The direction of the data of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// No data.
    None,
    /// To the client.
    In,
    /// To the unit.
    Out,
}

/// The work of a request that has passed all checks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Nothing: the request has no bytes.
    Done,
    /// A step.
    Do(Step),
    /// The extents of a range.
    Survey(ByteRange),
    /// Names and serial number of the unit.
    Identify,
}

/// A command.
pub trait CommandType {
    /// The facts of the command.
    const POLICY: Policy;

    /// Plans it for a unit. The ranges of the request were checked against the policy and the unit.
    ///
    /// # Errors
    /// The error of a request that cannot be executed.
    fn run(request: &Request<'_>, context: &Context<'_>) -> Result<Plan, Error>;
}

/// The context in which a command is planned.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The unit.
    pub unit: &'a Unit,
    /// Whether a write may end before its data is on the medium.
    pub caches_writes: bool,
}

/// A command in the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The facts of the command.
    pub policy: Policy,
    /// Plans it.
    pub run: fn(&Request<'_>, &Context<'_>) -> Result<Plan, Error>,
}

const fn row<C: CommandType>() -> Row {
    Row { policy: C::POLICY, run: C::run }
}

/// Declares the codes and the table from the list of types.
macro_rules! table {
    ($($(#[$doc:meta])* $code:ident: $command:ty),* $(,)?) => {
        /// The commands.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Code {
            $($(#[$doc])* $code),*
        }

        impl Code {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$code),*];
        }

        /// A row for each code, in the same order.
        static TABLE: &[Row] = &[$(row::<$command>()),*];
    };
}

table! {
    /// Reads one range.
    Read: cmd::io::Read,
    /// Writes one range.
    Write: cmd::io::Write,
    /// Reads one range and returns no data.
    Verify: cmd::io::Verify,
    /// All data whose write has ended is on the medium afterwards.
    Flush: cmd::io::Flush,
    /// Deallocates ranges.
    Discard: cmd::space::Discard,
    /// Writes zeroes to one range, without data.
    WriteZeroes: cmd::space::WriteZeroes,
    /// Reports which bytes of one range are allocated.
    Extents: cmd::space::Extents,
    /// Returns names and serial number of the unit.
    Identify: cmd::identify::Identify,
}

/// The row of a command.
#[inline]
#[must_use]
pub fn find(code: Code) -> &'static Row {
    &TABLE[code as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_the_row_of_its_name() {
        let names: Vec<String> = Code::ALL.iter().map(|code| find(*code).policy.name.replace(' ', "")).collect();
        let codes: Vec<String> = Code::ALL.iter().map(|code| format!("{code:?}")).collect();
        assert_eq!(names.iter().map(|name| name.to_lowercase()).collect::<Vec<_>>(), {
            codes.iter().map(|code| code.to_lowercase()).collect::<Vec<_>>()
        });
    }

    #[test]
    fn commands_that_change_the_medium_stop_at_every_gate() {
        for code in [Code::Write, Code::Discard, Code::WriteZeroes] {
            let admission = &find(code).policy.admission;
            assert_eq!(admission.reservation, Reservation::Conflict, "{code:?}");
            let all = [
                admission.inaccessible,
                admission.removed,
                admission.rewrite,
                admission.unformatted,
                admission.write_protect,
            ];
            assert_eq!(all, [Gate::Stops; 5], "{code:?}");
        }
    }
}

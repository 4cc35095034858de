//! Rows of commands that only a device executes: the policy without a plan.

use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{Flow, Row};

/// The effect of a group of commands, and the conditions under which they are executed.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    effect: Effect,
    admission: Admission,
}

const fn manner(effect: Effect, persistent: Persistent, write_protect: Gate, timeout: Timeout) -> Manner {
    forwarding(Forwarding::Device, effect, persistent, write_protect, timeout)
}

const fn forwarding(
    forwarded: Forwarding,
    effect: Effect,
    persistent: Persistent,
    write_protect: Gate,
    timeout: Timeout,
) -> Manner {
    let admission = Admission {
        needs: None,
        forwarded,
        attention: Gate::Stops,
        spc2: Gate::Stops,
        persistent,
        alua: Alua::Active,
        not_ready: Gate::Passes,
        write_protect,
        timeout,
    };
    Manner { effect, admission }
}

/// Reports what the device knows.
pub const ASKS: Manner = manner(Effect::None, Persistent::Passes, Gate::Passes, Timeout::Quick);
/// Reads the medium at a place that the command names.
pub const READS: Manner = manner(Effect::Read, Persistent::WriteExclusivePasses, Gate::Passes, Timeout::Transfer);
/// Reads the medium at the position, which all nexuses have in common, and moves it.
pub const READS_ON: Manner = manner(Effect::Read, Persistent::Conflict, Gate::Passes, Timeout::Transfer);
/// Moves the position or a medium.
pub const MOVES: Manner = manner(Effect::Read, Persistent::Conflict, Gate::Passes, Timeout::Long);
/// Writes the medium.
pub const WRITES: Manner = manner(Effect::Write, Persistent::Conflict, Gate::Stops, Timeout::Transfer);
/// Writes much of the medium, or waits until it is written.
pub const REWRITES: Manner = manner(Effect::Write, Persistent::Conflict, Gate::Stops, Timeout::Long);
/// Changes the device, not the medium.
pub const CONTROLS: Manner = manner(Effect::None, Persistent::Conflict, Gate::Passes, Timeout::Transfer);
/// Would harm the other nexuses: refused unless the operator allows the operation code.
pub const REFUSED: Manner =
    forwarding(Forwarding::Refused, Effect::Rewrite, Persistent::Conflict, Gate::Stops, Timeout::Long);

/// The row of a command.
#[must_use]
pub const fn row(
    code: (u8, Option<u8>),
    (name, clause): (&'static str, &'static str),
    length: usize,
    flow: Flow,
    Manner { effect, admission }: Manner,
) -> Row {
    let code = match code {
        (op, Some(action)) => Code::with_action(OpCode(op), action),
        (op, None) => Code::of(OpCode(op)),
    };
    Row::of_device(Policy { name, clause, code, effect, admission }, length, flow)
}

/// The service action of a row, if its macro has one.
#[must_use]
pub const fn action(of: &[u8]) -> Option<u8> {
    if of.is_empty() { None } else { Some(of[0]) }
}

/// A group of rows: operation code, service action; name and clause; bytes of the CDB; data; manner.
macro_rules! device_rows {
    ($(
        $op:literal $(/ $action:literal)?, $name:literal, $clause:literal, $length:literal, $flow:ident, $manner:ident;
    )*) => {
        &[$($crate::forwarding::rows::row(
            ($op, $crate::forwarding::rows::action(&[$($action)?])),
            ($name, $clause),
            $length,
            $crate::row::Flow::$flow,
            $crate::forwarding::rows::$manner,
        )),*]
    };
}

pub(crate) use device_rows;

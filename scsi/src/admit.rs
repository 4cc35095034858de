//! The one place that decides whether a command may be executed now.

use crate::command::Status;
use crate::lu::Emulated;
use crate::nexus::{Addressee, ItlNexus};
use crate::policy::{Admission, Alua, Effect, Gate, OpCode, Persistent, Policy};
pub use crate::refusal::{Ending, Refusal};
use crate::row::Row;
use crate::sense::{Asc, NOT_STARTED, Sense, SenseKey};
use lunar_unit::reserve::Held;
use lunar_unit::{AccessState, MediumState};

/// Decides whether the command of `row` may be executed now.
///
/// # Errors
/// The refusal of a command that is stopped. A unit attention that is reported by it is taken.
pub fn admit(row: &Row, addressee: &Addressee) -> Result<(), Refusal> {
    match addressee {
        Addressee::Unit(itl) if nothing_stops(row, itl) => Ok(()),
        Addressee::Unit(itl) => examine(&row.policy, itl),
        Addressee::WellKnown | Addressee::NoUnit => Ok(()),
    }
}

/// Whether no condition can stop this command.
#[inline]
pub(crate) fn nothing_stops(row: &Row, itl: &ItlNexus) -> bool {
    itl.is_clear() && itl.lu.is_clear() && row.policy.admission.needs.is_none()
}

/// Decides whether a command that was sent to another logical unit may access this one now, under this policy.
///
/// # Errors
/// As [`admit`].
pub fn pass(policy: &Policy, itl: &ItlNexus) -> Result<(), Refusal> {
    examine(policy, itl)
}

/// Checks all conditions. Called only if one of them may stop a command.
#[cold]
fn examine(policy: &Policy, itl: &ItlNexus) -> Result<(), Refusal> {
    let admission = &policy.admission;
    // The device of a forwarded logical unit checks by itself its capabilities, its medium and whether it is ready.
    let emulated = itl.lu.emulated();
    if let (Some(capability), Some(lu)) = (admission.needs, emulated)
        && !(capability.is_met)(lu)
    {
        return Err(Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE).into());
    }
    if admission.attention == Gate::Stops
        && let Some(sense) = itl.take_attention()
    {
        return Err(sense.into());
    }
    accessible(admission.alua, itl.access())?;
    if conflicts(admission, itl.held()) {
        return Err(Refusal::bare(Status::RESERVATION_CONFLICT));
    }
    if let Some(lu) = emulated {
        ready(policy, lu)?;
    }
    if admission.write_protect == Gate::Stops && itl.write_protected() {
        return Err(Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED).into());
    }
    Ok(())
}

/// Checks the asymmetric access state (SPC-4 5.15.2.4).
fn accessible(admits: Alua, state: AccessState) -> Result<(), Sense> {
    let (enough, asc) = match state {
        AccessState::ActiveOptimized | AccessState::ActiveNonOptimized => return Ok(()),
        AccessState::Standby => (Alua::Standby, Asc::NOT_READY_STANDBY),
        AccessState::Transitioning => (Alua::Every, Asc::NOT_READY_TRANSITION),
        AccessState::Offline => (Alua::Settled, Asc::NOT_READY_OFFLINE),
        AccessState::Unavailable => (Alua::Settled, Asc::NOT_READY_UNAVAILABLE),
    };
    if admits >= enough { Ok(()) } else { Err(Sense::new(SenseKey::NOT_READY, asc)) }
}

/// Checks whether the logical unit can execute the command: medium loaded, medium usable, not stopped.
fn ready(policy: &Policy, lu: &Emulated) -> Result<(), Sense> {
    let needs_medium = policy.admission.not_ready == Gate::Stops;
    if let (true, Some(sense)) = (needs_medium, lu.tray_sense()) {
        return Err(sense);
    }
    usable(policy, lu)?;
    if needs_medium && lu.is_stopped() { Err(NOT_STARTED) } else { Ok(()) }
}

/// Checks the state of the medium (SBC-3 4.11, 5.3.1). Commands that are executed in every access state need no medium.
fn usable(policy: &Policy, lu: &Emulated) -> Result<(), Sense> {
    let is_usable = match lu.medium() {
        MediumState::Ready => true,
        _ if policy.admission.alua >= Alua::Settled => true,
        MediumState::Formatting | MediumState::Sanitizing { .. } => false,
        MediumState::FormatCorrupted | MediumState::FormatFailed => policy.effect == Effect::Rewrite,
        MediumState::SanitizeFailed { .. } => policy.code.op == OpCode::SANITIZE,
    };
    if is_usable { Ok(()) } else { Err(lu.medium_sense()) }
}

fn conflicts(admission: &Admission, held: Held) -> bool {
    match held {
        Held::None => false,
        Held::Spc2 => admission.spc2 == Gate::Stops,
        Held::WriteExclusive => admission.persistent == Persistent::Conflict,
        Held::ExclusiveAccess => admission.persistent != Persistent::Passes,
    }
}

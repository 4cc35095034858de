//! The one place that decides whether a command may run now.

use crate::access::AluaState;
use crate::command::Status;
use crate::lu::{LogicalUnit, MediumState};
use crate::nexus::{Addressee, Held, ItlNexus};
use crate::sense::{Asc, Sense, SenseKey};
use crate::table::{Alua, Effect, Gate, Gates, Needs, OpCode, Persistent, Policy, Reach, Row};
use std::ops::Deref;

/// Why a command ends without having done what it asks. Behind a pointer: it is seldom, and results that carry it are
/// moved for every command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal(Box<Ending>);

/// What a [`Refusal`] holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ending {
    /// The status.
    pub status: Status,
    /// The sense data of CHECK CONDITION.
    pub sense: Option<Sense>,
    /// Bytes that it would have moved, where that is known: see [`Reply::wanted`](crate::Reply::wanted).
    pub wanted: u64,
}

impl Refusal {
    /// A status without sense data.
    #[must_use]
    pub fn bare(status: Status) -> Self {
        Self(Box::new(Ending { status, sense: None, wanted: 0 }))
    }

    /// The same, with how many bytes the command would have moved.
    #[must_use]
    pub fn wanting(mut self, wanted: u64) -> Self {
        self.0.wanted = wanted;
        self
    }
}

impl Deref for Refusal {
    type Target = Ending;
    fn deref(&self) -> &Ending {
        &self.0
    }
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Self {
        Self(Box::new(Ending { status: Status::CHECK_CONDITION, sense: Some(sense), wanted: 0 }))
    }
}

/// Whether this addressee has what has this policy at all.
///
/// # Errors
/// INVALID COMMAND OPERATION CODE, or LOGICAL UNIT NOT SUPPORTED where there is none.
pub fn reaches(policy: &Policy, addressee: &Addressee) -> Result<(), Sense> {
    let reach = policy.gates.reach;
    let has = match addressee {
        Addressee::Disk(itl) => reach.covers(itl.lu.kind),
        Addressee::WellKnown => matches!(reach, Reach::WellKnown | Reach::Anywhere),
        Addressee::Nobody if reach == Reach::Anywhere => true,
        Addressee::Nobody => return Err(Sense::illegal(Asc::LOGICAL_UNIT_NOT_SUPPORTED)),
    };
    if has { Ok(()) } else { Err(Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE)) }
}

/// Decides whether the command of `row`, which the addressee has, may run for it now.
///
/// # Errors
/// How the command ends if it may not. A unit attention that is told by it is told.
pub fn admit(row: &Row, addressee: &Addressee) -> Result<(), Refusal> {
    match addressee {
        Addressee::Disk(itl) if nothing_stops(row, itl) => Ok(()),
        Addressee::Disk(itl) => examine(&row.policy, itl),
        Addressee::WellKnown | Addressee::Nobody => Ok(()),
    }
}

/// Whether nothing stands in any such command's way.
#[inline]
pub(crate) fn nothing_stops(row: &Row, itl: &ItlNexus) -> bool {
    itl.is_clear() && itl.lu.is_clear() && row.policy.gates.needs == Needs::Nothing
}

/// Decides whether what has this policy may be done to this disk now, which a command does that was not sent to it.
///
/// # Errors
/// As [`reaches`] and [`admit`].
pub fn pass(policy: &Policy, itl: &ItlNexus) -> Result<(), Refusal> {
    if !policy.gates.reach.covers(itl.lu.kind) {
        return Err(Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE).into());
    }
    examine(policy, itl)
}

/// The long way: something stands in some command's way.
#[cold]
fn examine(policy: &Policy, itl: &ItlNexus) -> Result<(), Refusal> {
    let gates = &policy.gates;
    if !itl.lu.meets(gates.needs) {
        return Err(Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE).into());
    }
    if gates.attention == Gate::Stops
        && let Some(sense) = itl.take_attention()
    {
        return Err(sense.into());
    }
    accessible(gates.alua, itl.alua())?;
    if conflicts(gates, itl.held()) {
        return Err(Refusal::bare(Status::RESERVATION_CONFLICT));
    }
    if gates.not_ready == Gate::Stops
        && let Some(sense) = itl.lu.tray().sense(itl.lu.kind)
    {
        return Err(sense.into());
    }
    usable(policy, &itl.lu)?;
    if gates.not_ready == Gate::Stops && itl.lu.stopped() {
        return Err(Sense::new(SenseKey::NOT_READY, Asc::NOT_READY_START_REQUIRED).into());
    }
    if gates.write_protect == Gate::Stops && itl.write_protected() {
        return Err(Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED).into());
    }
    Ok(())
}

/// SPC-4 5.15.2.4
fn accessible(admits: Alua, state: AluaState) -> Result<(), Sense> {
    let (enough, asc) = match state {
        AluaState::ACTIVE_OPTIMIZED | AluaState::ACTIVE_NON_OPTIMIZED => return Ok(()),
        AluaState::STANDBY => (Alua::Standby, Asc::NOT_READY_STANDBY),
        AluaState::TRANSITIONING => (Alua::Every, Asc::NOT_READY_TRANSITION),
        AluaState::OFFLINE => (Alua::Settled, Asc::NOT_READY_OFFLINE),
        _ => (Alua::Settled, Asc::NOT_READY_UNAVAILABLE),
    };
    if admits >= enough { Ok(()) } else { Err(Sense::new(SenseKey::NOT_READY, asc)) }
}

/// Whether the medium is in a state for it (SBC-3 4.11, 5.3.1). Commands that every state of access admits ask nothing
/// of a medium.
fn usable(policy: &Policy, lu: &LogicalUnit) -> Result<(), Sense> {
    let is_usable = match lu.medium() {
        MediumState::Ready => true,
        _ if policy.gates.alua >= Alua::Settled => true,
        MediumState::Formatting | MediumState::Sanitizing => false,
        MediumState::FormatCorrupted | MediumState::FormatFailed => policy.effect == Effect::Renew,
        MediumState::SanitizeFailed { .. } => policy.code.op == OpCode::SANITIZE,
    };
    if is_usable { Ok(()) } else { Err(lu.medium().sense(lu)) }
}

fn conflicts(gates: &Gates, held: Held) -> bool {
    match held {
        Held::None => false,
        Held::Spc2 => gates.spc2 == Gate::Stops,
        Held::WriteExclusive => gates.persistent == Persistent::Conflict,
        Held::ExclusiveAccess => gates.persistent != Persistent::Passes,
    }
}

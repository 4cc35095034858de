//! Requests that change the reservations of a unit, and the reasons for which they are refused.

use lunar_core::port::NexusName;
use std::sync::Arc;

/// A request that may change the reservations of a unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// RESERVE(6), RESERVE(10).
    Reserve,
    /// RELEASE(6), RELEASE(10).
    Release,
    /// PERSISTENT RESERVE OUT; NVMe: Reservation Register, Acquire and Release.
    Persistent(PersistentRequest),
    /// Sets whether registrations and reservation persist through power loss. NVMe has a feature for it, which a host
    /// may set without being registered.
    SetPtpl(bool),
    /// Replaces the list of clients of the block command set that have the unit for themselves.
    SetList {
        /// The clients; none: the list ends.
        names: Vec<NexusName>,
        /// Whether a list without the requester is replaced, too.
        force: bool,
        /// Whether the list persists through power loss.
        ptpl: bool,
    },
}

/// A request of PERSISTENT RESERVE OUT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PersistentRequest {
    /// The service action.
    pub action: Action,
    /// SCOPE and TYPE, as they are in the CDB.
    pub scope_and_type: u8,
    /// RESERVATION KEY.
    pub key: u64,
    /// SERVICE ACTION RESERVATION KEY.
    pub action_key: u64,
}

/// Service actions of PERSISTENT RESERVE OUT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// REGISTER, REGISTER AND IGNORE EXISTING KEY.
    Register {
        /// Whether the registered key is not compared.
        ignore_key: bool,
        /// APTPL; `None`: no change, which NVMe can request (CPTPL 00b).
        ptpl: Option<bool>,
        /// The target ports at which the nexus is registered: its own, or all of them (ALL_TG_PT).
        ports: Vec<u16>,
        /// Further initiator ports that are registered (SPEC_I_PT).
        initiators: Vec<Arc<str>>,
    },
    /// RESERVE.
    Reserve,
    /// RELEASE.
    Release,
    /// CLEAR.
    Clear,
    /// PREEMPT, PREEMPT AND ABORT.
    Preempt {
        /// Whether the tasks of the preempted registrants are aborted.
        abort: bool,
    },
    /// REGISTER AND MOVE.
    Move {
        /// The nexus that is registered and receives the reservation.
        to: NexusName,
        /// UNREG.
        unregister: bool,
        /// APTPL.
        ptpl: bool,
    },
}

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denial {
    /// Another nexus holds a reservation, or the key is wrong.
    Conflict,
    /// The scope is not the whole unit.
    Scope,
    /// There is no such type.
    Type,
    /// The service action key.
    ActionKey,
    /// A nexus that is registered already specifies initiator ports.
    SpecifiesInitiators,
    /// A specified initiator port is registered already.
    InitiatorRegistered,
    /// The reservation is moved to a nexus that cannot take it.
    MoveTo,
    /// The released reservation has another type.
    Release,
    /// There are [`REGISTRANTS_MAX`](super::REGISTRANTS_MAX) registrants, or a name is too long to be saved.
    NoRoom,
}

//! Who may use a logical unit while others may not: RESERVE and RELEASE as SPC-2 has them, and persistent reservations
//! (SPC-4 5.13), which are the reservations of NVMe as well: whoever comes over which transport, a unit has one state.
//! The state as a value, and what each request makes of it.
//!
//! * this file: the state, and what it means to a nexus; `change`: what the requests do to it
//! * `kept`: the state as bytes that outlive a restart; `shared`: the state of a unit among all cores

mod change;
mod kept;
mod shared;

pub use shared::{Malformed, RESERVATIONS, Shared, SharedUnits, Turn};

use crate::codes;
use crate::port::NexusName;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Registrants of a unit at most: a cluster has hundreds of hosts with a few paths each, and all that is kept of them
/// fits [`KEEP_BYTES_MAX`](crate::keep::KEEP_BYTES_MAX).
pub const REGISTRANTS_MAX: usize = 4096;

/// What the name of an NVMe host begins with among registrants; its host identifier follows, in hexadecimal digits.
pub const HOST: &str = "nvme,";

codes! {
    /// Types of persistent reservations (SPC-4 6.15.3.4).
    pub struct Kind(u8) {
        WRITE_EXCLUSIVE = 1, EXCLUSIVE_ACCESS = 3, WRITE_EXCLUSIVE_REGISTRANTS_ONLY = 5,
        EXCLUSIVE_ACCESS_REGISTRANTS_ONLY = 6, WRITE_EXCLUSIVE_ALL_REGISTRANTS = 7,
        EXCLUSIVE_ACCESS_ALL_REGISTRANTS = 8,
    }
}

impl Kind {
    /// Whether others may not read either.
    #[must_use]
    pub fn excludes_reads(self) -> bool {
        let all = [Self::EXCLUSIVE_ACCESS, Self::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY];
        all.contains(&self) || self == Self::EXCLUSIVE_ACCESS_ALL_REGISTRANTS
    }

    /// Whether whoever is registered may use the unit like the holder.
    #[must_use]
    pub fn admits_registrants(self) -> bool {
        ![Self::WRITE_EXCLUSIVE, Self::EXCLUSIVE_ACCESS].contains(&self)
    }

    /// Whether whoever is registered is a holder.
    #[must_use]
    pub fn is_held_by_all(self) -> bool {
        [Self::WRITE_EXCLUSIVE_ALL_REGISTRANTS, Self::EXCLUSIVE_ACCESS_ALL_REGISTRANTS].contains(&self)
    }
}

/// A persistent reservation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// Its type.
    pub kind: Kind,
    /// Who holds it; `None`: all who are registered, for the types that have it so.
    pub holder: Option<NexusName>,
}

/// The reservations of a logical unit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reservations {
    generation: u32,
    /// APTPL: whether registrations and reservation outlive a restart.
    outlives: bool,
    /// Registered nexuses and their keys, none of which is zero.
    registrants: BTreeMap<NexusName, u64>,
    persistent: Option<Reservation>,
    spc2: Option<NexusName>,
}

/// What another nexus's reservation means for a nexus.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Held {
    /// There is none, or it is this nexus's own, or this nexus is registered and that is enough.
    #[default]
    None,
    /// RESERVE(6), RESERVE(10).
    Spc2,
    /// A persistent one of the Write Exclusive types.
    WriteExclusive,
    /// A persistent one of the Exclusive Access types.
    ExclusiveAccess,
}

/// What a nexus is told of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// The reservation that let it in by its registration was released.
    Released,
    /// Reservation and registrations were cleared.
    Cleared,
    /// Its registration was preempted.
    Preempted,
}

/// Why a request changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denial {
    /// Another's reservation, or the wrong key.
    Conflict,
    /// No scope but the whole unit.
    Scope,
    /// No such type.
    Kind,
    /// The key that is acted upon.
    ActionKey,
    /// Others are named by one who is registered.
    Naming,
    /// Others are named who are registered.
    Named,
    /// The reservation is handed to one who cannot take it.
    MoveTo,
    /// What is released has another type.
    Release,
    /// There are [`REGISTRANTS_MAX`].
    NoRoom,
}

/// What the nexuses must be told of a change, and what ends by it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct News {
    /// Who is told what.
    pub told: BTreeMap<NexusName, Told>,
    /// Whether the tasks of nexuses whose registrations were preempted are aborted.
    pub aborts: bool,
}

impl News {
    /// Whether a nexus's tasks end.
    #[must_use]
    pub fn ends(&self, name: &NexusName) -> bool {
        self.aborts && self.told.get(name) == Some(&Told::Preempted)
    }
}

/// A request that may change the reservations of a unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// RESERVE(6), RESERVE(10).
    Reserve,
    /// RELEASE(6), RELEASE(10).
    Release,
    /// PERSISTENT RESERVE OUT.
    Persistent(Order),
    /// Whether registrations and reservation outlive a restart: NVMe has it as a feature, for whoever may set one.
    Outlive(bool),
}

/// What PERSISTENT RESERVE OUT asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// What to do.
    pub action: Action,
    /// SCOPE and TYPE, as they are in the CDB.
    pub scope_and_kind: u8,
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
        /// Whether the registered key is not asked for.
        ignore: bool,
        /// APTPL.
        outlives: bool,
        /// The target ports at which it is registered: the one of the nexus, or all (ALL_TG_PT).
        ports: Vec<u16>,
        /// Initiator ports that are registered as well (SPEC_I_PT).
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
        /// Whether the tasks of the preempted are aborted.
        abort: bool,
    },
    /// REGISTER AND MOVE.
    Move {
        /// Who is registered and gets the reservation.
        to: NexusName,
        /// UNREG.
        unregister: bool,
        /// APTPL.
        outlives: bool,
    },
}

impl Reservations {
    /// PRGENERATION: changes of registrations.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Who is registered, with the keys.
    pub fn registrants(&self) -> impl Iterator<Item = (&NexusName, u64)> {
        self.registrants.iter().map(|(name, key)| (name, *key))
    }

    /// The persistent reservation, and its holder's key: zero where all who are registered hold it.
    #[must_use]
    pub fn reservation(&self) -> Option<(&Reservation, u64)> {
        let reservation = self.persistent.as_ref()?;
        let key = reservation.holder.as_ref().and_then(|holder| self.registrants.get(holder));
        Some((reservation, key.copied().unwrap_or(0)))
    }

    /// Whether registrations and reservation outlive a restart (PTPL_A).
    #[must_use]
    pub fn outlives(&self) -> bool {
        self.outlives
    }

    /// Who holds an SPC-2 reservation.
    #[must_use]
    pub fn spc2(&self) -> Option<&NexusName> {
        self.spc2.as_ref()
    }

    /// Ends the SPC-2 reservation: a reset, or the loss of its nexus.
    pub fn forget_spc2(&mut self) {
        self.spc2 = None;
    }

    /// Whether a nexus holds the persistent reservation.
    #[must_use]
    pub fn is_holder(&self, name: &NexusName) -> bool {
        match &self.persistent {
            Some(Reservation { holder: Some(holder), .. }) => holder == name,
            Some(Reservation { holder: None, .. }) => self.registrants.contains_key(name),
            None => false,
        }
    }

    /// Whether a nexus may use the unit under the persistent reservation like its holder.
    fn is_in(&self, name: &NexusName) -> bool {
        let open = self.persistent.as_ref().is_some_and(|reservation| reservation.kind.admits_registrants());
        self.is_holder(name) || open && self.registrants.contains_key(name)
    }

    /// What the reservations mean to a nexus.
    #[must_use]
    pub fn held(&self, name: &NexusName) -> Held {
        match (&self.spc2, &self.persistent) {
            (Some(holder), _) if holder != name => Held::Spc2,
            (_, Some(reservation)) if !self.is_in(name) => match reservation.kind.excludes_reads() {
                true => Held::ExclusiveAccess,
                false => Held::WriteExclusive,
            },
            _ => Held::None,
        }
    }
}

#[cfg(test)]
#[path = "reserve_tests.rs"]
mod tests;

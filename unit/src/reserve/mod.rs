//! Reservations of a unit: RESERVE and RELEASE of SPC-2, and persistent reservations (SPC-4 5.13), which are also the
//! reservations of NVMe (NVMe Base 2.0 8.19). A unit has one state for all transports and command sets.
//!
//! * this file: the state as a value, and its meaning for a nexus
//! * [`request`]: requests that change the state; `change`: the state after a request
//! * `record`: the state as a metadata record

mod change;
mod record;
pub mod request;

pub use record::{MalformedReservations, RESERVATIONS};
pub use request::{Action, Denial, PersistentRequest, Request};

use lunar_core::codes;
use lunar_core::port::NexusName;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

/// Most registrants of a unit: a cluster has hundreds of hosts with a few paths each, and the record of all of them
/// fits into [`METADATA_BYTES_MAX`](lunar_core::metadata::METADATA_BYTES_MAX).
pub const REGISTRANTS_MAX: usize = 4096;

/// Prefix of the names of NVMe hosts among registrants. The host identifier follows, in hexadecimal digits.
pub const HOST_PREFIX: &str = "nvme,";

/// Prefix of the names of clients of the block command set among registrants. The name that the transport gives them
/// follows.
pub const BLOCK_PREFIX: &str = "block,";

/// The registration key of all clients of a list ([`Request::SetList`]). Its value has no meaning: the names count.
pub const LIST_KEY: u64 = 0x6c69_7374;

codes! {
    /// Types of persistent reservations (SPC-4 6.15.3.4).
    pub struct ReservationType(u8) {
        WRITE_EXCLUSIVE = 1, EXCLUSIVE_ACCESS = 3, WRITE_EXCLUSIVE_REGISTRANTS_ONLY = 5,
        EXCLUSIVE_ACCESS_REGISTRANTS_ONLY = 6, WRITE_EXCLUSIVE_ALL_REGISTRANTS = 7,
        EXCLUSIVE_ACCESS_ALL_REGISTRANTS = 8,
    }
}

impl ReservationType {
    /// Whether nexuses without access must not read either.
    #[must_use]
    pub fn excludes_reads(self) -> bool {
        let all = [Self::EXCLUSIVE_ACCESS, Self::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY];
        all.contains(&self) || self == Self::EXCLUSIVE_ACCESS_ALL_REGISTRANTS
    }

    /// Whether every registrant has the access of the holder.
    #[must_use]
    pub fn admits_registrants(self) -> bool {
        ![Self::WRITE_EXCLUSIVE, Self::EXCLUSIVE_ACCESS].contains(&self)
    }

    /// Whether every registrant is a holder.
    #[must_use]
    pub fn is_held_by_all(self) -> bool {
        [Self::WRITE_EXCLUSIVE_ALL_REGISTRANTS, Self::EXCLUSIVE_ACCESS_ALL_REGISTRANTS].contains(&self)
    }
}

/// A persistent reservation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// Its type.
    pub kind: ReservationType,
    /// Its holder; `None` for the types that all registrants hold.
    pub holder: Option<NexusName>,
}

/// The reservations of a unit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reservations {
    generation: u32,
    ptpl: bool,
    /// Registered nexuses and their keys, none of which is zero.
    registrants: BTreeMap<NexusName, u64>,
    persistent: Option<Reservation>,
    spc2: Option<NexusName>,
}

/// How the reservations of a unit restrict one nexus.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Held {
    /// No restriction: there is no reservation, or the nexus has the access of its holder.
    #[default]
    None,
    /// Another nexus holds a reservation by RESERVE(6) or RESERVE(10).
    Spc2,
    /// Another nexus holds a persistent reservation of a Write Exclusive type.
    WriteExclusive,
    /// Another nexus holds a persistent reservation of an Exclusive Access type.
    ExclusiveAccess,
}

/// The notice to a registrant after the request of another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A reservation that admitted it as a registrant was released (SPC-4 5.13.11.2.2; NVMe: reservation released).
    ReservationReleased,
    /// Reservation and registrations were cleared (SPC-4 5.13.11.2.7; NVMe: reservation preempted).
    ReservationPreempted,
    /// Its registration was preempted (SPC-4 5.13.11.2.4; NVMe: registration preempted).
    RegistrationPreempted,
}

/// The effects of a request on registrants other than the requester.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReservationNotices {
    /// The registrants that are notified, each with its notice.
    pub told: BTreeMap<NexusName, Notice>,
    /// The registrants whose tasks are aborted: PREEMPT AND ABORT.
    pub aborted: BTreeSet<NexusName>,
}

/// The reservations of all units without any.
static NONE: LazyLock<Arc<Reservations>> = LazyLock::new(Arc::default);

impl Reservations {
    /// Behind a pointer, which units without any have in common.
    pub(crate) fn shared(self) -> Arc<Self> {
        if self == **NONE { NONE.clone() } else { Arc::new(self) }
    }

    /// PRGENERATION: the number of changes of registrations.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The registrants and their keys.
    pub fn registrants(&self) -> impl Iterator<Item = (&NexusName, u64)> {
        self.registrants.iter().map(|(name, key)| (name, *key))
    }

    /// The key that a nexus has registered.
    #[must_use]
    pub fn key_of(&self, name: &NexusName) -> Option<u64> {
        self.registrants.get(name).copied()
    }

    /// The persistent reservation, and the key of its holder: zero for the types that all registrants hold.
    #[must_use]
    pub fn reservation(&self) -> Option<(&Reservation, u64)> {
        let reservation = self.persistent.as_ref()?;
        let key = reservation.holder.as_ref().and_then(|holder| self.key_of(holder));
        Some((reservation, key.unwrap_or(0)))
    }

    /// Whether registrations and reservation persist through power loss (APTPL, PTPL).
    #[must_use]
    pub fn ptpl(&self) -> bool {
        self.ptpl
    }

    /// The holder of an SPC-2 reservation.
    #[must_use]
    pub fn spc2(&self) -> Option<&NexusName> {
        self.spc2.as_ref()
    }

    /// The clients of the list ([`Request::SetList`]) in force; empty if there is none.
    #[must_use]
    pub fn list(&self) -> Vec<&NexusName> {
        let kind = self.persistent.as_ref().map(|reservation| reservation.kind);
        let is_list = kind == Some(ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS);
        self.registrants.keys().filter(|name| is_list && name.initiator.starts_with(BLOCK_PREFIX)).collect()
    }

    /// Whether registrations or reservations of other command sets exclude a list.
    #[must_use]
    pub fn excludes_lists(&self) -> bool {
        self.spc2.is_some() || self.registrants.keys().any(|name| !name.initiator.starts_with(BLOCK_PREFIX))
    }

    /// Ends the SPC-2 reservation if `holder` holds it, or, without a name, whichever nexus does. Returns whether there
    /// was one.
    pub fn end_spc2(&mut self, holder: Option<&NexusName>) -> bool {
        self.spc2.take_if(|name| holder.is_none_or(|holder| holder == name)).is_some()
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

    /// Whether a nexus has the access of the holder of the persistent reservation.
    fn has_access(&self, name: &NexusName) -> bool {
        let admits = self.persistent.as_ref().is_some_and(|reservation| reservation.kind.admits_registrants());
        self.is_holder(name) || admits && self.registrants.contains_key(name)
    }

    /// How the reservations restrict a nexus.
    #[must_use]
    pub fn held(&self, name: &NexusName) -> Held {
        match (&self.spc2, &self.persistent) {
            (Some(holder), _) if holder != name => Held::Spc2,
            (_, Some(reservation)) if !self.has_access(name) => match reservation.kind.excludes_reads() {
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

//! Reservations as SCSI speaks of them: the state is [`lunar_core::reserve`]'s, one for all command sets.
//!
//! * this file: why a request is refused, and what nexuses are told, in SCSI's words
//! * [`transport_id`]: initiator ports as the standard names them; `carry`: a request on all cores

mod carry;
pub mod transport_id;

use crate::admit::Refusal;
use crate::command::Status;
use crate::sense::{Asc, Sense};
pub use lunar_core::reserve::*;

/// Where the parameter list of PERSISTENT RESERVE OUT has the fields that are refused.
mod field {
    /// SERVICE ACTION RESERVATION KEY.
    pub(super) const ACTION_KEY: usize = 8;
    /// SPEC_I_PT, and its bit.
    pub(super) const SPEC_I_PT: (usize, u8) = (20, 3);
    /// The first TransportID behind the list of REGISTER.
    pub(super) const INITIATORS: usize = 28;
    /// The TransportID in the list of REGISTER AND MOVE.
    pub(super) const MOVE_TO: usize = 24;
    /// SCOPE and TYPE in the CDB: the byte, and the left-most bit of each.
    pub(super) const SCOPE: (usize, u8) = (2, 7);
    pub(super) const KIND: (usize, u8) = (2, 3);
}

impl From<Denial> for Refusal {
    fn from(denial: Denial) -> Self {
        let sense = match denial {
            Denial::Conflict => return Self::bare(Status::RESERVATION_CONFLICT),
            Denial::Scope => Sense::bit_in_cdb(field::SCOPE.0, field::SCOPE.1),
            Denial::Kind => Sense::bit_in_cdb(field::KIND.0, field::KIND.1),
            Denial::ActionKey => Sense::in_list(field::ACTION_KEY),
            Denial::Naming => Sense::bit_in_list(field::SPEC_I_PT.0, field::SPEC_I_PT.1),
            Denial::Named => Sense::in_list(field::INITIATORS),
            Denial::MoveTo => Sense::in_list(field::MOVE_TO),
            Denial::Release => Sense::illegal(Asc::INVALID_RELEASE_OF_PERSISTENT_RESERVATION),
            Denial::NoRoom => Sense::illegal(Asc::INSUFFICIENT_REGISTRATION_RESOURCES),
        };
        sense.into()
    }
}

/// The unit attention of a nexus that is told of a change (SPC-4 5.13.11).
pub(crate) fn attention(told: Told) -> Asc {
    match told {
        Told::Released => Asc::RESERVATIONS_RELEASED,
        Told::Cleared => Asc::RESERVATIONS_PREEMPTED,
        Told::Preempted => Asc::REGISTRATIONS_PREEMPTED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senses_point_at_their_fields() {
        let sense = |denial| Refusal::from(denial).sense;
        assert_eq!(Refusal::from(Denial::Conflict), Refusal::bare(Status::RESERVATION_CONFLICT));
        assert_eq!(sense(Denial::ActionKey), Some(Sense::in_list(8)));
        assert_eq!(sense(Denial::MoveTo), Some(Sense::in_list(24)));
        assert_eq!(sense(Denial::Scope), Some(Sense::bit_in_cdb(2, 7)));
        assert_eq!(sense(Denial::Kind), Some(Sense::bit_in_cdb(2, 3)));
        assert_eq!(sense(Denial::Naming), Some(Sense::bit_in_list(20, 3)));
        assert_eq!(sense(Denial::Named), Some(Sense::in_list(28)));
    }
}

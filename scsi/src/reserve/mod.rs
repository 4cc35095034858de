//! Reservations in the terms of SCSI. Their state belongs to the unit: [`lunar_unit::reserve`].
//!
//! * this file: refusals and unit attention conditions; [`transport_id`]: initiator ports as the standard names them

pub mod transport_id;

use crate::admit::Refusal;
use crate::command::Status;
use crate::sense::{Asc, Sense};
use lunar_unit::reserve::{Denial, Notice};

/// Fields that refusals refer to.
mod field {
    /// SERVICE ACTION RESERVATION KEY in the parameter list of PERSISTENT RESERVE OUT.
    pub(super) const ACTION_KEY: usize = 8;
    /// SPEC_I_PT in the parameter list, and its bit.
    pub(super) const SPEC_I_PT: (usize, u8) = (20, 3);
    /// The first TransportID behind the list of REGISTER.
    pub(super) const INITIATORS: usize = 28;
    /// The TransportID in the list of REGISTER AND MOVE.
    pub(super) const MOVE_TO: usize = 24;
    /// SCOPE in the CDB, and its left-most bit.
    pub(super) const SCOPE: (usize, u8) = (2, 7);
    /// TYPE in the CDB, and its left-most bit.
    pub(super) const TYPE: (usize, u8) = (2, 3);
}

impl From<Denial> for Refusal {
    fn from(denial: Denial) -> Self {
        let sense = match denial {
            Denial::Conflict => return Self::bare(Status::RESERVATION_CONFLICT),
            Denial::Scope => Sense::bit_in_cdb(field::SCOPE.0, field::SCOPE.1),
            Denial::Type => Sense::bit_in_cdb(field::TYPE.0, field::TYPE.1),
            Denial::ActionKey => Sense::in_list(field::ACTION_KEY),
            Denial::SpecifiesInitiators => Sense::bit_in_list(field::SPEC_I_PT.0, field::SPEC_I_PT.1),
            Denial::InitiatorRegistered => Sense::in_list(field::INITIATORS),
            Denial::MoveTo => Sense::in_list(field::MOVE_TO),
            Denial::Release => Sense::illegal(Asc::INVALID_RELEASE_OF_PERSISTENT_RESERVATION),
            Denial::NoRoom => Sense::illegal(Asc::INSUFFICIENT_REGISTRATION_RESOURCES),
        };
        sense.into()
    }
}

/// The unit attention condition of a registrant that is notified of the request of another one (SPC-4 5.13.11).
pub(crate) fn attention(notice: Notice) -> Asc {
    match notice {
        Notice::ReservationReleased => Asc::RESERVATIONS_RELEASED,
        Notice::ReservationPreempted => Asc::RESERVATIONS_PREEMPTED,
        Notice::RegistrationPreempted => Asc::REGISTRATIONS_PREEMPTED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_point_at_the_wrong_field() {
        let sense = |denial| Refusal::from(denial).sense;
        assert_eq!(Refusal::from(Denial::Conflict), Refusal::bare(Status::RESERVATION_CONFLICT));
        assert_eq!(sense(Denial::ActionKey), Some(Sense::in_list(8)));
        assert_eq!(sense(Denial::MoveTo), Some(Sense::in_list(24)));
        assert_eq!(sense(Denial::Scope), Some(Sense::bit_in_cdb(2, 7)));
        assert_eq!(sense(Denial::Type), Some(Sense::bit_in_cdb(2, 3)));
        assert_eq!(sense(Denial::SpecifiesInitiators), Some(Sense::bit_in_list(20, 3)));
        assert_eq!(sense(Denial::InitiatorRegistered), Some(Sense::in_list(28)));
    }
}

//! Asymmetric access states in the codes of SCSI (SPC-4 5.15.2).

use lunar_core::codes;
use lunar_unit::AccessState;
use lunar_unit::access::AccessCause;

codes! {
    /// Asymmetric access states (SPC-4 5.15.2.4).
    pub(crate) struct AluaState(u8) {
        ACTIVE_OPTIMIZED = 0x0, ACTIVE_NON_OPTIMIZED = 0x1, STANDBY = 0x2, UNAVAILABLE = 0x3, OFFLINE = 0xe,
        TRANSITIONING = 0xf,
    }
}

impl AluaState {
    /// The code of a state.
    pub(crate) fn of(state: AccessState) -> Self {
        match state {
            AccessState::ActiveOptimized => Self::ACTIVE_OPTIMIZED,
            AccessState::ActiveNonOptimized => Self::ACTIVE_NON_OPTIMIZED,
            AccessState::Standby => Self::STANDBY,
            AccessState::Unavailable => Self::UNAVAILABLE,
            AccessState::Offline => Self::OFFLINE,
            AccessState::Transitioning => Self::TRANSITIONING,
        }
    }

    /// The state of this code.
    pub(crate) fn state(self) -> Option<AccessState> {
        AccessState::ALL.into_iter().find(|state| Self::of(*state) == self)
    }
}

/// STATUS CODE (SPC-4 6.37).
pub(crate) fn status_code(cause: AccessCause) -> u8 {
    match cause {
        AccessCause::None => 0,
        AccessCause::Explicit => 1,
        AccessCause::Implicit => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_a_code_of_its_own() {
        for state in AccessState::ALL {
            assert_eq!(AluaState::of(state).state(), Some(state));
        }
        assert_eq!(AluaState(4).state(), None);
    }
}

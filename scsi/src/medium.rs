//! The sense data of commands that the state or the position of a medium stops.

use crate::sense::{Asc, Sense, SenseKey};
use lunar_core::medium::MediumKind;
use lunar_unit::{MediumState, TrayPosition};

/// The sense data of a command that needs a medium in state [`MediumState::Ready`]; `progress` is that of a rewrite.
#[must_use]
pub(crate) fn state_sense(state: MediumState, progress: u16) -> Sense {
    let (key, asc) = match state {
        MediumState::Ready => return Sense::NONE,
        MediumState::Formatting => (SenseKey::NOT_READY, Asc::NOT_READY_FORMAT_IN_PROGRESS),
        MediumState::Sanitizing { .. } => (SenseKey::NOT_READY, Asc::NOT_READY_SANITIZE_IN_PROGRESS),
        MediumState::FormatCorrupted => return Sense::new(SenseKey::MEDIUM_ERROR, Asc::MEDIUM_FORMAT_CORRUPTED),
        MediumState::FormatFailed => return Sense::new(SenseKey::MEDIUM_ERROR, Asc::FORMAT_COMMAND_FAILED),
        MediumState::SanitizeFailed { .. } => {
            return Sense::new(SenseKey::MEDIUM_ERROR, Asc::SANITIZE_COMMAND_FAILED);
        }
    };
    Sense::new(key, asc).with_progress(progress)
}

/// The sense data of a command that needs the medium in the drive; `None` if it is there. A removable disk has no tray
/// that could be closed.
#[must_use]
pub(crate) fn tray_sense(position: TrayPosition, kind: MediumKind) -> Option<Sense> {
    let asc = match (position, kind) {
        (TrayPosition::Loaded, _) => return None,
        (TrayPosition::Ejected | TrayPosition::RemovedOpen, _) => Asc::MEDIUM_NOT_PRESENT_TRAY_OPEN,
        (TrayPosition::RemovedClosed, MediumKind::Optical) => Asc::MEDIUM_NOT_PRESENT_TRAY_CLOSED,
        (TrayPosition::RemovedClosed, _) => Asc::MEDIUM_NOT_PRESENT,
    };
    Some(Sense::new(SenseKey::NOT_READY, asc))
}

/// MEDIA EVENT (MMC-6 6.6.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MediaEvent {
    /// No event.
    #[default]
    None = 0,
    /// The operator requests the medium, whose removal a client prevents.
    EjectRequest = 1,
    /// A medium was loaded.
    NewMedia = 2,
    /// The medium was removed.
    MediaRemoval = 3,
}

impl MediaEvent {
    /// The event of a motion from one position to another.
    pub(crate) fn of(before: TrayPosition, after: TrayPosition) -> Option<Self> {
        match (before.is_loaded(), after.is_loaded()) {
            (false, true) => Some(Self::NewMedia),
            (true, false) => Some(Self::MediaRemoval),
            _ => None,
        }
    }
}

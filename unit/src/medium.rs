//! The medium of a unit as its users see it: whether its content can be used, and where a removable medium is.

/// Whether the content of a medium can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MediumState {
    /// It can be read and written.
    #[default]
    Ready,
    /// A format is in progress.
    Formatting,
    /// A sanitize is in progress.
    Sanitizing {
        /// Whether EXIT FAILURE MODE is allowed if it fails (AUSE).
        can_exit: bool,
    },
    /// A format was interrupted. Only another format or a sanitize makes the medium usable.
    FormatCorrupted,
    /// A format failed. Only another format or a sanitize makes the medium usable.
    FormatFailed,
    /// A sanitize failed. Only another sanitize makes the medium usable.
    SanitizeFailed {
        /// Whether EXIT FAILURE MODE is allowed (AUSE).
        can_exit: bool,
    },
}

impl MediumState {
    /// Whether a format or a sanitize is in progress.
    #[must_use]
    pub fn is_rewriting(self) -> bool {
        matches!(self, Self::Formatting | Self::Sanitizing { .. })
    }
}

/// Where the medium of a unit is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TrayPosition {
    /// In the drive. The medium of a fixed disk always is.
    #[default]
    Loaded,
    /// In the open tray: a client ejected it, and may load it again.
    Ejected,
    /// Removed by the operator; the tray is open.
    RemovedOpen,
    /// Removed by the operator; the tray is closed.
    RemovedClosed,
}

impl TrayPosition {
    /// Whether commands reach the medium.
    #[must_use]
    pub fn is_loaded(self) -> bool {
        self == Self::Loaded
    }

    /// Whether the tray is open.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Self::Ejected | Self::RemovedOpen)
    }
}

//! Changes of the position of a medium, and of whether it may be removed.

use lunar_core::port::NexusName;

/// A change of the position of a medium, or of whether it may be removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RemovalChange {
    /// The nexus of this name prevents the removal (SPC-4 PREVENT).
    Prevent(NexusName),
    /// The nexus of this name allows the removal.
    Allow(NexusName),
    /// The medium moves.
    Move(Motion, Mover),
    /// The medium stays in the drive, because written data could not be flushed to it.
    EjectFailed,
    /// The operator requests the medium, whose removal a client prevents. The position does not change.
    Requested,
}

/// The direction in which a medium moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Motion {
    /// Out of the drive.
    Eject,
    /// Into the drive.
    Load,
}

/// The origin of a motion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mover {
    /// A client, by START STOP UNIT.
    Client,
    /// The operator. A medium that the operator ejects is removed from the tray: only the operator can load one again.
    Operator {
        /// Whether the medium moves although a client prevents it.
        forced: bool,
    },
}

//! A disk as all nexuses of this core see it: its unit, its mode parameters, whether it was stopped.

use crate::cmd::block::atomic_blocks_max;
use crate::mode;
use crate::sense::{Asc, Sense, SenseKey};
use crate::table::Needs;
use lunar_core::unit::Unit;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

/// Mode parameters that MODE SELECT may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModeValues {
    /// WCE: whether a write may be answered before it is on the medium (SBC-3 6.5.6).
    pub write_cache: bool,
    /// D_SENSE: descriptor format sense data (SPC-4 7.5.8).
    pub descriptor_sense: bool,
    /// SWP: software write protection (SPC-4 7.5.8).
    pub write_protect: bool,
}

/// What a medium is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MediumState {
    /// It can be read and written.
    #[default]
    Ready,
    /// FORMAT UNIT is under way.
    Formatting,
    /// SANITIZE is under way.
    Sanitizing,
    /// FORMAT UNIT failed: only another one helps.
    FormatFailed,
    /// SANITIZE failed: only another one helps.
    SanitizeFailed {
        /// Or EXIT FAILURE MODE (AUSE).
        exits: bool,
    },
}

impl MediumState {
    /// What a command is told that it does not admit.
    #[must_use]
    pub(crate) fn sense(self, lu: &LogicalUnit) -> Sense {
        let (key, asc) = match self {
            Self::Ready => return Sense::NONE,
            Self::Formatting => (SenseKey::NOT_READY, Asc::NOT_READY_FORMAT_IN_PROGRESS),
            Self::Sanitizing => (SenseKey::NOT_READY, Asc::NOT_READY_SANITIZE_IN_PROGRESS),
            Self::FormatFailed => return Sense::new(SenseKey::MEDIUM_ERROR, Asc::FORMAT_COMMAND_FAILED),
            Self::SanitizeFailed { .. } => return Sense::new(SenseKey::MEDIUM_ERROR, Asc::SANITIZE_COMMAND_FAILED),
        };
        Sense::new(key, asc).with_progress(lu.unit.medium.progress())
    }
}

/// A change of a logical unit that every core must know of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Mode parameters.
    Mode(ModeValues),
    /// START STOP UNIT.
    Stopped(bool),
    /// FORMAT UNIT, SANITIZE.
    Medium(MediumState),
    /// The counters of the log pages begin at zero.
    LogReset,
    /// Back to how it was after power on: a reset.
    Reset,
}

impl Change {
    /// What the other nexuses are told.
    #[must_use]
    pub fn attention(self) -> Option<Asc> {
        match self {
            Self::Mode(_) => Some(Asc::MODE_PARAMETERS_CHANGED),
            Self::Stopped(_) | Self::Medium(_) => None,
            Self::LogReset => Some(Asc::LOG_PARAMETERS_CHANGED),
            Self::Reset => Some(Asc::BUS_DEVICE_RESET),
        }
    }
}

/// Which of two changes is the later one: the same on all cores, so that all end up alike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Stamp {
    /// Changes before it.
    pub count: u64,
    /// The core where it was made, for those made at once.
    pub core: u16,
}

/// A disk.
pub struct LogicalUnit {
    /// Its number at this target.
    pub lun: u16,
    /// Its blocks, identity and store.
    pub unit: Rc<Unit>,
    mode: Cell<ModeValues>,
    stopped: Cell<bool>,
    medium: Cell<MediumState>,
    stamp: Cell<Stamp>,
    /// Whether it stands in no command's way: not stopped, not write-protected, a medium that is ready.
    clear: Cell<bool>,
}

impl LogicalUnit {
    /// A disk as it is after power on.
    #[must_use]
    pub fn new(lun: u16, unit: Rc<Unit>) -> Self {
        let mode = Cell::new(mode::default_values(&unit));
        let disk = Self {
            lun,
            unit,
            mode,
            stopped: Cell::new(false),
            medium: Cell::default(),
            stamp: Cell::default(),
            clear: Cell::new(false),
        };
        disk.refresh();
        disk
    }

    /// The same disk with another view of its unit.
    #[must_use]
    pub(crate) fn with_unit(&self, unit: Rc<Unit>) -> Self {
        let disk = Self::new(self.lun, unit);
        disk.mode.set(self.mode.get());
        disk.stopped.set(self.stopped.get());
        disk.medium.set(self.medium.get());
        disk.stamp.set(self.stamp.get());
        disk.refresh();
        disk
    }

    /// Its mode parameters.
    #[must_use]
    pub fn mode(&self) -> ModeValues {
        self.mode.get()
    }

    /// Whether START STOP UNIT stopped it.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stopped.get()
    }

    /// What its medium is in.
    #[must_use]
    pub fn medium(&self) -> MediumState {
        self.medium.get()
    }

    /// Whether writes are refused.
    #[must_use]
    pub fn write_protected(&self) -> bool {
        self.unit.read_only || self.mode.get().write_protect
    }

    /// Whether it stands in no command's way.
    #[must_use]
    pub(crate) fn is_clear(&self) -> bool {
        self.clear.get()
    }

    /// Whether blocks may be unmapped (LBPME).
    #[must_use]
    pub fn provisioning(&self) -> bool {
        self.unit.traits().unmap_granularity > 0
    }

    /// Whether it is capable of what a command needs.
    #[must_use]
    pub(crate) fn meets(&self, needs: Needs) -> bool {
        match needs {
            Needs::Nothing => true,
            Needs::Provisioning => self.provisioning(),
            Needs::AtomicWrites => atomic_blocks_max(&self.unit) > 0,
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.unit.geometry.block_size
    }

    /// Makes a change, unless a later one was made already.
    pub(crate) fn apply(&self, change: Change, stamp: Stamp) {
        // One works on a medium at a time and waits until all know: no change of it can overtake another.
        if !matches!(change, Change::Medium(_)) {
            if stamp < self.stamp.get() {
                return;
            }
            self.stamp.set(stamp);
        }
        match change {
            Change::Mode(values) => self.mode.set(values),
            Change::Stopped(stopped) => self.stopped.set(stopped),
            Change::Medium(state) => self.medium.set(state),
            // The numbers are those of all cores: each letter does it again, which does not matter.
            Change::LogReset => self.unit.tally.reset(),
            Change::Reset => {
                self.mode.set(mode::default_values(&self.unit));
                self.stopped.set(false);
            }
        }
        self.refresh();
    }

    fn refresh(&self) {
        self.clear.set(!self.stopped.get() && !self.write_protected() && self.medium.get() == MediumState::Ready);
    }
}

impl fmt::Debug for LogicalUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogicalUnit({} {:?})", self.lun, self.unit)
    }
}

//! A disk as all nexuses of this core see it: its unit, and what commands have set of it.

use crate::access::{Access, AluaState};
use crate::cmd::block::atomic_blocks_max;
use crate::information::{self, Kind};
use crate::mode;
use crate::sense::{Asc, Sense, SenseKey};
use crate::table::Needs;
use lunar_core::reserve::Shared;
use lunar_core::unit::Unit;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// Mode parameters that MODE SELECT may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModeValues {
    /// WCE: whether a write may be answered before it is on the medium (SBC-4 6.5.6).
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Mode parameters.
    Mode {
        /// As they are from now on.
        values: ModeValues,
        /// Whether a reset and a restart bring them back.
        save: bool,
    },
    /// START STOP UNIT.
    Stopped(bool),
    /// The states of all target port groups.
    Access(Arc<[Access]>),
    /// SET TIMESTAMP: milliseconds that the target's clock is behind.
    Clock(i64),
    /// SET IDENTIFYING INFORMATION.
    Information(Kind, Arc<[u8]>),
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
    pub fn attention(&self) -> Option<Asc> {
        match self {
            Self::Mode { .. } => Some(Asc::MODE_PARAMETERS_CHANGED),
            Self::Stopped(_) | Self::Medium(_) => None,
            Self::LogReset => Some(Asc::LOG_PARAMETERS_CHANGED),
            Self::Access(_) => Some(Asc::ASYMMETRIC_ACCESS_STATE_CHANGED),
            Self::Clock(_) => Some(Asc::TIMESTAMP_CHANGED),
            Self::Information(..) => Some(Asc::DEVICE_IDENTIFIER_CHANGED),
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

/// What changes independently: a later change of one is not a later change of another.
#[derive(Clone, Copy)]
enum Aspect {
    Mode,
    Stopped,
    Access,
    Clock,
    Information(Kind),
}

impl Aspect {
    const COUNT: usize = 4 + Kind::ALL.len();

    fn index(self) -> usize {
        match self {
            Self::Mode => 0,
            Self::Stopped => 1,
            Self::Access => 2,
            Self::Clock => 3,
            Self::Information(kind) => 4 + kind as usize,
        }
    }
}

/// What commands have set of a disk.
#[derive(Clone)]
struct State {
    mode: ModeValues,
    saved: Option<ModeValues>,
    stopped: bool,
    /// Target port groups that are not as after power on, and some that are.
    accesses: Arc<[Access]>,
    clock: Option<i64>,
    information: [Arc<[u8]>; Kind::ALL.len()],
    stamps: [Stamp; Aspect::COUNT],
}

impl State {
    fn new(unit: &Unit) -> Self {
        let saved = mode::load(unit);
        Self {
            mode: saved.unwrap_or_else(|| mode::default_values(unit)),
            saved,
            stopped: false,
            accesses: Arc::default(),
            clock: None,
            information: Kind::ALL.map(|kind| information::load(unit, kind)),
            stamps: Default::default(),
        }
    }

    /// Whether a change is the latest of its kind; then it is the one to beat.
    fn is_due(&mut self, aspect: Aspect, stamp: Stamp) -> bool {
        let last = &mut self.stamps[aspect.index()];
        let due = stamp >= *last;
        *last = stamp.max(*last);
        due
    }

    /// Makes a change, unless a later one was made already; tells whether there is something to tell.
    fn apply(&mut self, unit: &Unit, change: &Change, stamp: Stamp) -> bool {
        match change {
            Change::Mode { values, save } => {
                if !self.is_due(Aspect::Mode, stamp) {
                    return false;
                }
                if *save {
                    self.saved = Some(*values);
                }
                std::mem::replace(&mut self.mode, *values) != *values
            }
            Change::Stopped(stopped) => {
                if self.is_due(Aspect::Stopped, stamp) {
                    self.stopped = *stopped;
                }
                false
            }
            Change::Access(accesses) => {
                self.is_due(Aspect::Access, stamp) && {
                    let before = std::mem::replace(&mut self.accesses, accesses.clone());
                    accesses.iter().any(|access| state_in(&before, access.group) != access.state)
                }
            }
            Change::Clock(behind) => {
                self.is_due(Aspect::Clock, stamp) && {
                    self.clock = Some(*behind);
                    true
                }
            }
            Change::Information(kind, bytes) => {
                self.is_due(Aspect::Information(*kind), stamp)
                    && std::mem::replace(&mut self.information[*kind as usize], bytes.clone()) != *bytes
            }
            Change::Medium(_) => false,
            // The numbers are those of all cores: each letter does it again, which does not matter.
            Change::LogReset => {
                unit.tally.reset();
                true
            }
            Change::Reset => {
                if self.is_due(Aspect::Mode, stamp) {
                    self.mode = self.saved.unwrap_or_else(|| mode::default_values(unit));
                }
                if self.is_due(Aspect::Stopped, stamp) {
                    self.stopped = false;
                }
                true
            }
        }
    }
}

fn access_in(accesses: &[Access], group: u16) -> Access {
    accesses.iter().find(|access| access.group == group).copied().unwrap_or_else(|| Access::initial(group))
}

fn state_in(accesses: &[Access], group: u16) -> AluaState {
    access_in(accesses, group).state
}

/// A disk.
pub struct LogicalUnit {
    /// Its number at this target.
    pub lun: u16,
    /// Its blocks, identity and store.
    pub unit: Rc<Unit>,
    /// What it has in common with its views on other cores.
    pub(crate) shared: Arc<Shared>,
    state: RefCell<State>,
    /// The values of its mode parameters, where every write looks.
    mode: Cell<ModeValues>,
    medium: Cell<MediumState>,
    /// Whether it stands in no command's way: not stopped, not write-protected, a medium that is ready.
    clear: Cell<bool>,
}

impl LogicalUnit {
    /// A disk as it is after power on.
    #[must_use]
    pub(crate) fn new(lun: u16, unit: Rc<Unit>, shared: Arc<Shared>) -> Self {
        let state = State::new(&unit);
        Self::with_state(lun, unit, shared, state, MediumState::default())
    }

    /// The same disk with another view of its unit.
    #[must_use]
    pub(crate) fn with_unit(&self, unit: Rc<Unit>) -> Self {
        Self::with_state(self.lun, unit, self.shared.clone(), self.state.borrow().clone(), self.medium.get())
    }

    fn with_state(lun: u16, unit: Rc<Unit>, shared: Arc<Shared>, state: State, medium: MediumState) -> Self {
        let (mode, medium) = (Cell::new(state.mode), Cell::new(medium));
        let disk = Self { lun, unit, shared, state: RefCell::new(state), mode, medium, clear: Cell::new(false) };
        disk.refresh();
        disk
    }

    /// Its mode parameters.
    #[must_use]
    pub fn mode(&self) -> ModeValues {
        self.mode.get()
    }

    /// Its mode parameters as they were saved; `None` if they never were.
    #[must_use]
    pub fn saved_mode(&self) -> Option<ModeValues> {
        self.state.borrow().saved
    }

    /// Whether START STOP UNIT stopped it.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.state.borrow().stopped
    }

    /// A target port group as it has it.
    #[must_use]
    pub fn access(&self, group: u16) -> Access {
        access_in(&self.state.borrow().accesses, group)
    }

    /// These target port groups as it has them.
    #[must_use]
    pub fn accesses(&self, groups: &[u16]) -> Vec<Access> {
        groups.iter().map(|group| self.access(*group)).collect()
    }

    /// Milliseconds that the target's clock is behind its own; `None` if nobody has set its own.
    #[must_use]
    pub fn clock(&self) -> Option<i64> {
        self.state.borrow().clock
    }

    /// Its identifying information; empty if nobody has set any.
    #[must_use]
    pub fn information(&self, kind: Kind) -> Arc<[u8]> {
        self.state.borrow().information[kind as usize].clone()
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

    /// Makes a change, unless a later one was made already; tells whether there is something to tell.
    pub(crate) fn apply(&self, change: &Change, stamp: Stamp) -> bool {
        // One works on a medium at a time and waits until all know: no change of it can overtake another.
        if let Change::Medium(state) = change {
            self.medium.set(*state);
        }
        let told = self.state.borrow_mut().apply(&self.unit, change, stamp);
        self.refresh();
        told
    }

    fn refresh(&self) {
        let state = self.state.borrow();
        self.mode.set(state.mode);
        self.clear.set(!state.stopped && !self.write_protected() && self.medium.get() == MediumState::Ready);
    }
}

impl fmt::Debug for LogicalUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogicalUnit({} {:?})", self.lun, self.unit)
    }
}

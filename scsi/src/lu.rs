//! A disk as all nexuses of this core see it: its unit, and what commands have set of it.

use crate::access::Access;
use crate::cmd::block::atomic_blocks_max;
use crate::information::{self, Kind};
use crate::log;
use crate::mode;
use crate::renew::kept;
use crate::sense::{Asc, Sense, SenseKey};
use crate::table::Needs;
use crate::thin::{Resource, Threshold, Watch};
use crate::tray::Tray;
use lunar_core::io::Space;
use lunar_core::medium::{Content, MediumKind};
use lunar_core::protection::{self, Protection};
use lunar_core::reserve::Shared;
use lunar_core::unit::Unit;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// Mode parameters that MODE SELECT may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ModeValues {
    /// WCE: whether a write may be answered before it is on the medium (SBC-4 6.5.6).
    pub write_cache: bool,
    /// D_SENSE: descriptor format sense data (SPC-4 7.5.8).
    pub descriptor_sense: bool,
    /// SWP: software write protection (SPC-4 7.5.8).
    pub write_protect: bool,
    /// SITUA: one nexus alone is told of a threshold (SBC-4 6.5.9).
    pub single_attention: bool,
    /// Thresholds of the space that is taken, by [`Resource`] (SBC-4 6.5.9).
    pub thresholds: [Threshold; Resource::ALL.len()],
    /// ATO: the application tags of protection information are the initiators' (SPC-4 7.5.8).
    pub application_tags_owned: bool,
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
    /// FORMAT UNIT was interrupted: only another one, or SANITIZE, helps.
    FormatCorrupted,
    /// FORMAT UNIT failed: only another one, or SANITIZE, helps.
    FormatFailed,
    /// SANITIZE failed: only another one helps.
    SanitizeFailed {
        /// Or EXIT FAILURE MODE (AUSE).
        exits: bool,
    },
}

impl MediumState {
    /// What other command sets have to know of it.
    fn content(self) -> Content {
        match self {
            Self::Ready => Content::Whole,
            Self::Formatting | Self::FormatCorrupted | Self::FormatFailed => Content::Unformatted,
            Self::Sanitizing | Self::SanitizeFailed { .. } => Content::Unsanitized,
        }
    }

    /// What a command is told that it does not admit.
    #[must_use]
    pub(crate) fn sense(self, lu: &LogicalUnit) -> Sense {
        let (key, asc) = match self {
            Self::Ready => return Sense::NONE,
            Self::Formatting => (SenseKey::NOT_READY, Asc::NOT_READY_FORMAT_IN_PROGRESS),
            Self::Sanitizing => (SenseKey::NOT_READY, Asc::NOT_READY_SANITIZE_IN_PROGRESS),
            Self::FormatCorrupted => return Sense::new(SenseKey::MEDIUM_ERROR, Asc::MEDIUM_FORMAT_CORRUPTED),
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
    /// The medium is ejected or loaded.
    Tray(Tray),
    /// Somebody wants the medium, whose removal is prevented.
    EjectRequest,
    /// FORMAT UNIT: how blocks are protected.
    Protection(protection::Kind),
    /// The counters of the log pages begin at zero, and what initiators have left there is gone.
    LogReset,
    /// What initiators leave in the log.
    ClientLog(Arc<[u8]>),
    /// Back to how it was after power on: a reset.
    Reset,
}

impl Change {
    /// What the other nexuses are told.
    #[must_use]
    pub fn attention(&self) -> Option<Asc> {
        match self {
            Self::Mode { .. } => Some(Asc::MODE_PARAMETERS_CHANGED),
            Self::Stopped(_) | Self::Medium(_) | Self::EjectRequest => None,
            Self::Tray(tray) => (*tray == Tray::Loaded).then_some(Asc::MEDIUM_MAY_HAVE_CHANGED),
            Self::Protection(_) => Some(Asc::CAPACITY_DATA_CHANGED),
            Self::LogReset | Self::ClientLog(_) => Some(Asc::LOG_PARAMETERS_CHANGED),
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
    Saved,
    Stopped,
    Access,
    Clock,
    ClientLog,
    Information(Kind),
}

impl Aspect {
    const COUNT: usize = 6 + Kind::ALL.len();

    fn index(self) -> usize {
        match self {
            Self::Mode => 0,
            Self::Stopped => 1,
            Self::Access => 2,
            Self::Clock => 3,
            Self::Saved => 4,
            Self::ClientLog => 5,
            Self::Information(kind) => 6 + kind as usize,
        }
    }
}

/// What commands have set of a disk.
#[derive(Clone)]
struct State {
    mode: ModeValues,
    saved: Option<ModeValues>,
    /// Whether its store was ever without a cache: initiators that asked then do not flush, so none comes by itself.
    is_uncached: bool,
    stopped: bool,
    /// Target port groups that are not as after power on, and some that are.
    accesses: Arc<[Access]>,
    clock: Option<i64>,
    information: [Arc<[u8]>; Kind::ALL.len()],
    client_log: Arc<[u8]>,
    stamps: [Stamp; Aspect::COUNT],
}

impl State {
    fn new(unit: &Unit) -> Self {
        let saved = mode::load(unit);
        Self {
            mode: saved.unwrap_or_else(|| mode::default_values(unit)),
            saved,
            is_uncached: !unit.traits().write_cache,
            stopped: false,
            accesses: Arc::default(),
            clock: None,
            information: Kind::ALL.map(|kind| information::load(unit, kind)),
            client_log: log::client::load(unit),
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
                if *save && self.is_due(Aspect::Saved, stamp) {
                    self.saved = Some(*values);
                }
                self.is_due(Aspect::Mode, stamp) && std::mem::replace(&mut self.mode, *values) != *values
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
                    let is_other =
                        |before: Access, now: &Access| before.state != now.state || before.preferred != now.preferred;
                    accesses.iter().any(|access| is_other(access_in(&before, access.group), access))
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
            Change::Medium(_) | Change::Tray(_) | Change::EjectRequest => false,
            // One formats at a time, and waits until all know.
            Change::Protection(kind) => unit.protection.as_ref().is_some_and(|protection| {
                let before = protection.kind();
                protection.set_kind(*kind);
                before != *kind
            }),
            // The numbers are those of all cores: each letter does it again, which does not matter.
            Change::LogReset => {
                unit.tally.reset();
                if self.is_due(Aspect::ClientLog, stamp) {
                    self.client_log = Arc::default();
                }
                true
            }
            Change::ClientLog(values) => {
                self.is_due(Aspect::ClientLog, stamp)
                    && std::mem::replace(&mut self.client_log, values.clone()) != *values
            }
            Change::Reset => {
                if self.is_due(Aspect::Mode, stamp) {
                    let mut default = mode::default_values(unit);
                    default.write_cache &= !self.is_uncached;
                    self.mode = self.saved.unwrap_or(default);
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

/// A disk.
pub struct LogicalUnit {
    /// Its number at this target.
    pub lun: u16,
    /// Its blocks, identity and store.
    pub unit: Rc<Unit>,
    /// What sort of medium it has: what it is to its initiators.
    pub kind: MediumKind,
    /// What it has in common with its views on other cores.
    pub(crate) shared: Arc<Shared>,
    state: RefCell<State>,
    /// The values of its mode parameters, where every write looks.
    mode: Cell<ModeValues>,
    medium: Cell<MediumState>,
    tray: Cell<Tray>,
    /// How much space it takes, as it was last measured for who asked.
    space: Cell<Option<Space>>,
    /// What was seen of its thresholds.
    pub(crate) watch: Watch,
    /// Whether it stands in no command's way: not stopped, not write-protected, a medium that is there and ready.
    clear: Cell<bool>,
}

impl LogicalUnit {
    /// A disk as it is after power on.
    #[must_use]
    pub(crate) fn new(lun: u16, unit: Rc<Unit>, shared: Arc<Shared>) -> Self {
        let state = State::new(&unit);
        let medium = kept::load(&unit).state;
        unit.medium.set_content(medium.content());
        Self::with_state(lun, unit, shared, state, (medium, Tray::default()))
    }

    /// The same disk with another view of its unit.
    #[must_use]
    pub(crate) fn with_unit(&self, unit: Rc<Unit>) -> Self {
        let medium = (self.medium.get(), self.tray.get());
        let mut state = self.state.borrow().clone();
        state.is_uncached |= !unit.traits().write_cache;
        Self::with_state(self.lun, unit, self.shared.clone(), state, medium)
    }

    fn with_state(
        lun: u16,
        unit: Rc<Unit>,
        shared: Arc<Shared>,
        state: State,
        (medium, tray): (MediumState, Tray),
    ) -> Self {
        let disk = Self {
            lun,
            kind: unit.medium.kind(),
            unit,
            shared,
            mode: Cell::new(state.mode),
            state: RefCell::new(state),
            medium: Cell::new(medium),
            tray: Cell::new(tray),
            space: Cell::new(None),
            watch: Watch::default(),
            clear: Cell::new(false),
        };
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

    /// What initiators have left in the log; empty if nobody has left anything.
    #[must_use]
    pub(crate) fn client_log(&self) -> Arc<[u8]> {
        self.state.borrow().client_log.clone()
    }

    /// How much space it takes, as it was last measured for who asked.
    #[must_use]
    pub(crate) fn space(&self) -> Option<Space> {
        self.space.get()
    }

    pub(crate) fn set_space(&self, space: Option<Space>) {
        self.space.set(space);
    }

    /// What is to be kept under this name, as it is now.
    pub(crate) fn kept(&self, name: &str) -> Option<Vec<u8>> {
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        match kind {
            Some(kind) => Some(self.information(kind).to_vec()),
            None if name == mode::KEPT_AS => self.saved_mode().map(mode::to_keep),
            None => None,
        }
    }

    /// What its medium is in.
    #[must_use]
    pub fn medium(&self) -> MediumState {
        self.medium.get()
    }

    /// Where its medium is.
    #[must_use]
    pub fn tray(&self) -> Tray {
        self.tray.get()
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
            Needs::TypeTwo => self.protection() == protection::Kind::Two,
        }
    }

    /// How its blocks are protected.
    #[must_use]
    pub fn protection(&self) -> protection::Kind {
        self.unit.protected().map_or(protection::Kind::None, Protection::kind)
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
            // Who was admitted before the work does nothing during or after it.
            self.unit.ranges.end_era();
            self.unit.medium.set_content(state.content());
        }
        // Whoever moves it has the turn of all cores until all know.
        if let Change::Tray(tray) = change {
            let before = self.tray.replace(*tray);
            self.refresh();
            return before != *tray;
        }
        let told = self.state.borrow_mut().apply(&self.unit, change, stamp);
        self.refresh();
        told
    }

    fn refresh(&self) {
        let state = self.state.borrow();
        self.mode.set(state.mode);
        if let Some(protection) = &self.unit.protection {
            protection.set_owned(state.mode.application_tags_owned);
        }
        let is_ready = self.medium.get() == MediumState::Ready && self.tray.get() == Tray::Loaded;
        self.clear.set(!state.stopped && !self.write_protected() && is_ready);
    }
}

impl fmt::Debug for LogicalUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogicalUnit({} {:?})", self.lun, self.unit)
    }
}

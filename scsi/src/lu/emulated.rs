//! A logical unit whose commands Lunar executes on a store.

use super::{Common, DeviceState, OtherCommands};
use crate::change::{Change, ModeValues};
use crate::device_server::DeviceServer;
use crate::information::Kind;
use crate::medium::{state_sense, tray_sense};
use crate::peripheral::PeripheralType;
use crate::sense::{NOT_STARTED, Sense};
use lunar_core::medium::MediumKind;
use lunar_core::protection::{self, Protection};
use lunar_core::unit::Unit;
use lunar_unit::{MediumState, SharedUnit, TrayPosition};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

/// The stored parameters of a unit.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Saved mode parameters; `None` if none were saved.
    pub mode: Option<ModeValues>,
    /// Identifying information, by [`Kind`].
    pub information: [Arc<[u8]>; Kind::ALL.len()],
    /// The application client log.
    pub client_log: Arc<[u8]>,
}

/// The parameters of a logical unit that only SCSI has.
#[derive(Clone)]
struct Parameters {
    mode: ModeValues,
    saved: Option<ModeValues>,
    /// Whether the store ever was without a write cache. Initiators that asked then do not flush, so a reset does not
    /// enable the cache.
    is_uncached: bool,
    clock: Option<i64>,
    information: [Arc<[u8]>; Kind::ALL.len()],
    client_log: Arc<[u8]>,
}

impl Parameters {
    /// The parameters after power on.
    fn new(unit: &Unit, stored: Stored) -> Self {
        Self {
            mode: stored.mode.unwrap_or_else(|| ModeValues::default_of(unit)),
            saved: stored.mode,
            is_uncached: !unit.traits().write_cache,
            clock: None,
            information: stored.information,
            client_log: stored.client_log,
        }
    }

    /// Makes a change; returns whether the nexuses must be notified.
    fn apply(&mut self, unit: &Unit, change: &Change, is_saved: bool) -> bool {
        match change {
            Change::Mode(values) => {
                if is_saved {
                    self.saved = Some(*values);
                }
                std::mem::replace(&mut self.mode, *values) != *values
            }
            Change::Clock(behind) => {
                self.clock = Some(*behind);
                true
            }
            Change::Information(kind, bytes) => {
                std::mem::replace(&mut self.information[*kind as usize], bytes.clone()) != *bytes
            }
            // The counters are those of all cores. Each core resets them, which is harmless.
            Change::LogReset => {
                unit.tally.reset();
                self.client_log = Arc::default();
                true
            }
            Change::ClientLog(values) => std::mem::replace(&mut self.client_log, values.clone()) != *values,
            // Of the process that has commands of it.
            Change::Device(_) => true,
            // The state of the device type, and a unit attention of its own.
            Change::Stopped(_) | Change::Threshold(_) => false,
        }
    }

    /// Sets the parameters that a reset sets.
    fn reset(&mut self, unit: &Unit) {
        let mut default = ModeValues::default_of(unit);
        default.write_cache &= !self.is_uncached;
        self.mode = self.saved.unwrap_or(default);
    }
}

/// An emulated logical unit.
pub struct Emulated {
    pub(super) common: Common,
    /// Its blocks, identity and store.
    pub unit: Rc<Unit>,
    /// The kind of its medium.
    pub kind: MediumKind,
    parameters: RefCell<Parameters>,
    /// The mode parameters, which every write reads.
    mode: Cell<ModeValues>,
    medium: Cell<MediumState>,
    tray: Cell<TrayPosition>,
    /// The state that only its device type has.
    pub(crate) device: DeviceState,
    /// The commands that Lunar does not have, and another process has.
    pub(crate) others: Option<OtherCommands>,
    /// Whether no state of it stops a command: it is not stopped, not write-protected, and its medium is loaded and
    /// ready.
    clear: Cell<bool>,
}

impl Deref for Emulated {
    type Target = Common;

    #[inline]
    fn deref(&self) -> &Common {
        &self.common
    }
}

impl Emulated {
    /// A logical unit after power on.
    #[must_use]
    pub(crate) fn new(
        (lun, device_type): (u16, PeripheralType),
        unit: Rc<Unit>,
        shared: Arc<SharedUnit>,
        stored: Stored,
        device: DeviceState,
    ) -> Self {
        let parameters = Parameters::new(&unit, stored);
        Self::with_parameters(Common { lun, device_type, shared }, unit, parameters, device)
    }

    /// The same, with commands that another process executes.
    #[must_use]
    pub(crate) fn with_others(self, others: Option<Rc<dyn DeviceServer>>) -> Self {
        Self { others: others.map(OtherCommands::new), ..self }
    }

    /// The same logical unit with another view of its unit, without the commands of another process.
    #[must_use]
    pub(crate) fn with_unit(&self, unit: Rc<Unit>) -> Self {
        let mut parameters = self.parameters.borrow().clone();
        parameters.is_uncached |= !unit.traits().write_cache;
        let Common { lun, device_type, ref shared } = self.common;
        let common = Common { lun, device_type, shared: shared.clone() };
        Self::with_parameters(common, unit, parameters, self.device.of_new_view())
    }

    fn with_parameters(common: Common, unit: Rc<Unit>, parameters: Parameters, device: DeviceState) -> Self {
        let logical_unit = Self {
            common,
            kind: unit.medium.kind(),
            unit,
            mode: Cell::new(parameters.mode),
            parameters: RefCell::new(parameters),
            medium: Cell::default(),
            tray: Cell::default(),
            device,
            others: None,
            clear: Cell::new(false),
        };
        logical_unit.refresh();
        logical_unit
    }

    /// The mode parameters.
    #[must_use]
    pub fn mode(&self) -> ModeValues {
        self.mode.get()
    }

    /// The saved mode parameters; `None` if none were saved.
    #[must_use]
    pub fn saved_mode(&self) -> Option<ModeValues> {
        self.parameters.borrow().saved
    }

    /// Whether the state of its device type stops commands that access the medium: START STOP UNIT stopped a disk.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.device.is_stopped()
    }

    /// The milliseconds by which the clock of the target is behind the clock of the logical unit; `None` if no
    /// initiator has set it.
    #[must_use]
    pub fn clock(&self) -> Option<i64> {
        self.parameters.borrow().clock
    }

    /// The identifying information; empty if no initiator has set any.
    #[must_use]
    pub fn information(&self, kind: Kind) -> Arc<[u8]> {
        self.parameters.borrow().information[kind as usize].clone()
    }

    /// The application client log; empty if no initiator has written any.
    #[must_use]
    pub(crate) fn client_log(&self) -> Arc<[u8]> {
        self.parameters.borrow().client_log.clone()
    }

    /// The state of its medium.
    #[must_use]
    pub fn medium(&self) -> MediumState {
        self.medium.get()
    }

    /// The position of its medium.
    #[must_use]
    pub fn tray(&self) -> TrayPosition {
        self.tray.get()
    }

    /// The sense data of a command that the state of the medium stops.
    #[must_use]
    pub(crate) fn medium_sense(&self) -> Sense {
        state_sense(self.medium(), self.shared.progress())
    }

    /// The sense data of a command that needs the medium in the drive; `None` if it is there.
    #[must_use]
    pub(crate) fn tray_sense(&self) -> Option<Sense> {
        tray_sense(self.tray(), self.kind)
    }

    /// The sense data of the state of the logical unit, if it cannot execute commands that access the medium.
    #[must_use]
    pub(crate) fn state_sense(&self) -> Option<Sense> {
        let medium = || (self.medium() != MediumState::Ready).then(|| self.medium_sense());
        self.tray_sense().or_else(medium).or_else(|| self.is_stopped().then_some(NOT_STARTED))
    }

    /// Whether writes are refused.
    #[must_use]
    pub fn write_protected(&self) -> bool {
        self.unit.read_only || self.mode.get().write_protect
    }

    /// Whether no state of it stops a command.
    #[must_use]
    pub(crate) fn is_clear(&self) -> bool {
        self.clear.get()
    }

    /// Whether blocks may be unmapped (LBPME).
    #[must_use]
    pub fn provisioning(&self) -> bool {
        self.unit.traits().unmap_granularity > 0
    }

    /// The protection type of its blocks.
    #[must_use]
    pub fn protection(&self) -> protection::Kind {
        self.unit.protected().map_or(protection::Kind::None, Protection::kind)
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.unit.geometry.block_size
    }

    /// Makes a change of the state that only SCSI has; returns whether the nexuses must be notified.
    pub(crate) fn apply(&self, change: &Change, is_saved: bool) -> bool {
        if let (Change::Stopped(is_stopped), Some(disk)) = (change, self.device.disk()) {
            disk.is_stopped.set(*is_stopped);
        }
        let is_told = self.parameters.borrow_mut().apply(&self.unit, change, is_saved);
        self.refresh();
        is_told
    }

    /// Sets the parameters that a reset sets.
    pub(crate) fn reset(&self) {
        self.parameters.borrow_mut().reset(&self.unit);
        self.device.reset();
        self.refresh();
    }

    /// Updates the cells: from the parameters, and from the state that all cores share.
    pub(crate) fn refresh(&self) {
        let (medium, tray) = {
            let state = self.shared.state();
            (state.medium(), state.tray())
        };
        self.medium.set(medium);
        self.tray.set(tray);
        let parameters = self.parameters.borrow();
        self.mode.set(parameters.mode);
        if let Some(protection) = &self.unit.protection {
            protection.set_owned(parameters.mode.application_tags_owned);
        }
        let is_ready = medium == MediumState::Ready && tray.is_loaded();
        self.clear.set(!self.is_stopped() && !self.write_protected() && is_ready);
    }
}

impl fmt::Debug for Emulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Emulated({} {:?})", self.lun, self.unit)
    }
}

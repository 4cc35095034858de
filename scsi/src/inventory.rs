//! The logical units of a target: adding, replacing and removing them.

use crate::device_server::DeviceServer;
use crate::device_types;
use crate::information::{self, Kind};
use crate::lu::{Emulated, Forwarded, ForwardedUnit, LogicalUnit, Stored};
use crate::lun::LUNS_MAX;
use crate::pages::mode;
use crate::sense::Asc;
use crate::spc::log::client;
use crate::target::Target;
use lunar_core::unit::Unit;
use std::rc::Rc;

impl Target {
    /// Adds an emulated logical unit, whose device type depends on the medium of the unit, or replaces the logical
    /// unit of this number. A unit attention condition reports the change to the nexuses: CAPACITY DATA HAS CHANGED if
    /// it is the same unit, else REPORTED LUNS DATA HAS CHANGED.
    ///
    /// # Panics
    /// If `lun` is not below [`LUNS_MAX`].
    pub fn add_unit(&self, lun: u16, unit: Rc<Unit>) {
        self.add_unit_with(lun, unit, None);
    }

    /// The same, of a unit with commands that Lunar does not have, and that another process executes: see
    /// [`DeviceServer::has_command`].
    ///
    /// # Panics
    /// As [`Target::add_unit`].
    pub fn add_unit_with(&self, lun: u16, unit: Rc<Unit>, others: Option<Rc<dyn DeviceServer>>) {
        assert!(lun < LUNS_MAX, "LUN {lun} is beyond flat space addressing");
        self.wake_watcher();
        let shared = self.config.units.add(&unit);
        let before = self.unit(lun).filter(|lu| lu.id() == unit.id);
        match before.as_deref().and_then(LogicalUnit::emulated) {
            Some(old) => self.replace_unit(old, unit, others),
            None => {
                let device = device_types::of_medium(unit.medium.kind());
                let saved = Stored {
                    mode: mode::load(device.mode, &unit),
                    information: Kind::ALL.map(|kind| information::load(&unit, kind)),
                    client_log: client::load(&unit),
                };
                let lu = Emulated::new((lun, device.code), unit, shared, saved, (device.state)());
                self.insert(LogicalUnit::Emulated(lu.with_others(others)));
            }
        }
    }

    /// Adds a forwarded logical unit, or replaces the logical unit of this number. A unit attention condition reports
    /// the changed inventory to the nexuses.
    ///
    /// # Panics
    /// If `lun` is not below [`LUNS_MAX`].
    pub fn add_forwarded(&self, lun: u16, unit: ForwardedUnit) {
        assert!(lun < LUNS_MAX, "LUN {lun} is beyond flat space addressing");
        let shared = self.config.units.add_without_store(unit.id, &unit.metadata);
        self.insert(LogicalUnit::Forwarded(Forwarded::new(lun, unit, shared)));
    }

    /// Adds a logical unit that the nexuses do not know.
    fn insert(&self, lu: LogicalUnit) {
        let lun = lu.lun;
        self.logical_units.borrow_mut().insert(lun, Rc::new(lu));
        for nexus in self.nexuses() {
            let Some(own) = nexus.lun_of(lun) else { continue };
            nexus.set(own, nexus.fresh(own, Some(Asc::POWER_ON_OR_RESET)).map(Rc::new));
            nexus.each(|itl| {
                if itl.lun != own {
                    itl.establish_unit_attention(Asc::REPORTED_LUNS_DATA_CHANGED);
                }
            });
        }
    }

    /// Replaces this core's view of the unit of a logical unit.
    fn replace_unit(&self, old: &Emulated, unit: Rc<Unit>, others: Option<Rc<dyn DeviceServer>>) {
        let is_resized = old.unit.geometry != unit.geometry;
        let has_other_modes =
            old.unit.read_only != unit.read_only || old.unit.traits().write_cache != unit.traits().write_cache;
        let lun = old.lun;
        let lu = Rc::new(LogicalUnit::Emulated(old.with_unit(unit).with_others(others)));
        self.logical_units.borrow_mut().insert(lun, lu.clone());
        for nexus in self.nexuses() {
            let Some(itl) = nexus.itl_of(lun) else { continue };
            let itl = itl.with_lu(lu.clone(), nexus.group);
            if is_resized {
                itl.resized(&nexus.name);
            }
            if has_other_modes {
                itl.establish_unit_attention(Asc::MODE_PARAMETERS_CHANGED);
            }
            nexus.set(itl.lun, Some(Rc::new(itl)));
        }
    }

    /// Removes a logical unit; a unit attention condition reports that to the nexuses. Commands in progress end as
    /// usual.
    pub fn remove_unit(&self, lun: u16) {
        if self.logical_units.borrow_mut().remove(&lun).is_none() {
            return;
        }
        for nexus in self.nexuses() {
            let Some(own) = nexus.lun_of(lun) else { continue };
            nexus.set(own, None);
            nexus.each(|itl| itl.establish_unit_attention(Asc::REPORTED_LUNS_DATA_CHANGED));
        }
    }
}

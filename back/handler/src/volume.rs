//! A volume or a SCSI device with a handler: opened once, for all cores.

use crate::commands::HandlerDevice;
use crate::core::HandlerStore;
use crate::error::Mistake;
use crate::life::Lifetime;
use crate::shared::Unit;
use lunar_core::io::{Store, Traits};
use lunar_handler::wire::LEVEL_SCSI;
use lunar_reactor::Reactor;
use lunar_scsi::device_server::DeviceServer;
use lunar_scsi::forwarding::Terms;
use lunar_scsi::peripheral::PeripheralType;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// Bytes of the granularity in which a thin volume releases space: what file systems have.
const GRANULARITY: u32 = 4096;

/// A volume, on the terms of its configuration.
#[derive(Clone, Debug)]
pub(crate) struct HandlerVolume {
    life: Arc<Lifetime>,
    unit: Unit,
    traits: Traits,
    writes_through: bool,
}

impl HandlerVolume {
    /// A volume whose handler connects to its socket.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub(crate) fn new(unit: Unit, writes_through: bool) -> Result<Self, Mistake> {
        Ok(Self { life: Lifetime::begin(&unit)?, traits: traits(&unit, writes_through), unit, writes_through })
    }

    /// A volume at a socket that is there, on other terms.
    ///
    /// # Errors
    /// When the handler has fewer bytes than the volume would have.
    pub(crate) fn reopen(life: &Arc<Lifetime>, unit: Unit, writes_through: bool) -> Result<Self, Mistake> {
        let connected = life.shared().state().connected.clone();
        let size = connected.filter(|handler| handler.level != LEVEL_SCSI).map(|handler| handler.size);
        match size.filter(|size| *size < unit.size) {
            Some(size) => Err(Mistake::Small(size)),
            None => Ok(Self { life: life.clone(), traits: traits(&unit, writes_through), unit, writes_through }),
        }
    }

    pub(crate) fn traits(&self) -> &Traits {
        &self.traits
    }

    pub(crate) fn life(&self) -> &Arc<Lifetime> {
        &self.life
    }

    pub(crate) fn unit(&self) -> &Unit {
        &self.unit
    }

    pub(crate) fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        Ok(Box::new(HandlerStore::open(reactor, &self.life, self.traits.clone(), self.writes_through)))
    }

    /// The commands that a handler of the mixed level has, on one core.
    pub(crate) fn open_commands(&self, reactor: &Reactor) -> Rc<dyn DeviceServer> {
        Rc::new(HandlerDevice::open(reactor, &self.life, PeripheralType::DISK, Terms::default()))
    }
}

/// A SCSI device that a handler serves, on the terms of its configuration.
#[derive(Clone, Debug)]
pub(crate) struct HandlerUnit {
    pub(crate) life: Arc<Lifetime>,
    pub(crate) unit: Unit,
    pub(crate) device_type: PeripheralType,
    pub(crate) terms: Terms,
}

impl HandlerUnit {
    pub(crate) fn open(&self, reactor: &Reactor) -> Rc<dyn DeviceServer> {
        Rc::new(HandlerDevice::open(reactor, &self.life, self.device_type, self.terms.clone()))
    }
}

fn traits(unit: &Unit, writes_through: bool) -> Traits {
    Traits {
        size: unit.size,
        read_only: unit.read_only,
        // The handler may leave data in the page cache.
        write_cache: !writes_through,
        thin: unit.discard,
        unmap_granularity: if unit.discard { GRANULARITY } else { 0 },
        unmap_zeroes: false,
        physical_block: GRANULARITY,
        optimal_io: 0,
        rotational: false,
        // A handler promises nothing about torn writes.
        atomic_write: 0,
    }
}

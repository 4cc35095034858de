//! A volume or a SCSI device with a handler: opened once, for all cores.

use crate::commands::HandlerDevice;
use crate::control;
use crate::core::HandlerStore;
use crate::error::Mistake;
use crate::shared::{Shared, Unit};
use lunar_control::api::HandlerView;
use lunar_core::io::{Store, Traits};
use lunar_engine::backend::{Condition, StoreTrouble};
use lunar_handler::wire::LEVEL_BLOCK;
use lunar_reactor::Reactor;
use lunar_scsi::device_server::DeviceServer;
use lunar_scsi::forwarding::Terms;
use lunar_scsi::peripheral::PeripheralType;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Bytes of the granularity in which a thin volume releases space: what file systems have.
const GRANULARITY: u32 = 4096;

/// The socket and its thread, until the last user has gone.
#[derive(Debug)]
pub(crate) struct Lifetime {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Lifetime {
    /// Listens for the handler of a volume.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub(crate) fn begin(unit: &Unit) -> Result<Arc<Self>, Mistake> {
        let shared = Arc::new(Shared::new(unit.clone()).map_err(Mistake::Socket)?);
        let listener = control::listen_at(&unit.path, unit.mode)?;
        let thread = control::start(&shared, listener).map_err(Mistake::Socket)?;
        Ok(Arc::new(Self { shared, thread: Mutex::new(Some(thread)) }))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// These terms apply from now on.
    pub(crate) fn set_unit(&self, unit: &Unit) {
        self.shared.set_unit(unit.clone());
        self.shared.ring();
    }

    /// The handler, for the operator.
    pub(crate) fn view(&self, unit: &Unit) -> HandlerView {
        let shared = &self.shared;
        let connected = shared.state().connected.clone();
        let state = match &connected {
            None => "missing",
            Some(_) if shared.is_late() => "late",
            Some(_) => "connected",
        };
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        HandlerView {
            volume: unit.name.clone(),
            socket: unit.path.display().to_string(),
            state,
            process: connected.as_ref().map(|handler| handler.process),
            user: connected.as_ref().map(|handler| handler.user),
            seconds: connected.as_ref().map(|handler| handler.since.elapsed().as_secs()),
            name: connected.map(|handler| handler.name),
            late: shared.late() as u64,
            connections: count(&shared.counts.connections),
            replayed: count(&shared.counts.replayed),
            timed_out: count(&shared.counts.timed_out),
            faults: count(&shared.counts.faults),
        }
    }

    /// What is wrong with the handler now.
    pub(crate) fn examine(&self, unit: &Unit) -> Vec<StoreTrouble> {
        let (shared, path) = (&self.shared, unit.path.display());
        let trouble =
            |words: String, remedy: String| vec![StoreTrouble { condition: Condition::Unserved, words, remedy }];
        let connected = shared.state().connected.clone();
        match connected {
            None => trouble(
                format!("no handler is connected to {path}"),
                "start it (`systemctl status 'lunar-handler@*'`, or see its own log)".to_owned(),
            ),
            Some(handler) if shared.is_late() => trouble(
                format!(
                    "handler '{}' (process {}) does not answer {} commands",
                    handler.name,
                    handler.process,
                    shared.late()
                ),
                format!("if it does not answer soon, end it and start it again: kill -9 {}", handler.process),
            ),
            Some(_) => Vec::new(),
        }
    }
}

impl Drop for Lifetime {
    fn drop(&mut self) {
        self.shared.end();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The thread waits for nothing else; afterwards the path of the socket is free.
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

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
    pub(crate) fn again(life: &Arc<Lifetime>, unit: Unit, writes_through: bool) -> Result<Self, Mistake> {
        let connected = life.shared.state().connected.clone();
        let size = connected.filter(|handler| handler.level == LEVEL_BLOCK).map(|handler| handler.size);
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

//! A volume with a handler: opened once, for all cores.

use crate::control;
use crate::core::HandlerStore;
use crate::error::Mistake;
use crate::shared::{Shared, Unit};
use lunar_control::api::HandlerView;
use lunar_core::io::{Store, Traits};
use lunar_engine::backend::{Condition, StoreTrouble};
use lunar_reactor::Reactor;
use std::io;
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
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
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
    /// Listens for the handler of a volume.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub(crate) fn new(unit: Unit, writes_through: bool) -> Result<Self, Mistake> {
        let shared = Arc::new(Shared::new(unit.clone()).map_err(Mistake::Socket)?);
        let listener = control::listen_at(&unit.path, unit.mode)?;
        let thread = control::start(&shared, listener).map_err(Mistake::Socket)?;
        let life = Arc::new(Lifetime { shared, thread: Mutex::new(Some(thread)) });
        Ok(Self { life, traits: traits(&unit, writes_through), unit, writes_through })
    }

    /// The volume of the same socket on other terms.
    ///
    /// # Errors
    /// When the handler has fewer bytes than the volume would have.
    pub(crate) fn reopen(&self, unit: Unit, writes_through: bool) -> Result<Self, Mistake> {
        let connected = self.life.shared.state().connected.as_ref().map(|handler| handler.size);
        match connected.filter(|size| *size < unit.size) {
            Some(size) => Err(Mistake::Small(size)),
            None => Ok(Self { life: self.life.clone(), traits: traits(&unit, writes_through), unit, writes_through }),
        }
    }

    pub(crate) fn traits(&self) -> &Traits {
        &self.traits
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.unit.path
    }

    /// These terms apply from now on.
    pub(crate) fn finalize(&self) {
        self.life.shared.set_unit(self.unit.clone());
        self.life.shared.ring();
    }

    pub(crate) fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        Ok(Box::new(HandlerStore::open(reactor, &self.life, self.traits.clone(), self.writes_through)))
    }

    /// The handler, for the operator.
    pub(crate) fn view(&self) -> HandlerView {
        let shared = &self.life.shared;
        let connected = shared.state().connected.clone();
        let state = match &connected {
            None => "missing",
            Some(_) if shared.is_late() => "late",
            Some(_) => "connected",
        };
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        HandlerView {
            volume: self.unit.name.clone(),
            socket: self.unit.path.display().to_string(),
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

    pub(crate) fn examine(&self) -> Vec<StoreTrouble> {
        let (shared, path) = (&self.life.shared, self.unit.path.display());
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

//! The socket of a volume or a SCSI device, and the view of its handler.

use crate::control::{self, Door};
use crate::error::Mistake;
use crate::rbd::supervisor::Supervisor;
use crate::shared::{Shared, Unit, served};
use crate::space;
use lunar_control::api::HandlerView;
use lunar_engine::backend::{Condition, PoolSpace, StoreTrouble};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two looks whether a thread has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// The socket and its thread, which ends soon after the last user has gone.
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
        until_free(&unit.path);
        let socket = control::listen_at(&unit.path, unit.mode)?;
        let shared = Shared::new(unit.clone()).map_err(Mistake::Socket)?;
        Self::behind(Door::Socket(socket), Arc::new(shared)).map_err(Mistake::Socket)
    }

    /// Starts the process of an image. `known`: the identity that the image must have.
    ///
    /// # Errors
    /// When the thread that starts it cannot be made.
    pub(crate) fn of_image(unit: &Unit, known: Option<&str>) -> io::Result<Arc<Self>> {
        until_free(&unit.path);
        let shared = Arc::new(Shared::new(unit.clone())?);
        shared.state().identity = known.map(str::to_owned);
        Self::behind(Door::Program(Box::new(Supervisor::new())), shared)
    }

    fn behind(door: Door, shared: Arc<Shared>) -> io::Result<Arc<Self>> {
        let thread = control::start(&shared, door)?;
        Ok(Arc::new(Self { shared, thread: Mutex::new(Some(thread)) }))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Bytes of the data of the handler, if it is connected, or stands by.
    pub(crate) fn size(&self) -> Option<u64> {
        let state = self.shared.state();
        state.connected.as_ref().map(|handler| handler.size).or(state.standing_by)
    }

    /// The identity of the image that is served, once a process has opened it or one is required.
    pub(crate) fn identity(&self) -> Option<String> {
        self.shared.state().identity.clone()
    }

    /// Whether another server has the image, and the process waits for it.
    pub(crate) fn stands_by(&self) -> bool {
        self.shared.state().standing_by.is_some()
    }

    /// Whether another image has the name of the one that is served.
    pub(crate) fn has_stranger(&self) -> bool {
        self.shared.state().stranger.is_some()
    }

    /// The identity of the image that has the name now, as far as a process has opened it.
    pub(crate) fn identity_there(&self) -> Option<String> {
        let state = self.shared.state();
        state
            .stranger
            .clone()
            .or_else(|| state.identity.clone().filter(|_| state.connected.is_some() || state.standing_by.is_some()))
    }

    /// Sets whether processes of the image are started.
    pub(crate) fn set_halted(&self, is_halted: bool) {
        self.shared.state().is_halted = is_halted;
        self.shared.ring();
    }

    /// Why the process of an image is not connected.
    pub(crate) fn why_not(&self) -> String {
        let why = self.shared.state().failed.1.clone();
        why.unwrap_or_else(|| "lunar-rbd has not connected to the cluster yet".to_owned())
    }

    /// Starts of the process of an image that were in vain.
    pub(crate) fn failed(&self) -> u64 {
        self.shared.state().failed.0
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
            serves: connected.as_ref().map(|handler| served(handler.level)),
            seconds: connected.as_ref().map(|handler| handler.since.elapsed().as_secs()),
            name: connected.map(|handler| handler.name),
            late: shared.late() as u64,
            connections: count(&shared.counts.connections),
            replayed: count(&shared.counts.replayed),
            timed_out: count(&shared.counts.timed_out),
            faults: count(&shared.counts.faults),
        }
    }

    /// The space of the pool of the data, of which the volume has `size` bytes.
    pub(crate) fn pool_space(&self, unit: &Unit, size: u64) -> Option<PoolSpace> {
        let told = self.shared.state().space;
        space::pool_space(told, unit, size)
    }

    /// The troubles with the handler now.
    pub(crate) fn examine(&self, unit: &Unit) -> Vec<StoreTrouble> {
        let (shared, path) = (&self.shared, unit.path.display());
        let trouble =
            |words: String, remedy: String| vec![StoreTrouble { condition: Condition::Unserved, words, remedy }];
        let connected = shared.state().connected.clone();
        match connected {
            None if self.has_stranger() => vec![StoreTrouble {
                condition: Condition::Gone,
                words: format!("the image that has the name {path} now is another one than the one that was served"),
                remedy: "give the right one this name (`rbd trash ls`, `rbd rename`)".to_owned(),
            }],
            None if self.stands_by() => vec![StoreTrouble {
                condition: Condition::Gone,
                words: format!("another server serves the image {path}, and this one stands by"),
                remedy: "it is served here when the other server ends, or gives the lock of the image back".to_owned(),
            }],
            None if unit.image.is_some() => trouble(
                format!("no process serves {path}: {}", self.why_not()),
                "it is served by itself once that is mended".to_owned(),
            ),
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
    /// Tells the thread to end, and does not wait for it: a core may drop the last user, and the process of an image
    /// takes its time.
    fn drop(&mut self) {
        self.shared.end();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let mut ending = ending();
            ending.retain(|(_, thread)| !thread.is_finished());
            ending.push((self.shared.unit().path, thread));
        }
    }
}

/// The threads that were told to end, each with the path of its volume.
static ENDING: Mutex<Vec<(PathBuf, JoinHandle<()>)>> = Mutex::new(Vec::new());

fn ending() -> MutexGuard<'static, Vec<(PathBuf, JoinHandle<()>)>> {
    ENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the path of a volume that was closed is free again: its thread removes the socket, and its process gives
/// the lock of the image back.
fn until_free(path: &Path) {
    until_ended(|own| own == path);
}

/// Waits until the threads of all volumes that were closed have ended.
pub(crate) fn until_all_ended() {
    until_ended(|_| true);
}

fn until_ended(is_awaited: impl Fn(&Path) -> bool) {
    while ending().iter().any(|(path, thread)| is_awaited(path) && !thread.is_finished()) {
        std::thread::sleep(PAUSE);
    }
}

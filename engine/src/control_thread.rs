//! The control thread: it owns the configuration, its history, and the engine that serves it. Changes come one after
//! another, and no reader sees half of one.

use crate::backend::{self, Backend};
use crate::engine::Engine;
use crate::volume::identity;
use lunar_control::check::{LocalHost, Marked};
use lunar_control::common_sections::Volume;
use lunar_control::in_use::Force;
use lunar_control::live::Live as _;
use lunar_control::manager::Failure;
use lunar_control::names::Uuid;
use lunar_control::{Manager, Plan};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::SystemTime;

/// The state of the control thread: the configuration, its history, and the engine that serves it.
pub type Keeper = Manager<Engine, Here>;

/// Finds the UUID of a volume that was served before.
pub type FindMark = Box<dyn Fn(&Volume) -> Option<Uuid> + Send + Sync>;

/// The machine, as the configuration sees it, and the volumes on it.
pub type Here = Marked<FindMark>;

/// The machine of the configuration in this file, with these back ends.
#[must_use]
pub fn here(config: PathBuf, backends: &'static [&'static dyn Backend]) -> Here {
    Marked(LocalHost { config }, Box::new(move |volume| mark(backends, volume)))
}

/// The UUID of a volume that was served before: its store has a mark.
fn mark(backends: &[&'static dyn Backend], volume: &Volume) -> Option<Uuid> {
    let backend = backend::find(backends, volume.kind.word())?;
    let mark = backend.mark_at(volume.place()?, false)?;
    Some(identity::uuid_of(&mark))
}

/// A job for the control thread.
enum Work {
    Do(Box<dyn FnOnce(&mut Keeper) + Send>),
    Stop,
}

/// The control thread has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the service is stopping")
    }
}

impl std::error::Error for Stopped {}

/// A handle of the control thread. Clones refer to the same thread.
#[derive(Clone)]
pub struct ControlThread {
    sender: mpsc::Sender<Work>,
}

impl fmt::Debug for ControlThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlThread")
    }
}

impl ControlThread {
    /// Starts the thread. It returns its state when it is stopped.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn start(mut keeper: Keeper) -> io::Result<(Self, JoinHandle<Keeper>)> {
        let (sender, work) = mpsc::channel();
        let thread = std::thread::Builder::new().name("control".into());
        let thread = thread.spawn(move || {
            for work in work {
                match work {
                    Work::Do(work) => work(&mut keeper),
                    Work::Stop => break,
                }
            }
            keeper
        })?;
        Ok((Self { sender }, thread))
    }

    /// Stops the thread after the jobs that were queued before.
    pub fn stop(&self) {
        // If the send fails, the thread has ended already.
        let _ = self.sender.send(Work::Stop);
    }

    /// Runs a job on the control thread, after the jobs that were queued before, and waits for its result.
    /// [`lunar_control::live::Live::settling`] waits for the rest of a change that goes on afterwards.
    ///
    /// # Errors
    /// When the service stops.
    pub fn ask<T: Send + 'static>(&self, work: impl FnOnce(&mut Keeper) -> T + Send + 'static) -> Result<T, Stopped> {
        let (answer, answered) = mpsc::channel();
        let job = move |keeper: &mut Keeper| {
            // The asking thread may have stopped waiting.
            let _ = answer.send(work(keeper));
        };
        if !self.post(job) {
            return Err(Stopped);
        }
        answered.recv().map_err(|_| Stopped)
    }

    /// The same without waiting: `work` answers by itself. Returns whether the thread is still there; if it is not,
    /// the work is dropped.
    pub fn post(&self, work: impl FnOnce(&mut Keeper) + Send + 'static) -> bool {
        self.sender.send(Work::Do(Box::new(work))).is_ok()
    }

    /// Applies the current content of the file, unless it takes something from clients with sessions.
    ///
    /// # Errors
    /// Why it cannot be applied, with places in the file; nothing was changed then.
    pub fn reload(&self) -> Result<Result<Plan, Failure>, Stopped> {
        self.change(|keeper| keeper.reload(SystemTime::now(), Force::No))
    }

    /// Makes a change after the end of the last one, and waits for its own end.
    ///
    /// # Errors
    /// When the service stops.
    pub fn change<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Keeper) -> T + Clone + Send + 'static,
    ) -> Result<T, Stopped> {
        loop {
            let work = work.clone();
            let asked = self.ask(move |keeper| match keeper.running().finalizing() {
                Some(wait) => Err(wait),
                None => Ok((work(keeper), keeper.running().finalizing())),
            })?;
            match asked {
                Ok((outcome, wait)) => {
                    wait.into_iter().for_each(|wait| wait());
                    return Ok(outcome);
                }
                // The control thread can handle other jobs meanwhile.
                Err(wait) => wait(),
            }
        }
    }
}

//! `lunar daemon`: serves what a file says, and follows the file while it runs.
//!
//! One thread, the control thread, owns the [`Keeper`]: the configuration and what runs by it. Whoever wants to look at
//! it or change it has [`Control`], and hands a closure to that thread: changes come one after another, and none sees
//! another's half. Sessions and statistics are looked at there, too.
//!
//! A part of the daemon that is configured, too, beside what is shared, is a [`Part`].

use crate::house::{Cores, stopping};
use crate::live::Live;
use crate::notify::Notify;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use lunar_control::check::{Checked, Machine, Marked};
use lunar_control::live::Live as _;
use lunar_control::manager::Failure;
use lunar_control::model::{StoreKind, Volume};
use lunar_control::names::Uuid;
use lunar_control::plan::ObjectId;
use lunar_control::{Manager, Plan};
use lunar_reactor::log;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// `lunar daemon`
#[derive(Args, Clone, Debug)]
pub struct Daemon {
    /// The file that says what is shared
    #[arg(long, value_name = "FILE", default_value = "/etc/lunar/lunar.toml")]
    pub config: PathBuf,
    /// Where state is kept, if the file does not say [default: STATE_DIRECTORY, or the user's own state folder]
    #[arg(long, value_name = "FOLDER")]
    pub state: Option<PathBuf>,
}

/// What the control thread owns: the configuration, its history, and what runs by it.
pub type Keeper = Manager<Live, Here>;

/// Something for the control thread to do.
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

/// The way to the control thread. Clones are the same.
#[derive(Clone)]
pub struct Control {
    way: mpsc::Sender<Work>,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Control")
    }
}

impl Control {
    /// Has the control thread do something after all that it was asked before, and waits for what comes of it. What of
    /// a change goes on afterwards, [`lunar_control::live::Live::settling`] waits for.
    ///
    /// # Errors
    /// When the service stops.
    pub fn ask<T: Send + 'static>(&self, work: impl FnOnce(&mut Keeper) -> T + Send + 'static) -> Result<T, Stopped> {
        let (answer, answered) = mpsc::channel();
        let job = move |keeper: &mut Keeper| {
            // Whoever asked may have gone.
            let _ = answer.send(work(keeper));
        };
        if !self.post(job) {
            return Err(Stopped);
        }
        answered.recv().map_err(|_| Stopped)
    }

    /// The same without waiting: `work` answers by itself. Whether there is still somebody who does it; if there is
    /// not, it is dropped.
    pub fn post(&self, work: impl FnOnce(&mut Keeper) + Send + 'static) -> bool {
        self.way.send(Work::Do(Box::new(work))).is_ok()
    }

    /// Puts in force what is in the file now.
    ///
    /// # Errors
    /// What is in the way, with places in the file; nothing was changed then.
    pub fn reload(&self) -> Result<Result<Plan, Failure>, Stopped> {
        self.change(|keeper| keeper.reload(SystemTime::now()))
    }

    /// Has a change made once nothing of the last one goes on any more, and waits until nothing of it does.
    ///
    /// # Errors
    /// When the service stops.
    pub(crate) fn change<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Keeper) -> T + Clone + Send + 'static,
    ) -> Result<T, Stopped> {
        loop {
            let work = work.clone();
            let asked = self.ask(move |keeper| match keeper.running().settling() {
                Some(wait) => Err(wait),
                None => Ok((work(keeper), keeper.running().settling())),
            })?;
            match asked {
                Ok((outcome, wait)) => {
                    wait.into_iter().for_each(|wait| wait());
                    return Ok(outcome);
                }
                // The control thread has time for others meanwhile.
                Err(wait) => wait(),
            }
        }
    }
}

/// A part of the daemon that is configured, too: the API, the log. It is asked whenever something of the sections
/// changes that no volume, target, portal or group is: `api`, `api-listener`, `api-token`, `logging`, `server`.
pub trait Part: Send {
    /// Does everything that can fail, so that nobody notices.
    ///
    /// # Errors
    /// Why it cannot be, in words that say what to do.
    fn prepare(&mut self, wanted: &Checked) -> Result<(), String>;

    /// Goes by what was prepared. This cannot fail.
    fn commit(&mut self, wanted: &Checked);

    /// Lets go of what was prepared, as if nobody had asked.
    fn roll_back(&mut self);
}

/// The machine, as the configuration sees it, and the volumes on it.
pub type Here = Marked<fn(&Volume) -> Option<Uuid>>;

/// That of the configuration in this file.
#[must_use]
pub fn here(config: PathBuf) -> Here {
    Marked(Machine { config }, mark)
}

/// A volume that was shared before is who it was.
fn mark(volume: &Volume) -> Option<Uuid> {
    let path = volume.path.as_ref()?.path();
    let known = match volume.kind {
        StoreKind::File => crate::volume::identity::of_file_at(path),
        StoreKind::Block => crate::volume::identity::of_device_at(path),
        StoreKind::Ram | StoreKind::Null => None,
    };
    known.map(Uuid)
}

/// How long a change that is under way at the end gets: what it may wait for of the cores comes at once when they have
/// ended, so this is for disks and locks. Shorter than the service's `TimeoutStopSec`.
const HALT_PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether it has ended.
const HALT_LOOK: Duration = Duration::from_millis(5);

/// A daemon that runs.
pub struct Service {
    control: Control,
    cores: Cores,
    thread: JoinHandle<Keeper>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Service")
    }
}

impl Service {
    /// Starts what the file at `config` says. `state` is where state is kept if the file does not say. What is away is
    /// not waited for any more once `is_over` says so.
    ///
    /// # Errors
    /// When the file cannot be read, is not valid (with places in it), or cannot be put in force.
    pub fn start(config: &Path, state: Option<&Path>, is_over: impl Fn() -> bool) -> Result<Self> {
        let config = std::path::absolute(config)?;
        let (live, state, patience) = Live::of_file(&config, state)?;
        let outside = here(config.clone());
        let again = &mut patient(patience, is_over);
        let mut keeper = Manager::start(&config, &state, outside, live, SystemTime::now(), again)?;
        keeper.running().settled();
        keeper.away().for_each(|away| log!("{away}"));
        let steward = keeper.running().house().common().steward.clone();
        let cores = keeper.running().house().cores().clone();
        let (way, work) = mpsc::channel();
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
        let control = Control { way };
        steward.start(control.clone());
        Ok(Self { control, cores, thread })
    }

    /// The way to what it does.
    #[must_use]
    pub fn control(&self) -> &Control {
        &self.control
    }

    fn halt(self, patience: Duration) -> Result<Keeper> {
        // It has ended if nobody takes this.
        let _ = self.control.way.send(Work::Stop);
        let end = Instant::now() + patience;
        while !self.thread.is_finished() {
            if Instant::now() >= end {
                bail!("a change of the configuration does not end, and is left: see in the file what became of it");
            }
            std::thread::sleep(HALT_LOOK);
        }
        self.thread.join().map_err(|_| anyhow!("the control thread panicked"))
    }

    /// Ends it: sessions are asked to log out, commands finish, everything is flushed.
    ///
    /// # Errors
    /// When something could not be flushed, or a change of the configuration does not end.
    pub fn end(self) -> Result<()> {
        self.end_within(HALT_PATIENCE)
    }

    fn end_within(self, patience: Duration) -> Result<()> {
        let cores = self.cores.clone();
        // Whatever keeps the control thread, what was acknowledged is flushed.
        cores.drain();
        match self.halt(patience) {
            Ok(keeper) => keeper.into_running().end(),
            Err(why) => {
                cores.ended();
                Err(why)
            }
        }
    }
}

/// How often it is looked whether what is away at a start is there.
const AWAY_LOOK: Duration = Duration::from_millis(500);

/// Waits for what is away, all of it for so long at most, and until it `is_over`; each is told once.
fn patient(patience: Duration, is_over: impl Fn() -> bool) -> impl FnMut(&ObjectId, &str) -> bool {
    let end = Instant::now() + patience;
    let mut told = BTreeSet::new();
    move |object, why| {
        let is_late = is_over() || Instant::now() >= end;
        if !is_late && told.insert(object.clone()) {
            let seconds = patience.as_secs_f32();
            log!("{} is away, and waited for up to {seconds} s: {why}", object.id());
        }
        if !is_late {
            std::thread::sleep(AWAY_LOOK);
        }
        !is_late
    }
}

/// Follows the file whenever it is asked to, on a thread of its own: a change may take long, and who waits for signals
/// hears the next one. What is asked for while one waits already comes with that.
fn follow(control: Control, notify: Notify, file: PathBuf) -> Result<mpsc::SyncSender<()>> {
    let (ask, asked) = mpsc::sync_channel(1);
    let follow = move || {
        for () in asked {
            notify.reloading();
            match control.reload() {
                Ok(Ok(plan)) => {
                    log!("reloaded {}:\n{plan}", file.display());
                    let away = control.ask(|keeper| keeper.away().collect::<Vec<_>>());
                    away.into_iter().flatten().for_each(|away| log!("{away}"));
                }
                Ok(Err(why)) => log!("what runs was not changed:\n{why}"),
                Err(Stopped) => return,
            }
            notify.ready();
        }
    };
    std::thread::Builder::new().name("reload".into()).spawn(follow)?;
    Ok(ask)
}

/// Serves until a signal says stop. `attach` starts what belongs to the daemon besides, such as the API, and returns
/// what ends it when it is dropped; it is dropped while the cores drain.
///
/// # Errors
/// Everything that keeps it from starting, in words that say what to do.
pub fn run(daemon: &Daemon, notify: &Notify, attach: impl FnOnce(&Control) -> Result<Box<dyn Any>>) -> Result<()> {
    if !daemon.config.exists() {
        bail!("{} does not exist: write one first (docs/lunar.example.toml is an example)", daemon.config.display());
    }
    // Before the threads, so that they inherit the mask and a signal during start-up is not lost.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    // Who is told to stop waits for nothing that is away; the signal itself is heard below.
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, is_over.clone())?;
    }
    let service = Service::start(&daemon.config, daemon.state.as_deref(), move || is_over.load(Ordering::Relaxed))?;
    let attached = attach(service.control()).context("starting the API")?;
    // Where nobody reads it, nobody waits for it.
    let _ = writeln!(io::stdout(), "lunar serves {}", daemon.config.display());
    let watch = notify.watch(&service.cores);
    notify.ready();
    let reload = follow(service.control().clone(), notify.clone(), daemon.config.clone())?;
    for signal in signals.forever() {
        if signal != SIGHUP {
            break;
        }
        // Where one waits already, that reads what the file says now.
        let _ = reload.try_send(());
    }
    notify.stopping();
    stopping(&mut signals, || {
        service.cores.drain();
        drop((watch, attached, reload));
        service.end()
    })
}

#[cfg(test)]
#[path = "daemon_tests.rs"]
mod tests;

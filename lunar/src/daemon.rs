//! `lunar daemon`: serves the configuration of a file, and applies changes of the file while it runs.
//!
//! The control thread owns the configuration and the engine: [`lunar_engine::control_thread`]. The other configured
//! parts of the daemon are [`lunar_engine::participant::Participant`]s.

use crate::assembly;
use crate::notify::Notify;
use crate::registry::REGISTRY;
use crate::schema::SCHEMA;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use lunar_control::apply::TargetError;
use lunar_control::check::{Checked, check};
use lunar_control::common_sections::{Level, LogFormat};
use lunar_control::plan::ObjectId;
use lunar_control::{Manager, versions};
use lunar_engine::budget::HostLimits;
use lunar_engine::control_thread::{ControlThread, Keeper, Stopped, here};
use lunar_engine::core_set::cores::Cores;
use lunar_engine::engine::Engine;
use lunar_engine::namespace_manager;
use lunar_engine::participant::{Participant, ParticipantError};
use lunar_engine::returning_stores;
use lunar_engine::volume::metadata::state_folder;
use lunar_reactor::heap::release_free_memory;
use lunar_reactor::log;
use lunar_reactor::log::{Format, Severity};
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
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/lunar/lunar.toml")]
    pub config: PathBuf,
    /// The folder for state, if the file has no `state` [default: STATE_DIRECTORY, or the user's own state folder]
    #[arg(long, value_name = "FOLDER")]
    pub state: Option<PathBuf>,
}

/// The time for a change in progress at the end. The cores have ended by then, so it may wait for disks and locks only.
/// Shorter than the service's `TimeoutStopSec`.
const HALT_PATIENCE: Duration = Duration::from_secs(30);
/// The interval of checks whether it has ended.
const HALT_LOOK: Duration = Duration::from_millis(5);

/// A running daemon.
pub struct Service {
    control: ControlThread,
    cores: Cores,
    thread: JoinHandle<Keeper>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Service")
    }
}

impl Service {
    /// Starts serving the configuration of the file at `config`. `state` is the state folder if the file names none.
    /// Once `is_over` is true, the start no longer waits for unavailable stores.
    ///
    /// # Errors
    /// When the file cannot be read, is not valid (with places in it), or cannot be put in force.
    pub fn start(config: &Path, state: Option<&Path>, is_over: impl Fn() -> bool) -> Result<Self> {
        Starting::new(config, state)?.serve(is_over, |_| ())
    }

    fn of(mut keeper: Keeper) -> Result<Self> {
        keeper.running().add_participant(Box::new(Logging));
        keeper.running().wait_until_final();
        keeper.unavailable_lines().for_each(|away| log!(error, "{away}"));
        let core_set = keeper.running().core_set();
        let (cores, shared) = (core_set.cores().clone(), core_set.shared().clone());
        let wake_ups = keeper.running().store_wake_ups();
        let (control, thread) = ControlThread::start(keeper)?;
        namespace_manager::start(&shared.namespace_requests, control.clone());
        if let Some(wake_ups) = wake_ups {
            returning_stores::start(control.clone(), wake_ups)?;
        }
        Ok(Self { control, cores, thread })
    }

    /// The control thread.
    #[must_use]
    pub fn control(&self) -> &ControlThread {
        &self.control
    }

    fn halt(self, patience: Duration) -> Result<Keeper> {
        self.control.stop();
        let end = Instant::now() + patience;
        while !self.thread.is_finished() {
            if Instant::now() >= end {
                bail!("a change of the configuration does not end and is abandoned: check its result in the file");
            }
            std::thread::sleep(HALT_LOOK);
        }
        self.thread.join().map_err(|_| anyhow!("the control thread panicked"))
    }

    /// Ends the daemon: sessions are asked to log out, commands finish, everything is flushed.
    ///
    /// # Errors
    /// When something could not be flushed, or a change of the configuration does not end.
    pub fn end(self) -> Result<()> {
        self.end_within(HALT_PATIENCE)
    }

    fn end_within(self, patience: Duration) -> Result<()> {
        let cores = self.cores.clone();
        // Acknowledged writes are flushed even if the control thread is blocked.
        cores.drain();
        match self.halt(patience) {
            Ok(keeper) => Ok(keeper.into_running().end()?),
            Err(why) => {
                cores.ended();
                Err(why)
            }
        }
    }
}

/// A daemon that has read its file and started its cores, and serves nothing yet.
struct Starting {
    config: PathBuf,
    state: PathBuf,
    checked: Checked,
    engine: Engine,
}

impl Starting {
    /// Starts an engine as the file at `config` asks for. The state folder is that of the file, or `state`, or the
    /// usual one.
    fn new(config: &Path, state: Option<&Path>) -> Result<Self> {
        let config = std::path::absolute(config)?;
        let text = versions::read(&config)?;
        let outside = here(config.clone(), REGISTRY.backends);
        let checked = check(&SCHEMA, &config.display().to_string(), &text, &outside)?;
        Logging.commit(&checked);
        let own = checked.config.server.state.as_ref().map(|path| path.path().to_owned());
        let state = own.or_else(|| state.map(Path::to_owned)).unwrap_or_else(state_folder);
        let sessions = checked.config.limits.marks.has("sessions");
        assembly::demand(&checked.config, sessions).check(&HostLimits::here())?;
        let engine = assembly::start(&checked.config, &state)?;
        Ok(Self { config, state, checked, engine })
    }

    /// Serves the configuration of the file. Waits for unavailable volumes, for a bounded time and until `is_over`
    /// returns true; calls `waits` with a text about each.
    fn serve(self, is_over: impl Fn() -> bool, waits: impl Fn(&str)) -> Result<Service> {
        let Self { config, state, checked, engine } = self;
        let outside = here(config.clone(), REGISTRY.backends);
        let mut retry = patient(checked.config.server.patience.0, is_over);
        let again = &mut |object: &ObjectId, why: &TargetError| {
            waits(&format!("waiting for {}: {why}", object.id()));
            retry(object, why)
        };
        let keeper = Manager::start(&SCHEMA, &config, &state, outside, engine, SystemTime::now(), again)?;
        Service::of(keeper)
    }
}

/// The log as a participant of transactions.
struct Logging;

impl Participant for Logging {
    fn prepare(&mut self, _: &Checked) -> Result<(), ParticipantError> {
        Ok(())
    }

    fn commit(&mut self, wanted: &Checked) {
        let logging = &wanted.config.logging;
        let level = match logging.level {
            Level::Error => Severity::Error,
            Level::Warning => Severity::Warning,
            Level::Info => Severity::Info,
            Level::Debug => Severity::Debug,
        };
        let format = match logging.format {
            LogFormat::Text => log::text_format(),
            LogFormat::Json => Format::Json,
        };
        log::set_up(level, format);
    }

    fn roll_back(&mut self) {}
}

/// The operator's side of a daemon, from before its volumes are open.
pub trait Operator {
    /// Reports that the daemon starts; `words` name the volume that it waits for.
    fn starts(&self, words: &str);

    /// Gives operators the daemon, which has started. The returned value is dropped while the cores drain.
    ///
    /// # Errors
    /// In words that say what to do.
    fn attach(self: Box<Self>, control: &ControlThread) -> Result<Box<dyn Any>>;
}

/// The interval of checks for unavailable stores at the start.
const UNAVAILABLE_INTERVAL: Duration = Duration::from_millis(500);

/// Waits for unavailable stores, all of them together for `patience` at most, and no longer once `is_over`; each is
/// logged once.
fn patient(patience: Duration, is_over: impl Fn() -> bool) -> impl FnMut(&ObjectId, &TargetError) -> bool {
    let end = Instant::now() + patience;
    let mut told = BTreeSet::new();
    move |object, why| {
        let is_late = is_over() || Instant::now() >= end;
        if !is_late && told.insert(object.clone()) {
            let seconds = patience.as_secs_f32();
            log!(warning, "{} is unavailable, waiting for up to {seconds} s: {why}", object.id());
        }
        if !is_late {
            std::thread::sleep(UNAVAILABLE_INTERVAL);
        }
        !is_late
    }
}

/// Applies the file when asked, on a thread of its own: a change may take long, and the signal thread must receive the
/// next signal. Requests that arrive while one is waiting are merged with it.
fn follow(control: ControlThread, notify: Notify, file: PathBuf) -> Result<mpsc::SyncSender<()>> {
    let (ask, asked) = mpsc::sync_channel(1);
    let follow = move || {
        for () in asked {
            notify.reloading();
            match control.reload() {
                Ok(Ok(plan)) => {
                    log!("reloaded {}:\n{plan}", file.display());
                    let away = control.ask(|keeper| keeper.unavailable_lines().collect::<Vec<_>>());
                    away.into_iter().flatten().for_each(|away| log!(error, "{away}"));
                }
                Ok(Err(why)) => log!(error, "the running configuration was not changed:\n{why}"),
                Err(Stopped) => return,
            }
            release_free_memory();
            notify.ready();
        }
    };
    std::thread::Builder::new().name("reload".into()).spawn(follow)?;
    Ok(ask)
}

/// Ends the service; a second stop signal ends the wait.
///
/// # Errors
/// Errors of `end`.
pub(crate) fn stopping(signals: &mut Signals, end: impl FnOnce() -> Result<()>) -> Result<()> {
    log!("stopping: commands in progress finish, then all volumes are flushed; a second signal (Ctrl-C) stops at once");
    let handle = signals.handle();
    let mut pending = signals.forever();
    let results = std::thread::scope(|scope| {
        scope.spawn(|| {
            if pending.any(|signal| signal != SIGHUP) {
                log!(warning, "stopped at once: data that was not flushed is in the page cache of this machine");
                std::process::exit(1);
            }
        });
        let result = end();
        handle.close();
        result
    });
    results?;
    log!("stopped: everything written is flushed");
    Ok(())
}

/// Serves until a signal says stop. `operator` starts what belongs to the daemon besides, such as the API.
///
/// # Errors
/// All errors of the start, in words that say what to do.
pub fn run(
    daemon: &Daemon,
    notify: &Notify,
    operator: impl FnOnce(&Path, &Checked) -> Result<Box<dyn Operator>>,
) -> Result<()> {
    if !daemon.config.exists() {
        bail!("{} does not exist: write one first (docs/lunar.example.toml is an example)", daemon.config.display());
    }
    // Before the threads, so that they inherit the mask and a signal during start-up is not lost.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    // On a stop signal, the start no longer waits for unavailable stores; the loop below handles the signal.
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, is_over.clone())?;
    }
    let starting = Starting::new(&daemon.config, daemon.state.as_deref())?;
    let operator = operator(&starting.config, &starting.checked).context("starting the API")?;
    let waits = |words: &str| {
        operator.starts(words);
        notify.status(words);
    };
    let service = starting.serve(move || is_over.load(Ordering::Relaxed), waits)?;
    let attached = operator.attach(service.control()).context("starting the API")?;
    // A closed standard output is no error.
    let _ = writeln!(io::stdout(), "lunar serves {}", daemon.config.display());
    let watch = notify.watch(&service.cores);
    release_free_memory();
    notify.ready();
    let reload = follow(service.control().clone(), notify.clone(), daemon.config.clone())?;
    for signal in signals.forever() {
        if signal != SIGHUP {
            break;
        }
        // A waiting request will read the current file.
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

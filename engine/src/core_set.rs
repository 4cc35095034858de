//! The cores: one thread with its own reactor each. Other threads give them open units, ports, maps and listeners, and
//! jobs, which they execute in order.
//!
//! * [`core`](crate::core_set::core): one core, from its start to its end
//! * [`cores`], [`front_handle`]: handles of the cores, and of a front on them, for other threads
//! * [`message`], [`mesh`]: the messages between cores
//! * [`listener`]: listeners that accept connections
//! * [`front_on_core`], [`context`]: a front on a core, and the resources that it may use
//! * [`shared`]: the state that all cores share
//! * here: all of them, on threads of their own or on reactors that exist ([`SteppedCores`])

pub mod context;
pub mod core;
pub mod cores;
pub mod front_handle;
pub mod front_on_core;
pub mod listener;
pub mod mesh;
pub mod message;
mod nvme_services;
pub mod shared;

use self::core::{Core, Opening};
use crate::error::EngineError;
use crate::front::Front;
use cores::Cores;
use front_handle::FrontHandle;
use listener::PortalFront;
use lunar_reactor::channel::{Receiver, Sender, channel};
use lunar_reactor::{Config, Reactor, Spin};
use message::CoreMessage;
use shared::Shared;
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// A report of a core while it starts.
enum Report {
    Mailbox(usize, Sender<CoreMessage>),
    Ready,
    Failed(EngineError),
}

/// The cores, while they run.
pub struct CoreSet {
    shared: Arc<Shared>,
    cores: Cores,
    threads: Vec<JoinHandle<Result<(), EngineError>>>,
}

impl fmt::Debug for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CoreSet({} cores)", self.cores.count())
    }
}

/// Starts the fronts of a process.
///
/// # Errors
/// Why a front cannot start.
pub fn start_fronts(fronts: &[&'static dyn Front], shared: &Arc<Shared>) -> Result<(), EngineError> {
    let start = |(index, front): (usize, &&'static dyn Front)| front.start(index, shared);
    let started: Result<Vec<_>, _> = fronts.iter().enumerate().map(start).collect();
    shared.set_fronts(started?);
    Ok(())
}

impl CoreSet {
    /// Starts the cores on threads of their own; they serve nothing yet.
    ///
    /// # Errors
    /// When one of them cannot start, in words that say what to do.
    pub fn start(shared: Arc<Shared>) -> Result<Self, EngineError> {
        raise_open_files();
        let count = shared.config.cores;
        let (report, reports) = mpsc::channel();
        let (mut threads, mut directories) = (Vec::new(), Vec::new());
        for index in 0..count {
            let (directory, mailboxes) = mpsc::channel();
            let (shared, report) = (shared.clone(), report.clone());
            let thread = std::thread::Builder::new().name(format!("core{index}"));
            let thread = thread.spawn(move || run(index, &shared, &report, &mailboxes));
            threads.push(thread.map_err(EngineError::CoreStart)?);
            directories.push(directory);
        }
        let mut mailboxes: Vec<Option<Sender<CoreMessage>>> = vec![None; count];
        let mut ready = 0;
        while ready < count {
            match reports.recv().map_err(|_| EngineError::CoreEnded)? {
                Report::Mailbox(core, sender) => mailboxes[core] = Some(sender),
                Report::Ready => ready += 1,
                Report::Failed(why) => return Err(why),
            }
            // When all mailboxes are known, each core gets all of them.
            if let Some(all) = mailboxes.iter().cloned().collect::<Option<Vec<_>>>() {
                directories.drain(..).for_each(|directory| drop(directory.send(all.clone())));
            }
        }
        let cores = Cores::new(mailboxes.into_iter().flatten().collect(), shared.host.clone());
        Ok(Self { shared, cores, threads })
    }

    /// The same cores on reactors of this thread, one each, which the host runs: [`Host::step`] while a thread waits
    /// for the cores.
    ///
    /// [`Host::step`]: crate::host::Host::step
    #[must_use]
    pub fn on_reactors(shared: Arc<Shared>, reactors: Vec<Reactor>) -> (Self, SteppedCores) {
        let (mailboxes, messages): (Vec<_>, Vec<_>) = reactors.iter().map(channel::<CoreMessage>).unzip();
        let mut stepped = Vec::new();
        for (index, (reactor, messages)) in reactors.into_iter().zip(messages).enumerate() {
            let core = Core::new(index, &shared, &reactor, mailboxes.clone());
            let ended = Rc::<RefCell<Option<Result<(), EngineError>>>>::default();
            let (serving, outcome) = (core.clone(), ended.clone());
            reactor.spawn(async move {
                let result = serving.serve(messages).await;
                outcome.replace(Some(result));
            });
            stepped.push(SteppedCore { reactor, core, ended });
        }
        let cores = Cores::new(mailboxes.into(), shared.host.clone());
        (Self { shared: shared.clone(), cores, threads: Vec::new() }, SteppedCores { cores: stepped, shared })
    }

    /// The state that all cores share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The handle of the cores.
    #[must_use]
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// The handle of the front of this index on the cores.
    #[must_use]
    pub fn front_handle(&self, front: usize) -> FrontHandle {
        FrontHandle::new(front, self.cores.mailboxes().clone(), self.shared.host.clone())
    }

    /// Opens a unit on all cores, so that it can be placed: [`CoreSet::place`].
    ///
    /// # Errors
    /// When a core cannot open it; it is open on no core then.
    pub fn open(&self, opening: &Opening) -> Result<(), EngineError> {
        let opening = Arc::new(opening.clone());
        let results = self.cores.ask_all({
            let opening = opening.clone();
            move |core| {
                let opened = core.open(&opening);
                std::future::ready(opened)
            }
        });
        let result = match results.len() {
            count if count == self.cores.count() => results.into_iter().collect(),
            _ => Err(EngineError::CoreEnded),
        };
        result.inspect_err(|_| self.withdraw(opening.ticket))
    }

    /// Closes a unit that was opened and not placed.
    pub fn withdraw(&self, ticket: u64) {
        self.cores.ask_all(move |core| async move { core.withdraw(ticket) });
    }

    /// Serves opened units on all cores.
    pub fn place(&self, tickets: &[u64]) {
        let tickets: Arc<[u64]> = tickets.into();
        self.cores.ask_all(move |core| {
            tickets.iter().for_each(|ticket| core.place(*ticket));
            std::future::ready(())
        });
    }

    /// Listens at an address; no connection is accepted before [`CoreSet::accept`]. Returns the address with its port.
    ///
    /// # Errors
    /// Why Lunar cannot listen at it.
    pub fn listen(&self, portal: u32, address: SocketAddr) -> io::Result<SocketAddr> {
        let asked = self.cores.ask(0, move |core| std::future::ready(core.listen(portal, address)));
        asked.wait().unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()))
    }

    /// Accepts connections at a portal with a listening socket; later connections are for this front.
    pub fn accept(&self, portal: u32, front: PortalFront) {
        self.cores.ask(0, move |core| async move { core.accept(portal, front) }).wait();
    }

    /// Stops listening at a portal.
    pub fn close(&self, portal: u32) {
        self.cores.ask(0, move |core| async move { core.close(portal) }).wait();
    }

    /// Drains the cores, flushes everything and ends their threads.
    ///
    /// # Errors
    /// When something could not be flushed.
    pub fn end(self) -> Result<(), EngineError> {
        self.cores.drain();
        let ended = |core: JoinHandle<_>| core.join().unwrap_or(Err(EngineError::CorePanicked));
        // All cores are waited for, even if one failed.
        let results: Vec<Result<(), EngineError>> = self.threads.into_iter().map(ended).collect();
        results.into_iter().collect()
    }
}

/// One core, in its thread.
fn run(
    index: usize,
    shared: &Arc<Shared>,
    report: &mpsc::Sender<Report>,
    directory: &mpsc::Receiver<Vec<Sender<CoreMessage>>>,
) -> Result<(), EngineError> {
    match build(index, shared, report, directory) {
        Ok((reactor, core, messages)) => {
            // The receiver is there until all cores are ready or one failed.
            let _ = report.send(Report::Ready);
            // The reactor drops its tasks at the end, which answers unread messages.
            reactor.run(core.serve(messages))
        }
        Err(why) => {
            let _ = report.send(Report::Failed(why));
            Err(EngineError::CoreEnded)
        }
    }
}

fn build(
    index: usize,
    shared: &Arc<Shared>,
    report: &mpsc::Sender<Report>,
    directory: &mpsc::Receiver<Vec<Sender<CoreMessage>>>,
) -> Result<(Reactor, Rc<Core>, Receiver<CoreMessage>), EngineError> {
    let reactor = Reactor::new(Config {
        driver: shared.config.driver,
        arena_bytes: shared.config.memory,
        register: shared.config.register,
        stats: shared.stats[index].clone(),
        spin: Spin { limit: shared.config.spin },
    })
    .map_err(EngineError::CoreStart)?;
    let (mailbox, messages) = channel(&reactor);
    let _ = report.send(Report::Mailbox(index, mailbox));
    let mailboxes = directory.recv().map_err(|_| EngineError::CoreEnded)?;
    let core = Core::new(index, shared, &reactor, mailboxes);
    Ok((reactor, core, messages))
}

/// Raises the limit of open files to the hard limit: each connection takes one.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Refused only if the hard limit was lowered meanwhile: then the limit stays as it is.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Cores on reactors of this thread. Dropping them is the crash of their process: nothing finishes, and nothing is left
/// in memory.
pub struct SteppedCores {
    cores: Vec<SteppedCore>,
    shared: Arc<Shared>,
}

struct SteppedCore {
    reactor: Reactor,
    core: Rc<Core>,
    ended: Rc<RefCell<Option<Result<(), EngineError>>>>,
}

impl fmt::Debug for SteppedCores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SteppedCores({})", self.cores.len())
    }
}

impl SteppedCores {
    /// Their reactors, to be run.
    #[must_use]
    pub fn reactors(&self) -> Vec<&Reactor> {
        self.cores.iter().map(|core| &core.reactor).collect()
    }

    /// The cores.
    pub fn cores(&self) -> impl Iterator<Item = &Rc<Core>> {
        self.cores.iter().map(|core| &core.core)
    }

    /// Once all cores have ended, after they were told to drain: whether everything was flushed.
    #[must_use]
    pub fn ended(&self) -> Option<bool> {
        let outcome = |core: &SteppedCore| core.ended.borrow().as_ref().map(Result::is_ok);
        let all: Option<Vec<bool>> = self.cores.iter().map(outcome).collect();
        all.map(|all| all.into_iter().all(|is_flushed| is_flushed))
    }

    /// State that is left after all clients have disconnected: none.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        for SteppedCore { reactor, core, .. } in &self.cores {
            let stats = reactor.stats();
            let connections: usize = core.used_fronts().map(|front| front.connections()).sum();
            let counts = [
                ("connections", connections as u64),
                ("connections counted", stats.connections.get()),
                ("sessions counted", stats.sessions.get()),
                ("bytes of memory", reactor.arena().used() as u64),
            ];
            let over = counts.into_iter().filter(|(_, count)| *count > 0);
            left.extend(over.map(|(what, count)| format!("core {}: {count} {what} left over", core.index)));
        }
        let controllers = self.shared.controllers.all().len();
        if controllers > 0 {
            left.push(format!("{controllers} controllers left over"));
        }
        left.extend(self.shared.fronts().iter().flat_map(|front| front.leftovers()));
        left
    }
}

impl Drop for SteppedCores {
    fn drop(&mut self) {
        let fronts: Vec<_> = self.cores.iter().flat_map(|core| core.core.used_fronts()).collect();
        // The reactors are dropped first, because their tasks hold connections.
        self.cores.clear();
        fronts.iter().for_each(|front| front.abandon());
    }
}

//! The cores, and how the rest of the program has them do things: open units, listen, change what there is to log in
//! to.
//!
//! * [`core`](crate::house::Core): one core, from its start to its end
//! * `listening`: where connections come in
//! * here: all of them, from a thread that is none of them

mod core;
mod listening;

pub(crate) use self::core::wall_clock;
pub use self::core::{Core, Opening};
pub use listening::{Listening, why_not};

use crate::cores::{Face, Letter, Order};
use crate::proofs;
use crate::steward::Steward;
use anyhow::{Context, Result, anyhow};
use lunar_core::stats::Stats;
use lunar_iscsi::authenticator::Authenticator;
use lunar_iscsi::authenticator::audit::AuditRecord;
use lunar_iscsi::directory::Directory;
use lunar_iscsi::registry::{Registry, SessionLocation};
use lunar_nvme::auth::guard::{Guard as NvmeGuard, Record as NvmeRecord};
use lunar_nvme::{Board, Controllers};
use lunar_nvme_tcp::tls::TlsContext;
use lunar_reactor::Choice;
use lunar_reactor::channel::Sender;
use lunar_reactor::log;
use lunar_scsi::Tokens;
use lunar_unit::SharedUnits;
use rustix::rand::{GetRandomFlags, getrandom};
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How the cores are made.
#[derive(Clone, Debug)]
pub struct Frame {
    /// How many there are.
    pub cores: usize,
    /// How they talk to the kernel.
    pub driver: Choice,
    /// Bytes for data under way, per core.
    pub memory: usize,
    /// How long an idle core polls before it sleeps.
    pub spin: Duration,
    /// Whether their memory is registered with the kernel: it pays where volumes go past the page cache.
    pub register: bool,
    /// How long commands under way get to finish at the end.
    pub drain: Duration,
    /// The address that NVMe discovery tells; `None`: the one that the host came in by.
    pub advertise: Option<IpAddr>,
    /// Whether any NVMe host may have a secure channel.
    pub has_channels: bool,
}

/// What all cores have in common.
#[derive(Debug)]
pub struct Common {
    /// How they are made.
    pub frame: Frame,
    /// What each of them counts.
    pub stats: Vec<Arc<Stats>>,
    /// The sessions.
    pub registry: Arc<Registry>,
    /// The controllers.
    pub controllers: Arc<Controllers>,
    /// What NVM subsystems there are, and who may come in.
    pub board: Arc<Board>,
    /// What units keep for all cores and command sets.
    pub shared: Arc<SharedUnits>,
    /// The ROD tokens.
    pub tokens: Arc<Tokens>,
    /// What there is to log in to, and who may.
    pub guard: Arc<Authenticator>,
    /// Which NVMe hosts may come in.
    pub nvme_guard: Arc<NvmeGuard>,
    /// Where proofs of their names are computed.
    pub proofs: Arc<proofs::Thread>,
    /// Who has namespaces made for them.
    pub steward: Arc<Steward>,
    /// Their secure channels, if there are any.
    pub channels: Option<TlsContext>,
}

/// What operators are told of those who come, and of what is done for them.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// An initiator has logged in, or has not.
    Initiator(&'a AuditRecord),
    /// The same of an NVMe host.
    Host(&'a NvmeRecord),
    /// What became of the registration with the iSNS server.
    Isns(&'a str),
    /// An NVMe host has made namespaces come, go, or be had by others, or could not.
    Made {
        /// Its NQN.
        host: &'a str,
        /// What, in words.
        words: &'a str,
    },
}

impl fmt::Display for Notice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Initiator(record) => record.fmt(f),
            Self::Host(record) => record.fmt(f),
            Self::Isns(words) => f.write_str(words),
            Self::Made { words, .. } => f.write_str(words),
        }
    }
}

/// Takes notices, from any thread.
pub type Ear = dyn Fn(&Notice<'_>) + Send + Sync;

/// What a core reports while it starts, by its number.
enum Report {
    Mailbox(usize, Sender<Letter>),
    Ready,
    Failed(anyhow::Error),
}

/// Which NVMe hosts may come in. Their failures cost the same as those of initiators.
fn nvme_guard(guard: &Arc<Authenticator>, board: &Arc<Board>, ear: Arc<Ear>) -> Arc<NvmeGuard> {
    let audit = move |record: &NvmeRecord| ear(&Notice::Host(record));
    NvmeGuard::new(board.clone(), guard.shared_throttle(), Box::new(random), Box::new(audit))
}

/// The cores, while they run.
pub struct House {
    common: Arc<Common>,
    way: Cores,
    threads: Vec<JoinHandle<Result<()>>>,
}

/// The way to the cores.
#[derive(Clone)]
pub struct Cores(Arc<[Sender<Letter>]>);

impl fmt::Debug for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cores({})", self.0.len())
    }
}

impl fmt::Debug for House {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "House({} cores)", self.threads.len())
    }
}

/// What a core was asked for, some time.
#[derive(Debug)]
pub struct Answer<T>(mpsc::Receiver<T>);

impl<T> Answer<T> {
    /// Waits for it; `None` if the core has ended meanwhile.
    pub fn wait(self) -> Option<T> {
        self.0.recv().ok()
    }

    /// The same, for so long at most.
    pub fn wait_for(self, time: Duration) -> Option<T> {
        self.0.recv_timeout(time).ok()
    }
}

impl Cores {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Has a core do some work. What is asked first is begun first.
    pub fn ask<T, F>(&self, core: usize, work: impl FnOnce(Rc<Core>) -> F + Send + 'static) -> Answer<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (answer, answered) = mpsc::channel();
        let order = Order(Box::new(move |core| {
            let work = work(core);
            Box::pin(async move {
                // Whoever asked may have gone.
                let _ = answer.send(work.await);
            })
        }));
        self.0[core].send(Letter::Order(order));
        Answer(answered)
    }

    /// Has all cores do some work at the same time, and waits for all; those that have ended have nothing to say.
    pub fn ask_all<T, F>(&self, work: impl Fn(Rc<Core>) -> F + Clone + Send + 'static) -> Vec<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let asked: Vec<Answer<T>> = (0..self.count()).map(|core| self.ask(core, work.clone())).collect();
        asked.into_iter().filter_map(Answer::wait).collect()
    }

    /// Has all cores finish what is under way, flush and end. Those that do already go on with it.
    pub fn drain(&self) {
        self.0.iter().for_each(|mailbox| mailbox.send(Letter::Drain));
    }

    /// Waits until all cores have ended.
    pub fn ended(&self) {
        // Nobody answers: the question goes with its core.
        let asked: Vec<Answer<()>> = (0..self.count()).map(|core| self.ask(core, |_| std::future::pending())).collect();
        for answer in asked {
            answer.wait();
        }
    }

    /// Ends a session, and waits for a bounded time until it has ended.
    pub fn end_session(&self, location: SessionLocation) -> bool {
        /// What is in the store has to come back first.
        const PATIENCE: Duration = Duration::from_secs(30);
        let work = move |core: Rc<Core>| async move { core.served.iscsi.end_session(location.connection).await };
        location.core < self.count() && self.ask(location.core, work).wait_for(PATIENCE).is_some()
    }
}

impl House {
    /// Starts the cores; they serve nothing yet. `ear` is told of logins.
    ///
    /// # Errors
    /// When one of them cannot start, in words that say what to do.
    pub fn start(frame: Frame, directory: Directory, ear: Arc<Ear>) -> Result<Self> {
        raise_open_files();
        let count = frame.cores;
        let told = ear.clone();
        let audit = move |record: &AuditRecord| told(&Notice::Initiator(record));
        let guard = Authenticator::new(directory, Box::new(random), Box::new(audit));
        let board = Arc::<Board>::default();
        let nvme_guard = nvme_guard(&guard, &board, ear);
        let of_hosts = nvme_guard.clone();
        let channels = || TlsContext::new(move |identity| of_hosts.channel(identity)).context("preparing TLS");
        let channels = frame.has_channels.then(channels).transpose()?;
        let common = Arc::new(Common {
            stats: (0..count).map(|_| Arc::default()).collect(),
            registry: Arc::default(),
            controllers: Arc::default(),
            board,
            shared: Arc::default(),
            tokens: tokens(),
            guard,
            nvme_guard,
            proofs: Arc::default(),
            steward: Arc::default(),
            channels,
            frame,
        });
        let (report, reports) = mpsc::channel();
        let (mut threads, mut directories) = (Vec::new(), Vec::new());
        for me in 0..count {
            let (directory, mailboxes) = mpsc::channel();
            let (common, report) = (common.clone(), report.clone());
            let thread = std::thread::Builder::new().name(format!("core{me}"));
            threads.push(thread.spawn(move || core::run(me, &common, &report, &mailboxes))?);
            directories.push(directory);
        }
        let mut mailboxes: Vec<Option<Sender<Letter>>> = vec![None; count];
        let mut ready = 0;
        while ready < count {
            match reports.recv().context("a core ended while it started")? {
                Report::Mailbox(core, sender) => mailboxes[core] = Some(sender),
                Report::Ready => ready += 1,
                Report::Failed(why) => return Err(why),
            }
            // All mailboxes are known: each core gets the whole directory.
            if let Some(all) = mailboxes.iter().cloned().collect::<Option<Vec<_>>>() {
                directories.drain(..).for_each(|directory| drop(directory.send(all.clone())));
            }
        }
        Ok(Self { common, way: Cores(mailboxes.into_iter().flatten().collect()), threads })
    }

    /// What all cores have in common.
    #[must_use]
    pub fn common(&self) -> &Arc<Common> {
        &self.common
    }

    /// The way to the cores.
    #[must_use]
    pub fn cores(&self) -> &Cores {
        &self.way
    }

    /// Has all cores open a unit, so that it can be placed: [`House::place`].
    ///
    /// # Errors
    /// When one of them cannot; nothing is open then.
    pub fn open(&self, opening: &Opening) -> Result<()> {
        let opening = Arc::new(opening.clone());
        let results = self.way.ask_all({
            let opening = opening.clone();
            move |core| {
                let opened = core.open(&opening);
                std::future::ready(opened)
            }
        });
        let result = match results.len() {
            count if count == self.way.count() => results.into_iter().collect(),
            _ => Err(anyhow!("a core has ended")),
        };
        result.inspect_err(|_| self.withdraw(opening.ticket))
    }

    /// Closes what was opened and not placed.
    pub fn withdraw(&self, ticket: u64) {
        self.way.ask_all(move |core| async move { core.withdraw(ticket) });
    }

    /// Has all cores serve what was opened.
    pub fn place(&self, tickets: &[u64]) {
        let tickets: Arc<[u64]> = tickets.into();
        self.way.ask_all(move |core| {
            tickets.iter().for_each(|ticket| core.place(*ticket));
            std::future::ready(())
        });
    }

    /// Listens at an address; nobody is accepted before [`House::accept`]. Returns the address with its port.
    ///
    /// # Errors
    /// Why it cannot be listened at.
    pub fn listen(&self, portal: u32, address: SocketAddr) -> std::io::Result<SocketAddr> {
        let asked = self.way.ask(0, move |core| std::future::ready(core.listen(portal, address)));
        asked.wait().unwrap_or_else(|| Err(std::io::ErrorKind::BrokenPipe.into()))
    }

    /// Accepts who calls at a portal that is listened at, or lets those who come from now on in by another way.
    pub fn accept(&self, portal: u32, face: Face) {
        self.way.ask(0, move |core| async move { core.accept(portal, face) }).wait();
    }

    /// Does not listen at a portal any more.
    pub fn close(&self, portal: u32) {
        self.way.ask(0, move |core| async move { core.close(portal) }).wait();
    }

    /// Drains the cores, flushes everything and ends; a second signal that means stop ends the wait.
    ///
    /// # Errors
    /// When something could not be flushed.
    pub fn stop(self, signals: &mut Signals) -> Result<()> {
        stopping(signals, || self.end())
    }

    /// The same without a look at signals.
    ///
    /// # Errors
    /// When something could not be flushed.
    pub fn end(self) -> Result<()> {
        self.way.drain();
        let ended = |core: JoinHandle<Result<()>>| core.join().unwrap_or_else(|_| Err(anyhow!("a core panicked")));
        // All are waited for, whatever becomes of one.
        let results: Vec<Result<()>> = self.threads.into_iter().map(ended).collect();
        results.into_iter().collect()
    }
}

/// Ends what is served; a second signal that means stop ends the wait for it.
///
/// # Errors
/// Those of `end`.
pub(crate) fn stopping(signals: &mut Signals, end: impl FnOnce() -> Result<()>) -> Result<()> {
    log!("stopping: commands under way finish, then everything is flushed (again Ctrl-C: at once)");
    let handle = signals.handle();
    let mut pending = signals.forever();
    let results = std::thread::scope(|scope| {
        scope.spawn(|| {
            if pending.any(|signal| signal != SIGHUP) {
                log!("stopped at once: what was not flushed is in the page cache of this machine");
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

/// The kernel's random bytes: for what nobody may guess.
fn random(into: &mut [u8]) -> bool {
    getrandom(&mut *into, GetRandomFlags::empty()).is_ok_and(|got| got == into.len())
}

/// The ROD tokens: secrets from the kernel, time from the clock that never goes back.
fn tokens() -> Arc<Tokens> {
    let start = Instant::now();
    let now = move || lunar_core::time::Instant::default() + start.elapsed();
    Tokens::new(Box::new(random), Box::new(now))
}

/// As many open files as this user may have: one for each connection.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Refused only where the hard limit went down meanwhile: then there are as many as there are.
    let _ = setrlimit(Resource::Nofile, limit);
}

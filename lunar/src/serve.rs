//! `lunar serve`: opens the volumes, starts a thread per core, listens, and stops cleanly.

use crate::access::{Map, Who};
use crate::args::{self, Driver, How};
use crate::banner::{Faces, Line, banner};
use crate::cores::{AllCores, Face, Letter, Links, OtherCores, OtherSessions, OtherViews, Served};
use crate::proofs::{self, Proofs};
use crate::stats;
use crate::volume::Volume;
use anyhow::{Context, Result, anyhow, bail};
use lunar_core::io::{Completion, Data, Io, Op, submit};
use lunar_core::medium::{Medium, MediumKind};
use lunar_core::range::Ranges;
use lunar_core::stats::Stats;
use lunar_core::step::Tools;
use lunar_core::tally::Tally;
use lunar_core::unit::{Geometry, Unit, UnitId};
use lunar_iscsi::config;
use lunar_iscsi::guard::Guard;
use lunar_iscsi::guard::audit::Record;
use lunar_iscsi::registry::Registry;
use lunar_iscsi::serve::{Front, Settings};
use lunar_nvme::auth::guard::{Guard as NvmeGuard, Record as NvmeRecord};
use lunar_nvme::namespace::NAMESPACES_MAX;
use lunar_nvme::{Controllers, Subsystem, SubsystemConfig};
use lunar_nvme_tcp::serve::{Front as NvmeFront, Settings as NvmeSettings};
use lunar_nvme_tcp::tls::Channels;
use lunar_reactor::channel::{Sender, channel};
use lunar_reactor::linger::until_free;
use lunar_reactor::op::Handle;
use lunar_reactor::{Choice, Config, Reactor, Spin};
use lunar_scsi::{Clock, PortConfig, SharedUnits, Target, TargetConfig, Tokens};
use rustix::rand::{GetRandomFlags, getrandom};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Protocol identifier of iSCSI (SPC-6 7.6.1).
const PROTOCOL_ISCSI: u8 = 5;

/// What all cores are made from.
struct Setup {
    volumes: Vec<Volume>,
    names: Vec<String>,
    /// What the target is called for people.
    alias: String,
    target: String,
    /// Name of the NVM subsystem.
    nqn: String,
    how: How,
    stats: Vec<Arc<Stats>>,
    /// What is counted of each volume.
    tallies: Vec<Tally>,
    /// Work on the whole of each volume.
    media: Vec<Medium>,
    registry: Arc<Registry>,
    controllers: Arc<Controllers>,
    shared: Arc<SharedUnits>,
    tokens: Arc<Tokens>,
    guard: Arc<Guard>,
    nvme_guard: Arc<NvmeGuard>,
    proofs: Arc<proofs::Thread>,
    /// Secure channels of NVMe hosts.
    channels: Option<Channels>,
}

/// What a core reports while it starts, by its number.
enum Report {
    Mailbox(usize, Sender<Letter>),
    Listening(Faces, Vec<Line>),
    Ready,
    Failed(anyhow::Error),
}

/// Serves until a signal says stop.
///
/// # Errors
/// Everything that keeps it from starting, in words that say what to do.
pub fn run(volumes: Vec<Volume>, names: Vec<String>, how: How) -> Result<()> {
    raise_open_files();
    let count = how.cores.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    let stats: Vec<Arc<Stats>> = (0..count).map(|_| Arc::default()).collect();
    let target = how.name.clone().unwrap_or_else(|| args::default_name(&host_name(), &names[0]));
    let nqn = how.nqn.clone().unwrap_or_else(|| args::subsystem_of(&target));
    let socket = how.stats.as_deref().map(|path| stats::Socket::serve(path, stats.clone())).transpose()?;
    let shared = restore(&volumes, &names)?;
    check_maps(&how.who.map, volumes.len())?;
    let audit = |record: &Record| eprintln!("audit: {record}");
    let guard = Guard::new(how.who.access()?, Box::new(random), Box::new(audit));
    how.without_nvme().into_iter().for_each(|why| eprintln!("{why}"));
    let media = volumes.iter().map(|volume| Medium::of(volume.medium())).collect();
    let tallies = volumes.iter().map(|_| Tally::new(count)).collect();
    let nvme_guard = nvme_guard(&guard, &how.who);
    let channels = channels(&nvme_guard, &how.who)?;
    let setup = Arc::new(Setup {
        volumes,
        alias: alias(&names),
        names,
        target,
        nqn,
        stats,
        tallies,
        media,
        registry: Arc::new(Registry::new()),
        controllers: Arc::default(),
        shared,
        tokens: tokens(),
        nvme_guard,
        channels,
        how,
        guard,
        proofs: Arc::default(),
    });
    // Before the threads, so that they inherit the mask and a signal during start-up is not lost.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let (cores, mailboxes) = start(&setup, count)?;
    wait_for_stop(&mut signals);
    drop(socket);
    stop(cores, &mailboxes, &mut signals)
}

/// The same for NVMe: what is in force, and what failures cost, is the other's.
fn nvme_guard(guard: &Arc<Guard>, who: &Who) -> Arc<NvmeGuard> {
    let audit = |record: &NvmeRecord| eprintln!("audit: {record}");
    let (in_force, throttle) = (guard.clone(), guard.throttling());
    NvmeGuard::new(Box::new(move || in_force.access()), who.terms(), throttle, Box::new(random), Box::new(audit))
}

/// Secure channels of NVMe hosts, if there are any.
fn channels(guard: &Arc<NvmeGuard>, who: &Who) -> Result<Option<Channels>> {
    let guard = guard.clone();
    let channels = || Channels::new(move |identity| guard.channel(identity)).context("preparing secure channels (TLS)");
    (!who.tls_key.is_empty()).then(channels).transpose()
}

/// What the volumes kept of their reservations.
fn restore(volumes: &[Volume], names: &[String]) -> Result<Arc<SharedUnits>> {
    let shared = SharedUnits::default();
    for (lun, volume) in volumes.iter().enumerate() {
        shared.restore(UnitId(lun as u32), &**volume.keep()).with_context(|| format!("restoring {}", names[lun]))?;
    }
    Ok(Arc::new(shared))
}

/// Maps are of volumes that there are.
fn check_maps(maps: &[Map], volumes: usize) -> Result<()> {
    for Map { initiator, luns } in maps {
        if let Some((lun, mapping)) = luns.luns().find(|(_, mapping)| usize::from(mapping.unit) >= volumes) {
            bail!("--map {initiator}: LUN {lun} is volume {}, and {} is the last", mapping.unit, volumes - 1);
        }
    }
    Ok(())
}

/// The kernel's random bytes: for what nobody may guess.
fn random(into: &mut [u8]) -> bool {
    getrandom(&mut *into, GetRandomFlags::empty()).is_ok_and(|got| got == into.len())
}

/// The ROD tokens of the target: secrets from the kernel, time from the clock that never goes back.
fn tokens() -> Arc<Tokens> {
    let start = Instant::now();
    let now = move || lunar_core::time::Instant::default() + start.elapsed();
    Tokens::new(Box::new(random), Box::new(now))
}

/// TargetAlias (RFC 7143 13.6): what is shared, in at most 255 bytes.
fn alias(names: &[String]) -> String {
    let more = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
    let first: String = names[0].chars().filter(|c| !c.is_control()).take(48).collect();
    first + &more
}

/// Waits for the first signal that means stop; SIGHUP does not, a terminal may go away.
fn wait_for_stop(signals: &mut Signals) {
    for signal in signals.forever() {
        if signal != SIGHUP {
            return;
        }
    }
}

type Cores = Vec<JoinHandle<Result<()>>>;

/// Starts the cores and says so when all are ready.
fn start(setup: &Arc<Setup>, count: usize) -> Result<(Cores, Vec<Sender<Letter>>)> {
    let (report, reports) = mpsc::channel();
    let mut threads = Vec::new();
    let mut directories = Vec::new();
    for me in 0..count {
        let (directory, mailboxes) = mpsc::channel();
        let (setup, report) = (setup.clone(), report.clone());
        let thread = std::thread::Builder::new().name(format!("core{me}"));
        threads.push(thread.spawn(move || core(me, &setup, &report, &mailboxes))?);
        directories.push(directory);
    }
    let mut mailboxes: Vec<Option<Sender<Letter>>> = vec![None; count];
    let mut listening = None;
    let mut ready = 0;
    while ready < count {
        match reports.recv().context("a core ended while it started")? {
            Report::Mailbox(core, sender) => mailboxes[core] = Some(sender),
            Report::Listening(faces, lines) => listening = Some((faces, lines)),
            Report::Ready => ready += 1,
            Report::Failed(why) => return Err(why),
        }
        // All mailboxes are known: each core gets the whole directory.
        if let Some(all) = mailboxes.iter().cloned().collect::<Option<Vec<_>>>() {
            directories.drain(..).for_each(|directory| drop(directory.send(all.clone())));
        }
    }
    let (faces, lines) = listening.context("no core listens")?;
    let text = banner(&setup.target, &setup.nqn, &lines, &faces, setup.how.advertise.first().copied());
    // A closed standard output is no reason to stop sharing.
    let _ = std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush());
    Ok((threads, mailboxes.into_iter().flatten().collect()))
}

/// Drains the cores; a second signal ends the wait.
fn stop(cores: Cores, mailboxes: &[Sender<Letter>], signals: &mut Signals) -> Result<()> {
    eprintln!("stopping: commands under way finish, then everything is flushed (again Ctrl-C: at once)");
    let handle = signals.handle();
    mailboxes.iter().for_each(|mailbox| mailbox.send(Letter::Drain));
    let mut pending = signals.forever();
    let impatient = std::thread::scope(|scope| {
        scope.spawn(|| {
            if pending.any(|signal| signal != SIGHUP) {
                eprintln!("stopped at once: what was not flushed is in the page cache of this machine");
                std::process::exit(1);
            }
        });
        let results: Vec<Result<()>> =
            cores.into_iter().map(|core| core.join().unwrap_or_else(|_| Err(anyhow!("a core panicked")))).collect();
        handle.close();
        results
    });
    impatient.into_iter().collect::<Result<()>>()?;
    eprintln!("stopped: everything written is flushed");
    Ok(())
}

/// One core, from its start to its end.
fn core(
    me: usize,
    setup: &Setup,
    report: &mpsc::Sender<Report>,
    directory: &mpsc::Receiver<Vec<Sender<Letter>>>,
) -> Result<()> {
    match build(me, setup, report, directory) {
        Ok((reactor, core)) => {
            // The receiver is there until all cores are ready or one failed.
            let _ = report.send(Report::Ready);
            reactor.run(core.serve(&reactor))
        }
        Err(why) => {
            let _ = report.send(Report::Failed(why));
            bail!("did not start")
        }
    }
}

/// What a core has when it is ready.
struct Core {
    units: Vec<Rc<Unit>>,
    links: Rc<Links>,
    served: Rc<Served>,
    maps: Vec<Map>,
    letters: lunar_reactor::channel::Receiver<Letter>,
    listeners: Vec<(Face, Handle)>,
    mailboxes: Vec<Sender<Letter>>,
    stats: Vec<Arc<Stats>>,
}

fn build(
    me: usize,
    setup: &Setup,
    report: &mpsc::Sender<Report>,
    directory: &mpsc::Receiver<Vec<Sender<Letter>>>,
) -> Result<(Reactor, Core)> {
    let stats = setup.stats[me].clone();
    let reactor = Reactor::new(Config {
        driver: match setup.how.driver {
            Driver::Auto => Choice::Auto,
            Driver::IoUring => Choice::IoUring,
            Driver::Epoll => Choice::Epoll,
        },
        arena_bytes: (setup.how.memory as usize) << 20,
        register: setup.volumes.iter().any(Volume::is_direct),
        stats: stats.clone(),
        spin: Spin { limit: Duration::from_micros(setup.how.spin.into()) },
    })
    .context("starting a core (if io_uring is forbidden here, --driver epoll)")?;
    let (mailbox, letters) = channel(&reactor);
    let _ = report.send(Report::Mailbox(me, mailbox));
    let mailboxes = directory.recv().context("another core did not start")?;
    let links = Links::new(me, mailboxes.clone());
    let served = Rc::new(serve_units(me, setup, &reactor, &links)?);
    let units = open_units(setup, &reactor, &links, &served)?;
    let mut listeners = Vec::new();
    // One core accepts and hands out: the kernel would spread by hash, and two connections may well share one.
    if me == 0 {
        let faces = listen_all(&reactor, setup, &mut listeners)?;
        let lines = units.iter().enumerate().map(|(lun, unit)| Line::of(lun as u16, &setup.names[lun], unit));
        let _ = report.send(Report::Listening(faces, lines.collect()));
    }
    let maps = setup.how.who.map.clone();
    let core = Core { units, links, served, maps, letters, listeners, mailboxes, stats: setup.stats.clone() };
    Ok((reactor, core))
}

/// What this core serves, without any unit.
fn serve_units(me: usize, setup: &Setup, reactor: &Reactor, links: &Rc<Links>) -> Result<Served> {
    let stats = setup.stats[me].clone();
    let target = Target::new(
        TargetConfig {
            name: setup.target.clone(),
            ports: setup.how.groups().into_iter().map(|group| port(&setup.target, group)).collect(),
            clock: Clock(Rc::new(wall_clock)),
            core: u16::try_from(me).context("too many cores")?,
            stats: stats.clone(),
            shared: setup.shared.clone(),
            tokens: setup.tokens.clone(),
        },
        Rc::new(OtherCores(links.clone())),
    );
    let spawner = reactor.clone();
    target.run_in_background(Rc::new(move |work| spawner.spawn(work)));
    let identity = setup.volumes.first().context("nothing is shared")?.identity();
    let subsystem = Subsystem::new(
        SubsystemConfig {
            nqn: setup.nqn.clone(),
            serial: identity.serial.clone(),
            model: format!("{} {}", identity.vendor, identity.product),
            firmware: identity.revision.clone(),
            clock: Rc::new(wall_clock),
            stats,
            shared: setup.shared.clone(),
            controllers: setup.controllers.clone(),
            guard: setup.nvme_guard.clone(),
            outside: Rc::new(Proofs::new(reactor, &setup.proofs)),
        },
        Rc::new(OtherViews(links.clone())),
    );
    links.add_views(&target, &subsystem);
    let drain = Duration::from_secs(setup.how.drain.into());
    let settings = Settings {
        target: setup.target.as_str().into(),
        alias: setup.alias.as_str().into(),
        portals: setup.how.told(),
        drain,
        session: config::Config::default(),
        guard: setup.guard.clone(),
    };
    let sessions = Rc::new(OtherSessions(links.clone()));
    let iscsi = Front::new(reactor, &target, settings, setup.registry.clone(), me, sessions);
    let settings = NvmeSettings {
        advertise: setup.how.advertise.first().map(SocketAddr::ip),
        drain,
        channels: setup.channels.clone(),
    };
    // Its slots take memory.
    let is_wanted = !setup.how.nvme_portals().is_empty();
    let nvme = is_wanted.then(|| NvmeFront::new(reactor, &subsystem, settings));
    Ok(Served { target, subsystem, iscsi, nvme })
}

/// A portal group is a target port (RFC 7143 4.4.3), and a target port group of its own: a path that may fare
/// otherwise than the others.
fn port(target: &str, group: u16) -> PortConfig {
    PortConfig { relative: group, group, name: format!("{target},t,0x{group:04x}"), protocol: PROTOCOL_ISCSI }
}

fn open_units(setup: &Setup, reactor: &Reactor, links: &Rc<Links>, served: &Served) -> Result<Vec<Rc<Unit>>> {
    let Served { target, subsystem, .. } = served;
    let mut units = Vec::new();
    for (lun, volume) in setup.volumes.iter().enumerate() {
        let store = volume.open(reactor).with_context(|| format!("opening {}", setup.names[lun]))?;
        let geometry = Geometry::of(store.traits(), volume.block_size()).with_context(|| {
            format!("{} is not a whole number of {}-byte blocks", setup.names[lun], volume.block_size())
        })?;
        let protection = volume.protection().map(|protection| protection.open(reactor)).transpose();
        let protection = protection.with_context(|| format!("opening {}", setup.names[lun]))?;
        let unit = Rc::new(Unit {
            id: UnitId(lun as u32),
            identity: volume.identity().clone(),
            geometry,
            read_only: store.traits().read_only,
            store: setup.media[lun].guard(store),
            protection,
            ranges: Rc::new(Ranges::default()),
            medium: setup.media[lun].clone(),
            tally: setup.tallies[lun].of_core(target.config().core.into()),
            exclusive: Rc::new(AllCores(links.clone())),
            keep: volume.keep().clone(),
        });
        links.add_unit(&unit);
        target.add_unit(lun as u16, unit.clone());
        if let Some(namespace) = namespace_of(lun as u32, &unit) {
            subsystem.add_namespace(namespace, unit.clone());
        }
        units.push(unit);
    }
    Ok(units)
}

/// The namespace that a unit is, if it is one: NVMe has no media that can be taken out, and fewer namespaces than SCSI
/// has logical units.
fn namespace_of(lun: u32, unit: &Unit) -> Option<u32> {
    let is_fixed = unit.medium.kind() == MediumKind::Fixed;
    lun.checked_add(1).filter(|namespace| is_fixed && *namespace <= NAMESPACES_MAX)
}

/// Listens for everything that is served.
fn listen_all(reactor: &Reactor, setup: &Setup, listeners: &mut Vec<(Face, Handle)>) -> Result<Faces> {
    let groups = setup.how.groups();
    // All addresses are one group, unless asked for one by one.
    let face = |at| Face::Iscsi(groups.get(at).copied().unwrap_or(groups[0]));
    let iscsi: Vec<_> = setup.how.portals().into_iter().enumerate().map(|(at, portal)| (face(at), portal)).collect();
    let nvme: Vec<_> = setup.how.nvme_portals().into_iter().map(|portal| (Face::Nvme, portal)).collect();
    Ok(Faces {
        iscsi: listen(reactor, setup, &iscsi, listeners)?,
        nvme: listen(reactor, setup, &nvme, listeners)?,
        restricted: setup.how.who.keeps_out(),
    })
}

fn listen(
    reactor: &Reactor,
    setup: &Setup,
    wanted: &[(Face, SocketAddr)],
    listeners: &mut Vec<(Face, Handle)>,
) -> Result<Vec<SocketAddr>> {
    let mut portals = Vec::new();
    for &(face, portal) in wanted {
        let (option, asked) = match face {
            Face::Iscsi(_) => ("--listen", !setup.how.listen.is_empty()),
            Face::Nvme => ("--nvme", !setup.how.nvme.is_empty()),
        };
        let listen = || reactor.driver().listen(portal);
        match until_free(PORT_PATIENCE, listen, |why| why.kind() == std::io::ErrorKind::AddrInUse) {
            Ok((listener, address)) => {
                listeners.push((face, listener));
                portals.push(address);
            }
            // "All addresses" on a machine without IPv6 (or without IPv4) is what is there.
            Err(_) if !asked && portal.is_ipv6() && !portals.is_empty() => {}
            Err(why) if why.kind() == std::io::ErrorKind::AddrInUse => bail!(
                "{portal} is in use by another program (another target?): choose another port with {option} {}:{}",
                portal.ip(),
                portal.port().saturating_add(1)
            ),
            Err(why) if why.kind() == std::io::ErrorKind::AddrNotAvailable => {
                bail!("{portal} is not an address of this machine: see `ip address`")
            }
            Err(why) if why.kind() == std::io::ErrorKind::PermissionDenied => {
                bail!("port {} is for root only: choose one above 1023 with {option}", portal.port())
            }
            Err(why) => return Err(why).with_context(|| format!("listening on {portal}")),
        }
    }
    Ok(portals)
}

/// How long a port may stay taken by a process that ended: whose it is nobody tells.
const PORT_PATIENCE: Duration = Duration::from_secs(3);

impl Core {
    async fn serve(self, reactor: &Reactor) -> Result<()> {
        let Self { units, links, served, maps, letters, listeners, mailboxes, stats } = self;
        for Map { initiator, luns } in maps {
            served.target.set_map(&initiator, luns).await;
        }
        for (face, listener) in listeners {
            let (reactor, mailboxes, stats) = (reactor.clone(), mailboxes.clone(), stats.clone());
            reactor.clone().spawn(async move { accept(&reactor, face, &listener, &mailboxes, &stats).await });
        }
        {
            let (reactor, links, served) = (reactor.clone(), links, served.clone());
            reactor.clone().spawn(async move { links.serve(&reactor, letters, &served).await });
        }
        if served.target.config().core == 0 {
            served.target.resume(reactor.arena());
            let (reactor, target) = (reactor.clone(), served.target.clone());
            reactor.clone().spawn(async move { watch_space(&reactor, &target).await });
        }
        served.iscsi.drained().await;
        if let Some(front) = &served.nvme {
            front.drained().await;
        }
        for unit in &units {
            let beside = unit.protection.as_ref().map(|protection| &*protection.store);
            for store in std::iter::once(&*unit.store).chain(beside) {
                let io = Io { op: Op::Flush, offset: 0, data: Data::None };
                let outcome = submit(store, io, &mut Completion::new()).await;
                outcome.result.map_err(|why| anyhow!("LUN {} could not be flushed: {why:?}", unit.id.0))?;
            }
        }
        Ok(())
    }
}

/// Time between two looks at how much space volumes take whose thresholds are armed: soon enough for whoever buys
/// disks, and nothing beside the work of the fastest writer.
const SPACE_INTERVAL: Duration = Duration::from_secs(2);

/// Looks after thresholds, as long as there are any.
async fn watch_space(reactor: &Reactor, target: &Target) {
    let mut tools = Tools { arena: reactor.arena().clone(), completion: Completion::new() };
    loop {
        target.until_watched().await;
        target.watch_space(&mut tools).await;
        reactor.sleep(SPACE_INTERVAL).await;
    }
}

/// How long the core that accepts rests when it has no file descriptor left for a connection.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Hands each connection to the core that has the fewest.
async fn accept(reactor: &Reactor, face: Face, listener: &Handle, mailboxes: &[Sender<Letter>], stats: &[Arc<Stats>]) {
    let mut given = vec![0_u64; mailboxes.len()];
    loop {
        match reactor.accept(listener).await {
            Ok(incoming) => {
                // The gauge lags behind the mailbox; what was given in between settles a tie.
                let core = (0..mailboxes.len()).min_by_key(|&core| (stats[core].connections.get(), given[core]));
                let core = core.unwrap_or(0);
                given[core] += 1;
                mailboxes[core].send(Letter::Connection(face, incoming));
            }
            Err(why) => {
                eprintln!("accepting a connection failed: {why}");
                reactor.sleep(ACCEPT_REST).await;
            }
        }
    }
}

/// Milliseconds since the beginning of 1970; zero on a machine that does not know that it is later.
fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// As many open files as this user may have: one for each connection.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Refused only where the hard limit went down meanwhile: then there are as many as there are.
    let _ = setrlimit(Resource::Nofile, limit);
}

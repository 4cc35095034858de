//! One core, from its start to its end: what it serves, and what it can be asked for from outside.

use super::listening::Listening;
use super::{Common, Report};
use crate::cores::{AllCores, Face, Letter, Links, OtherCores, OtherSessions, OtherViews, Served};
use crate::proofs::Proofs;
use crate::steward::Errands;
use crate::volume::Volume;
use anyhow::{Context, Result, anyhow, bail};
use lunar_core::io::Completion;
use lunar_core::medium::{Medium, MediumKind};
use lunar_core::range::Ranges;
use lunar_core::step::{Tools, flush_now};
use lunar_core::tally::Tally;
use lunar_core::unit::{Geometry, Unit, UnitId};
use lunar_iscsi::serve::Front;
use lunar_nvme::{Subsystem, SubsystemConfig};
use lunar_nvme_tcp::serve::{Front as NvmeFront, Settings as NvmeSettings};
use lunar_reactor::channel::{Receiver, Sender, channel};
use lunar_reactor::log;
use lunar_reactor::{Config, Reactor, Spin};
use lunar_scsi::{Clock, Target, TargetConfig};
use lunar_unit::CoreUnits;
use lunar_vfio_user::serve::Front as MachineFront;
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time between two looks at how much space volumes take whose thresholds are armed: soon enough for whoever buys
/// disks, and nothing beside the work of the fastest writer.
const SPACE_INTERVAL: Duration = Duration::from_secs(2);

/// Time between two looks at whether commands have left a unit that is served in another shape, and how long they are
/// waited for: what hosts give a command.
const LEFT_INTERVAL: Duration = Duration::from_millis(100);
const LEFT_MAX: Duration = Duration::from_secs(60);

/// A unit to be opened.
#[derive(Clone, Debug)]
pub struct Opening {
    /// By what it is called until it is placed.
    pub ticket: u64,
    /// Its number: that of the unit whose place it takes, if it is the same one in another shape.
    pub unit: UnitId,
    /// Its volume.
    pub volume: Volume,
    /// Work on the whole of it.
    pub medium: Medium,
    /// What is counted of it.
    pub tally: Tally,
}

/// What a core has while it runs.
pub struct Core {
    /// Its number.
    pub me: usize,
    /// What runs its tasks.
    pub reactor: Reactor,
    /// Its correspondence with the others, and its units.
    pub links: Rc<Links>,
    /// What it serves.
    pub served: Rc<Served>,
    ready: RefCell<BTreeMap<u64, Rc<Unit>>>,
    pub(super) listening: RefCell<BTreeMap<u32, Rc<Listening>>>,
    pub(super) mailboxes: Vec<Sender<Letter>>,
    pub(super) common: Arc<Common>,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Core({})", self.me)
    }
}

/// One core, in its thread.
pub(super) fn run(
    me: usize,
    common: &Arc<Common>,
    report: &mpsc::Sender<Report>,
    directory: &mpsc::Receiver<Vec<Sender<Letter>>>,
) -> Result<()> {
    match build(me, common, report, directory) {
        Ok((reactor, core, letters)) => {
            // The receiver is there until all cores are ready or one failed.
            let _ = report.send(Report::Ready);
            // The first of its clones goes at the end, and with it all tasks: letters that are not read yet are
            // answered.
            reactor.run(core.serve(letters))
        }
        Err(why) => {
            let _ = report.send(Report::Failed(why));
            bail!("did not start")
        }
    }
}

fn build(
    me: usize,
    common: &Arc<Common>,
    report: &mpsc::Sender<Report>,
    directory: &mpsc::Receiver<Vec<Sender<Letter>>>,
) -> Result<(Reactor, Rc<Core>, Receiver<Letter>)> {
    let reactor = Reactor::new(Config {
        driver: common.frame.driver,
        arena_bytes: common.frame.memory,
        register: common.frame.register,
        stats: common.stats[me].clone(),
        spin: Spin { limit: common.frame.spin },
    })
    .context("starting a core (if io_uring is forbidden here, the driver epoll does without)")?;
    let (mailbox, letters) = channel(&reactor);
    let _ = report.send(Report::Mailbox(me, mailbox));
    let mailboxes = directory.recv().context("another core did not start")?;
    let links = Links::new(me, mailboxes.clone());
    let served = Rc::new(serve_nothing(me, common, &reactor, &links));
    let core = Rc::new(Core {
        me,
        reactor: reactor.clone(),
        links,
        served,
        ready: RefCell::default(),
        listening: RefCell::default(),
        mailboxes,
        common: common.clone(),
    });
    let _ = core.served.core.set(Rc::downgrade(&core));
    Ok((reactor, core, letters))
}

/// What a core serves, without any unit.
fn serve_nothing(me: usize, common: &Common, reactor: &Reactor, links: &Rc<Links>) -> Served {
    let stats = common.stats[me].clone();
    let units = CoreUnits::new(common.shared.clone(), Rc::new(OtherCores(links.clone())));
    let spawner = reactor.clone();
    units.run_in_background(Rc::new(move |work| spawner.spawn(work)));
    let target = Target::new(TargetConfig {
        ports: Vec::new(),
        clock: Clock(Rc::new(wall_clock)),
        stats: stats.clone(),
        units: units.clone(),
        tokens: common.tokens.clone(),
    });
    let subsystem = Subsystem::new(
        SubsystemConfig {
            clock: Rc::new(wall_clock),
            stats,
            units: units.clone(),
            controllers: common.controllers.clone(),
            board: common.board.clone(),
            guard: common.nvme_guard.clone(),
            outside: Rc::new(Proofs::new(reactor, &common.proofs)),
        },
        Rc::new(OtherViews(links.clone(), Errands::new(reactor, &common.steward))),
    );
    let sessions = Rc::new(OtherSessions(links.clone()));
    let iscsi = Front::new(reactor, &target, common.guard.clone(), common.registry.clone(), me, sessions);
    let (nvme, machines) = (OnceCell::new(), OnceCell::new());
    Served { units, target, subsystem, iscsi, nvme, machines, core: OnceCell::new() }
}

impl Core {
    /// Opens a unit, and keeps it until it is placed.
    ///
    /// # Errors
    /// When there is no room for open files or memory.
    pub(super) fn open(&self, opening: &Opening) -> Result<()> {
        let Opening { ticket, unit, volume, medium, tally } = opening;
        let store = volume.open(&self.reactor)?;
        let block_size = volume.block_size();
        let geometry = Geometry::of(store.traits(), block_size)
            .with_context(|| format!("it is not a whole number of {block_size}-byte blocks"))?;
        let protection = volume.protection().map(|protection| protection.open(&self.reactor)).transpose()?;
        let before = self.links.unit(*unit);
        let opened = Rc::new(Unit {
            id: *unit,
            identity: volume.identity().clone(),
            geometry,
            read_only: store.traits().read_only,
            store: medium.guard(store),
            protection,
            // Commands under way at the same unit in its shape before must keep out of each other's way with new ones.
            ranges: before.map_or_else(|| Rc::new(Ranges::default()), |before| before.ranges.clone()),
            medium: medium.clone(),
            tally: tally.of_core(self.me),
            exclusive: Rc::new(AllCores(self.links.clone())),
            metadata: volume.keep().clone(),
        });
        self.ready.borrow_mut().insert(*ticket, opened);
        Ok(())
    }

    pub(super) fn withdraw(&self, ticket: u64) {
        self.ready.borrow_mut().remove(&ticket);
    }

    pub(super) fn place(&self, ticket: u64) {
        let Some(unit) = self.ready.borrow_mut().remove(&ticket) else { return };
        if let Some(before) = self.links.unit(unit.id)
            && before.traits().write_cache
            && !unit.traits().write_cache
        {
            let reactor = self.reactor.clone();
            self.reactor.spawn(async move { flush_left(&reactor, before).await });
        }
        self.links.add_unit(&unit);
        // NVMe has no media that can be taken out.
        if unit.medium.kind() == MediumKind::Fixed {
            self.served.subsystem.add_unit(unit.clone());
        }
        // Units are numbered below the last LUN.
        self.served.target.add_unit(unit.id.0 as u16, unit);
    }

    /// Does not serve a unit any more, that nobody sees any more; flushes it.
    pub async fn remove(&self, unit: UnitId) {
        self.served.target.remove_unit(unit.0 as u16);
        self.served.subsystem.remove_unit(unit);
        // Known until it is flushed: who stops meanwhile flushes it, too.
        if let Some(known) = self.links.unit(unit)
            && let Err(why) = flush_now(&known).await
        {
            log!("a volume that is no longer served could not be flushed: {why:?}");
        }
        self.links.forget_unit(unit);
        // Whoever has this number next is another. Each core does so: none makes tokens after the last of them has.
        self.common.tokens.forget(unit);
        self.common.shared.forget(unit);
    }

    /// Its NVMe/TCP, from the first time on: its slots take memory.
    pub(crate) fn nvme(&self) -> Rc<NvmeFront> {
        let frame = &self.common.frame;
        let channels = self.common.channels.clone();
        let settings = NvmeSettings { advertise: frame.advertise, drain: frame.drain, channels };
        let front = || NvmeFront::new(&self.reactor, &self.served.subsystem, settings);
        self.served.nvme.get_or_init(front).clone()
    }

    /// Its controllers of virtual machines, from the first time on: its slots take memory.
    pub(crate) fn machines(&self) -> Rc<MachineFront> {
        let drain = self.common.frame.drain;
        let front = || MachineFront::new(&self.reactor, &self.served.subsystem, drain);
        self.served.machines.get_or_init(front).clone()
    }

    pub(super) fn listen(self: &Rc<Self>, portal: u32, address: SocketAddr) -> std::io::Result<SocketAddr> {
        let (listening, address) = Listening::at(&self.reactor, address)?;
        self.listening.borrow_mut().insert(portal, listening);
        Ok(address)
    }

    pub(super) fn accept(self: &Rc<Self>, portal: u32, face: Face) {
        let found = self.listening.borrow().get(&portal).cloned();
        found.iter().for_each(|listening| listening.accept(self, face));
    }

    pub(super) fn close(&self, portal: u32) {
        let found = self.listening.borrow_mut().remove(&portal);
        found.iter().for_each(|listening| listening.close(&self.reactor));
    }

    /// Serves until it is told to drain, and has ended then.
    async fn serve(self: Rc<Self>, letters: Receiver<Letter>) -> Result<()> {
        {
            let (core, reactor) = (self.clone(), self.reactor.clone());
            reactor.spawn(async move { core.links.serve(&core.reactor, letters, &core.served).await });
        }
        if self.me == 0 {
            let (reactor, target) = (self.reactor.clone(), self.served.target.clone());
            reactor.clone().spawn(async move { watch_space(&reactor, &target).await });
        }
        self.served.iscsi.drained().await;
        if let Some(front) = self.served.nvme.get() {
            front.drained().await;
        }
        if let Some(front) = self.served.machines.get() {
            front.drained().await;
        }
        // One that cannot be flushed keeps no other from it.
        let mut failed = Vec::new();
        for unit in self.links.units() {
            if let Err(why) = flush_now(&unit).await {
                failed.push(format!("unit {} could not be flushed: {why:?}", unit.id.0));
            }
        }
        // Listeners hold the core, and it holds them.
        self.listening.take().values().for_each(|listening| listening.close(&self.reactor));
        if failed.is_empty() { Ok(()) } else { Err(anyhow!(failed.join("; "))) }
    }
}

/// Brings what was written to a unit that had a cache to the medium: who sees it without one flushes nothing any more.
/// Once at once, and once when what was under way at it has ended.
async fn flush_left(reactor: &Reactor, before: Rc<Unit>) {
    for patience in [Duration::ZERO, LEFT_MAX] {
        let begun = reactor.now();
        while Rc::strong_count(&before) > 1 && reactor.now().since(begun) < patience {
            reactor.sleep(LEFT_INTERVAL).await;
        }
        if let Err(why) = flush_now(&before).await {
            let serial = &before.identity.serial;
            log!("volume {serial}: what was written before it was written through could not be flushed: {why:?}");
        }
    }
}

/// Looks after thresholds, as long as there are any.
async fn watch_space(reactor: &Reactor, target: &Target) {
    let mut tools = Tools { arena: reactor.arena().clone(), completion: Completion::new() };
    loop {
        target.until_watched().await;
        target.watch_space(&mut tools).await;
        reactor.sleep(SPACE_INTERVAL).await;
    }
}

/// Milliseconds since the beginning of 1970; zero on a machine that does not know that it is later.
pub(crate) fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;

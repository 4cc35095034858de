//! ublk as a front of the engine: the disks of a configuration. A disk is made before a change is certain, so that a
//! failure undoes the change, and started when its volume is served.

use crate::command_line::{UblkOptions, place_of};
use crate::life::{Claim, DiskRequest, Key, feature_names};
use crate::schema::{self, QUEUES, UBLK, Ublk};
use crate::serve::{self, Local, Opener, Queues, report};
use crate::wire::disk_at;
use lunar_blk::Client;
use lunar_control::api::SessionView;
use lunar_control::live::Later;
use lunar_control::model::Lun;
use lunar_control::plan::{Action, Change};
use lunar_control::visibility::group_of_local;
use lunar_control::{Checked, Config, Kind};
use lunar_core::time::Instant;
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::core_set::front_cores::FrontCores;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::error::EngineError;
use lunar_engine::front::{CoreFront, Front, FrontPaths, FrontRuntime, Incoming, PortalRef, Prepared};
use lunar_engine::published::Published;
use lunar_engine::registry::FrontEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::ready;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The name of the front, with which the IDs of its sessions begin.
pub const NAME: &str = "ublk";
/// The core that gives the control commands, and serves the first queue of each device.
const FIRST: usize = 0;

/// ublk, in the registry.
#[derive(Clone, Copy)]
pub struct UblkFront {
    /// Opens devices: those of the operating system, or those of a simulation.
    pub open: Opener,
}

/// Its line in a registry.
pub const ENTRY: FrontEntry =
    FrontEntry { front: &UblkFront { open: Opener::KERNEL }, schema: &schema::FRONT, options: Some(&UblkOptions) };

impl Front for UblkFront {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&self, _index: usize, shared: &Arc<Shared>) -> Result<Arc<dyn FrontRuntime>, EngineError> {
        Ok(Arc::new(UblkRuntime { shared: shared.clone(), open: self.open, state: Mutex::default() }))
    }

    fn paths(&self, config: &Config, _runtime: &Path) -> FrontPaths {
        // The kernel makes the nodes of devices later, so the folder is the smallest place that has them.
        let is_used = config.section::<Ublk>().next().is_some();
        FrontPaths { write: is_used.then(|| "/dev".into()).into_iter().collect(), ..FrontPaths::default() }
    }
}

/// The wanted state of a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Wanted {
    request: DiskRequest,
    local: Local,
    /// Its host group, and its target in the configuration.
    group: String,
    target: String,
}

/// A disk that is served.
#[derive(Clone, Debug)]
struct Running {
    wanted: Wanted,
    claim: Claim,
    since: Instant,
}

/// The disks of a process, by their names.
#[derive(Default, Debug)]
struct State {
    running: BTreeMap<String, Running>,
    /// Disks that a change has made, and that are started when it is published.
    claims: BTreeMap<String, (DiskRequest, Claim)>,
    troubles: BTreeMap<String, String>,
}

/// ublk of a process.
pub struct UblkRuntime {
    shared: Arc<Shared>,
    open: Opener,
    state: Mutex<State>,
}

impl fmt::Debug for UblkRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UblkRuntime({} disks)", self.state().running.len())
    }
}

/// The group of a disk, and the volume that it shows.
fn volume<'a>(config: &'a Config, name: &str, ublk: &Ublk) -> Option<(&'a str, &'a Lun)> {
    let target = ublk.target.name();
    config.targets.get(target).filter(|target| target.enabled)?;
    let (group, section) = group_of_local(config, target, &ublk.host(name))?;
    let mut luns = section.luns.0.iter();
    let (_, lun) = luns.find(|(number, _)| ublk.lun.is_none_or(|wanted| wanted.get() == u64::from(**number)))?;
    Some((group, lun))
}

/// The request for a disk of this configuration; `None`: its group shows it no volume.
fn request(config: &Config, name: &str, ublk: &Ublk, cores: usize) -> Option<DiskRequest> {
    let (_, lun) = volume(config, name, ublk)?;
    // A volume without a path is in memory, and its contents end with the process.
    let path = config.volumes.get(lun.volume.name())?.path.as_ref();
    let text = path.map_or_else(|| lun.volume.name().to_owned(), |path| path.path().display().to_string());
    let queues = ublk.queues.map_or_else(|| cores.min(QUEUES), |queues| queues.get() as usize);
    Some(DiskRequest {
        name: name.to_owned(),
        key: Key::of(name, &text),
        number: ublk.number.map(|number| number.get() as u32),
        queues: queues as u16,
        depth: ublk.depth.get() as u16,
        survives: path.is_some(),
    })
}

/// The wanted state of a disk; `None`: its group shows it no volume.
fn wanted(published: &Published<'_>, name: &str, ublk: &Ublk, cores: usize) -> Option<Wanted> {
    let config = &published.wanted.config;
    let request = request(config, name, ublk, cores)?;
    let (group, lun) = volume(config, name, ublk)?;
    let portal_group = ublk.portal_group.as_ref().and_then(|group| config.portal_groups.get(group.name()));
    let client = Client {
        name: ublk.host(name).into(),
        group: portal_group.map_or(0, |group| group.tag.get() as u16),
        read_only: lun.read_only,
    };
    let local = Local { unit: *published.units.get(lun.volume.name())?, client };
    Some(Wanted { request, local, group: group.to_owned(), target: ublk.target.name().to_owned() })
}

impl UblkRuntime {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is one insert, remove or assignment, so a panic of another thread leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds or makes the device of a disk.
    fn claim(cores: &FrontCores, request: &DiskRequest) -> Result<Claim, String> {
        let request = request.clone();
        let claimed = cores.ask(FIRST, async move |front: Rc<UblkCore>| front.0.claim(request).await).wait();
        claimed.unwrap_or_else(|| Err("a core has ended".into()))
    }

    /// Makes the disk of a section, if it can be made before the change is certain.
    fn provide(&self, cores: &FrontCores, name: &str, checked: &Checked) -> Result<Option<String>, EngineError> {
        let config = &checked.config;
        let ublk = config.find::<Ublk>(name).ok_or(EngineError::NotConfigured)?;
        let Some(request) = request(config, name, ublk, cores.count()) else {
            let check = cores.ask(FIRST, async move |front: Rc<UblkCore>| front.0.check().await).wait();
            return check.ok_or(EngineError::CoreEnded)?.map(|_| None).map_err(|why| EngineError::Front(why.into()));
        };
        if self.state().running.contains_key(name) {
            // Another device takes its place when the change is published.
            return Ok(None);
        }
        let claim = Self::claim(cores, &request).map_err(|why| EngineError::Front(why.into()))?;
        self.state().claims.insert(name.to_owned(), (request, claim));
        Ok(Some(name.to_owned()))
    }

    /// Removes a device that was made for nothing. One that was left by another process stays for the next one.
    fn discard(cores: &FrontCores, claim: Claim) {
        if !claim.is_old {
            let remove = async move |front: Rc<UblkCore>| front.0.remove(claim.number).await;
            if let Some(Err(why)) = cores.ask(FIRST, remove).wait() {
                report(true, &format!("ublk: {why}"));
            }
        }
    }

    /// Serves a device and starts it.
    fn bring_up(&self, cores: &FrontCores, wanted: &Wanted, claim: Claim) -> Result<(), String> {
        let ended = || Err("a core has ended".to_owned());
        let local = || wanted.local.clone();
        let first = local();
        let set = async move |front: Rc<UblkCore>| front.0.set_params(claim, first).await;
        let in_force = cores.ask(FIRST, set).wait().unwrap_or_else(|| Err("a core has ended".into()))?;
        let Queues { depth, buffer_bytes, endpoints } =
            (self.open.queues)(claim.number).map_err(|why| why.to_string())?;
        for (number, endpoint) in (0..).zip(endpoints) {
            let (name, local) = (wanted.request.name.clone(), local());
            let serve = move |front: Rc<UblkCore>| {
                let memory = (endpoint, depth, buffer_bytes);
                ready(front.0.serve((&name, claim), local, number, memory, in_force.has_volatile_cache))
            };
            cores.ask(usize::from(number) % cores.count(), serve).wait().unwrap_or_else(ended)?;
        }
        let local = local();
        let start = async move |front: Rc<UblkCore>| front.0.start(claim, local, in_force.resizes).await;
        cores.ask(FIRST, start).wait().unwrap_or_else(ended)
    }

    /// Ends the service of a device, and removes it.
    fn take_down(cores: &FrontCores, claim: Claim) -> Result<(), String> {
        let number = claim.number;
        let stop = async move |front: Rc<UblkCore>| front.0.stop(number).await;
        let stopped = cores.ask(FIRST, stop).wait().unwrap_or(Ok(()));
        for core in 0..cores.count() {
            cores.ask(core, async move |front: Rc<UblkCore>| front.0.close(number).await).wait();
        }
        stopped?;
        let remove = async move |front: Rc<UblkCore>| front.0.remove(number).await;
        cores.ask(FIRST, remove).wait().unwrap_or(Ok(()))
    }

    /// Makes and starts a disk.
    fn begin(&self, cores: &FrontCores, wanted: Wanted) {
        let name = wanted.request.name.clone();
        let prepared = self.state().claims.remove(&name);
        let claim = match prepared {
            Some((request, claim)) if request == wanted.request => Ok(claim),
            Some((_, other)) => {
                Self::discard(cores, other);
                Self::claim(cores, &wanted.request)
            }
            None => Self::claim(cores, &wanted.request),
        };
        let begun = claim.and_then(|claim| match self.bring_up(cores, &wanted, claim) {
            Ok(()) => Ok(claim),
            Err(why) => {
                // Requests that wait in a device of a process before this one must not be lost.
                if !claim.is_old {
                    let _ = Self::take_down(cores, claim);
                }
                Err(format!("ublk {name}: {why}"))
            }
        });
        match begun {
            Ok(claim) => {
                if self.state().running.is_empty() {
                    report(false, &format!("ublk: the kernel offers {}", feature_names(claim.features).join(", ")));
                }
                let again = if claim.is_old { ", which a process before this one had left" } else { "" };
                report(false, &format!("ublk {name}: serves {}{again}", disk_at(claim.number)));
                let since = self.shared.host.now();
                let mut state = self.state();
                state.troubles.remove(&name);
                state.running.insert(name, Running { wanted, claim, since });
            }
            Err(why) => {
                report(true, &why);
                self.state().troubles.insert(name, why);
            }
        }
    }

    fn session_id(number: u32) -> String {
        format!("{NAME}-{number}")
    }
}

impl FrontRuntime for UblkRuntime {
    fn core_front(&self, core: &CoreContext) -> Rc<dyn CoreFront> {
        let keeps = !self.shared.origin.is_command_line();
        let times = (keeps, self.shared.config.drain);
        Rc::new(UblkCore(serve::Front::new(&core.reactor, &core.block, self.open, times)))
    }

    fn prepare(&self, cores: &FrontCores, change: &Change, wanted: &Checked) -> Result<Option<Prepared>, EngineError> {
        match (change.object.kind, &change.action) {
            (Kind::Front(UBLK), Action::Create | Action::Change(_)) => {
                let made = self.provide(cores, &change.object.name, wanted)?;
                Ok(made.map(|name| Box::new(name) as Prepared))
            }
            _ => Ok(None),
        }
    }

    fn roll_back(&self, cores: &FrontCores, prepared: Prepared) {
        let Ok(name) = prepared.downcast::<String>() else { return };
        let claim = self.state().claims.remove(&*name);
        if let Some((_, claim)) = claim {
            Self::discard(cores, claim);
        }
    }

    fn publish(&self, _published: &Published<'_>) {}

    fn finalize(&self, cores: &FrontCores, published: &Published<'_>) {
        let all: BTreeMap<String, Option<Wanted>> = published
            .wanted
            .config
            .section::<Ublk>()
            .map(|(name, ublk)| (name.to_owned(), wanted(published, name, ublk, cores.count())))
            .collect();
        let gone: Vec<Running> = {
            let mut state = self.state();
            state.troubles.retain(|name, _| all.contains_key(name));
            let stays =
                |running: &Running| all.get(&running.wanted.request.name) == Some(&Some(running.wanted.clone()));
            let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
                std::mem::take(&mut state.running).into_iter().partition(|(_, running)| stays(running));
            state.running = kept;
            gone.into_values().collect()
        };
        for Running { wanted, claim, .. } in gone {
            if let Err(why) = Self::take_down(cores, claim) {
                report(true, &format!("ublk {}: {why}", wanted.request.name));
            }
        }
        for (name, wanted) in all {
            match wanted {
                _ if self.state().running.contains_key(&name) => {}
                Some(wanted) => self.begin(cores, wanted),
                None => {
                    let why = format!("ublk {name}: there is no disk: its host group shows it no such volume");
                    report(false, &why);
                    self.state().troubles.insert(name, why);
                }
            }
        }
        let unused = std::mem::take(&mut self.state().claims);
        unused.into_values().for_each(|(_, claim)| Self::discard(cores, claim));
    }

    fn sessions(&self, _targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView> {
        let now = self.shared.host.now();
        let view = |Running { wanted, claim, since }: &Running| SessionView {
            id: Self::session_id(claim.number),
            protocol: NAME,
            discovery: false,
            initiator: wanted.local.client.name.to_string(),
            source: disk_at(claim.number),
            target: Some(wanted.target.clone()),
            group: Some(wanted.group.clone()),
            user: None,
            seconds: now.since(*since).as_secs(),
        };
        self.state().running.values().map(view).collect()
    }

    fn end_session(&self, cores: &FrontCores, id: &str) -> Option<Later<bool>> {
        let mut state = self.state();
        let is_it = |(_, running): &(&String, &Running)| Self::session_id(running.claim.number) == id;
        let name = state.running.iter().find(is_it).map(|(name, _)| name.clone())?;
        let Running { claim, .. } = state.running.remove(&name)?;
        drop(state);
        let cores = cores.clone();
        Some(Box::new(move || Self::take_down(&cores, claim).is_ok()))
    }

    fn leftovers(&self) -> Vec<String> {
        Vec::new()
    }

    fn places(&self) -> BTreeMap<String, PathBuf> {
        let place = |(name, running): (&String, &Running)| (place_of(name), disk_at(running.claim.number).into());
        self.state().running.iter().map(place).collect()
    }

    fn troubles(&self) -> Vec<String> {
        self.state().troubles.values().cloned().collect()
    }
}

/// ublk on a core.
#[derive(Debug)]
pub struct UblkCore(Rc<serve::Front>);

impl CoreFront for UblkCore {
    /// It has no portals.
    fn serve(&self, _incoming: Incoming, _portal: PortalRef) {}

    /// The kernel has no connections: the requests in progress.
    fn connections(&self) -> usize {
        self.0.in_progress()
    }

    /// A disk that is another one now is made anew when the configuration is published.
    fn review(&self, _ended: Arc<BTreeSet<Arc<str>>>) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(ready(()))
    }

    fn drain(&self) {
        self.0.drain();
    }

    fn drained(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.0.drained())
    }

    fn abandon(&self) {
        self.0.abandon();
    }
}

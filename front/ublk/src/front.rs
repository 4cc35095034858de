//! ublk as a front of the engine: the disks of a configuration. A disk is made before a change is certain, so that a
//! failure undoes the change, and started when its volume is served.

use crate::command_line::{UblkOptions, place_of};
use crate::disk::Disk;
use crate::error::{DiskError, ServeError};
use crate::life::{Claim, DiskRequest, Removal, USED, about_left, feature_names};
use crate::params::TRANSFER_BYTES;
use crate::schema::{self, UBLK, Ublk};
use crate::serve::{self, Opener, report};
use crate::wanted::{DiskLoss, Wanted, queues, request, wanted};
use crate::wire::disk_at;
use lunar_control::api::{LocalDiskView, LocalDisksView, SessionView};
use lunar_control::common_sections::Lun;
use lunar_control::in_use::{AffectedHost, LostDisk, Taking};
use lunar_control::live::Later;
use lunar_control::plan::{Action, Change, ObjectId};
use lunar_control::{Checked, Config, Kind};
use lunar_core::time::Instant;
use lunar_core::unit::Identity;
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::core_set::front_handle::FrontHandle;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::engine::core_config;
use lunar_engine::error::EngineError;
use lunar_engine::front::{Front, FrontOnCore, FrontPaths, FrontRuntime, Incoming, PortalRef, Prepared};
use lunar_engine::published_config::PublishedConfig;
use lunar_engine::registry::FrontEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::ready;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The name of the front, with which the IDs of its sessions begin.
pub const NAME: &str = schema::WORD;
/// The core that gives the control commands, and serves the first queue of each device.
const FIRST: usize = 0;
/// The name of the client of a disk that was left, in the list of sessions.
const LEFT: &str = "(left by a process that has ended)";
/// The folder of links to disks by their names, in the folder of sockets.
const LINKS: &str = "ublk";
/// The section of a disk, as an example.
const EXAMPLE: &str = "[ublk.NAME], volume = \"VOLUME\"";
/// The control device.
const CONTROL: &str = "/dev/ublk-control";

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
        Ok(Arc::new(UblkRuntime { shared: shared.clone(), open: self.open, state: SharedState::default() }))
    }

    fn paths(&self, config: &Config, runtime: &Path) -> FrontPaths {
        // The kernel makes the node of a device when the device is made, long after the sandbox is shut, and a rule of
        // Landlock names a node that exists or the folder above it. The file helper cannot open it instead: the kernel
        // lets only the process that has opened the node start the device. So the folder is allowed, for opening
        // devices alone; the service manager restricts which ones (`DeviceAllow=`).
        let is_used = config.section::<Ublk>().next().is_some();
        let devices = is_used.then(|| "/dev".into()).into_iter().collect();
        // Disks whose section was removed are reported.
        let control = (!is_used && (self.open.has_disks)()).then(|| CONTROL.into()).into_iter().collect();
        // Links to disks that are not served any more are removed.
        let folder = runtime.join(LINKS);
        let left = || Some(folder.clone()).filter(|folder| !(self.open.links)(folder).is_empty());
        let links = if is_used { Some(runtime.to_owned()) } else { left() }.into_iter().collect();
        FrontPaths { devices, write: control, links, ..FrontPaths::default() }
    }

    fn memory(&self, config: &Config) -> u64 {
        let cores = core_config(config).cores;
        let tags = |ublk: &Ublk| queues(ublk, cores) as u64 * ublk.depth.get();
        config.section::<Ublk>().map(|(_, ublk)| tags(ublk) * u64::from(TRANSFER_BYTES)).sum()
    }
}

/// A disk that is served.
#[derive(Clone, Debug)]
struct Running {
    wanted: Wanted,
    claim: Claim,
    disk: Arc<Disk>,
    since: Instant,
}

/// The disks of a process, by their names.
#[derive(Default, Debug)]
struct State {
    running: BTreeMap<String, Running>,
    /// Disks that a change has made, and that are started when it is published.
    claims: BTreeMap<String, (DiskRequest, Claim)>,
    /// Disks that were taken over up to their last step, which failed: it is repeated when the configuration is applied
    /// again. Each with its size in sectors.
    begun: BTreeMap<String, (Running, u64)>,
    /// Disks that do not end in time, and the reason.
    ending: BTreeMap<String, (Arc<Disk>, DiskError)>,
    /// Disks that were left and have no section, by the numbers of their devices.
    left: BTreeMap<u32, String>,
    has_looked: bool,
    /// Whether the process began with a section of a disk: otherwise its sandbox does not include the devices of ublk.
    began_with: bool,
    troubles: BTreeMap<String, DiskError>,
    /// The identities of volumes, by their names in the configuration, during a change.
    volumes: BTreeMap<Arc<str>, Arc<Identity>>,
}

type SharedState = Arc<Mutex<State>>;

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // Every change is one insert, remove or assignment, so a panic of another thread leaves the state consistent.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// ublk of a process.
pub struct UblkRuntime {
    shared: Arc<Shared>,
    open: Opener,
    state: SharedState,
}

impl fmt::Debug for UblkRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UblkRuntime({} disks)", self.state().running.len())
    }
}

/// The names of features.
fn names(features: u64) -> Vec<String> {
    feature_names(features).into_iter().map(str::to_owned).collect()
}

/// The answer of a core.
fn answered<T>(answer: Option<Result<T, ServeError>>) -> Result<T, ServeError> {
    answer.unwrap_or(Err(ServeError::CoreEnded))
}

/// The error of the first disk of a process that began without one: only a restart opens its sandbox for disks.
fn advised(why: ServeError, began_with: bool, section: impl FnOnce() -> String) -> ServeError {
    match why {
        ServeError::NoControl(why) if why.kind() == ErrorKind::PermissionDenied && !began_with => {
            ServeError::NoSandbox { section: section(), why }
        }
        why => why,
    }
}

/// Ends the service of a device, and removes it. A device that does not end in time is noted.
fn take_down(state: &SharedState, cores: &FrontHandle, running: Running) -> Result<(), DiskError> {
    let Running { wanted, claim, disk, .. } = running;
    let (name, number, to) = (wanted.request.name, claim.number, disk.clone());
    let end = async move |front: Rc<UblkCore>| front.0.end(claim, to).await;
    let ended = cores.ask(FIRST, end).wait().unwrap_or(Ok(Removal::Done));
    match ended {
        Ok(removal) => {
            for core in 0..cores.count() {
                cores.ask(core, async move |front: Rc<UblkCore>| front.0.close(number)).wait();
            }
            if removal == Removal::Held {
                let disk = disk_at(number);
                report(
                    false,
                    &format!("ublk {name}: {disk} is removed; its number is free when programs have closed it"),
                );
            }
            Ok(())
        }
        Err(why) => {
            let why = DiskError::Serve(name.clone(), Arc::new(why));
            lock(state).ending.insert(name, (disk, why.clone()));
            Err(why)
        }
    }
}

impl UblkRuntime {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Finds or makes the device of a disk.
    fn claim(cores: &FrontHandle, request: &DiskRequest) -> Result<Claim, ServeError> {
        let request = request.clone();
        answered(cores.ask(FIRST, async move |front: Rc<UblkCore>| front.0.claim(request).await).wait())
    }

    /// Makes the disk of a section, if it can be made before the change is certain.
    fn provide(&self, cores: &FrontHandle, name: &str, checked: &Checked) -> Result<Option<String>, EngineError> {
        let config = &checked.config;
        let ublk = config.find::<Ublk>(name).ok_or(EngineError::NotConfigured)?;
        let began_with = {
            let mut state = self.state();
            state.began_with |= !state.has_looked;
            state.began_with
        };
        let advised = |why| EngineError::front(advised(why, began_with, || ublk.written(name)));
        let request = request(config, &self.state().volumes, (name, ublk), cores.count());
        let Some(request) = request else {
            let check = cores.ask(FIRST, async move |front: Rc<UblkCore>| front.0.check().await).wait();
            let checked = check.ok_or(EngineError::CoreEnded)?.map(|_| None);
            return checked.map_err(advised);
        };
        let waits = {
            let state = self.state();
            // Another device takes its place when the change is published, or takes the number of one that ends then.
            let has_number = |running: &Running| request.number == Some(running.claim.number);
            state.running.contains_key(name) || state.begun.contains_key(name) || state.running.values().any(has_number)
        };
        if waits {
            return Ok(None);
        }
        let claim = Self::claim(cores, &request).map_err(advised)?;
        self.state().claims.insert(name.to_owned(), (request, claim));
        Ok(Some(name.to_owned()))
    }

    /// Removes a device that was made for nothing. One that was left by another process stays for the next one.
    fn discard(cores: &FrontHandle, claim: Claim) {
        if !claim.is_old {
            let remove = async move |front: Rc<UblkCore>| front.0.remove(claim.number).await;
            if let Err(why) = answered(cores.ask(FIRST, remove).wait()) {
                report(true, &format!("ublk: {why}"));
            }
        }
    }

    /// Serves a device and starts it.
    fn bring_up(&self, cores: &FrontHandle, running: &Running) -> Result<(), ServeError> {
        let in_force = self.get_ready(cores, running);
        let number = running.claim.number;
        for core in 0..cores.count() {
            let is_ready = in_force.is_ok();
            let next =
                async move |front: Rc<UblkCore>| if is_ready { front.0.go(number) } else { front.0.release(number) };
            cores.ask(core, next).wait();
        }
        let sectors = in_force?;
        let started = Self::start(cores, running, sectors);
        if started.is_err() && running.claim.is_old {
            // Requests that wait in a device of a process before this one must not be lost.
            self.state().begun.insert(running.wanted.request.name.clone(), (running.clone(), sectors));
        }
        started
    }

    /// Does everything that can fail before a queue is served: all that needs memory comes first, and the first command
    /// that changes a device that was left comes last. Returns the size of the device in sectors.
    fn get_ready(&self, cores: &FrontHandle, running: &Running) -> Result<u64, ServeError> {
        let (claim, local) = (running.claim, &running.wanted.local);
        let first = local.clone();
        let set = async move |front: Rc<UblkCore>| front.0.set_params(claim, first).await;
        let in_force = answered(cores.ask(FIRST, set).wait())?;
        let core_of = |queue: u16| usize::from(queue) % cores.count();
        for queue in 0..claim.queues {
            let (name, local, disk) = (running.wanted.request.name.clone(), local.clone(), running.disk.clone());
            let reserve = move |front: Rc<UblkCore>| {
                ready(front.0.reserve((&name, &claim, &disk), &local, queue, in_force.has_volatile_cache))
            };
            answered(cores.ask(core_of(queue), reserve).wait())?;
        }
        if claim.is_old {
            answered(cores.ask(FIRST, async move |front: Rc<UblkCore>| front.0.recover(claim).await).wait())?;
        }
        let opened = (self.open.queues)(claim.number).map_err(ServeError::NoDevice)?;
        let sizes = (usize::from(opened.depth), opened.buffer_bytes, opened.endpoints.len());
        if sizes != (usize::from(claim.depth), claim.buffer_bytes as usize, usize::from(claim.queues)) {
            return Err(ServeError::OtherDevice(claim.number));
        }
        for (queue, endpoint) in (0..).zip(opened.endpoints) {
            let attach = move |front: Rc<UblkCore>| ready(front.0.attach(claim.number, queue, endpoint));
            answered(cores.ask(core_of(queue), attach).wait())?;
        }
        Ok(in_force.sectors)
    }

    fn start(cores: &FrontHandle, running: &Running, sectors: u64) -> Result<(), ServeError> {
        let (device, local) = ((running.claim, running.disk.clone()), running.wanted.local.clone());
        let start = async move |front: Rc<UblkCore>| front.0.start(device, local, sectors).await;
        answered(cores.ask(FIRST, start).wait())
    }

    /// Repeats the last step of a takeover; `None`: there was none.
    fn resume(&self, cores: &FrontHandle, wanted: &Wanted) -> Option<Result<Running, DiskError>> {
        let name = &wanted.request.name;
        let (begun, sectors) = self.state().begun.remove(name)?;
        if begun.wanted != *wanted {
            self.state().begun.insert(name.clone(), (begun, sectors));
            return Some(Err(DiskError::OtherSettings(name.clone())));
        }
        let started = Self::start(cores, &begun, sectors);
        if started.is_err() {
            self.state().begun.insert(name.clone(), (begun.clone(), sectors));
        }
        Some(started.map(|()| begun).map_err(|why| DiskError::Serve(name.clone(), Arc::new(why))))
    }

    /// Makes and starts a disk.
    fn make(&self, cores: &FrontHandle, wanted: Wanted) -> Result<Running, DiskError> {
        let name = wanted.request.name.clone();
        let ending = self.state().ending.get(&name).filter(|(disk, _)| !disk.is_gone()).map(|(_, why)| why.clone());
        if let Some(why) = ending {
            return Err(why);
        }
        let prepared = self.state().claims.remove(&name);
        let claim = |request: &DiskRequest| Self::claim(cores, request).map_err(|why| DiskError::Claim(Arc::new(why)));
        let claim = match prepared {
            Some((request, claim)) if request == wanted.request => claim,
            Some((_, other)) => {
                Self::discard(cores, other);
                claim(&wanted.request)?
            }
            None => claim(&wanted.request)?,
        };
        let running = Running { wanted, claim, disk: Arc::default(), since: self.shared.host.now() };
        match self.bring_up(cores, &running) {
            Ok(()) => Ok(running),
            Err(why) => {
                if !claim.is_old {
                    // The first failure is the one to tell; a device that does not end is noted.
                    let _ = take_down(&self.state, cores, running);
                }
                Err(DiskError::Serve(name, Arc::new(why)))
            }
        }
    }

    /// Begins to serve a disk.
    fn begin(&self, cores: &FrontHandle, wanted: Wanted) {
        let name = wanted.request.name.clone();
        let begun = self.resume(cores, &wanted).unwrap_or_else(|| self.make(cores, wanted));
        match begun {
            Ok(running) => {
                let claim = running.claim;
                if self.state().running.is_empty() {
                    report(false, &format!("ublk: the kernel offers {}", feature_names(claim.features).join(", ")));
                }
                let again = if claim.is_old { ", which a process before this one had left" } else { "" };
                let link = self.link_of(&name);
                let linked = link.as_deref().map(|link| (self.open.link)(link, claim.number));
                let place = match (&link, linked) {
                    (Some(link), Some(Ok(()))) => format!(", {}", link.display()),
                    (Some(link), Some(Err(why))) => {
                        report(true, &format!("ublk {name}: there is no link {}: {why}", link.display()));
                        String::new()
                    }
                    _ => String::new(),
                };
                report(false, &format!("ublk {name}: serves {}{place}{again}", disk_at(claim.number)));
                let mut state = self.state();
                state.troubles.remove(&name);
                state.left.remove(&claim.number);
                state.running.insert(name, running);
            }
            Err(why) => {
                report(true, &why.to_string());
                self.state().troubles.insert(name, why);
            }
        }
    }

    /// Looks for disks that processes before this one have left, and whose sections are gone. They are never
    /// removed without being asked for: programs may use them, and another process may mean to serve them again.
    fn look_for_left(&self, cores: &FrontHandle, names: Vec<String>) {
        if names.is_empty() && !(self.open.has_disks)() {
            return;
        }
        let look = async move |front: Rc<UblkCore>| front.0.left_behind(names).await;
        // Without the right to ask, nothing is known; a disk that is configured says so itself.
        let Ok(left) = answered(cores.ask(FIRST, look).wait()) else { return };
        for found in left {
            let words = format!("ublk: {}", about_left(&found, &Self::session_id(found.number)));
            report(true, &words);
            self.state().left.insert(found.number, words);
        }
    }

    /// Removes the links that processes before this one have left, and that lead to no disk of their name. Without
    /// the right to ask for the disks, links to disks that exist stay.
    fn tidy_links(&self, cores: &FrontHandle, wanted: &BTreeSet<String>) {
        let folder = self.shared.host.runtime().join(LINKS);
        for (name, number) in (self.open.links)(&folder) {
            if self.state().running.get(&name).is_some_and(|running| running.claim.number == number) {
                continue;
            }
            let (link, is_wanted) = (folder.join(&name), wanted.contains(&name));
            let bears = async move |front: Rc<UblkCore>| front.0.bears(number, &name, is_wanted).await;
            let stays = (self.open.has_disks)() && answered(cores.ask(FIRST, bears).wait()).unwrap_or(true);
            if !stays {
                (self.open.unlink)(&link, number);
            }
        }
    }

    /// The link to the disk of this name; `None` for names that are hidden files.
    fn link_of(&self, name: &str) -> Option<PathBuf> {
        (!name.starts_with('.')).then(|| self.shared.host.runtime().join(LINKS).join(name))
    }

    /// Removes the link to a disk that ends.
    fn unlink(&self, running: &Running) {
        if let Some(link) = self.link_of(&running.wanted.request.name) {
            (self.open.unlink)(&link, running.claim.number);
        }
    }

    /// This machine as the client of a disk, and its loss; `None`: no program that is known uses the disk.
    fn affected(&self, running: &Running, loss: &DiskLoss) -> Option<AffectedHost> {
        let user = (self.open.user)(running.claim.number)?;
        Some(AffectedHost {
            session: Self::session_id(running.claim.number),
            initiator: running.wanted.local.client.name.to_string(),
            source: disk_at(running.claim.number),
            target: running.wanted.shown_by.as_ref().map(|(_, target)| target.clone()).unwrap_or_default(),
            loses: vec![format!("{loss}, and {user} on the service's machine: {}", user.remedy())],
        })
    }

    fn session_id(number: u32) -> String {
        format!("{NAME}-{number}")
    }
}

impl FrontRuntime for UblkRuntime {
    fn on_core(&self, core: &CoreContext) -> Rc<dyn FrontOnCore> {
        let keeps = !self.shared.origin.is_command_line();
        let times = (keeps, self.shared.config.drain);
        Rc::new(UblkCore(serve::Front::new(&core.reactor, &core.block, self.open, times)))
    }

    fn prepare(&self, cores: &FrontHandle, change: &Change, wanted: &Checked) -> Result<Option<Prepared>, EngineError> {
        match (change.object.kind, &change.action) {
            (Kind::Front(UBLK), Action::Create | Action::Change(_)) => {
                let made = self.provide(cores, &change.object.name, wanted)?;
                Ok(made.map(|name| Box::new(name) as Prepared))
            }
            _ => Ok(None),
        }
    }

    fn roll_back(&self, cores: &FrontHandle, prepared: Prepared) {
        let Ok(name) = prepared.downcast::<String>() else { return };
        let claim = self.state().claims.remove(&*name);
        if let Some((_, claim)) = claim {
            Self::discard(cores, claim);
        }
    }

    fn publish(&self, _published: &PublishedConfig<'_>) {}

    fn identify(&self, volumes: &BTreeMap<Arc<str>, Arc<Identity>>) {
        self.state().volumes.clone_from(volumes);
    }

    fn finalize(&self, cores: &FrontHandle, published: &PublishedConfig<'_>) {
        let volumes = std::mem::take(&mut self.state().volumes);
        let sections = published.wanted.config.section::<Ublk>();
        let all: BTreeMap<String, Option<Wanted>> = sections
            .map(|(name, ublk)| (name.to_owned(), wanted(published, &volumes, (name, ublk), cores.count())))
            .collect();
        let gone: Vec<Running> = {
            let mut state = self.state();
            state.troubles.retain(|name, _| all.contains_key(name));
            state.ending.retain(|_, (disk, _)| !disk.is_gone());
            let stays =
                |running: &Running| all.get(&running.wanted.request.name) == Some(&Some(running.wanted.clone()));
            let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
                std::mem::take(&mut state.running).into_iter().partition(|(_, running)| stays(running));
            state.running = kept;
            // A takeover that has begun keeps its device as long as the section is there: requests wait in it.
            let (kept, dropped): (BTreeMap<_, _>, BTreeMap<_, _>) =
                std::mem::take(&mut state.begun).into_iter().partition(|(name, _)| all.contains_key(name));
            state.begun = kept;
            gone.into_values().chain(dropped.into_values().map(|(running, _)| running)).collect()
        };
        // Volumes are closed after all fronts have ended what they serve of them: see `Retirement`.
        for running in gone {
            self.unlink(&running);
            if let Err(why) = take_down(&self.state, cores, running) {
                report(true, &why.to_string());
            }
        }
        let is_first = !std::mem::replace(&mut self.state().has_looked, true);
        let names: BTreeSet<String> = all.keys().cloned().collect();
        if is_first {
            self.state().began_with |= !names.is_empty();
            self.look_for_left(cores, names.iter().cloned().collect());
        }
        for (name, wanted) in all {
            match wanted {
                _ if self.state().running.contains_key(&name) => {}
                Some(wanted) => self.begin(cores, wanted),
                None => {
                    let why = DiskError::NoVolume(name.clone());
                    report(false, &why.to_string());
                    self.state().troubles.insert(name, why);
                }
            }
        }
        if is_first {
            self.tidy_links(cores, &names);
        }
        let unused = std::mem::take(&mut self.state().claims);
        unused.into_values().for_each(|(_, claim)| Self::discard(cores, claim));
    }

    fn sessions(&self, _targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView> {
        let now = self.shared.host.now();
        let view = |Running { wanted, claim, since, .. }: &Running| SessionView {
            id: Self::session_id(claim.number),
            protocol: NAME,
            discovery: false,
            initiator: wanted.local.client.name.to_string(),
            source: disk_at(claim.number),
            target: wanted.shown_by.as_ref().map(|(_, target)| target.clone()),
            group: wanted.shown_by.as_ref().map(|(group, _)| group.clone()),
            portal_group: None,
            user: None,
            seconds: now.since(*since).as_secs(),
            parameters: Vec::new(),
            tcp: Vec::new(),
        };
        // Disks that were left have no client, and can be ended.
        let left = |(number, _): (&u32, &String)| SessionView {
            id: Self::session_id(*number),
            protocol: NAME,
            discovery: false,
            initiator: LEFT.to_owned(),
            source: disk_at(*number),
            target: None,
            group: None,
            portal_group: None,
            user: None,
            seconds: 0,
            parameters: Vec::new(),
            tcp: Vec::new(),
        };
        let state = self.state();
        state.running.values().map(view).chain(state.left.iter().map(left)).collect()
    }

    fn end_session(&self, cores: &FrontHandle, id: &str) -> Option<Later<bool>> {
        let mut state = self.state();
        let (cores, shared) = (cores.clone(), self.state.clone());
        let is_it = |number: u32| Self::session_id(number) == id;
        if let Some(number) = state.left.keys().copied().find(|number| is_it(*number)) {
            return Some(Box::new(move || {
                let discard = async move |front: Rc<UblkCore>| front.0.discard_left(number).await;
                let discarded = answered(cores.ask(FIRST, discard).wait());
                match &discarded {
                    Ok(_) => drop(lock(&shared).left.remove(&number)),
                    Err(why) => report(true, &format!("ublk: {why}")),
                }
                discarded.is_ok()
            }));
        }
        let name =
            state.running.iter().find(|(_, running)| is_it(running.claim.number)).map(|(name, _)| name.clone())?;
        let running = state.running.remove(&name)?;
        self.unlink(&running);
        Some(Box::new(move || {
            let ended = take_down(&shared, &cores, running);
            ended.inspect_err(|why| report(true, &why.to_string())).is_ok()
        }))
    }

    fn leftovers(&self) -> Vec<String> {
        Vec::new()
    }

    fn local_disks(&self, cores: &FrontHandle) -> Option<Later<LocalDisksView>> {
        let state = self.state();
        let disks = state.running.iter().map(|(name, running)| LocalDiskView {
            name: name.clone(),
            volume: running.wanted.volume.clone(),
            host: running.wanted.local.client.name.to_string(),
            device: disk_at(running.claim.number),
            link: self.link_of(name).map(|link| link.display().to_string()),
            read_only: running.wanted.local.client.read_only,
            features: names(running.claim.flags),
            trouble: running.disk.trouble().map(ToString::to_string),
        });
        let failed = state.troubles.iter().map(|(name, why)| LocalDiskView {
            name: name.clone(),
            trouble: Some(why.to_string()),
            ..LocalDiskView::default()
        });
        let disks: Vec<LocalDiskView> = disks.chain(failed).collect();
        let began_with = state.began_with;
        let asked = cores.ask(FIRST, async move |front: Rc<UblkCore>| front.0.check().await);
        Some(Box::new(move || {
            let (offered, trouble) = match answered(asked.wait()) {
                Ok(features) => (features, None),
                Err(why) => (0, Some(advised(why, began_with, || EXAMPLE.to_owned()).to_string())),
            };
            LocalDisksView { offered: names(offered), used: names(offered & USED), trouble, disks }
        }))
    }

    fn lost_disks(&self, taking: &Taking<'_>) -> Vec<LostDisk> {
        let state = self.state();
        let begun = state.begun.values().map(|(running, _)| running);
        let lost = |running: &Running| {
            let host = self.affected(running, &running.wanted.loss(taking)?)?;
            let Wanted { request, volume, shown_by, .. } = &running.wanted;
            let (group, target) = shown_by.clone().unzip();
            let causes = [(Kind::Front(UBLK), Some(&request.name)), (Kind::Volume, Some(volume))];
            let causes = causes.into_iter().chain([(Kind::Group, group.as_ref()), (Kind::Target, target.as_ref())]);
            // The disk loses its volume with the LUNs of its group, too.
            let luns = group.iter().flat_map(|name| {
                let shows = move |(lun, mapped): (&u16, &Lun)| (mapped.volume.name() == volume).then_some(*lun);
                let luns = taking.old.groups.get(name).into_iter().flat_map(|group| &group.luns.0);
                luns.filter_map(shows).map(|lun| ObjectId { kind: Kind::Lun, name: name.clone(), lun: Some(lun) })
            });
            let luns: Vec<ObjectId> = luns.collect();
            Some(LostDisk {
                host,
                causes: causes
                    .filter_map(|(kind, name)| Some(ObjectId { kind, name: name?.clone(), lun: None }))
                    .chain(luns)
                    .collect(),
            })
        };
        state.running.values().chain(begun).filter_map(lost).collect()
    }

    fn lost_with(&self, id: &str) -> Option<AffectedHost> {
        let state = self.state();
        let (name, running) = state.running.iter().find(|(_, running)| Self::session_id(running.claim.number) == id)?;
        self.affected(running, &DiskLoss::Removed(name.clone()))
    }

    fn places(&self) -> BTreeMap<String, PathBuf> {
        let place = |(name, running): (&String, &Running)| (place_of(name), disk_at(running.claim.number).into());
        self.state().running.iter().map(place).collect()
    }

    fn troubles(&self) -> Vec<String> {
        let state = self.state();
        let ending = state.ending.values().filter(|(disk, _)| !disk.is_gone()).map(|(_, why)| why.to_string());
        let broken = state.running.values().filter_map(|running| running.disk.trouble().map(ToString::to_string));
        let told = state.troubles.values().map(ToString::to_string).chain(state.left.values().cloned());
        let all: BTreeSet<String> = told.chain(ending).chain(broken).collect();
        all.into_iter().collect()
    }
}

/// ublk on a core.
#[derive(Debug)]
pub struct UblkCore(Rc<serve::Front>);

impl FrontOnCore for UblkCore {
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

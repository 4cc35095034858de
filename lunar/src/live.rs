//! The configuration, in force: what it asks for is opened and bound first, and given to the cores once everything that
//! can fail has not.
//!
//! * `shape`: what the cores make of a configuration
//! * `hosts`: the same for NVMe; `machines`: the sockets of virtual machines
//! * `ports`: which number each target port has, for ever
//! * `settle`: from one shape to the next, without disturbing whom it does not concern
//! * `sight`: who is logged in, and what was counted
//! * here: [`Running`]: volumes and addresses

mod hosts;
mod machines;
mod ports;
mod settle;
mod shape;
mod sight;

use crate::daemon::Part;
use crate::house::{Ear, Frame, House, Notice, Opening, why_not};
use crate::isns::{Isns, Wanted};
use crate::serve::PORT_PATIENCE;
use crate::volume::Volume;
use crate::volume::keep::state_folder;
use anyhow::{Result, anyhow};
use hosts::Histories;
use lunar_control::apply::Running;
use lunar_control::check::check;
use lunar_control::config::{Config, Kind};
use lunar_control::model::{self, Driver};
use lunar_control::plan::{Action, Change, Plan};
use lunar_control::{Checked, versions};
use lunar_core::medium::Medium;
use lunar_core::tally::Tally;
use lunar_core::unit::UnitId;
use lunar_iscsi::directory::Directory;
use lunar_reactor::Choice;
use lunar_reactor::linger::until_free;
use lunar_reactor::log;
use lunar_scsi::lun::LUNS_MAX;
use lunar_vfio_user::serve::Permission;
use machines::Made;
pub use machines::runtime;
use ports::Ports;
use settle::{Latch, Settled};
use shape::{Accesses, Listener};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Keys of a volume that change how its unit is served, and not which unit it is.
const SAME_UNIT: [&str; 6] = ["size", "read_only", "shared", "write_through", "direct", "revision"];

/// Keys of a volume that only NVMe hosts see, in their maps and when they come.
const OF_HOSTS: [&str; 4] = ["pool", "namespace", "private", "attached"];

/// Keys of a portal that say where it is.
const ADDRESS: [&str; 2] = ["address", "protocol"];

/// A volume that is served.
#[derive(Clone, Debug)]
struct Placed {
    unit: UnitId,
    volume: Volume,
    medium: Medium,
    tally: Tally,
    model: model::Volume,
}

/// The configuration, in force.
pub struct Live {
    house: House,
    state: PathBuf,
    /// Keeps other daemons out of it.
    held: File,
    volumes: BTreeMap<String, Placed>,
    listeners: BTreeMap<String, Listener>,
    /// Volumes that were served before, and are not now.
    expected: BTreeSet<String>,
    /// The sockets of virtual machines.
    sockets: BTreeMap<PathBuf, Made>,
    /// Where those are that are given no place.
    runtime: PathBuf,
    ports: Ports,
    /// What NVM subsystems remember, by their names.
    histories: Histories,
    parts: Vec<Box<dyn Part>>,
    /// Who is told of logins and the like; until somebody is, they are lines of the log.
    listener: Arc<OnceLock<Box<Ear>>>,
    /// Where targets are registered.
    isns: Isns,
    /// Numbers of units that are taken.
    units: Numbers,
    tickets: u64,
    portals: u32,
    /// What is known of the plan that is being carried out.
    coming: Coming,
    settled: Settled,
    /// Opens when nothing of the last change goes on any more.
    settling: Latch,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Live({} volumes, {} portals)", self.volumes.len(), self.listeners.len())
    }
}

/// Numbers of units, in rotation: what still goes on at a unit that is gone names it by its number, and shall not meet
/// another.
#[derive(Default)]
struct Numbers {
    taken: BTreeSet<u32>,
    /// Behind the one that was given last.
    next: u32,
}

impl Numbers {
    /// Takes the one that was not taken for the longest time; `None` if all are.
    fn take(&mut self) -> Option<u32> {
        let number = (self.next..u32::from(LUNS_MAX)).chain(0..self.next).find(|one| !self.taken.contains(one))?;
        self.taken.insert(number);
        self.next = number + 1;
        Some(number)
    }

    fn give_back(&mut self, number: u32) {
        self.taken.remove(&number);
    }
}

/// What is known of a plan while it is carried out.
#[derive(Default)]
struct Coming {
    /// Who may log in then; the first step makes it.
    accesses: Option<Accesses>,
    /// Which volume is where, before anything is changed; the first step makes it.
    places: HashMap<PathBuf, String>,
    /// Whether the parts have prepared themselves.
    parts: bool,
    /// Units to be served.
    tickets: Vec<u64>,
    /// Units that are not served any more.
    leaving: Vec<UnitId>,
    /// The UUIDs of volumes that are not served any more, and their units.
    left: Vec<([u8; 16], UnitId)>,
    /// Volumes that are other units than before.
    replaced: BTreeSet<String>,
    /// Units that are served for the first time.
    new: Vec<UnitId>,
    /// Units that are served in another shape.
    reshaped: Vec<UnitId>,
    /// Listeners that are not wanted any more.
    closing: Vec<Listener>,
}

/// A step that is ready to be made.
#[derive(Debug)]
pub enum Ready {
    /// There is nothing in it that can fail.
    Nothing,
    /// A volume is open.
    Volume {
        /// By what the cores know it.
        ticket: u64,
        /// What it is.
        placed: Box<PlacedVolume>,
    },
    /// An address is listened at.
    Portal {
        /// Where.
        listener: BoundListener,
        /// Those of our own that had to be closed for it.
        displaced: Vec<BoundListener>,
        /// Whether it is one that was there before.
        is_taken_over: bool,
    },
    /// A virtual machine has its socket.
    Socket {
        /// Where.
        path: PathBuf,
        /// Who might open it before, if it is one that was there.
        before: Option<Permission>,
    },
    /// The other parts of the daemon have prepared themselves.
    Parts,
}

/// A volume that is open, and not served yet.
#[derive(Debug)]
pub struct PlacedVolume(Placed);

/// An address that is listened at.
#[derive(Clone, Copy, Debug)]
pub struct BoundListener(Listener);

impl Live {
    /// Cores as the file at `config` asks for; nothing is served yet. Returns the state folder, too: that of the file,
    /// or `state`, or what is usual; and how long what is away is waited for.
    ///
    /// # Errors
    /// When the file is not valid, or the cores do not start.
    pub fn of_file(config: &Path, state: Option<&Path>) -> Result<(Self, PathBuf, Duration)> {
        let text = versions::read(config)?;
        let outside = crate::daemon::here(config.to_owned());
        let checked = check(&config.display().to_string(), &text, &outside)?;
        let own = checked.config.server.state.as_ref().map(|path| path.path().to_owned());
        let state = own.or_else(|| state.map(Path::to_owned)).unwrap_or_else(state_folder);
        Ok((Self::start(&checked.config, &state)?, state, checked.config.server.patience.0))
    }

    /// Cores as a configuration asks for; nothing is served yet.
    ///
    /// # Errors
    /// When they do not start, or what is in the state folder cannot be read.
    pub fn start(config: &Config, state: &Path) -> Result<Self> {
        std::fs::create_dir_all(state)?;
        let held = hold(state, HOLD_PATIENCE)?;
        let server = &config.server;
        let frame = Frame {
            cores: match server.cores {
                Some(cores) => cores.get() as usize,
                None => std::thread::available_parallelism().map_or(1, usize::from),
            },
            driver: match server.driver {
                Driver::Auto => Choice::Auto,
                Driver::IoUring => Choice::IoUring,
                Driver::Epoll => Choice::Epoll,
            },
            memory: server.memory.0 as usize,
            spin: server.spin.0,
            register: config.volumes.values().any(|volume| volume.direct),
            drain: server.drain.0,
            advertise: None,
            // A key may be configured at any time.
            has_channels: true,
        };
        let ports = Ports::open(state).map_err(|why| anyhow!(why))?;
        let listener: Arc<OnceLock<Box<Ear>>> = Arc::default();
        let told = listener.clone();
        let ear: Arc<Ear> = Arc::new(move |notice: &Notice<'_>| match told.get() {
            Some(listener) => listener(notice),
            None => log!("audit: {notice}"),
        });
        let house = House::start(frame, Directory::new(server.drain.0), ear.clone())?;
        Ok(Self {
            house,
            state: state.to_owned(),
            held,
            volumes: BTreeMap::new(),
            listeners: BTreeMap::new(),
            expected: BTreeSet::new(),
            sockets: BTreeMap::new(),
            runtime: runtime(),
            ports,
            histories: Histories::new(),
            parts: Vec::new(),
            listener,
            isns: Isns::new(move |words| ear(&Notice::Isns(words))),
            units: Numbers::default(),
            tickets: 0,
            portals: 0,
            coming: Coming::default(),
            settled: Settled::default(),
            settling: Latch::opened(),
        })
    }

    /// The cores.
    #[must_use]
    pub fn house(&self) -> &House {
        &self.house
    }

    /// Waits until nothing of the last change goes on any more.
    pub fn settled(&self) {
        self.settling.wait();
    }

    /// Ends it: everything is flushed. Nobody is sent here by the iSNS server any more, and when it has ended another
    /// may have the state folder.
    ///
    /// # Errors
    /// When something could not be flushed.
    pub fn end(self) -> Result<()> {
        let Self { isns, house, held, .. } = self;
        drop(isns);
        let ended = house.end();
        drop(held);
        ended
    }

    /// From now on this part is asked, too, when something changes that it goes by; it knows what is in force now.
    pub fn add_part(&mut self, part: Box<dyn Part>) {
        self.parts.push(part);
    }

    /// From now on this is told of logins and the like; the first that asks for it is.
    pub fn audit_to(&self, listener: Box<Ear>) {
        let _ = self.listener.set(listener);
    }

    /// Tells operators of something.
    pub(crate) fn tell(&self, notice: &Notice<'_>) {
        match self.listener.get() {
            Some(listener) => listener(notice),
            None => log!("audit: {notice}"),
        }
    }

    /// Forgets what a volume kept besides its data that is served no more.
    pub(crate) fn forget_kept(&self, volume: [u8; 16]) {
        if let Err(why) = crate::volume::keep::forget(&self.state, volume) {
            log!("what a volume kept that is gone could not be removed: {why}");
        }
    }

    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// Opens the volume of this name as it shall be.
    fn open(&mut self, name: &str, is_same: bool, wanted: &Checked) -> Result<Ready, String> {
        let model = wanted.config.volumes.get(name).ok_or("it is not in the configuration")?;
        if let Some(path) = &model.path {
            crate::jail::reaches(path.path())?;
        }
        let own = self.volumes.get(name).cloned();
        let stays = |own: &Placed| is_same || model.path.is_some() && own.model.path == model.path;
        if let Some(own) = own.as_ref().filter(|own| stays(own)) {
            let (has, wanted) = (own.volume.traits().size, model.size.map_or(u64::MAX, |size| size.0));
            if wanted < has {
                return Err(format!(
                    "it has {has} bytes: what lies behind its new end would be lost to its initiators"
                ));
            }
        }
        // Another may be what is in this place until now; what is in memory is nobody else's.
        let in_place = || self.volumes.get(self.coming.places.get(model.path.as_ref()?.path())?);
        let before = own.as_ref().filter(|_| is_same).or_else(in_place);
        let is_new = !self.expected.contains(name);
        let volume = Volume::configured(name, model, &self.state, before.map(|before| &before.volume), is_new);
        let volume = volume.map_err(|why| format!("{why:#}"))?;
        let placed = match own.filter(|_| is_same) {
            Some(own) => Placed { volume, model: model.clone(), ..own },
            None => {
                let unit = UnitId(self.units.take().ok_or_else(|| format!("there are {LUNS_MAX} volumes already"))?);
                let shared = &self.house.common().shared;
                let restored = shared.restore(unit, &**volume.keep()).map_err(|why| why.to_string());
                let medium = restored
                    .and_then(|()| Medium::restored(volume.medium(), &**volume.keep()).map_err(|why| why.to_string()));
                let medium = medium.inspect_err(|_| self.give_back(unit))?;
                let tally = Tally::new(self.house.cores().count());
                Placed { unit, volume, medium, tally, model: model.clone() }
            }
        };
        let Placed { unit, volume, medium, tally, .. } = placed.clone();
        let ticket = self.ticket();
        if let Err(why) = self.house.open(&Opening { ticket, unit, volume, medium, tally }) {
            if !is_same {
                self.give_back(unit);
            }
            return Err(format!("{why:#}"));
        }
        Ok(Ready::Volume { ticket, placed: Box::new(PlacedVolume(placed)) })
    }

    /// Forgets a unit that never was served.
    fn give_back(&mut self, unit: UnitId) {
        self.house.common().shared.forget(unit);
        self.units.give_back(unit.0);
    }

    /// Listens at the address of the portal of this name.
    fn listen(&mut self, name: &str, wanted: &Checked) -> Result<Ready, String> {
        let portal = wanted.config.portals.get(name).ok_or("it is not in the configuration")?;
        let address = portal.address();
        let hears = |listener: &&Listener| listener.address == address && !self.settled.deaf.contains_key(&listener.id);
        let held = self.listeners.values().chain(&self.coming.closing).find(hears);
        if let Some(listener) = held {
            let listener = BoundListener(*listener);
            return Ok(Ready::Portal { listener, displaced: Vec::new(), is_taken_over: true });
        }
        // All addresses of a port and one of them are in each other's way: ours that go, go first.
        let is_kept = |listener: &Listener| {
            wanted.config.portals.iter().any(|(name, portal)| {
                self.listeners.get(name) == Some(listener) && portal.address() == listener.address
            })
        };
        let overlaps = |other: SocketAddr| {
            let any = other.ip().is_unspecified() || address.ip().is_unspecified();
            any && other.port() == address.port() && other.is_ipv4() == address.is_ipv4()
        };
        let in_the_way = |other: &&Listener| overlaps(other.address) && !is_kept(other);
        let displaced: Vec<Listener> = self.listeners.values().filter(in_the_way).copied().collect();
        displaced.iter().for_each(|displaced| self.house.close(displaced.id));
        self.portals += 1;
        let id = self.portals;
        let listen = || self.house.listen(id, address);
        match until_free(PORT_PATIENCE, listen, |why| why.kind() == ErrorKind::AddrInUse) {
            Ok(address) => Ok(Ready::Portal {
                listener: BoundListener(Listener { id, address }),
                displaced: displaced.into_iter().map(BoundListener).collect(),
                is_taken_over: false,
            }),
            Err(why) => {
                displaced.iter().for_each(|displaced| self.listen_again(*displaced, PORT_PATIENCE));
                Err(why_not(address, &why, &format!("portal.{name}.address")))
            }
        }
    }

    /// Listens again where one of ours did until a moment ago.
    fn listen_again(&mut self, listener: Listener, patience: Duration) {
        let listen = || self.house.listen(listener.id, listener.address);
        match until_free(patience, listen, |why| why.kind() == ErrorKind::AddrInUse) {
            Ok(_) => self.settled.accept_again(&self.house, listener),
            Err(why) => {
                let trouble = format!("{} is not listened at any more: {why}", listener.address);
                log!("{trouble}");
                self.settled.deaf.insert(listener.id, trouble);
            }
        }
    }

    /// Tries once more where it could not be listened at again, if anybody still wants that.
    fn hear_again(&mut self) {
        let deaf = std::mem::take(&mut self.settled.deaf);
        let wanted: Vec<Listener> = self.listeners.values().filter(|one| deaf.contains_key(&one.id)).copied().collect();
        wanted.into_iter().for_each(|listener| self.listen_again(listener, Duration::ZERO));
    }

    fn prepare_parts(&mut self, wanted: &Checked) -> Result<Ready, String> {
        if std::mem::replace(&mut self.coming.parts, true) {
            return Ok(Ready::Nothing);
        }
        for at in 0..self.parts.len() {
            if let Err(why) = self.parts[at].prepare(wanted) {
                self.parts[..at].iter_mut().rev().for_each(|part| part.roll_back());
                self.coming.parts = false;
                return Err(why);
            }
        }
        Ok(Ready::Parts)
    }

    fn prepare_step(&mut self, change: &Change, wanted: &Checked) -> Result<Ready, String> {
        if self.coming.accesses.is_none() {
            // Numbers of units are free when those that had them are gone.
            self.settling.wait();
            let place = |(name, placed): (&String, &Placed)| {
                Some((placed.model.path.as_ref()?.path().to_owned(), name.clone()))
            };
            self.coming.places = self.volumes.iter().filter_map(place).collect();
            let accesses = shape::accesses(wanted)?;
            // What it would not protect is found out now.
            hosts::directory(wanted, &accesses, &self.listeners, &self.histories)?;
            self.coming.accesses = Some(accesses);
            self.ports.provide(&wanted.config)?;
        }
        let name = &change.object.name;
        match (change.object.kind, &change.action) {
            (Kind::Volume, Action::Create) => self.open(name, false, wanted),
            (Kind::Volume, Action::Change(fields)) if fields.iter().all(|field| OF_HOSTS.contains(field)) => {
                Ok(Ready::Nothing)
            }
            (Kind::Volume, Action::Change(fields)) => {
                let is_same = fields.iter().all(|field| SAME_UNIT.contains(field) || OF_HOSTS.contains(field));
                self.open(name, is_same, wanted)
            }
            (Kind::Portal, Action::Create) => self.listen(name, wanted),
            (Kind::Portal, Action::Change(fields)) if ADDRESS.iter().any(|field| fields.contains(field)) => {
                self.listen(name, wanted)
            }
            (Kind::Vm, Action::Create | Action::Change(_)) => self.provide_socket(name, wanted),
            (Kind::Pool, Action::Create | Action::Change(_)) => folder_of(name, wanted).map(|()| Ready::Nothing),
            (Kind::Api | Kind::ApiListener | Kind::ApiToken | Kind::Logging | Kind::Server, _) => {
                self.prepare_parts(wanted)
            }
            _ => Ok(Ready::Nothing),
        }
    }
}

/// How long the daemon before may take to end: what was under way at its disks has to come back, as with volumes.
const HOLD_PATIENCE: Duration = Duration::from_secs(15);

/// Keeps a state folder from other daemons: one that shares it would wait for what the first one serves, and both would
/// write down who volumes are.
pub(crate) fn hold(state: &Path, patience: Duration) -> Result<File> {
    let folder = File::open(state)?;
    let lock = || folder.try_lock().map_err(io::Error::from);
    until_free(patience, lock, |why| why.kind() == ErrorKind::WouldBlock).map_err(|why| match why.kind() {
        ErrorKind::WouldBlock => anyhow!(
            "{} is the state folder of another lunar daemon that runs: stop that one, or give this one a folder of its \
             own (--state)",
            state.display()
        ),
        _ => anyhow!("{}: {why}", state.display()),
    })?;
    Ok(folder)
}

/// Whether volumes can be made in the folder of the pool of this name.
fn folder_of(name: &str, wanted: &Checked) -> Result<(), String> {
    let Some(pool) = wanted.config.pools.get(name) else { return Ok(()) };
    let folder = pool.folder.path();
    crate::jail::reaches(&folder.join("any"))?;
    match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(format!("{} is no folder", folder.display())),
        Err(why) => Err(format!("{}: {why}; make the folder first", folder.display())),
    }
}

impl Running for Live {
    type Prepared = Ready;

    fn expect(&mut self, volumes: BTreeSet<String>) {
        self.expected = volumes;
    }

    fn prepare(&mut self, change: &Change, wanted: &Checked) -> Result<Ready, String> {
        let is_first = self.coming.accesses.is_none();
        let ready = self.prepare_step(change, wanted);
        if ready.is_err() {
            // What failed may have locked a file already, and is not rolled back.
            let path = wanted.config.volumes.get(&change.object.name).and_then(|volume| volume.path.as_ref());
            let touched = |(name, own): &(&String, &Placed)| {
                **name == change.object.name || path.is_some() && own.model.path.as_ref() == path
            };
            self.volumes.iter().filter(touched).for_each(|(_, own)| own.volume.settle());
        }
        if ready.is_err() && is_first {
            // Nothing is prepared that would be rolled back.
            self.coming = Coming::default();
        }
        ready
    }

    fn commit(&mut self, change: &Change, prepared: Ready) {
        let name = &change.object.name;
        match (prepared, &change.action) {
            (Ready::Volume { ticket, placed }, _) => {
                let PlacedVolume(placed) = *placed;
                placed.volume.settle();
                let unit = placed.unit;
                self.coming.tickets.push(ticket);
                let old = self.volumes.insert(name.clone(), placed);
                match old {
                    Some(old) if old.unit == unit => self.coming.reshaped.push(unit),
                    old => {
                        self.coming.new.push(unit);
                        if let Some(old) = old {
                            self.coming.leaving.push(old.unit);
                            self.coming.replaced.insert(name.clone());
                        }
                    }
                }
            }
            (Ready::Portal { listener: BoundListener(listener), displaced, .. }, _) => {
                let gone = |other: &Listener| displaced.iter().any(|BoundListener(gone)| gone == other);
                let old = self.listeners.insert(name.clone(), listener);
                self.coming.closing.extend(old.filter(|old| !gone(old)));
                self.coming.closing.retain(|other| *other != listener);
            }
            (_, Action::Remove) if change.object.kind == Kind::Volume => {
                if let Some(old) = self.volumes.remove(name) {
                    self.coming.leaving.push(old.unit);
                    self.coming.left.push((old.volume.identity().uuid, old.unit));
                }
            }
            (_, Action::Remove) if change.object.kind == Kind::Portal => {
                self.coming.closing.extend(self.listeners.remove(name));
            }
            _ => {}
        }
    }

    fn settle(&mut self, _plan: &Plan, wanted: &Checked) {
        let coming = std::mem::take(&mut self.coming);
        if coming.parts {
            self.parts.iter_mut().for_each(|part| part.commit(wanted));
        }
        self.settle_shape(&coming, wanted);
        coming.leaving.iter().for_each(|unit| self.units.give_back(unit.0));
        let listeners = &self.listeners;
        self.isns.want(Wanted::of(wanted, |name| listeners.get(name).map(|listener| listener.address)));
    }

    fn roll_back(&mut self, change: &Change, prepared: Ready) {
        match prepared {
            Ready::Nothing => {}
            Ready::Volume { ticket, placed } => {
                let PlacedVolume(placed) = *placed;
                self.house.withdraw(ticket);
                // It was opened in another way already, perhaps that which another has open.
                self.volumes.values().for_each(|own| own.volume.settle());
                if self.volumes.get(&change.object.name).is_none_or(|own| own.unit != placed.unit) {
                    self.give_back(placed.unit);
                }
            }
            Ready::Portal { listener: BoundListener(listener), displaced, is_taken_over } => {
                if !is_taken_over {
                    self.house.close(listener.id);
                }
                let again = |BoundListener(displaced)| self.listen_again(displaced, PORT_PATIENCE);
                displaced.into_iter().for_each(again);
            }
            Ready::Socket { path, before } => self.withdraw_socket(path, before),
            Ready::Parts => self.parts.iter_mut().rev().for_each(|part| part.roll_back()),
        }
        self.coming = Coming::default();
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;

//! Controllers: one for each association of a host. Its queues may be served by several cores; what they share is
//! here, under a mutex that no I/O command takes.

pub mod saved;

use crate::command::{Refusal, Sqe, Status};
use crate::directory::{Directory, Entry, Portal};
use crate::errors::{ErrorEntry, Errors};
use crate::event::{Event, Events};
use crate::features::Values;
use crate::host::Host;
use crate::limits::{DISCOVERY_IDLE, DISCOVERY_MAX, KEEP_ALIVE_GRANULARITY, NAMESPACES_MAX, UNAUTHENTICATED_MAX};
use crate::path::{Kind, Path};
use lunar_core::time::Instant;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

pub use crate::limits::{ADMIN_ENTRIES_MAX, CONTROLLERS_MAX, NOTICES_MAX, QUEUE_ENTRIES_MAX, QUEUES_MAX, VECTORS};
pub use saved::Saved;

/// The version that is claimed: 1.4 (NVMe Base 2.0 3.1.3.2). Much of later ones is there, but not all that they want of
/// every controller: CAP.CRMS with CRTO, the log page Feature Identifiers Supported and Effects, the scopes of commands
/// in the one of effects.
pub const VERSION: u32 = 0x0001_0400;

/// By what right a host has a controller, and what it sees.
#[derive(Clone, Debug)]
pub struct Standing {
    /// The subsystem.
    pub subsystem: Arc<Entry>,
    /// The group that the host belongs to; none: whoever reaches its socket is let in.
    pub group: Option<Arc<str>>,
    /// The name of the map that says which namespaces it sees; none: all.
    pub map: Option<Arc<str>>,
    /// Where the host is; none: on this machine.
    pub source: Option<SocketAddr>,
}

/// A reservation notification (NVMe Base 2.0 5.16.1.24).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notice {
    /// Which one since the controller is there.
    pub count: u64,
    /// What happened.
    pub kind: u8,
    /// To which namespace.
    pub namespace: u32,
}

/// Controller properties (NVMe Base 2.0 3.1.3).
pub mod property {
    /// Controller Capabilities.
    pub const CAP: u32 = 0x00;
    /// Version.
    pub const VS: u32 = 0x08;
    /// Controller Configuration.
    pub const CC: u32 = 0x14;
    /// Controller Status.
    pub const CSTS: u32 = 0x1c;
    /// NVM Subsystem Reset: not supported (CAP.NSSRS), reads as zero.
    pub const NSSR: u32 = 0x20;
}

/// CC.EN.
const ENABLE: u32 = 0x01;
/// CC: what must be as it is there, and is: the NVM command set, pages of 4 KiB, round robin.
const SELECTED: u32 = 0x70 | 0x780 | 0x3800;
/// CC.SHN.
const SHUTDOWN: u32 = 0xc000;
/// CC.IOSQES and IOCQES: 64 and 16 bytes, as powers of two.
const ENTRY_SIZES: u32 = 0x46_0000;
const ENTRY_SIZE_FIELDS: u32 = 0xff_0000;
/// CSTS.RDY.
const READY: u32 = 0x01;
/// CSTS.CFS.
const FATAL: u32 = 0x02;
/// CSTS.SHST: under way, and complete.
const SHUTTING_DOWN: u32 = 0x04;
const SHUT_DOWN: u32 = 0x08;

#[derive(Debug)]
struct State {
    configuration: u32,
    status: u32,
    keep_alive: Duration,
    values: Values,
    granted: u16,
    queues: BTreeSet<u16>,
    events: Events,
    notices: VecDeque<Notice>,
    noticed: u64,
    /// Namespaces that came, went, or are others since that was read.
    changed: BTreeSet<u32>,
    /// The volumes of namespaces that hosts have made and that it is attached to, by their UUIDs.
    attached: BTreeSet<[u8; 16]>,
    /// The persistent event log as it was when its host began to read it.
    told: Option<Arc<[u8]>>,
    watchers: Vec<Waker>,
}

impl State {
    fn has_io_queues(&self) -> bool {
        self.queues.iter().any(|queue| *queue > 0)
    }

    /// Tells the host that a reset or a shutdown is over, once no command of an I/O queue can reach a store any more:
    /// what the host sends again after that must be the last.
    fn settle(&mut self) {
        if self.has_io_queues() {
            return;
        }
        if self.configuration & ENABLE == 0 {
            self.status &= !READY;
        }
        if self.status & SHUTTING_DOWN != 0 {
            self.status = self.status & !SHUTTING_DOWN | SHUT_DOWN;
        }
    }
}

/// A controller.
#[derive(Debug)]
pub struct Controller {
    /// Its identifier.
    pub id: u16,
    /// What it is for.
    pub kind: Kind,
    /// Whose it is.
    pub host: Host,
    /// How the host came to it.
    pub path: Path,
    /// By what right, and what it sees.
    pub standing: Standing,
    /// Since when it is there.
    pub since: Instant,
    /// Whether its host has proved its name, or had not to.
    proven: AtomicBool,
    enabled: AtomicBool,
    over: AtomicBool,
    writes_through: AtomicBool,
    /// The formats of copies that the host has enabled, as the feature has them.
    copies: AtomicU16,
    heard: AtomicU64,
    /// How commands failed: I/O commands, too, and so it has a lock of its own.
    errors: Mutex<Errors>,
    state: Mutex<State>,
}

impl Controller {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_errors(&self) -> MutexGuard<'_, Errors> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A command of this queue ends so. Returns the status of its completion.
    pub(crate) fn note_error(&self, queue: u16, sqe: &Sqe, refusal: &Refusal) -> Status {
        self.lock_errors().note((queue, self.path.transport), sqe, refusal)
    }

    /// How many commands have failed since it is there, and the last of them, the newest first.
    pub(crate) fn errors(&self) -> (u64, Vec<ErrorEntry>) {
        self.lock_errors().all()
    }

    /// CAP: queues of [`QUEUE_ENTRIES_MAX`], contiguous; ready within 7.5 s; the NVM command set.
    #[must_use]
    pub fn capabilities() -> u64 {
        const CONTIGUOUS: u64 = 1 << 16;
        const TIMEOUT: u64 = 15 << 24;
        const NVM: u64 = 1 << 37;
        u64::from(QUEUE_ENTRIES_MAX - 1) | CONTIGUOUS | TIMEOUT | NVM
    }

    /// A property, of four bytes or of eight. `None` for one that is not there, or has the other size.
    #[must_use]
    pub fn property(&self, offset: u32, eight: bool) -> Option<u64> {
        let state = self.lock();
        match (offset, eight) {
            (property::CAP, true) => Some(Self::capabilities()),
            (property::VS, false) => Some(VERSION.into()),
            (property::CC, false) => Some(state.configuration.into()),
            (property::CSTS, false) => Some(state.status.into()),
            (property::NSSR, false) => Some(0),
            _ => None,
        }
    }

    /// Sets CC, the one property that a host may set.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] for another, or for what cannot be configured.
    pub fn set_property(&self, offset: u32, eight: bool, value: u64) -> Result<(), Status> {
        let value = u32::try_from(value).map_err(|_| Status::INVALID_FIELD)?;
        if offset != property::CC || eight {
            return Err(Status::INVALID_FIELD);
        }
        let mut state = self.lock();
        let is_enabled = value & ENABLE != 0;
        let sizes = value & ENTRY_SIZE_FIELDS;
        // A discovery controller has no I/O queues whose entries would have a size.
        let fits = sizes == ENTRY_SIZES || sizes == 0 && self.kind == Kind::Discovery;
        if is_enabled && (value & SELECTED != 0 || !fits) {
            state.status |= FATAL;
            return Err(Status::INVALID_FIELD);
        }
        let was_enabled = state.configuration & ENABLE != 0;
        state.configuration = value;
        match (was_enabled, is_enabled) {
            (false, true) => state.status = READY,
            // A reset: what the host has set is forgotten.
            (true, false) => {
                state.status &= READY;
                state.values = Values::default();
                self.set_write_cache(true);
                self.copies.store(0, Ordering::Relaxed);
                // Whoever waits for the next one has to look at the new ones.
                state.events.wake();
                state.events = Events::default();
                state.granted = QUEUES_MAX;
                state.told = None;
                self.lock_errors().clear();
            }
            _ => {}
        }
        if value & SHUTDOWN != 0 {
            state.status = state.status & !SHUT_DOWN | SHUTTING_DOWN;
        }
        state.settle();
        let serves = is_enabled && value & SHUTDOWN == 0;
        self.enabled.store(serves, Ordering::Release);
        wake_all(&mut state.watchers);
        Ok(())
    }

    /// Whether it carries out commands.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// Whether its host has proved its name, or had not to. Changes under the lock of all controllers.
    fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }

    /// Whether it is gone: all of its queues end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// It is gone.
    pub fn end(&self) {
        self.enabled.store(false, Ordering::Release);
        self.over.store(true, Ordering::Release);
        wake_all(&mut self.lock().watchers);
    }

    /// Waits until it is gone, or, for an I/O queue, until it was disabled.
    pub async fn until_over(&self, queue: u16) {
        poll_fn(|cx| {
            let mut state = self.lock();
            if self.is_over() || queue > 0 && !self.is_enabled() {
                return Poll::Ready(());
            }
            if !state.watchers.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.watchers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// The host was heard.
    pub fn hear(&self, now: Instant) {
        self.heard.store(now.0, Ordering::Relaxed);
    }

    /// When the host is given up that is not heard again; `None`: never.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let patience = match (self.keep_alive(), self.kind) {
            (Duration::ZERO, Kind::Discovery) => DISCOVERY_IDLE,
            (said, _) => said,
        };
        (!patience.is_zero()).then(|| Instant(self.heard.load(Ordering::Relaxed)) + patience)
    }

    /// How long a host may be silent; zero: for ever.
    #[must_use]
    pub fn keep_alive(&self) -> Duration {
        self.lock().keep_alive
    }

    /// Sets how long a host may be silent, rounded up to whole [`KEEP_ALIVE_GRANULARITY`].
    pub fn set_keep_alive(&self, milliseconds: u32) {
        let step = u64::from(KEEP_ALIVE_GRANULARITY) * 100;
        self.lock().keep_alive = Duration::from_millis(u64::from(milliseconds).next_multiple_of(step));
    }

    /// Whether a write may be answered before it is on the medium.
    #[must_use]
    pub fn caches_writes(&self) -> bool {
        !self.writes_through.load(Ordering::Relaxed)
    }

    pub(crate) fn set_write_cache(&self, caches: bool) {
        self.writes_through.store(!caches, Ordering::Relaxed);
    }

    /// Whether the host has enabled this format of copies (Host Behavior Support; NVMe Base 2.1 5.1.25.1.14).
    #[must_use]
    pub fn takes_copies_of(&self, format: usize) -> bool {
        self.copies.load(Ordering::Relaxed) >> format & 1 != 0
    }

    /// What the host says that it knows.
    pub(crate) fn set_behavior(&self, behavior: Option<Box<[u8; 512]>>) {
        /// CDFE.
        const FORMATS: usize = 4;
        let formats = behavior.as_ref().map_or(0, |bytes| u16::from_le_bytes([bytes[FORMATS], bytes[FORMATS + 1]]));
        self.copies.store(formats, Ordering::Relaxed);
        self.lock().values.behavior = behavior;
    }

    /// Looks at or changes the values of its features.
    pub fn values<T>(&self, what: impl FnOnce(&mut Values) -> T) -> T {
        what(&mut self.lock().values)
    }

    /// Grants I/O queues, at most [`QUEUES_MAX`]; not once there are some.
    ///
    /// # Errors
    /// [`Status::SEQUENCE_ERROR`]
    pub fn grant(&self, wanted: u16) -> Result<u16, Status> {
        let mut state = self.lock();
        if state.queues.iter().any(|queue| *queue > 0) {
            return Err(Status::SEQUENCE_ERROR);
        }
        state.granted = wanted.clamp(1, QUEUES_MAX);
        Ok(state.granted)
    }

    /// I/O queues that are granted.
    #[must_use]
    pub fn granted(&self) -> u16 {
        self.lock().granted
    }

    /// Whether it has queues besides the admin queue.
    #[must_use]
    pub fn has_io_queues(&self) -> bool {
        self.lock().has_io_queues()
    }

    pub(crate) fn open_queue(&self, queue: u16) -> Result<(), Status> {
        let mut state = self.lock();
        if queue > state.granted {
            return Err(Status::INVALID_QUEUE);
        }
        if state.queues.insert(queue) { Ok(()) } else { Err(Status::SEQUENCE_ERROR) }
    }

    pub(crate) fn close_queue(&self, queue: u16) {
        let mut state = self.lock();
        state.queues.remove(&queue);
        state.settle();
        drop(state);
        if queue == 0 {
            self.end();
        }
    }

    /// Has an asynchronous event request wait.
    ///
    /// # Errors
    /// [`Status::EVENT_LIMIT`]
    pub(crate) fn park(&self, cid: u16) -> Result<(), Status> {
        if self.lock().events.park(cid) { Ok(()) } else { Err(Status::EVENT_LIMIT) }
    }

    /// Aborts an asynchronous event request; tells whether it waited.
    pub(crate) fn abort_event(&self, cid: u16) -> bool {
        self.lock().events.abort(cid)
    }

    /// Forgets an asynchronous event request whose host uses its identifier for something else.
    pub fn withdraw_event(&self, cid: u16) {
        self.lock().events.withdraw(cid);
    }

    /// Tells the host, if it wants to know.
    pub fn raise(&self, event: Event) {
        let mut state = self.lock();
        let wanted = event.configured().is_none_or(|bit| state.values.events() & bit != 0);
        if wanted {
            state.events.raise(event);
        }
    }

    /// Namespaces came, went, or are others: their identifiers are kept until the host reads them, and it is told if it
    /// wants to know.
    pub fn change_namespaces(&self, ids: impl IntoIterator<Item = u32>) {
        self.lock().changed.extend(ids.into_iter().filter(|id| (1..=NAMESPACES_MAX).contains(id)));
        self.raise(Event::NAMESPACES);
    }

    /// Namespaces that came, went, or are others since this was read last, in ascending order; they stay so if who
    /// reads `retains` it.
    pub(crate) fn changed(&self, retains: bool) -> BTreeSet<u32> {
        let mut state = self.lock();
        if retains { state.changed.clone() } else { std::mem::take(&mut state.changed) }
    }

    /// The persistent event log as its host reads it, if it does.
    pub(crate) fn told(&self) -> Option<Arc<[u8]>> {
        self.lock().told.clone()
    }

    /// Has the host read this persistent event log, or none.
    pub(crate) fn tell(&self, log: Option<Arc<[u8]>>) {
        self.lock().told = log;
    }

    /// Writes a log page that is read; its event stays as it is if this `retains` it. Else the next one is told from
    /// here on: what happens while the page is written may not be in it.
    pub(crate) fn read_page(&self, page: u8, retains: bool, write: impl FnOnce()) {
        if !retains {
            self.lock().events.was_read(page);
        }
        write();
    }

    /// The next asynchronous event request that is answered, how it ends, and dword 0 of its completion.
    pub async fn event(&self) -> (u16, Status, u32) {
        poll_fn(|cx| {
            let mut state = self.lock();
            match state.events.next() {
                Some((cid, Some(event))) => Poll::Ready((cid, Status::SUCCESS, event.result())),
                Some((cid, None)) => Poll::Ready((cid, Status::ABORTED, 0)),
                None => {
                    state.events.wake_later(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Attaches it to what its host was attached to last, as all that are new of one host: it may have to take
    /// the place of one that nobody reaches any more, so private namespaces are among them, unless another host has
    /// them now.
    fn begin_attached(&self, all: &BTreeMap<u16, Arc<Self>>) {
        let pools = &self.standing.subsystem.pools;
        let Some(pool) = self.standing.map.as_ref().and_then(|map| pools.get(map)) else { return };
        let is_ours = |other: &Self| other.host.nqn.eq_ignore_ascii_case(&self.host.nqn);
        let is_taken = |volume: &[u8; 16]| all.values().any(|other| !is_ours(other) && other.is_attached(volume));
        let mut attached = pool.of_host(&self.host.nqn);
        attached.retain(|volume| !(pool.private.contains(volume) && is_taken(volume)));
        self.lock().attached = attached;
    }

    /// Whether it is attached to the namespace on this volume, which a host has made.
    #[must_use]
    pub fn is_attached(&self, volume: &[u8; 16]) -> bool {
        self.lock().attached.contains(volume)
    }

    /// Attaches it to the namespace on this volume, or not any more; its host is told if that is news.
    pub fn set_attached(&self, volume: [u8; 16], namespace: u32, is_attached: bool) {
        let mut state = self.lock();
        let is_news = if is_attached { state.attached.insert(volume) } else { state.attached.remove(&volume) };
        drop(state);
        if is_news {
            self.change_namespaces([namespace]);
        }
    }

    /// Whether a new directory lets the controller stay: its subsystem is reached through its portal, and its host
    /// still belongs to its group. A virtual machine has a socket of its own, so for its controller only the subsystem
    /// must exist.
    #[must_use]
    pub fn may_stay(&self, directory: &Directory) -> bool {
        let (standing, way) = (&self.standing, self.path.way);
        let leads = |portal: &Portal| portal.id == way.portal && portal.group == way.group;
        let is_reached = directory.portals.as_ref().is_none_or(|portals| portals.iter().any(leads));
        let entry = match self.kind {
            Kind::Discovery => directory.discovery(),
            Kind::Io => match directory.subsystem(&standing.subsystem.nqn) {
                Some(entry) => entry,
                None => return false,
            },
        };
        let Some(source) = standing.source else { return true };
        let host = self.host.nqn.to_ascii_lowercase();
        let group = entry.access.group(&host, source.ip()).map(|group| &group.name);
        is_reached && entry.is_reached(way.group) && group.is_some() && group == standing.group.as_ref()
    }

    /// Keeps a reservation notification to be read.
    pub(crate) fn notice(&self, kind: u8, namespace: u32) {
        let mut state = self.lock();
        state.noticed += 1;
        let notice = Notice { count: state.noticed, kind, namespace };
        state.notices.push_back(notice);
        if state.notices.len() > NOTICES_MAX {
            state.notices.pop_front();
        }
        state.events.raise(Event::RESERVATION);
    }

    /// The oldest reservation notification, and how many wait behind it.
    pub(crate) fn take_notice(&self) -> Option<(Notice, usize)> {
        let mut state = self.lock();
        let notice = state.notices.pop_front()?;
        Some((notice, state.notices.len()))
    }
}

fn wake_all(watchers: &mut Vec<Waker>) {
    std::mem::take(watchers).into_iter().for_each(Waker::wake);
}

/// The controllers of all subsystems, on all cores.
#[derive(Debug, Default)]
pub struct Controllers(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    all: BTreeMap<u16, Arc<Controller>>,
    last: u16,
}

/// Identifiers from here on are reserved.
const IDS_END: u16 = 0xfff0;

impl Table {
    /// Whether there is a place for one more whose host need not prove anything more.
    fn has_room(&self, kind: Kind, subsystem: &Entry) -> bool {
        let most = match kind {
            Kind::Io => CONTROLLERS_MAX,
            Kind::Discovery => DISCOVERY_MAX,
        };
        let proven = || self.all.values().filter(|one| one.is_proven());
        let own = proven().filter(|one| one.standing.subsystem.nqn == subsystem.nqn).count();
        own < subsystem.controllers_max && proven().filter(|one| one.kind == kind).count() < most
    }
}

impl Controllers {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a controller; its host has still to prove its name if it `proves`. `None` when there are
    /// [`CONTROLLERS_MAX`], [`DISCOVERY_MAX`] or [`UNAUTHENTICATED_MAX`], or as many as its subsystem may have.
    pub(crate) fn make(
        &self,
        kind: Kind,
        host: Host,
        path: Path,
        (standing, proves): (Standing, bool),
        now: Instant,
    ) -> Option<Arc<Controller>> {
        let mut table = self.lock();
        let unproven = || table.all.values().filter(|one| !one.is_proven()).count();
        if !table.has_room(kind, &standing.subsystem) || proves && unproven() >= UNAUTHENTICATED_MAX {
            return None;
        }
        let id = loop {
            table.last = table.last % (IDS_END - 1) + 1;
            if !table.all.contains_key(&table.last) {
                break table.last;
            }
        };
        let controller = Arc::new(Controller {
            id,
            kind,
            host,
            path,
            standing,
            since: now,
            proven: AtomicBool::new(!proves),
            enabled: AtomicBool::new(false),
            over: AtomicBool::new(false),
            writes_through: AtomicBool::new(false),
            copies: AtomicU16::new(0),
            heard: AtomicU64::new(now.0),
            errors: Mutex::default(),
            state: Mutex::new(State {
                configuration: 0,
                status: 0,
                keep_alive: Duration::ZERO,
                values: Values::default(),
                granted: QUEUES_MAX,
                queues: BTreeSet::new(),
                events: Events::default(),
                notices: VecDeque::new(),
                noticed: 0,
                changed: BTreeSet::new(),
                attached: BTreeSet::new(),
                told: None,
                watchers: Vec::new(),
            }),
        });
        if !proves {
            controller.begin_attached(&table.all);
        }
        table.all.insert(id, controller.clone());
        Some(controller)
    }

    /// A host has proved its name: `false` if others have taken all places meanwhile.
    pub(crate) fn prove(&self, controller: &Controller) -> bool {
        let table = self.lock();
        let was_proven = controller.is_proven();
        let stays = was_proven || table.has_room(controller.kind, &controller.standing.subsystem);
        if stays && !was_proven {
            controller.begin_attached(&table.all);
        }
        controller.proven.fetch_or(stays, Ordering::Relaxed);
        stays
    }

    pub(crate) fn forget(&self, id: u16) {
        self.lock().all.remove(&id);
    }

    /// The controller of this identifier.
    #[must_use]
    pub fn get(&self, id: u16) -> Option<Arc<Controller>> {
        self.lock().all.get(&id).cloned()
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Controller>> {
        self.lock().all.values().cloned().collect()
    }

    /// Ends the controllers of hosts that may no longer be there, and those that `ends` names; those who stay and only
    /// ask what there is are told that it is another now.
    pub fn review(&self, directory: &Directory, ends: impl Fn(&Controller) -> bool) {
        for controller in self.all() {
            match controller.may_stay(directory) && !ends(&controller) {
                true if controller.kind == Kind::Discovery => controller.raise(Event::DISCOVERY),
                true => {}
                false => controller.end(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(controllers_max: usize) -> Standing {
        let entry = Entry { controllers_max, ..Entry::clone(Directory::nothing().discovery()) };
        Standing { subsystem: Arc::new(entry), group: None, map: None, source: None }
    }

    fn controller(kind: Kind) -> (Controllers, Arc<Controller>) {
        let controllers = Controllers::default();
        let host = Host { nqn: "nqn.2014-08.org.nvmexpress:uuid:x".into(), id: [7; 16] };
        let made = controllers.make(kind, host, Path::default(), (standing(1), false), Instant(0)).expect("room");
        (controllers, made)
    }

    #[test]
    fn properties_are_read_in_their_size() {
        let (_, made) = controller(Kind::Io);
        assert_eq!(made.property(property::CAP, true), Some(0x0020_0f01_03ff));
        assert_eq!((made.property(property::CAP, false), made.property(property::VS, true)), (None, None));
        assert_eq!(made.property(property::VS, false), Some(0x1_0400));
        assert_eq!(made.property(0x28, true), None);
    }

    #[test]
    fn enabling_disabling_and_shutting_down() {
        let (_, made) = controller(Kind::Io);
        let set = |value: u64| made.set_property(property::CC, false, value);
        let status = || made.property(property::CSTS, false);
        assert_eq!(set(1), Err(Status::INVALID_FIELD), "entries have sizes");
        assert_eq!(status(), Some(2));
        assert_eq!(set(0x46_0071), Err(Status::INVALID_FIELD), "no other command sets");
        assert_eq!(set(0x46_0001), Ok(()));
        assert_eq!((status(), made.is_enabled()), (Some(1), true));
        assert_eq!(set(0x46_4001), Ok(()));
        assert_eq!((status(), made.is_enabled()), (Some(9), false));
        assert_eq!(set(0x46_0000), Ok(()));
        assert_eq!((status(), made.is_enabled()), (Some(0), false));
        assert_eq!(made.set_property(property::CSTS, false, 0), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn silence_has_its_limit() {
        let (_, made) = controller(Kind::Io);
        assert_eq!(made.deadline(), None);
        made.set_keep_alive(1500);
        made.hear(Instant(5));
        assert_eq!(made.deadline(), Some(Instant(2_000_000_005)));
        // Whoever only asks what there is does not keep its place for ever by saying nothing.
        let (_, made) = controller(Kind::Discovery);
        assert_eq!(made.deadline(), Some(Instant(0) + DISCOVERY_IDLE));
        made.set_keep_alive(1000);
        assert_eq!(made.deadline(), Some(Instant(1_000_000_000)));
    }

    #[test]
    fn who_only_asks_and_who_has_proved_nothing_takes_no_place_of_others() {
        let controllers = Controllers::default();
        let make = |kind, most, proves| {
            let host = Host { nqn: "nqn.x".into(), id: [7; 16] };
            controllers.make(kind, host, Path::default(), (standing(most), proves), Instant(0))
        };
        assert!((0..DISCOVERY_MAX).all(|_| make(Kind::Discovery, usize::MAX, false).is_some()));
        assert!(make(Kind::Discovery, usize::MAX, false).is_none());
        let most = DISCOVERY_MAX + 2;
        let unproven: Vec<_> = (0..UNAUTHENTICATED_MAX).map_while(|_| make(Kind::Io, most, true)).collect();
        assert!(unproven.len() == UNAUTHENTICATED_MAX && make(Kind::Io, most, true).is_none());
        assert!(make(Kind::Io, most, false).is_some());
        assert!(controllers.prove(&unproven[0]) && controllers.prove(&unproven[0]), "the last place");
        assert!(make(Kind::Io, most, false).is_none() && make(Kind::Io, most, true).is_none());
        assert!(!controllers.prove(&unproven[1]), "others came first");
    }

    #[test]
    fn what_happens_while_its_page_is_written_is_told() {
        let (_, made) = controller(Kind::Io);
        let told = |made: &Controller| crate::fuzzing::at_once(made.event());
        (0..2).for_each(|cid| made.park(cid).expect("room"));
        made.notice(1, 1);
        assert_eq!(told(&made), (0, Status::SUCCESS, Event::RESERVATION.result()));
        made.read_page(Event::RESERVATION.page, false, || {
            assert!(made.take_notice().is_some());
            made.notice(2, 1);
        });
        assert_eq!(told(&made), (1, Status::SUCCESS, Event::RESERVATION.result()));
    }

    #[test]
    fn queues_are_counted() {
        let (_, made) = controller(Kind::Io);
        assert_eq!((made.grant(3), made.open_queue(0), made.open_queue(3)), (Ok(3), Ok(()), Ok(())));
        assert_eq!(made.open_queue(3), Err(Status::SEQUENCE_ERROR));
        assert_eq!(made.open_queue(4), Err(Status::INVALID_QUEUE));
        assert_eq!(made.grant(4), Err(Status::SEQUENCE_ERROR));
        made.close_queue(3);
        assert_eq!(made.grant(9999), Ok(QUEUES_MAX));
        assert!(!made.is_over());
        made.close_queue(0);
        assert!(made.is_over());
    }

    #[test]
    fn a_reset_is_over_when_the_io_queues_are() {
        let (_, made) = controller(Kind::Io);
        let status = |made: &Controller| made.property(property::CSTS, false).expect("it has one") as u32;
        let set = |made: &Controller, value: u32| made.set_property(property::CC, false, value.into());
        assert_eq!((set(&made, ENTRY_SIZES | ENABLE), status(&made)), (Ok(()), READY));
        assert_eq!((made.grant(2), made.open_queue(1), made.open_queue(2)), (Ok(2), Ok(()), Ok(())));
        assert_eq!((set(&made, ENTRY_SIZES | ENABLE | 0x4000), status(&made)), (Ok(()), READY | SHUTTING_DOWN));
        made.close_queue(1);
        assert_eq!(status(&made), READY | SHUTTING_DOWN);
        assert_eq!((set(&made, ENTRY_SIZES), status(&made)), (Ok(()), READY));
        made.close_queue(2);
        assert_eq!(status(&made), 0);
        assert_eq!((set(&made, ENTRY_SIZES | ENABLE), status(&made)), (Ok(()), READY));
        assert_eq!((set(&made, ENTRY_SIZES | ENABLE | 0x4000), status(&made)), (Ok(()), READY | SHUT_DOWN));
    }

    #[test]
    fn identifiers_are_used_again_only_when_free() {
        let (controllers, first) = controller(Kind::Io);
        let host = first.host.clone();
        let make =
            |most| controllers.make(Kind::Io, host.clone(), Path::default(), (standing(most), false), Instant(0));
        assert!(make(1).is_none(), "one at most");
        let second = make(2).expect("room");
        assert_eq!((first.id, second.id), (1, 2));
        controllers.forget(1);
        assert!(controllers.get(1).is_none() && controllers.get(2).is_some());
    }
}

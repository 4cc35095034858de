//! Controllers: one for each association of a host. Its queues may be served by several cores; what they share is
//! here, under a mutex that no I/O command takes.

pub mod saved;
mod table;

use crate::command::{Refusal, Sqe, Status};
use crate::directory::{Directory, Entry, Portal};
use crate::errors::{ErrorEntry, Errors};
use crate::event::{Event, Events};
use crate::features::Values;
use crate::host::Host;
use crate::limits::{DISCOVERY_IDLE, KEEP_ALIVE_GRANULARITY, NAMESPACES_MAX};
use crate::path::{Kind, Path};
use lunar_core::time::Instant;
use lunar_unit::SharedUnit;
use lunar_unit::capacity::UnreadCapacity;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

pub use crate::limits::{ADMIN_ENTRIES_MAX, CONTROLLERS_MAX, NOTICES_MAX, QUEUE_ENTRIES_MAX, QUEUES_MAX, VECTORS};
pub use saved::Saved;
pub use table::Controllers;

/// The version in VS: 1.4 (NVMe Base 2.0 3.1.3.2). Many parts of later versions are supported, but not all mandatory
/// ones: CAP.CRMS with CRTO, the log page Feature Identifiers Supported and Effects, and the command scopes in the log
/// page Commands Supported and Effects are missing.
pub const VERSION: u32 = 0x0001_0400;

/// The access grant of a host: its subsystem, group and map.
#[derive(Clone, Debug)]
pub struct AccessGrant {
    /// The subsystem.
    pub subsystem: Arc<Entry>,
    /// The group of the host; `None`: any client that can open the socket is admitted.
    pub group: Option<Arc<str>>,
    /// The name of the map of the namespaces that it sees; `None`: all namespaces.
    pub map: Option<Arc<str>>,
    /// The address of the host; `None`: on this machine.
    pub source: Option<SocketAddr>,
}

/// I/O queues of a controller (Number of Queues; NVMe Base 2.0 5.27.1.5): submission and completion queues are granted
/// apart from each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Granted {
    /// I/O submission queues.
    pub submission: u16,
    /// I/O completion queues.
    pub completion: u16,
}

impl Granted {
    /// The largest numbers.
    pub const MOST: Self = Self { submission: QUEUES_MAX, completion: QUEUES_MAX };

    /// The numbers granted of those that a host requests, at most so many of each. No grant has none.
    fn of(wanted: Self, most: u16) -> Self {
        let grant = |wanted: u16| wanted.min(most).clamp(1, QUEUES_MAX);
        Self { submission: grant(wanted.submission), completion: grant(wanted.completion) }
    }

    /// Queues that Connect may create: each is a submission queue with its completion queue.
    fn pairs(self) -> u16 {
        self.submission.min(self.completion)
    }

    fn is_possible(self) -> bool {
        self == Self::of(self, QUEUES_MAX)
    }
}

impl Default for Granted {
    fn default() -> Self {
        Self::MOST
    }
}

/// A reservation notification (NVMe Base 2.0 5.16.1.24).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The number of the notification since the controller was made.
    pub count: u64,
    /// The kind of the event.
    pub kind: u8,
    /// The namespace.
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
/// CC: the required values of the fields: the NVM command set, pages of 4 KiB, round robin.
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
/// CSTS.SHST: in progress, and complete.
const SHUTTING_DOWN: u32 = 0x04;
const SHUT_DOWN: u32 = 0x08;

#[derive(Debug)]
struct State {
    configuration: u32,
    status: u32,
    keep_alive: Duration,
    values: Values,
    granted: Granted,
    /// I/O queues of each type that may be granted.
    queues_max: u16,
    /// Its queues, each with the number of its entries.
    queues: BTreeMap<u16, u16>,
    events: Events,
    notices: VecDeque<Notice>,
    noticed: u64,
    /// Namespaces that were added, removed or changed since the log page was read.
    changed: BTreeSet<u32>,
    /// Namespaces whose new size the host has not read, by their identifiers.
    unread: BTreeMap<u32, UnreadCapacity>,
    /// The volumes of the host-made namespaces that it is attached to, by their UUIDs.
    attached: BTreeSet<[u8; 16]>,
    /// The persistent event log as it was when its host began to read it.
    told: Option<Arc<[u8]>>,
    watchers: Vec<Waker>,
}

impl State {
    fn has_io_queues(&self) -> bool {
        self.queues.keys().any(|queue| *queue > 0)
    }

    /// Reports the end of a reset or a shutdown to the host, once no command of an I/O queue can reach a store: a
    /// command that the host sends again must not be overtaken by the old one.
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
    /// The kind of the controller.
    pub kind: Kind,
    /// The host of the controller.
    pub host: Host,
    /// The path of the host.
    pub path: Path,
    /// The access grant.
    pub access_grant: AccessGrant,
    /// The time when it was made.
    pub since: Instant,
    /// Whether its host is authenticated, or need not be.
    authenticated: AtomicBool,
    enabled: AtomicBool,
    over: AtomicBool,
    writes_through: AtomicBool,
    /// The copy formats that the host has enabled, as in Host Behavior Support.
    copies: AtomicU16,
    heard: AtomicU64,
    /// The log of failed commands. I/O commands write it, too, so it has a lock of its own.
    errors: Mutex<Errors>,
    state: Mutex<State>,
}

impl Controller {
    fn new(
        (id, kind): (u16, Kind),
        host: Host,
        path: Path,
        (access_grant, must_authenticate): (AccessGrant, bool),
        now: Instant,
    ) -> Self {
        Self {
            id,
            kind,
            host,
            path,
            access_grant,
            since: now,
            authenticated: AtomicBool::new(!must_authenticate),
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
                granted: Granted::MOST,
                queues_max: QUEUES_MAX,
                queues: BTreeMap::new(),
                events: Events::default(),
                notices: VecDeque::new(),
                noticed: 0,
                changed: BTreeSet::new(),
                unread: BTreeMap::new(),
                attached: BTreeSet::new(),
                told: None,
                watchers: Vec::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_errors(&self) -> MutexGuard<'_, Errors> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs a failed command of this queue. Returns the status of its completion.
    pub(crate) fn note_error(&self, queue: u16, sqe: &Sqe, refusal: &Refusal) -> Status {
        self.lock_errors().note((queue, self.path.transport), sqe, refusal)
    }

    /// The number of failed commands since the controller was made, and the last of them, the newest first.
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

    /// A property, of four bytes or of eight. `None` if the property does not exist or has the other size.
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
    /// [`Status::INVALID_FIELD`] for other properties and for unsupported values.
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
            // A reset clears the settings of the host.
            (true, false) => {
                state.status &= READY;
                state.values = Values::default();
                self.set_write_cache(true);
                self.copies.store(0, Ordering::Relaxed);
                // Tasks that wait for an event must look at the new state.
                state.events.wake();
                state.events = Events::default();
                state.granted = Granted::MOST;
                state.told = None;
                // The host identifies all namespaces again.
                state.unread.clear();
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

    /// Whether it is enabled.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// Whether its host is authenticated, or need not be. Changes under the lock of all controllers.
    fn is_authenticated(&self) -> bool {
        self.authenticated.load(Ordering::Relaxed)
    }

    /// Whether it has ended: all of its queues end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Ends the controller.
    pub fn end(&self) {
        self.enabled.store(false, Ordering::Release);
        self.over.store(true, Ordering::Release);
        wake_all(&mut self.lock().watchers);
    }

    /// Waits until it has ended, or, for an I/O queue, until it is disabled.
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

    /// Restarts the keep-alive timer after a command of the host.
    pub fn restart_keep_alive(&self, now: Instant) {
        self.heard.store(now.0, Ordering::Relaxed);
    }

    /// The expiry of the keep-alive timer; `None`: never.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let patience = match (self.keep_alive(), self.kind) {
            (Duration::ZERO, Kind::Discovery) => DISCOVERY_IDLE,
            (said, _) => said,
        };
        (!patience.is_zero()).then(|| Instant(self.heard.load(Ordering::Relaxed)) + patience)
    }

    /// The keep-alive timeout; zero: none.
    #[must_use]
    pub fn keep_alive(&self) -> Duration {
        self.lock().keep_alive
    }

    /// Sets the keep-alive timeout, rounded up to a multiple of [`KEEP_ALIVE_GRANULARITY`].
    pub fn set_keep_alive(&self, milliseconds: u32) {
        let step = u64::from(KEEP_ALIVE_GRANULARITY) * 100;
        self.lock().keep_alive = Duration::from_millis(u64::from(milliseconds).next_multiple_of(step));
    }

    /// Whether a write may complete before it is on the medium.
    #[must_use]
    pub fn caches_writes(&self) -> bool {
        // In one order with the write that has ended and the flush that the host's setting waits for: one of both
        // sees the other, on whichever core they are.
        !self.writes_through.load(Ordering::SeqCst)
    }

    pub(crate) fn set_write_cache(&self, caches: bool) {
        self.writes_through.store(!caches, Ordering::SeqCst);
    }

    /// Whether the host has enabled this copy format (Host Behavior Support; NVMe Base 2.1 5.1.25.1.14).
    #[must_use]
    pub fn takes_copies_of(&self, format: usize) -> bool {
        self.copies.load(Ordering::Relaxed) >> format & 1 != 0
    }

    /// The Host Behavior Support of the host.
    pub(crate) fn set_behavior(&self, behavior: Option<Box<[u8; 512]>>) {
        /// CDFE.
        const FORMATS: usize = 4;
        let formats = behavior.as_ref().map_or(0, |bytes| u16::from_le_bytes([bytes[FORMATS], bytes[FORMATS + 1]]));
        self.copies.store(formats, Ordering::Relaxed);
        self.lock().values.behavior = behavior;
    }

    /// Reads or changes the values of its features.
    pub fn values<T>(&self, what: impl FnOnce(&mut Values) -> T) -> T {
        what(&mut self.lock().values)
    }

    /// Grants no more I/O queues of each type than so many from now on: the port of the host takes no more. A host that
    /// is granted more connects none if one of them is refused.
    pub fn limit_queues(&self, most: u16) {
        self.lock().queues_max = most;
    }

    /// Grants I/O queues, at most [`QUEUES_MAX`] of each type; not after the first I/O queue exists.
    ///
    /// # Errors
    /// [`Status::SEQUENCE_ERROR`]
    pub fn grant(&self, wanted: Granted) -> Result<Granted, Status> {
        let mut state = self.lock();
        if state.queues.keys().any(|queue| *queue > 0) {
            return Err(Status::SEQUENCE_ERROR);
        }
        state.granted = Granted::of(wanted, state.queues_max);
        Ok(state.granted)
    }

    /// I/O queues that are granted.
    #[must_use]
    pub fn granted(&self) -> Granted {
        self.lock().granted
    }

    /// Whether it has queues besides the admin queue.
    #[must_use]
    pub fn has_io_queues(&self) -> bool {
        self.lock().has_io_queues()
    }

    /// The numbers of entries of its I/O queues.
    #[must_use]
    pub fn io_queues(&self) -> Vec<u16> {
        self.lock().queues.iter().filter(|(queue, _)| **queue > 0).map(|(_, entries)| *entries).collect()
    }

    pub(crate) fn open_queue(&self, queue: u16, entries: u16) -> Result<(), Status> {
        let mut state = self.lock();
        let granted = if self.path.memory { state.granted.submission } else { state.granted.pairs() };
        if queue > granted {
            return Err(Status::INVALID_QUEUE);
        }
        if state.queues.contains_key(&queue) {
            return Err(Status::SEQUENCE_ERROR);
        }
        state.queues.insert(queue, entries);
        Ok(())
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

    /// Queues an asynchronous event request.
    ///
    /// # Errors
    /// [`Status::EVENT_LIMIT`]
    pub(crate) fn park(&self, cid: u16) -> Result<(), Status> {
        if self.lock().events.park(cid) { Ok(()) } else { Err(Status::EVENT_LIMIT) }
    }

    /// Aborts an asynchronous event request; returns whether it was waiting.
    pub(crate) fn abort_event(&self, cid: u16) -> bool {
        self.lock().events.abort(cid)
    }

    /// Drops an asynchronous event request whose command identifier the host uses again.
    pub fn withdraw_event(&self, cid: u16) {
        self.lock().events.withdraw(cid);
    }

    /// Reports an event if the host has enabled it.
    pub fn raise(&self, event: Event) {
        let mut state = self.lock();
        let wanted = event.configured().is_none_or(|bit| state.values.events() & bit != 0);
        if wanted {
            state.events.raise(event);
        }
    }

    /// Records namespaces that were added, removed or changed, until the host reads their identifiers, and reports the
    /// event if the host has enabled it.
    pub fn change_namespaces(&self, ids: impl IntoIterator<Item = u32>) {
        self.lock().changed.extend(ids.into_iter().filter(|id| (1..=NAMESPACES_MAX).contains(id)));
        self.raise(Event::NAMESPACES);
    }

    /// The namespace of this identifier has another size. The host has not read it until it identifies the namespace.
    pub(crate) fn resize_namespace(&self, id: u32, unit: &Arc<SharedUnit>) {
        let unread = unit.capacity_changed(&self.host.nqn);
        self.lock().unread.insert(id, unread);
    }

    /// The host has read the size of this namespace, or does not see it any more.
    pub(crate) fn size_read(&self, id: u32) {
        self.lock().unread.remove(&id);
    }

    /// Namespaces that were added, removed or changed since the last read, in ascending order; the list is kept if the
    /// reader `retains` it.
    pub(crate) fn changed(&self, retains: bool) -> BTreeSet<u32> {
        let mut state = self.lock();
        if retains { state.changed.clone() } else { std::mem::take(&mut state.changed) }
    }

    /// The persistent event log of the reporting context, if there is one.
    pub(crate) fn told(&self) -> Option<Arc<[u8]>> {
        self.lock().told.clone()
    }

    /// Sets or releases the reporting context of the persistent event log.
    pub(crate) fn tell(&self, log: Option<Arc<[u8]>>) {
        self.lock().told = log;
    }

    /// Writes a log page for the host. Unless the host `retains` the event, events of this page are enabled before the
    /// page is written: changes during the write may be missing in the page.
    pub(crate) fn read_page(&self, page: u8, retains: bool, write: impl FnOnce()) {
        if !retains {
            self.lock().events.was_read(page);
        }
        write();
    }

    /// The next asynchronous event request to complete, its status, and dword 0 of its completion.
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

    /// Attaches a new controller to the namespaces that its host was attached to last. It may replace a controller that
    /// is no longer reachable, so private namespaces are among them, unless another host has them now.
    fn begin_attached(&self, all: &BTreeMap<u16, Arc<Self>>) {
        let pools = &self.access_grant.subsystem.pools;
        let Some(pool) = self.access_grant.map.as_ref().and_then(|map| pools.get(map)) else { return };
        let is_ours = |other: &Self| other.host.nqn.eq_ignore_ascii_case(&self.host.nqn);
        let is_taken = |volume: &[u8; 16]| all.values().any(|other| !is_ours(other) && other.is_attached(volume));
        let mut attached = pool.of_host(&self.host.nqn);
        attached.retain(|volume| !(pool.private.contains(volume) && is_taken(volume)));
        self.lock().attached = attached;
    }

    /// Whether it is attached to the host-made namespace on this volume.
    #[must_use]
    pub fn is_attached(&self, volume: &[u8; 16]) -> bool {
        self.lock().attached.contains(volume)
    }

    /// Attaches it to the namespace on this volume or detaches it; a change is reported to the host.
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
        let (access_grant, portal_ref) = (&self.access_grant, self.path.portal_ref);
        let leads = |portal: &Portal| portal.id == portal_ref.portal && portal.group == portal_ref.group;
        let is_reached = directory.portals.as_ref().is_none_or(|portals| portals.iter().any(leads));
        let entry = match self.kind {
            Kind::Discovery => directory.discovery(),
            Kind::Io => match directory.subsystem(&access_grant.subsystem.nqn) {
                Some(entry) => entry,
                None => return false,
            },
        };
        let Some(source) = access_grant.source else { return true };
        let host = self.host.nqn.to_ascii_lowercase();
        let group = entry.access.group(&host, source.ip()).map(|group| &group.name);
        is_reached && entry.is_reached(portal_ref.group) && group.is_some() && group == access_grant.group.as_ref()
    }

    /// Queues a reservation notification.
    pub(crate) fn notice(&self, kind: u8, namespace: u32) {
        let mut state = self.lock();
        // Zero is no count (NVMe Base 2.0 5.16.1.24). A migration record may say any other.
        state.noticed = state.noticed.checked_add(1).unwrap_or(1);
        let notice = Notice { count: state.noticed, kind, namespace };
        state.notices.push_back(notice);
        if state.notices.len() > NOTICES_MAX {
            state.notices.pop_front();
        }
        state.events.raise(Event::RESERVATION);
    }

    /// The oldest reservation notification, and the number of those that wait after it.
    pub(crate) fn take_notice(&self) -> Option<(Notice, usize)> {
        let mut state = self.lock();
        let notice = state.notices.pop_front()?;
        Some((notice, state.notices.len()))
    }
}

fn wake_all(watchers: &mut Vec<Waker>) {
    std::mem::take(watchers).into_iter().for_each(Waker::wake);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access_grant(controllers_max: usize) -> AccessGrant {
        let entry = Entry { controllers_max, ..Entry::clone(Directory::nothing().discovery()) };
        AccessGrant { subsystem: Arc::new(entry), group: None, map: None, source: None }
    }

    fn controller(kind: Kind) -> (Controllers, Arc<Controller>) {
        let controllers = Controllers::default();
        let host = Host { nqn: "nqn.2014-08.org.nvmexpress:uuid:x".into(), id: [7; 16] };
        let made = controllers.make(kind, host, Path::default(), (access_grant(1), false), Instant(0)).expect("room");
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
        made.restart_keep_alive(Instant(5));
        assert_eq!(made.deadline(), Some(Instant(2_000_000_005)));
        // A discovery controller without keep-alive has a deadline.
        let (_, made) = controller(Kind::Discovery);
        assert_eq!(made.deadline(), Some(Instant(0) + DISCOVERY_IDLE));
        made.set_keep_alive(1000);
        assert_eq!(made.deadline(), Some(Instant(1_000_000_000)));
    }

    #[test]
    fn events_during_the_read_of_their_page_are_reported() {
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
        let both = |count| Granted { submission: count, completion: count };
        let wanted = Granted { submission: 7, completion: 3 };
        assert_eq!((made.grant(wanted), made.open_queue(4, 8)), (Ok(wanted), Err(Status::INVALID_QUEUE)));
        assert_eq!((made.grant(both(3)), made.open_queue(0, 8), made.open_queue(3, 8)), (Ok(both(3)), Ok(()), Ok(())));
        assert_eq!(made.open_queue(3, 8), Err(Status::SEQUENCE_ERROR));
        assert_eq!(made.open_queue(4, 8), Err(Status::INVALID_QUEUE));
        assert_eq!(made.grant(both(4)), Err(Status::SEQUENCE_ERROR));
        assert_eq!(made.io_queues(), [8]);
        made.close_queue(3);
        assert_eq!(made.grant(both(9999)), Ok(Granted::MOST));
        for (most, granted) in [(5, 5), (0, 1), (9999, QUEUES_MAX)] {
            made.limit_queues(most);
            assert_eq!(made.grant(both(200)), Ok(both(granted)));
        }
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
        let two = Granted { submission: 2, completion: 2 };
        assert_eq!((made.grant(two), made.open_queue(1, 8), made.open_queue(2, 8)), (Ok(two), Ok(()), Ok(())));
        assert_eq!((set(&made, ENTRY_SIZES | ENABLE | 0x4000), status(&made)), (Ok(()), READY | SHUTTING_DOWN));
        made.close_queue(1);
        assert_eq!(status(&made), READY | SHUTTING_DOWN);
        assert_eq!((set(&made, ENTRY_SIZES), status(&made)), (Ok(()), READY));
        made.close_queue(2);
        assert_eq!(status(&made), 0);
        assert_eq!((set(&made, ENTRY_SIZES | ENABLE), status(&made)), (Ok(()), READY));
        assert_eq!((set(&made, ENTRY_SIZES | ENABLE | 0x4000), status(&made)), (Ok(()), READY | SHUT_DOWN));
    }
}

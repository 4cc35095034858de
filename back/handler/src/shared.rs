//! The state of a volume with a handler that the control thread and all cores share.

use crate::known::DeviceState;
use crate::queue::Sizes;
use crate::rbd::process::ImageAccess;
use lunar_core::time::Instant as CoreInstant;
use lunar_handler::wire::{LEVEL_BLOCK, LEVEL_MIXED, LEVEL_SCSI, Space};
use lunar_reactor::channel::Sender;
use lunar_scsi::peripheral::PeripheralType;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The volume, as its handler sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Unit {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) size: u64,
    pub(crate) block_size: u32,
    pub(crate) read_only: bool,
    pub(crate) discard: bool,
    /// The type of the SCSI device; `None`: the handler serves blocks.
    pub(crate) device: Option<PeripheralType>,
    /// Permissions of the socket.
    pub(crate) mode: u32,
    /// `None`: as the level has it.
    pub(crate) command_timeout: Option<Duration>,
    pub(crate) restart_time: Duration,
    /// The image whose process Lunar starts, instead of listening at the path. The size is that of the image then.
    pub(crate) image: Option<ImageAccess>,
}

impl Unit {
    /// The level of its commands.
    pub(crate) fn level(&self) -> u32 {
        if self.device.is_some() { LEVEL_SCSI } else { LEVEL_BLOCK }
    }

    /// Whether a handler of this level serves it.
    pub(crate) fn accepts(&self, level: u32) -> bool {
        level == self.level() || (level == LEVEL_MIXED && self.device.is_none() && self.image.is_none())
    }
}

/// The commands of a handler of this level, for people.
pub(crate) fn served(level: u32) -> &'static str {
    match level {
        LEVEL_BLOCK => "blocks",
        LEVEL_SCSI => "SCSI commands",
        LEVEL_MIXED => "blocks and SCSI commands",
        _ => "an unknown level",
    }
}

/// The handler that is connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Connected {
    /// Its name, as it says.
    pub(crate) name: String,
    pub(crate) process: i32,
    pub(crate) user: u32,
    pub(crate) since: Instant,
    pub(crate) generation: u32,
    /// The level at which it serves.
    pub(crate) level: u32,
    /// Bytes of its data, of blocks.
    pub(crate) size: u64,
}

/// A queue for a core: the memory, and the eventfds.
#[derive(Debug)]
pub(crate) struct QueueParts {
    pub(crate) generation: u32,
    pub(crate) sizes: Sizes,
    /// The optional operations that apply.
    pub(crate) features: u64,
    pub(crate) rings: OwnedFd,
    pub(crate) data: OwnedFd,
    /// Wakes the handler.
    pub(crate) commands: OwnedFd,
    /// Wakes the core.
    pub(crate) answers: OwnedFd,
}

/// A message to a core.
#[derive(Debug)]
pub(crate) enum Event {
    /// There is a handler.
    Attached(Box<QueueParts>),
    /// The handler of this generation has gone, or gets no more commands.
    Lost(u32),
    /// The handler has answered all late commands of all cores.
    Resume,
}

/// A core that has the volume open, for its commands of one level.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) number: u32,
    /// The level of its commands.
    pub(crate) level: u32,
    pub(crate) events: Sender<Event>,
    /// The generation of its queue; zero: it has none.
    pub(crate) generation: u32,
    /// When the oldest of its commands was submitted for which the handler has time left, and its order in that turn.
    oldest: Option<(CoreInstant, u64)>,
}

/// The state behind the lock.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) ports: Vec<Port>,
    /// Numbers of ports with a queue that were closed since the control thread looked.
    pub(crate) closed: Vec<u32>,
    ports_made: u32,
    pub(crate) connected: Option<Connected>,
    /// A defect of the handler of this generation.
    pub(crate) fault: Option<(u32, String)>,
    pub(crate) is_over: bool,
    /// Starts of the process of an image that were in vain, and why the last one was.
    pub(crate) failed: (u64, Option<String>),
    /// The identity of the image that is served: no command reaches another one. `None`: the first one is taken.
    pub(crate) identity: Option<String>,
    /// The identity of another image that has its name now.
    pub(crate) stranger: Option<String>,
    /// Bytes of the image while another server has it, and the process waits for it.
    pub(crate) standing_by: Option<u64>,
    /// No process of the image is started: another one may take its place.
    pub(crate) is_halted: bool,
    /// The space that a handler has told last, and when.
    pub(crate) space: Option<(Space, Instant)>,
    /// Late commands of queues that were dropped: their handler may still execute them.
    orphaned: usize,
}

/// Events since the volume was opened.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Handlers that were accepted.
    pub(crate) connections: AtomicU64,
    /// Commands that were sent again to another handler.
    pub(crate) replayed: AtomicU64,
    /// Commands that failed because the handler did not answer in time.
    pub(crate) timed_out: AtomicU64,
    /// Connections that were ended because of a defect.
    pub(crate) faults: AtomicU64,
}

/// A counter in cache lines of its own: a core that counts does not slow down the others that read its neighbours.
#[derive(Debug)]
#[repr(align(128))]
struct Alone<T>(T);

#[derive(Debug)]
pub(crate) struct Shared {
    unit: Mutex<Unit>,
    /// The times of the unit, for cores: they do not lock.
    command_timeout_milliseconds: AtomicU64,
    restart_time_milliseconds: AtomicU64,
    state: Mutex<State>,
    /// Commands that were not answered in time and may still be executed, on all cores.
    late: AtomicUsize,
    /// Changes of the data that were answered, on all cores.
    changes: Alone<AtomicU64>,
    /// Changes that a flush has written to the medium.
    flushed: AtomicU64,
    /// Wakes the control thread.
    bell: OwnedFd,
    pub(crate) counts: Counts,
    /// The SCSI device, if it is one, or the commands of a handler of the mixed level.
    pub(crate) device: DeviceState,
}

/// No time-out of commands is configured.
const AS_LEVEL: u64 = u64::MAX;

fn milliseconds(unit: &Unit) -> [u64; 2] {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(AS_LEVEL - 1);
    [unit.command_timeout.map_or(AS_LEVEL, milliseconds), milliseconds(unit.restart_time)]
}

impl Shared {
    pub(crate) fn new(unit: Unit) -> io::Result<Self> {
        let [timeout, restart] = milliseconds(&unit).map(AtomicU64::new);
        // A process before this one may have changed the volume, unless nothing may.
        let changes = Alone(AtomicU64::new(u64::from(!unit.read_only)));
        Ok(Self {
            unit: Mutex::new(unit),
            command_timeout_milliseconds: timeout,
            restart_time_milliseconds: restart,
            state: Mutex::default(),
            late: AtomicUsize::new(0),
            changes,
            flushed: AtomicU64::new(0),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            counts: Counts::default(),
            device: DeviceState::default(),
        })
    }

    pub(crate) fn unit(&self) -> Unit {
        self.unit.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_unit(&self, unit: Unit) {
        let [timeout, restart] = milliseconds(&unit);
        self.command_timeout_milliseconds.store(timeout, Ordering::Relaxed);
        self.restart_time_milliseconds.store(restart, Ordering::Relaxed);
        *self.unit.lock().unwrap_or_else(PoisonError::into_inner) = unit;
    }

    /// How long a command may take, if that is configured.
    pub(crate) fn command_timeout(&self) -> Option<Duration> {
        let milliseconds = self.command_timeout_milliseconds.load(Ordering::Relaxed);
        (milliseconds != AS_LEVEL).then(|| Duration::from_millis(milliseconds))
    }

    /// How long a command waits for a handler.
    pub(crate) fn restart_time(&self) -> Duration {
        Duration::from_millis(self.restart_time_milliseconds.load(Ordering::Relaxed))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Wakes the control thread.
    pub(crate) fn ring(&self) {
        // A counter that is full wakes it, too.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Adds the commands of a core at one level; the control thread makes their queue.
    pub(crate) fn add_port(&self, level: u32, events: Sender<Event>) -> u32 {
        let mut state = self.state();
        state.ports_made = state.ports_made.wrapping_add(1);
        let number = state.ports_made;
        state.ports.push(Port { number, level, events, generation: 0, oldest: None });
        drop(state);
        self.ring();
        number
    }

    pub(crate) fn remove_port(&self, number: u32) {
        let mut state = self.state();
        // A port without a queue is not known to the handler.
        let has_queue = state.ports.iter().any(|port| port.number == number && port.generation != 0);
        state.ports.retain(|port| port.number != number);
        if has_queue {
            state.closed.push(number);
        }
        drop(state);
        self.ring();
    }

    /// The oldest of the commands of this port for which the handler has time left was submitted at `oldest`, with its
    /// order in that turn; returns when that of all ports was, with the number of its port. No two are equal.
    pub(crate) fn oldest_in_time(
        &self,
        number: u32,
        oldest: Option<(CoreInstant, u64)>,
    ) -> Option<(CoreInstant, u32, u64)> {
        let mut state = self.state();
        state.ports.iter_mut().filter(|port| port.number == number).for_each(|port| port.oldest = oldest);
        let all = state.ports.iter().filter_map(|port| port.oldest.map(|(at, order)| (at, port.number, order)));
        all.min()
    }

    /// A core has found a defect of the handler: its connection ends. A core may find one of an earlier handler after
    /// another core has found one of this handler.
    pub(crate) fn fail(&self, generation: u32, why: String) {
        let mut state = self.state();
        if state.fault.as_ref().is_none_or(|(known, _)| generation >= *known) {
            state.fault = Some((generation, why));
        }
        drop(state);
        self.ring();
    }

    /// A process of an image has ended, or was not started.
    pub(crate) fn fail_start(&self, why: String) {
        let mut state = self.state();
        state.failed = (state.failed.0 + 1, Some(why));
    }

    /// A process has opened an image with this identity. Returns whether it is the one that is served.
    pub(crate) fn admit(&self, identity: String) -> bool {
        let mut state = self.state();
        if state.identity.as_ref().is_some_and(|own| *own != identity) {
            state.stranger = Some(identity);
            return false;
        }
        (state.identity, state.stranger) = (Some(identity), None);
        true
    }

    /// Ends the control thread.
    pub(crate) fn end(&self) {
        self.state().is_over = true;
        self.ring();
    }

    /// The number of the last change that was answered.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.0.load(Ordering::Acquire)
    }

    /// A change is about to be answered, or has failed and may have changed some of its bytes.
    pub(crate) fn add_change(&self) {
        self.changes.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a flush has nothing to do: a volume that is not changed is flushed without a handler.
    pub(crate) fn is_flushed(&self) -> bool {
        self.flushed.load(Ordering::Acquire) >= self.changes()
    }

    /// A flush has ended that was submitted after so many changes.
    pub(crate) fn end_flush(&self, changes: u64) {
        self.flushed.fetch_max(changes, Ordering::AcqRel);
    }

    /// Whether the handler owes late answers: it gets no new command meanwhile.
    pub(crate) fn is_late(&self) -> bool {
        self.late.load(Ordering::Acquire) > 0
    }

    /// Commands that were not answered in time and may still be executed.
    pub(crate) fn late(&self) -> usize {
        self.late.load(Ordering::Acquire)
    }

    pub(crate) fn add_late(&self) {
        self.late.fetch_add(1, Ordering::AcqRel);
    }

    /// The queue of a connection is dropped, and its handler owes it so many late answers. It may execute those
    /// commands until the next handler is accepted, because that needs the end of its process.
    pub(crate) fn orphan_late(&self, generation: u32, count: usize) {
        let mut state = self.state();
        if state.connected.as_ref().is_some_and(|connected| connected.generation != generation) {
            drop(state);
            return self.end_late(count);
        }
        state.orphaned += count;
    }

    /// A handler is accepted: the one before it executes nothing any more.
    pub(crate) fn connect(&self, connected: Connected) {
        let mut state = self.state();
        state.connected = Some(connected);
        let orphaned = std::mem::take(&mut state.orphaned);
        drop(state);
        self.end_late(orphaned);
    }

    /// So many late commands will not be executed any more. They may have changed the volume before.
    pub(crate) fn end_late(&self, count: usize) {
        if count > 0 {
            self.add_change();
        }
        if count > 0 && self.late.fetch_sub(count, Ordering::AcqRel) == count {
            self.state().ports.iter().for_each(|port| port.events.send(Event::Resume));
        }
    }
}

//! The queue of one core: its end of the rings, and the memory of the data.

use crate::places::{Place, Places};
use crate::shared::QueueParts;
use lunar_core::io::{Data, Done, Io, Op};
use lunar_core::mem::{Region, Sg, SgMut};
use lunar_core::time::Instant;
use lunar_handler::ring::{Answer, Command, TargetEnd, Violation, ring_bytes};
use lunar_handler::wire::{Operation, features, flags};
use lunar_reactor::Reactor;
use lunar_reactor::shared::{is_lost, losses, map};
use lunar_reactor::unix::{Kick, Signal};
use std::fmt;
use std::io;
use std::rc::Rc;

/// Slots of a queue: the commands of one core in progress at a handler.
pub(crate) const DEPTH: u32 = 128;
/// Bytes of the memory of the data of one queue. Pages that were never used take no memory.
pub(crate) const DATA_BYTES: usize = 8 << 20;
/// Most bytes of one command: steps move far fewer at a time.
pub(crate) const TRANSFER_MAX: usize = DATA_BYTES / 2;
/// Bytes that are copied at a time between memory that others write and memory of this process.
const COPY_BYTES: usize = 64 << 10;

/// A command, and the duty to answer it.
pub(crate) struct Request {
    pub(crate) io: Io,
    pub(crate) done: Done,
    /// Since when it waits for a handler.
    pub(crate) since: Instant,
    /// The changes that were answered before it was submitted: those that a flush covers.
    pub(crate) changes: u64,
    /// Whether a handler had it and did not answer it.
    pub(crate) is_kept: bool,
}

/// A slot that the handler has.
pub(crate) enum Taken {
    /// The command is in progress.
    InProgress { request: Request, place: Place, submitted: Instant, order: u64 },
    /// The command has failed, and its memory may still be written.
    Late(Place),
}

pub(crate) struct Queue {
    pub(crate) generation: u32,
    features: u64,
    ring: TargetEnd,
    data: Region,
    places: Places,
    slots: Vec<Option<Taken>>,
    order: u64,
    /// Slots that are [`Taken::Late`].
    pub(crate) late: usize,
    kick: Rc<Kick>,
    signal: Signal,
    /// Commands were submitted since the handler was woken last.
    has_new: bool,
    /// The handler sleeps, and its eventfd was not signalled yet.
    must_signal: bool,
    is_asleep: bool,
    copy: Vec<u8>,
    /// The losses of shared memory in this process when this queue looked last.
    losses: usize,
}

/// Why a queue cannot be used any more.
#[derive(Debug)]
pub(crate) enum Broken {
    /// A breach of the protocol.
    Violation(Violation),
    /// The memory of the data was lost.
    Lost,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(violation) => violation.fmt(f),
            Self::Lost => f.write_str("a page of the memory that it shares with Lunar was lost"),
        }
    }
}

/// The end of a command: its slot's contents, and what the handler says.
pub(crate) struct Ended {
    pub(crate) taken: Taken,
    pub(crate) answer: Answer,
}

impl Queue {
    /// The queue of these parts.
    ///
    /// # Errors
    /// When there are too many open files or mappings.
    pub(crate) fn new(reactor: &Reactor, parts: QueueParts) -> io::Result<Self> {
        let QueueParts { generation, features, rings, data, commands, answers } = parts;
        let memory = map(&rings, 0, ring_bytes(DEPTH), true)?;
        Ok(Self {
            generation,
            features,
            ring: TargetEnd::new(memory, DEPTH, generation),
            data: map(&data, 0, DATA_BYTES, true)?,
            places: Places::new(DATA_BYTES),
            slots: (0..DEPTH).map(|_| None).collect(),
            order: 0,
            late: 0,
            kick: Rc::new(Kick::new(reactor, answers)?),
            signal: Signal::new(reactor, commands)?,
            has_new: false,
            must_signal: false,
            is_asleep: false,
            copy: vec![0; COPY_BYTES],
            losses: losses(),
        })
    }

    /// Waits for the eventfd that the handler signals.
    pub(crate) fn kick(&self) -> &Rc<Kick> {
        &self.kick
    }

    /// Whether the handler has the operation.
    pub(crate) fn has(&self, op: Op) -> bool {
        match op {
            Op::Unmap { .. } => self.features & features::UNMAP != 0,
            Op::Zero { .. } => self.features & features::ZERO != 0,
            _ => true,
        }
    }

    /// Submits a request; gives it back if there is no room now.
    pub(crate) fn submit(&mut self, request: Request, now: Instant, timeout_milliseconds: u32) -> Option<Request> {
        if !self.ring.has_room() {
            return Some(request);
        }
        let Some(place) = self.places.take(request.io.data.len()) else { return Some(request) };
        if let Data::Out(data) = &request.io.data {
            fill(&self.data, place.at, data, &mut self.copy);
        }
        let (operation, flags) = match request.io.op {
            Op::Read => (Operation::READ, 0),
            Op::Write { durable } => (Operation::WRITE, if durable { flags::DURABLE } else { 0 }),
            Op::Unmap { .. } => (Operation::UNMAP, 0),
            Op::Zero { unmap, .. } => (Operation::ZERO, if unmap { flags::RELEASE } else { 0 }),
            // Others do not get here.
            Op::Flush | Op::Extent { .. } | Op::Space | Op::Copy { .. } => (Operation::FLUSH, 0),
        };
        let (offset, length) = (request.io.offset, request.io.bytes());
        let data = place.at as u64;
        let command = Command { operation, flags, offset, length, data, timeout_milliseconds };
        let slot = self.ring.submit(&command).expect("the ring has room");
        self.order += 1;
        let taken = Taken::InProgress { request, place, submitted: now, order: self.order };
        self.slots[usize::from(slot)] = Some(taken);
        self.has_new = true;
        None
    }

    /// The next answer, with the data of a READ copied to its request.
    ///
    /// # Errors
    /// The queue must not be used any more.
    pub(crate) fn take(&mut self) -> Result<Option<Ended>, Broken> {
        let Some(answer) = self.ring.take().map_err(Broken::Violation)? else { return Ok(None) };
        let slot = usize::from(answer.slot);
        if let Some(Taken::InProgress { request, place, .. }) = &mut self.slots[slot]
            && let Data::In(memory) = &mut request.io.data
        {
            empty(&self.data, place.at, memory, &mut self.copy);
        }
        if self.is_lost() {
            // The command keeps its slot, so it is sent to the next handler.
            return Err(Broken::Lost);
        }
        let taken = self.slots[slot].take().expect("the rings know which slots are in use");
        match &taken {
            Taken::InProgress { place, .. } => self.places.give(*place),
            Taken::Late(place) => {
                self.late -= 1;
                self.places.give(*place);
            }
        }
        Ok(Some(Ended { taken, answer }))
    }

    /// Whether the memory of the data is not shared with the handler any more: what it has written, or was given, may
    /// be something else.
    fn is_lost(&mut self) -> bool {
        let now = losses();
        std::mem::replace(&mut self.losses, now) != now && is_lost([&self.data].into_iter())
    }

    /// The requests that were submitted before `limit`; their slots and their memory stay in use.
    pub(crate) fn take_late(&mut self, limit: Instant) -> Vec<Request> {
        let mut late = Vec::new();
        for slot in &mut self.slots {
            match slot.take() {
                Some(Taken::InProgress { request, place, submitted, .. }) if submitted < limit => {
                    late.push(request);
                    self.late += 1;
                    *slot = Some(Taken::Late(place));
                }
                other => *slot = other,
            }
        }
        late
    }

    /// The requests without an answer, in the order in which they were submitted.
    pub(crate) fn take_unanswered(&mut self) -> Vec<Request> {
        let mut all: Vec<(u64, Request)> = Vec::new();
        for slot in &mut self.slots {
            if let Some(Taken::InProgress { request, order, .. }) = slot.take() {
                all.push((order, request));
            }
        }
        all.sort_by_key(|(order, _)| *order);
        all.into_iter().map(|(_, request)| request).collect()
    }

    /// Whether the handler has commands that can still be late.
    pub(crate) fn is_busy(&self) -> bool {
        self.ring.in_progress() > self.late
    }

    pub(crate) fn has_answers(&self) -> bool {
        self.ring.has_answers()
    }

    /// Lunar polls from now on.
    pub(crate) fn rise(&mut self) {
        if std::mem::take(&mut self.is_asleep) {
            self.ring.rise();
        }
    }

    /// Wakes the handler if it sleeps and has new commands.
    pub(crate) fn wake_handler(&mut self) {
        if std::mem::take(&mut self.has_new) && self.ring.must_wake() {
            self.must_signal = true;
        }
        if self.must_signal && self.signal.ring() {
            self.must_signal = false;
        }
    }

    /// Asks the handler to wake Lunar; whether Lunar may sleep.
    pub(crate) fn may_sleep(&mut self) -> bool {
        // A signal that is still pending does not matter: its end makes the core turn.
        if self.has_new {
            return false;
        }
        self.is_asleep = self.ring.may_sleep();
        self.is_asleep
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.kick.cancel();
    }
}

/// Copies the data of a WRITE into the memory of the data.
fn fill(memory: &Region, place: usize, data: &Sg, copy: &mut [u8]) {
    let mut at = 0;
    while at < data.len() {
        let count = data.copy_to(at, copy);
        assert!(memory.write(place + at, &copy[..count]), "the place is within the memory");
        at += count;
    }
}

/// Copies the data of a READ from the memory of the data.
fn empty(memory: &Region, place: usize, into: &mut SgMut, copy: &mut [u8]) {
    let mut at = 0;
    while at < into.len() {
        let count = copy.len().min(into.len() - at);
        assert!(memory.read(place + at, &mut copy[..count]), "the place is within the memory");
        at += into.copy_from(at, &copy[..count]);
    }
}

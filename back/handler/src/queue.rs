//! The queue of one core: its end of the rings, and the memory of the data.

use crate::places::{Place, Places};
use crate::shared::QueueParts;
use lunar_core::io::Fault;
use lunar_core::mem::{Region, Sg, SgMut};
use lunar_core::time::Instant;
use lunar_handler::ring::{Answer, Command, TargetEnd, Violation, ring_bytes};
use lunar_handler::wire::{FRAME_BYTES, Status};
use lunar_reactor::Reactor;
use lunar_reactor::shared::{is_lost, losses, map};
use lunar_reactor::unix::{Kick, Signal};
use lunar_scsi::device_server::FORWARDED_BYTES_MAX;
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::rc::Rc;

/// Slots of a queue: the commands of one core in progress at a handler.
pub(crate) const DEPTH: u32 = 128;

/// The memory of the data of one queue. Pages that were never used take no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sizes {
    /// Bytes of it.
    pub(crate) data: usize,
    /// Most bytes of the data of one command.
    pub(crate) transfer: usize,
}

/// The memory of a queue of blocks. Steps move far fewer bytes at a time.
pub(crate) const BLOCK_SIZES: Sizes = Sizes { data: 8 << 20, transfer: 4 << 20 };
/// The memory of a queue of SCSI commands: two of the longest, with their frames.
pub(crate) const SCSI_SIZES: Sizes =
    Sizes { data: 2 * (FORWARDED_BYTES_MAX + FRAME_BYTES), transfer: FORWARDED_BYTES_MAX };

/// The end of a command as a handler reports it.
pub(crate) fn result(status: Status) -> Result<(), Fault> {
    match status {
        Status::GOOD => Ok(()),
        Status::MEDIUM_ERROR => Err(Fault::Medium),
        Status::NO_SPACE => Err(Fault::NoSpace),
        Status::UNSUPPORTED => Err(Fault::Unsupported),
        Status::NOT_READY => Err(Fault::NotReady),
        _ => Err(Fault::Os(Errno::REMOTEIO.raw_os_error())),
    }
}

/// A request to the handler of one level, and the duty to answer it.
pub(crate) trait Carried: 'static {
    /// The level.
    const LEVEL: u32;

    /// Bytes of its place in the memory of the data.
    fn place_bytes(&self) -> usize;

    /// Writes what the handler needs into its place, and returns the command.
    fn begin(&self, memory: &mut Memory<'_>, timeout_milliseconds: u32) -> Command;

    /// Takes what the handler has written out of its place.
    fn end(&mut self, memory: &mut Memory<'_>, answer: &Answer);
}

/// The place of a request in the memory of the data, which the handler may change at any time.
pub(crate) struct Memory<'a> {
    region: &'a Region,
    /// The first byte.
    pub(crate) at: usize,
}

/// Places are taken as long as their requests say.
const WITHIN: &str = "the place is within the memory";

impl Memory<'_> {
    /// Copies data into the place, `from` behind its first byte.
    pub(crate) fn fill(&mut self, from: usize, data: &Sg) {
        assert!(self.region.write_from(self.at + from, data), "{WITHIN}");
    }

    /// Copies the first `count` bytes of data out of the place, `from` behind its first byte.
    pub(crate) fn empty(&mut self, from: usize, into: &mut SgMut, count: usize) {
        assert!(self.region.read_to(self.at + from, into, count), "{WITHIN}");
    }

    /// Writes a format at the first byte of the place.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        assert!(self.region.write(self.at, bytes), "{WITHIN}");
    }

    /// Reads bytes.
    pub(crate) fn read(&self, from: usize, into: &mut [u8]) {
        assert!(self.region.read(self.at + from, into), "{WITHIN}");
    }
}

/// A slot that the handler has.
pub(crate) enum Taken<R> {
    /// The command is in progress.
    InProgress { request: R, place: Place, submitted: Instant, order: u64 },
    /// The command has failed, and its memory may still be written.
    Late(Place),
}

pub(crate) struct Queue<R> {
    pub(crate) generation: u32,
    /// The optional operations that apply.
    pub(crate) features: u64,
    ring: TargetEnd,
    data: Region,
    places: Places,
    slots: Vec<Option<Taken<R>>>,
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
pub(crate) struct Ended<R> {
    pub(crate) taken: Taken<R>,
    pub(crate) answer: Answer,
}

impl<R: Carried> Queue<R> {
    /// The queue of these parts.
    ///
    /// # Errors
    /// When there are too many open files or mappings.
    pub(crate) fn new(reactor: &Reactor, parts: QueueParts) -> io::Result<Self> {
        let QueueParts { generation, features, sizes, rings, data, commands, answers, .. } = parts;
        let memory = map(&rings, 0, ring_bytes(DEPTH), true)?;
        Ok(Self {
            generation,
            features,
            ring: TargetEnd::new(memory, DEPTH, generation),
            data: map(&data, 0, sizes.data, true)?,
            places: Places::new(sizes.data),
            slots: (0..DEPTH).map(|_| None).collect(),
            order: 0,
            late: 0,
            kick: Rc::new(Kick::new(reactor, answers)?),
            signal: Signal::new(reactor, commands)?,
            has_new: false,
            must_signal: false,
            is_asleep: false,
            losses: losses(),
        })
    }

    /// Waits for the eventfd that the handler signals.
    pub(crate) fn kick(&self) -> &Rc<Kick> {
        &self.kick
    }

    /// Whether there is a slot.
    pub(crate) fn has_room(&self) -> bool {
        self.ring.has_room()
    }

    /// Submits a request; gives it back if there is no room now.
    pub(crate) fn submit(&mut self, request: R, now: Instant, timeout_milliseconds: u32) -> Option<R> {
        if !self.ring.has_room() {
            return Some(request);
        }
        let Some(place) = self.places.take(request.place_bytes()) else { return Some(request) };
        let mut memory = Memory { region: &self.data, at: place.at };
        let command = request.begin(&mut memory, timeout_milliseconds);
        let slot = self.ring.submit(&command).expect("the ring has room");
        self.order += 1;
        let taken = Taken::InProgress { request, place, submitted: now, order: self.order };
        self.slots[usize::from(slot)] = Some(taken);
        self.has_new = true;
        None
    }

    /// The request in progress for which `matches` returns true, and the number of its command.
    pub(crate) fn find(&mut self, matches: impl Fn(&R) -> bool) -> Option<(&mut R, u64)> {
        let ring = &self.ring;
        let mut all = self.slots.iter_mut().zip(0..).filter_map(|(taken, slot)| match taken {
            Some(Taken::InProgress { request, .. }) => Some((request, ring.number_in(slot)?)),
            _ => None,
        });
        all.find(|(request, _)| matches(request))
    }

    /// The next answer, with what the handler has written copied to its request.
    ///
    /// # Errors
    /// The queue must not be used any more.
    pub(crate) fn take(&mut self) -> Result<Option<Ended<R>>, Broken> {
        let Some(answer) = self.ring.take().map_err(Broken::Violation)? else { return Ok(None) };
        let slot = usize::from(answer.slot);
        if let Some(Taken::InProgress { request, place, .. }) = &mut self.slots[slot] {
            request.end(&mut Memory { region: &self.data, at: place.at }, &answer);
        }
        if self.is_lost() {
            // The command keeps its slot, so it counts as one without an answer.
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

    /// The requests in progress, and when they were submitted: the time of the turn, and their order in it.
    pub(crate) fn in_progress(&mut self) -> impl Iterator<Item = (&mut R, (Instant, u64))> {
        self.slots.iter_mut().filter_map(|taken| match taken {
            Some(Taken::InProgress { request, submitted, order, .. }) => Some((request, (*submitted, *order))),
            _ => None,
        })
    }

    /// The requests that are late by what `is_late` says of them and of the time of their submission; their slots and
    /// their memory stay in use.
    pub(crate) fn take_late(&mut self, is_late: impl Fn(&R, Instant) -> bool) -> Vec<R> {
        let mut late = Vec::new();
        for slot in &mut self.slots {
            match slot.take() {
                Some(Taken::InProgress { request, place, submitted, .. }) if is_late(&request, submitted) => {
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
    pub(crate) fn take_unanswered(&mut self) -> Vec<R> {
        let mut all: Vec<(u64, R)> = Vec::new();
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
        if std::mem::take(&mut self.has_new) {
            self.ring.publish();
            self.must_signal |= self.ring.must_wake();
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

impl<R> Drop for Queue<R> {
    fn drop(&mut self) {
        self.kick.cancel();
    }
}

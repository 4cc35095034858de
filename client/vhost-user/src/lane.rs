//! The requests of one ring, from their start to their answer.
//!
//! A request waits in its slot until it is sent, and keeps the slot until it is answered. When the connection is lost,
//! what was sent waits again, and is sent to the next back-end: the requests of a disk may be repeated, and no other
//! order was promised for those that were in progress at the same time.
//!
//! A driver that cannot wait any longer lets a request expire. The back-end may still execute it, and move its data. So
//! the slot stays abandoned until the back-end answers, or another one has taken its place; and nothing else is sent
//! meanwhile, because a later write of the same blocks could be overtaken by the abandoned one.

use crate::Defect;
use crate::form::{Form, Pieces, SlotMemory};
use crate::layout::Layout;
use crate::ring::DriverRing;
use lunar_core::mem::Region;
use lunar_core::time::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// The answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer<End> {
    /// The back-end has answered it.
    Ended(End),
    /// The driver has not waited any longer. The slot may be abandoned: see [`Lane::is_free`].
    Expired,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    /// It is to be sent.
    Waiting,
    /// The back-end has it.
    Sent,
    /// The back-end may have it, and no request of the disk waits for it.
    Abandoned,
}

#[derive(Debug)]
struct Slot<End> {
    state: State,
    /// Whether a back-end has had the request.
    was_sent: bool,
    since: Instant,
    answer: Option<Answer<End>>,
}

/// The requests of one ring.
#[derive(Debug)]
pub struct Lane<F: Form> {
    ring: DriverRing,
    memory: Region,
    layout: Layout,
    queue: u16,
    /// The most bytes of a piece of data.
    piece: usize,
    slots: Vec<Slot<F::End>>,
    waiting: VecDeque<u16>,
    /// Requests that the back-end has.
    in_progress: u16,
    abandoned: usize,
}

impl<F: Form> Lane<F> {
    /// The requests of a queue in the shared memory, whose data is in pieces of at most `piece` bytes. `None`: the
    /// memory or the room of a slot is too short.
    #[must_use]
    pub fn new(memory: &Region, layout: &Layout, queue: u16, piece: usize) -> Option<Self> {
        let slot = |_| Slot { state: State::Free, was_sent: false, since: Instant::default(), answer: None };
        let has_room = layout.room().control >= F::CONTROL && memory.len() >= layout.len();
        let is_fit = queue < layout.queues() && has_room && piece > 0;
        is_fit.then_some(Self {
            ring: DriverRing::new(memory, layout, queue)?,
            memory: memory.clone(),
            layout: *layout,
            queue,
            piece,
            slots: (0..layout.slots()).map(slot).collect(),
            waiting: VecDeque::with_capacity(layout.slots().into()),
            in_progress: 0,
            abandoned: 0,
        })
    }

    /// The memory of a slot.
    #[inline]
    pub(crate) fn slot_memory(&self, slot: u16) -> SlotMemory<'_> {
        SlotMemory { memory: &self.memory, place: self.layout.place(self.queue, slot) }
    }

    /// Whether a slot has no request.
    #[must_use]
    pub fn is_free(&self, slot: u16) -> bool {
        self.slots.get(usize::from(slot)).is_some_and(|slot| slot.state == State::Free)
    }

    /// Requests that a back-end may execute and no request of the disk waits for.
    #[must_use]
    pub fn abandoned(&self) -> usize {
        self.abandoned
    }

    /// Whether requests wait to be sent.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Requests that have begun and have no answer.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot.state, State::Waiting | State::Sent)).count()
    }

    /// Begins a request in a free slot, whose memory has the data of a write. Returns whether it has begun: the slot is
    /// free, and has room for the data.
    pub fn begin(&mut self, slot: u16, request: &F::Request, now: Instant) -> bool {
        let most = self.layout.buffer().min(self.piece.saturating_mul(self.layout.room().pieces));
        let room = if slot == self.layout.last() { 0 } else { most as u64 };
        let fits = F::data_len(request).is_none_or(|len| (1..=room).contains(&len));
        if !self.is_free(slot) || !fits || !self.describe(slot, request) {
            return false;
        }
        let own = &mut self.slots[usize::from(slot)];
        *own = Slot { state: State::Waiting, was_sent: false, since: now, answer: None };
        self.waiting.push_back(slot);
        true
    }

    /// Writes the parts of a request and its descriptors. Returns whether there is such a request.
    fn describe(&self, slot: u16, request: &F::Request) -> bool {
        let mut pieces = Pieces::new(self.piece);
        let is_there = F::describe(&self.slot_memory(slot), request, &mut pieces);
        if is_there {
            self.ring.describe(slot * self.layout.stride(), pieces.as_slice());
        }
        is_there
    }

    /// Sends all requests that wait; returns whether the back-end wants to be notified.
    pub fn send(&mut self) -> bool {
        while let Some(slot) = self.waiting.pop_front() {
            self.offer(slot);
        }
        self.ring.publish()
    }

    /// Sends the request of this slot before all others that wait; returns whether the back-end wants to be notified.
    pub fn send_first(&mut self, slot: u16) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| *waiting != slot);
        if self.waiting.len() < before {
            self.offer(slot);
        }
        self.ring.publish()
    }

    fn offer(&mut self, slot: u16) {
        let own = &mut self.slots[usize::from(slot)];
        (own.state, own.was_sent) = (State::Sent, true);
        self.in_progress += 1;
        // An answer that a back-end before this one has written is not that of this one.
        F::clear_answer(&self.slot_memory(slot));
        self.ring.offer(slot * self.layout.stride());
    }

    /// Whether the back-end has answered something.
    #[must_use]
    pub fn has_answers(&self) -> bool {
        self.ring.has_returned()
    }

    /// See [`DriverRing::ask_to_notify`].
    pub fn ask_to_notify(&self, notify: bool) -> bool {
        self.ring.ask_to_notify(notify)
    }

    /// Takes the answers of the back-end; calls `ended` for each slot that has its answer. Returns their number.
    ///
    /// # Errors
    /// [`Defect::Ring`]: the connection has to end.
    pub fn collect(&mut self, mut ended: impl FnMut(u16)) -> Result<usize, Defect> {
        let mut count = 0;
        while let Some(head) = self.ring.returned(self.in_progress)? {
            let (slot, descriptor) = (head / self.layout.stride(), head % self.layout.stride());
            let own = self.slots.get_mut(usize::from(slot)).filter(|_| descriptor == 0).ok_or(Defect::Ring)?;
            let was_awaited = match own.state {
                State::Sent => true,
                State::Abandoned => false,
                State::Free | State::Waiting => return Err(Defect::Ring),
            };
            own.state = State::Free;
            self.in_progress -= 1;
            if was_awaited {
                let place = self.layout.place(self.queue, slot);
                own.answer = Some(Answer::Ended(F::end(&SlotMemory { memory: &self.memory, place })));
                ended(slot);
            } else {
                self.abandoned -= 1;
            }
            count += 1;
        }
        Ok(count)
    }

    /// The answer to the request of a slot, once.
    pub fn take(&mut self, slot: u16) -> Option<Answer<F::End>> {
        self.slots.get_mut(usize::from(slot))?.answer.take()
    }

    /// The connection was lost: what was sent and not answered waits again, before what came later.
    pub fn lose(&mut self) {
        for slot in (0..self.layout.slots()).rev() {
            let own = &mut self.slots[usize::from(slot)];
            if own.state == State::Sent {
                own.state = State::Waiting;
                self.waiting.push_front(slot);
            }
        }
    }

    /// Another back-end has accepted the connection, and the one before it works on nothing any more.
    pub fn restart(&mut self) {
        self.lose();
        self.ring.reset();
        self.in_progress = 0;
        self.abandoned = 0;
        for own in &mut self.slots {
            own.was_sent = false;
            if own.state == State::Abandoned {
                own.state = State::Free;
            }
        }
    }

    /// Lets requests expire that have begun before `patience`; calls `ended` for each slot. Returns their number.
    pub fn expire(&mut self, now: Instant, patience: Duration, mut ended: impl FnMut(u16)) -> usize {
        let mut count = 0;
        for (slot, own) in (0..).zip(&mut self.slots) {
            let is_open = matches!(own.state, State::Waiting | State::Sent);
            if !is_open || now.since(own.since) < patience {
                continue;
            }
            if own.state == State::Waiting {
                self.waiting.retain(|waiting| *waiting != slot);
            }
            own.state = if own.was_sent { State::Abandoned } else { State::Free };
            self.abandoned += usize::from(own.was_sent);
            own.answer = Some(Answer::Expired);
            count += 1;
            ended(slot);
        }
        count
    }
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;

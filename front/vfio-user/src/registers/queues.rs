//! The queues of an enabled controller, and the interrupts that they raise.

use super::layout::STRIDE;
use crate::coalescing::Coalescer;
use crate::config::QUEUES;
use crate::queue::completion::{CQE_LEN, CompletionQueue, Cqe, SavedCompletionQueue};
use crate::queue::submission::{Found, SavedSubmissionQueue, SubmissionQueue};
use crate::queue::{Doorbell, ShadowDoorbell, distance};
use lunar_guest::memory::Memory;
use lunar_guest::window::Window;
use lunar_nvme::command::{FUSE, FUSE_FIRST, FUSE_SECOND};
use lunar_nvme::features::Coalescing;
use lunar_nvme::{Sqe, Status};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// Bytes of a page of guest memory: the only size that there is (CAP.MPSMIN and CAP.MPSMAX).
pub(super) const PAGE: u64 = 4096;

/// A command, or both halves of a fused operation, from a queue.
#[derive(Debug)]
pub struct Fetched {
    /// Identifier of the submission queue.
    pub queue: u16,
    /// The command, or the first half.
    pub first: Sqe,
    /// The second half; rare, so it is behind a pointer.
    pub second: Option<Box<Sqe>>,
}

/// How the host tells how far it came in its queues.
#[derive(Clone, Debug)]
pub(super) enum Doorbells {
    /// It writes registers.
    Registers,
    /// Doorbell Buffer Config: the guest addresses of the page of shadow doorbells and the page of event indices.
    Shadow([u64; 2]),
    /// The client has mapped a page in place of the registers.
    Mapped(Window),
}

/// All queues of a controller. By their identifiers; the admin queues are 0.
#[derive(Debug)]
pub(super) struct Queues {
    submissions: Vec<Option<SubmissionQueue>>,
    completions: Vec<Option<CompletionQueue>>,
    /// The submission queue that is looked at next: round robin.
    turn: usize,
    /// All queues have smaller identifiers.
    end: usize,
    /// Interrupt vectors to be raised.
    raised: Vec<u16>,
    coalescer: Coalescer,
}

/// A queue that cannot be read: the controller fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Broken;

impl Queues {
    /// No queues.
    pub(super) fn new() -> Self {
        Self {
            submissions: (0..QUEUES).map(|_| None).collect(),
            completions: (0..QUEUES).map(|_| None).collect(),
            turn: 0,
            end: 0,
            raised: Vec::new(),
            coalescer: Coalescer::default(),
        }
    }

    /// The admin queues: their addresses and entries.
    pub(super) fn with_admin((asq, submissions): (u64, u16), (acq, completions): (u64, u16)) -> Self {
        let mut queues = Self::new();
        let mut queue = CompletionQueue::new(acq, completions, Some(0));
        queue.users = 1;
        queues.completions[0] = Some(queue);
        queues.submissions[0] = Some(SubmissionQueue::new(0, 0, asq, submissions));
        queues
    }

    pub(super) fn submission(&mut self, id: u16) -> Option<&mut SubmissionQueue> {
        self.submissions.get_mut(usize::from(id))?.as_mut()
    }

    pub(super) fn completion(&mut self, id: u16) -> Option<&mut CompletionQueue> {
        self.completions.get_mut(usize::from(id))?.as_mut()
    }

    /// Adds an I/O completion queue.
    pub(super) fn add_completion(&mut self, id: u16, queue: CompletionQueue) -> Result<(), Status> {
        match self.completions.get_mut(usize::from(id)) {
            Some(place) if place.is_none() => *place = Some(queue),
            _ => return Err(Status::INVALID_QUEUE),
        }
        Ok(())
    }

    /// Adds an I/O submission queue.
    pub(super) fn add_submission(&mut self, queue: SubmissionQueue) -> Result<(), Status> {
        let id = usize::from(queue.id);
        if self.submissions.get(id).is_none_or(Option::is_some) {
            return Err(Status::INVALID_QUEUE);
        }
        self.completion(queue.completion_queue).ok_or(Status::INVALID_COMPLETION_QUEUE)?.users += 1;
        self.submissions[id] = Some(queue);
        Ok(())
    }

    /// Removes an I/O submission queue. None of its commands is in progress.
    pub(super) fn remove_submission(&mut self, id: u16) -> Result<(), Status> {
        let place = self.submissions.get_mut(usize::from(id)).filter(|_| id > 0);
        let queue = place.and_then(Option::take).ok_or(Status::INVALID_QUEUE)?;
        if let Some(completions) = self.completion(queue.completion_queue) {
            completions.users -= 1;
        }
        Ok(())
    }

    /// Removes an I/O completion queue.
    pub(super) fn remove_completion(&mut self, id: u16) -> Result<(), Status> {
        let place = self.completions.get_mut(usize::from(id)).filter(|_| id > 0);
        let place = place.filter(|place| place.is_some()).ok_or(Status::INVALID_QUEUE)?;
        if place.as_ref().is_some_and(|queue| queue.users > 0) {
            return Err(Status::INVALID_DELETION);
        }
        *place = None;
        Ok(())
    }

    /// Calls `what` with the number and the last value of each doorbell.
    pub(super) fn each_doorbell(&self, mut what: impl FnMut(usize, u16)) {
        for (id, queue) in self.submissions.iter().enumerate() {
            queue.iter().for_each(|queue| what(2 * id, queue.doorbell_value()));
        }
        for (id, queue) in self.completions.iter().enumerate() {
            queue.iter().for_each(|queue| what(2 * id + 1, queue.doorbell_value()));
        }
    }

    /// Finds the rings and the doorbells of all queues: guest memory, a queue or the doorbells have changed.
    pub(super) fn locate(&mut self, memory: &Memory, doorbells: &Doorbells) {
        let pages = match doorbells {
            Doorbells::Shadow(pages) => pages.map(|page| memory.window(page, PAGE as usize)),
            _ => [None, None],
        };
        let doorbell = |number: usize| match (doorbells, &pages) {
            (Doorbells::Mapped(page), _) => Doorbell::Mapped(page.clone(), number * STRIDE),
            // The admin queues have no shadow doorbells.
            (Doorbells::Shadow(_), [Some(doorbells), Some(events)]) if number > 1 => {
                Doorbell::Shadow(ShadowDoorbell::new(doorbells, events, number))
            }
            _ => Doorbell::Register,
        };
        let end = self.submissions.iter().rposition(Option::is_some);
        self.end = self.completions.iter().rposition(Option::is_some).max(end).map_or(0, |last| last + 1);
        for (id, queue) in self.submissions.iter_mut().enumerate() {
            if let Some(queue) = queue {
                queue.locate(memory.window(queue.address, queue.bytes()), doorbell(2 * id));
            }
        }
        for (id, queue) in self.completions.iter_mut().enumerate() {
            if let Some(queue) = queue {
                queue.locate(memory.window(queue.address, queue.bytes()), doorbell(2 * id + 1));
            }
        }
    }

    /// The next command that may begin, from all queues in turn.
    pub(super) fn fetch(&mut self) -> Result<Option<Fetched>, Broken> {
        for _ in 0..self.end {
            let at = if self.turn < self.end { self.turn } else { 0 };
            self.turn = at + 1;
            let Some(queue) = self.submissions[at].as_mut().filter(|queue| has_room(&self.completions, queue)) else {
                continue;
            };
            if let Some((first, second)) = take(queue)? {
                let completions = usize::from(queue.completion_queue);
                if let Some(completions) = self.completions.get(completions).and_then(Option::as_ref) {
                    completions.expect_entry();
                }
                // There are fewer queues than a u16 counts.
                return Ok(Some(Fetched { queue: at as u16, first, second }));
            }
        }
        Ok(None)
    }

    /// Completes a command. Returns whether anything was written to guest memory.
    pub(super) fn complete(&mut self, queue: u16, cid: u16, status: Status, result: u64, memory: &Memory) -> bool {
        let Some(submissions) = self.submission(queue) else { return false };
        submissions.in_progress = submissions.in_progress.saturating_sub(1);
        let cqe = Cqe {
            result: result.into(),
            head: submissions.head().into(),
            queue: queue.into(),
            cid: cid.into(),
            status: status.field().into(),
        };
        let id = submissions.completion_queue;
        self.flush_queue(id.into(), Some(cqe), memory)
    }

    /// Writes the completions that waited for room and have it now. Returns whether any was written.
    pub(super) fn flush(&mut self, memory: &Memory) -> bool {
        let mut has_written = false;
        for id in 0..self.end {
            if self.completions[id].as_ref().is_some_and(CompletionQueue::has_work) {
                has_written |= self.flush_queue(id, None, memory);
            }
        }
        has_written
    }

    fn flush_queue(&mut self, id: usize, more: Option<Cqe>, memory: &Memory) -> bool {
        let Some(queue) = self.completions.get_mut(id).and_then(Option::as_mut) else { return false };
        let from = queue.tail();
        let (has_written, vector) = (queue.flush(more), queue.vector);
        if !has_written {
            return false;
        }
        if memory.is_logged() {
            mark_entries(queue, from, memory);
        }
        let count = distance(from, queue.tail(), queue.entries());
        if let Some(vector) = vector
            && (id == 0 || !self.coalescer.applies() || !self.coalescer.defer(vector, count.into()))
        {
            self.raise(vector);
        }
        true
    }

    /// Goes by the coalescing features that the host has set. Interrupts that waited under other terms are raised.
    pub(super) fn set_coalescing(&mut self, terms: Coalescing) {
        if self.coalescer.set(terms) {
            self.raise_deferred();
        }
    }

    fn raise(&mut self, vector: u16) {
        if !self.raised.contains(&vector) {
            self.raised.push(vector);
        }
        self.coalescer.raised(vector);
    }

    /// The vectors of queues that have something to read.
    fn unread(&self) -> impl Iterator<Item = u16> + '_ {
        self.completions[..self.end]
            .iter()
            .flatten()
            .filter(|queue| queue.has_unread())
            .filter_map(|queue| queue.vector)
    }

    /// Raises the interrupts of all queues that have something to read.
    pub(super) fn raise_unread(&mut self) {
        let unread: Vec<u16> = self.unread().collect();
        unread.into_iter().for_each(|vector| self.raise(vector));
    }

    /// How long an interrupt waits for more completions; `None`: none waits.
    pub(super) fn coalescing_time(&self) -> Option<Duration> {
        self.coalescer.time()
    }

    /// Raises the interrupts that waited for more completions, of queues that still have something to read.
    pub(super) fn raise_deferred(&mut self) {
        let deferred = self.coalescer.take();
        let unread: Vec<u16> = self.unread().filter(|vector| deferred.contains(vector)).collect();
        unread.into_iter().for_each(|vector| self.raise(vector));
    }

    /// The interrupt vectors to be raised, once.
    pub(super) fn take_raised(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.raised)
    }

    /// Whether there is a command that may begin, or room for a completion that waits for it.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        let mut submissions = self.submissions[..self.end].iter().flatten();
        submissions.any(|queue| queue.has_work() && has_room(&self.completions, queue))
            || self.completions[..self.end].iter().flatten().any(CompletionQueue::has_work)
    }

    /// Asks the host to write registers from now on. Returns whether there is nothing to do yet.
    pub(super) fn arm(&mut self) -> bool {
        self.submissions[..self.end].iter().flatten().for_each(SubmissionQueue::arm);
        self.completions[..self.end].iter_mut().flatten().for_each(CompletionQueue::arm);
        // The host writes its shadow doorbell, then reads the event index. Here it is the other way round: with a full
        // fence on both sides, one of both sees what the other has written.
        fence(Ordering::SeqCst);
        !self.has_work()
    }

    /// The queues as a record has them.
    pub(super) fn save(&self) -> (Vec<SavedSubmissionQueue>, Vec<(SavedCompletionQueue, Vec<Cqe>)>) {
        let completions = (0..).zip(&self.completions);
        (
            self.submissions.iter().flatten().map(SubmissionQueue::save).collect(),
            completions.filter_map(|(id, queue)| queue.as_ref().map(|queue| queue.save(id))).collect(),
        )
    }
}

/// Records that the entries from `from` to the tail were written.
fn mark_entries(queue: &CompletionQueue, from: u16, memory: &Memory) {
    let entry = CQE_LEN as u64;
    let mark = |from: u16, to: u16| {
        // A queue whose memory never was there may extend beyond all addresses.
        if let Some(at) = queue.address.checked_add(u64::from(from) * entry) {
            memory.mark(at, u64::from(to.saturating_sub(from)) * entry);
        }
    };
    if from < queue.tail() {
        mark(from, queue.tail());
    } else {
        // Round the end of the ring.
        mark(from, queue.entries());
        mark(0, queue.tail());
    }
}

/// Whether the commands of a queue have room for their completions. While completions wait for room nothing is begun:
/// otherwise they would pile up without end for a host that reads none.
fn has_room(completions: &[Option<CompletionQueue>], queue: &SubmissionQueue) -> bool {
    let completions = completions.get(usize::from(queue.completion_queue)).and_then(Option::as_ref);
    completions.is_none_or(|queue| !queue.has_deferred())
}

type Halves = (Sqe, Option<Box<Sqe>>);

/// Takes the next command of a queue; a fused operation only when both halves are there.
fn take(queue: &mut SubmissionQueue) -> Result<Option<Halves>, Broken> {
    if !queue.has_work() {
        return Ok(None);
    }
    let first = match queue.first() {
        Found::Command(sqe) => sqe,
        Found::Nothing => return Ok(None),
        Found::Broken => return Err(Broken),
    };
    if first.flags & FUSE != FUSE_FIRST || queue.id == 0 {
        queue.advance(1);
        return Ok(Some((first, None)));
    }
    match queue.second() {
        Found::Command(second) if second.flags & FUSE == FUSE_SECOND => {
            queue.advance(2);
            Ok(Some((first, Some(Box::new(second)))))
        }
        Found::Command(_) => {
            queue.advance(1);
            Ok(Some((first, None)))
        }
        Found::Nothing => {
            queue.await_second();
            Ok(None)
        }
        Found::Broken => Err(Broken),
    }
}

//! A controller as its guest sees it: registers, doorbells, and the queues in its memory (NVMe Base 2.0 3.1.3). A value
//! without I/O: accesses and completions go in, commands and interrupts come out.

pub mod saved;

use crate::coalescing::Waiting;
use crate::config::{BURST, QUEUES, VECTORS};
use crate::queue::{CQE_LEN, Completion, Completions, Doorbell, Found, Shadow, Submission, distance};
use lunar_core::mem::Region;
use lunar_guest::memory::Memory;
use lunar_guest::window::Window;
use lunar_nvme::command::{FUSE, FUSE_FIRST, FUSE_SECOND};
use lunar_nvme::controller::{QUEUE_ENTRIES_MAX, property};
use lunar_nvme::{Controller, Sqe, Status};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

pub use saved::Saved;

/// Bytes of the registers and doorbells: BAR 0.
pub const BAR_LEN: u32 = 0x4000;
/// Where the doorbells are in it.
pub const DOORBELLS: u32 = 0x1000;
/// Bytes of the page of doorbells.
pub const DOORBELLS_LEN: usize = 0x1000;
/// Bytes of a doorbell (CAP.DSTRD is zero).
const STRIDE: usize = 4;

/// Registers that only queues in memory have.
mod register {
    pub(super) const INTERRUPT_MASK: u32 = 0x0c;
    pub(super) const INTERRUPT_UNMASK: u32 = 0x10;
    /// CSTS is the higher half of what begins here.
    pub(super) const STATUS: u32 = 0x18;
    pub(super) const ADMIN_ENTRIES: u32 = 0x24;
    pub(super) const ADMIN_SUBMISSIONS: u32 = 0x28;
    pub(super) const ADMIN_COMPLETIONS: u32 = 0x30;
}

/// CSTS.CFS.
const FATAL: u32 = 0x02;
/// Admin Queue Attributes: entries of one of the queues, 0-based.
const ADMIN_ENTRIES: u32 = 0xfff;
/// Create I/O Queue: dword 11: it lies in one piece.
const CONTIGUOUS: u32 = 0x01;
/// Create I/O Completion Queue: dword 11: it raises interrupts.
const INTERRUPTS: u32 = 0x02;
/// Queues lie on the boundary of a page.
const PAGE: u64 = 4096;

const _: () = assert!(QUEUES * 2 * STRIDE <= DOORBELLS_LEN, "all doorbells lie in one page");

/// What an access leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing more.
    None,
    /// CC was written: see [`NvmeRegisters::wanted`].
    Configure,
    /// There may be commands.
    Rung,
}

/// A command, or both halves of a fused operation, from a queue.
#[derive(Debug)]
pub struct Fetched {
    /// Which queue.
    pub queue: u16,
    /// The command.
    pub first: Sqe,
    /// The second half; seldom, and so behind a pointer.
    pub second: Option<Box<Sqe>>,
}

/// A controller.
#[derive(Debug)]
pub struct NvmeRegisters {
    /// The guest's memory.
    pub memory: Memory,
    controller: Arc<Controller>,
    wanted: u32,
    fatal: bool,
    interrupt_mask: u32,
    admin_entries: u32,
    admin_submissions: u64,
    admin_completions: u64,
    submissions: Vec<Option<Submission>>,
    completions: Vec<Option<Completions>>,
    shadow: Option<[u64; 2]>,
    /// The page of doorbells, if the client has it mapped.
    mapped: Option<Window>,
    /// Vectors that shall be raised.
    raised: Vec<u16>,
    /// Vectors that wait for more completions.
    waiting: Waiting,
    /// The queue that is looked at next: all have their turn.
    turn: usize,
    /// No queue has this identifier, or a larger one.
    end: usize,
}

impl NvmeRegisters {
    /// A controller that is not enabled.
    #[must_use]
    pub fn new(controller: Arc<Controller>) -> Self {
        Self {
            memory: Memory::default(),
            controller,
            wanted: 0,
            fatal: false,
            interrupt_mask: 0,
            admin_entries: 0,
            admin_submissions: 0,
            admin_completions: 0,
            submissions: (0..QUEUES).map(|_| None).collect(),
            completions: (0..QUEUES).map(|_| None).collect(),
            shadow: None,
            mapped: None,
            raised: Vec::new(),
            waiting: Waiting::default(),
            turn: 0,
            end: 0,
        }
    }

    /// The client maps the page of doorbells, `page`.
    pub fn map_doorbells(&mut self, page: &Region, at: usize) {
        self.mapped = Window::new(page, at, DOORBELLS_LEN);
        self.lie();
    }

    /// Whether the client has the doorbells mapped: nobody tells when they are rung.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.mapped.is_some()
    }

    /// The value of CC that the guest has written last.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        self.wanted
    }

    /// It cannot go on (CSTS.CFS).
    pub fn fail(&mut self) {
        self.fatal = true;
    }

    /// Eight bytes of registers, from a boundary of eight on.
    fn registers(&self, at: u32) -> u64 {
        let property = |offset, eight| self.controller.property(offset, eight).unwrap_or(0);
        let pair = |low: u64, high: u64| low | high << 32;
        match at {
            property::CAP => property(property::CAP, true),
            property::VS => pair(property(property::VS, false), self.interrupt_mask.into()),
            register::INTERRUPT_UNMASK => pair(self.interrupt_mask.into(), self.wanted.into()),
            register::STATUS => pair(0, property(property::CSTS, false) | if self.fatal { FATAL.into() } else { 0 }),
            property::NSSR => pair(0, self.admin_entries.into()),
            register::ADMIN_SUBMISSIONS => self.admin_submissions,
            register::ADMIN_COMPLETIONS => self.admin_completions,
            _ => 0,
        }
    }

    /// Reads BAR 0. Doorbells read as zeroes.
    pub fn read(&self, offset: u32, into: &mut [u8]) {
        for (at, byte) in (u64::from(offset)..).zip(into) {
            // What lies beyond the registers is zero.
            let at = u32::try_from(at).unwrap_or(DOORBELLS);
            *byte = self.registers(at & !7).to_le_bytes()[(at & 7) as usize];
        }
    }

    /// Writes BAR 0: whole words, of four bytes or eight. Others are not heard.
    pub fn write(&mut self, offset: u32, from: &[u8]) -> Effect {
        let word = |at: usize| from.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes);
        let Some(low) = word(0).filter(|_| offset.is_multiple_of(4)) else { return Effect::None };
        let effect = match (from.len(), offset) {
            (4, DOORBELLS..BAR_LEN) => self.ring((offset - DOORBELLS) as usize / STRIDE, low),
            (4 | 8, 0..DOORBELLS) => self.write_word(offset, low),
            _ => return Effect::None,
        };
        match word(4) {
            Some(high) => match self.write_word(offset + 4, high) {
                Effect::None => effect,
                other => other,
            },
            None => effect,
        }
    }

    fn write_word(&mut self, offset: u32, value: u32) -> Effect {
        let low = |all: u64| all >> 32 << 32 | u64::from(value);
        let high = |all: u64| all << 32 >> 32 | u64::from(value) << 32;
        match offset {
            register::INTERRUPT_MASK => self.interrupt_mask |= value,
            register::INTERRUPT_UNMASK => {
                self.interrupt_mask &= !value;
                self.raise_unread();
                return Effect::Rung;
            }
            property::CC => {
                self.wanted = value;
                return Effect::Configure;
            }
            register::ADMIN_ENTRIES => self.admin_entries = value & (ADMIN_ENTRIES << 16 | ADMIN_ENTRIES),
            0x28 => self.admin_submissions = low(self.admin_submissions),
            0x2c => self.admin_submissions = high(self.admin_submissions),
            0x30 => self.admin_completions = low(self.admin_completions),
            0x34 => self.admin_completions = high(self.admin_completions),
            _ => {}
        }
        Effect::None
    }

    /// A doorbell is rung. One of a queue that is not there, or with nonsense, is not heard.
    fn ring(&mut self, number: usize, value: u32) -> Effect {
        let Ok(value) = u16::try_from(value) else { return Effect::None };
        if let Some(page) = &self.mapped {
            // Who looks there finds it.
            let _ = page.store(number * STRIDE, value.into());
        }
        let heard = match (number / 2, number % 2) {
            (queue, 0) => self.submission(queue).is_some_and(|queue| queue.ring(value)),
            (queue, _) => self.completion(queue).is_some_and(|queue| queue.ring(value)),
        };
        if heard { Effect::Rung } else { Effect::None }
    }

    fn submission(&mut self, id: usize) -> Option<&mut Submission> {
        self.submissions.get_mut(id)?.as_mut()
    }

    fn completion(&mut self, id: usize) -> Option<&mut Completions> {
        self.completions.get_mut(id)?.as_mut()
    }

    /// Makes the admin queues, as the registers say.
    ///
    /// # Errors
    /// When they cannot be so.
    pub fn enable(&mut self) -> Result<(), Status> {
        let entries = |shift: u32| (self.admin_entries >> shift & ADMIN_ENTRIES) as u16 + 1;
        let (submissions, completions) = (entries(0), entries(16));
        let aligned = (self.admin_submissions | self.admin_completions).is_multiple_of(PAGE);
        if submissions < 2 || completions < 2 || !aligned {
            return Err(Status::INVALID_FIELD);
        }
        let mut queue = Completions::new(self.admin_completions, completions, Some(0));
        queue.users = 1;
        self.completions[0] = Some(queue);
        self.submissions[0] = Some(Submission::new(0, 0, self.admin_submissions, submissions));
        self.fatal = false;
        self.heed();
        self.lie();
        Ok(())
    }

    /// All queues are gone, as after a reset of the controller.
    pub fn disable(&mut self) {
        self.submissions.iter_mut().for_each(|queue| *queue = None);
        self.completions.iter_mut().for_each(|queue| *queue = None);
        self.raised.clear();
        self.waiting = Waiting::default();
        (self.shadow, self.fatal, self.interrupt_mask, self.end) = (None, false, 0, 0);
        if let Some(page) = &self.mapped {
            // A queue that is made anew begins at its start.
            let _ = page.write(0, &[0; DOORBELLS_LEN]);
        }
    }

    /// All registers are as at the beginning, as after a reset of the device.
    pub fn reset(&mut self) {
        self.disable();
        (self.wanted, self.admin_entries, self.admin_submissions, self.admin_completions) = (0, 0, 0, 0);
    }

    /// Finds everything again that lies in the guest's memory: that has changed, or where it lies has.
    pub fn lie(&mut self) {
        let memory = &self.memory;
        let pages = self.shadow.map(|pages| pages.map(|page| memory.window(page, PAGE as usize)));
        let doorbell = |number: usize| match (&self.mapped, &pages) {
            (Some(page), _) => Doorbell::Mapped(page.clone(), number * STRIDE),
            // The admin queue's are always rung.
            (None, Some([Some(doorbells), Some(events)])) if number > 1 => {
                Doorbell::Shadow(Shadow::new(doorbells, events, number))
            }
            _ => Doorbell::Told,
        };
        let end = self.submissions.iter().rposition(Option::is_some);
        self.end = self.completions.iter().rposition(Option::is_some).max(end).map_or(0, |last| last + 1);
        for (id, queue) in self.submissions.iter_mut().enumerate() {
            if let Some(queue) = queue {
                queue.lie(memory.window(queue.address, queue.len()), doorbell(2 * id));
            }
        }
        for (id, queue) in self.completions.iter_mut().enumerate() {
            if let Some(queue) = queue {
                queue.lie(memory.window(queue.address, queue.len()), doorbell(2 * id + 1));
            }
        }
    }

    /// Lets go of the guest's memory, all of it.
    pub fn forget_memory(&mut self) -> Vec<Region> {
        let regions = self.memory.clear();
        self.lie();
        regions
    }

    /// Create I/O Completion Queue (NVMe Base 2.0 5.4).
    ///
    /// # Errors
    /// How the command ends.
    pub fn create_completions(&mut self, sqe: &Sqe, granted: u16) -> Result<(), Status> {
        let (id, entries, address) = created(sqe)?;
        if id == 0 || id > granted || self.completion(id.into()).is_some() {
            return Err(Status::INVALID_QUEUE);
        }
        let vector = (sqe.cdw(11) & INTERRUPTS != 0).then_some((sqe.cdw(11) >> 16) as u16);
        if vector.is_some_and(|vector| vector >= VECTORS) {
            return Err(Status::INVALID_VECTOR);
        }
        let queue = Completions::new(address, entries, vector);
        self.memory.window(address, queue.len()).ok_or(Status::TRANSFER_ERROR)?;
        self.completions[usize::from(id)] = Some(queue);
        self.begin_at_start(2 * usize::from(id) + 1);
        self.lie();
        Ok(())
    }

    /// Create I/O Submission Queue (5.5), as far as memory goes; tells its identifier and its entries.
    ///
    /// # Errors
    /// How the command ends.
    pub fn create_submissions(&mut self, sqe: &Sqe) -> Result<(u16, u16), Status> {
        let (id, entries, address) = created(sqe)?;
        let completions = (sqe.cdw(11) >> 16) as u16;
        if id == 0 || usize::from(id) >= QUEUES || self.submission(id.into()).is_some() {
            return Err(Status::INVALID_QUEUE);
        }
        let target = self.completion(completions.into()).filter(|_| completions > 0);
        target.ok_or(Status::INVALID_COMPLETION_QUEUE)?.users += 1;
        let queue = Submission::new(id, completions, address, entries);
        if self.memory.window(address, queue.len()).is_none() {
            self.leave(completions);
            return Err(Status::TRANSFER_ERROR);
        }
        self.submissions[usize::from(id)] = Some(queue);
        self.begin_at_start(2 * usize::from(id));
        self.lie();
        Ok((id, entries))
    }

    /// A queue that is made anew begins at its start, whatever its doorbell showed last: hosts that have mapped it do
    /// not write it before they ring.
    fn begin_at_start(&self, doorbell: usize) {
        if let Some(page) = &self.mapped {
            let _ = page.write(doorbell * STRIDE, &[0; STRIDE]);
        }
    }

    fn leave(&mut self, completions: u16) {
        if let Some(queue) = self.completion(completions.into()) {
            queue.users -= 1;
        }
    }

    /// Delete I/O Submission Queue (5.7): none of its commands is under way any more.
    ///
    /// # Errors
    /// How the command ends.
    pub fn delete_submissions(&mut self, id: u16) -> Result<(), Status> {
        let queue = self.submissions.get_mut(usize::from(id)).filter(|_| id > 0).and_then(Option::take);
        let queue = queue.ok_or(Status::INVALID_QUEUE)?;
        self.leave(queue.completions);
        Ok(())
    }

    /// Whether there is such an I/O submission queue.
    #[must_use]
    pub fn has_submissions(&self, id: u16) -> bool {
        id > 0 && self.submissions.get(usize::from(id)).is_some_and(Option::is_some)
    }

    /// Delete I/O Completion Queue (5.6).
    ///
    /// # Errors
    /// How the command ends.
    pub fn delete_completions(&mut self, id: u16) -> Result<(), Status> {
        let queue = self.completion(id.into()).filter(|_| id > 0).ok_or(Status::INVALID_QUEUE)?;
        if queue.users > 0 {
            return Err(Status::INVALID_DELETION);
        }
        self.completions[usize::from(id)] = None;
        Ok(())
    }

    /// Doorbell Buffer Config (5.8).
    ///
    /// # Errors
    /// How the command ends.
    pub fn set_shadow(&mut self, sqe: &Sqe) -> Result<(), Status> {
        let pages = crate::pointer::pointers(sqe);
        if self.is_mapped() {
            return Err(Status::INVALID_OPCODE);
        }
        if pages.iter().any(|page| !page.is_multiple_of(PAGE)) {
            return Err(Status::PRP_OFFSET);
        }
        let windows = pages.map(|page| self.memory.window(page, PAGE as usize));
        let [Some(doorbells), Some(events)] = &windows else { return Err(Status::TRANSFER_ERROR) };
        // Both pages begin with what was told until now.
        for (id, queue) in self.submissions.iter().enumerate().skip(1) {
            let Some(queue) = queue else { continue };
            let told = u32::from(queue.told_tail());
            let _ = doorbells.store(2 * id * STRIDE, told) && events.store(2 * id * STRIDE, told);
        }
        for (id, queue) in self.completions.iter().enumerate().skip(1) {
            let Some(queue) = queue else { continue };
            let told = u32::from(queue.told_head());
            let _ = doorbells.store((2 * id + 1) * STRIDE, told) && events.store((2 * id + 1) * STRIDE, told);
        }
        pages.iter().for_each(|page| self.memory.mark(*page, PAGE));
        self.shadow = Some(pages);
        self.lie();
        Ok(())
    }

    /// The next command that may begin, from all queues in turn. A queue that cannot be read is fatal.
    pub fn fetch(&mut self) -> Option<Fetched> {
        for _ in 0..self.end {
            let at = if self.turn < self.end { self.turn } else { 0 };
            self.turn = at + 1;
            let Some(queue) = self.submissions[at].as_mut().filter(|queue| has_room(&self.completions, queue)) else {
                continue;
            };
            match take(queue) {
                Ok(Some((first, second))) => {
                    let completions = usize::from(queue.completions);
                    if let Some(completions) = self.completions.get(completions).and_then(Option::as_ref) {
                        completions.expect_entry();
                    }
                    self.mark_events();
                    return Some(Fetched { queue: at as u16, first, second });
                }
                Ok(None) => {}
                Err(Broken) => self.fatal = true,
            }
            if self.fatal {
                return None;
            }
        }
        None
    }

    /// As many as have their turn at once.
    #[must_use]
    pub fn burst(&self) -> usize {
        BURST
    }

    /// A command has ended.
    pub fn complete(&mut self, queue: u16, cid: u16, status: Status, result: u64) {
        let Some(submissions) = self.submissions.get_mut(usize::from(queue)).and_then(Option::as_mut) else { return };
        submissions.under_way = submissions.under_way.saturating_sub(1);
        let completion = Completion {
            result: result.into(),
            head: submissions.head().into(),
            queue: queue.into(),
            cid: cid.into(),
            status: status.field().into(),
        };
        let id = submissions.completions;
        self.flush_queue(id.into(), Some(completion));
        if queue == 0 {
            // It may have set a feature.
            self.heed();
        }
    }

    /// Goes by the features that its host has set. What waited on other terms does so no longer.
    pub(crate) fn heed(&mut self) {
        if self.waiting.set(self.controller.values(|values| values.coalescing())) {
            self.raise_waiting();
        }
    }

    fn flush_queue(&mut self, id: usize, more: Option<Completion>) {
        let Some(queue) = self.completions.get_mut(id).and_then(Option::as_mut) else { return };
        let from = queue.tail();
        let (seen, vector) = (queue.flush(more), queue.vector);
        let count = distance(from, queue.tail(), queue.entries());
        if seen && self.memory.is_logged() {
            let (to, entry) = (queue.tail(), CQE_LEN as u64);
            let mark = |from: u16, to: u16| {
                let at = queue.address + u64::from(from) * entry;
                self.memory.mark(at, u64::from(to.saturating_sub(from)) * entry);
            };
            if from < to {
                mark(from, to);
            } else {
                // Round its end.
                mark(from, queue.entries());
                mark(0, to);
            }
            self.mark_events();
        }
        let Some(vector) = vector.filter(|_| seen) else { return };
        if id == 0 || !self.waiting.applies() || !self.waiting.wait(vector, count.into()) {
            self.raise(vector);
        }
    }

    /// The page of events was written to, if there is one.
    fn mark_events(&self) {
        if let Some([_, events]) = self.shadow.filter(|_| self.memory.is_logged()) {
            self.memory.mark(events, PAGE);
        }
    }

    fn raise(&mut self, vector: u16) {
        if !self.raised.contains(&vector) {
            self.raised.push(vector);
        }
        self.waiting.raised(vector);
    }

    /// Completes what waited for room.
    pub fn flush(&mut self) {
        for at in 0..self.end {
            if self.completion(at).is_some_and(|queue| queue.is_ripe()) {
                self.flush_queue(at, None);
            }
        }
    }

    /// Raises the interrupts of all queues that have something to read.
    pub fn raise_unread(&mut self) {
        for at in 0..self.end {
            let unread = self.completion(at).filter(|queue| queue.has_unread()).and_then(|queue| queue.vector);
            unread.into_iter().for_each(|vector| self.raise(vector));
        }
    }

    /// How long an interrupt waits for more completions at most; `None`: none does.
    #[must_use]
    pub fn patience(&self) -> Option<Duration> {
        self.waiting.patience()
    }

    /// Raises the interrupts that have waited, of queues that have something to read.
    pub fn raise_waiting(&mut self) {
        let waited = self.waiting.take();
        for at in 0..self.end {
            let unread = self.completion(at).filter(|queue| queue.has_unread()).and_then(|queue| queue.vector);
            unread.filter(|vector| waited.contains(vector)).into_iter().for_each(|vector| self.raise(vector));
        }
    }

    /// Interrupts that shall be raised, which are told once.
    #[must_use]
    pub fn take_raised(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.raised)
    }

    /// Whether there are any.
    #[must_use]
    pub fn has_raised(&self) -> bool {
        !self.raised.is_empty()
    }

    /// Whether INTx is masked by the guest.
    #[must_use]
    pub fn is_masked(&self) -> bool {
        self.interrupt_mask & 1 != 0
    }

    /// Whether there is a command that may begin, or room for a completion that waits.
    #[must_use]
    pub fn is_ripe(&self) -> bool {
        !self.fatal
            && (self.submissions[..self.end]
                .iter()
                .flatten()
                .any(|queue| queue.is_ripe() && has_room(&self.completions, queue))
                || self.completions[..self.end].iter().flatten().any(Completions::is_ripe))
    }

    /// The guest rings from now on; `false`: there is something already.
    #[must_use]
    pub fn arm(&mut self) -> bool {
        self.submissions[..self.end].iter().flatten().for_each(Submission::arm);
        self.completions[..self.end].iter_mut().flatten().for_each(Completions::arm);
        self.mark_events();
        // The guest writes its word, then looks whether to ring; here it is the other way round: one of both sees.
        fence(Ordering::SeqCst);
        !self.is_ripe()
    }
}

/// Whether the commands of a queue have somewhere to end: while completions wait for room nothing is begun, or a host
/// that reads none would have them pile up without end.
fn has_room(completions: &[Option<Completions>], queue: &Submission) -> bool {
    completions.get(usize::from(queue.completions)).and_then(Option::as_ref).is_none_or(|queue| !queue.is_held())
}

/// A queue that cannot be read.
struct Broken;

type Halves = (Sqe, Option<Box<Sqe>>);

/// Takes the next command out of a queue; a fused operation only when both of its halves are there.
fn take(queue: &mut Submission) -> Result<Option<Halves>, Broken> {
    if !queue.is_ripe() {
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
            queue.wait();
            Ok(None)
        }
        Found::Broken => Err(Broken),
    }
}

/// What both sorts of queues are made from: identifier, entries, address.
fn created(sqe: &Sqe) -> Result<(u16, u16, u64), Status> {
    let [address, _] = crate::pointer::pointers(sqe);
    let entries = (sqe.cdw(10) >> 16) + 1;
    let entries = u16::try_from(entries).ok().filter(|entries| (2..=QUEUE_ENTRIES_MAX).contains(entries));
    if sqe.cdw(11) & CONTIGUOUS == 0 {
        return Err(Status::INVALID_FIELD);
    }
    if !address.is_multiple_of(PAGE) {
        return Err(Status::PRP_OFFSET);
    }
    Ok((sqe.cdw(10) as u16, entries.ok_or(Status::QUEUE_SIZE)?, address))
}

#[cfg(test)]
#[path = "registers_tests.rs"]
mod tests;

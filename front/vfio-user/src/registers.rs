//! A controller as its guest sees it: registers, doorbells, and the queues in guest memory. A value without I/O:
//! accesses and completions go in, commands and interrupts come out.

pub mod layout;
mod queues;
pub mod saved;

use crate::queue::completion::CompletionQueue;
use crate::queue::submission::SubmissionQueue;
use layout::{Layout, Register, STRIDE};
use lunar_core::mem::Region;
use lunar_guest::memory::Memory;
use lunar_guest::window::Window;
use lunar_nvme::controller::property;
use lunar_nvme::event::Event;
use lunar_nvme::plan::QueueChange;
use lunar_nvme::{Controller, Status};
use queues::{Broken, Doorbells, PAGE, Queues};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

pub use layout::{BAR_LEN, DOORBELLS, DOORBELLS_LEN};
pub use queues::Fetched;
pub use saved::SavedRegisters;

/// CSTS.CFS.
const FATAL: u32 = 0x02;
/// AQA: entries of one of the admin queues, 0-based.
const ADMIN_ENTRIES: u32 = 0xfff;

/// The effect of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing more.
    None,
    /// CC was written: see [`NvmeRegisters::configuration`].
    Configure,
    /// A queue may have something to do.
    Notified,
}

/// The state of a controller besides its registers.
#[derive(Debug)]
enum State {
    /// No queues: CC.EN is clear, or takes effect later.
    Disabled,
    /// Commands are fetched and completed.
    Enabled(Queues),
    /// CSTS.CFS is set until the guest resets the controller: nothing is fetched. Commands that were fetched are
    /// completed.
    Failed(Queues),
}

/// The registers of a controller, and the queues behind them.
#[derive(Debug)]
pub struct NvmeRegisters {
    /// Guest memory. After a change of it: [`NvmeRegisters::locate`].
    pub memory: Memory,
    controller: Arc<Controller>,
    /// CC as it was written last: the controller has what is in force.
    cc: u32,
    /// INTMS, INTMC.
    interrupt_mask: u32,
    aqa: u32,
    asq: u64,
    acq: u64,
    doorbells: Doorbells,
    state: State,
}

impl NvmeRegisters {
    /// The registers of a controller that is not enabled.
    #[must_use]
    pub fn new(controller: Arc<Controller>) -> Self {
        Self {
            memory: Memory::default(),
            controller,
            cc: 0,
            interrupt_mask: 0,
            aqa: 0,
            asq: 0,
            acq: 0,
            doorbells: Doorbells::Registers,
            state: State::Disabled,
        }
    }

    fn queues(&self) -> Option<&Queues> {
        match &self.state {
            State::Disabled => None,
            State::Enabled(queues) | State::Failed(queues) => Some(queues),
        }
    }

    fn queues_mut(&mut self) -> Option<&mut Queues> {
        match &mut self.state {
            State::Disabled => None,
            State::Enabled(queues) | State::Failed(queues) => Some(queues),
        }
    }

    /// The client maps a page in place of the doorbells: [`DOORBELLS_LEN`] bytes of `region` from `at` on.
    pub fn map_doorbells(&mut self, region: &Region, at: usize) {
        let Some(page) = Window::new(region, at, DOORBELLS_LEN) else { return };
        self.show_doorbells(&page);
        self.doorbells = Doorbells::Mapped(page);
        self.locate();
    }

    /// Writes the doorbells into a page that replaces them: the client finds them as they are.
    fn show_doorbells(&self, page: &Window) {
        // The page is our own, so it is writable.
        let _ = page.write(0, &[0; DOORBELLS_LEN]);
        if let Some(queues) = self.queues() {
            queues.each_doorbell(|number, value| _ = page.store(number * STRIDE, value.into()));
        }
    }

    /// Whether the client has mapped the doorbells: writes to them cause no notification.
    #[must_use]
    pub fn has_mapped_doorbells(&self) -> bool {
        matches!(self.doorbells, Doorbells::Mapped(_))
    }

    /// CC as the guest has written it last.
    #[must_use]
    pub fn configuration(&self) -> u32 {
        self.cc
    }

    /// The controller cannot go on (CSTS.CFS).
    pub fn fail(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Disabled) {
            State::Disabled => State::Failed(Queues::new()),
            State::Enabled(queues) | State::Failed(queues) => State::Failed(queues),
        };
    }

    /// Whether the controller cannot go on (CSTS.CFS).
    fn has_failed(&self) -> bool {
        let status = self.controller.property(property::CSTS, false).unwrap_or(0);
        matches!(self.state, State::Failed(_)) || status & u64::from(FATAL) != 0
    }

    fn layout(&self) -> Layout {
        let property = |offset, is_long| self.controller.property(offset, is_long).unwrap_or(0);
        // Version and status have 32 bits.
        let status = property(property::CSTS, false) as u32 | if self.has_failed() { FATAL } else { 0 };
        let mut layout = Layout::zeroed();
        layout.cap = property(property::CAP, true).into();
        layout.vs = (property(property::VS, false) as u32).into();
        (layout.intms, layout.intmc) = (self.interrupt_mask.into(), self.interrupt_mask.into());
        (layout.cc, layout.csts) = (self.cc.into(), status.into());
        (layout.aqa, layout.asq, layout.acq) = (self.aqa.into(), self.asq.into(), self.acq.into());
        layout
    }

    /// Reads BAR 0. Doorbells, and everything beyond the registers, read as zeroes.
    pub fn read(&self, offset: u32, into: &mut [u8]) {
        let layout = self.layout();
        let from = layout.as_bytes().get(offset as usize..).unwrap_or(&[]);
        let count = from.len().min(into.len());
        into[..count].copy_from_slice(&from[..count]);
        into[count..].fill(0);
    }

    /// Writes BAR 0: a word of four bytes, or one of eight that is no doorbell. All other writes are ignored.
    pub fn write(&mut self, offset: u32, from: &[u8]) -> Effect {
        let word = |at: usize| from.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes);
        let (Some(low), 4 | 8) = (word(0), from.len()) else { return Effect::None };
        let Some(high) = word(4) else { return self.write_word(Register::at(offset), low) };
        if offset > DOORBELLS - 8 {
            return Effect::None;
        }
        let effect = self.write_word(Register::at(offset), low);
        match self.write_word(Register::at(offset + 4), high) {
            Effect::None => effect,
            other => other,
        }
    }

    fn write_word(&mut self, register: Option<Register>, value: u32) -> Effect {
        match register {
            Some(Register::InterruptMaskSet) => self.interrupt_mask |= value,
            Some(Register::InterruptMaskClear) => {
                self.interrupt_mask &= !value;
                self.raise_unread();
                return Effect::Notified;
            }
            Some(Register::Configuration) => {
                self.cc = value;
                return Effect::Configure;
            }
            Some(Register::AdminQueueAttributes) => self.aqa = value & (ADMIN_ENTRIES << 16 | ADMIN_ENTRIES),
            Some(Register::AdminSubmissionQueue(half)) => self.asq = half.replaced(self.asq, value),
            Some(Register::AdminCompletionQueue(half)) => self.acq = half.replaced(self.acq, value),
            Some(Register::Doorbell(number)) => return self.write_doorbell(number, value),
            None => {}
        }
        Effect::None
    }

    /// A doorbell is written. A doorbell without a queue raises an event. After a value out of range nothing is known
    /// of the queue any more: the controller fails, as it does for such a value in memory.
    fn write_doorbell(&mut self, number: usize, value: u32) -> Effect {
        let Ok(id) = u16::try_from(number / 2) else { return Effect::None };
        if let Doorbells::Mapped(page) = &self.doorbells {
            // The queues read it there.
            let _ = page.store(number * STRIDE, value);
        }
        let State::Enabled(queues) = &mut self.state else { return Effect::None };
        // Queues have fewer entries than 16 bits count.
        let value = u16::try_from(value).unwrap_or(u16::MAX);
        let is_accepted = match number % 2 {
            0 => queues.submission(id).map(|queue| queue.write_doorbell(value)),
            _ => queues.completion(id).map(|queue| queue.write_doorbell(value)),
        };
        match is_accepted {
            Some(true) => return Effect::Notified,
            Some(false) => {
                self.controller.raise(Event::DOORBELL_VALUE);
                self.fail();
            }
            None => self.controller.raise(Event::DOORBELL_REGISTER),
        }
        Effect::None
    }

    /// Creates the admin queues as the registers say: the controller is enabled.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] when no queues can be so.
    pub fn enable(&mut self) -> Result<(), Status> {
        let entries = |shift: u32| (self.aqa >> shift & ADMIN_ENTRIES) as u16 + 1;
        let (submissions, completions) = (entries(0), entries(16));
        if submissions < 2 || completions < 2 || !(self.asq | self.acq).is_multiple_of(PAGE) {
            return Err(Status::INVALID_FIELD);
        }
        self.state = State::Enabled(Queues::with_admin((self.asq, submissions), (self.acq, completions)));
        self.apply_coalescing();
        self.locate();
        Ok(())
    }

    /// Deletes all queues: the controller is reset (CC.EN).
    pub fn disable(&mut self) {
        (self.state, self.interrupt_mask) = (State::Disabled, 0);
        match &self.doorbells {
            // A queue that is created later starts with doorbells of zero.
            Doorbells::Mapped(page) => self.show_doorbells(page),
            _ => self.doorbells = Doorbells::Registers,
        }
    }

    /// Resets all registers: the device is reset.
    pub fn reset(&mut self) {
        self.disable();
        (self.cc, self.aqa, self.asq, self.acq) = (0, 0, 0, 0);
    }

    /// Finds everything that lies in guest memory again: the memory has changed.
    pub fn locate(&mut self) {
        if let State::Enabled(queues) | State::Failed(queues) = &mut self.state {
            queues.locate(&self.memory, &self.doorbells);
        }
    }

    /// Lets go of all guest memory and returns its regions.
    pub fn forget_memory(&mut self) -> Vec<Region> {
        let regions = self.memory.clear();
        self.locate();
        regions
    }

    /// Carries out a change of queues. Of a submission queue that is deleted, no command may be in progress.
    ///
    /// # Errors
    /// The status of the command.
    pub fn change_queues(&mut self, change: QueueChange) -> Result<(), Status> {
        match change {
            QueueChange::CreateCompletion { id, entries, address, vector } => {
                self.create_completion_queue(id, CompletionQueue::new(address, entries, vector))
            }
            QueueChange::CreateSubmission { id, entries, address, completion_queue } => {
                self.create_submission_queue(SubmissionQueue::new(id, completion_queue, address, entries))
            }
            QueueChange::DeleteCompletion { id } => {
                self.queues_mut().ok_or(Status::SEQUENCE_ERROR)?.remove_completion(id)
            }
            QueueChange::DeleteSubmission { id } => {
                self.queues_mut().ok_or(Status::SEQUENCE_ERROR)?.remove_submission(id)
            }
            QueueChange::SetDoorbellBuffers { doorbells, events } => self.set_doorbell_buffers([doorbells, events]),
        }
    }

    fn create_completion_queue(&mut self, id: u16, queue: CompletionQueue) -> Result<(), Status> {
        let has_memory = self.memory.window(queue.address, queue.bytes()).is_some();
        let queues = self.queues_mut().ok_or(Status::SEQUENCE_ERROR)?;
        if queues.completion(id).is_none() && !has_memory {
            return Err(Status::TRANSFER_ERROR);
        }
        queues.add_completion(id, queue)?;
        self.clear_doorbell(2 * usize::from(id) + 1);
        self.locate();
        Ok(())
    }

    fn create_submission_queue(&mut self, queue: SubmissionQueue) -> Result<(), Status> {
        let (id, has_memory) = (queue.id, self.memory.window(queue.address, queue.bytes()).is_some());
        let queues = self.queues_mut().ok_or(Status::SEQUENCE_ERROR)?;
        queues.add_submission(queue)?;
        if !has_memory {
            queues.remove_submission(id)?;
            return Err(Status::TRANSFER_ERROR);
        }
        self.clear_doorbell(2 * usize::from(id));
        self.locate();
        Ok(())
    }

    /// A queue that is created starts at its first entry, whatever its mapped doorbell showed before: a host writes the
    /// doorbell only with its first command.
    fn clear_doorbell(&self, number: usize) {
        if let Doorbells::Mapped(page) = &self.doorbells {
            let _ = page.store(number * STRIDE, 0);
        }
    }

    /// Doorbell Buffer Config (NVMe Base 2.0 5.8): the guest addresses of the page of shadow doorbells and of the page
    /// of event indices.
    fn set_doorbell_buffers(&mut self, pages: [u64; 2]) -> Result<(), Status> {
        if self.has_mapped_doorbells() {
            return Err(Status::INVALID_OPCODE);
        }
        let windows = pages.map(|page| self.memory.window(page, PAGE as usize));
        let [Some(doorbells), Some(events)] = &windows else { return Err(Status::TRANSFER_ERROR) };
        let queues = self.queues().ok_or(Status::SEQUENCE_ERROR)?;
        // Both pages begin with the doorbells as they are. The admin queues have none.
        queues.each_doorbell(|number, value| {
            let (at, value) = (number * STRIDE, u32::from(value));
            let _ = number > 1 && doorbells.store(at, value) && events.store(at, value);
        });
        pages.iter().for_each(|page| self.memory.mark(*page, PAGE));
        self.doorbells = Doorbells::Shadow(pages);
        self.locate();
        Ok(())
    }

    /// The next command that may begin, from all queues in turn. The controller fails when a queue cannot be read.
    pub fn fetch(&mut self) -> Option<Fetched> {
        let State::Enabled(queues) = &mut self.state else { return None };
        match queues.fetch() {
            Ok(fetched) => {
                if fetched.is_some() {
                    self.mark_events();
                }
                fetched
            }
            Err(Broken) => {
                self.fail();
                None
            }
        }
    }

    /// Completes a command.
    #[inline]
    pub fn complete(&mut self, queue: u16, cid: u16, status: Status, result: u64) {
        let (State::Enabled(queues) | State::Failed(queues)) = &mut self.state else { return };
        if queues.complete(queue, cid, status, result, &self.memory) {
            self.mark_events();
        }
        if queue == 0 {
            // The command may have set a feature.
            self.apply_coalescing();
        }
    }

    /// Goes by the coalescing features that the host has set.
    fn apply_coalescing(&mut self) {
        if let State::Enabled(queues) | State::Failed(queues) = &mut self.state {
            queues.set_coalescing(self.controller.values(|values| values.coalescing()));
        }
    }

    /// Records that the page of event indices was written, if there is one.
    fn mark_events(&self) {
        if let Doorbells::Shadow([_, events]) = self.doorbells
            && self.memory.is_logged()
        {
            self.memory.mark(events, PAGE);
        }
    }

    /// Writes the completions that waited for room and have it now.
    pub fn flush(&mut self) {
        let (State::Enabled(queues) | State::Failed(queues)) = &mut self.state else { return };
        if queues.flush(&self.memory) {
            self.mark_events();
        }
    }

    /// Raises the interrupts of all queues that have something to read.
    pub fn raise_unread(&mut self) {
        self.queues_mut().into_iter().for_each(Queues::raise_unread);
    }

    /// How long an interrupt waits for more completions; `None`: none waits.
    #[must_use]
    pub fn coalescing_time(&self) -> Option<Duration> {
        self.queues()?.coalescing_time()
    }

    /// Raises the interrupts that waited for more completions, of queues that still have something to read.
    pub fn raise_deferred(&mut self) {
        self.queues_mut().into_iter().for_each(Queues::raise_deferred);
    }

    /// The interrupt vectors to be raised, once.
    #[must_use]
    pub fn take_raised(&mut self) -> Vec<u16> {
        self.queues_mut().map(Queues::take_raised).unwrap_or_default()
    }

    /// Whether the guest has masked INTx.
    #[must_use]
    pub fn masks_intx(&self) -> bool {
        self.interrupt_mask & 1 != 0
    }

    /// Whether there is a command that may begin, or room for a completion that waits for it.
    #[inline]
    #[must_use]
    pub fn has_work(&self) -> bool {
        matches!(&self.state, State::Enabled(queues) if queues.has_work())
    }

    /// Asks the host to write registers from now on. Returns whether there is nothing to do yet.
    #[must_use]
    pub fn arm(&mut self) -> bool {
        let (State::Enabled(queues) | State::Failed(queues)) = &mut self.state else { return true };
        let is_idle = queues.arm();
        self.mark_events();
        is_idle || matches!(self.state, State::Failed(_))
    }
}

#[cfg(test)]
#[path = "registers_tests.rs"]
mod tests;

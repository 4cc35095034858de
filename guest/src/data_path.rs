//! The path of the data of one command, to and from guest memory.

use crate::Range;
use crate::memory::Memory;
use crate::scatter::Scatter;
use lunar_core::io::Fault;
use lunar_core::mem::{Arena, Sg, SgMut};
use lunar_core::port::Transfer;
use lunar_core::task::Task;
use std::cell::Cell;

/// A device of a guest.
pub trait GuestDevice {
    /// Calls `work` with the memory of the guest.
    fn with_memory<T>(&self, work: impl FnOnce(&Memory) -> T) -> T;

    /// Memory of the core that serves the device.
    fn arena(&self) -> &Arena;
}

/// The place of a command's data: ranges of guest memory, and the offset of the data in them.
pub trait Placement {
    /// Of the data from the guest.
    fn readable(&self) -> (&[Range], usize);

    /// Of the data to the guest.
    fn writable(&self) -> (&[Range], usize);
}

/// The same ranges for data in both directions: a command has data in one.
impl Placement for &[Range] {
    #[inline]
    fn readable(&self) -> (&[Range], usize) {
        (self, 0)
    }

    #[inline]
    fn writable(&self) -> (&[Range], usize) {
        (self, 0)
    }
}

/// The bytes of a command's data that stores were given to fill: from, to. They are recorded as written when the
/// stores have ended, which may be after the end of the path: a panic ends it at once.
#[derive(Debug, Default)]
pub struct Lent(Cell<Option<(usize, usize)>>);

impl Lent {
    /// Records them as written.
    #[inline]
    pub fn mark(&self, device: &impl GuestDevice, placement: &impl Placement) {
        let Some((from, to)) = self.0.take() else { return };
        let (ranges, before) = placement.writable();
        device.with_memory(|memory| {
            if memory.is_logged() {
                Scatter::new(memory, ranges).mark(before + from, to - from);
            }
        });
    }

    fn add(&self, offset: usize, len: usize) {
        let (from, to) = self.0.get().unwrap_or((offset, offset));
        self.0.set(Some((from.min(offset), to.max(offset + len))));
    }
}

/// The path of the data of one command.
pub struct DataPath<'a, D, P, K> {
    device: &'a D,
    placement: P,
    /// `None` for a command that is carried out without waiting: it cannot be aborted.
    task: Option<&'a Task<K>>,
    /// Whether some of the memory that the command names was not there.
    has_failed: Cell<bool>,
    lent: &'a Lent,
}

impl<D, P, K> std::fmt::Debug for DataPath<'_, D, P, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DataPath")
    }
}

impl<'a, D: GuestDevice, P: Placement, K> DataPath<'a, D, P, K> {
    /// The path of the data of a command.
    #[inline]
    #[must_use]
    pub fn new(device: &'a D, placement: P, task: Option<&'a Task<K>>, lent: &'a Lent) -> Self {
        Self { device, placement, task, has_failed: Cell::new(false), lent }
    }

    /// The device.
    #[inline]
    #[must_use]
    pub fn device(&self) -> &'a D {
        self.device
    }

    /// Whether some of the memory that the command names was not there.
    #[inline]
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.has_failed.get()
    }

    /// Records the memory that stores were given as written: they have ended.
    #[inline]
    pub fn mark_lent(&self) {
        self.lent.mark(self.device, &self.placement);
    }

    /// Writes data to the guest, from `offset` on.
    ///
    /// # Errors
    /// [`Fault::Protocol`]: some of the memory was not there.
    pub fn write(&self, offset: usize, data: &Sg) -> Result<(), Fault> {
        let (ranges, before) = self.placement.writable();
        let is_there = self.device.with_memory(|memory| Scatter::new(memory, ranges).write(before + offset, data));
        if is_there { Ok(()) } else { Err(self.fail()) }
    }

    /// Fills memory of our own with the data from `offset` on.
    fn fill(&self, offset: usize, mut memory: SgMut) -> Result<Sg, Fault> {
        let (ranges, before) = self.placement.readable();
        let is_there = self.device.with_memory(|guest| Scatter::new(guest, ranges).read(before + offset, &mut memory));
        if is_there { Ok(memory.share()) } else { Err(self.fail()) }
    }

    fn fail(&self) -> Fault {
        self.has_failed.set(true);
        Fault::Protocol
    }
}

impl<D: GuestDevice, P: Placement, K: Copy> Transfer for DataPath<'_, D, P, K> {
    async fn room(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn has_room(&self) -> bool {
        true
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        let memory = self.device.arena().wait_sg(len);
        let memory = match self.task {
            Some(task) => task.unless_aborted(memory).await?,
            None => memory.await,
        };
        self.fill(offset, memory)
    }

    async fn pull_more(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.fill(offset, self.device.arena().take_sg(len).ok_or(Fault::NoMemory)?)
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        self.write(offset, &data)
    }

    #[inline]
    fn place(&self, offset: usize, len: usize) -> Option<SgMut> {
        let (ranges, before) = self.placement.writable();
        let memory = self.device.with_memory(|memory| Scatter::new(memory, ranges).to_fill(before + offset, len))?;
        self.lent.add(offset, len);
        Some(memory)
    }

    #[inline]
    fn lend(&self, offset: usize, len: usize) -> Option<Sg> {
        let (ranges, before) = self.placement.readable();
        self.device.with_memory(|memory| Scatter::new(memory, ranges).to_read(before + offset, len))
    }

    fn aborted(&self) -> bool {
        self.task.is_some_and(Task::aborted)
    }
}

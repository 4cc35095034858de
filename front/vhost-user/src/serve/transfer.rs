//! The path of the data of one request, to and from guest memory.

use super::rings::DeviceRings;
use crate::ring::Chain;
use lunar_core::io::Fault;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::port::Transfer;
use lunar_core::step::FinalData;
use lunar_core::task::Task;
use lunar_guest::scatter::Scatter;
use std::cell::Cell;

/// The path of the data of one request.
pub(super) struct DataPath<'a, K> {
    device: &'a DeviceRings,
    chain: &'a Chain,
    /// The bytes before the data in the readable part: the header of the request.
    before_out: usize,
    /// The bytes before the data in the writable part: the answer, where it comes first.
    before_in: usize,
    /// `None` for a request that is carried out without waiting: it cannot be aborted.
    task: Option<&'a Task<K>>,
    /// Whether some of the memory that the request names was not there.
    has_failed: Cell<bool>,
    /// The bytes that a store was given to fill: from, to.
    lent: Cell<Option<(usize, usize)>>,
}

impl<'a, K> DataPath<'a, K> {
    pub(super) fn new(
        device: &'a DeviceRings,
        chain: &'a Chain,
        (before_out, before_in): (usize, usize),
        task: Option<&'a Task<K>>,
    ) -> Self {
        let (has_failed, lent) = (Cell::new(false), Cell::new(None));
        Self { device, chain, before_out, before_in, task, has_failed, lent }
    }

    /// Writes the last data of a request, and records what stores have written. Returns whether all memory of the
    /// request was there.
    pub(super) fn end(&self, last: &FinalData) -> bool {
        let state = self.device.state();
        if let Some((from, to)) = self.lent.take().filter(|_| state.memory.is_logged()) {
            Scatter::new(&state.memory, &self.chain.writable).mark(self.before_in + from, to - from);
        }
        drop(state);
        if !self.has_failed.get() && !last.data.is_empty() {
            // A failure sets `has_failed`.
            let _ = self.write(last.offset, &last.data);
        }
        !self.has_failed.get()
    }

    fn write(&self, offset: usize, data: &Sg) -> Result<(), Fault> {
        let state = self.device.state();
        let is_there = Scatter::new(&state.memory, &self.chain.writable).write(self.before_in + offset, data);
        if is_there { Ok(()) } else { Err(self.fail()) }
    }

    /// Fills memory of our own with the data from `offset` on.
    fn fill(&self, offset: usize, mut memory: SgMut) -> Result<Sg, Fault> {
        let state = self.device.state();
        let is_there = Scatter::new(&state.memory, &self.chain.readable).read(self.before_out + offset, &mut memory);
        if is_there { Ok(memory.share()) } else { Err(self.fail()) }
    }

    fn fail(&self) -> Fault {
        self.has_failed.set(true);
        Fault::Protocol
    }
}

impl<K: Copy> Transfer for DataPath<'_, K> {
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

    fn place(&self, offset: usize, len: usize) -> Option<SgMut> {
        let state = self.device.state();
        let memory = Scatter::new(&state.memory, &self.chain.writable).to_fill(self.before_in + offset, len)?;
        let (from, to) = self.lent.get().unwrap_or((offset, offset));
        self.lent.set(Some((from.min(offset), to.max(offset + len))));
        Some(memory)
    }

    fn lend(&self, offset: usize, len: usize) -> Option<Sg> {
        Scatter::new(&self.device.state().memory, &self.chain.readable).to_read(self.before_out + offset, len)
    }

    fn aborted(&self) -> bool {
        self.task.is_some_and(Task::aborted)
    }
}

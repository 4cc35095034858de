//! The data of a request: the memory of its tag, which the kernel fills before a write and reads after a read.

use lunar_core::io::Fault;
use lunar_core::mem::{Region, Sg, SgMut};
use lunar_core::port::Transfer;
use lunar_core::task::Task;

/// Bytes that are copied at once: no reference to the memory exists, so each part goes through a buffer on the stack.
const COPIED_AT_ONCE: usize = 4096;

/// The path of the data of one request.
pub(super) struct Path<'a> {
    /// The memory of the tag.
    memory: &'a Region,
    /// `None` for a request that is executed without waiting: it cannot be aborted.
    task: Option<&'a Task<u64>>,
}

impl<'a> Path<'a> {
    pub(super) fn new(memory: &'a Region, task: Option<&'a Task<u64>>) -> Self {
        Self { memory, task }
    }

    /// Copies data into the memory; returns whether there is room.
    pub(super) fn put(&self, offset: usize, data: &Sg) -> bool {
        if offset.checked_add(data.len()).is_none_or(|end| end > self.memory.len()) {
            return false;
        }
        let (mut done, mut part) = (0, [0; COPIED_AT_ONCE]);
        while done < data.len() {
            let count = (data.len() - done).min(COPIED_AT_ONCE);
            data.copy_to(done, &mut part[..count]);
            if !self.memory.write(offset + done, &part[..count]) {
                return false;
            }
            done += count;
        }
        true
    }
}

impl Transfer for Path<'_> {
    async fn room(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn has_room(&self) -> bool {
        true
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.arrived(offset, len).ok_or(Fault::Protocol)
    }

    fn arrived(&self, offset: usize, len: usize) -> Option<Sg> {
        // The kernel does not change it before the request is answered.
        self.memory.slice(offset, len).map(Sg::from)
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        if self.put(offset, &data) { Ok(()) } else { Err(Fault::Protocol) }
    }

    fn place(&self, offset: usize, len: usize) -> Option<SgMut> {
        let mut memory = SgMut::default();
        memory.push(self.memory.buf(offset, len)?);
        Some(memory)
    }

    fn lend(&self, offset: usize, len: usize) -> Option<Sg> {
        self.arrived(offset, len)
    }

    fn aborted(&self) -> bool {
        self.task.is_some_and(Task::aborted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::Arena;

    #[test]
    fn data_stays_in_the_memory_of_its_tag() {
        let (memory, arena) = (Region::zeroed(4096), Arena::new(1 << 20));
        let path = Path::new(&memory, None);
        let data = |len| Sg::from(arena.copy(&vec![7; len]).expect("room"));
        assert!(path.put(1024, &data(3072)) && !path.put(1025, &data(3072)) && !path.put(usize::MAX, &data(2)));
        let mut read = [1; 4096];
        assert!(memory.read(0, &mut read) && read[..1024] == [0; 1024] && read[1024..] == [7; 3072]);
        assert!(path.place(0, 4096).is_some() && path.place(1, 4096).is_none());
        assert!(path.lend(4095, 1).is_some() && path.lend(usize::MAX, 2).is_none());
    }
}

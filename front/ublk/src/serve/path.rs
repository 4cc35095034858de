//! The data of a request: the memory of its tag, which the kernel fills before a write and reads after a read.

use lunar_core::io::Fault;
use lunar_core::mem::{Region, Sg, SgMut};
use lunar_core::port::Transfer;
use lunar_core::task::Task;

/// Bytes that are copied at once: no reference to the memory exists, so each part goes through a buffer on the stack.
const COPIED_AT_ONCE: usize = 4096;

/// The path of the data of one request.
pub(super) struct Path<'a> {
    memory: &'a Region,
    /// Where the memory of the tag begins, and its bytes.
    at: usize,
    len: usize,
    /// `None` for a request that is executed without waiting: it cannot be aborted.
    task: Option<&'a Task<u64>>,
}

impl<'a> Path<'a> {
    pub(super) fn new(memory: &'a Region, (at, len): (usize, usize), task: Option<&'a Task<u64>>) -> Self {
        Self { memory, at, len, task }
    }

    /// The place of bytes of the request, if they are within the memory of the tag.
    fn place_of(&self, offset: usize, len: usize) -> Option<usize> {
        offset.checked_add(len).filter(|end| *end <= self.len).map(|_| self.at + offset)
    }

    /// Copies data into the memory; returns whether there is room.
    pub(super) fn put(&self, offset: usize, data: &Sg) -> bool {
        let Some(at) = self.place_of(offset, data.len()) else { return false };
        let (mut done, mut part) = (0, [0; COPIED_AT_ONCE]);
        while done < data.len() {
            let count = (data.len() - done).min(COPIED_AT_ONCE);
            data.copy_to(done, &mut part[..count]);
            if !self.memory.write(at + done, &part[..count]) {
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
        let at = self.place_of(offset, len)?;
        self.memory.slice(at, len).map(Sg::from)
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        if self.put(offset, &data) { Ok(()) } else { Err(Fault::Protocol) }
    }

    fn place(&self, offset: usize, len: usize) -> Option<SgMut> {
        let mut memory = SgMut::default();
        memory.push(self.memory.buf(self.place_of(offset, len)?, len)?);
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
        let (memory, arena) = (Region::zeroed(16384), Arena::new(1 << 20));
        let path = Path::new(&memory, (8192, 4096), None);
        let data = |len| Sg::from(arena.copy(&vec![7; len]).expect("room"));
        assert!(path.put(1024, &data(3072)) && !path.put(1025, &data(3072)));
        let mut read = [1; 4096];
        assert!(memory.read(8192, &mut read) && read[..1024] == [0; 1024] && read[1024..] == [7; 3072]);
        assert!(memory.read(12288, &mut read) && read == [0; 4096], "the next tag");
        assert!(path.place(0, 4096).is_some() && path.place(1, 4096).is_none());
        assert!(path.lend(4095, 1).is_some() && path.lend(usize::MAX, 2).is_none());
    }
}

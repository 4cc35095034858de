//! The engine of an initiator, and the memory of its sequences: those of a program that moves the packets itself, or of
//! a port on its links.

use crate::memory::{Bytes, Memories};
use lunar_core::time::Instant;
use lunar_st::{Engine, Event, Id, Path, VcId};

/// An engine, and the memory of its sequences.
pub trait Carrier {
    /// Uses the engine.
    fn with<T>(&mut self, act: impl FnOnce(&mut Engine) -> T) -> T;
    /// Gives memory to a sequence, before the engine uses it.
    fn give(&mut self, vc: VcId, id: Id, bytes: Bytes);
    /// Takes the memory of a sequence that has ended: the bytes, unless a write has them, too.
    fn take(&mut self, vc: VcId, id: Id) -> Option<Vec<u8>>;
    /// Copies bytes of a region.
    fn part(&mut self, region: (VcId, Id), offset: usize, len: usize) -> Option<Vec<u8>>;
    /// Frees the memory of a connection that has ended.
    fn forget(&mut self, vc: VcId);
}

/// An engine without links.
#[derive(Debug)]
pub struct Direct {
    engine: Engine,
    memories: Memories,
}

impl Direct {
    pub(crate) fn new(secret: [u64; 2]) -> Self {
        Self { engine: Engine::new(secret), memories: Memories::default() }
    }

    pub(crate) fn next_packet(&mut self, now: Instant) -> Option<(Path, Vec<u8>)> {
        let outgoing = self.engine.poll_send(now)?;
        let payload = self.memories.payload(&outgoing.payload);
        let header = if outgoing.is_checked { outgoing.packet.checked([payload]) } else { outgoing.packet.bytes() };
        Some((outgoing.path, [&header[..], payload].concat()))
    }

    pub(crate) fn receive(&mut self, path: Path, bytes: &[u8], now: Instant) {
        self.engine.handle(path, bytes, &mut self.memories, now);
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        if self.engine.deadline().is_some_and(|deadline| deadline <= now) {
            self.engine.expire(now);
        }
    }

    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.engine.poll_event()
    }

    /// The longest packet of data of a connection.
    pub(crate) fn stu(&self, vc: VcId) -> Option<usize> {
        self.engine.agreed(vc).map(|(stu, _)| stu)
    }
}

impl Carrier for Direct {
    fn with<T>(&mut self, act: impl FnOnce(&mut Engine) -> T) -> T {
        act(&mut self.engine)
    }

    fn give(&mut self, _vc: VcId, id: Id, bytes: Bytes) {
        self.memories.give(id, bytes);
    }

    fn take(&mut self, _vc: VcId, id: Id) -> Option<Vec<u8>> {
        self.memories.take(id)
    }

    fn part(&mut self, (_, id): (VcId, Id), offset: usize, len: usize) -> Option<Vec<u8>> {
        self.memories.part(id, offset, len).map(<[u8]>::to_vec)
    }

    fn forget(&mut self, _vc: VcId) {
        // There is one connection.
        self.memories.clear();
    }
}

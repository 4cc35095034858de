//! A store of zeroes: reads return zeroes, and written data is discarded. It measures the cost of everything else.
//!
//! * [`backend`]: zeroes as a back end of the engine

pub mod backend;

pub mod schema;

use lunar_core::io::{Data, Done, Extent, Fault, ImmediateStore, Io, Op, Origin, Outcome, Space, Store, Traits};
use lunar_core::mem::{Arena, Sg, Slice};
use lunar_core::step::PIECE_BYTES;
use lunar_reactor::Reactor;
use std::io;
use std::rc::Rc;

/// The reported granularity in bytes. It has no meaning here; any power of two would do.
const GRANULARITY: u32 = 4096;

/// A null volume: its size and nothing else. The same on every core.
#[derive(Clone, Debug)]
pub struct NullVolume {
    traits: Traits,
}

impl NullVolume {
    /// A volume of `size` bytes.
    #[must_use]
    pub fn new(size: u64, read_only: bool) -> Self {
        let traits = Traits {
            size,
            read_only,
            // No data is stored, so none can be lost.
            write_cache: false,
            thin: true,
            unmap_granularity: GRANULARITY,
            unmap_zeroes: true,
            physical_block: GRANULARITY,
            optimal_io: 0,
            rotational: false,
            // No data is stored, so no write can be torn.
            atomic_write: PIECE_BYTES as u32,
        };
        Self { traits }
    }

    /// The properties of the store.
    #[must_use]
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// The store of this core.
    ///
    /// # Errors
    /// `OutOfMemory` when the core's arena has no room for the zeroes that it lends.
    pub fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        Ok(Box::new(NullStore::new(self.traits.clone(), reactor.arena())?))
    }
}

/// One core's view of a null volume.
struct NullStore {
    traits: Traits,
    /// Lent for every read. Shared memory cannot be written.
    zeroes: Slice,
}

impl NullStore {
    fn new(traits: Traits, arena: &Arena) -> io::Result<Self> {
        Ok(Self { traits, zeroes: arena.zeroes().ok_or(io::ErrorKind::OutOfMemory)? })
    }
}

/// The origin that a null store shows to stores of its kind.
struct Zeroes;

impl ImmediateStore for NullStore {
    fn carry_out(&self, io: &mut Io) -> Result<u32, Fault> {
        if !io.within(self.traits.size) {
            return Err(Fault::OUT_OF_RANGE);
        }
        match (io.op, &mut io.data) {
            (Op::Read, Data::In(memory)) => memory.fill_from(0, 0),
            (Op::Write { .. }, _) => {}
            _ => return Err(Fault::Unsupported),
        }
        Ok(io.data.len() as u32)
    }
}

impl Store for NullStore {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn immediate(&self) -> Option<&dyn ImmediateStore> {
        Some(self)
    }

    fn submit(&self, mut io: Io, done: Done) {
        if matches!(io.op, Op::Read | Op::Write { .. }) {
            let result = self.carry_out(&mut io);
            return done.complete(Outcome::with(result, io.data));
        }
        if !io.within(self.traits.size) {
            return done.complete(Outcome::with(Err(Fault::OUT_OF_RANGE), io.data));
        }
        let result = Ok(io.data.len() as u32);
        done.complete(match (io.op, io.data) {
            (Op::Extent { len }, data) => {
                Outcome { extent: Extent { len, mapped: false }, ..Outcome::with(result, data) }
            }
            (Op::Space, _) => Outcome::with(result, Data::Space(Space { used: 0, available: self.traits.size })),
            // A copy of zeroes to zeroes needs no I/O. Data of another store is read by the fall-back.
            (Op::Copy { .. }, Data::From(origin)) if origin.is::<Zeroes>().is_some() => Outcome::new(result),
            (Op::Copy { .. }, data) => Outcome::with(Err(Fault::Unsupported), data),
            (_, data) => Outcome::with(result, data),
        });
    }

    fn measures(&self) -> bool {
        true
    }

    fn origin(&self) -> Option<Origin> {
        Some(Origin::new(Rc::new(Zeroes)))
    }

    fn lend(&self, offset: u64, len: usize, to: &mut Sg) -> bool {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.traits.size) {
            return false;
        }
        while to.len() < len {
            to.push(self.zeroes.part(0..(len - to.len()).min(self.zeroes.len())));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::io::Completion;
    use lunar_core::step::PIECE_BYTES;

    #[test]
    fn lends_zeroes_of_any_length_within_its_size() {
        let arena = Arena::new(1 << 20);
        let volume = NullVolume::new(1 << 40, false);
        let store = NullStore::new(volume.traits().clone(), &arena).expect("room");
        for len in [0, 1, 512, PIECE_BYTES, 3 * PIECE_BYTES + 5] {
            let mut lent = Sg::default();
            assert!(store.lend(0, len, &mut lent), "within");
            assert_eq!(lent.len(), len);
            assert!(lent.to_vec().iter().all(|byte| *byte == 0));
        }
        assert_eq!(arena.used(), PIECE_BYTES, "lending takes no memory");
        let mut lent = Sg::default();
        assert!(!store.lend((1 << 40) - 512, 1024, &mut lent));
        assert!(!store.lend(u64::MAX, 2, &mut lent));
        assert!(lent.is_empty());
    }

    #[test]
    fn lends_zeroes_from_memory_that_was_used_before() {
        let arena = Arena::new(1 << 20);
        arena.take_reserved(1 << 20).expect("all of it").fill(0xa5);
        let store = NullStore::new(NullVolume::new(1 << 20, false).traits().clone(), &arena).expect("room");
        let mut lent = Sg::default();
        assert!(store.lend(0, PIECE_BYTES, &mut lent) && lent.len() == PIECE_BYTES);
        assert!(lent.to_vec().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn copies_zeroes_and_nothing_else() {
        let arena = Arena::new(1 << 20);
        let store = NullStore::new(NullVolume::new(1 << 20, false).traits().clone(), &arena).expect("room");
        let copy = |origin| {
            let mut completion = Completion::new();
            let io = Io { op: Op::Copy { from: 0, len: 4096 }, offset: 8192, data: Data::From(origin) };
            store.submit(io, completion.token());
            completion.take().map(|outcome| outcome.result)
        };
        assert_eq!(copy(store.origin().expect("it shows itself")), Some(Ok(0)));
        assert_eq!(copy(Origin::new(Rc::new(()))), Some(Err(Fault::Unsupported)));
    }

    #[test]
    fn keeps_the_contract() {
        lunar_suite::forgetful(&|reactor| NullVolume::new(1 << 30, false).open(reactor));
    }
}

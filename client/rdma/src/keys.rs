//! The memory of a connection that its peer reads or writes, by keys. A key is valid for one use: it has the number of
//! the place where the memory is registered, and one that changes with each registration there. Addresses are offsets.

use lunar_core::mem::{Sg, SgMut};
use lunar_rdma::wire::Remote;

/// The bits of a key that number its place.
const PLACE_BITS: u32 = 16;

/// Memory that is registered.
#[derive(Debug)]
pub enum Registered {
    /// The peer reads it.
    Readable(Sg),
    /// The peer writes it.
    Writable(SgMut),
}

#[derive(Debug, Default)]
struct Place {
    generation: u16,
    /// The peer has not invalidated the key.
    is_valid: bool,
    memory: Option<Registered>,
}

/// The keys of a connection.
#[derive(Debug, Default)]
pub struct Keys {
    places: Vec<Place>,
}

impl Keys {
    /// Registers memory at a place; returns its key. Memory that was there before is dropped.
    pub fn register(&mut self, place: u16, memory: Registered) -> u32 {
        let at = usize::from(place);
        if self.places.len() <= at {
            self.places.resize_with(at + 1, Place::default);
        }
        let slot = &mut self.places[at];
        *slot = Place { generation: slot.generation.wrapping_add(1), is_valid: true, memory: Some(memory) };
        u32::from(slot.generation) << PLACE_BITS | u32::from(place)
    }

    /// Ends a registration; returns its memory.
    pub fn take(&mut self, place: u16) -> Option<Registered> {
        let slot = self.places.get_mut(usize::from(place))?;
        slot.is_valid = false;
        slot.memory.take()
    }

    fn place(&mut self, key: u32) -> Option<&mut Place> {
        let slot = self.places.get_mut((key & ((1 << PLACE_BITS) - 1)) as usize)?;
        (slot.is_valid && u32::from(slot.generation) == key >> PLACE_BITS).then_some(slot)
    }

    /// The peer does not use a key any more; returns whether it was valid.
    pub(crate) fn invalidate(&mut self, key: u32) -> bool {
        self.place(key).is_some_and(|slot| std::mem::take(&mut slot.is_valid))
    }

    /// The place of so many bytes in memory of this length.
    fn offset(from: Remote, len: usize, whole: usize) -> Option<usize> {
        let at = usize::try_from(from.address).ok()?;
        at.checked_add(len).is_some_and(|end| end <= whole).then_some(at)
    }

    /// Memory that the peer reads; `None`: it may not.
    pub(crate) fn readable(&mut self, from: Remote, len: usize) -> Option<Sg> {
        let Some(Registered::Readable(memory)) = &self.place(from.key)?.memory else { return None };
        let at = Self::offset(from, len, memory.len())?;
        Some(memory.part(at..at + len))
    }

    /// Memory that the peer writes, and the place in it; `None`: it may not.
    fn writable(&mut self, to: Remote, len: usize) -> Option<(&mut SgMut, usize)> {
        let Some(Registered::Writable(memory)) = &mut self.place(to.key)?.memory else { return None };
        let at = Self::offset(to, len, memory.len())?;
        Some((memory, at))
    }

    /// Whether the peer may write so many bytes.
    pub(crate) fn is_writable(&mut self, to: Remote, len: usize) -> bool {
        self.writable(to, len).is_some()
    }

    /// Writes bytes of the peer; returns whether it may.
    pub(crate) fn write(&mut self, to: Remote, bytes: &[u8]) -> bool {
        self.writable(to, bytes.len()).is_some_and(|(memory, at)| memory.copy_from(at, bytes) == bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::Arena;

    #[test]
    fn a_key_is_valid_for_one_use_within_its_bounds() {
        let (arena, mut keys) = (Arena::new(1 << 20), Keys::default());
        let readable = Sg::from(arena.copy(b"0123456789").expect("room"));
        let old = keys.register(3, Registered::Readable(readable.clone()));
        let key = keys.register(3, Registered::Readable(readable));
        let at = |address, key| Remote { address, key };
        assert_eq!(keys.readable(at(7, key), 3).map(|data| data.to_vec()), Some(b"789".to_vec()));
        for (address, len) in [(8, 3), (11, 0), (u64::MAX, 1), (u64::MAX, 2), (0, usize::MAX)] {
            assert!(keys.readable(at(address, key), len).is_none(), "{len} bytes at {address}");
        }
        assert!(keys.readable(at(0, old), 1).is_none() && keys.readable(at(0, key ^ 1), 1).is_none());
        assert!(!keys.write(at(0, key), b"x"), "the peer may only read it");
        assert!(keys.invalidate(key) && !keys.invalidate(key));
        assert!(keys.readable(at(0, key), 1).is_none());
        assert!(matches!(keys.take(3), Some(Registered::Readable(data)) if data.len() == 10));
        assert!(keys.take(3).is_none() && keys.take(9).is_none());
    }

    #[test]
    fn the_peer_writes_where_it_may() {
        let (arena, mut keys) = (Arena::new(1 << 20), Keys::default());
        let mut memory = arena.take_sg(5000).expect("room");
        memory.fill_from(0, 0);
        let key = keys.register(0, Registered::Writable(memory));
        let to = Remote { address: 4998, key };
        assert!(keys.write(to, b"ab") && !keys.write(to, b"abc") && !keys.is_writable(to, 3));
        assert!(keys.readable(to, 1).is_none(), "the peer may only write it");
        let Some(Registered::Writable(memory)) = keys.take(0) else { panic!("it is there") };
        assert_eq!(memory.share().to_vec()[4997..], *b"\0ab");
        assert!(!keys.write(to, b"a"));
    }
}

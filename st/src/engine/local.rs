//! The sequences of this end on a Virtual Connection, by their identifiers. The low eight bits of an identifier are
//! its place in the table.

use crate::event::{Access, Id, Wake};
use crate::tiling::Tiling;
use crate::wire::{Packet, Reason};
use lunar_core::time::Instant;

/// Sequences of a Virtual Connection: twice the most Slots, for those of both ends.
const LOCALS: usize = 256;
/// Words of the map of the places in use.
const WORDS: usize = LOCALS / 64;

/// A Transfer to the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    /// The identifier of the peer; 0 until it is known.
    pub(crate) peer_id: u16,
    pub(crate) len: u64,
    /// The exponent of its Blocks, from the first Clear_To_Send on.
    pub(crate) block_log: Option<u8>,
    /// The place of the first Block, which is sent with the request.
    pub(crate) grant: Option<Grant>,
}

/// How far a Transfer from the peer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// This end has asked for it.
    Requested,
    /// The peer has asked, and the program has not decided.
    Pending,
    /// Blocks are granted.
    Granting,
}

/// A Transfer from the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receiving {
    pub(crate) phase: Phase,
    pub(crate) peer_id: u16,
    /// The length; for one that this end has asked for, first the most bytes.
    pub(crate) len: u64,
    pub(crate) bufx: u32,
    pub(crate) block_log: u8,
    pub(crate) next_block: u32,
    pub(crate) done: u64,
}

/// A memory region that this end has granted or is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) peer_id: u16,
    pub(crate) access: Access,
    pub(crate) len: u64,
    pub(crate) bufx: u32,
    pub(crate) wake: Wake,
    pub(crate) is_granted: bool,
}

/// A memory region of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    /// Its identifier at the peer; 0 until it is granted.
    pub(crate) mx: u16,
    pub(crate) access: Access,
    pub(crate) len: u64,
    pub(crate) bufx: u32,
    pub(crate) offset: u32,
}

/// The data of a Get on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Get {
    pub(crate) tiling: Tiling,
    pub(crate) got: u128,
}

/// A Put on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Put {
    /// Whether the peer answers.
    pub(crate) is_solicited: bool,
    pub(crate) tiling: Tiling,
}

/// A sequence of this end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Local {
    Free,
    Sending(Sending),
    Receiving(Receiving),
    /// The peer has asked for a Transfer to it: its identifier, the most bytes, the place of the first Block if the
    /// peer has granted it.
    Asked {
        peer_id: u16,
        len: u64,
        grant: Option<Grant>,
    },
    Region(Region),
    Remote(Remote),
    Get(Get),
    Fetch,
    Put(Put),
    /// It has ended here; the peer has to acknowledge that.
    Ending {
        peer_id: u16,
    },
}

/// The place of the first Block, in a Request_To_Receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) bufx: u32,
    pub(crate) offset: u32,
    pub(crate) block_log: u8,
    pub(crate) path: usize,
}

/// A request that is not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    pub(crate) packet: Packet,
    pub(crate) word: Option<[u8; 8]>,
    pub(crate) path: usize,
    pub(crate) tries: u8,
    pub(crate) first: Instant,
    pub(crate) last: Instant,
    pub(crate) due: Instant,
    /// Whether it has a Slot of the peer: otherwise it waits for one.
    pub(crate) has_slot: bool,
}

/// An entry of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) id: Id,
    /// The number of its request, by which packets of an earlier sequence with this identifier are recognized.
    pub(crate) number: u32,
    pub(crate) local: Local,
    pub(crate) retry: Option<Retry>,
    /// When the state of the peer is asked for.
    pub(crate) wake: Option<Instant>,
}

impl Entry {
    /// Whether it is the sequence that the peer knows by this identifier and this number.
    pub(crate) fn is_of(&self, peer_id: u16, number: u32) -> bool {
        self.number == number && self.local.peer_id() == peer_id
    }
}

const FREE: Entry = Entry { id: 0, number: 0, local: Local::Free, retry: None, wake: None };

/// The table.
#[derive(Debug)]
pub(crate) struct Locals {
    entries: Box<[Entry]>,
    /// The places in use.
    used: [u64; WORDS],
    cursor: u16,
}

fn place(id: Id) -> usize {
    usize::from(id) % LOCALS
}

impl Locals {
    pub(crate) fn new() -> Self {
        Self { entries: vec![FREE; LOCALS].into(), used: [0; WORDS], cursor: 1 }
    }

    /// A new entry; `None` when there are too many. Identifiers take turns: all others are used before one is used
    /// again, so the program has read the events about the sequence before.
    pub(crate) fn add(&mut self, local: Local, number: u32) -> Option<Id> {
        for _ in 0..=LOCALS {
            let id = self.cursor;
            self.cursor = id.wrapping_add(1);
            let at = place(id);
            if id != 0 && self.used[at / 64] & 1 << (at % 64) == 0 {
                self.used[at / 64] |= 1 << (at % 64);
                self.entries[at] = Entry { id, number, local, retry: None, wake: None };
                return Some(id);
            }
        }
        None
    }

    pub(crate) fn get(&self, id: Id) -> Option<&Entry> {
        Some(&self.entries[place(id)]).filter(|entry| id != 0 && entry.id == id)
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut Entry> {
        Some(&mut self.entries[place(id)]).filter(|entry| id != 0 && entry.id == id)
    }

    /// Frees an entry.
    pub(crate) fn free(&mut self, id: Id) -> Option<Entry> {
        let entry = *self.get(id)?;
        let at = place(id);
        self.entries[at] = FREE;
        self.used[at / 64] &= !(1 << (at % 64));
        Some(entry)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let (at, id) = self.next_from(next)?;
            next = at;
            self.get(id)
        })
    }

    pub(crate) fn find(&self, is_it: impl Fn(&Entry) -> bool) -> Option<Id> {
        self.iter().find(|entry| is_it(entry)).map(|entry| entry.id)
    }

    pub(crate) fn count(&self, is_it: impl Fn(&Local) -> bool) -> usize {
        self.iter().filter(|entry| is_it(&entry.local)).count()
    }

    /// The next identifier in use, in the order of the table, from a place on, and the place behind it.
    pub(crate) fn next_from(&self, place: usize) -> Option<(usize, Id)> {
        let mut word = place / 64;
        let mut left = self.used.get(word)? & u64::MAX << (place % 64);
        while left == 0 {
            word += 1;
            left = *self.used.get(word)?;
        }
        let at = word * 64 + left.trailing_zeros() as usize;
        Some((at + 1, self.entries[at].id))
    }
}

impl Local {
    /// The identifier of the peer for this sequence, if it is known.
    pub(crate) fn peer_id(&self) -> u16 {
        match self {
            Self::Sending(Sending { peer_id, .. })
            | Self::Receiving(Receiving { peer_id, .. })
            | Self::Asked { peer_id, .. }
            | Self::Region(Region { peer_id, .. })
            | Self::Ending { peer_id } => *peer_id,
            Self::Remote(Remote { mx, .. }) => *mx,
            _ => 0,
        }
    }
}

/// The outcome of a sequence that ends with this reason.
pub(crate) fn failure(reason: Reason) -> Reason {
    if reason == Reason::NONE { Reason::UNEXPECTED } else { reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const LOCAL: Local = Local::Fetch;

    #[test]
    fn identifiers_take_turns() {
        let mut locals = Locals::new();
        let (long, mut used) = (locals.add(LOCAL, 0).expect("room"), BTreeMap::new());
        for round in 1..200_000 {
            let id = locals.add(LOCAL, round).expect("room");
            assert!(id != 0 && id != long, "{round}");
            if let Some(before) = used.insert(id, round) {
                // All but 0 and those that share their place with the one that lives long.
                assert!(round - before >= 65_536 - 257, "{id} after {}", round - before);
            }
            assert_eq!(locals.get(id).map(|entry| entry.number), Some(round));
            assert!(locals.free(id).is_some());
            assert!(locals.get(id).is_none() && locals.get(long).is_some());
            assert_eq!(locals.iter().map(|entry| entry.id).collect::<Vec<_>>(), [long]);
        }
    }

    #[test]
    fn the_table_is_bounded_and_places_differ() {
        let mut locals = Locals::new();
        let ids: Vec<Id> = (0..LOCALS).map(|_| locals.add(LOCAL, 1).expect("room")).collect();
        assert_eq!(locals.add(LOCAL, 1), None);
        let mut places: Vec<usize> = ids.iter().map(|id| place(*id)).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), LOCALS);
        assert_eq!(locals.iter().count(), LOCALS);
        locals.free(ids[7]);
        let new = locals.add(LOCAL, 1).expect("room");
        assert!(place(new) == place(ids[7]) && new != ids[7]);
        assert!(locals.get(ids[7]).is_none());
    }
}

//! The bytes of the Transfers and regions of an initiator.

use lunar_st::{Id, Memory, Payload, Place};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The bytes of a sequence.
#[derive(Debug)]
pub enum Bytes {
    /// To fill, or to send once.
    Own(Vec<u8>),
    /// The data of a write, which is sent again if the connection is lost.
    Shared(Rc<[u8]>),
}

/// The bytes of all sequences of a connection.
#[derive(Debug, Default)]
pub(crate) struct Memories(BTreeMap<Id, Bytes>);

impl Memories {
    pub(crate) fn give(&mut self, id: Id, bytes: Bytes) {
        self.0.insert(id, bytes);
    }

    /// Takes the bytes of a sequence that has ended.
    pub(crate) fn take(&mut self, id: Id) -> Option<Vec<u8>> {
        match self.0.remove(&id)? {
            Bytes::Own(bytes) => Some(bytes),
            Bytes::Shared(_) => None,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Bytes of a sequence.
    pub(crate) fn part(&self, id: Id, offset: usize, len: usize) -> Option<&[u8]> {
        let bytes: &[u8] = match self.0.get(&id)? {
            Bytes::Own(bytes) => bytes,
            Bytes::Shared(bytes) => bytes,
        };
        bytes.get(offset..offset.checked_add(len)?)
    }

    /// The bytes of a payload.
    pub(crate) fn payload<'a>(&'a self, payload: &'a Payload) -> &'a [u8] {
        match payload {
            Payload::None => &[],
            Payload::Word(word) => word,
            // The engine sends only bytes of sequences that have not ended; their memory is taken after their end.
            Payload::Memory(place, len) => {
                self.part(place.id, place.offset as usize, *len).expect("memory of a live sequence")
            }
        }
    }
}

impl Memory for Memories {
    fn place(&mut self, place: Place, bytes: &[u8]) {
        let Some(Bytes::Own(own)) = self.0.get_mut(&place.id) else { return };
        // The engine has checked the place: memory of this length was given for the sequence.
        let at = place.offset as usize;
        own[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn change(&mut self, _place: Place, _len: usize, _change: &mut dyn FnMut(&mut [u8])) {
        // Regions are granted for Puts only.
    }
}

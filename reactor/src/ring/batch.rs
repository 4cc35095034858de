//! Datagrams and frames on the ring: the driver moves them with calls of its own, and the ring polls the descriptor
//! while there is no data or no room.

use super::Inner;
use super::entry::{Answers, Kind, Next};
use super::open::Role;
use crate::endpoint::Carrier;
use crate::op::Op;
use lunar_core::io::{Done, Fault};

impl Inner {
    pub(super) fn carrier(&mut self, id: u32) -> Option<&mut Carrier> {
        match &mut self.open[id as usize].as_mut()?.role {
            Role::Carrier(carrier) => Some(carrier),
            _ => None,
        }
    }

    pub(super) fn start_batch(&mut self, op: Op, done: Done) -> Answers {
        let key = self.new_entry();
        let id = self.entries[key as usize].fill(op, done);
        if self.carrier(id).is_none() {
            return Answers::One(self.retire_alone(key, Err(Fault::Os(libc::EINVAL))));
        }
        if self.entries[key as usize].is_empty_batch() {
            return Answers::One(self.retire_alone(key, Ok(0)));
        }
        if let Some(queue) = self.queue(key, id) {
            if queue.is_busy {
                queue.waiting.push_back(key);
                return Answers::None;
            }
            queue.is_busy = true;
        }
        match self.entries[key as usize].kind() {
            Kind::SendBatch => self.move_batch(key, 0),
            // In the next turn: the datagrams that arrive until then come together, and other endpoints get their
            // turn.
            _ if self.hot.add(key) => Answers::None,
            _ => {
                self.issue(key);
                Answers::None
            }
        }
    }

    /// Moves as many datagrams as possible now; the ring polls for the rest. `events` are those that a poll has
    /// reported.
    fn move_batch(&mut self, key: u32, events: i32) -> Answers {
        let mut result = self.call(key);
        if events != 0 && matches!(result, 0 | EMPTY) {
            let id = self.entries[key as usize].id();
            let has_sign = events & i32::from(libc::POLLERR) != 0;
            let carrier = self.carrier(id).filter(|carrier| has_sign || carrier.hides_errors());
            let error = carrier.and_then(|carrier| carrier.take_error());
            result = error.map_or(result, |errno| -errno);
        }
        match self.entries[key as usize].advance(result, false) {
            Next::Again => {
                self.issue(key);
                Answers::None
            }
            Next::Over(result) => Answers::One(self.retire(key, result)),
        }
    }

    /// The poll of an operation has ended.
    pub(super) fn complete_batch(&mut self, key: u32, result: i32) -> Answers {
        let entry = &mut self.entries[key as usize];
        if entry.is_cancelled() {
            return Answers::One(self.retire(key, Err(Fault::Aborted)));
        }
        if result >= 0 {
            return self.move_batch(key, result);
        }
        match entry.advance(result, false) {
            Next::Again => {
                self.issue(key);
                Answers::None
            }
            Next::Over(result) => Answers::One(self.retire(key, result)),
        }
    }

    /// One call for an operation on an endpoint; returns the result in the form of a completion.
    pub(super) fn call_carrier(&mut self, key: u32) -> i32 {
        let entry = &mut self.entries[key as usize];
        let Some(open) = self.open[entry.id() as usize].as_mut() else { return -libc::EBADF };
        let Role::Carrier(carrier) = &mut open.role else { return -libc::EINVAL };
        entry.call_carrier(carrier, self.messages.get_or_insert_default())
    }

    /// Whether checking for data costs no system call.
    pub(super) fn looks_for_free(&mut self, key: u32) -> bool {
        let id = self.entries[key as usize].id();
        self.carrier(id).is_some_and(|carrier| carrier.is_mapped())
    }

    /// The entry that waits for room to send on an endpoint: a cancellation by descriptor may not find it.
    pub(super) fn waits_to_send(&self, id: u32) -> Option<u32> {
        let waits = |key: &usize| self.entries[*key].id() == id && self.entries[*key].kind() == Kind::SendBatch;
        (0..self.entries.len()).find(waits).map(|key| key as u32)
    }
}

/// The result of a call without data or without room.
const EMPTY: i32 = -libc::EAGAIN;

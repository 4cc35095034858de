//! Sockets of a core that is awake: tried with calls of their own.
//!
//! A receive that waits in the ring costs the arming of a poll, its wake-up, a task run at the next system call, and a
//! completion; on a core that polls again soon anyway, one call does the same. So a receive stays out of the ring
//! until its core is about to sleep, or was tried too often without data while other sockets had some; and a send is
//! submitted to the ring only when the peer's window is full.

use super::entry::{Answer, Answers, Kind, Next};
use super::{Inner, Ring};
use crate::op::Wait;
use lunar_core::io::Fault;

/// Most receives that are tried in each turn: each try without data costs a system call.
const HOT_MAX: usize = 8;
/// Turns in a row in which a receive may be tried without data.
const MISSES_MAX: u8 = 8;

/// Receives that the kernel does not know of yet.
#[derive(Default)]
pub(super) struct Hot {
    receives: Vec<Receive>,
    /// Receives that have ended, until the turn answers them.
    ended: Vec<Answer>,
}

struct Receive {
    key: u32,
    misses: u8,
}

impl Hot {
    /// Adds a receive, if there is room.
    pub(super) fn add(&mut self, key: u32) -> bool {
        let has_room = self.receives.len() < HOT_MAX;
        if has_room {
            self.receives.push(Receive { key, misses: 0 });
        }
        has_room
    }
}

impl Ring {
    /// Answers the receives that ended outside the ring; before that, tries them, if the core stays awake.
    pub(super) fn harvest_hot(&self, wait: Wait) -> usize {
        let mut inner = self.inner.borrow_mut();
        if inner.hot.ended.is_empty() && matches!(wait, Wait::Poll) {
            inner.try_hot(true);
        }
        if inner.hot.ended.is_empty() {
            return 0;
        }
        let mut ended = std::mem::take(&mut inner.hot.ended);
        drop(inner);
        let count = ended.len();
        ended.drain(..).for_each(Answer::give);
        // Keeps the allocation, unless another receive ended meanwhile.
        let mut inner = self.inner.borrow_mut();
        if inner.hot.ended.is_empty() {
            inner.hot.ended = ended;
        }
        count
    }
}

impl Inner {
    /// Tries every hot receive once; returns whether one ended. A miss counts if the core had other work.
    pub(super) fn try_hot(&mut self, counts: bool) -> bool {
        let mut at = 0;
        while let Some(receive) = self.hot.receives.get_mut(at) {
            receive.misses = receive.misses.saturating_add(u8::from(counts));
            let (key, misses) = (receive.key, receive.misses);
            let result = self.call(key);
            if result == -libc::EAGAIN && (misses < MISSES_MAX || self.looks_for_free(key)) {
                at += 1;
                continue;
            }
            self.hot.receives.swap_remove(at);
            if result == -libc::EAGAIN {
                self.issue(key);
                continue;
            }
            match self.entries[key as usize].advance(result, false) {
                Next::Again => self.issue(key),
                Next::Over(result) => {
                    self.open(self.entries[key as usize].id()).end_receive_of_turn();
                    let answer = self.retire(key, result);
                    self.hot.ended.push(answer);
                }
            }
        }
        !self.hot.ended.is_empty()
    }

    /// Receives at once if data is known to have arrived: data that arrived together is answered together.
    pub(super) fn receive_now(&mut self, key: u32) -> Answers {
        let result = self.call(key);
        let open = self.open(self.entries[key as usize].id());
        open.eager = if open.is_drained { 0 } else { open.eager - 1 };
        if result != -libc::EAGAIN
            && let Next::Over(result) = self.entries[key as usize].advance(result, false)
        {
            return Answers::One(self.retire(key, result));
        }
        if !self.hot.add(key) {
            self.issue(key);
        }
        Answers::None
    }

    /// One call for a send or receive.
    pub(super) fn call(&mut self, key: u32) -> i32 {
        let entry = &mut self.entries[key as usize];
        if matches!(entry.kind(), Kind::ReceiveBatch | Kind::SendBatch) {
            return self.call_carrier(key);
        }
        let open = self.open[entry.id() as usize].as_mut().expect("an operation holds its handle");
        let room = entry.left();
        let result = entry.call(open.fd());
        if entry.kind() == Kind::Receive {
            // Fewer bytes than there was room for: there is no more data.
            open.is_drained = usize::try_from(result).is_ok_and(|got| got < room) || result == -libc::EAGAIN;
        }
        result
    }

    /// Sends at once as much as the peer's window allows; the rest is submitted to the ring.
    pub(super) fn send_now(&mut self, key: u32) -> Answers {
        loop {
            let result = self.call(key);
            if result == -libc::EAGAIN {
                break;
            }
            match self.entries[key as usize].advance(result, false) {
                Next::Again if result > 0 => {}
                Next::Again => break,
                Next::Over(result) => return Answers::One(self.retire(key, result)),
            }
        }
        self.issue(key);
        Answers::None
    }

    /// The core is about to sleep: the kernel must wake it.
    pub(super) fn cool(&mut self) {
        while let Some(Receive { key, .. }) = self.hot.receives.pop() {
            self.issue(key);
        }
    }

    /// Ends the receives of a handle.
    pub(super) fn cancel_hot(&mut self, id: u32) -> Vec<Answer> {
        let mut answers = Vec::new();
        while let Some(at) = self.hot.receives.iter().position(|hot| self.entries[hot.key as usize].id() == id) {
            let key = self.hot.receives.swap_remove(at).key;
            self.open(id).receiving.is_busy = false;
            answers.push(self.retire_alone(key, Err(Fault::Aborted)));
        }
        answers
    }

    /// Ends all of them.
    pub(super) fn end_hot(&mut self) -> Vec<Answer> {
        let mut answers = std::mem::take(&mut self.hot.ended);
        for Receive { key, .. } in std::mem::take(&mut self.hot.receives) {
            answers.push(self.retire_alone(key, Err(Fault::Aborted)));
        }
        answers
    }
}

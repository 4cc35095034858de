//! The commands of a queue that have no reply yet, and the data that their host sends for them.

use lunar_core::mem::{Arena, Sg, SgMut};
use lunar_nvme::{Command, Status};
use lunar_stream::input::join;

/// Identifies a command from its arrival to its reply. A key is not reused, and a key of a command that has ended finds
/// nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TaskKey {
    index: u32,
    generation: u32,
}

/// Data that an R2T has requested.
#[derive(Debug)]
pub(super) struct RequestedData {
    /// The transfer tag (TTAG) of the R2T.
    pub(super) tag: u16,
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) received: u32,
    /// Memory for the bytes that are not received yet.
    pub(super) memory: SgMut,
}

/// The reply to a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) status: Status,
    pub(super) result: u64,
}

/// The state of a command.
#[derive(Debug, Default)]
pub(super) enum State {
    /// There is no command in this entry.
    #[default]
    Free,
    /// It is being executed.
    Running,
    /// An Asynchronous Event Request that waits for an event.
    AwaitsEvent,
    /// It has ended. The reply waits until the host has sent the requested data.
    Answered(Answer),
}

/// A command.
#[derive(Debug, Default)]
pub(super) struct Task {
    pub(super) cid: u16,
    pub(super) state: State,
    /// The index of the next task in the same bucket, or [`END`].
    next: u16,
    generation: u32,
    /// Bytes that the host sends in all, and bytes that it has room for.
    pub(super) sent: u32,
    pub(super) room: u32,
    /// Bytes that were received and not pulled; they begin at `pulled`.
    received: Sg,
    pub(super) pulled: u32,
    /// The first byte that was not requested.
    pub(super) requested_end: u32,
    pub(super) requested: Option<RequestedData>,
    /// A pull waits for all bytes before this one.
    pub(super) waiting: Option<u32>,
    /// A data digest of the command did not match.
    pub(super) is_damaged: bool,
}

/// The result of a pull.
pub(super) enum Pulled {
    Ready(Sg),
    Pending,
    NeedsMemory(usize),
    Failed,
}

impl Task {
    /// Takes the data that arrived in the command capsule.
    pub(super) fn take_in_capsule(&mut self) -> Sg {
        std::mem::take(&mut self.received)
    }

    /// Bytes that were received and not pulled.
    pub(super) fn received_bytes(&self) -> usize {
        self.received.len()
    }

    /// Copies the data that was received into memory of its own; `false` if there is none.
    pub(super) fn detach(&mut self, arena: &Arena) -> bool {
        if self.received.is_empty() {
            return true;
        }
        let Some(mut memory) = arena.take_sg(self.received.len()) else { return false };
        let mut at = 0;
        for piece in self.received.pieces() {
            at += memory.copy_from(at, piece);
        }
        self.received = memory.share();
        true
    }

    /// Whether the reply to the command is known.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.state, State::Answered(_))
    }

    /// The offset after the last byte received.
    fn end(&self) -> u32 {
        // At most `sent`, so that it fits 32 bits.
        self.pulled + self.received.len() as u32
    }

    /// Bytes `offset..offset + len`. Pulls go in ascending order without gaps.
    pub(super) fn pull(&mut self, offset: usize, len: usize) -> Pulled {
        let end = offset.checked_add(len).and_then(|end| u32::try_from(end).ok()).filter(|end| *end <= self.sent);
        let (Some(end), false, true) = (end, self.is_damaged, offset == self.pulled as usize) else {
            return Pulled::Failed;
        };
        if self.end() >= end {
            self.waiting = None;
            self.pulled = end;
            return Pulled::Ready(if self.received.len() == len {
                std::mem::take(&mut self.received)
            } else {
                self.received.split_to(len)
            });
        }
        self.waiting = Some(end);
        if self.requested.is_some() {
            Pulled::Pending
        } else {
            Pulled::NeedsMemory((end - self.requested_end) as usize)
        }
    }

    /// Takes requested data.
    pub(super) fn receive(&mut self, data: Sg) {
        join(&mut self.received, data);
    }

    /// Whether a waiting pull may succeed or has failed. It then no longer waits.
    pub(super) fn take_due_pull(&mut self) -> bool {
        let due = self.waiting.is_some_and(|end| self.is_damaged || self.end() >= end || self.requested.is_none());
        if due {
            self.waiting = None;
        }
        due
    }
}

/// A power of two, so that command identifiers that count up spread evenly. Identifiers that a hostile host chooses
/// make one list of all commands of a queue, or of the 256 that share a bucket if those are fewer.
const BUCKETS: usize = 256;
/// The end of a list of tasks.
const END: u16 = u16::MAX;

/// All tasks of a queue, indexed by command identifier.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    entries: Vec<Task>,
    free: Vec<u16>,
    /// The first task of each bucket, by the low byte of the command identifier. Not allocated before the first
    /// command.
    buckets: Box<[u16]>,
}

fn bucket(cid: u16) -> usize {
    usize::from(cid) % BUCKETS
}

impl Tasks {
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Adds a command, whose identifier must not be in use, with the data of its capsule.
    #[inline(always)]
    pub(super) fn insert(&mut self, cid: u16, command: &Command, in_capsule: Sg) -> TaskKey {
        if self.buckets.is_empty() {
            self.buckets = vec![END; BUCKETS].into();
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Task::default());
            // A queue has at most 65,535 entries.
            (self.entries.len() - 1) as u16
        });
        let head = std::mem::replace(&mut self.buckets[bucket(cid)], index);
        let task = &mut self.entries[usize::from(index)];
        (task.cid, task.state, task.next) = (cid, State::Running, head);
        task.generation = task.generation.wrapping_add(1);
        (task.sent, task.room) = (command.sent, command.room);
        (task.pulled, task.requested_end) = (0, in_capsule.len() as u32);
        (task.waiting, task.is_damaged) = (None, false);
        // The data of the last command in this entry was dropped by `remove`.
        if !in_capsule.is_empty() {
            task.received = in_capsule;
        }
        TaskKey { index: index.into(), generation: task.generation }
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, key: TaskKey) -> Option<&mut Task> {
        let task = self.entries.get_mut(key.index as usize)?;
        (task.generation == key.generation && !matches!(task.state, State::Free)).then_some(task)
    }

    #[inline(always)]
    pub(super) fn find(&self, cid: u16) -> Option<TaskKey> {
        let mut at = *self.buckets.get(bucket(cid))?;
        loop {
            let task = self.entries.get(usize::from(at))?;
            if task.cid == cid {
                return Some(TaskKey { index: at.into(), generation: task.generation });
            }
            at = task.next;
        }
    }

    /// Removes a command.
    #[inline(always)]
    pub(super) fn remove(&mut self, key: TaskKey) {
        let Some(task) = self.get_mut(key) else { return };
        task.state = State::Free;
        if task.requested.is_some() {
            task.requested = None;
        }
        drop(task.take_in_capsule());
        let (cid, next) = (task.cid, task.next);
        // A queue has at most 65,535 entries.
        let index = key.index as u16;
        self.unlink(cid, index, next);
        self.free.push(index);
    }

    fn unlink(&mut self, cid: u16, index: u16, next: u16) {
        let head = &mut self.buckets[bucket(cid)];
        if *head == index {
            *head = next;
            return;
        }
        let mut at = usize::from(*head);
        while let Some(task) = self.entries.get_mut(at) {
            if task.next == index {
                task.next = next;
                return;
            }
            at = usize::from(task.next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_nvme::Sqe;
    use zerocopy::FromZeros;

    #[test]
    fn commands_in_one_bucket_are_distinguished() {
        let command = Command { sqe: Sqe::new_zeroed(), sent: 1, room: 2 };
        let mut tasks = Tasks::default();
        assert_eq!(tasks.find(0), None);
        let cids: Vec<u16> = (0..64).map(|at| at * 256 + at % 3).collect();
        let keys: Vec<TaskKey> = cids.iter().map(|cid| tasks.insert(*cid, &command, Sg::default())).collect();
        for first in [1, 2] {
            for (cid, key) in cids.iter().zip(&keys).skip(first).step_by(3) {
                assert_eq!(tasks.find(*cid), Some(*key));
                tasks.remove(*key);
                assert!(tasks.find(*cid).is_none() && tasks.get_mut(*key).is_none());
                tasks.remove(*key);
            }
        }
        assert_eq!(tasks.len(), cids.len() - (1..64).step_by(3).count() - (2..64).step_by(3).count());
        let again = tasks.insert(1, &command, Sg::default());
        assert_eq!((tasks.find(1), tasks.find(0)), (Some(again), Some(keys[0])));
    }
}

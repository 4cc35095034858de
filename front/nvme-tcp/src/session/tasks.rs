//! The commands of a connection that have not been answered, and the data that their host sends for them.

use lunar_core::mem::{Sg, SgMut};
use lunar_nvme::{Command, Status};
use lunar_stream::input::join;

/// Names a command from its arrival to its answer; not used again for another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TaskKey {
    place: u32,
    number: u32,
}

/// What an R2T asks for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) tag: u16,
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) received: u32,
    pub(super) memory: SgMut,
}

/// How a command ends that waits for data which its host has still to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) status: Status,
    pub(super) result: u64,
}

/// A command.
#[derive(Debug, Default)]
pub(super) struct Task {
    pub(super) cid: u16,
    present: bool,
    /// The next of the same bucket, as in `Tasks::buckets`.
    chain: u16,
    number: u32,
    /// Bytes that the host sends in all, or has room for.
    pub(super) sent: u32,
    pub(super) room: u32,
    /// Bytes that came and were not pulled; they start at `pulled`.
    arrived: Sg,
    pub(super) pulled: u32,
    /// First byte that was not asked for.
    pub(super) granted: u32,
    pub(super) asked: Option<Asked>,
    /// A pull waits for all bytes before this one.
    pub(super) waiting: Option<u32>,
    /// It waits for an event.
    pub(super) parked: bool,
    /// What came was damaged.
    pub(super) damaged: bool,
    /// It has ended, and is answered when the host has sent what it was asked for.
    pub(super) answer: Option<Answer>,
}

/// What a pull finds.
pub(super) enum Pulled {
    Ready(Sg),
    Pending,
    Memory(usize),
    Failed,
}

impl Task {
    /// Everything that came with the command.
    pub(super) fn take_inline(&mut self) -> Sg {
        std::mem::take(&mut self.arrived)
    }

    fn end(&self) -> u32 {
        // Together at most `sent`, which is 32 bits.
        self.pulled + self.arrived.len() as u32
    }

    /// Bytes `offset..offset + len`; in ascending order, without gaps.
    pub(super) fn pull(&mut self, offset: usize, len: usize) -> Pulled {
        let end = offset.checked_add(len).and_then(|end| u32::try_from(end).ok()).filter(|end| *end <= self.sent);
        let (Some(end), false, true) = (end, self.damaged, offset == self.pulled as usize) else {
            return Pulled::Failed;
        };
        if self.end() >= end {
            self.waiting = None;
            self.pulled = end;
            return Pulled::Ready(if self.arrived.len() == len {
                std::mem::take(&mut self.arrived)
            } else {
                self.arrived.split_to(len)
            });
        }
        self.waiting = Some(end);
        if self.asked.is_some() { Pulled::Pending } else { Pulled::Memory((end - self.granted) as usize) }
    }

    /// Data that was asked for has come.
    pub(super) fn came(&mut self, data: Sg) {
        join(&mut self.arrived, data);
    }

    /// Whether a pull that waits is to be tried again.
    pub(super) fn is_due(&mut self) -> bool {
        let due = self.waiting.is_some_and(|end| self.damaged || self.end() >= end || self.asked.is_none());
        if due {
            self.waiting = None;
        }
        due
    }
}

/// Power of two, so that identifiers that count up spread evenly. A hostile choice of identifiers makes one chain of
/// all of a queue's commands, or of the 256 that fall into one bucket, if those are fewer.
const BUCKETS: usize = 256;
const END: u16 = u16::MAX;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    places: Vec<Task>,
    free: Vec<u16>,
    /// By the low byte of the identifier the place of a command. Without memory until the first one comes.
    buckets: Box<[u16]>,
}

fn bucket(cid: u16) -> usize {
    usize::from(cid) % BUCKETS
}

impl Tasks {
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Enters a command, whose identifier must not be in use.
    #[inline(always)]
    pub(super) fn enter(&mut self, cid: u16, command: &Command, inline: Sg) -> TaskKey {
        if self.buckets.is_empty() {
            self.buckets = vec![END; BUCKETS].into();
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Task::default());
            // As many as a queue has entries.
            (self.places.len() - 1) as u16
        });
        let head = std::mem::replace(&mut self.buckets[bucket(cid)], place);
        let task = &mut self.places[usize::from(place)];
        (task.cid, task.present, task.chain) = (cid, true, head);
        task.number = task.number.wrapping_add(1);
        (task.sent, task.room) = (command.sent, command.room);
        (task.pulled, task.granted) = (0, inline.len() as u32);
        (task.waiting, task.parked, task.damaged, task.answer) = (None, false, false, None);
        // All that had been asked for is gone since the last command left this place.
        if !inline.is_empty() {
            task.arrived = inline;
        }
        TaskKey { place: place.into(), number: task.number }
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, key: TaskKey) -> Option<&mut Task> {
        self.places.get_mut(key.place as usize).filter(|task| task.present && task.number == key.number)
    }

    #[inline(always)]
    pub(super) fn find(&self, cid: u16) -> Option<TaskKey> {
        let mut at = *self.buckets.get(bucket(cid))?;
        loop {
            let task = self.places.get(usize::from(at))?;
            if task.cid == cid {
                return Some(TaskKey { place: at.into(), number: task.number });
            }
            at = task.chain;
        }
    }

    /// Forgets a command.
    #[inline(always)]
    pub(super) fn remove(&mut self, key: TaskKey) {
        let Some(task) = self.get_mut(key) else { return };
        task.present = false;
        if task.asked.is_some() {
            task.asked = None;
        }
        drop(task.take_inline());
        let (cid, next) = (task.cid, task.chain);
        // As many as a queue has entries.
        let place = key.place as u16;
        self.unchain(cid, place, next);
        self.free.push(place);
    }

    fn unchain(&mut self, cid: u16, place: u16, next: u16) {
        let head = &mut self.buckets[bucket(cid)];
        if *head == place {
            *head = next;
            return;
        }
        let mut at = usize::from(*head);
        while let Some(task) = self.places.get_mut(at) {
            if task.chain == place {
                task.chain = next;
                return;
            }
            at = usize::from(task.chain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_nvme::Sqe;
    use zerocopy::FromZeros;

    #[test]
    fn commands_of_one_bucket_are_told_apart() {
        let command = Command { sqe: Sqe::new_zeroed(), sent: 1, room: 2 };
        let mut tasks = Tasks::default();
        assert_eq!(tasks.find(0), None);
        let cids: Vec<u16> = (0..64).map(|at| at * 256 + at % 3).collect();
        let keys: Vec<TaskKey> = cids.iter().map(|cid| tasks.enter(*cid, &command, Sg::default())).collect();
        for first in [1, 2] {
            for (cid, key) in cids.iter().zip(&keys).skip(first).step_by(3) {
                assert_eq!(tasks.find(*cid), Some(*key));
                tasks.remove(*key);
                assert!(tasks.find(*cid).is_none() && tasks.get_mut(*key).is_none());
                tasks.remove(*key);
            }
        }
        assert_eq!(tasks.len(), cids.len() - (1..64).step_by(3).count() - (2..64).step_by(3).count());
        let again = tasks.enter(1, &command, Sg::default());
        assert_eq!((tasks.find(1), tasks.find(0)), (Some(again), Some(keys[0])));
    }
}

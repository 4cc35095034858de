//! The commands of a connection that have not been answered, and the data that their host sends for them.

use lunar_core::mem::{Sg, SgMut};
use lunar_nvme::{Command, Status};
use lunar_stream::input::join;
use std::collections::HashMap;

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
    number: u32,
    present: bool,
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

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    places: Vec<Task>,
    free: Vec<u32>,
    by_cid: HashMap<u16, u32>,
}

impl Tasks {
    pub(super) fn len(&self) -> usize {
        self.by_cid.len()
    }

    /// Enters a command. `None` when its identifier is in use.
    pub(super) fn enter(&mut self, cid: u16, command: &Command, inline: Sg) -> Option<TaskKey> {
        if self.by_cid.contains_key(&cid) {
            return None;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Task::default());
            // As many as a queue has entries.
            (self.places.len() - 1) as u32
        });
        self.by_cid.insert(cid, place);
        let number = self.places[place as usize].number.wrapping_add(1);
        let granted = inline.len() as u32;
        self.places[place as usize] = Task {
            cid,
            number,
            present: true,
            sent: command.sent,
            room: command.room,
            arrived: inline,
            granted,
            ..Task::default()
        };
        Some(TaskKey { place, number })
    }

    pub(super) fn get_mut(&mut self, key: TaskKey) -> Option<&mut Task> {
        self.places.get_mut(key.place as usize).filter(|task| task.present && task.number == key.number)
    }

    pub(super) fn find(&self, cid: u16) -> Option<TaskKey> {
        let place = *self.by_cid.get(&cid)?;
        Some(TaskKey { place, number: self.places.get(place as usize)?.number })
    }

    /// Forgets a command.
    pub(super) fn remove(&mut self, key: TaskKey) {
        let Some(task) = self.get_mut(key) else { return };
        let cid = task.cid;
        (task.present, task.asked) = (false, None);
        drop(task.take_inline());
        self.by_cid.remove(&cid);
        self.free.push(key.place);
    }
}

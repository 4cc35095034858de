//! The outstanding tasks of a session, by initiator task tag (ITT).

use crate::Error;
use lunar_core::outgoing::Data;

/// Commands and functions that a session may have outstanding: more than the command window of any known target, and
/// a slot index fits the low half of a tag.
const TASKS_MAX: u32 = 0x8000;
/// Low bits of a tag that hold the slot index. The high bits count the uses of the slot, so that a PDU for an earlier
/// task in the same slot is detected.
const SLOT_BITS: u32 = 16;

/// The kind of an outstanding task.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A command with Data-In.
    Read,
    /// A command with Data-Out: the data to write.
    Write(Data),
    /// A command without data.
    Other,
    /// A task management function (11.5).
    Function,
    /// A text request (11.10).
    Text,
    /// A logout request (11.14).
    Logout,
}

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) cookie: u32,
    pub(crate) kind: Kind,
    /// The expected data transfer length, in bytes.
    pub(crate) expected: u32,
    /// Bytes received of a read; bytes sent or requested of a write.
    pub(crate) moved: u32,
    /// The next expected DataSN of a read or R2TSN of a write.
    pub(crate) sequence: u32,
    pub(crate) cmd_sn: u32,
}

impl Task {
    pub(crate) fn other(cookie: u32, kind: Kind, cmd_sn: u32) -> Self {
        Self { cookie, kind, expected: 0, moved: 0, sequence: 0, cmd_sn }
    }
}

#[derive(Debug)]
struct Slot {
    turn: u16,
    task: Option<Task>,
}

/// The table of outstanding tasks.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u16>,
}

const UNKNOWN: Error = Error::Protocol("a PDU has the initiator task tag of no outstanding task");

impl Tasks {
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The number of tasks that may still be added.
    pub(crate) fn room(&self) -> u32 {
        TASKS_MAX - u32::try_from(self.len()).expect("at most TASKS_MAX")
    }

    /// Adds a task and returns its tag. The caller has checked [`Tasks::room`].
    pub(crate) fn add(&mut self, task: Task) -> (u32, &mut Task) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { turn: 0, task: None });
            u16::try_from(self.slots.len() - 1).expect("at most TASKS_MAX")
        });
        let entry = &mut self.slots[usize::from(slot)];
        (u32::from(entry.turn) << SLOT_BITS | u32::from(slot), entry.task.insert(task))
    }

    fn slot(&mut self, itt: u32) -> Result<&mut Slot, Error> {
        let [turn_high, turn_low, slot_high, slot_low] = itt.to_be_bytes();
        let slot = self.slots.get_mut(usize::from(u16::from_be_bytes([slot_high, slot_low]))).ok_or(UNKNOWN)?;
        (slot.turn == u16::from_be_bytes([turn_high, turn_low])).then_some(slot).ok_or(UNKNOWN)
    }

    pub(crate) fn get(&mut self, itt: u32) -> Result<&mut Task, Error> {
        self.slot(itt)?.task.as_mut().ok_or(UNKNOWN)
    }

    pub(crate) fn remove(&mut self, itt: u32) -> Result<Task, Error> {
        let slot = self.slot(itt)?;
        let task = slot.task.take().ok_or(UNKNOWN)?;
        slot.turn = slot.turn.wrapping_add(1);
        self.free.push((itt & ((1 << SLOT_BITS) - 1)) as u16);
        Ok(task)
    }

    /// The ITT and the CmdSN of the command with this cookie.
    pub(crate) fn find(&self, cookie: u32) -> Option<(u32, u32)> {
        self.slots.iter().zip(0u32..).find_map(|(slot, at)| {
            let task = slot.task.as_ref().filter(|task| task.cookie == cookie)?;
            matches!(task.kind, Kind::Read | Kind::Write(_) | Kind::Other)
                .then_some((u32::from(slot.turn) << SLOT_BITS | at, task.cmd_sn))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_valid_for_one_task_only() {
        let mut tasks = Tasks::default();
        let (first, _) = tasks.add(Task::other(1, Kind::Other, 0));
        assert_eq!(tasks.remove(first).map(|task| task.cookie), Ok(1));
        let (second, _) = tasks.add(Task::other(2, Kind::Other, 0));
        assert_ne!(first, second);
        assert!(tasks.get(first).is_err() && tasks.remove(first).is_err());
        assert_eq!(tasks.find(2), Some((second, 0)));
        assert_eq!((tasks.len(), tasks.room()), (1, TASKS_MAX - 1));
        assert!(tasks.get(0xffff_ffff).is_err());
    }
}

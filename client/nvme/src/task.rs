//! The outstanding commands of a queue, by command identifier (CID).

use crate::Error;
use lunar_core::outgoing::Data;

/// Commands that a queue may have outstanding: the largest queue size in use. A slot index fits the low bits of a CID.
pub(crate) const TASKS_MAX: u16 = 1 << SLOT_BITS;
/// Low bits of a CID that hold the slot index. The high bits count the uses of the slot, so that a PDU for an earlier
/// command in the same slot is detected.
const SLOT_BITS: u16 = 12;

#[derive(Debug)]
pub(crate) enum Kind {
    /// No data, or all data is in the capsule.
    Other,
    /// Data is transferred to the host.
    In,
    /// Data is transferred to the controller, on request.
    Out(Data),
}

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) cookie: u32,
    pub(crate) kind: Kind,
    /// Bytes to transfer outside the command capsule.
    pub(crate) expected: u32,
    /// Bytes transferred or requested so far.
    pub(crate) moved: u32,
}

#[derive(Debug)]
struct Slot {
    turn: u16,
    task: Option<Task>,
}

/// The table of outstanding commands.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u16>,
}

const UNKNOWN: Error = Error::Protocol("a PDU has the command identifier of no outstanding command");

impl Tasks {
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds a command and returns its CID. The caller has checked that there is room.
    pub(crate) fn add(&mut self, task: Task) -> u16 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { turn: 0, task: None });
            // Below TASKS_MAX.
            (self.slots.len() - 1) as u16
        });
        let entry = &mut self.slots[usize::from(slot)];
        entry.task = Some(task);
        entry.turn << SLOT_BITS | slot
    }

    fn slot(&mut self, cid: u16) -> Result<&mut Slot, Error> {
        let slot = self.slots.get_mut(usize::from(cid & (TASKS_MAX - 1))).ok_or(UNKNOWN)?;
        (slot.turn << SLOT_BITS == cid & !(TASKS_MAX - 1)).then_some(slot).ok_or(UNKNOWN)
    }

    pub(crate) fn get(&mut self, cid: u16) -> Result<&mut Task, Error> {
        self.slot(cid)?.task.as_mut().ok_or(UNKNOWN)
    }

    pub(crate) fn remove(&mut self, cid: u16) -> Result<Task, Error> {
        let slot = self.slot(cid)?;
        let task = slot.task.take().ok_or(UNKNOWN)?;
        slot.turn = slot.turn.wrapping_add(1);
        self.free.push(cid & (TASKS_MAX - 1));
        Ok(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cid_is_valid_for_one_command_only() {
        let task = |cookie| Task { cookie, kind: Kind::Other, expected: 0, moved: 0 };
        let mut tasks = Tasks::default();
        for round in 0..40 {
            let (first, second) = (tasks.add(task(round)), tasks.add(task(99)));
            assert_eq!(tasks.remove(first).map(|task| task.cookie), Ok(round));
            assert!(tasks.get(first).is_err() && tasks.remove(first).is_err());
            assert_eq!((tasks.len(), tasks.remove(second).map(|task| task.cookie)), (1, Ok(99)));
        }
        assert!(tasks.get(0xffff).is_err());
    }
}

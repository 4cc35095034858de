//! What a queue has outstanding, by command identifier.

use crate::Error;
use lunar_core::outgoing::Data;

/// Commands that a queue may have outstanding: those of the largest queues that there are. A place's number fits the
/// low bits of an identifier.
pub(crate) const TASKS_MAX: u16 = 1 << PLACE_BITS;
/// Bits of an identifier that name the place; the rest counts how often the place was used, so that a late answer
/// shows.
const PLACE_BITS: u16 = 12;

#[derive(Debug)]
pub(crate) enum Kind {
    /// Nothing moves, or it moves with the command.
    Other,
    /// Data comes.
    In,
    /// Data is asked for.
    Out(Data),
}

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) cookie: u32,
    pub(crate) kind: Kind,
    /// Bytes that move apart from the command.
    pub(crate) expected: u32,
    /// Bytes that have.
    pub(crate) moved: u32,
}

#[derive(Debug)]
struct Place {
    turn: u16,
    task: Option<Task>,
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    places: Vec<Place>,
    free: Vec<u16>,
}

const UNKNOWN: Error = Error::Protocol("a PDU has the command identifier of nothing that is outstanding");

impl Tasks {
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Adds a task; there must be room. Gives its identifier.
    pub(crate) fn add(&mut self, task: Task) -> u16 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { turn: 0, task: None });
            // At most TASKS_MAX.
            (self.places.len() - 1) as u16
        });
        let entry = &mut self.places[usize::from(place)];
        entry.task = Some(task);
        entry.turn << PLACE_BITS | place
    }

    fn place(&mut self, cid: u16) -> Result<&mut Place, Error> {
        let place = self.places.get_mut(usize::from(cid & (TASKS_MAX - 1))).ok_or(UNKNOWN)?;
        (place.turn << PLACE_BITS == cid & !(TASKS_MAX - 1)).then_some(place).ok_or(UNKNOWN)
    }

    pub(crate) fn get(&mut self, cid: u16) -> Result<&mut Task, Error> {
        self.place(cid)?.task.as_mut().ok_or(UNKNOWN)
    }

    pub(crate) fn remove(&mut self, cid: u16) -> Result<Task, Error> {
        let place = self.place(cid)?;
        let task = place.task.take().ok_or(UNKNOWN)?;
        place.turn = place.turn.wrapping_add(1);
        self.free.push(cid & (TASKS_MAX - 1));
        Ok(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_of_one_use_only() {
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

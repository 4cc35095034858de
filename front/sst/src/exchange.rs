//! The commands of an initiator, in the places of its region, and the Transfers of their data, without I/O. A command
//! and the request for its Transfer arrive in any order.

use crate::wire::CommandBlock;
use lunar_st::Id;
use std::collections::BTreeMap;

/// A command in progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CommandId {
    /// The place in the region.
    pub slot: u16,
    /// The number of the command: no other one of the connection has it.
    pub number: u64,
}

/// The initiator breaks the rules: its connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// There is no such place, or the command in it is in progress.
    Slot,
    /// The Transfer has another length than the data of its command.
    Length,
    /// Two commands name one Transfer.
    Transfer,
}

/// The direction of data, as the initiator sees it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Direction {
    Out,
    In,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transfer {
    /// The command has no data.
    None,
    /// The initiator has not asked for it.
    Awaited,
    /// This end calls it so.
    Asked(Id),
    /// It has ended.
    Ended,
}

/// A command.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    number: u64,
    tag: u32,
    direction: Direction,
    peer_id: u16,
    len: u64,
    transfer: Transfer,
}

/// A command that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Its tag.
    pub tag: u32,
    /// Its Transfer, if the initiator has asked for it and it has not ended.
    pub transfer: Option<Id>,
}

/// The commands of an initiator.
#[derive(Debug)]
pub struct Exchanges {
    places: Vec<Option<Exchange>>,
    last: u64,
    /// Transfers whose commands have not arrived, by their identifiers at the initiator. The engine bounds their
    /// number: each has an identifier of the connection.
    early: BTreeMap<(Direction, u16), (Id, u64)>,
}

impl Exchanges {
    /// For so many commands at once.
    #[must_use]
    pub fn new(depth: u16) -> Self {
        Self { places: vec![None; depth.into()], last: 0, early: BTreeMap::new() }
    }

    /// The number of commands in progress.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.iter().flatten().count()
    }

    /// Whether no command is in progress.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A command has arrived in a place.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn begin(&mut self, slot: u16, block: &CommandBlock<'_>) -> Result<CommandId, Broken> {
        let (data_out, data_in) = (block.command.data_out, block.command.data_in);
        let (direction, len) =
            if data_out > 0 { (Direction::Out, u64::from(data_out)) } else { (Direction::In, u64::from(data_in)) };
        let peer_id = block.transfer;
        let is_twin = |other: &Exchange| other.len > 0 && (other.direction, other.peer_id) == (direction, peer_id);
        if len > 0 && self.places.iter().flatten().any(is_twin) {
            return Err(Broken::Transfer);
        }
        let place = self.places.get_mut(usize::from(slot)).ok_or(Broken::Slot)?;
        if place.is_some() {
            return Err(Broken::Slot);
        }
        let early = if len > 0 { self.early.remove(&(direction, peer_id)) } else { None };
        let transfer = match early {
            Some((_, asked)) if asked != len => return Err(Broken::Length),
            Some((id, _)) => Transfer::Asked(id),
            None if len > 0 => Transfer::Awaited,
            None => Transfer::None,
        };
        self.last += 1;
        let number = self.last;
        *place = Some(Exchange { number, tag: block.tag, direction, peer_id, len, transfer });
        Ok(CommandId { slot, number })
    }

    /// The initiator asks for a Transfer of Data-Out; returns its command, if that has arrived.
    ///
    /// # Errors
    /// [`Broken::Length`].
    pub fn send_asked(&mut self, peer_id: u16, id: Id, len: u64) -> Result<Option<CommandId>, Broken> {
        self.asked((Direction::Out, peer_id), id, len)
    }

    /// The initiator asks for a Transfer of Data-In; returns its command, if that has arrived.
    ///
    /// # Errors
    /// [`Broken::Length`].
    pub fn receive_asked(&mut self, peer_id: u16, id: Id, len: u64) -> Result<Option<CommandId>, Broken> {
        self.asked((Direction::In, peer_id), id, len)
    }

    fn asked(&mut self, key: (Direction, u16), id: Id, len: u64) -> Result<Option<CommandId>, Broken> {
        let waits = |exchange: &Exchange| {
            exchange.transfer == Transfer::Awaited && (exchange.direction, exchange.peer_id) == key
        };
        let found = (0_u16..).zip(&mut self.places).find_map(|(slot, place)| {
            let exchange = place.as_mut().filter(|exchange| waits(exchange))?;
            Some((slot, exchange))
        });
        let Some((slot, exchange)) = found else {
            self.early.insert(key, (id, len));
            return Ok(None);
        };
        if exchange.len != len {
            return Err(Broken::Length);
        }
        exchange.transfer = Transfer::Asked(id);
        Ok(Some(CommandId { slot, number: exchange.number }))
    }

    fn get(&self, place: CommandId) -> Option<&Exchange> {
        self.places.get(usize::from(place.slot))?.as_ref().filter(|exchange| exchange.number == place.number)
    }

    /// The Transfer of a command: `Some(None)` until the initiator has asked for it; `None` without data, after its
    /// end, and after the end of the command.
    #[must_use]
    pub fn transfer(&self, place: CommandId) -> Option<Option<Id>> {
        match self.get(place)?.transfer {
            Transfer::Awaited => Some(None),
            Transfer::Asked(id) => Some(Some(id)),
            Transfer::None | Transfer::Ended => None,
        }
    }

    /// A Transfer has ended; returns its command, if that is in progress.
    pub fn forget(&mut self, id: Id) -> Option<CommandId> {
        self.early.retain(|_, (known, _)| *known != id);
        (0_u16..).zip(&mut self.places).find_map(|(slot, place)| {
            let exchange = place.as_mut().filter(|exchange| exchange.transfer == Transfer::Asked(id))?;
            exchange.transfer = Transfer::Ended;
            Some(CommandId { slot, number: exchange.number })
        })
    }

    /// A command has ended: its place is free.
    pub fn end(&mut self, place: CommandId) -> Option<Ended> {
        let Exchange { tag, transfer, .. } = *self.get(place)?;
        self.places[usize::from(place.slot)] = None;
        let transfer = if let Transfer::Asked(id) = transfer { Some(id) } else { None };
        Some(Ended { tag, transfer })
    }

    /// The command with this tag.
    #[must_use]
    pub fn tagged(&self, tag: u32) -> Option<CommandId> {
        let all = (0_u16..).zip(&self.places);
        let mut all = all.filter_map(|(slot, place)| Some((slot, place.as_ref()?)));
        all.find(|(_, exchange)| exchange.tag == tag)
            .map(|(slot, exchange)| CommandId { slot, number: exchange.number })
    }

    /// Whether a command has Data-In.
    #[must_use]
    pub fn is_read(&self, place: CommandId) -> bool {
        self.get(place).is_some_and(|exchange| exchange.direction == Direction::In && exchange.len > 0)
    }

    /// The tag of a command.
    #[must_use]
    pub fn tag(&self, place: CommandId) -> Option<u32> {
        self.get(place).map(|exchange| exchange.tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::fcp;

    fn block(tag: u32, transfer: u16, (data_in, data_out): (u32, u32)) -> CommandBlock<'static> {
        let command = fcp::Command { lun: [0; 8], attribute: 0, task: 0, cdb: &[0; 16], data_in, data_out };
        CommandBlock { command, tag, transfer, flags: 0, name: 0 }
    }

    #[test]
    fn a_command_and_its_transfer_find_each_other_in_any_order() {
        let mut table = Exchanges::new(2);
        let first = table.begin(0, &block(1, 5, (0, 512))).expect("free");
        assert_eq!(table.transfer(first), Some(None));
        assert_eq!(table.receive_asked(5, 100, 512), Ok(None), "the other direction");
        assert_eq!(table.send_asked(5, 101, 512), Ok(Some(first)));
        assert_eq!(table.transfer(first), Some(Some(101)));
        let second = table.begin(1, &block(2, 5, (512, 0))).expect("free");
        assert_eq!(table.transfer(second), Some(Some(100)));
        assert_eq!((table.tagged(2), table.tag(first)), (Some(second), Some(1)));
        assert_eq!(table.forget(101), Some(first));
        assert_eq!(table.end(first), Some(Ended { tag: 1, transfer: None }));
        assert_eq!(table.end(second), Some(Ended { tag: 2, transfer: Some(100) }));
        assert!(table.is_empty() && table.end(second).is_none());
    }

    #[test]
    fn rules_that_are_broken_are_noticed() {
        let mut table = Exchanges::new(2);
        assert_eq!(table.begin(2, &block(1, 0, (0, 0))), Err(Broken::Slot));
        let first = table.begin(0, &block(1, 5, (0, 512))).expect("free");
        assert_eq!(table.begin(0, &block(2, 6, (0, 512))), Err(Broken::Slot));
        assert_eq!(table.begin(1, &block(2, 5, (0, 512))), Err(Broken::Transfer));
        assert_eq!(table.send_asked(5, 101, 513), Err(Broken::Length));
        assert_eq!(table.send_asked(7, 102, 100), Ok(None));
        assert_eq!(table.begin(1, &block(2, 7, (0, 512))), Err(Broken::Length));
        let again = CommandId { number: first.number + 9, ..first };
        assert!(table.end(again).is_none() && table.transfer(again).is_none());
    }
}

//! Entry points of the fuzz targets.

use crate::exchange::{CommandId, Exchanges};
use crate::wire::{COMMAND_LEN, CommandBlock, Login, LoginAnswer, fcp};
use zerocopy::IntoBytes;

/// Takes an input apart as each format, and builds it again.
///
/// # Panics
/// When the built bytes are taken apart differently.
pub fn formats(bytes: &[u8]) {
    if let Ok(login) = Login::parse(bytes) {
        assert_eq!(Login::parse(&login.bytes()), Ok(login));
    }
    if let Some(answer) = LoginAnswer::parse(bytes) {
        assert_eq!(LoginAnswer::parse(answer.as_bytes()), Some(answer));
    }
    if let Some(Ok(command)) = bytes.first_chunk::<COMMAND_LEN>().map(CommandBlock::parse) {
        assert_eq!(CommandBlock::parse(&command.bytes()), Ok(command));
    }
    if let Some(response) = fcp::Response::parse(bytes) {
        assert!(response.bytes().len() <= fcp::RESPONSE_MAX);
    }
}

/// The places of the commands of an initiator.
const DEPTH: u16 = 4;
/// Bytes of an input for one event.
const PIECE: usize = 8;

/// Gives the table of exchanges the events of an input.
///
/// # Panics
/// When a command is in progress twice, or more memory is held than there are places.
pub fn exchanges(bytes: &[u8]) {
    let mut table = Exchanges::new(DEPTH);
    let mut running: Vec<CommandId> = Vec::new();
    for piece in bytes.as_chunks::<PIECE>().0 {
        let [event, slot, peer_id, id, a, b, c, d] = *piece;
        let (slot, peer_id, id) = (u16::from(slot % 8), u16::from(peer_id % 16), u16::from(id % 16) + 1);
        let len = u64::from(u32::from_be_bytes([0, b, c, d]));
        let cdb = [a; 16];
        let (data_in, data_out) = if a & 1 == 0 { (len as u32, 0) } else { (0, len as u32) };
        let command = fcp::Command { lun: [0; 8], attribute: 0, task: 0, cdb: &cdb, data_in, data_out };
        let block = CommandBlock { command, tag: u32::from(b), transfer: peer_id, flags: 0, name: 0 };
        match event % 6 {
            0 => {
                if let Ok(place) = table.begin(slot, &block) {
                    assert!(running.iter().all(|other| other.slot != place.slot), "a place has one command");
                    running.push(place);
                }
            }
            1 => drop(table.send_asked(peer_id, id, len)),
            2 => drop(table.receive_asked(peer_id, id, len)),
            3 => drop(table.forget(id)),
            4 => running.retain(|place| place.slot != slot || table.end(*place).is_none()),
            _ => drop(table.tagged(u32::from(b))),
        }
        assert!(table.len() <= usize::from(DEPTH) && table.len() == running.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_input_is_taken(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            exchanges(&bytes);
        }
    }
}

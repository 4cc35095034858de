//! The entry point of the fuzz target.

use super::mover::{DataMover, Operation, Received, received};
use super::wire::allows_invalidation;
use crate::wire::{BHS_LEN, Bhs, DataIn, Pdu, R2t, ScsiResponse, U24};
use lunar_core::mem::{Arena, BLOCK_MAX};
use zerocopy::IntoBytes;

/// Takes anything as private data, and as the messages of an initiator. Each command is answered with data, a request
/// for data, and a response. Nothing is written or read without memory that the command names.
///
/// # Panics
/// When a command is answered without its response, or keeps its memory.
pub fn messages(bytes: &[u8]) {
    /// Bytes of a message: a few more than those of a header and a command.
    const LEN: usize = 84;
    let arena = Arena::new(BLOCK_MAX);
    let mut mover = DataMover::new(allows_invalidation(bytes));
    for message in bytes.chunks(LEN) {
        let Ok(Received::Pdu(pdu, named)) = received(message) else { continue };
        let Some(header) = Bhs::peek(&pdu) else { panic!("a PDU has a header") };
        let (itt, is_command) = (header.itt, named.is_some());
        assert!(pdu.len() >= BHS_LEN && pdu.len().is_multiple_of(4));
        mover.deliver(named);
        let offset = message.last().copied().map_or(0, u32::from);
        let data_in = DataIn { itt, offset: offset.into(), data_len: U24::new(4), ..DataIn::blank() };
        let r2t = R2t { itt, offset: offset.into(), desired_len: 512.into(), ..R2t::blank() };
        let response = ScsiResponse { itt, ..ScsiResponse::blank() };
        let data = [data_in.as_bytes(), &[1; 4]].concat();
        for pdus in [&data[..], r2t.as_bytes(), response.as_bytes()] {
            let (mut operations, sent) = (Vec::new(), arena.copy(pdus).expect("room for three PDUs"));
            let result = mover.send(sent.into(), offset % 2 == 0, &mut operations);
            let is_sent = matches!(operations[..], [Operation::Send(..)]);
            assert!(result.is_ok() == (operations.len() == 1) && (!is_sent || pdus == response.as_bytes()));
            assert!(is_command || operations.is_empty() || is_sent, "only commands name memory");
        }
        assert_eq!(mover.commands(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_taken() {
        messages(&[]);
        for first in 0..=255 {
            let bytes: Vec<u8> = (0..400_u32).map(|at| if at % 84 == 0 { first } else { at as u8 }).collect();
            messages(&bytes);
            // The flags of a command with both tags.
            let mut command = [0; 84];
            (command[0], command[28], command[83]) = (0x1c, 1, first);
            messages(&command[..76]);
            messages(&command);
        }
    }
}

//! Entry points of the fuzz targets.

use crate::order::{Arrival, Repeats, Write, WriteId, Writes};
use crate::slot::{SlotState, SlotStates};
use crate::target::{Answer, Ata, Request, Target, Verdict, decide};
use crate::wire::{ATA_LEN, Address, RESPONSE};
use lunar_core::time::Instant;
use lunar_link::MacAddress;

/// The largest payload of a frame.
const MTU: usize = 1500;
/// The most sectors of a request.
const SECTORS: u8 = 2;

/// Pieces of an input, each after a byte with a sixteenth of its length.
fn pieces(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (first, rest) = bytes.split_first()?;
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(*first) * 16 + 8));
        bytes = rest;
        Some(piece)
    })
}

/// Gives a slot the requests of an input, one after the other, and executes its verdicts on the state of the slot and
/// on the order of writes.
///
/// # Panics
/// When an answer is too long or no response, or when writes that overlap are executed together.
pub fn requests(bytes: &[u8]) {
    let _ = SlotStates::parse(bytes);
    let (mut state, mut writes, mut repeats) = (SlotState::default(), Writes::<Write>::default(), Repeats::default());
    let mut running: Vec<(WriteId, Write)> = Vec::new();
    let (stations, address) =
        ([MacAddress([2, 0, 0, 0, 0, 1]), MacAddress([2, 0, 0, 0, 0, 2])], Address { shelf: 1, slot: 2 });
    for (number, piece) in pieces(bytes).enumerate() {
        let station = stations[number % 2];
        let Some(request) = Request::parse(station, piece) else { continue };
        if !request.header.address().names(address) {
            continue;
        }
        let sent = |answer: &Answer| {
            assert!(answer.len() <= MTU && answer[0] & RESPONSE != 0, "an answer of {} bytes", answer.len());
        };
        match decide(&request, &Target { address, state: &state, sectors: SECTORS }) {
            Verdict::Answer(answer) => sent(&answer),
            Verdict::SetString(string) => state.string = string,
            Verdict::SetMasks(masks) => state.masks = masks,
            Verdict::Ata(Ata::Read(sectors)) => assert!(ATA_LEN + sectors.len() <= MTU, "{sectors:?}"),
            Verdict::Ata(Ata::Write(sectors)) => {
                let write = Write {
                    station: number as u64 % 2,
                    tag: request.header.tag.get(),
                    offset: sectors.offset(),
                    len: sectors.len() as u64,
                    digest: crc32c::crc32c(request.body),
                };
                if repeats.has_ended(&write, Instant(number as u64)) {
                    continue;
                }
                if let Arrival::Execute(id, write) = writes.arrive(write, write) {
                    running.push((id, write));
                }
            }
            Verdict::Ignore | Verdict::ReadReservation | Verdict::Reserve { .. } | Verdict::Ata(_) => {}
        }
        let is_apart = |(at, (_, one)): (usize, &(WriteId, Write))| {
            running[..at]
                .iter()
                .all(|(_, other)| one.offset + one.len <= other.offset || other.offset + other.len <= one.offset)
        };
        assert!(running.iter().enumerate().all(is_apart), "writes that overlap are executed together");
        if piece.len().is_multiple_of(3) && !running.is_empty() {
            let (id, write) = running.remove(piece.len() % running.len());
            repeats.end(write, Instant(number as u64));
            writes.end(id, |id, write| running.push((id, write)));
        }
        let record = SlotStates([(address, state.clone())].into()).record();
        let restored = SlotStates::parse(&record).expect("a record is readable");
        assert_eq!(restored.0.get(&address).cloned().unwrap_or_default(), state, "a record has the state");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_input_is_taken(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            requests(&bytes);
        }
    }
}

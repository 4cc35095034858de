//! Entry points of the fuzz targets.

use crate::initiator::{Initiator, InitiatorConfig, InitiatorEvent, Operation};
use lunar_aoe::wire::{Address, Command, Header};
use lunar_core::time::Instant;
use lunar_link::{HEADER_LEN, MacAddress};
use std::rc::Rc;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// The time between two answers.
const STEP: Duration = Duration::from_millis(30);

/// Gives an initiator the answers of an input. An answer has the tag of a frame that was sent, if the input says so.
///
/// # Panics
/// When a command ends twice.
pub fn answers(bytes: &[u8]) {
    let (mac, target) = (MacAddress([2, 0, 0, 0, 0, 1]), Address { shelf: 1, slot: 2 });
    let (mtu, timeout) = (1500, Duration::from_secs(10));
    let is_odd = bytes.first().is_some_and(|byte| byte & 1 == 1);
    let mut now = Instant(0);
    let mut initiator = Initiator::new(InitiatorConfig { mac, target, mtu, timeout, fresh_tags: is_odd }, now);
    let (mut sent, mut left) = (Vec::new(), vec![0_u32, 1, 2]);
    let mut has_started = false;
    for piece in bytes.chunks(40) {
        while let Some(frame) = initiator.next_frame() {
            sent.push(frame);
        }
        let tag = piece.first().and_then(|at| sent.get(usize::from(*at) % sent.len().max(1)));
        let mut answer = piece.to_vec();
        let request = tag.and_then(|frame| Header::ref_from_prefix(&frame[HEADER_LEN..]).ok());
        if let Some((request, _)) = request {
            let header = request.response(target, None);
            answer = [header.as_bytes(), piece.get(1..).unwrap_or_default()].concat();
            // The data of a disk that is found, or of a read.
            answer.resize(answer.len() + if header.command == Command::ATA.0 { 1024 } else { 0 }, 0x5a);
        }
        now = now + STEP;
        let mut on = |event: InitiatorEvent<'_>| {
            if let InitiatorEvent::Done(cookie, _) = event {
                let known = left.iter().position(|one| *one == cookie);
                left.remove(known.expect("a command ends once"));
            }
        };
        initiator.receive(mac, &answer, now, &mut on);
        initiator.tick(now, &mut on);
        if initiator.is_ready() && !has_started {
            has_started = true;
            initiator.start(0, Operation::Read { lba: 5, count: 9 }, now);
            initiator.start(1, Operation::Write { lba: 1, data: Rc::from(vec![1; 2048]) }, now);
            initiator.start(2, Operation::Flush, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_input_is_taken(bytes in prop::collection::vec(any::<u8>(), 0..800)) {
            answers(&bytes);
        }
    }
}

//! Entry points of the fuzz targets, and of the property tests.

use crate::ring::{Command, HandlerEnd, TargetEnd, at, ring_bytes};
use crate::wire::{Completion, Message, Operation, Status};
use lunar_core::mem::Region;
use std::collections::BTreeSet;
use zerocopy::IntoBytes;

const DEPTH: u32 = 8;

/// Takes bytes apart as a message, and builds it again.
///
/// # Panics
/// When the bytes that are built are taken apart as another message.
pub fn codec(bytes: &[u8]) {
    let Ok(message) = Message::parse(bytes) else { return };
    // Texts lose control characters and broken characters at the first parse.
    if let Ok(again) = Message::parse(&message.bytes())
        && !matches!(message, Message::Refused(_) | Message::Fault(_))
    {
        assert_eq!(again, message);
    }
}

/// Lunar's end, whose memory a hostile handler changes between all steps. Each byte is a step, and the bytes behind it
/// are its operands.
///
/// # Panics
/// When a command is answered twice, or one that was not submitted.
pub fn target_end(mut bytes: &[u8]) {
    let memory = Region::zeroed(ring_bytes(DEPTH));
    let mut target = TargetEnd::new(memory.clone(), DEPTH, 1);
    let mut honest = HandlerEnd::open(memory.clone()).ok();
    let (mut in_progress, mut next) = (BTreeSet::new(), 0);
    let mut take = |count: usize| {
        let (front, rest) = bytes.split_at_checked(count)?;
        bytes = rest;
        Some(front)
    };
    while let Some(step) = take(1) {
        match step[0] % 8 {
            0 | 1 => {
                let (operation, offset) = (Operation::READ, next);
                let command = Command { operation, flags: 0, offset, length: 512, data: 0, timeout_milliseconds: 1000 };
                next += 1;
                if let Some(slot) = target.submit(&command) {
                    assert!(in_progress.insert(slot), "the slot was free");
                }
                if step[0] % 8 == 1 {
                    target.publish();
                }
            }
            2 => match target.take() {
                Ok(Some(answer)) => assert!(in_progress.remove(&answer.slot), "it had a command"),
                Ok(None) => {}
                Err(_) => return,
            },
            3 => {
                let Some(command) = honest.as_mut().and_then(|handler| handler.take().ok().flatten()) else { continue };
                honest.as_mut().into_iter().for_each(|handler| handler.complete(&command, Status::GOOD));
            }
            4 => {
                let Some(operands) = take(3) else { return };
                let place = usize::from(u16::from_le_bytes([operands[0], operands[1]])) % memory.len();
                assert!(memory.write(place, &operands[2..]));
            }
            5 => {
                let Some(operands) = take(4) else { return };
                let [slot, generation, sequence, index] = *operands else { return };
                let entry = Completion {
                    slot: u16::from(slot % 16).into(),
                    status: 0,
                    scsi_status: 0,
                    generation: u32::from(generation % 2).into(),
                    sequence: u64::from(sequence).into(),
                    moved: 0.into(),
                    sense_length: 0.into(),
                    extent_mapped: slot % 2,
                    reserved: 0,
                    extent_length: u64::from(sequence).into(),
                };
                let first = at::SUBMISSIONS + DEPTH as usize * 64;
                assert!(memory.write(first + usize::from(index % 8) * 32, entry.as_bytes()));
            }
            6 => {
                let Some(operands) = take(1) else { return };
                let counter = memory.load(at::COMPLETED).unwrap_or(0);
                assert!(memory.store(at::COMPLETED, counter.wrapping_add(u32::from(operands[0] % 4))));
            }
            _ => {
                let _ = (target.must_wake(), target.may_sleep(), target.has_answers());
                target.rise();
            }
        }
        assert_eq!(target.in_progress(), in_progress.len());
    }
}

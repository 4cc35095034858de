//! The header for C says the same as this crate.

use crate::ring::{self, at};
use crate::wire::{self, Code, Operation, Status, features, flags, space_flags, unit_flags};
use std::collections::BTreeMap;

const HEADER: &str = include_str!("../include/lunar_handler.h");

/// The numbers that the header defines.
fn defined() -> BTreeMap<&'static str, u64> {
    let number = |text: &str| {
        let text = text.trim_end_matches('u');
        text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |digits| u64::from_str_radix(digits, 16).ok())
    };
    let define = |line: &'static str| {
        let mut words = line.strip_prefix("#define LUNAR_")?.split_whitespace();
        Some((words.next()?, number(words.next()?)?))
    };
    HEADER.lines().filter_map(define).collect()
}

#[test]
fn the_header_has_the_numbers_of_this_crate() {
    let mut wanted: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |prefix: &str, name: &str, value: u64| {
        wanted.insert(format!("{prefix}{name}"), value);
    };
    Code::KNOWN.iter().for_each(|(code, name)| add("", name, code.0.into()));
    Operation::KNOWN.iter().for_each(|(code, name)| add("", name, code.0.into()));
    Status::KNOWN.iter().for_each(|(code, name)| add("", name, code.0.into()));
    let numbers = [
        ("PROTOCOL", wire::PROTOCOL.into()),
        ("LEVEL_BLOCK", wire::LEVEL_BLOCK.into()),
        ("LEVEL_SCSI", wire::LEVEL_SCSI.into()),
        ("LEVEL_MIXED", wire::LEVEL_MIXED.into()),
        ("CDB_BYTES_MAX", wire::CDB_BYTES_MAX as u64),
        ("SENSE_BYTES_MAX", wire::SENSE_BYTES_MAX as u64),
        ("INITIATOR_BYTES_MAX", wire::INITIATOR_BYTES_MAX as u64),
        ("FRAME_BYTES", wire::FRAME_BYTES as u64),
        ("MESSAGE_BYTES_MAX", wire::MESSAGE_BYTES_MAX as u64),
        ("NAME_BYTES", wire::NAME_BYTES as u64),
        ("IDENTITY_BYTES", wire::IDENTITY_BYTES as u64),
        ("TEXT_BYTES_MAX", wire::TEXT_BYTES_MAX as u64),
        ("QUEUE_DESCRIPTORS", wire::QUEUE_DESCRIPTORS as u64),
        ("FEATURE_UNMAP", features::UNMAP),
        ("FEATURE_ZERO", features::ZERO),
        ("FEATURE_EXTENT", features::EXTENT),
        ("FEATURE_SPACE", features::SPACE),
        ("ALLOCATED", space_flags::ALLOCATED),
        ("READ_ONLY", unit_flags::READ_ONLY.into()),
        ("DURABLE", flags::DURABLE.into()),
        ("RELEASE", flags::RELEASE.into()),
        ("DATA_IN", flags::DATA_IN.into()),
        ("RING_MAGIC", ring::MAGIC.into()),
        ("RING_VERSION", ring::VERSION.into()),
        ("AT_MAGIC", at::MAGIC as u64),
        ("AT_VERSION", at::VERSION as u64),
        ("AT_DEPTH", at::DEPTH as u64),
        ("AT_GENERATION", at::GENERATION as u64),
        ("AT_SUBMITTED", at::SUBMITTED as u64),
        ("AT_COMPLETED", at::COMPLETED as u64),
        ("AT_HANDLER_SLEEPS", at::HANDLER_SLEEPS as u64),
        ("AT_LUNAR_SLEEPS", at::LUNAR_SLEEPS as u64),
        ("AT_SUBMISSIONS", at::SUBMISSIONS as u64),
    ];
    numbers.iter().for_each(|(name, value)| add("", name, *value));
    let found: BTreeMap<String, u64> = defined().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    assert_eq!(found, wanted);
}

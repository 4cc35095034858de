//! The files of a cartridge: a damaged or hostile log and index.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lunar_tape::fuzzing::cartridge(bytes));

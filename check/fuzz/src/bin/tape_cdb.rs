//! The virtual tape library: any CDBs with any data, at its drive and its changer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lunar_tape::fuzzing::commands(bytes));

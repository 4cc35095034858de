//! Any bytes from an iSNS server.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_isns::fuzzing::any_server(data));

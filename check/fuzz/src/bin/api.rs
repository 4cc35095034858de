//! Any bytes as a connection to the API, or as a request for one of its routes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_api::fuzzing::fuzz_request(data));

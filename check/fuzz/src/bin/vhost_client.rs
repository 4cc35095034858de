//! Any bytes from the back-end of a vhost-user disk: in its messages, and in the memory that our front-end shares.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_vhost_client::fuzzing::back_end(data));

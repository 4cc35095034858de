//! Messages of a client, with any bits.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_vfio_user::testing::messages(data));

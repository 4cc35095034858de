//! A packed ring of a guest, with any bits.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_vhost_user::testing::ring(data, true));

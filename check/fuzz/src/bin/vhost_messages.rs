//! Messages of a vhost-user front-end, with any bits.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_vhost_user::testing::messages(data));

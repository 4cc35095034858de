//! Lists of pages and segments in a guest, with any bits.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_vfio_user::testing::pointers(data));

//! A controller in shared memory, as our own host sees it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_nvme_host::fuzzing::memory(data));

//! Any bytes on an NVMe/TCP queue that is connected.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_nvme_tcp::fuzzing::queue(data));

//! Any bytes as the first of an NVMe/TCP connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_nvme_tcp::fuzzing::start(data));

//! An NVMe/TCP host that mostly keeps to the rules.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_nvme_tcp::fuzzing::host(data));

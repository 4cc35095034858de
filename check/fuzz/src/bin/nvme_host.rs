//! Any bytes from a controller, to our own NVMe/TCP host: the first byte says what it asked for.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_nvme_host::fuzzing::controller(data));

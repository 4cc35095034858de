//! Connect of any hosts, right and wrong ones, to subsystems and to the discovery service.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_nvme::fuzzing::connects(data));

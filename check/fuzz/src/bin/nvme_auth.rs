//! Valid and invalid DH-HMAC-CHAP messages of a host that must authenticate before it sends other commands.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_nvme::fuzzing::authentication(data));

//! Messages of a host that has to prove its name, right and wrong ones, before it may do anything else.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_nvme::fuzzing::proofs(data));

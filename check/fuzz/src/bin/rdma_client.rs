//! Any bytes from a target over RDMA, to an initiator whose memory it reads and writes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_rdma_client::fuzzing::target(data));

//! RDMA (RoCEv2): packets and messages of the connection manager, and packets of any peer to connections; frames of any
//! station to an address on an Ethernet; information units of SRP, capsules of NVMe, and messages of iSER.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lunar_iscsi::iser::fuzzing as iser;
use lunar_nvme_rdma::fuzzing as nvme;
use lunar_rdma::fuzzing;
use lunar_srp::fuzzing as srp;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::formats(bytes);
    fuzzing::peer(bytes);
    fuzzing::frames(bytes);
    srp::formats(bytes);
    nvme::capsules(bytes);
    iser::messages(bytes);
});

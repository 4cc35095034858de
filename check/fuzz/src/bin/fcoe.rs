//! Fibre Channel over Ethernet: formats, frames of any station to a target port, and of any target to an initiator.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lunar_fcoe::fuzzing;
use lunar_fcoe_initiator::fuzzing as initiator;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::formats(bytes);
    fuzzing::frames(bytes);
    fuzzing::fabric_frames(bytes);
    initiator::frames(bytes);
});

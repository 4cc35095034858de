//! ATA over Ethernet: frames of any station to a slot of a target, and answers of any target to an initiator.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lunar_aoe::fuzzing;
use lunar_aoe_initiator::fuzzing as initiator;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::requests(bytes);
    initiator::answers(bytes);
});

//! SCSI over Scheduled Transfer: formats, the table of commands, and packets of any target to an initiator.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lunar_sst::fuzzing;
use lunar_sst_initiator::fuzzing as initiator;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::formats(bytes);
    fuzzing::exchanges(bytes);
    initiator::packets(bytes);
});

//! Scheduled Transfer: packets of any peer to an engine with sequences of each kind.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lunar_st::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::codec(bytes);
    fuzzing::packets(bytes);
});

//! ublk: a kernel with any answers, to control commands and to the commands of a tag.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lunar_ublk::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::control(bytes);
    fuzzing::requests(bytes);
});

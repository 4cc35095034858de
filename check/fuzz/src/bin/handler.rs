//! Handlers: the messages of one, and the end of Lunar in rings that a hostile handler changes at any time.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lunar_handler::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::codec(bytes);
    fuzzing::target_end(bytes);
});

//! Any header: it is parsed, walked and printed.
#![no_main]

use lunar_iscsi::wire::{AhsWalk, BHS_LEN, Bhs};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(header) = Bhs::peek(data) {
        let ahs = data[BHS_LEN..].get(..header.ahs_len()).unwrap_or_default();
        let _ = (format!("{header:?}"), header.padded_len(), AhsWalk::new(ahs).count());
    }
});

//! Any text of keys and values.
#![no_main]

use lunar_iscsi::text;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for (_, value) in text::pairs(data).flatten() {
        let _ = (text::number(value), text::boolean(value), text::range(value), text::list(value).count());
        let _ = text::binary(value, 1024).map(|bytes| text::as_hex(&bytes));
    }
});

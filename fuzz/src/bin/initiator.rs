//! Any bytes from a target, to our own initiator.
#![no_main]

use lunar_initiator::{config::Offer, session::Session};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut session = Session::new(Offer { target: Some("iqn.2026-01.io.lunar:x".to_owned()), ..Offer::default() });
    let _ = session.receive(data, &mut |event| drop(format!("{event:?}")));
});

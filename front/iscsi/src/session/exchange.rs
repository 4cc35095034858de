//! The state of a text exchange that goes over more than one PDU.

use crate::text::TextBuffer;
use lunar_core::wire::be::U32;

/// An exchange that goes over more than one PDU. There is at most one (11.10).
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) itt: U32,
    /// What the initiator's next request has to carry.
    pub(super) ttt: u32,
    pub(super) step: Step,
}

#[derive(Debug)]
pub(super) enum Step {
    /// The initiator has more to say.
    Gathering(TextBuffer),
    /// The outside is asked for targets. `last`: the initiator has said all.
    Asking { answer: Vec<u8>, last: bool },
    /// The target has more to say.
    Sending { answer: Vec<u8>, at: usize },
}

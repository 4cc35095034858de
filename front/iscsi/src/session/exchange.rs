//! The state of a text exchange that goes over more than one PDU.

use crate::text::TextBuffer;
use lunar_core::wire::be::U32;

/// A text exchange that takes more than one PDU. A session has at most one (RFC 7143 11.10).
#[derive(Debug)]
pub(super) struct TextExchange {
    pub(super) itt: U32,
    /// The target transfer tag that the initiator's next request must carry.
    pub(super) ttt: u32,
    pub(super) step: ExchangeState,
}

#[derive(Debug)]
pub(super) enum ExchangeState {
    /// The initiator sends more of its text.
    Receiving(TextBuffer),
    /// The front looks up targets. `last`: the initiator has sent all of its text.
    AwaitingTargets { answer: Vec<u8>, last: bool },
    /// The target sends more of its text, from byte `at` on.
    Sending { answer: Vec<u8>, at: usize },
}

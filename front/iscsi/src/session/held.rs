//! Requests that wait for their turn in the order of command numbers.

use super::action::TaskKey;
use crate::wire::Bhs;
use lunar_stream::input::Payload;

/// A request that waits for those with lower numbers.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) cmd_sn: u32,
    pub(super) what: HeldRequest,
}

#[derive(Debug)]
pub(super) enum HeldRequest {
    /// A command; its task keeps the rest.
    Command(TaskKey),
    /// Any other, with its payload.
    Other(Box<Bhs>, Payload),
    /// One that was rejected or aborted: only its number is left.
    Nothing,
}

//! Requests that wait for their turn in the order of command numbers.

use super::action::TaskKey;
use crate::wire::Bhs;
use lunar_stream::input::Payload;

/// A request that waits for those with lower command numbers.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) cmd_sn: u32,
    pub(super) what: HeldRequest,
}

#[derive(Debug)]
pub(super) enum HeldRequest {
    /// A command. Its task holds the rest of it.
    Command(TaskKey),
    /// Another request, with its payload.
    Other(Box<Bhs>, Payload),
    /// A request that was rejected or aborted. Its number still takes its turn.
    Nothing,
}

//! Queues in a host's memory: over fabrics queues are made by Connect, and these commands are not there.

use super::admin;
use crate::command::{Refusal, Sqe, Status};
use crate::context::Context;
use crate::plan::Plan;
use crate::table::{CommandType, Data, Effect, Gate, Gates, Persistent, Policy, Reach, Transport};

/// A transport whose queues lie in memory makes and ends them itself; no other gets so far.
macro_rules! queue_command {
    ($(#[$meta:meta])* $command:ident, $op:literal, $name:literal, $clause:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub struct $command;

        impl CommandType for $command {
            const POLICY: Policy = Policy {
                name: $name,
                clause: $clause,
                code: admin($op),
                effect: Effect::None,
                gates: Gates {
                    reach: Reach::Controller,
                    transport: Transport::Memory,
                    discovery: Gate::Stops,
                    unproven: Gate::Stops,
                    disabled: Gate::Stops,
                    persistent: Persistent::Passes,
                    inaccessible: Gate::Passes,
                    renewal: Gate::Passes,
                    unformatted: Gate::Passes,
                    write_protect: Gate::Passes,
                },
            };
            const DATA: Data = Data::None;

            fn run(_sqe: &Sqe, _cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
                Err(Status::INVALID_OPCODE.into())
            }
        }
    };
}

queue_command! {
    /// Delete I/O Submission Queue
    DeleteSubmissionQueue, 0x00, "Delete I/O Submission Queue", "NVMe Base 2.0 5.7"
}
queue_command! {
    /// Create I/O Submission Queue
    CreateSubmissionQueue, 0x01, "Create I/O Submission Queue", "NVMe Base 2.0 5.5"
}
queue_command! {
    /// Delete I/O Completion Queue
    DeleteCompletionQueue, 0x04, "Delete I/O Completion Queue", "NVMe Base 2.0 5.6"
}
queue_command! {
    /// Create I/O Completion Queue
    CreateCompletionQueue, 0x05, "Create I/O Completion Queue", "NVMe Base 2.0 5.4"
}
queue_command! {
    /// Doorbell Buffer Config
    DoorbellBufferConfig, 0x7c, "Doorbell Buffer Config", "NVMe Base 2.0 5.8"
}

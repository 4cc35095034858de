//! The plan of a command: what is to be done for it.

use crate::pool::NamespaceOperation;
use lunar_core::step::Step;
use lunar_unit::reserve::Request;
use lunar_unit::rewrite::request::Rewrite;

/// The work of a command whose fields have been checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Nothing more: success, with these two dwords in the completion.
    Done(u64),
    /// Sends what was written to [`Context::out`](crate::context::Context::out) to the host.
    Answer,
    /// A step.
    Do(Step),
    /// Steps, one after the other.
    Steps(Vec<Step>),
    /// A reservation request. Boxed, because it is rare and large.
    Reserve(Box<Request>),
    /// Sets whether the reservations of these namespaces persist through a power loss (PTPL).
    SetPtpl(Vec<u32>, bool),
    /// A message of the host's authentication.
    AuthSend(Box<[u8]>),
    /// Sends the next message of the host's authentication to it.
    AuthReceive,
    /// Waits for an asynchronous event.
    Park,
    /// Aborts a command.
    Abort {
        /// The queue of the command.
        queue: u16,
        /// The identifier of the command.
        command: u16,
    },
    /// Flushes all namespaces of the controller.
    Flush,
    /// Disables the volatile write cache of the controller, and flushes all of its namespaces.
    DisableWriteCache,
    /// Formats these namespaces as dword 10 asks for.
    Format(Vec<u32>, u32),
    /// Sanitizes these namespaces as dwords 10 and 11 ask for.
    Sanitize(Vec<(u32, SanitizeAction)>, [u32; 2]),
    /// Runs a device self-test.
    Test(Test),
    /// Creates, deletes, attaches or detaches namespaces. Boxed, because it is rare and large.
    Manage(Box<NamespaceOperation>),
    /// A change of the queues in the host's memory, which the transport carries out.
    Queues(QueueChange),
}

impl Plan {
    /// Whether the plan is rare, and about several namespaces or none.
    #[must_use]
    pub fn is_rare(&self) -> bool {
        match self {
            Self::Abort { .. }
            | Self::SetPtpl(..)
            | Self::AuthSend(_)
            | Self::AuthReceive
            | Self::Flush
            | Self::DisableWriteCache
            | Self::Format(..)
            | Self::Sanitize(..)
            | Self::Test(_) => true,
            Self::Done(_)
            | Self::Answer
            | Self::Do(_)
            | Self::Steps(_)
            | Self::Reserve(_)
            | Self::Park
            | Self::Manage(_)
            | Self::Queues(_) => false,
        }
    }
}

/// A change of the queues that lie in the host's memory. All fields are checked as far as they can be without that
/// memory and without knowing which queues exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueChange {
    /// Create I/O Completion Queue.
    CreateCompletion {
        /// Queue identifier; not zero.
        id: u16,
        /// Number of entries.
        entries: u16,
        /// Where the queue lies; on the boundary of a page.
        address: u64,
        /// Interrupt vector; `None`: the queue raises no interrupts.
        vector: Option<u16>,
    },
    /// Create I/O Submission Queue.
    CreateSubmission {
        /// Queue identifier; not zero.
        id: u16,
        /// Number of entries.
        entries: u16,
        /// Where the queue lies; on the boundary of a page.
        address: u64,
        /// Identifier of the completion queue; not zero.
        completion_queue: u16,
    },
    /// Delete I/O Completion Queue.
    DeleteCompletion {
        /// Queue identifier; not zero.
        id: u16,
    },
    /// Delete I/O Submission Queue.
    DeleteSubmission {
        /// Queue identifier; not zero.
        id: u16,
    },
    /// Doorbell Buffer Config: the page of shadow doorbells and the page of event indices, on boundaries of pages.
    SetDoorbellBuffers {
        /// Where the shadow doorbells lie.
        doorbells: u64,
        /// Where the event indices lie.
        events: u64,
    },
}

/// The Sanitize action on one namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SanitizeAction {
    /// Begins a sanitize.
    Begin(Rewrite),
    /// Leaves the state after a failed one.
    ExitFailureMode,
}

/// A device self-test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Test {
    /// Self-test code: short or extended.
    pub code: u8,
    /// The namespace identifier of the command.
    pub named: u32,
    /// The namespaces whose media are read.
    pub namespaces: Vec<u32>,
}

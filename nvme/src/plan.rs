//! What a command decided to do.

use crate::manage::Wish;
use crate::reserve::Wanted;
use crate::subsystem::Sanitizing;
use lunar_core::step::Step;

/// What is to be done for a command; all that it needs has been checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Nothing more: success, with these dwords.
    Done(u64),
    /// What was written to [`Context::out`](crate::context::Context::out) goes to the host.
    Answer,
    /// A step.
    Do(Step),
    /// Steps, one after the other.
    Steps(Vec<Step>),
    /// A change of reservations. Behind a pointer, for it is seldom.
    Reserve(Box<Wanted>),
    /// Reservations of these namespaces outlive a restart from now on, or do not.
    Persist(Vec<u32>, bool),
    /// A message of who proves its name. Behind a pointer, for it is seldom.
    Hear(Box<[u8]>),
    /// The message that waits for who proves its name goes to the host.
    Tell,
    /// It waits for an event.
    Park,
    /// The command of this identifier in this queue ends early.
    Abort {
        /// Queue.
        queue: u16,
        /// Command.
        command: u16,
    },
    /// Everything of all namespaces is on the medium.
    Flush,
    /// These namespaces are written anew, as dword 10 says.
    Format(Vec<u32>, u32),
    /// These namespaces are sanitized, as dwords 10 and 11 say.
    Sanitize(Vec<(u32, Sanitizing)>, [u32; 2]),
    /// These namespaces are tested.
    Test(Test),
    /// Namespaces come, go, or are had by others. Behind a pointer, for it is seldom.
    Manage(Box<Wish>),
    /// A change of the queues in the host's memory, which the transport carries out.
    Queues(QueueChange),
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

/// A self-test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Test {
    /// Which: short or extended.
    pub code: u8,
    /// What was asked for.
    pub named: u32,
    /// Whose media are read.
    pub namespaces: Vec<u32>,
}

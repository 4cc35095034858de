//! Format and sanitize: a whole medium is rewritten, while hardly any other command is admitted.
//!
//! A rewrite is a task of its own, for both command sets: it goes on when the client that asked for it disconnects
//! (SBC-3 4.11), and a sanitize goes on after a restart of the process. One rewrite is in progress per unit.
//!
//! * [`request`]: the requests as values; `change`: the state after each of their steps
//! * `record`: the metadata record
//! * [`task`]: the task

mod change;
mod record;
pub mod request;
pub mod task;

pub(crate) use change::apply;
pub(crate) use record::stored;

//! Format and sanitize: a whole medium is rewritten, and most other commands are refused meanwhile.
//!
//! A rewrite is a task of its own, for both command sets: it continues when the client that requested it disconnects
//! (SBC-3 4.11), and a sanitize continues after a restart of the process. One rewrite is in progress per unit.
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

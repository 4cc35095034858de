//! The kinds of endpoints.
//!
//! * [`stream`]: bytes in order over a connection

pub(crate) mod stream;

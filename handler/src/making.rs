//! The messages between Lunar and a process that makes a store for it, instead of serving one, on the connection that
//! Lunar has made: the process says that the store is there, and Lunar that the volume is in its configuration. A
//! process whose connection ends before removes the store again.

/// The store is there.
pub const MADE: &[u8] = b"made";
/// The store stays.
pub const KEEP: &[u8] = b"keep";

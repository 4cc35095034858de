//! Limits that hold whatever a peer wants.

use std::time::Duration;

/// Bytes of data that a command may bring with it: IOCCSZ tells. What small writes need, and what admin commands may
/// have at least (8 KiB) twice.
pub const IN_CAPSULE_MAX: u32 = 16 << 10;
/// Bytes of one H2CData PDU: MAXH2CDATA. What is pulled at once.
pub const H2C_DATA_MAX: u32 = 256 << 10;
/// The largest alignment of data that a host may ask for (HPDA), in words, 0-based.
pub const ALIGNMENT_MAX: u8 = 31;
/// Bytes of answers that commands call up by themselves before reading pauses until they are sent: a peer that sends
/// and never reads ties up this much.
pub const ANSWERS_MAX: usize = 256 << 10;
/// Entries of a queue before Connect has told: Connect alone may come.
pub const ENTRIES_BEFORE_CONNECT: u16 = 1;
/// A connection that has no queue by then is given up.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

//! Limits of sessions.

use std::time::Duration;

/// Most bytes of in-capsule data, as IOCCSZ says: enough for small writes, and twice what admin commands may need (8
/// KiB).
pub const IN_CAPSULE_MAX: u32 = 16 << 10;
/// Most bytes of one H2CData PDU (MAXH2CDATA): the bytes of one pull.
pub const H2C_DATA_MAX: u32 = 256 << 10;
/// The largest data alignment of a host (HPDA), in words, 0's based.
pub const ALIGNMENT_MAX: u8 = 31;
/// Bytes of completions that commands cause directly before reading pauses until they are sent: a host that sends and
/// never reads ties up this much memory.
pub const ANSWERS_MAX: usize = 256 << 10;
/// Entries of a queue before Connect determines them: only Connect may be sent.
pub const ENTRIES_BEFORE_CONNECT: u16 = 1;
/// How long a connection may take to connect its queue, and its host to authenticate.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

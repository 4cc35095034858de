//! Limits of what a peer may cause, and times.

use std::time::Duration;

/// Connections of a client: far more than any target takes.
pub const CONNECTIONS_MAX: usize = 1 << 16;
/// RDMA READs of a connection that wait for their responses: what Linux allows its targets.
pub const READS_MAX: u8 = 16;
/// Messages of the connection manager that wait to be sent. Some are answers, which a peer may cause.
pub const MESSAGES_MAX: usize = 256;
/// The time between two requests for a connection. A target answers within microseconds, and a busy machine within
/// some hundred milliseconds.
pub const REQUEST_INTERVAL: Duration = Duration::from_millis(500);
/// The same when the peer has said that it takes longer.
pub const RECEIPT_INTERVAL: Duration = Duration::from_secs(4);
/// The time between two disconnect requests, and how often one is sent.
pub const DISCONNECT_INTERVAL: Duration = Duration::from_millis(500);
/// See [`DISCONNECT_INTERVAL`].
pub const DISCONNECTS: u32 = 3;

//! Limits, each with its reason, and the times of the protocol.

use std::time::Duration;

/// Virtual Connections of an engine: each takes some 100 KiB.
pub const VCS_MAX: usize = 256;
/// Connections besides these that have ended, and wait for last packets of their peers: each takes some KiB at most.
pub const ENDED_MAX: usize = 1024;
/// The fewest Slots of an end: recovery needs two of them, and the rest keeps a pipeline full.
pub const SLOTS_MIN: u16 = 8;
/// The Slots that an end offers unless its program says otherwise.
pub const SLOTS_DEFAULT: u16 = 64;
/// The most Slots: results of as many FetchOps are kept, and twice as many sequences have identifiers.
pub const SLOTS_MAX: u16 = 128;
/// Slots that requests leave free at the peer: one for End and Request_State of a sequence, one for the liveness of the
/// connection and its paths.
pub const SLOTS_KEPT: u32 = 2;
/// Paths of a Virtual Connection.
pub const PATHS_MAX: usize = 8;
/// The shortest and the longest STU, as powers of two.
pub const STU_RANGE: (u8, u8) = (8, 15);
/// The shortest and the longest buffer, as powers of two.
pub const BUFFER_RANGE: (u8, u8) = (8, 30);
/// The longest Block, as a power of two.
pub const BLOCK_LOG_MAX: u8 = 30;
/// STUs of a Block that this end grants, as a power of two: 64, as in the paper.
pub const BLOCK_STUS_LOG: u8 = 6;
/// STUs of a Put and of the data of a Get: those whose arrival a bit map of 128 bits records.
pub const TILES_MAX: u32 = 128;
/// The longest Transfer: all of its Blocks have numbers of 32 bits.
pub const TRANSFER_MAX: u64 = 1 << 40;
/// The longest memory region: as many buffers as half of the indexes, of the shortest length.
pub const REGION_MAX: u64 = 1 << 38;
/// Memory regions that an end grants on a Virtual Connection.
pub const REGIONS_MAX: usize = 16;
/// Events that wait for the program. While there are as many, packets are dropped, and their senders repeat them.
pub const EVENTS_MAX: usize = 8192;
/// Control operations of a Virtual Connection that wait to be sent. Further ones are dropped, as on the network.
pub const CONTROL_MAX: usize = 1024;
/// Refusals to senders without a Virtual Connection that wait to be sent.
pub const STRAY_MAX: usize = 64;
/// Blocks that are granted and incomplete, of a Virtual Connection.
pub const BLOCKS_MAX: usize = SLOTS_MAX as usize;
/// Puts of which STUs are missing: the oldest ones give way.
pub const PARTIAL_PUTS_MAX: usize = 2 * SLOTS_MAX as usize;
/// The bytes that a path may have granted and not received: the default of [`crate::Settings::window`].
pub const WINDOW_DEFAULT: u32 = 4 << 20;

/// A connection is answered for this time after its end: its last packets have left the network then.
pub const LINGER: Duration = Duration::from_secs(2);
/// The time before a request is repeated for the first time, before a round trip was measured.
pub const REQUEST_FIRST: Duration = Duration::from_millis(100);
/// The shortest and the longest such time. It doubles with each repetition.
pub const REQUEST_RANGE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// A sequence fails after so many repetitions, and not before [`GIVE_UP`]: a process that stands still for some seconds
/// loses nothing.
pub const TRIES: u8 = 6;
/// See [`TRIES`].
pub const GIVE_UP: Duration = Duration::from_secs(10);
/// Repetitions of a Request_Connection, each half a second after the one before.
pub const CONNECT_TRIES: u8 = 6;
/// The time between them.
pub const CONNECT_INTERVAL: Duration = Duration::from_millis(500);
/// A connection of which the peer sends nothing after it was answered ends after this time.
pub const HALF_OPEN: Duration = Duration::from_secs(10);
/// The shortest time without data after which a Block is granted again.
pub const BLOCK_LEAST: Duration = Duration::from_millis(5);
/// A sender that waits for a Clear_To_Send asks for the state after this time.
pub const WAITING: Duration = Duration::from_secs(2);
/// A Virtual Connection that is silent for this time is asked whether it is alive.
pub const SILENCE: Duration = Duration::from_secs(5);
/// The time between such questions, and between probes of a path that is down.
pub const PROBE: Duration = Duration::from_secs(1);
/// Unanswered questions after which it is dead.
pub const PROBES_MAX: u8 = 3;
/// Expired Block timers in a row after which a path is down.
pub const EXPIRATIONS_MAX: u8 = 3;
/// A cookie of a Request_Connection is good for this time, and for as long again.
pub const COOKIE_TIME: Duration = Duration::from_secs(64);

//! The limits of controllers, queues, namespaces and commands.

use std::time::Duration;

/// I/O and administrative controllers at once, on all cores. Each takes a few KiB.
pub const CONTROLLERS_MAX: usize = 4096;
/// Discovery controllers at once, on all cores. They are counted apart from the others, because most hosts need no
/// authentication for one.
pub const DISCOVERY_MAX: usize = 1024;
/// Discovery controllers at once of one source, on all cores: the paths and tools of a few hosts behind one address.
/// One more ends the oldest of them.
pub const DISCOVERY_PER_SOURCE: usize = 64;
/// Identifiers of I/O controllers that have ended which are kept for their hosts: the hosts of some racks find theirs
/// again after a restart of their network. Together with all controllers they are a fifth of the identifiers.
pub const FORMER_MAX: usize = 4096;
/// Controllers at once whose hosts are not authenticated yet: as many hosts may log in at the same time on a few cores.
/// They are counted apart from the others until the host is authenticated.
pub const UNAUTHENTICATED_MAX: usize = 4096;
/// How long a discovery controller lives without a command if its host has set no keep-alive time (NVMe Base 2.0
/// 3.1.2.2).
pub const DISCOVERY_IDLE: Duration = Duration::from_secs(120);
/// I/O queues of a controller: one for each processor of a large host.
pub const QUEUES_MAX: u16 = 128;
/// Interrupt vectors of a controller: one for each completion queue.
pub const VECTORS: u16 = QUEUES_MAX + 1;
/// Entries of an I/O queue (MQES + 1). More would only make commands of the host wait in the queue.
pub const QUEUE_ENTRIES_MAX: u16 = 1024;
/// Entries of an admin queue: the largest number that the standard allows.
pub const ADMIN_ENTRIES_MAX: u16 = 4096;
/// The unit of the keep-alive time, in units of 100 ms (KAS): one second.
pub const KEEP_ALIVE_GRANULARITY: u16 = 10;
/// Reservation notifications of a controller that wait to be read. The oldest are dropped first.
pub const NOTICES_MAX: usize = 64;
/// Abort commands of a queue in progress (ACL + 1).
pub const ABORTS_MAX: u8 = 4;
/// Namespaces: the log page of asymmetric access reports all of them within [`TRANSFER_BYTES_MAX`].
pub const NAMESPACES_MAX: u32 = 1024;
/// Bytes that one command may move, as a power of two of pages of 4 KiB (MDTS): 1 MiB.
pub const TRANSFER_EXPONENT: u8 = 8;
/// Bytes that one command may move.
pub const TRANSFER_BYTES_MAX: u64 = 4096 << TRANSFER_EXPONENT;
/// Source ranges of a Copy, less one (MSRC): one list holds as many in every format.
pub const COPY_RANGES_MAX: u8 = 127;
/// Bytes of a Copy. A host waits for one that is so long without aborting it.
pub const COPY_BYTES_MAX: u64 = 64 << 20;

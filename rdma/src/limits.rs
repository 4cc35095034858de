//! Limits of what peers may cause.

use std::time::Duration;

/// Connections of an address that were accepted and have not ended: some thirty hosts with eight channels each. A host
/// has at most as many as it leaves for others ([`lunar_core::shares`]).
pub const CONNECTIONS_MAX: usize = 256;
/// Connections that are not established. A request costs its sender one datagram, and its source address can be forged:
/// the oldest one gives way to another one, so a flood of requests mostly ends its own.
pub const HALF_OPEN_MAX: usize = 64;
/// Of these, requests of one address: as many channels as a host opens at once.
pub const HALF_OPEN_OF_PEER_MAX: usize = 16;
/// Connections that have ended, and whose peers have not confirmed it or whose numbers are not used again yet: as many
/// as there are others. They take no room of these.
pub const ENDED_MAX: usize = CONNECTIONS_MAX;
/// Messages of the connection manager that wait to be sent. A message is the answer to one that is as long.
pub const MESSAGES_MAX: usize = 256;
/// Last answers of connections that have failed, and that wait to be sent. Without one, the peer learns of the end from
/// the disconnect request.
pub const FAREWELLS_MAX: usize = 64;
/// Bytes that an entry of a queue counts for besides its data: its memory. A peer may divide its memory into pieces of
/// one byte, each of which is an entry.
pub const ENTRY_BYTES: usize = 128;
/// Packets of a connection that leave before it is the turn of another one: a quarter of what a socket takes at once.
pub const BURST: usize = 16;
/// Packets that are sent and not acknowledged. The kernel's software RoCE has the same limit.
pub const WINDOW: u32 = 128;
/// Every so many packets request an acknowledgement: several times in a window.
pub const ACKNOWLEDGE_EVERY: u32 = 32;
/// Bytes that one RDMA READ requests: the responses arrive in a row, and a socket of an ordinary user has a queue of
/// some 200 KiB.
pub const READ_MAX: usize = 32 << 10;
/// Bytes of one request for data of a command: as much as a step moves at once.
pub const BURST_MAX: usize = lunar_core::step::PIECE_BYTES;
/// RDMA READs of a connection that are outstanding, if the peer allows as many.
pub const READS_MAX: u8 = 4;
/// The time without progress after which packets are sent again for the first time; each time without progress doubles
/// it. A peer acknowledges within microseconds, and a busy machine within some ten milliseconds.
pub const TIMEOUT: Duration = Duration::from_millis(200);
/// This time is at least so many times as long as an answer takes.
pub const ANSWER_FACTOR: u32 = 4;
/// The longest of these times.
pub const TIMEOUT_MAX: Duration = Duration::from_millis(1600);
/// How often packets are sent again without any progress before the connection ends: for some 17 seconds. A switch that
/// restarts one of two paths takes less.
pub const RETRIES: u32 = 12;
/// How often a peer may answer that it is not ready, without any progress. It names the pause itself, 0.66 s at most.
pub const NOT_READY_MAX: u32 = 64;
/// The time without any packet of a peer after which it is asked whether it is there.
pub const IDLE: Duration = Duration::from_secs(15);
/// The time after which a reply of the connection manager, or a disconnect request, is sent again: that of Linux.
pub const REPLY_INTERVAL: Duration = Duration::from_millis(4300);
/// How often it is sent.
pub const REPLIES: u32 = 3;
/// How long a request may wait for its answer: the session before it has to end first.
pub const ACCEPT_TIME: Duration = Duration::from_secs(60);
/// How long the numbers of a connection that has ended stay in use, so that late packets do not reach another one.
pub const TIME_WAIT: Duration = Duration::from_secs(2);
/// RDMA READs of a connection that an RDMA device has outstanding: enough for 100 Gb/s over a room, in pieces of
/// [`READ_MAX`].
pub const DEVICE_READS_MAX: u8 = 16;
/// Requests of a connection that an RDMA device has: what does not fit waits.
pub const DEVICE_REQUESTS: usize = 128;
/// Pieces of memory of such a request: a request of contiguous memory has few.
pub const DEVICE_PIECES_MAX: usize = 16;
/// Bytes of locked memory for messages of all connections of a port on an RDMA device: for some 120 queues of NVMe with
/// 128 entries, or for 60 channels of SRP. One peer has at most as much as it leaves for others.
pub const DEVICE_INBOX_BYTES: usize = 128 << 20;
/// The time without any progress of a connection on an RDMA device after which it ends. The device repeats for some
/// seconds by itself, but waits without an end for a peer that is not ready.
pub const DEVICE_STALL: Duration = Duration::from_secs(30);
/// How often connections on an RDMA device are looked at.
pub const DEVICE_TICK: Duration = Duration::from_secs(5);
/// The time for the end of a connection on an RDMA device, in which the peer confirms it.
pub const DEVICE_END: Duration = Duration::from_secs(15);

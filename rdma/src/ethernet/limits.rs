//! Limits of what stations of a link may cause.

use crate::limits::CONNECTIONS_MAX;
use std::time::Duration;

/// Neighbours with a known MAC address: one for each connection, and some to which rejections were sent. The one that
/// was used least recently makes room.
pub const NEIGHBOURS_MAX: usize = 2 * CONNECTIONS_MAX;
/// Neighbours whose MAC address is being asked for. Source addresses of requests can be forged, and most of these
/// get no answer: the oldest one makes room, and those that are known stay.
pub const UNRESOLVED_MAX: usize = 64;
/// Datagrams that wait for the MAC address of one neighbour: when a process that was killed begins again, it
/// disconnects all channels of a host at once, of which there are so many (RFC 1122 2.3.2.2: at least one).
pub const WAITING_MAX: usize = 64;
/// Datagrams that wait for MAC addresses in all: one for each connection.
pub const WAITING_TOTAL_MAX: usize = CONNECTIONS_MAX;
/// How long a MAC address is used before the neighbour is asked whether it is still right (REACHABLE_TIME of RFC 4861
/// section 10).
pub const REACHABLE: Duration = Duration::from_secs(30);
/// The time between two questions to a neighbour (RETRANS_TIMER of RFC 4861 section 10; RFC 1122 2.3.2.1 has the same
/// for ARP).
pub const QUESTION_INTERVAL: Duration = Duration::from_secs(1);
/// How often a neighbour is asked (MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT of RFC 4861 section 10).
pub const QUESTIONS: u32 = 3;
/// How long a neighbour to which nothing is sent is remembered.
pub const UNUSED: Duration = Duration::from_secs(600);
/// The period of all rates.
pub const PERIOD: Duration = Duration::from_secs(1);
/// Questions about neighbours in a period: forged requests of one station must not become a flood of broadcasts.
pub const QUESTIONS_MAX: u32 = 64;
/// Answers to ARP requests and neighbour solicitations in a period, of all stations and of one: as many as a large
/// network asks, whose hosts remember an answer for half a minute.
pub const ANSWERS_MAX: (u32, u32) = (256, 16);
/// Answers to echo requests in a period, of all stations and of one: `ping` sends one, with short intervals some.
pub const ECHOES_MAX: (u32, u32) = (64, 16);
/// The time between two probes, and between two announcements (PROBE_MAX and ANNOUNCE_INTERVAL of RFC 5227 section
/// 1.1 have this order of magnitude).
pub const CLAIM_INTERVAL: Duration = Duration::from_secs(1);
/// Probes (PROBE_NUM of RFC 5227 is 3), then announcements (ANNOUNCE_NUM of RFC 5227 section 1.1), of an address.
pub const PROBES: u32 = 2;
/// See [`PROBES`].
pub const ANNOUNCEMENTS: u32 = 2;
/// The time between two announcements that defend an address (DEFEND_INTERVAL of RFC 5227 section 1.1), and before an
/// address that another station has is claimed again.
pub const DEFEND_INTERVAL: Duration = Duration::from_secs(10);
/// How long a conflict is reported after its last sign.
pub const CONFLICT_MEMORY: Duration = Duration::from_secs(60);

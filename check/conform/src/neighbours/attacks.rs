//! The attacks: one description for all transports.

use super::transport::{Request, Source, Stage, Transport};

/// The actions of the attackers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    /// Each of `sessions` sends the request as often as it may, reads no answer, and sends no requested data.
    Hold { request: Request, sessions: u16 },
    /// Each of `sessions` sends the request as often as it may, reads the answers, and goes on.
    Flood { request: Request, sessions: u16 },
    /// So many connections stay at a stage.
    Stay { stage: Stage, connections: u16 },
    /// Connections reach a stage and end, one after the other, on two threads.
    Churn { stage: Stage },
}

/// An attack.
#[derive(Debug)]
pub(super) struct Attack {
    pub(super) name: &'static str,
    pub(super) from: Source,
    pub(super) act: Act,
}

/// Sessions of an attacker that is another host: with a full command window each, more commands than a core has slots
/// for one host.
const SESSIONS: u16 = 64;
/// Sessions of an attacker with the address of the victim.
const SESSIONS_BESIDE: u16 = 16;
/// Sessions that flood.
const FLOODS: u16 = 4;
/// Sessions that flood together: with as many commands as each may have in progress, all that a core takes.
const CROWD: u16 = 24;

const fn hold(name: &'static str, request: Request) -> Attack {
    Attack { name, from: Source::Other, act: Act::Hold { request, sessions: SESSIONS } }
}

const fn hold_beside(name: &'static str, request: Request) -> Attack {
    Attack { name, from: Source::Same, act: Act::Hold { request, sessions: SESSIONS_BESIDE } }
}

const fn flood(name: &'static str, request: Request) -> Attack {
    Attack { name, from: Source::Other, act: Act::Flood { request, sessions: FLOODS } }
}

const fn crowd(name: &'static str, request: Request) -> Attack {
    Attack { name, from: Source::Other, act: Act::Flood { request, sessions: CROWD } }
}

const fn stay(name: &'static str, from: Source, stage: Stage, connections: u16) -> Attack {
    Attack { name, from, act: Act::Stay { stage, connections } }
}

const fn churn(name: &'static str, from: Source, stage: Stage) -> Attack {
    Attack { name, from, act: Act::Churn { stage } }
}

/// All attacks.
pub(super) const ATTACKS: [Attack; 49] = [
    hold("short writes, data never sent", Request::ShortWrite),
    hold_beside("short writes, data never sent, same address", Request::ShortWrite),
    hold("long writes, data never sent", Request::LongWrite),
    hold_beside("long writes, data never sent, same address", Request::LongWrite),
    hold("announced data never sent", Request::AnnouncedWrite),
    hold_beside("announced data never sent, same address", Request::AnnouncedWrite),
    hold("announced data behind a missing command", Request::OutOfOrderWrite),
    hold("long reads, answers not read", Request::LongRead),
    hold_beside("long reads, answers not read, same address", Request::LongRead),
    hold("pings, answers not read", Request::Ping),
    hold("descriptions, answers not read", Request::Describe),
    stay("discovery without end", Source::Other, Stage::Discovery, 200),
    stay("half-open connections", Source::Other, Stage::Open, 1200),
    stay("half-open connections, same address", Source::Same, Stage::Open, 200),
    stay("incomplete login", Source::Other, Stage::HalfRequest, 300),
    stay("incomplete login, same address", Source::Same, Stage::HalfRequest, 100),
    stay("sessions of hosts that are gone", Source::Other, Stage::Vanished, 300),
    churn("discovery storm", Source::Other, Stage::Discovery),
    churn("login storm", Source::Other, Stage::LoggedIn),
    churn("login storm, same address", Source::Same, Stage::LoggedIn),
    // The connections that wait in the queues of sockets would delay logins.
    churn("connect storm", Source::Other, Stage::Open),
    flood("long reads", Request::LongRead),
    flood("long writes", Request::Write),
    flood("deallocation of the most ranges", Request::Unmap),
    flood("long writes of a pattern or of zeroes", Request::WriteSame),
    flood("long verifications", Request::Verify),
    crowd("long verifications of many hosts", Request::Verify),
    flood("long comparisons", Request::Compare),
    flood("long copies", Request::Copy),
    flood("formats", Request::Format),
    flood("sanitize operations", Request::Sanitize),
    flood("compare and write of one block", Request::CompareAndWrite),
    flood("aborts", Request::Abort),
    flood("descriptions of the device", Request::Describe),
    flood("pings", Request::Ping),
    flood("asynchronous event requests", Request::AsyncEvent),
    flood("reservation keys", Request::Register),
    flood("flushes", Request::Flush),
    flood("commands that do not exist", Request::Unknown),
    flood("reads into the longest scatter lists", Request::ScatteredRead),
    flood("doorbell registers", Request::Doorbell),
    flood("changes of the memory map", Request::Remap),
    flood("resets", Request::Reset),
    flood("rings that break and are set up again", Request::SetUp),
    flood("the same write again and again", Request::Repeat),
    crowd("overlapping writes to a slow medium", Request::Overlap),
    flood("stations of no group", Request::Stranger),
    flood("new stations without end", Request::Newcomer),
    flood("configuration strings and station lists", Request::Rename),
];

const WRITES: Attack = hold("long writes, data never sent", Request::LongWrite);
const READS: Attack = hold("long reads, answers not read", Request::LongRead);
const READ_FLOOD: Attack = flood("long reads", Request::LongRead);
const WRITE_FLOOD: Attack = flood("long writes", Request::Write);
const STRANGERS: Attack = flood("stations of no group", Request::Stranger);
const SLOW_WRITES: Attack = crowd("overlapping writes to a slow medium", Request::Overlap);

/// Transports, in the order of the suite.
const ISCSI: usize = 0;
const NVME: usize = 1;
const VFIO: usize = 2;
const DISK: usize = 3;
const ADAPTER: usize = 4;
const AOE: usize = 5;
const FCOE: usize = 6;
const ST: usize = 7;

/// The attacks between transports, with the transports of the attackers and of the victim: representatives that hold
/// memory and slots, and those that take the time of the core.
pub(super) const ACROSS: [(Attack, usize, usize); 22] = [
    (READS, ISCSI, FCOE),
    (READS, ISCSI, ST),
    (READ_FLOOD, FCOE, ISCSI),
    (READ_FLOOD, ST, NVME),
    (STRANGERS, FCOE, ISCSI),
    (STRANGERS, ST, ISCSI),
    (SLOW_WRITES, AOE, NVME),
    (WRITES, ISCSI, NVME),
    (WRITES, NVME, ISCSI),
    (WRITES, ISCSI, VFIO),
    (WRITES, ISCSI, DISK),
    (WRITES, NVME, AOE),
    (READS, ISCSI, NVME),
    (READS, NVME, ISCSI),
    (READS, ISCSI, VFIO),
    (READS, ISCSI, ADAPTER),
    (READS, ISCSI, AOE),
    (READ_FLOOD, DISK, ISCSI),
    (READ_FLOOD, ADAPTER, AOE),
    (READ_FLOOD, AOE, NVME),
    (WRITE_FLOOD, DISK, NVME),
    (WRITE_FLOOD, AOE, ISCSI),
];

impl Attack {
    /// Whether the attack exists for a transport.
    pub(super) fn applies_to(&self, transport: &dyn Transport) -> bool {
        let is_possible = match self.act {
            Act::Hold { request, .. } | Act::Flood { request, .. } => transport.has_request(request),
            Act::Stay { stage, .. } | Act::Churn { stage } => transport.has_stage(stage),
        };
        // Fewer attackers than a crowd needs do the same as those of another attack.
        let is_crowd = matches!(self.act, Act::Flood { sessions: CROWD, .. });
        let is_large = !is_crowd || transport.attackers_max() >= CROWD;
        is_possible && is_large && (self.from == Source::Other || transport.has_addresses())
    }

    /// Whether the short form omits the attack: its commands are executed by a command set that another transport of
    /// the suite attacks in the same way.
    pub(super) fn is_repeated_on(&self, transport: &dyn Transport) -> bool {
        let is_of_command_set = matches!(
            self.act,
            Act::Flood {
                request: Request::Unmap
                    | Request::WriteSame
                    | Request::Verify
                    | Request::Compare
                    | Request::Copy
                    | Request::Format
                    | Request::Sanitize
                    | Request::CompareAndWrite
                    | Request::Describe
                    | Request::Register
                    | Request::Flush
                    | Request::Unknown,
                ..
            }
        );
        is_of_command_set && transport.shares_command_set()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attack_has_a_name_of_its_own_that_tells_its_address() {
        for (at, attack) in ATTACKS.iter().enumerate() {
            assert!(ATTACKS[..at].iter().all(|other| other.name != attack.name), "{}", attack.name);
            assert_eq!(attack.name.ends_with("same address"), attack.from == Source::Same, "{}", attack.name);
        }
    }
}

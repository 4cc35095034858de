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

const fn hold(name: &'static str, request: Request) -> Attack {
    Attack { name, from: Source::Other, act: Act::Hold { request, sessions: SESSIONS } }
}

const fn hold_beside(name: &'static str, request: Request) -> Attack {
    Attack { name, from: Source::Same, act: Act::Hold { request, sessions: SESSIONS_BESIDE } }
}

const fn flood(name: &'static str, request: Request) -> Attack {
    Attack { name, from: Source::Other, act: Act::Flood { request, sessions: FLOODS } }
}

const fn stay(name: &'static str, from: Source, stage: Stage, connections: u16) -> Attack {
    Attack { name, from, act: Act::Stay { stage, connections } }
}

const fn churn(name: &'static str, from: Source, stage: Stage) -> Attack {
    Attack { name, from, act: Act::Churn { stage } }
}

/// All attacks.
pub(super) const ATTACKS: [Attack; 38] = [
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
    stay("half a login", Source::Other, Stage::HalfRequest, 300),
    stay("half a login, same address", Source::Same, Stage::HalfRequest, 100),
    churn("connect storm", Source::Other, Stage::Open),
    churn("discovery storm", Source::Other, Stage::Discovery),
    churn("login storm", Source::Other, Stage::LoggedIn),
    churn("login storm, same address", Source::Same, Stage::LoggedIn),
    flood("long reads", Request::LongRead),
    flood("deallocation of the most ranges", Request::Unmap),
    flood("long writes of a pattern or of zeroes", Request::WriteSame),
    flood("long verifications", Request::Verify),
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
    flood("reads into the longest scatter lists", Request::ScatteredRead),
    flood("doorbell registers", Request::Doorbell),
    flood("changes of the memory map", Request::Remap),
    flood("resets", Request::Reset),
];

/// The attacks between transports: a representative that holds memory and slots.
pub(super) const ACROSS: [Attack; 2] =
    [hold("long writes, data never sent", Request::LongWrite), hold("long reads, answers not read", Request::LongRead)];

impl Attack {
    /// Whether the attack exists for a transport.
    pub(super) fn applies_to(&self, transport: &dyn Transport) -> bool {
        let is_possible = match self.act {
            Act::Hold { request, .. } | Act::Flood { request, .. } => transport.has_request(request),
            Act::Stay { stage, .. } | Act::Churn { stage } => transport.has_stage(stage),
        };
        is_possible && (self.from == Source::Other || transport.has_addresses())
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

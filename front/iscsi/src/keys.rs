//! The keys of RFC 7143 clauses 12 and 13, declared once: form, default, who sends it, when, and how the two
//! sides' values are joined. Parsing, checks and answers derive from [`TABLE`].

use crate::config::Config;
use crate::text::{self, IRRELEVANT, NOT_UNDERSTOOD, REJECT};
use crate::wire::LoginStatus;
use std::rc::Rc;
use std::sync::Arc;

/// What was agreed; before, the defaults of the standard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Parameters {
    /// HeaderDigest is CRC32C.
    pub header_digest: bool,
    /// DataDigest is CRC32C.
    pub data_digest: bool,
    /// MaxConnections.
    pub max_connections: u32,
    /// InitialR2T.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength of the initiator: bytes of a segment sent to it at most.
    pub max_send_segment: u32,
    /// MaxBurstLength.
    pub max_burst: u32,
    /// FirstBurstLength.
    pub first_burst: u32,
    /// DefaultTime2Wait in seconds.
    pub time_to_wait: u32,
    /// DefaultTime2Retain in seconds.
    pub time_to_retain: u32,
    /// MaxOutstandingR2T.
    pub max_outstanding_r2t: u32,
    /// DataPDUInOrder.
    pub data_pdu_in_order: bool,
    /// DataSequenceInOrder.
    pub data_sequence_in_order: bool,
    /// ErrorRecoveryLevel.
    pub recovery_level: u32,
    /// iSCSIProtocolLevel.
    pub protocol_level: u32,
}

/// What the initiator says of itself and of the target that it wants.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Names {
    /// InitiatorName, in lower case.
    pub initiator: Option<Arc<str>>,
    /// InitiatorAlias.
    pub alias: Option<Arc<str>>,
    /// TargetName, in lower case.
    pub target: Option<Arc<str>>,
    /// SessionType is Discovery.
    pub discovery: bool,
}

/// Where in a connection's life text is exchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Login, SecurityNegotiation.
    Security,
    /// Login, LoginOperationalNegotiation.
    Operational,
    /// After login.
    FullFeature,
}

/// When a key may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// In the security stage of the login.
    Security,
    /// In the login.
    Login,
    /// In the login and after.
    Always,
    /// After the login.
    FullFeature,
}

/// Who may send a key first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sender {
    /// The initiator alone.
    Initiator,
    /// The target alone.
    Target,
    /// Both.
    Both,
}

/// What a key's value is, and what becomes of it.
pub enum Form {
    /// Negotiated: `Yes` or `No`.
    Boolean {
        /// If nobody sends it.
        default: bool,
        /// What the target offers.
        ours: fn(&Config) -> bool,
        /// The result of both.
        join: fn(bool, bool) -> bool,
        /// Where the result goes.
        place: fn(&mut Parameters) -> &mut bool,
    },
    /// Negotiated: a number.
    Number {
        /// If nobody sends it.
        default: u32,
        /// The least and the greatest that may be offered.
        allowed: (u32, u32),
        /// What the target offers.
        ours: fn(&Config) -> u32,
        /// The result of both.
        join: fn(u32, u32) -> u32,
        /// Where the result goes.
        place: fn(&mut Parameters) -> &mut u32,
    },
    /// Negotiated: the first of a list that the target can accept.
    Choice {
        /// Whether this member can be accepted.
        accepts: fn(&Config, &str) -> bool,
        /// Where the result goes.
        place: fn(&mut Parameters, &str),
    },
    /// Declared: a number; there is no answer.
    Limit {
        /// If nobody sends it.
        default: u32,
        /// The least and the greatest that may be declared.
        allowed: (u32, u32),
        /// Where it goes.
        place: fn(&mut Parameters) -> &mut u32,
    },
    /// Declared: text; there is no answer.
    Text {
        /// Checks and keeps it.
        place: fn(&mut Names, &str) -> Result<(), LoginStatus>,
    },
    /// Always answered the same.
    Fixed(&'static str),
    /// Looked at by the machine that takes the text, not here.
    Elsewhere,
}

/// One row: all there is to say of a key.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub form: Form,
    /// Who sends it.
    pub sender: Sender,
    /// When.
    pub when: When,
    /// Whether it means something by what is agreed so far; else it is answered `Irrelevant`. Who sends keys in another
    /// order gets an answer to each: 6.2 has `Irrelevant` for what the acceptor knows to be it by then.
    pub relevant: fn(&Negotiation) -> bool,
}

/// Limits of lengths in 13.12 to 13.14.
const LENGTHS: (u32, u32) = (512, 0xff_ffff);
/// Limits of times in 13.15 and 13.16, in seconds.
const TIMES: (u32, u32) = (0, 3600);

const fn either(ours: bool, theirs: bool) -> bool {
    ours || theirs
}

const fn both(ours: bool, theirs: bool) -> bool {
    ours && theirs
}

/// In every session.
fn always(_: &Negotiation) -> bool {
    true
}

/// Not in a discovery session.
fn with_units(negotiation: &Negotiation) -> bool {
    !negotiation.names.discovery
}

/// 13.14: and not where nothing is sent unasked. InitialR2T can be agreed to be No until it was sent. Open-iscsi and
/// libiscsi, and what is made of them, read `Irrelevant` as a length of 0, which they use for unsolicited data only;
/// Windows offers immediate data unless it is told not to.
fn with_first_burst(negotiation: &Negotiation) -> bool {
    let Negotiation { parameters, .. } = negotiation;
    let nothing_unasked = negotiation.saw("InitialR2T") && parameters.initial_r2t && !parameters.immediate_data;
    with_units(negotiation) && !nothing_unasked
}

/// A row that both may send, in the login only.
const fn negotiated(name: &'static str, form: Form, relevant: fn(&Negotiation) -> bool) -> Key {
    Key { name, form, sender: Sender::Both, when: When::Login, relevant }
}

/// A row of what the initiator declares.
const fn declared(name: &'static str, when: When, place: fn(&mut Names, &str) -> Result<(), LoginStatus>) -> Key {
    Key { name, form: Form::Text { place }, sender: Sender::Initiator, when, relevant: always }
}

/// A row of the security stage, which the states of the login look at.
const fn of_security(name: &'static str) -> Key {
    Key { name, form: Form::Elsewhere, sender: Sender::Both, when: When::Security, relevant: always }
}

/// A row of what only targets send.
const fn of_target(name: &'static str) -> Key {
    Key { name, form: Form::Elsewhere, sender: Sender::Target, when: When::Always, relevant: always }
}

const fn digest(name: &'static str, place: fn(&mut Parameters, &str)) -> Key {
    let accepts = |config: &Config, value: &str| value == text::NONE || (value == "CRC32C" && config.digests);
    negotiated(name, Form::Choice { accepts, place }, always)
}

/// Every key, in the order of the clauses.
pub const TABLE: &[Key] = &[
    // 12.1. What can be accepted depends on whom the answer from outside lets in, and on what came before.
    of_security("AuthMethod"),
    of_security("CHAP_A"),
    of_security("CHAP_I"),
    of_security("CHAP_C"),
    of_security("CHAP_N"),
    of_security("CHAP_R"),
    digest("HeaderDigest", |parameters, value| parameters.header_digest = value != text::NONE),
    digest("DataDigest", |parameters, value| parameters.data_digest = value != text::NONE),
    negotiated(
        "MaxConnections",
        Form::Number {
            default: 1,
            allowed: (1, 65_535),
            ours: |_| 1,
            join: Ord::min,
            place: |parameters| &mut parameters.max_connections,
        },
        with_units,
    ),
    Key {
        name: "SendTargets",
        form: Form::Elsewhere,
        sender: Sender::Initiator,
        when: When::FullFeature,
        relevant: always,
    },
    declared("TargetName", When::Login, |names, value| {
        names.target = Some(name(value).ok_or(LoginStatus::NOT_FOUND)?);
        Ok(())
    }),
    declared("InitiatorName", When::Login, |names, value| {
        names.initiator = Some(name(value).ok_or(LoginStatus::INITIATOR_ERROR)?);
        Ok(())
    }),
    of_target("TargetAlias"),
    declared("InitiatorAlias", When::Always, |names, value| {
        names.alias = Some(alias(value).ok_or(LoginStatus::INITIATOR_ERROR)?);
        Ok(())
    }),
    of_target("TargetAddress"),
    of_target("TargetPortalGroupTag"),
    negotiated(
        "InitialR2T",
        Form::Boolean {
            default: true,
            ours: |config| config.initial_r2t,
            join: either,
            place: |parameters| &mut parameters.initial_r2t,
        },
        with_units,
    ),
    negotiated(
        "ImmediateData",
        Form::Boolean {
            default: true,
            ours: |config| config.immediate_data,
            join: both,
            place: |parameters| &mut parameters.immediate_data,
        },
        with_units,
    ),
    Key {
        name: "MaxRecvDataSegmentLength",
        form: Form::Limit { default: 8192, allowed: LENGTHS, place: |parameters| &mut parameters.max_send_segment },
        sender: Sender::Both,
        when: When::Always,
        relevant: always,
    },
    negotiated(
        "MaxBurstLength",
        Form::Number {
            default: 262_144,
            allowed: LENGTHS,
            ours: |config| config.max_burst,
            join: Ord::min,
            place: |parameters| &mut parameters.max_burst,
        },
        with_units,
    ),
    negotiated(
        "FirstBurstLength",
        Form::Number {
            default: 65_536,
            allowed: LENGTHS,
            ours: |config| config.first_burst,
            join: Ord::min,
            place: |parameters| &mut parameters.first_burst,
        },
        with_first_burst,
    ),
    negotiated(
        "DefaultTime2Wait",
        Form::Number {
            default: 2,
            allowed: TIMES,
            ours: |config| config.time_to_wait,
            join: Ord::max,
            place: |parameters| &mut parameters.time_to_wait,
        },
        always,
    ),
    negotiated(
        "DefaultTime2Retain",
        Form::Number {
            default: 20,
            allowed: TIMES,
            ours: |config| config.time_to_retain,
            join: Ord::min,
            place: |parameters| &mut parameters.time_to_retain,
        },
        always,
    ),
    negotiated(
        "MaxOutstandingR2T",
        Form::Number {
            default: 1,
            allowed: (1, 65_535),
            ours: |config| config.max_outstanding_r2t,
            join: Ord::min,
            place: |parameters| &mut parameters.max_outstanding_r2t,
        },
        with_units,
    ),
    negotiated(
        "DataPDUInOrder",
        Form::Boolean {
            default: true,
            ours: |_| true,
            join: either,
            place: |parameters| &mut parameters.data_pdu_in_order,
        },
        with_units,
    ),
    negotiated(
        "DataSequenceInOrder",
        Form::Boolean {
            default: true,
            ours: |_| true,
            join: either,
            place: |parameters| &mut parameters.data_sequence_in_order,
        },
        with_units,
    ),
    negotiated(
        "ErrorRecoveryLevel",
        Form::Number {
            default: 0,
            allowed: (0, 2),
            ours: |_| 0,
            join: Ord::min,
            place: |parameters| &mut parameters.recovery_level,
        },
        always,
    ),
    declared("SessionType", When::Login, |names, value| {
        names.discovery = match value {
            "Normal" => false,
            "Discovery" => true,
            _ => return Err(LoginStatus::SESSION_TYPE_NOT_SUPPORTED),
        };
        Ok(())
    }),
    // 13.23: the clarified semantics of RFC 3720 alone; nothing is fenced, no abort is fast.
    negotiated("TaskReporting", Form::Choice { accepts: |_, value| value == "RFC3720", place: |_, _| {} }, with_units),
    negotiated(
        "iSCSIProtocolLevel",
        Form::Number {
            default: 1,
            allowed: (0, 31),
            ours: |config| config.protocol_level,
            join: Ord::min,
            place: |parameters| &mut parameters.protocol_level,
        },
        with_units,
    ),
    // 13.25: obsolete, and never "not understood".
    negotiated("IFMarker", Form::Fixed("No"), always),
    negotiated("OFMarker", Form::Fixed("No"), always),
    negotiated("IFMarkInt", Form::Fixed(REJECT), always),
    negotiated("OFMarkInt", Form::Fixed(REJECT), always),
    // RFC 7145 6.3: this is TCP.
    negotiated("RDMAExtensions", Form::Fixed("No"), always),
];

// One bit each in `Negotiation::seen`.
const _: () = assert!(TABLE.len() <= 64);

/// A name of 4.2.7 is at most this long.
const NAME_MAX: usize = 223;

/// An iSCSI name in lower case, if it is one.
fn name(value: &str) -> Option<Arc<str>> {
    let lower = value.to_lowercase();
    let known = ["iqn.", "eui.", "naa."].iter().any(|kind| lower.starts_with(kind));
    // What would read as the end of a name in lists, logs and port names.
    let plain = !lower.chars().any(|c| c.is_control() || c.is_whitespace() || c == ',');
    (known && plain && value.len() <= NAME_MAX).then(|| lower.into())
}

fn alias(value: &str) -> Option<Arc<str>> {
    (value.len() <= text::VALUE_MAX && !value.chars().any(char::is_control)).then(|| value.into())
}

impl Parameters {
    /// The defaults of the table.
    #[must_use]
    pub fn initial() -> Self {
        let mut parameters = Self::default();
        for key in TABLE {
            match key.form {
                Form::Boolean { default, place, .. } => *place(&mut parameters) = default,
                Form::Number { default, place, .. } | Form::Limit { default, place, .. } => {
                    *place(&mut parameters) = default;
                }
                Form::Choice { .. } | Form::Text { .. } | Form::Fixed(_) | Form::Elsewhere => {}
            }
        }
        parameters
    }
}

/// One side of a negotiation: takes the initiator's pairs, answers them, and keeps the result.
#[derive(Debug)]
pub struct Negotiation {
    config: Rc<Config>,
    /// What is agreed so far.
    pub parameters: Parameters,
    /// What the initiator has declared so far.
    pub names: Names,
    /// Keys that were sent, by their place in the table.
    seen: u64,
}

/// What became of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// It is dealt with.
    Done,
    /// The machine that took the text has to look at it.
    Elsewhere,
}

impl Negotiation {
    /// At the start of a connection.
    #[must_use]
    pub fn new(config: Rc<Config>) -> Self {
        Self { config, parameters: Parameters::initial(), names: Names::default(), seen: 0 }
    }

    /// After the login: what was agreed stays, and keys may be sent again.
    pub fn resume(&mut self, parameters: &Parameters) {
        self.parameters = *parameters;
        self.seen = 0;
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &Rc<Config> {
        &self.config
    }

    /// Whether the initiator has sent this key.
    fn saw(&self, key: &str) -> bool {
        TABLE.iter().position(|row| row.name == key).is_some_and(|at| self.seen & 1 << at != 0)
    }

    /// Goes by other settings from now on.
    pub fn set_config(&mut self, config: Rc<Config>) {
        self.config = config;
    }

    /// Takes a pair, and writes its answer, if it has one, to `answer`.
    ///
    /// # Errors
    /// How a login ends that has sent it. After the login the text is rejected.
    pub fn take(&mut self, phase: Phase, key: &str, value: &str, answer: &mut Vec<u8>) -> Result<Taken, LoginStatus> {
        let Some(at) = TABLE.iter().position(|row| row.name == key) else {
            text::put(answer, key, NOT_UNDERSTOOD);
            return Ok(Taken::Done);
        };
        // 6.2: nothing is negotiated or declared twice.
        if self.seen & 1 << at != 0 {
            return Err(LoginStatus::INITIATOR_ERROR);
        }
        self.seen |= 1 << at;
        let row = &TABLE[at];
        if !row.when.holds(phase) || row.sender == Sender::Target {
            text::put(answer, key, REJECT);
            return Ok(Taken::Done);
        }
        if !(row.relevant)(self) {
            text::put(answer, key, IRRELEVANT);
            return Ok(Taken::Done);
        }
        if matches!(row.form, Form::Elsewhere) {
            return Ok(Taken::Elsewhere);
        }
        if let Some(reply) = self.answer(&row.form, value)? {
            text::put(answer, key, reply);
        }
        Ok(Taken::Done)
    }

    /// The answer to a value; none to what is declared.
    fn answer(&mut self, form: &Form, value: &str) -> Result<Option<String>, LoginStatus> {
        let (config, parameters) = (&self.config, &mut self.parameters);
        let reply = match *form {
            Form::Boolean { ours, join, place, .. } => text::boolean(value).map(|theirs| {
                let result = join(ours(config), theirs);
                *place(parameters) = result;
                text::yes_or_no(result).into()
            }),
            Form::Number { allowed, ours, join, place, .. } => within(value, allowed).map(|theirs| {
                let result = join(ours(config), theirs);
                *place(parameters) = result;
                result.to_string()
            }),
            Form::Choice { accepts, place } => text::list(value).find(|member| accepts(config, member)).map(|member| {
                place(parameters, member);
                member.into()
            }),
            Form::Limit { allowed, place, .. } => match within(value, allowed) {
                Some(limit) => {
                    *place(parameters) = limit;
                    return Ok(None);
                }
                None => None,
            },
            Form::Text { place } => return place(&mut self.names, value).map(|()| None),
            Form::Fixed(reply) => Some(reply.into()),
            Form::Elsewhere => return Ok(None),
        };
        Ok(Some(reply.unwrap_or_else(|| REJECT.into())))
    }
}

fn within(value: &str, (low, high): (u32, u32)) -> Option<u32> {
    let number = u32::try_from(text::number(value)?).ok()?;
    (low..=high).contains(&number).then_some(number)
}

impl When {
    fn holds(self, phase: Phase) -> bool {
        match self {
            Self::Security => phase == Phase::Security,
            Self::Login => phase != Phase::FullFeature,
            Self::Always => true,
            Self::FullFeature => phase == Phase::FullFeature,
        }
    }
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;

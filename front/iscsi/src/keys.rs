//! The keys of RFC 7143 clauses 12 and 13, declared once: form, default, sender, phase, and how the result follows from
//! the values of both sides. Parsing, checks and answers derive from [`TABLE`].

use crate::config::Config;
use crate::text::{self, IRRELEVANT, NOT_UNDERSTOOD, REJECT};
use crate::wire::LoginStatus;
use std::rc::Rc;
use std::sync::Arc;

/// The negotiated parameters; before a negotiation, the defaults of the standard.
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
    /// MaxRecvDataSegmentLength of the initiator: most bytes of a data segment that is sent to it.
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
    /// RDMAExtensions.
    pub rdma_extensions: bool,
    /// TargetRecvDataSegmentLength.
    pub target_recv_segment: u32,
    /// InitiatorRecvDataSegmentLength.
    pub initiator_recv_segment: u32,
    /// TaggedBufferForSolicitedDataOnly was declared as No: the tag of a write begins with the data that is sent with
    /// the command.
    pub tags_all_data: bool,
    /// MaxOutstandingUnexpectedPDUs of the initiator; zero: no limit.
    pub unexpected_pdus: u32,
}

/// The names that the initiator declares.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Names {
    /// InitiatorName, in lower case.
    pub initiator: Option<Arc<str>>,
    /// InitiatorAlias.
    pub alias: Option<Arc<str>>,
    /// TargetName, in lower case.
    pub target: Option<Arc<str>>,
    /// Whether SessionType is Discovery.
    pub discovery: bool,
}

/// The phase of a connection in which text is exchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Login, SecurityNegotiation.
    Security,
    /// Login, LoginOperationalNegotiation.
    Operational,
    /// After login.
    FullFeature,
}

/// The phases in which a key may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// In the security stage of the login only.
    Security,
    /// In the login only.
    Login,
    /// In the login and in the full-feature phase.
    Always,
    /// In the full-feature phase only.
    FullFeature,
}

/// The sides that may send a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sender {
    /// The initiator only.
    Initiator,
    /// The target only.
    Target,
    /// Both.
    Both,
}

/// The form of a key's value, and its use.
pub enum Form {
    /// Negotiated: `Yes` or `No`.
    Boolean {
        /// The result without a negotiation.
        default: bool,
        /// The value of the target.
        target_value: fn(&Config) -> bool,
        /// The result of the target's and the initiator's values.
        combine: fn(bool, bool) -> bool,
        /// The parameter that the result is stored in.
        store: fn(&mut Parameters) -> &mut bool,
    },
    /// Negotiated: a number.
    Number {
        /// The result without a negotiation.
        default: u32,
        /// The smallest and the largest value that may be offered.
        allowed: (u32, u32),
        /// The value of the target.
        target_value: fn(&Config) -> u32,
        /// The result of the target's and the initiator's values.
        combine: fn(u32, u32) -> u32,
        /// The parameter that the result is stored in.
        store: fn(&mut Parameters) -> &mut u32,
    },
    /// Negotiated: the first value of a list that the target accepts.
    Choice {
        /// Whether the target accepts a value.
        accepts: fn(&Config, &str) -> bool,
        /// Stores the result.
        store: fn(&mut Parameters, &str),
    },
    /// Declared: a number. It is not answered.
    Limit {
        /// The value without a declaration.
        default: u32,
        /// The smallest and the largest value that may be declared.
        allowed: (u32, u32),
        /// The parameter that the value is stored in.
        store: fn(&mut Parameters) -> &mut u32,
    },
    /// Declared: `Yes` or `No`. It is not answered.
    Switch {
        /// Stores the value.
        store: fn(&mut Parameters, bool),
    },
    /// Declared: text. It is not answered.
    Text {
        /// Checks and stores the value.
        store: fn(&mut Names, &str) -> Result<(), LoginStatus>,
    },
    /// Always answered with this value.
    Fixed(&'static str),
    /// Handled by the caller of [`Negotiation::take`].
    ForCaller,
}

/// A row of [`TABLE`].
pub struct Key {
    /// The name of the key.
    pub name: &'static str,
    /// The form of its value.
    pub form: Form,
    /// The sides that may send it.
    pub sender: Sender,
    /// The phases in which it may be sent.
    pub when: When,
    /// Whether the key is relevant, given what was negotiated so far; if not, it is answered with `Irrelevant`. The
    /// order of keys matters: RFC 7143 6.2 demands `Irrelevant` only if the acceptor knows it by then.
    pub relevant: fn(&Negotiation) -> bool,
}

/// The limits of lengths (RFC 7143 13.12 to 13.14).
const LENGTHS: (u32, u32) = (512, 0xff_ffff);
/// The limits of times in seconds (RFC 7143 13.15, 13.16).
const TIMES: (u32, u32) = (0, 3600);

const fn either(target_value: bool, offered: bool) -> bool {
    target_value || offered
}

const fn both(target_value: bool, offered: bool) -> bool {
    target_value && offered
}

/// Relevant in every session.
fn always(_: &Negotiation) -> bool {
    true
}

/// Relevant in normal sessions only.
fn in_normal_session(negotiation: &Negotiation) -> bool {
    !negotiation.names.discovery
}

/// RFC 7143 13.14: not relevant without immediate and unsolicited data. InitialR2T may still become No until it was
/// sent. Open-iscsi, libiscsi and programs based on them read `Irrelevant` as a length of 0, which they use for
/// unsolicited data only; Windows sends immediate data unless it is configured otherwise.
fn with_first_burst(negotiation: &Negotiation) -> bool {
    let Negotiation { parameters, .. } = negotiation;
    let no_unsolicited_data = negotiation.saw("InitialR2T") && parameters.initial_r2t && !parameters.immediate_data;
    in_normal_session(negotiation) && !no_unsolicited_data
}

/// A row of a key that both sides may send, in the login only.
const fn negotiated(name: &'static str, form: Form, relevant: fn(&Negotiation) -> bool) -> Key {
    Key { name, form, sender: Sender::Both, when: When::Login, relevant }
}

/// A row of a key that the initiator declares.
const fn declared(name: &'static str, when: When, store: fn(&mut Names, &str) -> Result<(), LoginStatus>) -> Key {
    Key { name, form: Form::Text { store }, sender: Sender::Initiator, when, relevant: always }
}

/// A row of a key that the initiator declares as `Yes` or `No`, for the session.
const fn switch(name: &'static str, store: fn(&mut Parameters, bool)) -> Key {
    Key { name, form: Form::Switch { store }, sender: Sender::Initiator, when: When::Login, relevant: always }
}

/// A row of a key of the security stage, which the states of the login handle.
const fn of_security(name: &'static str) -> Key {
    Key { name, form: Form::ForCaller, sender: Sender::Both, when: When::Security, relevant: always }
}

/// A row of a key that only targets send.
const fn of_target(name: &'static str) -> Key {
    Key { name, form: Form::ForCaller, sender: Sender::Target, when: When::Always, relevant: always }
}

const fn digest(name: &'static str, store: fn(&mut Parameters, &str)) -> Key {
    let accepts = |config: &Config, value: &str| value == text::NONE || (value == "CRC32C" && config.digests);
    negotiated(name, Form::Choice { accepts, store }, always)
}

/// All keys, in the order of the clauses.
pub const TABLE: &[Key] = &[
    // RFC 7143 12.1. The accepted values depend on the answer to the authorization, and on the keys before.
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
            target_value: |_| 1,
            combine: Ord::min,
            store: |parameters| &mut parameters.max_connections,
        },
        in_normal_session,
    ),
    Key {
        name: "SendTargets",
        form: Form::ForCaller,
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
            target_value: |config| config.initial_r2t,
            combine: either,
            store: |parameters| &mut parameters.initial_r2t,
        },
        in_normal_session,
    ),
    negotiated(
        "ImmediateData",
        Form::Boolean {
            default: true,
            target_value: |config| config.immediate_data,
            combine: both,
            store: |parameters| &mut parameters.immediate_data,
        },
        in_normal_session,
    ),
    Key {
        name: "MaxRecvDataSegmentLength",
        form: Form::Limit { default: 8192, allowed: LENGTHS, store: |parameters| &mut parameters.max_send_segment },
        sender: Sender::Both,
        when: When::Always,
        relevant: always,
    },
    negotiated(
        "MaxBurstLength",
        Form::Number {
            default: 262_144,
            allowed: LENGTHS,
            target_value: |config| config.max_burst,
            combine: Ord::min,
            store: |parameters| &mut parameters.max_burst,
        },
        in_normal_session,
    ),
    negotiated(
        "FirstBurstLength",
        Form::Number {
            default: 65_536,
            allowed: LENGTHS,
            target_value: |config| config.first_burst,
            combine: Ord::min,
            store: |parameters| &mut parameters.first_burst,
        },
        with_first_burst,
    ),
    negotiated(
        "DefaultTime2Wait",
        Form::Number {
            default: 2,
            allowed: TIMES,
            target_value: |config| config.time_to_wait,
            combine: Ord::max,
            store: |parameters| &mut parameters.time_to_wait,
        },
        always,
    ),
    negotiated(
        "DefaultTime2Retain",
        Form::Number {
            default: 20,
            allowed: TIMES,
            target_value: |config| config.time_to_retain,
            combine: Ord::min,
            store: |parameters| &mut parameters.time_to_retain,
        },
        always,
    ),
    negotiated(
        "MaxOutstandingR2T",
        Form::Number {
            default: 1,
            allowed: (1, 65_535),
            target_value: |config| config.max_outstanding_r2t,
            combine: Ord::min,
            store: |parameters| &mut parameters.max_outstanding_r2t,
        },
        in_normal_session,
    ),
    negotiated(
        "DataPDUInOrder",
        Form::Boolean {
            default: true,
            target_value: |_| true,
            combine: either,
            store: |parameters| &mut parameters.data_pdu_in_order,
        },
        in_normal_session,
    ),
    negotiated(
        "DataSequenceInOrder",
        Form::Boolean {
            default: true,
            target_value: |_| true,
            combine: either,
            store: |parameters| &mut parameters.data_sequence_in_order,
        },
        in_normal_session,
    ),
    negotiated(
        "ErrorRecoveryLevel",
        Form::Number {
            default: 0,
            allowed: (0, 2),
            target_value: |_| 0,
            combine: Ord::min,
            store: |parameters| &mut parameters.recovery_level,
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
    // RFC 7143 13.23: only the clarified semantics of RFC 3720, without fencing and FastAbort.
    negotiated(
        "TaskReporting",
        Form::Choice { accepts: |_, value| value == "RFC3720", store: |_, _| {} },
        in_normal_session,
    ),
    negotiated(
        "iSCSIProtocolLevel",
        Form::Number {
            default: 1,
            allowed: (0, 31),
            target_value: |config| config.protocol_level,
            combine: Ord::min,
            store: |parameters| &mut parameters.protocol_level,
        },
        in_normal_session,
    ),
    // RFC 7143 13.25: obsolete keys, which must not be answered with NotUnderstood.
    negotiated("IFMarker", Form::Fixed("No"), always),
    negotiated("OFMarker", Form::Fixed("No"), always),
    negotiated("IFMarkInt", Form::Fixed(REJECT), always),
    negotiated("OFMarkInt", Form::Fixed(REJECT), always),
    // RFC 7145 6.3: over TCP the result is No.
    negotiated(
        "RDMAExtensions",
        Form::Boolean {
            default: false,
            target_value: |config| config.transport.is_rdma(),
            combine: both,
            store: |parameters| &mut parameters.rdma_extensions,
        },
        always,
    ),
    negotiated(
        "TargetRecvDataSegmentLength",
        Form::Number {
            default: 8192,
            allowed: LENGTHS,
            target_value: |config| config.max_recv_segment,
            combine: Ord::min,
            store: |parameters| &mut parameters.target_recv_segment,
        },
        in_normal_session,
    ),
    negotiated(
        "InitiatorRecvDataSegmentLength",
        Form::Number {
            default: 8192,
            allowed: LENGTHS,
            target_value: |_| LENGTHS.1,
            combine: Ord::min,
            store: |parameters| &mut parameters.initiator_recv_segment,
        },
        in_normal_session,
    ),
    // Unexpected PDUs of the target are a ping, a request to log out, and rejections: two buffers are the fewest that
    // an initiator may declare (RFC 7145 6.7).
    Key {
        name: "MaxOutstandingUnexpectedPDUs",
        form: Form::Limit { default: 0, allowed: (0, u32::MAX), store: |parameters| &mut parameters.unexpected_pdus },
        sender: Sender::Both,
        when: When::Login,
        relevant: in_normal_session,
    },
    switch("TaggedBufferForSolicitedDataOnly", |parameters, value| parameters.tags_all_data = !value),
    negotiated(
        "iSERHelloRequired",
        // A hello message is answered in any case.
        Form::Choice { accepts: |_, value| text::boolean(value).is_some(), store: |_, _| {} },
        in_normal_session,
    ),
];

/// The keys of RFC 7145 that are not understood over TCP.
const RDMA_ONLY: [&str; 5] = [
    "TargetRecvDataSegmentLength",
    "InitiatorRecvDataSegmentLength",
    "MaxOutstandingUnexpectedPDUs",
    "TaggedBufferForSolicitedDataOnly",
    "iSERHelloRequired",
];

// `Negotiation::seen` has one bit for each key.
const _: () = assert!(TABLE.len() <= 64);

/// Most bytes of an iSCSI name (RFC 7143 4.2.7).
const NAME_MAX: usize = 223;

/// An iSCSI name in lower case; `None` if it is invalid.
fn name(value: &str) -> Option<Arc<str>> {
    let lower = value.to_lowercase();
    let known = ["iqn.", "eui.", "naa."].iter().any(|kind| lower.starts_with(kind));
    // Characters that would end a name in lists, logs and port names are not allowed.
    let plain = !lower.chars().any(|c| c.is_control() || c.is_whitespace() || c == ',');
    (known && plain && value.len() <= NAME_MAX).then(|| lower.into())
}

fn alias(value: &str) -> Option<Arc<str>> {
    (value.len() <= text::VALUE_MAX && !value.chars().any(char::is_control)).then(|| value.into())
}

impl Parameters {
    /// The defaults of [`TABLE`].
    #[must_use]
    pub fn initial() -> Self {
        let mut parameters = Self::default();
        for key in TABLE {
            match key.form {
                Form::Boolean { default, store, .. } => *store(&mut parameters) = default,
                Form::Number { default, store, .. } | Form::Limit { default, store, .. } => {
                    *store(&mut parameters) = default;
                }
                Form::Choice { .. } | Form::Switch { .. } | Form::Text { .. } | Form::Fixed(_) | Form::ForCaller => {}
            }
        }
        parameters
    }
}

/// The target's side of a negotiation: takes the pairs of the initiator, answers them, and keeps the result.
#[derive(Debug)]
pub struct Negotiation {
    config: Rc<Config>,
    /// The parameters negotiated so far.
    pub parameters: Parameters,
    /// The names declared so far.
    pub names: Names,
    /// The keys that the initiator has sent: one bit for each row of [`TABLE`].
    seen: u64,
    /// The keys of these that the present text has.
    in_text: u64,
    /// Why the negotiation has failed, for the log.
    failure: Option<String>,
}

/// The result of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PairResult {
    /// It was handled.
    Done,
    /// The caller has to handle it.
    ForCaller,
}

impl Negotiation {
    /// The negotiation at the start of a login.
    #[must_use]
    pub fn new(config: Rc<Config>) -> Self {
        Self { config, parameters: Parameters::initial(), names: Names::default(), seen: 0, in_text: 0, failure: None }
    }

    /// Begins a negotiation of the full-feature phase: the parameters stay, and keys may be sent again.
    pub fn resume(&mut self, parameters: &Parameters) {
        self.parameters = *parameters;
        (self.seen, self.in_text, self.failure) = (0, 0, None);
    }

    /// Continues with the parameters of a session, for another connection of it: all but those of the connection.
    pub fn resume_session(&mut self, parameters: &Parameters) {
        let Parameters { header_digest, data_digest, max_send_segment, .. } = Parameters::initial();
        self.parameters = Parameters { header_digest, data_digest, max_send_segment, ..*parameters };
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

    /// Whether a session over RDMA is not negotiated as one (RFC 7145 6.3). Discovery does not need that.
    #[must_use]
    pub fn lacks_extensions(&self) -> bool {
        self.config.transport.is_rdma() && !self.names.discovery && !self.parameters.rdma_extensions
    }

    /// Replaces the settings.
    pub fn set_config(&mut self, config: Rc<Config>) {
        self.config = config;
    }

    /// The pairs that follow belong to another text.
    pub fn begin_text(&mut self) {
        self.in_text = 0;
    }

    /// Takes a pair and appends its answer, if it has one, to `answer`.
    ///
    /// # Errors
    /// The status with which a login ends. In the full-feature phase, the text is rejected.
    pub fn take(
        &mut self,
        phase: Phase,
        key: &str,
        value: &str,
        answer: &mut Vec<u8>,
    ) -> Result<PairResult, LoginStatus> {
        let is_understood = self.config.transport.is_rdma() || !RDMA_ONLY.contains(&key);
        let Some(at) = TABLE.iter().position(|row| row.name == key && is_understood) else {
            text::put(answer, key, NOT_UNDERSTOOD);
            return Ok(PairResult::Done);
        };
        let row = &TABLE[at];
        let bit = 1 << at;
        // RFC 7143 6.2: a key must not be sent twice. Libiscsi, and QEMU with it, repeat their names in the request
        // after AuthMethod: a declaration that repeats one of an earlier text is taken, as other targets do.
        if self.seen & bit != 0 && !(self.in_text & bit == 0 && self.repeats(row, value)) {
            return Err(self.fails(LoginStatus::INITIATOR_ERROR, format!("{key} was sent twice")));
        }
        self.seen |= bit;
        self.in_text |= bit;
        if !row.when.holds(phase) || row.sender == Sender::Target {
            text::put(answer, key, REJECT);
            return Ok(PairResult::Done);
        }
        if !(row.relevant)(self) {
            text::put(answer, key, IRRELEVANT);
            return Ok(PairResult::Done);
        }
        if matches!(row.form, Form::ForCaller) {
            return Ok(PairResult::ForCaller);
        }
        match self.answer(&row.form, value) {
            Ok(reply) => reply.into_iter().for_each(|reply| text::put(answer, key, reply)),
            Err(status) => return Err(self.fails(status, format!("the value of {key} is not valid"))),
        }
        Ok(PairResult::Done)
    }

    /// Whether this repeats a declaration with the value that it has.
    fn repeats(&self, row: &Key, value: &str) -> bool {
        let Form::Text { store } = row.form else { return false };
        let mut names = self.names.clone();
        store(&mut names, value).is_ok() && names == self.names
    }

    /// Keeps why the negotiation fails, if that is not known yet; returns `status`.
    pub fn fails(&mut self, status: LoginStatus, why: impl Into<String>) -> LoginStatus {
        self.failure.get_or_insert_with(|| why.into());
        status
    }

    /// Why the negotiation has failed.
    pub fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// The answer to a value; `None` for a declaration.
    fn answer(&mut self, form: &Form, value: &str) -> Result<Option<String>, LoginStatus> {
        let (config, parameters) = (&self.config, &mut self.parameters);
        let reply = match *form {
            Form::Boolean { target_value, combine, store, .. } => text::boolean(value).map(|offered| {
                let result = combine(target_value(config), offered);
                *store(parameters) = result;
                text::yes_or_no(result).into()
            }),
            Form::Number { allowed, target_value, combine, store, .. } => within(value, allowed).map(|offered| {
                let result = combine(target_value(config), offered);
                *store(parameters) = result;
                result.to_string()
            }),
            Form::Choice { accepts, store } => text::list(value).find(|member| accepts(config, member)).map(|member| {
                store(parameters, member);
                member.into()
            }),
            Form::Limit { allowed, store, .. } => match within(value, allowed) {
                Some(limit) => {
                    *store(parameters) = limit;
                    return Ok(None);
                }
                None => None,
            },
            Form::Switch { store } => match text::boolean(value) {
                Some(switch) => {
                    store(parameters, switch);
                    return Ok(None);
                }
                None => None,
            },
            Form::Text { store } => return store(&mut self.names, value).map(|()| None),
            Form::Fixed(reply) => Some(reply.into()),
            Form::ForCaller => return Ok(None),
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

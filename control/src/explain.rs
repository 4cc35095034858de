//! Explanations: why a client may not log in, why it does not see a LUN, what is wrong with a volume.
//!
//! The decisions are those of the running target: a front decides about a login in question with the code that decides
//! about real ones ([`LoginVerdict`]). This module has the types, and the parts that come from the configuration:
//! [`advice`], the near miss and the remedy of a refusal; [`gone`], removed objects; [`command`], commands that an
//! operator can paste.

pub mod advice;
pub mod command;
pub mod gone;

use crate::trouble::TroubleCode;
use lunar_core::access::refusal::{Entry, RefusalCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The transport of initiators that log in.
pub const ISCSI: &str = "iscsi";
/// The transport of hosts that log in.
pub const NVME: &str = "nvme-tcp";
/// The transports over which clients log in, and whose logins are explained. Clients have
/// the same rights over TCP and over RDMA.
pub const LOGINS: [&str; 4] = [ISCSI, NVME, "nvme-rdma", "iser"];

/// A login in question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoginQuestion {
    /// The name of the client, as it gives it.
    pub host: String,
    /// The name of the target in the protocol; `None`: discovery.
    pub target: Option<String>,
    /// The address of the client.
    pub source: IpAddr,
    /// The tag of the portal group of the portal; `None`: any.
    pub portal_group: Option<u16>,
    /// The user as whom the client authenticates; `None`: that is not in question.
    pub user: Option<String>,
    /// Whether the connection uses TLS with a key of the client.
    pub tls: bool,
}

/// A step of a decision.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "explained-step")]
pub struct StepView {
    /// Whether it was passed.
    pub passed: bool,
    /// The step in words.
    pub words: String,
}

impl StepView {
    /// A step that was passed.
    #[must_use]
    pub fn passed(words: impl Into<String>) -> Self {
        Self { passed: true, words: words.into() }
    }

    /// The step at which it ended.
    #[must_use]
    pub fn failed(words: impl Into<String>) -> Self {
        Self { passed: false, words: words.into() }
    }
}

/// A login, as the running target would decide about it now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoginVerdict {
    /// The steps, up to the first that was not passed.
    pub steps: Vec<StepView>,
    /// The group of the client, if it may log in; discovery has none.
    pub outcome: Result<Option<String>, RefusalCode>,
}

/// A refused login; equal ones are counted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "refusal")]
pub struct RefusalView {
    /// Its number; a later kind of refusal has a higher one.
    pub number: u64,
    /// The code, as in the documentation.
    pub code: String,
    /// The transport, such as `iscsi`.
    pub protocol: String,
    /// The name that the client gave; control characters are escaped.
    pub initiator: String,
    /// The address of the client.
    pub source: IpAddr,
    /// The name of the target that it asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The name of the user that it gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The tag of the portal group of its portal, if the portal was the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub portal_group: Option<u16>,
    /// Details, such as the rule of the protocol that it broke.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// How often it was refused.
    pub count: u64,
    /// The first time, in seconds since the beginning of 1970.
    pub first: u64,
    /// The last time.
    pub last: u64,
}

/// Where a remedy is applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "remedy-place")]
pub enum Place {
    /// On the machine of Lunar, or wherever `lunar` reaches it.
    Server,
    /// On the client.
    Client,
}

/// A remedy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "remedy")]
pub struct RemedyView {
    /// Where it is applied.
    pub place: Place,
    /// When it is the right one.
    pub words: String,
    /// The command, for a shell.
    pub command: String,
}

/// The place of the paragraph about a code in the documentation.
#[must_use]
pub fn link_of(code: &str) -> String {
    format!("docs/troubleshooting.md#{code}")
}

/// A paragraph of the documentation, about a code.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "paragraph")]
pub struct ParagraphView {
    /// Its place.
    pub link: String,
    /// Causes and remedies. Code is between backticks.
    pub words: &'static str,
}

impl ParagraphView {
    /// The paragraph about a refusal or a trouble.
    #[must_use]
    pub fn of(code: &str) -> Option<Self> {
        let refusals = RefusalCode::ALL.iter().map(|code| code.entry());
        let mut all = refusals.chain(TroubleCode::ALL.iter().map(|code| code.entry()));
        let Entry { paragraph: words, .. } = all.find(|entry| entry.word == code)?;
        Some(Self { link: link_of(code), words })
    }
}

/// An explanation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "explanation")]
pub struct ExplanationView {
    /// The topic: `login`, `refusal`, `lun`, `path`, `volume`, `reservation` or `slow`.
    pub topic: &'static str,
    /// Its subject.
    pub subject: String,
    /// Whether all is well.
    pub well: bool,
    /// The code of what is wrong, as in the documentation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// The paragraph of the documentation about the code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paragraph: Option<ParagraphView>,
    /// The answer in one sentence.
    pub words: String,
    /// The steps that lead to it.
    pub steps: Vec<StepView>,
    /// Near misses: similar names, other groups, removed objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub near: Vec<String>,
    /// The remedies, the most likely one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remedies: Vec<RemedyView>,
    /// The last refusals of the same client, the newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<RefusalView>,
}

impl ExplanationView {
    /// An explanation from its steps: all is well if all of them were passed.
    #[must_use]
    pub fn of(topic: &'static str, subject: impl Into<String>, steps: Vec<StepView>, words: impl Into<String>) -> Self {
        let (near, remedies, refusals) = (Vec::new(), Vec::new(), Vec::new());
        let well = steps.iter().all(|step| step.passed);
        let (subject, words) = (subject.into(), words.into());
        Self { topic, subject, well, code: None, paragraph: None, words, steps, near, remedies, refusals }
    }

    /// Sets the code of what is wrong, with its paragraph.
    pub fn blame(&mut self, code: Option<&'static str>) {
        (self.code, self.paragraph) = (code, code.and_then(ParagraphView::of));
    }
}

/// The reservations of a volume.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "reservation")]
pub struct ReservationView {
    /// The type of the reservation, such as `write-exclusive`, or `spc-2`; absent: the volume is not reserved.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The initiator ports, or hosts, that hold it.
    pub holders: Vec<String>,
    /// How many of them are logged in.
    pub present: usize,
    /// The registrants. Their keys are not shown.
    pub registrants: Vec<String>,
    /// Whether registrations and reservation persist through power loss.
    pub persists: bool,
    /// Commands that a reservation refused since the volume is served.
    pub conflicts: u64,
}

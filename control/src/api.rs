//! The types of the API: resources as JSON, and errors as problem details (RFC 9457), with their JSON schemas.

use crate::affected::{AffectedHost, InUse};
use crate::apply::Refusal;
use crate::common_sections::Volume;
use crate::config::Config;
use crate::counters::StoreSpace;
use crate::document::{Edit, Keys, Refused};
use crate::failure::Failure;
use crate::kind::{Id, Kind};
use crate::negotiated::ParameterView;
use crate::plan::{Action, Change, Plan};
use crate::report::{Problem, Problems};
use crate::section::show;
use crate::trouble::TroubleCode;
use crate::value::Textual;
use crate::versions::{Trouble, Version};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;
use std::fmt;

/// The media type of an error (RFC 9457).
pub const PROBLEM_TYPE: &str = "application/problem+json";

/// A configured resource.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Resource {
    /// Its section.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Its keys, defaults included; no secrets.
    pub keys: Json,
    /// The identity of a volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<IdentityView>,
}

/// The identity of a volume, as hosts see it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "identity")]
pub struct IdentityView {
    /// Unit serial number (VPD page 80h).
    pub serial: String,
    /// NAA identifier (VPD page 83h), in hexadecimal digits.
    pub naa: String,
    /// UUID of the namespace (NVMe Identify, namespace identification descriptors).
    pub uuid: String,
    /// The names in `/dev/disk/by-id` of a Linux host: over iSCSI, and over NVMe.
    pub by_id: [String; 2],
    /// The size in bytes, if the configuration or a file has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl IdentityView {
    /// The identity of a volume; `None` if it has none yet.
    #[must_use]
    pub fn of(volume: &Volume) -> Option<Self> {
        let uuid = volume.uuid?.text();
        let identity = volume.identity("")?;
        let naa: String = identity.naa.iter().map(|byte| format!("{byte:02x}")).collect();
        let by_id = [format!("wwn-0x{naa}"), format!("nvme-uuid.{uuid}")];
        Some(Self { serial: identity.serial.text(), naa, uuid, by_id, bytes: volume.size.map(|size| size.0) })
    }
}

impl Resource {
    /// The resource of this kind and name.
    #[must_use]
    pub fn of(config: &Config, kind: Kind, name: &str) -> Option<Self> {
        let keys = show(config.get(kind, name)?);
        let volume = config.volumes.get(name).filter(|_| kind == Kind::Volume);
        let identity = volume.and_then(|volume| IdentityView::of(volume));
        Some(Self { kind: kind.section(), name: name.to_owned(), keys, identity })
    }

    /// All resources of a kind, by name.
    #[must_use]
    pub fn all(config: &Config, kind: Kind) -> Vec<Self> {
        config.names(kind).into_iter().filter_map(|name| Self::of(config, kind, name)).collect()
    }
}

/// A mapping of a volume to a LUN of a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "mapping")]
pub struct Mapping {
    /// The volume.
    pub volume: String,
    /// Whether writes of the group are refused.
    #[serde(default)]
    pub read_only: bool,
    /// Its namespace ID for NVMe hosts; without it, the logical unit number plus one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<u16>,
    /// Whether NVMe hosts see the protection information of the volume as metadata.
    #[serde(default)]
    pub metadata: bool,
}

impl Mapping {
    /// The edit that it requests.
    #[must_use]
    pub fn edit(self, group: String, lun: u16) -> Edit {
        let Self { volume, read_only, namespace, metadata } = self;
        Edit::Map { group, lun, volume, read_only, namespace, metadata }
    }
}

/// The edit that `POST` (`create`) or `PATCH` requests.
#[must_use]
pub fn edit(kind: Kind, name: String, keys: Map<String, Json>, create: bool) -> Edit {
    let keys = Keys(keys);
    if create { Edit::Create { kind, name, keys } } else { Edit::Set { kind, name, keys } }
}

/// A step of a plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "change")]
pub struct ChangeView<'a> {
    /// The operation: detach, remove, change, create or attach.
    pub action: &'static str,
    /// The section of the resource.
    pub kind: &'static str,
    /// Its name; the name of its group if it is a LUN.
    pub name: &'a str,
    /// The logical unit number of a LUN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lun: Option<u16>,
    /// In words.
    pub words: &'a str,
    /// The effect on clients.
    pub effect: &'static str,
    /// The targets whose sessions are affected.
    pub targets: &'a [String],
    /// The clients with sessions from which the step takes something: it needs `force`.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub hosts: &'a [String],
}

impl<'a> ChangeView<'a> {
    /// The view of a step.
    #[must_use]
    pub fn of(change: &'a Change) -> Self {
        let action = match change.action {
            Action::Detach(_) => "detach",
            Action::Remove => "remove",
            Action::Change(_) => "change",
            Action::Create => "create",
            Action::Attach(_) => "attach",
        };
        let Id { kind, name, lun } = change.object.id();
        let Change { words, effect, targets, hosts, .. } = change;
        Self { action, kind: kind.section(), name, lun, words, effect: effect.word(), targets, hosts }
    }
}

impl Serialize for Change {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ChangeView::of(self).serialize(serializer)
    }
}

/// A plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "plan")]
pub struct PlanView<'a> {
    /// Its steps, in their order.
    pub changes: Vec<ChangeView<'a>>,
    /// Whether a step takes effect only after a restart.
    pub needs_restart: bool,
    /// Further effects, and the parts of a restored version that are not restored, in words.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub notes: &'a [String],
}

impl<'a> PlanView<'a> {
    /// The view of a plan.
    #[must_use]
    pub fn of(plan: &'a Plan) -> Self {
        Self {
            changes: plan.changes.iter().map(ChangeView::of).collect(),
            needs_restart: plan.needs_restart(),
            notes: &plan.notes,
        }
    }
}

/// A version of the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "version")]
pub struct VersionView<'a> {
    /// Its number.
    pub number: u64,
    /// When it was written, in seconds since the beginning of 1970.
    pub time: u64,
    /// Its author.
    pub who: &'a str,
    /// Its changes to the version before it, in words; empty if they are not known.
    pub changes: String,
}

impl<'a> VersionView<'a> {
    /// The view of a version.
    #[must_use]
    pub fn of(version: &'a Version, changes: String) -> Self {
        Self { number: version.number, time: version.time, who: &version.who, changes }
    }
}

/// A session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "session")]
pub struct SessionView {
    /// Its ID, for as long as it lasts.
    pub id: String,
    /// The transport, such as `iscsi`.
    pub protocol: &'static str,
    /// Whether it is a discovery session.
    pub discovery: bool,
    /// The iSCSI name of the initiator, or the NQN of the host.
    pub initiator: String,
    /// Its source: address and port, or the socket of a virtual machine.
    pub source: String,
    /// Its target; absent for discovery sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Its group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The tag of the portal group through which it came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portal_group: Option<u16>,
    /// The authenticated user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Its age in seconds.
    pub seconds: u64,
    /// Its negotiated parameters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<ParameterView>,
    /// Its TCP connections: one of an iSCSI session, one for each queue of an NVMe controller.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tcp: Vec<TcpView>,
}

/// The state of a TCP connection on this side, read from the kernel for this request.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "tcp")]
pub struct TcpView {
    /// The round-trip time, in microseconds.
    pub rtt_microseconds: u32,
    /// Its mean deviation, in microseconds.
    pub rtt_variation_microseconds: u32,
    /// Segments that were sent again.
    pub retransmits: u32,
    /// Of those, segments that had arrived before, as the client said: they were late, not lost.
    pub duplicates: u32,
    /// Segments with data that were sent, with those that were sent again.
    pub segments_sent: u32,
    /// The congestion window, in segments.
    pub congestion_window: u32,
    /// Segments that were sent and not acknowledged.
    pub unacknowledged: u32,
    /// The most bytes of a segment that is sent.
    pub send_mss: u32,
    /// The most bytes of a segment that was received.
    pub receive_mss: u32,
    /// The rate at which data reached the client most recently, in bytes per second.
    pub delivery_rate: u64,
    /// The time for which the window of the client limited the sender, in microseconds.
    pub window_limited_microseconds: u64,
    /// The time for which the send buffer limited the sender, in microseconds.
    pub buffer_limited_microseconds: u64,
}

/// The handler of a volume: the process that serves its data.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "handler")]
pub struct HandlerView {
    /// The volume.
    pub volume: String,
    /// The socket to which the handler connects.
    pub socket: String,
    /// `connected`; `late` if it has not answered commands in time; `missing`.
    pub state: &'static str,
    /// Its name and version, as it says; absent while it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `blocks`, `SCSI commands`, or `blocks and SCSI commands`; absent while it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serves: Option<&'static str>,
    /// Its process; absent while it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<i32>,
    /// The number of its user; absent while it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// How long it has been connected, in seconds; absent while it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
    /// Commands that it has not answered in time and may still execute.
    pub late: u64,
    /// Connections since the volume was opened.
    pub connections: u64,
    /// Commands that were sent again, because a handler had gone without an answer.
    pub replayed: u64,
    /// Commands that failed because the handler did not answer in time.
    pub timed_out: u64,
    /// Connections that were ended because the handler broke the protocol.
    pub faults: u64,
}

/// The endpoint of a virtual machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "machine")]
pub struct VmView {
    /// The name of the virtual machine.
    pub name: String,
    /// The socket.
    pub socket: String,
    /// The arguments with which QEMU uses it.
    pub qemu: Vec<String>,
}

/// The disks of the service's machine that it serves, and what the kernel offers for them.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "local-disks")]
pub struct LocalDisksView {
    /// The features that the kernel offers.
    pub offered: Vec<String>,
    /// The features that disks use.
    pub used: Vec<String>,
    /// Why there can be no further disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The disks.
    pub disks: Vec<LocalDiskView>,
}

/// A disk of the service's machine.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "local-disk")]
pub struct LocalDiskView {
    /// Its name.
    pub name: String,
    /// The volume.
    pub volume: String,
    /// The name of the machine as a host.
    pub host: String,
    /// The block device; empty while there is none.
    pub device: String,
    /// The link to it by its name.
    pub link: Option<String>,
    /// Whether writes are refused for this host.
    pub read_only: bool,
    /// The features that it uses.
    pub features: Vec<String>,
    /// Why it is not served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// The medium of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "medium")]
pub struct MediumView {
    /// The volume.
    pub volume: String,
    /// The device type: `disk`, `removable` or `cd`.
    pub medium: &'static str,
    /// Whether it is loaded.
    pub loaded: bool,
    /// Whether an initiator prevents its removal.
    pub locked: bool,
}

/// An ejection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "ejection")]
pub struct Ejection {
    /// Whether the medium is ejected although an initiator prevents its removal.
    #[serde(default)]
    pub forced: bool,
}

/// The state of the iSNS registration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "isns")]
pub struct IsnsView {
    /// The server.
    pub server: String,
    /// The Entity Identifier of this host.
    pub entity: String,
    /// The number of registered targets.
    pub targets: usize,
    /// The number of registered portals.
    pub portals: usize,
    /// The trouble, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// The state of the service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "status")]
pub struct StatusView {
    /// The version of Lunar.
    pub version: String,
    /// Process identifier.
    pub process: u32,
    /// Its start, in seconds since the beginning of 1970.
    pub since: u64,
    /// The configuration file.
    pub file: String,
    /// The number of resources of each kind, by section.
    pub things: BTreeMap<&'static str, usize>,
    /// The number of sessions.
    pub sessions: usize,
    /// The endpoints of virtual machines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<VmView>,
    /// The state of the iSNS registration, if a server is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isns: Option<IsnsView>,
    /// The ends of the certificates of API listeners, by the names of the listeners, in seconds since the beginning of
    /// 1970.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub certificates: BTreeMap<String, u64>,
    /// Changes that take effect after the next start, in words.
    pub after_restart: Vec<String>,
    /// The file systems of volumes, as they were measured last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<StoreSpace>,
    /// The clients that have not read the new size of a volume, by volume; at most 16 of each.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unread_sizes: BTreeMap<String, Vec<String>>,
    /// The volumes that groups of NVMe hosts map, and that those hosts do not see, with the reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub no_namespaces: BTreeMap<String, &'static str>,
    /// The troubles, each with what to do.
    pub troubles: Vec<TroubleView>,
}

/// A trouble: something that is wrong now, and that an operator can do something about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "trouble")]
pub struct TroubleView {
    /// Its code, as in the documentation: one word, such as `truncated`.
    pub kind: &'static str,
    /// Its subject, such as `volume disk`.
    pub subject: String,
    /// When it was first seen, in seconds since the beginning of 1970; 0 if that is not known yet.
    pub since: u64,
    /// The trouble in words.
    pub words: String,
    /// The remedy; empty if `words` says it.
    pub remedy: String,
}

impl TroubleView {
    /// A trouble whose words say what to do, and of which it is not known since when it is there.
    #[must_use]
    pub fn told(code: TroubleCode, subject: &str, words: String) -> Self {
        let kind = code.word();
        Self { kind, subject: subject.to_owned(), since: 0, words, remedy: String::new() }
    }
}

impl fmt::Display for TroubleView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Some words begin with the subject.
        if !self.words.starts_with(&self.subject) {
            write!(f, "{}: ", self.subject)?;
        }
        f.write_str(&self.words)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}

/// Problem details of an error (RFC 9457).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "problem")]
pub struct ProblemDetails {
    /// The kind of problem: a relative URI reference.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The kind in words.
    pub title: &'static str,
    /// HTTP status (RFC 9110 15).
    pub status: u16,
    /// The problem, and what to do.
    pub detail: String,
    /// The mistakes in a configuration, with their places.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ErrorView>,
    /// The sessions from which the change takes something, at most a hundred; `force` makes the change anyway.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<AffectedHost>,
}

/// One mistake in a configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "error")]
pub struct ErrorView {
    /// The key, from the root.
    pub key: String,
    /// Line, from 1.
    pub line: usize,
    /// Character in the line, from 1.
    pub column: usize,
    /// The mistake.
    pub detail: String,
}

impl ProblemDetails {
    /// A problem without mistakes in a configuration.
    #[must_use]
    pub fn new(kind: &'static str, title: &'static str, status: u16, detail: String) -> Self {
        Self { kind, title, status, detail, errors: Vec::new(), hosts: Vec::new() }
    }

    /// The problem of a request that names something that does not exist.
    #[must_use]
    pub fn missing(why: impl fmt::Display) -> Self {
        Self::new("/problems/missing", "Not found", 404, why.to_string())
    }

    /// The problem of a request to create something that exists.
    #[must_use]
    pub fn exists(why: impl fmt::Display) -> Self {
        Self::new("/problems/exists", "Exists already", 409, why.to_string())
    }

    /// The problem of a request that is wrong.
    #[must_use]
    pub fn wrong(why: impl fmt::Display) -> Self {
        Self::new("/problems/wrong", "The request is wrong", 400, why.to_string())
    }
}

impl From<&Problems> for ProblemDetails {
    fn from(problems: &Problems) -> Self {
        let view = |problem: &Problem| {
            let Problem { line, column, key, what } = problem.clone();
            ErrorView { key, line, column, detail: what }
        };
        let errors = problems.list.iter().map(view).collect();
        Self { errors, ..Self::new("/problems/invalid", "The configuration is not valid", 422, problems.to_string()) }
    }
}

impl From<&Refused> for ProblemDetails {
    fn from(refused: &Refused) -> Self {
        match refused {
            Refused::Missing(why) => Self::missing(why),
            Refused::Exists(..) => Self::exists(refused),
            Refused::Used(why) => Self::new("/problems/used", "Another resource refers to it", 409, why.to_string()),
            Refused::Wrong(_) | Refused::Form { .. } => Self::wrong(refused),
        }
    }
}

impl From<&InUse> for ProblemDetails {
    fn from(why: &InUse) -> Self {
        let title = "The change takes away what is in use";
        Self { hosts: why.hosts.clone(), ..Self::new("/problems/in-use", title, 409, why.to_string()) }
    }
}

impl From<&Refusal> for ProblemDetails {
    fn from(refusal: &Refusal) -> Self {
        Self::new("/problems/refused", "The change could not be made", 409, refusal.to_string())
    }
}

impl From<&Trouble> for ProblemDetails {
    fn from(trouble: &Trouble) -> Self {
        let (kind, title, status) = match trouble {
            Trouble::Changed(_) | Trouble::Lost(..) => ("/problems/changed", "The file has changed", 409),
            Trouble::Busy(_) => ("/problems/busy", "Another process is writing", 503),
            Trouble::NoVersion(_) => ("/problems/missing", "There is no such version", 404),
            Trouble::Disk(..) | Trouble::NoText(_) => ("/problems/disk", "The file cannot be read or written", 500),
        };
        Self::new(kind, title, status, trouble.to_string())
    }
}

impl From<&Failure> for ProblemDetails {
    fn from(failure: &Failure) -> Self {
        match failure {
            Failure::Edit(why) => why.into(),
            Failure::Invalid(why) => why.into(),
            Failure::Refused(why) => why.into(),
            Failure::Disk(why) => why.into(),
            Failure::InUse(why) => why.into(),
            Failure::Outside(why) => {
                Self::new("/problems/refused", "The change could not be made", 409, why.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refused::Missing;
    use serde_json::json;

    #[test]
    fn errors_are_problem_details() {
        let problems = Problems::whole("lunar.toml", "is empty");
        let details = serde_json::to_value(ProblemDetails::from(&problems)).expect("it can be shown");
        assert_eq!(details["status"], json!(422));
        assert_eq!(details["type"], json!("/problems/invalid"));
        assert_eq!(details["errors"], json!([{ "key": "", "line": 1, "column": 1, "detail": "is empty" }]));
        let missing = ProblemDetails::from(&Refused::Missing(Missing::Resource(Kind::Volume, "x".into())));
        let missing = serde_json::to_value(missing).expect("it can be shown");
        assert_eq!((&missing["status"], &missing["errors"]), (&json!(404), &Json::Null));
    }

    #[test]
    fn a_mapping_takes_no_unknown_keys() {
        let mapping = |value| serde_json::from_value::<Mapping>(value);
        let read_only = mapping(json!({ "volume": "v", "read-only": true })).expect("a mapping");
        let plain = Mapping { volume: "v".into(), read_only: false, namespace: None, metadata: false };
        assert_eq!(read_only, Mapping { read_only: true, ..plain.clone() });
        let metadata = mapping(json!({ "volume": "v", "metadata": true }));
        assert_eq!(metadata.expect("a mapping"), Mapping { metadata: true, ..plain });
        assert!(mapping(json!({ "volume": "v", "readonly": true })).is_err());
        let edit = read_only.edit("g".into(), 3);
        let (group, volume) = ("g".into(), "v".into());
        let expected = Edit::Map { group, lun: 3, volume, read_only: true, namespace: None, metadata: false };
        assert_eq!(edit, expected);
    }

    #[test]
    fn what_an_edit_holds_is_not_shown() {
        let keys = json!({ "secret": "correct horse battery" });
        let edit = edit(Kind::User, "u".into(), keys.as_object().cloned().unwrap_or_default(), true);
        assert!(!format!("{edit:?}").contains("horse"), "{edit:?}");
    }
}

//! What the API says: resources as JSON, and errors as problem details (RFC 9457). Types only, each of which tells its
//! schema, too; a server speaks them.

use crate::apply::Refusal;
use crate::config::{Config, Id, Kind, show};
use crate::document::{Edit, Keys, Refused};
use crate::manager::Failure;
use crate::plan::{Action, Change, Plan};
use crate::report::{Problem, Problems};
use crate::versions::{Trouble, Version};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;

/// The media type of an error (RFC 9457).
pub const PROBLEM_TYPE: &str = "application/problem+json";

/// A thing of the configuration.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Resource {
    /// Its section.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Its keys, defaults included; no secrets.
    pub keys: Json,
}

impl Resource {
    /// The thing of this kind and name.
    #[must_use]
    pub fn of(config: &Config, kind: Kind, name: &str) -> Option<Self> {
        let keys = show(config.get(kind, name)?);
        Some(Self { kind: kind.section(), name: name.to_owned(), keys })
    }

    /// All things of a kind, by name.
    #[must_use]
    pub fn all(config: &Config, kind: Kind) -> Vec<Self> {
        config.names(kind).into_iter().filter_map(|name| Self::of(config, kind, name)).collect()
    }
}

/// What a LUN of a group shall be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "mapping")]
pub struct Mapping {
    /// The volume.
    pub volume: String,
    /// Whether the group may only read.
    #[serde(default)]
    pub read_only: bool,
    /// Its namespace identifier for NVMe hosts; without, the number and one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<u16>,
    /// Whether NVMe hosts see the protection information of the volume, as metadata.
    #[serde(default)]
    pub metadata: bool,
}

impl Mapping {
    /// The change that it asks for.
    #[must_use]
    pub fn edit(self, group: String, lun: u16) -> Edit {
        let Self { volume, read_only, namespace, metadata } = self;
        Edit::Map { group, lun, volume, read_only, namespace, metadata }
    }
}

/// The change that `POST` (`create`) or `PATCH` asks for.
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
    /// What is done: detach, remove, change, create or attach.
    pub action: &'static str,
    /// The section of the thing.
    pub kind: &'static str,
    /// Its name; that of its group if it is a LUN.
    pub name: &'a str,
    /// The number of a LUN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lun: Option<u16>,
    /// In words.
    pub words: &'a str,
    /// Who notices.
    pub effect: &'static str,
    /// The targets whose sessions notice.
    pub targets: &'a [String],
}

impl<'a> ChangeView<'a> {
    /// A step as programs see it.
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
        let Change { words, effect, targets, .. } = change;
        Self { action, kind: kind.section(), name, lun, words, effect: effect.word(), targets }
    }
}

/// A plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "plan")]
pub struct PlanView<'a> {
    /// Its steps, in their order.
    pub changes: Vec<ChangeView<'a>>,
    /// Whether something of it is in force after a restart only.
    pub needs_restart: bool,
}

impl<'a> PlanView<'a> {
    /// A plan as programs see it.
    #[must_use]
    pub fn of(plan: &'a Plan) -> Self {
        Self { changes: plan.changes.iter().map(ChangeView::of).collect(), needs_restart: plan.needs_restart() }
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
    /// Who wrote it.
    pub who: &'a str,
}

impl<'a> VersionView<'a> {
    /// A version as programs see it.
    #[must_use]
    pub fn of(version: &'a Version) -> Self {
        Self { number: version.number, time: version.time, who: &version.who }
    }
}

/// Somebody who is logged in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "session")]
pub struct SessionView {
    /// What it is called, as long as it lasts.
    pub id: String,
    /// Over what: `iscsi`, `nvme-tcp` or `vfio-user`.
    pub protocol: &'static str,
    /// Whether it only asks what there is.
    pub discovery: bool,
    /// Who: the iSCSI name of the initiator, or the NQN of the host.
    pub initiator: String,
    /// Where it comes from: address and port, or the socket of a virtual machine.
    pub source: String,
    /// The target that it is logged in to; none while it only asks what there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The group that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The user as whom it proved itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// For how many seconds it has been there.
    pub seconds: u64,
}

/// Where a virtual machine finds its controller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "machine")]
pub struct MachineView {
    /// What it is called.
    pub name: String,
    /// The socket.
    pub socket: String,
    /// What QEMU wants to be told to use it.
    pub qemu: Vec<String>,
}

/// What QEMU (10.1 and later) wants to be told to use the controller at this socket. It shares a guest's memory only if
/// it is told to.
#[must_use]
pub fn qemu(socket: &std::path::Path) -> Vec<String> {
    let path = Json::from(socket.to_string_lossy());
    let socket = format!("{{\"type\":\"unix\",\"path\":{path}}}");
    let device = format!("{{\"driver\":\"vfio-user-pci\",\"socket\":{socket}}}");
    vec![
        "-machine q35,memory-backend=mem".into(),
        "-object memory-backend-memfd,id=mem,size=1G,share=on".into(),
        format!("-device '{device}'"),
    ]
}

/// Where the medium of a volume is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "medium")]
pub struct MediumView {
    /// The volume.
    pub volume: String,
    /// What it is to initiators: `disk`, `removable` or `cd`.
    pub medium: &'static str,
    /// Whether it is in.
    pub loaded: bool,
    /// Whether initiators use it and prevent its removal.
    pub locked: bool,
}

/// How a medium shall be taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "ejection")]
pub struct Ejection {
    /// Whether initiators are not asked whether they use it.
    #[serde(default)]
    pub forced: bool,
}

/// How it stands with the iSNS server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "isns")]
pub struct IsnsView {
    /// The server.
    pub server: String,
    /// What this machine is called there.
    pub entity: String,
    /// Targets that are registered there.
    pub targets: usize,
    /// Portals that are registered there.
    pub portals: usize,
    /// Why it does not work, if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// What runs, in a few words.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "status")]
pub struct StatusView {
    /// The version of Lunar.
    pub version: String,
    /// Process identifier.
    pub process: u32,
    /// When it was started, in seconds since the beginning of 1970.
    pub since: u64,
    /// The file of the configuration.
    pub file: String,
    /// How many things there are of each kind, by section.
    pub things: BTreeMap<&'static str, usize>,
    /// How many are logged in.
    pub sessions: usize,
    /// Where virtual machines find their controllers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<MachineView>,
    /// How it stands with the iSNS server, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isns: Option<IsnsView>,
    /// What was changed and is in force after the next start only, in words.
    pub after_restart: Vec<String>,
    /// What went wrong and still is, in words that say what to do.
    pub troubles: Vec<String>,
}

/// Problem details of an error (RFC 9457).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "problem")]
pub struct ProblemDetails {
    /// What kind of problem: a relative URI reference.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The kind in words.
    pub title: &'static str,
    /// HTTP status (RFC 9110 15).
    pub status: u16,
    /// This problem in words, with what to do.
    pub detail: String,
    /// Everything that is wrong with a configuration, with places.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ErrorView>,
}

/// One thing that is wrong with a configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "error")]
pub struct ErrorView {
    /// The key, from the root.
    pub key: String,
    /// Line, from 1.
    pub line: usize,
    /// Character in the line, from 1.
    pub column: usize,
    /// What is wrong.
    pub detail: String,
}

impl ProblemDetails {
    /// A problem without places in a configuration.
    #[must_use]
    pub fn new(kind: &'static str, title: &'static str, status: u16, detail: String) -> Self {
        Self { kind, title, status, detail, errors: Vec::new() }
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
        let (kind, title, status) = match refused {
            Refused::Missing(_) => ("/problems/missing", "There is no such thing", 404),
            Refused::Exists(_) => ("/problems/exists", "There is one already", 409),
            Refused::Wrong(_) => ("/problems/wrong", "The request makes no sense", 400),
        };
        Self::new(kind, title, status, refused.to_string())
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
            Trouble::Changed(_) | Trouble::Lost(..) => ("/problems/changed", "The file was changed meanwhile", 409),
            Trouble::Busy(_) => ("/problems/busy", "Somebody else writes", 503),
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_are_problem_details() {
        let problems = Problems::whole("lunar.toml", "is empty");
        let details = serde_json::to_value(ProblemDetails::from(&problems)).expect("it can be shown");
        assert_eq!(details["status"], json!(422));
        assert_eq!(details["type"], json!("/problems/invalid"));
        assert_eq!(details["errors"], json!([{ "key": "", "line": 1, "column": 1, "detail": "is empty" }]));
        let missing = ProblemDetails::from(&Refused::Missing("there is no volume 'x'".into()));
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

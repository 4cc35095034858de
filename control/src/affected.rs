//! The sessions from which a change takes something, and why the change needs force.

use crate::plan::ObjectId;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// A session or controller from which a change takes something.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "affected-host")]
pub struct AffectedHost {
    /// The ID of the session.
    pub session: String,
    /// The iSCSI name of the initiator, or the NQN of the host.
    pub initiator: String,
    /// Its source: address and port, the socket of a virtual machine, or a disk of the service's machine.
    pub source: String,
    /// Its target; empty for a disk of the service's machine that has none.
    pub target: String,
    /// The losses, in words.
    pub loses: Vec<String>,
}

impl fmt::Display for AffectedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { initiator, source, target, loses, .. } = self;
        write!(f, "{initiator} from {source}")?;
        if !target.is_empty() {
            write!(f, " at target {target}")?;
        }
        write!(f, ": {}", loses.join("; "))
    }
}

/// A disk of the service's machine that programs use, and that a change would take away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostDisk {
    /// The machine as the client of the disk, and its losses.
    pub host: AffectedHost,
    /// The resources whose steps cause them.
    pub causes: Vec<ObjectId>,
}

/// Why a change needs force.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct InUse {
    /// The affected sessions, at most a hundred.
    pub hosts: Vec<AffectedHost>,
    /// The number of all affected sessions.
    pub count: usize,
    /// How many resources the change removes, and of how many, if these are more than half.
    pub removed: Option<(usize, usize)>,
}

impl InUse {
    /// The loss of one client, if there is one.
    #[must_use]
    pub(crate) fn of(host: Option<AffectedHost>) -> Self {
        let hosts: Vec<AffectedHost> = host.into_iter().collect();
        Self { count: hosts.len(), hosts, removed: None }
    }

    /// Whether the change needs no force.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.removed.is_none()
    }

    /// The reason in one line.
    #[must_use]
    pub fn reason(&self) -> String {
        let sessions = match self.count {
            0 => None,
            1 => Some("1 session uses what the change takes away".to_owned()),
            count => Some(format!("{count} sessions use what the change takes away")),
        };
        let half = |(removed, all)| format!("the change removes {removed} of {all} resources, more than half");
        let removed = self.removed.map(half);
        sessions.into_iter().chain(removed).collect::<Vec<_>>().join("; ")
    }
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; nothing was changed", self.reason())?;
        self.hosts.iter().try_for_each(|host| write!(f, "\n  {host}"))?;
        let more = self.count.saturating_sub(self.hosts.len());
        if more > 0 {
            write!(f, "\n  and {more} more")?;
        }
        f.write_str(
            "\nto make the change anyway, repeat the command with --force; for an edited file: `lunar apply --force`",
        )
    }
}

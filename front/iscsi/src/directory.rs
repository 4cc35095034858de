//! What there is to log in to: targets, where they are, and who may. One value for all cores, which changes as a whole:
//! whoever asks sees what was there before or what is there after.

use crate::config::Config;
use lunar_core::access::{Access, Group, Proofs};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// A portal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Portal {
    /// Its number in this process: whoever came in by it stays as long as it is there.
    pub id: u32,
    /// Tag of its portal group.
    pub group: u16,
    /// Where it is, as SendTargets tells it; `None`: where the initiator came in, and only for those who came in by
    /// this group.
    pub address: Option<SocketAddr>,
    /// Whether SendTargets tells it.
    pub is_advertised: bool,
}

/// By which portal_ref somebody came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortalRef {
    /// The number of the portal.
    pub portal: u32,
    /// Tag of its portal group.
    pub group: u16,
}

/// A target.
#[derive(Clone, Debug)]
pub struct TargetEntry {
    /// Its name, in lower case.
    pub name: Arc<str>,
    /// What it is called for people (TargetAlias).
    pub alias: Arc<str>,
    /// Its portal groups by their tags, and which target port each of them is, by its relative identifier.
    pub ports: BTreeMap<u16, u16>,
    /// Who may log in.
    pub access: Arc<Access>,
    /// What its sessions are offered.
    pub session: Arc<Config>,
    /// Sessions at once.
    pub sessions_max: usize,
    /// Where it is, if it is not here.
    pub moved: Option<Moved>,
}

/// Where a target is that is not here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Where initiators shall log in instead (TargetAddress).
    pub address: SocketAddr,
    /// Whether they shall remember it.
    pub permanently: bool,
}

/// What there is to log in to.
#[derive(Clone, Debug)]
pub struct Directory {
    targets: BTreeMap<Arc<str>, Arc<TargetEntry>>,
    /// In the order in which they are told.
    pub portals: Vec<Portal>,
    /// Who may ask what there is.
    pub discovery: Arc<Proofs>,
    /// What is offered before a target is named, and to those who only ask.
    pub session: Arc<Config>,
    /// Sessions at once, in all.
    pub sessions_max: usize,
    /// Logins from one host in a second; without, as many as come.
    pub login_rate: Option<u32>,
    /// How long commands get to finish when sessions have to end.
    pub drain: Duration,
}

impl Directory {
    /// An empty one, which offers the usual.
    #[must_use]
    pub fn new(drain: Duration) -> Self {
        Self {
            targets: BTreeMap::new(),
            portals: Vec::new(),
            discovery: Arc::default(),
            session: Arc::default(),
            sessions_max: crate::registry::SESSIONS_MAX,
            login_rate: None,
            drain,
        }
    }

    /// Adds a target, or puts another in its place.
    pub fn add(&mut self, entry: TargetEntry) {
        self.targets.insert(entry.name.clone(), Arc::new(entry));
    }

    /// The target of this name, in lower case.
    #[must_use]
    pub fn target(&self, name: &str) -> Option<&Arc<TargetEntry>> {
        self.targets.get(name)
    }

    /// All targets, by name.
    pub fn targets(&self) -> impl Iterator<Item = &Arc<TargetEntry>> {
        self.targets.values()
    }

    /// Whether the portal is there by which somebody came.
    #[must_use]
    pub fn has_portal(&self, portal_ref: PortalRef) -> bool {
        self.portals.iter().any(|portal| portal.id == portal_ref.portal && portal.group == portal_ref.group)
    }

    /// Whether a session may stay: its target is here and reached by its portal_ref, as the same target port, and its
    /// initiator still belongs to the group of this name.
    #[must_use]
    pub fn allows_session(
        &self,
        target: &str,
        portal_ref: PortalRef,
        port: u16,
        (host, source): (&str, IpAddr),
        group: &str,
    ) -> bool {
        let Some(entry) = self.target(target).filter(|entry| entry.moved.is_none() && self.has_portal(portal_ref))
        else {
            return false;
        };
        let member = |own: &Arc<Group>| *own.name == *group;
        entry.ports.get(&portal_ref.group) == Some(&port) && entry.access.group(host, source).is_some_and(member)
    }
}

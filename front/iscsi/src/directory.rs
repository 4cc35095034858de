//! The targets, their portals and their access control. One value for all cores, which is replaced as a whole: a reader
//! sees the old or the new one.

use crate::config::{Config, Transport};
use lunar_core::access::refusal::RefusalCode;
use lunar_core::access::{Access, Credentials, Group};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// A portal: an address at which the target listens, or that it advertises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Portal {
    /// Its number in this process: sessions stay as long as their portal exists.
    pub id: u32,
    /// The tag of its portal group.
    pub group: u16,
    /// The address that SendTargets lists. `None`: the local address of the initiator's connection, and only for
    /// connections through this group.
    pub address: Option<SocketAddr>,
    /// Whether SendTargets lists it.
    pub is_advertised: bool,
    /// The transport of its connections. SendTargets lists it to initiators that use the same.
    pub transport: Transport,
}

/// The portal of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortalRef {
    /// The number of the portal.
    pub portal: u32,
    /// The tag of its portal group.
    pub group: u16,
}

/// A target.
#[derive(Clone, Debug)]
pub struct TargetEntry {
    /// Its name, in lower case.
    pub name: Arc<str>,
    /// TargetAlias: a name for people.
    pub alias: Arc<str>,
    /// Its portal groups by tag, each with the relative identifier of its target port.
    pub ports: BTreeMap<u16, u16>,
    /// The access rules.
    pub access: Arc<Access>,
    /// The settings of its sessions.
    pub session: Arc<Config>,
    /// Limit of its sessions.
    pub sessions_max: usize,
    /// Where initiators are redirected to, if they are.
    pub moved: Option<Moved>,
}

/// A redirection of logins (RFC 7143 11.13.5, "target moved").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// TargetAddress: where initiators log in instead.
    pub address: SocketAddr,
    /// Whether the redirection is permanent.
    pub permanently: bool,
}

/// The route of a login through a portal to its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoginRoute {
    /// To the target port of this relative identifier.
    Port(u16),
    /// To another address.
    Moved(Moved),
}

impl TargetEntry {
    /// The route to the target through a portal of this group.
    ///
    /// # Errors
    /// [`RefusalCode::OtherPortal`].
    pub fn route(&self, portal_group: u16) -> Result<LoginRoute, RefusalCode> {
        match (self.moved, self.ports.get(&portal_group)) {
            (Some(moved), _) => Ok(LoginRoute::Moved(moved)),
            (None, Some(port)) => Ok(LoginRoute::Port(*port)),
            (None, None) => Err(RefusalCode::OtherPortal),
        }
    }
}

/// The target and the group of a login, and its authentication.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The target; `None`: it is a discovery session.
    pub entry: Option<Arc<TargetEntry>>,
    /// The group of the initiator at the target.
    pub group: Option<Arc<Group>>,
    /// The credentials of the initiator and of the target.
    pub credentials: Arc<Credentials>,
}

/// All targets and portals.
#[derive(Clone, Debug)]
pub struct Directory {
    targets: BTreeMap<Arc<str>, Arc<TargetEntry>>,
    /// The portals, in the order in which SendTargets lists them.
    pub portals: Vec<Portal>,
    /// The authentication of discovery sessions.
    pub discovery: Arc<Credentials>,
    /// The settings of discovery sessions, and of logins until the target is known.
    pub session: Arc<Config>,
    /// Limit of all sessions.
    pub sessions_max: usize,
    /// Limit of logins per second from one address; `None`: no limit.
    pub login_rate: Option<u32>,
    /// How long commands may take to finish when sessions have to end.
    pub drain: Duration,
}

impl Directory {
    /// An empty directory with default settings.
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

    /// Adds or replaces a target.
    pub fn add(&mut self, entry: TargetEntry) {
        self.targets.insert(entry.name.clone(), Arc::new(entry));
    }

    /// The target with this name, in lower case.
    #[must_use]
    pub fn target(&self, name: &str) -> Option<&Arc<TargetEntry>> {
        self.targets.get(name)
    }

    /// All targets, by name.
    pub fn targets(&self) -> impl Iterator<Item = &Arc<TargetEntry>> {
        self.targets.values()
    }

    /// The largest command window of a session.
    #[must_use]
    pub fn window_max(&self) -> usize {
        let windows = self.targets.values().map(|target| target.session.window);
        windows.chain([self.session.window]).max().unwrap_or_default() as usize
    }

    /// Admits an initiator to a target, by their names in lower case; without a target, to discovery. Any initiator may
    /// open a discovery session, which lists only targets that it may access.
    ///
    /// # Errors
    /// [`RefusalCode::NoTarget`], and those of [`Access::admit`].
    pub fn admit(&self, target: Option<&str>, initiator: &str, source: IpAddr) -> Result<Admission, RefusalCode> {
        let Some(target) = target else {
            return Ok(Admission { entry: None, group: None, credentials: self.discovery.clone() });
        };
        let entry = self.target(target).ok_or(RefusalCode::NoTarget)?;
        let group = entry.access.admit(initiator, source)?;
        let credentials = Arc::new(group.credentials.clone());
        Ok(Admission { entry: Some(entry.clone()), group: Some(group.clone()), credentials })
    }

    /// Whether the portal of a connection still exists.
    #[must_use]
    pub fn has_portal(&self, portal_ref: PortalRef) -> bool {
        self.portals.iter().any(|portal| portal.id == portal_ref.portal && portal.group == portal_ref.group)
    }

    /// Whether a session may continue: its target is not redirected and is reached through its portal as the same
    /// target port, and its initiator still belongs to the group of this name.
    #[must_use]
    pub fn allows_session(
        &self,
        target: &str,
        portal_ref: PortalRef,
        port: u16,
        (initiator, source): (&str, IpAddr),
        group: &str,
    ) -> bool {
        let Some(entry) = self.target(target).filter(|entry| entry.moved.is_none() && self.has_portal(portal_ref))
        else {
            return false;
        };
        let member = |own: &Arc<Group>| *own.name == *group;
        entry.ports.get(&portal_ref.group) == Some(&port) && entry.access.group(initiator, source).is_some_and(member)
    }
}

//! The clients from which a change takes something that they use: a target, a LUN, a namespace, a portal, a user. Such
//! a change is made only if it is forced. The clients are those that have a session or a controller now.

pub use crate::affected::{AffectedHost, InUse, LostDisk};

use crate::api::{SessionView, VmView};
use crate::common_sections::{Group, Lun, Target};
use crate::config::Config;
use crate::failure::Failure;
use crate::kind::Kind;
use crate::names::{IscsiName, Nqn};
use crate::plan::{Action, Change, ObjectId, Plan};
use crate::section::Effect;
use crate::visibility::{group_of, group_of_local};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// The protocol whose sessions address logical units; all others address namespaces.
const ISCSI: &str = "iscsi";
/// The most affected sessions that a refusal lists: a message that is longer is not read.
const HOSTS_LISTED_MAX: usize = 100;
/// The most losses that are listed for one session.
const LOSSES_MAX: usize = 8;
/// The most resources that a plan removes without force, also if they are most of all resources: a command removes one.
const REMOVED_MAX: usize = 1;

/// Whether a change is made although clients use resources that it removes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Force {
    /// The change is refused then.
    No,
    /// The change is made.
    Yes,
}

impl From<bool> for Force {
    fn from(is_forced: bool) -> Self {
        if is_forced { Self::Yes } else { Self::No }
    }
}

/// Allows a change that takes nothing from clients, or that is forced.
///
/// # Errors
/// [`Failure::InUse`]: clients lose a resource that they use, and the change is not forced.
pub(crate) fn allow(in_use: InUse, force: Force) -> Result<(), Failure> {
    if force == Force::Yes || in_use.is_empty() { Ok(()) } else { Err(Failure::InUse(in_use)) }
}

/// The author of a change.
#[derive(Clone, Copy, Debug)]
pub struct Author<'a> {
    /// The name in the history.
    pub name: &'a str,
    /// Whether the author forces the change.
    pub force: Force,
}

/// An author who does not force the change.
impl<'a> From<&'a str> for Author<'a> {
    fn from(name: &'a str) -> Self {
        Self { name, force: Force::No }
    }
}

/// Something that a change takes from a session.
#[derive(Clone)]
struct Loss {
    words: String,
    /// The resources whose steps cause it.
    causes: Vec<ObjectId>,
}

fn object(kind: Kind, name: &str) -> ObjectId {
    ObjectId { kind, name: name.to_owned(), lun: None }
}

impl Loss {
    fn of(kind: Kind, name: &str, words: String) -> Self {
        Self { words, causes: vec![object(kind, name)] }
    }

    fn of_disk(disk: LostDisk) -> Self {
        Self { words: disk.host.loses.join("; "), causes: disk.causes }
    }
}

/// A change of the configuration that may take something from clients.
#[derive(Debug)]
pub struct Taking<'a> {
    /// The configuration before it.
    pub old: &'a Config,
    /// The configuration after it.
    pub new: &'a Config,
    /// Volumes that are removed, or that are other ones under the same name.
    pub replaced: BTreeSet<&'a str>,
}

impl<'a> Taking<'a> {
    /// The change of this plan; `None` if it takes nothing from any client.
    #[must_use]
    pub fn of(plan: &'a Plan, old: &'a Config, new: &'a Config) -> Option<Self> {
        let ended = plan.changes.iter().filter(|change| change.object.kind == Kind::Volume && ends(change));
        let replaced = ended.map(|change| change.object.name.as_str()).collect();
        plan.changes.iter().any(may_take).then_some(Self { old, new, replaced })
    }

    /// Whether the volume of this name becomes smaller.
    #[must_use]
    pub fn shrinks(&self, volume: &str) -> bool {
        let size = |config: &Config| config.volumes.get(volume)?.size.map(|size| size.0);
        size(self.old).zip(size(self.new)).is_some_and(|(before, now)| now < before)
    }
}

/// The clients that use something now.
pub(crate) struct Clients {
    pub(crate) sessions: Vec<SessionView>,
    pub(crate) vms: Vec<VmView>,
    /// Disks of this machine that programs use, and that the change would take away.
    pub(crate) disks: Vec<LostDisk>,
}

/// The losses that were found, and the steps that cause them.
struct Found {
    in_use: InUse,
    takers: BTreeMap<ObjectId, BTreeSet<String>>,
}

impl Found {
    /// Notes the losses of a client.
    fn note(&mut self, mut host: AffectedHost, losses: &[Loss]) {
        self.in_use.count += 1;
        for cause in losses.iter().flat_map(|loss| &loss.causes) {
            self.takers.entry(cause.clone()).or_default().insert(host.initiator.clone());
        }
        if self.in_use.hosts.len() < HOSTS_LISTED_MAX {
            host.loses = losses.iter().take(LOSSES_MAX).map(|loss| loss.words.clone()).collect();
            if losses.len() > LOSSES_MAX {
                host.loses.push(format!("and {} more", losses.len() - LOSSES_MAX));
            }
            self.in_use.hosts.push(host);
        }
    }
}

/// Finds the clients from which the plan takes something, and marks the steps that do so.
pub(crate) fn find(plan: &mut Plan, (old, new): (&Config, &Config), clients: Clients) -> InUse {
    let in_use = InUse { removed: removed(plan, old, new), ..InUse::default() };
    let Some(taking) = Taking::of(plan, old, new) else { return in_use };
    let mut found = Found { in_use, takers: BTreeMap::new() };
    let Clients { sessions, vms, disks } = clients;
    let mut search = Search::new(plan, taking, &vms);
    let mut disks: BTreeMap<String, LostDisk> =
        disks.into_iter().map(|disk| (disk.host.session.clone(), disk)).collect();
    for session in sessions.iter().filter(|session| !session.discovery) {
        let disk = disks.remove(&session.id).map(Loss::of_disk);
        let losses: Vec<Loss> = disk.into_iter().chain(search.losses(session)).collect();
        if !losses.is_empty() {
            found.note(client(session), &losses);
        }
    }
    for (_, disk) in disks {
        found.note(disk.host.clone(), &[Loss::of_disk(disk)]);
    }
    let Found { in_use, takers } = found;
    for change in plan.changes.iter_mut().filter(|change| may_take(change)) {
        change.hosts = takers.get(&change.object).into_iter().flatten().cloned().collect();
    }
    in_use
}

/// The client of a session, before its losses are known.
fn client(session: &SessionView) -> AffectedHost {
    AffectedHost {
        session: session.id.clone(),
        initiator: session.initiator.clone(),
        source: session.source.clone(),
        target: session.target.clone().unwrap_or_default(),
        loses: Vec::new(),
    }
}

/// Whether a step ends the sessions of its resource.
fn ends(change: &Change) -> bool {
    match change.action {
        Action::Remove => true,
        Action::Change(_) => change.effect == Effect::EndsSessions,
        _ => false,
    }
}

/// How many resources that clients reach the plan removes, and of how many, if these are more than half.
fn removed(plan: &Plan, old: &Config, new: &Config) -> Option<(usize, usize)> {
    let counts = |kind: Kind| {
        matches!(kind, Kind::Volume | Kind::PortalGroup | Kind::Target | Kind::Group | Kind::Portal | Kind::Front(_))
    };
    let all = old.objects().into_keys().filter(|id| counts(id.kind)).count();
    let is_gone = |change: &&Change| {
        let ObjectId { kind, name, .. } = &change.object;
        change.action == Action::Remove && counts(*kind) && new.get(*kind, name).is_none()
    };
    let gone = plan.changes.iter().filter(is_gone).count();
    (gone > REMOVED_MAX && gone > all / 2).then_some((gone, all))
}

/// Whether a step may take something from a client.
fn may_take(change: &Change) -> bool {
    let kind = change.object.kind;
    match &change.action {
        Action::Remove | Action::Detach(_) => true,
        Action::Change(_) => matches!(
            kind,
            Kind::User
                | Kind::Volume
                | Kind::PortalGroup
                | Kind::Target
                | Kind::Group
                | Kind::Lun
                | Kind::Portal
                | Kind::Front(_)
        ),
        // A group may take a client from another group; users of a group replace those of the target.
        Action::Create | Action::Attach(_) => kind == Kind::Group,
    }
}

/// The losses of one target and LUN map, by target, group before, group now, and whether namespaces are seen.
type MapKey = (String, String, Option<String>, bool);

struct Search<'a> {
    old: &'a Config,
    new: &'a Config,
    taking: Taking<'a>,
    vms: &'a [VmView],
    /// Resources of fronts that end their sessions, by name.
    fronts: BTreeMap<&'a str, Kind>,
    /// Portals at which Lunar no longer listens.
    portals: BTreeSet<&'a str>,
    are_groups_changed: bool,
    are_users_changed: bool,
    maps: BTreeMap<MapKey, Vec<Loss>>,
}

impl<'a> Search<'a> {
    fn new(plan: &'a Plan, taking: Taking<'a>, vms: &'a [VmView]) -> Self {
        let (mut fronts, mut portals) = (BTreeMap::new(), BTreeSet::new());
        for change in plan.changes.iter().filter(|change| ends(change)) {
            let name = change.object.name.as_str();
            match change.object.kind {
                Kind::Portal => drop(portals.insert(name)),
                kind @ Kind::Front(_) => drop(fronts.insert(name, kind)),
                _ => {}
            }
        }
        let concerns = |kind: Kind| plan.changes.iter().any(|change| change.object.kind == kind);
        let links_users = |change: &Change| match &change.action {
            Action::Attach(link) | Action::Detach(link) => link.kind == Kind::User,
            _ => false,
        };
        Self {
            old: taking.old,
            new: taking.new,
            taking,
            vms,
            fronts,
            portals,
            are_groups_changed: concerns(Kind::Group),
            are_users_changed: concerns(Kind::User) || plan.changes.iter().any(links_users),
            maps: BTreeMap::new(),
        }
    }

    /// The losses of a session; none if it is not at a configured target.
    fn losses(&mut self, session: &SessionView) -> Vec<Loss> {
        let Some(name) = session.target.as_deref() else { return Vec::new() };
        let Some(before) = self.old.targets.get(name) else { return Vec::new() };
        if let Some(loss) = self.of_target(name, before, session.protocol == ISCSI) {
            return vec![loss];
        }
        let Some(now) = self.new.targets.get(name) else { return Vec::new() };
        let mut losses: Vec<Loss> = self.of_front(session).into_iter().collect();
        losses.extend(self.of_paths(name, (before, now), session));
        let old_group = session.group.clone().or_else(|| group(self.old, name, session));
        let Some(old_group) = old_group else { return losses };
        let new_group = match self.are_groups_changed {
            true => group(self.new, name, session),
            false => Some(old_group.clone()),
        };
        losses.extend(self.of_user((name, before, now), (&old_group, new_group.as_deref()), session));
        losses.extend(self.of_map(name, (old_group, new_group), session));
        losses
    }

    fn of_target(&self, name: &str, before: &Target, is_iscsi: bool) -> Option<Loss> {
        let words = match self.new.targets.get(name) {
            None => "is removed",
            Some(now) if before.enabled && !now.enabled => "is disabled",
            Some(now) if before.moved_to.is_none() && now.moved_to.is_some() => "moves to another address",
            Some(now)
                if is_iscsi
                    && before.iqn.as_ref().map(IscsiName::as_str) != now.iqn.as_ref().map(IscsiName::as_str) =>
            {
                "has another iSCSI name"
            }
            Some(now) if !is_iscsi && before.nqn.as_ref().map(Nqn::as_str) != now.nqn.as_ref().map(Nqn::as_str) => {
                "has another NQN"
            }
            Some(_) => return None,
        };
        Some(Loss::of(Kind::Target, name, format!("the target {words}")))
    }

    /// A virtual machine has the name of its resource.
    fn of_front(&self, session: &SessionView) -> Option<Loss> {
        let vm = self.vms.iter().find(|vm| vm.socket == session.source)?;
        let kind = self.fronts.get(vm.name.as_str())?;
        let words = if self.new.get(*kind, &vm.name).is_none() { "is removed" } else { "changes" };
        Some(Loss::of(*kind, &vm.name, format!("{kind} {} {words}", vm.name)))
    }

    /// The portals and portal groups through which the session may have come: a session does not tell its portal.
    fn of_paths(&self, target: &str, (before, now): (&Target, &Target), session: &SessionView) -> Vec<Loss> {
        if session.source.parse::<SocketAddr>().is_err() {
            return Vec::new();
        }
        let leads = |target: &Target, config: &Config, name: &str| {
            config.portals.get(name).is_some_and(|portal| {
                target.portal_groups.contains(portal.group.name()) && portal.protocol.word() == session.protocol
            })
        };
        let mut losses = Vec::new();
        for name in self.old.portals.keys().filter(|name| leads(before, self.old, name)) {
            if self.portals.contains(name.as_str()) {
                losses.push(Loss::of(Kind::Portal, name, format!("portal {name} is removed or moves")));
            } else if !leads(now, self.new, name) {
                losses.push(Loss::of(
                    Kind::Target,
                    target,
                    format!("portal {name} does not lead to the target any more"),
                ));
            }
        }
        losses
    }

    /// The user that the session authenticated as, or the user of its host.
    fn of_user(
        &self,
        (target, before, now): (&str, &Target, &Target),
        (old_group, new_group): (&str, Option<&str>),
        session: &SessionView,
    ) -> Option<Loss> {
        if !self.are_users_changed {
            return None;
        }
        let login = session.user.as_deref().unwrap_or(&session.initiator);
        let users = |config: &Config, target: &Target, group: Option<&Group>| -> Vec<String> {
            let names = group.map_or(&target.users, |group| group.users(target)).names();
            let is_login = |name: &&str| config.users.get(*name).is_some_and(|user| user.login_name(name) == login);
            names.filter(is_login).map(str::to_owned).collect()
        };
        let had = users(self.old, before, self.old.groups.get(old_group).map(|group| &**group));
        let has = users(self.new, now, new_group.and_then(|name| self.new.groups.get(name)).map(|group| &**group));
        let lost = had.first().filter(|_| has.is_empty())?;
        let causes = [object(Kind::User, lost), object(Kind::Target, target), object(Kind::Group, old_group)];
        Some(Loss { words: format!("user {lost} may not log in any more"), causes: causes.into() })
    }

    /// The LUNs or namespaces.
    fn of_map(&mut self, target: &str, groups: (String, Option<String>), session: &SessionView) -> Vec<Loss> {
        let (old_group, new_group) = groups;
        let is_iscsi = session.protocol == ISCSI;
        let key = (target.to_owned(), old_group, new_group, is_iscsi);
        let mut losses = match self.maps.get(&key) {
            Some(known) => known.clone(),
            None => {
                let found = self.lost_luns(&key);
                self.maps.insert(key.clone(), found.clone());
                found
            }
        };
        if !is_iscsi {
            losses.extend(self.of_pool(&key, &session.initiator));
        }
        losses
    }

    fn lost_luns(&self, (_, old_group, new_group, is_iscsi): &MapKey) -> Vec<Loss> {
        let Some(before) = self.old.groups.get(old_group) else { return Vec::new() };
        let now = new_group.as_ref().and_then(|name| self.new.groups.get(name));
        let groups = || {
            let also = new_group.as_deref().filter(|name| name != old_group);
            std::iter::once(old_group.as_str()).chain(also).map(|name| object(Kind::Group, name))
        };
        let Some(now) = now else {
            return vec![Loss { words: "no group admits the client any more".into(), causes: groups().collect() }];
        };
        let after = seen(now, *is_iscsi);
        let mut losses = Vec::new();
        for (number, (lun, mapped)) in seen(before, *is_iscsi) {
            let volume = mapped.volume.name();
            let at = if *is_iscsi { format!("LUN {number}") } else { format!("namespace {number}") };
            let words = match after.get(&number) {
                None => format!("{at} (volume {volume}) is removed"),
                Some((_, other)) if other.volume.name() != volume => {
                    format!("{at} becomes volume {} instead of {volume}", other.volume.name())
                }
                Some((_, other)) if !is_iscsi && other.metadata != mapped.metadata => {
                    format!("{at} (volume {volume}) has another format")
                }
                Some(_) if self.taking.replaced.contains(volume) => format!("{at} becomes another volume {volume}"),
                Some(_) if self.taking.shrinks(volume) => format!("{at} (volume {volume}) becomes smaller"),
                Some(_) => continue,
            };
            let own = ObjectId { kind: Kind::Lun, name: old_group.clone(), lun: Some(lun) };
            let causes = [own, object(Kind::Volume, volume)].into_iter().chain(groups()).collect();
            losses.push(Loss { words, causes });
        }
        losses
    }

    /// The namespaces that NVMe hosts created in the pool of the group, and that this host is attached to.
    fn of_pool(&self, (_, old_group, new_group, _): &MapKey, host: &str) -> Vec<Loss> {
        let Some(pool) = self.old.groups.get(old_group).and_then(|group| group.pool.as_ref()) else {
            return Vec::new();
        };
        let now = new_group.as_ref().and_then(|name| self.new.groups.get(name)?.pool.as_ref());
        let has_pool = now.is_some_and(|other| other.name() == pool.name());
        let mut losses = Vec::new();
        for (name, volume, id) in self.old.made_of(pool.name()) {
            if !volume.attached.iter().any(|own| own.as_str().eq_ignore_ascii_case(host)) {
                continue;
            }
            let words = match self.new.volumes.get(name) {
                None => format!("namespace {id} (volume {name}) is removed"),
                Some(_) if !has_pool => format!("namespace {id} (volume {name}) is removed with its pool"),
                Some(_) if self.taking.replaced.contains(name.as_str()) => {
                    format!("namespace {id} becomes another volume {name}")
                }
                Some(_) => continue,
            };
            let causes = vec![object(Kind::Volume, name), object(Kind::Group, old_group)];
            losses.push(Loss { words, causes });
        }
        losses
    }
}

/// The group of the client of a session by a configuration.
fn group(config: &Config, target: &str, session: &SessionView) -> Option<String> {
    let found = match session.source.parse::<SocketAddr>() {
        Ok(source) => group_of(config, target, &session.initiator, source.ip()),
        Err(_) => group_of_local(config, target, &session.initiator),
    };
    found.map(|(name, _)| name.to_owned())
}

/// The LUNs of a group by the number that clients address: with the logical unit number.
fn seen(group: &Group, is_iscsi: bool) -> BTreeMap<u32, (u16, &Lun)> {
    let number = |lun: u16, mapped: &Lun| if is_iscsi { Some(lun.into()) } else { mapped.namespace_of(lun) };
    let all = group.luns.0.iter().filter_map(|(lun, mapped)| Some((number(*lun, mapped)?, (*lun, mapped))));
    all.collect()
}

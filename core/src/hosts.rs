//! Counters of hosts: for each host, target and transport, on each core that serves its sessions.
//!
//! The table is bounded. A host that has no session gives its place to a new one, and its counters are added to those
//! of the other hosts of its transport, so that totals never fall.

use crate::access::audit::shown;
use crate::count::Count;
use crate::traffic::{Class, Traffic, TrafficSums};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Hosts that are counted one by one, each with each of its targets: more than the hosts of a large cluster, and few
/// enough that a page of metrics stays below some megabytes. A client chooses its name, so the number of names is not
/// bounded by anything else.
pub const HOSTS_MAX: usize = 1024;

/// The name of all hosts that are not counted one by one, and of their targets.
pub const OTHER: &str = "other";

/// Kinds of refusals that are counted one by one; all kinds are words of this program.
const REASONS_MAX: usize = 128;

/// A host at a target.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HostKey {
    /// The transport: the name of its front.
    pub transport: &'static str,
    /// The target.
    pub target: Arc<str>,
    /// The host. Control characters are escaped, and it has a bounded length.
    pub host: Arc<str>,
}

impl HostKey {
    fn new(transport: &'static str, target: &str, host: &str) -> Self {
        Self { transport, target: shown(target).into(), host: shown(host).into() }
    }

    fn other(transport: &'static str) -> Self {
        Self::new(transport, OTHER, OTHER)
    }

    fn is_other(&self) -> bool {
        &*self.host == OTHER && &*self.target == OTHER
    }
}

/// The counters of a host on one core.
#[derive(Debug, Default)]
struct OnCore {
    traffic: Traffic,
    aborts: Count,
    resets: Count,
    retransmits: Count,
}

/// Sums of a host over all cores.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HostSums {
    /// Its commands.
    pub traffic: TrafficSums,
    /// Commands that were aborted.
    pub aborts: u64,
    /// Resets of logical units, of targets or of controllers.
    pub resets: u64,
    /// TCP segments that were sent to it again.
    pub retransmits: u64,
    /// Sessions now.
    pub sessions: u64,
    /// Logins.
    pub logins: u64,
    /// Logins that were refused, of a host that is in the table.
    pub refused: u64,
}

impl HostSums {
    /// Adds others.
    pub fn merge(&mut self, other: &Self) {
        self.traffic.merge(&other.traffic);
        self.aborts += other.aborts;
        self.resets += other.resets;
        self.retransmits += other.retransmits;
        self.sessions += other.sessions;
        self.logins += other.logins;
        self.refused += other.refused;
    }
}

/// A host in the table. The numbers that are not on a core change under the lock of the table.
#[derive(Debug)]
struct Entry {
    cores: Arc<[OnceLock<Arc<OnCore>>]>,
    /// Sessions, and other connections of them.
    members: u64,
    /// When it last had a member, as a number that grows.
    used: u64,
    /// Sessions now.
    sessions: u64,
    /// Logins.
    logins: u64,
    /// Logins that were refused.
    refused: u64,
    /// The sums of the entries that were added to this one.
    added: Option<Box<HostSums>>,
}

impl Entry {
    fn new(cores: usize) -> Self {
        let cores = (0..cores).map(|_| OnceLock::new()).collect();
        Self { cores, members: 0, used: 0, sessions: 0, logins: 0, refused: 0, added: None }
    }

    fn sums(&self) -> HostSums {
        let mut sums = self.added.as_deref().cloned().unwrap_or_default();
        sums.sessions += self.sessions;
        sums.logins += self.logins;
        sums.refused += self.refused;
        for core in self.cores.iter().filter_map(OnceLock::get) {
            sums.traffic.add(&core.traffic);
            sums.aborts += core.aborts.get();
            sums.resets += core.resets.get();
            sums.retransmits += core.retransmits.get();
        }
        sums
    }
}

#[derive(Debug, Default)]
struct Table {
    hosts: BTreeMap<HostKey, Entry>,
    /// Sessions that began or ended so far.
    uses: u64,
    /// Hosts that were added to the other hosts, and sessions that were counted there for want of a place.
    hidden: u64,
    /// Refused logins, by transport and reason.
    refusals: BTreeMap<(&'static str, &'static str), u64>,
}

impl Table {
    /// The entry for a host: its own, or that of the other hosts.
    fn place(&mut self, wanted: HostKey, cores: usize) -> HostKey {
        if self.hosts.contains_key(&wanted) {
            return wanted;
        }
        let is_full = self.hosts.keys().filter(|key| !key.is_other()).count() >= HOSTS_MAX;
        let is_own = !wanted.is_other() && (!is_full || self.make_room());
        self.hidden += u64::from(!is_own);
        let key = if is_own { wanted } else { HostKey::other(wanted.transport) };
        self.hosts.entry(key.clone()).or_insert_with(|| Entry::new(cores));
        key
    }

    /// Adds the host that has had no session for the longest time to the other hosts; returns whether there is one.
    fn make_room(&mut self) -> bool {
        let idle = self.hosts.iter().filter(|(key, entry)| entry.members == 0 && !key.is_other());
        let Some(oldest) = idle.min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone()) else { return false };
        let Some(entry) = self.hosts.remove(&oldest) else { return false };
        self.hidden += 1;
        let other = self.hosts.entry(HostKey::other(oldest.transport));
        let other = other.or_insert_with(|| Entry::new(entry.cores.len()));
        other.added.get_or_insert_default().merge(&entry.sums());
        true
    }
}

/// The counters of all hosts.
#[derive(Debug)]
pub struct Hosts {
    cores: usize,
    table: Mutex<Table>,
}

impl Hosts {
    /// Without hosts, for this number of cores.
    #[must_use]
    pub fn new(cores: usize) -> Arc<Self> {
        Arc::new(Self { cores, table: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // A panic cannot leave the table inconsistent: it holds numbers.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(
        self: &Arc<Self>,
        core: usize,
        (transport, target, host): (&'static str, &str, &str),
        is_session: bool,
    ) -> HostSession {
        let wanted = HostKey::new(transport, target, host);
        let mut table = self.lock();
        let key = table.place(wanted, self.cores);
        table.uses += 1;
        let uses = table.uses;
        let entry = table.hosts.entry(key.clone()).or_insert_with(|| Entry::new(self.cores));
        entry.members += 1;
        entry.used = uses;
        entry.sessions += u64::from(is_session);
        entry.logins += u64::from(is_session);
        let mine = entry.cores.get(core).map_or_else(Arc::default, |core| core.get_or_init(Arc::default).clone());
        HostSession { mine, key, is_session, hosts: self.clone() }
    }

    fn enter(&self, key: &HostKey) {
        if let Some(entry) = self.lock().hosts.get_mut(key) {
            entry.members += 1;
        }
    }

    fn leave(&self, key: &HostKey, is_session: bool) {
        let mut table = self.lock();
        table.uses += 1;
        let uses = table.uses;
        if let Some(entry) = table.hosts.get_mut(key) {
            entry.members -= 1;
            entry.used = uses;
            entry.sessions -= u64::from(is_session);
        }
    }

    /// Counts a login that was refused for this reason, a word of this program. The name of the host is not known to be
    /// its own, so it takes no place in the table.
    pub fn refused(&self, transport: &'static str, reason: &'static str, target: &str, host: &str) {
        let mut table = self.lock();
        if let Some(entry) = table.hosts.get_mut(&HostKey::new(transport, target, host)) {
            entry.refused += 1;
        }
        let is_known = table.refusals.contains_key(&(transport, reason)) || table.refusals.len() < REASONS_MAX;
        let reason = if is_known { reason } else { OTHER };
        *table.refusals.entry((transport, reason)).or_default() += 1;
    }

    /// The sums of all hosts.
    #[must_use]
    pub fn sums(&self) -> Vec<(HostKey, HostSums)> {
        self.lock().hosts.iter().map(|(key, entry)| (key.clone(), entry.sums())).collect()
    }

    /// How often a host was not shown one by one for want of a place.
    #[must_use]
    pub fn hidden(&self) -> u64 {
        self.lock().hidden
    }

    /// Refused logins by transport and reason.
    #[must_use]
    pub fn refusals(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.lock().refusals.iter().map(|((transport, reason), count)| (*transport, *reason, *count)).collect()
    }
}

/// The table of hosts, as one core uses it.
#[derive(Clone, Debug)]
pub struct CoreHosts {
    /// The table.
    pub hosts: Arc<Hosts>,
    /// The index of the core.
    pub core: usize,
}

impl Default for CoreHosts {
    fn default() -> Self {
        Self { hosts: Hosts::new(1), core: 0 }
    }
}

impl CoreHosts {
    /// Counts a session of a host at a target until the result is dropped.
    #[must_use]
    pub fn session(&self, transport: &'static str, target: &str, host: &str) -> HostSession {
        self.hosts.join(self.core, (transport, target, host), true)
    }

    /// Counts a refused login: [`Hosts::refused`].
    pub fn refused(&self, transport: &'static str, reason: &'static str, target: &str, host: &str) {
        self.hosts.refused(transport, reason, target, host);
    }

    /// The counters for another connection of a session, such as a queue.
    #[must_use]
    pub fn connection(&self, transport: &'static str, target: &str, host: &str) -> HostSession {
        self.hosts.join(self.core, (transport, target, host), false)
    }
}

/// The counters of a session on the core that serves it.
pub struct HostSession {
    mine: Arc<OnCore>,
    key: HostKey,
    is_session: bool,
    hosts: Arc<Hosts>,
}

impl HostSession {
    /// Counts a command that has ended. Only the core itself may call it.
    #[inline]
    pub fn ended(&self, class: Class, nanoseconds: u64, bytes: u64) {
        self.mine.traffic.count(class, nanoseconds, bytes);
    }

    /// The counters for another connection of the session on this core.
    #[must_use]
    pub fn connection(&self) -> Self {
        self.hosts.enter(&self.key);
        let (mine, key, hosts) = (self.mine.clone(), self.key.clone(), self.hosts.clone());
        Self { mine, key, is_session: false, hosts }
    }

    /// The names of the host, of its target and of its transport.
    #[must_use]
    pub fn key(&self) -> &HostKey {
        &self.key
    }

    /// Counts aborted commands.
    pub fn aborted(&self, count: u64) {
        self.mine.aborts.add(count);
    }

    /// Counts a reset.
    pub fn reset(&self) {
        self.mine.resets.add(1);
    }

    /// Counts TCP segments that were sent to the host again.
    pub fn retransmitted(&self, segments: u32) {
        self.mine.retransmits.add(u64::from(segments));
    }
}

impl Drop for HostSession {
    fn drop(&mut self) {
        self.hosts.leave(&self.key, self.is_session);
    }
}

impl fmt::Debug for HostSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostSession({} at {})", self.key.host, self.key.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(hosts: &Arc<Hosts>, core: usize) -> CoreHosts {
        CoreHosts { hosts: hosts.clone(), core }
    }

    fn sums(hosts: &Hosts, host: &str) -> Option<HostSums> {
        hosts.sums().into_iter().find(|(key, _)| &*key.host == host).map(|(_, sums)| sums)
    }

    fn total(hosts: &Hosts) -> (u64, u64, u64) {
        let mut all = HostSums::default();
        hosts.sums().iter().for_each(|(_, sums)| all.merge(sums));
        let read = all.traffic.of(Class::Read);
        (read.commands(), read.bytes, all.logins)
    }

    #[test]
    fn sessions_of_a_host_on_several_cores_are_added() {
        let hosts = Hosts::new(2);
        let first = core(&hosts, 0).session("iscsi", "disk", "iqn.a");
        let second = core(&hosts, 1).session("iscsi", "disk", "iqn.a");
        let queue = second.connection();
        first.ended(Class::Read, 0, 512);
        second.ended(Class::Read, 0, 512);
        queue.ended(Class::Write, 0, 1);
        first.aborted(2);
        second.reset();
        first.retransmitted(3);
        queue.retransmitted(4);
        drop((first, queue));
        let of = sums(&hosts, "iqn.a").expect("it is there");
        assert_eq!((of.sessions, of.logins, of.aborts, of.resets), (1, 2, 2, 1));
        assert_eq!(of.retransmits, 7, "those of connections that have ended stay");
        assert_eq!((of.traffic.of(Class::Read).bytes, of.traffic.of(Class::Write).bytes), (1024, 1));
        drop(second);
        assert_eq!(sums(&hosts, "iqn.a").map(|of| of.sessions), Some(0), "its counters stay");
    }

    #[test]
    fn a_flood_of_hosts_stays_within_the_limit_and_totals_never_fall() {
        let hosts = Hosts::new(1);
        let kept = core(&hosts, 0).session("iscsi", "disk", "iqn.kept");
        kept.ended(Class::Read, 0, 1);
        let mut before = total(&hosts);
        for at in 0..3 * HOSTS_MAX as u64 {
            let session = core(&hosts, 0).session("iscsi", "disk", &format!("iqn.{at}"));
            session.ended(Class::Read, 0, 10);
            drop(session);
            let now = total(&hosts);
            assert_eq!(now, (before.0 + 1, before.1 + 10, before.2 + 1));
            before = now;
        }
        assert_eq!(hosts.sums().len(), HOSTS_MAX + 1);
        assert_eq!(hosts.hidden(), 2 * HOSTS_MAX as u64 + 1);
        assert!(sums(&hosts, "iqn.kept").is_some(), "a host with a session keeps its place");
        assert!(sums(&hosts, "iqn.0").is_none() && sums(&hosts, OTHER).is_some());
    }

    #[test]
    fn sessions_without_a_place_are_counted_together() {
        let hosts = Hosts::new(1);
        let all: Vec<_> =
            (0..HOSTS_MAX + 3).map(|at| core(&hosts, 0).session("nvme-tcp", "disk", &format!("nqn.{at}"))).collect();
        all.iter().for_each(|session| session.ended(Class::Write, 0, 1));
        let other = sums(&hosts, OTHER).expect("three have no place");
        assert_eq!((other.sessions, other.traffic.of(Class::Write).commands()), (3, 3));
        drop(all);
        assert_eq!(sums(&hosts, OTHER).map(|other| other.sessions), Some(0));
    }

    #[test]
    fn refusals_take_no_place_and_hostile_names_are_escaped() {
        let hosts = Hosts::new(1);
        for at in 0..100_000 {
            hosts.refused("iscsi", "wrong-secret", "disk", &format!("iqn.{at}"));
        }
        assert_eq!((hosts.sums().len(), hosts.refusals()), (0, vec![("iscsi", "wrong-secret", 100_000)]));
        let known = core(&hosts, 0).session("iscsi", "disk", "a\"\n\u{202e}b");
        hosts.refused("iscsi", "wrong-secret", "disk", "a\"\n\u{202e}b");
        let (key, of) = hosts.sums().remove(0);
        assert_eq!((&*key.host, of.refused), ("a\\\"\\n\\u{202e}b", 1));
        drop(known);
        let long = core(&hosts, 0).session("iscsi", "disk", &"x".repeat(100_000));
        assert!(hosts.sums().iter().all(|(key, _)| key.host.len() < 300));
        drop(long);
    }

    #[test]
    fn a_host_that_calls_itself_other_is_one_of_the_other_hosts() {
        let hosts = Hosts::new(1);
        let named = core(&hosts, 0).session("aoe", OTHER, OTHER);
        drop(named);
        assert_eq!(hosts.sums().len(), 1, "no two series have the same labels");
    }
}

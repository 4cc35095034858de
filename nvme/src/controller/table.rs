//! The controllers of all subsystems: their limits, and their identifiers.

use super::{AccessGrant, Controller};
use crate::directory::{Directory, Entry};
use crate::event::Event;
use crate::host::Host;
use crate::limits::{CONTROLLERS_MAX, DISCOVERY_MAX, DISCOVERY_PER_SOURCE, FORMER_MAX, UNAUTHENTICATED_MAX};
use crate::path::{Kind, Path, PortalRef};
use lunar_core::pace;
use lunar_core::time::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The controllers of all subsystems, on all cores.
#[derive(Debug, Default)]
pub struct Controllers(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    all: BTreeMap<u16, Arc<Controller>>,
    last: u16,
    /// The identifiers of I/O controllers that have ended, the oldest first. Their hosts get them again.
    former: VecDeque<Former>,
}

/// The identifier of a controller that has ended.
#[derive(Debug)]
struct Former {
    id: u16,
    host: Host,
    subsystem: Arc<str>,
    portal_ref: PortalRef,
}

impl Former {
    /// Whether a new controller comes from the same host to the same subsystem.
    fn is_of(&self, host: &Host, subsystem: &Entry) -> bool {
        self.host == *host && self.subsystem == subsystem.nqn
    }
}

/// Identifiers from here on are reserved.
const IDS_END: u16 = 0xfff0;
/// A source leaves this part of the places to sources that have few controllers, so that newcomers find one.
const RESERVE_PART: usize = 8;
/// A source with at most this part of the places may take from that reserve.
const FEW_PART: usize = 64;

/// Whether a source that has `own` of `all` controllers may have one more, of `most`.
fn leaves_room(own: usize, all: usize, most: usize) -> bool {
    let free = most.saturating_sub(all);
    free > most / RESERVE_PART || free > 0 && own <= most / FEW_PART
}

/// Where the host of a controller is; `None`: on this machine.
fn source_of(access_grant: &AccessGrant) -> Option<IpAddr> {
    access_grant.source.map(|source| pace::host(source.ip()))
}

impl Table {
    /// The controllers that have not ended and that `counts` selects: all of them, and those of one source.
    fn count(&self, source: Option<IpAddr>, counts: impl Fn(&Controller) -> bool) -> (usize, usize) {
        let alive = || self.all.values().filter(|one| !one.is_over() && counts(one));
        (alive().filter(|one| source_of(&one.access_grant) == source).count(), alive().count())
    }

    /// Whether there is a place for one more I/O controller whose host is authenticated, or need not be.
    fn has_room(&self, access_grant: &AccessGrant) -> bool {
        let (source, subsystem) = (source_of(access_grant), &access_grant.subsystem);
        let counts = |one: &Controller| one.kind == Kind::Io && one.is_authenticated();
        let fits = |(own, all): (usize, usize), most| leaves_room(own, all, most);
        fits(
            self.count(source, |one| counts(one) && one.access_grant.subsystem.nqn == subsystem.nqn),
            subsystem.controllers_max,
        ) && fits(self.count(source, counts), CONTROLLERS_MAX)
    }

    /// Whether there is a place for one more controller whose host has to authenticate.
    fn has_room_unproven(&self, access_grant: &AccessGrant) -> bool {
        let (own, all) = self.count(source_of(access_grant), |one| !one.is_authenticated());
        leaves_room(own, all, UNAUTHENTICATED_MAX)
    }

    /// Makes a place for one more discovery controller: hosts need no authentication for one, so a newcomer must find a
    /// place independent of other hosts. The oldest controller of the same source ends, or of the source that has most.
    /// `false`: there is no discovery service, or too many ended controllers are not released yet.
    fn make_room_for_discovery(&self, access_grant: &AccessGrant) -> bool {
        let mut sources = BTreeMap::<Option<IpAddr>, Vec<&Arc<Controller>>>::new();
        let known = || self.all.values().filter(|one| one.kind == Kind::Discovery && one.is_authenticated());
        for one in known().filter(|one| !one.is_over()) {
            sources.entry(source_of(&one.access_grant)).or_default().push(one);
        }
        if access_grant.subsystem.controllers_max == 0 || known().count() >= 2 * DISCOVERY_MAX {
            return false;
        }
        let all: usize = sources.values().map(Vec::len).sum();
        let own = sources.get(&source_of(access_grant)).filter(|own| own.len() >= DISCOVERY_PER_SOURCE);
        let largest = || sources.values().max_by_key(|all| all.len());
        let from = own.or_else(|| if all >= DISCOVERY_MAX { largest() } else { None });
        let oldest = from.and_then(|from| from.iter().min_by_key(|one| (one.since, one.id)));
        oldest.into_iter().for_each(|oldest| oldest.end());
        true
    }

    /// The same for both types.
    fn admits(&self, kind: Kind, access_grant: &AccessGrant) -> bool {
        match kind {
            Kind::Io => self.has_room(access_grant),
            Kind::Discovery => self.make_room_for_discovery(access_grant),
        }
    }

    /// The identifier that the host had before, by this path if it had one there; else one that was not used for the
    /// longest time.
    fn free_id(&mut self, host: &Host, subsystem: &Entry, portal_ref: PortalRef) -> u16 {
        let is_free = |former: &&Former| former.is_of(host, subsystem) && !self.all.contains_key(&former.id);
        let here = self.former.iter().rev().filter(is_free).find(|former| former.portal_ref == portal_ref);
        if let Some(former) = here.or_else(|| self.former.iter().rev().find(is_free)) {
            return former.id;
        }
        loop {
            self.last = self.last % (IDS_END - 1) + 1;
            let is_kept = self.former.iter().any(|former| former.id == self.last);
            if !is_kept && !self.all.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// Keeps the identifier of a controller that has ended for its host. A host that was not authenticated gets none
    /// kept: any host may send its name.
    fn keep_id(&mut self, ended: &Controller) {
        if ended.kind == Kind::Discovery || !ended.is_authenticated() {
            return;
        }
        self.former.retain(|former| former.id != ended.id);
        if self.former.len() == FORMER_MAX {
            self.former.pop_front();
        }
        let (id, host, portal_ref) = (ended.id, ended.host.clone(), ended.path.portal_ref);
        self.former.push_back(Former { id, host, subsystem: ended.access_grant.subsystem.nqn.clone(), portal_ref });
    }
}

impl Controllers {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a controller; its host has still to authenticate if it `must_authenticate`. `None` when there are
    /// [`CONTROLLERS_MAX`] or [`UNAUTHENTICATED_MAX`], or as many as its subsystem may have, or when only places are
    /// left for sources with few controllers.
    pub(crate) fn make(
        &self,
        kind: Kind,
        host: Host,
        path: Path,
        (access_grant, must_authenticate): (AccessGrant, bool),
        now: Instant,
    ) -> Option<Arc<Controller>> {
        let mut table = self.lock();
        let has_room = match must_authenticate {
            // It is counted with the others when its host is authenticated.
            true => {
                table.has_room_unproven(&access_grant) && (kind == Kind::Discovery || table.has_room(&access_grant))
            }
            false => table.admits(kind, &access_grant),
        };
        if !has_room {
            return None;
        }
        let id = table.free_id(&host, &access_grant.subsystem, path.portal_ref);
        let controller = Arc::new(Controller::new((id, kind), host, path, (access_grant, must_authenticate), now));
        if !must_authenticate {
            controller.begin_attached(&table.all);
        }
        table.all.insert(id, controller.clone());
        Some(controller)
    }

    /// A host is authenticated: `false` if other hosts have taken all controllers meanwhile.
    pub(crate) fn authenticate(&self, controller: &Controller) -> bool {
        let table = self.lock();
        let was_authenticated = controller.is_authenticated();
        let stays = was_authenticated || table.admits(controller.kind, &controller.access_grant);
        if stays && !was_authenticated {
            controller.begin_attached(&table.all);
        }
        controller.authenticated.fetch_or(stays, Ordering::Relaxed);
        stays
    }

    pub(crate) fn forget(&self, id: u16) {
        let mut table = self.lock();
        if let Some(ended) = table.all.remove(&id) {
            table.keep_id(&ended);
        }
    }

    /// The controller of this identifier.
    #[must_use]
    pub fn get(&self, id: u16) -> Option<Arc<Controller>> {
        self.lock().all.get(&id).cloned()
    }

    /// All controllers.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Controller>> {
        self.lock().all.values().cloned().collect()
    }

    /// Ends the controllers of hosts that may no longer be there, and those that `ends` names; discovery controllers
    /// that stay get a discovery log page change notice.
    pub fn review(&self, directory: &Directory, ends: impl Fn(&Controller) -> bool) {
        for controller in self.all() {
            match controller.may_stay(directory) && !ends(&controller) {
                true if controller.kind == Kind::Discovery => controller.raise(Event::DISCOVERY),
                true => {}
                false => controller.end(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn access_grant(controllers_max: usize) -> AccessGrant {
        let entry = Entry { controllers_max, ..Entry::clone(Directory::nothing().discovery()) };
        AccessGrant { subsystem: Arc::new(entry), group: None, map: None, source: None }
    }

    /// A host at this address.
    fn at(address: u32, controllers_max: usize) -> AccessGrant {
        let source = Some((Ipv4Addr::from_bits(address), 4000).into());
        AccessGrant { source, ..access_grant(controllers_max) }
    }

    fn make(
        all: &Controllers,
        kind: Kind,
        access_grant: AccessGrant,
        must_authenticate: bool,
        now: u64,
    ) -> Option<Arc<Controller>> {
        let host = Host { nqn: "nqn.x".into(), id: [7; 16] };
        all.make(kind, host, Path::default(), (access_grant, must_authenticate), Instant(now))
    }

    /// NVMe Base 2.0 3.1.2.2: whatever hosts do with discovery controllers, others get theirs.
    #[test]
    fn a_newcomer_always_gets_a_discovery_controller() {
        let all = Controllers::default();
        let of = |source: u32, now| make(&all, Kind::Discovery, at(source, DISCOVERY_MAX), false, now);
        let flood: Vec<_> = (0..1000).filter_map(|now| of(1, now)).collect();
        let alive = |controllers: &[Arc<Controller>]| controllers.iter().filter(|one| !one.is_over()).count();
        assert_eq!((flood.len(), alive(&flood)), (1000, DISCOVERY_PER_SOURCE), "a source has so many, the oldest end");
        assert!(!flood[999].is_over() && flood[0].is_over());
        flood.iter().filter(|one| one.is_over()).for_each(|one| all.forget(one.id));
        let many: Vec<_> = (2..2 + DISCOVERY_MAX as u32).filter_map(|source| of(source, 5000)).collect();
        assert_eq!(many.len(), DISCOVERY_MAX);
        assert_eq!((alive(&many), alive(&flood)), (DISCOVERY_MAX - 1, 1), "the source with most makes room");
        assert!(make(&all, Kind::Discovery, at(1, 0), false, 0).is_none(), "there is no discovery service");
        let hasty: Vec<_> = (0..5000).filter_map(|now| of(9999, now)).collect();
        assert!(hasty.len() < 2 * DISCOVERY_MAX, "those that were ended are still there");
    }

    #[test]
    fn one_source_leaves_places_of_io_controllers_to_others() {
        let all = Controllers::default();
        let most = 64;
        let of = |source: u32, must_authenticate| make(&all, Kind::Io, at(source, most), must_authenticate, 0);
        let flood: Vec<_> = (0..most).map_while(|_| of(1, false)).collect();
        assert_eq!(flood.len(), most - most / RESERVE_PART);
        assert!((2..2 + 8).all(|source| of(source, false).is_some()), "newcomers");
        assert!(of(99, false).is_none(), "all are taken");
        flood[0].end();
        assert!(of(99, false).is_some(), "one that has ended takes no place");
        let small = Controllers::default();
        assert!(make(&small, Kind::Io, at(1, 1), false, 0).is_some(), "the only place");
        assert!(make(&small, Kind::Io, at(1, 1), false, 0).is_none());
    }

    #[test]
    fn hosts_that_have_to_authenticate_take_no_place_of_others() {
        let all = Controllers::default();
        let most = 20_000;
        let of = |source: u32, must_authenticate| make(&all, Kind::Io, at(source, most), must_authenticate, 0);
        let unauthenticated: Vec<_> = (0..UNAUTHENTICATED_MAX).map_while(|_| of(1, true)).collect();
        assert_eq!(unauthenticated.len(), UNAUTHENTICATED_MAX - UNAUTHENTICATED_MAX / RESERVE_PART);
        assert!(of(2, true).is_some() && of(1, false).is_some());
        assert!(all.authenticate(&unauthenticated[0]) && all.authenticate(&unauthenticated[0]));
        let rest = Controllers::default();
        let late = make(&rest, Kind::Io, at(1, 1), true, 0).expect("room");
        assert!(make(&rest, Kind::Io, at(2, 1), false, 0).is_some());
        assert!(!rest.authenticate(&late), "other hosts took the controllers first");
    }

    #[test]
    fn hosts_that_have_to_authenticate_have_a_limit_of_their_own() {
        let all = Controllers::default();
        let of = |source: u32, must_authenticate| make(&all, Kind::Io, at(source, 20_000), must_authenticate, 0);
        let unauthenticated: Vec<_> = (0..10_000).map_while(|source| of(source, true)).collect();
        assert_eq!(unauthenticated.len(), UNAUTHENTICATED_MAX, "each of another source");
        assert!(of(20_000, true).is_none() && of(20_000, false).is_some());
        let full = Controllers::default();
        let only = make(&full, Kind::Io, at(1, 1), true, 0).expect("room");
        assert!(full.authenticate(&only), "the only place");
        assert!(make(&full, Kind::Io, at(2, 1), true, 0).is_none());
    }

    /// NVMe Base 2.0 3.1.2.1 leaves the dynamic controller model its choice; scripts of hosts keep the identifier
    /// across a reset.
    #[test]
    fn a_returning_host_gets_its_free_controller_identifiers_again() {
        let controllers = Controllers::default();
        let make = |host: u8, portal: u32, must_authenticate: bool| {
            let path = Path { portal_ref: PortalRef { portal, ..PortalRef::default() }, ..Path::default() };
            let host = Host { nqn: "nqn.x".into(), id: [host; 16] };
            let made = controllers.make(Kind::Io, host, path, (access_grant(100), must_authenticate), Instant(0));
            made.expect("room").id
        };
        let ids = [make(1, 1, false), make(1, 2, false), make(2, 1, false)];
        assert_eq!(ids, [1, 2, 3]);
        [1, 2, 3].into_iter().for_each(|id| controllers.forget(id));
        assert_eq!(make(3, 1, false), 4, "another host takes none that is kept");
        assert_eq!([make(1, 2, false), make(1, 1, false), make(1, 1, false)], [2, 1, 5], "by their paths");
        assert_eq!(make(2, 2, true), 3, "by another path, if it has none there");
        controllers.forget(3);
        assert_eq!(make(2, 1, false), 3, "a host that did not authenticate changes nothing");
        (1..=5).for_each(|id| controllers.forget(id));
        for _ in 0..FORMER_MAX + 5 {
            let id = make(9, 1, false);
            controllers.forget(id);
        }
        assert_eq!(controllers.lock().former.len(), 5 + 1, "one host has one place");
    }

    #[test]
    fn identifiers_are_used_again_only_when_free() {
        let controllers = Controllers::default();
        let first = make(&controllers, Kind::Io, access_grant(1), false, 0).expect("room");
        let host = first.host.clone();
        let make =
            |most| controllers.make(Kind::Io, host.clone(), Path::default(), (access_grant(most), false), Instant(0));
        assert!(make(1).is_none(), "one at most");
        let second = make(2).expect("room");
        assert_eq!((first.id, second.id), (1, 2));
        controllers.forget(1);
        assert!(controllers.get(1).is_none() && controllers.get(2).is_some());
    }
}

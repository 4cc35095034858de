//! Discovery without a fabric (FC-BB-6 VN2VN): the port probes for an identifier, claims it, and then sends beacons.
//! It behaves as the initiator of Linux does.

use super::fabric::FabricNews;
use super::{Chance, Outgoing, Route};
use crate::limits::{ANNOUNCED_MAX, NEIGHBOURS_MAX, NEW_NEIGHBOURS_MAX, NEW_STRANGERS_MAX, STATION_ANSWERS_MAX};
use crate::wire::fip::{ALL_VN2VN, Announcement, Functions, Neighbour, Operation, announcement};
use crate::wire::frame::{FRONT_LEN, TRAILER_LEN, fcoe_size_of};
use crate::wire::names::{PortId, Wwn};
use lunar_core::time::Instant;
use lunar_link::{MacAddress, Rate};
use std::collections::BTreeMap;
use std::time::Duration;

/// The longest random delay before a probe, and between beacons.
const SPREAD_MILLISECONDS: u64 = 100;
/// The time from the first probe to the second one.
const PROBE_TIME: Duration = Duration::from_millis(100);
/// The time from the second probe to the claim, from there to the first beacon, and from there to the second one. At
/// most one claim in this time is sent because of beacons of unknown neighbours.
const CLAIM_TIME: Duration = Duration::from_millis(400);
/// The time between beacons.
const BEACON_TIME: Duration = Duration::from_secs(8);
/// The time after which a neighbour without beacons is gone.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// A neighbour that was heard within this time, a period of beacons and their delays, is there.
const HEARD: Duration = Duration::from_secs(10);
/// Identifiers that are tried before a pause, and the pause.
const TRIES: (u32, Duration) = (10, Duration::from_secs(10));

/// The decision which ports may log in.
pub type Admits<'a> = &'a dyn Fn(Wwn) -> bool;

/// This port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The MAC address of its station.
    pub station: MacAddress,
    /// Node_Name.
    pub node: Wwn,
    /// N_Port_Name.
    pub name: Wwn,
    /// Its functions.
    pub functions: Functions,
    /// The most bytes of the payload of a frame on its link.
    pub payload: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Start,
    FirstProbe,
    SecondProbe,
    Claim,
    /// With this number of beacons, of which the second comes early.
    Up(u8),
}

/// A neighbour that has claimed its identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The neighbour.
    pub port: Neighbour,
    /// Its functions, if it has announced them.
    pub functions: Option<Functions>,
    /// Its last beacon or claim.
    seen: Instant,
    /// Whether others must not take its place.
    is_kept: bool,
}

/// Something has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The port has this identifier.
    Up(PortId),
    /// The port gives its identifier up: all its logins are void.
    Down,
    /// A neighbour has sent a beacon.
    Beacon(PortId),
    /// A neighbour is gone.
    Gone(PortId),
    /// The fabric has a port of this name.
    Port(PortId, Wwn),
    /// The login at the fabric has changed.
    Fabric(FabricNews),
}

/// The state of the port among its neighbours.
#[derive(Clone, Debug)]
pub struct Discovery {
    own: Identity,
    phase: Phase,
    id: PortId,
    deadline: Instant,
    tries: u32,
    neighbours: BTreeMap<PortId, Known>,
    /// When a claim was sent because of a beacon.
    claimed: Option<Instant>,
    answers: Rate,
    arrivals: Rate,
    strangers: Rate,
    chance: Chance,
}

impl Discovery {
    /// A port that begins now.
    #[must_use]
    pub fn new(own: Identity, seed: u64, now: Instant) -> Self {
        let mut chance = Chance(seed);
        // The low bytes of the name, as Linux proposes them: the same identifier after each start.
        let id = PortId::of_neighbour(own.name.0 as u16).unwrap_or_else(|| any_id(&mut chance));
        let second = Duration::from_secs(1);
        let delay = Duration::from_millis(chance.below(SPREAD_MILLISECONDS));
        Self {
            own,
            phase: Phase::Start,
            id,
            deadline: now + delay,
            tries: 0,
            neighbours: BTreeMap::new(),
            claimed: None,
            answers: Rate::new(second, ANNOUNCED_MAX, STATION_ANSWERS_MAX),
            arrivals: Rate::new(second, NEW_NEIGHBOURS_MAX, NEW_NEIGHBOURS_MAX),
            strangers: Rate::new(second, NEW_STRANGERS_MAX, NEW_STRANGERS_MAX),
            chance,
        }
    }

    /// This port.
    #[must_use]
    pub fn own(&self) -> &Identity {
        &self.own
    }

    /// The identifier of the port, once it may be used.
    #[must_use]
    pub fn id(&self) -> Option<PortId> {
        matches!(self.phase, Phase::Up(_)).then_some(self.id)
    }

    /// A neighbour.
    #[must_use]
    pub fn neighbour(&self, id: PortId) -> Option<&Known> {
        self.neighbours.get(&id)
    }

    /// The time of the next tick.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The announcement of this port.
    fn announce(&self, operation: Operation, to: MacAddress) -> Outgoing {
        let port = Neighbour { station: self.own.station, node: self.own.node, name: self.own.name, id: self.id };
        let body = announcement(operation, &port, (self.own.functions, fcoe_size_of(self.own.payload)));
        let from = if operation == Operation::BEACON { self.id.mac() } else { self.own.station };
        Outgoing::fip(Route { to, from }, body)
    }

    /// Gives the identifier up and tries another one.
    fn restart(&mut self, now: Instant, found: &mut Vec<Found>) {
        self.phase = Phase::Start;
        self.id = any_id(&mut self.chance);
        self.tries += 1;
        let delay = Duration::from_millis(self.chance.below(SPREAD_MILLISECONDS));
        self.deadline = now + if self.tries.is_multiple_of(TRIES.0) { TRIES.1 } else { delay };
        self.neighbours.clear();
        found.push(Found::Down);
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant, out: &mut Vec<Outgoing>, found: &mut Vec<Found>) {
        self.age(now, found);
        if now < self.deadline {
            return;
        }
        let (operation, next, wait) = match self.phase {
            Phase::Start => (Operation::PROBE_REQUEST, Phase::FirstProbe, PROBE_TIME),
            Phase::FirstProbe => (Operation::PROBE_REQUEST, Phase::SecondProbe, CLAIM_TIME),
            Phase::SecondProbe => (Operation::CLAIM_NOTIFICATION, Phase::Claim, CLAIM_TIME),
            Phase::Claim => {
                found.push(Found::Up(self.id));
                (Operation::BEACON, Phase::Up(1), CLAIM_TIME)
            }
            Phase::Up(_) => {
                let spread = Duration::from_millis(self.chance.below(SPREAD_MILLISECONDS));
                (Operation::BEACON, Phase::Up(2), BEACON_TIME + spread)
            }
        };
        self.phase = next;
        self.deadline = now + wait;
        out.push(self.announce(operation, ALL_VN2VN));
    }

    /// Forgets neighbours that are silent.
    fn age(&mut self, now: Instant, found: &mut Vec<Found>) {
        self.neighbours.retain(|id, known| {
            let is_here = now.since(known.seen) < SILENCE_MAX;
            found.extend((!is_here).then_some(Found::Gone(*id)));
            is_here
        });
    }

    /// Takes the announcement of another port, which this station has sent.
    pub fn receive(
        &mut self,
        (operation, announced): (Operation, &Announcement),
        (now, admits): (Instant, Admits<'_>),
        out: &mut Vec<Outgoing>,
        found: &mut Vec<Found>,
    ) {
        let port = &announced.port;
        if port.name == self.own.name || !port.id.is_neighbour() {
            return;
        }
        match operation {
            Operation::PROBE_REQUEST => self.probed(announced, now, out, found),
            Operation::PROBE_REPLY if port.id == self.id => match self.phase {
                Phase::Up(_) => self.claim(now, out),
                _ => self.restart(now, found),
            },
            Operation::CLAIM_NOTIFICATION => self.claimed(announced, (now, admits), out, found),
            Operation::CLAIM_RESPONSE if self.is_claiming() && port.id != self.id => {
                self.add(announced, (now, admits), found);
            }
            Operation::BEACON => self.beacon(port, now, out, found),
            _ => {}
        }
    }

    fn is_claiming(&self) -> bool {
        matches!(self.phase, Phase::Claim | Phase::Up(_))
    }

    /// Sends a claim for all, at most one in [`CLAIM_TIME`].
    fn claim(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        if self.claimed.is_none_or(|before| now.since(before) >= CLAIM_TIME) {
            self.claimed = Some(now);
            out.push(self.announce(Operation::CLAIM_NOTIFICATION, ALL_VN2VN));
        }
    }

    /// Sends an answer to a station, if it and all stations have not had too many.
    fn answer(&mut self, operation: Operation, to: MacAddress, now: Instant, out: &mut Vec<Outgoing>) {
        if self.answers.admit(to, now) {
            out.push(self.announce(operation, to));
        }
    }

    fn probed(&mut self, announced: &Announcement, now: Instant, out: &mut Vec<Outgoing>, found: &mut Vec<Found>) {
        let port = &announced.port;
        if port.id != self.id {
            return;
        }
        match self.phase {
            Phase::Claim | Phase::Up(_) => self.answer(Operation::PROBE_REPLY, port.station, now, out),
            // Of two ports that probe for the same identifier, the one with the larger name has it.
            Phase::FirstProbe | Phase::SecondProbe if self.own.name > port.name && !announced.is_recorded => {
                self.answer(Operation::PROBE_REPLY, port.station, now, out);
            }
            _ => self.restart(now, found),
        }
    }

    fn claimed(
        &mut self,
        announced: &Announcement,
        (now, admits): (Instant, Admits<'_>),
        out: &mut Vec<Outgoing>,
        found: &mut Vec<Found>,
    ) {
        let port = &announced.port;
        if port.id == self.id {
            return match self.is_claiming() && port.name < self.own.name {
                true => self.claim(now, out),
                false => self.restart(now, found),
            };
        }
        if !self.is_claiming() {
            return;
        }
        let before = out.len();
        self.answer(Operation::CLAIM_RESPONSE, port.station, now, out);
        // It is as long as the largest frame that both ports receive: it shows that such frames arrive.
        let least = FRONT_LEN + TRAILER_LEN;
        let largest = usize::from(fcoe_size_of(self.own.payload));
        let size = announced.size.map_or(largest, usize::from).clamp(least, largest);
        if let Some(response) = out.get_mut(before) {
            let len = response.body.len().max(size);
            response.body.resize(len, 0);
        }
        self.add(announced, (now, admits), found);
    }

    /// Keeps a neighbour that is logged in, or no longer.
    pub fn keep(&mut self, id: PortId, is_kept: bool) {
        self.neighbours.get_mut(&id).into_iter().for_each(|known| known.is_kept = is_kept);
    }

    /// Makes room for one more neighbour: announcements can be forged, so one that is not logged in and was silent for
    /// the longest time is forgotten. Returns whether there is room.
    fn make_room(&mut self, found: &mut Vec<Found>) -> bool {
        if self.neighbours.len() < NEIGHBOURS_MAX {
            return true;
        }
        let others = self.neighbours.iter().filter(|(_, known)| !known.is_kept);
        let Some(id) = others.min_by_key(|(_, known)| known.seen).map(|(id, _)| *id) else { return false };
        self.neighbours.remove(&id);
        found.push(Found::Gone(id));
        true
    }

    /// Whether an identifier belongs to another neighbour that is logged in and there. A port that may have it after
    /// all, because the other one has not heard its probe, is taken when the other one has another identifier.
    fn is_taken(&self, port: &Neighbour, now: Instant) -> bool {
        let owner = self.neighbours.get(&port.id);
        owner.is_some_and(|owner| owner.is_kept && owner.port.name != port.name && now.since(owner.seen) < HEARD)
    }

    /// Takes a neighbour that has claimed its identifier.
    fn add(&mut self, announced: &Announcement, (now, admits): (Instant, Admits<'_>), found: &mut Vec<Found>) {
        let port = announced.port;
        let known = self.neighbours.get(&port.id).filter(|known| known.port == port);
        let is_kept = known.is_some_and(|known| known.is_kept);
        if known.is_none() {
            // Claims can be forged: those of too many ports end no login.
            let rate = if admits(port.name) { &mut self.arrivals } else { &mut self.strangers };
            if !rate.admit(self.own.station, now) || self.is_taken(&port, now) {
                return;
            }
            // The name has moved to this identifier, or the identifier to this name.
            let same = self.neighbours.iter().find(|(id, known)| known.port.name == port.name && **id != port.id);
            let moved = same.map(|(id, _)| *id);
            let replaced = self.neighbours.contains_key(&port.id).then_some(port.id);
            for id in moved.into_iter().chain(replaced) {
                self.neighbours.remove(&id);
                found.push(Found::Gone(id));
            }
            if !self.make_room(found) {
                return;
            }
        }
        let known = Known { port, functions: announced.functions, seen: now, is_kept };
        self.neighbours.insert(port.id, known);
    }

    fn beacon(&mut self, port: &Neighbour, now: Instant, out: &mut Vec<Outgoing>, found: &mut Vec<Found>) {
        if !matches!(self.phase, Phase::Up(_)) {
            return;
        }
        match self.neighbours.get_mut(&port.id) {
            Some(known) if known.port == *port => {
                known.seen = now;
                found.push(Found::Beacon(port.id));
            }
            Some(_) => {}
            None => self.claim(now, out),
        }
    }
}

fn any_id(chance: &mut Chance) -> PortId {
    loop {
        // Below 64 Ki.
        if let Some(id) = PortId::of_neighbour(chance.below(1 << 16) as u16) {
            return id;
        }
    }
}

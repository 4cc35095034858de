//! A port of a fabric: it looks for switches (FCF), logs in at the best one, which grants it an identifier and a MAC
//! address (FPMA), and keeps the login alive. The registration with the services of the fabric is in
//! [`registration`].

pub mod registration;

use super::discovery::{Found, Identity};
use super::{Chance, Outgoing, Route};
use crate::limits::{SOLICITATIONS_MAX, SWITCHES_MAX};
use crate::wire::els::{E_D_TOV, Els, LoginParameters, Logo, Reject};
use crate::wire::fip::fabric::{self as fip, ALL_SWITCHES, Advertisement, Clear};
use crate::wire::fip::{Kind, LinkService, Message, Neighbour, Operation};
use crate::wire::frame::{Address, Control, Header, PAYLOAD_MIN, Protocol, Routing, UNASSIGNED, fcoe_size_of};
use crate::wire::names::{PortId, Wwn};
use lunar_core::time::Instant;
use lunar_link::{MacAddress, Rate};
use registration::Registration;
use std::collections::BTreeMap;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// The longest random delay before a solicitation or a login: ports that lose a switch together do not return together.
const SPREAD_MILLISECONDS: u64 = 100;
/// The time in which switches answer a solicitation, before the best one is chosen.
const SELECTION_TIME: Duration = Duration::from_millis(500);
/// The time between the first two solicitations; it doubles up to this power of two.
const SOLICITATION_TIME: Duration = Duration::from_secs(1);
const SOLICITATION_DOUBLINGS: u32 = 4;
/// Solicitations without an answer, after which operators are told.
const SILENT_TRIES: u32 = 3;
/// The time in which FLOGI is answered, and its tries.
const ANSWER_TIME: Duration = Duration::from_millis(E_D_TOV as u64);
const TRIES: u32 = 3;
/// The time for which a switch that has refused the port, or has not answered it, is not tried again.
const REFUSED_TIME: Duration = Duration::from_secs(10);
/// The time between keep-alives of a VN_Port (FC-BB-6).
const PORT_KEEP_ALIVE: Duration = Duration::from_secs(90);

/// A time without ticks for a port that has left its fabric.
const NEVER: Duration = Duration::from_secs(1 << 30);

/// A change of the login at the fabric, for operators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FabricNews {
    /// No switch answers.
    NoSwitch,
    /// No switch answers here, but one serves this VLAN.
    OtherVlan(u16),
    /// The switch of this name refuses the login, for this reason and with this explanation.
    Refused(Wwn, u8, u8),
    /// The switch of this name does not answer a login, or the registration.
    Silent(Wwn),
    /// The port has logged in at the switch of this name.
    Attached(Wwn),
    /// The switch of this name is gone, or has ended the login.
    Lost(Wwn),
}

/// A switch.
#[derive(Clone, Copy, Debug)]
struct Switch {
    advertised: Advertisement,
    seen: Instant,
    /// Whether it has answered a solicitation: frames of the largest size arrive.
    is_checked: bool,
    /// Until when it is not tried again.
    refused: Instant,
}

impl Switch {
    fn is_usable(&self, now: Instant) -> bool {
        self.is_checked && self.advertised.is_available && self.advertised.grants && self.refused <= now
    }

    /// Two and a half periods after its last advertisement it is gone (FC-BB-6).
    fn end(&self) -> Instant {
        self.seen + self.advertised.period * 5 / 2
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// No switch is known that may be used; so many solicitations were sent.
    Soliciting(u32),
    /// Others may be better than the first one.
    Selecting,
    /// FLOGI was sent to this switch so many times, in this exchange.
    LoggingIn(MacAddress, u32, u16),
    /// The port is logged in.
    Attached(Attachment),
    /// The port has left the fabric, and does not return.
    Left,
}

/// A login at a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Attachment {
    switch: MacAddress,
    id: PortId,
    /// The MAC address of the port, which the switch has granted.
    address: MacAddress,
    /// The next keep-alives of the station and of the port.
    station_due: Instant,
    port_due: Instant,
}

/// The state of a port in a fabric.
#[derive(Debug)]
pub struct Fabric {
    own: Identity,
    /// Whether the VLAN of the link is configured: switches are not asked for theirs.
    has_vlan: bool,
    phase: Phase,
    deadline: Instant,
    switches: BTreeMap<MacAddress, Switch>,
    registration: Registration,
    solicitations: Rate,
    ox_id: u16,
    news: Option<FabricNews>,
    chance: Chance,
}

impl Fabric {
    /// A port that begins now.
    #[must_use]
    pub fn new(own: Identity, has_vlan: bool, seed: u64, now: Instant) -> Self {
        let mut chance = Chance(seed);
        let delay = Duration::from_millis(chance.below(SPREAD_MILLISECONDS));
        Self {
            own,
            has_vlan,
            phase: Phase::Soliciting(0),
            deadline: now + delay,
            switches: BTreeMap::new(),
            registration: Registration::new(now),
            solicitations: Rate::new(Duration::from_secs(1), SOLICITATIONS_MAX, SOLICITATIONS_MAX),
            ox_id: 0,
            news: None,
            chance,
        }
    }

    /// This port.
    #[must_use]
    pub fn own(&self) -> &Identity {
        &self.own
    }

    fn attachment(&self) -> Option<&Attachment> {
        match &self.phase {
            Phase::Attached(attachment) => Some(attachment),
            _ => None,
        }
    }

    /// The identifier of the port, once it is logged in.
    #[must_use]
    pub fn id(&self) -> Option<PortId> {
        Some(self.attachment()?.id)
    }

    /// The way of all its frames: to the switch.
    #[must_use]
    pub fn route(&self) -> Option<Route> {
        self.attachment().map(|attachment| Route { to: attachment.switch, from: attachment.address })
    }

    /// The registration with the services.
    #[must_use]
    pub fn registration(&self) -> &Registration {
        &self.registration
    }

    /// The time of the next tick.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        let end = self.switches.values().map(Switch::end).min();
        let Some(attachment) = self.attachment() else {
            return end.map_or(self.deadline, |end| end.min(self.deadline));
        };
        let first = end.unwrap_or(attachment.port_due);
        let wants = self.switches.get(&attachment.switch).is_some_and(|switch| switch.advertised.wants_keep_alives);
        let keep_alive = wants.then_some(attachment.station_due.min(attachment.port_due));
        keep_alive.into_iter().fold(first.min(self.registration.deadline()), Instant::min)
    }

    fn tell(&mut self, news: FabricNews, found: &mut Vec<Found>) {
        // The same trouble is told once.
        if self.news.replace(news) != Some(news) {
            found.push(Found::Fabric(news));
        }
    }

    fn spread(&mut self) -> Duration {
        Duration::from_millis(self.chance.below(SPREAD_MILLISECONDS))
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant, out: &mut Vec<Outgoing>, found: &mut Vec<Found>) {
        if self.phase == Phase::Left {
            return;
        }
        self.age(now, found);
        if let Phase::Attached(attachment) = self.phase {
            return self.maintain(attachment, now, out, found);
        }
        if now < self.deadline {
            return;
        }
        match self.phase {
            Phase::Soliciting(tries) => {
                if let Some(best) = self.best(now) {
                    return self.log_in(best, 1, now, out);
                }
                self.solicit(tries, now, out, found);
            }
            Phase::Selecting => match self.best(now) {
                Some(best) => self.log_in(best, 1, now, out),
                None => self.solicit(0, now, out, found),
            },
            Phase::LoggingIn(mac, tries, _) if tries < TRIES => self.log_in(mac, tries + 1, now, out),
            Phase::LoggingIn(mac, ..) => {
                if let Some(name) = self.refuse(mac, now) {
                    self.tell(FabricNews::Silent(name), found);
                }
                self.begin(now);
            }
            Phase::Attached(_) | Phase::Left => {}
        }
    }

    /// Forgets switches that are silent.
    fn age(&mut self, now: Instant, found: &mut Vec<Found>) {
        let used = self.attachment().map(|attachment| attachment.switch);
        let known = used.and_then(|mac| self.switches.get(&mac));
        let is_lost = known.is_none_or(|switch| switch.end() <= now);
        if used.is_some() && is_lost {
            self.detach(now, found);
        }
        self.switches.retain(|_, switch| switch.end() > now);
    }

    /// Looks for a switch again.
    fn begin(&mut self, now: Instant) {
        self.phase = Phase::Soliciting(0);
        self.deadline = now + self.spread();
    }

    /// The login is void.
    fn detach(&mut self, now: Instant, found: &mut Vec<Found>) {
        let Some(attachment) = self.attachment().copied() else { return };
        let name = self.switches.remove(&attachment.switch).map(|switch| switch.advertised.switch);
        self.begin(now);
        found.push(Found::Down);
        self.tell(FabricNews::Lost(name.unwrap_or(Wwn(0))), found);
    }

    fn maintain(&mut self, mut attachment: Attachment, now: Instant, out: &mut Vec<Outgoing>, found: &mut Vec<Found>) {
        let Some(switch) = self.switches.get(&attachment.switch).copied() else { return };
        let (station, period) = (self.own.station, switch.advertised.period);
        if now >= attachment.station_due {
            attachment.station_due = now + period;
            if switch.advertised.wants_keep_alives {
                let route = Route { to: attachment.switch, from: station };
                out.push(Outgoing::fip(route, fip::keep_alive(station, None)));
            }
        }
        if now >= attachment.port_due {
            attachment.port_due = now + PORT_KEEP_ALIVE;
            if switch.advertised.wants_keep_alives {
                let port = Neighbour { station, node: self.own.node, name: self.own.name, id: attachment.id };
                let body = fip::keep_alive(station, Some((&port, attachment.address)));
                out.push(Outgoing::fip(Route { to: attachment.switch, from: attachment.address }, body));
            }
        }
        self.phase = Phase::Attached(attachment);
        let route = Route { to: attachment.switch, from: attachment.address };
        if !self.registration.tick(now, &self.own, (attachment.id, route), out) {
            // The services do not answer: the login is no use.
            self.refuse(attachment.switch, now);
            self.tell(FabricNews::Silent(switch.advertised.switch), found);
            self.log_out(attachment, out);
            self.begin(now);
            found.push(Found::Down);
        }
    }

    /// Sends solicitations for all switches.
    fn solicit(&mut self, tries: u32, now: Instant, out: &mut Vec<Outgoing>, found: &mut Vec<Found>) {
        let (station, route) = (self.own.station, Route { to: ALL_SWITCHES, from: self.own.station });
        if !self.has_vlan {
            out.push(Outgoing::fip(route, fip::vlan_request(station)));
        }
        out.push(Outgoing::fip(route, self.solicitation()));
        self.phase = Phase::Soliciting(tries + 1);
        self.deadline = now + SOLICITATION_TIME * (1 << tries.min(SOLICITATION_DOUBLINGS)) + self.spread();
        let is_told = matches!(self.news, Some(FabricNews::OtherVlan(_) | FabricNews::Refused(..)));
        if tries == SILENT_TRIES && self.switches.is_empty() && !is_told {
            self.tell(FabricNews::NoSwitch, found);
        }
    }

    fn solicitation(&self) -> Vec<u8> {
        fip::solicitation(self.own.station, self.own.node, fcoe_size_of(self.own.payload))
    }

    /// The switch with the best priority.
    fn best(&self, now: Instant) -> Option<MacAddress> {
        let usable = self.switches.values().filter(|switch| switch.is_usable(now));
        let key = |switch: &&Switch| (switch.advertised.priority, switch.advertised.mac);
        usable.min_by_key(key).map(|switch| switch.advertised.mac)
    }

    /// Does not use a switch for some time; its name.
    fn refuse(&mut self, mac: MacAddress, now: Instant) -> Option<Wwn> {
        let pause = REFUSED_TIME + self.spread();
        let switch = self.switches.get_mut(&mac)?;
        switch.refused = now + pause;
        Some(switch.advertised.switch)
    }

    fn next_ox_id(&mut self) -> u16 {
        self.ox_id = self.ox_id.wrapping_add(1) % UNASSIGNED;
        self.ox_id
    }

    /// Sends a link service in FIP to the fabric port of a switch.
    fn in_fip(&self, (kind, ox_id): (Kind, u16), source: PortId, body: &[u8], route: (Route, MacAddress)) -> Outgoing {
        let address = Address { source, destination: PortId::FABRIC_PORT, ox_id, rx_id: UNASSIGNED };
        let header = Header::new(Routing::ELS_REQUEST, Protocol::ELS, Control::REQUEST, address);
        let frame = [header.as_bytes(), body].concat();
        let (route, mac) = route;
        Outgoing::fip(route, fip::link_service(Operation::LINK_SERVICE_REQUEST, kind, &frame, Some(mac)))
    }

    fn log_in(&mut self, switch: MacAddress, tries: u32, now: Instant, out: &mut Vec<Outgoing>) {
        let ox_id = self.next_ox_id();
        self.phase = Phase::LoggingIn(switch, tries, ox_id);
        self.deadline = now + ANSWER_TIME + self.spread();
        let login = LoginParameters::flogi(Els::FLOGI, (self.own.name, self.own.node), self.own.payload);
        let route = Route { to: switch, from: self.own.station };
        // The switch chooses the MAC address.
        let route = (route, MacAddress([0; 6]));
        out.push(self.in_fip((Kind::FLOGI, ox_id), PortId::NONE, login.as_bytes(), route));
    }

    fn log_out(&mut self, attachment: Attachment, out: &mut Vec<Outgoing>) {
        let (ox_id, own) = (self.next_ox_id(), attachment.id);
        let route = Route { to: attachment.switch, from: self.own.station };
        let body = Logo::new(own, self.own.name);
        out.push(self.in_fip((Kind::LOGO, ox_id), own, body.as_bytes(), (route, attachment.address)));
    }

    /// Logs out at the fabric, and does not return.
    pub fn leave(&mut self, now: Instant, out: &mut Vec<Outgoing>, found: &mut Vec<Found>) {
        if let Phase::Attached(attachment) = self.phase {
            self.log_out(attachment, out);
            found.push(Found::Down);
        }
        self.phase = Phase::Left;
        self.switches.clear();
        self.deadline = now + NEVER;
    }

    /// Takes a message of FIP from a station.
    pub fn receive_fip(
        &mut self,
        (source, message): (MacAddress, &Message<'_>),
        now: Instant,
        out: &mut Vec<Outgoing>,
        found: &mut Vec<Found>,
    ) {
        if self.phase == Phase::Left {
            return;
        }
        match message {
            Message::Advertisement(advertised) => self.advertised(advertised, now, out),
            Message::LinkService(Operation::LINK_SERVICE_REPLY, service) => {
                self.answered(source, service, now, out, found);
            }
            Message::Clear(clear) => self.cleared(source, clear, now, found),
            // The link cannot leave its VLAN: that is a setting.
            Message::Vlan(vlan) if !self.has_vlan && *vlan != 0 && self.switches.is_empty() => {
                self.tell(FabricNews::OtherVlan(*vlan), found);
            }
            _ => {}
        }
    }

    fn advertised(&mut self, advertised: &Advertisement, now: Instant, out: &mut Vec<Outgoing>) {
        let mac = advertised.mac;
        let is_used = self.attachment().is_some_and(|attachment| attachment.switch == mac);
        let is_full = self.switches.len() >= SWITCHES_MAX;
        if !self.switches.contains_key(&mac) && is_full {
            // Advertisements can be forged: that of which nothing was heard for the longest time makes room, first of
            // those that have not answered a solicitation.
            let used = self.attachment().map(|attachment| attachment.switch);
            let others = self.switches.values().filter(|switch| Some(switch.advertised.mac) != used);
            let oldest =
                others.min_by_key(|switch| (switch.is_checked, switch.seen)).map(|switch| switch.advertised.mac);
            oldest.map(|oldest| self.switches.remove(&oldest));
        }
        let new = Switch { advertised: *advertised, seen: now, is_checked: false, refused: Instant::default() };
        let switch = self.switches.entry(mac).or_insert(new);
        let is_checked = switch.is_checked || advertised.is_solicited;
        let is_newly_checked = is_checked && !switch.is_checked;
        // Names and addresses of the switch in use do not change.
        let before = switch.advertised;
        switch.advertised = if is_used {
            let (period, wants_keep_alives) = (advertised.period, advertised.wants_keep_alives);
            Advertisement { period, wants_keep_alives, ..before }
        } else {
            *advertised
        };
        switch.seen = now;
        switch.is_checked = is_checked;
        let is_usable = switch.is_usable(now);
        if is_used && let Phase::Attached(attachment) = &mut self.phase {
            attachment.station_due = attachment.station_due.min(now + advertised.period);
        }
        if !is_checked && !is_used && self.solicitations.admit(mac, now) {
            let route = Route { to: mac, from: self.own.station };
            out.push(Outgoing::fip(route, self.solicitation()));
        }
        if is_newly_checked && is_usable && matches!(self.phase, Phase::Soliciting(_)) {
            self.phase = Phase::Selecting;
            self.deadline = now + SELECTION_TIME + self.spread();
        }
    }

    /// The answer to FLOGI.
    fn answered(
        &mut self,
        source: MacAddress,
        service: &LinkService<'_>,
        now: Instant,
        out: &mut Vec<Outgoing>,
        found: &mut Vec<Found>,
    ) {
        let Phase::LoggingIn(switch, _, ox_id) = self.phase else { return };
        let Ok((header, payload)) = Header::ref_from_prefix(service.frame) else { return };
        let is_ours = source == switch && service.kind == Kind::FLOGI && header.ox_id.get() == ox_id;
        if !is_ours || header.source() != PortId::FABRIC_PORT || header.protocol != Protocol::ELS.0 {
            return;
        }
        let accept = LoginParameters::ref_from_prefix(payload).ok().map(|(login, _)| login);
        let accept = accept.filter(|login| login.command == Els::LS_ACC.0 && login.is_fabric());
        let (id, address) = (header.destination(), service.mac.filter(|mac| !mac.is_group() && mac.0 != [0; 6]));
        let granted = accept.zip(address).filter(|_| id.is_fabric_port());
        let Some((login, address)) = granted else {
            let reject = Reject::ref_from_prefix(payload).ok().map(|(reject, _)| *reject);
            if let Some(name) = self.refuse(switch, now) {
                let (reason, explanation) = reject.map_or((0, 0), |reject| (reject.reason, reject.explanation));
                self.tell(FabricNews::Refused(name, reason, explanation), found);
            }
            return self.begin(now);
        };
        let receives = usize::from(login.receive_size.get()) & !3;
        // Frames to others pass the switch.
        self.own.payload = self.own.payload.min(receives.max(PAYLOAD_MIN));
        let Some(known) = self.switches.get(&switch).copied() else { return self.begin(now) };
        let period = known.advertised.period;
        let attachment = Attachment { switch, id, address, station_due: now + period, port_due: now + PORT_KEEP_ALIVE };
        self.phase = Phase::Attached(attachment);
        self.registration = Registration::new(now);
        found.push(Found::Up(id));
        self.tell(FabricNews::Attached(known.advertised.switch), found);
        self.maintain(attachment, now, out, found);
    }

    /// The switch ends logins.
    fn cleared(&mut self, source: MacAddress, clear: &Clear<'_>, now: Instant, found: &mut Vec<Found>) {
        let Some(attachment) = self.attachment() else { return };
        let switch = self.switches.get(&attachment.switch).map(|switch| switch.advertised);
        let is_theirs = switch.is_some_and(|switch| switch.mac == clear.mac && switch.switch == clear.switch);
        if source == attachment.switch && is_theirs && clear.is_for(attachment.id, self.own.name, attachment.address) {
            self.detach(now, found);
        }
    }

    /// The fabric has logged the port out.
    pub fn logged_out(&mut self, now: Instant, found: &mut Vec<Found>) {
        self.detach(now, found);
    }

    /// Takes the answer of a service to a request of the registration.
    pub fn service_answered(
        &mut self,
        (header, payload): (&Header, &[u8]),
        now: Instant,
        out: &mut Vec<Outgoing>,
        found: &mut Vec<Found>,
    ) {
        let Some(attachment) = self.attachment().copied() else { return };
        self.registration.answered(header, payload, (&self.own, attachment.id), now, found);
        self.maintain(attachment, now, out, found);
    }

    /// The name server has logged the port out, or the fabric has changed.
    pub fn register_again(&mut self, is_logged_out: bool, now: Instant) {
        if is_logged_out {
            self.registration = Registration::new(now);
        } else {
            self.registration.ask_again(now);
        }
    }
}

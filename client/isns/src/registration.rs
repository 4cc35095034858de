//! A registration, and the requests that change one registration into another. Only differences are sent, so that the
//! server sends no needless state change notifications to initiators.

use crate::wire::{ALIAS_MAX, ENTITY_MAX, Function, ISCSI, NAME_MAX, Payload, REPLACE, TARGET, Tag};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The payload size at which a request is split, in bytes: half of the longest PDU, because a response repeats the
/// registered attributes and adds others, and not every server splits its responses.
const REQUEST_BYTES: usize = 32 << 10;

/// A target (an iSCSI Storage Node).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// The alias; not empty.
    pub alias: Arc<str>,
    /// The portals of the target, each with its portal group tag.
    pub portals: BTreeMap<SocketAddr, u16>,
}

/// The registration of a Network Entity (RFC 4171 3.1) with its portals and targets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registration {
    /// The Entity Identifier.
    pub entity: Arc<str>,
    /// The registration period, in seconds: the server removes the registration when it receives no message for so
    /// long.
    pub period: u32,
    /// Targets by iSCSI name. A portal with the unspecified address stands for the local address of the connection to
    /// the server.
    pub nodes: BTreeMap<Arc<str>, Node>,
}

/// A request to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The function.
    pub function: Function,
    /// The flags.
    pub flags: u16,
    /// The attributes.
    pub payload: Payload,
}

impl Registration {
    /// The registration to send over a connection with the local address `local`: unspecified addresses are replaced by
    /// `local`, and targets without a portal are left out. `None` if no target remains.
    #[must_use]
    pub fn resolved_for(&self, local: IpAddr) -> Option<Self> {
        let local = local.to_canonical();
        let real = |(portal, tag): (&SocketAddr, &u16)| {
            let ip = match portal.ip() {
                // The unspecified address of one family does not include addresses of the other.
                any if any.is_unspecified() => Some(local).filter(|local| local.is_ipv4() == any.is_ipv4())?,
                ip => ip.to_canonical(),
            };
            Some((SocketAddr::new(ip, portal.port()), *tag))
        };
        let node = |(name, node): (&Arc<str>, &Node)| {
            let portals: BTreeMap<_, _> = node.portals.iter().filter_map(real).collect();
            (!portals.is_empty()).then(|| (name.clone(), Node { alias: node.alias.clone(), portals }))
        };
        let nodes: BTreeMap<_, _> = self.nodes.iter().filter_map(node).collect();
        (!nodes.is_empty()).then(|| Self { entity: self.entity.clone(), period: self.period, nodes })
    }

    /// The portals of all targets.
    #[must_use]
    pub fn portals(&self) -> BTreeSet<SocketAddr> {
        self.nodes.values().flat_map(|node| node.portals.keys().copied()).collect()
    }

    /// The Source Attribute of requests (5.6.1): a registered target.
    fn source(&self) -> Payload {
        self.name(0)
    }

    /// The name of target number `at`, modulo the number of targets.
    fn name(&self, at: usize) -> Payload {
        let mut payload = Payload::default();
        if let Some(name) = self.nodes.keys().nth(at % self.nodes.len().max(1)) {
            payload.text(Tag::ISCSI_NAME, name, NAME_MAX);
        }
        payload
    }

    /// The portal group tag of each target at each portal; `None` where the target has no such portal (6.5.4).
    fn groups(&self) -> BTreeMap<(&Arc<str>, SocketAddr), Option<u16>> {
        let portals = self.portals();
        let tag = |name, node: &Node, portal: &SocketAddr| ((name, *portal), node.portals.get(portal).copied());
        self.nodes.iter().flat_map(|(name, node)| portals.iter().map(move |portal| tag(name, node, portal))).collect()
    }

    /// The requests that register everything (5.6.5.1). If it `replaces`, the server removes an existing registration.
    #[must_use]
    pub fn all(&self, replaces: bool) -> Vec<Request> {
        let nothing = Self { nodes: BTreeMap::new(), ..self.clone() };
        let mut requests = self.added(&nothing);
        if replaces {
            // The first request replaces the registration; the others add to it.
            requests.iter_mut().take(1).for_each(|request| request.flags = REPLACE);
        }
        requests
    }

    /// The requests that change the registration `before` of the same entity into this one. Additions come before
    /// removals, so that there is always a registered target for the Source Attribute.
    #[must_use]
    pub fn changes(&self, before: &Self) -> Vec<Request> {
        let mut requests = self.added(before);
        requests.extend(self.removed(before));
        requests
    }

    fn added(&self, before: &Self) -> Vec<Request> {
        let (known, known_groups) = (before.portals(), before.groups());
        let mut objects = Vec::new();
        for portal in self.portals().difference(&known) {
            objects.push(portal_keys(*portal));
        }
        for (name, node) in &self.nodes {
            if before.nodes.get(name).is_none_or(|other| other.alias != node.alias) {
                let mut object = Payload::default();
                object.text(Tag::ISCSI_NAME, name, NAME_MAX).number(Tag::ISCSI_NODE_TYPE, TARGET);
                object.text(Tag::ISCSI_ALIAS, &node.alias, ALIAS_MAX);
                objects.push(object);
            }
        }
        for (key, tag) in self.groups() {
            if known_groups.get(&key) != Some(&tag) {
                let (name, portal) = key;
                let mut object = Payload::default();
                object.text(Tag::PG_ISCSI_NAME, name, NAME_MAX).address(Tag::PG_PORTAL_ADDRESS, portal.ip());
                object.number(Tag::PG_PORTAL_PORT, portal.port().into());
                match tag {
                    Some(tag) => object.number(Tag::PG_TAG, tag.into()),
                    None => object.empty(Tag::PG_TAG),
                };
                objects.push(object);
            }
        }
        if objects.is_empty() && before.period == self.period {
            return Vec::new();
        }
        let mut start = self.source();
        start.text(Tag::ENTITY_IDENTIFIER, &self.entity, ENTITY_MAX).empty(Tag::DELIMITER);
        start.text(Tag::ENTITY_IDENTIFIER, &self.entity, ENTITY_MAX).number(Tag::ENTITY_PROTOCOL, ISCSI);
        start.number(Tag::REGISTRATION_PERIOD, self.period);
        split(Function::DEV_ATTR_REG, &start, &objects)
    }

    fn removed(&self, before: &Self) -> Vec<Request> {
        let portals = self.portals();
        let mut objects: Vec<Payload> = before.portals().difference(&portals).map(|gone| portal_keys(*gone)).collect();
        for name in before.nodes.keys().filter(|name| !self.nodes.contains_key(*name)) {
            let mut object = Payload::default();
            object.text(Tag::ISCSI_NAME, name, NAME_MAX);
            objects.push(object);
        }
        if objects.is_empty() {
            return Vec::new();
        }
        let mut start = self.source();
        start.empty(Tag::DELIMITER);
        split(Function::DEV_DEREG, &start, &objects)
    }

    /// The request that removes the registration (5.6.5.4).
    #[must_use]
    pub fn deregistration(&self) -> Request {
        let mut payload = self.source();
        payload.empty(Tag::DELIMITER).text(Tag::ENTITY_IDENTIFIER, &self.entity, ENTITY_MAX);
        Request { function: Function::DEV_DEREG, flags: 0, payload }
    }

    /// The query for the entity of a target (5.6.5.2); `turn` selects the target. It renews the registration, and shows
    /// whether the server has it.
    #[must_use]
    pub fn query(&self, turn: usize) -> Request {
        let name = self.name(turn);
        let mut payload = name.clone();
        payload.append(&name).empty(Tag::DELIMITER).empty(Tag::ENTITY_IDENTIFIER);
        Request { function: Function::DEV_ATTR_QRY, flags: 0, payload }
    }
}

fn portal_keys(portal: SocketAddr) -> Payload {
    let mut object = Payload::default();
    object.address(Tag::PORTAL_ADDRESS, portal.ip()).number(Tag::PORTAL_PORT, portal.port().into());
    object
}

/// Splits `objects` into requests that all begin with `start`.
fn split(function: Function, start: &Payload, objects: &[Payload]) -> Vec<Request> {
    let mut requests = Vec::new();
    let mut payload = start.clone();
    for object in objects {
        if payload.bytes().len() + object.bytes().len() > REQUEST_BYTES {
            let full = std::mem::replace(&mut payload, start.clone());
            requests.push(Request { function, flags: 0, payload: full });
        }
        payload.append(object);
    }
    requests.push(Request { function, flags: 0, payload });
    requests
}

#[cfg(test)]
#[path = "registration_tests.rs"]
mod tests;

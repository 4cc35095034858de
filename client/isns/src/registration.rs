//! What is registered, and the requests that bring a server from one registration to another: only what differs, so
//! that nobody is told of a change where there is none.

use crate::wire::{ALIAS_MAX, ENTITY_MAX, Function, ISCSI, NAME_MAX, Payload, REPLACE, TARGET, Tag};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Bytes of a request's payload at which another one begins: half of what a PDU can have, for a server answers with all
/// that it was told, and more, and not every server divides its answers.
const REQUEST_BYTES: usize = 32 << 10;

/// A target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// What it is called for people; not empty.
    pub alias: Arc<str>,
    /// The portals at which it is reached, each with the tag of its portal group.
    pub portals: BTreeMap<SocketAddr, u16>,
}

/// Everything that is registered of a machine: a Network Entity (RFC 4171 3.1) with its portals and targets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registration {
    /// What the machine is called.
    pub entity: Arc<str>,
    /// Seconds for which the server shall remember it if it hears nothing.
    pub period: u32,
    /// Targets by their iSCSI names. A portal whose address is that of all addresses stands for the one that the server
    /// is reached from.
    pub nodes: BTreeMap<Arc<str>, Node>,
}

/// A request to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// What it is.
    pub function: Function,
    /// Its flags.
    pub flags: u16,
    /// Its attributes.
    pub payload: Payload,
}

impl Registration {
    /// The same as it is for a server that is reached from this address of ours: portals have addresses, and targets
    /// that are not reached by any are not in it. `None` if nothing is left.
    #[must_use]
    pub fn seen_from(&self, local: IpAddr) -> Option<Self> {
        let local = local.to_canonical();
        let real = |(portal, tag): (&SocketAddr, &u16)| {
            let ip = match portal.ip() {
                // All addresses of one family are none of the other.
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

    /// All portals.
    #[must_use]
    pub fn portals(&self) -> BTreeSet<SocketAddr> {
        self.nodes.values().flat_map(|node| node.portals.keys().copied()).collect()
    }

    /// As whom requests come (5.6.1): a target that is registered.
    fn source(&self) -> Payload {
        self.name(0)
    }

    /// The name of one of the targets, counted around.
    fn name(&self, at: usize) -> Payload {
        let mut payload = Payload::default();
        if let Some(name) = self.nodes.keys().nth(at % self.nodes.len().max(1)) {
            payload.text(Tag::ISCSI_NAME, name, NAME_MAX);
        }
        payload
    }

    /// Each target at each portal: the tag of the portal group, or nothing where it is not reached (6.5.4).
    fn groups(&self) -> BTreeMap<(&Arc<str>, SocketAddr), Option<u16>> {
        let portals = self.portals();
        let tag = |name, node: &Node, portal: &SocketAddr| ((name, *portal), node.portals.get(portal).copied());
        self.nodes.iter().flat_map(|(name, node)| portals.iter().map(move |portal| tag(name, node, portal))).collect()
    }

    /// Registers all of it (5.6.5.1). It takes the place of all that the server knew of the machine if it `replaces`.
    #[must_use]
    pub fn all(&self, replaces: bool) -> Vec<Request> {
        let nothing = Self { nodes: BTreeMap::new(), ..self.clone() };
        let mut requests = self.added(&nothing);
        if replaces {
            // The first makes it anew, the others add to that.
            requests.iter_mut().take(1).for_each(|request| request.flags = REPLACE);
        }
        requests
    }

    /// What makes this of `before`, which is the same machine's: what is new or another first, then what goes, so that
    /// there is always a target as whom requests can come.
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
        divided(Function::DEV_ATTR_REG, &start, &objects)
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
        divided(Function::DEV_DEREG, &start, &objects)
    }

    /// Takes all of it back (5.6.5.4).
    #[must_use]
    pub fn nothing(&self) -> Request {
        let mut payload = self.source();
        payload.empty(Tag::DELIMITER).text(Tag::ENTITY_IDENTIFIER, &self.entity, ENTITY_MAX);
        Request { function: Function::DEV_DEREG, flags: 0, payload }
    }

    /// Asks to which machine a target belongs (5.6.5.2), each in its turn: the server hears that we live, and tells
    /// what it knows.
    #[must_use]
    pub fn question(&self, turn: usize) -> Request {
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

/// Requests with all of these objects, each request beginning with the same.
fn divided(function: Function, start: &Payload, objects: &[Payload]) -> Vec<Request> {
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

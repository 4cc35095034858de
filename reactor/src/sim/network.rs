//! Networks of datagrams and of frames, with loss, duplication, delay and reordering.

use super::World;
use super::carrier::{Carrier, Flight, Place, Receive, Station};
use super::core_state::Kind;
use super::state::{Event, State};
use super::trace::Sum;
use crate::endpoint::packet::{Filter, HEADER};
use crate::endpoint::{Address, Datagram, Endpoint, MacAddress, ReceiveBatch, SendBatch, Status};
use crate::op::{Handle, Op};
use lunar_core::io::{Data, Done, Fault, Outcome};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// Datagrams that wait at an endpoint for its core: those beyond are dropped and counted.
const QUEUE_MAX: usize = 256;
/// Ports of sockets that did not ask for one.
const FIRST_PORT: u16 = 50_000;
/// The largest payload of the simulated network of datagrams: that of UDP over IPv4 on an Ethernet of 1,500 bytes.
const DATAGRAM_MAX: usize = 1472;
/// The largest datagram between Unix sockets.
const UNIX_MAX: usize = 65_536;

/// An Ethernet segment: a frame of one station reaches all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment(u32);

impl World {
    /// A UDP socket, to be attached to a core; port 0: any that is free. With an unspecified address it receives
    /// datagrams to any address at its port.
    ///
    /// # Errors
    /// `AddrInUse`.
    pub fn udp(&self, address: SocketAddr) -> io::Result<Endpoint> {
        self.enter(|state| {
            let address = SocketAddr::new(address.ip(), state.free_port(address.port())?);
            state.place(Place::Network(Address::Ip(address)))
        })
    }

    /// A Unix datagram socket, to be attached to a core. Its datagrams are neither lost nor reordered.
    ///
    /// # Errors
    /// `AddrInUse`.
    pub fn unix_datagram(&self, path: impl AsRef<Path>) -> io::Result<Endpoint> {
        self.enter(|state| state.place(Place::Network(Address::Path(path.as_ref().into()))))
    }

    /// An Ethernet segment whose frames carry up to `mtu` bytes behind their header.
    #[must_use]
    pub fn segment(&self, mtu: usize) -> Segment {
        self.enter(|state| {
            state.segments.push(mtu);
            Segment((state.segments.len() - 1) as u32)
        })
    }

    /// A link to a segment, to be attached to a core. It receives frames of these EtherTypes, of all if there are none.
    ///
    /// # Errors
    /// `AddrInUse` when the segment has a station of this address.
    pub fn link(&self, segment: Segment, mac: MacAddress, types: &[u16]) -> io::Result<Endpoint> {
        let station = Station { segment: segment.0, mac, types: types.to_vec(), filters: Vec::new() };
        self.enter(|state| state.place(Place::Segment(station)))
    }
}

impl State {
    /// The port itself, or one that no socket has if it is 0.
    fn free_port(&self, port: u16) -> io::Result<u16> {
        let is_free = |port: &u16| {
            self.carriers.values().all(|carrier| match carrier.place {
                Place::Network(Address::Ip(address)) => address.port() != *port,
                _ => true,
            })
        };
        let free = if port > 0 { Some(port) } else { (FIRST_PORT..u16::MAX).find(is_free) };
        free.ok_or_else(|| io::ErrorKind::AddrInUse.into())
    }

    /// Makes an endpoint.
    fn place(&mut self, place: Place) -> io::Result<Endpoint> {
        let is_taken = self.carriers.values().any(|known| match (&known.place, &place) {
            (Place::Network(known), Place::Network(new)) => known == new,
            (Place::Segment(known), Place::Segment(new)) => (known.segment, known.mac) == (new.segment, new.mac),
            _ => false,
        });
        if is_taken {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let id = u32::try_from(self.serial()).unwrap_or(u32::MAX);
        self.carriers.insert(id, Carrier::new(place));
        Ok(Endpoint::Simulated(id))
    }

    pub(super) fn start_batch(&mut self, core: usize, op: Op, done: Done) {
        match op {
            Op::ReceiveBatch { endpoint, into } => {
                match self.carrier_of(core, &endpoint).and_then(|id| self.carriers.get_mut(&id).zip(Some(id))) {
                    Some((_, _)) if into.free() == 0 => {
                        self.answer(core, done, Outcome::with(Ok(0), Data::Carried(into)), Some(endpoint));
                    }
                    Some((carrier, id)) => {
                        carrier.receives.push_back(Receive { into, done, handle: endpoint });
                        self.deliver(id);
                    }
                    None => self.refuse(core, done, Fault::Os(22), Data::Carried(into), Some(endpoint)),
                }
            }
            Op::SendBatch { endpoint, batch } => match self.carrier_of(core, &endpoint) {
                Some(id) => self.send_batch(core, id, batch, done, endpoint),
                None => self.refuse(core, done, Fault::Os(22), Data::Carried(batch), Some(endpoint)),
            },
            _ => unreachable!("only operations that move batches come here"),
        }
    }

    fn carrier_of(&self, core: usize, handle: &Handle) -> Option<u32> {
        match self.cores[core].handles.get(&handle.id()) {
            Some(Kind::Carrier(id)) => Some(*id),
            _ => None,
        }
    }

    fn send_batch(&mut self, core: usize, id: u32, mut batch: Box<SendBatch>, done: Done, handle: Handle) {
        while let Some(datagram) = batch.left().first().cloned() {
            let is_sent = self.send_datagram(id, &datagram);
            let Some(carrier) = self.carriers.get_mut(&id) else { break };
            if is_sent {
                carrier.counters.sent += 1;
                batch.advance(1);
            } else {
                carrier.counters.send_drops += 1;
                batch.drop_first(1);
            }
        }
        let sent = batch.finish();
        let wait = self.chance.time(&self.faults.latency.clone());
        self.answer_later(core, done, Outcome::with(Ok(sent), Data::Carried(batch)), Some(handle), wait);
    }

    /// Puts a datagram or frame onto its network; false if it is too long or has no possible receiver.
    fn send_datagram(&mut self, id: u32, datagram: &Datagram) -> bool {
        let Some(place) = self.carriers.get(&id).map(|carrier| carrier.place.clone()) else { return false };
        let bytes = [datagram.edges.head(), &datagram.data.to_vec(), datagram.edges.tail()].concat();
        match place {
            Place::Segment(station) => {
                let mtu = self.segments[station.segment as usize];
                if bytes.len() < HEADER || bytes.len() > HEADER + mtu {
                    return false;
                }
                self.send_frame(id, &station, bytes, datagram);
                true
            }
            Place::Network(own) => {
                let most = if matches!(own, Address::Path(_)) { UNIX_MAX } else { DATAGRAM_MAX };
                let part = match datagram.segment {
                    0 => bytes.len().max(1),
                    segment => usize::from(segment),
                };
                let can_reach = match (&own, &datagram.peer) {
                    (Address::Ip(own), Address::Ip(peer)) => own.is_ipv4() == peer.is_ipv4(),
                    (Address::Path(_), Address::Path(_)) => true,
                    _ => false,
                };
                if !can_reach || part.min(bytes.len()) > most {
                    return false;
                }
                let from = source(&own, datagram.local);
                let parts: Vec<&[u8]> = if bytes.is_empty() { vec![&[]] } else { bytes.chunks(part).collect() };
                parts.into_iter().for_each(|part| self.send_to(id, from.clone(), &datagram.peer, part));
                true
            }
        }
    }

    fn send_frame(&mut self, id: u32, station: &Station, bytes: Vec<u8>, datagram: &Datagram) {
        let others: Vec<u32> = self.carriers.keys().copied().filter(|other| *other != id).collect();
        for other in others {
            let Some(Place::Segment(to)) = self.carriers.get(&other).map(|carrier| carrier.place.clone()) else {
                continue;
            };
            if to.segment != station.segment {
                continue;
            }
            let strays = !to.takes(&bytes) && to.may_stray(&bytes) && self.chance.odds(self.faults.stray_frame);
            if to.takes(&bytes) || strays {
                let flight = Flight { bytes: bytes.clone(), from: Address::None, local: None, vlan: datagram.vlan };
                self.fly(id, other, flight, true);
            }
        }
    }

    fn send_to(&mut self, id: u32, from: Address, to: &Address, bytes: &[u8]) {
        let Some((other, local)) = self.receiver(to) else {
            return self.note(format_args!("endpoint {id}: nothing receives at {to}"));
        };
        let is_lossy = matches!(to, Address::Ip(_));
        self.fly(id, other, Flight { bytes: bytes.to_vec(), from, local, vlan: None }, is_lossy);
    }

    /// The endpoint that receives at an address, and the address if the endpoint has several.
    fn receiver(&self, to: &Address) -> Option<(u32, Option<IpAddr>)> {
        self.carriers.iter().find_map(|(id, carrier)| match (&carrier.place, to) {
            (Place::Network(own), to) if own == to => Some((*id, None)),
            (Place::Network(Address::Ip(own)), Address::Ip(to))
                if own.ip().is_unspecified() && own.port() == to.port() && own.is_ipv4() == to.is_ipv4() =>
            {
                Some((*id, Some(to.ip())))
            }
            _ => None,
        })
    }

    /// Puts a packet in flight, unless it is lost; perhaps twice.
    fn fly(&mut self, from: u32, to: u32, flight: Flight, is_lossy: bool) {
        let sum = Sum::of(&flight.bytes);
        if is_lossy && self.chance.odds(self.faults.datagram_loss) {
            return self.note(format_args!("endpoint {from}: {} {sum} to {to} is lost", flight.bytes.len()));
        }
        let copies = 1 + u32::from(is_lossy && self.chance.odds(self.faults.datagram_duplicate));
        for _ in 0..copies {
            let at = self.now + self.chance.time(&self.faults.latency.clone());
            let reordered = is_lossy && self.chance.odds(self.faults.datagram_reorder);
            let Some(carrier) = self.carriers.get_mut(&from) else { return };
            let at = if reordered {
                at + self.chance.time(&self.faults.stall_time.clone())
            } else {
                carrier.newest = carrier.newest.max(at);
                carrier.newest
            };
            let key = self.serial();
            self.note(format_args!("endpoint {from}: {} {sum} to {to}", flight.bytes.len()));
            self.flights.insert(key, (to, flight.clone()));
            self.schedule(at, Event::Arrive(key));
        }
    }

    /// A packet arrives at its receiver.
    pub(super) fn arrive(&mut self, key: u64) {
        let Some((to, flight)) = self.flights.remove(&key) else { return };
        let Some(carrier) = self.carriers.get_mut(&to) else { return };
        if carrier.arrived.len() >= QUEUE_MAX {
            carrier.counters.receive_drops += 1;
            return self.note(format_args!("endpoint {to}: its queue is full"));
        }
        carrier.arrived.push_back(flight);
        self.deliver(to);
    }

    /// Answers the receives of an endpoint as long as there is something for them.
    fn deliver(&mut self, id: u32) {
        loop {
            let Some(carrier) = self.carriers.get_mut(&id) else { return };
            if carrier.arrived.is_empty() {
                return;
            }
            let (Some(core), Some(receive)) = (carrier.core, carrier.receives.pop_front()) else { return };
            let Receive { mut into, done, handle } = receive;
            let most = carrier.arrived.len().min(into.free());
            let partial = most > 1 && self.chance.odds(self.faults.partial_receive);
            let count = if partial { 1 + self.chance.index(most) } else { most };
            let Some(carrier) = self.carriers.get_mut(&id) else { return };
            let mut taken = 0;
            for flight in carrier.arrived.drain(..count) {
                match fill(&mut into, flight) {
                    true => taken += 1,
                    false => carrier.counters.receive_drops += 1,
                }
            }
            carrier.counters.received += u64::from(taken);
            if taken == 0 {
                carrier.receives.push_front(Receive { into, done, handle });
                continue;
            }
            self.note(format_args!("core {core} endpoint {id}: receives {taken}"));
            self.answer(core, done, Outcome::with(Ok(taken), Data::Carried(into)), Some(handle));
        }
    }

    pub(super) fn attach_carrier(&mut self, core: usize, id: u32) -> Option<Kind> {
        let carrier = self.carriers.get_mut(&id).filter(|carrier| carrier.core.is_none())?;
        carrier.core = Some(core);
        Some(Kind::Carrier(id))
    }

    pub(super) fn status_of(&self, id: u32) -> Option<Status> {
        let carrier = self.carriers.get(&id)?;
        let counters = carrier.counters;
        Some(match &carrier.place {
            Place::Network(local) => {
                let mtu = if matches!(local, Address::Path(_)) { UNIX_MAX } else { DATAGRAM_MAX };
                Status { local: local.clone(), mac: None, mtu, counters }
            }
            Place::Segment(station) => {
                let mtu = self.segments[station.segment as usize];
                Status { local: Address::None, mac: Some(station.mac), mtu, counters }
            }
        })
    }

    pub(super) fn set_filter(&mut self, id: u32, filter: Filter, is_wanted: bool) -> bool {
        let Some(Place::Segment(station)) = self.carriers.get_mut(&id).map(|carrier| &mut carrier.place) else {
            return false;
        };
        station.filters.retain(|known| *known != filter);
        station.filters.extend(is_wanted.then_some(filter));
        true
    }

    /// Ends the waiting operations of an endpoint.
    pub(super) fn cancel_carrier(&mut self, core: usize, id: u32) {
        let Some(carrier) = self.carriers.get_mut(&id) else { return };
        for Receive { into, done, handle } in std::mem::take(&mut carrier.receives) {
            self.refuse(core, done, Fault::Aborted, Data::Carried(into), Some(handle));
        }
    }

    /// The last handle of an endpoint is gone.
    pub(super) fn close_carrier(&mut self, id: u32) {
        self.left.carriers.extend(self.carriers.remove(&id));
    }

    /// The endpoints of a core that has ended are gone as well.
    pub(super) fn drop_carriers(&mut self, core: usize) {
        let gone: Vec<u32> =
            self.carriers.iter().filter(|(_, carrier)| carrier.core == Some(core)).map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| self.close_carrier(id));
    }
}

/// The address that a datagram comes from.
fn source(own: &Address, local: Option<IpAddr>) -> Address {
    match (own, local) {
        (Address::Ip(own), Some(local)) if own.ip().is_unspecified() => Address::Ip(SocketAddr::new(local, own.port())),
        (own, _) => own.clone(),
    }
}

/// Copies a received packet into a batch; false if it is too long.
fn fill(into: &mut ReceiveBatch, flight: Flight) -> bool {
    let Flight { bytes, from, local, vlan } = flight;
    if bytes.len() > into.room() {
        return false;
    }
    let Some(mut memory) = into.take_free() else { return false };
    memory.write(0, &bytes);
    memory.truncate(bytes.len());
    into.push(Datagram { data: memory.share().into(), peer: from, local, vlan, ..Datagram::default() });
    true
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {}", self.0)
    }
}

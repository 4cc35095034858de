//! A target port: logins and exchanges together.

use super::exchange::{Abort, Again, Arrival, ExchangeKey, Exchanges, Report, Requested};
use super::login::{Admits, LoginEvent, Logins, Output, Step};
use super::{Outgoing, Route};
use crate::limits::EXCHANGES_MAX;
use crate::wire::els::{Bare, BasicAccept, Els, ExchangeQuery, Explanation, Reason, RecAccept, Reject, Srr};
use crate::wire::fcp::{ResponseBytes, TransferReady};
use crate::wire::frame::{Address, Control, Header, Protocol, Received, Routing, digest_of};
use crate::wire::names::PortId;
use lunar_core::mem::SgMut;
use lunar_core::time::Instant;
use lunar_link::MacAddress;
use std::collections::BTreeMap;
use zerocopy::{FromBytes, IntoBytes};

/// A command that has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandIn<'a> {
    /// Its exchange; `None`: too many are in progress, and the answer is [`VnPort::refuse`].
    pub key: Option<ExchangeKey>,
    /// The initiator.
    pub peer: PortId,
    /// OX_ID.
    pub ox_id: u16,
    /// FCP_CMND.
    pub bytes: &'a [u8],
}

/// Something has happened that is not a login.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortEvent<'a> {
    /// A command.
    Command(CommandIn<'a>),
    /// The data that was requested for an exchange has arrived.
    Data(ExchangeKey),
    /// The initiator aborts the command of an exchange. When it has ended, the answer is [`VnPort::aborted`].
    Abort(ExchangeKey),
    /// The initiator has given the exchange up, and uses its identifier for another command.
    Replaced(ExchangeKey),
}

/// A target port.
#[derive(Debug)]
pub struct VnPort {
    logins: Logins,
    exchanges: BTreeMap<PortId, Exchanges>,
    last: u64,
}

/// F_CTL of a request for data.
const READY: Control = Control::RESPONDER.and(Control::END).and(Control::INITIATIVE);
/// F_CTL of data.
const DATA: Control = Control::RESPONDER.and(Control::OFFSET);
/// F_CTL of a response.
const RESPONSE: Control = Control::RESPONDER.and(Control::LAST).and(Control::END);

impl VnPort {
    /// A port with these logins.
    #[must_use]
    pub fn new(logins: Logins) -> Self {
        Self { logins, exchanges: BTreeMap::new(), last: 0 }
    }

    /// Its logins.
    #[must_use]
    pub fn logins(&self) -> &Logins {
        &self.logins
    }

    /// Changes logins, and follows their events: exchanges of a login that has ended are gone.
    fn change<T>(&mut self, out: &mut Output, change: impl FnOnce(&mut Logins, &mut Output) -> T) -> T {
        let before = out.events.len();
        let result = change(&mut self.logins, out);
        for event in &out.events[before..] {
            match event {
                LoginEvent::Ended(id) => drop(self.exchanges.remove(id)),
                LoginEvent::Ready(id) => drop(self.exchanges.insert(*id, Exchanges::default())),
                LoginEvent::Up(_) | LoginEvent::Refused(_) | LoginEvent::Fabric(_) => {}
            }
        }
        result
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant, admits: Admits<'_>, out: &mut Output) {
        self.change(out, |logins, out| logins.tick(now, admits, out));
    }

    /// Takes a message of FIP from a station.
    pub fn receive_fip(&mut self, message: (MacAddress, &[u8]), now: Instant, admits: Admits<'_>, out: &mut Output) {
        self.change(out, |logins, out| logins.receive_fip(message, now, admits, out));
    }

    /// Logs a port out.
    pub fn log_out(&mut self, id: PortId, now: Instant, out: &mut Output) {
        self.change(out, |logins, out| logins.log_out(id, now, out));
    }

    /// Ends the logins of ports that may not log in any more.
    pub fn review(&mut self, now: Instant, admits: Admits<'_>, out: &mut Output) {
        self.change(out, |logins, out| logins.review(now, admits, out));
    }

    /// Leaves the fabric.
    pub fn leave(&mut self, now: Instant, admits: Admits<'_>, out: &mut Output) {
        self.change(out, |logins, out| logins.leave(now, admits, out));
    }

    /// The way of frames to another port.
    fn route(&self, to: PortId) -> Option<Route> {
        self.logins.network().route(to)
    }

    /// Commands in progress.
    #[must_use]
    pub fn running(&self) -> usize {
        self.exchanges.values().map(Exchanges::running).sum()
    }

    /// Takes a frame of the Fibre Channel from a station. Logins that change are in `out`.
    pub fn receive<'a>(
        &mut self,
        (source, bytes): (MacAddress, &'a [u8]),
        now: Instant,
        admits: Admits<'_>,
        out: &mut Output,
    ) -> Option<PortEvent<'a>> {
        let own = self.logins.id()?;
        let frame = Received::parse(bytes).ok()?;
        let header = frame.header;
        let peer = header.source();
        if header.destination() != own || !self.logins.network().is_from(source, peer) {
            return None;
        }
        if header.protocol == Protocol::ELS.0 {
            if !self.change(out, |logins, out| logins.receive_els(&frame, now, admits, out)) {
                self.query(&frame, out);
            }
            return None;
        }
        if header.protocol == Protocol::CT.0 {
            self.change(out, |logins, out| logins.receive_of_fabric(&frame, now, admits, out));
            return None;
        }
        if self.logins.remote(peer).is_none_or(|remote| remote.step != Step::Ready) {
            // An initiator that only aborts has to learn it, too.
            if matches!(header.routing(), Routing::COMMAND | Routing::ABTS) {
                self.logins.ask_to_log_out(peer, now, out);
            }
            return None;
        }
        match (header.routing(), Protocol(header.protocol)) {
            (Routing::COMMAND, Protocol::FCP) if frame.is_first && frame.is_last => self.command(frame),
            (Routing::DATA, Protocol::FCP) if !header.control().has(Control::RESPONDER) => {
                let offset = header.parameter.get();
                let exchange = (peer, header.ox_id.get(), header.rx_id.get());
                let key = self.exchanges.get_mut(&peer)?.data(exchange, offset, frame.payload)?;
                Some(PortEvent::Data(key))
            }
            (Routing::ABTS, Protocol::BASIC) => {
                let ox_id = header.ox_id.get();
                match self.exchanges.get_mut(&peer)?.abort(peer, ox_id) {
                    Abort::Running(key) => Some(PortEvent::Abort(key)),
                    // The answer is sent when the command has ended.
                    Abort::Again => None,
                    Abort::Nothing => {
                        out.frames.push(self.abort_accept(peer, ox_id, header.rx_id.get())?);
                        None
                    }
                }
            }
            (Routing::FC4_ELS_REQUEST, Protocol::FCP) => {
                self.send_again(&frame, out);
                None
            }
            _ => None,
        }
    }

    fn command<'a>(&mut self, frame: Received<'a>) -> Option<PortEvent<'a>> {
        let (peer, ox_id) = (frame.header.source(), frame.header.ox_id.get());
        let is_full = self.running() >= EXCHANGES_MAX;
        let exchanges = self.exchanges.get_mut(&peer)?;
        let mut command = CommandIn { key: None, peer, ox_id, bytes: frame.payload };
        if is_full {
            return Some(PortEvent::Command(command));
        }
        self.last += 1;
        match exchanges.arrive((peer, ox_id), digest_of(frame.payload), self.last) {
            Arrival::New(key) => {
                command.key = Some(key);
                Some(PortEvent::Command(command))
            }
            Arrival::Copy => None,
            Arrival::Replaces(key) => Some(PortEvent::Replaced(key)),
            Arrival::Full => Some(PortEvent::Command(command)),
        }
    }

    /// REC and RRQ of a port that is logged in.
    fn query(&mut self, frame: &Received<'_>, out: &mut Output) {
        let (Some(own), peer) = (self.logins.id(), frame.header.source()) else { return };
        let Ok((query, _)) = ExchangeQuery::ref_from_prefix(frame.payload) else { return };
        let is_rrq = frame.payload.first() == Some(&Els::RRQ.0);
        let report = || -> Option<Report> {
            let is_theirs = PortId::from_bytes(query.originator) == peer;
            let exchanges = self.exchanges.get(&peer).filter(|_| is_theirs)?;
            exchanges.report(peer, query.ox_id.get(), query.rx_id.get())
        };
        let body = match report() {
            // The identifier may be used again.
            _ if is_rrq => Bare::new(Els::LS_ACC).as_bytes().to_vec(),
            Some(Report { rx_id, transferred, status }) => {
                RecAccept::new(query, rx_id, own, (transferred, status)).as_bytes().to_vec()
            }
            None => Reject::new(Reason::LOGICAL_ERROR, Explanation::INVALID_EXCHANGE).as_bytes().to_vec(),
        };
        out.frames.extend(self.reply(frame.header, (Routing::ELS_REPLY, Protocol::ELS), own, &body));
    }

    fn reply(
        &self,
        request: &Header,
        (routing, protocol): (Routing, Protocol),
        own: PortId,
        body: &[u8],
    ) -> Option<Outgoing> {
        let (destination, ox_id, rx_id) = (request.source(), request.ox_id.get(), request.rx_id.get());
        let header = Header::new(routing, protocol, Control::REPLY, Address { source: own, destination, ox_id, rx_id });
        Some(Outgoing::fc(self.route(destination)?, header, body))
    }

    /// SRR: a sequence is sent again, if it can be.
    fn send_again(&mut self, frame: &Received<'_>, out: &mut Output) {
        let (Some(own), peer) = (self.logins.id(), frame.header.source()) else { return };
        let Ok((srr, _)) = Srr::ref_from_prefix(frame.payload) else { return };
        let Some(exchanges) = self.exchanges.get_mut(&peer) else { return };
        let exchange = (peer, srr.ox_id.get(), srr.rx_id.get());
        let again = match Routing(srr.routing) {
            Routing::COMMAND_STATUS => exchanges.again(exchange, false),
            Routing::DATA_DESCRIPTOR => exchanges.again(exchange, true),
            // Data of a read is not kept.
            _ => None,
        };
        let body = match &again {
            Some(_) => Bare::new(Els::LS_ACC).as_bytes().to_vec(),
            None => Reject::new(Reason::UNABLE, Explanation::NO_DATA).as_bytes().to_vec(),
        };
        let sequence = |exchanges: &mut Exchanges, key| exchanges.repeated(key);
        let repeated = again.map(|again| match again {
            Again::Response(key, bytes) => (key, sequence(exchanges, key), Routing::COMMAND_STATUS, RESPONSE, bytes),
            Again::Ready(key, offset, len) => {
                let ready = TransferReady::new(offset, len).as_bytes().to_vec();
                (key, sequence(exchanges, key), Routing::DATA_DESCRIPTOR, READY, ready)
            }
        });
        out.frames.extend(self.reply(frame.header, (Routing::FC4_ELS_REPLY, Protocol::FCP), own, &body));
        if let Some((key, sequence, routing, control, bytes)) = repeated {
            let header = Header { sequence, ..header(own, key, routing, control) };
            out.frames.extend(self.route(key.peer).map(|route| Outgoing::fc(route, header, &bytes)));
        }
    }

    fn abort_accept(&self, peer: PortId, ox_id: u16, rx_id: u16) -> Option<Outgoing> {
        let own = self.logins.id()?;
        let address = Address { source: own, destination: peer, ox_id, rx_id };
        let header = Header::new(Routing::BA_ACC, Protocol::BASIC, Control::REPLY, address);
        Some(Outgoing::fc(self.route(peer)?, header, BasicAccept::new(ox_id, rx_id).as_bytes()))
    }

    /// The answer to an abort, when the command has ended.
    pub fn aborted(&mut self, key: ExchangeKey) -> Option<Outgoing> {
        self.exchanges.get_mut(&key.peer)?.remove(key);
        self.abort_accept(key.peer, key.ox_id, key.rx_id())
    }

    /// Removes an exchange whose command is not answered.
    pub fn remove(&mut self, key: ExchangeKey) {
        self.exchanges.get_mut(&key.peer).into_iter().for_each(|exchanges| exchanges.remove(key));
    }

    /// The header of the first frame of a sequence with so many bytes of data, which are sent for a command.
    pub fn data_header(&mut self, key: ExchangeKey, offset: u32, len: usize) -> Option<(Route, Header)> {
        let own = self.logins.id()?;
        let sequence = self.exchanges.get_mut(&key.peer)?.next_sequence(key, len)?;
        let header = Header { sequence, parameter: offset.into(), ..header(own, key, Routing::DATA, DATA) };
        Some((self.route(key.peer)?, header))
    }

    /// The most bytes of the payload of a frame to an initiator: a multiple of four.
    #[must_use]
    pub fn payload(&self, peer: PortId) -> usize {
        let own = self.logins.own().payload;
        self.logins.remote(peer).map_or(own, |remote| remote.payload.min(own)) & !3
    }

    /// Requests data from `offset` on, as much as there is memory.
    pub fn request(&mut self, key: ExchangeKey, offset: u32, memory: SgMut) -> Option<(Route, Header, TransferReady)> {
        let own = self.logins.id()?;
        let ready = TransferReady::new(offset, u32::try_from(memory.len()).ok()?);
        let sequence = self.exchanges.get_mut(&key.peer)?.request(key, offset, memory)?;
        let header = Header { sequence, ..header(own, key, Routing::DATA_DESCRIPTOR, READY) };
        Some((self.route(key.peer)?, header, ready))
    }

    /// Takes requested data.
    pub fn take(&mut self, key: ExchangeKey) -> Requested {
        self.exchanges.get_mut(&key.peer).map_or(Requested::Gone, |exchanges| exchanges.take(key))
    }

    /// Ends a command with a response; the header of its frame.
    pub fn respond(&mut self, key: ExchangeKey, response: &ResponseBytes, now: Instant) -> Option<(Route, Header)> {
        let own = self.logins.id()?;
        let sequence = self.exchanges.get_mut(&key.peer)?.end(key, response, now)?;
        let header = Header { sequence, ..header(own, key, Routing::COMMAND_STATUS, RESPONSE) };
        Some((self.route(key.peer)?, header))
    }

    /// The response to a command for which there was no exchange.
    #[must_use]
    pub fn refuse(&self, peer: PortId, ox_id: u16) -> Option<(Route, Header)> {
        let own = self.logins.id()?;
        let key = ExchangeKey { peer, ox_id, number: 0 };
        Some((self.route(peer)?, header(own, key, Routing::COMMAND_STATUS, RESPONSE)))
    }
}

fn header(own: PortId, key: ExchangeKey, routing: Routing, control: Control) -> Header {
    let address = Address { source: own, destination: key.peer, ox_id: key.ox_id, rx_id: key.rx_id() };
    Header::new(routing, Protocol::FCP, control, address)
}

//! A port, its login at a target, and its commands. It repairs what lost frames have damaged as the initiator of Linux
//! does: it asks the target for the state of an exchange (REC), has sequences sent again (SRR), or aborts the exchange
//! and sends the command again.

use lunar_core::time::Instant;
use lunar_fcoe::port::Outgoing;
use lunar_fcoe::port::coverage::{Added, Coverage};
use lunar_fcoe::port::discovery::Identity;
use lunar_fcoe::port::login::{LoginEvent, Logins, Output, Step};
use lunar_fcoe::wire::els::{COMPLETE, E_D_TOV, Els, ExchangeQuery, HAS_INITIATIVE, RecAccept, Reject, Srr};
use lunar_fcoe::wire::fcp::{self, Response, TransferReady};
use lunar_fcoe::wire::fip::{self, Functions};
use lunar_fcoe::wire::frame::{self, Address, Control, Header, Protocol, Received, Routing, UNASSIGNED, payload_of};
use lunar_fcoe::wire::names::{PortId, Wwn};
use lunar_link::{Header as EthernetHeader, MacAddress};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// The time after which a command without progress is looked after.
const REC_TIME: Duration = Duration::from_millis(E_D_TOV as u64 + 1000);
/// The time in which a query or an abort is answered.
const ANSWER_TIME: Duration = Duration::from_millis(E_D_TOV as u64);
/// The time in which data of a read that has a response arrives: frames may overtake each other.
const LATE_TIME: Duration = Duration::from_millis(100);
/// The time for which an identifier of an exchange is not used after an abort.
const QUARANTINE: Duration = Duration::from_secs(10);
/// Queries that are not answered before the exchange is aborted.
const TRIES: u32 = 3;
/// Identifiers of exchanges with commands; those of queries follow.
const COMMANDS: u16 = 0x4000;
/// The first identifier of queries. Logins use lower ones as well, and are recognised by their services.
const QUERIES: u16 = 0x8000;
/// F_CTL of the data of a write.
const DATA: Control = Control::OFFSET;
/// F_CTL of ABTS.
const ABORT: Control = Control::END.and(Control::INITIATIVE);

/// The settings of an initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitiatorConfig {
    /// The own MAC address.
    pub station: MacAddress,
    /// N_Port_Name and Node_Name.
    pub names: (Wwn, Wwn),
    /// The N_Port_Name of the target; `None`: the first one that logs in.
    pub target: Option<Wwn>,
    /// The largest payload of an Ethernet frame.
    pub mtu: usize,
    /// The time after which a command without an end is given up.
    pub timeout: Duration,
    /// A number that other ports do not have.
    pub seed: u64,
}

/// A SCSI command.
#[derive(Clone, Debug)]
pub struct Command {
    /// The LUN.
    pub lun: [u8; 8],
    /// The CDB.
    pub cdb: [u8; 16],
    /// Bytes to receive.
    pub data_in: u32,
    /// Data to send.
    pub data_out: Option<Rc<[u8]>>,
}

/// An event of the port or of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InitiatorEvent<'a> {
    /// The target has logged in: commands are sent. It may happen again when the target has started again.
    Ready,
    /// Data of a command: its number, the offset in its data, and the data. Pieces arrive in any order, and may arrive
    /// again.
    Data(u32, u32, &'a [u8]),
    /// A command has ended with this SCSI status and sense data.
    Done(u32, u8, &'a [u8]),
    /// A command has not ended in time: all commands are given up.
    Lost,
}

/// The step of the repair of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Repair {
    /// Nothing is wrong so far.
    None,
    /// REC was sent, in this exchange, so many times.
    Querying(u16, u32),
    /// SRR was sent, in this exchange.
    Asking(u16),
    /// ABTS was sent, so many times.
    Aborting(u32),
}

#[derive(Debug)]
struct Exchange {
    cookie: u32,
    rx_id: u16,
    sequence: u8,
    /// Data of a read that has arrived.
    coverage: Coverage,
    /// The response, if data of a read is missing.
    response: Option<Vec<u8>>,
    repair: Repair,
    deadline: Instant,
}

/// A port with its target.
#[derive(Debug)]
pub struct Initiator {
    config: InitiatorConfig,
    logins: Logins,
    target: Option<PortId>,
    /// Commands in progress, with the times of their starts.
    commands: BTreeMap<u32, (Command, Instant)>,
    /// Commands that wait for the login.
    waiting: VecDeque<u32>,
    exchanges: BTreeMap<u16, Exchange>,
    /// Identifiers that must not be used until these times.
    quarantine: BTreeMap<u16, Instant>,
    next_query: u16,
    out: Output,
    frames: VecDeque<Outgoing>,
    is_lost: bool,
    /// Commands that were sent again.
    pub retries: u64,
}

impl Initiator {
    /// A port that begins now.
    #[must_use]
    pub fn new(config: InitiatorConfig, now: Instant) -> Self {
        Self::with(config, Logins::new(Self::identity(&config), config.seed, now))
    }

    /// A port of a fabric that begins now.
    #[must_use]
    pub fn in_fabric(config: InitiatorConfig, now: Instant) -> Self {
        // The link is in the right VLAN.
        Self::with(config, Logins::in_fabric(Self::identity(&config), true, config.seed, now))
    }

    fn identity(config: &InitiatorConfig) -> Identity {
        Identity {
            station: config.station,
            node: config.names.1,
            name: config.names.0,
            functions: Functions { target: false, initiator: true },
            payload: payload_of(config.mtu),
        }
    }

    fn with(config: InitiatorConfig, logins: Logins) -> Self {
        Self {
            logins,
            config,
            target: None,
            commands: BTreeMap::new(),
            waiting: VecDeque::new(),
            exchanges: BTreeMap::new(),
            quarantine: BTreeMap::new(),
            next_query: QUERIES,
            out: Output::default(),
            frames: VecDeque::new(),
            is_lost: false,
            retries: 0,
        }
    }

    /// Whether the target has logged in.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.target.is_some()
    }

    /// The MAC address to which frames of the target are sent, once it is known.
    #[must_use]
    pub fn address(&self) -> Option<MacAddress> {
        self.logins.network().address()
    }

    /// Commands in progress.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.commands.len()
    }

    /// The next frame to send.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front().map(|frame| frame.bytes())
    }

    /// Starts a command. Its number is not that of another one in progress.
    pub fn start(&mut self, cookie: u32, command: Command, now: Instant) {
        self.commands.insert(cookie, (command, now));
        self.send(cookie, now);
    }

    /// Sends a command in a new exchange, or lets it wait for the login.
    fn send(&mut self, cookie: u32, now: Instant) {
        let (Some(target), Some(own)) = (self.target, self.logins.id()) else {
            return self.waiting.push_back(cookie);
        };
        let Some((command, _)) = self.commands.get(&cookie) else { return };
        let data_out = command.data_out.as_ref().map_or(0, |data| data.len() as u32);
        let (lun, cdb, data_in) = (command.lun, &command.cdb[..], command.data_in);
        let body = fcp::Command { lun, attribute: 0, task: 0, cdb, data_in, data_out }.bytes();
        self.quarantine.retain(|_, until| *until > now);
        let is_free = |id: &u16| !self.exchanges.contains_key(id) && !self.quarantine.contains_key(id);
        // The lowest one, as Linux uses identifiers again.
        let Some(ox_id) = (0..COMMANDS).find(is_free) else { return self.waiting.push_back(cookie) };
        let address = Address { source: own, destination: target, ox_id, rx_id: UNASSIGNED };
        let header = Header::new(Routing::COMMAND, Protocol::FCP, Control::REQUEST, address);
        self.frames.extend(self.logins.network().route(target).map(|route| Outgoing::fc(route, header, &body)));
        let exchange = Exchange {
            cookie,
            rx_id: UNASSIGNED,
            sequence: 1,
            coverage: Coverage::default(),
            response: None,
            repair: Repair::None,
            deadline: now + REC_TIME,
        };
        self.exchanges.insert(ox_id, exchange);
    }

    /// Sends the command of an exchange again, in another one.
    fn retry(&mut self, ox_id: u16, now: Instant) {
        if let Some(exchange) = self.exchanges.remove(&ox_id) {
            self.quarantine.insert(ox_id, now + QUARANTINE);
            self.retries += 1;
            self.send(exchange.cookie, now);
        }
    }

    /// Sends a short frame about an exchange.
    fn tell(&mut self, (routing, protocol): (Routing, Protocol), control: Control, ids: (u16, u16), body: &[u8]) {
        let (Some(destination), Some(source)) = (self.target, self.logins.id()) else { return };
        let header =
            Header::new(routing, protocol, control, Address { source, destination, ox_id: ids.0, rx_id: ids.1 });
        let route = self.logins.network().route(destination);
        self.frames.extend(route.map(|route| Outgoing::fc(route, header, body)));
    }

    fn query_id(&mut self) -> u16 {
        self.next_query = (self.next_query + 1).max(QUERIES) % UNASSIGNED;
        self.next_query = self.next_query.max(QUERIES);
        self.next_query
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant, on: &mut dyn FnMut(InitiatorEvent<'_>)) {
        let mut out = std::mem::take(&mut self.out);
        let wanted = self.config.target;
        self.logins.tick(now, &|name| wanted.is_none_or(|wanted| wanted == name), &mut out);
        self.follow(&mut out, now, on);
        self.out = out;
        let late: Vec<u16> =
            self.exchanges.iter().filter(|(_, exchange)| exchange.deadline <= now).map(|(ox_id, _)| *ox_id).collect();
        for ox_id in late {
            self.look_after(ox_id, now);
        }
        if self.target.is_some() {
            // They have waited for a free identifier.
            let waiting = std::mem::take(&mut self.waiting);
            waiting.into_iter().for_each(|cookie| self.send(cookie, now));
        }
        let timeout = self.config.timeout;
        let is_overdue = self.commands.values().any(|(_, since)| now.since(*since) >= timeout);
        if is_overdue && !self.is_lost {
            self.is_lost = true;
            on(InitiatorEvent::Lost);
        }
    }

    /// An exchange has made no progress.
    fn look_after(&mut self, ox_id: u16, now: Instant) {
        let Some(exchange) = self.exchanges.get(&ox_id) else { return };
        // Data of a read is missing.
        if exchange.response.is_some() {
            return self.retry(ox_id, now);
        }
        match exchange.repair {
            Repair::None => self.query(ox_id, 1, now),
            Repair::Querying(_, tries) if tries < TRIES => self.query(ox_id, tries + 1, now),
            Repair::Querying(..) | Repair::Asking(_) => self.abort(ox_id, 1, now),
            Repair::Aborting(tries) => self.abort(ox_id, tries + 1, now),
        }
    }

    fn query(&mut self, ox_id: u16, tries: u32, now: Instant) {
        let (id, own) = (self.query_id(), self.logins.id());
        let (Some(exchange), Some(own)) = (self.exchanges.get_mut(&ox_id), own) else { return };
        exchange.repair = Repair::Querying(id, tries);
        exchange.deadline = now + ANSWER_TIME;
        let body = ExchangeQuery::new(Els::REC, own, ox_id, exchange.rx_id);
        self.tell((Routing::ELS_REQUEST, Protocol::ELS), Control::REQUEST, (id, UNASSIGNED), body.as_bytes());
    }

    /// Asks for a sequence again, from this offset on.
    fn ask(&mut self, ox_id: u16, offset: u32, routing: Routing, now: Instant) {
        let id = self.query_id();
        let Some(exchange) = self.exchanges.get_mut(&ox_id) else { return };
        exchange.repair = Repair::Asking(id);
        exchange.deadline = now + ANSWER_TIME;
        let body = Srr::new(ox_id, exchange.rx_id, offset, routing.0);
        self.tell((Routing::FC4_ELS_REQUEST, Protocol::FCP), Control::REQUEST, (id, UNASSIGNED), body.as_bytes());
    }

    fn abort(&mut self, ox_id: u16, tries: u32, now: Instant) {
        let Some(exchange) = self.exchanges.get_mut(&ox_id) else { return };
        exchange.repair = Repair::Aborting(tries);
        exchange.deadline = now + ANSWER_TIME;
        let rx_id = exchange.rx_id;
        self.tell((Routing::ABTS, Protocol::BASIC), ABORT, (ox_id, rx_id), &[]);
    }

    /// Follows logins.
    fn follow(&mut self, out: &mut Output, now: Instant, on: &mut dyn FnMut(InitiatorEvent<'_>)) {
        self.frames.extend(out.frames.drain(..));
        for event in out.events.drain(..) {
            match event {
                LoginEvent::Ready(id) if self.target.is_none_or(|target| target == id) => {
                    self.target = Some(id);
                    on(InitiatorEvent::Ready);
                    // All exchanges are void.
                    let lost: Vec<u32> =
                        std::mem::take(&mut self.exchanges).into_values().map(|exchange| exchange.cookie).collect();
                    let waiting = std::mem::take(&mut self.waiting);
                    lost.into_iter().chain(waiting).for_each(|cookie| self.send(cookie, now));
                }
                LoginEvent::Ended(id) if self.target == Some(id) => {
                    self.target = None;
                    let lost = std::mem::take(&mut self.exchanges).into_values().map(|exchange| exchange.cookie);
                    self.waiting.extend(lost);
                }
                _ => {}
            }
        }
    }

    /// Takes a frame.
    pub fn receive(
        &mut self,
        header: &EthernetHeader,
        bytes: &[u8],
        now: Instant,
        on: &mut dyn FnMut(InitiatorEvent<'_>),
    ) {
        let wanted = self.config.target;
        let admits = |name: Wwn| wanted.is_none_or(|wanted| wanted == name);
        let mut out = std::mem::take(&mut self.out);
        if header.ether_type == fip::ETHER_TYPE {
            if header.destination == self.logins.network().group() || header.destination == self.config.station {
                self.logins.receive_fip((header.source, bytes), now, &admits, &mut out);
            }
        } else if header.ether_type == frame::ETHER_TYPE
            && Some(header.destination) == self.address()
            && let Ok(frame) = Received::parse(bytes)
            && Some(frame.header.destination()) == self.logins.id()
            && self.logins.network().is_from(header.source, frame.header.source())
        {
            let is_els = frame.header.protocol == Protocol::ELS.0;
            if frame.header.protocol == Protocol::CT.0 {
                self.logins.receive_of_fabric(&frame, now, &admits, &mut out);
            } else if is_els && !self.answered(&frame, now) {
                // Queries about exchanges are for targets.
                let _ = self.logins.receive_els(&frame, now, &admits, &mut out);
            } else if !is_els && Some(frame.header.source()) == self.target {
                self.exchange_frame(&frame, now, on);
            }
        }
        self.follow(&mut out, now, on);
        self.out = out;
    }

    /// Takes the answer to a query about an exchange; returns whether it is one.
    fn answered(&mut self, frame: &Received<'_>, now: Instant) -> bool {
        let id = frame.header.ox_id.get();
        if frame.header.routing() != Routing::ELS_REPLY || id < QUERIES {
            return false;
        }
        let is_it = |exchange: &Exchange| matches!(exchange.repair, Repair::Querying(own, _) if own == id);
        let Some((ox_id, exchange)) = self.exchanges.iter_mut().find(|(_, exchange)| is_it(exchange)) else {
            return true;
        };
        let ox_id = *ox_id;
        let (cookie, reached) = (exchange.cookie, exchange.coverage.reached(0));
        let Ok((accept, _)) = RecAccept::ref_from_prefix(frame.payload) else {
            let reject = Reject::ref_from_prefix(frame.payload).map(|(reject, _)| *reject);
            // The target does not know the exchange: the command has not arrived.
            match reject.is_ok_and(|reject| reject.explanation == 0x17) {
                true => self.retry(ox_id, now),
                false => self.abort(ox_id, 1, now),
            }
            return true;
        };
        if frame.payload.first() != Some(&Els::LS_ACC.0) {
            self.abort(ox_id, 1, now);
            return true;
        }
        exchange.rx_id = accept.rx_id.get();
        exchange.repair = Repair::None;
        exchange.deadline = now + REC_TIME;
        let (status, transferred) = (accept.status.get(), accept.transferred.get());
        let (data_in, data_out) = self.commands.get(&cookie).map_or((0, 0), |(command, _)| {
            (command.data_in, command.data_out.as_ref().map_or(0, |data| data.len() as u32))
        });
        if status & COMPLETE != 0 {
            match data_in == 0 || reached >= transferred {
                true => self.ask(ox_id, transferred, Routing::COMMAND_STATUS, now),
                false => self.abort(ox_id, 1, now),
            }
        } else if status & HAS_INITIATIVE == 0 && data_out > 0 {
            self.ask(ox_id, transferred, Routing::DATA_DESCRIPTOR, now);
        }
        true
    }

    /// Takes a frame of an exchange with the target.
    fn exchange_frame(&mut self, frame: &Received<'_>, now: Instant, on: &mut dyn FnMut(InitiatorEvent<'_>)) {
        let (header, payload) = (frame.header, frame.payload);
        let (ox_id, rx_id) = (header.ox_id.get(), header.rx_id.get());
        if header.routing() == Routing::FC4_ELS_REPLY {
            let is_it = |exchange: &Exchange| exchange.repair == Repair::Asking(ox_id);
            let Some((asked, exchange)) = self.exchanges.iter_mut().find(|(_, exchange)| is_it(exchange)) else {
                return;
            };
            exchange.repair = Repair::None;
            exchange.deadline = now + REC_TIME;
            if payload.first() != Some(&Els::LS_ACC.0) {
                let asked = *asked;
                self.abort(asked, 1, now);
            }
            return;
        }
        let Some(exchange) = self.exchanges.get_mut(&ox_id) else { return };
        if exchange.rx_id != UNASSIGNED && exchange.rx_id != rx_id {
            return;
        }
        exchange.rx_id = rx_id;
        if let Repair::Aborting(_) = exchange.repair {
            if matches!(header.routing(), Routing::BA_ACC | Routing::BA_RJT) {
                self.retry(ox_id, now);
            }
            return;
        }
        exchange.deadline = now + REC_TIME;
        let cookie = exchange.cookie;
        match header.routing() {
            Routing::DATA => {
                let offset = header.parameter.get();
                let most = self.commands.get(&cookie).map_or(0, |(command, _)| command.data_in);
                let end = offset.checked_add(payload.len() as u32).filter(|end| *end <= most && *end > offset);
                let Some(end) = end else { return };
                if exchange.coverage.add(offset, end) == Added::New {
                    on(InitiatorEvent::Data(cookie, offset, payload));
                }
                if exchange.response.is_some() {
                    self.end(ox_id, now, on);
                }
            }
            Routing::DATA_DESCRIPTOR => {
                if let Ok((ready, _)) = TransferReady::ref_from_prefix(payload) {
                    self.send_data(ox_id, ready.offset.get(), ready.len.get());
                }
            }
            Routing::COMMAND_STATUS => {
                exchange.response = Some(payload.to_vec());
                self.end(ox_id, now, on);
            }
            _ => {}
        }
    }

    /// Ends a command that has a response, if all its data is there.
    fn end(&mut self, ox_id: u16, now: Instant, on: &mut dyn FnMut(InitiatorEvent<'_>)) {
        let Some(exchange) = self.exchanges.get_mut(&ox_id) else { return };
        let Some(bytes) = &exchange.response else { return };
        let Some(response) = Response::parse(bytes) else { return self.retry(ox_id, now) };
        let data_in = self.commands.get(&exchange.cookie).map_or(0, |(command, _)| command.data_in);
        let under = u32::try_from(-response.residual.min(0)).unwrap_or(u32::MAX);
        if response.status == 0 && exchange.coverage.reached(0) < data_in.saturating_sub(under) {
            exchange.deadline = now + LATE_TIME;
            return;
        }
        on(InitiatorEvent::Done(exchange.cookie, response.status, response.sense));
        let cookie = exchange.cookie;
        self.exchanges.remove(&ox_id);
        self.commands.remove(&cookie);
    }

    /// Sends data of a write that the target requests.
    fn send_data(&mut self, ox_id: u16, offset: u32, len: u32) {
        let (Some(destination), Some(source)) = (self.target, self.logins.id()) else { return };
        let Some(exchange) = self.exchanges.get_mut(&ox_id) else { return };
        let data = self.commands.get(&exchange.cookie).and_then(|(command, _)| command.data_out.clone());
        let range = offset as usize..offset as usize + len as usize;
        let Some(data) = data.as_ref().and_then(|data| data.get(range)) else { return };
        let theirs = self.logins.remote(destination).filter(|remote| remote.step == Step::Ready);
        let most = theirs.map_or(frame::PAYLOAD_MIN, |remote| remote.payload).min(payload_of(self.config.mtu));
        let address = Address { source, destination, ox_id, rx_id: exchange.rx_id };
        let mut header = Header::new(Routing::DATA, Protocol::FCP, DATA, address);
        header.sequence = exchange.sequence;
        exchange.sequence = exchange.sequence.wrapping_add(1);
        let Some(route) = self.logins.network().route(destination) else { return };
        let count = data.len().div_ceil(most);
        for (number, piece) in data.chunks(most).enumerate() {
            // A burst has at most 64 Ki frames.
            header.count = (number as u16).into();
            header.parameter = (offset + (number * most) as u32).into();
            if number + 1 == count {
                header.set_control(DATA.and(Control::END).and(Control::INITIATIVE));
            }
            self.frames.push_back(Outgoing::fc(route, header, piece));
        }
    }
}

//! A port on its socket or link: requests for connections, and their ends.

use super::core::Core;
use super::queue_pair::{Home, QueuePair};
use super::{PortView, RdmaPorts};
use crate::limits::{CAPSULE_MAX, REFUSALS_MAX, UNACKNOWLEDGED, USUAL_COMMANDS};
use crate::wire::{Accepted, RejectReason, Rejected, Request};
use lunar_engine::link_ports::PortEndpoint;
use lunar_link::{MacAddress, Rate};
use lunar_nvme::limits::{QUEUE_ENTRIES_MAX, QUEUES_MAX};
use lunar_rdma::address::PortAddress;
use lunar_rdma::engine::{Accept, ConnectionId, Ended, Event, NotAccepted};
use lunar_rdma::live;
use lunar_rdma::port::{Port, Upper};
use lunar_rdma::responder::Receives;
use lunar_rdma::socket::Opened;
use lunar_reactor::end::End;
use lunar_reactor::log;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// The period of the rate of reported refusals.
const MINUTE: Duration = Duration::from_secs(60);
/// The time between two checks whether queues have ended.
const END_INTERVAL: Duration = Duration::from_millis(5);
/// The rate is that of all refusals, not of one host.
const ANYBODY: MacAddress = MacAddress([0; 6]);

/// A port on its socket or link.
pub struct Endpoint {
    /// Itself, for its connections and tasks.
    me: Weak<Self>,
    core: Rc<Core>,
    /// Where it is.
    address: PortAddress,
    port: RefCell<Option<Rc<Port>>>,
    /// `None` until a configuration is published: requests are rejected.
    view: RefCell<Option<Rc<PortView>>>,
    pairs: RefCell<HashMap<ConnectionId, Rc<QueuePair>>>,
    /// Queues that end.
    ending: Cell<usize>,
    refusals: RefCell<Rate>,
    closed: End,
}

impl Endpoint {
    fn me(&self) -> Rc<Self> {
        self.me.upgrade().expect("an endpoint is used through an Rc only")
    }

    fn attach(&self, opened: Opened) -> io::Result<()> {
        let (host, upper): (_, Weak<dyn Upper>) = (&self.core.common.shared.host, self.me.clone());
        // All ports of an address share its record.
        let record = host.state().port(&live::owner(&self.address));
        let port = Port::attach(self.core.reactor(), opened, host.seed(), record, upper)?;
        if let Some(view) = &*self.view.borrow() {
            port.serve_as(view.number);
        }
        self.port.replace(Some(port));
        Ok(())
    }

    /// Its engine; `None`: the socket or link has failed.
    fn port(&self) -> Option<Rc<Port>> {
        self.port.borrow().clone()
    }

    /// A host requests a connection.
    fn request(&self, id: ConnectionId, peer: IpAddr, private: &[u8]) {
        let Some(port) = self.port() else { return };
        let is_serving = self.view.borrow().is_some() && !self.core.draining.has_come() && !self.closed.has_come();
        let request = Request::parse(private).ok_or(RejectReason::LENGTH);
        let checked = request.and_then(|request| match () {
            () if request.format.get() != 0 => Err(RejectReason::FORMAT),
            () if !is_serving => Err(RejectReason::NO_RESOURCES),
            () if request.queue.get() > QUEUES_MAX => Err(RejectReason::QUEUE),
            () if !(1..QUEUE_ENTRIES_MAX).contains(&request.commands.get()) => Err(RejectReason::COMMANDS),
            // The host has room for a response to each command.
            () if request.responses.get() <= request.commands.get() => Err(RejectReason::RESPONSES),
            // Data is read from the memory of the host.
            () if port.look(|engine| engine.reads(id)) == 0 => Err(RejectReason::RESPONDER_READS),
            () => Ok(request),
        });
        match checked {
            Ok(request) => self.accept(&port, (id, peer, request)),
            Err(reason) => self.reject(&port, (id, peer), reason),
        }
    }

    fn reject(&self, port: &Port, (id, peer): (ConnectionId, IpAddr), reason: RejectReason) {
        port.with(|engine, _| engine.reject(id, Rejected::new(reason).as_bytes()));
        self.core.reactor().stats().logins_refused.add(1);
        if self.refusals.borrow_mut().admit(ANYBODY, self.core.reactor().now()) {
            log!("nvme-rdma: a connection of {peer} is rejected: {reason:?}");
        }
    }

    fn accept(&self, port: &Rc<Port>, (id, peer, request): (ConnectionId, IpAddr, Request)) {
        let commands = request.commands.get() + 1;
        let receives = receives(commands.into());
        let reply = Accepted::new(commands);
        let accept = Accept::new(reply.as_bytes(), receives);
        match port.with(|engine, now| engine.accept(id, &accept, now)) {
            Ok(()) => {
                let home: Weak<dyn Home> = self.me.clone();
                let pair = QueuePair::new((id, peer, request), home, &self.core, port);
                pair.watch_connect();
                self.pairs.borrow_mut().insert(id, pair);
            }
            Err(NotAccepted::NoRoom) => self.reject(port, (id, peer), RejectReason::NO_RESOURCES),
            Err(NotAccepted::Gone) => {}
        }
    }

    fn pair(&self, id: ConnectionId) -> Option<Rc<QueuePair>> {
        self.pairs.borrow().get(&id).cloned()
    }

    /// A connection has ended, and its queue with it.
    fn lost(&self, id: ConnectionId) {
        let removed = self.pairs.borrow_mut().remove(&id);
        let Some(pair) = removed else { return };
        let endpoint = self.me();
        endpoint.ending.set(endpoint.ending.get() + 1);
        self.core.reactor().spawn(async move {
            pair.close().await;
            endpoint.ending.set(endpoint.ending.get() - 1);
        });
    }

    /// Waits until the queues of connections that have ended have ended, too.
    async fn until_ended(&self) {
        while self.ending.get() > 0 {
            self.core.reactor().sleep(END_INTERVAL).await;
        }
    }

    fn report(&self, trouble: Option<String>) {
        if let Some(view) = &*self.view.borrow() {
            self.core.common.set_trouble(&view.name, trouble);
        }
    }

    /// Opens the socket or link again until that succeeds.
    async fn reopen(self: Rc<Self>) {
        let (address, reactor) = (&self.address, self.core.reactor());
        let attach = |opened| self.attach(opened);
        if self.core.common.open_again(address, (reactor, &self.closed), attach).await.is_some() {
            self.report(None);
            log!("the NVMe/RDMA port at {address} is open again");
        }
    }
}

/// The messages of a host that may have so many commands outstanding.
fn receives(commands: usize) -> Receives {
    Receives { bytes: CAPSULE_MAX, count: commands + UNACKNOWLEDGED }
}

impl Home for Endpoint {
    fn disconnect(&self, id: ConnectionId) {
        self.port().into_iter().for_each(|port| port.with(|engine, now| engine.disconnect(id, now)));
        self.lost(id);
    }

    fn queues_left(&self, id: ConnectionId) -> usize {
        self.port().map_or(0, |port| port.look(|engine| engine.left(id, receives(USUAL_COMMANDS))))
    }

    fn place(&self) -> Option<(Rc<PortView>, SocketAddr)> {
        Some((self.view.borrow().clone()?, self.address.at))
    }
}

impl PortEndpoint<RdmaPorts> for Endpoint {
    fn start(core: &Rc<Core>, address: PortAddress, opened: Opened) -> io::Result<Rc<Self>> {
        let endpoint = Rc::new_cyclic(|me: &Weak<Self>| Self {
            me: me.clone(),
            core: core.clone(),
            address,
            port: RefCell::default(),
            view: RefCell::default(),
            pairs: RefCell::default(),
            ending: Cell::default(),
            refusals: RefCell::new(Rate::new(MINUTE, REFUSALS_MAX, REFUSALS_MAX)),
            closed: End::default(),
        });
        endpoint.attach(opened)?;
        Ok(endpoint)
    }

    fn publish(&self, view: PortView) {
        let before = self.view.replace(Some(Rc::new(view.clone())));
        // The controllers that may not stay are ended by the engine.
        if before.is_none_or(|before| before.number != view.number) {
            self.port().iter().for_each(|port| port.serve_as(view.number));
        }
    }

    fn initiators(&self) -> usize {
        self.pairs.borrow().len()
    }

    fn in_progress(&self) -> usize {
        self.pairs.borrow().values().filter(|pair| !pair.is_idle()).count() + self.ending.get()
    }

    /// The engine ends controllers that may no longer be there, and with them their connections.
    async fn review(&self, _ended: &BTreeSet<Arc<str>>) {}

    /// Sessions are controllers, which end by themselves.
    async fn log_out(&self, _initiator: &String) -> bool {
        false
    }

    fn log_all_out(&self) {
        let mut all: Vec<ConnectionId> = self.pairs.borrow().keys().copied().collect();
        all.sort();
        all.into_iter().for_each(|id| self.disconnect(id));
    }

    async fn close(&self) {
        // No host is accepted meanwhile.
        self.closed.come();
        self.log_all_out();
        self.until_ended().await;
        // The last packets leave with the end of this turn.
        self.core.reactor().sleep(Duration::from_millis(1)).await;
        self.abandon();
    }

    fn abandon(&self) {
        self.closed.come();
        self.log_all_out();
        self.report(None);
        self.port().into_iter().for_each(|port| port.close());
    }
}

impl Upper for Endpoint {
    fn message(&self, id: ConnectionId, bytes: &[u8]) {
        let Some(pair) = self.pair(id) else { return };
        if !pair.message(bytes) {
            self.disconnect(id);
        }
    }

    fn event(&self, event: Event) {
        match event {
            Event::Request { id, peer, private } => self.request(id, peer, &private),
            Event::Read(id, completed) => {
                if let Some(pair) = self.pair(id) {
                    pair.transfers.read(completed);
                }
            }
            Event::Progress(id) => self.pair(id).into_iter().for_each(|pair| pair.transfers.progress()),
            Event::Closed(id, why) => {
                if let (Ended::Failed(why), Some(pair)) = (why, self.pair(id)) {
                    pair.log(&format!("the connection has failed: {why:?}"));
                }
                self.lost(id);
            }
        }
    }

    fn trouble(&self, trouble: Option<String>) {
        self.report(trouble);
    }

    fn failed(&self) {
        let trouble = format!("the NVMe/RDMA port at {} has failed, and is opened again", self.address);
        log!(error, "{trouble}");
        self.report(Some(trouble));
        self.log_all_out();
        // It is free again when the last command that uses it has ended.
        self.port.take().into_iter().for_each(|port| port.close());
        self.core.reactor().spawn(self.me().reopen());
    }
}

//! A portal on its socket or link: requests for connections, and their ends.

use super::carrier::{Home, RdmaCarrier};
use super::core::Core;
use super::{IserPorts, PortView};
use crate::config::{IMMEDIATE_MAX, RDMA_SEGMENT_MAX};
use crate::directory::PortalRef;
use crate::iser::wire::{HEADER_LEN, allows_invalidation, reply_private};
use crate::wire::{AHS_MAX, BHS_LEN, padded};
use lunar_engine::link_ports::PortEndpoint;
use lunar_rdma::address::PortAddress;
use lunar_rdma::engine::{Accept, ConnectionId, Event};
use lunar_rdma::live;
use lunar_rdma::port::{Port, Upper};
use lunar_rdma::responder::Receives;
use lunar_rdma::socket::Opened;
use lunar_reactor::end::End;
use lunar_reactor::log;
use lunar_stream::serve::FrontConnection;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// The time between two checks whether sessions have ended.
const END_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes of the largest message of an initiator.
const MESSAGE_MAX: usize = HEADER_LEN + BHS_LEN + AHS_MAX + padded(RDMA_SEGMENT_MAX as usize);
/// PDUs that an initiator may have sent outside of the command window, besides immediate commands: a ping and its
/// answer, a logout, a text request, and data that was not asked for.
const UNNUMBERED_MAX: usize = 32;

/// PDUs that an initiator may send before it has logged in: one login request at a time (RFC 7143 6.3), a hello
/// message, and as many again while the acknowledgements of the answers are on their way. No share counts their memory,
/// and every host can send them.
const LOGIN_MAX: usize = 4;

/// A portal on its socket or link.
pub struct Endpoint {
    /// Itself, for its connections and tasks.
    me: Weak<Self>,
    core: Rc<Core>,
    /// Where it is.
    address: PortAddress,
    port: RefCell<Option<Rc<Port>>>,
    /// `None` until a configuration is published: requests are rejected.
    view: RefCell<Option<Rc<PortView>>>,
    carriers: RefCell<BTreeMap<ConnectionId, Rc<RdmaCarrier>>>,
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

    /// An initiator requests a connection.
    fn request(&self, id: ConnectionId, peer: IpAddr, private: &[u8]) {
        let Some(port) = self.port() else { return };
        let is_serving = !self.core.draining.has_come() && !self.closed.has_come();
        // Data is read from the memory of the initiator.
        let view = self.view.borrow().clone().filter(|_| is_serving && port.look(|engine| engine.reads(id)) > 0);
        let Some(view) = view else { return port.with(|engine, _| engine.reject(id, &[])) };
        let invalidates = allows_invalidation(private);
        let count = self.core.front.window_max() + IMMEDIATE_MAX + UNNUMBERED_MAX;
        let receives = Receives { bytes: MESSAGE_MAX, count };
        let held_back = count.saturating_sub(LOGIN_MAX);
        let accept = Accept { private: &reply_private(invalidates), receives, held_back };
        if port.with(|engine, now| engine.accept(id, &accept, now)).is_err() {
            // An initiator that has given up meanwhile gets no answer.
            return port.with(|engine, _| engine.reject(id, &[]));
        }
        let home: Weak<dyn Home> = self.me.clone();
        let carrier = RdmaCarrier::new(id, (invalidates, held_back), self.core.reactor(), &port, home);
        let ends = (self.address.at, SocketAddr::new(peer, 0));
        let portal_ref = PortalRef { portal: view.number, group: view.group };
        match self.core.front.serve_carried(carrier.clone(), ends, portal_ref) {
            Some(connection) => {
                carrier.bind(&connection);
                self.carriers.borrow_mut().insert(id, carrier);
            }
            None => port.with(|engine, now| engine.disconnect(id, now)),
        }
    }

    fn carrier(&self, id: ConnectionId) -> Option<Rc<RdmaCarrier>> {
        self.carriers.borrow().get(&id).cloned()
    }

    fn all(&self) -> Vec<Rc<RdmaCarrier>> {
        self.carriers.borrow().values().cloned().collect()
    }

    /// A connection has ended, and its session with it.
    fn lost(&self, id: ConnectionId) {
        let removed = self.carriers.borrow_mut().remove(&id);
        removed.into_iter().for_each(|carrier| carrier.close());
    }

    fn report(&self, trouble: Option<String>) {
        if let Some(view) = &*self.view.borrow() {
            self.core.common.set_trouble(&view.name, trouble);
        }
    }

    /// Ends all connections, and closes the socket or link.
    fn shut(&self) {
        self.closed.come();
        let all: Vec<ConnectionId> = self.carriers.borrow().keys().copied().collect();
        all.into_iter().for_each(|id| self.disconnect(id));
        self.report(None);
        self.port().into_iter().for_each(|port| port.close());
    }

    /// Opens the socket or link again until that succeeds.
    async fn reopen(self: Rc<Self>) {
        let (address, reactor) = (&self.address, self.core.reactor());
        let attach = |opened| self.attach(opened);
        if self.core.common.open_again(address, (reactor, &self.closed), attach).await.is_some() {
            self.report(None);
            log!("the iSER portal at {address} is open again");
        }
    }
}

impl Home for Endpoint {
    fn disconnect(&self, id: ConnectionId) {
        self.port().into_iter().for_each(|port| port.with(|engine, now| engine.disconnect(id, now)));
        self.lost(id);
    }
}

impl PortEndpoint<IserPorts> for Endpoint {
    fn start(core: &Rc<Core>, address: PortAddress, opened: Opened) -> io::Result<Rc<Self>> {
        let endpoint = Rc::new_cyclic(|me: &Weak<Self>| Self {
            me: me.clone(),
            core: core.clone(),
            address,
            port: RefCell::default(),
            view: RefCell::default(),
            carriers: RefCell::default(),
            closed: End::default(),
        });
        endpoint.attach(opened)?;
        Ok(endpoint)
    }

    fn publish(&self, view: PortView) {
        let before = self.view.replace(Some(Rc::new(view.clone())));
        // Sessions that may not stay are ended by the review.
        if before.is_none_or(|before| before.number != view.number) {
            self.port().iter().for_each(|port| port.serve_as(view.number));
        }
    }

    fn initiators(&self) -> usize {
        self.carriers.borrow().len()
    }

    fn in_progress(&self) -> usize {
        // At the end of service, initiators get time to log out.
        let is_draining = self.core.draining.has_come();
        let is_busy = |carrier: &&Rc<RdmaCarrier>| {
            carrier.connection().is_some_and(|connection| is_draining || !connection.is_idle())
        };
        self.carriers.borrow().values().filter(is_busy).count()
    }

    async fn review(&self, ended: &BTreeSet<Arc<str>>) {
        self.core.front.review(ended).await;
    }

    /// Sessions are ended by their connections.
    async fn log_out(&self, _initiator: &String) -> bool {
        false
    }

    fn log_all_out(&self) {
        self.all().iter().filter_map(|carrier| carrier.connection()).for_each(|connection| connection.stream.end());
    }

    async fn close(&self) {
        // No initiator is accepted meanwhile.
        self.closed.come();
        let all = self.all();
        self.log_all_out();
        while all.iter().any(|carrier| carrier.connection().is_some()) {
            self.core.reactor().sleep(END_INTERVAL).await;
        }
        // The last packets leave with the end of this turn.
        self.core.reactor().sleep(Duration::from_millis(1)).await;
        self.shut();
    }

    fn abandon(&self) {
        self.shut();
        self.core.front.abandon();
    }
}

impl Upper for Endpoint {
    fn message(&self, id: ConnectionId, bytes: &[u8]) {
        self.carrier(id).into_iter().for_each(|carrier| carrier.message(bytes));
    }

    fn event(&self, event: Event) {
        match event {
            Event::Request { id, peer, private } => self.request(id, peer, &private),
            Event::Read(id, completed) => {
                if let Some(carrier) = self.carrier(id) {
                    carrier.completed(completed);
                }
            }
            Event::Progress(id) => self.carrier(id).into_iter().for_each(|carrier| carrier.progress()),
            Event::Closed(id, why) => {
                if let Some(carrier) = self.carrier(id) {
                    carrier.failed(why);
                }
                self.lost(id);
            }
        }
    }

    fn trouble(&self, trouble: Option<String>) {
        self.report(trouble);
    }

    fn failed(&self) {
        let trouble = format!("the iSER portal at {} has failed, and is opened again", self.address);
        log!(error, "{trouble}");
        self.report(Some(trouble));
        let all: Vec<ConnectionId> = self.carriers.borrow().keys().copied().collect();
        all.into_iter().for_each(|id| self.lost(id));
        // It is free again when the last command that uses it has ended.
        self.port.take().into_iter().for_each(|port| port.close());
        self.core.reactor().spawn(self.me().reopen());
    }
}

//! An engine on its UDP socket or its link, which all protocols at its address share: peers name the service that they
//! want. On an RDMA device, each protocol has a port of its own, because the device tells services apart.
//!
//! The check of a packet covers the header of IPv4, too. A socket that is not connected and does not fragment sends the
//! identification 0, so the check can be computed here. One address is enough for peers whose RDMA device is software
//! or an adapter: both send to the port 4791 of the address.

use crate::address::{Place, PortAddress, Site};
use crate::carrier::Carrier;
use crate::datagram::datagram;
use crate::device::port::DevicePort;
use crate::engine::{Engine, Outgoing};
use crate::limits::BURST;
use crate::live;
use crate::mad;
use crate::provider::Provider;
pub use crate::provider::Upper;
use crate::runs::Planned;
use crate::socket::{NoSocket, Opened, OpenedCarrier, OtherSettings, ServiceInUse};
use crate::work::Work;
use lunar_core::mem::Chunks;
use lunar_core::metadata::MetadataStore;
use lunar_core::time::Instant;
use lunar_link::MacAddress;
use lunar_reactor::{Reactor, log};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// The pause before memory for messages of the connection manager is asked for again.
const SHORTAGE: Duration = Duration::from_millis(1);

/// The ports of a core, by their addresses.
#[derive(Default)]
struct Addresses(RefCell<BTreeMap<Site, Weak<Shared>>>);

/// An engine on its carrier, which several protocols share.
struct Shared {
    reactor: Reactor,
    address: PortAddress,
    carrier: Carrier,
    engine: RefCell<Engine>,
    /// The station that has the address as well, as it was reported.
    conflict: Cell<Option<MacAddress>>,
    /// Memory for messages of the connection manager.
    chunks: Chunks,
    work: Work,
    /// The task that keeps the record of live connections.
    recorder: Cell<Option<Waker>>,
    /// The protocols above, by the TCP ports of their services.
    services: RefCell<BTreeMap<u16, Weak<dyn Upper>>>,
}

/// The port of a protocol: its share of an engine, or a port of its own on an RDMA device.
pub struct Port {
    address: PortAddress,
    kind: Kind,
    reactor: Reactor,
    is_closed: Cell<bool>,
}

enum Kind {
    Engine(Rc<Shared>),
    Device(Rc<DevicePort>),
}

impl Port {
    /// Attaches a socket or link to a core, or shares the one that another protocol has attached at this address of
    /// this core. `seed` are random bits. `record` keeps the live connections of the address: those that a process
    /// before has left are disconnected.
    ///
    /// # Errors
    /// Errors of the driver; the address or the service is in use ([`NoSocket`], [`OtherSettings`], [`ServiceInUse`]).
    pub fn attach(
        reactor: &Reactor,
        opened: Opened,
        seed: u64,
        record: Arc<dyn MetadataStore>,
        upper: Weak<dyn Upper>,
    ) -> io::Result<Rc<Self>> {
        let Opened { address, carrier } = opened;
        let kind = match carrier {
            Ok(OpenedCarrier::Device(listener)) => Kind::Device(DevicePort::attach(reactor, listener, seed, upper)?),
            Err(why) if matches!(address.place, Place::Device(_)) => {
                return Err(io::Error::new(why.kind(), NoSocket { address, why }));
            }
            carrier => Kind::Engine(Self::share(reactor, &address, carrier, (seed, record), upper)?),
        };
        Ok(Rc::new(Self { address, kind, reactor: reactor.clone(), is_closed: Cell::default() }))
    }

    /// Shares an engine at an address, or starts one.
    fn share(
        reactor: &Reactor,
        address: &PortAddress,
        carrier: io::Result<OpenedCarrier>,
        (seed, record): (u64, Arc<dyn MetadataStore>),
        upper: Weak<dyn Upper>,
    ) -> io::Result<Rc<Shared>> {
        let addresses: Rc<Addresses> = reactor.common();
        let (site, service) = (address.site(), address.at.port());
        let known = addresses.0.borrow().get(&site).and_then(Weak::upgrade);
        let shared = match known.filter(|shared| !shared.carrier.closed.has_come()) {
            Some(shared) if shared.address.place != address.place => {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, OtherSettings(site)));
            }
            Some(shared) => shared,
            None => {
                let refused = |why: io::Error| io::Error::new(why.kind(), NoSocket { address: address.clone(), why });
                let shared = Shared::start(reactor, address, carrier.map_err(refused)?, seed, record)?;
                addresses.0.borrow_mut().insert(site, Rc::downgrade(&shared));
                shared
            }
        };
        match shared.services.borrow_mut().entry(service) {
            Entry::Occupied(_) => {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, ServiceInUse(address.clone())));
            }
            Entry::Vacant(free) => _ = free.insert(upper),
        }
        Ok(shared)
    }

    /// The TCP port of its service.
    fn service(&self) -> u16 {
        self.address.at.port()
    }

    /// Takes requests for the service, as the device of the port with this number: its GUID is assigned locally.
    pub fn serve_as(&self, number: u32) {
        /// The first byte of a GUID that is assigned locally, to one device.
        const LOCALLY_ASSIGNED: u8 = 0x02;
        let [a, b, c, d] = number.to_be_bytes();
        self.serve([LOCALLY_ASSIGNED, 0, 0, 0, a, b, c, d]);
    }

    /// Takes requests for the service, as a device with this GUID. A device of the kernel has its own, and passes
    /// requests on from the beginning.
    pub fn serve(&self, guid: [u8; 8]) {
        match &self.kind {
            Kind::Engine(shared) => {
                shared.engine.borrow_mut().serve(self.service(), guid);
                // Trouble that was found before has a name now.
                shared.conflict.set(None);
                shared.wake();
            }
            Kind::Device(_) => {}
        }
    }

    /// Uses the connections, and sends what there is to send then.
    pub fn with<T>(&self, act: impl FnOnce(&mut dyn Provider, Instant) -> T) -> T {
        let now = self.reactor.now();
        match &self.kind {
            Kind::Engine(shared) => {
                let result = act(&mut *shared.engine.borrow_mut(), now);
                shared.wake();
                result
            }
            Kind::Device(port) => {
                let result = act(&mut *port.connections.borrow_mut(), now);
                port.wake();
                result
            }
        }
    }

    /// Looks at the connections.
    pub fn look<T>(&self, look: impl FnOnce(&dyn Provider) -> T) -> T {
        match &self.kind {
            Kind::Engine(shared) => look(&*shared.engine.borrow()),
            Kind::Device(port) => look(&*port.connections.borrow()),
        }
    }

    /// Ends the share of the protocol, whose connections have ended. The last protocol closes the socket or link:
    /// packets that are queued then are not sent.
    pub fn close(&self) {
        if self.is_closed.replace(true) {
            return;
        }
        let shared = match &self.kind {
            Kind::Engine(shared) => shared,
            Kind::Device(port) => return port.close(),
        };
        shared.services.borrow_mut().remove(&self.service());
        shared.engine.borrow_mut().withdraw(self.service());
        if shared.services.borrow().is_empty() {
            shared.close();
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// Starts an engine on its carrier.
    fn start(
        reactor: &Reactor,
        address: &PortAddress,
        carrier: OpenedCarrier,
        seed: u64,
        record: Arc<dyn MetadataStore>,
    ) -> io::Result<Rc<Self>> {
        let carrier = Carrier::attach(reactor, address.at.ip(), carrier)?;
        let port = Rc::new(Self {
            reactor: reactor.clone(),
            address: address.clone(),
            engine: RefCell::new(Engine::new(carrier.mtu(), seed)),
            carrier,
            conflict: Cell::default(),
            chunks: Chunks::default(),
            work: Work::default(),
            recorder: Cell::default(),
            services: RefCell::default(),
        });
        let stale = record.load(live::NAME).map(|bytes| live::parse(&bytes)).unwrap_or_default();
        port.engine.borrow_mut().end_stale(&stale, reactor.now());
        let (receiver, sender, driven, recorder) = (port.clone(), port.clone(), port.clone(), port.clone());
        reactor.spawn(async move { receiver.receive().await });
        reactor.spawn(async move { sender.carrier.send_queued(|| sender.wake()).await });
        reactor.spawn(async move { driven.drive().await });
        reactor.spawn(async move { recorder.keep_record(&*record).await });
        Ok(port)
    }

    /// The protocol above that has a service.
    fn upper(&self, service: u16) -> Option<Rc<dyn Upper>> {
        self.services.borrow().get(&service)?.upgrade()
    }

    /// The protocols above.
    fn uppers(&self) -> Vec<Rc<dyn Upper>> {
        self.services.borrow().values().filter_map(Weak::upgrade).collect()
    }

    async fn receive(self: Rc<Self>) {
        let received = self.carrier.receive(|peer, packet| self.take(peer, packet), || self.wake());
        if received.await.is_err() {
            self.uppers().iter().for_each(|upper| upper.failed());
        }
    }

    fn take(&self, peer: IpAddr, packet: &[u8]) {
        let message = self.engine.borrow_mut().receive(peer, packet, self.reactor.now());
        // A message and an event never come with the same packet, so their order is kept.
        if let Some((id, message)) = message {
            let service = self.engine.borrow().service(id);
            let upper = service.and_then(|service| self.upper(service));
            upper.into_iter().for_each(|upper| upper.message(id, &message));
        }
        self.report();
    }

    fn report(&self) {
        loop {
            let event = self.engine.borrow_mut().poll_event();
            let Some((service, event)) = event else { return };
            if let Some(upper) = self.upper(service) {
                upper.event(event);
            }
        }
    }

    /// Reports that another station has the address, or that none has it any more.
    fn report_conflict(&self) {
        let conflict = self.carrier.conflict();
        if self.conflict.replace(conflict) == conflict {
            return;
        }
        let trouble = conflict.map(|station| {
            format!(
                "{} is also the address of the station {station}: give one of them another address",
                self.address.site()
            )
        });
        trouble.iter().for_each(|trouble| log!(error, "{trouble}"));
        self.uppers().iter().for_each(|upper| upper.trouble(trouble.clone()));
    }

    /// There may be something to send, or a timer may be earlier.
    fn wake(&self) {
        self.work.wake();
    }

    /// Sends packets and looks at timers, until the port is closed.
    async fn drive(self: Rc<Self>) {
        while !self.carrier.closed.has_come() {
            self.work.begin();
            let is_short = !self.send();
            let now = self.reactor.now();
            let at = if is_short { Some(now + SHORTAGE) } else { self.deadline() };
            self.work.until(&self.reactor, at, &self.carrier.closed).await;
            let now = self.reactor.now();
            let is_due = self.deadline().is_some_and(|deadline| deadline <= now);
            if is_due {
                self.engine.borrow_mut().expire(now);
                self.carrier.expire(now);
            }
            self.report();
            self.report_conflict();
            if self.engine.borrow().has_changed() {
                self.recorder.take().into_iter().for_each(Waker::wake);
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let own = self.engine.borrow().deadline();
        own.into_iter().chain(self.carrier.deadline()).min()
    }

    /// Writes the live connections down whenever they have changed.
    async fn keep_record(&self, record: &dyn MetadataStore) {
        let changed = || {
            poll_fn(|cx| {
                if self.engine.borrow_mut().take_changed() {
                    return Poll::Ready(());
                }
                self.recorder.set(Some(cx.waker().clone()));
                Poll::Pending
            })
        };
        let (mut has_failed, mut last) = (false, None);
        while self.carrier.closed.unless(changed()).await.is_some() {
            let bytes = live::bytes(&self.engine.borrow().live());
            // Connections that were never established come and go without a login.
            if last.as_ref() == Some(&bytes) {
                continue;
            }
            last = Some(bytes.clone());
            let result = record.save(live::NAME, bytes).await;
            if let Err(why) = result
                && !std::mem::replace(&mut has_failed, true)
            {
                log!(
                    warning,
                    "the live connections of {} cannot be written to the state folder: if Lunar is killed, initiators \
                     notice its end by time-outs ({why:?})",
                    self.address.site()
                );
            }
        }
    }

    /// Sends packets, as long as there is room; returns whether there was memory for them.
    fn send(&self) -> bool {
        let (now, arena) = (self.reactor.now(), self.reactor.arena());
        loop {
            let mut engine = self.engine.borrow_mut();
            if engine.has_messages() && !self.chunks.has_room(arena, mad::LEN) {
                return false;
            }
            let most = self.carrier.room().min(BURST);
            if engine.poll_burst(now, most, |outgoing| self.queue_packet(outgoing)) == 0 {
                break;
            }
        }
        let counters = self.engine.borrow_mut().take_counters();
        self.reactor.stats().rdma_repeated.add(counters.repeated);
        self.reactor.stats().rdma_strange.add(counters.strange);
        self.carrier.count();
        true
    }

    fn queue_packet(&self, outgoing: Outgoing) {
        let (peer, arena) = (outgoing.peer, self.reactor.arena());
        let (place, copy) =
            (|next: &Planned| self.carrier.place(next), |bytes: &[u8]| self.chunks.copy(arena, &[bytes]));
        if let Some(packet) = datagram(self.carrier.local(), outgoing, place, copy) {
            self.carrier.send(peer, packet);
        }
    }

    fn close(&self) {
        self.carrier.close();
        self.wake();
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({}, service {})", self.address.site(), self.service())
    }
}

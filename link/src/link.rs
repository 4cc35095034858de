//! A link on a core.

use crate::address::LinkAddress;
use crate::frame::{Frame, HEADER_LEN, Header};
use lunar_core::io::{Completion, Fault};
use lunar_core::mem::{Sg, Slice};
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use lunar_reactor::endpoint::packet::{DirectLink, Filter, PacketConfig, PacketLink, RingFormat, Station, XdpConfig};
use lunar_reactor::endpoint::{
    BATCH_MAX, Counters, Datagram, Endpoint, MacAddress, ReceiveBatch, SendBatch, VlanTag, Wrapped,
};
use lunar_reactor::op::Handle;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The largest payload of a frame: jumbo frames as switches forward them (9,216 bytes).
pub const MTU_MAX: usize = 9216;
/// The smallest payload that every link carries (RFC 894).
pub const MTU_MIN: usize = 1500;
/// The most frames that wait to be sent. Protocols bound their commands in progress; frames beyond this number come of
/// floods, and are dropped and counted.
pub const SEND_QUEUE_MAX: usize = 4096;
/// The most bytes of frames that wait to be sent: three milliseconds of a link of 10 Gbit/s. Answers of reads keep
/// memory of the core until they are sent.
pub const SEND_BYTES_MAX: usize = 4 << 20;
/// The fewest frames that one receive has memory for: the memory for jumbo frames is bounded.
const RECEIVE_MIN: usize = 16;
/// Bytes of memory for the frames of one receive.
const RECEIVE_BYTES: usize = 256 << 10;

/// The settings of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    /// The link.
    pub address: LinkAddress,
    /// The EtherTypes of received frames.
    pub types: Vec<u16>,
    /// Frames that are received in addition to those to the own address and to the broadcast address.
    pub filters: Vec<Filter>,
    /// The VLAN; `None`: frames without a tag.
    pub vlan: Option<u16>,
    /// The MAC address of a link without an interface; `None`: derived from its name. An interface has its own.
    pub mac: Option<MacAddress>,
    /// The most bytes behind the header of a frame; `None`: as many as the interface has, [`MTU_MIN`] without one.
    pub mtu: Option<usize>,
}

/// A link that is open, on its way to its core.
#[derive(Debug)]
pub struct OpenedLink {
    endpoint: Endpoint,
    types: Vec<u16>,
    filters: Vec<Filter>,
    vlan: Option<u16>,
    mtu: Option<usize>,
}

/// Opens the link of these settings.
fn open(config: &LinkConfig) -> io::Result<PacketLink> {
    let mac = config.mac.unwrap_or_else(|| config.address.derived_mac());
    match &config.address {
        LinkAddress::Interface(name) => PacketLink::interface(&PacketConfig {
            interface: name.clone(),
            types: config.types.clone(),
            filters: config.filters.clone(),
            format: RingFormat::Frames,
        }),
        LinkAddress::Xdp(name) => PacketLink::xdp(&XdpConfig {
            interface: name.clone(),
            types: config.types.clone(),
            vlan: config.vlan,
            filters: config.filters.clone(),
        }),
        LinkAddress::Tap(name) => PacketLink::tap(name, mac),
        LinkAddress::Unix { path, peer } => {
            let mtu = config.mtu.unwrap_or(MTU_MIN).clamp(MTU_MIN, MTU_MAX);
            PacketLink::unix(path, peer, Station { mac, mtu })
        }
    }
}

/// Opens a link for a program without a reactor. Its frames have no VLAN tag.
///
/// # Errors
/// Errors of [`OpenedLink::open`].
pub fn open_direct(config: &LinkConfig) -> io::Result<DirectLink> {
    open(config).map(DirectLink::new)
}

impl OpenedLink {
    /// Opens a link, on any thread.
    ///
    /// # Errors
    /// Errors of [`PacketLink::interface`], [`PacketLink::xdp`], [`PacketLink::unix`] and [`PacketLink::tap`]. The
    /// messages name the command that helps, for instance without the capability CAP_NET_RAW.
    pub fn open(config: &LinkConfig) -> io::Result<Self> {
        Ok(Self::on(Endpoint::Packet(open(config)?), config))
    }

    /// A link on an endpoint that exists, such as a station of the simulator. The address of the settings is not used.
    #[must_use]
    pub fn on(endpoint: Endpoint, config: &LinkConfig) -> Self {
        let LinkConfig { types, filters, vlan, mtu, .. } = config.clone();
        Self { endpoint, types, filters, vlan, mtu }
    }
}

/// A link on a core. Frames of other stations, other EtherTypes and other VLANs do not reach its user.
pub struct Link {
    reactor: Reactor,
    handle: Handle,
    types: Vec<u16>,
    filters: RefCell<Vec<Filter>>,
    vlan: Option<u16>,
    mac: MacAddress,
    mtu: usize,
    /// Frames that wait to be sent.
    queue: RefCell<VecDeque<Wrapped>>,
    /// The bytes of these frames.
    queued_bytes: Cell<usize>,
    /// The task that sends.
    sender: Cell<Option<Waker>>,
    /// Tasks that wait for room in the queue.
    waiting: RefCell<Vec<Waker>>,
    /// Frames that were dropped, because too many waited.
    overflows: Cell<u64>,
    closed: End,
}

impl Link {
    /// Attaches a link to a core.
    ///
    /// # Errors
    /// Errors of the driver, for instance when the interface was removed meanwhile.
    pub fn attach(reactor: &Reactor, opened: OpenedLink) -> io::Result<Rc<Self>> {
        let OpenedLink { endpoint, types, filters, vlan, mtu } = opened;
        let handle = reactor.attach(endpoint)?;
        let status = reactor.driver().status(&handle)?;
        let own = status.mtu.clamp(MTU_MIN, MTU_MAX);
        let link = Rc::new(Self {
            reactor: reactor.clone(),
            handle,
            types,
            filters: RefCell::new(filters),
            vlan,
            mac: status.mac.ok_or(io::ErrorKind::InvalidInput)?,
            mtu: mtu.map_or(own, |mtu| mtu.clamp(MTU_MIN, own)),
            queue: RefCell::default(),
            queued_bytes: Cell::default(),
            sender: Cell::default(),
            waiting: RefCell::default(),
            overflows: Cell::default(),
            closed: End::default(),
        });
        let sender = link.clone();
        reactor.spawn(async move { sender.send_queued().await });
        Ok(link)
    }

    /// The MAC address of this end.
    #[must_use]
    pub fn mac(&self) -> MacAddress {
        self.mac
    }

    /// Receives, or no longer receives, the frames of a filter in addition to those of the others.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn set_filter(&self, filter: Filter, is_wanted: bool) -> io::Result<()> {
        let is_set = self.filters.borrow().contains(&filter);
        if is_set == is_wanted {
            return Ok(());
        }
        self.reactor.driver().set_filter(&self.handle, filter, is_wanted)?;
        let mut filters = self.filters.borrow_mut();
        filters.retain(|known| *known != filter);
        filters.extend(is_wanted.then_some(filter));
        Ok(())
    }

    /// The most bytes behind the header of a frame.
    #[must_use]
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// The frames that were moved and dropped.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.reactor.driver().status(&self.handle).map(|status| status.counters).unwrap_or_default();
        counters.send_drops += self.overflows.get();
        counters
    }

    /// Whether it was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.has_come()
    }

    /// Closes it: receives end, and no more frames are sent.
    pub fn close(&self) {
        self.closed.come();
        self.waiting.take().into_iter().for_each(Waker::wake);
        self.reactor.driver().cancel(&self.handle);
    }

    /// Passes received frames to `each`, batch by batch, until the link is closed; `after` is called after each batch.
    ///
    /// # Errors
    /// Why nothing can be received any more, for instance because the interface was removed.
    pub async fn receive(&self, each: impl FnMut(Frame), after: impl FnMut()) -> Result<(), Fault> {
        let room = HEADER_LEN + self.mtu;
        self.receive_with(ReceiveBatch::new(room, Self::frames(room)), each, after).await
    }

    /// As [`Link::receive`], for a user that drops each frame in `each`, and that has no use for frames with more than
    /// `most` bytes behind their header.
    ///
    /// # Errors
    /// As there.
    pub async fn receive_transient(
        &self,
        most: usize,
        each: impl FnMut(Frame),
        after: impl FnMut(),
    ) -> Result<(), Fault> {
        let room = HEADER_LEN + self.mtu.min(most);
        self.receive_with(ReceiveBatch::transient(room, Self::frames(room)), each, after).await
    }

    /// How many frames of this length one receive has memory for.
    fn frames(room: usize) -> usize {
        (RECEIVE_BYTES / room).clamp(RECEIVE_MIN, BATCH_MAX)
    }

    async fn receive_with(
        &self,
        mut batch: Box<ReceiveBatch>,
        mut each: impl FnMut(Frame),
        mut after: impl FnMut(),
    ) -> Result<(), Fault> {
        let mut completion = Completion::new();
        while !self.closed.has_come() {
            let received = self.closed.unless(self.reactor.receive_batch(&self.handle, batch, &mut completion)).await;
            let Some((result, back)) = received else { return Ok(()) };
            batch = back;
            if let Err(why) = result {
                return if self.closed.has_come() { Ok(()) } else { Err(why) };
            }
            batch.drain().filter_map(|datagram| self.taken(datagram)).for_each(&mut each);
            after();
        }
        Ok(())
    }

    /// The frame of a datagram, if it is for this link.
    fn taken(&self, datagram: Datagram) -> Option<Frame> {
        let mut payload: Slice = datagram.data.into_pieces().next()?;
        let header = Header::parse(&payload)?;
        // Priority tags have the identifier 0: such a frame belongs to no VLAN.
        let vlan = datagram.vlan.map(VlanTag::id).filter(|id| *id != 0);
        let is_ours = header.destination == self.mac
            || header.destination == MacAddress::BROADCAST
            || self.filters.borrow().iter().any(|filter| match filter {
                Filter::Unicast(mac) | Filter::Group(mac) => header.destination == *mac,
                Filter::AllGroups => header.destination.is_group(),
                Filter::Promiscuous => true,
            });
        let is_known = self.types.is_empty() || self.types.contains(&header.ether_type);
        let is_from_station = !header.source.is_group() && header.source != self.mac;
        if vlan != self.vlan || !is_ours || !is_known || !is_from_station {
            return None;
        }
        payload.advance(HEADER_LEN);
        Some(Frame { header, payload })
    }

    /// Queues a frame, whose first bytes are its header; it is sent when the current turn of the core ends. Returns
    /// false when too many frames wait: the frame is dropped.
    pub fn send(&self, frame: Sg) -> bool {
        self.send_wrapped(frame.into())
    }

    /// As [`Link::send`].
    pub fn send_wrapped(&self, frame: Wrapped) -> bool {
        let mut queue = self.queue.borrow_mut();
        let bytes = self.queued_bytes.get() + frame.len();
        if queue.len() >= SEND_QUEUE_MAX || bytes > SEND_BYTES_MAX || self.closed.has_come() {
            self.overflows.set(self.overflows.get() + 1);
            return false;
        }
        self.queued_bytes.set(bytes);
        queue.push_back(frame);
        drop(queue);
        if let Some(waker) = self.sender.take() {
            waker.wake();
        }
        true
    }

    /// The number of frames that wait to be sent.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.borrow().len()
    }

    /// Waits until the frames that wait to be sent have fewer bytes than this and are few, or the link is closed.
    pub async fn until_below(&self, bytes: usize) {
        poll_fn(|cx| {
            if self.is_below(bytes) || self.closed.has_come() {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Whether the frames that wait to be sent have fewer bytes than this and are few.
    #[must_use]
    pub fn is_below(&self, bytes: usize) -> bool {
        self.queued_bytes.get() < bytes && self.queued() < SEND_QUEUE_MAX / 2
    }

    async fn until_queued(&self) {
        poll_fn(|cx| {
            if !self.queue.borrow().is_empty() {
                return Poll::Ready(());
            }
            self.sender.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Sends what is queued until the link is closed.
    async fn send_queued(&self) {
        let (mut batch, mut completion) = (SendBatch::new(), Completion::new());
        let vlan = self.vlan.map(VlanTag::new);
        while self.closed.unless(self.until_queued()).await.is_some() {
            // The answers of this turn go out together.
            self.reactor.end_of_turn().await;
            {
                let mut queue = self.queue.borrow_mut();
                let count = queue.len().min(BATCH_MAX);
                queue.drain(..count).for_each(|frame| {
                    self.queued_bytes.set(self.queued_bytes.get() - frame.len());
                    batch.push(Datagram { vlan, ..frame.into() });
                });
            }
            self.waiting.take().into_iter().for_each(Waker::wake);
            let (result, back) = self.reactor.send_batch(&self.handle, batch, &mut completion).await;
            batch = back;
            if result.is_err() {
                // The interface is down: its peers send again what matters to them.
                self.overflows.set(self.overflows.get() + batch.len() as u64);
                batch = SendBatch::new();
            }
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({} with {} bytes)", self.mac, self.mtu)
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;

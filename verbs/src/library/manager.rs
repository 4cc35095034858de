//! The connection manager: event channels, listeners, requests for connections.

use super::layout::{
    ADDR_CHANGE, CONNECT_ERROR, CONNECT_REQUEST, CmEvent, CmId, ConnectionParam, DEVICE_REMOVAL, DISCONNECTED,
    ESTABLISHED, EventQueue, PORTS_TCP, REJECTED, SocketAddress, TIMEWAIT_EXIT, TRANSPORT_IB, UNREACHABLE,
};
use super::{Libraries, check};
use crate::error::DeviceError;
use rustix::io::Errno;
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Requests that wait in the kernel for an answer, for each listener: more than a port takes at once.
const BACKLOG: i32 = 128;
/// `AF_INET` and `AF_INET6` of Linux.
const INET: u16 = 2;
const INET6: u16 = 10;

/// A queue of events of the connection manager.
pub struct EventChannel {
    raw: NonNull<EventQueue>,
    pub(super) libraries: &'static Libraries,
}

// SAFETY: the functions of librdmacm may be called by any thread, also at the same time.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// Opens a channel whose [`EventChannel::next`] does not wait.
    ///
    /// # Errors
    /// [`DeviceError::Library`], [`DeviceError::NoDevice`], [`DeviceError::NoManager`].
    pub fn open() -> Result<Arc<Self>, DeviceError> {
        let libraries = Libraries::get()?;
        // Without the modules of the kernel, there is no list at all.
        if libraries.devices().unwrap_or_default() == 0 {
            return Err(DeviceError::NoDevice);
        }
        // SAFETY: the function has no conditions.
        let raw = unsafe { (libraries.manager.rdma_create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(|| DeviceError::NoManager(io::Error::last_os_error()))?;
        let channel = Self { raw, libraries };
        rustix::io::ioctl_fionbio(channel.fd(), true).map_err(|why| DeviceError::NoManager(why.into()))?;
        Ok(Arc::new(channel))
    }

    /// The descriptor: readable when there is an event.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open as long as this value exists.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }

    /// The next event, if there is one.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn next(self: &Arc<Self>) -> io::Result<Option<Event>> {
        let manager = &self.libraries.manager;
        let mut event: *mut CmEvent = null_mut();
        // SAFETY: the channel is open, and the event is written.
        match check(unsafe { (manager.rdma_get_cm_event)(self.raw.as_ptr(), &raw mut event) }) {
            Ok(()) => {}
            Err(why) if matches!(Errno::from_io_error(&why), Some(Errno::AGAIN | Errno::INTR)) => return Ok(None),
            Err(why) => return Err(why),
        }
        // SAFETY: the event is one of the library until it is acknowledged.
        let event = unsafe { &mut *event };
        let found = self.translate(event);
        // SAFETY: the event was not acknowledged before, and nothing refers to it any more: its data was copied.
        check(unsafe { (manager.rdma_ack_cm_event)(event) })?;
        Ok(Some(found))
    }

    fn translate(self: &Arc<Self>, event: &CmEvent) -> Event {
        let key = Key(event.id.addr());
        match (event.event, NonNull::new(event.id)) {
            (CONNECT_REQUEST, Some(raw)) => {
                let id = Identifier { raw, channel: self.clone() };
                let connection = &event.connection;
                let private = match connection.private.cast::<u8>() {
                    data if data.is_null() => Vec::new(),
                    // SAFETY: the event has so many bytes of private data.
                    data => unsafe { std::slice::from_raw_parts(data, connection.private_len.into()) }.to_vec(),
                };
                let peer = id.peer();
                Event::Request(Request { peer, private, reads: connection.initiator_depth, id })
            }
            (ESTABLISHED, _) => Event::Established(key),
            (DISCONNECTED | TIMEWAIT_EXIT, _) => Event::Disconnected(key),
            (CONNECT_ERROR | UNREACHABLE | REJECTED, _) => Event::Failed(key, event.status),
            (DEVICE_REMOVAL, _) => Event::Removed,
            (ADDR_CHANGE, _) => Event::AddressChanged(key),
            (other, _) => Event::Other(other),
        }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: identifiers keep the channel, so none is left.
        unsafe { (self.libraries.manager.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventChannel")
    }
}

/// Names an [`Identifier`] in events.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key(usize);

/// An event of the connection manager.
#[derive(Debug)]
pub enum Event {
    /// A peer requests a connection.
    Request(Request),
    /// The peer is ready to use a connection that was accepted.
    Established(Key),
    /// The address has moved to another device, as that of a bond does. A listener or a connection stays at the old
    /// one.
    AddressChanged(Key),
    /// A connection has ended, or the time after its end.
    Disconnected(Key),
    /// An accepted connection was not established: the error of the operating system.
    Failed(Key, i32),
    /// The device is removed.
    Removed,
    /// Another one, by its number.
    Other(u32),
}

/// A request for a connection.
#[derive(Debug)]
pub struct Request {
    /// The connection. Dropping it rejects the request.
    pub id: Identifier,
    /// The peer.
    pub peer: IpAddr,
    /// The data of the protocol above.
    pub private: Vec<u8>,
    /// RDMA READs that the peer executes at the same time.
    pub reads: u8,
}

/// A listener, or a connection.
pub struct Identifier {
    raw: NonNull<CmId>,
    channel: Arc<EventChannel>,
}

// SAFETY: the functions of librdmacm may be called by any thread, and this value has one owner.
unsafe impl Send for Identifier {}

impl Identifier {
    /// A listener at an address and a TCP port, which takes no requests yet.
    ///
    /// # Errors
    /// [`DeviceError::NoAddress`], [`DeviceError::InUse`], [`DeviceError::OtherTransport`], [`DeviceError::Call`].
    pub fn bind(channel: &Arc<EventChannel>, at: SocketAddr) -> Result<Self, DeviceError> {
        let manager = &channel.libraries.manager;
        let mut raw = null_mut();
        // SAFETY: the channel is open, and the identifier is written.
        let made = unsafe { (manager.rdma_create_id)(channel.raw.as_ptr(), &raw mut raw, null_mut(), PORTS_TCP) };
        check(made).map_err(|why| DeviceError::Call("rdma_create_id", why))?;
        let missing = || DeviceError::Call("rdma_create_id", io::ErrorKind::OutOfMemory.into());
        let id = Self { raw: NonNull::new(raw).ok_or_else(missing)?, channel: channel.clone() };
        let address = socket_address(at);
        // SAFETY: the identifier is one, and the address has a family and as many bytes as that requires.
        let bound = unsafe { (manager.rdma_bind_addr)(raw, (&raw const address).cast()) };
        check(bound).map_err(|why| match Errno::from_io_error(&why) {
            Some(Errno::ADDRINUSE) => DeviceError::InUse(at.ip(), at.port()),
            Some(Errno::NODEV | Errno::ADDRNOTAVAIL) => DeviceError::NoAddress(at.ip(), why),
            Some(Errno::ACCESS | Errno::PERM) => DeviceError::NoManager(Errno::ACCESS.into()),
            _ => DeviceError::Call("rdma_bind_addr", why),
        })?;
        let Some((name, transport)) = id.device() else {
            return Err(DeviceError::NoAddress(at.ip(), Errno::NODEV.into()));
        };
        if transport != TRANSPORT_IB {
            return Err(DeviceError::OtherTransport(name));
        }
        Ok(id)
    }

    /// The name of its device.
    #[must_use]
    pub fn device_name(&self) -> String {
        self.device().map(|(name, _)| name).unwrap_or_default()
    }

    fn device(&self) -> Option<(String, i32)> {
        // SAFETY: an identifier that is bound has a context, which has a device with a name that ends with a zero.
        unsafe {
            let device = self.raw.as_ref().verbs.as_ref()?.device.as_ref()?;
            let name = CStr::from_ptr(device.name.as_ptr()).to_string_lossy().into_owned();
            Some((name, device.transport))
        }
    }

    pub(super) fn raw(&self) -> NonNull<CmId> {
        self.raw
    }

    pub(super) fn libraries(&self) -> &'static Libraries {
        self.channel.libraries
    }

    /// The channel of its events.
    #[must_use]
    pub fn channel(&self) -> &Arc<EventChannel> {
        &self.channel
    }

    /// Its name in events.
    #[must_use]
    pub fn key(&self) -> Key {
        Key(self.raw.addr().get())
    }

    /// Takes requests from now on, at the address to which it is bound.
    ///
    /// # Errors
    /// [`DeviceError::InUse`], [`DeviceError::Call`].
    pub fn listen(&self, at: SocketAddr) -> Result<(), DeviceError> {
        // SAFETY: the identifier is bound.
        let listens = check(unsafe { (self.libraries().manager.rdma_listen)(self.raw.as_ptr(), BACKLOG) });
        listens.map_err(|why| match Errno::from_io_error(&why) {
            Some(Errno::ADDRINUSE | Errno::BUSY) => DeviceError::InUse(at.ip(), at.port()),
            _ => DeviceError::Call("rdma_listen", why),
        })
    }

    fn peer(&self) -> IpAddr {
        // SAFETY: the identifier is one, and the library writes its address before it is known here.
        ip_of(unsafe { &self.raw.as_ref().destination })
    }

    /// Rejects a request, with data for the protocol above. A peer that has given up meanwhile needs no answer.
    pub fn reject(&self, private: &[u8]) {
        let len = u8::try_from(private.len()).unwrap_or_default();
        // SAFETY: the identifier is that of a request, and there are so many bytes, which the library copies.
        unsafe { (self.libraries().manager.rdma_reject)(self.raw.as_ptr(), private.as_ptr().cast(), len) };
    }

    /// Accepts a request, for which a queue pair was made: with data for the protocol above, and so many RDMA READs at
    /// the same time.
    pub(super) fn accept(&self, private: &[u8], reads: u8) -> io::Result<()> {
        /// Repetitions: as often as can be said. For a peer that is not ready it means without an end, and the caller
        /// limits the time.
        const RETRIES: u8 = 7;
        let mut param = ConnectionParam {
            private: private.as_ptr().cast(),
            private_len: u8::try_from(private.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
            responder_resources: 0,
            initiator_depth: reads,
            flow_control: 1,
            retries: RETRIES,
            not_ready_retries: RETRIES,
            is_shared: 0,
            qp: 0,
        };
        // SAFETY: the identifier is that of a request with a queue pair, and the library copies the private data.
        check(unsafe { (self.libraries().manager.rdma_accept)(self.raw.as_ptr(), &raw mut param) })
    }

    /// Disconnects: the peer learns of it, and requests that the device has fail.
    pub fn disconnect(&self) {
        // SAFETY: the identifier is that of a connection. Without one, the function has no effect.
        unsafe { (self.libraries().manager.rdma_disconnect)(self.raw.as_ptr()) };
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // SAFETY: events are acknowledged when they were taken, a queue pair keeps its identifier, and nothing uses the
        // identifier any more.
        unsafe { (self.libraries().manager.rdma_destroy_id)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identifier({:x})", self.key().0)
    }
}

/// The bytes of an address (`struct sockaddr_in`, `struct sockaddr_in6`).
fn socket_address(at: SocketAddr) -> SocketAddress {
    let mut bytes = [0; 128];
    let port = at.port().to_be_bytes();
    match at {
        SocketAddr::V4(v4) => {
            bytes[..2].copy_from_slice(&INET.to_ne_bytes());
            bytes[4..8].copy_from_slice(&v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            bytes[..2].copy_from_slice(&INET6.to_ne_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
        }
    }
    bytes[2..4].copy_from_slice(&port);
    SocketAddress(bytes)
}

fn ip_of(address: &SocketAddress) -> IpAddr {
    let bytes = &address.0;
    let part = |range: std::ops::Range<usize>| bytes[range].iter();
    match u16::from_ne_bytes([bytes[0], bytes[1]]) {
        INET6 => {
            let bits = part(8..24).fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
            IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical()
        }
        // Another family has no such peers.
        _ => Ipv4Addr::from_bits(part(4..8).fold(0, |bits, byte| bits << 8 | u32::from(*byte))).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_kernel() {
        for text in ["192.0.2.1:4420", "[2001:db8::1]:5555"] {
            let at: SocketAddr = text.parse().expect(text);
            let bytes = socket_address(at);
            assert_eq!((ip_of(&bytes), &bytes.0[2..4]), (at.ip(), &at.port().to_be_bytes()[..]));
        }
        let mapped: SocketAddr = "[::ffff:192.0.2.7]:1".parse().expect("right");
        assert_eq!(ip_of(&socket_address(mapped)), IpAddr::from([192, 0, 2, 7]));
    }

    #[test]
    fn a_machine_without_devices_says_so() {
        match EventChannel::open() {
            Err(why @ (DeviceError::Library(..) | DeviceError::NoDevice | DeviceError::NoManager(_))) => {
                assert!(!why.to_string().is_empty());
            }
            Err(why) => panic!("{why}"),
            Ok(channel) => {
                assert!(channel.next().expect("no event").is_none());
                let none = Identifier::bind(&channel, ([192, 0, 2, 77], 4420).into());
                assert!(matches!(none, Err(DeviceError::NoAddress(..))), "{none:?}");
            }
        }
    }
}

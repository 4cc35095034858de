//! Messages of the connection manager (InfiniBand Architecture, volume 1, chapter 12, as the header files of Linux have
//! them), with the conventions of the RDMA connection manager of Linux.

use lunar_core::codes;
use lunar_core::wire::Cursor;
use lunar_core::wire::be::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a message.
pub const LEN: usize = 256;
/// Bytes of a message behind its head.
const BODY_LEN: usize = LEN - size_of::<Head>();
/// Bytes of a request that belong to the protocol above, behind the header of the RDMA connection manager.
pub const REQUEST_PRIVATE: usize = 56;
/// Bytes of a reply that belong to the protocol above.
pub const REPLY_PRIVATE: usize = 196;
/// Bytes of a reject that belong to the protocol above.
pub const REJECT_PRIVATE: usize = 148;
/// The service of a TCP port: these bits, and the port.
const TCP_PORTS: u64 = 0x0106_0000;
const PORT_BITS: u64 = 0xffff;

codes! {
    /// The type of a message.
    pub struct Attribute(u16) {
        REQUEST = 0x10, RECEIPT = 0x11, REJECT = 0x12, REPLY = 0x13, READY = 0x14, DISCONNECT = 0x15,
        DISCONNECTED = 0x16,
    }
}

codes! {
    /// Why a request is rejected.
    pub struct Reason(u16) {
        NO_RESOURCES = 3, TIMEOUT = 4, UNSUPPORTED = 5, INVALID_SERVICE = 8, INVALID_MTU = 26, CONSUMER = 28,
    }
}

codes! {
    /// Which message a reject is about.
    pub struct Rejected(u8) { REQUEST = 0x00, REPLY = 0x40, OTHER = 0x80 }
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    base_version: u8,
    class: u8,
    class_version: u8,
    method: u8,
    status: U16,
    specific: U16,
    transaction: U64,
    attribute: U16,
    reserved: U16,
    modifier: U32,
}

/// Base version, management class (communication management), class version and method (send) of every message.
const KIND: [u8; 4] = [1, 7, 2, 3];

/// A queue pair, or a number of a packet, before a byte of something else.
type Number = [u8; 3];

fn number(bytes: Number) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn number_bytes(number: u32) -> Number {
    let [_, bytes @ ..] = number.to_be_bytes();
    bytes
}

/// REQ.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RequestBody {
    id: U32,
    reserved: U32,
    service: U64,
    guid: [u8; 8],
    reserved2: U32,
    q_key: U32,
    qpn: Number,
    responder_resources: u8,
    eec: Number,
    initiator_depth: u8,
    remote_eec: Number,
    /// Remote time-out (5 bits), transport (2), flow control (1).
    transport: u8,
    psn: Number,
    /// Local time-out (5 bits), retries (3).
    retries: u8,
    p_key: U16,
    /// Path MTU (4 bits), RDC (1), retries while not ready (3).
    mtu: u8,
    manager_retries: u8,
    path: [u8; 88],
    /// Of the RDMA connection manager.
    header: ConnectHeader,
    private: [u8; REQUEST_PRIVATE],
}

/// The header of the RDMA connection manager.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ConnectHeader {
    version: u8,
    ip_version: u8,
    port: U16,
    addresses: [u8; 32],
}

/// REP.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ReplyBody {
    id: U32,
    peer_id: U32,
    q_key: U32,
    qpn: Number,
    reserved: u8,
    eec: Number,
    reserved2: u8,
    psn: Number,
    reserved3: u8,
    responder_resources: u8,
    initiator_depth: u8,
    /// Acknowledgement delay (5 bits), fail-over (2), flow control (1).
    delay: u8,
    /// Retries while not ready (3 bits), shared receive queue (1).
    retries: u8,
    guid: [u8; 8],
    private: [u8; REPLY_PRIVATE],
}

/// REJ.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RejectBody {
    id: U32,
    peer_id: U32,
    rejected: u8,
    information_len: u8,
    reason: U16,
    information: [u8; 72],
    private: [u8; REJECT_PRIVATE],
}

/// RTU, DREQ and DREP: the numbers of a connection; DREQ has the queue pair of the receiver.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct IdsBody {
    id: U32,
    peer_id: U32,
    qpn: Number,
    reserved: u8,
}

/// A request for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The number that the peer has given to the connection.
    pub id: u32,
    /// The TCP port of the service that is wanted; `None`: it is another kind of service.
    pub port: Option<u16>,
    /// The queue pair of the peer.
    pub qpn: u32,
    /// RDMA READs that the peer can have in progress.
    pub reads: u8,
    /// The number of the first packet that the peer expects.
    pub psn: u32,
    /// Whether it wants a reliable connection.
    pub is_reliable: bool,
    /// The code of the path MTU: 1 to 5 for 256 to 4096 bytes.
    pub mtu: u8,
    /// The data of the protocol above, padded.
    pub private: [u8; REQUEST_PRIVATE],
}

/// A reply to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The numbers of the connection: here, and at the peer.
    pub ids: (u32, u32),
    /// The queue pair here.
    pub qpn: u32,
    /// The number of the first packet that is expected here.
    pub psn: u32,
    /// RDMA READs that will be outstanding at most. The peer has resources for as many.
    pub reads: u8,
    /// The GUID of the device.
    pub guid: [u8; 8],
    /// The data of the protocol above, padded.
    pub private: [u8; REPLY_PRIVATE],
}

/// A reject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reject {
    /// The numbers of the connection: here (0: it has none), and at the peer.
    pub ids: (u32, u32),
    /// The message that is rejected.
    pub rejected: Rejected,
    /// Why.
    pub reason: Reason,
    /// Additional information: the code of a path MTU that would do.
    pub mtu: Option<u8>,
    /// The data of the protocol above, padded.
    pub private: [u8; REJECT_PRIVATE],
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    /// REQ.
    Request(Request),
    /// MRA: the peer takes longer; the numbers of the connection.
    Receipt(u32, u32),
    /// REJ.
    Reject(Reject),
    /// REP.
    Reply(Reply),
    /// RTU.
    Ready(u32, u32),
    /// DREQ, with the queue pair of its receiver.
    Disconnect(u32, u32, u32),
    /// DREP.
    Disconnected(u32, u32),
}

/// A message with the number of its transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The transaction.
    pub transaction: u64,
    /// The message.
    pub body: Body,
}

impl Message {
    /// The message of a datagram; `None`: it is none of those that a target uses.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut cursor = Cursor::new(bytes.get(..LEN)?);
        let head: &Head = cursor.take().ok()?;
        if [head.base_version, head.class, head.class_version, head.method] != KIND {
            return None;
        }
        let ids = |cursor: &mut Cursor<'_>| {
            let body: &IdsBody = cursor.take().ok()?;
            Some((body.id.get(), body.peer_id.get(), number(body.qpn)))
        };
        let body = match Attribute(head.attribute.get()) {
            Attribute::REQUEST => Body::Request(Request::of(cursor.take().ok()?)),
            Attribute::REPLY => Body::Reply(Reply::of(cursor.take().ok()?)),
            Attribute::REJECT => Body::Reject(Reject::of(cursor.take().ok()?)),
            Attribute::RECEIPT => ids(&mut cursor).map(|(id, peer, _)| Body::Receipt(id, peer))?,
            Attribute::READY => ids(&mut cursor).map(|(id, peer, _)| Body::Ready(id, peer))?,
            Attribute::DISCONNECT => ids(&mut cursor).map(|(id, peer, qpn)| Body::Disconnect(id, peer, qpn))?,
            Attribute::DISCONNECTED => ids(&mut cursor).map(|(id, peer, _)| Body::Disconnected(id, peer))?,
            _ => return None,
        };
        Some(Self { transaction: head.transaction.get(), body })
    }

    /// The bytes of the message.
    #[must_use]
    pub fn bytes(&self) -> [u8; LEN] {
        let mut body = [0; BODY_LEN];
        let mut put = |bytes: &[u8]| body[..bytes.len()].copy_from_slice(bytes);
        let mut ids = |(id, peer_id): (u32, u32), qpn: u32| {
            let ids = IdsBody { id: id.into(), peer_id: peer_id.into(), qpn: number_bytes(qpn), reserved: 0 };
            put(ids.as_bytes());
        };
        let attribute = match &self.body {
            Body::Receipt(id, peer) => {
                ids((*id, *peer), 0);
                Attribute::RECEIPT
            }
            Body::Ready(id, peer) => {
                ids((*id, *peer), 0);
                Attribute::READY
            }
            Body::Disconnect(id, peer, qpn) => {
                ids((*id, *peer), *qpn);
                Attribute::DISCONNECT
            }
            Body::Disconnected(id, peer) => {
                ids((*id, *peer), 0);
                Attribute::DISCONNECTED
            }
            Body::Request(request) => {
                put(request.body().as_bytes());
                Attribute::REQUEST
            }
            Body::Reply(reply) => {
                put(reply.body().as_bytes());
                Attribute::REPLY
            }
            Body::Reject(reject) => {
                put(reject.body().as_bytes());
                Attribute::REJECT
            }
        };
        let [base_version, class, class_version, method] = KIND;
        let head = Head {
            base_version,
            class,
            class_version,
            method,
            status: 0.into(),
            specific: 0.into(),
            transaction: self.transaction.into(),
            attribute: attribute.0.into(),
            reserved: 0.into(),
            modifier: 0.into(),
        };
        let mut bytes = [0; LEN];
        let (front, back) = bytes.split_at_mut(size_of::<Head>());
        front.copy_from_slice(head.as_bytes());
        back.copy_from_slice(&body);
        bytes
    }
}

impl Request {
    fn of(body: &RequestBody) -> Self {
        let service = body.service.get();
        let has_header = body.header.version == 0;
        Self {
            id: body.id.get(),
            port: (service & !PORT_BITS == TCP_PORTS && has_header).then_some((service & PORT_BITS) as u16),
            qpn: number(body.qpn),
            reads: body.responder_resources,
            psn: number(body.psn),
            is_reliable: body.transport >> 1 & 3 == 0,
            mtu: body.mtu >> 4,
            private: body.private,
        }
    }

    fn body(&self) -> RequestBody {
        let mut body = RequestBody::new_zeroed();
        body.id = self.id.into();
        // Without a port it is a service of InfiniBand.
        body.service = self.port.map_or(0, |port| TCP_PORTS | u64::from(port)).into();
        body.qpn = number_bytes(self.qpn);
        body.responder_resources = self.reads;
        body.psn = number_bytes(self.psn);
        body.transport = if self.is_reliable { 0 } else { 2 };
        body.mtu = self.mtu << 4;
        body.header.ip_version = 0x40;
        body.private = self.private;
        body
    }
}

/// The delay of acknowledgements here, as a power of two of 4.096 us: an initiator adds it to its time-out.
const DELAY: u8 = 15;
/// Retries while this end is not ready: without end.
const RETRIES: u8 = 7;

impl Reply {
    fn of(body: &ReplyBody) -> Self {
        Self {
            ids: (body.id.get(), body.peer_id.get()),
            qpn: number(body.qpn),
            psn: number(body.psn),
            reads: body.initiator_depth,
            guid: body.guid,
            private: body.private,
        }
    }

    fn body(&self) -> ReplyBody {
        let mut body = ReplyBody::new_zeroed();
        (body.id, body.peer_id) = (self.ids.0.into(), self.ids.1.into());
        (body.qpn, body.psn) = (number_bytes(self.qpn), number_bytes(self.psn));
        body.initiator_depth = self.reads;
        (body.delay, body.retries) = (DELAY << 3, RETRIES << 5);
        (body.guid, body.private) = (self.guid, self.private);
        body
    }
}

impl Reject {
    fn of(body: &RejectBody) -> Self {
        Self {
            ids: (body.id.get(), body.peer_id.get()),
            rejected: Rejected(body.rejected & 0xc0),
            reason: Reason(body.reason.get()),
            mtu: (body.information_len >> 1 == 1).then_some(body.information[0] >> 4),
            private: body.private,
        }
    }

    fn body(&self) -> RejectBody {
        let mut body = RejectBody::new_zeroed();
        (body.id, body.peer_id) = (self.ids.0.into(), self.ids.1.into());
        (body.rejected, body.reason) = (self.rejected.0, self.reason.0.into());
        if let Some(mtu) = self.mtu {
            body.information_len = 1 << 1;
            body.information[0] = mtu << 4;
        }
        body.private = self.private;
        body
    }
}

#[cfg(test)]
#[path = "mad_tests.rs"]
mod tests;

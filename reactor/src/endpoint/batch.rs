//! Datagrams and Ethernet frames, and the batches in which one operation moves them.

use lunar_core::mem::{Arena, BLOCK_MAX, Buf, PAGE, Sg, Slice};
use std::fmt;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// Most datagrams that one operation receives, and that one system call sends: enough that the cost of the call is
/// negligible, and few enough (a tenth of a millisecond of work) that a busy endpoint does not starve the others of
/// its core.
pub const BATCH_MAX: usize = 64;

/// Bytes of a block that transient datagrams share: seven of the largest packets of RoCEv2.
const SHARED_BLOCK: usize = 32 << 10;
/// Transient datagrams that are received into the reserve of an arena.
const RESERVED: usize = 4;

/// The address of a datagram socket.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Address {
    /// No address: frames carry their addresses themselves, and a Unix socket may have no path.
    #[default]
    None,
    /// The address of a UDP socket.
    Ip(SocketAddr),
    /// The path of a Unix socket.
    Path(Rc<Path>),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Ip(address) => address.fmt(f),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

/// The address of a station on an Ethernet (EUI-48).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether it is the address of a group, such as the broadcast address.
    #[must_use]
    pub fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The tag of a frame in a VLAN (IEEE 802.1Q-2022, 9.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VlanTag {
    /// The tag protocol identifier: 8100h for a C-VLAN tag, 88A8h for an S-VLAN tag.
    pub protocol: u16,
    /// Priority code point (3 bits), drop eligible indicator (1 bit), VLAN identifier (12 bits).
    pub control: u16,
}

impl VlanTag {
    /// The tag protocol identifier of a C-VLAN tag.
    pub const C_VLAN: u16 = 0x8100;
    /// The tag protocol identifier of an S-VLAN tag.
    pub const S_VLAN: u16 = 0x88a8;

    /// A C-VLAN tag with priority 0.
    #[must_use]
    pub fn new(id: u16) -> Self {
        Self { protocol: Self::C_VLAN, control: id & 0xfff }
    }

    /// The VLAN identifier; 0 marks a frame that has a priority and belongs to no VLAN.
    #[must_use]
    pub fn id(self) -> u16 {
        self.control & 0xfff
    }

    /// The four bytes after the source address of a frame.
    #[must_use]
    pub fn bytes(self) -> [u8; 4] {
        let ([a, b], [c, d]) = (self.protocol.to_be_bytes(), self.control.to_be_bytes());
        [a, b, c, d]
    }

    /// The tag with these four bytes, if they are one.
    #[must_use]
    pub fn parse(bytes: [u8; 4]) -> Option<Self> {
        let [a, b, c, d] = bytes;
        let (protocol, control) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        matches!(protocol, Self::C_VLAN | Self::S_VLAN).then_some(Self { protocol, control })
    }
}

/// Most bytes before data: the headers of Ethernet, of IPv6, of UDP, and of a protocol above.
pub const HEAD_MAX: usize = 96;
/// Most bytes behind data: padding and a check.
pub const TAIL_MAX: usize = 8;

/// Short bytes before and behind the data of a datagram. They need no memory of an arena, and the list of the data no
/// further pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edges {
    /// The last ones are used, from `begin` on.
    head: [u8; HEAD_MAX],
    begin: u8,
    tail: [u8; TAIL_MAX],
    end: u8,
}

impl Default for Edges {
    fn default() -> Self {
        Self { head: [0; HEAD_MAX], begin: HEAD_MAX as u8, tail: [0; TAIL_MAX], end: 0 }
    }
}

impl Edges {
    /// The bytes before the data.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        &self.head[usize::from(self.begin)..]
    }

    /// The bytes behind the data.
    #[must_use]
    pub fn tail(&self) -> &[u8] {
        &self.tail[..usize::from(self.end)]
    }

    /// Puts bytes before those that there are.
    ///
    /// # Panics
    /// When there are more than [`HEAD_MAX`].
    pub fn prepend(&mut self, bytes: &[u8]) {
        let end = usize::from(self.begin);
        let begin = end.checked_sub(bytes.len()).expect("headers of a datagram are short");
        self.head[begin..end].copy_from_slice(bytes);
        self.begin = begin as u8;
    }

    /// Puts bytes behind those that there are.
    ///
    /// # Panics
    /// When there are more than [`TAIL_MAX`].
    pub fn append(&mut self, bytes: &[u8]) {
        let (begin, end) = (usize::from(self.end), usize::from(self.end) + bytes.len());
        assert!(end <= TAIL_MAX, "{end} bytes behind the data of a datagram");
        self.tail[begin..end].copy_from_slice(bytes);
        self.end = end as u8;
    }
}

/// Data with its edges.
#[derive(Clone, Debug, Default)]
pub struct Wrapped {
    /// The bytes before and behind the data.
    pub edges: Edges,
    /// The data.
    pub data: Sg,
}

impl From<Sg> for Wrapped {
    fn from(data: Sg) -> Self {
        Self { edges: Edges::default(), data }
    }
}

impl From<Slice> for Wrapped {
    fn from(data: Slice) -> Self {
        Sg::from(data).into()
    }
}

impl Wrapped {
    /// Bytes of the data and its edges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.edges.head().len() + self.data.len() + self.edges.tail().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes in one vector, for tests.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        [self.edges.head(), &self.data.to_vec(), self.edges.tail()].concat()
    }
}

/// One datagram, or one Ethernet frame.
#[derive(Clone, Debug, Default)]
pub struct Datagram {
    /// The payload of a datagram. For a frame: all bytes from the destination address on, without a VLAN tag and
    /// without the frame check sequence; frames are not padded. A received datagram is one piece.
    pub data: Sg,
    /// Bytes before and behind the data of a datagram to send. A received one has none.
    pub edges: Edges,
    /// The sender of a received datagram, the receiver of a datagram to send.
    pub peer: Address,
    /// UDP: the local address to which it was sent, or from which it is sent; `None`: the kernel chooses.
    pub local: Option<IpAddr>,
    /// UDP: the length of each of several datagrams of the same peer that are concatenated in `data`, where only the
    /// last may be shorter; 0: it is one datagram.
    pub segment: u16,
    /// UDP: the datagram, whose `segment` is 0, is sent in one message with the one before it in its batch, which the
    /// kernel or the adapter divides (UDP_SEGMENT). The datagrams of a message have the same peer and the same length;
    /// the last one may be shorter. Over IPv4 they have the identifications 0, 1, 2 and so on.
    pub joins: bool,
    /// Frames: the outer VLAN tag.
    pub vlan: Option<VlanTag>,
}

impl Datagram {
    /// Bytes of its data and its edges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.edges.head().len() + self.data.len() + self.edges.tail().len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first of these datagrams, with those that are sent in one message with it.
    pub(crate) fn message(datagrams: &[Self]) -> &[Self] {
        let others = datagrams.iter().skip(1).take_while(|datagram| datagram.joins).count();
        &datagrams[..datagrams.len().min(1 + others)]
    }
}

impl From<Wrapped> for Datagram {
    fn from(Wrapped { edges, data }: Wrapped) -> Self {
        Self { data, edges, ..Self::default() }
    }
}

/// Memory for datagrams that will arrive, and the datagrams that have arrived. It is reused, so that receiving
/// allocates nothing.
#[derive(Debug)]
pub struct ReceiveBatch {
    /// Bytes for each datagram.
    room: usize,
    count: usize,
    is_transient: bool,
    free: Vec<Buf>,
    datagrams: Vec<Datagram>,
}

impl ReceiveBatch {
    /// Room for `count` datagrams of up to `room` bytes each, at most [`BATCH_MAX`]. A longer datagram is dropped and
    /// counted. [`ReceiveBatch::refill`] takes the memory.
    ///
    /// # Panics
    /// When `room` is 0 or more than a block of an arena.
    #[must_use]
    pub fn new(room: usize, count: usize) -> Box<Self> {
        Self::of(room, count, false)
    }

    /// As [`ReceiveBatch::new`], for a user that drops each datagram before the next receive. Without other memory, a
    /// few datagrams are received into the reserve of the arena: they may be the acknowledgements for which those wait
    /// that have the memory.
    ///
    /// # Panics
    /// As above.
    #[must_use]
    pub fn transient(room: usize, count: usize) -> Box<Self> {
        Self::of(room, count, true)
    }

    fn of(room: usize, count: usize, is_transient: bool) -> Box<Self> {
        assert!((1..=BLOCK_MAX).contains(&room), "no memory for a datagram of {room} bytes");
        // Blocks are shared by datagrams, each on a cache line of its own.
        let room = room.next_multiple_of(64);
        let count = count.clamp(1, BATCH_MAX);
        let (free, datagrams) = (Vec::with_capacity(count), Vec::with_capacity(count));
        Box::new(Self { room, count, is_transient, free, datagrams })
    }

    /// An empty batch of the same kind; its parts are those of [`ReceiveBatch::kind`].
    pub(crate) fn of_kind((room, count, is_transient): (usize, usize, bool)) -> Box<Self> {
        Self::of(room, count, is_transient)
    }

    pub(crate) fn kind(&self) -> (usize, usize, bool) {
        (self.room, self.count, self.is_transient)
    }

    /// Most bytes of a datagram.
    #[must_use]
    pub fn room(&self) -> usize {
        self.room
    }

    /// Takes memory for the remaining datagrams, as far as the arena has some; returns how many may arrive.
    pub fn refill(&mut self, arena: &Arena) -> usize {
        while self.free.len() < self.count {
            let Some(block) = self.block(arena) else { break };
            self.add(block);
        }
        self.free.len()
    }

    /// Memory for some datagrams.
    fn block(&self, arena: &Arena) -> Option<Buf> {
        let (one, missing) = (self.room.max(PAGE), self.count - self.free.len());
        // All of them are free again soon, so many of them may keep a block.
        let is_shared = self.is_transient && missing * self.room >= SHARED_BLOCK && one <= SHARED_BLOCK;
        let shared = if is_shared { arena.take(SHARED_BLOCK) } else { None };
        let block = shared.or_else(|| arena.take(one));
        let may_reserve = self.is_transient && self.free.len() < RESERVED;
        if may_reserve { block.or_else(|| arena.take_reserved(one)) } else { block }
    }

    /// Waits until there is memory for a datagram, and takes it.
    pub(crate) async fn wait(&mut self, arena: &Arena) {
        // Woken when some memory comes free, whether or not it is enough for payload.
        let mut enough = pin!(arena.wait_sg(self.room.max(PAGE)));
        let block = poll_fn(|cx| match self.block(arena) {
            Some(block) => Poll::Ready(Some(block)),
            None => enough.as_mut().poll(cx).map(|memory| memory.into_pieces().next()),
        })
        .await;
        block.into_iter().for_each(|block| self.add(block));
    }

    /// Adds a block of an arena; a rest that is too small for a datagram is dropped.
    pub(crate) fn add(&mut self, mut block: Buf) {
        while block.len() >= self.room && self.free.len() < self.count {
            self.free.push(block.split_to(self.room));
        }
    }

    /// Datagrams that may arrive before more memory is needed.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Datagrams that may arrive in one operation.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The datagrams that have arrived, in order.
    #[must_use]
    pub fn datagrams(&self) -> &[Datagram] {
        &self.datagrams
    }

    /// Takes the datagrams that have arrived, in order.
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = Datagram> + '_ {
        self.datagrams.drain(..)
    }

    /// For drivers: takes memory for the next datagram.
    pub(crate) fn take_free(&mut self) -> Option<Buf> {
        self.free.pop()
    }

    /// For drivers: returns the unused memory of a datagram; it is taken last.
    pub(crate) fn give_back(&mut self, memory: Buf) {
        self.free.insert(0, memory);
    }

    /// For drivers: memory for the next datagrams, in the order in which [`ReceiveBatch::take_free`] takes it.
    pub(crate) fn free_in_order(&mut self) -> impl ExactSizeIterator<Item = &mut Buf> {
        self.free.iter_mut().rev()
    }

    /// For drivers: adds a datagram that has arrived.
    pub(crate) fn push(&mut self, datagram: Datagram) {
        self.datagrams.push(datagram);
    }
}

/// Datagrams to send, in order. The batch is reused, so that sending allocates nothing.
#[derive(Debug, Default)]
pub struct SendBatch {
    datagrams: Vec<Datagram>,
    /// Datagrams that were sent or dropped.
    over: usize,
    sent: usize,
    /// Whether a message of several datagrams could not be sent.
    has_refused: bool,
}

impl SendBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Box<Self> {
        Box::default()
    }

    /// Appends a datagram.
    pub fn push(&mut self, datagram: Datagram) {
        self.datagrams.push(datagram);
    }

    /// Appends a frame in one piece.
    pub fn push_frame(&mut self, frame: Slice, vlan: Option<VlanTag>) {
        self.push(Datagram { data: frame.into(), vlan, ..Datagram::default() });
    }

    /// The number of datagrams left to send.
    #[must_use]
    pub fn len(&self) -> usize {
        self.datagrams.len() - self.over
    }

    /// Whether none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the datagrams that are left to send.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.left().iter().map(|datagram| datagram.len() as u64).sum()
    }

    /// For drivers: the datagrams that are left, in order.
    pub(crate) fn left(&self) -> &[Datagram] {
        &self.datagrams[self.over..]
    }

    /// For drivers: the first `count` of the remaining datagrams were sent.
    pub(crate) fn advance(&mut self, count: usize) {
        self.over += count;
        self.sent += count;
    }

    /// For drivers: the first `count` of the remaining datagrams are dropped: one, or those of a message.
    pub(crate) fn drop_first(&mut self, count: usize) {
        self.over += count;
        self.has_refused |= count > 1;
    }

    /// Whether a message of several datagrams was dropped since the last call: the kernel may be too old for
    /// UDP_SEGMENT, or the adapter computes no checksums.
    pub fn take_refusal(&mut self) -> bool {
        std::mem::take(&mut self.has_refused)
    }

    /// For drivers: ends the operation. Frees the datagrams that were sent or dropped; returns how many were sent.
    pub(crate) fn finish(&mut self) -> u32 {
        self.datagrams.drain(..self.over);
        self.over = 0;
        std::mem::take(&mut self.sent) as u32
    }
}

/// Datagrams that an endpoint has moved and dropped since it was attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams lost on receipt: the bounded queue of the endpoint was full, or they were longer than the room for
    /// them.
    pub receive_drops: u64,
    /// Datagrams handed to the kernel, or to the simulated network.
    pub sent: u64,
    /// Datagrams that could not be sent: no receiver, no route, too long, no memory.
    pub send_drops: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_shared_by_small_datagrams_and_come_back() {
        let arena = Arena::new(BLOCK_MAX);
        let mut batch = ReceiveBatch::new(1500, 5);
        assert_eq!((batch.room(), batch.refill(&arena)), (1536, 5));
        assert_eq!(arena.used(), 3 * PAGE, "two datagrams fit into a page");
        assert_eq!(batch.refill(&arena), 5);
        let memory = batch.take_free().expect("five");
        batch.push(Datagram { data: memory.share().into(), ..Datagram::default() });
        assert_eq!(batch.datagrams().len(), 1);
        assert_eq!(batch.drain().len(), 1);
        assert!(batch.datagrams().is_empty());
        assert_eq!(batch.free(), 4);
        drop(batch);
        assert_eq!(arena.used(), 0);
    }

    #[test]
    fn a_batch_takes_the_memory_that_the_arena_has() {
        let arena = Arena::new(BLOCK_MAX);
        let mut batch = ReceiveBatch::new(64 << 10, BATCH_MAX + 1);
        let count = batch.refill(&arena);
        assert!(count > 0 && count < BATCH_MAX, "{count}");
        assert_eq!(batch.refill(&arena), count);
    }

    #[test]
    fn transient_datagrams_arrive_though_payload_has_all_memory() {
        let arena = Arena::new(4 * BLOCK_MAX);
        let mut batch = ReceiveBatch::transient(4160, BATCH_MAX);
        assert_eq!(batch.refill(&arena), BATCH_MAX);
        // Nine blocks of seven, and one more datagram.
        assert_eq!(arena.used(), 9 * SHARED_BLOCK + 2 * PAGE);
        drop(batch);
        let payload: Vec<Buf> = std::iter::from_fn(|| arena.take(PAGE)).collect();
        let (mut usual, mut transient) = (ReceiveBatch::new(4160, 8), ReceiveBatch::transient(4160, 8));
        assert_eq!((usual.refill(&arena), transient.refill(&arena)), (0, RESERVED));
        // Of what the reserve lends, as much is there for headers.
        assert!(arena.take_reserved(PAGE).is_some());
        drop(transient);
        let mut reserve: Vec<Buf> = std::iter::from_fn(|| arena.take_reserved(PAGE)).collect();
        let mut batch = ReceiveBatch::transient(1500, 8);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        {
            let mut waits = pin!(batch.wait(&arena));
            assert!(waits.as_mut().poll(&mut cx).is_pending());
            // A header was sent, and payload still waits for more.
            drop(reserve.pop());
            assert!(waits.as_mut().poll(&mut cx).is_ready());
        }
        assert_eq!(batch.free(), 2);
        drop(payload);
    }

    #[test]
    fn edges_grow_outwards() {
        let arena = Arena::new(BLOCK_MAX);
        let mut wrapped = Wrapped::from(Sg::from(arena.copy(b"data").expect("room")));
        assert_eq!((wrapped.len(), Wrapped::default().is_empty()), (4, true));
        wrapped.edges.prepend(b"b");
        wrapped.edges.append(b"y");
        wrapped.edges.prepend(b"a");
        wrapped.edges.append(b"z");
        assert_eq!((wrapped.to_vec(), wrapped.len()), (b"abdatayz".to_vec(), 8));
        let datagram = Datagram::from(wrapped);
        assert_eq!((datagram.len(), datagram.edges.head(), datagram.edges.tail()), (8, &b"ab"[..], &b"yz"[..]));
        let mut full = Edges::default();
        full.prepend(&[7; HEAD_MAX]);
        full.append(&[8; TAIL_MAX]);
        assert_eq!((full.head(), full.tail()), (&[7; HEAD_MAX][..], &[8; TAIL_MAX][..]));
    }

    #[test]
    fn sent_datagrams_are_freed_and_counted_and_the_others_stay() {
        let arena = Arena::new(BLOCK_MAX);
        let mut batch = SendBatch::new();
        for byte in 0..4_u8 {
            batch.push_frame(arena.copy(&[byte]).expect("room"), None);
        }
        batch.advance(1);
        batch.drop_first(1);
        batch.advance(1);
        assert_eq!((batch.len(), &batch.left()[0].data.to_vec()[..]), (1, &[3][..]));
        assert_eq!((batch.finish(), batch.len()), (2, 1));
        assert_eq!(arena.used(), PAGE);
        batch.advance(1);
        assert_eq!((batch.finish(), batch.is_empty()), (1, true));
    }

    #[test]
    fn a_tag_is_four_bytes_of_a_known_protocol() {
        let tag = VlanTag { protocol: VlanTag::C_VLAN, control: 0x6005 };
        assert_eq!((tag.bytes(), tag.id()), ([0x81, 0, 0x60, 5], 5));
        assert_eq!(VlanTag::parse(tag.bytes()), Some(tag));
        assert_eq!(VlanTag::parse([0x88, 0xa8, 0, 7]).map(VlanTag::id), Some(7));
        assert_eq!(VlanTag::parse([8, 0, 0, 7]), None);
        assert_eq!(VlanTag::new(0x1005), VlanTag { protocol: 0x8100, control: 5 });
    }
}

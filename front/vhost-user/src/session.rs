//! A message in, a request out. Every length, number and count of the front-end is checked here.

use crate::config::{CONFIG_MAX, INFLIGHT_MAX, LOG_MAX, PAYLOAD_MAX, RING_SIZE_MAX, RINGS_MAX, TABLE_MAX};
use crate::wire::{
    Code, ConfigHead, HEADER_LEN, Header, Inflight, LogBase, MemoryRegion, MemoryTable, NEED_REPLY, NO_DESCRIPTOR,
    REPLY, RING_MASK, SingleRegion, VERSION, VERSION_MASK, VringAddress, VringState,
};
use lunar_core::wire::le;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A message that has not the form of the protocol: the connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// The checked header of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The code of the request.
    pub code: Code,
    /// Bytes that follow.
    pub len: usize,
    /// Whether the front-end wants an acknowledgement, if that is negotiated.
    pub needs_reply: bool,
}

/// Takes the header of a message apart.
///
/// # Errors
/// [`Malformed`]: another version, a reply, or more than [`PAYLOAD_MAX`] bytes.
pub fn head(bytes: &[u8; HEADER_LEN]) -> Result<Head, Malformed> {
    let header = Header::ref_from_bytes(bytes).map_err(|_| Malformed)?;
    let (flags, len) = (header.flags.get(), header.size.get() as usize);
    if flags & VERSION_MASK != VERSION || flags & REPLY != 0 || len > PAYLOAD_MAX {
        return Err(Malformed);
    }
    Ok(Head { code: Code(header.code.get()), len, needs_reply: flags & NEED_REPLY != 0 })
}

/// A reply with this payload.
#[must_use]
pub fn reply(code: Code, payload: &[u8]) -> Vec<u8> {
    message(code.0, VERSION | REPLY, payload)
}

/// A message of the back-end on its own channel.
#[must_use]
pub fn notice(code: u32) -> Vec<u8> {
    message(code, VERSION, &[])
}

fn message(code: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    // A payload is far smaller than 4 GiB.
    let header = Header { code: code.into(), flags: flags.into(), size: (payload.len() as u32).into() };
    [header.as_bytes(), payload].concat()
}

/// The number of a ring, which is below [`RINGS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RingIndex(u8);

impl RingIndex {
    fn new(index: u32) -> Result<Self, Malformed> {
        const { assert!(RINGS_MAX == 256, "the number of a ring is a byte") };
        u8::try_from(index).map(Self).map_err(|_| Malformed)
    }

    /// As an index.
    #[must_use]
    pub fn at(self) -> usize {
        usize::from(self.0)
    }
}

impl From<u8> for RingIndex {
    fn from(index: u8) -> Self {
        Self(index)
    }
}

/// An eventfd of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingEvent {
    /// The front-end notifies.
    Kick,
    /// Lunar notifies.
    Call,
    /// Lunar reports that a ring is broken.
    Error,
}

/// A request of the front-end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// The features of the device.
    GetFeatures,
    /// The features that the driver has accepted.
    SetFeatures(u64),
    /// The front-end owns the session.
    SetOwner,
    /// The session has no owner any more: all rings stop.
    ResetOwner,
    /// The memory of the guest: a descriptor comes with each region.
    SetMemTable(Vec<MemoryRegion>),
    /// The dirty log: its descriptor comes with the message.
    SetLogBase(LogBase),
    /// An eventfd that is signalled when the log was written to.
    SetLogFd,
    /// Entries of a ring.
    SetVringNum(RingIndex, u16),
    /// Addresses of a ring.
    SetVringAddr(RingIndex, VringAddress),
    /// The next index of a ring.
    SetVringBase(RingIndex, u32),
    /// Stops a ring, and asks for its next index.
    GetVringBase(RingIndex),
    /// An eventfd of a ring, and whether a descriptor comes with the message.
    SetVringEvent(RingEvent, RingIndex, bool),
    /// The features of the protocol.
    GetProtocolFeatures,
    /// The features of the protocol that the front-end uses.
    SetProtocolFeatures(u64),
    /// The number of rings.
    GetQueueNum,
    /// Enables or disables a ring.
    SetVringEnable(RingIndex, bool),
    /// The channel for messages of the back-end.
    SetBackendReqFd,
    /// Bytes of the configuration space: offset, bytes.
    GetConfig(usize, usize),
    /// The driver has written these bytes of the configuration space.
    SetConfig(usize, &'a [u8]),
    /// Memory that records requests in progress: rings, entries of each.
    GetInflightFd(u16, u16),
    /// The same memory as before.
    SetInflightFd(Inflight),
    /// The device returns to its first state.
    ResetDevice,
    /// The number of regions that may be added.
    GetMaxMemSlots,
    /// One more region, whose descriptor comes with the message.
    AddMemReg(MemoryRegion),
    /// A region less.
    RemMemReg(MemoryRegion),
    /// The device status.
    SetStatus(u8),
    /// Asks for the device status.
    GetStatus,
    /// A message that Lunar does not know.
    Unknown,
}

/// Takes a message apart.
///
/// # Errors
/// [`Malformed`].
pub fn parse(code: Code, payload: &[u8]) -> Result<Request<'_>, Malformed> {
    Ok(match code {
        Code::GET_FEATURES => empty(payload, Request::GetFeatures)?,
        Code::SET_FEATURES => Request::SetFeatures(number(payload)?),
        Code::SET_OWNER => empty(payload, Request::SetOwner)?,
        Code::RESET_OWNER => empty(payload, Request::ResetOwner)?,
        Code::SET_MEM_TABLE => Request::SetMemTable(table(payload)?),
        Code::SET_LOG_BASE => Request::SetLogBase(log_base(payload)?),
        Code::SET_LOG_FD => empty(payload, Request::SetLogFd)?,
        Code::SET_VRING_NUM => {
            let (ring, size) = state(payload)?;
            let size = u16::try_from(size).ok().filter(|size| (1..=RING_SIZE_MAX).contains(size));
            Request::SetVringNum(ring, size.ok_or(Malformed)?)
        }
        Code::SET_VRING_ADDR => {
            let address = *whole::<VringAddress>(payload)?;
            Request::SetVringAddr(RingIndex::new(address.index.get())?, address)
        }
        Code::SET_VRING_BASE => {
            let (ring, base) = state(payload)?;
            Request::SetVringBase(ring, base)
        }
        Code::GET_VRING_BASE => Request::GetVringBase(state(payload)?.0),
        Code::SET_VRING_KICK => event(RingEvent::Kick, payload)?,
        Code::SET_VRING_CALL => event(RingEvent::Call, payload)?,
        Code::SET_VRING_ERR => event(RingEvent::Error, payload)?,
        Code::GET_PROTOCOL_FEATURES => empty(payload, Request::GetProtocolFeatures)?,
        Code::SET_PROTOCOL_FEATURES => Request::SetProtocolFeatures(number(payload)?),
        Code::GET_QUEUE_NUM => empty(payload, Request::GetQueueNum)?,
        Code::SET_VRING_ENABLE => {
            let (ring, is_enabled) = state(payload)?;
            Request::SetVringEnable(ring, is_enabled != 0)
        }
        Code::SET_BACKEND_REQ_FD => empty(payload, Request::SetBackendReqFd)?,
        Code::GET_CONFIG => {
            let (offset, bytes) = config(payload)?;
            Request::GetConfig(offset, bytes.len())
        }
        Code::SET_CONFIG => {
            let (offset, bytes) = config(payload)?;
            Request::SetConfig(offset, bytes)
        }
        Code::GET_INFLIGHT_FD => {
            let asked = inflight(payload)?;
            Request::GetInflightFd(asked.queues.get(), asked.queue_size.get())
        }
        Code::SET_INFLIGHT_FD => {
            let given = inflight(payload)?;
            let is_bounded = given.size.get() <= INFLIGHT_MAX && given.queues.get() > 0;
            if is_bounded { Request::SetInflightFd(given) } else { return Err(Malformed) }
        }
        Code::RESET_DEVICE => empty(payload, Request::ResetDevice)?,
        Code::GET_MAX_MEM_SLOTS => empty(payload, Request::GetMaxMemSlots)?,
        Code::ADD_MEM_REG => Request::AddMemReg(whole::<SingleRegion>(payload)?.region),
        Code::REM_MEM_REG => Request::RemMemReg(whole::<SingleRegion>(payload)?.region),
        Code::SET_STATUS => Request::SetStatus(u8::try_from(number(payload)?).map_err(|_| Malformed)?),
        Code::GET_STATUS => empty(payload, Request::GetStatus)?,
        _ => Request::Unknown,
    })
}

/// Some front-ends send a number of zero with a request that has no payload.
fn empty<'a>(payload: &[u8], request: Request<'a>) -> Result<Request<'a>, Malformed> {
    if matches!(payload.len(), 0 | 8) { Ok(request) } else { Err(Malformed) }
}

fn whole<T: FromBytes + KnownLayout + Immutable + Unaligned>(payload: &[u8]) -> Result<&T, Malformed> {
    T::ref_from_bytes(payload).map_err(|_| Malformed)
}

fn number(payload: &[u8]) -> Result<u64, Malformed> {
    whole::<le::U64>(payload).map(|number| number.get())
}

fn state(payload: &[u8]) -> Result<(RingIndex, u32), Malformed> {
    let state = whole::<VringState>(payload)?;
    Ok((RingIndex::new(state.index.get())?, state.num.get()))
}

fn event<'a>(event: RingEvent, payload: &[u8]) -> Result<Request<'a>, Malformed> {
    let number = number(payload)?;
    // The mask leaves one byte.
    let ring = RingIndex((number & RING_MASK) as u8);
    Ok(Request::SetVringEvent(event, ring, number & NO_DESCRIPTOR == 0))
}

fn table(payload: &[u8]) -> Result<Vec<MemoryRegion>, Malformed> {
    let (head, rest) = MemoryTable::ref_from_prefix(payload).map_err(|_| Malformed)?;
    let regions = <[MemoryRegion]>::ref_from_bytes(rest).map_err(|_| Malformed)?;
    let count = head.count.get() as usize;
    // QEMU sends as many as it says; other front-ends always send the whole array.
    if count > TABLE_MAX || count > regions.len() {
        return Err(Malformed);
    }
    Ok(regions[..count].to_vec())
}

fn log_base(payload: &[u8]) -> Result<LogBase, Malformed> {
    let log = *whole::<LogBase>(payload)?;
    if (1..=LOG_MAX).contains(&log.size.get()) { Ok(log) } else { Err(Malformed) }
}

/// The first byte of a part of the configuration space, and the bytes of the message for it.
fn config(payload: &[u8]) -> Result<(usize, &[u8]), Malformed> {
    let (head, bytes) = ConfigHead::ref_from_prefix(payload).map_err(|_| Malformed)?;
    let (offset, size) = (head.offset.get() as usize, head.size.get() as usize);
    let is_within = offset.checked_add(size).is_some_and(|end| end <= CONFIG_MAX);
    // A request for bytes may come without room for them.
    match bytes.len() {
        len if is_within && len == size => Ok((offset, bytes)),
        _ => Err(Malformed),
    }
}

/// 24 bytes as QEMU sends them, or the 20 of the specification.
fn inflight(payload: &[u8]) -> Result<Inflight, Malformed> {
    let mut bytes = [0; size_of::<Inflight>()];
    if payload.len() != bytes.len() && payload.len() + 4 != bytes.len() {
        return Err(Malformed);
    }
    bytes[..payload.len()].copy_from_slice(payload);
    Ok(*whole::<Inflight>(&bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(code: u32, flags: u32, size: u32) -> [u8; HEADER_LEN] {
        let mut bytes = [0xa5; HEADER_LEN];
        let header = Header { code: code.into(), flags: flags.into(), size: size.into() };
        bytes.copy_from_slice(header.as_bytes());
        bytes
    }

    #[test]
    fn headers_of_the_protocol_are_taken_apart() {
        let golden = [18, 0, 0, 0, 9, 0, 0, 0, 8, 0, 0, 0];
        assert_eq!(golden, header(18, 9, 8));
        assert_eq!(head(&golden), Ok(Head { code: Code::SET_VRING_ENABLE, len: 8, needs_reply: true }));
        assert_eq!(head(&header(1, 1, 0)).map(|head| head.needs_reply), Ok(false));
        for (flags, size) in [(0, 0), (2, 0), (5, 0), (1, PAYLOAD_MAX as u32 + 1), (1, u32::MAX)] {
            assert_eq!(head(&header(1, flags, size)), Err(Malformed), "{flags} {size}");
        }
        assert_eq!(reply(Code::GET_STATUS, &[7]), [40, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 7]);
        assert_eq!(notice(2), [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn numbers_of_rings_and_sizes_are_checked() {
        let state = |index: u32, num: u32| [index.to_le_bytes(), num.to_le_bytes()].concat();
        assert_eq!(parse(Code::SET_VRING_NUM, &state(3, 128)), Ok(Request::SetVringNum(RingIndex(3), 128)));
        for (index, num) in [(256, 128), (0, 0), (0, 32769), (u32::MAX, 1)] {
            assert_eq!(parse(Code::SET_VRING_NUM, &state(index, num)), Err(Malformed), "{index} {num}");
        }
        let kick = |number: u64| format!("{:?}", parse(Code::SET_VRING_KICK, &number.to_le_bytes()));
        assert_eq!(kick(0x102), "Ok(SetVringEvent(Kick, RingIndex(2), false))");
        assert_eq!(kick(0xff), "Ok(SetVringEvent(Kick, RingIndex(255), true))");
        assert_eq!(parse(Code::SET_OWNER, &[0; 3]), Err(Malformed));
        assert_eq!(parse(Code(77), &[0; 3]), Ok(Request::Unknown));
    }

    #[test]
    fn tables_and_parts_of_the_configuration_space_are_bounded() {
        let table = |count: u32, regions: usize| {
            let head = MemoryTable { count: count.into(), padding: 0.into() };
            [head.as_bytes(), &vec![0; regions * size_of::<MemoryRegion>()]].concat()
        };
        let count = |payload: &[u8]| match parse(Code::SET_MEM_TABLE, payload) {
            Ok(Request::SetMemTable(regions)) => Some(regions.len()),
            _ => None,
        };
        assert_eq!([count(&table(2, 2)), count(&table(0, 0)), count(&table(2, 8))], [Some(2), Some(0), Some(2)]);
        assert_eq!([count(&table(9, 9)), count(&table(2, 1)), count(&table(1, 1)[..39])], [None; 3]);
        let config = |offset: u32, size: u32, bytes: usize| {
            let head = ConfigHead { offset: offset.into(), size: size.into(), flags: 0.into() };
            [head.as_bytes(), &vec![9; bytes]].concat()
        };
        assert_eq!(parse(Code::GET_CONFIG, &config(0, 57, 57)), Ok(Request::GetConfig(0, 57)));
        assert_eq!(parse(Code::SET_CONFIG, &config(32, 1, 1)), Ok(Request::SetConfig(32, &[9])));
        for (offset, size, bytes) in [(0, 57, 56), (200, 57, 57), (u32::MAX, 2, 2), (0, u32::MAX, 0)] {
            assert_eq!(parse(Code::GET_CONFIG, &config(offset, size, bytes)), Err(Malformed));
        }
    }

    #[test]
    fn the_inflight_structure_has_the_length_of_the_specification_or_of_qemu() {
        let payload: Vec<u8> =
            [0_u64, 0].iter().flat_map(|n| n.to_le_bytes()).chain([2, 0, 128, 0, 0, 0, 0, 0]).collect();
        for len in [20, 24] {
            assert_eq!(parse(Code::GET_INFLIGHT_FD, &payload[..len]), Ok(Request::GetInflightFd(2, 128)));
        }
        assert_eq!(parse(Code::GET_INFLIGHT_FD, &payload[..22]), Err(Malformed));
    }

    proptest! {
        #[test]
        fn no_message_causes_a_panic(code in 0..50_u32, payload in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(Code(code), &payload);
        }
    }
}

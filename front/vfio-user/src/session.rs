//! A message in, a request out, and the replies that need no device. There is no state here: the protocol has none but
//! its first message.

use crate::config::{DESCRIPTORS_MAX, MESSAGE_MAX, PAGE_SIZE, TRANSFER_MAX, VECTORS};
use crate::feature::{self, FeatureRequest};
use crate::pci;
use crate::registers::{BAR_LEN, DOORBELLS, DOORBELLS_LEN};
use crate::wire::{
    Access, Code, DEVICE_FLAGS, DmaMap, DmaUnmap, ERROR, Errno, Feature, HEADER_LEN, Header, IRQ_AUTOMASKED,
    IRQ_EVENTFD, IRQ_INTX, IRQ_MASKABLE, IRQ_MSIX, IRQS, Info, KIND, MAP_READABLE, MAP_WRITABLE, NO_REPLY,
    REGION_ACCESS, REGION_BAR0, REGION_BAR4, REGION_BAR5, REGION_CONFIG, REGION_SPARSE, REGIONS, REPLY, RegionInfo,
    SetIrqs, ShortWrite, Sparse, StateData, UNMAP_ALL, UNMAP_DIRTY, Version,
};
use lunar_core::wire::Cursor;
use lunar_guest::map::RANGES_MAX;
use serde_json::{Value, json};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of the protocol.
const MAJOR: u16 = 0;
const MINOR: u16 = 1;

/// A header that was checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// As it came.
    pub header: Header,
    /// Bytes that follow the header.
    pub len: usize,
    /// Whether the client wants a reply.
    pub is_answered: bool,
}

/// Checks a header.
///
/// # Errors
/// [`Errno::INVAL`] when the message is no command or its length is out of range: the next message cannot be found.
pub fn head(bytes: &[u8; HEADER_LEN]) -> Result<Head, Errno> {
    let header = Header::read_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
    let size = header.size.get() as usize;
    if !(HEADER_LEN..=MESSAGE_MAX).contains(&size) || header.flags.get() & KIND != 0 {
        return Err(Errno::INVAL);
    }
    Ok(Head { header, len: size - HEADER_LEN, is_answered: header.flags.get() & NO_REPLY == 0 })
}

/// A request of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// VERSION.
    Version {
        /// The payload of the reply.
        answer: Vec<u8>,
        /// Whether the client has sent its capabilities. A client that sends none wants doorbells that it can map.
        has_capabilities: bool,
    },
    /// DMA_MAP.
    Map(DmaMap),
    /// DMA_UNMAP: guest address and bytes; `None`: all memory.
    Unmap(DmaUnmap, Option<(u64, u64)>),
    /// DEVICE_INFO.
    DeviceInfo,
    /// REGION_INFO.
    RegionInfo(RegionInfo),
    /// REGION_IO_FDS: descriptors that notify the device of accesses to a region. There are none.
    RegionDescriptors(Info),
    /// IRQ_INFO.
    IrqInfo(Info),
    /// SET_IRQS, and its data.
    SetIrqs(SetIrqs, &'a [u8]),
    /// REGION_READ.
    Read(Access),
    /// REGION_WRITE, and its data.
    Write(Access, &'a [u8]),
    /// REGION_WRITE_MULTI.
    WriteMany(Vec<ShortWrite>),
    /// RESET.
    Reset,
    /// FEATURE.
    Feature(Feature, FeatureRequest),
    /// MIGRATION_READ of so many bytes at most.
    ReadState(u32),
    /// MIGRATION_WRITE.
    WriteState(&'a [u8]),
}

fn take<T: FromBytes + KnownLayout + Immutable + Unaligned + Copy + 'static>(
    cursor: &mut Cursor<'_>,
) -> Result<T, Errno> {
    cursor.take::<T>().copied().map_err(|_| Errno::INVAL)
}

/// Parses the payload of a message.
///
/// # Errors
/// [`Errno::INVAL`] for a malformed message, [`Errno::NOTSUP`] for an unknown command.
pub fn parse(code: Code, bytes: &[u8]) -> Result<Request<'_>, Errno> {
    let mut cursor = Cursor::new(bytes);
    Ok(match code {
        Code::VERSION => return version(take(&mut cursor)?, cursor.rest()),
        Code::DMA_MAP => Request::Map(checked_map(take(&mut cursor)?)?),
        Code::DMA_UNMAP => {
            let unmap: DmaUnmap = take(&mut cursor)?;
            let range = (unmap.address.get(), unmap.size.get());
            match unmap.flags.get() {
                flags if flags & UNMAP_DIRTY != 0 => return Err(Errno::NOTSUP),
                flags if flags & UNMAP_ALL == 0 => Request::Unmap(unmap, Some(range)),
                _ if range == (0, 0) => Request::Unmap(unmap, None),
                _ => return Err(Errno::INVAL),
            }
        }
        Code::DEVICE_INFO => Request::DeviceInfo,
        Code::REGION_INFO => Request::RegionInfo(take(&mut cursor)?),
        Code::REGION_IO_FDS => Request::RegionDescriptors(take(&mut cursor)?),
        Code::IRQ_INFO => Request::IrqInfo(take(&mut cursor)?),
        Code::SET_IRQS => Request::SetIrqs(take(&mut cursor)?, cursor.rest()),
        Code::REGION_READ => {
            let access: Access = take(&mut cursor)?;
            if access.count.get() > TRANSFER_MAX {
                return Err(Errno::INVAL);
            }
            Request::Read(access)
        }
        Code::REGION_WRITE => {
            let access: Access = take(&mut cursor)?;
            if access.count.get() > TRANSFER_MAX {
                return Err(Errno::INVAL);
            }
            let data = cursor.bytes(access.count.get() as usize).map_err(|_| Errno::INVAL)?;
            Request::Write(access, data)
        }
        Code::REGION_WRITE_MULTI => {
            let count: lunar_core::wire::le::U64 = take(&mut cursor)?;
            let most = cursor.rest().len() / size_of::<ShortWrite>();
            let count = usize::try_from(count.get()).ok().filter(|count| *count <= most).ok_or(Errno::INVAL)?;
            let writes: Result<Vec<ShortWrite>, Errno> = (0..count).map(|_| take(&mut cursor)).collect();
            let writes = writes?;
            if writes.iter().any(|write| write.access.count.get() as usize > write.data.len()) {
                return Err(Errno::INVAL);
            }
            Request::WriteMany(writes)
        }
        Code::RESET => Request::Reset,
        Code::FEATURE => {
            let (feature, request) = feature::parse(bytes)?;
            Request::Feature(feature, request)
        }
        Code::MIGRATION_READ => {
            let asked: StateData = take(&mut cursor)?;
            let room = asked.argsz.get().checked_sub(size_of::<StateData>() as u32).ok_or(Errno::INVAL)?;
            if asked.size.get() > room.min(TRANSFER_MAX) {
                return Err(Errno::INVAL);
            }
            Request::ReadState(asked.size.get())
        }
        Code::MIGRATION_WRITE => {
            let sent: StateData = take(&mut cursor)?;
            if sent.size.get() > TRANSFER_MAX {
                return Err(Errno::INVAL);
            }
            Request::WriteState(cursor.bytes(sent.size.get() as usize).map_err(|_| Errno::INVAL)?)
        }
        _ => return Err(Errno::NOTSUP),
    })
}

/// A mapping of whole pages, as announced, which the device may read: it has its queues and lists there, and memory
/// that it may only write to is not supported.
fn checked_map(map: DmaMap) -> Result<DmaMap, Errno> {
    let is_aligned = [map.address, map.size, map.offset].iter().all(|field| field.get().is_multiple_of(PAGE_SIZE));
    let is_known = map.flags.get() & !(MAP_READABLE | MAP_WRITABLE) == 0;
    let fits = is_aligned && is_known && map.size.get() > 0 && map.flags.get() & MAP_READABLE != 0;
    if fits { Ok(map) } else { Err(Errno::INVAL) }
}

fn version(version: Version, text: &[u8]) -> Result<Request<'static>, Errno> {
    if version.major.get() != MAJOR {
        return Err(Errno::INVAL);
    }
    let capabilities = match text.split_last() {
        None => None,
        Some((0, text)) => Some(serde_json::from_slice::<Value>(text).map_err(|_| Errno::INVAL)?),
        Some(_) => return Err(Errno::INVAL),
    };
    let batches = capabilities.as_ref().is_some_and(|text| text["capabilities"]["write_multiple"] == true);
    let mut own = json!({
        "max_msg_fds": DESCRIPTORS_MAX,
        "max_data_xfer_size": TRANSFER_MAX,
        "max_dma_maps": RANGES_MAX,
        "pgsizes": PAGE_SIZE,
    });
    if batches {
        own["write_multiple"] = true.into();
    }
    let minor = version.minor.get().min(MINOR);
    let mut answer = Version { major: MAJOR.into(), minor: minor.into() }.as_bytes().to_vec();
    answer.extend(json!({ "capabilities": own }).to_string().into_bytes());
    answer.push(0);
    Ok(Request::Version { answer, has_capabilities: capabilities.is_some() })
}

/// The reply to a message.
#[must_use]
pub fn reply(to: &Header, answer: &Result<Vec<u8>, Errno>) -> Vec<u8> {
    let (flags, errno, payload) = match answer {
        Ok(payload) => (REPLY, 0, payload.as_slice()),
        Err(errno) => (REPLY | ERROR, errno.0, [].as_slice()),
    };
    // The longest reply is a bitmap of dirty pages, with 256 KiB.
    let size = (HEADER_LEN + payload.len()) as u32;
    let header = Header { id: to.id, code: to.code, size: size.into(), flags: flags.into(), errno: errno.into() };
    [header.as_bytes(), payload].concat()
}

/// The reply to DEVICE_INFO.
#[must_use]
pub fn device_info() -> Vec<u8> {
    let argsz = size_of::<Info>() as u32;
    let info = Info { argsz: argsz.into(), flags: DEVICE_FLAGS.into(), index: REGIONS.into(), count: IRQS.into() };
    info.as_bytes().to_vec()
}

/// Bytes of a region; zero when the device has no such region.
#[must_use]
pub fn region_len(region: u32) -> u32 {
    match region {
        REGION_BAR0 => BAR_LEN,
        REGION_BAR4 | REGION_BAR5 => pci::VECTORS_LEN,
        REGION_CONFIG => pci::LEN as u32,
        _ => 0,
    }
}

/// The reply to REGION_INFO, and whether the descriptor of the doorbells comes with it. They can be mapped if
/// `is_mappable`.
///
/// # Errors
/// [`Errno::INVAL`] for a region that no PCI device has.
pub fn region_info(asked: &RegionInfo, is_mappable: bool) -> Result<(Vec<u8>, bool), Errno> {
    const SHORT: usize = size_of::<RegionInfo>();
    const LONG: usize = SHORT + size_of::<Sparse>();
    let index = asked.index.get();
    if index >= REGIONS || (asked.argsz.get() as usize) < SHORT {
        return Err(Errno::INVAL);
    }
    let len = region_len(index);
    let is_sparse = is_mappable && index == REGION_BAR0;
    let flags = if len > 0 { REGION_ACCESS } else { 0 } | if is_sparse { REGION_SPARSE } else { 0 };
    let argsz = if is_sparse { LONG } else { SHORT };
    let fits = is_sparse && asked.argsz.get() as usize >= LONG;
    let info = RegionInfo {
        argsz: (argsz as u32).into(),
        flags: flags.into(),
        index: index.into(),
        capabilities: (if fits { SHORT as u32 } else { 0 }).into(),
        size: u64::from(len).into(),
        offset: 0.into(),
    };
    let mut answer = info.as_bytes().to_vec();
    if fits {
        let sparse = Sparse {
            id: Sparse::ID.into(),
            version: 1.into(),
            next: 0.into(),
            areas: 1.into(),
            reserved: 0.into(),
            offset: u64::from(DOORBELLS).into(),
            size: (DOORBELLS_LEN as u64).into(),
        };
        answer.extend(sparse.as_bytes());
    }
    Ok((answer, fits))
}

/// Number of interrupts of a kind.
#[must_use]
pub fn irq_count(index: u32) -> u32 {
    match index {
        IRQ_INTX => 1,
        IRQ_MSIX => VECTORS.into(),
        _ => 0,
    }
}

/// The reply to IRQ_INFO.
///
/// # Errors
/// [`Errno::INVAL`] for a kind that no PCI device has.
pub fn irq_info(asked: &Info) -> Result<Vec<u8>, Errno> {
    let flags = match asked.index.get() {
        IRQ_INTX => IRQ_EVENTFD | IRQ_MASKABLE | IRQ_AUTOMASKED,
        index if index < IRQS => IRQ_EVENTFD,
        _ => return Err(Errno::INVAL),
    };
    let count = irq_count(asked.index.get());
    Ok(Info { argsz: (size_of::<Info>() as u32).into(), flags: flags.into(), index: asked.index, count: count.into() }
        .as_bytes()
        .to_vec())
}

/// The reply to REGION_IO_FDS: there are no such descriptors.
#[must_use]
pub fn region_descriptors(asked: &Info) -> Vec<u8> {
    let argsz = (size_of::<Info>() as u32).into();
    Info { argsz, flags: 0.into(), index: asked.index, count: 0.into() }.as_bytes().to_vec()
}

/// The reply to MIGRATION_READ. A piece that is shorter than was asked for is the last one.
#[must_use]
pub fn state_piece(piece: &[u8]) -> Vec<u8> {
    // A piece has TRANSFER_MAX bytes at most.
    let argsz = (size_of::<StateData>() + piece.len()) as u32;
    let head = StateData { argsz: argsz.into(), size: (piece.len() as u32).into() };
    [head.as_bytes(), piece].concat()
}

/// Whether the device may write to memory that is mapped.
#[must_use]
pub fn is_writable(map: &DmaMap) -> bool {
    map.flags.get() & MAP_WRITABLE != 0
}

/// The offset of an access that stays within its region.
///
/// # Errors
/// [`Errno::INVAL`] for an access that does not.
pub fn within(access: &Access) -> Result<u32, Errno> {
    let end = access.offset.get().checked_add(access.count.get().into());
    let fits = end.is_some_and(|end| end <= region_len(access.region.get()).into());
    // An offset within a region is less than its length, which has 32 bits.
    if fits { Ok(access.offset.get() as u32) } else { Err(Errno::INVAL) }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;

//! What a client asks for, and what the device says of itself: a message in, a request out; no state, for the protocol
//! has none but its first message.

use crate::config::{DESCRIPTORS_MAX, MESSAGE_MAX, TRANSFER_MAX, VECTORS};
use crate::feature::{self, Wish};
use crate::pci;
use crate::registers::{BAR_LEN, DOORBELLS, DOORBELLS_LEN};
use crate::wire::{
    Access, Code, DEVICE_FLAGS, DmaMap, DmaUnmap, ERROR, Errno, Feature, HEADER_LEN, Header, IRQ_AUTOMASKED,
    IRQ_EVENTFD, IRQ_INTX, IRQ_MASKABLE, IRQ_MSIX, IRQS, Info, KIND, MAP_WRITABLE, Moved, NO_REPLY, REGION_ACCESS,
    REGION_BAR0, REGION_BAR4, REGION_BAR5, REGION_CONFIG, REGION_SPARSE, REGIONS, REPLY, RegionInfo, SetIrqs,
    ShortWrite, Sparse, UNMAP_ALL, UNMAP_DIRTY, Version,
};
use lunar_core::wire::Cursor;
use lunar_guest::map::RANGES_MAX;
use serde_json::{Value, json};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Versions that are spoken.
const MAJOR: u16 = 0;
const MINOR: u16 = 1;

/// What a header says: bytes that follow, and whether an answer is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// As it came.
    pub header: Header,
    /// Bytes that follow.
    pub len: usize,
    /// Whether it is answered.
    pub is_answered: bool,
}

/// What a message begins with.
///
/// # Errors
/// When it is no command, or has a length that no message has: what follows cannot be found.
pub fn head(bytes: &[u8; HEADER_LEN]) -> Result<Head, Errno> {
    let header = Header::read_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
    let size = header.size.get() as usize;
    if !(HEADER_LEN..=MESSAGE_MAX).contains(&size) || header.flags.get() & KIND != 0 {
        return Err(Errno::INVAL);
    }
    Ok(Head { header, len: size - HEADER_LEN, is_answered: header.flags.get() & NO_REPLY == 0 })
}

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// It speaks this version.
    Version {
        /// What is answered.
        answer: Vec<u8>,
        /// Whether it told what it can: some tell nothing, and want doorbells that they can map.
        told: bool,
    },
    /// Memory of the guest's.
    Map(DmaMap),
    /// Memory that is gone; `None`: all.
    Unmap(DmaUnmap, Option<(u64, u64)>),
    /// What the device is.
    DeviceInfo,
    /// What a region is, in as many bytes as there is room for.
    RegionInfo(RegionInfo),
    /// How a region is rung otherwise: not at all.
    RegionDescriptors(Info),
    /// What interrupts there are.
    IrqInfo(Info),
    /// Interrupts are set up.
    SetIrqs(SetIrqs, &'a [u8]),
    /// A region is read.
    Read(Access),
    /// A region is written.
    Write(Access, &'a [u8]),
    /// Regions are written.
    WriteMany(Vec<ShortWrite>),
    /// The device is reset.
    Reset,
    /// A feature is asked for, or set.
    Feature(Feature, Wish),
    /// What the device is, on its way to another process: so many bytes of it at most.
    ReadState(u32),
    /// What it shall be.
    WriteState(&'a [u8]),
}

fn take<T: FromBytes + KnownLayout + Immutable + Unaligned + Copy + 'static>(
    cursor: &mut Cursor<'_>,
) -> Result<T, Errno> {
    cursor.take::<T>().copied().map_err(|_| Errno::INVAL)
}

/// Takes a message apart.
///
/// # Errors
/// [`Errno::INVAL`] for one that is malformed, [`Errno::NOTSUP`] for one that is not known.
pub fn parse(code: Code, bytes: &[u8]) -> Result<Request<'_>, Errno> {
    let mut cursor = Cursor::new(bytes);
    Ok(match code {
        Code::VERSION => return version(take(&mut cursor)?, cursor.rest()),
        Code::DMA_MAP => Request::Map(take(&mut cursor)?),
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
            let (feature, wish) = feature::parse(bytes)?;
            Request::Feature(feature, wish)
        }
        Code::MIGRATION_READ => {
            let moved: Moved = take(&mut cursor)?;
            let room = moved.argsz.get().checked_sub(size_of::<Moved>() as u32).ok_or(Errno::INVAL)?;
            if moved.size.get() > room.min(TRANSFER_MAX) {
                return Err(Errno::INVAL);
            }
            Request::ReadState(moved.size.get())
        }
        Code::MIGRATION_WRITE => {
            let moved: Moved = take(&mut cursor)?;
            if moved.size.get() > TRANSFER_MAX {
                return Err(Errno::INVAL);
            }
            Request::WriteState(cursor.bytes(moved.size.get() as usize).map_err(|_| Errno::INVAL)?)
        }
        _ => return Err(Errno::NOTSUP),
    })
}

fn version(version: Version, text: &[u8]) -> Result<Request<'static>, Errno> {
    if version.major.get() != MAJOR {
        return Err(Errno::INVAL);
    }
    let told = match text.split_last() {
        None => None,
        Some((0, text)) => Some(serde_json::from_slice::<Value>(text).map_err(|_| Errno::INVAL)?),
        Some(_) => return Err(Errno::INVAL),
    };
    let batches = told.as_ref().is_some_and(|told| told["capabilities"]["write_multiple"] == true);
    let mut mine = json!({
        "max_msg_fds": DESCRIPTORS_MAX,
        "max_data_xfer_size": TRANSFER_MAX,
        "max_dma_maps": RANGES_MAX,
        "pgsizes": 4096,
    });
    if batches {
        mine["write_multiple"] = true.into();
    }
    let minor = version.minor.get().min(MINOR);
    let mut answer = Version { major: MAJOR.into(), minor: minor.into() }.as_bytes().to_vec();
    answer.extend(json!({ "capabilities": mine }).to_string().into_bytes());
    answer.push(0);
    Ok(Request::Version { answer, told: told.is_some() })
}

/// The reply to a message.
#[must_use]
pub fn reply(to: &Header, answer: &Result<Vec<u8>, Errno>) -> Vec<u8> {
    let (flags, errno, payload) = match answer {
        Ok(payload) => (REPLY, 0, payload.as_slice()),
        Err(errno) => (REPLY | ERROR, errno.0, [].as_slice()),
    };
    // Answers are as long as what may be read at once, and a little more.
    let size = (HEADER_LEN + payload.len()) as u32;
    let header = Header { id: to.id, code: to.code, size: size.into(), flags: flags.into(), errno: errno.into() };
    [header.as_bytes(), payload].concat()
}

/// What the device is.
#[must_use]
pub fn device_info() -> Vec<u8> {
    let argsz = size_of::<Info>() as u32;
    let info = Info { argsz: argsz.into(), flags: DEVICE_FLAGS.into(), index: REGIONS.into(), count: IRQS.into() };
    info.as_bytes().to_vec()
}

/// Bytes of a region; none for one that is not there.
#[must_use]
pub fn region_len(region: u32) -> u32 {
    match region {
        REGION_BAR0 => BAR_LEN,
        REGION_BAR4 | REGION_BAR5 => pci::VECTORS_LEN,
        REGION_CONFIG => pci::LEN as u32,
        _ => 0,
    }
}

/// What a region is; and whether the file of the doorbells comes with the answer, which can be mapped if `maps`.
///
/// # Errors
/// [`Errno::INVAL`] for one that no PCI device has.
pub fn region_info(asked: &RegionInfo, maps: bool) -> Result<(Vec<u8>, bool), Errno> {
    const SHORT: usize = size_of::<RegionInfo>();
    const LONG: usize = SHORT + size_of::<Sparse>();
    let index = asked.index.get();
    if index >= REGIONS || (asked.argsz.get() as usize) < SHORT {
        return Err(Errno::INVAL);
    }
    let len = region_len(index);
    let is_sparse = maps && index == REGION_BAR0;
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

/// How many interrupts of a kind there are.
#[must_use]
pub fn irq_count(index: u32) -> u32 {
    match index {
        IRQ_INTX => 1,
        IRQ_MSIX => VECTORS.into(),
        _ => 0,
    }
}

/// What interrupts of a kind there are.
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

/// No region is rung otherwise.
#[must_use]
pub fn region_descriptors(asked: &Info) -> Vec<u8> {
    let argsz = (size_of::<Info>() as u32).into();
    Info { argsz, flags: 0.into(), index: asked.index, count: 0.into() }.as_bytes().to_vec()
}

/// A piece of what the device is. One that is shorter than it was asked for is the last.
#[must_use]
pub fn state_piece(piece: &[u8]) -> Vec<u8> {
    // It is as long as a transfer at most.
    let argsz = (size_of::<Moved>() + piece.len()) as u32;
    let moved = Moved { argsz: argsz.into(), size: (piece.len() as u32).into() };
    [moved.as_bytes(), piece].concat()
}

/// Whether memory may be written.
#[must_use]
pub fn is_writable(map: &DmaMap) -> bool {
    map.flags.get() & MAP_WRITABLE != 0
}

/// Whether an access stays within its region.
///
/// # Errors
/// [`Errno::INVAL`]
pub fn within(access: &Access) -> Result<u32, Errno> {
    let end = access.offset.get().checked_add(access.count.get().into());
    let fits = end.is_some_and(|end| end <= region_len(access.region.get()).into());
    // What is within a region is less than its length.
    if fits { Ok(access.offset.get() as u32) } else { Err(Errno::INVAL) }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;

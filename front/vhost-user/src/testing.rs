//! For tests and fuzz targets: the driver of a guest, with its rings in guest memory.

use crate::config::CONFIG_MAX;
use crate::ring::chain::{DESCRIPTOR_LEN, INDIRECT, NEXT, WRITE};
use crate::ring::{Chain, lengths};
use crate::session::{self, Request, RingEvent, RingIndex};
use crate::virtio::VirtioDevice;
use crate::wire::{Code, MemoryRegion, VringAddress, feature};
use crate::{blk, scsi};
use lunar_core::mem::Region;
use lunar_guest::Range;
use std::collections::BTreeMap;

/// The address in the front-end of guest address zero.
pub const USER: u64 = 0x7f00_0000_0000;
/// Bytes of the memory of the guest.
pub const MEMORY_LEN: usize = 1 << 20;
/// The first guest address of the tables of indirect descriptors, and bytes of each.
const TABLES: u64 = 0x8_0000;
const TABLE_LEN: u64 = 0x400;
/// Flags of a packed descriptor: available, used.
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// A piece of the memory of a request: guest address, bytes, whether the device writes.
pub type Piece = (u64, u32, bool);

/// A ring, as the driver of a guest sees it.
#[derive(Debug)]
pub struct DriverRing {
    /// The memory of the guest.
    pub memory: Region,
    features: u64,
    size: u16,
    /// Guest addresses: descriptors, available, used.
    at: [u64; 3],
    free: Vec<u16>,
    /// The descriptors of each request in progress, by its identifier.
    taken: BTreeMap<u16, Vec<u16>>,
    /// Next available index, or place and wrap counter.
    next: u16,
    wrap: bool,
    used: u16,
    used_wrap: bool,
}

impl DriverRing {
    /// A ring of this size with these features, whose parts begin at this guest address.
    #[must_use]
    pub fn new(memory: &Region, features: u64, size: u16, at: u64) -> Self {
        let lengths = lengths(features, size);
        let align = |at: u64| at.next_multiple_of(16);
        let available = align(at + lengths[0] as u64);
        let used = align(available + lengths[1] as u64);
        Self {
            memory: memory.clone(),
            features,
            size,
            at: [at, available, used],
            free: (0..size).rev().collect(),
            taken: BTreeMap::new(),
            next: 0,
            wrap: true,
            used: 0,
            used_wrap: true,
        }
    }

    /// The addresses of the ring in the front-end.
    #[must_use]
    pub fn address(&self, index: u32) -> VringAddress {
        let [descriptors, available, used] = self.at.map(|at| (USER + at).into());
        VringAddress { index: index.into(), flags: 0.into(), descriptors, used, available, log: 0.into() }
    }

    /// The base with which the ring starts.
    #[must_use]
    pub fn base(&self) -> u32 {
        if self.is_packed() { 0x8000_8000 } else { 0 }
    }

    fn is_packed(&self) -> bool {
        self.features & feature::RING_PACKED != 0
    }

    /// Writes bytes of guest memory.
    ///
    /// # Panics
    /// When they lie beyond it.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        assert!(self.memory.write(at as usize, bytes), "within the memory of the guest");
    }

    /// Reads bytes of guest memory.
    ///
    /// # Panics
    /// When they lie beyond it.
    #[must_use]
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(self.memory.read(at as usize, &mut bytes), "within the memory of the guest");
        bytes
    }

    fn read_u16(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.read(at, 2).try_into().expect("two bytes"))
    }

    fn descriptor(&self, at: u64, (address, len, _): Piece, third: u16, fourth: u16) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(third.to_le_bytes());
        bytes.extend(fourth.to_le_bytes());
        self.write(at, &bytes);
    }

    /// Writes a descriptor of the split ring: flags and next are those that are given.
    pub fn raw_descriptor(&self, index: u16, piece: Piece, flags: u16, next: u16) {
        self.descriptor(self.at[0] + u64::from(index) * DESCRIPTOR_LEN as u64, piece, flags, next);
    }

    /// Makes the split ring's descriptor of this number available.
    pub fn raw_offer(&mut self, head: u16) {
        let entry = self.at[1] + 4 + u64::from(self.next % self.size) * 2;
        self.write(entry, &head.to_le_bytes());
        self.next = self.next.wrapping_add(1);
        self.set_available(self.next);
    }

    /// Sets the available index of the split ring.
    pub fn set_available(&self, index: u16) {
        self.write(self.at[1] + 2, &index.to_le_bytes());
    }

    /// Makes one descriptor with these flags available where the driver continues, whatever the device has in progress.
    pub fn raw_available(&mut self, id: u16, piece: Piece, flags: u16) {
        let write = if piece.2 { WRITE } else { 0 };
        if !self.is_packed() {
            let at = id % self.size;
            self.raw_descriptor(at, piece, flags | write, (at + 1) % self.size);
            return self.raw_offer(at);
        }
        let lap = if self.wrap { AVAILABLE } else { USED };
        self.raw_descriptor(self.next, piece, id, flags | write | lap);
        self.advance();
    }

    /// Continues at the next entry of the packed ring.
    fn advance(&mut self) {
        self.next += 1;
        if self.next == self.size {
            (self.next, self.wrap) = (0, !self.wrap);
        }
    }

    /// Makes a request available; `None` while the ring is full. Returns its identifier.
    pub fn offer(&mut self, pieces: &[Piece], is_indirect: bool) -> Option<u16> {
        let needed = if is_indirect { 1 } else { pieces.len() };
        if self.free.len() < needed {
            return None;
        }
        let ids: Vec<u16> = (0..needed).filter_map(|_| self.free.pop()).collect();
        let id = ids[0];
        let pieces = match is_indirect {
            true => vec![(self.table(id, pieces), (pieces.len() * DESCRIPTOR_LEN) as u32, false)],
            false => pieces.to_vec(),
        };
        let extra = if is_indirect { INDIRECT } else { 0 };
        if self.is_packed() {
            self.offer_packed(id, &pieces, extra);
        } else {
            for (at, piece) in pieces.iter().enumerate() {
                let next = ids.get(at + 1);
                let flags = extra | if piece.2 { WRITE } else { 0 } | if next.is_some() { NEXT } else { 0 };
                self.raw_descriptor(ids[at], *piece, flags, next.copied().unwrap_or(0));
            }
            self.raw_offer(id);
        }
        self.taken.insert(id, ids);
        Some(id)
    }

    fn offer_packed(&mut self, id: u16, pieces: &[Piece], extra: u16) {
        let first = (self.next, self.wrap);
        let mut first_flags = 0;
        for (at, piece) in pieces.iter().enumerate() {
            let more = if at + 1 < pieces.len() { NEXT } else { 0 };
            let wrapped = if self.wrap { AVAILABLE } else { USED };
            let flags = wrapped | extra | more | if piece.2 { WRITE } else { 0 };
            let place = self.at[0] + u64::from(self.next) * DESCRIPTOR_LEN as u64;
            if at == 0 {
                first_flags = flags;
                // Not available before the rest is there.
                self.descriptor(place, *piece, id, if self.wrap { USED } else { AVAILABLE });
            } else {
                self.descriptor(place, *piece, id, flags);
            }
            self.advance();
        }
        self.write(self.at[0] + u64::from(first.0) * DESCRIPTOR_LEN as u64 + 14, &first_flags.to_le_bytes());
    }

    fn table(&self, id: u16, pieces: &[Piece]) -> u64 {
        let table = TABLES + u64::from(id) * TABLE_LEN;
        for (at, piece) in pieces.iter().enumerate() {
            let place = table + (at * DESCRIPTOR_LEN) as u64;
            let write = if piece.2 { WRITE } else { 0 };
            if self.is_packed() {
                self.descriptor(place, *piece, 0, write);
            } else {
                let (next, flags) = if at + 1 < pieces.len() { (at as u16 + 1, NEXT) } else { (0, 0) };
                self.descriptor(place, *piece, write | flags, next);
            }
        }
        table
    }

    /// The next request that the device has returned: its identifier, and bytes that were written.
    ///
    /// # Panics
    /// When the device returns a request that it does not have.
    pub fn returned(&mut self) -> Option<(u16, u32)> {
        let (id, len) = if self.is_packed() { self.returned_packed()? } else { self.returned_split()? };
        let ids = self.taken.remove(&id).expect("only what is in progress is returned");
        if self.is_packed() {
            let occupied = ids.len() as u16;
            self.used += occupied;
            if self.used >= self.size {
                (self.used, self.used_wrap) = (self.used - self.size, !self.used_wrap);
            }
        }
        self.free.extend(ids);
        Some((id, len))
    }

    fn returned_split(&mut self) -> Option<(u16, u32)> {
        if self.read_u16(self.at[2] + 2) == self.used {
            return None;
        }
        let entry = self.read(self.at[2] + 4 + u64::from(self.used % self.size) * 8, 8);
        self.used = self.used.wrapping_add(1);
        let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("four bytes"));
        Some((word(0) as u16, word(4)))
    }

    fn returned_packed(&self) -> Option<(u16, u32)> {
        let entry = self.read(self.at[0] + u64::from(self.used) * DESCRIPTOR_LEN as u64, DESCRIPTOR_LEN);
        let flags = u16::from_le_bytes([entry[14], entry[15]]);
        if (flags & AVAILABLE != 0, flags & USED != 0) != (self.used_wrap, self.used_wrap) {
            return None;
        }
        let len = u32::from_le_bytes(entry[8..12].try_into().expect("four bytes"));
        Some((u16::from_le_bytes([entry[12], entry[13]]), len))
    }

    /// Requests in progress.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.taken.len()
    }

    /// The used index up to which the driver has looked.
    #[must_use]
    pub fn seen(&self) -> u16 {
        self.used
    }

    /// Asks to be notified when the split ring's used index passes this one.
    pub fn set_used_event(&self, index: u16) {
        self.write(self.at[1] + 4 + u64::from(self.size) * 2, &index.to_le_bytes());
    }

    /// The flags of the device in the split ring, and the index at which it wants to be notified.
    #[must_use]
    pub fn wishes(&self) -> (u16, u16) {
        (self.read_u16(self.at[2]), self.read_u16(self.at[2] + 4 + u64::from(self.size) * 8))
    }

    /// The event suppression structure of the device in the packed ring.
    #[must_use]
    pub fn device_event(&self) -> (u16, u16) {
        (self.read_u16(self.at[2]), self.read_u16(self.at[2] + 2))
    }

    /// Sets the event suppression structure of the driver in the packed ring.
    pub fn set_driver_event(&self, offset: u16, flags: u16) {
        self.write(self.at[1], &[offset.to_le_bytes(), flags.to_le_bytes()].concat());
    }
}

/// A region of guest memory at guest address zero.
#[must_use]
pub fn region() -> MemoryRegion {
    let (guest, offset) = (0.into(), 0.into());
    MemoryRegion { guest, size: (MEMORY_LEN as u64).into(), user: USER.into(), offset }
}

/// A device with one ring of this size, which is started, and its driver.
///
/// # Panics
/// Never: the front-end is a good one.
#[must_use]
pub fn started(features: u64, size: u16) -> (VirtioDevice, DriverRing) {
    let memory = Region::zeroed(MEMORY_LEN);
    let mut device = VirtioDevice::new(0, 1);
    let features = features | feature::PROTOCOL_FEATURES | feature::VERSION_1;
    device.set_features(features).expect("no ring is started");
    device.set_memory(vec![(region(), memory.clone())]).expect("one region");
    let driver = DriverRing::new(&memory, features, size, 0x1000);
    let ring = RingIndex::from(0);
    device.set_size(ring, size).expect("it exists");
    device.set_address(ring, driver.address(0)).expect("it exists");
    device.set_base(ring, driver.base()).expect("it exists");
    device.start(ring).expect("its parts are in memory");
    device.enable(ring, true).expect("it exists");
    (device, driver)
}

/// Bytes of one operation in the input of [`ring`].
const STEP: usize = 12;
/// Entries of its ring.
const RING_SIZE: u16 = 8;

/// Messages of a front-end, with any bits: numbers, lengths and counts beyond all limits.
///
/// # Panics
/// When a limit does not hold.
pub fn messages(data: &[u8]) {
    let mut device = VirtioDevice::new(0, 4);
    let memory = Region::zeroed(MEMORY_LEN);
    let mut rest = data;
    while let Some((head, more)) = rest.split_first_chunk::<2>() {
        let len = usize::from(head[1]).min(more.len());
        let (payload, more) = more.split_at(len);
        rest = more;
        let Ok(request) = session::parse(Code(u32::from(head[0] % 48)), payload) else { continue };
        apply(&mut device, &memory, request);
        for ring in device.all() {
            while let Ok(Some(chain)) = device.take(ring) {
                device.put_back(ring, (chain.id, chain.entries), 1);
            }
            assert_eq!(device.in_progress(ring), 0);
        }
        device.signal(|_| true);
    }
}

/// Has a device obey a message as far as it needs no descriptor.
fn apply(device: &mut VirtioDevice, memory: &Region, request: Request<'_>) {
    // Refusals are answers.
    match request {
        Request::SetFeatures(features) => _ = device.set_features(features),
        Request::SetProtocolFeatures(features) => device.set_protocol(features),
        Request::SetStatus(status) => device.set_status(status),
        Request::ResetDevice | Request::ResetOwner => device.reset(),
        Request::SetMemTable(table) => {
            let part = |region: &MemoryRegion| usize::try_from(region.size.get()).ok().filter(|len| *len <= MEMORY_LEN);
            let table = table.into_iter().filter_map(|region| Some((region, Region::zeroed(part(&region)?.max(1)))));
            _ = device.set_memory(table.collect());
        }
        Request::AddMemReg(region) => {
            // Its length may be another one than that of the memory.
            _ = device.add_memory(&region, memory.clone());
        }
        Request::RemMemReg(region) => _ = device.remove_memory(&region),
        Request::SetVringNum(ring, size) => _ = device.set_size(ring, size),
        Request::SetVringAddr(ring, address) => _ = device.set_address(ring, address),
        Request::SetVringBase(ring, base) => _ = device.set_base(ring, base),
        Request::SetVringEnable(ring, is_enabled) => _ = device.enable(ring, is_enabled),
        Request::SetVringEvent(RingEvent::Kick, ring, _) => _ = device.start(ring),
        Request::GetVringBase(ring) => _ = device.stop(ring),
        Request::SetLogBase(log) => device.set_log(&Region::zeroed(log.size.get().min(4096) as usize)),
        Request::SetInflightFd(given) => {
            _ = device.set_inflight(Region::zeroed(given.size.get().clamp(1, 65536) as usize), given.queues.get());
        }
        Request::GetConfig(offset, len) => assert!(offset + len <= CONFIG_MAX),
        Request::SetConfig(offset, bytes) => assert!(offset + bytes.len() <= CONFIG_MAX),
        _ => {}
    }
}

/// A ring in memory that a guest writes at random, with features that the first byte selects: packed rings if
/// `is_packed`. Descriptors that are available, with any flags and places, are among what is written.
///
/// # Panics
/// When the ring returns other chains than were taken from it, or takes more than it has.
pub fn ring(data: &[u8], is_packed: bool) {
    let Some((first, steps)) = data.split_first() else { return };
    let mut features = if is_packed { feature::RING_PACKED } else { 0 };
    for (bit, feature) in [(1, feature::EVENT_IDX), (2, feature::IN_ORDER)] {
        features |= if first & bit != 0 { feature } else { 0 };
    }
    let (mut device, mut driver) = started(features, RING_SIZE);
    let record = Region::zeroed(VirtioDevice::inflight_len(1, RING_SIZE));
    let ring = RingIndex::from(0);
    if first & 4 != 0 {
        assert_eq!((device.stop(ring).is_ok(), device.set_inflight(record, 1).is_ok()), (true, true));
        assert!(device.start(ring).is_ok());
    }
    let mut taken = Vec::new();
    for step in steps.chunks_exact(STEP) {
        let at = u64::from(u16::from_le_bytes([step[1], step[2]]));
        match step[0] % 6 {
            4 | 5 => {
                let address = match step[4] % 4 {
                    0 => 0x4000,
                    1 => TABLES + at % 0x400,
                    2 => MEMORY_LEN as u64 - u64::from(step[5]),
                    _ => u64::from_le_bytes([step[5], 0, step[6], 0, 0, step[7], 0, step[8]]),
                };
                let len = u32::from_le_bytes([step[9], step[10], 0, step[11]]);
                let flags = u16::from(step[3]) & (NEXT | INDIRECT);
                driver.raw_available(u16::from(step[3] >> 4), (address, len, step[3] & 2 != 0), flags);
            }
            0 | 1 => driver.write(0x1000 + at % 0x200, &step[4..]),
            2 => driver.write(TABLES + at % 0x400, &step[4..]),
            _ => {
                if let Some(chain) = (!taken.is_empty()).then(|| taken.swap_remove(usize::from(step[3]) % taken.len()))
                {
                    let chain: Chain = chain;
                    device.put_back(ring, (chain.id, chain.entries), u32::from(step[4]));
                }
            }
        }
        match device.take(ring) {
            Ok(Some(chain)) => {
                let sum = |ranges: &[Range]| ranges.iter().map(|range| range.len).sum::<u64>();
                assert_eq!((sum(&chain.readable), sum(&chain.writable)), (chain.readable_len, chain.writable_len));
                for parsed in [blk::parse(&device.memory, &chain).is_ok(), scsi::parse(&device.memory, &chain).is_ok()]
                {
                    assert!(!parsed || chain.writable_len > 0);
                }
                taken.push(chain);
            }
            Ok(None) => {}
            Err(_) => assert!(!device.has_work(), "a broken ring has no work"),
        }
        assert_eq!(device.in_progress(ring), taken.len());
        assert!(taken.len() <= usize::from(RING_SIZE), "more is in progress than the ring has");
        let _ = device.arm();
        device.signal(|_| step[3] & 1 == 0);
    }
}

//! The state of a virtio device that messages change: features, memory, rings, the dirty log, the record of requests in
//! progress. Nothing here knows which kind of device it is.

use crate::config::{MEMORY_MAX, RINGS_MAX, SLOTS_MAX};
use crate::ring::inflight::ALIGNMENT;
use crate::ring::{self, Broken, Chain, Part, Ring};
use crate::session::RingIndex;
use crate::wire::{MemoryRegion, VringAddress, feature, protocol};
use lunar_core::mem::Region;
use lunar_guest::Range;
use lunar_guest::dirty::{DirtyBitmap, DirtyLog};
use lunar_guest::map::{AddressMap, Found, MapError};
use lunar_guest::memory::Memory;
use lunar_guest::window::Window;

/// Features that Lunar offers for all devices.
pub const FEATURES: u64 = feature::LOG_ALL
    | feature::INDIRECT_DESC
    | feature::EVENT_IDX
    | feature::PROTOCOL_FEATURES
    | feature::VERSION_1
    | feature::RING_PACKED
    | feature::IN_ORDER;
/// Features of the protocol that Lunar offers.
pub const PROTOCOL: u64 = protocol::MQ
    | protocol::LOG_SHMFD
    | protocol::REPLY_ACK
    | protocol::BACKEND_REQ
    | protocol::CONFIG
    | protocol::INFLIGHT_SHMFD
    | protocol::RESET_DEVICE
    | protocol::CONFIGURE_MEM_SLOTS
    | protocol::STATUS;

/// The mark of the byte behind the record of requests in progress, and the bytes of both.
const NOTE: [u8; 7] = *b"lunar-1";
const NOTE_LEN: usize = 8;

/// A request that the state of the device does not allow. The front-end is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// A ring that the device does not have.
    Ring,
    /// Memory that overlaps, is missing, or is too much.
    Memory(MapError),
    /// The number or the kind of descriptors is wrong.
    Descriptors,
    /// The ring cannot be started.
    Start(Broken),
    /// A ring is started, or its requests are in progress: this cannot change meanwhile.
    Busy,
    /// The connection ends.
    Ended,
    /// It was not negotiated, or the device does not have it.
    Unsupported,
}

impl From<MapError> for Refused {
    fn from(why: MapError) -> Self {
        Self::Memory(why)
    }
}

/// The settings of a ring, from the front-end.
#[derive(Debug, Default)]
struct RingSetup {
    size: u16,
    base: u32,
    address: Option<VringAddress>,
    is_enabled: bool,
    /// Whether it is about to stop: no chain is taken any more.
    is_paused: bool,
    ring: Option<Ring>,
    /// Chains that were taken and not returned.
    in_progress: usize,
}

impl RingSetup {
    fn is_running(&self) -> bool {
        self.is_enabled && !self.is_paused && self.ring.is_some()
    }
}

/// The memory that records requests in progress.
#[derive(Debug)]
struct InflightMemory {
    region: Region,
    queues: u16,
}

/// A virtio device behind vhost-user.
#[derive(Debug)]
pub struct VirtioDevice {
    /// The features that are offered.
    offered: u64,
    /// The features that the driver has accepted.
    features: u64,
    protocol: u64,
    status: u8,
    /// The memory of the guest.
    pub memory: Memory,
    /// Guest addresses, by addresses in the front-end.
    users: AddressMap<u64>,
    slots: u64,
    /// Bytes of all regions.
    bytes: u64,
    rings: Vec<RingSetup>,
    /// The rings that are started and enabled, and from which the device takes every chain.
    active: Vec<RingIndex>,
    /// The ring whose chains the device keeps for what it has to report; it looks at it only when it asks for that.
    reserve: Option<RingIndex>,
    needs_reserve: bool,
    /// A ring from which no chain is taken now: what was taken from it has to end first.
    held_back: Option<RingIndex>,
    /// The ring whose requests need no slot, besides the reserve.
    slotless: Option<RingIndex>,
    /// Whether no chain is taken from rings whose requests need slots: there is none.
    awaits_slot: bool,
    inflight: Option<InflightMemory>,
    log: Option<Window>,
}

impl VirtioDevice {
    /// A device with these features of its own, and this number of rings.
    #[must_use]
    pub fn new(own: u64, rings: usize) -> Self {
        let rings = rings.min(RINGS_MAX);
        Self {
            offered: FEATURES | own,
            features: 0,
            protocol: 0,
            status: 0,
            memory: Memory::default(),
            users: AddressMap::default(),
            slots: 0,
            bytes: 0,
            rings: (0..rings).map(|_| RingSetup::default()).collect(),
            active: Vec::new(),
            reserve: None,
            needs_reserve: false,
            held_back: None,
            slotless: None,
            awaits_slot: false,
            inflight: None,
            log: None,
        }
    }

    /// The same, with a ring whose chains are taken only when the device has something to report.
    #[must_use]
    pub fn with_reserve(self, ring: RingIndex) -> Self {
        Self { reserve: Some(ring), ..self }
    }

    /// The same, with a ring whose requests need no slot.
    #[must_use]
    pub fn with_slotless(self, ring: RingIndex) -> Self {
        Self { slotless: Some(ring), ..self }
    }

    /// Whether the requests of a ring need slots.
    #[must_use]
    pub fn needs_slot(&self, ring: RingIndex) -> bool {
        self.slotless != Some(ring) && self.reserve != Some(ring)
    }

    /// Whether the rings whose requests need slots wait for one: meanwhile they are no work. Returns whether a ring is
    /// left whose requests need none; without such a ring, nothing changes.
    pub fn await_slot(&mut self, awaits_slot: bool) -> bool {
        let has_slotless = self.slotless.is_some();
        if has_slotless && self.awaits_slot != awaits_slot {
            self.awaits_slot = awaits_slot;
            self.find_active();
        }
        has_slotless
    }

    /// Whether the device waits for a chain of its reserve.
    pub fn need_reserve(&mut self, needs_reserve: bool) {
        if self.needs_reserve != needs_reserve {
            self.needs_reserve = needs_reserve;
            self.find_active();
        }
    }

    /// Takes no chain from this ring until further notice: while it waits, it is no work. `None`: takes them all.
    pub fn hold_back(&mut self, ring: Option<RingIndex>) {
        if self.held_back != ring {
            self.held_back = ring;
            self.find_active();
        }
    }

    /// Whether a ring is started and enabled.
    #[must_use]
    pub fn is_running(&self, ring: RingIndex) -> bool {
        self.rings.get(ring.at()).is_some_and(RingSetup::is_running)
    }

    /// The sizes of the rings that are started and enabled.
    #[must_use]
    pub fn running_sizes(&self) -> Vec<u16> {
        self.rings.iter().filter(|setup| setup.is_running()).map(|setup| setup.size).collect()
    }

    /// The features that are offered.
    #[must_use]
    pub fn offered(&self) -> u64 {
        self.offered
    }

    /// Offers other features of the device from now on.
    pub fn offer(&mut self, own: u64) {
        self.offered = FEATURES | own;
    }

    /// The features in force.
    #[must_use]
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The driver has accepted these features. Others than those that were offered are ignored: QEMU returns features
    /// that it offers itself.
    ///
    /// # Errors
    /// [`Refused::Busy`] when a ring is started and would have another layout; then nothing has changed.
    pub fn set_features(&mut self, features: u64) -> Result<(), Refused> {
        // Before migration features of the device may have been others.
        let accepted = features & (self.offered | feature::LOG_ALL);
        let has_other_layout = (accepted ^ self.features) & (feature::RING_PACKED | feature::EVENT_IDX) != 0;
        if has_other_layout && self.rings.iter().any(|setup| setup.ring.is_some()) {
            return Err(Refused::Busy);
        }
        self.features = accepted;
        if features & feature::PROTOCOL_FEATURES == 0 {
            self.rings.iter_mut().for_each(|setup| setup.is_enabled = true);
        }
        self.update_log();
        self.find_active();
        Ok(())
    }

    /// The front-end uses these features of the protocol.
    pub fn set_protocol(&mut self, protocol: u64) {
        self.protocol = protocol & PROTOCOL;
    }

    /// Whether a feature of the protocol is in use.
    #[must_use]
    pub fn uses(&self, feature: u64) -> bool {
        self.protocol & feature != 0
    }

    /// The number of rings.
    #[must_use]
    pub fn count(&self) -> usize {
        self.rings.len()
    }

    /// The device status.
    #[must_use]
    pub fn status(&self) -> u8 {
        self.status
    }

    /// The front-end sets the device status. It implies nothing: front-ends set it in different orders.
    pub fn set_status(&mut self, status: u8) {
        self.status = status;
    }

    /// Checks whether the device may have these regions beside those that stay; returns the bytes of all. Nothing is
    /// mapped before.
    ///
    /// # Errors
    /// [`Refused::Memory`].
    fn check_memory<'a>(kept: u64, regions: impl IntoIterator<Item = &'a MemoryRegion>) -> Result<u64, Refused> {
        let mut sizes = regions.into_iter().map(|region| region.size.get());
        let sum = sizes.try_fold(kept, u64::checked_add).filter(|sum| *sum <= MEMORY_MAX);
        sum.ok_or(Refused::Memory(MapError::TooMany))
    }

    /// Whether the regions of a table are not too much memory.
    ///
    /// # Errors
    /// [`Refused::Memory`].
    pub fn may_have<'a>(table: impl IntoIterator<Item = &'a MemoryRegion>) -> Result<(), Refused> {
        Self::check_memory(0, table).map(|_| ())
    }

    /// Whether the device has not too much memory with one more region.
    ///
    /// # Errors
    /// [`Refused::Memory`].
    pub fn may_add(&self, region: &MemoryRegion) -> Result<(), Refused> {
        if self.slots >= SLOTS_MAX {
            return Err(Refused::Memory(MapError::TooMany));
        }
        Self::check_memory(self.bytes, [region]).map(|_| ())
    }

    /// Replaces all memory; returns the regions before. They are in use until they are dropped everywhere.
    ///
    /// # Errors
    /// [`Refused::Memory`]; then nothing has changed.
    pub fn set_memory(&mut self, table: Vec<(MemoryRegion, Region)>) -> Result<Vec<Region>, Refused> {
        let bytes = Self::check_memory(0, table.iter().map(|(region, _)| region))?;
        let mut users = AddressMap::default();
        for (region, _) in &table {
            users.insert(user_range(region), region.guest.get())?;
        }
        let slots = table.len() as u64;
        let old = self.memory.replace(table.into_iter().map(|(region, memory)| (region.guest.get(), memory)))?;
        (self.users, self.slots, self.bytes) = (users, slots, bytes);
        self.relocate();
        Ok(old)
    }

    /// Adds a region.
    ///
    /// # Errors
    /// [`Refused::Memory`].
    pub fn add_memory(&mut self, region: &MemoryRegion, memory: Region) -> Result<(), Refused> {
        self.may_add(region)?;
        let (guest, size) = (region.guest.get(), region.size.get());
        self.memory.map(guest, size, Some(memory))?;
        if let Err(why) = self.users.insert(user_range(region), guest) {
            // Added just now.
            let _ = self.memory.unmap(guest, size);
            return Err(why.into());
        }
        self.slots += 1;
        self.bytes = self.bytes.saturating_add(size);
        self.relocate();
        Ok(())
    }

    /// Removes a region, which is in use until it is dropped everywhere.
    ///
    /// # Errors
    /// [`Refused::Memory`].
    pub fn remove_memory(&mut self, region: &MemoryRegion) -> Result<Option<Region>, Refused> {
        let user = user_range(region);
        let is_it =
            |found: &Found<'_, u64>| *found.value == region.guest.get() && (found.offset, found.left) == (0, user.len);
        if !self.users.find(user.address).as_ref().is_some_and(is_it) {
            return Err(Refused::Memory(MapError::Missing));
        }
        let memory = self.memory.unmap(region.guest.get(), region.size.get())?;
        self.users.remove(user)?;
        self.slots = self.slots.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(region.size.get());
        self.relocate();
        Ok(memory)
    }

    /// The part of a ring at this address of the front-end.
    fn part(&self, user: u64, len: usize) -> Option<Part> {
        let found = self.users.find(user)?;
        let address = found.value.checked_add(found.offset)?;
        Some(Part { window: self.memory.window(address, len)?, address })
    }

    fn parts(&self, setup: &RingSetup) -> Option<[Part; 3]> {
        let address = setup.address.as_ref()?;
        let [descriptors, available, used] = ring::lengths(self.features, setup.size);
        Some([
            self.part(address.descriptors.get(), descriptors)?,
            self.part(address.available.get(), available)?,
            self.part(address.used.get(), used)?,
        ])
    }

    /// Finds the started rings again after memory or their addresses have changed. A ring whose memory is gone stops:
    /// it must not keep the memory in use.
    fn relocate(&mut self) {
        let all: Vec<Option<[Part; 3]>> = self.rings.iter().map(|setup| self.parts(setup)).collect();
        for (setup, parts) in self.rings.iter_mut().zip(all) {
            match (&mut setup.ring, parts) {
                (Some(ring), Some(parts)) => ring.relocate(parts),
                (Some(ring), None) => {
                    setup.base = ring.base();
                    setup.ring = None;
                }
                (None, _) => {}
            }
        }
        self.find_active();
    }

    fn find_active(&mut self) {
        self.active.clear();
        for (at, setup) in self.rings.iter().enumerate() {
            // There are no more than 256 rings.
            let ring = RingIndex::from(at as u8);
            let is_needed = self.reserve != Some(ring) || self.needs_reserve;
            let has_slot = !self.awaits_slot || !self.needs_slot(ring);
            if setup.is_running() && is_needed && has_slot && self.held_back != Some(ring) {
                self.active.push(ring);
            }
        }
    }

    fn setup(&mut self, ring: RingIndex) -> Result<&mut RingSetup, Refused> {
        self.rings.get_mut(ring.at()).ok_or(Refused::Ring)
    }

    /// Whether the device has this ring.
    #[must_use]
    pub fn has(&self, ring: RingIndex) -> bool {
        ring.at() < self.rings.len()
    }

    /// Sets the number of entries of a ring.
    ///
    /// # Errors
    /// [`Refused::Ring`]; [`Refused::Busy`] when the ring is started.
    pub fn set_size(&mut self, ring: RingIndex, size: u16) -> Result<(), Refused> {
        let setup = self.setup(ring)?;
        if setup.ring.is_some() {
            return Err(Refused::Busy);
        }
        setup.size = size;
        Ok(())
    }

    /// Sets the addresses of a ring, which may be started.
    ///
    /// # Errors
    /// [`Refused::Ring`].
    pub fn set_address(&mut self, ring: RingIndex, address: VringAddress) -> Result<(), Refused> {
        let setup = self.setup(ring)?;
        setup.address = Some(address);
        if setup.ring.is_some() {
            self.relocate();
        }
        Ok(())
    }

    /// Sets the index with which a ring starts.
    ///
    /// # Errors
    /// [`Refused::Ring`].
    pub fn set_base(&mut self, ring: RingIndex, base: u32) -> Result<(), Refused> {
        self.setup(ring)?.base = base;
        Ok(())
    }

    /// Enables or disables a ring.
    ///
    /// # Errors
    /// [`Refused::Ring`].
    pub fn enable(&mut self, ring: RingIndex, is_enabled: bool) -> Result<(), Refused> {
        self.setup(ring)?.is_enabled = is_enabled;
        self.find_active();
        Ok(())
    }

    /// Starts a ring; nothing happens if it is started.
    ///
    /// # Errors
    /// [`Refused::Ring`], [`Refused::Start`]; [`Refused::Busy`] while requests are in progress that were taken from it
    /// before.
    pub fn start(&mut self, ring: RingIndex) -> Result<(), Refused> {
        let features = self.features;
        let record = self.record(ring);
        let setup = self.rings.get(ring.at()).ok_or(Refused::Ring)?;
        if setup.ring.is_some() {
            return Ok(());
        }
        if setup.in_progress > 0 {
            return Err(Refused::Busy);
        }
        let parts = self.parts(setup).ok_or(Refused::Start(Broken::Unreachable))?;
        let started = Ring::new(features, (setup.size, setup.base), parts, record).map_err(Refused::Start)?;
        self.setup(ring)?.ring = Some(started);
        self.find_active();
        Ok(())
    }

    /// The part of the record of requests in progress that belongs to a ring.
    fn record(&self, ring: RingIndex) -> Option<Window> {
        let memory = self.inflight.as_ref()?;
        let stride = memory.region.len() / usize::from(memory.queues) / ALIGNMENT * ALIGNMENT;
        let is_there = ring.at() < usize::from(memory.queues);
        is_there.then(|| Window::new(&memory.region, ring.at() * stride, stride))?
    }

    /// Whether a ring is started.
    #[must_use]
    pub fn is_started(&self, ring: RingIndex) -> bool {
        self.rings.get(ring.at()).is_some_and(|setup| setup.ring.is_some())
    }

    /// No chain is taken from a ring any more. Those that were taken are still returned.
    pub fn pause(&mut self, ring: RingIndex) {
        if let Some(setup) = self.rings.get_mut(ring.at()) {
            setup.is_paused = true;
        }
        self.find_active();
    }

    /// Chains that were taken from a ring and not returned.
    #[must_use]
    pub fn in_progress(&self, ring: RingIndex) -> usize {
        self.rings.get(ring.at()).map_or(0, |setup| setup.in_progress)
    }

    /// Whether no chain is in progress.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.rings.iter().all(|setup| setup.in_progress == 0)
    }

    /// Stops a ring; returns the index with which it continues.
    ///
    /// # Errors
    /// [`Refused::Ring`].
    pub fn stop(&mut self, ring: RingIndex) -> Result<u32, Refused> {
        let setup = self.setup(ring)?;
        setup.is_paused = false;
        if let Some(ring) = setup.ring.take() {
            setup.base = ring.base();
        }
        let base = setup.base;
        self.find_active();
        Ok(base)
    }

    /// No chain is taken from any ring any more.
    pub fn pause_all(&mut self) {
        self.rings.iter_mut().for_each(|setup| setup.is_paused = true);
        self.find_active();
    }

    /// The device returns to its first state. Memory stays: the front-end adds it once.
    pub fn reset(&mut self) {
        self.features = 0;
        self.status = 0;
        self.rings.iter_mut().for_each(|setup| {
            *setup = RingSetup { in_progress: setup.in_progress, ..RingSetup::default() };
        });
        self.active.clear();
        self.inflight = None;
        self.update_log();
    }

    /// All rings.
    pub fn all(&self) -> impl Iterator<Item = RingIndex> + use<> {
        // There are no more than 256 rings.
        (0..self.rings.len()).map(|at| RingIndex::from(at as u8))
    }

    /// The rings that are started and enabled.
    #[must_use]
    pub fn active(&self) -> &[RingIndex] {
        &self.active
    }

    /// Whether a chain has become available in any active ring.
    #[inline]
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.active.iter().any(|ring| self.rings[ring.at()].ring.as_ref().is_some_and(Ring::has_work))
    }

    /// Takes the next chain of a ring.
    ///
    /// # Errors
    /// [`Broken`]: no chain is taken from this ring any more.
    #[inline]
    pub fn take(&mut self, ring: RingIndex) -> Result<Option<Chain>, Broken> {
        let Some(setup) = self.rings.get_mut(ring.at()) else { return Ok(None) };
        let Some(own) = &mut setup.ring else { return Ok(None) };
        let taken = own.take(&self.memory);
        setup.in_progress += usize::from(matches!(taken, Ok(Some(_))));
        taken
    }

    /// Returns a chain, of which `len` bytes were written.
    #[inline]
    pub fn put_back(&mut self, ring: RingIndex, id: (u16, u16), len: u32) {
        let Some(setup) = self.rings.get_mut(ring.at()) else { return };
        setup.in_progress = setup.in_progress.saturating_sub(1);
        if let Some(own) = &mut setup.ring {
            own.put_back(&self.memory, id, len);
        }
    }

    /// A chain that was taken is not returned.
    pub fn forget(&mut self, ring: RingIndex) {
        if let Some(setup) = self.rings.get_mut(ring.at()) {
            setup.in_progress = setup.in_progress.saturating_sub(1);
        }
    }

    /// A chain that was taken from this ring is no request of the device: the ring ends, and the chain is not returned.
    pub fn break_down(&mut self, ring: RingIndex) {
        self.forget(ring);
        if let Some(own) = self.rings.get_mut(ring.at()).and_then(|setup| setup.ring.as_mut()) {
            own.break_down();
        }
    }

    /// The next notification of a ring is not suppressed: another descriptor carries it.
    pub fn signal_again(&mut self, ring: RingIndex) {
        if let Some(own) = self.rings.get_mut(ring.at()).and_then(|setup| setup.ring.as_mut()) {
            own.signal_again();
        }
    }

    /// Asks the driver to notify; returns whether nothing has become available in any active ring.
    /// With work in one of them, the others need not be asked: the next turn asks again.
    #[must_use]
    pub fn arm(&self) -> bool {
        let mut rings = self.active.iter().filter_map(|ring| self.rings[ring.at()].ring.as_ref());
        rings.all(|ring| ring.arm(&self.memory))
    }

    /// Asks the driver not to notify.
    pub fn disarm(&self) {
        let rings = self.active.iter().filter_map(|ring| self.rings[ring.at()].ring.as_ref());
        rings.for_each(|ring| ring.disarm(&self.memory));
    }

    /// Calls `signal` for each ring whose driver wants to be notified; a notification that it refuses is repeated the
    /// next time. Returns whether all were notified.
    pub fn signal(&mut self, mut signal: impl FnMut(RingIndex) -> bool) -> bool {
        let mut all = true;
        for (at, setup) in self.rings.iter_mut().enumerate() {
            let Some(ring) = &mut setup.ring else { continue };
            // There are no more than 256 rings.
            if ring.take_signal() && !signal((at as u8).into()) {
                ring.signal_again();
                all = false;
            }
        }
        all
    }

    /// Bytes of the memory for the record of requests in progress. There is room for packed rings: the front-end may
    /// ask before the features are known.
    #[must_use]
    pub fn inflight_len(queues: u16, size: u16) -> usize {
        usize::from(queues) * (ring::inflight::length(size) * 2) + ALIGNMENT
    }

    /// Keeps a byte of the device beside the record of requests in progress, for the next process.
    pub fn note(&self, value: u8) {
        if let Some((region, at)) = self.note_place() {
            let [a, b, c, d, e, f, g] = NOTE;
            // It lies within the memory.
            let _ = region.write(at, &[a, b, c, d, e, f, g, value]);
        }
    }

    /// The byte that a process before this one has kept. `None`: there is none.
    #[must_use]
    pub fn noted(&self) -> Option<u8> {
        let (region, at) = self.note_place()?;
        let mut bytes = [0; NOTE_LEN];
        let [mark @ .., value] = bytes_of(region, at, &mut bytes)?;
        (*mark == NOTE).then_some(*value)
    }

    fn note_place(&self) -> Option<(&Region, usize)> {
        let region = &self.inflight.as_ref()?.region;
        Some((region, region.len().checked_sub(NOTE_LEN)?))
    }

    /// Records requests in progress in this memory from now on.
    ///
    /// # Errors
    /// [`Refused::Unsupported`] without a queue.
    pub fn set_inflight(&mut self, region: Region, queues: u16) -> Result<(), Refused> {
        if queues == 0 {
            return Err(Refused::Unsupported);
        }
        self.inflight = Some(InflightMemory { region, queues });
        Ok(())
    }

    /// Logs writes in this memory while the driver's features say so.
    pub fn set_log(&mut self, region: &Region) {
        self.log = Window::new(region, 0, region.len());
        self.memory.stop_log();
        self.update_log();
    }

    fn update_log(&mut self) {
        match &self.log {
            Some(bits) if self.features & feature::LOG_ALL != 0 => {
                if !self.memory.is_logged() {
                    self.memory.start_log(DirtyLog::Bitmap(DirtyBitmap::new(bits.clone())));
                }
            }
            _ => _ = self.memory.stop_log(),
        }
    }
}

fn bytes_of<'a>(region: &Region, at: usize, bytes: &'a mut [u8; NOTE_LEN]) -> Option<&'a [u8; NOTE_LEN]> {
    region.read(at, bytes).then_some(bytes)
}

fn user_range(region: &MemoryRegion) -> Range {
    Range { address: region.user.get(), len: region.size.get() }
}

#[cfg(test)]
#[path = "virtio_tests.rs"]
mod tests;

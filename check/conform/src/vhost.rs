//! A vhost-user front-end and the driver of its guest in one: the messages, a memory file, and split or packed rings in
//! that file. It accesses the file by reads and writes and does not map it. It can break every rule.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IoSlice, Read, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, sendmsg, socket_with,
};

use crate::session::cdb;

/// Requests of the front-end.
pub(crate) mod code {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_OWNER: u32 = 3;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_ERR: u32 = 14;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const GET_QUEUE_NUM: u32 = 17;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const GET_INFLIGHT_FD: u32 = 31;
    pub(crate) const RESET_DEVICE: u32 = 34;
    pub(crate) const ADD_MEM_REG: u32 = 37;
    pub(crate) const REM_MEM_REG: u32 = 38;
    pub(crate) const GET_STATUS: u32 = 40;

    /// The requests whose reply is more than an acknowledgement.
    pub(crate) const ANSWERED: [u32; 6] =
        [GET_FEATURES, GET_VRING_BASE, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM, GET_INFLIGHT_FD, GET_STATUS];
}

/// Features of the protocol: several rings, acknowledgements, configuration space, record of requests in progress,
/// reset, regions one by one, device status.
const PROTOCOL: u64 = 1 | 1 << 3 | 1 << 9 | 1 << 12 | 1 << 13 | 1 << 15 | 1 << 16;
/// Features of the device: indirect descriptors, features of the protocol, virtio 1.
const FEATURES: u64 = 1 << 28 | 1 << 30 | 1 << 32;
/// Features of virtio-blk: FLUSH, MQ, DISCARD, WRITE_ZEROES.
const DISK_FEATURES: u64 = 1 << 9 | 1 << 12 | 1 << 13 | 1 << 14;
/// The feature of packed rings.
const PACKED_FEATURE: u64 = 1 << 34;
/// Flags of a message: version 1, and the wish for an acknowledgement.
const VERSION: u32 = 1;
const NEED_REPLY: u32 = 8;
/// Flags of a descriptor.
pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;
/// Flags of a descriptor of a packed ring, which are compared with wrap counters.
pub(crate) const AVAILABLE: u16 = 1 << 7;
pub(crate) const USED: u16 = 1 << 15;

/// Bytes of guest memory, which begins at address zero, and its address in the front-end.
pub(crate) const MEMORY: u64 = 16 << 20;
pub(crate) const USER: u64 = 0x7f00_0000_0000;
/// Entries of a ring.
pub(crate) const ENTRIES: u16 = 1024;
/// The rings for which memory is laid out.
const RINGS_MAX: u16 = 4;
/// The address of data buffers.
pub(crate) const DATA: u64 = 2 << 20;
/// Parts of the place of a request: header, answer, table of descriptors.
const PLACE: u64 = 256;
const ANSWER_AT: u64 = 64;
const TABLE_AT: u64 = 176;
/// A target that has not answered by then is taken for hung.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_micros(50);
/// Types of requests of virtio-blk.
pub(crate) const IN: u32 = 0;
pub(crate) const OUT: u32 = 1;
/// Unit attentions that a unit may report before it executes a command.
const ATTENTIONS_MAX: u32 = 4;

/// A piece of the memory of a request: guest address, bytes, whether the device writes.
pub(crate) type Piece = (u64, u32, bool);

/// A piece with the flags of its descriptor, besides those that say who writes and whether it is available.
pub(crate) type Link = (Piece, u16);

/// The kind of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Blk,
    Scsi,
}

impl Kind {
    /// The first ring of requests.
    pub(crate) fn first(self) -> u16 {
        if self == Self::Scsi { 2 } else { 0 }
    }

    /// Bytes of the answer to a request. The status of virtio-blk is behind the data, the answer of virtio-scsi before
    /// it.
    pub(crate) fn answer_len(self) -> u32 {
        if self == Self::Scsi { 108 } else { 1 }
    }
}

/// The layout of rings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    Split,
    Packed,
}

/// A ring, as the driver of the guest sees it.
struct Ring {
    kick: OwnedFd,
    /// The target reports here that the ring is broken.
    error: OwnedFd,
    free: Vec<u16>,
    /// The next index; in a packed ring the next place, with the wrap counter there.
    available: u16,
    used: u16,
    wraps: [bool; 2],
    /// In a packed ring, the entries of the requests in progress, by their identifiers.
    entries: BTreeMap<u16, u16>,
}

impl Ring {
    fn new() -> Result<Self> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (free, entries) = (Vec::new(), BTreeMap::new());
        Ok(Self { kick: event()?, error: event()?, free, available: 0, used: 0, wraps: [true; 2], entries })
    }
}

/// The address of a ring: its descriptors. The other parts are behind them.
pub(crate) fn ring_at(ring: u16) -> u64 {
    u64::from(ring) * 0x1_0000
}

/// The available ring of a split ring, or the event suppression structure of the driver of a packed one.
pub(crate) fn available_at(ring: u16) -> u64 {
    ring_at(ring) + 0x4000
}

fn used_at(ring: u16) -> u64 {
    ring_at(ring) + 0x6000
}

/// The place of the request with this descriptor.
fn place(ring: u16, id: u16) -> u64 {
    (1 << 20) + u64::from(ring * ENTRIES + id) * PLACE
}

/// Where the answer to the request with this descriptor is.
pub(crate) fn answer_at(ring: u16, id: u16) -> u64 {
    place(ring, id) + ANSWER_AT
}

pub(crate) struct FrontEnd {
    socket: UnixStream,
    pub(crate) kind: Kind,
    layout: Layout,
    pub(crate) memory: File,
    rings: Vec<Ring>,
}

impl FrontEnd {
    /// Connects without sending anything. Does not wait for a target that accepts no more connections.
    pub(crate) fn connect(path: &Path, kind: Kind) -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?).with_context(|| format!("{}", path.display()))?;
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(ANSWER_LIMIT))?;
        socket.set_write_timeout(Some(ANSWER_LIMIT))?;
        let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        memory.set_len(MEMORY)?;
        Ok(Self { socket, kind, layout: Layout::Split, memory, rings: Vec::new() })
    }

    /// Connects, and starts all rings of the device up to the last of `queues` for requests.
    pub(crate) fn boot(path: &Path, kind: Kind, layout: Layout, queues: u16) -> Result<Self> {
        let mut front = Self { layout, ..Self::connect(path, kind)? };
        front.call(code::GET_PROTOCOL_FEATURES, &[], &[])?;
        front.call(code::SET_PROTOCOL_FEATURES, &PROTOCOL.to_le_bytes(), &[])?;
        front.call(code::SET_OWNER, &[], &[])?;
        front.share_memory()?;
        front.start(kind.first() + queues)?;
        Ok(front)
    }

    /// Accepts features and starts this number of rings.
    pub(crate) fn start(&mut self, rings: u16) -> Result<()> {
        ensure!(rings <= RINGS_MAX, "there is memory for {RINGS_MAX} rings");
        let own = if self.kind == Kind::Blk { DISK_FEATURES } else { 0 };
        let layout = if self.layout == Layout::Packed { PACKED_FEATURE } else { 0 };
        self.call(code::SET_FEATURES, &(FEATURES | own | layout).to_le_bytes(), &[])?;
        self.rings.clear();
        for ring in 0..rings {
            self.rings.push(Ring::new()?);
            self.set_up(ring)?;
        }
        Ok(())
    }

    /// Starts a ring that is stopped; nothing is in it.
    pub(crate) fn set_up(&mut self, ring: u16) -> Result<()> {
        self.memory.write_all_at(&[0; 0x6000], available_at(ring))?;
        let state = |number: u32| [u32::from(ring), number].map(u32::to_le_bytes).concat();
        self.call(code::SET_VRING_NUM, &state(ENTRIES.into()), &[])?;
        let base = match self.layout {
            Layout::Split => 0,
            Layout::Packed => {
                self.memory.write_all_at(&[0; 0x4000], ring_at(ring))?;
                // Both wrap counters are one.
                0x8000_8000
            }
        };
        self.call(code::SET_VRING_BASE, &state(base), &[])?;
        let mut address = state(0);
        for at in [ring_at(ring), used_at(ring), available_at(ring)] {
            address.extend((USER + at).to_le_bytes());
        }
        address.extend([0; 8]);
        self.call(code::SET_VRING_ADDR, &address, &[])?;
        // The first descriptor is the first one that is used.
        self.rings[usize::from(ring)] = Ring { free: (0..ENTRIES).rev().collect(), ..Ring::new()? };
        let error = self.rings[usize::from(ring)].error.try_clone()?;
        self.call(code::SET_VRING_ERR, &u64::from(ring).to_le_bytes(), &[error.as_fd()])?;
        self.start_ring(ring)?;
        self.call(code::SET_VRING_ENABLE, &state(1), &[]).map(drop)
    }

    /// Starts a ring whose size, base and places are set.
    pub(crate) fn start_ring(&mut self, ring: u16) -> Result<()> {
        let kick = self.rings[usize::from(ring)].kick.try_clone()?;
        self.call(code::SET_VRING_KICK, &u64::from(ring).to_le_bytes(), &[kick.as_fd()]).map(drop)
    }

    /// Stops a ring. The device returns all requests before.
    pub(crate) fn stop(&mut self, ring: u16) -> Result<()> {
        self.call(code::GET_VRING_BASE, &[u32::from(ring), 0].map(u32::to_le_bytes).concat(), &[]).map(drop)
    }

    /// Shares the memory of the guest, instead of what was shared before.
    pub(crate) fn share_memory(&mut self) -> Result<()> {
        let table = [&[1_u32, 0].map(u32::to_le_bytes).concat()[..], &region(0, MEMORY, USER)].concat();
        let memory = self.memory.try_clone()?;
        self.call(code::SET_MEM_TABLE, &table, &[memory.as_fd()]).map(drop)
    }

    /// Sends bytes that need not be a message.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.socket.write_all(bytes)?)
    }

    /// Sends a message and waits for its reply, or for the acknowledgement that it has succeeded.
    pub(crate) fn call(&mut self, code: u32, payload: &[u8], files: &[BorrowedFd<'_>]) -> Result<Vec<u8>> {
        let bytes = message(code, payload);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        ensure!(files.is_empty() || control.push(SendAncillaryMessage::ScmRights(files)), "too many files");
        let sent = sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        self.socket.write_all(&bytes[sent..])?;
        let (answered, payload) = self.reply()?;
        ensure!(answered == code, "the reply to message {code} is that to message {answered}");
        ensure!(code::ANSWERED.contains(&code) || payload == [0; 8], "message {code} was refused");
        Ok(payload)
    }

    /// The next reply: the code of its message, and the payload.
    pub(crate) fn reply(&mut self) -> Result<(u32, Vec<u8>)> {
        let mut head = [0; 12];
        self.socket.read_exact(&mut head).context("no reply")?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        ensure!(word(4) & 7 == VERSION | 4, "this is no reply");
        let mut payload = vec![0; word(8) as usize];
        self.socket.read_exact(&mut payload)?;
        Ok((word(0), payload))
    }

    /// Limits the time in which a message must be sent.
    pub(crate) fn set_patience(&self, send: Duration, receive: Duration) -> Result<()> {
        self.socket.set_write_timeout(Some(send))?;
        Ok(self.socket.set_read_timeout(Some(receive))?)
    }

    /// A free descriptor of a ring.
    pub(crate) fn free(&mut self, ring: u16) -> Option<u16> {
        self.rings.get_mut(usize::from(ring))?.free.pop()
    }

    /// Whether nothing is in a ring.
    pub(crate) fn is_empty(&self, ring: u16) -> bool {
        self.rings.get(usize::from(ring)).is_some_and(|state| state.free.len() == usize::from(ENTRIES))
    }

    /// Writes the parts of a request into its place: header, data to the device, data from it, and its answer.
    pub(crate) fn describe(&self, ring: u16, id: u16, header: &[u8], data: [Option<Piece>; 2]) -> Result<()> {
        let (at, pieces) = (place(ring, id), self.pieces(ring, id, header, data)?);
        self.write_table(at + TABLE_AT, &pieces)?;
        self.refer(ring, id, at + TABLE_AT, pieces.len())
    }

    /// Writes the header of a request into its place; returns all pieces of the request.
    pub(crate) fn pieces(
        &self,
        ring: u16,
        id: u16,
        header: &[u8],
        [out, into]: [Option<Piece>; 2],
    ) -> Result<Vec<Piece>> {
        let at = place(ring, id);
        self.memory.write_all_at(header, at)?;
        let answer = (answer_at(ring, id), self.kind.answer_len(), true);
        let head = (at, u32::try_from(header.len())?, false);
        let pieces = match self.kind {
            Kind::Blk => [Some(head), out, into, Some(answer)],
            Kind::Scsi => [Some(head), out, Some(answer), into],
        };
        Ok(pieces.into_iter().flatten().collect())
    }

    /// Writes a table of descriptors.
    pub(crate) fn write_table(&self, at: u64, pieces: &[Piece]) -> Result<()> {
        let mut bytes = Vec::new();
        for (number, piece) in pieces.iter().enumerate() {
            let next = u16::try_from(number + 1)?;
            let flags = if usize::from(next) < pieces.len() { NEXT } else { 0 };
            bytes.extend(descriptor(*piece, flags, next));
        }
        Ok(self.memory.write_all_at(&bytes, at)?)
    }

    /// Has a descriptor refer to a table of so many others.
    pub(crate) fn refer(&self, ring: u16, id: u16, table: u64, count: usize) -> Result<()> {
        self.write_descriptor(ring, id, (table, u32::try_from(count * 16)?, false), INDIRECT, 0)
    }

    /// Writes a descriptor of a ring.
    pub(crate) fn write_descriptor(&self, ring: u16, id: u16, piece: Piece, flags: u16, next: u16) -> Result<()> {
        Ok(self.memory.write_all_at(&descriptor(piece, flags, next), ring_at(ring) + u64::from(id) * 16)?)
    }

    /// Makes a chain available whose descriptors have these flags besides those that a layout sets. In a split ring the
    /// last one is followed by the first; in a packed ring by that which comes next. Returns its identifier.
    pub(crate) fn offer_chain(&mut self, ring: u16, pieces: &[Link]) -> Result<u16> {
        if self.layout == Layout::Split {
            let ids: Option<Vec<u16>> = pieces.iter().map(|_| self.free(ring)).collect();
            let ids = ids.context("the ring is full")?;
            for (at, (piece, flags)) in pieces.iter().enumerate() {
                let next = ids.get(at + 1).unwrap_or(&ids[0]);
                self.write_descriptor(ring, ids[at], *piece, *flags, *next)?;
            }
            self.offer(ring, ids[0])?;
            return Ok(ids[0]);
        }
        let id = self.free(ring).context("the ring is full")?;
        let first = self.rings[usize::from(ring)].available;
        let mut first_flags = 0;
        for (at, (piece, flags)) in pieces.iter().enumerate() {
            let state = &mut self.rings[usize::from(ring)];
            let (place, wrap) = (state.available, state.wraps[0]);
            (state.available, state.wraps[0]) = after(place, 1, wrap);
            let flags = flags | if wrap { AVAILABLE } else { USED };
            if at == 0 {
                first_flags = flags | if piece.2 { WRITE } else { 0 };
            }
            // The first one is not available before the others are there.
            self.write_entry(ring, place, *piece, id, if at == 0 { flags ^ AVAILABLE ^ USED } else { flags })?;
        }
        self.rings[usize::from(ring)].entries.insert(id, u16::try_from(pieces.len())?);
        self.memory.write_all_at(&first_flags.to_le_bytes(), ring_at(ring) + u64::from(first) * 16 + 14)?;
        Ok(id)
    }

    /// Writes an entry of a packed ring.
    pub(crate) fn write_entry(&self, ring: u16, place: u16, piece: Piece, id: u16, flags: u16) -> Result<()> {
        let flags = flags | if piece.2 { WRITE } else { 0 };
        let (address, len, _) = piece;
        let bytes = [&address.to_le_bytes()[..], &len.to_le_bytes(), &id.to_le_bytes(), &flags.to_le_bytes()].concat();
        Ok(self.memory.write_all_at(&bytes, ring_at(ring) + u64::from(place) * 16)?)
    }

    /// Makes a request available.
    pub(crate) fn offer(&mut self, ring: u16, id: u16) -> Result<()> {
        let Some(state) = self.rings.get_mut(usize::from(ring)) else { return Ok(()) };
        let entry = available_at(ring) + 4 + u64::from(state.available % ENTRIES) * 2;
        state.available = state.available.wrapping_add(1);
        self.memory.write_all_at(&id.to_le_bytes(), entry)?;
        Ok(self.memory.write_all_at(&state.available.to_le_bytes(), available_at(ring) + 2)?)
    }

    /// Notifies the device.
    pub(crate) fn kick(&self, ring: u16) -> Result<()> {
        let Some(state) = self.rings.get(usize::from(ring)) else { return Ok(()) };
        match retry_on_intr(|| rustix::io::write(&state.kick, &1_u64.to_le_bytes())) {
            // A counter that is full tells the same.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(why) => Err(why.into()),
        }
    }

    /// The next request that the device has returned. Its descriptor is free again.
    pub(crate) fn returned(&mut self, ring: u16) -> Result<Option<u16>> {
        let Some(state) = self.rings.get_mut(usize::from(ring)) else { return Ok(None) };
        if self.layout == Layout::Packed {
            let mut entry = [0; 4];
            self.memory.read_exact_at(&mut entry, ring_at(ring) + u64::from(state.used) * 16 + 12)?;
            let [id, flags] = [[entry[0], entry[1]], [entry[2], entry[3]]].map(u16::from_le_bytes);
            if [flags & AVAILABLE != 0, flags & USED != 0] != [state.wraps[1]; 2] {
                return Ok(None);
            }
            let entries = state.entries.remove(&id).with_context(|| format!("request {id} was not in ring {ring}"))?;
            (state.used, state.wraps[1]) = after(state.used, entries, state.wraps[1]);
            state.free.push(id);
            return Ok(Some(id));
        }
        let mut index = [0; 2];
        self.memory.read_exact_at(&mut index, used_at(ring) + 2)?;
        if u16::from_le_bytes(index) == state.used {
            return Ok(None);
        }
        let mut entry = [0; 2];
        self.memory.read_exact_at(&mut entry, used_at(ring) + 4 + u64::from(state.used % ENTRIES) * 8)?;
        let id = u16::from_le_bytes(entry);
        ensure!(id < ENTRIES && !state.free.contains(&id), "descriptor {id} of ring {ring} was returned twice");
        state.used = state.used.wrapping_add(1);
        state.free.push(id);
        if state.free.len() == usize::from(ENTRIES) {
            state.free.sort_unstable_by(|one, other| other.cmp(one));
        }
        Ok(Some(id))
    }

    /// Runs a request that is the only one in its ring; returns its answer.
    pub(crate) fn run(&mut self, ring: u16, header: &[u8], data: [Option<Piece>; 2]) -> Result<Vec<u8>> {
        let id = self.free(ring).context("the ring is full")?;
        let mut answer = vec![0xa5; self.kind.answer_len() as usize];
        self.memory.write_all_at(&answer, answer_at(ring, id))?;
        match self.layout {
            Layout::Split => {
                self.describe(ring, id, header, data)?;
                self.offer(ring, id)?;
            }
            Layout::Packed => {
                let pieces = self.pieces(ring, id, header, data)?;
                // It takes the same identifier again.
                self.rings[usize::from(ring)].free.push(id);
                self.offer_chain(ring, &linked(&pieces))?;
            }
        }
        self.kick(ring)?;
        let returned = self.wait_for(ring)?;
        ensure!(returned == id, "request {returned} has ended, not {id}");
        self.memory.read_exact_at(&mut answer, answer_at(ring, id))?;
        Ok(answer)
    }

    /// Waits until the device returns a request.
    pub(crate) fn wait_for(&mut self, ring: u16) -> Result<u16> {
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            if let Some(id) = self.returned(ring)? {
                return Ok(id);
            }
            ensure!(Instant::now() < end, "a request of ring {ring} has not ended after {} s", ANSWER_LIMIT.as_secs());
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until the device reports that a ring is broken.
    pub(crate) fn wait_for_error(&self, ring: u16) -> Result<()> {
        let state = self.rings.get(usize::from(ring)).context("no such ring")?;
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            match retry_on_intr(|| rustix::io::read(&state.error, &mut [0; 8])) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN) => {}
                Err(why) => return Err(why.into()),
            }
            ensure!(Instant::now() < end, "ring {ring} is not broken after {} s", ANSWER_LIMIT.as_secs());
            std::thread::sleep(PAUSE);
        }
    }

    /// Reads or writes `len` bytes at this block of 512 bytes of a unit; the data is in guest memory at `DATA`. Only
    /// the first queue is used, and nothing else is in it.
    pub(crate) fn transfer(&mut self, is_write: bool, (lun, block): (u16, u32), len: u32) -> Result<()> {
        let piece = Some((DATA, len, !is_write));
        let data = if is_write { [piece, None] } else { [None, piece] };
        let first = self.kind.first();
        let is_good = match self.kind {
            Kind::Blk => {
                let kind = if is_write { OUT } else { IN };
                self.run(first, &disk_header(kind, block.into()), data)? == [0]
            }
            Kind::Scsi => {
                let make = if is_write { cdb::write } else { cdb::read };
                let header = command_header(lun, 1, &make(block.into(), len / 512));
                let mut answer = self.run(first, &header, data)?;
                // Unit attentions are reported once: the first one, and those of what the device has just seen.
                for _ in 0..ATTENTIONS_MAX {
                    if answer[10..12] == [2, 0] {
                        answer = self.run(first, &header, data)?;
                    }
                }
                answer[10..12] == [0, 0]
            }
        };
        ensure!(is_good, "the request has failed");
        Ok(())
    }

    /// Writes data, overwrites it in memory, and reads it back.
    pub(crate) fn write_and_verify(&mut self, (lun, block): (u16, u32), data: &[u8]) -> Result<()> {
        let len = u32::try_from(data.len())?;
        self.memory.write_all_at(data, DATA)?;
        self.transfer(true, (lun, block), len)?;
        let mut found = vec![0; data.len()];
        self.memory.write_all_at(&found, DATA)?;
        self.transfer(false, (lun, block), len)?;
        self.memory.read_exact_at(&mut found, DATA)?;
        ensure!(found == data, "other data than was written");
        Ok(())
    }
}

/// The pieces of a request with the flags of a chain.
pub(crate) fn linked(pieces: &[Piece]) -> Vec<Link> {
    let last = pieces.len().saturating_sub(1);
    pieces.iter().enumerate().map(|(at, piece)| (*piece, if at < last { NEXT } else { 0 })).collect()
}

/// The place in a packed ring, and its wrap counter, so many entries after this one.
fn after(place: u16, entries: u16, wrap: bool) -> (u16, bool) {
    let next = place + entries;
    if next >= ENTRIES { (next - ENTRIES, !wrap) } else { (next, wrap) }
}

/// A message that wants to be acknowledged.
pub(crate) fn message(code: u32, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    [&[code, VERSION | NEED_REPLY, size].map(u32::to_le_bytes).concat()[..], payload].concat()
}

/// The description of a region of memory, from the first byte of its file on.
pub(crate) fn region(guest: u64, size: u64, user: u64) -> Vec<u8> {
    [guest, size, user, 0].map(u64::to_le_bytes).concat()
}

fn descriptor((address, len, is_written): Piece, flags: u16, next: u16) -> Vec<u8> {
    let flags = flags | if is_written { WRITE } else { 0 };
    [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat()
}

/// The header of a request of virtio-blk.
pub(crate) fn disk_header(kind: u32, sector: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat()
}

/// The header of a command of virtio-scsi.
pub(crate) fn command_header(lun: u16, tag: u64, cdb: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 51];
    // Flat addressing.
    let [high, low] = (lun | 0x4000).to_be_bytes();
    header[..4].copy_from_slice(&[1, 0, high, low]);
    header[8..16].copy_from_slice(&tag.to_le_bytes());
    header[19..19 + cdb.len()].copy_from_slice(cdb);
    header
}

/// A task management function of virtio-scsi.
pub(crate) fn task_management(function: u32, lun: u16, tag: u64) -> Vec<u8> {
    let header = command_header(lun, tag, &[]);
    [&[0; 4][..], &function.to_le_bytes(), &header[..16]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_headers_have_their_fields_at_the_specified_offsets() {
        assert_eq!(message(34, &[]), [34, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        let header = disk_header(11, 3);
        assert_eq!((header.len(), header[0], header[8]), (16, 11, 3));
        let header = command_header(2, 7, &[0x12, 1]);
        assert_eq!(
            (header.len(), &header[..4], header[8], &header[19..21]),
            (51, &[1, 0, 0x40, 2][..], 7, &[0x12, 1][..])
        );
        assert_eq!(task_management(5, 2, 7)[4..12], [5, 0, 0, 0, 1, 0, 0x40, 2]);
        assert_eq!(descriptor((1, 2, true), NEXT, 9), [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 9, 0]);
    }

    #[test]
    fn the_parts_of_guest_memory_do_not_overlap() {
        let last = RINGS_MAX - 1;
        assert!(used_at(last) + 6 + 8 * u64::from(ENTRIES) <= place(0, 0));
        assert!(place(last, ENTRIES - 1) + PLACE <= DATA);
        const { assert!(ANSWER_AT + 108 <= TABLE_AT && TABLE_AT + 5 * 16 <= PLACE) };
    }
}

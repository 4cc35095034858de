//! An AF_XDP socket on a queue of an interface.

use super::super::super::batch::{Counters, Datagram, ReceiveBatch, VlanTag};
use super::super::frame::{ADDRESSES, HEADER};
use super::TAG;
use super::memory::{Memory, room_for};
use super::ring::{Kind, Ring, make};
use crate::sys::{call, count, raw};
use libc::{xdp_desc, xdp_mmap_offsets, xdp_options, xdp_statistics};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The most pieces of a frame: as many as the kernel gives to a packet (MAX_SKB_FRAGS and the first).
const PIECES_MAX: u32 = 18;
/// The number of frames that one call examines for each frame that there is room for: further ones are dropped.
const LOOKS_PER_FRAME: usize = 4;
/// The kernel frees the queue of a socket a moment after it was closed, as by a process that was killed: some
/// milliseconds, and more on a busy machine.
const RELEASE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);
const SOCKETS: AddressFamily = AddressFamily::from_raw(libc::AF_XDP as u16);

/// The properties that all sockets of a link have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared<'a> {
    pub(super) memory: &'a Memory,
    pub(super) interface: u32,
    /// The entries of rings for received frames.
    pub(super) receive: u32,
    /// The entries of rings for frames to send.
    pub(super) send: u32,
    /// Whether frames may be in several chunks.
    pub(super) has_pieces: bool,
    /// Whether the kernel copies frames, because the driver has no XDP.
    pub(super) copies: bool,
}

/// A socket that receives the frames of one queue.
#[derive(Debug)]
pub(super) struct Queue {
    /// Declared before the socket: unmapped first.
    fill: Ring<u64>,
    receive: Ring<xdp_desc>,
    fd: OwnedFd,
}

impl Shared<'_> {
    /// The socket of the first queue, which has the memory, and sends.
    ///
    /// # Errors
    /// Errors of socket(2), setsockopt(2), mmap(2) and bind(2).
    pub(super) fn first(&self) -> io::Result<(Queue, Ring<xdp_desc>, Ring<u64>)> {
        let fd = open()?;
        self.memory.register(&fd)?;
        self.make_rings(&fd)?;
        make(&fd, Kind::Transmit, self.send)?;
        let offsets = offsets(&fd)?;
        let transmit = Ring::map(&fd, Kind::Transmit, self.send, &offsets)?;
        let completion = Ring::map(&fd, Kind::Completion, self.send, &offsets)?;
        let mut flags = libc::XDP_USE_NEED_WAKEUP;
        if self.has_pieces {
            flags |= libc::XDP_USE_SG;
        }
        // Otherwise the kernel chooses: without copies if the driver can.
        if self.copies {
            flags |= libc::XDP_COPY;
        }
        self.bind(&fd, 0, flags, 0)?;
        Ok((self.queue(fd, &offsets)?, transmit, completion))
    }

    /// The socket of a further queue, on the memory of the first.
    ///
    /// # Errors
    /// As above.
    pub(super) fn next(&self, number: usize, first: &OwnedFd) -> io::Result<Queue> {
        let fd = open()?;
        self.make_rings(&fd)?;
        self.bind(&fd, number as u32, libc::XDP_SHARED_UMEM, raw(first) as u32)?;
        let offsets = offsets(&fd)?;
        self.queue(fd, &offsets)
    }

    /// The kernel wants the ring of completions also where nothing is sent.
    fn make_rings(&self, fd: &OwnedFd) -> io::Result<()> {
        make(fd, Kind::Fill, self.receive)?;
        make(fd, Kind::Completion, self.send)?;
        make(fd, Kind::Receive, self.receive)
    }

    fn queue(&self, fd: OwnedFd, offsets: &xdp_mmap_offsets) -> io::Result<Queue> {
        let fill = Ring::map(&fd, Kind::Fill, self.receive, offsets)?;
        let receive = Ring::map(&fd, Kind::Receive, self.receive, offsets)?;
        Ok(Queue { fill, receive, fd })
    }

    fn bind(&self, fd: &OwnedFd, queue: u32, flags: u16, first: u32) -> io::Result<()> {
        let name = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: self.interface,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: first,
        };
        let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
        let end = Instant::now() + RELEASE;
        loop {
            // SAFETY: the kernel reads one address, which lives until the call is over.
            if unsafe { libc::bind(raw(fd), (&raw const name).cast(), len) } == 0 {
                return Ok(());
            }
            let why = io::Error::last_os_error();
            if why.raw_os_error() != Some(libc::EBUSY) || Instant::now() > end {
                return Err(why);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(SOCKETS, SocketType::RAW, flags, None)?)
}

/// Reads an option of a socket.
fn option<T: Copy>(fd: &OwnedFd, number: libc::c_int, mut value: T) -> io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most as many bytes as the value has, which is a structure of integers.
    let result = unsafe { libc::getsockopt(raw(fd), libc::SOL_XDP, number, (&raw mut value).cast(), &raw mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

fn offsets(fd: &OwnedFd) -> io::Result<xdp_mmap_offsets> {
    let one = libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
    option(fd, libc::XDP_MMAP_OFFSETS, xdp_mmap_offsets { rx: one, tx: one, fr: one, cr: one })
}

impl Queue {
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Whether the driver moves frames from and to the memory itself.
    pub(super) fn is_zero_copy(&self) -> bool {
        let options = option(&self.fd, libc::XDP_OPTIONS, xdp_options { flags: 0 });
        options.is_ok_and(|options| options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// The frames of the queue that had no room.
    pub(super) fn drops(&self) -> u64 {
        let none = xdp_statistics {
            rx_dropped: 0,
            rx_invalid_descs: 0,
            tx_invalid_descs: 0,
            rx_ring_full: 0,
            rx_fill_ring_empty_descs: 0,
            tx_ring_empty_descs: 0,
        };
        option(&self.fd, libc::XDP_STATISTICS, none).map_or(0, |all| all.rx_dropped + all.rx_ring_full)
    }

    /// Gives chunks to the kernel, for frames that will arrive.
    pub(super) fn fill(&mut self, chunks: impl Iterator<Item = u64>) {
        chunks.for_each(|chunk| {
            // The ring has room for all chunks of the queue.
            self.fill.add(chunk);
        });
        self.fill.publish();
        if self.fill.needs_wakeup() {
            let (fd, none) = (raw(&self.fd), std::ptr::null_mut());
            let flags = libc::MSG_DONTWAIT;
            // SAFETY: nothing is received by this call.
            let wake = || unsafe { libc::recvfrom(fd, none, 0, flags, none.cast(), none.cast()) };
            // A failure changes nothing: the next call tries again.
            let _ = call(|| count(wake()));
        }
    }

    /// Copies the frames that have arrived into the batch; returns how many.
    pub(super) fn receive(&mut self, memory: &Memory, batch: &mut ReceiveBatch, counters: &mut Counters) -> usize {
        let (mut taken, mut looks) = (0, batch.free() * LOOKS_PER_FRAME);
        let mut is_any = false;
        while batch.free() > 0 && looks > 0 {
            looks -= 1;
            let Some(pieces) = self.pieces() else { break };
            match self.copy(pieces, memory, batch) {
                Some(datagram) => {
                    batch.push(datagram);
                    taken += 1;
                }
                None => counters.receive_drops += 1,
            }
            for at in 0..pieces {
                let Some(piece) = self.receive.look(at) else { break };
                self.fill.add(memory.chunk_of(piece.addr));
            }
            self.receive.skip(pieces);
            is_any = true;
        }
        if is_any {
            self.receive.release();
            self.fill(std::iter::empty());
        }
        taken
    }

    /// The number of pieces of the next frame, if it has arrived as a whole. A frame that has too many is taken apart.
    fn pieces(&self) -> Option<u32> {
        for at in 0..PIECES_MAX {
            if self.receive.look(at)?.options & libc::XDP_PKT_CONTD == 0 {
                return Some(at + 1);
            }
        }
        Some(PIECES_MAX)
    }

    /// The next frame, which has so many pieces, without its outer tag; `None` if it is too long or too short.
    fn copy(&self, pieces: u32, memory: &Memory, batch: &mut ReceiveBatch) -> Option<Datagram> {
        let len: usize = (0..pieces).map_while(|at| self.receive.look(at)).map(|piece| piece.len as usize).sum();
        let first = self.receive.look(0)?;
        let mut tag = [0; TAG];
        let has_tag = first.len as usize >= HEADER + TAG && memory.read(first.addr + ADDRESSES as u64, &mut tag);
        let vlan = if has_tag { VlanTag::parse(tag) } else { None };
        let skipped = if vlan.is_some() { TAG } else { 0 };
        if len < HEADER {
            return None;
        }
        let mut frame = room_for(batch, len - skipped)?;
        let (mut is_whole, mut done) = (memory.read(first.addr, &mut frame[..ADDRESSES]), ADDRESSES);
        for at in 0..pieces {
            let piece = self.receive.look(at)?;
            // The first piece has the addresses, which are there already, and the tag.
            let before = if at == 0 { (ADDRESSES + skipped).min(piece.len as usize) } else { 0 };
            let part = piece.len as usize - before;
            is_whole &= memory.read(piece.addr + before as u64, frame.get_mut(done..done + part)?);
            done += part;
        }
        is_whole.then(|| Datagram { data: frame.share().into(), vlan, ..Datagram::default() })
    }
}

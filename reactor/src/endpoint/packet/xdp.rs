//! AF_XDP sockets on a network interface: the driver hands the frames of the link over before the network stack of the
//! kernel sees them, through memory that both have. All other frames stay with the kernel.
//!
//! Frames are copied into the memory of the core, as those of the ring of a packet socket: a command that waits for its
//! store does not keep the driver from receiving.

mod memory;
mod program;
mod queue;
mod ring;

pub use program::COMMANDS;

use super::super::batch::{Counters, ReceiveBatch, SendBatch};
use super::super::datagram::set_queues;
use super::super::interface::Interface;
use super::super::messages::Messages;
use super::super::sending::is_of_socket;
use super::frame::{Filter, HEADER};
use super::socket::{TYPES_MAX, sentinel, set_membership};
use super::{pending_error, rights};
use crate::sys::{call, count, raw};
use libc::xdp_desc;
use memory::Memory;
use program::{Program, Selection};
use queue::{Queue, Shared};
use ring::Ring;
use rustix::event::epoll;
use std::io;
use std::os::fd::OwnedFd;

/// The most queues of an interface that a link serves: each has a socket, and memory that cannot be swapped out.
const QUEUES_MAX: usize = 32;
/// Bytes of memory for received frames of all queues together, if each has enough chunks.
const RECEIVE_BYTES: usize = 8 << 20;
/// The fewest and the most chunks for received frames of a queue: as many as the ring of a network card has, and some
/// milliseconds of a fast link.
const RECEIVE_CHUNKS: (usize, usize) = (512, 2048);
/// The chunks for frames to send, and the entries of the ring that has them: more than the ring of a network card.
const SEND_CHUNKS: usize = 2048;
/// The shortest frame without its check sequence (IEEE 802.3-2022 4A.4.2): not every driver pads frames of this kind.
const SHORTEST: usize = 60;
/// Bytes of a VLAN tag.
const TAG: usize = 4;

/// The settings of AF_XDP sockets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct XdpConfig {
    /// The name of the interface.
    pub interface: String,
    /// The EtherTypes of the received frames; one at least.
    pub types: Vec<u16>,
    /// The VLAN of the received frames; `None`: frames without a tag, and with a tag that has a priority only.
    pub vlan: Option<u16>,
    /// Frames that are received in addition to those to the own address and to the broadcast address.
    pub filters: Vec<Filter>,
}

/// The sockets of a link, one for each queue of the interface. Frames are sent by the first.
#[derive(Debug)]
pub(super) struct XdpSocket {
    /// Declared first: the interface gives no more frames to the sockets.
    program: Program,
    queues: Vec<Queue>,
    transmit: Ring<xdp_desc>,
    completion: Ring<u64>,
    /// Readable when a queue or the sentinel is.
    any: OwnedFd,
    memory: Memory,
    /// Free chunks for frames to send.
    free: Vec<u64>,
    /// Makes the interface receive the frames of filters, and has an error when the interface goes down: the sockets of
    /// the queues do not report that.
    sentinel: OwnedFd,
    interface: Interface,
    /// The longest frame without its tag.
    longest: usize,
    /// Whether the driver moves frames from and to the memory itself.
    is_zero_copy: bool,
    is_down: bool,
    /// The queue from which frames are taken first.
    at: usize,
    /// Frames that the kernel has reported as dropped.
    known_drops: u64,
}

impl XdpSocket {
    pub(super) fn open(config: &XdpConfig) -> io::Result<Self> {
        let name = &config.interface;
        let interface = Interface::named(name)?;
        let queues = check(config, &interface)?;
        let sentinel = sentinel(name, &interface, config.types[0])?;
        let longest = HEADER + interface.mtu()?;
        let (chunk, has_pieces) = memory::chunk_for(longest + TAG);
        let (fewest, most) = RECEIVE_CHUNKS;
        let each = (RECEIVE_BYTES / chunk / queues).next_power_of_two().clamp(fewest, most);
        let memory = Memory::new(queues * each + SEND_CHUNKS, chunk)?;
        let selection = Selection { own: interface.mac()?, types: config.types.clone(), vlan: config.vlan };
        let program = Program::attach(interface.index(), queues, has_pieces, selection)
            .map_err(|why| explained(name, Step::Attach { has_pieces }, why))?;
        let shared = Shared {
            memory: &memory,
            interface: interface.index(),
            receive: each as u32,
            send: SEND_CHUNKS as u32,
            has_pieces,
            copies: program.is_generic(),
        };
        let step = Step::Bind { has_pieces };
        let (first, transmit, completion) = shared.first().map_err(|why| explained(name, step, why))?;
        set_queues(first.fd());
        let is_zero_copy = first.is_zero_copy();
        let mut sockets = vec![first];
        for number in 1..queues {
            let next = shared.next(number, sockets[0].fd()).map_err(|why| explained(name, step, why))?;
            sockets.push(next);
        }
        for (number, queue) in sockets.iter_mut().enumerate() {
            queue.fill((0..each).map(|at| ((number * each + at) * chunk) as u64));
            program.add_socket(number as u32, queue.fd()).map_err(|why| explained(name, step, why))?;
        }
        let free = (0..SEND_CHUNKS).map(|at| ((queues * each + at) * chunk) as u64).collect();
        let any = watch(&sockets, &sentinel)?;
        let (is_down, at, known_drops) = (false, 0, 0);
        let socket = Self {
            program,
            queues: sockets,
            transmit,
            completion,
            any,
            memory,
            free,
            sentinel,
            interface,
            longest,
            is_zero_copy,
            is_down,
            at,
            known_drops,
        };
        for filter in &config.filters {
            socket.set_filter(*filter, true)?;
        }
        Ok(socket)
    }

    pub(super) fn interface(&self) -> &Interface {
        &self.interface
    }

    /// The descriptor that becomes readable.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.any
    }

    /// The descriptor that becomes writable.
    pub(super) fn sender(&self) -> &OwnedFd {
        self.queues[0].fd()
    }

    /// The pending error of the interface, which is cleared.
    pub(super) fn take_error(&self) -> Option<i32> {
        pending_error(&self.sentinel).or_else(|| self.queues.iter().find_map(|queue| pending_error(queue.fd())))
    }

    pub(super) fn set_filter(&self, filter: Filter, is_wanted: bool) -> io::Result<()> {
        self.program.set_filter(filter, is_wanted)?;
        set_membership(&self.sentinel, &self.interface, filter, is_wanted)
    }

    /// Frames without room in the rings since the last call.
    pub(super) fn new_drops(&mut self) -> u64 {
        let all = self.queues.iter().map(Queue::drops).sum();
        all - std::mem::replace(&mut self.known_drops, all)
    }

    /// Receives the frames that have arrived; returns how many. The error is the errno.
    pub(super) fn receive(&mut self, batch: &mut ReceiveBatch, counters: &mut Counters) -> Result<usize, i32> {
        let (mut taken, before) = (0, counters.receive_drops);
        for _ in 0..self.queues.len() {
            taken += self.queues[self.at].receive(&self.memory, batch, counters);
            if batch.free() == 0 {
                break;
            }
            self.at = (self.at + 1) % self.queues.len();
        }
        match taken {
            0 if counters.receive_drops == before => Err(libc::EAGAIN),
            _ => Ok(taken),
        }
    }

    /// Sends as many frames as there is room for: `Ok` when none is left. The error is the errno: EAGAIN when there is
    /// no room, also for frames that the kernel has and will send at the next call.
    pub(super) fn send(
        &mut self,
        batch: &mut SendBatch,
        messages: &mut Messages,
        counters: &mut Counters,
    ) -> Result<(), i32> {
        if self.is_down && self.kick() == Err(libc::ENETDOWN) {
            return Self::drop_all(batch, counters);
        }
        self.is_down = false;
        loop {
            self.reclaim();
            let is_all = self.add_frames(batch, messages, counters);
            self.transmit.publish();
            match self.kick() {
                Ok(()) => {}
                Err(libc::ENETDOWN) => {
                    self.is_down = true;
                    return Self::drop_all(batch, counters);
                }
                Err(errno) if is_of_socket(errno) => return Err(errno),
                Err(_) => return Err(libc::EAGAIN),
            }
            if is_all {
                return Ok(());
            }
            self.reclaim();
            if self.has_room() {
                continue;
            }
            if self.transmit.used() >= self.transmit.count() / 2 {
                // The kernel reports when half of the ring is free.
                return Err(libc::EAGAIN);
            }
            // The driver keeps all chunks and sends nothing: its peer is gone, or refuses frames.
            return Self::drop_all(batch, counters);
        }
    }

    fn drop_all(batch: &mut SendBatch, counters: &mut Counters) -> Result<(), i32> {
        while !batch.is_empty() {
            batch.drop_first(1);
            counters.send_drops += 1;
        }
        Ok(())
    }

    /// Whether a frame of any length fits.
    fn has_room(&self) -> bool {
        let pieces = (self.longest + TAG).div_ceil(self.memory.chunk());
        self.free.len() >= pieces && (self.transmit.used() as usize + pieces) <= self.transmit.count() as usize
    }

    /// Adds the frames of a batch to the ring; returns whether none is left.
    fn add_frames(&mut self, batch: &mut SendBatch, messages: &mut Messages, counters: &mut Counters) -> bool {
        while let Some(frame) = batch.left().first() {
            if !(HEADER..=self.longest).contains(&frame.len()) {
                batch.drop_first(1);
                counters.send_drops += 1;
                continue;
            }
            if !self.has_room() {
                return false;
            }
            self.add_frame(messages.pieces(frame));
            batch.advance(1);
            counters.sent += 1;
        }
        true
    }

    /// Copies a frame into free chunks, and adds them to the ring: there is room.
    fn add_frame(&mut self, pieces: &[libc::iovec]) {
        let chunk = self.memory.chunk();
        let mut left = pieces.iter().map(|piece| piece.iov_len).sum::<usize>();
        let (mut at, mut used) = (None, 0);
        for piece in pieces {
            let mut done = 0;
            while done < piece.iov_len {
                let Some(address) = at.or_else(|| self.free.pop()) else { return };
                let part = (piece.iov_len - done).min(chunk - used);
                // SAFETY: a part of the piece, which the batch holds.
                unsafe {
                    let from = piece.iov_base.cast::<u8>().add(done).cast_const();
                    self.memory.write(address + used as u64, from, part);
                }
                (at, used, done, left) = (Some(address), used + part, done + part, left - part);
                if left > 0 && used == chunk {
                    self.transmit.add(xdp_desc { addr: address, len: chunk as u32, options: libc::XDP_PKT_CONTD });
                    (at, used) = (None, 0);
                }
            }
        }
        let Some(address) = at else { return };
        if used < SHORTEST && pieces.iter().map(|piece| piece.iov_len).sum::<usize>() == used {
            self.memory.clear(address + used as u64, SHORTEST - used);
            used = SHORTEST;
        }
        self.transmit.add(xdp_desc { addr: address, len: used as u32, options: 0 });
    }

    /// Takes the chunks of frames that were sent.
    fn reclaim(&mut self) {
        while let Some(address) = self.completion.look(0) {
            self.completion.skip(1);
            self.free.push(self.memory.chunk_of(address));
        }
        self.completion.release();
    }

    /// Makes the kernel look at the ring of frames to send. The error is the errno: EAGAIN if some are left, and a
    /// further call is needed.
    fn kick(&self) -> Result<(), i32> {
        if self.is_zero_copy && !self.transmit.needs_wakeup() && !self.is_down {
            return Ok(());
        }
        loop {
            let before = self.transmit.used();
            // SAFETY: nothing is passed.
            let send = || unsafe {
                libc::sendto(raw(self.sender()), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
            };
            let result = call(|| count(send()));
            let left = self.transmit.used();
            match result {
                Ok(_) | Err(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS) if left == 0 || self.is_zero_copy => {
                    return Ok(());
                }
                // One call sends some frames only.
                _ if left != before => {}
                Ok(_) | Err(libc::EBUSY | libc::ENOBUFS) => return Err(libc::EAGAIN),
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// Checks the settings and the rights; returns the number of queues of the interface.
fn check(config: &XdpConfig, interface: &Interface) -> io::Result<usize> {
    let XdpConfig { interface: name, types, .. } = config;
    let refused = |kind: io::ErrorKind, what: String| Err(io::Error::new(kind, format!("{name}: {what}")));
    if types.is_empty() || types.len() > TYPES_MAX {
        let what = format!("a link through XDP distinguishes 1 to {TYPES_MAX} EtherTypes, not {}", types.len());
        return refused(io::ErrorKind::InvalidInput, what);
    }
    let missing = rights::missing(&[rights::NET_RAW, rights::NET_ADMIN, rights::BPF]);
    if !missing.is_empty() {
        let what = format!("frames through XDP need {} as well: {}", missing.join(", "), rights::remedy(&missing));
        return refused(io::ErrorKind::PermissionDenied, what);
    }
    if interface.strips_tags() {
        // A frame of a foreign VLAN would look like one without a tag.
        let what = format!("the interface takes VLAN tags off frames before XDP: `ethtool -K {name} rxvlan off`");
        return refused(io::ErrorKind::InvalidInput, what);
    }
    match interface.queues() {
        queues if queues > QUEUES_MAX => {
            let what = format!(
                "the interface has {queues} queues, and a link through XDP serves {QUEUES_MAX} at most: `ethtool -L \
                 {name} combined {QUEUES_MAX}`"
            );
            refused(io::ErrorKind::InvalidInput, what)
        }
        queues => Ok(queues),
    }
}

/// A descriptor that is readable when one of these sockets is, or the other one has an error.
fn watch(queues: &[Queue], sentinel: &OwnedFd) -> io::Result<OwnedFd> {
    let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let none = epoll::EventData::new_u64(0);
    for queue in queues {
        epoll::add(&any, queue.fd(), none, epoll::EventFlags::IN)?;
    }
    epoll::add(&any, sentinel, none, epoll::EventFlags::empty())?;
    Ok(any)
}

/// A part of opening a link.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Loading and attaching the program.
    Attach { has_pieces: bool },
    /// Opening and binding the sockets.
    Bind { has_pieces: bool },
}

/// An error of opening a link, with its remedy.
fn explained(name: &str, step: Step, why: io::Error) -> io::Error {
    const LARGE: &str = "this kernel or driver has no XDP for frames of several pieces: Linux 6.6 has; a smaller MTU \
                         (3800) needs none";
    let what = match (step, why.raw_os_error()) {
        (Step::Attach { .. }, Some(libc::EBUSY)) => format!(
            "another program, or another link of this process, has XDP of this interface, which only one can: \
             `bpftool net list dev {name}` shows it"
        ),
        (Step::Attach { .. }, Some(libc::EPERM)) => {
            "a seccomp filter refuses bpf(2): the service allows it if a link through XDP is configured when it \
             starts, and its systemd unit needs SystemCallFilter=bpf"
                .into()
        }
        (Step::Attach { .. }, Some(libc::ENOSYS)) => "this kernel has no bpf(2): CONFIG_BPF_SYSCALL".into(),
        (
            Step::Attach { has_pieces: true } | Step::Bind { has_pieces: true },
            Some(libc::EINVAL | libc::EOPNOTSUPP),
        ) => LARGE.into(),
        (Step::Attach { .. }, Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            "this kernel or driver has no XDP that ends with its process: Linux 5.9 has".into()
        }
        (Step::Bind { .. }, Some(libc::EBUSY)) => "another socket has a queue of this interface".into(),
        (Step::Bind { .. }, Some(libc::EAFNOSUPPORT | libc::EPERM)) => {
            "this kernel has no AF_XDP (CONFIG_XDP_SOCKETS), or the systemd unit refuses it: \
             RestrictAddressFamilies=AF_PACKET AF_XDP"
                .into()
        }
        (Step::Bind { .. }, Some(libc::ENOBUFS)) => {
            "the process may not lock the memory for frames: LimitMEMLOCK=infinity in the systemd unit".into()
        }
        _ => return io::Error::new(why.kind(), format!("{name}: XDP: {why}")),
    };
    io::Error::new(why.kind(), format!("{name}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_is_missing() {
        let said = |step, errno| explained("eth0", step, io::Error::from_raw_os_error(errno)).to_string();
        for (has_pieces, errno, what) in [
            (false, libc::EBUSY, "bpftool"),
            (false, libc::EPERM, "seccomp"),
            (false, libc::EINVAL, "5.9"),
            (true, libc::EINVAL, "6.6"),
        ] {
            assert!(said(Step::Attach { has_pieces }, errno).contains(what), "{what}");
        }
        for (has_pieces, errno, what) in [
            (false, libc::EBUSY, "another socket"),
            (false, libc::EAFNOSUPPORT, "AF_XDP"),
            (false, libc::ENOBUFS, "LimitMEMLOCK"),
            (true, libc::EOPNOTSUPP, "MTU"),
        ] {
            assert!(said(Step::Bind { has_pieces }, errno).contains(what), "{what}");
        }
        assert!(said(Step::Bind { has_pieces: false }, libc::EIO).starts_with("eth0: XDP: "));
    }
}

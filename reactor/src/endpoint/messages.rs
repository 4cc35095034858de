//! Many datagrams in one system call: recvmmsg(2) and sendmmsg(2), with the lists that they need. A driver has one set
//! of lists, which all of its endpoints use.

use super::batch::{BATCH_MAX, Datagram, ReceiveBatch, VlanTag};
use crate::sys::{call, count, raw};
use libc::{c_int, c_void, cmsghdr, iovec, mmsghdr, msghdr, sockaddr_storage, socklen_t};
use std::mem::{MaybeUninit, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::OwnedFd;

// Of linux/udp.h.
const UDP_SEGMENT: c_int = 103;
const UDP_GRO: c_int = 104;

/// Bytes of an Ethernet frame before its VLAN tag: both addresses.
const BEFORE_TAG: usize = 12;
/// Bytes for the control messages of one datagram: packet information, a segment size and a drop counter take about
/// 100.
const CONTROL: usize = 128;

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL]);

/// The lists of one call.
pub(crate) struct Messages {
    heads: Box<[mmsghdr]>,
    names: Box<[sockaddr_storage]>,
    controls: Box<[Control]>,
    tags: Box<[[u8; 4]]>,
    vectors: Vec<iovec>,
}

/// The kernel's report about a datagram.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    pub(crate) len: usize,
    /// Whether the datagram was longer than the room for it.
    pub(crate) is_cut: bool,
    pub(crate) local: Option<IpAddr>,
    pub(crate) segment: u16,
    /// Datagrams that the socket has dropped so far, modulo 2^32, if the kernel reports it.
    pub(crate) drops: Option<u32>,
}

impl Default for Messages {
    fn default() -> Self {
        // SAFETY: zeroes are an empty message and an address of no family.
        let (head, name): (mmsghdr, sockaddr_storage) = unsafe { (zeroed(), zeroed()) };
        Self {
            heads: vec![head; BATCH_MAX].into(),
            names: vec![name; BATCH_MAX].into(),
            controls: vec![Control([0; CONTROL]); BATCH_MAX].into(),
            tags: vec![[0; 4]; BATCH_MAX].into(),
            vectors: Vec::with_capacity(4 * BATCH_MAX),
        }
    }
}

impl Messages {
    /// Receives as many datagrams as have arrived and `batch` has room for, without waiting: returns how many, and
    /// leaves them in the first free memory of the batch. The error is the errno.
    pub(crate) fn receive(&mut self, fd: &OwnedFd, batch: &mut ReceiveBatch) -> Result<usize, c_int> {
        self.vectors.clear();
        for memory in batch.free_in_order().take(BATCH_MAX) {
            let iov_base = memory.as_mut_ptr().cast::<c_void>();
            self.vectors.push(iovec { iov_base, iov_len: memory.len() });
        }
        let room = self.vectors.len();
        for at in 0..room {
            let head = &mut self.heads[at].msg_hdr;
            head.msg_name = (&raw mut self.names[at]).cast();
            head.msg_namelen = size_of::<sockaddr_storage>() as socklen_t;
            head.msg_iov = &raw mut self.vectors[at];
            head.msg_iovlen = 1;
            head.msg_control = (&raw mut self.controls[at]).cast();
            head.msg_controllen = CONTROL as _;
            head.msg_flags = 0;
        }
        let (heads, none) = (self.heads.as_mut_ptr(), std::ptr::null_mut());
        call(|| {
            // SAFETY: the first `room` heads point at lists of this value, which stay in place during the call, and at
            // memory that the batch owns. The flags differ in type between C libraries.
            count(unsafe { libc::recvmmsg(raw(fd), heads, room as u32, libc::MSG_DONTWAIT as _, none) } as isize)
        })
    }

    /// The report about the datagram at `at` of the last call.
    pub(crate) fn report(&self, at: usize) -> Report {
        let head = &self.heads[at];
        let mut report = Report {
            len: head.msg_len as usize,
            is_cut: head.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            ..Report::default()
        };
        let head = &raw const head.msg_hdr;
        // SAFETY: the kernel has filled the control messages of this head, and the macros stay within their length.
        let mut message = unsafe { libc::CMSG_FIRSTHDR(head) };
        while !message.is_null() {
            // SAFETY: the macros have given the address of a whole control message.
            unsafe {
                report.take(&*message, libc::CMSG_DATA(message));
                message = libc::CMSG_NXTHDR(head, message);
            }
        }
        report
    }

    /// The sender of the datagram at `at` of the last call, if it is an IP address.
    pub(crate) fn sender(&self, at: usize) -> Option<SocketAddr> {
        socket_address(&self.names[at])
    }

    /// The path of the sender of the datagram at `at` of the last call, if it is a Unix socket that has one.
    pub(crate) fn sender_path(&self, at: usize) -> Option<&[u8]> {
        let len = self.heads[at].msg_hdr.msg_namelen as usize;
        let begin = std::mem::offset_of!(libc::sockaddr_un, sun_path);
        let name = &raw const self.names[at];
        // SAFETY: the storage is larger than a Unix address, and bytes have no invalid values.
        let bytes = unsafe { std::slice::from_raw_parts(name.cast::<u8>(), size_of::<libc::sockaddr_un>()) };
        let path = bytes.get(begin..len.min(bytes.len()))?;
        let end = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
        (i32::from(self.names[at].ss_family) == libc::AF_UNIX && end > 0).then(|| &path[..end])
    }

    /// Begins a call that sends: clears the lists.
    pub(crate) fn begin(&mut self) {
        self.vectors.clear();
    }

    /// Adds the message number `at` of the call, with its datagrams, for the address that `name` writes; `Err` if it
    /// has none that fits.
    pub(crate) fn add(
        &mut self,
        at: usize,
        message: &[Datagram],
        name: impl FnOnce(&mut sockaddr_storage) -> Option<socklen_t>,
    ) -> Result<(), c_int> {
        let name_len = name(&mut self.names[at]).ok_or(libc::EDESTADDRREQ)?;
        let begun = self.vectors.len();
        let vlan = message.first().and_then(|datagram| datagram.vlan);
        self.tags[at] = vlan.map_or([0; 4], VlanTag::bytes);
        let tag = vlan.map(|_| (&raw mut self.tags[at]).cast::<u8>());
        message.iter().for_each(|datagram| gather(datagram, tag, &mut self.vectors));
        let control_len = write_control(&mut self.controls[at], message);
        let head = &mut self.heads[at].msg_hdr;
        head.msg_name = if name_len > 0 { (&raw mut self.names[at]).cast() } else { std::ptr::null_mut() };
        head.msg_namelen = name_len;
        // The list may still move: `send` sets its address.
        head.msg_iovlen = (self.vectors.len() - begun) as _;
        head.msg_control = if control_len > 0 { (&raw mut self.controls[at]).cast() } else { std::ptr::null_mut() };
        head.msg_controllen = control_len as _;
        head.msg_flags = 0;
        Ok(())
    }

    /// Sends the first `number` datagrams that were added, without waiting; returns how many the kernel took,
    /// beginning with the first. The error is the errno, and concerns the first.
    pub(crate) fn send(&mut self, fd: &OwnedFd, number: usize) -> Result<usize, c_int> {
        let mut at = 0;
        for head in &mut self.heads[..number] {
            head.msg_hdr.msg_iov = self.vectors[at..].as_mut_ptr();
            at += head.msg_hdr.msg_iovlen;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let heads = self.heads.as_mut_ptr();
        call(|| {
            // SAFETY: the heads point at lists of this value, which stay in place during the call, and at memory that
            // the batch holds.
            count(unsafe { libc::sendmmsg(raw(fd), heads, number as u32, flags as _) } as isize)
        })
    }

    /// The pieces of one datagram, for a call without messages.
    pub(crate) fn pieces(&mut self, datagram: &Datagram) -> &[iovec] {
        self.vectors.clear();
        self.tags[0] = datagram.vlan.map_or([0; 4], VlanTag::bytes);
        let tag = datagram.vlan.map(|_| (&raw mut self.tags[0]).cast::<u8>());
        gather(datagram, tag, &mut self.vectors);
        &self.vectors
    }
}

/// Appends the pieces of a datagram, with the four bytes at `tag` behind the addresses of the frame.
fn gather(datagram: &Datagram, tag: Option<*mut u8>, vectors: &mut Vec<iovec>) {
    let mut push = |base: *mut u8, len: usize| {
        if len > 0 {
            vectors.push(iovec { iov_base: base.cast(), iov_len: len });
        }
    };
    let mut before = if tag.is_some() { BEFORE_TAG.min(datagram.len()) } else { 0 };
    let [first, last] = [datagram.edges.head(), datagram.edges.tail()].map(|edge| (edge.as_ptr(), edge.len()));
    let pieces = datagram.data.pieces().iter().map(|piece| (piece.as_ptr(), piece.len()));
    for (base, len) in std::iter::once(first).chain(pieces).chain(std::iter::once(last)) {
        // The kernel only reads memory that is sent.
        let base = base.cast_mut();
        let head = before.min(len);
        push(base, head);
        if before > 0 && head == before {
            tag.into_iter().for_each(|tag| push(tag, 4));
        }
        before -= head;
        // Within the piece, or its end.
        push(base.wrapping_add(head), len - head);
    }
}

/// Writes the control messages that a message with these datagrams needs; returns their length.
fn write_control(control: &mut Control, message: &[Datagram]) -> usize {
    let Some(first) = message.first() else { return 0 };
    // Longer datagrams than the kernel takes are refused with any length.
    let segment = if message.len() > 1 { first.len() as u16 } else { first.segment };
    if first.local.is_none() && segment == 0 {
        return 0;
    }
    // SAFETY: zeroes are an empty message.
    let mut head: msghdr = unsafe { zeroed() };
    head.msg_control = (&raw mut *control).cast();
    head.msg_controllen = CONTROL as _;
    control.0.fill(0);
    let mut used = 0;
    let mut put = |level: c_int, kind: c_int, data: &[u8]| {
        // SAFETY: `used` is a sum of CMSG_SPACEs, and the few messages written here fit into the buffer, so the header
        // and its data lie within it, aligned as the buffer and CMSG_SPACE are.
        unsafe {
            let message = head.msg_control.cast::<u8>().add(used).cast::<cmsghdr>();
            (*message).cmsg_level = level;
            (*message).cmsg_type = kind;
            (*message).cmsg_len = libc::CMSG_LEN(data.len() as u32) as _;
            std::ptr::copy_nonoverlapping(data.as_ptr(), libc::CMSG_DATA(message), data.len());
            used += libc::CMSG_SPACE(data.len() as u32) as usize;
        }
    };
    match first.local {
        Some(IpAddr::V4(local)) => {
            // struct in_pktinfo: the interface (0: any), the source address, the destination address (ignored).
            let mut info = [0; 12];
            info[4..8].copy_from_slice(&local.octets());
            put(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        }
        Some(IpAddr::V6(local)) => {
            // struct in6_pktinfo: the source address, the interface (0: any).
            let mut info = [0; 20];
            info[..16].copy_from_slice(&local.octets());
            put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        }
        None => {}
    }
    if segment > 0 {
        put(libc::SOL_UDP, UDP_SEGMENT, &segment.to_ne_bytes());
    }
    used
}

impl Report {
    /// Parses a control message.
    ///
    /// # Safety
    /// `data` is the address of the message's data, as long as its header says.
    unsafe fn take(&mut self, message: &cmsghdr, data: *const u8) {
        /// Copies a value out of a control message, if it is long enough for one.
        ///
        /// # Safety
        /// The conditions of `take`; any bytes are a `T`.
        unsafe fn read<T>(message: &cmsghdr, data: *const u8) -> Option<T> {
            let mut value = MaybeUninit::<T>::uninit();
            // SAFETY: CMSG_LEN only computes.
            let is_whole = message.cmsg_len >= unsafe { libc::CMSG_LEN(size_of::<T>() as u32) } as _;
            is_whole.then(|| {
                // SAFETY: the message has as many bytes, and they are a `T`.
                unsafe {
                    std::ptr::copy_nonoverlapping(data, value.as_mut_ptr().cast(), size_of::<T>());
                    value.assume_init()
                }
            })
        }
        // SAFETY: only integers and arrays of integers are read.
        unsafe {
            match (message.cmsg_level, message.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info = read::<libc::in_pktinfo>(message, data);
                    self.local = info.map(|info| Ipv4Addr::from(info.ipi_spec_dst.s_addr.to_ne_bytes()).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info = read::<libc::in6_pktinfo>(message, data);
                    self.local = info.map(|info| Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                }
                (libc::SOL_UDP, UDP_GRO) => {
                    let segment = read::<c_int>(message, data).and_then(|segment| u16::try_from(segment).ok());
                    self.segment = segment.unwrap_or(0);
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => self.drops = read::<u32>(message, data),
                _ => {}
            }
        }
    }
}

/// Writes an IP address for the kernel; returns its length.
pub(crate) fn write_address(address: SocketAddr, into: &mut sockaddr_storage) -> socklen_t {
    match address {
        SocketAddr::V4(address) => {
            let name = libc::sockaddr_in {
                sin_family: libc::AF_INET as _,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage has room for every address, and is aligned for it.
            unsafe { (&raw mut *into).cast::<libc::sockaddr_in>().write(name) };
            size_of::<libc::sockaddr_in>() as socklen_t
        }
        SocketAddr::V6(address) => {
            let name = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as _,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut *into).cast::<libc::sockaddr_in6>().write(name) };
            size_of::<libc::sockaddr_in6>() as socklen_t
        }
    }
}

fn socket_address(name: &sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what it is, and the storage has room for every address.
            let name = unsafe { (&raw const *name).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(name.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { (&raw const *name).cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(name.sin6_port), name.sin6_flowinfo, name.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::{Arena, Sg};

    #[test]
    fn addresses_survive_the_way_to_the_kernel_and_back() {
        for text in ["10.0.0.1:4791", "[fe80::1%3]:18181", "[::1]:1"] {
            let address: SocketAddr = text.parse().expect("an address");
            // SAFETY: zeroes are an address of no family.
            let mut name: sockaddr_storage = unsafe { zeroed() };
            assert_eq!(socket_address(&name), None);
            assert!(write_address(address, &mut name) > 0);
            assert_eq!(socket_address(&name), Some(address));
        }
    }

    #[test]
    fn a_tag_stands_behind_the_addresses_wherever_the_pieces_end() {
        let arena = Arena::new(1 << 20);
        let frame: Vec<u8> = (0..60).collect();
        let expected = [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
        for cut in [1, 11, 12, 13, 59] {
            let mut data = Sg::from(arena.copy(&frame[..cut]).expect("room"));
            data.push(arena.copy(&frame[cut..]).expect("room"));
            let mut edged = Datagram { vlan: Some(VlanTag::new(7)), ..Datagram::default() };
            edged.edges.prepend(&frame[..cut]);
            edged.data = arena.copy(&frame[cut..59]).map(Sg::from).unwrap_or_default();
            edged.edges.append(&frame[cut.max(59)..]);
            for datagram in [Datagram { data, vlan: Some(VlanTag::new(7)), ..Datagram::default() }, edged] {
                let mut messages = Messages::default();
                let pieces = messages.pieces(&datagram).iter();
                // SAFETY: the pieces point at the datagram and at `messages`, which both live.
                let bytes = |piece: &iovec| unsafe {
                    std::slice::from_raw_parts(piece.iov_base.cast::<u8>().cast_const(), piece.iov_len).to_vec()
                };
                assert_eq!(pieces.flat_map(bytes).collect::<Vec<_>>(), expected, "cut at {cut}");
            }
        }
    }
}

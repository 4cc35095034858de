//! A device in memory: its side of the descriptor is a thread that executes commands by a function. The memory of a
//! command must live until its reply was read.

use super::header::Header;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, channel};

/// A command as the device sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    /// The CDB.
    pub cdb: Vec<u8>,
    /// Data-Out.
    pub data_out: Vec<u8>,
    /// Bytes of memory for Data-In.
    pub data_in: usize,
    /// The time-out in milliseconds.
    pub timeout_ms: u32,
}

/// The answer of the device.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Answer {
    /// SCSI status.
    pub status: u8,
    /// Status of the host adapter.
    pub host_status: u16,
    /// Sense data.
    pub sense: Vec<u8>,
    /// Data-In; bytes beyond the memory are dropped.
    pub data_in: Vec<u8>,
    /// Bytes of Data-Out that the device did not take.
    pub left: usize,
}

impl Answer {
    /// GOOD, with Data-In.
    #[must_use]
    pub fn good(data_in: &[u8]) -> Self {
        Self { data_in: data_in.to_vec(), ..Self::default() }
    }

    /// CHECK CONDITION, with fixed format sense data of this key and code.
    #[must_use]
    pub fn check(key: u8, code: u16) -> Self {
        let [asc, ascq] = code.to_be_bytes();
        let sense = vec![0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, asc, ascq, 0, 0, 0, 0];
        Self { status: 2, sense, ..Self::default() }
    }
}

/// Makes a device that executes commands by `run`, one after the other, until `run` returns `None`: then the device
/// vanishes. The receiver gets all commands.
///
/// # Panics
/// Without descriptors or threads.
pub fn device(run: impl FnMut(&Received) -> Option<Answer> + Send + 'static) -> (OwnedFd, Receiver<Received>) {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.expect("a pair of sockets");
    rustix::io::ioctl_fionbio(&ours, true).expect("a socket");
    let (commands, receiver) = channel();
    let mut run = run;
    let serve = move || {
        while let Some(header) = next(&theirs) {
            let received = receive(&header);
            let answer = run(&received);
            // A test that does not look at the commands has dropped the receiver.
            let _ = commands.send(received);
            let Some(answer) = answer else { return };
            reply(&theirs, header, &answer);
        }
    };
    std::thread::Builder::new().name("fake-device".into()).spawn(serve).expect("a thread");
    (ours, receiver)
}

fn next(socket: &OwnedFd) -> Option<Header> {
    let mut header = Header::EMPTY;
    // SAFETY: the header is plain data, and any bytes are one.
    let bytes = unsafe { std::slice::from_raw_parts_mut((&raw mut header).cast::<u8>(), size_of::<Header>()) };
    let read = rustix::io::read(socket, bytes).ok()?;
    (read == size_of::<Header>()).then_some(header)
}

/// The pieces of memory of a command.
fn pieces(header: &Header) -> Vec<(*mut u8, usize)> {
    match (header.piece_count, header.data_len as usize) {
        (_, 0) => Vec::new(),
        (0, len) => vec![(header.data.cast(), len)],
        (count, _) => {
            // SAFETY: the command has so many pieces, and its owner keeps them until the reply was read.
            let list = unsafe { std::slice::from_raw_parts(header.data.cast::<libc::iovec>(), count.into()) };
            list.iter().map(|piece| (piece.iov_base.cast(), piece.iov_len)).collect()
        }
    }
}

fn receive(header: &Header) -> Received {
    let is_output = header.direction == -2;
    let mut data_out = Vec::new();
    for (address, len) in pieces(header).into_iter().filter(|_| is_output) {
        // SAFETY: the owner of the command keeps its memory until the reply was read.
        data_out.extend_from_slice(unsafe { std::slice::from_raw_parts(address, len) });
    }
    // SAFETY: as above.
    let cdb = unsafe { std::slice::from_raw_parts(header.cdb, header.cdb_len.into()) }.to_vec();
    let data_in = if header.direction < -2 { header.data_len as usize } else { 0 };
    Received { cdb, data_out, data_in, timeout_ms: header.timeout_ms }
}

fn reply(socket: &OwnedFd, mut header: Header, answer: &Answer) {
    let mut rest = &answer.data_in[..];
    for (address, len) in pieces(&header).into_iter().filter(|_| header.direction < -2) {
        let (now, later) = rest.split_at(len.min(rest.len()));
        // SAFETY: the owner of the command keeps its memory until the reply was read, and does not look at it before.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), address, now.len()) };
        rest = later;
    }
    // SAFETY: the owner of the command has room for so many bytes of sense data.
    unsafe { std::ptr::copy_nonoverlapping(answer.sense.as_ptr(), header.sense, answer.sense.len().min(96)) };
    let input = header.data_len as usize - answer.data_in.len().min(header.data_len as usize);
    header.residual = if header.direction < -2 { input as i32 } else { answer.left as i32 };
    (header.status, header.host_status) = (answer.status, answer.host_status);
    header.sense_len = answer.sense.len().min(96) as u8;
    // SAFETY: as in `next`.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const header).cast::<u8>(), size_of::<Header>()) };
    // A lane that has ended does not read.
    let _ = rustix::net::send(socket, bytes, rustix::net::SendFlags::NOSIGNAL);
}

//! Connections of messages (SOCK_SEQPACKET) to processes of this host, for a thread that waits for them by itself. The
//! processes have no descriptors to send; those that they do send are closed on another thread, because a close may
//! wait.

use crate::peer_file::Closer;
use crate::unix::receive_some;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Closes connections and descriptors of all processes that connect to one socket, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Cleaner(Arc<Closer>);

impl Cleaner {
    /// Whether nothing waits for its close.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.0.is_idle()
    }

    /// Closes the listening socket, with the connections that were not accepted.
    pub fn close_listener(&self, listener: OwnedFd) {
        self.0.close_listener(Arc::new(listener));
    }
}

/// A connection.
#[derive(Debug)]
pub struct Packets {
    /// `None` in the drop: the last copy is not dropped on this thread.
    socket: Option<Arc<OwnedFd>>,
    cleaner: Cleaner,
}

impl Packets {
    /// A connection to a process.
    #[must_use]
    pub fn new(socket: OwnedFd, cleaner: &Cleaner) -> Self {
        Self { socket: Some(Arc::new(socket)), cleaner: cleaner.clone() }
    }

    /// The next message, if there is one; returns its bytes. Of a longer message than there is room for, the rest is
    /// lost. Zero: the process has closed its side.
    ///
    /// # Errors
    /// `WouldBlock` when there is none; `InvalidData` when the process sends descriptors faster than they are closed;
    /// else the error of the operating system.
    pub fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        let (mut files, mut unused) = (Vec::new(), Vec::new());
        let got = receive_some(self.socket(), into, &mut files);
        let are_few = self.cleaner.0.take(files, &mut unused);
        drop(unused);
        got?.filter(|_| are_few).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The socket, to send to the process or to wait for it.
    ///
    /// # Panics
    /// Never: only the drop takes it.
    #[must_use]
    pub fn socket(&self) -> &OwnedFd {
        self.socket.as_ref().expect("only the drop takes it")
    }
}

impl Drop for Packets {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            self.cleaner.0.close_stream(socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer_file::tests::{PATIENCE, lingering};
    use crate::unix::send_waiting;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    fn pair(cleaner: &Cleaner) -> (Packets, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
        (Packets::new(ours, cleaner), theirs)
    }

    fn until_idle(cleaner: &Cleaner) {
        let begun = Instant::now();
        while !cleaner.is_idle() {
            assert!(begun.elapsed() < PATIENCE, "it is not closed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn messages_are_received_one_at_a_time_until_the_end() {
        let cleaner = Cleaner::default();
        let (ours, theirs) = pair(&cleaner);
        let mut bytes = [0; 4];
        assert_eq!(ours.receive(&mut bytes).expect_err("there is none").kind(), io::ErrorKind::WouldBlock);
        let memory = crate::shared::share("test", 4096).expect("a memfd").0;
        send_waiting(&theirs, b"one", &[memory.as_fd()], PATIENCE).expect("there is room");
        send_waiting(&theirs, b"second", &[], PATIENCE).expect("there is room");
        assert_eq!(ours.receive(&mut bytes).expect("it was sent"), 3);
        assert_eq!((ours.receive(&mut bytes).expect("it was sent"), &bytes), (4, b"seco"));
        drop(theirs);
        assert_eq!(ours.receive(&mut bytes).expect("an end"), 0);
        drop(ours);
        until_idle(&cleaner);
    }

    #[test]
    fn descriptors_whose_close_waits_keep_no_thread_but_the_one_that_closes_them() {
        let cleaner = Cleaner::default();
        let ((near, far), begun) = (lingering(), Instant::now());
        let (ours, theirs) = pair(&cleaner);
        // One that is received, and one that is not, behind an empty message.
        send_waiting(&theirs, b"!", &[near.as_fd()], PATIENCE).expect("there is room");
        rustix::net::send(&theirs, b"", rustix::net::SendFlags::empty()).expect("there is room");
        send_waiting(&theirs, b"!", &[near.as_fd()], PATIENCE).expect("there is room");
        drop((near, theirs));
        assert_eq!(ours.receive(&mut [0; 4]).expect("it was sent"), 1);
        drop(ours);
        assert!(begun.elapsed() < PATIENCE && !cleaner.is_idle(), "the peer of the socket reads nothing");
        drop(far);
        until_idle(&cleaner);
    }

    #[test]
    fn a_process_sends_few_descriptors_whose_close_waits() {
        let (cleaner, (near, far)) = (Cleaner::default(), lingering());
        let (ours, theirs) = pair(&cleaner);
        let mut count = 0;
        let kind = loop {
            let other = lingering();
            send_waiting(&theirs, b"!", &[other.0.as_fd(), near.as_fd()], PATIENCE).expect("there is room");
            drop(other.0);
            match ours.receive(&mut [0; 4]) {
                Ok(_) if count < 1000 => count += 1,
                ended => break ended.expect_err("there are many").kind(),
            }
            std::mem::forget(other.1);
        };
        assert_eq!(kind, io::ErrorKind::InvalidData);
        assert!(count > 0);
        drop((near, far));
    }
}

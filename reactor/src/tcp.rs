//! The state of a TCP connection, as the kernel has it (`TCP_INFO` of tcp(7)).

use std::os::fd::{AsRawFd, OwnedFd};

/// More bytes than `struct tcp_info` has in any kernel: later kernels have more members at its end.
const LEN_MAX: usize = 512;

/// The places of members of `struct tcp_info` (linux/tcp.h), which never change.
mod at {
    pub(super) const SEND_MSS: usize = 16;
    pub(super) const RECEIVE_MSS: usize = 20;
    pub(super) const UNACKNOWLEDGED: usize = 24;
    pub(super) const RTT: usize = 68;
    pub(super) const RTT_VARIATION: usize = 72;
    pub(super) const WINDOW: usize = 80;
    pub(super) const RETRANSMITS: usize = 100;
    pub(super) const DATA_SEGMENTS_SENT: usize = 156;
    pub(super) const DELIVERY_RATE: usize = 160;
    pub(super) const WINDOW_LIMITED: usize = 176;
    pub(super) const BUFFER_LIMITED: usize = 184;
    pub(super) const DUPLICATES: usize = 216;
}

/// The state of a TCP connection. Members that the kernel does not have are 0.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TcpState {
    /// The round-trip time, smoothed, in microseconds.
    pub rtt_microseconds: u32,
    /// Its mean deviation, in microseconds.
    pub rtt_variation_microseconds: u32,
    /// Segments that were sent again.
    pub retransmits: u32,
    /// Of those, segments that had arrived before, as the peer said (DSACK, RFC 2883): they were late, not lost.
    pub duplicates: u32,
    /// Segments with data that were sent, with those that were sent again.
    pub segments_sent: u32,
    /// The congestion window, in segments.
    pub congestion_window: u32,
    /// Segments that were sent and not acknowledged.
    pub unacknowledged: u32,
    /// The most bytes of a segment that is sent.
    pub send_mss: u32,
    /// The most bytes of a segment that was received.
    pub receive_mss: u32,
    /// The rate at which data reached the peer most recently, in bytes per second.
    pub delivery_rate: u64,
    /// The time for which the window of the peer limited the sender, in microseconds.
    pub window_limited_microseconds: u64,
    /// The time for which the send buffer limited the sender, in microseconds.
    pub buffer_limited_microseconds: u64,
}

/// The state of the connection of a socket; `None` if it is no TCP socket.
pub(crate) fn state(socket: &OwnedFd) -> Option<TcpState> {
    let mut bytes = [0_u8; LEN_MAX];
    let mut len = LEN_MAX as libc::socklen_t;
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: the kernel writes at most as many bytes as `len` says, which is the length of the array.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut bytes).cast(), &raw mut len) };
    (result == 0).then(|| read(&bytes))
}

fn read(bytes: &[u8; LEN_MAX]) -> TcpState {
    let long = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_ne_bytes(word)
    };
    let word = |at: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&bytes[at..at + 4]);
        u32::from_ne_bytes(word)
    };
    TcpState {
        rtt_microseconds: word(at::RTT),
        rtt_variation_microseconds: word(at::RTT_VARIATION),
        retransmits: word(at::RETRANSMITS),
        duplicates: word(at::DUPLICATES),
        segments_sent: word(at::DATA_SEGMENTS_SENT),
        congestion_window: word(at::WINDOW),
        unacknowledged: word(at::UNACKNOWLEDGED),
        send_mss: word(at::SEND_MSS),
        receive_mss: word(at::RECEIVE_MSS),
        delivery_rate: long(at::DELIVERY_RATE),
        window_limited_microseconds: long(at::WINDOW_LIMITED),
        buffer_limited_microseconds: long(at::BUFFER_LIMITED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_over_the_loopback_has_a_state() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut one = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let (mut other, _) = listener.accept().expect("the connection");
        one.write_all(&[7; 4096]).expect("room");
        let mut bytes = [0; 4096];
        other.read_exact(&mut bytes).expect("data");
        other.write_all(&bytes).expect("room");
        one.read_exact(&mut bytes).expect("the answer acknowledges the data");
        let state = state(&OwnedFd::from(one)).expect("a TCP socket");
        assert!(state.rtt_microseconds > 0 && state.congestion_window > 0 && state.send_mss > 0, "{state:?}");
        assert!(state.segments_sent >= 1 && state.retransmits == 0 && state.unacknowledged == 0, "{state:?}");
        let (local, _) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert_eq!(super::state(&OwnedFd::from(local)), None);
    }

    #[test]
    fn members_are_at_their_places() {
        let mut bytes = [0; LEN_MAX];
        for (at, value) in [(68, 250_u32), (100, 3), (156, 1000), (216, 2)] {
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        bytes[160..168].copy_from_slice(&5_000_000_000_u64.to_ne_bytes());
        let state = read(&bytes);
        assert_eq!((state.rtt_microseconds, state.retransmits, state.segments_sent), (250, 3, 1000));
        assert_eq!((state.delivery_rate, state.duplicates), (5_000_000_000, 2));
    }
}

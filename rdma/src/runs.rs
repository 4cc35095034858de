//! Runs of packets that a socket sends in one message: the kernel, or the adapter, divides it into datagrams
//! (UDP_SEGMENT), which costs a fraction of as many messages.
//!
//! The packets of a run have the same peer and the same length; the last one may be shorter. Over IPv4 the
//! identifications of its datagrams count up from 0, and the check of a packet covers the identification, so a packet
//! is made for its place in a run. An adapter that counts in another way would lose all packets but the first one:
//! packets that are sent again are in no run, and a peer gets no runs any more when half as many packets were sent to
//! it again as were behind the first one of their run.

use crate::limits::CONNECTIONS_MAX;
use crate::requester::Attempt;
use crate::wire::DATAGRAM_MAX;
use std::collections::HashMap;
use std::net::IpAddr;

/// Packets of a run: Linux divides a message into 64 datagrams, newer versions into more.
const PACKETS_MAX: u16 = 64;
/// Bytes of a run: those of the largest message of UDP over IPv4.
const BYTES_MAX: usize = 65_507;
/// Pieces of memory of a run: the kernel takes 1,024 (UIO_MAXIOV), among them the headers and checks of all packets.
const PIECES_MAX: usize = 1024 - 2 * PACKETS_MAX as usize;
/// Packets in places behind the first one of their run after which those that were sent again are compared with them.
const TRIAL: u32 = 1024;
/// Peers whose packets are counted: as many as an address has connections. Beyond that, all are counted anew.
const PEERS_MAX: usize = CONNECTIONS_MAX;

const _: () = assert!(DATAGRAM_MAX <= BYTES_MAX);

/// A packet that is to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// Its receiver.
    pub peer: IpAddr,
    /// Bytes of its datagram.
    pub len: usize,
    /// Pieces of its payload.
    pub pieces: usize,
    /// Whether it is sent for the first time.
    pub attempt: Attempt,
}

/// The run that the next packet may continue.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Bytes of each packet.
    len: usize,
    packets: u16,
    bytes: usize,
    pieces: usize,
}

/// The count of packets to a peer, and the decision that follows from it.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    is_off: bool,
    /// Packets behind the first one of their run, and packets that were sent again, since they were compared.
    joined: u32,
    repeated: u32,
}

/// Combines packets of a socket into runs.
#[derive(Debug, Default)]
pub struct Runs {
    is_off: bool,
    /// `None`: the next packet begins one.
    run: Option<Run>,
    /// The peer of the last packet.
    peer: Option<IpAddr>,
    outcome: Outcome,
    others: HashMap<IpAddr, Outcome>,
}

impl Runs {
    /// The messages before are on their way: the next packet begins a run.
    pub fn end(&mut self) {
        self.run = None;
    }

    /// Each packet is a run of its own from now on: the socket sends no messages of several.
    pub fn turn_off(&mut self) {
        (self.is_off, self.run) = (true, None);
    }

    /// The place of the next packet in its run: 0 begins one.
    pub fn place(&mut self, next: &Planned) -> u16 {
        // A forged request causes a message of the connection manager, too: its receiver is not remembered.
        if self.is_off || next.attempt == Attempt::Only {
            self.run = None;
            return 0;
        }
        self.turn_to(next.peer);
        if self.outcome.is_off {
            return 0;
        }
        if next.attempt == Attempt::Again {
            self.outcome.repeated = self.outcome.repeated.saturating_add(1);
            self.run = None;
            return 0;
        }
        let fits = |run: &Run| {
            next.len <= run.len
                && run.packets < PACKETS_MAX
                && run.bytes + next.len <= BYTES_MAX
                && run.pieces + next.pieces <= PIECES_MAX
        };
        let Some(mut run) = self.run.take().filter(fits) else {
            let Planned { len, pieces, .. } = *next;
            self.run = Some(Run { len, packets: 1, bytes: len, pieces });
            return 0;
        };
        let place = run.packets;
        run.packets += 1;
        run.bytes += next.len;
        run.pieces += next.pieces;
        // A shorter packet is the last one.
        self.run = (next.len == run.len).then_some(run);
        let Outcome { is_off, joined, repeated } = &mut self.outcome;
        *joined += 1;
        if *joined >= TRIAL {
            *is_off = *repeated >= *joined / 2;
            (*joined, *repeated) = (0, 0);
        }
        place
    }

    /// The next packet is for this peer.
    fn turn_to(&mut self, peer: IpAddr) {
        if self.peer == Some(peer) {
            return;
        }
        self.run = None;
        if self.others.len() >= PEERS_MAX {
            self.others.clear();
        }
        if let Some(before) = self.peer.replace(peer) {
            self.others.insert(before, self.outcome);
        }
        self.outcome = self.others.remove(&peer).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PEERS: [IpAddr; 2] =
        [IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)];

    fn packet(len: usize) -> Planned {
        Planned { peer: PEERS[0], len, pieces: 1, attempt: Attempt::First }
    }

    #[test]
    fn a_run_has_packets_of_one_length_and_a_shorter_last_one() {
        let mut runs = Runs::default();
        let lengths = [4128, 4112, 4112, 4112, 60, 60, 4112];
        assert_eq!(lengths.map(|len| runs.place(&packet(len))), [0, 1, 0, 1, 2, 0, 0]);
        let others = [
            Planned { peer: PEERS[1], ..packet(4112) },
            Planned { attempt: Attempt::Again, ..packet(4112) },
            packet(4112),
            packet(4112),
            Planned { pieces: PIECES_MAX, ..packet(4112) },
        ];
        assert_eq!(others.map(|next| runs.place(&next)), [0, 0, 0, 1, 0]);
        runs.place(&packet(1000));
        runs.end();
        assert_eq!(runs.place(&packet(1000)), 0, "the message before has left");
        runs.turn_off();
        assert_eq!([1000; 3].map(|len| runs.place(&packet(len))), [0; 3]);
    }

    #[test]
    fn a_peer_gets_no_runs_if_their_packets_are_lost_and_others_do() {
        let mut runs = Runs::default();
        let mut joins = |peer: IpAddr, attempt| {
            let next = Planned { peer, ..packet(100) };
            (0..2 * TRIAL).fold(false, |_, _| {
                let is_joined = [runs.place(&next), runs.place(&next)] == [0, 1];
                runs.place(&Planned { attempt, ..next });
                is_joined
            })
        };
        assert!(joins(PEERS[0], Attempt::Only) && !joins(PEERS[1], Attempt::Again));
        assert!(joins(PEERS[0], Attempt::Only) && !joins(PEERS[1], Attempt::Only), "it is remembered");
        for number in 0..2 * PEERS_MAX as u32 {
            runs.place(&Planned { peer: std::net::Ipv4Addr::from_bits(number).into(), ..packet(100) });
        }
        assert!(runs.others.len() <= PEERS_MAX);
    }

    proptest! {
        #[test]
        fn a_message_is_one_that_the_kernel_divides(
            packets in prop::collection::vec((0..2_usize, 0..6_usize, 1..99_usize, 0..20_u32), 1..400),
        ) {
            let mut runs = Runs::default();
            let mut run: Vec<Planned> = Vec::new();
            for (peer, len, pieces, attempt) in packets {
                let attempt = [Attempt::Only, Attempt::Again].get(attempt as usize).copied().unwrap_or(Attempt::First);
                let next = Planned { peer: PEERS[peer], len: [16, 1040, 1056, 4112, 4112, 4128][len], pieces, attempt };
                let place = runs.place(&next);
                if place == 0 {
                    run.clear();
                }
                prop_assert_eq!(usize::from(place), run.len());
                run.push(next);
                let (last, others) = run.split_last().expect("it has one");
                prop_assert!(others.iter().all(|other| other.len == run[0].len && other.peer == last.peer));
                let are_new = run.iter().all(|packet| packet.attempt == Attempt::First);
                prop_assert!(last.len <= run[0].len && (place == 0 || are_new));
                prop_assert!(run.len() <= 64 && run.iter().map(|packet| packet.len).sum::<usize>() <= BYTES_MAX);
                prop_assert!(run.iter().map(|packet| packet.pieces + 2).sum::<usize>() <= 1024);
            }
        }
    }
}

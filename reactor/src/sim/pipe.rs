//! One direction of a connection: bytes on their way, bytes that have arrived, and how it ends.

use super::chance::Chance;
use super::faults::Faults;
use lunar_core::time::Instant;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// How a direction ends, behind its last byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// The sender has closed its side.
    Closed,
    /// The connection is reset.
    Reset,
}

/// The state that a receiver finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// This number of bytes.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// The end.
    Ended(Ending),
}

/// Bytes towards one end.
#[derive(Debug)]
pub(super) struct Pipe {
    flying: VecDeque<(Instant, Vec<u8>)>,
    flying_bytes: usize,
    arrived: VecDeque<Vec<u8>>,
    arrived_bytes: usize,
    /// Bytes of the first segment that were taken.
    taken: usize,
    /// Bytes that may be in flight or unread: the sender's and the receiver's buffers together.
    capacity: usize,
    /// When the newest segment arrives; nothing overtakes it.
    newest: Instant,
    ending: Option<(Instant, Ending)>,
    /// Bytes that were sent and received so far.
    sent: u64,
    received: u64,
    /// Descriptors, each group with the number of the byte that it comes with.
    descriptors: VecDeque<(u64, Vec<OwnedFd>)>,
}

impl Pipe {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            flying: VecDeque::new(),
            flying_bytes: 0,
            arrived: VecDeque::new(),
            arrived_bytes: 0,
            taken: 0,
            capacity,
            newest: Instant::default(),
            ending: None,
            sent: 0,
            received: 0,
            descriptors: VecDeque::new(),
        }
    }

    /// Bytes that may be sent now.
    pub(super) fn room(&self) -> usize {
        self.capacity.saturating_sub(self.flying_bytes + self.arrived_bytes)
    }

    /// Whether something was put behind the last byte already.
    pub(super) fn ending(&self) -> Option<Ending> {
        self.ending.map(|(_, ending)| ending)
    }

    /// Whether a reset has arrived.
    pub(super) fn reset_by(&self, now: Instant) -> bool {
        self.ending.is_some_and(|(at, ending)| ending == Ending::Reset && at <= now)
    }

    /// Sends a segment, no longer than [`Pipe::room`]; returns the time of arrival.
    pub(super) fn send(&mut self, now: Instant, bytes: Vec<u8>, chance: &mut Chance, faults: &Faults) -> Instant {
        let at = self.arrival(now, chance, faults);
        self.flying_bytes += bytes.len();
        self.sent += bytes.len() as u64;
        self.flying.push_back((at, bytes));
        at
    }

    /// Ends the direction after the bytes in flight, or, for an abortive reset, before them. Returns the time of
    /// arrival.
    pub(super) fn end(&mut self, now: Instant, how: Ending, chance: &mut Chance, faults: &Faults) -> Option<Instant> {
        if let Some((_, Ending::Reset)) = self.ending {
            return None;
        }
        if how == Ending::Reset && chance.coin() {
            self.flying.clear();
            self.flying_bytes = 0;
            self.newest = now;
        }
        let at = self.arrival(now, chance, faults);
        self.ending = Some((at, how));
        Some(at)
    }

    /// Nothing arrives before this.
    pub(super) fn stall(&mut self, until: Instant) {
        self.newest = self.newest.max(until);
    }

    fn arrival(&mut self, now: Instant, chance: &mut Chance, faults: &Faults) -> Instant {
        self.newest = self.newest.max(now + chance.time(&faults.latency));
        self.newest
    }

    /// Delivers segments that arrive until now.
    pub(super) fn land(&mut self, now: Instant) {
        while self.flying.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, bytes)) = self.flying.pop_front() {
                self.flying_bytes -= bytes.len();
                self.arrived_bytes += bytes.len();
                self.arrived.push_back(bytes);
            }
        }
    }

    /// The state that the receiver finds now.
    pub(super) fn found(&self, now: Instant) -> Found {
        match self.ending {
            _ if self.arrived_bytes > 0 => Found::Bytes(self.arrived_bytes),
            Some((at, ending)) if at <= now && self.flying.is_empty() => Found::Ended(ending),
            _ => Found::Nothing,
        }
    }

    /// Takes `count` bytes that have arrived.
    pub(super) fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count);
        while bytes.len() < count {
            let Some(segment) = self.arrived.front() else { break };
            let part = (segment.len() - self.taken).min(count - bytes.len());
            bytes.extend_from_slice(&segment[self.taken..self.taken + part]);
            self.taken += part;
            if self.taken == segment.len() {
                self.arrived.pop_front();
                self.taken = 0;
            }
        }
        self.arrived_bytes -= bytes.len();
        self.received += bytes.len() as u64;
        bytes
    }

    /// Has descriptors come with the next byte that is sent.
    pub(super) fn attach(&mut self, descriptors: Vec<OwnedFd>) {
        if !descriptors.is_empty() {
            self.descriptors.push_back((self.sent, descriptors));
        }
    }

    /// Bytes that one receive may take: it ends before the next byte that descriptors come with.
    pub(super) fn most(&self, count: usize) -> usize {
        let next = self.descriptors.iter().find(|(at, _)| *at > self.received);
        next.map_or(count, |(at, _)| count.min(usize::try_from(at - self.received).unwrap_or(count)))
    }

    /// The descriptors that have come with the bytes that were received.
    pub(super) fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        let mut taken = Vec::new();
        while self.descriptors.front().is_some_and(|(at, _)| *at < self.received) {
            taken.extend(self.descriptors.pop_front().into_iter().flat_map(|(_, group)| group));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn still() -> Faults {
        Faults { latency: (Duration::from_nanos(100), Duration::from_nanos(100)), ..Faults::none() }
    }

    #[test]
    fn bytes_arrive_in_order_and_free_room_when_taken() {
        let (mut pipe, mut chance) = (Pipe::new(10), Chance::new(1));
        let at = pipe.send(Instant(0), b"abc".to_vec(), &mut chance, &still());
        assert_eq!(at, Instant(100));
        assert_eq!(pipe.send(Instant(50), b"def".to_vec(), &mut chance, &still()), Instant(150));
        pipe.land(Instant(149));
        assert_eq!((pipe.found(Instant(149)), pipe.room()), (Found::Bytes(3), 4));
        pipe.land(Instant(150));
        assert_eq!(pipe.take(5), b"abcde");
        assert_eq!(pipe.room(), 9);
    }

    #[test]
    fn the_end_arrives_after_the_last_byte() {
        let (mut pipe, mut chance) = (Pipe::new(10), Chance::new(1));
        let _ = pipe.send(Instant(0), b"abc".to_vec(), &mut chance, &still());
        assert_eq!(pipe.end(Instant(0), Ending::Closed, &mut chance, &still()), Some(Instant(100)));
        assert_eq!(pipe.found(Instant(100)), Found::Nothing);
        pipe.land(Instant(100));
        assert_eq!(pipe.found(Instant(100)), Found::Bytes(3));
        let _ = pipe.take(3);
        assert_eq!(pipe.found(Instant(100)), Found::Ended(Ending::Closed));
    }

    #[test]
    fn a_reset_may_overtake_bytes_in_flight_and_arrives_once() {
        let mut overtakes = 0;
        for seed in 0..50 {
            let (mut pipe, mut chance) = (Pipe::new(10), Chance::new(seed));
            let _ = pipe.send(Instant(0), b"abc".to_vec(), &mut chance, &still());
            assert!(pipe.end(Instant(0), Ending::Reset, &mut chance, &still()).is_some());
            assert!(pipe.end(Instant(0), Ending::Reset, &mut chance, &still()).is_none());
            pipe.land(Instant(100));
            overtakes += usize::from(pipe.found(Instant(100)) == Found::Ended(Ending::Reset));
        }
        assert!((5..45).contains(&overtakes));
    }

    #[test]
    fn a_stall_holds_up_everything() {
        let (mut pipe, mut chance) = (Pipe::new(10), Chance::new(1));
        pipe.stall(Instant(1000));
        assert_eq!(pipe.send(Instant(0), b"a".to_vec(), &mut chance, &still()), Instant(1000));
        assert_eq!(pipe.send(Instant(950), b"b".to_vec(), &mut chance, &still()), Instant(1050));
    }
}

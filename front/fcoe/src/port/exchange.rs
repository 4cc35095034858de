//! The exchanges of one initiator: commands in progress, the data that they were sent, and results that the initiator
//! may ask for again.

use super::coverage::{Added, Coverage};
use crate::limits::{INITIATOR_EXCHANGES_MAX, RESULT_TIME, RESULTS_MAX};
use crate::wire::els::{COMPLETE, HAS_INITIATIVE, RESPONDER};
use crate::wire::fcp::ResponseBytes;
use crate::wire::frame::UNASSIGNED;
use crate::wire::names::PortId;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::time::Instant;
use std::collections::{HashMap, VecDeque};

/// Identifies an exchange of a port. The key of an exchange that has ended finds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExchangeKey {
    /// The initiator.
    pub peer: PortId,
    /// OX_ID.
    pub ox_id: u16,
    /// Its number: never used again.
    pub number: u64,
}

impl ExchangeKey {
    /// RX_ID: that of exchanges that follow each other differ, so that frames of an earlier one with the same OX_ID
    /// find nothing.
    #[must_use]
    pub fn rx_id(self) -> u16 {
        // Below 64 Ki.
        (self.number % u64::from(UNASSIGNED)) as u16
    }
}

/// Data that was requested.
#[derive(Debug)]
struct Burst {
    start: u32,
    end: u32,
    memory: SgMut,
    coverage: Coverage,
}

/// The state of an exchange.
#[derive(Debug)]
enum State {
    /// The command is in progress.
    Running(Option<Burst>),
    /// The initiator has aborted it: it is answered when the command has ended.
    Aborting,
    /// It has ended with this response.
    Ended(Kept),
}

/// A response that the initiator may ask for again. Most have no sense data.
#[derive(Debug)]
struct Kept {
    head: [u8; HEAD_LEN],
    rest: Option<Box<[u8]>>,
}

/// Bytes of a response without sense data and information.
const HEAD_LEN: usize = 24;

impl Kept {
    fn new(response: &[u8]) -> Self {
        let mut head = [0; HEAD_LEN];
        let (first, rest) = response.split_at(response.len().min(HEAD_LEN));
        head[..first.len()].copy_from_slice(first);
        Self { head, rest: (!rest.is_empty()).then(|| rest.into()) }
    }

    fn bytes(&self) -> Vec<u8> {
        [&self.head[..], self.rest.as_deref().unwrap_or_default()].concat()
    }
}

#[derive(Debug)]
struct Exchange {
    number: u64,
    /// A digest of the command, by which a copy of its frame is recognised.
    digest: u32,
    /// SEQ_ID of its next sequence.
    sequence: u8,
    /// Bytes of data that were sent to the initiator, or have arrived.
    transferred: u32,
    state: State,
}

/// The exchanges of an initiator.
#[derive(Debug, Default)]
pub struct Exchanges {
    all: HashMap<u16, Exchange>,
    running: usize,
    /// Exchanges that have ended, in the order of their ends.
    ended: VecDeque<(Instant, u16, u64)>,
}

/// The arrival of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// It is executed, as the exchange of this key.
    New(ExchangeKey),
    /// It is a copy of one in progress.
    Copy,
    /// Another one is in progress in the exchange of this key, which the initiator has given up.
    Replaces(ExchangeKey),
    /// Too many are in progress.
    Full,
}

/// An abort of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Abort {
    /// Its command is in progress.
    Running(ExchangeKey),
    /// It was aborted before, and its command is still in progress.
    Again,
    /// Nothing is in progress.
    Nothing,
}

/// Data that was requested, as far as it has arrived.
#[derive(Debug)]
pub enum Requested {
    /// All of it.
    Arrived(Sg),
    /// Some is missing.
    Waiting,
    /// The exchange has ended, or nothing was requested.
    Gone,
}

/// The state of an exchange, as REC reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// RX_ID.
    pub rx_id: u16,
    /// Bytes that were transferred.
    pub transferred: u32,
    /// E_STAT.
    pub status: u32,
}

/// The part of a sequence that is sent again.
#[derive(Clone, Debug)]
pub enum Again {
    /// The response.
    Response(ExchangeKey, Vec<u8>),
    /// The request for data from this offset on, so many bytes.
    Ready(ExchangeKey, u32, u32),
}

impl Exchanges {
    /// Commands in progress.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running
    }

    fn key(peer: PortId, ox_id: u16, exchange: &Exchange) -> ExchangeKey {
        ExchangeKey { peer, ox_id, number: exchange.number }
    }

    fn get(&mut self, key: ExchangeKey) -> Option<&mut Exchange> {
        self.all.get_mut(&key.ox_id).filter(|exchange| exchange.number == key.number)
    }

    /// Takes a command of an initiator. `number` was not used before.
    pub fn arrive(&mut self, (peer, ox_id): (PortId, u16), digest: u32, number: u64) -> Arrival {
        if let Some(known) = self.all.get_mut(&ox_id)
            && !matches!(known.state, State::Ended(_))
        {
            if known.digest == digest {
                return Arrival::Copy;
            }
            // It gets no response: the initiator would take it for that of the new command.
            known.state = State::Aborting;
            return Arrival::Replaces(Self::key(peer, ox_id, known));
        }
        if self.running >= INITIATOR_EXCHANGES_MAX {
            return Arrival::Full;
        }
        self.running += 1;
        let exchange = Exchange { number, digest, sequence: 1, transferred: 0, state: State::Running(None) };
        let key = Self::key(peer, ox_id, &exchange);
        self.all.insert(ox_id, exchange);
        Arrival::New(key)
    }

    /// The SEQ_ID of the next sequence of an exchange in progress, with so many bytes of data.
    pub fn next_sequence(&mut self, key: ExchangeKey, bytes: usize) -> Option<u8> {
        let exchange = self.get(key).filter(|exchange| matches!(exchange.state, State::Running(_)))?;
        // FCP_DL has 32 bits.
        exchange.transferred = exchange.transferred.saturating_add(bytes as u32);
        Some(exchange.next_sequence())
    }

    /// Requests data from `offset` on, as much as there is memory. Returns the SEQ_ID of the request.
    pub fn request(&mut self, key: ExchangeKey, offset: u32, memory: SgMut) -> Option<u8> {
        let exchange = self.get(key)?;
        let State::Running(burst) = &mut exchange.state else { return None };
        let end = u32::try_from(memory.len()).ok().and_then(|len| offset.checked_add(len))?;
        *burst = Some(Burst { start: offset, end, memory, coverage: Coverage::default() });
        Some(exchange.next_sequence())
    }

    /// Takes data that an initiator has sent. Returns the key of its exchange if all requested data has arrived now.
    pub fn data(&mut self, (peer, ox_id, rx_id): (PortId, u16, u16), offset: u32, bytes: &[u8]) -> Option<ExchangeKey> {
        let exchange = self.all.get_mut(&ox_id)?;
        let key = Self::key(peer, ox_id, exchange);
        let State::Running(Some(burst)) = &mut exchange.state else { return None };
        let end = u32::try_from(bytes.len()).ok().and_then(|len| offset.checked_add(len))?;
        let is_within = rx_id == key.rx_id() && burst.start <= offset && offset < end && end <= burst.end;
        if !is_within || burst.coverage.add(offset, end) != Added::New {
            return None;
        }
        burst.memory.copy_from((offset - burst.start) as usize, bytes);
        exchange.transferred = burst.coverage.reached(burst.start);
        (burst.coverage.reached(burst.start) == burst.end).then_some(key)
    }

    /// Takes requested data, if all of it has arrived.
    pub fn take(&mut self, key: ExchangeKey) -> Requested {
        let Some(Exchange { state: State::Running(burst), .. }) = self.get(key) else { return Requested::Gone };
        match burst.take_if(|burst| burst.coverage.reached(burst.start) == burst.end) {
            Some(burst) => Requested::Arrived(burst.memory.share()),
            None if burst.is_some() => Requested::Waiting,
            None => Requested::Gone,
        }
    }

    /// Ends a command with a response. Returns the SEQ_ID of the response; `None`: it gets none.
    pub fn end(&mut self, key: ExchangeKey, response: &ResponseBytes, now: Instant) -> Option<u8> {
        let exchange = self.get(key)?;
        if !matches!(exchange.state, State::Running(_)) {
            self.remove(key);
            return None;
        }
        let sequence = exchange.next_sequence();
        exchange.state = State::Ended(Kept::new(response));
        self.running -= 1;
        self.ended.push_back((now, key.ox_id, key.number));
        self.expire(now);
        Some(sequence)
    }

    /// Forgets results that may not be asked for any more.
    fn expire(&mut self, now: Instant) {
        let is_kept = |all: &HashMap<u16, Exchange>, ox_id: u16, number: u64| {
            all.get(&ox_id).is_some_and(|exchange| exchange.number == number)
        };
        while let Some((when, ox_id, number)) = self.ended.front().copied() {
            let is_there = is_kept(&self.all, ox_id, number);
            let is_crowded = self.all.len() - self.running > RESULTS_MAX;
            if is_there && !is_crowded && now.since(when) < RESULT_TIME {
                break;
            }
            self.ended.pop_front();
            if is_there {
                self.all.remove(&ox_id);
            }
        }
        // Identifiers that are used again leave entries behind.
        if self.ended.len() > 2 * RESULTS_MAX {
            let all = &self.all;
            self.ended.retain(|(_, ox_id, number)| is_kept(all, *ox_id, *number));
        }
    }

    /// Removes an exchange that is not answered.
    pub fn remove(&mut self, key: ExchangeKey) {
        if self.get(key).is_some_and(|exchange| !matches!(exchange.state, State::Ended(_))) {
            self.all.remove(&key.ox_id);
            self.running -= 1;
        }
    }

    /// The initiator aborts an exchange.
    pub fn abort(&mut self, peer: PortId, ox_id: u16) -> Abort {
        let Some(exchange) = self.all.get_mut(&ox_id) else { return Abort::Nothing };
        let key = Self::key(peer, ox_id, exchange);
        match exchange.state {
            State::Running(_) => {
                exchange.state = State::Aborting;
                Abort::Running(key)
            }
            State::Aborting => Abort::Again,
            State::Ended(_) => Abort::Nothing,
        }
    }

    /// The state of an exchange that the initiator asks for; `None`: the command of the initiator has not arrived.
    ///
    /// Identifiers are used again at once. An initiator that does not know RX_ID has received nothing of its exchange:
    /// a command that has ended was an earlier one then, or only its response is lost. That is not known, and a command
    /// must not be reported as complete that was not executed.
    pub fn report(&self, peer: PortId, ox_id: u16, rx_id: u16) -> Option<Report> {
        let exchange = self.all.get(&ox_id)?;
        let own = Self::key(peer, ox_id, exchange).rx_id();
        if rx_id != UNASSIGNED && rx_id != own {
            return None;
        }
        let status = match exchange.state {
            State::Ended(_) if rx_id == UNASSIGNED => return None,
            State::Running(Some(_)) => RESPONDER,
            State::Running(None) | State::Aborting => RESPONDER | HAS_INITIATIVE,
            State::Ended(_) => RESPONDER | COMPLETE,
        };
        Some(Report { rx_id: own, transferred: exchange.transferred, status })
    }

    /// The sequence that the initiator asks for again; `None`: it cannot be sent again. `is_data`: it asks for the
    /// request for its data, not for the response.
    pub fn again(&mut self, (peer, ox_id, rx_id): (PortId, u16, u16), is_data: bool) -> Option<Again> {
        let exchange = self.all.get_mut(&ox_id)?;
        let key = Self::key(peer, ox_id, exchange);
        let is_known = rx_id == key.rx_id();
        match &mut exchange.state {
            State::Ended(response) if !is_data && is_known => Some(Again::Response(key, response.bytes())),
            State::Running(Some(burst)) if is_data && (is_known || rx_id == UNASSIGNED) => {
                let from = burst.coverage.reached(burst.start);
                // Data behind a gap is sent again.
                burst.coverage.truncate(from);
                Some(Again::Ready(key, from, burst.end - from))
            }
            _ => None,
        }
    }

    /// The SEQ_ID of a sequence that is sent again.
    pub fn repeated(&mut self, key: ExchangeKey) -> u8 {
        self.get(key).map_or(0, Exchange::next_sequence)
    }
}

impl Exchange {
    fn next_sequence(&mut self) -> u8 {
        let sequence = self.sequence;
        self.sequence = self.sequence.wrapping_add(1);
        sequence
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::fcp::Response;
    use lunar_core::mem::Arena;
    use std::time::Duration;

    fn peer() -> PortId {
        PortId::of_neighbour(7).expect("valid")
    }

    fn arrived(all: &mut Exchanges, ox_id: u16, number: u64) -> ExchangeKey {
        match all.arrive((peer(), ox_id), 1, number) {
            Arrival::New(key) => key,
            other => panic!("{other:?}"),
        }
    }

    fn memory(len: usize) -> SgMut {
        Arena::new(1 << 20).take_sg(len).expect("room")
    }

    #[test]
    fn data_arrives_in_any_order_and_only_with_the_identifier_of_its_exchange() {
        let mut all = Exchanges::default();
        let key = arrived(&mut all, 5, 9);
        assert!(matches!(all.take(key), Requested::Gone));
        assert_eq!(all.request(key, 512, memory(1024)), Some(1));
        let data = |all: &mut Exchanges, rx_id, offset: u32, byte: u8| {
            all.data((peer(), 5, rx_id), offset, &[byte; 512]).is_some()
        };
        assert!(!data(&mut all, 9, 1024, 2) && !data(&mut all, 8, 512, 9) && !data(&mut all, 9, 0, 9));
        assert!(!data(&mut all, 9, 1536, 9) && !data(&mut all, 9, 768, 9), "behind the end, and over its edge");
        assert!(matches!(all.take(key), Requested::Waiting));
        assert!(data(&mut all, 9, 512, 1) && !data(&mut all, 9, 512, 9));
        let Requested::Arrived(bytes) = all.take(key) else { panic!("it has arrived") };
        assert_eq!(bytes.to_vec(), [[1; 512], [2; 512]].concat());
    }

    #[test]
    fn a_lost_frame_is_reported_and_requested_again() {
        let mut all = Exchanges::default();
        let key = arrived(&mut all, 5, 9);
        let running = all.report(peer(), 5, UNASSIGNED).expect("known");
        assert_eq!((running.rx_id, running.status), (9, RESPONDER | HAS_INITIATIVE));
        assert_eq!(all.request(key, 0, memory(2048)), Some(1));
        for offset in [0, 1024, 1536] {
            assert_eq!(all.data((peer(), 5, 9), offset, &[3; 512]), None);
        }
        assert_eq!(all.report(peer(), 5, 9).map(|report| (report.transferred, report.status)), Some((512, RESPONDER)));
        assert!(all.report(peer(), 5, 8).is_none() && all.again((peer(), 5, 9), false).is_none());
        assert!(matches!(all.again((peer(), 5, 9), true), Some(Again::Ready(_, 512, 1536))));
        for offset in [512, 1024] {
            assert_eq!(all.data((peer(), 5, 9), offset, &[4; 512]), None);
        }
        assert_eq!(all.data((peer(), 5, 9), 1536, &[4; 512]), Some(key));
    }

    #[test]
    fn results_are_kept_for_some_time_and_identifiers_are_used_again() {
        let mut all = Exchanges::default();
        let response = Response { status: 8, ..Response::default() }.bytes();
        let key = arrived(&mut all, 5, 9);
        assert_eq!(all.arrive((peer(), 5), 1, 10), Arrival::Copy);
        assert_eq!((all.end(key, &response, Instant(1)), all.running()), (Some(1), 0));
        assert_eq!(all.end(key, &response, Instant(1)), None, "once");
        assert_eq!(all.report(peer(), 5, 9).map(|report| report.status), Some(RESPONDER | COMPLETE));
        assert!(all.report(peer(), 5, UNASSIGNED).is_none() && all.again((peer(), 5, UNASSIGNED), false).is_none());
        assert!(matches!(all.again((peer(), 5, 9), false), Some(Again::Response(_, bytes)) if bytes == *response));
        assert_eq!(all.abort(peer(), 5), Abort::Nothing);
        let later = Instant(1) + RESULT_TIME + Duration::from_secs(1);
        let second = arrived(&mut all, 6, 10);
        assert!(all.end(second, &response, later).is_some());
        assert!(all.report(peer(), 5, 9).is_none() && all.report(peer(), 6, 10).is_some());
        // The identifier of a result is used by another command.
        let third = arrived(&mut all, 6, 11);
        assert_eq!(all.abort(peer(), 6), Abort::Running(third));
        assert_eq!((all.abort(peer(), 6), all.end(third, &response, later)), (Abort::Again, None));
        assert_eq!((all.running(), all.report(peer(), 6, UNASSIGNED)), (0, None), "it is gone without a response");
        let fourth = arrived(&mut all, 6, 12);
        all.remove(fourth);
        assert_eq!((all.running(), all.report(peer(), 6, UNASSIGNED)), (0, None));
    }

    #[test]
    fn a_command_that_is_given_up_gets_no_response() {
        let mut all = Exchanges::default();
        let key = arrived(&mut all, 5, 9);
        assert_eq!(all.arrive((peer(), 5), 2, 10), Arrival::Replaces(key));
        assert_eq!(all.end(key, &Response::default().bytes(), Instant(1)), None);
        assert_eq!((all.running(), all.report(peer(), 5, UNASSIGNED)), (0, None));
    }

    #[test]
    fn commands_and_results_are_bounded() {
        let mut all = Exchanges::default();
        let keys: Vec<_> = (0..INITIATOR_EXCHANGES_MAX as u16).map(|ox| arrived(&mut all, ox, ox.into())).collect();
        assert_eq!(all.arrive((peer(), u16::MAX), 1, 70_000), Arrival::Full);
        let response = Response::default().bytes();
        keys.iter().for_each(|key| {
            let _ = all.end(*key, &response, Instant(1));
        });
        for ox in 0..RESULTS_MAX as u16 * 2 {
            let key = arrived(&mut all, ox, 80_000 + u64::from(ox));
            all.end(key, &response, Instant(1));
        }
        assert!(all.all.len() <= RESULTS_MAX && all.ended.len() <= 2 * RESULTS_MAX);
        let last = arrived(&mut all, 9, 1 << 20);
        all.end(last, &response, Instant(1));
        for number in 0..4 * RESULTS_MAX as u64 {
            let key = arrived(&mut all, 1, (1 << 21) + number);
            all.end(key, &response, Instant(1));
        }
        assert!(
            all.again((peer(), 9, last.rx_id()), false).is_some(),
            "another identifier, used often, does not displace it"
        );
        assert!(all.ended.len() <= 2 * RESULTS_MAX);
    }
}

//! The sending half of a reliable connection: messages to a peer, and access to its memory.
//!
//! Everything takes effect in the order in which it was queued. Packets that are not acknowledged are sent again from
//! the first missing one on; their bytes stay in memory until then.

use crate::limits::{
    ACKNOWLEDGE_EVERY, ANSWER_FACTOR, ENTRY_BYTES, NOT_READY_MAX, RETRIES, TIMEOUT, TIMEOUT_MAX, WINDOW,
};
use crate::wire::{Extension, Opcode, Packet, Psn, Remote, Syndrome};
use lunar_core::mem::{Sg, SgMut};
use lunar_core::shares::Share;
use lunar_core::time::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// Something to do at a peer.
#[derive(Debug)]
enum Work {
    /// Sends a message.
    Send(Message),
    /// Writes into memory of the peer.
    Write(Remote, Sg),
    /// Reads memory of the peer.
    Read(Read),
}

/// A message to a peer.
#[derive(Debug, Default)]
pub struct Message {
    /// Its bytes.
    pub data: Sg,
    /// As many messages more may come from the peer when it has acknowledged this one.
    pub posts: usize,
    /// A share that is given back then.
    pub share: Option<Share>,
    /// The R_Key that the peer invalidates before it sees the message.
    pub invalidates: Option<u32>,
}

impl From<Sg> for Message {
    fn from(data: Sg) -> Self {
        Self { data, ..Self::default() }
    }
}

#[derive(Debug)]
struct Read {
    from: Remote,
    into: SgMut,
    got: usize,
    token: u64,
}

#[derive(Debug)]
struct Queued {
    work: Work,
    first: Psn,
    /// Packets; of a READ: its responses.
    packets: u32,
}

/// The sending half.
#[derive(Debug)]
pub struct Requester {
    mtu: usize,
    /// READs that may be outstanding.
    reads_max: usize,
    queue: VecDeque<Queued>,
    /// Bytes of the queue: those to send, and [`ENTRY_BYTES`] for each entry.
    bytes: usize,
    /// Entries that were removed from it so far.
    removed: u64,
    /// Messages that may come because messages were acknowledged.
    posts: usize,
    /// The number of the first packet that is queued next.
    end: Psn,
    /// The first packet that is not acknowledged, and the one that is sent next.
    first: Psn,
    next: Psn,
    /// Its place in the queue.
    at: usize,
    /// One behind the last packet that was ever sent.
    sent: Psn,
    /// Packets from here on were sent again because one was missing.
    repaired: Option<Psn>,
    /// When packets are sent again, if there is no progress.
    deadline: Option<Instant>,
    /// How often packets were sent again since the last progress, and since the last answer that was measured.
    tries: u32,
    backoff: u32,
    /// A packet that was sent once, and when: the time until it is acknowledged is measured.
    timed: Option<(Psn, Instant)>,
    /// The time that an answer takes.
    answer_time: Duration,
    not_ready: u32,
    paused_until: Option<Instant>,
    /// Packets that were sent more than once.
    repeated: u64,
}

/// A packet to send.
#[derive(Debug)]
pub struct Outgoing {
    /// Its code.
    pub opcode: Opcode,
    /// Its number.
    pub psn: Psn,
    /// Whether it requests an acknowledgement.
    pub wants_acknowledge: bool,
    /// The extension behind its base transport header.
    pub extension: Extension,
    /// Its payload.
    pub payload: Sg,
    /// Whether it is sent for the first time.
    pub attempt: Attempt,
}

impl Outgoing {
    /// An answer without a payload, with this acknowledgement.
    #[must_use]
    pub fn acknowledgement(psn: Psn, extension: Extension) -> Self {
        let (opcode, payload, attempt) = (Opcode::ACKNOWLEDGE, Sg::default(), Attempt::Only);
        Self { opcode, psn, wants_acknowledge: false, extension, payload, attempt }
    }
}

/// Whether a packet is sent for the first time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attempt {
    /// For the first time: if it is lost, it is sent again.
    First,
    /// Again.
    Again,
    /// For the only time: it is no packet that is sent again if it is lost, but an acknowledgement or a message of the
    /// connection manager, for instance.
    Only,
}

/// A READ that is complete.
#[derive(Debug)]
pub struct Completed {
    /// The token that it was started with.
    pub token: u64,
    /// The bytes.
    pub data: Sg,
}

/// The peer does not answer, or has refused something: the connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed {
    /// No answer.
    Silent,
    /// A negative acknowledgement.
    Refused(Syndrome),
}

impl Requester {
    /// A half whose first packet has this number, and that may have so many READs outstanding.
    #[must_use]
    pub fn new(mtu: usize, first: Psn, reads_max: u8) -> Self {
        Self {
            mtu,
            reads_max: reads_max.into(),
            queue: VecDeque::new(),
            bytes: 0,
            removed: 0,
            posts: 0,
            end: first,
            first,
            next: first,
            at: 0,
            sent: first,
            repaired: None,
            deadline: None,
            tries: 0,
            backoff: 0,
            timed: None,
            answer_time: Duration::ZERO,
            not_ready: 0,
            paused_until: None,
            repeated: 0,
        }
    }

    /// Has no more READs outstanding than so many from now on.
    pub fn limit_reads(&mut self, most: u8) {
        self.reads_max = self.reads_max.min(most.into());
    }

    fn queue(&mut self, work: Work, len: usize) {
        // Without bytes there is one packet. The queue has far fewer packets than there are numbers.
        let packets = len.div_ceil(self.mtu).max(1) as u32;
        self.bytes += ENTRY_BYTES;
        self.queue.push_back(Queued { work, first: self.end, packets });
        self.end = self.end.plus(packets);
    }

    /// Sends a message.
    pub fn send(&mut self, message: Message) {
        let len = message.data.len();
        self.bytes += len;
        self.queue(Work::Send(message), len);
    }

    /// Writes into memory of the peer.
    pub fn write(&mut self, to: Remote, data: Sg) {
        let len = data.len();
        self.bytes += len;
        self.queue(Work::Write(to, data), len);
    }

    /// Reads memory of the peer, as much as there is room for.
    pub fn read(&mut self, from: Remote, into: SgMut, token: u64) {
        let len = into.len();
        self.queue(Work::Read(Read { from, into, got: 0, token }), len);
    }

    /// Bytes of messages and writes that are not acknowledged, and [`ENTRY_BYTES`] for each of them and for each READ.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.bytes
    }

    /// Messages, writes and READs that were queued so far, and those of them that are acknowledged or complete. They
    /// are in the order in which they were queued.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.removed + self.queue.len() as u64, self.removed)
    }

    /// Messages that may come because messages were acknowledged, since the last call.
    pub fn take_posts(&mut self) -> usize {
        std::mem::take(&mut self.posts)
    }

    /// Whether nothing is to be done.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Packets that were sent more than once, since the last call.
    pub fn take_repeated(&mut self) -> u64 {
        std::mem::take(&mut self.repeated)
    }

    /// When [`Requester::expire`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.paused_until {
            Some(until) => Some(until),
            None => self.deadline,
        }
    }

    /// Sends again what was not answered in time.
    ///
    /// # Errors
    /// The peer has not answered for too long.
    pub fn expire(&mut self, now: Instant) -> Result<(), Failed> {
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            self.arm(now);
            return Ok(());
        }
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return Ok(());
        }
        (self.tries, self.backoff) = (self.tries + 1, self.backoff + 1);
        if self.tries > RETRIES {
            return Err(Failed::Silent);
        }
        self.go_back();
        self.arm(now);
        Ok(())
    }

    /// Starts the time for an answer.
    fn arm(&mut self, now: Instant) {
        // A peer that is slow, or a long queue on the way, must not be flooded with repetitions.
        let usual = (self.answer_time * ANSWER_FACTOR).max(TIMEOUT);
        let time = usual.saturating_mul(1 << self.backoff.min(16)).min(TIMEOUT_MAX);
        self.deadline = (self.sent != self.first).then(|| now + time);
    }

    fn go_back(&mut self) {
        (self.next, self.at, self.timed) = (self.first, 0, None);
    }

    /// Sends from the first missing packet on, once for each.
    fn repair(&mut self) {
        if self.repaired != Some(self.first) {
            self.repaired = Some(self.first);
            self.go_back();
        }
    }

    /// Whether [`Requester::poll`] would return a packet.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        if self.paused_until.is_some() || self.next.since(self.first) >= WINDOW {
            return false;
        }
        match self.queue.get(self.at) {
            Some(Queued { work: Work::Read(_), .. }) => {
                let reads = self.queue.iter().take(self.at).filter(|queued| matches!(queued.work, Work::Read(_)));
                reads.count() < self.reads_max
            }
            queued => queued.is_some(),
        }
    }

    /// The next packet.
    pub fn poll(&mut self, now: Instant) -> Option<Outgoing> {
        if !self.is_ready() {
            return None;
        }
        let queued = self.queue.get(self.at)?;
        let psn = self.next;
        let number = psn.since(queued.first);
        let offset = number as usize * self.mtu;
        let (is_first, is_last) = (number == 0, number + 1 == queued.packets);
        let is_new = psn == self.sent;
        let attempt = if is_new { Attempt::First } else { Attempt::Again };
        // The acknowledgement of what follows a write, its response as a rule, is that of the write, too.
        let is_followed = matches!(queued.work, Work::Write(..)) && self.at + 1 < self.queue.len();
        let wants_acknowledge = is_last && !is_followed || psn.plus(1).get().is_multiple_of(ACKNOWLEDGE_EVERY);
        let message = |data: &Sg, to: Option<Remote>, invalidates: Option<u32>| {
            let plain = Opcode::of_message(to.is_some(), is_first, is_last);
            let (opcode, extension) = match (to, invalidates) {
                // Lengths are those of a unit's commands, below 4 GiB.
                (Some(to), _) if is_first => (plain, Extension::Remote(to, data.len() as u32)),
                (None, Some(key)) if is_last => (Opcode::of_invalidation(is_first), Extension::Invalidate(key)),
                _ => (plain, Extension::None),
            };
            Outgoing {
                opcode,
                psn,
                wants_acknowledge,
                extension,
                payload: data.part(offset..data.len().min(offset + self.mtu)),
                attempt,
            }
        };
        let (outgoing, packets, is_over) = match &queued.work {
            Work::Send(sent) => (message(&sent.data, None, sent.invalidates), 1, is_last),
            Work::Write(to, data) => (message(data, Some(*to), None), 1, is_last),
            Work::Read(read) => {
                let extension = Extension::Remote(read.from.plus(offset), (read.into.len() - offset) as u32);
                let opcode = Opcode::READ_REQUEST;
                let payload = Sg::default();
                let outgoing = Outgoing { opcode, psn, wants_acknowledge: true, extension, payload, attempt };
                (outgoing, queued.packets - number, true)
            }
        };
        self.next = psn.plus(packets);
        self.at += usize::from(is_over);
        if is_new && self.timed.is_none() && outgoing.wants_acknowledge {
            self.timed = Some((psn, now));
        }
        if self.sent == self.first {
            self.sent = self.next;
            self.arm(now);
        } else if self.next.since(self.first) > self.sent.since(self.first) {
            self.sent = self.next;
        } else {
            self.repeated += 1;
        }
        Some(outgoing)
    }

    /// The first packet of the queue that is not answered: of a READ, the response that is missing.
    fn reach(queued: &Queued, mtu: usize) -> Psn {
        match &queued.work {
            Work::Read(read) => queued.first.plus((read.got / mtu) as u32),
            _ => queued.first,
        }
    }

    /// Everything before this packet is acknowledged. Returns whether a READ without its responses is before it.
    fn advance(&mut self, to: Psn, now: Instant) -> bool {
        let before = self.first;
        let mut is_blocked = false;
        while let Some(queued) = self.queue.front() {
            let reached = to.since(before).min(self.sent.since(before));
            let end = queued.first.plus(queued.packets);
            let is_read = matches!(queued.work, Work::Read(_));
            if is_read {
                self.first = Self::reach(queued, self.mtu);
                is_blocked = reached > self.first.since(before);
                break;
            }
            if end.since(before) > reached {
                self.first = before.plus(reached);
                break;
            }
            self.pop();
            self.first = end;
        }
        if self.first != before {
            self.progress(before, now);
        }
        is_blocked
    }

    /// Removes the first of the queue.
    fn pop(&mut self) -> Option<Queued> {
        let queued = self.queue.pop_front()?;
        self.at = self.at.saturating_sub(1);
        self.removed += 1;
        self.bytes -= ENTRY_BYTES;
        self.bytes -= match &queued.work {
            Work::Send(message) => {
                self.posts += message.posts;
                message.data.len()
            }
            Work::Write(_, data) => data.len(),
            Work::Read(_) => 0,
        };
        Some(queued)
    }

    /// The first missing packet was `before`, and is a later one now.
    fn progress(&mut self, before: Psn, now: Instant) {
        // Packets that were about to be sent again have arrived.
        if self.next.since(before) < self.first.since(before) {
            self.go_back();
        }
        if let Some((psn, since)) = self.timed
            && psn.is_before(self.first)
        {
            let time = now.since(since);
            self.answer_time = if time > self.answer_time { time } else { (self.answer_time * 7 + time) / 8 };
            (self.timed, self.backoff) = (None, 0);
        }
        (self.tries, self.not_ready, self.repaired) = (0, 0, None);
        self.paused_until = None;
        self.arm(now);
    }

    /// Whether a packet of this number was sent and is not acknowledged.
    fn is_outstanding(&self, psn: Psn) -> bool {
        psn.since(self.first) < self.sent.since(self.first)
    }

    /// Takes an acknowledgement.
    ///
    /// # Errors
    /// The peer refuses a request.
    pub fn acknowledged(&mut self, psn: Psn, syndrome: Syndrome, now: Instant) -> Result<(), Failed> {
        // A packet that was sent again is refused with its number, although it was answered before: the peer has ended
        // the connection in any case.
        let is_refusal =
            matches!(syndrome, Syndrome::INVALID_REQUEST | Syndrome::ACCESS_ERROR | Syndrome::OPERATIONAL_ERROR);
        if is_refusal && psn.is_before(self.sent) {
            return Err(Failed::Refused(syndrome));
        }
        if !self.is_outstanding(psn) {
            return Ok(());
        }
        if syndrome.is_positive() {
            if self.advance(psn.plus(1), now) {
                self.repair();
            }
            return Ok(());
        }
        if let Some(microseconds) = syndrome.not_ready() {
            self.advance(psn, now);
            self.not_ready += 1;
            if self.not_ready > NOT_READY_MAX {
                return Err(Failed::Refused(syndrome));
            }
            self.go_back();
            self.paused_until = Some(now + Duration::from_micros(microseconds));
            return Ok(());
        }
        if syndrome != Syndrome::SEQUENCE_ERROR {
            return Err(Failed::Refused(syndrome));
        }
        self.advance(psn, now);
        self.repair();
        Ok(())
    }

    /// Takes a response to a READ. Returns the READ if it is complete.
    pub fn response(&mut self, packet: &Packet<'_>, now: Instant) -> Option<Completed> {
        if !self.is_outstanding(packet.psn) {
            return None;
        }
        // A READ is executed after everything before it.
        let holder = self.queue.iter().find(|queued| packet.psn.since(queued.first) < queued.packets)?;
        if !matches!(holder.work, Work::Read(_)) {
            return None;
        }
        let first = holder.first;
        self.advance(first, now);
        if packet.psn != self.first {
            // One before it is missing.
            self.repair();
            return None;
        }
        let Some(Queued { work: Work::Read(read), .. }) = self.queue.front_mut() else { return None };
        let wanted = (read.into.len() - read.got).min(self.mtu);
        if packet.payload.len() != wanted {
            return None;
        }
        read.into.copy_from(read.got, packet.payload);
        read.got += wanted;
        let is_over = read.got == read.into.len();
        let before = self.first;
        self.first = before.plus(1);
        let completed = if is_over { self.pop() } else { None };
        self.progress(before, now);
        match completed?.work {
            Work::Read(read) => Some(Completed { token: read.token, data: read.into.share() }),
            _ => None,
        }
    }
}

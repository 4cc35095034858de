//! Data-PduQueue of one command: what came unasked, what was asked for, and in which order it may come
//! (RFC 7143 4.2.5.2, 11.7, 11.8). DataPDUInOrder and DataSequenceInOrder are always Yes.

use super::joined::Joined;
use crate::wire::NO_TAG;
use lunar_core::mem::{Sg, SgMut};
use std::collections::VecDeque;

/// Why the data of a command cannot be used (11.4.7.2): (ASC, ASCQ) with ABORTED COMMAND.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// Unexpected unsolicited data.
    Unexpected,
    /// Incorrect amount of data.
    Amount,
    /// Protocol service CRC error; also when a PDU of a sequence is missing.
    Crc,
}

/// A sequence of Data-PduQueue PDUs, with the memory that is left to fill.
#[derive(Debug)]
struct Burst {
    /// [`NO_TAG`] for the one that comes unasked.
    ttt: u32,
    offset: u32,
    len: u32,
    received: u32,
    data_sn: u32,
    memory: SgMut,
}

/// What an R2T asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct R2tRequest {
    pub(super) r2t_sn: u32,
    pub(super) offset: u32,
    pub(super) len: u32,
}

/// What becomes of the payload of a Data-PduQueue PDU.
#[derive(Debug)]
pub(super) enum Opened {
    /// No sequence has this tag: it is rejected and thrown away.
    Unknown,
    /// It breaks the rules of its sequence: it is rejected and thrown away, and the command has failed.
    Bad,
    /// It is thrown away: the command has failed already, or is answered.
    Drain,
    /// It belongs here.
    Fill(SgMut),
}

/// What a pull finds.
#[derive(Debug)]
pub(super) enum Pulled {
    /// The bytes.
    Ready(Sg),
    /// They will come.
    Pending,
    /// Memory for this many bytes is needed, to ask for them.
    Memory(usize),
    /// They will not come.
    Failed,
}

#[derive(Debug, Default)]
pub(super) struct Inflow {
    /// Bytes that came and were not pulled; they start at `pulled`.
    arrived: Joined,
    pulled: u32,
    /// First byte that may not come yet.
    granted: u32,
    /// In the order of their offsets; the first `sent` of them are known to the initiator.
    bursts: VecDeque<Burst>,
    sent: usize,
    r2t_sn: u32,
    /// Bytes that came, or may come, unasked, and were not pulled.
    unasked: usize,
    /// A pull waits for all bytes before this one.
    waiting: Option<u32>,
    failure: Option<Failure>,
    /// Nothing that still comes is of use.
    discards: bool,
}

impl Inflow {
    /// For the next command: memory goes back, the queue keeps its room.
    pub(super) fn reset(&mut self) {
        // Most commands have neither.
        if self.arrived.len() > 0 {
            self.arrived.clear();
        }
        if !self.bursts.is_empty() {
            self.bursts.clear();
        }
        (self.pulled, self.granted, self.sent, self.r2t_sn, self.unasked) = (0, 0, 0, 0, 0);
        (self.waiting, self.failure, self.discards) = (None, None, false);
    }

    /// Takes immediate data.
    pub(super) fn immediate(&mut self, data: Sg) {
        self.unasked += data.len();
        self.granted = u32::try_from(data.len()).expect("a segment has at most 24 bits");
        self.arrived.append(data);
    }

    /// The first burst will go on unasked for `memory.len()` bytes.
    pub(super) fn unsolicited(&mut self, memory: SgMut) {
        let len = u32::try_from(memory.len()).expect("FirstBurstLength has at most 24 bits");
        self.unasked += memory.len();
        let offset = self.granted;
        self.granted += len;
        self.bursts.push_back(Burst { ttt: NO_TAG, offset, len, received: 0, data_sn: 0, memory });
        self.sent = 1;
    }

    /// Whatever still comes is thrown away; what is not asked for will not be.
    pub(super) fn discard(&mut self) {
        self.discards = true;
        self.bursts.truncate(self.sent);
        self.bursts.iter_mut().for_each(|burst| burst.memory = SgMut::default());
        self.arrived.clear();
    }

    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.discard();
    }

    /// Why the command's data cannot be used, if it cannot.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Whether the initiator has still to end a sequence.
    pub(super) fn owes(&self) -> bool {
        self.sent > 0
    }

    /// R2Ts that were sent.
    pub(super) fn r2ts(&self) -> u32 {
        self.r2t_sn
    }

    /// Bytes that came unasked and that nobody has pulled.
    pub(super) fn unasked(&self) -> usize {
        self.unasked
    }

    fn end(&self) -> u32 {
        self.pulled + u32::try_from(self.arrived.len()).expect("at most the expected length, 32 bits")
    }

    fn unsolicited_is_open(&self) -> bool {
        self.bursts.front().is_some_and(|burst| burst.ttt == NO_TAG)
    }

    /// Bytes `offset..offset + len` of `total`; in ascending order, without gaps.
    pub(super) fn pull(&mut self, offset: usize, len: usize, total: u32) -> Pulled {
        let end = offset.checked_add(len).and_then(|end| u32::try_from(end).ok()).filter(|&end| end <= total);
        let (Some(end), None, true) = (end, self.failure, offset == self.pulled as usize) else {
            return Pulled::Failed;
        };
        if self.end() >= end {
            self.waiting = None;
            self.pulled = end;
            self.unasked -= len.min(self.unasked);
            return Pulled::Ready(self.arrived.take(len));
        }
        self.waiting = Some(end);
        if self.granted >= end || self.unsolicited_is_open() {
            return Pulled::Pending;
        }
        Pulled::Memory((end - self.granted) as usize)
    }

    /// Whether a pull that waits is to be tried again.
    pub(super) fn is_due(&mut self) -> bool {
        let due = self.waiting.is_some_and(|end| {
            self.failure.is_some() || self.end() >= end || (self.granted < end && !self.unsolicited_is_open())
        });
        if due {
            self.waiting = None;
        }
        due
    }

    /// Memory for bytes that nobody has asked for yet, in bursts of at most `burst_max`.
    pub(super) fn supply(&mut self, mut memory: SgMut, total: u32, burst_max: u32) {
        if self.failure.is_some() || self.discards {
            return;
        }
        while !memory.is_empty() && self.granted < total {
            let room = (total - self.granted).min(burst_max) as usize;
            let part = memory.split_to(room.min(memory.len()));
            let len = u32::try_from(part.len()).expect("at most burst_max");
            let offset = self.granted;
            self.granted += len;
            self.bursts.push_back(Burst { ttt: NO_TAG, offset, len, received: 0, data_sn: 0, memory: part });
        }
    }

    /// Asks for the next burst, under this tag, if fewer than `limit` are outstanding.
    pub(super) fn ask(&mut self, ttt: u32, limit: u32) -> Option<R2tRequest> {
        if self.sent >= limit as usize {
            return None;
        }
        let burst = self.bursts.get_mut(self.sent)?;
        burst.ttt = ttt;
        self.sent += 1;
        let asked = R2tRequest { r2t_sn: self.r2t_sn, offset: burst.offset, len: burst.len };
        self.r2t_sn += 1;
        Some(asked)
    }

    fn position(&self, ttt: u32) -> Option<usize> {
        self.bursts.iter().take(self.sent).position(|burst| burst.ttt == ttt)
    }

    /// The header of a Data-PduQueue PDU: where its payload goes.
    pub(super) fn open(&mut self, ttt: u32, data_sn: u32, offset: u32, len: usize) -> Opened {
        let Some(at) = self.position(ttt) else { return Opened::Unknown };
        if self.discards {
            return Opened::Drain;
        }
        let burst = &mut self.bursts[at];
        if data_sn != burst.data_sn {
            self.fail(Failure::Crc);
            return Opened::Drain;
        }
        // A sequence that overtakes another, a gap, or more than was asked for.
        if at > 0 || offset != burst.offset + burst.received || len > burst.memory.len() {
            self.fail(Failure::Amount);
            return Opened::Bad;
        }
        Opened::Fill(burst.memory.split_to(len))
    }

    /// The same PDU with its payload, unless that was thrown away. `strict`: an unasked sequence has to be complete.
    pub(super) fn close(&mut self, ttt: u32, data: Option<Sg>, intact: bool, last: bool, strict: bool) {
        let Some(at) = self.position(ttt) else { return };
        if !intact {
            self.fail(Failure::Crc);
        }
        let burst = &mut self.bursts[at];
        burst.data_sn = burst.data_sn.wrapping_add(1);
        if let (Some(data), false) = (data, self.discards) {
            burst.received += u32::try_from(data.len()).expect("at most the burst");
            self.arrived.append(data);
        }
        if !last {
            return;
        }
        let Some(burst) = self.bursts.remove(at) else { return };
        self.sent -= 1;
        if self.discards || burst.received == burst.len {
            return;
        }
        if burst.ttt == NO_TAG && !strict {
            // The initiator keeps the rest until it is asked for.
            self.granted = burst.offset + burst.received;
            self.unasked -= ((burst.len - burst.received) as usize).min(self.unasked);
        } else {
            self.fail(Failure::Amount);
        }
    }
}

#[cfg(test)]
#[path = "inflow_tests.rs"]
mod tests;

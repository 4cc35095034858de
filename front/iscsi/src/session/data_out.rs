//! The data that the initiator sends for one command: immediate, unsolicited and solicited data, and the order in which
//! it may arrive (RFC 7143 4.2.5.2, 11.7, 11.8). DataPDUInOrder and DataSequenceInOrder are always Yes.

use super::received::Received;
use crate::wire::NO_TAG;
use lunar_core::mem::{Arena, PAGE, Sg, SgMut};
use std::collections::VecDeque;

/// Why the data of a command cannot be used; the sense data of RFC 7143 11.4.7.2 with ABORTED COMMAND.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DataFailure {
    /// Unexpected unsolicited data.
    Unexpected,
    /// Incorrect amount of data.
    Amount,
    /// Protocol service CRC error. Also reported when a PDU of a sequence is missing.
    Crc,
}

/// A sequence of Data-Out PDUs: the unsolicited one, or one that an R2T requests.
#[derive(Debug)]
struct Sequence {
    /// The target transfer tag; [`NO_TAG`] for the unsolicited sequence.
    ttt: u32,
    offset: u32,
    len: u32,
    /// Bytes of the PDUs that have begun, and of those whose payload was kept.
    begun: u32,
    received: u32,
    /// The DataSN of its next PDU.
    data_sn: u32,
    /// Memory for the bytes that are not received yet.
    memory: SgMut,
}

/// The fields of an R2T.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct R2tRequest {
    pub(super) r2t_sn: u32,
    pub(super) offset: u32,
    pub(super) len: u32,
}

/// Where the payload of a Data-Out PDU goes.
#[derive(Debug)]
pub(super) enum Destination {
    /// No sequence has this tag: the PDU is rejected and its payload discarded.
    Unknown,
    /// It breaks the rules of its sequence: the PDU is rejected and its payload discarded; the command has failed.
    Invalid,
    /// It is discarded: the command has failed, or its reply is known.
    Discard,
    /// It goes to this memory.
    Memory(SgMut),
}

/// The result of a pull.
#[derive(Debug)]
pub(super) enum Pulled {
    /// The bytes.
    Ready(Sg),
    /// The bytes are on their way.
    Pending,
    /// Memory for this many bytes is needed to request them.
    NeedsMemory(usize),
    /// The bytes will not arrive.
    Failed,
}

/// The use of received data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Use {
    /// The command takes it.
    #[default]
    Keep,
    /// It is discarded: the reply to the command is known.
    Discard,
    /// It is discarded: the command has failed.
    Failed(DataFailure),
}

/// The length of a sequence of a command that is not executed: its data is discarded and not checked.
const UNCHECKED: u32 = u32::MAX;

/// The memory that `len` bytes take: whole pages.
#[inline]
pub(super) fn pages(len: usize) -> usize {
    len.next_multiple_of(PAGE)
}

/// The Data-Out state of one command.
#[derive(Debug, Default)]
pub(super) struct DataOutState {
    /// Bytes that were received and not pulled; they begin at `pulled`.
    received: Received,
    pulled: u32,
    /// The first byte that no sequence covers.
    covered_end: u32,
    /// In the order of their offsets. The initiator knows of the first `open` of them.
    sequences: VecDeque<Sequence>,
    open: usize,
    r2t_sn: u32,
    /// Bytes that arrived, or may arrive, immediate or unsolicited, and were not pulled.
    unsolicited: usize,
    /// A pull waits for all bytes before this one.
    waiting: Option<u32>,
    usage: Use,
}

impl DataOutState {
    /// Resets it for the next command: frees the memory of the data, and keeps that of the queue.
    pub(super) fn reset(&mut self) {
        // Most commands have neither.
        if self.received.len() > 0 {
            self.received.clear();
        }
        if !self.sequences.is_empty() {
            self.sequences.clear();
        }
        (self.pulled, self.covered_end, self.open, self.r2t_sn, self.unsolicited) = (0, 0, 0, 0, 0);
        (self.waiting, self.usage) = (None, Use::Keep);
    }

    /// Takes immediate data.
    pub(super) fn add_immediate(&mut self, data: Sg) {
        self.unsolicited += data.len();
        self.covered_end = u32::try_from(data.len()).expect("a segment has at most 24 bits");
        self.received.append(data);
    }

    /// Expects the rest of the first burst as unsolicited data, of at most `memory.len()` bytes.
    pub(super) fn expect_unsolicited(&mut self, memory: SgMut) {
        let len = u32::try_from(memory.len()).expect("FirstBurstLength has at most 24 bits");
        self.unsolicited += memory.len();
        let offset = self.covered_end;
        self.covered_end += len;
        self.sequences.push_back(Sequence { ttt: NO_TAG, offset, len, begun: 0, received: 0, data_sn: 0, memory });
        self.open = 1;
    }

    /// Discards the unsolicited data of a command that is not executed, however much it is.
    pub(super) fn refuse_unsolicited(&mut self) {
        let (offset, memory) = (self.covered_end, SgMut::default());
        self.sequences.push_back(Sequence {
            ttt: NO_TAG,
            offset,
            len: UNCHECKED,
            begun: 0,
            received: 0,
            data_sn: 0,
            memory,
        });
        self.open = 1;
        self.discard();
    }

    /// Discards all data, received and to come, and requests no more.
    pub(super) fn discard(&mut self) {
        if self.usage == Use::Keep {
            self.usage = Use::Discard;
        }
        self.sequences.truncate(self.open);
        self.sequences.iter_mut().for_each(|sequence| sequence.memory = SgMut::default());
        self.received.clear();
    }

    fn fail(&mut self, failure: DataFailure) {
        if self.failure().is_none() {
            self.usage = Use::Failed(failure);
        }
        self.discard();
    }

    /// Why the data of the command cannot be used, if it cannot.
    pub(super) fn failure(&self) -> Option<DataFailure> {
        match self.usage {
            Use::Failed(failure) => Some(failure),
            Use::Keep | Use::Discard => None,
        }
    }

    /// Whether the initiator has not sent the last PDU of a sequence yet.
    pub(super) fn has_open_sequence(&self) -> bool {
        self.open > 0
    }

    /// The number of R2Ts sent.
    pub(super) fn r2ts(&self) -> u32 {
        self.r2t_sn
    }

    /// Bytes of memory for data that arrived, or may arrive, immediate or unsolicited, and was not pulled: whole pages.
    #[inline]
    pub(super) fn unsolicited(&self) -> usize {
        pages(self.unsolicited)
    }

    /// Moves data that was not pulled out of the receive buffer of the connection, which is much larger than a small
    /// piece that keeps it. If there is no memory for that, the data stays.
    pub(super) fn detach(&mut self, arena: &Arena) {
        if self.received.len() > 0
            && let Some(memory) = arena.take_sg(self.received.len())
        {
            self.received.move_to(memory);
        }
    }

    /// The offset after the last byte received.
    fn end(&self) -> u32 {
        self.pulled + u32::try_from(self.received.len()).expect("at most the expected length, 32 bits")
    }

    /// Bytes `offset..offset + len` of `total`. Pulls go in ascending order without gaps.
    pub(super) fn pull(&mut self, offset: usize, len: usize, total: u32) -> Pulled {
        let end = offset.checked_add(len).and_then(|end| u32::try_from(end).ok()).filter(|&end| end <= total);
        let (Some(end), None, true) = (end, self.failure(), offset == self.pulled as usize) else {
            return Pulled::Failed;
        };
        if self.end() >= end {
            self.waiting = None;
            self.pulled = end;
            self.unsolicited -= len.min(self.unsolicited);
            return Pulled::Ready(self.received.take(len));
        }
        self.waiting = Some(end);
        if self.covered_end >= end || !self.sequences.is_empty() {
            return Pulled::Pending;
        }
        Pulled::NeedsMemory((end - self.covered_end) as usize)
    }

    /// Whether a waiting pull may succeed or has failed. It then no longer waits.
    pub(super) fn take_due_pull(&mut self) -> bool {
        let due = self.waiting.is_some_and(|end| {
            self.failure().is_some() || self.end() >= end || (self.covered_end < end && self.sequences.is_empty())
        });
        if due {
            self.waiting = None;
        }
        due
    }

    /// Takes memory for bytes that were not requested yet, and divides it into sequences of at most `burst_max` bytes.
    pub(super) fn supply(&mut self, mut memory: SgMut, total: u32, burst_max: u32) {
        if self.usage != Use::Keep {
            return;
        }
        while !memory.is_empty() && self.covered_end < total {
            let room = (total - self.covered_end).min(burst_max) as usize;
            let part = memory.split_to(room.min(memory.len()));
            let len = u32::try_from(part.len()).expect("at most burst_max");
            let offset = self.covered_end;
            self.covered_end += len;
            self.sequences.push_back(Sequence {
                ttt: NO_TAG,
                offset,
                len,
                begun: 0,
                received: 0,
                data_sn: 0,
                memory: part,
            });
        }
    }

    /// The next R2T to send, under this tag, if fewer than `limit` sequences are open.
    pub(super) fn next_r2t(&mut self, ttt: u32, limit: u32) -> Option<R2tRequest> {
        if self.open >= limit as usize {
            return None;
        }
        let sequence = self.sequences.get_mut(self.open)?;
        sequence.ttt = ttt;
        self.open += 1;
        let request = R2tRequest { r2t_sn: self.r2t_sn, offset: sequence.offset, len: sequence.len };
        self.r2t_sn += 1;
        Some(request)
    }

    fn position(&self, ttt: u32) -> Option<usize> {
        self.sequences.iter().take(self.open).position(|sequence| sequence.ttt == ttt)
    }

    /// Takes the header of a Data-Out PDU: where its payload goes.
    pub(super) fn begin_pdu(&mut self, ttt: u32, data_sn: u32, offset: u32, len: usize) -> Destination {
        let Some(at) = self.position(ttt) else { return Destination::Unknown };
        // Data of a command whose reply is known obeys the same rules: else a burst could go on beyond its R2T.
        let failed = self.failure().is_some();
        let sequence = &mut self.sequences[at];
        if failed || sequence.len == UNCHECKED {
            return Destination::Discard;
        }
        let len_left = sequence.len - sequence.begun;
        if data_sn != sequence.data_sn {
            self.fail(DataFailure::Crc);
            return Destination::Discard;
        }
        // A sequence before its turn, a gap, or more data than was requested.
        if at > 0 || offset != sequence.offset.wrapping_add(sequence.begun) || len > len_left as usize {
            self.fail(DataFailure::Amount);
            return Destination::Invalid;
        }
        sequence.begun += u32::try_from(len).expect("a segment has at most 24 bits");
        if self.usage == Use::Keep { Destination::Memory(sequence.memory.split_to(len)) } else { Destination::Discard }
    }

    /// Takes the payload of the same PDU, unless that was discarded. `strict`: an unsolicited sequence must be
    /// complete.
    pub(super) fn end_pdu(&mut self, ttt: u32, data: Option<Sg>, intact: bool, last: bool, strict: bool) {
        let Some(at) = self.position(ttt) else { return };
        if !intact {
            self.fail(DataFailure::Crc);
        }
        let is_kept = self.usage == Use::Keep;
        let sequence = &mut self.sequences[at];
        sequence.data_sn = sequence.data_sn.wrapping_add(1);
        if let (Some(data), true) = (data, is_kept) {
            sequence.received += u32::try_from(data.len()).expect("at most the sequence");
            self.received.append(data);
        }
        if !last {
            return;
        }
        let Some(sequence) = self.sequences.remove(at) else { return };
        self.open -= 1;
        if !is_kept || sequence.received == sequence.len {
            return;
        }
        if sequence.ttt == NO_TAG && !strict {
            // The initiator sends the rest after an R2T.
            self.covered_end = sequence.offset + sequence.received;
            self.unsolicited -= ((sequence.len - sequence.received) as usize).min(self.unsolicited);
        } else {
            self.fail(DataFailure::Amount);
        }
    }
}

#[cfg(test)]
#[path = "data_out_tests.rs"]
mod tests;

//! Data and status of commands: Data-Out and R2T, Data-In and responses (RFC 7143 11.4, 11.7, 11.8).

use super::Session;
use super::action::{Action, TaskKey};
use super::data_out::{DataFailure, Destination, Pulled};
use super::tasks::{Answer, State, Summary, Task};
use crate::config::{RDMA_ANSWER_MAX, SENSE_MAX};
use crate::wire::{
    Bhs, DataIn, DataOut, FINAL, NO_TAG, OVERFLOW, Pdu, R2t, RejectReason, STATUS, ScsiResponse, UNDERFLOW,
};
use lunar_core::io::Fault;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::step::FinalData;
use lunar_core::wire::be::{U16, U32};
use lunar_stream::input::{Payload, PayloadPlan};
use lunar_stream::protocol::{CommandData, PullResult};
use zerocopy::IntoBytes;

/// Status GOOD (SAM-6 5.3.1).
const GOOD: u8 = 0x00;

impl Session {
    /// Takes the header of a Data-Out PDU: where its payload goes.
    pub(super) fn open_data_out(&mut self, bhs: &Bhs) -> PayloadPlan {
        let header = DataOut::of(bhs);
        // The task was aborted after the initiator had sent this PDU.
        let Some(key) = self.tasks.find(header.itt.get()) else { return PayloadPlan::Discard };
        let Some(task) = self.tasks.get_mut(key) else { return PayloadPlan::Discard };
        let (ttt, data_sn, offset) = (header.ttt.get(), header.data_sn.get(), header.offset.get());
        match task.transfer.begin_pdu(ttt, data_sn, offset, header.data_len.get()) {
            Destination::Memory(memory) => return PayloadPlan::Fill(memory),
            Destination::Discard => {}
            Destination::Unknown | Destination::Invalid => self.reject(RejectReason::INVALID_FIELD, bhs),
        }
        PayloadPlan::Discard
    }

    /// Handles a complete Data-Out PDU.
    pub(super) fn data_out(&mut self, bhs: &Bhs, payload: &mut Payload, actions: &mut Vec<Action>) {
        let header = DataOut::of(bhs);
        if header.data_len.get() == 0 {
            // A PDU without payload has no payload plan: its header is taken here.
            let _nothing = self.open_data_out(bhs);
        }
        if !payload.intact {
            self.reject(RejectReason::DATA_DIGEST, bhs);
        }
        let last = header.flags & FINAL != 0;
        let data = payload.data.take();
        self.end_data_out(header.itt.get(), header.ttt.get(), data, (payload.intact, last), actions);
    }

    /// The memory for the data that an R2T requests, for a data mover that reads the data itself (RFC 5047 8.3);
    /// `None`: the data is not wanted any more. [`Session::read`] follows.
    pub fn begin_read(&mut self, r2t: &R2t) -> Option<SgMut> {
        let key = self.tasks.find(r2t.itt.get())?;
        let (len, task) = (r2t.desired_len.get() as usize, self.tasks.get_mut(key)?);
        match task.transfer.begin_pdu(r2t.ttt.get(), 0, r2t.offset.get(), len) {
            Destination::Memory(memory) => Some(memory),
            Destination::Discard | Destination::Unknown | Destination::Invalid => None,
        }
    }

    /// The data that an R2T has requested was read, or is not wanted.
    pub fn read(&mut self, itt: u32, ttt: u32, data: Option<Sg>, actions: &mut Vec<Action>) {
        self.end_data_out(itt, ttt, data, (true, true), actions);
    }

    /// Whether there is a task with this initiator task tag.
    #[must_use]
    pub fn has_task(&self, itt: u32) -> bool {
        self.tasks.find(itt).is_some()
    }

    fn end_data_out(
        &mut self,
        itt: u32,
        ttt: u32,
        data: Option<Sg>,
        (is_intact, is_last): (bool, bool),
        actions: &mut Vec<Action>,
    ) {
        let Some(key) = self.tasks.find(itt) else { return };
        let Some(task) = self.tasks.get_mut(key) else { return };
        // RFC 7143 11.4.7.2: the first burst has to be complete if the command has more than one.
        let strict = task.expected_out > self.parameters.first_burst;
        let unsolicited = task.transfer.unsolicited();
        task.transfer.end_pdu(ttt, data, is_intact, is_last, strict);
        self.unsolicited.shrink(unsolicited - task.transfer.unsolicited());
        let is_due = task.transfer.take_due_pull();
        if !task.transfer.has_open_sequence()
            && let State::Draining(answer) = &mut task.state
        {
            let answer = std::mem::take(answer);
            // The reply was known before the initiator broke the rules of its last burst (RFC 7143 11.7.1, 11.8).
            let failure = task.transfer.failure().filter(|_| answer.status == GOOD);
            return self.finish(key, &failure.map_or(answer, DataFailure::answer));
        }
        if is_last {
            self.send_r2ts(key);
        }
        if is_due {
            actions.push(Action::DataReady(key));
        }
    }

    /// A command that is being executed.
    fn running(&mut self, key: TaskKey) -> Option<&mut Task> {
        self.tasks.get_mut(key).filter(|task| matches!(task.state, State::Running))
    }

    /// Sends as many R2Ts as MaxOutstandingR2T allows.
    fn send_r2ts(&mut self, key: TaskKey) {
        let limit = self.parameters.max_outstanding_r2t;
        loop {
            let ttt = self.tag();
            let Some(task) = self.tasks.get_mut(key) else { return };
            let Some(request) = task.transfer.next_r2t(ttt.get(), limit) else { return };
            let (stat_sn, exp_cmd_sn, max_cmd_sn) = self.numbers.without_status();
            let header = R2t {
                lun: task.lun,
                itt: U32::new(task.itt),
                ttt,
                stat_sn,
                exp_cmd_sn,
                max_cmd_sn,
                r2t_sn: U32::new(request.r2t_sn),
                offset: U32::new(request.offset),
                desired_len: U32::new(request.len),
                ..R2t::blank()
            };
            self.out.short(header, &[]);
        }
    }

    /// Ends a command with the rest of its data, its status and sense data (at most [`SENSE_MAX`] bytes). `wanted`:
    /// bytes that the command transfers without the limit of the initiator, for the residual count. Returns whether the
    /// task was still there.
    ///
    /// While the initiator has not ended its data sequences, the response waits (RFC 7143 11.4.2).
    pub fn reply(&mut self, key: TaskKey, status: u8, sense: &[u8], final_data: &mut FinalData, wanted: u64) -> bool {
        let Some(task) = self.running(key) else { return false };
        let failure = task.transfer.failure();
        if failure.is_none() && !task.transfer.has_open_sequence() {
            self.finish_with(key, status, sense, wanted, final_data);
            return true;
        }
        let answer = match failure {
            Some(failure) => failure.answer(),
            None => Answer { status, sense: sense.into(), wanted },
        };
        self.answer_early(key, answer);
        true
    }

    /// Has the data that a command did not take yet leave the receive buffer, because the command has to wait.
    pub fn detach(&mut self, key: TaskKey) {
        if let Some(task) = self.tasks.get_mut(key) {
            task.transfer.detach(&self.arena);
        }
    }

    /// Ends a task without a response, because it was aborted. Data that the initiator still sends for it is discarded.
    pub fn drop_task(&mut self, key: TaskKey) {
        if self.running(key).is_none() {
            return;
        }
        if self.end_task(key).is_some_and(|task| task.numbered) {
            self.numbers.done();
        }
    }

    /// Ends a command when the initiator has ended its data sequences.
    pub(super) fn answer_early(&mut self, key: TaskKey, answer: Answer) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if task.transfer.has_open_sequence() {
            task.transfer.discard();
            task.state = State::Draining(answer);
        } else {
            self.finish(key, &answer);
        }
    }

    fn finish(&mut self, key: TaskKey, answer: &Answer) {
        self.finish_with(key, answer.status, &answer.sense, answer.wanted, &mut FinalData::default());
    }

    /// Sends the rest of the data and the status, in one PDU where that is allowed (RFC 7143 11.7.3).
    fn finish_with(&mut self, key: TaskKey, status: u8, sense: &[u8], wanted: u64, final_data: &mut FinalData) {
        let Some(mut task) = self.end_task(key) else { return };
        if task.numbered {
            self.numbers.done();
        }
        let residual = residual(wanted, task.expected_in.max(task.expected_out));
        if !final_data.data.is_empty() {
            let fits = final_data.offset < task.expected_in as usize;
            // Over RDMA, data goes into the memory of the initiator, and not the status (RFC 7145 7.3.5).
            let collapses = status == GOOD && sense.is_empty() && fits && !self.is_rdma();
            let with_data = collapses.then_some((status, residual));
            self.data_in(&mut task, final_data.offset, &mut final_data.data, with_data);
            if collapses {
                return;
            }
        }
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = self.numbers.with_status();
        let header = ScsiResponse {
            flags: FINAL | residual.0,
            status,
            itt: U32::new(task.itt),
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            // ExpDataSN counts Data-In and R2T PDUs. A command has one of the two.
            exp_data_sn: U32::new(task.data_sn.wrapping_add(task.r2ts)),
            residual: U32::new(residual.1),
            ..ScsiResponse::blank()
        };
        // Behind its length.
        let sense_max = if self.is_rdma() { RDMA_ANSWER_MAX as usize - 2 } else { SENSE_MAX };
        let sense = &sense[..sense.len().min(sense_max)];
        if sense.is_empty() {
            self.out.short(header, &[]);
        } else {
            let len = U16::new(u16::try_from(sense.len()).expect("at most SENSE_MAX"));
            self.out.short(header, &[len.as_bytes(), sense]);
        }
    }

    /// Sends Data-In PDUs; the last one carries `status`, if given.
    fn data_in(&mut self, task: &mut Summary, offset: usize, data: &mut Sg, status: Option<(u8, Residual)>) {
        let room = (task.expected_in as usize).saturating_sub(offset);
        if data.len() > room {
            *data = data.split_to(room);
        }
        // Over RDMA, only buffers for answers have a limit.
        let segment_max = if self.is_rdma() { usize::MAX } else { self.parameters.max_send_segment as usize };
        let mut at = offset;
        let mut sequence_left = self.parameters.max_burst as usize;
        while !data.is_empty() {
            let len = data.len().min(segment_max).min(sequence_left);
            let is_last = len == data.len();
            sequence_left -= len;
            let mut header = DataIn {
                flags: 0,
                itt: U32::new(task.itt),
                ttt: U32::new(NO_TAG),
                data_sn: U32::new(task.data_sn),
                offset: U32::new(u32::try_from(at).expect("within the expected length")),
                ..DataIn::blank()
            };
            if let (Some((status, (flag, count))), true) = (status, is_last) {
                header.flags = STATUS | flag;
                header.status = status;
                header.residual = U32::new(count);
                (header.stat_sn, header.exp_cmd_sn, header.max_cmd_sn) = self.numbers.with_status();
            } else {
                (_, header.exp_cmd_sn, header.max_cmd_sn) = self.numbers.without_status();
            }
            // RFC 7143 11.7.1: the F bit ends a sequence of at most MaxBurstLength bytes.
            if is_last || sequence_left == 0 {
                header.flags |= FINAL;
                sequence_left = self.parameters.max_burst as usize;
            }
            task.data_sn = task.data_sn.wrapping_add(1);
            at += len;
            self.out.payload(header, data, len);
        }
    }

    /// Removes a task; returns the fields that its response needs.
    #[inline(always)]
    pub(super) fn end_task(&mut self, key: TaskKey) -> Option<Summary> {
        let summary = self.tasks.remove(key)?;
        self.unsolicited.shrink(summary.unsolicited);
        Some(summary)
    }
}

impl CommandData for Session {
    type Key = TaskKey;

    fn pull(&mut self, key: TaskKey, offset: usize, len: usize) -> PullResult {
        let Some(task) = self.running(key) else { return PullResult::Failed(Fault::Aborted) };
        let unsolicited = task.transfer.unsolicited();
        let pulled = task.transfer.pull(offset, len, task.expected_out);
        let freed = unsolicited - task.transfer.unsolicited();
        self.unsolicited.shrink(freed);
        match pulled {
            Pulled::Ready(data) => PullResult::Ready(data),
            Pulled::Pending => PullResult::Pending,
            Pulled::NeedsMemory(len) => PullResult::NeedsMemory(len),
            Pulled::Failed => PullResult::Failed(Fault::Protocol),
        }
    }

    fn supply(&mut self, key: TaskKey, memory: SgMut) {
        let burst_max = self.parameters.max_burst;
        let Some(task) = self.running(key) else { return };
        task.transfer.supply(memory, task.expected_out, burst_max);
        self.send_r2ts(key);
    }

    fn push(&mut self, key: TaskKey, offset: usize, mut data: Sg) -> Result<(), Fault> {
        let task = self.running(key).ok_or(Fault::Aborted)?;
        let mut summary = task.summary();
        self.data_in(&mut summary, offset, &mut data, None);
        if let Some(task) = self.running(key) {
            task.data_sn = summary.data_sn;
        }
        Ok(())
    }
}

/// The residual flag and the residual count in bytes.
type Residual = (u8, u32);

/// RFC 7143 11.4.5: the bytes that the command transfers against the bytes that the initiator expects.
fn residual(wanted: u64, expected: u32) -> Residual {
    let expected = u64::from(expected);
    let count = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    match wanted.cmp(&expected) {
        std::cmp::Ordering::Greater => (OVERFLOW, count(wanted - expected)),
        std::cmp::Ordering::Equal => (0, 0),
        std::cmp::Ordering::Less => (UNDERFLOW, count(expected - wanted)),
    }
}

#[cfg(test)]
#[path = "data_tests.rs"]
mod tests;

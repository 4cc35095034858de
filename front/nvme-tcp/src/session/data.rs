//! Data and completions of commands: H2CData and R2T, C2HData and response capsules (NVMe/TCP Transport 1.0 3.3.2).

use super::tasks::{Answer, Pulled, RequestedData, State, TaskKey};
use super::{Action, CloseReason, Session, Violation, invalid};
use crate::wire::{C2hData, FatalStatus, H2cData, LAST, Pdu, R2t, SUCCESS};
use lunar_core::io::Fault;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::step::FinalData;
use lunar_nvme::Status;
use lunar_stream::input::{Payload, PayloadPlan};
use lunar_stream::protocol::{CommandData, PullResult};
use std::mem::offset_of;

impl Session {
    /// Takes the header of an H2CData PDU: where its data goes.
    pub(super) fn open_data(&mut self, header: &H2cData) -> Result<PayloadPlan, Violation> {
        let (tag, offset, len) = (header.tag.get(), header.offset.get(), header.data_len.get());
        let whole = header.common.len.get() as usize;
        let key = self.tasks.find(header.cid.get()).ok_or_else(|| invalid(offset_of!(H2cData, cid)))?;
        let shape = self.shape(&header.common);
        if shape.data_len != Some(len as usize) || len as usize > whole {
            return Err(invalid(offset_of!(H2cData, data_len)));
        }
        let task = self.tasks.get_mut(key).ok_or_else(|| invalid(offset_of!(H2cData, cid)))?;
        let is_discarded = task.is_answered() || task.is_damaged;
        let Some(requested) = task.requested.as_mut().filter(|requested| requested.tag == tag) else {
            return Err(invalid(offset_of!(H2cData, tag)));
        };
        let left = requested.len - requested.received;
        if offset != requested.offset + requested.received || len > left {
            return Err(Violation(FatalStatus::OUT_OF_RANGE, offset_of!(H2cData, offset) as u32));
        }
        // LAST_PDU must be set in the last PDU of a transfer, and in no other.
        if (header.common.flags & LAST != 0) != (len == left) {
            return Err(invalid(offset_of!(crate::wire::Common, flags)));
        }
        requested.received += len;
        if is_discarded {
            return Ok(PayloadPlan::Discard);
        }
        Ok(PayloadPlan::Fill(requested.memory.split_to(len as usize)))
    }

    /// Handles a complete H2CData PDU.
    pub(super) fn receive_data(
        &mut self,
        header: &H2cData,
        payload: &mut Payload,
        actions: &mut Vec<Action>,
    ) -> Result<(), Violation> {
        // A PDU without data has no purpose, and one that announces data that it does not have was not opened: its R2T
        // would never be fulfilled.
        if self.shape(&header.common).data_len.is_none_or(|len| len == 0 || len != header.data_len.get() as usize) {
            return Err(invalid(offset_of!(H2cData, data_len)));
        }
        let Some(key) = self.tasks.find(header.cid.get()) else { return Ok(()) };
        let Some(task) = self.tasks.get_mut(key) else { return Ok(()) };
        task.is_damaged |= !payload.intact;
        if let Some(data) = payload.data.take()
            && !task.is_damaged
        {
            task.receive(data);
        }
        if task.requested.as_ref().is_some_and(|requested| requested.received == requested.len) {
            task.requested = None;
            if let State::Answered(Answer { status, result }) = task.state {
                self.finish(key, status, result, &mut FinalData::default());
                return Ok(());
            }
        }
        if task.take_due_pull() {
            actions.push(Action::DataReady(key));
        }
        Ok(())
    }

    fn send_data(&mut self, cid: u16, offset: usize, data: Sg, flags: u8) {
        // Both are within the data length of the command, 32 bits.
        let (offset, len) = ((offset as u32).into(), (data.len() as u32).into());
        self.out.data(C2hData { cid: cid.into(), offset, data_len: len, ..C2hData::blank(flags) }, data);
    }

    /// Completes a command, with the rest of its data. Returns whether it was still there.
    ///
    /// While the host has not sent the requested data, the reply waits.
    pub fn reply(&mut self, key: TaskKey, status: Status, result: u64, final_data: &mut FinalData) -> bool {
        let Some(task) = self.tasks.get_mut(key).filter(|task| !task.is_answered()) else { return false };
        if let Some(requested) = &mut task.requested {
            if status.code() == Status::TRANSPORT_ERROR && !task.is_damaged {
                // The deadline for the data has passed: nothing tells whether it ever comes.
                self.shut(CloseReason::DataTimeout);
                return true;
            }
            // The data that is still to come is discarded.
            requested.memory = SgMut::default();
            let status = if task.is_damaged { Status::TRANSPORT_ERROR } else { status };
            task.state = State::Answered(Answer { status, result });
            return true;
        }
        self.finish(key, status, result, final_data);
        true
    }

    /// Bytes of data that a command has brought along and that were not pulled.
    #[must_use]
    pub fn in_capsule_bytes(&mut self, key: TaskKey) -> usize {
        self.tasks.get_mut(key).map_or(0, |task| task.received_bytes())
    }

    /// Moves the data that a command has brought along out of the receive buffer, which it keeps otherwise. `false` if
    /// there is no memory for it.
    #[must_use]
    pub fn detach(&mut self, key: TaskKey) -> bool {
        let arena = &self.arena;
        self.tasks.get_mut(key).is_none_or(|task| task.detach(arena))
    }

    /// Completes an Asynchronous Event Request, by its command identifier.
    pub fn reply_to(&mut self, cid: u16, status: Status, result: u64) {
        if let Some(key) = self.tasks.find(cid) {
            self.reply(key, status, result, &mut FinalData::default());
        }
    }

    /// Sends the rest of the data and the status, in one PDU where that is allowed.
    fn finish(&mut self, key: TaskKey, status: Status, result: u64, final_data: &mut FinalData) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let (cid, room) = (task.cid, task.room as usize);
        self.tasks.remove(key);
        let data = std::mem::take(&mut final_data.data);
        if status == Status::SUCCESS && !data.is_empty() && final_data.offset + data.len() <= room {
            // With flow control, the host needs a response capsule for SQHD.
            let collapses = !self.flow_control && result == 0;
            self.send_data(cid, final_data.offset, data, if collapses { LAST | SUCCESS } else { LAST });
            if collapses {
                return;
            }
        }
        self.complete(cid, status, result);
    }
}

impl CommandData for Session {
    type Key = TaskKey;

    fn pull(&mut self, key: TaskKey, offset: usize, len: usize) -> PullResult {
        let Some(task) = self.tasks.get_mut(key).filter(|task| !task.is_answered()) else {
            return PullResult::Failed(Fault::Aborted);
        };
        match task.pull(offset, len) {
            Pulled::Ready(data) => PullResult::Ready(data),
            Pulled::Pending => PullResult::Pending,
            Pulled::NeedsMemory(len) => PullResult::NeedsMemory(len),
            Pulled::Failed => PullResult::Failed(Fault::Protocol),
        }
    }

    fn supply(&mut self, key: TaskKey, mut memory: SgMut) {
        let Some(task) = self.tasks.get_mut(key).filter(|task| !task.is_answered() && task.requested.is_none()) else {
            return;
        };
        let left = (task.sent - task.requested_end) as usize;
        let memory = if memory.len() > left { memory.split_to(left) } else { memory };
        if memory.is_empty() {
            return;
        }
        self.next_tag = self.next_tag.wrapping_add(1);
        // At most the data length of the command, 32 bits.
        let requested = RequestedData {
            tag: self.next_tag,
            offset: task.requested_end,
            len: memory.len() as u32,
            received: 0,
            memory,
        };
        task.requested_end += requested.len;
        let request = R2t {
            cid: task.cid.into(),
            tag: requested.tag.into(),
            offset: requested.offset.into(),
            data_len: requested.len.into(),
            ..R2t::blank(0)
        };
        task.requested = Some(requested);
        self.out.header(request);
    }

    fn push(&mut self, key: TaskKey, offset: usize, data: Sg) -> Result<(), Fault> {
        let task = self.tasks.get_mut(key).ok_or(Fault::Aborted)?;
        let (cid, room) = (task.cid, task.room as usize);
        if data.len() > room.saturating_sub(offset) {
            return Err(Fault::Protocol);
        }
        self.send_data(cid, offset, data, 0);
        Ok(())
    }
}

//! Requests other than commands: NOP-Out, task management and logout (RFC 7143 11.5, 11.14, 11.18); rejects and
//! asynchronous messages.

use super::Session;
use super::action::{Action, CloseReason, TaskKey, TaskManagement};
use super::data_out::pages;
use super::held::HeldRequest;
use super::numbers::Arrival;
use super::tasks::State;
use crate::config::IMMEDIATE_MAX;
use crate::wire::{
    AsyncEvent, AsyncMessage, BHS_LEN, Bhs, FUNCTION_MASK, Function, FunctionResponse, LogoutOutcome, LogoutReason,
    LogoutRequest, LogoutResponse, NO_TAG, NopIn, NopOut, Opcode, Pdu, Reject, RejectReason, TaskManagementRequest,
    TaskManagementResponse,
};
use lunar_core::mem::{Arena, Sg};
use lunar_core::wire::be::{U16, U32};
use lunar_stream::input::Payload;
use std::time::Duration;
use zerocopy::IntoBytes;

/// The additional response information of functions that have none.
const NO_INFORMATION: [u8; 3] = [0; 3];
/// The iSCSIProtocolLevel that adds the functions of RFC 7144.
const LEVEL_OF_RFC_7144: u32 = 2;

/// A copy of data that does not keep the receive buffer of the connection; `None` without memory for it.
fn detached(data: &Sg, arena: &Arena) -> Option<Sg> {
    let mut memory = arena.take_sg(data.len())?;
    let mut at = 0;
    for piece in data.pieces() {
        memory.copy_from(at, piece);
        at += piece.len();
    }
    Some(memory.share())
}

impl Session {
    /// Handles a request with a CmdSN that is not a SCSI command.
    pub(super) fn request(&mut self, header: &Bhs, payload: &mut Payload, actions: &mut Vec<Action>) {
        // The CmdSN is at the same offset in all requests.
        let cmd_sn = NopOut::of(header).cmd_sn.get();
        match self.number(header.first, cmd_sn) {
            None => return,
            Some(Arrival::Later) if !self.claim_unsolicited(pages(payload.len())) => {
                self.hold(cmd_sn, HeldRequest::Nothing);
                self.reject(RejectReason::LONG_OPERATION, header);
            }
            Some(Arrival::Later) => {
                let data = payload.data.take().and_then(|data| detached(&data, &self.arena));
                self.hold(cmd_sn, HeldRequest::Other(Box::new(*header), Payload { data, ..*payload }));
            }
            Some(_) => self.run_request(header, payload, actions),
        }
        self.handle_held(actions);
    }

    /// Takes memory for data that arrives unasked; `false` if the session has as much as it may have.
    pub(super) fn claim_unsolicited(&mut self, len: usize) -> bool {
        self.unsolicited.amount() + len <= self.config.unsolicited_max && self.unsolicited.grow(len)
    }

    /// Handles a request whose turn has come.
    pub(super) fn run_request(&mut self, header: &Bhs, payload: &mut Payload, actions: &mut Vec<Action>) {
        if header.opcode() == Opcode::TASK_MANAGEMENT_REQUEST {
            return self.task_management(TaskManagementRequest::of(header), header, actions);
        }
        if !header.first.is_immediate() {
            self.numbers.done();
        }
        if !payload.intact {
            return self.reject(RejectReason::DATA_DIGEST, header);
        }
        // There was no memory for its data.
        let Some(data) = payload.data.take() else { return self.reject(RejectReason::LONG_OPERATION, header) };
        match header.opcode() {
            Opcode::NOP_OUT => self.nop_out(NopOut::of(header), data, header),
            Opcode::TEXT_REQUEST => self.text_request(header, &data, actions),
            _ => self.logout(LogoutRequest::of(header), header, actions),
        }
    }

    fn nop_out(&mut self, request: &NopOut, mut data: Sg, header: &Bhs) {
        if request.itt.get() == NO_TAG {
            // An answer to a NOP-In, or an acknowledgement of StatSN. It needs no response.
            if !request.first.is_immediate() {
                self.reject(RejectReason::INVALID_FIELD, header);
            }
            return;
        }
        let limit = self.parameters.max_send_segment as usize;
        let len = data.len().min(limit);
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = self.numbers.with_status();
        let ttt = U32::new(NO_TAG);
        let answer = NopIn { itt: request.itt, ttt, stat_sn, exp_cmd_sn, max_cmd_sn, ..NopIn::blank() };
        self.out.payload(answer, &mut data, len);
    }

    /// Sends a NOP-In that the initiator has to answer.
    pub(super) fn ping(&mut self) {
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = self.numbers.without_status();
        let (itt, ttt) = (U32::new(NO_TAG), self.tag());
        self.out.short(NopIn { itt, ttt, stat_sn, exp_cmd_sn, max_cmd_sn, ..NopIn::blank() }, &[]);
    }

    fn task_management(&mut self, request: &TaskManagementRequest, header: &Bhs, actions: &mut Vec<Action>) {
        let numbered = !request.first.is_immediate();
        let itt = request.itt.get();
        let refused = if self.is_discovery() {
            Some(RejectReason::PROTOCOL_ERROR)
        } else if itt == NO_TAG {
            Some(RejectReason::INVALID_FIELD)
        } else if self.tasks.find(itt).is_some() {
            Some(RejectReason::TASK_IN_PROGRESS)
        } else if !numbered && self.tasks.immediate() >= IMMEDIATE_MAX {
            Some(RejectReason::TOO_MANY_IMMEDIATE)
        } else {
            None
        };
        if let Some(reason) = refused {
            if numbered {
                self.numbers.done();
            }
            return self.reject(reason, header);
        }
        let task = self.tasks.insert(itt, numbered);
        if let Some(slot) = self.tasks.get_mut(task) {
            slot.state = State::Function;
            slot.lun = request.lun;
        }
        let function = Function(request.flags & FUNCTION_MASK);
        match self.prepare(function, request) {
            Ok(referenced) => {
                let tag = request.referenced_tag.get();
                let function = TaskManagement { task, function, lun: request.lun, tag, referenced };
                actions.push(Action::TaskManagement(function));
            }
            Err(response) => self.function_done(task, response, NO_INFORMATION),
        }
    }

    /// The part of a function that concerns the session: commands that are held, or that wait for the end of their
    /// data. Returns the referenced command, or the response if nothing remains to be done.
    fn prepare(
        &mut self,
        function: Function,
        request: &TaskManagementRequest,
    ) -> Result<Option<TaskKey>, FunctionResponse> {
        match function {
            Function::ABORT_TASK => self.prepare_abort(request).map(Some),
            Function::ABORT_TASK_SET | Function::CLEAR_TASK_SET | Function::LOGICAL_UNIT_RESET => {
                self.end_commands_not_running(Some(request.lun), request.cmd_sn.get());
                Ok(None)
            }
            Function::TARGET_WARM_RESET | Function::TARGET_COLD_RESET => {
                self.end_commands_not_running(None, request.cmd_sn.get());
                Ok(None)
            }
            Function::CLEAR_ACA => Ok(None),
            // RFC 7143 11.5.1: only at recovery level 2.
            Function::TASK_REASSIGN => Err(FunctionResponse::REASSIGN_NOT_SUPPORTED),
            _ if self.parameters.protocol_level < LEVEL_OF_RFC_7144 => Err(FunctionResponse::NOT_SUPPORTED),
            Function::QUERY_TASK => Ok(self.tasks.find(request.referenced_tag.get())),
            Function::QUERY_TASK_SET | Function::QUERY_ASYNCHRONOUS_EVENT => Ok(None),
            Function::I_T_NEXUS_RESET => {
                self.end_commands_not_running(None, request.cmd_sn.get());
                Ok(None)
            }
            _ => Err(FunctionResponse::NOT_SUPPORTED),
        }
    }

    /// The command that an ABORT TASK references, if it is being executed (RFC 7143 11.5.5, 11.6.1).
    fn prepare_abort(&mut self, request: &TaskManagementRequest) -> Result<TaskKey, FunctionResponse> {
        let found = self.tasks.find(request.referenced_tag.get());
        let state = found.and_then(|key| self.tasks.get(key).map(|task| (key, &task.state)));
        match state {
            Some((key, State::Running)) => Ok(key),
            Some((key, State::Draining(_) | State::Held(_))) => {
                self.end_without_response(key);
                Err(FunctionResponse::COMPLETE)
            }
            Some((_, State::Function | State::Free)) => Err(FunctionResponse::NO_TASK),
            None => {
                let ref_cmd_sn = request.ref_cmd_sn.get();
                if !self.numbers.contains_before(ref_cmd_sn, request.cmd_sn.get()) {
                    return Err(FunctionResponse::NO_TASK);
                }
                // The referenced command has not arrived. It will be ignored when it does.
                if self.held.iter().all(|held| held.cmd_sn != ref_cmd_sn) {
                    self.hold(ref_cmd_sn, HeldRequest::Nothing);
                }
                Err(FunctionResponse::COMPLETE)
            }
        }
    }

    /// Ends commands that are not being executed: those that are held and were sent before the function, and those that
    /// wait for the end of their data.
    fn end_commands_not_running(&mut self, lun: Option<[u8; 8]>, before: u32) {
        let numbers = self.numbers;
        let keys = self.tasks.keys_of(|task| {
            let ends = match task.state {
                State::Held(_) => numbers.contains_before(task.cmd_sn, before),
                State::Draining(_) => true,
                State::Running | State::Function | State::Free => false,
            };
            ends && lun.is_none_or(|lun| lun == task.lun)
        });
        keys.into_iter().for_each(|key| self.end_without_response(key));
    }

    /// Ends a command that is not being executed, without a response.
    fn end_without_response(&mut self, key: TaskKey) {
        let Some(task) = self.tasks.get(key) else { return };
        if let State::Held(_) = task.state {
            let cmd_sn = task.cmd_sn;
            // Its CmdSN still takes its turn and then opens the window.
            if let Some(held) = self.held.iter_mut().find(|held| held.cmd_sn == cmd_sn) {
                held.what = HeldRequest::Nothing;
            }
            self.end_task(key);
        } else if self.end_task(key).is_some_and(|task| task.numbered) {
            self.numbers.done();
        }
    }

    /// The answer to [`Action::TaskManagement`]. All commands that the function ended must have been dropped before.
    pub fn function_done(&mut self, key: TaskKey, response: FunctionResponse, information: [u8; 3]) {
        if !self.tasks.get(key).is_some_and(|task| matches!(task.state, State::Function)) {
            return;
        }
        let Some(task) = self.end_task(key) else { return };
        let itt = U32::new(task.itt);
        if task.numbered {
            self.numbers.done();
        }
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = self.numbers.with_status();
        let header = TaskManagementResponse {
            response,
            information,
            itt,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            ..TaskManagementResponse::blank()
        };
        self.out.short(header, &[]);
    }

    fn logout(&mut self, request: &LogoutRequest, header: &Bhs, actions: &mut Vec<Action>) {
        let cid = self.candidate.as_ref().map(|candidate| candidate.cid);
        let response = match LogoutReason(request.flags & FUNCTION_MASK) {
            LogoutReason::CLOSE_SESSION => LogoutOutcome::CLOSED,
            LogoutReason::CLOSE_CONNECTION if cid == Some(request.cid.get()) => LogoutOutcome::CLOSED,
            LogoutReason::CLOSE_CONNECTION => LogoutOutcome::NO_CONNECTION,
            LogoutReason::RECOVER_CONNECTION => LogoutOutcome::RECOVERY_NOT_SUPPORTED,
            _ => return self.reject(RejectReason::INVALID_FIELD, header),
        };
        let seconds = |value: u32| U16::new(u16::try_from(value).unwrap_or(u16::MAX));
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = self.numbers.with_status();
        let answer = LogoutResponse {
            response,
            itt: request.itt,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            time_to_wait: seconds(self.parameters.time_to_wait),
            time_to_retain: seconds(self.parameters.time_to_retain),
            ..LogoutResponse::blank()
        };
        self.out.short(answer, &[]);
        if response == LogoutOutcome::CLOSED {
            self.close(CloseReason::LoggedOut, actions);
        }
    }

    /// Sends a Reject with the header of the rejected PDU (RFC 7143 11.17).
    pub(super) fn reject(&mut self, reason: RejectReason, header: &Bhs) {
        self.stats.rejects.add(1);
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = self.numbers.with_status();
        let itt = U32::new(NO_TAG);
        let answer = Reject { reason, itt, stat_sn, exp_cmd_sn, max_cmd_sn, ..Reject::blank() };
        debug_assert!(self.parameters.max_send_segment as usize >= BHS_LEN, "it is at least RDMA_ANSWER_MAX");
        self.out.short(answer, &[header.as_bytes()]);
    }

    /// Sends an asynchronous message that requests a logout (RFC 7143 11.9.1, event 1).
    pub(super) fn send_logout_request(&mut self, time: Duration) {
        let seconds = u16::try_from(time.as_secs()).unwrap_or(u16::MAX);
        self.send_async_message(AsyncEvent::REQUEST_LOGOUT, [0, 0, seconds]);
    }

    /// Sends an asynchronous message with its three parameters (RFC 7143 11.9).
    pub fn send_async_message(&mut self, event: AsyncEvent, [parameter1, parameter2, parameter3]: [u16; 3]) {
        if !self.is_established() {
            return;
        }
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = self.numbers.with_status();
        let message = AsyncMessage {
            itt: U32::new(NO_TAG),
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            event,
            parameter1: U16::new(parameter1),
            parameter2: U16::new(parameter2),
            parameter3: U16::new(parameter3),
            ..AsyncMessage::blank()
        };
        self.out.short(message, &[]);
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;

//! SCSI commands on arrival (RFC 7143 11.3): their numbers, tags and immediate data, and their turn.

use super::Session;
use super::action::{Action, Command, TaskKey};
use super::data_out::{DataFailure, pages};
use super::held::{Held, HeldRequest};
use super::numbers::Arrival;
use super::tasks::{Answer, State};
use crate::config::{CDB_MAX, IMMEDIATE_MAX};
use crate::wire::{
    ATTRIBUTE_MASK, Ahs, AhsWalk, Bhs, FINAL, First, NO_TAG, Pdu, READ, RejectReason, ScsiCommand, WRITE,
};
use lunar_core::mem::SgMut;
use lunar_stream::input::Payload;

/// Status CHECK CONDITION (SAM-6 5.3.1).
pub(super) const CHECK_CONDITION: u8 = 0x02;
/// Status BUSY (SAM-6 5.3.1).
const BUSY: u8 = 0x08;
/// Sense keys, and additional sense codes as (ASC, ASCQ) (SPC-6 4.4).
const ABORTED_COMMAND: u8 = 0x0b;
const ILLEGAL_REQUEST: u8 = 0x05;
const INVALID_OPERATION_CODE: (u8, u8) = (0x20, 0x00);
const INVALID_FIELD_IN_INFORMATION_UNIT: (u8, u8) = (0x0e, 0x03);

/// The highest task attribute that is defined.
const ATTRIBUTE_ACA: u8 = 4;

impl DataFailure {
    /// CHECK CONDITION with the sense data of RFC 7143 11.4.7.2.
    pub(super) fn answer(self) -> Answer {
        let code = match self {
            Self::Unexpected => (0x0c, 0x0c),
            Self::Amount => (0x0c, 0x0d),
            Self::Crc => (0x47, 0x05),
        };
        check_condition(ABORTED_COMMAND, code)
    }
}

/// CHECK CONDITION with fixed-format sense data (SPC-6 4.4.3).
fn check_condition(key: u8, (asc, ascq): (u8, u8)) -> Answer {
    let sense = [0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, asc, ascq, 0, 0, 0, 0];
    Answer { status: CHECK_CONDITION, sense: sense.as_slice().into(), wanted: 0 }
}

fn busy() -> Answer {
    Answer { status: BUSY, ..Answer::default() }
}

/// The fields of a command that its additional header segments may extend.
struct CommandDetails {
    cdb: [u8; CDB_MAX],
    /// `None` if the CDB is longer than [`CDB_MAX`].
    cdb_len: Option<u8>,
    bidirectional: bool,
}

impl CommandDetails {
    #[inline(always)]
    fn read(header: &ScsiCommand, ahs: &[u8]) -> Option<Self> {
        let mut cdb = [0; CDB_MAX];
        let basic = header.cdb.len();
        cdb[..basic].copy_from_slice(&header.cdb);
        let both = READ | WRITE;
        let mut details = Self { cdb, cdb_len: u8::try_from(basic).ok(), bidirectional: header.flags & both == both };
        let mut extended = false;
        for segment in AhsWalk::new(ahs) {
            match segment.ok()? {
                // A second extended CDB segment is invalid.
                Ahs::ExtendedCdb(_) if std::mem::replace(&mut extended, true) => return None,
                Ahs::ExtendedCdb(rest) => {
                    let len = basic + rest.len();
                    details.cdb_len = details.cdb.get_mut(basic..len).and_then(|room| {
                        room.copy_from_slice(rest);
                        u8::try_from(len).ok()
                    });
                }
                Ahs::BidiReadLen(_) => details.bidirectional = true,
                Ahs::Unknown(_) => return None,
            }
        }
        Some(details)
    }

    #[inline(always)]
    fn command(&self, task: TaskKey, header: &ScsiCommand) -> Command {
        let (data_in, data_out) = expected(header);
        Command {
            task,
            tag: header.itt.get(),
            lun: header.lun,
            cdb: self.cdb,
            cdb_len: self.cdb_len.unwrap_or_default(),
            attribute: header.flags & ATTRIBUTE_MASK,
            data_in,
            data_out,
        }
    }
}

/// Bytes that the initiator expects to receive, and to send.
fn expected(header: &ScsiCommand) -> (u32, u32) {
    let len = header.expected_len.get();
    let of = |direction| if header.flags & direction != 0 { len } else { 0 };
    (of(READ), of(WRITE))
}

impl Session {
    /// The position of a request; `None` if it is to be ignored.
    pub(super) fn number(&mut self, first: First, cmd_sn: u32) -> Option<Arrival> {
        if first.is_immediate() {
            return Some(Arrival::Next);
        }
        match self.numbers.arrive(cmd_sn) {
            Arrival::Outside => None,
            Arrival::Later if self.held.iter().any(|held| held.cmd_sn == cmd_sn) => None,
            arrival => Some(arrival),
        }
    }

    pub(super) fn hold(&mut self, cmd_sn: u32, what: HeldRequest) {
        self.gap_since.get_or_insert(self.last_received);
        self.held.push(Held { cmd_sn, what });
    }

    /// Handles the held requests whose turn has come.
    pub(super) fn handle_held(&mut self, actions: &mut Vec<Action>) {
        while let Some(at) = self.held.iter().position(|held| self.numbers.is_next(held.cmd_sn)) {
            let Held { cmd_sn, what } = self.held.swap_remove(at);
            self.numbers.arrive(cmd_sn);
            // The requests still held wait for another CmdSN.
            self.gap_since = Some(self.last_received).filter(|_| !self.held.is_empty());
            match what {
                HeldRequest::Command(key) => self.start_held(key, actions),
                HeldRequest::Other(header, mut payload) => {
                    self.unsolicited.shrink(pages(payload.len()));
                    self.run_request(&header, &mut payload, actions);
                }
                HeldRequest::Nothing => self.numbers.done(),
            }
        }
    }

    pub(super) fn scsi_command(&mut self, bhs: &Bhs, ahs: &[u8], payload: &mut Payload, actions: &mut Vec<Action>) {
        let header = ScsiCommand::of(bhs);
        let Some(arrival) = self.number(header.first, header.cmd_sn.get()) else { return };
        let admitted = self.admit(header, ahs, payload, bhs);
        match (admitted, arrival) {
            (Ok((task, details, None)), Arrival::Next) => actions.push(Action::Command(details.command(task, header))),
            (Ok((task, _, Some(answer))), Arrival::Next) => self.answer_early(task, *answer),
            (Ok((key, details, answer)), _) => {
                self.hold(header.cmd_sn.get(), HeldRequest::Command(key));
                if let Some(task) = self.tasks.get_mut(key) {
                    task.transfer.detach(&self.arena);
                    task.state = State::Held(Box::new((details.command(key, header), answer)));
                }
            }
            (Err(reason), arrival) => {
                if !header.first.is_immediate() {
                    match arrival {
                        Arrival::Next => self.numbers.done(),
                        _ => self.hold(header.cmd_sn.get(), HeldRequest::Nothing),
                    }
                }
                self.reject(reason, bhs);
            }
        }
        if !self.held.is_empty() {
            self.handle_held(actions);
        }
    }

    fn start_held(&mut self, key: TaskKey, actions: &mut Vec<Action>) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if let State::Held(held) = std::mem::replace(&mut task.state, State::Running) {
            match *held {
                (command, None) => actions.push(Action::Command(command)),
                (_, Some(answer)) => self.answer_early(key, *answer),
            }
        }
    }

    /// Creates the task of a command. Returns the reply as well if the command will not be executed.
    #[inline(always)]
    fn admit(
        &mut self,
        header: &ScsiCommand,
        ahs: &[u8],
        payload: &mut Payload,
        bhs: &Bhs,
    ) -> Result<(TaskKey, CommandDetails, Option<Box<Answer>>), RejectReason> {
        if self.is_discovery() {
            return Err(RejectReason::PROTOCOL_ERROR);
        }
        let itt = header.itt.get();
        let attribute = header.flags & ATTRIBUTE_MASK;
        let writes = header.flags & WRITE != 0;
        let continues = header.flags & FINAL == 0;
        let sound = itt != NO_TAG && attribute <= ATTRIBUTE_ACA && (writes || !continues);
        let details = CommandDetails::read(header, ahs).filter(|_| sound).ok_or(RejectReason::INVALID_FIELD)?;
        if self.tasks.find(itt).is_some() {
            return Err(RejectReason::TASK_IN_PROGRESS);
        }
        let numbered = !header.first.is_immediate();
        if !numbered && self.tasks.immediate() >= IMMEDIATE_MAX {
            return Err(RejectReason::TOO_MANY_IMMEDIATE);
        }
        if !payload.intact {
            self.reject(RejectReason::DATA_DIGEST, bhs);
        }
        let task = self.tasks.insert(itt, numbered);
        if let Some(slot) = self.tasks.get_mut(task) {
            (slot.lun, slot.cmd_sn) = (header.lun, header.cmd_sn.get());
            (slot.expected_in, slot.expected_out) = expected(header);
        }
        let answer = self.take_immediate(task, header, &details, payload);
        Ok((task, details, answer))
    }

    /// Takes the immediate data of a command and prepares for unsolicited data. Returns the reply if the command cannot
    /// be executed.
    fn take_immediate(
        &mut self,
        key: TaskKey,
        header: &ScsiCommand,
        details: &CommandDetails,
        payload: &mut Payload,
    ) -> Option<Box<Answer>> {
        if header.flags & WRITE == 0
            && header.data_len.get() == 0
            && !details.bidirectional
            && details.cdb_len.is_some()
        {
            return None;
        }
        let continues = header.flags & FINAL == 0;
        let unsolicited_max = self.parameters.first_burst.min(header.expected_len.get()) as usize;
        let answer = self.refusal(header, details, payload, unsolicited_max);
        let follows = unsolicited_max.saturating_sub(payload.len());
        let claim = pages(if continues { unsolicited_max } else { payload.len() });
        // RFC 7143 has no other answer to data that the target announced room for and has no room for now.
        let answer = answer.or_else(|| (!self.claim_unsolicited(claim)).then(busy));
        let memory = match (&answer, continues && follows > 0) {
            (None, true) => self.arena.take_sg(follows),
            _ => Some(SgMut::default()),
        };
        if answer.is_none() && memory.is_none() {
            self.unsolicited.shrink(claim);
        }
        let task = self.tasks.get_mut(key)?;
        let answer = if memory.is_none() { Some(busy()) } else { answer };
        match (payload.data.take(), memory) {
            (Some(data), Some(memory)) if answer.is_none() => {
                if !data.is_empty() {
                    task.transfer.add_immediate(data);
                }
                if continues {
                    task.transfer.expect_unsolicited(memory);
                }
            }
            _ if continues => {
                task.transfer.refuse_unsolicited();
            }
            _ => {}
        }
        debug_assert_eq!(task.transfer.unsolicited(), if answer.is_none() { claim } else { 0 });
        answer.map(Box::new)
    }

    /// The reply to a command that cannot be executed.
    fn refusal(
        &self,
        header: &ScsiCommand,
        details: &CommandDetails,
        payload: &Payload,
        unsolicited_max: usize,
    ) -> Option<Answer> {
        let continues = header.flags & FINAL == 0;
        let writes = header.flags & WRITE != 0;
        let sent = header.data_len.get();
        if !payload.intact {
            // At recovery levels above 0 the initiator would send the data again (RFC 7143 7.8). At level 0 the command
            // has to fail, or it would never end.
            return Some(DataFailure::Crc.answer());
        }
        if details.bidirectional {
            return Some(check_condition(ILLEGAL_REQUEST, INVALID_FIELD_IN_INFORMATION_UNIT));
        }
        if details.cdb_len.is_none() {
            return Some(check_condition(ILLEGAL_REQUEST, INVALID_OPERATION_CODE));
        }
        if sent > 0 && !(writes && self.parameters.immediate_data) || continues && self.parameters.initial_r2t {
            return Some(DataFailure::Unexpected.answer());
        }
        if sent > unsolicited_max {
            return Some(DataFailure::Amount.answer());
        }
        payload.data.is_none().then(busy)
    }
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;

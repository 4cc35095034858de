//! The jobs of a handler that is a SCSI device.

use crate::queue::{Carried, Memory, result};
use lunar_core::io::Fault;
use lunar_core::port::NexusName;
use lunar_core::time::Instant;
use lunar_handler::ring::{Answer, Command};
use lunar_handler::wire::{
    FRAME_BYTES, Frame, INITIATOR_BYTES_MAX, LEVEL_SCSI, NexusNames, Operation, SENSE_BYTES_MAX, Status, flags,
};
use lunar_scsi::command::Status as ScsiStatus;
use lunar_scsi::device_server::{ForwardDone, ForwardedCommand, ForwardedData, ForwardedReply};
use lunar_scsi::sense::SenseData;
use rustix::io::Errno;
use std::mem::offset_of;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// A job, and the duty to answer it.
pub(crate) struct Job {
    pub(crate) work: Work,
    /// Since when it waits for a handler.
    pub(crate) since: Instant,
    /// How long the handler may take.
    pub(crate) patience: Duration,
    /// When that time is over, once the handler has it.
    pub(crate) deadline: Instant,
}

/// The kind of a job.
pub(crate) enum Work {
    /// A SCSI command.
    Command(Box<ScsiRequest>),
    /// A nexus of this number begins.
    Attach(u64, NexusName),
    /// The nexus of this number has ended.
    Detach(u64),
    /// The command of this number is to end early.
    Abort(u64),
    /// The logical unit is to be reset.
    Reset(ForwardDone),
}

/// A SCSI command, and the duty to answer it.
pub(crate) struct ScsiRequest {
    pub(crate) command: ForwardedCommand,
    pub(crate) done: ForwardDone,
    /// The number of its nexus at the handler.
    pub(crate) nexus: u64,
    /// The sense data that the handler has returned.
    sense: Vec<u8>,
}

impl ScsiRequest {
    pub(crate) fn new(command: ForwardedCommand, done: ForwardDone) -> Self {
        Self { command, done, nexus: 0, sense: Vec::new() }
    }

    /// Ends the command as the handler says.
    pub(crate) fn answer(self, answer: &Answer) {
        let Self { command: ForwardedCommand { data, .. }, done, sense, .. } = self;
        let status = ScsiStatus(answer.scsi.status);
        let ended = result(answer.status).and_then(|()| match status.name() {
            Some(_) if status != ScsiStatus::ACA_ACTIVE => Ok(()),
            _ => Err(Fault::Os(Errno::REMOTEIO.raw_os_error())),
        });
        let sense =
            if status == ScsiStatus::CHECK_CONDITION { SenseData::of_device(&sense) } else { SenseData::default() };
        let moved = moved(answer, data.len());
        done.complete(ended.map(|()| ForwardedReply { status, sense, moved, data }));
    }

    /// Ends the command with this status.
    pub(crate) fn end(self, status: ScsiStatus, sense: SenseData) {
        let data = self.command.data;
        self.done.complete(Ok(ForwardedReply { status, sense, moved: 0, data }));
    }
}

/// Bytes that the handler has moved, of so many.
fn moved(answer: &Answer, length: usize) -> usize {
    usize::try_from(answer.scsi.moved).unwrap_or(usize::MAX).min(length)
}

impl Job {
    /// Whether a handler that has not answered in time gets it nevertheless.
    pub(crate) fn is_urgent(&self) -> bool {
        matches!(self.work, Work::Abort(_) | Work::Reset(_))
    }

    /// Whether it is the command with this number of its logical unit.
    pub(crate) fn is_command(&self, id: u64) -> bool {
        matches!(&self.work, Work::Command(request) if request.command.id == id)
    }

    /// Ends it: the handler has not done it, for this reason.
    pub(crate) fn fail(self, fault: Fault) {
        match self.work {
            Work::Command(request) => request.done.complete(Err(fault)),
            Work::Reset(done) => done.complete(Err(fault)),
            Work::Attach(..) | Work::Detach(_) | Work::Abort(_) => {}
        }
    }
}

/// An operation without data.
fn bare(operation: Operation, offset: u64) -> Command {
    Command { operation, flags: 0, offset, length: 0, data: 0, timeout_milliseconds: 0 }
}

impl Carried for Job {
    const LEVEL: u32 = LEVEL_SCSI;

    fn place_bytes(&self) -> usize {
        match &self.work {
            Work::Command(request) => FRAME_BYTES + request.command.data.len(),
            Work::Attach(..) => size_of::<NexusNames>(),
            Work::Detach(_) | Work::Abort(_) | Work::Reset(_) => 0,
        }
    }

    fn begin(&self, memory: &mut Memory<'_>, timeout_milliseconds: u32) -> Command {
        let command = match &self.work {
            Work::Command(request) => {
                let command = &request.command;
                let mut frame = Frame::new_zeroed();
                let cdb = command.cdb.command_bytes();
                frame.cdb[..cdb.len()].copy_from_slice(cdb);
                // A CDB has 32 bytes at most.
                frame.cdb_length = cdb.len() as u8;
                frame.attribute = command.attribute.0;
                memory.put(frame.as_bytes());
                let flags = match &command.data {
                    ForwardedData::In(_) => flags::DATA_IN,
                    ForwardedData::Out(data) => {
                        memory.fill(FRAME_BYTES, data);
                        0
                    }
                    ForwardedData::None => 0,
                };
                Command { flags, length: command.data.len() as u64, ..bare(Operation::SCSI, request.nexus) }
            }
            Work::Attach(nexus, name) => {
                let mut names = NexusNames::new_zeroed();
                let initiator = &name.initiator.as_bytes()[..name.initiator.len().min(INITIATOR_BYTES_MAX)];
                names.initiator[..initiator.len()].copy_from_slice(initiator);
                names.initiator_length = (initiator.len() as u16).into();
                names.target_port = name.target_port.into();
                memory.put(names.as_bytes());
                bare(Operation::ATTACH, *nexus)
            }
            Work::Detach(nexus) => bare(Operation::DETACH, *nexus),
            Work::Abort(number) => bare(Operation::ABORT, *number),
            Work::Reset(_) => bare(Operation::RESET, 0),
        };
        Command { data: memory.at as u64, timeout_milliseconds, ..command }
    }

    fn end(&mut self, memory: &mut Memory<'_>, answer: &Answer) {
        let (Work::Command(request), Status::GOOD) = (&mut self.work, answer.status) else { return };
        request.sense = vec![0; usize::from(answer.scsi.sense_length).min(SENSE_BYTES_MAX)];
        memory.read(offset_of!(Frame, sense), &mut request.sense);
        if let ForwardedData::In(into) = &mut request.command.data {
            let count = moved(answer, into.len());
            memory.empty(FRAME_BYTES, into, count);
        }
    }
}

//! A SCSI host adapter (virtio-scsi, virtio 1.3, 5.6): its features, and its commands in the memory of their slots: the
//! header, and the answer with sense data. The rings of task management and of events may stay stopped.

use crate::Defect;
use crate::features::{ACKNOWLEDGEMENTS, VIRTIO, require};
use crate::form::{Form, Pieces, SlotMemory};
use crate::lane::Lane;
use crate::layout::{Layout, Room};
use lunar_vhost_user::scsi::{ANSWER_LEN, COMMANDS, CommandAnswer, CommandHeader, HEADER_LEN, Response};
use lunar_vhost_user::wire::{feature, protocol};
use std::mem::offset_of;
use zerocopy::{FromZeros, IntoBytes};

/// The place of the answer: a cache line of its own, because the device writes it while others are read. The header is
/// at the start.
const ANSWER_AT: usize = 64;
const _: () = assert!(HEADER_LEN <= ANSWER_AT && ANSWER_AT + ANSWER_LEN <= Scsi::CONTROL);
/// Bytes of an answer before its sense data.
const ANSWER_HEAD: usize = offset_of!(CommandAnswer, sense);

/// The response before the back-end has written one: none of the standard.
pub const NO_RESPONSE: Response = Response(0xff);

/// The features to accept of those that are offered. Nothing about hot plug: there is no ring for events.
///
/// # Errors
/// [`Defect::Lacks`].
pub fn features(offered: u64) -> Result<u64, Defect> {
    require(offered, &VIRTIO)?;
    Ok(feature::VERSION_1 | feature::PROTOCOL_FEATURES)
}

/// The features of the protocol to accept of those that are offered. The configuration space of virtio-scsi is that of
/// the front-end: back-ends have none.
///
/// # Errors
/// [`Defect::Lacks`].
pub fn protocol_features(offered: u64) -> Result<u64, Defect> {
    require(offered, &[ACKNOWLEDGEMENTS])?;
    Ok(offered & (protocol::REPLY_ACK | protocol::MQ))
}

/// The queues for commands among so many rings; `None`: the back-end does not tell their number.
#[must_use]
pub fn queues(rings: Option<u64>) -> u64 {
    rings.map_or(1, |rings| rings.saturating_sub(COMMANDS as u64))
}

/// The data of a command, in the memory of its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandData {
    /// It moves none.
    Nothing,
    /// So many bytes from the device.
    In(u32),
    /// So many bytes to the device.
    Out(u32),
}

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScsiCommand {
    /// The logical unit: [`lunar_vhost_user::scsi::address_of`].
    pub lun: [u8; 8],
    /// The task tag: other commands in progress have others, whatever their queue is.
    pub tag: u64,
    /// The CDB, and zeroes behind it.
    pub cdb: [u8; 16],
    /// Its data.
    pub data: CommandData,
}

/// The end of a command; [`ScsiLane`] has its sense data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandEnd {
    /// The answer of the device; [`NO_RESPONSE`]: it has written none.
    pub response: Response,
    /// The status of the command.
    pub status: u8,
    /// Bytes that were expected and not moved.
    pub residual: u32,
}

/// The commands of a host adapter.
#[derive(Clone, Copy, Debug)]
pub struct Scsi;

/// The commands of one ring of a host adapter.
pub type ScsiLane = Lane<Scsi>;

impl Scsi {
    /// The layout for so many queues for commands, with so many slots for commands with `buffer` bytes of data each.
    /// `None`: there is no such ring.
    #[must_use]
    pub fn layout(queues: u16, slots: u16, buffer: usize) -> Option<Layout> {
        // Data is in one piece: no limit of pieces is known.
        Layout::with_room(queues, slots, buffer, Room { pieces: 1, control: Self::CONTROL })
    }
}

impl Form for Scsi {
    type Request = ScsiCommand;
    type End = CommandEnd;

    // Three cache lines. The last one has sense data only, which a command that succeeds does not have.
    const CONTROL: usize = 192;

    #[inline]
    fn data_len(command: &ScsiCommand) -> Option<u64> {
        match command.data {
            CommandData::Nothing => None,
            CommandData::In(len) | CommandData::Out(len) => Some(len.into()),
        }
    }

    #[inline]
    fn describe(slot: &SlotMemory<'_>, command: &ScsiCommand, pieces: &mut Pieces) -> bool {
        let mut header = CommandHeader::new_zeroed();
        (header.lun, header.tag) = (command.lun, command.tag.into());
        header.cdb[..command.cdb.len()].copy_from_slice(&command.cdb);
        pieces.push(slot.part(0, HEADER_LEN, false));
        if let CommandData::Out(len) = command.data {
            pieces.push_data((slot.place.data, len as usize, false));
        }
        pieces.push(slot.part(ANSWER_AT, ANSWER_LEN, true));
        if let CommandData::In(len) = command.data {
            pieces.push_data((slot.place.data, len as usize, true));
        }
        slot.write(0, header.as_bytes())
    }

    #[inline]
    fn clear_answer(slot: &SlotMemory<'_>) {
        // The parts lie within the memory, which is writable.
        let _ = slot.write(ANSWER_AT + offset_of!(CommandAnswer, response), &[NO_RESPONSE.0]);
    }

    #[inline]
    fn end(slot: &SlotMemory<'_>) -> CommandEnd {
        let mut answer = CommandAnswer::new_zeroed();
        let is_there = slot.read(ANSWER_AT, &mut answer.as_mut_bytes()[..ANSWER_HEAD]);
        let response = if is_there { Response(answer.response) } else { NO_RESPONSE };
        CommandEnd { response, status: answer.status, residual: answer.residual.get() }
    }
}

impl Lane<Scsi> {
    /// The sense data of the command of a slot, which has ended. They are lost when the slot has another command.
    #[must_use]
    pub fn sense(&self, slot: u16) -> Vec<u8> {
        let mut answer = CommandAnswer::new_zeroed();
        if !self.slot_memory(slot).read(ANSWER_AT, answer.as_mut_bytes()) {
            return Vec::new();
        }
        let len = (answer.sense_len.get() as usize).min(answer.sense.len());
        answer.sense[..len].to_vec()
    }
}

#[cfg(test)]
#[path = "scsi_tests.rs"]
mod tests;

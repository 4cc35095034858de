//! The data mover (RFC 5047): it brings the PDUs of a session over RDMA. Data-In PDUs become RDMA WRITEs and R2Ts
//! become RDMA READs of the memory that their command names; all other PDUs are messages.

use super::wire::{Message, Tags};
use crate::wire::{BHS_LEN, Bhs, DataIn, Opcode, Pdu, R2t};
use lunar_core::mem::Sg;
use lunar_rdma::wire::Remote;
use std::collections::HashMap;
use zerocopy::FromBytes;

/// Tags that are kept beyond those of live tasks before the others are looked for: commands that were aborted have no
/// response, with which their tags end.
const STALE_MAX: usize = 64;

/// Something to do for a PDU of the session.
#[derive(Debug)]
pub enum Operation {
    /// Sends the PDU, and invalidates a key of the initiator with it.
    Send(Sg, Option<u32>),
    /// Writes data into memory of the initiator.
    Write(Remote, Sg),
    /// Reads the data that this R2T requests from memory of the initiator.
    Read(R2t, Remote),
}

/// A message of an initiator.
#[derive(PartialEq, Eq, Debug)]
pub enum Received {
    /// A PDU with its padding, and the memory that it names, if it is a command.
    Pdu(Vec<u8>, Option<Named>),
    /// A hello message, and the RDMA READs that the initiator takes at the same time; `None`: its version is not known.
    Hello(Option<u16>),
}

/// The memory that a command names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    itt: u32,
    tags: Tags,
    /// Bytes of the data that came with the command.
    immediate: u32,
}

/// Why a connection has to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A message is no message of iSER, or its PDU is not complete.
    Malformed,
    /// A command that reads or writes names no memory for that.
    NoMemory,
    /// More commands name memory than there may be.
    TooMany,
}

/// The data mover of a connection.
#[derive(Debug, Default)]
pub struct DataMover {
    /// The memory of the commands, by their initiator task tags.
    named: HashMap<u32, Named>,
    /// The command that the session is receiving.
    receiving: Option<u32>,
    /// The initiator allows that its keys are invalidated.
    invalidates: bool,
}

/// Takes a message of an initiator apart.
///
/// # Errors
/// [`Violation::Malformed`].
pub fn received(message: &[u8]) -> Result<Received, Violation> {
    let (tags, pdu) = match Message::parse(message).ok_or(Violation::Malformed)? {
        Message::Pdu(tags, pdu) => (tags, pdu),
        Message::Hello(reads) => return Ok(Received::Hello(reads)),
    };
    let header = Bhs::peek(pdu).ok_or(Violation::Malformed)?;
    let head_len = BHS_LEN + header.ahs_len();
    let data_len = header.data_len.get();
    // Whether the padding is sent is up to the initiator.
    let (least, whole) = (head_len + data_len, head_len + header.padded_len());
    if !(least..=whole).contains(&pdu.len()) {
        return Err(Violation::Malformed);
    }
    let named = (header.opcode() == Opcode::SCSI_COMMAND).then(|| Named {
        itt: header.itt.get(),
        tags,
        immediate: u32::try_from(data_len).expect("a segment has at most 24 bits"),
    });
    let mut bytes = pdu.to_vec();
    bytes.resize(whole, 0);
    Ok(Received::Pdu(bytes, named))
}

/// The RDMA READs that are outstanding at most, of as many as both ends have resources for; `None`: data of commands
/// cannot come, or the version of the initiator is not known.
#[must_use]
pub fn agreed_reads(of_initiator: Option<u16>, own: u8) -> Option<u8> {
    let of_initiator = u8::try_from(of_initiator?).unwrap_or(u8::MAX);
    Some(of_initiator.min(own)).filter(|reads| *reads > 0)
}

impl DataMover {
    /// The mover of a new connection. `invalidates`: the initiator allows that its keys are invalidated.
    #[must_use]
    pub fn new(invalidates: bool) -> Self {
        Self { invalidates, ..Self::default() }
    }

    /// The session begins to receive a PDU, which names this memory.
    pub fn deliver(&mut self, named: Option<Named>) {
        self.receiving = named.map(|named| named.itt);
        self.named.extend(named.map(|named| (named.itt, named)));
    }

    /// Commands whose memory is known.
    #[must_use]
    pub fn commands(&self) -> usize {
        self.named.len()
    }

    /// Forgets the memory of commands that have ended without a response. Nothing of the session waits to be sent.
    pub fn forget_ended(&mut self, tasks: usize, is_live: impl Fn(u32) -> bool) {
        if self.named.len() > tasks + STALE_MAX {
            let receiving = self.receiving;
            self.named.retain(|itt, _| receiving == Some(*itt) || is_live(*itt));
        }
    }

    /// Takes whole PDUs of the session. `tags_all_data`: the tag of a write names the data that came with its command,
    /// too (RFC 7145 6.8).
    ///
    /// # Errors
    /// [`Violation::NoMemory`]: nothing behind it may be sent.
    pub fn send(&mut self, mut pdus: Sg, tags_all_data: bool, to: &mut Vec<Operation>) -> Result<(), Violation> {
        while !pdus.is_empty() {
            let mut head = [0; BHS_LEN];
            pdus.copy_to(0, &mut head);
            let header = Bhs::peek(&head).ok_or(Violation::Malformed)?;
            let (data_len, whole) = (header.data_len.get(), BHS_LEN + header.padded_len());
            let mut pdu = pdus.split_to(whole.min(pdus.len()));
            match header.opcode() {
                Opcode::DATA_IN => {
                    let data_in = DataIn::of(header);
                    let memory = self.named.get(&header.itt.get()).and_then(|named| named.tags.read);
                    let memory = memory.ok_or(Violation::NoMemory)?.plus(data_in.offset.get() as usize);
                    drop(pdu.split_to(BHS_LEN));
                    to.push(Operation::Write(memory, pdu.split_to(data_len)));
                }
                Opcode::R2T => {
                    let r2t = R2t::read_from_bytes(&head).map_err(|_| Violation::Malformed)?;
                    let named = self.named.get(&header.itt.get());
                    let (Some(memory), Some(named)) = (named.and_then(|named| named.tags.write), named) else {
                        return Err(Violation::NoMemory);
                    };
                    // The initiator of Linux, and others, name the memory behind the immediate data.
                    let before = if tags_all_data { 0 } else { named.immediate };
                    let offset = r2t.offset.get().checked_sub(before).ok_or(Violation::NoMemory)?;
                    to.push(Operation::Read(r2t, memory.plus(offset as usize)));
                }
                Opcode::SCSI_RESPONSE => {
                    let named = self.named.remove(&header.itt.get()).filter(|_| self.invalidates);
                    let keys = named.map(|named| (named.tags.read, named.tags.write));
                    // Which key is not defined for a command that has both (RFC 7145 7.3.6).
                    let key = match keys {
                        Some((Some(only), None) | (None, Some(only))) => Some(only.key),
                        _ => None,
                    };
                    to.push(Operation::Send(pdu, key));
                }
                _ => to.push(Operation::Send(pdu, None)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "mover_tests.rs"]
mod tests;

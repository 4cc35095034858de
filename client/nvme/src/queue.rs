//! The host's side of one NVMe/TCP connection, which is one queue: takes received bytes, gives events and bytes to
//! send. It has no socket and no clock.
//!
//! The caller sends the bytes of [`Queue::output`], passes received bytes to [`Queue::receive`], and starts commands
//! with [`Queue::submit`] while [`Queue::room`] is not 0. Data of reads is passed on in place as it arrives; data of
//! writes is referenced until it is sent. After an error the queue cannot be used any more.

use crate::Error;
use crate::auth::Authentication;
use crate::command::Connect;
use crate::frame::{Framer, Framing, Sink};
use crate::output::Output;
use crate::task::{Kind, TASKS_MAX, Task, Tasks};
use lunar_core::outgoing::{Data, Moves, Outgoing};
use lunar_nvme::auth::host::Host;
use lunar_nvme::{Sqe, Status};
use lunar_nvme_tcp::wire::{
    C2hData, CapsuleCmd, CapsuleResp, DATA_DIGEST, FatalStatus, H2cData, HEADER_DIGEST, IcReq, IcResp, LAST, Pdu,
    PduType, R2t, SUCCESS, TermReq,
};
use zerocopy::IntoBytes;

/// In-capsule data that every controller accepts for Connect and admin commands, in bytes (NVMe/TCP 1.0 3.3.2.1.1).
pub const ADMIN_IN_CAPSULE: u32 = 8192;
/// The smallest valid MAXH2CDATA, in bytes.
const H2C_DATA_MIN: u32 = 4096;
/// Submission queue entry flags (PSDT): the data pointer is an SGL descriptor.
const BY_LIST: u8 = 0x40;
/// SGL descriptor types: data block at an offset in the capsule; transport data block.
const AT_OFFSET: u8 = 0x01;
const BY_TRANSPORT: u8 = 0x5a;
/// Dword 0 of a Connect completion: authentication is required (AUTHREQ).
pub const AUTHENTICATION_REQUIRED: u32 = 0x03 << 16;
/// Completion status: do not retry (DNR).
const DO_NOT_RETRY: u16 = 0x4000;

/// The parameters that the host requests for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offer {
    /// Whether headers carry a digest.
    pub header_digest: bool,
    /// Whether data carries a digest.
    pub data_digest: bool,
    /// In-capsule data of a command, in bytes. For I/O queues, the controller's limit (IOCCSZ).
    pub in_capsule: u32,
}

/// A command to start.
#[derive(Clone, Debug)]
pub struct Command {
    /// Identifies the command in its events.
    pub cookie: u32,
    /// The submission queue entry. CID and data pointer are filled in.
    pub sqe: Sqe,
    /// Direction, length and data.
    pub moves: Moves,
}

/// An event of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// The queue is connected, and authenticated if required: commands may start.
    Connected {
        /// The controller ID.
        controller: u16,
    },
    /// Data of a read. The pieces of a command arrive in order.
    Data {
        /// The cookie of the command.
        cookie: u32,
        /// The offset within the data of the command, in bytes.
        offset: u32,
        /// The bytes, in the receive buffer.
        bytes: &'a [u8],
    },
    /// A command completed.
    Done {
        /// The cookie of the command.
        cookie: u32,
        /// Its status.
        status: Status,
        /// Whether the command may succeed when it is retried (DNR is 0).
        retry: bool,
        /// Dwords 0 and 1 of the completion.
        result: u64,
    },
}

/// A command cannot start now: the queue is not connected yet, or it is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotNow;

/// A queue over TCP.
#[derive(Debug)]
pub struct Queue {
    framer: Framer,
    core: Core,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Initializing,
    Connecting,
    /// Authentication of the host is in progress.
    Authentication,
    Live,
}

#[derive(Debug)]
struct Core {
    phase: Phase,
    offer: Offer,
    connect: Connect,
    tasks: Tasks,
    output: Output,
    h2c_data_max: u32,
    controller: u16,
    /// The authentication transaction, and the message that is being received.
    authentication: Option<Box<(Authentication, Vec<u8>)>>,
}

impl Queue {
    /// Creates a queue. ICReq is in the output.
    #[must_use]
    pub fn new(offer: Offer, connect: Connect) -> Self {
        let mut output = Output::default();
        let digests =
            if offer.header_digest { HEADER_DIGEST } else { 0 } | if offer.data_digest { DATA_DIGEST } else { 0 };
        output.raw(IcReq { digests, ..IcReq::blank(0) }.as_bytes());
        let (phase, tasks) = (Phase::Initializing, Tasks::default());
        let h2c_data_max = H2C_DATA_MIN;
        let core = Core { phase, offer, connect, tasks, output, h2c_data_max, controller: 0, authentication: None };
        Self { framer: Framer::default(), core }
    }

    /// Gives the host's keys. If the controller requires authentication, it takes place before the queue is connected.
    #[must_use]
    pub fn with_authentication(mut self, host: Host) -> Self {
        self.core.authentication = Some(Box::new((Authentication::new(host), Vec::new())));
        self
    }

    /// The controller's MAXH2CDATA: the most data in one H2CData PDU, in bytes.
    #[must_use]
    pub fn h2c_data_max(&self) -> u32 {
        self.core.h2c_data_max
    }

    /// The bytes to send.
    #[must_use]
    pub fn output(&self) -> &Outgoing {
        &self.core.output.queue
    }

    /// Removes the first `count` bytes of the output, which were sent.
    pub fn sent(&mut self, count: usize) {
        self.core.output.queue.sent(count);
    }

    /// The number of commands that may start now.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.core.room()
    }

    /// The number of commands that are outstanding.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.core.tasks.len()
    }

    /// Starts a command.
    ///
    /// # Errors
    /// [`NotNow`] if [`Queue::room`] is 0.
    pub fn submit(&mut self, command: Command) -> Result<(), NotNow> {
        if self.core.room() == 0 {
            return Err(NotNow);
        }
        self.core.submit(command);
        Ok(())
    }

    /// Takes all received `bytes` and calls `on` for each event.
    ///
    /// # Errors
    /// Why the queue ended.
    pub fn receive(&mut self, bytes: &[u8], on: &mut impl FnMut(Event<'_>)) -> Result<(), Error> {
        self.framer.feed(bytes, &mut Feed { core: &mut self.core, on })
    }
}

struct Feed<'q, F> {
    core: &'q mut Core,
    on: &'q mut F,
}

impl<F: FnMut(Event<'_>)> Sink for Feed<'_, F> {
    fn data(&mut self, header: &[u8], at: usize, len: usize, bytes: &[u8]) -> Result<(), Error> {
        // The data of a C2HTermReq, a copy of the PDU in error, is ignored.
        if header[0] != PduType::C2H_DATA.0 {
            return Ok(());
        }
        let Some(pdu) = C2hData::of(header) else { return Ok(()) };
        let (cookie, offset) = self.core.data(pdu, at, len, bytes.len())?;
        if self.core.phase == Phase::Authentication {
            self.core.authentication.iter_mut().for_each(|transaction| transaction.1.extend_from_slice(bytes));
            return Ok(());
        }
        (self.on)(Event::Data { cookie, offset, bytes });
        Ok(())
    }

    fn end(&mut self, header: &[u8], framing: &mut Framing) -> Result<(), Error> {
        self.core.pdu(header, framing, self.on)
    }
}

impl Core {
    /// The number of free entries; a queue is full when one entry is left.
    fn room(&self) -> u32 {
        let most = self.connect.entries.min(TASKS_MAX).saturating_sub(1);
        if self.phase == Phase::Live { u32::from(most).saturating_sub(self.tasks.len() as u32) } else { 0 }
    }

    fn submit(&mut self, command: Command) {
        let Command { cookie, mut sqe, moves } = command;
        let (kind, expected, inline) = match moves {
            Moves::Nothing => (Kind::Other, 0, None),
            Moves::In(len) => (Kind::In, len, None),
            Moves::Out(data) if data.len() <= self.offer.in_capsule as usize => (Kind::Other, 0, Some(data)),
            Moves::Out(data) => {
                let len = u32::try_from(data.len()).expect("the data of a command is shorter than 4 GiB");
                (Kind::Out(data), len, None)
            }
        };
        let length = inline.as_ref().map_or(expected, |data| data.len() as u32);
        sqe.cid = self.tasks.add(Task { cookie, kind, expected, moved: 0 }).into();
        sqe.flags |= BY_LIST;
        sqe.sgl.length = length.into();
        sqe.sgl.kind = if inline.is_some() { AT_OFFSET } else { BY_TRANSPORT };
        self.output.pdu(CapsuleCmd { sqe, ..CapsuleCmd::blank(0) }, inline.as_ref());
    }

    fn pdu(&mut self, header: &[u8], framing: &mut Framing, on: &mut impl FnMut(Event<'_>)) -> Result<(), Error> {
        let kind = PduType(header[0]);
        if (kind == PduType::IC_RESP) != (self.phase == Phase::Initializing) && kind != PduType::C2H_TERM_REQ {
            return Err(Error::Protocol("ICResp is not the first PDU, or is sent twice"));
        }
        match kind {
            PduType::C2H_DATA => C2hData::of(header).map_or(Ok(()), |pdu| self.data_end(pdu, on)),
            PduType::CAPSULE_RESP => CapsuleResp::of(header).map_or(Ok(()), |pdu| self.response(pdu, on)),
            PduType::R2T => R2t::of(header).map_or(Ok(()), |pdu| self.r2t(pdu)),
            PduType::IC_RESP => IcResp::of(header).map_or(Ok(()), |pdu| self.ic_resp(pdu, framing)),
            PduType::C2H_TERM_REQ => TermReq::of(header)
                .map_or(Ok(()), |pdu| Err(Error::Terminated(FatalStatus(pdu.status.get()), pdu.information.get()))),
            _ => Ok(()),
        }
    }

    /// Handles ICResp: applies the connection parameters and sends Connect.
    fn ic_resp(&mut self, pdu: &IcResp, framing: &mut Framing) -> Result<(), Error> {
        let wanted = if self.offer.header_digest { HEADER_DIGEST } else { 0 }
            | if self.offer.data_digest { DATA_DIGEST } else { 0 };
        if pdu.version.get() != 0 {
            return Err(Error::Protocol("ICResp has a PDU format version that was not requested"));
        }
        if pdu.digests != wanted {
            return Err(Error::Digests);
        }
        let most = pdu.max_h2c_data.get();
        if most < H2C_DATA_MIN || !most.is_multiple_of(4) || pdu.alignment > 31 {
            return Err(Error::Protocol("ICResp has an invalid MAXH2CDATA or CPDA"));
        }
        self.h2c_data_max = most;
        self.output.alignment = (usize::from(pdu.alignment) + 1) * 4;
        (self.output.header_digest, self.output.data_digest) = (self.offer.header_digest, self.offer.data_digest);
        *framing = Framing { header_digest: self.offer.header_digest, data_digest: self.offer.data_digest };
        self.phase = Phase::Connecting;
        let (sqe, data) = self.connect.entry();
        // Connect has in-capsule data on every queue, whatever the limit of the controller.
        let in_capsule = std::mem::replace(&mut self.offer.in_capsule, ADMIN_IN_CAPSULE);
        self.submit(Command { cookie: 0, sqe, moves: Moves::Out(Data::new(data.into())) });
        self.offer.in_capsule = in_capsule;
        Ok(())
    }

    /// Accounts for `count` bytes at offset `at` of a C2HData PDU with `len` bytes. Returns the command's cookie and
    /// the offset within its data.
    fn data(&mut self, pdu: &C2hData, at: usize, len: usize, count: usize) -> Result<(u32, u32), Error> {
        let task = self.tasks.get(pdu.cid.get())?;
        let (offset, room) = (pdu.offset.get(), task.expected - task.moved);
        if !matches!(task.kind, Kind::In) {
            return Err(Error::Protocol("C2HData for a command without data to the host"));
        }
        // The data length in the header is the actual length, and data arrives in order.
        let expected = u64::from(offset) + at as u64;
        if pdu.data_len.get() as usize != len || expected != u64::from(task.moved) || count > room as usize {
            return Err(Error::Protocol("C2HData is out of order or exceeds the length of the command"));
        }
        let place = task.moved;
        task.moved += count as u32;
        Ok((task.cookie, place))
    }

    fn data_end(&mut self, pdu: &C2hData, on: &mut impl FnMut(Event<'_>)) -> Result<(), Error> {
        let last = pdu.common.flags & LAST != 0;
        if pdu.common.flags & SUCCESS == 0 {
            return self.tasks.get(pdu.cid.get()).map(|_| ());
        }
        if !last {
            return Err(Error::Protocol("C2HData has the SUCCESS flag but is not the last PDU"));
        }
        self.done(pdu.cid.get(), Status::SUCCESS, false, 0, on)
    }

    fn response(&mut self, pdu: &CapsuleResp, on: &mut impl FnMut(Event<'_>)) -> Result<(), Error> {
        let field = pdu.status.get() >> 1;
        let (status, retry) = (Status(field & 0x7ff), field & DO_NOT_RETRY == 0);
        if self.phase == Phase::Connecting {
            self.tasks.remove(pdu.cid.get())?;
            if status != Status::SUCCESS {
                return Err(Error::Connect(status, pdu.result.get() as u32));
            }
            return self.connected(pdu.result.get() as u32, on);
        }
        self.done(pdu.cid.get(), status, retry, pdu.result.get(), on)
    }

    /// Handles the completion of Connect: the queue is connected, or authentication begins.
    fn connected(&mut self, result: u32, on: &mut impl FnMut(Event<'_>)) -> Result<(), Error> {
        // Bits 15:00 of dword 0: the controller ID.
        self.controller = result as u16;
        let is_required = result & AUTHENTICATION_REQUIRED != 0;
        match &self.authentication {
            Some(authentication) if is_required || authentication.0.is_mutual() => {
                let (sqe, moves) = authentication.0.first();
                self.phase = Phase::Authentication;
                self.submit(Command { cookie: 0, sqe, moves });
            }
            None if is_required => return Err(Error::KeyRequired),
            _ => self.enter_live(on),
        }
        Ok(())
    }

    fn enter_live(&mut self, on: &mut impl FnMut(Event<'_>)) {
        (self.phase, self.authentication) = (Phase::Live, None);
        on(Event::Connected { controller: self.controller });
    }

    /// Handles the completion of an authentication command.
    fn authentication_done(&mut self, status: Status, on: &mut impl FnMut(Event<'_>)) -> Result<(), Error> {
        let Some((authentication, message)) = self.authentication.as_deref_mut() else { return Ok(()) };
        match authentication.next(status, &std::mem::take(message))? {
            Some((sqe, moves)) => self.submit(Command { cookie: 0, sqe, moves }),
            None => self.enter_live(on),
        }
        Ok(())
    }

    fn done(
        &mut self,
        cid: u16,
        status: Status,
        retry: bool,
        result: u64,
        on: &mut impl FnMut(Event<'_>),
    ) -> Result<(), Error> {
        let task = self.tasks.remove(cid)?;
        if status == Status::SUCCESS && task.moved != task.expected {
            return Err(Error::Protocol("a command succeeded without all of its data"));
        }
        if self.phase == Phase::Authentication {
            return self.authentication_done(status, on);
        }
        on(Event::Done { cookie: task.cookie, status, retry, result });
        Ok(())
    }

    /// Handles R2T: sends the requested data.
    fn r2t(&mut self, pdu: &R2t) -> Result<(), Error> {
        let (offset, len) = (pdu.offset.get(), pdu.data_len.get());
        let task = self.tasks.get(pdu.cid.get())?;
        let Kind::Out(data) = &task.kind else {
            return Err(Error::Protocol("an R2T for a command without data to send"));
        };
        if offset != task.moved || len == 0 || len > task.expected - offset {
            return Err(Error::Protocol("an R2T requests an invalid range"));
        }
        task.moved += len;
        let (data, end) = (data.clone(), offset + len);
        let mut at = offset;
        while at < end {
            let count = self.h2c_data_max.min(end - at);
            let flags = if at + count == end { LAST } else { 0 };
            let (cid, tag) = (pdu.cid, pdu.tag);
            let header = H2cData { cid, tag, offset: at.into(), data_len: count.into(), ..H2cData::blank(flags) };
            self.output.pdu(header, Some(&data.part(at as usize..(at + count) as usize)));
            at += count;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;

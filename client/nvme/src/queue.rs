//! One connection, which is one queue, seen from the host: bytes in, events and bytes out. It knows no socket and no
//! clock.
//!
//! Whoever drives it: sends what [`Queue::output`] holds, gives what arrives to [`Queue::receive`], and starts
//! commands with [`Queue::submit`] while [`Queue::room`] lasts. Data of reads is handed on in place, as it arrives;
//! data of writes is referred to until it is sent. After an error the queue is over.

use crate::Error;
use crate::command::Connect;
use crate::frame::{Framer, Framing, Sink};
use crate::output::Output;
use crate::proof::Proving;
use crate::task::{Kind, TASKS_MAX, Task, Tasks};
use lunar_core::outgoing::{Data, Moves, Outgoing};
use lunar_nvme::auth::host::Host;
use lunar_nvme::{Sqe, Status};
use lunar_nvme_tcp::wire::{
    C2hData, CapsuleCmd, CapsuleResp, DATA_DIGEST, FatalStatus, H2cData, HEADER_DIGEST, IcReq, IcResp, LAST, Pdu,
    PduType, R2t, SUCCESS, TermReq,
};
use zerocopy::IntoBytes;

/// Data that admin commands and Connect may bring with them, whatever the controller says (NVMe/TCP 1.0 3.3.2.1.1).
pub const ADMIN_IN_CAPSULE: u32 = 8192;
/// Bytes of an H2CData PDU that every controller must take (MAXH2CDATA).
const H2C_DATA_MIN: u32 = 4096;
/// Entry flags: data is described by scatter-gather lists.
const BY_LIST: u8 = 0x40;
/// Descriptor types: at an offset of the capsule; by the transport.
const AT_OFFSET: u8 = 0x01;
const BY_TRANSPORT: u8 = 0x5a;
/// Dword 0 of Connect's completion: the host has to prove its name (AUTHREQ).
const PROVES: u32 = 0x03 << 16;
/// Status of a completion: do not retry.
const DO_NOT_RETRY: u16 = 0x4000;

/// What is asked for when a connection begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offer {
    /// Headers carry digests.
    pub header_digest: bool,
    /// Data carries digests.
    pub data_digest: bool,
    /// Bytes of data that a command may bring with it; for I/O queues, what the controller says.
    pub in_capsule: u32,
}

/// A command to start.
#[derive(Clone, Debug)]
pub struct Command {
    /// Comes back with the command's events.
    pub cookie: u32,
    /// The entry, but for its identifier and what says where its data is.
    pub sqe: Sqe,
    /// Its data.
    pub moves: Moves,
}

/// What the controller said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// The queue is there: commands may start.
    Connected {
        /// The controller.
        controller: u16,
    },
    /// Data of a read, in order.
    Data {
        /// The command's.
        cookie: u32,
        /// Where in the command's data.
        offset: u32,
        /// The bytes, in the receive buffer.
        bytes: &'a [u8],
    },
    /// A command is over.
    Done {
        /// The command's.
        cookie: u32,
        /// How it ended.
        status: Status,
        /// Whether it may end better when it is sent again.
        retry: bool,
        /// Dwords 0 and 1.
        result: u64,
    },
}

/// A command cannot start now: there is no queue yet, or it is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotNow;

/// A queue.
#[derive(Debug)]
pub struct Queue {
    framer: Framer,
    core: Core,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Initializing,
    Connecting,
    /// The host proves its name.
    Proving,
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
    /// How the host proves its name, and the message that is coming.
    proof: Option<Box<(Proving, Vec<u8>)>>,
}

impl Queue {
    /// A queue whose request for a connection waits to be sent.
    #[must_use]
    pub fn new(offer: Offer, connect: Connect) -> Self {
        let mut output = Output::default();
        let digests =
            if offer.header_digest { HEADER_DIGEST } else { 0 } | if offer.data_digest { DATA_DIGEST } else { 0 };
        output.raw(IcReq { digests, ..IcReq::blank(0) }.as_bytes());
        let (phase, tasks) = (Phase::Initializing, Tasks::default());
        let h2c_data_max = H2C_DATA_MIN;
        let core = Core { phase, offer, connect, tasks, output, h2c_data_max, controller: 0, proof: None };
        Self { framer: Framer::default(), core }
    }

    /// The same, of a host that can prove its name; if it has to, it does that before the queue is there.
    #[must_use]
    pub fn with_proof(mut self, host: Host) -> Self {
        self.core.proof = Some(Box::new((Proving::new(host), Vec::new())));
        self
    }

    /// Bytes of one H2CData PDU at most, as the controller said.
    #[must_use]
    pub fn h2c_data_max(&self) -> u32 {
        self.core.h2c_data_max
    }

    /// What waits to be sent.
    #[must_use]
    pub fn output(&self) -> &Outgoing {
        &self.core.output.queue
    }

    /// The first `count` bytes of the output were sent.
    pub fn sent(&mut self, count: usize) {
        self.core.output.queue.sent(count);
    }

    /// Commands that may start now.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.core.room()
    }

    /// Commands that are not over.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.core.tasks.len()
    }

    /// Starts a command.
    ///
    /// # Errors
    /// [`NotNow`] when there is no [`Queue::room`].
    pub fn submit(&mut self, command: Command) -> Result<(), NotNow> {
        if self.core.room() == 0 {
            return Err(NotNow);
        }
        self.core.submit(command);
        Ok(())
    }

    /// Takes what arrived, all of it, and tells `on` what it means.
    ///
    /// # Errors
    /// Why the queue is over.
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
        // What a termination request tells of is not looked at.
        if header[0] != PduType::C2H_DATA.0 {
            return Ok(());
        }
        let Some(pdu) = C2hData::of(header) else { return Ok(()) };
        let (cookie, offset) = self.core.data(pdu, at, len, bytes.len())?;
        if self.core.phase == Phase::Proving {
            self.core.proof.iter_mut().for_each(|proof| proof.1.extend_from_slice(bytes));
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
    /// A queue is full with one entry left.
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
                let len = u32::try_from(data.len()).expect("a command moves less than 4 GiB");
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
            return Err(Error::Protocol("the answer to ICReq does not come first, or comes twice"));
        }
        match kind {
            PduType::C2H_DATA => C2hData::of(header).map_or(Ok(()), |pdu| self.data_end(pdu, on)),
            PduType::CAPSULE_RESP => CapsuleResp::of(header).map_or(Ok(()), |pdu| self.response(pdu, on)),
            PduType::R2T => R2t::of(header).map_or(Ok(()), |pdu| self.ready(pdu)),
            PduType::IC_RESP => IcResp::of(header).map_or(Ok(()), |pdu| self.initialized(pdu, framing)),
            PduType::C2H_TERM_REQ => TermReq::of(header)
                .map_or(Ok(()), |pdu| Err(Error::Blamed(FatalStatus(pdu.status.get()), pdu.information.get()))),
            _ => Ok(()),
        }
    }

    /// ICResp: what the connection is like. The queue is asked for next.
    fn initialized(&mut self, pdu: &IcResp, framing: &mut Framing) -> Result<(), Error> {
        let wanted = if self.offer.header_digest { HEADER_DIGEST } else { 0 }
            | if self.offer.data_digest { DATA_DIGEST } else { 0 };
        if pdu.version.get() != 0 {
            return Err(Error::Protocol("the controller answered with a version that was not asked for"));
        }
        if pdu.digests != wanted {
            return Err(Error::Digests);
        }
        let most = pdu.max_h2c_data.get();
        if most < H2C_DATA_MIN || !most.is_multiple_of(4) || pdu.alignment > 31 {
            return Err(Error::Protocol("the controller takes less data at once than it must, or aligned too far"));
        }
        self.h2c_data_max = most;
        self.output.alignment = (usize::from(pdu.alignment) + 1) * 4;
        (self.output.header_digest, self.output.data_digest) = (self.offer.header_digest, self.offer.data_digest);
        *framing = Framing { header_digest: self.offer.header_digest, data_digest: self.offer.data_digest };
        self.phase = Phase::Connecting;
        let (sqe, data) = self.connect.entry();
        // Connect brings its data with it on every queue.
        let in_capsule = std::mem::replace(&mut self.offer.in_capsule, ADMIN_IN_CAPSULE);
        self.submit(Command { cookie: 0, sqe, moves: Moves::Out(Data::new(data.into())) });
        self.offer.in_capsule = in_capsule;
        Ok(())
    }

    /// Data of a read: whose, and where in it.
    fn data(&mut self, pdu: &C2hData, at: usize, len: usize, count: usize) -> Result<(u32, u32), Error> {
        let task = self.tasks.get(pdu.cid.get())?;
        let (offset, room) = (pdu.offset.get(), task.expected - task.moved);
        if !matches!(task.kind, Kind::In) {
            return Err(Error::Protocol("data for a command that has no room for any"));
        }
        // A PDU's data is not longer than its header says, and follows what came before.
        let expected = u64::from(offset) + at as u64;
        if pdu.data_len.get() as usize != len || expected != u64::from(task.moved) || count > room as usize {
            return Err(Error::Protocol(
                "data that does not follow what came before, or is more than there is room for",
            ));
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
            return Err(Error::Protocol("a command has ended well, and its data not"));
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

    /// Connect has ended well: the queue is there, or its host has to prove its name first.
    fn connected(&mut self, result: u32, on: &mut impl FnMut(Event<'_>)) -> Result<(), Error> {
        // The low half of dword 0.
        self.controller = result as u16;
        let has_to = result & PROVES != 0;
        match &self.proof {
            Some(proof) if has_to || proof.0.is_mutual() => {
                let (sqe, moves) = proof.0.first();
                self.phase = Phase::Proving;
                self.submit(Command { cookie: 0, sqe, moves });
            }
            None if has_to => return Err(Error::NoKey),
            _ => self.is_live(on),
        }
        Ok(())
    }

    fn is_live(&mut self, on: &mut impl FnMut(Event<'_>)) {
        (self.phase, self.proof) = (Phase::Live, None);
        on(Event::Connected { controller: self.controller });
    }

    /// A command of the proof has ended.
    fn proved(&mut self, status: Status, on: &mut impl FnMut(Event<'_>)) -> Result<(), Error> {
        let Some((proof, message)) = self.proof.as_deref_mut() else { return Ok(()) };
        match proof.next(status, &std::mem::take(message))? {
            Some((sqe, moves)) => self.submit(Command { cookie: 0, sqe, moves }),
            None => self.is_live(on),
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
            return Err(Error::Protocol("a command ended well without all of its data"));
        }
        if self.phase == Phase::Proving {
            return self.proved(status, on);
        }
        on(Event::Done { cookie: task.cookie, status, retry, result });
        Ok(())
    }

    /// R2T: the controller asks for data.
    fn ready(&mut self, pdu: &R2t) -> Result<(), Error> {
        let (offset, len) = (pdu.offset.get(), pdu.data_len.get());
        let task = self.tasks.get(pdu.cid.get())?;
        let Kind::Out(data) = &task.kind else { return Err(Error::Protocol("an R2T for what sends nothing")) };
        if offset != task.moved || len == 0 || len > task.expected - offset {
            return Err(Error::Protocol("an R2T asks for what it may not"));
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

//! An ATA command that moves data or waits for the store: its data, and its end.

use super::endpoint::Endpoint;
use super::station::Station;
use crate::order::{Write, WriteId};
use crate::target::{Ata, Registers, Sectors};
use crate::wire::{ABORTED, AtaPart, DEVICE_FAULT, ErrorCode, Header, NOT_FOUND, UNCORRECTABLE};
use crate::wire::{Address, SECTOR};
use lunar_blk::{Attachment, ByteRange, Code, Error, Reply, Request};
use lunar_core::io::Fault;
use lunar_core::mem::{PAGE, Sg, Slice};
use lunar_core::port::Transfer;
use lunar_core::shares::Share;
use lunar_core::step::SlotContext;
use lunar_core::task::Task;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The bit of a tag that user-space tools set. The initiator of Linux ignores the answers to such tags, and also every
/// answer with an error of the protocol: a host whose disk is reserved gets an ATA error instead.
const TOOL_TAG: u32 = 0x8000_0000;

/// A command.
pub(super) struct Job {
    endpoint: Rc<Endpoint>,
    station: Rc<Station>,
    attachment: Rc<Attachment>,
    address: Address,
    header: Header,
    part: AtaPart,
    ata: Ata,
    /// The data of a write.
    data: Option<Slice>,
    /// A write, as its copies are recognised by it.
    write: Option<Write>,
    /// The place of a write in the order, from its turn on until it ends.
    turn: Cell<Option<WriteId>>,
    /// The share of its memory.
    _share: Option<Share>,
}

/// The requester of a command.
pub(super) struct Origin {
    pub(super) endpoint: Rc<Endpoint>,
    pub(super) station: Rc<Station>,
    pub(super) attachment: Rc<Attachment>,
    pub(super) address: Address,
}

impl Origin {
    /// The share of the memory for a command: the frame of a write, or the data of a read. `Err` when there is no room.
    pub(super) fn share(&self, ata: Ata, frame: usize) -> Result<Option<Share>, ()> {
        // A slice keeps all pages on which it lies.
        let pages = |bytes: usize| bytes.next_multiple_of(PAGE);
        let memory = &self.station.memory;
        match ata {
            Ata::Write(_) => memory.unsolicited.take(pages(frame)).map(Some).ok_or(()),
            Ata::Read(sectors) => memory.outgoing.take(pages(sectors.len())).map(Some).ok_or(()),
            Ata::Identify | Ata::Verify(_) | Ata::Flush => Ok(None),
        }
    }
}

impl Job {
    pub(super) fn new(
        (origin, share): (Origin, Option<Share>),
        header: Header,
        (part, ata): (AtaPart, Ata),
        data: Option<Slice>,
    ) -> Self {
        let Origin { endpoint, station, attachment, address } = origin;
        let write = match (&ata, &data) {
            (Ata::Write(sectors), Some(data)) => Some(Write {
                station: station.number,
                tag: header.tag.get(),
                offset: sectors.offset(),
                len: sectors.len() as u64,
                digest: crc32c::crc32c(data),
            }),
            _ => None,
        };
        station.commands.set(station.commands.get() + 1);
        endpoint.core.commands.set(endpoint.core.commands.get() + 1);
        let turn = Cell::new(None);
        Self { endpoint, station, attachment, address, header, part, ata, data, write, turn, _share: share }
    }

    /// The write, if it is one.
    pub(super) fn write(&self) -> Option<Write> {
        self.write
    }

    pub(super) fn attachment(&self) -> &Rc<Attachment> {
        &self.attachment
    }

    pub(super) fn station(&self) -> &Station {
        &self.station
    }

    /// It has its turn in the order of writes.
    pub(super) fn set_turn(&self, id: WriteId) {
        self.turn.set(Some(id));
    }

    /// Whether the same write has ended before.
    pub(super) fn has_ended(&self, write: &Write) -> bool {
        self.station.repeats.borrow_mut().has_ended(write, self.endpoint.core.reactor().now())
    }

    /// Answers a write that has ended before, without executing it.
    pub(super) fn repeat(&self) {
        self.answer(self.header, Ok(Registers::GOOD), Sg::default());
    }

    /// The request to the command set; `ranges` is memory for it.
    fn request<'a>(&self, ranges: &'a mut [ByteRange; 1]) -> Request<'a> {
        let of = |sectors: Sectors| ByteRange { offset: sectors.offset(), len: sectors.len() as u64 };
        let code = match self.ata {
            Ata::Read(sectors) => {
                ranges[0] = of(sectors);
                Code::Read
            }
            Ata::Verify(sectors) => {
                ranges[0] = of(sectors);
                Code::Verify
            }
            Ata::Write(sectors) => {
                ranges[0] = of(sectors);
                Code::Write
            }
            Ata::Flush | Ata::Identify => return Request::new(Code::Flush, &[]),
        };
        Request { durable: code == Code::Write, ..Request::new(code, ranges) }
    }

    /// Executes it if it need not wait; returns whether it has ended.
    pub(super) fn run_now(&self) -> bool {
        let core = &self.endpoint.core;
        let (mut ranges, mut reply) = ([ByteRange { offset: 0, len: 0 }], Reply::default());
        let path = Path { data: self.data.as_ref(), task: None, pushed: RefCell::default() };
        let request = self.request(&mut ranges);
        if !core.set.execute_now(&self.attachment, &request, &path, core.reactor().arena(), &mut reply) {
            return false;
        }
        self.end(path.pushed.take(), reply);
        true
    }

    /// Executes it.
    pub(super) async fn run(&self, slot: &mut SlotContext) {
        let core = &self.endpoint.core;
        let task = self.attachment.tasks.enter(core.number());
        let (mut ranges, mut reply) = ([ByteRange { offset: 0, len: 0 }], Reply::default());
        let path = Path { data: self.data.as_ref(), task: Some(&task), pushed: RefCell::default() };
        let request = self.request(&mut ranges);
        core.set.execute(&self.attachment, &request, &path, slot, &mut reply).await;
        let pushed = path.pushed.take();
        drop(task);
        self.end(pushed, reply);
    }

    /// Answers it, and its copies.
    fn end(&self, mut data: Sg, reply: Reply) {
        let Reply { result, final_data, .. } = reply;
        data.append(final_data.data);
        let (registers, data) = match (result, self.ata) {
            (Ok(()), Ata::Read(sectors)) if data.len() == sectors.len() => (Ok(Registers::GOOD), data),
            (Ok(()), Ata::Read(_)) => (Ok(Registers::failed(DEVICE_FAULT, ABORTED)), Sg::default()),
            (Ok(()), _) => (Ok(Registers::GOOD), Sg::default()),
            (Err(why), _) => (self.failure(why), Sg::default()),
        };
        let copies = self.end_turn();
        if result.is_ok() {
            self.station.usage.succeed();
        }
        if let Some(write) = self.write.filter(|_| result.is_ok()) {
            let (mut repeats, now) = (self.station.repeats.borrow_mut(), self.endpoint.core.reactor().now());
            repeats.end(write, now);
            // The copies are answered, too, and late duplicates of them must not be executed.
            copies.iter().for_each(|tag| repeats.end(Write { tag: *tag, ..write }, now));
        }
        let is_silent = result == Err(Error::NotReady) && !self.attachment.is_active();
        if is_silent || result.is_err() && self.attachment.is_revoked() {
            // Another path of the volume answers, or the station may not use the volume any more.
            return;
        }
        self.answer(self.header, registers, data);
        for tag in copies {
            self.answer(Header { tag: tag.into(), ..self.header }, registers, Sg::default());
        }
    }

    fn answer(&self, header: Header, registers: Result<Registers, ErrorCode>, data: Sg) {
        let Self { endpoint, station, address, part, .. } = self;
        match registers {
            Ok(registers) => endpoint.answer_ata(station.mac, (&header, *address, part), registers, data),
            Err(code) => endpoint.answer_error(station.mac, &header, *address, code),
        }
    }

    /// The answer to a command that failed.
    fn failure(&self, why: Error) -> Result<Registers, ErrorCode> {
        let is_read = matches!(self.ata, Ata::Read(_) | Ata::Verify(_));
        Ok(match why {
            Error::Conflict if self.header.tag.get() & TOOL_TAG != 0 => return Err(ErrorCode::TARGET_RESERVED),
            Error::Conflict | Error::ReadOnly | Error::Unsupported => Registers::failed(0, ABORTED),
            Error::Invalid => Registers::failed(0, NOT_FOUND),
            Error::IoError if is_read => Registers::failed(DEVICE_FAULT, UNCORRECTABLE),
            Error::IoError | Error::NoSpace | Error::NotReady => Registers::failed(DEVICE_FAULT, ABORTED),
        })
    }

    /// Ends the turn of a write; returns the tags of its copies.
    fn end_turn(&self) -> Vec<u32> {
        let (core, mut ready) = (&self.endpoint.core, Vec::new());
        let Some(id) = self.turn.take() else { return Vec::new() };
        let Some(volume) = core.volume(self.attachment.id) else { return Vec::new() };
        let copies = volume.writes.borrow_mut().end(id, |id, job: Self| {
            job.set_turn(id);
            ready.push(job);
        });
        ready.into_iter().for_each(|job| core.run_later(job));
        copies
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Of a job that was dropped before its end, for want of a slot or after a panic, nothing waits any longer.
        self.end_turn();
        self.station.commands.set(self.station.commands.get() - 1);
        self.endpoint.core.commands.set(self.endpoint.core.commands.get() - 1);
    }
}

/// The path of the data of a command: in frames that have arrived, and into one frame.
struct Path<'a> {
    data: Option<&'a Slice>,
    /// `None` for a command that is executed without waiting: it cannot be aborted.
    task: Option<&'a Task<u64>>,
    pushed: RefCell<Sg>,
}

impl Transfer for Path<'_> {
    async fn room(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn has_room(&self) -> bool {
        true
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.arrived(offset, len).ok_or(Fault::Protocol)
    }

    fn arrived(&self, offset: usize, len: usize) -> Option<Sg> {
        let data = self.data.filter(|data| offset.checked_add(len).is_some_and(|end| end <= data.len()))?;
        Some(data.part(offset..offset + len).into())
    }

    fn push(&self, _offset: usize, data: Sg) -> Result<(), Fault> {
        self.pushed.borrow_mut().append(data);
        Ok(())
    }

    fn aborted(&self) -> bool {
        self.task.is_some_and(Task::aborted)
    }
}

/// The data of a write in the payload of its frame.
pub(super) fn write_data(payload: &Slice, sectors: Sectors) -> Option<Slice> {
    const START: usize = size_of::<Header>() + size_of::<AtaPart>();
    let end = START + usize::from(sectors.count) * SECTOR;
    (end <= payload.len()).then(|| payload.part(START..end))
}

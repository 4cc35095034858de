//! A scripted tape drive: a device server for forwarded logical units. It stores variable blocks and filemarks in
//! memory, and reports them as a drive does (SSC-5).

use crate::command::Status;
use crate::device_server::{DeviceServer, ForwardDone, ForwardedCommand, ForwardedData, ForwardedReply};
use crate::forwarding::{DeviceFacts, Terms};
use crate::peripheral::PeripheralType;
use crate::sense::{Asc, SenseData, SenseKey};
use lunar_core::io::Fault;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;

/// Bytes of the longest block of the drive.
pub const TAPE_BLOCK_MAX: usize = 256 << 10;

/// Operation codes of the drive.
mod op {
    pub(super) const TEST_UNIT_READY: u8 = 0x00;
    pub(super) const REWIND: u8 = 0x01;
    pub(super) const READ_BLOCK_LIMITS: u8 = 0x05;
    pub(super) const READ_6: u8 = 0x08;
    pub(super) const WRITE_6: u8 = 0x0a;
    pub(super) const WRITE_FILEMARKS_6: u8 = 0x10;
    pub(super) const SPACE_6: u8 = 0x11;
    pub(super) const INQUIRY: u8 = 0x12;
    pub(super) const MODE_SELECT_6: u8 = 0x15;
    pub(super) const MODE_SENSE_6: u8 = 0x1a;
    pub(super) const LOAD_UNLOAD: u8 = 0x1b;
    pub(super) const PREVENT_ALLOW_MEDIUM_REMOVAL: u8 = 0x1e;
    /// A vendor specific command that returns the bytes C5h.
    pub(super) const VENDOR: u8 = 0xc5;
}

/// Bits of byte 2 of fixed format sense data.
const FILEMARK: u8 = 0x80;
const END_OF_MEDIUM: u8 = 0x40;
const INCORRECT_LENGTH: u8 = 0x20;

/// FIXED, in byte 1 of reads and writes.
const FIXED: u8 = 0x01;

/// Additional sense codes of tapes (SPC-4 annex F).
const NONE: u16 = 0x0000;
const FILEMARK_DETECTED: u16 = 0x0001;
const END_OF_MEDIUM_DETECTED: u16 = 0x0002;
const END_OF_DATA_DETECTED: u16 = 0x0005;
const INVALID_OPERATION_CODE: u16 = 0x2000;
const INVALID_FIELD: u16 = 0x2400;
const POWER_ON: u16 = 0x2900;
const NOT_PRESENT: u16 = 0x3a00;
const ABORTED: u16 = 0x4400;

/// A block or a filemark on the tape.
#[derive(Debug)]
enum Mark {
    Block(Vec<u8>),
    Filemark,
}

/// A tape drive with one tape.
#[derive(Debug)]
pub struct Tape {
    marks: RefCell<Vec<Mark>>,
    /// Number of marks before the position.
    position: Cell<usize>,
    /// Bytes of data after which writes report the end of the medium.
    early_warning: usize,
    /// The pending unit attention of the drive's only initiator, which is Lunar.
    attention: Cell<Option<u16>>,
    /// Whether commands are held until [`Tape::release`].
    is_held: Cell<bool>,
    held: RefCell<VecDeque<(ForwardedCommand, ForwardDone)>>,
    /// The CDBs that the drive received.
    received: RefCell<Vec<Vec<u8>>>,
    resets: Cell<usize>,
    terms: Terms,
    facts: DeviceFacts,
    event: Cell<Option<Asc>>,
    /// Bytes of a block, as MODE SELECT has set it.
    block_length: Cell<u32>,
    /// Whether there is no tape.
    is_empty: Cell<bool>,
}

/// Status, sense data and number of bytes moved.
type Result = (Status, SenseData, usize);

impl Tape {
    /// A drive with an empty tape. Writes report the end of the medium after `early_warning` bytes of data.
    #[must_use]
    pub fn new(early_warning: usize) -> Rc<Self> {
        Self::on_terms(early_warning, Terms::default())
    }

    /// As [`Tape::new`], with the terms on which it is shared.
    #[must_use]
    pub fn on_terms(early_warning: usize, terms: Terms) -> Rc<Self> {
        Rc::new(Self {
            marks: RefCell::default(),
            position: Cell::default(),
            early_warning,
            attention: Cell::default(),
            is_held: Cell::default(),
            held: RefCell::default(),
            received: RefCell::default(),
            resets: Cell::default(),
            terms,
            facts: DeviceFacts::default(),
            event: Cell::default(),
            block_length: Cell::default(),
            is_empty: Cell::default(),
        })
    }

    /// The CDBs that the drive received since the last call.
    #[must_use]
    pub fn received(&self) -> Vec<Vec<u8>> {
        self.received.take()
    }

    /// The number of resets.
    #[must_use]
    pub fn resets(&self) -> usize {
        self.resets.get()
    }

    /// Establishes a unit attention that the drive reports with the next command.
    pub fn establish_unit_attention(&self, code: u16) {
        self.attention.set(Some(code));
    }

    /// The drive was unavailable, and has come back.
    pub fn come_back(&self) {
        self.event.set(Some(Asc::POWER_ON_OR_RESET));
    }

    /// The tape is taken out, or put in. A poll of the machine takes the unit attention condition.
    pub fn set_empty(&self, is_empty: bool) {
        self.is_empty.set(is_empty);
    }

    /// Holds all further commands until [`Tape::release`].
    pub fn hold(&self) {
        self.is_held.set(true);
    }

    /// Executes the held commands.
    pub fn release(&self) {
        self.is_held.set(false);
        while let Some((command, done)) = self.held.borrow_mut().pop_front() {
            self.execute(command, done);
        }
    }

    fn execute(&self, mut command: ForwardedCommand, done: ForwardDone) {
        let cdb = command.cdb.command_bytes().to_vec();
        let (status, sense, moved) = match self.attention.take() {
            Some(code) if cdb[0] != op::INQUIRY => check(SenseKey::UNIT_ATTENTION, 0, code, 0),
            attention => {
                self.attention.set(attention);
                self.run(&cdb, &mut command.data)
            }
        };
        done.complete(Ok(ForwardedReply { status, sense, moved, data: command.data }));
    }

    fn run(&self, cdb: &[u8], data: &mut ForwardedData) -> Result {
        match cdb[0] {
            op::TEST_UNIT_READY if self.is_empty.get() => check(SenseKey::NOT_READY, 0, NOT_PRESENT, 0),
            op::TEST_UNIT_READY | op::LOAD_UNLOAD | op::PREVENT_ALLOW_MEDIUM_REMOVAL => good(0),
            op::MODE_SELECT_6 => self.select(data),
            op::REWIND => {
                self.position.set(0);
                good(0)
            }
            op::READ_BLOCK_LIMITS => {
                let [_, high, middle, low] = (TAPE_BLOCK_MAX as u32).to_be_bytes();
                answer(data, &[0, high, middle, low, 0, 1], usize::MAX)
            }
            op::INQUIRY if cdb[1] == 0 => {
                let mut standard = vec![PeripheralType::TAPE.0, 0x80, 6, 2, 31, 0, 0, 0];
                standard.extend(b"SCRIPTEDTape drive      0001");
                answer(data, &standard, usize::from(u16::from_be_bytes([cdb[3], cdb[4]])))
            }
            op::MODE_SENSE_6 => {
                let [_, high, middle, low] = self.block_length.get().to_be_bytes();
                answer(data, &[11, 0, 0x10, 8, 0x40, 0, 0, 0, 0, high, middle, low], cdb[4].into())
            }
            op::READ_6 if cdb[1] & FIXED != 0 => self.read_fixed(cdb, data),
            op::WRITE_6 if cdb[1] & FIXED != 0 => self.write_fixed(cdb, data),
            op::READ_6 => self.read(cdb, data),
            op::WRITE_6 => self.write(cdb, data),
            op::WRITE_FILEMARKS_6 => {
                (0..length(cdb)).for_each(|_| self.append(Mark::Filemark));
                good(0)
            }
            op::SPACE_6 => self.space(cdb),
            op::VENDOR => answer(data, &[0xc5; 16], usize::MAX),
            op::INQUIRY => check(SenseKey::ILLEGAL_REQUEST, 0, INVALID_FIELD, 0),
            _ => check(SenseKey::ILLEGAL_REQUEST, 0, INVALID_OPERATION_CODE, 0),
        }
    }

    /// MODE SELECT(6) of the block length.
    fn select(&self, data: &ForwardedData) -> Result {
        let ForwardedData::Out(list) = data else { return good(0) };
        if let [_, _, _, 8, _, _, _, _, _, high, middle, low, ..] = list.to_vec()[..] {
            self.block_length.set(u32::from_be_bytes([0, high, middle, low]));
        }
        good(list.len())
    }

    /// READ(6) of blocks of the length of the block descriptor.
    fn read_fixed(&self, cdb: &[u8], data: &mut ForwardedData) -> Result {
        let (count, marks) = (length(cdb), self.marks.borrow());
        let mut bytes = Vec::new();
        for left in (1..=count).rev() {
            match marks.get(self.position.get()) {
                Some(Mark::Block(block)) => bytes.extend_from_slice(block),
                Some(Mark::Filemark) => {
                    self.position.set(self.position.get() + 1);
                    let (_, _, moved) = answer(data, &bytes, usize::MAX);
                    let (status, sense, _) = check(SenseKey::NO_SENSE, FILEMARK, FILEMARK_DETECTED, left as i32);
                    return (status, sense, moved);
                }
                None => return check(SenseKey::BLANK_CHECK, 0, END_OF_DATA_DETECTED, left as i32),
            }
            self.position.set(self.position.get() + 1);
        }
        answer(data, &bytes, usize::MAX)
    }

    /// WRITE(6) of blocks of the length of the block descriptor.
    fn write_fixed(&self, cdb: &[u8], data: &ForwardedData) -> Result {
        let (count, block) = (length(cdb), self.block_length.get() as usize);
        match data {
            ForwardedData::Out(sent) if block > 0 && sent.len() == count * block => {
                sent.to_vec().chunks(block).for_each(|block| self.append(Mark::Block(block.to_vec())));
                good(sent.len())
            }
            _ => check(SenseKey::ILLEGAL_REQUEST, 0, INVALID_FIELD, 0),
        }
    }

    /// READ(6) of one variable block. SILI is not supported.
    fn read(&self, cdb: &[u8], data: &mut ForwardedData) -> Result {
        if cdb[1] != 0 {
            return check(SenseKey::ILLEGAL_REQUEST, 0, INVALID_FIELD, 0);
        }
        let wanted = length(cdb);
        let marks = self.marks.borrow();
        let Some(mark) = marks.get(self.position.get()) else {
            return check(SenseKey::BLANK_CHECK, 0, END_OF_DATA_DETECTED, wanted as i32);
        };
        self.position.set(self.position.get() + 1);
        match mark {
            Mark::Filemark => check(SenseKey::NO_SENSE, FILEMARK, FILEMARK_DETECTED, wanted as i32),
            Mark::Block(block) => {
                let (_, _, moved) = answer(data, block, wanted);
                match wanted as i32 - block.len() as i32 {
                    0 => good(moved),
                    // INFORMATION: the requested length minus the actual length.
                    difference => {
                        let (status, sense, _) = check(SenseKey::NO_SENSE, INCORRECT_LENGTH, NONE, difference);
                        (status, sense, moved)
                    }
                }
            }
        }
    }

    /// WRITE(6) of one variable block.
    fn write(&self, cdb: &[u8], data: &ForwardedData) -> Result {
        let ForwardedData::Out(sent) = data else { return check(SenseKey::ILLEGAL_REQUEST, 0, INVALID_FIELD, 0) };
        let block = sent.to_vec();
        if cdb[1] != 0 || block.len() < length(cdb) {
            return check(SenseKey::ILLEGAL_REQUEST, 0, INVALID_FIELD, 0);
        }
        let block = block[..length(cdb)].to_vec();
        let moved = block.len();
        self.append(Mark::Block(block));
        if self.bytes() > self.early_warning {
            let (status, sense, _) = check(SenseKey::NO_SENSE, END_OF_MEDIUM, END_OF_MEDIUM_DETECTED, 0);
            return (status, sense, moved);
        }
        good(moved)
    }

    /// SPACE(6) over blocks, filemarks or to the end of data, forwards only.
    fn space(&self, cdb: &[u8]) -> Result {
        let (marks, count) = (self.marks.borrow(), length(cdb));
        let mut at = self.position.get();
        let mut left = count;
        match cdb[1] & 0x0f {
            0 => {
                while left > 0 && matches!(marks.get(at), Some(Mark::Block(_))) {
                    (at, left) = (at + 1, left - 1);
                }
            }
            1 => {
                while left > 0 && at < marks.len() {
                    left -= usize::from(matches!(marks[at], Mark::Filemark));
                    at += 1;
                }
            }
            3 => (at, left) = (marks.len(), 0),
            _ => return check(SenseKey::ILLEGAL_REQUEST, 0, INVALID_FIELD, 0),
        }
        let is_filemark = matches!(marks.get(at), Some(Mark::Filemark));
        self.position.set(at + usize::from(left > 0 && is_filemark));
        match left {
            0 => good(0),
            left if is_filemark => check(SenseKey::NO_SENSE, FILEMARK, FILEMARK_DETECTED, left as i32),
            left => check(SenseKey::BLANK_CHECK, 0, END_OF_DATA_DETECTED, left as i32),
        }
    }

    /// Writes at the position. Everything after it is lost.
    fn append(&self, mark: Mark) {
        let mut marks = self.marks.borrow_mut();
        marks.truncate(self.position.get());
        marks.push(mark);
        self.position.set(marks.len());
    }

    fn bytes(&self) -> usize {
        let bytes = |mark: &Mark| if let Mark::Block(block) = mark { block.len() } else { 0 };
        self.marks.borrow().iter().map(bytes).sum()
    }
}

impl DeviceServer for Tape {
    fn device_type(&self) -> PeripheralType {
        PeripheralType::TAPE
    }

    fn transfer_bytes_max(&self) -> usize {
        TAPE_BLOCK_MAX
    }

    fn terms(&self) -> &Terms {
        &self.terms
    }

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn take_event(&self) -> Option<Asc> {
        self.event.take()
    }

    fn submit(&self, command: ForwardedCommand, done: ForwardDone) {
        self.received.borrow_mut().push(command.cdb.command_bytes().to_vec());
        if self.is_held.get() {
            self.held.borrow_mut().push_back((command, done));
        } else {
            self.execute(command, done);
        }
    }

    fn abort(&self, id: u64) {
        let mut held = self.held.borrow_mut();
        if let Some(at) = held.iter().position(|(command, _)| command.id == id)
            && let Some((command, done)) = held.remove(at)
        {
            let (status, sense, moved) = check(SenseKey::ABORTED_COMMAND, 0, ABORTED, 0);
            done.complete(Ok(ForwardedReply { status, sense, moved, data: command.data }));
        }
    }

    fn reset(&self) -> Pin<Box<dyn Future<Output = std::result::Result<(), Fault>>>> {
        self.resets.set(self.resets.get() + 1);
        self.position.set(0);
        // Dropped duties complete the commands.
        self.held.take();
        // POWER ON, RESET was established and taken: the contract of `DeviceServer::reset`.
        self.attention
            .take()
            .filter(|code| *code != POWER_ON)
            .into_iter()
            .for_each(|code| self.establish_unit_attention(code));
        Box::pin(std::future::ready(Ok(())))
    }
}

/// TRANSFER LENGTH or COUNT of a CDB of six bytes.
fn length(cdb: &[u8]) -> usize {
    u32::from_be_bytes([0, cdb[2], cdb[3], cdb[4]]) as usize
}

fn good(moved: usize) -> Result {
    (Status::GOOD, SenseData::default(), moved)
}

/// Fills Data-In with as many bytes as fit the memory and the allocation length.
fn answer(data: &mut ForwardedData, bytes: &[u8], allocation: usize) -> Result {
    let ForwardedData::In(memory) = data else { return good(0) };
    let count = bytes.len().min(allocation).min(memory.len());
    memory.copy_from(0, &bytes[..count]);
    good(count)
}

/// CHECK CONDITION with fixed format sense data; no bytes were moved.
fn check(key: SenseKey, flags: u8, code: u16, information: i32) -> Result {
    let mut sense = vec![0xf0, 0, flags | key.0];
    sense.extend(information.to_be_bytes());
    sense.extend([10, 0, 0, 0, 0]);
    sense.extend(code.to_be_bytes());
    sense.extend([0; 4]);
    (Status::CHECK_CONDITION, SenseData::of_device(&sense), 0)
}

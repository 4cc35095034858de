//! Commands of simulated clients: chosen at random, and judged by their answers.

use crate::model::{End, FlushId, Model, ReadId, Value, WriteId, ZEROES};
use crate::setup::Volume;
use crate::stamp::{self, SECTOR};
use crate::watch::Watch;
use lunar_core::outgoing::Data;
use lunar_iscsi::wire::Response;
use lunar_iscsi_initiator::cdb::{self, Key, Sense, Status};
use lunar_iscsi_initiator::session::{Moves, Residual};
use lunar_reactor::sim::{Chance, Faults};
use std::cell::{Cell, RefCell};
use std::ops::Range;

/// Blocks that one command touches: few, so that commands meet.
const BLOCKS_MAX: u64 = 48;
/// The same on a contended volume.
const CONTENDED_BLOCKS_MAX: u64 = 3;
/// Blocks of one compare-and-write.
const COMPARE_BLOCKS_MAX: usize = 4;
/// SBC-5 operation codes that the initiator's own list has not.
const UNMAP: u8 = 0x42;
const COMPARE_AND_WRITE: u8 = 0x89;
const WRITE_SAME_16: u8 = 0x93;
/// Bytes 1 of these.
const FUA: u8 = 0x08;
const UNMAP_BIT: u8 = 0x08;
const NDOB: u8 = 0x01;

/// A logical unit, as all initiators know it.
#[derive(Debug)]
pub struct Lun {
    /// Its number.
    pub number: u16,
    /// Its volume.
    pub volume: Volume,
    /// The values that its sectors may have.
    pub model: RefCell<Model>,
    /// Starts and ends of resets: a reset may end commands in progress.
    resets: Cell<u64>,
    /// Resets that were requested and not answered yet.
    resetting: Cell<u32>,
}

impl Lun {
    /// A unit of zeroes.
    #[must_use]
    pub fn new(number: usize, volume: &Volume, faults: &Faults) -> Self {
        let fragile = volume.is_file() && faults.sync_error + faults.write_error > 0;
        Self {
            number: number as u16,
            volume: volume.clone(),
            model: RefCell::new(Model::new(volume.sectors, fragile)),
            resets: Cell::new(0),
            resetting: Cell::new(0),
        }
    }

    /// The value with which [`Lun::was_reset_since`] tells whether a reset may have ended a command that starts now.
    #[must_use]
    pub fn resets_so_far(&self) -> Option<u64> {
        (self.resetting.get() == 0).then(|| self.resets.get())
    }

    /// Whether a reset may have ended a command that started when `before` was read.
    #[must_use]
    pub fn was_reset_since(&self, before: Option<u64>) -> bool {
        before != Some(self.resets.get())
    }

    /// A reset begins.
    pub fn begin_reset(&self) {
        self.resets.set(self.resets.get() + 1);
        self.resetting.set(self.resetting.get() + 1);
    }

    /// A reset is over.
    pub fn end_reset(&self) {
        self.resets.set(self.resets.get() + 1);
        self.resetting.set(self.resetting.get() - 1);
    }

    /// The target crashed, or stopped.
    pub fn crash(&self, power: bool) {
        if self.volume.is_file() {
            self.model.borrow_mut().crash(power);
        } else {
            self.model.borrow_mut().wipe();
        }
    }
}

/// A command to send.
pub struct Made {
    /// Its CDB.
    pub cdb: Vec<u8>,
    /// Its data.
    pub moves: Moves,
    /// Its expected effect.
    pub job: Job,
}

/// The expected effect of a command.
#[derive(Debug)]
pub enum Job {
    /// A read; the bytes that have come.
    Read {
        /// In the model.
        read: ReadId,
        /// First sector.
        first: usize,
        /// Bytes that the command moves.
        wanted: usize,
        /// Bytes that the initiator said it expects.
        expected: usize,
        /// Received data.
        bytes: Vec<u8>,
    },
    /// A change that ends with its value in every sector.
    Write {
        /// In the model.
        write: WriteId,
        /// A flush that is part of it.
        flush: Option<FlushId>,
        /// Whether it is durable when it is answered.
        durable: bool,
        /// Whether the target need not do it.
        hint: bool,
    },
    /// A compare-and-write.
    CompareWrite {
        /// In the model.
        write: WriteId,
        /// In the model: since when the comparison may have taken place.
        read: ReadId,
        /// First sector.
        first: usize,
        /// The values that it compares.
        expected: Vec<Value>,
        /// Whether it is durable when it is answered.
        durable: bool,
    },
    /// A flush.
    Flush(FlushId),
    /// A command that must succeed and changes nothing.
    Harmless,
    /// A command that must be refused as an illegal request.
    Illegal,
}

/// The answer to a command.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The response code, which precedes the status.
    pub response: Response,
    /// Its status.
    pub status: Status,
    /// Residual count.
    pub residual: Residual,
    /// Sense data.
    pub sense: Vec<u8>,
}

/// Chooses commands.
pub struct Maker<'a> {
    /// Collects violations.
    pub watch: &'a Watch,
    /// The unit.
    pub lun: &'a Lun,
    /// The source of random numbers.
    pub chance: &'a mut Chance,
    /// The values that were read last: unit, first sector, values.
    pub seen: &'a mut Option<(u16, usize, Vec<Value>)>,
}

impl Maker<'_> {
    /// Whether the next command is a compare-and-write of the blocks that were read last: on a contended volume.
    pub(crate) fn replaces(&mut self) -> bool {
        let has_seen = self.seen.as_ref().is_some_and(|(lun, ..)| *lun == self.lun.number);
        self.lun.volume.is_contended && has_seen && self.chance.coin()
    }

    /// Any command.
    pub fn any(&mut self) -> Made {
        if self.replaces() {
            return self.compare_and_write();
        }
        match self.chance.index(20) {
            0..6 => self.read(),
            6..11 => self.write(),
            11 | 12 => self.flush(),
            13 => self.unmap(),
            14 => self.write_same(),
            15 | 16 => self.compare_and_write(),
            17 | 18 => self.harmless(),
            _ => self.illegal(),
        }
    }

    /// Blocks of one command.
    pub(crate) fn blocks(&mut self) -> Range<usize> {
        let all = self.lun.volume.used_blocks();
        let most = if self.lun.volume.is_contended { CONTENDED_BLOCKS_MAX } else { BLOCKS_MAX };
        let start = self.chance.index(all);
        start..(start + self.chance.within(1..=most) as usize).min(all)
    }

    /// The same in sectors.
    pub(crate) fn sectors(&self, blocks: &Range<usize>) -> Range<usize> {
        let size = self.lun.volume.block_sectors();
        blocks.start * size..blocks.end * size
    }

    /// A read of everything, to be made once at the end.
    pub fn read_blocks(&mut self, blocks: &Range<usize>, expected: Option<usize>) -> Made {
        let sectors = self.sectors(blocks);
        let wanted = sectors.len() * SECTOR;
        let expected = expected.unwrap_or(wanted);
        let read = self.lun.model.borrow_mut().begin_read();
        let fua = self.chance.odds(100_000);
        Made {
            cdb: sized(&cdb::read(blocks.start as u64, blocks.len() as u32, fua)),
            moves: Moves::In(expected as u32),
            job: Job::Read { read, first: sectors.start, wanted, expected, bytes: Vec::new() },
        }
    }

    fn read(&mut self) -> Made {
        let blocks = self.blocks();
        // Some initiators expect more or less than the command moves.
        let expected = self.chance.odds(50_000).then(|| self.chance.within(4..=20_000) as usize);
        self.read_blocks(&blocks, expected)
    }

    fn write(&mut self) -> Made {
        let blocks = self.blocks();
        let sectors = self.sectors(&blocks);
        let fua = self.chance.odds(300_000);
        let mut model = self.lun.model.borrow_mut();
        let value = model.fresh_value();
        let write = model.begin_write(sectors.clone(), value);
        let data = stamp::fill(self.watch.seed(), sectors, value);
        let durable = fua || self.lun.volume.is_durable();
        Made {
            cdb: sized(&cdb::write(blocks.start as u64, blocks.len() as u32, fua)),
            moves: Moves::Out(Data::new(data.into())),
            job: Job::Write { write, flush: None, durable, hint: false },
        }
    }

    fn flush(&mut self) -> Made {
        let flush = self.lun.model.borrow_mut().begin_flush();
        Made { cdb: sized(&cdb::synchronize_cache()), moves: Moves::Nothing, job: Job::Flush(flush) }
    }

    /// Zeroes by a change of space: where writes are durable it ends with a flush of its own.
    pub(crate) fn zeroes(&mut self, sectors: Range<usize>, hint: bool) -> Job {
        let durable = self.lun.volume.is_durable();
        let mut model = self.lun.model.borrow_mut();
        let write = model.begin_write(sectors, ZEROES);
        let flush = durable.then(|| model.begin_flush());
        Job::Write { write, flush, durable, hint }
    }

    fn unmap(&mut self) -> Made {
        let blocks = self.blocks();
        let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
        list.extend((blocks.start as u64).to_be_bytes());
        list.extend((blocks.len() as u32).to_be_bytes());
        list.extend([0; 4]);
        let cdb = vec![UNMAP, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
        let job = self.zeroes(self.sectors(&blocks), true);
        Made { cdb, moves: Moves::Out(Data::new(list.into())), job }
    }

    fn write_same(&mut self) -> Made {
        let blocks = self.blocks();
        let mut flags = if self.chance.coin() { UNMAP_BIT } else { 0 };
        let moves = if self.chance.coin() {
            flags |= NDOB;
            Moves::Nothing
        } else {
            Moves::Out(Data::new(vec![0; self.lun.volume.block_size as usize].into()))
        };
        let job = self.zeroes(self.sectors(&blocks), false);
        Made { cdb: sixteen(WRITE_SAME_16, flags, blocks.start, blocks.len() as u32), moves, job }
    }

    fn compare_and_write(&mut self) -> Made {
        let size = self.lun.volume.block_sectors();
        let Some((first, expected)) = self.whole_blocks_seen(size) else { return self.read() };
        let (sectors, seed) = (first..first + expected.len(), self.watch.seed());
        let mut data = Vec::new();
        for (sector, value) in sectors.clone().zip(&expected) {
            data.extend(stamp::fill(seed, sector..sector + 1, *value));
        }
        let fua = self.chance.coin();
        let mut model = self.lun.model.borrow_mut();
        let value = model.fresh_value();
        data.extend(stamp::fill(seed, sectors.clone(), value));
        let (write, read) = (model.begin_write(sectors.clone(), value), model.begin_read());
        let flags = if fua { FUA } else { 0 };
        let mut cdb = sixteen(COMPARE_AND_WRITE, flags, first / size, 0);
        cdb[13] = (expected.len() / size) as u8;
        let durable = fua || self.lun.volume.is_durable();
        Made {
            cdb,
            moves: Moves::Out(Data::new(data.into())),
            job: Job::CompareWrite { write, read, first, expected, durable },
        }
    }

    /// Some whole blocks of what was read last.
    pub(crate) fn whole_blocks_seen(&mut self, size: usize) -> Option<(usize, Vec<Value>)> {
        let (_, first, mut values) = self.seen.take_if(|(lun, ..)| *lun == self.lun.number)?;
        let blocks = (values.len() / size).min(COMPARE_BLOCKS_MAX);
        values.truncate(blocks * size);
        (!values.is_empty()).then_some((first, values))
    }

    fn harmless(&mut self) -> Made {
        let (cdb, len): (Vec<u8>, u32) = match self.chance.index(5) {
            0 => (vec![0; 6], 0),
            1 => (vec![0x12, 0, 0, 0, 96, 0], 96),
            2 => (vec![0x12, 1, 0xb0, 0, 64, 0], 64),
            3 => (vec![0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256),
            _ => (sized(&cdb::read_capacity()), cdb::CAPACITY_LEN),
        };
        let moves = if len == 0 { Moves::Nothing } else { Moves::In(len) };
        Made { cdb, moves, job: Job::Harmless }
    }

    fn illegal(&mut self) -> Made {
        let end = (self.lun.volume.sectors_max() / self.lun.volume.block_sectors()) as u64;
        let (cdb, moves) = match self.chance.index(4) {
            0 => (vec![0xff, 0, 0, 0, 0, 0], Moves::Nothing),
            1 => (sized(&cdb::read(end, 1, false)), Moves::In(self.lun.volume.block_size)),
            2 => (sized(&cdb::read(u64::MAX, 2, false)), Moves::In(4096)),
            _ => {
                let data = vec![0x5a; self.lun.volume.block_size as usize * 2];
                (sized(&cdb::write(end - 1, 2, false)), Moves::Out(Data::new(data.into())))
            }
        };
        Made { cdb, moves, job: Job::Illegal }
    }
}

/// A CDB with the length that its operation code says.
fn sized(cdb: &cdb::Cdb) -> Vec<u8> {
    let len = match cdb[0] >> 5 {
        0 => 6,
        1 | 2 => 10,
        5 => 12,
        _ => 16,
    };
    cdb[..len].to_vec()
}

fn sixteen(opcode: u8, flags: u8, lba: usize, blocks: u32) -> Vec<u8> {
    let mut cdb = vec![opcode, flags];
    cdb.extend((lba as u64).to_be_bytes());
    cdb.extend(blocks.to_be_bytes());
    cdb.extend([0; 2]);
    cdb
}

/// The effect that an answer reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The command was executed.
    Good,
    /// The command was not started.
    Refused,
    /// The command may have been executed in part.
    Failed,
    /// The compared data differs.
    Miscompare,
}

impl Job {
    /// Applies the answer to the model. Returns the values that were read.
    ///
    /// # Errors
    /// The answer is wrong.
    pub fn answered(self, watch: &Watch, lun: &Lun, faults: &Faults, answer: &Answer) -> Result<Vec<Value>, String> {
        let verdict = match self.judge(lun, faults, answer) {
            Ok(verdict) => verdict,
            Err(what) => {
                self.unanswered(lun);
                return Err(what);
            }
        };
        if let (Self::Read { wanted, expected, .. }, Verdict::Good) = (&self, verdict) {
            check_residual(*wanted, *expected, answer.residual)?;
        }
        self.settled(watch, lun, verdict)
    }

    /// Applies the effect to the model. Returns the values that were read.
    ///
    /// # Errors
    /// The answer is wrong.
    pub fn settled(self, watch: &Watch, lun: &Lun, verdict: Verdict) -> Result<Vec<Value>, String> {
        let mut model = lun.model.borrow_mut();
        match (self, verdict) {
            (Self::Read { read, first, wanted, expected, bytes }, Verdict::Good) => {
                let len = wanted.min(expected);
                if bytes.len() != len {
                    return Err(format!("a read of {len} bytes brought {}", bytes.len()));
                }
                let whole = len / SECTOR * SECTOR;
                let values = stamp::read(watch.seed(), first, &bytes[..whole])?;
                model.end_read(read, first, &values)?;
                return Ok(values);
            }
            (Self::Read { read, .. }, _) => model.give_up_read(read),
            (Self::Write { write, flush, durable, hint }, verdict) => {
                let how = match verdict {
                    Verdict::Good if !hint => End::Good { durable },
                    Verdict::Refused => End::Nothing,
                    _ => End::Perhaps,
                };
                model.end_write(write, how);
                match (flush, verdict) {
                    (Some(flush), Verdict::Refused) => model.cancel_flush(flush),
                    (Some(flush), verdict) => model.end_flush(flush, matches!(verdict, Verdict::Good)),
                    (None, _) => {}
                }
            }
            (Self::CompareWrite { write, read, first, expected, durable }, verdict) => {
                model.give_up_read(read);
                let how = match verdict {
                    Verdict::Good => End::Good { durable },
                    Verdict::Refused | Verdict::Miscompare => End::Nothing,
                    Verdict::Failed => End::Perhaps,
                };
                let compared = match verdict {
                    Verdict::Good => model.compared(write, &expected),
                    _ => Ok(()),
                };
                model.end_write(write, how);
                compared?;
                if matches!(verdict, Verdict::Miscompare) && model.must_be(read, first, &expected) {
                    return Err(format!("a comparison at sector {first} missed what surely was there"));
                }
            }
            (Self::Flush(flush), Verdict::Refused) => model.cancel_flush(flush),
            (Self::Flush(flush), verdict) => model.end_flush(flush, matches!(verdict, Verdict::Good)),
            (Self::Harmless | Self::Illegal, _) => {}
        }
        Ok(Vec::new())
    }

    /// The command has ended without an answer: its task was aborted, or its nexus is lost.
    pub fn unanswered(self, lun: &Lun) {
        let mut model = lun.model.borrow_mut();
        match self {
            Self::Read { read, .. } => model.give_up_read(read),
            Self::Write { write, flush, .. } => {
                model.end_write(write, End::Perhaps);
                if let Some(flush) = flush {
                    model.end_flush(flush, false);
                }
            }
            Self::CompareWrite { write, read, .. } => {
                model.give_up_read(read);
                model.end_write(write, End::Perhaps);
            }
            Self::Flush(flush) => model.end_flush(flush, false),
            Self::Harmless | Self::Illegal => {}
        }
    }

    fn judge(&self, lun: &Lun, faults: &Faults, answer: &Answer) -> Result<Verdict, String> {
        if answer.response != Response::COMPLETED {
            return Err(format!("{self:?} ended with {:?}", answer.response));
        }
        match answer.status {
            Status::GOOD if matches!(self, Self::Illegal) => Err("an illegal request ended with GOOD".to_owned()),
            Status::GOOD => Ok(Verdict::Good),
            Status::TASK_SET_FULL => Ok(Verdict::Refused),
            // The arena may become empty while the command is executed.
            Status::BUSY => Ok(Verdict::Failed),
            Status::CHECK_CONDITION => {
                let sense = Sense::parse(&answer.sense).ok_or("CHECK CONDITION without sense data")?;
                self.judge_sense(lun, faults, sense)
            }
            other => Err(format!("{self:?} ended with {other:?}")),
        }
    }

    /// Whether the medium may fail what it reads or writes.
    #[must_use]
    pub fn may_fail(&self, lun: &Lun, faults: &Faults) -> bool {
        // A durable command reports that the writes of others could not be written back.
        let written = |durable: bool| faults.write_error > 0 || durable && faults.sync_error > 0;
        lun.volume.is_file()
            && match self {
                Self::Read { .. } => faults.read_error > 0,
                Self::Write { durable, .. } => written(*durable),
                Self::CompareWrite { durable, .. } => faults.read_error > 0 || written(*durable),
                Self::Flush(_) => written(true),
                Self::Harmless | Self::Illegal => false,
            }
    }

    /// Whether there may be no space for what it writes.
    #[must_use]
    pub fn may_lack_space(&self, lun: &Lun, faults: &Faults) -> bool {
        let writes = matches!(self, Self::Write { .. } | Self::CompareWrite { .. });
        lun.volume.is_file() && faults.no_space > 0 && writes
    }

    fn judge_sense(&self, lun: &Lun, faults: &Faults, sense: Sense) -> Result<Verdict, String> {
        match (sense.key, self) {
            (Key::UNIT_ATTENTION, _) => Ok(Verdict::Refused),
            (Key::ILLEGAL_REQUEST, Self::Illegal) => Ok(Verdict::Refused),
            (Key::MISCOMPARE, Self::CompareWrite { .. }) => Ok(Verdict::Miscompare),
            (Key::MEDIUM_ERROR, _) if self.may_fail(lun, faults) => Ok(Verdict::Failed),
            (Key::DATA_PROTECT, _) if self.may_lack_space(lun, faults) => Ok(Verdict::Failed),
            _ => Err(format!("{self:?} ended with {sense}")),
        }
    }
}

fn check_residual(wanted: usize, expected: usize, residual: Residual) -> Result<(), String> {
    let right = match wanted.cmp(&expected) {
        std::cmp::Ordering::Equal => Residual::None,
        std::cmp::Ordering::Less => Residual::Under((expected - wanted) as u32),
        std::cmp::Ordering::Greater => Residual::Over((wanted - expected) as u32),
    };
    if residual == right { Ok(()) } else { Err(format!("the residual is {residual:?}, not {right:?}")) }
}

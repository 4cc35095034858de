//! The model of a disk, as its clients know it: for each sector, the writes whose value a read may return.
//!
//! A sector is a register that behaves as if every command took effect at one moment between its start and its
//! end. So a read may find the value of a write unless another one, known to have happened, began after that write
//! was over and was over before the read began. A read that found a value is knowledge, too: it counts as if the
//! value had been written then. An atomic command replaces the value that it found at once: a value that came after
//! that one is not overwritten by the command.
//!
//! A power failure takes back what was neither written durably nor flushed; a flush
//! that failed may have dropped it at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;

/// Moments are counted, not measured: every start and every end is one.
pub type Moment = u64;

/// The value of a sector: the number of the write that wrote it; 0 for zeroes.
pub type Value = u64;

/// The value of sectors that hold zeroes.
pub const ZEROES: Value = 0;

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It is there. `durable`: whatever happens.
    Good {
        /// On the medium.
        durable: bool,
    },
    /// It may be there in part or as a whole, or not at all; nothing comes any more.
    Perhaps,
    /// It was refused: it is not there.
    Nothing,
}

/// A write, or what a read found.
#[derive(Clone, Debug)]
struct Record {
    value: Value,
    sectors: Range<usize>,
    start: Moment,
    /// `None` while it may still take effect.
    end: Option<Moment>,
    /// Whether it happened for certain.
    sure: bool,
    /// Whether no crash takes it back.
    firm: bool,
    /// Whether it is what a read found.
    is_mark: bool,
}

/// A write that was begun: its life of the disk, its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WriteId(u32, u32);

/// A flush that was begun.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FlushId(Moment);

/// A read that was begun.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ReadId(u32, Moment);

/// One disk.
#[derive(Debug)]
pub struct Model {
    /// Crashes so far: what began before one and ends after it is not heard.
    life: u32,
    now: Moment,
    /// By their number; `None` when forgotten.
    records: Vec<Option<Record>>,
    /// For each sector the numbers of its records.
    sectors: Vec<Vec<u32>>,
    next_value: Value,
    /// Flushes that are not over, with their start.
    flushes: BTreeMap<FlushId, Moment>,
    /// Reads that are not over.
    reads: BTreeSet<Moment>,
    /// Whether a flush may fail, and drop what it should have kept.
    fragile: bool,
    /// The last moment at which a flush failed: what began before it may be gone.
    shaky_until: Moment,
    /// Whether one failed since the target started.
    is_shaken: bool,
    /// (sector, value) that an atomic command has replaced: no other can find it again.
    consumed: BTreeMap<(usize, Value), WriteId>,
    /// By sector and value of an atomic command that has succeeded: the value that it found and replaced at once, and a
    /// moment at which that value was there and stayed until the command.
    replaced: BTreeMap<(usize, Value), (Value, Moment)>,
    /// The last crash.
    crashed: Moment,
}

impl Model {
    /// A disk of zeroes. `fragile`: its flushes may fail.
    #[must_use]
    pub fn new(sectors: usize, fragile: bool) -> Self {
        let zeroes = Record {
            value: ZEROES,
            sectors: 0..sectors,
            start: 0,
            end: Some(0),
            sure: true,
            firm: true,
            is_mark: false,
        };
        Self {
            life: 0,
            now: 0,
            records: vec![Some(zeroes)],
            sectors: vec![vec![0]; sectors],
            next_value: ZEROES,
            flushes: BTreeMap::new(),
            reads: BTreeSet::new(),
            fragile,
            shaky_until: 0,
            is_shaken: false,
            consumed: BTreeMap::new(),
            replaced: BTreeMap::new(),
            crashed: 0,
        }
    }

    /// Sectors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sectors.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    fn moment(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// A value that was not written before.
    pub fn fresh_value(&mut self) -> Value {
        self.next_value += 1;
        self.next_value
    }

    /// A write of one value to some sectors begins.
    pub fn begin_write(&mut self, sectors: Range<usize>, value: Value) -> WriteId {
        let start = self.moment();
        let id = self.record(Record { value, sectors, start, end: None, sure: false, firm: false, is_mark: false });
        WriteId(self.life, id)
    }

    fn record(&mut self, record: Record) -> u32 {
        let id = self.records.len() as u32;
        record.sectors.clone().for_each(|sector| self.sectors[sector].push(id));
        self.records.push(Some(record));
        id
    }

    fn get(&self, id: u32) -> Option<&Record> {
        self.records.get(id as usize)?.as_ref()
    }

    /// The records of a sector.
    fn known(&self, sector: usize) -> impl Iterator<Item = &Record> {
        self.sectors[sector].iter().filter_map(|id| self.get(*id))
    }

    /// A write is over.
    pub fn end_write(&mut self, id: WriteId, how: End) {
        let now = self.moment();
        if id.0 != self.life {
            return;
        }
        let Some(Some(record)) = self.records.get_mut(id.1 as usize) else { return };
        match how {
            End::Good { durable } => {
                let sure = durable || record.start >= self.shaky_until;
                (record.end, record.sure, record.firm) = (Some(now), sure, durable);
                let (sectors, horizon) = (record.sectors.clone(), self.horizon());
                sectors.for_each(|sector| self.prune(sector, horizon));
            }
            End::Perhaps => record.end = Some(now),
            End::Nothing => self.forget(id.1),
        }
    }

    /// A read begins.
    pub fn begin_read(&mut self) -> ReadId {
        let begun = self.moment();
        self.reads.insert(begun);
        ReadId(self.life, begun)
    }

    /// A read is over that found nothing.
    pub fn give_up_read(&mut self, read: ReadId) {
        self.reads.remove(&read.1);
    }

    /// A read is over and found these values from sector `first` on. One that began before a crash tells nothing.
    ///
    /// # Errors
    /// The value that the read must not return, with all records of the sector.
    pub fn end_read(&mut self, read: ReadId, first: usize, found: &[Value]) -> Result<(), String> {
        let now = self.moment();
        self.give_up_read(read);
        let ReadId(life, begun) = read;
        if life != self.life {
            return Ok(());
        }
        for (sector, &value) in (first..).zip(found) {
            if !self.may_be(sector, value, begun) {
                return Err(self.complaint(sector, value, begun));
            }
            self.mark(sector, value, begun, now);
        }
        Ok(())
    }

    /// An atomic compare-and-write found `expected` in every sector and replaced it: both must be possible.
    ///
    /// # Errors
    /// When one of the values cannot have been there, or was replaced by another command before.
    pub fn compared(&mut self, id: WriteId, expected: &[Value]) -> Result<(), String> {
        let Some(record) = self.get(id.1).filter(|_| id.0 == self.life).cloned() else { return Ok(()) };
        for (sector, &value) in record.sectors.clone().zip(expected) {
            if !self.may_be(sector, value, record.start) {
                return Err(self.complaint(sector, value, record.start));
            }
            // Zeroes come again and again; every other value is written once.
            let before = self.consumed.insert((sector, value), id).filter(|_| value != ZEROES);
            if before.is_some_and(|before| self.get(before.1).is_none_or(|record| self.counts(record))) {
                return Err(format!("two atomic commands replaced the same {value} in sector {sector}"));
            }
            if let Some(since) = self.there_since(sector, value) {
                self.replaced.insert((sector, record.value), (value, since));
            }
        }
        Ok(())
    }

    /// A moment after which a value that is in a sector now has been there all the time, if that is known.
    fn there_since(&self, sector: usize, value: Value) -> Option<Moment> {
        // Zeroes are written again and again. Every other value belongs to one write, which may put it there more than
        // once until it is over. Later, only a crash and a failed flush bring a value back.
        let records = || self.known(sector).filter(|record| record.value == value && value != ZEROES);
        let first = records().filter_map(|record| record.end).min()?;
        let written = records().find(|record| !record.is_mark).map_or(Some(first), |write| write.end)?;
        Some(first.max(written).max(self.crashed).max(self.shaky_until))
    }

    /// Whether all sectors from `first` on surely held these values from the start of a read until now.
    #[must_use]
    pub fn must_be(&self, read: ReadId, first: usize, values: &[Value]) -> bool {
        let ReadId(life, begun) = read;
        life == self.life
            && (first..).zip(values).all(|(sector, &value)| {
                let others = self.known(sector);
                others.filter(|record| record.value != value).all(|record| self.is_over(record, sector, begun))
            })
    }

    /// A flush begins.
    pub fn begin_flush(&mut self) -> FlushId {
        let start = self.moment();
        let id = FlushId(start);
        self.flushes.insert(id, start);
        id
    }

    /// A flush was refused: nothing was flushed, and nothing harmed.
    pub fn cancel_flush(&mut self, id: FlushId) {
        self.flushes.remove(&id);
    }

    /// A flush is over. One whose end nobody sees is not ended.
    pub fn end_flush(&mut self, id: FlushId, good: bool) {
        let now = self.moment();
        let Some(start) = self.flushes.remove(&id) else { return };
        if !good {
            return self.shake(now);
        }
        for record in self.records.iter_mut().flatten() {
            record.firm |= record.sure && record.end.is_some_and(|end| end < start);
        }
        let horizon = self.horizon();
        (0..self.sectors.len()).for_each(|sector| self.prune(sector, horizon));
    }

    /// A flush failed: what began before now and is not firm may be gone, and no later flush brings it back.
    fn shake(&mut self, now: Moment) {
        if self.fragile {
            self.shaky_until = now;
            self.is_shaken = true;
            self.records.iter_mut().flatten().for_each(|record| record.sure &= record.firm);
        }
    }

    /// All commands without an answer have ended: the nexus is lost, or the target crashed.
    pub fn give_up(&mut self, writes: impl IntoIterator<Item = WriteId>) {
        for id in writes {
            self.end_write(id, End::Perhaps);
        }
    }

    /// Everything is gone, and the disk is one of zeroes: it was in memory.
    pub fn wipe(&mut self) {
        let fresh = Self::new(self.sectors.len(), self.fragile);
        *self = Self { now: self.now + 1, next_value: self.next_value, life: self.life + 1, ..fresh };
    }

    /// The target crashed. `power`: what was not durable may be lost.
    pub fn crash(&mut self, power: bool) {
        let now = self.moment();
        self.life += 1;
        self.crashed = now;
        self.reads.clear();
        if !std::mem::take(&mut self.flushes).is_empty() {
            self.shake(now);
        }
        // Data that a failed flush dropped may have been read from the cache until now.
        let was_shaken = std::mem::take(&mut self.is_shaken);
        let mut gone = Vec::new();
        for (id, record) in (0..).zip(&mut self.records) {
            let Some(record) = record else { continue };
            record.end.get_or_insert(now);
            if record.firm {
                continue;
            }
            record.sure &= !power;
            if record.is_mark && (power || was_shaken) {
                gone.push(id);
            }
        }
        gone.into_iter().for_each(|id| self.forget(id));
        if power {
            // A value that was replaced may return.
            self.consumed.clear();
        }
    }

    /// Values that a read may find in a sector now.
    #[must_use]
    pub fn possible(&self, sector: usize) -> Vec<Value> {
        let records = self.known(sector);
        let mut values: Vec<Value> =
            records.filter(|record| !self.is_over(record, sector, self.now + 1)).map(|record| record.value).collect();
        values.sort_unstable();
        values.dedup();
        values
    }

    fn may_be(&self, sector: usize, value: Value, begun: Moment) -> bool {
        self.known(sector).filter(|record| record.value == value).any(|record| !self.is_over(record, sector, begun))
    }

    /// Whether something that surely happened came after a record and was over at `begun`.
    fn is_over(&self, record: &Record, sector: usize, begun: Moment) -> bool {
        let Some(end) = record.end else { return false };
        let counts = |other: &&Record| self.counts(other) && other.end.is_some_and(|end| end < begun);
        if self.known(sector).filter(counts).any(|other| other.start > end) {
            return true;
        }
        // The record and the value before it followed each other at once: any third value came after both.
        let Some(&(before, since)) = self.replaced.get(&(sector, record.value)) else { return false };
        let is_third = |other: &Record| other.value != record.value && other.value != before;
        self.known(sector).filter(counts).any(|other| is_third(other) && other.start > since)
    }

    /// Whether a record happened for certain and no flush has dropped it.
    fn counts(&self, record: &Record) -> bool {
        record.sure && (record.firm || !self.fragile || self.flushes.is_empty())
    }

    fn mark(&mut self, sector: usize, value: Value, start: Moment, end: Moment) {
        let same = |record: &Record| record.is_mark && !record.firm && record.value == value;
        let ours = self.sectors[sector].iter().copied();
        let old: Vec<u32> = ours.filter(|id| self.get(*id).is_some_and(same)).collect();
        old.into_iter().for_each(|id| self.forget(id));
        let (sectors, sure) = (sector..sector + 1, start >= self.shaky_until);
        let mark = Record { value, sectors, start, end: Some(end), sure, firm: false, is_mark: true };
        self.record(mark);
    }

    /// When the oldest of all that runs began.
    fn horizon(&self) -> Moment {
        let writes = self.records.iter().flatten().filter(|record| record.end.is_none()).map(|record| record.start);
        writes.chain(self.reads.first().copied()).min().unwrap_or(self.now)
    }

    /// Forgets what nothing that runs or begins can find any more.
    fn prune(&mut self, sector: usize, horizon: Moment) {
        let firm = self.known(sector).filter(|record| record.firm && record.end.is_some_and(|end| end < horizon));
        let Some(latest) = firm.map(|record| record.start).max() else { return };
        let mut kept = std::mem::take(&mut self.sectors[sector]);
        kept.retain(|id| self.get(*id).is_some_and(|record| record.end.is_none_or(|end| end >= latest)));
        self.sectors[sector] = kept;
    }

    fn forget(&mut self, id: u32) {
        if let Some(record) = self.records[id as usize].take() {
            for sector in record.sectors {
                self.sectors[sector].retain(|other| *other != id);
            }
        }
    }

    fn complaint(&self, sector: usize, value: Value, begun: Moment) -> String {
        let mut text = format!("sector {sector}: found {value} in a read from {begun} to {}; known are:", self.now);
        for record in self.known(sector) {
            let end = record.end.map_or_else(|| "...".to_owned(), |end| end.to_string());
            let kind = match (record.is_mark, record.sure, record.firm) {
                (true, ..) => "read",
                (_, false, _) => "perhaps written",
                (_, true, false) => "written",
                (_, true, true) => "durable",
            };
            // Writing to a string cannot fail.
            let _ = write!(text, " {kind} {} {}..{end},", record.value, record.start);
        }
        let _ = write!(text, " shaky until {}, {} flushes open", self.shaky_until, self.flushes.len());
        text
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;

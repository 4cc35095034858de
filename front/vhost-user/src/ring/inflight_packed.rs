//! The record of requests in progress of a packed ring, in memory that outlives the process. The descriptors of a
//! packed ring are overwritten when requests are returned, so the record has copies of them.
//!
//! Offsets of the header: features 0, version 8, entries 10, free head 12, free head before 14, used index 16, used
//! index before 18, used wrap counter 20, wrap counter before 21. Then for each descriptor: whether it is in progress
//! 0, next 2, last of its chain 4, descriptors of its chain 6, counter 8, and its copy: identifier 16, flags 18, length
//! 20, address 24.

use super::chain::{Broken, Descriptor};
use crate::config::LEFT_MAX;
use lunar_guest::window::Window;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::atomic::{Ordering, fence};

/// The version of the layout.
const VERSION: u16 = 1;
/// Bytes of the header, and of the record of a descriptor.
const HEADER_LEN: usize = 32;
const RECORD_LEN: usize = 32;
const FEATURES_AT: usize = 0;
const VERSION_AT: usize = 8;
const SIZE_AT: usize = 10;
const FREE_AT: usize = 12;
const FREE_BEFORE_AT: usize = 14;
const USED_AT: usize = 16;
const USED_BEFORE_AT: usize = 18;
const WRAP_AT: usize = 20;
const WRAP_BEFORE_AT: usize = 21;
const NEXT_AT: usize = 2;
const LAST_AT: usize = 4;
const COUNT_AT: usize = 6;
const COUNTER_AT: usize = 8;
const ID_AT: usize = 16;
const FLAGS_AT: usize = 18;
const LENGTH_AT: usize = 20;
const ADDRESS_AT: usize = 24;
/// No descriptor: rings have at most 32,768.
const NONE: u16 = u16::MAX;

/// Bytes of the record of a ring of this size.
#[must_use]
pub fn length(size: u16) -> usize {
    HEADER_LEN + usize::from(size) * RECORD_LEN
}

/// A used index with its wrap counter.
pub type Used = (u16, bool);

/// The requests that a process before this one has not answered.
#[derive(Debug)]
pub struct Left {
    /// The used index of the ring.
    pub used: Used,
    /// The descriptors of each request, in the order in which they were taken.
    pub chains: Vec<Vec<Descriptor>>,
}

/// The record of a ring.
#[derive(Debug)]
pub struct PackedRecord {
    window: Window,
    size: u16,
    counter: u64,
    /// Records that are free; the last is taken first.
    free: Vec<u16>,
    /// The records of each request, by the identifier of the request. The last of them, which is that of the first
    /// descriptor, is the head. The front-end may change the memory: what it says there about requests in progress is
    /// not read again.
    requests: BTreeMap<u16, Records>,
}

/// The records of a request, from that of its last descriptor on.
type Records = SmallVec<[u16; 4]>;

impl PackedRecord {
    /// Opens the record of a ring of this size with these features, whose used index is `used` if the record is fresh.
    /// `is_returned` tells whether the ring has returned a request at such an index. The second result is `None` for a
    /// fresh record.
    ///
    /// # Errors
    /// [`Broken::Size`] when it is the record of another ring; [`Broken::Index`] for more than [`LEFT_MAX`] requests;
    /// [`Broken::Unreachable`], [`Broken::Descriptor`].
    pub fn open(
        window: Window,
        features: u64,
        (size, used): (u16, Used),
        is_returned: impl FnOnce(Used) -> bool,
    ) -> Result<(Self, Option<Left>), Broken> {
        if window.len() < length(size) {
            return Err(Broken::Unreachable);
        }
        let mut record = Self { window, size, counter: 0, free: (0..size).rev().collect(), requests: BTreeMap::new() };
        if record.load(VERSION_AT)? == 0 {
            record.write(FEATURES_AT, &features.to_le_bytes())?;
            record.store(SIZE_AT, size)?;
            record.set_used(USED_AT, WRAP_AT, used)?;
            record.set_used(USED_BEFORE_AT, WRAP_BEFORE_AT, used)?;
            record.store(VERSION_AT, VERSION)?;
            return Ok((record, None));
        }
        if record.load(VERSION_AT)? != VERSION || record.load(SIZE_AT)? != size {
            return Err(Broken::Size);
        }
        let used = record.settle(is_returned)?;
        let chains = record.recover()?;
        Ok((record, Some(Left { used, chains })))
    }

    /// Finishes or undoes the last return; gives the used index.
    fn settle(&self, is_returned: impl FnOnce(Used) -> bool) -> Result<Used, Broken> {
        let (after, before) = (self.used(USED_AT, WRAP_AT)?, self.used(USED_BEFORE_AT, WRAP_BEFORE_AT)?);
        if after == before {
            return Ok(after);
        }
        if !is_returned(before) {
            self.set_used(USED_AT, WRAP_AT, before)?;
            return Ok(before);
        }
        let (mut head, end) = (self.load(FREE_AT)?, self.load(FREE_BEFORE_AT)?);
        for _ in 0..self.size {
            if head == end || head == NONE {
                break;
            }
            self.set_in_progress(head, false)?;
            head = self.load(self.place(self.load(self.place(head)? + LAST_AT)?)? + NEXT_AT)?;
        }
        self.set_used(USED_BEFORE_AT, WRAP_BEFORE_AT, after)?;
        Ok(after)
    }

    /// Collects the requests that are in progress. All other records are free.
    fn recover(&mut self) -> Result<Vec<Vec<Descriptor>>, Broken> {
        let mut heads = Vec::new();
        for head in 0..self.size {
            let mut byte = [0];
            self.read(self.place(head)?, &mut byte)?;
            if byte != [0] {
                if heads.len() == LEFT_MAX {
                    return Err(Broken::Index);
                }
                let mut counter = [0; 8];
                self.read(self.place(head)? + COUNTER_AT, &mut counter)?;
                heads.push((u64::from_le_bytes(counter), head));
            }
        }
        heads.sort_unstable();
        self.counter = heads.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        let mut chains = Vec::new();
        // Each record belongs to one request: a front-end could let records refer to each other.
        let mut seen = vec![false; usize::from(self.size)];
        for (_, head) in heads {
            let (mut chain, mut records, mut at) = (Vec::new(), Records::new(), head);
            let count = self.load(self.place(head)? + COUNT_AT)?;
            if count == 0 || count > self.size {
                return Err(Broken::Descriptor);
            }
            for _ in 0..count {
                let place = self.place(at)?;
                if std::mem::replace(&mut seen[usize::from(at)], true) {
                    return Err(Broken::Descriptor);
                }
                chain.push(self.copy(place)?);
                records.push(at);
                at = self.load(place + NEXT_AT)?;
            }
            // The identifier is in the last descriptor.
            let id = chain.last().map_or(0, |descriptor| descriptor.third.get());
            records.reverse();
            self.requests.insert(id, records);
            chains.push(chain);
        }
        self.free.retain(|free| !seen[usize::from(*free)]);
        Ok(chains)
    }

    fn copy(&self, place: usize) -> Result<Descriptor, Broken> {
        let (mut address, mut len) = ([0; 8], [0; 4]);
        self.read(place + ADDRESS_AT, &mut address)?;
        self.read(place + LENGTH_AT, &mut len)?;
        Ok(Descriptor {
            address: u64::from_le_bytes(address).into(),
            len: u32::from_le_bytes(len).into(),
            third: self.load(place + ID_AT)?.into(),
            fourth: self.load(place + FLAGS_AT)?.into(),
        })
    }

    /// A request with these descriptors was taken from the ring.
    pub fn take(&mut self, id: u16, descriptors: &[Descriptor]) {
        // A guest that uses an identifier twice may use up the records: it loses what is not recorded.
        if descriptors.is_empty() || self.free.len() < descriptors.len() {
            return;
        }
        let (mut first, mut records) = (NONE, Records::new());
        for descriptor in descriptors.iter().rev() {
            let Some(at) = self.free.pop() else { return };
            // A window that was checked has all its bytes.
            let _ = self.keep(at, first, descriptor);
            records.push(at);
            first = at;
        }
        // No more than the ring has.
        let _ = self.begin(first, records[0], descriptors.len() as u16);
        self.requests.insert(id, records);
    }

    fn keep(&self, at: u16, next: u16, descriptor: &Descriptor) -> Result<(), Broken> {
        let place = self.place(at)?;
        self.store(place + NEXT_AT, next)?;
        self.store(place + ID_AT, descriptor.third.get())?;
        self.store(place + FLAGS_AT, descriptor.fourth.get())?;
        self.write(place + LENGTH_AT, &descriptor.len.get().to_le_bytes())?;
        self.write(place + ADDRESS_AT, &descriptor.address.get().to_le_bytes())
    }

    fn begin(&mut self, head: u16, last: u16, count: u16) -> Result<(), Broken> {
        let place = self.place(head)?;
        self.store(place + LAST_AT, last)?;
        self.store(place + COUNT_AT, count)?;
        self.write(place + COUNTER_AT, &self.counter.to_le_bytes())?;
        self.counter = self.counter.wrapping_add(1);
        let free = self.free.last().copied().unwrap_or(NONE);
        self.store(FREE_AT, free)?;
        self.store(FREE_BEFORE_AT, free)?;
        fence(Ordering::Release);
        self.set_in_progress(head, true)
    }

    /// A request is about to be returned; the ring has the used index `after` then.
    pub fn returning(&self, id: u16, after: Used) {
        // A window that was checked has all its bytes.
        let _ = self.link(id);
        let _ = self.set_used(USED_AT, WRAP_AT, after);
    }

    fn link(&self, id: u16) -> Result<(), Broken> {
        let Some(records) = self.requests.get(&id) else { return Ok(()) };
        let (Some(last), Some(head)) = (records.first(), records.last()) else { return Ok(()) };
        self.store(self.place(*last)? + NEXT_AT, self.load(FREE_AT)?)?;
        self.store(FREE_AT, *head)
    }

    /// A request was returned.
    pub fn returned(&mut self, id: u16, after: Used) {
        // A window that was checked has all its bytes.
        let _ = self.release(id);
        let _ = self.set_used(USED_BEFORE_AT, WRAP_BEFORE_AT, after);
    }

    fn release(&mut self, id: u16) -> Result<(), Broken> {
        let Some(records) = self.requests.remove(&id) else { return Ok(()) };
        let Some(head) = records.last() else { return Ok(()) };
        // Never before the ring has the request back: one that is neither in progress nor returned would be lost.
        fence(Ordering::Release);
        self.set_in_progress(*head, false)?;
        self.store(FREE_BEFORE_AT, self.load(FREE_AT)?)?;
        // The head is taken first, as the memory says.
        self.free.extend(records);
        Ok(())
    }

    fn place(&self, at: u16) -> Result<usize, Broken> {
        if at < self.size { Ok(HEADER_LEN + usize::from(at) * RECORD_LEN) } else { Err(Broken::Descriptor) }
    }

    fn used(&self, at: usize, wrap_at: usize) -> Result<Used, Broken> {
        let mut wrap = [0];
        self.read(wrap_at, &mut wrap)?;
        let index = self.load(at)?;
        if index < self.size { Ok((index, wrap != [0])) } else { Err(Broken::Descriptor) }
    }

    fn set_used(&self, at: usize, wrap_at: usize, (index, wrap): Used) -> Result<(), Broken> {
        self.store(at, index)?;
        self.write(wrap_at, &[wrap.into()])
    }

    fn set_in_progress(&self, head: u16, is_in_progress: bool) -> Result<(), Broken> {
        self.write(self.place(head)?, &[is_in_progress.into()])
    }

    fn load(&self, at: usize) -> Result<u16, Broken> {
        self.window.load_u16(at).ok_or(Broken::Unreachable)
    }

    fn store(&self, at: usize, value: u16) -> Result<(), Broken> {
        if self.window.store_u16(at, value) { Ok(()) } else { Err(Broken::Unreachable) }
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), Broken> {
        if self.window.read(at, into) { Ok(()) } else { Err(Broken::Unreachable) }
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Broken> {
        if self.window.write(at, bytes) { Ok(()) } else { Err(Broken::Unreachable) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::Region;

    fn open(region: &Region, is_returned: bool) -> Result<(PackedRecord, Option<Left>), Broken> {
        let window = Window::new(region, 0, region.len()).expect("all of it");
        PackedRecord::open(window, 1 << 34, (4, (0, true)), |_| is_returned)
    }

    fn descriptor(address: u64, id: u16) -> Descriptor {
        Descriptor { address: address.into(), len: 16.into(), third: id.into(), fourth: 0.into() }
    }

    fn left(region: &Region, is_returned: bool) -> (Used, Vec<Vec<Descriptor>>) {
        let left = open(region, is_returned).expect("the same ring").1.expect("it is not fresh");
        (left.used, left.chains)
    }

    #[test]
    fn requests_that_were_not_answered_are_repeated_with_their_descriptors() {
        let region = Region::zeroed(length(4));
        let (mut record, fresh) = open(&region, false).expect("it is fresh");
        assert!(fresh.is_none());
        let (one, two) = ([descriptor(1, 7), descriptor(2, 7)], [descriptor(3, 9)]);
        record.take(7, &one);
        record.take(9, &two);
        assert_eq!(left(&region, false), ((0, true), vec![one.to_vec(), two.to_vec()]));
        record.returning(9, (1, true));
        // The process ends before the ring has the request back, or after that.
        let copy = Region::zeroed(length(4));
        let mut bytes = vec![0; length(4)];
        assert!(region.read(0, &mut bytes) && copy.write(0, &bytes));
        assert_eq!(left(&copy, false), ((0, true), vec![one.to_vec(), two.to_vec()]));
        assert!(copy.write(0, &bytes));
        assert_eq!(left(&copy, true), ((1, true), vec![one.to_vec()]));
        record.returned(9, (1, true));
        assert_eq!(left(&region, true), ((1, true), vec![one.to_vec()]));
        // The records are used again.
        for turn in 0..20 {
            record.take(turn, &two);
            record.returning(turn, (turn % 4, true));
            record.returned(turn, (turn % 4, true));
        }
        assert_eq!(left(&region, true).1, [one.to_vec()]);
    }

    #[test]
    fn a_process_leaves_a_number_of_requests() {
        let (size, most) = (8192, LEFT_MAX as u16);
        let region = Region::zeroed(length(size));
        let open = || {
            let window = Window::new(&region, 0, region.len()).expect("all of it");
            PackedRecord::open(window, 1 << 34, (size, (0, true)), |_| false)
        };
        let (mut record, _) = open().expect("it is fresh");
        (0..most).for_each(|id| record.take(id, &[descriptor(1, id)]));
        let left = open().expect("the same ring").1;
        assert_eq!(left.map(|left| left.chains.len()), Some(LEFT_MAX));
        record.take(most, &[descriptor(1, most)]);
        assert_eq!(open().err(), Some(Broken::Index));
    }

    #[test]
    fn records_that_cannot_be_are_refused() {
        let region = Region::zeroed(length(4));
        let (mut record, _) = open(&region, false).expect("it is fresh");
        // More than there is room for.
        (0..9).for_each(|id| record.take(id, &[descriptor(1, id), descriptor(2, id)]));
        assert_eq!(left(&region, false).1.len(), 2);
        assert!(region.store_u16(HEADER_LEN + 3 * RECORD_LEN + COUNT_AT, 9));
        assert!(region.store_u16(HEADER_LEN + 2 * RECORD_LEN + COUNT_AT, 9));
        assert_eq!(open(&region, false).err(), Some(Broken::Descriptor));
        assert!(region.store_u16(SIZE_AT, 8));
        assert_eq!(open(&region, false).err(), Some(Broken::Size));
        assert_eq!(open(&Region::zeroed(64), false).err(), Some(Broken::Unreachable));
    }

    #[test]
    fn records_that_the_front_end_changes_meanwhile_are_freed_once() {
        let region = Region::zeroed(length(4));
        let (mut record, _) = open(&region, false).expect("it is fresh");
        for turn in 0..20 {
            record.take(7, &[descriptor(1, 7), descriptor(2, 7)]);
            for at in 0..4 {
                // Each request has all records, and each record is the next one of itself.
                let place = HEADER_LEN + usize::from(at) * RECORD_LEN;
                assert!(region.store_u16(place + COUNT_AT, 4) && region.store_u16(place + NEXT_AT, at));
                assert!(region.store_u16(place + LAST_AT, turn % 9));
            }
            record.returning(7, (0, true));
            record.returned(7, (0, true));
            let mut free = record.free.clone();
            free.sort_unstable();
            assert_eq!(free, [0, 1, 2, 3]);
        }
    }

    #[test]
    fn a_record_belongs_to_one_request_only() {
        let region = Region::zeroed(length(4));
        let (mut record, _) = open(&region, false).expect("it is fresh");
        record.take(7, &[descriptor(1, 7)]);
        record.take(9, &[descriptor(2, 9)]);
        // A record whose next one is itself.
        assert!(region.store_u16(HEADER_LEN + COUNT_AT, 4) && region.store_u16(HEADER_LEN + NEXT_AT, 0));
        assert_eq!(open(&region, false).err(), Some(Broken::Descriptor));
        // The record of another request.
        assert!(region.store_u16(HEADER_LEN + COUNT_AT, 2) && region.store_u16(HEADER_LEN + NEXT_AT, 1));
        assert_eq!(open(&region, false).err(), Some(Broken::Descriptor));
        assert!(region.store_u16(HEADER_LEN + COUNT_AT, 1));
        let (next, left) = open(&region, false).expect("the same ring");
        assert_eq!((left.map(|left| left.chains.len()), next.free), (Some(2), vec![3, 2]));
    }
}

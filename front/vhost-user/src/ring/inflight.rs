//! The record of requests in progress of a split ring, in memory that outlives the process: a process that takes the
//! ring over repeats the requests that were not answered.
//!
//! Offsets of the header: features 0, version 8, entries 10, head of the last batch 12, used index 14. Then for each
//! descriptor: whether it is in progress 0, next of its batch 6, counter 8.

use super::chain::Broken;
use crate::config::LEFT_MAX;
use lunar_guest::window::Window;
use std::sync::atomic::{Ordering, fence};

/// The version of the layout.
const VERSION: u16 = 1;
/// Bytes of the header, and of the record of a descriptor.
const HEADER_LEN: usize = 16;
const RECORD_LEN: usize = 16;
const FEATURES_AT: usize = 0;
const VERSION_AT: usize = 8;
const SIZE_AT: usize = 10;
const LAST_AT: usize = 12;
const USED_AT: usize = 14;
const NEXT_AT: usize = 6;
const COUNTER_AT: usize = 8;
/// Queues lie on such bounds.
pub const ALIGNMENT: usize = 64;

/// Bytes of the record of a ring of this size.
#[must_use]
pub fn length(size: u16) -> usize {
    (HEADER_LEN + usize::from(size) * RECORD_LEN).next_multiple_of(ALIGNMENT)
}

/// The record of a ring.
#[derive(Debug)]
pub struct InflightRecord {
    window: Window,
    size: u16,
    counter: u64,
}

impl InflightRecord {
    /// Opens the record of a ring of this size with these features, whose used index is `used`. Returns the heads of
    /// the requests that were taken and not answered, in the order in which they were taken.
    ///
    /// # Errors
    /// [`Broken::Size`] when it is the record of another ring; [`Broken::Index`] for more than [`LEFT_MAX`] requests;
    /// [`Broken::Unreachable`].
    pub fn open(window: Window, features: u64, size: u16, used: u16) -> Result<(Self, Vec<u16>), Broken> {
        if window.len() < length(size) {
            return Err(Broken::Unreachable);
        }
        let mut record = Self { window, size, counter: 0 };
        if record.load(VERSION_AT)? == 0 {
            record.start(features, used)?;
            return Ok((record, Vec::new()));
        }
        if record.load(VERSION_AT)? != VERSION || record.load(SIZE_AT)? != size {
            return Err(Broken::Size);
        }
        record.end_last_batch(used)?;
        let mut left = Vec::new();
        for head in 0..size {
            if record.is_in_progress(head)? {
                if left.len() == LEFT_MAX {
                    return Err(Broken::Index);
                }
                left.push((record.counter_of(head)?, head));
            }
        }
        left.sort_unstable();
        record.counter = left.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Ok((record, left.into_iter().map(|(_, head)| head).collect()))
    }

    fn start(&self, features: u64, used: u16) -> Result<(), Broken> {
        self.write(FEATURES_AT, &features.to_le_bytes())?;
        self.store(SIZE_AT, self.size)?;
        self.store(LAST_AT, 0)?;
        self.store(USED_AT, used)?;
        self.store(VERSION_AT, VERSION)
    }

    /// The last batch was returned, but the process ended before it had recorded that.
    fn end_last_batch(&self, used: u16) -> Result<(), Broken> {
        let count = used.wrapping_sub(self.load(USED_AT)?);
        let mut head = self.load(LAST_AT)?;
        for _ in 0..count.min(self.size) {
            if head >= self.size {
                return Err(Broken::Descriptor);
            }
            self.set_in_progress(head, false)?;
            head = self.load(place(head) + NEXT_AT)?;
        }
        self.store(USED_AT, used)
    }

    /// A request was taken from the ring.
    pub fn take(&mut self, head: u16) {
        // A window that was checked has all its bytes.
        let _ = self.write(place(head) + COUNTER_AT, &self.counter.to_le_bytes());
        self.counter = self.counter.wrapping_add(1);
        fence(Ordering::Release);
        let _ = self.set_in_progress(head, true);
    }

    /// A request is about to be returned.
    pub fn returning(&self, head: u16) {
        let _ = self.store(LAST_AT, head);
    }

    /// A request was returned, and the ring has this used index now.
    pub fn returned(&self, head: u16, used: u16) {
        // Never before the used index: a request that is neither in progress nor returned would be lost.
        fence(Ordering::Release);
        let _ = self.set_in_progress(head, false);
        let _ = self.store(USED_AT, used);
    }

    fn load(&self, at: usize) -> Result<u16, Broken> {
        self.window.load_u16(at).ok_or(Broken::Unreachable)
    }

    fn store(&self, at: usize, value: u16) -> Result<(), Broken> {
        if self.window.store_u16(at, value) { Ok(()) } else { Err(Broken::Unreachable) }
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Broken> {
        if self.window.write(at, bytes) { Ok(()) } else { Err(Broken::Unreachable) }
    }

    fn is_in_progress(&self, head: u16) -> Result<bool, Broken> {
        let mut byte = [0];
        if self.window.read(place(head), &mut byte) { Ok(byte != [0]) } else { Err(Broken::Unreachable) }
    }

    fn set_in_progress(&self, head: u16, is_in_progress: bool) -> Result<(), Broken> {
        self.write(place(head), &[is_in_progress.into()])
    }

    fn counter_of(&self, head: u16) -> Result<u64, Broken> {
        let mut bytes = [0; 8];
        let is_there = self.window.read(place(head) + COUNTER_AT, &mut bytes);
        if is_there { Ok(u64::from_le_bytes(bytes)) } else { Err(Broken::Unreachable) }
    }
}

fn place(head: u16) -> usize {
    HEADER_LEN + usize::from(head) * RECORD_LEN
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::Region;

    fn open(region: &Region, size: u16, used: u16) -> Result<(InflightRecord, Vec<u16>), Broken> {
        let window = Window::new(region, 0, region.len()).expect("all of it");
        InflightRecord::open(window, 1 << 32, size, used)
    }

    #[test]
    fn requests_that_were_not_answered_are_repeated_in_their_order() {
        let region = Region::zeroed(length(8));
        let (mut record, left) = open(&region, 8, 5).expect("it is fresh");
        assert!(left.is_empty());
        [3, 0, 7].into_iter().for_each(|head| record.take(head));
        record.returning(0);
        record.returned(0, 6);
        assert_eq!(open(&region, 8, 6).expect("the same ring").1, [3, 7]);
        // The process ends after it has returned 7, and before it has recorded that.
        record.returning(7);
        let (mut next, left) = open(&region, 8, 7).expect("the same ring");
        assert_eq!(left, [3]);
        next.take(1);
        assert_eq!(open(&region, 8, 7).expect("the same ring").1, [3, 1]);
        let mut head = [0; 16];
        assert!(region.read(0, &mut head));
        assert_eq!(head, [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 8, 0, 7, 0, 7, 0]);
    }

    #[test]
    fn a_process_leaves_a_number_of_requests() {
        let (size, most) = (8192, LEFT_MAX as u16);
        let region = Region::zeroed(length(size));
        let (mut record, _) = open(&region, size, 0).expect("it is fresh");
        (0..most).for_each(|head| record.take(head));
        assert_eq!(open(&region, size, 0).expect("the same ring").1.len(), LEFT_MAX);
        record.take(most);
        assert_eq!(open(&region, size, 0).err(), Some(Broken::Index));
    }

    #[test]
    fn records_of_other_rings_are_refused() {
        let region = Region::zeroed(length(8));
        assert_eq!(open(&region, 16, 0).err(), Some(Broken::Unreachable), "too short");
        open(&region, 8, 0).expect("it is fresh");
        assert_eq!(open(&region, 4, 0).err(), Some(Broken::Size));
        assert!(region.store_u16(LAST_AT, 99));
        assert_eq!(open(&region, 8, 1).err(), Some(Broken::Descriptor));
        assert!(region.store_u16(VERSION_AT, 2));
        assert_eq!(open(&region, 8, 0).err(), Some(Broken::Size));
    }
}

//! Counters of the commands of one volume or of one host on one core: how many of each class, how long they took, and
//! the bytes that they moved.

use crate::count::Count;

macro_rules! classes {
    ($($name:ident, $word:literal, $doc:literal;)*) => {
        /// The class of a command.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Class { $(#[doc = $doc] $name,)* }

        impl Class {
            /// All classes, in their order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word of the class in metrics.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }
        }
    };
}

classes! {
    Read, "read", "It reads the medium.";
    Write, "write", "It writes the medium.";
    Unmap, "unmap", "It unmaps or discards blocks.";
    CompareAndWrite, "compare-and-write", "It compares blocks and writes them if they are equal.";
    Copy, "copy", "It copies blocks inside the target.";
    Other, "other", "Any other command.";
}

const CLASSES: usize = Class::ALL.len();

/// Cells of a histogram. Each is twice as wide as the one before it.
pub const CELLS: usize = 22;

/// The upper bound of the first cell, in microseconds: about the time of a turn of a core with little work, which is
/// the resolution of the measurement.
const FIRST_MICROSECONDS: u64 = 8;

/// The upper bound of a cell, in microseconds, which is part of it; `None`: the last cell has none.
#[must_use]
pub const fn bound(cell: usize) -> Option<u64> {
    if cell + 1 < CELLS { Some(FIRST_MICROSECONDS << cell) } else { None }
}

/// The cell of a latency.
#[inline]
const fn cell(nanoseconds: u64) -> usize {
    // Most commands of a store in memory end in the turn in which they arrive.
    if nanoseconds <= FIRST_MICROSECONDS * 1000 {
        return 0;
    }
    let doubled = (nanoseconds - 1) / (FIRST_MICROSECONDS * 1000);
    let cell = doubled.ilog2() as usize + 1;
    if cell < CELLS { cell } else { CELLS - 1 }
}

/// The commands of one class. A short command touches the first cache line only.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct OfClass {
    bytes: Count,
    nanoseconds: Count,
    cells: [Count; CELLS],
}

/// The commands of one volume or host on one core. Only that core writes it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Traffic([OfClass; CLASSES]);

impl Traffic {
    /// Counts a command that has ended after this time, and the bytes that it moved.
    #[inline]
    pub fn count(&self, class: Class, nanoseconds: u64, bytes: u64) {
        let of = &self.0[class as usize];
        of.cells[cell(nanoseconds)].add(1);
        if nanoseconds > 0 {
            of.nanoseconds.add(nanoseconds);
        }
        of.bytes.add(bytes);
    }

    /// The counters now.
    #[must_use]
    pub fn sums(&self) -> TrafficSums {
        let mut sums = TrafficSums::default();
        sums.add(self);
        sums
    }
}

/// Sums of the commands of one class.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ClassSums {
    /// Bytes moved.
    pub bytes: u64,
    /// Time from the arrival to the end of all commands together.
    pub nanoseconds: u64,
    /// Commands by their latency, in the cells of [`bound`].
    pub cells: [u64; CELLS],
}

impl ClassSums {
    /// The number of commands.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.cells.iter().fold(0, |sum, cell| sum.wrapping_add(*cell))
    }

    /// Adds others.
    pub fn merge(&mut self, other: &Self) {
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.nanoseconds = self.nanoseconds.wrapping_add(other.nanoseconds);
        for (sum, more) in self.cells.iter_mut().zip(other.cells) {
            *sum = sum.wrapping_add(more);
        }
    }
}

/// Sums of commands, by class.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TrafficSums([ClassSums; CLASSES]);

impl TrafficSums {
    /// Adds the counters of a core.
    pub fn add(&mut self, traffic: &Traffic) {
        for (sums, of) in self.0.iter_mut().zip(&traffic.0) {
            let mut cells = [0; CELLS];
            for (cell, count) in cells.iter_mut().zip(&of.cells) {
                *cell = count.get();
            }
            sums.merge(&ClassSums { bytes: of.bytes.get(), nanoseconds: of.nanoseconds.get(), cells });
        }
    }

    /// Adds other sums.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sums, more)| sums.merge(more));
    }

    /// Bytes that were read.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.of(Class::Read).bytes
    }

    /// Bytes that were written with data of clients.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.of(Class::Write).bytes.wrapping_add(self.of(Class::CompareAndWrite).bytes)
    }

    /// Of one class.
    #[must_use]
    pub fn of(&self, class: Class) -> &ClassSums {
        &self.0[class as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_in_the_first_cell_whose_bound_it_does_not_exceed() {
        for at in 0..CELLS - 1 {
            let bound = bound(at).expect("only the last has none") * 1000;
            assert_eq!((cell(bound), cell(bound + 1)), (at, at + 1), "{bound} ns");
        }
        assert_eq!((cell(0), cell(1), cell(u64::MAX)), (0, 0, CELLS - 1));
        assert_eq!((bound(0), bound(20), bound(21)), (Some(8), Some(8_388_608), None));
    }

    #[test]
    fn commands_are_counted_by_class() {
        let (first, second) = (Traffic::default(), Traffic::default());
        first.count(Class::Read, 0, 4096);
        second.count(Class::Read, 20_000, 512);
        second.count(Class::Other, 5, 0);
        let mut sums = first.sums();
        sums.add(&second);
        let read = sums.of(Class::Read);
        assert_eq!((read.commands(), read.bytes, read.nanoseconds), (2, 4608, 20_000));
        assert_eq!(read.cells[..3], [1, 0, 1]);
        assert_eq!((sums.of(Class::Other).commands(), sums.of(Class::Write).commands()), (1, 0));
        let mut twice = sums.clone();
        twice.merge(&sums);
        assert_eq!(twice.of(Class::Read).bytes, 9216);
    }

    #[test]
    fn a_short_command_touches_one_cache_line() {
        assert_eq!((size_of::<OfClass>(), align_of::<OfClass>()), (192, 64));
        assert_eq!(std::mem::offset_of!(OfClass, cells), 16, "cells up to half a millisecond are in the first line");
    }
}

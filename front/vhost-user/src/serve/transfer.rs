//! The path of the data of one request, to and from guest memory.

use super::rings::DeviceRings;
use crate::ring::Chain;
use lunar_core::mem::Arena;
use lunar_core::step::FinalData;
use lunar_core::task::Task;
use lunar_guest::Range;
use lunar_guest::data_path::{self, GuestDevice, Lent, Placement};
use lunar_guest::memory::Memory;

/// The path of the data of one request.
pub(super) type DataPath<'a, K> = data_path::DataPath<'a, DeviceRings, ChainData<'a>, K>;

/// The data of a request in its chain.
pub(super) struct ChainData<'a> {
    chain: &'a Chain,
    /// The bytes before the data in the readable part: the header of the request.
    before_out: usize,
    /// The bytes before the data in the writable part: the answer, where it comes first.
    before_in: usize,
}

impl Placement for ChainData<'_> {
    #[inline]
    fn readable(&self) -> (&[Range], usize) {
        (&self.chain.readable, self.before_out)
    }

    #[inline]
    fn writable(&self) -> (&[Range], usize) {
        (&self.chain.writable, self.before_in)
    }
}

impl GuestDevice for DeviceRings {
    #[inline]
    fn with_memory<T>(&self, work: impl FnOnce(&Memory) -> T) -> T {
        work(&self.state().memory)
    }

    #[inline]
    fn arena(&self) -> &Arena {
        self.reactor.arena()
    }
}

/// The path of the data of the request in a chain. `lent`: the memory that stores get, which outlives a panic.
pub(super) fn path<'a, K: Copy>(
    device: &'a DeviceRings,
    chain: &'a Chain,
    (before_out, before_in): (usize, usize),
    task: Option<&'a Task<K>>,
    lent: &'a Lent,
) -> DataPath<'a, K> {
    DataPath::new(device, ChainData { chain, before_out, before_in }, task, lent)
}

/// Records what stores have written for a request that a panic has ended.
pub(super) fn mark(device: &DeviceRings, chain: &Chain, (before_out, before_in): (usize, usize), lent: &Lent) {
    lent.mark(device, &ChainData { chain, before_out, before_in });
}

/// Writes the last data of a request, and records what stores have written. Returns whether all memory of the request
/// was there.
pub(super) fn end<K: Copy>(path: &DataPath<'_, K>, last: &FinalData) -> bool {
    path.mark_lent();
    if !path.has_failed() && !last.data.is_empty() {
        // The path remembers a failure.
        let _ = path.write(last.offset, &last.data);
    }
    !path.has_failed()
}

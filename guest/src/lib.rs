//! The common part of every transport into a virtual machine, for all kinds of messages and rings. Values without I/O:
//! the transport maps memory, waits, and notifies the guest.
//!
//! * [`map`]: address ranges that do not overlap, each with a value
//! * [`window`]: a bounded view of a part of guest memory: rings, doorbell pages, logs
//! * [`faults`]: how many faults of a guest the log shows
//! * [`dirty`]: which pages of guest memory were written, for a client that migrates the guest
//! * [`memory`]: guest memory: regions by guest address, access to them, and the log of writes
//! * [`scatter`]: the data of one command, which lies in several pieces of guest memory
//! * [`data_path`]: the path of the data of one command
//! * [`slots`]: which device may take a slot of its core, and which ones wait for one
//! * [`poll`]: when a core polls rings in guest memory, and when it asks the guest to notify it

pub mod data_path;
pub mod dirty;
pub mod faults;
pub mod map;
pub mod memory;
pub mod poll;
pub mod scatter;
pub mod slots;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod window;

/// Consecutive guest addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The first address.
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

impl Range {
    /// First and last address. `None` for a range that is empty or extends beyond the 64-bit address space.
    #[must_use]
    pub fn ends(self) -> Option<(u64, u64)> {
        let last = self.len.checked_sub(1).and_then(|len| self.address.checked_add(len))?;
        Some((self.address, last))
    }
}

//! What every transport into a virtual machine needs. A value without I/O that knows no transport.
//!
//! * [`memory`]: guest memory, as its client mapped it
//! * [`dirty`]: which pages of it were written, for a client that migrates the guest

pub mod dirty;
pub mod memory;

/// Addresses of a guest that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The first address.
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

impl Range {
    /// First and last address. `None` for a range that is empty or goes beyond the last address of all.
    #[must_use]
    pub fn ends(self) -> Option<(u64, u64)> {
        let last = self.len.checked_sub(1).and_then(|len| self.address.checked_add(len))?;
        Some((self.address, last))
    }
}

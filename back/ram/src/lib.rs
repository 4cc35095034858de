//! A store in memory: sparse, shared by all cores, gone with the process.
//!
//! Memory is taken page by page as it is written and given back as it is unmapped. Each page has its own lock,
//! so cores meet only where they touch the same 64 KiB, and a copy never sees half of another's.

mod table;

use lunar_core::io::{Data, Done, Fault, Io, Op, Outcome, Store, Traits};
use lunar_core::step::PIECE_BYTES;
use lunar_reactor::Reactor;
use std::io;
use std::sync::Arc;
use table::{PAGE_BYTES, Table};

/// Bytes of the largest volume: more than the memory of any machine, and its empty directory is still small.
pub const SIZE_MAX: u64 = 16 << 40;

/// A volume in memory: every clone, on whatever core, is the same bytes.
#[derive(Clone, Debug)]
pub struct RamVolume {
    traits: Traits,
    table: Arc<Table>,
}

impl RamVolume {
    /// An empty volume of `size` bytes.
    ///
    /// # Errors
    /// `InvalidInput` when `size` is over [`SIZE_MAX`].
    pub fn new(size: u64, read_only: bool) -> io::Result<Self> {
        if size > SIZE_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let traits = Traits {
            size,
            read_only,
            // There is no medium behind it that a flush could reach.
            write_cache: false,
            thin: true,
            unmap_granularity: PAGE_BYTES as u32,
            unmap_zeroes: true,
            physical_block: 4096,
            optimal_io: 0,
            rotational: false,
            // It is all gone with power.
            atomic_write: PIECE_BYTES as u32,
        };
        Ok(Self { traits, table: Arc::new(Table::new(size)) })
    }

    /// What it says of itself.
    #[must_use]
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// Bytes of memory that its pages take now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.table.used()
    }

    /// This core's store.
    ///
    /// # Errors
    /// None; for likeness with the other kinds.
    pub fn open(&self, _reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        Ok(Box::new(RamStore(self.clone())))
    }
}

/// One core's view of a volume in memory.
struct RamStore(RamVolume);

impl Store for RamStore {
    fn traits(&self) -> &Traits {
        &self.0.traits
    }

    fn submit(&self, io: Io, done: Done) {
        if !io.within(self.0.traits.size) {
            return done.complete(Outcome::with(Err(Fault::OUT_OF_RANGE), io.data));
        }
        let table = &*self.0.table;
        let moved = io.data.len() as u32;
        let mut outcome = Outcome::new(Ok(0));
        match (io.op, io.data) {
            (Op::Read, Data::In(mut memory)) => {
                let mut at = io.offset;
                for piece in memory.pieces_mut() {
                    table.read(at, piece);
                    at += piece.len() as u64;
                }
                outcome = Outcome::with(Ok(moved), Data::In(memory));
            }
            (Op::Write { .. }, Data::Out(data)) => {
                let mut at = io.offset;
                let written = data.pieces().iter().try_for_each(|piece| {
                    table.write(at, piece)?;
                    at += piece.len() as u64;
                    Ok(())
                });
                outcome = Outcome::with(written.map(|()| moved), Data::Out(data));
            }
            (Op::Unmap { len } | Op::Zero { len, unmap: true }, _) => table.zero(io.offset, len, true),
            (Op::Zero { len, unmap: false }, _) => table.zero(io.offset, len, false),
            (Op::Extent { len }, _) => outcome.extent = table.extent(io.offset, len),
            // Byte for byte either way, and the fall-back lets others have their turn.
            (Op::Copy { .. }, data) => outcome = Outcome::with(Err(Fault::Unsupported), data),
            (_, data) => outcome.data = data,
        }
        done.complete(outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_suite::Want;

    #[test]
    fn keeps_the_contract() {
        let volume = RamVolume::new(64 << 20, false).expect("small");
        let used = volume.clone();
        let want = Want { used: Some(&|| used.used()), ..Want::default() };
        lunar_suite::conforms(&move |reactor| volume.open(reactor), &want);
    }

    #[test]
    fn is_the_same_bytes_on_every_core() {
        let volume = RamVolume::new(1 << 20, false).expect("small");
        let open: lunar_suite::OpenAnywhere = Arc::new(move |reactor| volume.open(reactor));
        lunar_suite::shared_by_cores(&open);
    }

    #[test]
    fn refuses_what_no_machine_holds() {
        assert!(RamVolume::new(SIZE_MAX + 1, false).is_err());
        assert!(RamVolume::new(SIZE_MAX, false).is_ok());
    }
}

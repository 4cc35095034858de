//! A store in memory: sparse, shared by all cores, lost with the process.
//!
//! Memory is taken page by page as it is written and given back as it is unmapped. Each page has its own lock,
//! so cores contend only for the same 64 KiB, and a reader never sees half of a write to a page.
//!
//! * [`backend`]: memory as a back end of the engine; `table`: the pages

pub mod backend;
pub mod schema;
mod table;

use lunar_core::io::{Data, Done, Fault, ImmediateStore, Io, Op, Outcome, Space, Store, Traits};
use lunar_core::step::PIECE_BYTES;
use lunar_core::time::Instant;
use lunar_reactor::Reactor;
use lunar_reactor::pages::PAGE_BYTES;
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use table::Table;

/// Bytes that a store moves in one turn of its core, in a millisecond or two. Further commands are answered in the next
/// turn: a long copy, which never waits for a disk here, would starve the other tasks of the core.
const TURN_BYTES: u64 = 8 << 20;

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
            // All data is lost with power, so no write can be torn.
            atomic_write: PIECE_BYTES as u32,
        };
        Ok(Self { traits, table: Arc::new(Table::new(size)) })
    }

    /// The same bytes with a `size` that is not less than before. The new bytes read as zeroes.
    ///
    /// # Errors
    /// `InvalidInput` when `size` is over [`SIZE_MAX`], or less than it had.
    pub fn reopen(&self, size: u64, read_only: bool) -> io::Result<Self> {
        if !(self.traits.size..=SIZE_MAX).contains(&size) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { traits: Traits { size, read_only, ..self.traits.clone() }, table: Arc::new(self.table.grown(size)) })
    }

    /// The properties of the store.
    #[must_use]
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// Bytes of memory that its pages take now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.table.used()
    }

    /// The used bytes, and those that its size still allows. The free memory of the machine is not known.
    fn space(&self) -> Space {
        let used = self.used();
        Space { used, available: self.traits.size.next_multiple_of(PAGE_BYTES as u64).saturating_sub(used) }
    }

    /// The store of this core.
    ///
    /// # Errors
    /// None; the signature is that of the other kinds.
    pub fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        let (turn, moved) = (Cell::new(reactor.now()), Cell::new(0));
        Ok(Box::new(RamStore { volume: self.clone(), reactor: reactor.clone(), turn, moved }))
    }
}

/// One core's view of a volume in memory.
struct RamStore {
    volume: RamVolume,
    reactor: Reactor,
    /// The turn that `moved` is of.
    turn: Cell<Instant>,
    moved: Cell<u64>,
}

impl RamStore {
    /// Bytes moved in this turn.
    fn moved(&self) -> u64 {
        let now = self.reactor.now();
        if self.turn.replace(now) != now {
            self.moved.set(0);
        }
        self.moved.get()
    }

    /// Answers; in the next turn if this one has moved [`TURN_BYTES`].
    fn answer(&self, outcome: Outcome, done: Done) {
        if self.moved() <= TURN_BYTES {
            return done.complete(outcome);
        }
        let (reactor, now) = (self.reactor.clone(), self.turn.get());
        self.reactor.spawn(async move {
            reactor.sleep_until(now + Duration::from_nanos(1)).await;
            done.complete(outcome);
        });
    }
}

impl ImmediateStore for RamStore {
    fn carry_out(&self, io: &mut Io) -> Result<u32, Fault> {
        if !io.within(self.volume.traits.size) {
            return Err(Fault::OUT_OF_RANGE);
        }
        let (table, mut at, moved) = (&*self.volume.table, io.offset, io.data.len() as u32);
        // A command that fails has taken time, too.
        self.moved.set(self.moved() + u64::from(moved));
        match (io.op, &mut io.data) {
            (Op::Read, Data::In(memory)) => {
                for piece in memory.pieces_mut() {
                    let len = piece.len();
                    table.read(at, len, |from, bytes| match bytes {
                        Ok(bytes) => piece.write(from, bytes),
                        Err(zeroes) => piece.fill_part(from, zeroes, 0),
                    });
                    at += len as u64;
                }
            }
            (Op::Write { .. }, Data::Out(data)) => {
                for piece in data.pieces() {
                    table.write(at, piece.len(), |from, bytes| piece.read(from, bytes))?;
                    at += piece.len() as u64;
                }
            }
            _ => return Err(Fault::Unsupported),
        }
        Ok(moved)
    }
}

impl Store for RamStore {
    fn traits(&self) -> &Traits {
        &self.volume.traits
    }

    fn immediate(&self) -> Option<&dyn ImmediateStore> {
        (self.moved() < TURN_BYTES).then_some(self)
    }

    fn submit(&self, mut io: Io, done: Done) {
        if matches!(io.op, Op::Read | Op::Write { .. }) {
            let result = self.carry_out(&mut io);
            return self.answer(Outcome::with(result, io.data), done);
        }
        if !io.within(self.volume.traits.size) {
            return done.complete(Outcome::with(Err(Fault::OUT_OF_RANGE), io.data));
        }
        let table = &*self.volume.table;
        let mut outcome = Outcome::new(Ok(0));
        match (io.op, io.data) {
            (Op::Unmap { len } | Op::Zero { len, unmap: true }, _) => table.zero(io.offset, len, true),
            (Op::Zero { len, unmap: false }, _) => table.zero(io.offset, len, false),
            (Op::Extent { len }, _) => outcome.extent = table.extent(io.offset, len),
            (Op::Space, _) => outcome.data = Data::Space(self.volume.space()),
            // Byte for byte either way, and the fall-back goes on in pieces.
            (Op::Copy { .. }, data) => outcome = Outcome::with(Err(Fault::Unsupported), data),
            (_, data) => outcome.data = data,
        }
        self.answer(outcome, done);
    }

    fn measures(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::io::{Completion, submit};
    use lunar_core::step::PIECE_BYTES;
    use lunar_suite::Want;
    use std::rc::Rc;

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
    fn what_moves_much_lets_others_have_their_turn() {
        let volume = RamVolume::new(64 << 20, false).expect("small");
        lunar_suite::on_both_drivers(&|reactor| {
            let store = volume.open(reactor).expect("the store opens");
            let (others, until) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            let (counted, over, clock) = (others.clone(), until.clone(), reactor.clone());
            reactor.spawn(async move {
                while !over.get() {
                    clock.sleep_until(clock.now() + Duration::from_nanos(1)).await;
                    counted.set(counted.get() + 1);
                }
            });
            let mut completion = Completion::new();
            reactor.run(async {
                for _ in 0..4 * TURN_BYTES / PIECE_BYTES as u64 {
                    let memory = reactor.arena().wait_sg(PIECE_BYTES).await;
                    let io = Io { op: Op::Read, offset: 0, data: Data::In(memory) };
                    submit(&*store, io, &mut completion).await.result.expect("a read");
                }
                until.set(true);
            });
            assert!(others.get() >= 3, "{} turns", others.get());
        });
    }

    #[test]
    fn refuses_what_no_machine_holds() {
        assert!(RamVolume::new(SIZE_MAX + 1, false).is_err());
        assert!(RamVolume::new(SIZE_MAX, false).is_ok());
    }
}

//! A store under test: requests in the words of tests.

use crate::Want;
use lunar_core::io::{Completion, Data, Fault, Io, Op, Origin, Outcome, Store};
use lunar_core::mem::{Sg, SgMut};
use lunar_reactor::{Choice, Config, Reactor, Spin};
use std::io;

/// Bytes of a page of memory.
pub const PAGE: usize = lunar_core::mem::PAGE;
/// Memory of a core under test.
const ARENA_BYTES: usize = 32 << 20;

/// A core under test.
///
/// # Errors
/// When this machine does not have the driver.
pub fn reactor(driver: Choice) -> io::Result<Reactor> {
    let spin = Spin::default();
    Reactor::new(Config { driver, arena_bytes: ARENA_BYTES, register: false, stats: Default::default(), spin })
}

/// Bytes of a store.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Offset of the first byte.
    pub at: u64,
    /// Number of bytes.
    pub len: u64,
}

/// Bytes that differ by place and by seed.
#[must_use]
pub fn fill(len: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len as usize + 8);
    while bytes.len() < len as usize {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len as usize);
    bytes
}

/// A store under test and its core.
pub struct Bench<'a> {
    /// Its core.
    pub reactor: &'a Reactor,
    /// The store.
    pub store: &'a dyn Store,
    /// Its special properties.
    pub want: &'a Want<'a>,
}

impl<'a> Bench<'a> {
    /// Prepares a store for tests.
    #[must_use]
    pub fn new(reactor: &'a Reactor, store: &'a dyn Store, want: &'a Want<'a>) -> Self {
        Self { reactor, store, want }
    }

    /// Bytes of the store.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.store.traits().size
    }

    async fn submit(&self, op: Op, offset: u64, data: Data) -> Outcome {
        lunar_core::io::submit(self.store, Io { op, offset, data }, &mut Completion::new()).await
    }

    /// A request without data.
    pub async fn ask(&self, op: Op, offset: u64) -> Outcome {
        self.submit(op, offset, Data::None).await
    }

    /// Copies from another store, or from this one.
    ///
    /// # Errors
    /// The fault of the store.
    pub async fn copy(&self, origin: Origin, from: u64, to: Place) -> Result<u32, Fault> {
        self.submit(Op::Copy { from, len: to.len }, to.at, Data::From(origin)).await.result
    }

    /// `bytes` in pieces of at most `piece` bytes, the first of which begins `skew` bytes into a page.
    #[must_use]
    pub fn gather(&self, bytes: &[u8], piece: usize, skew: usize) -> Sg {
        let mut memory = self.scatter(bytes.len(), piece, skew);
        assert_eq!(memory.copy_from(0, bytes), bytes.len());
        memory.share()
    }

    /// Memory in pieces, filled with bytes that must not remain.
    #[must_use]
    pub fn scatter(&self, len: usize, piece: usize, skew: usize) -> SgMut {
        let mut memory = SgMut::default();
        while memory.len() < len {
            let count = piece.min(len - memory.len());
            let mut buf = self.reactor.arena().take(skew + count).expect("the arena is large enough for tests");
            drop(buf.split_to(skew));
            buf.fill(0xa5);
            memory.push(buf);
        }
        memory
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// The fault of the store.
    pub async fn write(&self, at: u64, bytes: &[u8], durable: bool) -> Result<(), Fault> {
        self.write_sg(at, self.gather(bytes, 1 << 20, 0), durable).await
    }

    /// Writes pieces; asserts that memory with the same bytes comes back.
    ///
    /// # Errors
    /// The fault of the store.
    pub async fn write_sg(&self, at: u64, data: Sg, durable: bool) -> Result<(), Fault> {
        let sent = data.clone();
        let outcome = self.submit(Op::Write { durable }, at, Data::Out(data)).await;
        let Data::Out(back) = outcome.data else { panic!("the memory of a write comes back") };
        assert!(back.to_vec() == sent.to_vec(), "the memory of a write is unchanged");
        let count = outcome.result?;
        assert_eq!(count as usize, sent.len(), "a write is complete or fails");
        Ok(())
    }

    /// Reads into this memory.
    ///
    /// # Errors
    /// The fault of the store.
    pub async fn read_into(&self, place: Place, memory: SgMut) -> Result<Vec<u8>, Fault> {
        let len = memory.len();
        assert_eq!(len as u64, place.len);
        let outcome = self.submit(Op::Read, place.at, Data::In(memory)).await;
        let Data::In(back) = outcome.data else { panic!("the memory of a read comes back") };
        assert_eq!(back.len(), len, "all of the memory comes back");
        outcome.result.map(|count| {
            assert_eq!(count as usize, len, "all is read");
            back.share().to_vec()
        })
    }

    /// Reads; asserts that there is no fault.
    pub async fn read(&self, place: Place) -> Vec<u8> {
        let memory = self.scatter(place.len as usize, 1 << 20, 0);
        self.read_into(place, memory).await.expect("a read without a fault")
    }

    /// Writes all of them before it waits for the first.
    pub async fn write_all_at_once(&self, writes: impl Iterator<Item = (u64, &[u8])>) {
        let mut waiting = Vec::new();
        for (offset, bytes) in writes {
            let mut completion = Completion::new();
            let data = Data::Out(self.gather(bytes, 1 << 20, 0));
            self.store.submit(Io { op: Op::Write { durable: false }, offset, data }, completion.token());
            waiting.push(completion);
        }
        for completion in waiting {
            completion.wait().await.result.expect("a write without a fault");
        }
    }

    /// Reads all of them before it waits for the first.
    pub async fn read_all_at_once(&self, places: impl Iterator<Item = Place>) -> Vec<Vec<u8>> {
        let mut waiting = Vec::new();
        for place in places {
            let mut completion = Completion::new();
            let data = Data::In(self.scatter(place.len as usize, 1 << 20, 0));
            self.store.submit(Io { op: Op::Read, offset: place.at, data }, completion.token());
            waiting.push(completion);
        }
        let mut found = Vec::new();
        for completion in waiting {
            let outcome = completion.wait().await;
            outcome.result.expect("a read without a fault");
            found.push(outcome.data.into_in().share().to_vec());
        }
        found
    }

    /// Flushes `count` times before it waits for the first.
    pub async fn flush_at_once(&self, count: usize) -> Vec<Result<u32, Fault>> {
        let mut waiting = Vec::new();
        for _ in 0..count {
            let mut completion = Completion::new();
            self.store.submit(Io { op: Op::Flush, offset: 0, data: Data::None }, completion.token());
            waiting.push(completion);
        }
        let mut results = Vec::new();
        for completion in waiting {
            results.push(completion.wait().await.result);
        }
        results
    }
}

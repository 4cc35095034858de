//! Where the time of a command goes: how long its steps wait for the store and for the peer.
//!
//! The clock is that of the core's turn, so only a wait that outlives its turn has a length, and a step that waits for
//! nothing costs nothing.

use super::kinds::{SlotContext, Step};
use crate::io::{Fault, Io, Outcome, Store};
use crate::mem::{Sg, SgMut};
use crate::port::Transfer;
use crate::slow::{Blocks, Times};
use crate::stats::Stats;
use crate::time::Instant;
use crate::unit::Unit;
use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

/// The times of the command in a slot.
#[derive(Default)]
pub struct Watch {
    /// The clock; without one all times are zero.
    stats: Option<Arc<Stats>>,
    /// Nanoseconds from the arrival of the command to the beginning of its execution.
    waited: Cell<u64>,
    network: Cell<u64>,
    store: Cell<u64>,
    /// When its execution began, if it is timed.
    sample: Cell<Option<Instant>>,
    /// The first byte of the command, its length and the size of a block.
    place: Cell<Option<(u64, u64, u32)>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({:?})", self.times(0))
    }
}

impl Watch {
    pub(super) fn of(stats: Arc<Stats>) -> Self {
        Self { stats: Some(stats), ..Self::default() }
    }

    /// The time in nanoseconds.
    pub(super) fn now(&self) -> u64 {
        self.stats.as_ref().map_or(0, |stats| stats.now().0)
    }

    /// The next command waited for its slot since `arrived`.
    pub fn waited_since(&self, arrived: Instant) {
        self.waited.set(self.now().saturating_sub(arrived.0));
    }

    /// Begins the times of a command.
    #[inline]
    pub fn begin(&self) {
        let stats = self.stats.as_ref();
        self.sample.set(stats.and_then(|stats| stats.sampler.begin(stats.commands.get(), stats.now())));
        self.network.set(0);
        self.store.set(0);
        self.place.set(None);
    }

    /// The times of a command that was executed for so many nanoseconds. The next command did not wait.
    #[must_use]
    pub fn times(&self, nanoseconds: u64) -> Times {
        let total = nanoseconds.saturating_add(self.waited.get());
        Times { total, network: self.network.get(), store: self.store.get() }
    }

    /// Ends the times of a command that was executed for so many nanoseconds.
    #[inline]
    pub fn end(&self, nanoseconds: u64) -> Times {
        let times = self.times(nanoseconds);
        self.waited.set(0);
        times
    }

    /// When the execution of the command began, if it is timed.
    pub(crate) fn take_sample(&self) -> Option<Instant> {
        self.sample.take()
    }

    /// The blocks of the command.
    #[must_use]
    pub fn blocks(&self) -> Option<Blocks> {
        let (offset, len, size) = self.place.get()?;
        Some(Blocks { lba: offset / u64::from(size), count: len / u64::from(size), size })
    }

    #[inline]
    pub(super) fn is_at(&self, unit: &Unit, step: &Step) {
        if let Some((offset, len)) = step.range() {
            self.place.set(Some((offset, len, unit.geometry.block_size)));
        }
    }

    /// Waits for the answer of a store.
    pub(super) async fn storing<F: Future>(&self, answer: F) -> F::Output {
        self.timed(&self.store, answer).await
    }

    /// Waits for work, and adds the time to a sum if the work has to wait.
    async fn timed<F: Future>(&self, sum: &Cell<u64>, work: F) -> F::Output {
        let mut work = pin!(work);
        if let Poll::Ready(done) = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await {
            return done;
        }
        let begun = self.now();
        let done = work.await;
        sum.set(sum.get() + self.now().saturating_sub(begun));
        done
    }
}

impl SlotContext {
    /// Sends a request to a store, and waits for the answer.
    pub(crate) async fn submit(&mut self, store: &dyn Store, io: Io) -> Outcome {
        let done = self.completion.token();
        store.submit(io, done);
        self.watch.storing(self.completion.wait()).await
    }
}

/// A transfer whose waits are timed.
pub(super) struct Timed<'a, T> {
    pub(super) transfer: &'a T,
    pub(super) watch: &'a Watch,
}

impl<T: Transfer> Transfer for Timed<'_, T> {
    async fn room(&self) -> Result<(), Fault> {
        self.watch.timed(&self.watch.network, self.transfer.room()).await
    }

    async fn reserve(&self, len: usize, least: usize) -> Result<usize, Fault> {
        self.watch.timed(&self.watch.network, self.transfer.reserve(len, least)).await
    }

    fn has_room(&self) -> bool {
        self.transfer.has_room()
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.watch.timed(&self.watch.network, self.transfer.pull(offset, len)).await
    }

    fn arrived(&self, offset: usize, len: usize) -> Option<Sg> {
        self.transfer.arrived(offset, len)
    }

    async fn pull_more(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.watch.timed(&self.watch.network, self.transfer.pull_more(offset, len)).await
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        self.transfer.push(offset, data)
    }

    fn place(&self, offset: usize, len: usize) -> Option<SgMut> {
        self.transfer.place(offset, len)
    }

    fn lend(&self, offset: usize, len: usize) -> Option<Sg> {
        self.transfer.lend(offset, len)
    }

    fn aborted(&self) -> bool {
        self.transfer.aborted()
    }
}

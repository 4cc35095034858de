//! The task that rewrites a medium.

use super::record;
use super::request::{Rewrite, RewriteChange, RewriteKind};
use crate::change::{Denial, UnitChange};
use crate::core_units::CoreUnits;
use crate::ledger::Refused;
use crate::shared::Activity;
use lunar_core::io::Fault;
use lunar_core::mem::Arena;
use lunar_core::port::NexusName;
use lunar_core::range::Span;
use lunar_core::step::{self, Failure, SlotContext, blank, yield_once};
use lunar_core::unit::Unit;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Why a rewrite was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RewriteError {
    /// It has not begun: another rewrite is in progress, or the medium is being ejected.
    Busy,
    /// It has not begun: a sanitize failed, and the medium needs another one.
    SanitizeRequired,
    /// It has not begun: its metadata record could not be saved.
    Metadata(Fault),
    /// It has failed.
    Failed(Failure),
}

impl From<Refused> for RewriteError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Denied(Denial::SanitizeRequired) => Self::SanitizeRequired,
            Refused::Denied(_) => Self::Busy,
            Refused::Metadata(fault) => Self::Metadata(fault),
        }
    }
}

/// The event that the command of a rewrite waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// The rewrite has begun: it will continue in any case (IMMED; NVMe Sanitize).
    Begun,
    /// The rewrite has ended.
    Ended,
}

/// The part of a rewrite that its command sees.
#[derive(Debug, Default)]
struct Watch {
    has_begun: Cell<bool>,
    ended: RefCell<Option<Result<(), RewriteError>>>,
    waker: RefCell<Option<Waker>>,
}

impl Watch {
    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Waits for the rewrite. The wait ends when `is_aborted` reports that the command was aborted.
    async fn wait(&self, until: Until, is_aborted: impl Fn() -> bool) -> Result<(), RewriteError> {
        poll_fn(|cx| {
            if let Some(result) = self.ended.take() {
                return Poll::Ready(result);
            }
            if until == Until::Begun && self.has_begun.get() || is_aborted() {
                return Poll::Ready(Ok(()));
            }
            self.waker.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }
}

/// A rewrite of one unit.
struct Job {
    core: Rc<CoreUnits>,
    unit: Rc<Unit>,
    /// The nexus that requested it, which is not notified of a new protection type.
    proposer: Option<NexusName>,
    watch: Rc<Watch>,
    /// Whether it lets other tasks of the core run between two pieces.
    yields: bool,
}

impl CoreUnits {
    /// Rewrites the medium of a unit. Returns when the rewrite has begun or ended, as `until` says, and in any case
    /// when `is_aborted` reports that the command was aborted: the rewrite continues then. `is_aborted` is called once
    /// for every part that is written.
    ///
    /// # Errors
    /// [`RewriteError`].
    pub async fn rewrite(
        self: &Rc<Self>,
        unit: &Rc<Unit>,
        proposer: Option<&NexusName>,
        rewrite: Rewrite,
        arena: &Arena,
        (until, is_aborted): (Until, impl Fn() -> bool),
    ) -> Result<(), RewriteError> {
        let activity = self.shared().of(unit).begin_activity().ok_or(RewriteError::Busy)?;
        let watch = Rc::new(Watch::default());
        self.start(unit, proposer, RewriteChange::Begin(rewrite), arena, activity, &watch).await;
        watch.wait(until, is_aborted).await
    }

    /// Runs a rewrite in the background, or in this task if there is no spawner.
    async fn start(
        self: &Rc<Self>,
        unit: &Rc<Unit>,
        proposer: Option<&NexusName>,
        begin: RewriteChange,
        arena: &Arena,
        activity: Activity,
        watch: &Rc<Watch>,
    ) {
        let spawn = self.spawner();
        let job = Job {
            core: self.clone(),
            unit: unit.clone(),
            proposer: proposer.cloned(),
            watch: watch.clone(),
            yields: spawn.is_some(),
        };
        let slot = SlotContext::new(arena.clone());
        let work = Box::pin(job.run(begin, activity, slot));
        match spawn {
            Some(spawn) => spawn(work),
            None => work.await,
        }
    }

    /// Continues the sanitizes that the end of the last process interrupted. One core calls it, after all cores serve.
    pub fn resume(self: &Rc<Self>, arena: &Arena) {
        let Some(spawn) = self.spawner() else { return };
        let has_store = |unit: &Unit| self.shared().of(unit).state().access().is_store_available();
        for unit in self.units().into_iter().filter(|unit| !unit.read_only && has_store(unit)) {
            let Some(rewrite) = record::stored(&*unit.metadata).unfinished else { continue };
            // It is in progress already.
            let Some(activity) = self.shared().of(&unit).begin_activity() else { continue };
            let (core, arena) = (self.clone(), arena.clone());
            spawn(Box::pin(async move {
                let slot = SlotContext::new(arena);
                let job = Job { core, unit, proposer: None, watch: Rc::default(), yields: true };
                job.run(RewriteChange::Resume(rewrite), activity, slot).await;
            }));
        }
    }

    /// Leaves the state after a failed sanitize; any other state is kept.
    ///
    /// # Errors
    /// [`RewriteError::Busy`], [`RewriteError::SanitizeRequired`] if the medium needs another sanitize,
    /// [`RewriteError::Metadata`].
    pub async fn exit_failure_mode(&self, unit: &Unit) -> Result<(), RewriteError> {
        // No sanitize begins meanwhile.
        let _activity = self.shared().of(unit).begin_activity().ok_or(RewriteError::Busy)?;
        self.propose(unit, None, UnitChange::Rewrite(RewriteChange::ExitFailureMode)).await?;
        Ok(())
    }
}

impl Job {
    async fn propose(&self, change: RewriteChange) -> Result<(), Refused> {
        self.core.propose(&self.unit, None, UnitChange::Rewrite(change)).await.map(drop)
    }

    async fn run(self, begin: RewriteChange, activity: Activity, slot: SlotContext) {
        let result = self.rewrite(begin, &activity, slot).await;
        drop(activity);
        self.watch.ended.replace(Some(result));
        self.watch.wake();
    }

    async fn rewrite(
        &self,
        begin: RewriteChange,
        activity: &Activity,
        mut slot: SlotContext,
    ) -> Result<(), RewriteError> {
        let (RewriteChange::Begin(rewrite) | RewriteChange::Resume(rewrite)) = begin.clone() else { return Ok(()) };
        // The record is durable before anything is destroyed.
        self.propose(begin).await?;
        self.watch.has_begun.set(true);
        self.watch.wake();
        // Commands are no longer admitted, and waiting commands take no range lock; the holders of locks are waited
        // for.
        let whole = Span { start: 0, end: self.unit.geometry.bytes() };
        drop(self.unit.exclusive.lock_exclusive(self.unit.id, whole).await);
        let mut result = match self.protect(rewrite.kind, &mut slot).await {
            Ok(()) => self.write(&rewrite, activity, slot).await,
            failed => failed,
        };
        if result.is_ok() {
            // Without this record, a restart would repeat the rewrite over data that was written since.
            result = self.propose(RewriteChange::Done).await.map_err(failure);
        }
        if result.is_err() {
            // It takes effect even if its record cannot be saved.
            let _ = self.propose(RewriteChange::Failed).await;
        }
        result.map_err(RewriteError::Failed)
    }

    /// Makes all protection information blank, then changes the protection type. So no remaining block fails a check,
    /// whenever this or the rewrite ends.
    async fn protect(&self, kind: RewriteKind, slot: &mut SlotContext) -> Result<(), Failure> {
        blank(&self.unit, slot).await?;
        if let (RewriteKind::Format { protection: Some(kind) }, Some(_)) = (kind, &self.unit.protection) {
            let change = UnitChange::Protection(kind);
            self.core.propose(&self.unit, self.proposer.as_ref(), change).await.map_err(failure)?;
        }
        Ok(())
    }

    /// Writes all passes and flushes after each of them.
    async fn write(&self, rewrite: &Rewrite, activity: &Activity, mut slot: SlotContext) -> Result<(), Failure> {
        let size = self.unit.geometry.bytes();
        let all = size.saturating_mul(rewrite.passes.len() as u64);
        let mut done = 0;
        for (at, pass) in rewrite.passes.iter().enumerate() {
            if at > 0 {
                // After an interruption, passes that are done are not done again.
                let left = Rewrite { kind: rewrite.kind, passes: rewrite.passes[at..].to_vec() };
                self.propose(RewriteChange::Advance(left)).await.map_err(failure)?;
            }
            step::rewrite_medium(&self.unit, &pass.pattern, pass.unmap, &mut slot, async |here| {
                activity.set_progress(done + here, all);
                // The command may have been aborted.
                self.watch.wake();
                if self.yields {
                    yield_once().await;
                }
            })
            .await?;
            done += size;
        }
        Ok(())
    }
}

/// The failure of a rewrite whose metadata could not be saved.
fn failure(refused: Refused) -> Failure {
    let fault = match refused {
        Refused::Metadata(fault) => fault,
        Refused::Denied(_) => Fault::Aborted,
    };
    Failure::Fault { fault, at: 0 }
}

#[cfg(test)]
#[path = "task_tests.rs"]
mod tests;

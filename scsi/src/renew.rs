//! FORMAT UNIT and SANITIZE: a whole medium is written anew, while hardly any other command is admitted.
//!
//! The work goes on whatever becomes of the command and of its nexus (SBC-3 4.11): it is a task of its own, where there
//! is somebody to run it. It outlives its process as well: see [`kept`].

pub(crate) mod kept;

use crate::admit::Refusal;
use crate::fault;
use crate::lu::{Change, LogicalUnit, MediumState};
use crate::nexus::Nexus;
use crate::protect;
use crate::target::{Mail, Target};
use lunar_core::io::{Completion, Fault};
use lunar_core::medium::Work;
use lunar_core::mem::Arena;
use lunar_core::port::Transfer;
use lunar_core::protection::Kind;
use lunar_core::range::Span;
use lunar_core::step::{self, Failure, Tools, blank, turn};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// What FORMAT UNIT or SANITIZE asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renewal {
    /// What the medium is in while it is under way: formatting or sanitizing.
    pub during: MediumState,
    /// What it is in when it could not be done.
    pub failed: MediumState,
    /// How blocks are protected after it; as they were, if it does not say.
    pub protection: Option<Kind>,
    /// One after the other.
    pub passes: Vec<Pass>,
    /// IMMED: the command ends when the work has begun.
    pub immediate: bool,
}

/// The whole medium once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pass {
    /// One block; empty for zeroes that need not be moved.
    pub pattern: Vec<u8>,
    /// Whether the space may be given back.
    pub unmap: bool,
}

/// What the command sees of the work.
#[derive(Debug, Default)]
struct Watch {
    has_begun: Cell<bool>,
    ended: RefCell<Option<Result<(), Refusal>>>,
    waker: RefCell<Option<Waker>>,
}

impl Watch {
    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Target {
    /// Begins the work; returns when it is done, if it is immediate when it has begun, and in any case when the command
    /// is aborted.
    pub(crate) async fn renew<T: Transfer>(
        &self,
        nexus: &Nexus,
        lu: &Rc<LogicalUnit>,
        renewal: Renewal,
        transfer: &T,
        tools: &Tools,
    ) -> Result<(), Refusal> {
        let Some(work) = lu.unit.medium.begin() else {
            return Err(renewal.during.sense(lu).into());
        };
        let watch = Rc::new(Watch::default());
        let immediate = renewal.immediate;
        let by = self.nexuses().into_iter().find(|other| std::ptr::eq(&**other, nexus));
        let tools = Tools { arena: tools.arena.clone(), completion: Completion::new() };
        match (self.background(), self.this()) {
            (Some(spawn), Some(target)) => {
                let (lu, watch) = (lu.clone(), watch.clone());
                spawn(Box::pin(
                    async move { target.work(by.as_deref(), &lu, &renewal, (work, tools), &watch, true).await },
                ));
            }
            _ => self.work(by.as_deref(), lu, &renewal, (work, tools), &watch, false).await,
        }
        poll_fn(|cx| {
            if let Some(result) = watch.ended.take() {
                return Poll::Ready(result);
            }
            if immediate && watch.has_begun.get() || transfer.aborted() {
                return Poll::Ready(Ok(()));
            }
            *watch.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    async fn work(
        &self,
        by: Option<&Nexus>,
        lu: &LogicalUnit,
        renewal: &Renewal,
        (work, tools): (Work, Tools),
        watch: &Watch,
        in_turns: bool,
    ) {
        let result = self.rewrite(by, lu, renewal, (&work, tools), watch, in_turns).await;
        drop(work);
        watch.ended.replace(Some(result));
        watch.wake();
    }

    async fn rewrite(
        &self,
        by: Option<&Nexus>,
        lu: &LogicalUnit,
        renewal: &Renewal,
        (work, mut tools): (&Work, Tools),
        watch: &Watch,
        in_turns: bool,
    ) -> Result<(), Refusal> {
        // Before anything is gone.
        kept::under_way(&lu.unit, renewal, &renewal.passes).await.map_err(fault::transfer)?;
        self.set_medium(lu.lun, renewal.during).await;
        watch.has_begun.set(true);
        watch.wake();
        let whole = Span { start: 0, end: lu.unit.geometry.bytes() };
        // Nobody is admitted any more, and who was before does not enter; who is inside is waited for.
        drop(lu.unit.exclusive.hold(lu.unit.id, whole).await);
        let mut result = match self.protect(by, lu, renewal.protection, &mut tools).await {
            Ok(()) => write(lu, renewal, work, tools, watch, in_turns).await,
            failed => failed,
        };
        // A work that nobody knows to be done would be done again, over what was written since.
        if result.is_ok() {
            result = kept::done(&lu.unit).await.map_err(|fault| Failure::Fault { fault, at: 0 });
        }
        if result.is_err() {
            // Where that cannot be kept either, it counts as interrupted.
            let _ = kept::failed(&lu.unit, renewal).await;
        }
        let state = if result.is_ok() { MediumState::Ready } else { renewal.failed };
        self.set_medium(lu.lun, state).await;
        result.map_err(|_| renewal.failed.sense(lu).into())
    }

    /// Keeps where another command set is with formatting a unit, so that it outlives this process as a FORMAT UNIT
    /// does: before it begins, and when it has ended, before anybody is told.
    ///
    /// # Errors
    /// What keeps it from being kept; a unit that is not there keeps nothing.
    pub async fn keep_format(&self, lun: u16, state: MediumState) -> Result<(), Fault> {
        let Some(lu) = self.unit(lun) else { return Err(Fault::Gone) };
        kept::format(&lu.unit, state).await
    }

    /// Sanitizes a unit for another command set; returns when that has begun. It goes on whatever becomes of who asked.
    ///
    /// # Errors
    /// What keeps it from beginning: [`Fault::Aborted`] if other work is under way.
    pub async fn sanitize(&self, lun: u16, passes: Vec<Pass>, exits: bool, arena: Arena) -> Result<(), Fault> {
        let lu = self.unit(lun).ok_or(Fault::Gone)?;
        let (Some(spawn), Some(target)) = (self.background(), self.this()) else { return Err(Fault::Unsupported) };
        let work = lu.unit.medium.begin().ok_or(Fault::Aborted)?;
        let (during, failed) = (MediumState::Sanitizing, MediumState::SanitizeFailed { exits });
        let renewal = Renewal { during, failed, protection: None, passes, immediate: true };
        let watch = Rc::new(Watch::default());
        let (watched, tools) = (watch.clone(), Tools { arena, completion: Completion::new() });
        spawn(Box::pin(async move { target.work(None, &lu, &renewal, (work, tools), &watched, true).await }));
        poll_fn(|cx| {
            if let Some(result) = watch.ended.take() {
                return Poll::Ready(result.map_err(|_| Fault::Medium));
            }
            if watch.has_begun.get() {
                return Poll::Ready(Ok(()));
            }
            *watch.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Leaves the state after a SANITIZE that failed, for another command set; any other state stays as it is.
    ///
    /// # Errors
    /// [`Fault::Protocol`] if only another SANITIZE helps, [`Fault::Aborted`] if other work is under way, and what
    /// keeps the change from being kept.
    pub async fn exit_failure_mode(&self, lun: u16) -> Result<(), Fault> {
        let lu = self.unit(lun).ok_or(Fault::Gone)?;
        // Nobody begins to sanitize meanwhile.
        let _work = lu.unit.medium.begin().ok_or(Fault::Aborted)?;
        match lu.medium() {
            MediumState::SanitizeFailed { exits: false } => return Err(Fault::Protocol),
            MediumState::SanitizeFailed { exits: true } => {}
            _ => return Ok(()),
        }
        kept::done(&lu.unit).await?;
        self.set_medium(lun, MediumState::Ready).await;
        Ok(())
    }

    /// Goes on with what a crash or a stop has interrupted: for one core, once all serve.
    pub fn resume(&self, arena: &Arena) {
        let (Some(spawn), Some(target)) = (self.background(), self.this()) else { return };
        for lu in self.units() {
            let Some(renewal) = kept::load(&lu.unit).unfinished else { continue };
            let Some(work) = lu.unit.medium.begin() else { continue };
            let target = target.clone();
            let tools = Tools { arena: arena.clone(), completion: Completion::new() };
            spawn(Box::pin(
                async move { target.work(None, &lu, &renewal, (work, tools), &Watch::default(), true).await },
            ));
        }
    }

    /// Blanks all protection information, and from then on blocks are protected so. Whenever this or what comes after
    /// ends, no block that is left fails a check.
    async fn protect(
        &self,
        by: Option<&Nexus>,
        lu: &LogicalUnit,
        kind: Option<Kind>,
        tools: &mut Tools,
    ) -> Result<(), Failure> {
        blank(&lu.unit, tools).await?;
        if let (Some(kind), Some(_)) = (kind, &lu.unit.protection) {
            protect::keep(&*lu.unit.keep, kind).await.map_err(|fault| Failure::Fault { fault, at: 0 })?;
            self.change(by, lu.lun, Change::Protection(kind)).await;
        }
        Ok(())
    }

    async fn set_medium(&self, lun: u16, state: MediumState) {
        let (change, stamp) = (Change::Medium(state), self.stamp());
        self.make(lun, &change, stamp, None);
        self.everywhere.broadcast(Mail::Change { lun, change, stamp }).await;
    }
}

/// Writes all passes and brings the last one to the medium.
async fn write(
    lu: &LogicalUnit,
    renewal: &Renewal,
    work: &Work,
    mut tools: Tools,
    watch: &Watch,
    in_turns: bool,
) -> Result<(), Failure> {
    let size = lu.unit.geometry.bytes();
    let all = size.saturating_mul(renewal.passes.len() as u64);
    let mut done = 0;
    for (at, pass) in renewal.passes.iter().enumerate() {
        if at > 0 {
            // An interruption costs the pass that was under way, and not those before it.
            let kept = kept::under_way(&lu.unit, renewal, &renewal.passes[at..]).await;
            kept.map_err(|fault| Failure::Fault { fault, at: done })?;
        }
        // Each pass reaches the medium, or the next one would only replace it in a cache.
        step::rewrite(&lu.unit, &pass.pattern, pass.unmap, &mut tools, async |here| {
            work.set_progress(done + here, all);
            // Who waits may have been aborted.
            watch.wake();
            if in_turns {
                turn().await;
            }
        })
        .await?;
        done += size;
    }
    Ok(())
}

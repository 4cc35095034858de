//! What sort of medium a unit has; and work on the whole of it, one at a time over all cores, and how far it is.

use crate::io::{Done, Fault, Io, Op, Origin, Outcome, Quick, Store, Traits};
use crate::keep::Keep;
use crate::mem::Sg;
use crate::uncorrectable::{Malformed, Uncorrectable};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, Ordering};

/// What sort of medium a unit has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MediumKind {
    /// One that is always there.
    #[default]
    Fixed,
    /// One that can be taken out.
    Removable,
    /// A CD or DVD: it can be taken out, and is only read.
    Optical,
}

/// What is on a medium, taken as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Content {
    /// What was written to it.
    #[default]
    Whole,
    /// Half of this and half of that: it has to be formatted to the end, and is not used before.
    Unformatted,
    /// What should be gone may still be there: it has to be sanitized to the end, and is not used before.
    Unsanitized,
}

/// What all cores share of a unit's medium.
#[derive(Clone, Debug, Default)]
pub struct Medium(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    kind: MediumKind,
    is_worked_on: AtomicBool,
    progress: AtomicU16,
    is_out: AtomicBool,
    content: AtomicU8,
    uncorrectable: Uncorrectable,
}

impl Medium {
    /// A medium of this kind.
    #[must_use]
    pub fn of(kind: MediumKind) -> Self {
        Self(Arc::new(Shared { kind, ..Shared::default() }))
    }

    /// The same, with what its unit has kept of it.
    ///
    /// # Errors
    /// When that cannot be understood.
    pub fn restored(kind: MediumKind, keep: &dyn Keep) -> Result<Self, Malformed> {
        let uncorrectable = Uncorrectable::restored(keep)?;
        Ok(Self(Arc::new(Shared { kind, uncorrectable, ..Shared::default() })))
    }

    /// Its blocks that are marked as unreadable.
    #[inline]
    #[must_use]
    pub fn uncorrectable(&self) -> &Uncorrectable {
        &self.0.uncorrectable
    }

    /// What sort it is.
    #[must_use]
    pub fn kind(&self) -> MediumKind {
        self.0.kind
    }

    /// Says whether it was taken out.
    pub fn set_out(&self, is_out: bool) {
        self.0.is_out.store(is_out, Ordering::Release);
    }

    /// Whether it was taken out.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.0.is_out.load(Ordering::Acquire)
    }

    /// Says what is on it, to all command sets.
    pub fn set_content(&self, content: Content) {
        self.0.content.store(content as u8, Ordering::Release);
    }

    /// What is on it.
    #[must_use]
    pub fn content(&self) -> Content {
        let content = self.0.content.load(Ordering::Acquire);
        let all = [Content::Whole, Content::Unformatted, Content::Unsanitized];
        all.into_iter().find(|known| *known as u8 == content).unwrap_or_default()
    }

    /// A store of this medium as units have it. A command may wait for its peer while the medium is taken out: one that
    /// can be keeps late requests from the store, all but those that bring to it what was written before.
    #[must_use]
    pub fn guard(&self, store: Box<dyn Store>) -> Box<dyn Store> {
        match self.kind() {
            MediumKind::Fixed => store,
            MediumKind::Removable | MediumKind::Optical => Box::new(Guarded { store, medium: self.clone() }),
        }
    }

    /// Begins work, unless some is under way.
    #[must_use]
    pub fn begin(&self) -> Option<Work> {
        let begun = self.0.is_worked_on.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok().then(|| {
            self.0.progress.store(0, Ordering::Relaxed);
            Work(self.clone())
        })
    }

    /// Whether work is under way.
    #[must_use]
    pub fn is_worked_on(&self) -> bool {
        self.0.is_worked_on.load(Ordering::Acquire)
    }

    /// How far the work is, in parts of 65,536.
    #[must_use]
    pub fn progress(&self) -> u16 {
        self.0.progress.load(Ordering::Relaxed)
    }
}

/// Work that is under way, until it is dropped.
#[derive(Debug)]
pub struct Work(Medium);

impl Work {
    /// Tells how far it is.
    pub fn set_progress(&self, done: u64, of: u64) {
        let parts = u128::from(done) * 0x1_0000 / u128::from(of.max(1));
        self.0.0.progress.store(u16::try_from(parts).unwrap_or(u16::MAX), Ordering::Relaxed);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.0.0.is_worked_on.store(false, Ordering::Release);
    }
}

/// A store whose medium can be taken out.
struct Guarded {
    store: Box<dyn Store>,
    medium: Medium,
}

impl Store for Guarded {
    fn traits(&self) -> &Traits {
        self.store.traits()
    }

    fn submit(&self, io: Io, done: Done) {
        if self.medium.is_out() && io.op != Op::Flush {
            return done.complete(Outcome::with(Err(Fault::Gone), io.data));
        }
        self.store.submit(io, done);
    }

    fn quick(&self) -> Option<&dyn Quick> {
        self.store.quick().filter(|_| !self.medium.is_out())
    }

    fn lend(&self, offset: u64, len: usize, to: &mut Sg) -> bool {
        !self.medium.is_out() && self.store.lend(offset, len, to)
    }

    fn measures(&self) -> bool {
        self.store.measures()
    }

    fn origin(&self) -> Option<Origin> {
        self.store.origin().filter(|_| !self.medium.is_out())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{Completion, Data};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    /// Does whatever it is asked.
    struct Willing(Traits);

    impl Store for Willing {
        fn traits(&self) -> &Traits {
            &self.0
        }

        fn submit(&self, io: Io, done: Done) {
            done.complete(Outcome::with(Ok(0), io.data));
        }

        fn measures(&self) -> bool {
            true
        }
    }

    #[test]
    fn what_was_taken_out_is_out_of_reach() {
        let traits = Traits {
            size: 4096,
            read_only: false,
            write_cache: true,
            thin: false,
            unmap_granularity: 0,
            unmap_zeroes: false,
            physical_block: 512,
            optimal_io: 0,
            rotational: false,
            atomic_write: 0,
        };
        for kind in [MediumKind::Fixed, MediumKind::Removable, MediumKind::Optical] {
            let medium = Medium::of(kind);
            let store = medium.guard(Box::new(Willing(traits.clone())));
            assert!(store.measures(), "thresholds are for all kinds");
            let ask = |op| {
                let mut completion = Completion::new();
                store.submit(Io { op, offset: 0, data: Data::None }, completion.token());
                match pin!(completion.wait()).poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(outcome) => outcome.result,
                    Poll::Pending => panic!("it answers at once"),
                }
            };
            let zero = Op::Zero { len: 512, unmap: false };
            assert_eq!((ask(zero), ask(Op::Flush)), (Ok(0), Ok(0)));
            medium.set_out(true);
            let refused = if kind == MediumKind::Fixed { Ok(0) } else { Err(Fault::Gone) };
            assert_eq!((ask(zero), ask(Op::Flush)), (refused, Ok(0)), "{kind:?}");
            medium.set_out(false);
            assert_eq!(ask(zero), Ok(0));
        }
    }

    #[test]
    fn one_works_at_a_time_and_tells_how_far() {
        let medium = Medium::default();
        let work = medium.begin().expect("nobody works");
        assert!(medium.clone().begin().is_none() && medium.is_worked_on());
        for (done, of, progress) in
            [(1, 4, 0x4000), (u64::MAX / 2, u64::MAX, 0x7fff), (9, 9, u16::MAX), (1, 0, u16::MAX)]
        {
            work.set_progress(done, of);
            assert_eq!(medium.progress(), progress);
        }
        drop(work);
        assert!(!medium.is_worked_on());
        let _next = medium.begin().expect("it is over");
        assert_eq!(medium.progress(), 0);
    }
}

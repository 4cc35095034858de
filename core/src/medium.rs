//! The part of a unit's medium that the data path needs: its kind, whether it was removed, and which blocks are marked
//! as unreadable. The state of the medium belongs to the unit state, in `lunar-unit`.

use crate::io::{Done, Fault, ImmediateStore, Io, Op, Origin, Outcome, Store, Traits};
use crate::mem::Sg;
use crate::metadata::MetadataStore;
use crate::uncorrectable::{Malformed, Uncorrectable};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

/// The kind of a unit's medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MediumKind {
    /// Fixed.
    #[default]
    Fixed,
    /// Removable.
    Removable,
    /// A CD or DVD: removable and read-only.
    Optical,
}

/// The part of a unit's medium that all cores share, for the data path.
#[derive(Clone, Debug, Default)]
pub struct Medium(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    kind: MediumKind,
    is_removed: AtomicBool,
    low_space: AtomicU16,
    uncorrectable: Uncorrectable,
}

/// The space of a pool, such as a file system, that has fallen below its soft threshold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LowSpace {
    /// The available part of the pool, in percent.
    pub available: u8,
    /// The threshold, in percent; at least 1.
    pub threshold: u8,
}

impl Medium {
    /// A medium of this kind.
    #[must_use]
    pub fn of(kind: MediumKind) -> Self {
        Self(Arc::new(Shared { kind, ..Shared::default() }))
    }

    /// A medium of this kind, with the marks that the unit has stored.
    ///
    /// # Errors
    /// [`Malformed`]: the unit must not be served.
    pub fn restored(kind: MediumKind, metadata: &dyn MetadataStore) -> Result<Self, Malformed> {
        let uncorrectable = Uncorrectable::restored(metadata)?;
        Ok(Self(Arc::new(Shared { kind, uncorrectable, ..Shared::default() })))
    }

    /// The blocks that are marked as unreadable.
    #[inline]
    #[must_use]
    pub fn uncorrectable(&self) -> &Uncorrectable {
        &self.0.uncorrectable
    }

    /// The kind of the medium.
    #[must_use]
    pub fn kind(&self) -> MediumKind {
        self.0.kind
    }

    /// Sets whether the medium was removed. Only the owner of the unit state calls this.
    pub fn set_removed(&self, is_removed: bool) {
        self.0.is_removed.store(is_removed, Ordering::Release);
    }

    /// Sets the space of the pool that the unit takes space from, if it is low.
    pub fn set_low_space(&self, low: Option<LowSpace>) {
        let both = low.map_or(0, |low| u16::from_be_bytes([low.threshold, low.available]));
        self.0.low_space.store(both, Ordering::Relaxed);
    }

    /// The space of the pool that the unit takes space from, if it is low.
    #[must_use]
    pub fn low_space(&self) -> Option<LowSpace> {
        let [threshold, available] = self.0.low_space.load(Ordering::Relaxed).to_be_bytes();
        (threshold > 0).then_some(LowSpace { available, threshold })
    }

    /// Whether the medium was removed.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.0.is_removed.load(Ordering::Acquire)
    }

    /// Wraps the store of a unit. A command may wait for its peer while the medium is removed: the wrapper of a
    /// removable medium fails such late requests, except the flush of an eject.
    #[must_use]
    pub fn guard(&self, store: Box<dyn Store>) -> Box<dyn Store> {
        match self.kind() {
            MediumKind::Fixed => store,
            MediumKind::Removable | MediumKind::Optical => Box::new(Guarded { store, medium: self.clone() }),
        }
    }
}

/// The store of a removable medium.
struct Guarded {
    store: Box<dyn Store>,
    medium: Medium,
}

impl Store for Guarded {
    fn traits(&self) -> &Traits {
        self.store.traits()
    }

    fn submit(&self, io: Io, done: Done) {
        if self.medium.is_removed() && io.op != Op::Flush {
            return done.complete(Outcome::with(Err(Fault::Gone), io.data));
        }
        self.store.submit(io, done);
    }

    fn immediate(&self) -> Option<&dyn ImmediateStore> {
        self.store.immediate().filter(|_| !self.medium.is_removed())
    }

    fn lend(&self, offset: u64, len: usize, to: &mut Sg) -> bool {
        !self.medium.is_removed() && self.store.lend(offset, len, to)
    }

    fn measures(&self) -> bool {
        self.store.measures()
    }

    fn origin(&self) -> Option<Origin> {
        self.store.origin().filter(|_| !self.medium.is_removed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{Completion, Data};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    /// Completes every request.
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
    fn low_space_is_seen_until_there_is_enough() {
        let medium = Medium::default();
        assert_eq!(medium.low_space(), None);
        for low in [LowSpace { available: 0, threshold: 1 }, LowSpace { available: 9, threshold: 99 }] {
            medium.clone().set_low_space(Some(low));
            assert_eq!(medium.low_space(), Some(low));
        }
        medium.set_low_space(None);
        assert_eq!(medium.low_space(), None);
    }

    #[test]
    fn a_removed_medium_is_out_of_reach_except_for_a_flush() {
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
            assert!(store.measures(), "all kinds can be measured");
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
            medium.set_removed(true);
            let refused = if kind == MediumKind::Fixed { Ok(0) } else { Err(Fault::Gone) };
            assert_eq!((ask(zero), ask(Op::Flush)), (refused, Ok(0)), "{kind:?}");
            medium.set_removed(false);
            assert_eq!(ask(zero), Ok(0));
        }
    }
}

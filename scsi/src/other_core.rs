//! Other cores of tests.

use crate::testing::Rig;
use lunar_core::io::Traits;
use lunar_unit::{CoreUnits, LocalFuture, OtherCores, SharedUnits, UnitMessage};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;

/// The other core of a device with two. It answers unless it is asleep.
#[derive(Default)]
pub(crate) struct OtherCore {
    core: RefCell<Weak<CoreUnits>>,
    pub(crate) is_asleep: Cell<bool>,
}

/// The queue to the other core.
struct Way(Rc<OtherCore>);

impl OtherCores for Way {
    fn broadcast(&self, message: UnitMessage) -> LocalFuture<'static, ()> {
        let way = self.0.clone();
        Box::pin(async move {
            poll_fn(|_| if way.is_asleep.get() { Poll::Pending } else { Poll::Ready(()) }).await;
            let other = way.core.borrow().upgrade();
            if let Some(other) = other {
                other.deliver(message).await;
            }
        })
    }
}

/// One device on two cores, each of which `make` makes, and the queues between them.
pub(crate) fn two_cores_of(
    make: impl Fn(Rc<dyn OtherCores>, Arc<SharedUnits>) -> Rig,
) -> ([Rig; 2], [Rc<OtherCore>; 2]) {
    let (ways, shared) = ([Rc::<OtherCore>::default(), Rc::default()], Arc::<SharedUnits>::default());
    let rigs = ways.each_ref().map(|way| make(Rc::new(Way(way.clone())), shared.clone()));
    for (way, other) in ways.iter().zip(rigs.iter().rev()) {
        *way.core.borrow_mut() = Rc::downgrade(&other.units);
    }
    (rigs, ways)
}

/// A device with a disk of these traits, on two cores.
pub(crate) fn two_cores(traits: &Traits) -> [Rig; 2] {
    two_cores_of(|way, shared| Rig::sharing(traits.clone(), way, shared)).0
}

/// Cores that only record their messages.
#[derive(Default)]
pub(crate) struct Notes(pub(crate) RefCell<Vec<UnitMessage>>);

impl OtherCores for Notes {
    fn broadcast(&self, message: UnitMessage) -> LocalFuture<'static, ()> {
        self.0.borrow_mut().push(message);
        Box::pin(std::future::ready(()))
    }
}

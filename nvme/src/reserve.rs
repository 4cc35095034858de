//! A change of reservations on all cores: on the medium first if it outlives a restart, then known to every host, and
//! only then answered.

use crate::command::{Refusal, Status};
use crate::controller::Controller;
use crate::fault;
use crate::features;
use crate::namespace::Namespace;
use crate::queue::{Queue, Task};
use crate::subsystem::Subsystem;
use lunar_core::io::Fault;
use lunar_core::reserve::{Action, Denial, News, Order, RESERVATIONS, Request, Reservations, Told};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

/// Types of reservation notifications (NVMe Base 2.0 5.16.1.24): registration preempted, reservation released,
/// reservation preempted.
const NOTICES: [(Told, u8); 3] = [(Told::Preempted, 1), (Told::Released, 2), (Told::Cleared, 3)];

/// Keeps a notification for a controller, unless its host has masked those of this type (feature 82h).
pub(crate) fn notify(controller: &Controller, namespace: u32, told: Told) {
    let kind = NOTICES.iter().find(|(what, _)| *what == told).map_or(0, |(_, kind)| *kind);
    let mask = controller.values(|values| values.get(features::RESERVATION_MASK, namespace));
    if mask & 1 << kind == 0 {
        controller.notice(kind, namespace);
    }
}

/// What a host asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// This.
    Order {
        /// What.
        order: Order,
        /// Whether it leaves it as it is that all outlives a restart, or does not. How that is shows only when it has
        /// its turn.
        leaves: bool,
    },
    /// All outlives a restart, or does not.
    Persistence(bool),
}

impl Wanted {
    /// All that the order says.
    #[must_use]
    pub fn all(order: Order) -> Self {
        Self::Order { order, leaves: false }
    }

    /// What it means to reservations that are so.
    fn request(&self, now: &Reservations) -> Request {
        let (mut order, leaves) = match self {
            Self::Order { order, leaves } => (order.clone(), *leaves),
            Self::Persistence(outlives) => return Request::Outlive(*outlives),
        };
        if let Action::Register { outlives, .. } = &mut order.action
            && leaves
        {
            *outlives = now.outlives();
        }
        Request::Persistent(order)
    }
}

/// How a command ends whose request is denied.
fn refuse(denial: Denial) -> Refusal {
    let status = match denial {
        Denial::Conflict => Status::RESERVATION_CONFLICT,
        Denial::NoRoom => Status::CAPACITY,
        _ => Status::INVALID_FIELD,
    };
    status.into()
}

impl Subsystem {
    /// Carries out what a host asks for. Returns when all cores go by it, and the commands that it ends are gone.
    ///
    /// # Errors
    /// How the command ends that changes nothing.
    pub(crate) async fn reserve(
        &self,
        queue: &Queue,
        task: &Task,
        namespace: &Namespace,
        wanted: &Wanted,
    ) -> Result<(), Refusal> {
        let unit = namespace.unit.id;
        let turn = namespace.shared.turn().await;
        let before = namespace.shared.reservations().clone();
        let (after, news) = before.changed(queue.name(), &wanted.request(&before)).map_err(refuse)?;
        if after == before {
            return Ok(());
        }
        let bytes = after.to_kept().ok_or_else(|| fault::transfer(Fault::NoSpace))?;
        if before.to_kept().as_ref() != Some(&bytes) {
            namespace.unit.keep.keep(RESERVATIONS, bytes).await.map_err(fault::transfer)?;
        }
        *namespace.shared.reservations() = after;
        let news = Arc::new(news);
        self.see_reservations(unit);
        self.everywhere.reservations(unit, news.clone()).await;
        drop(turn);
        self.tell_reservations(unit, &news);
        if news.aborts {
            self.end_all_preempted(task, namespace, news).await;
        }
        Ok(())
    }

    /// Ends the commands of those who were preempted, everywhere. Whoever is aborted meanwhile waits no longer: two who
    /// preempt each other would wait for ever.
    async fn end_all_preempted(&self, task: &Task, namespace: &Namespace, news: Arc<News>) {
        let unit = namespace.unit.id;
        let mut aborted = pin!(task.until_aborted());
        let mut ended = pin!(async {
            self.end_preempted(unit, &news).await;
            self.everywhere.preempted(unit, news.clone()).await;
        });
        poll_fn(|cx| match ended.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => aborted.as_mut().poll(cx),
        })
        .await;
    }
}

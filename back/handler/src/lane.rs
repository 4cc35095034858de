//! The way of the requests of one core to the handler, and of the answers back, for every level.

use crate::queue::{Carried, Ended, Queue};
use crate::shared::{Event, QueueParts, Shared};
use lunar_core::time::Instant;
use lunar_reactor::channel::{Receiver, channel};
use lunar_reactor::watch::Watch;
use lunar_reactor::{Reactor, log};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time between two looks for commands that wait too long, while there are commands.
const TICK: Duration = Duration::from_millis(100);

/// The state of every level.
pub(crate) struct Common<R> {
    pub(crate) reactor: Reactor,
    pub(crate) shared: Arc<Shared>,
    /// The queue, if there is a handler.
    pub(crate) queue: RefCell<Option<Queue<R>>>,
    /// Commands that wait for a handler, or for room in the queue: as many as there are slots of fronts at most.
    pub(crate) waiting: RefCell<VecDeque<R>>,
    /// Whether a task looks for commands that wait too long.
    is_ticking: Cell<bool>,
    /// Since when no handler takes commands, because none is connected or it is late.
    unserved_since: Cell<Option<Instant>>,
}

impl<R> Common<R> {
    pub(crate) fn new(reactor: &Reactor, shared: &Arc<Shared>) -> Self {
        Self {
            reactor: reactor.clone(),
            shared: shared.clone(),
            queue: RefCell::default(),
            waiting: RefCell::default(),
            is_ticking: Cell::default(),
            unserved_since: Cell::default(),
        }
    }

    /// Before that time, `patience` was not over.
    pub(crate) fn before(&self, patience: Duration) -> Instant {
        self.reactor.now() - patience
    }

    /// Removes the requests that wait and for which `is_over` returns true.
    pub(crate) fn take_waiting(&self, is_over: impl Fn(&R) -> bool) -> VecDeque<R> {
        let mut waiting = self.waiting.borrow_mut();
        let (over, left) = std::mem::take(&mut *waiting).into_iter().partition(is_over);
        *waiting = left;
        over
    }

    /// Removes the requests that have waited too long for a handler. A handler that takes commands has no room for them
    /// as long as others do not fail. `since` says when a request began to wait, from the time when there was none.
    pub(crate) fn take_unserved(&self, since: impl Fn(&R, Instant) -> Instant) -> VecDeque<R> {
        if self.queue.borrow().is_some() && !self.shared.is_late() {
            self.unserved_since.set(None);
            return VecDeque::new();
        }
        let begun = self.unserved_since.get().unwrap_or_else(|| self.reactor.now());
        self.unserved_since.set(Some(begun));
        let limit = self.before(self.shared.restart_time());
        self.take_waiting(|request| since(request, begun) < limit)
    }
}

impl<R: Carried> Common<R> {
    /// Takes the requests from the handler that it has not answered in time, and counts them.
    pub(crate) fn take_late(&self, is_late: impl Fn(&R, Instant) -> bool) -> Vec<R> {
        let late = self.queue.borrow_mut().as_mut().map(|queue| queue.take_late(is_late)).unwrap_or_default();
        if !late.is_empty() {
            let (name, count) = (self.shared.unit().name, late.len());
            log!(
                warning,
                "volume {name}: the handler has not answered {count} commands in time, and gets no others meanwhile"
            );
            late.iter().for_each(|_| self.shared.add_late());
            self.shared.counts.timed_out.fetch_add(count as u64, Ordering::Relaxed);
        }
        late
    }

    /// Whether there is no request here.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.borrow().is_empty() && !self.queue.borrow().as_ref().is_some_and(Queue::is_busy)
    }
}

/// The requests of one core at one level.
pub(crate) trait Lane: Sized + 'static {
    /// A request.
    type Request: Carried;

    /// The state of every level.
    fn common(&self) -> &Common<Self::Request>;

    /// Submits requests that wait, as many as there is room for.
    fn submit_waiting(&self);

    /// Ends a request that the handler has answered.
    fn finish(&self, ended: Ended<Self::Request>);

    /// The handler has gone without an answer to these requests.
    fn end_unanswered(&self, requests: Vec<Self::Request>);

    /// Ends the requests that wait too long, for an answer or for a handler.
    fn give_up_late(&self);

    /// Adds the lane to those of the volume; returns the number of its port.
    fn connect(lane: &Rc<Self>) -> u32
    where
        Self: Watch,
    {
        let Common { reactor, shared, .. } = lane.common();
        let watch: Rc<dyn Watch> = lane.clone();
        reactor.watch(&watch);
        let (sender, events) = channel(reactor);
        let port = shared.add_port(Self::Request::LEVEL, sender);
        reactor.spawn(follow(Rc::downgrade(lane), events));
        port
    }

    /// Sees to it that requests do not wait too long.
    fn tick(lane: &Rc<Self>) {
        if !lane.common().is_ticking.replace(true) {
            lane.common().reactor.spawn(tick(Rc::downgrade(lane), lane.common().reactor.clone()));
        }
    }

    /// There is a handler.
    fn attach(&self, parts: QueueParts) {
        let Common { reactor, shared, .. } = self.common();
        let generation = parts.generation;
        match Queue::new(reactor, parts) {
            Ok(queue) => {
                let kick = queue.kick().clone();
                *self.common().queue.borrow_mut() = Some(queue);
                self.common().unserved_since.set(None);
                // A signal makes the core turn, and the watch looks.
                reactor.spawn(async move { while kick.signalled().await.is_ok() {} });
                self.submit_waiting();
            }
            Err(why) => {
                log!(error, "volume {}: a queue of its handler cannot be mapped: {why}", shared.unit().name);
                shared.fail(generation, format!("Lunar cannot map its queue: {why}"));
            }
        }
    }

    /// There is no handler any more. Answers that it gave before count.
    fn lose(&self) {
        self.take_answers();
        let queue = self.common().queue.borrow_mut().take();
        self.drop_queue(queue);
    }

    /// The core closes the volume.
    fn close(&self) {
        self.take_answers();
        let queue = self.common().queue.borrow_mut().take();
        if let Some(late) = queue.as_ref().filter(|queue| queue.late > 0) {
            // Without the queue, no core sees when the handler has executed those commands.
            let why = format!("it did not answer {} commands of a core that closes the volume", late.late);
            self.common().shared.fail(late.generation, why);
        }
        self.drop_queue(queue);
    }

    /// Ends the requests of a queue.
    fn drop_queue(&self, queue: Option<Queue<Self::Request>>) {
        let Some(mut queue) = queue else { return };
        self.common().shared.orphan_late(queue.generation, queue.late);
        let unanswered = queue.take_unanswered();
        drop(queue);
        self.end_unanswered(unanswered);
    }

    /// Takes the answers that are there; returns whether there were any.
    fn take_answers(&self) -> bool {
        let common = self.common();
        let mut found = false;
        loop {
            let mut queue = common.queue.borrow_mut();
            let Some(open) = queue.as_mut() else { return found };
            let ended = match open.take() {
                Ok(Some(ended)) => ended,
                Ok(None) => return found,
                Err(why) => {
                    // The queue is not looked at any more.
                    let broken = queue.take();
                    drop(queue);
                    let generation = broken.as_ref().map_or(0, |queue| queue.generation);
                    self.drop_queue(broken);
                    common.shared.fail(generation, why.to_string());
                    return true;
                }
            };
            drop(queue);
            found = true;
            self.finish(ended);
        }
    }

    /// As [`Watch::wants_poll`].
    fn has_answers(&self) -> bool {
        self.common().queue.borrow().as_ref().is_some_and(Queue::has_answers)
    }

    /// As [`Watch::look`].
    fn look_once(&self) -> bool {
        let queue = &self.common().queue;
        if let Some(queue) = queue.borrow_mut().as_mut() {
            queue.rise();
        }
        let found = self.take_answers();
        if found {
            self.submit_waiting();
        }
        if let Some(queue) = queue.borrow_mut().as_mut() {
            queue.wake_handler();
        }
        found
    }

    /// As [`Watch::prepare_sleep`].
    fn may_sleep(&self) -> bool {
        self.common().queue.borrow_mut().as_mut().is_none_or(Queue::may_sleep)
    }
}

/// Follows the control thread.
async fn follow<L: Lane>(lane: Weak<L>, mut events: Receiver<Event>) {
    while let Some(event) = events.recv().await {
        let Some(lane) = lane.upgrade() else { return };
        match event {
            Event::Attached(parts) => lane.attach(*parts),
            Event::Lost(generation) => {
                let is_it = lane.common().queue.borrow().as_ref().is_some_and(|queue| queue.generation == generation);
                if is_it {
                    lane.lose();
                }
            }
            Event::Resume => lane.submit_waiting(),
        }
    }
}

/// Looks for commands that wait too long, as long as there are commands.
async fn tick<L: Lane>(lane: Weak<L>, reactor: Reactor) {
    loop {
        reactor.sleep(TICK).await;
        let Some(lane) = lane.upgrade() else { return };
        lane.give_up_late();
        if lane.common().is_idle() {
            return lane.common().is_ticking.set(false);
        }
    }
}

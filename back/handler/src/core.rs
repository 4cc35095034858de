//! The commands of one core.

use crate::queue::{Ended, Queue, Request, TRANSFER_MAX, Taken};
use crate::shared::{Event, QueueParts, Shared};
use lunar_core::io::{Data, Done, Extent, Fault, Io, Op, Outcome, Store, Traits};
use lunar_handler::wire::Status;
use lunar_reactor::channel::{Receiver, channel};
use lunar_reactor::watch::Watch;
use lunar_reactor::{Reactor, log};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time between two looks for commands that wait too long, while there are commands.
const TICK: Duration = Duration::from_millis(100);

/// A store on one core.
pub(crate) struct HandlerStore {
    core: Rc<Core>,
    traits: Traits,
    /// Every write is durable.
    writes_through: bool,
    port: u32,
    /// The thread ends with the last store.
    volume: Arc<crate::volume::Lifetime>,
}

impl HandlerStore {
    pub(crate) fn open(
        reactor: &Reactor,
        volume: &Arc<crate::volume::Lifetime>,
        traits: Traits,
        writes_through: bool,
    ) -> Self {
        let shared = volume.shared();
        let core = Rc::new_cyclic(|own| Core {
            reactor: reactor.clone(),
            own: own.clone(),
            shared: shared.clone(),
            queue: RefCell::default(),
            waiting: RefCell::default(),
            is_ticking: Cell::default(),
        });
        let watch: Rc<dyn Watch> = core.clone();
        reactor.watch(&watch);
        let (sender, events) = channel(reactor);
        let port = shared.add_port(sender);
        reactor.spawn(follow(Rc::downgrade(&core), events));
        Self { core, traits, writes_through, port, volume: volume.clone() }
    }

    /// The request as a handler gets it; the fault if it gets none.
    fn prepared(&self, io: &mut Io) -> Result<(), Fault> {
        if !io.within(self.traits.size) {
            return Err(Fault::OUT_OF_RANGE);
        }
        if io.data.len() > TRANSFER_MAX {
            return Err(Fault::NoMemory);
        }
        match (&mut io.op, &io.data) {
            (Op::Read, Data::In(_)) | (Op::Flush | Op::Zero { .. } | Op::Extent { .. }, _) => Ok(()),
            (Op::Write { durable }, Data::Out(_)) => {
                *durable |= self.writes_through;
                Ok(())
            }
            (Op::Unmap { .. }, _) if self.traits.unmap_granularity > 0 => Ok(()),
            _ => Err(Fault::Unsupported),
        }
    }
}

impl Store for HandlerStore {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn submit(&self, mut io: Io, done: Done) {
        if let Err(fault) = self.prepared(&mut io) {
            return done.complete(Outcome::with(Err(fault), io.data));
        }
        if let Op::Extent { len } = io.op {
            // Handlers do not say which bytes have space: all count as mapped.
            let extent = Extent { len, mapped: true };
            return done.complete(Outcome { extent, ..Outcome::with(Ok(0), io.data) });
        }
        let shared = &self.core.shared;
        let has_nothing_to_do = if io.op == Op::Flush { shared.is_flushed() } else { io.bytes() == 0 };
        if has_nothing_to_do {
            return done.complete(Outcome::with(Ok(0), io.data));
        }
        let (since, changes) = (self.core.reactor.now(), shared.changes());
        self.core.start(Request { io, done, since, changes, is_kept: false });
    }
}

impl Drop for HandlerStore {
    fn drop(&mut self) {
        self.core.take_answers();
        let queue = self.core.queue.borrow_mut().take();
        if let Some(late) = queue.as_ref().filter(|queue| queue.late > 0) {
            // Without the queue, no core sees when the handler has executed those commands.
            let why = format!("it did not answer {} commands of a core that closes the volume", late.late);
            self.volume.shared().fail(late.generation, why);
        }
        self.core.keep_unanswered(queue);
        self.volume.shared().remove_port(self.port);
    }
}

/// The commands of one core, and its queue if there is a handler.
struct Core {
    reactor: Reactor,
    own: Weak<Self>,
    shared: Arc<Shared>,
    queue: RefCell<Option<Queue>>,
    /// Commands that wait for a handler, or for room in the queue: as many as there are slots of fronts at most.
    waiting: RefCell<VecDeque<Request>>,
    /// Whether a task looks for commands that wait too long.
    is_ticking: Cell<bool>,
}

/// Follows the control thread.
async fn follow(core: Weak<Core>, mut events: Receiver<Event>) {
    while let Some(event) = events.recv().await {
        let Some(core) = core.upgrade() else { return };
        match event {
            Event::Attached(parts) => core.attach(*parts),
            Event::Lost(generation) => {
                let is_it = core.queue.borrow().as_ref().is_some_and(|queue| queue.generation == generation);
                if is_it {
                    core.lose();
                }
            }
            Event::Resume => core.submit_waiting(),
        }
    }
}

/// Looks for commands that wait too long, as long as there are commands.
async fn tick(core: Weak<Core>, reactor: Reactor) {
    loop {
        reactor.sleep(TICK).await;
        let Some(core) = core.upgrade() else { return };
        if !core.give_up_late() {
            return core.is_ticking.set(false);
        }
    }
}

impl Core {
    fn start(&self, request: Request) {
        self.waiting.borrow_mut().push_back(request);
        if !self.is_ticking.replace(true) {
            self.reactor.spawn(tick(self.own.clone(), self.reactor.clone()));
        }
        self.submit_waiting();
    }

    fn attach(&self, parts: QueueParts) {
        let generation = parts.generation;
        match Queue::new(&self.reactor, parts) {
            Ok(queue) => {
                let kick = queue.kick().clone();
                *self.queue.borrow_mut() = Some(queue);
                // A signal makes the core turn, and the watch looks.
                self.reactor.spawn(async move { while kick.signalled().await.is_ok() {} });
                self.submit_waiting();
            }
            Err(why) => {
                log!(error, "volume {}: a queue of its handler cannot be mapped: {why}", self.shared.unit().name);
                self.shared.fail(generation, format!("Lunar cannot map its queue: {why}"));
            }
        }
    }

    /// There is no handler any more. Answers that it gave before count; commands without one wait for another handler.
    fn lose(&self) {
        self.take_answers();
        let queue = self.queue.borrow_mut().take();
        self.keep_unanswered(queue);
    }

    /// Keeps the commands of a queue for the next handler, before those that came later.
    fn keep_unanswered(&self, queue: Option<Queue>) {
        let Some(mut queue) = queue else { return };
        self.shared.orphan_late(queue.generation, queue.late);
        let unanswered = queue.take_unanswered();
        self.shared.counts.replayed.fetch_add(unanswered.len() as u64, Ordering::Relaxed);
        let now = self.reactor.now();
        let mut waiting = self.waiting.borrow_mut();
        for request in unanswered.into_iter().rev() {
            // A handler that ends again and again does not renew the time.
            let since = if request.is_kept { request.since } else { now };
            waiting.push_front(Request { since, is_kept: true, ..request });
        }
    }

    /// Submits commands that wait, as many as there is room for.
    fn submit_waiting(&self) {
        if self.shared.is_late() {
            return;
        }
        let [timeout, _] = self.shared.patience();
        let milliseconds = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let now = self.reactor.now();
        let mut refused = Vec::new();
        {
            let (mut queue, mut waiting) = (self.queue.borrow_mut(), self.waiting.borrow_mut());
            let Some(queue) = queue.as_mut() else { return };
            while let Some(request) = waiting.pop_front() {
                if !queue.has(request.io.op) {
                    refused.push(request);
                    continue;
                }
                if let Some(request) = queue.submit(request, now, milliseconds) {
                    waiting.push_front(request);
                    break;
                }
            }
        }
        refused.into_iter().for_each(|request| end(request, Err(Fault::Unsupported)));
    }

    /// Takes the answers that are there; returns whether there were any.
    fn take_answers(&self) -> bool {
        let mut found = false;
        loop {
            let mut queue = self.queue.borrow_mut();
            let Some(open) = queue.as_mut() else { return found };
            let ended = match open.take() {
                Ok(Some(ended)) => ended,
                Ok(None) => return found,
                Err(why) => {
                    // The queue is not looked at any more.
                    let broken = queue.take();
                    drop(queue);
                    let generation = broken.as_ref().map_or(0, |queue| queue.generation);
                    self.keep_unanswered(broken);
                    self.shared.fail(generation, why.to_string());
                    return true;
                }
            };
            drop(queue);
            found = true;
            self.finish(ended);
        }
    }

    fn finish(&self, ended: Ended) {
        match ended.taken {
            Taken::Late(_) => {
                self.shared.add_change();
                self.shared.end_late(1);
            }
            Taken::InProgress { request, .. } => {
                match (request.io.op, ended.answer.status) {
                    (Op::Write { .. } | Op::Unmap { .. } | Op::Zero { .. }, _) => self.shared.add_change(),
                    (Op::Flush, Status::GOOD) => self.shared.end_flush(request.changes),
                    _ => {}
                }
                let result = match ended.answer.status {
                    // Steps move less than 4 GiB at a time.
                    Status::GOOD => Ok(request.io.data.len() as u32),
                    Status::MEDIUM_ERROR => Err(Fault::Medium),
                    Status::NO_SPACE => Err(Fault::NoSpace),
                    Status::UNSUPPORTED => Err(Fault::Unsupported),
                    Status::NOT_READY => Err(Fault::NotReady),
                    _ => Err(Fault::Os(Errno::REMOTEIO.raw_os_error())),
                };
                end(request, result);
            }
        }
    }

    /// Ends the commands that wait too long, for an answer or for a handler; returns whether there are any others.
    fn give_up_late(&self) -> bool {
        let [timeout, restart] = self.shared.patience();
        let now = self.reactor.now();
        let before = |patience: Duration| now - patience;
        let late = self.queue.borrow_mut().as_mut().map(|queue| queue.take_late(before(timeout))).unwrap_or_default();
        if !late.is_empty() {
            let name = self.shared.unit().name;
            let count = late.len();
            log!(
                warning,
                "volume {name}: the handler has not answered {count} commands in time, and gets no others meanwhile"
            );
            late.iter().for_each(|_| self.shared.add_late());
            self.shared.counts.timed_out.fetch_add(count as u64, Ordering::Relaxed);
        }
        late.into_iter().for_each(|request| end(request, Err(Fault::Timeout)));
        let limit = before(restart);
        let mut waiting = self.waiting.borrow_mut();
        let (over, left): (VecDeque<_>, _) =
            std::mem::take(&mut *waiting).into_iter().partition(|request| request.since < limit);
        *waiting = left;
        let is_idle = waiting.is_empty();
        drop(waiting);
        over.into_iter().for_each(|request| end(request, Err(Fault::NotReady)));
        !is_idle || self.queue.borrow().as_ref().is_some_and(Queue::is_busy)
    }
}

fn end(request: Request, result: Result<u32, Fault>) {
    request.done.complete(Outcome::with(result, request.io.data));
}

impl Watch for Core {
    fn wants_poll(&self) -> bool {
        self.queue.borrow().as_ref().is_some_and(Queue::has_answers)
    }

    fn look(&self) -> bool {
        if let Some(queue) = self.queue.borrow_mut().as_mut() {
            queue.rise();
        }
        let found = self.take_answers();
        if found {
            self.submit_waiting();
        }
        if let Some(queue) = self.queue.borrow_mut().as_mut() {
            queue.wake_handler();
        }
        found
    }

    fn prepare_sleep(&self) -> bool {
        self.queue.borrow_mut().as_mut().is_none_or(Queue::may_sleep)
    }
}

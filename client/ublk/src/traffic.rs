//! Requests of the kernel on their way to Lunar and back, through rings in shared memory. The rings are looked at in
//! every turn of the core; Lunar notifies only while it sleeps.

use crate::error::{ServerError, SessionError};
use crate::session::{Descriptors, Session};
use lunar_blk::{Code, Error};
use lunar_core::io::Data;
use lunar_core::mem::{Region, SgMut};
use lunar_core::time::Instant;
use lunar_guest::memory::LossWatch;
use lunar_reactor::end::End;
use lunar_reactor::shared::{is_lost, losses};
use lunar_reactor::unix::{Kick, Signal};
use lunar_reactor::watch::Watch;
use lunar_reactor::{Reactor, log, shared};
use lunar_vhost_client::Defect;
use lunar_vhost_client::blk::{DiskAnswer, DiskLane, DiskRequest};
use lunar_vhost_client::lane::Answer;
use lunar_vhost_client::layout::Layout;
use rustix::event::{EventfdFlags, eventfd};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{pending, poll_fn};
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// How often requests are looked at whose time may be over.
const LOOK: Duration = Duration::from_secs(1);

/// The connection, as requests see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// There is none: requests wait.
    Down,
    /// Its volume is being asked for its UUID: requests wait.
    Asking,
    /// Requests are sent.
    Up,
}

/// A queue.
struct Queue {
    lane: RefCell<DiskLane>,
    kick: Signal,
    is_kick_due: Cell<bool>,
    /// The tasks that wait for answers, by their slots.
    waiting: RefCell<Vec<Option<Waker>>>,
}

/// The requests of a disk.
pub struct Traffic {
    reactor: Reactor,
    name: String,
    layout: Layout,
    memory: Region,
    losses: LossWatch,
    /// The memory is not shared any more.
    memory_lost: End,
    descriptors: Descriptors,
    queues: Vec<Queue>,
    call: Kick,
    phase: Cell<Phase>,
    /// Why the connection has to end.
    defect: Cell<Option<Defect>>,
    /// The end of the connection, for those who wait for it.
    lost: RefCell<Rc<End>>,
    /// Whether Lunar was asked to notify.
    is_armed: Cell<bool>,
    is_stuck: Cell<bool>,
    has_given_up: Cell<bool>,
    /// Memory for data that is not used, once requests are not carried any more.
    spare: RefCell<Option<Region>>,
    over: End,
}

impl fmt::Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Traffic({}, {:?})", self.name, self.phase.get())
    }
}

fn event() -> io::Result<std::os::fd::OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

impl Traffic {
    /// The rings and the memory of a disk, whose requests have data in pieces of at most `piece` bytes, and fail after
    /// `patience`.
    ///
    /// # Errors
    /// [`ServerError::Memory`].
    pub fn new(
        reactor: &Reactor,
        name: &str,
        (layout, piece): (Layout, usize),
        patience: Option<Duration>,
    ) -> Result<Rc<Self>, ServerError> {
        let (file, memory) = shared::share("lunar-ublk", layout.len()).map_err(ServerError::Memory)?;
        let mut descriptors =
            Descriptors { memory: file, kicks: Vec::new(), call: event().map_err(ServerError::Memory)? };
        let mut queues = Vec::new();
        for number in 0..layout.queues() {
            let kick = event().map_err(ServerError::Memory)?;
            let own = kick.try_clone().and_then(|kick| Signal::new(reactor, kick)).map_err(ServerError::Memory)?;
            let lane = DiskLane::new(&memory, &layout, number, piece).ok_or(ServerError::TooMany)?;
            descriptors.kicks.push(kick);
            let waiting = RefCell::new(vec![None; layout.slots().into()]);
            queues.push(Queue { lane: RefCell::new(lane), kick: own, is_kick_due: Cell::new(false), waiting });
        }
        let call = descriptors.call.try_clone().and_then(|call| Kick::new(reactor, call));
        let traffic = Rc::new(Self {
            reactor: reactor.clone(),
            name: name.to_owned(),
            layout,
            memory,
            losses: LossWatch::new(losses()),
            memory_lost: End::default(),
            descriptors,
            queues,
            call: call.map_err(ServerError::Memory)?,
            phase: Cell::new(Phase::Down),
            defect: Cell::new(None),
            lost: RefCell::default(),
            is_armed: Cell::new(true),
            is_stuck: Cell::new(false),
            has_given_up: Cell::new(false),
            spare: RefCell::default(),
            over: End::default(),
        });
        let watch: Rc<dyn Watch> = traffic.clone();
        reactor.watch(&watch);
        let woken = traffic.clone();
        // The turn in which the core wakes looks at the rings.
        reactor.spawn(async move { while woken.call.signalled().await.is_ok() {} });
        if let Some(patience) = patience {
            let late = traffic.clone();
            reactor.spawn(async move { late.let_expire(patience).await });
        }
        Ok(traffic)
    }

    /// The layout of the memory.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The memory of a slot, for the kernel.
    #[must_use]
    pub fn data(&self, queue: u16, slot: u16) -> Data {
        self.part(&self.memory, self.layout.place(queue, slot).data)
    }

    fn part(&self, memory: &Region, place: usize) -> Data {
        let mut data = SgMut::default();
        memory.buf(place, self.layout.buffer()).into_iter().for_each(|buf| data.push(buf));
        Data::In(data)
    }

    /// Memory for the data of requests that are not carried any more.
    #[must_use]
    pub fn spare(&self) -> Data {
        let mut spare = self.spare.borrow_mut();
        let spare = spare.get_or_insert_with(|| Region::zeroed(self.layout.buffer()));
        self.part(spare, 0)
    }

    /// Requests are not carried any more: those in progress expire, and others fail at once.
    pub fn give_up(&self) {
        self.has_given_up.set(true);
        let now = self.reactor.now();
        for queue in &self.queues {
            queue.lane.borrow_mut().expire(now, Duration::ZERO, |slot| queue.wake(slot));
        }
    }

    /// Ends when the memory is not shared with Lunar any more, because a page of it is broken or was not to be had. No
    /// request is answered from then on: what is in the memory did not come from Lunar.
    pub async fn memory_lost(&self) {
        self.memory_lost.unless(pending::<()>()).await;
    }

    fn has_lost_memory(&self) -> bool {
        if self.losses.is_new(losses()) && is_lost([&self.memory].into_iter()) {
            self.phase.set(Phase::Down);
            self.memory_lost.come();
        }
        self.memory_lost.has_come()
    }

    /// Starts the rings in a connection, and asks for the UUID of its volume. Requests still wait.
    ///
    /// # Errors
    /// Why the connection cannot be used.
    pub async fn begin(&self, session: &Session) -> Result<[u8; 16], SessionError> {
        if self.has_lost_memory() {
            return Err(SessionError::Memory);
        }
        // Lunar accepts a connection after it has ended all that belongs to the one before.
        self.queues.iter().for_each(|queue| queue.lane.borrow_mut().restart());
        let lost = Rc::new(End::default());
        *self.lost.borrow_mut() = lost.clone();
        self.defect.set(None);
        self.is_armed.set(true);
        session.start(&self.layout, &self.descriptors).await?;
        self.phase.set(Phase::Asking);
        let asking = lost.unless(self.identify());
        // The end of the connection is noticed here, because nothing is received meanwhile otherwise.
        let ending = async {
            let why = match session.reply().await {
                Ok(_) => SessionError::Defect(Defect::Message),
                Err(why) => why,
            };
            Err(why)
        };
        let answer = either(asking, ending).await?;
        answer.unwrap_or_else(|| Err(self.defect.get().unwrap_or(Defect::Ring).into()))
    }

    async fn identify(&self) -> Result<[u8; 16], SessionError> {
        let (queue, slot) = (&self.queues[0], self.layout.last());
        let request = DiskRequest { code: Code::Identify, offset: 0, len: 0, unmap: false };
        // The question of a connection before this one may still be there.
        let _ = queue.lane.borrow_mut().begin(slot, &request, self.reactor.now());
        if queue.lane.borrow_mut().send_first(slot) {
            queue.is_kick_due.set(true);
        }
        match self.answer(0, slot).await {
            Answer::Ended(Ok(())) => queue.lane.borrow().uuid(slot).ok_or(SessionError::Defect(Defect::NoUuid)),
            _ => Err(SessionError::Closed),
        }
    }

    /// Sends requests from now on.
    pub fn go_up(&self) {
        self.phase.set(Phase::Up);
    }

    /// The connection was lost, or is given up: requests wait for the next one.
    pub fn go_down(&self) {
        self.phase.set(Phase::Down);
        self.queues.iter().for_each(|queue| queue.lane.borrow_mut().lose());
    }

    /// The outcome of `future`, unless the back-end breaks the rules of the rings first.
    pub async fn unless_broken<T>(&self, future: impl Future<Output = T>) -> Result<T, SessionError> {
        let lost = self.lost.borrow().clone();
        let outcome = lost.unless(future).await;
        outcome.ok_or_else(|| self.defect.get().unwrap_or(Defect::Ring).into())
    }

    /// Nothing is carried any more.
    pub fn end(&self) {
        self.go_down();
        self.over.come();
        self.call.cancel();
    }

    /// Whether a slot can have a request.
    #[must_use]
    pub fn is_free(&self, queue: u16, slot: u16) -> bool {
        self.queues.get(usize::from(queue)).is_some_and(|queue| queue.lane.borrow().is_free(slot))
    }

    /// Carries a request in a slot that is free to its answer; it has begun at `since`.
    pub async fn carry(&self, queue: u16, slot: u16, request: &DiskRequest, since: Instant) -> DiskAnswer {
        let begin = || self.queues[usize::from(queue)].lane.borrow_mut().begin(slot, request, since);
        if self.has_given_up.get() || !begin() {
            return Answer::Ended(Err(Error::IoError));
        }
        self.answer(queue, slot).await
    }

    async fn answer(&self, queue: u16, slot: u16) -> DiskAnswer {
        let queue = &self.queues[usize::from(queue)];
        poll_fn(|cx| match queue.lane.borrow_mut().take(slot) {
            Some(answer) if !self.has_lost_memory() => Poll::Ready(answer),
            _ => {
                if let Some(waiting) = queue.waiting.borrow_mut().get_mut(usize::from(slot)) {
                    *waiting = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        })
        .await
    }

    /// Requests that have no answer yet.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.queues.iter().map(|queue| queue.lane.borrow().unanswered()).sum()
    }

    /// Whether a request is abandoned: then no other one is sent, because it could be overtaken.
    fn has_abandoned(&self) -> bool {
        self.queues.iter().any(|queue| queue.lane.borrow().abandoned() > 0)
    }

    /// Lets requests fail that have taken too long.
    async fn let_expire(&self, patience: Duration) {
        while self.over.unless(self.reactor.sleep(LOOK)).await.is_some() {
            let now = self.reactor.now();
            let late: usize = self
                .queues
                .iter()
                .map(|queue| queue.lane.borrow_mut().expire(now, patience, |slot| queue.wake(slot)))
                .sum();
            let is_cut_off = self.has_abandoned() || self.phase.get() != Phase::Up;
            let is_stuck = late > 0 || (self.is_stuck.get() && is_cut_off);
            if is_stuck && !self.is_stuck.get() {
                log!(
                    error,
                    "ublk {}: Lunar has not answered for {} s: requests fail from now on, because the kernel would \
                     kill this process, which has no privileges, after 30 s",
                    self.name,
                    patience.as_secs()
                );
            } else if !is_stuck && self.is_stuck.get() {
                log!("ublk {}: Lunar answers again", self.name);
            }
            self.is_stuck.set(is_stuck);
        }
    }

    /// Takes the answers of a queue; returns whether there were any.
    fn collect(&self, queue: &Queue) -> bool {
        match queue.lane.borrow_mut().collect(|slot| queue.wake(slot)) {
            Ok(count) => count > 0,
            Err(why) => {
                self.defect.set(Some(why));
                self.phase.set(Phase::Down);
                self.lost.borrow().come();
                true
            }
        }
    }

    /// Sends the requests of a queue that wait; returns whether there were any.
    fn send(&self, queue: &Queue) -> bool {
        let mut lane = queue.lane.borrow_mut();
        if !lane.has_waiting() {
            return false;
        }
        if lane.send() {
            queue.is_kick_due.set(true);
        }
        true
    }
}

impl Queue {
    fn wake(&self, slot: u16) {
        let waker = self.waiting.borrow_mut().get_mut(usize::from(slot)).and_then(Option::take);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Watch for Traffic {
    fn wants_poll(&self) -> bool {
        self.phase.get() != Phase::Down
            && self.queues.iter().any(|queue| queue.is_kick_due.get() || queue.lane.borrow().has_answers())
    }

    fn look(&self) -> bool {
        if self.has_lost_memory() || self.phase.get() == Phase::Down {
            return false;
        }
        let mut has_worked = false;
        for queue in &self.queues {
            has_worked |= self.collect(queue);
        }
        let may_send = self.phase.get() == Phase::Up && !self.has_abandoned();
        for queue in &self.queues {
            has_worked |= may_send && self.send(queue);
            if queue.is_kick_due.get() && queue.kick.ring() {
                queue.is_kick_due.set(false);
            }
        }
        if has_worked && self.is_armed.replace(false) {
            self.queues.iter().for_each(|queue| _ = queue.lane.borrow().ask_to_notify(false));
        }
        has_worked
    }

    fn prepare_sleep(&self) -> bool {
        if self.phase.get() == Phase::Down {
            return true;
        }
        self.is_armed.set(true);
        // All are asked, whatever the first one has.
        let quiet = self.queues.iter().filter(|queue| queue.lane.borrow().ask_to_notify(true)).count();
        quiet == self.queues.len() && !self.queues.iter().any(|queue| queue.is_kick_due.get())
    }
}

/// The outcome of the first of two futures that ends.
async fn either<T, E>(first: impl Future<Output = T>, second: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
    poll_fn(|cx| match first.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Ok(value)),
        Poll::Pending => second.as_mut().poll(cx),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_reactor::{Choice, Config};

    #[test]
    fn no_request_is_answered_from_memory_that_was_lost() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let layout = Layout::new(1, 2, 4096).expect("a small one");
        let [traffic, other] = [0, 1].map(|_| Traffic::new(&reactor, "test", (layout, 4096), None).expect("memory"));
        let answered = Rc::new(Cell::new(None));
        for (slot, traffic) in [(0, traffic.clone()), (1, other.clone())] {
            let request = DiskRequest { code: Code::Read, offset: 0, len: 4096, unmap: false };
            let (answered, now) = (answered.clone(), reactor.now());
            reactor.spawn(async move {
                traffic.carry(0, slot, &request, now).await;
                answered.set(Some(slot));
            });
        }
        let lost = Rc::new(Cell::new(false));
        let (watched, told) = (traffic.clone(), lost.clone());
        reactor.spawn(async move {
            watched.memory_lost().await;
            told.set(true);
        });
        reactor.run(reactor.sleep(Duration::from_millis(5)));
        shared::lose(&traffic.memory);
        reactor.run(reactor.sleep(Duration::from_millis(5)));
        assert!(lost.get() && !other.has_lost_memory());
        traffic.give_up();
        other.give_up();
        reactor.run(reactor.sleep(Duration::from_millis(5)));
        assert_eq!(answered.get(), Some(1), "that of the other memory");
        traffic.end();
        other.end();
    }
}

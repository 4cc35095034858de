//! The turns of the nexuses of a port. The nexus of a login begins when all nexuses of the same name have ended, and of
//! several logins of one name that wait for that, the last one is decided about.

use lunar_reactor::Reactor;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The turns of the nexuses of a port: `N` is the name of an initiator, `C` a connection.
pub struct NexusTurns<N, C> {
    names: RefCell<BTreeMap<N, Turn<C>>>,
    /// The number of logins that have waited so far.
    logins: Cell<u64>,
    is_closed: Cell<bool>,
}

/// The turn of a name. It is forgotten when no nexus ends and no login waits.
struct Turn<C> {
    /// Nexuses that have not ended.
    ending: usize,
    login: Option<Login<C>>,
    /// Tasks that wait for the end of the nexuses without a login of their own.
    watchers: Vec<Waker>,
}

/// A login that waits.
struct Login<C> {
    number: u64,
    connection: C,
    outcome: Rc<Cell<Option<Outcome>>>,
    waker: Option<Waker>,
}

/// The outcome of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The login has its turn, and is decided about now: what was decided before may be different.
    Turn,
    /// A login of the same name over another connection has taken its place.
    Replaced,
    /// Its connection has ended, or has another login, or the port is closed.
    Cancelled,
}

impl<C> Default for Turn<C> {
    fn default() -> Self {
        Self { ending: 0, login: None, watchers: Vec::new() }
    }
}

impl<C> Turn<C> {
    fn is_over(&self) -> bool {
        self.ending == 0 && self.login.is_none()
    }

    /// Ends the wait of the login.
    fn end_wait(&mut self, outcome: Outcome) {
        let Some(login) = self.login.take() else { return };
        login.outcome.set(Some(outcome));
        login.waker.into_iter().for_each(Waker::wake);
    }
}

/// A nexus that ends, until this is dropped.
struct Ending<N: Ord, C>(Rc<NexusTurns<N, C>>, N);

impl<N: Ord, C> Drop for Ending<N, C> {
    fn drop(&mut self) {
        let mut names = self.0.names.borrow_mut();
        let Some(turn) = names.get_mut(&self.1) else { return };
        turn.ending -= 1;
        if turn.ending > 0 {
            return;
        }
        turn.watchers.drain(..).for_each(Waker::wake);
        turn.login.iter_mut().filter_map(|login| login.waker.take()).for_each(Waker::wake);
        if turn.is_over() {
            names.remove(&self.1);
        }
    }
}

/// The place of a login that waits; dropping it gives the place up.
struct Place<N: Ord, C> {
    turns: Rc<NexusTurns<N, C>>,
    name: N,
    number: u64,
}

impl<N: Ord, C> Drop for Place<N, C> {
    fn drop(&mut self) {
        let mut names = self.turns.names.borrow_mut();
        let Some(turn) = names.get_mut(&self.name) else { return };
        if turn.login.as_ref().is_some_and(|login| login.number == self.number) {
            turn.login = None;
        }
        if turn.is_over() {
            names.remove(&self.name);
        }
    }
}

impl<N, C> Default for NexusTurns<N, C> {
    fn default() -> Self {
        Self { names: RefCell::default(), logins: Cell::default(), is_closed: Cell::default() }
    }
}

impl<N: Ord + Clone + 'static, C: PartialEq + 'static> NexusTurns<N, C> {
    /// A nexus of this name ends with `work`, which begins at once.
    pub fn end(self: &Rc<Self>, reactor: &Reactor, name: N, work: impl Future<Output = ()> + 'static) {
        let ending = self.begin(name);
        let mut work = Box::pin(async move {
            work.await;
            drop(ending);
        });
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            reactor.spawn(work);
        }
    }

    fn begin(self: &Rc<Self>, name: N) -> Ending<N, C> {
        self.names.borrow_mut().entry(name.clone()).or_default().ending += 1;
        Ending(self.clone(), name)
    }

    /// Whether a login of this name has its turn without waiting.
    pub fn is_free(&self, name: &N) -> bool {
        !self.is_closed.get() && !self.names.borrow().contains_key(name)
    }

    /// Waits for the turn of a login over this connection, which has its place when this returns.
    pub fn wait(self: &Rc<Self>, name: N, connection: C) -> impl Future<Output = Outcome> + 'static {
        self.cancel(&connection);
        let outcome = Rc::<Cell<Option<Outcome>>>::default();
        let number = self.logins.get() + 1;
        self.logins.set(number);
        {
            let mut names = self.names.borrow_mut();
            let turn = names.entry(name.clone()).or_default();
            turn.end_wait(Outcome::Replaced);
            turn.login = Some(Login { number, connection, outcome: outcome.clone(), waker: None });
            if self.is_closed.get() {
                turn.end_wait(Outcome::Cancelled);
            }
        }
        let place = Place { turns: self.clone(), name, number };
        poll_fn(move |cx| {
            if let Some(outcome) = outcome.get() {
                return Poll::Ready(outcome);
            }
            match place.turns.names.borrow_mut().get_mut(&place.name) {
                Some(Turn { ending: 1.., login: Some(login), .. }) => {
                    login.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                _ => Poll::Ready(Outcome::Turn),
            }
        })
    }

    /// The connection has ended: a login over it waits no longer.
    pub fn cancel(&self, connection: &C) {
        let is_it = |turn: &Turn<C>| turn.login.as_ref().is_some_and(|login| login.connection == *connection);
        self.names.borrow_mut().retain(|_, turn| {
            if is_it(turn) {
                turn.end_wait(Outcome::Cancelled);
            }
            !turn.is_over()
        });
    }

    /// The port is closed: no login has a turn any more.
    pub fn close(&self) {
        self.is_closed.set(true);
        self.cancel_all();
    }

    /// All connections have ended: no login that waits now has a turn.
    pub fn cancel_all(&self) {
        self.names.borrow_mut().retain(|_, turn| {
            turn.end_wait(Outcome::Cancelled);
            !turn.is_over()
        });
    }

    /// Waits until the nexuses of this name that end now have ended.
    pub async fn until_ended(&self, name: &N) {
        let is_ending = |turn: &&mut Turn<C>| turn.ending > 0;
        poll_fn(|cx| match self.names.borrow_mut().get_mut(name).filter(is_ending) {
            Some(turn) => {
                turn.watchers.push(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        })
        .await;
    }

    /// Waits until all nexuses that end now have ended.
    pub async fn until_all_ended(&self) {
        let names: Vec<N> = self.names.borrow().keys().cloned().collect();
        for name in names {
            self.until_ended(&name).await;
        }
    }
}

impl<N, C> fmt::Debug for NexusTurns<N, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NexusTurns({} names)", self.names.borrow().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};

    type Turns = NexusTurns<u8, u32>;

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_login_waits_for_all_nexuses_of_its_name() {
        let turns = Rc::<Turns>::default();
        let (first, second) = (turns.begin(1), turns.begin(1));
        assert!(!turns.is_free(&1) && turns.is_free(&2));
        let (mut login, mut end) = (Box::pin(turns.wait(1, 10)), pin!(turns.until_all_ended()));
        assert!(poll(login.as_mut()).is_none() && poll(end.as_mut()).is_none());
        drop(first);
        assert!(poll(login.as_mut()).is_none() && poll(end.as_mut()).is_none());
        drop(second);
        assert!(!turns.is_free(&1), "a login that comes now does not overtake the one that waits");
        assert_eq!((poll(end), poll(login.as_mut())), (Some(()), Some(Outcome::Turn)));
        drop(login);
        assert!(turns.is_free(&1));
    }

    #[test]
    fn of_the_logins_of_a_name_the_last_one_has_the_turn() {
        let turns = Rc::<Turns>::default();
        let ending = turns.begin(1);
        let mut one = Box::pin(turns.wait(1, 10));
        assert!(poll(one.as_mut()).is_none());
        let (two, mut three) = (Box::pin(turns.wait(1, 11)), Box::pin(turns.wait(1, 12)));
        assert_eq!((poll(one.as_mut()), poll(three.as_mut())), (Some(Outcome::Replaced), None));
        drop(ending);
        drop((one, two));
        assert_eq!(poll(three.as_mut()), Some(Outcome::Turn));
        drop(three);
        assert!(turns.is_free(&1));
    }

    #[test]
    fn a_connection_that_ends_takes_its_login_along() {
        let turns = Rc::<Turns>::default();
        let endings = [turns.begin(1), turns.begin(2)];
        let (mut one, mut same, mut other) =
            (Box::pin(turns.wait(1, 10)), Box::pin(turns.wait(2, 10)), Box::pin(turns.wait(1, 11)));
        assert_eq!(poll(one.as_mut()), Some(Outcome::Cancelled), "a connection logs in once");
        assert!(poll(same.as_mut()).is_none() && poll(other.as_mut()).is_none());
        turns.cancel(&10);
        assert_eq!((poll(same.as_mut()), poll(other.as_mut())), (Some(Outcome::Cancelled), None));
        drop((other, endings));
        assert!(turns.names.borrow().is_empty());
    }

    #[test]
    fn logins_over_connections_that_have_all_ended_have_no_turn() {
        let turns = Rc::<Turns>::default();
        let ending = turns.begin(1);
        let mut login = Box::pin(turns.wait(1, 10));
        turns.cancel_all();
        assert_eq!(poll(login.as_mut()), Some(Outcome::Cancelled));
        let mut next = Box::pin(turns.wait(1, 11));
        assert!(poll(next.as_mut()).is_none(), "the port takes others");
        drop(ending);
        assert_eq!(poll(next.as_mut()), Some(Outcome::Turn));
    }

    #[test]
    fn a_port_that_is_closed_admits_no_login() {
        let turns = Rc::<Turns>::default();
        let ending = turns.begin(1);
        let mut login = Box::pin(turns.wait(1, 10));
        assert!(poll(login.as_mut()).is_none());
        turns.close();
        assert_eq!(poll(login.as_mut()), Some(Outcome::Cancelled));
        let mut end = pin!(turns.until_all_ended());
        assert!(poll(end.as_mut()).is_none() && !turns.is_free(&2));
        // Logins that come while the nexuses end, and after that.
        for name in [1, 2] {
            assert_eq!(poll(Box::pin(turns.wait(name, 11)).as_mut()), Some(Outcome::Cancelled));
        }
        drop((login, ending));
        assert_eq!(poll(end), Some(()));
        assert_eq!(poll(Box::pin(turns.wait(1, 12)).as_mut()), Some(Outcome::Cancelled));
        assert!(turns.names.borrow().is_empty());
    }

    #[test]
    fn a_login_that_is_dropped_leaves_nothing_behind() {
        let turns = Rc::<Turns>::default();
        let ending = turns.begin(1);
        let mut login = Box::pin(turns.wait(1, 10));
        assert!(poll(login.as_mut()).is_none());
        drop(ending);
        drop(login);
        assert!(turns.is_free(&1));
    }
}

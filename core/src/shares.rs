//! Shares of a bounded resource, so that one peer cannot take all of it from the others: slots of a core, or bytes that
//! peers were asked for.
//!
//! The resource is divided twice by the same rule: among hosts, and the part of a host among its sessions (or queues).
//! A host is what [`crate::pace::host`] says: one IPv4 address, or one IPv6 network. Names do not count here, because a
//! client that is not authenticated may choose any number of names.
//!
//! A member that holds nothing may have less than it asked for, if there is only the reserve ([`Member::take_first`]):
//! so many members find something there.
//!
//! The rule: a host may take more as long as that leaves as much free as the host then holds, and leaves the reserve
//! ([`RESERVE_PART`]). So one host alone has half of the capacity, and two that are busy come to a third each. Of the
//! part of its host, a session may take more as long as that leaves four times as much as the session then holds
//! ([`SESSION_FACTOR`]): hosts are few, and sessions are many. From the reserve, a member may have a sixteenth of
//! what is free ([`RESERVE_FACTOR`]), and a member that holds nothing may have what there is.
//!
//! A session that gets nothing waits with [`Member::wait`], or refuses its request. Waiting sessions are served in
//! turn.

use crate::pace::host;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

/// The reserve is this part of the capacity.
pub const RESERVE_PART: usize = 8;
/// How much a member that takes from the reserve has to leave there, in multiples of its own part: thirty members still
/// find something then.
pub const RESERVE_FACTOR: usize = 16;
/// How much a host has to leave, in multiples of its own part.
pub const HOST_FACTOR: usize = 1;
/// How much a session has to leave of the part of its host, in multiples of its own part: a session alone has a tenth
/// of the capacity.
pub const SESSION_FACTOR: usize = 4;

/// As long as all members together hold no more than this part of the capacity, every request is admitted. The rules
/// follow from that: the host then has at most a sixteenth and leaves fifteen; a session has at most a sixteenth of the
/// capacity, and its host's part, half of what the other hosts leave, has at least six sixteenths free.
const PLENTY_PART: usize = 16;

/// A resource of a core that peers share. Clones are the same resource.
#[derive(Clone)]
pub struct PeerShares(Rc<Pool>);

struct Pool {
    capacity: usize,
    /// The common case, which needs one comparison: see [`PLENTY_PART`].
    plenty: usize,
    held: Cell<usize>,
    /// The hosts that have members. An entry without members is removed when another host joins.
    hosts: RefCell<BTreeMap<IpAddr, Weak<Host>>>,
    /// The members that wait, each once, in the order of their turns.
    waiting: RefCell<VecDeque<Rc<Account>>>,
}

struct Host {
    held: Cell<usize>,
}

struct Account {
    pool: Rc<Pool>,
    host: Rc<Host>,
    held: Cell<usize>,
    waiters: RefCell<VecDeque<Rc<Waiter>>>,
}

struct Waiter {
    amount: usize,
    /// The least that is granted to a member that holds nothing.
    least: usize,
    /// Units that were granted.
    granted: Cell<Option<usize>>,
    waker: Cell<Option<Waker>>,
}

/// Whether a member that holds `held` may take `amount` more of `capacity`, of which all members hold `all`, if it
/// leaves `factor` times what it then holds.
fn admits(held: usize, all: usize, capacity: usize, amount: usize, factor: usize) -> bool {
    if all == 0 {
        // One request at least: a larger one than the capacity would otherwise wait for ever.
        return true;
    }
    let Some(free) = all.checked_add(amount).and_then(|after| capacity.checked_sub(after)) else { return false };
    let after = held + amount;
    let leaves = |factor: usize| after.saturating_mul(factor) <= free;
    held == 0 || leaves(factor) && free >= capacity / RESERVE_PART || leaves(RESERVE_FACTOR)
}

impl PeerShares {
    /// A resource of `capacity` units.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self(Rc::new(Pool {
            capacity,
            plenty: capacity / PLENTY_PART,
            held: Cell::new(0),
            hosts: RefCell::default(),
            waiting: RefCell::default(),
        }))
    }

    /// A new session, or queue, of the host with this address.
    #[must_use]
    pub fn join(&self, source: IpAddr) -> Member {
        let mut hosts = self.0.hosts.borrow_mut();
        let address = host(source);
        let known = hosts.get(&address).and_then(Weak::upgrade);
        let host = known.unwrap_or_else(|| {
            hosts.retain(|_, host| host.strong_count() > 0);
            let host = Rc::new(Host { held: Cell::new(0) });
            hosts.insert(address, Rc::downgrade(&host));
            host
        });
        let pool = self.0.clone();
        Member(Rc::new(Account { pool, host, held: Cell::new(0), waiters: RefCell::default() }))
    }

    /// How many more sessions, or queues, of the host with this address find `amount` units each.
    #[must_use]
    pub fn newcomers(&self, source: IpAddr, amount: usize) -> usize {
        let known = self.0.hosts.borrow().get(&host(source)).and_then(Weak::upgrade);
        let by_host = known.map_or(0, |host| host.held.get());
        let more =
            |count: &usize| count.checked_mul(amount).is_some_and(|more| self.0.admits(by_host, more, (0, amount)));
        (0..self.0.capacity).take_while(more).count()
    }

    /// Units that are taken.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.held.get()
    }

    /// Units in all.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }
}

impl Pool {
    /// Whether `amount` units are granted by the rules to a member that holds `held` units, of a host that holds
    /// `by_host` units, when that host holds `more` units more than now.
    fn admits(&self, by_host: usize, more: usize, (held, amount): (usize, usize)) -> bool {
        let elsewhere = self.held.get() - by_host;
        let by_host = by_host + more;
        // The most that the host may hold.
        let of_host = self.capacity.saturating_sub(elsewhere) / (1 + HOST_FACTOR);
        admits(by_host, elsewhere + by_host, self.capacity, amount, HOST_FACTOR)
            && admits(held, by_host, of_host, amount, SESSION_FACTOR)
    }

    /// Grants what members wait for, as far as there is room: one request of each in turn.
    #[cold]
    fn serve(&self) {
        let mut refused = 0;
        while refused < self.waiting.borrow().len() {
            let Some(account) = self.waiting.borrow_mut().pop_front() else { return };
            refused = if account.grant_first() { 0 } else { refused + 1 };
            if !account.waiters.borrow().is_empty() {
                self.waiting.borrow_mut().push_back(account);
            }
        }
    }
}

impl Account {
    #[inline]
    fn admits(&self, amount: usize) -> bool {
        self.is_plenty(amount) || self.admits_as(self.held.get(), amount)
    }

    /// Whether so little is held that every request is admitted: see [`PLENTY_PART`].
    #[inline]
    fn is_plenty(&self, amount: usize) -> bool {
        self.pool.held.get().checked_add(amount).is_some_and(|after| after <= self.pool.plenty)
    }

    /// Whether `amount` units are granted to a member that holds `held` units, by the rules.
    fn admits_as(&self, held: usize, amount: usize) -> bool {
        self.pool.admits(self.host.held.get(), 0, (held, amount))
    }

    #[inline]
    fn add(&self, amount: usize) {
        for held in [&self.held, &self.host.held, &self.pool.held] {
            held.set(held.get() + amount);
        }
    }

    #[inline]
    fn remove(&self, amount: usize) {
        for held in [&self.held, &self.host.held, &self.pool.held] {
            held.set(held.get() - amount);
        }
        if !self.pool.waiting.borrow().is_empty() {
            self.pool.serve();
        }
    }

    /// Takes `amount`, unless requests of the same member wait already.
    #[inline]
    fn take(&self, amount: usize) -> bool {
        let takes = self.waiters.borrow().is_empty() && self.admits(amount);
        if takes {
            self.add(amount);
        }
        takes
    }

    /// Whether there is room for `amount` units for a member that holds units already: the reserve is left to others.
    #[inline]
    fn has_surplus(&self, amount: usize) -> bool {
        // A member that holds one unit more is judged by what it then leaves.
        self.is_plenty(amount) || self.admits_as(self.held.get().max(1), amount)
    }

    /// How much of a request for `amount` units there is room for: all, or `least` from the reserve for a member that
    /// holds nothing.
    fn admitted(&self, amount: usize, least: usize) -> Option<usize> {
        if self.held.get() > 0 || amount <= least || self.has_surplus(amount) {
            return self.admits(amount).then_some(amount);
        }
        self.admits(least).then_some(least)
    }

    /// Grants the request that waits longest, if there is room for it.
    fn grant_first(&self) -> bool {
        let Some(waiter) = self.waiters.borrow().front().cloned() else { return false };
        let Some(granted) = self.admitted(waiter.amount, waiter.least) else { return false };
        self.waiters.borrow_mut().pop_front();
        self.add(granted);
        waiter.granted.set(Some(granted));
        waiter.waker.take().into_iter().for_each(Waker::wake);
        true
    }

    fn enqueue(self: &Rc<Self>, amount: usize, least: usize) -> Rc<Waiter> {
        let waiter = Rc::new(Waiter { amount, least, granted: Cell::default(), waker: Cell::default() });
        let was_empty = self.waiters.borrow().is_empty();
        self.waiters.borrow_mut().push_back(waiter.clone());
        if was_empty {
            self.pool.waiting.borrow_mut().push_back(self.clone());
        }
        waiter
    }

    fn dequeue(self: &Rc<Self>, waiter: &Rc<Waiter>) {
        self.waiters.borrow_mut().retain(|other| !Rc::ptr_eq(other, waiter));
        if self.waiters.borrow().is_empty() {
            self.pool.waiting.borrow_mut().retain(|other| !Rc::ptr_eq(other, self));
        } else {
            // The next request may be smaller.
            self.pool.serve();
        }
    }
}

/// A session or queue that takes shares. Clones are the same member.
#[derive(Clone)]
pub struct Member(Rc<Account>);

impl Member {
    /// Takes `amount` units; `None` if there is no room for them, or if requests of this member wait already.
    #[inline]
    #[must_use]
    pub fn take(&self, amount: usize) -> Option<Share> {
        self.0.take(amount).then(|| Share { account: self.0.clone(), amount })
    }

    /// Takes `amount` units like a member that holds units already: the reserve is left to other members.
    #[must_use]
    pub fn take_surplus(&self, amount: usize) -> Option<Share> {
        if self.0.has_surplus(amount) { self.take(amount) } else { None }
    }

    /// Takes `amount` units, or at least `least` of them if the member holds nothing.
    #[must_use]
    pub fn take_first(&self, amount: usize, least: usize) -> Option<Share> {
        self.0.admitted(amount, least).and_then(|amount| self.take(amount))
    }

    /// Takes `amount` units, and waits until there is room for them.
    pub async fn wait(&self, amount: usize) -> Share {
        self.wait_first(amount, amount).await
    }

    /// As [`Member::take_first`], and waits until there is room.
    pub async fn wait_first(&self, amount: usize, least: usize) -> Share {
        if let Some(share) = self.take_first(amount, least) {
            return share;
        }
        let turn = Turn { account: self.0.clone(), waiter: self.0.enqueue(amount, least) };
        poll_fn(|cx| {
            if let Some(amount) = turn.waiter.granted.take() {
                return Poll::Ready(Share { account: turn.account.clone(), amount });
            }
            turn.waiter.waker.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Whether there is room for `amount` units.
    #[inline]
    #[must_use]
    pub fn has_room(&self, amount: usize) -> bool {
        self.0.admits(amount)
    }

    /// Whether there is room for `amount` units for a member that holds units already: the reserve is left to others.
    #[inline]
    #[must_use]
    pub fn has_surplus(&self, amount: usize) -> bool {
        self.0.has_surplus(amount)
    }

    /// A share of nothing, which grows and shrinks.
    #[must_use]
    pub fn empty_share(&self) -> Share {
        Share { account: self.0.clone(), amount: 0 }
    }

    /// Units that this member holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.held.get()
    }
}

/// The turn of a request that waits. Dropped before its end, it gives back what was granted.
struct Turn {
    account: Rc<Account>,
    waiter: Rc<Waiter>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(granted) = self.waiter.granted.take() {
            self.account.remove(granted);
        } else if self.account.waiters.borrow().iter().any(|waiter| Rc::ptr_eq(waiter, &self.waiter)) {
            self.account.dequeue(&self.waiter);
        }
    }
}

/// Units that a member holds. Dropping it gives them back.
pub struct Share {
    account: Rc<Account>,
    amount: usize,
}

impl Share {
    /// Takes `amount` units more, before those that wait; `false`, and nothing changes, if there is no room for them.
    #[inline]
    #[must_use]
    pub fn grow(&mut self, amount: usize) -> bool {
        let grows = amount == 0 || self.account.admits(amount);
        if grows {
            self.account.add(amount);
            self.amount += amount;
        }
        grows
    }

    /// Adds a share of the same member.
    ///
    /// # Panics
    /// When it is a share of another member.
    pub fn absorb(&mut self, mut other: Self) {
        assert!(Rc::ptr_eq(&self.account, &other.account), "shares of one member are joined");
        self.amount += std::mem::take(&mut other.amount);
    }

    /// Follows a counter, whether there is room or not: what is counted is there already.
    #[inline]
    pub fn follow(&mut self, amount: usize) {
        if amount > self.amount {
            self.account.add(amount - self.amount);
            self.amount = amount;
        } else {
            self.shrink(self.amount - amount);
        }
    }

    /// Gives `amount` units back, or all if it holds fewer.
    #[inline]
    pub fn shrink(&mut self, amount: usize) {
        let amount = amount.min(self.amount);
        self.amount -= amount;
        if amount > 0 {
            self.account.remove(amount);
        }
    }

    /// Units that it holds.
    #[must_use]
    pub fn amount(&self) -> usize {
        self.amount
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(self.amount);
    }
}

impl fmt::Debug for PeerShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerShares({} of {})", self.held(), self.capacity())
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Member(holds {})", self.held())
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Share({})", self.amount)
    }
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;

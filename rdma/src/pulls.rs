//! Requests for data in memory of a peer, without I/O. The parts of a request are RDMA READs, which complete one by
//! one.

use crate::requester::Completed;
use lunar_core::io::Fault;
use lunar_core::mem::Sg;
use lunar_core::shares::Share;
use std::collections::HashMap;
use std::task::{Context, Poll, Waker};

/// The bits of a token that number the parts of a request: there are fewer parts than descriptors and READs.
const PART_BITS: u32 = 16;

/// A request.
struct Pull {
    parts: Vec<Option<Sg>>,
    missing: usize,
    /// Counts its memory until all of it has arrived.
    share: Option<Share>,
    waker: Option<Waker>,
    /// Its command waits for it no longer.
    is_abandoned: bool,
}

/// The requests of a connection.
#[derive(Default)]
pub(crate) struct Pulls {
    last: u64,
    all: HashMap<u64, Pull>,
    /// Tasks that wait until requests have ended.
    waiting: Vec<Waker>,
    is_closed: bool,
}

impl Pulls {
    /// Begins a request without parts; returns its number.
    pub(crate) fn begin(&mut self, share: Share) -> u64 {
        self.last += 1;
        let pull = Pull { parts: Vec::new(), missing: 0, share: Some(share), waker: None, is_abandoned: false };
        self.all.insert(self.last, pull);
        self.last
    }

    /// Adds a part to a request; returns the token of its READ.
    pub(crate) fn add(&mut self, number: u64) -> u64 {
        let Some(pull) = self.all.get_mut(&number) else { return 0 };
        let part = pull.parts.len() as u64;
        pull.parts.push(None);
        pull.missing += 1;
        number << PART_BITS | part
    }

    /// A READ is complete.
    pub(crate) fn arrived(&mut self, completed: Completed) {
        let (number, part) = (completed.token >> PART_BITS, completed.token & ((1 << PART_BITS) - 1));
        let Some(pull) = self.all.get_mut(&number) else { return };
        let Some(place) = pull.parts.get_mut(part as usize) else { return };
        *place = Some(completed.data);
        pull.missing -= 1;
        if pull.missing == 0 {
            match pull.is_abandoned {
                true => drop(self.all.remove(&number)),
                false => pull.waker.take().into_iter().for_each(Waker::wake),
            }
            self.waiting.drain(..).for_each(Waker::wake);
        }
    }

    /// The data of a request with the share that counts its memory, once it is there.
    pub(crate) fn poll(&mut self, number: u64, cx: &Context<'_>) -> Poll<Result<(Sg, Option<Share>), Fault>> {
        let Some(pull) = self.all.get_mut(&number) else { return Poll::Ready(Err(Fault::Aborted)) };
        if pull.missing > 0 {
            if self.is_closed {
                return Poll::Ready(Err(Fault::Aborted));
            }
            pull.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut data = Sg::default();
        data.reserve(pull.parts.len());
        pull.parts.drain(..).flatten().for_each(|part| data.append(part));
        Poll::Ready(Ok((data, pull.share.take())))
    }

    /// The data of a request is not wanted any more, or was taken.
    pub(crate) fn abandon(&mut self, number: u64) {
        let Some(pull) = self.all.get_mut(&number) else { return };
        // The memory is in use until all of it has arrived.
        pull.is_abandoned = true;
        if pull.missing == 0 || self.is_closed {
            self.all.remove(&number);
        }
    }

    /// The number of the last request so far.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Whether all data of the requests up to this one has arrived, also of those that were abandoned.
    pub(crate) fn poll_arrived(&mut self, last: u64, cx: &Context<'_>) -> Poll<()> {
        let is_missing = |(number, pull): (&u64, &Pull)| *number <= last && pull.missing > 0;
        if self.is_closed || !self.all.iter().any(is_missing) {
            return Poll::Ready(());
        }
        self.waiting.push(cx.waker().clone());
        Poll::Pending
    }

    /// The connection has ended: nothing arrives any more.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.all.retain(|_, pull| !pull.is_abandoned);
        self.all.values_mut().for_each(|pull| pull.waker.take().into_iter().for_each(Waker::wake));
        self.waiting.drain(..).for_each(Waker::wake);
    }

    /// Requests whose data has not been taken.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::Arena;
    use lunar_core::shares::PeerShares;

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    /// Requests, and the resource that counts their memory.
    struct Rig {
        pulls: Pulls,
        shares: PeerShares,
        arena: Arena,
    }

    impl Rig {
        fn new() -> Self {
            Self { pulls: Pulls::default(), shares: PeerShares::new(1000), arena: Arena::new(1 << 20) }
        }

        /// Begins a request of so many parts; returns its number and their tokens.
        fn begin(&mut self, parts: usize) -> (u64, Vec<u64>) {
            let member = self.shares.join(std::net::Ipv4Addr::LOCALHOST.into());
            let number = self.pulls.begin(member.take(10).expect("room"));
            (number, (0..parts).map(|_| self.pulls.add(number)).collect())
        }

        fn arrived(&mut self, token: u64) {
            let data = self.arena.copy(&token.to_be_bytes()).map(Sg::from).expect("room");
            self.pulls.arrived(Completed { token, data });
        }
    }

    #[test]
    fn the_parts_of_a_request_arrive_in_any_order() {
        let mut rig = Rig::new();
        let (number, tokens) = rig.begin(3);
        for at in [2, 0, 1] {
            assert!(rig.pulls.poll(number, &cx()).is_pending());
            rig.arrived(tokens[at]);
        }
        let Poll::Ready(Ok((data, share))) = rig.pulls.poll(number, &cx()) else { panic!("all are there") };
        let wanted: Vec<u8> = tokens.iter().flat_map(|token| token.to_be_bytes()).collect();
        assert_eq!((data.to_vec(), share.map(|share| share.amount())), (wanted, Some(10)));
        rig.pulls.abandon(number);
        assert_eq!((rig.pulls.len(), rig.shares.held()), (0, 0));
    }

    #[test]
    fn data_that_nobody_wants_any_more_is_waited_for() {
        let mut rig = Rig::new();
        let (aborted, tokens) = rig.begin(2);
        rig.arrived(tokens[0]);
        rig.pulls.abandon(aborted);
        let last = rig.pulls.last();
        // One that begins later is not waited for: others would keep the answer back for ever.
        let (later, _) = rig.begin(1);
        assert!(rig.pulls.poll_arrived(last, &cx()).is_pending());
        assert_eq!(rig.shares.held(), 20, "its memory is in use");
        rig.arrived(tokens[1]);
        assert!(rig.pulls.poll_arrived(last, &cx()).is_ready() && rig.pulls.poll_arrived(later, &cx()).is_pending());
        assert_eq!(rig.shares.held(), 10);
        rig.pulls.close();
        assert!(rig.pulls.poll_arrived(later, &cx()).is_ready());
        assert!(matches!(rig.pulls.poll(later, &cx()), Poll::Ready(Err(Fault::Aborted))));
        rig.pulls.abandon(later);
        assert_eq!((rig.pulls.len(), rig.shares.held()), (0, 0));
    }
}

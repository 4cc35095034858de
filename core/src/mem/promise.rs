//! Memory that waits for peers, perhaps forever: for data that a peer was asked for, for unsolicited data that no
//! command has taken, and for data that the peer does not receive. Each kind has a part of the arena,
//! which hosts and sessions share ([`PeerShares`]).

use super::{Arena, SgMut};
use crate::shares::{Member, PeerShares, Share};
use std::future::poll_fn;
use std::net::IpAddr;
use std::task::Poll;

/// Eighths of an arena for data that peers were asked for.
const SOLICITED: usize = 3;
/// Eighths of an arena for data that peers send unasked: a whole first burst for the usual command window.
const UNSOLICITED: usize = 2;
/// Eighths of an arena for data that is sent to peers.
const OUTGOING: usize = 3;
/// Bytes that a session is asked for, or sent, at least, if others owe so much that there is only the reserve: some two
/// hundred sessions of a host that owe data leave as much to one more, with an arena of the usual size.
pub(crate) const LEAST: usize = 8 << 10;

/// The parts of an arena that wait for peers.
pub(super) struct Promises {
    solicited: PeerShares,
    unsolicited: PeerShares,
    outgoing: PeerShares,
}

/// The shares of a session, or queue, in the memory that waits for peers.
#[derive(Clone, Debug)]
pub struct PeerMemory {
    /// For data that the peer is asked for.
    pub solicited: Member,
    /// For data that it may send unasked, or has sent so and no command has taken.
    pub unsolicited: Member,
    /// For data that is sent to it.
    pub outgoing: Member,
}

impl Promises {
    /// Of an arena of `size` bytes.
    pub(super) fn new(size: usize) -> Self {
        let eighths = |count| PeerShares::new(size / 8 * count);
        Self { solicited: eighths(SOLICITED), unsolicited: eighths(UNSOLICITED), outgoing: eighths(OUTGOING) }
    }
}

impl Arena {
    /// The shares of a new session, or queue, of the host with this address.
    #[must_use]
    pub fn join(&self, source: IpAddr) -> PeerMemory {
        let Promises { solicited, unsolicited, outgoing } = &self.0.promises;
        let [solicited, unsolicited, outgoing] = [solicited, unsolicited, outgoing].map(|part| part.join(source));
        PeerMemory { solicited, unsolicited, outgoing }
    }

    /// Bytes that peers were asked for and have not sent.
    #[must_use]
    pub fn promised(&self) -> usize {
        self.0.promises.solicited.held()
    }

    /// Bytes that are being sent to peers, and of memory for them.
    #[must_use]
    pub fn outgoing(&self) -> usize {
        self.0.promises.outgoing.held()
    }

    /// Bytes that peers may send unasked, or have sent so and no command has taken.
    #[must_use]
    pub fn unsolicited(&self) -> usize {
        self.0.promises.unsolicited.held()
    }

    /// Memory for `len` bytes that the peer of a session is asked for, and for so many more `ahead` of it; `None` when
    /// there is none, or when the peer owes too much already. The share stands for the bytes until they have come, or
    /// will not come.
    #[must_use]
    pub fn take_for_peer(&self, member: &Member, len: usize, ahead: usize) -> Option<(SgMut, Share)> {
        let share = if ahead > 0 { member.take_surplus(len + ahead) } else { member.take(len) }?;
        Some((self.take_sg(len + ahead)?, share))
    }

    /// Like [`Arena::take_for_peer`], but waits until there is enough. A session that owes nothing gets less memory if
    /// others owe so much that there is only the reserve. Waiting sessions are served in turn. A session that waits for
    /// memory holds no share meanwhile: two sessions would otherwise wait for each other.
    pub async fn wait_for_peer(&self, member: &Member, len: usize) -> (SgMut, Share) {
        loop {
            let share = member.wait_first(len, len.min(LEAST)).await;
            if let Some(memory) = self.take_sg(share.amount()) {
                return (memory, share);
            }
            drop(share);
            self.until_freed().await;
        }
    }

    /// Waits until a block comes free.
    async fn until_freed(&self) {
        let mut has_waited = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut has_waited, true) {
                return Poll::Ready(());
            }
            self.0.waiters.borrow_mut().push_back(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::BLOCK_MAX;
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn peers_that_owe_data_leave_the_other_parts_of_the_arena() {
        let arena = Arena::new(2 * BLOCK_MAX);
        // Half of the part that peers may owe.
        let quarter = BLOCK_MAX * 2 * SOLICITED / 8 / 2;
        let members = [1, 2, 3].map(|host| arena.join([192, 0, 2, host].into()).solicited);
        let (one, other) = (arena.take_for_peer(&members[0], quarter, 0), arena.take_for_peer(&members[1], quarter, 0));
        assert!(one.is_some() && other.is_some() && arena.take_for_peer(&members[2], 1, 0).is_none());
        let mut more = pin!(arena.wait_for_peer(&members[2], quarter));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(more.as_mut().poll(&mut cx).is_pending());
        let others = arena.take_sg(quarter).expect("the rest is left");
        drop((one, others));
        let Poll::Ready(found) = more.as_mut().poll(&mut cx) else { panic!("one has arrived") };
        drop((other, found));
        let ahead = arena.take_for_peer(&members[0], 1, quarter * 2);
        assert!(ahead.is_some(), "alone a request may be large");
        assert!(
            arena.take_for_peer(&members[1], 1, 0).is_none(),
            "requested bytes of the future may not arrive either"
        );
        drop(ahead);
        assert_eq!((arena.used(), arena.promised()), (0, 0));
    }

    #[test]
    fn one_host_that_owes_leaves_its_part_to_another() {
        let arena = Arena::new(64 * BLOCK_MAX);
        let piece = BLOCK_MAX / 4;
        let greedy: Vec<_> = (0..20).map(|_| arena.join([192, 0, 2, 1].into()).solicited).collect();
        let owed: Vec<_> =
            greedy.iter().flat_map(|member| std::iter::from_fn(|| arena.take_for_peer(member, piece, 0))).collect();
        assert!(owed.len() <= 48, "{} of 96 pieces", owed.len());
        let other = arena.join([192, 0, 2, 2].into()).solicited;
        assert!(arena.take_for_peer(&other, BLOCK_MAX, 0).is_some());
    }

    #[test]
    fn many_sessions_of_one_host_that_owe_leave_something_to_one_more() {
        let arena = Arena::new(64 * BLOCK_MAX);
        let mut cx = Context::from_waker(Waker::noop());
        let mut owed = Vec::new();
        for session in 0..180 {
            let member = arena.join([192, 0, 2, 1].into()).solicited;
            // The first request has data ahead of it; the others are as large as a burst.
            owed.extend(arena.take_for_peer(&member, BLOCK_MAX / 4, BLOCK_MAX / 4));
            for request in 0..4 {
                let taken = {
                    let mut waits = pin!(arena.wait_for_peer(&member, BLOCK_MAX / 4));
                    waits.as_mut().poll(&mut cx)
                };
                match taken {
                    Poll::Ready(found) => owed.push(found),
                    Poll::Pending => {
                        assert!(request > 0 || member.held() > 0, "session {session} gets nothing");
                        break;
                    }
                }
            }
        }
        drop(owed);
        assert_eq!((arena.used(), arena.promised()), (0, 0));
    }

    #[test]
    fn a_session_that_waits_for_memory_holds_no_share() {
        let arena = Arena::new(BLOCK_MAX);
        let member = arena.join([192, 0, 2, 1].into()).solicited;
        let full: Vec<_> = std::iter::from_fn(|| arena.take(super::super::PAGE)).collect();
        let mut waits = pin!(arena.wait_for_peer(&member, 4096));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        assert_eq!(arena.promised(), 0);
        drop(full);
        assert!(waits.as_mut().poll(&mut cx).is_ready());
    }
}

//! Frames of exchanges that wait to be sent: those of each initiator in order, and initiators in turn. A link takes
//! only a bounded number of frames and drops the others, so they wait here.

use crate::limits::SEND_QUEUE_MAX;
use crate::wire::names::PortId;
use lunar_core::mem::Sg;
use lunar_core::shares::Share;
use std::collections::VecDeque;
use std::task::Waker;

/// The frames for an initiator.
struct Queue {
    peer: PortId,
    frames: VecDeque<Sg>,
    bytes: usize,
    /// Counts the bytes as memory of the initiator.
    share: Share,
    /// Reads that wait for room.
    waiting: Vec<Waker>,
}

/// The frames of all initiators.
#[derive(Default)]
pub(super) struct Outbox {
    /// The first one is next.
    queues: VecDeque<Queue>,
    /// The task that sends them.
    sender: Option<Waker>,
}

impl Outbox {
    /// An initiator has logged in.
    pub(super) fn open(&mut self, peer: PortId, share: Share) {
        self.shut(peer);
        self.queues.push_back(Queue { peer, frames: VecDeque::new(), bytes: 0, share, waiting: Vec::new() });
    }

    /// An initiator has logged out: its frames are dropped.
    pub(super) fn shut(&mut self, peer: PortId) {
        self.queues.retain_mut(|queue| {
            let is_it = queue.peer == peer;
            if is_it {
                queue.waiting.drain(..).for_each(Waker::wake);
            }
            !is_it
        });
    }

    fn queue(&mut self, peer: PortId) -> Option<&mut Queue> {
        self.queues.iter_mut().find(|queue| queue.peer == peer)
    }

    /// Appends a frame for an initiator; returns it when the initiator is not logged in.
    pub(super) fn push(&mut self, peer: PortId, frame: Sg) -> Option<Sg> {
        let Some(queue) = self.queue(peer) else { return Some(frame) };
        queue.bytes += frame.len();
        queue.share.follow(queue.bytes);
        queue.frames.push_back(frame);
        self.sender.take().into_iter().for_each(Waker::wake);
        None
    }

    /// Bytes that wait to be sent to an initiator.
    pub(super) fn queued(&self, peer: PortId) -> usize {
        self.queues.iter().find(|queue| queue.peer == peer).map_or(0, |queue| queue.bytes)
    }

    /// Whether a read of an initiator has room; otherwise this is woken when it has.
    pub(super) fn has_room(&mut self, peer: PortId, waker: &Waker) -> bool {
        match self.queue(peer) {
            Some(queue) if queue.bytes >= SEND_QUEUE_MAX => {
                queue.waiting.push(waker.clone());
                false
            }
            _ => true,
        }
    }

    /// The next frame; without one, this is woken when there is one.
    pub(super) fn next(&mut self, waker: &Waker) -> Option<Sg> {
        let at = self.queues.iter().position(|queue| !queue.frames.is_empty());
        let Some(at) = at else {
            self.sender = Some(waker.clone());
            return None;
        };
        self.queues.rotate_left(at);
        let queue = self.queues.front_mut()?;
        let frame = queue.frames.pop_front()?;
        queue.bytes -= frame.len();
        queue.share.follow(queue.bytes);
        if queue.bytes < SEND_QUEUE_MAX {
            queue.waiting.drain(..).for_each(Waker::wake);
        }
        self.queues.rotate_left(1);
        Some(frame)
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.waiting.drain(..).for_each(Waker::wake));
        self.queues.clear();
        self.sender.take().into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::Arena;

    #[test]
    fn initiators_take_turns_and_a_full_queue_has_no_room() {
        let arena = Arena::new(16 << 20);
        let member = arena.join([192, 0, 2, 1].into()).outgoing;
        let peer = |number| PortId::of_neighbour(number).expect("valid");
        let (mut outbox, waker) = (Outbox::default(), Waker::noop());
        outbox.open(peer(1), member.empty_share());
        outbox.open(peer(2), member.empty_share());
        let frame = |byte: u8, len| -> Sg { arena.copy(&vec![byte; len]).expect("room").into() };
        for byte in [1, 2, 3] {
            assert!(outbox.push(peer(1), frame(byte, 10)).is_none());
        }
        assert!(outbox.push(peer(2), frame(9, 10)).is_none() && outbox.push(peer(3), frame(9, 10)).is_some());
        assert_eq!((member.held(), outbox.queued(peer(1))), (40, 30));
        let order: Vec<u8> = std::iter::from_fn(|| outbox.next(waker).map(|frame| frame.to_vec()[0])).collect();
        assert_eq!((order, member.held()), (vec![1, 9, 2, 3], 0));
        while outbox.has_room(peer(1), waker) {
            outbox.push(peer(1), frame(0, 1 << 18));
        }
        assert!(outbox.has_room(peer(2), waker) && outbox.has_room(peer(3), waker));
        outbox.shut(peer(1));
        assert_eq!((member.held(), outbox.queued(peer(1))), (0, 0));
        assert!(outbox.has_room(peer(1), waker) && outbox.next(waker).is_none());
    }
}

//! The operations of a connection on a device, without I/O: they wait until the queue of the device has room, and
//! complete in the order in which they were queued.
//!
//! A request of a device has a limited number of pieces of memory, so a write or a READ may become several requests.

use crate::limits::ENTRY_BYTES;
use crate::requester::{Completed, Message};
use crate::wire::Remote;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::shares::Share;
use lunar_verbs::library::pair::Work;
use std::collections::VecDeque;

/// Limits of the queue of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Depth {
    /// Requests.
    pub requests: usize,
    /// Pieces of memory of a message or a write.
    pub pieces: usize,
    /// Pieces of memory of a READ.
    pub read_pieces: usize,
}

/// The purpose of a request.
#[derive(Debug)]
enum Purpose {
    Message {
        posts: usize,
        share: Option<Share>,
    },
    Write,
    /// A part of a READ with this token; whether it is the last one.
    Read {
        token: u64,
        is_last: bool,
    },
}

/// The effect of a completion.
#[derive(Debug, Default)]
pub struct Effect {
    /// So many more messages may come.
    pub posts: usize,
    /// A READ is complete.
    pub read: Option<Completed>,
}

/// The operations of a connection.
#[derive(Debug)]
pub struct Queue {
    depth: Depth,
    waiting: VecDeque<(Work, Purpose)>,
    /// The purposes of the requests that the device has, with the bytes that they count for.
    posted: VecDeque<(Purpose, usize)>,
    /// Bytes of messages and writes that are not acknowledged, and [`ENTRY_BYTES`] for each request.
    bytes: usize,
    /// Requests that have completed.
    completed: u64,
    /// READs that the device has, and that it may have.
    reads: (usize, usize),
    /// Parts of the READ whose first parts have completed.
    parts: Sg,
}

fn cost(work: &Work) -> usize {
    ENTRY_BYTES + work.bytes().0
}

/// Bytes of the first pieces, as many as a request may have.
fn bytes_of(lens: impl Iterator<Item = usize>, pieces: usize) -> usize {
    lens.take(pieces.max(1)).sum()
}

impl Queue {
    /// An empty queue.
    #[must_use]
    pub fn new(depth: Depth) -> Self {
        let (waiting, posted) = (VecDeque::new(), VecDeque::with_capacity(depth.requests));
        Self { depth, waiting, posted, bytes: 0, completed: 0, reads: (0, usize::MAX), parts: Sg::default() }
    }

    fn push(&mut self, work: Work, purpose: Purpose) {
        self.bytes += cost(&work);
        self.waiting.push_back((work, purpose));
    }

    /// Whether a message has too many pieces for a request: it has to be copied before.
    #[must_use]
    pub fn has_too_many_pieces(&self, data: &Sg) -> bool {
        data.pieces().len() > self.depth.pieces
    }

    /// Sends a message.
    pub fn send(&mut self, message: Message) {
        let Message { data, posts, share, invalidates } = message;
        self.push(Work::Send(data, invalidates), Purpose::Message { posts, share });
    }

    /// Writes into memory of the peer.
    pub fn write(&mut self, to: Remote, mut data: Sg) {
        let mut at = 0;
        loop {
            let len = bytes_of(data.pieces().iter().map(|piece| piece.len()), self.depth.pieces);
            let part = data.split_to(len);
            let Remote { address, key } = to.plus(at);
            at += len;
            self.push(Work::Write(address, key, part), Purpose::Write);
            if data.is_empty() {
                return;
            }
        }
    }

    /// Reads memory of the peer, as much as there is room for.
    pub fn read(&mut self, from: Remote, mut into: SgMut, token: u64) {
        let mut at = 0;
        loop {
            let len = bytes_of(into.pieces().iter().map(|piece| piece.len()), self.depth.read_pieces);
            let part = into.split_to(len);
            let Remote { address, key } = from.plus(at);
            at += len;
            let is_last = into.is_empty();
            self.push(Work::Read(address, key, part), Purpose::Read { token, is_last });
            if is_last {
                return;
            }
        }
    }

    /// Gives the device no more READs at the same time than so many from now on.
    pub fn limit_reads(&mut self, most: usize) {
        self.reads.1 = self.reads.1.min(most);
    }

    /// Takes the requests that the device has room for.
    pub fn take(&mut self, into: &mut Vec<Work>) {
        while self.posted.len() < self.depth.requests {
            let is_read = matches!(self.waiting.front(), Some((Work::Read(..), _)));
            if is_read && self.reads.0 >= self.reads.1 {
                return;
            }
            let Some((work, purpose)) = self.waiting.pop_front() else { return };
            self.reads.0 += usize::from(is_read);
            self.posted.push_back((purpose, cost(&work)));
            into.push(work);
        }
    }

    /// The oldest request that the device has is complete: its memory comes back.
    pub fn done(&mut self, work: Work) -> Effect {
        let mut effect = Effect::default();
        let Some((purpose, cost)) = self.posted.pop_front() else { return effect };
        self.bytes -= cost;
        self.completed += 1;
        match (purpose, work) {
            (Purpose::Message { posts, share }, _) => {
                drop(share);
                effect.posts = posts;
            }
            (Purpose::Write, _) => {}
            (Purpose::Read { token, is_last }, Work::Read(_, _, part)) => {
                self.reads.0 -= 1;
                self.parts.append(part.share());
                if is_last {
                    effect.read = Some(Completed { token, data: std::mem::take(&mut self.parts) });
                }
            }
            // A device answers in order: the work is that of the purpose.
            (Purpose::Read { .. }, _) => {}
        }
        effect
    }

    /// Bytes of messages and writes that are not acknowledged, and [`ENTRY_BYTES`] for each request.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.bytes
    }

    /// Requests that were queued so far, and those of them that are complete.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.completed + (self.posted.len() + self.waiting.len()) as u64, self.completed)
    }

    /// Whether nothing is to be done.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.posted.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::Arena;
    use proptest::prelude::*;

    /// An operation of a test.
    #[derive(Clone, Debug)]
    enum Operation {
        /// A message with so many bytes, which allows so many more.
        Send(usize, usize),
        /// A write of pieces of these lengths.
        Write(Vec<usize>),
        /// A READ into pieces of these lengths.
        Read(Vec<usize>),
    }

    fn lens() -> impl Strategy<Value = Vec<usize>> {
        prop::collection::vec(1_usize..200, 0..9)
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            (0_usize..100, 0_usize..3).prop_map(|(len, posts)| Operation::Send(len, posts)),
            lens().prop_map(Operation::Write),
            lens().prop_map(Operation::Read),
        ]
    }

    fn memory(arena: &Arena, lens: &[usize], value: u8) -> SgMut {
        let mut all = SgMut::default();
        for len in lens {
            let mut piece = arena.take(*len).expect("memory");
            piece.fill(value);
            all.push(piece);
        }
        all
    }

    /// The memory of a peer, as a device with these limits changes it.
    struct Device {
        depth: Depth,
        memory: Vec<u8>,
        has: VecDeque<Work>,
        sent: Vec<usize>,
    }

    impl Device {
        fn take(&mut self, work: Vec<Work>) {
            self.has.extend(work);
            assert!(self.has.len() <= self.depth.requests, "the queue of the device is too long");
        }

        fn complete(&mut self) -> Option<Work> {
            let mut work = self.has.pop_front()?;
            match &mut work {
                Work::Send(data, _) => self.sent.push(data.len()),
                Work::Write(address, _, data) => {
                    assert!(data.pieces().len() <= self.depth.pieces);
                    let (at, bytes) = (*address as usize, data.to_vec());
                    self.memory[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                Work::Read(address, _, into) => {
                    assert!(into.pieces().len() <= self.depth.read_pieces);
                    let at = *address as usize;
                    into.copy_from(0, &self.memory[at..at + into.len()]);
                }
            }
            Some(work)
        }
    }

    /// The place of the memory of an operation at the peer.
    const PLACE: usize = 2000;

    proptest! {
        #[test]
        fn operations_take_effect_in_order_and_whole(
            operations in prop::collection::vec(operation(), 0..20),
            requests in 1_usize..6, pieces in 1_usize..5, read_pieces in 1_usize..4,
            turns in prop::collection::vec(any::<bool>(), 400),
        ) {
            let (arena, depth) = (Arena::new(16 << 20), Depth { requests, pieces, read_pieces });
            let memory_of_peer = (0..PLACE * 20).map(|at| (at % 251) as u8).collect();
            let (has, sent) = (VecDeque::new(), Vec::new());
            let mut device = Device { depth, memory: memory_of_peer, has, sent };
            let mut expected = device.memory.clone();
            let (mut queue, mut reads, mut posts) = (Queue::new(depth), Vec::new(), 0);
            for (number, operation) in operations.iter().enumerate() {
                let at = Remote { address: (number * PLACE) as u64, key: 7 };
                match operation {
                    Operation::Send(len, posts) => {
                        let data = memory(&arena, &[*len + 1], 1).share();
                        queue.send(Message { data, posts: *posts, ..Message::default() });
                    }
                    Operation::Write(lens) => {
                        let total: usize = lens.iter().sum();
                        expected[number * PLACE..][..total].fill(number as u8);
                        queue.write(at, memory(&arena, lens, number as u8).share());
                    }
                    Operation::Read(lens) => queue.read(at, memory(&arena, lens, 0), number as u64),
                }
            }
            let (total, _) = queue.counts();
            let mut turns = turns.into_iter();
            while !queue.is_idle() {
                if turns.next().unwrap_or(true) {
                    let mut work = Vec::new();
                    queue.take(&mut work);
                    device.take(work);
                }
                if turns.next().unwrap_or(true) && let Some(work) = device.complete() {
                    let effect = queue.done(work);
                    posts += effect.posts;
                    reads.extend(effect.read);
                }
            }
            let sent = operations.iter().filter_map(|operation| match operation {
                Operation::Send(len, posts) => Some((*len + 1, *posts)),
                _ => None,
            });
            let (sent, allowed): (Vec<usize>, Vec<usize>) = sent.unzip();
            prop_assert_eq!((&device.sent, posts), (&sent, allowed.iter().sum()));
            prop_assert_eq!(&device.memory, &expected);
            let wanted: Vec<_> = operations.iter().enumerate().filter_map(|(number, operation)| match operation {
                Operation::Read(lens) => Some((number as u64, lens.iter().sum::<usize>())),
                _ => None,
            }).collect();
            let got: Vec<_> = reads.iter().map(|read| (read.token, read.data.len())).collect();
            prop_assert_eq!(got, wanted);
            for read in &reads {
                let at = read.token as usize * PLACE;
                prop_assert_eq!(read.data.to_vec(), &expected[at..at + read.data.len()]);
            }
            prop_assert_eq!((queue.queued(), queue.counts()), (0, (total, total)));
        }
    }

    #[test]
    fn no_more_reads_are_posted_than_the_peer_takes() {
        let arena = Arena::new(1 << 20);
        let mut queue = Queue::new(Depth { requests: 8, pieces: 2, read_pieces: 1 });
        queue.limit_reads(2);
        (0..3).for_each(|token| queue.read(Remote::default(), memory(&arena, &[10], 0), token));
        queue.write(Remote::default(), memory(&arena, &[10], 1).share());
        let mut work = Vec::new();
        queue.take(&mut work);
        assert_eq!(work.len(), 2, "nothing overtakes a READ");
        assert!(queue.done(work.remove(0)).read.is_some());
        queue.take(&mut work);
        assert_eq!(work.len(), 3);
    }

    #[test]
    fn the_bytes_of_a_queue_count_until_they_are_acknowledged() {
        let arena = Arena::new(1 << 20);
        let mut queue = Queue::new(Depth { requests: 1, pieces: 2, read_pieces: 1 });
        queue.write(Remote::default(), memory(&arena, &[10, 10, 10], 1).share());
        queue.read(Remote::default(), memory(&arena, &[10], 0), 1);
        assert_eq!((queue.queued(), queue.counts()), (30 + 3 * ENTRY_BYTES, (3, 0)));
        let mut work = Vec::new();
        queue.take(&mut work);
        assert_eq!((work.len(), queue.queued()), (1, 30 + 3 * ENTRY_BYTES));
        queue.done(work.remove(0));
        assert_eq!((queue.queued(), queue.counts()), (10 + 2 * ENTRY_BYTES, (3, 1)));
        let many = memory(&arena, &[1, 1, 1], 1).share();
        assert!(queue.has_too_many_pieces(&many) && !queue.has_too_many_pieces(&Sg::default()));
        // A write of nothing is a request as well: it asks whether the peer is there.
        queue.write(Remote::default(), Sg::default());
        assert_eq!(queue.counts(), (4, 1));
    }
}

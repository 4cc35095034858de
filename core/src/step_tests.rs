use super::kinds::span;
use super::*;
use crate::io::{Done, Extent, ImmediateStore, Origin, Outcome, Store, Traits};
use crate::medium::Medium;
use crate::mem::{Arena, BLOCK_MAX, Sg};
use crate::metadata::VolatileMemory;
use crate::range::{Ranges, Span};
use crate::stats::Stats;
use crate::tally::{Event, Tally};
use crate::time::Instant;
use crate::unit::{Geometry, Identity, OneCore, UnitId};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

#[path = "step/copy_tests.rs"]
mod copies;
#[path = "step/long_tests.rs"]
mod long;
#[path = "step/marked_tests.rs"]
mod marks;
#[path = "step/now_tests.rs"]
mod now;
#[path = "step/space_tests.rs"]
mod space;

const BLOCK: u64 = 512;
const SIZE: usize = 4 * PIECE_BYTES;
const PIECE: u64 = PIECE_BYTES as u64;

/// The part of a store in memory that its test can change.
#[derive(Default)]
struct Memory {
    bytes: RefCell<Vec<u8>>,
    asked: RefCell<Vec<(Op, u64, usize)>>,
    /// Answers of the next requests, in order; `None` is the usual answer.
    faults: RefCell<VecDeque<Option<Fault>>>,
    /// Whether requests wait until the test completes them.
    waits: Cell<bool>,
    waiting: RefCell<VecDeque<(Io, Done)>>,
    /// The answer to requests for extents.
    extents: RefCell<VecDeque<Extent>>,
    /// Memory that is lent to a read.
    lent: RefCell<Option<Sg>>,
    /// Whether the store supports copies.
    copies: Cell<bool>,
    /// Whether the store is immediate.
    is_quick: Cell<bool>,
}

impl Memory {
    fn answer(&self, mut io: Io, done: Done) {
        if let Some(Some(fault)) = self.faults.borrow_mut().pop_front() {
            return done.complete(Outcome::with(Err(fault), io.data));
        }
        let mut bytes = self.bytes.borrow_mut();
        let at = io.offset as usize;
        let count = io.bytes() as usize;
        match (io.op, &mut io.data) {
            (Op::Read, Data::In(into)) => assert_eq!(into.copy_from(0, &bytes[at..at + count]), count),
            (Op::Write { .. }, Data::Out(from)) => assert_eq!(from.copy_to(0, &mut bytes[at..at + count]), count),
            (Op::Unmap { .. } | Op::Zero { .. }, Data::None) => bytes[at..at + count].fill(0),
            (Op::Copy { from, .. }, Data::From(origin)) => {
                assert!(origin.is::<()>().is_some(), "the store receives its own handle");
                bytes.copy_within(from as usize..from as usize + count, at);
            }
            (Op::Flush, Data::None) => {}
            (Op::Extent { .. }, Data::None) => {
                let extent = self.extents.borrow_mut().pop_front().expect("one for each request");
                return done.complete(Outcome { result: Ok(0), data: Data::None, extent });
            }
            other => panic!("{other:?}"),
        }
        drop(bytes);
        done.complete(Outcome::with(Ok(count as u32), io.data));
    }

    fn serve(&self) -> Op {
        let (io, done) = self.waiting.borrow_mut().pop_front().expect("a request waits");
        let op = io.op;
        self.answer(io, done);
        op
    }
}

struct MemoryStore(Rc<Memory>, Traits);

impl ImmediateStore for MemoryStore {
    fn carry_out(&self, io: &mut Io) -> Result<u32, Fault> {
        self.0.asked.borrow_mut().push((io.op, io.offset, io.data.len()));
        let mut completion = Completion::new();
        let asked = Io { op: io.op, offset: io.offset, data: std::mem::take(&mut io.data) };
        self.0.answer(asked, completion.token());
        let outcome = completion.take().expect("it answers at once");
        io.data = outcome.data;
        outcome.result
    }
}

impl Store for MemoryStore {
    fn traits(&self) -> &Traits {
        &self.1
    }

    fn immediate(&self) -> Option<&dyn ImmediateStore> {
        self.0.is_quick.get().then_some(self)
    }

    fn submit(&self, io: Io, done: Done) {
        assert!(io.within(SIZE as u64));
        self.0.asked.borrow_mut().push((io.op, io.offset, io.data.len()));
        match self.0.waits.get() {
            true => self.0.waiting.borrow_mut().push_back((io, done)),
            false => self.0.answer(io, done),
        }
    }

    fn origin(&self) -> Option<Origin> {
        self.0.copies.get().then(|| Origin::new(Rc::new(())))
    }

    fn lend(&self, _offset: u64, _len: usize, to: &mut Sg) -> bool {
        self.0.lent.borrow_mut().take().map(|lent| *to = lent).is_some()
    }
}

/// A peer that has all of its Data-Out and accepts all Data-In.
#[derive(Default)]
struct Peer {
    out: Vec<u8>,
    pushed: RefCell<Vec<u8>>,
    pulls: Cell<usize>,
    /// The number of successful pulls before one fails.
    fails_after: Cell<Option<(usize, Fault)>>,
    aborted: Cell<bool>,
}

thread_local! {
    /// The source of a peer's data: memory of its own, so that a test can count the memory of the step.
    static WIRE: Arena = Arena::new(8 * BLOCK_MAX);
}

impl Transfer for Peer {
    async fn room(&self) -> Result<(), Fault> {
        if self.aborted.get() { Err(Fault::Aborted) } else { Ok(()) }
    }

    fn has_room(&self) -> bool {
        !self.aborted.get()
    }

    fn arrived(&self, offset: usize, len: usize) -> Option<Sg> {
        let mut data = Sg::default();
        data.push(WIRE.with(|arena| arena.copy(self.out.get(offset..offset + len)?))?);
        Some(data)
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        let pulls = self.pulls.get();
        self.pulls.set(pulls + 1);
        match self.fails_after.get() {
            Some((after, fault)) if pulls >= after => return Err(fault),
            _ => {}
        }
        // In pieces of unequal length, as from a network.
        let mut data = Sg::default();
        for chunk in self.out[offset..offset + len].chunks(8192 + 512) {
            data.push(WIRE.with(|arena| arena.copy(chunk)).expect("room"));
        }
        Ok(data)
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        assert_eq!(offset, self.pushed.borrow().len());
        self.pushed.borrow_mut().extend(data.to_vec());
        Ok(())
    }

    fn aborted(&self) -> bool {
        self.aborted.get()
    }
}

struct Rig {
    memory: Rc<Memory>,
    unit: Rc<Unit>,
    arena: Arena,
}

fn rig() -> Rig {
    let bytes: Vec<u8> = (0..SIZE).map(|at| (at / 512) as u8 ^ (at / PIECE_BYTES) as u8).collect();
    let memory = Rc::new(Memory { bytes: RefCell::new(bytes), ..Memory::default() });
    let traits = Traits {
        size: SIZE as u64,
        read_only: false,
        write_cache: true,
        thin: true,
        unmap_granularity: 512,
        unmap_zeroes: true,
        physical_block: 512,
        optimal_io: 0,
        rotational: false,
        atomic_write: 0,
    };
    let ranges = Rc::new(Ranges::default());
    let identity = Identity {
        vendor: "".into(),
        product: "".into(),
        revision: "".into(),
        serial: "".into(),
        uuid: [0; 16],
        naa: [0; 8],
    };
    let unit = Unit {
        id: UnitId(0),
        identity: Arc::new(identity),
        geometry: Geometry::of(&traits, 512).expect("whole"),
        read_only: false,
        store: Box::new(MemoryStore(memory.clone(), traits)),
        protection: None,
        medium: Medium::default(),
        tally: Tally::default(),
        exclusive: Rc::new(OneCore(ranges.clone())),
        metadata: Arc::new(VolatileMemory::default()),
        ranges,
    };
    Rig { memory, unit: Rc::new(unit), arena: Arena::new(8 * BLOCK_MAX) }
}

type Carrying<'a> = Pin<Box<dyn Future<Output = Result<FinalData, Failure>> + 'a>>;

fn poll(future: &mut Carrying<'_>) -> Option<Result<FinalData, Failure>> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

impl Rig {
    fn start<'a>(&'a self, step: Step, peer: &'a Peer) -> Carrying<'a> {
        let mut slot = SlotContext::new(self.arena.clone());
        Box::pin(async move {
            let mut final_data = FinalData::default();
            carry_out(Admitted::to(&self.unit), &step, peer, &mut slot, &mut final_data).await.map(|()| final_data)
        })
    }

    /// Executes a step that waits for nothing; afterwards only the memory of its final data is in use.
    fn run(&self, step: Step, peer: &Peer) -> Result<FinalData, Failure> {
        let result = poll(&mut self.start(step, peer)).expect("the step waits for nothing");
        if result.as_ref().map_or(true, |final_data| final_data.data.is_empty()) {
            assert_eq!(self.arena.used(), 0);
        }
        result
    }

    fn bytes(&self, at: u64, len: u64) -> Vec<u8> {
        self.memory.bytes.borrow()[at as usize..(at + len) as usize].to_vec()
    }

    fn asked(&self) -> Vec<(Op, u64, usize)> {
        self.memory.asked.take()
    }
}

fn sends(out: Vec<u8>) -> Peer {
    Peer { out, ..Peer::default() }
}

fn failed(fault: Fault, at: u64) -> Failure {
    Failure::Fault { fault, at }
}

#[test]
fn a_read_is_pushed_in_pieces_and_keeps_its_final_data() {
    let (rig, peer) = (rig(), Peer::default());
    let final_data = rig.run(Step::Read { offset: BLOCK, len: 2 * PIECE + 1024 }, &peer).expect("read");
    assert_eq!((final_data.offset, final_data.data.len()), (2 * PIECE_BYTES, 1024));
    let mut got = peer.pushed.take();
    got.extend(final_data.data.to_vec());
    assert!(got == rig.bytes(BLOCK, 2 * PIECE + 1024));
    let pieces = [(BLOCK, PIECE_BYTES), (BLOCK + PIECE, PIECE_BYTES), (BLOCK + 2 * PIECE, 1024)];
    assert_eq!(rig.asked(), pieces.map(|(at, len)| (Op::Read, at, len)));
}

#[test]
fn an_empty_read_asks_the_store_for_nothing() {
    let rig = rig();
    let final_data = rig.run(Step::Read { offset: 0, len: 0 }, &Peer::default()).expect("read");
    assert_eq!((final_data.offset, final_data.data.len(), rig.asked().len()), (0, 0, 0));
}

#[test]
fn a_read_uses_the_memory_that_the_store_lends() {
    let rig = rig();
    *rig.memory.lent.borrow_mut() = rig.arena.copy(b"lent").map(Sg::from);
    let final_data = rig.run(Step::Read { offset: 0, len: 4 }, &Peer::default()).expect("read");
    assert_eq!((final_data.data.to_vec(), rig.asked().len()), (b"lent".to_vec(), 0));
}

#[test]
fn a_read_fails_where_its_store_does() {
    let (rig, peer) = (rig(), Peer::default());
    rig.memory.faults.borrow_mut().extend([None, Some(Fault::Medium)]);
    let result = rig.run(Step::Read { offset: 0, len: 2 * PIECE }, &peer);
    assert_eq!(result.err(), Some(failed(Fault::Medium, PIECE)));
    assert_eq!(peer.pushed.borrow().len(), PIECE_BYTES);
}

#[test]
fn an_aborted_read_takes_no_memory() {
    let rig = rig();
    let peer = Peer { aborted: Cell::new(true), ..Peer::default() };
    assert_eq!(rig.run(Step::Read { offset: 0, len: BLOCK }, &peer).err(), Some(failed(Fault::Aborted, 0)));
    assert!(rig.asked().is_empty());
}

#[test]
fn a_write_goes_in_pieces() {
    for durable in [false, true] {
        let rig = rig();
        let out: Vec<u8> = (0..PIECE_BYTES + 1024).map(|at| (at / 3) as u8).collect();
        let peer = sends(out.clone());
        rig.run(Step::Write { offset: 1024, len: PIECE + 1024, durable }, &peer).expect("written");
        assert!(rig.bytes(1024, PIECE + 1024) == out);
        let op = Op::Write { durable };
        assert_eq!(rig.asked(), [(op, 1024, PIECE_BYTES), (op, 1024 + PIECE, 1024)]);
    }
}

#[test]
fn a_write_fails_where_its_store_or_its_peer_does() {
    let rig = rig();
    let peer = sends(vec![1; 3 * PIECE_BYTES]);
    let write = Step::Write { offset: 0, len: 3 * PIECE, durable: false };
    rig.memory.faults.borrow_mut().extend([None, Some(Fault::NoSpace)]);
    assert_eq!(rig.run(write.clone(), &peer).err(), Some(failed(Fault::NoSpace, PIECE)));
    assert_eq!(peer.pulls.get(), 2, "no data is pulled afterwards");
    peer.fails_after.set(Some((4, Fault::Aborted)));
    assert_eq!(rig.run(write, &peer).err(), Some(failed(Fault::Aborted, 2 * PIECE)));
    assert_eq!(rig.asked().len(), 2 + 2);
}

#[test]
fn a_flush_is_asked_for() {
    let rig = rig();
    rig.run(Step::Flush, &Peer::default()).expect("flushed");
    rig.memory.faults.borrow_mut().push_back(Some(Fault::Medium));
    assert_eq!(rig.run(Step::Flush, &Peer::default()).err(), Some(failed(Fault::Medium, 0)));
    assert_eq!(rig.asked(), [(Op::Flush, 0, 0); 2]);
}

#[test]
fn unmapping_is_a_hint() {
    let rig = rig();
    rig.memory.faults.borrow_mut().extend([Some(Fault::Unsupported), None, Some(Fault::Os(5))]);
    let ranges = vec![(0, 512), (1024, 512)];
    rig.run(Step::Unmap(ranges.clone()), &Peer::default()).expect("unmapped");
    assert_eq!((rig.bytes(512, 1)[0], rig.bytes(1024, 512)), (1, vec![0; 512]));
    assert_eq!(rig.run(Step::Unmap(ranges.clone()), &Peer::default()).err(), Some(failed(Fault::Os(5), 0)));
    rig.asked();
    let peer = Peer { aborted: Cell::new(true), ..Peer::default() };
    assert_eq!(rig.run(Step::Unmap(ranges), &peer).err(), Some(failed(Fault::Aborted, 0)));
    assert!(rig.asked().is_empty());
}

#[test]
fn unmapped_bytes_and_misaligned_commands_are_counted() {
    let rig = rig();
    let count = |step, peer: &Peer| {
        rig.run(step, peer).expect("it is carried out");
        [Event::UnmappedBytes, Event::Misaligned].map(|event| rig.unit.tally.total(event))
    };
    let none = Peer::default();
    assert_eq!(count(Step::Read { offset: 4096, len: 8192 }, &none), [0, 0]);
    assert_eq!(count(Step::Read { offset: 512, len: 4096 }, &none), [0, 1]);
    let write = Step::Write { offset: 0, len: 512, durable: false };
    assert_eq!(count(write, &sends(vec![1; 512])), [0, 2]);
    assert_eq!(count(Step::Unmap(vec![(0, 512), (1024, 1024)]), &none), [1536, 2]);
    assert_eq!(count(filling(512, &[], true), &none), [2048, 2]);
    assert_eq!(count(filling(512, &[], false), &none), [2048, 2], "it only writes zeroes");
}

fn filling(len: u64, pattern: &[u8], unmap: bool) -> Step {
    Step::Fill { offset: 512, len, pattern: pattern.to_vec(), unmap }
}

/// A step that waits while the whole medium is rewritten does nothing afterwards.
#[test]
fn a_command_of_an_earlier_epoch_takes_no_lock() {
    let steps = [
        Step::Write { offset: PIECE, len: PIECE, durable: false },
        Step::Read { offset: PIECE, len: 512 },
        Step::Unmap(vec![(PIECE, 4096)]),
        filling(PIECE, &[1; 512], false),
        filling(2 * PIECE, &[], true),
        Step::Verify { offset: PIECE, len: 512 },
        Step::Compare { offset: PIECE, len: 512, block: None },
        Step::CompareWrite { offset: PIECE, len: 512, durable: false },
        Step::OrWrite { offset: PIECE, len: 512, durable: false },
        Step::WriteAtomic { offset: PIECE, len: 512, durable: false },
        Step::WriteVerify { offset: PIECE, len: 512, compare: true },
    ];
    for step in steps {
        let (rig, peer) = (rig(), sends(vec![9; PIECE_BYTES]));
        let all = Span { start: 0, end: SIZE as u64 };
        let held = std::pin::pin!(rig.unit.ranges.lock_exclusive(all)).poll(&mut Context::from_waker(Waker::noop()));
        let mut carrying = rig.start(step.clone(), &peer);
        assert!(poll(&mut carrying).is_none(), "{step:?} waits");
        rig.unit.ranges.set_epoch(rig.unit.ranges.epoch().next());
        drop(held);
        let ended = poll(&mut carrying).expect("the range is free").err();
        assert_eq!(ended, Some(failed(Fault::Cleared, 0)), "{step:?}");
        assert_eq!(rig.asked(), []);
        rig.run(Step::Read { offset: 0, len: 512 }, &Peer::default()).expect("a later command is admitted");
    }
}

#[test]
fn a_fill_repeats_its_pattern() {
    let rig = rig();
    let pattern: Vec<u8> = (0..512).map(|at| at as u8 ^ 0x5a).collect();
    let len = PIECE + 1024;
    rig.run(filling(len, &pattern, false), &Peer::default()).expect("filled");
    assert!(rig.bytes(512, len).chunks(512).all(|block| block == pattern));
    assert_eq!((rig.bytes(511, 1), rig.bytes(512 + len, 1)), (vec![0], vec![3 ^ 1]));
    assert_eq!(rig.asked().len(), 2);
}

#[test]
fn a_fill_with_zeroes_asks_for_them_or_writes_them() {
    for (unmap, fault) in [(false, None), (true, None), (true, Some(Fault::Unsupported))] {
        let rig = rig();
        let len = PIECE + 1024;
        rig.memory.faults.borrow_mut().push_back(fault);
        rig.run(filling(len, &[], unmap), &Peer::default()).expect("filled");
        assert!(rig.bytes(512, len).iter().all(|byte| *byte == 0));
        assert_eq!(rig.bytes(512 + len, 1), [3 ^ 1]);
        let asked = rig.asked();
        assert_eq!(asked[0], (Op::Zero { len, unmap }, 512, 0));
        assert_eq!(asked.len(), if fault.is_some() { 3 } else { 1 });
    }
}

#[test]
fn a_fill_that_is_aborted_or_fails_stops() {
    let rig = rig();
    let peer = Peer { aborted: Cell::new(true), ..Peer::default() };
    assert_eq!(rig.run(filling(PIECE, &[1; 512], false), &peer).err(), Some(failed(Fault::Aborted, 0)));
    rig.memory.faults.borrow_mut().extend([None, Some(Fault::NoSpace)]);
    let result = rig.run(filling(2 * PIECE, &[1; 512], false), &Peer::default());
    assert_eq!(result.err(), Some(failed(Fault::NoSpace, PIECE)));
}

#[test]
fn a_comparison_names_the_first_byte_that_differs() {
    let rig = rig();
    let len = PIECE + 2048;
    let compare = Step::Compare { offset: 1024, len, block: None };
    let mut out = rig.bytes(1024, len);
    rig.run(compare.clone(), &sends(out.clone())).expect("same");
    for at in [0, 511, PIECE - 1, PIECE, len - 1] {
        out[at as usize] ^= 0x80;
        assert_eq!(rig.run(compare.clone(), &sends(out.clone())).err(), Some(Failure::Miscompare { at }));
        out[at as usize] ^= 0x80;
    }
    rig.memory.faults.borrow_mut().extend([None, Some(Fault::Medium)]);
    assert_eq!(rig.run(compare, &sends(out)).err(), Some(failed(Fault::Medium, PIECE)));
}

#[test]
fn a_comparison_with_one_block() {
    let rig = rig();
    rig.memory.bytes.borrow_mut()[..2 * PIECE_BYTES].fill(6);
    let compare = Step::Compare { offset: 0, len: 2 * PIECE, block: Some(512) };
    let peer = sends(vec![6; 512]);
    rig.run(compare.clone(), &peer).expect("same");
    assert_eq!(peer.pulls.get(), 1);
    rig.memory.bytes.borrow_mut()[PIECE_BYTES + 1024 + 7] = 0;
    assert_eq!(rig.run(compare, &peer).err(), Some(Failure::Miscompare { at: 7 }), "from the start of Data-Out");
    let nothing = Step::Compare { offset: 0, len: 0, block: Some(512) };
    rig.run(nothing, &Peer::default()).expect("nothing to compare");
}

#[test]
fn an_aborted_comparison_stops() {
    let rig = rig();
    let peer = Peer { aborted: Cell::new(true), ..sends(rig.bytes(0, 2 * PIECE)) };
    let compare = Step::Compare { offset: 0, len: 2 * PIECE, block: None };
    assert!(matches!(rig.run(compare, &peer), Err(Failure::Fault { fault: Fault::Aborted, .. })));
    assert_eq!(rig.asked().len(), 1);
}

#[test]
fn a_verification_reads_and_sends_nothing() {
    let (rig, peer) = (rig(), Peer::default());
    let verify = Step::Verify { offset: 0, len: 2 * PIECE + 512 };
    let final_data = rig.run(verify.clone(), &peer).expect("readable");
    assert_eq!((final_data.data.len(), peer.pushed.borrow().len()), (0, 0));
    let lens: Vec<usize> = rig.asked().iter().map(|(_, _, len)| *len).collect();
    assert_eq!(lens, [PIECE_BYTES, PIECE_BYTES, 512]);
    rig.memory.faults.borrow_mut().extend([None, None, Some(Fault::Medium)]);
    assert_eq!(rig.run(verify.clone(), &peer).err(), Some(failed(Fault::Medium, 2 * PIECE)));
    peer.aborted.set(true);
    assert_eq!(rig.run(verify, &peer).err(), Some(failed(Fault::Aborted, 0)));
    rig.run(Step::Verify { offset: 0, len: 0 }, &peer).expect("nothing to read");
}

fn swap(len: u64) -> Step {
    Step::CompareWrite { offset: 512, len, durable: true }
}

#[test]
fn compare_and_write_writes_its_second_half_after_a_match() {
    for len in [512, PIECE] {
        let rig = rig();
        let new = vec![0xee; len as usize];
        let peer = sends([rig.bytes(512, len), new.clone()].concat());
        rig.run(swap(len), &peer).expect("swapped");
        assert!(rig.bytes(512, len) == new);
        let write = Op::Write { durable: true };
        assert_eq!(rig.asked(), [(Op::Read, 512, len as usize), (write, 512, len as usize)]);
    }
}

#[test]
fn compare_and_write_changes_nothing_after_a_mismatch() {
    let rig = rig();
    let before = rig.bytes(0, SIZE as u64);
    let mut out = [rig.bytes(512, 4096), vec![0xee; 4096]].concat();
    out[4095] ^= 1;
    assert_eq!(rig.run(swap(4096), &sends(out)).err(), Some(Failure::Miscompare { at: 4095 }));
    assert!(rig.bytes(0, SIZE as u64) == before);
    rig.run(swap(0), &Peer::default()).expect("nothing to swap");
}

#[test]
fn compare_and_write_that_is_aborted_writes_nothing() {
    let rig = rig();
    let before = rig.bytes(512, 512);
    let peer = sends([before.clone(), vec![1; 512]].concat());
    rig.memory.waits.set(true);
    let mut swapping = rig.start(swap(512), &peer);
    assert!(poll(&mut swapping).is_none());
    peer.aborted.set(true);
    assert_eq!(rig.memory.serve(), Op::Read);
    let result = poll(&mut swapping).expect("done");
    assert_eq!(result.err(), Some(failed(Fault::Aborted, 0)));
    assert_eq!((rig.bytes(512, 512), rig.memory.waiting.borrow().len()), (before, 0));
}

#[test]
fn no_write_comes_between_compare_and_write() {
    let rig = rig();
    let swapper = sends([rig.bytes(512, 512), vec![9; 512]].concat());
    let rival = sends([rig.bytes(512, 512), vec![2; 512]].concat());
    let writer = sends(vec![3; 512]);
    rig.memory.waits.set(true);
    let mut swapping = rig.start(swap(512), &swapper);
    assert!(poll(&mut swapping).is_none());
    let mut rivalling = rig.start(swap(512), &rival);
    let mut writing = rig.start(Step::Write { offset: 512, len: 512, durable: false }, &writer);
    assert!(poll(&mut rivalling).is_none() && poll(&mut writing).is_none());
    assert_eq!(rig.memory.waiting.borrow().len(), 1, "only the read of the first block");
    assert_eq!(rig.memory.serve(), Op::Read);
    assert!(poll(&mut swapping).is_none());
    assert!(poll(&mut rivalling).is_none() && poll(&mut writing).is_none());
    assert_eq!(rig.memory.serve(), Op::Write { durable: true });
    assert!(poll(&mut swapping).expect("done").is_ok());
    drop(swapping);
    assert!(poll(&mut rivalling).is_none());
    assert_eq!(rig.memory.serve(), Op::Read);
    assert_eq!(poll(&mut rivalling).expect("done").err(), Some(Failure::Miscompare { at: 0 }));
    drop(rivalling);
    assert!(poll(&mut writing).is_none());
    assert_eq!(rig.memory.serve(), Op::Write { durable: false });
    assert!(poll(&mut writing).expect("done").is_ok());
    assert_eq!(rig.bytes(512, 1), [3]);
}

#[test]
fn an_or_write_ors_piece_by_piece() {
    let rig = rig();
    let len = PIECE + 1024;
    let out: Vec<u8> = (0..len).map(|at| (at / 256) as u8).collect();
    let expected: Vec<u8> = rig.bytes(512, len).iter().zip(&out).map(|(old, new)| old | new).collect();
    rig.run(Step::OrWrite { offset: 512, len, durable: true }, &sends(out)).expect("or'ed");
    assert!(rig.bytes(512, len) == expected);
    let write = Op::Write { durable: true };
    let second = 512 + PIECE;
    let asked = [(Op::Read, 512, PIECE_BYTES), (write, 512, PIECE_BYTES), (Op::Read, second, 1024)];
    assert_eq!(rig.asked(), [&asked[..], &[(write, second, 1024)]].concat());
    rig.run(Step::OrWrite { offset: 0, len: 0, durable: false }, &Peer::default()).expect("nothing to or");
    rig.memory.faults.borrow_mut().extend([None, None, Some(Fault::Medium)]);
    let result = rig.run(Step::OrWrite { offset: 0, len, durable: false }, &sends(vec![0; len as usize]));
    assert_eq!(result.err(), Some(failed(Fault::Medium, PIECE)));
}

#[test]
fn no_write_comes_between_the_halves_of_an_or_write() {
    let rig = rig();
    rig.memory.bytes.borrow_mut()[512..1024].fill(1);
    let (or, writer) = (sends(vec![2; 512]), sends(vec![4; 512]));
    rig.memory.waits.set(true);
    let mut oring = rig.start(Step::OrWrite { offset: 512, len: 512, durable: false }, &or);
    assert!(poll(&mut oring).is_none());
    let mut writing = rig.start(Step::Write { offset: 512, len: 512, durable: false }, &writer);
    assert!(poll(&mut writing).is_none());
    assert_eq!(rig.memory.serve(), Op::Read);
    assert!(poll(&mut oring).is_none() && poll(&mut writing).is_none());
    assert_eq!(rig.memory.waiting.borrow().len(), 1);
    assert_eq!(rig.memory.serve(), Op::Write { durable: false });
    assert_eq!(rig.bytes(512, 1), [3]);
    assert!(poll(&mut oring).expect("done").is_ok());
    drop(oring);
    assert!(poll(&mut writing).is_none());
    rig.memory.serve();
    assert!(poll(&mut writing).expect("done").is_ok());
    assert_eq!(rig.bytes(512, 1), [4]);
}

#[test]
fn a_step_with_memory_does_not_wait_for_more() {
    let rig = rig();
    let peer = sends(vec![1; PIECE_BYTES]);
    let _all: Vec<_> = std::iter::from_fn(|| rig.arena.take(1)).collect();
    for step in [
        Step::OrWrite { offset: 0, len: PIECE, durable: false },
        Step::WriteVerify { offset: 0, len: PIECE, compare: false },
        Step::Compare { offset: 0, len: PIECE, block: None },
        Step::CompareWrite { offset: 0, len: PIECE / 2, durable: false },
    ] {
        let result = poll(&mut rig.start(step, &peer)).expect("an answer at once");
        assert_eq!(result.err(), Some(failed(Fault::NoMemory, 0)));
    }
    assert!(rig.asked().is_empty());
}

#[test]
fn an_atomic_write_waits_for_earlier_io_and_stops_later_io() {
    let rig = rig();
    let (first, atomic) = (sends(vec![1; 1024]), sends(vec![2; PIECE_BYTES]));
    rig.memory.waits.set(true);
    let mut writing = rig.start(Step::Write { offset: 0, len: 1024, durable: false }, &first);
    assert!(poll(&mut writing).is_none());
    let mut whole = rig.start(Step::WriteAtomic { offset: 512, len: PIECE, durable: false }, &atomic);
    let reader = Peer::default();
    let mut reading = rig.start(Step::Read { offset: 0, len: 1024 }, &reader);
    assert!(poll(&mut whole).is_none() && poll(&mut reading).is_none());
    assert_eq!(rig.memory.waiting.borrow().len(), 1);
    assert_eq!(rig.memory.serve(), Op::Write { durable: false });
    assert!(poll(&mut writing).expect("done").is_ok());
    drop(writing);
    assert!(poll(&mut whole).is_none() && poll(&mut reading).is_none());
    assert_eq!(rig.memory.waiting.borrow().len(), 1);
    assert_eq!(rig.memory.serve(), Op::Write { durable: false });
    assert!(poll(&mut whole).expect("done").is_ok());
    drop(whole);
    assert!(poll(&mut reading).is_none());
    assert_eq!(rig.memory.serve(), Op::Read);
    assert!(poll(&mut reading).expect("done").is_ok());
    atomic.aborted.set(true);
    assert!(rig.run(Step::WriteAtomic { offset: 0, len: 0, durable: false }, &atomic).is_ok());
}

#[test]
fn written_and_verified_data_is_read_back() {
    for compare in [false, true] {
        let rig = rig();
        let len = PIECE + 512;
        let out: Vec<u8> = (0..len).map(|at| at as u8).collect();
        rig.run(Step::WriteVerify { offset: 512, len, compare }, &sends(out.clone())).expect("written");
        assert!(rig.bytes(512, len) == out);
        let write = Op::Write { durable: true };
        let first = [(write, 512, PIECE_BYTES), (Op::Read, 512, PIECE_BYTES)];
        assert_eq!(rig.asked(), [&first[..], &[(write, 512 + PIECE, 512), (Op::Read, 512 + PIECE, 512)]].concat());
    }
}

#[test]
fn a_medium_that_keeps_something_else_is_found_out() {
    for compare in [false, true] {
        let rig = rig();
        let peer = sends(vec![8; 2 * PIECE_BYTES]);
        rig.memory.waits.set(true);
        let mut writing = rig.start(Step::WriteVerify { offset: 0, len: 2 * PIECE, compare }, &peer);
        assert!(poll(&mut writing).is_none());
        for _ in 0..3 {
            rig.memory.serve();
            assert!(poll(&mut writing).is_none());
        }
        rig.memory.bytes.borrow_mut()[PIECE_BYTES + 700] ^= 1;
        assert_eq!(rig.memory.serve(), Op::Read);
        let result = poll(&mut writing).expect("done").err();
        assert_eq!(result, compare.then_some(Failure::Miscompare { at: PIECE + 700 }));
    }
}

#[test]
fn a_step_that_is_given_up_lets_go_of_all() {
    let rig = rig();
    let peer = sends([rig.bytes(512, 512), vec![1; 512]].concat());
    rig.memory.waits.set(true);
    let mut swapping = rig.start(swap(512), &peer);
    assert!(poll(&mut swapping).is_none());
    drop(swapping);
    rig.memory.serve();
    assert_eq!(rig.arena.used(), 0);
    rig.memory.waits.set(false);
    rig.run(Step::Write { offset: 512, len: 512, durable: false }, &peer).expect("the range is free");
}

#[test]
fn a_step_waits_for_memory() {
    let rig = rig();
    let all: Vec<_> = std::iter::from_fn(|| rig.arena.take(BLOCK_MAX)).collect();
    let peer = Peer::default();
    let rest: Vec<_> = std::iter::from_fn(|| rig.arena.take(1)).collect();
    let mut reading = rig.start(Step::Read { offset: 0, len: PIECE }, &peer);
    assert!(poll(&mut reading).is_none());
    drop((all, rest));
    assert!(poll(&mut reading).expect("memory came").is_ok());
}

fn steps() -> impl Strategy<Value = (Step, Vec<u8>)> {
    let place = (0u64..64, 1u64..64, any::<u8>());
    (0..5, place).prop_map(|(kind, (at, count, byte))| {
        let (offset, len) = (at * BLOCK, count * BLOCK);
        let data = vec![byte; len as usize];
        match kind {
            0 => (Step::Read { offset, len }, Vec::new()),
            1 => (Step::Write { offset, len, durable: false }, data),
            2 => (Step::Fill { offset, len, pattern: vec![byte; 512], unmap: false }, Vec::new()),
            3 => (Step::Fill { offset, len, pattern: Vec::new(), unmap: true }, Vec::new()),
            _ => (Step::Unmap(vec![(offset, BLOCK), (offset, len)]), Vec::new()),
        }
    })
}

proptest! {
    #[test]
    fn steps_do_what_a_plain_array_does(list in prop::collection::vec(steps(), 1..20)) {
        let rig = rig();
        let mut model = rig.bytes(0, SIZE as u64);
        for (step, out) in list {
            let peer = sends(out.clone());
            let final_data = rig.run(step.clone(), &peer).expect("well");
            match step {
                Step::Read { offset, len } => {
                    prop_assert_eq!(&final_data.data.to_vec()[..], &model[offset as usize..(offset + len) as usize]);
                }
                Step::Write { offset, .. } => model[offset as usize..][..out.len()].copy_from_slice(&out),
                Step::Fill { offset, len, pattern, .. } => {
                    model[offset as usize..(offset + len) as usize].fill(pattern.first().copied().unwrap_or(0));
                }
                Step::Unmap(ranges) => {
                    for (offset, len) in ranges {
                        model[offset as usize..(offset + len) as usize].fill(0);
                    }
                }
                _ => unreachable!("not made"),
            }
        }
        prop_assert!(rig.bytes(0, SIZE as u64) == model);
        prop_assert_eq!(rig.arena.used(), 0);
    }
}

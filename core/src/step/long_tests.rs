use super::*;
use crate::range::HOLDERS_MAX;
use std::ops::Deref;

const SIZE: u64 = 64 << 30;
/// More than a step may do before other tasks run.
const MUCH: u64 = 2 << 20;

/// A store of 64 GiB that answers at once and keeps nothing. The first half takes space, the rest takes none.
#[derive(Default)]
struct Log {
    /// Bytes that take space and were worked on, and requests.
    bytes: Cell<u64>,
    requests: Cell<u64>,
    largest: Cell<u64>,
    is_slow: Cell<bool>,
    /// Requests that stay at the store, if they do.
    keeps: Cell<bool>,
    kept: RefCell<Vec<(Io, Done)>>,
}

struct LogStore(Rc<Log>, Traits);

impl ImmediateStore for LogStore {
    fn carry_out(&self, io: &mut Io) -> Result<u32, Fault> {
        let len = io.bytes();
        if let Op::Flush | Op::Extent { .. } = io.op {
            return Ok(0);
        }
        self.0.bytes.set(self.0.bytes.get() + (SIZE / 2).saturating_sub(io.offset).min(len));
        self.0.requests.set(self.0.requests.get() + 1);
        self.0.largest.set(self.0.largest.get().max(len));
        Ok(0)
    }
}

impl Store for LogStore {
    fn traits(&self) -> &Traits {
        &self.1
    }

    fn immediate(&self) -> Option<&dyn ImmediateStore> {
        (!self.0.is_slow.get()).then_some(self)
    }

    fn submit(&self, mut io: Io, done: Done) {
        if self.0.keeps.get() {
            return self.0.kept.borrow_mut().push((io, done));
        }
        let result = self.carry_out(&mut io);
        let (mapped, len) = (io.offset < SIZE / 2, io.bytes());
        let len = if mapped { len.min(SIZE / 2 - io.offset) } else { len };
        done.complete(Outcome { extent: Extent { len, mapped }, ..Outcome::with(result, io.data) });
    }
}

struct LongRig(Rig, Rc<Log>);

impl Deref for LongRig {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.0
    }
}

fn rig() -> LongRig {
    let log = Rc::<Log>::default();
    let mut rig = super::rig();
    let traits = Traits { size: SIZE, ..rig.unit.traits().clone() };
    let unit = Rc::get_mut(&mut rig.unit).expect("nobody else has it");
    (unit.geometry, unit.store) = (Geometry::of(&traits, 512).expect("whole"), Box::new(LogStore(log.clone(), traits)));
    LongRig(rig, log)
}

/// Polls a step until it ends; tells how often, and the most bytes that it worked on in one poll.
fn run(rig: &LongRig, step: Step) -> (u64, u64) {
    let peer = sends(vec![7; PIECE_BYTES]);
    let mut carrying = rig.start(step, &peer);
    let (mut polls, mut most) = (0, 0);
    loop {
        let before = rig.1.bytes.get();
        let ended = poll(&mut carrying);
        polls += 1;
        most = most.max(rig.1.bytes.get() - before);
        if let Some(result) = ended {
            result.expect("it goes well");
            return (polls, most);
        }
    }
}

fn zeroes(len: u64) -> Step {
    Step::Fill { offset: 0, len, pattern: Vec::new(), unmap: false }
}

#[test]
fn other_tasks_run_between_the_parts_of_every_long_step() {
    let block = vec![3; 512];
    let other = rig();
    for step in [
        Step::Unmap(vec![(0, SIZE)]),
        zeroes(SIZE),
        Step::Fill { offset: 0, len: 64 << 20, pattern: block, unmap: false },
        Step::Verify { offset: 0, len: 256 << 20 },
        Step::Copy { from: other.unit.clone(), at: 0, offset: 0, len: 64 << 20 },
    ] {
        let rig = rig();
        let told = format!("{step:?}");
        let (polls, most) = run(&rig, step);
        assert!(most <= MUCH, "{told}: {most} bytes at once");
        assert!(polls >= rig.1.bytes.get() / MUCH, "{told}: {polls} polls of {} bytes", rig.1.bytes.get());
    }
}

#[test]
fn a_short_step_is_not_interrupted() {
    for step in [zeroes(MUCH), Step::Verify { offset: 0, len: 1 << 20 }, Step::Unmap(vec![(0, MUCH), (MUCH * 9, 512)])]
    {
        assert_eq!(run(&rig(), step).0, 1);
    }
}

/// 256 ranges of the whole medium are the whole medium.
#[test]
fn a_list_that_names_the_same_bytes_again_and_again_costs_as_much_as_one_range() {
    let (once, often) = (rig(), rig());
    run(&once, Step::Unmap(vec![(0, SIZE)]));
    run(&often, Step::Unmap(vec![(0, SIZE); 256]));
    assert_eq!((often.1.bytes.get(), often.1.requests.get()), (SIZE / 2, once.1.requests.get()));
    let parts = rig();
    run(&parts, Step::Unmap(vec![(8192, 4096), (0, 4096), (4096, 0), (2048, 4096), (12288, 512)]));
    assert_eq!((parts.1.bytes.get(), parts.1.requests.get()), (6144 + 4608, 2));
}

#[test]
fn holes_are_given_back_in_large_parts() {
    let rig = rig();
    let (polls, _) = run(&rig, Step::Unmap(vec![(SIZE / 2, SIZE / 2)]));
    assert!(polls <= 129, "{polls} polls for 32 GiB that take no space");
}

#[test]
fn one_long_step_of_a_unit_works_at_a_time() {
    let rig = rig();
    let peer = Peer::default();
    let mut all: Vec<_> = (0..50).map(|_| rig.start(zeroes(512 << 20), &peer)).collect();
    for round in 0..20 {
        let before = rig.1.bytes.get();
        all.iter_mut().for_each(|step| assert!(poll(step).is_none()));
        let worked = rig.1.bytes.get() - before;
        // The first one takes the turn in the first round, and works in the next one.
        assert!(worked <= MUCH && (worked > 0 || round == 0), "round {round}: {worked} bytes");
    }
    drop(all.drain(..49));
    let mut last = all.pop().expect("one is left");
    let ended = (0..100_000).find_map(|_| poll(&mut last));
    assert!(ended.is_some_and(|result| result.is_ok()), "the turns of the others were given up");
}

/// Other units need the memory of the core.
#[test]
fn queued_steps_of_a_unit_that_need_memory_of_their_own_wait_without_it() {
    let other = rig();
    for step in [
        Step::Fill { offset: 0, len: 64 << 20, pattern: vec![3; 512], unmap: false },
        Step::Verify { offset: 0, len: 256 << 20 },
        Step::Compare { offset: 0, len: 64 << 20, block: Some(512) },
        Step::Copy { from: other.unit.clone(), at: 0, offset: 0, len: 64 << 20 },
    ] {
        let rig = rig();
        for log in [&rig.1, &other.1] {
            log.is_slow.set(true);
            log.keeps.set(true);
        }
        let peer = sends(vec![0; 512]);
        let mut all: Vec<_> = (0..100).map(|_| rig.start(step.clone(), &peer)).collect();
        for _ in 0..3 {
            all.iter_mut().for_each(|step| assert!(poll(step).is_none()));
        }
        let requests = rig.1.kept.borrow().len() + other.1.kept.borrow().len();
        assert!(requests > 0 && requests <= HOLDERS_MAX, "{step:?}: {requests} requests at the store");
        assert!(rig.arena.used() <= 2 * HOLDERS_MAX * PIECE_BYTES, "{step:?}: {} bytes", rig.arena.used());
        for log in [&rig.1, &other.1] {
            let kept = log.kept.take();
            kept.into_iter().for_each(|(io, done)| done.complete(Outcome::with(Ok(0), io.data)));
            log.keeps.set(false);
        }
        drop(all);
    }
}

#[test]
fn a_slow_store_zeroes_and_gives_back_in_parts_that_an_abort_can_wait_for() {
    let rig = rig();
    rig.1.is_slow.set(true);
    for step in [Step::Unmap(vec![(0, SIZE)]), zeroes(SIZE)] {
        assert_eq!(run(&rig, step).0, 1);
    }
    assert_eq!(rig.1.largest.get(), 256 << 20);
}

use super::*;
use crate::uncorrectable::{MARKED_BLOCKS_MAX, UNCORRECTABLE, Uncorrectable};

fn mark(offset: u64, len: u64) -> Step {
    Step::Mark { offset, len }
}

/// Two blocks of the second piece are marked.
const AT: u64 = PIECE + 5 * BLOCK;

fn marked() -> Rig {
    let rig = rig();
    rig.run(mark(AT, 2 * BLOCK), &Peer::default()).expect("marked");
    assert!(rig.asked().is_empty(), "the store is not asked");
    rig
}

#[test]
fn a_marked_block_cannot_be_read_by_any_step() {
    let rig = marked();
    let whole = rig.bytes(0, 2 * PIECE);
    for (step, at) in [
        (Step::Read { offset: BLOCK, len: 2 * PIECE - BLOCK }, AT - BLOCK),
        (Step::Read { offset: AT + BLOCK, len: BLOCK }, 0),
        (Step::Verify { offset: 0, len: 2 * PIECE }, AT),
        (Step::Compare { offset: 0, len: 2 * PIECE, block: None }, AT),
        (Step::CompareWrite { offset: PIECE, len: 8 * BLOCK, durable: false }, 5 * BLOCK),
        (Step::OrWrite { offset: 0, len: 2 * PIECE, durable: false }, AT),
    ] {
        let ended = rig.run(step.clone(), &sends(whole.clone())).err();
        assert_eq!(ended, Some(failed(Fault::Marked, at)), "{step:?}");
    }
    for copies in [false, true] {
        rig.memory.copies.set(copies);
        let copy = Step::Copy { from: rig.unit.clone(), at: AT - BLOCK, offset: 3 * PIECE, len: 2 * BLOCK };
        let ended = rig.run(copy, &Peer::default()).err();
        assert_eq!(ended, Some(Failure::Origin { fault: Fault::Marked, at: 0 }));
    }
    *rig.memory.lent.borrow_mut() = Some(Sg::default());
    let ended = rig.run(Step::Read { offset: AT, len: BLOCK }, &Peer::default()).err();
    assert_eq!(ended, Some(failed(Fault::Marked, 0)), "nor from memory that is lent");
    assert_eq!(rig.bytes(0, 2 * PIECE), whole);
    for (offset, len) in [(AT - BLOCK, BLOCK), (AT + 2 * BLOCK, BLOCK)] {
        rig.run(Step::Verify { offset, len }, &Peer::default()).expect("its neighbours can be");
    }
}

#[test]
fn a_block_written_by_any_step_can_be_read() {
    let block = || sends(vec![7; BLOCK as usize]);
    let twice = || sends(rig().bytes(AT, BLOCK).into_iter().chain([7; 512]).collect());
    let (offset, len, durable) = (AT, BLOCK, false);
    for (step, peer) in [
        (Step::Write { offset, len, durable }, block()),
        (Step::WriteAtomic { offset, len, durable }, block()),
        (Step::WriteVerify { offset, len, compare: true }, block()),
        (Step::Fill { offset, len, pattern: vec![], unmap: false }, block()),
        (Step::Fill { offset, len, pattern: vec![3; 512], unmap: false }, block()),
        (Step::Unmap(vec![(offset, len)]), block()),
        (Step::Copy { from: rig().unit, at: 0, offset, len }, block()),
    ] {
        for copies in [false, true] {
            let rig = marked();
            rig.memory.copies.set(copies);
            let step = match &step {
                Step::Copy { .. } => Step::Copy { from: rig.unit.clone(), at: 0, offset, len },
                other => other.clone(),
            };
            rig.run(step.clone(), &peer).expect("written");
            assert!(rig.asked().iter().any(|(op, ..)| *op == Op::Flush), "{step:?} lasts");
            let read = |offset| rig.run(Step::Read { offset, len: BLOCK }, &Peer::default());
            assert_eq!(read(AT).expect("it was written").data.to_vec(), rig.bytes(AT, BLOCK), "{step:?}");
            assert_eq!(read(AT + BLOCK).err(), Some(failed(Fault::Marked, 0)), "the other block was not");
            let kept = Uncorrectable::restored(&*rig.unit.metadata).expect("what was kept");
            assert_eq!(kept.first_in(span(0, SIZE as u64)), Some(AT + BLOCK), "{step:?}");
        }
    }
    // A step that reads the blocks before it writes them fails.
    let rig = marked();
    let step = Step::CompareWrite { offset, len, durable };
    assert_eq!(rig.run(step, &twice()).err(), Some(failed(Fault::Marked, 0)));
}

#[test]
fn a_write_that_failed_leaves_the_mark() {
    let rig = marked();
    let peer = sends(vec![7; BLOCK as usize]);
    let step = || Step::Write { offset: AT, len: BLOCK, durable: false };
    // The write itself, and the flush that makes it durable.
    for faults in [vec![Some(Fault::Medium)], vec![None, Some(Fault::Medium)]] {
        rig.memory.faults.borrow_mut().extend(faults);
        assert_eq!(rig.run(step(), &peer).err(), Some(failed(Fault::Medium, 0)));
        let read = rig.run(Step::Read { offset: AT, len: BLOCK }, &Peer::default()).err();
        assert_eq!(read, Some(failed(Fault::Marked, 0)));
    }
}

#[test]
fn a_mark_waits_for_earlier_io_and_later_io_waits_for_the_mark() {
    let rig = rig();
    let (peer, out) = (Peer::default(), sends(vec![7; BLOCK as usize]));
    rig.memory.waits.set(true);
    let mut writing = rig.start(Step::Write { offset: AT, len: BLOCK, durable: false }, &out);
    assert!(poll(&mut writing).is_none());
    let mut marking = rig.start(mark(AT, BLOCK), &peer);
    assert!(poll(&mut marking).is_none(), "a write is in progress");
    let mut reading = rig.start(Step::Read { offset: AT, len: BLOCK }, &peer);
    assert!(poll(&mut reading).is_none());
    rig.memory.serve();
    assert!(poll(&mut writing).expect("written").is_ok());
    assert!(poll(&mut marking).expect("marked").is_ok());
    assert_eq!(poll(&mut reading).expect("at once").err(), Some(failed(Fault::Marked, 0)));
}

#[test]
fn too_many_marks_are_refused() {
    let rig = rig();
    let all = MARKED_BLOCKS_MAX * BLOCK;
    rig.run(mark(0, all), &Peer::default()).expect("room");
    assert_eq!(rig.run(mark(all, BLOCK), &Peer::default()).err(), Some(failed(Fault::NoSpace, 0)));
    let kept = rig.unit.metadata.load(UNCORRECTABLE).expect("kept");
    assert_eq!(kept, [0_u64.to_le_bytes(), all.to_le_bytes()].concat());
}

#[test]
fn a_unit_with_marks_uses_the_slow_path() {
    let rig = rig();
    rig.memory.is_quick.set(true);
    let (read, peer) = (Step::Read { offset: 0, len: BLOCK }, Peer::default());
    let now = || {
        let immediate = rig.unit.store.immediate().expect("it is");
        carry_out_now(&rig.unit, immediate, &read, &peer, &rig.arena, &mut FinalData::default())
    };
    assert!(now().is_some());
    rig.run(mark(AT, BLOCK), &peer).expect("marked");
    assert!(now().is_none());
    rig.run(Step::Write { offset: AT, len: BLOCK, durable: false }, &sends(vec![7; 512])).expect("written");
    assert!(now().is_some());
}

use super::*;

/// A rig whose store copies from itself, unless a test changes that.
fn copy(rig: &Rig, at: u64, offset: u64, len: u64) -> Step {
    Step::Copy { from: rig.unit.clone(), at, offset, len }
}

#[test]
fn a_copy_is_left_to_a_store_that_can() {
    let rig = rig();
    rig.memory.copies.set(true);
    let wanted = rig.bytes(BLOCK, PIECE);
    rig.run(copy(&rig, BLOCK, 2 * PIECE, PIECE), &Peer::default()).expect("copied");
    assert_eq!(rig.asked(), [(Op::Copy { from: BLOCK, len: PIECE }, 2 * PIECE, 0)]);
    assert!(rig.bytes(2 * PIECE, PIECE) == wanted);
    rig.memory.faults.borrow_mut().push_back(Some(Fault::NoSpace));
    let failure = rig.run(copy(&rig, 0, PIECE, BLOCK), &Peer::default()).err();
    assert_eq!(failure, Some(failed(Fault::NoSpace, 0)));
}

#[test]
fn a_copy_goes_through_memory_where_the_store_cannot() {
    for (at, offset, len) in [
        (0, 2 * PIECE, 2 * PIECE),
        (2 * PIECE, 0, 2 * PIECE),
        (BLOCK, 3 * PIECE + BLOCK, 1024),
        (0, 3 * BLOCK, 2 * PIECE + BLOCK),
        (3 * BLOCK, 0, 2 * PIECE + BLOCK),
        (0, PIECE + BLOCK, 3 * PIECE - BLOCK),
        (PIECE, PIECE, PIECE),
        (0, 0, 0),
    ] {
        for copies in [false, true] {
            let rig = rig();
            rig.memory.copies.set(copies);
            // A store that reports support refuses the copy; for ranges that overlap it is not asked.
            let is_asked = copies && len > 0 && at.abs_diff(offset) >= len;
            rig.memory.faults.borrow_mut().extend(is_asked.then_some(Some(Fault::Unsupported)));
            let mut wanted = rig.bytes(0, SIZE as u64);
            wanted.copy_within(at as usize..(at + len) as usize, offset as usize);
            rig.run(copy(&rig, at, offset, len), &Peer::default()).expect("copied");
            assert!(rig.bytes(0, SIZE as u64) == wanted, "{len} bytes from {at} to {offset}");
        }
    }
}

#[test]
fn a_copy_reads_ahead_and_takes_two_pieces_of_memory_at_most() {
    let (rig, peer) = (rig(), Peer::default());
    rig.memory.waits.set(true);
    let mut copying = rig.start(copy(&rig, 0, 2 * PIECE, 2 * PIECE), &peer);
    assert!(poll(&mut copying).is_none());
    assert_eq!(rig.memory.serve(), Op::Read);
    assert!(poll(&mut copying).is_none());
    assert_eq!(rig.memory.waiting.borrow().len(), 2, "one piece is written while the next is read");
    assert_eq!(rig.arena.used(), 2 * PIECE_BYTES);
    while poll(&mut copying).is_none() {
        rig.memory.serve();
    }
    assert_eq!(rig.arena.used(), 0);
}

#[test]
fn copies_go_on_when_memory_is_scarce() {
    let (mut rig, peer) = (rig(), Peer::default());
    rig.arena = Arena::new(2 * PIECE_BYTES);
    let hog = rig.arena.take_sg(PIECE_BYTES / 2).expect("room");
    let before = rig.bytes(0, 2 * PIECE);
    poll(&mut rig.start(copy(&rig, 0, 2 * PIECE, 2 * PIECE), &peer))
        .expect("the step waits for nothing")
        .expect("copied");
    assert!(rig.bytes(2 * PIECE, 2 * PIECE) == before);
    drop(hog);
}

#[test]
fn a_copy_says_which_side_failed_and_where() {
    let rig = rig();
    let run = |faults: [Option<Fault>; 4]| {
        *rig.memory.faults.borrow_mut() = faults.into();
        rig.run(copy(&rig, 0, 2 * PIECE, 2 * PIECE), &Peer::default()).err()
    };
    // One piece is read; the next is read while it is written; then the next is written.
    let medium = Some(Fault::Medium);
    let origin = |at| Some(Failure::Origin { fault: Fault::Medium, at });
    assert_eq!(run([medium, None, None, None]), origin(0));
    assert_eq!(run([None, medium, None, None]), origin(PIECE));
    assert_eq!(run([None, None, medium, None]), Some(failed(Fault::Medium, 0)));
    assert_eq!(run([None, None, None, medium]), Some(failed(Fault::Medium, PIECE)));
}

#[test]
fn a_copy_stops_when_it_is_aborted() {
    let (rig, peer) = (rig(), Peer::default());
    rig.memory.waits.set(true);
    let mut copying = rig.start(copy(&rig, 0, 2 * PIECE, 2 * PIECE), &peer);
    assert!(poll(&mut copying).is_none());
    peer.aborted.set(true);
    rig.memory.serve();
    let result = poll(&mut copying).expect("no request is in progress");
    assert_eq!(result.err(), Some(failed(Fault::Aborted, 0)));
    assert_eq!(rig.asked().len(), 1);
}

#[test]
fn a_copy_keeps_out_of_ranges_that_are_held() {
    let (rig, peer) = (rig(), Peer::default());
    for held in [0, 2 * PIECE] {
        let span = Span { start: held, end: held + 1 };
        let mut holding = Box::pin(rig.unit.ranges.lock_exclusive(span));
        let Poll::Ready(guard) = holding.as_mut().poll(&mut Context::from_waker(Waker::noop())) else { panic!("free") };
        let mut copying = rig.start(copy(&rig, 0, 2 * PIECE, PIECE), &peer);
        assert!(poll(&mut copying).is_none());
        drop(guard);
        assert!(poll(&mut copying).is_some_and(|result| result.is_ok()));
    }
}

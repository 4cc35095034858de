use super::*;

/// The result of a step that may not wait.
fn now(rig: &Rig, step: &Step, peer: &Peer) -> Option<Result<Vec<u8>, Failure>> {
    let immediate = rig.unit.store.immediate()?;
    let mut final_data = FinalData::default();
    let ended = carry_out_now(&rig.unit, immediate, step, peer, &rig.arena, &mut final_data)?;
    Some(ended.map(|()| final_data.data.to_vec()))
}

fn immediate() -> Rig {
    let rig = rig();
    rig.memory.is_quick.set(true);
    rig
}

#[test]
fn data_in_memory_is_read_and_written_at_once() {
    let rig = immediate();
    let peer = sends(vec![7; 1024]);
    let write = Step::Write { offset: BLOCK, len: 1024, durable: true };
    assert_eq!(now(&rig, &write, &peer), Some(Ok(vec![])));
    assert_eq!(rig.asked(), [(Op::Write { durable: true }, BLOCK, 1024)]);
    let read = now(&rig, &Step::Read { offset: 0, len: 4 * BLOCK }, &peer);
    assert_eq!(read, Some(Ok(rig.bytes(0, 4 * BLOCK))));
    assert_eq!(rig.bytes(BLOCK, 1024), [7; 1024]);
    assert_eq!(rig.arena.used(), 0);
}

#[test]
fn a_fault_is_reported_with_its_place() {
    let rig = immediate();
    for step in [Step::Read { offset: 0, len: BLOCK }, Step::Write { offset: 0, len: BLOCK, durable: false }] {
        rig.memory.faults.borrow_mut().push_back(Some(Fault::Medium));
        assert_eq!(now(&rig, &step, &sends(vec![0; 512])), Some(Err(failed(Fault::Medium, 0))));
        assert_eq!(rig.arena.used(), 0);
    }
}

#[test]
fn a_step_that_has_to_wait_changes_nothing() {
    let rig = immediate();
    let (peer, read) = (sends(vec![0; 512]), Step::Read { offset: 0, len: BLOCK });
    for step in [
        Step::Flush,
        Step::Read { offset: 0, len: 0 },
        Step::Read { offset: 0, len: PIECE + BLOCK },
        Step::Compare { offset: 0, len: BLOCK, block: None },
        // More than has arrived.
        Step::Write { offset: 0, len: 2 * BLOCK, durable: false },
    ] {
        assert_eq!(now(&rig, &step, &peer), None, "{step:?}");
    }
    peer.aborted.set(true);
    assert_eq!(now(&rig, &read, &peer), None, "there is no room");
    peer.aborted.set(false);
    let mut holding = Box::pin(rig.unit.ranges.lock_exclusive(Span { start: 0, end: BLOCK }));
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(held) = holding.as_mut().poll(&mut cx) else { panic!("no lock is held") };
    assert_eq!(now(&rig, &read, &peer), None, "its range is locked");
    assert!(now(&rig, &Step::Read { offset: BLOCK, len: BLOCK }, &peer).is_some(), "another range is not");
    drop(held);
    assert!(now(&rig, &read, &peer).is_some());
    let all = rig.arena.take_sg(rig.arena.size() - 2 * BLOCK_MAX).expect("room");
    let rest: Vec<_> = std::iter::from_fn(|| rig.arena.take(512)).collect();
    assert_eq!(now(&rig, &read, &peer), None, "there is no memory");
    drop((all, rest));
    rig.memory.is_quick.set(false);
    assert_eq!(now(&rig, &read, &peer), None, "the store is slow");
    rig.asked();
}

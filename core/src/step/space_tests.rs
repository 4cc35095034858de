use super::*;

#[test]
fn a_survey_merges_runs_of_whole_blocks() {
    type Runs = &'static [(u64, bool)];
    let table: [(Runs, usize, Runs); 6] = [
        (&[(8192, false)], 9, &[(8192, false)]),
        (&[(4096, true), (2048, true), (2048, false)], 9, &[(6144, true), (2048, false)]),
        // A block is mapped if a part of it is.
        (&[(1000, true), (1500, false), (5668, true)], 9, &[(1024, true), (1024, false), (6144, true)]),
        (&[(100, false), (8000, true)], 9, &[(8192, true)]),
        (&[(0, false), (8192, false)], 9, &[(512, true), (7680, false)]),
        (&[(512, true), (512, false), (512, false), (512, true)], 2, &[(512, true), (1024, false)]),
    ];
    for (answers, runs, expected) in table {
        let rig = rig();
        let of = |list: Runs| list.iter().map(|&(len, mapped)| Extent { len, mapped }).collect::<Vec<_>>();
        rig.memory.extents.borrow_mut().extend(of(answers));
        let (mut slot, peer) = (SlotContext::new(rig.arena.clone()), Peer::default());
        let mut asking = Box::pin(survey(&rig.unit, 512, 8192, runs, &peer, &mut slot));
        let found = match asking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(found) => found.expect("told"),
            Poll::Pending => panic!("nothing waits"),
        };
        assert_eq!(found, of(expected));
    }
}

#[test]
fn a_survey_that_takes_long_or_is_aborted_ends_with_what_it_has_found() {
    for is_aborted in [false, true] {
        let (rig, peer, stats) = (rig(), Peer::default(), Arc::new(Stats::default()));
        rig.memory.waits.set(true);
        rig.memory.extents.borrow_mut().extend([true, false, true].map(|mapped| Extent { len: 512, mapped }));
        let mut slot = SlotContext::timed(rig.arena.clone(), &stats);
        let mut asking = Box::pin(survey(&rig.unit, 0, 8192, 9, &peer, &mut slot));
        let mut poll = || asking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        rig.memory.serve();
        assert!(poll().is_pending(), "there is time");
        rig.memory.serve();
        match is_aborted {
            true => peer.aborted.set(true),
            false => stats.set_now(Instant(1_000_000_000)),
        }
        let Poll::Ready(found) = poll() else { panic!("it asks again") };
        assert_eq!(found.expect("told").len(), 2);
    }
}

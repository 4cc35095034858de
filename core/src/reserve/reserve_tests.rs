use super::*;
use proptest::prelude::*;

const KINDS: [Kind; 6] = [
    Kind::WRITE_EXCLUSIVE,
    Kind::EXCLUSIVE_ACCESS,
    Kind::WRITE_EXCLUSIVE_REGISTRANTS_ONLY,
    Kind::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY,
    Kind::WRITE_EXCLUSIVE_ALL_REGISTRANTS,
    Kind::EXCLUSIVE_ACCESS_ALL_REGISTRANTS,
];

/// Nexuses by letter; the key of each is its letter.
fn name(letter: char) -> NexusName {
    NexusName { initiator: letter.to_string().into(), target_port: 1 }
}

fn order(action: Action, kind: u8, key: u64, action_key: u64) -> Request {
    Request::Persistent(Order { action, scope_and_kind: kind, key, action_key })
}

fn registering(ignore: bool) -> Action {
    Action::Register { ignore, outlives: false, ports: vec![1], initiators: vec![] }
}

fn moving(to: char, unregister: bool) -> Action {
    Action::Move { to: name(to), unregister, outlives: false }
}

const PREEMPT: Action = Action::Preempt { abort: false };

/// Who is registered (in the order of letters, each with its letter for a key) and who holds what.
fn state(registrants: &str, holder: Option<(char, Kind)>) -> Reservations {
    let mut state = Reservations::default();
    for letter in registrants.chars() {
        state.registrants.insert(name(letter), letter.into());
    }
    state.persistent =
        holder.map(|(by, kind)| Reservation { kind, holder: (!kind.is_held_by_all()).then(|| name(by)) });
    state
}

fn registered(state: &Reservations) -> String {
    state.registrants().map(|(name, _)| &*name.initiator).collect()
}

fn told(news: &News) -> Vec<(char, Told)> {
    news.told.iter().filter_map(|(name, what)| Some((name.initiator.chars().next()?, *what))).collect()
}

/// The key of a letter.
fn key(letter: char) -> u64 {
    letter.into()
}

fn refused(result: Result<(Reservations, News), Denial>) -> Denial {
    result.expect_err("it is refused")
}

const CONFLICT: Denial = Denial::Conflict;

#[test]
fn registrations() {
    let none = Reservations::default();
    // Whether it is registered, REGISTER or ignoring, key, new key; who is registered after, or conflict.
    for (before, ignore, given, new, after) in [
        ("", false, 0, 9, Some("a")),
        ("", false, 0, 0, Some("")),
        ("", false, 5, 9, None),
        ("", true, 5, 9, Some("a")),
        ("", true, 0, 0, Some("")),
        ("a", false, key('a'), 9, Some("a")),
        ("a", false, key('a'), 0, Some("")),
        ("a", false, 0, 9, None),
        ("a", false, 5, 0, None),
        ("a", true, 5, 9, Some("a")),
        ("a", true, 5, 0, Some("")),
    ] {
        let result = state(before, None).changed(&name('a'), &order(registering(ignore), 0, given, new));
        let case = format!("{before:?} {ignore} {given} {new}");
        let Some(after) = after else {
            assert_eq!(refused(result), CONFLICT, "{case}");
            continue;
        };
        let (next, news) = result.expect(&case);
        assert_eq!((registered(&next).as_str(), told(&news)), (after, vec![]), "{case}");
        let does_nothing = before.is_empty() && new == 0;
        assert_eq!(next.generation(), u32::from(!does_nothing), "{case}");
        assert!(after.is_empty() || next.registrants[&name('a')] == 9, "{case}");
    }
    assert_eq!(none.reservation(), None);
}

#[test]
fn the_last_registration_decides_whether_all_outlives_a_restart() {
    let mut state = state("", None);
    for outlives in [true, false] {
        let action = Action::Register { ignore: true, outlives, ports: vec![1], initiators: vec![] };
        state = state.changed(&name('a'), &order(action, 0, 0, 7)).expect("registered").0;
        assert_eq!(state.outlives(), outlives);
    }
}

#[test]
fn other_ports_are_registered_as_well() {
    let action = |ports: &[u16], initiators: &[&str]| Action::Register {
        ignore: false,
        outlives: false,
        ports: ports.to_vec(),
        initiators: initiators.iter().map(|initiator| (*initiator).into()).collect(),
    };
    let all = order(action(&[1, 2], &["b", "a"]), 0, 0, 7);
    let (next, _) = Reservations::default().changed(&name('a'), &all).expect("registered");
    let ports: Vec<_> = next.registrants().map(|(name, key)| (&*name.initiator, name.target_port, key)).collect();
    assert_eq!(ports, [("a", 1, 7), ("a", 2, 7), ("b", 1, 7), ("b", 2, 7)]);
    let (next, _) = next.changed(&name('a'), &order(action(&[1, 2], &[]), 0, 7, 0)).expect("unregistered");
    assert_eq!(registered(&next), "bb");
    assert_eq!(refused(next.changed(&name('a'), &all)), Denial::Named, "nobody's registration is taken over");
    let again = order(action(&[1], &["c"]), 0, key('a'), 7);
    assert_eq!(refused(state("a", None).changed(&name('a'), &again)), Denial::Naming, "only with one's own first");
}

#[test]
fn registrants_are_counted() {
    let mut full = Reservations::default();
    for port in 0..REGISTRANTS_MAX {
        let port = u16::try_from(port).expect("thousands");
        full.registrants.insert(NexusName { initiator: "x".into(), target_port: port }, 1);
    }
    assert_eq!(refused(full.changed(&name('a'), &order(registering(false), 0, 0, 7))), Denial::NoRoom);
    let one = NexusName { initiator: "x".into(), target_port: 1 };
    assert!(full.changed(&one, &order(registering(false), 0, 1, 7)).is_ok());
}

/// Reserving, by whom is registered, under what there is.
#[test]
fn reserving_every_type_under_every_type() {
    for kind in KINDS {
        let reserve = |by, given| (name(by), order(Action::Reserve, kind.0, given, 0));
        let (by, request) = reserve('a', key('a'));
        let (next, news) = state("ab", None).changed(&by, &request).expect("free");
        assert_eq!(next, state("ab", Some(('a', kind))), "{kind:?}: and no generation");
        assert_eq!(told(&news), []);
        for (by, given, what) in [('c', 0, "unregistered"), ('a', key('b'), "another's key")] {
            let (by, request) = reserve(by, given);
            assert_eq!(refused(state("ab", None).changed(&by, &request)), CONFLICT, "{kind:?}, {what}");
        }
        for before in KINDS {
            for letter in ['a', 'b'] {
                let (by, request) = reserve(letter, key(letter));
                let held = state("ab", Some(('a', before)));
                let may = before == kind && (letter == 'a' || kind.is_held_by_all());
                match held.changed(&by, &request) {
                    Ok((next, _)) => assert!(may && next == held, "{kind:?} under {before:?} by {letter}"),
                    refusal => assert!(!may && refused(refusal) == CONFLICT, "{kind:?} under {before:?} by {letter}"),
                }
            }
        }
    }
}

#[test]
fn only_types_and_scopes_that_there_are() {
    for wrong in (0..=255).filter(|wrong| !KINDS.contains(&Kind(*wrong))) {
        let request = order(Action::Reserve, wrong, key('a'), 0);
        let denial = if wrong >> 4 == 0 { Denial::Kind } else { Denial::Scope };
        assert_eq!(refused(state("a", None).changed(&name('a'), &request)), denial);
    }
}

#[test]
fn releasing_every_type() {
    for kind in KINDS {
        let release = |held: &Reservations, by, kind: Kind| {
            held.changed(&name(by), &order(Action::Release, kind.0, by.into(), 0))
        };
        let held = state("abc", Some(('a', kind)));
        let (next, news) = release(&held, 'a', kind).expect("the holder");
        assert_eq!(next, state("abc", None), "{kind:?}");
        let released = Told::Released;
        let expected = if kind.admits_registrants() { vec![('b', released), ('c', released)] } else { vec![] };
        assert_eq!(told(&news), expected, "{kind:?}");
        let (next, _) = release(&held, 'b', kind).expect("no error for others");
        assert_eq!(next.reservation().is_none(), kind.is_held_by_all(), "{kind:?}");
        assert_eq!(refused(release(&held, 'd', kind)), CONFLICT);
        for other in KINDS.into_iter().filter(|other| *other != kind) {
            assert_eq!(refused(release(&held, 'a', other)), Denial::Release, "{kind:?} as {other:?}");
        }
        let free = state("abc", None);
        assert_eq!(release(&free, 'a', kind).expect("nothing to release").0, free);
    }
}

#[test]
fn unregistering_every_type() {
    for kind in KINDS {
        let held = state("abc", Some(('a', kind)));
        let leave = |state: &Reservations, by| {
            state.changed(&name(by), &order(registering(false), 0, by.into(), 0)).expect("registered")
        };
        let (next, news) = leave(&held, 'a');
        let stays = kind.is_held_by_all();
        assert_eq!((next.reservation().is_some(), registered(&next).as_str()), (stays, "bc"), "{kind:?}");
        let released = Told::Released;
        let tells = kind.admits_registrants() && !stays;
        assert_eq!(told(&news), if tells { vec![('b', released), ('c', released)] } else { vec![] }, "{kind:?}");
        let (next, news) = leave(&held, 'b');
        assert!(next.reservation().is_some() && told(&news).is_empty(), "{kind:?}");
        let (last, _) = leave(&leave(&leave(&held, 'c').0, 'b').0, 'a');
        assert_eq!((last.reservation(), registered(&last).as_str()), (None, ""), "{kind:?}");
    }
}

#[test]
fn clearing_every_type() {
    for holder in KINDS.map(|kind| Some(('b', kind))).into_iter().chain([None]) {
        let (next, news) =
            state("abc", holder).changed(&name('a'), &order(Action::Clear, 0, key('a'), 0)).expect("registered");
        assert_eq!((registered(&next).as_str(), next.reservation(), next.generation()), ("", None, 1));
        assert_eq!(told(&news), [('b', Told::Cleared), ('c', Told::Cleared)]);
        assert_eq!(refused(state("abc", holder).changed(&name('d'), &order(Action::Clear, 0, 0, 0))), CONFLICT);
    }
}

#[test]
fn preempting_every_type_by_every_type() {
    let (gone, released) = (Told::Preempted, Told::Released);
    for before in KINDS {
        for after in KINDS {
            let held = state("abc", Some(('b', before)));
            let target = if before.is_held_by_all() { 0 } else { key('b') };
            for abort in [false, true] {
                let request = order(Action::Preempt { abort }, after.0, key('a'), target);
                let (next, news) = held.changed(&name('a'), &request).expect("registered");
                let case = format!("{before:?} by {after:?}");
                let left = if before.is_held_by_all() { "a" } else { "ac" };
                let mut expected = state(left, Some(('a', after)));
                expected.generation = 1;
                assert_eq!(next, expected, "{case}");
                let others = match (before.is_held_by_all(), before == after) {
                    (true, _) => vec![('b', gone), ('c', gone)],
                    (false, true) => vec![('b', gone)],
                    (false, false) => vec![('b', gone), ('c', released)],
                };
                assert_eq!(told(&news), others, "{case}");
                assert_eq!((news.ends(&name('b')), news.ends(&name('a'))), (abort, false), "{case}");
                assert!(before.is_held_by_all() || !news.ends(&name('c')), "{case}");
            }
        }
        let wrong = order(PREEMPT, 2, key('a'), if before.is_held_by_all() { 0 } else { key('b') });
        assert_eq!(refused(state("ab", Some(('b', before))).changed(&name('a'), &wrong)), Denial::Kind);
    }
}

#[test]
fn preempting_registrations() {
    let gone = Told::Preempted;
    for holder in KINDS.map(|kind| Some(('a', kind))).into_iter().chain([None]) {
        let held = state("abc", holder);
        // Scope and type do not count: no reservation is made.
        let preempt = |by: char, target| held.changed(&name(by), &order(PREEMPT, 0xff, by.into(), target));
        let (next, news) = preempt('b', key('c')).expect("registered");
        assert_eq!((registered(&next).as_str(), told(&news), next.generation()), ("ab", vec![('c', gone)], 1));
        assert_eq!(next.persistent, held.persistent);
        let (next, news) = preempt('b', key('b')).expect("registered");
        assert_eq!((registered(&next).as_str(), told(&news)), ("ac", vec![]), "itself");
        assert_eq!(refused(preempt('b', 7)), CONFLICT, "nobody has the key");
        assert_eq!(refused(preempt('d', key('c'))), CONFLICT, "not registered");
        if holder.is_none_or(|(_, kind)| !kind.is_held_by_all()) {
            assert_eq!(refused(preempt('b', 0)), Denial::ActionKey);
        }
    }
}

#[test]
fn a_reservation_that_all_hold_ends_with_the_last() {
    let held = state("a", Some(('a', Kind::EXCLUSIVE_ACCESS_ALL_REGISTRANTS)));
    let (next, _) = held.changed(&name('a'), &order(PREEMPT, 0, key('a'), key('a'))).expect("registered");
    assert_eq!((registered(&next).as_str(), next.reservation()), ("", None));
}

#[test]
fn a_holder_preempts_itself_and_those_with_its_key() {
    let mut held = state("abc", Some(('a', Kind::WRITE_EXCLUSIVE)));
    held.registrants.insert(name('c'), key('a'));
    let request = order(PREEMPT, Kind::EXCLUSIVE_ACCESS.0, key('a'), key('a'));
    let (next, news) = held.changed(&name('a'), &request).expect("registered");
    assert_eq!(registered(&next), "ab");
    assert_eq!(told(&news), [('b', Told::Released), ('c', Told::Preempted)]);
}

#[test]
fn handing_every_type_over() {
    for kind in KINDS {
        let held = state("ab", Some(('a', kind)));
        let hand_over = |by: char, to, unregister, given| {
            held.changed(&name(by), &order(moving(to, unregister), 0, by.into(), given))
        };
        if kind.is_held_by_all() {
            assert_eq!(refused(hand_over('a', 'c', false, 9)), CONFLICT, "{kind:?}");
            continue;
        }
        for (to, unregister, after) in [('c', false, "abc"), ('c', true, "bc"), ('b', false, "ab"), ('b', true, "b")] {
            let (next, news) = hand_over('a', to, unregister, 9).expect("the holder");
            let reservation = Reservation { kind, holder: Some(name(to)) };
            assert_eq!(next.reservation(), Some((&reservation, 9)), "{kind:?}");
            assert_eq!((registered(&next).as_str(), told(&news), next.generation()), (after, vec![], 1));
        }
        assert_eq!(refused(hand_over('b', 'c', false, 9)), CONFLICT, "not the holder");
        assert_eq!(refused(hand_over('d', 'c', false, 9)), CONFLICT, "not registered");
        assert_eq!(refused(hand_over('a', 'c', false, 0)), Denial::ActionKey);
        assert_eq!(refused(hand_over('a', 'a', false, 9)), Denial::MoveTo);
    }
    assert_eq!(refused(state("a", None).changed(&name('a'), &order(moving('b', false), 0, key('a'), 9))), CONFLICT);
}

#[test]
fn what_every_type_means_to_everybody() {
    for kind in KINDS {
        let held = state("ab", Some(('a', kind)));
        let others = if kind.excludes_reads() { Held::ExclusiveAccess } else { Held::WriteExclusive };
        let registered = if kind.admits_registrants() { Held::None } else { others };
        assert_eq!(
            ['a', 'b', 'c'].map(|letter| held.held(&name(letter))),
            [Held::None, registered, others],
            "{kind:?}"
        );
    }
    assert_eq!(state("a", None).held(&name('c')), Held::None);
}

#[test]
fn spc2_reservations() {
    let act = |state: &Reservations, by, request| state.changed(&name(by), &request).map(|(next, _)| next);
    let free = Reservations::default();
    let held = act(&free, 'a', Request::Reserve).expect("free");
    assert_eq!((held.spc2(), held.held(&name('a')), held.held(&name('b'))), (Some(&name('a')), Held::None, Held::Spc2));
    assert_eq!(act(&held, 'a', Request::Reserve), Ok(held.clone()));
    assert_eq!(refused(held.changed(&name('b'), &Request::Reserve)), CONFLICT);
    assert_eq!(act(&held, 'b', Request::Release), Ok(held.clone()), "another's is not released, and that is no error");
    assert_eq!(act(&held, 'a', Request::Release), Ok(free));
    for by in ['a', 'b'] {
        assert_eq!(refused(held.changed(&name(by), &order(registering(true), 0, 0, 7))), CONFLICT);
    }
}

#[test]
fn spc2_requests_among_persistent_registrations() {
    for request in [Request::Reserve, Request::Release] {
        for kind in KINDS {
            let held = state("ab", Some(('a', kind)));
            for (by, passes) in [('a', true), ('b', kind.admits_registrants()), ('c', false)] {
                match held.changed(&name(by), &request) {
                    Ok((next, _)) => assert!(passes && next == held, "{kind:?} {by}"),
                    refusal => assert!(!passes && refused(refusal) == CONFLICT, "{kind:?} {by}"),
                }
            }
        }
        assert_eq!(refused(state("ab", None).changed(&name('a'), &request)), CONFLICT);
    }
}

fn any_request() -> impl Strategy<Value = Request> {
    let letter = || prop::sample::select(vec!['a', 'b', 'c', 'd']);
    let keys = || 0u64..4;
    let action = prop_oneof![
        (any::<bool>(), any::<bool>(), prop::collection::vec(letter(), 0..2)).prop_map(|(ignore, outlives, others)| {
            let initiators = others.into_iter().map(|letter| name(letter).initiator).collect();
            Action::Register { ignore, outlives, ports: vec![1], initiators }
        }),
        Just(Action::Reserve),
        Just(Action::Release),
        Just(Action::Clear),
        any::<bool>().prop_map(|abort| Action::Preempt { abort }),
        (letter(), any::<bool>()).prop_map(|(to, unregister)| moving(to, unregister)),
    ];
    prop_oneof![
        1 => Just(Request::Reserve),
        1 => Just(Request::Release),
        9 => (action, 0u8..10, keys(), keys()).prop_map(|(action, kind, key, new)| order(action, kind, key, new)),
    ]
}

proptest! {
    /// Whatever is asked in whatever order: what must always hold does.
    #[test]
    fn reservations_agree_with_themselves(
        requests in prop::collection::vec((prop::sample::select(vec!['a', 'b', 'c', 'd']), any_request()), 0..60)
    ) {
        let mut state = Reservations::default();
        for (by, request) in requests {
            let Ok((next, news)) = state.changed(&name(by), &request) else { continue };
            prop_assert!(!news.told.contains_key(&name(by)), "nobody is told of what it did itself");
            prop_assert!(next.registrants().all(|(_, key)| key != 0));
            prop_assert!(next.spc2().is_none() || next.registrants().next().is_none());
            if let Some((reservation, key)) = next.reservation() {
                prop_assert_eq!(reservation.holder.is_none(), reservation.kind.is_held_by_all());
                prop_assert_eq!(reservation.holder.is_none(), key == 0);
                prop_assert!(next.registrants().any(|(name, _)| next.is_holder(name)), "nobody can release it");
            }
            if let Some(kept) = next.to_kept().filter(|kept| !kept.is_empty()) {
                let restored = Reservations::from_kept(&kept).expect("what was kept is read");
                let restored = Reservations { generation: next.generation, ..restored };
                prop_assert_eq!(&restored, &next);
            }
            state = next;
        }
    }
}

#[test]
fn who_sets_that_all_outlives_a_restart_need_not_be_registered() {
    let before = state("ab", Some(('a', Kind::WRITE_EXCLUSIVE)));
    assert_eq!(before.to_kept(), Some(Vec::new()));
    let (after, news) = before.changed(&name('c'), &Request::Outlive(true)).expect("whoever it is");
    assert!(after.outlives() && told(&news).is_empty() && after.to_kept().is_some_and(|bytes| !bytes.is_empty()));
    assert_eq!(after.changed(&name('c'), &Request::Outlive(false)), Ok((before, News::default())));
    let (held, _) = state("", None).changed(&name('a'), &Request::Reserve).expect("free");
    assert_eq!(refused(held.changed(&name('c'), &Request::Outlive(true))), CONFLICT);
}

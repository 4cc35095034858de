use super::*;
use proptest::prelude::*;

const TYPES: [ReservationType; 6] = [
    ReservationType::WRITE_EXCLUSIVE,
    ReservationType::EXCLUSIVE_ACCESS,
    ReservationType::WRITE_EXCLUSIVE_REGISTRANTS_ONLY,
    ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY,
    ReservationType::WRITE_EXCLUSIVE_ALL_REGISTRANTS,
    ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS,
];

/// A nexus is a letter; its key is the letter, too.
fn name(letter: char) -> NexusName {
    NexusName { initiator: letter.to_string().into(), target_port: 1 }
}

fn request(action: Action, kind: u8, key: u64, action_key: u64) -> Request {
    Request::Persistent(PersistentRequest { action, scope_and_type: kind, key, action_key })
}

fn registering(ignore: bool) -> Action {
    Action::Register { ignore_key: ignore, ptpl: Some(false), ports: vec![1], initiators: vec![] }
}

fn moving(to: char, unregister: bool) -> Action {
    Action::Move { to: name(to), unregister, ptpl: false }
}

const PREEMPT: Action = Action::Preempt { abort: false };

/// Reservations with these registrants, and the holder and type of the reservation.
fn state(registrants: &str, holder: Option<(char, ReservationType)>) -> Reservations {
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

fn told(notices: &ReservationNotices) -> Vec<(char, Notice)> {
    notices.told.iter().filter_map(|(name, what)| Some((name.initiator.chars().next()?, *what))).collect()
}

/// The key of a letter.
fn key(letter: char) -> u64 {
    letter.into()
}

fn refused(result: Result<(Reservations, ReservationNotices), Denial>) -> Denial {
    result.expect_err("it is refused")
}

const CONFLICT: Denial = Denial::Conflict;

#[test]
fn a_registration_compares_the_key_unless_it_is_ignored() {
    let none = Reservations::default();
    // Registrants before, whether the key is ignored, key, new key; registrants after, or `None` for a conflict.
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
        let result = state(before, None).after(&name('a'), &request(registering(ignore), 0, given, new));
        let case = format!("{before:?} {ignore} {given} {new}");
        let Some(after) = after else {
            assert_eq!(refused(result), CONFLICT, "{case}");
            continue;
        };
        let (next, notices) = result.expect(&case);
        assert_eq!((registered(&next).as_str(), told(&notices)), (after, vec![]), "{case}");
        let does_nothing = before.is_empty() && new == 0;
        assert_eq!(next.generation(), u32::from(!does_nothing), "{case}");
        assert!(after.is_empty() || next.registrants[&name('a')] == 9, "{case}");
    }
    assert_eq!(none.reservation(), None);
}

#[test]
fn the_last_registration_sets_ptpl() {
    let mut state = state("", None);
    for ptpl in [true, false] {
        let action = Action::Register { ignore_key: true, ptpl: Some(ptpl), ports: vec![1], initiators: vec![] };
        state = state.after(&name('a'), &request(action, 0, 0, 7)).expect("registered").0;
        assert_eq!(state.ptpl(), ptpl);
    }
}

#[test]
fn all_ports_and_specified_initiators_are_registered_together() {
    let action = |ports: &[u16], initiators: &[&str]| Action::Register {
        ignore_key: false,
        ptpl: Some(false),
        ports: ports.to_vec(),
        initiators: initiators.iter().map(|initiator| (*initiator).into()).collect(),
    };
    let all = request(action(&[1, 2], &["b", "a"]), 0, 0, 7);
    let (next, _) = Reservations::default().after(&name('a'), &all).expect("registered");
    let ports: Vec<_> = next.registrants().map(|(name, key)| (&*name.initiator, name.target_port, key)).collect();
    assert_eq!(ports, [("a", 1, 7), ("a", 2, 7), ("b", 1, 7), ("b", 2, 7)]);
    let (next, _) = next.after(&name('a'), &request(action(&[1, 2], &[]), 0, 7, 0)).expect("unregistered");
    assert_eq!(registered(&next), "bb");
    assert_eq!(refused(next.after(&name('a'), &all)), Denial::InitiatorRegistered, "a registration is not taken over");
    let again = request(action(&[1], &["c"]), 0, key('a'), 7);
    assert_eq!(
        refused(state("a", None).after(&name('a'), &again)),
        Denial::SpecifiesInitiators,
        "a registered nexus specifies no initiators"
    );
}

#[test]
fn the_number_of_registrants_is_limited() {
    let mut full = Reservations::default();
    for port in 0..REGISTRANTS_MAX {
        let port = u16::try_from(port).expect("thousands");
        full.registrants.insert(NexusName { initiator: "x".into(), target_port: port }, 1);
    }
    assert_eq!(refused(full.after(&name('a'), &request(registering(false), 0, 0, 7))), Denial::NoRoom);
    let one = NexusName { initiator: "x".into(), target_port: 1 };
    assert!(full.after(&one, &request(registering(false), 0, 1, 7)).is_ok());
}

#[test]
fn a_second_reservation_conflicts_unless_the_holder_repeats_it() {
    for kind in TYPES {
        let reserve = |by, given| (name(by), request(Action::Reserve, kind.0, given, 0));
        let (by, request) = reserve('a', key('a'));
        let (next, notices) = state("ab", None).after(&by, &request).expect("free");
        assert_eq!(next, state("ab", Some(('a', kind))), "{kind:?}: PRGENERATION stays");
        assert_eq!(told(&notices), []);
        for (by, given, what) in [('c', 0, "unregistered"), ('a', key('b'), "another's key")] {
            let (by, request) = reserve(by, given);
            assert_eq!(refused(state("ab", None).after(&by, &request)), CONFLICT, "{kind:?}, {what}");
        }
        for before in TYPES {
            for letter in ['a', 'b'] {
                let (by, request) = reserve(letter, key(letter));
                let held = state("ab", Some(('a', before)));
                let may = before == kind && (letter == 'a' || kind.is_held_by_all());
                match held.after(&by, &request) {
                    Ok((next, _)) => assert!(may && next == held, "{kind:?} under {before:?} by {letter}"),
                    refusal => assert!(!may && refused(refusal) == CONFLICT, "{kind:?} under {before:?} by {letter}"),
                }
            }
        }
    }
}

#[test]
fn unknown_types_and_scopes_are_refused() {
    for wrong in (0..=255).filter(|wrong| !TYPES.contains(&ReservationType(*wrong))) {
        let request = request(Action::Reserve, wrong, key('a'), 0);
        let denial = if wrong >> 4 == 0 { Denial::Type } else { Denial::Scope };
        assert_eq!(refused(state("a", None).after(&name('a'), &request)), denial);
    }
}

#[test]
fn a_release_ends_the_reservation_and_tells_registrants_that_it_admitted() {
    for kind in TYPES {
        let release = |held: &Reservations, by, kind: ReservationType| {
            held.after(&name(by), &request(Action::Release, kind.0, by.into(), 0))
        };
        let held = state("abc", Some(('a', kind)));
        let (next, notices) = release(&held, 'a', kind).expect("the holder");
        assert_eq!(next, state("abc", None), "{kind:?}");
        let released = Notice::ReservationReleased;
        let expected = if kind.admits_registrants() { vec![('b', released), ('c', released)] } else { vec![] };
        assert_eq!(told(&notices), expected, "{kind:?}");
        let (next, _) = release(&held, 'b', kind).expect("no error for others");
        assert_eq!(next.reservation().is_none(), kind.is_held_by_all(), "{kind:?}");
        assert_eq!(refused(release(&held, 'd', kind)), CONFLICT);
        for other in TYPES.into_iter().filter(|other| *other != kind) {
            assert_eq!(refused(release(&held, 'a', other)), Denial::Release, "{kind:?} as {other:?}");
        }
        let free = state("abc", None);
        assert_eq!(release(&free, 'a', kind).expect("nothing to release").0, free);
    }
}

#[test]
fn a_holder_that_unregisters_ends_its_reservation() {
    for kind in TYPES {
        let held = state("abc", Some(('a', kind)));
        let leave = |state: &Reservations, by| {
            state.after(&name(by), &request(registering(false), 0, by.into(), 0)).expect("registered")
        };
        let (next, notices) = leave(&held, 'a');
        let stays = kind.is_held_by_all();
        assert_eq!((next.reservation().is_some(), registered(&next).as_str()), (stays, "bc"), "{kind:?}");
        let released = Notice::ReservationReleased;
        let tells = kind.admits_registrants() && !stays;
        assert_eq!(told(&notices), if tells { vec![('b', released), ('c', released)] } else { vec![] }, "{kind:?}");
        let (next, notices) = leave(&held, 'b');
        assert!(next.reservation().is_some() && told(&notices).is_empty(), "{kind:?}");
        let (last, _) = leave(&leave(&leave(&held, 'c').0, 'b').0, 'a');
        assert_eq!((last.reservation(), registered(&last).as_str()), (None, ""), "{kind:?}");
    }
}

#[test]
fn a_clear_ends_everything_and_tells_all_registrants() {
    for holder in TYPES.map(|kind| Some(('b', kind))).into_iter().chain([None]) {
        let (next, notices) =
            state("abc", holder).after(&name('a'), &request(Action::Clear, 0, key('a'), 0)).expect("registered");
        assert_eq!((registered(&next).as_str(), next.reservation(), next.generation()), ("", None, 1));
        assert_eq!(told(&notices), [('b', Notice::ReservationPreempted), ('c', Notice::ReservationPreempted)]);
        assert_eq!(refused(state("abc", holder).after(&name('d'), &request(Action::Clear, 0, 0, 0))), CONFLICT);
    }
}

#[test]
fn a_preempted_reservation_passes_to_the_preempting_nexus() {
    let (gone, released) = (Notice::RegistrationPreempted, Notice::ReservationReleased);
    for before in TYPES {
        for after in TYPES {
            let held = state("abc", Some(('b', before)));
            let target = if before.is_held_by_all() { 0 } else { key('b') };
            for abort in [false, true] {
                let request = request(Action::Preempt { abort }, after.0, key('a'), target);
                let (next, notices) = held.after(&name('a'), &request).expect("registered");
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
                assert_eq!(told(&notices), others, "{case}");
                assert_eq!(
                    (notices.aborted.contains(&name('b')), notices.aborted.contains(&name('a'))),
                    (abort, false),
                    "{case}"
                );
                assert!(before.is_held_by_all() || !notices.aborted.contains(&name('c')), "{case}");
            }
        }
        let wrong = request(PREEMPT, 2, key('a'), if before.is_held_by_all() { 0 } else { key('b') });
        assert_eq!(refused(state("ab", Some(('b', before))).after(&name('a'), &wrong)), Denial::Type);
    }
}

#[test]
fn registrations_are_preempted_by_their_key() {
    let gone = Notice::RegistrationPreempted;
    for holder in TYPES.map(|kind| Some(('a', kind))).into_iter().chain([None]) {
        let held = state("abc", holder);
        // Scope and type are ignored: no reservation is made.
        let preempt = |by: char, target| held.after(&name(by), &request(PREEMPT, 0xff, by.into(), target));
        let (next, notices) = preempt('b', key('c')).expect("registered");
        assert_eq!((registered(&next).as_str(), told(&notices), next.generation()), ("ab", vec![('c', gone)], 1));
        assert_eq!(next.persistent, held.persistent);
        let (next, notices) = preempt('b', key('b')).expect("registered");
        assert_eq!((registered(&next).as_str(), told(&notices)), ("ac", vec![]), "itself");
        assert_eq!(refused(preempt('b', 7)), CONFLICT, "no registrant has the key");
        assert_eq!(refused(preempt('d', key('c'))), CONFLICT, "not registered");
        if holder.is_none_or(|(_, kind)| !kind.is_held_by_all()) {
            assert_eq!(refused(preempt('b', 0)), Denial::ActionKey);
        }
    }
}

#[test]
fn a_reservation_of_all_registrants_ends_with_the_last_of_them() {
    let held = state("a", Some(('a', ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS)));
    let (next, _) = held.after(&name('a'), &request(PREEMPT, 0, key('a'), key('a'))).expect("registered");
    assert_eq!((registered(&next).as_str(), next.reservation()), ("", None));
}

#[test]
fn a_holder_that_preempts_its_own_key_stays_registered() {
    let mut held = state("abc", Some(('a', ReservationType::WRITE_EXCLUSIVE)));
    held.registrants.insert(name('c'), key('a'));
    let request = request(PREEMPT, ReservationType::EXCLUSIVE_ACCESS.0, key('a'), key('a'));
    let (next, notices) = held.after(&name('a'), &request).expect("registered");
    assert_eq!(registered(&next), "ab");
    assert_eq!(told(&notices), [('b', Notice::ReservationReleased), ('c', Notice::RegistrationPreempted)]);
}

#[test]
fn a_reservation_moves_to_another_nexus() {
    for kind in TYPES {
        let held = state("ab", Some(('a', kind)));
        let move_to = |by: char, to, unregister, given| {
            held.after(&name(by), &request(moving(to, unregister), 0, by.into(), given))
        };
        if kind.is_held_by_all() {
            assert_eq!(refused(move_to('a', 'c', false, 9)), CONFLICT, "{kind:?}");
            continue;
        }
        for (to, unregister, after) in [('c', false, "abc"), ('c', true, "bc"), ('b', false, "ab"), ('b', true, "b")] {
            let (next, notices) = move_to('a', to, unregister, 9).expect("the holder");
            let reservation = Reservation { kind, holder: Some(name(to)) };
            assert_eq!(next.reservation(), Some((&reservation, 9)), "{kind:?}");
            assert_eq!((registered(&next).as_str(), told(&notices), next.generation()), (after, vec![], 1));
        }
        assert_eq!(refused(move_to('b', 'c', false, 9)), CONFLICT, "not the holder");
        assert_eq!(refused(move_to('d', 'c', false, 9)), CONFLICT, "not registered");
        assert_eq!(refused(move_to('a', 'c', false, 0)), Denial::ActionKey);
        assert_eq!(refused(move_to('a', 'a', false, 9)), Denial::MoveTo);
    }
    assert_eq!(refused(state("a", None).after(&name('a'), &request(moving('b', false), 0, key('a'), 9))), CONFLICT);
}

#[test]
fn each_type_restricts_nexuses_without_access() {
    for kind in TYPES {
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
fn an_spc2_reservation_belongs_to_one_nexus() {
    let act = |state: &Reservations, by, request| state.after(&name(by), &request).map(|(next, _)| next);
    let free = Reservations::default();
    let held = act(&free, 'a', Request::Reserve).expect("free");
    assert_eq!((held.spc2(), held.held(&name('a')), held.held(&name('b'))), (Some(&name('a')), Held::None, Held::Spc2));
    assert_eq!(act(&held, 'a', Request::Reserve), Ok(held.clone()));
    assert_eq!(refused(held.after(&name('b'), &Request::Reserve)), CONFLICT);
    assert_eq!(
        act(&held, 'b', Request::Release),
        Ok(held.clone()),
        "a release by another nexus is no error and changes nothing"
    );
    assert_eq!(act(&held, 'a', Request::Release), Ok(free));
    for by in ['a', 'b'] {
        assert_eq!(refused(held.after(&name(by), &request(registering(true), 0, 0, 7))), CONFLICT);
    }
}

#[test]
fn spc2_requests_change_nothing_while_there_are_registrations() {
    for request in [Request::Reserve, Request::Release] {
        for kind in TYPES {
            let held = state("ab", Some(('a', kind)));
            for (by, passes) in [('a', true), ('b', kind.admits_registrants()), ('c', false)] {
                match held.after(&name(by), &request) {
                    Ok((next, _)) => assert!(passes && next == held, "{kind:?} {by}"),
                    refusal => assert!(!passes && refused(refusal) == CONFLICT, "{kind:?} {by}"),
                }
            }
        }
        assert_eq!(refused(state("ab", None).after(&name('a'), &request)), CONFLICT);
    }
}

fn any_request() -> impl Strategy<Value = Request> {
    let letter = || prop::sample::select(vec!['a', 'b', 'c', 'd']);
    let keys = || 0u64..4;
    let action = prop_oneof![
        (any::<bool>(), any::<Option<bool>>(), prop::collection::vec(letter(), 0..2)).prop_map(
            |(ignore, ptpl, others)| {
                let initiators = others.into_iter().map(|letter| name(letter).initiator).collect();
                Action::Register { ignore_key: ignore, ptpl, ports: vec![1], initiators }
            }
        ),
        Just(Action::Reserve),
        Just(Action::Release),
        Just(Action::Clear),
        any::<bool>().prop_map(|abort| Action::Preempt { abort }),
        (letter(), any::<bool>()).prop_map(|(to, unregister)| moving(to, unregister)),
    ];
    prop_oneof![
        1 => Just(Request::Reserve),
        1 => Just(Request::Release),
        9 => (action, 0u8..10, keys(), keys()).prop_map(|(action, kind, key, new)| request(action, kind, key, new)),
    ]
}

proptest! {
    /// Invariants of SPC-4 5.13, for any sequence of requests.
    #[test]
    fn any_sequence_of_requests_keeps_the_invariants(
        requests in prop::collection::vec((prop::sample::select(vec!['a', 'b', 'c', 'd']), any_request()), 0..60)
    ) {
        let mut state = Reservations::default();
        for (by, request) in requests {
            let Ok((next, notices)) = state.after(&name(by), &request) else { continue };
            prop_assert!(!notices.told.contains_key(&name(by)), "the requester is not notified");
            prop_assert!(next.registrants().all(|(_, key)| key != 0));
            prop_assert!(next.spc2().is_none() || next.registrants().next().is_none());
            if let Some((reservation, key)) = next.reservation() {
                prop_assert_eq!(reservation.holder.is_none(), reservation.kind.is_held_by_all());
                prop_assert_eq!(reservation.holder.is_none(), key == 0);
                prop_assert!(next.registrants().any(|(name, _)| next.is_holder(name)), "a holder can release it");
            }
            if let Some(kept) = next.to_record().filter(|kept| !kept.is_empty()) {
                let restored = Reservations::from_record(&kept).expect("the record is read");
                let restored = Reservations { generation: next.generation, ..restored };
                prop_assert_eq!(&restored, &next);
            }
            state = next;
        }
    }
}

#[test]
fn a_host_may_set_ptpl_without_being_registered() {
    let before = state("ab", Some(('a', ReservationType::WRITE_EXCLUSIVE)));
    assert_eq!(before.to_record(), Some(Vec::new()));
    let (after, notices) = before.after(&name('c'), &Request::SetPtpl(true)).expect("anyone may");
    assert!(after.ptpl() && told(&notices).is_empty() && after.to_record().is_some_and(|bytes| !bytes.is_empty()));
    assert_eq!(after.after(&name('c'), &Request::SetPtpl(false)), Ok((before, ReservationNotices::default())));
    let (held, _) = state("", None).after(&name('a'), &Request::Reserve).expect("free");
    assert_eq!(refused(held.after(&name('c'), &Request::SetPtpl(true))), CONFLICT);
}

#[test]
fn a_list_is_replaced_by_its_own_clients_or_by_force() {
    let client = |letter: char| NexusName { initiator: format!("{BLOCK_PREFIX}{letter}").into(), target_port: 0 };
    let list =
        |letters: &str, force| Request::SetList { names: letters.chars().map(client).collect(), force, ptpl: true };
    let names = |state: &Reservations| state.list().into_iter().cloned().collect::<Vec<_>>();
    let after = |state: &Reservations, by, request| state.after(&client(by), &request).map(|(after, _)| after);
    let one = after(&state("", None), 'a', list("ab", false)).expect("free");
    assert_eq!((names(&one), one.generation(), one.ptpl()), (vec![client('a'), client('b')], 1, true));
    assert_eq!([one.held(&client('b')), one.held(&client('c'))], [Held::None, Held::ExclusiveAccess]);
    assert_eq!(after(&one, 'c', list("c", false)), Err(CONFLICT));
    assert_eq!(after(&one, 'c', list("", false)), Err(CONFLICT));
    assert_eq!(after(&one, 'b', list("ab", false)).as_ref(), Ok(&one), "the same list is no change");
    let forced = after(&one, 'c', list("c", true)).expect("it is forced");
    assert_eq!((names(&forced), forced.generation()), (vec![client('c')], 2));
    let ended = after(&forced, 'c', list("", false)).expect("its own");
    assert_eq!((names(&ended), ended.reservation(), ended.held(&client('a'))), (vec![], None, Held::None));
    // Registrations and reservations of other command sets exclude a list, also by force.
    let (spc2, _) = state("", None).after(&name('z'), &Request::Reserve).expect("free");
    for other in [state("z", None), state("z", Some(('z', ReservationType::WRITE_EXCLUSIVE))), spc2] {
        assert_eq!(after(&other, 'a', list("a", true)), Err(CONFLICT));
    }
    let many = (0..=REGISTRANTS_MAX as u32).filter_map(|number| char::from_u32(0x4e00 + number)).collect::<String>();
    assert_eq!(after(&one, 'a', list(&many, false)), Err(Denial::NoRoom));
}

use super::*;
use crate::access::{AccessChange, AccessState};
use crate::change::{CommandSetChange, Opaque};
use crate::removal::request::{Motion, Mover, RemovalChange};
use crate::reserve::{Action, HOST_PREFIX, Held, Notice, PersistentRequest, ReservationType};
use crate::rewrite::request::{Pass, Rewrite, RewriteChange, RewriteKind};
use crate::testing::name;
use lunar_core::metadata::{DurableMemory, MetadataStore};
use proptest::prelude::*;

/// SCSI initiators and NVMe hosts; the key of each is its index plus one.
const CLIENTS: [&str; 4] = ["iqn.a,i,0x1", "iqn.b,i,0x1", "nvme,01", "nvme,02"];

fn proposal(change: UnitChange) -> Proposal {
    Proposal { proposer: None, change }
}

fn reservation(client: usize, action: Action, kind: u8, key: u64, action_key: u64) -> UnitChange {
    let request = PersistentRequest { action, scope_and_type: kind, key, action_key };
    UnitChange::Reservations { nexus: name(CLIENTS[client]), request: Request::Persistent(request) }
}

fn any_reservation() -> impl Strategy<Value = UnitChange> {
    let action = prop_oneof![
        (any::<bool>(), any::<Option<bool>>()).prop_map(|(ignore_key, ptpl)| Action::Register {
            ignore_key,
            ptpl,
            ports: vec![1],
            initiators: Vec::new()
        }),
        Just(Action::Reserve),
        Just(Action::Release),
        Just(Action::Clear),
        any::<bool>().prop_map(|abort| Action::Preempt { abort }),
        (0..CLIENTS.len(), any::<bool>(), any::<bool>()).prop_map(|(to, unregister, ptpl)| Action::Move {
            to: name(CLIENTS[to]),
            unregister,
            ptpl
        }),
    ];
    let types = prop::sample::select(vec![1, 3, 5, 6, 7, 8]);
    prop_oneof![
        12 => (0..CLIENTS.len(), action, types, 0_u64..5, 0_u64..5)
            .prop_map(|(client, action, kind, key, action_key)| reservation(client, action, kind, key, action_key)),
        1 => (0..2_usize, any::<bool>()).prop_map(|(client, reserve)| UnitChange::Reservations {
            nexus: name(CLIENTS[client]),
            request: if reserve { Request::Reserve } else { Request::Release },
        }),
        1 => (2..4_usize, any::<bool>()).prop_map(|(client, ptpl)| UnitChange::Reservations {
            nexus: name(CLIENTS[client]),
            request: Request::SetPtpl(ptpl),
        }),
    ]
}

fn any_rewrite() -> impl Strategy<Value = RewriteChange> {
    let rewrite = (any::<Option<bool>>(), 1..3_usize).prop_map(|(sanitize, passes)| Rewrite {
        kind: match sanitize {
            Some(can_exit) => RewriteKind::Sanitize { can_exit },
            None => RewriteKind::Format { protection: None },
        },
        passes: vec![Pass { pattern: vec![5; 4], unmap: false }; passes],
    });
    prop_oneof![
        rewrite.prop_map(RewriteChange::Begin),
        Just(RewriteChange::Done),
        Just(RewriteChange::Failed),
        Just(RewriteChange::ExitFailureMode),
    ]
}

fn any_change() -> impl Strategy<Value = UnitChange> {
    let client = || prop::sample::select(CLIENTS.to_vec()).prop_map(name);
    let states = vec![AccessState::ActiveOptimized, AccessState::Standby, AccessState::Offline];
    prop_oneof![
        12 => any_reservation(),
        3 => any_rewrite().prop_map(UnitChange::Rewrite),
        1 => (0..3_u16, prop::sample::select(states), any::<Option<bool>>()).prop_map(|(group, state, preferred)| {
            UnitChange::Access(vec![match preferred {
                Some(preferred) => AccessChange::implicit(group, state, preferred),
                None => AccessChange::explicit(group, state),
            }])
        }),
        1 => prop::sample::select(Kind::ALL.to_vec()).prop_map(UnitChange::Protection),
        1 => client().prop_map(|client| UnitChange::Removal(RemovalChange::Prevent(client))),
        1 => client().prop_map(|client| UnitChange::Removal(RemovalChange::Allow(client))),
        1 => any::<bool>().prop_map(|ejects| {
            let motion = if ejects { Motion::Eject } else { Motion::Load };
            UnitChange::Removal(RemovalChange::Move(motion, Mover::Client))
        }),
        1 => client().prop_map(UnitChange::NexusLost),
        1 => Just(UnitChange::LogicalUnitReset),
    ]
}

/// The registrants that must be notified of a request, derived from the states before and after it (SPC-4 5.13.11).
fn expected_notices(
    before: &Reservations,
    after: &Reservations,
    by: &NexusName,
    action: &Action,
) -> Vec<(NexusName, Notice)> {
    let kind = |state: &Reservations| state.reservation().map(|(reservation, _)| reservation.kind);
    let remain: Vec<NexusName> = after.registrants().map(|(name, _)| name.clone()).filter(|name| name != by).collect();
    let gone = before.registrants().map(|(name, _)| name.clone()).filter(|name| after.key_of(name).is_none());
    let gone: Vec<NexusName> = gone.filter(|name| name != by).collect();
    let all = |names: Vec<NexusName>, notice| names.into_iter().map(move |name| (name, notice));
    let mut told: Vec<_> = match action {
        Action::Clear => all(gone, Notice::ReservationPreempted).collect(),
        Action::Preempt { .. } => {
            let changes_type = kind(before).is_some() && kind(after).is_some() && kind(before) != kind(after);
            let released = if changes_type { remain } else { Vec::new() };
            all(gone, Notice::RegistrationPreempted).chain(all(released, Notice::ReservationReleased)).collect()
        }
        Action::Register { .. } | Action::Release => {
            let ended = kind(before).filter(|_| kind(after).is_none());
            let is_told = ended.is_some_and(ReservationType::admits_registrants);
            all(if is_told { remain } else { Vec::new() }, Notice::ReservationReleased).collect()
        }
        Action::Reserve | Action::Move { .. } => Vec::new(),
    };
    told.sort_by(|one, other| one.0.cmp(&other.0));
    told
}

/// The medium that a restart finds, if the process ends in this state.
fn after_restart(medium: MediumState) -> MediumState {
    match medium {
        MediumState::Formatting => MediumState::FormatCorrupted,
        state => state,
    }
}

fn check_reservations(state: &Reservations) -> Result<(), TestCaseError> {
    prop_assert!(state.registrants().all(|(_, key)| key != 0), "a key is zero");
    prop_assert!(state.spc2().is_none() || state.registrants().next().is_none(), "both kinds of reservation at once");
    let Some((reservation, key)) = state.reservation() else { return Ok(()) };
    prop_assert_eq!(reservation.holder.is_none(), reservation.kind.is_held_by_all());
    prop_assert_eq!(reservation.holder.is_none(), key == 0);
    prop_assert!(state.registrants().any(|(name, _)| state.is_holder(name)), "no nexus holds it");
    Ok(())
}

proptest! {
    #[test]
    fn any_sequence_of_changes_keeps_the_invariants(changes in prop::collection::vec(any_change(), 0..80)) {
        let metadata = DurableMemory::default();
        let mut state = UnitState::default();
        for change in changes {
            let before = state.clone();
            let effects = match state.apply(&proposal(change.clone())) {
                Ok(effects) => effects,
                Err(denial) => {
                    prop_assert_eq!(&state, &before, "{:?} changed something: {:?}", change, denial);
                    continue;
                }
            };
            if let Some(record) = &effects.record {
                drop(metadata.save(record.name, record.bytes.clone()));
            }
            prop_assert!(effects.is_published || state == before, "{:?} is not published", change);
            prop_assert!(effects.is_published || effects.record.is_none());
            check_reservations(state.reservations())?;
            // A new epoch begins with every new state of the medium, and at no other time.
            let is_next = state.epoch() != before.epoch();
            prop_assert_eq!(is_next, matches!(change, UnitChange::Rewrite(_)) && effects.is_published);
            prop_assert_eq!(effects.epoch, is_next.then(|| state.epoch()));
            prop_assert!(is_next || state.medium() == before.medium());
            // A restart restores the changes that have taken effect, and nothing else.
            let restored = UnitState::restored(&metadata).expect("its own records");
            prop_assert_eq!(restored.reservations().to_record(), state.reservations().to_record());
            prop_assert_eq!(restored.medium(), after_restart(state.medium()));
            prop_assert_eq!(restored.protection(), state.protection());
        }
    }

    #[test]
    fn effects_name_exactly_the_registrants_that_must_be_notified(
        changes in prop::collection::vec(any_reservation(), 0..80)
    ) {
        let mut state = UnitState::default();
        for change in changes {
            let before = state.clone();
            let Ok(effects) = state.apply(&proposal(change.clone())) else { continue };
            let UnitChange::Reservations { nexus, request } = &change else { continue };
            let expected = match request {
                Request::Persistent(request) => {
                    expected_notices(before.reservations(), state.reservations(), nexus, &request.action)
                }
                _ => Vec::new(),
            };
            let told: Vec<_> = effects.notices.clone().into_iter().collect();
            prop_assert_eq!(told, expected, "{:?}", change);
            let is_abort = |request: &Request| {
                matches!(request, Request::Persistent(request) if request.action == (Action::Preempt { abort: true }))
            };
            let preempted = effects.notices.iter().filter(|(_, notice)| **notice == Notice::RegistrationPreempted);
            let preempted: BTreeSet<NexusName> = preempted.map(|(name, _)| name.clone()).collect();
            let aborts = match is_abort(request) && !preempted.is_empty() {
                true => Aborts::Registrants(preempted),
                false => Aborts::None,
            };
            prop_assert_eq!(effects.aborts, aborts, "{:?}", change);
        }
    }
}

#[test]
fn hosts_and_initiators_are_registrants_of_one_state() {
    assert!(CLIENTS[2].starts_with(HOST_PREFIX));
    let mut state = UnitState::default();
    let register = Action::Register { ignore_key: true, ptpl: Some(false), ports: vec![1], initiators: Vec::new() };
    for client in [0, 2] {
        state.apply(&proposal(reservation(client, register.clone(), 0, 0, client as u64 + 1))).expect("registered");
    }
    state.apply(&proposal(reservation(2, Action::Reserve, 3, 3, 0))).expect("reserved");
    let held = |client: usize| state.reservations().held(&name(CLIENTS[client]));
    assert_eq!([0, 1, 2].map(held), [Held::ExclusiveAccess, Held::ExclusiveAccess, Held::None]);
}

#[test]
fn a_reset_ends_the_state_that_lasts_until_a_reset() {
    let mut state = UnitState::default();
    let spc2 = UnitChange::Reservations { nexus: name(CLIENTS[0]), request: Request::Reserve };
    state.apply(&proposal(spc2)).expect("free");
    state.apply(&proposal(UnitChange::Removal(RemovalChange::Prevent(name(CLIENTS[1]))))).expect("it always may");
    state.apply(&proposal(UnitChange::Access(vec![AccessChange::explicit(1, AccessState::Standby)]))).expect("set");
    let effects = state.apply(&proposal(UnitChange::LogicalUnitReset)).expect("it is never refused");
    assert_eq!((effects.event, effects.aborts), (Some(Event::Reset), Aborts::TaskSet));
    assert_eq!((state.reservations().spc2(), state.is_removal_prevented()), (None, false));
    assert_eq!(state.access().of(1).state, AccessState::Standby, "access states are not reset");
}

#[test]
fn the_loss_of_a_nexus_ends_the_state_that_depends_on_it() {
    let mut state = UnitState::default();
    let spc2 = UnitChange::Reservations { nexus: name(CLIENTS[0]), request: Request::Reserve };
    state.apply(&proposal(spc2)).expect("free");
    state.apply(&proposal(UnitChange::Removal(RemovalChange::Prevent(name(CLIENTS[1]))))).expect("it always may");
    for (client, depends) in [(2, false), (0, true), (1, true)] {
        assert_eq!(state.depends_on(&name(CLIENTS[client])), depends);
        let effects =
            state.apply(&proposal(UnitChange::NexusLost(name(CLIENTS[client])))).expect("it is never refused");
        assert_eq!(effects.is_published, depends);
    }
    assert_eq!((state.reservations().spc2(), state.is_removal_prevented()), (None, false));
}

#[test]
fn all_groups_of_one_change_are_set() {
    let mut state = UnitState::default();
    let changes = [1, 2, 3].map(|group| AccessChange::explicit(group, AccessState::Standby)).to_vec();
    let effects = state.apply(&proposal(UnitChange::Access(changes.clone()))).expect("set");
    let access = [1, 2, 3].map(|group| (group, GroupAccess::default())).into();
    assert_eq!(effects, Effects { event: Some(Event::AccessChanged), access, ..Effects::published() });
    assert!([1, 2, 3].iter().all(|group| state.access().of(*group).state == AccessState::Standby));
    assert_eq!(state.apply(&proposal(UnitChange::Access(changes))), Ok(Effects::none()), "they are already present");
}

#[test]
fn an_unavailable_store_is_told_through_every_group_and_once() {
    let mut state = UnitState::default();
    let change = |is_available| UnitChange::Store { is_available, groups: vec![1, 2] };
    assert_eq!(state.apply(&proposal(change(true))), Ok(Effects::none()), "it is available");
    let effects = state.apply(&proposal(change(false))).expect("it is never refused");
    let access = [1, 2].map(|group| (group, GroupAccess::default())).into();
    assert_eq!(effects, Effects { event: Some(Event::AccessChanged), access, ..Effects::published() });
    assert!(!state.access().is_store_available());
    assert_eq!(state.apply(&proposal(change(false))), Ok(Effects::none()), "it is known");
    let effects = state.apply(&proposal(change(true))).expect("it is never refused");
    assert_eq!((effects.event, effects.access.len()), (Some(Event::AccessChanged), 2));
    assert_eq!(state, UnitState::default());
}

#[test]
fn rewrites_follow_each_other_as_the_standards_allow() {
    let format = || RewriteChange::Begin(Rewrite { kind: RewriteKind::Format { protection: None }, passes: vec![] });
    let sanitize =
        |can_exit| RewriteChange::Begin(Rewrite { kind: RewriteKind::Sanitize { can_exit }, passes: vec![] });
    let mut state = UnitState::default();
    let mut apply = |change| {
        let result = state.apply(&proposal(UnitChange::Rewrite(change)));
        result.map(|_| state.medium())
    };
    assert_eq!(apply(format()), Ok(MediumState::Formatting));
    assert_eq!(apply(sanitize(true)), Err(Denial::RewriteInProgress));
    assert_eq!(apply(RewriteChange::ExitFailureMode), Err(Denial::RewriteInProgress));
    assert_eq!(apply(RewriteChange::Failed), Ok(MediumState::FormatFailed));
    assert_eq!(
        apply(RewriteChange::ExitFailureMode),
        Ok(MediumState::FormatFailed),
        "that leaves the failed state only"
    );
    assert_eq!(apply(sanitize(false)), Ok(MediumState::Sanitizing { can_exit: false }));
    assert_eq!(apply(RewriteChange::Failed), Ok(MediumState::SanitizeFailed { can_exit: false }));
    assert_eq!(apply(format()), Err(Denial::SanitizeRequired));
    assert_eq!(apply(RewriteChange::ExitFailureMode), Err(Denial::SanitizeRequired));
    assert_eq!(apply(sanitize(true)), Ok(MediumState::Sanitizing { can_exit: true }));
    assert_eq!(apply(RewriteChange::Failed), Ok(MediumState::SanitizeFailed { can_exit: true }));
    assert_eq!(apply(RewriteChange::ExitFailureMode), Ok(MediumState::Ready));
    assert_eq!(apply(RewriteChange::Done), Ok(MediumState::Ready), "no rewrite is in progress");
}

#[derive(Debug)]
struct Other(Option<Vec<u8>>);

impl CommandSetChange for Other {
    fn record(&self) -> Option<Record> {
        self.0.clone().map(|bytes| Record::required("other", bytes))
    }
}

#[test]
fn a_change_of_one_command_set_is_published_with_its_record() {
    let mut state = UnitState::default();
    for bytes in [None, Some(vec![1, 2])] {
        let change = Opaque::new(Other(bytes.clone()));
        assert_eq!(change.get::<Other>().map(|other| &other.0), Some(&bytes));
        let effects = state.apply(&proposal(UnitChange::CommandSet(change.clone()))).expect("it is never refused");
        let record = bytes.map(|bytes| Record::required("other", bytes));
        assert_eq!((effects, change.clone() == change), (Effects { record, ..Effects::published() }, true));
    }
    assert_eq!(state, UnitState::default());
}

/// Records of earlier versions, under the names that they had.
#[test]
fn the_state_is_restored_from_records_of_earlier_versions() {
    let metadata = DurableMemory::default();
    let reservations = b"LunarPR1\x03\0\0\x01\0\0\0\0\0\0\0\x07\0\x01\x01\x05a,i,1".to_vec();
    for (record, bytes) in [("reservations", reservations), ("medium", vec![1, 5]), ("protection", vec![2])] {
        drop(metadata.save(record, bytes));
    }
    let state = UnitState::restored(&metadata).expect("whole");
    let holder = name("a,i,1");
    assert_eq!(state.reservations().registrants().collect::<BTreeMap<_, _>>(), [(&holder, 7)].into());
    assert!(state.reservations().is_holder(&holder) && state.reservations().ptpl());
    assert_eq!(state.medium(), MediumState::SanitizeFailed { can_exit: false });
    assert_eq!(state.protection(), Some(Kind::Two));
    drop(metadata.save("reservations", b"LunarPR2".to_vec()));
    assert_eq!(UnitState::restored(&metadata).err(), Some(MalformedReservations));
}

use super::*;
use crate::access::AccessState;
use crate::change::{Aborts, UnitChange};
use crate::reserve::{self, Action, PersistentRequest, RESERVATIONS, Request, Reservations};
use crate::testing::{Core, Metadata, Options, Saves, at_once, name, poll};
use lunar_core::unit::UnitId;
use std::task::Poll;

fn persistent(nexus: &str, action: Action, kind: u8, key: u64, action_key: u64) -> UnitChange {
    let request = PersistentRequest { action, scope_and_type: kind, key, action_key };
    UnitChange::Reservations { nexus: name(nexus), request: Request::Persistent(request) }
}

fn register(nexus: &str, key: u64, ptpl: bool) -> UnitChange {
    let action = Action::Register { ignore_key: true, ptpl: Some(ptpl), ports: vec![1], initiators: Vec::new() };
    persistent(nexus, action, 0, 0, key)
}

fn propose(core: &Core, change: UnitChange) -> Result<Arc<Ordered>, Refused> {
    at_once(core.units.propose(&core.unit, None, change))
}

/// The keys that are registered, in the order of the names of their registrants.
fn keys(core: &Core) -> Vec<u64> {
    core.units.shared().of(&core.unit).reservations().registrants().map(|(_, key)| key).collect()
}

fn stored(metadata: &Metadata) -> Vec<u64> {
    let record = metadata.load(RESERVATIONS).unwrap_or_default();
    Reservations::from_record(&record).expect("whole").registrants().map(|(_, key)| key).collect()
}

#[test]
fn a_change_is_durable_before_it_takes_effect_and_in_force_on_all_cores_before_the_answer() {
    let metadata = Arc::<Metadata>::default();
    let ([here, there], [way, _]) = Core::two(&metadata);
    metadata.set(Saves::Slowly);
    {
        let mut waiting = Box::pin(here.units.propose(&here.unit, None, register("a", 5, true)));
        assert!(poll(&mut waiting).is_pending());
        assert_eq!((keys(&here), stored(&metadata)), (vec![], vec![5]), "it waits for the medium");
    }
    metadata.set(Saves::All);
    way.is_asleep.set(true);
    let change = register("a", 6, true);
    let mut waiting = Box::pin(here.units.propose(&here.unit, None, change.clone()));
    assert!(poll(&mut waiting).is_pending());
    let told = |core: &Core| core.command_sets.each_ref().map(|set| set.changed.borrow().clone());
    assert_eq!((told(&here), told(&there)), ([vec![change.clone()], vec![change.clone()]], [vec![], vec![]]));
    assert!(here.command_sets[0].published.borrow().is_empty(), "the other core has not answered");
    way.is_asleep.set(false);
    let Poll::Ready(Ok(ordered)) = poll(&mut waiting) else { panic!("it applies to all cores") };
    assert_eq!(
        (ordered.proposal.change.clone(), told(&there)),
        (change.clone(), [vec![change.clone()], vec![change.clone()]])
    );
    let published = |core: &Core| core.command_sets.each_ref().map(|set| set.published.borrow().len());
    assert_eq!((published(&here), published(&there)), ([1, 1], [0, 0]), "once, whatever the number of cores");
    assert_eq!((keys(&there), stored(&metadata)), (vec![6], vec![6]));
}

#[test]
fn a_record_that_cannot_be_saved_leaves_the_state_as_it_was_and_answers_an_error() {
    for saves in [Saves::None, Saves::HalfWay] {
        let metadata = Arc::<Metadata>::default();
        let core = Core::new(&metadata, Options::default());
        propose(&core, register("a", 5, true)).expect("saved");
        metadata.set(saves);
        let refused = propose(&core, register("b", 6, true));
        assert_eq!(refused, Err(Refused::Metadata(Fault::Medium)), "{saves:?}");
        assert_eq!((keys(&core), core.command_sets[0].changed.borrow().len()), (vec![5], 1), "{saves:?}");
        metadata.set(Saves::All);
        assert_eq!(stored(&metadata), [5], "{saves:?}: a restart does not bring it back");
        propose(&core, register("b", 6, true)).expect("saved");
        assert_eq!((keys(&core), stored(&metadata)), (vec![5, 6], vec![5, 6]), "{saves:?}");
    }
}

#[test]
fn a_proposal_that_is_dropped_in_the_middle_leaves_nothing_behind() {
    let metadata = Arc::<Metadata>::default();
    let core = Core::new(&metadata, Options::default());
    propose(&core, register("a", 5, true)).expect("saved");
    metadata.set(Saves::Slowly);
    let mut dropped = Box::pin(core.units.propose(&core.unit, None, register("b", 6, true)));
    assert!(poll(&mut dropped).is_pending());
    assert_eq!(stored(&metadata), [5, 6], "its record has reached the medium");
    drop(dropped);
    assert_eq!((stored(&metadata), keys(&core)), (vec![5], vec![5]));
    // The turn is free: the next change needs no record.
    let other = UnitChange::NexusLost(name("c"));
    assert!(propose(&core, other).is_ok_and(|ordered| !ordered.effects.is_published));
}

#[test]
fn a_proposal_that_is_dropped_while_it_is_published_has_taken_effect() {
    let metadata = Arc::<Metadata>::default();
    let ([here, there], [way, _]) = Core::two(&metadata);
    way.is_asleep.set(true);
    let mut dropped = Box::pin(here.units.propose(&here.unit, None, register("a", 5, true)));
    assert!(poll(&mut dropped).is_pending());
    drop(dropped);
    assert_eq!((keys(&here), keys(&there), stored(&metadata)), (vec![5], vec![5], vec![5]));
    way.is_asleep.set(false);
    propose(&here, register("b", 6, true)).expect("the turn is free");
    assert_eq!(keys(&there), [5, 6]);
}

#[test]
fn two_proposers_have_their_turns_one_after_the_other() {
    let metadata = Arc::<Metadata>::default();
    let ([here, there], [way, _]) = Core::two(&metadata);
    propose(&here, register("a", 1, true)).expect("saved");
    propose(&here, register("b", 2, true)).expect("saved");
    way.is_asleep.set(true);
    let reserve = |nexus, key| persistent(nexus, Action::Reserve, 3, key, 0);
    let mut first = Box::pin(here.units.propose(&here.unit, None, reserve("a", 1)));
    let mut second = Box::pin(there.units.propose(&there.unit, None, reserve("b", 2)));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    way.is_asleep.set(false);
    assert!(poll(&mut second).is_pending(), "it is not its turn");
    assert!(matches!(poll(&mut first), Poll::Ready(Ok(_))));
    // The state in its turn decides on it, not the state at the time of the proposal.
    let conflict = Refused::Denied(Denial::Reservation(reserve::Denial::Conflict));
    assert_eq!(poll(&mut second), Poll::Ready(Err(conflict)));
}

#[test]
fn the_turn_is_over_before_aborted_tasks_are_waited_for() {
    let metadata = Arc::<Metadata>::default();
    let ([here, there], _) = Core::two(&metadata);
    propose(&here, register("a", 1, false)).expect("registered");
    propose(&here, register("b", 2, false)).expect("registered");
    there.command_sets[1].has_tasks.set(true);
    let preempt = persistent("a", Action::Preempt { abort: true }, 0, 1, 2);
    let mut preempting = Box::pin(here.units.change(&here.unit, None, preempt, std::future::pending()));
    assert!(poll(&mut preempting).is_pending(), "a task on the other core has not ended");
    propose(&there, register("c", 3, false)).expect("a task may wait for its own proposal");
    there.command_sets[1].has_tasks.set(false);
    let Poll::Ready(Ok(ordered)) = poll(&mut preempting) else { panic!("the task has ended") };
    assert_eq!(ordered.effects.aborts, Aborts::Registrants([name("b")].into()));
    let waited = |core: &Core| core.command_sets.each_ref().map(|set| set.waited.get());
    assert_eq!((waited(&here), waited(&there)), ([1, 1], [1, 1]));
}

#[test]
fn a_proposer_whose_own_task_is_aborted_waits_for_no_other_task() {
    let metadata = Arc::<Metadata>::default();
    let core = Core::new(&metadata, Options::default());
    propose(&core, register("a", 1, false)).expect("registered");
    propose(&core, register("b", 2, false)).expect("registered");
    core.command_sets[0].has_tasks.set(true);
    let preempt = persistent("a", Action::Preempt { abort: true }, 0, 1, 2);
    let changed = at_once(core.units.change(&core.unit, None, preempt, std::future::ready(())));
    assert!(changed.is_ok());
}

#[test]
fn a_change_that_changes_nothing_is_neither_saved_nor_published() {
    let metadata = Arc::<Metadata>::default();
    let core = Core::new(&metadata, Options::default());
    let release = persistent("a", Action::Release, 3, 1, 0);
    propose(&core, register("a", 1, true)).expect("saved");
    metadata.take_asked();
    core.command_sets[0].changed.borrow_mut().clear();
    assert!(propose(&core, release).is_ok_and(|ordered| !ordered.effects.is_published));
    assert!(metadata.take_asked().is_empty() && core.command_sets[0].changed.borrow().is_empty());
}

#[test]
fn only_changes_of_the_record_are_saved() {
    let metadata = Arc::<Metadata>::default();
    let core = Core::new(&metadata, Options::default());
    propose(&core, register("a", 1, false)).expect("registered");
    propose(&core, persistent("a", Action::Reserve, 3, 1, 0)).expect("reserved");
    assert!(metadata.take_asked().is_empty(), "without PTPL nothing is durable");
    propose(&core, register("a", 1, true)).expect("registered");
    assert_eq!(metadata.take_asked().len(), 1);
    // PRGENERATION is not in the record.
    propose(&core, register("a", 1, true)).expect("registered");
    assert!(metadata.take_asked().is_empty());
}

#[test]
fn the_loss_of_a_nexus_is_proposed_only_where_it_matters() {
    let metadata = Arc::<Metadata>::default();
    let core = Core::new(&metadata, Options::default());
    let reserve = UnitChange::Reservations { nexus: name("a"), request: Request::Reserve };
    propose(&core, reserve).expect("free");
    core.command_sets[0].changed.borrow_mut().clear();
    at_once(core.units.lose_nexus(&name("b")));
    assert!(core.command_sets[0].changed.borrow().is_empty());
    at_once(core.units.lose_nexus(&name("a")));
    assert_eq!(*core.command_sets[0].changed.borrow(), [UnitChange::NexusLost(name("a"))]);
    assert_eq!(core.units.shared().of(&core.unit).reservations().spc2(), None);
}

#[test]
fn a_unit_without_a_store_has_reservations_and_access_states() {
    let metadata = Arc::<Metadata>::default();
    let core = Core::new(&metadata, Options::default());
    let device: Arc<dyn MetadataStore> = Arc::<Metadata>::default();
    let id = UnitId(9);
    let shared = core.units.add_without_store(id, &device);
    let unit = || UnitRef { id, metadata: &*device };
    at_once(core.units.propose(unit(), None, register("a", 5, true))).expect("memory saves");
    assert_eq!(shared.reservations().registrants().map(|(_, key)| key).collect::<Vec<_>>(), [5]);
    assert!(device.load(RESERVATIONS).is_some() && keys(&core).is_empty() && core.units.unit(id).is_none());
    at_once(core.units.set_access(id, 1, AccessState::Standby, false));
    assert_eq!(shared.state().access().of(1).state, AccessState::Standby);
}

#[test]
fn the_reservation_of_a_lost_nexus_ends_at_units_without_a_store() {
    let core = Core::new(&Arc::default(), Options::default());
    let (id, device) = (UnitId(9), Arc::<Metadata>::default() as Arc<dyn MetadataStore>);
    let shared = core.units.add_without_store(id, &device);
    let reserve = UnitChange::Reservations { nexus: name("a"), request: Request::Reserve };
    at_once(core.units.propose(UnitRef { id, metadata: &*device }, None, reserve)).expect("free");
    at_once(core.units.lose_nexus(&name("b")));
    assert_eq!(shared.reservations().spc2(), Some(&name("a")));
    at_once(core.units.lose_nexus(&name("a")));
    assert_eq!(shared.reservations().spc2(), None, "its holder was lost");
}

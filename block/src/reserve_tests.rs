use super::*;
use crate::request::{ByteRange, Error, Request as BlockRequest};
use crate::table::Code;
use crate::testing::{Rig, Setup, UNIT, at_once, client};
use lunar_core::metadata::{MetadataStore, Saving, VolatileMemory};
use lunar_unit::reserve::ReservationType;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const ALL: [&str; 3] = ["a", "b", "c"];

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

fn set(rig: &Rig, by: &str, list: &[&str], force: bool) -> Result<(), Refusal> {
    at_once(rig.set.reserve_for(UNIT, by, &names(list), force))
}

/// The clients that may write, of those named, and of one without a name.
fn writers(rig: &Rig) -> Vec<&'static str> {
    let ranges = [ByteRange { offset: 0, len: 512 }];
    let request = BlockRequest::new(Code::Write, &ranges);
    let named = ALL.into_iter().filter(|name| {
        let attachment = rig.set.attach_named(UNIT, client(false), name).expect("the unit is there");
        let ended = rig.run_for(&attachment, &request, &[1; 512]).result;
        assert!(ended == Ok(()) || ended == Err(Error::Conflict), "{ended:?}");
        ended == Ok(())
    });
    let mut writers: Vec<_> = named.collect();
    if rig.run(&request, &[1; 512]).result == Ok(()) {
        writers.push("nameless");
    }
    writers
}

#[test]
fn the_clients_of_a_list_exclude_all_others() {
    let rig = Rig::default();
    assert_eq!((writers(&rig), rig.set.reserving_clients(UNIT)), (vec!["a", "b", "c", "nameless"], names(&[])));
    let held = rig.set.attach_named(UNIT, client(false), "c").expect("the unit is there");
    assert_eq!(set(&rig, "a", &["a", "b"], false), Ok(()));
    assert_eq!((writers(&rig), rig.set.reserving_clients(UNIT)), (vec!["a", "b"], names(&["a", "b"])));
    assert!(held.held() != lunar_unit::reserve::Held::None, "an attached client learns of it");
    // Another client may not change the list unless it forces it.
    assert_eq!(set(&rig, "c", &["c"], false), Err(Refusal::Reserved));
    assert_eq!(set(&rig, "b", &["b", "c"], false), Ok(()));
    assert_eq!(writers(&rig), ["b", "c"]);
    assert_eq!(set(&rig, "a", &["a"], true), Ok(()));
    assert_eq!(writers(&rig), ["a"]);
    assert_eq!(set(&rig, "a", &[], false), Ok(()));
    assert_eq!(writers(&rig), ["a", "b", "c", "nameless"]);
    assert_eq!(rig.set.reserving_clients(UNIT), names(&[]));
}

#[test]
fn reservations_of_other_transports_exclude_lists() {
    for kind in [None, Some(ReservationType::WRITE_EXCLUSIVE), Some(ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS)]
    {
        let rig = Rig::default();
        rig.reserve(kind);
        assert_eq!(writers(&rig), [""; 0], "{kind:?}");
        for force in [false, true] {
            assert_eq!(set(&rig, "a", &["a"], force), Err(Refusal::Reserved), "{kind:?}");
        }
        assert_eq!((rig.set.reserving_clients(UNIT), rig.set.is_reserved_by_others(UNIT)), (names(&[]), true));
        rig.release(kind);
        assert_eq!(set(&rig, "a", &["a"], false), Ok(()), "{kind:?}");
        assert!(!rig.set.is_reserved_by_others(UNIT));
    }
    let rig = Rig::default();
    assert_eq!(at_once(rig.set.reserve_for(UnitId(99), "a", &names(&["a"]), false)), Err(Refusal::Unavailable));
}

/// Durable metadata, of which each record is saved when its future is polled for the second time.
#[derive(Default)]
struct SlowMemory(VolatileMemory);

impl MetadataStore for SlowMemory {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        self.0.load(name)
    }

    fn save(&self, name: &'static str, bytes: Vec<u8>) -> Saving {
        let (mut saving, mut polls) = (self.0.save(name, bytes), 0);
        Box::pin(std::future::poll_fn(move |cx| {
            polls += 1;
            if polls == 1 { Poll::Pending } else { saving.as_mut().poll(cx) }
        }))
    }

    fn is_durable(&self) -> bool {
        true
    }
}

/// The results of two requests that are in progress together.
fn together<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> [T; 2] {
    let mut both: [Pin<Box<dyn Future<Output = T> + '_>>; 2] = [Box::pin(one), Box::pin(other)];
    let mut results = [None, None];
    for _ in 0..32 {
        for (future, result) in both.iter_mut().zip(&mut results).filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                *result = Some(value);
            }
        }
    }
    results.map(|result| result.expect("both have ended"))
}

#[test]
fn of_two_clients_that_reserve_at_once_one_is_refused() {
    let rig = Rig::new(&Setup { metadata: Arc::new(SlowMemory::default()), ..Setup::default() });
    let (a, b) = (names(&["a"]), names(&["b"]));
    let requests = (rig.set.reserve_for(UNIT, "a", &a, false), rig.set.reserve_for(UNIT, "b", &b, false));
    assert_eq!(together(requests.0, requests.1), [Ok(()), Err(Refusal::Reserved)]);
    assert_eq!((rig.set.reserving_clients(UNIT), writers(&rig)), (names(&["a"]), vec!["a"]));
    // A list is never half in force, and never ends on the way from one list to the next.
    let (ab, none) = (names(&["a", "b"]), names(&[]));
    let requests = (rig.set.reserve_for(UNIT, "a", &ab, false), rig.set.reserve_for(UNIT, "c", &none, false));
    assert_eq!(together(requests.0, requests.1), [Ok(()), Err(Refusal::Reserved)]);
    assert_eq!(writers(&rig), ["a", "b"]);
}

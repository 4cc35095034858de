//! One device, several nexuses.

use super::Terms;
use crate::command::{Status, TaskAttribute};
use crate::nexus::Nexus;
use crate::sense::{Asc, SenseKey};
use crate::task::{TaskFunction, TaskResponse};
use crate::testing::{Ended, Rig, Tape, at_once};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::rc::Rc;

const TUR: [u8; 6] = [0; 6];
const REWIND: [u8; 6] = [1, 0, 0, 0, 0, 0];
const WRITE_4: [u8; 6] = [0x0a, 0, 0, 0, 4, 0];
const READ_4: [u8; 6] = [0x08, 0, 0, 0, 4, 0];
const FILEMARK: [u8; 6] = [0x10, 0, 0, 0, 1, 0];
const MODE_SENSE: [u8; 6] = [0x1a, 0, 0, 0, 12, 0];
const MODE_SELECT: [u8; 6] = [0x15, 0x10, 0, 0, 12, 0];
const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const RELEASE: [u8; 6] = [0x17, 0, 0, 0, 0, 0];
const UNLOAD: [u8; 6] = [0x1b, 0, 0, 0, 0, 0];
const PREVENT: [u8; 6] = [0x1e, 0, 0, 0, 1, 0];
const ALLOW: [u8; 6] = [0x1e, 0, 0, 0, 0, 0];

/// A tape drive and two nexuses without unit attention conditions.
struct Shared {
    rig: Rig,
    tape: Rc<Tape>,
    other: Rc<Nexus>,
}

impl Shared {
    fn new(terms: Terms) -> Self {
        let tape = Tape::on_terms(1 << 20, terms);
        let rig = Rig::forwarding(tape.clone());
        let other = rig.target.nexus(Rig::name("b"));
        other.each(|itl| while itl.take_attention().is_some() {});
        Self { rig, tape, other }
    }

    fn run(&self, cdb: &[u8]) -> Ended {
        self.rig.run(cdb, &[], 0)
    }

    fn run_as_other(&self, cdb: &[u8]) -> Ended {
        self.rig.run_as(&self.other, cdb, &[], 0)
    }

    /// The CDBs of this operation code that the drive has received.
    fn received(&self, op: u8) -> Vec<Vec<u8>> {
        self.tape.received().into_iter().filter(|cdb| cdb[0] == op).collect()
    }

    /// Sets the length of blocks.
    fn select(&self, length: u32) -> Status {
        let [_, high, middle, low] = length.to_be_bytes();
        self.rig.run(&MODE_SELECT, &[0, 0, 0, 8, 0, 0, 0, 0, 0, high, middle, low], 0).status
    }
}

fn sense(ended: &Ended) -> (SenseKey, Asc) {
    assert_eq!(ended.status, Status::CHECK_CONDITION);
    crate::SenseData::of_device(&ended.sense).meaning().expect("sense data")
}

fn attention(ended: &Ended) -> Asc {
    let (key, asc) = sense(ended);
    assert_eq!(key, SenseKey::UNIT_ATTENTION);
    asc
}

#[test]
fn data_moves_and_residuals_are_those_of_the_device() {
    let shared = Shared::new(Terms::default());
    assert_eq!(shared.rig.run(&WRITE_4, b"data", 0).status, Status::GOOD);
    assert_eq!(shared.run(&FILEMARK).status, Status::GOOD);
    assert_eq!(shared.run(&REWIND).status, Status::GOOD);
    let read = shared.rig.run(&[0x08, 0, 0, 1, 0, 0], &[], 256);
    assert_eq!((read.status, &read.data[..], read.wanted), (Status::CHECK_CONDITION, &b"data"[..], 4));
    assert_eq!(read.sense[..7], [0xf0, 0, 0x20, 0, 0, 0, 252], "ILI and the difference, as the device gave it");
    let filemark = shared.rig.run(&READ_4, &[], 4);
    assert_eq!((filemark.sense[2], filemark.data.len()), (0x80, 0));
}

#[test]
fn the_device_gets_as_much_memory_as_the_cdb_moves() {
    let shared = Shared::new(Terms::default());
    assert_eq!(shared.rig.run(&WRITE_4, b"data and more", 0).status, Status::GOOD);
    shared.run(&REWIND);
    let read = shared.rig.run(&READ_4, &[], 2);
    assert_eq!((&read.data[..], read.wanted, read.status), (&b"data"[..], 4, Status::GOOD), "the transport cuts it");
    let short = shared.rig.run(&WRITE_4, b"da", 0);
    assert_eq!((sense(&short).0, short.wanted), (SenseKey::ILLEGAL_REQUEST, 4), "no incomplete block is written");
    assert_eq!(shared.received(0x0a).len(), 1);
}

#[test]
fn the_length_of_blocks_is_followed() {
    let shared = Shared::new(Terms::default());
    assert_eq!(shared.select(1000), Status::GOOD);
    let [write, read] = [0x0a, 0x08].map(|op| [op, 1, 0, 0, 2, 0]);
    assert_eq!(shared.rig.run(&write, &[7; 3000], 0).status, Status::GOOD, "two blocks of 1000 bytes are written");
    shared.run(&REWIND);
    assert_eq!(attention(&shared.run_as_other(&TUR)), Asc::MODE_PARAMETERS_CHANGED);
    let found = shared.rig.run_as(&shared.other, &read, &[], 2000);
    assert_eq!((found.status, found.data.len()), (Status::GOOD, 2000));
    assert_eq!(shared.select(0), Status::GOOD);
    assert_eq!(sense(&shared.rig.run(&write, &[7; 2000], 0)).0, SenseKey::ILLEGAL_REQUEST, "blocks of any length");
}

#[test]
fn mode_select_of_one_tells_the_others() {
    let shared = Shared::new(Terms::default());
    assert_eq!(shared.select(512), Status::GOOD);
    assert_eq!(shared.run(&TUR).status, Status::GOOD);
    assert_eq!(attention(&shared.run_as_other(&TUR)), Asc::MODE_PARAMETERS_CHANGED);
    assert_eq!(shared.run_as_other(&TUR).status, Status::GOOD);
}

#[test]
fn a_unit_attention_of_the_device_is_reported_to_all() {
    let shared = Shared::new(Terms::default());
    shared.tape.establish_unit_attention(0x2800);
    assert_eq!(attention(&shared.run(&TUR)), Asc::MEDIUM_MAY_HAVE_CHANGED);
    assert_eq!(shared.run(&TUR).status, Status::GOOD);
    assert_eq!(attention(&shared.run_as_other(&TUR)), Asc::MEDIUM_MAY_HAVE_CHANGED);
    // A command of Lunar itself meets it: all are told.
    shared.run(&REWIND);
    shared.select(512);
    shared.run_as_other(&TUR);
    shared.tape.establish_unit_attention(0x2a09);
    assert_eq!(shared.run(&REWIND).status, Status::GOOD);
    assert_eq!([&shared.run(&TUR), &shared.run_as_other(&TUR)].map(attention), [Asc::CAPACITY_DATA_CHANGED; 2]);
}

#[test]
fn a_device_that_comes_back_tells_all() {
    let shared = Shared::new(Terms::default());
    shared.run(&PREVENT);
    shared.tape.come_back();
    assert_eq!([&shared.run(&TUR), &shared.run_as_other(&TUR)].map(attention), [Asc::POWER_ON_OR_RESET; 2]);
    assert_eq!(shared.run(&TUR).status, Status::GOOD);
    assert_eq!(shared.received(0x1e), [PREVENT, PREVENT], "the device has to prevent removal again");
}

#[test]
fn reservations_are_never_sent_to_the_device() {
    let shared = Shared::new(Terms::default());
    assert_eq!(shared.run(&RESERVE).status, Status::GOOD);
    assert_eq!(shared.run_as_other(&REWIND).status, Status::RESERVATION_CONFLICT);
    assert_eq!(shared.run_as_other(&RELEASE).status, Status::GOOD);
    assert_eq!(shared.run_as_other(&TUR).status, Status::RESERVATION_CONFLICT);
    assert_eq!(shared.run(&RELEASE).status, Status::GOOD);
    let list = [[0; 8], [7; 8], [0; 8]].concat();
    let register = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    assert_eq!(shared.rig.run(&register, &list, 0).status, Status::GOOD);
    let list = [[7; 8], [0; 8], [0; 8]].concat();
    let write_exclusive = [0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0];
    assert_eq!(shared.rig.run(&write_exclusive, &list, 0).status, Status::GOOD);
    assert_eq!(shared.run_as_other(&REWIND).status, Status::RESERVATION_CONFLICT, "the position is the holder's");
    assert_eq!(shared.rig.run_as(&shared.other, &[5, 0, 0, 0, 0, 0], &[], 6).status, Status::GOOD);
    assert_eq!(shared.run(&REWIND).status, Status::GOOD);
    let keys = shared.rig.run_as(&shared.other, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 16, 0], &[], 16);
    assert_eq!((keys.status, &keys.data[8..]), (Status::GOOD, &[7; 8][..]));
    for action in [1, 2, 3] {
        let told = shared.rig.run(&[0x5e, action, 0, 0, 0, 0, 0, 0, 255, 0], &[], 255);
        assert_eq!(told.status, Status::GOOD, "service action {action}");
    }
    let groups = shared.rig.run(&[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0], &[], 255);
    assert_eq!((groups.status, groups.data[3]), (Status::GOOD, 16), "one target port group with two ports");
    let ops: BTreeSet<u8> = shared.tape.received().iter().map(|cdb| cdb[0]).collect();
    assert!([0x16, 0x17, 0x5e, 0x5f, 0xa3].iter().all(|op| !ops.contains(op)), "{ops:02x?}");
}

#[test]
fn removal_is_prevented_while_any_nexus_prevents_it() {
    let shared = Shared::new(Terms::default());
    for _ in 0..2 {
        assert_eq!(shared.run(&PREVENT).status, Status::GOOD);
    }
    assert_eq!(shared.run_as_other(&PREVENT).status, Status::GOOD);
    assert_eq!(shared.received(0x1e), [PREVENT], "the device is told once");
    assert_eq!(shared.run(&ALLOW).status, Status::GOOD);
    assert!(shared.received(0x1e).is_empty());
    at_once(shared.rig.target.close(&shared.other));
    assert_eq!(shared.received(0x1e), [ALLOW], "the last nexus has ended");
    assert_eq!(sense(&shared.run(&[0x1e, 0, 0, 0, 2, 0])).0, SenseKey::ILLEGAL_REQUEST);
}

#[test]
fn a_reset_releases_the_device_and_tells_all() {
    let shared = Shared::new(Terms::default());
    shared.run(&RESERVE);
    shared.run(&PREVENT);
    let reset = TaskFunction::LOGICAL_UNIT_RESET;
    let ended = at_once(shared.rig.target.task_management(&shared.rig.nexus, reset, shared.rig.lun.get(), 0));
    assert_eq!((ended, shared.tape.resets()), (TaskResponse::Complete, 1));
    assert_eq!(shared.received(0x1e), [PREVENT, ALLOW]);
    assert_eq!([&shared.run(&TUR), &shared.run_as_other(&TUR)].map(attention), [Asc::BUS_DEVICE_RESET; 2]);
    assert_eq!(shared.run_as_other(&REWIND).status, Status::GOOD);
}

#[test]
fn an_exclusive_device_belongs_to_the_nexus_that_uses_it() {
    let shared = Shared::new(Terms { exclusive: true, ..Terms::default() });
    assert_eq!([shared.run(&TUR).status, shared.run_as_other(&TUR).status], [Status::GOOD; 2], "no one uses it");
    assert_eq!(shared.run_as_other(&REWIND).status, Status::GOOD);
    assert_eq!(shared.rig.run(&WRITE_4, b"data", 0).status, Status::RESERVATION_CONFLICT);
    assert_eq!(shared.run(&TUR).status, Status::RESERVATION_CONFLICT);
    assert_eq!(shared.run_as_other(&UNLOAD).status, Status::GOOD);
    assert_eq!(shared.rig.run(&WRITE_4, b"data", 0).status, Status::GOOD, "it was unloaded");
    assert_eq!(shared.run_as_other(&REWIND).status, Status::RESERVATION_CONFLICT);
    at_once(shared.rig.target.close(&shared.rig.nexus));
    assert_eq!(shared.run_as_other(&REWIND).status, Status::GOOD, "its user has ended");
}

#[test]
fn a_reservation_by_command_outlasts_an_unload() {
    let shared = Shared::new(Terms { exclusive: true, ..Terms::default() });
    assert_eq!(shared.run(&RESERVE).status, Status::GOOD);
    assert_eq!([shared.run(&REWIND).status, shared.run(&UNLOAD).status], [Status::GOOD; 2]);
    assert_eq!(shared.run_as_other(&REWIND).status, Status::RESERVATION_CONFLICT);
}

#[test]
fn harmful_commands_are_refused_unless_they_are_allowed() {
    let format = [0x04, 0, 0, 0, 0, 0];
    let shared = Shared::new(Terms::default());
    let refused = shared.run(&format);
    assert_eq!(sense(&refused), (SenseKey::ILLEGAL_REQUEST, Asc::INVALID_COMMAND_OPERATION_CODE));
    assert!(shared.received(0x04).is_empty());
    let report = |shared: &Shared, op: u8| {
        shared.rig.run(&[0xa3, 0x0c, 1, op, 0, 0, 0, 0, 1, 0, 0, 0], &[], 256).data.get(1).map(|byte| byte & 7)
    };
    assert_eq!((report(&shared, 0x04), report(&shared, 0x16)), (Some(1), Some(3)));
    let shared = Shared::new(Terms { allowed: [0x04].into(), ..Terms::default() });
    shared.run(&format);
    assert_eq!(shared.received(0x04).len(), 1);
    assert_eq!(report(&shared, 0x04), None, "the device answers, which does not know the question");
}

#[test]
fn a_new_medium_is_reported_even_if_the_device_was_polled() {
    let shared = Shared::new(Terms::default());
    shared.tape.set_empty(true);
    assert_eq!(sense(&shared.run(&TUR)), (SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT));
    shared.tape.set_empty(false);
    assert_eq!(shared.run(&TUR).status, Status::GOOD);
    assert_eq!(attention(&shared.run_as_other(&TUR)), Asc::MEDIUM_MAY_HAVE_CHANGED);
    assert_eq!(shared.run_as_other(&TUR).status, Status::GOOD);
}

#[test]
fn limits_and_protection_are_those_of_the_device() {
    let shared = Shared::new(Terms::default());
    let limits = shared.rig.run(&[5, 0, 0, 0, 0, 0], &[], 6).data;
    assert_eq!(limits, [0, 4, 0, 0, 0, 1], "as the device says");
    assert_eq!(shared.rig.run(&MODE_SENSE, &[], 12).data[2] & 0x80, 0);
}

#[test]
fn an_aborted_command_ends_when_the_device_has_ended_it() {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    let shared = Shared::new(Terms::default());
    shared.tape.hold();
    let mut held = pin!(shared.rig.later(&REWIND, &[]));
    assert!(held.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    shared.tape.release();
    assert_eq!(held.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Status::GOOD));
}

#[test]
fn ordered_commands_have_an_order_within_their_nexus_and_none_beyond() {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    let shared = Shared::new(Terms::default());
    let (rig, mut context) = (&shared.rig, Context::from_waker(Waker::noop()));
    shared.tape.hold();
    let (mut older, mut ordered) = (pin!(rig.later(&REWIND, &[])), pin!(rig.later(&FILEMARK, &[])));
    assert!(older.as_mut().poll(&mut context).is_pending());
    rig.attribute.set(TaskAttribute::ORDERED);
    assert!(ordered.as_mut().poll(&mut context).is_pending());
    assert!(shared.received(FILEMARK[0]).is_empty(), "it waits for the older command");
    let mut of_other = pin!(rig.later_as(&shared.other, &FILEMARK, &[]));
    assert!(of_other.as_mut().poll(&mut context).is_pending());
    assert_eq!(shared.received(FILEMARK[0]).len(), 1, "that of the other nexus waits for nothing");
    rig.attribute.set(TaskAttribute::HEAD_OF_QUEUE);
    let mut head = pin!(rig.later(&TUR, &[]));
    assert!(head.as_mut().poll(&mut context).is_pending());
    assert_eq!(shared.received(TUR[0]).len(), 1);
    shared.tape.release();
    for done in [older, head, of_other] as [std::pin::Pin<&mut dyn Future<Output = Status>>; 3] {
        assert_eq!(done.poll(&mut context), Poll::Ready(Status::GOOD));
    }
    assert_eq!(ordered.poll(&mut context), Poll::Ready(Status::GOOD));
    assert_eq!(shared.received(FILEMARK[0]).len(), 1, "that of this nexus");
}

/// A step of a random history of several nexuses.
#[derive(Clone, Copy, Debug)]
enum Step {
    Prevent(usize),
    Allow(usize),
    Use(usize),
    Unload(usize),
    /// The nexus ends, and a new one of the same name begins.
    End(usize),
    Reset(usize),
}

fn step() -> impl Strategy<Value = Step> {
    (0usize..3, 0u8..6).prop_map(|(nexus, kind)| match kind {
        0 => Step::Prevent(nexus),
        1 => Step::Allow(nexus),
        2 => Step::Use(nexus),
        3 => Step::Unload(nexus),
        4 => Step::End(nexus),
        _ => Step::Reset(nexus),
    })
}

proptest! {
    /// The device prevents removal while a nexus prevents it, and belongs to the nexus that uses it.
    #[test]
    fn the_device_sees_the_sum_and_one_user(steps in prop::collection::vec(step(), 0..40)) {
        let tape = Tape::on_terms(1 << 20, Terms { exclusive: true, ..Terms::default() });
        let rig = Rig::forwarding(tape.clone());
        let begin = |number: usize| rig.target.nexus(Rig::name(["x", "y", "z"][number]));
        let calm = |nexus: &Rc<Nexus>| nexus.each(|itl| while itl.take_attention().is_some() {});
        let mut nexuses = [0, 1, 2].map(begin);
        let (mut preventing, mut user, mut is_prevented) = (BTreeSet::new(), None, false);
        for step in steps {
            nexuses.iter().for_each(calm);
            let run = |nexus: usize, cdb: &[u8]| rig.run_as(&nexuses[nexus], cdb, &[], 0).status;
            let expected = |nexus: usize| match user {
                Some(other) if other != nexus => Status::RESERVATION_CONFLICT,
                _ => Status::GOOD,
            };
            match step {
                Step::Prevent(nexus) => {
                    prop_assert_eq!(run(nexus, &PREVENT), expected(nexus));
                    if expected(nexus) == Status::GOOD {
                        preventing.insert(nexus);
                    }
                }
                Step::Allow(nexus) => {
                    prop_assert_eq!(run(nexus, &ALLOW), expected(nexus));
                    if expected(nexus) == Status::GOOD {
                        preventing.remove(&nexus);
                    }
                }
                Step::Use(nexus) => {
                    prop_assert_eq!(run(nexus, &REWIND), expected(nexus));
                    user = user.or(Some(nexus));
                }
                Step::Unload(nexus) => {
                    prop_assert_eq!(run(nexus, &UNLOAD), expected(nexus));
                    user = user.filter(|other| *other != nexus);
                }
                Step::End(nexus) => {
                    at_once(rig.target.close(&nexuses[nexus]));
                    nexuses[nexus] = begin(nexus);
                    preventing.remove(&nexus);
                    user = user.filter(|other| *other != nexus);
                }
                Step::Reset(nexus) => {
                    let reset = TaskFunction::LOGICAL_UNIT_RESET;
                    at_once(rig.target.task_management(&nexuses[nexus], reset, rig.lun.get(), 0));
                    preventing.clear();
                    user = None;
                }
            }
            for cdb in tape.received().iter().filter(|cdb| cdb[0] == 0x1e) {
                is_prevented = cdb[4] == 1;
            }
            prop_assert_eq!(is_prevented, !preventing.is_empty());
        }
    }
}

use crate::command::Status;
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::other_core::two_cores;
use crate::sense::Asc;
use crate::task::{TaskFunction, TaskResponse};
use crate::testing::{Ended, Memory, Rig, at_once};
use lunar_core::io::Fault;
use lunar_core::mem::Arena;
use lunar_core::metadata::{MetadataStore, Saving, VolatileMemory};
use lunar_core::step::SlotContext;
use lunar_core::unit::UnitId;
use lunar_unit::NoOtherCores;
use lunar_unit::reserve::RESERVATIONS;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const IGNORE: u8 = 6;
const MOVE: u8 = 7;

const EXCLUSIVE: u8 = 3;
const REGISTRANTS: u8 = 6;

const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn cdb_out(action: u8, kind: u8, length: usize) -> [u8; 10] {
    let [a, b, c, d] = u32::try_from(length).expect("short").to_be_bytes();
    [0x5f, action, kind, 0, 0, a, b, c, d, 0]
}

fn list(key: u64, action_key: u64, flags: u8) -> Vec<u8> {
    [&key.to_be_bytes()[..], &action_key.to_be_bytes(), &[0, 0, 0, 0, flags, 0, 0, 0]].concat()
}

/// PERSISTENT RESERVE OUT.
fn out(rig: &Rig, nexus: &Rc<Nexus>, action: u8, kind: u8, key: u64, action_key: u64) -> Status {
    rig.run_as(nexus, &cdb_out(action, kind, 24), &list(key, action_key, 0), 0).status
}

/// PERSISTENT RESERVE IN.
fn read(rig: &Rig, action: u8) -> Vec<u8> {
    let ended = rig.run(&[0x5e, action, 0, 0, 0, 0, 0, 0xff, 0xff, 0], &[], 65535);
    assert_eq!(ended.status, Status::GOOD);
    ended.data
}

fn keys(rig: &Rig) -> Vec<u8> {
    read(rig, 0)[8..].chunks(8).map(|key| key[7]).collect()
}

fn nexus(rig: &Rig, initiator: &str) -> Rc<Nexus> {
    let nexus = rig.target.nexus(Rig::name(initiator));
    clear(&nexus);
    nexus
}

fn clear(nexus: &Nexus) {
    nexus.each(|itl| while itl.take_attention().is_some() {});
}

fn told(nexus: &Nexus) -> Option<Asc> {
    nexus.itl(0)?.attention().map(|(asc, _)| asc)
}

fn writes(rig: &Rig, nexus: &Rc<Nexus>) -> Status {
    rig.run_as(nexus, &WRITE, &[], 0).status
}

fn asc(ended: &Ended) -> (u16, Option<u16>) {
    assert_eq!(ended.status, Status::CHECK_CONDITION);
    let [.., code, qualifier, _, flags, high, low] = ended.sense[..18] else { panic!("fixed format") };
    (u16::from_be_bytes([code, qualifier]), (flags & 0x80 != 0).then(|| u16::from_be_bytes([high, low])))
}

const TRANSPORT_ID: &[u8] = b"\x45\0\0\x1ciqn.a:b,i,0x00023d000001\0\0\0\0";

#[test]
fn golden_answers() {
    let rig = Rig::default();
    assert_eq!(read(&rig, 0), [0; 8]);
    assert_eq!(read(&rig, 1), [0; 8]);
    assert_eq!(read(&rig, 2), [0, 8, 0x1c, 0x90, 0xea, 1, 0, 0]);
    let named = nexus(&rig, "iqn.a:b,i,0x00023d000001");
    assert_eq!(out(&rig, &rig.nexus, REGISTER, 0, 0, 5), Status::GOOD);
    assert_eq!(out(&rig, &named, REGISTER, 0, 0, 0x0102_0304_0506_0708), Status::GOOD);
    assert_eq!(out(&rig, &named, RESERVE, REGISTRANTS, 0x0102_0304_0506_0708, 0), Status::GOOD);
    assert_eq!(read(&rig, 0), [0, 0, 0, 2, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 5, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(read(&rig, 1), [0, 0, 0, 2, 0, 0, 0, 16, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 6, 0, 0]);
    let first: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 24];
    let id: &[u8] = b"\x45\0\0\x14a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let second: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 1, 6, 0, 0, 0, 0, 0, 1, 0, 0, 0, 32];
    let status = [&[0, 0, 0, 2, 0, 0, 0, 104][..], first, id, second, TRANSPORT_ID].concat();
    assert_eq!(read(&rig, 3), status);
    let cut = rig.run(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 10, 0], &[], 65535);
    assert_eq!(cut.data, [0, 0, 0, 2, 0, 0, 0, 16, 0, 0], "the whole length, even if the data is truncated");
}

#[test]
fn no_key_is_reported_where_all_registrants_hold() {
    let rig = Rig::default();
    assert_eq!(out(&rig, &rig.nexus, IGNORE, 0, 0, 5), Status::GOOD);
    assert_eq!(out(&rig, &rig.nexus, RESERVE, 7, 5, 0), Status::GOOD);
    assert_eq!(read(&rig, 1)[8..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0]);
    assert_eq!(read(&rig, 3)[20..22], [1, 7]);
}

#[test]
fn lists_that_are_refused() {
    let rig = Rig::default();
    assert_eq!(out(&rig, &rig.nexus, REGISTER, 0, 0, 5), Status::GOOD);
    let specified = |length: u32, ids: &[u8]| [&list(0, 5, 8), &length.to_be_bytes()[..], ids].concat();
    let moved = |flags: u8, port: u8, length: u8, id: &[u8]| {
        [&5_u64.to_be_bytes()[..], &6_u64.to_be_bytes(), &[0, flags, 0, port, 0, 0, 0, length], id].concat()
    };
    let longer = [&list(5, 5, 0)[..], &[0]].concat();
    let two = [TRANSPORT_ID, b"\x05"].concat();
    const LENGTH: (u16, Option<u16>) = (0x1a00, None);
    for (action, bytes, expected) in [
        (RESERVE, list(5, 0, 0)[..23].to_vec(), LENGTH),
        (RESERVE, longer.clone(), LENGTH),
        (REGISTER, longer, LENGTH),
        (REGISTER, vec![], LENGTH),
        (CLEAR, list(5, 0, 8), (0x2600, Some(20))),
        (IGNORE, list(5, 0, 8), (0x2600, Some(20))),
        (REGISTER, list(0, 5, 8), LENGTH),
        (REGISTER, specified(31, TRANSPORT_ID), LENGTH),
        (REGISTER, specified(33, &two), (0x2600, Some(60))),
        (REGISTER, specified(4, b"\x05\0\0\0"), (0x2600, Some(28))),
        (REGISTER, list(5, 5, 1), (0x2600, Some(20))),
        (MOVE, moved(0, 1, 31, TRANSPORT_ID), LENGTH),
        (MOVE, moved(0, 9, 32, TRANSPORT_ID), (0x2600, Some(18))),
        (MOVE, moved(0, 1, 4, b"\x05\0\0\0"), (0x2600, Some(24))),
        (MOVE, moved(0, 1, 33, &two), (0x2600, Some(24))),
        (MOVE, moved(1, 1, 32, TRANSPORT_ID), (0x2600, Some(17))),
        (MOVE, list(5, 0, 0)[..23].to_vec(), LENGTH),
        (PREEMPT, list(5, 0, 0), (0x2600, Some(8))),
    ] {
        let ended = rig.run(&cdb_out(action, EXCLUSIVE, bytes.len()), &bytes, 0);
        assert_eq!(asc(&ended), expected, "{action}: {bytes:02x?}");
    }
    // More than the initiator sends, and more than the limit.
    assert_eq!(asc(&rig.run(&cdb_out(CLEAR, 0, 24), &list(5, 0, 0)[..20], 0)), LENGTH);
    assert_eq!(asc(&rig.run(&[0x5f, 3, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0], &list(5, 0, 0), 0)), LENGTH);
    assert_eq!(keys(&rig), [5]);
}

#[test]
fn other_nexuses_are_registered_by_their_names() {
    let rig = Rig::default();
    let named = nexus(&rig, "iqn.a:b,i,0x00023d000001");
    let bytes = [&list(0, 5, 8 | 4), &32_u32.to_be_bytes()[..], TRANSPORT_ID].concat();
    assert_eq!(rig.run(&cdb_out(REGISTER, 0, bytes.len()), &bytes, 0).status, Status::GOOD);
    assert_eq!(keys(&rig), [5, 5, 5, 5], "two initiator ports at two target ports");
    assert_eq!(out(&rig, &named, RESERVE, EXCLUSIVE, 5, 0), Status::GOOD);
    assert_eq!((writes(&rig, &named), writes(&rig, &rig.nexus)), (Status::GOOD, Status::RESERVATION_CONFLICT));
    // REGISTER AND MOVE, to the second port of the first.
    let id: &[u8] = b"\x45\0\0\x14iqn.c,i,0x1\0\0\0\0\0\0\0\0\0";
    let bytes = [&5_u64.to_be_bytes()[..], &6_u64.to_be_bytes(), &[0, 2, 0, 2, 0, 0, 0, 24], id].concat();
    assert_eq!(rig.run_as(&named, &cdb_out(MOVE, 0, 48), &bytes, 0).status, Status::GOOD);
    assert_eq!(read(&rig, 1)[8..16], 6_u64.to_be_bytes());
    assert_eq!(writes(&rig, &named), Status::RESERVATION_CONFLICT);
    assert_eq!(out(&rig, &named, RESERVE, EXCLUSIVE, 5, 0), Status::RESERVATION_CONFLICT);
}

#[test]
fn all_cores_go_by_a_reservation_before_it_is_answered() {
    let [here, there] = two_cores(&Rig::traits());
    let far = nexus(&there, "far");
    assert_eq!(out(&here, &here.nexus, IGNORE, 0, 0, 5), Status::GOOD);
    assert_eq!(out(&there, &far, IGNORE, 0, 0, 6), Status::GOOD);
    assert_eq!(out(&here, &here.nexus, RESERVE, EXCLUSIVE, 5, 0), Status::GOOD);
    assert_eq!((writes(&here, &here.nexus), writes(&there, &far)), (Status::GOOD, Status::RESERVATION_CONFLICT));
    assert_eq!(out(&there, &far, PREEMPT, REGISTRANTS, 6, 5), Status::GOOD);
    assert_eq!((told(&here.nexus), told(&far)), (Some(Asc::REGISTRATIONS_PREEMPTED), None));
    clear(&here.nexus);
    assert_eq!((writes(&here, &here.nexus), writes(&there, &far)), (Status::RESERVATION_CONFLICT, Status::GOOD));
    assert_eq!(out(&here, &here.nexus, IGNORE, 0, 0, 5), Status::GOOD);
    assert_eq!(writes(&here, &here.nexus), Status::GOOD);
    assert_eq!(out(&there, &far, RELEASE, REGISTRANTS, 6, 0), Status::GOOD);
    assert_eq!((told(&here.nexus), told(&far)), (Some(Asc::RESERVATIONS_RELEASED), None));
    clear(&here.nexus);
    assert_eq!(out(&there, &far, CLEAR, 0, 6, 0), Status::GOOD);
    assert_eq!((told(&here.nexus), told(&far)), (Some(Asc::RESERVATIONS_PREEMPTED), None));
}

#[test]
fn a_later_nexus_is_restricted_too() {
    let [here, there] = two_cores(&Rig::traits());
    assert_eq!(out(&here, &here.nexus, IGNORE, 0, 0, 5), Status::GOOD);
    assert_eq!(out(&here, &here.nexus, RESERVE, EXCLUSIVE, 5, 0), Status::GOOD);
    for rig in [&here, &there] {
        let late = nexus(rig, "late");
        assert_eq!(writes(rig, &late), Status::RESERVATION_CONFLICT);
    }
    // The holder again, after a logout, on another core.
    let again = nexus(&there, "a");
    assert_eq!(writes(&there, &again), Status::GOOD);
}

#[test]
fn the_tasks_of_the_preempted_end_everywhere() {
    let [here, there] = two_cores(&Rig::traits());
    let (far, other) = (nexus(&there, "far"), nexus(&there, "other"));
    for (rig, nexus, key) in [(&here, &here.nexus, 5), (&there, &far, 6), (&there, &other, 7)] {
        assert_eq!(out(rig, nexus, IGNORE, 0, 0, key), Status::GOOD);
    }
    let lun = Lun::from_number;
    let task = far.tasks.enter((1, lun(0)));
    let elsewhere = far.tasks.enter((2, lun(1)));
    let unharmed = other.tasks.enter((1, lun(0)));
    let plain = out(&here, &here.nexus, PREEMPT, EXCLUSIVE, 5, 99);
    assert_eq!((plain, task.aborted()), (Status::RESERVATION_CONFLICT, false));
    let mut command = running(&here, &here.nexus, PREEMPT_AND_ABORT, list(5, 6, 0));
    assert_eq!(command.poll(), None, "it waits for the task");
    assert!(task.aborted() && !elsewhere.aborted() && !unharmed.aborted());
    drop(task);
    assert_eq!(command.poll(), Some(Status::GOOD));
    assert_eq!((told(&far), told(&other)), (Some(Asc::REGISTRATIONS_PREEMPTED), None));
    assert_eq!(there.stats().tasks_aborted.get(), 1);
}

#[test]
fn two_nexuses_that_preempt_each_other_do_not_wait_forever() {
    let [here, there] = two_cores(&Rig::traits());
    let far = nexus(&there, "far");
    assert_eq!(out(&here, &here.nexus, IGNORE, 0, 0, 5), Status::GOOD);
    assert_eq!(out(&there, &far, IGNORE, 0, 0, 6), Status::GOOD);
    // Tag 1 is the command's own.
    let lun = Lun::from_number(0);
    let (own, task) = (here.nexus.tasks.enter((1, lun)), far.tasks.enter((1, lun)));
    let mut first = running(&here, &here.nexus, PREEMPT_AND_ABORT, list(5, 6, 0));
    assert_eq!(first.poll(), None, "it waits for the task of the other nexus");
    clear(&far);
    assert_eq!(out(&there, &far, IGNORE, 0, 0, 6), Status::GOOD);
    let mut second = running(&there, &far, PREEMPT_AND_ABORT, list(6, 5, 0));
    assert!(second.poll().is_some(), "it is already aborted, and waits for no task");
    assert!(own.aborted() && task.aborted());
    assert!(first.poll().is_some());
}

/// A command in progress.
struct Running<'a>(Pin<Box<dyn Future<Output = Status> + 'a>>);

impl Running<'_> {
    fn poll(&mut self) -> Option<Status> {
        match self.0.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(status) => Some(status),
            Poll::Pending => None,
        }
    }
}

struct Given(Vec<u8>, Arena, Cell<bool>);

impl lunar_core::port::Transfer for Given {
    async fn room(&self) -> Result<(), Fault> {
        Ok(())
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<lunar_core::mem::Sg, Fault> {
        let mut memory = self.1.take_sg(len).ok_or(Fault::NoMemory)?;
        memory.copy_from(0, &self.0[offset..offset + len]);
        Ok(memory.share())
    }

    fn push(&self, _offset: usize, _data: lunar_core::mem::Sg) -> Result<(), Fault> {
        Ok(())
    }

    fn aborted(&self) -> bool {
        self.2.get()
    }
}

/// Starts PERSISTENT RESERVE OUT.
fn running<'a>(rig: &'a Rig, nexus: &'a Rc<Nexus>, action: u8, list: Vec<u8>) -> Running<'a> {
    Running(Box::pin(async move {
        let arena = Arena::new(1 << 20);
        let command = rig.command(&cdb_out(action, EXCLUSIVE, list.len()), list.len(), 0);
        let transfer = Given(list, arena.clone(), Cell::new(false));
        let mut slot = SlotContext::new(arena);
        let mut reply = crate::Reply::default();
        rig.target.execute(nexus, &command, &transfer, &mut slot, &mut reply).await;
        reply.status
    }))
}

const RESERVE_6: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const RELEASE_6: [u8; 6] = [0x17, 0, 0, 0, 0, 0];

#[test]
fn an_spc2_reservation_holds_on_all_cores() {
    let [here, there] = two_cores(&Rig::traits());
    let far = nexus(&there, "far");
    assert_eq!(here.run(&RESERVE_6, &[], 0).status, Status::GOOD);
    assert_eq!(there.run_as(&far, &RESERVE_6, &[], 0).status, Status::RESERVATION_CONFLICT);
    assert_eq!(there.run_as(&far, &RELEASE_6, &[], 0).status, Status::GOOD);
    assert_eq!((writes(&there, &far), writes(&here, &here.nexus)), (Status::RESERVATION_CONFLICT, Status::GOOD));
    assert_eq!(here.run(&RELEASE_6, &[], 0).status, Status::GOOD);
    assert_eq!(writes(&there, &far), Status::GOOD);
}

#[test]
fn resets_and_losses_end_only_spc2_reservations() {
    let functions = [
        TaskFunction::LOGICAL_UNIT_RESET,
        TaskFunction::TARGET_WARM_RESET,
        TaskFunction::TARGET_COLD_RESET,
        TaskFunction::I_T_NEXUS_RESET,
    ];
    for function in functions.map(Some).into_iter().chain([None]) {
        for persistent in [false, true] {
            let [here, there] = two_cores(&Rig::traits());
            let far = nexus(&there, "far");
            if persistent {
                assert_eq!(out(&here, &here.nexus, IGNORE, 0, 0, 5), Status::GOOD);
                assert_eq!(out(&here, &here.nexus, RESERVE, EXCLUSIVE, 5, 0), Status::GOOD);
            } else {
                assert_eq!(here.run(&RESERVE_6, &[], 0).status, Status::GOOD);
            }
            match function {
                Some(function) => {
                    let done = here.target.task_management(&here.nexus, function, Lun::from_number(0), 0);
                    assert_eq!(at_once(done), TaskResponse::Complete);
                }
                None => at_once(here.target.close(&here.nexus)),
            }
            clear(&far);
            let status = if persistent { Status::RESERVATION_CONFLICT } else { Status::GOOD };
            assert_eq!(writes(&there, &far), status, "{function:?}, persistent: {persistent}");
        }
    }
}

#[test]
fn the_loss_of_another_nexus_ends_nothing() {
    let [here, there] = two_cores(&Rig::traits());
    let far = nexus(&there, "far");
    assert_eq!(here.run(&RESERVE_6, &[], 0).status, Status::GOOD);
    at_once(there.target.close(&far));
    assert_eq!(writes(&there, &far), Status::RESERVATION_CONFLICT);
}

/// A metadata store across restarts of a test, which is slow or fails at the request of the test.
#[derive(Default)]
struct DurableMemory {
    kept: VolatileMemory,
    slow: AtomicBool,
    fails: AtomicBool,
}

impl MetadataStore for DurableMemory {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        self.kept.load(name)
    }

    fn save(&self, name: &'static str, bytes: Vec<u8>) -> Saving {
        match (self.fails.load(Ordering::Relaxed), self.slow.load(Ordering::Relaxed)) {
            (true, _) => Box::pin(std::future::ready(Err(Fault::NoSpace))),
            (_, true) => Box::pin(std::future::pending()),
            _ => self.kept.save(name, bytes),
        }
    }

    fn is_durable(&self) -> bool {
        true
    }
}

/// The start of a process whose unit uses this metadata store.
fn start(keep: &Arc<DurableMemory>) -> Rig {
    const ID: u32 = 7;
    let rig = Rig::sharing(Rig::traits(), Rc::new(NoOtherCores), Arc::default());
    rig.units.shared().restore(UnitId(ID), &**keep).expect("whole");
    let memory = Rc::new(Memory { bytes: RefCell::new(vec![0; 1 << 20]), ..Memory::default() });
    let mut unit = Rig::unit(ID, Rig::traits(), memory);
    Rc::get_mut(&mut unit).expect("the unit is not shared yet").metadata = keep.clone();
    rig.target.add_unit(0, unit);
    clear(&rig.nexus);
    rig
}

fn register(rig: &Rig, key: u64, aptpl: u8) -> Status {
    rig.run(&cdb_out(IGNORE, 0, 24), &list(0, key, aptpl), 0).status
}

#[test]
fn reservations_with_aptpl_survive_a_restart() {
    let keep = Arc::<DurableMemory>::default();
    let rig = start(&keep);
    assert_eq!(read(&rig, 2)[2..4], [0x1d, 0x90]);
    assert_eq!(register(&rig, 5, 1), Status::GOOD);
    assert_eq!(out(&rig, &rig.nexus, RESERVE, EXCLUSIVE, 5, 0), Status::GOOD);
    assert_eq!(read(&rig, 2)[2..4], [0x1d, 0x91]);
    let rig = start(&keep);
    assert_eq!((read(&rig, 0), read(&rig, 2)[3]), (vec![0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5], 0x91));
    let other = nexus(&rig, "b");
    assert_eq!((writes(&rig, &rig.nexus), writes(&rig, &other)), (Status::GOOD, Status::RESERVATION_CONFLICT));
    assert_eq!(register(&rig, 5, 0), Status::GOOD);
    let rig = start(&keep);
    assert_eq!((keys(&rig), writes(&rig, &nexus(&rig, "b"))), (vec![], Status::GOOD));
    assert_eq!((register(&rig, 5, 1), out(&rig, &rig.nexus, CLEAR, 0, 5, 0)), (Status::GOOD, Status::GOOD));
    assert_eq!(keys(&start(&keep)), []);
}

#[test]
fn an_answer_waits_for_the_medium() {
    let keep = Arc::<DurableMemory>::default();
    let rig = start(&keep);
    keep.slow.store(true, Ordering::Relaxed);
    let mut command = running(&rig, &rig.nexus, IGNORE, list(0, 5, 1));
    assert_eq!(command.poll(), None);
    assert_eq!(keys(&rig), [], "no state changes before the record is saved");
    let mut waiting = running(&rig, &rig.nexus, IGNORE, list(0, 6, 0));
    assert_eq!(waiting.poll(), None, "one after another");
    drop(command);
    assert_eq!((waiting.poll(), keys(&rig)), (Some(Status::GOOD), vec![6]));
}

#[test]
fn a_reservation_that_cannot_be_saved_is_refused() {
    let keep = Arc::<DurableMemory>::default();
    let rig = start(&keep);
    keep.fails.store(true, Ordering::Relaxed);
    assert_eq!((register(&rig, 5, 1), keys(&rig)), (Status::CHECK_CONDITION, vec![]));
    assert_eq!((register(&rig, 5, 0), keys(&rig)), (Status::GOOD, vec![5]), "no record to save");
    assert_eq!(keep.load(RESERVATIONS), None);
}

#[test]
fn a_command_that_was_given_up_gives_its_turn_back() {
    let keep = Arc::<DurableMemory>::default();
    let rig = start(&keep);
    keep.slow.store(true, Ordering::Relaxed);
    let mut command = pin!(running(&rig, &rig.nexus, IGNORE, list(0, 5, 1)).0);
    assert!(command.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    command.set(Box::pin(async { Status::BUSY }));
    assert_eq!(register(&rig, 6, 0), Status::GOOD);
}

proptest! {
    /// After any requests on any cores, the restriction of each nexus follows from the reservations.
    #[test]
    fn every_core_applies_the_shared_reservations(
        asked in prop::collection::vec((0usize..4, 0u8..11, 0u8..10, 0u64..4, 0u64..4), 1..40)
    ) {
        let rigs = two_cores(&Rig::traits());
        let nexuses = ["p", "q", "r", "s"].map(|name| nexus(&rigs[usize::from(name > "q")], name));
        for (by, action, kind, key, new) in asked {
            let (rig, nexus) = (&rigs[by / 2], &nexuses[by]);
            match action {
                8 => drop(rig.run_as(nexus, &RESERVE_6, &[], 0)),
                9 => drop(rig.run_as(nexus, &RELEASE_6, &[], 0)),
                10 => drop(at_once(rig.target.task_management(
                    nexus,
                    [TaskFunction::LOGICAL_UNIT_RESET, TaskFunction::I_T_NEXUS_RESET][by % 2],
                    Lun::from_number(0),
                    0,
                ))),
                _ => drop(out(rig, nexus, action, kind, key, new)),
            }
            for nexus in &nexuses {
                let itl = nexus.itl(0).expect("LUN exists");
                let meant = itl.lu.shared.reservations().held(&nexus.name);
                prop_assert_eq!(itl.held(), meant);
                clear(nexus);
            }
        }
    }
}

proptest! {
    /// Any list of the length in its CDB; and a valid list with one wrong byte.
    #[test]
    fn any_list_does_no_harm(
        action in 0u8..8, bytes in prop::collection::vec(any::<u8>(), 0..200), byte in any::<u8>()
    ) {
        let rig = Rig::default();
        prop_assert_eq!(out(&rig, &rig.nexus, IGNORE, 0, 0, 5), Status::GOOD);
        prop_assert_eq!(out(&rig, &rig.nexus, RESERVE, EXCLUSIVE, 5, 0), Status::GOOD);
        rig.run(&cdb_out(action, EXCLUSIVE, bytes.len()), &bytes, 0);
        let specified = [&list(0, 5, 8), &32_u32.to_be_bytes()[..], TRANSPORT_ID].concat();
        let moved = [&5_u64.to_be_bytes()[..], &6_u64.to_be_bytes(), &[0, 0, 0, 1, 0, 0, 0, 32], TRANSPORT_ID].concat();
        let stranger = nexus(&rig, "stranger");
        for (by, action, mut list) in [(&stranger, REGISTER, specified), (&rig.nexus, MOVE, moved)] {
            let at = bytes.len() % list.len();
            list[at] = byte;
            rig.run_as(by, &cdb_out(action, EXCLUSIVE, list.len()), &list, 0);
        }
        let full = read(&rig, 3);
        prop_assert_eq!(full.len(), 8 + u32::from_be_bytes([full[4], full[5], full[6], full[7]]) as usize);
    }
}

use super::*;
use crate::command::{Command, Reply, Sqe, Status};
use crate::fuzzing::{BLOCK, Rig, at_once, entry};
use crate::namespace::Namespace;
use crate::queue::Task;
use lunar_core::io::Fault;
use lunar_core::mem::{Arena, Sg};
use lunar_core::metadata::{MetadataStore, Saving, VolatileMemory};
use lunar_core::port::Transfer;
use lunar_core::step::SlotContext;
use lunar_core::unit::Unit;
use lunar_unit::reserve::{Action, Notice, PersistentRequest, Request};
use lunar_unit::{AccessState, MediumState};
use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

const READ: u8 = 0x02;
const FORMAT_NVM: u8 = 0x80;
const SANITIZE: u8 = 0x84;
const REGISTER: u8 = 0x0d;

fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn admin(rig: &Rig, opcode: u8, namespace: u32, dwords: &[u32]) -> Status {
    rig.run(&rig.admin, &entry(opcode, namespace, dwords), &[]).status
}

fn read(rig: &Rig, namespace: u32) -> Status {
    rig.run(&rig.io, &entry(READ, namespace, &[0, 0, 0]), &[]).status
}

fn namespace(rig: &Rig, unit: u32) -> Rc<Namespace> {
    rig.subsystem.unit(UnitId(unit)).expect("it is there")
}

type Running = LocalFuture<'static, ()>;

/// Rewrites of this rig run when the test says so.
fn in_background(rig: &Rig) -> Rc<RefCell<Vec<Running>>> {
    let tasks = Rc::<RefCell<Vec<Running>>>::default();
    let queue = tasks.clone();
    rig.units.run_in_background(Rc::new(move |mut task: Running| {
        // A reactor runs a new task until it waits.
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            queue.borrow_mut().push(task);
        }
    }));
    tasks
}

fn finish(tasks: &RefCell<Vec<Running>>) {
    for mut task in tasks.take() {
        while task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {}
    }
}

/// A command whose list has arrived with it.
struct Given(Arena, Vec<u8>);

impl Transfer for Given {
    async fn room(&self) -> Result<(), Fault> {
        Ok(())
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        let mut memory = self.0.take_sg(len).ok_or(Fault::NoMemory)?;
        memory.copy_from(0, &self.1[offset..offset + len]);
        Ok(memory.share())
    }

    fn push(&self, _offset: usize, _data: Sg) -> Result<(), Fault> {
        Err(Fault::Protocol)
    }

    fn aborted(&self) -> bool {
        false
    }
}

/// Executes a command that may take its time.
async fn execute(rig: &Rig, queue: &Rc<Queue>, task: &Task, mut sqe: Sqe, list: Vec<u8>) -> Status {
    let sent = u32::try_from(list.len()).expect("short");
    sqe.sgl.length = sent.into();
    let (command, given) = (Command { sqe, sent, room: 0 }, Given(Arena::new(1 << 20), list));
    let mut slot = SlotContext::new(given.0.clone());
    let mut reply = Reply::default();
    rig.subsystem.execute(queue, task, &command, &given, &mut slot, &mut reply).await;
    reply.status.code()
}

/// A durable metadata store that waits, if asked to.
#[derive(Default)]
struct Slow {
    records: VolatileMemory,
    waits: Arc<AtomicBool>,
}

impl MetadataStore for Slow {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        self.records.load(name)
    }

    fn save(&self, name: &'static str, bytes: Vec<u8>) -> Saving {
        let (saved, waits) = (self.records.save(name, bytes), self.waits.clone());
        Box::pin(async move {
            poll_fn(|_| if waits.load(Ordering::Relaxed) { Poll::Pending } else { Poll::Ready(()) }).await;
            saved.await
        })
    }

    fn is_durable(&self) -> bool {
        true
    }
}

/// Gives the first namespace a metadata store that can wait.
fn with_slow_metadata(rig: &Rig) -> (Arc<AtomicBool>, Rc<Unit>) {
    let metadata = Arc::new(Slow::default());
    let (mut unit, _) = crate::fuzzing::unit(0);
    Rc::get_mut(&mut unit).expect("the only reference").metadata = metadata.clone();
    rig.subsystem.add_unit(unit.clone());
    (metadata.waits.clone(), unit)
}

#[test]
fn a_registration_leaves_ptpl_as_it_is_in_its_turn() {
    for ptpl in [true, false] {
        let rig = Rig::default();
        let (waits, unit) = with_slow_metadata(&rig);
        let name = rig.io.name().clone();
        let set = |ptpl, key| {
            let action = Action::Register { ignore_key: true, ptpl: Some(ptpl), ports: vec![7], initiators: vec![] };
            let request = PersistentRequest { action, scope_and_type: 0, key: 0, action_key: key };
            let change = UnitChange::Reservations { nexus: name.clone(), request: Request::Persistent(request) };
            rig.units.propose(&unit, None, change)
        };
        at_once(set(!ptpl, 1)).expect("registered");
        waits.store(true, Ordering::Relaxed);
        let mut other = Box::pin(set(ptpl, 2));
        assert!(poll(&mut other).is_pending(), "its record is being saved");
        let task = rig.io.tasks.enter((1, 1));
        let list = [0_u64, 5].map(u64::to_le_bytes).concat();
        let mut registering = Box::pin(execute(&rig, &rig.io, &task, entry(REGISTER, 1, &[8 | 2]), list));
        assert!(poll(&mut registering).is_pending(), "it waits for its turn");
        waits.store(false, Ordering::Relaxed);
        assert!(matches!(poll(&mut other), Poll::Ready(Ok(_))));
        assert_eq!(poll(&mut registering), Poll::Ready(Status::SUCCESS));
        assert_eq!(namespace(&rig, 0).shared.reservations().ptpl(), ptpl);
    }
}

/// The metadata record of a rewrite, as earlier versions wrote it.
fn record(state: u8, passes: &[(bool, &[u8])]) -> Option<Vec<u8>> {
    let mut record = vec![1, state];
    for (unmap, pattern) in passes {
        record.push((*unmap).into());
        record.extend(u32::try_from(pattern.len()).expect("a block").to_be_bytes());
        record.extend(*pattern);
    }
    Some(record)
}

#[test]
fn sanitize_rewrites_all_media_and_reports_one_state() {
    let rig = Rig::default();
    let tasks = in_background(&rig);
    let sanitize = |dword: u32| admin(&rig, SANITIZE, 0, &[dword, 0x0102_0304]);
    let log = || {
        let page = rig.run(&rig.admin, &entry(0x02, 0, &[0x81 | 127 << 16]), &[]).data;
        let [a, b, c, d, e, f, g, h, ..] = page[..] else { panic!("short") };
        assert!(page[8..32].iter().all(|byte| *byte == 0xff), "no time is estimated");
        assert!(page.len() == 512 && page[32..].iter().all(|byte| *byte == 0), "reserved");
        (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]), u32::from_le_bytes([e, f, g, h]))
    };
    let records = || [0, 1].map(|unit| namespace(&rig, unit).unit.metadata.load("medium"));
    let word = |word: u32| word.to_le_bytes().repeat(BLOCK as usize / 4);
    assert_eq!(log(), (0xffff, 0, 0), "never");
    for (dword, state, passes) in [
        (2, 3, vec![(true, vec![])]),
        (2 | 0x200, 3, vec![(false, vec![])]),
        (3 | 3 << 4 | 0x100 | 8, 4, [0x0102_0304, !0x0102_0304, 0x0102_0304].map(|w| (false, word(w))).to_vec()),
        (3, 3, vec![(false, word(0x0102_0304)); 16]),
    ] {
        assert_eq!(sanitize(dword), Status::SUCCESS);
        let begun = record(state, &passes.iter().map(|(unmap, bytes)| (*unmap, &bytes[..])).collect::<Vec<_>>());
        assert_eq!(records(), [begun.clone(), begun], "{dword:#x}");
        assert_eq!((log().1, log().2), (2, dword), "in progress");
        let busy = Status::SANITIZE_IN_PROGRESS;
        assert_eq!((sanitize(2), read(&rig, 1), read(&rig, 2)), (busy, busy, busy));
        finish(&tasks);
        assert_eq!((log(), records()), ((0xffff, 1, dword), [Some(vec![]), Some(vec![])]), "done");
        assert_eq!((read(&rig, 1), read(&rig, 2)), (Status::SUCCESS, Status::SUCCESS));
    }
    let expected = word(0x0102_0304);
    for memory in &rig.memories {
        memory.with(|bytes| assert!(bytes.chunks(BLOCK as usize).all(|block| block == expected)));
    }
    assert_eq!((sanitize(0), sanitize(4)), (Status::INVALID_FIELD, Status::INVALID_FIELD));
    // The first of four passes is done.
    assert_eq!((sanitize(3 | 4 << 4), log().0), (Status::SUCCESS, 0x4000));
    finish(&tasks);
}

#[test]
fn a_failed_sanitize_is_left_as_its_command_allows() {
    for (flags, left) in [(0, Status::SANITIZE_FAILED), (8, Status::SUCCESS)] {
        let rig = Rig::default();
        let tasks = in_background(&rig);
        assert_eq!(admin(&rig, SANITIZE, 0, &[3 | 2 << 4 | flags]), Status::SUCCESS);
        rig.memories[0].fault.set(Some(Fault::Medium));
        finish(&tasks);
        assert_eq!((read(&rig, 1), read(&rig, 2)), (Status::SANITIZE_FAILED, Status::SUCCESS));
        let page = rig.run(&rig.admin, &entry(0x02, 0, &[0x81 | 127 << 16]), &[]).data;
        assert_eq!(page[..4], [0xff, 0xff, 3, 0], "failed");
        assert_eq!(admin(&rig, SANITIZE, 0, &[1]), left, "Exit Failure Mode");
        assert_eq!(read(&rig, 1), left);
        assert_eq!(admin(&rig, SANITIZE, 0, &[2]), Status::SUCCESS);
        finish(&tasks);
        assert_eq!(read(&rig, 1), Status::SUCCESS, "another sanitize helps in any case");
    }
}

#[test]
fn a_format_continues_when_its_command_is_aborted() {
    let rig = Rig::default();
    let tasks = in_background(&rig);
    rig.memories[0].with(|bytes| bytes.fill(7));
    let task = rig.admin.tasks.enter((1, 1));
    let mut formatting = Box::pin(execute(&rig, &rig.admin, &task, entry(FORMAT_NVM, 1, &[0]), Vec::new()));
    assert!(poll(&mut formatting).is_pending());
    assert_eq!((namespace(&rig, 0).medium(), read(&rig, 1)), (MediumState::Formatting, Status::FORMATTING));
    assert_eq!(rig.admin.tasks.abort(|(command, _)| command == 1), 1);
    assert_eq!(poll(&mut formatting), Poll::Ready(Status::ABORTED));
    finish(&tasks);
    assert_eq!(read(&rig, 1), Status::SUCCESS);
    rig.memories[0].with(|bytes| assert!(bytes.iter().all(|byte| *byte == 0)));
}

#[test]
fn a_format_is_durable_before_it_begins_and_when_it_has_ended() {
    let rig = Rig::default();
    let (waits, unit) = with_slow_metadata(&rig);
    waits.store(true, Ordering::Relaxed);
    let task = rig.admin.tasks.enter((1, 1));
    let mut formatting = Box::pin(execute(&rig, &rig.admin, &task, entry(FORMAT_NVM, 1, &[0]), Vec::new()));
    assert!(poll(&mut formatting).is_pending());
    let medium = || namespace(&rig, 0).medium();
    assert_eq!((medium(), unit.metadata.load("medium")), (MediumState::Ready, record(1, &[(true, &[])])));
    waits.store(false, Ordering::Relaxed);
    assert_eq!(poll(&mut formatting), Poll::Ready(Status::SUCCESS));
    assert_eq!((medium(), unit.metadata.load("medium")), (MediumState::Ready, Some(vec![])));
}

#[test]
fn changes_of_access_states_are_reported_and_changes_of_preference_are_not() {
    let rig = Rig::default();
    assert_eq!(admin(&rig, 0x09, 0, &[0x0b, 1 << 11]), Status::SUCCESS);
    let changes = || rig.subsystem.access_changes();
    let before = changes();
    let set = |group, state, preferred| at_once(rig.units.set_access(UnitId(0), group, state, preferred));
    set(0, AccessState::ActiveOptimized, true);
    assert_eq!((changes(), read(&rig, 1)), (before, Status::SUCCESS));
    set(0, AccessState::Standby, true);
    assert_eq!((changes(), read(&rig, 1), read(&rig, 2)), (before + 1, Status::INACCESSIBLE, Status::SUCCESS));
    set(0, AccessState::Unavailable, true);
    assert_eq!(changes(), before + 1, "both are inaccessible to NVMe");
    set(5, AccessState::Standby, false);
    assert_eq!((changes(), read(&rig, 1)), (before + 2, Status::INACCESSIBLE), "a group of no queue");
    // A queue that comes later reads the state.
    let [_admin, io] = rig.host(9);
    assert_eq!(rig.run(&io, &entry(READ, 1, &[0, 0, 0]), &[]).status, Status::INACCESSIBLE);
}

#[test]
fn a_preempted_host_is_notified_once_and_its_commands_are_aborted() {
    let rig = Rig::default();
    let [admin_queue, io] = rig.host(8);
    let unit = rig.units.unit(UnitId(0)).expect("it is there");
    let initiator = lunar_core::port::NexusName { initiator: "iqn.a,i,0x1".into(), target_port: 1 };
    let request = |nexus: &lunar_core::port::NexusName, action, key, action_key| {
        let request = Request::Persistent(PersistentRequest { action, scope_and_type: 1, key, action_key });
        UnitChange::Reservations { nexus: nexus.clone(), request }
    };
    for (nexus, key) in [(&initiator, 1), (io.name(), 2)] {
        let action =
            Action::Register { ignore_key: true, ptpl: None, ports: vec![nexus.target_port], initiators: vec![] };
        at_once(rig.units.propose(&unit, None, request(nexus, action, 0, key))).expect("registered");
    }
    let (task, elsewhere) = (io.tasks.enter((1, 1)), io.tasks.enter((2, 2)));
    let preempt = request(&initiator, Action::Preempt { abort: true }, 1, 2);
    let mut preempting = Box::pin(rig.units.change(&unit, Some(&initiator), preempt, std::future::pending()));
    assert!(poll(&mut preempting).is_pending(), "a command has not ended");
    assert!(task.aborted() && !elsewhere.aborted());
    drop(task);
    let Poll::Ready(Ok(ordered)) = poll(&mut preempting) else { panic!("it has ended") };
    assert_eq!(ordered.effects.notices, [(io.name().clone(), Notice::RegistrationPreempted)].into());
    let page = rig.run(&admin_queue, &entry(0x02, 0, &[0x80 | 15 << 16]), &[]).data;
    assert_eq!((page[0], page[8], page[12]), (1, 1, 1), "the reservation notification log");
}

use super::*;
use crate::wire::{COMMIT_AND_FETCH_REQ, Control, Descriptor, FETCH_REQ, Operation, flag};
use lunar_blk::testing::{Rig, Setup, UNIT, client};
use lunar_core::io::{Data, Fault};
use lunar_core::mem::Arena;
use lunar_core::time::Instant;
use lunar_reactor::endpoint::command::{Command, Request};
use lunar_reactor::sim::{Host, World};
use std::collections::VecDeque;
use std::future::Future;

const BUFFER: usize = 8192;
const DRAIN: Duration = Duration::from_secs(1);
/// Simulated time after which a test hangs.
const DEADLINE: Instant = Instant(600_000_000_000);

/// A request of the kernel, with the data of a write.
struct Asked(Descriptor, Vec<u8>);

fn asked(operation: Operation, flags: u32, start: u64, sectors: u32) -> Asked {
    Asked(Descriptor { op_flags: u32::from(operation.0) | flags, sectors, start }, Vec::new())
}

fn write(flags: u32, start: u64, value: u8, sectors: u32) -> Asked {
    let Asked(descriptor, _) = asked(Operation::WRITE, flags, start, sectors);
    Asked(descriptor, vec![value; sectors as usize * 512])
}

/// The requests and results of a queue, as the kernel sees them.
#[derive(Default)]
struct Seen {
    script: RefCell<VecDeque<Asked>>,
    /// Results, with the first bytes of the memory of the tag.
    results: RefCell<Vec<(i32, [u8; 2])>>,
    fetches: Cell<usize>,
}

impl Seen {
    /// Answers the command of a tag: with the next request, or with the end of the device.
    fn answer(&self, command: &mut Command) -> Result<u32, Fault> {
        let (Request::UblkQueue(queue), Data::In(memory)) = (command.request, &mut command.data) else {
            panic!("not a command of a queue: {command:?}")
        };
        match queue.number {
            FETCH_REQ => self.fetches.set(self.fetches.get() + 1),
            COMMIT_AND_FETCH_REQ => {
                let mut first = [0; 2];
                memory.copy_to(0, &mut first);
                self.results.borrow_mut().push((queue.result, first));
            }
            number => panic!("{number:x}"),
        }
        let Asked(descriptor, data) = self.script.borrow_mut().pop_front().ok_or(Fault::Gone)?;
        memory.copy_from(0, &data);
        command.result = descriptor.halves();
        Ok(0)
    }
}

/// A core in a simulation.
struct Bench {
    world: World,
    reactor: Reactor,
    rig: Rig,
    seen: Rc<Seen>,
}

impl Bench {
    fn new(seed: u64, script: Vec<Asked>) -> Self {
        let world = World::new(seed);
        world.set_deadline(DEADLINE);
        let reactor = Reactor::with_driver(world.core(Host(1)), Arena::new(8 << 20), Default::default());
        let seen = Rc::new(Seen { script: RefCell::new(script.into()), ..Seen::default() });
        Self { world, reactor, rig: Rig::default(), seen }
    }

    fn front(&self, keeps: bool) -> Rc<Front> {
        let open = Opener { control: || Err(io::ErrorKind::NotFound.into()), queues: |_| unreachable!("not opened") };
        Front::new(&self.reactor, &self.rig.set, open, (keeps, DRAIN))
    }

    fn local(&self) -> Local {
        Local { unit: UNIT, client: client(false) }
    }

    fn claim() -> Claim {
        Claim { number: 4, queues: 1, buffer_bytes: BUFFER as u32, is_old: false, features: u64::MAX }
    }

    /// Serves a queue with so many tags.
    fn serve(&self, front: &Rc<Front>, depth: u16) {
        let seen = self.seen.clone();
        let endpoint = self.world.device(move |command: &mut Command| seen.answer(command));
        front.serve(("test", Self::claim()), self.local(), 0, (endpoint, depth, BUFFER), true).expect("it is served");
    }

    /// Gives the front a control device that notes the commands.
    fn control(&self, front: &Front) -> Rc<RefCell<Vec<Control>>> {
        let calls = Rc::new(RefCell::new(Vec::new()));
        let noted = calls.clone();
        let endpoint = self.world.device(move |command: &mut Command| {
            let Request::UblkControl(control) = command.request else { panic!("{command:?}") };
            noted.borrow_mut().push(Control(control.number));
            Ok(0)
        });
        let device = ControlDevice::new(&self.reactor, endpoint).expect("the simulator has such devices");
        *front.control.borrow_mut() = Some(Rc::new(device));
        calls
    }

    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.reactor.run(work)
    }
}

#[test]
fn requests_are_executed_in_the_memory_of_their_tag() {
    for is_slow in [false, true] {
        let script = vec![
            write(0, 16, 7, 8),
            asked(Operation::READ, 0, 16, 8),
            write(flag::FUA, 2, 9, 1),
            asked(Operation::FLUSH, 0, 0, 0),
            asked(Operation::DISCARD, 0, 16, 8),
            asked(Operation::READ, 0, 16, 8),
            write(0, 8, 5, 8),
            asked(Operation::WRITE_ZEROES, flag::NO_UNMAP, 8, 4),
            asked(Operation::READ, 0, 11, 2),
            asked(Operation::READ, 0, 2047, 2),
            asked(Operation::READ, 0, 0, 17),
        ];
        let bench = Bench::new(1, script);
        bench.rig.memory.is_slow.set(is_slow);
        let front = bench.front(false);
        bench.serve(&front, 1);
        bench.run(front.close(4));
        let results: Vec<(i32, [u8; 2])> = bench.seen.results.take();
        let results: Vec<i32> = results.iter().map(|(result, _)| *result).collect();
        assert_eq!(results, [4096, 4096, 512, 0, 0, 4096, 4096, 0, 1024, -22, -22], "slow: {is_slow}");
        let bytes = bench.rig.memory.bytes();
        assert_eq!((bytes[2 * 512], bytes[16 * 512], bytes[8 * 512], bytes[12 * 512]), (9, 0, 0, 5));
        assert!(front.queues.borrow().is_empty());
    }
}

#[test]
fn reads_return_what_was_written() {
    let bench = Bench::new(2, vec![write(0, 0, 0x5a, 16), asked(Operation::READ, 0, 8, 8)]);
    let front = bench.front(false);
    bench.serve(&front, 1);
    bench.run(front.close(4));
    assert_eq!(bench.seen.results.take(), [(8192, [0x5a; 2]), (4096, [0x5a; 2])]);
}

#[test]
fn all_tags_of_a_queue_work_at_the_same_time_in_any_order() {
    for seed in 0..20 {
        let bench = Bench::new(seed, (0..64).map(|at| write(0, at, 1, 1)).collect());
        bench.rig.memory.is_slow.set(seed % 2 == 0);
        let front = bench.front(false);
        bench.serve(&front, 8);
        bench.run(front.close(4));
        assert_eq!((bench.seen.results.borrow().len(), bench.seen.fetches.get()), (64, 8));
        assert!(bench.rig.memory.bytes()[..64 * 512].iter().all(|byte| *byte == 1));
        assert_eq!(front.in_progress(), 0);
    }
}

#[test]
fn faults_of_the_store_are_errors_of_the_block_layer() {
    let bench = Bench::new(3, vec![write(0, 0, 1, 1), asked(Operation::READ, 0, 0, 1)]);
    bench.rig.memory.fault.set(Some(Fault::NoSpace));
    let front = bench.front(false);
    bench.serve(&front, 1);
    bench.run(front.close(4));
    let results: Vec<i32> = bench.seen.results.take().iter().map(|(result, _)| *result).collect();
    assert_eq!(results, [-28, 512]);
}

#[test]
fn the_reservation_of_another_host_is_a_conflict() {
    let bench = Bench::new(8, vec![write(0, 0, 1, 1), asked(Operation::DISCARD, 0, 0, 8)]);
    bench.rig.reserve(None);
    let front = bench.front(false);
    bench.serve(&front, 1);
    bench.run(front.close(4));
    let results: Vec<i32> = bench.seen.results.take().iter().map(|(result, _)| *result).collect();
    assert_eq!((results, bench.rig.memory.bytes()[0]), (vec![-52, -52], 0));
}

#[test]
fn a_device_that_stays_leaves_its_requests_to_the_next_process() {
    let bench = Bench::new(4, vec![write(0, 0, 1, 1)]);
    let front = bench.front(true);
    let calls = bench.control(&front);
    front.started.borrow_mut().insert(4, Bench::claim());
    front.drain();
    bench.serve(&front, 1);
    bench.run(front.drained());
    assert_eq!(*calls.borrow(), [Control::QUIESCE_DEV]);
    assert!(bench.seen.results.take().is_empty(), "the request is not answered");
    assert_eq!(bench.rig.memory.bytes()[0], 0, "and not executed");
}

#[test]
fn a_device_of_a_command_line_is_removed_at_the_end() {
    let bench = Bench::new(5, vec![write(0, 0, 1, 1)]);
    let front = bench.front(false);
    let calls = bench.control(&front);
    bench.serve(&front, 2);
    bench.run(front.start(Bench::claim(), bench.local(), false)).expect("it starts");
    front.drain();
    bench.run(front.drained());
    assert_eq!(*calls.borrow(), [Control::START_DEV, Control::STOP_DEV, Control::DEL_DEV_ASYNC]);
    assert_eq!(bench.seen.results.take(), [(512, [1; 2])]);
}

#[test]
fn a_device_follows_the_size_of_its_volume() {
    let mut bench = Bench::new(6, Vec::new());
    let front = bench.front(true);
    let calls = bench.control(&front);
    bench.serve(&front, 1);
    bench.run(front.start(Bench::claim(), bench.local(), true)).expect("it starts");
    assert_eq!(*calls.borrow(), [Control::START_DEV, Control::UPDATE_SIZE], "it was left with another size");
    bench.rig.replace_unit(&Setup { blocks: 4096, ..Setup::default() });
    bench.run(bench.reactor.sleep(Duration::from_secs(1)));
    assert_eq!(calls.borrow().len(), 3);
    assert_eq!(calls.borrow().last(), Some(&Control::UPDATE_SIZE), "the volume has grown");
    bench.rig.replace_unit(&Setup { blocks: 4096, read_only: true, ..Setup::default() });
    bench.run(bench.reactor.sleep(Duration::from_secs(1)));
    assert_eq!(calls.borrow().len(), 3, "the same size");
}

#[test]
fn what_is_missing_is_named() {
    let bench = Bench::new(7, Vec::new());
    let why = bench.run(bench.front(false).check()).expect_err("there is no device");
    assert!(why.contains("modprobe ublk_drv"), "{why}");
    let why = why_no_control(&io::ErrorKind::PermissionDenied.into());
    assert!(why.contains("root"), "{why}");
}

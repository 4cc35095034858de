use super::*;
use crate::wire::{COMMIT_AND_FETCH_REQ, Control, Descriptor, FETCH_REQ, Operation, feature, flag};
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
        let open = Opener {
            control: || Err(io::ErrorKind::NotFound.into()),
            queues: |_| unreachable!("not opened"),
            flusher: || Err(io::ErrorKind::PermissionDenied.into()),
            has_disks: || false,
            user: |_| None,
            link: |_, _| unreachable!("no disk is started"),
            unlink: |_, _| unreachable!("no disk is started"),
            links: |_| unreachable!("no disk is started"),
        };
        Front::new(&self.reactor, &self.rig.set, open, (keeps, DRAIN))
    }

    fn local(&self) -> Local {
        Local { unit: UNIT, client: client(false) }
    }

    /// The sectors of the volume.
    fn sectors(&self) -> u64 {
        let unit = self.rig.set.unit(UNIT).expect("it is served");
        Limits::of(&unit.unit, false).capacity / crate::wire::SECTOR
    }

    /// The device, with so many tags, on a kernel that can keep requests or not.
    fn claim(depth: u16, quiesces: bool) -> Claim {
        let flags = if quiesces { feature::QUIESCE } else { 0 };
        let (number, buffer_bytes) = (4, BUFFER as u32);
        Claim { number, queues: 1, depth, buffer_bytes, is_old: false, features: u64::MAX, flags }
    }

    /// Serves the queue of a device.
    fn serve_as(&self, front: &Front, claim: &Claim) -> Arc<Disk> {
        let (seen, disk) = (self.seen.clone(), Arc::default());
        let endpoint = self.world.device(move |command: &mut Command| seen.answer(command));
        front.reserve(("test", claim, &disk), &self.local(), 0, true).expect("there is memory");
        front.attach(claim.number, 0, endpoint).expect("there is room");
        front.go(claim.number);
        disk
    }

    /// Serves a queue with so many tags, which no kernel keeps.
    fn serve(&self, front: &Front, depth: u16) -> Arc<Disk> {
        self.serve_as(front, &Self::claim(depth, false))
    }

    /// Runs until no tag is served any more.
    fn run_out(&self, disk: &Disk) {
        self.run(async {
            while disk.tags() > 0 {
                self.reactor.sleep(LOOK).await;
            }
        });
    }

    /// Gives the front a control device that notes the commands that change a device.
    fn control(&self, front: &Front) -> Rc<RefCell<Vec<Control>>> {
        let calls = Rc::new(RefCell::new(Vec::new()));
        let noted = calls.clone();
        let endpoint = self.world.device(move |command: &mut Command| {
            let Request::UblkControl(control) = command.request else { panic!("{command:?}") };
            let number = Control(control.number);
            // No device is there any more.
            if number == Control::GET_DEV_INFO {
                return Err(Fault::Gone);
            }
            // The kernel repeats it as long as it is asked to.
            let mut noted = noted.borrow_mut();
            if number != Control::QUIESCE_DEV || noted.last() != Some(&number) {
                noted.push(number);
            }
            Ok(0)
        });
        let device =
            ControlDevice::new(&self.reactor, endpoint, Rights::Privileged).expect("the simulator has such devices");
        *front.control.borrow_mut() = Some(Rc::new(device));
        calls
    }

    fn results(&self) -> Vec<i32> {
        self.seen.results.borrow().iter().map(|(result, _)| *result).collect()
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
        let disk = bench.serve(&front, 1);
        bench.run_out(&disk);
        assert_eq!(bench.results(), [4096, 4096, 512, 0, 0, 4096, 4096, 0, 1024, -22, -22], "slow: {is_slow}");
        let bytes = bench.rig.memory.bytes();
        assert_eq!((bytes[2 * 512], bytes[16 * 512], bytes[8 * 512], bytes[12 * 512]), (9, 0, 0, 5));
        front.close(4);
        assert!(front.queues.borrow().is_empty());
    }
}

#[test]
fn reads_return_what_was_written() {
    let bench = Bench::new(2, vec![write(0, 0, 0x5a, 16), asked(Operation::READ, 0, 8, 8)]);
    let front = bench.front(false);
    let disk = bench.serve(&front, 1);
    bench.run_out(&disk);
    assert_eq!(bench.seen.results.take(), [(8192, [0x5a; 2]), (4096, [0x5a; 2])]);
}

#[test]
fn all_tags_of_a_queue_work_at_the_same_time_in_any_order() {
    for seed in 0..20 {
        let bench = Bench::new(seed, (0..64).map(|at| write(0, at, 1, 1)).collect());
        bench.rig.memory.is_slow.set(seed % 2 == 0);
        let front = bench.front(false);
        let disk = bench.serve(&front, 8);
        bench.run_out(&disk);
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
    let disk = bench.serve(&front, 1);
    bench.run_out(&disk);
    assert_eq!(bench.results(), [-28, 512]);
}

#[test]
fn the_reservation_of_another_host_is_a_conflict() {
    let bench = Bench::new(8, vec![write(0, 0, 1, 1), asked(Operation::DISCARD, 0, 0, 8)]);
    bench.rig.reserve(None);
    let front = bench.front(false);
    let disk = bench.serve(&front, 1);
    bench.run_out(&disk);
    assert_eq!((bench.results(), bench.rig.memory.bytes()[0]), (vec![-52, -52], 0));
}

#[test]
fn without_a_kernel_that_keeps_requests_they_are_left_to_the_next_process() {
    let bench = Bench::new(4, vec![write(0, 0, 1, 1)]);
    let front = bench.front(true);
    let calls = bench.control(&front);
    front.drain();
    let disk = bench.serve(&front, 1);
    front.started.borrow_mut().insert(4, (Bench::claim(1, false), disk));
    bench.run(front.drained());
    assert!(calls.borrow().is_empty() && bench.results().is_empty(), "the request is not answered");
    assert_eq!(bench.rig.memory.bytes()[0], 0, "and not executed");
}

#[test]
fn the_kernel_keeps_requests_before_the_process_ends_and_those_in_progress_are_answered() {
    let bench = Bench::new(4, vec![write(0, 0, 1, 1)]);
    let front = bench.front(true);
    let calls = bench.control(&front);
    front.drain();
    let claim = Bench::claim(2, true);
    let disk = bench.serve_as(&front, &claim);
    front.started.borrow_mut().insert(4, (claim, disk));
    bench.run(front.drained());
    assert_eq!(*calls.borrow(), [Control::QUIESCE_DEV]);
    assert_eq!((bench.results(), bench.rig.memory.bytes()[0]), (vec![512], 1));
}

#[test]
fn a_device_of_a_command_line_is_removed_at_the_end() {
    for quiesces in [false, true] {
        let bench = Bench::new(5, vec![write(0, 0, 1, 1)]);
        let front = bench.front(false);
        let calls = bench.control(&front);
        let claim = Bench::claim(2, quiesces);
        bench.rig.memory.is_slow.set(true);
        let disk = bench.serve_as(&front, &claim);
        bench.run(front.start((claim, disk.clone()), bench.local(), bench.sectors())).expect("it starts");
        front.drain();
        bench.run(front.drained());
        let calls: Vec<_> = calls.borrow().iter().copied().filter(|call| *call != Control::QUIESCE_DEV).collect();
        assert_eq!(calls, [Control::START_DEV, Control::STOP_DEV, Control::DEL_DEV_ASYNC]);
        assert_eq!(bench.seen.results.take(), [(512, [1; 2])]);
        assert!(disk.is_gone());
    }
}

#[test]
fn a_device_whose_volume_does_not_answer_is_not_stopped_and_ends_later() {
    let bench = Bench::new(9, vec![write(0, 0, 1, 1)]);
    let front = bench.front(false);
    let calls = bench.control(&front);
    bench.rig.memory.holds.set(true);
    let claim = Bench::claim(1, true);
    let disk = bench.serve_as(&front, &claim);
    let why = bench.run(front.end(claim, disk.clone())).expect_err("a request is in progress");
    assert!(
        why.to_string().contains("does not end within 30 s") && why.to_string().contains("the next start"),
        "{why}"
    );
    assert_eq!(*calls.borrow(), [Control::QUIESCE_DEV], "a kill would hang in the command");
    assert_eq!((disk.tags(), disk.is_gone()), (1, false));
    bench.rig.memory.holds.set(false);
    bench.rig.memory.release();
    let ended = bench.run(front.end(claim, disk.clone())).expect("it ends");
    assert_eq!(ended, Removal::Done, "the same work, which has gone on");
    assert_eq!(*calls.borrow(), [Control::QUIESCE_DEV, Control::STOP_DEV, Control::DEL_DEV_ASYNC]);
    assert_eq!((bench.results(), disk.is_gone()), (vec![512], true));
}

#[test]
fn the_memory_of_a_request_is_not_used_again_before_the_store_has_let_it_go() {
    let bench = Bench::new(10, vec![write(0, 0, 7, 8), write(0, 8, 9, 8)]);
    bench.rig.memory.holds.set(true);
    bench.rig.memory.panics.set(true);
    let front = bench.front(false);
    let disk = bench.serve(&front, 1);
    bench.run(bench.reactor.sleep(Duration::from_secs(60)));
    assert!(bench.results().is_empty(), "the store still reads the memory");
    bench.rig.memory.holds.set(false);
    bench.rig.memory.release();
    bench.run_out(&disk);
    assert_eq!(bench.results(), [-5, 4096], "the first request has panicked");
    let bytes = bench.rig.memory.bytes();
    assert_eq!((bytes[0], bytes[4095], bytes[4096]), (7, 7, 9), "each block has its own data");
}

#[test]
fn a_kernel_that_refuses_the_commands_of_a_queue_is_told_and_ends_a_start() {
    let bench = Bench::new(11, Vec::new());
    let front = bench.front(false);
    let (claim, disk) = (Bench::claim(2, false), Arc::default());
    front.reserve(("test", &claim, &disk), &bench.local(), 0, true).expect("there is memory");
    let endpoint = bench.world.device(|_: &mut Command| Err(Fault::Os(22)));
    front.attach(claim.number, 0, endpoint).expect("there is room");
    front.go(claim.number);
    // The command of the kernel does not end before all tags have asked for requests.
    let control = bench.world.device(|_: &mut Command| Err(Fault::Os(22)));
    *front.control.borrow_mut() =
        Some(Rc::new(ControlDevice::new(&bench.reactor, control, Rights::Privileged).expect("one")));
    front.starting.borrow_mut().insert(4, Work::begin(&bench.reactor, pending()));
    let begun = bench.reactor.now();
    let why =
        bench.run(front.start((claim, disk.clone()), bench.local(), bench.sectors())).expect_err("it cannot start");
    assert!(
        why.to_string().contains("the kernel refuses its commands") && why.to_string().contains("restarted"),
        "{why}"
    );
    assert_eq!(disk.trouble().map(ToString::to_string), Some(why.to_string()));
    assert!(bench.reactor.now().since(begun) < PATIENCE, "at once");
}

#[test]
fn a_start_that_takes_long_goes_on_and_is_not_given_twice() {
    let bench = Bench::new(12, Vec::new());
    let front = bench.front(true);
    let calls = bench.control(&front);
    let (claim, disk) = (Bench::claim(1, false), Arc::<Disk>::default());
    let slow = bench.reactor.clone();
    let starting = async move {
        slow.sleep(PATIENCE + LOOK * 10).await;
        Ok(())
    };
    front.starting.borrow_mut().insert(4, Work::begin(&bench.reactor, starting));
    let start = || front.start((claim, disk.clone()), bench.local(), bench.sectors());
    let why = bench.run(start()).expect_err("it takes longer");
    assert!(why.to_string().contains("does not start within 30 s") && front.started.borrow().is_empty(), "{why}");
    bench.run(start()).expect("the same command has ended");
    assert!(calls.borrow().is_empty() && front.started.borrow().contains_key(&4));
}

#[test]
fn a_queue_without_memory_says_what_to_lower() {
    let bench = Bench::new(13, Vec::new());
    let front = bench.front(true);
    let claim = Claim { buffer_bytes: u32::MAX, depth: u16::MAX, ..Bench::claim(1, false) };
    let why = front.reserve(("test", &claim, &Arc::default()), &bench.local(), 0, true).expect_err("256 TiB");
    assert!(why.to_string().contains("lower `depth` or `queues`"), "{why}");
}

#[test]
fn a_device_follows_the_size_of_its_volume() {
    let mut bench = Bench::new(6, vec![write(0, 0, 1, 1)]);
    let front = bench.front(true);
    let calls = bench.control(&front);
    let disk = bench.serve(&front, 1);
    let sectors = bench.sectors();
    bench.rig.replace_unit(&Setup { blocks: 3072, ..Setup::default() });
    // A request in progress, so that the device does not end.
    bench.rig.memory.holds.set(true);
    assert_ne!(bench.sectors(), sectors);
    bench.run(front.start((Bench::claim(1, false), disk), bench.local(), sectors)).expect("it starts");
    assert_eq!(*calls.borrow(), [Control::START_DEV, Control::UPDATE_SIZE], "the volume has changed meanwhile");
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
    assert!(why.to_string().contains("modprobe ublk_drv"), "{why}");
    let why = ServeError::NoControl(io::ErrorKind::PermissionDenied.into());
    assert!(why.to_string().contains("root"), "{why}");
    for (kind, advice) in [
        (io::ErrorKind::PermissionDenied, "DeviceAllow"),
        (io::ErrorKind::ResourceBusy, "end it"),
        (io::ErrorKind::InvalidInput, "restart the machine"),
        (io::ErrorKind::Other, "apply the configuration again"),
    ] {
        let why = ServeError::NoDevice(kind.into());
        assert!(why.to_string().contains(advice), "{why}");
    }
}

//! Requests of a store as commands to a drive in the simulator.

use crate::identify::CopyLimits;
use crate::open::Limits;
use crate::store::{NvmeStore, Source};
use crate::volume::State;
use lunar_core::io::{Completion, Data, Fault, Io, Op, Origin, Outcome, Store, Traits};
use lunar_core::mem::{Arena, Sg, SgMut};
use lunar_reactor::Reactor;
use lunar_reactor::endpoint::Endpoint;
use lunar_reactor::endpoint::command::{Command, NvmeCommand, Request};
use lunar_reactor::nvme_generic::Namespace;
use lunar_reactor::sim::{Host, World};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

const BLOCK: u64 = 512;
/// Bytes of the drive, and where the volume begins in it.
const DRIVE: usize = 4 << 20;
const START: u64 = 8;
const FUA: u32 = 1 << 30;
const DEAC: u32 = 1 << 25;

/// A drive in memory.
#[derive(Default)]
struct Drive {
    bytes: Vec<u8>,
    /// Opcode, first block, Command Dword 12 and bytes of each command.
    log: Vec<(u8, u64, u32, usize)>,
    /// Statuses of the next commands.
    statuses: VecDeque<Result<u32, Fault>>,
}

impl Drive {
    fn execute(&mut self, command: &mut Command) -> Result<u32, Fault> {
        let Request::Nvme(NvmeCommand { opcode, nsid: 3, cdw10_15: [low, high, rest, ..], .. }) = command.request
        else {
            panic!("{:?}", command.request);
        };
        let block = u64::from(high) << 32 | u64::from(low);
        self.log.push((opcode, block, rest, command.data.len()));
        if let Some(status) = self.statuses.pop_front()
            && status != Ok(0)
        {
            return status;
        }
        let at = (block * BLOCK) as usize;
        match (opcode, &mut command.data) {
            (0x00, Data::None) => {}
            (0x01, Data::Out(data)) => {
                assert_eq!(data.len() as u64, (u64::from(rest & 0xffff) + 1) * BLOCK);
                self.bytes[at..at + data.len()].copy_from_slice(&data.to_vec());
            }
            (0x02, Data::In(into)) => {
                assert_eq!(into.len() as u64, (u64::from(rest & 0xffff) + 1) * BLOCK);
                let len = into.len();
                into.copy_from(0, &self.bytes[at..at + len]);
            }
            (0x08, Data::None) => self.bytes[at..][..(rest as usize % 65536 + 1) * BLOCK as usize].fill(0),
            (0x09, Data::Out(range)) => {
                let range = range.to_vec();
                let number =
                    |at: usize, len: usize| range[at..at + len].iter().rev().fold(0, |n, b| n << 8 | *b as usize);
                let (count, first) = (number(4, 4), number(8, 8));
                self.log.push((0x09, first as u64, count as u32, 0));
                self.bytes[first * BLOCK as usize..][..count * BLOCK as usize].fill(0xdd);
            }
            (0x19, Data::Out(sources)) => {
                let (sources, mut to) = (sources.to_vec(), block as usize);
                assert_eq!(sources.len(), (rest as usize % 256 + 1) * 32);
                for source in sources.chunks(32) {
                    let number = |at: usize, len: usize| {
                        source[at..at + len].iter().rev().fold(0, |n, b| n << 8 | usize::from(*b))
                    };
                    let (first, count) = (number(8, 8), number(16, 2) + 1);
                    let range = first * BLOCK as usize..(first + count) * BLOCK as usize;
                    self.bytes.copy_within(range, to * BLOCK as usize);
                    to += count;
                }
            }
            (opcode, data) => panic!("{opcode:#x} with {data:?}"),
        }
        Ok(0)
    }
}

const LIMITS: Limits = Limits {
    block_bytes: BLOCK as u32,
    first_block: START,
    transfer_bytes_max: 64 << 10,
    deallocate_bytes_max: 256 << 10,
    zero_bytes_max: 128 << 10,
    zero_deallocates: true,
    copy: Some(CopyLimits { range_blocks: 16, ranges: 4, blocks: 48 }),
    has_cache: true,
    writes_through: false,
};

/// A store on a drive.
struct Rig {
    world: World,
    core: Reactor,
    drive: Rc<RefCell<Drive>>,
    state: Arc<State>,
    store: NvmeStore,
}

impl Rig {
    fn new(limits: Limits) -> Self {
        Self::of(limits, false)
    }

    fn of(limits: Limits, read_only: bool) -> Self {
        let world = World::new(1);
        let core = Reactor::with_driver(world.core(Host(1)), Arena::new(8 << 20), Arc::default());
        let drive = Rc::new(RefCell::new(Drive { bytes: vec![0x5a; DRIVE], ..Drive::default() }));
        let theirs = drive.clone();
        let device = world.device(move |command: &mut Command| theirs.borrow_mut().execute(command));
        let Endpoint::Simulated(number) = device else { panic!("it is simulated") };
        let namespace = Namespace::simulated(&core, number, 3, limits.block_bytes).expect("attached");
        let traits = Traits {
            size: DRIVE as u64 / 2,
            read_only,
            write_cache: limits.has_cache,
            thin: true,
            unmap_granularity: limits.block_bytes,
            unmap_zeroes: false,
            physical_block: limits.block_bytes,
            optimal_io: 0,
            rotational: false,
            atomic_write: 0,
        };
        let state = State::new("drive".into());
        let store = NvmeStore::new(&core, namespace, (259, 7), traits, limits, state.clone());
        Self { world, core, drive, state, store }
    }

    fn ask(&self, op: Op, offset: u64, data: Data) -> Outcome {
        let mut completion = Completion::new();
        self.store.submit(Io { op, offset, data }, completion.token());
        let outcome = RefCell::new(None);
        self.world.run(&[&self.core], || {
            let mut outcome = outcome.borrow_mut();
            *outcome = outcome.take().or_else(|| completion.take());
            outcome.is_some()
        });
        outcome.take().expect("it was answered")
    }

    fn data(&self, bytes: &[u8], piece: usize) -> Data {
        let mut data = Sg::default();
        bytes.chunks(piece).for_each(|part| data.push(self.core.arena().copy(part).expect("room")));
        Data::Out(data)
    }

    fn write(&self, offset: u64, bytes: &[u8], durable: bool) -> Result<u32, Fault> {
        self.ask(Op::Write { durable }, offset, self.data(bytes, 4096)).result
    }

    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let outcome = self.ask(Op::Read, offset, Data::In(self.core.arena().take_sg(len).expect("room")));
        assert_eq!(outcome.result, Ok(len as u32));
        outcome.data.into_in().share().to_vec()
    }

    fn log(&self) -> Vec<(u8, u64, u32, usize)> {
        std::mem::take(&mut self.drive.borrow_mut().log)
    }

    fn answers(&self, statuses: &[u32]) {
        self.drive.borrow_mut().statuses = statuses.iter().map(|status| Ok(*status)).collect();
    }
}

fn fill(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 512) as u8 ^ (at as u8).wrapping_mul(seed)).collect()
}

#[test]
fn a_volume_is_a_range_of_its_namespace() {
    let rig = Rig::new(LIMITS);
    let bytes = fill(8192, 3);
    assert_eq!(rig.write(4096, &bytes, false), Ok(8192));
    assert_eq!(rig.read(4096, 8192), bytes);
    assert_eq!(rig.log(), [(1, START + 8, 15, 8192), (2, START + 8, 15, 8192)]);
    let at = (START * BLOCK) as usize + 4096;
    assert_eq!(rig.drive.borrow().bytes[at..at + 8192], bytes);
    for offset in [DRIVE as u64 / 2, u64::MAX - 511] {
        assert_eq!(rig.write(offset, &bytes[..512], false), Err(Fault::OUT_OF_RANGE));
    }
    assert_eq!(rig.write(256, &bytes[..512], false), Err(Fault::OUT_OF_RANGE), "no whole block");
    assert_eq!(rig.log(), []);
}

#[test]
fn long_transfers_are_divided() {
    let rig = Rig::new(LIMITS);
    let bytes = fill((150 << 10) + 512, 7);
    assert_eq!(rig.write(0, &bytes, false), Ok(bytes.len() as u32));
    assert_eq!(rig.read(0, bytes.len()), bytes);
    let parts = [(START, 127, 65536), (START + 128, 127, 65536), (START + 256, 44, 23040)];
    let commands = |opcode: u8| parts.map(|(block, rest, len)| (opcode, block, rest, len));
    assert_eq!(rig.log(), [commands(1), commands(2)].concat());
    // The second part of a read fails: the memory comes back whole.
    rig.answers(&[0, 0x281]);
    let memory = rig.core.arena().take_sg(bytes.len()).expect("room");
    let outcome = rig.ask(Op::Read, 0, Data::In(memory));
    assert_eq!((outcome.result, outcome.data.len()), (Err(Fault::Medium), bytes.len()));
    assert_eq!(rig.log().len(), 2);
}

#[test]
fn memory_in_many_pieces_is_copied() {
    let rig = Rig::new(Limits { transfer_bytes_max: 1 << 20, ..LIMITS });
    let bytes = fill(64 << 10, 11);
    let whole = rig.core.arena().copy(&bytes).expect("room");
    let mut pieces = Sg::default();
    (0..65536).step_by(32).for_each(|at| pieces.push(whole.part(at..at + 32)));
    let outcome = rig.ask(Op::Write { durable: false }, 0, Data::Out(pieces));
    assert_eq!((outcome.result, outcome.data.len()), (Ok(65536), 65536));
    let (mut whole, mut pieces) = (rig.core.arena().take(65536).expect("room"), SgMut::default());
    (0..65536 / 32 - 1).for_each(|_| pieces.push(whole.split_to(32)));
    pieces.push(whole);
    let outcome = rig.ask(Op::Read, 0, Data::In(pieces));
    assert_eq!(outcome.result, Ok(65536));
    assert!(outcome.data.into_in().share().to_vec() == bytes);
    assert_eq!(rig.log().len(), 2);
}

#[test]
fn a_cache_is_flushed_or_written_through() {
    let flags = |limits: Limits, durable: bool| {
        let rig = Rig::new(limits);
        assert_eq!(rig.write(0, &[1; 512], durable), Ok(512));
        assert_eq!(rig.ask(Op::Zero { len: 512, unmap: true }, 0, Data::None).result, Ok(0));
        assert_eq!(rig.ask(Op::Unmap { len: 512 }, 0, Data::None).result, Ok(0));
        assert_eq!(rig.ask(Op::Flush, 0, Data::None).result, Ok(0));
        rig.log().iter().map(|(opcode, _, rest, _)| (*opcode, rest & (FUA | DEAC))).collect::<Vec<_>>()
    };
    // Each deallocation has a second entry, for its range.
    assert_eq!(flags(LIMITS, false), [(1, 0), (8, DEAC), (9, 0), (9, 0), (0, 0)]);
    assert_eq!(flags(LIMITS, true), [(1, FUA), (8, DEAC), (9, 0), (9, 0), (0, 0)]);
    let through = Limits { writes_through: true, ..LIMITS };
    assert_eq!(flags(through, false), [(1, FUA), (8, FUA | DEAC), (9, 0), (9, 0), (0, 0), (0, 0)]);
    let none = Limits { has_cache: false, writes_through: true, ..LIMITS };
    assert_eq!(flags(none, true), [(1, 0), (8, DEAC), (9, 0), (9, 0)], "without a cache there is nothing to flush");
    let rig = Rig::of(LIMITS, true);
    assert_eq!(rig.ask(Op::Flush, 0, Data::None).result, Ok(0));
    assert_eq!(rig.log(), [], "the kernel takes no flush of a node that is open for reading");
}

#[test]
fn space_is_changed_in_parts_of_whole_blocks() {
    let rig = Rig::new(LIMITS);
    assert_eq!(rig.ask(Op::Zero { len: 200 << 10, unmap: false }, 0, Data::None).result, Ok(0));
    // All but the first begin at multiples of 256 blocks.
    assert_eq!(rig.log(), [(8, START, 247, 0), (8, 256, 151, 0)]);
    assert_eq!(rig.read(0, 200 << 10), vec![0; 200 << 10]);
    assert_eq!(rig.read(200 << 10, 512), [0x5a; 512]);
    rig.log();
    assert_eq!(rig.ask(Op::Unmap { len: 600 << 10 }, 512, Data::None).result, Ok(0));
    let ranges: Vec<_> =
        rig.log().into_iter().filter(|(.., len)| *len == 0).map(|(_, at, count, _)| (at, count)).collect();
    assert_eq!(ranges, [(START + 1, 503), (512, 512), (1024, 185)]);
    for op in [Op::Unmap { len: 0 }, Op::Zero { len: 0, unmap: true }] {
        assert_eq!(rig.ask(op, DRIVE as u64 / 2, Data::None).result, Ok(0));
    }
    assert_eq!(rig.log(), []);
    let without = Rig::new(Limits { deallocate_bytes_max: 0, zero_bytes_max: 0, ..LIMITS });
    for op in [Op::Unmap { len: 512 }, Op::Zero { len: 512, unmap: true }, Op::Space] {
        assert_eq!(without.ask(op, 0, Data::None).result, Err(Fault::Unsupported), "{op:?}");
    }
    let extent = rig.ask(Op::Extent { len: 1 << 20 }, 512, Data::None).extent;
    assert!(extent.mapped && extent.len == 1 << 20);
}

#[test]
fn a_copy_stays_in_the_namespace() {
    let rig = Rig::new(LIMITS);
    let bytes = fill(50 << 10, 9);
    assert_eq!(rig.write(0, &bytes, false), Ok(50 << 10));
    rig.log();
    let origin = || Data::From(rig.store.origin().expect("it is one"));
    assert_eq!(rig.ask(Op::Copy { from: 0, len: 50 << 10 }, 1 << 20, origin()).result, Ok(0));
    // 100 blocks, in ranges of 16 and commands of 48.
    assert_eq!(rig.log(), [(0x19, START + 2048, 2, 96), (0x19, START + 2096, 2, 96), (0x19, START + 2144, 0, 32)]);
    assert_eq!(rig.read(1 << 20, 50 << 10), bytes);
    rig.log();
    for (from, offset, len) in [(256, 0, 512), (0, 256, 512), (0, 0, 256)] {
        assert_eq!(rig.ask(Op::Copy { from, len }, offset, origin()).result, Err(Fault::Unsupported));
    }
    let other = Data::From(Origin::new(Rc::new(Source { identity: (259, 8), first_block: 0 })));
    assert_eq!(rig.ask(Op::Copy { from: 0, len: 512 }, 0, other).result, Err(Fault::Unsupported), "another disk");
    let without = Rig::new(Limits { copy: None, ..LIMITS });
    assert_eq!(without.ask(Op::Copy { from: 0, len: 512 }, 0, origin()).result, Err(Fault::Unsupported));
    assert_eq!((rig.log(), without.log()), (vec![], vec![]));
    for (status, fault) in [(0x281, Fault::Unsupported), (0x002, Fault::Unsupported), (0x083, Fault::Conflict)] {
        rig.answers(&[0, status]);
        assert_eq!(rig.ask(Op::Copy { from: 0, len: 50 << 10 }, 1 << 20, origin()).result, Err(fault), "{status:x}");
    }
    let through = Rig::new(Limits { writes_through: true, ..LIMITS });
    assert_eq!(through.ask(Op::Copy { from: 0, len: 512 }, 512, origin()).result, Ok(0));
    assert_eq!(through.log(), [(0x19, START + 1, FUA, 32)]);
}

#[test]
fn what_a_reset_has_ended_is_repeated() {
    let rig = Rig::new(LIMITS);
    let bytes = fill(512, 5);
    rig.answers(&[0x371, 0x370]);
    let before = rig.world.now();
    assert_eq!(rig.write(0, &bytes, false), Ok(512));
    assert!(rig.world.now().since(before).as_millis() >= 300, "with pauses");
    assert_eq!(rig.log().len(), 3);
    assert_eq!(rig.read(0, 512), bytes);
    rig.log();
    // As the kernel reports it.
    rig.drive.borrow_mut().statuses = [Err(Fault::Os(4))].into();
    assert_eq!(rig.write(0, &bytes, false), Ok(512));
    assert_eq!(rig.log().len(), 2);
    rig.answers(&[0x371; 10]);
    assert_eq!(rig.write(0, &bytes, false), Err(Fault::Aborted));
    assert_eq!(rig.log().len(), 6, "not for ever");
    for (status, fault) in [(0x281, Fault::Medium), (0x4371, Fault::Aborted), (0x83, Fault::Conflict)] {
        rig.answers(&[status]);
        assert_eq!(rig.write(0, &bytes, false), Err(fault), "{status:x}");
        assert_eq!(rig.log().len(), 1, "{status:x} is not repeated");
    }
}

#[test]
fn a_namespace_that_is_gone_gets_no_commands() {
    let rig = Rig::new(LIMITS);
    rig.drive.borrow_mut().statuses = [Err(Fault::Gone)].into();
    assert_eq!(rig.write(0, &[1; 512], false), Err(Fault::Gone));
    assert_eq!(rig.log().len(), 1);
    rig.state.set_gone();
    let outcome = rig.ask(Op::Write { durable: false }, 0, rig.data(&[1; 512], 512));
    assert_eq!((outcome.result, outcome.data.len()), (Err(Fault::Gone), 512));
    assert_eq!(rig.log(), []);
}

#[test]
fn more_requests_than_tasks_are_answered() {
    let rig = Rig::new(LIMITS);
    let mut completions: Vec<Completion> = (0..1000).map(|_| Completion::new()).collect();
    for (at, completion) in completions.iter_mut().enumerate() {
        let data = rig.data(&[at as u8; 512], 512);
        rig.store.submit(Io { op: Op::Write { durable: false }, offset: at as u64 * 512, data }, completion.token());
    }
    let answered = RefCell::new(0);
    rig.world.run(&[&rig.core], || {
        for completion in &completions {
            if let Some(outcome) = completion.take() {
                assert_eq!(outcome.result, Ok(512));
                *answered.borrow_mut() += 1;
            }
        }
        *answered.borrow() == completions.len()
    });
    for at in [0, 255, 256, 999] {
        assert_eq!(rig.read(at * 512, 512), [at as u8; 512]);
    }
}

#[test]
fn the_tasks_of_a_store_end_with_it() {
    let rig = Rig::new(LIMITS);
    for at in 0..8 {
        rig.write(at * 512, &[1; 512], false).expect("written");
    }
    let mut completion = Completion::new();
    let data = rig.data(&[7; 512], 512);
    rig.store.submit(Io { op: Op::Write { durable: false }, offset: 0, data }, completion.token());
    let Rig { world, core, drive, state, store } = rig;
    drop(store);
    let answered = RefCell::new(None);
    world.run(&[&core], || {
        let mut answered = answered.borrow_mut();
        *answered = answered.take().or_else(|| completion.take());
        answered.is_some() && Arc::strong_count(&state) == 1
    });
    assert_eq!(answered.take().map(|outcome| outcome.result), Some(Ok(512)), "a request that waits is answered");
    assert_eq!(drive.borrow().bytes[(START * BLOCK) as usize], 7);
}

#[test]
fn each_status_is_logged_once() {
    let state = State::new("drive".into());
    assert!(state.is_new(0x281) && state.is_new(0x280) && !state.is_new(0x281));
}

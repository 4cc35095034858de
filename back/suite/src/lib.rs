//! The contract of every store, as tests that each back end runs over its stores, on both drivers.
//!
//! * [`conforms`]: a store that keeps written data
//! * [`shared_by_cores`]: one volume, opened by two cores
//! * [`forgetful`]: a store that always returns zeroes
//! * [`meddler`]: a driver that fails on demand

pub mod bench;
pub mod meddler;
mod model;

use bench::{Bench, PAGE, Place, fill};
use lunar_core::io::{Data, Fault, Op, Origin, Store};
use lunar_core::mem::{BLOCK_MAX, Sg};
use lunar_reactor::log;
use lunar_reactor::{Choice, Reactor};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// How a volume under test is opened on a core.
pub type Open<'a> = &'a dyn Fn(&Reactor) -> io::Result<Box<dyn Store>>;

/// The special properties of a store under test.
pub struct Want<'a> {
    /// The unit of offsets and lengths of requests, in bytes.
    pub block: u64,
    /// Bytes of space that the volume uses; `None` if it is unknown.
    pub used: Option<&'a dyn Fn() -> u64>,
    /// Random sequences that are compared with a model.
    pub cases: u32,
}

impl Default for Want<'_> {
    fn default() -> Self {
        Self { block: 512, used: None, cases: 48 }
    }
}

/// Runs `test` on every driver that this machine has.
pub fn on_both_drivers(test: &dyn Fn(&Reactor)) {
    for choice in [Choice::IoUring, Choice::Epoll] {
        match bench::reactor(choice) {
            Ok(reactor) => test(&reactor),
            Err(why) => log!("skipped on {choice:?}: {why}"),
        }
    }
}

/// A store that keeps written data; at least 8 MiB in size. Afterwards it contains the data of the tests.
pub fn conforms(open: Open<'_>, want: &Want<'_>) {
    on_both_drivers(&|reactor| {
        let store = open(reactor).expect("the store opens");
        let bench = Bench::new(reactor, &*store, want);
        assert!(store.traits().size >= 8 << 20, "the suite needs some space");
        reactor.run(async {
            reads_what_was_written(&bench).await;
            gathers_and_scatters(&bench).await;
            keeps_requests_apart(&bench).await;
            unmaps(&bench).await;
            zeroes(&bench).await;
            counts_space(&bench).await;
            tells_extents(&bench).await;
            copies(&bench).await;
            flushes(&bench).await;
            stays_within_its_size(&bench).await;
        });
        model::compare(&bench, 0);
        model::compare(&bench, bench.size() - model::BYTES);
    });
}

/// Special places: around pages, around the end of a piece of memory, the first and the last bytes.
fn places(bench: &Bench<'_>) -> Vec<Place> {
    let block = bench.want.block;
    let size = bench.size();
    let mut places = vec![];
    for at in [0, block, 4096, 65536 - block, 65536, (1 << 20) - block, 3 << 20, size - 65536] {
        let at = at / block * block;
        for len in [block, 3 * block, 4096, 65536 - block, 65536, 65536 + block, (1 << 20) + 3 * block] {
            if at + len <= size {
                places.push(Place { at, len });
            }
        }
    }
    places.push(Place { at: size - block, len: block });
    places
}

async fn reads_what_was_written(bench: &Bench<'_>) {
    for (seed, place) in places(bench).into_iter().enumerate() {
        let bytes = fill(place.len, seed as u64);
        assert_eq!(bench.write(place.at, &bytes, false).await, Ok(()), "{place:?}");
        assert!(bench.read(place).await == bytes, "{place:?} does not return the written data");
    }
}

/// Memory in pieces, some of which begin in the middle of a word.
async fn gathers_and_scatters(bench: &Bench<'_>) {
    let place = Place { at: 5 * bench.want.block, len: 24 * bench.want.block };
    for skew in [0, 48, 511, 4095] {
        for piece in [48, 512, 4096, 5000] {
            let bytes = fill(place.len, skew as u64 ^ piece as u64);
            let data = bench.gather(&bytes, piece, skew);
            assert_eq!(bench.write_sg(place.at, data, false).await, Ok(()));
            let read = bench.read_into(place, bench.scatter(place.len as usize, piece, skew)).await;
            assert!(read.expect("it was just written") == bytes, "pieces of {piece}, skewed by {skew}");
        }
    }
}

/// Many requests at the same time do not use each other's memory.
async fn keeps_requests_apart(bench: &Bench<'_>) {
    const COUNT: u64 = 40;
    let place = |i: u64| Place { at: i * 16384, len: 4096 * (1 + i % 4) };
    let wanted: Vec<Vec<u8>> = (0..COUNT).map(|i| fill(place(i).len, 1000 + i)).collect();
    bench.write_all_at_once((0..COUNT).map(|i| (place(i).at, &wanted[i as usize][..]))).await;
    let found = bench.read_all_at_once((0..COUNT).map(place)).await;
    assert!(found == wanted, "requests that ran at the same time were mixed up");
}

async fn unmaps(bench: &Bench<'_>) {
    let traits = bench.store.traits().clone();
    let whole = Place { at: 1 << 20, len: 2 << 20 };
    let bytes = fill(whole.len, 7);
    bench.write(whole.at, &bytes, false).await.expect("a write");
    bench.ask(Op::Flush, 0).await.result.expect("a flush");
    let before = bench.want.used.map(|used| used());
    let hole = Place { at: (1 << 20) + 65536, len: 1 << 20 };
    let answer = bench.ask(Op::Unmap { len: hole.len }, hole.at).await.result;
    if traits.unmap_granularity == 0 {
        assert_eq!(answer, Err(Fault::Unsupported), "a store that never releases space reports that");
        return;
    }
    assert!(answer.is_ok(), "unmapping answered {answer:?}");
    if traits.unmap_zeroes {
        assert!(bench.read(hole).await.iter().all(|byte| *byte == 0), "unmapped bytes read as zeroes");
        let odd = Place { at: whole.at + 3 * bench.want.block, len: bench.want.block };
        assert!(bench.ask(Op::Unmap { len: odd.len }, odd.at).await.result.is_ok());
        assert!(bench.read(odd).await.iter().all(|byte| *byte == 0), "at any length");
    }
    let next = Place { at: hole.at + hole.len, len: whole.at + whole.len - hole.at - hole.len };
    assert!(bench.read(next).await == bytes[(next.at - whole.at) as usize..], "the bytes behind are unchanged");
    let front = Place { at: whole.at, len: 3 * bench.want.block };
    assert!(bench.read(front).await == bytes[..front.len as usize], "the bytes before are unchanged");
    if let (Some(used), Some(before)) = (bench.want.used, before) {
        bench.ask(Op::Flush, 0).await.result.expect("a flush");
        // More extents may need a block of the file system, which counts as the file's.
        let (after, own) = (used(), 64 << 10);
        assert!(after + hole.len <= before + own, "{before} bytes were used, then {after}");
    }
}

async fn zeroes(bench: &Bench<'_>) {
    for unmap in [false, true] {
        for place in [Place { at: 65536, len: 1 << 20 }, Place { at: 3 * bench.want.block, len: bench.want.block }] {
            let around = Place { at: place.at - bench.want.block, len: place.len + 2 * bench.want.block };
            let bytes = fill(around.len, 9);
            bench.write(around.at, &bytes, false).await.expect("a write");
            match bench.ask(Op::Zero { len: place.len, unmap }, place.at).await.result {
                Ok(_) => {}
                Err(Fault::Unsupported) => continue,
                Err(why) => panic!("zeroing answered {why:?}"),
            }
            let found = bench.read(around).await;
            let (front, rest) = found.split_at(bench.want.block as usize);
            let (middle, back) = rest.split_at(place.len as usize);
            assert!(middle.iter().all(|byte| *byte == 0), "zeroes (unmap: {unmap}) at {place:?}");
            assert!(
                front == &bytes[..front.len()] && back == &bytes[bytes.len() - back.len()..],
                "no other bytes are changed"
            );
        }
    }
}

/// If space is counted, written data uses some, and unmapping releases it.
async fn counts_space(bench: &Bench<'_>) {
    if !bench.store.measures() {
        assert_eq!(bench.ask(Op::Space, 0).await.result, Err(Fault::Unsupported));
        return;
    }
    let place = Place { at: 4 << 20, len: 1 << 20 };
    let used = async || match bench.ask(Op::Space, 0).await.data {
        Data::Space(space) => space.used,
        other => panic!("the answer is {other:?}"),
    };
    let unmaps = bench.store.traits().unmap_granularity > 0;
    if unmaps {
        bench.ask(Op::Unmap { len: place.len }, place.at).await.result.expect("unmapping");
    }
    let before = used().await;
    bench.write(place.at, &fill(place.len, 5), false).await.expect("a write");
    bench.ask(Op::Flush, 0).await.result.expect("a flush");
    if unmaps {
        // The blocks in which a file system lists the blocks of the file come and go as well.
        let near = place.len / 16;
        assert!(used().await + near >= before + place.len, "{} after {before}", used().await);
        bench.ask(Op::Unmap { len: place.len }, place.at).await.result.expect("unmapping");
        assert!(used().await < before + near, "{} after {before}", used().await);
    }
}

async fn tells_extents(bench: &Bench<'_>) {
    let place = Place { at: 4 << 20, len: 1 << 20 };
    bench.write(place.at, &fill(place.len, 3), false).await.expect("a write");
    let extent = bench.ask(Op::Extent { len: place.len }, place.at).await.extent;
    assert!(extent.mapped && extent.len == place.len, "written data is mapped, within the requested range: {extent:?}");
    let traits = bench.store.traits();
    if traits.unmap_granularity > 0 && traits.unmap_zeroes {
        let hole = Place { at: place.at + (256 << 10), len: 256 << 10 };
        bench.ask(Op::Unmap { len: hole.len }, hole.at).await.result.expect("unmapping");
        let extent = bench.ask(Op::Extent { len: place.len }, place.at).await.extent;
        assert!(extent.mapped && extent.len == 256 << 10, "data up to the hole: {extent:?}");
        let extent = bench.ask(Op::Extent { len: place.len - (256 << 10) }, hole.at).await.extent;
        assert!(!extent.mapped && extent.len == hole.len, "then the hole: {extent:?}");
    }
    let last = Place { at: bench.size() - bench.want.block, len: bench.want.block };
    assert_eq!(bench.ask(Op::Extent { len: last.len }, last.at).await.extent.len, last.len);
}

/// From one place to another, in whole blocks of any file system and in other lengths; a store may refuse the copy.
async fn copies(bench: &Bench<'_>) {
    let block = bench.want.block;
    let bytes = fill(2 << 20, 11);
    bench.write(0, &bytes, false).await.expect("a write");
    for (from, at, len) in [(0, 4 << 20, 2 << 20), (block, (4 << 20) + 3 * block, 5 * block), (65536, 3 << 20, block)] {
        bench.write(at, &fill(len + block, 12), false).await.expect("a write");
        let Some(origin) = bench.store.origin() else { return };
        match bench.copy(origin, from, Place { at, len }).await {
            Ok(_) => {}
            Err(Fault::Unsupported) => continue,
            Err(why) => panic!("copying answered {why:?}"),
        }
        let found = bench.read(Place { at, len: len + block }).await;
        assert!(found[..len as usize] == bytes[from as usize..(from + len) as usize], "{len} bytes from {from}");
        assert!(found[len as usize..] == fill(len + block, 12)[len as usize..], "no other bytes are changed");
        // Shared data is no longer shared when one of the two copies is written.
        bench.write(from, &fill(block, 13), false).await.expect("a write");
        assert!(bench.read(Place { at, len: block }).await == bytes[from as usize..(from + block) as usize]);
        bench.write(from, &bytes[from as usize..(from + block) as usize], false).await.expect("a write");
    }
    let stranger = Origin::new(Rc::new(()));
    let place = Place { at: 4 << 20, len: block };
    assert_eq!(bench.copy(stranger, 0, place).await, Err(Fault::Unsupported), "another kind of store");
}

async fn flushes(bench: &Bench<'_>) {
    let place = Place { at: 0, len: 8 * bench.want.block };
    let bytes = fill(place.len, 5);
    assert_eq!(bench.write(place.at, &bytes, true).await, Ok(()), "a durable write");
    assert!(bench.read(place).await == bytes);
    assert!(bench.flush_at_once(20).await.into_iter().all(|result| result.is_ok()));
}

async fn stays_within_its_size(bench: &Bench<'_>) {
    let (size, block) = (bench.size(), bench.want.block);
    for at in [size, size - block, u64::MAX - block + 1] {
        let place = Place { at, len: 2 * block };
        assert_eq!(bench.write(at, &fill(place.len, 1), false).await, Err(Fault::OUT_OF_RANGE));
        let memory = bench.scatter(place.len as usize, PAGE, 0);
        assert_eq!(bench.read_into(place, memory).await, Err(Fault::OUT_OF_RANGE));
        for op in
            [Op::Unmap { len: 2 * block }, Op::Zero { len: 2 * block, unmap: true }, Op::Extent { len: 2 * block }]
        {
            assert_eq!(bench.ask(op, at).await.result, Err(Fault::OUT_OF_RANGE), "{op:?}");
        }
    }
    if let Some(origin) = bench.store.origin() {
        let past = bench.copy(origin, 0, Place { at: size - block, len: 2 * block }).await;
        assert_eq!(past, Err(Fault::OUT_OF_RANGE));
    }
    for op in [Op::Unmap { len: 0 }, Op::Zero { len: 0, unmap: false }] {
        let answer = bench.ask(op, size).await.result;
        assert!(matches!(answer, Ok(0) | Err(Fault::Unsupported)), "{op:?} of nothing: {answer:?}");
    }
    let mut lent = Sg::default();
    assert!(!bench.store.lend(size - block, 2 * block as usize, &mut lent) && lent.is_empty());
}

/// A store that always returns zeroes, and lends them.
pub fn forgetful(open: Open<'_>) {
    on_both_drivers(&|reactor| {
        let store = open(reactor).expect("the store opens");
        let want = Want::default();
        let bench = Bench::new(reactor, &*store, &want);
        reactor.run(async {
            let place = Place { at: 4096, len: 65536 };
            assert_eq!(bench.write(place.at, &fill(place.len, 1), true).await, Ok(()));
            assert!(bench.read(place).await.iter().all(|byte| *byte == 0));
            let mut lent = Sg::default();
            assert!(store.lend(bench.size() - BLOCK_MAX as u64, BLOCK_MAX, &mut lent));
            assert_eq!(lent.len(), BLOCK_MAX);
            assert!(lent.to_vec().iter().all(|byte| *byte == 0));
            for op in [Op::Flush, Op::Unmap { len: 512 }, Op::Zero { len: 512, unmap: false }] {
                assert!(bench.ask(op, 0).await.result.is_ok(), "{op:?}");
            }
            let extent = bench.ask(Op::Extent { len: 1 << 20 }, 512).await.extent;
            assert!(extent.len == 1 << 20 && !extent.mapped);
            stays_within_its_size(&bench).await;
        });
    });
}

/// The way in which two threads open the same volume.
pub type OpenAnywhere = Arc<dyn Fn(&Reactor) -> io::Result<Box<dyn Store>> + Send + Sync>;

/// A barrier of two threads; if one of them has panicked, the other panics instead of waiting.
struct Meeting(Sender<()>, Receiver<()>);

impl Meeting {
    fn pair() -> [Self; 2] {
        let (ours, theirs) = (channel(), channel());
        [Self(ours.0, theirs.1), Self(theirs.0, ours.1)]
    }

    fn wait(&self) {
        self.0.send(()).expect("the other core has not ended");
        self.1.recv().expect("the other core has not ended");
    }
}

/// Two cores open one volume: each sees the writes of the other. A store that promises atomic writes never shows a
/// block with half of each core's data; the page cache exposes a write in progress to reads.
pub fn shared_by_cores(open: &OpenAnywhere) {
    const ROUNDS: u8 = 200;
    let mut core = 0_u8;
    let cores = Meeting::pair().map(|meeting| {
        let (open, this) = (open.clone(), core);
        core += 1;
        std::thread::spawn(move || {
            let reactor = bench::reactor(Choice::Epoll).expect("epoll always exists");
            let store = open(&reactor).expect("the store opens");
            let want = Want::default();
            let bench = Bench::new(&reactor, &*store, &want);
            reactor.run(async {
                let theirs = Place { at: 4096 * u64::from(1 - this), len: 4096 };
                bench.write(4096 * u64::from(this), &[100 + this; 4096], false).await.expect("a write");
                meeting.wait();
                assert!(bench.read(theirs).await == [100 + (1 - this); 4096], "a core sees the writes of another core");
                let both = Place { at: 8192, len: 4096 };
                for round in 0..ROUNDS {
                    bench.write(both.at, &[round ^ (this << 7); 4096], false).await.expect("a write");
                    let found = bench.read(both).await;
                    let is_whole = found.iter().all(|byte| *byte == found[0]);
                    assert!(is_whole || store.traits().atomic_write == 0, "half a block");
                }
                meeting.wait();
                let last = bench.read(both).await;
                assert!(last.iter().all(|byte| *byte == last[0]), "of two writes at the same time, one is the last");
            });
        })
    });
    for core in cores {
        core.join().expect("no assertion failed on either core");
    }
}

use super::*;
use lunar_core::io::{Completion, Op as StoreOp};
use lunar_core::mem::Arena;
use lunar_engine::backend::Condition;
use lunar_reactor::Choice;
use lunar_suite::bench::{Bench, Place, fill, reactor};
use lunar_suite::meddler::{Kind, Meddler};
use lunar_suite::{Want, on_both_drivers};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

const SIZE: u64 = 16 << 20;

/// A folder that goes with the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        // Beside the build, not in /tmp: that may be a tmpfs, which has no medium to reach.
        let base = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/file-tests");
        let base = std::env::var_os("CARGO_TARGET_DIR").map_or(base, |target| PathBuf::from(target).join("file-tests"));
        let folder = base.join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a place for test files");
        Self(folder)
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("disk.img")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) const OPTIONS: Options = Options {
    size: Some(SIZE),
    creates: true,
    grows: false,
    mark: None,
    read_only: false,
    shared: false,
    durable: false,
    direct: false,
    block_size: 512,
};

fn used(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |found| found.blocks() * 512)
}

fn conforms(name: &str, options: Options) {
    let folder = Folder::new(name);
    let path = folder.file();
    let volume = match FileVolume::new(&path, &options) {
        Err(Refusal::NoDirect | Refusal::DirectBlocks { .. }) => {
            return eprintln!("skipped: no direct I/O with {}-byte blocks here", options.block_size);
        }
        other => other.expect("the file opens"),
    };
    assert_eq!((volume.traits().size, volume.traits().write_cache), (SIZE, !options.durable));
    let used = || used(&path);
    let want = Want { block: options.block_size.into(), used: Some(&used), cases: 24 };
    lunar_suite::conforms(&|reactor| volume.open(reactor), &want);
}

#[test]
fn write_back_keeps_the_contract() {
    conforms("write-back", OPTIONS);
}

#[test]
fn write_through_keeps_the_contract() {
    conforms("write-through", Options { durable: true, ..OPTIONS });
}

#[test]
fn direct_keeps_the_contract() {
    conforms("direct", Options { direct: true, ..OPTIONS });
    conforms("direct-4k", Options { direct: true, block_size: 4096, ..OPTIONS });
}

#[test]
fn direct_and_write_through_keep_the_contract() {
    conforms("direct-through", Options { direct: true, durable: true, block_size: 4096, ..OPTIONS });
}

#[test]
fn a_tmpfs_keeps_the_contract() {
    let path = PathBuf::from(format!("/dev/shm/lunar-file-test-{}", std::process::id()));
    match FileVolume::new(&path, &OPTIONS) {
        Ok(volume) => {
            let used = || used(&path);
            let want = Want { used: Some(&used), cases: 12, ..Want::default() };
            lunar_suite::conforms(&|reactor| volume.open(reactor), &want);
        }
        Err(why) => eprintln!("skipped: /dev/shm: {why}"),
    }
    let _ = std::fs::remove_file(path);
}

#[test]
fn is_the_same_bytes_on_every_core() {
    let folder = Folder::new("cores");
    let volume = FileVolume::new(&folder.file(), &OPTIONS).expect("the file opens");
    let open: lunar_suite::OpenAnywhere = Arc::new(move |reactor| volume.open(reactor));
    lunar_suite::shared_by_cores(&open);
}

#[test]
fn files_on_zfs_are_copied_through_memory() {
    let folder = Folder::new("zfs");
    let mut volume = FileVolume::new(&folder.file(), &OPTIONS).expect("the file opens");
    let reactor = reactor(Choice::Epoll).expect("epoll is there always");
    for (file_system, shows_origin) in [(FileSystem::Other, true), (FileSystem::Zfs, false)] {
        volume.file_system = file_system;
        let store = volume.open(&reactor).expect("it opens");
        assert_eq!(store.origin().is_some(), shows_origin, "{file_system:?}");
        assert!(store.traits().unmap_granularity > 0, "a hole is safe as long as it is not cloned");
    }
}

#[test]
fn a_file_that_was_cut_off_is_a_fault_and_not_zeroes() {
    let folder = Folder::new("cut");
    let volume = FileVolume::new(&folder.file(), &OPTIONS).expect("the file opens");
    on_both_drivers(&|reactor| {
        let file = File::options().write(true).open(folder.file()).expect("it is there");
        file.set_len(SIZE).expect("whole again");
        let store = volume.open(reactor).expect("it opens");
        let want = Want::default();
        let bench = Bench::new(reactor, &*store, &want);
        reactor.run(async {
            bench.write(0, &fill(65536, 1), false).await.expect("a write");
            file.set_len(6000).expect("cut off");
            assert_eq!(bench.read(Place { at: 0, len: 4096 }).await, fill(65536, 1)[..4096]);
            for (at, len) in [(4096, 4096), (8192, 512), (SIZE - 512, 512)] {
                let read = bench.read_into(Place { at, len }, bench.scatter(len as usize, 512, 0)).await;
                assert_eq!(read, Err(Fault::Medium), "{at}");
            }
        });
    });
}

#[test]
fn what_was_cut_off_stays_a_medium_error_when_the_file_grows_again() {
    for is_read_first in [false, true] {
        let folder = Folder::new("cut-grown");
        let volume = FileVolume::new(&folder.file(), &OPTIONS).expect("the file opens");
        assert_eq!(volume.examine(), []);
        on_both_drivers(&|reactor| {
            let store = volume.open(reactor).expect("it opens");
            let want = Want::default();
            let bench = Bench::new(reactor, &*store, &want);
            let file = File::options().write(true).open(folder.file()).expect("it is there");
            reactor.run(async {
                if is_read_first {
                    bench.write(0, &fill(65536, 1), false).await.unwrap_or_default();
                }
                file.set_len(8192).expect("cut off");
                let condition: Vec<_> = volume.examine().iter().map(|trouble| trouble.condition).collect();
                assert_eq!(condition, [Condition::Truncated]);
                // A command behind the end changes nothing, so nothing before it becomes zeroes.
                assert_eq!(bench.write(SIZE - 4096, &fill(4096, 2), false).await, Err(Fault::Medium));
                assert_eq!(file.metadata().expect("open").len(), 8192);
                file.set_len(SIZE).expect("large again, and empty behind the cut");
                for (at, len) in [(8192, 512), (4096, 8192), (SIZE - 512, 512)] {
                    let read = bench.read_into(Place { at, len }, bench.scatter(len as usize, 512, 0)).await;
                    assert_eq!(read, Err(Fault::Medium), "{at}");
                }
                assert!(bench.read_into(Place { at: 0, len: 8192 }, bench.scatter(8192, 512, 0)).await.is_ok());
            });
            let words: Vec<String> = volume.examine().iter().map(ToString::to_string).collect();
            assert!(
                words.len() == 1 && words[0].contains("truncated to 8 KiB") && words[0].contains("restore"),
                "{words:?}"
            );
        });
    }
}

#[test]
fn a_deleted_a_moved_and_a_replaced_file_are_told() {
    let folder = Folder::new("deleted");
    let (path, other) = (folder.file(), folder.file().with_file_name("other.img"));
    let volume = FileVolume::new(&path, &OPTIONS).expect("the file opens");
    let conditions = || -> Vec<_> { volume.examine().into_iter().map(|trouble| trouble.condition).collect() };
    assert_eq!(conditions(), []);
    std::fs::rename(&path, &other).expect("a rename");
    assert_eq!(conditions(), [Condition::Moved]);
    std::fs::write(&path, "another file").expect("a file");
    assert_eq!(conditions(), [Condition::Moved]);
    std::fs::rename(&other, &path).expect("a rename");
    assert_eq!(conditions(), []);
    std::fs::remove_file(&path).expect("it is there");
    assert_eq!(conditions(), [Condition::Deleted]);
    // The remedy names the open file.
    let remedy = volume.examine()[0].remedy.clone();
    let open = remedy.split_whitespace().find(|word| word.starts_with("/proc/")).expect("a path");
    assert_eq!(MetadataExt::nlink(&std::fs::metadata(open).expect("it is open")), 0, "{remedy}");
}

#[test]
fn a_sparse_file_may_take_the_space_that_it_does_not_have() {
    let folder = Folder::new("space");
    let path = folder.file();
    let missing = |options: &Options| {
        let volume = FileVolume::new(&path, options).expect("the file opens");
        let space = volume.pool_space().expect("it is in a file system");
        assert_eq!(Some(space.place.as_str()), path.parent().and_then(Path::to_str));
        space.missing
    };
    let size = OPTIONS.size.expect("a size");
    // Attributes of the file may take a block of the file system.
    assert!((size - 8192..=size).contains(&missing(&OPTIONS)));
    std::fs::write(&path, vec![7; usize::try_from(size / 2).expect("it is small")]).expect("it is written");
    File::options().write(true).open(&path).and_then(|file| file.set_len(size)).expect("it is as large");
    assert!(missing(&OPTIONS) <= size / 2);
    assert_eq!(missing(&Options { size: None, read_only: true, ..OPTIONS }), 0);
}

#[test]
fn a_store_keeps_the_lock_of_what_was_opened_first() {
    let folder = Folder::new("first");
    let path = folder.file();
    drop(FileVolume::new(&path, &OPTIONS).expect("made"));
    let read_only = Options { read_only: true, ..OPTIONS };
    for (first, second) in [(OPTIONS, Options { durable: true, ..OPTIONS }), (read_only, OPTIONS), (OPTIONS, read_only)]
    {
        on_both_drivers(&|reactor| {
            let before = FileVolume::new(&path, &first).expect("the file opens");
            let volume = before.reopen(&path, &second).expect("it is ours");
            volume.finalize();
            drop(before);
            // The third volume shares the file that was opened first.
            let last = volume.reopen(&path, &second).expect("it is ours");
            drop(volume);
            let store = last.open(reactor).expect("it opens");
            drop(last);
            let refused = FileVolume::new(&path, &OPTIONS);
            assert!(matches!(refused, Err(Refusal::Locked { .. })), "{refused:?}");
            drop(store);
            // The driver closes its files in its next turn.
            reactor.run(async { reactor.end_of_turn().await });
            drop(FileVolume::new(&path, &OPTIONS).expect("nobody is left"));
        });
    }
}

/// A file system of one megabyte, if this user may mount one.
struct Small(Folder);

impl Small {
    fn mount(name: &str) -> Option<Self> {
        let folder = Folder::new(name);
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1M", "none"]).arg(&folder.0).output().ok()?;
        done.status.success().then_some(Self(folder))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0.0).output();
    }
}

#[test]
fn a_full_disk_is_no_space_and_unmapping_makes_room() {
    let Some(small) = Small::mount("full") else { return eprintln!("skipped: this user may not mount a tmpfs") };
    let volume = FileVolume::new(&small.0.file(), &OPTIONS).expect("the file opens");
    on_both_drivers(&|reactor| {
        let store = volume.open(reactor).expect("it opens");
        let want = Want::default();
        let bench = Bench::new(reactor, &*store, &want);
        reactor.run(async {
            let megabyte = fill(1 << 20, 1);
            let results = [
                bench.write(0, &megabyte[..1 << 19], false).await,
                bench.write(1 << 20, &megabyte, false).await,
                bench.write(3 << 20, &megabyte[..4096], true).await,
            ];
            assert_eq!(results, [Ok(()), Err(Fault::NoSpace), Err(Fault::NoSpace)]);
            assert_eq!(bench.read(Place { at: 0, len: 1 << 19 }).await, megabyte[..1 << 19], "what was there stays");
            assert!(bench.ask(StoreOp::Flush, 0).await.result.is_ok(), "a full disk has lost nothing");
            assert!(bench.ask(StoreOp::Unmap { len: 4 << 20 }, 0).await.result.is_ok());
            assert_eq!(bench.write(3 << 20, &megabyte[..4096], true).await, Ok(()));
            assert!(bench.ask(StoreOp::Unmap { len: SIZE }, 0).await.result.is_ok());
        });
    });
}

/// A core whose driver fails on demand.
fn meddled() -> (Rc<Meddler>, Reactor, Reactor) {
    let real = reactor(Choice::Epoll).expect("epoll is there always");
    let meddler = Meddler::new(real.driver().clone());
    let core = Reactor::with_driver(meddler.clone(), Arena::new(16 << 20), Arc::default());
    // The real driver is not dropped, because that would end its operations.
    (meddler, core, real)
}

#[test]
fn a_flush_that_failed_is_not_forgotten_by_any_core() {
    let folder = Folder::new("flush");
    let volume = FileVolume::new(&folder.file(), &OPTIONS).expect("the file opens");
    let (meddler, core, _real) = meddled();
    let want = Want::default();
    let store = volume.open(&core).expect("it opens");
    let bench = Bench::new(&core, &*store, &want);
    core.run(async {
        bench.write(0, &fill(4096, 1), false).await.expect("a write");
        assert!(bench.ask(StoreOp::Flush, 0).await.result.is_ok());
        meddler.fail_next(Kind::Sync, Fault::Medium);
        assert_eq!(bench.ask(StoreOp::Flush, 0).await.result, Err(Fault::Medium));
        assert_eq!(bench.ask(StoreOp::Flush, 0).await.result, Err(Fault::Medium), "the kernel would say yes now");
        assert_eq!(bench.read(Place { at: 0, len: 4096 }).await, fill(4096, 1), "reading goes on");
        assert_eq!(meddler.count(Kind::Sync), 2);
    });
    drop(store);
    drop(core);
    let other = reactor(Choice::Epoll).expect("epoll is there always");
    let store = volume.open(&other).expect("it opens");
    let bench = Bench::new(&other, &*store, &want);
    other.run(async { assert_eq!(bench.ask(StoreOp::Flush, 0).await.result, Err(Fault::Medium)) });
    drop((store, volume));
    let volume = FileVolume::new(&folder.file(), &OPTIONS).expect("the file opens anew");
    let store = volume.open(&other).expect("it opens");
    let bench = Bench::new(&other, &*store, &want);
    other.run(async { assert!(bench.ask(StoreOp::Flush, 0).await.result.is_ok(), "and is given another chance") });
}

#[test]
fn an_aborted_flush_is_not_a_lost_disk() {
    let folder = Folder::new("abort");
    let volume = FileVolume::new(&folder.file(), &OPTIONS).expect("the file opens");
    let (meddler, core, _real) = meddled();
    let store = volume.open(&core).expect("it opens");
    let want = Want::default();
    let bench = Bench::new(&core, &*store, &want);
    core.run(async {
        meddler.fail_next(Kind::Sync, Fault::Aborted);
        assert_eq!(bench.ask(StoreOp::Flush, 0).await.result, Err(Fault::Aborted));
        assert!(bench.ask(StoreOp::Flush, 0).await.result.is_ok());
    });
}

#[test]
fn flushes_that_come_while_one_runs_share_the_next() {
    let folder = Folder::new("rounds");
    let volume = FileVolume::new(&folder.file(), &OPTIONS).expect("the file opens");
    let (meddler, core, _real) = meddled();
    let store = volume.open(&core).expect("it opens");
    core.run(async {
        meddler.hold(Kind::Sync);
        let flush = |completion: &mut Completion| {
            let io = Io { op: StoreOp::Flush, offset: 0, data: Data::None };
            store.submit(io, completion.token());
        };
        let mut first = Completion::new();
        flush(&mut first);
        core.end_of_turn().await;
        assert_eq!(meddler.held(), 1);
        let mut later: Vec<Completion> = (0..10).map(|_| Completion::new()).collect();
        later.iter_mut().for_each(flush);
        core.end_of_turn().await;
        assert_eq!(meddler.held(), 1, "what comes while one runs may have been written after it began");
        meddler.let_go();
        assert!(first.wait().await.result.is_ok());
        for completion in later {
            assert!(completion.wait().await.result.is_ok());
        }
        assert_eq!(meddler.count(Kind::Sync), 2);
    });
}

#[test]
fn durable_writes_beside_one_that_failed_are_done_again() {
    let folder = Folder::new("beside");
    let volume = FileVolume::new(&folder.file(), &OPTIONS).expect("the file opens");
    let (meddler, core, _real) = meddled();
    let store = volume.open(&core).expect("it opens");
    let want = Want::default();
    let bench = Bench::new(&core, &*store, &want);
    core.run(async {
        // Each durable write has a flush of its own while there is something in the cache.
        assert_eq!(bench.write(8192, &fill(4096, 0), false).await, Ok(()));
        meddler.hold(Kind::Durable);
        let write = |at: u64, completion: &mut Completion| {
            let data = Data::Out(bench.gather(&fill(4096, at), 4096, 0));
            store.submit(Io { op: StoreOp::Write { durable: true }, offset: at, data }, completion.token());
        };
        let (mut bad, mut good) = (Completion::new(), Completion::new());
        write(0, &mut bad);
        write(4096, &mut good);
        core.end_of_turn().await;
        assert_eq!(meddler.held(), 2);
        meddler.fail_next(Kind::Durable, Fault::Medium);
        meddler.let_go();
        assert_eq!(bad.wait().await.result, Err(Fault::Medium));
        assert_eq!(good.wait().await.result, Ok(4096));
        assert_eq!(meddler.count(Kind::Durable), 3, "its success beside a failure means nothing");
        assert_eq!(bench.read(Place { at: 4096, len: 4096 }).await, fill(4096, 4096));
    });
}

/// Ten durable writes: the first has a flush of its own, the others share one. `has_cache`: of the volume. `fault`: of
/// the shared flush. Returns what was counted of flushes and of durable writes.
fn shared_flush(name: &str, has_cache: bool, fault: Option<Fault>) -> [usize; 2] {
    let folder = Folder::new(name);
    let options = Options { durable: !has_cache, ..OPTIONS };
    let volume = FileVolume::new(&folder.file(), &options).expect("the file opens");
    let (meddler, core, _real) = meddled();
    let store = volume.open(&core).expect("it opens");
    let want = Want::default();
    let bench = Bench::new(&core, &*store, &want);
    core.run(async {
        meddler.hold(Kind::Sync);
        let write = |at: u64, completion: &mut Completion| {
            let data = Data::Out(bench.gather(&fill(4096, at), 4096, 0));
            store.submit(Io { op: StoreOp::Write { durable: has_cache }, offset: at, data }, completion.token());
        };
        let mut first = Completion::new();
        write(0, &mut first);
        while meddler.held() == 0 {
            core.sleep(Duration::from_millis(1)).await;
        }
        let mut later: Vec<_> = (1..10).map(|at| (at * 4096, Completion::new())).collect();
        later.iter_mut().for_each(|(at, completion)| write(*at, completion));
        while meddler.count(Kind::Write) < 10 {
            core.sleep(Duration::from_millis(1)).await;
        }
        core.sleep(Duration::from_millis(20)).await;
        assert_eq!(meddler.held(), 1, "what comes while one runs may have been written after it began");
        if let Some(fault) = fault {
            meddler.fail_next(Kind::Sync, fault);
        }
        meddler.let_go();
        assert_eq!(first.wait().await.result, Ok(4096));
        for (at, completion) in later {
            assert_eq!(completion.wait().await.result, Ok(4096));
            assert_eq!(bench.read(Place { at, len: 4096 }).await, fill(4096, at));
        }
        [meddler.count(Kind::Sync), meddler.count(Kind::Durable)]
    })
}

#[test]
fn writes_without_a_write_cache_share_flushes() {
    assert_eq!(shared_flush("shared", false, None), [2, 0]);
}

#[test]
fn writes_whose_shared_flush_failed_are_done_again() {
    // The failed flush is the one of the first write; the later ones began before it ended, so they are repeated, too.
    assert_eq!(shared_flush("shared-failure", false, Some(Fault::Medium)), [2, 10]);
}

#[test]
fn durable_writes_share_flushes_if_the_volume_has_no_cached_writes() {
    assert_eq!(shared_flush("shared-cached", true, None), [2, 0]);
    assert_eq!(shared_flush("shared-cached-failure", true, Some(Fault::Medium)), [2, 10]);
}

#[test]
fn a_durable_write_does_not_flush_the_cached_writes_of_others() {
    let folder = Folder::new("cached");
    let volume = FileVolume::new(&folder.file(), &OPTIONS).expect("the file opens");
    let (meddler, core, _real) = meddled();
    let store = volume.open(&core).expect("it opens");
    let want = Want::default();
    let bench = Bench::new(&core, &*store, &want);
    core.run(async {
        let counts = || [meddler.count(Kind::Sync), meddler.count(Kind::Durable)];
        assert_eq!(bench.write(0, &fill(4096, 0), false).await, Ok(()));
        assert_eq!(bench.write(4096, &fill(4096, 1), true).await, Ok(()));
        assert_eq!(counts(), [0, 1]);
        assert!(bench.ask(StoreOp::Flush, 0).await.result.is_ok());
        assert_eq!(bench.write(4096, &fill(4096, 2), true).await, Ok(()));
        assert_eq!(counts(), [2, 1], "nothing is cached any more");
    });
}

#[test]
fn a_write_that_fails_before_the_page_cache_is_not_the_failure_of_others() {
    let folder = Folder::new("no-space");
    let volume = FileVolume::new(&folder.file(), &Options { durable: true, ..OPTIONS }).expect("the file opens");
    let (meddler, core, _real) = meddled();
    let store = volume.open(&core).expect("it opens");
    let want = Want::default();
    let bench = Bench::new(&core, &*store, &want);
    core.run(async {
        meddler.hold(Kind::Sync);
        let data = Data::Out(bench.gather(&fill(4096, 0), 4096, 0));
        let mut first = Completion::new();
        store.submit(Io { op: StoreOp::Write { durable: false }, offset: 0, data }, first.token());
        while meddler.held() == 0 {
            core.sleep(Duration::from_millis(1)).await;
        }
        meddler.fail_next(Kind::Write, Fault::NoSpace);
        assert_eq!(bench.write(4096, &fill(4096, 1), false).await, Err(Fault::NoSpace));
        meddler.let_go();
        assert_eq!(first.wait().await.result, Ok(4096));
        assert_eq!(meddler.count(Kind::Durable), 0, "the first write is on the medium, and is not repeated");
    });
}

#[test]
fn direct_io_waits_for_the_memory_of_a_copy() {
    let folder = Folder::new("memory");
    let options = Options { direct: true, block_size: 4096, ..OPTIONS };
    let Ok(volume) = FileVolume::new(&folder.file(), &options) else {
        return eprintln!("skipped: no direct I/O here");
    };
    let core = reactor(Choice::Epoll).expect("epoll is there always");
    let store = volume.open(&core).expect("it opens");
    let want = Want { block: 4096, ..Want::default() };
    let bench = Bench::new(&core, &*store, &want);
    core.run(async {
        let skewed = bench.gather(&fill(4096, 1), 4096, 48);
        let into = bench.scatter(4096, 4096, 48);
        let free_later = || {
            let all: Vec<_> = std::iter::from_fn(|| core.arena().take(4096)).collect();
            let later = core.clone();
            core.spawn(async move {
                later.sleep(Duration::from_millis(20)).await;
                drop(all);
            });
        };
        free_later();
        assert_eq!(bench.write_sg(0, skewed, false).await, Ok(()));
        free_later();
        assert_eq!(bench.read_into(Place { at: 0, len: 4096 }, into).await, Ok(fill(4096, 1)));
    });
}

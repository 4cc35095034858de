use super::*;
use lunar_suite::bench::{Bench, Place, fill};
use lunar_suite::{Want, on_both_drivers};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

const SIZE: u64 = 16 << 20;
const OPTIONS: Options = Options { read_only: false, durable: false, direct: false, block_size: 512 };

/// Loop devices are found and taken in two steps.
static LOOPS: Mutex<()> = Mutex::new(());

/// A loop device over a file, both gone with the test.
struct Loop {
    device: PathBuf,
    file: PathBuf,
    _one_at_a_time: MutexGuard<'static, ()>,
}

impl Loop {
    /// `None`, and the reason is printed, where this user or this machine cannot make one.
    fn new(name: &str, sector: u32) -> Option<Self> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target");
        let folder = std::env::var_os("CARGO_TARGET_DIR").map_or(folder, PathBuf::from).join("block-tests");
        std::fs::create_dir_all(&folder).expect("a place for test files");
        Self::over(folder.join(format!("{name}-{}", std::process::id())), sector)
    }

    fn over(file: PathBuf, sector: u32) -> Option<Self> {
        let one_at_a_time = LOOPS.lock().unwrap_or_else(PoisonError::into_inner);
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            eprintln!("skipped: loop devices are for root, where /dev/loop-control is");
            return None;
        }
        std::fs::File::create(&file).and_then(|file| file.set_len(SIZE)).expect("a file");
        let sector = sector.to_string();
        let made = Command::new("losetup").args(["--find", "--show", "--sector-size", &sector]).arg(&file).output();
        let device = match made {
            Ok(made) if made.status.success() => String::from_utf8_lossy(&made.stdout).trim().to_owned(),
            other => {
                eprintln!("skipped: losetup: {other:?}");
                let _ = std::fs::remove_file(file);
                return None;
            }
        };
        Some(Self { device: device.into(), file, _one_at_a_time: one_at_a_time })
    }

    fn run(program: &str, args: &[&str]) -> bool {
        Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        Self::run("losetup", &["--detach", &self.device.display().to_string()]);
        let _ = std::fs::remove_file(&self.file);
    }
}

fn conforms(name: &str, sector: u32, options: Options) {
    let Some(device) = Loop::new(name, sector) else { return };
    let volume = BlockVolume::new(&device.device, &options).expect("nobody else uses it");
    let traits = volume.traits();
    assert_eq!((traits.size, traits.write_cache, traits.read_only), (SIZE, !options.durable, false));
    assert!(!traits.unmap_zeroes && traits.physical_block >= sector);
    let want = Want { block: options.block_size.into(), used: None, cases: 16 };
    lunar_suite::conforms(&|reactor| volume.open(reactor), &want);
    drop(volume);
}

#[test]
fn write_back_keeps_the_contract() {
    conforms("back", 512, OPTIONS);
}

#[test]
fn write_through_keeps_the_contract() {
    conforms("through", 512, Options { durable: true, ..OPTIONS });
}

#[test]
fn direct_keeps_the_contract() {
    conforms("direct", 512, Options { direct: true, ..OPTIONS });
}

#[test]
fn large_sectors_keep_the_contract() {
    conforms("small-on-large", 4096, OPTIONS);
    conforms("large-on-large", 4096, Options { direct: true, block_size: 4096, ..OPTIONS });
}

#[test]
fn direct_io_in_less_than_a_sector_is_refused() {
    let Some(device) = Loop::new("less", 4096) else { return };
    let refused = BlockVolume::new(&device.device, &Options { direct: true, ..OPTIONS });
    assert!(matches!(refused, Err(Refusal::DirectBlocks { needs: 4096 })), "{refused:?}");
}

#[test]
fn a_device_in_use_is_refused_and_its_user_named() {
    let Some(device) = Loop::new("used", 512) else { return };
    let name = device.device.display().to_string();
    let volume = BlockVolume::new(&device.device, &OPTIONS).expect("nobody else uses it");
    let refused = BlockVolume::new(&device.device, &OPTIONS);
    assert!(matches!(refused, Err(Refusal::Busy { by: None })), "{refused:?}");
    assert!(!Loop::run("mount", &["-t", "ext4", &name, "/mnt"]), "what is served cannot be mounted");
    drop(volume);
    if !Loop::run("mkfs.ext4", &["-q", "-F", &name]) {
        return eprintln!("skipped: no mkfs.ext4");
    }
    let place = device.file.with_extension("mount");
    std::fs::create_dir_all(&place).expect("a place to mount at");
    // As the kernel tells it: without the detours of a path made from a manifest's folder.
    let place_name = place.canonicalize().expect("just made").display().to_string();
    if Loop::run("mount", &[&name, &place_name]) {
        for read_only in [false, true] {
            let refused = BlockVolume::new(&device.device, &Options { read_only, ..OPTIONS });
            match refused {
                Err(Refusal::Busy { by: Some(by) }) => assert_eq!(by, format!("mounted at {place_name}")),
                other => panic!("{other:?}"),
            }
        }
        assert!(Loop::run("umount", &[&place_name]));
    } else {
        eprintln!("skipped: this user may not mount");
    }
    let _ = std::fs::remove_dir(place);
}

#[test]
fn unmapping_keeps_what_is_not_a_whole_sector() {
    let Some(device) = Loop::new("part", 4096) else { return };
    let volume = BlockVolume::new(&device.device, &OPTIONS).expect("nobody else uses it");
    on_both_drivers(&|reactor| {
        let store = volume.open(reactor).expect("it opens");
        let want = Want::default();
        let bench = Bench::new(reactor, &*store, &want);
        reactor.run(async {
            let bytes = fill(16384, 1);
            bench.write(0, &bytes, false).await.expect("a write");
            for (at, len) in [(512, 512), (3584, 1024), (12800, 3584)] {
                assert_eq!(bench.ask(Op::Unmap { len }, at).await.result, Ok(0));
                assert_eq!(bench.ask(Op::Zero { len, unmap: false }, at).await.result, Err(Fault::Unsupported));
            }
            assert!(bench.read(Place { at: 0, len: 16384 }).await == bytes);
        });
    });
}

/// A disk of 16 MiB on a disk of 1 MiB: writes beyond that fail in the write-back of the page cache.
#[test]
fn a_disk_that_fails_beneath_the_page_cache_is_not_forgotten() {
    let place = PathBuf::from(format!("/tmp/lunar-block-test-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a place to mount at");
    // As the kernel tells it: without the detours of a path made from a manifest's folder.
    let place_name = place.canonicalize().expect("just made").display().to_string();
    if !Loop::run("mount", &["-t", "tmpfs", "-o", "size=1M", "none", &place_name]) {
        return eprintln!("skipped: this user may not mount");
    }
    if let Some(device) = Loop::over(place.join("disk.img"), 512) {
        on_both_drivers(&|reactor| {
            let volume = BlockVolume::new(&device.device, &OPTIONS).expect("nobody else uses it");
            let stores = [(); 2].map(|()| volume.open(reactor).expect("it opens"));
            let want = Want::default();
            let [here, there] = [0, 1].map(|core| Bench::new(reactor, &*stores[core], &want));
            reactor.run(async {
                here.write(0, &fill(65536, 1), false).await.expect("a write");
                assert_eq!(there.ask(Op::Flush, 0).await.result, Ok(0));
                here.write(4 << 20, &fill(4 << 20, 1), false).await.expect("the page cache takes it");
                let first = here.ask(Op::Flush, 0).await.result;
                assert!(first.is_err(), "the disk did not take it");
                for core in [&there, &here] {
                    assert_eq!(core.ask(Op::Flush, 0).await.result, Err(Fault::Medium));
                }
                assert!(here.write(8 << 20, &fill(4 << 20, 1), true).await.is_err(), "and does not take this");
            });
        });
        drop(device);
    }
    assert!(Loop::run("umount", &[&place_name]));
    let _ = std::fs::remove_dir(place);
}

#[test]
fn what_is_no_device_is_refused() {
    assert!(matches!(BlockVolume::new(Path::new("/dev/null"), &OPTIONS), Err(Refusal::NotBlock)));
    assert!(matches!(BlockVolume::new(Path::new("/"), &OPTIONS), Err(Refusal::NotBlock)));
    assert!(BlockVolume::new(Path::new("/nonexistent"), &OPTIONS).is_err());
}

#[test]
fn a_device_is_marked_by_its_own_name_or_its_place() {
    let Some(device) = Loop::new("mark", 512) else { return };
    let volume = BlockVolume::new(&device.device, &OPTIONS).expect("nobody else uses it");
    assert_eq!(
        *volume.mark(),
        Mark::Place(device.device.display().to_string()),
        "a loop device has no name of its own"
    );
}

//! Volumes of the command line, with the back ends of Lunar.

mod common;

use common::BACKENDS;
use lunar_core::io::{Completion, Data, Io, Op, Traits, submit};
use lunar_core::medium::MediumKind;
use lunar_core::protection;
use lunar_engine::volume::Volume;
use lunar_engine::volume::VolumeError;
use lunar_engine::volume::command_line::Options;
use lunar_engine::volume::text;
use lunar_reactor::{Choice, Config, Reactor};
use std::path::{Path, PathBuf};

const READ_ONLY: Options = Options { read_only: true, ..Options::PLAIN };
const LARGE_BLOCKS: Options = Options { block_size: 4096, ..Options::PLAIN };

fn open(text: &str, options: &Options) -> Result<Volume, VolumeError> {
    Volume::open_text(BACKENDS, text, options)
}

fn traits(volume: &Volume) -> &Traits {
    volume.opened().store().expect("it is a store").traits()
}

/// A folder that is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("lunar-volume-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a place for test files");
        Self(folder)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn refused(spec: &str, options: &Options) -> String {
    open(spec, options).expect_err(spec).to_string()
}

#[track_caller]
fn says(spec: &str, options: &Options, words: &[&str]) {
    let why = refused(spec, options);
    for part in words {
        assert!(why.contains(part), "{why:?} does not say {part:?}");
    }
}

#[test]
fn every_kind_opens_and_reads() {
    let folder = Folder::new("kinds");
    let file = folder.file("disk.img:1M");
    let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("epoll is there always");
    for spec in ["null:1M", "ram:1M", &file] {
        let volume = open(spec, &Options::PLAIN).expect(spec);
        assert_eq!(volume.size(), Some(1 << 20), "{spec}");
        let store = volume.opened().store().expect("it is a store").open(&reactor).expect(spec);
        assert_eq!(store.traits(), traits(&volume));
        reactor.run(async {
            let memory = reactor.arena().take_sg(4096).expect("room");
            let io = Io { op: Op::Read, offset: (1 << 20) - 4096, data: Data::In(memory) };
            let outcome = submit(&*store, io, &mut Completion::new()).await;
            assert_eq!(outcome.result, Ok(4096), "{spec}");
            assert!(outcome.data.into_in().share().to_vec().iter().all(|byte| *byte == 0), "{spec}");
        });
    }
}

#[test]
fn options_reach_the_store() {
    let folder = Folder::new("options");
    let spec = folder.file("disk.img:1M");
    let through = Options { write_through: true, ..Options::PLAIN };
    assert!(traits(&open(&spec, &Options::PLAIN).expect("made")).write_cache);
    assert!(!traits(&open(&spec, &through).expect("opened")).write_cache);
    assert!(traits(&open(&spec, &READ_ONLY).expect("opened")).read_only);
    match open(&spec, &Options { direct: true, block_size: 4096, ..Options::PLAIN }) {
        Ok(volume) => assert!(volume.is_direct()),
        Err(why) => assert!(why.to_string().contains("leave out --direct"), "{why}"),
    }
}

#[test]
fn refusals_say_what_to_do() {
    let folder = Folder::new("refusals");
    let missing = folder.file("none.img");
    says(&missing, &Options::PLAIN, &["does not exist", &format!("{missing}:20G")]);
    says(&format!("{missing}:1M"), &READ_ONLY, &["does not exist", "--read-only"]);
    says(&folder.file("no/disk.img:1M"), &Options::PLAIN, &["mkdir -p", "no"]);
    says(&folder.file(""), &Options::PLAIN, &["is a directory", "disk.img:20G"]);
    says("/dev/sdzz", &Options::PLAIN, &["no such device", "lsblk"]);
    says("/dev/sdzz:1G", &Options::PLAIN, &["no such device"]);
    assert!(!Path::new("/dev/sdzz").exists());
    says("/dev/null", &Options::PLAIN, &["neither a regular file nor a block device"]);
    std::fs::write(folder.file("odd.img"), [0; 1000]).expect("a file");
    says(&folder.file("odd.img"), &Options::PLAIN, &["1000 bytes", "512-byte blocks", "512 or 1K would do"]);
    std::fs::write(folder.file("half.img"), [0; 2560]).expect("a file");
    says(&folder.file("half.img"), &LARGE_BLOCKS, &["4K would do", "--block-size 512"]);
    says(&folder.file("half.img:1M"), &Options::PLAIN, &["exists with 2560, not 1M", "leave the size out"]);
    std::fs::write(folder.file("empty.img"), []).expect("a file");
    says(&folder.file("empty.img"), &Options::PLAIN, &["is empty", "empty.img:20G"]);
    says(&folder.file("empty.img"), &READ_ONLY, &["nothing to read"]);
    says("ram:1000", &Options::PLAIN, &["512 or 1K would do"]);
    says("null:100", &Options::PLAIN, &["100 bytes", "512 would do"]);
    says("ram:17T", &Options::PLAIN, &["no machine has that much memory"]);
    says("ram", &Options::PLAIN, &["ram:1G"]);
}

#[test]
fn a_second_process_is_refused_with_the_id_of_the_first() {
    let folder = Folder::new("second");
    let spec = folder.file("disk.img:1M");
    let first = open(&spec, &Options::PLAIN).expect("made");
    let pid = format!("process {} (", std::process::id());
    says(&spec, &Options::PLAIN, &["already served by", &pid, "stop that one first"]);
    says(&spec, &READ_ONLY, &["already served by"]);
    drop(first);
    assert!(open(&spec, &Options::PLAIN).is_ok());
}

#[test]
fn a_volume_is_served_once_and_memory_as_often_as_asked() {
    let folder = Folder::new("once");
    let spec = folder.file("disk.img:1M");
    std::os::unix::fs::symlink(folder.file("disk.img"), folder.file("link")).expect("a link");
    let all = |specs: &[&str], options: &Options| {
        Volume::open_all(BACKENDS, &specs.iter().map(ToString::to_string).collect::<Vec<_>>(), options)
    };
    drop(all(&[&spec], &Options::PLAIN).expect("made"));
    for options in [Options::PLAIN, READ_ONLY] {
        let why = all(&[&spec, &folder.file("link")], &options).expect_err("twice").to_string();
        assert!(why.contains("named twice"), "{why}");
    }
    let memory = all(&["ram:1M", "ram:1M", "null:1M"], &Options::PLAIN).expect("three volumes");
    let serials: Vec<&str> = memory.iter().map(|volume| &*volume.identity().serial).collect();
    assert!(serials[0] != serials[1] && serials[1] != serials[2] && serials[0] != serials[2]);
    let again = all(&["ram:1M", "ram:1M"], &Options::PLAIN).expect("two volumes");
    assert_eq!(again[1].identity(), memory[1].identity(), "the same place on the same command line");
}

#[test]
fn names_with_colons_are_files_too() {
    let folder = Folder::new("colons");
    let spec = folder.file("vm:1.img:1M");
    drop(open(&spec, &Options::PLAIN).expect("made"));
    assert!(Path::new(&folder.file("vm:1.img")).exists());
    assert!(open(&folder.file("vm:1.img"), &Options::PLAIN).is_ok());
    std::fs::rename(folder.file("vm:1.img"), folder.file("vm:2M")).expect("renamed");
    assert_eq!(open(&folder.file("vm:2M"), &Options::PLAIN).expect("the file").size(), Some(1 << 20));
}

#[test]
fn an_identity_outlives_its_process() {
    let folder = Folder::new("identity");
    let spec = folder.file("disk.img:1M");
    let first = open(&spec, &Options::PLAIN).expect("made").identity().clone();
    assert_eq!(*open(&spec, &Options::PLAIN).expect("opened").identity(), first);
    assert_eq!((first.vendor.as_str(), first.product.as_str(), first.serial.len()), ("LUNAR", "VOLUME", 32));
    assert_eq!(first.naa[0] >> 4, 3, "locally assigned");
}

#[test]
fn a_disc_is_only_read_and_has_blocks_of_its_own() {
    let folder = Folder::new("disc");
    let image = folder.file("install.iso");
    std::fs::write(&image, [7; 3 * 2048]).expect("a file");
    let disc = open(&format!("cd:{image}"), &LARGE_BLOCKS).expect("an image");
    assert_eq!((disc.medium(), disc.block_size(), traits(&disc).read_only), (MediumKind::Optical, 2048, true));
    // Several may read it.
    let again = open(&format!("cd:{image}"), &Options::PLAIN).expect("an image");
    assert_eq!(again.identity(), disc.identity());
    drop((disc, again));
    let disk = open(&format!("removable:{image}"), &Options::PLAIN).expect("a disk");
    assert_eq!((disk.medium(), disk.block_size(), traits(&disk).read_only), (MediumKind::Removable, 512, false));
    drop(disk);
    std::fs::write(folder.file("half.iso"), [7; 1024]).expect("a file");
    says(&format!("cd:{}", folder.file("half.iso")), &Options::PLAIN, &["1024 bytes are no CD or DVD", "complete"]);
    says(&format!("cd:{}", folder.file("none.iso")), &Options::PLAIN, &["none.iso does not exist"]);
    let twice = [format!("cd:{image}"), image];
    let why = Volume::open_all(BACKENDS, &twice, &Options::PLAIN).expect_err("twice").to_string();
    assert!(why.contains("named twice"), "{why}");
}

#[test]
fn memory_keeps_protection_information_and_zeroes_have_no_place_for_it() {
    let kind = |volume: Volume| volume.protection().map(|protection| protection.kind());
    let asking = |kind| Options { protection: Some(kind), ..Options::PLAIN };
    assert_eq!(open("ram:1M", &Options::PLAIN).ok().map(kind), Some(None));
    for asked in protection::Kind::ALL {
        assert_eq!(open("ram:1M", &asking(asked)).ok().map(kind), Some(Some(asked)));
    }
    let why = open("null:1G", &asking(protection::Kind::One)).expect_err("no place").to_string();
    assert!(why.contains("leave out --protection"), "{why}");
}

#[test]
fn the_uuid_of_a_text_is_that_of_the_volume() {
    let folder = Folder::new("uuid");
    let file = folder.file("disk.img:1M");
    let uuid = |text: &str, position, read_only| {
        let keys = text::parse(BACKENDS, text).expect("a good text");
        keys.uuid(text, position, read_only).map(|uuid| uuid.0)
    };
    let volumes = Volume::open_all(BACKENDS, &["ram:1M".into(), "ram:1M".into()], &Options::PLAIN).expect("memory");
    for (position, volume) in volumes.iter().enumerate() {
        assert_eq!(uuid("ram:1M", position, false), Some(volume.identity().uuid));
    }
    assert_eq!(uuid(&file, 0, false), None, "a file that is missing takes any UUID");
    let made = open(&file, &Options::PLAIN).expect("made").identity().uuid;
    for read_only in [false, true] {
        assert_eq!(uuid(&file, 0, read_only), Some(made));
    }
}

use super::*;
use lunar_core::io::{Completion, Data, Io, Op, submit};
use lunar_reactor::{Choice, Config};
use rustix::io::Errno;
use std::path::PathBuf;

const READ_ONLY: Options = Options { read_only: true, ..Options::PLAIN };
const LARGE_BLOCKS: Options = Options { block_size: 4096, ..Options::PLAIN };

/// A folder that goes with the test.
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
    format!("{:#}", Volume::open_spec(spec, options).expect_err(spec))
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
        let volume = Volume::open_spec(spec, &Options::PLAIN).expect(spec);
        assert_eq!(volume.traits().size, 1 << 20, "{spec}");
        let store = volume.open(&reactor).expect(spec);
        assert_eq!(store.traits(), volume.traits());
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
    assert!(Volume::open_spec(&spec, &Options::PLAIN).expect("made").traits().write_cache);
    assert!(!Volume::open_spec(&spec, &through).expect("opened").traits().write_cache);
    assert!(Volume::open_spec(&spec, &READ_ONLY).expect("opened").traits().read_only);
    match Volume::open_spec(&spec, &Options { direct: true, block_size: 4096, ..Options::PLAIN }) {
        Ok(volume) => assert!(volume.is_direct()),
        Err(why) => assert!(why.to_string().contains("leave out --direct"), "{why}"),
    }
}

#[test]
fn who_may_not_write_a_file_is_told_what_to_do() {
    let folder = Folder::new("rights");
    let (there, missing) = (folder.0.join("disk.img"), folder.0.join("none.img"));
    std::fs::write(&there, [0; 4096]).expect("ours");
    // As the kernel says it to others: root may do everything.
    for errno in [Errno::ACCESS, Errno::PERM] {
        let told = |path: &Path, options: &Options| {
            advice::on_file(path, &lunar_file::Refusal::from(errno), None, options).to_string()
        };
        let name = there.display();
        let sentence = format!("{name} may not be written by this user: share it with --read-only, or chmod u+w it");
        assert_eq!(told(&there, &Options::PLAIN), sentence);
        let sentence = format!("{name} may not be read and written by this user; `ls -l {name}` shows who may");
        assert_eq!(told(&there, &READ_ONLY), sentence);
        let (name, parent) = (missing.display(), folder.0.display());
        let sentence = format!("{name} may not be made by this user in {parent}: choose another folder");
        assert_eq!(told(&missing, &Options::PLAIN), sentence);
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
fn a_second_one_is_told_who_serves() {
    let folder = Folder::new("second");
    let spec = folder.file("disk.img:1M");
    let first = Volume::open_spec(&spec, &Options::PLAIN).expect("made");
    let pid = format!("process {} (", std::process::id());
    says(&spec, &Options::PLAIN, &["already served by", &pid, "stop that one first"]);
    says(&spec, &READ_ONLY, &["already served by"]);
    drop(first);
    assert!(Volume::open_spec(&spec, &Options::PLAIN).is_ok());
}

#[test]
fn a_volume_is_shared_once_and_memory_as_often_as_asked() {
    let folder = Folder::new("once");
    let spec = folder.file("disk.img:1M");
    std::os::unix::fs::symlink(folder.file("disk.img"), folder.file("link")).expect("a link");
    let all = |specs: &[&str], options: &Options| {
        Volume::open_all(&specs.iter().map(ToString::to_string).collect::<Vec<_>>(), options)
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
    drop(Volume::open_spec(&spec, &Options::PLAIN).expect("made"));
    assert!(Path::new(&folder.file("vm:1.img")).exists());
    assert!(Volume::open_spec(&folder.file("vm:1.img"), &Options::PLAIN).is_ok());
    std::fs::rename(folder.file("vm:1.img"), folder.file("vm:2M")).expect("renamed");
    assert_eq!(Volume::open_spec(&folder.file("vm:2M"), &Options::PLAIN).expect("the file").traits().size, 1 << 20);
}

#[test]
fn an_identity_outlives_its_process() {
    let folder = Folder::new("identity");
    let spec = folder.file("disk.img:1M");
    let first = Volume::open_spec(&spec, &Options::PLAIN).expect("made").identity().clone();
    assert_eq!(*Volume::open_spec(&spec, &Options::PLAIN).expect("opened").identity(), first);
    assert_eq!((first.vendor.as_str(), first.product.as_str(), first.serial.len()), ("LUNAR", "VOLUME", 32));
    assert_eq!(first.naa[0] >> 4, 3, "locally assigned");
}

#[test]
fn a_disc_is_only_read_and_has_blocks_of_its_own() {
    let folder = Folder::new("disc");
    let image = folder.file("install.iso");
    std::fs::write(&image, [7; 3 * 2048]).expect("a file");
    let disc = Volume::open_spec(&format!("cd:{image}"), &LARGE_BLOCKS).expect("an image");
    assert_eq!((disc.medium(), disc.block_size(), disc.traits().read_only), (MediumKind::Optical, 2048, true));
    // Several may read it.
    let again = Volume::open_spec(&format!("cd:{image}"), &Options::PLAIN).expect("an image");
    assert_eq!(again.identity(), disc.identity());
    drop((disc, again));
    let disk = Volume::open_spec(&format!("removable:{image}"), &Options::PLAIN).expect("a disk");
    assert_eq!((disk.medium(), disk.block_size(), disk.traits().read_only), (MediumKind::Removable, 512, false));
    drop(disk);
    std::fs::write(folder.file("half.iso"), [7; 1024]).expect("a file");
    says(&format!("cd:{}", folder.file("half.iso")), &Options::PLAIN, &["1024 bytes are no CD or DVD", "complete"]);
    says(&format!("cd:{}", folder.file("none.iso")), &Options::PLAIN, &["none.iso does not exist"]);
    let twice = [format!("cd:{image}"), image];
    let why = Volume::open_all(&twice, &Options::PLAIN).expect_err("twice").to_string();
    assert!(why.contains("named twice"), "{why}");
}

#[test]
fn a_disk_that_looks_like_a_disc_is_asked_about() {
    for name in ["install.iso", "/srv/Install.ISO"] {
        let hint = hint(name).expect("looks like one");
        assert!(hint.contains(&format!("did you mean cd:{name}")), "{hint}");
    }
    for name in ["cd:install.iso", "removable:install.iso", "disk.img", ".iso", "iso", "é.img"] {
        assert_eq!(hint(name), None, "{name}");
    }
}

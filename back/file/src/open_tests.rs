use super::*;
use crate::FileVolume;
use crate::mark::{ATTRIBUTE, Mark};
use crate::tests::{Folder, OPTIONS};
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

const SIZE: u64 = 16 << 20;

fn as_it_is(options: Options) -> Options {
    Options { size: None, ..options }
}

#[test]
fn a_new_file_is_sparse_and_its_owners_alone() {
    let folder = Folder::new("new");
    let path = folder.file();
    assert!(matches!(FileVolume::new(&path, &as_it_is(OPTIONS)), Err(Refusal::Missing)));
    assert!(matches!(FileVolume::new(&path, &Options { read_only: true, ..OPTIONS }), Err(Refusal::Missing)));
    assert!(!path.exists(), "a refusal creates nothing");
    drop(FileVolume::new(&path, &OPTIONS).expect("made"));
    let made = path.metadata().expect("it is there");
    assert_eq!((made.len(), made.permissions().mode() & 0o777), (SIZE, 0o600));
    assert!(made.blocks() * 512 < 65536, "{} bytes are used", made.blocks() * 512);
    drop(FileVolume::new(&path, &OPTIONS).expect("the same size again"));
    drop(FileVolume::new(&path, &as_it_is(OPTIONS)).expect("the size that it has"));
}

#[test]
fn a_file_is_never_made_another_size() {
    let folder = Folder::new("size");
    let path = folder.file();
    std::fs::write(&path, [7; 1024]).expect("a file");
    let refused = FileVolume::new(&path, &OPTIONS);
    assert!(matches!(refused, Err(Refusal::OtherSize { size: 1024 })), "{refused:?}");
    assert_eq!(std::fs::read(&path).expect("it is there"), [7; 1024]);
    assert_eq!(FileVolume::new(&path, &as_it_is(OPTIONS)).expect("two blocks").traits().size, 1024);
    let refused = FileVolume::new(&path, &Options { size: None, block_size: 4096, ..OPTIONS });
    assert!(matches!(refused, Err(Refusal::Uneven { size: 1024 })), "{refused:?}");
    std::fs::remove_file(&path).expect("removed");
    std::fs::write(&path, b"").expect("an empty file");
    assert!(matches!(FileVolume::new(&path, &as_it_is(OPTIONS)), Err(Refusal::Empty)));
    assert_eq!(FileVolume::new(&path, &OPTIONS).expect("empty takes any size").traits().size, SIZE);
}

#[test]
fn a_file_that_was_truncated_between_two_runs_is_not_extended() {
    let folder = Folder::new("truncated");
    let path = folder.file();
    let grows = Options { grows: true, ..OPTIONS };
    drop(FileVolume::new(&path, &grows).expect("created"));
    let truncate = |size| File::options().write(true).open(&path).expect("it is there").set_len(size).expect("set");
    for size in [0, 4096, SIZE - 1] {
        truncate(size);
        for options in [grows, OPTIONS, as_it_is(grows), Options { read_only: true, ..grows }] {
            let refused = FileVolume::new(&path, &options);
            let is_told = matches!(refused, Err(Refusal::Truncated { size: has, served: SIZE }) if has == size);
            assert!(is_told, "{options:?} {refused:?}");
        }
        assert_eq!(path.metadata().expect("it is there").len(), size, "a refusal changes nothing");
    }
    // The operator extends it.
    truncate(SIZE);
    drop(FileVolume::new(&path, &grows).expect("it has its size again"));
    // A volume that grows has a new record; one that shows less of its file, too.
    drop(FileVolume::new(&path, &Options { size: Some(2 * SIZE), ..grows }).expect("larger"));
    let record = served_size::read(File::open(&path).expect("there").as_fd(), inode(&path));
    assert_eq!(record, Some(2 * SIZE));
    drop(FileVolume::new(&path, &grows).expect("the first half"));
    truncate(SIZE);
    drop(FileVolume::new(&path, &grows).expect("its size"));
    // The record of another file says nothing.
    let copy = folder.0.join("copy.img");
    std::fs::write(&copy, [1; 4096]).expect("a copy");
    let value = format!("{SIZE} {}", inode(&path));
    fsetxattr(File::open(&copy).expect("there"), served_size::ATTRIBUTE, value.as_bytes(), XattrFlags::empty())
        .expect("an attribute");
    drop(FileVolume::new(&copy, &grows).expect("extended"));
}

fn inode(path: &Path) -> u64 {
    path.metadata().expect("it is there").ino()
}

#[test]
fn what_was_there_before_is_not_made_anew() {
    let folder = Folder::new("gone");
    let path = folder.file();
    let known = Options { creates: false, ..OPTIONS };
    let all = [known, Options { grows: true, ..known }, Options { read_only: true, ..known }, as_it_is(known)];
    for options in all {
        assert!(matches!(FileVolume::new(&path, &options), Err(Refusal::Gone)), "{options:?}");
        assert!(matches!(FileVolume::new(&folder.0.join("none/disk.img"), &options), Err(Refusal::Gone)));
    }
    assert!(!path.exists(), "a refusal creates nothing");
    std::fs::write(&path, b"").expect("an empty file");
    for options in all {
        assert!(matches!(FileVolume::new(&path, &options), Err(Refusal::Gone)), "{options:?}");
    }
    assert_eq!(path.metadata().expect("it is there").len(), 0);
    drop(FileVolume::new(&path, &OPTIONS).expect("made"));
    all.iter().for_each(|options| drop(FileVolume::new(&path, options).expect("it is there")));
}

#[test]
fn what_lies_behind_the_end_of_a_volume_stays() {
    let folder = Folder::new("behind");
    let path = folder.file();
    let bytes: Vec<u8> = (0..1_u32 << 18).flat_map(|word| (word | 1 << 31).to_le_bytes()).collect();
    std::fs::write(&path, &bytes).expect("a file");
    // Blocks of the file system, and the middle of one.
    for size in [4096, 8192, 10240, 1 << 19] {
        let options = Options { size: Some(size), grows: true, ..OPTIONS };
        let volume = FileVolume::new(&path, &options).expect("the rest is not used");
        assert_eq!(volume.traits().size, size);
        assert!(std::fs::read(&path).expect("it is there") == bytes, "{size}");
    }
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let folder = Folder::new("kinds");
    assert!(matches!(FileVolume::new(&folder.0, &as_it_is(OPTIONS)), Err(Refusal::Directory)));
    let read_only = Options { read_only: true, ..as_it_is(OPTIONS) };
    assert!(matches!(FileVolume::new(&folder.0, &read_only), Err(Refusal::Directory)));
    assert!(matches!(FileVolume::new(&folder.0.join("none/disk.img"), &OPTIONS), Err(Refusal::NoFolder)));
    assert!(matches!(FileVolume::new(Path::new("/dev/null"), &as_it_is(OPTIONS)), Err(Refusal::NotRegular)));
    let pipe = folder.0.join("pipe");
    if Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()) {
        for options in [as_it_is(OPTIONS), read_only] {
            assert!(matches!(FileVolume::new(&pipe, &options), Err(Refusal::NotRegular)));
        }
    }
}

#[test]
fn one_writer_or_many_readers() {
    let folder = Folder::new("lock");
    let path = folder.file();
    let read_only = Options { read_only: true, ..OPTIONS };
    let writer = FileVolume::new(&path, &OPTIONS).expect("made");
    for options in [OPTIONS, read_only] {
        let refused = FileVolume::new(&path, &options);
        assert!(matches!(refused, Err(Refusal::Locked { pid: Some(pid) }) if pid == std::process::id()), "{refused:?}");
    }
    let other = writer.clone();
    drop(writer);
    assert!(FileVolume::new(&path, &OPTIONS).is_err(), "a clone holds the lock as well");
    drop(other);
    let readers = [(); 2].map(|()| FileVolume::new(&path, &read_only).expect("any number"));
    assert!(readers[0].traits().read_only && readers[0].traits().unmap_granularity == 0);
    assert!(matches!(FileVolume::new(&path, &OPTIONS), Err(Refusal::Locked { .. })));
    drop(readers);
    drop(FileVolume::new(&path, &OPTIONS).expect("nobody is left"));
    let shared = Options { shared: true, ..OPTIONS };
    let writers = [(); 2].map(|()| FileVolume::new(&path, &shared).expect("they know of each other"));
    assert!(matches!(FileVolume::new(&path, &OPTIONS), Err(Refusal::Locked { .. })), "who does not know is refused");
    drop(writers);
    let alone = FileVolume::new(&path, &OPTIONS).expect("nobody is left");
    assert!(matches!(FileVolume::new(&path, &shared), Err(Refusal::Locked { .. })));
    drop(alone);
}

#[test]
fn who_cannot_have_a_file_alone_goes_on_sharing_it() {
    let folder = Folder::new("strengthen");
    let path = folder.file();
    let shared = Options { shared: true, ..OPTIONS };
    let ours = FileVolume::new(&path, &shared).expect("made");
    let theirs = FileVolume::new(&path, &shared).expect("they know of each other");
    for refused in [ours.reopen(&path, &OPTIONS), ours.sharing(false)] {
        assert!(matches!(refused, Err(Refusal::Locked { .. })), "{refused:?}");
        assert!(matches!(theirs.sharing(false), Err(Refusal::Locked { .. })), "ours is there still");
    }
    drop(theirs);
    assert!(matches!(FileVolume::new(&path, &OPTIONS), Err(Refusal::Locked { .. })), "it is shared still");
    drop(FileVolume::new(&path, &shared).expect("with whom it was shared before"));
    let alone = ours.sharing(false).expect("nobody else has it");
    assert!(matches!(FileVolume::new(&path, &shared), Err(Refusal::Locked { .. })), "alone before it is settled");
    // It does not come to it.
    ours.finalize();
    drop(FileVolume::new(&path, &shared).expect("as before"));
    drop((ours, alone));
}

#[test]
fn a_lock_is_weaker_only_once_that_is_settled() {
    let folder = Folder::new("settle");
    let path = folder.file();
    let shared = Options { shared: true, ..OPTIONS };
    let alone = FileVolume::new(&path, &OPTIONS).expect("made");
    let changes: [&dyn Fn() -> Result<FileVolume, Refusal>; 2] =
        [&|| alone.reopen(&path, &shared), &|| alone.sharing(true)];
    for change in changes {
        let ours = change().expect("it is ours");
        assert!(matches!(FileVolume::new(&path, &shared), Err(Refusal::Locked { .. })), "not yet");
        ours.finalize();
        let theirs = FileVolume::new(&path, &shared).expect("they know of each other");
        assert!(matches!(FileVolume::new(&path, &OPTIONS), Err(Refusal::Locked { .. })));
        drop(theirs);
        alone.finalize();
        assert!(matches!(FileVolume::new(&path, &shared), Err(Refusal::Locked { .. })), "alone again");
    }
}

#[test]
fn an_identity_stays_with_its_file_and_a_copy_gets_its_own() {
    let folder = Folder::new("mark");
    let path = folder.file();
    let mark = |path: &Path, options: Options| FileVolume::new(path, &options).expect("it opens").mark().clone();
    let first = mark(&path, OPTIONS);
    let Mark::Stored(number) = &first else { return eprintln!("skipped: no extended attributes here") };
    assert_eq!(mark(&path, OPTIONS), first);
    assert_eq!(mark(&path, Options { read_only: true, ..OPTIONS }), first);
    let moved = folder.0.join("moved.img");
    std::fs::rename(&path, &moved).expect("a new name");
    assert_eq!(mark(&moved, OPTIONS), first, "a name is not who it is");
    let copy = folder.0.join("copy.img");
    assert!(Command::new("cp").arg("-a").args([&moved, &copy]).status().expect("cp").success());
    let read_only = mark(&copy, Options { read_only: true, ..OPTIONS });
    assert!(matches!(&read_only, Mark::Place(place) if place.ends_with("/copy.img")), "{read_only:?}");
    let second = mark(&copy, OPTIONS);
    assert!(matches!(second, Mark::Stored(other) if other != *number));
    assert_eq!(mark(&copy, OPTIONS), second);
    assert_eq!(mark(&moved, OPTIONS), first);
    // An operator may write the attribute.
    let file = File::open(&moved).expect("it is there");
    let mut value = [0; 100];
    let len = fgetxattr(&file, ATTRIBUTE, &mut value[..]).expect("it was written");
    let text = String::from_utf8(value[..len].to_vec()).expect("text");
    let inode = copy.metadata().expect("it is there").ino();
    let text = format!("{} {inode}", text.split_once(' ').expect("two words").0);
    let file = File::options().write(true).open(&copy).expect("it is there");
    fsetxattr(&file, ATTRIBUTE, text.as_bytes(), XattrFlags::empty()).expect("written");
    assert_eq!(mark(&copy, OPTIONS), first);
}

#[test]
fn permissions_are_told_from_absence() {
    let folder = Folder::new("rights");
    let path = folder.file();
    drop(FileVolume::new(&path, &OPTIONS).expect("made"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).expect("ours");
    if rustix::process::geteuid().is_root() {
        return eprintln!("skipped: root may do everything");
    }
    assert!(matches!(FileVolume::new(&path, &OPTIONS), Err(Refusal::NotPermitted)));
    assert!(FileVolume::new(&path, &Options { read_only: true, ..OPTIONS }).is_ok());
}

#[test]
fn refusals_are_sentences() {
    for refusal in [
        Refusal::Missing,
        Refusal::NoFolder,
        Refusal::Directory,
        Refusal::NotRegular,
        Refusal::NotPermitted,
        Refusal::ReadOnlyFileSystem,
        Refusal::Locked { pid: Some(7) },
        Refusal::Locked { pid: None },
        Refusal::Empty,
        Refusal::Uneven { size: 1000 },
        Refusal::OtherSize { size: 1000 },
        Refusal::NoDirect,
        Refusal::DirectBlocks { needs: 4096 },
    ] {
        let text = refusal.to_string();
        assert!(text.contains(' ') && !text.ends_with('.'), "{text}");
    }
}

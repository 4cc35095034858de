use super::*;
use crate::tests::Folder;
use lunar_engine::origin::{Arguments, Origin};
use rustix::io::Errno;

static COMMAND_LINE: Origin = Origin::CommandLine(Arguments::none());

fn request(path: &Path) -> StoreRequest<'_> {
    StoreRequest::of_command_line("disk", &COMMAND_LINE, Some(path))
}

#[test]
fn a_protection_file_is_made_once_and_never_taken() {
    let folder = Folder::new("protection");
    let path = folder.file();
    std::fs::write(&path, [0; 1 << 20]).expect("a file");
    let beside = with_suffix(&path);
    let volume = request(&path);
    let file = |size, is_new| protection_file(&ProtectionRequest { volume: &volume, size, is_new });
    let refused = |size, is_new| file(size, is_new).expect_err("refused").to_string();
    let made = file(16384, true).expect("made");
    assert_eq!((made.traits().size, std::fs::metadata(&beside).expect("there").len()), (16384, 16384));
    assert!(refused(16384, false).contains("already served"));
    drop(made);
    assert!(refused(16384, true).contains("move it away"));
    assert!(refused(20480, false).contains("--block-size"));
    assert!(file(16384, false).is_ok());
}

#[test]
fn an_operator_who_may_not_write_a_file_is_told_what_to_do() {
    let folder = Folder::new("rights");
    let (there, missing) = (folder.file(), folder.file().with_file_name("none.img"));
    std::fs::write(&there, [0; 4096]).expect("ours");
    // As the kernel says it to other users: root may do everything.
    for errno in [Errno::ACCESS, Errno::PERM] {
        let told = |path: &Path, read_only| {
            let request = StoreRequest { read_only, ..request(path) };
            FileError::new(path, FileRefusal::from(errno), &request).to_string()
        };
        let name = there.display();
        let sentence =
            format!("this user may not write {name}: serve it with --read-only, or permit it: chmod u+w {name}");
        assert_eq!(told(&there, false), sentence);
        let sentence = format!("{name} may not be read and written by this user; `ls -l {name}` shows its permissions");
        assert_eq!(told(&there, true), sentence);
        let (name, parent) = (missing.display(), missing.parent().expect("a folder").display());
        let sentence = format!("this user may not create {name} in {parent}: choose another folder");
        assert_eq!(told(&missing, false), sentence);
    }
}

#[test]
fn a_refusal_uses_the_words_of_its_origin() {
    let folder = Folder::new("words");
    let path = folder.file();
    let told = |origin, why| FileError::new(&path, why, &StoreRequest { origin, ..request(&path) }).to_string();
    let name = path.display();
    assert!(told(&COMMAND_LINE, FileRefusal::Missing).ends_with(&format!("{name}:20G")));
    assert!(told(&Origin::Configuration, FileRefusal::Missing).ends_with("add the key `size`, so that it is created"));
    assert!(told(&COMMAND_LINE, FileRefusal::NoDirect).ends_with("leave out --direct"));
    assert!(told(&Origin::Configuration, FileRefusal::NoDirect).ends_with("leave out `direct`"));
}

#[test]
fn the_jail_allows_the_folder_as_long_as_a_file_is_missing() {
    let folder = Folder::new("jail");
    let path = folder.file();
    let above = path.parent().expect("a folder").to_owned();
    let create = |is_protected| FileBackend.jail_paths(&path, is_protected).create;
    assert_eq!(create(false), std::slice::from_ref(&above));
    std::fs::write(&path, [0; 512]).expect("a file");
    assert_eq!((create(false), create(true)), (vec![], vec![above]));
    std::fs::write(with_suffix(&path), [0; 512]).expect("a file");
    assert_eq!(create(true), Vec::<PathBuf>::new());
    assert_eq!(FileBackend.jail_paths(&path, true).write, [with_suffix(&path), path.clone()]);
}

#[test]
fn the_mark_of_a_volume_is_known_before_it_is_opened() {
    let folder = Folder::new("mark");
    let path = folder.file();
    std::fs::write(&path, [0; 4096]).expect("a file");
    let opened = |read_only| {
        let opened = FileBackend.open(&StoreRequest { read_only, ..request(&path) }, None).expect("it opens");
        opened.store().and_then(|store| store.mark()).expect("a file has a mark")
    };
    // Without writing, the file gets no mark, and its place is its mark.
    assert_eq!(FileBackend.mark_at(&path, true), Some(opened(true)));
    let mark = opened(false);
    assert_eq!((FileBackend.mark_at(&path, false), FileBackend.mark_at(&path, true)), (Some(mark.clone()), Some(mark)));
}

#[test]
fn a_file_is_the_one_before_only_by_its_number_its_birth_and_its_device() {
    let number = mark::Mark::Stored([7; 16]);
    let device = || Some("wwid naa.5".to_owned());
    let known = compose(&number, Some((1, 5)), device()).expect("it has a number");
    assert_eq!(known.origin.as_deref(), Some("created 1.000000005, wwid naa.5"));
    for (created, device) in [(None, device()), (Some((1, 5)), None), (None, None)] {
        let found = compose(&number, created, device).expect("it has a number");
        assert_eq!((&found.mark, found.origin), (&known.mark, None));
    }
    assert_eq!(compose(&mark::Mark::Place("7 8 /disk.img".to_owned()), Some((1, 5)), device()), None);
}

#[test]
fn the_fingerprint_of_an_open_file_is_its_own_whatever_is_at_its_path() {
    let folder = Folder::new("fingerprint");
    let path = folder.file();
    let made = |path: &Path| {
        std::fs::write(path, [0; 4096]).expect("a file");
        FileBackend.open(&request(path), None).expect("it opens")
    };
    let print = |opened: &Opened| opened.store().and_then(|store| store.fingerprint());
    let opened = made(&path);
    let known = print(&opened);
    if known.is_none() {
        return eprintln!("skipped: no extended attributes here");
    }
    assert_eq!(FileBackend.fingerprint(&path, false), known);
    std::fs::rename(&path, path.with_extension("moved")).expect("it is there");
    let other = made(&path);
    assert_ne!(print(&other), known);
    assert_eq!(print(&opened), known);
}

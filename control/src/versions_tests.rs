use super::*;
use crate::testing::SAMPLE;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that is removed at the end of the test.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lunar-control-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("lunar.toml")
    }

    fn open(&self) -> Versions {
        self.try_open().expect("it can be read")
    }

    fn try_open(&self) -> Result<Versions, Trouble> {
        Versions::open(&self.file(), &self.0.join("history"), at(1))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn list(versions: &Versions) -> Vec<(u64, u64, String)> {
    versions.list().expect("a list").into_iter().map(|Version { number, time, who }| (number, time, who)).collect()
}

#[test]
fn every_version_is_kept_with_time_and_author() {
    let place = Place::new();
    let mut versions = place.open();
    assert_eq!((versions.text(), list(&versions).len()), ("", 0));
    versions.write("# 1\n", "ann@host", at(10)).expect("it is written");
    versions.write("# 2\n", "bob, the builder/..", at(20)).expect("it is written");
    let kept = [(1, 10, "ann@host".into()), (2, 20, "bob__the_builder_..".into())];
    assert_eq!(list(&versions), kept);
    assert_eq!(std::fs::read_to_string(place.file()).expect("a file"), "# 2\n");
    assert_eq!(versions.text_of(1).expect("it is kept"), "# 1\n");
    assert!(matches!(versions.text_of(3), Err(Trouble::NoVersion(3))));
    // Back to the first.
    let first = versions.text_of(1).expect("it is kept");
    versions.write(&first, "ann@host", at(30)).expect("it is written");
    assert_eq!((place.open().text(), list(&place.open()).len()), ("# 1\n", 3));
}

#[test]
fn an_edit_of_the_file_is_a_version() {
    let place = Place::new();
    let mut versions = place.open();
    versions.write("# 1\n", "ann", at(10)).expect("it is written");
    std::fs::write(place.file(), "# by hand\n").expect("a file");
    assert!(matches!(versions.write("# 2\n", "ann", at(20)), Err(Trouble::Changed(_))));
    assert_eq!(std::fs::read_to_string(place.file()).expect("a file"), "# by hand\n");
    reload(&mut versions, 30);
    assert_eq!(versions.text(), "# by hand\n");
    assert_eq!(list(&versions).last(), Some(&(2, 30, "editor".into())));
    versions.write("# 2\n", "ann", at(40)).expect("it is written");
    assert_eq!(list(&versions).len(), 3);
}

fn reload(versions: &mut Versions, seconds: u64) {
    versions.reload().and_then(|_| versions.adopt(at(seconds))).expect("it can be read");
}

#[test]
fn a_text_is_in_the_history_once_it_is_in_force() {
    let place = Place::new();
    let mut versions = place.open();
    versions.write("# 1\n", "ann", at(10)).expect("it is written");
    std::fs::write(place.file(), "# by hand\n").expect("a file");
    let before = versions.reload().expect("it can be read");
    assert_eq!((before.text(), versions.text()), ("# 1\n", "# by hand\n"));
    assert_eq!(list(&versions).last(), Some(&(1, 10, "ann".into())));
    versions.adopt(at(30)).expect("it is written");
    assert_eq!(list(&versions).last(), Some(&(2, 30, "editor".into())));
    versions.adopt(at(40)).expect("it is there");
    assert_eq!(list(&versions).len(), 2);
}

#[test]
fn old_versions_are_forgotten() {
    let place = Place::new();
    let mut versions = place.open();
    for n in 0..VERSIONS_MAX + 5 {
        versions.write(&format!("# {n}\n"), "ann", at(n as u64)).expect("it is written");
    }
    let kept = list(&versions);
    assert_eq!((kept.len(), kept[0].0, kept[kept.len() - 1].0), (VERSIONS_MAX, 6, VERSIONS_MAX as u64 + 5));
}

#[test]
fn hosts_push_out_nothing_that_others_wrote() {
    let place = Place::new();
    let mut versions = place.open();
    versions.write("# ann\n", "ann", at(0)).expect("it is written");
    for n in 0..VERSIONS_MAX + 5 {
        versions.write(&format!("# {n}\n"), &format!("{BY_HOST}nqn.x"), at(n as u64)).expect("it is written");
    }
    let kept = list(&versions);
    assert_eq!((kept.len(), &kept[0]), (VERSIONS_BY_HOSTS_MAX + 1, &(1, 0, "ann".into())));
    assert_eq!(kept[1].0, (VERSIONS_MAX + 5 - VERSIONS_BY_HOSTS_MAX) as u64 + 2);
}

#[test]
fn permissions_and_links_stay() {
    let place = Place::new();
    let real = place.0.join("real.toml");
    std::fs::write(&real, "# 0\n").expect("a file");
    std::fs::set_permissions(&real, Permissions::from_mode(0o640)).expect("permissions");
    std::os::unix::fs::symlink(&real, place.file()).expect("a link");
    let mut versions = place.open();
    versions.write("# 1\n", "ann", at(1)).expect("it is written");
    let mode = |path: &Path| std::fs::symlink_metadata(path).expect("it is there").mode() & 0o170_777;
    assert_eq!(mode(&real), 0o100_640);
    assert_eq!(mode(&place.file()) & 0o170_000, 0o120_000);
    assert_eq!(mode(&place.0.join("history")), 0o040_700);
    for version in versions.list().expect("a list") {
        assert_eq!(mode(&place.0.join("history").join(version.file_name())), 0o100_600);
    }
    // A file that was not there is for its owner only.
    let place = Place::new();
    place.open().write("# 1\n", "ann", at(1)).expect("it is written");
    assert_eq!(mode(&place.file()), 0o100_600);
}

#[test]
fn one_writes_at_a_time() {
    let place = Place::new();
    let mut versions = place.open();
    let lock = versions.lock().expect("no other process writes");
    assert!(matches!(versions.write("# 1\n", "ann", at(1)), Err(Trouble::Busy(_))));
    assert!(matches!(place.try_open(), Err(Trouble::Busy(_))));
    drop(lock);
    versions.write("# 1\n", "ann", at(1)).expect("no other process writes");
}

#[test]
fn a_file_that_is_not_utf8_is_refused() {
    let place = Place::new();
    std::fs::write(place.file(), [0xff, 0xfe]).expect("a file");
    assert!(matches!(place.try_open(), Err(Trouble::NoText(_))));
    let place = Place::new();
    let large = "#".repeat(CONFIG_BYTES_MAX + 1);
    assert!(matches!(place.open().write(&large, "ann", at(1)), Err(Trouble::NoText(_))));
}

/// How often an editor writes while versions are written.
const EDITS: u64 = 300;

#[test]
fn a_rollback_keeps_the_version_that_was_in_force() {
    // The times of files have steps.
    let step = || std::thread::sleep(Duration::from_millis(30));
    let place = Place::new();
    let mut versions = place.open();
    for text in ["# 1\n", "# 2\n"] {
        versions.write(text, "ann", at(10)).expect("it is written");
    }
    let beside = place.0.join("kept");
    std::fs::write(&beside, "# 1\n").expect("a file");
    step();
    std::fs::rename(&beside, place.file()).expect("it is taken back");
    reload(&mut versions, 20);
    let who = |versions: &Versions| list(versions).into_iter().map(|(.., who)| who).collect::<Vec<_>>();
    assert_eq!((versions.text(), who(&versions)), ("# 1\n", ["ann", "ann", "editor"].map(String::from).into()));
    assert_eq!(versions.text_of(2).expect("it was in force"), "# 2\n");
    // One that never was in force goes.
    step();
    std::fs::write(
        place.0.join("history").join(Version { number: 4, time: 30, who: "bob".into() }.file_name()),
        "# 3\n",
    )
    .expect("a file");
    let again = place.open();
    assert_eq!((again.text(), list(&again).len()), ("# 1\n", 3));
}

/// Replaces the file several times, as editors do. Returns the text that each edit replaced.
fn edit_again_and_again(file: &Path) -> Vec<String> {
    let beside = file.with_extension("editor");
    let edit = |number: u64| {
        std::thread::sleep(Duration::from_micros(number * 7919 % 3000));
        std::fs::write(&beside, format!("# edit {number}\n")).expect("it is written");
        renameat_with(CWD, &beside, CWD, file, RenameFlags::EXCHANGE).expect("it takes its place");
        std::fs::read_to_string(&beside).expect("what was there")
    };
    (0..EDITS).map(edit).collect()
}

#[test]
fn an_edit_at_any_moment_is_read_before_anything_is_written_over_it() {
    let place = Place::new();
    let mut versions = place.open();
    versions.write("# 0\n", "ann", at(1)).expect("it is written");
    let file = place.file();
    let editor = std::thread::spawn(move || edit_again_and_again(&file));
    let (mut seen, mut taken, mut refused) = (Vec::new(), Vec::new(), 0);
    for number in 1.. {
        let text = format!("# {number}\n");
        match versions.write(&text, "ann", at(1)) {
            Ok(()) => taken.push(text),
            Err(Trouble::Changed(_)) => {
                refused += 1;
                reload(&mut versions, 1);
                seen.push(versions.text().to_owned());
            }
            Err(why) => panic!("{why}"),
        }
        if editor.is_finished() {
            break;
        }
    }
    reload(&mut versions, 1);
    seen.push(versions.text().to_owned());
    let replaced = editor.join().expect("it ends");
    for number in 0..EDITS {
        let text = format!("# edit {number}\n");
        // The next edit came while this one was put back, and is in its place: nothing of ours was in between.
        let next = replaced.get(number as usize + 1);
        let is_known = seen.contains(&text) || replaced.contains(&text) || next.is_some_and(|it| !taken.contains(it));
        assert!(is_known, "edit {number} is lost");
    }
    assert!(refused > 10, "they met {refused} times only");
}

#[test]
fn an_edit_during_a_write_is_restored() {
    let place = Place::new();
    let (new, file) = (place.0.join("lunar.toml.new"), place.file());
    let put = |path: &Path, text: &str| std::fs::write(path, text).expect("a file");
    let text = |path: &Path| std::fs::read_to_string(path).ok();
    let of = |before: &str| {
        let ours = NewFile::write(&file, Access::AtMost(0o600), |file| file.write_all(b"ours")).expect("a file");
        let done = take_the_place(&ours, &file, before, "ours").is_ok();
        drop(ours);
        (done, text(&file), text(&new))
    };
    let is = |text: &str| Some(text.to_owned());
    assert_eq!(of("before"), (false, None, None), "it is gone");
    assert_eq!(of(""), (true, is("ours"), None), "there was none");
    put(&file, "an edit");
    assert_eq!(of("before"), (false, is("an edit"), None));
    assert_eq!(of("an edit"), (true, is("ours"), None));
    // Twice: once more while the first goes back.
    put(&new, "the first edit");
    put(&file, "the second edit");
    let exchange = |flags| renameat_with(CWD, &new, CWD, &file, flags);
    back(&exchange, &|| text(&new), "ours").expect("it goes back");
    assert_eq!(text(&file).as_deref(), Some("the second edit"));
    // And another between the two: the last of them stays.
    put(&new, "the first edit");
    put(&file, "the second edit");
    let times = std::cell::Cell::new(0);
    let exchange = |flags| {
        times.set(times.get() + 1);
        renameat_with(CWD, &new, CWD, &file, flags)?;
        if times.get() == 1 {
            put(&file, "the third edit");
        }
        Ok(())
    };
    back(&exchange, &|| text(&new), "ours").expect("it goes back");
    assert_eq!(text(&file).as_deref(), Some("the third edit"));
}

/// A text that takes several writes. It is complete if its last line is equal to its first.
fn page(number: u64) -> String {
    format!("# {number}\n{}# {number}\n", "# so that a write takes a while\n".repeat(600))
}

fn number_of(text: &str) -> u64 {
    let first = text.lines().next().and_then(|line| line.strip_prefix("# ")?.parse().ok());
    let number = first.unwrap_or_else(|| panic!("no version: {:?}", &text[..text.len().min(80)]));
    assert_eq!(text, page(number), "half a version");
    number
}

/// Times that a writer is killed.
const KILLS: u32 = 200;
/// Tells a writer where to write; the test runs itself as one.
const WRITER: &str = "LUNAR_TEST_WRITER";

fn writer(place: &Place) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("a program"));
    command.args([
        "--exact",
        "versions::tests::a_kill_leaves_one_version_or_the_other",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env(WRITER, &place.0).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a process")
}

/// Writes one version after the other, and says which one is written, until it is killed.
fn write_for_ever(place: &Path) {
    let mut versions = Versions::open(&place.join("lunar.toml"), &place.join("history"), at(1)).expect("a file");
    for number in number_of(versions.text()) + 1.. {
        versions.write(&page(number), "writer", at(number)).expect("it is written");
        println!("\nwritten {number}");
    }
}

#[test]
fn a_kill_leaves_one_version_or_the_other() {
    if let Some(place) = std::env::var_os(WRITER) {
        write_for_ever(Path::new(&place));
        return;
    }
    let place = Place::new();
    place.open().write(&page(0), "ann", at(1)).expect("it is written");
    let mut dice = 0x9e37_79b9_u32;
    for _ in 0..KILLS {
        let mut child = writer(&place);
        let mut out = io::BufReader::new(child.stdout.take().expect("its output"));
        // It is at work once it has said so.
        let mut line = String::new();
        while !line.starts_with("written") {
            line.clear();
            assert_ne!(io::BufRead::read_line(&mut out, &mut line).expect("a line"), 0, "the writer has ended");
        }
        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        std::thread::sleep(Duration::from_micros(u64::from(dice >> 20)));
        child.kill().expect("it runs");
        let mut rest = String::new();
        out.read_to_string(&mut rest).expect("what it said");
        child.wait().expect("it has ended");
        let said = (line + &rest).lines().filter_map(|line| line.strip_prefix("written ")?.parse().ok()).max();
        let said: u64 = said.expect("it has said so");
        let versions = place.open();
        let there = number_of(versions.text());
        assert!(there == said || there == said + 1, "{said} was written, {there} is there");
        // The last version of the history is in force, and all versions are complete.
        let list = versions.list().expect("a list");
        let newest = list.last().expect("it is not empty").number;
        assert_eq!(number_of(&versions.text_of(newest).expect("it is kept")), there);
        assert!(list.len() <= VERSIONS_MAX);
    }
    let versions = place.open();
    for version in versions.list().expect("a list") {
        number_of(&versions.text_of(version.number).expect("it is kept"));
    }
}

#[test]
fn differences_hide_secrets() {
    let text = "[user.u]\nsecret = 'correct horse' # mine\n[user.v]\nsecret = { file = '/x' }\n[api-token.t]\n\
                secret = 'battery staple'\nrole = 'read'\n";
    let more = format!("{text}[limits]\nsessions = 7\n");
    assert!(
        difference(&SAMPLE, text, &more).contains("\n+[limits]\n+sessions = 7\n"),
        "{}",
        difference(&SAMPLE, text, &more)
    );
    assert_eq!(difference(&SAMPLE, text, text), "");
}

#[test]
fn the_names_of_new_folders_are_on_the_medium() {
    let place = Place::new();
    let (above, folder) = (place.0.join("state"), place.0.join("state/history"));
    let mut synced = Vec::new();
    let mut create = || {
        synced.clear();
        create_and(&folder, |folder| {
            synced.push(folder.to_owned());
            sync_folder_of(folder)
        })
        .expect("it can be made");
        synced.clone()
    };
    assert_eq!(create(), [folder.clone(), above.clone()]);
    assert_eq!(create(), Vec::<PathBuf>::new(), "it is there");
    std::fs::remove_dir(&folder).expect("it is empty");
    assert_eq!(create(), std::slice::from_ref(&folder));
    std::fs::remove_dir(&folder).expect("it is empty");
    let failed = create_and(&folder, |_| Err(io::ErrorKind::StorageFull.into()));
    assert!(matches!(failed, Err(Trouble::Disk(..))), "{failed:?}");
}

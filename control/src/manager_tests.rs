use super::*;
use crate::check::{Machine, Marked};
use crate::config::Kind;
use crate::document::Keys;
use crate::model::Volume;
use crate::rehearsal::Rehearsal;
use crate::value::Textual;
use serde_json::json;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

struct Place(PathBuf);

impl Place {
    fn new(text: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lunar-manager-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        std::fs::write(path.join("lunar.toml"), text).expect("a file");
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("lunar.toml")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.file()).expect("a file")
    }

    fn start(&self) -> Manager<Rehearsal, Machine> {
        self.start_without(&[]).expect("it starts")
    }

    /// While these volumes are away.
    fn start_without(&self, volumes: &[&str]) -> Result<Manager<Rehearsal, Machine>, Failure> {
        let outside = Machine { config: self.file() };
        let mut running = Rehearsal::new();
        running.away = named(volumes);
        Manager::start(&self.file(), &self.0.join("state"), outside, running, at(1), &mut |_, _| false)
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

fn uuid(manager: &Manager<Rehearsal, Machine>, volume: &str) -> Uuid {
    manager.current().config.volumes[volume].uuid.expect("it has one")
}

fn named(volumes: &[&str]) -> BTreeSet<ObjectId> {
    volumes.iter().map(|name| ObjectId::volume(name)).collect()
}

fn set(name: &str, keys: serde_json::Value) -> Edit {
    Edit::Set { kind: Kind::Volume, name: name.into(), keys: Keys(keys.as_object().cloned().expect("an object")) }
}

const TEXT: &str = "# mine\n[volume.a] # a\nkind = 'ram'\nsize = '1M'\n";

#[test]
fn a_volume_is_the_same_for_ever() {
    let place = Place::new(TEXT);
    let first = uuid(&place.start(), "a");
    assert!(place.text().starts_with(TEXT) && place.text().contains("\nuuid = \""), "{}", place.text());
    let mut manager = place.start();
    assert_eq!(uuid(&manager, "a"), first);
    // Somebody brings a file from elsewhere, in which it has none.
    std::fs::write(place.file(), TEXT.replace("1M", "2M")).expect("a file");
    let plan = manager.reload(at(2)).expect("it is right");
    assert_eq!(plan.to_string(), "change volume a: size 1M -> 2M");
    assert_eq!(uuid(&manager, "a"), first);
    // Another volume of the same name is another one.
    let other = TEXT.replace("'ram'", "'null'");
    manager.replace(&other, "ann", at(3)).expect("it is right");
    assert_ne!(uuid(&manager, "a"), first);
    manager.replace(TEXT, "ann", at(4)).expect("it is right");
    assert_eq!(uuid(&manager, "a"), first);
}

#[test]
fn edits_change_what_runs_and_the_file() {
    let place = Place::new(TEXT);
    let mut manager = place.start();
    let before = place.text();
    let edits = [set("a", json!({ "size": "4M" }))];
    assert_eq!(manager.plan_edits(&edits).expect("it makes sense").changes.len(), 1);
    let plan = manager.change(&edits, "ann", at(5)).expect("it can be made");
    assert_eq!(plan.to_string(), "change volume a: size 1M -> 4M");
    assert_eq!(place.text(), before.replace("'1M'", "\"4M\""));
    // What starts again finds what ran.
    assert_eq!(*manager.running(), *place.start().running());
    // Back again, by its number in the history.
    let version = manager.versions().list().expect("a list").iter().rev().nth(1).map(|version| version.number);
    let plan = manager.restore(version.expect("two at least"), "ann", at(6)).expect("it can be made");
    assert_eq!((plan.to_string().as_str(), place.text()), ("change volume a: size 4M -> 1M", before));
}

#[test]
fn what_is_in_the_way_changes_nothing() {
    let place = Place::new(TEXT);
    let mut manager = place.start();
    let (before, current) = (place.text(), manager.current().clone());
    let wrong = manager.change(&[set("a", json!({ "size": "1X" }))], "ann", at(5));
    assert!(matches!(wrong, Err(Failure::Invalid(_))), "{wrong:?}");
    let wrong = manager.change(&[set("b", json!({ "size": "1M" }))], "ann", at(5));
    assert!(matches!(wrong, Err(Failure::Edit(_))), "{wrong:?}");
    manager.running().fails_at = Some(0);
    let edits = [set("a", json!({ "size": "4M" }))];
    let wrong = manager.change(&edits, "ann", at(5)).expect_err("it was told to fail");
    let words = "cannot change volume a: size 1M -> 4M: it was told to fail; nothing was changed";
    assert_eq!(wrong.to_string(), words);
    assert_eq!((place.text(), manager.current()), (before.clone(), &current));
    manager.running().fails_at = None;
    // Somebody writes the file meanwhile.
    std::fs::write(place.file(), format!("{before}# more\n")).expect("a file");
    let wrong = manager.change(&edits, "ann", at(6)).expect_err("it has changed");
    assert!(wrong.to_string().contains("changed by somebody else"), "{wrong}");
    assert_eq!((place.text(), manager.current()), (format!("{before}# more\n"), &current));
    manager.reload(at(7)).expect("it is right");
    manager.change(&edits, "ann", at(8)).expect("it can be made");
    assert!(place.text().ends_with("# more\n") && place.text().contains("\"4M\""), "{}", place.text());
}

#[test]
fn an_edit_while_it_starts_is_kept_and_comes_with_the_next_reload() {
    let place = Place::new(TEXT);
    let edited = TEXT.replace("1M", "2M");
    // Somebody edits the file as soon as a volume is looked at.
    let edit = |_: &Volume| {
        std::fs::write(place.file(), &edited).expect("a file");
        None
    };
    let outside = Marked(Machine { config: place.file() }, edit);
    let state = place.0.join("state");
    let started = Manager::start(&place.file(), &state, outside, Rehearsal::new(), at(1), &mut |_, _| false);
    let mut manager = started.expect("an edit keeps nothing from starting");
    assert_eq!(place.text(), edited);
    let first = manager.current().config.volumes["a"].uuid;
    // What it has read is in force, and nothing is written over the edit.
    let wrong = manager.change(&[set("a", json!({ "size": "4M" }))], "ann", at(2)).expect_err("it has changed");
    assert!(wrong.to_string().contains("changed by somebody else"), "{wrong}");
    let plan = manager.reload(at(3)).expect("it is right");
    assert_eq!(plan.to_string(), "change volume a: size 1M -> 2M");
    assert!(place.text().starts_with(&edited) && place.text().contains("uuid"), "{}", place.text());
    assert_eq!(manager.current().config.volumes["a"].uuid, first);
}

#[test]
fn what_was_served_before_is_expected_when_it_starts_again() {
    let place = Place::new(TEXT);
    let mut first = place.start();
    assert_eq!(first.running().expected, BTreeSet::new());
    let known = uuid(&first, "a").text();
    drop(first);
    std::fs::write(place.file(), place.text() + "[volume.b]\nkind = 'ram'\nsize = '1M'\n").expect("a file");
    assert_eq!(place.start().running().expected, ["a".to_owned()].into());
    // Under another UUID it is another one.
    let other = place.text().replace(&known, "f81d4fae-7dec-41d0-a765-00a0c91e6b00");
    std::fs::write(place.file(), other).expect("a file");
    assert_eq!(place.start().running().expected, ["b".to_owned()].into());
}

/// Volumes in files, one after the other.
fn files(names: &[&str]) -> String {
    names.iter().map(|name| format!("[volume.{name}]\nkind = 'file'\npath = '/srv/{name}'\nsize = '1M'\n")).collect()
}

#[test]
fn what_is_away_keeps_nobody_from_the_rest() {
    let place = Place::new(&files(&["a", "b", "d"]));
    let text = place.text();
    // What nobody has served yet may be a slip of the pen.
    let why = place.start_without(&["b"]).expect_err("it is away").to_string();
    assert!(why.contains("cannot create volume b") && why.contains("it is away"), "{why}");
    assert_eq!(place.text(), text);
    drop(place.start());
    let mut manager = place.start_without(&["a", "b"]).expect("both were served before");
    let absent = |manager: &Manager<Rehearsal, Machine>| manager.absent().keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(absent(&manager), named(&["a", "b"]));
    let told: Vec<String> = manager.away().collect();
    assert!(told[0].starts_with("volume a is not served: it is away") && told.len() == 2, "{told:?}");
    assert_eq!(manager.current().config.volumes.len(), 3, "they are configured as before");
    assert!(manager.hold_still("a").is_none(), "nobody knows what is in it");
    // Whatever else is changed is changed.
    let more = place.text() + &files(&["c"]);
    let plan = manager.replace(&more, "ann", at(2)).expect("it is right");
    assert_eq!(plan.to_string(), "create volume c (1 MiB file /srv/c)");
    assert_eq!((absent(&manager), manager.running().settled), (named(&["a", "b"]), 2));
    // One of them is back, but may be half of a copy: who changes something else does not mean it.
    manager.running().away = named(&["b"]);
    let edits = [set("d", json!({ "size": "2M" }))];
    let plan = manager.plan_edits(&edits).expect("they are right");
    assert_eq!(plan.to_string(), "change volume d: size 1M -> 2M");
    assert_eq!(manager.change(&edits, "ann", at(2)).expect("they are right"), plan);
    assert_eq!(absent(&manager), named(&["a", "b"]));
    manager.running().away = named(&["a", "b"]);
    // Who changes what is away wants it to be there now.
    let why = manager.change(&[set("a", json!({ "size": "2M" }))], "ann", at(3)).expect_err("it is away");
    assert!(why.to_string().contains("it is away"), "{why}");
    // Somebody says that it is back.
    manager.running().away = named(&["b"]);
    let plan = manager.reload(at(4)).expect("nothing else is in the way");
    assert_eq!((plan.to_string(), absent(&manager)), ("create volume a (1 MiB file /srv/a)".into(), named(&["b"])));
    // What is not wanted any more is not waited for.
    let others = place.text().replace("[volume.b]", "[volume.e]").replace("/srv/b", "/srv/e");
    std::fs::write(place.file(), others).expect("a file");
    manager.reload(at(5)).expect("it is right");
    assert_eq!(absent(&manager), BTreeSet::new());
}

#[test]
fn what_keeps_the_bytes_of_what_is_away_is_not_made_anew_whatever_it_is_called() {
    let place = Place::new(&files(&["a", "b"]));
    drop(place.start());
    let mut manager = place.start_without(&["a"]).expect("it was served before");
    manager.running().away.clear();
    let expected = |manager: &mut Manager<Rehearsal, Machine>| manager.running().expected.clone();
    // Changed, called otherwise, or just as it was: its file is somewhere. One elsewhere is another one.
    let text = place.text();
    for (change, wanted) in [
        (text.replacen("1M", "2M", 1), Some("a")),
        (text.replace("volume.a", "volume.other"), Some("other")),
        (text.clone(), Some("a")),
        (text.replace("/srv/a", "/srv/elsewhere"), None),
    ] {
        // Nothing of it comes to be; what is as it was is forgiven.
        manager.running().fails_at = Some(0);
        assert_eq!(manager.replace(&change, "ann", at(2)).is_ok(), change == text);
        assert_eq!(expected(&mut manager), wanted.map(str::to_owned).into_iter().collect(), "{change}");
    }
}

#[test]
fn what_is_refused_is_not_in_force_and_comes_with_nothing_else() {
    let place = Place::new(TEXT);
    let mut manager = place.start();
    let (before, current) = (place.text(), manager.current().clone());
    let edits = [set("a", json!({ "size": "4M" }))];
    let listed = |manager: &Manager<Rehearsal, Machine>| manager.versions().list().expect("a list");
    let versions = listed(&manager);
    // The one makes no sense, the other cannot be made.
    for size in ["1X", "2M"] {
        manager.running().fails_at = Some(0);
        std::fs::write(place.file(), before.replace("1M", size)).expect("a file");
        manager.reload(at(2)).expect_err("it is refused");
        assert_eq!((manager.versions().text(), manager.current()), (&*before, &current));
        assert_eq!(listed(&manager), versions);
        let told = manager.refused().expect("it is refused");
        assert!(told.contains("lunar.toml") && told.contains("lunar apply") && !told.contains('\n'), "{told}");
        manager.running().fails_at = None;
        let why = manager.change(&edits, "ann", at(3)).expect_err("the file is another");
        assert!(why.to_string().contains("changed by somebody else"), "{why}");
        assert_eq!(manager.current(), &current);
    }
    manager.reload(at(4)).expect("it can be made now");
    assert_eq!((manager.refused(), manager.versions().text()), (None, &*before.replace("1M", "2M")));
    assert_eq!(listed(&manager).last().map(|last| (last.time, &*last.who)), Some((4, "editor")));
    // Who takes his edit back is done with it, too.
    std::fs::write(place.file(), "wrong").expect("a file");
    manager.reload(at(5)).expect_err("it is no configuration");
    std::fs::write(place.file(), before.replace("1M", "2M")).expect("a file");
    assert!(manager.refused().is_some());
    manager.change(&edits, "ann", at(6)).expect("it can be made");
    assert_eq!(manager.refused(), None);
}

#[test]
fn a_file_that_is_missing_or_empty_removes_nothing() {
    let place = Place::new(TEXT);
    let mut manager = place.start();
    let (before, current) = (place.text(), manager.current().clone());
    for empty in [None, Some(""), Some(" \n")] {
        match empty {
            None => std::fs::remove_file(place.file()).expect("it was there"),
            Some(text) => std::fs::write(place.file(), text).expect("a file"),
        }
        let why = manager.reload(at(2)).expect_err("everything would be removed").to_string();
        assert!(why.contains("is missing or empty") && why.contains("newest file in"), "{why}");
        assert_eq!(manager.current(), &current);
        assert!(manager.refused().is_some_and(|told| told.contains("missing or empty")), "{:?}", manager.refused());
    }
    std::fs::write(place.file(), &before).expect("a file");
    manager.reload(at(3)).expect("the file is back");
    assert_eq!(manager.refused(), None);
}

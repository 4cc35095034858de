use super::*;
use crate::api::SessionView;
use crate::check::{LocalHost, Marked};
use crate::common_sections::Volume;
use crate::document::Keys;
use crate::fake_target::FakeTarget;
use crate::in_use::{AffectedHost, LostDisk};
use crate::kind::Kind;
use crate::plan::{Action, ObjectId};
use crate::redact::without_secrets;
use crate::scsi::{ScsiError, ScsiOrder};
use crate::testing::SAMPLE;
use crate::value::Textual;
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
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
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(path.join("lunar.toml"), mode).expect("our file");
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("lunar.toml")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.file()).expect("a file")
    }

    fn start(&self) -> Manager<FakeTarget, LocalHost> {
        self.start_without(&[]).expect("it starts")
    }

    /// Starts while these volumes are unavailable.
    fn start_without(&self, volumes: &[&str]) -> Result<Manager<FakeTarget, LocalHost>, Failure> {
        let outside = LocalHost { config: self.file() };
        let mut running = FakeTarget::new();
        running.unavailable = named(volumes);
        Manager::start(&SAMPLE, &self.file(), &self.0.join("state"), outside, running, at(1), &mut |_, _| false)
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

fn uuid(manager: &Manager<FakeTarget, LocalHost>, volume: &str) -> Uuid {
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
    // A file from elsewhere has no UUID for it.
    std::fs::write(place.file(), TEXT.replace("1M", "2M")).expect("a file");
    let plan = manager.reload(at(2), Force::No).expect("it is right");
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
fn edits_change_the_running_target_and_the_file() {
    let place = Place::new(TEXT);
    let mut manager = place.start();
    let before = place.text();
    let edits = [set("a", json!({ "size": "4M" }))];
    assert_eq!(manager.plan_edits(&edits).expect("it makes sense").changes.len(), 1);
    let plan = manager.change(&edits, "ann", at(5)).expect("it can be made");
    assert_eq!(plan.to_string(), "change volume a: size 1M -> 4M");
    assert_eq!(place.text(), before.replace("'1M'", "\"4M\""));
    // A restarted manager has the configuration that was running.
    assert_eq!(*manager.running(), *place.start().running());
    // Back again, by its number in the history.
    let version = manager.versions().list().expect("a list").iter().rev().nth(1).map(|version| version.number);
    let number = version.expect("two at least");
    let wanted = format!("nothing to do\nnote: volume a keeps its size 4M: it had 1M in version {number}");
    assert_eq!(manager.plan_restore(number).expect("it makes sense").to_string(), wanted);
    let plan = manager.restore(number, "ann", at(6)).expect("it can be made");
    assert_eq!((plan.to_string(), place.text()), (wanted, before.replace("'1M'", "\"4M\"")));
}

#[test]
fn a_change_that_fails_changes_nothing() {
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
    // Another program writes the file.
    std::fs::write(place.file(), format!("{before}# more\n")).expect("a file");
    let wrong = manager.change(&edits, "ann", at(6)).expect_err("it has changed");
    assert!(wrong.to_string().contains("changed by another program"), "{wrong}");
    assert_eq!((place.text(), manager.current()), (format!("{before}# more\n"), &current));
    manager.reload(at(7), Force::No).expect("it is right");
    manager.change(&edits, "ann", at(8)).expect("it can be made");
    assert!(place.text().ends_with("# more\n") && place.text().contains("\"4M\""), "{}", place.text());
}

#[test]
fn an_edit_while_it_starts_is_kept_and_comes_with_the_next_reload() {
    let place = Place::new(TEXT);
    let edited = TEXT.replace("1M", "2M");
    // An editor changes the file as soon as the identity of a volume is read.
    let edit = |_: &Volume| {
        std::fs::write(place.file(), &edited).expect("a file");
        None
    };
    let outside = Marked(LocalHost { config: place.file() }, edit);
    let state = place.0.join("state");
    let started = Manager::start(&SAMPLE, &place.file(), &state, outside, FakeTarget::new(), at(1), &mut |_, _| false);
    let mut manager = started.expect("an edit keeps nothing from starting");
    assert_eq!(place.text(), edited);
    let first = manager.current().config.volumes["a"].uuid;
    // The configuration that was read stays in force, and the edit of the file is not overwritten.
    let wrong = manager.change(&[set("a", json!({ "size": "4M" }))], "ann", at(2)).expect_err("it has changed");
    assert!(wrong.to_string().contains("changed by another program"), "{wrong}");
    let plan = manager.reload(at(3), Force::No).expect("it is right");
    assert_eq!(plan.to_string(), "change volume a: size 1M -> 2M");
    assert!(place.text().starts_with(&edited) && place.text().contains("uuid"), "{}", place.text());
    assert_eq!(manager.current().config.volumes["a"].uuid, first);
}

#[test]
fn volumes_that_were_served_are_expected_after_a_restart() {
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
fn an_unavailable_volume_does_not_affect_the_others() {
    let place = Place::new(&files(&["a", "b", "d"]));
    let text = place.text();
    // A volume that was never served may be a misspelling.
    let why = place.start_without(&["b"]).expect_err("it is unavailable").to_string();
    assert!(why.contains("cannot create volume b") && why.contains("it is unavailable"), "{why}");
    assert_eq!(place.text(), text);
    drop(place.start());
    let mut manager = place.start_without(&["a", "b"]).expect("both were served before");
    let unavailable =
        |manager: &Manager<FakeTarget, LocalHost>| manager.unavailable().keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(unavailable(&manager), named(&["a", "b"]));
    let told: Vec<String> = manager.unavailable_lines().collect();
    assert!(told[0].starts_with("volume a is not served: it is unavailable") && told.len() == 2, "{told:?}");
    assert_eq!(manager.current().config.volumes.len(), 3, "they are configured as before");
    assert!(manager.freeze_writes("a").is_none(), "its contents are unknown");
    // Other changes are made.
    let more = place.text() + &files(&["c"]);
    let plan = manager.replace(&more, "ann", at(2)).expect("it is right");
    assert_eq!(plan.to_string(), "create volume c (1 MiB file /srv/c)");
    assert_eq!((unavailable(&manager), manager.running().finalized), (named(&["a", "b"]), 2));
    // One of them is back, but may be half of a copy: who changes something else does not mean it.
    manager.running().unavailable = named(&["b"]);
    let edits = [set("d", json!({ "size": "2M" }))];
    let plan = manager.plan_edits(&edits).expect("they are right");
    assert_eq!(plan.to_string(), "change volume d: size 1M -> 2M");
    assert_eq!(manager.change(&edits, "ann", at(2)).expect("they are right"), plan);
    assert_eq!(unavailable(&manager), named(&["a", "b"]));
    manager.running().unavailable = named(&["a", "b"]);
    // A change of an unavailable resource requires that it is available.
    let why = manager.change(&[set("a", json!({ "size": "2M" }))], "ann", at(3)).expect_err("it is unavailable");
    assert!(why.to_string().contains("it is unavailable"), "{why}");
    // The operator applies the file again.
    manager.running().unavailable = named(&["b"]);
    let plan = manager.reload(at(4), Force::No).expect("nothing else is in the way");
    assert_eq!(
        (plan.to_string(), unavailable(&manager)),
        ("create volume a (1 MiB file /srv/a)".into(), named(&["b"]))
    );
    // A resource that is no longer configured is not unavailable.
    let others = place.text().replace("[volume.b]", "[volume.e]").replace("/srv/b", "/srv/e");
    std::fs::write(place.file(), others).expect("a file");
    manager.reload(at(5), Force::No).expect("it is right");
    assert_eq!(unavailable(&manager), BTreeSet::new());
}

#[test]
fn the_file_of_an_unavailable_volume_is_not_created_again_under_another_name() {
    let place = Place::new(&files(&["a", "b"]));
    drop(place.start());
    let mut manager = place.start_without(&["a"]).expect("it was served before");
    manager.running().unavailable.clear();
    let expected = |manager: &mut Manager<FakeTarget, LocalHost>| manager.running().expected.clone();
    // A volume that is changed, renamed or unchanged has the same file; a volume with another path is a new one.
    let text = place.text();
    for (change, wanted) in [
        (text.replacen("1M", "2M", 1), Some("a")),
        (text.replace("volume.a", "volume.other"), Some("other")),
        (text.clone(), Some("a")),
        (text.replace("/srv/a", "/srv/elsewhere"), None),
    ] {
        // A change of the file is refused, because its first step fails; an unchanged file is accepted.
        manager.running().fails_at = Some(0);
        assert_eq!(manager.replace(&change, "ann", at(2)).is_ok(), change == text);
        assert_eq!(expected(&mut manager), wanted.map(str::to_owned).into_iter().collect(), "{change}");
    }
}

#[test]
fn a_refused_configuration_has_no_effect_on_later_changes() {
    let place = Place::new(TEXT);
    let mut manager = place.start();
    let (before, current) = (place.text(), manager.current().clone());
    let edits = [set("a", json!({ "size": "4M" }))];
    let listed = |manager: &Manager<FakeTarget, LocalHost>| manager.versions().list().expect("a list");
    let versions = listed(&manager);
    // The one makes no sense, the other cannot be made.
    for size in ["1X", "2M"] {
        manager.running().fails_at = Some(0);
        std::fs::write(place.file(), before.replace("1M", size)).expect("a file");
        manager.reload(at(2), Force::No).expect_err("it is refused");
        assert_eq!((manager.versions().text(), manager.current()), (&*before, &current));
        assert_eq!(listed(&manager), versions);
        let refused = manager.refused().expect("it is refused");
        assert!(matches!(refused, RefusedFile::Wrong { .. }) && refused.remedy().contains("`lunar apply`"));
        let told = refused.to_string();
        assert!(told.contains("lunar.toml") && !told.contains('\n'), "{told}");
        manager.running().fails_at = None;
        let why = manager.change(&edits, "ann", at(3)).expect_err("the file is another");
        assert!(why.to_string().contains("changed by another program"), "{why}");
        assert_eq!(manager.current(), &current);
    }
    manager.reload(at(4), Force::No).expect("it can be made now");
    assert_eq!((manager.refused(), manager.versions().text()), (None, &*before.replace("1M", "2M")));
    assert_eq!(listed(&manager).last().map(|last| (last.time, &*last.who)), Some((4, "editor")));
    // An edit that is taken back is no trouble.
    std::fs::write(place.file(), "wrong").expect("a file");
    manager.reload(at(5), Force::No).expect_err("it is no configuration");
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
        let why = manager.reload(at(2), Force::No).expect_err("everything would be removed").to_string();
        assert!(why.contains("is missing or empty") && why.contains("newest file in"), "{why}");
        assert_eq!(manager.current(), &current);
        assert_eq!(manager.refused(), Some(&RefusedFile::Lost(why)), "nothing was edited");
    }
    std::fs::write(place.file(), &before).expect("a file");
    manager.reload(at(3), Force::No).expect("the file is back");
    assert_eq!(manager.refused(), None);
}

/// Two volumes, a target at a portal, and a group of two hosts with a user.
const SHARED: &str = "[volume.a]\nkind = 'ram'\nsize = '2M'\n[volume.b]\nkind = 'ram'\nsize = '2M'\n\
    [user.u]\nsecret = { credential = 'u' }\nlogin = 'esx'\n[user.w]\nsecret = { credential = 'u' }\n\
    [portal-group.p]\ntag = 1\n[portal.one]\naddress = '127.0.0.1:3260'\ngroup = 'p'\n\
    [portal.two]\naddress = '127.0.0.1:3261'\ngroup = 'p'\n\
    [target.t]\niqn = 'iqn.2026-01.org.example:t'\nportal-groups = ['p']\nauthentication = 'chap'\nusers = ['u', 'w']\n\
    [target.other]\niqn = 'iqn.2026-01.org.example:o'\nportal-groups = ['p']\n\
    [group.all]\ntargets = ['t']\ninitiators = ['iqn.1998-01.com.example:*']\nluns = { 0 = 'a', 3 = 'b' }\n\
    [group.few]\ntargets = ['other']\ninitiators = ['*']\nluns = { 0 = 'b' }\n";

fn session_of(initiator: &str, target: &str, group: &str) -> SessionView {
    SessionView {
        id: "iscsi-1".into(),
        protocol: "iscsi",
        discovery: false,
        initiator: initiator.into(),
        source: "192.0.2.1:50000".into(),
        target: Some(target.into()),
        group: Some(group.into()),
        portal_group: None,
        user: Some("esx".into()),
        seconds: 1,
        parameters: Vec::new(),
        tcp: Vec::new(),
    }
}

/// A manager of this configuration, to which one host is logged in.
fn in_use(text: &str) -> (Place, Manager<FakeTarget, LocalHost>) {
    let place = Place::new(text);
    let mut manager = place.start();
    let host = session_of("iqn.1998-01.com.example:host1", "t", "all");
    let discovery = SessionView { discovery: true, target: None, group: None, ..host.clone() };
    manager.running().sessions = vec![discovery, host];
    (place, manager)
}

/// A configuration without secrets outside of it.
fn shared() -> String {
    SHARED.replace("{ credential = 'u' }", "'correct horse battery'")
}

#[test]
fn a_lun_of_a_logged_in_host_is_not_exchanged_without_force() {
    let (place, mut manager) = in_use(&shared());
    let (text, current) = (place.text(), manager.current().clone());
    let (group, volume) = ("all".to_owned(), "b".to_owned());
    let unmap = Edit::Unmap { group: group.clone(), lun: 3 };
    let map = Edit::Map { group, lun: 0, volume, read_only: false, namespace: None, metadata: false };
    let edits = [unmap, map];
    let plan = manager.plan_edits(&edits).expect("it makes sense");
    let host = ["iqn.1998-01.com.example:host1".to_owned()];
    let taking: Vec<_> = plan.changes.iter().filter(|change| !change.hosts.is_empty()).collect();
    assert!(taking.iter().all(|change| change.action == Action::Remove && change.hosts == host), "{plan:?}");
    assert_eq!((taking.len(), plan.changes.len()), (2, 3));
    assert!(plan.to_string().contains("needs --force: iqn.1998-01.com.example:host1 uses it"), "{plan}");
    let why = manager.change(&edits, "ann", at(2)).expect_err("a host uses them");
    let Failure::InUse(why) = &why else { panic!("{why}") };
    assert_eq!((why.count, why.hosts.len()), (1, 1), "a discovery session loses nothing");
    let loses = ["LUN 0 becomes volume b instead of a", "LUN 3 (volume b) is removed"].map(str::to_owned);
    assert_eq!((&why.hosts[0].loses[..], &*why.hosts[0].source), (&loses[..], "192.0.2.1:50000"));
    assert!(why.to_string().contains("--force") && why.to_string().contains("nothing was changed"), "{why}");
    assert_eq!((place.text(), manager.current()), (text, &current));
    let forced = Author { name: "ann", force: Force::Yes };
    assert_eq!(manager.change(&edits, forced, at(3)).expect("it is forced").changes.len(), plan.changes.len());
    assert!(place.text().contains("0 = \"b\""), "{}", place.text());
}

#[test]
fn a_volume_that_is_copied_gets_no_command_of_the_operator_that_may_write() {
    let place = Place::new(&files(&["a", "b"]));
    let mut manager = place.start();
    let write = |manager: &mut Manager<FakeTarget, LocalHost>, volume: &str| {
        manager.scsi(volume, ScsiOrder::new("WRITE(10)"), Box::new(|_, _| ())).expect("it is served")
    };
    let freeze = manager.freeze_writes("a").expect("no client can write");
    assert!(matches!(write(&mut manager, "a")(), Err(ScsiError::Copied)));
    assert!(write(&mut manager, "b")().is_ok());
    drop(freeze);
    let begun = write(&mut manager, "a");
    assert!(manager.freeze_writes("a").is_none(), "a command that may write is in progress");
    assert!(manager.freeze_writes("b").is_some());
    begun().expect("it ends");
    assert!(manager.freeze_writes("a").is_some());
}

#[test]
fn a_disk_of_this_machine_that_is_mounted_is_not_taken_away_without_force() {
    let place = Place::new(&shared());
    let mut manager = place.start();
    let loses = vec!["ublk disk data is removed, and /dev/ublkb0 is mounted at /mnt: umount /mnt".to_owned()];
    let host = AffectedHost {
        session: "ublk-0".into(),
        initiator: "iqn.x:local:data".into(),
        source: "/dev/ublkb0".into(),
        target: String::new(),
        loses,
    };
    manager.running().lost_disks = vec![LostDisk { host: host.clone(), causes: vec![ObjectId::volume("a")] }];
    // The disk is a session without a target.
    let session = session_of(&host.initiator, "t", "all");
    manager.running().sessions =
        vec![SessionView { id: "ublk-0".into(), source: host.source.clone(), target: None, group: None, ..session }];
    let wanted = shared().replace("[volume.a]\nkind = 'ram'", "[volume.a]\nkind = 'null'");
    let plan = manager.plan(&wanted).expect("it makes sense");
    assert!(plan.to_string().contains("needs --force: iqn.x:local:data uses it"), "{plan}");
    let Err(Failure::InUse(why)) = manager.replace(&wanted, "ann", at(2)) else { panic!("it is mounted") };
    assert_eq!((why.count, &why.hosts[..]), (1, &[host][..]));
    let words =
        "iqn.x:local:data from /dev/ublkb0: ublk disk data is removed, and /dev/ublkb0 is mounted at /mnt: umount";
    assert!(why.to_string().contains(words) && why.to_string().contains("--force"), "{why}");
    let Err(Failure::InUse(why)) = manager.kick("ublk-0", Force::No).map(|_| ()) else { panic!("it is mounted") };
    assert!(why.to_string().contains(words) && why.to_string().contains("--force"), "{why}");
    assert!(manager.kick("iscsi-1", Force::No).is_ok_and(|end| end.is_none()), "others lose nothing");
    assert_eq!(manager.running().sessions.len(), 1);
    assert!(manager.kick("ublk-0", Force::Yes).is_ok_and(|end| end.is_some()) && manager.running().sessions.is_empty());
    manager.replace(&wanted, Author { name: "ann", force: Force::Yes }, at(3)).expect("it is forced");
}

#[test]
fn a_change_that_takes_something_from_a_logged_in_host_needs_force() {
    let text = shared();
    let lost = |from: &str, to: &str| {
        let (_place, mut manager) = in_use(&text);
        assert!(text.contains(from), "{from}");
        let wanted = text.replacen(from, to, 1);
        match manager.replace(&wanted, "ann", at(2)) {
            Err(Failure::InUse(why)) => {
                manager.replace(&wanted, Author { name: "ann", force: Force::Yes }, at(3)).expect("it is forced");
                why.hosts[0].loses.join("; ")
            }
            outcome => format!("{:?}", outcome.map(|plan| plan.to_string())),
        }
    };
    for (from, to, loss) in [
        ("luns = { 0 = 'a', 3 = 'b' }", "luns = { 3 = 'b' }", "LUN 0 (volume a) is removed"),
        ("luns = { 0 = 'a', 3 = 'b' }", "luns = { 0 = 'a', 4 = 'b' }", "LUN 3 (volume b) is removed"),
        ("[volume.a]\nkind = 'ram'", "[volume.a]\nkind = 'null'", "LUN 0 becomes another volume a"),
        ("size = '2M'", "size = '1M'", "LUN 0 (volume a) becomes smaller"),
        ("users = ['u', 'w']", "users = ['w']", "user u may not log in any more"),
        ("login = 'esx'\n", "", "user u may not log in any more"),
        ("users = ['u', 'w']\n", "users = ['u', 'w']\nenabled = false\n", "the target is disabled"),
        ("example:t'", "example:new'", "the target has another iSCSI name"),
        ("example:*'", "example:host2'", "no group admits the client any more"),
        (
            "initiators = ['iqn.1998-01.com.example:*']",
            "initiators = ['iqn.1998-01.com.example:*']\nsources = \
         ['10.0.0.0/8']",
            "no group admits the client any more",
        ),
        ("[portal.two]\naddress = '127.0.0.1:3261'\ngroup = 'p'\n", "", "portal two is removed or moves"),
        (":3261", ":3262", "portal two is removed or moves"),
        // A more specific group takes the host from its group.
        (
            "[group.few]\ntargets = ['other']\ninitiators = ['*']",
            "[group.few]\ntargets = ['other', 't']\ninitiators = ['iqn.1998-01.com.example:host1']",
            "LUN 0 becomes volume b instead of a; LUN 3 (volume b) is removed",
        ),
    ] {
        assert_eq!(lost(from, to), loss, "{from} -> {to}");
    }
    let target = text.split("[target.t]").nth(1).and_then(|rest| rest.split("[target.other]").next());
    let target = format!("[target.t]{}", target.expect("the target"));
    let gone = text.replace(&target, "").replace("targets = ['t']", "targets = ['other']");
    let (_place, mut manager) = in_use(&text);
    let why = manager.replace(&gone, "ann", at(2)).expect_err("a host uses it").to_string();
    assert!(why.contains("the target is removed"), "{why}");
}

#[test]
fn a_change_that_takes_nothing_from_logged_in_hosts_needs_no_force() {
    let text = shared();
    for (from, to) in [
        ("size = '2M'", "size = '4M'"),
        ("luns = { 0 = 'a', 3 = 'b' }", "luns = { 0 = 'a', 3 = 'b', 4 = 'c' }\n[volume.c]\nkind = 'ram'\nsize = '1M'"),
        ("users = ['u', 'w']", "users = ['u']"),
        ("example:*'", "example:*', 'iqn.x'"),
        ("example:*'", "example:host1'"),
        // The other target has no sessions.
        ("luns = { 0 = 'b' }", "luns = { 0 = 'a' }"),
        ("iqn.2026-01.org.example:o", "iqn.2026-01.org.example:p"),
    ] {
        let (_place, mut manager) = in_use(&text);
        assert!(text.contains(from), "{from}");
        let done = manager.replace(&text.replacen(from, to, 1), "ann", at(2));
        assert!(done.is_ok_and(|plan| !plan.is_empty()), "{from} -> {to}");
    }
    // The same LUNs by way of another group.
    let moved = text.replace("[group.all]", "[group.every]");
    let (_place, mut manager) = in_use(&text);
    manager.replace(&moved, "ann", at(2)).expect("the host sees the same volumes");
}

#[test]
fn a_host_that_loses_a_namespace_is_affected() {
    let text = shared()
        .replace("[target.t]\niqn", "[target.t]\nnqn = 'nqn.2026-01.org.example:t'\niqn")
        .replace("authentication = 'chap'\nusers = ['u', 'w']\n", "")
        .replace("initiators = ['iqn", "initiators = ['nqn.host', 'iqn");
    let (_place, mut manager) = in_use(&text);
    let host = SessionView { protocol: "nvme-tcp", user: None, ..session_of("nqn.host", "t", "all") };
    manager.running().sessions = vec![host];
    let wanted = text.replace("3 = 'b'", "3 = { volume = 'b', namespace = 9 }");
    let why = manager.replace(&wanted, "ann", at(2)).expect_err("a host uses it").to_string();
    assert!(why.contains("namespace 4 (volume b) is removed"), "{why}");
    // An initiator addresses the LUN as before.
    manager.running().sessions = vec![session_of("iqn.1998-01.com.example:host1", "t", "all")];
    manager.replace(&wanted, "ann", at(3)).expect("the LUN stays");
}

#[test]
fn a_reload_that_takes_something_from_hosts_is_refused_and_says_how_to_apply_it() {
    let (place, mut manager) = in_use(&shared());
    let before = place.text();
    let current = manager.current().clone();
    std::fs::write(place.file(), before.replace("0 = 'a'", "0 = 'b'").replace("3 = 'b'", "3 = 'a'")).expect("a file");
    let why = manager.reload(at(2), Force::No).expect_err("a host uses both");
    assert!(matches!(&why, Failure::InUse(why) if why.hosts[0].loses.len() == 2), "{why}");
    assert_eq!((manager.current(), manager.versions().text()), (&current, &*before));
    let refused = manager.refused().expect("the status says so");
    let told = refused.to_string();
    assert!(told.contains("1 session uses") && refused.remedy().contains("`lunar apply --force`"), "{told}");
    manager.reload(at(3), Force::Yes).expect("it is forced");
    assert_eq!(manager.refused(), None);
}

#[test]
fn a_plan_that_removes_more_than_half_of_the_resources_needs_force() {
    let place = Place::new(&shared());
    let mut manager = place.start();
    let few = "[volume.a]\nkind = 'ram'\nsize = '2M'\n";
    let why = manager.replace(few, "ann", at(2)).expect_err("no host is logged in, and nearly all is removed");
    let Failure::InUse(why) = &why else { panic!("{why}") };
    assert_eq!((why.count, why.removed), (0, Some((8, 9))));
    assert!(why.to_string().starts_with("the change removes 8 of 9 resources, more than half"), "{why}");
    manager.replace(few, Author { name: "ann", force: Force::Yes }, at(3)).expect("it is forced");
    let last = Edit::Delete { kind: Kind::Volume, name: "a".into() };
    manager.change(&[last], "ann", at(4)).expect("one resource");
}

#[test]
fn a_rollback_restores_everything_but_sizes() {
    let place = Place::new(&shared());
    let mut manager = place.start();
    let number = manager.versions().list().expect("a list").last().expect("one").number;
    manager.change(&[set("a", json!({ "size": "8M", "vendor": "ACME" }))], "ann", at(2)).expect("it grows");
    let plan = manager.restore(number, "ann", at(3)).expect("it is restored");
    let note = format!("volume a keeps its size 8M: it had 2M in version {number}");
    assert_eq!((plan.changes.len(), &plan.notes[..]), (1, &[note][..]), "{plan}");
    let volume = &manager.current().config.volumes["a"];
    assert_eq!((volume.size.map(|size| size.text()), volume.vendor.text()), (Some("8M".into()), "LUNAR".into()));
}

#[test]
fn a_resource_that_is_used_is_not_deleted_and_the_message_names_its_user() {
    let place = Place::new(&shared());
    let mut manager = place.start();
    for (kind, name, wanted) in [
        (Kind::Volume, "a", "volume a is LUN 0 of group all: unmap it first (`lunar group unmap all 0`)"),
        (Kind::PortalGroup, "p", "portal group p is used by target other (portal-groups): change that first"),
    ] {
        let edit = Edit::Delete { kind, name: name.into() };
        let why = manager.change(&[edit], "ann", at(2)).expect_err("it is used");
        assert_eq!(why.to_string(), wanted);
    }
    let why = manager.change(&[set("a", json!({ "size": "1X" }))], "ann", at(2)).expect_err("no size").to_string();
    assert!(why.starts_with("volume.a.size: "), "a text that is in no file has no lines: {why}");
}

#[test]
fn the_plan_states_whether_the_data_of_a_removed_volume_is_deleted() {
    let place = Place::new(&(TEXT.to_owned() + &files(&["b"])));
    let mut manager = place.start();
    let words = |manager: &mut Manager<FakeTarget, LocalHost>, name: &str| {
        let plan = manager.plan_edits(&[Edit::Delete { kind: Kind::Volume, name: name.into() }]);
        plan.expect("it can be").to_string()
    };
    assert_eq!(words(&mut manager, "a"), "remove volume a (its data is lost)");
    assert_eq!(words(&mut manager, "b"), "remove volume b (its data stays)");
}

/// Whether a file of the history has these words.
fn history_has(place: &Place, words: &str) -> bool {
    let all = std::fs::read_dir(place.0.join("state/history")).expect("the history").flatten();
    all.map(|file| std::fs::read_to_string(file.path()).expect("a file")).any(|text| text.contains(words))
}

#[test]
fn a_deleted_secret_is_not_in_the_history() {
    let place = Place::new(&(TEXT.to_owned() + "[user.u]\nsecret = 'correct horse battery'\n"));
    let mut manager = place.start();
    let number = manager.versions().list().expect("a list").last().expect("one").number;
    let user = |secret: &str| Keys(json!({ "secret": secret }).as_object().cloned().expect("an object"));
    let other = Edit::Create { kind: Kind::User, name: "w".into(), keys: user("a staple that stays") };
    manager.change(&[other], "ann", at(2)).expect("it is created");
    // A secret that is replaced is filled with the present one when an earlier version is restored.
    let edit = Edit::Set { kind: Kind::User, name: "u".into(), keys: user("another horse battery") };
    manager.change(&[edit], "ann", at(3)).expect("it is changed");
    assert!(!history_has(&place, "correct horse") && history_has(&place, "a staple that stays"));
    manager.restore(number, Author { name: "ann", force: Force::Yes }, at(4)).expect("it is restored");
    assert!(place.text().contains("another horse battery"), "{}", place.text());
    assert!(!history_has(&place, "a staple that stays"), "it was deleted by that");
    let gone = Edit::Delete { kind: Kind::User, name: "u".into() };
    manager.change(&[gone], "ann", at(5)).expect("it is deleted");
    assert!(!history_has(&place, "another horse"));
    let why = manager.restore(number, "ann", at(6)).expect_err("there is no secret").to_string();
    assert!(why.contains("the secret of user u is not in the history any more"), "{why}");
    assert!(manager.leftover().is_none());
    // An edit while nothing runs.
    let text = place.text() + "[user.x]\nsecret = 'an edited horse battery'\n";
    std::fs::write(place.file(), &text).expect("a file");
    drop(place.start());
    assert!(history_has(&place, "an edited horse"));
    std::fs::write(place.file(), text.replace("an edited horse", "a later horse")).expect("a file");
    drop(place.start());
    assert!(!history_has(&place, "an edited horse") && history_has(&place, "a later horse"));
}

#[test]
fn a_text_that_was_edited_as_it_is_shown_keeps_secrets_and_comments() {
    let user = "# size = '1G'\n[user.kept]\nsecret = 'correct horse battery' # why\n";
    let place = Place::new(&format!("{user}{}", shared()));
    let mut manager = place.start();
    let shown = without_secrets(&SAMPLE, manager.versions().text());
    assert!(!shown.contains("horse") && shown.contains("(hidden)"), "{shown}");
    assert!(manager.plan(&shown).expect("it can be planned").is_empty(), "nothing has changed");
    let edited = format!("[user.added]\nsecret = 'a secret that is new'\n{shown}");
    manager.replace(&edited, "ann", at(5)).expect("it can be applied");
    let text = manager.versions().text();
    for part in ["# size = '1G'\n[user.kept]\nsecret = ", "'a secret that is new'\n# size", "correct horse battery"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let unknown = "[user.new]\nsecret = '(hidden)'\n";
    let why = manager.plan(&format!("{text}{unknown}")).expect_err("there is no such secret");
    assert!(why.to_string().contains("what a secret looks like when it is shown"), "{why}");
}

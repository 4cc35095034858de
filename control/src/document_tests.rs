use super::*;
use crate::testing::SAMPLE;

fn keys(value: Json) -> Keys {
    Keys(value.as_object().cloned().expect("an object"))
}

fn create(kind: Kind, name: &str, value: Json) -> Edit {
    Edit::Create { kind, name: name.into(), keys: keys(value) }
}

fn set(kind: Kind, name: &str, value: Json) -> Edit {
    Edit::Set { kind, name: name.into(), keys: keys(value) }
}

fn delete(kind: Kind, name: &str) -> Edit {
    Edit::Delete { kind, name: name.into() }
}

fn map(group: &str, lun: u16, volume: &str, read_only: bool) -> Edit {
    Edit::Map { group: group.into(), lun, volume: volume.into(), read_only, namespace: None, metadata: false }
}

#[track_caller]
fn edited(text: &str, edits: &[Edit]) -> String {
    edit(&SAMPLE, text, edits).unwrap_or_else(|why| panic!("{why}"))
}

const TEXT: &str = "\
# What this machine shares.

# The disk of the mail server.
[volume.mail]   # old
kind = \"file\"    # sparse
path = '/srv/mail.img'
size = \"20G\"  # enough

[group.all]
targets = [ 't' ] # all
initiators = ['*']
luns = { 0 = 'mail' }

# The end.
";

#[test]
fn values_change_and_comments_stay() {
    let changed = edited(TEXT, &[set(Kind::Volume, "mail", json!({ "size": "30G", "read-only": true }))]);
    let wanted = TEXT.replace("size = \"20G\"  # enough\n", "size = \"30G\"  # enough\nread-only = true\n");
    assert_eq!(changed, wanted);
    let back = edited(&changed, &[set(Kind::Volume, "mail", json!({ "read-only": null, "size": "20G" }))]);
    assert_eq!(back, TEXT);
}

#[test]
fn things_come_next_to_their_like() {
    let web = create(Kind::Volume, "web", json!({ "kind": "ram", "size": 4096 }));
    let changed = edited(TEXT, &[web, map("all", 5, "web", false), map("all", 6, "web", true)]);
    let wanted = TEXT
        .replace("# enough\n\n", "# enough\n\n[volume.web]\nkind = \"ram\"\nsize = 4096\n\n")
        .replace("{ 0 = 'mail' }", "{ 0 = 'mail' , 5 = \"web\", 6 = { volume = \"web\", read-only = true } }");
    assert_eq!(changed.replace(" ,", ","), wanted.replace(" ,", ","));
}

#[test]
fn a_file_can_begin_empty() {
    let edits = [
        create(Kind::Volume, "a", json!({ "kind": "ram", "size": "1M" })),
        create(Kind::Group, "g", json!({ "targets": ["t"], "initiators": ["*"] })),
        map("g", 0, "a", false),
        set(Kind::Limits, "", json!({ "sessions": 5 })),
    ];
    let wanted = "[volume.a]\nkind = \"ram\"\nsize = \"1M\"\n\n[group.g]\ninitiators = [\"*\"]\ntargets = [\"t\"]\n\n\
                  [group.g.luns]\n0 = \"a\"\n\n[limits]\nsessions = 5\n";
    assert_eq!(edited("", &edits), wanted);
}

#[test]
fn a_removed_resource_takes_its_comments_along() {
    let changed = edited(TEXT, &[delete(Kind::Volume, "mail")]);
    assert!(changed.starts_with("# What this machine shares.\n\n[group.all]"), "{changed}");
    assert!(!changed.contains("mail server") && changed.contains("# The end."), "{changed}");
    let changed = edited(&changed, &[Edit::Unmap { group: "all".into(), lun: 0 }, delete(Kind::Group, "all")]);
    assert!(changed.contains("# What this machine shares.") && changed.contains("# The end."), "{changed}");
    assert!(!changed.contains("all"), "{changed}");
}

#[test]
fn every_way_to_write_tables_will_do() {
    for text in [
        "[volume]\na = { kind = 'ram', size = '1M' } # a\n",
        "volume.a.kind = 'ram'\nvolume.a.size = '1M' # a\n",
        "volume = { a = { kind = 'ram', size = '1M' } } # a\n",
        "[volume.a]\nkind = 'ram'\nsize = '1M' # a",
    ] {
        let larger = edited(text, &[set(Kind::Volume, "a", json!({ "size": "2M" }))]);
        assert_eq!(larger.trim_end(), text.replace("'1M'", "\"2M\"").trim_end());
        let two = edited(text, &[create(Kind::Volume, "b", json!({ "kind": "null", "size": "3M" }))]);
        let read = |text: &str| crate::config::parse(text, &mut crate::report::Report::new(&SAMPLE)).0;
        assert_eq!(read(&two).volumes["b"].size, Some(crate::value::Size(3 << 20)), "{two}");
        assert_eq!(read(&two).volumes["a"], read(text).volumes["a"]);
        assert!(two.contains("# a"), "{two}");
        assert!(read(&edited(&two, &[delete(Kind::Volume, "a")])).volumes.keys().eq(["b"]));
    }
}

#[test]
fn refusals_say_why_and_change_nothing() {
    type Check = fn(&Refused) -> bool;
    let (missing, exists, wrong, range, null): (Check, Check, Check, Check, Check) = (
        |why| matches!(why, Refused::Missing(_)),
        |why| matches!(why, Refused::Exists(..)),
        |why| matches!(why, Refused::Wrong(_)),
        |why| matches!(why, Refused::Form { key, why: FormError::OutOfRange } if key == "size"),
        |why| matches!(why, Refused::Form { key, why: FormError::Null } if key == "size"),
    );
    let cases: [(Edit, Check, &str); 12] = [
        (set(Kind::Volume, "none", json!({ "size": 1 })), missing, "there is no volume 'none'"),
        (delete(Kind::User, "none"), missing, "there is no user 'none'"),
        (Edit::Unmap { group: "all".into(), lun: 9 }, missing, "has no LUN 9"),
        (map("none", 0, "mail", false), missing, "there is no group"),
        (create(Kind::Volume, "mail", json!({})), exists, "the volume 'mail' exists already"),
        (set(Kind::Volume, "mail", json!({ "siez": 1 })), wrong, "did you mean 'size'?"),
        (set(Kind::Volume, "mail", json!({ "size": 1.5 })), range, "not a whole number"),
        (set(Kind::Volume, "mail", json!({ "size": [null] })), null, "contains null"),
        (create(Kind::Volume, "a b", json!({})), wrong, "a name consists of"),
        (create(Kind::Limits, "x", json!({})), wrong, "is not created by name"),
        (delete(Kind::Limits, ""), wrong, "cannot be deleted"),
        (set(Kind::Group, "all", json!({ "luns": { "0": "x" } })), wrong, "one by one"),
    ];
    for (change, kind, words) in cases {
        let why = edit(&SAMPLE, TEXT, std::slice::from_ref(&change)).expect_err(words);
        assert!(kind(&why) && why.to_string().contains(words), "{change:?}: {why:?}");
    }
    assert!(edit(&SAMPLE, "[volume", &[]).is_err());
}

#[test]
fn volumes_get_their_names_once() {
    let mut count = 0;
    let mut random = |_: &str| {
        count += 1;
        Ok::<_, Refused>(Uuid::from_random([count; 16]))
    };
    let text = format!("{TEXT}[volume.b]\nkind = 'ram'\nuuid = 'f81d4fae-7dec-41d0-a765-00a0c91e6bf6'\n");
    let (named, names) = name_volumes(&text, &mut random).expect("it can be read");
    assert_eq!(names, ["mail"]);
    let wanted = "size = \"20G\"  # enough\nuuid = \"01010101-0101-4101-8101-010101010101\"\n";
    assert_eq!(named, text.replace("size = \"20G\"  # enough\n", wanted));
    assert_eq!(name_volumes(&named, &mut random).expect("it can be read"), (named, vec![]));
    let refused = Refused::Exists(Kind::Volume, "no luck".into());
    assert_eq!(name_volumes(&text, |_| Err(refused.clone())), Err(refused));
}

#[test]
fn a_command_line_has_keys_too() {
    let parse = |kind: Kind, texts: &[&str]| {
        let mut keys = Keys::default();
        texts.iter().try_for_each(|text| keys.add_text(&SAMPLE, kind, text)).map(|()| Json::Object(keys.0))
    };
    assert_eq!(
        parse(Kind::Volume, &["size=20G", "read_only=yes", "serial=none"]),
        Ok(json!({ "size": "20G", "read-only": true, "serial": null }))
    );
    assert_eq!(
        parse(Kind::Group, &["initiators=a*, b", "sources=none"]),
        Ok(json!({ "initiators": ["a*", "b"], "sources": [] }))
    );
    assert_eq!(parse(Kind::User, &["secret=file:/x"]), Ok(json!({ "secret": { "file": "/x" } })));
    assert_eq!(parse(Kind::User, &["secret=a:b"]), Ok(json!({ "secret": "a:b" })));
    assert_eq!(parse(Kind::Target, &["queue-depth=7"]), Ok(json!({ "queue-depth": 7 })));
    for (kind, text, words) in [
        (Kind::Volume, "siez=1", "did you mean 'size'?"),
        (Kind::Volume, "read-only=maybe", "true or false"),
        (Kind::Target, "queue-depth=many", "1 to 1024"),
        (Kind::Group, "luns=1", "one by one"),
        (Kind::User, "the secret alone", "KEY=VALUE"),
    ] {
        let why = parse(kind, &[text]).expect_err(text).to_string();
        assert!(why.contains(words) && !why.contains("alone"), "{text}: {why}");
    }
}

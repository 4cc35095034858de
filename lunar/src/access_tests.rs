use super::*;
use lunar_control::Checked;
use lunar_control::visibility::group_of;

fn secret(text: &str) -> Option<Secret> {
    Some(Secret::new(text.into()).expect("long enough"))
}

fn client(name: &str, key: &str, own: Option<&str>) -> Client {
    let own = own.and_then(secret);
    Client { name: name.to_owned(), key: secret(key), own, tls_key: None }
}

/// The configuration of two volumes.
fn configured(who: &Who, clients: &[Client], local: &[&str]) -> Result<Checked, String> {
    let mut draft = Draft::default();
    draft.object("portal-group", "1").set("tag", 1);
    let mut target = draft.object("target", TARGET);
    target.set("iqn", "iqn.2026-01.org.example:t").set("nqn", "nqn.2026-01.org.example:t");
    target.set("portal-groups", vec!["1"]);
    let volumes = ["lun-0", "lun-1"].map(str::to_owned);
    for volume in &volumes {
        draft.object("volume", volume).set("kind", "ram").set("size", "1M");
    }
    let local: Vec<String> = local.iter().map(ToString::to_string).collect();
    for name in &local {
        let vm = name.rsplit(':').next().unwrap_or_default();
        draft.object("vm", vm).set("target", TARGET);
    }
    let seen = Seen { volumes: &volumes, metadata: &[false; 2] };
    who.configure(&seen, (clients, &local), &mut draft).map_err(|why| why.to_string())?;
    draft.check(&crate::schema::SCHEMA).map_err(|why| why.to_string())
}

/// The volumes that a client sees, by LUN; `None` if it is refused.
fn sees(checked: &Checked, name: &str) -> Option<Vec<(u16, String)>> {
    let (_, group) = group_of(&checked.config, TARGET, name, [192, 0, 2, 1].into())?;
    Some(group.luns.0.iter().map(|(lun, it)| (*lun, it.volume.name().to_owned())).collect())
}

fn luns(all: &[(u16, &str)]) -> Option<Vec<(u16, String)>> {
    Some(all.iter().map(|(lun, volume)| (*lun, (*volume).to_owned())).collect())
}

const ALL: [(u16, &str); 2] = [(0, "lun-0"), (1, "lun-1")];

#[test]
fn the_same_secret_for_both_sides_is_refused() {
    let name = Some("a name/with more".to_owned());
    let who = |own: &str| Who {
        user: name.clone(),
        secret_file: secret("secret of a user"),
        mutual_user: name.clone(),
        mutual_secret_file: secret(own),
        ..Who::default()
    };
    let why = configured(&who("secret of a user"), &[], &[]).expect_err("one secret");
    assert!(why.contains("each direction needs its own (RFC 7143 9.2.1)"), "{why}");
    let checked = configured(&who("secret of a target"), &[], &[]).expect("two secrets");
    let target = &checked.config.targets[TARGET];
    let login = |user: &str| checked.config.users[user].login_name(user).to_owned();
    assert_eq!(target.users.names().map(login).collect::<Vec<_>>(), ["a name/with more"]);
    assert_eq!(target.mutual_user.as_ref().map(|user| login(user.name())).as_deref(), Some("a name/with more"));
    assert!(checked.config.discovery.users.is_empty());
    assert_eq!(sees(&checked, "iqn.x"), luns(&ALL));
}

#[test]
fn who_authenticates_to_nobody_is_told_so() {
    let who = Who { mutual_user: Some("t".into()), mutual_secret_file: secret("secret of a target"), ..Who::default() };
    assert!(configured(&who, &[], &[]).expect_err("no one asks").contains("--user, --discovery-user or --host-key"));
    assert!(configured(&who, &[client("nqn.x", "a key of the host", None)], &[]).is_ok());
}

#[test]
fn maps() {
    let found = map("iqn.x=0:1,7:0:ro").expect("one");
    let mapping = |unit, read_only| Mapping { unit, read_only };
    let all: Vec<_> = found.luns.luns().collect();
    assert_eq!((&*found.initiator, all), ("iqn.x", vec![(0, mapping(1, false)), (7, mapping(0, true))]));
    for bad in
        ["iqn.x", "=0:0", "iqn.x=", "iqn.x=0", "iqn.x=0:0:rw", "iqn.x=0:0,0:1", "iqn.x=0:0,1:0", "iqn.x=a:0", "x=0:0"]
    {
        assert!(map(bad).is_err(), "{bad}");
    }
    let who = Who { map: vec![found.clone()], initiator: vec!["iqn.y".into()], ..Who::default() };
    let checked = configured(&who, &[], &[]).expect("right");
    let seen = ["iqn.x", "iqn.y", "iqn.z"].map(|name| sees(&checked, name));
    assert_eq!(seen, [luns(&[(0, "lun-1"), (7, "lun-0")]), luns(&ALL), None]);
    let group = group_of(&checked.config, TARGET, "iqn.x", [192, 0, 2, 1].into()).expect("it is mapped").1;
    assert_eq!(group.luns.0.values().map(|lun| lun.read_only).collect::<Vec<_>>(), [false, true]);
    let who = Who { map: vec![found.clone(), found], ..Who::default() };
    assert!(configured(&who, &[], &[]).expect_err("twice").contains("--map iqn.x is given twice"));
    let who = Who { map: vec![map("iqn.x=0:2").expect("one")], ..Who::default() };
    assert_eq!(
        configured(&who, &[], &[]).expect_err("two volumes"),
        "--map iqn.x: LUN 0 names volume 2, but volumes are numbered 0 to 1: correct the number"
    );
}

#[test]
fn a_map_alone_excludes_other_initiators() {
    let alone = || Who { map: vec![map("iqn.x=0:1").expect("one")], ..Who::default() };
    let both = |who: Who| {
        let checked = configured(&who, &[], &[]).expect("right");
        ["iqn.x", "iqn.y"].map(|name| sees(&checked, name))
    };
    let mapped = luns(&[(0, "lun-1")]);
    assert!(alone().excludes());
    assert_eq!(both(alone()), [mapped.clone(), None]);
    assert_eq!(both(Who { initiator: vec!["*".into()], ..alone() }), [mapped.clone(), luns(&ALL)]);
    let user = Who { user: Some("name".into()), secret_file: secret("secret of a user"), ..alone() };
    assert_eq!(both(user), [mapped, luns(&ALL)]);
}

#[test]
fn mapped_initiators_see_their_map_and_nothing_else() {
    let who = |initiator: &str| Who {
        map: vec![map("iqn.x:a*=0:1").expect("one")],
        initiator: vec![initiator.to_owned()],
        ..Who::default()
    };
    for covered in ["iqn.x:a*", "iqn.x:ab", "IQN.X:A*b"] {
        let checked = configured(&who(covered), &[], &[]).expect(covered);
        assert_eq!(sees(&checked, "iqn.x:ab"), luns(&[(0, "lun-1")]), "{covered}");
    }
    let why = configured(&who("iqn.x:*host-of-many"), &[], &[]).expect_err("some are mapped");
    assert!(why.contains("they would see all volumes"), "{why}");
    let checked = configured(&who("iqn.x*"), &[], &[]).expect("the map is more specific");
    assert_eq!((sees(&checked, "iqn.x:ab"), sees(&checked, "iqn.x:b")), (luns(&[(0, "lun-1")]), luns(&ALL)));
}

#[test]
fn patterns_overlap_where_a_name_fits_both() {
    for (one, other, both) in [
        ("a*", "*b", true),
        ("a*c", "ab*", true),
        ("a*", "b*", false),
        ("abc", "ABC", true),
        ("abc", "abd", false),
        ("*", "", true),
        ("a", "*a*", true),
        ("a*b", "a*c", false),
    ] {
        assert_eq!(overlap(one.as_bytes(), other.as_bytes()), both, "{one} {other}");
        assert_eq!(overlap(other.as_bytes(), one.as_bytes()), both, "{other} {one}");
    }
}

#[test]
fn only_named_initiators_may_log_in() {
    let who = Who { initiator: vec!["iqn.X:*".into()], ..Who::default() };
    let checked = configured(&who, &[], &[]).expect("right");
    assert_eq!((sees(&checked, "iqn.x:host"), sees(&checked, "iqn.y:host")), (luns(&ALL), None));
}

#[test]
fn names_that_no_client_can_have_are_refused() {
    for good in ["*", "iqn.2026-01.org.example:*", "IQN.x", "eui.*", "naa.5", "nqn.x", "i*", "n*:host", "iq*"] {
        assert!(initiator(good).is_ok(), "{good}");
    }
    for bad in ["", "notaniqn", "iqn", "iqn.a b", "host*", "192.0.2.1", "iq", " iqn.x"] {
        let why = initiator(bad).expect_err(bad);
        assert!(why.contains("iqn.2026-01.org.example:host"), "{why}");
    }
}

#[test]
fn a_host_with_a_key_is_admitted_by_no_other() {
    let (host, key) = ("nqn.2014-08.org.nvmexpress:uuid:1", "a key of the host");
    let checked =
        configured(&Who::default(), &[client(host, key, Some("a key of the subsystem"))], &[]).expect("right");
    assert_eq!((sees(&checked, host), sees(&checked, "nqn.y")), (luns(&ALL), None));
    let everybody = Who { initiator: vec!["*".into()], ..Who::default() };
    let checked = configured(&everybody, &[client(host, key, None)], &[]).expect("right");
    let target = &checked.config.targets[TARGET];
    let group = |name| group_of(&checked.config, TARGET, name, [192, 0, 2, 1].into()).expect("admitted").1;
    let word = |name| group(name).authentication(target).word();
    assert_eq!((word(host), word("nqn.y")), ("chap", "none"));
    let users: Vec<_> = group(host).users.names().map(|user| checked.config.users[user].login_name(user)).collect();
    assert_eq!(users, [host]);
    // A map whose pattern fits its name is for it, too.
    let mapped = Who { map: vec![map("nqn.2014*=0:1").expect("one")], ..Who::default() };
    let checked = configured(&mapped, &[client(host, key, None)], &[]).expect("right");
    assert_eq!(sees(&checked, host), luns(&[(0, "lun-1")]));
}

#[test]
fn one_identifier_means_one_namespace_to_all_hosts() {
    let ids = |maps: &[&str]| {
        let who = Who { map: maps.iter().map(|text| map(text).expect(text)).collect(), ..Who::default() };
        let checked = configured(&who, &[], &[]).expect("right");
        let of = |lun: &lunar_control::common_sections::Lun, number: u16| lun.namespace_of(number);
        checked.config.groups.values().map(|group| group.luns.0.iter().map(|(n, lun)| of(lun, *n)).collect()).collect()
    };
    let one: Vec<Vec<Option<u32>>> = ids(&["nqn.a=0:1"]);
    assert_eq!(one, [[Some(1)]], "LUN n is namespace n + 1");
    let several: Vec<Vec<Option<u32>>> = ids(&["nqn.a=0:0", "nqn.b=0:1"]);
    assert_eq!(several, [[Some(1)], [Some(2)]], "the volume at position n is namespace n + 1");
    let iscsi: Vec<Vec<Option<u32>>> = ids(&["iqn.a=0:0", "iqn.b=0:1"]);
    assert_eq!(iscsi, [[Some(1)], [Some(1)]], "no host sees them");
}

#[test]
fn a_virtual_machine_is_admitted_by_its_socket_alone() {
    let vm = "nqn.2026-01.io.lunar:vm:web";
    let restricted = Who { initiator: vec!["iqn.x".into()], ..Who::default() };
    let checked = configured(&restricted, &[], &[vm]).expect("right");
    let (_, group) = lunar_control::visibility::group_of_local(&checked.config, TARGET, "nqn.2026-01.io.lunar:vm:web")
        .expect("it has a group");
    assert_eq!(group.luns.0.len(), 2);
    // A host that gives its name over a network has to authenticate, and cannot.
    let target = &checked.config.targets[TARGET];
    assert_eq!(group.authentication(target).word(), "chap");
    let user = group.users.names().next().expect("a user");
    assert!(checked.user_secret(user).is_some_and(|secret| secret.bytes().len() == 16));
    assert_eq!(configured(&Who::default(), &[], &[vm]).expect("right").config.users.len(), 0);
}

use super::*;
use crate::apply::{MissingPolicy, Refusal, Running, TargetError, apply};
use crate::check::{Outside, OutsideError, check};
use crate::fake_target::FakeTarget;
use crate::testing::SAMPLE;
use crate::versions::Trouble;
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// No machine at all.
struct Nothing;

impl Outside for Nothing {
    fn config_mode(&self) -> Option<u32> {
        None
    }

    fn mode(&self, _path: &Path) -> Result<u32, OutsideError> {
        Ok(0o600)
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, OutsideError> {
        Ok(path.display().to_string().into_bytes())
    }

    fn credential(&self, name: &str) -> Result<PathBuf, OutsideError> {
        Ok(name.into())
    }

    fn random(&self) -> Result<[u8; 16], OutsideError> {
        Ok([7; 16])
    }
}

fn checked(text: &str) -> Checked {
    check(&SAMPLE, "x", text, &Nothing).unwrap_or_else(|problems| panic!("{problems}\n{text}"))
}

fn words(old: &str, new: &str) -> Vec<String> {
    Plan::between(&checked(old), &checked(new)).to_string().lines().map(str::to_owned).collect()
}

const SMALL: &str = "
    [volume.disk1]\nkind = 'file'\npath = '/srv/disk1.img'\nsize = '20G'
    [portal-group.front]\ntag = 1
    [portal.a]\naddress = '192.0.2.1'\ngroup = 'front'
    [target.main]\niqn = 'iqn.2026-01.org.example:main'\nportal-groups = ['front']
    [group.esx]\ntargets = ['main']\ninitiators = ['iqn.1998-01.com.vmware:*']\nluns = { 3 = 'disk1' }\n";

#[test]
fn a_plan_is_in_words_and_in_order() {
    assert_eq!(
        words("", SMALL),
        [
            "create volume disk1 (20 GiB file /srv/disk1.img)",
            "create portal group front (tag 1, active-optimized)",
            "create target main (iqn.2026-01.org.example:main)",
            "create group esx (iqn.1998-01.com.vmware:*)",
            "map disk1 as LUN 3 for group esx [clients of target main are notified]",
            "create portal a (192.0.2.1:3260, iscsi, portal group front)",
        ]
    );
    assert_eq!(
        words(SMALL, ""),
        [
            "remove portal a [sessions of target main end]",
            "unmap disk1 from LUN 3 of group esx [clients of target main are notified]",
            "remove group esx [sessions of target main end]",
            "remove target main [sessions of target main end]",
            "remove portal group front [sessions of target main end]",
            "remove volume disk1 (its data stays)",
        ]
    );
    assert_eq!(words(SMALL, SMALL), ["nothing to do"]);
}

#[test]
fn an_address_is_released_before_it_is_bound_again() {
    // The same file, the same tag, the same address under other names.
    let renamed = SMALL.replace("disk1]", "disk2]").replace("'disk1'", "'disk2'").replace("front", "back");
    let renamed = renamed.replace("portal.a", "portal.b");
    assert_eq!(
        words(SMALL, &renamed),
        [
            "take portal group front from target main (portal-groups) [sessions of target main end]",
            "remove portal a [sessions of target main end]",
            "unmap disk1 from LUN 3 of group esx [clients of target main are notified]",
            "remove portal group front [sessions of target main end]",
            "remove volume disk1 (its data stays)",
            "create volume disk2 (20 GiB file /srv/disk1.img)",
            "create portal group back (tag 1, active-optimized)",
            "map disk2 as LUN 3 for group esx [clients of target main are notified]",
            "create portal b (192.0.2.1:3260, iscsi, portal group back)",
            "add portal group back to target main (portal-groups) [sessions of target main end]",
        ]
    );
}

#[test]
fn changes_name_their_effect_on_clients() {
    for (from, to, said) in [
        ("20G", "30G", "change volume disk1: size 20G -> 30G [clients of target main are notified]"),
        (
            "3 = 'disk1'",
            "3 = { volume = 'disk1', read-only = true }",
            "change LUN 3 of group esx: read-only false -> true [clients of target main are notified]",
        ),
        (
            "tag = 1",
            "tag = 1\nalua-state = 'standby'",
            "change portal group front: alua-state active-optimized -> standby [clients of target main are notified]",
        ),
        (
            "['iqn.1998-01.com.vmware:*']",
            "['*']",
            "change group esx: initiators iqn.1998-01.com.vmware:* -> * [sessions of target main end]",
        ),
    ] {
        assert_eq!(words(SMALL, &SMALL.replace(from, to)), [said]);
    }
    let nvme = SMALL.replace("iqn = ", "nqn = 'nqn.2026-01.org.example:main'\niqn = ")
        + "[vm.web]\ntarget = 'main'\n[portal.n]\naddress = '192.0.2.1'\nprotocol = 'nvme-tcp'\ngroup = 'front'\n";
    assert_eq!(
        words(SMALL, &nvme),
        [
            "change target main: nqn none -> nqn.2026-01.org.example:main [sessions of target main end]",
            "create portal n (192.0.2.1:4420, nvme-tcp, portal group front)",
            "create VM web (target main)",
        ]
    );
    let server = words(SMALL, &format!("{SMALL}[server]\ncores = 4\ndrain = '5s'"));
    assert_eq!(server, ["change server: cores none -> 4; drain 10s -> 5s [after a restart]"]);
    let more = format!("{SMALL}[logging]\nlevel = 'debug'");
    assert_eq!(words(SMALL, &more), ["change logging: level info -> debug"]);
    assert!(Plan::between(&checked(SMALL), &checked(&more)).disturbed().is_empty());
    let gone = checked("");
    let ended = Plan::between(&checked(SMALL), &gone);
    assert_eq!(ended.disturbed(), BTreeMap::from([("main", Effect::EndsSessions)]));
}

#[test]
fn a_secret_that_changes_is_a_change() {
    let user = |secret: &str| checked(&format!("[user.u]\nsecret = {secret}"));
    let (one, other) = (user("'the first secret'"), user("'the other secret'"));
    assert_eq!(Plan::between(&one, &other).to_string(), "change user u: secret has a new value");
    let plan = Plan::between(&one, &user("{ file = '/somewhere/else' }"));
    assert_eq!(plan.to_string(), "change user u: secret (hidden) -> {\"file\":\"/somewhere/else\"}");
    // The content of a file may change while its name stays.
    struct Other;
    impl Outside for Other {
        fn config_mode(&self) -> Option<u32> {
            None
        }
        fn mode(&self, _path: &Path) -> Result<u32, OutsideError> {
            Ok(0o600)
        }
        fn read(&self, _path: &Path) -> Result<Vec<u8>, OutsideError> {
            Ok(b"what another writes".to_vec())
        }
        fn credential(&self, _name: &str) -> Result<PathBuf, OutsideError> {
            Err(OutsideError::Missing)
        }
        fn random(&self) -> Result<[u8; 16], OutsideError> {
            Err(OutsideError::Missing)
        }
    }
    let text = "[user.u]\nsecret = { file = '/somewhere/else' }";
    let later = check(&SAMPLE, "x", text, &Other).expect("it is right");
    assert_eq!(Plan::between(&checked(text), &later).to_string(), "change user u: secret has a new value");
}

/// Makes one step alone.
fn make(running: &mut FakeTarget, change: &Change, plan: &Plan, wanted: &Checked) {
    let mut transaction = running.begin(plan, wanted).expect("it can begin");
    running.prepare(&mut transaction, change, wanted).unwrap_or_else(|why| panic!("{change}: {why}\n{plan}"));
    running.commit(transaction, plan, wanted);
}

/// Carries out a plan and holds it to its promises at every step.
fn carry_out(running: &mut FakeTarget, plan: &Plan, wanted: &Checked) {
    for change in &plan.changes {
        make(running, change, plan, wanted);
        assert_eq!(running.dangling(), [""; 0], "after {change} of\n{plan}");
    }
}

/// No resource may be missing.
macro_rules! strict {
    () => {
        MissingPolicy {
            may_be_missing: BTreeSet::new(),
            may_lack: BTreeSet::new(),
            retry: &mut |_, _| unreachable!("nothing is forgiven"),
        }
    };
}

fn alone(wanted: &Checked) -> FakeTarget {
    let mut running = FakeTarget::new();
    carry_out(&mut running, &Plan::between(&Checked::default(), wanted), wanted);
    running
}

/// A configuration from random numbers.
fn random_configuration(dice: &[u8]) -> String {
    let mut dice = dice.iter().copied().cycle();
    let mut roll = |sides: u8| dice.next().unwrap_or_default() % sides;
    let mut text = String::new();
    let users = 1 + roll(3);
    for n in 0..users {
        text += &format!("[user.u{n}]\nsecret = 'a secret of {n}, {}'\n", roll(2));
    }
    text += &format!("[user.lunar]\nsecret = {{ file = '/a/secret/of/{}' }}\n", roll(2));
    let mut volumes = Vec::new();
    for place in 0..roll(4) {
        let name = format!("v{}", place + roll(2) * 4);
        text += &format!("[volume.{name}]\nkind = 'file'\npath = '/{place}'\nread-only = {}\n", roll(2) == 0);
        volumes.push(name);
    }
    text + &others(&volumes, users, &mut roll)
}

/// The sections other than users and volumes.
fn others(volumes: &[String], users: u8, roll: &mut dyn FnMut(u8) -> u8) -> String {
    let mut text = String::new();
    let mut add = |line: String| text += &(line + "\n");
    let list = |of: &str, among: u8, roll: &mut dyn FnMut(u8) -> u8| {
        let names: Vec<String> = (0..among).filter(|_| roll(2) == 0).map(|n| format!("'{of}{n}'")).collect();
        names.join(", ")
    };
    let (portal_groups, targets) = (roll(3), roll(4));
    let subsystems: Vec<u8> = (0..targets).filter(|_| roll(2) == 0).collect();
    let shift = u16::from(roll(2));
    (0..portal_groups).for_each(|n| add(format!("[portal-group.p{n}]\ntag = {}", u16::from(n) + 1 + shift)));
    for n in 0..targets {
        let shift = roll(2);
        add(format!("[target.t{n}]\niqn = 'iqn.2026-01.org.example:t{}'", n + shift * 8));
        if subsystems.contains(&n) {
            add(format!("nqn = 'nqn.2026-01.org.example:t{}'", n + shift * 8));
        }
        add(format!("portal-groups = [{}]", list("p", portal_groups, roll)));
        match roll(3) {
            0 => add("authentication = 'mutual-chap'\nmutual-user = 'lunar'".into()),
            _ => add("authentication = 'chap'".into()),
        }
        add(format!("users = ['u0', {}]", list("u", users, roll).replace("'u0'", "").trim_start_matches(", ")));
    }
    for n in 0..roll(4) {
        add(format!("[group.g{n}]\ninitiators = ['{n}', 'x{}']", roll(2) * 8 + n));
        add(format!("targets = [{}]\nusers = [{}]", list("t", targets, roll), list("u", users, roll)));
        add(format!("[group.g{n}.luns]"));
        // No volume twice.
        let first = usize::from(roll(8));
        for lun in 0..volumes.len() {
            if roll(2) == 0 {
                let volume = &volumes[(first + lun) % volumes.len()];
                let more = ["", ", namespace = 7"][usize::from(roll(2))];
                add(format!("{lun} = {{ volume = '{volume}', read-only = {}{more} }}", roll(2) == 0));
            }
        }
    }
    for n in (0..roll(3)).filter(|_| portal_groups > 0) {
        add(format!("[portal.a{}]\naddress = '127.0.0.{n}'\ngroup = 'p{}'", n + roll(2) * 4, roll(2) % portal_groups));
        add(format!("protocol = '{}'", ["iscsi", "nvme-tcp"][usize::from(roll(2))]));
    }
    for n in (0..roll(3)).filter(|_| !subsystems.is_empty()) {
        let target = subsystems[usize::from(roll(8)) % subsystems.len()];
        add(format!("[vm.m{n}]\ntarget = 't{target}'\nmode = '{}'", ["600", "660"][usize::from(roll(2))]));
        if portal_groups > 0 && roll(2) == 0 {
            add(format!("portal-group = 'p{}'", roll(2) % portal_groups));
        }
    }
    if roll(2) == 0 {
        add(format!("[limits]\nsessions = {}", 1 + roll(2)));
    }
    text
}

fn dice() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 97)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn one_after_the_other_is_the_other(one in dice(), other in dice()) {
        let (one, other) = (checked(&random_configuration(&one)), checked(&random_configuration(&other)));
        let mut running = alone(&one);
        let plan = Plan::between(&one, &other);
        carry_out(&mut running, &plan, &other);
        prop_assert_eq!(&running, &alone(&other), "{}", plan);
        prop_assert!(Plan::between(&other, &other).is_empty());
        prop_assert_eq!(plan.is_empty(), alone(&one) == alone(&other));
    }

    #[test]
    fn no_step_is_too_much(one in dice(), other in dice(), which in any::<prop::sample::Index>()) {
        let (one, other) = (checked(&random_configuration(&one)), checked(&random_configuration(&other)));
        let mut plan = Plan::between(&one, &other);
        prop_assume!(!plan.is_empty());
        let left_out = plan.changes.remove(which.index(plan.changes.len()));
        let mut running = alone(&one);
        for change in &plan.changes {
            make(&mut running, change, &plan, &other);
        }
        prop_assert_ne!(&running, &alone(&other), "{} is not needed", left_out);
    }

    #[test]
    fn all_or_nothing(one in dice(), other in dice(), at in 0..40_usize) {
        let (one, other) = (checked(&random_configuration(&one)), checked(&random_configuration(&other)));
        let plan = Plan::between(&one, &other);
        let mut running = alone(&one);
        running.fails_at = Some(at);
        let mut written = false;
        let result = apply(&mut running, &plan, &other, strict!(), || { written = true; Ok(()) });
        prop_assert_eq!(running.pending, 0);
        prop_assert_eq!(result.is_ok(), at >= plan.changes.len());
        prop_assert!(result.as_ref().is_ok_and(BTreeMap::is_empty) || result.is_err());
        prop_assert_eq!(written, result.is_ok());
        let expected = if result.is_ok() { &other } else { &one };
        prop_assert_eq!(&running, &alone(expected));
    }
}

/// Resources that are unavailable, at random.
fn lost(dice: &[u8], among: &Checked) -> BTreeSet<ObjectId> {
    let things = among.config.objects().into_keys().filter(|id| id.kind.may_be_missing());
    things.zip(dice).filter(|(_, dice)| *dice % 2 == 0).map(|(id, _)| id.into()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_is_away_is_left_out_and_comes_when_it_is_back(one in dice(), other in dice(), lots in dice()) {
        let (one, other) = (checked(&random_configuration(&one)), checked(&random_configuration(&other)));
        let mut running = alone(&one);
        running.unavailable = lost(&lots, &other);
        let away = running.unavailable.clone();
        let plan = Plan::between(&one, &other);
        // Each is tried as often as the policy allows.
        let mut tries = Vec::new();
        let mut retry = |object: &ObjectId, why: &TargetError| {
            tries.push((object.clone(), why.to_string()));
            tries.len() % 3 > 0
        };
        let policy = MissingPolicy { may_be_missing: away.clone(), may_lack: BTreeSet::new(), retry: &mut retry };
        let unavailable = apply(&mut running, &plan, &other, policy, || Ok(())).expect("the resources may be missing");
        let made = |id: &&ObjectId| plan.changes.iter().any(|one| one.action == Action::Create && one.object == **id);
        let new = away.iter().filter(made);
        prop_assert!(new.eq(unavailable.keys()), "{:?} of {:?}", unavailable, away);
        prop_assert_eq!(tries.len(), unavailable.len() * 3);
        prop_assert!(tries.iter().all(|(object, why)| unavailable[object].to_string() == *why));
        let served = other.clone().without(&unavailable);
        prop_assert_eq!(&running, &alone(&served));
        prop_assert_eq!(running.dangling(), [""; 0]);
        // Half of it comes back, and then all.
        running.unavailable.retain(|id| id.name.ends_with('1'));
        let may_lack = BTreeSet::new();
        let policy = MissingPolicy { may_be_missing: away.clone(), may_lack, retry: &mut |_, _| false };
        let plan = Plan::between(&served, &other);
        let still = apply(&mut running, &plan, &other, policy, || Ok(())).expect("it is forgiven");
        prop_assert!(still.keys().all(|id| unavailable.contains_key(id) && id.name.ends_with('1')));
        let served = other.clone().without(&still);
        prop_assert_eq!(&running, &alone(&served));
        running.unavailable.clear();
        let plan = Plan::between(&served, &other);
        let none = apply(&mut running, &plan, &other, strict!(), || Ok(())).expect("all is here");
        prop_assert_eq!((none.len(), running.pending), (0, 0));
        prop_assert_eq!(&running, &alone(&other));
    }

    #[test]
    fn an_unavailable_resource_that_must_not_be_missing_is_an_error(other in dice(), lots in dice()) {
        let other = checked(&random_configuration(&other));
        let mut running = FakeTarget::new();
        running.unavailable = lost(&lots, &other);
        prop_assume!(!running.unavailable.is_empty());
        let plan = Plan::between(&Checked::default(), &other);
        let refusal = apply(&mut running, &plan, &other, strict!(), || Ok(())).expect_err("it is unavailable");
        prop_assert_eq!(refusal.reason(), "it is unavailable");
        prop_assert_eq!((running.pending, &running), (0, &FakeTarget::new()));
    }
}

#[test]
fn a_file_that_cannot_be_written_changes_nothing() {
    let wanted = checked(SMALL);
    let mut running = FakeTarget::new();
    let plan = Plan::between(&Checked::default(), &wanted);
    let result = apply(&mut running, &plan, &wanted, strict!(), || Err(Trouble::Busy("/x".into())));
    let refusal = result.expect_err("it cannot be written");
    assert!(matches!(refusal, Refusal::Write(Trouble::Busy(_))), "{refusal:?}");
    assert_eq!((running.pending, &running), (0, &FakeTarget::new()));
}

/// A configuration of this size, with groups that see eight volumes each.
pub(crate) fn large(volumes: usize, groups: usize) -> String {
    let mut text = String::from("[portal-group.p]\ntag = 1\n[portal.a]\naddress = '127.0.0.1'\ngroup = 'p'\n");
    text.push_str("[target.t]\niqn = 'iqn.2026-01.org.example:t'\nportal-groups = ['p']\n");
    let mut add = |line: String| text.push_str(&line);
    for n in 0..volumes {
        let uuid = format!("f81d4fae-7dec-41d0-a765-{n:012x}");
        add(format!("[volume.v{n}]\nkind = 'file'\npath = '/srv/{n}.img'\nsize = '1G'\nuuid = '{uuid}'\n"));
    }
    for n in 0..groups {
        add(format!("[group.g{n}]\ntargets = ['t']\ninitiators = ['iqn.1998-01.com.vmware:host{n}', 'x{n}*']\n"));
        add(format!("sources = ['10.0.{}.{}']\n[group.g{n}.luns]\n", n / 256, n % 256));
        (0..8).for_each(|lun| add(format!("{lun} = 'v{}'\n", (n * 8 + lun) % volumes)));
    }
    text
}

#[test]
fn thousands_take_no_time() {
    let (small, text) = (checked(SMALL), large(4096, 1000));
    let start = Instant::now();
    let all = checked(&text);
    let (read, start) = (start.elapsed(), Instant::now());
    let (there, back) = (Plan::between(&small, &all), Plan::between(&all, &small));
    let none = Plan::between(&all, &checked(&text.replace("'1G'", "'2G'")));
    let planned = start.elapsed();
    assert_eq!(none.changes.len(), 4096);
    assert!(there.changes.len() > 4096 + 9000 && back.changes.len() > 4096 + 9000);
    // The limit is far above the time that it takes, and far below that of an algorithm with quadratic time.
    let most = Duration::from_secs(5);
    assert!(read < most && planned < most, "reading took {read:?}, planning {planned:?}");
    println!("reading {} KiB took {read:?}, three plans {planned:?}", text.len() >> 10);
}

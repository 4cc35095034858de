use super::*;
use crate::luns::LUN_MAX;
use crate::testing::SAMPLE;
use std::cell::RefCell;
use std::path::PathBuf;

/// A machine with these files.
#[derive(Default)]
pub(crate) struct Pretended {
    mode: Option<u32>,
    files: BTreeMap<PathBuf, (u32, Vec<u8>)>,
    asked: RefCell<Vec<PathBuf>>,
}

impl Pretended {
    fn with(files: &[(&str, u32, &str)]) -> Self {
        let file = |(path, mode, text): &(&str, u32, &str)| (PathBuf::from(path), (*mode, text.as_bytes().to_vec()));
        Self { mode: Some(0o100_600), files: files.iter().map(file).collect(), ..Self::default() }
    }
}

impl Outside for Pretended {
    fn config_mode(&self) -> Option<u32> {
        self.mode
    }

    fn mode(&self, path: &Path) -> Result<u32, OutsideError> {
        self.files.get(path).map(|(mode, _)| *mode).ok_or(OutsideError::Missing)
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, OutsideError> {
        self.asked.borrow_mut().push(path.to_owned());
        self.files.get(path).map(|(_, bytes)| bytes.clone()).ok_or(OutsideError::Missing)
    }

    fn credential(&self, name: &str) -> Result<PathBuf, OutsideError> {
        Ok(Path::new("/credentials").join(name))
    }

    fn random(&self) -> Result<[u8; 16], OutsideError> {
        Ok([7; 16])
    }
}

fn wrong_on(text: &str, outside: &dyn Outside) -> Vec<String> {
    match check(&SAMPLE, "x", text, outside) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.to_string().lines().map(str::to_owned).collect(),
    }
}

fn wrong(text: &str) -> Vec<String> {
    wrong_on(text, &Pretended::with(&[]))
}

/// The one problem that the text has: its place, and what it says.
#[track_caller]
fn one(text: &str, place: &str, words: &str) {
    let found = wrong(text);
    let [only] = &found[..] else { panic!("{text}: not one problem: {found:#?}") };
    assert!(only.starts_with(&format!("x:{place}: ")) && only.contains(words), "{text}: {only}");
}

const TARGET: &str =
    "[portal-group.p]\ntag = 1\n[target.t]\niqn = 'iqn.2026-01.org.example:t'\nportal-groups = ['p']\n";

#[test]
fn an_empty_file_is_a_configuration() {
    assert_eq!(wrong(""), [""; 0]);
    assert_eq!(check(&SAMPLE, "x", "", &Pretended::default()).expect("it is right"), Checked::default());
}

#[test]
fn spelling_mistakes_are_reported_with_a_suggestion() {
    for (text, place, words) in [
        ("[volume.a]\nkind = 'ram'\nsiez = '1G'\nsize = '1G'", "3:1", "did you mean 'size'?"),
        ("[volume.a]\nkind = 'rem'\nsize = '1G'", "2:8", "did you mean 'ram'?"),
        ("[volume.a]\nkind = 'ram'\nsize = '1GB'", "3:8", "volume.a.size: '1GB' is not a size"),
        ("[volume.a]\nkind = 'ram'\nsize = 1.5", "3:8", "a number with a fraction"),
        ("[volume.a]\nsize = '1G'", "1:9", "has no 'kind'"),
        ("[volume]\nkind = 'ram'", "2:1", "[volume.NAME]"),
        ("[volumes.a]\nkind = 'ram'", "1:2", "did you mean 'volume'?"),
        ("[volume.'a b']\nkind = 'ram'\nsize = '1G'", "1:9", "is not a name"),
        ("colour = 'red'", "1:1", "there is no section 'colour'; there are user, "),
        ("[limits]\nqueue-depth = 0", "2:15", "1 to 1024"),
        ("[isns]\nserver = 'my server'", "2:10", "is not a host"),
        ("[isns]\nperiod = '14s'", "2:10", "is 14s; it is 15 s to a day"),
        ("[limits]\nqueue-depth = 1\nlogin-time = '15'", "3:14", "is not a time span"),
        ("[volume.a]\nkind = 'ram'\nsize = '1G'\nread-only = 'yes'", "4:13", "true or false"),
        ("[volume.a]\nkind = 'ram'\nsize = '1G'\nkind = 'null'", "4:1", "is in the file twice"),
        ("[volume.a]\nkind = 'file'\npath = 'disk.img'", "3:8", "begins with '/'"),
        ("[volume.a]\nkind = 'ram'\nsize = '1G'\nread_only = true", "4:1", "did you mean 'read-only'?"),
        ("[volume.a\nkind = 'file'", "1:10", ""),
    ] {
        one(text, place, words);
    }
}

#[test]
fn names_lead_somewhere() {
    let text = format!(
        "{TARGET}[group.g]\ntargets = ['t']\ninitiators = ['*']\n[group.g.luns]\n0 = 'disk'\n[volume.dysk]\n\
                        kind = 'ram'\nsize = '1G'\n[portal.a]\naddress = '127.0.0.1'\ngroup = 'q'"
    );
    let found = wrong(&text);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert_eq!(found[0], "x:10:5: group.g.luns.0.volume: there is no volume 'disk': did you mean 'dysk'?");
    assert!(found[1].starts_with("x:16:9: portal.a.group: there is no portal group 'q'"), "{}", found[1]);
    // A resource with mistakes is not reported as missing.
    let broken = text.replace("'disk'", "'dysk'").replace("'q'", "'p'").replace("'1G'", "'1X'");
    let found = wrong(&broken);
    assert_eq!(found.len(), 1, "{found:#?}");
}

#[test]
fn duplicates_are_found() {
    let volume = |name: &str, rest: &str| format!("[volume.{name}]\nkind = 'file'\npath = '/{name}'\n{rest}\n");
    for key in ["serial = 'S'", "naa = '3000000000000001'", "uuid = 'f81d4fae-7dec-41d0-a765-00a0c91e6bf6'"] {
        let found = wrong(&(volume("a", key) + &volume("b", key)));
        assert!(found.len() == 1 && found[0].contains("is also that of volume a"), "{found:#?}");
    }
    one("[volume.a]\nkind = 'file'\npath = '/x'\n[volume.b]\nkind = 'file'\npath = '//x/.'", "6:8", "of volume a");
    let twin =
        format!("{TARGET}[portal-group.q]\ntag = 1\n[target.u]\niqn = 'iqn.2026-01.org.example:t'\nportal-groups = []");
    let found = wrong(&twin);
    assert!(found.len() == 2 && found[0].contains("portal group p") && found[1].contains("target t"), "{found:#?}");
    let luns = format!(
        "{TARGET}[volume.v]\nkind = 'ram'\nsize = '1M'\n[group.g]\ntargets = ['t']\ninitiators = ['*']\n\
                        luns = {{ 1 = 'v', 01 = 'v', {} = 'v', x = 'v' }}",
        LUN_MAX + 1
    );
    let found = wrong(&luns);
    assert!(found.len() == 3 && found.iter().all(|line| line.contains("is not a logical unit number")), "{found:#?}");
    let luns = luns.replace("01 =", "1 =").replace("16384 =", "2 =").replace("x =", "3 =");
    let found = wrong(&luns);
    let count = |words: &str| found.iter().filter(|line| line.contains(words)).count();
    assert!(
        (found.len(), count("is in the file twice"), count("is also LUN 1 of this group")) == (3, 1, 2),
        "{found:#?}"
    );
}

#[test]
fn addresses_do_not_overlap() {
    let portals = |addresses: &[&str]| {
        let one = |(at, address): (usize, &&str)| format!("[portal.n{at}]\naddress = '{address}'\ngroup = 'p'\n");
        TARGET.to_owned() + &addresses.iter().enumerate().map(one).collect::<String>()
    };
    for free in [&["0.0.0.0", "::"][..], &["127.0.0.1", "127.0.0.2"], &["127.0.0.1:1", "127.0.0.1:2"]] {
        assert_eq!(wrong(&portals(free)), [""; 0]);
    }
    for taken in [&["0.0.0.0", "127.0.0.1"][..], &["127.0.0.1", "0.0.0.0"], &["::1", "[::1]:3260"], &["::", "::1"]] {
        let found = wrong(&portals(taken));
        assert!(found.len() == 1 && found[0].contains("portal.n1.address: overlaps that of portal n0"), "{found:#?}");
    }
}

#[test]
fn an_initiator_belongs_to_one_group() {
    let group = |name: &str, rest: &str| format!("[group.{name}]\ntargets = ['t']\n{rest}\n");
    let both = |one: &str, other: &str| wrong(&(TARGET.to_owned() + &group("a", one) + &group("b", other)));
    assert_eq!(both("initiators = ['x']", "initiators = ['*']"), [""; 0]);
    assert_eq!(both("initiators = ['*']\nsources = ['10.0.0.0/8']", "initiators = ['*']"), [""; 0]);
    let found = both("initiators = ['y', 'X']", "initiators = ['x', 'z']");
    assert!(found.len() == 1 && found[0].contains("'x' is also in group a of target t"), "{found:#?}");
}

#[test]
fn volumes_need_their_keys() {
    for (text, place, words) in [
        ("[volume.a]\nkind = 'file'", "1:9", "has no 'path'"),
        ("[volume.a]\nkind = 'ram'", "1:9", "has no 'size'"),
        ("[volume.a]\nkind = 'null'\nsize = '1G'\npath = '/x'", "4:8", "has no path"),
        ("[volume.a]\nkind = 'block'\nsize = '1G'\npath = '/x'", "3:8", "has its own size"),
        ("[volume.a]\nkind = 'ram'\nsize = 1000", "3:8", "whole number of 512-byte blocks"),
        ("[volume.a]\nkind = 'ram'\nsize = 512\nblock-size = 4096", "3:8", "whole number of 4096-byte blocks"),
        ("[volume.a]\nkind = 'ram'\nsize = 0", "3:8", "one at least"),
        ("[volume.a]\nkind = 'ram'\nsize = '1M'\ndirect = true", "4:10", "no page cache"),
    ] {
        one(text, place, words);
    }
}

#[test]
fn removable_media_have_their_rules() {
    let disc = |more: &str| format!("[volume.a]\nkind = 'file'\npath = '/x'\nmedium = 'cd'\n{more}");
    assert_eq!(wrong(&disc("")), [""; 0]);
    assert_eq!(wrong("[volume.a]\nkind = 'ram'\nsize = '1M'\nmedium = 'removable'"), [""; 0]);
    for (more, place, words) in [
        ("size = '1G'", "5:8", "an image has its own size"),
        ("block-size = 4096", "5:14", "blocks of 2,048 bytes"),
        ("direct = true", "5:10", "through the page cache"),
        ("protection = 'type-1'", "5:14", "has no protection information"),
    ] {
        one(&disc(more), place, words);
    }
    let found = wrong("[volume.a]\nkind = 'null'\nsize = '1M'\nmedium = 'cd'");
    assert!(found.iter().any(|why| why.contains("2:8") && why.contains("image in a file")), "{found:#?}");
}

#[test]
fn secrets_are_closed_and_long_enough() {
    let inline = "[user.u]\nsecret = 'twelve bytes'";
    assert_eq!(wrong(inline), [""; 0]);
    one("[user.u]\nsecret = 'eleven byte'", "2:10", "has 11 bytes");
    one("[api-token.u]\nsecret = 'twelve bytes'", "2:10", "has 12 bytes; a secret has 16");
    one("[user.u]\nsecret = '(hidden)'", "2:10", "when it is shown");
    one("[user.u]\nsecret = { fiel = '/x' }", "2:19", "did you mean 'file'?");
    one("[user.u]\nsecret = { file = '/x' }", "2:10", "/x is not there");
    one("[user.u]\nsecret = { credential = '../x' }", "2:25", "name of a credential");
    let mut outside = Pretended::with(&[("/x", 0o100_640, "twelve bytes"), ("/y", 0o100_600, &"x".repeat(5000))]);
    let found = wrong_on("[user.u]\nsecret = { file = '/x' }", &outside);
    assert!(found.len() == 1 && found[0].contains("may be read by others (mode 0640)"), "{found:#?}");
    assert_eq!(outside.asked.borrow().len(), 0, "an open file is not read");
    let found = wrong_on("[user.u]\nsecret = { file = '/y' }", &outside);
    assert!(found.len() == 1 && found[0].contains("too large"), "{found:#?}");
    outside.mode = Some(0o100_644);
    let found = wrong_on(inline, &outside);
    assert!(found.len() == 1 && found[0].contains("chmod 600"), "{found:#?}");
}

const HOST_KEY: &str = "DHHC-1:01:J0qR2WNHWlQcsHLbbnAJ90qQOCgwxh9SLRo7BIMIUsGJ8cUH:";
const TLS_KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const LONG_TLS_KEY: &str = "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";

#[test]
fn incomplete_keys_of_hosts_are_refused() {
    let user = |key: &str| format!("[user.u]\nsecret = '{key}'\n");
    let tls = |key: &str| format!("[tls-key.k]\nsecret = '{key}'\n");
    let checked = check(&SAMPLE, "x", &(user(HOST_KEY) + &tls(TLS_KEY)), &Pretended::default()).expect("they are keys");
    assert_eq!(checked.tls_key("k"), Some(&Secret::of_any_length(TLS_KEY.into())));
    one(&user(&HOST_KEY.replace("J0qR", "J1qR")), "2:10", "was not copied completely");
    one(&user(&HOST_KEY.replace(":01:", ":07:")), "2:10", "is 00, 01, 02 or 03");
    check(&SAMPLE, "x", &tls(LONG_TLS_KEY), &Pretended::default()).expect("so is one of SHA-384");
    one(&tls(&TLS_KEY.replace(":01:", ":02:")), "2:10", "48 after 02");
    one(&tls(&TLS_KEY.replace("VRLb", "VRLB")), "2:10", "was not copied completely");
    one(&tls(HOST_KEY), "2:10", "nvme gen-tls-key");
    one("[tls-key.k]\nsecret = { file = '/x' }", "2:10", "/x is not there");
    let open = Pretended::with(&[("/x", 0o100_644, TLS_KEY)]);
    let found = wrong_on("[tls-key.k]\nsecret = { file = '/x' }", &open);
    assert!(found.len() == 1 && found[0].contains("chmod 600"), "{found:#?}");
}

#[test]
fn keys_about_hosts_must_fit_together() {
    const SUBSYSTEM: &str = "[portal-group.p]\ntag = 1\n[target.t]\nnqn = 'nqn.2026-01.org.example:t'\n\
                             portal-groups = ['p']\n";
    let keys = format!(
        "[user.h]\nsecret = '{HOST_KEY}'\n[user.c]\nsecret = 'a secret of CHAP'\n\
                        [tls-key.k]\nsecret = '{TLS_KEY}'\n{SUBSYSTEM}"
    );
    let target = |rest: &str| format!("{keys}{rest}\n");
    let group = "[group.g]\ntargets = ['t']\ninitiators = ['nqn.*']\n";
    let portal = "[portal.n]\naddress = '192.0.2.1'\ngroup = 'p'\ntls = 'required'\n";
    let right = format!(
        "authentication = 'chap'\nusers = ['h']\ndhchap-hashes = ['sha384']\n{group}tls-keys = ['k']\n\
                         {portal}protocol = 'nvme-tcp'\n[referral.r]\naddress = '192.0.2.9'"
    );
    assert_eq!(wrong(&target(&right)), [""; 0]);
    let checked = check(&SAMPLE, "x", &target(&right), &Pretended::default()).expect("it is right");
    assert_eq!(checked.config.referrals["r"].address.0.to_string(), "192.0.2.9:8009");
    for (rest, words) in [
        ("authentication = 'chap'\nusers = ['c']", "none of them has a DH-HMAC-CHAP key"),
        ("authentication = 'chap'\nusers = ['h']\ndhchap-hashes = []", "dhchap-hashes: is empty"),
        ("authentication = 'chap'\nusers = ['h']\ndhchap-groups = []", "dhchap-groups: is empty"),
        (&format!("{group}tls-keys = ['none']"), "there is no TLS key 'none'"),
        (portal, "is for protocol"),
    ] {
        let found = wrong(&target(rest));
        assert!(found.len() == 1 && found[0].contains(words), "{rest}: {found:#?}");
    }
    // A group has users of its own, and initiators come in by CHAP.
    let own = format!("authentication = 'chap'\nusers = ['c']\n{group}users = ['h']");
    assert_eq!(wrong(&target(&own)), [""; 0]);
    let both = format!("iqn = 'iqn.2026-01.org.example:t'\nauthentication = 'chap'\nusers = ['c']\n{group}");
    assert_eq!(wrong(&target(&both)), [""; 0]);
    let iscsi = target(&format!("{group}tls-keys = ['k']")).replace("nqn = 'nqn.", "iqn = 'iqn.");
    let found = wrong(&iscsi);
    assert!(found.len() == 1 && found[0].contains("none of its targets has an 'nqn'"), "{found:#?}");
    let many: String = (0..65).map(|at| format!("[referral.r{at}]\naddress = '192.0.2.9'\n")).collect();
    let found = wrong(&many);
    assert!(found.len() == 1 && found[0].contains("one too many"), "{found:#?}");
}

#[test]
fn logins_go_together() {
    let users = "[user.u]\nsecret = 'one secret of u'\n[user.m]\nsecret = 'the secret of m'\n";
    let target = |rest: &str| format!("{users}{TARGET}{rest}\n");
    let right = "authentication = 'mutual-chap'\nusers = ['u']\nmutual-user = 'm'";
    assert_eq!(wrong(&target(right)), [""; 0]);
    for (rest, words) in [
        ("users = ['u']", "did you mean authentication = \"chap\"?"),
        ("mutual-user = 'm'", "is set, but authentication is none"),
        ("authentication = 'chap'", "there are no users"),
        ("authentication = 'chap'\nusers = ['u']\nhashes = []", "hashes: is empty"),
        ("authentication = 'chap'\nusers = ['u']\nmutual-user = 'm'", "is only chap"),
        ("authentication = 'mutual-chap'\nusers = ['u']", "needs a 'mutual-user'"),
        ("authentication = 'mutual-chap'\nusers = ['m']\nmutual-user = 'm'", "RFC 7143 9.2.1"),
        ("authentication = 'chap'\nusers = ['u']\n[discovery]\nauthentication = 'chap'", "discovery.authentication"),
    ] {
        let found = wrong(&target(rest));
        assert!(found.len() == 1 && found[0].contains(words), "{rest}: {found:#?}");
    }
    let same = target(right).replace("the secret of m", "one secret of u");
    let found = wrong(&same);
    assert!(found.len() == 1 && found[0].contains("user m has the secret of user u"), "{found:#?}");
    // Users of a group.
    let group = "\n[group.g]\ntargets = ['t']\ninitiators = ['*']\nusers = ['u']";
    assert_eq!(wrong(&target(&format!("authentication = 'chap'{group}"))), [""; 0]);
    let found = wrong(&target(group));
    assert!(found.len() == 1 && found[0].contains("group.g.users"), "{found:#?}");
    let found = wrong(&same.replace("users = ['u']", &format!("users = []{group}")).replace("mutual-user = 'm'", ""));
    assert!(found.iter().any(|line| line.contains("mutual-user")), "{found:#?}");
}

#[test]
fn the_api_is_not_open() {
    let token = "[api-token.t]\nsecret = '0123456789abcdef'\n";
    let listener = |rest: &str| format!("{token}[api-listener.l]\n{rest}");
    let outside = Pretended::with(&[("/c", 0o100_644, ""), ("/k", 0o100_600, ""), ("/open", 0o100_644, "")]);
    let wrong = |text: &str| wrong_on(text, &outside);
    assert_eq!(wrong(&listener("address = '127.0.0.1'")), [""; 0]);
    assert_eq!(wrong(&listener("address = '192.0.2.1'\ncertificate = '/c'\nkey = '/k'")), [""; 0]);
    for (rest, words) in [
        ("address = '192.0.2.1'", "tokens are readable"),
        ("address = '127.0.0.1'\ncertificate = '/c'", "needs its 'key'"),
        ("address = '127.0.0.1'\nkey = '/k'", "needs its 'certificate'"),
        ("address = '192.0.2.1'\ncertificate = '/c'\nkey = '/open'", "may be read by others"),
        ("address = '192.0.2.1'\ncertificate = '/none'\nkey = '/k'", "/none is not there"),
    ] {
        let found = wrong(&listener(rest));
        assert!(found.len() == 1 && found[0].contains(words), "{rest}: {found:#?}");
    }
    let found = wrong("[api-listener.l]\naddress = '127.0.0.1'");
    assert!(found.len() == 1 && found[0].contains("there is no api-token"), "{found:#?}");
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let text = "[volume.a]\nkind = 'rma'\nsize = '1Q'\ncolour = 1\n[target.t]\niqn = 'x'\nportal-groups = ['none']\n\
                [group.g]\ntargets = ['u']\ninitiators = ['a b']\nsources = ['10.0.0.1/8']";
    let found = wrong(text);
    assert_eq!(found.len(), 6, "{found:#?}");
    let lines = |line: &String| line.split(':').nth(1).and_then(|line| line.parse::<u32>().ok());
    assert!(found.is_sorted_by_key(lines), "{found:#?}");
}

#[test]
fn a_secret_is_in_no_output() {
    const SECRET: &str = "correct horse battery staple";
    let key = TLS_KEY.trim_start_matches("NVMeTLSkey-1:01:");
    let text = format!(
        "[user.u]\nsecret = '{SECRET}'\n[api-token.t]\nsecret = '{SECRET}'\nrole = 'write'\n\
                        [user.h]\nsecret = '{HOST_KEY}'\n[tls-key.k]\nsecret = '{TLS_KEY}'"
    );
    let outside = Pretended::with(&[("/x", 0o100_600, SECRET)]);
    let checked = check(&SAMPLE, "x", &text, &outside).expect("it is right");
    let by_file = text.replace(&format!("'{SECRET}'"), "{ file = '/x' }");
    let by_file = check(&SAMPLE, "x", &by_file, &outside).expect("it is right");
    let other = check(&SAMPLE, "x", &text.replace("horse", "house"), &outside).expect("it is right");
    let open = Pretended { mode: Some(0o100_644), ..Pretended::with(&[("/x", 0o100_600, SECRET)]) };
    let mut shown = vec![
        format!("{checked:?}"),
        format!("{checked:#?}"),
        format!("{by_file:?}"),
        checked.config.show().to_string(),
        crate::Plan::between(&Checked::default(), &checked).to_string(),
        crate::Plan::between(&checked, &other).to_string(),
        format!("{:?}", crate::Plan::between(&checked, &by_file)),
        format!("{:?}", wrong_on(&text, &open)),
        crate::versions::difference(&SAMPLE, &text, &text.replace("horse", "house")),
        crate::versions::difference(&SAMPLE, &text.replace("secret", "secert"), ""),
        format!("{:?}", crate::document::edit(&SAMPLE, &format!("{text}\n{SECRET}"), &[])),
    ];
    // Slips of the pen around a secret.
    for slip in [
        text.replace("secret =", "secert ="),
        text.replace('\'', ""),
        text.replace("horse", "horse\\q").replace('\'', "\""),
        text.replace("secret = '", "secret = ['"),
    ] {
        shown.push(format!("{:?}", wrong_on(&slip, &outside)));
    }
    for text in &shown {
        let words = ["correct", "horse", "house", "battery", "staple", key, &HOST_KEY[10..]];
        let leaks = words.iter().any(|word| text.contains(word));
        assert!(!leaks, "{text}");
    }
}

/// Lines of configurations, right and wrong, in any order.
const LINES: &[&str] = &[
    "[volume.a]",
    "[volume]",
    "[group.g.luns]",
    "[group.g]",
    "[target.t]",
    "[portal-group.p]",
    "[portal.x]",
    "[user.u]",
    "[api-token.k]",
    "[api-listener.l]",
    "[limits]",
    "[discovery]",
    "[[volume]]",
    "[",
    "]",
    "\u{feff}",
    "ü = 'ü'",
    "''",
    "kind = 'ram'",
    "size = '1G'",
    "size = 99999999999999999999",
    "size = -1",
    "size = 0x10",
    "path = '/ü'",
    "0 = 'a'",
    "16384 = 'a'",
    "1 = { volume = 'a' }",
    "1 = {}",
    "luns = { 0 = 'a' }",
    "luns = []",
    "targets = ['t']",
    "initiators = ['*']",
    "sources = ['::/0', '10.0.0.0/8']",
    "iqn = 'iqn.2026-01.org.example:t'",
    "iqn = 1979-05-27",
    "portal-groups = ['p']",
    "tag = 1",
    "tag = 1e3",
    "tag = nan",
    "address = '127.0.0.1'",
    "address = '::1'",
    "group = 'p'",
    "secret = 'twelve bytes, or more'",
    "secret = { file = '/x' }",
    "secret = { credential = '' }",
    "secret = {}",
    "secret.file = '/x'",
    "authentication = 'chap'",
    "authentication = 'mutual-chap'",
    "users = ['u']",
    "mutual-user = 'u'",
    "hashes = []",
    "# remark",
    "",
    "a.b.c.d = 1",
    "volume.a.size = 1",
    "x = '''",
    "x = \"\\u0000\"",
];

proptest::proptest! {
    #[test]
    fn no_text_is_too_strange(picks in proptest::collection::vec(0..LINES.len(), 0..24)) {
        let text: String = picks.into_iter().map(|pick| format!("{}\n", LINES[pick])).collect();
        let result = check(&SAMPLE, "x", &text, &Pretended::with(&[("/x", 0o100_600, "the secret in a file")]));
        match &result {
            Ok(checked) => assert!(crate::Plan::between(checked, checked).is_empty()),
            Err(problems) => {
                let lines = text.lines().count() + 1;
                assert!(!problems.list.is_empty() && problems.list.iter().all(|problem| problem.line <= lines));
            }
        }
        if let Ok(same) = crate::document::edit(&SAMPLE, &text, &[]) {
            // A byte order mark says nothing in UTF-8, and goes.
            assert_eq!(same, text.trim_start_matches('\u{feff}'), "what is not changed stays");
        } else {
            assert!(result.is_err());
        }
        let _ = crate::redact::without_secrets(&SAMPLE, &text);
    }
}

#[test]
fn a_target_has_a_name() {
    one("[target.t]\nportal-groups = []\n", "1:9", "has no name");
    let subsystem = TARGET.replace("iqn = 'iqn.", "nqn = 'nqn.");
    assert_eq!(wrong(&subsystem), [""; 0]);
    let twins = format!("{subsystem}[target.u]\nnqn = 'nqn.2026-01.org.example:t'\nportal-groups = []\n");
    one(&twins, "7:7", "is also that of target t");
    one(&subsystem.replace("org.example:t", "org.example:a b"), "4:7", "is not an NQN");
}

#[test]
fn a_subsystem_has_one_meaning_for_an_identifier() {
    let groups = |hosts: [&str; 2], luns: [&str; 2]| {
        let volume = |name| format!("[volume.{name}]\nkind = 'ram'\nsize = '1M'\n");
        let group = |name, at: usize| {
            format!("[group.{name}]\ntargets = ['t']\ninitiators = [{}]\nluns = {{ {} }}\n", hosts[at], luns[at])
        };
        let target = TARGET.replace("iqn = ", "nqn = 'nqn.2026-01.org.example:t'\niqn = ");
        target + &volume("a") + &volume("b") + &group("g", 0) + &group("h", 1)
    };
    let both = ["'nqn.x:*'", "'*'"];
    for luns in [
        ["0 = 'a', 1 = 'b'", "1 = 'b'"],
        ["0 = 'a'", "5 = { volume = 'a', namespace = 1 }"],
        ["0 = 'a'", "0 = { volume = 'b', namespace = 2 }"],
        ["0 = 'a'", "1024 = 'a'"],
    ] {
        assert_eq!(wrong(&groups(both, luns)), [""; 0], "{luns:?}");
    }
    for (luns, words) in [
        (["0 = 'a'", "0 = 'b'"], "is namespace 1, as volume a is in group g"),
        (["0 = 'a'", "1 = 'a'"], "is namespace 2, and in group g namespace 1"),
        (["0 = 'a', 1 = { volume = 'b', namespace = 1 }", ""], "is namespace 1, as volume a is in group g"),
    ] {
        let found = wrong(&groups(both, luns));
        assert!(found.len() == 1 && found[0].contains(words), "{found:#?}");
        // They are not shown to NVMe hosts.
        assert_eq!(wrong(&groups(["'iqn.a'", "'iqn.*'"], luns)), [""; 0]);
    }
    assert_eq!(wrong(&groups(["'n?n.x'", "'nq*'"], ["0 = 'a'", "0 = 'b'"])).len(), 1);
}

#[test]
fn namespaces_of_hosts_need_a_pool_and_a_namespace_id() {
    let target = TARGET.replace("iqn = ", "nqn = 'nqn.2026-01.org.example:t'\niqn = ");
    let made =
        |name: &str, keys: &str| format!("[volume.{name}]\nkind = 'file'\npath = '/srv/{name}'\nsize = '1M'\n{keys}");
    let group = |luns: &str| format!("[group.g]\ntargets = ['t']\ninitiators = ['*']\npool = 'few'\n{luns}");
    let pool = "[pool.few]\nfolder = '/srv'\nspace = '3M'\n";
    let all = |luns: &str, more: &str| format!("{pool}{target}{}{more}", group(luns));
    let two = made("a", "pool = 'few'\nnamespace = 2\nprivate = true\nattached = ['nqn.x']\n");
    let config = |text: &str| check(&SAMPLE, "x", text, &Pretended::default()).expect("it is right").config;
    let first = config(&all("luns = { 0 = 'b' }\n", &(two.clone() + &made("b", ""))));
    assert_eq!((first.left_of("few"), first.free_namespace("few")), (2 << 20, Some(3)));
    assert_eq!((first.left_of("none"), first.free_namespace("none")), (0, Some(1)));
    // It has its own namespace ID in every LUN map.
    let mapped = config(&all("luns = { 8 = 'a' }\n", &two));
    assert_eq!(mapped.namespace_of(8, &mapped.groups["g"].luns.0[&8]), Some(2));
    for (text, words) in [
        (all("", &made("a", "namespace = 2\n")), "needs its 'pool'"),
        (all("", &made("a", "private = true\n")), "needs its 'pool'"),
        (all("", &made("a", "attached = ['nqn.x']\n")), "needs its 'pool'"),
        (all("", &made("a", "pool = 'few'\n")), "needs a 'namespace'"),
        (all("", &made("a", "pool = 'many'\nnamespace = 2\n")), "there is no pool 'many'"),
        (all("", "[volume.a]\nkind = 'ram'\nsize = '1M'\npool = 'few'\nnamespace = 2\n"), "files with a size"),
        (all("luns = { 1 = 'b' }\n", &(two.clone() + &made("b", ""))), "is namespace 2, as volume b is in group g"),
        (all("luns = { 1 = { volume = 'a', namespace = 7 } }\n", &two), "created the volume as namespace 2"),
        (format!("{pool}{TARGET}{}", group("")), "none of its targets has an 'nqn'"),
    ] {
        let found = wrong(&text);
        assert!(found.len() == 1 && found[0].contains(words), "{text}\n{found:#?}");
    }
}

#[test]
fn only_protection_information_that_there_is_can_be_shown() {
    let config = |protection: &str, luns: [&str; 2]| {
        let volume = format!("[volume.a]\nkind = 'ram'\nsize = '1M'\nprotection = '{protection}'\n");
        let group = |name, pattern, luns| {
            format!("[group.{name}]\ntargets = ['t']\ninitiators = ['{pattern}']\nluns = {{ {luns} }}\n")
        };
        let target = TARGET.replace("iqn = ", "nqn = 'nqn.2026-01.org.example:t'\niqn = ");
        target + &volume + &group("g", "nqn.*", luns[0]) + &group("h", "*", luns[1])
    };
    let shown = "0 = { volume = 'a', metadata = true }";
    for (protection, luns) in [("type-1", [shown, shown]), ("type-3", [shown, ""]), ("none", ["0 = 'a'", "0 = 'a'"])] {
        assert_eq!(wrong(&config(protection, luns)), [""; 0], "{protection} {luns:?}");
    }
    for (protection, luns, words) in [
        ("none", [shown, ""], "volume a has no protection information"),
        ("type-1", [shown, "0 = 'a'"], "and in group g true: within NVM subsystem t a namespace has one format"),
    ] {
        let found = wrong(&config(protection, luns));
        assert!(found.len() == 1 && found[0].contains(words), "{found:#?}");
    }
}

#[test]
fn a_group_may_say_itself_how_its_initiators_authenticate() {
    let found = |group: &str| {
        let text = format!(
            "user.u.secret = 'secret of a user'\nuser.t = {{ secret = 'secret of a target', login = 'a/b c' }}\n\
             portal-group.p.tag = 1\n[target.x]\niqn = 'iqn.2026-01.org.example:x'\nportal-groups = ['p']\n\
             [group.g]\ntargets = ['x']\ninitiators = ['*']\n{group}"
        );
        wrong(&text).join("\n")
    };
    assert_eq!(found("authentication = 'chap'\nusers = ['u']"), "");
    assert_eq!(found("authentication = 'mutual-chap'\nusers = ['u']\nmutual-user = 't'"), "");
    for (group, words) in [
        ("users = ['u']", "group.g.users: lists users, but target x has no authentication"),
        ("mutual-user = 't'", "group.g.mutual-user: names the user of the target, but target x has"),
        ("authentication = 'chap'", "group.g.authentication: is chap, but there are no users"),
        ("authentication = 'mutual-chap'\nusers = ['u']", "needs a 'mutual-user'"),
        ("authentication = 'chap'\nusers = ['u']\nmutual-user = 't'", "is set, but authentication is only chap"),
        ("authentication = 'mutual-chap'\nusers = ['u']\nmutual-user = 'u'", "each direction needs its own"),
    ] {
        let why = found(group);
        assert!(why.contains(words) && why.lines().count() == 1, "{group}: {why}");
    }
}

#[test]
fn a_portal_has_a_port_and_only_iscsi_hides_one() {
    let portal = |keys: &str| format!("portal-group.p.tag = 1\n[portal.x]\ngroup = 'p'\n{keys}");
    one(&portal("address = '192.0.2.1:0'"), "4:11", "portal.x.address: has port 0");
    one(&portal("address = '192.0.2.1'\nadvertise = '192.0.2.1:0'"), "5:13", "portal.x.advertise: has port 0");
    one(&portal("address = '::'\nprotocol = 'nvme-tcp'\nlisted = false"), "6:1", "is for protocol = \"iscsi\"");
    assert!(wrong(&portal("address = '::'\nlisted = false")).is_empty());
}

use super::*;
use crate::config::parse;
use crate::report::Report;

const TEXT: &str = "
    [user.esx]\nsecret = { file = '/etc/lunar/secrets/esx' }\n
    [user.backup]\nsecret = { file = '/etc/lunar/secrets/backup' }\n
    [portal-group.front]\ntag = 1\n
    [portal-group.rear]\ntag = 2\n
    [portal.a]\naddress = '10.0.0.5'\nprotocol = 'iscsi'\ngroup = 'front'\n
    [target.vmfs]\niqn = 'iqn.2026-01.org.example:vmfs'\nnqn = 'nqn.2026-01.org.example:vmfs'\n
    portal-groups = ['front']\nusers = ['esx']\nauthentication = 'chap'\n
    [target.db]\niqn = 'iqn.2026-01.org.example:db'\nportal-groups = ['front']\nenabled = false\n
    [group.esx]\ntargets = ['vmfs']\ninitiators = ['iqn.1998-01.com.vmware:esx3']\nsources = ['10.0.0.0/24']\n
    [group.db]\ntargets = ['db']\ninitiators = ['iqn.1994-05.com.redhat:db1']\n";

fn config() -> Config {
    let mut report = Report::new(&crate::testing::SAMPLE);
    let (config, _) = parse(TEXT, &mut report);
    assert!(report.is_clean(), "{}", report.finish("x", TEXT));
    config
}

fn facts<'a>(host: &'a str, target: &'a str) -> Facts<'a> {
    let source = Some(IpAddr::from([10, 1, 0, 9]));
    Facts { protocol: "iscsi", host, source, target, user: "", portal_group: None }
}

fn advised(code: RefusalCode, facts: &Facts<'_>) -> (String, Vec<String>) {
    let Advice { near, remedies } = of(&config(), code, facts);
    (near.join("; "), remedies.into_iter().map(|remedy| remedy.command).collect())
}

const VMFS: &str = "iqn.2026-01.org.example:vmfs";

#[test]
fn a_misspelled_client_is_near_to_its_group() {
    let (near, commands) = advised(RefusalCode::NotShown, &facts("iqn.1998-01.com.vmware:esx-3", VMFS));
    assert_eq!(near, "group esx lists iqn.1998-01.com.vmware:esx3: 1 character differs");
    let both = "iqn.1998-01.com.vmware:esx3,iqn.1998-01.com.vmware:esx-3";
    assert_eq!(commands, [format!("lunar group set esx --initiators {both}")]);
}

#[test]
fn a_client_of_another_group_and_a_stranger_are_told_apart() {
    let (near, commands) = advised(RefusalCode::NotShown, &facts("iqn.1994-05.com.redhat:db1", VMFS));
    assert!(near.starts_with("group db lists the client, and is a group of db, not of vmfs"), "{near}");
    assert_eq!(commands, ["lunar group set db --targets db,vmfs"]);
    let (near, commands) = advised(RefusalCode::NotShown, &facts("iqn.1993-08.org.debian:01:abc", VMFS));
    assert!(near.contains("open-iscsi generates"), "{near}");
    assert_eq!(commands.len(), 1, "{commands:?}");
    let (_, commands) = advised(RefusalCode::NotShown, &facts("iqn.x:'; reboot #", VMFS));
    assert!(commands[0].ends_with(r"iqn.x:'\''; reboot #'"), "{commands:?}");
}

#[test]
fn an_address_outside_of_the_networks_is_added() {
    let (near, commands) = advised(RefusalCode::WrongNetwork, &facts("iqn.1998-01.com.vmware:esx3", VMFS));
    assert!(near.contains("10.1.0.9 is not in its sources 10.0.0.0/24"), "{near}");
    assert_eq!(commands, ["lunar group set esx --sources 10.0.0.0/24,10.1.0.9"]);
}

#[test]
fn a_target_that_is_off_misspelled_or_unknown() {
    let db = advised(RefusalCode::NoTarget, &facts("iqn.x", "iqn.2026-01.org.example:db"));
    assert!(db.0.contains("switched off") && db.1 == ["lunar target set db --enabled=true"], "{db:?}");
    let (near, commands) = advised(RefusalCode::NoTarget, &facts("iqn.x", "iqn.2026-01.org.example:vfms"));
    assert!(near.contains("target vmfs is iqn.2026-01.org.example:vmfs: 1 character differs"), "{near}");
    assert_eq!(commands[0], format!("iscsiadm -m node -T {VMFS} --login"));
    let nvme = Facts { protocol: "nvme-tcp", ..facts("nqn.h", "nqn.2026-01.org.example:VMFS") };
    assert!(advised(RefusalCode::NoTarget, &nvme).0.contains("the case of the letters differs"));
    let (near, commands) = advised(RefusalCode::NoTarget, &facts("iqn.x", "iqn.1999-01.com.other:thing"));
    assert!(near.is_empty() && commands[0].ends_with("-o delete"), "{near} {commands:?}");
}

#[test]
fn users_that_are_misspelled_or_not_allowed_here() {
    let user = |user| advised(RefusalCode::UnknownUser, &Facts { user, ..facts("iqn.1998-01.com.vmware:esx3", VMFS) });
    let (near, commands) = user("ESX");
    assert!(near.contains("the case of the letters differs"), "{near}");
    assert!(commands[0].starts_with("iscsiadm") && commands[0].ends_with("-v esx"), "{commands:?}");
    let (near, commands) = user("backup");
    assert!(near.contains("user backup has this name, and may not log in here"), "{near}");
    assert_eq!(commands, ["lunar target set vmfs --users esx,backup"]);
    assert!(user("nobody").0.contains("the users here are esx"));
}

#[test]
fn portals_and_secrets() {
    let portal = Facts { portal_group: Some(2), ..facts("iqn.x", VMFS) };
    let (near, commands) = advised(RefusalCode::OtherPortal, &portal);
    assert!(near.contains("reached through front: 10.0.0.5:3260"), "{near}");
    assert_eq!(commands, ["lunar target set vmfs --portal-groups front,rear"]);
    let secret = Facts { user: "esx", ..facts("iqn.1998-01.com.vmware:esx3", VMFS) };
    let (near, commands) = advised(RefusalCode::WrongSecret, &secret);
    assert!(near.contains("/etc/lunar/secrets/esx"), "{near}");
    assert_eq!(commands[0], "lunar user set esx --secret -");
    let (_, commands) = advised(RefusalCode::NoProofOfOurs, &secret);
    assert_eq!(commands[0], "lunar user create vmfs-target --secret -");
    assert!(commands[1].ends_with("--authentication mutual-chap --mutual-user vmfs-target"), "{commands:?}");
}

#[test]
fn every_code_can_be_advised_about_whatever_the_names_are() {
    for code in RefusalCode::ALL {
        for (host, target) in [("", ""), ("iqn.x", VMFS), ("\u{202e}\n", "\0"), ("x", "vmfs")] {
            let advice = of(&config(), *code, &facts(host, target));
            let lines = advice.near.iter().chain(advice.remedies.iter().map(|remedy| &remedy.command));
            assert!(lines.clone().all(|line| !line.contains(['\n', '\0'])), "{advice:?}");
            assert!(lines.count() <= 2 * LISTED_MAX);
        }
    }
}

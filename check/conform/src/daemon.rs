//! `lunar daemon`: changes of the configuration file while sessions exist, and kill -9 during changes.

mod apply_crash;
mod fixture;
mod isns;
mod nvme;
mod sandbox;
mod scale;
mod stores;

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::Signal;

use crate::pdu::{Connection, Received, op};
use crate::session::{self, ANSWER_LIMIT, Data, GOOD, Login, Session, keys_of};
use crate::target::{Driver, Lab, free_port};
use crate::test_data::pattern;
use crate::tools::{expect_text, tool};
use fixture::{
    ACCESS, CAPACITY, Case, ConfigChange, Daemon, INVENTORY, LIMIT, MAIN, NOT_SUPPORTED, OTHER, TEST_UNIT_READY,
    UNIT_ATTENTION, expect_sense, expect_undisturbed, luns, started, started_with, until, uuids,
};

const CASES: [Case; 12] = [
    ("a configuration is served, and each initiator sees its own targets and LUNs", serves),
    ("an edit during the start is not lost", starts_while_edited),
    (
        "an unavailable volume is not ready and an unavailable portal is left out at start, until they are back",
        starts_without_missing_stores,
    ),
    ("an error in the file is reported with its position, and nothing is changed", rejects_errors),
    ("LUNs are added and removed, and the sessions that see them get a unit attention", changes_luns),
    ("commands in progress finish before their LUN is removed", drains_a_lun),
    ("a volume grows", grows),
    ("a disabled target requests logouts and then closes its sessions", drains_a_target),
    ("a moved target redirects logins", redirects),
    ("a change of the access state of a portal group causes a unit attention", changes_access_state),
    ("sessions that are no longer allowed end", ends_disallowed_sessions),
    ("thousands of volumes and groups", scale::part),
];

/// Runs all cases, each with a daemon of its own, and the crashes.
pub(crate) fn part(lab: &Lab, driver: Driver, rounds: u32, applies: u32) -> Result<()> {
    lab.built()?;
    let part = format!("daemon/{}", driver.name());
    for (name, case) in
        stores::CASES.into_iter().chain(CASES).chain(sandbox::CASES).chain(nvme::CASES).chain(isns::CASES)
    {
        lab.report.check(&part, name, || case(lab, driver));
    }
    lab.report.check(&part, &format!("kill -9 during a reload, {rounds} times"), || crashes(lab, driver, rounds));
    let name = format!("kill -9 while the API applies a configuration, {applies} times");
    lab.report.check(&part, &name, || apply_crash::part(lab, driver, applies));
    Ok(())
}

fn serves(lab: &Lab, driver: Driver) -> Result<()> {
    let mut daemon = started(lab, driver, "serves")?;
    let url = format!("iscsi://{}", daemon.portal);
    let shown = tool("iscsi-ls", &["--show-luns", &url])?;
    expect_text(&shown, MAIN)?;
    ensure!(!shown.contains(OTHER), "an initiator is shown a target of another group:\n{shown}");
    expect_text(&tool("iscsi-inq", &[&format!("{url}/{MAIN}/4")])?, "DIRECT_ACCESS")?;
    expect_text(&tool("iscsi-ls", &["--initiator-name", "iqn.2026-01.org.example:few", &url])?, OTHER)?;
    ensure!(
        Session::open(daemon.portal, &Login::to(OTHER, "many")).is_err(),
        "an initiator logs in to a target of another group"
    );
    let mut session = daemon.session(MAIN, "writer", 0)?;
    session.write(7, vec![0x5a; 512], 512)?;
    session.lun = 4;
    let refused = loop {
        let done = session.run(&session::cdb::write(0, 1), Data::Out(vec![0; 512]))?;
        if done.sense().0 != UNIT_ATTENTION {
            break done.sense();
        }
    };
    ensure!(refused == (7, 0x27, 0), "a write to a read-only LUN ends with {refused:02x?}");
    session.logout()?;
    let text = std::fs::read_to_string(daemon.file())?;
    ensure!(text.starts_with("# Kept by hand.\n"), "comments are lost:\n{text}");
    let known = uuids(&daemon.file())?;
    ensure!(known.len() == 2, "volumes have no UUIDs in the file:\n{text}");
    daemon.target.take().context("the daemon runs")?.stop()?;
    // The file is restored without UUIDs: the daemon remembers the identity of the volumes.
    daemon.write(&daemon.text(&ConfigChange::default()))?;
    daemon.start(lab)?;
    let read = daemon.session(MAIN, "reader", 0)?.read(7, 1, 512)?;
    ensure!(read == [0x5a; 512], "the written data is lost");
    // After a login, the file is in its final form.
    ensure!(uuids(&daemon.file())? == known, "the UUIDs of volumes changed after a restart");
    daemon.stop()
}

/// Starts during which the file is edited, each time a little later.
const EDITED_STARTS: u32 = 12;

/// At whatever moment of the start the file is edited, it contains the edit and the UUIDs of the volumes, and the next
/// SIGHUP applies it.
fn starts_while_edited(lab: &Lab, driver: Driver) -> Result<()> {
    let edit = ConfigChange { luns: "0 = \"disk\", 7 = \"memory\"", ..ConfigChange::default() };
    for round in 0..EDITED_STARTS {
        let mut daemon = Daemon::new(lab, driver, &format!("edited{round}"))?;
        daemon.write(&daemon.text(&ConfigChange::default()))?;
        let wanted = daemon.text(&edit);
        let (file, text) = (daemon.file(), wanted.clone());
        let editor = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(u64::from(round) * 8));
            let unfinished = file.with_extension("editor");
            std::fs::write(&unfinished, text).and_then(|()| std::fs::rename(unfinished, file))
        });
        daemon.start(lab)?;
        editor.join().map_err(|_| anyhow!("the editor panicked"))??;
        daemon.reload("reloaded").with_context(|| format!("round {round}"))?;
        let text = std::fs::read_to_string(daemon.file())?;
        let plain: String =
            text.lines().filter(|line| !line.starts_with("uuid")).map(|line| format!("{line}\n")).collect();
        ensure!(plain == wanted, "round {round}: the edit is lost:\n{text}");
        let seen = luns(&mut daemon.session(MAIN, "host", 0)?)?;
        ensure!(seen == [0, 7], "round {round}: it serves {seen:?}");
        daemon.stop()?;
    }
    Ok(())
}

/// The file of a volume is missing and an address is in use at start: all other volumes are served. The volume returns
/// by itself with its file, and the portal with a reload.
fn starts_without_missing_stores(lab: &Lab, driver: Driver) -> Result<()> {
    let second = free_port()?;
    let more = format!("[portal.two]\naddress = \"{second}\"\ngroup = \"p\"\n");
    let mut daemon = started_with(lab, driver, "away", |_| more.clone())?;
    daemon.session(MAIN, "host", 0)?.write(3, vec![0xa5; 512], 512)?;
    daemon.target.take().context("the daemon runs")?.stop()?;
    let (file, aside) = (daemon.folder.join("disk.img"), daemon.folder.join("aside.img"));
    std::fs::rename(&file, &aside)?;
    let taken = std::net::TcpListener::bind(second)?;
    daemon.start(lab)?;
    for wanted in ["volume disk: clients find it not ready: ", "portal two is not served: "] {
        expect_text(&daemon.log_text(), wanted)?;
    }
    let mut session = daemon.session(MAIN, "host", 4)?;
    ensure!(luns(&mut session)? == [0, 4], "it serves {:?}", luns(&mut session)?);
    // Other changes apply at once.
    let third = "[volume.third]\nkind = \"ram\"\nsize = \"1M\"\n";
    let all = "0 = \"disk\", 4 = { volume = \"memory\", read-only = true }, 7 = \"third\"";
    let change = ConfigChange { luns: all, more: third, ..ConfigChange::default() };
    daemon.write(&(daemon.text(&change) + &more))?;
    daemon.reload("create volume third")?;
    expect_sense(&mut session, INVENTORY)?;
    // A change of an unavailable volume must not create a file in its place.
    daemon.write(&(daemon.text(&ConfigChange { size: "48M", ..change.clone() }) + &more))?;
    daemon.reload("is not certainly the store with which volume disk was served last")?;
    ensure!(!file.exists(), "a file was created in place of the missing one");
    daemon.write(&(daemon.text(&change) + &more))?;
    drop(taken);
    std::fs::rename(&aside, &file)?;
    daemon.reload("create portal two")?;
    until(|| daemon.log_text().contains("volume disk: its store is back and is served"))?;
    ensure!(luns(&mut session)? == [0, 4, 7], "it serves {:?}", luns(&mut session)?);
    ensure!(daemon.session(MAIN, "reader", 0)?.read(3, 1, 512)? == [0xa5; 512], "the written data is lost");
    Session::ready(second, &Login::to(MAIN, "newcomer"), 4)?.logout()?;
    expect_undisturbed(&mut session)?;
    daemon.stop()
}

fn rejects_errors(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "refuses")?;
    let mut session = daemon.session(MAIN, "host", 0)?;
    let wrong = daemon.text(&ConfigChange { main: "querty = 1", ..ConfigChange::default() });
    let line = wrong.lines().position(|line| line.starts_with("querty")).context("the key is in the file")? + 1;
    daemon.write(&wrong)?;
    daemon.reload(&format!("lunar.toml:{line}:1: target.main: there is no key 'querty'"))?;
    expect_undisturbed(&mut session)?;
    // A valid configuration that cannot be applied changes nothing.
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let more = format!("[portal.two]\naddress = \"{}\"\ngroup = \"p\"\n", taken.local_addr()?);
    daemon.write(&(daemon.text(&ConfigChange { luns: "0 = \"disk\"", ..ConfigChange::default() }) + &more))?;
    daemon.reload("nothing was changed")?;
    expect_undisturbed(&mut session)?;
    ensure!(luns(&mut session)? == [0, 4], "the configuration was changed");
    daemon.stop()
}

fn changes_luns(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "maps")?;
    let (mut session, mut other) = (daemon.session(MAIN, "host", 0)?, daemon.session(OTHER, "few", 0)?);
    let more = "[volume.third]\nkind = \"ram\"\nsize = \"1M\"\n";
    let change = ConfigChange { luns: "0 = \"disk\", 4 = \"memory\", 9 = \"third\"", more, ..ConfigChange::default() };
    daemon.change(&change)?;
    expect_sense(&mut session, INVENTORY)?;
    ensure!(luns(&mut session)? == [0, 4, 9], "{:?}", luns(&mut session)?);
    expect_undisturbed(&mut session)?;
    expect_undisturbed(&mut other)?;
    session.lun = 9;
    expect_sense(&mut session, (UNIT_ATTENTION, 0x29, 0x00))?;
    // The new unit also reports the changed inventory.
    session.run(&TEST_UNIT_READY, Data::None)?;
    session.write(3, vec![1; 512], 512)?;
    daemon.change(&ConfigChange::default())?;
    let gone = session.run(&TEST_UNIT_READY, Data::None)?;
    ensure!(gone.sense() == NOT_SUPPORTED, "a removed LUN answers {:02x?}", gone.sense());
    expect_undisturbed(&mut other)?;
    daemon.stop()
}

fn drains_a_lun(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "drains")?;
    let mut session = daemon.session(MAIN, "host", 0)?;
    // Enough writes that some are in progress during the change.
    let (mut tags, mut applied) = (HashMap::new(), None);
    for count in 0..32 {
        let data = Data::Out(pattern(count, 1, 64 << 10));
        tags.insert(session.start(&session::cdb::write(count * 128, 128), data)?, count);
        if count == 16 {
            daemon.write(&daemon.text(&ConfigChange { luns: "4 = \"memory\"", ..ConfigChange::default() }))?;
            applied = Some(daemon.start_apply()?);
        }
    }
    let mut acknowledged = Vec::new();
    while !tags.is_empty() {
        let done = session.next()?;
        ensure!(done.status == GOOD || done.sense() == NOT_SUPPORTED, "a write ends with {:02x?}", done.sense());
        let count = tags.remove(&done.tag).context("a response without a command")?;
        acknowledged.extend((done.status == GOOD).then_some(count));
    }
    daemon.end_apply(applied.context("the file was applied")?)?;
    ensure!(!acknowledged.is_empty(), "no write was acknowledged before the LUN was removed: the case tests nothing");
    daemon.change(&ConfigChange::default())?;
    let mut reader = daemon.session(MAIN, "reader", 0)?;
    for count in acknowledged {
        let found = reader.read(count * 128, 128, 512)?;
        ensure!(found == pattern(count, 1, 64 << 10), "write {count} was acknowledged and is lost");
    }
    daemon.stop()
}

fn grows(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "grows")?;
    let (mut session, mut other) = (daemon.session(MAIN, "host", 0)?, daemon.session(OTHER, "few", 0)?);
    let (blocks, block) = session.capacity()?;
    daemon.change(&ConfigChange { size: "48M", ..ConfigChange::default() })?;
    expect_sense(&mut session, CAPACITY)?;
    let (more, _) = session.capacity()?;
    ensure!((blocks, more) == (65536, 98304), "{blocks} blocks became {more}");
    session.write(more - 1, vec![9; block], block)?;
    expect_undisturbed(&mut other)?;
    daemon.write(&daemon.text(&ConfigChange { size: "16M", ..ConfigChange::default() }))?;
    daemon.reload("nothing was changed")?;
    ensure!(session.capacity()?.0 == more, "the volume shrank");
    daemon.stop()
}

fn drains_a_target(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "leaves")?;
    let (mut session, mut other) = (daemon.session(MAIN, "host", 0)?, daemon.session(OTHER, "few", 0)?);
    let mut silent = daemon.session(MAIN, "silent", 0)?;
    daemon.write(&daemon.text(&ConfigChange { main: "enabled = false", ..ConfigChange::default() }))?;
    daemon.reload("sessions use what the change takes away")?;
    let applied = daemon.start_apply()?;
    for session in [&mut session, &mut silent] {
        let told = session.connection.expect(ANSWER_LIMIT)?;
        ensure!(told.opcode() == op::ASYNC && told.head[36] == 1, "the session is not asked to log out");
        session.exp_stat_sn = told.get(24).wrapping_add(1);
    }
    session.logout()?;
    match silent.connection.receive(LIMIT)? {
        Received::Closed => {}
        other => bail!("a session that does not log out receives {other:?}"),
    }
    daemon.end_apply(applied)?;
    expect_undisturbed(&mut other)?;
    ensure!(Session::open(daemon.portal, &Login::to(MAIN, "host")).is_err(), "a login to a disabled target succeeds");
    daemon.change(&ConfigChange::default())?;
    daemon.session(MAIN, "host", 0)?.logout()?;
    daemon.stop()
}

fn redirects(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "moves")?;
    for (keys, status) in
        [("moved-to = \"192.0.2.7\"", 0x0101_u16), ("moved-to = \"192.0.2.7:99\"\nmoved-for-good = true", 0x0102)]
    {
        daemon.change(&ConfigChange { main: keys, ..ConfigChange::default() })?;
        let mut connection = Connection::open(daemon.portal)?;
        connection.send(&Login::to(MAIN, "host").request())?;
        let response = connection.expect(ANSWER_LIMIT)?;
        let found = u16::from_be_bytes([response.head[36], response.head[37]]);
        ensure!(response.opcode() == op::LOGIN_RESPONSE && found == status, "login status is {found:04x}h");
        let keys = keys_of(&response.data);
        let wanted = if status == 0x0101 { "192.0.2.7:3260" } else { "192.0.2.7:99" };
        let address = keys.iter().find(|(key, _)| key == "TargetAddress").map(|(_, value)| value.as_str());
        ensure!(address == Some(wanted), "the response has {keys:?}");
    }
    daemon.stop()
}

fn changes_access_state(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "transits")?;
    let mut session = daemon.session(MAIN, "host", 0)?;
    daemon.change(&ConfigChange { group: "alua-state = \"active-non-optimized\"", ..ConfigChange::default() })?;
    expect_sense(&mut session, ACCESS)?;
    let mut cdb = [0; 12];
    (cdb[0], cdb[1], cdb[9]) = (0xa3, 0x0a, 0xff);
    let done = session.run(&cdb, Data::In(255))?.good()?;
    ensure!(done.data[4] & 0x0f == 1 && done.data[9] == 2, "the group is in state {:02x?}", &done.data[4..12]);
    // A new volume is in that state from the beginning.
    let more = "[volume.third]\nkind = \"ram\"\nsize = \"1M\"\n";
    let luns = "0 = \"disk\", 9 = \"third\"";
    daemon.change(&ConfigChange {
        group: "alua-state = \"active-non-optimized\"",
        luns,
        more,
        ..ConfigChange::default()
    })?;
    let mut late = daemon.session(MAIN, "late", 9)?;
    let done = late.run(&cdb, Data::In(255))?.good()?;
    ensure!(done.data[4] & 0x0f == 1, "a new volume is in state {:02x?}", &done.data[4..12]);
    daemon.stop()
}

fn ends_disallowed_sessions(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "expels")?;
    let (mut session, mut other) = (daemon.session(MAIN, "host", 0)?, daemon.session(OTHER, "few", 0)?);
    daemon.write(&daemon.text(&ConfigChange::default()).replace("\"*:few*\"", "\"*:others\""))?;
    daemon.apply()?;
    let mut received = other.connection.receive(LIMIT)?;
    if let Received::Pdu(told) = &received {
        ensure!(told.opcode() == op::ASYNC, "opcode {:02x}h", told.opcode());
        received = other.connection.receive(LIMIT)?;
    }
    ensure!(matches!(received, Received::Closed), "a session that is no longer allowed receives {received:?}");
    expect_undisturbed(&mut session)?;
    // Sessions of a removed portal end, other sessions continue.
    let second = free_port()?;
    let both =
        daemon.text(&ConfigChange::default()) + &format!("[portal.two]\naddress = \"{second}\"\ngroup = \"p\"\n");
    daemon.write(&both)?;
    daemon.reload("reloaded")?;
    let mut by_second = Session::ready(second, &Login::to(MAIN, "second"), 0)?;
    expect_undisturbed(&mut session)?;
    daemon.change(&ConfigChange::default())?;
    while let Received::Pdu(told) = by_second.connection.receive(LIMIT)? {
        ensure!(told.opcode() == op::ASYNC, "opcode {:02x}h", told.opcode());
    }
    expect_undisturbed(&mut session)?;
    daemon.stop()
}

/// After a crash, the file, the served LUNs and the identity of the volumes are those of one of the two versions.
fn crashes(lab: &Lab, driver: Driver, rounds: u32) -> Result<()> {
    let mut daemon = started(lab, driver, "crashes")?;
    let more = "[volume.third]\nkind = \"ram\"\nsize = \"1M\"\n[volume.fourth]\nkind = \"null\"\nsize = \"1M\"\n";
    let grown = ConfigChange { luns: "0 = \"disk\", 2 = \"third\", 3 = \"fourth\"", more, ..ConfigChange::default() };
    let versions: [(ConfigChange, &[u8]); 2] = [(ConfigChange::default(), &[0, 4]), (grown, &[0, 2, 3])];
    let mut seed = lab.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut known: Option<Vec<String>> = None;
    for round in 0..rounds {
        let (change, wanted) = &versions[(round as usize + 1) % 2];
        daemon.write(&daemon.text(change))?;
        let target = daemon.target.take().context("the daemon runs")?;
        target.signal(Signal::HUP)?;
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        std::thread::sleep(Duration::from_micros(seed % 30_000));
        target.kill()?;
        let text = std::fs::read_to_string(daemon.file())?;
        let plain: String =
            text.lines().filter(|line| !line.starts_with("uuid")).map(|line| format!("{line}\n")).collect();
        ensure!(plain == daemon.text(change), "round {round}: the file is neither version:\n{text}");
        daemon.start(lab).with_context(|| format!("round {round}"))?;
        let mut session = daemon.session_after_kill().with_context(|| format!("round {round}"))?;
        let seen = luns(&mut session)?;
        ensure!(seen == *wanted, "round {round}: it serves {seen:?}, not {wanted:?}");
        session.logout()?;
        if wanted.len() == 2 {
            let own = uuids(&daemon.file())?;
            ensure!(*known.get_or_insert_with(|| own.clone()) == own, "round {round}: the UUIDs of volumes changed");
        }
        let history = std::fs::read_dir(daemon.folder.join("state/history"))?;
        let halves = history.flatten().filter(|entry| entry.file_name().to_string_lossy().ends_with(".new")).count();
        ensure!(halves == 0, "round {round}: an incomplete version is left");
    }
    daemon.stop()
}

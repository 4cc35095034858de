//! `lunar daemon`: a file that changes while initiators are there, and kill -9 while it does.

mod apply_crash;
mod fixture;
mod isns;
mod nvme;
mod scale;

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::Signal;

use crate::pdu::{Connection, Received, op};
use crate::session::{self, ANSWER_LIMIT, Data, GOOD, Login, Session, keys_of};
use crate::target::{Driver, Lab, free_port};
use crate::test_data::pattern;
use crate::tools::{says, tool};
use fixture::{
    ACCESS, CAPACITY, Case, ConfigChange, Daemon, INVENTORY, LIMIT, MAIN, NOT_SUPPORTED, OTHER, TEST_UNIT_READY,
    UNIT_ATTENTION, expect_sense, expect_undisturbed, luns, started, started_with, until, uuids,
};

const CASES: [Case; 12] = [
    ("a file is served, and each initiator sees what is its own", serves),
    ("an edit while it starts is not lost", starts_while_edited),
    ("what is away when it starts keeps nobody from the rest, and is taken in when it is back", starts_without),
    ("an error in the file is told with its place, and changes nothing", refuses),
    ("LUNs come and go, and who is concerned is told", maps),
    ("a LUN that goes lets what is under way finish", drains_a_lun),
    ("a volume grows", grows),
    ("a target is drained: asked, logged out, closed", drains_a_target),
    ("a target that has moved says where", moves),
    ("a portal group gets worse, and initiators are told", transits),
    ("who may no longer be there goes", expels),
    ("as many volumes and groups as a large house has", scale::part),
];

/// Runs all cases, each with a daemon of its own, and the crashes.
pub(crate) fn part(lab: &Lab, driver: Driver, rounds: u32, applies: u32) -> Result<()> {
    lab.built()?;
    let part = format!("daemon/{}", driver.name());
    for (name, case) in CASES.into_iter().chain(nvme::CASES).chain(isns::CASES) {
        lab.report.check(&part, name, || case(lab, driver));
    }
    lab.report
        .check(&part, &format!("kill -9 while it follows the file, {rounds} times"), || crashes(lab, driver, rounds));
    let name = format!("kill -9 while the API puts a file in force, {applies} times");
    lab.report.check(&part, &name, || apply_crash::part(lab, driver, applies));
    Ok(())
}

fn serves(lab: &Lab, driver: Driver) -> Result<()> {
    let mut daemon = started(lab, driver, "serves")?;
    let url = format!("iscsi://{}", daemon.portal);
    let shown = tool("iscsi-ls", &["--show-luns", &url])?;
    says(&shown, MAIN)?;
    ensure!(!shown.contains(OTHER), "a stranger is shown another's target:\n{shown}");
    says(&tool("iscsi-inq", &[&format!("{url}/{MAIN}/4")])?, "DIRECT_ACCESS")?;
    says(&tool("iscsi-ls", &["--initiator-name", "iqn.2026-01.org.example:few", &url])?, OTHER)?;
    ensure!(Session::open(daemon.portal, &Login::to(OTHER, "many")).is_err(), "a stranger logs in");
    let mut session = daemon.session(MAIN, "writer", 0)?;
    session.write(7, vec![0x5a; 512], 512)?;
    session.lun = 4;
    let refused = loop {
        let done = session.run(&session::cdb::write(0, 1), Data::Out(vec![0; 512]))?;
        if done.sense().0 != UNIT_ATTENTION {
            break done.sense();
        }
    };
    ensure!(refused == (7, 0x27, 0), "a write to a LUN that is only read ends with {refused:02x?}");
    session.logout()?;
    let text = std::fs::read_to_string(daemon.file())?;
    ensure!(text.starts_with("# Kept by hand.\n"), "comments are lost:\n{text}");
    let known = uuids(&daemon.file())?;
    ensure!(known.len() == 2, "volumes have no UUIDs in the file:\n{text}");
    daemon.target.take().context("it runs")?.stop()?;
    // Somebody brings the file from elsewhere; who the volumes are is remembered.
    daemon.write(&daemon.text(&ConfigChange::default()))?;
    daemon.start(lab)?;
    let read = daemon.session(MAIN, "reader", 0)?.read(7, 1, 512)?;
    ensure!(read == [0x5a; 512], "what was written is gone");
    // Who is let in finds the file as it was put in force.
    ensure!(uuids(&daemon.file())? == known, "volumes are others after a restart");
    daemon.stop()
}

/// Starts that are met by an edit, each a bit later than the one before.
const EDITED_STARTS: u32 = 12;

/// Whenever an edit comes while the daemon starts, the file is as it was written, but for who the volumes are, and the
/// next SIGHUP puts it in force.
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

/// The file of a volume is gone and an address is taken when it starts again: who uses something else is served, and
/// who waits for them has them when the operator says that they are back.
fn starts_without(lab: &Lab, driver: Driver) -> Result<()> {
    let second = free_port()?;
    let more = format!("[portal.two]\naddress = \"{second}\"\ngroup = \"p\"\n");
    let mut daemon = started_with(lab, driver, "away", |_| more.clone())?;
    daemon.session(MAIN, "host", 0)?.write(3, vec![0xa5; 512], 512)?;
    daemon.target.take().context("it runs")?.stop()?;
    let (file, aside) = (daemon.folder.join("disk.img"), daemon.folder.join("aside.img"));
    std::fs::rename(&file, &aside)?;
    let taken = std::net::TcpListener::bind(second)?;
    daemon.start(lab)?;
    for wanted in ["volume disk is not served: its file", "portal two is not served: "] {
        says(&daemon.log_text(), wanted)?;
    }
    let mut session = daemon.session(MAIN, "host", 4)?;
    ensure!(luns(&mut session)? == [4], "it serves {:?}", luns(&mut session)?);
    // What else is changed meanwhile is in force at once.
    let third = "[volume.third]\nkind = \"ram\"\nsize = \"1M\"\n";
    let all = "0 = \"disk\", 4 = { volume = \"memory\", read-only = true }, 7 = \"third\"";
    let change = ConfigChange { luns: all, more: third, ..ConfigChange::default() };
    daemon.write(&(daemon.text(&change) + &more))?;
    daemon.reload("create volume third")?;
    expect_sense(&mut session, INVENTORY)?;
    // A change of what is away makes nothing in its place.
    daemon.write(&(daemon.text(&ConfigChange { size: "48M", ..change.clone() }) + &more))?;
    daemon.reload("disk.img is gone")?;
    ensure!(!file.exists(), "another disk is in the place of the one that is away");
    daemon.write(&(daemon.text(&change) + &more))?;
    drop(taken);
    std::fs::rename(&aside, &file)?;
    daemon.reload("create portal two")?;
    expect_sense(&mut session, INVENTORY)?;
    ensure!(luns(&mut session)? == [0, 4, 7], "it serves {:?}", luns(&mut session)?);
    ensure!(daemon.session(MAIN, "reader", 0)?.read(3, 1, 512)? == [0xa5; 512], "what was written is gone");
    Session::ready(second, &Login::to(MAIN, "newcomer"), 4)?.logout()?;
    expect_undisturbed(&mut session)?;
    daemon.stop()
}

fn refuses(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "refuses")?;
    let mut session = daemon.session(MAIN, "host", 0)?;
    let wrong = daemon.text(&ConfigChange { main: "querty = 1", ..ConfigChange::default() });
    let line = wrong.lines().position(|line| line.starts_with("querty")).context("it is there")? + 1;
    daemon.write(&wrong)?;
    daemon.reload(&format!("lunar.toml:{line}:1: target.main: there is no key 'querty'"))?;
    expect_undisturbed(&mut session)?;
    // What is valid, and cannot be: nothing of it comes.
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let more = format!("[portal.two]\naddress = \"{}\"\ngroup = \"p\"\n", taken.local_addr()?);
    daemon.write(&(daemon.text(&ConfigChange { luns: "0 = \"disk\"", ..ConfigChange::default() }) + &more))?;
    daemon.reload("nothing was changed")?;
    expect_undisturbed(&mut session)?;
    ensure!(luns(&mut session)? == [0, 4], "something was changed");
    daemon.stop()
}

fn maps(lab: &Lab, driver: Driver) -> Result<()> {
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
    // The inventory has changed for the new one, too.
    session.run(&TEST_UNIT_READY, Data::None)?;
    session.write(3, vec![1; 512], 512)?;
    daemon.change(&ConfigChange::default())?;
    let gone = session.run(&TEST_UNIT_READY, Data::None)?;
    ensure!(gone.sense() == NOT_SUPPORTED, "a LUN that went answers {:02x?}", gone.sense());
    expect_undisturbed(&mut other)?;
    daemon.stop()
}

fn drains_a_lun(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "drains")?;
    let mut session = daemon.session(MAIN, "host", 0)?;
    // Enough that some are under way whenever the change comes.
    let mut tags = HashMap::new();
    for count in 0..32 {
        let data = Data::Out(pattern(count, 1, 64 << 10));
        tags.insert(session.start(&session::cdb::write(count * 128, 128), data)?, count);
        if count == 16 {
            daemon.write(&daemon.text(&ConfigChange { luns: "4 = \"memory\"", ..ConfigChange::default() }))?;
            daemon.target.as_ref().context("it runs")?.signal(Signal::HUP)?;
        }
    }
    let mut acknowledged = Vec::new();
    while !tags.is_empty() {
        let done = session.next()?;
        ensure!(done.status == GOOD || done.sense() == NOT_SUPPORTED, "a write ends with {:02x?}", done.sense());
        let count = tags.remove(&done.tag).context("an answer to no command")?;
        acknowledged.extend((done.status == GOOD).then_some(count));
    }
    until(|| daemon.log_text().contains("reloaded"))?;
    ensure!(!acknowledged.is_empty(), "no write was under way before the LUN went: this proves nothing");
    daemon.change(&ConfigChange::default())?;
    let mut reader = daemon.session(MAIN, "reader", 0)?;
    for count in acknowledged {
        let found = reader.read(count * 128, 128, 512)?;
        ensure!(found == pattern(count, 1, 64 << 10), "write {count} was acknowledged, and is lost");
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
    ensure!(session.capacity()?.0 == more, "it shrank");
    daemon.stop()
}

fn drains_a_target(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "leaves")?;
    let (mut session, mut other) = (daemon.session(MAIN, "host", 0)?, daemon.session(OTHER, "few", 0)?);
    let mut silent = daemon.session(MAIN, "silent", 0)?;
    daemon.write(&daemon.text(&ConfigChange { main: "enabled = false", ..ConfigChange::default() }))?;
    daemon.target.as_ref().context("it runs")?.signal(Signal::HUP)?;
    for session in [&mut session, &mut silent] {
        let told = session.connection.expect(ANSWER_LIMIT)?;
        ensure!(told.opcode() == op::ASYNC && told.head[36] == 1, "nobody is asked to log out");
        session.exp_stat_sn = told.get(24).wrapping_add(1);
    }
    session.logout()?;
    match silent.connection.receive(LIMIT)? {
        Received::Closed => {}
        other => bail!("who stays is told {other:?}"),
    }
    until(|| daemon.log_text().contains("reloaded"))?;
    expect_undisturbed(&mut other)?;
    ensure!(Session::open(daemon.portal, &Login::to(MAIN, "host")).is_err(), "a target that is off lets somebody in");
    daemon.change(&ConfigChange::default())?;
    daemon.session(MAIN, "host", 0)?.logout()?;
    daemon.stop()
}

fn moves(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "moves")?;
    for (keys, status) in
        [("moved-to = \"192.0.2.7\"", 0x0101_u16), ("moved-to = \"192.0.2.7:99\"\nmoved-for-good = true", 0x0102)]
    {
        daemon.change(&ConfigChange { main: keys, ..ConfigChange::default() })?;
        let mut connection = Connection::open(daemon.portal)?;
        connection.send(&Login::to(MAIN, "host").request())?;
        let response = connection.expect(ANSWER_LIMIT)?;
        let told = u16::from_be_bytes([response.head[36], response.head[37]]);
        ensure!(response.opcode() == op::LOGIN_RESPONSE && told == status, "login status is {told:04x}h");
        let keys = keys_of(&response.data);
        let wanted = if status == 0x0101 { "192.0.2.7:3260" } else { "192.0.2.7:99" };
        let address = keys.iter().find(|(key, _)| key == "TargetAddress").map(|(_, value)| value.as_str());
        ensure!(address == Some(wanted), "it is told {keys:?}");
    }
    daemon.stop()
}

fn transits(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "transits")?;
    let mut session = daemon.session(MAIN, "host", 0)?;
    daemon.change(&ConfigChange { group: "alua-state = \"active-non-optimized\"", ..ConfigChange::default() })?;
    expect_sense(&mut session, ACCESS)?;
    let mut cdb = [0; 12];
    (cdb[0], cdb[1], cdb[9]) = (0xa3, 0x0a, 0xff);
    let done = session.run(&cdb, Data::In(255))?.good()?;
    ensure!(done.data[4] & 0x0f == 1 && done.data[9] == 2, "the group is in state {:02x?}", &done.data[4..12]);
    // A volume that comes later is in that state from its beginning.
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

fn expels(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "expels")?;
    let (mut session, mut other) = (daemon.session(MAIN, "host", 0)?, daemon.session(OTHER, "few", 0)?);
    daemon.write(&daemon.text(&ConfigChange::default()).replace("\"*:few*\"", "\"*:others\""))?;
    daemon.reload("reloaded")?;
    let mut received = other.connection.receive(LIMIT)?;
    if let Received::Pdu(told) = &received {
        ensure!(told.opcode() == op::ASYNC, "opcode {:02x}h", told.opcode());
        received = other.connection.receive(LIMIT)?;
    }
    ensure!(matches!(received, Received::Closed), "who may no longer be there stays: {received:?}");
    expect_undisturbed(&mut session)?;
    // A portal that goes takes its sessions along, another stays.
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

/// What a start finds is one of the two versions, whole: the file, what is served, and who the volumes are.
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
        let target = daemon.target.take().context("it runs")?;
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
            ensure!(*known.get_or_insert_with(|| own.clone()) == own, "round {round}: volumes are others now");
        }
        let history = std::fs::read_dir(daemon.folder.join("state/history"))?;
        let halves = history.flatten().filter(|entry| entry.file_name().to_string_lossy().ends_with(".new")).count();
        ensure!(halves == 0, "round {round}: half of a version is left");
    }
    daemon.stop()
}

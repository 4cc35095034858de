//! `lunar daemon`: a file that changes while initiators are there, and kill -9 while it does.

mod applies;
mod fixture;
mod isns;
mod many;
mod nvme;

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::Signal;

use crate::pdu::{Heard, Link, op};
use crate::session::{self, ANSWER_LIMIT, Data, GOOD, Login, Session, keys_of};
use crate::target::{Driver, Lab, free_port};
use crate::tools::{says, tool};
use crate::witness::pattern;
use fixture::{
    ACCESS, CAPACITY, Case, Change, House, INVENTORY, LIMIT, MAIN, NOT_SUPPORTED, OTHER, TEST_UNIT_READY,
    UNIT_ATTENTION, is_told, luns, started, started_with, undisturbed, until, uuids,
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
    ("as many volumes and groups as a large house has", many::part),
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
    lab.report.check(&part, &name, || applies::part(lab, driver, applies));
    Ok(())
}

fn serves(lab: &Lab, driver: Driver) -> Result<()> {
    let mut house = started(lab, driver, "serves")?;
    let url = format!("iscsi://{}", house.portal);
    let shown = tool("iscsi-ls", &["--show-luns", &url])?;
    says(&shown, MAIN)?;
    ensure!(!shown.contains(OTHER), "a stranger is shown another's target:\n{shown}");
    says(&tool("iscsi-inq", &[&format!("{url}/{MAIN}/4")])?, "DIRECT_ACCESS")?;
    says(&tool("iscsi-ls", &["--initiator-name", "iqn.2026-01.org.example:few", &url])?, OTHER)?;
    ensure!(Session::open(house.portal, &Login::to(OTHER, "many")).is_err(), "a stranger logs in");
    let mut session = house.session(MAIN, "writer", 0)?;
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
    let text = std::fs::read_to_string(house.file())?;
    ensure!(text.starts_with("# Kept by hand.\n"), "comments are lost:\n{text}");
    let known = uuids(&house.file())?;
    ensure!(known.len() == 2, "volumes have no UUIDs in the file:\n{text}");
    house.target.take().context("it runs")?.stop()?;
    // Somebody brings the file from elsewhere; who the volumes are is remembered.
    house.write(&house.text(&Change::default()))?;
    house.start(lab)?;
    let read = house.session(MAIN, "reader", 0)?.read(7, 1, 512)?;
    ensure!(read == [0x5a; 512], "what was written is gone");
    // Who is let in finds the file as it was put in force.
    ensure!(uuids(&house.file())? == known, "volumes are others after a restart");
    house.stop()
}

/// Starts that are met by an edit, each a bit later than the one before.
const EDITED_STARTS: u32 = 12;

/// Whenever an edit comes while the daemon starts, the file is as it was written, but for who the volumes are, and the
/// next SIGHUP puts it in force.
fn starts_while_edited(lab: &Lab, driver: Driver) -> Result<()> {
    let edit = Change { luns: "0 = \"disk\", 7 = \"memory\"", ..Change::default() };
    for round in 0..EDITED_STARTS {
        let mut house = House::new(lab, driver, &format!("edited{round}"))?;
        house.write(&house.text(&Change::default()))?;
        let wanted = house.text(&edit);
        let (file, text) = (house.file(), wanted.clone());
        let editor = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(u64::from(round) * 8));
            let unfinished = file.with_extension("editor");
            std::fs::write(&unfinished, text).and_then(|()| std::fs::rename(unfinished, file))
        });
        house.start(lab)?;
        editor.join().map_err(|_| anyhow!("the editor panicked"))??;
        house.reload("reloaded").with_context(|| format!("round {round}"))?;
        let text = std::fs::read_to_string(house.file())?;
        let plain: String =
            text.lines().filter(|line| !line.starts_with("uuid")).map(|line| format!("{line}\n")).collect();
        ensure!(plain == wanted, "round {round}: the edit is lost:\n{text}");
        let seen = luns(&mut house.session(MAIN, "host", 0)?)?;
        ensure!(seen == [0, 7], "round {round}: it serves {seen:?}");
        house.stop()?;
    }
    Ok(())
}

/// The file of a volume is gone and an address is taken when it starts again: who uses something else is served, and
/// who waits for them has them when the operator says that they are back.
fn starts_without(lab: &Lab, driver: Driver) -> Result<()> {
    let second = free_port()?;
    let more = format!("[portal.two]\naddress = \"{second}\"\ngroup = \"p\"\n");
    let mut house = started_with(lab, driver, "away", |_| more.clone())?;
    house.session(MAIN, "host", 0)?.write(3, vec![0xa5; 512], 512)?;
    house.target.take().context("it runs")?.stop()?;
    let (file, aside) = (house.folder.join("disk.img"), house.folder.join("aside.img"));
    std::fs::rename(&file, &aside)?;
    let taken = std::net::TcpListener::bind(second)?;
    house.start(lab)?;
    for wanted in ["volume disk is not served: its file", "portal two is not served: "] {
        says(&house.said(), wanted)?;
    }
    let mut session = house.session(MAIN, "host", 4)?;
    ensure!(luns(&mut session)? == [4], "it serves {:?}", luns(&mut session)?);
    // What else is changed meanwhile is in force at once.
    let third = "[volume.third]\nkind = \"ram\"\nsize = \"1M\"\n";
    let all = "0 = \"disk\", 4 = { volume = \"memory\", read-only = true }, 7 = \"third\"";
    let change = Change { luns: all, more: third, ..Change::default() };
    house.write(&(house.text(&change) + &more))?;
    house.reload("create volume third")?;
    is_told(&mut session, INVENTORY)?;
    // A change of what is away makes nothing in its place.
    house.write(&(house.text(&Change { size: "48M", ..change.clone() }) + &more))?;
    house.reload("disk.img is gone")?;
    ensure!(!file.exists(), "another disk is in the place of the one that is away");
    house.write(&(house.text(&change) + &more))?;
    drop(taken);
    std::fs::rename(&aside, &file)?;
    house.reload("create portal two")?;
    is_told(&mut session, INVENTORY)?;
    ensure!(luns(&mut session)? == [0, 4, 7], "it serves {:?}", luns(&mut session)?);
    ensure!(house.session(MAIN, "reader", 0)?.read(3, 1, 512)? == [0xa5; 512], "what was written is gone");
    Session::ready(second, &Login::to(MAIN, "newcomer"), 4)?.logout()?;
    undisturbed(&mut session)?;
    house.stop()
}

fn refuses(lab: &Lab, driver: Driver) -> Result<()> {
    let house = started(lab, driver, "refuses")?;
    let mut session = house.session(MAIN, "host", 0)?;
    let wrong = house.text(&Change { main: "querty = 1", ..Change::default() });
    let line = wrong.lines().position(|line| line.starts_with("querty")).context("it is there")? + 1;
    house.write(&wrong)?;
    house.reload(&format!("lunar.toml:{line}:1: target.main: there is no key 'querty'"))?;
    undisturbed(&mut session)?;
    // What is valid, and cannot be: nothing of it comes.
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let more = format!("[portal.two]\naddress = \"{}\"\ngroup = \"p\"\n", taken.local_addr()?);
    house.write(&(house.text(&Change { luns: "0 = \"disk\"", ..Change::default() }) + &more))?;
    house.reload("nothing was changed")?;
    undisturbed(&mut session)?;
    ensure!(luns(&mut session)? == [0, 4], "something was changed");
    house.stop()
}

fn maps(lab: &Lab, driver: Driver) -> Result<()> {
    let house = started(lab, driver, "maps")?;
    let (mut session, mut other) = (house.session(MAIN, "host", 0)?, house.session(OTHER, "few", 0)?);
    let more = "[volume.third]\nkind = \"ram\"\nsize = \"1M\"\n";
    let change = Change { luns: "0 = \"disk\", 4 = \"memory\", 9 = \"third\"", more, ..Change::default() };
    house.change(&change)?;
    is_told(&mut session, INVENTORY)?;
    ensure!(luns(&mut session)? == [0, 4, 9], "{:?}", luns(&mut session)?);
    undisturbed(&mut session)?;
    undisturbed(&mut other)?;
    session.lun = 9;
    is_told(&mut session, (UNIT_ATTENTION, 0x29, 0x00))?;
    // The inventory has changed for the new one, too.
    session.run(&TEST_UNIT_READY, Data::None)?;
    session.write(3, vec![1; 512], 512)?;
    house.change(&Change::default())?;
    let gone = session.run(&TEST_UNIT_READY, Data::None)?;
    ensure!(gone.sense() == NOT_SUPPORTED, "a LUN that went answers {:02x?}", gone.sense());
    undisturbed(&mut other)?;
    house.stop()
}

fn drains_a_lun(lab: &Lab, driver: Driver) -> Result<()> {
    let house = started(lab, driver, "drains")?;
    let mut session = house.session(MAIN, "host", 0)?;
    // Enough that some are under way whenever the change comes.
    let mut tags = HashMap::new();
    for count in 0..32 {
        let data = Data::Out(pattern(count, 1, 64 << 10));
        tags.insert(session.start(&session::cdb::write(count * 128, 128), data)?, count);
        if count == 16 {
            house.write(&house.text(&Change { luns: "4 = \"memory\"", ..Change::default() }))?;
            house.target.as_ref().context("it runs")?.signal(Signal::HUP)?;
        }
    }
    let mut acknowledged = Vec::new();
    while !tags.is_empty() {
        let done = session.next()?;
        ensure!(done.status == GOOD || done.sense() == NOT_SUPPORTED, "a write ends with {:02x?}", done.sense());
        let count = tags.remove(&done.tag).context("an answer to no command")?;
        acknowledged.extend((done.status == GOOD).then_some(count));
    }
    until(|| house.said().contains("reloaded"))?;
    ensure!(!acknowledged.is_empty(), "no write was under way before the LUN went: this proves nothing");
    house.change(&Change::default())?;
    let mut reader = house.session(MAIN, "reader", 0)?;
    for count in acknowledged {
        let found = reader.read(count * 128, 128, 512)?;
        ensure!(found == pattern(count, 1, 64 << 10), "write {count} was acknowledged, and is lost");
    }
    house.stop()
}

fn grows(lab: &Lab, driver: Driver) -> Result<()> {
    let house = started(lab, driver, "grows")?;
    let (mut session, mut other) = (house.session(MAIN, "host", 0)?, house.session(OTHER, "few", 0)?);
    let (blocks, block) = session.capacity()?;
    house.change(&Change { size: "48M", ..Change::default() })?;
    is_told(&mut session, CAPACITY)?;
    let (more, _) = session.capacity()?;
    ensure!((blocks, more) == (65536, 98304), "{blocks} blocks became {more}");
    session.write(more - 1, vec![9; block], block)?;
    undisturbed(&mut other)?;
    house.write(&house.text(&Change { size: "16M", ..Change::default() }))?;
    house.reload("nothing was changed")?;
    ensure!(session.capacity()?.0 == more, "it shrank");
    house.stop()
}

fn drains_a_target(lab: &Lab, driver: Driver) -> Result<()> {
    let house = started(lab, driver, "leaves")?;
    let (mut session, mut other) = (house.session(MAIN, "host", 0)?, house.session(OTHER, "few", 0)?);
    let mut silent = house.session(MAIN, "silent", 0)?;
    house.write(&house.text(&Change { main: "enabled = false", ..Change::default() }))?;
    house.target.as_ref().context("it runs")?.signal(Signal::HUP)?;
    for session in [&mut session, &mut silent] {
        let told = session.link.expect(ANSWER_LIMIT)?;
        ensure!(told.opcode() == op::ASYNC && told.head[36] == 1, "nobody is asked to log out");
        session.exp_stat_sn = told.get(24).wrapping_add(1);
    }
    session.logout()?;
    match silent.link.hear(LIMIT)? {
        Heard::Closed => {}
        other => bail!("who stays is told {other:?}"),
    }
    until(|| house.said().contains("reloaded"))?;
    undisturbed(&mut other)?;
    ensure!(Session::open(house.portal, &Login::to(MAIN, "host")).is_err(), "a target that is off lets somebody in");
    house.change(&Change::default())?;
    house.session(MAIN, "host", 0)?.logout()?;
    house.stop()
}

fn moves(lab: &Lab, driver: Driver) -> Result<()> {
    let house = started(lab, driver, "moves")?;
    for (keys, status) in
        [("moved-to = \"192.0.2.7\"", 0x0101_u16), ("moved-to = \"192.0.2.7:99\"\nmoved-for-good = true", 0x0102)]
    {
        house.change(&Change { main: keys, ..Change::default() })?;
        let mut link = Link::open(house.portal)?;
        link.send(&Login::to(MAIN, "host").request())?;
        let response = link.expect(ANSWER_LIMIT)?;
        let told = u16::from_be_bytes([response.head[36], response.head[37]]);
        ensure!(response.opcode() == op::LOGIN_RESPONSE && told == status, "login status is {told:04x}h");
        let keys = keys_of(&response.data);
        let wanted = if status == 0x0101 { "192.0.2.7:3260" } else { "192.0.2.7:99" };
        let address = keys.iter().find(|(key, _)| key == "TargetAddress").map(|(_, value)| value.as_str());
        ensure!(address == Some(wanted), "it is told {keys:?}");
    }
    house.stop()
}

fn transits(lab: &Lab, driver: Driver) -> Result<()> {
    let house = started(lab, driver, "transits")?;
    let mut session = house.session(MAIN, "host", 0)?;
    house.change(&Change { group: "alua-state = \"active-non-optimized\"", ..Change::default() })?;
    is_told(&mut session, ACCESS)?;
    let mut cdb = [0; 12];
    (cdb[0], cdb[1], cdb[9]) = (0xa3, 0x0a, 0xff);
    let done = session.run(&cdb, Data::In(255))?.good()?;
    ensure!(done.data[4] & 0x0f == 1 && done.data[9] == 2, "the group is in state {:02x?}", &done.data[4..12]);
    // A volume that comes later is in that state from its beginning.
    let more = "[volume.third]\nkind = \"ram\"\nsize = \"1M\"\n";
    let luns = "0 = \"disk\", 9 = \"third\"";
    house.change(&Change { group: "alua-state = \"active-non-optimized\"", luns, more, ..Change::default() })?;
    let mut late = house.session(MAIN, "late", 9)?;
    let done = late.run(&cdb, Data::In(255))?.good()?;
    ensure!(done.data[4] & 0x0f == 1, "a new volume is in state {:02x?}", &done.data[4..12]);
    house.stop()
}

fn expels(lab: &Lab, driver: Driver) -> Result<()> {
    let house = started(lab, driver, "expels")?;
    let (mut session, mut other) = (house.session(MAIN, "host", 0)?, house.session(OTHER, "few", 0)?);
    house.write(&house.text(&Change::default()).replace("\"*:few*\"", "\"*:others\""))?;
    house.reload("reloaded")?;
    let mut heard = other.link.hear(LIMIT)?;
    if let Heard::Pdu(told) = &heard {
        ensure!(told.opcode() == op::ASYNC, "opcode {:02x}h", told.opcode());
        heard = other.link.hear(LIMIT)?;
    }
    ensure!(matches!(heard, Heard::Closed), "who may no longer be there stays: {heard:?}");
    undisturbed(&mut session)?;
    // A portal that goes takes its sessions along, another stays.
    let second = free_port()?;
    let both = house.text(&Change::default()) + &format!("[portal.two]\naddress = \"{second}\"\ngroup = \"p\"\n");
    house.write(&both)?;
    house.reload("reloaded")?;
    let mut by_second = Session::ready(second, &Login::to(MAIN, "second"), 0)?;
    undisturbed(&mut session)?;
    house.change(&Change::default())?;
    while let Heard::Pdu(told) = by_second.link.hear(LIMIT)? {
        ensure!(told.opcode() == op::ASYNC, "opcode {:02x}h", told.opcode());
    }
    undisturbed(&mut session)?;
    house.stop()
}

/// What a start finds is one of the two versions, whole: the file, what is served, and who the volumes are.
fn crashes(lab: &Lab, driver: Driver, rounds: u32) -> Result<()> {
    let mut house = started(lab, driver, "crashes")?;
    let more = "[volume.third]\nkind = \"ram\"\nsize = \"1M\"\n[volume.fourth]\nkind = \"null\"\nsize = \"1M\"\n";
    let grown = Change { luns: "0 = \"disk\", 2 = \"third\", 3 = \"fourth\"", more, ..Change::default() };
    let versions: [(Change, &[u8]); 2] = [(Change::default(), &[0, 4]), (grown, &[0, 2, 3])];
    let mut seed = lab.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut known: Option<Vec<String>> = None;
    for round in 0..rounds {
        let (change, wanted) = &versions[(round as usize + 1) % 2];
        house.write(&house.text(change))?;
        let target = house.target.take().context("it runs")?;
        target.signal(Signal::HUP)?;
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        std::thread::sleep(Duration::from_micros(seed % 30_000));
        target.kill()?;
        let text = std::fs::read_to_string(house.file())?;
        let plain: String =
            text.lines().filter(|line| !line.starts_with("uuid")).map(|line| format!("{line}\n")).collect();
        ensure!(plain == house.text(change), "round {round}: the file is neither version:\n{text}");
        house.start(lab).with_context(|| format!("round {round}"))?;
        let mut session = house.session_after_kill().with_context(|| format!("round {round}"))?;
        let seen = luns(&mut session)?;
        ensure!(seen == *wanted, "round {round}: it serves {seen:?}, not {wanted:?}");
        session.logout()?;
        if wanted.len() == 2 {
            let own = uuids(&house.file())?;
            ensure!(*known.get_or_insert_with(|| own.clone()) == own, "round {round}: volumes are others now");
        }
        let history = std::fs::read_dir(house.folder.join("state/history"))?;
        let halves = history.flatten().filter(|entry| entry.file_name().to_string_lossy().ends_with(".new")).count();
        ensure!(halves == 0, "round {round}: half of a version is left");
    }
    house.stop()
}

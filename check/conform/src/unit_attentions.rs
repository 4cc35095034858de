//! Settings of a logical unit that one initiator changes, and the unit attentions of the others, on all cores.

use anyhow::{Result, ensure};

use crate::session::{CommandResult, Data, Login, Session};
use crate::target::{Driver, Lab, Spec, Target};

const UNIT_ATTENTION: u8 = 6;
const NOT_READY: u8 = 2;
const ILLEGAL_REQUEST: u8 = 5;
const TEST_UNIT_READY: [u8; 6] = [0; 6];

type Case = (&'static str, fn(&mut [Session]) -> Result<()>);

const CASES: [Case; 4] = [
    ("a mode page", mode_page),
    ("an asymmetric access state", access_state),
    ("a timestamp", clock),
    ("identifying information", information),
];

/// Runs the cases against one target.
pub(crate) fn part(lab: &Lab, driver: Driver, part: &str) -> Result<()> {
    let target = Target::start(lab, &Spec::new(driver, ["ram:1M"])?)?;
    for (name, case) in CASES {
        lab.report.check(part, &format!("all other initiators get a unit attention for {name}"), || {
            case(&mut sessions(&target)?)
        });
    }
    target.stop()?;
    lab.report.check(part, "saved settings are kept across a restart", || saved(lab, driver));
    Ok(())
}

/// A mode page with SP and identifying information are restored after a crash.
fn saved(lab: &Lab, driver: Driver) -> Result<()> {
    const MODE_SENSE_SAVED: [u8; 6] = [0x1a, 8, 0xca, 0, 16, 0];
    const REPORT: [u8; 12] = [0xa3, 0x05, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
    let spec = Spec::new(driver, [lab.image("told.img", 16)?])?;
    let login = |target: &Target| Login::to(&target.name, "told");
    let page = [0x0a, 10, 0x26, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
    let target = Target::start(lab, &spec)?;
    let mut session = Session::ready(target.portal, &login(&target), target.lun)?;
    set(&mut session, vec![0x15, 0x11, 0, 0, 0, 0], 4, &[&[0; 4][..], &page].concat())?;
    set(&mut session, vec![0xa4, 0x06, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 9, b"blue")?;
    // A saved setting survives the process.
    target.kill()?;
    let target = Target::start_after_kill(lab, &spec)?;
    let mut session = Session::ready(target.portal, &login(&target), target.lun)?;
    let sense = session.run(&[0xff, 0, 0, 0, 0, 0], Data::None)?.sense;
    ensure!(sense.first() == Some(&0x72), "D_SENSE is lost: {sense:02x?}");
    let page = session.run(&MODE_SENSE_SAVED, Data::In(16))?.good()?.data;
    ensure!(page[6] == 0x26, "the saved page is {page:02x?}");
    let named = session.run(&REPORT, Data::In(8))?.good()?.data;
    ensure!(named == b"\0\0\0\x04blue", "the identifying information is {named:02x?}");
    target.stop()
}

/// Six sessions: the first one changes settings; there are more sessions than cores.
fn sessions(target: &Target) -> Result<Vec<Session>> {
    let login = |qualifier| Login::to(&target.name, "told").qualifier(qualifier);
    (1..=6).map(|qualifier| Session::ready(target.portal, &login(qualifier), target.lun)).collect()
}

/// Runs a command on all sessions but the first.
fn others(sessions: &mut [Session], cdb: &[u8], judge: impl Fn(CommandResult) -> Result<()>) -> Result<()> {
    sessions[1..].iter_mut().try_for_each(|session| judge(session.run(cdb, Data::In(512))?))
}

/// Expects one unit attention on all sessions except the first.
fn expect_unit_attention(sessions: &mut [Session], code: u8, qualifier: u8) -> Result<()> {
    sessions[0].run(&TEST_UNIT_READY, Data::None)?.good()?;
    others(sessions, &TEST_UNIT_READY, |done| done.expect_sense(UNIT_ATTENTION, code, qualifier))
}

/// Sends a parameter list; its length is in byte `at` of the CDB.
fn set(session: &mut Session, mut cdb: Vec<u8>, at: usize, list: &[u8]) -> Result<()> {
    cdb[at] = u8::try_from(list.len())?;
    session.run(&cdb, Data::Out(list.to_vec()))?.good().map(drop)
}

/// D_SENSE: all sessions then get sense data in descriptor format.
fn mode_page(sessions: &mut [Session]) -> Result<()> {
    const NO_SUCH_COMMAND: [u8; 6] = [0xff, 0, 0, 0, 0, 0];
    for (descriptor, format) in [(4, 0x72), (0, 0x70)] {
        let page = [0x0a, 10, 0x22 | descriptor, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
        set(&mut sessions[0], vec![0x15, 0x10, 0, 0, 0, 0], 4, &[&[0; 4][..], &page].concat())?;
        expect_unit_attention(sessions, 0x2a, 0x01)?;
        others(sessions, &NO_SUCH_COMMAND, |done| {
            ensure!(done.sense.first() == Some(&format), "sense data is {:02x?}", done.sense);
            done.expect_sense(ILLEGAL_REQUEST, 0x20, 0)
        })?;
    }
    Ok(())
}

/// Standby and back with SET TARGET PORT GROUPS.
fn access_state(sessions: &mut [Session]) -> Result<()> {
    const SET: [u8; 12] = [0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    const REPORT: [u8; 12] = [0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0];
    let group = sessions[0].run(&REPORT, Data::In(12))?.good()?.data[6..8].to_vec();
    let list = |state: u8| [&[0, 0, 0, 0, state, 0][..], &group].concat();
    set(&mut sessions[0], SET.to_vec(), 9, &list(2))?;
    others(sessions, &TEST_UNIT_READY, |done| done.expect_sense(UNIT_ATTENTION, 0x2a, 0x06))?;
    for session in sessions.iter_mut() {
        session.run(&TEST_UNIT_READY, Data::None)?.expect_sense(NOT_READY, 0x04, 0x0b)?;
        let state = session.run(&REPORT, Data::In(12))?.good()?.data[4] & 0x0f;
        ensure!(state == 2, "the state is {state:x}h");
    }
    set(&mut sessions[0], SET.to_vec(), 9, &list(0))?;
    expect_unit_attention(sessions, 0x2a, 0x06)?;
    others(sessions, &TEST_UNIT_READY, |done| done.good().map(drop))
}

fn clock(sessions: &mut [Session]) -> Result<()> {
    const REPORT: [u8; 12] = [0xa3, 0x0f, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0];
    let list = [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    set(&mut sessions[0], vec![0xa4, 0x0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 9, &list)?;
    expect_unit_attention(sessions, 0x2a, 0x10)?;
    others(sessions, &REPORT, |done| {
        let data = done.good()?.data;
        // The timestamp was set, and has advanced by less than a minute.
        ensure!(data[2] == 2 && data[4..8] == [0, 1, 0, 0], "the timestamp is {data:02x?}");
        Ok(())
    })
}

fn information(sessions: &mut [Session]) -> Result<()> {
    const REPORT: [u8; 12] = [0xa3, 0x05, 0, 0, 0, 0, 0, 0, 1, 0, 4, 0];
    set(&mut sessions[0], vec![0xa4, 0x06, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0], 9, b"the blue one\0")?;
    expect_unit_attention(sessions, 0x3f, 0x05)?;
    others(sessions, &REPORT, |done| {
        let data = &done.good()?.data[..17];
        ensure!(data == b"\0\0\0\x0dthe blue one\0", "the identifying information is {data:02x?}");
        Ok(())
    })
}

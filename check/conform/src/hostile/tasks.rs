//! Task management functions while writes wait for their data.

use anyhow::{Result, ensure};

use super::fixture::{ANSWER_LIMIT, Case, Fixture, Reaction, SILENCE, expect_alive, reaction};
use super::transfers::{data_out, expect_old_or_new_data, finish_write, prepare, write_with_r2t};
use crate::pdu::{FINAL, IMMEDIATE, Pdu, Received, op};
use crate::session::{Data, Login, Session, cdb};
use crate::target::{Spec, Target};

/// Functions and their responses (RFC 7143 11.5.1 and 11.6.1).
const ABORT_TASK_SET: u8 = 2;
const TARGET_COLD_RESET: u8 = 7;
const TASK_REASSIGN: u8 = 8;
const COMPLETE: u8 = 0;
const REASSIGN_NOT_SUPPORTED: u8 = 4;

pub(super) const CASES: [Case; 3] = [
    ("task management: ABORT TASK SET ends the commands of its nexus only", abort_task_set),
    ("task management: TARGET COLD RESET ends all sessions", cold_reset),
    ("task management: TASK REASSIGN is rejected, and the task continues", task_reassign),
];

/// Sends a function; returns its response, which must be the next PDU.
fn function(session: &mut Session, function: u8, referenced: u32) -> Result<u8> {
    let tag = session.tag();
    let pdu = Pdu::new(op::TASK_REQUEST | IMMEDIATE, FINAL | function).lun(session.lun).tag(tag).word(20, referenced);
    session.connection.send(&pdu.word(24, session.cmd_sn).word(28, session.exp_stat_sn))?;
    let answer = session.connection.expect(ANSWER_LIMIT)?;
    ensure!(answer.opcode() == op::TASK_RESPONSE && answer.get(16) == tag, "function {function}: {answer:?}");
    Ok(answer.head[2])
}

/// Two writes of one session and one write of another session wait for their data. The two end without a response, even
/// if data arrives for them; the other one succeeds.
fn abort_task_set(fixture: &mut Fixture<'_>) -> Result<()> {
    prepare(fixture)?;
    let (mut session, first, part) = write_with_r2t(fixture, &[])?;
    let second = session.command(&cdb::write(0, 8), 0x20, 4096);
    session.connection.send(&second)?;
    let r2t = session.connection.expect(ANSWER_LIMIT)?;
    ensure!(r2t.opcode() == op::R2T && r2t.get(16) == second.get(16), "{r2t:?} in place of an R2T");
    let mut other =
        Session::ready(fixture.target.portal, &fixture.login().key("ImmediateData", "No").qualifier(7), fixture.lun)?;
    let other_write = other.start(&cdb::write(64, 8), Data::Out(vec![0x77; 4096]))?;
    let response = function(&mut session, ABORT_TASK_SET, u32::MAX)?;
    ensure!(response == COMPLETE, "the response is {response}");
    session.connection.send(&data_out(fixture, first, part, 0x66))?;
    let found = reaction(&mut session.connection, SILENCE)?;
    ensure!(found == Reaction::Ignored, "data of an aborted task causes a response: {found:?}");
    expect_alive(&mut session)?;
    let done = other.next()?;
    ensure!(done.tag == other_write, "a response without a command");
    done.good()?;
    ensure!(other.read(64, 8, 512)? == [0x77; 4096], "the data of the other session is lost");
    other.logout()?;
    expect_old_or_new_data(fixture)
}

/// On a target of its own, because all sessions of the target end.
fn cold_reset(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.lab.built()?;
    let mut target = Target::start(fixture.lab, &Spec::new(fixture.driver, ["ram:8M"])?.flags(&["--cores", "2"]))?;
    let login = |qualifier| Login::to(&target.name, "attacker").qualifier(qualifier);
    let mut others = Vec::new();
    for qualifier in 1..6 {
        others.push(Session::ready(target.portal, &login(qualifier), target.lun)?);
    }
    let mut session = Session::ready(target.portal, &login(0).key("ImmediateData", "No").key("InitialR2T", "Yes"), 0)?;
    let write = session.command(&cdb::write(0, 8), 0x20, 4096);
    session.connection.send(&write)?;
    ensure!(session.connection.expect(ANSWER_LIMIT)?.opcode() == op::R2T, "no R2T");
    let response = function(&mut session, TARGET_COLD_RESET, u32::MAX)?;
    ensure!(response == COMPLETE, "the response is {response}");
    others.push(session);
    for (at, session) in others.iter_mut().enumerate() {
        // An asynchronous message may come first.
        loop {
            match session.connection.receive(ANSWER_LIMIT)? {
                Received::Closed => break,
                Received::Pdu(pdu) if pdu.opcode() == op::ASYNC => {}
                other => anyhow::bail!("session {at} does not end, but receives {other:?}"),
            }
        }
    }
    let mut again = Session::ready(target.portal, &login(0), target.lun)?;
    ensure!(again.read(0, 8, 512)? == [0; 4096], "a write without data has written");
    again.logout()?;
    target.healthy()?;
    target.stop()
}

fn task_reassign(fixture: &mut Fixture<'_>) -> Result<()> {
    prepare(fixture)?;
    let (mut session, task, part) = write_with_r2t(fixture, &[])?;
    let response = function(&mut session, TASK_REASSIGN, task)?;
    ensure!(response == REASSIGN_NOT_SUPPORTED, "the response is {response}");
    finish_write(fixture, &mut session, task, part)?;
    expect_alive(&mut session)?;
    expect_old_or_new_data(fixture)
}

//! Hostile requests in the full-feature phase: malformed, out of order, or invalid.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::fixture::{ANSWER_LIMIT, Case, Fixture, Reaction, SILENCE, expect_alive, expect_reaction, reaction};
use crate::pdu::{Digests, FINAL, IMMEDIATE, Pdu, RESERVED_TAG, Received, op};
use crate::session::{Data, GOOD, Login, Session, cdb};
use crate::target::{Spec, Target};

const TEST_UNIT_READY: [u8; 6] = [0; 6];
/// Reject reasons "command not supported" and "invalid PDU field" (RFC 7143 11.17.1).
const NOT_SUPPORTED: Reaction = Reaction::Rejected(0x05);
const INVALID_FIELD: Reaction = Reaction::Rejected(0x09);

pub(super) const CASES: [Case; 23] = [
    ("request: opcodes that do not exist", unknown_opcodes),
    ("request: opcodes of responses", target_opcodes),
    ("request: a second login", second_login),
    ("request: cut off in the header", |fixture| cut(fixture, 20)),
    ("request: cut off in the data", |fixture| cut(fixture, 48 + 100)),
    ("request: a data segment beyond the limit", long_segment),
    ("request: wrong header digest", wrong_header_digest),
    ("request: task tag ffffffffh", reserved_tag),
    ("request: a task tag that is in use", tag_in_use),
    ("request: CmdSN beyond the window", beyond_window),
    ("request: a CmdSN that was used already", past_command),
    ("request: CmdSN with a gap that closes later", gap_that_closes),
    ("request: an ExpStatSN that was not sent yet", future_status),
    ("request: random additional header segments", header_segments),
    ("request: additional header segments cut short", short_header_segments),
    ("request: LUNs in every form", odd_luns),
    ("request: SNACK without error recovery", snack),
    ("request: text without end", endless_text),
    ("request: text that continues no exchange", text_from_nowhere),
    ("request: task management that does not exist", unknown_task_management),
    ("request: logout of another connection", foreign_logout),
    ("request: random CDBs", random_cdbs),
    ("request: flipped bits", flipped_bits),
];

fn unknown_opcodes(fixture: &mut Fixture<'_>) -> Result<()> {
    for opcode in [0x07, 0x0f, 0x11, 0x1c, 0x1f] {
        let mut session = fixture.session(&[])?;
        let pdu = Pdu::new(opcode | IMMEDIATE, FINAL).tag(9).word(24, session.cmd_sn).word(28, session.exp_stat_sn);
        session.connection.send(&pdu)?;
        expect_reaction(&mut session.connection, NOT_SUPPORTED)?;
        expect_alive(&mut session)?;
    }
    Ok(())
}

fn target_opcodes(fixture: &mut Fixture<'_>) -> Result<()> {
    for opcode in [op::NOP_IN, op::RESPONSE, op::LOGIN_RESPONSE, op::DATA_IN, op::R2T, op::ASYNC, op::REJECT, 0x3e] {
        let mut session = fixture.session(&[])?;
        let pdu = Pdu::new(opcode, FINAL).tag(9).word(24, session.cmd_sn).word(28, session.exp_stat_sn);
        session.connection.send(&pdu)?;
        expect_reaction(&mut session.connection, NOT_SUPPORTED)?;
        expect_alive(&mut session)?;
    }
    Ok(())
}

fn second_login(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    let request = fixture.login().request().word(24, session.cmd_sn).word(28, session.exp_stat_sn);
    session.connection.send(&request)?;
    // Reject reason "protocol error".
    expect_reaction(&mut session.connection, Reaction::Rejected(0x04))?;
    expect_alive(&mut session)
}

/// A PDU that ends after its first bytes, because the initiator closes its side.
fn cut(fixture: &mut Fixture<'_>, at: usize) -> Result<()> {
    let mut session = fixture.session(&[])?;
    let pdu = session.command(&cdb::write(0, 8), 0x20, 4096).with_data(vec![7; 4096]);
    let bytes = pdu.encode(Digests::default());
    session.connection.send_raw(&bytes[..at])?;
    session.connection.end_of_sending()?;
    match reaction(&mut session.connection, ANSWER_LIMIT)? {
        Reaction::Closed => Ok(()),
        other => bail!("half a PDU: {other:?}"),
    }
}

fn long_segment(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    let mut pdu = Pdu::new(op::NOP_OUT | IMMEDIATE, FINAL).tag(9).word(20, RESERVED_TAG).word(24, session.cmd_sn);
    pdu.head[5..8].copy_from_slice(&[0xff, 0xff, 0xfc]);
    session.connection.send_raw(&pdu.encode_as_is(Digests::default()))?;
    let piece = vec![0; 1 << 16];
    for _ in 0..(1 << 24) / piece.len() {
        if session.connection.send_raw(&piece).is_err() {
            break;
        }
    }
    expect_reaction(&mut session.connection, Reaction::Closed)
}

/// After a wrong header digest, the position of the next PDU is unknown (RFC 7143 7.7).
fn wrong_header_digest(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[("HeaderDigest", "CRC32C")])?;
    if !session.connection.digests.header {
        return crate::report::skip("the target does not accept a header digest");
    }
    let pdu = session.command(&TEST_UNIT_READY, 0, 0);
    let mut bytes = pdu.encode(session.connection.digests);
    bytes[48] ^= 1;
    session.connection.send_raw(&bytes)?;
    match reaction(&mut session.connection, ANSWER_LIMIT)? {
        Reaction::Closed => Ok(()),
        other => bail!("{other:?}"),
    }
}

fn reserved_tag(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    let pdu = session.command(&TEST_UNIT_READY, 0, 0).tag(RESERVED_TAG);
    session.connection.send(&pdu)?;
    expect_reaction(&mut session.connection, INVALID_FIELD)?;
    expect_alive(&mut session)
}

/// A write that waits for its data, and another command with the same task tag.
fn tag_in_use(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
    let first = session.command(&cdb::write(0, 8), 0x20, 4096);
    session.connection.send(&first)?;
    ensure!(session.connection.expect(ANSWER_LIMIT)?.opcode() == op::R2T, "no R2T");
    let second = session.command(&TEST_UNIT_READY, 0, 0).tag(first.get(16));
    session.connection.send(&second)?;
    // Reject reason "task in progress" (RFC 7143 11.17.1).
    expect_reaction(&mut session.connection, Reaction::Rejected(0x07))?;
    expect_alive(&mut session)
}

fn ignored(session: &mut Session) -> Result<()> {
    match reaction(&mut session.connection, SILENCE)? {
        Reaction::Ignored | Reaction::Closed => Ok(()),
        other => bail!("not ignored: {other:?}"),
    }
}

/// Commands outside of the window are silently ignored (RFC 7143 4.2.2.1).
fn beyond_window(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    let pdu = session.command(&TEST_UNIT_READY, 0, 0).word(24, session.max_cmd_sn.wrapping_add(1000));
    session.cmd_sn = session.cmd_sn.wrapping_sub(1);
    session.connection.send(&pdu)?;
    ignored(&mut session)?;
    session.run(&TEST_UNIT_READY, Data::None)?.good()?;
    Ok(())
}

fn past_command(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    let pdu = session.command(&TEST_UNIT_READY, 0, 0).word(24, session.cmd_sn.wrapping_sub(3));
    session.cmd_sn = session.cmd_sn.wrapping_sub(1);
    session.connection.send(&pdu)?;
    ignored(&mut session)?;
    session.run(&TEST_UNIT_READY, Data::None)?.good()?;
    Ok(())
}

/// Two commands in the wrong order: the first to arrive waits, then both are executed in the order of CmdSN.
fn gap_that_closes(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    let first = session.command(&TEST_UNIT_READY, 0, 0);
    let second = session.command(&TEST_UNIT_READY, 0, 0);
    session.connection.send(&second)?;
    ignored(&mut session)?;
    session.connection.send(&first)?;
    for wanted in [&first, &second] {
        let pdu = session.connection.expect(ANSWER_LIMIT)?;
        ensure!(pdu.opcode() == op::RESPONSE && pdu.head[3] == GOOD, "opcode {:02x}h", pdu.opcode());
        ensure!(pdu.get(16) == wanted.get(16), "the commands were executed in the wrong order");
    }
    Ok(())
}

/// Acknowledges a status that was not sent. At ErrorRecoveryLevel 0 nothing is kept, so this has no effect.
fn future_status(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    session.exp_stat_sn = session.exp_stat_sn.wrapping_add(0x1000_0000);
    let pdu = session.command(&TEST_UNIT_READY, 0, 0);
    session.connection.send(&pdu)?;
    expect_reaction(&mut session.connection, Reaction::Answered(GOOD, (0, 0, 0)))?;
    expect_alive(&mut session)
}

fn header_segments(fixture: &mut Fixture<'_>) -> Result<()> {
    // Length, type, contents: a length of zero, an unknown type, an extended CDB longer than its room, a bidirectional
    // length without contents.
    for ahs in [vec![0; 4], vec![0, 1, 0x3f, 0], vec![0xff, 0xff, 1, 0], vec![0, 1, 2, 0], vec![0; 1020]] {
        let mut session = fixture.session(&[])?;
        let mut pdu = session.command(&TEST_UNIT_READY, 0, 0);
        pdu.ahs = ahs;
        session.connection.send(&pdu)?;
        expect_reaction(&mut session.connection, INVALID_FIELD).with_context(|| format!("{:02x?}", &pdu.ahs[..4]))?;
        expect_alive(&mut session)?;
    }
    Ok(())
}

fn short_header_segments(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    let mut pdu = session.command(&TEST_UNIT_READY, 0, 0);
    pdu.head[4] = 255;
    session.connection.send_raw(&pdu.encode_as_is(Digests::default()))?;
    session.connection.end_of_sending()?;
    match reaction(&mut session.connection, ANSWER_LIMIT)? {
        Reaction::Closed => Ok(()),
        other => bail!("{other:?}"),
    }
}

/// Addressing methods of SAM-6 4.7: none of these LUNs addresses a logical unit.
fn odd_luns(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    for lun in
        [[0xff; 8], [0xc1, 0, 0, 1, 0, 0, 0, 0], [0x7f, 0xff, 0, 0, 0, 0, 0, 0], [0, 1, 0, 2, 0, 3, 0, 4], [0x80; 8]]
    {
        let pdu = session.command(&TEST_UNIT_READY, 0, 0).bytes(8, &lun);
        session.connection.send(&pdu)?;
        match reaction(&mut session.connection, ANSWER_LIMIT)? {
            // ILLEGAL REQUEST, LOGICAL UNIT NOT SUPPORTED.
            Reaction::Answered(2, (5, 0x25, 0)) => {}
            other => bail!("{lun:02x?}: {other:?}"),
        }
    }
    expect_alive(&mut session)
}

fn snack(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    let pdu = Pdu::new(op::SNACK | IMMEDIATE, FINAL | 0x01)
        .tag(RESERVED_TAG)
        .word(20, RESERVED_TAG)
        .word(28, session.exp_stat_sn);
    session.connection.send(&pdu.word(44, 100))?;
    // Reject reason "SNACK reject".
    expect_reaction(&mut session.connection, Reaction::Rejected(0x03))?;
    expect_alive(&mut session)
}

fn endless_text(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    let mut transfer = RESERVED_TAG;
    for _ in 0..2000 {
        let pdu = Pdu::new(op::TEXT | IMMEDIATE, 0x40).tag(77).word(20, transfer).word(24, session.cmd_sn);
        session.connection.send(&pdu.word(28, session.exp_stat_sn).with_data(vec![b'x'; 8192]))?;
        let answer = session.connection.expect(ANSWER_LIMIT)?;
        match (answer.opcode(), answer.head[2]) {
            (op::TEXT_RESPONSE, _) => {
                transfer = answer.get(20);
                session.exp_stat_sn = answer.get(24).wrapping_add(1);
            }
            // Reject reason "protocol error".
            (op::REJECT, 0x04) => return expect_alive(&mut session),
            _ => bail!("text is answered with {answer:?}"),
        }
    }
    bail!("16 MiB of text were received")
}

fn text_from_nowhere(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    let pdu = Pdu::new(op::TEXT | IMMEDIATE, FINAL).tag(77).word(20, 0x1234_5678).word(24, session.cmd_sn);
    session.connection.send(&pdu.word(28, session.exp_stat_sn).with_data(*b"SendTargets=All\0"))?;
    expect_reaction(&mut session.connection, INVALID_FIELD)?;
    expect_alive(&mut session)
}

fn unknown_task_management(fixture: &mut Fixture<'_>) -> Result<()> {
    for function in [0, 9, 0x7f] {
        let mut session = fixture.session(&[])?;
        let pdu = Pdu::new(op::TASK_REQUEST | IMMEDIATE, FINAL | function).lun(fixture.lun).tag(99).word(20, 0xdead);
        session.connection.send(&pdu.word(24, session.cmd_sn).word(28, session.exp_stat_sn))?;
        match session.connection.receive(ANSWER_LIMIT)? {
            // Response "function not supported" (RFC 7143 11.6.1).
            Received::Pdu(pdu) if pdu.opcode() == op::TASK_RESPONSE && pdu.head[2] == 5 => {}
            other => bail!("function {function}: {other:?}"),
        }
    }
    Ok(())
}

fn foreign_logout(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    // Reason 1: close the connection with the CID at byte 20.
    let pdu = Pdu::new(op::LOGOUT | IMMEDIATE, FINAL | 1).tag(98).word(20, 0x4321_0000).word(24, session.cmd_sn);
    session.connection.send(&pdu.word(28, session.exp_stat_sn))?;
    match session.connection.receive(ANSWER_LIMIT)? {
        // Response "CID not found" (RFC 7143 11.15.1).
        Received::Pdu(pdu) if pdu.opcode() == op::LOGOUT_RESPONSE && pdu.head[2] == 1 => expect_alive(&mut session),
        other => bail!("{other:?}"),
    }
}

/// Every CDB gets a response. On a target of its own: the commands may stop, reserve or format a unit, or change its
/// access state.
fn random_cdbs(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.lab.built()?;
    let mut target = Target::start(fixture.lab, &Spec::new(fixture.driver, ["ram:8M"])?)?;
    let mut session = Session::ready(target.portal, &Login::to(&target.name, "attacker"), target.lun)?;
    for round in 0..3000 {
        let mut cdb = fixture.random.bytes(16);
        if fixture.random.below(2) == 0 {
            // Mostly zeroes in the CDB pass more checks.
            cdb[1..].iter_mut().for_each(|byte| *byte &= 0x01);
        }
        let length = usize::try_from(fixture.random.below(9000))?;
        let data = match fixture.random.below(3) {
            0 => Data::None,
            1 => Data::In(length),
            _ => Data::Out(vec![0x5a; length]),
        };
        session.run(&cdb, data).map_err(|error| error.context(format!("round {round}, CDB {cdb:02x?}")))?;
    }
    target.healthy()?;
    session.logout()?;
    target.stop()
}

/// One bit of a valid request is flipped, except in the LUN: other units must not be overwritten.
fn flipped_bits(fixture: &mut Fixture<'_>) -> Result<()> {
    for round in 0..300 {
        let mut session = fixture.session(&[])?;
        let kind = fixture.random.below(4);
        let pdu = match kind {
            0 => session.command(&cdb::write(64, 8), 0x20, 4096).with_data(vec![1; 4096]),
            1 => session.command(&cdb::read(64, 8), 0x40, 4096),
            2 => Pdu::new(op::NOP_OUT | IMMEDIATE, FINAL).tag(5).word(20, RESERVED_TAG).with_data(vec![2; 40]),
            _ => Pdu::new(op::TEXT, FINAL).tag(5).word(20, RESERVED_TAG).with_data(*b"SendTargets=\0"),
        };
        let mut bytes = pdu.word(28, session.exp_stat_sn).encode(Digests::default());
        let at = loop {
            let at = usize::try_from(fixture.random.below(48))?;
            if !(8..16).contains(&at) {
                break at;
            }
        };
        bytes[at] ^= 1 << fixture.random.below(8);
        session.connection.send_raw(&bytes)?;
        // The flipped bit may announce more data: close the side of the initiator.
        if round % 2 == 0 {
            session.connection.end_of_sending()?;
            loop {
                match reaction(&mut session.connection, ANSWER_LIMIT)? {
                    Reaction::Closed => break,
                    Reaction::Ignored => bail!("byte {at} changed: neither a response nor a close"),
                    _ => {}
                }
            }
        } else {
            let _ = reaction(&mut session.connection, Duration::from_millis(10))?;
        }
    }
    Ok(())
}

//! Data that is wrong, too much, too little, late, or of no task. A command must never end with GOOD if its data is not
//! on the medium.

use anyhow::{Result, bail, ensure};

use super::fixture::{ANSWER_LIMIT, Case, Fixture, Reaction, SILENCE, expect_alive, expect_reaction, reaction};
use crate::pdu::{Digests, FINAL, Pdu, RESERVED_TAG, op};
use crate::session::{CHECK_CONDITION, GOOD, Session, cdb};

/// The first block of these cases.
const LBA: u64 = 4096;
const BLOCKS: u32 = 64;
const BLOCK: usize = 512;
const LENGTH: usize = BLOCKS as usize * BLOCK;
const BEFORE: u8 = 0xb0;
const AFTER: u8 = 0xa0;

/// Reject reasons "data digest error" and "invalid PDU field" (RFC 7143 11.17.1).
const DATA_DIGEST: Reaction = Reaction::Rejected(0x02);
const INVALID_FIELD: Reaction = Reaction::Rejected(0x09);
/// Additional sense codes with ABORTED COMMAND (RFC 7143 11.4.7.2).
const UNEXPECTED: (u8, u8) = (0x0c, 0x0c);
const AMOUNT: (u8, u8) = (0x0c, 0x0d);
const CRC: (u8, u8) = (0x47, 0x05);

pub(super) const CASES: [Case; 15] = [
    ("data: wrong digest on immediate data", wrong_digest_immediate),
    ("data: wrong digest on solicited data", wrong_digest_solicited),
    ("data: for a task that does not exist", no_such_task),
    ("data: with an unknown transfer tag", |fixture| {
        stray_data(fixture, INVALID_FIELD, |pdu| pdu.word(20, 0x0bad_cafe))
    }),
    ("data: with the tag of another task", |fixture| {
        stray_data(fixture, Reaction::Ignored, |pdu| pdu.tag(0x7fff_fff0))
    }),
    ("data: before the requested part", |fixture| misplaced(fixture, |from| from - 512)),
    ("data: after the requested part", |fixture| misplaced(fixture, |from| from + 0x10_0000)),
    ("data: at the end of the address space", |fixture| misplaced(fixture, |_| 0xffff_fe00)),
    ("data: more than requested", more_than_requested),
    ("data: less than requested", less_than_requested),
    ("data: unsolicited although InitialR2T is Yes", unsolicited_refused),
    ("data: immediate although ImmediateData is No", immediate_refused),
    ("data: beyond the first burst", beyond_first_burst),
    ("data: more than the expected length", longer_than_command),
    ("data: a bidirectional command", both_directions),
];

/// Writes the old data.
pub(super) fn prepare(fixture: &Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    session.write(LBA, vec![BEFORE; LENGTH], BLOCK)?;
    session.logout()
}

/// Fails unless every block has the old or the new data, so that no wrong data was written.
pub(super) fn expect_old_or_new_data(fixture: &Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    let data = session.read(LBA, BLOCKS, BLOCK)?;
    for (at, block) in data.chunks(BLOCK).enumerate() {
        let clean = block.iter().all(|byte| *byte == BEFORE) || block.iter().all(|byte| *byte == AFTER);
        ensure!(clean, "block {at} has neither the old nor the new data: {:02x?}", &block[..16]);
    }
    session.logout()
}

fn wrong_digest_immediate(fixture: &mut Fixture<'_>) -> Result<()> {
    prepare(fixture)?;
    let mut session = fixture.session(&[("DataDigest", "CRC32C")])?;
    if !session.connection.digests.data {
        return crate::report::skip("the target does not accept a data digest");
    }
    let pdu = session.command(&cdb::write(LBA, BLOCKS), 0x20, LENGTH).with_data(vec![0x66; LENGTH]);
    let mut bytes = pdu.encode(session.connection.digests);
    let last = bytes.len() - 1;
    bytes[last] ^= 0x10;
    session.connection.send_raw(&bytes)?;
    expect_reaction(&mut session.connection, DATA_DIGEST)?;
    expect_aborted_command(session, CRC)?;
    expect_old_or_new_data(fixture)
}

/// A session with a write that waits for its first data; returns the task tag, and transfer tag, offset and length of
/// the R2T.
pub(super) fn write_with_r2t(fixture: &Fixture<'_>, keys: &[(&'static str, &str)]) -> Result<(Session, u32, [u32; 3])> {
    let mut all = vec![
        ("ImmediateData", "No"),
        ("InitialR2T", "Yes"),
        ("FirstBurstLength", "16384"),
        ("MaxBurstLength", "16384"),
    ];
    all.extend(keys);
    let mut session = fixture.session(&all)?;
    let command = session.command(&cdb::write(LBA, BLOCKS), 0x20, LENGTH);
    session.connection.send(&command)?;
    let pdu = session.connection.expect(ANSWER_LIMIT)?;
    ensure!(pdu.opcode() == op::R2T, "opcode {:02x}h instead of an R2T", pdu.opcode());
    ensure!(pdu.get(44) <= 16384, "an R2T beyond MaxBurstLength");
    Ok((session, command.get(16), [pdu.get(20), pdu.get(40), pdu.get(44)]))
}

pub(super) fn data_out(fixture: &Fixture<'_>, task: u32, [tag, offset, length]: [u32; 3], fill: u8) -> Pdu {
    let data = vec![fill; usize::try_from(length).unwrap_or_default()];
    Pdu::new(op::DATA_OUT, FINAL).lun(fixture.lun).tag(task).word(20, tag).word(40, offset).with_data(data)
}

fn wrong_digest_solicited(fixture: &mut Fixture<'_>) -> Result<()> {
    prepare(fixture)?;
    let (mut session, task, wanted) = write_with_r2t(fixture, &[("DataDigest", "CRC32C")])?;
    if !session.connection.digests.data {
        return crate::report::skip("the target does not accept a data digest");
    }
    let mut bytes = data_out(fixture, task, wanted, 0x66).encode(session.connection.digests);
    let last = bytes.len() - 5;
    bytes[last] ^= 0x10;
    session.connection.send_raw(&bytes)?;
    expect_reaction(&mut session.connection, DATA_DIGEST)?;
    expect_aborted_command(session, CRC)?;
    expect_old_or_new_data(fixture)
}

/// The initiator may have sent the PDU before it learned that the task has ended.
fn no_such_task(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    let pdu = data_out(fixture, 0x5555_5555, [RESERVED_TAG, 0, 4096], 0x66);
    session.connection.send(&pdu)?;
    ensure!(reaction(&mut session.connection, SILENCE)? == Reaction::Ignored, "not ignored");
    expect_alive(&mut session)
}

/// Data of no task: the reaction to it, and that the task which it might belong to continues as before.
fn stray_data(fixture: &mut Fixture<'_>, wanted: Reaction, alter: impl FnOnce(Pdu) -> Pdu) -> Result<()> {
    prepare(fixture)?;
    let (mut session, task, write_with_r2t) = write_with_r2t(fixture, &[])?;
    session.connection.send(&alter(data_out(fixture, task, write_with_r2t, 0x66)))?;
    let found = reaction(&mut session.connection, SILENCE)?;
    ensure!(found == wanted, "{found:?} instead of {wanted:?}");
    finish_write(fixture, &mut session, task, write_with_r2t)?;
    expect_alive(&mut session)?;
    expect_old_or_new_data(fixture)
}

/// Sends all requested data until the write succeeds.
pub(super) fn finish_write(
    fixture: &Fixture<'_>,
    session: &mut Session,
    task: u32,
    mut write_with_r2t: [u32; 3],
) -> Result<()> {
    loop {
        session.connection.send(&data_out(fixture, task, write_with_r2t, AFTER))?;
        let pdu = session.connection.expect(ANSWER_LIMIT)?;
        match pdu.opcode() {
            op::R2T => write_with_r2t = [pdu.get(20), pdu.get(40), pdu.get(44)],
            op::RESPONSE if pdu.get(16) == task && pdu.head[3] == GOOD => return Ok(()),
            _ => bail!("the write is answered with {pdu:?}"),
        }
    }
}

/// The data of the second R2T has a wrong offset: it is rejected, and the command fails.
fn misplaced(fixture: &mut Fixture<'_>, alter: impl FnOnce(u32) -> u32) -> Result<()> {
    prepare(fixture)?;
    let (mut session, task, first) = write_with_r2t(fixture, &[])?;
    session.connection.send(&data_out(fixture, task, first, AFTER))?;
    let pdu = session.connection.expect(ANSWER_LIMIT)?;
    ensure!(pdu.opcode() == op::R2T, "opcode {:02x}h instead of a second R2T", pdu.opcode());
    let second = [pdu.get(20), pdu.get(40), pdu.get(44)];
    session.connection.send(&data_out(fixture, task, second, 0x66).word(40, alter(second[1])))?;
    expect_reaction(&mut session.connection, INVALID_FIELD)?;
    expect_aborted_command(session, AMOUNT)?;
    expect_old_or_new_data(fixture)
}

fn more_than_requested(fixture: &mut Fixture<'_>) -> Result<()> {
    prepare(fixture)?;
    let (mut session, task, [tag, offset, length]) = write_with_r2t(fixture, &[])?;
    let pdu = data_out(fixture, task, [tag, offset, length + 4096], 0x66);
    session.connection.send(&pdu)?;
    expect_reaction(&mut session.connection, INVALID_FIELD)?;
    expect_aborted_command(session, AMOUNT)?;
    expect_old_or_new_data(fixture)
}

/// The F bit before all requested data was sent (RFC 7143 11.7.1): an error, not a short write.
fn less_than_requested(fixture: &mut Fixture<'_>) -> Result<()> {
    prepare(fixture)?;
    let (mut session, task, [tag, offset, length]) = write_with_r2t(fixture, &[])?;
    let pdu = data_out(fixture, task, [tag, offset, length / 2], AFTER);
    session.connection.send(&pdu)?;
    expect_aborted_command(session, AMOUNT)?;
    expect_old_or_new_data(fixture)
}

/// Expects ABORTED COMMAND with this additional sense code (RFC 7143 11.4.7.2); the session continues.
fn expect_aborted_command(mut session: Session, (code, qualifier): (u8, u8)) -> Result<()> {
    expect_reaction(&mut session.connection, Reaction::Answered(CHECK_CONDITION, (0x0b, code, qualifier)))?;
    expect_alive(&mut session)
}

fn unsolicited_refused(fixture: &mut Fixture<'_>) -> Result<()> {
    prepare(fixture)?;
    let mut session = fixture.session(&[("InitialR2T", "Yes"), ("ImmediateData", "No")])?;
    let mut command = session.command(&cdb::write(LBA, BLOCKS), 0x20, LENGTH);
    // Without the F bit, unsolicited data follows.
    command.head[1] &= !FINAL;
    let data = data_out(fixture, command.get(16), [RESERVED_TAG, 0, 4096], 0x66);
    let both = [command.encode(Digests::default()), data.encode(Digests::default())].concat();
    session.connection.send_raw(&both)?;
    expect_aborted_command(session, UNEXPECTED)?;
    expect_old_or_new_data(fixture)
}

fn immediate_refused(fixture: &mut Fixture<'_>) -> Result<()> {
    prepare(fixture)?;
    let mut session = fixture.session(&[("InitialR2T", "Yes"), ("ImmediateData", "No")])?;
    let command = session.command(&cdb::write(LBA, BLOCKS), 0x20, LENGTH).with_data(vec![0x66; 4096]);
    session.connection.send(&command)?;
    expect_aborted_command(session, UNEXPECTED)?;
    expect_old_or_new_data(fixture)
}

fn beyond_first_burst(fixture: &mut Fixture<'_>) -> Result<()> {
    prepare(fixture)?;
    let mut session = fixture.session(&[("FirstBurstLength", "4096"), ("InitialR2T", "No")])?;
    let mut command = session.command(&cdb::write(LBA, BLOCKS), 0x20, LENGTH).with_data(vec![0x66; 4096]);
    command.head[1] &= !FINAL;
    let data = data_out(fixture, command.get(16), [RESERVED_TAG, 4096, 8192], 0x66);
    let both = [command.encode(Digests::default()), data.encode(Digests::default())].concat();
    session.connection.send_raw(&both)?;
    expect_reaction(&mut session.connection, INVALID_FIELD)?;
    expect_aborted_command(session, AMOUNT)?;
    expect_old_or_new_data(fixture)
}

/// More immediate data than the Expected Data Transfer Length.
fn longer_than_command(fixture: &mut Fixture<'_>) -> Result<()> {
    prepare(fixture)?;
    let mut session = fixture.session(&[])?;
    let command = session.command(&cdb::write(LBA, BLOCKS), 0x20, 512).with_data(vec![0x66; 8192]);
    session.connection.send(&command)?;
    expect_aborted_command(session, AMOUNT)?;
    expect_old_or_new_data(fixture)
}

fn both_directions(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    for command in [cdb::read(LBA, BLOCKS), cdb::write(LBA, BLOCKS), [0; 16]] {
        let pdu = session.command(&command, 0x60, LENGTH);
        session.connection.send(&pdu)?;
        // Bidirectional commands are not supported: ILLEGAL REQUEST, INVALID FIELD IN COMMAND INFORMATION UNIT.
        expect_reaction(&mut session.connection, Reaction::Answered(CHECK_CONDITION, (0x05, 0x0e, 0x03)))?;
    }
    expect_alive(&mut session)
}

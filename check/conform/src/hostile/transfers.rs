//! Data that is wrong, too much, too little, too late, or for nobody. What must never come of it is GOOD for data that
//! is not on the disk.

use anyhow::{Result, bail, ensure};

use super::fixture::{Case, Fixture, PATIENCE, Reaction, SILENCE, expect_alive, expect_reaction, reaction};
use crate::pdu::{Digests, FINAL, Pdu, RESERVED_TAG, op};
use crate::session::{CHECK_CONDITION, GOOD, Session, cdb};

/// Where these cases write, in blocks.
const LBA: u64 = 4096;
const BLOCKS: u32 = 64;
const BLOCK: usize = 512;
const LENGTH: usize = BLOCKS as usize * BLOCK;
const BEFORE: u8 = 0xb0;
const AFTER: u8 = 0xa0;

/// "Data digest error", "invalid PDU field" (RFC 7143, 11.17.1).
const DATA_DIGEST: Reaction = Reaction::Rejected(0x02);
const INVALID_FIELD: Reaction = Reaction::Rejected(0x09);
/// Codes of ABORTED COMMAND (RFC 7143, 11.4.7.2).
const UNEXPECTED: (u8, u8) = (0x0c, 0x0c);
const AMOUNT: (u8, u8) = (0x0c, 0x0d);
const CRC: (u8, u8) = (0x47, 0x05);

pub(super) const CASES: [Case; 15] = [
    ("data: wrong digest on immediate data", wrong_digest_immediate),
    ("data: wrong digest on solicited data", wrong_digest_solicited),
    ("data: for a task that does not exist", no_such_task),
    ("data: with a transfer tag nobody gave", |fixture| {
        stray_data(fixture, INVALID_FIELD, |pdu| pdu.word(20, 0x0bad_cafe))
    }),
    ("data: with the tag of another task", |fixture| {
        stray_data(fixture, Reaction::Ignored, |pdu| pdu.tag(0x7fff_fff0))
    }),
    ("data: before the part that was asked for", |fixture| misplaced(fixture, |from| from - 512)),
    ("data: behind the part that was asked for", |fixture| misplaced(fixture, |from| from + 0x10_0000)),
    ("data: at the end of the address space", |fixture| misplaced(fixture, |_| 0xffff_fe00)),
    ("data: more than was asked for", more_than_asked),
    ("data: less than was asked for", less_than_asked),
    ("data: unsolicited though all must be asked for", unsolicited_refused),
    ("data: immediate though agreed not to be", immediate_refused),
    ("data: beyond the first burst", beyond_first_burst),
    ("data: longer than the command says", longer_than_command),
    ("data: both directions at once", both_directions),
];

/// Gives the place its old contents.
pub(super) fn prepare(fixture: &Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    session.write(LBA, vec![BEFORE; LENGTH], BLOCK)?;
    session.logout()
}

/// The place has blocks of the old or of the new contents, nothing else: wrong data did not get through.
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
        return crate::report::skip("the target agrees to no data digest");
    }
    let pdu = session.command(&cdb::write(LBA, BLOCKS), 0x20, LENGTH).with_data(vec![0x66; LENGTH]);
    let mut bytes = pdu.encode(session.connection.digests);
    let last = bytes.len() - 1;
    bytes[last] ^= 0x10;
    session.connection.send_raw(&bytes)?;
    expect_reaction(&mut session.connection, DATA_DIGEST)?;
    fails(session, CRC)?;
    expect_old_or_new_data(fixture)
}

/// A session in which a write waits for its first data; what the R2T asks for: tag, offset, length.
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
    let pdu = session.connection.expect(PATIENCE)?;
    ensure!(pdu.opcode() == op::R2T, "opcode {:02x}h in place of an R2T", pdu.opcode());
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
        return crate::report::skip("the target agrees to no data digest");
    }
    let mut bytes = data_out(fixture, task, wanted, 0x66).encode(session.connection.digests);
    let last = bytes.len() - 5;
    bytes[last] ^= 0x10;
    session.connection.send_raw(&bytes)?;
    expect_reaction(&mut session.connection, DATA_DIGEST)?;
    fails(session, CRC)?;
    expect_old_or_new_data(fixture)
}

/// Its initiator may have sent it before it knew that the task is gone.
fn no_such_task(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    let pdu = data_out(fixture, 0x5555_5555, [RESERVED_TAG, 0, 4096], 0x66);
    session.connection.send(&pdu)?;
    ensure!(reaction(&mut session.connection, SILENCE)? == Reaction::Ignored, "not ignored");
    expect_alive(&mut session)
}

/// Data that belongs to nothing: what becomes of it, and that the task whose it may have been goes on as if nothing had
/// come.
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

/// Sends all that is asked for, until the write ends well.
pub(super) fn finish_write(
    fixture: &Fixture<'_>,
    session: &mut Session,
    task: u32,
    mut write_with_r2t: [u32; 3],
) -> Result<()> {
    loop {
        session.connection.send(&data_out(fixture, task, write_with_r2t, AFTER))?;
        let pdu = session.connection.expect(PATIENCE)?;
        match pdu.opcode() {
            op::R2T => write_with_r2t = [pdu.get(20), pdu.get(40), pdu.get(44)],
            op::RESPONSE if pdu.get(16) == task && pdu.head[3] == GOOD => return Ok(()),
            _ => bail!("the write goes on with {pdu:?}"),
        }
    }
}

/// The second part that is asked for comes with a wrong offset: rejected, and the command fails.
fn misplaced(fixture: &mut Fixture<'_>, alter: impl FnOnce(u32) -> u32) -> Result<()> {
    prepare(fixture)?;
    let (mut session, task, first) = write_with_r2t(fixture, &[])?;
    session.connection.send(&data_out(fixture, task, first, AFTER))?;
    let pdu = session.connection.expect(PATIENCE)?;
    ensure!(pdu.opcode() == op::R2T, "opcode {:02x}h in place of a second R2T", pdu.opcode());
    let second = [pdu.get(20), pdu.get(40), pdu.get(44)];
    session.connection.send(&data_out(fixture, task, second, 0x66).word(40, alter(second[1])))?;
    expect_reaction(&mut session.connection, INVALID_FIELD)?;
    fails(session, AMOUNT)?;
    expect_old_or_new_data(fixture)
}

fn more_than_asked(fixture: &mut Fixture<'_>) -> Result<()> {
    prepare(fixture)?;
    let (mut session, task, [tag, offset, length]) = write_with_r2t(fixture, &[])?;
    let pdu = data_out(fixture, task, [tag, offset, length + 4096], 0x66);
    session.connection.send(&pdu)?;
    expect_reaction(&mut session.connection, INVALID_FIELD)?;
    fails(session, AMOUNT)?;
    expect_old_or_new_data(fixture)
}

/// The final bit before all that was asked for has come (RFC 7143, 11.7.1): an error, not a short write.
fn less_than_asked(fixture: &mut Fixture<'_>) -> Result<()> {
    prepare(fixture)?;
    let (mut session, task, [tag, offset, length]) = write_with_r2t(fixture, &[])?;
    let pdu = data_out(fixture, task, [tag, offset, length / 2], AFTER);
    session.connection.send(&pdu)?;
    fails(session, AMOUNT)?;
    expect_old_or_new_data(fixture)
}

/// The command ends with ABORTED COMMAND and this code (RFC 7143, 11.4.7.2); the session goes on.
fn fails(mut session: Session, (code, qualifier): (u8, u8)) -> Result<()> {
    expect_reaction(&mut session.connection, Reaction::Answered(CHECK_CONDITION, (0x0b, code, qualifier)))?;
    expect_alive(&mut session)
}

fn unsolicited_refused(fixture: &mut Fixture<'_>) -> Result<()> {
    prepare(fixture)?;
    let mut session = fixture.session(&[("InitialR2T", "Yes"), ("ImmediateData", "No")])?;
    let mut command = session.command(&cdb::write(LBA, BLOCKS), 0x20, LENGTH);
    // No final bit: data follows unasked.
    command.head[1] &= !FINAL;
    let data = data_out(fixture, command.get(16), [RESERVED_TAG, 0, 4096], 0x66);
    let both = [command.encode(Digests::default()), data.encode(Digests::default())].concat();
    session.connection.send_raw(&both)?;
    fails(session, UNEXPECTED)?;
    expect_old_or_new_data(fixture)
}

fn immediate_refused(fixture: &mut Fixture<'_>) -> Result<()> {
    prepare(fixture)?;
    let mut session = fixture.session(&[("InitialR2T", "Yes"), ("ImmediateData", "No")])?;
    let command = session.command(&cdb::write(LBA, BLOCKS), 0x20, LENGTH).with_data(vec![0x66; 4096]);
    session.connection.send(&command)?;
    fails(session, UNEXPECTED)?;
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
    fails(session, AMOUNT)?;
    expect_old_or_new_data(fixture)
}

/// More immediate data than the command expects to transfer in all.
fn longer_than_command(fixture: &mut Fixture<'_>) -> Result<()> {
    prepare(fixture)?;
    let mut session = fixture.session(&[])?;
    let command = session.command(&cdb::write(LBA, BLOCKS), 0x20, 512).with_data(vec![0x66; 8192]);
    session.connection.send(&command)?;
    fails(session, AMOUNT)?;
    expect_old_or_new_data(fixture)
}

fn both_directions(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut session = fixture.session(&[])?;
    for command in [cdb::read(LBA, BLOCKS), cdb::write(LBA, BLOCKS), [0; 16]] {
        let pdu = session.command(&command, 0x60, LENGTH);
        session.connection.send(&pdu)?;
        // Bidirectional commands are not ours: ILLEGAL REQUEST, INVALID FIELD IN COMMAND INFORMATION UNIT.
        expect_reaction(&mut session.connection, Reaction::Answered(CHECK_CONDITION, (0x05, 0x0e, 0x03)))?;
    }
    expect_alive(&mut session)
}

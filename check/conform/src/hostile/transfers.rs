//! Data that is wrong, too much, too little, too late, or for nobody. What must never come of it is GOOD for data that
//! is not on the disk.

use anyhow::{Result, bail, ensure};

use super::fixture::{Case, Ground, Met, PATIENCE, SILENCE, goes_on, meets, met};
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
const DATA_DIGEST: Met = Met::Rejected(0x02);
const INVALID_FIELD: Met = Met::Rejected(0x09);
/// Codes of ABORTED COMMAND (RFC 7143, 11.4.7.2).
const UNEXPECTED: (u8, u8) = (0x0c, 0x0c);
const AMOUNT: (u8, u8) = (0x0c, 0x0d);
const CRC: (u8, u8) = (0x47, 0x05);

pub(super) const CASES: [Case; 15] = [
    ("data: wrong digest on immediate data", wrong_digest_immediate),
    ("data: wrong digest on solicited data", wrong_digest_solicited),
    ("data: for a task that does not exist", no_such_task),
    ("data: with a transfer tag nobody gave", |ground| astray(ground, INVALID_FIELD, |pdu| pdu.word(20, 0x0bad_cafe))),
    ("data: with the tag of another task", |ground| astray(ground, Met::Ignored, |pdu| pdu.tag(0x7fff_fff0))),
    ("data: before the part that was asked for", |ground| misplaced(ground, |from| from - 512)),
    ("data: behind the part that was asked for", |ground| misplaced(ground, |from| from + 0x10_0000)),
    ("data: at the end of the address space", |ground| misplaced(ground, |_| 0xffff_fe00)),
    ("data: more than was asked for", more_than_asked),
    ("data: less than was asked for", less_than_asked),
    ("data: unsolicited though all must be asked for", unsolicited_refused),
    ("data: immediate though agreed not to be", immediate_refused),
    ("data: beyond the first burst", beyond_first_burst),
    ("data: longer than the command says", longer_than_command),
    ("data: both directions at once", both_directions),
];

/// Gives the place its old contents.
pub(super) fn prepare(ground: &Ground<'_>) -> Result<()> {
    let mut session = ground.session(&[])?;
    session.write(LBA, vec![BEFORE; LENGTH], BLOCK)?;
    session.logout()
}

/// The place has blocks of the old or of the new contents, nothing else: wrong data did not get through.
pub(super) fn unharmed(ground: &Ground<'_>) -> Result<()> {
    let mut session = ground.session(&[])?;
    let data = session.read(LBA, BLOCKS, BLOCK)?;
    for (at, block) in data.chunks(BLOCK).enumerate() {
        let clean = block.iter().all(|byte| *byte == BEFORE) || block.iter().all(|byte| *byte == AFTER);
        ensure!(clean, "block {at} has neither the old nor the new data: {:02x?}", &block[..16]);
    }
    session.logout()
}

fn wrong_digest_immediate(ground: &mut Ground<'_>) -> Result<()> {
    prepare(ground)?;
    let mut session = ground.session(&[("DataDigest", "CRC32C")])?;
    if !session.link.digests.data {
        return crate::report::skip("the target agrees to no data digest");
    }
    let pdu = session.command(&cdb::write(LBA, BLOCKS), 0x20, LENGTH).with_data(vec![0x66; LENGTH]);
    let mut bytes = pdu.encode(session.link.digests);
    let last = bytes.len() - 1;
    bytes[last] ^= 0x10;
    session.link.send_raw(&bytes)?;
    meets(&mut session.link, DATA_DIGEST)?;
    fails(session, CRC)?;
    unharmed(ground)
}

/// A session in which a write waits for its first data; what the R2T asks for: tag, offset, length.
pub(super) fn asked(ground: &Ground<'_>, keys: &[(&'static str, &str)]) -> Result<(Session, u32, [u32; 3])> {
    let mut all = vec![
        ("ImmediateData", "No"),
        ("InitialR2T", "Yes"),
        ("FirstBurstLength", "16384"),
        ("MaxBurstLength", "16384"),
    ];
    all.extend(keys);
    let mut session = ground.session(&all)?;
    let command = session.command(&cdb::write(LBA, BLOCKS), 0x20, LENGTH);
    session.link.send(&command)?;
    let pdu = session.link.expect(PATIENCE)?;
    ensure!(pdu.opcode() == op::R2T, "opcode {:02x}h in place of an R2T", pdu.opcode());
    ensure!(pdu.get(44) <= 16384, "an R2T beyond MaxBurstLength");
    Ok((session, command.get(16), [pdu.get(20), pdu.get(40), pdu.get(44)]))
}

pub(super) fn data_out(ground: &Ground<'_>, task: u32, [tag, offset, length]: [u32; 3], fill: u8) -> Pdu {
    let data = vec![fill; usize::try_from(length).unwrap_or_default()];
    Pdu::new(op::DATA_OUT, FINAL).lun(ground.lun).tag(task).word(20, tag).word(40, offset).with_data(data)
}

fn wrong_digest_solicited(ground: &mut Ground<'_>) -> Result<()> {
    prepare(ground)?;
    let (mut session, task, wanted) = asked(ground, &[("DataDigest", "CRC32C")])?;
    if !session.link.digests.data {
        return crate::report::skip("the target agrees to no data digest");
    }
    let mut bytes = data_out(ground, task, wanted, 0x66).encode(session.link.digests);
    let last = bytes.len() - 5;
    bytes[last] ^= 0x10;
    session.link.send_raw(&bytes)?;
    meets(&mut session.link, DATA_DIGEST)?;
    fails(session, CRC)?;
    unharmed(ground)
}

/// Its initiator may have sent it before it knew that the task is gone.
fn no_such_task(ground: &mut Ground<'_>) -> Result<()> {
    let mut session = ground.session(&[])?;
    let pdu = data_out(ground, 0x5555_5555, [RESERVED_TAG, 0, 4096], 0x66);
    session.link.send(&pdu)?;
    ensure!(met(&mut session.link, SILENCE)? == Met::Ignored, "not ignored");
    goes_on(&mut session)
}

/// Data that belongs to nothing: what becomes of it, and that the task whose it may have been goes on as if nothing had
/// come.
fn astray(ground: &mut Ground<'_>, wanted: Met, alter: impl FnOnce(Pdu) -> Pdu) -> Result<()> {
    prepare(ground)?;
    let (mut session, task, asked) = asked(ground, &[])?;
    session.link.send(&alter(data_out(ground, task, asked, 0x66)))?;
    let found = met(&mut session.link, SILENCE)?;
    ensure!(found == wanted, "{found:?} instead of {wanted:?}");
    finished(ground, &mut session, task, asked)?;
    goes_on(&mut session)?;
    unharmed(ground)
}

/// Sends all that is asked for, until the write ends well.
pub(super) fn finished(ground: &Ground<'_>, session: &mut Session, task: u32, mut asked: [u32; 3]) -> Result<()> {
    loop {
        session.link.send(&data_out(ground, task, asked, AFTER))?;
        let pdu = session.link.expect(PATIENCE)?;
        match pdu.opcode() {
            op::R2T => asked = [pdu.get(20), pdu.get(40), pdu.get(44)],
            op::RESPONSE if pdu.get(16) == task && pdu.head[3] == GOOD => return Ok(()),
            _ => bail!("the write goes on with {pdu:?}"),
        }
    }
}

/// The second part that is asked for comes with a wrong offset: rejected, and the command fails.
fn misplaced(ground: &mut Ground<'_>, alter: impl FnOnce(u32) -> u32) -> Result<()> {
    prepare(ground)?;
    let (mut session, task, first) = asked(ground, &[])?;
    session.link.send(&data_out(ground, task, first, AFTER))?;
    let pdu = session.link.expect(PATIENCE)?;
    ensure!(pdu.opcode() == op::R2T, "opcode {:02x}h in place of a second R2T", pdu.opcode());
    let second = [pdu.get(20), pdu.get(40), pdu.get(44)];
    session.link.send(&data_out(ground, task, second, 0x66).word(40, alter(second[1])))?;
    meets(&mut session.link, INVALID_FIELD)?;
    fails(session, AMOUNT)?;
    unharmed(ground)
}

fn more_than_asked(ground: &mut Ground<'_>) -> Result<()> {
    prepare(ground)?;
    let (mut session, task, [tag, offset, length]) = asked(ground, &[])?;
    let pdu = data_out(ground, task, [tag, offset, length + 4096], 0x66);
    session.link.send(&pdu)?;
    meets(&mut session.link, INVALID_FIELD)?;
    fails(session, AMOUNT)?;
    unharmed(ground)
}

/// The final bit before all that was asked for has come (RFC 7143, 11.7.1): an error, not a short write.
fn less_than_asked(ground: &mut Ground<'_>) -> Result<()> {
    prepare(ground)?;
    let (mut session, task, [tag, offset, length]) = asked(ground, &[])?;
    let pdu = data_out(ground, task, [tag, offset, length / 2], AFTER);
    session.link.send(&pdu)?;
    fails(session, AMOUNT)?;
    unharmed(ground)
}

/// The command ends with ABORTED COMMAND and this code (RFC 7143, 11.4.7.2); the session goes on.
fn fails(mut session: Session, (code, qualifier): (u8, u8)) -> Result<()> {
    meets(&mut session.link, Met::Answered(CHECK_CONDITION, (0x0b, code, qualifier)))?;
    goes_on(&mut session)
}

fn unsolicited_refused(ground: &mut Ground<'_>) -> Result<()> {
    prepare(ground)?;
    let mut session = ground.session(&[("InitialR2T", "Yes"), ("ImmediateData", "No")])?;
    let mut command = session.command(&cdb::write(LBA, BLOCKS), 0x20, LENGTH);
    // No final bit: data follows unasked.
    command.head[1] &= !FINAL;
    let data = data_out(ground, command.get(16), [RESERVED_TAG, 0, 4096], 0x66);
    let both = [command.encode(Digests::default()), data.encode(Digests::default())].concat();
    session.link.send_raw(&both)?;
    fails(session, UNEXPECTED)?;
    unharmed(ground)
}

fn immediate_refused(ground: &mut Ground<'_>) -> Result<()> {
    prepare(ground)?;
    let mut session = ground.session(&[("InitialR2T", "Yes"), ("ImmediateData", "No")])?;
    let command = session.command(&cdb::write(LBA, BLOCKS), 0x20, LENGTH).with_data(vec![0x66; 4096]);
    session.link.send(&command)?;
    fails(session, UNEXPECTED)?;
    unharmed(ground)
}

fn beyond_first_burst(ground: &mut Ground<'_>) -> Result<()> {
    prepare(ground)?;
    let mut session = ground.session(&[("FirstBurstLength", "4096"), ("InitialR2T", "No")])?;
    let mut command = session.command(&cdb::write(LBA, BLOCKS), 0x20, LENGTH).with_data(vec![0x66; 4096]);
    command.head[1] &= !FINAL;
    let data = data_out(ground, command.get(16), [RESERVED_TAG, 4096, 8192], 0x66);
    let both = [command.encode(Digests::default()), data.encode(Digests::default())].concat();
    session.link.send_raw(&both)?;
    meets(&mut session.link, INVALID_FIELD)?;
    fails(session, AMOUNT)?;
    unharmed(ground)
}

/// More immediate data than the command expects to transfer in all.
fn longer_than_command(ground: &mut Ground<'_>) -> Result<()> {
    prepare(ground)?;
    let mut session = ground.session(&[])?;
    let command = session.command(&cdb::write(LBA, BLOCKS), 0x20, 512).with_data(vec![0x66; 8192]);
    session.link.send(&command)?;
    fails(session, AMOUNT)?;
    unharmed(ground)
}

fn both_directions(ground: &mut Ground<'_>) -> Result<()> {
    let mut session = ground.session(&[])?;
    for command in [cdb::read(LBA, BLOCKS), cdb::write(LBA, BLOCKS), [0; 16]] {
        let pdu = session.command(&command, 0x60, LENGTH);
        session.link.send(&pdu)?;
        // Bidirectional commands are not ours: ILLEGAL REQUEST, INVALID FIELD IN COMMAND INFORMATION UNIT.
        meets(&mut session.link, Met::Answered(CHECK_CONDITION, (0x05, 0x0e, 0x03)))?;
    }
    goes_on(&mut session)
}

//! NVM commands of simulated hosts, over any transport: made at random, and judged by their status.

use crate::job::{Job, Lun, Maker, Verdict};
use crate::stamp::{self, SECTOR};
use lunar_core::outgoing::{Data, Moves};
use lunar_nvme::command::{FUSE_FIRST, FUSE_SECOND};
use lunar_nvme::{Sqe, Status};
use lunar_nvme_host::command::{self, opcode};
use lunar_reactor::sim::Faults;

/// One command, or both halves of a fused operation.
pub struct Made {
    /// Its expected effect.
    pub job: Job,
    /// The first half of a fused operation.
    pub compare: Option<(Sqe, Moves)>,
    /// The command, or the second half.
    pub command: (Sqe, Moves),
}

/// Any command.
pub fn any(maker: &mut Maker<'_>) -> Made {
    let one = |job, sqe, moves| Made { job, compare: None, command: (sqe, moves) };
    let namespace = u32::from(maker.lun.number) + 1;
    if let Some(made) = maker.replaces().then(|| compare_and_write(maker, namespace)).flatten() {
        return made;
    }
    match maker.chance.index(20) {
        0..7 => read(maker, namespace),
        7..12 => write(maker, namespace),
        12 | 13 => {
            let flush = maker.lun.model.borrow_mut().begin_flush();
            one(Job::Flush(flush), command::flush(namespace), Moves::Nothing)
        }
        14 => {
            let blocks = maker.blocks();
            let (sqe, range) = command::deallocate(namespace, blocks.start as u64, blocks.len() as u32);
            let job = maker.zeroes(maker.sectors(&blocks), true);
            one(job, sqe, Moves::Out(Data::new(range.to_vec().into())))
        }
        15 | 16 => {
            let blocks = maker.blocks();
            let deallocate = maker.chance.coin();
            let sqe = command::write_zeroes(namespace, blocks.start as u64, blocks.len() as u32, deallocate);
            one(maker.zeroes(maker.sectors(&blocks), false), sqe, Moves::Nothing)
        }
        17 | 18 => compare_and_write(maker, namespace).unwrap_or_else(|| read(maker, namespace)),
        _ => illegal(maker, namespace),
    }
}

fn read(maker: &mut Maker<'_>, namespace: u32) -> Made {
    let blocks = maker.blocks();
    let sectors = maker.sectors(&blocks);
    let wanted = sectors.len() * SECTOR;
    let read = maker.lun.model.borrow_mut().begin_read();
    let job = Job::Read { read, first: sectors.start, wanted, expected: wanted, bytes: Vec::new() };
    let sqe = command::read(namespace, blocks.start as u64, blocks.len() as u32, maker.chance.odds(100_000));
    Made { job, compare: None, command: (sqe, Moves::In(wanted as u32)) }
}

fn write(maker: &mut Maker<'_>, namespace: u32) -> Made {
    let blocks = maker.blocks();
    let (sectors, fua) = (maker.sectors(&blocks), maker.chance.odds(300_000));
    let mut model = maker.lun.model.borrow_mut();
    let value = model.fresh_value();
    let write = model.begin_write(sectors.clone(), value);
    let data = stamp::fill(maker.watch.seed(), sectors, value);
    let durable = fua || maker.lun.volume.is_durable();
    let sqe = command::write(namespace, blocks.start as u64, blocks.len() as u32, fua);
    let job = Job::Write { write, flush: None, durable, hint: false };
    Made { job, compare: None, command: (sqe, Moves::Out(Data::new(data.into()))) }
}

/// The fused operation Compare and Write, on blocks that were read last.
fn compare_and_write(maker: &mut Maker<'_>, namespace: u32) -> Option<Made> {
    let size = maker.lun.volume.block_sectors();
    let (first, expected) = maker.whole_blocks_seen(size)?;
    let (sectors, seed, fua) = (first..first + expected.len(), maker.watch.seed(), maker.chance.coin());
    let mut before = Vec::new();
    for (sector, value) in sectors.clone().zip(&expected) {
        before.extend(stamp::fill(seed, sector..sector + 1, *value));
    }
    let mut model = maker.lun.model.borrow_mut();
    let value = model.fresh_value();
    let data = stamp::fill(seed, sectors.clone(), value);
    let (write, read) = (model.begin_write(sectors, value), model.begin_read());
    let (lba, count) = ((first / size) as u64, (expected.len() / size) as u32);
    let mut compare = command::blocks(opcode::COMPARE, namespace, lba, count, 0);
    let mut sqe = command::write(namespace, lba, count, fua);
    (compare.flags, sqe.flags) = (FUSE_FIRST, FUSE_SECOND);
    let durable = fua || maker.lun.volume.is_durable();
    Some(Made {
        job: Job::CompareWrite { write, read, first, expected, durable },
        compare: Some((compare, Moves::Out(Data::new(before.into())))),
        command: (sqe, Moves::Out(Data::new(data.into()))),
    })
}

fn illegal(maker: &mut Maker<'_>, namespace: u32) -> Made {
    let volume = &maker.lun.volume;
    let end = (volume.sectors_max() / volume.block_sectors()) as u64;
    let bytes = volume.block_size;
    let command = match maker.chance.index(5) {
        0 => (command::entry(0xfe, namespace), Moves::Nothing),
        1 => (command::read(namespace, end, 1, false), Moves::In(bytes)),
        2 => (command::read(namespace, u64::MAX, 2, false), Moves::In(2 * bytes)),
        3 => (command::read(namespace + 900, 0, 1, false), Moves::In(bytes)),
        _ => {
            let data = vec![0x5a; bytes as usize * 2];
            (command::write(namespace, end - 1, 2, false), Moves::Out(Data::new(data.into())))
        }
    };
    Made { job: Job::Illegal, compare: None, command }
}

/// The reasons for which a command may fail that the command itself does not give.
#[derive(Clone, Copy, Debug)]
pub struct Excuses {
    /// The host has violated the protocol, or the target stops: commands may be aborted.
    pub may_abort: bool,
    /// The host has removed memory that commands may use.
    pub lacks_memory: bool,
}

/// Judges the status of a command. `compared`: the status of the first half of a fused operation.
///
/// # Errors
/// The status is wrong.
pub fn judge(
    job: &Job,
    (status, compared): (Status, Option<Status>),
    unit: &Lun,
    faults: &Faults,
    excuses: Excuses,
) -> Result<Verdict, String> {
    match (status, job) {
        (Status::SUCCESS, Job::Illegal) => Err("an invalid command succeeded".to_owned()),
        (Status::SUCCESS, _) => Ok(Verdict::Good),
        (Status::FUSED_FAILED, Job::CompareWrite { .. }) if compared == Some(Status::COMPARE_FAILURE) => {
            Ok(Verdict::Miscompare)
        }
        (Status::FUSED_FAILED, Job::CompareWrite { .. }) => Ok(Verdict::Failed),
        (Status::LBA_RANGE | Status::INVALID_OPCODE | Status::INVALID_NAMESPACE, Job::Illegal) => Ok(Verdict::Refused),
        // The arena may become empty while the command is executed.
        (Status::NOT_READY, _) => Ok(Verdict::Failed),
        (Status::READ_ERROR | Status::WRITE_FAULT, _) if job.may_fail(unit, faults) => Ok(Verdict::Failed),
        (Status::CAPACITY, _) if job.may_lack_space(unit, faults) => Ok(Verdict::Failed),
        (Status::ABORTED | Status::QUEUE_DELETED | Status::TRANSPORT_ERROR, _) if excuses.may_abort => {
            Ok(Verdict::Failed)
        }
        (Status::TRANSFER_ERROR, _) if excuses.lacks_memory => Ok(Verdict::Failed),
        _ => Err(format!("{job:?} ended with {status:?}")),
    }
}

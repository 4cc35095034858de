//! Thin volumes on a file system that fills up: which commands fail, which still work, thresholds, and that writes
//! succeed again when there is space.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::mounted_fs::MountedFs;
use crate::report::skip;
use crate::session::{Data, Login, Session, cdb};
use crate::target::{Driver, Lab, Spec, Target};
use crate::test_data::pattern;

const LIMIT: Duration = Duration::from_secs(20);
/// MiB of the file system, and the larger size of a volume on it.
const SYSTEM_MIB: u64 = 40;
const VOLUME: &str = "128M";
/// Bytes of one write.
const PIECE: usize = 1 << 20;
const BLOCKS: u64 = PIECE as u64 / 512;
/// DATA PROTECT, SPACE ALLOCATION FAILED WRITE PROTECT.
const NO_SPACE: (u8, u8, u8) = (7, 0x27, 0x07);
/// UNIT ATTENTION, THIN PROVISIONING SOFT THRESHOLD REACHED.
const REACHED: (u8, u8, u8) = (6, 0x38, 0x07);
/// MODE SELECT(6) for the logical block provisioning page and its header.
const ARM: [u8; 6] = [0x15, 0x10, 0, 0, 36, 0];

pub(crate) fn part(lab: &Lab, driver: Driver, part: &str) {
    for kind in ["tmpfs", "ext4"] {
        lab.report.check(part, &format!("writes to a volume on a full {kind} fail until there is space"), || {
            let Some(mounted) = MountedFs::new(lab, kind, SYSTEM_MIB)? else {
                return skip(format!("no small {kind} can be mounted here: that needs root, and a kernel with it"));
            };
            full(lab, driver, &mounted.path)
        });
    }
    lab.report.check(part, "a reached threshold causes one unit attention for all initiators, or for one", || {
        thresholds(lab, driver)
    });
}

fn session(target: &Target, qualifier: u16, volume: u16) -> Result<Session> {
    Session::ready(target.portal, &Login::to(&target.name, "space").qualifier(qualifier), target.lun + volume)
}

/// Writes pieces until there is no space; returns the number of successful writes.
fn fill(session: &mut Session) -> Result<u64> {
    for piece in 0..SYSTEM_MIB + 1 {
        let write = cdb::write(piece * BLOCKS, u32::try_from(BLOCKS)?);
        let done = session.run(&write, Data::Out(pattern(piece, 1, PIECE)))?;
        if done.status != 0 {
            ensure!(done.sense() == NO_SPACE, "sense {:02x?} when the file system is full", done.sense());
            return Ok(piece);
        }
    }
    bail!("more data was written than fits")
}

fn full(lab: &Lab, driver: Driver, folder: &Path) -> Result<()> {
    let path = |name: &str| folder.join(name).to_str().map(str::to_owned).context("a folder whose name is UTF-8");
    let ballast = path("ballast")?;
    std::fs::write(&ballast, vec![1; 8 << 20])?;
    let volumes = [format!("{}:{VOLUME}", path("disk.img")?), lab.image("other.img", 16)?];
    let target = Target::start(lab, &Spec::new(driver, volumes)?.flags(&["--cores", "2"]))?;
    let (mut thin, mut other) = (session(&target, 1, 0)?, session(&target, 2, 1)?);
    let written = fill(&mut thin)?;
    ensure!(written > 4, "only {written} MiB were written");
    // Writes keep failing, and everything else works.
    for round in 0..3 {
        let more = cdb::write((SYSTEM_MIB + round) * BLOCKS, u32::try_from(BLOCKS)?);
        thin.run(&more, Data::Out(vec![1; PIECE]))?.expect_sense(NO_SPACE.0, NO_SPACE.1, NO_SPACE.2)?;
        other.write(round * 64, pattern(round, 2, 32768), 512)?;
        other.synchronize()?;
        ensure!(thin.read(0, u32::try_from(BLOCKS)?, 512)? == pattern(0, 1, PIECE), "earlier data is lost");
        thin.write(round * BLOCKS, pattern(round, 1, PIECE), 512).context("an overwrite of allocated blocks")?;
    }
    let (used, available) = resources(&mut thin)?;
    ensure!(used >= written && available == 0, "{used} MiB used and {available} available of a full file system");
    // Space is freed by UNMAP, and by an administrator.
    let list = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &0u64.to_be_bytes(), &(4 * 2048u32).to_be_bytes(), &[0; 4]].concat();
    thin.run(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], Data::Out(list))?.good().context("UNMAP")?;
    thin.write(SYSTEM_MIB * BLOCKS, pattern(SYSTEM_MIB, 1, PIECE), 512).context("after UNMAP")?;
    std::fs::remove_file(ballast)?;
    for piece in SYSTEM_MIB + 1..SYSTEM_MIB + 9 {
        thin.write(piece * BLOCKS, pattern(piece, 1, PIECE), 512).context("after a file was removed")?;
    }
    thin.synchronize().context("a flush after the file system was full")?;
    for piece in (4..written).chain(SYSTEM_MIB..SYSTEM_MIB + 9) {
        let found = thin.read(piece * BLOCKS, u32::try_from(BLOCKS)?, 512)?;
        ensure!(found == pattern(piece, 1, PIECE), "MiB {piece} does not have the written data");
    }
    thin.logout()?;
    other.logout()?;
    target.stop()
}

/// The logical block provisioning log page: used and available threshold sets of a MiB.
fn resources(session: &mut Session) -> Result<(u64, u64)> {
    let data = session.run(&[0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 64, 0], Data::In(64))?.good()?.data;
    ensure!(data[..8] == [0x8c, 0, 0, 24, 0, 1, 0x23, 8] && data[16..18] == [0, 2], "the page is {data:02x?}");
    let number = |at: usize| data[at..at + 4].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    Ok((number(20), number(8)))
}

/// The mode page that enables a threshold for used space.
fn arm(session: &mut Session, single: u8, count: u8) -> Result<()> {
    let mut list = [0; 36];
    list[4..9].copy_from_slice(&[0x5c, 2, 0, 28, single]);
    (list[21], list[28], list[29], list[35]) = (1, 0x81, 2, count);
    session.run(&ARM, Data::Out(list.to_vec()))?.good().map(drop)
}

/// The number of sessions with the unit attention of the threshold; there must be no other one.
fn notified_sessions(sessions: &mut [Session]) -> Result<usize> {
    let mut count = 0;
    for session in sessions {
        let done = session.run(&[0; 6], Data::None)?;
        if done.status != 0 {
            ensure!(done.sense() == REACHED, "another unit attention: {:02x?}", done.sense());
            count += 1;
        }
    }
    Ok(count)
}

fn thresholds(lab: &Lab, driver: Driver) -> Result<()> {
    let volume = lab.image("threshold.img", 64)?;
    let target = Target::start(lab, &Spec::new(driver, [volume])?.flags(&["--cores", "2"]))?;
    let mut sessions = (1..=4).map(|qualifier| session(&target, qualifier, 0)).collect::<Result<Vec<_>>>()?;
    for (round, single, wanted) in [(1, 0, 4), (2, 1, 1)] {
        let count = u8::try_from(round * 8)?;
        arm(&mut sessions[0], single, count)?;
        // The unit attention of the mode page.
        for session in &mut sessions[1..] {
            session.run(&[0; 6], Data::None)?.expect_sense(6, 0x2a, 1)?;
        }
        for piece in (round - 1) * 8..round * 8 {
            ensure!(notified_sessions(&mut sessions)? == 0, "a unit attention before {piece} of {count} MiB are used");
            sessions[1].write(piece * BLOCKS, pattern(piece, round, PIECE), 512)?;
        }
        let end = Instant::now() + LIMIT;
        let mut count = 0;
        while count < wanted {
            ensure!(Instant::now() < end, "{count} of {wanted} sessions got the unit attention");
            std::thread::sleep(Duration::from_millis(100));
            count += notified_sessions(&mut sessions)?;
        }
        // Two more checks cause no other unit attention.
        std::thread::sleep(Duration::from_secs(5));
        count += notified_sessions(&mut sessions)?;
        ensure!(count == wanted, "{count} sessions got the unit attention, not {wanted}");
    }
    target.stop()
}

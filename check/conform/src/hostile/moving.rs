//! Controllers that move to another process, as clients of VFIO's second migration protocol have them do it; and what
//! clients may make of that.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::fixture::VmFixture as Fixture;
use crate::target::{Driver, Lab, Spec, Target};
use crate::test_data::pattern;
use crate::vfio::{self, DATA, EVENTS, Entry, Guest, MEMORY, SHADOW, code, feature, places, state};

const PAGE: u64 = 4096;
/// The namespace, and the block from which on it is written to.
const NAMESPACE: u32 = 1;
const FIRST: u32 = 4096;
/// Commands under way of each queue when the controller moves.
const WRITES: u64 = 40;
const READS: u64 = 20;
/// Where reads put their data.
const BACK: u64 = DATA + (8 << 20);
/// Bytes of a piece of the state: what is told at once, and less than that.
const PIECES: [u32; 2] = [8192, 777];
/// How a request that was aborted ends.
const ABORTED: u16 = 0x07;
const ERRNO_NOSPC: u32 = 28;

/// A controller moves from one process to another and back, under load.
pub(super) fn moves(lab: &Lab, driver: Driver) -> Result<()> {
    let image = lab.image(&format!("moving-{}.img", driver.name()), 64)?;
    let start = |name: &str| -> Result<(Target, PathBuf)> {
        let folder = lab.scratch.join(format!("moving-{name}-{}", driver.name()));
        let sockets = folder.to_str().context("the scratch folder's name is no text")?;
        let flags = ["--shared", "--name", "iqn.2026-01.io.lunar:moving", "--vm-folder", sockets, "--vm", "moving"];
        let target = Target::start(lab, &Spec::new(driver, [image.clone()])?.flags(&flags))?;
        Ok((target, folder.join("moving").join("cntrl")))
    };
    let ((one, from), (other, to)) = (start("one")?, start("other")?);
    for (round, shadow) in [(1, false), (2, true)] {
        let moved = travel(&from, &to, round, shadow);
        moved.with_context(|| format!("doorbells {}", if shadow { "in memory" } else { "that are told" }))?;
    }
    // And the way back, to a process that had it before.
    travel(&to, &from, 3, true).context("back")?;
    Guest::boot(&from, 1)?.keeps(NAMESPACE, 0, &pattern(0, 9, 8192)).context("a new guest where it was")?;
    one.stop()?;
    other.stop()
}

/// The pages of the guest's memory that the controller has written to since this was asked last.
fn written(guest: &mut Guest) -> Result<BTreeSet<u64>> {
    let bitmap = guest.written(0, MEMORY, PAGE)?.map_err(|errno| anyhow::anyhow!("no report: errno {errno}"))?;
    Ok((0..MEMORY / PAGE).filter(|page| bitmap[(page / 8) as usize] & 1 << (page % 8) != 0).collect())
}

fn pages(from: u64, len: u64) -> impl Iterator<Item = u64> {
    from / PAGE..(from + len).div_ceil(PAGE)
}

fn travel(from: &Path, to: &Path, round: u64, shadow: bool) -> Result<()> {
    let mut guest = Guest::boot(from, 2)?;
    if shadow {
        guest.shadow()?;
    }
    let waiting = guest.put(0, Entry::new(0x0c, 0))?;
    guest.ring(0)?;
    // Everything before is over, and nothing was written that nobody knows of.
    ensure!(guest.run(0, Entry::new(6, 0).pages(0x2000, 0).dword(10, 1))? == 0, "Identify");
    ensure!(guest.migrates()?, "it cannot be moved");
    guest.log(PAGE)?.map_err(|errno| anyhow::anyhow!("what is written is not remembered: errno {errno}"))?;
    ensure!(guest.log(PAGE)?.is_err(), "what is written is remembered twice");
    let len = 65536;
    guest.keeps(NAMESPACE, FIRST - 128, &pattern(u64::from(FIRST) - 128, round, len))?;
    let mut expected: BTreeSet<u64> = pages(DATA + (4 << 20), len as u64).chain(pages(places(1)[1], 1)).collect();
    if shadow {
        expected.extend(pages(EVENTS, 1));
    }
    let told = written(&mut guest)?;
    ensure!(told == expected, "it has written to pages {expected:x?}, and tells {told:x?}");
    let again = written(&mut guest)?;
    // It may have asked to be rung meanwhile.
    ensure!(again.iter().all(|page| shadow && *page == EVENTS / PAGE), "it tells twice: {again:x?}");

    let (mut writes, mut reads) = (BTreeMap::new(), BTreeMap::new());
    for at in 0..WRITES {
        let block = FIRST + u32::try_from(at)? * 8;
        let address = DATA + at * PAGE;
        guest.memory.write_all_at(&pattern(block.into(), round, PAGE as usize), address)?;
        writes.insert(guest.put(1, Entry::blocks(1, NAMESPACE, block, 8).pages(address, 0))?, block);
    }
    for at in 0..READS {
        let block = FIRST - 128 + u32::try_from(at % 16)? * 8;
        reads.insert(guest.put(2, Entry::blocks(2, NAMESPACE, block, 8).pages(BACK + at * PAGE, 0))?, (block, at));
    }
    let mut before = vec![0; usize::try_from(MEMORY)?];
    guest.memory.read_exact_at(&mut before, 0)?;
    guest.ring(1)?;
    guest.ring(2)?;
    guest.become_state(state::STOP_COPY)?.map_err(|errno| anyhow::anyhow!("it does not stop: errno {errno}"))?;
    ensure!(guest.state()? == state::STOP_COPY, "it says that it has not stopped");
    let record = guest.read_state(PIECES[(round % 2) as usize])?;
    let dirty = written(&mut guest)?;

    // What a client does that moves a guest: its own pages, and those that the device says it has written to.
    let mut now = vec![0; before.len()];
    guest.memory.read_exact_at(&mut now, 0)?;
    let rung = if shadow { pages(SHADOW, 1).collect() } else { BTreeSet::new() };
    for page in dirty.iter().chain(&rung) {
        let bytes = usize::try_from(page * PAGE)?..usize::try_from((page + 1) * PAGE)?;
        before[bytes.clone()].copy_from_slice(&now[bytes]);
    }
    ensure!(before == now, "it has written to pages that it does not tell");
    let mut possible: BTreeSet<u64> = pages(BACK, READS * PAGE).collect();
    possible.extend([places(0)[1], places(1)[1], places(2)[1], EVENTS].map(|at| at / PAGE));
    ensure!(dirty.is_subset(&possible), "it tells pages that it cannot have written to: {dirty:x?}");

    let mut elsewhere = guest.elsewhere(to, &before)?;
    elsewhere.become_state(state::RESUMING)?.map_err(|errno| anyhow::anyhow!("no way to resume: errno {errno}"))?;
    ensure!(elsewhere.set(0x1008, &[1, 0, 0, 0]).is_err(), "registers are heard while it takes its state");
    for piece in record.chunks(PIECES[(1 - round % 2) as usize] as usize) {
        ensure!(elsewhere.write_state(piece)?.is_ok(), "a piece of the state is refused");
    }
    let runs = elsewhere.become_state(state::RUNNING)?;
    runs.map_err(|errno| anyhow::anyhow!("it does not go on: errno {errno}"))?;
    drop(guest);
    arrived(&mut elsewhere, round, waiting, writes, reads)
}

/// Every command ends once, what was written is there, and the controller is as it was.
fn arrived(
    guest: &mut Guest,
    round: u64,
    waiting: u16,
    mut writes: BTreeMap<u16, u32>,
    mut reads: BTreeMap<u16, (u32, u64)>,
) -> Result<()> {
    for _ in 0..WRITES {
        let (id, status) = guest.ended(1)?;
        let block = writes.remove(&id).with_context(|| format!("command {id} has ended twice, or never began"))?;
        ensure!(status == 0, "the write of block {block} ended with {status:#x}");
        let kept = guest.read_block(2, NAMESPACE, block, &mut reads)?;
        ensure!(kept == pattern(block.into(), round, PAGE as usize), "block {block} is not what was written");
    }
    while !reads.is_empty() {
        let (id, status) = guest.ended(2)?;
        ensure!(reads.remove(&id).is_some() && status == 0, "the read {id} ended with {status:#x}");
    }
    for at in 0..READS {
        let block = FIRST - 128 + u32::try_from(at % 16)? * 8;
        let mut page = vec![0; PAGE as usize];
        guest.memory.read_exact_at(&mut page, BACK + at * PAGE)?;
        let whole = pattern(u64::from(FIRST) - 128, round, 65536);
        let start = (block - (FIRST - 128)) as usize * 512;
        ensure!(page == whole[start..start + PAGE as usize], "read {at} has other data");
    }
    // What waited there waits here.
    let abort = guest.put(0, Entry::new(8, 0).dword(10, u32::from(waiting) << 16))?;
    guest.ring(0)?;
    let mut ended = BTreeMap::from([guest.ended(0)?, guest.ended(0)?]);
    ensure!(
        (ended.remove(&waiting), ended.remove(&abort)) == (Some(ABORTED), Some(0)),
        "the request for an event was lost"
    );
    guest.keeps(NAMESPACE, 0, &pattern(0, round, 65536)).context("after the move")?;
    guest.enable().context("a reset after the move")
}

/// States that no controller was in, of any length, and messages in the wrong state.
pub(super) fn odd_states(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut guest = Guest::boot(fixture.socket, 2)?;
    guest.shadow()?;
    for (method, what, data) in [
        (feature::SET, feature::STATE, [&9_u32.to_le_bytes()[..], &[0; 4]].concat()),
        (feature::SET, feature::STATE, vec![0; 8]),
        (feature::SET, feature::LOGGING_START, [&4095_u64.to_le_bytes()[..], &[0; 8]].concat()),
        (feature::SET, feature::LOGGING_START, [&4096_u64.to_le_bytes()[..], &[0xff; 8]].concat()),
        (feature::GET, feature::LOGGING_REPORT, vec![0; 24]),
    ] {
        ensure!(guest.feature(method, what, &data, 1 << 20)?.is_err(), "feature {what} with {data:x?}");
    }
    ensure!(guest.written(0, MEMORY, PAGE)?.is_err(), "a report of what is not remembered");
    guest.log(PAGE)?.map_err(|errno| anyhow::anyhow!("errno {errno}"))?;
    for (address, len, page) in [(0, 1 << 60, PAGE), (0, MEMORY, 512), (u64::MAX, 2, PAGE), (0, MEMORY, 3 * PAGE)] {
        ensure!(guest.written(address, len, page)?.is_err(), "a report of {len:#x} bytes in pages of {page}");
    }
    for size in [u32::MAX, 1 << 20, 8193, 64] {
        ensure!(guest.call(code::MIGRATION_READ, &vfio::moved(u32::MAX, size), &[])?.is_err(), "it tells {size} bytes");
    }
    ensure!(guest.write_state(&[0; 64])?.is_err(), "a state is heard while it runs");
    guest.become_state(state::STOP_COPY)?.map_err(|errno| anyhow::anyhow!("errno {errno}"))?;
    let record = guest.read_state(8192)?;
    for round in 0..400 {
        let mut odd = record.clone();
        // The first half hits what is counted, and what queues are made of; the rest anything.
        let most = if round % 2 == 0 { 128 } else { odd.len() as u64 };
        for _ in 0..=fixture.random.below(3) {
            let at = fixture.random.below(most) as usize;
            odd[at] = fixture.random.byte();
        }
        if round % 7 == 0 {
            odd.truncate(fixture.random.below(odd.len() as u64) as usize);
        }
        goes_on_or_not(&mut guest, &odd)?;
    }
    // Without end.
    guest.must(code::RESET, &[], &[])?;
    guest.become_state(state::RESUMING)?.map_err(|errno| anyhow::anyhow!("errno {errno}"))?;
    let mut written_bytes = 0;
    loop {
        match guest.write_state(&[0x5a; 8192])? {
            Ok(()) => written_bytes += 8192,
            Err(ERRNO_NOSPC) => break,
            Err(errno) => bail!("after {written_bytes} bytes it is refused with {errno}"),
        }
        ensure!(written_bytes < 64 << 20, "a state has no end");
    }
    guest.must(code::RESET, &[], &[])?;
    guest.enable()?;
    guest.create(1)?;
    guest.keeps(2, 0, &pattern(0, 1, 8192))
}

/// A state that may be nonsense: it is refused, and then only a reset helps; or it runs, and that is the guest's.
fn goes_on_or_not(guest: &mut Guest, record: &[u8]) -> Result<()> {
    guest.become_state(state::RESUMING)?.map_err(|errno| anyhow::anyhow!("no way to resume: errno {errno}"))?;
    for piece in record.chunks(8192) {
        ensure!(guest.write_state(piece)?.is_ok(), "a piece of the state is refused");
    }
    if guest.become_state(state::RUNNING)?.is_ok() {
        for doorbell in 0..6 {
            guest.set(0x1000 + doorbell * 4, &[3, 0, 0, 0])?;
        }
    } else {
        ensure!(guest.become_state(state::STOP)?.is_err(), "it recovers by itself");
    }
    let memory = guest.memory.try_clone()?;
    guest.must(code::RESET, &[], &[])?;
    ensure!(guest.state()? == state::RUNNING, "it does not run after a reset");
    // What its queues wrote is no matter; that its memory is there, is.
    guest.must(code::UNMAP, &vfio::unmap(0, MEMORY, 0), &[])?;
    guest.must(code::MAP, &vfio::map(0, 0, MEMORY), &[memory.as_fd()]).map(drop)
}

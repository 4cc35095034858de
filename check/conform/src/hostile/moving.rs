//! Live migration of vfio-user controllers to another process (version 2 of VFIO's migration protocol), and hostile use
//! of it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::fixture::VmFixture as Fixture;
use crate::target::{Driver, Lab, Spec, Target};
use crate::test_data::pattern;
use crate::vfio::{self, DATA, EVENTS, Entry, Guest, MEMORY, SHADOW, code, feature, queue_addresses, state};

const PAGE: u64 = 4096;
/// The namespace, and the first block that is written.
const NAMESPACE: u32 = 1;
const FIRST: u32 = 4096;
/// Writes and reads in progress when the controller moves.
const WRITES: u64 = 40;
const READS: u64 = 20;
/// The guest address of the data of reads.
const BACK: u64 = DATA + (8 << 20);
/// Bytes per transfer of the migration state: the largest allowed number, and a smaller one.
const PIECES: [u32; 2] = [8192, 777];
/// The status of an aborted command.
const ABORTED: u16 = 0x07;
const ERRNO_NOSPC: u32 = 28;

/// A controller moves from one process to another and back, with commands in progress.
pub(super) fn moves(lab: &Lab, driver: Driver) -> Result<()> {
    let image = lab.image(&format!("moving-{}.img", driver.name()), 64)?;
    let start = |name: &str| -> Result<(Target, PathBuf)> {
        let folder = lab.scratch.join(format!("moving-{name}-{}", driver.name()));
        let sockets = folder.to_str().context("the name of the scratch folder is not UTF-8")?;
        let flags = ["--shared", "--name", "iqn.2026-01.io.lunar:moving", "--vm-folder", sockets, "--vm", "moving"];
        let target = Target::start(lab, &Spec::new(driver, [image.clone()])?.flags(&flags))?;
        Ok((target, folder.join("moving").join("cntrl")))
    };
    let ((one, from), (other, to)) = (start("one")?, start("other")?);
    for (round, has_shadow) in [(1, false), (2, true)] {
        let migrated = migrate(&from, &to, round, has_shadow);
        migrated.with_context(|| format!("doorbells {}", if has_shadow { "in memory" } else { "by messages" }))?;
    }
    // Back to a process that had the controller before.
    migrate(&to, &from, 3, true).context("back")?;
    Guest::boot(&from, 1)?.write_and_verify(NAMESPACE, 0, &pattern(0, 9, 8192)).context("a new guest at the source")?;
    one.stop()?;
    other.stop()
}

/// The guest pages that the controller has written since the last call.
fn dirty_pages(guest: &mut Guest) -> Result<BTreeSet<u64>> {
    let bitmap =
        guest.dirty_pages(0, MEMORY, PAGE)?.map_err(|errno| anyhow::anyhow!("no dirty page report: errno {errno}"))?;
    Ok((0..MEMORY / PAGE).filter(|page| bitmap[(page / 8) as usize] & 1 << (page % 8) != 0).collect())
}

fn pages(from: u64, len: u64) -> impl Iterator<Item = u64> {
    from / PAGE..(from + len).div_ceil(PAGE)
}

/// Changes the migration state, which must succeed.
fn enter(guest: &mut Guest, state: u32) -> Result<()> {
    let changed = guest.set_state(state)?;
    changed.map_err(|errno| anyhow::anyhow!("the controller does not enter the migration state {state}: errno {errno}"))
}

fn migrate(from: &Path, to: &Path, round: u64, has_shadow: bool) -> Result<()> {
    let mut guest = Guest::boot(from, 2)?;
    if has_shadow {
        guest.configure_shadow_doorbells()?;
    }
    let waiting = guest.put(0, Entry::new(0x0c, 0))?;
    guest.ring(0)?;
    // All earlier commands have ended, and no page is reported yet.
    ensure!(guest.run(0, Entry::new(6, 0).pages(0x2000, 0).dword(10, 1))? == 0, "Identify");
    ensure!(guest.supports_migration()?, "migration is not supported");
    guest.log(PAGE)?.map_err(|errno| anyhow::anyhow!("dirty page logging does not start: errno {errno}"))?;
    ensure!(guest.log(PAGE)?.is_err(), "dirty page logging starts twice");
    let len = 65536;
    guest.write_and_verify(NAMESPACE, FIRST - 128, &pattern(u64::from(FIRST) - 128, round, len))?;
    let completions = queue_addresses(1)[1];
    let mut expected: BTreeSet<u64> = pages(DATA + (4 << 20), len as u64).chain(pages(completions, 1)).collect();
    if has_shadow {
        expected.extend(pages(EVENTS, 1));
    }
    let reported = dirty_pages(&mut guest)?;
    ensure!(reported == expected, "pages {expected:x?} were written, and {reported:x?} are reported");
    let again = dirty_pages(&mut guest)?;
    // The controller may have updated its EventIdx meanwhile.
    ensure!(again.iter().all(|page| has_shadow && *page == EVENTS / PAGE), "pages are reported twice: {again:x?}");

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
    enter(&mut guest, state::STOP_COPY)?;
    ensure!(guest.state()? == state::STOP_COPY, "the controller reports another state than STOP_COPY");
    let record = guest.read_state(PIECES[(round % 2) as usize])?;
    let dirty = dirty_pages(&mut guest)?;

    // A client that migrates a guest copies the pages that it has written itself and those that the controller reports.
    let mut now = vec![0; before.len()];
    guest.memory.read_exact_at(&mut now, 0)?;
    let rung = if has_shadow { pages(SHADOW, 1).collect() } else { BTreeSet::new() };
    for page in dirty.iter().chain(&rung) {
        let bytes = usize::try_from(page * PAGE)?..usize::try_from((page + 1) * PAGE)?;
        before[bytes.clone()].copy_from_slice(&now[bytes]);
    }
    ensure!(before == now, "pages were written and are not reported");
    let mut possible: BTreeSet<u64> = pages(BACK, READS * PAGE).collect();
    possible.extend([queue_addresses(0)[1], queue_addresses(1)[1], queue_addresses(2)[1], EVENTS].map(|at| at / PAGE));
    ensure!(dirty.is_subset(&possible), "pages are reported that cannot have been written: {dirty:x?}");

    let mut destination = guest.migrate_to(to, &before)?;
    enter(&mut destination, state::RESUMING)?;
    ensure!(destination.set(0x1008, &[1, 0, 0, 0]).is_err(), "registers can be written in the state RESUMING");
    for piece in record.chunks(PIECES[(1 - round % 2) as usize] as usize) {
        ensure!(destination.write_state(piece)?.is_ok(), "a piece of the state is refused");
    }
    enter(&mut destination, state::RUNNING)?;
    drop(guest);
    expect_moved(&mut destination, round, waiting, writes, reads)
}

/// Every command completes once, written data is present, and the controller works as before.
fn expect_moved(
    guest: &mut Guest,
    round: u64,
    waiting: u16,
    mut writes: BTreeMap<u16, u32>,
    mut reads: BTreeMap<u16, (u32, u64)>,
) -> Result<()> {
    for _ in 0..WRITES {
        let (id, status) = guest.next_completion(1)?;
        let block = writes.remove(&id).with_context(|| format!("command {id} completed twice, or was never sent"))?;
        ensure!(status == 0, "the write of block {block} ended with {status:#x}");
        let kept = guest.read_block(2, NAMESPACE, block, &mut reads)?;
        ensure!(kept == pattern(block.into(), round, PAGE as usize), "block {block} does not have the written data");
    }
    while !reads.is_empty() {
        let (id, status) = guest.next_completion(2)?;
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
    // The Asynchronous Event Request of the source waits at the destination.
    let abort = guest.put(0, Entry::new(8, 0).dword(10, u32::from(waiting) << 16))?;
    guest.ring(0)?;
    let mut next_completion = BTreeMap::from([guest.next_completion(0)?, guest.next_completion(0)?]);
    ensure!(
        (next_completion.remove(&waiting), next_completion.remove(&abort)) == (Some(ABORTED), Some(0)),
        "the Asynchronous Event Request was lost"
    );
    guest.write_and_verify(NAMESPACE, 0, &pattern(0, round, 65536)).context("after the move")?;
    guest.enable().context("a reset after the move")
}

/// Invalid migration states of any length, and messages in the wrong state.
pub(super) fn invalid_states(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut guest = Guest::boot(fixture.socket, 2)?;
    guest.configure_shadow_doorbells()?;
    for (method, what, data) in [
        (feature::SET, feature::STATE, [&9_u32.to_le_bytes()[..], &[0; 4]].concat()),
        (feature::SET, feature::STATE, vec![0; 8]),
        (feature::SET, feature::LOGGING_START, [&4095_u64.to_le_bytes()[..], &[0; 8]].concat()),
        (feature::SET, feature::LOGGING_START, [&4096_u64.to_le_bytes()[..], &[0xff; 8]].concat()),
        (feature::GET, feature::LOGGING_REPORT, vec![0; 24]),
    ] {
        ensure!(guest.feature(method, what, &data, 1 << 20)?.is_err(), "feature {what} with {data:x?}");
    }
    ensure!(guest.dirty_pages(0, MEMORY, PAGE)?.is_err(), "a dirty page report without logging");
    guest.log(PAGE)?.map_err(|errno| anyhow::anyhow!("errno {errno}"))?;
    for (address, len, page) in [(0, 1 << 60, PAGE), (0, MEMORY, 512), (u64::MAX, 2, PAGE), (0, MEMORY, 3 * PAGE)] {
        ensure!(guest.dirty_pages(address, len, page)?.is_err(), "a report of {len:#x} bytes in pages of {page}");
    }
    for size in [u32::MAX, 1 << 20, 8193, 64] {
        ensure!(
            guest.call(code::MIGRATION_READ, &vfio::migration_header(u32::MAX, size), &[])?.is_err(),
            "a read of {size} bytes of state succeeds"
        );
    }
    ensure!(guest.write_state(&[0; 64])?.is_err(), "a state can be written while the controller runs");
    guest.set_state(state::STOP_COPY)?.map_err(|errno| anyhow::anyhow!("errno {errno}"))?;
    let record = guest.read_state(8192)?;
    for round in 0..400 {
        let mut odd = record.clone();
        // Half of the rounds change counters and queues at the beginning, the others any byte.
        let most = if round % 2 == 0 { 128 } else { odd.len() as u64 };
        for _ in 0..=fixture.random.below(3) {
            let at = fixture.random.below(most) as usize;
            odd[at] = fixture.random.byte();
        }
        if round % 7 == 0 {
            odd.truncate(fixture.random.below(odd.len() as u64) as usize);
        }
        expect_refused_or_running(&mut guest, &odd)?;
    }
    // A state without end.
    guest.call_ok(code::RESET, &[], &[])?;
    guest.set_state(state::RESUMING)?.map_err(|errno| anyhow::anyhow!("errno {errno}"))?;
    let mut written_bytes = 0;
    loop {
        match guest.write_state(&[0x5a; 8192])? {
            Ok(()) => written_bytes += 8192,
            Err(ERRNO_NOSPC) => break,
            Err(errno) => bail!("after {written_bytes} bytes it is refused with {errno}"),
        }
        ensure!(written_bytes < 64 << 20, "a state has no size limit");
    }
    guest.call_ok(code::RESET, &[], &[])?;
    guest.enable()?;
    guest.create(1)?;
    guest.write_and_verify(2, 0, &pattern(0, 1, 8192))
}

/// Writes a possibly invalid state: either it is refused, and only a reset helps, or the controller runs.
fn expect_refused_or_running(guest: &mut Guest, record: &[u8]) -> Result<()> {
    guest
        .set_state(state::RESUMING)?
        .map_err(|errno| anyhow::anyhow!("the controller does not enter RESUMING: errno {errno}"))?;
    for piece in record.chunks(8192) {
        ensure!(guest.write_state(piece)?.is_ok(), "a piece of the state is refused");
    }
    if guest.set_state(state::RUNNING)?.is_ok() {
        for doorbell in 0..6 {
            guest.set(0x1000 + doorbell * 4, &[3, 0, 0, 0])?;
        }
    } else {
        ensure!(guest.set_state(state::STOP)?.is_err(), "the controller leaves the error state without a reset");
    }
    let memory = guest.memory.try_clone()?;
    guest.call_ok(code::RESET, &[], &[])?;
    ensure!(guest.state()? == state::RUNNING, "the controller does not run after a reset");
    // Its queues may have written anywhere in guest memory; the memory must still be mappable.
    guest.call_ok(code::UNMAP, &vfio::unmap(0, MEMORY, 0), &[])?;
    guest.call_ok(code::MAP, &vfio::map(0, 0, MEMORY), &[memory.as_fd()]).map(drop)
}

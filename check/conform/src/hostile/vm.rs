//! Hostile guests and vfio-user clients. After each one, the target is running, its memory is within its limit, another
//! guest and an initiator continue with their data, and a new guest gets its controller.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::fixture::{CORES, DATA_MIB, MemoryGauge, VmFixture as Fixture};
use super::moving;
use crate::target::{Driver, Lab, Spec, Subject, Target};
use crate::test_data::{Random, pattern};
use crate::verifying_writer::VerifyingWriter;
use crate::vfio::{self, DATA, ENTRIES, EVENTS, Entry, Guest, MEMORY, SHADOW, code, queue_addresses};

/// The namespace of hostile guests; the guest that follows the protocol has the other one.
const HOSTILE_NAMESPACE: u32 = 2;
const NAMESPACE: u32 = 1;
/// The first block of the guest that follows the protocol, after the region of the verifying writer.
const BLOCK: u32 = (48 << 20) / 512;
/// How long random data is written over the guest's memory.
const RANDOM_WRITES: Duration = Duration::from_secs(4);
const READ: u8 = 2;
const WRITE: u8 = 1;

type Case = (&'static str, fn(&mut Fixture<'_>) -> Result<()>);

const CASES: [Case; 13] = [
    ("messages with invalid lengths, types and commands", invalid_messages),
    ("random payloads for every command", random_payloads),
    ("DMA maps that overlap, exceed their file, have no file, or never end", invalid_maps),
    ("too many file descriptors, and interrupts that are not eventfds", invalid_descriptors),
    ("accesses beyond the regions", invalid_accesses),
    ("queues with invalid parameters", invalid_queues),
    ("doorbells with any value", random_doorbells),
    ("data and lists outside of guest memory", data_outside_of_memory),
    ("memory that is unmapped or truncated while commands run", memory_that_is_removed),
    ("lists and entries that change after they were read", changed_lists),
    ("random writes over queues and lists while commands run", random_writes),
    ("resets and disconnects under load", resets),
    ("invalid migration states, and messages in the wrong state", moving::invalid_states),
];

/// Runs all cases.
pub(super) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    if let Subject::External(_) = lab.subject {
        return Ok(());
    }
    let part = format!("hostile-vm/{}", driver.name());
    let folder = lab.scratch.join(format!("hostile-vm-{}", driver.name()));
    let (memory, cores) = (DATA_MIB.to_string(), CORES.to_string());
    let sockets = folder.to_str().context("the name of the scratch folder is not UTF-8")?;
    let flags =
        ["--memory", &memory, "--cores", &cores, "--vm-folder", sockets, "--vm", "hostile", "--vm", "bystander"];
    let spec = Spec::new(driver, [lab.image("hostile-vm.img", 64)?, "ram:64M".to_owned()])?.flags(&flags);
    let mut target = Target::start(lab, &spec)?;
    let writer = VerifyingWriter::start(target.portal, &target.name, target.lun, lab.seed)?;
    let gauge = MemoryGauge::start(target.pid());
    let socket = |name: &str| -> PathBuf { folder.join(name).join("cntrl") };
    let (hostile, bystander) = (socket("hostile"), socket("bystander"));
    let mut bystander = Guest::boot(&bystander, 1)?;
    for (round, (name, case)) in (1..).zip(&CASES) {
        let good = lab.report.check(&part, name, || {
            let outcome = case(&mut Fixture { socket: &hostile, lab, random: Random::new(lab.seed) });
            target.healthy()?;
            outcome?;
            gauge.check_limit()?;
            writer.expect_progress()?;
            for len in [4096, 65536] {
                let kept = bystander.write_and_verify(NAMESPACE, BLOCK, &pattern(BLOCK.into(), round, len));
                kept.context("the guest that follows the protocol")?;
            }
            let mut newcomer = Guest::boot(&hostile, 1).context("a new guest")?;
            newcomer.write_and_verify(HOSTILE_NAMESPACE, 0, &pattern(0, round, 8192)).context("a new guest")
        });
        if !good && target.healthy().is_err() {
            bail!("the target has ended");
        }
    }
    lab.report.check(&part, "nothing acknowledged is lost", || writer.finish().map(drop));
    lab.report.note(&format!("{part}: peak memory {} MiB", gauge.highest.load(Ordering::Relaxed) >> 20));
    lab.report.check(&part, "target stops in time", || target.stop());
    lab.report.check(&part, "a controller moves to another process under load", || moving::moves(lab, driver));
    Ok(())
}

fn invalid_messages(fixture: &mut Fixture<'_>) -> Result<()> {
    let header = |code: u16, size: u32, flags: u32| {
        let mut bytes = [1_u16.to_le_bytes(), code.to_le_bytes()].concat();
        [size, flags, 0].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        bytes
    };
    for bytes in [header(1, 0, 0), header(1, 15, 0), header(1, u32::MAX, 0), header(9, 32, 1), vec![0; 16]] {
        let mut guest = Guest::connect(fixture.socket)?;
        guest.send_raw(&bytes)?;
        ensure!(guest.is_closed(), "{bytes:x?} did not end the connection");
    }
    // A message before the version, and the version twice.
    let mut guest = Guest::connect(fixture.socket)?;
    ensure!(guest.call(code::RESET, &[], &[])?.is_err(), "a reset before the version");
    drop(guest);
    let mut guest = Guest::start(fixture.socket)?;
    ensure!(guest.call(code::VERSION, &[0; 4], &[])?.is_err(), "the version twice");
    for unknown in (0..40).filter(|code| ![1, 2, 3, 13].contains(code)) {
        let _ = guest.call(unknown, &[], &[])?;
    }
    // Half a message, and then a disconnect.
    guest.send_raw(&header(10, 64, 0))
}

fn random_payloads(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut guest = Guest::boot(fixture.socket, 1)?;
    for code in 2..=18 {
        for _ in 0..200 {
            let count = fixture.random.below(80) as usize;
            let mut payload = fixture.random.bytes(count);
            // Small numbers pass more checks.
            payload.chunks_mut(4).filter(|_| fixture.random.below(3) > 0).for_each(|word| word[1..].fill(0));
            let _ = guest.call(code, &payload, &[])?;
        }
    }
    Ok(())
}

fn invalid_maps(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut guest = Guest::start(fixture.socket)?;
    let (file, pipe) = (vfio::memory(1 << 20)?, std::io::pipe()?.0);
    let disk = File::create(fixture.lab.fresh("hostile-vm.mapped")?)?;
    disk.set_len(1 << 20)?;
    let refused = [
        (vfio::map(4096, 0, 4096), file.as_fd(), "over other memory"),
        (vfio::map(MEMORY - 4096, 0, 8192), file.as_fd(), "partly over other memory"),
        (vfio::map(MEMORY, 0, 2 << 20), file.as_fd(), "beyond its file"),
        (vfio::map(MEMORY, u64::MAX - 4095, 8192), file.as_fd(), "an offset that overflows"),
        (vfio::map(u64::MAX - 4095, 0, 8192), file.as_fd(), "an address that overflows"),
        (vfio::map(MEMORY, 0, 0), file.as_fd(), "nothing"),
        (vfio::map(MEMORY + 512, 0, 4096), file.as_fd(), "an address within a page"),
        (vfio::map(MEMORY, 512, 4096), file.as_fd(), "an offset within a page"),
        (vfio::map(MEMORY, 0, 4608), file.as_fd(), "a part of a page"),
        (vfio::map(MEMORY, 0, 4096), pipe.as_fd(), "a pipe"),
        (vfio::map(MEMORY, 0, 4096), disk.as_fd(), "a file on a disk"),
    ];
    for (payload, file, what) in refused {
        ensure!(guest.call(code::MAP, &payload, &[file])?.is_err(), "mapped: {what}");
    }
    for (payload, what) in [
        (vfio::unmap(0, 4096, 0), "a part"),
        (vfio::unmap(1 << 40, 4096, 0), "memory that is not mapped"),
        (vfio::unmap(0, 4096, 2), "all memory, with an address"),
    ] {
        ensure!(guest.call(code::UNMAP, &payload, &[])?.is_err(), "unmapped: {what}");
    }
    let mut mapped = 0;
    while guest.call(code::MAP, &vfio::map((1 << 40) + mapped * 4096, 0, 4096), &[file.as_fd()])?.is_ok() {
        mapped += 1;
        ensure!(mapped < 20_000, "the number of maps has no limit");
    }
    ensure!(mapped > 1000, "only {mapped} maps are allowed");
    guest.call_ok(code::UNMAP, &vfio::unmap(0, 0, 2), &[]).map(drop)
}

fn invalid_descriptors(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut guest = Guest::boot(fixture.socket, 1)?;
    let (reader, writer) = std::io::pipe()?;
    let null = File::open("/dev/null")?;
    // None of these is an eventfd; the interrupts of the admin queue are sent there.
    for file in [reader.as_fd(), writer.as_fd(), null.as_fd(), guest.memory.try_clone()?.as_fd()] {
        let _ = guest.call(code::SET_IRQS, &vfio::vectors(0, 1), &[file])?;
        for _ in 0..20 {
            ensure!(guest.run(0, Entry::new(6, 0).pages(0x2000, 0).dword(10, 1))? == 0, "Identify failed");
        }
    }
    ensure!(guest.call(code::SET_IRQS, &vfio::vectors(u32::MAX, 2), &[])?.is_err(), "vector numbers that overflow");
    let _ = guest.call(code::RESET, &[], &[null.as_fd(); 16])?;
    // Too many descriptors may end the connection, and nothing else.
    let many = [null.as_fd(); 40];
    let _ = guest.call(code::MAP, &vfio::map(MEMORY, 0, 4096), &many);
    Ok(())
}

fn invalid_accesses(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut guest = Guest::start(fixture.socket)?;
    for region in 0..12 {
        for offset in [0, 3, 0xfff, 0x1000, 0x3ffe, 0x4000, 1 << 20, u64::MAX - 3] {
            for count in [0, 1, 3, 4, 8, 64, 4096, 1 << 20, u32::MAX as usize] {
                let _ = guest.call(code::READ, &vfio::region_access(offset, region, count), &[])?;
                let data = fixture.random.bytes(count.min(4096));
                // The reset of the device has a case of its own.
                let _ = guest.call(code::WRITE, &[vfio::region_access(offset, region, count), data].concat(), &[])?;
            }
        }
    }
    Ok(())
}

fn invalid_queues(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut guest = Guest::boot(fixture.socket, 2)?;
    let both = |queue: u32, entries: u32| queue | (entries - 1) << 16;
    for (entry, what) in [
        (Entry::new(5, 0).pages(0x8000, 0).dword(10, both(1, 64)).dword(11, 1), "a completion queue twice"),
        (Entry::new(5, 0).pages(0x8000, 0).dword(10, both(0, 64)).dword(11, 1), "another admin queue"),
        (Entry::new(5, 0).pages(0x8000, 0).dword(10, both(0xffff, 64)).dword(11, 1), "the last queue identifier"),
        (Entry::new(5, 0).pages(0x8000, 0).dword(10, both(3, 1)).dword(11, 1), "one entry"),
        (Entry::new(5, 0).pages(0x8000, 0).dword(10, both(3, 65536)).dword(11, 1), "too many entries"),
        (Entry::new(5, 0).pages(0x8004, 0).dword(10, both(3, 64)).dword(11, 1), "an odd address"),
        (Entry::new(5, 0).pages(1 << 50, 0).dword(10, both(3, 64)).dword(11, 1), "outside of guest memory"),
        (
            Entry::new(5, 0).pages(MEMORY - 4096, 0).dword(10, both(3, 512)).dword(11, 1),
            "partly outside of guest memory",
        ),
        (Entry::new(5, 0).pages(0x8000, 0).dword(10, both(3, 64)).dword(11, 0xffff_0003), "no such vector"),
        (Entry::new(1, 0).pages(0x8000, 0).dword(10, both(3, 64)).dword(11, 7 << 16 | 1), "no such completion queue"),
        (Entry::new(1, 0).pages(0x8000, 0).dword(10, both(3, 64)).dword(11, 1), "the admin completion queue"),
        (Entry::new(4, 0).dword(10, 1), "a completion queue in use is deleted"),
        (Entry::new(4, 0).dword(10, 0), "the admin queue is deleted"),
        (Entry::new(0, 0).dword(10, 0), "the admin queue is deleted"),
        (Entry::new(0, 0).dword(10, 9), "a queue that does not exist is deleted"),
        (Entry::new(0x7c, 0).pages(SHADOW + 4, EVENTS), "shadow doorbells at an odd address"),
        (Entry::new(0x7c, 0).pages(SHADOW, 1 << 50), "shadow doorbells outside of guest memory"),
    ] {
        ensure!(guest.run(0, entry)? != 0, "{what}");
    }
    // Admin queues outside of guest memory: the controller reports a fatal status until it is reset.
    guest.disable()?;
    guest.set(0x28, &(1_u64 << 50).to_le_bytes())?;
    guest.set(0x14, &0x46_0001_u32.to_le_bytes())?;
    let end = Instant::now() + Duration::from_secs(5);
    while guest.status()? & 2 == 0 {
        // Doorbells are ignored before the controller is ready, so ring again.
        guest.set(0x1000, &[1, 0, 0, 0])?;
        ensure!(Instant::now() < end, "queues outside of guest memory are not a fatal status");
    }
    guest.enable()
}

fn random_doorbells(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut guest = Guest::boot(fixture.socket, 2)?;
    // Every entry that a doorbell may reveal is a read of the hostile namespace.
    let read = Entry::blocks(READ, HOSTILE_NAMESPACE, 0, 8).pages(DATA, 0).0.repeat(ENTRIES.into());
    guest.memory.write_all_at(&read, queue_addresses(1)[0])?;
    guest.memory.write_all_at(&read, queue_addresses(2)[0])?;
    for _ in 0..5000 {
        let offset = 0x1000 + fixture.random.below(8) * 4;
        let value = match fixture.random.below(4) {
            0 => fixture.random.next() as u32,
            _ => fixture.random.below(ENTRIES.into()) as u32,
        };
        if offset >= 0x1008 {
            guest.set(offset, &value.to_le_bytes())?;
        }
    }
    for offset in (0x1000..0x4000).step_by(4) {
        guest.set(offset, &u32::MAX.to_le_bytes())?;
    }
    guest.enable()
}

fn data_outside_of_memory(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut guest = Guest::boot(fixture.socket, 1)?;
    let list = queue_addresses(1)[2];
    let put = |guest: &Guest, pointers: &[u64]| {
        let bytes: Vec<u8> = pointers.iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
        guest.memory.write_all_at(&bytes, list)
    };
    let failed = |guest: &mut Guest, entry: Entry, what: &str| match guest.run(1, entry)? {
        0 => bail!("{what} succeeded"),
        _ => Ok(()),
    };
    for opcode in [READ, WRITE] {
        let small = Entry::blocks(opcode, HOSTILE_NAMESPACE, 0, 8);
        let large = Entry::blocks(opcode, HOSTILE_NAMESPACE, 0, 64);
        failed(&mut guest, small.pages(1 << 50, 0), "a page outside of guest memory")?;
        failed(&mut guest, small.pages(u64::MAX - 3, 0), "the last address")?;
        failed(&mut guest, small.pages(MEMORY - 2048, 1 << 50), "half a page outside of guest memory")?;
        failed(&mut guest, small.pages(DATA + 1, 0), "an odd address")?;
        failed(&mut guest, large.pages(DATA, 1 << 50), "a list outside of guest memory")?;
        failed(&mut guest, large.pages(DATA, list + 4), "a list at an odd address")?;
        put(&guest, &[DATA, DATA, 1 << 50, DATA, DATA, DATA, DATA])?;
        failed(&mut guest, large.pages(DATA, list), "a list that points outside of guest memory")?;
        put(&guest, &[DATA, DATA + 512, DATA, DATA, DATA, DATA, DATA])?;
        failed(&mut guest, large.pages(DATA, list), "a list with an odd address")?;
        // A PRP list whose last entry points to itself.
        let end = list + 4096 - 8;
        guest.memory.write_all_at(&end.to_le_bytes(), end)?;
        failed(&mut guest, large.pages(DATA, end), "a list that points to itself")?;
        let mut by_segments = large.pages(list, 32 | 2 << 60);
        by_segments.0[1] = 0x40;
        put(&guest, &[list, 32 | 2 << 60, list, 32 | 2 << 60])?;
        failed(&mut guest, by_segments, "SGL segments that point to themselves")?;
        put(&guest, &[DATA, u64::from(u32::MAX), 1 << 50, 1 << 20])?;
        by_segments = large.pages(list, 32 | 3 << 60);
        by_segments.0[1] = 0x40;
        let _ = guest.run(1, by_segments)?;
    }
    Ok(())
}

fn memory_that_is_removed(fixture: &mut Fixture<'_>) -> Result<()> {
    for _ in 0..10 {
        let mut guest = Guest::boot(fixture.socket, 1)?;
        fill(&mut guest)?;
        guest.call_ok(code::UNMAP, &vfio::unmap(0, MEMORY, 0), &[])?;
        guest.set(0x1008, &[5, 0, 0, 0])?;
        guest.disable()?;
        let memory = guest.memory.try_clone()?;
        guest.call_ok(code::MAP, &vfio::map(0, 0, MEMORY), &[memory.as_fd()])?;
        guest.enable()?;
        guest.create(1)?;
        fill(&mut guest)?;
        guest.memory.set_len(0)?;
        for tail in [3_u32, 40, 7] {
            guest.set(0x1008, &tail.to_le_bytes())?;
        }
        // The controller still answers.
        guest.status()?;
    }
    Ok(())
}

/// Starts as many reads and writes of 32 KiB as the queue holds, without reading completions.
fn fill(guest: &mut Guest) -> Result<()> {
    let list = queue_addresses(1)[2];
    let pages: Vec<u8> = (1..8_u64).flat_map(|page| (DATA + page * 4096).to_le_bytes()).collect();
    guest.memory.write_all_at(&pages, list)?;
    for number in 0..ENTRIES - 1 {
        let opcode = if number % 2 == 0 { READ } else { WRITE };
        guest.put(1, Entry::blocks(opcode, HOSTILE_NAMESPACE, u32::from(number) * 64, 64).pages(DATA, list))?;
    }
    guest.ring(1)
}

/// The checked list is the list that is used: a list that changes points to its old or its new pages, and never to
/// other memory.
fn changed_lists(fixture: &mut Fixture<'_>) -> Result<()> {
    const LEN: usize = 32 << 10;
    let mut guest = Guest::boot(fixture.socket, 1)?;
    let [submissions, _, list] = queue_addresses(1);
    let canary = fixture.random.bytes(1 << 20);
    let (good, other, never) = (2 << 20, 4 << 20, 6 << 20);
    guest.memory.write_all_at(&canary, never)?;
    let written = pattern(0, 1, LEN);
    guest.write_and_verify(HOSTILE_NAMESPACE, 0, &written)?;
    let lists =
        [good, other].map(|at: u64| -> Vec<u8> { (1..8).flat_map(|page| (at + page * 4096).to_le_bytes()).collect() });
    let garbage = fixture.random.bytes(64);
    for round in 0..500_u32 {
        guest.memory.write_all_at(&lists[0], list)?;
        let at = u64::from((round + 2) % u32::from(ENTRIES)) * 64 + submissions;
        guest.put(1, Entry::blocks(READ, HOSTILE_NAMESPACE, 0, 64).pages(good, list))?;
        guest.ring(1)?;
        guest.memory.write_all_at(&lists[1], list)?;
        // Random bytes, except opcode and namespace ID.
        guest.memory.write_all_at(&garbage[8..], at + 8)?;
        let (_, status) = guest.next_completion(1)?;
        if status == 0 {
            let all = [good, other].map(|at| -> Result<Vec<u8>> {
                let mut bytes = vec![0; LEN];
                guest.memory.read_exact_at(&mut bytes, at)?;
                Ok(bytes)
            });
            let [one, two] = all;
            let (one, two) = (one?, two?);
            for (page, wanted) in written.chunks(4096).enumerate() {
                let place = page * 4096..(page + 1) * 4096;
                ensure!(
                    one[place.clone()] == *wanted || two[place] == *wanted,
                    "page {page} has neither the old nor the new data"
                );
            }
            guest.memory.write_all_at(&[0; LEN], good)?;
            guest.memory.write_all_at(&[0; LEN], other)?;
        }
    }
    let mut after = vec![0; canary.len()];
    guest.memory.read_exact_at(&mut after, never)?;
    ensure!(after == canary, "memory was written that no list names");
    Ok(())
}

/// Another thread writes random data over queues, lists and both pages of shadow doorbells. The namespace IDs stay
/// those of the hostile namespace, which a guest may write.
fn random_writes(fixture: &mut Fixture<'_>) -> Result<()> {
    let end = Instant::now() + RANDOM_WRITES;
    let mut rounds = 0;
    while Instant::now() < end {
        let mut guest = Guest::boot(fixture.socket, 4)?;
        if rounds % 2 == 0 {
            ensure!(guest.run(0, Entry::new(0x7c, 0).pages(SHADOW, EVENTS))? == 0, "no shadow doorbells");
        }
        rounds += 1;
        let (memory, mut random) = (guest.memory.try_clone()?, Random::new(fixture.random.next()));
        let is_over = AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            let writer = scope.spawn(|| -> Result<()> {
                while !is_over.load(Ordering::Relaxed) {
                    scribble(&memory, &mut random)?;
                }
                Ok(())
            });
            let rung = (0..400).try_for_each(|_| -> Result<()> {
                let queue = 1 + fixture.random.below(4);
                let value = fixture.random.below(u64::from(ENTRIES) + 2) as u32;
                guest.set(0x1000 + queue * 8 + fixture.random.below(2) * 4, &value.to_le_bytes())?;
                guest.status().map(drop)
            });
            is_over.store(true, Ordering::Relaxed);
            let written = writer.join().map_err(|_| anyhow::anyhow!("the writing thread panicked"))?;
            rung.and(written)
        });
        outcome?;
        // In any state, a reset must work.
        guest.enable()?;
        guest.create(1)?;
        guest.write_and_verify(HOSTILE_NAMESPACE, 0, &pattern(0, rounds, 8192))?;
    }
    Ok(())
}

fn scribble(memory: &File, random: &mut Random) -> Result<()> {
    const CODES: [u8; 10] = [0x00, 0x01, 0x02, 0x04, 0x05, 0x08, 0x09, 0x0c, 0x19, 0x7f];
    let queue = 1 + random.below(4) as u16;
    let [submissions, completions, list] = queue_addresses(queue);
    let pointer = |random: &mut Random| match random.below(6) {
        0 => random.next(),
        1 => list + random.below(512) * 8,
        2 => MEMORY - random.below(8192),
        _ => DATA + random.below(2048) * 4096,
    };
    match random.below(8) {
        0 => memory.write_all_at(&random.bytes(16), completions + random.below(ENTRIES.into()) * 16)?,
        1 | 2 => {
            let value = random.below(u64::from(ENTRIES) + 1) as u32;
            memory.write_all_at(&value.to_le_bytes(), SHADOW + 8 + random.below(8) * 4)?;
        }
        3 => memory.write_all_at(&random.bytes(4), EVENTS + random.below(10) * 4)?,
        4 => memory.write_all_at(&pointer(random).to_le_bytes(), list + random.below(512) * 8)?,
        _ => {
            let code = CODES[random.below(CODES.len() as u64) as usize];
            let mut entry = Entry::new(code, HOSTILE_NAMESPACE + random.below(2) as u32);
            entry = entry.pages(pointer(random), pointer(random));
            (10..16).for_each(|number| entry = entry.dword(number, random.below(300) as u32));
            // PSDT, FUSE and the command identifier.
            (entry.0[1], entry.0[2]) = (random.byte() & 0xc3, random.byte());
            memory.write_all_at(&entry.0, submissions + random.below(ENTRIES.into()) * 64)?;
        }
    }
    Ok(())
}

fn resets(fixture: &mut Fixture<'_>) -> Result<()> {
    for round in 0..40 {
        let mut guest = Guest::boot(fixture.socket, 1)?;
        for _ in 0..5 {
            fill(&mut guest)?;
            match round % 3 {
                0 => drop(guest.call_ok(code::RESET, &[], &[])?),
                1 => guest
                    .call_ok(code::WRITE, &[vfio::region_access(0x58, 7, 2), vec![0, 0x80]].concat(), &[])
                    .map(drop)?,
                _ => guest.disable()?,
            }
            guest.enable()?;
            guest.create(1)?;
        }
        // Disconnect under load.
        fill(&mut guest)?;
    }
    Ok(())
}

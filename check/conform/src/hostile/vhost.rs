//! Hostile guests with disks and SCSI host adapters over vhost-user, with split and with packed rings. While each one
//! attacks, another guest and an initiator continue with their data; after it, the target is running, its memory is
//! within its limit, and a new guest gets its device.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::fixture::{CORES, DATA_MIB, MemoryGauge};
use crate::session::cdb;
use crate::target::{Driver, Lab, Spec, Subject, Target};
use crate::test_data::{Random, pattern};
use crate::verifying_writer::VerifyingWriter;
use crate::vhost::{
    AVAILABLE, DATA, ENTRIES, FrontEnd, IN, INDIRECT, Kind, Layout, Link, MEMORY, NEXT, OUT, Piece, USED, USER, WRITE,
    answer_at, available_at, code, command_header, disk_header, linked, region, ring_at,
};

/// The unit of hostile guests; the guest that follows the protocol has the other one.
const HOSTILE: u16 = 1;
const KEPT: u16 = 0;
/// The first block of the guest that follows the protocol, after the region of the verifying writer.
const BLOCK: u32 = (48 << 20) / 512;
/// The address of tables of descriptors.
const TABLE: u64 = 12 << 20;
/// More descriptors than a chain may have.
const TOO_MANY: usize = 2048;
/// An address outside of every map.
const NOWHERE: u64 = 1 << 50;
/// Time in which a target that takes a request that is none would return it.
const SILENCE: Duration = Duration::from_millis(50);
/// Requests that are offered while a thread changes the ring, and how often that is repeated.
const OFFERED: u64 = 300;
const CHANGE_ROUNDS: u64 = 8;
/// Requests in progress when memory is removed, and how often that is repeated.
const IN_PROGRESS: u64 = 200;
const REMOVALS: u64 = 10;

/// A hostile guest.
struct Fixture<'a> {
    socket: &'a Path,
    kind: Kind,
    layout: Layout,
    random: Random,
}

type Case = (&'static str, fn(&mut Fixture<'_>) -> Result<()>);

const CASES: [Case; 8] = [
    ("chains without an end", endless_chains),
    ("indices that jump, and wrong wrap counters", wrong_indices),
    ("tables in tables, and tables that are not whole", wrong_tables),
    ("memory that is written before memory that is read", wrong_order),
    ("lengths and addresses out of every map", outside_of_memory),
    ("rings with invalid sizes, places and bases", invalid_rings),
    ("rings and tables that change while they are read", changing_rings),
    ("memory that is removed or cut off while requests run", memory_that_is_removed),
];

/// Runs all cases.
pub(super) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    if let Subject::External(_) = lab.subject {
        return Ok(());
    }
    let part = format!("hostile-vhost/{}", driver.name());
    let folder = lab.scratch.join(format!("hostile-vhost-{}", driver.name()));
    let (memory, cores) = (DATA_MIB.to_string(), CORES.to_string());
    let sockets = folder.to_str().context("the name of the scratch folder is not UTF-8")?;
    let hostile_disk = format!("disk:{HOSTILE}");
    let mut flags = vec!["--memory", &memory, "--cores", &cores, "--vhost-folder", sockets];
    flags.extend(["--vhost-blk", &hostile_disk, "--vhost-scsi", "adapter", "--vhost-blk", "bystander"]);
    let spec = Spec::new(driver, [lab.image("hostile-vhost.img", 64)?, "ram:64M".to_owned()])?.flags(&flags);
    let mut target = Target::start(lab, &spec)?;
    let writer = VerifyingWriter::start(target.portal, &target.name, target.lun, lab.seed)?;
    let gauge = MemoryGauge::start(target.pid());
    let socket = |name: &str| -> PathBuf { folder.join(format!("{name}.sock")) };
    let mut bystander = FrontEnd::boot(&socket("bystander"), Kind::Blk, Layout::Split, 1)?;
    let devices = [(Kind::Blk, "disk"), (Kind::Scsi, "adapter")];
    let layouts = [(Layout::Split, "split"), (Layout::Packed, "packed")];
    for ((kind, device), (layout, rings)) in devices.iter().flat_map(|device| layouts.map(|layout| (device, layout))) {
        for (name, case) in &CASES {
            let good = lab.report.check(&part, &format!("{device}, {rings} rings: {name}"), || {
                let socket = socket(device);
                let mut fixture = Fixture { socket: &socket, kind: *kind, layout, random: Random::new(lab.seed) };
                let outcome = meanwhile(&mut bystander, || case(&mut fixture));
                target.healthy()?;
                outcome?;
                gauge.check_limit()?;
                writer.expect_progress()?;
                fixture.boot()?.write_and_verify((HOSTILE, 0), &pattern(0, 1, 8192)).context("a new guest")
            });
            if !good && target.healthy().is_err() {
                bail!("the target has ended");
            }
        }
    }
    lab.report.check(&part, "nothing acknowledged is lost", || writer.finish().map(drop));
    lab.report.note(&format!("{part}: peak memory {} MiB", gauge.highest.load(Ordering::Relaxed) >> 20));
    lab.report.check(&part, "target stops in time", || target.stop());
    Ok(())
}

/// Attacks while the guest that follows the protocol writes its data and reads it back, and once more after the attack.
fn meanwhile(bystander: &mut FrontEnd, attack: impl FnOnce() -> Result<()>) -> Result<()> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let continued = scope.spawn(|| -> Result<()> {
            for round in 0.. {
                let is_last = is_over.load(Ordering::Relaxed);
                for len in [4096, 65536] {
                    bystander.write_and_verify((KEPT, BLOCK), &pattern(BLOCK.into(), round, len))?;
                }
                if is_last {
                    break;
                }
            }
            Ok(())
        });
        let outcome = attack();
        is_over.store(true, Ordering::Relaxed);
        let continued = continued.join().map_err(|_| anyhow!("the thread of the other guest panicked"))?;
        continued.context("the guest that follows the protocol")?;
        outcome
    })
}

impl Fixture<'_> {
    fn boot(&self) -> Result<FrontEnd> {
        FrontEnd::boot(self.socket, self.kind, self.layout, 1)
    }

    /// The ring that is attacked.
    fn ring(&self) -> u16 {
        self.kind.first()
    }

    /// Boots a guest, whose attack must break its ring; the ring can be used again when it is started anew.
    fn breaks(&self, what: &str, attack: impl FnOnce(&mut FrontEnd) -> Result<()>) -> Result<()> {
        let (mut guest, ring) = (self.boot()?, self.ring());
        attack(&mut guest)?;
        guest.kick(ring)?;
        guest.wait_for_error(ring).with_context(|| what.to_owned())?;
        guest.stop(ring)?;
        guest.set_up(ring)?;
        let kept = guest.write_and_verify((HOSTILE, 0), &pattern(0, 2, 8192));
        kept.with_context(|| format!("{what}: the ring after it was started anew"))
    }

    /// A descriptor as it is in a table.
    fn in_table(&self, (address, len, is_written): Piece, flags: u16, next: u16) -> Vec<u8> {
        let flags = flags | if is_written { WRITE } else { 0 };
        let [third, fourth] = if self.layout == Layout::Packed { [0, flags] } else { [flags, next] };
        [&address.to_le_bytes()[..], &len.to_le_bytes(), &third.to_le_bytes(), &fourth.to_le_bytes()].concat()
    }

    /// The header of a request that moves 4 KiB.
    fn header(&self, is_write: bool) -> Vec<u8> {
        match self.kind {
            Kind::Blk => disk_header(if is_write { OUT } else { IN }, 0),
            Kind::Scsi => {
                let make = if is_write { cdb::write } else { cdb::read };
                command_header(HOSTILE, 1, &make(0, 8))
            }
        }
    }
}

fn endless_chains(fixture: &mut Fixture<'_>) -> Result<()> {
    let (ring, piece) = (fixture.ring(), (DATA, 16, false));
    fixture.breaks("a chain through all descriptors that returns to the first", |guest| {
        guest.offer_chain(ring, &vec![(piece, NEXT); ENTRIES.into()]).map(drop)
    })?;
    fixture.breaks("a table that is longer than a chain may be", |guest| {
        let next = |at: usize| if at + 1 < TOO_MANY { NEXT } else { 0 };
        let table: Vec<u8> = (0..TOO_MANY).flat_map(|at| fixture.in_table(piece, next(at), at as u16 + 1)).collect();
        guest.memory.write_all_at(&table, TABLE)?;
        guest.offer_chain(ring, &[((TABLE, u32::try_from(table.len())?, false), INDIRECT)]).map(drop)
    })?;
    if fixture.layout == Layout::Split {
        fixture.breaks("two descriptors that follow each other", |guest| {
            guest.offer_chain(ring, &[(piece, NEXT), (piece, NEXT)]).map(drop)
        })?;
        fixture.breaks("a table whose descriptors follow each other", |guest| {
            let table = [fixture.in_table(piece, NEXT, 1), fixture.in_table(piece, NEXT, 0)].concat();
            guest.memory.write_all_at(&table, TABLE)?;
            guest.offer_chain(ring, &[((TABLE, 32, false), INDIRECT)]).map(drop)
        })?;
    }
    Ok(())
}

fn wrong_indices(fixture: &mut Fixture<'_>) -> Result<()> {
    let (ring, piece) = (fixture.ring(), (DATA, 16, false));
    if fixture.layout == Layout::Split {
        for index in [ENTRIES + 1, 0x8000, u16::MAX] {
            fixture.breaks(&format!("the available index jumps to {index}"), |guest| {
                Ok(guest.memory.write_all_at(&index.to_le_bytes(), available_at(ring) + 2)?)
            })?;
        }
        fixture.breaks("a chain whose head the ring does not have", |guest| guest.offer(ring, ENTRIES))?;
        return fixture.breaks("a chain whose second descriptor the ring does not have", |guest| {
            guest.write_descriptor(ring, 0, piece, NEXT, u16::MAX)?;
            guest.offer(ring, 0)
        });
    }
    // Entries that are not available, at the place of the next request and behind it.
    let mut guest = fixture.boot()?;
    for flags in [0, USED, AVAILABLE | USED] {
        (0..4).try_for_each(|place| guest.write_entry(ring, place, piece, place, flags | NEXT))?;
        guest.kick(ring)?;
        thread::sleep(SILENCE);
        let mut entry = [0; 2];
        guest.memory.read_exact_at(&mut entry, ring_at(ring) + 14)?;
        ensure!(u16::from_le_bytes(entry) == flags | NEXT, "an entry with the flags {flags:x} was returned");
    }
    // More laps than one, over the entries of all laps before.
    let laps = u32::from(ENTRIES) / 3 * 5;
    (0..laps).try_for_each(|_| guest.transfer(false, (HOSTILE, 0), 4096))?;
    // All entries are requests, in this lap and in the next one, whatever the device has not returned yet.
    let pieces = guest.pieces(ring, 0, &fixture.header(false), [None, Some((DATA, 4096, true))])?;
    let last = pieces.len() - 1;
    let flags = |at: usize| if at < last { NEXT } else { 0 };
    let table: Vec<u8> = (0..=last).flat_map(|at| fixture.in_table(pieces[at], flags(at), 0)).collect();
    guest.memory.write_all_at(&table, TABLE)?;
    let whole = (TABLE, u32::try_from(table.len())?, false);
    for lap in 0..8 {
        let flags = INDIRECT | if lap % 2 == 0 { AVAILABLE } else { USED };
        (0..ENTRIES).try_for_each(|place| guest.write_entry(ring, place, whole, place, flags))?;
        guest.kick(ring)?;
    }
    guest.stop(ring)?;
    guest.set_up(ring)?;
    guest.write_and_verify((HOSTILE, 0), &pattern(0, 2, 8192)).context("the ring after it was started anew")
}

fn wrong_tables(fixture: &mut Fixture<'_>) -> Result<()> {
    let (ring, piece) = (fixture.ring(), (DATA, 16, false));
    let whole = fixture.in_table(piece, 0, 0);
    let inner = fixture.in_table((TABLE + 4096, 16, false), INDIRECT, 0);
    let (outside, end) = ((NOWHERE, 32, false), (MEMORY - 16, 32, false));
    let cases: [(&str, &[u8], &[Link]); 8] = [
        ("a table in a table", &inner, &[((TABLE, 16, false), INDIRECT)]),
        ("a table that refers to itself", &inner, &[((TABLE + 4096, 16, false), INDIRECT)]),
        ("a table that is not the end of its chain", &whole, &[((TABLE, 16, false), INDIRECT | NEXT), (piece, 0)]),
        ("half a descriptor", &whole, &[((TABLE, 24, false), INDIRECT)]),
        ("an empty table", &whole, &[((TABLE, 0, false), INDIRECT)]),
        ("a table outside of memory", &whole, &[(outside, INDIRECT)]),
        ("a table that ends outside of memory", &whole, &[(end, INDIRECT)]),
        ("a table at the last address", &whole, &[((u64::MAX - 7, 32, false), INDIRECT)]),
    ];
    for (what, table, chain) in cases {
        fixture.breaks(what, |guest| {
            let next = fixture.in_table(piece, NEXT, 1);
            guest.memory.write_all_at(&next, MEMORY - 16)?;
            guest.memory.write_all_at(table, TABLE)?;
            guest.memory.write_all_at(table, TABLE + 4096)?;
            guest.offer_chain(ring, chain).map(drop)
        })?;
    }
    if fixture.layout == Layout::Packed {
        fixture.breaks("a table after a descriptor", |guest| {
            guest.memory.write_all_at(&whole, TABLE)?;
            guest.offer_chain(ring, &[(piece, NEXT), ((TABLE, 16, false), INDIRECT)]).map(drop)
        })?;
    }
    Ok(())
}

fn wrong_order(fixture: &mut Fixture<'_>) -> Result<()> {
    let (ring, read, written) = (fixture.ring(), (DATA, 16, false), (DATA, 16, true));
    fixture.breaks("in the ring", |guest| guest.offer_chain(ring, &linked(&[written, read])).map(drop))?;
    fixture.breaks("in a table", |guest| {
        let table = [fixture.in_table(written, NEXT, 1), fixture.in_table(read, 0, 0)].concat();
        guest.memory.write_all_at(&table, TABLE)?;
        guest.offer_chain(ring, &[((TABLE, 32, false), INDIRECT)]).map(drop)
    })?;
    fixture.breaks("a request without room for its answer", |guest| {
        guest.memory.write_all_at(&fixture.header(false), DATA)?;
        guest.offer_chain(ring, &linked(&[(DATA, 51, false)])).map(drop)
    })?;
    fixture.breaks("a request without a header", |guest| guest.offer_chain(ring, &linked(&[written])).map(drop))
}

fn outside_of_memory(fixture: &mut Fixture<'_>) -> Result<()> {
    let (mut guest, ring) = (fixture.boot()?, fixture.ring());
    // Afterwards no unit attention is due, which would be a failure, too.
    guest.write_and_verify((HOSTILE, 0), &pattern(0, 2, 4096))?;
    for is_write in [false, true] {
        for (address, what) in [
            (NOWHERE, "outside of memory"),
            (u64::MAX - 3, "the last address"),
            (u64::MAX - 4095, "the last page"),
            (MEMORY - 2048, "half outside of memory"),
            (MEMORY, "the first address behind memory"),
        ] {
            let piece = Some((address, 4096, !is_write));
            let data = if is_write { [piece, None] } else { [None, piece] };
            let answer = guest.run(ring, &fixture.header(is_write), data).context(what)?;
            let is_failed = match fixture.kind {
                Kind::Blk => answer != [0],
                Kind::Scsi => answer[10..12] != [0, 0],
            };
            ensure!(is_failed, "{what}: the request has succeeded");
        }
    }
    let mut found = vec![0; 4096];
    guest.memory.write_all_at(&found, DATA)?;
    guest.transfer(false, (HOSTILE, 0), 4096)?;
    guest.memory.read_exact_at(&mut found, DATA)?;
    ensure!(found == pattern(0, 2, 4096), "a write from outside of memory has changed the disk");
    drop(guest);
    for (what, address, len) in [
        ("a header outside of memory", NOWHERE, 16),
        ("a header that ends outside of memory", MEMORY - 8, 16),
        ("a header of 4 GiB", MEMORY - 8, u32::MAX),
    ] {
        fixture.breaks(what, |guest| {
            let answer = (answer_at(ring, 0), guest.kind.answer_len(), true);
            guest.offer_chain(ring, &linked(&[(address, len, false), answer])).map(drop)
        })?;
    }
    fixture.breaks("an answer outside of memory", |guest| {
        let mut pieces = guest.pieces(ring, 0, &fixture.header(false), [None, None])?;
        pieces[1].0 = NOWHERE;
        guest.offer_chain(ring, &linked(&pieces)).map(drop)
    })
}

fn invalid_rings(fixture: &mut Fixture<'_>) -> Result<()> {
    let ring = u32::from(fixture.ring());
    let state = |number: u32| [ring, number].map(u32::to_le_bytes).concat();
    let address = |parts: [u64; 3]| {
        let parts: Vec<u8> = parts.iter().chain(&[0]).flat_map(|part| part.to_le_bytes()).collect();
        [state(0), parts].concat()
    };
    // Descriptors, used, available.
    let good = [0, 0x6000, 0x4000].map(|at| USER + ring_at(fixture.ring()) + at);
    let mut guest = fixture.boot()?;
    for part in 0..3 {
        // The descriptors of a split ring may be anywhere.
        let odd = if part > 0 || fixture.layout == Layout::Packed { 1 } else { MEMORY };
        for bad in [0, 1, USER + MEMORY - 2, USER + MEMORY, u64::MAX - 3, good[part] + odd] {
            guest.stop(fixture.ring())?;
            let mut parts = good;
            parts[part] = bad;
            // Refused here, or when the ring is started.
            let placed = guest.call(code::SET_VRING_ADDR, &address(parts), &[]);
            let started = placed.and_then(|_| guest.start_ring(fixture.ring()));
            ensure!(started.is_err(), "a ring whose part {part} is at {bad:x} was started");
            guest.set_up(fixture.ring())?;
        }
    }
    if fixture.layout == Layout::Packed {
        // Places beyond the ring, available and used.
        for base in [u32::from(ENTRIES), u32::from(ENTRIES) << 16, 0x7fff_7fff, u32::MAX] {
            guest.stop(fixture.ring())?;
            guest.call(code::SET_VRING_BASE, &state(base), &[])?;
            ensure!(guest.start_ring(fixture.ring()).is_err(), "a ring with the base {base:x} was started");
            guest.set_up(fixture.ring())?;
        }
    } else {
        guest.stop(fixture.ring())?;
        guest.call(code::SET_VRING_NUM, &state(1000), &[])?;
        ensure!(guest.start_ring(fixture.ring()).is_err(), "a split ring of 1000 entries was started");
        guest.set_up(fixture.ring())?;
    }
    guest.write_and_verify((HOSTILE, 0), &pattern(0, 2, 8192))
}

/// Another thread writes random data over the ring, its events, its tables and its headers' descriptors, while requests
/// are offered.
fn changing_rings(fixture: &mut Fixture<'_>) -> Result<()> {
    let (ring, layout) = (fixture.ring(), fixture.layout);
    for round in 0..CHANGE_ROUNDS {
        let mut guest = fixture.boot()?;
        let (memory, mut random) = (guest.memory.try_clone()?, Random::new(fixture.random.next()));
        let is_over = AtomicBool::new(false);
        let outcome = thread::scope(|scope| {
            let writer = scope.spawn(|| -> Result<()> {
                while !is_over.load(Ordering::Relaxed) {
                    scribble(&memory, ring, layout, &mut random)?;
                }
                Ok(())
            });
            let offered = offer(fixture, &mut guest, OFFERED);
            is_over.store(true, Ordering::Relaxed);
            writer.join().map_err(|_| anyhow!("the writing thread panicked"))?.and(offered)
        });
        outcome?;
        // In any state, a reset must work.
        guest.call(code::RESET_DEVICE, &[], &[])?;
        guest.start(ring + 1)?;
        guest.write_and_verify((HOSTILE, 0), &pattern(0, round, 8192)).context("the device after a reset")?;
    }
    Ok(())
}

/// Offers reads and writes without regard to what the device returns.
fn offer(fixture: &mut Fixture<'_>, guest: &mut FrontEnd, count: u64) -> Result<()> {
    let ring = fixture.ring();
    for number in 0..count {
        let is_write = number % 2 == 0;
        // Place and answer of the identifier that is used next.
        let Some(id) = guest.free(ring) else { return Ok(()) };
        let piece = Some((DATA + fixture.random.below(512) * 4096, 4096, !is_write));
        let data = if is_write { [piece, None] } else { [None, piece] };
        match fixture.layout {
            Layout::Split => {
                guest.describe(ring, id, &fixture.header(is_write), data)?;
                guest.offer(ring, id)?;
            }
            Layout::Packed => {
                let pieces = guest.pieces(ring, id, &fixture.header(is_write), data)?;
                guest.offer_chain(ring, &linked(&pieces))?;
            }
        }
        guest.kick(ring)?;
    }
    Ok(())
}

fn scribble(memory: &File, ring: u16, layout: Layout, random: &mut Random) -> Result<()> {
    let pointer = |random: &mut Random| match random.below(5) {
        0 => random.next(),
        1 => MEMORY - random.below(8192),
        2 => TABLE + random.below(64) * 16,
        _ => DATA + random.below(2048) * 4096,
    };
    let entry = |random: &mut Random| {
        let mut bytes = pointer(random).to_le_bytes().to_vec();
        bytes.extend((random.below(70_000) as u32).to_le_bytes());
        let flags = (random.next() as u16) & (NEXT | WRITE | INDIRECT | AVAILABLE | USED);
        let number = random.below(u64::from(ENTRIES) + 2) as u16;
        let [third, fourth] = if layout == Layout::Packed { [number, flags] } else { [flags, number] };
        bytes.extend([third.to_le_bytes(), fourth.to_le_bytes()].concat());
        bytes
    };
    match random.below(8) {
        0 => memory.write_all_at(&random.bytes(4), available_at(ring))?,
        1 => memory.write_all_at(&random.bytes(2), available_at(ring) + 2 + random.below(64) * 2)?,
        2 | 3 => memory.write_all_at(&entry(random), TABLE + random.below(64) * 16)?,
        4 => {
            // The flags of an entry alone, in a packed ring.
            let flags = [AVAILABLE, USED, AVAILABLE | NEXT, USED | NEXT][random.below(4) as usize];
            memory.write_all_at(&flags.to_le_bytes(), ring_at(ring) + random.below(ENTRIES.into()) * 16 + 14)?;
        }
        _ => memory.write_all_at(&entry(random), ring_at(ring) + random.below(ENTRIES.into()) * 16)?,
    }
    Ok(())
}

fn memory_that_is_removed(fixture: &mut Fixture<'_>) -> Result<()> {
    let ring = fixture.ring();
    for round in 0..REMOVALS {
        let mut guest = fixture.boot()?;
        offer(fixture, &mut guest, IN_PROGRESS)?;
        // Without memory the rings cannot go on. The target may refuse that.
        let all = [&[0; 8][..], &region(0, MEMORY, USER)].concat();
        let _ = guest.call(code::REM_MEM_REG, &all, &[]);
        guest.kick(ring)?;
        guest.call(code::GET_STATUS, &[], &[]).context("the device without memory")?;
        guest.call(code::RESET_DEVICE, &[], &[])?;
        guest.share_memory()?;
        guest.start(ring + 1)?;
        guest.write_and_verify((HOSTILE, 0), &pattern(0, round, 8192)).context("memory that is there again")?;
        // Only the data is cut off, or all.
        offer(fixture, &mut guest, IN_PROGRESS)?;
        guest.memory.set_len(if round % 2 == 0 { DATA } else { 0 })?;
        guest.kick(ring)?;
        guest.call(code::GET_STATUS, &[], &[]).context("the device whose memory is cut off")?;
        // Other memory in its place.
        let memory = crate::vfio::memory(MEMORY)?;
        let table = [&[1_u32, 0].map(u32::to_le_bytes).concat()[..], &region(0, MEMORY, USER)].concat();
        let _ = guest.call(code::SET_MEM_TABLE, &table, &[memory.as_fd()]);
        guest.call(code::GET_STATUS, &[], &[]).context("the device with other memory")?;
    }
    Ok(())
}

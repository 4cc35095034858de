//! Copies by the target: EXTENDED COPY with both list identifier lengths, and ROD tokens, with all related commands,
//! between two volumes on a file system with reflinks.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::mounted_fs::MountedFs;
use crate::process;
use crate::report::skip;
use crate::session::{Data, Login, Session};
use crate::target::{Driver, Lab, Spec, Target};
use crate::test_data::pattern;

const LIMIT: Duration = Duration::from_secs(20);
/// Bytes of each volume.
const VOLUME: u64 = 10 << 30;
const BLOCKS: u64 = VOLUME / 512;
/// The distance between pieces of data; the rest of the volumes is sparse.
const EVERY: u64 = 64 << 20;
const PIECE: usize = 1 << 20;
/// MiB of the file system: both volumes would not fit without sparse or shared blocks.
const SYSTEM_MIB: u64 = 12 << 10;
/// Blocks of one command.
const CHUNK: u32 = 131_072;
/// Blocks of one segment of EXTENDED COPY.
const SEGMENT: u64 = 32_768;
/// Most bytes on the network for a copy of 10 GiB.
const WIRE_MAX: u64 = 1_000_000;
/// Most bytes of new space: the metadata of shared blocks.
const SPACE_MAX: u64 = 32 << 20;

pub(crate) fn part(lab: &Lab, driver: Driver, part: &str) {
    lab.report.check(
        part,
        "10 GiB by EXTENDED COPY and by tokens, without data on the network and without new space",
        || {
            let Some(mounted) = MountedFs::new(lab, "xfs", SYSTEM_MIB)? else {
                return skip("no xfs can be mounted here: that needs root, mkfs.xfs, and a kernel with xfs");
            };
            copies(lab, driver, &mounted.path)
        },
    );
}

/// A method to copy blocks from LUN 0 to the same LBA of LUN 1.
type CopyMethod = fn(&mut Copier, u64, u32) -> Result<()>;

struct Copier {
    from: Session,
    to: Session,
    /// CSCD descriptors of both.
    names: Vec<u8>,
    list: u32,
}

fn third_party(opcode: u8, action: u8, list: u32, length: usize) -> Result<[u8; 16]> {
    let mut cdb = [opcode, action, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb[10..14].copy_from_slice(&u32::try_from(length)?.to_be_bytes());
    // The list identifier is in bytes 6 to 9 of opcode 83h, else in bytes 2 to 5 (SPC-4 6.4, SBC-3 5.8).
    let at = if opcode == 0x83 { 6 } else { 2 };
    if list != 0 {
        cdb[at..at + 4].copy_from_slice(&list.to_be_bytes());
    }
    Ok(cdb)
}

impl Copier {
    fn new(target: &Target) -> Result<Self> {
        let open = |qualifier, lun| {
            Session::ready(target.portal, &Login::to(&target.name, "copies").qualifier(qualifier), target.lun + lun)
        };
        let (mut from, mut to) = (open(1, 0)?, open(2, 1)?);
        let names = [descriptor(&mut from)?, descriptor(&mut to)?].concat();
        Ok(Self { from, to, names, list: 0 })
    }

    fn segments(&self, at: u64, count: u32) -> Vec<u8> {
        let end = at + u64::from(count);
        let mut segments = Vec::new();
        for from in (at..end).step_by(SEGMENT as usize) {
            let blocks = SEGMENT.min(end - from) as u16;
            segments.extend([0x02, 0, 0, 0x18, 0, 0, 0, 1, 0, 0]);
            segments.extend(blocks.to_be_bytes());
            segments.extend([from, from].map(u64::to_be_bytes).concat());
        }
        segments
    }
}

/// The identification descriptor CSCD of a logical unit (SPC-4 6.4.4.2), from VPD page 83h.
pub(crate) fn descriptor(session: &mut Session) -> Result<Vec<u8>> {
    descriptor_in(&session.run(&[0x12, 1, 0x83, 4, 0, 0], Data::In(1024))?.good()?.data)
}

/// The same from the bytes of the page.
pub(crate) fn descriptor_in(page: &[u8]) -> Result<Vec<u8>> {
    let mut rest = page.get(4..).context("a VPD page 83h")?;
    while let [_, kind, _, length, ..] = *rest {
        let (name, after) = rest.split_at_checked(4 + usize::from(length)).context("an incomplete designator")?;
        // A NAA designator of the logical unit.
        if kind & 0x3f == 3 {
            let mut descriptor = [&[0xe4, 0, 0, 0], name].concat();
            descriptor.resize(28, 0);
            descriptor.extend([0, 0, 2, 0]);
            return Ok(descriptor);
        }
        rest = after;
    }
    anyhow::bail!("the logical unit has no NAA designator")
}

/// Copies blocks within a logical unit, whose descriptor this is, by one segment of EXTENDED COPY (LID1).
pub(crate) fn within(session: &mut Session, unit: &[u8], from: u64, to: u64, blocks: u16) -> Result<()> {
    let mut segment = vec![0x02, 0, 0, 0x18, 0, 0, 0, 0, 0, 0];
    segment.extend(blocks.to_be_bytes());
    segment.extend([from, to].map(u64::to_be_bytes).concat());
    extended_copy(session, 1, unit, &segment)
}

fn extended_copy(session: &mut Session, id: u8, units: &[u8], segments: &[u8]) -> Result<()> {
    let mut list = vec![id, 0];
    list.extend(u16::try_from(units.len())?.to_be_bytes());
    list.extend([0; 4]);
    list.extend(u32::try_from(segments.len())?.to_be_bytes());
    list.extend([0; 4]);
    list.extend([units, segments].concat());
    session.run(&third_party(0x83, 0, 0, list.len())?, Data::Out(list))?.good().context("EXTENDED COPY (LID1)")?;
    Ok(())
}

/// EXTENDED COPY (LID1) and its status.
fn by_lid1(copier: &mut Copier, at: u64, count: u32) -> Result<()> {
    copier.list = copier.list % 255 + 1;
    let (id, segments) = (copier.list as u8, copier.segments(at, count));
    extended_copy(&mut copier.to, id, &copier.names, &segments)?;
    let mut ask = third_party(0x84, 0, 0, 64)?;
    ask[2] = id;
    let data = copier.to.run(&ask, Data::In(64))?.good().context("RECEIVE COPY STATUS (LID1)")?.data;
    ensure!(data.get(4) == Some(&1), "the copy's status is {data:02x?}");
    Ok(())
}

/// EXTENDED COPY (LID4) and its status.
fn by_lid4(copier: &mut Copier, at: u64, count: u32) -> Result<()> {
    copier.list += 1;
    let segments = copier.segments(at, count);
    let mut list = vec![0; 48];
    // The header of 32 bytes after the list identifier fields.
    (list[0], list[3], list[16]) = (1, 0x20, 0xff);
    list[20..24].copy_from_slice(&copier.list.to_be_bytes());
    list[42..44].copy_from_slice(&u16::try_from(copier.names.len())?.to_be_bytes());
    list[44..46].copy_from_slice(&u16::try_from(segments.len())?.to_be_bytes());
    list.extend([&copier.names[..], &segments].concat());
    copier.to.run(&third_party(0x83, 1, 0, list.len())?, Data::Out(list))?.good().context("EXTENDED COPY (LID4)")?;
    let ask = third_party(0x84, 5, copier.list, 64)?;
    let data = copier.to.run(&ask, Data::In(64))?.good().context("RECEIVE COPY STATUS (LID4)")?.data;
    ensure!(data.get(5) == Some(&1), "the copy's status is {data:02x?}");
    Ok(())
}

/// POPULATE TOKEN, RECEIVE ROD TOKEN INFORMATION, WRITE USING TOKEN.
fn by_token(copier: &mut Copier, at: u64, count: u32) -> Result<()> {
    copier.list += 1;
    let range = [&at.to_be_bytes()[..], &count.to_be_bytes(), &[0; 4]].concat();
    let make = [&[0, 30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16][..], &range].concat();
    let cdb = third_party(0x83, 0x10, copier.list, make.len())?;
    copier.from.run(&cdb, Data::Out(make))?.good().context("POPULATE TOKEN")?;
    let data = copier.from.run(&third_party(0x84, 7, copier.list, 1024)?, Data::In(1024))?;
    let data = data.good().context("RECEIVE ROD TOKEN INFORMATION")?.data;
    let token = data.get(38..550).context("no ROD token is returned")?;
    let mut list = vec![0; 536];
    list[..2].copy_from_slice(&550_u16.to_be_bytes());
    list[2] = 2;
    list[16..528].copy_from_slice(token);
    list[534..536].copy_from_slice(&16_u16.to_be_bytes());
    list.extend(range);
    let cdb = third_party(0x83, 0x11, copier.list, list.len())?;
    copier.to.run(&cdb, Data::Out(list))?.good().context("WRITE USING TOKEN").map(drop)
}

/// The other commands for copies.
fn other_commands(copier: &mut Copier) -> Result<()> {
    let data = copier.to.run(&third_party(0x84, 3, 0, 512)?, Data::In(512))?.good()?.data;
    ensure!(data.len() > 44, "RECEIVE COPY OPERATING PARAMETERS: {data:02x?}");
    let data = copier.from.run(&third_party(0x84, 8, 0, 4096)?, Data::In(4096))?.good()?.data;
    // Eight bytes, then 96 bytes for each token.
    let tokens = data.len().saturating_sub(8) / 96;
    ensure!(tokens > 0, "REPORT ALL ROD TOKENS: {data:02x?}");
    // INVALID FIELD IN CDB: no copy with this list identifier has failed or is in progress.
    let mut details = third_party(0x84, 4, 0, 512)?;
    details[2] = 0xee;
    copier.to.run(&details, Data::In(512))?.expect_sense(5, 0x24, 0).context("RECEIVE COPY FAILURE DETAILS")?;
    let mut abort = [0x83, 0x1c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    abort[2..6].copy_from_slice(&0x7777_7777_u32.to_be_bytes());
    copier.to.run(&abort, Data::None)?.expect_sense(5, 0x24, 0).context("COPY OPERATION ABORT")
}

/// Bytes sent and received by the target so far.
fn wire(lab: &Lab, socket: &str) -> Result<u64> {
    let text = process::run(process::bound(lab.built()?).args(["stats", socket]), LIMIT)?.succeeded()?;
    let number = |key: &str| -> Result<u64> {
        // The last occurrence is the sum of all cores.
        let after = text.rsplit_once(&format!("\"{key}\":")).with_context(|| format!("no {key} in {text}"))?.1;
        Ok(after.trim_start().split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default().parse()?)
    };
    Ok(number("sent_bytes")? + number("received_bytes")?)
}

fn used(folder: &Path) -> Result<u64> {
    let found = rustix::fs::statvfs(folder)?;
    Ok((found.f_blocks - found.f_bfree) * found.f_frsize)
}

fn copies(lab: &Lab, driver: Driver, folder: &Path) -> Result<()> {
    let path = |name: &str| folder.join(name).to_str().map(str::to_owned).context("a folder whose name is UTF-8");
    let (source, copy) = (path("source.img")?, path("copy.img")?);
    let file = File::create(&source)?;
    file.set_len(VOLUME)?;
    for at in (0..VOLUME).step_by(EVERY as usize) {
        file.write_all_at(&pattern(at, 1, PIECE), at)?;
    }
    file.sync_all()?;
    let socket = lab.fresh("copies.socket")?.display().to_string();
    for (name, method) in [("LID1", by_lid1 as CopyMethod), ("LID4", by_lid4), ("token", by_token)] {
        // An empty file, so that data that is not copied is detected.
        let file = File::create(&copy)?;
        file.set_len(VOLUME)?;
        file.sync_all()?;
        let spec = Spec::new(driver, [source.clone(), copy.clone()])?.flags(&["--stats", &socket]);
        let target = Target::start(lab, &spec)?;
        let mut copier = Copier::new(&target)?;
        let (on_wire, space, began) = (wire(lab, &socket)?, used(folder)?, Instant::now());
        for at in (0..BLOCKS).step_by(CHUNK as usize) {
            method(&mut copier, at, CHUNK).with_context(|| format!("{name}, block {at}"))?;
        }
        copier.to.synchronize()?;
        let took = began.elapsed();
        let (on_wire, space) = (wire(lab, &socket)? - on_wire, used(folder)?.saturating_sub(space));
        lab.report
            .note(&format!("10 GiB by {name}: {took:.2?}, {on_wire} bytes on the network, {space} bytes of new space"));
        ensure!((1..WIRE_MAX).contains(&on_wire), "{on_wire} bytes on the network");
        ensure!(space < SPACE_MAX, "{space} bytes of new space for shared blocks");
        for at in (0..VOLUME).step_by(EVERY as usize) {
            let found = copier.to.read(at / 512, u32::try_from(PIECE / 512)?, 512)?;
            ensure!(found == pattern(at, 1, PIECE), "{name}: byte {at} does not have the copied data");
        }
        if name == "token" {
            other_commands(&mut copier)?;
        }
        copier.from.logout()?;
        copier.to.logout()?;
        target.stop()?;
    }
    Ok(())
}

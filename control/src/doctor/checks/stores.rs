//! The stores of volumes: files, devices, file systems, disks.

use super::words::{mib, percent};
use crate::common_sections::Volume;
use crate::doctor::facts::{Ceph, Device, Facts, FileMode, FileSystem, Store, shell};
use crate::doctor::finding::{Finding, quoted};
use crate::doctor::table::Code;
use std::collections::BTreeSet;
use std::path::Path;

/// The part of a file system from which on it is full.
const FULL: f64 = 0.01;
/// The part from which on it is almost full.
const ALMOST_FULL: f64 = 0.1;
/// A few errors are answers to questions that the disk does not know.
const ERRORS_MAX: u64 = 16;
/// File systems in memory.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];
/// Network and overlay file systems.
const UNSUITED: [&str; 10] =
    ["nfs", "nfs4", "cifs", "smb3", "overlay", "9p", "virtiofs", "ceph", "fuse.sshfs", "fuse.glusterfs"];

pub(super) fn check(facts: &Facts, findings: &mut Vec<Finding>) {
    findings.extend(facts.ceph.as_ref().and_then(ceph));
    let mut systems = BTreeSet::new();
    for store in &facts.stores {
        let Some(volume) = facts.config.volumes.get(&store.volume) else { continue };
        if store.exists == Some(false) {
            findings.extend(missing(facts, store));
        } else {
            findings.extend(refused(facts, store, volume));
            findings.extend(direct(store, volume));
            findings.extend(in_use(facts, store));
        }
        findings.extend(read_only(facts, store, volume));
        systems.extend(store.file_system);
    }
    for system in facts.file_systems.iter().filter(|system| systems.contains(&system.number)) {
        file_system(facts, system, findings);
    }
    let mut seen = BTreeSet::new();
    for device in facts.stores.iter().flat_map(|store| &store.devices).filter(|device| seen.insert(&device.name)) {
        disk(device, findings);
    }
}

/// A program for images of Ceph that is not there.
fn ceph(ceph: &Ceph) -> Option<Finding> {
    let found = Finding::new(Code::CephMissing, "images of Ceph").shows("program", ceph.program.display());
    let found = found.shows("is there", ceph.has_program).shows("librbd", ceph.has_library);
    let command = format!("ls -l {}; ldconfig -p | grep librbd", shell(&ceph.program));
    (!ceph.has_program || !ceph.has_library).then(|| found.command(command))
}

fn subject(store: &Store) -> String {
    format!("volume {}", store.volume)
}

/// A store that is not there. A service that runs has created the files of new volumes, and has troubles of its own for
/// those that went away; before a start, a file that does not exist yet is created if the volume has a size.
fn missing(facts: &Facts, store: &Store) -> Option<Finding> {
    let volume = facts.config.volumes.get(&store.volume)?;
    let will_be_made = !facts.is_running() && volume.kind.is_file() && volume.size.is_some() && volume.uuid.is_none();
    let folder = store.path.parent().unwrap_or_else(|| Path::new("/"));
    let found = Finding::new(Code::StoreMissing, subject(store)).shows("path", store.path.display());
    let command = format!("ls -ld {}; findmnt -T {}; mount -a", shell(&store.path), shell(folder));
    (!will_be_made).then(|| found.command(command))
}

fn refused(facts: &Facts, store: &Store, volume: &Volume) -> Option<Finding> {
    let wanted = |at: usize| match (at + 1 == store.modes.len(), volume.read_only) {
        (false, _) => 1,
        (true, true) => 4,
        (true, false) => 6,
    };
    let (at, file) = store.modes.iter().enumerate().find(|(at, file)| !facts.user.may(file, wanted(*at)))?;
    let (path, user) = (shell(&file.path), &facts.user);
    let command = match (wanted(at), file.owner == user.id) {
        (1, _) => format!("chmod a+x {path}"),
        (_, true) => format!("chmod u+rw {path}"),
        (_, false) => format!("chown {} {path} && chmod u+rw {path}", quoted(&user.owner())),
    };
    let FileMode { mode, owner, .. } = file;
    let found = Finding::new(Code::StoreRefused, subject(store))
        .shows("path", file.path.display())
        .shows("mode", format!("{:04o}", mode & 0o7777))
        .shows("owner", owner)
        .shows("user of the service", &user.name);
    Some(found.command(command))
}

fn read_only(facts: &Facts, store: &Store, volume: &Volume) -> Option<Finding> {
    let system = facts.file_system(store)?;
    if volume.read_only || !volume.kind.is_file() || !system.has("ro") {
        return None;
    }
    let found = Finding::new(Code::FileSystemReadOnly, subject(store)).shows("file system", system.place.display());
    let command = format!("mount -o remount,rw {}", shell(&system.place));
    Some(found.shows("type", &system.kind).command(command))
}

fn direct(store: &Store, volume: &Volume) -> Option<Finding> {
    let (alignment, block) = (store.direct_alignment?, volume.block_size.bytes());
    if !volume.direct || (1..=block).contains(&alignment) {
        return None;
    }
    let found = Finding::new(Code::DirectUnsupported, subject(store)).shows("block size", block);
    let known = if alignment == 0 { "not supported".to_owned() } else { format!("{alignment} bytes") };
    let command = format!("lunar volume set {} --direct=false", quoted(&store.volume));
    Some(found.shows("alignment of direct I/O", known).command(command))
}

fn in_use(facts: &Facts, store: &Store) -> Option<Finding> {
    let first = store.users.first()?;
    let device = shell(&store.path);
    let found = Finding::new(Code::DeviceInUse, subject(store)).shows("device", store.path.display());
    let command = match first.strip_prefix("mounted at ") {
        Some(place) if !facts.is_running() => format!("umount {}", quoted(place)),
        _ => format!("lsblk {device}"),
    };
    Some(found.shows("users", store.users.join("; ")).command(command))
}

fn file_system(facts: &Facts, system: &FileSystem, findings: &mut Vec<Finding>) {
    let new = |code| match system.kind.as_str() {
        "" => Finding::new(code, system.subject()),
        kind => Finding::new(code, system.subject()).shows("type", kind),
    };
    let volumes: Vec<&Store> = facts.stores.iter().filter(|store| store.file_system == Some(system.number)).collect();
    let place = shell(&system.place);
    let part = system.free_part();
    if part < ALMOST_FULL {
        let code = if part < FULL { Code::FileSystemFull } else { Code::FileSystemAlmostFull };
        let found = new(code).shows("free", mib(system.free)).shows("of it", percent(part));
        findings.push(found.command(format!("du -xah -d 1 {place} | sort -h | tail")));
    }
    let missing: u64 = volumes.iter().map(|store| store.size.saturating_sub(store.allocated)).sum();
    if missing > system.free {
        let found = new(Code::OverCommitted).shows("volumes", volumes.len()).shows("may grow by", mib(missing));
        let promised: u64 = volumes.iter().map(|store| store.size.max(store.allocated)).sum();
        let found = found.shows("promised", mib(promised));
        findings.push(found.shows("free", mib(system.free)).command(format!("df -h {place}")));
    }
    let files: Vec<String> = volumes.iter().map(|store| shell(&store.path)).collect();
    let shown = format!("ls -ls {}", files.join(" "));
    if IN_MEMORY.contains(&system.kind.as_str()) {
        findings.push(new(Code::VolatileFileSystem).shows("volumes", volumes.len()).command(&shown));
    } else if UNSUITED.contains(&system.kind.as_str()) {
        findings.push(new(Code::UnsuitedFileSystem).shows("volumes", volumes.len()).command(&shown));
    }
    if system.punches == Some(false) {
        findings.push(new(Code::NoHolePunching).shows("volumes", volumes.len()).command(&shown));
    }
    if system.has("nobarrier") || system.has("barrier=0") {
        let found = new(Code::BarriersOff).shows("options", system.options.join(","));
        findings.push(found.command(format!("mount -o remount,barrier=1 {place}")));
    }
}

fn disk(device: &Device, findings: &mut Vec<Finding>) {
    let name = quoted(&device.name);
    let new = |code| Finding::new(code, format!("device {}", device.name));
    if device.errors > ERRORS_MAX {
        findings
            .push(new(Code::DeviceErrors).shows("errors", device.errors).command(format!("smartctl -a /dev/{name}")));
    }
    if device.degraded > 0 {
        let found = new(Code::RaidDegraded).shows("missing disks", device.degraded);
        findings.push(found.command(format!("mdadm --detail /dev/{name}")));
    }
    if device.misalignment > 0 {
        let found = new(Code::PartitionMisaligned).shows("bytes off", device.misalignment);
        findings.push(found.command(format!("lsblk -t /dev/{name}")));
    }
    if device.cache.starts_with("write back") && device.cache_of_kernel == "write through" {
        let found = new(Code::WriteCacheHidden).shows("the disk says", &device.cache);
        let command = format!("echo 'write back' > /sys/block/{name}/queue/write_cache");
        findings.push(found.shows("the kernel says", &device.cache_of_kernel).command(command));
    }
}

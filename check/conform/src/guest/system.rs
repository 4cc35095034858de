//! A disk from which a virtual machine boots as a machine does: the firmware starts GRUB, which loads a kernel from the
//! first partition; the second one has the packages of a system with systemd.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::sysroot::Sysroot;
use super::{SERVICE_OPTIONS, emulator, qemu};
use crate::process;

/// Bytes of the disk, and where its partitions begin. The packages take about half of the second partition.
pub(super) const SIZE: u64 = 1 << 30;
const KERNEL_AT: u64 = 1 << 20;
const SYSTEM_AT: u64 = 160 << 20;
const SECTOR: u64 = 512;
/// Bytes of the boot sector that are code; its partition table comes next.
const CODE: usize = 440;
const TABLE: usize = 446;
/// The type of a partition with a file system of Linux, and the flag of the one from which the firmware boots.
const LINUX: u8 = 0x83;
const ACTIVE: u8 = 0x80;
/// Cylinder, head and sector of a partition beyond the ones that they can name.
const BEYOND: [u8; 3] = [0xfe, 0xff, 0xff];
/// The modules of GRUB: the disk by the firmware, partitions, the file system, the kernel.
const MODULES: [&str; 4] = ["biosdisk", "part_msdos", "ext2", "linux"];
/// The limit of making a file system with the packages.
const LIMIT: Duration = Duration::from_secs(300);

/// Makes the disk `image`; `disk` is its name in the kernel, `script` the one that systemd starts.
pub(super) fn make(sysroot: &Sysroot, image: &Path, disk: &str, script: &str) -> Result<()> {
    let folder = image.with_extension("boot");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("partition"))?;
    std::fs::copy(&sysroot.packed_kernel, folder.join("partition/vmlinuz"))?;
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
    let initramfs = folder.join("partition/initramfs");
    qemu::initramfs(sysroot, [("test", &*scripts)].into_iter(), "", &initramfs)?;

    let file = File::create(image)?;
    file.set_len(SIZE)?;
    file_system("ext2", &folder.join("partition"), image, KERNEL_AT..SYSTEM_AT)?;
    file_system("ext4", &sysroot.path, image, SYSTEM_AT..SIZE)?;
    let options = format!("{} lunar.script={script} lunar.system={disk}2{SERVICE_OPTIONS}", qemu::KERNEL_OPTIONS);
    let loader = loader(sysroot, &folder, &options)?;
    ensure!(SECTOR + loader.len() as u64 <= KERNEL_AT, "GRUB does not fit before the first partition");
    file.write_all_at(&boot_sector(sysroot)?, 0)?;
    file.write_all_at(&loader, SECTOR)?;
    Ok(std::fs::remove_dir_all(&folder)?)
}

/// Makes a file system with the contents of a folder in a part of the image.
fn file_system(kind: &str, folder: &Path, image: &Path, part: std::ops::Range<u64>) -> Result<()> {
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-F", "-t", kind, "-E", &format!("offset={}", part.start), "-d"]).arg(folder).arg(image);
    make.arg(format!("{}k", (part.end - part.start) >> 10));
    process::run(&mut make, LIMIT)?.succeeded().with_context(|| format!("making the file system {kind}"))?;
    Ok(())
}

/// GRUB, with the commands that boot the kernel.
fn loader(sysroot: &Sysroot, folder: &Path, options: &str) -> Result<Vec<u8>> {
    let (commands, core) = (folder.join("commands"), folder.join("core"));
    let text = format!("set root=(hd0,msdos1)\nlinux /vmlinuz {options}\ninitrd /initramfs\nboot\n");
    std::fs::write(&commands, text)?;
    let words = emulator::of_tree(&sysroot.path, "usr/bin/grub-mkimage")?;
    let mut make = Command::new(&words[0]);
    make.args(&words[1..]).arg("-d").arg(sysroot.path.join("usr/lib/grub/i386-pc"));
    make.args(["-O", "i386-pc", "-p", "(hd0,msdos1)/", "-c"]).arg(&commands).arg("-o").arg(&core).args(MODULES);
    process::run(&mut make, LIMIT)?.succeeded().context("making the image of GRUB")?;
    Ok(std::fs::read(core)?)
}

/// The boot sector of GRUB, which loads the rest of GRUB from the next sectors, with the partition table.
fn boot_sector(sysroot: &Sysroot) -> Result<Vec<u8>> {
    let path = sysroot.path.join("usr/lib/grub/i386-pc/boot.img");
    let mut sector = std::fs::read(&path).with_context(|| format!("{}", path.display()))?;
    ensure!(sector.len() as u64 == SECTOR, "{} is not one sector", path.display());
    sector[CODE..].fill(0);
    for (at, (flag, begin, end)) in [(ACTIVE, KERNEL_AT, SYSTEM_AT), (0, SYSTEM_AT, SIZE)].into_iter().enumerate() {
        let [start, count] = [begin, end - begin].map(|bytes| u32::try_from(bytes / SECTOR));
        let entry = [&[flag][..], &BEYOND, &[LINUX], &BEYOND, &start?.to_le_bytes(), &count?.to_le_bytes()].concat();
        sector[TABLE + at * entry.len()..][..entry.len()].copy_from_slice(&entry);
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    Ok(sector)
}

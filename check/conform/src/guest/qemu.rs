//! Boots a guest: the kernel of a distribution, an initramfs, the tree of packages over 9p, and a script.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::cpio::Archive;
use super::modules::Modules;
use super::sysroot::Sysroot;
use crate::process;

/// The modules in the initramfs, with their dependencies. The crypto modules are not dependencies: the kernel requests
/// them by algorithm name, and the guest could not load them.
const MODULES: [&str; 31] = [
    "virtio_pci",
    "virtio_net",
    "virtio_blk",
    "virtio_scsi",
    "9pnet_virtio",
    "9p",
    "overlay",
    "crc32c_generic?",
    "sd_mod",
    "sr_mod",
    "isofs",
    "sg",
    "iscsi_tcp",
    "nvme_tcp",
    "nvme",
    "ext4",
    "dm_mod",
    "dm_multipath",
    "dm_service_time",
    "dm_round_robin",
    "scsi_dh_alua",
    "nls_ascii?",
    "af_packet?",
    // TLS requests its algorithms by name.
    "tls?",
    "gcm?",
    "ghash_generic?",
    // blktests looks for them.
    "loop?",
    "nvmet_tcp?",
    "aoe?",
    "fcoe?",
    "ublk_drv?",
];
/// How long a guest may run, and for how long its console may show nothing: the cases of a guest that hangs end here. A
/// slow machine that emulates several guests at once takes a few times as long as an idle one. A guest to which another
/// one migrates shows nothing until then.
pub(super) const LIMIT: Duration = Duration::from_secs(3600);
const SILENCE_LIMIT: Duration = Duration::from_secs(900);
/// Guest memory: room for the page cache and fio. The tests use a few hundred MiB.
const MEMORY: &str = "1G";

/// The emulated processor: what distributions require, and the features without which kernels are slow. With more
/// features a kernel saves more state at each task switch, which makes the emulation about a tenth slower.
const PROCESSOR: &str = "qemu64,ssse3=on,sse4.1=on,sse4.2=on,popcnt=on,aes=on,pclmulqdq=on,rdrand=on,rdseed=on";

/// Kernel options. Crypto self-tests are off: with large numbers they take minutes of emulation, and connections time
/// out. The check of the timer is off, because on a busy machine emulated timer interrupts are late and the kernel
/// takes the timer for broken. Mitigations of the processor's speculation are off: an emulated one does not speculate.
pub(super) const KERNEL_OPTIONS: &str =
    "console=ttyS0 quiet panic=-1 random.trust_cpu=on cryptomgr.notests=1 no_timer_check mitigations=off";

/// The network of the second network card.
const SECOND_NETWORK: &str = "10.0.3.0/24";

/// Writes the initramfs: busybox, the modules, and `folders` under their names; the folder `test` has the scripts.
pub(crate) fn initramfs<'a>(
    sysroot: &Sysroot,
    folders: impl Iterator<Item = (&'a str, &'a Path)>,
    settings: &str,
    to: &Path,
) -> Result<()> {
    let mut archive = Archive::new(BufWriter::new(File::create(to)?));
    for folder in ["bin", "dev", "proc", "sys", "modules", "lower", "upper", "root"] {
        archive.directory(folder)?;
    }
    archive.character_device("dev/console", 5, 1)?;
    let busybox = ["usr/bin/busybox", "usr/sbin/busybox"].map(|path| sysroot.path.join(path));
    let busybox = busybox.iter().find(|path| path.exists()).context("the guest's packages have no busybox")?;
    archive.file("bin/busybox", 0o755, &std::fs::read(busybox)?)?;
    archive.symlink("bin/sh", "busybox")?;
    let modules = Modules::open(&sysroot.modules)?.in_order(&MODULES)?;
    for (at, module) in modules.iter().enumerate() {
        archive.file(&format!("modules/{at:03}-{}", module.name), 0o644, &module.image)?;
    }
    for (name, folder) in folders {
        archive.folder(name, folder)?;
    }
    archive.file("test/settings", 0o644, settings.as_bytes())?;
    archive.symlink("init", "test/init")?;
    archive.finish()?.into_inner().context("initramfs")?;
    Ok(())
}

/// The hardware of a guest.
pub(crate) struct Hardware {
    /// The emulator and the first arguments of its command line.
    pub emulator: Vec<String>,
    /// Further arguments.
    pub devices: Vec<String>,
    /// Whether the guest's memory is a file that other processes may map, as vfio-user needs.
    pub shares_memory: bool,
    /// Further kernel options.
    pub kernel: String,
}

impl Hardware {
    fn command(&self) -> Result<Command> {
        let (program, words) = self.emulator.split_first().context("the emulator's command line is empty")?;
        let mut command = process::bound(program);
        command.args(words).args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        command.args(["-cpu", PROCESSOR, "-smp", "1", "-m", MEMORY]);
        if self.shares_memory {
            command.args(["-object", &format!("memory-backend-memfd,id=memory,size={MEMORY},share=on")]);
            command.args(["-machine", "q35,accel=tcg,memory-backend=memory"]);
        } else {
            command.args(["-machine", "q35,accel=tcg"]);
        }
        command.args(&self.devices);
        Ok(command)
    }
}

/// Boots a guest and calls `on_line` for every line of its console; returns the exit status of its script.
pub(crate) fn boot(
    sysroot: &Sysroot,
    initramfs: &Path,
    script: &str,
    hardware: &Hardware,
    on_line: impl FnMut(&str),
) -> Result<i32> {
    let mut qemu = hardware.command()?;
    let more = &hardware.kernel;
    qemu.arg("-kernel")
        .arg(&sysroot.kernel)
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", &format!("{KERNEL_OPTIONS} lunar.script={script}{more}")])
        .arg("-virtfs")
        .arg(format!("local,path={},mount_tag=tree,security_model=none,readonly=on", sysroot.path.display()));
    run(qemu, &initramfs.with_extension("status"), on_line)
}

/// Boots a guest whose firmware finds the loader of its system on a disk, as `boot` does; `status_file` gets the exit
/// status of its script.
pub(crate) fn boot_disk(status_file: &Path, hardware: &Hardware, on_line: impl FnMut(&str)) -> Result<i32> {
    run(hardware.command()?, status_file, on_line)
}

fn run(mut qemu: Command, status_file: &Path, on_line: impl FnMut(&str)) -> Result<i32> {
    File::create(status_file)?;
    // The first serial port is the console, the second receives the script's exit status.
    qemu.args(["-serial", "stdio", "-serial", &format!("file:{}", status_file.display())])
        .args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=,rx_queue_size=1024"])
        // A second network to this machine, for multipath.
        .args(["-netdev", &format!("user,id=net2,net={SECOND_NETWORK}")])
        .args(["-device", "virtio-net-pci,netdev=net2,romfile=,rx_queue_size=1024"]);
    let output = process::stream(&mut qemu, LIMIT, SILENCE_LIMIT, on_line).context("guest")?;
    let status = std::fs::read_to_string(status_file)?;
    match status.trim().parse() {
        Ok(status) => Ok(status),
        Err(_) => bail!(
            "the guest ended without a status; QEMU's is {}; last lines of its output:\n{}",
            output.status,
            process::last_lines(&output.text, 20)
        ),
    }
}

/// Runs a command on an emulator's monitor (QMP), which answers within `patience`; returns the line of its answer.
pub(crate) fn monitor(socket: &Path, patience: Duration, command: &str, arguments: &str) -> Result<String> {
    let mut monitor = UnixStream::connect(socket).context("the emulator's monitor")?;
    monitor.set_read_timeout(Some(patience))?;
    let mut answers = BufReader::new(monitor.try_clone()?).lines();
    // The greeting comes first, then one answer for each command, with events in between.
    let mut answer = |command: &str| loop {
        let line = answers.next().context("the monitor has closed")?.context("the monitor does not answer")?;
        ensure!(!line.contains(r#""error""#), "{command}: {line}");
        if line.contains(r#""return""#) {
            return Ok(line);
        }
    };
    writeln!(monitor, r#"{{"execute":"qmp_capabilities"}}"#)?;
    answer("qmp_capabilities")?;
    writeln!(monitor, r#"{{"execute":"{command}","arguments":{arguments}}}"#)?;
    answer(command)
}

//! One run of a guest: a stock kernel, a first file system of our own, the tree of packages behind it, and a script.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::cpio::Archive;
use super::modules::Modules;
use super::sysroot::Sysroot;
use crate::process;

/// Loaded at start, in an order that dependencies decide. The crypto module is asked for by algorithm, not by
/// dependency.
const MODULES: [&str; 27] = [
    "virtio_pci",
    "virtio_net",
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
    "xfs",
    "dm_mod",
    "dm_multipath",
    "dm_service_time",
    "dm_round_robin",
    "scsi_dh_alua",
    "nls_ascii?",
    "af_packet?",
    // Secure channels ask for their algorithms by name.
    "tls?",
    "gcm?",
    "ghash_generic?",
    // Test suites ask for them.
    "loop?",
    "nvmet_tcp?",
];
/// Enough for a page cache and fio; the tests use a few hundred MiB.
const MEMORY: &str = "1G";

/// What a distribution needs, and what kernels would be slow without. A processor that can do more has its kernel do
/// more at every switch between tasks, and an emulator a tenth more work.
const PROCESSOR: &str = "qemu64,ssse3=on,sse4.1=on,sse4.2=on,popcnt=on,aes=on,pclmulqdq=on,rdrand=on,rdseed=on";

/// How the kernel starts. Its algorithms do not test themselves first: of those with large numbers an emulated
/// processor takes minutes, and hosts give up. Nor does it try the emulated timer: a busy machine is late with it,
/// which a kernel that looks takes for broken.
const KERNEL_OPTIONS: &str = "console=ttyS0 quiet panic=-1 random.trust_cpu=on cryptomgr.notests=1 no_timer_check";

/// The second network card's.
const SECOND_NETWORK: &str = "10.0.3.0/24";

/// The first file system: busybox, the modules, and `folders` under their names, of which `test` has the scripts.
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
    let busybox = busybox.iter().find(|path| path.exists()).context("the tree has no busybox")?;
    archive.file("bin/busybox", 0o755, &std::fs::read(busybox)?)?;
    archive.connection("bin/sh", "busybox")?;
    let modules = Modules::open(&sysroot.modules)?.in_order(&MODULES)?;
    for (at, module) in modules.iter().enumerate() {
        archive.file(&format!("modules/{at:03}-{}", module.name), 0o644, &module.image)?;
    }
    for (name, folder) in folders {
        archive.folder(name, folder)?;
    }
    archive.file("test/settings", 0o644, settings.as_bytes())?;
    archive.connection("init", "test/init")?;
    archive.finish()?.into_inner().context("initramfs")?;
    Ok(())
}

/// The machine that a guest runs on.
pub(crate) struct Hardware {
    /// The emulator and its first arguments.
    pub emulator: Vec<String>,
    /// More arguments.
    pub devices: Vec<String>,
    /// Whether other processes may map the guest's memory.
    pub shares_memory: bool,
    /// More for the kernel's command line.
    pub kernel: String,
}

impl Hardware {
    fn command(&self) -> Result<Command> {
        let (program, words) = self.emulator.split_first().context("an emulator has a name")?;
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

/// Boots, shows every line, and gives the status that the script ended with.
pub(crate) fn boot(
    sysroot: &Sysroot,
    initramfs: &Path,
    script: &str,
    limit: Duration,
    hardware: &Hardware,
    on_line: impl FnMut(&str),
) -> Result<i32> {
    let status_file = initramfs.with_extension("status");
    File::create(&status_file)?;
    let mut qemu = hardware.command()?;
    let more = &hardware.kernel;
    qemu.arg("-kernel")
        .arg(&sysroot.kernel)
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", &format!("{KERNEL_OPTIONS} lunar.script={script}{more}")])
        // The first serial port is what the guest says, the second its script's status.
        .args(["-serial", "stdio", "-serial", &format!("file:{}", status_file.display())])
        .args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=,rx_queue_size=1024"])
        // Another way to this machine, for tests of several paths.
        .args(["-netdev", &format!("user,id=net2,net={SECOND_NETWORK}")])
        .args(["-device", "virtio-net-pci,netdev=net2,romfile=,rx_queue_size=1024"])
        .arg("-virtfs")
        .arg(format!("local,path={},mount_tag=tree,security_model=none,readonly=on", sysroot.path.display()));
    let output = process::stream(&mut qemu, limit, on_line).context("guest")?;
    let status = std::fs::read_to_string(&status_file)?;
    match status.trim().parse() {
        Ok(status) => Ok(status),
        Err(_) => bail!(
            "the guest died without a status, QEMU's is {}; it said:\n{}",
            output.status,
            process::last_lines(&output.text, 20)
        ),
    }
}

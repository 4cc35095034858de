//! A guest with the same disk of several back-ends of vhost-user: Lunar, QEMU's storage daemon, and SPDK if there is a
//! build of it. Lunar and one other in each guest: SPDK takes a processor all the time.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{Cases, emulator, qemu, sysroot};
use crate::process;
use crate::report::skip;
use crate::spdk::BUILD_VARIABLE;
use crate::target::{Driver, Lab, Spec, Target};

/// The name of the script, and of the comparison.
pub(super) const SCRIPT: &str = "figures-vhost";
/// The name of the disk.
const NAME: &str = "guest";
/// MiB of each disk.
const SIZE: u64 = 64;
/// Time in which a back-end listens.
const START_LIMIT: Duration = Duration::from_secs(30);
/// MiB of memory of SPDK.
const SPDK_MEMORY: u64 = 512;

/// A back-end of somebody else, which ends with this value.
struct BackEnd {
    child: Child,
    socket: PathBuf,
    /// The memory of its disk, if that is a file.
    disk: Option<PathBuf>,
}

impl BackEnd {
    fn start(mut command: Command, socket: PathBuf, disk: Option<PathBuf>) -> Result<Self> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut started = Self { child: child.context("the other back-end")?, socket, disk };
        let begin = Instant::now();
        while !started.socket.exists() {
            let ended = process::wait(&mut started.child, Duration::from_millis(100))?;
            ensure!(ended.is_none() && begin.elapsed() < START_LIMIT, "the other back-end does not listen");
        }
        Ok(started)
    }

    /// QEMU's storage daemon, with a file in memory.
    fn storage_daemon(folder: &Path) -> Result<Self> {
        let (socket, disk) = (
            folder.join("qsd.sock"),
            Path::new("/dev/shm").join(format!("lunar-conform-qsd-{}.img", std::process::id())),
        );
        std::fs::File::create(&disk).and_then(|file| file.set_len(SIZE << 20)).context("a file in memory")?;
        let _ = std::fs::remove_file(&socket);
        let mut command = process::bound("qemu-storage-daemon");
        command.args(["--blockdev", &format!("driver=file,node-name=ram,filename={}", disk.display())]);
        let export = "type=vhost-user-blk,id=ram,node-name=ram,writable=on,num-queues=2,addr.type=unix";
        command.args(["--export", &format!("{export},addr.path={}", socket.display())]);
        Self::start(command, socket, Some(disk))
    }

    /// SPDK's vhost, with a disk in memory.
    fn spdk(tree: &Path, folder: &Path) -> Result<Self> {
        let (socket, config) = (folder.join("spdk.sock"), folder.join("spdk.json"));
        let _ = std::fs::remove_file(&socket);
        let blocks = (SIZE << 20) / 512;
        let disk = format!(
            r#"{{"method":"bdev_malloc_create","params":{{"name":"ram","num_blocks":{blocks},"block_size":512}}}}"#
        );
        let controller = r#"{"method":"vhost_create_blk_controller","params":{"ctrlr":"spdk.sock","dev_name":"ram"}}"#;
        let subsystems = [("bdev", disk.as_str()), ("vhost_blk", controller)]
            .map(|(name, method)| format!(r#"{{"subsystem":"{name}","config":[{method}]}}"#));
        std::fs::write(&config, format!(r#"{{"subsystems":[{}]}}"#, subsystems.join(",")))?;
        let mut command = process::bound(tree.join("build/bin/vhost"));
        command.args(["--no-huge", "-s", &SPDK_MEMORY.to_string(), "--no-pci", "--disable-cpumask-locks", "-m", "1"]);
        command.arg("-r").arg(folder.join("spdk.rpc")).arg("-c").arg(&config).arg("-S").arg(folder);
        Self::start(command, socket, None)
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.disk.iter().for_each(|disk| _ = std::fs::remove_file(disk));
    }
}

/// Compares Lunar with each other back-end.
pub(super) fn part(lab: &Lab, driver: Driver) {
    let folder = lab.scratch.join(SCRIPT);
    lab.report.check("figures", "figures-vhost beside qemu-storage-daemon", || {
        std::fs::create_dir_all(&folder)?;
        guest(lab, driver, &folder, "qsd", &BackEnd::storage_daemon(&folder)?)
    });
    lab.report.check("figures", "figures-vhost beside SPDK", || {
        let Some(tree) = std::env::var_os(BUILD_VARIABLE) else {
            return skip(format!("{BUILD_VARIABLE} is not set to a build tree of SPDK"));
        };
        guest(lab, driver, &folder, "spdk", &BackEnd::spdk(Path::new(&tree), &folder)?)
    });
}

fn guest(lab: &Lab, driver: Driver, folder: &Path, name: &str, other: &BackEnd) -> Result<()> {
    let sysroot = sysroot::ensure_with_peers(&lab.report)?;
    let own = folder.join("own");
    let place = own.display().to_string();
    let spec = Spec::new(driver, [format!("ram:{SIZE}M")])?;
    let target = Target::start(lab, &spec.flags(&["--vhost-blk", NAME, "--vhost-folder", &place]))?;
    let initramfs = folder.join(format!("{name}.cpio"));
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
    let settings = format!("PEER={name}\nDRIVER={}\n", driver.name());
    qemu::initramfs(&sysroot, [("test", &*scripts)].into_iter(), &settings, &initramfs)?;
    let mut devices = Vec::new();
    for (id, socket) in [("own", &own.join(format!("{NAME}.sock"))), ("other", &other.socket)] {
        let chardev = format!("socket,id={id},path={}", socket.display());
        let device = format!("vhost-user-blk-pci,chardev={id},num-queues=2");
        devices.extend(["-chardev".to_owned(), chardev, "-device".to_owned(), device]);
    }
    let emulator = emulator::newest_or_own(&lab.report);
    let hardware = qemu::Hardware { emulator, devices, shares_memory: true, kernel: String::new() };
    let mut cases = Cases::new(lab, "figures");
    let status = qemu::boot(&sysroot, &initramfs, &format!("{SCRIPT}.sh"), &hardware, |line| cases.line(line))?;
    ensure!(status == 0, "the guest's script ended with {status}");
    target.stop()
}

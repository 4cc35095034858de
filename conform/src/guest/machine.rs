//! A virtual machine whose NVMe controller is ours, over vfio-user: its own driver, its root on it, and the deaths of
//! either side.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{Cases, newer, qemu, sysroot};
use crate::process;
use crate::target::{Driver, Lab, Spec, Target};

/// The emulated processor is slow, and slower while something else is built.
const LIMIT: Duration = Duration::from_secs(600);
/// How long it is looked whether a target without work takes processor time, and how much it may.
const IDLE: Duration = Duration::from_secs(2);
const IDLE_MOST: Duration = Duration::from_millis(20);
/// A guest that is killed is gone for its target in a moment.
const SETTLE: Duration = Duration::from_secs(3);
const NAME: &str = "vm";

/// What all guests of this part share.
struct Bench<'a> {
    lab: &'a Lab,
    part: String,
    sysroot: sysroot::Sysroot,
    emulator: Vec<String>,
    initramfs: PathBuf,
    folder: PathBuf,
}

/// Boots the guests, one after the other.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("vm/{}", driver.name());
    lab.built()?;
    let Some(sysroot) = super::packages(lab, &part) else { return Ok(()) };
    let mut found = None;
    lab.report.check(&part, "an emulator that knows vfio-user", || {
        found = Some(newer::emulator(&lab.report)?);
        Ok(())
    });
    let Some(emulator) = found else { return Ok(()) };
    let folder = lab.scratch.join(format!("vm-{}", driver.name()));
    std::fs::create_dir_all(&folder)?;
    let initramfs = folder.join("initramfs.cpio");
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
    qemu::initramfs(&sysroot, [("test", &*scripts)].into_iter(), "", &initramfs)?;
    let bench = Bench { lab, part, sysroot, emulator, initramfs, folder };
    lab.report.check(&bench.part.clone(), "guests ran to their end", || bench.guests(driver));
    Ok(())
}

impl Bench<'_> {
    fn guests(&self, driver: Driver) -> Result<()> {
        let volumes = [self.lab.image(&format!("vm-{}.img", driver.name()), 512)?, "ram:64M".to_owned()];
        let sockets = self.folder.join("sockets");
        let sockets = sockets.to_str().context("the scratch folder's name is no text")?;
        let spec = Spec::new(driver, volumes)?.flags(&["--vm", NAME, "--vm-folder", sockets]);
        let mut target = Some(Target::start(self.lab, &spec)?);
        let socket = self.folder.join("sockets").join(NAME).join("cntrl");

        let status = self.guest(&socket, "vm.sh", "", |line| match line {
            "@unplug" => self.unplug(),
            _ => Ok(()),
        })?;
        ensure!(status == Some(0), "the first guest ended with {status:?}");
        self.idle(target.as_ref().and_then(Target::pid).context("it is ours")?);

        let status = self.guest(&socket, "none", " lunar.root=/dev/nvme0n1", |line| match line {
            // Some writes are under way by then.
            "@kill" => {
                std::thread::sleep(Duration::from_secs(1));
                self.kill()
            }
            _ => Ok(()),
        })?;
        ensure!(status.is_none(), "the second guest was not killed, but ended with {status:?}");

        let status = self.guest(&socket, "vm-after.sh", "", |line| match line {
            "@restart" => {
                target.take().context("no target to restart")?.kill()?;
                target = Some(Target::start_after_kill(self.lab, &spec)?);
                Ok(())
            }
            _ => Ok(()),
        })?;
        ensure!(status == Some(0), "the third guest ended with {status:?}");

        let status = self.guest(&socket, "vm-after.sh,last", "", |_| Ok(()))?;
        ensure!(status == Some(0), "the last guest ended with {status:?}");
        target.take().context("no target")?.stop()
    }

    /// One guest; `None` when it was killed.
    fn guest(
        &self,
        socket: &Path,
        script: &str,
        kernel: &str,
        mut on_mark: impl FnMut(&str) -> Result<()>,
    ) -> Result<Option<i32>> {
        let path = socket.display();
        let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<String>>();
        let mut devices = words(format!("-qmp unix:{},server=on,wait=off", self.folder.join("qmp").display()));
        devices.extend(words(format!("-pidfile {}", self.folder.join("pid").display())));
        devices.extend(words("-device pcie-root-port,id=port,bus=pcie.0,chassis=1".to_owned()));
        devices.push("-device".to_owned());
        devices.push(format!(
            r#"{{"driver":"vfio-user-pci","id":"vm","bus":"port","socket":{{"type":"unix","path":"{path}"}}}}"#
        ));
        let hardware =
            qemu::Hardware { emulator: self.emulator.clone(), devices, shares_memory: true, kernel: kernel.to_owned() };
        let name = script.replace([',', '.'], "-");
        let mut log = std::fs::File::create(self.folder.join(format!("{name}.log")))?;
        let mut cases = Cases { lab: self.lab, part: &self.part, since: Instant::now(), said: Vec::new(), seen: 0 };
        let mut done = Ok(());
        let mut killed = false;
        let status = qemu::boot(&self.sysroot, &self.initramfs, script, LIMIT, &hardware, |line| {
            // A log that cannot be written costs the log, not the test.
            let _ = writeln!(log, "{line}");
            let mark = on_mark(line);
            killed |= line == "@kill";
            match mark {
                Ok(()) if !matches!(line, "@kill" | "@unplug" | "@restart") => cases.line(line),
                Ok(()) => {}
                Err(why) => done = Err(why),
            }
        });
        done?;
        ensure!(cases.seen > 0, "the guest's script reported nothing: {status:?}");
        if killed { Ok(None) } else { status.map(Some) }
    }

    /// Takes the device away, as an administrator does.
    fn unplug(&self) -> Result<()> {
        let mut monitor = UnixStream::connect(self.folder.join("qmp")).context("the emulator's monitor")?;
        let mut text = String::new();
        writeln!(text, r#"{{"execute":"qmp_capabilities"}}"#)?;
        writeln!(text, r#"{{"execute":"device_del","arguments":{{"id":"vm"}}}}"#)?;
        monitor.write_all(text.as_bytes())?;
        // It is heard when it has answered: the greeting, and both answers.
        monitor.set_read_timeout(Some(SETTLE))?;
        let mut answers = [0; 4096];
        let _ = std::io::Read::read(&mut monitor, &mut answers);
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    }

    /// As a power cut of the guest.
    fn kill(&self) -> Result<()> {
        let pid: i32 = std::fs::read_to_string(self.folder.join("pid"))?.trim().parse()?;
        kill_process(Pid::from_raw(pid).context("a process id is not zero")?, Signal::KILL)?;
        Ok(())
    }

    /// A target whose guests have gone costs nothing.
    fn idle(&self, pid: u32) {
        self.lab.report.check(&self.part, "no guest costs no processor time", || {
            std::thread::sleep(SETTLE);
            let before = process::processor_time(pid)?;
            std::thread::sleep(IDLE);
            let used = process::processor_time(pid)? - before;
            ensure!(used <= IDLE_MOST, "{used:?} in {IDLE:?}");
            Ok(())
        });
    }
}

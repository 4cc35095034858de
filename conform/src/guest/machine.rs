//! A virtual machine whose NVMe controller is ours, over vfio-user: its own driver, its root on it, and the deaths of
//! either side.

use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{Cases, newer, qemu, sysroot};
use crate::process;
use crate::report::skip;
use crate::target::{Driver, HOST_AS_GUEST_SEES_IT, Lab, Spec, Target};

/// The emulated processor is slow, and slower while something else is built.
const LIMIT: Duration = Duration::from_secs(600);
/// How long it is looked whether a target without work takes processor time, and how much it may.
const IDLE: Duration = Duration::from_secs(2);
const IDLE_MOST: Duration = Duration::from_millis(20);
/// A guest that is killed is gone for its target in a moment.
const SETTLE: Duration = Duration::from_secs(3);
/// The controllers: what their virtual machines are called, and the ports that they are plugged into.
const NAMES: [&str; 2] = ["vm", "other"];

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
    let bench = Bench { lab, part, sysroot, emulator, initramfs, folder };
    lab.report.check(&bench.part.clone(), "guests ran to their end", || bench.guests(driver));
    Ok(())
}

impl Bench<'_> {
    fn guests(&self, driver: Driver) -> Result<()> {
        let volumes = [self.lab.image(&format!("vm-{}.img", driver.name()), 512)?, "ram:64M".to_owned()];
        let sockets = self.folder.join("sockets");
        let sockets = sockets.to_str().context("the scratch folder's name is no text")?;
        let mut spec = Spec::new(driver, volumes)?.flags(&["--vm-folder", sockets]);
        spec = NAMES.iter().fold(spec, |spec, name| spec.flags(&["--vm", name]));
        spec.for_guest = true;
        let mut target = Some(Target::start(self.lab, &spec)?);
        self.scripts(target.as_ref().context("it is ours")?)?;

        let status = self.guest(&NAMES[..1], "vm.sh", "", |_| Ok(()))?;
        ensure!(status == Some(0), "the first guest ended with {status:?}");
        self.idle(target.as_ref().and_then(Target::pid).context("it is ours")?);

        let status = self.guest(&NAMES[..1], "none", " lunar.root=/dev/nvme0n1", |mark| {
            if mark == "kill" {
                // Some writes are under way by then.
                std::thread::sleep(Duration::from_secs(1));
                self.kill()?;
            }
            Ok(())
        })?;
        ensure!(status.is_none(), "the second guest was not killed, but ended with {status:?}");

        let ended = self.guest(&NAMES[..1], "vm-after.sh", "", |mark| {
            if mark == "restart" {
                target.take().context("no target to restart")?.kill()?;
                target = Some(Target::start_after_kill(self.lab, &spec)?);
            }
            Ok(())
        });
        self.survives("the end of its target", "error_setv", ended);

        let status = self.guest(&NAMES, "vm-more.sh", "", |_| Ok(()))?;
        ensure!(status == Some(0), "the guest with two controllers ended with {status:?}");

        let ended = self.guest(&NAMES[..1], "vm-after.sh,unplug", "", |_| Ok(()));
        self.survives("an unplug", "memory_region_del_subregion", ended);
        target.take().context("no target")?.stop()
    }

    /// Emulators up to 11.1 at least fail assertions of their own, in these functions, when they let go of a controller
    /// or their target goes: what they say tells which, and what the guest has said until then counts.
    fn survives(&self, what: &str, function: &str, ended: Result<Option<i32>>) {
        self.lab.report.check(&self.part, &format!("the emulator survives {what}"), || match ended {
            Err(why) if format!("{why:#}").contains(&format!("{function}: Assertion")) => {
                skip(format!("it fails an assertion of its own in {function}"))
            }
            ended => {
                let status = ended?;
                ensure!(status == Some(0), "the guest ended with {status:?}");
                Ok(())
            }
        });
    }

    /// What all guests begin with.
    fn scripts(&self, target: &Target) -> Result<()> {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
        let (port, name) = (target.portal.port(), &target.name);
        let settings = format!("PORTAL={HOST_AS_GUEST_SEES_IT}:{port}\nTARGET={name}\n");
        qemu::initramfs(&self.sysroot, [("test", &*scripts)].into_iter(), &settings, &self.initramfs)
    }

    /// A controller as the emulator's device, of the name of its virtual machine, in the port of the same name.
    fn device(&self, name: &str) -> String {
        let path = self.folder.join("sockets").join(name).join("cntrl");
        let socket = format!(r#"{{"type":"unix","path":"{}"}}"#, path.display());
        format!(r#"{{"driver":"vfio-user-pci","id":"{name}","bus":"port-{name}","socket":{socket}}}"#)
    }

    /// One guest with these controllers; `None` when it was killed.
    fn guest(
        &self,
        controllers: &[&str],
        script: &str,
        kernel: &str,
        mut on_mark: impl FnMut(&str) -> Result<()>,
    ) -> Result<Option<i32>> {
        let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<String>>();
        let mut devices = words(format!("-qmp unix:{},server=on,wait=off", self.folder.join("qmp").display()));
        devices.extend(words(format!("-pidfile {}", self.folder.join("pid").display())));
        for (name, number) in controllers.iter().zip(1..) {
            devices.extend(words(format!("-device pcie-root-port,id=port-{name},bus=pcie.0,chassis={number}")));
            devices.extend(["-device".to_owned(), self.device(name)]);
        }
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
            let outcome = match line.split_once(' ').unwrap_or((line, "")) {
                ("@unplug", name) => self.ask("device_del", &format!(r#"{{"id":"{name}"}}"#)),
                ("@kill", _) => {
                    killed = true;
                    on_mark("kill")
                }
                ("@restart", _) => on_mark("restart"),
                _ => {
                    cases.line(line);
                    Ok(())
                }
            };
            if let Err(why) = outcome {
                done = Err(why);
            }
        });
        done?;
        ensure!(cases.seen > 0, "the guest's script reported nothing: {status:?}");
        if killed { Ok(None) } else { status.map(Some) }
    }

    /// Asks the emulator's monitor, as an administrator does.
    fn ask(&self, command: &str, arguments: &str) -> Result<()> {
        let mut monitor = UnixStream::connect(self.folder.join("qmp")).context("the emulator's monitor")?;
        monitor.set_read_timeout(Some(SETTLE))?;
        let mut answers = BufReader::new(monitor.try_clone()?).lines();
        // Its greeting comes first, then an answer for each command; events in between.
        for (command, arguments) in [("qmp_capabilities", "{}"), (command, arguments)] {
            writeln!(monitor, r#"{{"execute":"{command}","arguments":{arguments}}}"#)?;
            loop {
                let line = answers.next().context("the monitor has closed")?.context("the monitor does not answer")?;
                ensure!(!line.contains(r#""error""#), "{command}: {line}");
                if line.contains(r#""return""#) {
                    break;
                }
            }
        }
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

//! The part `vm`: virtual machines whose NVMe controller is Lunar's, over vfio-user. Among others, a root file system
//! on it, and kills of the virtual machine and of the target.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::migration::{self, Monitor};
use super::{Cases, emulator, qemu, sysroot};
use crate::idle;
use crate::report::skip;
use crate::target::{Driver, HOST_AS_GUEST_SEES_IT, Lab, Spec, Target};

/// The names of the controllers (of the sections `vm` in the configuration), in the order of their PCIe ports.
const CONTROLLERS: [&str; 2] = ["vm", "other"];

/// The target's name over iSCSI.
const TARGET: &str = "iqn.2026-01.io.lunar.conform:vm";

/// The state that all guests of the part share.
struct Runner<'a> {
    lab: &'a Lab,
    part: String,
    sysroot: sysroot::Sysroot,
    emulator: Vec<String>,
    initramfs: PathBuf,
    folder: PathBuf,
}

/// A virtual machine that runs one script.
struct VirtualMachine<'a> {
    /// The prefix of its files.
    name: &'a str,
    /// The names of its controllers.
    controllers: &'a [&'a str],
    script: &'a str,
    /// Further kernel options and arguments of the emulator.
    kernel: &'a str,
    more: &'a str,
}

impl<'a> VirtualMachine<'a> {
    /// A virtual machine with the first controller.
    fn new(script: &'a str) -> Self {
        Self { name: script, controllers: &CONTROLLERS[..1], script, kernel: "", more: "" }
    }
}

/// Runs the part: boots the guests one after the other; only the first unless `everything`.
pub(crate) fn part(lab: &Lab, driver: Driver, everything: bool) -> Result<()> {
    let part = format!("vm/{}", driver.name());
    lab.built()?;
    let Some(sysroot) = super::packages(lab, &part) else { return Ok(()) };
    let mut found = None;
    lab.report.check(&part, "an emulator with vfio-user is available", || {
        found = Some(emulator::emulator(&lab.report)?);
        Ok(())
    });
    let Some(emulator) = found else { return Ok(()) };
    let folder = lab.scratch.join(format!("vm-{}", driver.name()));
    std::fs::create_dir_all(&folder)?;
    let initramfs = folder.join("initramfs.cpio");
    let runner = Runner { lab, part, sysroot, emulator, initramfs, folder };
    lab.report.check(&runner.part.clone(), "guests ran to their end", || runner.guests(driver, everything));
    Ok(())
}

impl Runner<'_> {
    fn guests(&self, driver: Driver, everything: bool) -> Result<()> {
        let mut spec = Spec::new(driver, Vec::<String>::new())?;
        spec.daemon = Some(self.configure(&spec, "512M")?);
        let mut target = Some(Target::start_daemon(self.lab, &spec, Target::start)?);
        self.scripts(target.as_ref().context("the target was started here")?, everything)?;

        let status = self.guest(&VirtualMachine::new("vm.sh"), |mark| {
            if mark == "grow" {
                self.configure(&spec, "640M")?;
                target.as_ref().context("it runs")?.signal(Signal::HUP)?;
            }
            Ok(())
        })?;
        ensure!(status == Some(0), "the first guest ended with {status:?}");
        self.idle(target.as_ref().and_then(Target::pid).context("the target was started here")?);
        if !everything {
            // The other guests test kills and reconnections, which do not depend on the driver.
            return target.take().context("it runs")?.stop();
        }

        let machine = VirtualMachine { kernel: " lunar.root=/dev/nvme0n1", ..VirtualMachine::new("none") };
        let status = self.guest(&machine, |mark| {
            if mark == "kill" {
                // By then some writes are outstanding.
                std::thread::sleep(Duration::from_secs(1));
                self.kill(&machine)?;
            }
            Ok(())
        })?;
        ensure!(status.is_none(), "the second guest was not killed, but ended with {status:?}");

        let ended = self.guest(&VirtualMachine::new("vm-after-kill.sh"), |mark| {
            if mark == "restart" {
                target.take().context("no target to restart")?.kill()?;
                target = Some(Target::start_daemon(self.lab, &spec, Target::start_after_kill)?);
            }
            Ok(())
        });
        self.check_emulator_survives("a kill of its target", "error_setv", ended);

        let machine = VirtualMachine { controllers: &CONTROLLERS, ..VirtualMachine::new("vm-two-controllers.sh") };
        let status = self.guest(&machine, |_| Ok(()))?;
        ensure!(status == Some(0), "the guest with two controllers ended with {status:?}");

        let ended = self.guest(&VirtualMachine::new("vm-after-kill.sh,unplug"), |_| Ok(()));
        self.check_emulator_survives("an unplug", "memory_region_del_subregion", ended);

        target = Some(self.migrate(&spec, target.take().context("no target")?)?);
        target.take().context("no target")?.stop()
    }

    /// Writes the daemon's configuration: a volume of this size in a file and one in memory, over iSCSI and for the
    /// virtual machines.
    fn configure(&self, spec: &Spec, size: &str) -> Result<PathBuf> {
        let (folder, portal) = (self.folder.display(), spec.portal());
        let mut text = format!(
            "[server]\ncores = 2\nmemory = \"32M\"\ndriver = \"{}\"\nstate = \"{folder}/state\"\n\
             [volume.disk]\nkind = \"file\"\npath = \"{folder}/disk.img\"\nsize = \"{size}\"\n\
             [volume.memory]\nkind = \"ram\"\nsize = \"64M\"\n[portal-group.p]\ntag = 1\n\
             [portal.one]\naddress = \"{portal}\"\nadvertise = \"{HOST_AS_GUEST_SEES_IT}:{}\"\ngroup = \"p\"\n\
             [target.main]\niqn = \"{TARGET}\"\nnqn = \"{}\"\nportal-groups = [\"p\"]\n\
             [group.all]\ntargets = [\"main\"]\ninitiators = [\"*\"]\nluns = {{ 0 = \"disk\", 1 = \"memory\" }}\n",
            spec.driver.name().replace('_', "-"),
            portal.port(),
            TARGET.replacen("iqn.", "nqn.", 1),
        );
        for name in CONTROLLERS {
            let socket = self.socket(name);
            writeln!(text, "[vm.{name}]\ntarget = \"main\"\nportal-group = \"p\"\nsocket = \"{}\"", socket.display())?;
        }
        let file = self.folder.join("lunar.toml");
        std::fs::write(&file, text)?;
        Ok(file)
    }

    /// The socket of a controller.
    fn socket(&self, name: &str) -> PathBuf {
        self.folder.join("sockets").join(name).join("cntrl")
    }

    /// Migrates a running guest to another emulator, and its volumes to another target. The guest's kernel removes the
    /// controller before, because QEMU up to 11.1 cannot migrate a vfio-user device.
    fn migrate(&self, spec: &Spec, target: Target) -> Result<Target> {
        let incoming = format!("unix:{}", self.folder.join("incoming").display());
        let kernel = " lunar.bare=vm-migrate.sh";
        let from = VirtualMachine { name: "from", kernel, ..VirtualMachine::new("none") };
        let more = format!("-incoming {incoming}");
        let to = VirtualMachine {
            name: "to",
            controllers: &CONTROLLERS[1..],
            kernel,
            more: &more,
            ..VirtualMachine::new("none")
        };
        let first = |ready: &mpsc::Sender<()>| {
            let on_mark = |mark: &str| if mark == "move" { Ok(ready.send(())?) } else { Ok(()) };
            // It is ended by "quit" and has no exit status.
            let _ = self.guest(&from, on_mark);
        };
        let between = || {
            target.stop()?;
            Target::start_daemon(self.lab, spec, Target::start)
        };
        let monitors = [&self.monitor(&from), &self.monitor(&to)];
        migration::migrate(monitors, (&incoming, qemu::LIMIT), first, between, || self.guest(&to, |_| Ok(())))
    }

    /// Adds a case that the emulator survives `what`. QEMU up to 11.1 fails an assertion in `function` when the
    /// controller is removed or its target ends: then the case is skipped, and the guest's cases until then count.
    fn check_emulator_survives(&self, what: &str, function: &str, ended: Result<Option<i32>>) {
        self.lab.report.check(&self.part, &format!("the emulator survives {what}"), || match ended {
            Err(why) if format!("{why:#}").contains(&format!("{function}: Assertion")) => {
                skip(format!("QEMU fails an assertion in {function}"))
            }
            ended => {
                let status = ended?;
                ensure!(status == Some(0), "the guest ended with {status:?}");
                Ok(())
            }
        });
    }

    /// Makes the initramfs that all guests boot from.
    fn scripts(&self, target: &Target, everything: bool) -> Result<()> {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
        let (port, name) = (target.portal.port(), &target.name);
        let more = if everything { super::EVERYTHING } else { "" };
        let settings = format!("PORTAL={HOST_AS_GUEST_SEES_IT}:{port}\nTARGET={name}\n{more}");
        qemu::initramfs(&self.sysroot, [("test", &*scripts)].into_iter(), &settings, &self.initramfs)
    }

    /// The emulator's argument for a controller in the PCIe port of this number.
    fn device(&self, name: &str, port: u8) -> String {
        let socket = format!(r#"{{"type":"unix","path":"{}"}}"#, self.socket(name).display());
        format!(r#"{{"driver":"vfio-user-pci","id":"{name}","bus":"port{port}","socket":{socket}}}"#)
    }

    /// The path of a virtual machine's file.
    fn file(&self, machine: &VirtualMachine<'_>, what: &str) -> PathBuf {
        self.folder.join(format!("{}-{what}", machine.name.replace([',', '.'], "-")))
    }

    /// Runs one guest; returns its exit status, or `None` if it was killed.
    fn guest(&self, machine: &VirtualMachine<'_>, mut on_mark: impl FnMut(&str) -> Result<()>) -> Result<Option<i32>> {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<String>>();
        let mut devices = words(&format!("-qmp {}", self.monitor(machine).argument()));
        devices.extend(words(&format!("-pidfile {}", self.file(machine, "pid").display())));
        for (name, port) in machine.controllers.iter().zip(1..) {
            devices.extend(words(&format!("-device pcie-root-port,id=port{port},bus=pcie.0,chassis={port}")));
            devices.extend(["-device".to_owned(), self.device(name, port)]);
        }
        if !machine.more.is_empty() {
            devices.extend(words(machine.more));
        }
        let (emulator, kernel) = (self.emulator.clone(), machine.kernel.to_owned());
        let hardware = qemu::Hardware { emulator, devices, shares_memory: true, kernel };
        let mut log = std::fs::File::create(self.file(machine, "log"))?;
        let mut cases = Cases::new(self.lab, &self.part);
        let mut done = Ok(());
        let mut killed = false;
        let status = qemu::boot(&self.sysroot, &self.initramfs, machine.script, &hardware, |line| {
            // A log that cannot be written is no reason to fail the case.
            let _ = writeln!(log, "{line}");
            let outcome = match line.split_once(' ').unwrap_or((line, "")) {
                ("@unplug", name) => {
                    self.monitor(machine).run("device_del", &format!(r#"{{"id":"{name}"}}"#)).map(drop)
                }
                ("@kill", _) => {
                    killed = true;
                    on_mark("kill")
                }
                ("@restart", _) => on_mark("restart"),
                ("@move", _) => on_mark("move"),
                ("@grow", _) => on_mark("grow"),
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
        ensure!(cases.count > 0, "the guest's script reported nothing: {status:?}");
        if killed { Ok(None) } else { status.map(Some) }
    }

    fn monitor(&self, machine: &VirtualMachine<'_>) -> Monitor {
        Monitor { socket: self.file(machine, "qmp") }
    }

    /// Kills the emulator, which is a power cut for the guest.
    fn kill(&self, machine: &VirtualMachine<'_>) -> Result<()> {
        let pid: i32 = std::fs::read_to_string(self.file(machine, "pid"))?.trim().parse()?;
        kill_process(Pid::from_raw(pid).context("the process ID is not zero")?, Signal::KILL)?;
        Ok(())
    }

    /// Adds a case that a target without guests uses no processor time.
    fn idle(&self, pid: u32) {
        let name = "a target without guests uses no processor time";
        self.lab.report.check(&self.part, name, || idle::rests(pid));
    }
}

//! A virtual machine whose NVMe controller is ours, over vfio-user: its own driver, its root on it, and the deaths of
//! either side.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{Cases, newer, qemu, sysroot};
use crate::process;
use crate::report::skip;
use crate::target::{Driver, HOST_AS_GUEST_SEES_IT, Lab, Spec, Target, log_path};

/// The emulated processor is slow, and slower while something else is built.
const LIMIT: Duration = Duration::from_secs(1200);
/// How long it is looked whether a target without work takes processor time, and how much it may.
const IDLE: Duration = Duration::from_secs(2);
const IDLE_MOST: Duration = Duration::from_millis(20);
/// A guest that is killed is gone for its target in a moment.
const SETTLE: Duration = Duration::from_secs(3);
/// The controllers: what their virtual machines are called, and the ports that they are plugged into.
const NAMES: [&str; 2] = ["vm", "other"];

/// What an initiator finds.
const TARGET: &str = "iqn.2026-01.io.lunar.conform:vm";

/// What all guests of this part share.
struct Bench<'a> {
    lab: &'a Lab,
    part: String,
    sysroot: sysroot::Sysroot,
    emulator: Vec<String>,
    initramfs: PathBuf,
    folder: PathBuf,
}

/// A machine that runs one script.
struct Machine<'a> {
    /// What its files are called.
    name: &'a str,
    /// What its controllers are called.
    controllers: &'a [&'a str],
    script: &'a str,
    /// More for the kernel's command line, and for the emulator's.
    kernel: &'a str,
    more: &'a str,
}

impl<'a> Machine<'a> {
    /// One with the first controller.
    fn new(script: &'a str) -> Self {
        Self { name: script, controllers: &NAMES[..1], script, kernel: "", more: "" }
    }
}

/// Boots the guests, one after the other; only the first if not `whole`.
pub(crate) fn part(lab: &Lab, driver: Driver, whole: bool) -> Result<()> {
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
    lab.report.check(&bench.part.clone(), "guests ran to their end", || bench.guests(driver, whole));
    Ok(())
}

impl Bench<'_> {
    fn guests(&self, driver: Driver, whole: bool) -> Result<()> {
        let mut spec = Spec::new(driver, Vec::<String>::new())?;
        spec.daemon = Some(self.configure(&spec, "512M")?);
        let mut target = Some(self.start(&spec, Target::start)?);
        self.scripts(target.as_ref().context("it is ours")?, whole)?;

        let status = self.guest(&Machine::new("vm.sh"), |mark| {
            if mark == "grow" {
                self.configure(&spec, "640M")?;
                target.as_ref().context("it runs")?.signal(Signal::HUP)?;
            }
            Ok(())
        })?;
        ensure!(status == Some(0), "the first guest ended with {status:?}");
        self.idle(target.as_ref().and_then(Target::pid).context("it is ours")?);
        if !whole {
            // What the others do is the same to a driver: they are about the deaths of either side.
            return target.take().context("it runs")?.stop();
        }

        let machine = Machine { kernel: " lunar.root=/dev/nvme0n1", ..Machine::new("none") };
        let status = self.guest(&machine, |mark| {
            if mark == "kill" {
                // Some writes are under way by then.
                std::thread::sleep(Duration::from_secs(1));
                self.kill(&machine)?;
            }
            Ok(())
        })?;
        ensure!(status.is_none(), "the second guest was not killed, but ended with {status:?}");

        let ended = self.guest(&Machine::new("vm-after.sh"), |mark| {
            if mark == "restart" {
                target.take().context("no target to restart")?.kill()?;
                target = Some(self.start(&spec, Target::start_after_kill)?);
            }
            Ok(())
        });
        self.survives("the end of its target", "error_setv", ended);

        let status = self.guest(&Machine { controllers: &NAMES, ..Machine::new("vm-more.sh") }, |_| Ok(()))?;
        ensure!(status == Some(0), "the guest with two controllers ended with {status:?}");

        let ended = self.guest(&Machine::new("vm-after.sh,unplug"), |_| Ok(()));
        self.survives("an unplug", "memory_region_del_subregion", ended);

        target = Some(self.moves(&spec, target.take().context("no target")?)?);
        target.take().context("no target")?.stop()
    }

    /// Writes what the service goes by: a volume of this size in a file and one in memory, over iSCSI and for the
    /// machines.
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
        for name in NAMES {
            let socket = self.socket(name);
            writeln!(text, "[vm.{name}]\ntarget = \"main\"\nportal-group = \"p\"\nsocket = \"{}\"", socket.display())?;
        }
        let file = self.folder.join("lunar.toml");
        std::fs::write(&file, text)?;
        Ok(file)
    }

    /// Starts the service, and waits until the machines' controllers are there.
    fn start(&self, spec: &Spec, start: fn(&Lab, &Spec) -> Result<Target>) -> Result<Target> {
        let said = || std::fs::read_to_string(log_path(self.lab, spec.portal())).unwrap_or_default();
        let before = said().len();
        let target = start(self.lab, spec)?;
        let end = Instant::now() + LIMIT;
        while !said().get(before..).is_some_and(|said| said.contains("lunar serves")) {
            ensure!(Instant::now() < end, "it does not say that it serves: {}", said());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(target)
    }

    /// The socket of a controller.
    fn socket(&self, name: &str) -> PathBuf {
        self.folder.join("sockets").join(name).join("cntrl")
    }

    /// A guest moves to another emulator while it runs, and its volumes to another target: the kernel lets go of its
    /// controller before, for emulators up to 11.1 at least do not take one along.
    fn moves(&self, spec: &Spec, target: Target) -> Result<Target> {
        let incoming = format!("unix:{}", self.folder.join("incoming").display());
        let kernel = " lunar.bare=vm-moves.sh";
        let from = Machine { name: "from", kernel, ..Machine::new("none") };
        let more = format!("-incoming {incoming}");
        let to = Machine { name: "to", controllers: &NAMES[1..], kernel, more: &more, ..Machine::new("none") };
        let (said, ready) = mpsc::channel();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                // It ends when it is asked to, without a status.
                let _ = self.guest(&from, |mark| if mark == "move" { Ok(said.send(())?) } else { Ok(()) });
                drop(said);
            });
            let moved = (|| {
                ready.recv_timeout(LIMIT).context("the guest does not let go of its controller")?;
                target.stop()?;
                let target = self.start(spec, Target::start)?;
                let second = scope.spawn(|| self.guest(&to, |_| Ok(())));
                self.listens(&to)?;
                self.ask(&from, "migrate", &format!(r#"{{"uri":"{incoming}"}}"#))?;
                let end = Instant::now() + LIMIT;
                while !self.ask(&from, "query-migrate", "{}")?.contains(r#""completed""#) {
                    ensure!(Instant::now() < end, "it does not come to an end");
                    std::thread::sleep(Duration::from_millis(200));
                }
                // That is how the guest sees it.
                self.ask(&to, "set_link", r#"{"name":"net","up":false}"#)?;
                let status = second.join().map_err(|_| anyhow!("it panicked"))??;
                ensure!(status == Some(0), "the guest that moved ended with {status:?}");
                Ok(target)
            })();
            // Whatever came of it, nobody waits for them for ever.
            let _ = self.ask(&from, "quit", "{}");
            if moved.is_err() {
                let _ = self.ask(&to, "quit", "{}");
            }
            let _ = first.join();
            moved
        })
    }

    /// Waits until an emulator listens to its monitor: it takes its guest's state from then on.
    fn listens(&self, machine: &Machine<'_>) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while self.ask(machine, "query-status", "{}").is_err() {
            ensure!(Instant::now() < end, "the emulator {} does not start", machine.name);
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
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
    fn scripts(&self, target: &Target, whole: bool) -> Result<()> {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
        let (port, name) = (target.portal.port(), &target.name);
        let more = if whole { super::WHOLE } else { "" };
        let settings = format!("PORTAL={HOST_AS_GUEST_SEES_IT}:{port}\nTARGET={name}\n{more}");
        qemu::initramfs(&self.sysroot, [("test", &*scripts)].into_iter(), &settings, &self.initramfs)
    }

    /// A controller as the emulator's device, of the name of its virtual machine, in the port of this number.
    fn device(&self, name: &str, port: u8) -> String {
        let socket = format!(r#"{{"type":"unix","path":"{}"}}"#, self.socket(name).display());
        format!(r#"{{"driver":"vfio-user-pci","id":"{name}","bus":"port{port}","socket":{socket}}}"#)
    }

    /// A file of a machine.
    fn file(&self, machine: &Machine<'_>, what: &str) -> PathBuf {
        self.folder.join(format!("{}-{what}", machine.name.replace([',', '.'], "-")))
    }

    /// One guest; `None` when it was killed.
    fn guest(&self, machine: &Machine<'_>, mut on_mark: impl FnMut(&str) -> Result<()>) -> Result<Option<i32>> {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<String>>();
        let mut devices = words(&format!("-qmp unix:{},server=on,wait=off", self.file(machine, "qmp").display()));
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
        let status = qemu::boot(&self.sysroot, &self.initramfs, machine.script, LIMIT, &hardware, |line| {
            // A log that cannot be written costs the log, not the test.
            let _ = writeln!(log, "{line}");
            let outcome = match line.split_once(' ').unwrap_or((line, "")) {
                ("@unplug", name) => self.ask(machine, "device_del", &format!(r#"{{"id":"{name}"}}"#)).map(drop),
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
        ensure!(cases.seen > 0, "the guest's script reported nothing: {status:?}");
        if killed { Ok(None) } else { status.map(Some) }
    }

    /// Asks an emulator's monitor, as an administrator does; gives its answer.
    fn ask(&self, machine: &Machine<'_>, command: &str, arguments: &str) -> Result<String> {
        let mut monitor = UnixStream::connect(self.file(machine, "qmp")).context("the emulator's monitor")?;
        monitor.set_read_timeout(Some(SETTLE))?;
        let mut answers = BufReader::new(monitor.try_clone()?).lines();
        // Its greeting comes first, then an answer for each command; events in between.
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

    /// As a power cut of the guest.
    fn kill(&self, machine: &Machine<'_>) -> Result<()> {
        let pid: i32 = std::fs::read_to_string(self.file(machine, "pid"))?.trim().parse()?;
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

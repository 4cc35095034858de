//! The part `vhost`: virtual machines whose disk or SCSI host adapter is Lunar's, over vhost-user, in the QEMU of this
//! machine and in a newer one.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::migration::{self, Monitor};
use super::{Cases, emulator, qemu, sysroot, system};
use crate::target::{Driver, Lab, Spec, Target};
use crate::{idle, process};

/// Time in which a configuration is applied, beside guests that are emulated.
const APPLY_LIMIT: Duration = Duration::from_secs(120);
/// Time in which an emulator says its version.
const QUERY_LIMIT: Duration = Duration::from_secs(10);
/// How often the target is killed under a load of each guest.
const KILLS: u32 = 2;
const KILLS_LONG: u32 = 50;
/// The name of the virtual machine.
const NAME: &str = "guest";
/// The option with which QEMU before 9.2 connects again.
const OLD_RECONNECT: &str = ",reconnect=1";
/// The LUN map, and that with one more volume.
const LUNS: &str = r#"0 = "disk", 1 = "memory""#;
const LUNS_LATER: &str = r#"0 = "disk", 1 = "memory", 2 = "late""#;

/// A virtual machine.
struct Machine<'a> {
    /// Its name, for its files and cases.
    name: &'a str,
    emulator: &'a [String],
    /// The word for its kind.
    kind: &'a str,
    /// Properties of its device.
    device: &'a str,
    /// The end of the socket that Lunar has.
    role: Role,
    settings: String,
}

/// The end of a socket that Lunar has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// The emulator connects.
    Server,
    /// The emulator listens.
    Client,
}

struct Runner<'a> {
    lab: &'a Lab,
    part: String,
    sysroot: sysroot::Sysroot,
    folder: PathBuf,
}

/// Runs the part; with `everything` with packed rings and a migration, too, and in a long run with systems that boot
/// from the volume, and in an older QEMU.
pub(crate) fn part(lab: &Lab, driver: Driver, everything: bool) -> Result<()> {
    let part = format!("vhost/{}", driver.name());
    lab.built()?;
    let Some(sysroot) = super::packages(lab, &part) else { return Ok(()) };
    let folder = lab.scratch.join(format!("vhost-{}", driver.name()));
    std::fs::create_dir_all(&folder)?;
    let runner = Runner { lab, part, sysroot, folder };
    lab.report.check(&runner.part.clone(), "guests ran to their end", || runner.guests(driver, everything));
    Ok(())
}

impl Runner<'_> {
    fn guests(&self, driver: Driver, everything: bool) -> Result<()> {
        let kills = if self.lab.long { KILLS_LONG } else { KILLS };
        let newest = emulator::newest_or_own(&self.lab.report);
        let split = Machine {
            name: "split",
            emulator: &newest,
            kind: "blk",
            device: "num-queues=2,config-wce=on",
            role: Role::Server,
            settings: format!("RESTARTS={kills}\n"),
        };
        let settings = || split.settings.clone();
        let scsi = Machine { name: "scsi", kind: "scsi", device: "num_queues=2", settings: settings(), ..split };
        let packed = Machine {
            name: "packed",
            device: "num-queues=2,config-wce=on,packed=on",
            // Bit 34.
            settings: format!("RESTARTS={kills}\nFEATURES='^.{{34}}1'\n"),
            ..split
        };
        for machine in [Some(&split), Some(&scsi), everything.then_some(&packed)].into_iter().flatten() {
            if self.wants(machine.name) {
                self.guest(driver, machine)?;
            }
        }
        if everything && self.wants("migrate") {
            self.migrate(driver, &newest)?;
        }
        if everything && self.lab.long {
            let (settings, device) = (String::new(), "num-queues=2,bootindex=0");
            let disk = Machine { name: "system-blk", device, settings, ..split };
            let (settings, device) = (String::new(), "num_queues=2,bootindex=0");
            let adapter = Machine { name: "system-scsi", device, settings, ..scsi };
            for (machine, path) in [(&disk, "/dev/vda"), (&adapter, "/dev/sda")] {
                if self.wants(machine.name) {
                    self.system(driver, machine, path)?;
                }
            }
            let own = emulator::own();
            let disk = Machine { name: "own", emulator: &own, settings: String::new(), ..split };
            let adapter = Machine { name: "own-scsi", emulator: &own, settings: String::new(), ..scsi };
            let (role, settings) = (Role::Client, split.settings.clone());
            let disk_of_client = Machine { name: "client", role, settings: settings.clone(), ..split };
            let adapter_of_client = Machine { name: "client-scsi", role, settings, ..scsi };
            for machine in
                [disk, adapter, disk_of_client, adapter_of_client].iter().filter(|machine| self.wants(machine.name))
            {
                self.guest(driver, machine)?;
            }
        }
        Ok(())
    }

    /// Whether a run that is limited to some guests has this one.
    fn wants(&self, name: &str) -> bool {
        self.lab.only.as_ref().is_none_or(|only| name.contains(only))
    }

    /// Migrates a running guest, which reads its disk all the time, to another emulator and another target.
    fn migrate(&self, driver: Driver, emulator: &[String]) -> Result<()> {
        let image = self.lab.image(&format!("vhost-migrate-{}.img", driver.name()), 256)?;
        let start = |name: &str| {
            let folder = self.folder.join(name).display().to_string();
            let flags = ["--shared", "--vhost-blk", NAME, "--vhost-folder", &folder];
            Target::start(self.lab, &Spec::new(driver, [image.clone()])?.flags(&flags))
        };
        let (first, second) = (start("from")?, start("to")?);
        let initramfs = self.folder.join("migrate.cpio");
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
        qemu::initramfs(&self.sysroot, [("test", &*scripts)].into_iter(), "", &initramfs)?;
        let incoming = format!("unix:{}", self.folder.join("incoming").display());
        let more = ["-incoming", &incoming];
        migration::migrate(
            [&self.monitor("from"), &self.monitor("to")],
            (&incoming, qemu::LIMIT),
            |ready| _ = self.boot("from", emulator, &initramfs, &[], || _ = ready.send(())),
            || Ok(()),
            || self.boot("to", emulator, &initramfs, &more, || ()).map(Some),
        )?;
        first.stop()?;
        second.stop()
    }

    /// Boots a guest that migrates; calls `on_move` when it may be migrated.
    fn boot(
        &self,
        name: &str,
        emulator: &[String],
        initramfs: &Path,
        more: &[&str],
        mut on_move: impl FnMut(),
    ) -> Result<i32> {
        let socket = self.folder.join(name).join(format!("{NAME}.sock"));
        let chardev = format!("socket,id=disk,path={}", socket.display());
        let monitor = self.monitor(name).argument();
        let device = "vhost-user-blk-pci,chardev=disk,num-queues=1";
        let mut devices = ["-chardev", &chardev, "-device", device, "-qmp", &monitor].map(str::to_owned).to_vec();
        devices.extend(more.iter().map(|word| (*word).to_owned()));
        let kernel = " lunar.bare=vhost-migrate.sh".to_owned();
        let hardware = qemu::Hardware { emulator: emulator.to_vec(), devices, shares_memory: true, kernel };
        let mut log = std::fs::File::create(self.folder.join(format!("migrate-{name}.log")))?;
        let part = format!("{}/migrate", self.part);
        let mut cases = Cases::new(self.lab, &part);
        // Each emulator writes the status of its guest next to its own initramfs.
        let own = initramfs.with_file_name(format!("migrate-{name}.cpio"));
        std::fs::copy(initramfs, &own)?;
        qemu::boot(&self.sysroot, &own, "none", &hardware, |line| {
            // A log that cannot be written is no reason to fail the case.
            let _ = writeln!(log, "{line}");
            match line.starts_with("@move") {
                true => on_move(),
                false => cases.line(line),
            }
        })
    }

    fn monitor(&self, name: &str) -> Monitor {
        Monitor { socket: self.folder.join(format!("{name}.qmp")) }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("disk.sock")
    }

    /// Writes the daemon's configuration for the device of a machine: a volume of this size in a file, two in memory,
    /// and this LUN map.
    fn configure(&self, spec: &Spec, machine: &Machine<'_>, (size, luns): (&str, &str)) -> Result<PathBuf> {
        let (folder, portal, socket) = (self.folder.display(), spec.portal(), self.socket());
        let mut text = format!(
            "[server]\ncores = 2\nmemory = \"32M\"\ndriver = \"{}\"\nstate = \"{folder}/state\"\n\
             [volume.disk]\nkind = \"file\"\npath = \"{folder}/disk.img\"\nsize = \"{size}\"\n\
             [volume.memory]\nkind = \"ram\"\nsize = \"64M\"\n[volume.late]\nkind = \"ram\"\nsize = \"32M\"\n\
             [portal-group.p]\ntag = 1\n[portal.one]\naddress = \"{portal}\"\ngroup = \"p\"\n\
             [target.main]\niqn = \"iqn.2026-01.io.lunar.conform:vhost\"\nportal-groups = [\"p\"]\n\
             [group.all]\ntargets = [\"main\"]\ninitiators = [\"*\"]\nluns = {{ {luns} }}\n",
            spec.driver.name().replace('_', "-"),
        );
        let role = if machine.role == Role::Client { "client" } else { "server" };
        writeln!(text, "[vhost.{NAME}]\ndevice = \"{}\"\nrole = \"{role}\"", machine.kind)?;
        writeln!(text, "target = \"main\"\nportal-group = \"p\"\nsocket = \"{}\"", socket.display())?;
        let file = self.folder.join("lunar.toml");
        std::fs::write(&file, text)?;
        Ok(file)
    }

    /// The hardware of a virtual machine.
    fn hardware(&self, machine: &Machine<'_>, kernel: String) -> Result<qemu::Hardware> {
        let device = format!("vhost-user-{}-pci,chardev=disk,{}", machine.kind, machine.device);
        let end = match (machine.role, reconnect(machine.emulator)?) {
            (Role::Client, _) => ",server=on,wait=off",
            // Old versions do not start a SCSI host adapter that connects again.
            (Role::Server, OLD_RECONNECT) if machine.kind == "scsi" => "",
            (Role::Server, reconnect) => reconnect,
        };
        let chardev = format!("socket,id=disk,path={}{end}", self.socket().display());
        let devices = ["-chardev", &chardev, "-device", &device].map(str::to_owned).to_vec();
        Ok(qemu::Hardware { emulator: machine.emulator.to_vec(), devices, shares_memory: true, kernel })
    }

    /// Boots a system from the volume: twice, with a kill of the target between.
    fn system(&self, driver: Driver, machine: &Machine<'_>, disk: &str) -> Result<()> {
        let _ = std::fs::remove_dir_all(self.folder.join("state"));
        let sysroot = sysroot::ensure_of_system(&self.lab.report)?;
        system::make(&sysroot, &self.folder.join("disk.img"), disk, "vhost-system.sh")?;
        let mut spec = Spec::new(driver, Vec::<String>::new())?;
        let size = format!("{}M", system::SIZE >> 20);
        spec.daemon = Some(self.configure(&spec, machine, (&size, LUNS))?);
        let mut target = Some(Target::start_daemon(self.lab, &spec, Target::start)?);
        let hardware = self.hardware(machine, String::new())?;
        for boot in ["first", "second"] {
            let mut log = std::fs::File::create(self.folder.join(format!("{}-{boot}.log", machine.name)))?;
            let part = format!("{}/{}", self.part, machine.name);
            let (mut cases, mut is_complete) = (Cases::new(self.lab, &part), false);
            let status_file = self.folder.join(format!("{}.status", machine.name));
            let status = qemu::boot_disk(&status_file, &hardware, |line| {
                // A log that cannot be written is no reason to fail the case.
                let _ = writeln!(log, "{line}");
                cases.line(line);
                is_complete |= line == format!("@ok the {boot} boot is complete");
            });
            ensure!(status? == 0, "the {boot} boot of {} reported failures", machine.name);
            ensure!(is_complete, "this was not the {boot} boot of {}", machine.name);
            if boot == "first" {
                self.restart(&spec, &mut target)?;
            }
        }
        target.context("the target was started here")?.stop()
    }

    /// Boots a guest against a fresh target.
    fn guest(&self, driver: Driver, machine: &Machine<'_>) -> Result<()> {
        let _ = std::fs::remove_file(self.folder.join("disk.img"));
        let _ = std::fs::remove_dir_all(self.folder.join("state"));
        let mut spec = Spec::new(driver, Vec::<String>::new())?;
        spec.daemon = Some(self.configure(&spec, machine, ("512M", LUNS))?);
        let mut target = Some(Target::start_daemon(self.lab, &spec, Target::start)?);
        let initramfs = self.folder.join("initramfs.cpio");
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
        qemu::initramfs(&self.sysroot, [("test", &*scripts)].into_iter(), &machine.settings, &initramfs)?;
        let hardware = self.hardware(machine, String::new())?;
        let mut log = std::fs::File::create(self.folder.join(format!("{}.log", machine.name)))?;
        let part = format!("{}/{}", self.part, machine.name);
        let mut cases = Cases::new(self.lab, &part);
        let mut done = Ok(());
        let script = format!("vhost-{}.sh", machine.kind);
        let change = |target: Option<&Target>, volumes| {
            self.configure(&spec, machine, volumes)?;
            target.context("it runs")?.signal(Signal::HUP)
        };
        let status = qemu::boot(&self.sysroot, &initramfs, &script, &hardware, |line| {
            // A log that cannot be written is no reason to fail the case.
            let _ = writeln!(log, "{line}");
            let outcome = match line.split_once(' ').unwrap_or((line, "")) {
                ("@grow", _) => change(target.as_ref(), ("640M", LUNS)),
                // The guest uses the volume: a mere edit of the file would be refused.
                ("@unmap", _) => self.configure(&spec, machine, ("640M", LUNS)).and_then(|_| self.apply()),
                ("@map", _) => change(target.as_ref(), ("640M", LUNS_LATER)),
                ("@idle", _) => target.as_ref().and_then(Target::pid).context("it runs").map(|pid| {
                    self.idle(&part, "a target with an idle guest uses no processor time", pid);
                }),
                ("@restart", _) => self.restart(&spec, &mut target),
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
        ensure!(status? == 0, "the guest {} reported failures", machine.name);
        let target = target.context("the target was started here")?;
        let pid = target.pid().context("it runs")?;
        self.idle(&part, "a target without guests uses no processor time", pid);
        target.stop()
    }

    /// Puts the edited configuration in force, whatever its effect on clients.
    fn apply(&self) -> Result<()> {
        let mut command = process::bound(self.lab.built()?);
        command.args(["apply", "--force", "--socket"]).arg(self.lab.scratch.join("run/api.sock"));
        process::run(&mut command, APPLY_LIMIT)?.succeeded().map(drop)
    }

    fn restart(&self, spec: &Spec, target: &mut Option<Target>) -> Result<()> {
        target.take().context("no target to restart")?.kill()?;
        *target = Some(Target::start_daemon(self.lab, spec, Target::start_after_kill)?);
        Ok(())
    }

    /// Adds a case that a target uses no processor time now.
    fn idle(&self, part: &str, name: &str, pid: u32) {
        self.lab.report.check(part, name, || idle::rests(pid));
    }
}

/// The option with which this emulator connects again: milliseconds since QEMU 9.2, and seconds no more since 10.
fn reconnect(emulator: &[String]) -> Result<&'static str> {
    let (program, words) = emulator.split_first().context("the emulator's command line is empty")?;
    let mut query = process::bound(program);
    let output = process::run(query.args(words).arg("--version"), QUERY_LIMIT)?;
    let major = output.text.split("version ").nth(1).and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    let major = major.with_context(|| format!("the version of the emulator: {}", output.text))?;
    Ok(if major >= 10 { ",reconnect-ms=1000" } else { OLD_RECONNECT })
}

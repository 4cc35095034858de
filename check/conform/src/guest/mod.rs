//! Parts that boot the kernel of a Linux distribution in QEMU as initiator or host.
//!
//! A guest runs one of the scripts in `guest/`, which prints one line for each case.

mod aoe;
mod attach;
pub(crate) mod authentication;
mod blktests;
mod cpio;
mod device;
mod emulator;
mod fcoe;
mod figures;
mod figures_vhost;
mod iser;
mod kernel;
mod lan;
mod migration;
mod modules;
mod namespace;
mod nvme_rdma;
mod paths;
mod qemu;
mod rdma;
mod service;
mod srp;
mod sysroot;
mod system;
mod tape;
mod ublk;
mod verbs;
mod vhost;
mod vm;
mod zfs;

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::chap;
use crate::report::{Figure, Outcome};
use crate::target::{Driver, HOST_AS_GUEST_SEES_IT, Lab, Program, Spec, Subject, Target, free_port};
use crate::tools;

/// Kernel options for a guest that runs systemd. Its only target is the script's unit; services that would look at
/// disks or configure the network are masked.
const SERVICE_OPTIONS: &str = " lunar.service systemd.unit=lunar-test.service systemd.show_status=false \
    systemd.firstboot=no net.ifnames=0 systemd.mask=multipathd.service systemd.mask=multipathd.socket \
    systemd.mask=systemd-networkd.service systemd.mask=systemd-networkd.socket \
    systemd.mask=systemd-network-generator.service";
/// The setting with which a script runs all cases; without it, a script runs those that depend on the driver.
const EVERYTHING: &str = "FULL=yes\n";
/// The host's address ::1 as QEMU's user network shows it to a guest.
const HOST_AS_GUEST_SEES_IT_IN_IPV6: &str = "[fec0::2]";

pub(crate) use aoe::part as aoe;
pub(crate) use attach::part as attach;
pub(crate) use authentication::part as authentication;
pub(crate) use blktests::part as blktests;
pub(crate) use device::part as device;
pub(crate) use fcoe::{fabric, part as fcoe};
pub(crate) use figures::part as figures;
pub(crate) use iser::part as iser;
pub(crate) use namespace::part as namespace;
pub(crate) use nvme_rdma::part as nvme_rdma;
pub(crate) use paths::part as paths;
pub(crate) use service::part as service;
pub(crate) use srp::part as srp;
pub(crate) use sysroot::ceph_tree;
pub(crate) use tape::part as tape;
pub(crate) use ublk::{part as ublk, server_part as ublk_server};
pub(crate) use verbs::part as verbs;
pub(crate) use vhost::part as vhost;
pub(crate) use vm::part as vm;
pub(crate) use zfs::part as zfs;

/// Runs the part `guest`: open-iscsi against the target. The first driver runs all cases, the others those that depend
/// on the driver.
pub(crate) fn part(lab: &Lab, driver: Driver, main_driver: bool) -> Result<()> {
    let part = format!("guest/{}", driver.name());
    let Some(sysroot) = packages(lab, &part) else { return Ok(()) };
    // Loading this module takes seconds of emulation, so only this guest has it.
    let folder = lab.scratch.join("xfs");
    let more = Some(("test/xfs", &*folder));
    let script =
        Script { name: "iscsi", is_service: false, part: &part, driver, sysroot: &sysroot, processors: 1, more };
    lab.report.check(&part, "guest ran to its end", || {
        modules::write_modules(&sysroot.modules, &["xfs"], &folder)?;
        script.run(lab, targets(lab, driver, main_driver)?)
    });
    Ok(())
}

/// Runs the part `nvme`: the kernel's NVMe/TCP host against the target.
pub(crate) fn nvme_part(lab: &Lab, driver: Driver, main_driver: bool) -> Result<()> {
    let part = format!("nvme/{}", driver.name());
    lab.built()?;
    let Some(sysroot) = packages(lab, &part) else { return Ok(()) };
    let script =
        Script { name: "nvme", is_service: false, part: &part, driver, sysroot: &sysroot, processors: 1, more: None };
    lab.report.check(&part, "guest ran to its end", || {
        let mut targets = nvme_targets(lab, driver, &["ram:64M"])?;
        if main_driver {
            targets.settings.push_str(EVERYTHING);
            add_protected(lab, driver, &mut targets)?;
            // It must be the last: `grow_volume` signals the last target.
            add_service(lab, driver, &mut targets)?;
        }
        script.run(lab, targets)
    });
    Ok(())
}

/// Runs the cases of the kernel's NVMe/TCP host with the first namespace of a subsystem, whatever its store is.
pub(crate) fn nvme_volume(lab: &Lab, driver: Driver, part: &str, port: SocketAddr, nqn: &str) -> Result<()> {
    let sysroot = sysroot::ensure(&lab.report)?;
    let script =
        Script { name: "nvme-volume", is_service: false, part, driver, sysroot: &sysroot, processors: 1, more: None };
    let settings = format!("HOST={HOST_AS_GUEST_SEES_IT}\nPORT={}\nNQN={nqn}\n", port.port());
    let spec = Spec::new(driver, Vec::<String>::new())?;
    script.run(lab, Targets { main: None, spec, others: Vec::new(), settings, growth: None })
}

/// Adds a target with protection information, over iSCSI and, as metadata, over NVMe/TCP.
fn add_protected(lab: &Lab, driver: Driver, targets: &mut Targets) -> Result<()> {
    let port = free_port()?;
    let flags = ["--protection", "1", "--metadata", "--nvme", &port.to_string()];
    let mut spec = Spec::new(driver, ["ram:64M"])?.flags(&flags);
    spec.for_guest = true;
    let target = Target::start(lab, &spec)?;
    let (name, nqn) = (&target.name, target.name.replacen("iqn.", "nqn.", 1));
    let settings = &mut targets.settings;
    writeln!(settings, "PROTECTED={HOST_AS_GUEST_SEES_IT}:{}\nPROTECTED_TARGET={name}", target.portal.port())?;
    writeln!(settings, "PROTECTED_PORT={}\nPROTECTED_NQN={nqn}", port.port())?;
    targets.others.push(target);
    Ok(())
}

fn packages(lab: &Lab, part: &str) -> Option<sysroot::Sysroot> {
    let mut made = None;
    lab.report.check(part, "packages for the guest", || {
        made = Some(sysroot::ensure(&lab.report)?);
        Ok(())
    });
    made
}

/// Starts a target with two iSCSI portals and two NVMe/TCP portals, and these volumes besides a file.
fn nvme_targets(lab: &Lab, driver: Driver, more: &[&str]) -> Result<Targets> {
    let (port, second) = (free_port()?, free_port()?);
    let file = lab.image(&format!("nvme-{}.img", driver.name()), 512)?;
    let volumes = std::iter::once(file).chain(more.iter().map(|more| (*more).to_owned()));
    let flags = ["--nvme", &port.to_string(), "--nvme", &second.to_string()];
    let mut spec = Spec::new(driver, volumes)?.flags(&flags);
    spec.listen.push(free_port()?);
    spec.for_guest = true;
    let main = Target::start(lab, &spec)?;
    let mut settings = String::new();
    writeln!(settings, "PORTAL={HOST_AS_GUEST_SEES_IT}:{}\nTARGET={}", main.portal.port(), main.name)?;
    // The NQN is derived from the IQN.
    let nqn = main.name.replacen("iqn.", "nqn.", 1);
    writeln!(settings, "HOST={HOST_AS_GUEST_SEES_IT}\nPORT={}\nPORT2={}\nNQN={nqn}", port.port(), second.port())?;
    Ok(Targets { main: Some(main), spec, others: Vec::new(), settings, growth: None })
}

/// Adds a daemon with a configuration file, over iSCSI and NVMe/TCP: a volume that can grow, one with 4096-byte blocks,
/// and a pool for Namespace Management.
fn add_service(lab: &Lab, driver: Driver, targets: &mut Targets) -> Result<()> {
    const NAME: &str = "iqn.2026-01.io.lunar.conform:service";
    let folder = lab.scratch.join("service");
    std::fs::create_dir_all(folder.join("made"))?;
    let (portal, port, file) = (free_port()?, free_port()?, folder.join("lunar.toml"));
    let nqn = NAME.replacen("iqn.", "nqn.", 1);
    let text = |size: &str| {
        format!(
            "[server]\ncores = 2\nmemory = \"32M\"\ndriver = \"{}\"\nstate = \"{at}/state\"\n\
             [volume.disk]\nkind = \"file\"\npath = \"{at}/disk.img\"\nsize = \"{size}\"\n\
             [volume.large]\nkind = \"ram\"\nsize = \"64M\"\nblock-size = \"4096\"\n[portal-group.p]\ntag = 1\n\
             [pool.lab]\nfolder = \"{at}/made\"\nspace = \"64M\"\nnamespaces = 4\n\
             [portal.one]\naddress = \"{portal}\"\nadvertise = \"{HOST_AS_GUEST_SEES_IT}:{}\"\ngroup = \"p\"\n\
             [portal.two]\naddress = \"{port}\"\nprotocol = \"nvme-tcp\"\ngroup = \"p\"\n\
             [target.main]\niqn = \"{NAME}\"\nnqn = \"{nqn}\"\nportal-groups = [\"p\"]\n\
             [group.all]\ntargets = [\"main\"]\ninitiators = [\"*\"]\npool = \"lab\"\n\
             luns = {{ 0 = \"disk\", 1 = \"large\" }}\n",
            driver.name().replace('_', "-"),
            portal.port(),
            at = folder.display(),
        )
    };
    std::fs::write(&file, text("64M"))?;
    let mut spec = Spec::new(driver, Vec::<String>::new())?;
    (spec.listen, spec.daemon) = (vec![portal, port], Some(file.clone()));
    targets.others.push(Target::start_named(lab, &spec, NAME)?);
    targets.growth = Some((file, text("96M")));
    writeln!(targets.settings, "SERVICE_PORTAL={HOST_AS_GUEST_SEES_IT}:{}\nSERVICE_TARGET={NAME}", portal.port())?;
    writeln!(targets.settings, "SERVICE_PORT={}\nSERVICE_NQN={nqn}", port.port())?;
    Ok(())
}

/// One run of a guest.
struct Script<'a> {
    /// The script's file name without its extension.
    name: &'a str,
    /// Whether systemd starts the script.
    is_service: bool,
    part: &'a str,
    driver: Driver,
    sysroot: &'a sysroot::Sysroot,
    /// The emulated processors.
    processors: u8,
    /// A further folder for the guest and the name it gets there.
    more: Option<(&'a str, &'a Path)>,
}

/// The targets of one guest run and the settings file for the script.
struct Targets {
    main: Option<Target>,
    spec: Spec,
    others: Vec<Target>,
    settings: String,
    /// The configuration file of the last target in `others`, and its text with the larger volume.
    growth: Option<(PathBuf, String)>,
}

fn targets(lab: &Lab, driver: Driver, main_driver: bool) -> Result<Targets> {
    let name = driver.name();
    let mut spec = Spec::new(driver, [lab.image(&format!("guest-{name}.img"), 512)?, "ram:400M".to_owned()])?;
    spec.for_guest = true;
    let port = spec.portal().port();
    let over_ipv6 = std::net::TcpListener::bind(("::1", port)).is_ok();
    if over_ipv6 {
        spec.listen.push(format!("[::1]:{port}").parse()?);
    }
    let main = Target::start(lab, &spec)?;
    let mut settings = String::new();
    writeln!(settings, "PORTAL={HOST_AS_GUEST_SEES_IT}:{}", main.portal.port())?;
    writeln!(settings, "TARGET={}\nLUN={}", main.name, main.lun)?;
    settings.push_str(if main_driver { EVERYTHING } else { "" });
    let mut others = Vec::new();
    if matches!(lab.subject, Subject::Built(_)) {
        writeln!(settings, "ADVERTISED=yes\nRESTART=yes\nRAM_LUN=1")?;
        if over_ipv6 {
            writeln!(settings, "PORTAL6={HOST_AS_GUEST_SEES_IT_IN_IPV6}:{port}")?;
        }
        let image = lab.image(&format!("guest-{name}-4096.img"), 256)?;
        let all = [
            ("LARGE_BLOCKS", image, ["--block-size", "4096"].as_slice()),
            ("READ_ONLY", "ram:64M".to_owned(), &["--read-only"]),
            ("PROTECTED", "ram:64M".to_owned(), &["--protection", "1"]),
        ];
        for (key, volume, flags) in all.into_iter().take(if main_driver { 3 } else { 1 }) {
            let mut spec = Spec::new(driver, [volume])?.flags(flags);
            spec.for_guest = true;
            let target = Target::start(lab, &spec)?;
            writeln!(settings, "{key}={HOST_AS_GUEST_SEES_IT}:{}\n{key}_TARGET={}", target.portal.port(), target.name)?;
            others.push(target);
        }
    }
    if main_driver && matches!(lab.subject, Subject::Built(_)) {
        let (disc, sum) = tools::image_of_disc(lab, &format!("guest-{name}"))?;
        let disk = format!("removable:{}", lab.image(&format!("guest-{name}-removable.img"), 64)?);
        let mut spec = Spec::new(driver, [disc, disk])?;
        spec.for_guest = true;
        let target = Target::start(lab, &spec)?;
        writeln!(settings, "DISC={HOST_AS_GUEST_SEES_IT}:{}\nDISC_TARGET={}", target.portal.port(), target.name)?;
        writeln!(settings, "DISC_SUM={sum}")?;
        others.push(target);
        let mut spec = Spec::new(driver, ["tape:"])?;
        (spec.program, spec.for_guest) = (Program::Examples, true);
        let target = Target::start(lab, &spec)?;
        writeln!(settings, "TAPE={HOST_AS_GUEST_SEES_IT}:{}\nTAPE_TARGET={}", target.portal.port(), target.name)?;
        others.push(target);
        let mut spec = chap::spec(lab, driver)?;
        spec.for_guest = true;
        let target = Target::start_named(lab, &spec, chap::NAME)?;
        writeln!(settings, "CHAP={HOST_AS_GUEST_SEES_IT}:{}\nCHAP_TARGET={}", target.portal.port(), target.name)?;
        settings.push_str(&chap::settings());
        others.push(target);
    }
    Ok(Targets { main: Some(main), spec, others, settings, growth: None })
}

impl Script<'_> {
    fn run(&self, lab: &Lab, targets: Targets) -> Result<()> {
        self.run_with(lab, targets, &[])
    }

    /// Runs the script in a guest with further devices: arguments of the emulator.
    fn run_with(&self, lab: &Lab, mut targets: Targets, devices: &[String]) -> Result<()> {
        let emulator = emulator::newest_or_own(&lab.report);
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
        let initramfs = lab.scratch.join(format!("guest-{}-{}.cpio", self.name, self.driver.name()));
        let folders = [("test", &*scripts)].into_iter().chain(self.more);
        qemu::initramfs(self.sysroot, folders, &lab.settings_of_guest(&targets.settings), &initramfs)?;
        let mut log = std::fs::File::create(initramfs.with_extension("log"))?;
        let mut cases = Cases::new(lab, self.part);
        let (mut done, mut restarts) = (Ok(()), 0);
        let kernel = if self.is_service { SERVICE_OPTIONS.to_owned() } else { String::new() };
        let file = format!("{}.sh", self.name);
        // It replaces the number of processors that all guests have.
        let processors = ["-smp".to_owned(), self.processors.to_string()];
        let devices = processors.into_iter().chain(devices.iter().cloned()).collect();
        let hardware = qemu::Hardware { emulator, devices, shares_memory: false, kernel };
        let status = qemu::boot(self.sysroot, &initramfs, &file, &hardware, |line| {
            // A log that cannot be written is no reason to fail the case.
            let _ = writeln!(log, "{line}");
            let outcome = match line {
                "@restart" => {
                    restarts += 1;
                    targets.restart(lab).context("cannot restart the target")
                }
                "@grow" => targets.grow_volume().context("cannot grow the volume"),
                _ => {
                    cases.line(line);
                    Ok(())
                }
            };
            if done.is_ok() {
                done = outcome;
            }
        })?;
        done?;
        let asked = cases.restarts.context("the guest's script did not report how many restarts it requested")?;
        ensure!(
            restarts == asked,
            "the guest's script requested {asked} restarts of the target, and there were {restarts}"
        );
        ensure!(cases.count > 0, "the guest's script reported nothing");
        for target in targets.main.into_iter().chain(targets.others) {
            target.stop()?;
        }
        let _ = std::fs::remove_file(&initramfs);
        ensure!(
            status == 0,
            "the guest's script ended with {status}; its log is {}",
            initramfs.with_extension("log").display()
        );
        Ok(())
    }
}

impl Targets {
    fn restart(&mut self, lab: &Lab) -> Result<()> {
        self.main.take().context("no target to restart")?.kill()?;
        self.main = Some(Target::start_after_kill(lab, &self.spec)?);
        Ok(())
    }

    fn grow_volume(&mut self) -> Result<()> {
        let (file, text) = self.growth.take().context("no volume of this part can grow, or it has grown already")?;
        std::fs::write(file, text)?;
        self.others.last().context("no service")?.signal(Signal::HUP)
    }
}

/// Makes cases and figures of the lines that the guest's script prints. Other lines are the reason of the next case
/// that fails.
struct Cases<'a> {
    lab: &'a Lab,
    part: &'a str,
    since: Instant,
    output: Vec<String>,
    count: usize,
    /// How many restarts of the target the script says, at its end, that it requested.
    restarts: Option<u32>,
}

impl<'a> Cases<'a> {
    fn new(lab: &'a Lab, part: &'a str) -> Self {
        Self { lab, part, since: Instant::now(), output: Vec::new(), count: 0, restarts: None }
    }

    fn line(&mut self, line: &str) {
        if let Some(count) = line.strip_prefix("@restarts ") {
            self.restarts = count.parse().ok();
            return;
        }
        if let Some(figure) = line.strip_prefix("@figure ").and_then(Figure::parse) {
            return self.lab.report.figure(figure);
        }
        let case = if let Some(name) = line.strip_prefix("@ok ") {
            Some((name, Outcome::Passed))
        } else if let Some(name) = line.strip_prefix("@bad ") {
            Some((name, Outcome::Failed(self.output.join("\n"))))
        } else if let Some(rest) = line.strip_prefix("@skip ") {
            let (name, reason) = rest.split_once(": ").unwrap_or((rest, "no reason given"));
            Some((name, Outcome::Skipped(reason.to_owned())))
        } else {
            None
        };
        let Some((name, outcome)) = case else {
            if self.lab.verbose {
                println!("{}| {line}", self.part);
            }
            self.output.push(line.to_owned());
            return;
        };
        self.lab.report.add(self.part, name, outcome, self.since.elapsed());
        self.since = Instant::now();
        self.output.clear();
        self.count += 1;
    }
}

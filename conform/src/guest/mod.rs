//! A stock distribution kernel as the initiator.

mod blktests;
mod cpio;
mod kernel;
mod machine;
mod modules;
mod newer;
mod paths;
mod proofs;
mod qemu;
mod service;
mod sysroot;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::chap;
use crate::report::Outcome;
use crate::target::{Driver, HOST_AS_GUEST_SEES_IT, Lab, Spec, Subject, Target, free_port};
use crate::tools;

/// The emulated processor is slow, and slower while something else is built.
const LIMIT: Duration = Duration::from_secs(900);
/// What a kernel is told that starts a system manager, whose only aim is the script: nobody else looks at disks or sets
/// up networks.
const SERVICE: &str = " lunar.service systemd.unit=lunar-test.service systemd.show_status=false systemd.firstboot=no \
    net.ifnames=0 systemd.mask=multipathd.service systemd.mask=multipathd.socket systemd.mask=systemd-networkd.service \
    systemd.mask=systemd-networkd.socket systemd.mask=systemd-network-generator.service";
/// What a script is told that tries everything.
const WHOLE: &str = "WHOLE=yes\n";
/// This machine's ::1 as QEMU's user network shows it to a guest.
const HOST_AS_GUEST_SEES_IT_IN_IPV6: &str = "[fec0::2]";

pub(crate) use blktests::part as blktests;
pub(crate) use machine::part as machine;
pub(crate) use paths::part as paths;
pub(crate) use proofs::part as proofs;
pub(crate) use service::part as service;

/// Boots the guest against the target. The first driver gets everything, others what differs between drivers.
pub(crate) fn part(lab: &Lab, driver: Driver, main_driver: bool) -> Result<()> {
    let part = format!("guest/{}", driver.name());
    let Some(sysroot) = packages(lab, &part) else { return Ok(()) };
    let script = Script { name: "iscsi", is_service: false, part: &part, driver, sysroot: &sysroot, more: None };
    lab.report.check(&part, "guest ran to its end", || script.run(lab, targets(lab, driver, main_driver)?));
    Ok(())
}

/// The same over NVMe/TCP.
pub(crate) fn nvme_part(lab: &Lab, driver: Driver, main_driver: bool) -> Result<()> {
    let part = format!("nvme/{}", driver.name());
    lab.built()?;
    let Some(sysroot) = packages(lab, &part) else { return Ok(()) };
    let script = Script { name: "nvme", is_service: false, part: &part, driver, sysroot: &sysroot, more: None };
    lab.report.check(&part, "guest ran to its end", || {
        let mut targets = nvme_targets(lab, driver, &["ram:64M"])?;
        targets.settings.push_str(if main_driver { WHOLE } else { "" });
        script.run(lab, targets)
    });
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

/// One target with both faces and two ways to each, which has a file and these volumes.
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
    // Both names are made of one.
    let nqn = main.name.replacen("iqn.", "nqn.", 1);
    writeln!(settings, "HOST={HOST_AS_GUEST_SEES_IT}\nPORT={}\nPORT2={}\nNQN={nqn}", port.port(), second.port())?;
    Ok(Targets { main: Some(main), spec, others: Vec::new(), settings })
}

/// What a guest does.
struct Script<'a> {
    /// Its file, without the ending.
    name: &'a str,
    /// Whether a system manager starts it, as on a whole machine.
    is_service: bool,
    part: &'a str,
    driver: Driver,
    sysroot: &'a sysroot::Sysroot,
    /// A folder that the guest has besides, beside its script, under this name.
    more: Option<(&'a str, &'a Path)>,
}

/// The targets of one guest run, and what the script must know of them.
struct Targets {
    main: Option<Target>,
    spec: Spec,
    others: Vec<Target>,
    settings: String,
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
    settings.push_str(if main_driver { WHOLE } else { "" });
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
        let mut spec = chap::spec(lab, driver)?;
        spec.for_guest = true;
        let target = Target::start_named(lab, &spec, chap::NAME)?;
        writeln!(settings, "CHAP={HOST_AS_GUEST_SEES_IT}:{}\nCHAP_TARGET={}", target.portal.port(), target.name)?;
        settings.push_str(&chap::settings());
        others.push(target);
    }
    Ok(Targets { main: Some(main), spec, others, settings })
}

impl Script<'_> {
    fn run(&self, lab: &Lab, mut targets: Targets) -> Result<()> {
        let emulator = newer::whatever(&lab.report);
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
        let initramfs = lab.scratch.join(format!("guest-{}-{}.cpio", self.name, self.driver.name()));
        let folders = [("test", &*scripts)].into_iter().chain(self.more);
        qemu::initramfs(self.sysroot, folders, &targets.settings, &initramfs)?;
        let mut log = std::fs::File::create(initramfs.with_extension("log"))?;
        let mut cases = Cases { lab, part: self.part, since: Instant::now(), said: Vec::new(), seen: 0 };
        let mut restarted = Ok(());
        let kernel = if self.is_service { SERVICE.to_owned() } else { String::new() };
        let file = format!("{}.sh", self.name);
        let hardware = qemu::Hardware { emulator, devices: Vec::new(), shares_memory: false, kernel };
        let status = qemu::boot(self.sysroot, &initramfs, &file, LIMIT, &hardware, |line| {
            // A log that cannot be written costs the log, not the test.
            let _ = writeln!(log, "{line}");
            if line == "@restart" {
                restarted = targets.restart(lab);
            } else {
                cases.line(line);
            }
        })?;
        restarted.context("restart of the target")?;
        ensure!(cases.seen > 0, "the guest's script reported nothing");
        for target in targets.main.into_iter().chain(targets.others) {
            target.stop()?;
        }
        let _ = std::fs::remove_file(&initramfs);
        ensure!(
            status == 0,
            "the guest's script ended with {status}; all it said is in {}",
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
}

/// Makes cases of the lines that the guest's script prints for us.
struct Cases<'a> {
    lab: &'a Lab,
    part: &'a str,
    since: Instant,
    said: Vec<String>,
    seen: usize,
}

impl Cases<'_> {
    fn line(&mut self, line: &str) {
        let case = if let Some(name) = line.strip_prefix("@ok ") {
            Some((name, Outcome::Passed))
        } else if let Some(name) = line.strip_prefix("@bad ") {
            Some((name, Outcome::Failed(self.said.join("\n"))))
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
            self.said.push(line.to_owned());
            return;
        };
        self.lab.report.add(self.part, name, outcome, self.since.elapsed());
        self.since = Instant::now();
        self.said.clear();
        self.seen += 1;
    }
}

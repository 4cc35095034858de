//! The part `aoe`: the initiator of Linux for ATA over Ethernet. The link of the guest is a pair of Unix sockets, with
//! a relay between them that loses, duplicates and delays frames.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{Cases, emulator, lan, qemu, sysroot};
use crate::relay::RelayFaults;
use crate::target::{Driver, HOST_AS_GUEST_SEES_IT, Lab, Spec, Target};

/// The limit of one guest's run. Emulation is slow, and slower while the machine builds something.
const LIMIT: Duration = Duration::from_secs(1200);
/// The target's name over iSCSI.
const TARGET: &str = "iqn.2026-01.io.lunar.conform:aoe";
/// One frame of a hundred is lost, some are duplicated or overtaken.
const FAULTS: RelayFaults = RelayFaults { loss: 10, duplicates: 5, late: 5 };
/// The MAC address of the guest.
const GUEST: &str = "52:54:00:12:34:02";

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("aoe/{}", driver.name());
    lab.built()?;
    let Some(sysroot) = super::packages(lab, &part) else { return Ok(()) };
    let folder = lab.scratch.join(format!("aoe-{}", driver.name()));
    std::fs::create_dir_all(&folder)?;
    let runner = Runner { lab, part, sysroot, folder };
    lab.report.check(&runner.part.clone(), "guest ran to its end", || runner.guest(driver));
    Ok(())
}

struct Runner<'a> {
    lab: &'a Lab,
    part: String,
    sysroot: sysroot::Sysroot,
    folder: PathBuf,
}

impl Runner<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes the daemon's configuration: a volume in a file over iSCSI and over two shelves, one of which is for
    /// another station.
    fn configure(&self, spec: &Spec, size: &str) -> Result<PathBuf> {
        let (folder, portal) = (self.folder.display(), spec.portal());
        let text = format!(
            "[server]\ncores = 2\nmemory = \"32M\"\ndriver = \"{}\"\nstate = \"{folder}/state\"\n\
             [volume.disk]\nkind = \"file\"\npath = \"{folder}/disk.img\"\nsize = \"{size}\"\n\
             [volume.memory]\nkind = \"ram\"\nsize = \"64M\"\n[portal-group.p]\ntag = 1\n\
             [portal.one]\naddress = \"{portal}\"\nadvertise = \"{HOST_AS_GUEST_SEES_IT}:{}\"\ngroup = \"p\"\n\
             [target.main]\niqn = \"{TARGET}\"\nportal-groups = [\"p\"]\n\
             [group.iscsi]\ntargets = [\"main\"]\ninitiators = [\"iqn.*\"]\nluns = {{ 0 = \"disk\" }}\n\
             [group.stations]\ntargets = [\"main\"]\ninitiators = [\"{GUEST}\"]\n\
             luns = {{ 0 = \"disk\", 1 = \"memory\" }}\n\
             [group.others]\ntargets = [\"main\"]\ninitiators = [\"02:*\"]\nluns = {{ 5 = \"memory\" }}\n\
             [aoe.lan]\nlink = \"unix:{folder}/target,{folder}/target-relay\"\nshelf = 7\nfirst-slot = 2\n\
             target = \"main\"\nportal-group = \"p\"\nmtu = 9000\n",
            spec.driver.name().replace('_', "-"),
            portal.port(),
        );
        let file = self.path("lunar.toml");
        std::fs::write(&file, text)?;
        Ok(file)
    }

    fn guest(&self, driver: Driver) -> Result<()> {
        let mut spec = Spec::new(driver, Vec::<String>::new())?;
        spec.daemon = Some(self.configure(&spec, "64M")?);
        let mut target = Some(Target::start_daemon(self.lab, &spec, Target::start)?);
        let relay = lan::relay(&self.folder, FAULTS, self.lab.seed)?;

        let initramfs = self.path("initramfs.cpio");
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
        let port = spec.portal().port();
        let settings = format!("PORTAL={HOST_AS_GUEST_SEES_IT}:{port}\nTARGET={TARGET}\n");
        qemu::initramfs(&self.sysroot, [("test", &*scripts)].into_iter(), &settings, &initramfs)?;
        let devices = lan::card(&self.folder, GUEST);
        let emulator = emulator::newest_or_own(&self.lab.report);
        let hardware = qemu::Hardware { emulator, devices, shares_memory: false, kernel: String::new() };
        let mut log = std::fs::File::create(self.path("guest.log"))?;
        let (mut cases, mut done) = (Cases::new(self.lab, &self.part), Ok(()));
        let status = qemu::boot(&self.sysroot, &initramfs, "aoe.sh", LIMIT, &hardware, |line| {
            // A log that cannot be written is no reason to fail the case.
            let _ = writeln!(log, "{line}");
            let outcome = match line {
                "@restart" => (|| {
                    target.take().context("no target to restart")?.kill()?;
                    target = Some(Target::start_daemon(self.lab, &spec, Target::start_after_kill)?);
                    Ok(())
                })(),
                "@grow" => {
                    self.configure(&spec, "96M").and_then(|_| target.as_ref().context("no target")?.signal(Signal::HUP))
                }
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
        self.lab.report.note(&format!("{}: {} frames were lost, duplicated or delayed", self.part, relay.faults()));
        ensure!(cases.count > 0, "the guest's script reported nothing");
        ensure!(relay.faults() > 0, "no frame was lost");
        target.take().context("it runs")?.stop()?;
        ensure!(status == 0, "the guest's script ended with {status}; its log is {}", self.path("guest.log").display());
        Ok(())
    }
}

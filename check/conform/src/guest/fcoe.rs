//! The part `fcoe`: the initiator of Linux for Fibre Channel over Ethernet (fcoe, libfcoe, libfc), without a switch.
//! The link of the guest is a pair of Unix sockets, with a relay between them that loses frames when the script says
//! so.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{Cases, emulator, lan, qemu, sysroot};
use crate::relay::RelayFaults;
use crate::target::{Driver, HOST_AS_GUEST_SEES_IT, Lab, Spec, Target};

/// The limit of one guest's run. Emulation is slow, lost frames cost the initiator seconds, and the machine may build
/// something.
const LIMIT: Duration = Duration::from_secs(1800);
/// The target's name over iSCSI.
const TARGET: &str = "iqn.2026-01.io.lunar.conform:fcoe";
/// The MAC address of the guest, and the name of its port.
const GUEST: &str = "52:54:00:12:34:02";
const INITIATOR: &str = "20:00:52:54:00:12:34:02";
/// Names of the target port: larger and smaller than that of the guest. The port with the larger name sends PLOGI.
const LARGER: &str = "50:00:00:00:00:12:34:01";
const SMALLER: &str = "10:00:00:00:00:12:34:01";

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("fcoe/{}", driver.name());
    lab.built()?;
    let Some(sysroot) = super::packages(lab, &part) else { return Ok(()) };
    let folder = lab.scratch.join(format!("fcoe-{}", driver.name()));
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

    /// Writes the daemon's configuration: a volume in a file over iSCSI and over Fibre Channel, and one in memory; a
    /// volume of another initiator.
    fn configure(&self, spec: &Spec, wwpn: &str) -> Result<PathBuf> {
        let (folder, portal) = (self.folder.display(), spec.portal());
        let text = format!(
            "[server]\ncores = 2\nmemory = \"32M\"\ndriver = \"{}\"\nstate = \"{folder}/state\"\n\
             [volume.disk]\nkind = \"file\"\npath = \"{folder}/disk.img\"\nsize = \"64M\"\n\
             [volume.memory]\nkind = \"ram\"\nsize = \"64M\"\n\
             [portal-group.p]\ntag = 1\n[portal-group.q]\ntag = 2\nalua-state = \"active-non-optimized\"\n\
             [portal.one]\naddress = \"{portal}\"\nadvertise = \"{HOST_AS_GUEST_SEES_IT}:{}\"\ngroup = \"p\"\n\
             [target.main]\niqn = \"{TARGET}\"\nportal-groups = [\"p\"]\n\
             [group.iscsi]\ntargets = [\"main\"]\ninitiators = [\"iqn.*\"]\nluns = {{ 0 = \"disk\" }}\n\
             [group.channel]\ntargets = [\"main\"]\ninitiators = [\"{INITIATOR}\"]\n\
             luns = {{ 0 = \"disk\", 1 = \"memory\" }}\n\
             [group.others]\ntargets = [\"main\"]\ninitiators = [\"21:*\"]\nluns = {{ 5 = \"memory\" }}\n\
             [fcoe.lan]\nlink = \"unix:{folder}/target,{folder}/target-relay\"\n\
             target = \"main\"\nportal-group = \"q\"\nmtu = 2500\nwwpn = \"{wwpn}\"\n",
            spec.driver.name().replace('_', "-"),
            portal.port(),
        );
        let file = self.path("lunar.toml");
        std::fs::write(&file, text)?;
        Ok(file)
    }

    fn guest(&self, driver: Driver) -> Result<()> {
        let mut spec = Spec::new(driver, Vec::<String>::new())?;
        spec.daemon = Some(self.configure(&spec, LARGER)?);
        let mut target = Some(Target::start_daemon(self.lab, &spec, Target::start)?);
        let calm = RelayFaults { loss: 0, duplicates: 0, late: 0 };
        let relay = lan::relay(&self.folder, calm, self.lab.seed)?;

        let initramfs = self.path("initramfs.cpio");
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
        let port = spec.portal().port();
        let settings = format!(
            "PORTAL={HOST_AS_GUEST_SEES_IT}:{port}\nTARGET={TARGET}\nLARGER={LARGER}\nSMALLER={SMALLER}\n\
             INITIATOR={INITIATOR}\n"
        );
        qemu::initramfs(&self.sysroot, [("test", &*scripts)].into_iter(), &settings, &initramfs)?;
        let devices = lan::card(&self.folder, GUEST);
        let emulator = emulator::newest_or_own(&self.lab.report);
        let hardware = qemu::Hardware { emulator, devices, shares_memory: false, kernel: String::new() };
        let mut log = std::fs::File::create(self.path("guest.log"))?;
        let (mut cases, mut done) = (Cases::new(self.lab, &self.part), Ok(()));
        let status = qemu::boot(&self.sysroot, &initramfs, "fcoe.sh", LIMIT, &hardware, |line| {
            // A log that cannot be written is no reason to fail the case.
            let _ = writeln!(log, "{line}");
            let outcome = match line {
                "@restart" => (|| {
                    target.take().context("no target to restart")?.kill()?;
                    target = Some(Target::start_daemon(self.lab, &spec, Target::start_after_kill)?);
                    Ok(())
                })(),
                "@smaller" => self
                    .configure(&spec, SMALLER)
                    .and_then(|_| target.as_ref().context("no target")?.signal(Signal::HUP)),
                line => match line.strip_prefix("@loss ") {
                    Some(loss) => loss.parse().context("the loss is a number").map(|loss| {
                        relay.set(RelayFaults { loss, ..calm });
                    }),
                    None => {
                        cases.line(line);
                        Ok(())
                    }
                },
            };
            if done.is_ok() {
                done = outcome;
            }
        })?;
        done?;
        self.lab.report.note(&format!("{}: {} frames were lost", self.part, relay.faults()));
        ensure!(cases.count > 0, "the guest's script reported nothing");
        ensure!(relay.faults() > 0, "no frame was lost");
        target.take().context("it runs")?.stop()?;
        ensure!(status == 0, "the guest's script ended with {status}; its log is {}", self.path("guest.log").display());
        Ok(())
    }
}

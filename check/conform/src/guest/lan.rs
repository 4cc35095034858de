//! Guests whose Ethernet link is a pair of Unix sockets, with a relay between them and the target.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Cases, emulator, qemu, sysroot};
use crate::relay::{Relay, RelayEnd, RelayFaults};
use crate::target::{Driver, Lab, Spec, Target};

/// A guest on a link, and the daemon that serves it.
pub(super) struct LanGuest<'a> {
    lab: &'a Lab,
    /// The name of the part, with that of the driver.
    part: String,
    sysroot: sysroot::Sysroot,
    folder: PathBuf,
}

/// The run of a guest.
pub(super) struct Run<'a> {
    /// The script in the guest.
    pub(super) script: &'a str,
    /// Its longest time.
    pub(super) limit: Duration,
    /// The MAC address of the guest.
    pub(super) mac: &'a str,
    /// The variables of the script.
    pub(super) settings: String,
    /// The faults of the link, and their names in the report.
    pub(super) faults: (RelayFaults, &'a str),
}

/// Executes an instruction of the script; `None`: the line is none, but a case.
pub(super) type Instructions<'a> = &'a mut dyn FnMut(&str, &Relay, Option<&Target>) -> Option<Result<()>>;

/// Runs a part with one guest, unless its packages are missing.
pub(super) fn part((lab, driver, name): (&Lab, Driver, &str), run: impl Fn(&LanGuest<'_>) -> Result<()>) -> Result<()> {
    let part = format!("{name}/{}", driver.name());
    lab.built()?;
    let Some(sysroot) = super::packages(lab, &part) else { return Ok(()) };
    let folder = lab.scratch.join(format!("{name}-{}", driver.name()));
    std::fs::create_dir_all(&folder)?;
    let guest = LanGuest { lab, part, sysroot, folder };
    lab.report.check(&guest.part, "guest ran to its end", || run(&guest));
    Ok(())
}

impl LanGuest<'_> {
    /// The folder of the part.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes the configuration of the daemon.
    pub(super) fn configure(&self, text: &str) -> Result<PathBuf> {
        let file = self.folder.join("lunar.toml");
        std::fs::write(&file, text)?;
        Ok(file)
    }

    /// Boots the guest beside a daemon, which `@restart` kills and starts again, and reports the cases of its script.
    pub(super) fn boot(&self, spec: &Spec, run: &Run<'_>, instructions: Instructions<'_>) -> Result<()> {
        let mut target = Some(Target::start_daemon(self.lab, spec, Target::start)?);
        let (faults, words) = run.faults;
        let relay = relay(&self.folder, faults, self.lab.seed)?;
        let initramfs = self.folder.join("initramfs.cpio");
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
        qemu::initramfs(&self.sysroot, [("test", &*scripts)].into_iter(), &run.settings, &initramfs)?;
        let devices = card(&self.folder, run.mac);
        let emulator = emulator::newest_or_own(&self.lab.report);
        let hardware = qemu::Hardware { emulator, devices, shares_memory: false, kernel: String::new() };
        let lines = self.folder.join("guest.log");
        let mut log = std::fs::File::create(&lines)?;
        let (mut cases, mut done) = (Cases::new(self.lab, &self.part), Ok(()));
        let status = qemu::boot(&self.sysroot, &initramfs, run.script, run.limit, &hardware, |line| {
            // A log that cannot be written is no reason to fail the case.
            let _ = writeln!(log, "{line}");
            let outcome = if line == "@restart" {
                Some((|| {
                    target.take().context("no target to restart")?.kill()?;
                    target = Some(Target::start_daemon(self.lab, spec, Target::start_after_kill)?);
                    Ok(())
                })())
            } else {
                instructions(line, &relay, target.as_ref())
            };
            match outcome {
                None => cases.line(line),
                Some(outcome) if done.is_ok() => done = outcome,
                Some(_) => {}
            }
        })?;
        done?;
        self.lab.report.note(&format!("{}: {} frames were {words}", self.part, relay.faults()));
        ensure!(cases.count > 0, "the guest's script reported nothing");
        ensure!(relay.faults() > 0, "no frame was lost");
        target.take().context("it runs")?.stop()?;
        ensure!(status == 0, "the guest's script ended with {status}; its log is {}", lines.display());
        Ok(())
    }
}

/// Starts the relay between the sockets `target` and `guest` of a folder.
fn relay(folder: &Path, faults: RelayFaults, seed: u64) -> Result<Relay> {
    let end = |name: &str| RelayEnd { own: folder.join(format!("{name}-relay")), station: folder.join(name) };
    Relay::start([end("target"), end("guest")], faults, seed)
}

/// The arguments of the emulator for the network card of the link, with this MAC address.
fn card(folder: &Path, mac: &str) -> Vec<String> {
    let net = format!(
        "dgram,id=lan,local.type=unix,local.path={},remote.type=unix,remote.path={}",
        folder.join("guest").display(),
        folder.join("guest-relay").display()
    );
    // Behind the cards of the other networks.
    let card = format!("virtio-net-pci,netdev=lan,romfile=,mac={mac},addr=0x1c,host_mtu=9000");
    ["-netdev", &net, "-device", &card].map(str::to_owned).to_vec()
}

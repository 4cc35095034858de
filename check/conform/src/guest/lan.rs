//! Guests whose Ethernet link is a pair of Unix sockets, with a relay or a switch between them and the target.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::modules::write_modules;
use super::{Cases, emulator, qemu, sysroot};
use crate::relay::{Relay, RelayEnd, RelayFaults};
use crate::report::Report;
use crate::target::{Driver, Lab, Spec, Target};

/// The sockets of the target and of the guest at each link.
const LINKS: [[&str; 2]; 2] = [["target", "guest"], ["target2", "guest2"]];
/// The slot of the card of the first link: behind the cards of the other networks.
const FIRST_SLOT: usize = 0x1c;

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
    /// The MAC addresses of the guest, one for each link.
    pub(super) macs: &'a [&'a str],
    /// The variables of the script.
    pub(super) settings: String,
    /// The name in the report of what the wire counts.
    pub(super) counted: &'a str,
    /// A further folder for the guest, and the name it gets there.
    pub(super) more: Option<(&'a str, &'a Path)>,
}

/// Executes an instruction of the script; `None`: the line is none, but a case.
pub(super) type Instructions<'a, W> = &'a mut dyn FnMut(&str, &W, Option<&Target>) -> Option<Result<()>>;

/// The wire between a guest and the target.
pub(super) trait Wire {
    /// Things that have happened on it, without which the run proves nothing.
    fn count(&self) -> u64;
}

impl Wire for Relay {
    fn count(&self) -> u64 {
        self.faults()
    }
}

/// Runs a part with one guest, unless its packages are missing.
pub(super) fn part((lab, driver, name): (&Lab, Driver, &str), run: impl Fn(&LanGuest<'_>) -> Result<()>) -> Result<()> {
    part_with(sysroot::ensure, (lab, driver, name), run)
}

/// As [`part`], with the packages of this tree.
pub(super) fn part_with(
    ensure: fn(&Report) -> Result<sysroot::Sysroot>,
    (lab, driver, name): (&Lab, Driver, &str),
    run: impl Fn(&LanGuest<'_>) -> Result<()>,
) -> Result<()> {
    let part = format!("{name}/{}", driver.name());
    lab.built()?;
    let mut made = None;
    lab.report.check(&part, "packages for the guest", || {
        made = Some(ensure(&lab.report)?);
        Ok(())
    });
    let Some(sysroot) = made else { return Ok(()) };
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

    /// Writes modules of the guest's kernel, and those that they need, into this folder.
    pub(super) fn write_modules(&self, names: &[&str], to: &Path) -> Result<()> {
        write_modules(&self.sysroot.modules, names, to)
    }

    /// Writes the configuration of the daemon.
    pub(super) fn configure(&self, text: &str) -> Result<PathBuf> {
        let file = self.folder.join("lunar.toml");
        std::fs::write(&file, text)?;
        Ok(file)
    }

    /// The ends of the wire of a link.
    pub(super) fn ends(&self, link: usize) -> [RelayEnd; 2] {
        LINKS[link]
            .map(|name| RelayEnd { own: self.folder.join(format!("{name}-relay")), station: self.folder.join(name) })
    }

    /// A wire of a link with these faults.
    pub(super) fn relay(&self, link: usize, faults: RelayFaults) -> Result<Relay> {
        Relay::start(self.ends(link), faults, self.lab.seed)
    }

    /// Boots the guest beside a daemon, which `@restart` kills and starts again, and reports the cases of its script.
    pub(super) fn boot<W: Wire>(
        &self,
        spec: &Spec,
        run: &Run<'_>,
        wire: &W,
        instructions: Instructions<'_, W>,
    ) -> Result<()> {
        let mut target = Some(Target::start_daemon(self.lab, spec, Target::start)?);
        let initramfs = self.folder.join("initramfs.cpio");
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
        let settings = self.lab.settings_of_guest(&run.settings);
        let folders = [("test", &*scripts)].into_iter().chain(run.more);
        qemu::initramfs(&self.sysroot, folders, &settings, &initramfs)?;
        let devices = run.macs.iter().enumerate().flat_map(|(link, mac)| card(&self.folder, link, mac)).collect();
        let emulator = emulator::newest_or_own(&self.lab.report);
        let hardware = qemu::Hardware { emulator, devices, shares_memory: false, kernel: String::new() };
        let lines = self.folder.join("guest.log");
        let mut log = std::fs::File::create(&lines)?;
        let (mut cases, mut done) = (Cases::new(self.lab, &self.part), Ok(()));
        let status = qemu::boot(&self.sysroot, &initramfs, run.script, &hardware, |line| {
            // A log that cannot be written is no reason to fail the case.
            let _ = writeln!(log, "{line}");
            let outcome = if line == "@restart" {
                Some((|| {
                    target.take().context("no target to restart")?.kill()?;
                    target = Some(Target::start_daemon(self.lab, spec, Target::start_after_kill)?);
                    Ok(())
                })())
            } else {
                instructions(line, wire, target.as_ref())
            };
            match outcome {
                None => cases.line(line),
                Some(outcome) if done.is_ok() => done = outcome,
                Some(_) => {}
            }
        })?;
        done?;
        self.lab.report.note(&format!("{}: {} {}", self.part, wire.count(), run.counted));
        ensure!(cases.count > 0, "the guest's script reported nothing");
        ensure!(wire.count() > 0, "0 {}", run.counted);
        target.take().context("it runs")?.stop()?;
        ensure!(status == 0, "the guest's script ended with {status}; its log is {}", lines.display());
        Ok(())
    }
}

/// The arguments of the emulator for the network card of a link, with this MAC address.
fn card(folder: &Path, link: usize, mac: &str) -> [String; 4] {
    let [_, name] = LINKS[link];
    let net = format!(
        "dgram,id={name},local.type=unix,local.path={},remote.type=unix,remote.path={}",
        folder.join(name).display(),
        folder.join(format!("{name}-relay")).display()
    );
    let card = format!("virtio-net-pci,netdev={name},romfile=,mac={mac},addr={:#x},host_mtu=9000", FIRST_SLOT + link);
    ["-netdev", &net, "-device", &card].map(str::to_owned)
}

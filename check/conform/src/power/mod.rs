//! Power cuts: disks that lose their volatile write cache, and the target with them. All data that was acknowledged as
//! durable is present afterwards.
//!
//! * [`medium`]: a disk with a volatile write cache, as a value
//! * `fuse`, `disks`, `file_system`: the same for the kernel
//! * [`ledger`]: what a writer was promised; `client`, `writer`: the writers
//! * [`registrant`]: reservations with APTPL
//! * [`configuration`]: the daemon's configuration and its history

mod client;
mod configuration;
mod disks;
mod file_system;
mod fuse;
mod ledger;
mod medium;
mod registrant;
mod writer;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use client::{Address, Client, NQN, Protocol};
use file_system::Machine;
use medium::{CutCount, Loss};
use registrant::Registrant;
use writer::{Progress, Promises, REGION, Tally, VolumeKind, Writer};

use crate::target::{Driver, Lab, Spec, Target, free_port};
use crate::test_data::Random;

/// The writers of a volume.
const WRITERS: [Protocol; 4] = [Protocol::Iscsi, Protocol::Iscsi, Protocol::NvmeTcp, Protocol::NvmeTcp];
/// MiB of the volume: the regions of all writers, and some space.
const VOLUME_MIB: u64 = 32;
const _: () = assert!(WRITERS.len() as u64 * REGION < VOLUME_MIB << 20);
/// Requests of the writers before the delay until a power cut begins, and how long that may take on a busy machine.
const STEPS_MIN: u64 = 32;
/// Promises before the power cut that loses them.
const PROMISES_MIN: u64 = 16;
const BEGIN_LIMIT: Duration = Duration::from_secs(10);
/// Writes without a promise before the power cut that loses them. A synchronisation by the file system itself, which
/// may come at any moment, does not cover all of them.
const PLAIN_WRITES: usize = 64;
/// MiB of the volume with reservations.
const FENCE_MIB: u64 = 8;

/// A volume and the file system below it.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    file_system: &'static str,
    /// Whether the volume is a block device, a disk of its own. The file system has the metadata then.
    is_device: bool,
    flags: &'static [&'static str],
}

/// A volume whose writes reach the disk at once.
const DIRECT: Kind = Kind { name: "file on XFS, --direct", file_system: "xfs", is_device: false, flags: &["--direct"] };

/// In the order of their importance: a short run may not reach the last ones.
const KINDS: [Kind; 8] = [
    Kind { name: "file on XFS", file_system: "xfs", is_device: false, flags: &[] },
    Kind { name: "block device", file_system: "ext4", is_device: true, flags: &[] },
    DIRECT,
    Kind { name: "file on ext4, --write-through", file_system: "ext4", is_device: false, flags: &["--write-through"] },
    Kind { name: "file on ext4, --protection 1", file_system: "ext4", is_device: false, flags: &["--protection", "1"] },
    Kind { name: "block device, --direct", file_system: "xfs", is_device: true, flags: &["--direct"] },
    Kind {
        name: "file on XFS, --protection 1 --direct",
        file_system: "xfs",
        is_device: false,
        flags: &["--protection", "1", "--direct"],
    },
    Kind {
        name: "file on XFS, --protection 3 --write-through",
        file_system: "xfs",
        is_device: false,
        flags: &["--protection", "3", "--write-through"],
    },
];

/// Kinds of the part with cuts: the volumes, and the configuration on two file systems.
const KINDS_COUNT: u32 = KINDS.len() as u32 + configuration::FILE_SYSTEMS.len() as u32;

/// Cuts the power this many times, spread over the kinds of volumes and the configuration.
pub(crate) fn part(lab: &Lab, driver: Driver, cuts: u32) -> Result<()> {
    lab.built()?;
    let part = format!("power/{}", driver.name());
    let mut random = Random::new(lab.seed);
    let share = |at: u32| cuts / KINDS_COUNT + u32::from(at < cuts % KINDS_COUNT);
    let mut sum = Tally::default();
    let mut executed = 0;
    for (at, kind) in (0..).zip(&KINDS).filter(|(at, _)| share(*at) > 0) {
        let name = format!("{}, {} power cuts", kind.name, share(at));
        lab.report.check(&part, &name, || {
            let mut tally = Tally::default();
            let mut bench = Bench::new(lab, driver, kind, &format!("kind{at}"), &mut random)?;
            for cut in 1..=share(at) {
                bench.cycle(lab, &mut random, &mut tally).with_context(|| format!("power cut {cut}"))?;
                executed += 1;
            }
            lab.report.note(&format!("{part}: {}: {}", kind.name, told(&tally, bench.count)));
            sum.add(&tally);
            bench.stop()
        });
    }
    for (at, file_system) in (KINDS.len() as u32..).zip(configuration::FILE_SYSTEMS).filter(|(at, _)| share(*at) > 0) {
        let name = format!("configuration and history on {file_system}, {} power cuts", share(at));
        lab.report.check(&part, &name, || configuration::part(lab, driver, file_system, share(at), &mut random));
    }
    if executed > 0 {
        lab.report.check(&part, "durability was promised before power cuts", || {
            ensure!(sum.promises() > 0, "nothing was promised before a power cut");
            Ok(())
        });
    }
    lab.report.check(&part, "disks lose writes that were not flushed", || unflushed_are_lost(lab, driver, &mut random));
    let name = "a disk that completes flushes without executing them is noticed";
    lab.report.check(&part, name, || flushes_are_needed(lab, driver, &mut random));
    Ok(())
}

fn told(tally: &Tally, cuts: CutCount) -> String {
    format!(
        "durable: {} FUA, {} flushes, {} write-through, {} without cache, {} marks; {} plain; checked {} places, {} of \
         them lost unflushed writes, {} unreadable; the disks lost {} cached writes and left {}",
        tally.fua,
        tally.flushes,
        tally.through,
        tally.uncached,
        tally.marks,
        tally.plain,
        tally.checked,
        tally.lost,
        tally.unreadable,
        cuts.lost,
        cuts.left
    )
}

/// A machine with a target and its writers.
struct Bench {
    // Dropped in this order: the target ends before its file system is unmounted.
    target: Option<Target>,
    machine: Machine,
    spec: Spec,
    nvme: SocketAddr,
    writers: Vec<Writer>,
    registrant: Registrant,
    count: CutCount,
    cycles: u32,
}

impl Bench {
    fn new(lab: &Lab, driver: Driver, kind: &Kind, name: &str, random: &mut Random) -> Result<Self> {
        let more: &[usize] = if kind.is_device { &[VOLUME_MIB as usize] } else { &[] };
        let machine = Machine::new(lab, name, kind.file_system, more)?;
        let text = |path: PathBuf| path.into_os_string().into_string().map_err(|_| anyhow!("a path is not UTF-8"));
        let volume = if kind.is_device {
            text(machine.disks.device(1))?
        } else {
            format!("{}:{VOLUME_MIB}M", text(machine.folder().join("disk.img"))?)
        };
        let fence = format!("{}:{FENCE_MIB}M", text(machine.folder().join("fence.img"))?);
        let nvme = free_port()?;
        let mut spec = Spec::new(driver, [volume, fence])?.flags(&["--cores", "2", "--memory", "32"]);
        spec = spec.flags(&["--nvme", &nvme.to_string(), "--nqn", NQN]).flags(kind.flags);
        spec.state = Some(machine.folder().join("state"));
        let target = Some(Target::start(lab, &spec)?);
        let volume = VolumeKind {
            is_write_through: kind.flags.contains(&"--write-through"),
            has_protection: kind.flags.contains(&"--protection"),
        };
        let seed = random.next();
        let writers =
            (0..).zip(WRITERS).map(|(number, protocol)| Writer::new(protocol, number, volume, seed)).collect();
        let (registrant, count) = (Registrant::new(), CutCount::default());
        Ok(Self { target, machine, spec, nvme, writers, registrant, count, cycles: 0 })
    }

    fn address(&self) -> Result<Address> {
        let target = self.target.as_ref().context("the target runs")?;
        Ok(Address { iscsi: target.portal, nvme: self.nvme, target: target.name.clone() })
    }

    /// Writes, cuts the power, starts again and checks.
    fn cycle(&mut self, lab: &Lab, random: &mut Random, tally: &mut Tally) -> Result<()> {
        let loss = Loss::EACH[usize::try_from(random.below(Loss::EACH.len() as u64))?];
        let promises = match self.cycles {
            0 => Promises::All,
            _ => Promises::EACH[usize::try_from(random.below(Promises::EACH.len() as u64))?],
        };
        self.cycles += 1;
        let context = || format!("{loss:?}, {promises:?}");
        self.writers.iter_mut().for_each(|writer| writer.promises = promises);
        self.write_and_cut(loss, 0, random).with_context(context)?;
        self.machine.power_on().with_context(context)?;
        self.target = Some(Target::start_after_kill(lab, &self.spec).context("start after the power cut")?);
        let address = self.address()?;
        for writer in &mut self.writers {
            let checked = writer.check(&address).with_context(context);
            tally.add(&std::mem::take(&mut writer.tally));
            checked?;
        }
        self.registrant.check(&address).with_context(context)
    }

    /// Cuts the power a random time after the writers have begun, and after this many promises.
    fn write_and_cut(&mut self, loss: Loss, promises: u64, random: &mut Random) -> Result<()> {
        let address = self.address()?;
        let progress = &Progress::default();
        let delay = Duration::from_millis(60 + random.below(240));
        let has_registrations = self.writers.iter().all(|writer| writer.promises == Promises::All);
        let Self { target, machine, writers, registrant, .. } = self;
        let address = &address;
        let count = std::thread::scope(|scope| {
            let threads: Vec<_> =
                writers.iter_mut().map(|writer| scope.spawn(|| writer.write_until_cut(address, progress))).collect();
            // The record of a registration is synchronised, and with it more than that record.
            let registers = has_registrations.then(|| scope.spawn(|| registrant.register_until_cut(address, progress)));
            let end = Instant::now() + BEGIN_LIMIT;
            // A writer that has ended has an error, which is returned below.
            while !(progress.has_reached(STEPS_MIN, promises) && (registers.is_none() || progress.has_changes()))
                && !threads.iter().any(|thread| thread.is_finished())
                && Instant::now() < end
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            std::thread::sleep(delay);
            progress.cut();
            let target = target.take().context("the target runs")?;
            let count = machine.cut(target, loss, random)?;
            for thread in threads.into_iter().chain(registers) {
                thread.join().map_err(|_| anyhow!("a writer panicked"))??;
            }
            anyhow::Ok(count)
        })?;
        self.count = CutCount { lost: self.count.lost + count.lost, left: self.count.left + count.left };
        Ok(())
    }

    fn stop(mut self) -> Result<()> {
        self.target.take().context("the target runs")?.stop()
    }
}

/// A test of the test: after writes without a promise, a power cut loses data in the cache of the disk.
fn unflushed_are_lost(lab: &Lab, driver: Driver, random: &mut Random) -> Result<()> {
    let mut bench = Bench::new(lab, driver, &DIRECT, "unflushed", random)?;
    bench.machine.sync()?;
    let address = bench.address()?;
    let writer = &mut bench.writers[0];
    let mut client = Client::open(WRITERS[0], &address, 0).context("login of a writer")?;
    writer.write_plain(&mut client, PLAIN_WRITES)?;
    let target = bench.target.take().context("the target runs")?;
    let count = bench.machine.cut(target, Loss::All, random)?;
    bench.machine.power_on()?;
    bench.target = Some(Target::start_after_kill(lab, &bench.spec).context("start after the power cut")?);
    let address = bench.address()?;
    let writer = &mut bench.writers[0];
    writer.check(&address)?;
    ensure!(count.lost > 0, "the cache of the disk was empty: {count:?}");
    ensure!(writer.tally.lost > 0, "no acknowledged write was lost: {:?}", writer.tally);
    bench.stop()
}

/// A test of the test: with disks that complete flushes and do nothing, durable writes are lost, and the writers
/// notice it.
fn flushes_are_needed(lab: &Lab, driver: Driver, random: &mut Random) -> Result<()> {
    let mut bench = Bench::new(lab, driver, &KINDS[0], "flushless", random)?;
    bench.machine.sync()?;
    bench.machine.disks.ignore_flushes();
    bench.write_and_cut(Loss::All, PROMISES_MIN, random)?;
    bench.machine.power_on()?;
    bench.target = Some(Target::start_after_kill(lab, &bench.spec).context("start after the power cut")?);
    let address = bench.address()?;
    let found = bench.writers.iter_mut().find_map(|writer| writer.check(&address).err());
    let found = found.context("lost durable writes were not noticed")?;
    ensure!(format!("{found:#}").contains("a durable write is lost"), "another failure: {found:#}");
    ensure!(bench.registrant.check(&address).is_err(), "a lost registration was not noticed");
    bench.stop()
}

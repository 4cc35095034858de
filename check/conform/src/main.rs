//! Conformance tests: runs real initiators and hosts, hostile clients and crashes against the built target, and reports
//! the results.

#![allow(missing_docs, reason = "a program has no public interface")]

mod chap;
mod closed_log;
mod copies;
mod crash;
mod daemon;
mod docs;
mod doctor;
mod explain;
mod guest;
mod handler;
mod hostile;
mod idle;
mod libiscsi;
mod life;
mod loop_device;
mod medium_rewrite;
mod metrics;
mod mounted_fs;
mod neighbours;
mod nvme;
mod page;
mod pdu;
mod power;
mod process;
mod rbd;
mod relay;
mod report;
mod reservations;
mod session;
mod spdk;
mod sst;
mod st;
mod station;
mod switch;
mod target;
mod test_data;
mod thin_space;
mod tools;
mod unit_attentions;
mod verifying_writer;
mod vfio;
mod vhost;
mod xdp;

use std::collections::VecDeque;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};

use rustix::fs::{FlockOperation, flock};

use report::Report;
use target::{Driver, ExternalTarget, Lab, Spec, Subject, Target};

/// Runs the conformance parts against the built target.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Parts to run; all parts if none is given
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Drivers of the reactor, in order; the first one runs all cases of each part
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["io_uring", "epoll"])]
    driver: Vec<Driver>,
    /// Program under test; by default the release build
    #[arg(long)]
    lunar: Option<PathBuf>,
    /// Test the development build, with overflow checks and assertions, instead of the release build
    #[arg(long, conflicts_with = "lunar")]
    checked: bool,
    /// Test a running target: iscsi://ADDRESS:PORT/NAME/LUN
    #[arg(long)]
    url: Option<ExternalTarget>,
    /// Process ID of that target, to watch its memory
    #[arg(long, requires = "url")]
    pid: Option<u32>,
    /// Crashes per driver
    #[arg(long, default_value_t = 50)]
    rounds: u32,
    /// Crashes per driver while the API applies a configuration
    #[arg(long, default_value_t = 20)]
    applies: u32,
    /// Power cuts per driver
    #[arg(long, default_value_t = 20)]
    cuts: u32,
    /// Seed of random choices
    #[arg(long)]
    seed: Option<u64>,
    /// Show the whole output of guests
    #[arg(long, short)]
    verbose: bool,
    /// The long form of the parts that have one: more samples, more kills, more emulators
    #[arg(long)]
    long: bool,
    /// Of the hostile neighbours, the comparisons and the guests with vhost-user, only those with this in their name;
    /// of the images of Ceph, only the comparison with their library: `rbd --only figures`; of the tape library, only
    /// the backup software: `tape --only bacula`; of ZFS, fills and suites, with few kills: `zfs --only fills`
    #[arg(long)]
    only: Option<String>,
    /// Write the pictures of the page into this folder: docs/web, for the documentation
    #[arg(long)]
    pictures: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    All,
    /// Start, stop, errors and options
    Life,
    /// iscsi-ls, iscsi-inq, qemu-img, qemu-io
    Tools,
    /// libiscsi's conformance suite
    Libiscsi,
    /// Malformed, oversized and endless requests, floods, clients that do not read
    Hostile,
    /// Attackers that take what others share, and the latency of their victims
    Neighbours,
    /// A real Prometheus that scrapes the daemon: metrics, rules, the queries of the dashboard
    Metrics,
    /// The commands of the documentation, and the tables of the performance model
    Docs,
    /// Problems of operators: `lunar explain` says the code, the words and the remedy, and the remedy mends them
    Explain,
    /// `lunar doctor` and `lunar top`: provoked conditions, their remedies, the numbers of the metrics
    Doctor,
    /// The page in a headless Chromium
    Page,
    /// CHAP authentication, with and without the right secret
    Chap,
    /// Changes of the configuration file while sessions exist, and kill -9 during changes
    Daemon,
    /// kill -9 while writing
    Crash,
    /// Power cuts of disks that lose what was not flushed
    Power,
    /// A Linux guest with open-iscsi, sg3_utils, file systems and fio
    Guest,
    /// A Linux guest with nvme-cli
    Nvme,
    /// NVMe authentication and TLS, on a newer kernel if necessary
    Authentication,
    /// 64 idle virtual machines: no processor time, little memory
    Idle,
    /// The group nvme of blktests, if LUNAR_BLKTESTS names a checkout of it
    Blktests,
    /// A Linux guest with systemd: the commands of the five-minute page, and those of an operator
    Service,
    /// A Linux guest on an NVMe controller of the target over vfio-user
    Vm,
    /// Linux guests on virtio disks of the target over vhost-user
    Vhost,
    /// A Linux guest with two paths to a volume: multipath, clusters, tools, copies by the target
    Paths,
    /// A Linux guest with ATA over Ethernet, over a link that loses frames
    Aoe,
    /// A Linux guest with Fibre Channel over Ethernet, over a link that loses frames
    Fcoe,
    /// A Linux guest with Fibre Channel over Ethernet, behind a switch that restarts
    Fabric,
    /// Volumes whose data handlers serve: the example in C, killed, stopped and missing; a hostile one
    Handler,
    /// Images of a real Ceph cluster: the handler, a store and the monitor killed; locks, the block list, snapshots
    Rbd,
    /// A Linux guest with SRP over software RoCE, on a network that loses packets
    Srp,
    /// A Linux guest with NVMe over software RoCE, on a network that loses packets
    NvmeRdma,
    /// A Linux guest with iSCSI over software RoCE (iSER), on a network that loses packets
    Iser,
    /// A Linux guest with SRP, iSER and NVMe/RDMA, whose target uses the RDMA device of the guest
    Verbs,
    /// Scheduled Transfer between two processes
    St,
    /// SCSI over Scheduled Transfer: loss, crashes, reservations beside iSCSI, hostile packets
    Sst,
    /// Raw Ethernet through XDP: AoE, Fibre Channel over Ethernet and SST beside other traffic, a kill
    Xdp,
    /// A Linux guest that serves disks of its own with ublk
    Ublk,
    /// A Linux guest with a disk that a process of its own serves with ublk, also without privileges
    UblkServer,
    /// A Linux guest with a file system on a volume of another Lunar, over SCSI over Scheduled Transfer and ublk
    Attach,
    /// A Linux guest that shares SCSI devices of its own among two initiators
    Device,
    /// A Linux guest that serves a partition and a namespace of an NVMe drive that its kernel goes on using
    Namespace,
    /// A Linux guest with a virtual tape library: mtx, mt, tar, kills
    Tape,
    /// A Linux guest that serves the zvols of a pool of ZFS of its own
    Zfs,
    /// Linux guests that compare Lunar with the kernel's own targets and disks, with `--long`
    Figures,
    /// The NVMe host of SPDK, if LUNAR_BENCH_SPDK names a build of it
    Spdk,
}

/// The drivers with which a part runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Drivers {
    /// The first one: its cases do not depend on the driver.
    First,
    /// The first one with `--checked` and without `--long`, as in `make test`; else each. These parts take long, and
    /// other parts use the same code with each driver.
    EachIfWhole,
    /// Each of them.
    Each,
}

impl Drivers {
    fn count(self, is_whole: bool, all: usize) -> usize {
        match self {
            Self::Each => all,
            Self::EachIfWhole if is_whole => all,
            Self::First | Self::EachIfWhole => all.min(1),
        }
    }
}

/// The order in which parts start, the longest first, except one that keeps the processors busy while packages for
/// guests are downloaded; the drivers; and the share of the machine that a part takes.
const ORDER: &[(Part, Drivers, usize)] = &[
    (Part::Libiscsi, Drivers::EachIfWhole, COMPUTES),
    (Part::Guest, Drivers::EachIfWhole, COMPUTES),
    (Part::Service, Drivers::First, COMPUTES),
    (Part::Paths, Drivers::First, WAITS),
    (Part::Nvme, Drivers::EachIfWhole, COMPUTES),
    (Part::Vm, Drivers::EachIfWhole, COMPUTES),
    (Part::Vhost, Drivers::EachIfWhole, WAITS),
    (Part::Authentication, Drivers::First, COMPUTES),
    (Part::Aoe, Drivers::First, WAITS),
    (Part::Fcoe, Drivers::First, WAITS),
    (Part::Fabric, Drivers::First, WAITS),
    (Part::Srp, Drivers::First, WAITS),
    (Part::NvmeRdma, Drivers::First, WAITS),
    (Part::Iser, Drivers::First, WAITS),
    (Part::Verbs, Drivers::First, WAITS),
    (Part::Ublk, Drivers::First, WAITS),
    (Part::UblkServer, Drivers::First, WAITS),
    (Part::Attach, Drivers::First, WAITS),
    (Part::Device, Drivers::First, WAITS),
    (Part::Namespace, Drivers::EachIfWhole, WAITS),
    (Part::Tape, Drivers::First, COMPUTES),
    (Part::Zfs, Drivers::First, WAITS),
    (Part::Figures, Drivers::First, COMPUTES),
    (Part::Blktests, Drivers::First, COMPUTES),
    (Part::Spdk, Drivers::First, COMPUTES),
    (Part::St, Drivers::First, WAITS),
    (Part::Page, Drivers::First, COMPUTES),
    (Part::Rbd, Drivers::First, COMPUTES),
    (Part::Handler, Drivers::EachIfWhole, WAITS),
    (Part::Sst, Drivers::EachIfWhole, WAITS),
    (Part::Xdp, Drivers::EachIfWhole, WAITS),
    (Part::Explain, Drivers::First, WAITS),
    (Part::Daemon, Drivers::EachIfWhole, WAITS),
    (Part::Doctor, Drivers::First, WAITS),
    (Part::Docs, Drivers::First, WAITS),
    (Part::Metrics, Drivers::First, WAITS),
    (Part::Tools, Drivers::EachIfWhole, COMPUTES),
    (Part::Hostile, Drivers::EachIfWhole, WAITS),
    (Part::Neighbours, Drivers::EachIfWhole, COMPUTES),
    (Part::Crash, Drivers::Each, WAITS),
    (Part::Power, Drivers::Each, WAITS),
    (Part::Life, Drivers::Each, WAITS),
    (Part::Chap, Drivers::EachIfWhole, WAITS),
    (Part::Idle, Drivers::Each, WAITS),
];

/// The shares for parts that run at the same time on two processors: three parts that compute, or five parts that
/// mostly wait. Guests whose cases wait for time-outs and for a load of fixed time use a processor for less than half
/// of it.
const SHARES: usize = 15;
const COMPUTES: usize = 5;
const WAITS: usize = 3;

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("conform: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<bool> {
    let base = build_folder()?.join("conform");
    let scratch = base.join("scratch");
    let _lock = lock(&base)?;
    remove_scratch(&scratch)?;
    std::fs::create_dir_all(&scratch).with_context(|| format!("{}", scratch.display()))?;
    let is_whole = arguments.long || !arguments.checked;
    let subject = match arguments.url {
        Some(outside) => Subject::External(ExternalTarget { pid: arguments.pid, ..outside }),
        None => Subject::Built(match arguments.lunar {
            Some(path) => path,
            None => build(arguments.checked)?,
        }),
    };
    let seed = arguments.seed.unwrap_or_else(|| u64::from(std::process::id()));
    let Arguments { rounds, applies, cuts, verbose, long, only, pictures, .. } = arguments;
    let report = Arc::new(Report::new());
    let lab =
        Lab { subject, scratch, report, seed, rounds, applies, cuts, verbose, long, whole: is_whole, only, pictures };
    lab.report.note(&format!("seed {seed}"));
    let everything = arguments.parts.is_empty() || arguments.parts.contains(&Part::All);
    let drivers: Vec<Driver> = arguments.driver.into_iter().filter(|driver| usable(&lab, *driver)).collect();
    let wanted = |part: &Part| everything || arguments.parts.contains(part);
    let jobs = ORDER.iter().filter(|(part, ..)| wanted(part)).flat_map(|(part, each, shares)| {
        drivers[..each.count(is_whole, drivers.len())]
            .iter()
            .enumerate()
            .map(|(at, driver)| (*shares, (*part, *driver, at == 0)))
    });
    run_in_shares(SHARES, jobs.collect(), |(part, driver, main_driver)| run_part(&lab, part, driver, main_driver));
    Ok(lab.report.finish(&base.join("results.md")))
}

/// Runs jobs in order, as many at the same time as there are shares for.
fn run_in_shares<T: Send>(shares: usize, jobs: VecDeque<(usize, T)>, work: impl Fn(T) + Sync) {
    let most = jobs.iter().map(|(share, _)| shares / share).max().unwrap_or(0);
    let (state, freed) = (Mutex::new((shares, jobs)), Condvar::new());
    let worker = || {
        loop {
            let waits =
                |(free, jobs): &mut (usize, VecDeque<(usize, T)>)| jobs.front().is_some_and(|job| job.0 > *free);
            let lock = state.lock().unwrap_or_else(PoisonError::into_inner);
            let mut lock = freed.wait_while(lock, waits).unwrap_or_else(PoisonError::into_inner);
            let Some((share, job)) = lock.1.pop_front() else { return };
            lock.0 -= share;
            drop(lock);
            // Return the share even after a panic, because other jobs wait for it.
            let outcome = catch_unwind(AssertUnwindSafe(|| work(job)));
            state.lock().unwrap_or_else(PoisonError::into_inner).0 += share;
            freed.notify_all();
            outcome.unwrap_or_else(|panic| resume_unwind(panic));
        }
    };
    std::thread::scope(|scope| (0..most).for_each(|_| _ = scope.spawn(worker)));
}

/// Runs a part. An error that prevents the part from running is a failed case of its own.
fn run_part(lab: &Lab, part: Part, driver: Driver, main_driver: bool) {
    let name = part.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    lab.report.note(&format!("{name} on {}", driver.name()));
    let folder = format!("{name}-{}", driver.name());
    let run = || {
        let lab = &lab.in_folder(&folder)?;
        match part {
            Part::Tools => tools::part(lab, driver),
            Part::Libiscsi => libiscsi::part(lab, driver, main_driver),
            Part::Guest => guest::part(lab, driver, main_driver),
            Part::Nvme => guest::nvme_part(lab, driver, main_driver),
            Part::Authentication => guest::authentication(lab, driver),
            Part::Blktests => guest::blktests(lab, driver),
            Part::Spdk => spdk::part(lab, driver),
            Part::Vm => guest::vm(lab, driver, main_driver),
            Part::Vhost => guest::vhost(lab, driver, main_driver),
            Part::Paths => guest::paths(lab, driver),
            Part::Service => guest::service(lab, driver),
            Part::Aoe => guest::aoe(lab, driver),
            Part::Fcoe => guest::fcoe(lab, driver),
            Part::Fabric => guest::fabric(lab, driver),
            Part::Srp => guest::srp(lab, driver),
            Part::NvmeRdma => guest::nvme_rdma(lab, driver),
            Part::Iser => guest::iser(lab, driver),
            Part::Verbs => guest::verbs(lab, driver),
            Part::Ublk => guest::ublk(lab, driver),
            Part::UblkServer => guest::ublk_server(lab, driver),
            Part::Attach => guest::attach(lab, driver),
            Part::St => st::part(lab),
            Part::Handler => handler::part(lab, driver),
            Part::Rbd => rbd::part(lab, driver),
            Part::Sst => sst::part(lab, driver),
            Part::Xdp => xdp::part(lab, driver),
            Part::Device => guest::device(lab, driver),
            Part::Zfs => guest::zfs(lab, driver),
            Part::Figures => guest::figures(lab, driver),
            Part::Namespace => guest::namespace(lab, driver),
            Part::Tape => guest::tape(lab, driver),
            Part::Hostile => hostile::part(lab, driver, main_driver),
            Part::Neighbours => neighbours::part(lab, driver),
            Part::Chap => chap::part(lab, driver),
            Part::Idle => idle::part(lab, driver),
            Part::Metrics => metrics::part(lab, driver),
            Part::Docs => docs::part(lab, driver),
            Part::Explain => explain::part(lab, driver),
            Part::Doctor => doctor::part(lab, driver),
            Part::Page => page::part(lab, driver),
            Part::Life => life::part(lab, driver),
            Part::Daemon if main_driver => daemon::part(lab, driver, lab.rounds, lab.applies),
            Part::Daemon => daemon::part(lab, driver, lab.rounds / 2, lab.applies / 2),
            // Half as many crashes for further drivers: the code after a crash does not depend on the driver.
            Part::Crash => crash::part(lab, driver, if main_driver { lab.rounds } else { lab.rounds / 2 }),
            Part::Power => power::part(lab, driver, if main_driver { lab.cuts } else { lab.cuts / 2 }),
            Part::All => Ok(()),
        }
    };
    lab.report.check_quietly(&name, "the part runs", run);
    // All parts together would need tens of gigabytes. The files of a failure stay.
    if !lab.report.has_failed(&name) {
        let _ = std::fs::remove_dir_all(lab.scratch.join(folder));
    }
}

/// Whether a driver works here. Containers may forbid io_uring; then that is reported and only the other driver is
/// tested.
fn usable(lab: &Lab, driver: Driver) -> bool {
    if matches!(lab.subject, Subject::External(_)) {
        return driver == Driver::IoUring;
    }
    let mut usable = false;
    lab.report.check("drivers", driver.name(), || {
        let target = Target::start(lab, &Spec::new(driver, ["ram:1M"])?);
        match target {
            Ok(target) => {
                usable = true;
                target.stop()
            }
            Err(error) if driver == Driver::IoUring && format!("{error:#}").contains("io_uring") => {
                report::skip(format!("not available here: {error:#}"))
            }
            Err(error) => Err(error),
        }
    });
    usable
}

/// Removes the logs and images of earlier runs, which cases would find in the place of their own.
fn remove_scratch(scratch: &Path) -> Result<()> {
    match std::fs::remove_dir_all(scratch) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).with_context(|| {
            format!("{}: if a run was killed, unmount what it has mounted there (findmnt)", scratch.display())
        }),
        _ => Ok(()),
    }
}

/// Prevents a second run at the same time, which would use the same images. The lock ends with the file.
fn lock(base: &Path) -> Result<File> {
    std::fs::create_dir_all(base).with_context(|| format!("{}", base.display()))?;
    let lock = File::create(base.join("lock"))?;
    let taken = flock(&lock, FlockOperation::NonBlockingLockExclusive);
    taken.with_context(|| format!("another run is in progress in {}", base.display()))?;
    Ok(lock)
}

/// Cargo's target folder, which is two levels above this program.
fn build_folder() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.parent().and_then(Path::parent).context("the program is not in a build folder of cargo")?;
    Ok(folder.to_owned())
}

/// The variable with the features of the build with checks.
const FEATURES: &str = "LUNAR_FEATURES";

/// Builds the target, in release or with checks.
fn build(checked: bool) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(cargo);
    command.args(["build", "--locked"]).current_dir(root);
    command.args(if checked {
        &["--bins"][..]
    } else {
        &["--release", "-p", "lunar", "-p", "lunar-st", "-p", "lunar-rbd", "-p", "lunar-tape"]
    });
    // With those of the build of this program, the programs are there already.
    if let Some(features) = std::env::var_os(FEATURES).filter(|_| checked) {
        command.arg("--features").arg(features);
    }
    let status = command.status().context("cannot start cargo")?;
    ensure!(status.success(), "the target does not build");
    Ok(build_folder()?.join(if checked { "debug/lunar" } else { "release/lunar" }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn jobs_run_within_the_shares_and_all_end() {
        let (taken, most, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let jobs =
            [COMPUTES, COMPUTES, COMPUTES, COMPUTES, WAITS, WAITS, WAITS, WAITS, WAITS].map(|share| (share, share));
        run_in_shares(SHARES, jobs.into(), |share| {
            most.fetch_max(taken.fetch_add(share, Ordering::SeqCst) + share, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            taken.fetch_sub(share, Ordering::SeqCst);
            done.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!((taken.into_inner(), done.into_inner()), (0, jobs.len()));
        assert!(
            (COMPUTES + 1..=SHARES).contains(&most.into_inner()),
            "several jobs run at the same time, and not more than there are shares for"
        );
    }
}

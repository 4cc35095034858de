//! Drives real initiators, hostile clients and crashes against the built target, and tells how it went.

#![allow(missing_docs, reason = "a program: what is public here is seen by nobody else")]

mod chap;
mod closed_log;
mod copies;
mod crash;
mod daemon;
mod guest;
mod hostile;
mod libiscsi;
mod life;
mod loop_device;
mod medium_rewrite;
mod mounted_fs;
mod nvme;
mod pdu;
mod process;
mod report;
mod reservations;
mod session;
mod spdk;
mod target;
mod test_data;
mod thin_space;
mod tools;
mod unit_attentions;
mod verifying_writer;
mod vfio;

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
    /// What to run; everything if nothing is named
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// The ways the reactor does its work, in order; the first gets the whole of each part
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["io_uring", "epoll"])]
    driver: Vec<Driver>,
    /// The program under test; built in release if not given
    #[arg(long)]
    lunar: Option<PathBuf>,
    /// Test the program with the checks of a development build (overflows, assertions), not as users get it
    #[arg(long, conflicts_with = "lunar")]
    checked: bool,
    /// Test a target that runs already: iscsi://ADDRESS:PORT/NAME/LUN
    #[arg(long)]
    url: Option<ExternalTarget>,
    /// Its process, to watch its memory
    #[arg(long, requires = "url")]
    pid: Option<u32>,
    /// Crashes per driver
    #[arg(long, default_value_t = 50)]
    rounds: u32,
    /// Crashes per driver while the API puts a configuration in force
    #[arg(long, default_value_t = 20)]
    applies: u32,
    /// Where random choices start
    #[arg(long)]
    seed: Option<u64>,
    /// Show all that guests say
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    All,
    /// Start, stop, refusals, options
    Life,
    /// iscsi-ls, iscsi-inq, qemu-img, qemu-io
    Tools,
    /// libiscsi's conformance suite
    Libiscsi,
    /// Malformed, oversized and endless requests, floods, peers that do not read
    Hostile,
    /// Names that are proved, and those who try without the secret
    Chap,
    /// A file that changes while initiators are there, and kill -9 while it does
    Daemon,
    /// kill -9 while writing
    Crash,
    /// A stock kernel with open-iscsi, sg3_utils, file systems and fio
    Guest,
    /// The same with nvme-cli
    Nvme,
    /// A newer kernel, if need be, that proves its name to NVMe subsystems
    Proofs,
    /// The same with blktests' group nvme, if LUNAR_BLKTESTS names a checkout of it
    Blktests,
    /// The same with systemd: the commands of the five-minute page, and what an operator does
    Service,
    /// The same kernel in a virtual machine whose NVMe controller is ours
    Vm,
    /// The same kernel with two paths to a volume: multipath, clusters, tools, copies by the target
    Paths,
    /// SPDK's own NVMe host, if LUNAR_BENCH_SPDK names a build of it
    Spdk,
}

/// The order in which parts start, those that take longest first but for one that keeps processors busy while packages
/// for guests are fetched; whether anything in them depends on the driver; and the room that each takes.
const ORDER: [(Part, bool, usize); 15] = [
    (Part::Libiscsi, true, WORKS),
    (Part::Guest, true, WORKS),
    (Part::Service, false, WORKS),
    (Part::Paths, false, WORKS),
    (Part::Nvme, true, WORKS),
    (Part::Vm, true, WORKS),
    (Part::Proofs, false, WORKS),
    (Part::Blktests, false, WORKS),
    (Part::Spdk, false, WORKS),
    (Part::Hostile, true, WAITS),
    (Part::Crash, true, WAITS),
    (Part::Life, true, WAITS),
    (Part::Daemon, true, WAITS),
    (Part::Tools, true, WAITS),
    (Part::Chap, true, WAITS),
];

/// Room for parts that run at once, on two processors: three that work, most of them guests, which keep one processor
/// busy with emulation; or five that wait more than they work.
const ROOM: usize = 15;
const WORKS: usize = 5;
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
    let _lock = alone(&base)?;
    // Logs and images of earlier runs only confuse.
    let _ = std::fs::remove_dir_all(&scratch);
    std::fs::create_dir_all(&scratch).with_context(|| format!("{}", scratch.display()))?;
    let subject = match arguments.url {
        Some(outside) => Subject::External(ExternalTarget { pid: arguments.pid, ..outside }),
        None => Subject::Built(match arguments.lunar {
            Some(path) => path,
            None => build(arguments.checked)?,
        }),
    };
    let seed = arguments.seed.unwrap_or_else(|| u64::from(std::process::id()));
    let Arguments { rounds, applies, verbose, .. } = arguments;
    let lab = Lab { subject, scratch, report: Arc::new(Report::new()), seed, rounds, applies, verbose };
    lab.report.note(&format!("seed {seed}"));
    let everything = arguments.parts.is_empty() || arguments.parts.contains(&Part::All);
    let drivers: Vec<Driver> = arguments.driver.into_iter().filter(|driver| usable(&lab, *driver)).collect();
    let wanted = |part: &Part| everything || arguments.parts.contains(part);
    let jobs = ORDER.iter().filter(|(part, ..)| wanted(part)).flat_map(|(part, each, room)| {
        let count = if *each { drivers.len() } else { drivers.len().min(1) };
        drivers[..count].iter().enumerate().map(|(at, driver)| (*room, (*part, *driver, at == 0)))
    });
    in_room(ROOM, jobs.collect(), |(part, driver, main_driver)| one(&lab, part, driver, main_driver));
    Ok(lab.report.finish(&base.join("results.md")))
}

/// Works on jobs in their order, as many at once as there is room for.
fn in_room<T: Send>(room: usize, jobs: VecDeque<(usize, T)>, work: impl Fn(T) + Sync) {
    let most = jobs.iter().map(|(takes, _)| room / takes).max().unwrap_or(0);
    let (state, freed) = (Mutex::new((room, jobs)), Condvar::new());
    let worker = || {
        loop {
            let waits =
                |(free, jobs): &mut (usize, VecDeque<(usize, T)>)| jobs.front().is_some_and(|job| job.0 > *free);
            let lock = state.lock().unwrap_or_else(PoisonError::into_inner);
            let mut lock = freed.wait_while(lock, waits).unwrap_or_else(PoisonError::into_inner);
            let Some((takes, job)) = lock.1.pop_front() else { return };
            lock.0 -= takes;
            drop(lock);
            // Whatever becomes of it: who waits for its room shall not wait for ever.
            let outcome = catch_unwind(AssertUnwindSafe(|| work(job)));
            state.lock().unwrap_or_else(PoisonError::into_inner).0 += takes;
            freed.notify_all();
            outcome.unwrap_or_else(|panic| resume_unwind(panic));
        }
    };
    std::thread::scope(|scope| (0..most).for_each(|_| _ = scope.spawn(worker)));
}

/// Runs a part; what keeps a part from running at all is a failed case of its own.
fn one(lab: &Lab, part: Part, driver: Driver, main_driver: bool) {
    let name = part.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    lab.report.note(&format!("{name} on {}", driver.name()));
    let run = || {
        let lab = &lab.room(&format!("{name}-{}", driver.name()))?;
        match part {
            Part::Tools => tools::part(lab, driver),
            Part::Libiscsi => libiscsi::part(lab, driver, main_driver),
            Part::Guest => guest::part(lab, driver, main_driver),
            Part::Nvme => guest::nvme_part(lab, driver, main_driver),
            Part::Proofs => guest::proofs(lab, driver),
            Part::Blktests => guest::blktests(lab, driver),
            Part::Spdk => spdk::part(lab, driver),
            Part::Vm => guest::machine(lab, driver, main_driver),
            Part::Paths => guest::paths(lab, driver),
            Part::Service => guest::service(lab, driver),
            Part::Hostile => hostile::part(lab, driver, main_driver),
            Part::Chap => chap::part(lab, driver),
            Part::Life => life::part(lab, driver),
            Part::Daemon if main_driver => daemon::part(lab, driver, lab.rounds, lab.applies),
            Part::Daemon => daemon::part(lab, driver, lab.rounds / 2, lab.applies / 2),
            // Half as many crashes for drivers after the first: what follows a crash is the same code.
            Part::Crash => crash::part(lab, driver, if main_driver { lab.rounds } else { lab.rounds / 2 }),
            Part::All => Ok(()),
        }
    };
    lab.report.check_quietly(&name, "the part itself", run);
}

/// A container may forbid io_uring; that is said, and the other driver is tested alone.
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
                report::skip(format!("refused here: {error:#}"))
            }
            Err(error) => Err(error),
        }
    });
    usable
}

/// Two runs at once would take each other's images. The lock goes with the file.
fn alone(base: &Path) -> Result<File> {
    std::fs::create_dir_all(base).with_context(|| format!("{}", base.display()))?;
    let lock = File::create(base.join("lock"))?;
    let taken = flock(&lock, FlockOperation::NonBlockingLockExclusive);
    taken.with_context(|| format!("another run is going on in {}", base.display()))?;
    Ok(lock)
}

/// Where cargo puts what it builds: our own program lies two levels below.
fn build_folder() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.parent().and_then(Path::parent).context("the program lies in no build folder")?;
    Ok(folder.to_owned())
}

/// Builds the target as users get it, or with checks.
fn build(checked: bool) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(cargo);
    command.args(["build", "--locked"]).current_dir(root);
    // Of the workspace's programs those were built with these features already whom tests need.
    command.args(if checked { &["--bins"][..] } else { &["--release", "-p", "lunar"] });
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
    fn jobs_take_the_room_there_is_and_all_are_done() {
        let (taken, most, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let jobs = [WORKS, WORKS, WORKS, WORKS, WAITS, WAITS, WAITS, WAITS, WAITS].map(|takes| (takes, takes));
        in_room(ROOM, jobs.into(), |takes| {
            most.fetch_max(taken.fetch_add(takes, Ordering::SeqCst) + takes, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            taken.fetch_sub(takes, Ordering::SeqCst);
            done.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!((taken.into_inner(), done.into_inner()), (0, jobs.len()));
        assert!(
            (WORKS + 1..=ROOM).contains(&most.into_inner()),
            "several at once, and not more than there is room for"
        );
    }
}

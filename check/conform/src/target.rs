//! The target under test: starts the program, waits until it serves, and stops or kills it.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::process;
use crate::report::{Report, skip};
use crate::session;

/// How long a target may take to open its ports.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long a target may take to drain.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// How long the kernel may take to clean up after a killed process.
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(2);
/// The address of this machine's loopback in QEMU's user network.
pub(crate) const HOST_AS_GUEST_SEES_IT: &str = "10.0.2.2";
/// The same on the second network card of a guest.
pub(crate) const HOST_BY_THE_OTHER_NETWORK: &str = "10.0.3.2";

/// The drivers of the reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Driver {
    #[value(name = "io_uring")]
    IoUring,
    Epoll,
}

impl Driver {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Epoll => "epoll",
        }
    }
}

/// A target that was not started by this program, to test the harness itself.
#[derive(Clone, Debug)]
pub(crate) struct ExternalTarget {
    pub portal: SocketAddr,
    pub name: String,
    pub lun: u16,
    pub pid: Option<u32>,
}

impl std::str::FromStr for ExternalTarget {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self> {
        let rest = url.strip_prefix("iscsi://").context("an iscsi:// URL is expected")?;
        let mut parts = rest.split('/');
        let (portal, name, lun) = (parts.next(), parts.next(), parts.next());
        Ok(Self {
            portal: portal.unwrap_or_default().parse().context("ADDRESS:PORT is expected")?,
            name: name.context("the URL names no target")?.to_owned(),
            lun: lun.context("the URL names no LUN")?.parse()?,
            pid: None,
        })
    }
}

/// The subject of the tests.
#[derive(Clone)]
pub(crate) enum Subject {
    /// The built program.
    Built(PathBuf),
    External(ExternalTarget),
}

/// The environment of all parts.
pub(crate) struct Lab {
    pub subject: Subject,
    /// Folder of disk images and logs; on a real file system, so that direct I/O works.
    pub scratch: PathBuf,
    pub report: Arc<Report>,
    pub seed: u64,
    pub rounds: u32,
    pub applies: u32,
    pub cuts: u32,
    pub verbose: bool,
    /// Measure hostile neighbours with many samples.
    pub long: bool,
    /// Run all cases of the guests; the short form leaves some out.
    pub whole: bool,
    /// Only the attacks of hostile neighbours with this in their name.
    pub only: Option<String>,
    /// Folder for the pictures of the page in the documentation.
    pub pictures: Option<PathBuf>,
}

impl Lab {
    /// The same environment with a scratch folder of its own, for parts that run at the same time.
    pub(crate) fn in_folder(&self, name: &str) -> Result<Self> {
        let scratch = self.scratch.join(name);
        std::fs::create_dir_all(&scratch).with_context(|| format!("{}", scratch.display()))?;
        let (subject, report) = (self.subject.clone(), self.report.clone());
        let (only, pictures) = (self.only.clone(), self.pictures.clone());
        Ok(Self { subject, scratch, report, only, pictures, ..*self })
    }

    /// Settings for the script of a guest: those of its part, and the form of the run.
    pub(crate) fn settings_of_guest(&self, settings: &str) -> String {
        let form = |is_so: bool, line: &'static str| if is_so { line } else { "" };
        format!("{settings}{}{}", form(self.whole, "WHOLE=yes\n"), form(self.long, "LONG=yes\n"))
    }

    /// The built program; skips the case if there is none.
    pub(crate) fn built(&self) -> Result<&Path> {
        match &self.subject {
            Subject::Built(path) => Ok(path),
            Subject::External(_) => skip("the target was not started by this program"),
        }
    }

    /// A path in the scratch folder without a file.
    pub(crate) fn fresh(&self, name: &str) -> Result<PathBuf> {
        let path = self.scratch.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error)?,
            _ => Ok(path),
        }
    }

    /// A sparse image of `mib` MiB in the scratch folder, as a volume argument.
    pub(crate) fn image(&self, name: &str, mib: u64) -> Result<String> {
        let path = self.fresh(name)?;
        File::create(&path)?.set_len(mib << 20)?;
        Ok(path.to_str().context("the name of the scratch folder is not UTF-8")?.to_owned())
    }
}

/// A program of the workspace that serves volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Program {
    /// The program under test.
    Lunar,
    /// The same with the example back ends.
    Examples,
}

impl Program {
    fn path(self, lab: &Lab) -> Result<PathBuf> {
        let built = lab.built()?;
        match self {
            Self::Lunar => Ok(built.to_owned()),
            // It is built together with this program.
            Self::Examples => Ok(std::env::current_exe()?.with_file_name("lunar-examples")),
        }
    }
}

/// How to start the target.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub program: Program,
    pub driver: Driver,
    pub volumes: Vec<String>,
    pub flags: Vec<String>,
    pub listen: Vec<SocketAddr>,
    /// Advertise the addresses by which a QEMU guest reaches the IPv4 portals, each on a network of its own.
    pub for_guest: bool,
    /// Run `lunar daemon` with this configuration file instead of `lunar serve`.
    pub daemon: Option<PathBuf>,
    /// The state folder; in the scratch folder unless given.
    pub state: Option<PathBuf>,
}

impl Spec {
    /// One free port on the loopback; LUNs in the order of `volumes`.
    pub(crate) fn new(driver: Driver, volumes: impl IntoIterator<Item = impl Into<String>>) -> Result<Self> {
        let volumes = volumes.into_iter().map(Into::into).collect();
        Ok(Self {
            program: Program::Lunar,
            driver,
            volumes,
            flags: Vec::new(),
            listen: vec![free_port()?],
            for_guest: false,
            daemon: None,
            state: None,
        })
    }

    pub(crate) fn flags(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    /// The command line after the program's name.
    fn arguments(&self) -> Vec<String> {
        if let Some(file) = &self.daemon {
            return vec!["daemon".to_owned(), "--config".to_owned(), file.display().to_string()];
        }
        let mut arguments = vec!["serve".to_owned(), "--driver".to_owned(), self.driver.name().to_owned()];
        for portal in &self.listen {
            arguments.extend(["--listen".to_owned(), portal.to_string()]);
        }
        if self.for_guest {
            let portals = self.listen.iter().filter(|portal| portal.is_ipv4());
            for (host, portal) in [HOST_AS_GUEST_SEES_IT, HOST_BY_THE_OTHER_NETWORK].iter().zip(portals) {
                arguments.extend(["--advertise".to_owned(), format!("{host}:{}", portal.port())]);
            }
        }
        arguments.extend(self.flags.iter().cloned());
        arguments.extend(self.volumes.iter().cloned());
        arguments
    }

    pub(crate) fn portal(&self) -> SocketAddr {
        self.listen[0]
    }
}

/// Below the ephemeral ports of the kernel, of which floods use thousands.
const PORT_RANGE: RangeInclusive<u16> = 12_000..=32_000;

/// A port of the loopback that is free and that no other target of this run gets.
pub(crate) fn free_port() -> Result<SocketAddr> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(PORT_RANGE.end() - PORT_RANGE.start());
    for _ in 0..count {
        // Processes that run at the same time begin at different ports.
        let at = NEXT.fetch_add(1, Relaxed).wrapping_add(std::process::id().wrapping_mul(257)) % count;
        let port = PORT_RANGE.start() + u16::try_from(at)?;
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return Ok(listener.local_addr()?);
        }
    }
    bail!("no port of the loopback is free")
}

/// The log of a target: one file per port.
pub(crate) fn log_path(lab: &Lab, portal: SocketAddr) -> PathBuf {
    lab.scratch.join(format!("target-{}.log", portal.port()))
}

/// Starts the program without waiting.
pub(crate) fn launch(lab: &Lab, spec: &Spec) -> Result<(Child, PathBuf)> {
    let path = log_path(lab, spec.portal());
    let log = File::options().create(true).append(true).open(&path)?;
    let mut command = process::bound(&spec.program.path(lab)?);
    command.args(spec.arguments()).stdout(log.try_clone()?).stderr(log).env("RUST_BACKTRACE", "1");
    // Metadata of volumes is stored in the scratch folder.
    command.env("STATE_DIRECTORY", spec.state.clone().unwrap_or_else(|| lab.scratch.join("state")));
    let runtime = lab.scratch.join("run");
    std::fs::create_dir_all(&runtime)?;
    command.env("RUNTIME_DIRECTORY", runtime);
    Ok((command.spawn().context("cannot start the target")?, path))
}

/// A running target. Dropping it kills it.
pub(crate) struct Target {
    child: Option<Child>,
    pub portal: SocketAddr,
    pub name: String,
    /// The LUN of the first volume.
    pub lun: u16,
    pub log: PathBuf,
    pid: Option<u32>,
}

impl Target {
    /// Starts the subject and waits until it accepts connections.
    pub(crate) fn start(lab: &Lab, spec: &Spec) -> Result<Self> {
        if let Subject::External(outside) = &lab.subject {
            let ExternalTarget { portal, name, lun, pid } = outside.clone();
            return Ok(Self { child: None, portal, name, lun, log: PathBuf::new(), pid });
        }
        let mut target = Self::launched(lab, spec)?;
        target.name = target.discover()?;
        Ok(target)
    }

    /// Starts a target whose name is known, and which discovery does not list.
    pub(crate) fn start_named(lab: &Lab, spec: &Spec, name: &str) -> Result<Self> {
        let mut target = Self::launched(lab, spec)?;
        name.clone_into(&mut target.name);
        Ok(target)
    }

    /// Starts a daemon with `start`, and waits until its log says that it serves: fronts without portals are ready
    /// then, too.
    pub(crate) fn start_daemon(lab: &Lab, spec: &Spec, start: fn(&Lab, &Spec) -> Result<Self>) -> Result<Self> {
        let log = || std::fs::read_to_string(log_path(lab, spec.portal())).unwrap_or_default();
        let before = log().len();
        let target = start(lab, spec)?;
        let end = Instant::now() + START_LIMIT;
        while !log().get(before..).is_some_and(|added| added.contains("lunar serves")) {
            ensure!(Instant::now() < end, "the daemon does not report that it serves: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(target)
    }

    /// Starts the program and waits until all its ports are open.
    fn launched(lab: &Lab, spec: &Spec) -> Result<Self> {
        let (mut child, log) = launch(lab, spec)?;
        let end = Instant::now() + START_LIMIT;
        for portal in &spec.listen {
            while TcpStream::connect_timeout(portal, Duration::from_secs(1)).is_err() {
                if let Some(status) = child.try_wait()? {
                    bail!("the target ended at start, {status}; its log ends with:\n{}", tail(&log));
                }
                if Instant::now() > end {
                    child.kill()?;
                    child.wait()?;
                    bail!(
                        "{portal} is not open after {} s; the log of the target ends with:\n{}",
                        START_LIMIT.as_secs(),
                        tail(&log)
                    );
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let pid = Some(child.id());
        Ok(Self { child: Some(child), portal: spec.portal(), name: String::new(), lun: 0, log, pid })
    }

    /// Like [`Target::start`], after a `kill -9`. The kernel closes the descriptors of an io_uring a moment after its
    /// process has ended; until then a connection may still reach the old listener. Initiators try again, and so does
    /// this.
    pub(crate) fn start_after_kill(lab: &Lab, spec: &Spec) -> Result<Self> {
        let mut target = Self::launched(lab, spec)?;
        let end = Instant::now() + CLEAN_UP_LIMIT;
        target.name = loop {
            match target.discover() {
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
                outcome => break outcome?,
            }
        };
        Ok(target)
    }

    /// The name of the only target at the portal.
    fn discover(&self) -> Result<String> {
        match session::discover(self.portal)?.into_iter().next() {
            Some(found) => Ok(found.name),
            None => bail!("discovery names no target"),
        }
    }

    /// `iscsi://ADDRESS:PORT/NAME/LUN`, for a volume counted from the first.
    pub(crate) fn url(&self, volume: u16) -> String {
        format!("iscsi://{}/{}/{}", self.portal, self.name, self.lun + volume)
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// An error if the target has ended or panicked.
    pub(crate) fn healthy(&mut self) -> Result<()> {
        if let Some(child) = &mut self.child {
            if let Some(status) = child.try_wait()? {
                bail!("the target ended, {status}; its log ends with:\n{}", tail(&self.log));
            }
            let said = std::fs::read_to_string(&self.log).unwrap_or_default();
            if let Some(at) = said.find("panicked at") {
                let lines: Vec<&str> = said[at..].lines().take(25).collect();
                bail!("the target {}", lines.join("\n"));
            }
        }
        Ok(())
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        process::signal(self.child.as_ref().context("the target was not started by this program")?, signal)
    }

    /// Sends a signal, waits for the end, and returns the exit status.
    pub(crate) fn end(mut self, signal: Signal) -> Result<ExitStatus> {
        let Some(child) = &mut self.child else { bail!("the target was not started by this program") };
        process::signal(child, signal)?;
        match process::wait(child, STOP_LIMIT)? {
            Some(status) => Ok(status),
            None => bail!(
                "still running {} s after {signal:?}; its log ends with:\n{}",
                STOP_LIMIT.as_secs(),
                tail(&self.log)
            ),
        }
    }

    /// Drains the target: it must exit with success, and must not have panicked.
    pub(crate) fn stop(mut self) -> Result<()> {
        if self.child.is_none() {
            return Ok(());
        }
        self.healthy()?;
        let log = self.log.clone();
        let status = self.end(Signal::TERM)?;
        if !status.success() {
            bail!("it did not drain: {status}; its log ends with:\n{}", tail(&log));
        }
        Ok(())
    }

    /// Kills the process, without a flush or a logout.
    pub(crate) fn kill(mut self) -> Result<()> {
        let Some(child) = &mut self.child else { bail!("the target was not started by this program") };
        child.kill()?;
        child.wait()?;
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    process::last_lines(&std::fs::read_to_string(log).unwrap_or_default(), 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_has_flags_before_volumes() {
        let mut spec = Spec::new(Driver::Epoll, ["ram:1M"]).unwrap().flags(&["--read-only"]);
        spec.listen = vec!["127.0.0.1:4000".parse().unwrap()];
        spec.for_guest = true;
        let line = spec.arguments().join(" ");
        assert_eq!(line, "serve --driver epoll --listen 127.0.0.1:4000 --advertise 10.0.2.2:4000 --read-only ram:1M");
    }

    #[test]
    fn a_url_names_an_external_target() {
        let outside: ExternalTarget = "iscsi://127.0.0.1:3280/iqn.2001-04.org.example:ram/1".parse().unwrap();
        assert_eq!(
            (outside.portal.port(), outside.name.as_str(), outside.lun),
            (3280, "iqn.2001-04.org.example:ram", 1)
        );
        assert!("http://x/".parse::<ExternalTarget>().is_err());
    }
}

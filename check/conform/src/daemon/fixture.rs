//! A daemon and its configuration file, which all cases use.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::process;
use crate::session::{Data, GOOD, Login, Session};
use crate::target::{Driver, Lab, Spec, Target, free_port, log_path};

pub(super) const MAIN: &str = "iqn.2026-01.io.lunar.conform:main";
pub(super) const OTHER: &str = "iqn.2026-01.io.lunar.conform:other";
/// How long a change may take.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

pub(super) const UNIT_ATTENTION: u8 = 6;
pub(super) const INVENTORY: (u8, u8, u8) = (UNIT_ATTENTION, 0x3f, 0x0e);
pub(super) const CAPACITY: (u8, u8, u8) = (UNIT_ATTENTION, 0x2a, 0x09);
pub(super) const ACCESS: (u8, u8, u8) = (UNIT_ATTENTION, 0x2a, 0x06);
pub(super) const NOT_SUPPORTED: (u8, u8, u8) = (5, 0x25, 0x00);

/// A daemon and the folder of its configuration.
pub(super) struct Daemon {
    pub(super) folder: PathBuf,
    pub(super) portal: SocketAddr,
    pub(super) target: Option<Target>,
    pub(super) driver: Driver,
    /// The log of this daemon and of earlier ones.
    pub(super) log: PathBuf,
    /// The program, once it was started.
    pub(super) program: Option<PathBuf>,
}

/// Changes of the default configuration; an empty field changes nothing.
#[derive(Clone, Default)]
pub(super) struct ConfigChange {
    /// The size of the file volume.
    pub(super) size: &'static str,
    /// Keys of the target.
    pub(super) main: &'static str,
    /// Keys of the portal group.
    pub(super) group: &'static str,
    /// The LUN map of all initiators at the main target.
    pub(super) luns: &'static str,
    /// More sections.
    pub(super) more: &'static str,
}

impl Daemon {
    pub(super) fn new(lab: &Lab, driver: Driver, name: &str) -> Result<Self> {
        let folder = lab.scratch.join(format!("daemon-{}-{name}", driver.name()));
        std::fs::create_dir_all(&folder)?;
        let portal = free_port()?;
        Ok(Self { folder, portal, target: None, driver, log: log_path(lab, portal), program: None })
    }

    pub(super) fn file(&self) -> PathBuf {
        self.folder.join("lunar.toml")
    }

    /// The text of the configuration with a change.
    pub(super) fn text(&self, change: &ConfigChange) -> String {
        let or = |own: &'static str, usual: &'static str| if own.is_empty() { usual } else { own };
        let folder = self.folder.display();
        let mut text = String::from("# Kept by hand.\n");
        let _ = write!(
            text,
            "[server]\ncores = 2\nmemory = \"32M\"\ndriver = \"{}\"\ndrain = \"3s\"\npatience = \"1s\"\n\
             state = \"{folder}/state\"\n\
             [volume.disk]\nkind = \"file\"\npath = \"{folder}/disk.img\"\nsize = \"{}\"\n\
             [volume.memory]\nkind = \"ram\"\nsize = \"16M\"\n\
             [portal-group.p]\ntag = 1\n{}\n\
             [portal.one]\naddress = \"{}\"\ngroup = \"p\"\n\
             [target.main]\niqn = \"{MAIN}\"\nportal-groups = [\"p\"]\n{}\n\
             [target.other]\niqn = \"{OTHER}\"\nportal-groups = [\"p\"]\n\
             [group.all]\ntargets = [\"main\"]\ninitiators = [\"*\"]\nluns = {{ {} }}\n\
             [group.few]\ntargets = [\"other\"]\ninitiators = [\"*:few*\"]\nluns = {{ 0 = \"memory\" }}\n{}\n",
            self.driver.name().replace('_', "-"),
            or(change.size, "32M"),
            change.group,
            self.portal,
            change.main,
            or(change.luns, "0 = \"disk\", 4 = { volume = \"memory\", read-only = true }"),
            change.more,
        );
        text + &api(&self.folder)
    }

    /// Replaces the file as an editor does, without the UUIDs that the daemon has written.
    pub(super) fn write(&self, text: &str) -> Result<()> {
        let unfinished = self.folder.join("lunar.toml.editor");
        std::fs::write(&unfinished, text)?;
        Ok(std::fs::rename(unfinished, self.file())?)
    }

    pub(super) fn start(&mut self, lab: &Lab) -> Result<()> {
        self.program = lab.built().ok().map(Path::to_owned);
        let mut spec = Spec::new(self.driver, Vec::<String>::new())?;
        spec.listen = vec![self.portal];
        spec.daemon = Some(self.file());
        self.target = Some(Target::start_daemon(lab, &spec, |lab, spec| Target::start_named(lab, spec, MAIN))?);
        Ok(())
    }

    pub(super) fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Reloads the file, and waits until the log contains `wanted`.
    pub(super) fn reload(&self, wanted: &str) -> Result<()> {
        let before = self.log_text().len();
        self.target.as_ref().context("the daemon runs")?.signal(Signal::HUP)?;
        until(|| self.log_text().get(before..).is_some_and(|log_text| log_text.contains(wanted)))
            .with_context(|| format!("no {wanted:?} in the log:\n{}", self.log_text()))
    }

    /// Starts `lunar apply --force` of the edited file: a change that takes something from sessions needs force.
    pub(super) fn start_apply(&self) -> Result<Child> {
        let program = self.program.as_ref().context("the daemon was started")?;
        let mut command = process::bound(program);
        command.args(["apply", "--force", "--socket"]).arg(self.folder.join("api.sock"));
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("cannot start lunar apply")
    }

    /// Waits until `lunar apply` has ended with success.
    pub(super) fn end_apply(&self, mut child: Child) -> Result<()> {
        let ended = process::wait(&mut child, LIMIT)?.context("lunar apply does not end")?;
        let output = child.wait_with_output()?;
        ensure!(ended.success(), "lunar apply ends with {ended}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Applies the edited file although sessions use what it takes away.
    pub(super) fn apply(&self) -> Result<()> {
        self.end_apply(self.start_apply()?)
    }

    pub(super) fn change(&self, change: &ConfigChange) -> Result<()> {
        self.write(&self.text(change))?;
        self.apply()
    }

    pub(super) fn session(&self, target: &str, initiator: &str, lun: u16) -> Result<Session> {
        Session::ready(self.portal, &Login::to(target, initiator), lun)
    }

    /// A session after a `kill -9`. The kernel closes the descriptors of an io_uring a moment after its process has
    /// ended; until then a connection may still reach the old listener.
    pub(super) fn session_after_kill(&self) -> Result<Session> {
        let end = Instant::now() + LIMIT;
        loop {
            match self.session(MAIN, "host", 0) {
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
                outcome => return outcome,
            }
        }
    }

    pub(super) fn stop(mut self) -> Result<()> {
        let mut target = self.target.take().context("the daemon runs")?;
        target.healthy()?;
        target.stop()
    }
}

pub(super) fn until(holds: impl Fn() -> bool) -> Result<()> {
    let end = Instant::now() + LIMIT;
    while !holds() {
        ensure!(Instant::now() < end, "not within {} s", LIMIT.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

pub(super) const TEST_UNIT_READY: [u8; 6] = [0; 6];

/// Expects the next command to end with this sense.
pub(super) fn expect_sense(session: &mut Session, wanted: (u8, u8, u8)) -> Result<()> {
    let done = session.run(&TEST_UNIT_READY, Data::None)?;
    ensure!(done.status != GOOD && done.sense() == wanted, "sense is {:02x?}, not {wanted:02x?}", done.sense());
    Ok(())
}

/// Expects a session that is not concerned by a change to have no unit attention.
pub(super) fn expect_undisturbed(session: &mut Session) -> Result<()> {
    ensure!(session.run(&TEST_UNIT_READY, Data::None)?.status == GOOD, "an unrelated session was disturbed");
    session.ping()
}

pub(super) fn luns(session: &mut Session) -> Result<Vec<u8>> {
    let mut cdb = [0; 12];
    (cdb[0], cdb[9]) = (0xa0, 0xff);
    let done = session.run(&cdb, Data::In(255))?.good()?;
    let length = u32::from_be_bytes([done.data[0], done.data[1], done.data[2], done.data[3]]);
    Ok(done.data[8..8 + length as usize].chunks(8).map(|lun| lun[1]).collect())
}

pub(super) type Case = (&'static str, fn(&Lab, Driver) -> Result<()>);

pub(super) fn started(lab: &Lab, driver: Driver, name: &str) -> Result<Daemon> {
    started_as(lab, driver, name, |daemon| daemon.text(&ConfigChange::default()))
}

/// A daemon with additional sections, which may depend on its folder.
pub(super) fn started_with(lab: &Lab, driver: Driver, name: &str, more: impl Fn(&Path) -> String) -> Result<Daemon> {
    started_as(lab, driver, name, |daemon| daemon.text(&ConfigChange::default()) + &more(&daemon.folder))
}

pub(super) fn started_as(lab: &Lab, driver: Driver, name: &str, text: impl Fn(&Daemon) -> String) -> Result<Daemon> {
    let mut daemon = Daemon::new(lab, driver, name)?;
    daemon.write(&text(&daemon))?;
    daemon.start(lab)?;
    Ok(daemon)
}

pub(super) fn uuids(file: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(file)?;
    Ok(text.lines().filter(|line| line.starts_with("uuid")).map(str::to_owned).collect())
}

/// The section of the API and its socket.
fn api(folder: &Path) -> String {
    format!("[api]\nsocket = \"{}/api.sock\"\n", folder.display())
}

/// How long a command of the operator may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

pub(super) fn lunar(lab: &Lab, daemon: &Daemon, words: &[&str]) -> Result<String> {
    let mut command = process::bound(lab.built()?);
    command.args(words).arg("--socket").arg(daemon.folder.join("api.sock"));
    process::run(&mut command, COMMAND_LIMIT)?.succeeded()
}

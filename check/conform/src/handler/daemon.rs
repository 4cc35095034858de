//! A daemon whose volumes handlers serve.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::{Output, bound, run};
use crate::session::{Login, Session};
use crate::target::{Driver, Lab, Spec, Target, free_port};

pub(crate) const TARGET: &str = "iqn.2026-01.io.lunar.conform:handlers";
/// The same volumes as namespaces.
pub(crate) const NQN: &str = "nqn.2026-01.io.lunar.conform:handlers";
/// Memory of a core that is small enough to come near the limits.
pub(crate) const MEMORY: &str = "32M";
/// How long a step may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The names of the volumes and further keys of their sections, in the order of their LUNs.
type Volumes = &'static [(&'static str, &'static str)];

pub(crate) struct Daemon {
    pub(crate) target: Target,
    pub(crate) folder: PathBuf,
    pub(crate) lunar: PathBuf,
    pub(crate) portal: SocketAddr,
    /// The port for NVMe/TCP.
    pub(crate) port: SocketAddr,
    volumes: Volumes,
}

impl Daemon {
    pub(crate) fn start(lab: &Lab, driver: Driver, volumes: Volumes) -> Result<Self> {
        let place = lab.scratch.display().to_string();
        Self::start_kind(lab, driver, (volumes, MEMORY), &|volume| {
            format!("kind = \"handler\"\npath = \"{place}/{volume}.sock\"")
        })
    }

    /// Starts a daemon with so much memory for each core; `kind` returns the first keys of the section of a volume.
    pub(crate) fn start_kind(
        lab: &Lab,
        driver: Driver,
        (volumes, memory): (Volumes, &str),
        kind: &dyn Fn(&str) -> String,
    ) -> Result<Self> {
        let (folder, portal, port) = (lab.scratch.clone(), free_port()?, free_port()?);
        let place = folder.display();
        let mut text = format!(
            "[server]\ncores = 2\nmemory = \"{memory}\"\ndriver = \"{}\"\nstate = \"{place}/state\"\n\
             patience = \"1s\"\n[api]\nsocket = \"{place}/api.sock\"\n",
            driver.name().replace('_', "-")
        );
        for (volume, keys) in volumes {
            text += &format!("[volume.{volume}]\n{}\n{keys}\n", kind(volume));
        }
        let luns = volumes.iter().enumerate().map(|(lun, (volume, _))| format!("{lun} = \"{volume}\""));
        text += &format!(
            "[portal-group.p]\ntag = 1\n[portal.one]\naddress = \"{portal}\"\ngroup = \"p\"\n\
             [portal.two]\naddress = \"{port}\"\nprotocol = \"nvme-tcp\"\ngroup = \"p\"\n\
             [target.main]\niqn = \"{TARGET}\"\nnqn = \"{NQN}\"\nportal-groups = [\"p\"]\n\
             [group.all]\ntargets = [\"main\"]\ninitiators = [\"*\"]\nluns = {{ {} }}\n",
            luns.collect::<Vec<_>>().join(", ")
        );
        let file = folder.join("lunar.toml");
        std::fs::write(&file, text)?;
        let mut spec = Spec::new(driver, Vec::<String>::new())?;
        (spec.listen, spec.daemon) = (vec![portal, port], Some(file));
        let target = Target::start_daemon(lab, &spec, |lab, spec| Target::start_named(lab, spec, TARGET))?;
        Ok(Self { target, folder, lunar: lab.built()?.to_owned(), portal, port, volumes })
    }

    fn volume(&self, lun: u16) -> &'static str {
        self.volumes[usize::from(lun)].0
    }

    pub(crate) fn socket(&self, lun: u16) -> PathBuf {
        self.folder.join(format!("{}.sock", self.volume(lun)))
    }

    pub(crate) fn session(&self, lun: u16) -> Result<Session> {
        Session::ready(self.portal, &Login::to(TARGET, &format!("host-{lun}")), lun)
    }

    /// A session that has met none of its unit attention conditions.
    pub(crate) fn plain_session(&self, lun: u16, name: &str) -> Result<Session> {
        let mut session = Session::open(self.portal, &Login::to(TARGET, name))?;
        session.lun = lun;
        Ok(session)
    }

    /// Runs a command of the operator.
    pub(crate) fn operate(&self, words: &[&str]) -> Result<Output> {
        let mut command = bound(&self.lunar);
        command.args(words).arg("--socket").arg(self.folder.join("api.sock"));
        run(&mut command, LIMIT * 2)
    }

    /// A command of the operator that succeeds; returns what it prints.
    pub(crate) fn succeeds(&self, words: &[&str]) -> Result<String> {
        self.operate(words)?.succeeded().with_context(|| words.join(" "))
    }

    /// The answer to a command of the operator.
    pub(crate) fn ask(&self, words: &[&str]) -> Result<Value> {
        let mut command = bound(&self.lunar);
        command.args(words).args(["--json", "--socket"]).arg(self.folder.join("api.sock"));
        Ok(serde_json::from_str(&run(&mut command, LIMIT)?.succeeded()?)?)
    }

    /// The handler of a volume, as `lunar handler list` shows it.
    pub(crate) fn listed(&self, lun: u16) -> Result<Value> {
        let all = self.ask(&["handler", "list"])?;
        let volume = self.volume(lun);
        let found = all.as_array().into_iter().flatten().find(|handler| handler["volume"] == volume);
        found.cloned().with_context(|| format!("{volume} is not in the list: {all}"))
    }

    pub(crate) fn until_state(&self, lun: u16, state: &str) -> Result<()> {
        let end = Instant::now() + LIMIT;
        loop {
            let handler = self.listed(lun)?;
            if handler["state"] == state {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the handler does not become {state}: {handler}");
        }
    }
}

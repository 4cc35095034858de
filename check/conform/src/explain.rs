//! Problems that operators have. Each is provoked; `lunar explain` must say its code, the near miss and the remedy, on
//! the command line and in the API; the metrics must have the code; then the remedy is run as it is printed, and must
//! mend the problem.
//!
//! * here: logins, LUNs, paths, reservations
//! * [`hosts`]: problems that begin on the hosts; [`stores`]: slow stores

mod hosts;
mod stores;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value as Json;

use crate::metrics::get;
use crate::nvme::Host;
use crate::pdu::Digests;
use crate::process;
use crate::report::skip;
use crate::reservations::{REGISTER_AND_IGNORE, RESERVE, reserve};
use crate::session::{Login, Session};
use crate::target::{Driver, Lab, Spec, Target, free_port};

const LIMIT: Duration = Duration::from_secs(60);
/// The prefix of the names here.
const IQN: &str = "iqn.2026-01.io.lunar.conform:";
const NQN: &str = "nqn.2026-01.io.lunar.conform:";
const SECRET: &str = "secret-of-the-client";
const OTHER_SECRET: &str = "secret-of-another";
const TARGET_SECRET: &str = "secret-of-the-target";
const TOKEN: &str = "a token that reads everything";

/// A daemon with the problems in its configuration.
struct Daemon {
    folder: PathBuf,
    program: PathBuf,
    driver: Driver,
    front: SocketAddr,
    rear: SocketAddr,
    nvme: SocketAddr,
    api: SocketAddr,
    target: Option<Target>,
}

impl Daemon {
    fn new(lab: &Lab, driver: Driver) -> Result<Self> {
        let folder = lab.scratch.join(format!("explain-{}", driver.name()));
        // The folder of the program as an operator has it.
        let bin = folder.join("bin");
        std::fs::create_dir_all(&bin)?;
        let program = std::path::absolute(lab.built()?)?;
        std::os::unix::fs::symlink(&program, bin.join("lunar"))?;
        let (front, rear, nvme, api) = (free_port()?, free_port()?, free_port()?, free_port()?);
        let daemon = Self { program, driver, front, rear, nvme, api, target: None, folder };
        let file = daemon.file();
        std::fs::write(&file, daemon.text())?;
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        Ok(daemon)
    }

    fn file(&self) -> PathBuf {
        self.folder.join("lunar.toml")
    }

    fn image(&self) -> PathBuf {
        self.folder.join("disk.img")
    }

    fn text(&self) -> String {
        let Self { folder, front, rear, nvme, api, .. } = self;
        let (folder, driver) = (folder.to_str().unwrap_or_default(), self.driver.name().replace('_', "-"));
        let luns = "luns = { 0 = \"memory\" }";
        [
            format!(
                "[server]\ncores = 2\nmemory = \"32M\"\ndriver = \"{driver}\"\ndrain = \"3s\"\npatience = \"1s\"\n\
                 state = \"{folder}/state\"\n[api]\nsocket = \"{folder}/api.sock\"\n\
                 [api-listener.local]\naddress = \"{api}\"\n[api-token.reader]\nsecret = \"{TOKEN}\"\nrole = \"read\"\n\
                 [volume.disk]\nkind = \"file\"\npath = \"{folder}/disk.img\"\nsize = \"16M\"\n\
                 [volume.memory]\nkind = \"ram\"\nsize = \"4M\"\n[volume.spare]\nkind = \"ram\"\nsize = \"4M\"\n\
                 [portal-group.front]\ntag = 1\n[portal-group.rear]\ntag = 2\n\
                 [portal.front]\naddress = \"{front}\"\nprotocol = \"iscsi\"\ngroup = \"front\"\n\
                 [portal.rear]\naddress = \"{rear}\"\nprotocol = \"iscsi\"\ngroup = \"rear\"\n\
                 [portal.nvme]\naddress = \"{nvme}\"\nprotocol = \"nvme-tcp\"\ngroup = \"front\"\n\
                 [user.esx]\nsecret = \"{SECRET}\"\n[user.backup]\nsecret = \"{OTHER_SECRET}\"\n"
            ),
            target_text("vmfs", &format!("nqn = \"{NQN}vmfs\"")),
            group_text("vmfs", &format!("{IQN}esx3"), "luns = { 0 = \"disk\", 1 = \"memory\" }"),
            target_text("db", ""),
            group_text("db", &format!("{IQN}db1"), luns),
            target_text("alone", ""),
            target_text("net", ""),
            group_text("net", "*:net", &format!("sources = [\"192.0.2.0/24\"]\n{luns}")),
            target_text("off", "enabled = false"),
            group_text("off", "*", luns),
            target_text("away", "moved-to = \"127.0.0.1:9\""),
            group_text("away", "*", luns),
            target_text("chap", "authentication = \"chap\"\nusers = [\"esx\"]"),
            group_text("chap", "*", luns),
            target_text("few", "sessions = 1"),
            group_text("few", "*", luns),
            target_text("old", ""),
            group_text("old", "*", luns),
            hosts::configuration(folder),
            stores::configuration(folder),
        ]
        .concat()
    }

    fn start(&mut self, lab: &Lab) -> Result<()> {
        let mut spec = Spec::new(self.driver, Vec::<String>::new())?;
        spec.listen = vec![self.front];
        spec.daemon = Some(self.file());
        self.target = Some(Target::start_named(lab, &spec, &format!("{IQN}vmfs"))?);
        let end = Instant::now() + LIMIT;
        while self.lunar(&["status"]).is_err() || self.lunar(&["statistics"]).is_err() {
            ensure!(Instant::now() < end, "the API does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        let mut target = self.target.take().context("the daemon runs")?;
        target.healthy()?;
        target.stop()
    }

    fn lunar(&self, words: &[&str]) -> Result<String> {
        let mut command = process::bound(&self.program);
        command.args(words).env("LUNAR_SOCKET", self.folder.join("api.sock"));
        process::run(&mut command, LIMIT)?.succeeded()
    }

    fn json(&self, words: &[&str]) -> Result<Json> {
        let text = self.lunar(&[words, &["--json"]].concat())?;
        serde_json::from_str(&text).with_context(|| text.clone())
    }

    /// The value of a series of the metrics; 0 without one.
    fn metric(&self, series: &str) -> Result<f64> {
        let (status, page) = get(self.api, "/metrics", Some(TOKEN), "")?;
        ensure!(status == 200, "the metrics have status {status}: {page}");
        let found = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
        Ok(found.unwrap_or(0.0))
    }

    /// Waits until a series is at least 1: the page of metrics may be a second old.
    fn counted(&self, series: &str) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while self.metric(series)? < 1.0 {
            ensure!(Instant::now() < end, "no {series}");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// The finding of `lunar doctor` with this code and subject, and whether the service itself has it, too.
    fn finding(&self, code: &str, subject: &str) -> Result<Option<(Json, bool)>> {
        let is_it = |one: &&Json| one["code"] == code && one["subject"] == subject;
        let find = |all: &Json| all["findings"].as_array().into_iter().flatten().find(is_it).cloned();
        let mut command = process::bound(&self.program);
        command.args(["doctor", "--json", "--interval", "1s"]).env("LUNAR_SOCKET", self.folder.join("api.sock"));
        // Findings are in the exit status.
        let text = process::run(&mut command, LIMIT)?.text;
        let Some(found) = find(&serde_json::from_str(&text).with_context(|| text.clone())?) else { return Ok(None) };
        let (status, text) = get(self.api, "/v1/doctor", Some(TOKEN), "")?;
        ensure!(status == 200, "{text}");
        let own = find(&serde_json::from_str(&text)?);
        Ok(Some((found, own.is_some())))
    }

    /// A finding of the service and of `lunar doctor`, whose command mends it.
    fn found_and_mended(&self, code: &str, subject: &str) -> Result<()> {
        let (found, is_own) = self.finding(code, subject)?.with_context(|| format!("no {code} about {subject}"))?;
        ensure!(is_own, "the service itself, and so the page, does not find {code} about {subject}");
        let command = found["command"].as_str().filter(|command| !command.is_empty()).context("no command")?;
        self.paste(command)?;
        ensure!(self.finding(code, subject)?.is_none(), "{command} does not mend {code}");
        Ok(())
    }

    /// Runs a remedy as an operator pastes it into a shell; a secret that it asks for comes through a pipe.
    fn paste(&self, command: &str) -> Result<String> {
        // The user that a remedy makes is the one of the target.
        let secret = if command.contains(" user create ") { TARGET_SECRET } else { OTHER_SECRET };
        self.paste_with(command, secret)
    }

    /// Executes a command in a shell, which gets this secret at its standard input.
    fn paste_with(&self, command: &str, secret: &str) -> Result<String> {
        let path = std::env::var("PATH").unwrap_or_default();
        let script = format!("printf '%s\\n' '{secret}' | {command}");
        let mut shell = process::bound("sh");
        shell.args(["-c", &script]).env("LUNAR_SOCKET", self.folder.join("api.sock"));
        shell.env("PATH", format!("{}:{path}", self.folder.join("bin").display()));
        process::run(&mut shell, LIMIT)?.succeeded().with_context(|| command.to_owned())
    }

    /// Logs in with libiscsi and asks LUN 0 who it is.
    fn inquiry(&self, portal: SocketAddr, client: &str, target: &str) -> Result<()> {
        let url = format!("iscsi://{portal}/{IQN}{target}/0");
        let mut command = process::bound("iscsi-inq");
        command.args(["-i", &format!("{IQN}{client}"), &url]);
        process::run(&mut command, LIMIT)?.succeeded().map(drop)
    }

    fn at_front(&self, client: &str, target: &str) -> Result<()> {
        self.inquiry(self.front, client, target)
    }
}

fn target_text(name: &str, more: &str) -> String {
    format!("[target.{name}]\niqn = \"{IQN}{name}\"\nportal-groups = [\"front\"]\n{more}\n")
}

fn group_text(name: &str, clients: &str, more: &str) -> String {
    format!("[group.{name}]\ntargets = [\"{name}\"]\ninitiators = [\"{clients}\"]\n{more}\n")
}

/// The explanation that `lunar explain` must give.
struct Expected<'a> {
    /// The words of the command behind `lunar explain`.
    explain: &'a [&'a str],
    /// The code; empty: there is none.
    code: &'a str,
    /// Some words of the answer on the command line.
    words: &'a str,
    /// The remedies that are run.
    remedy: Remedy,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Remedy {
    /// The first one for Lunar.
    First,
    /// All for Lunar.
    All,
    /// The remedies for the client are looked at.
    Client,
}

impl Daemon {
    /// Checks the explanation in both forms, and runs the remedy. Returns the commands for the client.
    fn explained(&self, expected: &Expected<'_>) -> Result<Vec<String>> {
        let words = [&["explain"], expected.explain].concat();
        let text = self.lunar(&words)?;
        ensure!(text.contains(expected.words), "no {:?} in:\n{text}", expected.words);
        let json = self.json(&words)?;
        ensure!(json["well"] == false, "all is well: {json:#}");
        let code = json["code"].as_str().unwrap_or_default();
        ensure!(code == expected.code, "the code is {code:?}, not {:?}: {json:#}", expected.code);
        ensure!(code.is_empty() || text.contains(&format!("[{code}]")), "no code in:\n{text}");
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/troubleshooting.md");
        let page = std::fs::read_to_string(page)?;
        ensure!(code.is_empty() || page.contains(&format!("\n### {code}\n")), "{code} has no paragraph");
        if words[1] == "login" && !["moved", "duplicate-name"].contains(&code) {
            let transport = if words[2].starts_with(NQN) { "nvme-tcp" } else { "iscsi" };
            let series = format!("lunar_logins_refused_total{{transport=\"{transport}\",reason=\"{code}\"}}");
            self.counted(&series)?;
        }
        let of = |place: &str| -> Vec<String> {
            let all = json["remedies"].as_array().into_iter().flatten();
            let own = all.filter(|remedy| remedy["place"] == place);
            own.filter_map(|remedy| remedy["command"].as_str().map(str::to_owned)).collect()
        };
        let (here, client) = (of("server"), of("client"));
        for command in here.iter().chain(&client) {
            ensure!(text.contains(command.as_str()), "no {command:?} in:\n{text}");
        }
        if expected.remedy == Remedy::Client {
            ensure!(!client.is_empty(), "no remedy for the client: {json:#}");
            return Ok(client);
        }
        let count = if expected.remedy == Remedy::First { 1 } else { here.len() };
        ensure!(!here.is_empty(), "no remedy: {json:#}");
        for command in &here[..count] {
            self.paste(command)?;
        }
        Ok(client)
    }

    /// A login that is refused until the remedy was run.
    fn refused(&self, expected: &Expected<'_>, login: impl Fn() -> Result<()>) -> Result<()> {
        ensure!(login().is_err(), "the login is accepted before the remedy");
        self.explained(expected)?;
        login().context("after the remedy")?;
        Ok(())
    }
}

type Case = (&'static str, fn(&Daemon) -> Result<()>);

const CASES: [Case; 21] = [
    ("a client whose name differs in one character", |daemon| {
        let client = format!("{IQN}esx-3");
        let target = format!("{IQN}vmfs");
        let expected = Expected {
            explain: &["login", &client, "--target", &target],
            code: "not-shown",
            words: "group vmfs lists iqn.2026-01.io.lunar.conform:esx3: 1 character differs",
            remedy: Remedy::First,
        };
        daemon.refused(&expected, || daemon.at_front("esx-3", "vmfs"))
    }),
    ("a client of another group", |daemon| {
        let client = format!("{IQN}db1");
        let expected = Expected {
            explain: &["login", &client],
            code: "not-shown",
            words: "group db lists the client, and is a group of db, not of vmfs",
            remedy: Remedy::First,
        };
        daemon.refused(&expected, || daemon.at_front("db1", "vmfs"))
    }),
    ("a target without a group", |daemon| {
        let client = format!("{IQN}stranger");
        let expected = Expected {
            explain: &["login", &client],
            code: "not-shown",
            words: "target alone has no group",
            remedy: Remedy::First,
        };
        let login = || Session::open(daemon.front, &Login::to(&format!("{IQN}alone"), "stranger")).map(drop);
        daemon.refused(&expected, login)
    }),
    ("a client at an address that its group does not have", |daemon| {
        let client = format!("{IQN}net");
        let expected = Expected {
            explain: &["login", &client],
            code: "wrong-network",
            words: "127.0.0.1 is not in its sources 192.0.2.0/24",
            remedy: Remedy::First,
        };
        daemon.refused(&expected, || daemon.at_front("net", "net"))
    }),
    ("a target that is not reached through the portal", |daemon| {
        let client = format!("{IQN}esx3");
        let expected = Expected {
            explain: &["login", &client, "--portal", "rear"],
            code: "other-portal",
            words: "target vmfs is reached through front",
            remedy: Remedy::First,
        };
        daemon.refused(&expected, || daemon.inquiry(daemon.rear, "esx3", "vmfs"))
    }),
    ("a target that is switched off", |daemon| {
        let client = format!("{IQN}any-off");
        let expected = Expected {
            explain: &["login", &client],
            code: "no-target",
            words: "target off has this name, and is switched off",
            remedy: Remedy::First,
        };
        daemon.refused(&expected, || daemon.at_front("any-off", "off"))
    }),
    ("a target whose name is misspelled on the client", |daemon| {
        ensure!(daemon.at_front("esx3", "vfms").is_err(), "a target that does not exist");
        let (client, target) = (format!("{IQN}esx3"), format!("{IQN}vfms"));
        let expected = Expected {
            explain: &["login", &client, "--target", &target],
            code: "no-target",
            words: "target vmfs is iqn.2026-01.io.lunar.conform:vmfs: 1 character differs",
            remedy: Remedy::Client,
        };
        let commands = daemon.explained(&expected)?;
        // As the remedy says, with libiscsi instead of the initiator of the kernel.
        let name = commands[0].split(' ').skip_while(|word| *word != "-T").nth(1).context("no name in the remedy")?;
        daemon.at_front("esx3", name.strip_prefix(IQN).context("another name")?)
    }),
    ("a target that was removed", |daemon| {
        daemon.at_front("late", "old")?;
        daemon.lunar(&["group", "delete", "old", "--force"])?;
        daemon.lunar(&["target", "delete", "old", "--force"])?;
        ensure!(daemon.at_front("late", "old").is_err(), "a target that was removed");
        let client = format!("{IQN}late");
        let expected = Expected {
            explain: &["login", &client],
            code: "no-target",
            words: "target old (iqn.2026-01.io.lunar.conform:old) was removed",
            remedy: Remedy::Client,
        };
        let commands = daemon.explained(&expected)?;
        ensure!(commands.iter().any(|command| command.ends_with("-o delete")), "{commands:?}");
        Ok(())
    }),
    ("a target that has moved", |daemon| {
        let client = format!("{IQN}mover");
        let expected = Expected {
            explain: &["login", &client, "--target", "away"],
            code: "moved",
            words: "127.0.0.1:9",
            remedy: Remedy::First,
        };
        daemon.refused(&expected, || daemon.at_front("mover", "away"))
    }),
    ("a user whose name has the wrong case", |daemon| {
        ensure!(!chap(daemon, "host", "ESX", SECRET)?, "an unknown user");
        let client = format!("{IQN}host");
        let expected = Expected {
            explain: &["login", &client],
            code: "unknown-user",
            words: "user esx is esx: the case of the letters differs",
            remedy: Remedy::Client,
        };
        let commands = daemon.explained(&expected)?;
        ensure!(commands[0].ends_with("node.session.auth.username -v esx"), "{commands:?}");
        Ok(())
    }),
    ("a client that requires authentication of a target without a user of its own", |daemon| {
        let client = format!("{IQN}careful");
        let expected = Expected {
            explain: &["login", &client],
            code: "no-proof-of-ours",
            words: "the target did not authenticate to the client",
            remedy: Remedy::All,
        };
        let login = || {
            let mut command = initiator(daemon, "careful", "esx", SECRET);
            command.env("LIBISCSI_CHAP_TARGET_USERNAME", "chap-target");
            command.env("LIBISCSI_CHAP_TARGET_PASSWORD", TARGET_SECRET);
            process::run(&mut command, LIMIT)?.succeeded().map(drop)
        };
        daemon.refused(&expected, login)
    }),
    ("a user that may not log in to this target", |daemon| {
        let client = format!("{IQN}copier");
        let expected = Expected {
            explain: &["login", &client],
            code: "unknown-user",
            words: "user backup has this name, and may not log in here",
            remedy: Remedy::First,
        };
        let login = || {
            let user = chap(daemon, "copier", "backup", OTHER_SECRET)?;
            ensure!(user, "refused");
            Ok(())
        };
        daemon.refused(&expected, login)
    }),
    ("a client without CHAP, and one with another secret", |daemon| {
        let client = format!("{IQN}silent");
        ensure!(daemon.at_front("silent", "chap").is_err(), "a login without CHAP");
        let expected = Expected {
            explain: &["login", &client],
            code: "not-authenticated",
            words: "the client did not authenticate",
            remedy: Remedy::Client,
        };
        let commands = daemon.explained(&expected)?;
        ensure!(commands.iter().any(|command| command.contains("authmethod -v CHAP")), "{commands:?}");
        // It follows the remedy, with another secret.
        let expected = Expected {
            explain: &["login", &client],
            code: "wrong-secret",
            words: "the client has another secret",
            remedy: Remedy::First,
        };
        daemon.refused(&expected, || {
            ensure!(chap(daemon, "silent", "esx", OTHER_SECRET)?, "refused");
            Ok(())
        })
    }),
    ("a target with its only session in use", |daemon| {
        let target = format!("{IQN}few");
        let _first = Session::open(daemon.front, &Login::to(&target, "first"))?;
        let client = format!("{IQN}second");
        let expected = Expected {
            explain: &["login", &client],
            code: "full",
            words: "a limit of sessions is reached",
            remedy: Remedy::First,
        };
        daemon.refused(&expected, || Session::open(daemon.front, &Login::to(&target, "second")).map(drop))
    }),
    ("a LUN that is not mapped", |daemon| {
        let client = format!("{IQN}net");
        let _session = Session::open(daemon.front, &Login::to(&format!("{IQN}net"), "net"))?;
        let words = ["lun", client.as_str(), "1"];
        let expected = Expected {
            explain: &words,
            code: "",
            words: "group vmfs maps LUN 1 to volume memory",
            remedy: Remedy::First,
        };
        // The volume is LUN 0 of the group, and one volume has one LUN.
        daemon.lunar(&["group", "unmap", "net", "0", "--force"])?;
        daemon.explained(&expected)?;
        ensure!(daemon.json(&["explain", "lun", &client, "1"])?["well"] == true, "the LUN is not there");
        Ok(())
    }),
    ("a volume that no group maps", |daemon| {
        let expected =
            Expected { explain: &["volume", "spare"], code: "", words: "no client can see it", remedy: Remedy::First };
        daemon.explained(&expected)?;
        ensure!(daemon.json(&["explain", "volume", "spare"])?["well"] == true, "the volume is not mapped");
        let Err(misspelled) = daemon.lunar(&["explain", "volume", "sparre"]) else { bail!("it does not exist") };
        let misspelled = format!("{misspelled:#}");
        ensure!(misspelled.contains("did you mean 'spare'?"), "{misspelled}");
        Ok(())
    }),
    ("paths that are not optimized", |daemon| {
        let client = format!("{IQN}esx3");
        let _session = Session::open(daemon.front, &Login::to(&format!("{IQN}vmfs"), "esx3"))?;
        daemon.lunar(&["portal-group", "set", "front", "--alua-state", "active-non-optimized"])?;
        let expected = Expected {
            explain: &["path", &client, "disk"],
            code: "",
            words: "are not optimized",
            remedy: Remedy::First,
        };
        daemon.explained(&expected)?;
        let json = daemon.json(&["explain", "path", &client, "disk"])?;
        ensure!(json["well"] == true, "{json:#}");
        Ok(())
    }),
    ("a reservation of a client that is gone", |daemon| {
        let target = format!("{IQN}vmfs");
        let mut holder = Session::ready(daemon.front, &Login::to(&target, "esx3"), 0)?;
        reserve(&mut holder, REGISTER_AND_IGNORE, 0, 7)?;
        reserve(&mut holder, RESERVE, 7, 0)?;
        ensure!(daemon.json(&["explain", "reservation", "disk"])?["well"] == true, "the holder is there");
        holder.logout()?;
        let expected = Expected {
            explain: &["reservation", "disk"],
            code: "",
            words: "no holder is logged in",
            remedy: Remedy::First,
        };
        daemon.explained(&expected)?;
        let json = daemon.json(&["explain", "reservation", "disk"])?;
        ensure!(json["well"] == true && json["words"].to_string().contains("is not reserved"), "{json:#}");
        Ok(())
    }),
    ("an NVMe host that no group lists", |daemon| {
        let client = format!("{NQN}host");
        let expected = Expected {
            explain: &["login", &client],
            code: "not-shown",
            words: "lists the host",
            remedy: Remedy::First,
        };
        let connect = || Host::open(daemon.nvme, &format!("{NQN}vmfs"), &client, Digests::default()).map(drop);
        daemon.refused(&expected, connect)
    }),
    ("an NVMe host that asks for a subsystem in capital letters", |daemon| {
        let (client, wrong) = (format!("{NQN}host"), format!("{NQN}VMFS"));
        ensure!(Host::open(daemon.nvme, &wrong, &client, Digests::default()).is_err(), "another NQN");
        let expected = Expected {
            explain: &["login", &client, "--target", &wrong],
            code: "no-target",
            words: "the case of the letters differs",
            remedy: Remedy::Client,
        };
        let commands = daemon.explained(&expected)?;
        ensure!(commands[0] == format!("nvme connect -n {NQN}vmfs"), "{commands:?}");
        Ok(())
    }),
    ("slow commands: the threshold is changed while they run", |daemon| {
        let client = format!("{IQN}esx3");
        let own = || -> Result<Vec<Json>> {
            let log = daemon.json(&["log", "--slow"])?;
            let all = log["commands"].as_array().context("no list")?.iter();
            Ok(all.filter(|one| one["initiator"] == client && one["volume"] == "disk").cloned().collect())
        };
        let before = own()?.len();
        let mut session = Session::ready(daemon.front, &Login::to(&format!("{IQN}vmfs"), "esx3"), 0)?;
        daemon.lunar(&["config", "set", "logging", "--slow", "1us"])?;
        let end = Instant::now() + LIMIT;
        while own()?.len() == before {
            ensure!(Instant::now() < end, "no command is slow");
            session.write(64, vec![1; 64 << 10], 512)?;
            session.synchronize()?;
        }
        daemon.lunar(&["config", "set", "logging", "--slow", "0s"])?;
        let recorded = own()?;
        for one in &recorded {
            let part = |name: &str| one["microseconds"][name].as_u64().context("no number");
            let sum = part("network")? + part("queue")? + part("store")?;
            ensure!(sum == part("total")?, "the parts do not add up: {one:#}");
        }
        let text = daemon.lunar(&["explain", "slow", "disk"])?;
        ensure!(text.contains("slow commands") && text.contains("in the store"), "{text}");
        session.write(0, vec![1; 64 << 10], 512)?;
        ensure!(own()?.len() == recorded.len(), "commands are recorded with a threshold of 0s");
        Ok(())
    }),
];

/// A client that authenticates as a user: libiscsi takes names and secrets from the environment.
fn initiator(daemon: &Daemon, client: &str, user: &str, secret: &str) -> Command {
    let url = format!("iscsi://{}/{IQN}chap/0", daemon.front);
    let mut command = process::bound("iscsi-inq");
    command.args(["-i", &format!("{IQN}{client}"), &url]);
    command.env("LIBISCSI_CHAP_USERNAME", user).env("LIBISCSI_CHAP_PASSWORD", secret);
    command
}

/// Whether such a client may log in.
fn chap(daemon: &Daemon, client: &str, user: &str, secret: &str) -> Result<bool> {
    Ok(process::run(&mut initiator(daemon, client, user, secret), LIMIT)?.status.success())
}

pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("explain/{}", driver.name());
    if process::run(process::bound("iscsi-inq").arg("--help"), LIMIT).is_err() {
        return skip("libiscsi's tools are not installed");
    }
    let mut daemon = Daemon::new(lab, driver)?;
    let starts = lab.report.check(&part, "a daemon with these problems starts", || daemon.start(lab));
    if !starts {
        return Ok(());
    }
    for (name, case) in CASES.iter().chain(&hosts::CASES).chain(&stores::CASES) {
        lab.report.check(&part, name, || case(&daemon));
    }
    lab.report.check(&part, "refusals and their numbers outlive a restart", || restarted(lab, &mut daemon));
    lab.report.check(&part, "a volume whose file is missing", || missing(lab, &mut daemon));
    lab.report.check(&part, "the daemon stops in time", || daemon.stop());
    Ok(())
}

fn restarted(lab: &Lab, daemon: &mut Daemon) -> Result<()> {
    let before = daemon.json(&["explain", "refusal"])?;
    let first = before[0].clone();
    ensure!(before.as_array().is_some_and(|all| all.len() > 10) && first["count"].as_u64() > Some(0), "{before:#}");
    daemon.stop()?;
    daemon.start(lab)?;
    let after = daemon.json(&["explain", "refusal"])?;
    ensure!(after == before, "before: {before:#}, after: {after:#}");
    let number = first["number"].to_string();
    let text = daemon.lunar(&["explain", "refusal", &number])?;
    let initiator = first["initiator"].as_str().context("no name")?;
    ensure!(text.contains(initiator), "{text}");
    // The client that is in its group now.
    let is_mended = |one: &&Json| one["initiator"] == format!("{IQN}esx-3") && one["code"] == "not-shown";
    let mended = after.as_array().into_iter().flatten().find(is_mended).context("the first refusal is forgotten")?;
    let text = daemon.lunar(&["explain", "refusal", &mended["number"].to_string()])?;
    ensure!(text.contains("it would be admitted now"), "{text}");
    Ok(())
}

fn missing(lab: &Lab, daemon: &mut Daemon) -> Result<()> {
    daemon.stop()?;
    let aside = daemon.image().with_extension("aside");
    std::fs::rename(daemon.image(), &aside)?;
    daemon.start(lab)?;
    let end = Instant::now() + LIMIT;
    let expected = loop {
        let json = daemon.json(&["explain", "volume", "disk"]);
        match json {
            Ok(json) if json["code"] == "unavailable" => break json,
            _ if Instant::now() > end => bail!("no volume is unavailable: {json:?}"),
            _ => std::thread::sleep(Duration::from_millis(100)),
        }
    };
    ensure!(expected["words"].to_string().contains("disk.img"), "{expected:#}");
    std::fs::rename(&aside, daemon.image())?;
    daemon.lunar(&["apply"])?;
    let json = daemon.json(&["explain", "volume", "disk"])?;
    ensure!(json["well"] == true, "{json:#}");
    daemon.at_front("esx3", "vmfs")
}

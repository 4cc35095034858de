//! `lunar doctor` and `lunar top` with a real daemon: conditions are provoked, found, and mended with the command of
//! the finding; the numbers of the terminal are those of the metrics.

mod network;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;

use crate::loop_device::LoopDevice;
use crate::metrics::get;
use crate::mounted_fs::MountedFs;
use crate::process;
use crate::report::skip;
use crate::session::{Data, Login, Session};
use crate::target::{Driver, Lab, Spec, Target, free_port};

const TARGET: &str = "iqn.2026-01.io.lunar.conform:doctor";
const TOKEN: &str = "a token that reads everything";
/// Blocks of a write that does not fit: 1 MiB.
const BLOCKS: u32 = 2048;
/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The exit status with an error among the findings.
const EXIT_ERROR: i32 = 6;
/// The user `nobody`.
const NOBODY: &str = "65534";

type Case = (&'static str, fn(&Lab, Driver) -> Result<()>);

const CASES: [Case; 11] = [
    ("a secret that others can read or with a blank, a volume without a map, an edited file", changed_while_it_runs),
    ("a full file system", full),
    ("a read-only file system before the start", read_only),
    ("a file that the user of the service may not write", not_permitted),
    ("a block device that is mounted", in_use),
    ("a port that another program has", port_taken),
    ("a saturated core", saturated),
    ("a network that loses packets", network::lossy),
    ("the numbers of `lunar top` are those of the metrics, over the socket and with a token", numbers),
    ("`lunar top` in a terminal shows the load, and goes on when the daemon comes back", in_a_terminal),
    ("without a daemon, `lunar top` fails as other commands do", nobody_answers),
];

pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    lab.built()?;
    let part = format!("doctor/{}", driver.name());
    for (name, case) in CASES {
        lab.report.check(&part, name, || case(lab, driver));
    }
    Ok(())
}

/// A daemon, its folder, and the commands of an operator.
struct Service {
    folder: PathBuf,
    file: PathBuf,
    portal: SocketAddr,
    api: SocketAddr,
    driver: Driver,
    target: Option<Target>,
}

impl Service {
    /// A configuration with a volume in this folder; it is not started.
    fn new(lab: &Lab, driver: Driver, name: &str, store: Option<&Path>) -> Result<Self> {
        let folder = lab.scratch.join(format!("doctor-{}-{name}", driver.name()));
        std::fs::create_dir_all(folder.join("bin"))?;
        let program = std::fs::canonicalize(lab.built()?)?;
        let _ = symlink(program, folder.join("bin/lunar"));
        let (portal, api, file) = (free_port()?, free_port()?, folder.join("lunar.toml"));
        let secret = folder.join("secret");
        std::fs::write(&secret, "a secret, long enough\n")?;
        std::fs::write(folder.join("token"), TOKEN)?;
        std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600))?;
        let (place, store) = (folder.display(), store.unwrap_or(&folder).display());
        let config = format!(
            "[server]\ncores = 2\nmemory = \"32M\"\ndriver = \"{}\"\ndrain = \"1s\"\npatience = \"1s\"\n\
             state = \"{place}/state\"\n\
             [user.esx]\nsecret = {{ file = \"{place}/secret\" }}\n\
             [volume.disk]\nkind = \"file\"\npath = \"{store}/disk.img\"\nsize = \"48M\"\n\
             [volume.none]\nkind = \"null\"\nsize = \"1G\"\n\
             [portal-group.p]\ntag = 1\n[portal.one]\naddress = \"{portal}\"\ngroup = \"p\"\n\
             [target.main]\niqn = \"{TARGET}\"\nportal-groups = [\"p\"]\n\
             [group.all]\ntargets = [\"main\"]\ninitiators = [\"*\"]\nluns = {{ 0 = \"disk\", 1 = \"none\" }}\n\
             [group.few]\ntargets = [\"main\"]\ninitiators = [\"iqn.2026-01.io.lunar:few\"]\n\
             authentication = \"chap\"\nusers = [\"esx\"]\nluns = {{ 0 = \"disk\" }}\n\
             [api]\nsocket = \"{place}/api.sock\"\n[api-listener.local]\naddress = \"{api}\"\n\
             [api-token.reader]\nsecret = {{ file = \"{place}/token\" }}\nrole = \"read\"\n",
            driver.name().replace('_', "-"),
        );
        std::fs::write(&file, config)?;
        for secret in [&file, &folder.join("token")] {
            std::fs::set_permissions(secret, PermissionsExt::from_mode(0o600))?;
        }
        Ok(Self { folder, file, portal, api, driver, target: None })
    }

    fn started(lab: &Lab, driver: Driver, name: &str, store: Option<&Path>) -> Result<Self> {
        let mut service = Self::new(lab, driver, name, store)?;
        service.start(lab)?;
        Ok(service)
    }

    fn start(&mut self, lab: &Lab) -> Result<()> {
        let mut spec = Spec::new(self.driver, Vec::<String>::new())?;
        spec.listen = vec![self.portal];
        spec.daemon = Some(self.file.clone());
        self.target = Some(Target::start_named(lab, &spec, TARGET)?);
        let end = Instant::now() + LIMIT;
        while self.lunar(&["status"])?.status.code() != Some(0) || self.lunar(&["statistics"])?.status.code() != Some(0)
        {
            ensure!(Instant::now() < end, "the daemon does not start");
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        let mut target = self.target.take().context("the daemon runs")?;
        target.healthy()?;
        target.stop()
    }

    /// A command with the environment of an operator.
    fn command(&self, program: &str) -> Command {
        let mut command = process::bound(program);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.folder.join("bin").display()));
        command.env("LUNAR_SOCKET", self.folder.join("api.sock"));
        command
    }

    fn lunar(&self, words: &[&str]) -> Result<process::Output> {
        process::run(self.command("lunar").args(words), LIMIT)
    }

    /// The findings, and the exit status.
    fn doctor(&self, words: &[&str]) -> Result<(Vec<Value>, i32)> {
        let file = self.file.to_str().context("a path that is UTF-8")?;
        let all = [&["doctor", "--json", "--interval", "1s"][..], words].concat();
        let running = self.target.is_some();
        let all = if running { all } else { [&all[..], &["--config", file]].concat() };
        findings(&self.lunar(&all)?)
    }

    /// The finding with this code and subject.
    fn expect(&self, code: &str, subject: &str) -> Result<Value> {
        let (all, _) = self.doctor(&[])?;
        let found = find(&all, code, subject);
        found.with_context(|| format!("no finding {code} about {subject}: {}", shown(&all)))
    }

    fn expect_none(&self, code: &str, subject: &str) -> Result<()> {
        let (all, _) = self.doctor(&[])?;
        ensure!(find(&all, code, subject).is_none(), "{code} about {subject} is still found: {}", shown(&all));
        Ok(())
    }

    /// Runs the command of a finding; returns its output.
    fn mend(&self, finding: &Value) -> Result<String> {
        let command = finding["command"].as_str().filter(|command| !command.is_empty()).context("no command")?;
        let done = process::run(self.command("sh").args(["-c", command]), LIMIT)?;
        done.succeeded().with_context(|| command.to_owned())
    }

    /// Finds, mends, and finds no more.
    fn mends(&self, code: &str, subject: &str) -> Result<()> {
        let finding = self.expect(code, subject)?;
        for key in ["words", "remedy", "severity"] {
            ensure!(finding[key].as_str().is_some_and(|text| !text.is_empty()), "{finding:#}");
        }
        ensure!(finding["evidence"].as_array().is_some_and(|all| !all.is_empty()), "{finding:#}");
        self.mend(&finding)?;
        self.expect_none(code, subject)
    }

    /// The failed write is a trouble of the volume: for `lunar explain`, in the status, in the metrics, for the doctor.
    fn says_no_space(&self) -> Result<()> {
        let explain = || -> Result<Value> {
            let text = self.lunar(&["explain", "volume", "disk", "--json"])?.text;
            serde_json::from_str(&text).with_context(|| text.clone())
        };
        let end = Instant::now() + LIMIT;
        while explain()?["code"] != "no-space" {
            ensure!(Instant::now() < end, "the volume has no trouble: {:#}", explain()?);
            std::thread::sleep(Duration::from_millis(100));
        }
        let text = self.lunar(&["status"])?.text;
        ensure!(text.contains("volume disk") && text.contains("make room there"), "{text}");
        let finding = self.expect("trouble", "volume disk")?;
        ensure!(finding["remedy"].to_string().contains("make room there"), "{finding}");
        let (_, page) = get(self.api, "/metrics", Some(TOKEN), "")?;
        for name in [
            "lunar_trouble{code=\"no-space\",subject=\"volume disk\"}",
            "lunar_volume_state{volume=\"disk\",state=\"full\"}",
            "lunar_volume_errors_total{volume=\"disk\",kind=\"space\"}",
        ] {
            ensure!(series(&page, name)? == 1, "{name}");
        }
        Ok(())
    }

    /// Starts a load with these options; it ends with the returned value.
    fn load(&self, lun: u8, words: &[&str]) -> Result<Load> {
        let url = format!("iscsi://{}/{TARGET}/{lun}", self.portal);
        let mut command = self.command("lunar");
        command.args(["bench", &url, "--warmup", "0"]).args(words);
        Ok(Load(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("cannot start a load")?))
    }
}

/// A load in the background, until it is dropped.
struct Load(Child);

impl Load {
    fn wait(mut self) -> Result<()> {
        let ended = process::wait(&mut self.0, LIMIT)?.context("the load does not end")?;
        ensure!(ended.success(), "the load ended with {ended}");
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // It may have ended.
        let _ = process::signal(&self.0, Signal::KILL);
        let _ = self.0.wait();
    }
}

fn findings(done: &process::Output) -> Result<(Vec<Value>, i32)> {
    let start = done.text.find('{').with_context(|| done.text.clone())?;
    let all: Value = serde_json::from_str(&done.text[start..]).with_context(|| done.text.clone())?;
    let exit = done.status.code().context("it ends by itself")?;
    let wanted = match all["worst"].as_str() {
        Some("error") => EXIT_ERROR,
        Some("warning") => 5,
        _ => 0,
    };
    ensure!(exit == wanted, "the exit status is {exit} with {}", all["worst"]);
    Ok((all["findings"].as_array().context("findings")?.clone(), exit))
}

fn find(all: &[Value], code: &str, subject: &str) -> Option<Value> {
    let is_it =
        |one: &&Value| one["code"] == code && one["subject"].as_str().is_some_and(|text| text.contains(subject));
    all.iter().find(is_it).cloned()
}

fn shown(all: &[Value]) -> String {
    all.iter().map(|one| format!("{} {}; ", one["code"], one["subject"])).collect()
}

fn changed_while_it_runs(lab: &Lab, driver: Driver) -> Result<()> {
    let mut service = Service::started(lab, driver, "changed", None)?;
    for (code, subject) in [("secret-readable", ""), ("volume-unmapped", ""), ("trouble", ""), ("service-down", "")] {
        service.expect_none(code, subject)?;
    }
    let secret = service.folder.join("secret");
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o644))?;
    ensure!(service.doctor(&[])?.1 == EXIT_ERROR, "an error is in the exit status");
    service.mends("secret-readable", "user esx")?;
    std::fs::write(&secret, "a secret, long enough \n")?;
    service.mends("secret-blank", "user esx")?;
    service.lunar(&["volume", "create", "spare", "--kind", "ram", "--size", "1M"])?.succeeded()?;
    service.mends("volume-unmapped", "volume spare")?;
    let edited = std::fs::read_to_string(&service.file)? + "# Edited, and not applied.\n";
    std::fs::write(&service.file, edited)?;
    service.mends("trouble", "lunar.toml")?;
    let text = service.lunar(&["doctor", "--interval", "0s"])?.text;
    ensure!(text.lines().last().is_some_and(|line| line.contains(" checks")), "{text}");
    service.stop()
}

fn full(lab: &Lab, driver: Driver) -> Result<()> {
    let Some(system) = MountedFs::new(lab, "tmpfs", 64)? else { return skip("no file system can be mounted here") };
    let mut service = Service::started(lab, driver, "full", Some(&system.path))?;
    let place = system.path.display().to_string();
    service.expect_none("file-system-full", &place)?;
    service.expect_none("over-committed", &place)?;
    let filler = system.path.join("filler");
    process::run(Command::new("fallocate").args(["-l", "65400K"]).arg(&filler), LIMIT)?.succeeded()?;
    service.expect("over-committed", &place)?;
    let finding = service.expect("file-system-full", &place)?;
    // The command shows what takes the space; the operator decides what may go.
    let listed = service.mend(&finding)?;
    ensure!(listed.lines().rev().take(2).any(|line| line.contains("filler")), "{listed}");
    let mut session = Session::ready(service.portal, &Login::to(TARGET, "writer"), 0)?;
    let write = |session: &mut Session| {
        session.run(&crate::session::cdb::write(0, BLOCKS), Data::Out(vec![7; BLOCKS as usize * 512]))
    };
    // DATA PROTECT, SPACE ALLOCATION FAILED WRITE PROTECT.
    write(&mut session)?.expect_sense(7, 0x27, 0x07)?;
    service.says_no_space()?;
    std::fs::remove_file(filler)?;
    write(&mut session)?.good().context("a write after there is space again")?;
    session.logout()?;
    service.expect_none("file-system-full", &place)?;
    service.expect_none("over-committed", &place)?;
    service.expect("volatile-file-system", &place)?;
    service.stop()
}

fn read_only(lab: &Lab, driver: Driver) -> Result<()> {
    let Some(system) = MountedFs::new(lab, "tmpfs", 64)? else { return skip("no file system can be mounted here") };
    let mut service = Service::new(lab, driver, "read-only", Some(&system.path))?;
    std::fs::File::create(system.path.join("disk.img"))?.set_len(48 << 20)?;
    process::run(Command::new("mount").args(["-o", "remount,ro"]).arg(&system.path), LIMIT)?.succeeded()?;
    service.expect("service-down", "lunar")?;
    service.mends("file-system-read-only", "volume disk")?;
    service.start(lab)?;
    service.expect_none("service-down", "lunar")?;
    service.stop()
}

/// The doctor runs as the user of the service, which is another one than root: root may write everything.
fn not_permitted(lab: &Lab, driver: Driver) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can take the rights of another user");
    }
    let service = Service::new(lab, driver, "permission", None)?;
    let as_nobody = |program: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--", program]);
        command.env("LUNAR_SOCKET", service.folder.join("api.sock"));
        command
    };
    let program = service.folder.join("bin/lunar");
    let program = program.to_str().context("a path that is UTF-8")?;
    if !process::run(as_nobody(program).arg("--version"), LIMIT).is_ok_and(|done| done.status.success()) {
        return skip("other users cannot reach the folder of the tests");
    }
    let image = service.folder.join("disk.img");
    std::fs::File::create(&image)?.set_len(48 << 20)?;
    let owned = format!("{NOBODY}:{NOBODY}");
    for file in [&image, &service.file] {
        process::run(Command::new("chown").arg(&owned).arg(file), LIMIT)?.succeeded()?;
    }
    std::fs::set_permissions(&image, PermissionsExt::from_mode(0o400))?;
    let examine = || {
        let done = process::run(as_nobody(program).args(["doctor", "--json", "--config"]).arg(&service.file), LIMIT)?;
        findings(&done).map(|(all, _)| all)
    };
    let all = examine()?;
    let finding = find(&all, "store-refused", "volume disk").with_context(|| shown(&all))?;
    service.mend(&finding)?;
    let all = examine()?;
    ensure!(find(&all, "store-refused", "volume disk").is_none(), "{}", shown(&all));
    Ok(())
}

/// A mounted file system, until it is dropped.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        // The remedy may have unmounted it.
        let _ = Command::new("umount").arg(&self.0).stderr(Stdio::null()).status();
    }
}

fn in_use(lab: &Lab, driver: Driver) -> Result<()> {
    let service = Service::new(lab, driver, "in-use", None)?;
    let image = lab.image("in-use.img", 48)?;
    process::run(Command::new("mkfs.ext4").args(["-q", "-F", &image]), LIMIT)?.succeeded()?;
    let device = LoopDevice::attach(&image)?;
    let config = std::fs::read_to_string(&service.file)?;
    let file = format!("kind = \"file\"\npath = \"{}/disk.img\"\nsize = \"48M\"", service.folder.display());
    ensure!(config.contains(&file), "{config}");
    std::fs::write(&service.file, config.replace(&file, &format!("kind = \"block\"\npath = \"{}\"", device.path)))?;
    service.expect_none("device-in-use", "volume disk")?;
    let place = Mount(service.folder.join("mounted"));
    std::fs::create_dir_all(&place.0)?;
    process::run(Command::new("mount").arg(&device.path).arg(&place.0), LIMIT)?.succeeded()?;
    service.mends("device-in-use", "volume disk")
}

fn port_taken(lab: &Lab, driver: Driver) -> Result<()> {
    let service = Service::new(lab, driver, "port", None)?;
    service.expect_none("port-taken", "portal one")?;
    let taken = TcpListener::bind(service.portal)?;
    let finding = service.expect("port-taken", "portal one")?;
    ensure!(finding["command"].as_str().is_some_and(|command| command.contains(&service.portal.port().to_string())));
    drop(taken);
    service.expect_none("port-taken", "portal one")
}

/// Keeps cores busy with long commands of so many sessions, until `stop` is set.
fn occupy(portal: SocketAddr, sessions: usize, stop: &AtomicBool) -> Result<()> {
    // WRITE SAME of 512 MiB: the target works, and the initiator waits.
    let (blocks, data) = (1_u32 << 20, vec![0xa5; 512]);
    let cdb = [&[0x93, 0][..], &0_u64.to_be_bytes(), &blocks.to_be_bytes(), &[0, 0]].concat();
    let work = |at: usize| -> Result<()> {
        let mut session = Session::ready(portal, &Login::to(TARGET, &format!("busy{at}")), 1)?;
        session.start(&cdb, Data::Out(data.clone()))?;
        while !stop.load(Ordering::Relaxed) {
            session.start(&cdb, Data::Out(data.clone()))?;
            session.next()?.good()?;
        }
        session.next()?.good()?;
        session.logout()
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..sessions).map(|at| scope.spawn(move || work(at))).collect();
        all.into_iter().try_for_each(|one| one.join().unwrap_or_else(|_| bail!("a session panicked")))
    })
}

/// One session keeps one core busy; more sessions are spread over both.
fn saturated(lab: &Lab, driver: Driver) -> Result<()> {
    let mut service = Service::started(lab, driver, "saturated", None)?;
    service.expect_none("core-saturated", "core")?;
    // Other tests may take the processors for a moment.
    let eventually = |sessions: usize, wanted: &dyn Fn() -> Result<()>| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let load = scope.spawn(|| occupy(service.portal, sessions, &stop));
            let end = Instant::now() + Duration::from_secs(30);
            let seen = loop {
                match wanted() {
                    Err(_) if Instant::now() < end => {}
                    seen => break seen,
                }
            };
            stop.store(true, Ordering::Relaxed);
            load.join().unwrap_or_else(|_| bail!("the load panicked"))?;
            seen
        })
    };
    eventually(1, &|| {
        let finding = service.expect("core-saturated", "core")?;
        ensure!(finding["command"].as_str().is_some_and(|command| command.contains("nr_sessions")), "{finding:#}");
        Ok(())
    })?;
    eventually(8, &|| service.expect_none("core-saturated", "core"))?;
    service.stop()
}

/// The value of a series of a page of metrics.
fn series(page: &str, name: &str) -> Result<u64> {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).with_context(|| format!("no series {name}"))
}

fn numbers(lab: &Lab, driver: Driver) -> Result<()> {
    let mut service = Service::started(lab, driver, "numbers", None)?;
    let get = |path: &str| {
        let (status, body) = get(service.api, path, Some(TOKEN), "")?;
        ensure!(status == 200, "{path} has status {status}: {body}");
        Ok(body)
    };
    let page = || get("/metrics");
    let read = |class: &str| format!("lunar_volume_commands_total{{volume=\"none\",class=\"{class}\"}}");
    let load = service.load(1, &["--rw", "randrw", "--bs", "4k", "--depth", "8", "--time", "6"])?;
    std::thread::sleep(Duration::from_secs(1));
    let url = format!("http://{}", service.api);
    let token = service.folder.join("token");
    let token = token.to_str().context("a path that is UTF-8")?;
    for words in [&[][..], &["--url", &url, "--token-file", token]] {
        // The page of metrics may be a second old.
        let (before, begin) = (page()?, Instant::now());
        let shown = service.lunar(&[&["top", "--once", "--json"][..], words].concat())?.succeeded()?;
        std::thread::sleep(Duration::from_millis(1100));
        let (after, passed) = (page()?, begin.elapsed().as_secs_f64());
        let shown: Value = serde_json::from_str(&shown).with_context(|| shown.clone())?;
        let volume = shown["volumes"].as_array().into_iter().flatten().find(|volume| volume["name"] == "none");
        let volume = volume.with_context(|| format!("{shown:#}"))?;
        for (class, others) in [("read", "read"), ("write", "write")] {
            let counted = series(&after, &read(class))? - series(&before, &read(class))?;
            let of = |key: &str| volume[others][key].as_f64().unwrap_or(0.0);
            let (commands, rate) = (of("commands"), of("iops"));
            ensure!(commands > 0.0 && commands <= counted as f64, "{class}: {commands} of {counted}");
            let mean = counted as f64 / passed;
            ensure!((0.3..3.0).contains(&(rate / mean)), "{class}: {rate} a second, and {mean} by the metrics");
            ensure!((of("bytes-per-second") / rate - 4096.0).abs() < 1.0, "{volume:#}");
            ensure!(volume[others]["latency"]["p99-microseconds"].as_f64().is_some(), "{volume:#}");
        }
        let hosts = shown["hosts"].as_array().context("hosts")?;
        ensure!(
            hosts.iter().any(|host| host["sessions"] == 1 && host["read"]["commands"].as_u64() > Some(0)),
            "{shown:#}"
        );
        ensure!(shown["cores"].as_array().is_some_and(|cores| cores.len() == 2), "{shown:#}");
    }
    load.wait()?;
    std::thread::sleep(Duration::from_millis(1100));
    // At rest, the counters are exactly those of the metrics.
    let page = page()?;
    let counters: Value = serde_json::from_str(&get("/v1/counters")?)?;
    for volume in counters["volumes"].as_array().context("volumes")? {
        let name = volume["name"].as_str().context("a name")?;
        for class in ["read", "write"] {
            let of = |family: &str, label: &str| {
                series(&page, &format!("{family}{{volume=\"{name}\",{label}=\"{class}\"}}"))
            };
            let counted = &volume["traffic"][class];
            ensure!(counted["commands"] == of("lunar_volume_commands_total", "class")?, "{name} {class}: {counted}");
            ensure!(counted["bytes"] == of("lunar_volume_bytes_total", "direction")?, "{name} {class}: {counted}");
        }
    }
    service.stop()
}

/// A `lunar top` in a terminal of this size. Its output is in a file.
struct Terminal {
    child: Child,
    output: PathBuf,
    size: (usize, usize),
}

impl Terminal {
    fn start(service: &Service, columns: usize, lines: usize) -> Result<Self> {
        let output = service.folder.join(format!("terminal-{columns}"));
        let words = format!("stty cols {columns} rows {lines}; exec lunar top --interval 200ms");
        let mut command = service.command("script");
        command.args(["--quiet", "--flush", "--return", "--command", &words]).arg(&output);
        command.env("TERM", "xterm-256color").env("NO_COLOR", "1").env("LANG", "C.UTF-8");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Self { child: child.context("cannot start script")?, output, size: (columns, lines) })
    }

    fn press(&mut self, keys: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().context("it has an input")?;
        input.write_all(keys.as_bytes())?;
        Ok(input.flush()?)
    }

    /// The lines of the screen.
    fn screen(&self) -> Vec<String> {
        screen(&String::from_utf8_lossy(&std::fs::read(&self.output).unwrap_or_default()), self.size)
    }

    /// Waits until a line of the screen begins with this text, after the mark of its row.
    fn shows(&self, text: &str) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while !self.screen().iter().any(|line| line.trim_start_matches([' ', '!']).starts_with(text)) {
            ensure!(Instant::now() < end, "no line begins with {text}:\n{}", self.screen().join("\n"));
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn quit(mut self) -> Result<()> {
        self.press("q")?;
        let ended = process::wait(&mut self.child, LIMIT)?.context("it does not end")?;
        ensure!(ended.success(), "lunar top ended with {ended}");
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = process::signal(&self.child, Signal::KILL);
        let _ = self.child.wait();
    }
}

/// The screen of a terminal that got this output. It knows the positions of the cursor and erasing, not colours.
fn screen(output: &str, (columns, lines): (usize, usize)) -> Vec<String> {
    let blank = || vec![vec![' '; columns]; lines];
    let (mut cells, mut line, mut column) = (blank(), 0, 0);
    let mut rest = output.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' if rest.next_if_eq(&'[').is_some() => {
                let mut words = String::new();
                let end = loop {
                    match rest.next() {
                        Some(end @ '@'..='~') => break end,
                        Some(c) => words.push(c),
                        None => break ' ',
                    }
                };
                let numbers: Vec<usize> = words.split(';').map(|word| word.parse().unwrap_or(1)).collect();
                match end {
                    'H' => {
                        line = numbers[0].saturating_sub(1);
                        column = numbers.get(1).map_or(0, |column| column - 1);
                    }
                    // It erases, or changes to the alternate screen.
                    'J' => cells = blank(),
                    'h' if words == "?1049" => cells = blank(),
                    _ => {}
                }
            }
            '\r' => column = 0,
            '\n' => line += 1,
            c if !c.is_control() => {
                if let Some(cell) = cells.get_mut(line).and_then(|line| line.get_mut(column)) {
                    *cell = c;
                }
                column += 1;
            }
            _ => {}
        }
    }
    cells.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_owned()).collect()
}

fn in_a_terminal(lab: &Lab, driver: Driver) -> Result<()> {
    if !process::run(Command::new("script").arg("--version"), LIMIT).is_ok_and(|done| done.status.success()) {
        return skip("the program `script` is not installed");
    }
    let mut service = Service::started(lab, driver, "terminal", None)?;
    let load = service.load(1, &["--rw", "randread", "--bs", "4k", "--depth", "8", "--time", "30"])?;
    for (columns, lines) in [(80, 24), (200, 60)] {
        let mut terminal = Terminal::start(&service, columns, lines)?;
        terminal.shows("none")?;
        let shown = terminal.screen();
        ensure!(shown[0].contains("2 volumes, 1 host, 1 session"), "{}", shown.join("\n"));
        ensure!(!shown[1].starts_with("0 IOPS"), "{}", shown.join("\n"));
        ensure!(shown[lines - 1].starts_with("? help"), "{}", shown.join("\n"));
        if lab.verbose {
            lab.report.note(&format!("{columns} x {lines}:\n{}", shown.join("\n")));
        }
        terminal.press("2")?;
        terminal.shows("host ")?;
        terminal.press("1\r")?;
        terminal.shows("latency of all commands")?;
        terminal.quit()?;
    }
    drop(load);
    let mut terminal = Terminal::start(&service, 80, 24)?;
    terminal.shows("disk")?;
    service.stop()?;
    terminal.shows("NO ANSWER")?;
    service.start(lab)?;
    terminal.shows("? help")?;
    terminal.press("j")?;
    terminal.quit()?;
    // It ends with its terminal.
    let terminal = Terminal::start(&service, 80, 24)?;
    terminal.shows("disk")?;
    drop(terminal);
    let end = Instant::now() + LIMIT;
    let socket = format!("LUNAR_SOCKET={}", service.folder.join("api.sock").display());
    while count_of_tops(&socket)? > 0 {
        ensure!(Instant::now() < end, "lunar top goes on without its terminal");
        std::thread::sleep(Duration::from_millis(50));
    }
    service.stop()
}

/// The number of processes `lunar top` with this variable in their environment.
fn count_of_tops(variable: &str) -> Result<usize> {
    let is_it = |process: &std::fs::DirEntry| {
        let read = |name: &str| std::fs::read(process.path().join(name)).unwrap_or_default();
        let has = |bytes: &[u8], word: &str| bytes.split(|byte| *byte == 0).any(|found| found == word.as_bytes());
        has(&read("environ"), variable) && has(&read("cmdline"), "top")
    };
    Ok(std::fs::read_dir("/proc")?.flatten().filter(is_it).count())
}

fn nobody_answers(lab: &Lab, driver: Driver) -> Result<()> {
    let service = Service::new(lab, driver, "nobody", None)?;
    for words in [&["top", "--once"][..], &["top", "--once", "--json"], &["top", "--json"]] {
        let done = service.lunar(words)?;
        ensure!(done.status.code() == Some(3), "{words:?} ends with {}: {}", done.status, done.text);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_a_terminal_becomes_a_screen() {
        let output = "gone\r\n\u{1b}[?1049h\u{1b}[1;1Hab\u{1b}[2;3H\u{1b}[1mc\u{1b}[0m\u{1b}[1;2HX\r\nd";
        assert_eq!(screen(output, (4, 3)), ["aX", "d c", ""]);
    }
}

//! Metrics with a real Prometheus: `promtool` accepts the page and the rules, every query of the dashboard and of the
//! rules is valid, and every metric that they name has a series after a small load.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;

use crate::process;
use crate::report::skip;
use crate::session::{Data, Login, Session};
use crate::target::{Driver, Lab, Spec, Target, free_port, tail};
use crate::tools::tool;

const TARGET: &str = "iqn.2026-01.io.lunar.conform:metrics";
const TOKEN: &str = "a token that reads metrics only";
/// How long a series may take to appear: a few scrapes, and the looks of the daemon at its disks and troubles.
const LIMIT: Duration = Duration::from_secs(30);
/// The prefixes of the metrics that the daemon has.
const PREFIXES: [&str; 2] = ["lunar_", "process_"];

/// The files for operators.
fn monitoring(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/monitoring").join(name)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is UTF-8")
}

pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let built = lab.built()?;
    let part = format!("metrics/{}", driver.name());
    if !["prometheus", "promtool"].iter().all(|program| {
        process::run(process::bound(program).arg("--version"), LIMIT).is_ok_and(|done| done.status.success())
    }) {
        return skip("the package prometheus is not installed");
    }
    lab.report.check(&part, "promtool accepts the rules, and their tests succeed", rules);
    let mut daemon = None;
    lab.report.check(&part, "a daemon with a token for metrics starts", || {
        daemon = Some(Daemon::start(lab, driver)?);
        Ok(())
    });
    let Some(mut daemon) = daemon else { return Ok(()) };
    lab.report.check(&part, "the token reads metrics and nothing else; health needs no token", || rights(daemon.api));
    let mut server = None;
    lab.report.check(&part, "Prometheus scrapes it under load", || {
        daemon.load(built)?;
        server = Some(Prometheus::start(lab, &daemon)?);
        Ok(())
    });
    lab.report.check(&part, "promtool accepts the page in both formats", || page(lab, daemon.api));
    if let Some(server) = &server {
        lab.report.check(&part, "every metric of the dashboard and of the rules has a series", || {
            has_series(server, &daemon)
        });
        lab.report.check(&part, "every query of the dashboard is valid, and those of volumes return numbers", || {
            queries(server)
        });
        lab.report.check(&part, "the counters agree with what an initiator has done", || counted(server, &daemon));
    }
    drop(server);
    lab.report.check(&part, "the daemon stops in time", || daemon.stop());
    Ok(())
}

fn rules() -> Result<()> {
    let shown = tool("promtool", &["check", "rules", text(&monitoring("lunar.rules.yml"))?])?;
    ensure!(shown.contains("SUCCESS"), "{shown}");
    let tested = tool("promtool", &["test", "rules", text(&monitoring("lunar.rules.test.yml"))?])?;
    ensure!(tested.contains("SUCCESS"), "{tested}");
    // Each rule has a test.
    let (rules, tests) = (
        std::fs::read_to_string(monitoring("lunar.rules.yml"))?,
        std::fs::read_to_string(monitoring("lunar.rules.test.yml"))?,
    );
    for name in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        ensure!(tests.contains(&format!("alertname: {name}\n")), "the rule {name} has no test");
    }
    Ok(())
}

/// A daemon whose API listens on the loopback.
struct Daemon {
    target: Option<Target>,
    portal: SocketAddr,
    api: SocketAddr,
    folder: PathBuf,
    file: PathBuf,
}

impl Daemon {
    fn start(lab: &Lab, driver: Driver) -> Result<Self> {
        let folder = lab.scratch.join(format!("metrics-{}", driver.name()));
        std::fs::create_dir_all(&folder)?;
        let (portal, api, file) = (free_port()?, free_port()?, folder.join("lunar.toml"));
        let place = folder.display();
        let config = format!(
            "[server]\ncores = 2\nmemory = \"32M\"\ndriver = \"{}\"\ndrain = \"3s\"\nstate = \"{place}/state\"\n\
             [volume.disk]\nkind = \"file\"\npath = \"{place}/disk.img\"\nsize = \"64M\"\n\
             [volume.memory]\nkind = \"ram\"\nsize = \"16M\"\n\
             [portal-group.p]\ntag = 1\n[portal.one]\naddress = \"{portal}\"\ngroup = \"p\"\n\
             [target.main]\niqn = \"{TARGET}\"\nportal-groups = [\"p\"]\n\
             [group.all]\ntargets = [\"main\"]\ninitiators = [\"*\"]\nluns = {{ 0 = \"disk\", 1 = \"memory\" }}\n\
             [api]\nsocket = \"{place}/api.sock\"\n[api-listener.local]\naddress = \"{api}\"\n\
             [api-token.prometheus]\nsecret = \"{TOKEN}\"\nrole = \"metrics\"\n",
            driver.name().replace('_', "-"),
        );
        std::fs::write(&file, config)?;
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let mut spec = Spec::new(driver, Vec::<String>::new())?;
        spec.listen = vec![portal];
        spec.daemon = Some(file.clone());
        let target = Target::start_named(lab, &spec, TARGET)?;
        let end = Instant::now() + LIMIT;
        while get(api, "/readyz", None, "")?.0 != 200 {
            ensure!(Instant::now() < end, "it does not become ready");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Self { target: Some(target), portal, api, folder, file })
    }

    /// Reads, writes, unmaps, is refused; and edits the file, which is a trouble until it is applied.
    fn load(&mut self, program: &Path) -> Result<()> {
        for lun in ["0", "1"] {
            let url = format!("iscsi://{}/{TARGET}/{lun}", self.portal);
            let words =
                ["bench", &url, "--rw", "randrw", "--bs", "4k", "--size", "16M", "--time", "1", "--warmup", "0"];
            tool(text(program)?, &words)?;
        }
        ensure!(
            Session::open(self.portal, &Login::to("iqn.2026-01.io.lunar.conform:none", "a")).is_err(),
            "a login to no target"
        );
        let edited = std::fs::read_to_string(&self.file)? + "# Edited, and not applied.\n";
        Ok(std::fs::write(&self.file, edited)?)
    }

    fn stop(&mut self) -> Result<()> {
        let mut target = self.target.take().context("the daemon runs")?;
        target.healthy()?;
        target.stop()
    }
}

/// A Prometheus that scrapes a daemon, until it is dropped.
struct Prometheus {
    child: Child,
    url: String,
}

impl Prometheus {
    fn start(lab: &Lab, daemon: &Daemon) -> Result<Self> {
        let (folder, listen) = (daemon.folder.join("prometheus"), free_port()?);
        std::fs::create_dir_all(&folder)?;
        let (config, log) = (folder.join("prometheus.yml"), folder.join("log"));
        let words = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [\"{}\"]\nscrape_configs:\n  \
             - job_name: lunar\n    authorization: {{credentials: \"{TOKEN}\"}}\n    \
             static_configs: [{{targets: [\"{}\"]}}]\n",
            monitoring("lunar.rules.yml").display(),
            daemon.api,
        );
        std::fs::write(&config, words)?;
        tool("promtool", &["check", "config", text(&config)?])?;
        let mut command = process::bound("prometheus");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
        command.arg(format!("--web.listen-address={listen}"));
        let output = std::fs::File::create(&log)?;
        command.stdout(Stdio::null()).stderr(output);
        let child = command.spawn().context("cannot start prometheus")?;
        let server = Self { child, url: format!("http://{listen}") };
        let end = Instant::now() + LIMIT;
        while !server.ask("up{job=\"lunar\"}").is_ok_and(|found| found.contains("=> 1 ")) {
            if Instant::now() >= end {
                lab.report.note(&tail(&log));
                bail!("Prometheus does not scrape the daemon");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(server)
    }

    /// The series that a query returns now, one on each line.
    fn ask(&self, query: &str) -> Result<String> {
        tool("promtool", &["query", "instant", &self.url, query])
    }

    /// The number that a query returns.
    fn number(&self, query: &str) -> Result<f64> {
        let found = self.ask(query)?;
        let value = found.rsplit_once("=> ").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
        value.with_context(|| format!("{query} returns no number: {found}"))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It has ended if the signal cannot be sent.
        let _ = process::signal(&self.child, Signal::KILL);
        let _ = self.child.wait();
    }
}

/// The status and the body of a request of the API.
pub(crate) fn get(api: SocketAddr, path: &str, token: Option<&str>, accept: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(api)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let accept = if accept.is_empty() { String::new() } else { format!("Accept: {accept}\r\n") };
    write!(stream, "GET {path} HTTP/1.1\r\nHost: lunar\r\n{token}{accept}Connection: close\r\n\r\n")?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let answer = String::from_utf8(bytes).context("an answer that is text")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer with a head")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("a status")?;
    Ok((status, body.to_owned()))
}

fn rights(api: SocketAddr) -> Result<()> {
    for (path, token, wanted) in [
        ("/metrics", Some(TOKEN), 200),
        ("/metrics", None, 401),
        ("/metrics", Some("another token, as long"), 401),
        ("/v1/status", Some(TOKEN), 403),
        ("/v1/config/text", Some(TOKEN), 403),
        ("/v1/events", Some(TOKEN), 403),
        ("/livez", None, 200),
        ("/readyz", None, 200),
        ("/livez?verbose", Some("another token, as long"), 200),
    ] {
        let (status, body) = get(api, path, token, "")?;
        ensure!(status == wanted, "{path} with {token:?} has status {status}, not {wanted}: {body}");
    }
    let (_, body) = get(api, "/readyz?verbose", None, "")?;
    ensure!(body.lines().count() > 2 && body.lines().all(|line| line.ends_with(": ok")), "{body}");
    Ok(())
}

fn page(lab: &Lab, api: SocketAddr) -> Result<()> {
    for (name, accept, end) in [("plain", "", ""), ("open", "application/openmetrics-text", "# EOF\n")] {
        let (status, body) = get(api, "/metrics", Some(TOKEN), accept)?;
        ensure!(status == 200 && body.ends_with(end), "status {status}");
        if end.is_empty() {
            let path = lab.scratch.join(format!("metrics-{name}.txt"));
            std::fs::write(&path, body)?;
            // It reads standard input only.
            let check = format!("promtool check metrics < '{}'", path.display());
            tool("sh", &["-c", &check])?;
        }
    }
    Ok(())
}

/// The queries of the dashboard and of the rules.
fn all_queries() -> Result<Vec<String>> {
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(monitoring("dashboard.json"))?)?;
    let mut queries = Vec::new();
    let mut values = vec![&dashboard];
    while let Some(value) = values.pop() {
        match value {
            Value::Object(object) => {
                queries.extend(object.get("expr").and_then(Value::as_str).map(str::to_owned));
                values.extend(object.values());
            }
            Value::Array(list) => values.extend(list),
            _ => {}
        }
    }
    ensure!(queries.len() > 40, "{} queries of the dashboard", queries.len());
    Ok(queries)
}

/// The metrics that texts name.
fn metrics_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = texts.into_iter().flat_map(|text| text.split(move |c| !is_word(c)));
    words.filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix))).map(str::to_owned).collect()
}

/// The metric of findings has a series only while the service has found something, once a minute.
const FINDINGS: &str = "lunar_finding";

fn has_series(server: &Prometheus, daemon: &Daemon) -> Result<()> {
    let (queries, rules) = (all_queries()?, std::fs::read_to_string(monitoring("lunar.rules.yml"))?);
    let names = metrics_of(queries.iter().map(String::as_str).chain([rules.as_str()]));
    ensure!(names.len() > 30, "{names:?}");
    let _session = Session::ready(daemon.portal, &Login::to(TARGET, "watcher"), 0)?;
    let end = Instant::now() + LIMIT;
    let mut missing: Vec<_> = names.into_iter().filter(|name| name != FINDINGS).collect();
    while !missing.is_empty() {
        let mut left = Vec::new();
        for name in missing {
            if server.ask(&name)?.trim().is_empty() {
                left.push(name);
            }
        }
        ensure!(left.is_empty() || Instant::now() < end, "no series has the name {}", left.join(", "));
        missing = left;
    }
    Ok(())
}

fn queries(server: &Prometheus) -> Result<()> {
    let mut empty = Vec::new();
    for query in all_queries()? {
        let plain = query.replace("$__rate_interval", "20s").replace(['$'], ".*");
        let plain = ["instance", "volume", "host", "target"]
            .iter()
            .fold(plain, |plain, name| plain.replace(&format!(".*{name}"), ".*"));
        if server.ask(&plain).with_context(|| query.clone())?.trim().is_empty() {
            empty.push(query);
        }
    }
    // These are empty while all is well, or idle.
    let must = |query: &&String| query.contains("lunar_volume_commands") || query.contains("lunar_core_seconds");
    let wrong: Vec<_> = empty.iter().filter(must).collect();
    ensure!(wrong.is_empty(), "no numbers: {wrong:?}");
    Ok(())
}

/// Waits until Prometheus has seen this change of a number.
fn changes(server: &Prometheus, query: &str, before: f64, by: f64) -> Result<()> {
    let end = Instant::now() + LIMIT;
    loop {
        let now = server.number(query)?;
        if (now - before - by).abs() < 0.5 {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{query} was {before} and is {now}: it did not grow by {by}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn counted(server: &Prometheus, daemon: &Daemon) -> Result<()> {
    let mut session = Session::ready(daemon.portal, &Login::to(TARGET, "counter"), 1)?;
    let queries = [
        ("lunar_volume_commands_total{volume=\"memory\",class=\"read\"}", 7.0),
        ("lunar_volume_bytes_total{volume=\"memory\",direction=\"read\"}", 7.0 * 4096.0),
        ("lunar_volume_commands_total{volume=\"memory\",class=\"write\"}", 3.0),
        ("lunar_volume_command_seconds_count{volume=\"memory\",class=\"write\"}", 3.0),
        ("lunar_volume_misaligned_total{volume=\"memory\"}", 1.0),
        ("lunar_volume_unmapped_bytes_total{volume=\"memory\"}", 8192.0),
        ("sum(lunar_host_commands_total{host=~\".*:counter\",class=\"read\"}) or vector(0)", 7.0),
        ("sum(lunar_commands_total{transport=\"iscsi\",class=\"unmap\"})", 1.0),
    ];
    let before = queries.iter().map(|(query, _)| server.number(query)).collect::<Result<Vec<_>>>()?;
    for at in 0..7 {
        session.read(at * 8, 8, 512)?;
    }
    for (block, count) in [(0, 8), (8, 8), (1, 8)] {
        session.write(block, vec![1; 512 * count], 512)?;
    }
    let list = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &0u64.to_be_bytes(), &16u32.to_be_bytes(), &[0; 4]].concat();
    session.run(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], Data::Out(list))?.good().context("UNMAP")?;
    for ((query, by), before) in queries.iter().zip(before) {
        changes(server, query, before, *by)?;
    }
    ensure!(server.number("lunar_host_paths{host=~\".*:counter\"}")? == 1.0, "it has one session");
    session.logout()
}

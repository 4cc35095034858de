//! The page in a headless Chromium: its numbers are those of the API, it works with the keyboard alone, the checker
//! axe-core finds no violation, and it survives wrong tokens, hostile names and a daemon that stops.

mod browser;
mod codes;
mod explained;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::process;
use crate::report::skip;
use crate::session::{Login, Session};
use crate::target::{Driver, Lab, Spec, Target, free_port};
use crate::tools::tool;
use browser::{Browser, Look};

const TARGET: &str = "iqn.2026-01.io.lunar.conform:page";
const WRITER: &str = "a token that may write everything";
/// The time from which on commands are slow: that of many commands of a build with checks.
const SLOW: &str = "1ms";
const READER: &str = "a token that may read everything";
/// How long the page may take to show something.
const LIMIT: Duration = Duration::from_secs(20);
/// The views, each with a text that it shows when it is loaded.
const VIEWS: [(&str, &str); 10] = [
    ("overview", "Load by volume and host"),
    ("volumes", "99 % below"),
    ("hosts", "Sessions"),
    ("maps", "Clients"),
    ("settings", "portal-groups"),
    ("events", "logged in"),
    ("explain", "Refused logins"),
    ("slow", "Where the time of commands goes"),
    ("configuration", "Versions"),
    ("health", "Not checked"),
];
const LOOKS: [Look; 4] = [
    Look { name: "light", width: 1280, height: 800, dark: false },
    Look { name: "dark", width: 1280, height: 800, dark: true },
    Look { name: "phone-light", width: 390, height: 844, dark: false },
    Look { name: "phone-dark", width: 390, height: 844, dark: true },
];
/// The pictures of the documentation, each from a picture of the views.
const PICTURES: [(&str, &str); 7] = [
    ("overview-light", "overview-light"),
    ("overview-dark", "overview-dark"),
    ("overview-phone-light", "overview-phone-light"),
    ("volumes-vmfs1-light", "volume-light"),
    ("health-dark", "health-dark"),
    ("slow-light", "slow-light"),
    ("volumes-500", "volumes-500-light"),
];

pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("page/{}", driver.name());
    if !process::run(process::bound("chromium").arg("--version"), LIMIT).is_ok_and(|done| done.status.success()) {
        return skip("the package chromium is not installed");
    }
    let axe = axe(lab);
    let mut fixture = None;
    lab.report.check(&part, "a daemon, a browser and a login with a token", || {
        let daemon = Daemon::start(lab, driver, 0)?;
        let browser = Browser::start(&daemon.folder.join("browser"))?;
        let mut found = Fixture { daemon, browser };
        found.log_in()?;
        fixture = Some(found);
        Ok(())
    });
    let Some(mut fixture) = fixture else { return Ok(()) };
    let check = |name: &str, case: &mut dyn FnMut() -> Result<()>| lab.report.check(&part, name, case);
    check("a wrong token is refused, and the cookie is for the page only", &mut || fixture.wrong_token());
    check("the numbers are those of the API, under load and after it", &mut || fixture.numbers(lab));
    check("slow commands, and the charts of the time before the page was opened", &mut || fixture.past());
    check("explanations are those of the API and of the command line", &mut || fixture.explanations(lab));
    check("a session has its negotiated parameters and its connections", &mut || fixture.session());
    check("a refused login has its code, its remedy and its paragraph", &mut || fixture.refused(lab));
    check("the findings are those of `lunar doctor`", &mut || fixture.findings(lab));
    check("every code of the documentation is shown", &mut || fixture.codes());
    check("each question of an operator has a place that answers it", &mut || fixture.questions());
    check("a volume is created, mapped, resized and deleted with the keyboard alone", &mut || fixture.keyboard());
    check("every view in four looks: no error, no violation, nothing from elsewhere", &mut || {
        fixture.views(lab, axe.as_ref().map(String::as_str).map_err(|why| format!("{why:#}")))
    });
    check("names of strangers are shown as text", &mut || fixture.hostile_names());
    check("a one-time link of `lunar web` logs in once", &mut || fixture.link(lab));
    check("a daemon that stops and comes back", &mut || fixture.restart(lab, driver));
    check("a login ends with its token, and a reader sees no forms", &mut || fixture.reader());
    check("the daemon stops in time", &mut || fixture.daemon.stop());
    drop(fixture);
    lab.report.check(&part, "500 volumes and one viewer", || many_volumes(lab, driver));
    if let Some(folder) = &lab.pictures {
        lab.report.check(&part, "the pictures of the documentation", || keep_pictures(lab, folder));
    }
    Ok(())
}

/// The folder of all pictures.
fn pictures(lab: &Lab) -> PathBuf {
    lab.scratch.join("pictures")
}

/// Copies the pictures of the documentation into this folder.
fn keep_pictures(lab: &Lab, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    for (view, name) in PICTURES {
        let picture = pictures(lab).join(format!("{view}.png"));
        std::fs::copy(&picture, folder.join(format!("{name}.png"))).with_context(|| picture.display().to_string())?;
    }
    Ok(())
}

/// The checker of accessibility, which the npm registry has under a pinned digest.
fn axe(lab: &Lab) -> Result<String> {
    let folder = lab.scratch.join("axe");
    std::fs::create_dir_all(&folder)?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
    for name in ["package.json", "package-lock.json"] {
        std::fs::copy(source.join(name), folder.join(name))?;
    }
    let place = folder.display().to_string();
    tool("npm", &["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", &place])?;
    Ok(std::fs::read_to_string(folder.join("node_modules/axe-core/axe.min.js"))?)
}

/// A daemon whose API listens on the loopback.
struct Daemon {
    target: Option<Target>,
    spec: Spec,
    portal: SocketAddr,
    api: SocketAddr,
    folder: PathBuf,
}

impl Daemon {
    /// Starts a daemon with three volumes, and as many more.
    fn start(lab: &Lab, driver: Driver, more: usize) -> Result<Self> {
        let folder = lab.scratch.join(format!("page-{more}"));
        std::fs::create_dir_all(&folder)?;
        let (portal, api, file) = (free_port()?, free_port()?, folder.join("lunar.toml"));
        let place = folder.display();
        let mut config = format!(
            "[server]\ncores = 2\nmemory = \"32M\"\ndriver = \"{}\"\ndrain = \"3s\"\nstate = \"{place}/state\"\n\
             folders = [\"{place}\"]\n\
             [volume.vmfs1]\nkind = \"file\"\npath = \"{place}/vmfs1.img\"\nsize = \"256M\"\n\
             [volume.database]\nkind = \"ram\"\nsize = \"64M\"\n\
             [volume.scratch]\nkind = \"null\"\nsize = \"1G\"\n\
             [portal-group.main]\ntag = 1\n[portal.one]\naddress = \"{portal}\"\ngroup = \"main\"\n\
             [target.disks]\niqn = \"{TARGET}\"\nportal-groups = [\"main\"]\n\
             [user.esx]\nsecret = \"correct horse battery\"\n\
             [group.esx]\ntargets = [\"disks\"]\ninitiators = [\"iqn.2026-01.io.lunar*\"]\n\
             luns = {{ 0 = \"vmfs1\", 1 = \"database\" }}\n\
             [logging]\nslow = \"{SLOW}\"\n\
             [api]\nsocket = \"{place}/api.sock\"\n[api-listener.local]\naddress = \"{api}\"\n\
             [api-token.writer]\nsecret = \"{WRITER}\"\nrole = \"write\"\n[api-token.reader]\nsecret = \"{READER}\"\n",
            driver.name().replace('_', "-"),
        );
        for at in 0..more {
            write!(config, "[volume.disk{at:03}]\nkind = \"ram\"\nsize = \"1M\"\n")?;
        }
        std::fs::write(&file, config)?;
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let mut spec = Spec::new(driver, Vec::<String>::new())?;
        spec.listen = vec![portal, api];
        spec.daemon = Some(file);
        let target = Some(Target::start_named(lab, &spec, TARGET)?);
        Ok(Self { target, spec, portal, api, folder })
    }

    fn url(&self) -> String {
        format!("http://{}", self.api)
    }

    /// The answer of the API to a GET request.
    fn get(&self, path: &str) -> Result<Value> {
        let mut stream = TcpStream::connect(self.api)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: lunar\r\nAuthorization: Bearer {WRITER}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes())?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        let answer = String::from_utf8(bytes).context("an answer that is text")?;
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer with a head")?;
        ensure!(head.starts_with("HTTP/1.1 200"), "{path}: {head}\n{body}");
        serde_json::from_str(body).with_context(|| path.to_owned())
    }

    /// The commands of a volume so far: reads and writes.
    fn commands(&self, volume: &str) -> Result<[u64; 2]> {
        let counters = self.get("/v1/counters")?;
        let all = counters["volumes"].as_array().context("volumes")?;
        let row = all.iter().find(|row| row["name"] == volume).context("the volume")?;
        let of = |class: &str| row["traffic"][class]["commands"].as_u64().context("a counter");
        Ok([of("read")?, of("write")?])
    }

    fn stop(&mut self) -> Result<()> {
        let mut target = self.target.take().context("the daemon runs")?;
        target.healthy()?;
        target.stop()
    }

    /// Reads and writes a LUN for some seconds.
    fn load(&self, lab: &Lab, lun: u16, seconds: u32) -> Result<Child> {
        let url = format!("iscsi://{}/{TARGET}/{lun}", self.portal);
        let mut command = process::bound(lab.built()?);
        command.args(["bench", &url, "--rw", "randrw", "--bs", "4k", "--size", "32M", "--warmup", "0"]);
        command.args(["--time", &seconds.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().context("cannot start the load")
    }
}

/// A daemon and a browser.
struct Fixture {
    daemon: Daemon,
    browser: Browser,
}

/// An expression that is true if an element of this selector has this text.
fn has_text(selector: &str, text: &str) -> String {
    format!(
        "[...document.querySelectorAll({})].some((one) => one.innerText.includes({}))",
        json!(selector),
        json!(text)
    )
}

impl Fixture {
    fn log_in(&mut self) -> Result<()> {
        self.browser.look(LOOKS[0])?;
        let url = self.daemon.url();
        self.browser.open(&url)?;
        self.enter(WRITER)?;
        self.browser.wait("the overview", &has_text("main", "volumes are served"), LIMIT)
    }

    /// Gives a token to the form of the login.
    fn enter(&mut self, token: &str) -> Result<()> {
        self.browser.wait("the form", "document.querySelector('#token')", LIMIT)?;
        self.browser.eval("document.querySelector('#token').focus()")?;
        self.browser.type_text(token)?;
        self.browser.press("Enter")
    }

    fn view(&mut self, name: &str, text: &str) -> Result<()> {
        self.browser.eval(&format!("void (location.hash = {})", json!(format!("#/{name}"))))?;
        self.browser.wait(&format!("{text} in {name}"), &has_text("main", text), LIMIT)
    }

    /// No errors so far, and no request to another place.
    fn is_clean(&mut self) -> Result<()> {
        let errors = self.browser.take_errors()?;
        ensure!(errors.is_empty(), "errors in the browser: {}", errors.join("; "));
        let own = self.daemon.url();
        let foreign: Vec<_> =
            self.browser.requests.iter().filter(|url| !url.starts_with(&own) && *url != "about:blank").collect();
        ensure!(foreign.is_empty() && !self.browser.requests.is_empty(), "requests elsewhere: {foreign:?}");
        Ok(())
    }

    fn wrong_token(&mut self) -> Result<()> {
        self.is_clean()?;
        let cookies = self.browser.call("Network.getCookies", json!({ "urls": [self.daemon.url()] }))?;
        let cookie = &cookies["cookies"][0];
        ensure!(cookie["httpOnly"] == true && cookie["sameSite"] == "Strict" && cookie["path"] == "/", "{cookie}");
        ensure!(cookies["cookies"].as_array().is_some_and(|all| all.len() == 1), "{cookies}");
        ensure!(self.browser.eval("document.cookie")? == "", "a script can read the cookie");
        self.browser
            .eval("void [...document.querySelectorAll('button')].find((one) => one.innerText === 'Log out').click()")?;
        self.enter("a token that is not one")?;
        self.browser.wait("the refusal", &has_text("[role=alert]", "this token is not valid"), LIMIT)?;
        let errors = self.browser.take_errors()?;
        // The browser itself reports the status.
        ensure!(errors.iter().all(|error| error.contains("401") && error.contains("/v1/login")), "{errors:?}");
        self.enter(WRITER)?;
        self.browser.wait("the overview", &has_text("main", "volumes are served"), LIMIT)?;
        self.is_clean()
    }

    /// The commands of a volume as its view shows them.
    fn shown(&mut self) -> Result<[u64; 2]> {
        let found = self
            .browser
            .eval("['volume-reads', 'volume-writes'].map((id) => Number(document.getElementById(id).dataset.value))")?;
        Ok([found[0].as_u64().context("reads")?, found[1].as_u64().context("writes")?])
    }

    fn numbers(&mut self, lab: &Lab) -> Result<()> {
        self.view("volumes/vmfs1", "Since the start")?;
        let mut load = self.daemon.load(lab, 0, 6)?;
        self.browser.wait("commands", "document.getElementById('volume-reads').dataset.value > 0", LIMIT)?;
        for _ in 0..4 {
            let before = self.daemon.commands("vmfs1")?;
            // A frame a second, and the time to draw it.
            std::thread::sleep(Duration::from_millis(1300));
            let shown = self.shown()?;
            let after = self.daemon.commands("vmfs1")?;
            for class in 0..2 {
                ensure!(
                    (before[class]..=after[class]).contains(&shown[class]),
                    "the page shows {shown:?}, and the API had {before:?} a second before and {after:?} then"
                );
            }
        }
        let busy = self.browser.eval("document.getElementById('volume-commands').innerText")?;
        ensure!(busy != "0/s", "the rate under load: {busy}");
        ensure!(process::wait(&mut load, LIMIT)?.is_some_and(|status| status.success()), "the load fails");
        std::thread::sleep(Duration::from_millis(2500));
        let (shown, known) = (self.shown()?, self.daemon.commands("vmfs1")?);
        ensure!(shown == known && known[0] > 0 && known[1] > 0, "the page shows {shown:?}, the API {known:?}");
        ensure!(self.browser.eval("document.getElementById('volume-commands').innerText")? == "0/s", "it is idle");
        self.table_of_volumes()?;
        self.is_clean()
    }

    /// Every row of the list of volumes has the state, the size and the errors of the API.
    fn table_of_volumes(&mut self) -> Result<()> {
        self.view("volumes", "99 % below")?;
        let rows = self.browser.eval(
            "[...document.querySelectorAll('tbody tr')].map((row) => [row.querySelector('th').innerText, \
             ...['state', 'size', 'queue', 'errors'].map((key) => row.querySelector(`[data-key=${key}]`).innerText)])",
        )?;
        let counters = self.daemon.get("/v1/counters")?;
        let volumes = counters["volumes"].as_array().context("volumes")?;
        ensure!(rows.as_array().is_some_and(|rows| rows.len() == volumes.len()), "{rows}");
        for row in rows.as_array().into_iter().flatten() {
            let volume = volumes.iter().find(|volume| volume["name"] == row[0]).with_context(|| format!("{row}"))?;
            let mib = volume["size"].as_u64().context("a size")? >> 20;
            let size = if mib < 1024 { format!("{mib} MiB") } else { format!("{} GiB", mib / 1024) };
            let state = row[1].as_str().unwrap_or_default();
            ensure!(state.ends_with(volume["state"].as_str().unwrap_or_default()), "{row} and {volume}");
            ensure!(row[2] == size.as_str(), "{row} has size {size}");
            let [queue, errors] = [&volume["in-flight"], &volume["errors"]].map(Value::to_string);
            ensure!(row[3] == queue.as_str() && row[4] == errors.as_str(), "{row}");
        }
        Ok(())
    }

    /// Presses Tab until the focused element has this text or label.
    fn tab_to(&mut self, text: &str) -> Result<()> {
        for _ in 0..200 {
            self.browser.press("Tab")?;
            let found = self.browser.eval(&format!(
                "(() => {{ const one = document.activeElement; const label = one.labels?.[0]?.innerText ?? ''; \
                 return [one.innerText, label, one.getAttribute('aria-label')]\
                 .some((words) => words?.trim().startsWith({})); }})()",
                json!(text)
            ))?;
            if found == true {
                let outline = self.browser.eval("getComputedStyle(document.activeElement).outlineStyle")?;
                ensure!(outline != "none", "the focus at '{text}' cannot be seen");
                return Ok(());
            }
        }
        bail!("the key Tab does not reach '{text}'")
    }

    /// Goes on in a dialog: plans, looks at the steps, applies, closes. The change removes a volume whose name is to be
    /// typed.
    fn apply(&mut self, confirm: Option<&str>) -> Result<()> {
        self.browser.wait("the steps", "document.querySelector('dialog .steps li')", LIMIT)?;
        ensure!(
            self.browser.eval("document.querySelector('dialog .command code').innerText.startsWith('lunar ')")? == true
        );
        if let Some(word) = confirm {
            self.tab_to("To go on")?;
            self.browser.type_text(word)?;
        }
        self.tab_to("Apply")?;
        self.browser.press("Enter")?;
        self.browser.wait("the end", "document.querySelector('dialog .done')", LIMIT)?;
        if confirm.is_some() {
            self.browser.wait("no volume", &has_text("main", "There is no volume of this name"), LIMIT)?;
            ensure!(self.browser.eval("document.activeElement.innerText")? == "Close", "the dialog is still there");
        }
        self.browser.press("Enter")?;
        self.browser.wait("no dialog", "!document.querySelector('dialog')", LIMIT)
    }

    fn keyboard(&mut self) -> Result<()> {
        self.view("overview", "Load by volume and host")?;
        self.browser.eval("void document.activeElement.blur()")?;
        for view in ["Overview", "Volumes", "Health"] {
            self.tab_to(view)?;
        }
        self.view("volumes", "99 % below")?;
        self.browser.press("/")?;
        ensure!(self.browser.eval("document.activeElement.type")? == "search", "the key / finds the search");
        self.tab_to("Create volume")?;
        self.browser.press("Enter")?;
        self.browser.wait("the form", "document.querySelector('dialog form')", LIMIT)?;
        self.browser.press("Escape")?;
        self.browser.wait("no dialog", "!document.querySelector('dialog')", LIMIT)?;
        ensure!(self.browser.eval("document.activeElement.innerText")? == "Create volume", "the focus returns");
        self.browser.press("Enter")?;
        self.browser.wait("the form", "document.querySelector('dialog #field-name')", LIMIT)?;
        self.tab_to("Name")?;
        self.browser.type_text("by-keyboard")?;
        self.tab_to("kind")?;
        let chosen = "document.activeElement.value === 'ram'";
        for _ in 0..8 {
            if self.browser.eval(chosen)? != true {
                self.browser.press("ArrowDown")?;
            }
        }
        self.browser.wait("the kind", chosen, LIMIT)?;
        self.tab_to("size")?;
        self.browser.type_text("4M")?;
        self.browser.press("Enter")?;
        self.apply(None)?;
        self.browser.wait("the new volume", &has_text("main h1", "by-keyboard"), LIMIT)?;
        let made = self.daemon.get("/v1/volume/by-keyboard")?;
        ensure!(made["keys"]["size"] == "4M", "{made}");
        self.browser.wait("its buttons", &has_text("button", "Resize"), LIMIT)?;
        self.tab_to("Resize")?;
        self.browser.press("Enter")?;
        self.tab_to("New size")?;
        self.browser.eval("void document.activeElement.select()")?;
        self.browser.type_text("8M")?;
        self.browser.press("Enter")?;
        self.apply(None)?;
        let size = self.daemon.get("/v1/volume/by-keyboard")?;
        ensure!(size["keys"]["size"] == "8M", "{size}");
        self.tab_to("Delete")?;
        self.browser.press("Enter")?;
        self.apply(Some("by-keyboard"))?;
        let all = self.daemon.get("/v1/volume")?;
        ensure!(all.as_array().is_some_and(|all| all.len() == 3), "{all}");
        self.is_clean()
    }

    fn hostile_names(&mut self) -> Result<()> {
        self.browser.look(LOOKS[2])?;
        let long = "x".repeat(190);
        for name in ["<img/src=x/onerror=pwned=1>", "<script>pwned=1</script>", "a\u{202e}b", long.as_str()] {
            let mut login = Login::to(TARGET, "a");
            login.initiator = format!("iqn.2026-01.org.example:{name}");
            ensure!(Session::open(self.daemon.portal, &login).is_err(), "{name} is admitted");
            login.target = Some(login.initiator.clone());
            ensure!(Session::open(self.daemon.portal, &login).is_err(), "{name} is a target");
        }
        for (view, _) in VIEWS {
            self.view(view, "")?;
            std::thread::sleep(Duration::from_millis(200));
            let found = self
                .browser
                .eval("typeof pwned !== 'undefined' || document.querySelector('main img, main script') !== null")?;
            ensure!(found == false, "a name is more than text in {view}");
        }
        self.view("events", "Refused in the last hour")?;
        let recorded = self.daemon.get("/v1/audit")?;
        let is_there = |part: &str| {
            recorded
                .as_array()
                .into_iter()
                .flatten()
                .any(|one| one["words"].to_string().contains(part) || one["who"].to_string().contains(part))
        };
        ensure!(is_there("img/src=x"), "the name is not in the log: {recorded}");
        self.browser.wait("the name as text", &has_text("main", "<img/src=x"), LIMIT)?;
        ensure!(self.browser.eval("document.body.innerText.includes('\\u202e')")? == false, "it reorders the text");
        let wide = self.browser.eval("document.documentElement.scrollWidth - innerWidth")?;
        ensure!(wide.as_i64().is_some_and(|wide| wide <= 0), "a long name makes the page {wide} pixels wider");
        self.is_clean()
    }

    fn views(&mut self, lab: &Lab, axe: std::result::Result<&str, String>) -> Result<()> {
        let pictures = pictures(lab);
        std::fs::create_dir_all(&pictures)?;
        let mut load = self.daemon.load(lab, 1, 120)?;
        self.view("overview", "1 client with 1 session")?;
        // The chart of the load has a few points.
        std::thread::sleep(Duration::from_secs(3));
        let sessions = self.daemon.get("/v1/session")?;
        let session = format!("hosts/{}", sessions[0]["id"].as_str().context("a session")?);
        let mut wrong = Vec::new();
        for look in LOOKS {
            self.browser.look(look)?;
            for (view, text) in VIEWS.into_iter().chain([
                ("volumes/vmfs1", "How hosts see it"),
                (session.as_str(), "Negotiated parameters"),
                ("settings/user", "esx"),
                ("explain/login/iqn.2026-01.org.example:nobody", "Step by step"),
                ("explain/volume/scratch", "scratch"),
            ]) {
                self.view(view, text)?;
                std::thread::sleep(Duration::from_millis(300));
                self.hide_folder()?;
                self.browser.picture(&pictures.join(format!("{}-{}.png", view.replace('/', "-"), look.name)), false)?;
                let wide = self.browser.eval("document.documentElement.scrollWidth - innerWidth")?;
                ensure!(
                    wide.as_i64().is_some_and(|wide| wide <= 0),
                    "{view} is {wide} pixels too wide in {}",
                    look.name
                );
                if let Ok(axe) = &axe {
                    wrong.extend(self.violations(axe)?.into_iter().map(|what| format!("{view} {}: {what}", look.name)));
                }
            }
        }
        process::signal(&load, Signal::KILL)?;
        load.wait()?;
        self.browser.look(LOOKS[0])?;
        ensure!(wrong.is_empty(), "{} violations:\n{}", wrong.len(), wrong.join("\n"));
        self.is_clean()?;
        match axe {
            Ok(_) => Ok(()),
            Err(why) => skip(format!("accessibility was not checked: {why}")),
        }
    }

    /// Shows the folder of the daemon as that of an installed one: a picture is the same wherever it is made.
    fn hide_folder(&mut self) -> Result<()> {
        let folder = self.daemon.folder.display().to_string();
        self.browser.eval(&format!(
            "(() => {{ const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT); \
             while (walker.nextNode()) {{ const node = walker.currentNode; \
             node.data = node.data.replaceAll({}, '/srv/lunar'); }} }})()",
            json!(folder)
        ))?;
        Ok(())
    }

    /// The violations that axe-core finds on the page as it is.
    fn violations(&mut self, axe: &str) -> Result<Vec<String>> {
        if self.browser.eval("typeof axe")? != "object" {
            self.browser.eval(&format!("{axe}; void 0"))?;
        }
        let found = self.browser.eval(
            "axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }) \
             .then((found) => found.violations.map((one) => \
             `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(' | ')}`))",
        )?;
        Ok(found.as_array().into_iter().flatten().map(|one| one.as_str().unwrap_or_default().to_owned()).collect())
    }

    fn link(&mut self, lab: &Lab) -> Result<()> {
        self.browser.look(LOOKS[0])?;
        let mut command = process::bound(lab.built()?);
        let socket = self.daemon.folder.join("api.sock");
        command.arg("web").arg("--socket").arg(&socket).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start lunar web")?;
        let outcome = self.use_link(&mut child);
        // It has ended if the signal cannot be sent.
        let _ = process::signal(&child, Signal::KILL);
        child.wait()?;
        outcome?;
        self.browser.take_errors().map(drop)
    }

    fn use_link(&mut self, child: &mut Child) -> Result<()> {
        let lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        let url = lines.map_while(Result::ok).find(|line| line.trim().starts_with("http")).context("a link")?;
        let url = url.trim();
        self.browser.open(url)?;
        self.browser.wait("the overview", &has_text("main", "volumes are served"), LIMIT)?;
        ensure!(self.browser.eval("location.hash")? == "", "the link stays in the address");
        self.browser.wait("the numbers", "document.querySelector('.live.on')", LIMIT)?;
        let role = self.browser.eval("document.querySelector('.who').innerText")?;
        ensure!(role.as_str().is_some_and(|role| role.contains("may change")), "{role}");
        // The same link again, without the cookie.
        self.browser.call("Network.clearBrowserCookies", json!({}))?;
        self.browser.open("about:blank")?;
        self.browser.open(url)?;
        self.browser.wait("the refusal", &has_text("[role=alert]", "this link was used"), LIMIT)?;
        let place = url.split("/#").next().context("an address")?;
        let answer = tool("curl", &["-s", "-o", "/dev/null", "-w", "%{http_code}", &format!("{place}/v1/status")])?;
        ensure!(answer.trim() == "401", "another process of this host gets status {answer}");
        self.log_in()?;
        self.browser.requests.clear();
        Ok(())
    }

    fn restart(&mut self, lab: &Lab, driver: Driver) -> Result<()> {
        self.view("overview", "Load by volume and host")?;
        self.browser.eval("void (window.same = true)")?;
        self.daemon.stop()?;
        self.browser.wait("the banner", &has_text("[role=alert]", "No data since"), LIMIT)?;
        self.daemon.target = Some(Target::start_named(lab, &self.daemon.spec, TARGET)?);
        // Lunar forgets logins; the page has the token and logs in again.
        self.browser.wait("the overview", &has_text("main", "volumes are served"), LIMIT)?;
        self.browser.wait("the numbers", "document.querySelector('.live.on')", LIMIT)?;
        ensure!(self.browser.eval("window.same")? == true, "the page was loaded again");
        let errors = self.browser.take_errors()?;
        let is_known = |error: &String| error.contains("ERR_") || error.contains("Failed to load resource");
        ensure!(errors.iter().all(is_known), "{errors:?} with {}", driver.name());
        Ok(())
    }

    fn reader(&mut self) -> Result<()> {
        self.browser
            .eval("void [...document.querySelectorAll('button')].find((one) => one.innerText === 'Log out').click()")?;
        self.enter(READER)?;
        self.browser.wait("the overview", &has_text("main", "volumes are served"), LIMIT)?;
        for (view, text) in VIEWS {
            self.view(view, text)?;
            let forms = self.browser.eval(
                "[...document.querySelectorAll('main button')].filter((one) => \
                 /^(Create .*|Delete|Edit|Map a volume|Unmap|End|Restore|Resize|Plan and apply)$/\
                 .test(one.innerText.trim())).length",
            )?;
            ensure!(forms == 0, "{view} has {forms} buttons that change something");
        }
        let tried = self.browser.eval(
            "fetch('/v1/volume/scratch', { method: 'DELETE', headers: { 'Lunar-Page': '1' } })\
             .then((answer) => answer.status)",
        )?;
        ensure!(tried == 403, "a reader may delete: {tried}");
        self.browser.take_errors()?;
        self.is_clean()
    }
}

/// Processor time of a process so far, in seconds.
fn processor_time(pid: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = text.rsplit_once(") ").context("a name in parentheses")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / rustix::param::clock_ticks_per_second() as f64)
}

fn many_volumes(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = Daemon::start(lab, driver, 497)?;
    let browser = Browser::start(&daemon.folder.join("browser"))?;
    std::fs::create_dir_all(pictures(lab))?;
    let pid = daemon.target.as_ref().and_then(Target::pid).context("its process")?;
    let mut fixture = Fixture { daemon, browser };
    fixture.log_in()?;
    fixture.browser.wait("the number", &has_text("main", "All 500 volumes are served"), LIMIT)?;
    fixture.view("volumes", "99 % below")?;
    let rows = fixture.browser.eval("document.querySelectorAll('tbody tr').length")?;
    ensure!(rows == 100, "{rows} rows are drawn");
    fixture.browser.wait("the others", &has_text("button", "Show more: 400 of 500"), LIMIT)?;
    fixture.browser.picture(&pictures(lab).join("volumes-500.png"), false)?;
    fixture.browser.eval(
        "void [...document.querySelectorAll('button')].find((one) => one.innerText.startsWith('Show more')).click()",
    )?;
    fixture.browser.wait("all rows", "document.querySelectorAll('tbody tr').length === 500", LIMIT)?;
    fixture.view("maps", "Volumes that no group sees")?;
    fixture.view("overview", "Load by volume and host")?;
    let measure = |seconds| {
        let (start, before) = (Instant::now(), processor_time(pid)?);
        std::thread::sleep(Duration::from_secs(seconds));
        anyhow::Ok((processor_time(pid)? - before) / start.elapsed().as_secs_f64())
    };
    let viewed = measure(20)?;
    fixture.is_clean()?;
    fixture.browser.open("about:blank")?;
    std::thread::sleep(Duration::from_secs(2));
    let alone = measure(10)?;
    let cost = viewed - alone;
    lab.report.note(&format!(
        "the page: {:.2} % of a core with a viewer, {:.2} % without",
        100.0 * viewed,
        100.0 * alone
    ));
    // The build with checks is not optimized.
    let most = if lab.built()?.components().any(|part| part.as_os_str() == "debug") { 0.05 } else { 0.01 };
    ensure!(cost < most, "one viewer costs {:.2} % of a core", 100.0 * cost);
    fixture.daemon.stop()
}

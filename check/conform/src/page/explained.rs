//! Explanations, refusals, findings and slow commands in the page: they are those of the API and of the command line.

use super::*;

/// A client that no group lists.
const STRANGER: &str = "iqn.2026-01.org.example:stranger";
/// The path of an explanation in the API, the part of the address in the page, and the same for the command line.
const EXPLAINED: [(&str, &str, &[&str]); 6] = [
    (
        "login/iqn.2026-01.io.lunar.conform:a",
        "login/iqn.2026-01.io.lunar.conform:a",
        &["login", "iqn.2026-01.io.lunar.conform:a"],
    ),
    (
        "lun/iqn.2026-01.io.lunar.conform:a/7",
        "lun/iqn.2026-01.io.lunar.conform:a/7",
        &["lun", "iqn.2026-01.io.lunar.conform:a", "7"],
    ),
    (
        "path/iqn.2026-01.io.lunar.conform:a/scratch",
        "path/iqn.2026-01.io.lunar.conform:a/scratch",
        &["path", "iqn.2026-01.io.lunar.conform:a", "scratch"],
    ),
    ("volume/scratch", "volume/scratch", &["volume", "scratch"]),
    ("reservation/vmfs1", "reservation/vmfs1", &["reservation", "vmfs1"]),
    ("slow/vmfs1", "slow/vmfs1", &["slow", "vmfs1"]),
];

impl Fixture {
    /// The output of a command of the operator, whatever it says about the subject.
    fn lunar(&self, lab: &Lab, args: &[&str]) -> Result<String> {
        let mut command = process::bound(lab.built()?);
        command.args(args).arg("--socket").arg(self.daemon.folder.join("api.sock"));
        Ok(process::run(&mut command, LIMIT)?.text)
    }

    fn text_of(&mut self, selector: &str) -> Result<String> {
        let found = self.browser.eval(&format!("document.querySelector({})?.innerText ?? ''", json!(selector)))?;
        Ok(found.as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Every explanation of the page has the words, the steps and the remedies of the API, which are those of `lunar
    /// explain`.
    pub(super) fn explanations(&mut self, lab: &Lab) -> Result<()> {
        for (path, place, command) in EXPLAINED {
            let known = self.daemon.get(&format!("/v1/explain/{path}"))?;
            let words = known["words"].as_str().context("words")?.to_owned();
            self.view(&format!("explain/{place}"), &words)?;
            let told = self.lunar(lab, &[&["explain"], command].concat())?;
            ensure!(told.contains(&words), "`lunar explain` and the API differ: {told} and {words}");
            let shown = self.browser.eval("document.querySelector('main').innerText")?;
            let shown = shown.as_str().unwrap_or_default();
            let list = |key: &str| known[key].as_array().cloned().unwrap_or_default();
            let steps = list("steps").into_iter().map(|step| step["words"].clone());
            let remedies = list("remedies").into_iter().map(|remedy| remedy["command"].clone());
            for text in steps.chain(list("near")).chain(remedies) {
                let text = text.as_str().context("a text")?;
                ensure!(shown.contains(text), "{place} does not show '{text}':\n{shown}");
            }
            ensure!(shown.contains(&format!("lunar explain {}", command.join(" "))), "no command line:\n{shown}");
        }
        self.view("explain/volume/nothing", "there is no volume")?;
        self.browser.take_errors()?;
        self.is_clean()
    }

    /// A session of the list leads to its negotiated parameters, those of the API, with their costs and remedies; and
    /// the page says when it has ended.
    pub(super) fn session(&mut self) -> Result<()> {
        let session = Session::open(self.daemon.portal, &Login::to(TARGET, "b")).context("a session")?;
        let all = self.daemon.get("/v1/session")?;
        let one = all.as_array().into_iter().flatten().find(|one| one["initiator"].to_string().ends_with(":b\""));
        let one = one.context("the session is not in the list")?;
        let id = one["id"].as_str().context("its ID")?;
        self.view("hosts", "Sessions")?;
        let link = format!("document.querySelector({})", json!(format!("main a[href='#/hosts/{id}']")));
        self.browser.wait("the session in the list", &link, LIMIT)?;
        self.browser.eval(&format!("void {link}.click()"))?;
        self.browser.wait("its parameters", &has_text("main", "MaxBurstLength"), LIMIT)?;
        let shown = self.text_of("main")?;
        let parameters = one["parameters"].as_array().context("parameters")?;
        ensure!(parameters.len() >= 5 && one["tcp"].as_array().is_some_and(|tcp| tcp.len() == 1), "{one}");
        for parameter in parameters {
            let remedies = parameter["cost"]["remedies"].as_array().cloned().unwrap_or_default();
            let costs = remedies.iter().map(|remedy| &remedy["command"]).chain([&parameter["cost"]["words"]]);
            let texts = costs.chain([&parameter["name"], &parameter["value"]]).filter_map(Value::as_str);
            for text in texts {
                ensure!(shown.contains(text), "the page does not show '{text}': {shown}");
            }
        }
        ensure!(shown.contains("TCP connections"), "{shown}");
        drop(session);
        self.browser.wait("its end", &has_text("main", "This session has ended."), LIMIT)?;
        self.is_clean()
    }

    /// A refused login: its audit record has code, remedy and paragraph; the page shows them, leads to the explanation,
    /// and the remedy that it prints mends it.
    pub(super) fn refused(&mut self, lab: &Lab) -> Result<()> {
        let mut login = Login::to(TARGET, "a");
        login.initiator = STRANGER.to_owned();
        ensure!(Session::open(self.daemon.portal, &login).is_err(), "a stranger is admitted");
        let records = self.daemon.get("/v1/audit")?;
        let record = records.as_array().into_iter().flatten().rfind(|record| record["who"] == STRANGER);
        let refusal = &record.context("the record")?["refusal"];
        ensure!(refusal["code"] == "not-shown" && refusal["target"] == TARGET, "{refusal}");
        ensure!(refusal["source"] == "127.0.0.1" && refusal["transport"] == "iscsi", "{refusal}");
        let remedy = format!("lunar explain login {STRANGER} --target {TARGET} --from 127.0.0.1");
        ensure!(refusal["remedy"] == remedy.as_str(), "{refusal}");
        let link = refusal["link"].as_str().context("a link")?.to_owned();
        let (page, heading) = link.split_once('#').context("a place in a page")?;
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
        ensure!(std::fs::read_to_string(&page)?.contains(&format!("\n### {heading}\n")), "{link} does not exist");
        for view in ["overview", "hosts", "events"] {
            self.view(view, "No group of the target lists the client")?;
        }
        for text in [remedy.as_str(), &link, "not-shown"] {
            self.browser.wait(text, &has_text("main", text), LIMIT)?;
        }
        let label = format!("Explain why {STRANGER} was refused");
        self.browser
            .eval(&format!("void document.querySelector({}).click()", json!(format!("[aria-label='{label}']"))))?;
        self.browser.wait("the explanation", &has_text("#explanation", "may not log in"), LIMIT)?;
        self.browser.wait("the paragraph", &has_text("main", "More about not-shown"), LIMIT)?;
        let known = self.daemon.get(&format!("/v1/explain/login/{STRANGER}?target={TARGET}&from=127.0.0.1"))?;
        let command = known["remedies"][0]["command"].as_str().context("a remedy")?.to_owned();
        self.browser.wait("the remedy", &has_text("main .command code", &command), LIMIT)?;
        self.run(lab, &command)?;
        Session::open(self.daemon.portal, &login).context("the remedy does not mend it")?;
        self.view("overview", "Load by volume and host")?;
        self.view(&format!("explain/login/{STRANGER}/{TARGET}/127.0.0.1"), "may log in")?;
        ensure!(self.text_of("#explanation")?.starts_with("✔ Yes: "), "{}", self.text_of("#explanation")?);
        self.view("explain/refusal", "Refused logins")?;
        self.browser.wait("the refusal", &has_text("main tbody", STRANGER), LIMIT)?;
        self.run(lab, "lunar group set esx --initiators 'iqn.2026-01.io.lunar*'")?;
        self.is_clean()
    }

    /// Runs a command as it is printed.
    fn run(&self, lab: &Lab, line: &str) -> Result<()> {
        let bin = self.daemon.folder.join("bin");
        if !bin.exists() {
            std::fs::create_dir_all(&bin)?;
            std::os::unix::fs::symlink(std::path::absolute(lab.built()?)?, bin.join("lunar"))?;
        }
        let mut command = process::bound("sh");
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        command.args(["-c", line]).env("PATH", path).env("LUNAR_SOCKET", self.daemon.folder.join("api.sock"));
        process::run(&mut command, LIMIT)?.succeeded().with_context(|| line.to_owned()).map(drop)
    }

    /// The findings of the service are those of `lunar doctor`.
    pub(super) fn findings(&mut self, lab: &Lab) -> Result<()> {
        self.view("health", "volume scratch")?;
        self.browser.wait("a finding", "document.querySelector('#findings')", LIMIT)?;
        let found = self.daemon.get("/v1/doctor")?;
        let all = found["findings"].as_array().context("findings")?.clone();
        let is_there =
            |code: &str, subject: &str| all.iter().any(|one| one["code"] == code && one["subject"] == subject);
        ensure!(is_there("volume-unmapped", "volume scratch") && is_there("user-unused", "user esx"), "{found}");
        let told = self.lunar(lab, &["doctor", "--json", "--interval", "1s"])?;
        let told: Value = serde_json::from_str(&told).context("`lunar doctor --json`")?;
        let shown = self.text_of("#findings")?;
        for one in all.iter().filter(|one| one["area"] == "configuration") {
            let key = |of: &Value| (of["code"].clone(), of["subject"].clone(), of["command"].clone());
            let is_told = told["findings"].as_array().into_iter().flatten().any(|other| key(other) == key(one));
            ensure!(is_told, "`lunar doctor` has no {one}");
            for part in ["code", "subject", "remedy"] {
                let text = one[part].as_str().context("a text")?;
                ensure!(shown.contains(text), "the page does not show '{text}': {shown}");
            }
        }
        self.browser.wait("what is missing", &has_text("main", "Not checked: the machine"), LIMIT)?;
        self.is_clean()
    }

    /// Slow commands, with the volume and the part of their time that was the longest; rates from before the page was
    /// opened.
    pub(super) fn past(&mut self) -> Result<()> {
        let log = self.daemon.get("/v1/slow")?;
        let slow = log["commands"].as_array().context("commands")?.len();
        ensure!(slow > 0, "no command took longer than {SLOW}");
        self.view("slow", "vmfs1")?;
        let rows = self.browser.eval("document.querySelectorAll('main tbody tr').length")?;
        ensure!(rows.as_u64().is_some_and(|rows| rows > 0), "no row");
        ensure!(self.browser.eval("document.querySelector('.split rect.part-2').getAttribute('width')")? != "0");
        self.view("explain/slow/vmfs1", "Explain")?;
        let past = self.daemon.get("/v1/history?volume=vmfs1")?;
        let reads = past["reads"].as_array().context("reads")?;
        ensure!(reads.iter().any(|rate| rate.as_f64().is_some_and(|rate| rate > 0.0)), "no reads: {past}");
        ensure!(reads.len() == past["time"].as_array().map_or(0, Vec::len), "columns of different length");
        // A new page has seen no command itself.
        let url = self.daemon.url();
        self.browser.open(&url)?;
        self.browser.wait("the overview", &has_text("main", "volumes are served"), LIMIT)?;
        self.view("volumes/vmfs1", "Since the start")?;
        self.browser.wait("the charts", "document.querySelectorAll('figure.chart').length === 4", LIMIT)?;
        self.view("volumes/scratch", "Since the start")?;
        self.browser.wait("no charts", &has_text("main", "no commands in the last ten minutes"), LIMIT)?;
        self.is_clean()
    }

    /// The places that `docs/questions.md` names are there, with the words that it names. Its commands are in blocks,
    /// which the part `docs` runs.
    pub(super) fn questions(&mut self) -> Result<()> {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/questions.md");
        let page = std::fs::read_to_string(page)?;
        let blocks: Vec<&str> = page.split("\n```").skip(1).step_by(2).flat_map(str::lines).collect();
        let commands = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").nth(2)?.strip_prefix('`'));
        for command in commands.filter_map(|command| command.strip_suffix('`')) {
            // Names and times differ.
            let start = command.split(" X").next().unwrap_or(command);
            let start = start.split("--interval").next().unwrap_or(start).trim();
            let is_run = |line: &&str| line.trim_start_matches("$ ").starts_with(start);
            ensure!(blocks.iter().any(is_run), "no block runs `{command}`");
        }
        let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").nth(3)?.strip_suffix(" |"));
        // The columns of a table are there with its first row.
        let session = Session::open(self.daemon.portal, &Login::to(TARGET, "a")).context("a session")?;
        let mut count = 0;
        for cell in rows.filter(|cell| cell.starts_with('`')) {
            let [place, words] = ['`', '*'].map(|mark| cell.split(mark).nth(1).unwrap_or_default());
            let place = place.strip_prefix("#/").with_context(|| format!("a place in {cell}"))?;
            let place = place.replace("disk1", "vmfs1").replace("/X", "/iqn.2026-01.io.lunar.conform:a");
            ensure!(!words.is_empty(), "{cell} names no word");
            self.view(&place, words)?;
            count += 1;
        }
        drop(session);
        ensure!(count == 15, "{count} questions have a place");
        self.is_clean()
    }
}

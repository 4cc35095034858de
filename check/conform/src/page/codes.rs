//! Every code of the documentation, which is generated from the tables of codes, is shown by the page wherever the API
//! reports such a code.

use super::*;

/// Shows all codes in a view and returns those that are missing. `WITH` puts them into the answers of the service, as
/// the service would send them; `RESTORE` takes them out again.
const SHOWN: &str = "(async () => {
    const source = document.querySelector('script[type=module]').src;
    const { state, changed } = await import(new URL('client.js', source).href);
    const codes = CODES;
    const { live, records } = state;
    const { fetch } = window;
    WITH
    changed();
    await new Promise((done) => setTimeout(done, 100));
    const shown = new Set([...document.querySelectorAll('main code, main .state')]
        .map((one) => one.innerText.replace(/^[^a-z]*/, '').trim()));
    Object.assign(state, { live, records });
    window.fetch = fetch;
    changed();
    return codes.filter((code) => !shown.has(code));
})()";
/// Troubles, in the stream of numbers.
const TROUBLES: &str = "state.live = { ...live, troubles: codes.map((kind) => ({
    kind, subject: `volume of ${kind}`, since: 0, words: 'It is so.', remedy: 'Mend it.' })) };";
/// The findings of an examination, which the button asks for.
const FINDINGS: &str = "window.fetch = async (path, ...rest) => path !== '/v1/doctor' ? fetch(path, ...rest)
    : new Response(JSON.stringify({ worst: 'error', unchecked: [], findings: codes.map((code) => ({
        code, area: 'state', severity: 'error', subject: `it has ${code}`, words: 'It is so.', evidence: [],
        remedy: 'Mend it.', command: '' })) }), { headers: { 'Content-Type': 'application/json' } });
    [...document.querySelectorAll('button')].find((one) => one.innerText === 'Examine again').click();";
/// Refused logins, as audit records.
const REFUSALS: &str = "state.records = codes.map((code, id) => ({
    id, time: Date.now() / 1000, topic: 'refusal', who: `iqn.client-${id}`, words: 'refused', refusal: {
        code, words: `It is ${code}.`, link: `docs/troubleshooting.md#${code}`, transport: 'iscsi',
        remedy: id % 2 ? null : `lunar explain login iqn.client-${id}` } }));";
/// How often a view is tried: a frame of the service may come in between, and has none of the codes.
const TRIES: usize = 5;

/// The headings of a section of the troubleshooting page.
fn headings(page: &str, section: &str) -> Vec<String> {
    let rest = page.split(&format!("\n## {section}\n")).nth(1).unwrap_or_default();
    let own = rest.split("\n## ").next().unwrap_or_default();
    own.lines().filter_map(|line| line.strip_prefix("### ")).map(str::to_owned).collect()
}

impl Fixture {
    pub(super) fn codes(&mut self) -> Result<()> {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let page = std::fs::read_to_string(docs.join("troubleshooting.md"))?;
        let doctor = std::fs::read_to_string(docs.join("doctor.md"))?;
        let rows = doctor.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
        let findings: Vec<String> = rows.map(|(code, _)| code.to_owned()).collect();
        let (troubles, refusals) = (headings(&page, "Troubles"), headings(&page, "Refused logins"));
        for (codes, least) in [(&troubles, 15), (&findings, 40), (&refusals, 20)] {
            ensure!(codes.len() >= least, "{codes:?}");
        }
        self.view("health", "Examine again")?;
        self.all_shown("troubles", TROUBLES, &troubles)?;
        self.all_shown("findings", FINDINGS, &findings)?;
        // The overview has the worst ones only.
        self.view("overview", "Load by volume and host")?;
        self.all_shown("troubles of the overview", TROUBLES, &troubles[..3])?;
        self.view("events", "logged in")?;
        // The table shows the first rows.
        for part in refusals.chunks(20) {
            self.all_shown("refused logins", REFUSALS, part)?;
        }
        self.is_clean()
    }

    /// The view that is open shows all of these codes if the service reports them.
    fn all_shown(&mut self, what: &str, with: &str, codes: &[String]) -> Result<()> {
        let script = SHOWN.replace("CODES", &json!(codes).to_string()).replace("WITH", with);
        let mut missing = Value::Null;
        for _ in 0..TRIES {
            missing = self.browser.eval(&script)?;
            if missing.as_array().is_some_and(Vec::is_empty) {
                return Ok(());
            }
        }
        bail!("{what} without their codes: {missing}")
    }
}

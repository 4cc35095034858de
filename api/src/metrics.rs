//! `GET /metrics`: the page with the metrics of the target, of the configuration, of the API and of the process.

use crate::request::Shared;
use lunar_control::doctor::finding::Finding;
use lunar_control::families;
use lunar_control::metrics::{Format, Page};
use lunar_control::trouble::TroubleCode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

families! {
    pub,
    START_TIME = "lunar_start_time_seconds" Gauge [] "When Lunar started, in seconds since 1970-01-01 UTC.";
    CONFIG_VERSION = "lunar_config_version" Gauge [] "The number of the version of the configuration in force.";
    CONFIG_SUCCESS = "lunar_config_last_apply_success" Gauge []
        "Whether the configuration file is in force: 1, or 0 if it was edited and refused.";
    CONFIG_TIME = "lunar_config_last_apply_timestamp_seconds" Gauge []
        "When the configuration in force was written, in seconds since 1970-01-01 UTC.";
    TROUBLE = "lunar_trouble" Gauge ["code", "subject"] "1 for each trouble of `lunar status`, while it lasts.";
    FINDING = "lunar_finding" Gauge ["code", "subject", "severity"]
        "1 for each finding of `lunar doctor` about the service itself, while it lasts; examined once a minute.";
    CERTIFICATE = "lunar_certificate_expiry_timestamp_seconds" Gauge ["listener"]
        "When the certificate of an API listener ends, in seconds since 1970-01-01 UTC.";
    API_REQUESTS = "lunar_api_requests" Counter ["route", "status"] "Requests of the API, by route and HTTP status.";
    PROCESS_CPU = "process_cpu_seconds" Counter [] "Processor time of the process, of user and system.";
    PROCESS_MEMORY = "process_resident_memory_bytes" Gauge [] "Memory of the process that is resident.";
    PROCESS_FILES = "process_open_fds" Gauge [] "Open file descriptors of the process.";
    PROCESS_FILES_MAX = "process_max_fds" Gauge [] "The most file descriptors that the process may open.";
    PROCESS_START = "process_start_time_seconds" Gauge []
        "When the process started, in seconds since 1970-01-01 UTC.";
}

/// Troubles, and findings, that are shown: more than an operator reads.
const SHOWN_MAX: usize = 256;

/// The requests of the API so far. Routes and statuses are closed sets.
#[derive(Debug, Default)]
pub(crate) struct Requests(Mutex<BTreeMap<(String, u16), u64>>);

impl Requests {
    /// Counts a request.
    pub(crate) fn count(&self, route: &str, status: u16) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *all.entry((route.to_owned(), status)).or_default() += 1;
    }
}

/// The page in a format.
pub(crate) fn page(shared: &Shared, requests: &Requests, format: Format) -> String {
    let mut page = Page::new(format);
    let start = shared.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    page.family(&START_TIME, |samples| samples.add(&[], start));
    let seen = shared.seen();
    if let Some((number, time)) = seen.version {
        page.family(&CONFIG_VERSION, |samples| samples.add(&[], number));
        page.family(&CONFIG_TIME, |samples| samples.add(&[], time));
    }
    let is_refused = seen.troubles.iter().any(|trouble| trouble.kind == TroubleCode::RefusedEdit.word());
    page.family(&CONFIG_SUCCESS, |samples| samples.add(&[], u64::from(!is_refused)));
    page.family(&TROUBLE, |samples| {
        // A kind of trouble may be told twice of a subject, in other words.
        let all: BTreeMap<_, _> = seen.troubles.iter().map(|trouble| ((trouble.kind, &trouble.subject), ())).collect();
        all.keys().take(SHOWN_MAX).for_each(|(kind, subject)| samples.add(&[kind, subject], 1));
    });
    page.family(&FINDING, |samples| {
        let findings = shared.findings();
        // A code may be found twice of a subject, with other evidence. The findings begin with the worst.
        let mut told = BTreeSet::new();
        for Finding { code, subject, severity, .. } in &findings {
            if told.len() < SHOWN_MAX && told.insert((*code, subject)) {
                samples.add(&[code.word(), subject, severity.word()], 1);
            }
        }
    });
    page.family(&CERTIFICATE, |samples| {
        shared.certificates().iter().for_each(|(listener, expiry)| samples.add(&[listener], expiry.seconds));
    });
    page.family(&API_REQUESTS, |samples| {
        let all = requests.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().for_each(|((route, status), count)| samples.add(&[route, &status.to_string()], *count));
    });
    if let Some(measured) = shared.measured.get() {
        measured.write(&mut page, &seen.troubles);
    }
    process(&mut page, start);
    page.finish()
}

/// The metrics of the process that libraries of Prometheus have under these names.
fn process(page: &mut Page, start: u64) {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let nanoseconds =
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0);
    page.family(&PROCESS_CPU, |samples| samples.add_seconds(&[], nanoseconds));
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    page.family(&PROCESS_MEMORY, |samples| {
        pages.into_iter().for_each(|pages| samples.add(&[], pages * rustix::param::page_size() as u64));
    });
    // The folder itself is one of them while it is read.
    let files = std::fs::read_dir("/proc/self/fd").map(|all| all.count().saturating_sub(1) as u64).ok();
    page.family(&PROCESS_FILES, |samples| files.into_iter().for_each(|files| samples.add(&[], files)));
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    page.family(&PROCESS_FILES_MAX, |samples| most.into_iter().for_each(|most| samples.add(&[], most)));
    page.family(&PROCESS_START, |samples| samples.add(&[], start));
}

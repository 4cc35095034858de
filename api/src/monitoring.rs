//! Requests of monitoring that anyone may send, or that many send: each does its work once for all that ask at the same
//! time.

use crate::health::{self, Check, Checks};
use crate::request::{Outcome, Reply, Shared};
use lunar_control::api::ProblemDetails;
use lunar_control::metrics::Format;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

/// How old the result of another request may be: scrapes are seconds apart.
const FRESH: Duration = Duration::from_secs(1);
/// How old a reading of the counters may be: people look at rates of a second.
const FRESH_COUNTERS: Duration = Duration::from_millis(200);

/// A result, and when it was made.
type Kept<K, T> = Mutex<Vec<(K, Instant, T)>>;

/// The last results.
#[derive(Debug, Default)]
pub(crate) struct Monitoring {
    pages: Kept<Format, Arc<str>>,
    checks: Kept<String, Vec<Check>>,
    counters: Kept<(), Arc<str>>,
}

/// A fresh result of another request, or a new one. While it is made, other requests wait for it.
async fn kept<K: PartialEq, T: Clone + Send + 'static>(
    (all, fresh): (&Kept<K, T>, Duration),
    key: K,
    make: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let mut all = all.lock().await;
    all.retain(|(_, made, _)| made.elapsed() < fresh);
    if let Some((.., found)) = all.iter().find(|(known, ..)| *known == key) {
        return Some(found.clone());
    }
    // An error means that it has panicked, which was reported.
    let new = spawn_blocking(make).await.ok()?;
    all.push((key, Instant::now(), new.clone()));
    Some(new)
}

impl Monitoring {
    /// The page of metrics in this format.
    pub(crate) async fn page(&self, format: Format, make: impl FnOnce() -> String + Send + 'static) -> Reply {
        match kept((&self.pages, FRESH), format, move || make().into()).await {
            Some(page) => Reply { status: 200, media: format.media(), body: page.as_bytes().to_vec() },
            None => Reply { status: 500, media: "text/plain; charset=utf-8", body: Vec::new() },
        }
    }

    /// The counters as JSON.
    pub(crate) async fn counters(&self, make: impl FnOnce() -> String + Send + 'static) -> Outcome {
        let made = kept((&self.counters, FRESH_COUNTERS), (), move || make().into()).await;
        let failed = || ProblemDetails::new("/problems/failed", "Failed", 500, "the counters cannot be read".into());
        let body = made.ok_or_else(failed)?;
        Ok(Reply { status: 200, media: "application/json", body: body.as_bytes().to_vec() })
    }

    /// The result of the checks of a route.
    pub(crate) async fn health(&self, shared: &Arc<Shared>, (route, checks): (&str, Checks), verbose: bool) -> Reply {
        let shared = shared.clone();
        let found = kept((&self.checks, FRESH), route.to_owned(), move || checks(&shared)).await;
        let failed = || vec![Check { code: "check", failure: Some("the check itself has failed".to_owned()) }];
        health::reply(&found.unwrap_or_else(failed), verbose)
    }
}

//! Requests of monitoring that anyone may send, or that many send: each does its work once for all that ask at the same
//! time.

use crate::health::{self, Check, Checks};
use crate::request::{Reply, Shared};
use lunar_control::metrics::Format;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

/// How old the result of another request may be: scrapes are seconds apart.
const FRESH: Duration = Duration::from_secs(1);

/// A result, and when it was made.
type Kept<K, T> = Mutex<Vec<(K, Instant, T)>>;

/// The last results.
#[derive(Debug, Default)]
pub(crate) struct Monitoring {
    pages: Kept<Format, Arc<str>>,
    checks: Kept<String, Vec<Check>>,
}

/// A fresh result of another request, or a new one. While it is made, other requests wait for it.
async fn kept<K: PartialEq, T: Clone + Send + 'static>(
    all: &Kept<K, T>,
    key: K,
    make: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let mut all = all.lock().await;
    all.retain(|(_, made, _)| made.elapsed() < FRESH);
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
        match kept(&self.pages, format, move || make().into()).await {
            Some(page) => Reply { status: 200, media: format.media(), body: page.as_bytes().to_vec() },
            None => Reply { status: 500, media: "text/plain; charset=utf-8", body: Vec::new() },
        }
    }

    /// The result of the checks of a route.
    pub(crate) async fn health(&self, shared: &Arc<Shared>, (route, checks): (&str, Checks), verbose: bool) -> Reply {
        let shared = shared.clone();
        let found = kept(&self.checks, route.to_owned(), move || checks(&shared)).await;
        let failed = || vec![Check { code: "check", failure: Some("the check itself has failed".to_owned()) }];
        health::reply(&found.unwrap_or_else(failed), verbose)
    }
}

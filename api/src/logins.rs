//! Logins of browsers: sessions, each named by a cookie, and one-time links that begin a session.
//!
//! The keys of sessions and links are random; only their digests are stored.

use crate::rights::{Caller, Credentials};
use rustix::rand::{GetRandomFlags, getrandom};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most sessions: several browsers of each operator of one target. One more ends the session that was not used for
/// the longest time, so a lost browser does not exclude anyone.
pub const SESSIONS_MAX: usize = 64;
/// The longest session: a working day.
pub const SESSION_TIME_MAX: Duration = Duration::from_secs(12 * 60 * 60);
/// The longest time without a request: an open page sends some every second.
const IDLE_TIME_MAX: Duration = Duration::from_secs(60 * 60);
/// The most unused links: `lunar web` makes one at a time. One more ends the oldest.
pub const LINKS_MAX: usize = 16;
/// The life of an unused link: time to copy it into a browser on another machine.
pub const LINK_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// The credentials of a login: one of the two.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "login")]
pub struct LoginRequest {
    /// A token.
    #[serde(default)]
    pub token: Option<String>,
    /// The key of a one-time link.
    #[serde(default)]
    pub link: Option<String>,
}

impl fmt::Debug for LoginRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// The caller of a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "caller")]
pub struct CallerView {
    /// The name: a user of this host, or `token.NAME`; empty if the caller is not known.
    pub name: String,
    /// The role: `none`, `metrics`, `read` or `write`.
    pub role: &'static str,
}

impl From<&Caller> for CallerView {
    fn from(caller: &Caller) -> Self {
        Self { name: caller.name.clone(), role: caller.right.word() }
    }
}

/// A one-time link.
#[derive(Clone, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "login-link")]
pub struct LinkView {
    /// The key: the page takes it from the fragment `#link=KEY` of its address.
    pub key: String,
    /// Its life in seconds.
    pub seconds: u64,
}

impl fmt::Debug for LinkView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// A random secret that names a session or a link. `Debug` does not show it.
#[derive(Clone)]
pub(crate) struct Key(String);

impl Key {
    fn random() -> io::Result<Self> {
        let mut bytes = [0; 32];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
        }
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// The key as it is sent: 64 hexadecimal digits.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

type KeyDigest = [u8; 32];

fn digest(key: &str) -> KeyDigest {
    Sha256::digest(key.as_bytes()).into()
}

/// A session, or an unused link.
#[derive(Debug)]
struct Entry {
    credentials: Credentials,
    begun: Instant,
    used: Instant,
}

impl Entry {
    fn is_over(&self, now: Instant, (life, idle): (Duration, Duration)) -> bool {
        now.saturating_duration_since(self.begun) >= life || now.saturating_duration_since(self.used) >= idle
    }
}

/// Entries by the digests of their keys; a bounded number, each with a bounded life.
#[derive(Debug)]
struct Table {
    entries: Mutex<BTreeMap<KeyDigest, Entry>>,
    most: usize,
    times: (Duration, Duration),
}

impl Table {
    fn new(most: usize, times: (Duration, Duration)) -> Self {
        Self { entries: Mutex::default(), most, times }
    }

    /// The entries that are not over.
    fn lock(&self, now: Instant) -> MutexGuard<'_, BTreeMap<KeyDigest, Entry>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|_, entry| !entry.is_over(now, self.times));
        entries
    }

    fn add(&self, credentials: Credentials, now: Instant) -> io::Result<Key> {
        let key = Key::random()?;
        let mut entries = self.lock(now);
        if entries.len() >= self.most {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key);
            oldest.map(|oldest| entries.remove(&oldest));
        }
        entries.insert(digest(key.text()), Entry { credentials, begun: now, used: now });
        Ok(key)
    }
}

/// The sessions and the unused links.
#[derive(Debug)]
pub(crate) struct Logins {
    sessions: Table,
    links: Table,
}

impl Default for Logins {
    fn default() -> Self {
        Self {
            sessions: Table::new(SESSIONS_MAX, (SESSION_TIME_MAX, IDLE_TIME_MAX)),
            links: Table::new(LINKS_MAX, (LINK_TIME_MAX, LINK_TIME_MAX)),
        }
    }
}

impl Logins {
    /// Begins a session with these credentials.
    pub(crate) fn begin(&self, credentials: Credentials, now: Instant) -> io::Result<Key> {
        self.sessions.add(credentials, now)
    }

    /// The credentials of a session, which is used now.
    pub(crate) fn find(&self, key: &str, now: Instant) -> Option<Credentials> {
        let mut sessions = self.sessions.lock(now);
        let session = sessions.get_mut(&digest(key))?;
        session.used = now;
        Some(session.credentials.clone())
    }

    /// Ends a session. Returns whether it was there.
    pub(crate) fn end(&self, key: &str, now: Instant) -> bool {
        self.sessions.lock(now).remove(&digest(key)).is_some()
    }

    /// Makes a link that begins a session with these credentials.
    pub(crate) fn add_link(&self, credentials: Credentials, now: Instant) -> io::Result<Key> {
        self.links.add(credentials, now)
    }

    /// The credentials of a link, which is used up.
    pub(crate) fn take_link(&self, key: &str, now: Instant) -> Option<Credentials> {
        self.links.lock(now).remove(&digest(key)).map(|link| link.credentials)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(user: u32) -> Credentials {
        Credentials::User { user, group: 0 }
    }

    #[test]
    fn a_session_ends_when_it_is_idle_too_old_or_ended() {
        let (logins, start) = (Logins::default(), Instant::now());
        let key = logins.begin(user(1), start).expect("random bytes");
        assert_eq!((key.text().len(), format!("{key:?}")), (64, "(hidden)".to_owned()));
        assert!(logins.find("", start).is_none() && logins.find(&"0".repeat(64), start).is_none());
        let almost = IDLE_TIME_MAX - Duration::from_secs(1);
        let mut now = start;
        while now + almost < start + SESSION_TIME_MAX {
            now += almost;
            assert_eq!(logins.find(key.text(), now), Some(user(1)), "it is in use");
        }
        assert!(logins.find(key.text(), start + SESSION_TIME_MAX).is_none(), "too old");
        let idle = logins.begin(user(1), start).expect("random bytes");
        assert!(logins.find(idle.text(), start + IDLE_TIME_MAX).is_none());
        let ended = logins.begin(user(1), start).expect("random bytes");
        assert!(logins.end(ended.text(), start) && !logins.end(ended.text(), start));
        assert!(logins.find(ended.text(), start).is_none());
        assert!(!format!("{logins:?}").contains(key.text()));
    }

    #[test]
    fn a_link_works_once_and_not_for_long() {
        let (logins, start) = (Logins::default(), Instant::now());
        let link = logins.add_link(user(1), start).expect("random bytes");
        assert!(logins.find(link.text(), start).is_none(), "a link is not a session");
        assert_eq!(logins.take_link(link.text(), start), Some(user(1)));
        assert_eq!(logins.take_link(link.text(), start), None, "it is used up");
        let late = logins.add_link(user(1), start).expect("random bytes");
        assert_eq!(logins.take_link(late.text(), start + LINK_TIME_MAX), None);
    }

    #[test]
    fn sessions_and_links_are_bounded() {
        let (logins, start) = (Logins::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        let first = logins.begin(user(1), start).expect("random bytes");
        let second = logins.begin(user(2), at(1)).expect("random bytes");
        for _ in 2..SESSIONS_MAX {
            drop(logins.begin(user(3), at(2)).expect("random bytes"));
        }
        assert!(logins.find(first.text(), at(3)).is_some(), "it is used again");
        drop(logins.begin(user(3), at(4)).expect("random bytes"));
        assert!(logins.find(second.text(), at(5)).is_none(), "it was not used for the longest time");
        assert!(logins.find(first.text(), at(5)).is_some());
        let links: Vec<_> = (0..=LINKS_MAX as u64).map(|second| logins.add_link(user(1), at(second))).collect();
        let works: Vec<_> = links.into_iter().flatten().map(|link| logins.take_link(link.text(), at(20))).collect();
        assert!(works[0].is_none() && works[1..].iter().all(Option::is_some));
    }
}

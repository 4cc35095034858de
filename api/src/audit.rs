//! The audit log: logins, refusals and changes. It keeps the last records, streams new ones, and writes all to the
//! daemon's log.

use crate::refusals::Refusals;
use lunar_control::explain::{LOGINS, command, link_of};
use lunar_core::access::refusal::RefusalCode;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast;

/// Records that are kept in memory: a screenful for each of several busy days, and less than 2 MiB. Older ones are in
/// the daemon's log only.
pub const RECORDS_MAX: usize = 4096;
/// The most refusals among them: anyone can cause refusals, so these must not displace all other records.
const REFUSALS_MAX: usize = RECORDS_MAX / 2;
/// Records that are queued for a slow reader of the stream; the stream then has the number of missed records.
const WAITING_MAX: usize = 256;
/// The longest name and the longest text of a record, in characters; longer ones are cut.
const TEXT_MAX: usize = 1024;

/// The topic of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "topic")]
pub enum Topic {
    /// A client logged in.
    Login,
    /// A session ended.
    Logout,
    /// A login or a request was refused.
    Refusal,
    /// The configuration changed.
    Change,
    /// A message of the service itself.
    Service,
}

impl Topic {
    /// The topic as it is written.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Logout => "logout",
            Self::Refusal => "refusal",
            Self::Change => "change",
            Self::Service => "service",
        }
    }
}

/// A refused login. Names are those that the client gave, whatever they contain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "refused-login")]
pub struct RefusedLogin {
    /// The code, as in the documentation.
    pub code: &'static str,
    /// The code in words.
    pub words: &'static str,
    /// The paragraph of the documentation that has its causes and remedies.
    pub link: String,
    /// The command that says at which step the login fails, what comes close, and which command mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The transport.
    pub transport: &'static str,
    /// The address of the client, if its transport has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// The name of the target that it asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The name of the user that it gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

impl RefusedLogin {
    /// The refusal of a client with this code over this transport. Names may be empty.
    #[must_use]
    pub fn new(
        code: RefusalCode,
        transport: &'static str,
        source: Option<IpAddr>,
        (client, target, user): (&str, &str, &str),
    ) -> Self {
        let some = |name: &str| Some(clean(name)).filter(|name| !name.is_empty());
        let source = source.map(|source| source.to_canonical());
        let from = source.map(|source| source.to_string()).unwrap_or_default();
        let mut words = vec!["lunar", "explain", "login", client];
        for (option, value) in [("--target", target), ("--from", &from)] {
            if !value.is_empty() {
                words.extend([option, value]);
            }
        }
        // Clients of the other transports do not log in; an option is no name.
        let is_explained = LOGINS.contains(&transport) && !client.is_empty() && !client.starts_with('-');
        let remedy = command::line(words).filter(|_| is_explained && !target.starts_with('-'));
        let entry = code.entry();
        let (code, words, link) = (entry.word, entry.words, link_of(entry.word));
        Self { code, words, link, remedy, transport, source, target: some(target), user: some(user) }
    }
}

/// A text in one line of bounded length.
fn clean(text: &str) -> String {
    let line = text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c });
    line.take(TEXT_MAX).collect::<String>().replace('\n', "; ")
}

/// A record of the audit log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "note")]
pub struct AuditRecord {
    /// The number of the record; numbers rise.
    pub id: u64,
    /// The time, in seconds since 1970-01-01 UTC.
    pub time: u64,
    /// The topic.
    pub topic: Topic,
    /// The client or operator.
    pub who: String,
    /// A description. It never contains a secret.
    pub words: String,
    /// The refused login, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<RefusedLogin>,
}

impl fmt::Display for AuditRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.topic.word(), self.who, self.words)
    }
}

/// The audit log.
pub struct AuditLog {
    records: Mutex<Records>,
    refusals: Mutex<Refusals>,
    receivers: broadcast::Sender<Arc<AuditRecord>>,
    log: Box<dyn Fn(&AuditRecord) + Send + Sync>,
}

#[derive(Default)]
struct Records {
    last: u64,
    records: VecDeque<Arc<AuditRecord>>,
    /// The number of refusals in `records`.
    refusals: usize,
}

impl Records {
    fn push(&mut self, record: Arc<AuditRecord>) {
        let is_refusal = |record: &Arc<AuditRecord>| record.topic == Topic::Refusal;
        let evicted = match () {
            () if is_refusal(&record) && self.refusals == REFUSALS_MAX => self.records.iter().position(is_refusal),
            () => (self.records.len() == RECORDS_MAX).then_some(0),
        };
        let removed = evicted.and_then(|at| self.records.remove(at));
        self.refusals -= usize::from(removed.as_ref().is_some_and(is_refusal));
        self.refusals += usize::from(is_refusal(&record));
        self.records.push_back(record);
    }
}

impl fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditLog").field("last", &self.lock().last).finish_non_exhaustive()
    }
}

impl AuditLog {
    /// Creates an empty log. `log` is called with each record.
    #[must_use]
    pub fn new(log: impl Fn(&AuditRecord) + Send + Sync + 'static) -> Arc<Self> {
        let (receivers, _) = broadcast::channel(WAITING_MAX);
        Arc::new(Self { records: Mutex::default(), refusals: Mutex::default(), receivers, log: Box::new(log) })
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        // A panic of another thread cannot leave the records inconsistent.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a record. May be called from any thread.
    pub fn add(&self, topic: Topic, who: &str, text: &str) {
        self.record(topic, who, text, None);
    }

    /// Adds a record of a refused login. May be called from any thread.
    pub fn add_refused_login(&self, who: &str, text: &str, refusal: RefusedLogin) {
        self.record(Topic::Refusal, who, text, Some(refusal));
    }

    fn record(&self, topic: Topic, who: &str, text: &str, refusal: Option<RefusedLogin>) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let record = {
            let mut records = self.lock();
            records.last += 1;
            let (id, who, words) = (records.last, clean(who), clean(text));
            let record = Arc::new(AuditRecord { id, time, topic, who, words, refusal });
            records.push(record.clone());
            // Sent under the lock, so that readers get the records in order. An error means that there is no reader.
            let _ = self.receivers.send(record.clone());
            record
        };
        (self.log)(&record);
    }

    /// Adds a record of a refusal, unless too many from this source were recorded.
    pub(crate) fn add_refusal(&self, source: &str, who: &str, text: &str) {
        let result = self.refusals.lock().unwrap_or_else(PoisonError::into_inner).count(source, Instant::now());
        for (source, count) in result.suppressed {
            self.add(Topic::Refusal, &source, &format!("{count} more requests were refused within one minute"));
        }
        if result.is_recorded {
            self.add(Topic::Refusal, who, text);
        }
    }

    /// The number of the last record; 0 if there is none.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.lock().last
    }

    /// The kept records after the one with this number, the oldest first.
    #[must_use]
    pub fn after(&self, id: u64) -> Vec<Arc<AuditRecord>> {
        self.lock().records.iter().filter(|record| record.id > id).cloned().collect()
    }

    /// The kept records after the one with this number, and a receiver of new records. Without a number, only the
    /// receiver.
    pub(crate) fn subscribe(
        &self,
        after: Option<u64>,
    ) -> (Vec<Arc<AuditRecord>>, broadcast::Receiver<Arc<AuditRecord>>) {
        let records = self.lock();
        let receiver = self.receivers.subscribe();
        let stored = |after: u64| records.records.iter().filter(|record| record.id > after).cloned().collect();
        (after.map(stored).unwrap_or_default(), receiver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::explain::{ISCSI, NVME};

    #[test]
    fn the_last_records_are_kept_and_readers_get_all_new_ones() {
        let journal = AuditLog::new(|_| ());
        let (old, mut receiver) = journal.subscribe(None);
        assert!(old.is_empty());
        for at in 0..=RECORDS_MAX {
            journal.add(Topic::Change, "ann", &format!("step {at}\nand\u{7} more"));
            assert_eq!(receiver.try_recv().map(|record| record.id), Ok(at as u64 + 1));
        }
        let records = journal.after(0);
        assert_eq!((records.len(), records[0].id), (RECORDS_MAX, 2));
        assert_eq!(records[0].to_string(), "change ann: step 1; and? more");
        assert_eq!(journal.after(records[RECORDS_MAX - 2].id).len(), 1);
        assert_eq!(journal.subscribe(Some(RECORDS_MAX as u64)).0.len(), 1);
    }

    #[test]
    fn refusals_displace_no_other_records() {
        let journal = AuditLog::new(|_| ());
        journal.add(Topic::Change, "ann", "made a volume");
        (0..2 * RECORDS_MAX).for_each(|at| journal.add(Topic::Refusal, "a stranger", &at.to_string()));
        let records = journal.after(0);
        assert_eq!((records.len(), records[0].topic), (REFUSALS_MAX + 1, Topic::Change));
        assert_eq!(records[REFUSALS_MAX].words, (2 * RECORDS_MAX - 1).to_string(), "the last refusals are kept");
        (0..RECORDS_MAX).for_each(|_| journal.add(Topic::Login, "iqn.x", "has logged in"));
        assert!(journal.after(0).iter().all(|record| record.topic == Topic::Login));
        journal.add(Topic::Refusal, "a stranger", "once more");
        assert_eq!((journal.after(0).len(), journal.lock().refusals), (RECORDS_MAX, 1));
    }

    #[test]
    fn a_refused_login_has_its_code_a_command_and_a_paragraph() {
        let source = Some(IpAddr::from([192, 0, 2, 1]));
        let refused = |transport, client, target| {
            RefusedLogin::new(RefusalCode::NotShown, transport, source, (client, target, ""))
        };
        let journal = AuditLog::new(|_| ());
        journal.add_refused_login("iqn.x", "login refused", refused(ISCSI, "iqn.x", "iqn.y:it's"));
        let json = serde_json::to_value(&*journal.after(0)[0]).expect("JSON");
        assert_eq!((&json["topic"], &json["refusal"]["code"]), (&"refusal".into(), &"not-shown".into()));
        assert_eq!(json["refusal"]["link"], "docs/troubleshooting.md#not-shown");
        assert_eq!(json["refusal"]["remedy"], r"lunar explain login iqn.x --target 'iqn.y:it'\''s' --from 192.0.2.1");
        assert_eq!((&json["refusal"]["source"], json["refusal"].get("user")), (&"192.0.2.1".into(), None));
        for (transport, client, target) in
            [("aoe", "52:54:00:12:34:56", "a"), (ISCSI, "", "a"), (ISCSI, "--help", "a"), (NVME, "nqn.x", "a\nb")]
        {
            assert_eq!(refused(transport, client, target).remedy, None, "{client}");
        }
        let long = "x".repeat(5000);
        assert_eq!(refused(ISCSI, "iqn.x", &long).target.map(|name| name.len()), Some(TEXT_MAX));
        journal.add(Topic::Change, "ann", "made a volume");
        assert!(serde_json::to_value(&*journal.after(1)[0]).expect("JSON").get("refusal").is_none());
    }

    #[test]
    fn a_record_has_a_bounded_length() {
        let journal = AuditLog::new(|_| ());
        journal.add(Topic::Refusal, &"w".repeat(5000), &"x".repeat(5000));
        assert_eq!(journal.after(0)[0].to_string().len(), 2 * TEXT_MAX + "refusal : ".len());
    }
}

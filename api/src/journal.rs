//! What happened, as it happens: logins, refusals, changes. Who reads it later finds the last of it, who listens gets
//! each note at once, and the log has all.

use crate::refusals::Refusals;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast;

/// Notes that are kept for those who come later: a screenful for each of the last busy days, and below 2 MiB. What is
/// older is in the log.
pub const NOTES_MAX: usize = 4096;
/// Refusals among them: strangers make them, and shall not push out what others did.
const REFUSALS_MAX: usize = NOTES_MAX / 2;
/// Notes that wait for a listener who reads slowly; he is told that he missed some.
const WAITING_MAX: usize = 256;
/// Bytes of a note: two names and a sentence. Longer ones are cut.
const WORDS_MAX: usize = 1024;

/// What a note is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "topic")]
pub enum Topic {
    /// Somebody has logged in.
    Login,
    /// A session has ended.
    Logout,
    /// Somebody was not let in, or may not do what was asked for.
    Refusal,
    /// The configuration was changed.
    Change,
    /// The service itself.
    Service,
}

impl Topic {
    /// As it is written.
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

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "note")]
pub struct Note {
    /// Its number; later ones have higher ones.
    pub id: u64,
    /// When, in seconds since the beginning of 1970.
    pub time: u64,
    /// What it is about.
    pub topic: Topic,
    /// Who did it.
    pub who: String,
    /// What, in words. Never a secret.
    pub words: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.topic.word(), self.who, self.words)
    }
}

/// All notes.
pub struct Journal {
    kept: Mutex<Kept>,
    refusals: Mutex<Refusals>,
    listeners: broadcast::Sender<Arc<Note>>,
    log: Box<dyn Fn(&Note) + Send + Sync>,
}

#[derive(Default)]
struct Kept {
    last: u64,
    notes: VecDeque<Arc<Note>>,
    /// How many of them are refusals.
    refusals: usize,
}

impl Kept {
    fn keep(&mut self, note: Arc<Note>) {
        let is_refusal = |note: &Arc<Note>| note.topic == Topic::Refusal;
        let goes = match () {
            () if is_refusal(&note) && self.refusals == REFUSALS_MAX => self.notes.iter().position(is_refusal),
            () => (self.notes.len() == NOTES_MAX).then_some(0),
        };
        let gone = goes.and_then(|at| self.notes.remove(at));
        self.refusals -= usize::from(gone.as_ref().is_some_and(is_refusal));
        self.refusals += usize::from(is_refusal(&note));
        self.notes.push_back(note);
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("last", &self.lock().last).finish_non_exhaustive()
    }
}

impl Journal {
    /// An empty one; `log` gets each note, too.
    #[must_use]
    pub fn new(log: impl Fn(&Note) + Send + Sync + 'static) -> Arc<Self> {
        let (listeners, _) = broadcast::channel(WAITING_MAX);
        Arc::new(Self { kept: Mutex::default(), refusals: Mutex::default(), listeners, log: Box::new(log) })
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // A panic elsewhere leaves nothing half-done here.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes something, from any thread.
    pub fn add(&self, topic: Topic, who: &str, words: &str) {
        let clean = |text: &str| -> String {
            let line = text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c });
            line.take(WORDS_MAX).collect::<String>().replace('\n', "; ")
        };
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let note = {
            let mut kept = self.lock();
            kept.last += 1;
            let note = Arc::new(Note { id: kept.last, time, topic, who: clean(who), words: clean(words) });
            kept.keep(note.clone());
            // Under the lock, so that listeners get them in the order of their numbers; nobody listens: nobody is told.
            let _ = self.listeners.send(note.clone());
            note
        };
        (self.log)(&note);
    }

    /// Notes that somebody was refused, if not too much of this source is noted already.
    pub(crate) fn refused(&self, source: &str, who: &str, words: &str) {
        let noted = self.refusals.lock().unwrap_or_else(PoisonError::into_inner).look(source, Instant::now());
        for (source, count) in noted.left_out {
            self.add(Topic::Refusal, &source, &format!("{count} more requests were refused within a minute"));
        }
        if noted.is_noted {
            self.add(Topic::Refusal, who, words);
        }
    }

    /// The notes that are kept, after the one of this number, the oldest first.
    #[must_use]
    pub fn after(&self, id: u64) -> Vec<Arc<Note>> {
        self.lock().notes.iter().filter(|note| note.id > id).cloned().collect()
    }

    /// All notes after the one of this number: those that are kept, and a listener to those that come. Without a
    /// number, only those that come.
    pub(crate) fn listen(&self, after: Option<u64>) -> (Vec<Arc<Note>>, broadcast::Receiver<Arc<Note>>) {
        let kept = self.lock();
        let listener = self.listeners.subscribe();
        let missed = |after: u64| kept.notes.iter().filter(|note| note.id > after).cloned().collect();
        (after.map(missed).unwrap_or_default(), listener)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_notes_are_kept_and_listeners_miss_none() {
        let journal = Journal::new(|_| ());
        let (old, mut listener) = journal.listen(None);
        assert!(old.is_empty());
        for at in 0..=NOTES_MAX {
            journal.add(Topic::Change, "ann", &format!("step {at}\nand\u{7} more"));
            assert_eq!(listener.try_recv().map(|note| note.id), Ok(at as u64 + 1));
        }
        let notes = journal.after(0);
        assert_eq!((notes.len(), notes[0].id), (NOTES_MAX, 2));
        assert_eq!(notes[0].to_string(), "change ann: step 1; and? more");
        assert_eq!(journal.after(notes[NOTES_MAX - 2].id).len(), 1);
        assert_eq!(journal.listen(Some(NOTES_MAX as u64)).0.len(), 1);
    }

    #[test]
    fn refusals_push_nothing_else_out() {
        let journal = Journal::new(|_| ());
        journal.add(Topic::Change, "ann", "made a volume");
        (0..2 * NOTES_MAX).for_each(|at| journal.add(Topic::Refusal, "a stranger", &at.to_string()));
        let notes = journal.after(0);
        assert_eq!((notes.len(), notes[0].topic), (REFUSALS_MAX + 1, Topic::Change));
        assert_eq!(notes[REFUSALS_MAX].words, (2 * NOTES_MAX - 1).to_string(), "the last ones are kept");
        (0..NOTES_MAX).for_each(|_| journal.add(Topic::Login, "iqn.x", "has logged in"));
        assert!(journal.after(0).iter().all(|note| note.topic == Topic::Login));
        journal.add(Topic::Refusal, "a stranger", "once more");
        assert_eq!((journal.after(0).len(), journal.lock().refusals), (NOTES_MAX, 1));
    }

    #[test]
    fn a_note_is_bounded() {
        let journal = Journal::new(|_| ());
        journal.add(Topic::Refusal, &"w".repeat(5000), &"x".repeat(5000));
        assert_eq!(journal.after(0)[0].to_string().len(), 2 * WORDS_MAX + "refusal : ".len());
    }
}

//! The front-ends that are connected, on all cores.

use lunar_core::time::Instant;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A front-end that is connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// Its socket.
    pub path: PathBuf,
    /// When it connected.
    pub since: Instant,
    /// The sizes of the rings that are started and enabled.
    pub rings: Vec<u16>,
    /// Whether their layout is the packed one.
    pub is_packed: bool,
}

#[derive(Debug, Default)]
struct Table {
    sessions: BTreeMap<u64, Session>,
    next: u64,
}

/// The front-ends that are connected, by numbers that are never used again.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<Table>);

impl Sessions {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change is one insert or remove, so a panic of another thread leaves the table consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A front-end has connected to this socket; returns its number.
    pub fn begin(&self, path: &Path, since: Instant) -> u64 {
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        table.sessions.insert(number, Session { path: path.to_owned(), since, rings: Vec::new(), is_packed: false });
        number
    }

    /// The front-end of this number has started or stopped rings.
    pub fn set_rings(&self, number: u64, rings: Vec<u16>, is_packed: bool) {
        if let Some(session) = self.table().sessions.get_mut(&number) {
            (session.rings, session.is_packed) = (rings, is_packed);
        }
    }

    /// A front-end has disconnected.
    pub fn end(&self, number: u64) {
        self.table().sessions.remove(&number);
    }

    /// The session of this number.
    #[must_use]
    pub fn find(&self, number: u64) -> Option<Session> {
        self.table().sessions.get(&number).cloned()
    }

    /// All of them, by their numbers.
    #[must_use]
    pub fn all(&self) -> Vec<(u64, Session)> {
        self.table().sessions.iter().map(|(number, session)| (*number, session.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_used_again() {
        let (sessions, now) = (Sessions::default(), Instant::default());
        let first = sessions.begin(Path::new("/a"), now);
        sessions.end(first);
        sessions.set_rings(first, vec![8], true);
        let second = sessions.begin(Path::new("/a"), now);
        sessions.set_rings(second, vec![128, 64], true);
        assert_eq!(sessions.find(second).map(|session| session.rings), Some(vec![128, 64]));
        assert_ne!(first, second);
        assert!(sessions.find(first).is_none() && sessions.find(second).is_some());
        assert_eq!(sessions.all().len(), 1);
    }
}

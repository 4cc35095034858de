//! The front-ends that are connected, on all cores.

use lunar_core::time::Instant;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

    /// A front-end has connected to this socket.
    #[must_use]
    pub fn begin(self: &Arc<Self>, path: &Path, since: Instant) -> Listed {
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        table.sessions.insert(number, Session { path: path.to_owned(), since, rings: Vec::new(), is_packed: false });
        Listed { sessions: self.clone(), number }
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

/// A front-end in the list: it is removed with the drop.
#[derive(Debug)]
pub struct Listed {
    sessions: Arc<Sessions>,
    number: u64,
}

impl Listed {
    /// It has started or stopped rings.
    pub fn set_rings(&self, rings: Vec<u16>, is_packed: bool) {
        if let Some(session) = self.sessions.table().sessions.get_mut(&self.number) {
            (session.rings, session.is_packed) = (rings, is_packed);
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.sessions.table().sessions.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_used_again() {
        let (sessions, now) = (Arc::<Sessions>::default(), Instant::default());
        let first = sessions.begin(Path::new("/a"), now);
        let number = first.number;
        drop(first);
        let second = sessions.begin(Path::new("/a"), now);
        second.set_rings(vec![128, 64], true);
        assert_eq!(sessions.find(second.number).map(|session| session.rings), Some(vec![128, 64]));
        assert_ne!(number, second.number);
        assert!(sessions.find(number).is_none() && sessions.find(second.number).is_some());
        assert_eq!(sessions.all().len(), 1);
    }
}

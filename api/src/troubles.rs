//! The times of troubles. Most parts that report troubles do not record a time: the book has the time at which each
//! trouble was first seen, and finds the troubles that are new.

use crate::control::Control;
use lunar_control::api::TroubleView;
use lunar_control::trouble::TroubleCode;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The kind, the subject and the words of a trouble.
type Key = (&'static str, String, String);

/// The times at which troubles were first seen. Their number is that of the resources of the configuration at most.
#[derive(Debug, Default)]
pub struct TroubleBook(Mutex<BTreeMap<Key, u64>>);

impl TroubleBook {
    /// Adds the times to the present troubles. The second list has those that are new and had no time: they are not in
    /// the audit log yet.
    pub fn enter(&self, mut troubles: Vec<TroubleView>, now: SystemTime) -> (Vec<TroubleView>, Vec<TroubleView>) {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *known);
        let mut begun = Vec::new();
        for trouble in troubles.iter_mut().filter(|trouble| trouble.since == 0) {
            let key = (trouble.kind, trouble.subject.clone(), trouble.words.clone());
            let since = before.get(&key).copied();
            trouble.since = since.unwrap_or(now);
            known.insert(key, trouble.since);
            if since.is_none() {
                begun.push(trouble.clone());
            }
        }
        (troubles, begun)
    }
}

/// All troubles: of the configuration, of the engine, and of the program.
pub fn all(control: &mut dyn Control) -> Vec<TroubleView> {
    let mut troubles = control.troubles();
    let program = std::fs::read_link("/proc/self/exe").map(|path| path.display().to_string());
    troubles.extend(program.ok().and_then(|path| replaced(&path)));
    troubles
}

/// The trouble of a program whose file is not the one that runs: the kernel marks its path. An update does that.
fn replaced(path: &str) -> Option<TroubleView> {
    let program = path.strip_suffix(" (deleted)")?;
    Some(TroubleView {
        remedy: "restart Lunar when its clients permit".to_owned(),
        ..TroubleView::told(
            TroubleCode::ReplacedProgram,
            "lunar",
            format!("{program} was replaced or removed, and the old program runs"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_trouble_begins_once_and_keeps_its_time() {
        let (book, first) = (TroubleBook::default(), UNIX_EPOCH + Duration::from_secs(1000));
        let disk = TroubleView::told(TroubleCode::Unavailable, "volume disk", "it is away".to_owned());
        let (dated, begun) = book.enter(vec![disk.clone()], first);
        assert_eq!((dated[0].since, begun.len()), (1000, 1));
        let later = first + Duration::from_secs(60);
        let told =
            TroubleView { since: 7, ..TroubleView::told(TroubleCode::Deleted, "volume b", "it is deleted".to_owned()) };
        let (dated, begun) = book.enter(vec![disk.clone(), told], later);
        assert_eq!((dated[0].since, dated[1].since, begun.len()), (1000, 7, 0));
        assert_eq!(book.enter(Vec::new(), later).0, []);
        assert_eq!(book.enter(vec![disk], later).0[0].since, 1060, "it came back");
    }

    #[test]
    fn a_replaced_program_is_a_trouble() {
        let found = replaced("/usr/bin/lunar (deleted)").expect("it was replaced");
        assert_eq!((found.kind, found.words.contains("/usr/bin/lunar was replaced")), ("replaced-program", true));
        assert_eq!(replaced("/usr/bin/lunar"), None);
    }
}

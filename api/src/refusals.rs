//! How many refusals are noted: enough to see who tries what, too few to fill a log with it or to push all else out of
//! the journal. The others are counted.

use std::collections::BTreeMap;
use std::mem::take;
use std::time::{Duration, Instant};

/// Refusals of one source that are noted in a minute: whoever typed a token wrongly stops sooner.
pub const NOTED_MAX: u32 = 10;
/// Sources that are told apart in a minute; of more, as many refusals are noted as of one.
pub const SOURCES_MAX: usize = 64;
const MINUTE: Duration = Duration::from_secs(60);

/// Refusals of one source.
#[derive(Clone, Copy, Debug)]
struct Refused {
    since: Instant,
    count: u32,
}

impl Refused {
    fn left_out(&self) -> u32 {
        self.count.saturating_sub(NOTED_MAX)
    }
}

/// Refusals by their sources.
#[derive(Debug, Default)]
pub struct Refusals(BTreeMap<String, Refused>);

/// What is noted of a refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Noted {
    /// Those that were not noted before, as far as it has not been told yet: of whom, and how many.
    pub left_out: Vec<(String, u32)>,
    /// Whether this one is.
    pub is_noted: bool,
}

impl Refusals {
    /// Somebody was refused.
    pub fn look(&mut self, source: &str, now: Instant) -> Noted {
        const OTHERS: &str = "others";
        let is_over = |refused: &Refused| now.saturating_duration_since(refused.since) >= MINUTE;
        let (over, on) = take(&mut self.0).into_iter().partition(|(_, refused)| is_over(refused));
        self.0 = on;
        let is_known = self.0.contains_key(source) || self.0.len() < SOURCES_MAX;
        let key = if is_known { source } else { OTHERS };
        let refused = self.0.entry(key.to_owned()).or_insert(Refused { since: now, count: 0 });
        refused.count = refused.count.saturating_add(1);
        let is_noted = refused.left_out() == 0;
        let over: BTreeMap<String, Refused> = over;
        let left_out = over.into_iter().map(|(source, refused)| (source, refused.left_out()));
        Noted { left_out: left_out.filter(|(_, count)| *count > 0).collect(), is_noted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_told_of_once() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let noted = |all: &[Noted]| all.iter().filter(|one| one.is_noted).count();
        let flood: Vec<Noted> = (0..1000).map(|_| refusals.look("192.0.2.1", start)).collect();
        assert_eq!(noted(&flood), NOTED_MAX as usize);
        assert!(flood.iter().all(|one| one.left_out.is_empty()), "not before it is over");
        assert!(refusals.look("ann", start).is_noted, "others are not left out for it");
        let later = start + MINUTE;
        let told = Noted { left_out: vec![("192.0.2.1".into(), 990)], is_noted: true };
        assert_eq!(refusals.look("ann", later), told);
        assert_eq!(refusals.look("192.0.2.1", later), Noted { left_out: Vec::new(), is_noted: true });
    }

    #[test]
    fn many_sources_are_one() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let all = (0..10_000).filter(|at| refusals.look(&format!("source {at}"), start).is_noted).count();
        assert_eq!(all, SOURCES_MAX + NOTED_MAX as usize);
        assert_eq!(refusals.0.len(), SOURCES_MAX + 1);
        let told = refusals.look("ann", start + MINUTE).left_out;
        assert_eq!(told, [("others".to_owned(), 10_000 - SOURCES_MAX as u32 - NOTED_MAX)]);
    }
}

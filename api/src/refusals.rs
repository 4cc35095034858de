//! Limits the audit records of refused requests: enough to see attacks, too few to fill the log or to displace other
//! records. Further refusals are counted.

use std::collections::BTreeMap;
use std::mem::take;
use std::time::{Duration, Instant};

/// Refusals of one source that are recorded per minute: enough for mistyped tokens.
pub const RECORDED_MAX: u32 = 10;
/// Sources that are counted separately; the refusals of all further sources are counted as one source.
pub const SOURCES_MAX: usize = 64;
const MINUTE: Duration = Duration::from_secs(60);

/// The refusals of one source.
#[derive(Clone, Copy, Debug)]
struct SourceCount {
    since: Instant,
    count: u32,
}

impl SourceCount {
    fn suppressed(&self) -> u32 {
        self.count.saturating_sub(RECORDED_MAX)
    }
}

/// The refusals by source.
#[derive(Debug, Default)]
pub struct Refusals(BTreeMap<String, SourceCount>);

/// The result of counting a refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counted {
    /// The sources whose minute is over, each with the number of its refusals that were not recorded.
    pub suppressed: Vec<(String, u32)>,
    /// Whether to record this refusal.
    pub is_recorded: bool,
}

impl Refusals {
    /// Counts a refusal.
    pub fn count(&mut self, source: &str, now: Instant) -> Counted {
        const REST: &str = "others";
        let is_over = |counted: &SourceCount| now.saturating_duration_since(counted.since) >= MINUTE;
        let (ended, on) = take(&mut self.0).into_iter().partition(|(_, counted)| is_over(counted));
        self.0 = on;
        let is_known = self.0.contains_key(source) || self.0.len() < SOURCES_MAX;
        let key = if is_known { source } else { REST };
        let counted = self.0.entry(key.to_owned()).or_insert(SourceCount { since: now, count: 0 });
        counted.count = counted.count.saturating_add(1);
        let is_recorded = counted.suppressed() == 0;
        let ended: BTreeMap<String, SourceCount> = ended;
        let suppressed = ended.into_iter().map(|(source, counted)| (source, counted.suppressed()));
        Counted { suppressed: suppressed.filter(|(_, count)| *count > 0).collect(), is_recorded }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_counted_and_reported_once() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let recorded = |all: &[Counted]| all.iter().filter(|one| one.is_recorded).count();
        let flood: Vec<Counted> = (0..1000).map(|_| refusals.count("192.0.2.1", start)).collect();
        assert_eq!(recorded(&flood), RECORDED_MAX as usize);
        assert!(flood.iter().all(|one| one.suppressed.is_empty()), "not before the minute is over");
        assert!(refusals.count("ann", start).is_recorded, "other sources are recorded");
        let later = start + MINUTE;
        let counted_later = Counted { suppressed: vec![("192.0.2.1".into(), 990)], is_recorded: true };
        assert_eq!(refusals.count("ann", later), counted_later);
        assert_eq!(refusals.count("192.0.2.1", later), Counted { suppressed: Vec::new(), is_recorded: true });
    }

    #[test]
    fn sources_beyond_the_limit_are_counted_together() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let all = (0..10_000).filter(|at| refusals.count(&format!("source {at}"), start).is_recorded).count();
        assert_eq!(all, SOURCES_MAX + RECORDED_MAX as usize);
        assert_eq!(refusals.0.len(), SOURCES_MAX + 1);
        let counted_later = refusals.count("ann", start + MINUTE).suppressed;
        assert_eq!(counted_later, [("others".to_owned(), 10_000 - SOURCES_MAX as u32 - RECORDED_MAX)]);
    }
}

//! The counters of the cores, as JSON.

use lunar_core::stats::Stats;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The sums over all cores, and `cores`: each core's own.
#[must_use]
pub fn snapshot(cores: &[Arc<Stats>]) -> Value {
    let table = |stats: &Stats| -> Map<String, Value> {
        stats.each().map(|(row, value)| (row.name.to_owned(), value.into())).collect()
    };
    let mut all = Map::new();
    for row in Stats::TABLE {
        let sum = cores.iter().flat_map(|core| core.each()).filter(|(r, _)| r.name == row.name);
        all.insert(row.name.to_owned(), sum.map(|(_, value)| value).fold(0, u64::wrapping_add).into());
    }
    all.insert("cores".to_owned(), cores.iter().map(|core| Value::Object(table(core))).collect());
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_cores() {
        let cores = [Arc::new(Stats::default()), Arc::new(Stats::default())];
        cores[0].commands.add(2);
        cores[1].commands.add(3);
        let value = snapshot(&cores);
        assert_eq!(value["commands"], 5);
        assert_eq!(value["cores"][1]["commands"], 3);
    }
}

//! The metrics of cores.

use super::table;
use lunar_control::metrics::Page;
use lunar_core::stats::Stats;
use std::sync::Arc;

/// Writes the statistics of these cores.
pub(super) fn write(page: &mut Page, cores: &[Arc<Stats>]) {
    let named: Vec<_> = cores.iter().enumerate().map(|(core, stats)| (core.to_string(), stats)).collect();
    page.family(&table::CORE_SECONDS, |samples| {
        for (core, stats) in &named {
            samples.add_seconds(&[core, "busy"], stats.busy_nanoseconds.get());
            samples.add_seconds(&[core, "spin"], stats.idle_spin_nanoseconds.get());
            samples.add_seconds(&[core, "sleep"], stats.sleep_nanoseconds.get());
        }
    });
    page.family(&table::CORE_TURNS, |samples| {
        named.iter().for_each(|(core, stats)| samples.add(&[core], stats.turns.get()));
    });
    page.family(&table::CORE_LONGEST_TURN, |samples| {
        named.iter().for_each(|(core, stats)| samples.add_seconds(&[core], stats.longest_turn_nanoseconds.get()));
    });
    page.family(&table::CORE_BUFFER, |samples| {
        for (core, stats) in &named {
            let used = stats.buffer_used_bytes.get();
            samples.add(&[core, "used"], used);
            samples.add(&[core, "free"], stats.buffer_bytes.get().saturating_sub(used));
        }
    });
    page.family(&table::CORE_COMMANDS, |samples| {
        named.iter().for_each(|(core, stats)| samples.add(&[core], stats.commands.get()));
    });
    page.family(&table::CORE_CONNECTIONS, |samples| {
        named.iter().for_each(|(core, stats)| samples.add(&[core], stats.connections.get()));
    });
    for (family, name) in &*table::STATISTICS {
        let rows = cores.iter().flat_map(|stats| stats.each()).filter(|(row, _)| row.name == *name);
        let sum = rows.map(|(_, value)| value).fold(0, u64::wrapping_add);
        page.family(family, |samples| samples.add(&[], sum));
    }
}

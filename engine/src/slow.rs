//! The slow log for operators: its lines in the log of the daemon, and its form for the API.

use crate::host::Host;
use lunar_control::slow::{SlowLogView, SlowTimes, SlowView};
use lunar_core::hosts::HostKey;
use lunar_core::slow::{SlowCommand, SlowLog, Times};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The line of a slow command in the log of the daemon.
pub(crate) struct Line<'a>(pub(crate) &'a SlowCommand);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(command) = self;
        let Times { total, network, store } = command.times;
        let time = |nanoseconds| Duration::from_micros(nanoseconds / 1000);
        write!(f, "slow command: {} took {:?}", command.command, time(total))?;
        let queue = time(command.times.queue());
        write!(f, " (network {:?}, queue {queue:?}, store {:?})", time(network), time(store))?;
        if let Some(blocks) = command.blocks {
            write!(f, ", LBA {}, {} blocks", blocks.lba, blocks.count)?;
        }
        if let Some(volume) = &command.volume {
            write!(f, ", volume {volume}")?;
        }
        if let Some(HostKey { transport, target, host }) = &command.host {
            write!(f, ", {transport} host \"{host}\" at target \"{target}\"")?;
        }
        write!(f, ", {} in progress, {}", command.in_flight, command.ending.word())
    }
}

/// The slow log for the API. `targets` has the names of targets in the configuration by their names in protocols.
pub(crate) fn view(log: &SlowLog, host: &dyn Host, targets: &BTreeMap<Arc<str>, String>) -> SlowLogView {
    let (now, date) = (host.now(), host.wall_clock());
    let (commands, omitted) = log.kept();
    let view = |command: &SlowCommand| {
        let SlowCommand { ended, core, command: name, class, blocks, in_flight, ending, .. } = *command;
        let micros = |nanoseconds: u64| nanoseconds / 1000;
        let Times { total, network, store } = command.times;
        let (total, network, store) = (micros(total), micros(network), micros(store));
        let age = u64::try_from(now.since(ended).as_millis()).unwrap_or(u64::MAX);
        let host = command.host.as_ref();
        let target = |key: &HostKey| targets.get(&key.target).cloned().unwrap_or_else(|| key.target.to_string());
        SlowView {
            milliseconds: date.saturating_sub(age),
            core,
            volume: command.volume.as_deref().map(str::to_owned),
            protocol: host.map(|key| key.transport),
            target: host.map(target),
            initiator: host.map(|key| key.host.to_string()),
            command: name,
            class: class.word(),
            lba: blocks.map(|blocks| blocks.lba),
            blocks: blocks.map(|blocks| blocks.count),
            bytes: blocks.map(|blocks| blocks.count * u64::from(blocks.size)),
            microseconds: SlowTimes { total, network, queue: total.saturating_sub(network + store), store },
            in_flight,
            ending: ending.word(),
        }
    };
    SlowLogView { omitted, commands: commands.iter().map(view).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::slow::{Blocks, Ending};
    use lunar_core::time::Instant;
    use lunar_core::traffic::Class;

    #[test]
    fn a_line_says_who_did_what_where_and_where_the_time_went() {
        let (transport, target, host) = ("iscsi", "iqn.x:disk".into(), "iqn.x:esx".into());
        let command = SlowCommand {
            ended: Instant(9_000_000_000),
            core: 1,
            volume: Some("disk1".into()),
            host: Some(HostKey { transport, target, host }),
            command: "WRITE(10)",
            class: Class::Write,
            blocks: Some(Blocks { lba: 2048, count: 8, size: 512 }),
            times: Times { total: 7_100_000_000, network: 50_000_000, store: 7_000_000_000 },
            in_flight: 3,
            ending: Ending::Aborted,
        };
        assert_eq!(
            Line(&command).to_string(),
            "slow command: WRITE(10) took 7.1s (network 50ms, queue 50ms, store 7s), LBA 2048, 8 blocks, volume disk1, \
             iscsi host \"iqn.x:esx\" at target \"iqn.x:disk\", 3 in progress, aborted"
        );
    }
}

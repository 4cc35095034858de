//! The load: saturated cores, refused commands, misaligned ones.

use super::words::percent;
use crate::doctor::facts::Facts;
use crate::doctor::finding::{Finding, quoted};
use crate::doctor::table::Code;
use crate::rates::{BUSY, CoreRates};
use crate::value::{Size, Textual};

/// The part of the time with work below which a core is idle.
const IDLE: f64 = 0.5;
/// A turn of a core that lasted for longer stalled its sessions, in nanoseconds.
const STALL: u64 = 100_000_000;
/// The part of misaligned commands from which on they are a finding.
const MISALIGNED: f64 = 0.1;
/// Fewer misaligned commands say nothing.
const MISALIGNED_MIN: u64 = 1000;

pub(super) fn check(facts: &Facts, findings: &mut Vec<Finding>) {
    findings.extend(cores(facts));
    for core in facts.counters.iter().flat_map(|counters| &counters.cores) {
        if core.longest_turn_nanoseconds > STALL {
            let found = Finding::new(Code::CoreStalled, format!("core {}", core.core));
            let longest = format!("{} ms", core.longest_turn_nanoseconds / 1_000_000);
            findings.push(found.shows("longest turn", longest).command("cat /proc/pressure/cpu /proc/pressure/memory"));
        }
    }
    statistics(facts, findings);
    for volume in facts.counters.iter().flat_map(|counters| &counters.volumes) {
        let all = volume.traffic.read.commands + volume.traffic.write.commands;
        let part = volume.misaligned as f64 / all.max(1) as f64;
        if volume.misaligned >= MISALIGNED_MIN && part > MISALIGNED {
            let found = Finding::new(Code::Misaligned, format!("volume {}", volume.name))
                .shows("misaligned", volume.misaligned)
                .shows("of all", percent(part));
            findings.push(found.command("lsblk -t -o NAME,ALIGNMENT,START   # on the host"));
        }
    }
}

fn cores(facts: &Facts) -> Option<Finding> {
    let all = facts.rates.as_ref().map(|rates| &rates.cores[..]).unwrap_or_default();
    let order = |one: &&CoreRates, other: &&CoreRates| one.busy.total_cmp(&other.busy);
    let (most, least) = (all.iter().max_by(order)?, all.iter().min_by(order)?);
    if most.busy < BUSY {
        return None;
    }
    let shown = |core: &CoreRates| format!("{:.0} %", core.busy * 100.0);
    if least.busy < IDLE {
        let found = Finding::new(Code::CoreSaturated, format!("core {}", most.core))
            .shows("busy", shown(most))
            .shows("connections", most.connections)
            .shows("least busy", format!("core {} {}", least.core, shown(least)));
        let command = "iscsiadm -m node -o update -n node.session.nr_sessions -v 4   # on the host; or nvme connect \
                       --nr-io-queues=4";
        return Some(found.command(command));
    }
    let processors = facts.machine.processors;
    if least.busy >= BUSY && processors > all.len() {
        let found = Finding::new(Code::CoresSaturated, "service lunar").shows("cores", all.len());
        let command = format!("lunar config set server --cores {processors} && systemctl restart lunar");
        return Some(found.shows("processors", processors).command(command));
    }
    None
}

fn statistics(facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(statistics) = &facts.statistics else { return };
    let of = |name: &str| statistics[name].as_u64().unwrap_or(0);
    let new = |code, name: &'static str, count: u64| Finding::new(code, "service lunar").shows(name, count);
    if of("task_set_full") > 0 {
        let found = new(Code::SlotsShort, "refused since the start", of("task_set_full"));
        let depth = facts.config.limits.queue_depth.get();
        let command = format!("lunar config set limits --queue-depth {}", (depth / 2).max(1));
        findings.push(found.shows("queue depth", depth).command(command));
    }
    if of("busy_refused") > 0 {
        let memory = facts.config.server.memory;
        let found = new(Code::MemoryShort, "refused since the start", of("busy_refused"));
        let twice = quoted(&Size(memory.0.saturating_mul(2)).text());
        let command = format!("lunar config set server --memory {twice} && systemctl restart lunar");
        findings.push(found.shows("memory of a core", memory).command(command));
    }
    if of("digest_errors") > 0 {
        let found = new(Code::DigestErrors, "since the start", of("digest_errors"));
        findings.push(found.command("ip -s -s link; lunar audit | tail -20"));
    }
}

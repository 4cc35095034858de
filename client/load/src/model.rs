//! The performance model of Lunar: a closed loop of an initiator, a link and one serving core. It is that of
//! `check/bench/harness/model.py`, which fits the terms; a test compares the two.
//!
//! All times are in microseconds for one command, all rates in commands per microsecond. A cycle is the time in which
//! all outstanding commands complete once. It is as long as the longest of: one wait (wake-up of the peer, network,
//! store) and the commands that are processed one after the other within it; the work of the core for all commands;
//! the work of the initiator; the bytes on the link.

use serde::Deserialize;
use std::collections::BTreeMap;

/// The terms, as they were fitted to the kept results.
const TERMS: &str = include_str!("../../../check/bench/results/model.json");
/// Headers of a command and of its answer, in bytes.
const HEADERS: f64 = 48.0;
/// The size of the first-level data cache.
const CACHE: f64 = 32_768.0;
/// About as many bytes of replies leave in one turn, and are received at once.
const BURST: f64 = 131_072.0;
/// The size of the commands by which the cost of a store over TCP is measured.
const MEASURED: f64 = 4096.0;
/// How sharply the longest part of a cycle dominates the others, and how commands of a batch and of a session meet.
const SHARP: f64 = 6.0;
const SHARPER: f64 = 8.0;
/// The share of a link with 1,500-byte frames that is left for TCP payload.
const LINK_SHARE: f64 = 0.94;
/// Bits per second of a link of 1 Gbit/s, in bytes per microsecond.
const GIGABIT: f64 = 125.0;
/// Enough to settle the idle time of the core, of which half is corrected each time.
const SETTLE: usize = 30;
/// Terms in microseconds that a faster core does not shorten, and those that are not in microseconds.
const UNSCALED: [&str; 4] = ["wake-up", "sleep-wait", "pipelined", "session"];

/// The protocol of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// iSCSI.
    Iscsi,
    /// NVMe/TCP.
    NvmeTcp,
    /// NVMe in shared memory.
    VfioUser,
}

impl Transport {
    fn word(self) -> &'static str {
        match self {
            Self::Iscsi => "iscsi",
            Self::NvmeTcp => "nvme-tcp",
            Self::VfioUser => "vfio-user",
        }
    }

    /// Writes of more bytes wait for R2Ts: FirstBurstLength of iSCSI, the in-capsule data of NVMe/TCP.
    fn unsolicited_max(self) -> f64 {
        match self {
            Self::Iscsi => 65_536.0,
            Self::NvmeTcp => 16_384.0,
            Self::VfioUser => f64::INFINITY,
        }
    }
}

/// The kind of store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Store {
    /// Discards writes and returns zeroes.
    Null,
    /// Memory.
    Ram,
    /// A file in the page cache.
    File,
}

impl Store {
    fn word(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Ram => "ram",
            Self::File => "file",
        }
    }
}

/// A load, and the machine and network that carry it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ModelLoad {
    /// The protocol.
    pub transport: Transport,
    /// Whether it writes; otherwise it reads.
    pub writes: bool,
    /// Bytes of a command.
    pub size: f64,
    /// Commands outstanding in each session.
    pub depth: f64,
    /// Sessions, or queues of a controller.
    pub sessions: f64,
    /// The store.
    pub store: Store,
    /// Whether the initiator polls.
    pub is_polling: bool,
    /// An additional wait of each command in the store.
    pub store_wait: f64,
    /// The round trip of the network beyond that of the loopback.
    pub network: f64,
    /// The rate of the link in Gbit/s; 0: no limit.
    pub link: f64,
    /// The serving cores.
    pub cores: f64,
    /// The machines that send the load; 0: their work is no limit.
    pub hosts: f64,
    /// How long a core polls before it sleeps.
    pub spin: f64,
}

/// The answer of the model.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Answer {
    /// Commands per microsecond.
    pub rate: f64,
    /// Work of the serving cores for a command.
    pub work: f64,
    /// The part of the cycle that decides.
    pub limit: &'static str,
}

/// The terms of a protocol, by name.
type Values = BTreeMap<String, f64>;

/// The terms of all protocols, and those of a core that sleeps.
#[derive(Clone, Debug, Deserialize)]
pub struct Terms(BTreeMap<String, Values>);

#[derive(Deserialize)]
struct Kept {
    terms: Terms,
}

/// The longest part, and somewhat more where two are nearly equal.
fn longest(parts: &[f64], sharp: f64) -> f64 {
    let top = parts.iter().copied().fold(0.0, f64::max);
    if top == 0.0 {
        return 0.0;
    }
    top * parts.iter().map(|part| (part / top).powf(sharp)).sum::<f64>().powf(1.0 / sharp)
}

fn shortest(parts: &[f64], sharp: f64) -> f64 {
    1.0 / longest(&parts.iter().map(|part| 1.0 / part).collect::<Vec<_>>(), sharp)
}

/// The named parts of a cycle, and its length.
struct Cycle {
    parts: Vec<(&'static str, f64)>,
    length: f64,
}

impl Cycle {
    fn answer(&self, count: f64, work: f64) -> Answer {
        let limit =
            self.parts.iter().fold(("depth", f64::MIN), |most, part| if part.1 > most.1 { *part } else { most });
        Answer { rate: count / self.length, work, limit: limit.0 }
    }
}

fn doublings(mut ratio: f64) -> f64 {
    let mut doubled = 0.0;
    while ratio >= 2.0 {
        ratio /= 2.0;
        doubled += 1.0;
    }
    doubled + (ratio - 1.0).max(0.0)
}

/// The part of a load that one core serves: a session, a queue or a controller stays on its core.
struct Share<'a> {
    load: &'a ModelLoad,
    outstanding: f64,
    sessions: f64,
    initiators: f64,
}

/// The costs of a load over a byte stream.
struct Costs {
    /// Work of the core and of the initiator for a command, without that for turns.
    work: f64,
    initiator: f64,
    /// The wait of a cycle.
    wait: f64,
    /// Additional work of the core for a turn.
    turn: f64,
}

impl Terms {
    /// The terms that were fitted last.
    ///
    /// # Panics
    /// If the file of the terms is broken, which a test excludes.
    #[must_use]
    pub fn fitted() -> Self {
        let kept: Kept = serde_json::from_str(TERMS).expect("the terms are part of the program");
        kept.terms
    }

    /// The terms of a machine whose cores are so many times as fast.
    #[must_use]
    pub fn scaled(mut self, speed: f64) -> Self {
        for values in self.0.values_mut() {
            let scaled = values.iter_mut().filter(|(name, _)| !UNSCALED.contains(&name.as_str()));
            scaled.for_each(|(_, value)| *value /= speed);
        }
        self
    }

    /// The terms of a protocol.
    fn of(&self, transport: Transport) -> &Values {
        &self.0[transport.word()]
    }

    /// The rate and the cost of a load.
    #[must_use]
    pub fn predict(&self, load: &ModelLoad) -> Answer {
        let cores = load.cores.min(load.sessions);
        let initiators = if load.hosts > 0.0 { load.hosts / cores } else { 0.0 };
        let sessions = load.sessions / cores;
        let share = Share { load, outstanding: load.depth * sessions, sessions, initiators };
        let answer = match load.transport {
            Transport::VfioUser => self.shared_memory(&share),
            Transport::Iscsi | Transport::NvmeTcp => self.stream(&share),
        };
        let rate = answer.rate * cores;
        let link = load.link * GIGABIT * LINK_SHARE / (load.size + HEADERS);
        if load.link > 0.0 && rate > link {
            return Answer { rate: link, limit: "link", ..answer };
        }
        Answer { rate, ..answer }
    }

    fn stream(&self, share: &Share<'_>) -> Answer {
        let (load, count) = (share.load, share.outstanding);
        let terms = self.of(load.transport);
        let work = terms["command"] + terms["byte"] * load.size + self.store_over_stream(load);
        let direction = if load.writes { "write" } else { "read" };
        let initiator = terms["initiator"] + terms[&format!("initiator-byte-{direction}")] * load.size;
        let waits = load.store_wait + load.network;
        if load.is_polling {
            let cost = work + terms["turn"] / self.batch(share, 0.0);
            let parts = vec![("core", count * cost), ("depth", 2.0 * cost + waits)];
            let length = longest(&[parts[0].1, parts[1].1], 64.0);
            return Cycle { parts, length }.answer(count, cost);
        }
        let (awake, busy) = self.settle(share, &Costs { work, initiator, wait: terms["wake-up"] + waits, turn: 0.0 });
        // The core falls asleep if it finds nothing between two turns for longer than it polls.
        if (1.0 - busy) / awake.rate * count.min(self.batch(share, 1.0 - busy)) <= load.spin {
            return awake;
        }
        let wait = terms["wake-up"] + waits + self.0["sleep"]["sleep-wait"];
        self.settle(share, &Costs { work, initiator, wait, turn: self.0["sleep"]["sleep-work"] }).0
    }

    /// The commands of a turn, from the share of the time in which the core waits.
    fn batch(&self, share: &Share<'_>, idle: f64) -> f64 {
        let at_once = BURST / (share.load.size + HEADERS);
        let most = if share.load.writes { at_once.max(1.0) } else { at_once };
        let terms = self.of(share.load.transport);
        // Commands at the core, and the sessions that they belong to.
        let here = 1.0 + (share.outstanding - 1.0) * (idle + (1.0 - idle) * terms["pipelined"]);
        let sessions = if share.sessions > 1.0 { shortest(&[share.sessions, here], SHARPER) } else { 1.0 };
        let turns = 1.0 + terms["session"] * (sessions - 1.0);
        shortest(&[here, most * sessions], SHARP / 2.0) / turns
    }

    /// The cycle of a load whose initiator sleeps: how much the core waits changes how many commands a turn has, and
    /// that changes how much it waits. Also returns the share of the time in which the core works.
    fn settle(&self, share: &Share<'_>, costs: &Costs) -> (Answer, f64) {
        let (terms, count) = (self.of(share.load.transport), share.outstanding);
        let at_once = BURST / (share.load.size + HEADERS);
        let (mut idle, mut cost) = (0.8, 0.0);
        let mut cycle = Cycle { parts: Vec::new(), length: 1.0 };
        for _ in 0..SETTLE {
            let batch = self.batch(share, idle);
            cost = costs.work
                + (terms["turn"] + costs.turn + terms["wake-peer"] * idle) / batch
                + terms["lock-step"] * idle;
            let initiator = costs.initiator + terms["initiator-turn"] / batch;
            let depth = costs.wait + shortest(&[count, at_once], SHARP - 2.0) * cost;
            let (mut parts, mut length) =
                (vec![("depth", depth), ("core", count * cost)], longest(&[depth, count * cost], SHARP));
            if share.initiators > 0.0 {
                let work = count * initiator / share.initiators;
                parts.push(("initiator", work));
                length = longest(&[length, work], SHARPER);
            }
            idle = f64::midpoint(idle, (1.0 - count * cost / length).max(0.0));
            cycle = Cycle { parts, length };
        }
        (cycle.answer(count, cost), (count * cost / cycle.length).min(1.0))
    }

    /// The work of the core for the store, and for R2Ts.
    fn store_over_stream(&self, load: &ModelLoad) -> f64 {
        let terms = self.of(load.transport);
        let is_solicited = load.writes && load.size > load.transport.unsolicited_max();
        let r2t = if is_solicited { terms["r2t"] } else { 0.0 };
        if load.store == Store::Null {
            return r2t;
        }
        // A store without rows over this protocol costs what it costs over iSCSI, and a write of the file store what a
        // read costs.
        let of = |direction: &str| {
            let name = format!("{}-{direction}", load.store.word());
            terms.get(&name).or_else(|| self.of(Transport::Iscsi).get(&name)).copied()
        };
        let store = of(if load.writes { "write" } else { "read" }).or_else(|| of("read")).unwrap_or(0.0);
        r2t + store + self.of(Transport::VfioUser)["copy"] * (load.size - MEASURED).max(0.0)
    }

    fn shared_memory(&self, share: &Share<'_>) -> Answer {
        let (load, terms, count) = (share.load, self.of(Transport::VfioUser), share.outstanding);
        let store = match load.store {
            Store::Ram => terms[if load.writes { "ram-write" } else { "ram-read" }] + terms["copy"] * load.size,
            Store::File => self.store_over_stream(load),
            Store::Null if load.writes => 0.0,
            Store::Null => load.size * (terms["zero"] + terms["zero-more"] * doublings(load.depth * load.size / CACHE)),
        };
        let work = terms["command"] + store;
        let waits = load.store_wait + load.network;
        if load.is_polling {
            let depth = work + terms["lock-step"] + terms["round-trip"] + waits;
            let length = longest(&[depth, count * work], SHARPER);
            let cost = work + terms["lock-step"] * (1.0 - count * work / length).max(0.0);
            return Cycle { parts: vec![("depth", depth), ("core", count * work)], length }.answer(count, cost);
        }
        // A guest that sleeps until the interrupt sends nothing while the core works: the parts follow one another.
        let depth = terms["wake-up"] + terms["turn"] + waits;
        let cost = work + terms["turn"] / count;
        let parts = vec![("depth", depth), ("core", count * work)];
        Cycle { parts, length: depth + count * work }.answer(count, cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::process::Command;

    const LOAD: ModelLoad = ModelLoad {
        transport: Transport::Iscsi,
        writes: false,
        size: 4096.0,
        depth: 32.0,
        sessions: 1.0,
        store: Store::Null,
        is_polling: false,
        store_wait: 0.0,
        network: 0.0,
        link: 0.0,
        cores: 1.0,
        hosts: 1.0,
        spin: 100.0,
    };

    /// The same load, predicted by the program that fits the terms; `None` without Python.
    fn fitted(load: &ModelLoad, speed: f64) -> Option<serde_json::Value> {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../check/bench/model");
        Command::new("python3").arg("--version").output().ok()?;
        let mut command = Command::new(model);
        command.args(["predict", "--json", "--protocol", load.transport.word(), "--store", load.store.word()]);
        command.args(["--rw", if load.writes { "write" } else { "read" }]);
        for (name, value) in [
            ("--bs", load.size),
            ("--depth", load.depth),
            ("--sessions", load.sessions),
            ("--store-wait", load.store_wait),
            ("--network", load.network),
            ("--link", load.link),
            ("--cores", load.cores),
            ("--hosts", load.hosts),
            ("--spin", load.spin),
            ("--speed", speed),
        ] {
            command.args([name, &value.to_string()]);
        }
        if load.is_polling {
            command.arg("--polling");
        }
        let done = command.output().expect("the program starts");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Some(serde_json::from_slice(&done.stdout).expect("JSON"))
    }

    #[test]
    fn predictions_are_those_of_the_program_that_fits_the_terms() {
        let nvme = ModelLoad { transport: Transport::NvmeTcp, writes: true, size: 131_072.0, ..LOAD };
        let memory = ModelLoad { transport: Transport::VfioUser, ..LOAD };
        let loads = [
            (LOAD, 1.0),
            (ModelLoad { depth: 1.0, ..LOAD }, 1.0),
            (ModelLoad { store: Store::File, store_wait: 300.0, network: 30.0, hosts: 0.0, depth: 4.0, ..LOAD }, 1.0),
            (ModelLoad { sessions: 8.0, cores: 4.0, hosts: 2.0, store: Store::Ram, ..LOAD }, 1.8),
            (ModelLoad { is_polling: true, ..LOAD }, 1.0),
            (ModelLoad { link: 1.0, hosts: 0.0, ..LOAD }, 1.0),
            (nvme, 0.7),
            (ModelLoad { store: Store::File, ..nvme }, 1.0),
            (memory, 1.0),
            (ModelLoad { is_polling: true, store: Store::Ram, writes: true, ..memory }, 2.0),
            (ModelLoad { store: Store::File, depth: 256.0, ..memory }, 1.0),
        ];
        for (load, speed) in loads {
            let Some(known) = fitted(&load, speed) else { return println!("not compared: there is no python3") };
            let found = Terms::fitted().scaled(speed).predict(&load);
            assert_eq!(known["limit"], found.limit, "{load:?}");
            for (key, value) in [("iops", found.rate * 1e6), ("core_us_per_command", found.work)] {
                let known = known[key].as_f64().expect("a number");
                assert!((value / known - 1.0).abs() < 1e-9, "{load:?}: {key} {value}, not {known}");
            }
        }
    }

    #[test]
    fn more_depth_never_lowers_the_rate_and_the_link_is_a_limit() {
        let rate = |load: &ModelLoad| Terms::fitted().predict(load).rate;
        let mut before = 0.0;
        for depth in [1.0, 4.0, 16.0, 64.0, 256.0] {
            let now = rate(&ModelLoad { depth, store_wait: 1000.0, ..LOAD });
            assert!(now > before, "depth {depth}");
            before = now;
        }
        let answer = Terms::fitted().predict(&ModelLoad { link: 1.0, hosts: 0.0, size: 65_536.0, ..LOAD });
        assert!(answer.limit == "link" && answer.rate * 65_536.0 < 125.0, "{answer:?}");
    }
}

//! An image through Lunar beside the library alone, in turns: fio with its own engine for images, and the tool of Ceph.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cluster::Cluster;
use crate::copies;
use crate::handler::daemon::{Daemon, NQN, TARGET};
use crate::process::{bound, run};
use crate::report::Figure;
use crate::target::Lab;

/// The volume, its LUN and its image; the image of the library alone; the bytes of each. Three copies of both have to
/// fit into the stores, with room for their journals: writes to a full cluster wait forever.
const VOLUME: (&str, u16, &str) = ("figures", 11, "rbd/figures");
const ALONE: &str = "alone";
const SIZE: &str = "64M";
const ROUNDS: usize = 3;
const SECONDS: u64 = 4;
const LIMIT: Duration = Duration::from_secs(120);
/// The length of a tick of /proc/stat.
const TICK_MICROS: f64 = 10_000.0;
/// The column of the idle time in it; the next one is the time of waiting.
const IDLE: usize = 3;
/// Bytes that `rbd bench` moves: those that take a cluster on one machine some seconds.
const TOOL_BYTES: [(u64, u64); 3] = [(1, 8 << 20), (4096, 24 << 20), (131_072, 128 << 20)];

/// A load: its name, the direction, bytes and commands outstanding.
struct Load(&'static str, &'static str, u64, u32);

const LOADS: [Load; 8] = [
    Load("4 KiB random read, depth 1", "randread", 4096, 1),
    Load("4 KiB random read, depth 32", "randread", 4096, 32),
    Load("4 KiB random read, depth 128", "randread", 4096, 128),
    Load("4 KiB random write, depth 1", "randwrite", 4096, 1),
    Load("4 KiB random write, depth 32", "randwrite", 4096, 32),
    Load("4 KiB random write, depth 128", "randwrite", 4096, 128),
    Load("128 KiB read, depth 32", "read", 131_072, 32),
    Load("128 KiB write, depth 32", "write", 131_072, 32),
];

/// The commands of EXTENDED COPY of a run, and the bytes that each of them copies.
const COPIES: u64 = 24;
const COPY_BYTES: usize = 1 << 20;

/// Fills an image: objects that were never written cost less.
const FILL: Load = Load("fill", "write", 1 << 20, 4);
const FILL_SECONDS: u64 = 8;

/// Measures an image through Lunar over iSCSI and NVMe/TCP, and one of the same size without Lunar.
pub(super) fn compare(lab: &Lab, daemon: &Daemon, cluster: &Cluster) -> Result<()> {
    let configuration = cluster.configuration().display().to_string();
    let (volume, lun, image) = VOLUME;
    let made = ["volume", "create", volume, "--kind", "rbd", "--image", image, "--size", SIZE, "--ceph-config"];
    daemon.succeeds(&[&made[..], &[&configuration]].concat())?;
    daemon.succeeds(&["group", "map", "all", &lun.to_string(), volume])?;
    cluster.run(&["rbd", "create", "--size", SIZE, ALONE])?;
    let iscsi = format!("iscsi://{}/{TARGET}/{lun}", daemon.portal);
    let nvme = format!("nvme-tcp://{}/{NQN}/{}", daemon.port, lun + 1);
    by_lunar(daemon, &iscsi, &FILL, FILL_SECONDS)?;
    by_fio(cluster, &FILL, FILL_SECONDS)?;
    for load in &LOADS {
        let mut found = [
            ("lunar, iSCSI", Vec::new()),
            ("lunar, NVMe/TCP", Vec::new()),
            ("fio, librbd", Vec::new()),
            ("rbd bench", Vec::new()),
        ];
        let turns = found.len();
        for round in 0..ROUNDS {
            // Each round starts with another one: the stores still work on what the one before has written.
            for turn in (0..turns).map(|turn| (round + turn) % turns) {
                found[turn].1.push(timed(|| match turn {
                    0 => by_lunar(daemon, &iscsi, load, SECONDS),
                    1 => by_lunar(daemon, &nvme, load, SECONDS),
                    2 => by_fio(cluster, load, SECONDS),
                    _ => by_tool(cluster, load),
                })?);
            }
        }
        for (target, runs) in found {
            record(lab, (load.0, target), runs);
        }
    }
    copies(lab, daemon, lun)?;
    daemon.succeeds(&["group", "unmap", "all", &lun.to_string(), "--force"])?;
    daemon.succeeds(&["volume", "delete", volume])?;
    Ok(())
}

/// Measures EXTENDED COPY within the image, from its first half to the second.
fn copies(lab: &Lab, daemon: &Daemon, lun: u16) -> Result<()> {
    let mut session = daemon.session(lun)?;
    let unit = copies::descriptor(&mut session)?;
    let (all, block) = session.capacity()?;
    let blocks = u16::try_from(COPY_BYTES / block)?;
    let mut runs = Vec::new();
    for _ in 0..ROUNDS {
        runs.push(timed(|| {
            let begun = Instant::now();
            for number in 0..COPIES {
                let from = number * u64::from(blocks);
                copies::within(&mut session, &unit, from, all / 2 + from, blocks)?;
            }
            let count = COPIES as f64;
            Ok(Ran { rate: count / begun.elapsed().as_secs_f64(), count })
        })?);
    }
    record(lab, ("EXTENDED COPY of 1 MiB, depth 1", "lunar, iSCSI"), runs);
    session.logout()
}

/// Records the median of the runs of a load by a target.
fn record(lab: &Lab, (load, target): (&str, &str), mut runs: Vec<(f64, f64)>) {
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (rate, cost) = runs[ROUNDS / 2];
    let [table, load, target] = ["an image of Ceph", load, target].map(str::to_owned);
    lab.report.figure(Figure { table, load, target, rate, cost });
}

/// Commands per second, and how many.
struct Ran {
    rate: f64,
    count: f64,
}

/// A run: commands per second, and the microseconds that all processors worked for each, with the start of the program.
fn timed(run: impl FnOnce() -> Result<Ran>) -> Result<(f64, f64)> {
    let before = busy()?;
    let ran = run()?;
    ensure!(ran.count > 0.0, "nothing was measured");
    Ok((ran.rate, (busy()? - before) / ran.count))
}

/// The time in which the processors of this machine have worked, in microseconds.
fn busy() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let first = text.lines().next().context("/proc/stat is empty")?;
    let ticks: Vec<f64> = first.split_whitespace().skip(1).map(str::parse).collect::<Result<_, _>>()?;
    // All but the time in which they are idle or wait for disks.
    let worked = ticks.iter().take(IDLE).chain(ticks.iter().skip(IDLE + 2).take(3));
    Ok(worked.sum::<f64>() * TICK_MICROS)
}

fn by_lunar(daemon: &Daemon, url: &str, load: &Load, seconds: u64) -> Result<Ran> {
    let Load(_, direction, bytes, depth) = load;
    let mut command = bound(&daemon.lunar);
    command.args(["bench", url, "--json", "--warmup", "0", "--rw", direction, "--bs", &bytes.to_string()]);
    command.args(["--depth", &depth.to_string(), "--time", &seconds.to_string()]);
    let report: Value = serde_json::from_str(&run(&mut command, LIMIT)?.succeeded()?)?;
    let number = |name: &str| report[name].as_f64().with_context(|| format!("the report has no {name}"));
    Ok(Ran { rate: number("iops")?, count: number("total_commands")? })
}

/// Fields of the terse output of fio: commands per second and milliseconds, of reads and of writes.
const FIO_FIELDS: [(usize, usize); 2] = [(7, 8), (48, 49)];

fn by_fio(cluster: &Cluster, load: &Load, seconds: u64) -> Result<Ran> {
    let Load(_, direction, bytes, depth) = load;
    let words = [
        format!("--rw={direction}"),
        format!("--bs={bytes}"),
        format!("--iodepth={depth}"),
        format!("--runtime={seconds}"),
        format!("--rbdname={ALONE}"),
    ];
    let mut all = vec!["env", "CEPH_ARGS=--rbd_cache=false", "fio", "--name=alone", "--ioengine=rbd", "--pool=rbd"];
    all.extend(["--clientname=admin", "--time_based", "--output-format=terse", "--terse-version=3"]);
    all.extend(words.iter().map(String::as_str));
    let text = cluster.run(&all)?;
    let line = text.lines().find(|line| line.starts_with("3;")).with_context(|| format!("fio prints {text}"))?;
    let fields: Vec<&str> = line.split(';').collect();
    let number = |at: usize| fields.get(at).and_then(|word| word.parse::<f64>().ok()).context("fio prints too little");
    let mut ran = Ran { rate: 0.0, count: 0.0 };
    for (rate, milliseconds) in FIO_FIELDS {
        ran.rate += number(rate)?;
        ran.count += number(rate)? * number(milliseconds)? / 1e3;
    }
    Ok(ran)
}

fn by_tool(cluster: &Cluster, load: &Load) -> Result<Ran> {
    let Load(_, direction, bytes, depth) = load;
    let (kind, pattern) = match direction.strip_prefix("rand") {
        Some(kind) => (kind, "rand"),
        None => (*direction, "seq"),
    };
    // It ends after so many bytes.
    let key = if *depth == 1 { 1 } else { *bytes };
    let (_, total) = TOOL_BYTES.into_iter().find(|(at, _)| *at == key).context("no number of bytes")?;
    let (bytes, depth, total) = (bytes.to_string(), depth.to_string(), total.to_string());
    let mut words = vec!["rbd", "--rbd_cache=false", "bench", "--io-type", kind, "--io-size", &bytes];
    words.extend(["--io-threads", &depth, "--io-total", &total, "--io-pattern", pattern, ALONE]);
    let text = cluster.run(&words)?;
    let line = text.lines().find(|line| line.starts_with("elapsed:")).with_context(|| format!("rbd prints {text}"))?;
    let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
    let (_, count, rate) = (numbers.next(), numbers.next(), numbers.next());
    Ok(Ran { rate: rate.context("no rate")?, count: count.context("no number of commands")? })
}

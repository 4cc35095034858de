//! `lunar bench --predict`: the load of the options, as the performance model predicts it. No load is sent.

use crate::model::{ModelLoad, Store, Terms, Transport};
use crate::options::Options;
use crate::url::Protocol;
use anyhow::{Result, bail, ensure};
use serde::Serialize;
use std::fmt;

/// How long a core polls before it sleeps, in microseconds: the default of `spin` in `[server]`.
const SPIN: f64 = 100.0;

/// A predicted load.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Predicted {
    /// Commands per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// The mean latency of a command, in microseconds.
    pub mean_latency_us: f64,
    /// The work of the serving cores for a command, in microseconds.
    pub core_us_per_command: f64,
    /// The serving cores that are busy.
    pub busy_cores: f64,
    /// The part that limits the rate: `depth`, `core`, `initiator` or `link`.
    pub limit: &'static str,
}

impl Predicted {
    /// The options that would raise the rate.
    fn advice(&self) -> &'static str {
        match self.limit {
            "depth" => "more commands outstanding (--depth, --sessions), or less latency",
            "core" => "more cores, with as many sessions (--cores, --sessions)",
            "initiator" => "more machines that send (--hosts)",
            _ => "a faster link (--link)",
        }
    }
}

impl fmt::Display for Predicted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "predicted")?;
        writeln!(f, "  IOPS {:.0}   MB/s {:.1}", self.iops, self.bytes_per_second / 1e6)?;
        writeln!(f, "  mean latency {:.0} us", self.mean_latency_us)?;
        writeln!(f, "  cores {:.2} busy, {:.2} us of work for a command", self.busy_cores, self.core_us_per_command)?;
        writeln!(f, "  limit: {}; to raise it: {}", self.limit, self.advice())?;
        writeln!(f, "The model was fitted to results of one machine: docs/sizing.md says how far to trust it.")
    }
}

/// Predicts the load of these options for this store.
///
/// # Errors
/// If the model does not know such loads, or a number is out of range.
pub fn predict(options: &Options, store: Store) -> Result<Predicted> {
    let with = &options.prediction;
    let transport = match options.url.protocol {
        Protocol::Iscsi => Transport::Iscsi,
        Protocol::NvmeTcp => Transport::NvmeTcp,
        Protocol::VfioUser => Transport::VfioUser,
        Protocol::NvmeRdma
        | Protocol::VhostUser
        | Protocol::VhostScsi
        | Protocol::Aoe
        | Protocol::Fcoe
        | Protocol::St => bail!("the model knows iSCSI, NVMe/TCP and vfio-user"),
    };
    ensure!(
        options.rw.is_read_only() || options.rw.is_write_only(),
        "the model knows loads of reads and loads of writes: give --rw randread or --rw randwrite"
    );
    for (name, value) in [("store-wait", with.store_wait), ("network", with.network), ("link", with.link)] {
        ensure!(value.is_finite() && value >= 0.0, "--{name} must not be negative");
    }
    ensure!(with.speed.is_finite() && with.speed > 0.0, "--speed must be positive");
    let load = ModelLoad {
        transport,
        writes: options.rw.is_write_only(),
        size: f64::from(options.bs),
        depth: f64::from(options.depth),
        sessions: f64::from(options.sessions),
        store,
        is_polling: options.spin,
        store_wait: with.store_wait,
        network: with.network,
        link: with.link,
        cores: f64::from(with.cores),
        hosts: f64::from(with.hosts),
        spin: SPIN,
    };
    let answer = Terms::fitted().scaled(with.speed).predict(&load);
    let iops = answer.rate * 1e6;
    Ok(Predicted {
        iops,
        bytes_per_second: iops * load.size,
        mean_latency_us: load.depth * load.sessions / answer.rate,
        core_us_per_command: answer.work,
        busy_cores: answer.rate * answer.work,
        limit: answer.limit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn of(line: &str) -> Result<Predicted> {
        let words = ["bench", "iscsi://192.0.2.1/iqn.x"].into_iter().chain(line.split_whitespace());
        let options = Line::try_parse_from(words)?.options;
        let store = options.prediction.predict.unwrap_or(Store::Null);
        predict(&options, store)
    }

    #[test]
    fn a_slow_device_needs_depth_and_a_fast_one_cores() {
        let slow = of("--predict file --store-wait 8000 --depth 1").expect("a load that the model knows");
        assert!(slow.limit == "depth" && slow.iops < 130.0 && slow.mean_latency_us > 8000.0, "{slow:?}");
        let fast = of("--predict file --depth 256 --hosts 0").expect("a load that the model knows");
        assert!(fast.limit == "core" && fast.busy_cores > 0.9 && fast.iops > 100_000.0, "{fast:?}");
        let more = of("--predict file --depth 256 --hosts 0 --sessions 4 --cores 4").expect("a load");
        assert!((more.iops / fast.iops - 4.0).abs() < 0.1, "{more:?}");
        let shown = fast.to_string();
        assert!(shown.contains("more cores") && shown.contains("docs/sizing.md"), "{shown}");
    }

    #[test]
    fn loads_that_the_model_does_not_know_are_refused() {
        for line in ["--predict ram --rw randrw", "--predict ram --link -1", "--predict ram --speed 0", "--cores 2"] {
            assert!(of(line).is_err(), "{line}");
        }
    }
}

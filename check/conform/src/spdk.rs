//! SPDK's own NVMe host, over TCP and vfio-user. Whoever wants that builds it: `LUNAR_BENCH_SPDK` names the build tree,
//! for the benchmarks and here.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::chap::secret_file;
use crate::guest::proofs::{CHANNEL_KEY, HOST, HOST_KEY, OWN_KEY};
use crate::report::skip;
use crate::target::{Driver, Lab, Spec, Target, free_port};
use crate::test_data::Random;
use crate::tools::{says, tool};

/// Where it was built.
const TREE: &str = "LUNAR_BENCH_SPDK";
const NQN: &str = "nqn.2026-01.io.lunar.conform:spdk";
/// What `spdk_dd` carries there and back: more than any buffer on the way, and no whole number of its blocks.
const COPIED: usize = (24 << 20) + 512;
/// Bytes of each of its commands.
const BLOCK: usize = 128 << 10;

/// SPDK, and a target with a namespace in a file and one in memory.
struct Pair<'a> {
    lab: &'a Lab,
    tree: PathBuf,
    /// Both ways to the subsystem, as SPDK writes them.
    tcp: String,
    vfio: String,
}

/// The part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("spdk/{}", driver.name());
    lab.built()?;
    let mut found = None;
    lab.report.check(&part, "SPDK is there", || match std::env::var_os(TREE).map(PathBuf::from) {
        Some(tree) => {
            ensure!(tree.join("build/bin/spdk_nvme_perf").is_file(), "{} is no build of SPDK", tree.display());
            found = Some(tree);
            Ok(())
        }
        None => skip(format!("{TREE} names no build tree of SPDK")),
    });
    let Some(tree) = found else { return Ok(()) };
    let sockets = lab.scratch.join("vm");
    let sockets = sockets.to_str().context("the scratch folder's name is no text")?;
    let volumes = [lab.image("spdk.img", 64)?, "ram:32M".to_owned()];
    let vm = ["--vm", "spdk", "--vm-folder", sockets];
    let (mut target, tcp) = started(lab, driver, &volumes, &vm)?;
    let vfio = format!("trtype:VFIOUSER traddr:{sockets}/spdk subnqn:{NQN}");
    let pair = Pair { lab, tree, tcp, vfio };
    lab.report.check(&part, "it finds the subsystem, and is told what it is", || pair.identify());
    lab.report.check(&part, "its load, over TCP", || pair.load(&pair.tcp, &[]));
    lab.report.check(&part, "its load, over TCP with digests", || {
        pair.load(&pair.tcp, &["--enable-tcp-hdgst", "--enable-tcp-ddgst"])
    });
    lab.report.check(&part, "its load, over vfio-user", || pair.load(&pair.vfio, &[]));
    lab.report.check(&part, "what it writes over one way comes back over the other", || pair.copies());
    lab.report.check(&part, "it proves its name, and has the subsystem prove its own", || proves(&pair, driver));
    lab.report.check(&part, "its load, by a secure channel", || channel(&pair, driver));
    lab.report.check(&part, "target drains", || {
        target.healthy()?;
        target.stop()
    });
    Ok(())
}

/// A target, and how SPDK gets to it over TCP.
fn started(lab: &Lab, driver: Driver, volumes: &[String], flags: &[&str]) -> Result<(Target, String)> {
    let nvme = free_port()?;
    let at = nvme.to_string();
    let common = ["--cores", "2", "--nvme", &at, "--nqn", NQN];
    let spec = Spec::new(driver, volumes)?.flags(&[&common, flags].concat());
    // Where hosts prove their names, strangers are told nothing.
    let target = Target::start_named(lab, &spec, NQN)?;
    let way =
        format!("trtype:TCP adrfam:IPv4 traddr:{} trsvcid:{} subnqn:{NQN} hostnqn:{HOST}", nvme.ip(), nvme.port());
    Ok((target, way))
}

impl Pair<'_> {
    fn program(&self, name: &str) -> Result<String> {
        let path = self.tree.join("build/bin").join(name);
        Ok(path.to_str().context("the name of SPDK's folder is no text")?.to_owned())
    }

    fn identify(&self) -> Result<()> {
        let identify = |way: &str| tool(&self.program("spdk_nvme_identify")?, &["--no-huge", "-s", "256", "-r", way]);
        // Without the name of a subsystem it asks the discovery service.
        let discovery = self.tcp.replace(&format!(" subnqn:{NQN}"), "");
        says(&identify(&discovery)?, NQN)?;
        for way in [&self.tcp, &self.vfio] {
            let shown = identify(way)?;
            for wanted in ["LUNAR VOLUME", NQN, "Namespace ID:2"] {
                says(&shown, wanted)?;
            }
        }
        Ok(())
    }

    /// Reads and writes of all namespaces for a second.
    fn load(&self, way: &str, more: &[&str]) -> Result<()> {
        let load =
            ["--no-huge", "-s", "256", "-q", "32", "-o", "4096", "-w", "randrw", "-M", "50", "-t", "1", "-r", way];
        let shown = tool(&self.program("spdk_nvme_perf")?, &[&load, more].concat())?;
        let total = shown.lines().find_map(|line| line.strip_prefix("Total")?.split_once(':'));
        let rate = total.and_then(|(_, numbers)| numbers.split_whitespace().next()?.parse::<f64>().ok());
        ensure!(rate.is_some_and(|rate| rate > 0.0) && !shown.contains("with error"), "it ends with:\n{shown}");
        Ok(())
    }

    /// A file goes into the second namespace over one way, and comes back over the other.
    fn copies(&self) -> Result<()> {
        let (file, back) = (self.lab.fresh("spdk.in")?, self.lab.fresh("spdk.out")?);
        let bytes = Random::new(self.lab.seed).bytes(COPIED);
        for (there, back_by) in [(&self.tcp, &self.vfio), (&self.vfio, &self.tcp)] {
            std::fs::write(&file, &bytes)?;
            let (block, count) = (BLOCK.to_string(), COPIED.div_ceil(BLOCK).to_string());
            self.dd(there, &["--if", text(&file)?, "--ob", "Nn2", "--bs", &block])?;
            self.dd(back_by, &["--ib", "Nn2", "--of", text(&back)?, "--bs", &block, "--count", &count])?;
            ensure!(std::fs::read(&back)?.starts_with(&bytes), "what comes back is something else");
        }
        Ok(())
    }

    fn dd(&self, way: &str, more: &[&str]) -> Result<()> {
        let keys = way.split_whitespace().filter_map(|pair| pair.split_once(':'));
        let keys: Vec<String> = keys.map(|(key, value)| format!("\"{key}\": \"{value}\"")).collect();
        let config = self.lab.fresh("spdk.json")?;
        std::fs::write(
            &config,
            format!(
                "{{\"subsystems\": [{{\"subsystem\": \"bdev\", \"config\": [\
                 {{\"method\": \"bdev_nvme_attach_controller\", \"params\": {{\"name\": \"N\", {}}}}}, \
                 {{\"method\": \"bdev_wait_for_examine\"}}]}}]}}",
                keys.join(", ")
            ),
        )?;
        let common =
            ["--no-huge", "-s", "512", "-u", "--no-rpc-server", "--disable-cpumask-locks", "-c", text(&config)?];
        tool(&self.program("spdk_dd")?, &[&common, more].concat()).map(drop)
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("the scratch folder's name is no text")
}

/// A key in a file as SPDK reads it: without the end of a line.
fn key_file(lab: &Lab, name: &str, key: &str) -> Result<String> {
    let path = secret_file(lab, (name, key))?;
    std::fs::write(&path, key)?;
    Ok(path)
}

fn proves(pair: &Pair<'_>, driver: Driver) -> Result<()> {
    let (host, own) = (key_file(pair.lab, "host", HOST_KEY)?, key_file(pair.lab, "own", OWN_KEY)?);
    let key = format!("{HOST}={host},{own}");
    let (target, way) = started(pair.lab, driver, &["ram:32M".to_owned()], &["--host-key", &key])?;
    pair.load(&way, &["--dhchap-key", &host, "--dhchap-ctrlr-key", &own])?;
    ensure!(pair.load(&way, &[]).is_err(), "it comes in without its key");
    target.stop()
}

fn channel(pair: &Pair<'_>, driver: Driver) -> Result<()> {
    let file = key_file(pair.lab, "channel", CHANNEL_KEY)?;
    let key = format!("{HOST}={file}");
    let (target, way) = started(pair.lab, driver, &["ram:32M".to_owned()], &["--tls-key", &key])?;
    pair.load(&way, &["-S", "ssl", "--psk-path", &file])?;
    target.stop()
}

//! SPDK's NVMe host, over TCP and vfio-user. The part runs if the environment variable `LUNAR_BENCH_SPDK` (which the
//! benchmarks use, too) names a build tree of SPDK.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::chap::secret_file;
use crate::guest::authentication::{CONTROLLER_KEY, HOST, HOST_KEY, TLS_PSK};
use crate::report::skip;
use crate::target::{Driver, Lab, Spec, Target, free_port};
use crate::test_data::Random;
use crate::tools::{expect_text, tool};

/// The environment variable that names the build tree.
pub(crate) const BUILD_VARIABLE: &str = "LUNAR_BENCH_SPDK";
const NQN: &str = "nqn.2026-01.io.lunar.conform:spdk";
/// Bytes that `spdk_dd` copies: more than any buffer in between holds, and not a multiple of its block size.
const COPY_LEN: usize = (24 << 20) + 512;
/// The transfer size of `spdk_dd` in bytes.
const COPY_BLOCK: usize = 128 << 10;

/// The SPDK build, and a target with a namespace in a file and one in memory.
struct Setup<'a> {
    lab: &'a Lab,
    tree: PathBuf,
    /// The transport IDs of the subsystem over both transports, in SPDK's notation.
    tcp: String,
    vfio: String,
}

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("spdk/{}", driver.name());
    lab.built()?;
    let mut found = None;
    lab.report.check(&part, "a build of SPDK is available", || {
        match std::env::var_os(BUILD_VARIABLE).map(PathBuf::from) {
            Some(tree) => {
                ensure!(
                    tree.join("build/bin/spdk_nvme_perf").is_file(),
                    "{} is not a build tree of SPDK",
                    tree.display()
                );
                found = Some(tree);
                Ok(())
            }
            None => skip(format!("{BUILD_VARIABLE} is not set to a build tree of SPDK")),
        }
    });
    let Some(tree) = found else { return Ok(()) };
    let sockets = lab.scratch.join("vm");
    let sockets = sockets.to_str().context("the scratch folder's name is not UTF-8")?;
    let volumes = [lab.image("spdk.img", 64)?, "ram:32M".to_owned()];
    let vm = ["--vm", "spdk", "--vm-folder", sockets];
    let (mut target, tcp) = started(lab, driver, &volumes, &vm)?;
    let vfio = format!("trtype:VFIOUSER traddr:{sockets}/spdk subnqn:{NQN}");
    let setup = Setup { lab, tree, tcp, vfio };
    lab.report
        .check(&part, "spdk_nvme_identify: discovery and the subsystem over both transports", || setup.identify());
    lab.report.check(&part, "spdk_nvme_perf over TCP", || setup.load(&setup.tcp, &[]));
    lab.report.check(&part, "spdk_nvme_perf over TCP with digests", || {
        setup.load(&setup.tcp, &["--enable-tcp-hdgst", "--enable-tcp-ddgst"])
    });
    lab.report.check(&part, "spdk_nvme_perf over vfio-user", || setup.load(&setup.vfio, &[]));
    lab.report.check(&part, "spdk_dd reads over one transport what it wrote over the other", || setup.copies());
    lab.report.check(&part, "spdk_nvme_perf with bidirectional DH-HMAC-CHAP", || authenticates(&setup, driver));
    lab.report.check(&part, "spdk_nvme_perf over TLS", || tls(&setup, driver));
    lab.report.check(&part, "target stops in time", || {
        target.healthy()?;
        target.stop()
    });
    Ok(())
}

/// Starts a target; returns it with its TCP transport ID in SPDK's notation.
fn started(lab: &Lab, driver: Driver, volumes: &[String], flags: &[&str]) -> Result<(Target, String)> {
    let nvme = free_port()?;
    let at = nvme.to_string();
    let common = ["--cores", "2", "--nvme", &at, "--nqn", NQN];
    let spec = Spec::new(driver, volumes)?.flags(&[&common, flags].concat());
    // With authentication, discovery by other hosts finds no subsystem: wait for the port instead.
    let target = Target::start_named(lab, &spec, NQN)?;
    let address =
        format!("trtype:TCP adrfam:IPv4 traddr:{} trsvcid:{} subnqn:{NQN} hostnqn:{HOST}", nvme.ip(), nvme.port());
    Ok((target, address))
}

impl Setup<'_> {
    fn program(&self, name: &str) -> Result<String> {
        let path = self.tree.join("build/bin").join(name);
        Ok(path.to_str().context("the path of SPDK's build tree is not UTF-8")?.to_owned())
    }

    fn identify(&self) -> Result<()> {
        let identify =
            |address: &str| tool(&self.program("spdk_nvme_identify")?, &["--no-huge", "-s", "256", "-r", address]);
        // Without the NQN of a subsystem, spdk_nvme_identify asks the discovery service.
        let discovery = self.tcp.replace(&format!(" subnqn:{NQN}"), "");
        expect_text(&identify(&discovery)?, NQN)?;
        for address in [&self.tcp, &self.vfio] {
            let shown = identify(address)?;
            for wanted in ["LUNAR VOLUME", NQN, "Namespace ID:2"] {
                expect_text(&shown, wanted)?;
            }
        }
        Ok(())
    }

    /// Reads and writes all namespaces for one second.
    fn load(&self, address: &str, more: &[&str]) -> Result<()> {
        let load =
            ["--no-huge", "-s", "256", "-q", "32", "-o", "4096", "-w", "randrw", "-M", "50", "-t", "1", "-r", address];
        let shown = tool(&self.program("spdk_nvme_perf")?, &[&load, more].concat())?;
        let total = shown.lines().find_map(|line| line.strip_prefix("Total")?.split_once(':'));
        let rate = total.and_then(|(_, numbers)| numbers.split_whitespace().next()?.parse::<f64>().ok());
        ensure!(
            rate.is_some_and(|rate| rate > 0.0) && !shown.contains("with error"),
            "spdk_nvme_perf failed:\n{shown}"
        );
        Ok(())
    }

    /// Writes a file to the second namespace over one transport and reads it back over the other.
    fn copies(&self) -> Result<()> {
        let (file, back) = (self.lab.fresh("spdk.in")?, self.lab.fresh("spdk.out")?);
        let bytes = Random::new(self.lab.seed).bytes(COPY_LEN);
        for (there, back_by) in [(&self.tcp, &self.vfio), (&self.vfio, &self.tcp)] {
            std::fs::write(&file, &bytes)?;
            let (block, count) = (COPY_BLOCK.to_string(), COPY_LEN.div_ceil(COPY_BLOCK).to_string());
            self.dd(there, &["--if", text(&file)?, "--ob", "Nn2", "--bs", &block])?;
            self.dd(back_by, &["--ib", "Nn2", "--of", text(&back)?, "--bs", &block, "--count", &count])?;
            ensure!(std::fs::read(&back)?.starts_with(&bytes), "the data that was read differs from the data written");
        }
        Ok(())
    }

    fn dd(&self, address: &str, more: &[&str]) -> Result<()> {
        let keys = address.split_whitespace().filter_map(|setup| setup.split_once(':'));
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
    path.to_str().context("the scratch folder's name is not UTF-8")
}

/// Writes a key to a file without a line feed, as SPDK requires.
fn key_file(lab: &Lab, name: &str, key: &str) -> Result<String> {
    let path = secret_file(lab, (name, key))?;
    std::fs::write(&path, key)?;
    Ok(path)
}

fn authenticates(setup: &Setup<'_>, driver: Driver) -> Result<()> {
    let (host, own) = (key_file(setup.lab, "host", HOST_KEY)?, key_file(setup.lab, "own", CONTROLLER_KEY)?);
    let key = format!("{HOST}={host},{own}");
    let (target, address) = started(setup.lab, driver, &["ram:32M".to_owned()], &["--host-key", &key])?;
    setup.load(&address, &["--dhchap-key", &host, "--dhchap-ctrlr-key", &own])?;
    ensure!(setup.load(&address, &[]).is_err(), "a host without its key was admitted");
    target.stop()
}

fn tls(setup: &Setup<'_>, driver: Driver) -> Result<()> {
    let file = key_file(setup.lab, "channel", TLS_PSK)?;
    let key = format!("{HOST}={file}");
    let (target, address) = started(setup.lab, driver, &["ram:32M".to_owned()], &["--tls-key", &key])?;
    setup.load(&address, &["-S", "ssl", "--psk-path", &file])?;
    target.stop()
}

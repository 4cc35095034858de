//! A Ceph cluster on loopback: one monitor, a manager, and object stores on files, from Debian's packages in a tree of
//! their own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::process::{bound, last_lines, run};
use crate::report::skip;
use crate::target::{Lab, free_port};

/// The disk of an object store.
const STORE_BYTES: u64 = 4 << 30;
/// How long a step may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Changes to the root of the tree, in which the folders of the system and the scratch folder have their usual paths.
const ENTER: &str = "root=$1 folder=$2; shift 2
    for each in dev proc sys; do mkdir -p $root/$each && mount --rbind /$each $root/$each || exit 1; done
    mkdir -p $root$folder $root/tmp && mount --bind $folder $root$folder || exit 1
    exec chroot $root env PATH=/usr/sbin:/usr/bin:/sbin:/bin \"$@\"";

/// A running cluster. Dropping it ends it.
pub(super) struct Cluster {
    root: PathBuf,
    pub(super) folder: PathBuf,
    monitor: Option<Child>,
    /// Counts the space of the pools.
    manager: Option<Child>,
    stores: Vec<Option<Child>>,
}

impl Cluster {
    /// Starts a monitor, a manager, and `stores` object stores.
    pub(super) fn start(lab: &Lab, root: PathBuf, stores: usize) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return skip("Ceph runs in a tree of its own, to which only root can change");
        }
        let folder = lab.scratch.join("ceph");
        std::fs::create_dir_all(&folder)?;
        // Programs look their user up.
        std::fs::create_dir_all(root.join("etc"))?;
        std::fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n")?;
        std::fs::write(root.join("etc/group"), "root:x:0:\n")?;
        let mut cluster = Self { root, folder, monitor: None, manager: None, stores: Vec::new() };
        let identifier = identifier()?;
        let address = format!("[v2:{}]", free_port()?);
        std::fs::write(cluster.configuration(), cluster.text(&identifier, &address))?;
        let map = cluster.path("monmap");
        cluster.run(&["monmaptool", "--create", "--fsid", &identifier, "--addv", "a", &address, &map])?;
        cluster.run(&["ceph-mon", "--mkfs", "-i", "a", "--monmap", &map])?;
        cluster.start_monitor()?;
        for number in 0..stores {
            let (name, identifier) = (number.to_string(), self::identifier()?);
            cluster.run(&["ceph", "--connect-timeout", "60", "osd", "new", &identifier])?;
            std::fs::create_dir_all(cluster.folder.join(format!("osd.{number}")))?;
            cluster.run(&["ceph-osd", "-i", &name, "--mkfs", "--osd-uuid", &identifier])?;
            cluster.stores.push(None);
            cluster.start_store(number)?;
        }
        for folder in ["mgr", "modules"] {
            std::fs::create_dir_all(cluster.folder.join(folder))?;
        }
        cluster.manager = Some(cluster.spawn(&["ceph-mgr", "-i", "a", "-f"], &cluster.folder.join("mgr.out"))?);
        cluster.until_stores(stores)?;
        cluster.run(&["ceph", "osd", "pool", "create", "rbd", "8", "8"])?;
        cluster.run(&["rbd", "pool", "init", "rbd"])?;
        Ok(cluster)
    }

    pub(super) fn configuration(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn text(&self, identifier: &str, address: &str) -> String {
        let folder = self.folder.display();
        let options = [
            ("fsid", identifier.to_owned()),
            ("mon_host", address.to_owned()),
            ("public_network", "127.0.0.0/8".into()),
            ("public_addr", "127.0.0.1".into()),
            ("cluster_addr", "127.0.0.1".into()),
            ("auth_cluster_required", "none".into()),
            ("auth_service_required", "none".into()),
            ("auth_client_required", "none".into()),
            ("run_dir", format!("{folder}")),
            ("admin_socket", format!("{folder}/$name.$pid.asok")),
            ("log_file", format!("{folder}/$name.log")),
            ("mon_data", format!("{folder}/mon")),
            ("osd_data", format!("{folder}/osd.$id")),
            ("mgr_data", format!("{folder}/mgr")),
            // It needs no modules, which are programs in Python, to count space.
            ("mgr_module_path", format!("{folder}/modules")),
            ("osd_class_dir", "/usr/lib/x86_64-linux-gnu/rados-classes".into()),
            ("bluestore_block_create", "true".into()),
            // Sparse files. Small writes make large journals in them.
            ("bluestore_block_size", STORE_BYTES.to_string()),
            ("osd_pool_default_pg_num", "8".into()),
            // All stores are on one machine, and one of them may report another one.
            ("osd_crush_chooseleaf_type", "0".into()),
            ("mon_osd_min_down_reporters", "1".into()),
            ("mon_osd_reporter_subtree_level", "osd".into()),
            ("mon_data_avail_crit", "1".into()),
        ];
        options.iter().fold("[global]\n".to_owned(), |text, (name, value)| text + name + " = " + value + "\n")
    }

    /// A script that executes this program of the tree, with its own arguments behind.
    pub(super) fn script(&self, program: &str) -> String {
        let scratch = self.folder.parent().unwrap_or(&self.folder);
        let (root, scratch) = (self.root.display(), scratch.display());
        format!("#!/bin/sh\nexec unshare --mount -- sh -c '{ENTER}' sh '{root}' '{scratch}' '{program}' \"$@\"\n")
    }

    /// A command in the tree.
    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = bound("unshare");
        command.args(["--mount", "--", "sh", "-c", ENTER, "sh"]).arg(&self.root);
        // The scratch folder of the part, with the sockets of volumes.
        command.arg(self.folder.parent().unwrap_or(&self.folder));
        command.arg(format!("CEPH_CONF={}", self.configuration().display())).args(words);
        command
    }

    /// Runs a command in the tree; returns what it prints.
    pub(super) fn run(&self, words: &[&str]) -> Result<String> {
        run(&mut self.command(words), LIMIT)?.succeeded().with_context(|| words.join(" "))
    }

    /// Starts a program that does not end by itself; its output is in a file of this name.
    pub(super) fn spawn(&self, words: &[&str], log: &Path) -> Result<Child> {
        let (out, err) = (File::create(log)?, File::options().append(true).open(log)?);
        let mut command = self.command(words);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        command.spawn().with_context(|| format!("cannot start {}", words.join(" ")))
    }

    pub(super) fn start_monitor(&mut self) -> Result<()> {
        self.monitor = Some(self.spawn(&["ceph-mon", "-i", "a", "-f"], &self.folder.join("mon.out"))?);
        Ok(())
    }

    pub(super) fn kill_monitor(&mut self) -> Result<()> {
        end(self.monitor.take().context("the monitor runs")?)
    }

    pub(super) fn start_store(&mut self, number: usize) -> Result<()> {
        let log = self.folder.join(format!("osd.{number}.out"));
        self.stores[number] = Some(self.spawn(&["ceph-osd", "-i", &number.to_string(), "-f"], &log)?);
        Ok(())
    }

    pub(super) fn kill_store(&mut self, number: usize) -> Result<()> {
        end(self.stores[number].take().context("the store runs")?)
    }

    /// Waits until so many stores are up.
    pub(super) fn until_stores(&self, count: usize) -> Result<()> {
        let until = Instant::now() + LIMIT;
        loop {
            let state = self.run(&["ceph", "osd", "stat"])?;
            if state.contains(&format!("{count} up")) {
                return Ok(());
            }
            ensure!(Instant::now() < until, "{count} stores are not up: {}", last_lines(&state, 3));
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let stores = self.stores.iter_mut().filter_map(Option::take);
        for child in stores.chain(self.manager.take()).chain(self.monitor.take()) {
            let _ = end(child);
        }
        // The disks of the stores are large.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn end(mut child: Child) -> Result<()> {
    child.kill()?;
    child.wait()?;
    Ok(())
}

fn identifier() -> Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned())
}

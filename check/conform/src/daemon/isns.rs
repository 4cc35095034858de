//! Registration with the iSNS server of Debian: while the file changes, while the server restarts, and when the daemon
//! stops.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::fixture::{Case, LIMIT, MAIN, OTHER, expect_undisturbed, lunar, started_with, until};
use crate::process;
use crate::report::skip;
use crate::target::{Driver, Lab, free_port};
use crate::tools::{expect_text, tool};

const SERVER: &str = "/usr/sbin/isnsd";
const CLIENT: &str = "/usr/sbin/isnsadm";

pub(super) const CASES: [Case; 1] = [("targets are registered with an iSNS server as long as they exist", registers)];

/// An iSNS server with a folder and a port of its own, until it is dropped.
struct Server {
    folder: PathBuf,
    address: SocketAddr,
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if the server has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(folder: &Path, address: SocketAddr) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let folder_name = folder.display();
        // Without a database, the server forgets everything when it ends.
        let text = format!(
            "SourceName = iqn.2026-01.org.example:isns\nBindAddress = {address}\n\
             ControlSocket = {folder_name}/control\nPIDFile = {folder_name}/pid\nSecurity = 0\n\
             DefaultDiscoveryDomain = 1\nRegistrationPeriod = 60\n"
        );
        std::fs::write(folder.join("isnsd.conf"), text)?;
        let client = format!("SourceName = iqn.2026-01.org.example:asker\nServerAddress = {address}\nSecurity = 0\n");
        std::fs::write(folder.join("isnsadm.conf"), client)?;
        let log = std::fs::File::options().create(true).append(true).open(folder.join("log"))?;
        let mut command = process::bound(SERVER);
        command.arg("-f").arg("-c").arg(folder.join("isnsd.conf"));
        command.stdout(Stdio::from(log.try_clone()?)).stderr(Stdio::from(log));
        let child = command.spawn().context("cannot start isnsd")?;
        let server = Self { folder: folder.to_owned(), address, child };
        until(|| std::net::TcpStream::connect(server.address).is_ok()).context("isnsd does not listen")?;
        Ok(server)
    }

    /// The entries of a type that the server lists.
    fn list(&self, kind: &str) -> String {
        let mut command = process::bound(CLIENT);
        command.arg("-c").arg(self.folder.join("isnsadm.conf")).args(["--list", kind]);
        process::run(&mut command, LIMIT).map(|output| output.text).unwrap_or_default()
    }

    /// Waits until the server lists exactly these of our targets.
    fn knows(&self, wanted: &[&str]) -> Result<()> {
        let is_as_wanted = || {
            let nodes = self.list("nodes");
            [MAIN, OTHER].iter().all(|name| nodes.contains(name) == wanted.contains(name))
        };
        until(is_as_wanted).with_context(|| format!("isnsd does not list exactly {wanted:?}:\n{}", self.list("nodes")))
    }

    /// The portal that the server lists.
    fn portal(&self) -> Result<SocketAddr> {
        let portals = self.list("portals");
        let value = |what: &str| {
            let line = portals.lines().find(|line| line.contains(what))?;
            Some(line.split_once(" = ")?.1.trim().trim_end_matches("/tcp").to_owned())
        };
        match (value("Portal IP address"), value("Portal TCP/UDP port")) {
            (Some(ip), Some(port)) => Ok(SocketAddr::new(ip.parse()?, port.parse()?)),
            _ => bail!("no portal in:\n{portals}"),
        }
    }
}

fn registers(lab: &Lab, driver: Driver) -> Result<()> {
    if !Path::new(SERVER).exists() || !Path::new(CLIENT).exists() {
        return skip("isnsd and isnsadm are missing (packages open-isns-server and open-isns-utils)");
    }
    let (address, folder) = (free_port()?, lab.scratch.join(format!("isnsd-{}", driver.name())));
    let server = Server::start(&folder, address)?;
    // By a host name, which the daemon resolves inside of its sandbox.
    let name = format!("localhost:{}", address.port());
    let isns = format!("[isns]\nserver = \"{name}\"\nentity = \"conform.example.org\"\nperiod = \"15s\"\n");
    let daemon = started_with(lab, driver, "isns", |_| isns.clone())?;
    server.knows(&[MAIN, OTHER])?;
    expect_text(&server.list("entities"), "conform.example.org")?;
    expect_text(&server.list("portal-groups"), MAIN)?;
    until(|| daemon.log_text().contains("registered 2 targets at 1 portal"))
        .context("the registration is not logged")?;
    expect_text(&lunar(lab, &daemon, &["status"])?, &format!("{name} has 2 targets at 1 portal"))?;
    // The listed portal leads to the target.
    let portal = server.portal()?;
    ensure!(portal == daemon.portal, "isnsd lists {portal}");
    expect_text(&tool("iscsi-inq", &[&format!("iscsi://{portal}/{MAIN}/0")])?, "DIRECT_ACCESS")?;
    // One target is removed and added again; the other one is not affected.
    let mut session = daemon.session(MAIN, "host", 0)?;
    let file = daemon.folder.join("wanted.toml");
    let whole = std::fs::read_to_string(daemon.file())?;
    let without = whole.replace("[target.other]\n", "[target.other]\nenabled = false\n");
    for (text, wanted) in [(&without, &[MAIN][..]), (&whole, &[MAIN, OTHER])] {
        std::fs::write(&file, text)?;
        lunar(lab, &daemon, &["apply", "--force", &file.display().to_string()])?;
        server.knows(wanted)?;
    }
    expect_undisturbed(&mut session)?;
    // An unreachable server is logged; a server without a database gets all registrations again.
    drop(server);
    until(|| daemon.log_text().contains("it cannot be reached"))
        .context("the log does not say that the server cannot be reached")?;
    expect_text(&lunar(lab, &daemon, &["status"])?, "1 trouble")?;
    let server = Server::start(&folder, address)?;
    server.knows(&[MAIN, OTHER])?;
    expect_undisturbed(&mut session)?;
    daemon.stop()?;
    server.knows(&[])?;
    ensure!(!server.list("entities").contains("conform.example.org"), "the registration is left after the stop");
    Ok(())
}

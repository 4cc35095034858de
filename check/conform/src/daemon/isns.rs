//! Registration with the iSNS server of Debian: what it knows of us, while the file changes, while it dies, and when we
//! stop.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::fixture::{Case, LIMIT, MAIN, OTHER, api, expect_undisturbed, lunar, started_with, until};
use crate::process;
use crate::report::skip;
use crate::target::{Driver, Lab, free_port};
use crate::tools::{says, tool};

const SERVER: &str = "/usr/sbin/isnsd";
const ASKER: &str = "/usr/sbin/isnsadm";

pub(super) const CASES: [Case; 1] =
    [("targets are registered with an iSNS server, as long as they are there", registers)];

/// A server with a folder and a port of its own. It ends when this drops.
struct Server {
    folder: PathBuf,
    address: SocketAddr,
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(folder: &Path, address: SocketAddr) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let place = folder.display();
        // Without a database of files it forgets everything when it ends.
        let text = format!(
            "SourceName = iqn.2026-01.org.example:isns\nBindAddress = {address}\nControlSocket = {place}/control\n\
             PIDFile = {place}/pid\nSecurity = 0\nDefaultDiscoveryDomain = 1\nRegistrationPeriod = 60\n"
        );
        std::fs::write(folder.join("isnsd.conf"), text)?;
        let asks = format!("SourceName = iqn.2026-01.org.example:asker\nServerAddress = {address}\nSecurity = 0\n");
        std::fs::write(folder.join("isnsadm.conf"), asks)?;
        let log = std::fs::File::options().create(true).append(true).open(folder.join("log"))?;
        let mut command = process::bound(SERVER);
        command.arg("-f").arg("-c").arg(folder.join("isnsd.conf"));
        command.stdout(Stdio::from(log.try_clone()?)).stderr(Stdio::from(log));
        let child = command.spawn().context("cannot start isnsd")?;
        let server = Self { folder: folder.to_owned(), address, child };
        until(|| std::net::TcpStream::connect(server.address).is_ok()).context("isnsd does not listen")?;
        Ok(server)
    }

    /// What it knows of a kind of things; nothing, if it knows none.
    fn list(&self, kind: &str) -> String {
        let mut command = process::bound(ASKER);
        command.arg("-c").arg(self.folder.join("isnsadm.conf")).args(["--list", kind]);
        process::run(&mut command, LIMIT).map(|output| output.text).unwrap_or_default()
    }

    /// Waits until its list of targets has exactly these of ours.
    fn knows(&self, wanted: &[&str]) -> Result<()> {
        let is_as_wanted = || {
            let nodes = self.list("nodes");
            [MAIN, OTHER].iter().all(|name| nodes.contains(name) == wanted.contains(name))
        };
        until(is_as_wanted).with_context(|| format!("isnsd does not know {wanted:?} alone:\n{}", self.list("nodes")))
    }

    /// A portal, as it tells those who ask.
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
    if !Path::new(SERVER).exists() || !Path::new(ASKER).exists() {
        return skip("isnsd and isnsadm are missing (packages open-isns-server and open-isns-utils)");
    }
    let (address, folder) = (free_port()?, lab.scratch.join(format!("isnsd-{}", driver.name())));
    let server = Server::start(&folder, address)?;
    // By a name, which the daemon looks up from within its jails.
    let called = format!("localhost:{}", address.port());
    let isns = format!("[isns]\nserver = \"{called}\"\nentity = \"conform.example.org\"\nperiod = \"15s\"\n");
    let daemon = started_with(lab, driver, "isns", |folder| api(folder) + &isns)?;
    server.knows(&[MAIN, OTHER])?;
    says(&server.list("entities"), "conform.example.org")?;
    says(&server.list("portal-groups"), MAIN)?;
    until(|| daemon.log_text().contains("registered 2 targets at 1 portal")).context("nothing is said of it")?;
    says(&lunar(lab, &daemon, &["status"])?, &format!("{called} has 2 targets at 1 portal"))?;
    // Who asks there finds the way in.
    let portal = server.portal()?;
    ensure!(portal == daemon.portal, "it tells {portal}");
    says(&tool("iscsi-inq", &[&format!("iscsi://{portal}/{MAIN}/0")])?, "DIRECT_ACCESS")?;
    // One target goes and comes back; the other is not touched.
    let mut session = daemon.session(MAIN, "host", 0)?;
    let file = daemon.folder.join("wanted.toml");
    let whole = std::fs::read_to_string(daemon.file())?;
    let without = whole.replace("[target.other]\n", "[target.other]\nenabled = false\n");
    for (text, wanted) in [(&without, &[MAIN][..]), (&whole, &[MAIN, OTHER])] {
        std::fs::write(&file, text)?;
        lunar(lab, &daemon, &["apply", &file.display().to_string()])?;
        server.knows(wanted)?;
    }
    expect_undisturbed(&mut session)?;
    // A server that is away is told of; one that has forgotten everything is told everything.
    drop(server);
    until(|| daemon.log_text().contains("it cannot be reached")).context("nobody is told that the server is away")?;
    says(&lunar(lab, &daemon, &["status"])?, "not all is well")?;
    let server = Server::start(&folder, address)?;
    server.knows(&[MAIN, OTHER])?;
    expect_undisturbed(&mut session)?;
    daemon.stop()?;
    server.knows(&[])?;
    ensure!(!server.list("entities").contains("conform.example.org"), "something of us is left");
    Ok(())
}

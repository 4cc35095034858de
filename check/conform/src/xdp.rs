//! Links through XDP: volumes over raw Ethernet on interfaces whose drivers hand the frames over, beside other traffic
//! of the same interfaces, and across a kill of the daemon. The interfaces are pairs of virtual ones between this
//! network namespace and another.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::process::{bound, run};
use crate::report::skip;
use crate::target::{Driver, Lab, Spec, Target};

/// The time for one case on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);
/// The time for a command of `ip` or `ethtool`.
const COMMAND_LIMIT: Duration = Duration::from_secs(20);
/// The time in which the kernel detaches the program of a process that has ended.
const DETACH_LIMIT: Duration = Duration::from_secs(5);
/// The network of a pair of interfaces, in one for documentation (RFC 5737): each driver has its own.
fn addresses(driver: Driver) -> [Ipv4Addr; 2] {
    let first = if driver == Driver::Epoll { 4 } else { 0 };
    [1, 2].map(|number| Ipv4Addr::new(203, 0, 113, first + number))
}

/// A pair of interfaces: the transport, and the MTU.
#[derive(Clone, Copy)]
struct Wire {
    kind: &'static str,
    mtu: u32,
}

const WIRES: [Wire; 3] =
    [Wire { kind: "aoe", mtu: 9000 }, Wire { kind: "fcoe", mtu: 2500 }, Wire { kind: "st", mtu: 9000 }];

pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("xdp/{}", driver.name());
    let mut made = None;
    lab.report.check(&part, "two network namespaces with interfaces", || match Network::new(driver) {
        Ok(network) => {
            made = Some(network);
            Ok(())
        }
        Err(why) => skip(format!("it needs root and ethtool: {why:#}")),
    });
    let Some(network) = made else { return Ok(()) };
    let check = |name: &str, case: &dyn Fn() -> Result<()>| lab.report.check(&part, name, case);
    let served = Served { lab, driver, network };
    for wire in WIRES {
        for link in ["xdp:", ""] {
            let kind = if link.is_empty() { "packet sockets" } else { "XDP" };
            check(&format!("{}, initiator with {kind}", wire.kind), &|| served.verified(wire, link));
        }
    }
    check("the kernel has all other frames", &|| served.beside_the_kernel());
    check("the target is killed and started again while writes are verified", &|| served.across_a_kill());
    Ok(())
}

/// The interfaces; dropping it removes them.
struct Network {
    /// The name of the other network namespace, and the begin of those of interfaces.
    name: String,
}

impl Network {
    fn new(driver: Driver) -> Result<Self> {
        // Drivers are tested at the same time. An interface has a name of 15 characters at most.
        let network = Self { name: format!("lx{:x}{}", std::process::id() & 0xf_ffff, &driver.name()[..1]) };
        tool("ip", &["netns", "add", &network.name])?;
        for Wire { kind, mtu } in WIRES {
            let (here, there, mtu) = (network.here(kind), network.there(kind), mtu.to_string());
            tool("ip", &["link", "add", &here, "type", "veth", "peer", "name", &there])?;
            // A tag that the driver stores beside its frame is lost.
            for end in [&here, &there] {
                tool("ethtool", &["-K", end, "rxvlan", "off", "txvlan", "off"])?;
                tool("ip", &["link", "set", end, "mtu", &mtu, "addrgenmode", "none"])?;
            }
            tool("ip", &["link", "set", &there, "netns", &network.name])?;
            tool("ip", &["link", "set", &here, "up"])?;
            tool("ip", &["-n", &network.name, "link", "set", &there, "up"])?;
        }
        Ok(network)
    }

    /// The interface of the target.
    fn here(&self, kind: &str) -> String {
        format!("{}{kind}t", self.name)
    }

    /// The interface of the initiator.
    fn there(&self, kind: &str) -> String {
        format!("{}{kind}i", self.name)
    }

    /// A program in the other network namespace.
    fn inside(&self, program: &Path) -> Command {
        let mut command = bound("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Whether a program is attached to the interface of the target.
    fn has_program(&self, kind: &str) -> Result<bool> {
        Ok(tool("ip", &["-d", "link", "show", &self.here(kind)])?.contains("prog/xdp"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for Wire { kind, .. } in WIRES {
            // It may be missing, if it could not be made.
            let _ = tool("ip", &["link", "del", &self.here(kind)]);
        }
        let _ = tool("ip", &["netns", "del", &self.name]);
    }
}

fn tool(program: &str, arguments: &[&str]) -> Result<String> {
    let output = run(bound(program).args(arguments), COMMAND_LIMIT)?.succeeded();
    output.with_context(|| format!("{program} {}", arguments.join(" ")))
}

/// The connection that comes.
fn accepted(listener: &TcpListener) -> Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let end = Instant::now() + COMMAND_LIMIT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(COMMAND_LIMIT))?;
                return Ok(stream);
            }
            Err(why) if why.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(why) => return Err(why).context("no connection comes over TCP"),
        }
    }
}

struct Served<'a> {
    lab: &'a Lab,
    driver: Driver,
    network: Network,
}

impl Served<'_> {
    /// A daemon, which is confined, that serves a volume on all interfaces.
    fn spec(&self) -> Result<Spec> {
        let mut spec = Spec::new(self.driver, Vec::<String>::new())?;
        let folder = self.lab.scratch.join("xdp");
        std::fs::create_dir_all(&folder)?;
        let (file, shown): (PathBuf, _) = (folder.join("lunar.toml"), folder.display());
        let [aoe, fcoe, st] = ["aoe", "fcoe", "st"].map(|kind| self.network.here(kind));
        let text = format!(
            "[server]\ncores = 1\nmemory = \"64M\"\ndriver = \"{}\"\nstate = \"{shown}/state\"\n\
             [api]\nsocket = \"{shown}/api.sock\"\n\
             [volume.disk]\nkind = \"file\"\npath = \"{shown}/disk.img\"\nsize = \"64M\"\n\
             [portal-group.p]\ntag = 1\n[portal.one]\naddress = \"{}\"\ngroup = \"p\"\n\
             [target.main]\niqn = \"iqn.2026-01.org.example:xdp\"\nportal-groups = [\"p\"]\n\
             [group.all]\ntargets = [\"main\"]\ninitiators = [\"*\"]\nluns = {{ 0 = \"disk\" }}\n\
             [aoe.x]\nlink = \"xdp:{aoe}\"\nshelf = 1\ntarget = \"main\"\n\
             [fcoe.x]\nlink = \"xdp:{fcoe}\"\ntarget = \"main\"\n\
             [st.x]\nlink = \"xdp:{st}\"\ntarget = \"main\"\n",
            self.driver.name().replace('_', "-"),
            spec.portal(),
        );
        std::fs::write(&file, text)?;
        spec.daemon = Some(file);
        Ok(spec)
    }

    /// Runs the load generator on the other side of a wire, with verification.
    fn bench(&self, kind: &str, link: &str, more: &[&str]) -> Result<()> {
        let there = self.network.there(kind);
        let url = match kind {
            "aoe" => format!("aoe:{link}{there}:1.0"),
            "fcoe" => format!("fcoe:{link}{there}"),
            _ => {
                let path = format!("/sys/class/net/{}/address", self.network.here(kind));
                let mac = std::fs::read_to_string(&path).with_context(|| path.clone())?;
                format!("st:{link}{there}@{}", mac.trim())
            }
        };
        let mut command = self.network.inside(self.lab.built()?);
        command.args(["bench", &url, "--verify", "--warmup", "0", "--timeout", "60"]).args(more);
        run(&mut command, LIMIT)?.succeeded().map(drop)
    }

    fn verified(&self, wire: Wire, link: &str) -> Result<()> {
        let target = Target::start_daemon(self.lab, &self.spec()?, Target::start)?;
        ensure!(self.network.has_program(wire.kind)?, "no program is attached: the case tests nothing");
        for (pattern, size) in [("write", "128k"), ("randrw", "4k")] {
            self.bench(wire.kind, link, &["--rw", pattern, "--bs", size, "--size", "32M", "--time", "3"])?;
        }
        target.stop()?;
        self.detached()
    }

    /// Waits until the kernel has detached all programs.
    fn detached(&self) -> Result<()> {
        let end = Instant::now() + DETACH_LIMIT;
        for Wire { kind, .. } in WIRES {
            while self.network.has_program(kind)? {
                ensure!(Instant::now() < end, "the program of {kind} is still attached");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    fn beside_the_kernel(&self) -> Result<()> {
        let target = Target::start_daemon(self.lab, &self.spec()?, Target::start)?;
        let (here, there) = (self.network.here("aoe"), self.network.there("aoe"));
        let [address, peer] = addresses(self.driver);
        tool("ip", &["address", "add", &format!("{address}/30"), "dev", &here])?;
        tool("ip", &["-n", &self.network.name, "address", "add", &format!("{peer}/30"), "dev", &there])?;
        let listener = TcpListener::bind((address, 0))?;
        let port = listener.local_addr()?.port();
        let load = ["--rw", "randrw", "--bs", "16k", "--size", "16M", "--time", "3"];
        let sent = std::thread::scope(|scope| {
            let loading = scope.spawn(|| self.bench("aoe", "xdp:", &load));
            let script = format!("head -c 1000000 /dev/zero > /dev/tcp/{address}/{port}");
            let sending = scope.spawn(move || {
                let mut command = self.network.inside("bash".as_ref());
                run(command.args(["-c", &script]), LIMIT)?.succeeded()
            });
            let mut bytes = Vec::new();
            accepted(&listener)?.read_to_end(&mut bytes)?;
            sending.join().map_err(|_| anyhow!("the sender has panicked"))??;
            loading.join().map_err(|_| anyhow!("the load has panicked"))?.context("the load")?;
            anyhow::Ok(bytes.len())
        })?;
        ensure!(sent == 1_000_000, "{sent} bytes have arrived over TCP");
        target.stop()
    }

    fn across_a_kill(&self) -> Result<()> {
        let spec = self.spec()?;
        let target = Target::start_daemon(self.lab, &spec, Target::start)?;
        let load = ["--rw", "randwrite", "--bs", "16k", "--depth", "8", "--size", "16M", "--time", "15"];
        let target = std::thread::scope(|scope| -> Result<Target> {
            let loading = scope.spawn(|| self.bench("aoe", "xdp:", &load));
            std::thread::sleep(Duration::from_secs(3));
            target.kill()?;
            self.detached()?;
            let target = Target::start_daemon(self.lab, &spec, Target::start_after_kill)?;
            loading.join().map_err(|_| anyhow!("the load has panicked"))?.context("the load")?;
            Ok(target)
        })?;
        target.stop()
    }
}

//! The command line.

use crate::access::Who;
use clap::{Args, Parser, Subcommand, ValueEnum};
use lunar_control::check::SOCKET_PATH_MAX;
use lunar_control::model::{ISCSI_PORT, VM_NQN};
use lunar_control::names::{Address, IscsiName};
use lunar_control::value::Textual;
use lunar_nvme::Tenant;
use lunar_vfio_user::serve::{Endpoint, Permission};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

/// The port that IANA gave to NVMe over fabrics.
const NVME_PORT: u16 = 4420;

/// The port that IANA gave to discovery services of NVMe over TCP.
const DISCOVERY_PORT: u16 = 8009;

/// Shares volumes with hosts and virtual machines, from user space.
#[derive(Parser, Debug)]
#[command(name = "lunar", version, about, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Share volumes over iSCSI and NVMe/TCP until Ctrl-C
    Serve(Serve),
    /// Serve what a file says, and follow the file while it changes (SIGHUP, API)
    Daemon(crate::daemon::Daemon),
    /// Share a demo disk of 1 GiB, kept under the user's home
    Demo(Demo),
    /// Load any iSCSI target and measure it
    Bench(lunar_load::Options),
    /// Print the statistics of a running `lunar serve --stats SOCKET`
    Stats {
        /// The socket that was given to --stats
        socket: PathBuf,
    },
}

/// `lunar demo`
#[derive(Args, Debug)]
pub struct Demo {
    /// How to share.
    #[command(flatten)]
    pub how: How,
}

/// `lunar serve`
#[derive(Args, Debug)]
pub struct Serve {
    /// What to share, as LUN 0, 1, ...: disk.img, disk.img:20G (made if missing), /dev/sdb, ram:1G, null:1T,
    /// cd:install.iso (a CD or DVD), removable:disk.img (a disk that initiators can eject)
    #[arg(required = true, value_name = "VOLUME")]
    pub volumes: Vec<String>,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Let other Lunar processes serve the files, too, if they say so as well: for virtual machines that move from one
    /// to the other. Only one of them may have initiators or hosts at a time, for they know nothing of each other's
    #[arg(long)]
    pub shared: bool,
    /// Bytes of a logical block: 512 or 4096
    #[arg(long, default_value_t = 512, value_parser = block_size)]
    pub block_size: u32,
    /// Answer each write when it is on the medium (no volatile write cache)
    #[arg(long, conflicts_with = "direct")]
    pub write_through: bool,
    /// Go past the page cache (O_DIRECT)
    #[arg(long)]
    pub direct: bool,
    /// Keep protection information beside the blocks (T10 PI; in disk.img.pi for disk.img). New volumes start with this
    /// type: 1, 2, 3, or 0 for none until FORMAT UNIT says otherwise; others go on as they were
    #[arg(long, value_name = "TYPE", value_parser = clap::value_parser!(u8).range(0..=3), conflicts_with = "read_only")]
    pub protection: Option<u8>,
    /// How to share.
    #[command(flatten)]
    pub how: How,
}

/// How to share, whatever is shared.
#[derive(Args, Debug)]
pub struct How {
    /// Where to listen for iSCSI, ADDRESS[:PORT]; each is a target port, a path of its own, if given several times
    /// [default: all addresses, port 3260, unless only --nvme is given]
    #[arg(long, value_name = "ADDRESS", value_parser = address::<ISCSI_PORT>)]
    pub listen: Vec<SocketAddr>,
    /// Where to listen for NVMe/TCP, ADDRESS[:PORT]; of several, each is the same path as the --listen of its number
    /// [default: all addresses, port 4420, unless only --listen is given, or who may log in]
    #[arg(long, value_name = "ADDRESS", value_parser = address::<NVME_PORT>)]
    pub nvme: Vec<SocketAddr>,
    /// Another discovery service that NVMe hosts are told of, ADDRESS[:PORT] with port 8009 unless given; may be given
    /// several times
    #[arg(long, value_name = "ADDRESS", value_parser = address::<DISCOVERY_PORT>)]
    pub referral: Vec<SocketAddr>,
    /// The address that SendTargets tells, for initiators behind NAT; one for each --listen, in their order
    /// [default: the one they came in by]
    #[arg(long, value_name = "ADDRESS", value_parser = address::<ISCSI_PORT>)]
    pub advertise: Vec<SocketAddr>,
    /// Name of the iSCSI target [default: iqn.2026-01.io.lunar:HOST.VOLUME]
    #[arg(long, value_name = "IQN", value_parser = target_name)]
    pub name: Option<String>,
    /// Name of the NVM subsystem [default: that of the target, beginning with nqn.]
    #[arg(long, value_name = "NQN", value_parser = subsystem_name)]
    pub nqn: Option<String>,
    /// Show NVMe hosts what protects blocks (--protection), as metadata behind each. Linux uses such namespaces;
    /// Windows, ESXi and firmware do not
    #[arg(long)]
    pub metadata: bool,
    /// Virtual machines.
    #[command(flatten)]
    pub machines: Machines,
    /// Who may log in.
    #[command(flatten)]
    pub who: Who,
    /// How the cores talk to the kernel
    #[arg(long, value_enum, default_value_t = Driver::Auto)]
    pub driver: Driver,
    /// Threads that serve [default: one for each processor that this process may use]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub cores: Option<u16>,
    /// Memory for data under way, per core, in MiB
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(8..=65536))]
    pub memory: u32,
    /// Microseconds that an idle core polls before it sleeps, while load pays for it; 0: never
    #[arg(long, default_value_t = 100, value_name = "MICROSECONDS")]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub spin: u16,
    /// Seconds that commands under way get to finish after Ctrl-C
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    pub drain: u16,
    /// Serve statistics on this Unix socket, as JSON
    #[arg(long, value_name = "SOCKET")]
    pub stats: Option<PathBuf>,
}

/// How the cores talk to the kernel.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub enum Driver {
    /// io_uring, or epoll where it is refused
    Auto,
    /// io_uring, or an error
    #[value(name = "io_uring", alias = "io-uring")]
    IoUring,
    /// epoll and helper threads
    Epoll,
}

impl How {
    /// Where to listen for iSCSI; all addresses unless told where to listen for anything.
    #[must_use]
    pub fn portals(&self) -> Vec<SocketAddr> {
        if self.listen.is_empty() && self.nvme.is_empty() { everywhere(ISCSI_PORT) } else { self.listen.clone() }
    }

    /// Where to listen for NVMe/TCP, likewise.
    #[must_use]
    pub fn nvme_portals(&self) -> Vec<SocketAddr> {
        let for_iscsi = self.who.is_restricted() && !self.who.names_hosts();
        let is_off = !self.listen.is_empty() || !self.nvme.is_empty() || for_iscsi;
        if is_off { self.nvme.clone() } else { everywhere(NVME_PORT) }
    }

    /// Why NVMe/TCP lets in fewer hosts than somebody may expect.
    #[must_use]
    pub fn without_nvme(&self) -> Option<&'static str> {
        if self.nvme.is_empty() {
            let is_off = self.listen.is_empty() && self.nvme_portals().is_empty();
            return is_off.then_some(
                "NVMe/TCP is off, for not everybody may log in; --nvme lets in the hosts that --initiator names",
            );
        }
        (self.who.user.is_some() && !self.who.has_keys()).then_some(
            "no host can come in over NVMe/TCP: all have to prove themselves as --user, whose secret is no key of NVMe \
             (nvme gen-dhchap-key makes one)",
        )
    }

    /// The portal groups, by their tags: one for each address to listen at, or one for all addresses.
    #[must_use]
    pub fn groups(&self) -> Vec<u16> {
        (1..=u16::MAX).take(self.listen.len().max(1)).collect()
    }

    /// What SendTargets tells: portal groups with their addresses; without one, the address that the initiator came in
    /// by.
    #[must_use]
    pub fn told(&self) -> Vec<(u16, Option<SocketAddr>)> {
        let told = |group: u16| {
            let at = usize::from(group) - 1;
            let listens = self.listen.get(at).filter(|listen| !listen.ip().is_unspecified() && listen.port() != 0);
            match self.advertise.get(at) {
                Some(&address) => Some((group, Some(address))),
                None if self.advertise.is_empty() => Some((group, listens.copied())),
                // Of several, those that have no address for outside are for nobody there.
                None => None,
            }
        };
        self.groups().into_iter().filter_map(told).collect()
    }
}

/// `--vm` and what goes with it.
#[derive(Args, Debug, Default)]
pub struct Machines {
    /// Make an NVMe controller for the virtual machine of this name (vfio-user); may be given several times
    #[arg(long = "vm", value_name = "NAME", value_parser = machine_name)]
    pub names: Vec<String>,
    /// Where virtual machines find their sockets, NAME/cntrl each [default: lunar/vm in $XDG_RUNTIME_DIR, or in /run]
    #[arg(long = "vm-folder", value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
    /// Permissions of these sockets, in octal: who may connect may use all volumes
    #[arg(long = "vm-mode", value_name = "MODE", default_value = "600", value_parser = mode)]
    pub mode: u32,
}

impl Machines {
    /// Where each virtual machine finds its controller of this subsystem.
    ///
    /// # Errors
    /// When a path is too long for a socket.
    pub fn endpoints(&self, subsystem: &str) -> anyhow::Result<Vec<Endpoint>> {
        let folder = self.folder.clone().unwrap_or_else(|| {
            let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
            runtime.map_or_else(|| PathBuf::from("/run"), PathBuf::from).join("lunar/vm")
        });
        let endpoint = |name: &String| {
            // The name that SPDK's initiator looks for in a folder.
            let path = folder.join(name).join("cntrl");
            if path.as_os_str().len() > SOCKET_PATH_MAX {
                anyhow::bail!("{} is too long for a socket: choose another --vm-folder", path.display());
            }
            let tenant = Tenant {
                host: format!("{VM_NQN}{name}").into(),
                subsystem: subsystem.into(),
                map: None,
                // The first, as it is for other hosts.
                group: 1,
                address: path.display().to_string(),
            };
            let permission = Permission { mode: self.mode, owner: None, group: None };
            Ok(Endpoint { name: name.clone(), path, permission, tenant })
        };
        self.names.iter().map(endpoint).collect()
    }
}

/// A name that is a file's as well.
fn machine_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !text.is_empty() && text.len() <= 64 && text.chars().all(plain) && !text.starts_with('.') {
        return Ok(text.to_owned());
    }
    Err("a virtual machine's name has letters, digits, '-', '_' and '.', 64 at most, and begins with no '.'".into())
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "permissions are octal, from 0 to 777: 660".into())
}

fn everywhere(port: u16) -> Vec<SocketAddr> {
    vec![(IpAddr::from([0, 0, 0, 0]), port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]
}

fn block_size(text: &str) -> Result<u32, String> {
    match text {
        "512" => Ok(512),
        "4096" | "4k" | "4K" => Ok(4096),
        _ => Err("a block is 512 or 4096 bytes".into()),
    }
}

/// ADDRESS, ADDRESS:PORT, [ADDRESS]:PORT.
fn address<const PORT: u16>(text: &str) -> Result<SocketAddr, String> {
    Address::<PORT>::of_any_port(text).map(|address| address.0)
}

fn target_name(text: &str) -> Result<String, String> {
    IscsiName::parse(text).map(|name| name.text())
}

/// NVMe Base 2.0 4.7: at most 223 bytes, and it begins with `nqn.`.
fn subsystem_name(text: &str) -> Result<String, String> {
    let plain = !text.chars().any(|c| c.is_control() || c.is_whitespace());
    if text.starts_with("nqn.") && plain && text.len() <= lunar_nvme::connect::NQN_BYTES_MAX {
        return Ok(text.to_owned());
    }
    Err("an NVMe name looks like nqn.2026-01.org.example:disk, without spaces, 223 bytes at most".into())
}

/// The name of the NVM subsystem that goes with a target of this name.
#[must_use]
pub fn subsystem_of(target: &str) -> String {
    match target.strip_prefix("iqn.") {
        Some(rest) => format!("nqn.{rest}"),
        None => format!("nqn.2026-01.io.lunar:{target}"),
    }
}

/// The name of the target that shares `volume` on this host: stable, and different on different hosts.
#[must_use]
pub fn default_name(host: &str, volume: &str) -> String {
    let clean = |text: &str| -> String {
        let short = text.to_lowercase().chars().take(64).collect::<String>();
        let dashes: String =
            short.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        dashes.trim_matches(['-', '.']).to_owned()
    };
    let volume = volume.strip_prefix("cd:").or_else(|| volume.strip_prefix("removable:")).unwrap_or(volume);
    let stem = volume.rsplit('/').next().unwrap_or(volume);
    let stem = stem.split(':').next().filter(|s| !s.is_empty()).unwrap_or("volume");
    let ending = [".img", ".raw", ".iso"].iter().find_map(|ending| stem.strip_suffix(ending));
    let stem = ending.unwrap_or(stem);
    let host = clean(host.split('.').next().unwrap_or(host));
    format!("iqn.2026-01.io.lunar:{}.{}", if host.is_empty() { "host" } else { &host }, clean(stem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_to_listen_at_is_a_portal_group() {
        let how = |line: &str| {
            let words = ["lunar", "serve", "ram:1M"].into_iter().chain(line.split_whitespace());
            match Cli::try_parse_from(words).expect("a command line").command {
                Command::Serve(serve) => serve.how,
                other => panic!("{other:?}"),
            }
        };
        let told = |line: &str| {
            let portals = how(line).told();
            let address =
                |address: &Option<SocketAddr>| address.map_or_else(|| "-".to_owned(), |address| address.to_string());
            portals.iter().map(|(group, at)| format!("{},{group}", address(at))).collect::<Vec<_>>().join(" ")
        };
        assert_eq!((told("").as_str(), how("").portals().len()), ("-,1", 2));
        assert_eq!(told("--listen 192.0.2.1"), "192.0.2.1:3260,1");
        let two = "--listen 192.0.2.1 --listen 0.0.0.0:99";
        assert_eq!((told(two).as_str(), how(two).groups()), ("192.0.2.1:3260,1 -,2", vec![1, 2]));
        assert_eq!(told(&format!("{two} --advertise 198.51.100.7")), "198.51.100.7:3260,1");
        assert_eq!(
            told(&format!("{two} --advertise 198.51.100.7 --advertise 198.51.100.8:5")),
            "198.51.100.7:3260,1 198.51.100.8:5,2"
        );
    }

    #[test]
    fn names_by_rfc_7143() {
        assert!(target_name("iqn.2026-01.io.lunar:a-b.c:d").is_ok());
        for bad in ["disk", "iqn.2026-01.io.lunar:Disk", "iqn.2026 x", &format!("iqn.{}", "a".repeat(220))] {
            assert!(target_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn whoever_names_one_face_gets_that_one() {
        use clap::Parser;
        for (arguments, iscsi, nvme) in [
            (&["lunar", "demo"][..], 2, 2),
            (&["lunar", "demo", "--listen", "127.0.0.1"], 1, 0),
            (&["lunar", "demo", "--nvme", "127.0.0.1"], 0, 1),
            (&["lunar", "demo", "--nvme", "::1", "--listen", "127.0.0.1:1"], 1, 1),
            // NVMe/TCP is no back door.
            (&["lunar", "demo", "--initiator", "iqn.x:*"], 2, 0),
            (&["lunar", "demo", "--map", "iqn.x=0:0"], 2, 0),
            (&["lunar", "demo", "--initiator", "nqn.x:*", "--nvme", "::1"], 0, 1),
            (&["lunar", "demo", "--dhchap-hash", "sha384,sha256", "--dhchap-group", "null"], 2, 2),
        ] {
            let Command::Demo(demo) = Cli::parse_from(arguments).command else { panic!("it is a demo") };
            assert_eq!((demo.how.portals().len(), demo.how.nvme_portals().len()), (iscsi, nvme), "{arguments:?}");
            assert_eq!(demo.how.without_nvme().is_some(), iscsi == 2 && nvme == 0);
        }
        assert_eq!(address::<NVME_PORT>("::1").map(|a| a.to_string()).as_deref(), Ok("[::1]:4420"));
        assert_eq!(subsystem_of("iqn.2026-01.io.lunar:a.b"), "nqn.2026-01.io.lunar:a.b");
        assert!(subsystem_name(&subsystem_of("eui.0123456789abcdef")).is_ok() && subsystem_name("iqn.x").is_err());
    }

    #[test]
    fn virtual_machines_have_their_sockets() {
        let machines = Machines { names: vec!["a".into()], folder: Some("/x".into()), mode: 0o660 };
        let endpoints = machines.endpoints("nqn.x").expect("short");
        assert_eq!((endpoints[0].path.to_str(), endpoints[0].permission.mode), (Some("/x/a/cntrl"), 0o660));
        let long = Machines { folder: Some("/x".repeat(60).into()), ..machines };
        assert!(long.endpoints("nqn.x").is_err());
        assert_eq!((mode("660"), machine_name("web-1.a_b")), (Ok(0o660), Ok("web-1.a_b".into())));
        assert!(mode("1777").is_err() && mode("8").is_err());
        for bad in ["", "..", "a/b", "a b", &"a".repeat(65)] {
            assert!(machine_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn default_names_are_names() {
        for (host, volume, name) in [
            ("box.example", "/srv/Disk 1.img:20G", "iqn.2026-01.io.lunar:box.disk-1"),
            ("", "null:1T", "iqn.2026-01.io.lunar:host.null"),
            ("box", "cd:/srv/Install.iso", "iqn.2026-01.io.lunar:box.install"),
            ("box", "removable:disk.img:1G", "iqn.2026-01.io.lunar:box.disk"),
            ("a_b", "/dev/sdb", "iqn.2026-01.io.lunar:a-b.sdb"),
        ] {
            assert_eq!(default_name(host, volume), name);
            assert!(target_name(name).is_ok());
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}

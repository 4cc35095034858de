//! The command line of a program: its own options, and those that the fronts of its registry declare in their folders.

use crate::access::Who;
use crate::registry::Program;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use lunar_control::common_sections::ISCSI_PORT;
use lunar_control::names::IscsiName;
use lunar_control::value::{Textual, ValueError};
use lunar_engine::command_line::{FrontOptions, FrontRequest, address};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Serves volumes to hosts and virtual machines, from user space.
#[derive(Parser, Debug)]
#[command(name = "lunar", version, about, propagate_version = true)]
struct Cli {
    /// The command to run.
    #[command(subcommand)]
    command: CliCommand,
}

/// The commands, with the options that belong to no front.
#[derive(Subcommand, Debug)]
enum CliCommand {
    /// Serve volumes over iSCSI and NVMe/TCP until Ctrl-C
    Serve(Serve),
    /// Serve the configuration in a file, and apply its changes (SIGHUP, API)
    Daemon(crate::daemon::Daemon),
    /// Serve a demo disk of 1 GiB, kept under the user's home
    Demo,
    /// Load a volume of a target and measure it
    Bench(Box<lunar_load::Options>),
    /// Serve a disk of [vhost.NAME] as a disk of this machine (Linux ublk), in a process of its own
    #[command(name = "ublk-server")]
    UblkServer(Box<lunar_ublk_server::Options>),
    /// Open files for a daemon, which starts this command
    #[command(name = crate::file_helper::COMMAND, hide = true)]
    FileHelper {
        /// The folders below /etc with secrets
        secrets: Vec<PathBuf>,
    },
    /// Start the processes of images of Ceph for a daemon, which starts this command
    #[command(name = crate::program_helper::COMMAND, hide = true)]
    ProgramHelper {
        /// The files outside of /etc/ceph that these processes may read
        files: Vec<PathBuf>,
    },
    /// Print the statistics of a running `lunar serve --stats SOCKET`
    Stats {
        /// The socket that was given to --stats
        socket: PathBuf,
    },
}

/// The command to run.
#[derive(Debug)]
pub enum Command {
    /// Serves the volumes of the command line.
    Serve(Serve, How),
    /// Serves the configuration in a file.
    Daemon(crate::daemon::Daemon),
    /// Serves a demo disk.
    Demo(How),
    /// Loads a target and measures it.
    Bench(Box<lunar_load::Options>),
    /// Serves a disk of a daemon as a disk of this machine.
    UblkServer(Box<lunar_ublk_server::Options>),
    /// Opens files for a daemon, which started this process.
    FileHelper {
        /// The folders below `/etc` with secrets.
        secrets: Vec<PathBuf>,
    },
    /// Starts processes of images of Ceph for a daemon, which started this process.
    ProgramHelper {
        /// The files outside of `/etc/ceph` that these processes may read.
        files: Vec<PathBuf>,
    },
    /// Prints the statistics that are served at a socket.
    Stats {
        /// The path of the socket.
        socket: PathBuf,
    },
}

/// The command line of a program, with the options of its fronts.
#[must_use]
pub fn command(program: &'static Program) -> clap::Command {
    let with_how = |command| How::augment_args(options(program).fold(command, |command, front| front.declare(command)));
    Cli::command().mut_subcommand("serve", with_how).mut_subcommand("demo", with_how)
}

/// The command that the arguments of [`command`] name.
///
/// # Errors
/// Why the arguments are none of this command line.
pub fn read(program: &'static Program, matches: &ArgMatches) -> Result<Command, clap::Error> {
    let how = || How::read(program, matches.subcommand().map_or(matches, |(_, inner)| inner));
    Ok(match Cli::from_arg_matches(matches)?.command {
        CliCommand::Serve(serve) => Command::Serve(serve, how()?),
        CliCommand::Daemon(daemon) => Command::Daemon(daemon),
        CliCommand::Demo => Command::Demo(how()?),
        CliCommand::Bench(options) => Command::Bench(options),
        CliCommand::UblkServer(options) => Command::UblkServer(options),
        CliCommand::FileHelper { secrets } => Command::FileHelper { secrets },
        CliCommand::ProgramHelper { files } => Command::ProgramHelper { files },
        CliCommand::Stats { socket } => Command::Stats { socket },
    })
}

/// Reads the arguments of a process; the first one is its name.
///
/// # Errors
/// Why they are no arguments of this program, or the text that they ask for (`--help`).
pub fn parse<W: Into<OsString> + Clone>(
    program: &'static Program,
    words: impl IntoIterator<Item = W>,
) -> Result<Command, clap::Error> {
    read(program, &command(program).try_get_matches_from(words)?)
}

/// `lunar serve`
#[derive(Args, Debug)]
pub struct Serve {
    /// The volumes to serve, as LUN 0, 1, ...: disk.img, disk.img:20G (created if missing), /dev/sdb, ram:1G, null:1T,
    /// cd:install.iso (a CD or DVD), removable:disk.img (a disk that initiators can eject), rbd:pool/image (an image of
    /// Ceph), zvol:tank/disk (a volume of ZFS)
    #[arg(required_unless_present = "device", value_name = "VOLUME")]
    pub volumes: Vec<String>,
    /// A SCSI device of this machine to serve, after the volumes: a disk, tape drive, changer or any other, by its
    /// generic node (/dev/sg3) or by a stable path (/dev/tape/by-id/..., /dev/disk/by-id/...)
    #[arg(long, value_name = "PATH")]
    pub device: Vec<String>,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Other Lunar processes with the same option may serve the files, too: for virtual machines that move from one to
    /// the other. Only one of them may have initiators or hosts at a time, because none knows the others' reservations
    #[arg(long)]
    pub shared: bool,
    /// Bytes of a logical block: 512 or 4096
    #[arg(long, default_value_t = 512, value_parser = block_size)]
    pub block_size: u32,
    /// Answer each write when it is on the medium (no volatile write cache)
    #[arg(long, conflicts_with = "direct")]
    pub write_through: bool,
    /// Bypass the page cache (O_DIRECT)
    #[arg(long)]
    pub direct: bool,
    /// Store protection information of each block (T10 PI; in disk.img.pi for disk.img). New volumes start with this
    /// type: 1, 2, 3, or 0 for none until FORMAT UNIT selects a type; existing volumes keep their type
    #[arg(long, value_name = "TYPE", value_parser = clap::value_parser!(u8).range(0..=3), conflicts_with = "read_only")]
    pub protection: Option<u8>,
}

/// Options that apply to all volumes.
#[derive(Args, Debug)]
pub struct How {
    /// The options of the fronts, in the order of the registry.
    #[arg(skip)]
    pub fronts: Vec<Box<dyn FrontRequest>>,
    /// The address that discovery reports, for clients behind NAT; one for each --listen, in their order [default: the
    /// address to which the client connected]
    #[arg(long, value_name = "ADDRESS", value_parser = address::parse::<ISCSI_PORT>)]
    pub advertise: Vec<SocketAddr>,
    /// Name of the iSCSI target [default: iqn.2026-01.io.lunar:HOST.VOLUME]
    #[arg(long, value_name = "IQN", value_parser = target_name)]
    pub name: Option<String>,
    /// Name of the NVM subsystem [default: that of the target, beginning with nqn.]
    #[arg(long, value_name = "NQN", value_parser = subsystem_name)]
    pub nqn: Option<String>,
    /// Show NVMe hosts the protection information of blocks (--protection), as metadata. Linux uses such namespaces;
    /// Windows, ESXi and firmware do not
    #[arg(long)]
    pub metadata: bool,
    /// Which clients may log in.
    #[command(flatten)]
    pub who: Who,
    /// How the cores use the kernel
    #[arg(long, value_enum, default_value_t = Driver::Auto)]
    pub driver: Driver,
    /// Threads that serve [default: one for each processor that this process may use]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub cores: Option<u16>,
    /// Memory for data in transfer, per core, in MiB
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(8..=65536))]
    pub memory: u32,
    /// Microseconds that an idle core polls before it sleeps, while commands keep coming; 0: the core does not poll,
    /// and sleeps at once
    #[arg(long, default_value_t = 100, value_name = "MICROSECONDS")]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub spin: u16,
    /// Seconds that commands in progress get to finish after Ctrl-C
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    pub drain: u16,
    /// Serve statistics on this Unix socket, as JSON
    #[arg(long, value_name = "SOCKET")]
    pub stats: Option<PathBuf>,
}

/// How the cores use the kernel.
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

/// The options of the fronts of a program.
fn options(program: &'static Program) -> impl Iterator<Item = &'static dyn FrontOptions> {
    program.registry.fronts.iter().filter_map(|front| front.options)
}

impl How {
    fn read(program: &'static Program, matches: &ArgMatches) -> Result<Self, clap::Error> {
        let fronts = options(program).map(|options| options.read(matches)).collect::<Result<_, _>>()?;
        Ok(Self { fronts, ..Self::from_arg_matches(matches)? })
    }
}

impl Driver {
    /// The word of the driver in the configuration.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::IoUring => "io-uring",
            Self::Epoll => "epoll",
        }
    }
}

/// The prefix of a volume text that names a SCSI device.
const DEVICE: &str = "scsi:";

impl Serve {
    /// The texts of all volumes.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        let devices = self.device.iter().map(|path| format!("{DEVICE}{path}"));
        self.volumes.iter().cloned().chain(devices).collect()
    }
}

fn block_size(text: &str) -> Result<u32, String> {
    match text {
        "512" => Ok(512),
        "4096" | "4k" | "4K" => Ok(4096),
        _ => Err("a block is 512 or 4096 bytes".into()),
    }
}

fn target_name(text: &str) -> Result<String, ValueError> {
    IscsiName::parse(text).map(|name| name.text())
}

/// NVMe Base 2.0 4.5: at most 223 bytes, and it begins with `nqn.`.
fn subsystem_name(text: &str) -> Result<String, String> {
    let plain = !text.chars().any(|c| c.is_control() || c.is_whitespace());
    if text.starts_with("nqn.") && plain && text.len() <= lunar_nvme::connect::NQN_BYTES_MAX {
        return Ok(text.to_owned());
    }
    Err("an NVMe name looks like nqn.2026-01.org.example:disk, without spaces, 223 bytes at most".into())
}

/// The name of the NVM subsystem of a target with this name.
#[must_use]
pub fn subsystem_of(target: &str) -> String {
    match target.strip_prefix("iqn.") {
        Some(rest) => format!("nqn.{rest}"),
        None => format!("nqn.2026-01.io.lunar:{target}"),
    }
}

/// The name of the target that serves `volume` on this host: stable, and different on different hosts.
#[must_use]
pub fn default_name(host: &str, volume: &str) -> String {
    let clean = |text: &str| -> String {
        let short = text.to_lowercase().chars().take(64).collect::<String>();
        let dashes: String =
            short.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        dashes.trim_matches(['-', '.']).to_owned()
    };
    let volume = ["cd:", "removable:", DEVICE].iter().find_map(|prefix| volume.strip_prefix(prefix)).unwrap_or(volume);
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
    use crate::registry::PROGRAM;

    #[test]
    fn names_by_rfc_7143() {
        assert!(target_name("iqn.2026-01.io.lunar:a-b.c:d").is_ok());
        for bad in ["disk", "iqn.2026-01.io.lunar:Disk", "iqn.2026 x", &format!("iqn.{}", "a".repeat(220))] {
            assert!(target_name(bad).is_err(), "{bad}");
        }
        assert_eq!(subsystem_of("iqn.2026-01.io.lunar:a.b"), "nqn.2026-01.io.lunar:a.b");
        assert!(subsystem_name(&subsystem_of("eui.0123456789abcdef")).is_ok() && subsystem_name("iqn.x").is_err());
    }

    #[test]
    fn default_names_are_names() {
        for (host, volume, name) in [
            ("box.example", "/srv/Disk 1.img:20G", "iqn.2026-01.io.lunar:box.disk-1"),
            ("", "null:1T", "iqn.2026-01.io.lunar:host.null"),
            ("box", "cd:/srv/Install.iso", "iqn.2026-01.io.lunar:box.install"),
            ("box", "removable:disk.img:1G", "iqn.2026-01.io.lunar:box.disk"),
            ("a_b", "/dev/sdb", "iqn.2026-01.io.lunar:a-b.sdb"),
            ("box", "scsi:/dev/sg3", "iqn.2026-01.io.lunar:box.sg3"),
            ("box", "nvme:/dev/nvme0n1p2", "iqn.2026-01.io.lunar:box.nvme0n1p2"),
        ] {
            assert_eq!(default_name(host, volume), name);
            assert!(target_name(name).is_ok());
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        command(&PROGRAM).debug_assert();
    }
}

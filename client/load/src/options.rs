//! The command-line options of a load.

use crate::model::Store;
use crate::url::Url;
use clap::{Args, ValueEnum};
use lunar_core::access::{Account, Secret};
use lunar_iscsi::chap::{Algorithm, Challenge};
use lunar_iscsi_initiator::cdb::TAPE_BLOCK_MAX;
use lunar_iscsi_initiator::chap::{Chap, MutualChap};
use lunar_iscsi_initiator::config::{DigestOffer, Offer};
use lunar_iscsi_initiator::secret;
use lunar_nvme::auth::host::Host;
use lunar_nvme::auth::key::Key;
use rustix::rand::{GetRandomFlags, getrandom};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// The highest queue depth: more than the command window of any known target.
const DEPTH_MAX: i64 = 4096;
/// The most sessions of one run. Each takes a socket; the soft limit of open files is raised to the hard one.
const SESSIONS_MAX: i64 = 65_536;
/// The most I/O queues of one controller: more than any known controller has.
const QUEUES_MAX: i64 = 1024;
/// The default offers of an iSCSI session.
const R2T_DEFAULT: u32 = 8;
const BURST_DEFAULT: u32 = 16_776_192;
const SEGMENT_DEFAULT: u32 = 256 << 10;
const INITIATOR_DEFAULT: &str = "iqn.2026-01.io.lunar:bench";
/// Help headings for the options of one protocol.
const ISCSI: &str = "iSCSI";
const NVME: &str = "NVMe";
const NVME_RDMA: &str = "NVMe over RDMA";
const VFIO_USER: &str = "vfio-user";
/// The help heading for the options of a prediction.
const PREDICTION: &str = "Prediction";
/// The longest command, in bytes: the longest transfer of READ (10) with blocks of 512 bytes.
const BLOCK_SIZE_MAX: u64 = 32 << 20;

/// The access pattern of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Shape {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Sequential reads and writes, mixed.
    Rw,
    /// Random reads.
    Randread,
    /// Random writes.
    Randwrite,
    /// Random reads and writes, mixed.
    Randrw,
}

impl Shape {
    /// Whether the blocks are chosen at random.
    #[must_use]
    pub fn is_random(self) -> bool {
        matches!(self, Self::Randread | Self::Randwrite | Self::Randrw)
    }

    /// Whether the load consists of reads only.
    #[must_use]
    pub fn is_read_only(self) -> bool {
        matches!(self, Self::Read | Self::Randread)
    }

    /// Whether the load consists of writes only.
    #[must_use]
    pub fn is_write_only(self) -> bool {
        matches!(self, Self::Write | Self::Randwrite)
    }
}

/// The value list that is offered for a digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum DigestChoice {
    /// `None`: no digest.
    None,
    /// `None,CRC32C`: a digest if the target prefers one.
    Allow,
    /// `CRC32C,None`: a digest if the target supports it.
    Prefer,
    /// `CRC32C`: the login fails without a digest.
    Crc32c,
}

impl DigestChoice {
    /// Whether the digest is requested in NVMe/TCP, which offers no choice.
    #[must_use]
    pub fn is_wanted(self) -> bool {
        matches!(self, Self::Prefer | Self::Crc32c)
    }
}

impl From<DigestChoice> for DigestOffer {
    fn from(choice: DigestChoice) -> Self {
        match choice {
            DigestChoice::None => Self::Never,
            DigestChoice::Allow => Self::IfWanted,
            DigestChoice::Prefer => Self::Prefer,
            DigestChoice::Crc32c => Self::Require,
        }
    }
}

/// How the doorbells of a vfio-user controller are rung.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Doorbells {
    /// With shadow doorbells in shared memory, as Linux does.
    Shadow,
    /// By writing to the mapped doorbell page, which the controller polls, as SPDK does.
    Mapped,
    /// With one message for each doorbell.
    #[value(name = "told")]
    Messages,
}

/// The options of a prediction.
#[derive(Args, Clone, Debug)]
pub struct Prediction {
    /// Send no load: predict the load of the other options for a volume of this kind
    #[arg(long, help_heading = PREDICTION, value_enum, value_name = "STORE")]
    pub predict: Option<Store>,
    /// Latency of the device in the store, in microseconds
    #[arg(long, help_heading = PREDICTION, requires = "predict", default_value_t = 0.0, value_name = "US")]
    pub store_wait: f64,
    /// Round trip of the network beyond that of the loopback, in microseconds
    #[arg(long, help_heading = PREDICTION, requires = "predict", default_value_t = 0.0, value_name = "US")]
    pub network: f64,
    /// Rate of the link, in Gbit/s [default: no limit]
    #[arg(long, help_heading = PREDICTION, requires = "predict", default_value_t = 0.0, value_name = "RATE")]
    #[arg(hide_default_value = true)]
    pub link: f64,
    /// Serving cores
    #[arg(long, help_heading = PREDICTION, requires = "predict", default_value_t = 1, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub cores: u32,
    /// Machines that send the load; 0: they are fast enough
    #[arg(long, help_heading = PREDICTION, requires = "predict", default_value_t = 1, value_name = "N")]
    pub hosts: u32,
    /// The processor is so many times as fast as that on which the model was measured
    #[arg(long, help_heading = PREDICTION, requires = "predict", default_value_t = 1.0, value_name = "FACTOR")]
    pub speed: f64,
}

/// The options of a load on one unit of a target.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The URL of the unit; without a target name it stands for the first target that discovery returns.
    #[arg(help = "iscsi://HOST[:PORT][/TARGET-NAME[/LUN]], nvme-tcp://HOST[:PORT][/NQN[/NAMESPACE]], \
                  nvme-rdma://HOST[:PORT][/NQN[/NAMESPACE]], vfio-user:/SOCKET[#NAMESPACE], vhost-user:/SOCKET, \
                  vhost-scsi:/SOCKET[#LUN], aoe:LINK:SHELF.SLOT, fcoe:LINK[,fabric][@WWPN][#LUN], \
                  st:udp:ADDRESS:PORT[#LUN] or st:LINK@MAC[#LUN]; without a name the first target that discovery \
                  returns")]
    pub url: Url,
    /// Access pattern
    #[arg(long, value_enum, default_value = "randread", value_name = "PATTERN")]
    pub rw: Shape,
    /// Percentage of reads in mixed patterns
    #[arg(long, default_value_t = 70, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub mix: u8,
    /// Bytes per command
    #[arg(long, default_value = "4k", value_name = "BYTES", value_parser = size_of_command)]
    pub bs: u32,
    /// Commands that each session or queue keeps outstanding, as far as the command window allows. A command starts
    /// when another one completes, so latencies do not include commands that a stall kept from starting
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=DEPTH_MAX))]
    pub depth: u32,
    /// Sessions, or I/O queues of one controller, under load, served by one thread
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=SESSIONS_MAX))]
    pub sessions: u32,
    /// Sessions, or controllers, that log in and stay idle
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(..=SESSIONS_MAX))]
    pub idle_sessions: u32,
    /// Pause after N commands, like an intermittent load; the report has the latencies of the first commands after a
    /// pause
    #[arg(long, value_name = "N", requires = "rest", value_parser = clap::value_parser!(u64).range(1..))]
    pub burst: Option<u64>,
    /// Length of each pause, in seconds
    #[arg(long, value_name = "SECONDS", requires = "burst", value_parser = seconds)]
    pub rest: Option<Duration>,
    /// Measured time, in seconds
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = seconds)]
    pub time: Duration,
    /// Load before the measurement, in seconds
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = seconds)]
    pub warmup: Duration,
    /// Give up after so many seconds without an answer of the target
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Duration,
    /// Start of the region
    #[arg(long, default_value = "0", value_name = "BYTES", value_parser = size)]
    pub offset: u64,
    /// Length of the region [default: up to the end of the unit; with --verify at most 1 GiB]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub size: Option<u64>,
    /// Write with FUA (force unit access): writes are durable when they are acknowledged
    #[arg(long)]
    pub fua: bool,
    /// Send SYNCHRONIZE CACHE or Flush after every N writes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub flush_every: Option<u64>,
    /// Write blocks that contain their LBA, the number of the write and a checksum; check all blocks that are read, and
    /// read back all that were written. A read-only load checks what an earlier run with the same --seed wrote
    #[arg(long)]
    pub verify: bool,
    /// Seed of the random numbers and of the written patterns
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Record every acknowledged write in a new file, for --check-ack-log. The run then succeeds if the connection is
    /// lost
    #[arg(long, value_name = "FILE", conflicts_with = "check_ack_log")]
    pub ack_log: Option<PathBuf>,
    /// Send no load: check that the unit holds the writes of FILE that had FUA or were followed by a SYNCHRONIZE CACHE
    #[arg(long, value_name = "FILE")]
    pub check_ack_log: Option<PathBuf>,
    /// With --check-ack-log: check all acknowledged writes (for a target whose process was killed, not its host)
    #[arg(long, requires = "check_ack_log")]
    pub all: bool,
    /// Offer for HeaderDigest
    #[arg(long, value_enum, default_value = "none", value_name = "CHOICE")]
    pub header_digest: DigestChoice,
    /// Offer for DataDigest
    #[arg(long, value_enum, default_value = "none", value_name = "CHOICE")]
    pub data_digest: DigestChoice,
    /// Offer ImmediateData=No
    #[arg(long, help_heading = ISCSI)]
    pub no_immediate_data: bool,
    /// Offer InitialR2T=Yes
    #[arg(long, help_heading = ISCSI)]
    pub initial_r2t: bool,
    /// Offered MaxOutstandingR2T
    #[arg(long, help_heading = ISCSI, default_value_t = R2T_DEFAULT, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub max_outstanding_r2t: u32,
    /// Offered MaxBurstLength
    #[arg(long, help_heading = ISCSI, default_value_t = BURST_DEFAULT, value_name = "BYTES", value_parser = length)]
    pub max_burst_length: u32,
    /// Offered FirstBurstLength
    #[arg(long, help_heading = ISCSI, default_value_t = SEGMENT_DEFAULT, value_name = "BYTES", value_parser = length)]
    pub first_burst_length: u32,
    /// Declared MaxRecvDataSegmentLength
    #[arg(long, help_heading = ISCSI, default_value_t = SEGMENT_DEFAULT, value_name = "BYTES", value_parser = length)]
    pub max_recv_data_segment_length: u32,
    /// Name of this initiator
    #[arg(long, help_heading = ISCSI, default_value = INITIATOR_DEFAULT, value_name = "IQN")]
    pub initiator_name: String,
    /// Authenticate this initiator with CHAP as this user
    #[arg(long, help_heading = ISCSI, value_name = "NAME", requires = "secret_file")]
    pub user: Option<String>,
    /// File with the secret of the user
    #[arg(long, help_heading = ISCSI, value_name = "FILE", requires = "user", value_parser = secret::from_file)]
    pub secret_file: Option<Secret>,
    /// Authenticate the target with mutual CHAP: its user name
    #[arg(long, help_heading = ISCSI, value_name = "NAME", requires_all = ["mutual_secret_file", "user"])]
    pub mutual_user: Option<String>,
    /// File with the secret of the target
    #[arg(long, help_heading = ISCSI, value_name = "FILE", requires = "mutual_user", value_parser = secret::from_file)]
    pub mutual_secret_file: Option<Secret>,
    /// CHAP algorithms to offer, in order of preference: 5 is MD5, 6 SHA-1, 7 SHA-256, 8 SHA3-256
    #[arg(long, help_heading = ISCSI, value_name = "NUMBERS", value_delimiter = ',', default_value = "8,7,6,5")]
    #[arg(value_parser = clap::value_parser!(u8).range(5..=8))]
    pub chap: Vec<u8>,
    /// NQN of this host
    #[arg(long, help_heading = NVME, default_value = "nqn.2026-01.io.lunar:bench", value_name = "NQN")]
    pub host_nqn: String,
    /// Authenticate this host with DH-HMAC-CHAP: file with its key, as nvme gen-dhchap-key writes it
    #[arg(long, help_heading = NVME, value_name = "FILE", value_parser = key)]
    pub host_key: Option<Key>,
    /// Authenticate the subsystem too: file with its key
    #[arg(long, help_heading = NVME, value_name = "FILE", requires = "host_key", value_parser = key)]
    pub subsystem_key: Option<Key>,
    /// Request submission queue flow control (completions report the queue head)
    #[arg(long, help_heading = NVME)]
    pub flow_control: bool,
    /// I/O queues of each idle controller
    #[arg(long, help_heading = NVME, default_value_t = 1, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(..=QUEUES_MAX))]
    pub idle_queues: u16,
    /// Own address: its UDP port 4791 must be free, as 127.0.0.2 for a target at 127.0.0.1 [default: that of the route]
    #[arg(long, help_heading = NVME_RDMA, value_name = "ADDRESS")]
    pub source: Option<IpAddr>,
    /// How doorbells are rung
    #[arg(long, help_heading = VFIO_USER, value_enum, default_value = "shadow", value_name = "MODE")]
    pub doorbells: Doorbells,
    /// CPU to run on
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Poll the sockets or queues instead of sleeping
    #[arg(long)]
    pub spin: bool,
    /// Process ID of the target, to report its CPU time
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Statistics socket of a Lunar target, to report its busy time
    #[arg(long, value_name = "SOCKET")]
    pub stats: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
    /// List the targets at the URL's portal and exit
    #[arg(long)]
    pub list: bool,
    /// The prediction of a load.
    #[command(flatten)]
    pub prediction: Prediction,
}

/// Distinguishes the sessions of this run from those of other runs.
static RUN: OnceLock<[u8; 2]> = OnceLock::new();

impl Options {
    /// The login parameters that session number `session` offers.
    #[must_use]
    pub fn offer(&self, target: Option<String>, session: u32) -> Offer {
        // ISID type "random" (11.12.5): runs must not reinstate each other's sessions, even if both run as process 1
        // of a container.
        let ([r1, r0], [_, s2, s1, s0]) = (*RUN.get_or_init(random), session.to_be_bytes());
        let isid = [0x80, r1, r0, s2, s1, s0];
        Offer {
            initiator: self.initiator_name.clone(),
            target,
            isid,
            chap: self.chap(),
            header_digest: self.header_digest.into(),
            data_digest: self.data_digest.into(),
            max_recv_data_segment_length: self.max_recv_data_segment_length,
            max_burst_length: self.max_burst_length,
            first_burst_length: self.first_burst_length.min(self.max_burst_length),
            initial_r2t: self.initial_r2t,
            immediate_data: !self.no_immediate_data,
            max_outstanding_r2t: self.max_outstanding_r2t,
        }
    }
}

impl Options {
    /// Checks that all options apply to iSCSI.
    ///
    /// # Errors
    /// A message that names the option that does not.
    pub fn check_for_iscsi(&self) -> Result<(), String> {
        let given = [
            ("--host-key", self.host_key.is_some()),
            ("--flow-control", self.flow_control),
            ("--idle-queues", self.idle_queues != 1),
            ("--doorbells", self.doorbells != Doorbells::Shadow),
            ("--source", self.source.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(format!("{option} is for NVMe")),
            None => Ok(()),
        }
    }

    /// Checks that all options apply to a tape, which is read or written from its beginning by one session.
    ///
    /// # Errors
    /// A message that names the option that does not.
    pub fn check_for_tape(&self) -> Result<(), String> {
        let refused = [
            ("--rw other than read and write", !matches!(self.rw, Shape::Read | Shape::Write)),
            ("--sessions", self.sessions != 1),
            ("--offset", self.offset != 0),
            ("--size", self.size.is_some()),
            ("--fua", self.fua),
            ("--verify", self.verify),
            ("--ack-log", self.ack_log.is_some() || self.check_ack_log.is_some()),
        ];
        match refused.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(format!("the unit is a tape: {option} does not apply")),
            None if self.bs > TAPE_BLOCK_MAX => Err(format!("a block of a tape has at most {TAPE_BLOCK_MAX} bytes")),
            None => Ok(()),
        }
    }

    /// Checks that all options apply to NVMe over RDMA.
    ///
    /// # Errors
    /// A message that names the option that does not.
    pub fn check_for_nvme_rdma(&self) -> Result<(), String> {
        Self { source: None, ..self.clone() }.check_for_nvme()?;
        match self.header_digest.is_wanted() || self.data_digest.is_wanted() {
            true => Err("--header-digest and --data-digest are for TCP: each packet of RDMA has a check".to_owned()),
            false => Ok(()),
        }
    }

    /// Checks that all options apply to NVMe.
    ///
    /// # Errors
    /// A message that names the option that does not.
    pub fn check_for_nvme(&self) -> Result<(), String> {
        let given = [
            ("--no-immediate-data", self.no_immediate_data),
            ("--initial-r2t", self.initial_r2t),
            ("--max-outstanding-r2t", self.max_outstanding_r2t != R2T_DEFAULT),
            ("--max-burst-length", self.max_burst_length != BURST_DEFAULT),
            ("--first-burst-length", self.first_burst_length != SEGMENT_DEFAULT),
            ("--max-recv-data-segment-length", self.max_recv_data_segment_length != SEGMENT_DEFAULT),
            ("--initiator-name", self.initiator_name != INITIATOR_DEFAULT),
            ("--user", self.user.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(format!("{option} is for iSCSI")),
            None if self.source.is_some() => Err("--source is for NVMe over RDMA".to_owned()),
            None => Ok(()),
        }
    }

    /// Checks that all options apply to vfio-user.
    ///
    /// # Errors
    /// A message that names the option that does not.
    pub fn check_for_vfio_user(&self) -> Result<(), String> {
        self.check_for_nvme()?;
        let given = [
            ("--idle-sessions", self.idle_sessions > 0),
            ("--header-digest", self.header_digest.is_wanted()),
            ("--data-digest", self.data_digest.is_wanted()),
            ("--flow-control", self.flow_control),
            ("--host-key", self.host_key.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => {
                Err(format!("{option} is for network protocols: a vfio-user socket has one controller"))
            }
            None => Ok(()),
        }
    }

    /// Checks that all options apply to vhost-user.
    ///
    /// # Errors
    /// A message that names the option that does not.
    pub fn check_for_vhost_user(&self) -> Result<(), String> {
        self.check_for_vfio_user()
            .map_err(|why| why.replace("a vfio-user socket has one controller", "a vhost-user socket has one disk"))?;
        match self.fua {
            true => Err("--fua: a virtio disk has no FUA: use --flush-every".to_owned()),
            false => Ok(()),
        }
    }

    /// Checks that all options apply to a SCSI host adapter over vhost-user.
    ///
    /// # Errors
    /// A message that names the option that does not.
    pub fn check_for_vhost_scsi(&self) -> Result<(), String> {
        self.check_for_vfio_user().map_err(|why| {
            why.replace("a vfio-user socket has one controller", "a vhost-user socket has one host adapter")
        })
    }

    /// Checks that all options apply to protocols on Ethernet frames.
    ///
    /// # Errors
    /// A message that names the option that does not.
    pub fn check_for_frames(&self) -> Result<(), String> {
        self.check_for_vfio_user().map_err(|why| {
            why.replace("a vfio-user socket has one controller", "not for protocols on Ethernet frames")
        })?;
        match self.sessions {
            1 => Ok(()),
            _ => Err("--sessions is for protocols with sessions: a station has one".into()),
        }
    }

    /// Checks that all options apply to SCSI over Scheduled Transfer, whose initiators have names as those of iSCSI.
    ///
    /// # Errors
    /// A message that names the option that does not.
    pub fn check_for_st(&self) -> Result<(), String> {
        Self { initiator_name: INITIATOR_DEFAULT.to_owned(), ..self.clone() }.check_for_frames()
    }

    /// The keys for authentication to a subsystem; `None` if the host has no key.
    pub(crate) fn authentication(&self, subsystem: &str) -> Option<Host> {
        Some(Host {
            name: self.host_nqn.clone(),
            subsystem: subsystem.to_owned(),
            key: self.host_key.clone()?,
            other: self.subsystem_key.clone(),
            transaction: u16::from_le_bytes(random()),
            random: random(),
        })
    }

    fn chap(&self) -> Option<Chap> {
        let account = |name: &Option<String>, secret: &Option<Secret>| {
            Some(Account { name: name.as_deref()?.into(), secret: secret.clone()? })
        };
        let target = account(&self.mutual_user, &self.mutual_secret_file)
            .map(|account| MutualChap { account, challenge: challenge() });
        let algorithms = self.chap.iter().copied().map(Algorithm).collect();
        Some(Chap { user: account(&self.user, &self.secret_file)?, algorithms, target })
    }
}

/// A random challenge for the target.
fn challenge() -> Challenge {
    Challenge::from_random(random())
}

/// Random bytes of the kernel.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut random = [0; N];
    let got = getrandom(&mut random, GetRandomFlags::empty());
    assert_eq!(got, Ok(random.len()), "getrandom returns up to 256 bytes at once");
    random
}

/// Reads the key in a file.
fn key(path: &str) -> Result<Key, String> {
    let secret = secret::from_file(path).map_err(|why| why.to_string())?;
    Key::parse(secret.bytes()).map_err(|why| format!("{path}: {why}"))
}

/// Parses a number of bytes: `4096`, `4k`, `1M`, `20G`, `1T`.
///
/// # Errors
/// A message that shows valid sizes.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().trim_end_matches("ib") {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("{text:?} is not a size such as 4096, 4k or 1G")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is not a size such as 4096, 4k or 1G"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"))
}

fn size_of_command(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    match u32::try_from(bytes) {
        Ok(small) if bytes.is_multiple_of(512) && (512..=BLOCK_SIZE_MAX).contains(&bytes) => Ok(small),
        _ => Err(format!("{text} is not a multiple of 512 up to {BLOCK_SIZE_MAX}")),
    }
}

fn length(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| (512..=0xff_ffff).contains(bytes))
        .ok_or_else(|| format!("{text} is not from 512 to 16777215"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        options: Options,
    }

    fn parse(args: &str) -> Result<Options, String> {
        CommandLine::try_parse_from(["bench"].into_iter().chain(args.split_whitespace()))
            .map(|line| line.options)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn sizes_are_parsed() {
        for (text, want) in
            [("512", 512), ("4k", 4096), ("4K", 4096), ("1MiB", 1 << 20), ("20G", 20 << 30), ("1t", 1 << 40)]
        {
            assert_eq!(size(text), Ok(want));
        }
        for bad in ["", "k", "4x", "-1", "1.5k", "99999999T"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_command_line_is_parsed() {
        let options = parse("iscsi://h/iqn.x/2 --rw randrw --mix 30 --bs 128k --time 0.5 --fua --data-digest crc32c")
            .expect("good");
        assert_eq!(
            (options.bs, options.mix, options.fua, options.time),
            (131_072, 30, true, Duration::from_millis(500))
        );
        assert_eq!((options.rw, options.url.unit), (Shape::Randrw, 2));
        let offer = options.offer(Some("iqn.x".into()), 0x01_0203);
        assert_eq!((offer.data_digest, &offer.isid[3..]), (DigestOffer::Require, &[1, 2, 3][..]));
    }

    #[test]
    fn options_of_iscsi_are_refused_for_nvme() {
        let check = |args: &str| parse(&format!("nvme-tcp://h {args}")).and_then(|options| options.check_for_nvme());
        assert_eq!(check("--sessions 4 --idle-queues 3 --data-digest crc32c --flow-control"), Ok(()));
        assert_eq!(check("--initial-r2t"), Err("--initial-r2t is for iSCSI".into()));
        assert_eq!(check("--max-burst-length 64k"), Err("--max-burst-length is for iSCSI".into()));
        assert_eq!(check("--initiator-name iqn.x"), Err("--initiator-name is for iSCSI".into()));
        assert_eq!(check("--source 127.0.0.2"), Err("--source is for NVMe over RDMA".into()));
    }

    #[test]
    fn options_of_tcp_are_refused_over_rdma() {
        let check =
            |args: &str| parse(&format!("nvme-rdma://h {args}")).and_then(|options| options.check_for_nvme_rdma());
        assert_eq!(check("--sessions 4 --source 127.0.0.2 --flow-control --fua"), Ok(()));
        assert!(check("--data-digest crc32c").is_err_and(|why| why.contains("for TCP")));
        assert_eq!(check("--initial-r2t"), Err("--initial-r2t is for iSCSI".into()));
    }

    #[test]
    fn a_host_adapter_has_no_sessions_but_fua() {
        let check =
            |args: &str| parse(&format!("vhost-scsi:/s#3 {args}")).and_then(|options| options.check_for_vhost_scsi());
        assert_eq!(check("--sessions 4 --spin --fua"), Ok(()));
        let why = check("--idle-sessions 3").expect_err("a socket has one");
        assert!(why.ends_with("a vhost-user socket has one host adapter"), "{why}");
        assert_eq!(check("--initial-r2t"), Err("--initial-r2t is for iSCSI".into()));
    }

    #[test]
    fn options_of_nvme_are_refused_for_iscsi() {
        let check = |args: &str| parse(&format!("iscsi://h {args}")).and_then(|options| options.check_for_iscsi());
        assert_eq!(check("--sessions 4 --data-digest crc32c --max-burst-length 64k"), Ok(()));
        assert_eq!(check("--doorbells told"), Err("--doorbells is for NVMe".into()));
        assert_eq!(check("--idle-queues 3"), Err("--idle-queues is for NVMe".into()));
    }

    #[test]
    fn a_tape_is_read_or_written_in_order() {
        let check = |args: &str| parse(&format!("iscsi://h {args}")).and_then(|options| options.check_for_tape());
        assert_eq!(check("--rw write --bs 256k --depth 4 --flush-every 100"), Ok(()));
        let refused = |option: &str| Err(format!("the unit is a tape: {option} does not apply"));
        assert_eq!(check(""), refused("--rw other than read and write"));
        assert_eq!(check("--rw read --sessions 2"), refused("--sessions"));
        assert_eq!(check("--rw write --verify"), refused("--verify"));
        assert!(check("--rw write --bs 16M").is_err_and(|why| why.contains("16777215")));
    }

    #[test]
    fn sessions_of_a_run_have_different_isids_with_a_common_part() {
        let options = parse("iscsi://h/iqn.x").expect("good");
        let isid = |session| options.offer(None, session).isid;
        assert_eq!(isid(1)[..3], isid(2)[..3]);
        assert_eq!((isid(1)[0], &isid(1)[3..], &isid(2)[3..]), (0x80, &[0, 0, 1][..], &[0, 0, 2][..]));
    }

    #[test]
    fn invalid_command_lines_are_refused() {
        for bad in [
            "h",
            "iscsi://h --bs 513",
            "iscsi://h --bs 64M",
            "iscsi://h --depth 0",
            "iscsi://h --mix 101",
            "iscsi://h --time x",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse("iscsi://h --all").is_err());
        assert!(parse("iscsi://h --ack-log a --check-ack-log b").is_err());
    }

    #[test]
    fn the_options_are_consistent() {
        use clap::CommandFactory;
        CommandLine::command().debug_assert();
    }
}

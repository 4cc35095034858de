//! The sections that every target has: each key once. Fronts and stores declare further words, keys and sections in
//! their own folders ([`crate::schema`]).

use crate::kind::Kind;
use crate::links::{Links, To};
use crate::luns::Luns;
use crate::names::{Address, Ascii, Host, IscsiName, NQN_BYTES_MAX, Naa, Network, Nqn, OpenAddress, Pattern, Uuid};
use crate::schema::{Owner, Serves};
use crate::secret::SecretSource;
use crate::section::{Missing, Resource, optional, or, required};
use crate::value::{FilePath, Line, Period, Size, Textual, Whole};
use crate::{choices, sections};
use lunar_core::unit::Identity;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

pub use crate::schema::{Protocol, StoreKind};

/// The TCP port of iSCSI (IANA).
pub const ISCSI_PORT: u16 = 3260;
/// The TCP port of NVMe discovery (IANA).
pub const DISCOVERY_PORT: u16 = 8009;
/// The largest namespace ID: as many namespaces as a controller has at most.
pub const NAMESPACE_MAX: u64 = 1024;
/// The port of iSNS (IANA).
pub const ISNS_PORT: u16 = 3205;
/// The port of the API: not registered with IANA, next to the port of iSCSI.
pub const API_PORT: u16 = 3280;

choices! {
    /// The device type of a volume.
    Medium {
        /// a disk with a fixed medium
        Disk = "disk",
        /// a disk with a removable medium
        Removable = "removable",
        /// a CD or DVD with this image, read-only
        Cd = "cd",
    }

    /// Bytes of a logical block.
    BlockSize {
        /// supported by all clients
        B512 = "512",
        /// less overhead, for clients that support it
        B4096 = "4096",
    }

    /// Protection information (SBC-3 4.22).
    Protection {
        /// no protection information
        None = "none",
        /// room for protection information, which is not used until FORMAT UNIT selects a type
        Type0 = "type-0",
        /// the reference tag is the low bits of the LBA
        Type1 = "type-1",
        /// the first reference tag is part of the command
        Type2 = "type-2",
        /// the reference tag belongs to the application
        Type3 = "type-3",
    }

    /// Asymmetric access states (SPC-4 5.15).
    AluaState {
        /// active/optimized
        ActiveOptimized = "active-optimized",
        /// active/non-optimized
        ActiveNonOptimized = "active-non-optimized",
        /// standby
        Standby = "standby",
        /// unavailable
        Unavailable = "unavailable",
    }

    /// Authentication at login (RFC 7143 12.1).
    Authentication {
        /// no authentication
        None = "none",
        /// the client authenticates
        Chap = "chap",
        /// client and target authenticate each other
        MutualChap = "mutual-chap",
    }

    /// Hash algorithms of CHAP (RFC 7143 12.1.3, IANA).
    Hash {
        /// SHA3-256
        Sha3_256 = "sha3-256",
        /// SHA-256
        Sha256 = "sha256",
        /// SHA-1, for initiators without newer algorithms
        Sha1 = "sha1",
        /// MD5, which RFC 7143 requires of all initiators
        Md5 = "md5",
    }

    /// Hash functions of DH-HMAC-CHAP (NVMe Base 2.0 8.13.5).
    DhchapHash {
        /// SHA-512
        Sha512 = "sha512",
        /// SHA-384
        Sha384 = "sha384",
        /// SHA-256
        Sha256 = "sha256",
    }

    /// Diffie-Hellman groups of DH-HMAC-CHAP (RFC 7919).
    DhchapGroup {
        /// 8,192 bits
        Ffdhe8192 = "ffdhe8192",
        /// 6,144 bits
        Ffdhe6144 = "ffdhe6144",
        /// 4,096 bits
        Ffdhe4096 = "ffdhe4096",
        /// 3,072 bits
        Ffdhe3072 = "ffdhe3072",
        /// 2,048 bits
        Ffdhe2048 = "ffdhe2048",
        /// no exchange: a reader of the messages can guess secrets
        Null = "null",
    }

    /// The driver of a core's reactor.
    Driver {
        /// io_uring, or epoll if the kernel refuses it
        Auto = "auto",
        /// io_uring, or an error
        IoUring = "io-uring",
        /// epoll and helper threads
        Epoll = "epoll",
    }

    /// The rights of an API token.
    Role {
        /// read metrics, and nothing else
        Metrics = "metrics",
        /// read everything except secrets
        Read = "read",
        /// read and change everything
        Write = "write",
    }

    /// The least severity that is logged.
    Level {
        /// failures
        Error = "error",
        /// also conditions that may lead to failures
        Warning = "warning",
        /// also changes
        Info = "info",
        /// also details for debugging
        Debug = "debug",
    }

    /// The format of log lines.
    LogFormat {
        /// text
        Text = "text",
        /// one JSON object per line
        Json = "json",
    }
}

impl Medium {
    /// Whether the medium can be removed.
    #[must_use]
    pub fn is_removable(self) -> bool {
        self != Self::Disk
    }
}

impl BlockSize {
    /// Bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }
}

sections! {
    /// A user of CHAP: an initiator that logs in, or the target that answers. The name is CHAP_N. NVMe hosts
    /// authenticate with DH-HMAC-CHAP by the secrets of users that are DH-HMAC-CHAP keys; a user with the name of a
    /// host (`nqn...`) belongs to that host only.
    User (made: Live, removed: LaterSessions) {
        /// The secret, at least 12 bytes, or its location; for NVMe hosts a key in the format of `nvme gen-dhchap-key`
        /// (`DHHC-1:...`). A secret in the configuration file requires mode 0600 for that file, and a file of its own
        /// requires mode 0600, too.
        secret: SecretSource = required() => LaterSessions;
        /// The name that the user has in CHAP (CHAP_N) and DH-HMAC-CHAP; without this key, the name of the section.
        login: Option<Line<255>> = optional() => LaterSessions;
    }

    /// A pre-shared key for TLS 1.3 with NVMe hosts. A key with the name of a host (`nqn...`) belongs to that host
    /// only.
    TlsKey (made: Live, removed: LaterSessions) {
        /// The key in the format of `nvme gen-tls-key` with SHA-256 or SHA-384 (`NVMeTLSkey-1:01:...`, `:02:`), or its
        /// location, as for the secret of a user.
        secret: SecretSource = required() => LaterSessions;
    }

    /// A token for the API over TCP.
    ApiToken (made: Live, removed: Live) {
        /// The token, at least 16 bytes, or its location, as for the secret of a user.
        secret: SecretSource = required() => Live;
        /// The rights of the token.
        role: Role = or(Role::Read) => Live;
    }

    /// Space in which NVMe hosts may create namespaces (Namespace Management): the hosts of the groups that refer to
    /// the pool. The namespaces are volumes in this file, until a host or an operator deletes them. Hosts without a
    /// pool cannot create namespaces.
    Pool (made: Live, removed: Live) {
        /// The folder of the volumes, which are sparse files.
        folder: FilePath = required() => Live;
        /// The largest total size of the volumes.
        space: Size ["bytes"] = required() => Live;
        /// The largest number of volumes.
        namespaces: Whole<1, 256> ["namespaces"] = or(Whole::new(32)) => Live;
    }

    /// A volume, which groups map to LUNs and namespace IDs.
    Volume (made: Live, removed: Live, own: Owner::Store(kind)) {
        /// The kind of store.
        kind: StoreKind = required() => EndsSessions;
        /// The path of the file or the block device.
        path: Option<FilePath> = optional() => EndsSessions;
        /// The size. A missing file is created, a smaller one is extended; without this key, a file keeps its size.
        /// A block device has its own size, and so has a Ceph image: `lunar volume create` makes an image of this
        /// size, and the configuration does not get the key. When Lunar starts, it does not create the file of a
        /// volume that it served before: the file system of the file may not be mounted.
        size: Option<Size> ["bytes"] = optional() => Attention;
        /// The device type. Clients, `lunar volume eject` and `lunar volume load` eject and load a removable medium;
        /// it is loaded when Lunar starts.
        medium: Medium = or(Medium::Disk) => EndsSessions;
        /// Bytes of a logical block. A CD or DVD always has blocks of 2,048 bytes.
        block_size: BlockSize ["bytes"] = or(BlockSize::B512) => EndsSessions;
        /// Refuse all writes.
        read_only: bool = or(false) => Attention;
        /// Allow other Lunar processes to serve the same file, if they allow it, too: for virtual machines that migrate
        /// from one process to the other. Only one of the processes may have clients at a time, because commands and
        /// reservations of the other process are unknown to it. A block device is served by one process.
        shared: bool = or(false) => Live;
        /// Complete each write only when it is on the medium (no volatile write cache). If this is switched off while
        /// the volume is served, SCSI initiators see no write cache until they enable it or the service restarts.
        write_through: bool = or(false) => Attention;
        /// Bypass the page cache (O_DIRECT).
        direct: bool = or(false) => Live;
        /// Protection information that initiators may store with each block.
        protection: Protection = or(Protection::None) => EndsSessions;
        /// The permanent identity of the volume, generated when the volume is created. The other identifiers derive
        /// from it unless they are given.
        uuid: Option<Uuid> = optional() => EndsSessions;
        /// Unit serial number (VPD page 80h).
        serial: Option<Ascii<32>> = optional() => EndsSessions;
        /// NAA identifier (VPD page 83h).
        naa: Option<Naa> = optional() => EndsSessions;
        /// T10 vendor identification, at most 8 characters.
        vendor: Ascii<8> = or(Ascii::cut(VENDOR)) => EndsSessions;
        /// Product identification, at most 16 characters.
        product: Ascii<16> = or(Ascii::cut(PRODUCT)) => EndsSessions;
        /// Product revision level, at most 4 characters; without this key, the version of Lunar.
        revision: Option<Ascii<4>> = optional() => Attention;
        /// The pool in which an NVMe host created the volume; hosts of the pool may delete it. Absent for volumes of
        /// the operator.
        pool: Option<To<Pool>> = optional() => LaterSessions;
        /// The namespace ID for all NVMe hosts, if the volume belongs to a pool.
        namespace: Option<Whole<1, NAMESPACE_MAX>> = optional() => Attention;
        /// Allow only one controller of an NVMe host at a time to attach the namespace, if the volume belongs to a
        /// pool.
        private: bool = or(false) => Attention;
        /// NVMe hosts whose new controllers are attached to the namespace, if the volume belongs to a pool: the hosts
        /// of the last Namespace Attachment.
        attached: Vec<Line<NQN_BYTES_MAX>> = or(Vec::new()) => LaterSessions;
    }

    /// A group of portals: a target portal group (RFC 7143 4.4), which is also a target port group (SPC-4).
    PortalGroup (made: Live, removed: EndsSessions) {
        /// Target portal group tag, and identifier of the target port group.
        tag: Whole<1, 65535> = required() => EndsSessions;
        /// Asymmetric access state of all volumes through this group.
        alua_state: AluaState = or(AluaState::ActiveOptimized) => Attention;
        /// Report this group as preferred.
        preferred: bool = or(false) => Attention;
    }

    /// A target: initiators log in to it, and NVMe hosts connect to it as an NVM subsystem. It needs at least one of
    /// the two names.
    Target (made: Live, removed: EndsSessions) {
        /// The iSCSI name; without it, the target is not available over iSCSI.
        iqn: Option<IscsiName> = optional() => EndsSessions;
        /// The NQN; without it, the target is no NVM subsystem.
        nqn: Option<Nqn> = optional() => EndsSessions;
        /// The serial number of the NVM subsystem (Identify Controller); without this key, 20 digits that are derived
        /// from the NQN.
        serial: Option<Ascii<20>> = optional() => EndsSessions;
        /// A name for people (TargetAlias).
        alias: Option<Line<255>> = optional() => LaterSessions;
        /// The portal groups through which clients reach the target.
        portal_groups: Links<PortalGroup> = required() => EndsSessions;
        /// Authentication of initiators with CHAP and of NVMe hosts with DH-HMAC-CHAP.
        authentication: Authentication = or(Authentication::None) => LaterSessions;
        /// Users that may log in.
        users: Links<User> = or(Links::default()) => LaterSessions;
        /// The user as which the target answers with mutual CHAP, and the subsystem with DH-HMAC-CHAP to hosts that
        /// request it.
        mutual_user: Option<To<User>> = optional() => LaterSessions;
        /// Hash algorithms of CHAP that are accepted.
        hashes: Vec<Hash> = or(ALL_HASHES) => LaterSessions;
        /// Hash functions of DH-HMAC-CHAP that are accepted, in order of preference.
        dhchap_hashes: Vec<DhchapHash> = or(ALL_DHCHAP_HASHES) => LaterSessions;
        /// Diffie-Hellman groups of DH-HMAC-CHAP that are accepted, in order of preference.
        dhchap_groups: Vec<DhchapGroup> = or(ALL_DHCHAP_GROUPS) => LaterSessions;
        /// Accept logins. If this is switched off, initiators are asked to log out, their commands in progress
        /// complete, and then their sessions end.
        enabled: bool = or(true) => EndsSessions;
        /// The new address of the target: logins are redirected to it (TargetAddress), and the initiators of existing
        /// sessions are asked to log out.
        moved_to: Option<Address<ISCSI_PORT>> = optional() => EndsSessions;
        /// Redirect permanently: initiators store the new address.
        moved_for_good: bool = or(false) => Live;
        /// Sessions at the same time; without this key, the number in the limits.
        sessions: Option<Whole<1, 16384>> ["sessions"] = optional() => LaterSessions;
        /// Commands in progress in one session; without this key, the number in the limits.
        queue_depth: Option<Whole<1, 1024>> ["commands"] = optional() => LaterSessions;
    }

    /// Clients that see the same LUN map. A client belongs to one group of a target: the group with the most specific
    /// pattern for its name, then with the longest network prefix, then with the first name. A client without a group
    /// is refused.
    Group (made: LaterSessions, removed: EndsSessions) {
        /// The targets.
        targets: Links<Target> = required() => EndsSessions;
        /// Names of initiators and NQNs of NVMe hosts, with the wildcards `*` and `?`. `["*"]`: all clients.
        initiators: Vec<Pattern> = required() => EndsSessions;
        /// Source networks of the clients; without this key, any network.
        sources: Vec<Network> = or(Vec::new()) => EndsSessions;
        /// Users that may log in from this group; without this key, the users of the target.
        users: Links<User> = or(Links::default()) => LaterSessions;
        /// Authentication of the clients of this group; without this key, that of the target.
        authentication: Option<Authentication> = optional() => LaterSessions;
        /// The user as which the target or the NVM subsystem authenticates to this group; without this key, that of the
        /// target.
        mutual_user: Option<To<User>> = optional() => LaterSessions;
        /// TLS keys of the NVMe hosts. With at least one key, TLS is required of all hosts of the group; discovery
        /// stays possible without TLS, unless the portal requires TLS.
        tls_keys: Links<TlsKey> = or(Links::default()) => LaterSessions;
        /// The pool in which the NVMe hosts may create namespaces; without this key, they may not.
        pool: Option<To<Pool>> = optional() => LaterSessions;
        /// The LUN map: logical unit number = volume.
        luns: Luns = or(Luns::default()) => Attention;
    }

    /// A volume in the LUN map of a group. `3 = "disk1"` is short for `3 = { volume = "disk1" }`.
    Lun (made: Attention, removed: Attention) {
        /// The volume.
        volume: To<Volume> = required() => Attention;
        /// Refuse writes of this group.
        read_only: bool = or(false) => Attention;
        /// The namespace ID for NVMe hosts; without this key, the logical unit number plus one. In one NVM subsystem a
        /// namespace ID means the same volume in all groups. Logical unit numbers above 1023 without this key are not
        /// shown to NVMe hosts.
        namespace: Option<Whole<1, NAMESPACE_MAX>> = optional() => Attention;
        /// Show the protection information of the volume to NVMe hosts, as eight bytes of metadata per block. Linux
        /// supports such a namespace; Windows, ESXi and firmware do not. Without this, Lunar generates and checks it
        /// internally. In one NVM subsystem, all groups have the same value for a volume.
        metadata: bool = or(false) => Attention;
    }

    /// A portal: an address at which Lunar listens.
    Portal (made: Live, removed: EndsSessions, own: Owner::Portal(protocol)) {
        /// The address, with the usual port of the protocol unless one is given. `0.0.0.0` and `::` are all addresses.
        address: OpenAddress = required() => EndsSessions;
        /// The protocol.
        protocol: Protocol = Missing::OfSchema(Protocol::usual) => EndsSessions;
        /// The address that clients learn (SendTargets, NVMe discovery), for portals behind NAT; without this key, the
        /// address that the client connected to.
        advertise: Option<OpenAddress> = optional() => Live;
        /// The portal group of the portal.
        group: To<PortalGroup> = required() => EndsSessions;
    }

    /// Another NVMe discovery service, to which NVMe hosts are referred. Connected discovery controllers are notified
    /// of changes.
    Referral (made: Live, removed: Live) {
        /// The address, with port 8009 unless one is given.
        address: Address<DISCOVERY_PORT> = required() => Live;
    }

    /// A TCP address of the API.
    ApiListener (made: Live, removed: Live) {
        /// The address, with port 3280 unless one is given. Without a certificate it must be a loopback address.
        address: Address<API_PORT> = required() => Live;
        /// Certificate chain in PEM.
        certificate: Option<FilePath> = optional() => Live;
        /// Private key in PEM, mode 0600.
        key: Option<FilePath> = optional() => Live;
    }

    /// Settings of the service: cores, memory, state folder.
    Server (made: Restart, removed: Restart) {
        /// Cores: threads that serve; without this key, one for each available processor.
        cores: Option<Whole<1, 256>> ["threads"] = optional() => Restart;
        /// Memory for data in transfer, per core.
        memory: Size ["bytes"] = or(Size(128 << 20)) => Restart;
        /// The driver of the cores.
        driver: Driver = or(Driver::Auto) => Restart;
        /// How long an idle core polls before it sleeps, while the load makes polling worthwhile; `0s`: the core does
        /// not poll, and sleeps at once.
        spin: Period = or(Period(Duration::from_micros(100))) => Restart;
        /// How long commands in progress may take when the service stops.
        drain: Period = or(Period(Duration::from_secs(10))) => Live;
        /// How long to wait at the start for unavailable resources that were served before (a file, a device, an
        /// address), before the others are served without them.
        patience: Period = or(Period(Duration::from_secs(30))) => Restart;
        /// The soft threshold of space: when less than this part of a file system or pool is available, the clients
        /// of the volumes on it are notified before writes fail, and `lunar status` reports it; 0: no threshold.
        space_threshold: Whole<0, 99> ["percent"] = or(Whole::new(0)) => Live;
        /// Folders in which volumes may be created while the service runs. All other access is limited to the files
        /// and devices that are configured at the start.
        folders: Vec<FilePath> = or(Vec::new()) => Restart;
        /// The state folder; without this key, the folder that systemd provides (STATE_DIRECTORY), or the user's own
        /// state folder.
        state: Option<FilePath> = optional() => Restart;
    }

    /// Limits of sessions, commands and logins.
    Limits (made: Live, removed: Live, own: Owner::Limits) {
        /// Sessions at the same time, in all.
        sessions: Whole<1, 16384> ["sessions"] = or(Whole::new(4096)) => LaterSessions;
        /// Commands in progress in one session (the CmdSN window).
        queue_depth: Whole<1, 1024> ["commands"] = or(Whole::new(128)) => LaterSessions;
        /// Logins from one address in a second; further logins are delayed, for 5 seconds at most.
        login_rate: Whole<1, 10000> ["logins per second"] = or(Whole::new(100)) => Live;
        /// How long a login may take.
        login_time: Period = or(Period(Duration::from_secs(15))) => LaterSessions;
    }

    /// Discovery sessions of initiators and NVMe hosts.
    Discovery (made: Live, removed: Live) {
        /// Authentication of discovery sessions.
        authentication: Authentication = or(Authentication::None) => LaterSessions;
        /// Users that may log in.
        users: Links<User> = or(Links::default()) => LaterSessions;
        /// The user as which the target answers with mutual CHAP.
        mutual_user: Option<To<User>> = optional() => LaterSessions;
        /// Hash algorithms of CHAP that are accepted.
        hashes: Vec<Hash> = or(ALL_HASHES) => LaterSessions;
        /// Hash functions of DH-HMAC-CHAP that are accepted, in order of preference.
        dhchap_hashes: Vec<DhchapHash> = or(ALL_DHCHAP_HASHES) => LaterSessions;
        /// Diffie-Hellman groups of DH-HMAC-CHAP that are accepted, in order of preference.
        dhchap_groups: Vec<DhchapGroup> = or(ALL_DHCHAP_GROUPS) => LaterSessions;
    }

    /// Registration with an iSNS server (RFC 4171), from which initiators learn the targets. Lunar registers all
    /// enabled targets with an iSCSI name that have not moved, at their portals; for a portal at all addresses without
    /// an advertised address, it registers the local address of its connection to the server. The iSNS server does not
    /// control access.
    Isns (made: Live, removed: Live) {
        /// The server: a name or an address, with port 3205 unless one is given. Without this key, nothing is
        /// registered.
        server: Option<Host<ISNS_PORT>> = optional() => Live;
        /// The Entity Identifier of this host; without this key, its host name. A registration replaces an earlier one
        /// with the same identifier.
        entity: Option<Line<255>> = optional() => Live;
        /// The registration period. Lunar renews the registration three times in a period. The server may set its own
        /// period.
        period: Period = or(Period(Duration::from_secs(300))) => Live;
    }

    /// The API on this host.
    Api (made: Live, removed: Live) {
        /// The Unix socket; access to it gives full rights. Without this key, `/run/lunar/api.sock`, or the user's own
        /// runtime folder.
        socket: Option<FilePath> = optional() => Live;
        /// A group of this host, by name or number, whose members may open the socket, besides root and the user that
        /// runs Lunar. That user must be a member, too.
        group: Option<Line<32>> = optional() => Live;
    }

    /// The log, which goes to standard error.
    Logging (made: Live, removed: Live) {
        /// The least severity that is logged.
        level: Level = or(Level::Info) => Live;
        /// The format of a line.
        format: LogFormat = or(LogFormat::Text) => Live;
        /// The time from which on a command is slow: `lunar log --slow` lists slow commands with the parts of their
        /// time, and the log has some of them. `0s`: no command is slow.
        slow: Period = or(Period(Duration::from_millis(250))) => Live;
    }
}

/// Implements [`Resource`] for the sections of the kinds that every target has.
macro_rules! resources {
    ($($name:ident),+) => { $(impl Resource for $name {
        const KIND: Kind = Kind::$name;
    })+ };
}
resources!(
    User,
    TlsKey,
    ApiToken,
    Pool,
    Volume,
    PortalGroup,
    Target,
    Group,
    Lun,
    Portal,
    Referral,
    ApiListener,
    Server,
    Limits,
    Discovery,
    Isns,
    Api,
    Logging
);

/// All hash algorithms, the strongest first.
const ALL_HASHES: [Hash; 4] = [Hash::Sha3_256, Hash::Sha256, Hash::Sha1, Hash::Md5];

/// All hash functions of DH-HMAC-CHAP, the strongest first.
const ALL_DHCHAP_HASHES: [DhchapHash; 3] = [DhchapHash::Sha512, DhchapHash::Sha384, DhchapHash::Sha256];

/// All groups of DH-HMAC-CHAP, in the default order of preference.
const ALL_DHCHAP_GROUPS: [DhchapGroup; 6] = [
    DhchapGroup::Ffdhe3072,
    DhchapGroup::Ffdhe4096,
    DhchapGroup::Ffdhe2048,
    DhchapGroup::Ffdhe6144,
    DhchapGroup::Ffdhe8192,
    DhchapGroup::Null,
];

/// The default T10 vendor identification.
const VENDOR: &str = "LUNAR";
/// The default product identification: the same for all stores, so that it stays when a volume changes its store.
const PRODUCT: &str = "VOLUME";

/// The identity that derives from a UUID: the serial number is its digits, the locally assigned NAA its last 60 bits.
/// `revision` is cut to four characters.
#[must_use]
pub fn identity_of(uuid: Uuid, revision: &str) -> Identity {
    let digits = u128::from_be_bytes(uuid.0);
    let naa = 0x3000_0000_0000_0000 | (digits as u64 & 0x0fff_ffff_ffff_ffff);
    Identity {
        vendor: VENDOR.into(),
        product: PRODUCT.into(),
        revision: revision.into(),
        serial: Ascii::cut(&format!("{digits:032x}")),
        uuid: uuid.0,
        naa: naa.to_be_bytes(),
    }
}

/// Where a secret is, in words.
pub(crate) fn place_of(secret: &SecretSource) -> String {
    match secret {
        SecretSource::Inline(_) => "secret in the configuration".into(),
        SecretSource::File(path) => format!("secret in {}", path.text()),
        SecretSource::Credential(name) => format!("secret is the credential {name}"),
    }
}

impl User {
    /// The name that CHAP and DH-HMAC-CHAP use, for the user of this section.
    #[must_use]
    pub fn login_name<'a>(&'a self, section: &'a str) -> &'a str {
        self.login.as_ref().map_or(section, Line::as_str)
    }

    fn brief(&self) -> String {
        place_of(&self.secret)
    }
}

impl TlsKey {
    fn brief(&self) -> String {
        place_of(&self.secret)
    }
}

impl Referral {
    fn brief(&self) -> String {
        self.address.text()
    }
}

impl ApiToken {
    fn brief(&self) -> String {
        format!("may {}", self.role.word())
    }
}

impl Pool {
    fn brief(&self) -> String {
        format!("{} in {}, {} namespaces at most", self.space, self.folder.text(), self.namespaces.get())
    }
}

impl Volume {
    /// Its namespace ID for all NVMe hosts, if a host created it.
    #[must_use]
    pub fn made_namespace(&self) -> Option<u32> {
        self.pool.as_ref()?;
        // At most NAMESPACE_MAX.
        self.namespace.map(|id| id.get() as u32)
    }

    /// The identity of the volume; `None` if it has no UUID. Missing identifiers derive from it ([`identity_of`]).
    #[must_use]
    pub fn identity(&self, revision: &str) -> Option<Identity> {
        let base = identity_of(self.uuid?, revision);
        Some(Identity {
            vendor: self.vendor,
            product: self.product,
            revision: self.revision.unwrap_or(base.revision),
            serial: self.serial.unwrap_or(base.serial),
            uuid: base.uuid,
            naa: self.naa.map_or(base.naa, |naa| naa.0),
        })
    }

    /// Why it is no namespace for NVMe hosts, in words; `None`: it is one.
    #[must_use]
    pub fn why_no_namespace(&self) -> Option<&'static str> {
        let is_device = match self.kind.declaration().serves {
            Serves::Blocks => false,
            Serves::Device => true,
            Serves::DeviceWith(key) => self.marks.has(key),
        };
        if is_device {
            return Some("it is a SCSI device, and NVMe has no SCSI commands");
        }
        self.medium.is_removable().then_some("its medium is removable, and NVMe has no removable media")
    }

    /// Where its data is: at a path, or at a place that a key of its store names, in the place of one.
    #[must_use]
    pub fn place(&self) -> Option<&Path> {
        let own = || self.kind.declaration().keys?.place.and_then(|(_, value)| value(&self.own));
        self.path.as_ref().map(FilePath::path).or_else(own)
    }

    /// The key that says where its data is.
    #[must_use]
    pub fn place_key(&self) -> &'static str {
        self.kind.declaration().keys.and_then(|keys| keys.place).map_or("path", |(key, _)| key)
    }

    fn brief(&self) -> String {
        let size = self.size.map_or(String::new(), |size| format!("{size} "));
        let path = self.path.as_ref().map_or(String::new(), |path| format!(" {}", path.text()));
        let read_only = if self.read_only { ", read-only" } else { "" };
        let medium = match self.medium {
            Medium::Disk => "",
            Medium::Removable => ", removable",
            Medium::Cd => ", CD or DVD",
        };
        format!("{size}{}{path}{medium}{read_only}{}", self.kind.declaration().noun, self.own.summary())
    }
}

impl PortalGroup {
    fn brief(&self) -> String {
        format!("tag {}, {}", self.tag.get(), self.alua_state.word())
    }
}

impl Target {
    fn brief(&self) -> String {
        let names = self.iqn.iter().map(IscsiName::as_str).chain(self.nqn.iter().map(Nqn::as_str));
        let mut words: Vec<&str> = names.collect();
        if self.authentication != Authentication::None {
            words.push(self.authentication.word());
        }
        words.join(", ")
    }
}

impl Lun {
    /// The namespace ID of logical unit `lun` for NVMe hosts; `None`: it is not shown to them.
    #[must_use]
    pub fn namespace_of(&self, lun: u16) -> Option<u32> {
        let id = self.namespace.map_or_else(|| u64::from(lun) + 1, Whole::get);
        u32::try_from(id).ok().filter(|_| id <= NAMESPACE_MAX)
    }
}

impl Portal {
    /// The listening address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address.or(self.usual_port())
    }

    /// The advertised address.
    #[must_use]
    pub fn advertise(&self) -> Option<SocketAddr> {
        self.advertise.map(|address| address.or(self.usual_port()))
    }

    fn usual_port(&self) -> u16 {
        self.protocol.declaration().port
    }
}

impl Group {
    /// The authentication of the group at this target.
    #[must_use]
    pub fn authentication(&self, target: &Target) -> Authentication {
        self.authentication.unwrap_or(target.authentication)
    }

    /// The users that may log in, at this target.
    #[must_use]
    pub fn users<'a>(&'a self, target: &'a Target) -> &'a Links<User> {
        if self.users.is_empty() { &target.users } else { &self.users }
    }

    /// The user as which this target authenticates to the group.
    #[must_use]
    pub fn mutual_user<'a>(&'a self, target: &'a Target) -> Option<&'a To<User>> {
        self.mutual_user.as_ref().or(target.mutual_user.as_ref())
    }

    fn brief(&self) -> String {
        let first = self.initiators.first().map_or_else(|| "no clients".into(), Textual::text);
        let more = self.initiators.len().saturating_sub(1);
        if more == 0 { first } else { format!("{first} and {more} more") }
    }
}

impl Lun {
    fn brief(&self) -> String {
        let namespace = self.namespace.map(|id| format!(", namespace {}", id.get())).unwrap_or_default();
        let read_only = if self.read_only { ", read-only" } else { "" };
        format!("{}{read_only}{namespace}{}", self.volume.name(), if self.metadata { ", metadata" } else { "" })
    }
}

impl Portal {
    fn brief(&self) -> String {
        let (address, protocol) = (self.address(), self.protocol.word());
        format!("{address}, {protocol}{}, portal group {}", self.own.summary(), self.group.name())
    }
}

impl ApiListener {
    fn brief(&self) -> String {
        format!("{}{}", self.address.text(), if self.certificate.is_some() { ", TLS" } else { "" })
    }
}

/// Sections that exist once need no description.
macro_rules! only_one {
    ($($name:ident),+) => { $(impl $name {
        #[allow(clippy::unused_self, reason = "the same call for all sections")]
        fn brief(&self) -> String {
            String::new()
        }
    })+ };
}
only_one!(Server, Limits, Discovery, Isns, Api, Logging);

//! What can be configured: every section, every key, once.

use crate::links::{Links, Luns, To};
use crate::names::{Address, Ascii, Host, IscsiName, NQN_BYTES_MAX, Naa, Network, Nqn, OpenAddress, Pattern, Uuid};
use crate::secret::SecretSource;
use crate::section::{absent, or, required, sections};
use crate::value::{FilePath, Line, Mode, Period, Size, Textual, Whole, choices};
use lunar_core::unit::Identity;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The port that IANA gave to iSCSI.
pub const ISCSI_PORT: u16 = 3260;
/// The port that IANA gave to NVMe over TCP.
pub const NVME_PORT: u16 = 4420;
/// The port that IANA gave to NVMe discovery.
pub const DISCOVERY_PORT: u16 = 8009;
/// The largest namespace identifier: as many namespaces as a controller has at most.
pub const NAMESPACE_MAX: u64 = 1024;
/// The port that IANA gave to iSNS.
pub const ISNS_PORT: u16 = 3205;
/// The port of the API: one of those that nobody has registered, next to iSCSI's.
pub const API_PORT: u16 = 3280;

choices! {
    /// What keeps the bytes of a volume.
    StoreKind {
        /// a file, made if it is missing and a size is given
        File = "file",
        /// a block device
        Block = "block",
        /// memory, forgotten at the end
        Ram = "ram",
        /// nothing: reads give zeroes
        Null = "null",
    }

    /// What a volume is to initiators.
    Medium {
        /// a disk that is always there
        Disk = "disk",
        /// a disk that can be taken out
        Removable = "removable",
        /// a CD or DVD with this image, which is only read
        Cd = "cd",
    }

    /// Bytes of a logical block.
    BlockSize {
        /// what everybody understands
        B512 = "512",
        /// less overhead, for systems that know it
        B4096 = "4096",
    }

    /// Protection information (SBC-3 4.22).
    Protection {
        /// no protection information
        None = "none",
        /// reference tag is the low bits of the LBA
        Type1 = "type-1",
        /// reference tag counts from what a command says
        Type2 = "type-2",
        /// reference tag is the application's
        Type3 = "type-3",
    }

    /// Asymmetric access (SPC-4 5.15).
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

    /// Who proves who he is at login (RFC 7143 12.1).
    Authentication {
        /// nobody
        None = "none",
        /// the initiator
        Chap = "chap",
        /// the initiator and the target
        MutualChap = "mutual-chap",
    }

    /// Hash algorithms of CHAP (RFC 7143 12.1.3, IANA).
    Hash {
        /// SHA3-256
        Sha3_256 = "sha3-256",
        /// SHA-256
        Sha256 = "sha256",
        /// SHA-1, for initiators that know nothing newer
        Sha1 = "sha1",
        /// MD5, which RFC 7143 demands of everybody
        Md5 = "md5",
    }

    /// What is spoken at a portal.
    Protocol {
        /// iSCSI, port 3260 unless another is given
        Iscsi = "iscsi",
        /// NVMe over TCP, port 4420 unless another is given; discovery, too
        NvmeTcp = "nvme-tcp",
    }

    /// Whether NVMe hosts come by secure channels (TLS 1.3).
    Tls {
        /// those whose group has keys for it; others come in the clear
        Optional = "optional",
        /// all, also those who only ask what there is
        Required = "required",
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

    /// Groups of Diffie-Hellman in which DH-HMAC-CHAP exchanges keys (RFC 7919).
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
        /// no exchange: who hears the messages can try secrets
        Null = "null",
    }

    /// How cores talk to the kernel.
    Driver {
        /// io_uring, or epoll where it is refused
        Auto = "auto",
        /// io_uring, or an error
        IoUring = "io-uring",
        /// epoll and helper threads
        Epoll = "epoll",
    }

    /// What a token of the API permits.
    Role {
        /// look at everything but secrets
        Read = "read",
        /// look at and change everything
        Write = "write",
    }

    /// What is worth a line in the log.
    Level {
        /// what failed
        Error = "error",
        /// and what may fail soon
        Warning = "warning",
        /// and what was done
        Info = "info",
        /// and how
        Debug = "debug",
    }

    /// What a line in the log looks like.
    LogFormat {
        /// for people
        Text = "text",
        /// for programs, one object in each line
        Json = "json",
    }
}

impl Medium {
    /// Whether it can be taken out.
    #[must_use]
    pub fn comes_and_goes(self) -> bool {
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
    /// Somebody who logs in with CHAP, or as whom the target answers. The name is what CHAP calls CHAP_N. NVMe hosts
    /// prove their names with DH-HMAC-CHAP by the secrets of users that are keys of it; that of a user who is called
    /// like a host (`nqn...`) is that host's alone.
    User (made: Live, removed: LaterSessions) {
        /// The secret, 12 bytes at least, or where it is; for NVMe hosts a key as `nvme gen-dhchap-key` writes it
        /// (`DHHC-1:...`). In the configuration itself it may stand only if the file has mode 0600; a file of its own
        /// has mode 0600, too.
        secret: SecretSource = required() => LaterSessions;
    }

    /// What NVMe hosts open secure channels with (TLS 1.3). One that is called like a host (`nqn...`) is that host's
    /// alone.
    TlsKey (made: Live, removed: LaterSessions) {
        /// The key as `nvme gen-tls-key` writes it with SHA-256 or SHA-384 (`NVMeTLSkey-1:01:...`, `:02:`), or where it
        /// is; as the secret of a user.
        secret: SecretSource = required() => LaterSessions;
    }

    /// Somebody who may use the API over TCP.
    ApiToken (made: Live, removed: Live) {
        /// The token, 16 bytes at least, or where it is; as the secret of a user.
        secret: SecretSource = required() => Live;
        /// What it permits.
        role: Role = or(Role::Read) => Live;
    }

    /// What NVMe hosts may make namespaces of by themselves (Namespace Management): those of the groups that name it.
    /// What they make are volumes, which are in this file like others, and stay there until hosts delete them, or
    /// somebody else does. Without a pool hosts make nothing.
    Pool (made: Live, removed: Live) {
        /// The folder in which their volumes are made, as files that take space when they are written to.
        folder: FilePath = required() => Live;
        /// How large all of them may be together.
        space: Size ["bytes"] = required() => Live;
        /// How many there may be.
        namespaces: Whole<1, 256> ["namespaces"] = or(Whole::new(32)) => Live;
    }

    /// Blocks that can be shared under many numbers.
    Volume (made: Live, removed: Live) {
        /// What keeps the bytes.
        kind: StoreKind = required() => EndsSessions;
        /// Where the file or the block device is.
        path: Option<FilePath> = absent() => EndsSessions;
        /// How large it is. A file that is missing is made, one that is smaller grows; without, a file keeps its
        /// size. A block device has its own. At a start, the file of a volume that was served before is not made:
        /// its file system may not be mounted.
        size: Option<Size> ["bytes"] = absent() => Attention;
        /// What initiators take it for. What can be taken out is ejected and loaded by them, by `lunar volume eject`
        /// and `load`, and is in when Lunar starts.
        medium: Medium = or(Medium::Disk) => EndsSessions;
        /// Bytes of a logical block. A CD or DVD has 2,048, whatever is said here.
        block_size: BlockSize ["bytes"] = or(BlockSize::B512) => EndsSessions;
        /// Whether writes are refused, whoever asks.
        read_only: bool = or(false) => Attention;
        /// Whether other Lunar processes may serve its file, too, if they say so as well: for virtual machines that
        /// move from one to the other. Only one of them may have initiators or hosts at a time, for they know nothing
        /// of each other's commands and reservations. A block device is served by one process.
        shared: bool = or(false) => Live;
        /// Whether each write is on the medium before it is answered (no volatile write cache). Taken back while it is
        /// served, it stays so for SCSI initiators until they switch the cache on, or the service starts again.
        write_through: bool = or(false) => Attention;
        /// Whether the page cache is passed by (O_DIRECT).
        direct: bool = or(false) => Live;
        /// Protection information that initiators may store with each block.
        protection: Protection = or(Protection::None) => EndsSessions;
        /// Who the volume is, for ever. Made when the volume is made; what follows comes from it unless given.
        uuid: Option<Uuid> = absent() => EndsSessions;
        /// Unit serial number (VPD page 80h).
        serial: Option<Ascii<32>> = absent() => EndsSessions;
        /// NAA identifier (VPD page 83h).
        naa: Option<Naa> = absent() => EndsSessions;
        /// T10 vendor identification, at most 8 characters.
        vendor: Ascii<8> = or(Ascii::cut(VENDOR)) => EndsSessions;
        /// Product identification, at most 16 characters.
        product: Ascii<16> = or(Ascii::cut(PRODUCT)) => EndsSessions;
        /// Product revision level, at most 4 characters; without, the version of Lunar.
        revision: Option<Ascii<4>> = absent() => Attention;
        /// The pool of which an NVMe host has made it, which may delete it, too; none for what the operator shares.
        pool: Option<To<Pool>> = absent() => LaterSessions;
        /// Its namespace identifier, wherever NVMe hosts see it, if it is of a pool.
        namespace: Option<Whole<1, NAMESPACE_MAX>> = absent() => Attention;
        /// Whether one controller of NVMe hosts may have it at a time, if it is of a pool.
        private: bool = or(false) => Attention;
        /// NVMe hosts whose controllers have it from the beginning, if it is of a pool: those that were attached to it
        /// last (Namespace Attachment).
        attached: Vec<Line<NQN_BYTES_MAX>> = or(Vec::new()) => LaterSessions;
    }

    /// Portals that belong together: a target portal group (RFC 7143 4.4), which is a target port group (SPC-4), too.
    PortalGroup (made: Live, removed: EndsSessions) {
        /// Target portal group tag, and target port group.
        tag: Whole<1, 65535> = required() => EndsSessions;
        /// How well volumes can be reached through it (asymmetric access).
        alua_state: AluaState = or(AluaState::ActiveOptimized) => Attention;
        /// Whether initiators should prefer it.
        preferred: bool = or(false) => Attention;
    }

    /// A target: what initiators log in to, and NVMe hosts connect to as an NVM subsystem. It has at least one of the
    /// two names.
    Target (made: Live, removed: EndsSessions) {
        /// Its iSCSI name; without, it is not reached over iSCSI.
        iqn: Option<IscsiName> = absent() => EndsSessions;
        /// Its name as an NVM subsystem; without, it is none.
        nqn: Option<Nqn> = absent() => EndsSessions;
        /// What it is called for people (TargetAlias).
        alias: Option<Line<255>> = absent() => LaterSessions;
        /// Through which portal groups it is reached.
        portal_groups: Links<PortalGroup> = required() => EndsSessions;
        /// Who proves who he is: initiators with CHAP, NVMe hosts with DH-HMAC-CHAP.
        authentication: Authentication = or(Authentication::None) => LaterSessions;
        /// Users who may log in.
        users: Links<User> = or(Links::default()) => LaterSessions;
        /// The user as whom the target answers with mutual CHAP, and the subsystem with DH-HMAC-CHAP to hosts that ask
        /// for it.
        mutual_user: Option<To<User>> = absent() => LaterSessions;
        /// Hash algorithms of CHAP that are accepted.
        hashes: Vec<Hash> = or(ALL_HASHES) => LaterSessions;
        /// Hash functions of DH-HMAC-CHAP that are accepted, the best first.
        dhchap_hashes: Vec<DhchapHash> = or(ALL_DHCHAP_HASHES) => LaterSessions;
        /// Groups for the exchange of keys with DH-HMAC-CHAP that are accepted, the best first.
        dhchap_groups: Vec<DhchapGroup> = or(ALL_DHCHAP_GROUPS) => LaterSessions;
        /// Whether initiators may log in. Without, those who are there are asked to log out, get to finish what they
        /// do,
        /// and have ended then.
        enabled: bool = or(true) => EndsSessions;
        /// Where the target is instead: initiators that want to log in are told so (TargetAddress), and those who are
        /// there are asked to log out.
        moved_to: Option<Address<ISCSI_PORT>> = absent() => EndsSessions;
        /// Whether they shall remember that for good.
        moved_for_good: bool = or(false) => Live;
        /// Sessions at once; without, what the limits say.
        sessions: Option<Whole<1, 16384>> ["sessions"] = absent() => LaterSessions;
        /// Commands under way in a session; without, what the limits say.
        queue_depth: Option<Whole<1, 1024>> ["commands"] = absent() => LaterSessions;
    }

    /// Initiators and NVMe hosts that see the same logical units. An initiator belongs to one group of a target: the
    /// one whose pattern says most about its name, then whose network has the longest prefix, then whose name comes
    /// first. Who belongs to none is refused.
    Group (made: LaterSessions, removed: EndsSessions) {
        /// At which targets.
        targets: Links<Target> = required() => EndsSessions;
        /// Names of its initiators and of NVMe hosts (NQNs), with `*` and `?` for what is left open. `["*"]`:
        /// everybody.
        initiators: Vec<Pattern> = required() => EndsSessions;
        /// Networks that its initiators come from; without, any.
        sources: Vec<Network> = or(Vec::new()) => EndsSessions;
        /// Users who may log in from it; without, those of the target.
        users: Links<User> = or(Links::default()) => LaterSessions;
        /// Keys by which its NVMe hosts open secure channels. With any, all of them have to; they may ask in the clear
        /// what there is, unless the portal forbids it.
        tls_keys: Links<TlsKey> = or(Links::default()) => LaterSessions;
        /// What its NVMe hosts may make namespaces of; without, they make none.
        pool: Option<To<Pool>> = absent() => LaterSessions;
        /// The logical units that it sees: number = volume.
        luns: Luns = or(Luns::default()) => Attention;
    }

    /// A volume as a group sees it. `3 = "disk1"` is short for `3 = { volume = "disk1" }`.
    Lun (made: Attention, removed: Attention) {
        /// Which volume.
        volume: To<Volume> = required() => Attention;
        /// Whether this group may only read.
        read_only: bool = or(false) => Attention;
        /// Its namespace identifier for NVMe hosts; without, the number of the logical unit and one. All groups of an
        /// NVM subsystem mean the same volume by it. Numbers above 1023 without one are not shown to NVMe hosts.
        namespace: Option<Whole<1, NAMESPACE_MAX>> = absent() => Attention;
        /// Whether NVMe hosts see the protection information of its volume, as eight bytes of metadata behind each
        /// block. Linux uses such a namespace; Windows, ESXi and firmware do not. Without, it is made and checked
        /// unseen. All groups of an NVM subsystem say the same of a volume.
        metadata: bool = or(false) => Attention;
    }

    /// An address where initiators call.
    Portal (made: Live, removed: EndsSessions) {
        /// Where to listen; without a port at the usual one of the protocol. `0.0.0.0` and `::` are all addresses.
        address: OpenAddress = required() => EndsSessions;
        /// What is spoken there.
        protocol: Protocol = or(Protocol::Iscsi) => EndsSessions;
        /// The address that initiators are told (SendTargets, NVMe discovery), for those behind NAT; without, the one
        /// they came in by.
        advertise: Option<OpenAddress> = absent() => Live;
        /// Which portal group it belongs to.
        group: To<PortalGroup> = required() => EndsSessions;
        /// Whether NVMe hosts have to come by secure channels there.
        tls: Tls = or(Tls::Optional) => LaterSessions;
    }

    /// Another discovery service, of which NVMe hosts are told that ask what there is; those who still listen are told
    /// when it comes, goes or changes.
    Referral (made: Live, removed: Live) {
        /// Where it is; without a port at 8009.
        address: Address<DISCOVERY_PORT> = required() => Live;
    }

    /// A virtual machine on this machine: at a socket of its own it finds an NVMe controller (vfio-user), with the
    /// volumes that the group shows to which it belongs as a host. Groups with networks do not fit it, for it has no
    /// address, and it proves nothing: whoever may open its socket is let in.
    Vm (made: Live, removed: EndsSessions) {
        /// Of which target it sees the volumes; one with an NQN.
        target: To<Target> = required() => EndsSessions;
        /// What it is called as a host: patterns of groups go by that, and so do reservations. Without,
        /// `nqn.2026-01.io.lunar:vm:` and its name.
        host: Option<Nqn> = absent() => EndsSessions;
        /// The portal group that it counts to: how well it reaches volumes is that group's; without, in the best way.
        portal_group: Option<To<PortalGroup>> = absent() => EndsSessions;
        /// Its socket; without, `vm/NAME/cntrl` in the folder where the socket of the API is unless told otherwise.
        socket: Option<FilePath> = absent() => EndsSessions;
        /// Permissions of the socket: who may open it may use the volumes.
        mode: Mode = or(Mode(0o600)) => Live;
        /// The user who owns the socket, by name or number; without, the one that Lunar runs as. Giving it to another
        /// takes root.
        owner: Option<Line<32>> = absent() => Live;
        /// The group of this machine that the socket belongs to, by name or number; the user that Lunar runs as has to
        /// be a member.
        group: Option<Line<32>> = absent() => Live;
    }

    /// A TCP address of the API.
    ApiListener (made: Live, removed: Live) {
        /// Where to listen; without a port at 3280. Without a certificate this must be the machine itself.
        address: Address<API_PORT> = required() => Live;
        /// Certificate chain in PEM.
        certificate: Option<FilePath> = absent() => Live;
        /// Private key in PEM, mode 0600.
        key: Option<FilePath> = absent() => Live;
    }

    /// The service itself.
    Server (made: Restart, removed: Restart) {
        /// Threads that serve; without, one for each processor that the process may use.
        cores: Option<Whole<1, 256>> ["threads"] = absent() => Restart;
        /// Memory for data under way, per core.
        memory: Size ["bytes"] = or(Size(128 << 20)) => Restart;
        /// How cores talk to the kernel.
        driver: Driver = or(Driver::Auto) => Restart;
        /// How long an idle core polls before it sleeps, while load pays for it; `0s`: never.
        spin: Period = or(Period(Duration::from_micros(100))) => Restart;
        /// How long commands under way get to finish at the end.
        drain: Period = or(Period(Duration::from_secs(10))) => Live;
        /// How long what was shared before and is away at a start (a file, a device, an address) is waited for, before
        /// the others are served without it.
        patience: Period = or(Period(Duration::from_secs(30))) => Restart;
        /// Folders in which volumes may be made while it runs. Besides these it reaches the files and devices that are
        /// configured when it starts, and nothing else of the machine.
        folders: Vec<FilePath> = or(Vec::new()) => Restart;
        /// Where state is kept; without, what systemd says (STATE_DIRECTORY), or the user's own state folder.
        state: Option<FilePath> = absent() => Restart;
    }

    /// What may be used up.
    Limits (made: Live, removed: Live) {
        /// Sessions at once, in all.
        sessions: Whole<1, 16384> ["sessions"] = or(Whole::new(4096)) => LaterSessions;
        /// Commands under way in a session (the CmdSN window).
        queue_depth: Whole<1, 1024> ["commands"] = or(Whole::new(128)) => LaterSessions;
        /// Logins from one address in a second; more wait.
        login_rate: Whole<1, 10000> ["logins per second"] = or(Whole::new(20)) => Live;
        /// How long a login may take.
        login_time: Period = or(Period(Duration::from_secs(15))) => LaterSessions;
    }

    /// Discovery sessions, in which initiators and NVMe hosts ask which targets there are.
    Discovery (made: Live, removed: Live) {
        /// Who proves who he is.
        authentication: Authentication = or(Authentication::None) => LaterSessions;
        /// Users who may ask.
        users: Links<User> = or(Links::default()) => LaterSessions;
        /// The user as whom the target answers with mutual CHAP.
        mutual_user: Option<To<User>> = absent() => LaterSessions;
        /// Hash algorithms of CHAP that are accepted.
        hashes: Vec<Hash> = or(ALL_HASHES) => LaterSessions;
        /// Hash functions of DH-HMAC-CHAP that are accepted, the best first.
        dhchap_hashes: Vec<DhchapHash> = or(ALL_DHCHAP_HASHES) => LaterSessions;
        /// Groups for the exchange of keys with DH-HMAC-CHAP that are accepted, the best first.
        dhchap_groups: Vec<DhchapGroup> = or(ALL_DHCHAP_GROUPS) => LaterSessions;
    }

    /// A name server that initiators ask where there are targets (iSNS, RFC 4171). All targets with an iSCSI name that
    /// are on and have not moved are registered there, at the portals where they are reached; a portal that listens at
    /// all addresses and advertises none, at the one that the server is reached from. Who may log in is not up to it.
    Isns (made: Live, removed: Live) {
        /// Where it is: a name or an address, without a port at 3205. Without, nothing is registered.
        server: Option<Host<ISNS_PORT>> = absent() => Live;
        /// What this machine is called there (Entity Identifier); without, its host name. Whoever registers under the
        /// same name takes the place of what was registered before.
        entity: Option<Line<255>> = absent() => Live;
        /// How long the server shall remember what is not renewed; it is renewed three times in that time. A server may
        /// have a time of its own.
        period: Period = or(Period(Duration::from_secs(300))) => Live;
    }

    /// The API on this machine.
    Api (made: Live, removed: Live) {
        /// Unix socket; who may open it may do everything. Without, `/run/lunar/api.sock`, or the user's own runtime
        /// folder.
        socket: Option<FilePath> = absent() => Live;
        /// A group of this machine whose members may open the socket, besides root and the user that Lunar runs as: its
        /// name or its number. That user has to be a member, too.
        group: Option<Line<32>> = absent() => Live;
    }

    /// The log, which goes to standard error.
    Logging (made: Live, removed: Live) {
        /// What is worth a line.
        level: Level = or(Level::Info) => Live;
        /// What a line looks like.
        format: LogFormat = or(LogFormat::Text) => Live;
    }
}

/// All hash algorithms, the strongest first.
const ALL_HASHES: [Hash; 4] = [Hash::Sha3_256, Hash::Sha256, Hash::Sha1, Hash::Md5];

/// The same of DH-HMAC-CHAP.
const ALL_DHCHAP_HASHES: [DhchapHash; 3] = [DhchapHash::Sha512, DhchapHash::Sha384, DhchapHash::Sha256];

/// All groups of DH-HMAC-CHAP, in the order of preference of those who are asked for none.
const ALL_DHCHAP_GROUPS: [DhchapGroup; 6] = [
    DhchapGroup::Ffdhe3072,
    DhchapGroup::Ffdhe4096,
    DhchapGroup::Ffdhe2048,
    DhchapGroup::Ffdhe6144,
    DhchapGroup::Ffdhe8192,
    DhchapGroup::Null,
];

/// T10 vendor identification of volumes that are given none.
const VENDOR: &str = "LUNAR";
/// Product identification, likewise: the same for all kinds, so that a volume may change its store and stay what it is.
const PRODUCT: &str = "VOLUME";

/// Who a volume is of which nothing is known but its UUID: the serial number is its digits, the locally assigned NAA
/// its last 60 bits. `revision` is cut to the four characters that there are.
#[must_use]
pub fn identity_of(uuid: Uuid, revision: &str) -> Identity {
    let digits = u128::from_be_bytes(uuid.0);
    let naa = 0x3000_0000_0000_0000 | (digits as u64 & 0x0fff_ffff_ffff_ffff);
    Identity {
        vendor: VENDOR.to_owned(),
        product: PRODUCT.to_owned(),
        revision: Ascii::<4>::cut(revision).text(),
        serial: format!("{digits:032x}"),
        uuid: uuid.0,
        naa: naa.to_be_bytes(),
    }
}

fn place_of(secret: &SecretSource) -> String {
    match secret {
        SecretSource::Inline(_) => "secret in the configuration".into(),
        SecretSource::File(path) => format!("secret in {}", path.text()),
        SecretSource::Credential(name) => format!("secret is the credential {name}"),
    }
}

impl User {
    fn in_few_words(&self) -> String {
        place_of(&self.secret)
    }
}

impl TlsKey {
    fn in_few_words(&self) -> String {
        place_of(&self.secret)
    }
}

impl Referral {
    fn in_few_words(&self) -> String {
        self.address.text()
    }
}

impl ApiToken {
    fn in_few_words(&self) -> String {
        format!("may {}", self.role.word())
    }
}

impl Pool {
    fn in_few_words(&self) -> String {
        format!("{} in {}, {} namespaces at most", self.space, self.folder.text(), self.namespaces.get())
    }
}

impl Volume {
    /// The namespace that it is wherever NVMe hosts see it, if one of them has made it.
    #[must_use]
    pub fn made_namespace(&self) -> Option<u32> {
        self.pool.as_ref()?;
        // No more than there can be.
        self.namespace.map(|id| id.get() as u32)
    }

    /// Who the volume is; `None` as long as it has no UUID. What is not given is as [`identity_of`] has it.
    #[must_use]
    pub fn identity(&self, revision: &str) -> Option<Identity> {
        let base = identity_of(self.uuid?, revision);
        Some(Identity {
            vendor: self.vendor.text(),
            product: self.product.text(),
            revision: self.revision.as_ref().map_or(base.revision, Textual::text),
            serial: self.serial.as_ref().map_or(base.serial, Textual::text),
            uuid: base.uuid,
            naa: self.naa.map_or(base.naa, |naa| naa.0),
        })
    }

    fn in_few_words(&self) -> String {
        let size = self.size.map_or(String::new(), |size| format!("{size} "));
        let path = self.path.as_ref().map_or(String::new(), |path| format!(" {}", path.text()));
        let read_only = if self.read_only { ", read-only" } else { "" };
        let medium = match self.medium {
            Medium::Disk => "",
            Medium::Removable => ", removable",
            Medium::Cd => ", CD or DVD",
        };
        let kind = match self.kind {
            StoreKind::Block => "block device",
            kind => kind.word(),
        };
        format!("{size}{kind}{path}{medium}{read_only}")
    }
}

impl PortalGroup {
    fn in_few_words(&self) -> String {
        format!("tag {}, {}", self.tag.get(), self.alua_state.word())
    }
}

impl Target {
    fn in_few_words(&self) -> String {
        let names = self.iqn.iter().map(IscsiName::as_str).chain(self.nqn.iter().map(Nqn::as_str));
        let mut words: Vec<&str> = names.collect();
        if self.authentication != Authentication::None {
            words.push(self.authentication.word());
        }
        words.join(", ")
    }
}

impl Lun {
    /// The namespace that logical unit `lun` is to NVMe hosts; `None`: they are not shown it.
    #[must_use]
    pub fn namespace_of(&self, lun: u16) -> Option<u32> {
        let id = self.namespace.map_or_else(|| u64::from(lun) + 1, Whole::get);
        u32::try_from(id).ok().filter(|_| id <= NAMESPACE_MAX)
    }
}

impl Portal {
    /// Where to listen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address.or(self.usual_port())
    }

    /// What initiators are told.
    #[must_use]
    pub fn advertise(&self) -> Option<SocketAddr> {
        self.advertise.map(|address| address.or(self.usual_port()))
    }

    fn usual_port(&self) -> u16 {
        match self.protocol {
            Protocol::Iscsi => ISCSI_PORT,
            Protocol::NvmeTcp => NVME_PORT,
        }
    }
}

/// What the names of virtual machines as hosts begin with that are given none.
pub const VM_NQN: &str = "nqn.2026-01.io.lunar:vm:";

impl Vm {
    /// What the virtual machine of this name is called as a host.
    #[must_use]
    pub fn host(&self, name: &str) -> String {
        self.host.as_ref().map_or_else(|| format!("{VM_NQN}{name}"), |host| host.as_str().to_owned())
    }

    /// The socket of the virtual machine of this name; `runtime` is where sockets are that are given no place. The name
    /// is the one that clients look for in a folder.
    #[must_use]
    pub fn socket(&self, name: &str, runtime: &Path) -> PathBuf {
        let usual = || runtime.join("vm").join(name).join("cntrl");
        self.socket.as_ref().map_or_else(usual, |socket| socket.path().to_owned())
    }

    fn in_few_words(&self) -> String {
        format!("target {}", self.target.name())
    }
}

impl Group {
    fn in_few_words(&self) -> String {
        let first = self.initiators.first().map_or_else(|| "nobody".into(), Textual::text);
        let more = self.initiators.len().saturating_sub(1);
        if more == 0 { first } else { format!("{first} and {more} more") }
    }
}

impl Lun {
    fn in_few_words(&self) -> String {
        let namespace = self.namespace.map(|id| format!(", namespace {}", id.get())).unwrap_or_default();
        let read_only = if self.read_only { ", read-only" } else { "" };
        format!("{}{read_only}{namespace}{}", self.volume.name(), if self.metadata { ", metadata" } else { "" })
    }
}

impl Portal {
    fn in_few_words(&self) -> String {
        let protocol = if self.protocol == Protocol::Iscsi { "" } else { ", nvme-tcp" };
        let tls = if self.tls == Tls::Required { ", TLS" } else { "" };
        format!("{}{protocol}{tls}, portal group {}", self.address(), self.group.name())
    }
}

impl ApiListener {
    fn in_few_words(&self) -> String {
        format!("{}{}", self.address.text(), if self.certificate.is_some() { ", TLS" } else { "" })
    }
}

/// Sections that are there once need no words: there is nothing to tell them from.
macro_rules! only_one {
    ($($name:ident),+) => { $(impl $name {
        #[allow(clippy::unused_self, reason = "the same call for all sections")]
        fn in_few_words(&self) -> String {
            String::new()
        }
    })+ };
}
only_one!(Server, Limits, Discovery, Isns, Api, Logging);

//! The access control of the command line: the groups of the target and its authentication. Secrets come from files,
//! because other users can read arguments.

use clap::Args;
use lunar_control::check::{LocalHost, Outside, OutsideError};
use lunar_control::common_sections::NAMESPACE_MAX;
use lunar_core::access::{Pattern, Secret};
use lunar_engine::command_line::{Client, Draft, TARGET, secret};
use lunar_scsi::{LunMap, Mapping};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use toml::{Table, Value};

/// The prefixes of the names of clients: iSCSI names (RFC 7143 4.2.7) and NQNs (NVMe Base 2.0 4.5).
const PREFIXES: [&str; 4] = ["iqn.", "eui.", "naa.", "nqn."];
/// Bytes of the longest name of a group: that of the longest iSCSI name (RFC 7143 4.2.7.1), which is often the group's
/// name.
const NAME_BYTES_MAX: usize = 223;
/// The users of a draft: of `--user`, of `--mutual-user`, of `--discovery-user`, and of clients of this machine.
const USER: &str = "initiators";
const MUTUAL: &str = "target";
const DISCOVERY: &str = "discovery";
const LOCAL: &str = "local";

/// Which clients may log in.
#[derive(Args, Debug, Default)]
pub struct Who {
    /// Only initiators of this name, `*` for any characters, or NVMe hosts; may be given several times [default: all]
    #[arg(long, value_name = "IQN", value_parser = initiator)]
    pub initiator: Vec<String>,
    /// Initiators of this name see only these volumes (counted from 0) under these LUNs: IQN=LUN:VOLUME, or
    /// LUN:VOLUME:ro to refuse their writes, with commas between; may be given several times. Other initiators are
    /// refused, unless --initiator or --user admit them
    #[arg(long, value_name = "IQN=LUN:VOLUME[:ro],...", value_parser = map)]
    pub map: Vec<Map>,
    /// Initiators must authenticate by CHAP as this user
    #[arg(long, value_name = "NAME", requires = "secret_file")]
    pub user: Option<String>,
    /// The file with the user's secret, 12 to 255 bytes; NVMe hosts authenticate with it if it is a key of nvme
    /// gen-dhchap-key
    #[arg(long, value_name = "FILE", requires = "user", value_parser = secret::from_file)]
    pub secret_file: Option<Secret>,
    /// The name as which the target authenticates to initiators that ask for it (mutual CHAP)
    #[arg(long, value_name = "NAME", requires = "mutual_secret_file")]
    pub mutual_user: Option<String>,
    /// The file with the target's own secret, which must differ from the user's
    #[arg(long, value_name = "FILE", requires = "mutual_user", value_parser = secret::from_file)]
    pub mutual_secret_file: Option<Secret>,
    /// Initiators must authenticate as this user for discovery [default: no authentication]
    #[arg(long, value_name = "NAME", requires = "discovery_secret_file")]
    pub discovery_user: Option<String>,
    /// The file with that user's secret
    #[arg(long, value_name = "FILE", requires = "discovery_user", value_parser = secret::from_file)]
    pub discovery_secret_file: Option<Secret>,
}

/// A mistake in the options of the access control, with a message that says what to do.
#[derive(Debug)]
pub enum AccessMistake {
    /// A map names a volume that is not there.
    NoVolume {
        /// The pattern of the map.
        initiator: Arc<str>,
        /// The LUN.
        lun: u16,
        /// The position of the volume.
        volume: u16,
        /// The position of the last volume.
        last: usize,
    },
    /// Two maps have this pattern.
    MapTwice(Arc<str>),
    /// The target authenticates, and no client has to.
    MutualAlone,
    /// Some initiators of `--initiator` and of a map are the same.
    Overlap {
        /// The pattern of `--initiator`.
        initiator: String,
        /// The pattern of the map.
        map: Arc<str>,
    },
    /// There are no random bytes for the secret of clients of this machine.
    Random(OutsideError),
}

impl fmt::Display for AccessMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVolume { initiator, lun, volume, last } => {
                write!(
                    f,
                    "--map {initiator}: LUN {lun} names volume {volume}, but volumes are numbered 0 to {last}: correct \
                     the number"
                )
            }
            Self::MapTwice(initiator) => {
                write!(f, "--map {initiator} is given twice: give all its LUNs in one, with commas between")
            }
            Self::MutualAlone => f.write_str(
                "--mutual-user: the target authenticates only to clients that authenticate, and none has to; give \
                 --user, --discovery-user or --host-key, too",
            ),
            Self::Overlap { initiator, map } => write!(
                f,
                "--initiator {initiator} and --map {map} name some of the same initiators, and the first is more \
                 specific: they would see all volumes; give these initiators a --map of their own"
            ),
            Self::Random(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for AccessMistake {}

/// A pattern of names that clients can have.
fn initiator(text: &str) -> Result<String, String> {
    let fixed = text.split('*').next().unwrap_or_default().to_ascii_lowercase();
    let is_open = fixed.len() < text.len();
    let is_name = |prefix: &&str| fixed.starts_with(*prefix) || is_open && prefix.starts_with(&fixed);
    let plain = text.chars().all(|c| !c.is_whitespace() && !c.is_control());
    if plain && PREFIXES.iter().any(is_name) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "no client has a name like {text:?}: initiators are called iqn.2026-01.org.example:host, eui. or naa., NVMe \
         hosts nqn.; * stands for any characters"
    ))
}

/// The volumes that some initiators see.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    /// The pattern of their names.
    pub initiator: Arc<str>,
    /// The volumes, by their positions on the command line.
    pub luns: LunMap,
}

fn map(text: &str) -> Result<Map, String> {
    let wrong = || format!("{text:?} is not IQN=LUN:VOLUME[:ro],... such as iqn.2026-01.org.example:host=0:1,1:0:ro");
    let (name, luns) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wrong)?;
    let mapping = |text: &str| {
        let (text, read_only) = text.strip_suffix(":ro").map_or((text, false), |text| (text, true));
        let (lun, unit) = text.split_once(':')?;
        Some((lun.parse().ok()?, Mapping { unit: unit.parse().ok()?, read_only }))
    };
    let luns: Option<Vec<_>> = luns.split(',').map(mapping).collect();
    let luns = LunMap::new(luns.ok_or_else(wrong)?).map_err(|why| format!("{text:?}: {why}"))?;
    Ok(Map { initiator: initiator(name)?.into(), luns })
}

/// A group of the draft.
struct Group {
    /// Its name, which the audit log shows.
    name: String,
    /// The argument that defines it.
    argument: String,
    patterns: Vec<String>,
    /// Position of a volume by LUN, and whether writes are refused.
    luns: BTreeMap<u16, (usize, bool)>,
    /// Its own user, and whether the target authenticates, too.
    login: Option<Login>,
    tls_key: Option<String>,
}

/// The authentication of a group, if it has its own.
struct Login {
    user: String,
    mutual: Option<String>,
}

/// The volumes of a command line, as groups see them.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Their names in the draft.
    pub volumes: &'a [String],
    /// Of each, whether NVMe hosts see its protection information as metadata.
    pub metadata: &'a [bool],
}

impl Who {
    /// Whether any option restricts initiators or sets their authentication.
    #[must_use]
    pub fn is_restricted(&self) -> bool {
        self.excludes() || self.mutual_user.is_some() || self.discovery_user.is_some()
    }

    /// Whether some initiators that reach a portal may not use the volumes.
    #[must_use]
    pub fn excludes(&self) -> bool {
        !self.initiator.is_empty() || !self.map.is_empty() || self.user.is_some()
    }

    /// Adds the groups and the users to a draft. `clients` have credentials of their own; `local` ones need none.
    ///
    /// # Errors
    /// [`AccessMistake`].
    pub fn configure(
        &self,
        seen: &Seen<'_>,
        (clients, local): (&[Client], &[String]),
        draft: &mut Draft,
    ) -> Result<(), AccessMistake> {
        self.check_maps(seen.volumes.len())?;
        self.users(clients, draft)?;
        let of_client = |(number, client)| self.of_client((number, client), seen, draft);
        let mut groups: Vec<Group> = (1..).zip(clients).map(of_client).collect();
        let is_other = |map: &Map| !clients.iter().any(|client| client.name.eq_ignore_ascii_case(&map.initiator));
        groups.extend((1..).zip(&self.map).filter(|(_, map)| is_other(map)).map(mapped));
        if self.excludes() || !clients.is_empty() {
            let named: BTreeSet<String> = groups.iter().flat_map(|group| group.patterns.clone()).collect();
            let local: Vec<String> = local.iter().filter(|name| !named.contains(*name)).cloned().collect();
            groups.extend((!local.is_empty()).then(|| of_local(local, seen, draft)).transpose()?);
        }
        groups.extend(self.others(clients, &groups, seen)?);
        let by_position = needs_positions(&groups);
        for group in &groups {
            write(group, seen, by_position, draft);
        }
        Ok(())
    }

    /// Checks that maps name existing volumes, and that their patterns differ.
    fn check_maps(&self, volumes: usize) -> Result<(), AccessMistake> {
        for (at, Map { initiator, luns }) in self.map.iter().enumerate() {
            if let Some((lun, mapping)) = luns.luns().find(|(_, mapping)| usize::from(mapping.unit) >= volumes) {
                let (initiator, volume) = (initiator.clone(), mapping.unit);
                return Err(AccessMistake::NoVolume { initiator, lun, volume, last: volumes - 1 });
            }
            if self.map[..at].iter().any(|other| other.initiator.eq_ignore_ascii_case(initiator)) {
                return Err(AccessMistake::MapTwice(initiator.clone()));
            }
        }
        Ok(())
    }

    /// The users, and the authentication of the target and of discovery.
    fn users(&self, clients: &[Client], draft: &mut Draft) -> Result<(), AccessMistake> {
        let all = [
            (USER, &self.user, &self.secret_file),
            (MUTUAL, &self.mutual_user, &self.mutual_secret_file),
            (DISCOVERY, &self.discovery_user, &self.discovery_secret_file),
        ];
        for (section, name, secret) in all {
            if let (Some(name), Some(secret)) = (name, secret) {
                draft.secret("user", section, secret).set("login", name.as_str());
            }
        }
        let mutual = self.mutual_user.as_ref().map(|_| MUTUAL);
        let word = if mutual.is_some() { "mutual-chap" } else { "chap" };
        if self.user.is_some() {
            let argument = if mutual.is_some() { "--mutual-user" } else { "--user" };
            let mut target = draft.object_of(argument, "target", TARGET);
            target.set("authentication", word).set("users", vec![USER]).set_some("mutual-user", mutual);
        }
        if self.discovery_user.is_some() {
            let mut discovery = draft.section("discovery");
            discovery.set("authentication", word).set("users", vec![DISCOVERY]).set_some("mutual-user", mutual);
        }
        let authenticates = self.user.is_some() || self.discovery_user.is_some();
        if mutual.is_some() && !authenticates && clients.iter().all(|client| client.key.is_none()) {
            return Err(AccessMistake::MutualAlone);
        }
        Ok(())
    }

    /// The group of a client with credentials of its own: it is admitted by no other key. It sees the volumes of the
    /// first map for its name.
    fn of_client(&self, (number, client): (u32, &Client), seen: &Seen<'_>, draft: &mut Draft) -> Group {
        let Client { name, key, own, tls_key } = client;
        let login = key.as_ref().map(|key| {
            let (user, subsystem) = (format!("host-{number}"), format!("subsystem-{number}"));
            draft.secret("user", &user, key).set("login", name.as_str());
            if let Some(own) = own {
                draft.secret("user", &subsystem, own).set("login", "subsystem");
            }
            let mutual = self.mutual_user.as_ref().map(|_| MUTUAL.to_owned());
            Login { user, mutual: own.as_ref().map(|_| subsystem).or(mutual) }
        });
        let tls_key = tls_key.as_ref().map(|tls_key| {
            draft.secret("tls-key", name, tls_key);
            name.clone()
        });
        let map = self.map.iter().find(|map| Pattern::new(&map.initiator).fits(name));
        let luns = map.map_or_else(|| all_of(seen), |map| luns_of(&map.luns));
        let argument = if login.is_some() { "--host-key" } else { "--tls-key" };
        Group {
            name: name.clone(),
            argument: format!("{argument} {name}"),
            patterns: vec![name.clone()],
            luns,
            login,
            tls_key,
        }
    }

    /// The group of all other initiators, which see all volumes; `None` if they are refused.
    fn others(&self, clients: &[Client], groups: &[Group], seen: &Seen<'_>) -> Result<Option<Group>, AccessMistake> {
        let is_silent = self.initiator.is_empty() && self.user.is_none();
        if is_silent && (!self.map.is_empty() || !clients.is_empty()) {
            return Ok(None);
        }
        let given = if self.initiator.is_empty() { &["*".to_owned()][..] } else { &self.initiator };
        let mut patterns: Vec<String> = Vec::new();
        for text in given {
            let is_known = |known: &String| known.eq_ignore_ascii_case(text);
            let mut named = groups.iter().flat_map(|group| &group.patterns);
            if named.any(is_known) || patterns.iter().any(is_known) || self.is_mapped(text)? {
                continue;
            }
            patterns.push(text.clone());
        }
        let name = if self.initiator.is_empty() { "everybody" } else { "initiators" }.to_owned();
        let argument = patterns.first().map_or_else(String::new, |first| format!("--initiator {first}"));
        let group = Group { name, argument, patterns, luns: all_of(seen), login: None, tls_key: None };
        Ok(Some(group).filter(|group| !group.patterns.is_empty()))
    }

    /// Whether all names of a pattern belong to maps, each of which shows only its volumes.
    fn is_mapped(&self, text: &str) -> Result<bool, AccessMistake> {
        let own = Pattern::new(text);
        for map in &self.map {
            let pattern = Pattern::new(&map.initiator);
            // A star stands for any characters, so a pattern that fits the text of another one fits all its names.
            if pattern.fits(text) {
                return Ok(true);
            }
            if own.weight() > pattern.weight() && overlap(text.as_bytes(), map.initiator.as_bytes()) {
                return Err(AccessMistake::Overlap { initiator: text.to_owned(), map: map.initiator.clone() });
            }
        }
        Ok(false)
    }
}

/// Whether a name fits both patterns, in time proportional to the product of their lengths.
fn overlap(one: &[u8], other: &[u8]) -> bool {
    // `fits[j]`: whether the rest of `one` and `other[j..]` have a name in common.
    let mut fits: Vec<bool> = (0..=other.len()).map(|at| other[at..].iter().all(|byte| *byte == b'*')).collect();
    for byte in one.iter().rev() {
        let mut next = vec![false; other.len() + 1];
        next[other.len()] = *byte == b'*' && fits[other.len()];
        for at in (0..other.len()).rev() {
            next[at] = match (*byte, other[at]) {
                (b'*', _) => fits[at] || next[at + 1],
                (_, b'*') => next[at + 1] || fits[at],
                (own, its) => own.eq_ignore_ascii_case(&its) && fits[at + 1],
            };
        }
        fits = next;
    }
    fits[0]
}

fn all_of(seen: &Seen<'_>) -> BTreeMap<u16, (usize, bool)> {
    (0..=u16::MAX).zip(0..seen.volumes.len()).map(|(lun, position)| (lun, (position, false))).collect()
}

fn luns_of(map: &LunMap) -> BTreeMap<u16, (usize, bool)> {
    map.luns().map(|(lun, to)| (lun, (usize::from(to.unit), to.read_only))).collect()
}

fn mapped((number, map): (u32, &Map)) -> Group {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
    let is_name = map.initiator.len() <= NAME_BYTES_MAX && map.initiator.chars().all(plain);
    Group {
        name: if is_name { map.initiator.to_string() } else { format!("map-{number}") },
        argument: format!("--map {}", map.initiator),
        patterns: vec![map.initiator.to_string()],
        luns: luns_of(&map.luns),
        login: None,
        tls_key: None,
    }
}

/// The clients of this machine that have sockets of their own: the permissions of the socket are their only access
/// control. A host that gives one of their names over a network is refused, because their user has a random secret.
fn of_local(patterns: Vec<String>, seen: &Seen<'_>, draft: &mut Draft) -> Result<Group, AccessMistake> {
    let random = LocalHost { config: PathBuf::new() }.random().map_err(AccessMistake::Random)?;
    draft.secret("user", LOCAL, &Secret::of_any_length(random.to_vec()));
    let login = Some(Login { user: LOCAL.to_owned(), mutual: None });
    Ok(Group {
        name: "vms".to_owned(),
        argument: "--vm".to_owned(),
        patterns,
        luns: all_of(seen),
        login,
        tls_key: None,
    })
}

/// Whether the pattern fits names of NVMe hosts.
fn may_have_hosts(group: &Group) -> bool {
    group.patterns.iter().any(|pattern| {
        let fixed = pattern.split('*').next().unwrap_or_default();
        fixed.starts_with("nqn.") || fixed.len() < pattern.len() && "nqn.".starts_with(fixed)
    })
}

/// LUN n is namespace n + 1. Where that would give one identifier to two volumes, or two to one, the volume at position
/// n is namespace n + 1: within an NVM subsystem an identifier means one namespace (NVMe Base 2.0 3.2.1.6).
fn needs_positions(groups: &[Group]) -> bool {
    let (mut volumes, mut luns) = (BTreeMap::new(), BTreeMap::new());
    let hosts = groups.iter().filter(|group| may_have_hosts(group));
    let mut all = hosts.flat_map(|group| group.luns.iter().map(|(lun, (position, _))| (*lun, *position)));
    all.any(|(lun, position)| {
        *volumes.entry(lun).or_insert(position) != position || *luns.entry(position).or_insert(lun) != lun
    })
}

fn write(group: &Group, seen: &Seen<'_>, by_position: bool, draft: &mut Draft) {
    let lun = |(lun, (position, read_only)): (&u16, &(usize, bool))| {
        let mut keys = Table::new();
        keys.insert("volume".to_owned(), seen.volumes[*position].as_str().into());
        if *read_only {
            keys.insert("read-only".to_owned(), true.into());
        }
        if seen.metadata[*position] {
            keys.insert("metadata".to_owned(), true.into());
        }
        if by_position && (*position as u64) < NAMESPACE_MAX {
            keys.insert("namespace".to_owned(), Value::Integer(*position as i64 + 1));
        }
        (lun.to_string(), Value::Table(keys))
    };
    let luns: Table = group.luns.iter().map(lun).collect();
    let mut keys = draft.object_of(&group.argument, "group", &group.name);
    keys.set("targets", vec![TARGET]).set("initiators", group.patterns.clone()).set("luns", luns);
    if let Some(Login { user, mutual }) = &group.login {
        let word = if mutual.is_some() { "mutual-chap" } else { "chap" };
        keys.set("authentication", word).set("users", vec![user.as_str()]).set_some("mutual-user", mutual.clone());
    }
    keys.set_some("tls-keys", group.tls_key.clone().map(|tls_key| vec![tls_key]));
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;

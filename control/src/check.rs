//! What no key can know alone: names that lead nowhere, things that are there twice, what goes together; and the
//! secrets themselves. All that is wrong is told at once.

mod nvme;

pub use nvme::SOCKET_PATH_MAX;

use crate::config::{Broken, Config, Id, Kind, parse};
use crate::links::{Links, To};
use crate::model::{
    ApiListener, Authentication, BlockSize, Discovery, Group, Hash as HashName, Medium, Protection, StoreKind, Target,
    User, Volume,
};
use crate::names::{Network, Pattern, Uuid};
use crate::report::{Mark, Problems, Report, did_you_mean};
use crate::secret::{Secret, SecretSource};
use crate::section::Marks;
use crate::value::Textual;
use lunar_core::access::written::{Purpose, Written};
use lunar_core::access::{SECRET_MAX, SECRET_MIN};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::hash::Hash;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of a token at least: 128 bits, for who has it needs nothing else.
const TOKEN_BYTES_MIN: usize = 16;
/// Bytes of a token at most: it travels in one line of a header.
const TOKEN_BYTES_MAX: usize = 1024;
/// Bytes of a file with a secret at most; more is another file.
const SECRET_FILE_BYTES_MAX: u64 = 4096;
/// The shortest period of a registration: what is renewed every five seconds may get lost twice.
const ISNS_PERIOD_MIN: Duration = Duration::from_secs(15);
/// The longest: a machine that is gone is forgotten within a day.
const ISNS_PERIOD_MAX: Duration = Duration::from_secs(86_400);
/// Permissions of group and others, which a file with a secret grants none of.
const OTHERS: u32 = 0o077;

/// What a check asks of the machine.
pub trait Outside {
    /// The permissions of the configuration itself; `None` if it is not in a file.
    fn config_mode(&self) -> Option<u32>;

    /// The permissions of a file.
    ///
    /// # Errors
    /// In words that go on after the path: `cannot be read: ...`.
    fn mode(&self, path: &Path) -> Result<u32, String>;

    /// The bytes of a small file.
    ///
    /// # Errors
    /// As [`Outside::mode`].
    fn read(&self, path: &Path) -> Result<Vec<u8>, String>;

    /// Where systemd puts the credential of this name.
    ///
    /// # Errors
    /// In words.
    fn credential(&self, name: &str) -> Result<PathBuf, String>;

    /// Who a volume is that has been shared before under another configuration, or none; `None` for one that has not.
    fn mark(&self, volume: &Volume) -> Option<Uuid> {
        let _ = volume;
        None
    }

    /// Sixteen bytes that nobody can guess.
    ///
    /// # Errors
    /// In words.
    fn random(&self) -> Result<[u8; 16], String>;
}

/// The machine that the configuration is for: this one.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Where the configuration is.
    pub config: PathBuf,
}

impl Outside for Machine {
    fn config_mode(&self) -> Option<u32> {
        std::fs::metadata(&self.config).ok().map(|found| found.mode())
    }

    fn mode(&self, path: &Path) -> Result<u32, String> {
        std::fs::metadata(path).map(|found| found.mode()).map_err(|why| format!("cannot be read: {why}"))
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::with_capacity(SECRET_FILE_BYTES_MAX as usize + 1);
        let file = File::open(path).map_err(|why| format!("cannot be read: {why}"))?;
        file.take(SECRET_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|why| format!("cannot be read: {why}"))?;
        Ok(bytes)
    }

    fn credential(&self, name: &str) -> Result<PathBuf, String> {
        let folder = std::env::var_os("CREDENTIALS_DIRECTORY");
        let folder = folder.ok_or("systemd hands over no credentials: LoadCredential= in the unit does that")?;
        Ok(Path::new(&folder).join(name))
    }

    fn random(&self) -> Result<[u8; 16], String> {
        let mut bytes = [0; 16];
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(16) => Ok(bytes),
            Ok(_) => Err("the kernel gave too little that is random".into()),
            Err(why) => Err(format!("the kernel gave nothing that is random: {why}")),
        }
    }
}

/// The machine, and who the volumes on it are ([`Outside::mark`]).
#[derive(Clone, Debug)]
pub struct Marked<F>(pub Machine, pub F);

impl<F: Fn(&Volume) -> Option<Uuid>> Outside for Marked<F> {
    fn config_mode(&self) -> Option<u32> {
        self.0.config_mode()
    }

    fn mode(&self, path: &Path) -> Result<u32, String> {
        self.0.mode(path)
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        self.0.read(path)
    }

    fn credential(&self, name: &str) -> Result<PathBuf, String> {
        self.0.credential(name)
    }

    fn random(&self) -> Result<[u8; 16], String> {
        self.0.random()
    }

    fn mark(&self, volume: &Volume) -> Option<Uuid> {
        (self.1)(volume)
    }
}

/// A configuration that can be put in force, with its secrets.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Checked {
    /// What it says.
    pub config: Config,
    users: BTreeMap<String, Secret>,
    tls_keys: BTreeMap<String, Secret>,
    tokens: BTreeMap<String, Secret>,
    /// What is in the files of certificates and their keys, by their listeners: these are renewed in their places.
    certificates: BTreeMap<String, Secret>,
}

impl Checked {
    /// The secret of a user.
    #[must_use]
    pub fn user_secret(&self, user: &str) -> Option<&Secret> {
        self.users.get(user)
    }

    /// A key of secure channels.
    #[must_use]
    pub fn tls_key(&self, name: &str) -> Option<&Secret> {
        self.tls_keys.get(name)
    }

    /// A token of the API.
    #[must_use]
    pub fn token(&self, name: &str) -> Option<&Secret> {
        self.tokens.get(name)
    }

    /// What the certificate of a listener and its key are, whatever their files are called.
    #[must_use]
    pub fn certificate(&self, listener: &str) -> Option<&Secret> {
        self.certificates.get(listener)
    }

    /// The token of the API that these bytes are: its name. Takes the same time whichever it is.
    #[must_use]
    pub fn who_has(&self, token: &[u8]) -> Option<&str> {
        let token = Secret::of_any_length(token.to_vec());
        let mut found = None;
        for (name, secret) in &self.tokens {
            if *secret == token {
                found = Some(name.as_str());
            }
        }
        found
    }

    /// The secret that belongs to a thing.
    pub(crate) fn secret(&self, id: Id<'_>) -> Option<&Secret> {
        match id.kind {
            Kind::User => self.users.get(id.name),
            Kind::TlsKey => self.tls_keys.get(id.name),
            Kind::ApiToken => self.tokens.get(id.name),
            Kind::ApiListener => self.certificates.get(id.name),
            _ => None,
        }
    }
}

/// Reads the text of a file, called `file`, and checks all of it.
///
/// # Errors
/// Everything that is wrong, in the order of the file.
pub fn check(file: &str, text: &str, outside: &dyn Outside) -> Result<Checked, Problems> {
    let mut report = Report::default();
    let (config, broken) = parse(text, &mut report);
    let mut look = Look { report, broken, outside };
    look.names(&config);
    look.volumes(&config);
    look.ports(&config);
    look.groups(&config);
    look.nvme(&config);
    let users = look.users(&config);
    let tls_keys = look.tls_keys(&config);
    let tokens = look.tokens(&config);
    look.logins(&config, &users);
    look.hosts(&config, &users);
    look.api(&config);
    let certificates = look.certificates(&config);
    look.isns(&config);
    match look.report.is_clean() {
        true => Ok(Checked { config, users, tls_keys, tokens, certificates }),
        false => Err(look.report.finish(file, text)),
    }
}

struct Look<'a> {
    report: Report,
    broken: Broken,
    outside: &'a dyn Outside,
}

/// Finds what is there twice.
struct Once<K> {
    seen: HashMap<K, String>,
}

impl<K: Hash + Eq> Once<K> {
    fn new() -> Self {
        Self { seen: HashMap::new() }
    }

    /// Who else has it, if somebody has.
    fn also(&mut self, key: K, who: &str) -> Option<String> {
        match self.seen.get(&key) {
            Some(other) => Some(other.clone()),
            None => {
                self.seen.insert(key, who.to_owned());
                None
            }
        }
    }
}

impl Look<'_> {
    fn add(&mut self, id: Id<'_>, key: &str, at: Mark, what: impl Into<String>) {
        let lun = id.lun.map(|lun| lun.to_string());
        let steps = match &lun {
            Some(lun) => vec![Kind::Group.section(), id.name, "luns", lun, key],
            None => vec![id.kind.section(), id.name, key],
        };
        let steps: Vec<&str> = steps.into_iter().filter(|step| !step.is_empty()).collect();
        add_at(&mut self.report, &steps, at, what.into());
    }

    /// Names that lead nowhere.
    fn names(&mut self, config: &Config) {
        for (id, object) in config.objects() {
            for (key, field) in object.keys().iter().zip(object.fields()) {
                field.mentions(&mut |kind, name, at| {
                    let known = config.get(kind, name).is_some() || self.broken.contains(&(kind, name.to_owned()));
                    if !known {
                        let full = self.report.is_full();
                        let guess = if full { String::new() } else { did_you_mean(name, config.names(kind)) };
                        self.add(id, &key.name(), at, format!("there is no {kind} '{name}'{guess}"));
                    }
                });
            }
        }
    }

    fn volumes(&mut self, config: &Config) {
        let (mut paths, mut uuids, mut serials, mut naas) = (Once::new(), Once::new(), Once::new(), Once::new());
        for (name, volume) in &config.volumes {
            let id = Id { kind: Kind::Volume, name, lun: None };
            self.volume(id, volume);
            let twins = [
                ("path", volume.path.clone().and_then(|path| paths.also(path, name))),
                ("uuid", volume.uuid.and_then(|uuid| uuids.also(uuid, name))),
                ("serial", volume.serial.clone().and_then(|serial| serials.also(serial, name))),
                ("naa", volume.naa.and_then(|naa| naas.also(naa, name))),
            ];
            for (key, twin) in twins {
                if let Some(twin) = twin {
                    let what = format!("is that of volume {twin}, too: initiators would take the two for one");
                    self.add(id, key, volume.marks.of(key), what);
                }
            }
        }
    }

    fn volume(&mut self, id: Id<'_>, volume: &Volume) {
        let kind = volume.kind.word();
        let on_disk = matches!(volume.kind, StoreKind::File | StoreKind::Block);
        if on_disk && volume.path.is_none() {
            self.add(id, "", volume.marks.whole, format!("has no 'path', which a volume of kind {kind} needs"));
        }
        if !on_disk && volume.path.is_some() {
            let what = format!("a volume of kind {kind} is nowhere: it has no path");
            self.add(id, "path", volume.marks.of("path"), what);
        }
        if !on_disk && volume.size.is_none() {
            self.add(id, "", volume.marks.whole, format!("has no 'size', which a volume of kind {kind} needs"));
        }
        if volume.kind == StoreKind::Block && volume.size.is_some() {
            self.add(id, "size", volume.marks.of("size"), "a block device has its size: leave this out");
        }
        if let Some(size) = volume.size
            && (size.0 == 0 || !size.0.is_multiple_of(volume.block_size.bytes().into()))
        {
            let what = format!("is not a whole number of {}-byte blocks, one at least", volume.block_size.bytes());
            self.add(id, "size", volume.marks.of("size"), what);
        }
        if volume.direct && !on_disk {
            let what = format!("a volume of kind {kind} has no page cache to pass by");
            self.add(id, "direct", volume.marks.of("direct"), what);
        }
        self.medium(id, volume);
    }

    /// What a medium that comes and goes cannot have.
    fn medium(&mut self, id: Id<'_>, volume: &Volume) {
        if volume.medium.comes_and_goes() && volume.protection != Protection::None {
            let what = "what protects blocks would stay behind when they are taken out: leave this out";
            self.add(id, "protection", volume.marks.of("protection"), what);
        }
        if volume.medium != Medium::Cd {
            return;
        }
        let wrong = [
            ("kind", !matches!(volume.kind, StoreKind::File | StoreKind::Block), "a CD or DVD is an image in a file"),
            ("size", volume.size.is_some(), "an image has its size, and none is made: leave this out"),
            (
                "block-size",
                volume.block_size != BlockSize::B512,
                "a CD or DVD has blocks of 2,048 bytes: leave this out",
            ),
            ("direct", volume.direct, "an image is read through the page cache: leave this out"),
        ];
        for (key, is_wrong, what) in wrong {
            if is_wrong {
                self.add(id, key, volume.marks.of(key), what);
            }
        }
    }

    /// Portal groups, targets, and addresses to listen at.
    fn ports(&mut self, config: &Config) {
        let (mut tags, mut names) = (Once::new(), Once::new());
        for (name, group) in &config.portal_groups {
            if let Some(twin) = tags.also(group.tag.get(), name) {
                let id = Id { kind: Kind::PortalGroup, name, lun: None };
                self.add(id, "tag", group.marks.of("tag"), format!("is that of portal group {twin}, too"));
            }
        }
        for (name, target) in &config.targets {
            let id = Id { kind: Kind::Target, name, lun: None };
            if target.iqn.is_none() && target.nqn.is_none() {
                self.add(id, "", target.marks.whole, "has no name: give it 'iqn' for iSCSI, 'nqn' for NVMe, or both");
            }
            // Names of iSCSI are compared after stringprep: without regard to case.
            let iqn = target.iqn.as_ref().map(|iqn| iqn.as_str().to_ascii_lowercase());
            let twins = [
                ("iqn", iqn.and_then(|iqn| names.also(iqn, name))),
                ("nqn", target.nqn.as_ref().and_then(|nqn| names.also(nqn.as_str().to_owned(), name))),
            ];
            for (key, twin) in twins {
                if let Some(twin) = twin {
                    self.add(id, key, target.marks.of(key), format!("is that of target {twin}, too"));
                }
            }
        }
        let mut taken = Taken::default();
        for (name, portal) in &config.portals {
            let id = Id { kind: Kind::Portal, name, lun: None };
            if let Some(other) = taken.by(portal.address(), id) {
                self.add(id, "address", portal.marks.of("address"), format!("overlaps that of {other}"));
            }
        }
        for (name, listener) in &config.api_listeners {
            let id = Id { kind: Kind::ApiListener, name, lun: None };
            if let Some(other) = taken.by(listener.address.0, id) {
                self.add(id, "address", listener.marks.of("address"), format!("overlaps that of {other}"));
            }
        }
    }

    /// Initiators that belong to two groups in the same way.
    fn groups(&mut self, config: &Config) {
        let mut members = Once::new();
        for (name, group) in &config.groups {
            let id = Id { kind: Kind::Group, name, lun: None };
            let mut volumes = Once::new();
            for (number, lun) in &group.luns.0 {
                if let Some(twin) = volumes.also(lun.volume.name(), &number.to_string()) {
                    let at = Id { kind: Kind::Lun, name, lun: Some(*number) };
                    let what = format!("is LUN {twin} of this group, too: initiators would take the two for two paths");
                    self.add(at, "volume", lun.marks.of("volume"), what);
                }
            }
            if let Some((target, pattern, twin)) = shared_member(name, group, &mut members) {
                let what = format!("'{pattern}' is in group {twin} of target {target}, too, from the same networks");
                self.add(id, "initiators", group.marks.of("initiators"), what);
            }
        }
    }

    fn users(&mut self, config: &Config) -> BTreeMap<String, Secret> {
        let sources = config.users.iter().map(|(name, user)| (name, &user.secret, user.marks.of("secret")));
        let users = self.secrets(Kind::User, SECRET_MIN..=SECRET_MAX, sources);
        // Who begins like this is meant to be a key: as a secret of CHAP nobody would take it.
        let is_meant = |secret: &Secret| secret.bytes().starts_with(Purpose::Proof.prefix().as_bytes());
        let keys = users.iter().filter(|(_, secret)| is_meant(secret));
        self.written(Kind::User, Purpose::Proof, keys, |name| config.users.get(name).map(|user| &user.marks));
        users
    }

    fn tls_keys(&mut self, config: &Config) -> BTreeMap<String, Secret> {
        let sources = config.tls_keys.iter().map(|(name, key)| (name, &key.secret, key.marks.of("secret")));
        let keys = self.secrets(Kind::TlsKey, SECRET_MIN..=SECRET_MAX, sources);
        self.written(Kind::TlsKey, Purpose::Channel, keys.iter(), |name| {
            config.tls_keys.get(name).map(|key| &key.marks)
        });
        keys
    }

    /// Keys that are not written as keys are.
    fn written<'c>(
        &mut self,
        kind: Kind,
        purpose: Purpose,
        keys: impl Iterator<Item = (&'c String, &'c Secret)>,
        marks: impl Fn(&str) -> Option<&'c Marks>,
    ) {
        for (name, secret) in keys {
            if let Err(why) = Written::parse(purpose, secret.bytes()) {
                let at = marks(name).map(|marks| marks.of("secret")).unwrap_or_default();
                self.add(Id { kind, name, lun: None }, "secret", at, format!("is no key: {why}"));
            }
        }
    }

    fn tokens(&mut self, config: &Config) -> BTreeMap<String, Secret> {
        let sources = config.api_tokens.iter().map(|(name, token)| (name, &token.secret, token.marks.of("secret")));
        self.secrets(Kind::ApiToken, TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX, sources)
    }

    fn secrets<'c>(
        &mut self,
        kind: Kind,
        lengths: RangeInclusive<usize>,
        sources: impl Iterator<Item = (&'c String, &'c SecretSource, Mark)>,
    ) -> BTreeMap<String, Secret> {
        let mut secrets = BTreeMap::new();
        for (name, source, at) in sources {
            let id = Id { kind, name, lun: None };
            match self.secret(source) {
                Ok(secret) if lengths.contains(&secret.bytes().len()) => drop(secrets.insert(name.clone(), secret)),
                Ok(secret) => {
                    let (least, most) = (lengths.start(), lengths.end());
                    let what = format!("has {} bytes; a secret has {least} to {most}, at random", secret.bytes().len());
                    self.add(id, "secret", at, what);
                }
                Err(why) => self.add(id, "secret", at, why),
            }
        }
        secrets
    }

    /// The secret itself; in words why not.
    fn secret(&self, source: &SecretSource) -> Result<Secret, String> {
        match source {
            SecretSource::Inline(secret) => match self.outside.config_mode() {
                Some(mode) if mode & OTHERS != 0 => Err(format!(
                    "stands in a file that others may read (mode {:04o}): chmod 600, or put it into a file of its own",
                    mode & 0o7777
                )),
                _ => Ok(secret.clone()),
            },
            SecretSource::File(path) => {
                self.closed(path.path())?;
                self.secret_bytes(path.path())
            }
            // systemd sees to who may read it.
            SecretSource::Credential(name) => self.secret_bytes(&self.outside.credential(name)?),
        }
    }

    fn closed(&self, path: &Path) -> Result<(), String> {
        let mode = self.outside.mode(path).map_err(|why| format!("{} {why}", path.display()))?;
        if mode & OTHERS == 0 {
            return Ok(());
        }
        Err(format!("{} may be read by others (mode {:04o}): chmod 600 it", path.display(), mode & 0o7777))
    }

    fn secret_bytes(&self, path: &Path) -> Result<Secret, String> {
        let mut bytes = self.outside.read(path).map_err(|why| format!("{} {why}", path.display()))?;
        if bytes.len() as u64 > SECRET_FILE_BYTES_MAX {
            return Err(format!("{} is too large for a secret", path.display()));
        }
        if bytes.last() == Some(&b'\n') {
            bytes.truncate(bytes.len() - if bytes.ends_with(b"\r\n") { 2 } else { 1 });
        }
        Ok(Secret::of_any_length(bytes))
    }

    /// Who proves who he is, and to whom.
    fn logins(&mut self, config: &Config, secrets: &BTreeMap<String, Secret>) {
        let mut by_target: BTreeMap<&str, Vec<(&str, &Group)>> = BTreeMap::new();
        for (name, group) in config.groups.iter().filter(|(_, group)| !group.users.is_empty()) {
            group.targets.names().for_each(|target| by_target.entry(target).or_default().push((name, group)));
        }
        for (name, target) in &config.targets {
            let Target { authentication, users, mutual_user, hashes, marks, .. } = target;
            let id = Id { kind: Kind::Target, name, lun: None };
            let groups = by_target.remove(name.as_str()).unwrap_or_default();
            let login = Login { authentication: *authentication, users, mutual: mutual_user.as_ref(), hashes };
            for (key, what) in login.wrong(secrets, !groups.is_empty()) {
                self.add(id, key, marks.of(key), what);
            }
            for (group, Group { users, marks, .. }) in groups {
                let id = Id { kind: Kind::Group, name: group, lun: None };
                if *authentication == Authentication::None {
                    let what = format!("says who may log in, but at target {name} nobody proves who he is");
                    self.add(id, "users", marks.of("users"), what);
                } else if let Some(what) = (Login { users, ..login }).same_secret(secrets) {
                    self.add(id, "users", marks.of("users"), what);
                }
            }
        }
        let Discovery { authentication, users, mutual_user, hashes, marks, .. } = &config.discovery;
        let login = Login { authentication: *authentication, users, mutual: mutual_user.as_ref(), hashes };
        for (key, what) in login.wrong(secrets, false) {
            self.add(Id { kind: Kind::Discovery, name: "", lun: None }, key, marks.of(key), what);
        }
    }

    /// What is renewed three times in the period would be a flood, or never noticed.
    fn isns(&mut self, config: &Config) {
        let (period, marks) = (config.isns.period.0, &config.isns.marks);
        if period < ISNS_PERIOD_MIN || period > ISNS_PERIOD_MAX {
            let id = Id { kind: Kind::Isns, name: "", lun: None };
            let what = format!("is {}; it is {} s to a day", config.isns.period.text(), ISNS_PERIOD_MIN.as_secs());
            self.add(id, "period", marks.of("period"), what);
        }
    }

    /// What cannot be read was said by [`Look::api`].
    fn certificates(&self, config: &Config) -> BTreeMap<String, Secret> {
        let read = |listener: &ApiListener| {
            let mut both = self.outside.read(listener.certificate.as_ref()?.path()).ok()?;
            both.extend(self.outside.read(listener.key.as_ref()?.path()).ok()?);
            Some(Secret::of_any_length(both))
        };
        config.api_listeners.iter().filter_map(|(name, listener)| Some((name.clone(), read(listener)?))).collect()
    }

    fn api(&mut self, config: &Config) {
        for (name, listener) in &config.api_listeners {
            let id = Id { kind: Kind::ApiListener, name, lun: None };
            let marks = &listener.marks;
            match (&listener.certificate, &listener.key) {
                (None, None) if !listener.address.0.ip().is_loopback() => {
                    let what = "without a certificate everybody on the way could read the tokens: \
                                give certificate and key, or listen at 127.0.0.1";
                    self.add(id, "address", marks.of("address"), what);
                }
                (Some(_), None) => self.add(id, "certificate", marks.of("certificate"), "needs its 'key'"),
                (None, Some(_)) => self.add(id, "key", marks.of("key"), "needs its 'certificate'"),
                _ => {}
            }
            if let Some(certificate) = &listener.certificate
                && let Err(why) = self.outside.mode(certificate.path())
            {
                self.add(id, "certificate", marks.of("certificate"), format!("{} {why}", certificate.text()));
            }
            if let Some(key) = &listener.key
                && let Err(why) = self.closed(key.path())
            {
                self.add(id, "key", marks.of("key"), why);
            }
            if config.api_tokens.is_empty() {
                self.add(id, "", marks.whole, "nobody could use it: there is no api-token");
            }
        }
    }
}

/// Reports a problem with the key at these steps from the root.
fn add_at(report: &mut Report, steps: &[&str], at: Mark, what: String) {
    match steps {
        [] => report.add(at, what),
        [first, rest @ ..] => report.within(first, |report| add_at(report, rest, at, what)),
    }
}

/// How somebody logs in.
#[derive(Clone, Copy)]
struct Login<'a> {
    authentication: Authentication,
    users: &'a Links<User>,
    mutual: Option<&'a To<User>>,
    hashes: &'a [HashName],
}

impl Login<'_> {
    /// What does not go together: keys, and why.
    fn wrong(&self, secrets: &BTreeMap<String, Secret>, has_others: bool) -> Vec<(&'static str, String)> {
        let mut wrong = Vec::new();
        if self.authentication == Authentication::None {
            let say = "but nobody proves who he is: did you mean authentication = \"chap\"?";
            if !self.users.is_empty() {
                wrong.push(("users", format!("says who may log in, {say}")));
            }
            if self.mutual.is_some() {
                wrong.push(("mutual-user", format!("says who the target is, {say}")));
            }
            return wrong;
        }
        let word = self.authentication.word();
        if self.users.is_empty() && !has_others {
            wrong.push(("authentication", format!("is {word}, but there are no users: nobody could log in")));
        }
        if self.hashes.is_empty() {
            wrong.push(("hashes", format!("is empty, but authentication is {word}: nobody could log in")));
        }
        match (self.authentication, self.mutual) {
            (Authentication::MutualChap, None) => {
                wrong.push(("authentication", format!("is {word}, which needs a 'mutual-user'")));
            }
            (Authentication::Chap, Some(_)) => {
                wrong.push(("mutual-user", format!("says who the target is, but authentication is {word} only")));
            }
            _ => {}
        }
        wrong.extend(self.same_secret(secrets).map(|what| ("mutual-user", what)));
        wrong
    }

    /// RFC 7143 9.2.1: with one secret for both directions, the target would answer its own challenge for anybody.
    fn same_secret(&self, secrets: &BTreeMap<String, Secret>) -> Option<String> {
        let mutual = self.mutual?.name();
        let own = secrets.get(mutual)?;
        let twin = self.users.names().find(|user| secrets.get(*user).is_some_and(|secret| secret == own))?;
        Some(format!("user {mutual} has the secret of user {twin}: each direction has its own (RFC 7143 9.2.1)"))
    }
}

/// Addresses that are taken.
#[derive(Default)]
struct Taken<'a> {
    /// By port and whether it is IPv6: the two are apart, even where all addresses are meant.
    ports: HashMap<(u16, bool), BTreeMap<IpAddr, Id<'a>>>,
}

impl<'a> Taken<'a> {
    /// Who has this address already; all addresses of a family are every one of them.
    fn by(&mut self, address: SocketAddr, id: Id<'a>) -> Option<Id<'a>> {
        let (ip, family) = (address.ip(), address.is_ipv6());
        let taken = self.ports.entry((address.port(), family)).or_default();
        let all = if family { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        let other = match ip.is_unspecified() {
            true => taken.values().next(),
            false => taken.get(&ip).or_else(|| taken.get(&all)),
        };
        let other = other.copied();
        taken.entry(ip).or_insert(id);
        other
    }
}

/// A pattern and a network, by which a group has an initiator at a target.
type Member<'a> = (&'a str, &'a Pattern, Option<Network>);

/// A member of this group that another one has already: target, pattern, the other group.
fn shared_member<'a>(
    name: &str,
    group: &'a Group,
    members: &mut Once<Member<'a>>,
) -> Option<(&'a str, String, String)> {
    let any = [None];
    let some: Vec<Option<Network>> = group.sources.iter().copied().map(Some).collect();
    let sources = if some.is_empty() { &any[..] } else { &some[..] };
    let mut found = None;
    for target in group.targets.names() {
        for pattern in &group.initiators {
            for source in sources {
                if let Some(twin) = members.also((target, pattern, *source), name) {
                    found.get_or_insert_with(|| (target, pattern.text(), twin));
                }
            }
        }
    }
    found
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;

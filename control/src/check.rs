//! The checks across keys and resources: references to missing resources, duplicates, combinations; and the secrets
//! themselves. All mistakes are reported at once.

mod login;
mod nvme;
mod outside;

pub use outside::{LocalHost, Marked, Outside, OutsideError};

use crate::common_sections::{ApiListener, BlockSize, Group, Medium, Protection, Volume};
use crate::config::{Broken, Config, parse};
use crate::kind::{Id, Kind};
use crate::names::{Network, Pattern};
use crate::report::{Mark, Problems, Report, did_you_mean};
use crate::schema::{Schema, SizeRule};
use crate::secret::{HIDDEN, Secret, SecretSource};
use crate::section::Marks;
use crate::value::Textual;
use lunar_core::access::written::{Purpose, Written};
use lunar_core::access::{SECRET_MAX, SECRET_MIN};
use outside::SecretError;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

/// The least bytes of a token: 128 bits, because it is the only credential.
const TOKEN_BYTES_MIN: usize = 16;
/// The most bytes of a token: it is sent in one line of a header.
const TOKEN_BYTES_MAX: usize = 1024;
/// The most bytes of a file with a secret: a larger file is the wrong file.
const SECRET_FILE_BYTES_MAX: u64 = 4096;
/// The shortest registration period: with a renewal every five seconds, two messages may be lost.
const ISNS_PERIOD_MIN: Duration = Duration::from_secs(15);
/// The longest registration period: the server removes an absent host within a day.
const ISNS_PERIOD_MAX: Duration = Duration::from_secs(86_400);
/// The permissions of group and others, which a file with a secret must not grant.
const OTHERS: u32 = 0o077;

/// A valid configuration with its secrets.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Checked {
    /// The configuration.
    pub config: Config,
    users: BTreeMap<String, Secret>,
    tls_keys: BTreeMap<String, Secret>,
    tokens: BTreeMap<String, Secret>,
    /// The contents of certificates and their private keys, by listener: the files may be renewed in place.
    certificates: BTreeMap<String, Secret>,
}

impl Checked {
    /// The configuration of an empty file, with the defaults of the keys that fronts add.
    #[must_use]
    pub fn empty(schema: &'static Schema) -> Self {
        Self { config: parse("", &mut Report::new(schema)).0, ..Self::default() }
    }

    /// A version of the history, as far as it can be read: without checks, and without secrets.
    #[must_use]
    pub fn of_version(schema: &'static Schema, text: &str) -> Self {
        // A user whose secret is redacted is a user.
        let text = text.replace(HIDDEN, "");
        Self { config: parse(&text, &mut Report::new(schema)).0, ..Self::default() }
    }

    /// Whether a secret of this configuration itself is not in another one.
    pub(crate) fn loses_secrets(&self, other: &Self) -> bool {
        let inline = |checked: &Self| -> Vec<Secret> {
            let config = &checked.config;
            let users = config.users.values().map(|user| &user.secret);
            let keys = config.tls_keys.values().map(|key| &key.secret);
            let tokens = config.api_tokens.values().map(|token| &token.secret);
            let secrets = users.chain(keys).chain(tokens).filter_map(|secret| match secret {
                SecretSource::Inline(secret) => Some(secret.clone()),
                _ => None,
            });
            secrets.collect()
        };
        let after = inline(other);
        inline(self).iter().any(|secret| !after.contains(secret))
    }

    /// The secret of a user.
    #[must_use]
    pub fn user_secret(&self, user: &str) -> Option<&Secret> {
        self.users.get(user)
    }

    /// A TLS key.
    #[must_use]
    pub fn tls_key(&self, name: &str) -> Option<&Secret> {
        self.tls_keys.get(name)
    }

    /// A token of the API.
    #[must_use]
    pub fn token(&self, name: &str) -> Option<&Secret> {
        self.tokens.get(name)
    }

    /// The contents of the certificate and the private key of a listener.
    #[must_use]
    pub fn certificate(&self, listener: &str) -> Option<&Secret> {
        self.certificates.get(listener)
    }

    /// The name of the API token with these bytes. Takes the same time for each token.
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

    /// The secret of a resource.
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

/// Reads the text of a file, called `file`, and checks it.
///
/// # Errors
/// All mistakes, in the order of the file.
pub fn check(schema: &'static Schema, file: &str, text: &str, outside: &dyn Outside) -> Result<Checked, Problems> {
    let mut report = Report::new(schema);
    let (config, broken) = parse(text, &mut report);
    let mut look = Look { report, broken, outside };
    look.names(&config);
    look.volumes(&config);
    look.ports(&config);
    look.groups(&config);
    look.nvme(&config);
    look.fronts(&config);
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

/// Finds duplicates.
struct Once<K> {
    seen: HashMap<K, String>,
}

impl<K: Hash + Eq> Once<K> {
    fn new() -> Self {
        Self { seen: HashMap::new() }
    }

    /// The earlier owner of this key, if it has one.
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

    /// References to missing resources.
    fn names(&mut self, config: &Config) {
        for (id, object) in config.objects() {
            for (key, field) in object.keys().into_iter().zip(object.fields()) {
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
                (volume.place_key(), volume.place().and_then(|place| paths.also(place.to_owned(), name))),
                ("uuid", volume.uuid.and_then(|uuid| uuids.also(uuid, name))),
                ("serial", volume.serial.and_then(|serial| serials.also(serial, name))),
                ("naa", volume.naa.and_then(|naa| naas.also(naa, name))),
            ];
            for (key, twin) in twins {
                if let Some(twin) = twin {
                    let what = format!("is also that of volume {twin}: clients would take the two for one volume");
                    self.add(id, key, volume.marks.of(key), what);
                }
            }
        }
    }

    fn volume(&mut self, id: Id<'_>, volume: &Volume) {
        let (kind, on_disk) = (volume.kind.word(), volume.kind.has_path());
        let size = match volume.kind.declaration().size {
            SizeRule::RequiredWithout(key) if volume.marks.has(key) => SizeRule::Refused,
            SizeRule::RequiredWithout(_) => SizeRule::Required,
            size => size,
        };
        if on_disk && volume.path.is_none() {
            self.add(id, "", volume.marks.whole, format!("has no 'path', which a volume of kind {kind} needs"));
        }
        if !on_disk && volume.path.is_some() {
            let what = format!("a volume of kind {kind} has no path: remove this key");
            self.add(id, "path", volume.marks.of("path"), what);
        }
        if size == SizeRule::Required && volume.size.is_none() {
            self.add(id, "", volume.marks.whole, format!("has no 'size', which a volume of kind {kind} needs"));
        }
        if size == SizeRule::Refused && volume.size.is_some() {
            let what = format!("a {} has its own size: remove this key", volume.kind.declaration().noun);
            self.add(id, "size", volume.marks.of("size"), what);
        }
        if let Some(size) = volume.size
            && (size.0 == 0 || !size.0.is_multiple_of(volume.block_size.bytes().into()))
        {
            let what = format!("is not a whole number of {}-byte blocks, one at least", volume.block_size.bytes());
            self.add(id, "size", volume.marks.of("size"), what);
        }
        if volume.direct && !on_disk {
            let what = format!("a volume of kind {kind} has no page cache to bypass");
            self.add(id, "direct", volume.marks.of("direct"), what);
        }
        self.medium(id, volume);
    }

    /// The keys that a removable medium excludes.
    fn medium(&mut self, id: Id<'_>, volume: &Volume) {
        if volume.medium.is_removable() && volume.protection != Protection::None {
            let what = "a removable medium has no protection information: remove this key";
            self.add(id, "protection", volume.marks.of("protection"), what);
        }
        if volume.medium != Medium::Cd {
            return;
        }
        let wrong = [
            ("kind", !volume.kind.has_path(), "a CD or DVD is an image in a file"),
            ("size", volume.size.is_some(), "an image has its own size: remove this key"),
            (
                "block-size",
                volume.block_size != BlockSize::B512,
                "a CD or DVD has blocks of 2,048 bytes: remove this key",
            ),
            ("direct", volume.direct, "an image is read through the page cache: remove this key"),
        ];
        for (key, is_wrong, what) in wrong {
            if is_wrong {
                self.add(id, key, volume.marks.of(key), what);
            }
        }
    }

    /// The checks of fronts for their own sections.
    fn fronts(&mut self, config: &Config) {
        for section in self.report.schema().sections() {
            (section.check)(config, &mut |name, key, at, what| {
                self.add(Id::of(Kind::Front(section.kind), name), key, at, what);
            });
        }
    }

    /// Portal groups, targets and listening addresses.
    fn ports(&mut self, config: &Config) {
        let (mut tags, mut names) = (Once::new(), Once::new());
        for (name, group) in &config.portal_groups {
            if let Some(twin) = tags.also(group.tag.get(), name) {
                let id = Id { kind: Kind::PortalGroup, name, lun: None };
                self.add(id, "tag", group.marks.of("tag"), format!("is also that of portal group {twin}"));
            }
        }
        for (name, target) in &config.targets {
            let id = Id { kind: Kind::Target, name, lun: None };
            if target.iqn.is_none() && target.nqn.is_none() {
                self.add(id, "", target.marks.whole, "has no name: give it 'iqn' for iSCSI, 'nqn' for NVMe, or both");
            }
            // iSCSI names are compared after stringprep, which ignores case.
            let iqn = target.iqn.as_ref().map(|iqn| iqn.as_str().to_ascii_lowercase());
            let twins = [
                ("iqn", iqn.and_then(|iqn| names.also(iqn, name))),
                ("nqn", target.nqn.as_ref().and_then(|nqn| names.also(nqn.as_str().to_owned(), name))),
            ];
            for (key, twin) in twins {
                if let Some(twin) = twin {
                    self.add(id, key, target.marks.of(key), format!("is also that of target {twin}"));
                }
            }
        }
        let mut taken = Taken::default();
        for (name, portal) in &config.portals {
            let id = Id { kind: Kind::Portal, name, lun: None };
            let advertised = portal.advertise().map(|address| address.port());
            for (key, port) in [("address", Some(portal.address().port())), ("advertise", advertised)] {
                if port == Some(0) && (key == "advertise" || !self.outside.allows_any_port()) {
                    self.add(id, key, portal.marks.of(key), "has port 0, to which no client can connect");
                }
            }
            if portal.address().port() == 0 {
                continue;
            }
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

    /// Volumes with two LUNs in one group, and patterns in two groups.
    fn groups(&mut self, config: &Config) {
        let mut members = Once::new();
        for (name, group) in &config.groups {
            let id = Id { kind: Kind::Group, name, lun: None };
            let mut volumes = Once::new();
            for (number, lun) in &group.luns.0 {
                if let Some(twin) = volumes.also(lun.volume.name(), &number.to_string()) {
                    let at = Id { kind: Kind::Lun, name, lun: Some(*number) };
                    let what =
                        format!("is also LUN {twin} of this group: initiators would take the two LUNs for two paths");
                    self.add(at, "volume", lun.marks.of("volume"), what);
                }
            }
            if let Some((target, pattern, twin)) = shared_member(name, group, &mut members) {
                let what = format!("'{pattern}' is also in group {twin} of target {target}, for the same networks");
                self.add(id, "initiators", group.marks.of("initiators"), what);
            }
        }
    }

    fn users(&mut self, config: &Config) -> BTreeMap<String, Secret> {
        let sources = config.users.iter().map(|(name, user)| (name, &user.secret, user.marks.of("secret")));
        let users = self.secrets(Kind::User, SECRET_MIN..=SECRET_MAX, sources);
        // A secret with this prefix is a DH-HMAC-CHAP key: no user chooses it as a CHAP secret.
        let is_meant = |secret: &Secret| secret.bytes().starts_with(Purpose::DhHmacChap.prefix().as_bytes());
        let keys = users.iter().filter(|(_, secret)| is_meant(secret));
        self.written(Kind::User, Purpose::DhHmacChap, keys, |name| config.users.get(name).map(|user| &user.marks));
        users
    }

    fn tls_keys(&mut self, config: &Config) -> BTreeMap<String, Secret> {
        let sources = config.tls_keys.iter().map(|(name, key)| (name, &key.secret, key.marks.of("secret")));
        let keys = self.secrets(Kind::TlsKey, SECRET_MIN..=SECRET_MAX, sources);
        self.written(Kind::TlsKey, Purpose::TlsPsk, keys.iter(), |name| {
            config.tls_keys.get(name).map(|key| &key.marks)
        });
        keys
    }

    /// Keys that are not in the format of keys.
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
                self.add(Id { kind, name, lun: None }, "secret", at, format!("is not a key: {why}"));
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
                    let what =
                        format!("has {} bytes; a secret has {least} to {most} random bytes", secret.bytes().len());
                    self.add(id, "secret", at, what);
                }
                Err(why) => self.add(id, "secret", at, why.to_string()),
            }
        }
        secrets
    }

    /// The secret itself.
    fn secret(&self, source: &SecretSource) -> Result<Secret, SecretError> {
        match source {
            SecretSource::Inline(secret) => match self.outside.config_mode() {
                Some(mode) if mode & OTHERS != 0 => Err(SecretError::OpenConfig { mode }),
                _ => Ok(secret.clone()),
            },
            SecretSource::File(path) => {
                self.closed(path.path())?;
                self.secret_bytes(path.path())
            }
            // systemd sets the permissions of credentials.
            SecretSource::Credential(name) => {
                self.secret_bytes(&self.outside.credential(name).map_err(SecretError::Credential)?)
            }
        }
    }

    fn closed(&self, path: &Path) -> Result<(), SecretError> {
        let mode = self.outside.mode(path).map_err(|why| SecretError::File(path.to_owned(), why))?;
        if mode & OTHERS == 0 { Ok(()) } else { Err(SecretError::OpenFile(path.to_owned(), mode)) }
    }

    fn secret_bytes(&self, path: &Path) -> Result<Secret, SecretError> {
        let mut bytes = self.outside.read(path).map_err(|why| SecretError::File(path.to_owned(), why))?;
        if bytes.len() as u64 > SECRET_FILE_BYTES_MAX {
            return Err(SecretError::TooLarge(path.to_owned()));
        }
        if bytes.last() == Some(&b'\n') {
            bytes.truncate(bytes.len() - if bytes.ends_with(b"\r\n") { 2 } else { 1 });
        }
        Ok(Secret::of_any_length(bytes))
    }

    /// The registration period: three renewals in it must be neither too frequent nor too rare.
    fn isns(&mut self, config: &Config) {
        let (period, marks) = (config.isns.period.0, &config.isns.marks);
        if period < ISNS_PERIOD_MIN || period > ISNS_PERIOD_MAX {
            let id = Id { kind: Kind::Isns, name: "", lun: None };
            let what = format!("is {}; it is {} s to a day", config.isns.period.text(), ISNS_PERIOD_MIN.as_secs());
            self.add(id, "period", marks.of("period"), what);
        }
    }

    /// The contents of certificates and private keys. [`Look::api`] reports files that cannot be read.
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
                    let what = "without a certificate, the tokens are readable on the network: \
                                add certificate and key, or listen at 127.0.0.1";
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
                self.add(id, "key", marks.of("key"), why.to_string());
            }
            if config.api_tokens.is_empty() {
                self.add(id, "", marks.whole, "there is no api-token: all requests would be refused");
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

/// Listening addresses.
#[derive(Default)]
struct Taken<'a> {
    /// By port and whether it is IPv6: the families are separate, also for all addresses.
    ports: HashMap<(u16, bool), BTreeMap<IpAddr, Id<'a>>>,
}

impl<'a> Taken<'a> {
    /// The resource that has this address already; the unspecified address is every address of its family.
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

/// A target, a pattern and a network, by which a client belongs to a group.
type Member<'a> = (&'a str, &'a Pattern, Option<Network>);

/// A member of this group that also belongs to another group: target, pattern, the other group.
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

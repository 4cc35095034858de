//! The configuration made from a command line. It is written and checked like a file; its secrets are kept apart.

use super::mistake::{DraftMistake, DraftMistakes, OptionMistake};
use crate::origin::{Arguments, Origin};
use lunar_control::check::{LocalHost, Outside, OutsideError, check};
use lunar_control::plan::ObjectId;
use lunar_control::report::{Problem, Problems};
use lunar_control::{Checked, Kind, Schema};
use lunar_core::access::Secret;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The name of the draft in place of a file name.
const FILE: &str = "the command line";

/// A configuration in the making.
#[derive(Debug, Default)]
pub struct Draft {
    root: Table,
    secrets: BTreeMap<String, Secret>,
    /// The arguments of which objects were made.
    arguments: Arguments,
    /// Addresses to listen at, and the options that gave them.
    addresses: Vec<(SocketAddr, String)>,
    sockets: BTreeMap<String, Box<Path>>,
    optional: BTreeSet<ObjectId>,
}

/// An address to listen at.
#[derive(Clone, Copy, Debug)]
pub struct Listen<'a> {
    /// Word of the protocol.
    pub protocol: &'a str,
    /// The option that gives addresses of this protocol.
    pub option: &'a str,
    /// The address; port 0 is any port.
    pub address: SocketAddr,
    /// Name of its portal group.
    pub group: &'a str,
    /// The address that discovery reports.
    pub advertise: Option<SocketAddr>,
    /// Whether discovery reports it.
    pub is_listed: bool,
    /// Whether a missing address of this machine is accepted: the target is then served without it.
    pub is_optional: bool,
}

/// The keys of one object.
#[derive(Debug)]
pub struct Keys<'a>(&'a mut Table);

impl Keys<'_> {
    /// Sets a key.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// Sets a key if there is a value.
    pub fn set_some(&mut self, key: &str, value: Option<impl Into<Value>>) -> &mut Self {
        if let Some(value) = value {
            self.set(key, value);
        }
        self
    }
}

fn table<'a>(of: &'a mut Table, key: &str) -> &'a mut Table {
    let value = of.entry(key.to_owned()).or_insert_with(|| Value::Table(Table::new()));
    value.as_table_mut().expect("a section, and an object in it, is always a table")
}

impl Draft {
    /// The keys of a section without a name.
    pub fn section(&mut self, section: &str) -> Keys<'_> {
        Keys(table(&mut self.root, section))
    }

    /// The keys of an object of a section.
    pub fn object(&mut self, section: &str, name: &str) -> Keys<'_> {
        Keys(table(table(&mut self.root, section), name))
    }

    /// The same for an object made of one argument, which error messages name.
    pub fn object_of(&mut self, argument: &str, section: &str, name: &str) -> Keys<'_> {
        self.arguments.insert(section, name, argument);
        self.object(section, name)
    }

    /// Sets the secret of an object (`user`, `tls-key`).
    pub fn secret(&mut self, section: &str, name: &str, secret: &Secret) -> Keys<'_> {
        let credential = format!("secret-{}", self.secrets.len());
        self.secrets.insert(credential.clone(), secret.clone());
        let source = Table::from_iter([("credential".to_owned(), Value::String(credential))]);
        let mut keys = self.object(section, name);
        keys.set("secret", source);
        keys
    }

    /// Adds a portal, called after its protocol and its number.
    ///
    /// # Errors
    /// When its address is given already.
    pub fn listen(&mut self, listen: &Listen<'_>) -> Result<(), OptionMistake> {
        let Listen { protocol, option, address, group, advertise, is_listed, is_optional } = *listen;
        let given = format!("{option} {address}");
        if let Some((other, by)) = self.addresses.iter().find(|(other, _)| overlap(*other, address)) {
            let by = by.clone();
            return Err(match *other == address {
                true if by == given => OptionMistake::Twice { argument: given, advice: "give each address once" },
                true => OptionMistake::OneAddress(given, by),
                false => OptionMistake::Overlap(given, by),
            });
        }
        self.addresses.push((address, given));
        let own = self.addresses.len();
        let name = format!("{protocol}-{own:05}");
        let mut keys = self.object_of(option, "portal", &name);
        keys.set("protocol", protocol).set("address", address.to_string()).set("group", group);
        keys.set_some("advertise", advertise.map(|address| address.to_string()));
        if !is_listed {
            keys.set("listed", false);
        }
        if is_optional {
            self.optional.insert(ObjectId { kind: Kind::Portal, name, lun: None });
        }
        Ok(())
    }

    /// Records the socket of an object, for the banner.
    pub fn socket(&mut self, name: &str, path: &Path) {
        self.sockets.insert(name.to_owned(), path.into());
    }

    /// The sockets, by the names of their objects.
    #[must_use]
    pub fn sockets(&self) -> &BTreeMap<String, Box<Path>> {
        &self.sockets
    }

    /// Objects that this machine may lack: the target is then served without them.
    #[must_use]
    pub fn optional(&self) -> &BTreeSet<ObjectId> {
        &self.optional
    }

    /// The origin of the configuration.
    #[must_use]
    pub fn origin(&self) -> Origin {
        Origin::CommandLine(self.arguments.clone())
    }

    /// Checks the draft like a file.
    ///
    /// # Errors
    /// All mistakes, in the words of the command line.
    pub fn check(&self, schema: &'static Schema) -> Result<Checked, DraftMistakes> {
        check(schema, FILE, &self.root.to_string(), self).map_err(|problems| self.explain(&problems))
    }

    /// Drops the keys and the secrets of a draft that was checked: they need more memory than the target.
    pub fn drop_keys(&mut self) {
        (self.root, self.secrets) = Default::default();
    }

    fn explain(&self, problems: &Problems) -> DraftMistakes {
        let explain = |Problem { key, what, .. }: &Problem| {
            let of = |(section, name, argument): (&str, &str, &str)| {
                let prefix = format!("{section}.{}", lunar_control::report::quoted(name));
                key.strip_prefix(&prefix).filter(|rest| rest.is_empty() || rest.starts_with('.'))?;
                Some(argument.to_owned())
            };
            let subject = self.arguments.iter().find_map(of).unwrap_or_else(|| key.clone());
            DraftMistake { subject, what: what.clone() }
        };
        let mut mistakes: Vec<DraftMistake> = problems.list.iter().map(explain).collect();
        mistakes.dedup();
        DraftMistakes(mistakes)
    }
}

/// Whether the two addresses exclude each other: one is the wildcard address of the other's family and port.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && (one == other || any && one.is_ipv4() == other.is_ipv4())
}

/// Secrets are credentials here: each is the line of a file that no other user can read.
impl Outside for Draft {
    fn config_mode(&self) -> Option<u32> {
        None
    }

    fn allows_any_port(&self) -> bool {
        true
    }

    fn mode(&self, path: &Path) -> Result<u32, OutsideError> {
        LocalHost { config: PathBuf::new() }.mode(path)
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, OutsideError> {
        let secret = path.to_str().and_then(|name| self.secrets.get(name)).ok_or(OutsideError::Missing)?;
        Ok([secret.bytes(), b"\n"].concat())
    }

    fn credential(&self, name: &str) -> Result<PathBuf, OutsideError> {
        Ok(name.into())
    }

    fn random(&self) -> Result<[u8; 16], OutsideError> {
        LocalHost { config: PathBuf::new() }.random()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::schema::{FrontSchema, PortalSchema};

    static FRONT: FrontSchema = FrontSchema {
        portals: Some(PortalSchema { word: "iscsi", doc: "a front", port: 3260, keys: None }),
        section: None,
        limits: None,
    };
    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[&lunar_ram::schema::STORE] };

    fn listen(address: &str) -> Listen<'_> {
        Listen {
            protocol: "iscsi",
            option: "--listen",
            address: address.parse().expect("an address"),
            group: "1",
            advertise: None,
            is_listed: true,
            is_optional: false,
        }
    }

    #[test]
    fn an_address_is_given_once() {
        let mut draft = Draft::default();
        draft.listen(&listen("127.0.0.1:3260")).expect("the first");
        let why = draft.listen(&listen("127.0.0.1:3260")).expect_err("the same");
        assert_eq!(why.to_string(), "--listen 127.0.0.1:3260 is given twice: give each address once");
        let nvme = Listen { protocol: "nvme-tcp", option: "--nvme", ..listen("127.0.0.1:3260") };
        assert!(
            draft.listen(&nvme).expect_err("the same").to_string().contains("--listen 127.0.0.1:3260 are one address")
        );
        assert!(draft.listen(&listen("0.0.0.0:3260")).expect_err("all").to_string().contains("overlap"));
        for other in ["[::]:3260", "127.0.0.1:3261", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.2:3260"] {
            draft.listen(&listen(other)).expect(other);
        }
    }

    #[test]
    fn a_draft_is_checked_as_a_file_is_and_mistakes_name_its_arguments() {
        let mut draft = Draft::default();
        draft.object("portal-group", "1").set("tag", 1);
        draft.object("target", TARGET).set("iqn", "iqn.2026-01.org.example:t").set("portal-groups", vec!["1"]);
        draft.listen(&listen("127.0.0.1:0")).expect("any port");
        let secret = Secret::new(b"a secret of a user".to_vec()).expect("long enough");
        draft.secret("user", "someone", &secret).set("login", "a b/c");
        let checked = draft.check(&SCHEMA).expect("it is right");
        assert_eq!(checked.user_secret("someone"), Some(&secret));
        assert_eq!(checked.config.portals["iscsi-00001"].address().port(), 0);
        draft.object_of("ram:1000", "volume", "lun-00000").set("kind", "ram").set("size", "1000");
        let why = draft.check(&SCHEMA).expect_err("a part of a block").to_string();
        assert!(why.starts_with("ram:1000: is not a whole number of 512-byte blocks"), "{why}");
    }

    const TARGET: &str = crate::command_line::TARGET;
}

//! A whole configuration: its sections, and how a file becomes one.

use crate::model::{
    Api, ApiListener, ApiToken, Discovery, Group, Isns, Limits, Logging, Lun, Pool, Portal, PortalGroup, Referral,
    Server, Target, TlsKey, User, Vm, Volume,
};
use crate::report::{Mark, Report, did_you_mean, quoted};
use crate::section::{Effect, Key, Object, Section};
use crate::value::{Item, kind_of};
use serde_json::{Map, Value as Json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use toml::de::{DeTable, DeValue};

/// Bytes of a configuration at most: ten times what 4,096 volumes and 1,000 groups take, and still read in a moment.
pub const CONFIG_BYTES_MAX: usize = 16 << 20;
/// Bytes of the name of a volume, a target ... at most: that of an iSCSI name, which users often have.
const NAME_BYTES_MAX: usize = 223;

/// Declares what a configuration consists of, in the order in which things are made: what is named before what
/// names it, and portals after everything that one can find behind them.
macro_rules! config {
    (
        named { $($field:ident: $type:ident $section:literal,)+ }
        nested { $nested:ident $nested_section:literal }
        then { $($later:ident: $later_type:ident $later_section:literal,)+ }
        single { $($single:ident: $single_type:ident $single_section:literal,)+ }
    ) => {
        /// Kinds of things, in the order in which they are made.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[allow(missing_docs, reason = "each is the section of this name")]
        pub enum Kind { $($type,)+ $nested, $($later_type,)+ $($single_type,)+ }

        impl Kind {
            /// All of them.
            pub const ALL: &'static [Self] =
                &[$(Self::$type,)+ Self::$nested, $(Self::$later_type,)+ $(Self::$single_type,)+];

            /// The section in a file.
            #[must_use]
            pub const fn section(self) -> &'static str {
                match self {
                    $(Self::$type => $section,)+
                    Self::$nested => $nested_section,
                    $(Self::$later_type => $later_section,)+
                    $(Self::$single_type => $single_section,)+
                }
            }

            /// Its keys.
            #[must_use]
            pub const fn keys(self) -> &'static [Key] {
                match self {
                    $(Self::$type => $type::KEYS,)+
                    Self::$nested => $nested::KEYS,
                    $(Self::$later_type => $later_type::KEYS,)+
                    $(Self::$single_type => $single_type::KEYS,)+
                }
            }

            /// What it is, in one line.
            #[must_use]
            pub fn words(self) -> String {
                crate::section::one_line(match self {
                    $(Self::$type => $type::DOC,)+
                    Self::$nested => $nested::DOC,
                    $(Self::$later_type => $later_type::DOC,)+
                    $(Self::$single_type => $single_type::DOC,)+
                })
            }

            /// Who notices when one is made, and when one is removed.
            #[must_use]
            pub const fn effects(self) -> (Effect, Effect) {
                match self {
                    $(Self::$type => ($type::CREATED, $type::REMOVED),)+
                    Self::$nested => ($nested::CREATED, $nested::REMOVED),
                    $(Self::$later_type => ($later_type::CREATED, $later_type::REMOVED),)+
                    $(Self::$single_type => ($single_type::CREATED, $single_type::REMOVED),)+
                }
            }

            /// Whether there are any number of them, each with a name.
            #[must_use]
            pub const fn is_named(self) -> bool {
                matches!(self, $(Self::$type)|+ | $(Self::$later_type)|+)
            }

            /// Whether there is exactly one.
            #[must_use]
            pub const fn is_single(self) -> bool {
                matches!(self, $(Self::$single_type)|+)
            }
        }

        /// A configuration: things by their names, and what is there once.
        #[derive(Clone, PartialEq, Debug)]
        #[allow(missing_docs, reason = "each is the section of this name")]
        pub struct Config {
            $(pub $field: BTreeMap<String, $type>,)+
            $(pub $later: BTreeMap<String, $later_type>,)+
            $(pub $single: $single_type,)+
        }

        /// The configuration of an empty file.
        impl Default for Config {
            fn default() -> Self {
                Self {
                    $($field: BTreeMap::new(),)+
                    $($later: BTreeMap::new(),)+
                    $($single: default(),)+
                }
            }
        }

        impl Config {
            /// Reads what it can of a file.
            fn read(root: &DeTable<'_>, report: &mut Report) -> (Self, Broken) {
                let (mut config, mut broken) = (Self::default(), Broken::default());
                for (key, value) in root.iter() {
                    report.within(key.get_ref(), |report| match &**key.get_ref() {
                        $($section => config.$field = named(value, report, &mut broken),)+
                        $($later_section => config.$later = named(value, report, &mut broken),)+
                        $($single_section => {
                            if let Some(read) = single(value, report) {
                                config.$single = read;
                            }
                        })+
                        other => no_section(other, Mark::new(key.span()), report),
                    });
                }
                (config, broken)
            }

            fn each<'a>(&'a self, look: &mut dyn FnMut(Id<'a>, &'a dyn Object)) {
                $(self.$field.iter().for_each(|(name, it)| look(Id { kind: Kind::$type, name, lun: None }, it));)+
                $(self.$later.iter().for_each(|(name, it)| look(Id { kind: Kind::$later_type, name, lun: None }, it));)+
                $(look(Id { kind: Kind::$single_type, name: "", lun: None }, &self.$single);)+
            }

            /// The thing of this kind and name.
            #[must_use]
            pub fn get(&self, kind: Kind, name: &str) -> Option<&dyn Object> {
                match kind {
                    $(Kind::$type => self.$field.get(name).map(|it| it as &dyn Object),)+
                    Kind::$nested => None,
                    $(Kind::$later_type => self.$later.get(name).map(|it| it as &dyn Object),)+
                    $(Kind::$single_type => Some(&self.$single),)+
                }
            }

            /// The names of all things of this kind, sorted.
            #[must_use]
            pub fn names(&self, kind: Kind) -> Vec<&str> {
                match kind {
                    $(Kind::$type => self.$field.keys().map(String::as_str).collect(),)+
                    $(Kind::$later_type => self.$later.keys().map(String::as_str).collect(),)+
                    _ => Vec::new(),
                }
            }
        }
    };
}

config! {
    named {
        users: User "user",
        tls_keys: TlsKey "tls-key",
        api_tokens: ApiToken "api-token",
        pools: Pool "pool",
        volumes: Volume "volume",
        portal_groups: PortalGroup "portal-group",
        targets: Target "target",
        groups: Group "group",
    }
    nested { Lun "lun" }
    then {
        portals: Portal "portal",
        referrals: Referral "referral",
        vms: Vm "vm",
        api_listeners: ApiListener "api-listener",
    }
    single {
        server: Server "server",
        limits: Limits "limits",
        discovery: Discovery "discovery",
        isns: Isns "isns",
        api: Api "api",
        logging: Logging "logging",
    }
}

impl Kind {
    /// The kind that a section of this name holds.
    #[must_use]
    pub fn of_section(section: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.section() == section)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lun => f.write_str("LUN"),
            Self::Vm => f.write_str("VM"),
            Self::TlsKey => f.write_str("TLS key"),
            Self::Isns => f.write_str("iSNS"),
            kind => f.write_str(&kind.section().replace('-', " ")),
        }
    }
}

/// Which thing of a configuration is meant. Sorts in the order in which things are made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Id<'a> {
    /// Its kind.
    pub kind: Kind,
    /// Its name; that of its group if it is a LUN; empty for what is there once.
    pub name: &'a str,
    /// The number of a LUN.
    pub lun: Option<u16>,
}

impl fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lun {
            Some(lun) => write!(f, "LUN {lun} of group {}", self.name),
            None if self.name.is_empty() => write!(f, "{}", self.kind),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

impl Config {
    /// Everything in it, in the order in which it is made.
    #[must_use]
    pub fn objects(&self) -> BTreeMap<Id<'_>, &dyn Object> {
        let mut all: BTreeMap<Id<'_>, &dyn Object> = BTreeMap::new();
        self.each(&mut |id, object| {
            all.insert(id, object);
        });
        for (name, group) in &self.groups {
            for (number, lun) in &group.luns.0 {
                all.insert(Id { kind: Kind::Lun, name, lun: Some(*number) }, lun);
            }
        }
        all
    }

    /// As JSON, with the names of the sections and keys of the file. No secrets.
    #[must_use]
    pub fn show(&self) -> Json {
        let mut root = Map::new();
        for kind in Kind::ALL {
            let shown = match self.get(*kind, "") {
                Some(object) if kind.is_single() => show(object),
                _ if kind.is_named() => {
                    let one = |name: &&str| Some(((*name).to_owned(), show(self.get(*kind, name)?)));
                    Json::Object(self.names(*kind).iter().filter_map(one).collect())
                }
                _ => continue,
            };
            root.insert(kind.section().to_owned(), shown);
        }
        Json::Object(root)
    }
}

/// A thing as JSON, with the names of the keys of the file. No secrets; nothing for what is absent.
#[must_use]
pub fn show(object: &dyn Object) -> Json {
    let fields = object.keys().iter().zip(object.fields());
    let shown = fields.map(|(key, field)| (key.name(), field.show())).filter(|(_, value)| !value.is_null());
    Json::Object(shown.collect())
}

/// Things that are in the file and cannot be read: nobody needs to be told that they are missing, too.
pub(crate) type Broken = BTreeSet<(Kind, String)>;

/// Reads the text of a file as far as it can be read.
pub(crate) fn parse(text: &str, report: &mut Report) -> (Config, Broken) {
    if text.len() > CONFIG_BYTES_MAX {
        report.add(Mark::default(), format!("the file is larger than {} MiB", CONFIG_BYTES_MAX >> 20));
        return (Config::default(), Broken::new());
    }
    let (root, errors) = DeTable::parse_recoverable(text);
    let mut readable = true;
    for error in errors {
        let at = Mark::new(error.span().unwrap_or_default());
        let twice = error.message() == "duplicate key";
        readable &= twice;
        report.add(at, if twice { "is there twice".to_owned() } else { error.message().replace('\n', ", ") });
    }
    // Where the form is wrong nobody knows what was meant: more would be guesses.
    if readable { Config::read(root.get_ref(), report) } else { (Config::default(), Broken::new()) }
}

/// A section without any keys.
fn default<S: Section>() -> S {
    let none = DeTable::new();
    S::read(&none, Mark::default(), &mut Report::default()).expect("what is there once has no key that must be there")
}

fn table<'a, 'i>(item: &'a Item<'i>, report: &mut Report) -> Option<&'a DeTable<'i>> {
    match item.get_ref() {
        DeValue::Table(table) => Some(table),
        other => {
            report.add(Mark::new(item.span()), format!("is {}; it takes a table", kind_of(other)));
            None
        }
    }
}

fn single<S: Section>(item: &Item<'_>, report: &mut Report) -> Option<S> {
    S::read(table(item, report)?, Mark::new(item.span()), report)
}

fn named<S: Section>(item: &Item<'_>, report: &mut Report, broken: &mut Broken) -> BTreeMap<String, S> {
    let mut all = BTreeMap::new();
    for (key, value) in table(item, report).into_iter().flat_map(|table| table.iter()) {
        let (name, at) = (key.get_ref(), Mark::new(key.span()));
        let read = report.within(name, |report| {
            if matches!(value.get_ref(), DeValue::Table(_)) && !is_name(name) {
                report
                    .add(at, format!("is no name: 1 to {NAME_BYTES_MAX} of letters, digits, '-', '_', '.', ':', '@'"));
                return None;
            }
            // `[volume]` with keys of a volume in it.
            if S::KEYS.iter().any(|key| key.is(name)) && !matches!(value.get_ref(), DeValue::Table(_)) {
                let section = S::KIND.section();
                report.add(at, format!("which {section}? Its name goes into the brackets: [{section}.NAME]"));
                return None;
            }
            S::read(table(value, report)?, at, report)
        });
        match read {
            Some(read) => drop(all.insert(name.clone().into_owned(), read)),
            None => drop(broken.insert((S::KIND, name.clone().into_owned()))),
        }
    }
    all
}

/// Whether something may be called this.
pub(crate) fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.:@".contains(&b);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain)
}

fn no_section(written: &str, at: Mark, report: &mut Report) {
    let names = || Kind::ALL.iter().filter(|kind| **kind != Kind::Lun).map(|kind| kind.section());
    let guess = did_you_mean(written, names());
    let all = if guess.is_empty() { format!("; there are {}", names().collect::<Vec<_>>().join(", ")) } else { guess };
    let shown = quoted(&written.chars().take(64).collect::<String>());
    report.add(at, format!("there is no section '{shown}'{all}"));
}

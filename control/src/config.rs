//! A whole configuration: its sections, and how a file becomes one.

use crate::common_sections::{
    Api, ApiListener, ApiToken, Discovery, Group, Isns, Limits, Logging, Pool, Portal, PortalGroup, Referral, Server,
    Target, TlsKey, User, Volume,
};
use crate::kind::{FrontKind, Id, Kind};
use crate::report::{Mark, Report, did_you_mean, quoted};
use crate::schema::{EMPTY, FrontSection};
use crate::section::{Item, Json, Object, Objects, Resource, Section, Table, kind_of, show};
use serde_json::Map;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use toml::de::DeValue;

/// The most bytes of a configuration: ten times the size of 4,096 volumes and 1,000 groups, and still read quickly.
pub const CONFIG_BYTES_MAX: usize = 16 << 20;
/// The most bytes of the name of a resource: those of an iSCSI name, which users often have.
const NAME_BYTES_MAX: usize = 223;

/// The resources of the sections of fronts, by section and name.
#[derive(Clone, Default, Debug)]
pub struct FrontObjects(BTreeMap<FrontKind, BTreeMap<String, Arc<dyn Object>>>);

impl FrontObjects {
    fn iter(&self) -> impl Iterator<Item = (Id<'_>, &dyn Object)> {
        self.0.iter().flat_map(|(kind, all)| all.iter().map(|(name, it)| (Id::of(Kind::Front(*kind), name), &**it)))
    }
}

/// Sections without resources make no difference.
impl PartialEq for FrontObjects {
    fn eq(&self, other: &Self) -> bool {
        let (own, others): (Vec<_>, Vec<_>) = (self.iter().collect(), other.iter().collect());
        let mut both = own.iter().zip(&others);
        own.len() == others.len() && both.all(|(one, other)| one.0 == other.0 && one.1.is_same(other.1))
    }
}

/// Declares the fields of a configuration: the sections with named resources, and those that exist once.
macro_rules! config {
    (
        named { $($field:ident: $type:ident,)+ }
        single { $($single:ident: $single_type:ident,)+ }
    ) => {
        /// A configuration: resources by name, and sections that exist once.
        #[derive(Clone, PartialEq, Debug)]
        #[allow(missing_docs, reason = "each field is the section of its name")]
        pub struct Config {
            $(pub $field: BTreeMap<String, Arc<$type>>,)+
            $(pub $single: $single_type,)+
            /// The sections of fronts.
            pub fronts: FrontObjects,
        }

        /// The configuration of an empty file, without keys of fronts.
        impl Default for Config {
            fn default() -> Self {
                Self {
                    $($field: BTreeMap::new(),)+
                    $($single: default(),)+
                    fronts: FrontObjects::default(),
                }
            }
        }

        impl Config {
            /// Reads a file as far as possible.
            fn read(root: &Table<'_>, report: &mut Report) -> (Self, Broken) {
                let (mut config, mut broken) = (Self::default(), Broken::default());
                // A section that is not in the file may have keys of fronts.
                let scratch = &mut Report::new(report.schema());
                $(config.$single = single_without_keys(scratch).unwrap_or(config.$single);)+
                for section in report.schema().sections() {
                    config.fronts.0.insert(section.kind, BTreeMap::new());
                }
                for (key, value) in root.iter() {
                    report.within(key.get_ref(), |report| match report.schema().kind(key.get_ref()) {
                        $(Some($type::KIND) => config.$field = named::<$type>(value, report, &mut broken),)+
                        $(Some($single_type::KIND) => {
                            if let Some(read) = single(value, report) {
                                config.$single = read;
                            }
                        })+
                        Some(Kind::Front(kind)) => {
                            if let Some(section) = report.schema().section(kind) {
                                config.fronts.0.insert(kind, of_front(section, value, report, &mut broken));
                            }
                        }
                        _ => no_section(key.get_ref(), Mark::new(key.span()), report),
                    });
                }
                (config, broken)
            }

            fn each<'a>(&'a self, look: &mut dyn FnMut(Id<'a>, &'a dyn Object)) {
                $(self.$field.iter().for_each(|(name, it)| look(Id::of($type::KIND, name), &**it));)+
                $(look(Id::of($single_type::KIND, ""), &self.$single);)+
                self.fronts.iter().for_each(|(id, it)| look(id, it));
            }

            /// The resource of this kind and name.
            #[must_use]
            pub fn get(&self, kind: Kind, name: &str) -> Option<&dyn Object> {
                match kind {
                    $($type::KIND => self.$field.get(name).map(|it| &**it as &dyn Object),)+
                    $($single_type::KIND => Some(&self.$single),)+
                    Kind::Front(kind) => self.fronts.0.get(&kind)?.get(name).map(|it| &**it),
                    Kind::Lun => None,
                }
            }

            /// The names of all resources of this kind, sorted.
            #[must_use]
            pub fn names(&self, kind: Kind) -> Vec<&str> {
                match kind {
                    $($type::KIND => self.$field.keys().map(String::as_str).collect(),)+
                    Kind::Front(kind) => {
                        self.fronts.0.get(&kind).into_iter().flatten().map(|(name, _)| name.as_str()).collect()
                    }
                    _ => Vec::new(),
                }
            }
        }
    };
}

config! {
    named {
        users: User,
        tls_keys: TlsKey,
        api_tokens: ApiToken,
        pools: Pool,
        volumes: Volume,
        portal_groups: PortalGroup,
        targets: Target,
        groups: Group,
        portals: Portal,
        referrals: Referral,
        api_listeners: ApiListener,
    }
    single {
        server: Server,
        limits: Limits,
        discovery: Discovery,
        isns: Isns,
        api: Api,
        logging: Logging,
    }
}

impl Config {
    /// The resources of a section, by name.
    pub fn section<R: Resource>(&self) -> impl Iterator<Item = (&str, &R)> {
        self.names(R::KIND).into_iter().filter_map(|name| Some((name, self.find(name)?)))
    }

    /// The resource of this section and name.
    #[must_use]
    pub fn find<R: Resource>(&self, name: &str) -> Option<&R> {
        self.get(R::KIND, name)?.any().downcast_ref()
    }

    /// The resources of the sections of fronts.
    pub(crate) fn of_fronts(&self) -> impl Iterator<Item = (Id<'_>, &dyn Object)> {
        self.fronts.iter()
    }

    /// Removes the resources of sections of fronts that `keeps` does not keep.
    pub(crate) fn retain_of_fronts(&mut self, keeps: impl Fn(Kind, &str) -> bool) {
        for (kind, objects) in &mut self.fronts.0 {
            objects.retain(|name, _| keeps(Kind::Front(*kind), name));
        }
    }

    /// All resources, in the order of creation.
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
        let fronts = self.fronts.0.keys().map(|kind| Kind::Front(*kind));
        let kinds = Kind::FIRST.iter().copied().chain(fronts).chain(Kind::LAST.iter().copied());
        let mut root = Map::new();
        for kind in kinds {
            let shown = match self.get(kind, "") {
                Some(object) if kind.is_single() => show(object),
                _ if kind.is_named() => {
                    let one = |name: &&str| Some(((*name).to_owned(), show(self.get(kind, name)?)));
                    Json::Object(self.names(kind).iter().filter_map(one).collect())
                }
                _ => continue,
            };
            root.insert(kind.section().to_owned(), shown);
        }
        Json::Object(root)
    }
}

impl Objects for Config {
    fn get(&self, kind: Kind, name: &str) -> Option<&dyn Object> {
        Self::get(self, kind, name)
    }

    fn names(&self, kind: Kind) -> Vec<&str> {
        Self::names(self, kind)
    }
}

/// Resources that are in the file and cannot be read: references to them are not reported.
pub(crate) type Broken = BTreeSet<(Kind, String)>;

/// Reads the text of a file as far as possible.
pub(crate) fn parse(text: &str, report: &mut Report) -> (Config, Broken) {
    if text.len() > CONFIG_BYTES_MAX {
        report.add(Mark::default(), format!("the file is larger than {} MiB", CONFIG_BYTES_MAX >> 20));
        return (Config::default(), Broken::new());
    }
    let (root, errors) = Table::parse_recoverable(text);
    let mut readable = true;
    for error in errors {
        let at = Mark::new(error.span().unwrap_or_default());
        let is_duplicate = error.message() == "duplicate key";
        readable &= is_duplicate;
        let what = if is_duplicate { "is in the file twice".to_owned() } else { error.message().replace('\n', ", ") };
        report.add(at, what);
    }
    // After a syntax error the rest of the file may mean something else: report no more.
    if readable { Config::read(root.get_ref(), report) } else { (Config::default(), Broken::new()) }
}

/// A section that exists once, without any keys.
fn default<S: Section>() -> S {
    single_without_keys(&mut Report::new(&EMPTY)).expect("a section that exists once has no required key")
}

fn single_without_keys<S: Section>(report: &mut Report) -> Option<S> {
    S::read(&Table::new(), Mark::default(), report)
}

fn table<'a, 'i>(item: &'a Item<'i>, report: &mut Report) -> Option<&'a Table<'i>> {
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

fn named<R: Resource>(item: &Item<'_>, report: &mut Report, broken: &mut Broken) -> BTreeMap<String, Arc<R>> {
    let keys = |name: &str| R::KEYS.iter().any(|key| key.is(name));
    each_named(R::KIND, &keys, item, report, broken, |table, at, report| R::read(table, at, report).map(Arc::new))
}

fn of_front(
    section: &'static FrontSection,
    item: &Item<'_>,
    report: &mut Report,
    broken: &mut Broken,
) -> BTreeMap<String, Arc<dyn Object>> {
    let keys = |name: &str| section.keys.iter().any(|key| key.is(name));
    each_named(Kind::Front(section.kind), &keys, item, report, broken, section.read)
}

/// Reads the resources of a section by name. `is_key` tells whether a word is a key of the section.
fn each_named<T>(
    kind: Kind,
    is_key: &dyn Fn(&str) -> bool,
    item: &Item<'_>,
    report: &mut Report,
    broken: &mut Broken,
    read: impl Fn(&Table<'_>, Mark, &mut Report) -> Option<T>,
) -> BTreeMap<String, T> {
    let mut all = BTreeMap::new();
    for (key, value) in table(item, report).into_iter().flat_map(|table| table.iter()) {
        let (name, at) = (key.get_ref(), Mark::new(key.span()));
        let is_table = matches!(value.get_ref(), DeValue::Table(_));
        let read = report.within(name, |report| {
            if is_table && !is_name(name) {
                report
                    .add(at, format!("is not a name: 1 to {NAME_BYTES_MAX} letters, digits, '-', '_', '.', ':', '@'"));
                return None;
            }
            // `[volume]` with keys of a volume in it.
            if is_key(name) && !is_table {
                let section = kind.section();
                report.add(at, format!("has no {section} name: write [{section}.NAME] instead of [{section}]"));
                return None;
            }
            read(table(value, report)?, at, report)
        });
        match read {
            Some(read) => drop(all.insert(name.clone().into_owned(), read)),
            None => drop(broken.insert((kind, name.clone().into_owned()))),
        }
    }
    all
}

/// Whether a text is allowed as the name of a resource.
pub(crate) fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.:@".contains(&b);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain)
}

fn no_section(written: &str, at: Mark, report: &mut Report) {
    let kinds = report.schema().kinds();
    let names = || kinds.iter().filter(|kind| **kind != Kind::Lun).map(|kind| kind.section());
    let guess = did_you_mean(written, names());
    let all = if guess.is_empty() { format!("; there are {}", names().collect::<Vec<_>>().join(", ")) } else { guess };
    let shown = quoted(&written.chars().take(64).collect::<String>());
    report.add(at, format!("there is no section '{shown}'{all}"));
}

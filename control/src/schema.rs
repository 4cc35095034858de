//! The declarations of fronts and stores for the configuration: words for `kind` and `protocol`, keys of their own in
//! sections that every target has, and whole sections. A [`Schema`] lists the fronts and stores of one program; it is
//! passed to everything that reads, checks, edits or documents a configuration.

use crate::kind::{FrontKind, Kind};
use crate::report::{Mark, Report, did_you_mean, quoted};
use crate::section::{
    Effect, Item, Json, Key, Object, Objects, OwnKeys, Resource, Section, Shape, Table, Value, kind_of, read_object,
};
use serde_json::json;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use toml::de::DeValue;

/// The fronts and stores of a program.
#[derive(Debug)]
pub struct Schema {
    /// The fronts, in the order of the page. The first one with portals is the default of `protocol`.
    pub fronts: &'static [&'static FrontSchema],
    /// The stores, in the order of the page.
    pub stores: &'static [&'static StoreSchema],
}

/// A schema without any front or store.
pub static EMPTY: Schema = Schema { fronts: &[], stores: &[] };

/// Returns where the bytes of a volume are, from the keys of its store.
pub type PlaceOf = fn(&OwnKeys) -> Option<&Path>;

/// The copies of a store that the system makes that keeps it, such as a cluster. That system makes empty stores, too.
#[derive(Clone, Copy, Debug)]
pub struct SystemCopies {
    /// Returns the place of a copy of the store at this place, for a volume of this name: of a snapshot (`true`) or
    /// of a clone. `None`: the system makes no such copy of it.
    pub place: fn(&Path, &str, bool) -> Option<String>,
    /// The fields of the keys of the store that a volume with a copy does not get.
    pub left_out: &'static [&'static str],
}

/// Keys that a front or a store adds to a section.
#[derive(Clone, Copy, Debug)]
pub struct KeySet {
    /// The keys.
    pub keys: &'static [Key],
    /// Reads them.
    pub read: fn(&Table<'_>, Mark, &mut Report) -> Option<Arc<dyn Object>>,
    /// The key among them that says where the bytes of a volume are, and its value: see [`Location::Remote`].
    pub place: Option<(&'static str, PlaceOf)>,
    /// The copies that the system makes that keeps the stores, if it makes some.
    pub copies: Option<&'static SystemCopies>,
}

impl KeySet {
    /// The keys of a declaration.
    #[must_use]
    pub const fn of<S: Section>() -> Self {
        Self { keys: S::KEYS, read: read_object::<S>, place: None, copies: None }
    }

    /// The same keys, of which one says where the bytes of a volume are.
    #[must_use]
    pub const fn with_place(self, key: &'static str, value: PlaceOf) -> Self {
        Self { place: Some((key, value)), ..self }
    }

    /// The same keys, of a store whose system makes stores and copies of them.
    #[must_use]
    pub const fn with_copies(self, copies: &'static SystemCopies) -> Self {
        Self { copies: Some(copies), ..self }
    }
}

/// Where a store has the bytes of a volume: whether it needs the key `path`, and for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// Nowhere on a disk: `path` is refused.
    Nowhere,
    /// In a regular file, which Lunar may create, copy, or make for an NVMe host.
    File,
    /// In a device node.
    Device,
    /// In another process, which connects to a socket that Lunar makes.
    Socket,
    /// On other machines, at a place that a key of the store names: `path` is refused.
    Remote,
}

/// Whether a store needs the key `size`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeRule {
    /// Without it, the size is that of the existing data.
    Optional,
    /// It must be given.
    Required,
    /// It must be given, unless the store has this key of its own: then the size is given by a device, and refused.
    RequiredWithout(&'static str),
    /// The size is given by the device: the key is refused.
    Refused,
}

/// The way in which a store serves a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Serves {
    /// Blocks.
    Blocks,
    /// A SCSI device: only transports of SCSI commands have it.
    Device,
    /// A SCSI device if it has this key of its own, and blocks otherwise.
    DeviceWith(&'static str),
}

/// The declaration of a store.
#[derive(Debug)]
pub struct StoreSchema {
    /// Its word for `kind` in `[volume.NAME]`.
    pub word: &'static str,
    /// Its description beside the word, a phrase.
    pub doc: &'static str,
    /// Its name in sentences.
    pub noun: &'static str,
    /// Where the bytes are.
    pub location: Location,
    /// Whether it needs the key `size`.
    pub size: SizeRule,
    /// The way in which it serves a volume.
    pub serves: Serves,
    /// Keys of its own in `[volume.NAME]`.
    pub keys: Option<KeySet>,
}

/// The declaration of a front with portals.
#[derive(Debug)]
pub struct PortalSchema {
    /// Its word for `protocol` in `[portal.NAME]`.
    pub word: &'static str,
    /// Its description beside the word, a phrase.
    pub doc: &'static str,
    /// The TCP port of a portal without one.
    pub port: u16,
    /// Keys of its own in `[portal.NAME]`.
    pub keys: Option<KeySet>,
}

/// Gets each mistake that a front finds: the name of the resource in its section, the key (empty: the whole resource),
/// the place, and the problem.
pub type Finder<'a> = dyn FnMut(&str, &str, Mark, String) + 'a;

/// A section of a front.
#[derive(Debug)]
pub struct FrontSection {
    /// The kind of its resources.
    pub kind: FrontKind,
    /// Its documentation, raw.
    pub doc: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
    /// The effects of a creation and of a removal.
    pub effects: (Effect, Effect),
    /// Reads a resource.
    pub read: fn(&Table<'_>, Mark, &mut Report) -> Option<Arc<dyn Object>>,
    /// Checks the resources against each other and against the rest of the configuration. References to missing
    /// resources are already reported.
    pub check: fn(&dyn Objects, &mut Finder<'_>),
}

impl FrontSection {
    /// The section of `R`, whose kind must be this one.
    #[must_use]
    pub const fn of<R: Resource>(kind: FrontKind, check: fn(&dyn Objects, &mut Finder<'_>)) -> Self {
        Self { kind, doc: R::DOC, keys: R::KEYS, effects: (R::CREATED, R::REMOVED), read: read_object::<R>, check }
    }
}

/// The declaration of a front.
#[derive(Debug)]
pub struct FrontSchema {
    /// Its portals, if clients reach it over TCP.
    pub portals: Option<PortalSchema>,
    /// A section of its own, for endpoints of its own.
    pub section: Option<FrontSection>,
    /// Limits of its own, in `[limits]`.
    pub limits: Option<KeySet>,
}

impl StoreSchema {
    /// The key that says where the bytes of a volume are, and the copies of them, if the system makes some that keeps
    /// the store.
    #[must_use]
    pub fn copies(&self) -> Option<(&'static str, &'static SystemCopies)> {
        let keys = self.keys?;
        Some((keys.place?.0, keys.copies?))
    }
}

impl Schema {
    /// The words of `kind`, with their descriptions.
    #[must_use]
    pub fn store_words(&self) -> Vec<(&'static str, &'static str)> {
        self.stores.iter().map(|store| (store.word, store.doc)).collect()
    }

    /// The words of `protocol`, with their descriptions.
    #[must_use]
    pub fn protocol_words(&self) -> Vec<(&'static str, &'static str)> {
        self.portals().map(|portals| (portals.word, portals.doc)).collect()
    }

    /// The fronts with portals.
    pub fn portals(&self) -> impl Iterator<Item = &'static PortalSchema> {
        self.fronts.iter().filter_map(|front| front.portals.as_ref())
    }

    /// The sections of fronts, in the order of creation.
    #[must_use]
    pub fn sections(&self) -> Vec<&'static FrontSection> {
        let mut all: Vec<&'static FrontSection> =
            self.fronts.iter().filter_map(|front| front.section.as_ref()).collect();
        all.sort_by_key(|section| section.kind);
        all
    }

    /// The section of this kind.
    #[must_use]
    pub fn section(&self, kind: FrontKind) -> Option<&'static FrontSection> {
        self.fronts.iter().filter_map(|front| front.section.as_ref()).find(|section| section.kind == kind)
    }

    /// The kinds of all resources, in the order of creation.
    #[must_use]
    pub fn kinds(&self) -> Vec<Kind> {
        let fronts = self.sections().into_iter().map(|section| Kind::Front(section.kind));
        Kind::FIRST.iter().copied().chain(fronts).chain(Kind::LAST.iter().copied()).collect()
    }

    /// The kind of the resources in the section of this name.
    #[must_use]
    pub fn kind(&self, section: &str) -> Option<Kind> {
        self.kinds().into_iter().find(|kind| kind.section() == section)
    }
}

/// The kind of a store: the value of `kind`.
#[derive(Clone, Copy)]
pub struct StoreKind(&'static StoreSchema);

/// The protocol of a portal: the value of `protocol`.
#[derive(Clone, Copy)]
pub struct Protocol(&'static PortalSchema);

impl StoreKind {
    /// The declaration of the store.
    #[must_use]
    pub fn declaration(self) -> &'static StoreSchema {
        self.0
    }

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.0.word
    }

    /// Whether its bytes are in a file or device, or behind a socket, so that `path` is required.
    #[must_use]
    pub fn has_path(self) -> bool {
        !matches!(self.0.location, Location::Nowhere | Location::Remote)
    }

    /// Whether its bytes are in a regular file.
    #[must_use]
    pub fn is_file(self) -> bool {
        self.0.location == Location::File
    }
}

impl Protocol {
    /// The protocol of a portal that names none.
    #[must_use]
    pub fn usual(schema: &'static Schema) -> Option<Self> {
        schema.portals().next().map(Self)
    }

    /// The declaration of the portals.
    #[must_use]
    pub fn declaration(self) -> &'static PortalSchema {
        self.0
    }

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.0.word
    }
}

/// Implements the traits of a word that the schema declares.
macro_rules! words {
    ($name:ident, $shape:ident, $all:expr) => {
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.word() == other.word()
            }
        }

        impl Eq for $name {}

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }

        impl Value for $name {
            fn shape() -> Shape {
                Shape::$shape
            }

            fn read(item: &Item<'_>, report: &mut Report) -> Option<Self> {
                let all: Vec<(&'static str, Self)> = $all(report.schema());
                read_choice(item, report, &all)
            }

            fn show(&self) -> Json {
                json!(self.word())
            }
        }
    };
}

words!(StoreKind, Store, |schema: &Schema| schema.stores.iter().map(|store| (store.word, Self(store))).collect());
words!(Protocol, Protocol, |schema: &Schema| schema.portals().map(|portals| (portals.word, Self(portals))).collect());

/// Reads one of some words.
pub fn read_choice<T: Copy>(item: &Item<'_>, report: &mut Report, choices: &[(&'static str, T)]) -> Option<T> {
    let at = Mark::new(item.span());
    let words = || choices.iter().map(|(word, _)| *word);
    let list = || words().collect::<Vec<_>>().join(", ");
    let text = match item.get_ref() {
        DeValue::String(text) => &**text,
        DeValue::Integer(number) => number.as_str(),
        other => {
            report.add(at, format!("is {}; it takes one of {}", kind_of(other), list()));
            return None;
        }
    };
    let found = choices.iter().find(|(word, _)| *word == text).map(|(_, choice)| *choice);
    if found.is_none() {
        let guess = did_you_mean(text, words());
        report.add(at, format!("'{}' is none of {}{guess}", shortened(text), list()));
    }
    found
}

/// The beginning of a text from the file: a message stays readable.
pub(crate) fn shortened(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { '?' } else { c });
    if text.chars().count() > 80 { clean.take(77).collect::<String>() + "..." } else { clean.collect() }
}

/// Which fronts or store add keys to an object.
#[derive(Clone, Copy, Debug)]
pub enum Owner {
    /// The store of a volume; `None` if its kind could not be read.
    Store(Option<StoreKind>),
    /// The front of a portal; `None` if its protocol could not be read.
    Portal(Option<Protocol>),
    /// All fronts with limits.
    Limits,
}

impl Owner {
    /// The keys that belong to the object.
    pub(crate) fn key_sets(self, schema: &'static Schema) -> Vec<KeySet> {
        match self {
            Self::Store(store) => store.and_then(|store| store.0.keys).into_iter().collect(),
            Self::Portal(protocol) => protocol.and_then(|protocol| protocol.0.keys).into_iter().collect(),
            Self::Limits => Self::all_limits(schema).collect(),
        }
    }

    /// The condition under which another object of the section may have this key: `kind = "file"`.
    pub(crate) fn condition_of(self, written: &str, schema: &'static Schema) -> Option<String> {
        let has = |set: Option<KeySet>| set.is_some_and(|set| set.keys.iter().any(|key| key.is(written)));
        match self {
            Self::Store(_) => {
                let store = schema.stores.iter().find(|store| has(store.keys))?;
                Some(format!("kind = {}", quoted_value(store.word)))
            }
            Self::Portal(_) => {
                let portals = schema.portals().find(|portals| has(portals.keys))?;
                Some(format!("protocol = {}", quoted_value(portals.word)))
            }
            Self::Limits => None,
        }
    }

    /// All keys that an object of this section may have besides its own.
    pub(crate) fn all_keys(self, schema: &'static Schema) -> Vec<&'static Key> {
        let sets: Vec<KeySet> = match self {
            Self::Store(_) => schema.stores.iter().filter_map(|store| store.keys).collect(),
            Self::Portal(_) => schema.portals().filter_map(|portals| portals.keys).collect(),
            Self::Limits => Self::all_limits(schema).collect(),
        };
        sets.into_iter().flat_map(|set| set.keys).collect()
    }

    fn all_limits(schema: &'static Schema) -> impl Iterator<Item = KeySet> {
        schema.fronts.iter().filter_map(|front| front.limits)
    }
}

fn quoted_value(word: &str) -> String {
    format!("\"{}\"", quoted(word))
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;

//! How a section of the configuration is declared: each key once, with its type, unit, default, meaning, and with
//! who notices when it changes. Everything else about a key is derived from there.

use crate::report::{Mark, Report};
use crate::value::{Field, Naming, Shape};
use serde_json::Value as Json;
use std::fmt::Debug;
use toml::de::DeTable;

/// Who notices a change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Effect {
    /// Nobody.
    Live,
    /// Sessions that begin later.
    LaterSessions,
    /// Initiators are told, and go on.
    Attention,
    /// Sessions end; their initiators come back by themselves.
    EndsSessions,
    /// It is in force after the next start of the service.
    Restart,
}

impl Effect {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Live => "at once, unnoticed",
            Self::LaterSessions => "for later sessions",
            Self::Attention => "at once; initiators are told",
            Self::EndsSessions => "at once; sessions end and come back",
            Self::Restart => "after a restart",
        }
    }

    /// In one word, for programs.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::LaterSessions => "later-sessions",
            Self::Attention => "attention",
            Self::EndsSessions => "ends-sessions",
            Self::Restart => "restart",
        }
    }
}

/// One key, as it was declared.
#[derive(Debug)]
pub struct Key {
    /// Its name with underscores.
    pub field: &'static str,
    /// What it means, raw.
    pub doc: &'static str,
    /// What its number counts; empty where the type says it.
    pub unit: &'static str,
    /// Who notices a change.
    pub effect: Effect,
    /// What it looks like.
    pub shape: fn() -> Shape,
    /// What holds when it is not there: `None` where it must be, null where it is optional.
    pub default: fn() -> Option<Json>,
    /// How it names other things.
    pub naming: Naming,
    /// Whether it holds things that change one by one.
    pub nested: bool,
}

impl Key {
    /// The key as it is written.
    #[must_use]
    pub fn name(&self) -> String {
        self.field.replace('_', "-")
    }

    /// Whether `written` is this key.
    #[must_use]
    pub fn is(&self, written: &str) -> bool {
        is_key(self.field, written)
    }

    /// What it means, in one line.
    #[must_use]
    pub fn words(&self) -> String {
        one_line(self.doc)
    }
}

/// Whether `written` is the key of this field.
pub(crate) fn is_key(field: &str, written: &str) -> bool {
    let dashed = |byte: u8| if byte == b'_' { b'-' } else { byte };
    field.len() == written.len() && field.bytes().zip(written.bytes()).all(|(one, other)| dashed(one) == other)
}

/// A doc comment in one line.
pub(crate) fn one_line(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Where an object and its keys were written.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Marks {
    /// The object.
    pub whole: Mark,
    pub(crate) keys: Vec<(&'static str, Mark)>,
}

impl Marks {
    /// Where the key of this name was written; the object where it was not.
    #[must_use]
    pub fn of(&self, key: &str) -> Mark {
        let is = |field: &str| field.bytes().eq(key.bytes().map(|byte| if byte == b'-' { b'_' } else { byte }));
        self.keys.iter().find(|(name, _)| is(name)).map_or(self.whole, |(_, mark)| *mark)
    }
}

/// Something that a section declares.
pub trait Section: Object + Sized + Clone + PartialEq + 'static {
    /// What it is, raw.
    const DOC: &'static str;
    /// Its keys, in the order of the page.
    const KEYS: &'static [Key];
    /// The kind of object.
    const KIND: crate::Kind;
    /// Who notices when one is made.
    const CREATED: Effect;
    /// Who notices when one is removed.
    const REMOVED: Effect;

    /// Reads it; what is wrong is reported.
    fn read(table: &DeTable<'_>, at: Mark, report: &mut Report) -> Option<Self>;
}

/// Something that a section declares, of whichever section.
pub trait Object: Debug {
    /// Its keys.
    fn keys(&self) -> &'static [Key];
    /// What the keys hold, in the same order.
    fn fields(&self) -> Vec<&dyn Field>;
    /// Where it was written.
    fn marks(&self) -> &Marks;
    /// What it is, in a few words.
    fn summary(&self) -> String;
}

/// A key that must be there.
pub(crate) fn required<T>() -> Option<T> {
    None
}

/// A key that may be missing.
#[allow(clippy::unnecessary_wraps, reason = "a default is an option; this one is there")]
pub(crate) fn absent<T>() -> Option<Option<T>> {
    Some(None)
}

/// A key that has this value when it is missing.
pub(crate) fn or<T>(value: impl Into<T>) -> Option<T> {
    Some(value.into())
}

/// Declares sections: each key once.
macro_rules! sections {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident (made: $created:ident, removed: $removed:ident) {
            $(
                $(#[doc = $key_doc:literal])+
                $field:ident: $type:ty $([$unit:literal])? = $default:expr => $effect:ident;
            )+
        }
    )+) => { $(
        $(#[doc = $doc])+
        #[derive(Clone, PartialEq, Debug)]
        pub struct $name {
            /// Where it was written.
            pub marks: $crate::section::Marks,
            $($(#[doc = $key_doc])+ pub $field: $type,)+
        }

        impl $crate::section::Section for $name {
            const DOC: &'static str = concat!($($doc, "\n"),+);
            const KIND: $crate::Kind = $crate::Kind::$name;
            const CREATED: $crate::Effect = $crate::Effect::$created;
            const REMOVED: $crate::Effect = $crate::Effect::$removed;
            const KEYS: &'static [$crate::section::Key] = &[$($crate::section::Key {
                field: stringify!($field),
                doc: concat!($($key_doc, "\n"),+),
                unit: concat!($($unit)?),
                effect: $crate::Effect::$effect,
                shape: <$type as $crate::value::Value>::shape,
                default: || {
                    let default: Option<$type> = $default;
                    default.map(|default| $crate::value::Value::show(&default))
                },
                naming: <$type as $crate::value::Value>::NAMING,
                nested: <$type as $crate::value::Value>::NESTED,
            }),+];

            fn read(
                table: &toml::de::DeTable<'_>,
                at: $crate::report::Mark,
                report: &mut $crate::report::Report,
            ) -> Option<Self> {
                let mut marks = $crate::section::Marks { whole: at, keys: Vec::with_capacity(table.len()) };
                let mut whole = true;
                $(let mut $field: Option<$type> = None;)+
                for (key, value) in table.iter() {
                    let written: &str = key.get_ref();
                    match written {
                        $(_ if $crate::section::is_key(stringify!($field), written) => {
                            marks.keys.push((stringify!($field), $crate::report::Mark::new(value.span())));
                            $field = report.within(written, |report| {
                                <$type as $crate::value::Value>::read(value, report)
                            });
                            whole &= $field.is_some();
                        })+
                        _ => {
                            whole = false;
                            let at = $crate::report::Mark::new(key.span());
                            $crate::section::unknown(Self::KEYS, written, at, report);
                        }
                    }
                }
                $(
                    let written = marks.keys.iter().any(|(name, _)| *name == stringify!($field));
                    if $field.is_none() && !written {
                        $field = $default;
                        if $field.is_none() {
                            whole = false;
                            report.add(at, format!("has no '{}'", stringify!($field).replace('_', "-")));
                        }
                    }
                )+
                if !whole {
                    return None;
                }
                Some(Self { marks, $($field: $field?),+ })
            }
        }

        impl $crate::section::Object for $name {
            fn keys(&self) -> &'static [$crate::section::Key] {
                <Self as $crate::section::Section>::KEYS
            }

            fn fields(&self) -> Vec<&dyn $crate::value::Field> {
                vec![$(&self.$field),+]
            }

            fn marks(&self) -> &$crate::section::Marks {
                &self.marks
            }

            fn summary(&self) -> String {
                self.in_few_words()
            }
        }
    )+ };
}
pub(crate) use sections;

/// Reports a key that nobody declared.
pub(crate) fn unknown(keys: &'static [Key], written: &str, at: Mark, report: &mut Report) {
    let names: Vec<String> = keys.iter().map(Key::name).collect();
    let guess = crate::report::did_you_mean(written, names.iter().map(String::as_str));
    let shown = crate::report::quoted(&written.chars().take(64).collect::<String>());
    let all = if guess.is_empty() { format!("; there are {}", names.join(", ")) } else { guess };
    report.add(at, format!("there is no key '{shown}' here{all}"));
}

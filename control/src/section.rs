//! How a section of the configuration is declared: each key once, with its type, unit, default, meaning and the effect
//! of a change. Everything else about a key is derived from its declaration.

use crate::kind::Kind;
use crate::report::{Mark, Report};
use crate::schema::{self, Schema};
use serde_json::{Map, json};
use std::any::Any;
use std::fmt::{self, Debug};
use std::sync::Arc;
use toml::Spanned;
use toml::de::DeValue;

pub use serde_json::Value as Json;
pub use toml::de::DeTable as Table;

/// A value as it stands in a file, with its place.
pub type Item<'i> = Spanned<DeValue<'i>>;

/// The form of a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// `true` or `false`.
    Bool,
    /// A whole number in a range.
    Whole {
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// A string with a form of its own.
    Text {
        /// The form in words, with an example.
        what: &'static str,
        /// The form as a regular expression (ECMA-262), where it has one.
        pattern: Option<&'static str>,
        /// Whether a whole number may be written instead.
        numbers: bool,
    },
    /// One of these words, each with its meaning.
    Choice(Vec<(&'static str, &'static str)>),
    /// The word of a store of the schema; [`Shape::resolved`] lists them.
    Store,
    /// The word of a portal protocol of the schema; [`Shape::resolved`] lists them.
    Protocol,
    /// The name of a resource in the section of this name.
    Name(&'static str),
    /// Any number of values.
    List(Box<Self>),
    /// One value, or none.
    Optional(Box<Self>),
    /// A secret, or its location.
    Secret,
    /// A LUN map.
    Luns,
}

impl Shape {
    /// The same with the words of the schema's stores and protocols.
    #[must_use]
    pub fn resolved(self, schema: &'static Schema) -> Self {
        match self {
            Self::Store => Self::Choice(schema.store_words()),
            Self::Protocol => Self::Choice(schema.protocol_words()),
            Self::List(each) => Self::List(Box::new(each.resolved(schema))),
            Self::Optional(some) => Self::Optional(Box::new(some.resolved(schema))),
            shape => shape,
        }
    }

    /// In words, for a page.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Bool => "`true` or `false`".into(),
            Self::Whole { min, max } => format!("a whole number, {min} to {max}"),
            Self::Text { what, .. } => (*what).into(),
            Self::Choice(words) => {
                let words: Vec<String> = words.iter().map(|(word, doc)| format!("`{word}` ({doc})")).collect();
                format!("one of {}", words.join(", "))
            }
            Self::Store => "kind of store".into(),
            Self::Protocol => "protocol".into(),
            Self::Name(section) => format!("name of a `{section}`"),
            Self::List(each) => format!("list of: {}", each.words()),
            Self::Optional(some) => some.words(),
            Self::Secret => "`{ file = \"/path\" }`, `{ credential = \"name\" }`, or the secret as a string".into(),
            Self::Luns => "table of logical unit numbers".into(),
        }
    }

    /// As a JSON schema (draft 2020-12).
    #[must_use]
    pub fn schema(&self) -> Json {
        match self {
            Self::Bool => json!({ "type": "boolean" }),
            Self::Whole { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
            Self::Text { pattern, numbers, .. } => {
                let mut text = json!({ "type": if *numbers { json!(["string", "integer"]) } else { json!("string") } });
                if let Some(pattern) = pattern {
                    text["pattern"] = json!(pattern);
                }
                text
            }
            Self::Choice(words) => json!({ "enum": words.iter().map(|(word, _)| *word).collect::<Vec<_>>() }),
            Self::Name(_) | Self::Store | Self::Protocol => json!({ "type": "string" }),
            Self::List(each) => json!({ "type": "array", "items": each.schema(), "uniqueItems": true }),
            Self::Optional(some) => some.schema(),
            Self::Secret => json!({ "oneOf": [
                { "type": "string" },
                { "type": "object", "properties": { "file": { "type": "string" } },
                  "required": ["file"], "additionalProperties": false },
                { "type": "object", "properties": { "credential": { "type": "string" } },
                  "required": ["credential"], "additionalProperties": false },
            ] }),
            Self::Luns => json!({ "$ref": "#/$defs/luns" }),
        }
    }
}

/// How a key refers to other resources.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Naming {
    /// It does not.
    None,
    /// To exactly one, which must exist: with another one, the resource is another resource.
    One,
    /// To any number, which are attached and detached one by one.
    Many,
}

/// Gets each reference of a value: the kind, the name, the place.
pub type Mention<'a> = dyn FnMut(Kind, &str, Mark) + 'a;

/// The type of a key.
pub trait Value: Sized + Clone + PartialEq + Debug + Send + Sync + 'static {
    /// How it refers to other resources.
    const NAMING: Naming = Naming::None;
    /// Whether it holds resources that change one by one, not as a value.
    const NESTED: bool = false;

    /// Its form.
    fn shape() -> Shape;

    /// Reads it and reports mistakes.
    fn read(item: &Item<'_>, report: &mut Report) -> Option<Self>;

    /// As JSON, in the form that [`Value::read`] accepts. Never a secret.
    fn show(&self) -> Json;

    /// Passes all references on.
    fn mentions(&self, _each: &mut Mention<'_>) {}
}

/// Any [`Value`] of an object.
pub trait Field: Debug {
    /// [`Value::show`].
    fn show(&self) -> Json;
    /// [`Value::mentions`].
    fn mentions(&self, each: &mut Mention<'_>);
    /// Whether both are the same value of the same type.
    fn same(&self, other: &dyn Field) -> bool;
    /// A copy.
    fn copy(&self) -> Box<dyn Field>;
    /// For [`Field::same`].
    fn any(&self) -> &dyn Any;
}

impl<V: Value> Field for V {
    fn show(&self) -> Json {
        Value::show(self)
    }

    fn mentions(&self, each: &mut Mention<'_>) {
        Value::mentions(self, each);
    }

    fn same(&self, other: &dyn Field) -> bool {
        other.any().downcast_ref::<V>() == Some(self)
    }

    fn copy(&self) -> Box<dyn Field> {
        Box::new(self.clone())
    }

    fn any(&self) -> &dyn Any {
        self
    }
}

/// The name of a value's type in TOML.
#[must_use]
pub fn kind_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// The effect of a change on clients.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Effect {
    /// At once; clients do not notice.
    Live,
    /// On sessions that begin later.
    LaterSessions,
    /// At once; clients are notified and continue.
    Attention,
    /// Sessions end; their clients may reconnect.
    EndsSessions,
    /// After the next start of the service.
    Restart,
}

impl Effect {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Live => "at once; clients do not notice it",
            Self::LaterSessions => "for later sessions",
            Self::Attention => "at once; clients are notified",
            Self::EndsSessions => "at once; sessions end, clients reconnect",
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

/// The value of a key that is not in the file.
#[derive(Clone, Copy, Debug)]
pub enum Missing<T> {
    /// The key must be in the file.
    Required,
    /// This value.
    Value(T),
    /// A value of the schema, if it has one; otherwise the key must be in the file.
    OfSchema(fn(&'static Schema) -> Option<T>),
}

impl<T> Missing<T> {
    /// The value; `None` if the key is required.
    #[must_use]
    pub fn value(self, schema: &'static Schema) -> Option<T> {
        match self {
            Self::Required => None,
            Self::Value(value) => Some(value),
            Self::OfSchema(value) => value(schema),
        }
    }
}

/// A key that must be in the file.
#[must_use]
pub fn required<T>() -> Missing<T> {
    Missing::Required
}

/// A key without a default.
#[must_use]
pub fn optional<T>() -> Missing<Option<T>> {
    Missing::Value(None)
}

/// A key with this default.
#[must_use]
pub fn or<T>(value: impl Into<T>) -> Missing<T> {
    Missing::Value(value.into())
}

/// A key, as it was declared.
#[derive(Debug)]
pub struct Key {
    /// Its name with underscores.
    pub field: &'static str,
    /// Its documentation, raw.
    pub doc: &'static str,
    /// The unit of its number; empty where the type says it.
    pub unit: &'static str,
    /// The effect of a change.
    pub effect: Effect,
    /// The form of its value.
    pub shape: fn() -> Shape,
    /// Its default: `None` where the key is required, null where it is optional.
    pub default: fn(&'static Schema) -> Option<Json>,
    /// How it refers to other resources.
    pub naming: Naming,
    /// Whether it holds resources that change one by one.
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

    /// Its documentation, in one line.
    #[must_use]
    pub fn words(&self) -> String {
        one_line(self.doc)
    }
}

/// Whether `written` is the key of this field.
#[must_use]
pub fn is_key(field: &str, written: &str) -> bool {
    let dashed = |byte: u8| if byte == b'_' { b'-' } else { byte };
    field.len() == written.len() && field.bytes().zip(written.bytes()).all(|(one, other)| dashed(one) == other)
}

/// A doc comment in one line.
pub(crate) fn one_line(doc: &str) -> String {
    // Each start of the program does this for all keys.
    let mut line = String::with_capacity(doc.len());
    for words in doc.lines().map(str::trim).filter(|words| !words.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(words);
    }
    line
}

/// The places of an object and its keys in the file.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Marks {
    /// The object.
    pub whole: Mark,
    /// Its keys, with underscores.
    pub keys: Vec<(&'static str, Mark)>,
}

impl Marks {
    /// Whether the key of this name is in the file.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|(name, _)| *name == key)
    }

    /// The place of the key of this name; of the object if the key is not in the file.
    #[must_use]
    pub fn of(&self, key: &str) -> Mark {
        let is = |field: &str| field.bytes().eq(key.bytes().map(|byte| if byte == b'-' { b'_' } else { byte }));
        self.keys.iter().find(|(name, _)| is(name)).map_or(self.whole, |(_, mark)| *mark)
    }
}

/// The declaration of a section, or of the keys that a front or a store adds to one.
pub trait Section: Object + Sized + Clone + PartialEq {
    /// Its documentation, raw.
    const DOC: &'static str;
    /// Its keys, in the order of the page.
    const KEYS: &'static [Key];
    /// The effect of a creation.
    const CREATED: Effect;
    /// The effect of a removal.
    const REMOVED: Effect;

    /// Reads it and reports mistakes.
    fn read(table: &Table<'_>, at: Mark, report: &mut Report) -> Option<Self>;
}

/// A section whose objects are resources of a kind.
pub trait Resource: Section {
    /// The kind.
    const KIND: Kind;
}

/// A configured object of any section.
pub trait Object: Debug + Any + Send + Sync {
    /// Its keys, with those that a front or its store adds.
    fn keys(&self) -> Vec<&'static Key>;
    /// The values of the keys, in the same order.
    fn fields(&self) -> Vec<&dyn Field>;
    /// Its place in the file.
    fn marks(&self) -> &Marks;
    /// A short description.
    fn summary(&self) -> String;
    /// The effects of its creation and of its removal.
    fn effects(&self) -> (Effect, Effect);
    /// Whether both are equal and of the same type.
    fn is_same(&self, other: &dyn Object) -> bool;
    /// For a cast to the type of its section.
    fn any(&self) -> &dyn Any;
}

/// The values of the keys that fronts or a store add to an object.
#[derive(Clone, Default, Debug)]
pub struct OwnKeys(pub(crate) Vec<Arc<dyn Object>>);

impl PartialEq for OwnKeys {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|(one, other)| one.is_same(&**other))
    }
}

impl OwnKeys {
    /// The keys of this declaration, if they belong to the object.
    #[must_use]
    pub fn get<S: Section>(&self) -> Option<&S> {
        self.0.iter().find_map(|object| object.any().downcast_ref())
    }

    /// All keys.
    #[must_use]
    pub fn keys(&self) -> Vec<&'static Key> {
        self.0.iter().flat_map(|object| object.keys()).collect()
    }

    /// Their values, in the same order.
    #[must_use]
    pub fn fields(&self) -> Vec<&dyn Field> {
        self.0.iter().flat_map(|object| object.fields()).collect()
    }

    /// The descriptions, each behind a comma.
    #[must_use]
    pub fn summary(&self) -> String {
        let summaries = self.0.iter().map(|object| object.summary()).filter(|summary| !summary.is_empty());
        summaries.map(|summary| format!(", {summary}")).collect()
    }
}

/// The objects of a configuration, for the checks of a front.
pub trait Objects {
    /// The object of this kind and name.
    fn get(&self, kind: Kind, name: &str) -> Option<&dyn Object>;
    /// The names of all objects of a kind, sorted.
    fn names(&self, kind: Kind) -> Vec<&str>;
}

impl dyn Objects + '_ {
    /// The resource of this name.
    #[must_use]
    pub fn find<R: Resource>(&self, name: &str) -> Option<&R> {
        self.get(R::KIND, name)?.any().downcast_ref()
    }

    /// All resources of a section, by name.
    pub fn all<R: Resource>(&self) -> impl Iterator<Item = (&str, &R)> {
        self.names(R::KIND).into_iter().filter_map(|name| Some((name, self.find(name)?)))
    }
}

/// An object as JSON, with the names of the keys in the file. No secrets; nothing for keys without a value.
#[must_use]
pub fn show(object: &dyn Object) -> Json {
    let fields = object.keys().into_iter().zip(object.fields());
    let shown = fields.map(|(key, field)| (key.name(), field.show())).filter(|(_, value)| !value.is_null());
    Json::Object(shown.collect::<Map<_, _>>())
}

/// Reads an object of the type `S`.
pub(crate) fn read_object<S: Section>(table: &Table<'_>, at: Mark, report: &mut Report) -> Option<Arc<dyn Object>> {
    Some(Arc::new(S::read(table, at, report)?))
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// Declares sections: each key once. With `own: OWNER`, fronts or stores may add keys ([`crate::schema::Owner`]). The
/// type has an inherent method `brief`, a short description of an object.
#[macro_export]
macro_rules! sections {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident (made: $created:ident, removed: $removed:ident $(, own: $own:expr)?) {
            $(
                $(#[doc = $key_doc:literal])+
                $field:ident: $type:ty $([$unit:literal])? = $default:expr => $effect:ident;
            )+
        }
    )+) => { $(
        $(#[doc = $doc])+
        #[derive(Clone, PartialEq, Debug)]
        pub struct $name {
            /// The place in the file.
            pub marks: $crate::section::Marks,
            /// Keys that fronts or a store add.
            pub own: $crate::section::OwnKeys,
            $($(#[doc = $key_doc])+ pub $field: $type,)+
        }

        impl $crate::section::Section for $name {
            const DOC: &'static str = concat!($($doc, "\n"),+);
            const CREATED: $crate::Effect = $crate::Effect::$created;
            const REMOVED: $crate::Effect = $crate::Effect::$removed;
            const KEYS: &'static [$crate::section::Key] = &[$($crate::section::Key {
                field: stringify!($field),
                doc: concat!($($key_doc, "\n"),+),
                unit: concat!($($unit)?),
                effect: $crate::Effect::$effect,
                shape: <$type as $crate::section::Value>::shape,
                default: |schema| {
                    let default: $crate::section::Missing<$type> = $default;
                    default.value(schema).map(|default| $crate::section::Value::show(&default))
                },
                naming: <$type as $crate::section::Value>::NAMING,
                nested: <$type as $crate::section::Value>::NESTED,
            }),+];

            fn read(
                table: &$crate::section::Table<'_>,
                at: $crate::report::Mark,
                report: &mut $crate::report::Report,
            ) -> Option<Self> {
                let mut marks = $crate::section::Marks { whole: at, keys: Vec::with_capacity(table.len()) };
                let mut whole = true;
                let mut others = Vec::new();
                $(let mut $field: Option<$type> = None;)+
                for (key, value) in table.iter() {
                    let written: &str = key.get_ref();
                    match written {
                        $(_ if $crate::section::is_key(stringify!($field), written) => {
                            marks.keys.push((stringify!($field), $crate::report::Mark::new(value.span())));
                            $field = report.within(written, |report| {
                                <$type as $crate::section::Value>::read(value, report)
                            });
                            whole &= $field.is_some();
                        })+
                        _ => others.push((key, value)),
                    }
                }
                $(
                    let written = marks.keys.iter().any(|(name, _)| *name == stringify!($field));
                    if $field.is_none() && !written {
                        let default: $crate::section::Missing<$type> = $default;
                        $field = default.value(report.schema());
                        if $field.is_none() {
                            whole = false;
                            report.add(at, format!("has no '{}'", stringify!($field).replace('_', "-")));
                        }
                    }
                )+
                let owner: Option<$crate::schema::Owner> = None$(.or(Some($own)))?;
                let own = $crate::section::read_own(owner, &others, Self::KEYS, &mut marks, report);
                if !whole {
                    return None;
                }
                Some(Self { marks, own: own?, $($field: $field?),+ })
            }
        }

        impl $crate::section::Object for $name {
            fn keys(&self) -> Vec<&'static $crate::section::Key> {
                let mut keys: Vec<_> = <Self as $crate::section::Section>::KEYS.iter().collect();
                keys.extend(self.own.keys());
                keys
            }

            fn fields(&self) -> Vec<&dyn $crate::section::Field> {
                let mut fields: Vec<&dyn $crate::section::Field> = vec![$(&self.$field),+];
                fields.extend(self.own.fields());
                fields
            }

            fn marks(&self) -> &$crate::section::Marks {
                &self.marks
            }

            fn summary(&self) -> String {
                self.brief()
            }

            fn effects(&self) -> ($crate::Effect, $crate::Effect) {
                (<Self as $crate::section::Section>::CREATED, <Self as $crate::section::Section>::REMOVED)
            }

            fn is_same(&self, other: &dyn $crate::section::Object) -> bool {
                other.any().downcast_ref::<Self>() == Some(self)
            }

            fn any(&self) -> &dyn std::any::Any {
                self
            }
        }
    )+ };
}

/// Reads the keys that the section itself does not declare: the owner's, or none. Reports all others.
pub fn read_own<'i>(
    owner: Option<schema::Owner>,
    others: &[(&Spanned<std::borrow::Cow<'i, str>>, &Item<'i>)],
    keys: &'static [Key],
    marks: &mut Marks,
    report: &mut Report,
) -> Option<OwnKeys> {
    let sets = owner.map(|owner| owner.key_sets(report.schema())).unwrap_or_default();
    let mut left: Vec<_> = others.to_vec();
    let mut own = Vec::with_capacity(sets.len());
    let mut is_whole = true;
    for set in &sets {
        let mut table = Table::new();
        left.retain(|(key, value)| {
            let Some(known) = set.keys.iter().find(|known| known.is(key.get_ref())) else { return true };
            marks.keys.push((known.field, Mark::new(value.span())));
            table.insert((*key).clone(), (*value).clone());
            false
        });
        match (set.read)(&table, marks.whole, report) {
            Some(object) => own.push(object),
            None => is_whole = false,
        }
    }
    for (key, _) in left {
        is_whole = false;
        let (written, at) = (&**key.get_ref(), Mark::new(key.span()));
        let foreign = owner.and_then(|owner| owner.condition_of(written, report.schema()));
        match foreign {
            Some(condition) => report.within(written, |report| report.add(at, format!("is for {condition}"))),
            None => {
                let all: Vec<&Key> = keys.iter().chain(sets.iter().flat_map(|set| set.keys)).collect();
                unknown(&all, written, at, report);
            }
        }
    }
    is_whole.then_some(OwnKeys(own))
}

/// Reports a key that is not declared.
fn unknown(keys: &[&Key], written: &str, at: Mark, report: &mut Report) {
    let names: Vec<String> = keys.iter().map(|key| key.name()).collect();
    let guess = crate::report::did_you_mean(written, names.iter().map(String::as_str));
    let shown = crate::report::quoted(&written.chars().take(64).collect::<String>());
    let all = if guess.is_empty() { format!("; there are {}", names.join(", ")) } else { guess };
    report.add(at, format!("there is no key '{shown}' here{all}"));
}

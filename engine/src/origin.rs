//! The origin of a configuration: a file, or a command line. Messages name keys of the file, or options.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The arguments of objects, by their names.
type OfSection = BTreeMap<Box<str>, Box<str>>;

/// The arguments of a command line that objects of its configuration were made of, by section and name. Clones share
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments(Option<Arc<BTreeMap<Box<str>, OfSection>>>);

impl Arguments {
    /// No arguments.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// Adds the argument of an object.
    pub fn insert(&mut self, section: &str, name: &str, argument: &str) {
        let all = Arc::make_mut(self.0.get_or_insert_default());
        all.entry(section.into()).or_default().insert(name.into(), argument.into());
    }

    /// The argument of an object.
    #[must_use]
    pub fn get(&self, section: &str, name: &str) -> Option<&str> {
        self.0.as_ref()?.get(section)?.get(name).map(|argument| &**argument)
    }

    /// All: section, name, argument.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        let sections = self.0.iter().flat_map(|all| all.iter());
        sections.flat_map(|(section, all)| all.iter().map(move |(name, argument)| (&**section, &**name, &**argument)))
    }
}

/// The origin of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// A file. Messages name its sections and keys: `direct`.
    #[default]
    Configuration,
    /// A command line. Messages name its options and arguments: `--direct`.
    CommandLine(Arguments),
}

impl Origin {
    /// Whether it is a command line.
    #[must_use]
    pub fn is_command_line(&self) -> bool {
        matches!(self, Self::CommandLine(_))
    }

    /// An object in a message: its name, or the argument that it was made of.
    #[must_use]
    pub fn name(&self, section: &str, name: &str) -> String {
        self.argument(section, name).unwrap_or_else(|| name.to_owned())
    }

    /// A key of an object in a message: `portal.NAME.address`, or the argument that the object was made of.
    #[must_use]
    pub fn key(&self, section: &str, name: &str, key: &str) -> String {
        self.argument(section, name).unwrap_or_else(|| format!("{section}.{name}.{key}"))
    }

    /// How its messages name a setting.
    #[must_use]
    pub fn wording(&self) -> Wording {
        match self {
            Self::CommandLine(_) => Wording::Options,
            Self::Configuration => Wording::Keys,
        }
    }

    /// See [`Wording::option`].
    #[must_use]
    pub fn option(&self, name: &str) -> String {
        self.wording().option(name)
    }

    fn argument(&self, section: &str, name: &str) -> Option<String> {
        match self {
            Self::Configuration => None,
            Self::CommandLine(arguments) => arguments.get(section, name).map(str::to_owned),
        }
    }
}

/// How messages name a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wording {
    /// As an option of a command line: `--direct`.
    Options,
    /// As a key of the configuration: `direct`.
    Keys,
}

impl Wording {
    /// An option that is on or off: `--direct`, or the key `direct`.
    #[must_use]
    pub fn option(self, name: &str) -> String {
        match self {
            Self::Options => format!("--{name}"),
            Self::Keys => format!("`{name}`"),
        }
    }

    /// An option with a value: `--block-size 512`, or the key `block-size = "512"`.
    #[must_use]
    pub fn value(self, name: &str, value: &str) -> String {
        match self {
            Self::Options => format!("--{name} {value}"),
            Self::Keys => format!("`{name} = \"{value}\"`"),
        }
    }

    /// The advice to serve a volume that cannot be written.
    #[must_use]
    pub fn serve_read_only(self) -> &'static str {
        match self {
            Self::Options => "serve it with --read-only",
            Self::Keys => "serve it with `read-only = true`",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_use_the_words_of_their_origin() {
        let mut arguments = Arguments::none();
        arguments.insert("portal", "iscsi-001", "--listen");
        assert_eq!(arguments.iter().collect::<Vec<_>>(), [("portal", "iscsi-001", "--listen")]);
        let origin = Origin::CommandLine(arguments);
        assert_eq!(origin.key("portal", "iscsi-001", "address"), "--listen");
        assert_eq!(origin.name("volume", "other"), "other");
        assert_eq!(Origin::Configuration.key("portal", "one", "address"), "portal.one.address");
    }

    #[test]
    fn a_refusal_names_options_as_the_operator_writes_them() {
        let (line, file) = (Wording::Options, Wording::Keys);
        assert_eq!((line.option("direct"), file.option("direct")), ("--direct".into(), "`direct`".into()));
        let values = (line.value("block-size", "512"), file.value("block-size", "512"));
        assert_eq!(values, ("--block-size 512".into(), "`block-size = \"512\"`".into()));
    }
}

//! The origin of a configuration: a file, or a command line. Messages name keys of the file, or options.

use std::collections::BTreeMap;

/// The origin of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// A file. Messages name its sections and keys: `direct`.
    #[default]
    Configuration,
    /// A command line. Messages name its options and arguments: `--direct`. The map has the argument of each object
    /// that was made of one argument, by section and name.
    CommandLine(BTreeMap<(String, String), String>),
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
            Self::CommandLine(arguments) => arguments.get(&(section.to_owned(), name.to_owned())).cloned(),
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
        let arguments = [(("portal".to_owned(), "iscsi-001".to_owned()), "--listen".to_owned())];
        let origin = Origin::CommandLine(arguments.into());
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

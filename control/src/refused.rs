//! Why an edit of the configuration is refused.

use crate::kind::Kind;
use crate::luns::LUN_MAX;
use crate::plan::ObjectId;
use std::fmt;

/// Why an edit was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The resource does not exist.
    Missing(Missing),
    /// The resource of this kind and name exists already.
    Exists(Kind, String),
    /// Another resource refers to the resource.
    Used(Box<Used>),
    /// The value of a key has another form.
    Form {
        /// The key.
        key: String,
        /// Why.
        why: FormError,
    },
    /// The edit is wrong.
    Wrong(EditMistake),
}

/// A resource that an edit names and that does not exist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Missing {
    /// A resource of this kind and name.
    Resource(Kind, String),
    /// A LUN of a group.
    Lun {
        /// The group.
        group: String,
        /// The logical unit number.
        lun: u16,
    },
}

/// A resource that another one refers to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Used {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// The resource that refers to it.
    pub by: ObjectId,
    /// The key in which it does.
    pub key: String,
}

/// A mistake in an edit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EditMistake {
    /// A text has no value.
    NoValue,
    /// The configuration is not TOML.
    Unreadable,
    /// The secret of this resource is not in the history any more.
    ForgottenSecret(Kind, String),
    /// A kind of resource has no such key.
    NoKey {
        /// The kind.
        kind: Kind,
        /// The beginning of the key.
        key: String,
        /// A question whether another key is meant; empty if none is similar.
        guess: String,
    },
    /// A section or key of this name is not a table.
    NoTable(&'static str),
    /// A resource of this kind is not created by name.
    Unnamed(Kind),
    /// A name has other characters.
    Name,
    /// LUNs are set together.
    Luns,
    /// The section of this kind cannot be deleted.
    Permanent(Kind),
    /// A logical unit number is too large.
    LunTooLarge,
}

/// Why a value cannot be that of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FormError {
    /// The key is true or false.
    NotBool,
    /// The key is a whole number in this range.
    NotWhole {
        /// The least.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// LUNs are not set as a whole.
    Luns,
    /// A number with a fraction, or a number that is too large.
    OutOfRange,
    /// Null inside of a list or an object.
    Null,
}

impl fmt::Display for FormError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBool => f.write_str("it is true or false"),
            Self::NotWhole { min, max } => write!(f, "it is a whole number, {min} to {max}"),
            Self::Luns => f.write_str("logical units are mapped and unmapped one by one"),
            Self::OutOfRange => f.write_str("is not a whole number in range"),
            Self::Null => f.write_str("contains null where a value is required"),
        }
    }
}

impl std::error::Error for FormError {}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(why) => why.fmt(f),
            Self::Exists(kind, name) => write!(f, "the {kind} '{name}' exists already"),
            Self::Used(why) => why.fmt(f),
            Self::Form { key, why } => write!(f, "{key}: {why}"),
            Self::Wrong(why) => why.fmt(f),
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resource(kind, name) => write!(f, "there is no {kind} '{name}'"),
            Self::Lun { group, lun } => write!(f, "group '{group}' has no LUN {lun}"),
        }
    }
}

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, by, key } = self;
        match by.lun {
            Some(lun) => {
                let (id, group) = (by.id(), &by.name);
                write!(f, "{kind} {name} is {id}: unmap it first (`lunar group unmap {group} {lun}`)")
            }
            None => write!(f, "{kind} {name} is used by {} ({key}): change that first", by.id()),
        }
    }
}

impl fmt::Display for EditMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoValue => f.write_str("write KEY=VALUE to set a key"),
            Self::Unreadable => f.write_str("the configuration cannot be read: fix the file first"),
            Self::ForgottenSecret(kind, name) => write!(
                f,
                "the secret of {kind} {name} is not in the history any more, because it was deleted: create {kind} \
                 {name} with a secret first"
            ),
            Self::NoKey { kind, key, guess } => write!(f, "a {kind} has no key '{key}'{guess}"),
            Self::NoTable(name) => write!(f, "'{name}' is not a table"),
            Self::Unnamed(kind) => write!(f, "a {kind} is not created by name"),
            Self::Name => f.write_str("a name consists of letters, digits, '-', '_', '.', ':' and '@'"),
            Self::Luns => f.write_str("logical units are mapped and unmapped one by one"),
            Self::Permanent(kind) => write!(f, "the {kind} section cannot be deleted: remove its keys"),
            Self::LunTooLarge => write!(f, "a logical unit number is 0 to {LUN_MAX}"),
        }
    }
}

impl std::error::Error for Refused {}

impl From<Missing> for Refused {
    fn from(why: Missing) -> Self {
        Self::Missing(why)
    }
}

impl From<EditMistake> for Refused {
    fn from(why: EditMistake) -> Self {
        Self::Wrong(why)
    }
}

//! Why a volume cannot be served.

use super::metadata::MetadataError;
use super::text::TextMistake;
use crate::backend::Refusal;
use lunar_core::io::Fault;
use lunar_core::uncorrectable::Malformed;
use lunar_unit::protection::UnknownProtectionType;
use lunar_unit::reserve::MalformedReservations;
use std::fmt;
use std::io;

/// Why a volume cannot be served, with a message that says what to do.
#[derive(Debug)]
pub enum VolumeError {
    /// Its text on the command line is wrong.
    Text(TextMistake),
    /// The file or device of this text is named twice.
    NamedTwice(String),
    /// Two texts name one volume: the later one, and the earlier one.
    SameVolume(String, String),
    /// It has no UUID.
    NoUuid,
    /// The program has no back end of this kind.
    UnknownKind(&'static str),
    /// A volume of this kind needs a path.
    NeedsPath(&'static str),
    /// A volume of this kind has no path.
    HasPath(&'static str),
    /// Its back end refuses to open it.
    Backend(Refusal),
    /// Its metadata cannot be read; with its text on the command line, if that names it.
    Metadata(Option<String>, MetadataError),
    /// Its stored reservations cannot be read.
    Reservations(MalformedReservations),
    /// Its stored list of unreadable blocks cannot be read.
    UnreadableBlocks(Malformed),
    /// It keeps protection information and is in use.
    Protected,
    /// It cannot have protection information as requested; with its name.
    Protection(String, ProtectionError),
    /// A core cannot open its store or device.
    Core(io::Error),
}

/// Why a volume cannot have protection information as requested.
#[derive(Debug)]
pub enum ProtectionError {
    /// A device has its own medium.
    MediumOfDevice,
    /// A device keeps its protection information itself; with the option or key that asks for it.
    OfDevice(String),
    /// The medium can be ejected; with the option or key that asks for it.
    Ejectable(String),
    /// The stored type is not known.
    Unknown(UnknownProtectionType),
    /// The type cannot be stored.
    NotStored(Fault),
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(why) => why.fmt(f),
            Self::NamedTwice(text) => write!(f, "{text} is named twice: a volume is served under one number"),
            Self::SameVolume(text, twin) => write!(f, "{text} is the same volume as {twin}: name it once"),
            Self::NoUuid => f.write_str("it has no UUID"),
            Self::UnknownKind(kind) => write!(f, "this program has no volumes of kind {kind}"),
            Self::NeedsPath(kind) => write!(f, "a volume of kind {kind} needs a path"),
            Self::HasPath(kind) => write!(f, "a volume of kind {kind} has no path"),
            Self::Backend(why) => why.fmt(f),
            Self::Metadata(None, why) => why.fmt(f),
            Self::Metadata(Some(text), why) => write!(f, "opening {text}: {why}"),
            Self::Reservations(why) => why.fmt(f),
            Self::UnreadableBlocks(why) => why.fmt(f),
            Self::Protected => f.write_str(
                "it keeps protection information, and can be changed so only while it is not in use: remove it first",
            ),
            Self::Protection(name, why) => write!(f, "{name}: {why}"),
            Self::Core(why) => why.fmt(f),
        }
    }
}

impl fmt::Display for ProtectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MediumOfDevice => f.write_str("a device has its own medium"),
            Self::OfDevice(option) => {
                write!(f, "a device keeps its protection information itself; leave out {option}")
            }
            Self::Ejectable(option) => {
                write!(f, "protection information would stay behind when the medium is ejected; leave out {option}")
            }
            Self::Unknown(why) => write!(f, "{why}; serve it with the version of Lunar that stored it"),
            Self::NotStored(fault) => write!(f, "the protection type could not be stored: {fault:?}"),
        }
    }
}

impl std::error::Error for VolumeError {}

impl std::error::Error for ProtectionError {}

impl From<Refusal> for VolumeError {
    fn from(why: Refusal) -> Self {
        Self::Backend(why)
    }
}

impl From<TextMistake> for VolumeError {
    fn from(why: TextMistake) -> Self {
        Self::Text(why)
    }
}

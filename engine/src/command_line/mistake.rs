//! Mistakes in the options of a command line.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

pub use lunar_reactor::unix::SOCKET_PATH_MAX;

/// A mistake in the options of a front, with a message that says what to do.
#[derive(Debug)]
pub enum OptionMistake {
    /// The argument is given twice.
    Twice {
        /// The option and its value.
        argument: String,
        /// The remedy.
        advice: &'static str,
    },
    /// The name in this argument is given to two devices.
    NameTwice(String),
    /// Two arguments give one address.
    OneAddress(String, String),
    /// The address of one argument includes the address of the other.
    Overlap(String, String),
    /// An option is given more often than the option that it belongs to.
    Surplus {
        /// The option.
        option: &'static str,
        /// How often it is given.
        times: usize,
        /// The option that it belongs to.
        of: &'static str,
    },
    /// A path cannot be made absolute.
    Path(PathBuf, io::Error),
    /// A path is longer than [`SOCKET_PATH_MAX`]; with the option that chooses its folder.
    SocketTooLong(PathBuf, &'static str),
    /// A path is not UTF-8, which a configuration is.
    NotUtf8(PathBuf),
}

impl fmt::Display for OptionMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Twice { argument, advice } => write!(f, "{argument} is given twice: {advice}"),
            Self::NameTwice(argument) => {
                write!(f, "{argument}: this name is given twice: each device has a name of its own")
            }
            Self::OneAddress(one, other) => {
                write!(f, "{one} and {other} are one address: give one of them another port")
            }
            Self::Overlap(one, other) => {
                write!(f, "{one} and {other} overlap, because all addresses include each one: give one of them")
            }
            Self::Surplus { option, times, of } => write!(
                f,
                "{option} is given {times} times, and there is no {of} for the last of them: give it once for each \
                 {of}, in their order"
            ),
            Self::Path(path, why) => write!(f, "{}: {why}", path.display()),
            Self::SocketTooLong(path, option) => {
                write!(f, "{} is too long for a socket: choose another {option}", path.display())
            }
            Self::NotUtf8(path) => write!(f, "{} is not UTF-8", path.display()),
        }
    }
}

impl std::error::Error for OptionMistake {}

/// The text of a socket's path in a configuration. `option` chooses its folder.
///
/// # Errors
/// When it cannot be the path of a socket.
pub fn socket_text(path: &Path, option: &'static str) -> Result<String, OptionMistake> {
    let absolute = std::path::absolute(path).map_err(|why| OptionMistake::Path(path.to_owned(), why))?;
    if absolute.as_os_str().len() > SOCKET_PATH_MAX {
        return Err(OptionMistake::SocketTooLong(absolute, option));
    }
    absolute.into_os_string().into_string().map_err(|path| OptionMistake::NotUtf8(path.into()))
}

/// The mistakes that a check of a whole command line finds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DraftMistakes(pub Vec<DraftMistake>);

/// A mistake in one argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DraftMistake {
    /// The argument; the key of the configuration if no argument gave it.
    pub subject: String,
    /// The mistake, in words that say what to do.
    pub what: String,
}

impl fmt::Display for DraftMistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, DraftMistake { subject, what }) in self.0.iter().enumerate() {
            let end = if at == 0 { "" } else { "\n" };
            write!(f, "{end}{subject}: {what}")?;
        }
        Ok(())
    }
}

impl std::error::Error for DraftMistakes {}

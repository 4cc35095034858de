//! The system on which a configuration is checked: its files, credentials and random bytes.

use super::SECRET_FILE_BYTES_MAX;
use crate::common_sections::Volume;
use crate::names::Uuid;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The system on which a configuration is checked.
pub trait Outside {
    /// The permissions of the configuration itself; `None` if it is not in a file.
    fn config_mode(&self) -> Option<u32>;

    /// The permissions of a file.
    ///
    /// # Errors
    /// If it cannot be read.
    fn mode(&self, path: &Path) -> Result<u32, OutsideError>;

    /// The bytes of a small file.
    ///
    /// # Errors
    /// As [`Outside::mode`].
    fn read(&self, path: &Path) -> Result<Vec<u8>, OutsideError>;

    /// The file of the systemd credential of this name.
    ///
    /// # Errors
    /// If systemd provides none.
    fn credential(&self, name: &str) -> Result<PathBuf, OutsideError>;

    /// The identity of a volume that another configuration served before; `None` if none is known.
    fn mark(&self, volume: &Volume) -> Option<Uuid> {
        let _ = volume;
        None
    }

    /// Whether portals may listen at port 0, which is any port that is free. The operator must tell clients the port.
    fn allows_any_port(&self) -> bool {
        false
    }

    /// Sixteen random bytes.
    ///
    /// # Errors
    /// If the kernel provides none.
    fn random(&self) -> Result<[u8; 16], OutsideError>;
}

/// This host.
#[derive(Clone, Debug)]
pub struct LocalHost {
    /// The path of the configuration.
    pub config: PathBuf,
}

impl Outside for LocalHost {
    fn config_mode(&self) -> Option<u32> {
        std::fs::metadata(&self.config).ok().map(|found| found.mode())
    }

    fn mode(&self, path: &Path) -> Result<u32, OutsideError> {
        std::fs::metadata(path).map(|found| found.mode()).map_err(|why| OutsideError::read(&why))
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, OutsideError> {
        crate::files::read_secret(path, SECRET_FILE_BYTES_MAX).map_err(|why| OutsideError::read(&why))
    }

    fn credential(&self, name: &str) -> Result<PathBuf, OutsideError> {
        let folder = std::env::var_os("CREDENTIALS_DIRECTORY");
        let folder = folder.ok_or(OutsideError::NoCredentials)?;
        Ok(Path::new(&folder).join(name))
    }

    fn random(&self) -> Result<[u8; 16], OutsideError> {
        let mut bytes = [0; 16];
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(16) => Ok(bytes),
            Ok(_) => Err(OutsideError::FewRandomBytes),
            Err(why) => Err(OutsideError::NoRandomBytes(why)),
        }
    }
}

/// This host, with a function that knows the identities of volumes on it ([`Outside::mark`]).
#[derive(Clone, Debug)]
pub struct Marked<F>(pub LocalHost, pub F);

impl<F: Fn(&Volume) -> Option<Uuid>> Outside for Marked<F> {
    fn config_mode(&self) -> Option<u32> {
        self.0.config_mode()
    }

    fn mode(&self, path: &Path) -> Result<u32, OutsideError> {
        self.0.mode(path)
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, OutsideError> {
        self.0.read(path)
    }

    fn credential(&self, name: &str) -> Result<PathBuf, OutsideError> {
        self.0.credential(name)
    }

    fn random(&self) -> Result<[u8; 16], OutsideError> {
        self.0.random()
    }

    fn mark(&self, volume: &Volume) -> Option<Uuid> {
        (self.1)(volume)
    }
}

/// Why a file, a credential or random bytes are not available. The message about a file follows its path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutsideError {
    /// There is no such file.
    Missing,
    /// The file cannot be read.
    Unreadable {
        /// The kind of error.
        kind: io::ErrorKind,
        /// The message of the system.
        why: String,
    },
    /// systemd provides no credentials.
    NoCredentials,
    /// The kernel returned too few random bytes.
    FewRandomBytes,
    /// The kernel returned no random bytes.
    NoRandomBytes(Errno),
}

impl OutsideError {
    /// The error of a file that cannot be read.
    #[must_use]
    pub fn read(why: &io::Error) -> Self {
        Self::Unreadable { kind: why.kind(), why: why.to_string() }
    }
}

impl fmt::Display for OutsideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("is not there"),
            Self::Unreadable { why, .. } => write!(f, "cannot be read: {why}"),
            Self::NoCredentials => f.write_str("systemd provides no credentials: add LoadCredential= to the unit"),
            Self::FewRandomBytes => f.write_str("the kernel returned too few random bytes"),
            Self::NoRandomBytes(why) => write!(f, "the kernel returned no random bytes: {why}"),
        }
    }
}

impl std::error::Error for OutsideError {}

/// Why a secret of the configuration cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum SecretError {
    /// It is in a configuration that other users can read.
    OpenConfig {
        /// The permissions of the configuration.
        mode: u32,
    },
    /// Its file can be read by other users.
    OpenFile(PathBuf, u32),
    /// Its file is too large for a secret.
    TooLarge(PathBuf),
    /// Its file cannot be read.
    File(PathBuf, OutsideError),
    /// Its credential is not available.
    Credential(OutsideError),
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenConfig { mode } => write!(
                f,
                "is in a file that others may read (mode {:04o}): chmod 600, or move it to a file of its own",
                mode & 0o7777
            ),
            Self::OpenFile(path, mode) => {
                write!(f, "{} may be read by others (mode {:04o}): chmod 600 it", path.display(), mode & 0o7777)
            }
            Self::TooLarge(path) => write!(f, "{} is too large for a secret", path.display()),
            Self::File(path, why) => write!(f, "{} {why}", path.display()),
            Self::Credential(why) => why.fmt(f),
        }
    }
}

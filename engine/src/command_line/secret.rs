//! Secrets of a command line come from files, because other users can read its arguments.

use lunar_control::check::{LocalHost, Outside, OutsideError};
use lunar_core::access::{Mistake, Secret};
use std::fmt;
use std::path::{Path, PathBuf};

/// Permissions of group and others, of which a file with a secret grants none.
const OTHERS: u32 = 0o077;

/// Why a file has no secret for an option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SecretFileError {
    /// The path of the file, as it was given.
    pub path: String,
    /// Why.
    pub why: SecretFileReason,
}

/// The reasons why a file has no secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SecretFileReason {
    /// It cannot be read.
    Unreadable(OutsideError),
    /// Other users can read or write it.
    Open,
    /// Its content is no secret.
    Secret(Mistake),
}

impl fmt::Display for SecretFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path)?;
        match &self.why {
            SecretFileReason::Unreadable(why) => why.fmt(f),
            SecretFileReason::Open => f.write_str("other users can read or write it; restrict it with chmod 600"),
            SecretFileReason::Secret(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for SecretFileError {}

/// The secret in this file, without the end of its line.
///
/// # Errors
/// A mistake of the file or of its content.
pub fn from_file(path: &str) -> Result<Secret, SecretFileError> {
    let machine = LocalHost { config: PathBuf::new() };
    let read = || {
        if machine.mode(Path::new(path)).map_err(SecretFileReason::Unreadable)? & OTHERS != 0 {
            return Err(SecretFileReason::Open);
        }
        let mut bytes = machine.read(Path::new(path)).map_err(SecretFileReason::Unreadable)?;
        if bytes.ends_with(b"\n") {
            bytes.truncate(bytes.len() - if bytes.ends_with(b"\r\n") { 2 } else { 1 });
        }
        Secret::new(bytes).map_err(SecretFileReason::Secret)
    };
    read().map_err(|why| SecretFileError { path: path.to_owned(), why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_file_is_private_and_ends_with_its_line() {
        let path = std::env::temp_dir().join(format!("lunar-option-secret-{}", std::process::id()));
        let name = path.display().to_string();
        std::fs::write(&path, b"twelve bytes or more\r\n").expect("room");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("ours");
        let why = from_file(&name).expect_err("others can read it");
        assert_eq!((&why.path, &why.why), (&name, &SecretFileReason::Open));
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("ours");
        assert_eq!(from_file(&name).expect("a secret").bytes(), b"twelve bytes or more");
        std::fs::write(&path, b"short\n").expect("room");
        assert!(from_file(&name).is_err_and(|why| matches!(why.why, SecretFileReason::Secret(_))));
        std::fs::remove_file(&path).expect("it is there");
        let why = from_file(&name).expect_err("it is gone");
        assert!(why.to_string().starts_with(&name) && matches!(why.why, SecretFileReason::Unreadable(_)), "{why}");
    }
}

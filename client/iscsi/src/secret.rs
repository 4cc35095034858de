//! Secrets from files. Secrets are not passed as arguments because every user can read the arguments of a process.

use lunar_core::access::{Mistake, SECRET_MAX, Secret};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Permission bits of a file for other users.
const OTHERS: u32 = 0o007;

/// A file has no secret.
#[derive(Debug)]
pub struct SecretFileError {
    /// The path of the file.
    pub path: PathBuf,
    /// Why.
    pub why: SecretFileReason,
}

/// The reasons why a file has no secret.
#[derive(Debug)]
pub enum SecretFileReason {
    /// It cannot be read.
    Unreadable(io::Error),
    /// Other users can read or write it.
    Open,
    /// Its content is no secret.
    Secret(Mistake),
}

impl fmt::Display for SecretFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match &self.why {
            SecretFileReason::Unreadable(why) => why.fmt(f),
            SecretFileReason::Open => f.write_str("other users can read or write it; restrict it with chmod 600"),
            SecretFileReason::Secret(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for SecretFileError {}

/// Reads the secret in a file. A line end at the end of the file is not part of the secret.
///
/// # Errors
/// A mistake of the file or of its content.
pub fn from_file(path: &str) -> Result<Secret, SecretFileError> {
    read(Path::new(path)).map_err(|why| SecretFileError { path: path.into(), why })
}

fn read(path: &Path) -> Result<Secret, SecretFileReason> {
    let file = File::open(path).map_err(SecretFileReason::Unreadable)?;
    let mode = file.metadata().map_err(SecretFileReason::Unreadable)?.permissions().mode();
    if mode & OTHERS != 0 {
        return Err(SecretFileReason::Open);
    }
    // One byte more than the longest secret with its line end. The buffer never grows: growing would leave a copy of
    // the secret in freed memory.
    let limit = SECRET_MAX + 3;
    let mut bytes = Vec::with_capacity(limit);
    file.take(limit as u64).read_to_end(&mut bytes).map_err(SecretFileReason::Unreadable)?;
    if bytes.ends_with(b"\n") {
        bytes.truncate(bytes.len() - if bytes.ends_with(b"\r\n") { 2 } else { 1 });
    }
    Secret::new(bytes).map_err(SecretFileReason::Secret)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;

    #[test]
    fn a_secret_file_that_other_users_can_read_is_refused() {
        let written = |bytes: &[u8], mode| {
            let path = std::env::temp_dir().join(format!("lunar-secret-{}", std::process::id()));
            std::fs::write(&path, bytes).expect("room");
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("ours");
            let secret = read(&path);
            std::fs::remove_file(path).expect("ours");
            secret
                .map(|secret| secret.bytes().to_vec())
                .map_err(|why| SecretFileError { path: "f".into(), why }.to_string())
        };
        assert_eq!(written(b"twelve bytes\n", 0o600).as_deref(), Ok(&b"twelve bytes"[..]));
        assert_eq!(written(b"twelve bytes\r\n", 0o640).as_deref(), Ok(&b"twelve bytes"[..]));
        assert_eq!(written(b"twelve bytes \n\n", 0o400).as_deref(), Ok(&b"twelve bytes \n"[..]));
        assert_eq!(written(&[b'x'; SECRET_MAX], 0o600).map(|bytes| bytes.len()), Ok(SECRET_MAX));
        for bytes in [&[b'x'; 1000][..], b"eleven byte\n"] {
            assert_eq!(written(bytes, 0o600), Err("f: a secret has 12 to 255 bytes".into()));
        }
        assert!(written(b"twelve bytes\n", 0o644).is_err_and(|why| why.contains("chmod 600")));
        assert!(from_file("/nowhere").is_err_and(|why| why.to_string().starts_with("/nowhere: ")));
    }
}

//! The configuration file and its earlier versions, written so that a power failure or a kill leaves one complete
//! version or the other.
//!
//! A version is written to the history first, and then replaces the file. So the newest version of the history is in
//! force, unless the writer was stopped between the two steps: then the next start removes that version.

use crate::config::CONFIG_BYTES_MAX;
use crate::redact::{secrets_of, with_secrets, without_secrets};
use crate::schema::Schema;
use lunar_durable::{Access, NewFile, UNFINISHED, sync_folder_of};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use similar::TextDiff;
use std::fmt;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The number of stored versions: months of an active administrator, and less than 2 GiB for the largest
/// configurations.
pub const VERSIONS_MAX: usize = 100;
/// The prefix of the author of a version that an NVMe host caused.
pub const BY_HOST: &str = "host@";
/// The number of stored versions of NVMe hosts. It is separate, so that hosts cannot displace the versions of
/// operators.
pub const VERSIONS_BY_HOSTS_MAX: usize = 20;
/// The most characters of the author of a version.
const WHO_MAX: usize = 64;
/// How long to wait for another writer: several times the duration of a write on a slow disk. A new process also has
/// the locks of its parent for a moment.
const PATIENCE: Duration = Duration::from_millis(500);
/// The suffix of a version.
const VERSION: &str = ".toml";

/// A version in the history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Version {
    /// Its number; later ones have higher ones.
    pub number: u64,
    /// When it was written, in seconds since the beginning of 1970.
    pub time: u64,
    /// Its author: letters, digits and `._@-`.
    pub who: String,
}

impl Version {
    fn file_name(&self) -> String {
        format!("{:08}-{}-{}{VERSION}", self.number, self.time, self.who)
    }

    fn of_file(name: &str) -> Option<Self> {
        let mut parts = name.strip_suffix(VERSION)?.splitn(3, '-');
        let number = parts.next()?.parse().ok()?;
        let time = parts.next()?.parse().ok()?;
        Some(Self { number, time, who: parts.next()?.to_owned() })
    }
}

/// Why the file or its history was not read or written.
#[derive(Debug)]
pub enum Trouble {
    /// The disk, or permissions.
    Disk(PathBuf, io::Error),
    /// Another program has changed the file since it was read.
    Changed(PathBuf),
    /// Another process writes it.
    Busy(PathBuf),
    /// There is no such version.
    NoVersion(u64),
    /// The file is not text, or too large.
    NoText(PathBuf),
    /// The file is missing or empty, and the configuration in force is not. The second path is the folder of the
    /// history.
    Lost(PathBuf, PathBuf),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Changed(path) => {
                write!(
                    f,
                    "{} was changed by another program: run `lunar apply` first, then repeat the change",
                    path.display()
                )
            }
            Self::Busy(path) => write!(f, "another process writes {}", path.display()),
            Self::NoVersion(number) => write!(f, "there is no version {number}: old versions are removed"),
            Self::Lost(path, history) => write!(
                f,
                "{} is missing or empty, so nothing was changed: put it back (the newest file in {} is a copy of the \
                 configuration in force), then `lunar apply`; to remove objects, delete them one by one",
                path.display(),
                history.display()
            ),
            Self::NoText(path) => {
                write!(f, "{} is not a configuration: it is not UTF-8 text, or too large", path.display())
            }
        }
    }
}

impl std::error::Error for Trouble {}

/// The file of a configuration, and its history.
#[derive(Debug)]
pub struct Versions {
    file: PathBuf,
    history: PathBuf,
    text: String,
}

impl Versions {
    /// Reads the file, and adds it to the history if it was edited; a missing file is an empty configuration. `history`
    /// is a folder of its own, which is created. `now` is the time in the history.
    ///
    /// # Errors
    /// When the file or its history cannot be read or written.
    pub fn open(file: &Path, history: &Path, now: SystemTime) -> Result<Self, Trouble> {
        // A symbolic link stays: its target is written.
        let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
        let text = read(&file)?;
        let versions = Self { file, history: history.to_owned(), text };
        versions.adopt(now)?;
        Ok(versions)
    }

    /// Adds the text to the history if the file was edited: it is in force at `now`.
    ///
    /// # Errors
    /// As [`Versions::open`].
    pub fn adopt(&self, now: SystemTime) -> Result<(), Trouble> {
        create(&self.history)?;
        let _lock = self.lock()?;
        self.reconcile(now)
    }

    /// The text in force.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text in the file, which may differ.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn on_disk(&self) -> Result<String, Trouble> {
        read(&self.file)
    }

    /// The stored versions, the oldest first; the last one is in force.
    ///
    /// # Errors
    /// When the history cannot be read.
    pub fn list(&self) -> Result<Vec<Version>, Trouble> {
        let names = std::fs::read_dir(&self.history).map_err(|why| disk(&self.history, why))?;
        let mut all = Vec::new();
        for entry in names {
            let name = entry.map_err(|why| disk(&self.history, why))?.file_name();
            all.extend(name.to_str().and_then(Version::of_file));
        }
        all.sort_by_key(|version| version.number);
        Ok(all)
    }

    /// The text of a version. It may hold secrets.
    ///
    /// # Errors
    /// If it is not stored, or cannot be read.
    pub fn text_of(&self, number: u64) -> Result<String, Trouble> {
        let found = self.list()?.into_iter().find(|version| version.number == number);
        read(&self.history.join(found.ok_or(Trouble::NoVersion(number))?.file_name()))
    }

    /// Replaces the text in force, by the author `who` at `now`. The text is on the medium when this returns.
    ///
    /// # Errors
    /// If another program has changed the file, or it cannot be written. Then it is unchanged.
    pub fn write(&mut self, text: &str, who: &str, now: SystemTime) -> Result<(), Trouble> {
        if text.len() > CONFIG_BYTES_MAX {
            return Err(Trouble::NoText(self.file.clone()));
        }
        let _lock = self.lock()?;
        if read(&self.file)? != self.text {
            return Err(Trouble::Changed(self.file.clone()));
        }
        let version = self.record(text, who, now)?;
        if let Err(why) = self.replace(&self.text, text) {
            // The version was never in force, even if only the last sync of the folder failed.
            let _ = std::fs::remove_file(self.history.join(version.file_name()));
            // After a change by another program, its text is in place already.
            if !matches!(why, Trouble::Changed(_)) {
                let _ = self.replace(text, &self.text);
            }
            return Err(why);
        }
        text.clone_into(&mut self.text);
        // The new version is in force; a failure to remove an old version is ignored.
        let _ = self.forget();
        Ok(())
    }

    /// Reads the file after it was edited. Returns the earlier state, for the case that the new text cannot be put in
    /// force; if it is, call [`Versions::adopt`].
    ///
    /// # Errors
    /// When the file cannot be read; [`Trouble::Lost`] when nothing is in it: a file that was moved away must not
    /// remove every target and volume.
    pub fn reload(&mut self) -> Result<Self, Trouble> {
        let fresh = Self { file: self.file.clone(), history: self.history.clone(), text: read(&self.file)? };
        if fresh.text.trim().is_empty() && !self.text.trim().is_empty() {
            return Err(Trouble::Lost(self.file.clone(), self.history.clone()));
        }
        Ok(std::mem::replace(self, fresh))
    }

    /// Redacts the secrets that are not in force any more from all stored versions: a deleted secret is nowhere.
    ///
    /// # Errors
    /// When the history cannot be read or written.
    pub fn forget_secrets(&self, schema: &'static Schema) -> Result<(), Trouble> {
        let _lock = self.lock()?;
        let kept = secrets_of(schema, &self.text);
        for version in self.list()?.iter().rev().skip(1) {
            let path = self.history.join(version.file_name());
            if let Some(redacted) = with_secrets(schema, &read(&path)?, &kept) {
                put(&path, &redacted)?;
            }
        }
        Ok(())
    }

    /// One writer at a time, over all processes.
    fn lock(&self) -> Result<File, Trouble> {
        let folder = File::open(&self.history).map_err(|why| disk(&self.history, why))?;
        let start = Instant::now();
        loop {
            match folder.try_lock() {
                Ok(()) => return Ok(folder),
                Err(TryLockError::WouldBlock) if start.elapsed() < PATIENCE => std::thread::sleep(PATIENCE / 50),
                Err(TryLockError::WouldBlock) => return Err(Trouble::Busy(self.file.clone())),
                Err(TryLockError::Error(why)) => return Err(disk(&self.history, why)),
            }
        }
    }

    /// Makes the newest version of the history the text in force.
    fn reconcile(&self, now: SystemTime) -> Result<(), Trouble> {
        let names = std::fs::read_dir(&self.history).map_err(|why| disk(&self.history, why))?;
        let halves = names.flatten().filter(|entry| entry.file_name().to_string_lossy().ends_with(UNFINISHED));
        halves.for_each(|entry| drop(std::fs::remove_file(entry.path())));
        let all = self.list()?;
        let path = |version: &Version| self.history.join(version.file_name());
        match &all[..] {
            [.., newest] if read(&path(newest))? == self.text => Ok(()),
            // The writer was stopped before it replaced the file.
            [.., before, newest] if read(&path(before))? == self.text && !self.is_younger(&path(newest)) => {
                std::fs::remove_file(path(newest)).map_err(|why| disk(&self.history, why))
            }
            [] if self.text.is_empty() => Ok(()),
            _ => self.record(&self.text, "editor", now).map(drop),
        }?;
        self.forget()
    }

    /// Whether the file was written after this version, so that the version was in force.
    fn is_younger(&self, version: &Path) -> bool {
        // Not the modification time: a restored file may have its old one.
        let changed = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.ctime(), found.ctime_nsec()));
        changed(&self.file) > changed(version)
    }

    fn record(&self, text: &str, who: &str, now: SystemTime) -> Result<Version, Trouble> {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._@-".contains(c) { c } else { '_' };
        let who: String = who.chars().map(plain).take(WHO_MAX).collect();
        let number = self.list()?.last().map_or(1, |last| last.number + 1);
        let time = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let version = Version { number, time, who };
        // The text may hold secrets.
        put(&self.history.join(version.file_name()), text)?;
        Ok(version)
    }

    /// Removes old versions.
    fn forget(&self) -> Result<(), Trouble> {
        let all = self.list()?;
        let (hosts, others): (Vec<_>, Vec<_>) = all.iter().partition(|version| version.who.starts_with(BY_HOST));
        let hosts = hosts.iter().rev().skip(VERSIONS_BY_HOSTS_MAX);
        let others = others.iter().rev().skip(VERSIONS_MAX);
        for version in hosts.chain(others) {
            let path = self.history.join(version.file_name());
            std::fs::remove_file(&path).map_err(|why| disk(&path, why))?;
        }
        Ok(())
    }

    /// Replaces the text of the file if it is still `before`: an editor may write at any time.
    fn replace(&self, before: &str, text: &str) -> Result<(), Trouble> {
        let (mode, owner) = match std::fs::metadata(&self.file) {
            Ok(old) => (old.mode() & 0o7777, Some((old.uid(), old.gid()))),
            Err(_) => (0o600, None),
        };
        let fill = |file: &mut File| file.write_all(text.as_bytes());
        let new = NewFile::write(&self.file, Access::Exactly(mode, owner), fill);
        take_the_place(&new.map_err(|why| disk(&self.file, why))?, &self.file, before, text)
    }
}

fn disk(path: &Path, why: io::Error) -> Trouble {
    Trouble::Disk(path.to_owned(), why)
}

/// The text of a file; empty if there is none.
///
/// # Errors
/// When it cannot be read, or is no text.
pub fn read(path: &Path) -> Result<String, Trouble> {
    let file = match File::open(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        file => file.map_err(|why| disk(path, why))?,
    };
    let mut bytes = Vec::new();
    file.take(CONFIG_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|why| disk(path, why))?;
    let text = String::from_utf8(bytes).ok().filter(|text| text.len() <= CONFIG_BYTES_MAX);
    text.ok_or_else(|| Trouble::NoText(path.to_owned()))
}

/// Replaces a file that only its owner can read; the new text is on the medium when this returns.
///
/// # Errors
/// If it cannot be written.
pub fn put(path: &Path, text: &str) -> Result<(), Trouble> {
    let done = lunar_durable::replace(path, Access::Exactly(0o600, None), text.as_bytes());
    done.map_err(|failed| disk(path, failed.why))
}

/// Replaces the file at `path`, if its text is `before`, with `new`, whose text is `text`. The two are
/// exchanged in one step and the earlier file is compared after that, so that no concurrent edit is lost.
fn take_the_place(new: &NewFile<'_>, path: &Path, before: &str, text: &str) -> Result<(), Trouble> {
    let new = new.path();
    let exchange = |flags| renameat_with(CWD, new, CWD, path, flags);
    let held = || read(new).ok();
    let done = match exchange(RenameFlags::EXCHANGE) {
        Ok(()) if held().as_deref() == Some(before) => std::fs::remove_file(new),
        Ok(()) => back(&exchange, &held, text).and_then(|()| Err(io::ErrorKind::AlreadyExists.into())),
        // There is no file yet.
        Err(Errno::NOENT) if before.is_empty() => exchange(RenameFlags::NOREPLACE).map_err(io::Error::from),
        // This file system cannot exchange files: the comparison is as late as possible.
        Err(Errno::INVAL | Errno::NOSYS) if read(path)? == before => std::fs::rename(new, path),
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOENT) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(why) => Err(why.into()),
    };
    done.and_then(|()| sync_folder_of(path)).map_err(|why| match why.kind() {
        io::ErrorKind::AlreadyExists => Trouble::Changed(path.to_owned()),
        _ => disk(path, why),
    })
}

/// The most edits during an exchange: more than an editor makes within microseconds.
const EDITS_AT_ONCE_MAX: usize = 100;

/// Puts a concurrent edit back in place. If the exchange yields another text than the one that was put there, the file
/// was edited once more, and that later text is put back, too.
fn back(
    exchange: &impl Fn(RenameFlags) -> Result<(), Errno>,
    held: &impl Fn() -> Option<String>,
    text: &str,
) -> io::Result<()> {
    let mut put = Some(text.to_owned());
    for _ in 0..EDITS_AT_ONCE_MAX {
        let next = held();
        exchange(RenameFlags::EXCHANGE)?;
        if held() == put {
            break;
        }
        put = next;
    }
    Ok(())
}

/// Creates a folder for its owner only, and those above it that are missing. Their names are on the medium when this
/// returns: files in the folder are worth nothing if the folder is lost.
fn create(folder: &Path) -> Result<(), Trouble> {
    create_and(folder, sync_folder_of)
}

/// The same; `sync` brings the name of a new folder to the medium.
fn create_and(folder: &Path, mut sync: impl FnMut(&Path) -> io::Result<()>) -> Result<(), Trouble> {
    let above = folder.ancestors().take_while(|folder| !folder.as_os_str().is_empty());
    let missing: Vec<&Path> = above.take_while(|folder| !folder.exists()).collect();
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|why| disk(folder, why))?;
    missing.into_iter().try_for_each(|folder| sync(folder).map_err(|why| disk(folder, why)))
}

/// The difference of two texts, line by line, with redacted secrets.
#[must_use]
pub fn difference(schema: &'static Schema, old: &str, new: &str) -> String {
    let (old, new) = (without_secrets(schema, old), without_secrets(schema, new));
    TextDiff::from_lines(&old, &new).unified_diff().context_radius(2).to_string()
}

#[cfg(test)]
#[path = "versions_tests.rs"]
mod tests;

//! Why a file cannot be a volume, with advice to the operator.

use crate::open::Refusal;
use crate::served_size::ATTRIBUTE as SIZE_ATTRIBUTE;
use lunar_control::files::{self, Access};
use lunar_control::value::{Size, Textual};
use lunar_engine::backend::{StoreRequest, UnevenSize};
use lunar_engine::origin::Wording;
use lunar_engine::service_unit;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Whether a path is where devices are, and not files.
pub(crate) fn in_dev(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

/// A file cannot be opened as requested.
#[derive(Debug)]
pub(crate) struct FileError {
    path: PathBuf,
    why: Refusal,
    wording: Wording,
    /// See [`StoreRequest`].
    size: Option<u64>,
    read_only: bool,
    block_size: u32,
    is_disc: bool,
    found: Found,
}

/// The facts about a file that its refusal does not have.
#[derive(Debug)]
enum Found {
    /// None are needed.
    Nothing,
    /// There is no such file.
    NoFile,
    /// This user may read the file, and asked to write to it.
    Readable,
    /// The program that serves the file.
    Program(String),
}

impl Found {
    fn about(path: &Path, why: &Refusal, read_only: bool) -> Self {
        match why {
            Refusal::NotPermitted if !path.exists() => Self::NoFile,
            Refusal::NotPermitted if !read_only && files::open(path, Access::Read).is_ok() => Self::Readable,
            Refusal::Locked { pid: Some(pid) } => program(*pid).map_or(Self::Nothing, Self::Program),
            _ => Self::Nothing,
        }
    }
}

impl FileError {
    pub(crate) fn new(path: &Path, why: Refusal, request: &StoreRequest<'_>) -> Self {
        Self {
            path: path.to_owned(),
            wording: request.origin.wording(),
            size: request.size,
            read_only: request.read_only,
            block_size: request.block_size,
            is_disc: request.is_disc,
            found: Found::about(path, &why, request.read_only),
            why,
        }
    }

    fn missing(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.path.display();
        if in_dev(&self.path) {
            write!(f, "{name}: there is no such device; `lsblk` lists the devices")
        } else if self.is_disc {
            write!(f, "{name} does not exist")
        } else if self.read_only {
            write!(f, "{name} does not exist, and with {} no file is created", self.wording.option("read-only"))
        } else if self.lacks_size_key() {
            write!(f, "{name} does not exist: add the key `size`, so that it is created")
        } else {
            write!(f, "{name} does not exist; to create it, give its size: {name}:20G")
        }
    }

    fn gone(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.path.display();
        let size = self.size.map_or_else(|| "20G".to_owned(), |size| Size(size).text());
        write!(
            f,
            "its file {name} does not exist or is empty: is its file system mounted? The file is not created, because \
             the volume was served before. To start with an empty volume, create the file: truncate -s {size} {name}"
        )
    }

    fn not_permitted(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, why) = (self.path.display(), &self.why);
        match self.found {
            Found::NoFile => {
                let folder = folder(&self.path).display();
                write!(f, "this user may not create {name} in {folder}: choose another folder")?;
            }
            Found::Readable => {
                let advice = self.wording.serve_read_only();
                write!(f, "this user may not write {name}: {advice}, or permit it: chmod u+w {name}")?;
            }
            Found::Nothing | Found::Program(_) => write!(f, "{name} {why}; `ls -l {name}` shows its permissions")?,
        }
        f.write_str(&self.of_unit())
    }

    fn direct(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, why, direct) = (self.path.display(), &self.why, self.wording.option("direct"));
        match why {
            Refusal::DirectBlocks { needs: 4096 } => {
                let larger = self.wording.value("block-size", "4096");
                write!(f, "{name} {why}: add {larger}, or leave out {direct}")
            }
            _ => write!(f, "{name} {why}: leave out {direct}"),
        }
    }

    fn lacks_size_key(&self) -> bool {
        self.wording == Wording::Keys && self.size.is_none() && !self.read_only
    }

    /// The unit of the service protects folders from writes; a command line has no unit.
    fn of_unit(&self) -> String {
        match self.wording {
            Wording::Options => String::new(),
            Wording::Keys => service_unit::write_advice(folder(&self.path)),
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, why) = (self.path.display(), &self.why);
        let Self { wording, block_size, is_disc, .. } = *self;
        match why {
            Refusal::Missing => self.missing(f),
            Refusal::Gone => self.gone(f),
            Refusal::NoFolder => write!(f, "{name} {why}; make it first: mkdir -p {}", folder(&self.path).display()),
            Refusal::Directory => {
                let size = if wording == Wording::Keys { "" } else { ":20G" };
                write!(f, "{name} {why}; name a file in it: {}{size}", self.path.join("disk.img").display())
            }
            Refusal::NotPermitted => self.not_permitted(f),
            Refusal::ReadOnlyFileSystem => {
                write!(f, "{name} {why}: {}{}", wording.serve_read_only(), self.of_unit())
            }
            Refusal::Locked { pid } => {
                write!(f, "{name} {why}")?;
                if let Found::Program(program) = &self.found {
                    write!(f, " ({program})")?;
                }
                f.write_str(": stop that one first")?;
                f.write_str(if pid.is_some() { ", because two processes would destroy each other's data" } else { "" })
            }
            Refusal::Looped { device } => write!(
                f,
                "{name} {why}: unmount and detach it first (losetup -d {device}): two writers destroy the data. Or {}",
                wording.serve_read_only()
            ),
            Refusal::Empty if self.lacks_size_key() => {
                write!(f, "{name} {why}: add the key `size`, so that it is extended")
            }
            Refusal::Empty if self.read_only => write!(f, "{name} {why}: there is nothing to read"),
            Refusal::Empty => write!(f, "{name} {why}; give its size: {name}:20G"),
            Refusal::Uneven { size } => {
                write!(f, "{name}: {}", UnevenSize { size: *size, block_size, is_disc, wording })
            }
            Refusal::OtherSize { size: has } => write!(
                f,
                "{name} exists with {}, not {}; leave the size out to serve it as it is: {name}",
                Size(*has).text(),
                Size(self.size.unwrap_or(0)).text()
            ),
            Refusal::Truncated { size, served } => {
                let (size, served) = (Size(*size).text(), Size(*served).text());
                write!(
                    f,
                    "{name} was served with {served} and has {size} now: the data behind its end is lost. Restore the \
                     file from a backup; or extend it by zeroes: truncate -s {served} {name}; or serve it with the \
                     size that it has: setfattr -x {SIZE_ATTRIBUTE} {name}"
                )
            }
            Refusal::NoDirect | Refusal::DirectBlocks { .. } => self.direct(f),
            Refusal::Io(why) if why.kind() == io::ErrorKind::FileTooLarge => {
                write!(f, "{name}: its file system has no files of {}", Size(self.size.unwrap_or(0)).text())
            }
            Refusal::Io(why) => write!(f, "{name} cannot be opened: {why}"),
            Refusal::NotRegular => write!(f, "{name} {why}"),
        }
    }
}

impl std::error::Error for FileError {}

/// The file with the protection information of a volume cannot be opened.
#[derive(Debug)]
pub(crate) enum ProtectionFileError {
    /// The path of the volume cannot be resolved.
    Path(PathBuf, io::Error),
    /// The file is there, and its volume never had protection information.
    Surplus {
        /// The file.
        file: PathBuf,
        /// The volume.
        volume: PathBuf,
    },
    /// The file is of another size than its volume needs; with the option or key of the block size.
    OtherSize(PathBuf, String),
    /// The file itself.
    Unusable(PathBuf, Refusal),
}

impl fmt::Display for ProtectionFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Surplus { file, volume } => write!(
                f,
                "{} is there, and {} never had any: move it away, or remove it",
                file.display(),
                volume.display()
            ),
            Self::OtherSize(file, option) => write!(
                f,
                "{} is not of this volume's size: was it served with another {option}, or grown?",
                file.display()
            ),
            Self::Unusable(file, why) => write!(f, "{}: {why}", file.display()),
        }
    }
}

impl std::error::Error for ProtectionFileError {}

/// An open file cannot be locked as requested; with its name.
#[derive(Debug)]
pub(crate) struct SharingError(pub(crate) String, pub(crate) Refusal);

impl fmt::Display for SharingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0, self.1)
    }
}

impl std::error::Error for SharingError {}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// The name of a process, if it is known.
fn program(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

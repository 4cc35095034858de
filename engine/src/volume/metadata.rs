//! The metadata stores of volumes, NVM subsystems and target ports in the state folder: a folder for each, with a small
//! file for each record.
//!
//! A record is written to a temporary file, synced and renamed, and its folder is synced: after a power failure the
//! record is complete, with its old or its new content. Writing takes as long as the medium takes, so a thread does it,
//! and no core waits.

use lunar_core::io::Fault;
use lunar_core::metadata::{METADATA_BYTES_MAX, MetadataStore, Saving, VolatileMemory};
use lunar_durable::{Access, UNFINISHED, replace_with};
use lunar_reactor::log;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::{DirBuilder, File};
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Records of a volume at most. There are fewer names of records; more files than that are not metadata.
const NAMES_MAX: usize = 64;
/// The digest of the content at the end of a file: a file that the medium has damaged is refused.
const DIGEST_BYTES: usize = 32;

/// The metadata of a volume cannot be read: it must not be served, because its reservations are not known.
#[derive(Debug)]
pub struct MetadataError {
    folder: PathBuf,
    why: io::Error,
}

impl fmt::Display for MetadataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = self.folder.display();
        let why = &self.why;
        write!(f, "{folder}: {why}; repair it, or discard the persistent reservations of the volume: rm -r {folder}")
    }
}

impl std::error::Error for MetadataError {}

/// A metadata store in a folder.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    records: Arc<Mutex<HashMap<String, Vec<u8>>>>,
    /// The channel to the thread, which starts with the first record and ends with this store.
    work: Mutex<Option<Sender<Work>>>,
    /// Whether no other process writes to this folder.
    is_exclusive: bool,
}

/// A record to be written.
struct Work {
    name: &'static str,
    bytes: Vec<u8>,
    answer: Arc<Mutex<Answer>>,
}

/// The result of [`Work`], and the task that waits for it.
#[derive(Default)]
struct Answer {
    result: Option<Result<(), Fault>>,
    waker: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Folder {
    /// The store of the volume with this UUID in a state folder, with the records that are there. A volume that several
    /// processes may serve is not exclusive: a process may replace the records of another, so they are not durable.
    ///
    /// # Errors
    /// When a record cannot be read, or is damaged.
    pub(super) fn of_volume(state: &Path, uuid: [u8; 16], is_exclusive: bool) -> Result<Self, MetadataError> {
        Self::at(folder_of(state, uuid), is_exclusive)
    }

    /// The store in this folder.
    fn at(path: PathBuf, is_exclusive: bool) -> Result<Self, MetadataError> {
        match load_all(&path) {
            Ok(records) => {
                Ok(Self { path, records: Arc::new(Mutex::new(records)), work: Mutex::default(), is_exclusive })
            }
            Err(why) => Err(MetadataError { folder: path, why }),
        }
    }

    /// Gives a record to the thread.
    fn give(&self, work: Work) -> Result<(), Fault> {
        let mut sender = lock(&self.work);
        if sender.is_none() {
            let (to_thread, work) = channel();
            let (path, records) = (self.path.clone(), self.records.clone());
            let thread = std::thread::Builder::new().name("metadata".into());
            thread.spawn(move || write_all(&path, &records, &work)).map_err(|_| Fault::NoMemory)?;
            *sender = Some(to_thread);
        }
        // The thread ends only when this store does.
        sender.as_ref().map_or(Err(Fault::Gone), |sender| sender.send(work).map_err(|_| Fault::Gone))
    }
}

fn folder_of(state: &Path, uuid: [u8; 16]) -> PathBuf {
    state.join("units").join(spelled(uuid))
}

/// The metadata store of the volume with this UUID in a state folder. A volume that several processes may serve is not
/// exclusive.
///
/// # Errors
/// When a record cannot be read, or is damaged.
pub fn of_volume(state: &Path, uuid: [u8; 16], is_exclusive: bool) -> Result<Arc<dyn MetadataStore>, MetadataError> {
    Ok(Arc::new(Folder::of_volume(state, uuid, is_exclusive)?))
}

/// The protection type of the volume with this UUID, if it keeps protection information.
#[must_use]
pub fn kept_protection(state: &Path, uuid: [u8; 16]) -> Option<lunar_core::protection::Kind> {
    // The volume itself reports metadata that cannot be read, when it is opened.
    let folder = Folder::of_volume(state, uuid, false).ok()?;
    lunar_unit::protection::stored(&folder).ok().flatten()
}

/// Writes the records of a volume that is not served yet; without any, removes the metadata of the volume.
///
/// # Errors
/// Errors of the file system.
pub fn replace(state: &Path, uuid: [u8; 16], records: &[(&'static str, Vec<u8>)]) -> io::Result<()> {
    let folder = folder_of(state, uuid);
    records.iter().try_for_each(|(name, bytes)| write(&folder, name, bytes))?;
    if records.is_empty() { forget(state, uuid) } else { Ok(()) }
}

/// Removes the metadata of the volume with this UUID from a state folder.
///
/// # Errors
/// When it is there and cannot be removed.
pub fn forget(state: &Path, uuid: [u8; 16]) -> io::Result<()> {
    match std::fs::remove_dir_all(folder_of(state, uuid)) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
        _ => Ok(()),
    }
}

/// The metadata store of the NVM subsystem of this name in a state folder. If it cannot be read, the log says so, and
/// the metadata ends with the process: no volume becomes unavailable for it.
#[must_use]
pub fn of_subsystem(state: &Path, nqn: &str) -> Arc<dyn MetadataStore> {
    of_name(&state.join("subsystems"), nqn).unwrap_or_else(|why| {
        log!(error, "the metadata of NVM subsystem {nqn} {}", unread(&why));
        Arc::<VolatileMemory>::default()
    })
}

/// The metadata store of the target port of this name in a state folder. If it cannot be read, the log says so, and the
/// metadata ends with the process.
#[must_use]
pub fn of_port(state: &Path, name: &str) -> Arc<dyn MetadataStore> {
    of_name(&state.join("ports"), name).unwrap_or_else(|why| {
        log!(error, "the metadata of port {name} {}", unread(&why));
        Arc::<VolatileMemory>::default()
    })
}

/// Why metadata is in a volatile store, as the end of a sentence.
fn unread(MetadataError { folder, why }: &MetadataError) -> String {
    let folder = folder.display();
    format!(
        "cannot be read ({folder}: {why}) and will be lost when Lunar stops: repair the state folder, then restart \
         Lunar"
    )
}

/// The metadata store of this name, which may have any characters, in a folder.
fn of_name(folder: &Path, name: &str) -> Result<Arc<dyn MetadataStore>, MetadataError> {
    /// As many as a UUID has.
    const DIGEST_DIGITS: usize = 32;
    let digest: String = Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Arc::new(Folder::at(folder.join(&digest[..DIGEST_DIGITS]), true)?))
}

impl MetadataStore for Folder {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        lock(&self.records).get(name).cloned()
    }

    fn save(&self, name: &'static str, bytes: Vec<u8>) -> Saving {
        let answer = Arc::<Mutex<Answer>>::default();
        let given = match bytes.len() {
            0..=METADATA_BYTES_MAX => self.give(Work { name, bytes, answer: answer.clone() }),
            _ => Err(Fault::NoSpace),
        };
        Box::pin(async move {
            given?;
            poll_fn(|cx| {
                let mut answer = lock(&answer);
                match answer.result {
                    Some(result) => Poll::Ready(result),
                    None => {
                        answer.waker = Some(cx.waker().clone());
                        Poll::Pending
                    }
                }
            })
            .await
        })
    }

    fn is_durable(&self) -> bool {
        self.is_exclusive
    }
}

/// The thread: writes the records in the order in which they were given.
fn write_all(path: &Path, records: &Mutex<HashMap<String, Vec<u8>>>, work: &Receiver<Work>) {
    for Work { name, bytes, answer } in work {
        let result = match write(path, name, &bytes) {
            Ok(()) => {
                lock(records).insert(name.to_owned(), bytes);
                Ok(())
            }
            Err(why) => {
                log!(error, "the metadata record {name} could not be written to {}: {why}", path.display());
                Err(why.raw_os_error().map_or(Fault::Medium, Fault::from_errno))
            }
        };
        let mut answer = lock(&answer);
        answer.result = Some(result);
        let waker = answer.waker.take();
        drop(answer);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The state folder of this process.
#[must_use]
pub fn state_folder() -> PathBuf {
    state(|name| std::env::var_os(name))
}

/// The state folder: the first of systemd's list, else that of the user (XDG base directories).
fn state(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let absolute = |name: &str| {
        let value = variable(name)?;
        let first = std::env::split_paths(&value).next()?;
        first.is_absolute().then_some(first)
    };
    let of_user = || absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    absolute("STATE_DIRECTORY").or_else(|| Some(of_user()?.join("lunar"))).unwrap_or_else(|| "/var/lib/lunar".into())
}

/// The text form of a UUID (RFC 9562 4).
fn spelled(uuid: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(uuid));
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// All records of a folder; none if there is no folder.
fn load_all(path: &Path) -> io::Result<HashMap<String, Vec<u8>>> {
    let entries = match std::fs::read_dir(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(HashMap::new()),
        entries => entries?,
    };
    let mut records = HashMap::new();
    for (count, entry) in entries.enumerate() {
        if count >= NAMES_MAX {
            return Err(invalid(format!("there are more than {NAMES_MAX} files, which are not all metadata")));
        }
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with(UNFINISHED) && entry.file_type()?.is_file() {
            let path = entry.path();
            let bytes =
                load(&path).map_err(|why| io::Error::new(why.kind(), format!("reading {}: {why}", path.display())))?;
            records.insert(name, bytes);
        }
    }
    Ok(records)
}

fn load(path: &Path) -> io::Result<Vec<u8>> {
    let most = (METADATA_BYTES_MAX + DIGEST_BYTES) as u64;
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    let Some(length) = bytes.len().checked_sub(DIGEST_BYTES).filter(|length| *length <= METADATA_BYTES_MAX) else {
        return Err(invalid("it does not have the length of a metadata record"));
    };
    let digest = bytes.split_off(length);
    if Sha256::digest(&bytes)[..] != digest[..] {
        return Err(invalid("its digest does not match"));
    }
    Ok(bytes)
}

/// Replaces a record; it is on the medium when this returns.
fn write(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    create(folder)?;
    let fill = |file: &mut File| {
        file.write_all(bytes)?;
        file.write_all(&Sha256::digest(bytes))
    };
    replace_with(&folder.join(name), Access::AtMost(0o600), fill).map_err(|failed| failed.why)
}

/// Creates a folder and the missing folders above it; each is on the medium in the one above it.
fn create(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let above = folder.parent().filter(|above| !above.as_os_str().is_empty());
    above.map_or(Ok(()), create)?;
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return Err(why),
        _ => {}
    }
    above.map_or(Ok(()), |above| File::open(above)?.sync_all())
}

#[cfg(test)]
#[path = "metadata_tests.rs"]
mod tests;

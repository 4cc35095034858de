//! What volumes keep across restarts besides their data: a small file for each name, in a folder for each volume.
//!
//! A file is written under another name, synced, renamed into its place, and its folder synced: it is there as it was
//! or as it shall be, whenever the power fails. That takes a medium's time, so a thread of its own does it: a core
//! waits for nothing.

use crate::volume::advice;
use anyhow::{Context as _, Result, bail};
use lunar_core::io::Fault;
use lunar_core::metadata::{METADATA_BYTES_MAX, MetadataStore, Saving, VolatileMemory};
use lunar_reactor::log;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Names under which a volume keeps something at most: more files than that are not ours.
const NAMES_MAX: usize = 64;
/// A file ends with the digest of what is before it: what a disk has garbled is not believed.
const DIGEST_BYTES: usize = 32;
/// What the name of a file ends with until it is whole.
const UNFINISHED: &str = ".new";

/// Keeps what a volume keeps in a folder.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    kept: Arc<Mutex<HashMap<String, Vec<u8>>>>,
    /// The way to the thread, which starts with the first work and ends with this.
    work: Mutex<Option<Sender<Work>>>,
    /// Whether nobody else keeps there meanwhile.
    alone: bool,
}

/// Something to be kept.
struct Work {
    name: &'static str,
    bytes: Vec<u8>,
    answer: Arc<Mutex<Answer>>,
}

/// The answer to [`Work`], and who waits for it.
#[derive(Default)]
struct Answer {
    result: Option<Result<(), Fault>>,
    waker: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Folder {
    /// The folder of the volume with this UUID, with what is kept there. A volume that several processes may serve is
    /// not `alone`: what one of them keeps may be replaced by another, so it is not promised to last.
    ///
    /// # Errors
    /// When what is there cannot be read, or is not what was written.
    pub(super) fn open(uuid: [u8; 16], alone: bool) -> Result<Self> {
        Self::within(&state_folder(), uuid, alone)
    }

    /// The same in this state folder.
    pub(super) fn within(state: &Path, uuid: [u8; 16], alone: bool) -> Result<Self> {
        Self::at(state.join("units").join(spelled(uuid)), alone)
    }

    /// A folder at this place.
    fn at(path: PathBuf, alone: bool) -> Result<Self> {
        let kept = load_all(&path).with_context(|| advice::on_kept(&path))?;
        Ok(Self { path, kept: Arc::new(Mutex::new(kept)), work: Mutex::default(), alone })
    }

    /// Gives work to the thread.
    fn give(&self, work: Work) -> Result<(), Fault> {
        let mut sender = lock(&self.work);
        if sender.is_none() {
            let (way, work) = channel();
            let (path, kept) = (self.path.clone(), self.kept.clone());
            let thread = std::thread::Builder::new().name("keep".into());
            thread.spawn(move || keep_all(&path, &kept, &work)).map_err(|_| Fault::NoMemory)?;
            *sender = Some(way);
        }
        // The thread ends only when this does.
        sender.as_ref().map_or(Err(Fault::Gone), |way| way.send(work).map_err(|_| Fault::Gone))
    }
}

/// Forgets all that the volume with this UUID keeps in a state folder.
pub(crate) fn forget(state: &Path, uuid: [u8; 16]) -> io::Result<()> {
    match std::fs::remove_dir_all(state.join("units").join(spelled(uuid))) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
        _ => Ok(()),
    }
}

/// What the NVM subsystem of this name keeps in a state folder. Where that cannot be read it is told, and forgotten
/// with the process: nobody is kept from his volumes by it.
#[must_use]
pub(crate) fn of_subsystem(state: &Path, nqn: &str) -> Arc<dyn MetadataStore> {
    /// As many as those of a UUID.
    const DIGEST_DIGITS: usize = 32;
    let digest: String = Sha256::digest(nqn.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    let path = state.join("subsystems").join(&digest[..DIGEST_DIGITS]);
    match Folder::at(path, true) {
        Ok(folder) => Arc::new(folder),
        Err(why) => {
            log!("what NVM subsystem {nqn} remembers is forgotten: {why:#}");
            Arc::<VolatileMemory>::default()
        }
    }
}

impl MetadataStore for Folder {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        lock(&self.kept).get(name).cloned()
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
        self.alone
    }
}

/// The thread: one after another, in the order in which it was asked.
fn keep_all(path: &Path, kept: &Mutex<HashMap<String, Vec<u8>>>, work: &Receiver<Work>) {
    for Work { name, bytes, answer } in work {
        let result = match store(path, name, &bytes) {
            Ok(()) => {
                lock(kept).insert(name.to_owned(), bytes);
                Ok(())
            }
            Err(why) => {
                log!("{name} of a volume could not be kept in {}: {why}", path.display());
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
pub(crate) fn state_folder() -> PathBuf {
    state(|name| std::env::var_os(name))
}

/// The state folder: systemd's, which names several with colons between, else the user's own (XDG base directories).
fn state(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let absolute = |name: &str| {
        let value = variable(name)?;
        let first = std::env::split_paths(&value).next()?;
        first.is_absolute().then_some(first)
    };
    let of_user = || absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    absolute("STATE_DIRECTORY").or_else(|| Some(of_user()?.join("lunar"))).unwrap_or_else(|| "/var/lib/lunar".into())
}

/// A UUID as it is spelled (RFC 9562 4).
fn spelled(uuid: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(uuid));
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// All that is kept in a folder; nothing if there is none.
fn load_all(path: &Path) -> Result<HashMap<String, Vec<u8>>> {
    let entries = match std::fs::read_dir(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(HashMap::new()),
        entries => entries?,
    };
    let mut kept = HashMap::new();
    for (count, entry) in entries.enumerate() {
        if count >= NAMES_MAX {
            bail!("there are more than {NAMES_MAX} files, which are not all ours");
        }
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with(UNFINISHED) && entry.file_type()?.is_file() {
            kept.insert(name, load(&entry.path()).with_context(|| format!("reading {}", entry.path().display()))?);
        }
    }
    Ok(kept)
}

fn load(path: &Path) -> Result<Vec<u8>> {
    let most = (METADATA_BYTES_MAX + DIGEST_BYTES) as u64;
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    let Some(length) = bytes.len().checked_sub(DIGEST_BYTES).filter(|length| *length <= METADATA_BYTES_MAX) else {
        bail!("it does not have the length of anything that was kept");
    };
    let digest = bytes.split_off(length);
    if Sha256::digest(&bytes)[..] != digest[..] {
        bail!("it is not what was written");
    }
    Ok(bytes)
}

/// Puts a file in the place of the one before; on the medium when it returns.
fn store(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    create(folder)?;
    let (path, unfinished) = (folder.join(name), folder.join(format!("{name}{UNFINISHED}")));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    file.write_all(bytes)?;
    file.write_all(&Sha256::digest(bytes))?;
    file.sync_all()?;
    std::fs::rename(&unfinished, &path)?;
    File::open(folder)?.sync_all()
}

/// Makes a folder and those above it that are missing; each is on the medium in the one above it.
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
#[path = "keep_tests.rs"]
mod tests;

//! Whether the file system of a path answers. A system call on a network file system whose server is unavailable, or
//! on a FUSE file system whose process is stuck, may wait without end, and so would the start of the other volumes.

use lunar_reactor::block_device::device_bytes;
use lunar_scsi::lun::LUNS_MAX;
use rustix::fs::major;
use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a file system may take to find a file: a disk that has to start needs several seconds.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Folders of which it is known that they do not answer, at most: each volume may have one of its own. Each holds a
/// thread.
const SILENT_MAX: usize = LUNS_MAX as usize;
/// Folders that are asked at once. Each takes a thread while it is asked.
const ASKED_MAX: usize = 256;
/// Bytes of the stack of a thread that asks: it makes one system call.
const STACK_BYTES: usize = 64 << 10;

/// The folders that did not answer, and whether they have answered since.
static SILENT: Mutex<BTreeMap<PathBuf, Arc<AtomicBool>>> = Mutex::new(BTreeMap::new());

fn silent() -> MutexGuard<'static, BTreeMap<PathBuf, Arc<AtomicBool>>> {
    SILENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the file system of this path answers within a bounded time, whether there is a file or not. A folder that
/// did not answer is asked again only when it has answered.
#[must_use]
pub fn answers(path: &Path) -> bool {
    Question::ask(folder_of(path), look_at(path)).answers_by(Instant::now() + ANSWER_MAX)
}

/// Asks the file systems of many paths at once: [`answers`] knows at once about each of those that do not answer.
pub fn ask_all<'a>(paths: impl IntoIterator<Item = &'a Path>) {
    let folders: BTreeMap<PathBuf, &Path> = paths.into_iter().map(|path| (folder_of(path), path)).collect();
    let questions = folders.into_iter().map(|(folder, path)| (folder, look_at(path)));
    ask_together(questions.collect(), ANSWER_MAX);
}

fn ask_together<Look: FnOnce() + Send + 'static>(mut questions: Vec<(PathBuf, Look)>, patience: Duration) {
    while !questions.is_empty() {
        let rest = questions.split_off(questions.len().min(ASKED_MAX));
        let asked: Vec<_> = questions.into_iter().map(|(folder, look)| Question::ask(folder, look)).collect();
        let end = Instant::now() + patience;
        // The folders that do not answer are known afterwards.
        asked.into_iter().for_each(|question| _ = question.answers_by(end));
        questions = rest;
    }
}

/// Whether there is a file or a device at this path. The files of a mounted file system whose device is gone are still
/// in memory.
pub(crate) fn is_there(path: &Path) -> bool {
    let Ok(found) = std::fs::metadata(path) else { return false };
    let device = if found.file_type().is_block_device() { found.rdev() } else { found.dev() };
    // A file system without a device of its own has number 0.
    !found.is_dir() && (major(device) == 0 || device_bytes(device).is_some_and(|bytes| bytes > 0))
}

fn folder_of(path: &Path) -> PathBuf {
    path.parent().unwrap_or(path).to_owned()
}

fn look_at(path: &Path) -> impl FnOnce() + Send + 'static {
    let path = path.to_owned();
    // The result is of no interest.
    move || drop(std::fs::metadata(&path))
}

/// A folder that is asked.
enum Question {
    /// It was silent before, and has not answered since.
    Silent,
    /// There is no thread to ask it.
    Unasked,
    /// A thread asks it.
    Asked { folder: PathBuf, answer: Receiver<()>, has_answered: Arc<AtomicBool> },
}

impl Question {
    fn ask(folder: PathBuf, look: impl FnOnce() + Send + 'static) -> Self {
        {
            let mut silent = silent();
            silent.retain(|_, has_answered| !has_answered.load(Ordering::Acquire));
            if silent.contains_key(&folder) || silent.len() >= SILENT_MAX {
                return Self::Silent;
            }
        }
        let (tell, answer) = sync_channel(1);
        let has_answered = Arc::<AtomicBool>::default();
        let flag = has_answered.clone();
        let ask = move || {
            look();
            flag.store(true, Ordering::Release);
            // The thread that asked may have stopped waiting.
            let _ = tell.send(());
        };
        match std::thread::Builder::new().name("answer".into()).stack_size(STACK_BYTES).spawn(ask) {
            Ok(_) => Self::Asked { folder, answer, has_answered },
            Err(_) => Self::Unasked,
        }
    }

    fn answers_by(self, end: Instant) -> bool {
        match self {
            Self::Silent => false,
            // Nothing is known about it.
            Self::Unasked => true,
            Self::Asked { folder, answer, has_answered } => {
                let patience = end.saturating_duration_since(Instant::now());
                let is_late = answer.recv_timeout(patience) == Err(RecvTimeoutError::Timeout);
                if is_late {
                    silent().insert(folder, has_answered);
                }
                !is_late
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(50);

    fn asked(folder: &str, patience: Duration, look: impl FnOnce() + Send + 'static) -> bool {
        Question::ask(folder.into(), look).answers_by(Instant::now() + patience)
    }

    #[test]
    fn a_folder_that_does_not_answer_is_not_waited_for_twice() {
        let folder = "/lunar-answering-test";
        let (end, ended) = channel::<()>();
        assert!(asked(folder, LONG, || ()));
        assert!(!asked(folder, SHORT, move || _ = ended.recv()));
        let begun = Instant::now();
        assert!(!asked(folder, LONG, || panic!("it is not asked")));
        assert!(begun.elapsed() < LONG);
        assert!(asked("/lunar-another", LONG, || ()), "others are asked");
        drop(end);
        while !asked(folder, LONG, || ()) {
            assert!(begun.elapsed() < LONG, "it has answered");
            std::thread::sleep(SHORT);
        }
        assert!(answers(Path::new("/")) && answers(Path::new("/lunar-no-such-folder/file")));
    }

    #[test]
    fn many_silent_folders_are_waited_for_once_and_keep_no_other_folder_from_being_asked() {
        const FOLDERS: usize = 100;
        let name = |at| format!("/lunar-silent-test/{at}");
        let (end, ended) = channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        let question = |at| {
            let ended = ended.clone();
            (name(at).into(), move || _ = ended.lock().map(|ended| ended.recv()))
        };
        let patience = Duration::from_millis(500);
        let begun = Instant::now();
        ask_together((0..FOLDERS).map(question).collect(), patience);
        assert!(begun.elapsed() < patience * 20, "one after another: {:?}", begun.elapsed());
        for at in 0..FOLDERS {
            assert!(!asked(&name(at), LONG, || panic!("it is not asked")));
        }
        assert!(asked("/lunar-well-test", LONG, || ()), "a folder that answers");
        drop(end);
    }
}

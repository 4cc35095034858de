//! Whether the file system of a path answers. A system call on a network file system whose server is away, or on a FUSE
//! file system whose process is stuck, may wait without end, and so would the start of the other volumes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a file system may take to find a file: a disk that has to start needs several seconds.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Folders of which it is known that they do not answer, at most. Each holds a thread.
const SILENT_MAX: usize = 64;

/// The folders that did not answer, and whether they have answered since.
static SILENT: Mutex<BTreeMap<PathBuf, Arc<AtomicBool>>> = Mutex::new(BTreeMap::new());

/// Whether the file system of this path answers within a bounded time, whether there is a file or not. A folder that
/// did not answer is asked again only when it has answered.
#[must_use]
pub fn answers(path: &Path) -> bool {
    let path = path.to_owned();
    let folder = path.parent().unwrap_or(&path).to_owned();
    // The result is of no interest.
    answers_by(folder, ANSWER_MAX, move || drop(std::fs::metadata(&path)))
}

fn answers_by(folder: PathBuf, patience: Duration, look: impl FnOnce() + Send + 'static) -> bool {
    let mut silent = SILENT.lock().unwrap_or_else(PoisonError::into_inner);
    silent.retain(|_, has_answered| !has_answered.load(Ordering::Acquire));
    if silent.contains_key(&folder) || silent.len() >= SILENT_MAX {
        return false;
    }
    let (answer, answered) = sync_channel(1);
    let has_answered = Arc::<AtomicBool>::default();
    let flag = has_answered.clone();
    let ask = move || {
        look();
        flag.store(true, Ordering::Release);
        // The thread that asked may have stopped waiting.
        let _ = answer.send(());
    };
    if std::thread::Builder::new().name("answer".into()).spawn(ask).is_err() {
        // Without a thread it is not known.
        return true;
    }
    let is_late = answered.recv_timeout(patience) == Err(RecvTimeoutError::Timeout);
    if is_late {
        silent.insert(folder, has_answered);
    }
    !is_late
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_folder_that_does_not_answer_is_not_waited_for_twice() {
        let short = Duration::from_millis(50);
        let folder = PathBuf::from("/lunar-answering-test");
        let (end, ended) = channel::<()>();
        assert!(answers_by(folder.clone(), Duration::from_secs(60), || ()));
        assert!(!answers_by(folder.clone(), short, move || _ = ended.recv()));
        let begun = std::time::Instant::now();
        assert!(!answers_by(folder.clone(), Duration::from_secs(60), || panic!("it is not asked")));
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert!(answers_by("/lunar-another".into(), Duration::from_secs(60), || ()), "others are asked");
        drop(end);
        while !answers_by(folder.clone(), Duration::from_secs(60), || ()) {
            assert!(begun.elapsed() < Duration::from_secs(60), "it has answered");
            std::thread::sleep(short);
        }
        assert!(answers(Path::new("/")) && answers(Path::new("/lunar-no-such-folder/file")));
    }
}

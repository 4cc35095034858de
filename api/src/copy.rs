//! Copies of volumes that are files. Where the file system can share blocks a copy is of one moment and takes no
//! space, whoever writes meanwhile; elsewhere the bytes are copied, which takes time, and is of one moment only if
//! nobody writes.

use crate::desk::{Control, Desk};
use crate::journal::Topic;
use crate::work::{Ask, Outcome, Problem, Reply, noted};
use lunar_control::Plan;
use lunar_control::api::ProblemDetails;
use lunar_control::config::Kind;
use lunar_control::document::{Edit, Keys, Refused};
use lunar_control::model::StoreKind;
use lunar_control::value::{FilePath, Textual};
use rustix::fs::{SeekFrom, copy_file_range, ioctl_ficlone, seek};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

/// Copies at once: more would be in each other's way on the same disks.
pub const COPIES_MAX: usize = 4;
/// Copies that are remembered when they have ended, so that who asked finds out how.
const REMEMBERED_MAX: usize = 64;
/// Bytes that are copied at once, between two looks at whether it is still wanted.
const PIECE: u64 = 16 << 20;

/// What a copy shall be.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[schemars(rename = "copy-order")]
pub struct Order {
    /// The name of the new volume.
    pub name: String,
    /// Where its file shall be; there is none yet.
    pub path: String,
    /// Whether it may only share blocks: then it is made at once, or not at all.
    #[serde(default)]
    pub share: bool,
    /// Whether the new volume can only be read.
    #[serde(default)]
    pub read_only: bool,
}

/// How far a copy is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "copy")]
pub struct CopyView {
    /// Its number.
    pub id: u64,
    /// Of what, and where to.
    pub words: String,
    /// Bytes that are done.
    pub done: u64,
    /// Bytes that there are.
    pub total: u64,
    /// Whether it has ended.
    pub ended: bool,
    /// Why it failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A copy.
#[derive(Debug)]
struct Copy {
    id: u64,
    words: String,
    total: u64,
    done: AtomicU64,
    stop: AtomicBool,
    end: Mutex<Option<Result<(), String>>>,
}

impl Copy {
    fn end(&self) -> MutexGuard<'_, Option<Result<(), String>>> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(&self) -> CopyView {
        let end = self.end().clone();
        let why = end.as_ref().and_then(|end| end.clone().err());
        let (id, words, done) = (self.id, self.words.clone(), self.done.load(Ordering::Relaxed));
        CopyView { id, words, done, total: self.total, ended: end.is_some(), why }
    }
}

/// The copies that are under way, and the last that have ended.
#[derive(Debug, Default)]
pub struct Copies(Mutex<(u64, VecDeque<Arc<Copy>>)>);

impl Copies {
    fn lock(&self) -> MutexGuard<'_, (u64, VecDeque<Arc<Copy>>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters one, if there is room.
    fn enter(&self, words: String, total: u64) -> Option<Arc<Copy>> {
        let mut held = self.lock();
        let (last, all) = &mut *held;
        if all.iter().filter(|copy| copy.end().is_none()).count() >= COPIES_MAX {
            return None;
        }
        *last += 1;
        let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let copy = Arc::new(Copy { id: *last, words, total, done, stop, end: Mutex::new(None) });
        all.push_back(copy.clone());
        if all.len() > REMEMBERED_MAX
            && let Some(oldest) = all.iter().position(|copy| copy.end().is_some())
        {
            all.remove(oldest);
        }
        Some(copy)
    }

    fn find(&self, id: u64) -> Result<Arc<Copy>, Problem> {
        let found = self.lock().1.iter().find(|copy| copy.id == id).cloned();
        found.ok_or_else(|| Refused::Missing(format!("there is no copy {id}: it may have ended long ago")).into())
    }
}

/// `GET /v1/copy`
pub fn list(ask: &Ask) -> Outcome {
    let all: Vec<CopyView> = ask.common.copies.lock().1.iter().map(|copy| copy.view()).collect();
    Reply::json(&all)
}

/// `GET /v1/copy/{id}`
pub fn show(ask: &Ask) -> Outcome {
    Reply::json(&ask.common.copies.find(ask.number("id")?)?.view())
}

/// `DELETE /v1/copy/{id}`
pub fn stop(ask: &Ask) -> Outcome {
    let copy = ask.common.copies.find(ask.number("id")?)?;
    copy.stop.store(true, Ordering::Relaxed);
    Reply::json(&copy.view())
}

/// What is to be copied.
struct Work {
    from: PathBuf,
    to: PathBuf,
    /// Whether it may only share blocks.
    share: bool,
    /// Whether nobody can write meanwhile.
    is_still: bool,
}

/// `POST /v1/volume/{name}/copy`
pub fn start(control: &mut dyn Control, ask: &Ask) -> Outcome {
    let order: Order = ask.json()?;
    let name = ask.name();
    let wrong = |why: String| Problem::from(Refused::Wrong(why));
    let config = &control.current().config;
    let missing = || Problem::from(Refused::Missing(format!("there is no volume '{name}'")));
    let volume = config.volumes.get(&name).ok_or_else(missing)?;
    let from = match (&volume.path, volume.kind) {
        (Some(path), StoreKind::File) => PathBuf::from(path.text()),
        _ => return Err(wrong(format!("volume {name} is no file: only files are copied"))),
    };
    let to = FilePath::parse(&order.path).map_err(|why| wrong(format!("'{}' {why}", order.path)))?;
    let mut keys = json!({ "kind": "file", "path": to.text(), "block-size": volume.block_size.bytes().to_string() });
    if order.read_only {
        keys["read-only"] = json!(true);
    }
    let create = Edit::Create {
        kind: Kind::Volume,
        name: order.name.clone(),
        keys: Keys(keys.as_object().cloned().unwrap_or_default()),
    };
    let mut work = Work { from, to: to.text().into(), share: order.share, is_still: false };
    // Before anything is copied: whether it could become a volume at all.
    control.plan_edits(std::slice::from_ref(&create))?;
    if work.to.exists() {
        return Err(Refused::Exists(format!("there is a file {} already", work.to.display())).into());
    }
    let total = std::fs::metadata(&work.from).map_or(0, |found| found.len());
    let copy = ask.common.copies.enter(format!("volume {name} to {}", order.name), total);
    let busy = || {
        let why = "there are too many copies at once: wait until one of them has ended";
        ProblemDetails::new("/problems/busy", "Too much at once", 503, why.into())
    };
    let copy = copy.ok_or_else(busy)?;
    // Who shares blocks does it at once. While a change goes on, those whom it keeps out may still write.
    let still = if order.share || control.settling().is_some() { None } else { control.hold_still(&name) };
    work.is_still = still.is_some();
    let view = copy.view();
    let (desk, common, who) = (ask.desk.clone(), ask.common.clone(), ask.who.name.clone());
    let carry_out = move || {
        let filled = carry_out(&work, &copy);
        drop(still);
        if let Err(why) = filled {
            *copy.end() = Some(Err(why));
            return;
        }
        let made = changed(&desk, create, &who);
        match &made {
            Ok(plan) => common.journal.add(Topic::Change, &who, &noted(plan)),
            Err(_) => drop(std::fs::remove_file(&work.to)),
        }
        *copy.end() = Some(made.map(drop));
    };
    let thread = std::thread::Builder::new().name("copy".into()).spawn(carry_out);
    thread.map_err(|why| ProblemDetails::new("/problems/busy", "Too much at once", 503, why.to_string()))?;
    Reply::json(&view)
}

/// Has the control thread make a change, when the one before has ended.
fn changed(desk: &Desk, edit: Edit, who: &str) -> Result<Plan, String> {
    let stops = || "the service stops".to_owned();
    loop {
        let (tell, told) = mpsc::channel();
        let (edit, who) = (edit.clone(), who.to_owned());
        let posted = desk.post(move |control| {
            let wait = control.settling();
            let made = if wait.is_none() { Some(control.change(&[edit], &who)) } else { None };
            // It waits, or it has ended.
            let _ = tell.send((made, wait));
        });
        match posted.then(|| told.recv().ok()).flatten().ok_or_else(stops)? {
            (Some(made), _) => return made.map_err(|why| why.to_string()),
            (None, wait) => wait.into_iter().for_each(|wait| wait()),
        }
    }
}

/// Makes the new file, whole and on the medium, or leaves none.
fn carry_out(work: &Work, copy: &Copy) -> Result<(), String> {
    let from = File::open(&work.from).map_err(|why| of(&work.from, &why))?;
    let to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&work.to);
    let to = to.map_err(|why| of(&work.to, &why))?;
    let made = fill(work, copy, (&from, &to));
    if made.is_err() {
        // It was made here; one that was there before is somebody else's.
        let _ = std::fs::remove_file(&work.to);
    }
    made
}

fn of(path: &Path, why: &dyn std::fmt::Display) -> String {
    format!("{}: {why}", path.display())
}

fn fill(work: &Work, copy: &Copy, (from, to): (&File, &File)) -> Result<(), String> {
    match ioctl_ficlone(to, from) {
        Ok(()) => copy.done.store(copy.total, Ordering::Relaxed),
        Err(why) if work.share => {
            return Err(format!("this file system shares no blocks ({why}): `copy` copies all of them"));
        }
        Err(_) if !work.is_still => {
            let why = "somebody may write to it meanwhile, and this file system shares no blocks: set read-only first";
            return Err(why.into());
        }
        Err(_) => pieces(from, to, copy).map_err(|why| of(&work.to, &why))?,
    }
    if copy.stop.load(Ordering::Relaxed) {
        return Err("it was stopped".into());
    }
    let folder = work.to.parent().unwrap_or_else(|| Path::new("/"));
    to.sync_all().and_then(|()| File::open(folder)?.sync_all()).map_err(|why| of(&work.to, &why))
}

/// Copies what is there; holes stay holes.
fn pieces(from: &File, to: &File, copy: &Copy) -> io::Result<()> {
    let too_short = || io::Error::new(io::ErrorKind::UnexpectedEof, "what is copied became shorter meanwhile");
    rustix::fs::ftruncate(to, copy.total)?;
    let mut at = 0;
    while at < copy.total && !copy.stop.load(Ordering::Relaxed) {
        let data = match seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            Err(why) => return Err(why.into()),
        };
        let end = seek(from, SeekFrom::Hole(data))?.min(copy.total);
        let (mut read, mut write) = (data, data);
        let wanted = usize::try_from((end.saturating_sub(data)).min(PIECE)).unwrap_or(usize::MAX);
        if wanted == 0 {
            break;
        }
        if copy_file_range(from, Some(&mut read), to, Some(&mut write), wanted)? == 0 {
            return Err(too_short());
        }
        at = read;
        copy.done.store(at, Ordering::Relaxed);
    }
    if from.metadata()?.len() < copy.total {
        return Err(too_short());
    }
    copy.done.store(copy.total, Ordering::Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_to_be_there_meanwhile_stays() {
        let folder = std::env::temp_dir().join(format!("lunar-copy-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::write(&from, [7; 4096]).expect("a file");
        std::fs::write(&to, "somebody's").expect("a file");
        let work = Work { from, to: to.clone(), share: false, is_still: true };
        let enter = || Copies::default().enter("a copy".into(), 4096).expect("there is room");
        let why = carry_out(&work, &enter()).expect_err("there is a file");
        assert!(why.contains("exists"), "{why}");
        assert_eq!(std::fs::read(&to).expect("it stays"), b"somebody's");
        std::fs::remove_file(&to).expect("it is there");
        // What is left half-done is not.
        let stopped = enter();
        stopped.stop.store(true, Ordering::Relaxed);
        carry_out(&work, &stopped).expect_err("it was stopped");
        assert!(!to.exists());
        carry_out(&work, &enter()).expect("nothing is in its way");
        assert_eq!(std::fs::read(&to).expect("it is there"), [7; 4096]);
        let _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    fn what_ends_too_early_is_no_copy() {
        let folder = std::env::temp_dir().join(format!("lunar-copy-short-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::write(&from, [7; 4096]).expect("a file");
        let files = || (File::open(&from).expect("it is there"), File::create(&to).expect("a file"));
        let copied = |total| {
            let (from, to) = files();
            pieces(&from, &to, &Copies::default().enter("a copy".into(), total).expect("there is room"))
        };
        copied(4096).expect("it is whole");
        let why = copied(8192).expect_err("half of it is not there");
        assert!(why.to_string().contains("shorter"), "{why}");
        let _ = std::fs::remove_dir_all(&folder);
    }
}

//! Copies of volumes in files. If the file system can share blocks (reflink), a copy is instantaneous, consistent and
//! takes no space. Otherwise the bytes are copied, which takes time and requires that no client can write meanwhile.

use crate::audit::Topic;
use crate::control::{Control, ControlHandle};
use crate::copies::{CopyError, CopyJob, CopyRequest};
use crate::made;
use crate::request::{ApiRequest, Outcome, Problem, Reply, summary_of};
use lunar_control::api::ProblemDetails;
use lunar_control::document::{Edit, Keys};
use lunar_control::file_system::FileSystem;
use lunar_control::files::{self, Access};
use lunar_control::live::CopySource;
use lunar_control::value::{FilePath, Textual};
use lunar_control::{Kind, Plan};
use rustix::fs::{SeekFrom, copy_file_range, ioctl_ficlone, seek};
use rustix::io::Errno;
use serde_json::json;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that are copied per system call, between two checks whether the copy was stopped.
const COPY_BYTES: u64 = 16 << 20;
/// Bytes that are read at once where the kernel may not copy: more make disks no faster.
const READ_BYTES: usize = 1 << 20;

/// `GET /v1/copy`
pub fn list(request: &ApiRequest) -> Outcome {
    Reply::json(&request.shared.copies.views())
}

fn find(request: &ApiRequest) -> Result<Arc<CopyJob>, Problem> {
    let id = request.number("id")?;
    let missing = || Problem::not_found(format!("there is no copy {id}; it may have ended long ago"));
    request.shared.copies.find(id).ok_or_else(missing)
}

/// `GET /v1/copy/{id}`
pub fn show(request: &ApiRequest) -> Outcome {
    Reply::json(&find(request)?.view())
}

/// `DELETE /v1/copy/{id}`
pub fn stop(request: &ApiRequest) -> Outcome {
    let copy = find(request)?;
    copy.stop.store(true, Ordering::Relaxed);
    Reply::json(&copy.view())
}

/// The files of a copy.
struct CopyFiles {
    from: PathBuf,
    to: PathBuf,
    /// Whether the copy must share blocks.
    share: bool,
    /// Whether no client can write to the source meanwhile.
    is_frozen: bool,
    /// The ends of the names of files that belong to the source and are copied with it.
    companions: Vec<&'static str>,
}

impl CopyFiles {
    /// The files that belong to the source, each with its copy. They lie beside the file that a link leads to.
    fn companions(&self) -> io::Result<Vec<(PathBuf, PathBuf)>> {
        let beside = |path: &Path, end: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(end);
            PathBuf::from(name)
        };
        let from = self.from.canonicalize()?;
        Ok(self.companions.iter().map(|end| (beside(&from, end), beside(&self.to, end))).collect())
    }
}

fn not_a_file(volume: &str) -> Problem {
    Problem::bad_request(format!("volume {volume} is not a file: only volumes in files and images of Ceph are copied"))
}

/// As many copies run as may.
pub(crate) fn busy() -> ProblemDetails {
    let why = "too many copies are running: wait until one has ended";
    ProblemDetails::new("/problems/busy", "Too busy", 503, why.into())
}

/// `POST /v1/volume/{name}/copy`
pub fn start(control: &mut dyn Control, request: &ApiRequest) -> Outcome {
    let order: CopyRequest = request.json()?;
    let name = request.name();
    let config = &control.current().config;
    let missing = || Problem::not_found(format!("there is no volume '{name}'"));
    let volume = config.volumes.get(&name).ok_or_else(missing)?;
    if volume.kind.declaration().copies().is_some() {
        return made::copy(control, request, &order);
    }
    let from = match &volume.path {
        Some(path) if volume.kind.is_file() => PathBuf::from(path.text()),
        _ => return Err(not_a_file(&name)),
    };
    let volume_protection = volume.protection.word();
    let beside = || from.with_file_name(format!("{}.img", order.name)).display().to_string();
    let path = order.path.unwrap_or_else(beside);
    let to = FilePath::parse(&path).map_err(|why| Problem::bad_request(format!("'{path}' {why}")))?;
    let mut keys =
        json!({ "kind": volume.kind.word(), "path": to.text(), "block-size": volume.block_size.bytes().to_string() });
    if order.read_only {
        keys["read-only"] = json!(true);
    }
    let source = control.copy_source(&name);
    if let Some(source) = &source {
        keys["protection"] = json!(volume_protection);
        keys["uuid"] = json!(source.uuid.text());
    }
    let create = Edit::Create {
        kind: Kind::Volume,
        name: order.name.clone(),
        keys: Keys(keys.as_object().cloned().unwrap_or_default()),
    };
    let mut task =
        CopyFiles { from, to: to.text().into(), share: order.share, is_frozen: false, companions: Vec::new() };
    task.companions = source.as_ref().map(|source| source.companions.clone()).unwrap_or_default();
    // Fail before copying if the new volume would be refused.
    control.plan_edits(std::slice::from_ref(&create))?;
    if task.to.exists() {
        return Err(ProblemDetails::exists(format!("the file {} exists already", task.to.display())).into());
    }
    let total = std::fs::metadata(&task.from).map_or(0, |found| found.len());
    let copy = request.shared.copies.add(format!("volume {name} to {}", order.name), total, to.text());
    let copy = copy.ok_or_else(busy)?;
    // Sharing blocks is instantaneous and needs no write freeze. While a change is being finalized, clients that it
    // removes may still write, so no freeze is possible.
    let needs_freeze = !order.share || !task.companions.is_empty();
    let freeze = if !needs_freeze || control.finalizing().is_some() { None } else { control.freeze_writes(&name) };
    task.is_frozen = freeze.is_some();
    let view = copy.view();
    let (control_thread, shared, caller) =
        (request.control_thread.clone(), request.shared.clone(), request.caller.name.clone());
    let copy_file = move || {
        let filled = copy_file(&task, &copy);
        drop(freeze);
        if let Err(why) = filled {
            *copy.end() = Some(Err(why));
            return;
        }
        let result = created(&control_thread, create, source, &caller);
        match &result {
            Ok(plan) => shared.audit_log.add(Topic::Change, &caller, &summary_of(plan)),
            Err(_) => remove(&task),
        }
        *copy.end() = Some(result.map(drop));
    };
    let thread = std::thread::Builder::new().name("copy".into()).spawn(copy_file);
    thread.map_err(|why| ProblemDetails::new("/problems/busy", "Too busy", 503, why.to_string()))?;
    Reply::json(&view)
}

/// Has the control thread create the volume.
pub(crate) fn created(
    control_thread: &ControlHandle,
    edit: Edit,
    source: Option<CopySource>,
    caller: &str,
) -> Result<Plan, CopyError> {
    let caller = caller.to_owned();
    let create = move |control: &mut dyn Control| create_volume(control, edit.clone(), source.as_ref(), &caller);
    control_thread.change(create).unwrap_or(Err(CopyError::ServiceStops))
}

/// Creates the volume, with the records that it takes along.
fn create_volume(
    control: &mut dyn Control,
    edit: Edit,
    source: Option<&CopySource>,
    caller: &str,
) -> Result<Plan, CopyError> {
    if let Some(source) = source {
        control.set_records(source.uuid, &source.records).map_err(CopyError::Records)?;
    }
    let created = control.change(&[edit], caller.into()).map_err(CopyError::Create);
    if let (Err(_), Some(source)) = (&created, source) {
        // Nothing uses records of a UUID that no volume has.
        let _ = control.set_records(source.uuid, &[]);
    }
    created
}

/// Removes the files of a copy that failed.
fn remove(task: &CopyFiles) {
    let companions = task.companions().unwrap_or_default();
    for file in companions.iter().map(|(_, to)| to).chain([&task.to]) {
        // A file that is left is in the way of the next attempt, which says so.
        let _ = files::remove(file);
    }
}

/// Creates the new files completely and durably, or not at all.
fn copy_file(task: &CopyFiles, copy: &CopyJob) -> Result<(), CopyError> {
    if !task.companions.is_empty() && !task.is_frozen {
        // Data and protection information of different moments do not agree.
        return Err(CopyError::ProtectedInUse);
    }
    let companions = task.companions().map_err(|why| of(&task.from, why))?;
    copy_one(task, copy, (&task.from, &task.to), copy.total)?;
    let mut created = vec![task.to.as_path()];
    let copied = companions.iter().try_for_each(|(from, to)| {
        let length = std::fs::metadata(from).map_err(|why| of(from, why))?.len();
        copy_one(task, copy, (from, to), length)?;
        created.push(to);
        Ok(())
    });
    copy.done.store(copy.total, Ordering::Relaxed);
    // Files that were there before are not of this function.
    copied.inspect_err(|_| created.iter().for_each(|file| _ = files::remove(file)))
}

/// Creates one file.
fn copy_one(task: &CopyFiles, copy: &CopyJob, (source, path): (&Path, &Path), length: u64) -> Result<(), CopyError> {
    let from = files::open(source, Access::Read).map(File::from).map_err(|why| of(source, why))?;
    // It fails if there is such a file.
    let to = files::open(path, Access::Create).map(File::from).map_err(|why| of(path, why))?;
    let result = fill(task, copy, (&from, &to), (path, length), FileSystem::of(&from));
    if result.is_err() {
        // This function created the file.
        let _ = files::remove(path);
    }
    result
}

fn of(path: &Path, why: impl Into<io::Error>) -> CopyError {
    CopyError::File(path.to_owned(), why.into())
}

fn fill(
    task: &CopyFiles,
    copy: &CopyJob,
    (from, to): (&File, &File),
    (path, length): (&Path, u64),
    file_system: FileSystem,
) -> Result<(), CopyError> {
    let shared = if file_system.clones_what_it_reads() { Some(ioctl_ficlone(to, from)) } else { None };
    match shared {
        Some(Ok(())) => copy.done.store(copy.total, Ordering::Relaxed),
        Some(Err(why)) if task.share => return Err(CopyError::CannotShare(why)),
        None if task.share => return Err(CopyError::SharesOldBytes),
        _ if !task.is_frozen => return Err(CopyError::InUse),
        _ => copy_data((from, to), copy, length, file_system).map_err(|why| of(path, why))?,
    }
    if copy.stop.load(Ordering::Relaxed) {
        return Err(CopyError::Stopped);
    }
    let folder = path.parent().unwrap_or_else(|| Path::new("/"));
    to.sync_all().and_then(|()| Ok(files::sync_folder(folder)?)).map_err(|why| of(path, why))
}

/// Copies the data of a file; holes remain holes.
fn copy_data((from, to): (&File, &File), copy: &CopyJob, length: u64, file_system: FileSystem) -> io::Result<()> {
    let too_short = || io::Error::new(io::ErrorKind::UnexpectedEof, "the source file became shorter during the copy");
    rustix::fs::ftruncate(to, length)?;
    let (mut at, mut memory) = (0, Vec::new());
    while at < length && !copy.stop.load(Ordering::Relaxed) {
        let data = match seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            Err(why) => return Err(why.into()),
        };
        let end = seek(from, SeekFrom::Hole(data))?.min(length);
        let wanted = usize::try_from((end.saturating_sub(data)).min(COPY_BYTES)).unwrap_or(usize::MAX);
        if wanted == 0 {
            break;
        }
        let (mut read, mut write) = (data, data);
        let copied = match file_system.clones_what_it_reads() {
            true => copy_file_range(from, Some(&mut read), to, Some(&mut write), wanted)?,
            false => through_memory((from, to), data, &mut memory, wanted)?,
        };
        if copied == 0 {
            return Err(too_short());
        }
        at = data + copied as u64;
        copy.done.store(at, Ordering::Relaxed);
    }
    if from.metadata()?.len() < length {
        return Err(too_short());
    }
    copy.done.store(length, Ordering::Relaxed);
    Ok(())
}

/// Copies at most `wanted` bytes at `at` by reading and writing them; returns how many.
fn through_memory((from, to): (&File, &File), at: u64, memory: &mut Vec<u8>, wanted: usize) -> io::Result<usize> {
    memory.resize(READ_BYTES, 0);
    let part = &mut memory[..wanted.min(READ_BYTES)];
    let read = from.read_at(part, at)?;
    to.write_all_at(&part[..read], at)?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copies::Copies;

    #[test]
    fn a_file_on_zfs_is_read_and_written() {
        let folder = std::env::temp_dir().join(format!("lunar-copy-zfs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (from, to) = (folder.join("from"), folder.join("to"));
        let length = 5 * READ_BYTES as u64 + 512;
        let source = File::create_new(&from).expect("a file");
        source.set_len(length).expect("room");
        source.write_all_at(&vec![7; 2 * READ_BYTES + 512], READ_BYTES as u64).expect("written");
        let source = File::open(&from).expect("it is there");
        let task =
            |share| CopyFiles { from: from.clone(), to: to.clone(), share, is_frozen: true, companions: Vec::new() };
        let copy = Copies::default().add("a copy".into(), length, String::new()).expect("below the limit");
        let target = File::create_new(&to).expect("a file");
        let run = |share| fill(&task(share), &copy, (&source, &target), (&to, length), FileSystem::Zfs);
        let why = run(true).expect_err("a clone may have older bytes");
        assert!(matches!(why, CopyError::SharesOldBytes) && why.to_string().contains("copy the bytes"), "{why}");
        assert_eq!(std::fs::metadata(&to).expect("it is there").len(), 0);
        run(false).expect("a copy");
        assert_eq!(copy.done.load(Ordering::Relaxed), length);
        assert!(std::fs::read(&to).expect("the file") == std::fs::read(&from).expect("the file"));
        let _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    fn an_existing_file_is_not_overwritten() {
        let folder = std::env::temp_dir().join(format!("lunar-copy-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::write(&from, [7; 4096]).expect("a file");
        std::fs::write(&to, "user data").expect("a file");
        let task = CopyFiles { from, to: to.clone(), share: false, is_frozen: true, companions: Vec::new() };
        let add = || Copies::default().add("a copy".into(), 4096, String::new()).expect("below the limit");
        let why = copy_file(&task, &add()).expect_err("the file exists");
        assert!(why.to_string().contains("exists"), "{why}");
        assert_eq!(std::fs::read(&to).expect("the file"), b"user data");
        std::fs::remove_file(&to).expect("the file");
        // An incomplete copy is removed.
        let stopped = add();
        stopped.stop.store(true, Ordering::Relaxed);
        copy_file(&task, &stopped).expect_err("the copy was stopped");
        assert!(!to.exists());
        copy_file(&task, &add()).expect("a copy");
        assert_eq!(std::fs::read(&to).expect("the file"), [7; 4096]);
        let _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    fn a_copy_takes_protection_information_along_or_is_none() {
        let folder = std::env::temp_dir().join(format!("lunar-copy-pi-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (from, to) = (folder.join("from"), folder.join("to"));
        let (info, copied) = (folder.join("from.pi"), folder.join("to.pi"));
        std::fs::write(&from, [7; 8192]).expect("a file");
        std::fs::write(&info, [9; 4096]).expect("a file");
        let task = |is_frozen| CopyFiles {
            from: from.clone(),
            to: to.clone(),
            share: false,
            is_frozen,
            companions: vec![".pi"],
        };
        let add = || Copies::default().add("a copy".into(), 8192, String::new()).expect("below the limit");
        let why = copy_file(&task(false), &add()).expect_err("both would be of different moments");
        assert!(why.to_string().contains("protection information") && !to.exists(), "{why}");
        std::fs::write(&copied, "user data").expect("a file");
        copy_file(&task(true), &add()).expect_err("a file is in the way");
        assert_eq!((to.exists(), std::fs::read(&copied).expect("the file")), (false, b"user data".to_vec()));
        std::fs::remove_file(&copied).expect("the file");
        let copy = add();
        copy_file(&task(true), &copy).expect("a copy");
        assert_eq!(std::fs::read(&to).expect("the file"), [7; 8192]);
        assert_eq!(std::fs::read(&copied).expect("the file"), [9; 4096]);
        assert_eq!(copy.done.load(Ordering::Relaxed), 8192);
        let _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    fn a_source_that_became_shorter_fails_the_copy() {
        let folder = std::env::temp_dir().join(format!("lunar-copy-short-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::write(&from, [7; 4096]).expect("a file");
        let files = || (File::open(&from).expect("the file"), File::create(&to).expect("a file"));
        let copied = |total| {
            let (from, to) = files();
            let copy = Copies::default().add("a copy".into(), total, String::new()).expect("below the limit");
            copy_data((&from, &to), &copy, total, FileSystem::Other)
        };
        copied(4096).expect("a copy");
        let why = copied(8192).expect_err("the source is too short");
        assert!(why.to_string().contains("shorter"), "{why}");
        let _ = std::fs::remove_dir_all(&folder);
    }
}

//! The disks of a machine whose power can be cut: files that this program serves through FUSE, as loop devices.
//!
//! The power of all disks is cut at once. From then on no request is completed, as in a machine without power, until
//! the mounts are aborted; only then do the file systems and the target see errors.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::fuse::{self, Request};
use super::medium::{CutCount, Loss, Medium};
use crate::loop_device::LoopDevice;
use crate::process;
use crate::report::skip;
use crate::target::Lab;
use crate::test_data::Random;

const LIMIT: Duration = Duration::from_secs(20);
/// How often a disk looks whether it still has power.
const POWER_CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// The state that the threads of the disks share, under one lock, so that a cut is one moment for all of them.
struct Shared {
    has_power: bool,
    media: Vec<Medium>,
}

fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A disk that has power.
struct Attached {
    device: Option<LoopDevice>,
    file: PathBuf,
    server: Option<JoinHandle<()>>,
}

/// The disks of one machine. Dropping them takes their power away.
pub(super) struct Disks {
    folder: PathBuf,
    shared: Arc<Mutex<Shared>>,
    attached: Vec<Attached>,
}

impl Disks {
    /// Disks of these sizes in MiB, with power; skips the case where they are impossible.
    pub(super) fn new(lab: &Lab, name: &str, sizes: &[usize]) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return skip("only root may mount the disks whose power is cut");
        }
        if !Path::new("/dev/fuse").exists() {
            return skip("the disks whose power is cut need /dev/fuse");
        }
        let folder = lab.scratch.join(name);
        clear_leftovers(&folder, sizes.len());
        std::fs::create_dir_all(&folder)?;
        let media = sizes.iter().map(|mib| Medium::new(mib << 20)).collect();
        let shared = Arc::new(Mutex::new(Shared { has_power: false, media }));
        let mut disks = Self { folder, shared, attached: Vec::new() };
        disks.power_on()?;
        Ok(disks)
    }

    /// The block device of a disk, by a name that stays the same.
    pub(super) fn device(&self, at: usize) -> PathBuf {
        self.folder.join(format!("device-{at}"))
    }

    /// Attaches the disks.
    pub(super) fn power_on(&mut self) -> Result<()> {
        let count = {
            let mut shared = locked(&self.shared);
            shared.has_power = true;
            shared.media.len()
        };
        for at in 0..count {
            let file = self.folder.join(format!("disk-{at}"));
            File::create(&file)?;
            let server = serve(&self.shared, at, &file)?;
            self.attached.push(Attached { device: None, file: file.clone(), server: Some(server) });
            let image = file.to_str().context("the name of the scratch folder is not UTF-8")?;
            let device = LoopDevice::attach_with(&["--direct-io=on"], image)?;
            let link = self.device(at);
            // Of the power cut before.
            let _ = std::fs::remove_file(&link);
            symlink(&device.path, link)?;
            if let Some(attached) = self.attached.last_mut() {
                attached.device = Some(device);
            }
        }
        Ok(())
    }

    /// Takes the power away from all disks at once. No request is completed any more.
    pub(super) fn cut(&self) {
        locked(&self.shared).has_power = false;
    }

    /// Ends all requests in progress with errors, so that their processes can end.
    pub(super) fn abort(&mut self) -> Result<()> {
        for disk in &mut self.attached {
            if let Some(server) = disk.server.take() {
                ensure!(server.join().is_ok(), "the thread of a disk panicked");
            }
        }
        Ok(())
    }

    /// Detaches the disks after [`Disks::abort`], when nothing is mounted on them; what was in their caches is lost.
    pub(super) fn lose(&mut self, loss: Loss, random: &mut Random) -> Result<CutCount> {
        self.detach()?;
        let mut total = CutCount::default();
        for medium in &mut locked(&self.shared).media {
            let count = medium.cut(loss, random);
            total = CutCount { lost: total.lost + count.lost, left: total.left + count.left };
        }
        Ok(total)
    }

    fn detach(&mut self) -> Result<()> {
        for Attached { device, file, .. } in self.attached.drain(..) {
            drop(device);
            unmount(&file)?;
        }
        Ok(())
    }

    /// Brings everything that was written to the media.
    pub(super) fn flush(&self) {
        locked(&self.shared).media.iter_mut().for_each(Medium::flush);
    }

    /// From now on all disks complete flushes without executing them.
    pub(super) fn ignore_flushes(&self) {
        locked(&self.shared).media.iter_mut().for_each(|medium| medium.ignores_flushes = true);
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        self.cut();
        if let Err(why) = self.abort().and_then(|()| self.detach()) {
            eprintln!("disks in {}: {why:#}", self.folder.display());
        }
    }
}

/// Unmounts as soon as nothing uses the mount: the kernel may keep descriptors of a killed process a moment longer.
pub(super) fn unmount(path: &Path) -> Result<()> {
    let end = Instant::now() + LIMIT;
    loop {
        let done = process::run(Command::new("umount").arg(path), LIMIT)?;
        if done.status.success() {
            return Ok(());
        }
        if Instant::now() > end {
            // Nothing of this run may stay mounted in any case.
            let _ = process::run(Command::new("umount").arg("-l").arg(path), LIMIT);
            bail!("{} stays in use: {}", path.display(), done.text.trim());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Removes what a run that was killed has left: its disks have ended, and their mounts and loop devices have not.
fn clear_leftovers(folder: &Path, count: usize) {
    for at in 0..count {
        let file = folder.join(format!("disk-{at}"));
        let Ok(found) =
            process::run(Command::new("losetup").args(["--noheadings", "--output", "NAME,BACK-FILE"]), LIMIT)
        else {
            return;
        };
        let path = file.display().to_string();
        for line in found.text.lines().filter(|line| line.ends_with(&path)) {
            if let Some(device) = line.split_whitespace().next() {
                let _ = process::run(Command::new("umount").args(["--lazy", device]), LIMIT);
                let _ = process::run(Command::new("losetup").args(["--detach", device]), LIMIT);
            }
        }
        let _ = process::run(Command::new("umount").arg("--lazy").arg(&file), LIMIT);
    }
}

/// Mounts a disk as a file and serves it on a thread.
fn serve(shared: &Arc<Mutex<Shared>>, at: usize, file: &Path) -> Result<JoinHandle<()>> {
    let connection = OpenOptions::new().read(true).write(true).open("/dev/fuse").context("/dev/fuse")?;
    // The helper of the mount receives the connection as its standard input.
    let mounted = Command::new("mount")
        .args(["-i", "-t", "fuse", "-o", "fd=0,rootmode=100000,user_id=0,group_id=0", "lunar-power"])
        .arg(file)
        .stdin(connection.try_clone()?)
        .output()
        .context("cannot start mount")?;
    if !mounted.status.success() {
        return skip(format!("FUSE cannot be mounted here: {}", String::from_utf8_lossy(&mounted.stderr).trim()));
    }
    let shared = Arc::clone(shared);
    Ok(std::thread::spawn(move || run(&connection, &shared, at)))
}

/// Serves until the power is cut or the file is unmounted. The end of the connection aborts all requests.
fn run(connection: &File, shared: &Mutex<Shared>, at: usize) {
    let mut connection = connection;
    let mut bytes = vec![0; fuse::REQUEST_MAX.max(8192)];
    while locked(shared).has_power {
        let mut fds = [PollFd::new(connection, PollFlags::IN)];
        if !poll(&mut fds, Some(&POWER_CHECK)).is_ok_and(|count| count > 0) {
            continue;
        }
        let count = match connection.read(&mut bytes) {
            Ok(count) => count,
            // A request was withdrawn meanwhile.
            Err(why) if [ErrorKind::NotFound, ErrorKind::Interrupted].contains(&why.kind()) => continue,
            Err(_) => return,
        };
        let Some((unique, request)) = fuse::parse(&bytes[..count]) else { return };
        let mut shared = locked(shared);
        if !shared.has_power {
            return;
        }
        let answer = answer(&mut shared.media[at], &request);
        if request != Request::Unanswered {
            let reply = fuse::reply(unique, answer.as_deref().map_err(|number| *number));
            // It fails if the request was withdrawn.
            let _ = connection.write(&reply);
        }
    }
}

fn answer(medium: &mut Medium, request: &Request<'_>) -> Result<Vec<u8>, i32> {
    match *request {
        Request::Init => Ok(fuse::init()),
        Request::Attributes => Ok(fuse::attributes(medium.size())),
        Request::Open => Ok(fuse::opened()),
        Request::Read { offset, len } => medium.read(offset, len).map(<[u8]>::to_vec).ok_or(fuse::EIO),
        Request::Write { offset, data } => {
            medium.write(offset, data).map(|()| fuse::written(data.len())).ok_or(fuse::EIO)
        }
        Request::Sync => {
            medium.flush();
            Ok(Vec::new())
        }
        Request::Zero { offset, len } => medium.zero(offset, len).map(|()| Vec::new()).ok_or(fuse::EIO),
        Request::FileSystem => Ok(fuse::file_system(medium.size())),
        Request::Nothing | Request::Unanswered => Ok(Vec::new()),
        Request::Unknown => Err(fuse::ENOSYS),
    }
}

//! A file whose file system accepts requests and does not answer them: a FUSE file system of one file, mounted where
//! only the thread of the test sees it.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

// Operation codes of linux/fuse.h.
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;

/// Bytes that the file claims to have.
const SIZE: u64 = 1 << 20;

/// The mounted file. Requests to it are held until [`HangingFile::release`].
pub(crate) struct HangingFile {
    pub(crate) path: PathBuf,
    state: Arc<State>,
    server: Option<JoinHandle<()>>,
}

struct State {
    device: File,
    is_released: AtomicBool,
    held: AtomicUsize,
}

impl HangingFile {
    /// Mounts it over an empty file at `path`, for this thread and those that it starts.
    ///
    /// # Errors
    /// When the process may not mount, or the kernel has no FUSE.
    pub(crate) fn mount(path: &Path) -> io::Result<Self> {
        File::create(path)?;
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let options = format!("fd={},rootmode=100644,user_id=0,group_id=0", device.as_raw_fd());
        // SAFETY: the calls concern the mounts of this thread; all strings live until they are over.
        unsafe {
            check(libc::unshare(libc::CLONE_FS | libc::CLONE_NEWNS))?;
            let (none, root) = (std::ptr::null(), c"/".as_ptr());
            check(libc::mount(none, root, none, libc::MS_REC | libc::MS_PRIVATE, none.cast()))?;
            let target = CString::new(path.as_os_str().as_encoded_bytes())?;
            let options = CString::new(options)?;
            check(libc::mount(c"hanging".as_ptr(), target.as_ptr(), c"fuse".as_ptr(), 0, options.as_ptr().cast()))?;
        }
        let state = Arc::new(State { device, is_released: AtomicBool::new(false), held: AtomicUsize::new(0) });
        let server = state.clone();
        let server = std::thread::spawn(move || server.serve());
        Ok(Self { path: path.to_owned(), state, server: Some(server) })
    }

    /// Requests that wait for an answer.
    pub(crate) fn held(&self) -> usize {
        self.state.held.load(Ordering::SeqCst)
    }

    /// From now on, requests fail with EIO at once. Held requests fail when the next one arrives.
    pub(crate) fn release(&self) {
        self.state.is_released.store(true, Ordering::SeqCst);
        // A request that wakes the server.
        let _ = std::fs::metadata(&self.path);
        let _ = rustix::fs::statfs(&self.path);
    }
}

impl Drop for HangingFile {
    fn drop(&mut self) {
        self.release();
        let target = CString::new(self.path.as_os_str().as_encoded_bytes()).expect("a path of the test");
        // SAFETY: the string lives until the call is over.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        let _ = std::fs::remove_file(&self.path);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl State {
    /// Answers the requests that open the file, and holds all other requests. Ends with the mount.
    fn serve(&self) {
        let mut held = Vec::new();
        let mut request = vec![0; 1 << 17];
        while let Ok(count) = (&self.device).read(&mut request) {
            assert!(count >= 40, "a request has a header");
            let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four bytes"));
            let (opcode, unique) = (word(4), u64::from_ne_bytes(request[8..16].try_into().expect("eight bytes")));
            match opcode {
                INIT => self.reply(unique, 0, &init()),
                GETATTR => self.reply(unique, 0, &attributes()),
                // A handle, and FOPEN_DIRECT_IO.
                OPEN => self.reply(unique, 0, &[[0; 8], [1, 0, 0, 0, 0, 0, 0, 0]].concat()),
                RELEASE | FLUSH => self.reply(unique, 0, &[]),
                STATFS if self.is_released.load(Ordering::SeqCst) => self.reply(unique, 0, &[0; 80]),
                _ if self.is_released.load(Ordering::SeqCst) => self.reply(unique, -libc::EIO, &[]),
                _ => {
                    held.push(unique);
                    self.held.store(held.len(), Ordering::SeqCst);
                }
            }
            if self.is_released.load(Ordering::SeqCst) {
                held.drain(..).for_each(|unique| self.reply(unique, -libc::EIO, &[]));
                self.held.store(0, Ordering::SeqCst);
            }
        }
    }

    fn reply(&self, unique: u64, error: i32, body: &[u8]) {
        let mut reply = (16 + body.len() as u32).to_ne_bytes().to_vec();
        reply.extend(error.to_ne_bytes());
        reply.extend(unique.to_ne_bytes());
        reply.extend(body);
        // Fails if the request was abandoned meanwhile.
        let _ = (&self.device).write_all(&reply);
    }
}

/// `struct fuse_init_out`: version 7.31, no features.
fn init() -> Vec<u8> {
    let mut body = vec![0; 64];
    body[0..4].copy_from_slice(&7u32.to_ne_bytes());
    body[4..8].copy_from_slice(&31u32.to_ne_bytes());
    body[20..24].copy_from_slice(&65536u32.to_ne_bytes());
    body
}

/// `struct fuse_attr_out` of a regular file.
fn attributes() -> Vec<u8> {
    let mut body = vec![0; 104];
    body[0..8].copy_from_slice(&3600u64.to_ne_bytes());
    body[16..24].copy_from_slice(&1u64.to_ne_bytes());
    body[24..32].copy_from_slice(&SIZE.to_ne_bytes());
    body[76..80].copy_from_slice(&0o100_644_u32.to_ne_bytes());
    body[80..84].copy_from_slice(&1u32.to_ne_bytes());
    body[96..100].copy_from_slice(&4096u32.to_ne_bytes());
    body
}

//! An open image.

use super::cluster::{Pool, REQUIRED};
use super::extents::Extents;
use super::space::{Counted, Measured, Space};
use super::view::View;
use super::{CipherPassphrase, ConfigOption, Failure, Handle, Info, Passphrase, Rbd, Watcher};
use lunar_core::io::Extent;
use lunar_core::mem::{Buf, Slice};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::{null, null_mut};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// `EVENT_TYPE_EVENTFD`.
const EVENTFD: c_int = 2;
/// `RBD_LOCK_MODE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 0;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
pub(super) const EXCLUSIVE_LOCK: u64 = 1 << 2;
/// Completions that are taken at a time.
const COMPLETIONS: usize = 64;
/// The most bytes of a value of metadata that this program writes or reads.
const METADATA_MAX: usize = 1024;
/// Owners of a lock: an exclusive one has one.
const OWNERS_MAX: usize = 4;
/// Clients that have an image open.
const WATCHERS_MAX: usize = 256;
/// Options of the library: version 18 has some 80 that an image may have.
const OPTIONS_MAX: usize = 512;
/// Bytes of the number of an image (RBD_MAX_IMAGE_ID_LENGTH is 14), with a zero.
const NUMBER_BYTES_MAX: usize = 64;

/// The format of an encrypted image: the numbers are those of `rbd_encryption_format_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Encryption {
    /// LUKS, version 1.
    Luks1,
    /// LUKS, version 2.
    Luks2,
    /// LUKS of the version that the image has; Ceph 17 or later.
    Luks,
}

/// A command.
#[derive(Debug)]
pub enum Operation {
    /// Fills the memory.
    Read(Buf),
    /// Writes the memory.
    Write(Slice),
    /// Waits for all writes before it.
    Flush,
    /// Releases the space of a range, as far as whole objects allow it.
    Discard(u64),
    /// Writes zeroes to a range; space may be released.
    Zero(usize),
    /// Tells how far a range is allocated, or is not: in doubt, it is.
    Extent(u64),
}

/// The arguments of a function for a command.
#[derive(Clone, Copy)]
enum Call {
    Read(*mut c_char, usize),
    Write(*const c_char, usize),
    Flush,
    Discard(u64),
    Zero(usize),
}

/// A command that the library executes: it has the memory.
struct Pending {
    token: u64,
    /// The bytes that a read has to return.
    read: isize,
    _operation: Operation,
}

/// The end of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completed {
    /// The token of the command.
    pub token: u64,
    /// Whether it has succeeded.
    pub result: Result<(), Failure>,
    /// The answer to [`Operation::Extent`].
    pub extent: Extent,
}

/// An open image.
pub struct Image {
    pub(super) pool: Rc<Pool>,
    pub(super) handle: Handle,
    /// The library, and the thread of extents, signal it when commands have ended.
    ended: Arc<OwnedFd>,
    /// The library signals it when the header of the image has changed.
    changed: OwnedFd,
    watch: Cell<Option<u64>>,
    in_progress: Cell<usize>,
    is_encrypted: Cell<bool>,
    /// Since the first question.
    extents: RefCell<Option<Extents>>,
    /// Since Lunar wants to know the space of the pool.
    space: RefCell<Option<Space>>,
    /// The thread of the space signals it when it has measured.
    measured: Arc<OwnedFd>,
    /// Commands that have changed the image.
    changes: Arc<AtomicU64>,
}

fn bell() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// The header of an image has changed: `argument` is the number of its eventfd.
extern "C" fn ring(argument: *mut c_void) {
    let fd = argument.addr() as RawFd;
    // SAFETY: the image stops the watch before it closes its eventfd.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    // A full counter signals as well.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

impl Image {
    /// Opens an image, or a snapshot of one.
    ///
    /// # Errors
    /// Errors of the library and of the operating system.
    pub fn open(pool: &Rc<Pool>, name: &CStr, snapshot: Option<&CStr>, is_read_only: bool) -> Result<Self, Failure> {
        let system = |why: io::Error| Failure(Errno::from_io_error(&why).unwrap_or(Errno::IO));
        let (ended, changed) = (Arc::new(bell().map_err(system)?), bell().map_err(system)?);
        let measured = Arc::new(bell().map_err(system)?);
        let rbd = &pool.cluster.libraries.rbd;
        let open = if is_read_only { rbd.rbd_open_read_only } else { rbd.rbd_open };
        let (mut handle, snapshot) = (null_mut(), snapshot.map_or(null(), CStr::as_ptr));
        // SAFETY: the pool is open, the names are strings or null, and the handle is written.
        Failure::check(unsafe { open(pool.handle, name.as_ptr(), &raw mut handle, snapshot) })?;
        let image = Self {
            pool: pool.clone(),
            handle,
            ended,
            changed,
            watch: Cell::new(None),
            in_progress: Cell::new(0),
            is_encrypted: Cell::new(false),
            extents: RefCell::default(),
            space: RefCell::default(),
            measured,
            changes: Arc::default(),
        };
        let rbd = image.rbd();
        // SAFETY: the image is open; the eventfd is closed after the image.
        Failure::check(unsafe { (rbd.rbd_set_image_notification)(handle, image.ended.as_raw_fd(), EVENTFD) })?;
        if !is_read_only {
            let mut watch = 0;
            let argument = std::ptr::without_provenance_mut(image.changed.as_raw_fd() as usize);
            // SAFETY: the image is open, and the watch ends before the eventfd is closed.
            Failure::check(unsafe { (rbd.rbd_update_watch)(handle, &raw mut watch, ring, argument) })?;
            image.watch.set(Some(watch));
        }
        Ok(image)
    }

    pub(super) fn rbd(&self) -> &Rbd {
        &self.pool.cluster.libraries.rbd
    }

    /// Decrypts and encrypts its data from now on.
    ///
    /// # Errors
    /// Errors of the library; `EPERM` when the passphrase is wrong.
    pub fn load_encryption(&self, format: Encryption, passphrase: &[u8]) -> Result<(), Failure> {
        let passphrase = Passphrase { text: passphrase.as_ptr().cast(), len: passphrase.len() };
        let rbd = self.rbd();
        let result = match format {
            Encryption::Luks => {
                let mut options = passphrase;
                // SAFETY: the options are those of this format, and the library copies them.
                unsafe { (rbd.rbd_encryption_load)(self.handle, 2, (&raw mut options).cast(), size_of::<Passphrase>()) }
            }
            Encryption::Luks1 | Encryption::Luks2 => {
                let mut options = CipherPassphrase { cipher: 0, passphrase };
                let (options, len) = (&raw mut options, size_of::<CipherPassphrase>());
                // SAFETY: the options are those of both formats, and the library copies them.
                unsafe {
                    (rbd.rbd_encryption_load)(
                        self.handle,
                        c_int::from(format == Encryption::Luks2),
                        options.cast(),
                        len,
                    )
                }
            }
        };
        Failure::check(result)?;
        self.is_encrypted.set(true);
        Ok(())
    }

    /// Its identity: the cluster, the pool, and the number that the cluster has given to the image, and to the snapshot
    /// if it is one. It stays when the image gets another name, and no other image ever has it.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn identity(&self, snapshot: Option<&CStr>) -> Result<String, Failure> {
        let mut number = [0_u8; NUMBER_BYTES_MAX];
        // SAFETY: the image is open, and at most so many bytes are written.
        Failure::check(unsafe { (self.rbd().rbd_get_id)(self.handle, number.as_mut_ptr().cast(), NUMBER_BYTES_MAX) })?;
        let number = CStr::from_bytes_until_nul(&number).map_err(|_| Failure(Errno::RANGE))?.to_string_lossy();
        let mut identity = format!("{}/{}/{number}", self.pool.cluster.fsid()?, self.pool.number());
        if let Some(snapshot) = snapshot {
            let mut number = 0;
            // SAFETY: the image is open, the name is a string, and the number is written.
            Failure::check(unsafe { (self.rbd().rbd_snap_get_id)(self.handle, snapshot.as_ptr(), &raw mut number) })?;
            identity += &format!("@{number}");
        }
        Ok(identity)
    }

    /// Its bytes.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn size(&self) -> Result<u64, Failure> {
        Ok(self.info()?.size)
    }

    fn info(&self) -> Result<Info, Failure> {
        let mut info =
            Info { size: 0, object_size: 0, objects: 0, order: 0, prefix: [0; 24], parent_pool: 0, parent: [0; 96] };
        // SAFETY: the image is open, and at most so many bytes of the structure are written.
        Failure::check(unsafe { (self.rbd().rbd_stat)(self.handle, &raw mut info, size_of::<Info>()) })?;
        Ok(info)
    }

    /// Whether [`Operation::Extent`] is answered. Of encrypted and of striped images, some versions of the library
    /// report extents at other offsets than those of the data.
    #[must_use]
    pub fn tells_extents(&self) -> bool {
        let number = |function: unsafe extern "C" fn(Handle, *mut u64) -> c_int| {
            let mut number = 0;
            // SAFETY: the image is open, and the number is written.
            Failure::check(unsafe { function(self.handle, &raw mut number) }).map(|_| number)
        };
        let stripe = (number(self.rbd().rbd_get_stripe_unit), number(self.rbd().rbd_get_stripe_count));
        let is_striped = self.info().map(|info| stripe != (Ok(info.object_size), Ok(1)));
        !self.is_encrypted.get() && is_striped == Ok(false)
    }

    /// Whether clients can lock it, so that a dead one can be fenced.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn has_exclusive_lock(&self) -> Result<bool, Failure> {
        let mut features = 0;
        // SAFETY: the image is open, and the number is written.
        Failure::check(unsafe { (self.rbd().rbd_get_features)(self.handle, &raw mut features) })?;
        Ok(features & EXCLUSIVE_LOCK != 0)
    }

    /// The value of a key of its metadata.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn metadata(&self, key: &CStr) -> Result<Option<String>, Failure> {
        let (mut bytes, mut len) = ([0_u8; METADATA_MAX], METADATA_MAX);
        let value = bytes.as_mut_ptr().cast();
        // SAFETY: the image is open, the key is a string, and at most `len` bytes are written.
        match Failure::check(unsafe { (self.rbd().rbd_metadata_get)(self.handle, key.as_ptr(), value, &raw mut len) }) {
            Err(Failure(Errno::NOENT)) => Ok(None),
            Err(why) => Err(why),
            Ok(_) => Ok(CStr::from_bytes_until_nul(&bytes).ok().map(|text| text.to_string_lossy().into_owned())),
        }
    }

    /// Sets the value of a key of its metadata.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn set_metadata(&self, key: &CStr, value: &CStr) -> Result<(), Failure> {
        // SAFETY: the image is open, and both are strings.
        let set = unsafe { (self.rbd().rbd_metadata_set)(self.handle, key.as_ptr(), value.as_ptr()) };
        Failure::check(set).map(drop)
    }

    /// The clients that have the lock.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn lock_owners(&self) -> Result<Vec<CString>, Failure> {
        let rbd = self.rbd();
        let (mut mode, mut count) = (0, OWNERS_MAX);
        let mut owners: [*mut c_char; OWNERS_MAX] = [null_mut(); OWNERS_MAX];
        let first = owners.as_mut_ptr();
        // SAFETY: the image is open, and at most `count` pointers are written.
        match Failure::check(unsafe { (rbd.rbd_lock_get_owners)(self.handle, &raw mut mode, first, &raw mut count) }) {
            Err(Failure(Errno::NOENT)) => return Ok(Vec::new()),
            other => other?,
        };
        let count = count.min(OWNERS_MAX);
        // SAFETY: so many pointers to strings were written.
        let names = owners[..count].iter().map(|owner| unsafe { CStr::from_ptr(*owner) }.to_owned()).collect();
        // SAFETY: the library has allocated the strings.
        unsafe { (rbd.rbd_lock_get_owners_cleanup)(first, count) };
        Ok(names)
    }

    /// The clients that have it open for writing, as the owner of a lock is named.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn watchers(&self) -> Result<Vec<CString>, Failure> {
        let rbd = self.rbd();
        let mut all = [Watcher { address: null_mut(), id: 0, cookie: 0 }; WATCHERS_MAX];
        let (first, mut count) = (all.as_mut_ptr(), WATCHERS_MAX);
        // SAFETY: the image is open, and at most `count` entries are written.
        Failure::check(unsafe { (rbd.rbd_watchers_list)(self.handle, first, &raw mut count) })?;
        let count = count.min(WATCHERS_MAX);
        // SAFETY: so many entries with strings were written.
        let names = all[..count].iter().map(|watcher| unsafe { CStr::from_ptr(watcher.address) }.to_owned()).collect();
        // SAFETY: the library has allocated the strings.
        unsafe { (rbd.rbd_watchers_list_cleanup)(first, count) };
        Ok(names)
    }

    /// The option without which no data is safe and that the image or its pool has changed, if there is one.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn unsafe_option(&self) -> Result<Option<String>, Failure> {
        let rbd = self.rbd();
        let mut all = vec![ConfigOption { name: null_mut(), value: null_mut(), source: 0 }; OPTIONS_MAX];
        let (first, mut count) = (all.as_mut_ptr(), OPTIONS_MAX as c_int);
        // SAFETY: the image is open, and at most `count` entries are written.
        Failure::check(unsafe { (rbd.rbd_config_image_list)(self.handle, first, &raw mut count) })?;
        let used = usize::try_from(count).unwrap_or(0).min(OPTIONS_MAX);
        let found = all[..used].iter().find_map(|option| {
            // SAFETY: both are strings of the library.
            let (name, value) = unsafe { (CStr::from_ptr(option.name), CStr::from_ptr(option.value)) };
            let is_changed = REQUIRED.iter().any(|(required, safe)| *required == name && *safe != value);
            is_changed.then(|| format!("{} = {}", name.to_string_lossy(), value.to_string_lossy()))
        });
        // SAFETY: the library has allocated the strings.
        unsafe { (rbd.rbd_config_image_list_cleanup)(first, count) };
        Ok(found)
    }

    /// Takes the lock, and keeps it: other clients do not get it when they ask.
    ///
    /// # Errors
    /// Errors of the library; `EROFS` when another client has it and keeps it.
    pub fn acquire_lock(&self) -> Result<(), Failure> {
        // SAFETY: the image is open.
        Failure::check(unsafe { (self.rbd().rbd_lock_acquire)(self.handle, EXCLUSIVE) }).map(drop)
    }

    /// Gives the lock back.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn release_lock(&self) -> Result<(), Failure> {
        // SAFETY: the image is open.
        Failure::check(unsafe { (self.rbd().rbd_lock_release)(self.handle) }).map(drop)
    }

    /// Takes the lock away from a client, which comes to the block list: no command that it has sent is executed any
    /// more.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn break_lock(&self, owner: &CStr) -> Result<(), Failure> {
        // SAFETY: the image is open, and the owner is a string.
        Failure::check(unsafe { (self.rbd().rbd_lock_break)(self.handle, EXCLUSIVE, owner.as_ptr()) }).map(drop)
    }

    /// The eventfd that is signalled when commands have ended.
    #[must_use]
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// The eventfd that is signalled when the size may have changed.
    #[must_use]
    pub fn changed(&self) -> BorrowedFd<'_> {
        self.changed.as_fd()
    }

    /// Begins to measure the space of the pool from time to time, if it has not begun yet.
    ///
    /// # Errors
    /// Errors of the library and of the operating system.
    pub fn measure(&self) -> Result<(), Failure> {
        let mut space = self.space.borrow_mut();
        if space.is_none() {
            let Info { size, object_size, .. } = self.info()?;
            let view = View::new(self.handle, object_size, self.rbd());
            let (changes, bell) = (self.changes.clone(), self.measured.clone());
            let counted = Counted { view, size, pool: self.data_pool_number(), changes, bell };
            let started = Space::start(&self.pool.cluster, counted);
            *space = Some(started.map_err(|why| Failure(Errno::from_io_error(&why).unwrap_or(Errno::AGAIN)))?);
        }
        Ok(())
    }

    /// The eventfd that is signalled when the space of the pool was measured.
    #[must_use]
    pub fn measured(&self) -> BorrowedFd<'_> {
        self.measured.as_fd()
    }

    /// The space of the pool, as it was measured last; `None`: it is not known.
    #[must_use]
    pub fn space(&self) -> Option<Measured> {
        let _ = rustix::io::read(&self.measured, &mut [0; size_of::<u64>()]);
        self.space.borrow().as_ref().and_then(Space::last)
    }

    /// The number of the pool of its data.
    pub(super) fn data_pool_number(&self) -> i64 {
        // SAFETY: the image is open.
        let number = unsafe { (self.rbd().rbd_get_data_pool_id)(self.handle) };
        if number < 0 { self.pool.number() } else { number }
    }

    /// The identity and the name of the pool of its data.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn pool_identity(&self) -> Result<(String, String), Failure> {
        let (cluster, number) = (&self.pool.cluster, self.data_pool_number());
        let name = cluster.pool_name(number)?.to_string_lossy().into_owned();
        Ok((format!("{}/{number}", cluster.fsid()?), name))
    }

    /// Commands that have not ended.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.in_progress.get()
    }

    /// Begins a command: `token` comes back with its end.
    ///
    /// # Errors
    /// The library does not take it: its end is not reported.
    pub fn submit(&self, token: u64, offset: u64, mut operation: Operation) -> Result<(), Failure> {
        let rbd = self.rbd();
        if matches!(operation, Operation::Write(_) | Operation::Discard(_) | Operation::Zero(_)) {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
        let call = match &mut operation {
            Operation::Extent(len) => return self.ask_extent(token, offset, *len),
            Operation::Read(memory) => Call::Read(memory.as_mut_ptr().cast(), memory.len()),
            Operation::Write(memory) => Call::Write(memory.as_ptr().cast(), memory.len()),
            Operation::Flush => Call::Flush,
            Operation::Discard(len) => Call::Discard(*len),
            Operation::Zero(len) => Call::Zero(*len),
        };
        let read = if let Call::Read(_, len) = call { isize::try_from(len).unwrap_or(isize::MAX) } else { 0 };
        let pending = Box::into_raw(Box::new(Pending { token, read, _operation: operation }));
        let (mut completion, handle) = (null_mut(), self.handle);
        // SAFETY: the completion is written. The memory stays in `pending` until the command has ended, and nothing
        // here uses it meanwhile.
        let result = Failure::check(unsafe {
            match (rbd.rbd_aio_create_completion)(pending.cast(), null(), &raw mut completion) {
                0 => match call {
                    Call::Read(memory, len) => (rbd.rbd_aio_read)(handle, offset, len, memory, completion),
                    Call::Write(memory, len) => (rbd.rbd_aio_write)(handle, offset, len, memory, completion),
                    Call::Flush => (rbd.rbd_aio_flush)(handle, completion),
                    Call::Discard(len) => (rbd.rbd_aio_discard)(handle, offset, len, completion),
                    Call::Zero(len) => (rbd.rbd_aio_write_zeroes)(handle, offset, len, completion, 0, 0),
                },
                failed => failed,
            }
        });
        if let Err(why) = result {
            // SAFETY: the library has not taken the command, so this is the only pointer; the completion is unused.
            unsafe {
                drop(Box::from_raw(pending));
                if !completion.is_null() {
                    (rbd.rbd_aio_release)(completion);
                }
            }
            return Err(why);
        }
        self.in_progress.set(self.in_progress.get() + 1);
        Ok(())
    }

    fn ask_extent(&self, token: u64, offset: u64, len: u64) -> Result<(), Failure> {
        let mut extents = self.extents.borrow_mut();
        if extents.is_none() {
            let view = View::new(self.handle, self.info()?.object_size, self.rbd());
            let started = Extents::start(view, self.ended.clone());
            *extents = Some(started.map_err(|why| Failure(Errno::from_io_error(&why).unwrap_or(Errno::AGAIN)))?);
        }
        if !extents.as_ref().is_some_and(|extents| extents.ask(token, offset, len)) {
            return Err(Failure(Errno::BUSY));
        }
        self.in_progress.set(self.in_progress.get() + 1);
        Ok(())
    }

    /// Takes the commands that have ended.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn take_ended(&self, into: &mut Vec<Completed>) -> Result<(), Failure> {
        // It is signalled for what comes later.
        let _ = rustix::io::read(&self.ended, &mut [0; size_of::<u64>()]);
        if let Some(extents) = &*self.extents.borrow() {
            for (token, extent) in extents.answers.try_iter() {
                self.in_progress.set(self.in_progress.get() - 1);
                into.push(Completed { token, result: Ok(()), extent });
            }
        }
        let rbd = self.rbd();
        loop {
            let mut completions = [null_mut(); COMPLETIONS];
            let first = completions.as_mut_ptr();
            // SAFETY: the image is open, and at most so many pointers are written.
            let count =
                Failure::check(unsafe { (rbd.rbd_poll_io_events)(self.handle, first, COMPLETIONS as c_int) })? as usize;
            for completion in &completions[..count.min(COMPLETIONS)] {
                // SAFETY: a completion of `submit` has ended. Its argument is the box of `submit`, and it comes once.
                let (pending, result) = unsafe {
                    let result = (rbd.rbd_aio_get_return_value)(*completion);
                    let pending = Box::from_raw((rbd.rbd_aio_get_arg)(*completion).cast::<Pending>());
                    (rbd.rbd_aio_release)(*completion);
                    (pending, result)
                };
                self.in_progress.set(self.in_progress.get() - 1);
                // A read returns the number of its bytes: fewer if the image has become smaller.
                let result = match Failure::check(result.clamp(-4095, 0) as c_int) {
                    Ok(_) if result < pending.read => Err(Failure(Errno::IO)),
                    other => other.map(drop),
                };
                into.push(Completed { token: pending.token, result, extent: Extent::default() });
            }
            if count < COMPLETIONS {
                return Ok(());
            }
        }
    }

    /// Waits for the end of all commands.
    pub fn drain(&self) {
        self.drain_into(drop);
    }

    /// Waits for the end of all commands, and reports each.
    pub fn drain_into(&self, mut each: impl FnMut(Completed)) {
        let mut ended = Vec::new();
        while self.in_progress.get() > 0 {
            // An interrupted wait is repeated.
            let _ = poll(&mut [PollFd::new(&*self.ended, PollFlags::IN)], None);
            if self.take_ended(&mut ended).is_err() {
                // Without the library nothing reports an end; the memory must stay.
                std::process::abort();
            }
            ended.drain(..).for_each(&mut each);
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.drain();
        drop((self.extents.take(), self.space.take()));
        let rbd = self.rbd();
        // SAFETY: the image is open, no command is in progress, and no other thread uses it.
        unsafe {
            if let Some(watch) = self.watch.get() {
                (rbd.rbd_update_unwatch)(self.handle, watch);
            }
            (rbd.rbd_close)(self.handle);
        }
    }
}

//! A plug-in of tcmu-runner, and the device that it has opened.

#![allow(unsafe_code)]

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use lunar_handler::serve::{Device, Unit};
use lunar_handler::wire::{Status, features};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// The folders of plug-ins, the first of which counts: those of Debian and of Fedora, then those of a build.
const FOLDERS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu/tcmu-runner",
    "/usr/lib/aarch64-linux-gnu/tcmu-runner",
    "/usr/lib64/tcmu-runner",
    "/usr/lib/tcmu-runner",
    "/usr/local/lib64/tcmu-runner",
    "/usr/local/lib/tcmu-runner",
];

// SAFETY: the functions are those of `runner.c`, with the types that they have there.
unsafe extern "C" {
    safe fn lunar_tcmu_is_registered() -> bool;
    safe fn lunar_tcmu_has_blocks() -> bool;
    safe fn lunar_tcmu_has_unmap() -> bool;
    safe fn lunar_tcmu_name() -> *const c_char;
    safe fn lunar_tcmu_subtype() -> *const c_char;
    safe fn lunar_tcmu_config() -> *const c_char;
    fn lunar_tcmu_accepts(config: *const c_char, reason: *mut *mut c_char) -> bool;
    fn lunar_tcmu_open(config: *const c_char, bytes: u64, block_bytes: u32) -> *mut c_void;
    fn lunar_tcmu_close(device: *mut c_void);
    fn lunar_tcmu_read(device: *mut c_void, into: *mut c_void, bytes: usize, offset: u64) -> c_int;
    fn lunar_tcmu_write(device: *mut c_void, data: *mut c_void, bytes: usize, offset: u64) -> c_int;
    fn lunar_tcmu_flush(device: *mut c_void) -> c_int;
    fn lunar_tcmu_unmap(device: *mut c_void, offset: u64, bytes: u64) -> c_int;
    fn free(memory: *mut c_void);
}

/// The reason why a plug-in cannot serve.
#[derive(Debug)]
pub(crate) enum PluginError {
    /// There is none of this name in the folders.
    Missing(String),
    /// It cannot be loaded.
    Load(PathBuf, libloading::Error),
    /// Its `handler_init` returned this.
    Init(c_int),
    /// It serves SCSI commands, or nothing.
    NotBlocks,
    /// A text has a NUL.
    Nul,
    /// It refuses the configuration, with its reason.
    Refused(String),
    /// It cannot open its data.
    Open,
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(name) => {
                write!(f, "there is no handler_{name}.so in {}: install it, or give its path", FOLDERS.join(", "))
            }
            Self::Load(path, why) => write!(
                f,
                "{} cannot be loaded: {} (a plug-in of SCSI commands, or one that uses the inside of tcmu-runner, \
                 cannot be served)",
                path.display(),
                std::error::Error::source(why).map_or_else(|| why.to_string(), ToString::to_string)
            ),
            Self::Init(code) => write!(f, "handler_init of the plug-in returned {code}"),
            Self::NotBlocks => f.write_str("the plug-in does not read and write blocks: it cannot be served"),
            Self::Nul => f.write_str("the configuration has a NUL character"),
            Self::Refused(reason) => write!(f, "the plug-in refuses the configuration: {reason}"),
            Self::Open => f.write_str("the plug-in cannot open its data: see its messages above, and --size"),
        }
    }
}

impl std::error::Error for PluginError {}

/// The file of a plug-in by its path or by its name: `qcow` is `handler_qcow.so`.
fn file_of(name: &OsStr) -> Result<PathBuf, PluginError> {
    if Path::new(name).components().count() > 1 {
        return Ok(name.into());
    }
    let name = name.to_string_lossy();
    let in_folder = |folder: &&str| Path::new(folder).join(format!("handler_{name}.so"));
    FOLDERS.iter().map(in_folder).find(|file| file.exists()).ok_or_else(|| PluginError::Missing(name.into_owned()))
}

/// A text of the plug-in, which stays as long as it is loaded.
fn text(of: *const c_char) -> String {
    // SAFETY: the plug-in is registered, and its texts are constant, or empty.
    unsafe { CStr::from_ptr(of) }.to_string_lossy().into_owned()
}

/// A plug-in that is loaded. It stays loaded until the process ends: it may have started threads.
#[derive(Debug)]
pub(crate) struct Plugin(());

impl Plugin {
    /// Loads a plug-in by its path or by its name. A process has only one.
    pub(crate) fn load(name: &OsStr) -> Result<Self, PluginError> {
        let file = file_of(name)?;
        let failed = |why| PluginError::Load(file.clone(), why);
        // SAFETY: the operator trusts the plug-in with this process, which has nothing else. `handler_init` has this
        // type in all versions of the interface.
        let code = unsafe {
            let library = Library::open(Some(&file), RTLD_NOW | RTLD_LOCAL).map_err(failed)?;
            let init = library.get::<unsafe extern "C" fn() -> c_int>(b"handler_init\0").map_err(failed)?;
            let code = init();
            std::mem::forget(library);
            code
        };
        match code {
            0 if lunar_tcmu_is_registered() && lunar_tcmu_has_blocks() => Ok(Self(())),
            0 => Err(PluginError::NotBlocks),
            code => Err(PluginError::Init(code)),
        }
    }

    /// The name of the plug-in, and its description of the configuration.
    pub(crate) fn about(&self) -> (String, String) {
        (text(lunar_tcmu_name()), text(lunar_tcmu_config()))
    }

    /// Opens the data that the configuration names: `bytes` of them, in blocks of `block_bytes`.
    pub(crate) fn open(self, config: &str, bytes: u64, block_bytes: u32) -> Result<Opened, PluginError> {
        // Plug-ins look for their part behind the first slash.
        let config = format!("{}/{config}", text(lunar_tcmu_subtype()));
        let config = CString::new(config).map_err(|_| PluginError::Nul)?;
        let mut reason = std::ptr::null_mut();
        // SAFETY: the text ends with NUL, and `reason` is written before it is read.
        if !unsafe { lunar_tcmu_accepts(config.as_ptr(), &raw mut reason) } {
            let why = if reason.is_null() { "without a reason".to_owned() } else { text(reason) };
            // SAFETY: the memory is the caller's, from malloc, and is not used any more.
            unsafe { free(reason.cast()) };
            return Err(PluginError::Refused(why));
        }
        // SAFETY: the text ends with NUL, and is copied.
        let device = NonNull::new(unsafe { lunar_tcmu_open(config.as_ptr(), bytes, block_bytes) });
        let device = device.ok_or(PluginError::Open)?;
        let name = format!("tcmu {}", text(lunar_tcmu_subtype()));
        let handle = Arc::new(Mutex::new(Handle(device)));
        Ok(Opened { handle, name, bytes, block_bytes, has_failed: false, is_usable: true })
    }
}

/// The device that a plug-in has opened.
#[derive(Debug)]
struct Handle(NonNull<c_void>);

// SAFETY: one thread at a time calls the plug-in, and plug-ins are called from several threads in tcmu-runner, too.
unsafe impl Send for Handle {}

/// Closes the data of a plug-in, from another thread than the one that serves them.
#[derive(Debug)]
pub(crate) struct Closing(Arc<Mutex<Handle>>);

impl Closing {
    /// Closes the data after the call in progress, and ends the process: no other call begins.
    pub(crate) fn close_and_exit(self) -> ! {
        let handle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the device is open, and the lock, which stays, keeps all calls of it away.
        unsafe { lunar_tcmu_close(handle.0.as_ptr()) };
        std::process::exit(0)
    }
}

/// Data that a plug-in has opened.
#[derive(Debug)]
pub(crate) struct Opened {
    handle: Arc<Mutex<Handle>>,
    name: String,
    bytes: u64,
    block_bytes: u32,
    /// A flush has failed: the kernel may have lost data.
    has_failed: bool,
    /// The blocks of the volume are multiples of those of the plug-in.
    is_usable: bool,
}

impl Opened {
    /// The way to close the data at the end of the process.
    pub(crate) fn closing(&self) -> Closing {
        Closing(self.handle.clone())
    }

    /// Calls the plug-in with its device.
    fn call(&self, call: impl FnOnce(*mut c_void) -> c_int) -> Result<(), Status> {
        const OK: c_int = 0;
        const NOT_HANDLED: c_int = -1;
        if !self.is_usable {
            return Err(Status::FAILED);
        }
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        match call(handle.0.as_ptr()) {
            OK => Ok(()),
            NOT_HANDLED => Err(Status::UNSUPPORTED),
            _ => Err(Status::MEDIUM_ERROR),
        }
    }
}

impl Device for Opened {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.bytes
    }

    fn features(&self) -> u64 {
        if lunar_tcmu_has_unmap() { features::UNMAP } else { 0 }
    }

    fn begin(&mut self, unit: &Unit) {
        self.is_usable = unit.block_size.is_multiple_of(self.block_bytes);
        if !self.is_usable {
            eprintln!(
                "lunar-tcmu: volume {} has blocks of {} bytes, the plug-in of {}: give the volume block-size = {2}, or \
                 this program --block-size {1}",
                unit.name, unit.block_size, self.block_bytes
            );
        }
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Status> {
        // A plug-in that reads less than it says must not leave data of another command.
        into.fill(0);
        // SAFETY: the device is open; the plug-in writes to `into` until the call returns, and not behind it.
        self.call(|device| unsafe { lunar_tcmu_read(device, into.as_mut_ptr().cast(), into.len(), offset) })
    }

    fn write(&mut self, offset: u64, data: &[u8], durable: bool) -> Result<(), Status> {
        // SAFETY: the device is open; the plug-in reads `data` until the call returns, and does not write to it: the
        // interface has one type for both directions.
        self.call(|device| unsafe { lunar_tcmu_write(device, data.as_ptr().cast_mut().cast(), data.len(), offset) })?;
        if durable { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Status> {
        if self.has_failed {
            return Err(Status::MEDIUM_ERROR);
        }
        // SAFETY: the device is open.
        let result = self.call(|device| unsafe { lunar_tcmu_flush(device) });
        self.has_failed = result.is_err();
        result
    }

    fn unmap(&mut self, offset: u64, length: u64) -> Result<(), Status> {
        // SAFETY: the device is open.
        self.call(|device| unsafe { lunar_tcmu_unmap(device, offset, length) })
    }
}

//! The libraries libibverbs and librdmacm. They are loaded at run time, so that Lunar runs on machines without them.
//!
//! * here: the functions
//! * `layout`: the structures that both sides share
//! * [`manager`]: the connection manager: event channels, listeners, requests
//! * [`device`]: a device with the memory of a core
//! * [`pair`]: a queue pair with its completions
//! * [`status`]: why work has failed

#![allow(unsafe_code)]

pub mod device;
mod layout;
pub mod manager;
pub mod pair;
pub mod status;

use crate::error::DeviceError;
use layout::{
    Channel, CmEvent, CmId, CompletionQueue, ConnectionParam, Context, DeviceAttributes, EventQueue, MemoryRegion,
    PairAttributes, ProtectionDomain, RawDevice,
};
use libloading::Library;
use rustix::io::Errno;
use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::sync::OnceLock;

/// The libraries: the names are those of the ABI, and the packages those of Debian.
const VERBS: (&str, &str) = ("libibverbs.so.1", "libibverbs1");
const MANAGER: (&str, &str) = ("librdmacm.so.1", "librdmacm1");

/// Declares the functions of a library, and a table of them.
macro_rules! functions {
    ($(#[$about:meta])* $table:ident($file:expr) { $($function:ident($($argument:ty),*) -> $result:ty;)* }) => {
        $(#[$about])*
        struct $table {
            // SAFETY: this is a type; each call says why it is sound.
            $($function: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// The functions are in it.
            _library: Library,
        }

        impl $table {
            fn load() -> Result<Self, (&'static str, &'static str, String)> {
                let (file, package) = $file;
                // SAFETY: the initializers of both libraries have no conditions, and the types of the functions are
                // those of their headers.
                let load = || unsafe {
                    let library = Library::new(file)?;
                    Ok(Self {
                        $($function: *library.get(concat!(stringify!($function), "\0").as_bytes())?,)*
                        _library: library,
                    })
                };
                load().map_err(|why: libloading::Error| (file, package, why.to_string()))
            }
        }
    };
}

functions! {
    /// Functions of `infiniband/verbs.h`.
    Verbs(VERBS) {
        ibv_get_device_list(*mut c_int) -> *mut *mut RawDevice;
        ibv_free_device_list(*mut *mut RawDevice) -> ();
        ibv_query_device(*mut Context, *mut DeviceAttributes) -> c_int;
        ibv_alloc_pd(*mut Context) -> *mut ProtectionDomain;
        ibv_dealloc_pd(*mut ProtectionDomain) -> c_int;
        ibv_reg_mr(*mut ProtectionDomain, *mut c_void, usize, c_int) -> *mut MemoryRegion;
        ibv_dereg_mr(*mut MemoryRegion) -> c_int;
        ibv_create_comp_channel(*mut Context) -> *mut Channel;
        ibv_destroy_comp_channel(*mut Channel) -> c_int;
        ibv_create_cq(*mut Context, c_int, *mut c_void, *mut Channel, c_int) -> *mut CompletionQueue;
        ibv_destroy_cq(*mut CompletionQueue) -> c_int;
        ibv_get_cq_event(*mut Channel, *mut *mut CompletionQueue, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events(*mut CompletionQueue, c_uint) -> ();
    }
}

functions! {
    /// Functions of `rdma/rdma_cma.h`.
    Manager(MANAGER) {
        rdma_create_event_channel() -> *mut EventQueue;
        rdma_destroy_event_channel(*mut EventQueue) -> ();
        rdma_create_id(*mut EventQueue, *mut *mut CmId, *mut c_void, c_uint) -> c_int;
        rdma_destroy_id(*mut CmId) -> c_int;
        rdma_bind_addr(*mut CmId, *const c_void) -> c_int;
        rdma_listen(*mut CmId, c_int) -> c_int;
        rdma_accept(*mut CmId, *mut ConnectionParam) -> c_int;
        rdma_reject(*mut CmId, *const c_void, u8) -> c_int;
        rdma_disconnect(*mut CmId) -> c_int;
        rdma_create_qp(*mut CmId, *mut ProtectionDomain, *mut PairAttributes) -> c_int;
        rdma_destroy_qp(*mut CmId) -> ();
        rdma_get_cm_event(*mut EventQueue, *mut *mut CmEvent) -> c_int;
        rdma_ack_cm_event(*mut CmEvent) -> c_int;
    }
}

/// Both libraries.
pub struct Libraries {
    verbs: Verbs,
    manager: Manager,
}

/// The libraries of this process: they stay loaded, because types here refer to their functions.
///
/// A failure stays, too: a confined process would only find a worse reason.
static LOADED: OnceLock<Result<Libraries, (&'static str, &'static str, String)>> = OnceLock::new();

impl Libraries {
    /// The libraries, which are loaded by the first call.
    ///
    /// # Errors
    /// [`DeviceError::Library`].
    pub fn get() -> Result<&'static Self, DeviceError> {
        let load = || Ok(Self { verbs: Verbs::load()?, manager: Manager::load()? });
        let missing = |(file, package, why): &(&'static str, &'static str, String)| {
            DeviceError::Library(file, package, why.clone())
        };
        LOADED.get_or_init(load).as_ref().map_err(missing)
    }

    /// The number of RDMA devices. The first call with devices loads their drivers (packages such as
    /// `ibverbs-providers`), which a confined process cannot.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn devices(&self) -> io::Result<usize> {
        let mut count = 0;
        // SAFETY: the count is written.
        let list = unsafe { (self.verbs.ibv_get_device_list)(&raw mut count) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the list is one of this library, and is not used any more.
        unsafe { (self.verbs.ibv_free_device_list)(list) };
        Ok(usize::try_from(count).unwrap_or_default())
    }
}

impl std::fmt::Debug for Libraries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Libraries")
    }
}

/// Lets the functions of libibverbs that give something back also do so when its device is removed. The library reads
/// it when it looks for devices for the first time.
const RELEASE_REMOVED: &str = "RDMAV_ALLOW_DISASSOC_DESTROY";

/// Loads the libraries and the drivers of the devices that this machine has, before the process is confined, which it
/// cannot do later, and before any thread is started.
///
/// # Errors
/// [`DeviceError::Library`]; those of the operating system.
pub fn preload() -> io::Result<()> {
    // SAFETY: the process has no other thread yet, which could read the environment at the same time.
    unsafe { std::env::set_var(RELEASE_REMOVED, "1") };
    Libraries::get()?.devices().map(drop)
}

/// The result of a function that returns 0 or -1 with the error in `errno`.
fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The result of a function that returns 0 or an error number.
fn check_number(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        number => Err(Errno::from_raw_os_error(number.abs()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_its_package() {
        // SAFETY: there is no such library.
        let why = unsafe { Library::new("libnone-of-lunar.so.1") }.map(drop).expect_err("there is none");
        let words = DeviceError::Library(MANAGER.0, MANAGER.1, why.to_string()).to_string();
        assert!(words.contains("librdmacm.so.1") && words.contains("apt install librdmacm1"), "{words}");
    }

    #[test]
    fn libraries_have_all_functions() {
        match Libraries::get() {
            // On most machines of developers there is no device.
            Ok(libraries) => println!("{:?} devices", libraries.devices()),
            Err(why @ DeviceError::Library(..)) => println!("skipped: {why}"),
            Err(why) => panic!("{why}"),
        }
    }

    #[test]
    fn results_are_errors_of_the_system() {
        assert!(check(0).is_ok() && check_number(0).is_ok());
        let why = check_number(Errno::NOMEM.raw_os_error()).expect_err("an error");
        assert_eq!(Errno::from_io_error(&why), Some(Errno::NOMEM));
    }
}

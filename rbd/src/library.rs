//! The libraries of Ceph, librados and librbd. They are loaded when the program starts, because their licence (LGPL)
//! and their number of dependencies forbid linking them into a program that works without them.
//!
//! * here: the functions, and failures
//! * [`cluster`]: a connection to a cluster
//! * [`image`]: an open image
//! * [`images`]: makes and removes images and snapshots
//! * `view`: which parts of an image are allocated; `extents`: a thread that finds that out
//! * [`space`]: a thread that asks for the space of the pool

#![allow(unsafe_code)]

pub mod cluster;
mod extents;
pub mod image;
pub mod images;
pub mod space;
mod view;

use libloading::Library;
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use view::Each;

/// The names of the libraries: that of the ABI, which has not changed since 2010.
const RADOS: &str = "librados.so.2";
const RBD: &str = "librbd.so.1";

type Cluster = *mut c_void;
type Pool = *mut c_void;
type Handle = *mut c_void;
type Completion = *mut c_void;
type Options = *mut c_void;

/// `rbd_image_info_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Info {
    size: u64,
    object_size: u64,
    objects: u64,
    order: c_int,
    prefix: [c_char; 24],
    parent_pool: i64,
    parent: [c_char; 96],
}

/// `rbd_encryption_luks_format_options_t`, also for one version of LUKS, whose first member says the cipher.
#[repr(C)]
struct Passphrase {
    text: *const c_char,
    len: usize,
}

#[repr(C)]
struct CipherPassphrase {
    cipher: c_int,
    passphrase: Passphrase,
}

/// `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Watcher {
    address: *mut c_char,
    id: i64,
    cookie: u64,
}

/// `rbd_config_option_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ConfigOption {
    name: *mut c_char,
    value: *mut c_char,
    source: c_int,
}

/// Declares the functions of a library, and a table of them.
macro_rules! functions {
    ($(#[$about:meta])* $table:ident { $($function:ident($($argument:ty),*) -> $result:ty;)* }) => {
        $(#[$about])*
        struct $table {
            // SAFETY: this is a type; each call says why it is sound.
            $($function: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// The functions are in it.
            _library: Library,
        }

        impl $table {
            fn load(file: &str) -> Result<Self, libloading::Error> {
                // SAFETY: the initializers of the libraries of Ceph have no conditions, and the types of the functions
                // are those of their headers.
                unsafe {
                    let library = Library::new(file)?;
                    Ok(Self {
                        $($function: *library.get(concat!(stringify!($function), "\0").as_bytes())?,)*
                        _library: library,
                    })
                }
            }
        }
    };
}

functions! {
    /// Functions of `rados/librados.h`.
    Rados {
        rados_create(*mut Cluster, *const c_char) -> c_int;
        rados_conf_read_file(Cluster, *const c_char) -> c_int;
        rados_conf_set(Cluster, *const c_char, *const c_char) -> c_int;
        rados_connect(Cluster) -> c_int;
        rados_cluster_fsid(Cluster, *mut c_char, usize) -> c_int;
        rados_mon_command(
            Cluster, *const *const c_char, usize, *const c_char, usize,
            *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize
        ) -> c_int;
        rados_buffer_free(*mut c_char) -> ();
        rados_shutdown(Cluster) -> ();
        rados_ioctx_create(Cluster, *const c_char, *mut Pool) -> c_int;
        rados_ioctx_set_namespace(Pool, *const c_char) -> ();
        rados_set_pool_full_try(Pool) -> ();
        rados_ioctx_get_id(Pool) -> i64;
        rados_ioctx_destroy(Pool) -> ();
        rados_pool_reverse_lookup(Cluster, i64, *mut c_char, usize) -> c_int;
    }
}

functions! {
    /// Functions of `rbd/librbd.h`.
    Rbd {
        rbd_open(Pool, *const c_char, *mut Handle, *const c_char) -> c_int;
        rbd_open_read_only(Pool, *const c_char, *mut Handle, *const c_char) -> c_int;
        rbd_close(Handle) -> c_int;
        rbd_get_id(Handle, *mut c_char, usize) -> c_int;
        rbd_snap_get_id(Handle, *const c_char, *mut u64) -> c_int;
        rbd_stat(Handle, *mut Info, usize) -> c_int;
        rbd_get_features(Handle, *mut u64) -> c_int;
        rbd_get_flags(Handle, *mut u64) -> c_int;
        rbd_get_overlap(Handle, *mut u64) -> c_int;
        rbd_get_stripe_unit(Handle, *mut u64) -> c_int;
        rbd_get_stripe_count(Handle, *mut u64) -> c_int;
        rbd_diff_iterate2(Handle, *const c_char, u64, u64, u8, u8, Each, *mut c_void) -> c_int;
        rbd_encryption_load(Handle, c_int, *mut c_void, usize) -> c_int;
        rbd_metadata_get(Handle, *const c_char, *mut c_char, *mut usize) -> c_int;
        rbd_metadata_set(Handle, *const c_char, *const c_char) -> c_int;
        rbd_lock_acquire(Handle, c_int) -> c_int;
        rbd_lock_release(Handle) -> c_int;
        rbd_lock_get_owners(Handle, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
        rbd_lock_get_owners_cleanup(*mut *mut c_char, usize) -> ();
        rbd_watchers_list(Handle, *mut Watcher, *mut usize) -> c_int;
        rbd_watchers_list_cleanup(*mut Watcher, usize) -> ();
        rbd_config_image_list(Handle, *mut ConfigOption, *mut c_int) -> c_int;
        rbd_config_image_list_cleanup(*mut ConfigOption, c_int) -> ();
        rbd_lock_break(Handle, c_int, *const c_char) -> c_int;
        rbd_update_watch(Handle, *mut u64, extern "C" fn(*mut c_void), *mut c_void) -> c_int;
        rbd_update_unwatch(Handle, u64) -> c_int;
        rbd_set_image_notification(Handle, c_int, c_int) -> c_int;
        rbd_poll_io_events(Handle, *mut Completion, c_int) -> c_int;
        rbd_aio_create_completion(*mut c_void, *const c_void, *mut Completion) -> c_int;
        rbd_aio_get_return_value(Completion) -> isize;
        rbd_aio_get_arg(Completion) -> *mut c_void;
        rbd_aio_release(Completion) -> ();
        rbd_aio_read(Handle, u64, usize, *mut c_char, Completion) -> c_int;
        rbd_aio_write(Handle, u64, usize, *const c_char, Completion) -> c_int;
        rbd_aio_flush(Handle, Completion) -> c_int;
        rbd_aio_discard(Handle, u64, u64, Completion) -> c_int;
        rbd_aio_write_zeroes(Handle, u64, usize, Completion, c_int, c_int) -> c_int;
        rbd_image_options_create(*mut Options) -> ();
        rbd_image_options_destroy(Options) -> ();
        rbd_image_options_set_uint64(Options, c_int, u64) -> c_int;
        rbd_image_options_set_string(Options, c_int, *const c_char) -> c_int;
        rbd_create4(Pool, *const c_char, u64, Options) -> c_int;
        rbd_clone3(Pool, *const c_char, *const c_char, Pool, *const c_char, Options) -> c_int;
        rbd_remove(Pool, *const c_char) -> c_int;
        rbd_get_data_pool_id(Handle) -> i64;
        rbd_snap_create(Handle, *const c_char) -> c_int;
        rbd_snap_remove(Handle, *const c_char) -> c_int;
        rbd_snap_protect(Handle, *const c_char) -> c_int;
        rbd_snap_unprotect(Handle, *const c_char) -> c_int;
    }
}

/// Both libraries.
pub struct Libraries {
    rados: Rados,
    rbd: Rbd,
}

impl Libraries {
    /// Loads them.
    ///
    /// # Errors
    /// When one is not installed, or does not have a function.
    pub fn load() -> Result<Self, MissingLibrary> {
        let missing = |file: &'static str| move |why| MissingLibrary { file, why };
        Ok(Self { rados: Rados::load(RADOS).map_err(missing(RADOS))?, rbd: Rbd::load(RBD).map_err(missing(RBD))? })
    }
}

/// A library cannot be used.
#[derive(Debug)]
pub struct MissingLibrary {
    file: &'static str,
    why: libloading::Error,
}

impl fmt::Display for MissingLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, why } = self;
        write!(
            f,
            "{file} cannot be loaded: {why}. Install librbd1 (Debian, Ubuntu) or librbd (Fedora), version 16 or later"
        )
    }
}

impl std::error::Error for MissingLibrary {}

/// A failure that a library has reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure(pub Errno);

impl Failure {
    /// The result of a function that returns zero or more, or a negative number of an error.
    fn check(result: c_int) -> Result<c_int, Self> {
        if result < 0 { Err(Self(Errno::from_raw_os_error(-result))) } else { Ok(result) }
    }

    /// Whether the client is on the block list, or has lost the exclusive lock by force: it cannot write any more.
    #[must_use]
    pub fn is_fenced(self) -> bool {
        matches!(self.0, Errno::SHUTDOWN | Errno::ROFS)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_fenced() {
            return f.write_str("the cluster does not accept commands of this client any more (block list)");
        }
        self.0.fmt(f)
    }
}

impl std::error::Error for Failure {}

//! A connection to a cluster, and a pool of it.

use super::{Failure, Libraries};
use rustix::io::Errno;
use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::ptr::null_mut;
use std::rc::Rc;

/// Options of the library for every connection, before those of the operator:
///
/// * Initiators read ahead themselves.
/// * The library waits no longer for a monitor than an operator who looks at the log; a process that ends has a thread
///   that waits for one.
const OPTIONS: [(&CStr, &CStr); 3] =
    [(c"rbd_readahead_max_bytes", c"0"), (c"client_mount_timeout", c"30"), (c"rados_mon_op_timeout", c"30")];
/// Options that no data is safe without. Those of an image or a pool win over them, so an image is refused if they have
/// other values.
///
/// * Without a cache, a write is on the medium when it ends, and no other client reads old data.
/// * A client whose lock is taken away executes no command any more.
pub(super) const REQUIRED: [(&CStr, &CStr); 2] = [(c"rbd_cache", c"false"), (c"rbd_blocklist_on_break_lock", c"true")];

/// Bytes of the identifier of a cluster, a UUID, with a zero.
const FSID_BYTES: usize = 37;
/// Bytes of the name of a pool at most, with a zero. The cluster has no limit but that of a message.
const POOL_BYTES_MAX: usize = 4096;

/// The address of a cluster, and the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// The user, without `client.`.
    pub user: CString,
    /// The configuration file; `None`: the places where the library looks.
    pub file: Option<CString>,
    /// Options of the library.
    pub options: Vec<(CString, CString)>,
}

/// Why a cluster cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClusterError {
    /// The configuration file cannot be read.
    File(Failure),
    /// The library does not have this option, or not this value of it.
    Option(CString, Failure),
    /// The cluster does not answer, or does not admit the user.
    Connect(Failure),
    /// The pool cannot be opened.
    Pool(Failure),
}

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(why) => write!(f, "the configuration of Ceph cannot be read: {why}. Name it with --conf"),
            Self::Option(name, why) => write!(f, "option {} is refused: {why}", name.to_string_lossy()),
            Self::Connect(why) => {
                write!(
                    f,
                    "no connection to the cluster: {why}. Check the monitors in ceph.conf, the user and its keyring"
                )
            }
            Self::Pool(why) => write!(f, "the pool cannot be opened: {why}"),
        }
    }
}

impl std::error::Error for ClusterError {}

/// A connection.
pub struct Cluster {
    pub(super) libraries: Rc<Libraries>,
    pub(super) handle: *mut c_void,
}

impl Cluster {
    /// Connects; it waits for a monitor.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn connect(libraries: &Rc<Libraries>, access: &Access) -> Result<Self, ClusterError> {
        let rados = &libraries.rados;
        let mut handle = null_mut();
        // SAFETY: the handle is written, and the user is a string.
        Failure::check(unsafe { (rados.rados_create)(&raw mut handle, access.user.as_ptr()) })
            .map_err(ClusterError::Connect)?;
        let cluster = Self { libraries: libraries.clone(), handle };
        let file = access.file.as_ref().map_or(std::ptr::null(), |file| file.as_ptr());
        // SAFETY: the handle is one, and the file is a string or null.
        Failure::check(unsafe { (rados.rados_conf_read_file)(handle, file) }).map_err(ClusterError::File)?;
        let own = OPTIONS.iter().copied();
        for (name, value) in own.chain(access.options.iter().map(|(name, value)| (&**name, &**value))).chain(REQUIRED) {
            // SAFETY: the handle is one, and both are strings.
            Failure::check(unsafe { (rados.rados_conf_set)(handle, name.as_ptr(), value.as_ptr()) })
                .map_err(|why| ClusterError::Option(name.to_owned(), why))?;
        }
        // SAFETY: the handle is one.
        Failure::check(unsafe { (rados.rados_connect)(handle) }).map_err(ClusterError::Connect)?;
        Ok(cluster)
    }

    /// The identifier of the cluster.
    pub(super) fn fsid(&self) -> Result<String, Failure> {
        let mut text = [0_u8; FSID_BYTES];
        // SAFETY: the cluster is connected, and at most so many bytes are written.
        Failure::check(unsafe {
            (self.libraries.rados.rados_cluster_fsid)(self.handle, text.as_mut_ptr().cast(), FSID_BYTES)
        })?;
        let text = CStr::from_bytes_until_nul(&text).map_err(|_| Failure(Errno::RANGE))?;
        Ok(text.to_string_lossy().into_owned())
    }

    /// The name of the pool with this number.
    pub(super) fn pool_name(&self, number: i64) -> Result<CString, Failure> {
        let mut text = [0_u8; POOL_BYTES_MAX];
        // SAFETY: the cluster is connected, and at most so many bytes are written.
        Failure::check(unsafe {
            (self.libraries.rados.rados_pool_reverse_lookup)(
                self.handle,
                number,
                text.as_mut_ptr().cast(),
                POOL_BYTES_MAX,
            )
        })?;
        Ok(CStr::from_bytes_until_nul(&text).map_err(|_| Failure(Errno::RANGE))?.to_owned())
    }

    /// Opens a pool.
    ///
    /// # Errors
    /// [`ClusterError::Pool`].
    pub fn pool(self: &Rc<Self>, name: &CStr, namespace: &CStr) -> Result<Pool, ClusterError> {
        let rados = &self.libraries.rados;
        let mut handle = null_mut();
        // SAFETY: the cluster is connected, the name is a string, and the handle is written.
        Failure::check(unsafe { (rados.rados_ioctx_create)(self.handle, name.as_ptr(), &raw mut handle) })
            .map_err(ClusterError::Pool)?;
        // SAFETY: the handle is one, and the namespace is a string. A full pool is an error of a write then, and the
        // write does not wait for space.
        unsafe {
            (rados.rados_ioctx_set_namespace)(handle, namespace.as_ptr());
            (rados.rados_set_pool_full_try)(handle);
        }
        Ok(Pool { cluster: self.clone(), handle })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: pools keep the cluster, so none is open.
        unsafe { (self.libraries.rados.rados_shutdown)(self.handle) };
    }
}

/// A pool, or a namespace of it.
pub struct Pool {
    pub(super) cluster: Rc<Cluster>,
    pub(super) handle: *mut c_void,
}

impl Pool {
    /// Its number in the cluster.
    pub(super) fn number(&self) -> i64 {
        // SAFETY: the pool is open.
        unsafe { (self.cluster.libraries.rados.rados_ioctx_get_id)(self.handle) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: images keep the pool, so none is open.
        unsafe { (self.cluster.libraries.rados.rados_ioctx_destroy)(self.handle) };
    }
}

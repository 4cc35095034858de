//! Images and snapshots: how they are made and removed.

use super::cluster::Pool;
use super::image::{EXCLUSIVE_LOCK, Image};
use super::{Failure, Options, Rbd};
use std::ffi::{CStr, CString, c_int};
use std::ptr::null_mut;

/// `RBD_IMAGE_OPTION_FEATURES_SET`.
const FEATURES_SET: c_int = 8;
/// `RBD_IMAGE_OPTION_DATA_POOL`.
const DATA_POOL: c_int = 10;

/// Options for a new image.
struct NewOptions<'a> {
    rbd: &'a Rbd,
    handle: Options,
}

impl<'a> NewOptions<'a> {
    fn new(rbd: &'a Rbd) -> Self {
        let mut handle = null_mut();
        // SAFETY: the handle is written.
        unsafe { (rbd.rbd_image_options_create)(&raw mut handle) };
        Self { rbd, handle }
    }

    fn number(self, option: c_int, value: u64) -> Result<Self, Failure> {
        // SAFETY: the handle is one.
        Failure::check(unsafe { (self.rbd.rbd_image_options_set_uint64)(self.handle, option, value) })?;
        Ok(self)
    }

    fn text(self, option: c_int, value: &CStr) -> Result<Self, Failure> {
        // SAFETY: the handle is one, and the value is a string, which the library copies.
        Failure::check(unsafe { (self.rbd.rbd_image_options_set_string)(self.handle, option, value.as_ptr()) })?;
        Ok(self)
    }
}

impl Drop for NewOptions<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is one, and nothing uses it any more.
        unsafe { (self.rbd.rbd_image_options_destroy)(self.handle) };
    }
}

impl Pool {
    fn rbd(&self) -> &Rbd {
        &self.cluster.libraries.rbd
    }

    /// Makes an image of so many bytes, with the features that the cluster gives to new images, and the exclusive lock.
    ///
    /// # Errors
    /// Errors of the library; `EEXIST` when there is an image of this name.
    pub fn create_image(&self, name: &CStr, size: u64) -> Result<(), Failure> {
        let options = NewOptions::new(self.rbd()).number(FEATURES_SET, EXCLUSIVE_LOCK)?;
        // SAFETY: the pool is open, the name is a string, and the options are some.
        Failure::check(unsafe { (self.rbd().rbd_create4)(self.handle, name.as_ptr(), size, options.handle) }).map(drop)
    }

    /// Makes an image as a clone of a snapshot, with the features of its image. Its data comes to the pool that the
    /// data of that image is in.
    ///
    /// # Errors
    /// Errors of the library; `EEXIST` when there is an image of this name, `EINVAL` when the cluster admits clients
    /// before Ceph 13 and the snapshot is not protected, `ENOSYS` when the image does not have the feature layering.
    pub fn clone_image(
        &self,
        name: &CStr,
        (pool, image, snapshot): (&Self, &CStr, &CStr),
        data_pool: Option<&CStr>,
    ) -> Result<(), Failure> {
        let options = NewOptions::new(self.rbd());
        let options = match data_pool {
            Some(data_pool) => options.text(DATA_POOL, data_pool)?,
            None => options,
        };
        // SAFETY: both pools are open, the names are strings, and the options are some.
        Failure::check(unsafe {
            (self.rbd().rbd_clone3)(
                pool.handle,
                image.as_ptr(),
                snapshot.as_ptr(),
                self.handle,
                name.as_ptr(),
                options.handle,
            )
        })
        .map(drop)
    }

    /// Removes an image.
    ///
    /// # Errors
    /// Errors of the library; `EBUSY` as long as a client has it open.
    pub fn remove_image(&self, name: &CStr) -> Result<(), Failure> {
        // SAFETY: the pool is open, and the name is a string.
        Failure::check(unsafe { (self.rbd().rbd_remove)(self.handle, name.as_ptr()) }).map(drop)
    }
}

impl Image {
    /// The name of the pool that its data is in, if that is another one than its own.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn data_pool(&self) -> Result<Option<CString>, Failure> {
        let number = self.data_pool_number();
        if number == self.pool.number() {
            return Ok(None);
        }
        self.pool.cluster.pool_name(number).map(Some)
    }

    /// Makes a snapshot of it, also while another client has its lock: that client stops its writes for it.
    ///
    /// # Errors
    /// Errors of the library; `EEXIST` when it has a snapshot of this name.
    pub fn create_snapshot(&self, name: &CStr) -> Result<(), Failure> {
        // SAFETY: the image is open, and the name is a string.
        Failure::check(unsafe { (self.rbd().rbd_snap_create)(self.handle, name.as_ptr()) }).map(drop)
    }

    /// Removes a snapshot. Clones of it keep its data if it is not protected.
    ///
    /// # Errors
    /// Errors of the library; `EBUSY` when it is protected.
    pub fn remove_snapshot(&self, name: &CStr) -> Result<(), Failure> {
        // SAFETY: the image is open, and the name is a string.
        Failure::check(unsafe { (self.rbd().rbd_snap_remove)(self.handle, name.as_ptr()) }).map(drop)
    }

    /// Protects a snapshot from being removed.
    ///
    /// # Errors
    /// Errors of the library; `EBUSY` when it is protected.
    pub fn protect_snapshot(&self, name: &CStr) -> Result<(), Failure> {
        // SAFETY: the image is open, and the name is a string.
        Failure::check(unsafe { (self.rbd().rbd_snap_protect)(self.handle, name.as_ptr()) }).map(drop)
    }

    /// Ends the protection of a snapshot.
    ///
    /// # Errors
    /// Errors of the library; `EBUSY` when it has clones.
    pub fn unprotect_snapshot(&self, name: &CStr) -> Result<(), Failure> {
        // SAFETY: the image is open, and the name is a string.
        Failure::check(unsafe { (self.rbd().rbd_snap_unprotect)(self.handle, name.as_ptr()) }).map(drop)
    }
}

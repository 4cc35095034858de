//! A device, with the memory of a core.

use super::layout::{
    Channel, CompletionQueue, Context, DeviceAttributes, LOCAL_WRITE, MEM_MGT_EXTENSIONS, MemoryRegion,
    ProtectionDomain,
};
use super::manager::Identifier;
use super::{Libraries, check_number};
use crate::error::DeviceError;
use lunar_core::mem::{Arena, Slice};
use rustix::io::Errno;
use std::ffi::c_void;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::rc::Rc;

/// Limits of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Requests in a queue.
    pub requests: usize,
    /// Pieces of memory of a message, or of a write.
    pub pieces: usize,
    /// Pieces of memory of a READ.
    pub read_pieces: usize,
    /// Entries of a completion queue.
    pub completions: usize,
    /// READs that are outstanding.
    pub reads: u8,
    /// Whether a message can invalidate a key of the peer.
    pub invalidates: bool,
}

/// A device, with the memory of a core.
pub struct Device {
    pub(super) libraries: &'static Libraries,
    pub(super) context: *mut Context,
    pub(super) domain: *mut ProtectionDomain,
    region: *mut MemoryRegion,
    pub(super) lkey: u32,
    pub(super) arena: Arena,
    limits: Limits,
    /// The library keeps the context as long as an identifier of the device exists.
    _keeper: Rc<Identifier>,
}

impl Device {
    /// Opens the device of a listener, and registers the memory of a core: for the device, and not for peers. All pages
    /// are present from then on.
    ///
    /// # Errors
    /// [`DeviceError::Memory`], [`DeviceError::Call`].
    pub fn open(keeper: &Rc<Identifier>, arena: &Arena) -> Result<Rc<Self>, DeviceError> {
        let libraries = keeper.libraries();
        let verbs = &libraries.verbs;
        // SAFETY: the identifier is bound, and has the context of its device.
        let context = unsafe { keeper.raw().as_ref().verbs };
        let mut attributes = MaybeUninit::<DeviceAttributes>::zeroed();
        // SAFETY: the context is that of a device, and the attributes are written; zeroes are attributes as well.
        let attributes = unsafe {
            check_number((verbs.ibv_query_device)(context, attributes.as_mut_ptr()))
                .map_err(|why| DeviceError::Call("ibv_query_device", why))?;
            attributes.assume_init()
        };
        let size = |number: i32| usize::try_from(number).unwrap_or_default();
        let limits = Limits {
            requests: size(attributes.max_qp_wr),
            pieces: size(attributes.max_sge),
            read_pieces: size(attributes.max_sge_rd),
            completions: size(attributes.max_cqe),
            reads: attributes.max_qp_init_rd_atom.clamp(0, 255) as u8,
            invalidates: attributes.capabilities & MEM_MGT_EXTENSIONS != 0,
        };
        // SAFETY: the context is that of a device.
        let domain = unsafe { (verbs.ibv_alloc_pd)(context) };
        if domain.is_null() {
            return Err(DeviceError::Call("ibv_alloc_pd", io::Error::last_os_error()));
        }
        let mut device = Self {
            libraries,
            context,
            domain,
            region: null_mut(),
            lkey: 0,
            arena: arena.clone(),
            limits,
            _keeper: keeper.clone(),
        };
        let (base, len) = arena.extent();
        device.region = device.register(base.cast(), len).map_err(|why| DeviceError::Memory(len, why))?;
        // SAFETY: the region is registered until this value drops.
        device.lkey = unsafe { (*device.region).lkey };
        Ok(Rc::new(device))
    }

    /// Its limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The memory of the core.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Whether a piece is in the memory of the core, and so can be sent in place.
    #[must_use]
    pub fn has(&self, piece: &Slice) -> bool {
        let (base, len) = self.arena.extent();
        let at = piece.as_ptr().addr();
        at >= base.addr() && at + piece.len() <= base.addr() + len
    }

    pub(super) fn register(&self, base: *mut c_void, len: usize) -> io::Result<*mut MemoryRegion> {
        // SAFETY: the memory is this process's own, and callers keep it until the region is given back. The device
        // writes to parts of it only on requests.
        let region = unsafe { (self.libraries.verbs.ibv_reg_mr)(self.domain, base, len, LOCAL_WRITE) };
        if region.is_null() { Err(io::Error::last_os_error()) } else { Ok(region) }
    }

    pub(super) fn unregister(&self, region: *mut MemoryRegion) {
        // SAFETY: the region is one, and no work uses it any more: queue pairs are destroyed before.
        unsafe { (self.libraries.verbs.ibv_dereg_mr)(region) };
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !self.region.is_null() {
            self.unregister(self.region);
        }
        // SAFETY: queue pairs keep the device, so none is left, and neither is a region.
        unsafe { (self.libraries.verbs.ibv_dealloc_pd)(self.domain) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({:?})", self.limits)
    }
}

/// Reports which completion queues have completions, after they were armed.
pub struct CompletionChannel {
    pub(super) raw: *mut Channel,
    device: Rc<Device>,
}

impl CompletionChannel {
    /// Opens a channel whose [`CompletionChannel::next`] does not wait.
    ///
    /// # Errors
    /// [`DeviceError::Call`].
    pub fn open(device: &Rc<Device>) -> Result<Rc<Self>, DeviceError> {
        // SAFETY: the context is that of a device.
        let raw = unsafe { (device.libraries.verbs.ibv_create_comp_channel)(device.context) };
        let failed = |why| DeviceError::Call("ibv_create_comp_channel", why);
        if raw.is_null() {
            return Err(failed(io::Error::last_os_error()));
        }
        let channel = Self { raw, device: device.clone() };
        rustix::io::ioctl_fionbio(channel.fd(), true).map_err(|why| failed(why.into()))?;
        Ok(Rc::new(channel))
    }

    /// The descriptor: readable when a queue has completions.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open as long as this value exists.
        unsafe { BorrowedFd::borrow_raw((*self.raw).fd) }
    }

    /// The number of the next pair whose queue has completions, if there is one. It is armed no longer.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn next(&self) -> io::Result<Option<u32>> {
        let verbs = &self.device.libraries.verbs;
        let (mut queue, mut number): (*mut CompletionQueue, *mut c_void) = (null_mut(), null_mut());
        // SAFETY: the channel is open, and both are written.
        if unsafe { (verbs.ibv_get_cq_event)(self.raw, &raw mut queue, &raw mut number) } != 0 {
            let why = io::Error::last_os_error();
            return match Errno::from_io_error(&why) {
                Some(Errno::AGAIN | Errno::INTR) => Ok(None),
                _ => Err(why),
            };
        }
        // SAFETY: the event is one of this queue, which exists: its end waits for this call.
        unsafe { (verbs.ibv_ack_cq_events)(queue, 1) };
        Ok(u32::try_from(number.addr()).ok())
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: queue pairs keep the channel, so it has no queue.
        unsafe { (self.device.libraries.verbs.ibv_destroy_comp_channel)(self.raw) };
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CompletionChannel")
    }
}

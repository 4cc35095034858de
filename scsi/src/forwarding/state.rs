//! The properties of a device that Lunar follows, and the terms on which it is shared.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The terms on which a device is shared. They are configured.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Terms {
    /// Whether one nexus at a time has the device: see `possession`.
    pub exclusive: bool,
    /// Operation codes that are forwarded although they are refused otherwise
    /// ([`Forwarding::Refused`](crate::policy::Forwarding)).
    pub allowed: BTreeSet<u8>,
}

/// The properties of a device that commands change, as far as Lunar has to know them. One for all cores.
#[derive(Debug)]
pub struct DeviceFacts {
    /// Whether the device is to be asked before the next command that depends on them.
    is_stale: AtomicBool,
    /// D_SENSE: descriptor format sense data.
    descriptor_sense: AtomicBool,
    /// Bytes of a block; zero: not known, or blocks of a tape differ in length.
    block_length: AtomicU32,
    /// Whether the device was told that removal is prevented.
    is_removal_prevented: AtomicBool,
    /// Whether the device has reported that it has no medium.
    is_empty: AtomicBool,
}

impl Default for DeviceFacts {
    fn default() -> Self {
        Self {
            is_stale: AtomicBool::new(true),
            descriptor_sense: AtomicBool::default(),
            block_length: AtomicU32::default(),
            is_removal_prevented: AtomicBool::default(),
            is_empty: AtomicBool::default(),
        }
    }
}

impl DeviceFacts {
    /// The properties may have changed: the device is asked before they are needed again.
    pub fn expire(&self) {
        self.is_stale.store(true, Ordering::Release);
    }

    /// The device was reset or came back: it does not prevent removal any more, and all other properties may differ.
    pub fn reset(&self) {
        self.is_removal_prevented.store(false, Ordering::Release);
        self.expire();
    }

    /// Whether the device is to be asked; it counts as asked then.
    pub(crate) fn take_stale(&self) -> bool {
        self.is_stale.swap(false, Ordering::AcqRel)
    }

    /// D_SENSE of the control mode page: whether the device returns sense data in descriptor format.
    #[must_use]
    pub fn is_descriptor_sense(&self) -> bool {
        self.descriptor_sense.load(Ordering::Relaxed)
    }

    pub(crate) fn set_descriptor_sense(&self, value: bool) {
        self.descriptor_sense.store(value, Ordering::Relaxed);
    }

    pub(crate) fn block_length(&self) -> u32 {
        self.block_length.load(Ordering::Relaxed)
    }

    pub(crate) fn set_block_length(&self, bytes: u32) {
        self.block_length.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn is_removal_prevented(&self) -> bool {
        self.is_removal_prevented.load(Ordering::Acquire)
    }

    pub(crate) fn set_removal_prevented(&self, value: bool) {
        self.is_removal_prevented.store(value, Ordering::Release);
    }

    /// Sets whether the device has no medium; returns whether that is new.
    pub(crate) fn set_empty(&self, value: bool) -> bool {
        self.is_empty.load(Ordering::Relaxed) != value && self.is_empty.swap(value, Ordering::Relaxed) != value
    }
}

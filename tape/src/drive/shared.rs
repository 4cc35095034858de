//! A drive that its own logical unit and the changer use.

use super::{Drive, DriveFacts};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A drive, and what the changer says about it without waiting for a command of the drive.
#[derive(Debug)]
pub struct SharedDrive {
    drive: Mutex<Drive>,
    designator: Vec<u8>,
    /// [`Drive::is_prevented`] after its last command.
    is_prevented: AtomicBool,
}

impl SharedDrive {
    /// An empty drive.
    #[must_use]
    pub fn new(facts: DriveFacts) -> Arc<Self> {
        let drive = Drive::new(facts);
        let designator = drive.designator();
        Arc::new(Self { drive: Mutex::new(drive), designator, is_prevented: AtomicBool::new(false) })
    }

    /// Waits for the end of the command that the drive executes.
    pub fn lock(&self) -> LockedDrive<'_> {
        let drive = self.drive.lock().unwrap_or_else(PoisonError::into_inner);
        LockedDrive { drive, is_prevented: &self.is_prevented }
    }

    /// Whether an initiator prevents the removal of the cartridge.
    #[must_use]
    pub fn is_prevented(&self) -> bool {
        self.is_prevented.load(Ordering::Acquire)
    }

    /// The designator that names the drive in element status.
    #[must_use]
    pub fn designator(&self) -> &[u8] {
        &self.designator
    }
}

/// A drive that executes no other command meanwhile.
#[derive(Debug)]
pub struct LockedDrive<'a> {
    drive: MutexGuard<'a, Drive>,
    is_prevented: &'a AtomicBool,
}

impl Deref for LockedDrive<'_> {
    type Target = Drive;

    fn deref(&self) -> &Drive {
        &self.drive
    }
}

impl DerefMut for LockedDrive<'_> {
    fn deref_mut(&mut self) -> &mut Drive {
        &mut self.drive
    }
}

impl Drop for LockedDrive<'_> {
    fn drop(&mut self) {
        self.is_prevented.store(self.drive.is_prevented(), Ordering::Release);
    }
}

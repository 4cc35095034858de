//! Namespaces that hosts create (NVMe Base 2.0 8.11): the pools that they take capacity from, and the requests of
//! hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The LBA formats of namespaces that hosts create, in the order of Identify: bytes of a block.
pub const FORMATS: [u32; 2] = [512, 4096];

/// A pool of capacity that hosts create namespaces from.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Pool {
    /// The name. Hosts of one pool create, attach and delete the same namespaces.
    pub name: Arc<str>,
    /// Bytes that all namespaces of the pool may have together.
    pub capacity: u64,
    /// Bytes that are left.
    pub left: u64,
    /// Namespaces that there may be of the pool.
    pub namespaces_max: u32,
    /// The volumes of the namespaces that a new controller of a host is attached to, by NQN of the host in lower case.
    pub attached: BTreeMap<Arc<str>, BTreeSet<[u8; 16]>>,
    /// The volumes of private namespaces, which one controller at a time may be attached to.
    pub private: BTreeSet<[u8; 16]>,
}

impl Pool {
    /// The volumes that a new controller of this host is attached to.
    #[must_use]
    pub fn of_host(&self, host: &str) -> BTreeSet<[u8; 16]> {
        self.attached.get(&*host.to_ascii_lowercase()).cloned().unwrap_or_default()
    }
}

/// A namespace that a host has created: its identifier, and the UUID of its volume.
pub type Name = (u32, [u8; 16]);

/// The operation of Namespace Management or Namespace Attachment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NamespaceOperation {
    /// Creates a namespace, without attaching it.
    Create {
        /// Blocks.
        blocks: u64,
        /// Bytes of a block: one of [`FORMATS`].
        block_size: u32,
        /// Whether only one controller at a time may be attached to it.
        private: bool,
    },
    /// Detaches these namespaces from all controllers, and deletes them with their data.
    Delete(Vec<Name>),
    /// Attaches controllers to a namespace, or detaches them.
    Attach {
        /// The namespace.
        namespace: Name,
        /// The controllers.
        controllers: Vec<u16>,
        /// Whether they are attached.
        attach: bool,
    },
}

/// A request of a host to manage namespaces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The NQN of the subsystem.
    pub subsystem: Arc<str>,
    /// The name of the pool.
    pub pool: Arc<str>,
    /// The NQN of the host.
    pub host: Arc<str>,
    /// The operation.
    pub operation: NamespaceOperation,
}

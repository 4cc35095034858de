//! An open namespace, for all cores, and whether it is still there.

use crate::open::Limits;
use crate::resolve::{Nodes, instance_of};
use crate::store::NvmeStore;
use lunar_control::value::Size;
use lunar_core::io::{Store, Traits};
use lunar_engine::backend::{Condition, Mark, StoreTrouble};
use lunar_reactor::Reactor;
use lunar_reactor::block_device::{device_bytes, queue_limit};
use lunar_reactor::nvme_generic::Node;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// An open namespace, or a partition of it.
#[derive(Clone, Debug)]
pub(crate) struct NvmeVolume {
    pub(crate) shared: Arc<Shared>,
    /// While it is open, no other program can mount the disk or partition.
    pub(crate) claim: Option<Arc<OwnedFd>>,
    /// Its mark when it was opened.
    pub(crate) mark: Mark,
    pub(crate) traits: Traits,
    pub(crate) limits: Limits,
}

/// The state that all cores share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The configured path, for the log.
    pub(crate) path: PathBuf,
    pub(crate) nodes: Nodes,
    pub(crate) node: Node,
    pub(crate) state: Arc<State>,
}

/// The findings about the namespace since it was opened.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The name, for the log.
    name: String,
    /// Whether it has gone: it may come back, but this open node does not.
    is_gone: AtomicBool,
    /// The statuses that the log has.
    logged: Mutex<BTreeSet<u16>>,
}

impl State {
    pub(crate) fn new(name: String) -> Arc<Self> {
        Arc::new(Self { name, ..Self::default() })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    pub(crate) fn set_gone(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    /// Whether the log does not have this status yet: each is logged once, so that a broken disk does not fill the log.
    pub(crate) fn is_new(&self, status: u16) -> bool {
        self.logged.lock().unwrap_or_else(PoisonError::into_inner).insert(status)
    }
}

impl NvmeVolume {
    /// The store of one core.
    pub(crate) fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        let namespace = self.shared.node.attach(reactor)?;
        let state = self.shared.state.clone();
        let nodes = &self.shared.nodes;
        let identity = (nodes.disk, nodes.instance);
        Ok(Box::new(NvmeStore::new(reactor, namespace, identity, self.traits.clone(), self.limits, state)))
    }

    /// Looks at the namespace by what the kernel knows: it is not asked itself.
    pub(crate) fn examine(&self) -> Vec<StoreTrouble> {
        let Shared { path, nodes, .. } = &*self.shared;
        let name = path.display();
        let trouble =
            |condition, words, remedy: &str| vec![StoreTrouble { condition, words, remedy: remedy.to_owned() }];
        let has = device_bytes(nodes.device).unwrap_or(0);
        if self.shared.state.is_gone() || has == 0 || instance_of(nodes.disk).unwrap_or(0) != nodes.instance {
            // Another disk may have its number now: then this one does not come back under it.
            self.shared.state.set_gone();
            let remedy = "connect it again: `nvme list` and `lsblk` show the namespaces that are there";
            return trouble(Condition::Gone, format!("the namespace {name} is gone"), remedy);
        }
        let block = queue_limit(nodes.disk, "logical_block_size");
        if block.is_some_and(|block| block != u64::from(self.limits.block_bytes)) {
            self.shared.state.set_gone();
            let words = format!("the namespace {name} was formatted with blocks of another size");
            return trouble(Condition::Gone, words, "format it as before, or serve it as a new volume");
        }
        if has < self.traits.size {
            let sizes = format!("{} of {}", Size(has), Size(self.traits.size));
            let words = format!("the namespace {name} became smaller while it was served: {sizes}");
            return trouble(Condition::Truncated, words, "give it its size back, and restart Lunar");
        }
        Vec::new()
    }
}

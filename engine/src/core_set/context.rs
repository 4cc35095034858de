//! The resources of a core that a front on it may use.

use super::mesh::CoreMesh;
use lunar_blk::BlockSet;
use lunar_nvme::Subsystem;
use lunar_reactor::Reactor;
use lunar_scsi::Target;
use lunar_unit::CoreUnits;
use std::fmt;
use std::rc::Rc;

/// One core, as its fronts see it.
#[derive(Clone)]
pub struct CoreContext {
    /// Its index.
    pub index: usize,
    /// Runs its tasks.
    pub reactor: Reactor,
    /// The messages to the other cores, and its units.
    pub mesh: Rc<CoreMesh>,
    /// The state of its units.
    pub units: Rc<CoreUnits>,
    /// Its view of the SCSI target.
    pub target: Rc<Target>,
    /// Its view of the NVM subsystems.
    pub subsystem: Rc<Subsystem>,
    /// Its units and clients of the block command set.
    pub block: Rc<BlockSet>,
}

impl fmt::Debug for CoreContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CoreContext({})", self.index)
    }
}

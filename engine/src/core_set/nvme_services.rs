//! The requests of the NVM subsystems of a core to the other cores and to the namespace manager.

use super::mesh::CoreMesh;
use crate::namespace_requests::NamespaceRequests;
use lunar_nvme::namespace_management::Request;
use lunar_nvme::{Status, SubsystemServices};
use lunar_reactor::Reactor;
use lunar_unit::LocalFuture;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// The requests of the NVM subsystems of a core to the other cores and to the namespace manager.
pub(super) struct NvmeServices {
    pub(super) reactor: Reactor,
    pub(super) mesh: Rc<CoreMesh>,
    pub(super) requests: Arc<NamespaceRequests>,
}

impl fmt::Debug for NvmeServices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NvmeServices")
    }
}

impl SubsystemServices for NvmeServices {
    fn manage(&self, request: Request) -> LocalFuture<'static, Result<u32, Status>> {
        self.requests.ask(&self.reactor, request)
    }

    fn abort(&self, controller: u16, queue: u16, command: u16) -> LocalFuture<'static, bool> {
        let mesh = self.mesh.clone();
        Box::pin(async move { mesh.abort_command([controller, queue, command]).await })
    }
}

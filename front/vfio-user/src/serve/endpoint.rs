//! Where virtual machines find their controllers, and who may open the sockets.

use lunar_nvme::Tenant;
use lunar_reactor::unix::Permission;
use std::path::PathBuf;

/// A socket at which a virtual machine finds its controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Name of the virtual machine, for logs.
    pub name: String,
    /// Path of the socket.
    pub path: PathBuf,
    /// The users that may open the socket.
    pub permission: Permission,
    /// The host that the virtual machine is, and what it sees.
    pub tenant: Tenant,
}

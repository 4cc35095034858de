//! The part `nvme-rdma`: the NVMe host of Linux over its software RoCE.

use anyhow::Result;

use super::rdma::Part;
use crate::target::{Driver, Lab};

/// The NQN of the subsystem.
const NQN: &str = "nqn.2026-01.io.lunar.conform:rdma";

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let settings = format!("NQN={NQN}\nPORT=4420\n");
    let modules = &["nvme_tcp", "nvme_rdma"];
    Part { name: "nvme-rdma", modules, configuration: configuration(), settings }.run(lab, driver)
}

fn configuration() -> String {
    format!(
        "[target.main]\nnqn = \"{NQN}\"\nportal-groups = [\"p\"]\n\
         [group.all]\ntargets = [\"main\"]\ninitiators = [\"*\"]\n\
         luns = {{ 0 = \"disk\", 1 = \"memory\" }}\n\
         [nvme-rdma.lan]\naddress = \"192.168.77.1\"\nportal-group = \"p\"\n\
         [portal.tcp]\nprotocol = \"nvme-tcp\"\naddress = \"192.168.77.1:4420\"\ngroup = \"p\"\n",
    )
}

//! The part `nvme-rdma`: the NVMe host of Linux over its software RoCE.

use anyhow::Result;

use super::authentication::{CONTROLLER_KEY, HOST, HOST_KEY, OTHER_KEY};
use super::rdma::Part;
use crate::target::{Driver, Lab};

/// The NQN of the subsystem, and of one that authenticates hosts.
const NQN: &str = "nqn.2026-01.io.lunar.conform:rdma";
const SECRET_NQN: &str = "nqn.2026-01.io.lunar.conform:secret";

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let settings = format!(
        "NQN={NQN}\nPORT=4420\nSECRET_NQN={SECRET_NQN}\nHOSTNQN={HOST}\nHOST_KEY={HOST_KEY}\n\
         CONTROLLER_KEY={CONTROLLER_KEY}\nOTHER_KEY={OTHER_KEY}\n"
    );
    let modules = &["nvme_tcp", "nvme_rdma"];
    Part { name: "nvme-rdma", modules, configuration: configuration(), settings }.run(lab, driver)
}

fn configuration() -> String {
    format!(
        "[target.main]\nnqn = \"{NQN}\"\nportal-groups = [\"p\"]\n\
         [group.all]\ntargets = [\"main\"]\ninitiators = [\"*\"]\n\
         luns = {{ 0 = \"disk\", 1 = \"memory\" }}\n\
         [user.\"{HOST}\"]\nsecret = \"{HOST_KEY}\"\n[user.own]\nsecret = \"{CONTROLLER_KEY}\"\n\
         [target.secret]\nnqn = \"{SECRET_NQN}\"\nportal-groups = [\"p\"]\nauthentication = \"mutual-chap\"\n\
         users = [\"{HOST}\"]\nmutual-user = \"own\"\n\
         dhchap-hashes = [\"sha256\"]\ndhchap-groups = [\"ffdhe2048\"]\n\
         [group.known]\ntargets = [\"secret\"]\ninitiators = [\"{HOST}\"]\nluns = {{ 0 = \"memory\" }}\n\
         [nvme-rdma.lan]\naddress = \"192.168.77.1\"\nportal-group = \"p\"\n\
         [portal.tcp]\nprotocol = \"nvme-tcp\"\naddress = \"192.168.77.1:4420\"\ngroup = \"p\"\n",
    )
}

//! The part `iser`: the iSCSI initiator of Linux over its software RoCE.

use anyhow::Result;

use super::rdma::Part;
use crate::target::{Driver, Lab};

/// The name of the target, and of one that authenticates initiators.
const TARGET: &str = "iqn.2026-01.io.lunar.conform:iser";
const SECRET_TARGET: &str = "iqn.2026-01.io.lunar.conform:secret";
/// The first one, for NVMe hosts.
const NQN: &str = "nqn.2026-01.io.lunar.conform:iser";
/// A user of the second one.
const USER: (&str, &str) = ("alice", "secret-of-alice");

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let (user, secret) = USER;
    let settings = format!(
        "TARGET={TARGET}\nSECRET_TARGET={SECRET_TARGET}\nPORTAL=192.168.77.1:3260\nCHAP_USER={user}\n\
         CHAP_SECRET={secret}\nNQN={NQN}\n"
    );
    // Also the other protocol that is served at the same address, and RDMA for programs.
    let modules = &["ib_iser", "nvme_rdma", "rdma_ucm"];
    Part { name: "iser", modules, configuration: configuration(), settings }.run(lab, driver)
}

fn configuration() -> String {
    let (user, secret) = USER;
    format!(
        "[volume.suite]\nkind = \"ram\"\nsize = \"30M\"\n\
         [target.main]\niqn = \"{TARGET}\"\nnqn = \"{NQN}\"\nportal-groups = [\"p\"]\n\
         [target.secret]\niqn = \"{SECRET_TARGET}\"\nportal-groups = [\"p\"]\n\
         authentication = \"chap\"\nusers = [\"{user}\"]\n\
         [user.{user}]\nsecret = \"{secret}\"\n\
         [group.all]\ntargets = [\"main\"]\ninitiators = [\"*\"]\n\
         luns = {{ 0 = \"disk\", 1 = \"memory\", 2 = \"suite\" }}\n\
         [group.known]\ntargets = [\"secret\"]\ninitiators = [\"*\"]\n\
         luns = {{ 0 = \"memory\" }}\n\
         [iser.lan]\naddress = \"192.168.77.1\"\nportal-group = \"p\"\n\
         [nvme-rdma.lan]\naddress = \"192.168.77.1\"\nportal-group = \"p\"\n\
         [portal.tcp]\naddress = \"192.168.77.1:3260\"\ngroup = \"p\"\n",
    )
}

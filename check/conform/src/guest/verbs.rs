//! The part `verbs`: the initiators of Linux for SRP, iSER and NVMe/RDMA, and a target on the RDMA device of the same
//! guest, which is one in software.

use anyhow::Result;

use super::rdma::Part;
use crate::target::{Driver, Lab};

/// The names of the target, and the identifier of its SRP port.
const TARGET: &str = "iqn.2026-01.io.lunar.conform:verbs";
const NQN: &str = "nqn.2026-01.io.lunar.conform:verbs";
const GUID: &str = "505400fffe123401";
/// The address of the device.
const ADDRESS: &str = "192.168.77.2";

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let word = driver.name().replace('_', "-");
    let settings = format!("TARGET={TARGET}\nNQN={NQN}\nGUID={GUID}\nADDRESS={ADDRESS}\nDRIVER={word}\n");
    // Also RDMA for programs.
    let modules = &["ib_srp", "ib_iser", "nvme_rdma", "rdma_ucm"];
    Part { name: "verbs", modules, configuration: configuration(), settings }.run(lab, driver)
}

fn configuration() -> String {
    let place = format!("address = \"{ADDRESS}\"\nlink = \"verbs\"\nportal-group = \"p\"\n");
    format!(
        "[target.main]\niqn = \"{TARGET}\"\nnqn = \"{NQN}\"\nportal-groups = [\"p\"]\n\
         [group.all]\ntargets = [\"main\"]\ninitiators = [\"*\"]\n\
         luns = {{ 0 = \"disk\", 1 = \"memory\" }}\n\
         [srp.lan]\n{place}target = \"main\"\nguid = \"{GUID}\"\n\
         [iser.lan]\n{place}[nvme-rdma.lan]\n{place}",
    )
}

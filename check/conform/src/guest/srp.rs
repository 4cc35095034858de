//! The part `srp`: the initiator of Linux for SRP (ib_srp) over its software RoCE.

use anyhow::Result;

use super::rdma::Part;
use crate::target::{Driver, Lab};

/// The name of the target, the GUID of its port, and the port identifier of the initiator.
const TARGET: &str = "iqn.2026-01.io.lunar.conform:srp";
const GUID: &str = "505400fffe123401";
const INITIATOR: &str = "0x0000000000000000505400fffe123402";
/// The address of a second network, for iSCSI.
const PORTAL: &str = "192.168.78.1:3260";

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let settings = format!("GUID={GUID}\nINITIATOR={INITIATOR}\nTARGET={TARGET}\nPORTAL={PORTAL}\n");
    Part { name: "srp", modules: &["ib_srp"], configuration: configuration(), settings }.run(lab, driver)
}

/// Volumes of the initiator, and one of another initiator; one of the former over iSCSI, too, which is not optimized.
fn configuration() -> String {
    format!(
        "[target.main]\niqn = \"{TARGET}\"\nportal-groups = [\"p\", \"q\"]\n\
         [portal-group.q]\ntag = 2\nalua-state = \"active-non-optimized\"\n\
         [portal.tcp]\naddress = \"{PORTAL}\"\ngroup = \"q\"\n\
         [group.iscsi]\ntargets = [\"main\"]\ninitiators = [\"iqn.*\"]\nluns = {{ 0 = \"disk\" }}\n\
         [group.rdma]\ntargets = [\"main\"]\ninitiators = [\"{INITIATOR}\"]\n\
         luns = {{ 0 = \"disk\", 1 = \"memory\" }}\n\
         [group.others]\ntargets = [\"main\"]\ninitiators = [\"0x1*\"]\nluns = {{ 5 = \"memory\" }}\n\
         [srp.lan]\naddress = \"192.168.77.1\"\ntarget = \"main\"\nportal-group = \"p\"\nguid = \"{GUID}\"\n",
    )
}

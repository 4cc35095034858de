//! The part `iser`: the iSCSI initiator of Linux over its software RoCE.

use anyhow::Result;

use super::rdma::Part;
use crate::target::{Driver, Lab};

/// The name of the target, and of one that authenticates initiators.
const TARGET: &str = "iqn.2026-01.io.lunar.conform:iser";
const SECRET_TARGET: &str = "iqn.2026-01.io.lunar.conform:secret";
/// A user of the latter.
const USER: (&str, &str) = ("alice", "secret-of-alice");

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let (user, secret) = USER;
    let settings = format!(
        "TARGET={TARGET}\nSECRET_TARGET={SECRET_TARGET}\nPORTAL=192.168.77.1:3260\nCHAP_USER={user}\n\
         CHAP_SECRET={secret}\n"
    );
    Part { name: "iser", module: "ib_iser", configuration: configuration(), settings }.run(lab, driver)
}

fn configuration() -> String {
    let (user, secret) = USER;
    format!(
        "[target.main]\niqn = \"{TARGET}\"\nportal-groups = [\"p\"]\n\
         [target.secret]\niqn = \"{SECRET_TARGET}\"\nportal-groups = [\"p\"]\nauthentication = \"chap\"\nusers = [\"{user}\"]\n\
         [user.{user}]\nsecret = \"{secret}\"\n\
         [group.all]\ntargets = [\"main\"]\ninitiators = [\"*\"]\n\
         luns = {{ 0 = \"disk\", 1 = \"memory\" }}\n\
         [group.known]\ntargets = [\"secret\"]\ninitiators = [\"*\"]\n\
         luns = {{ 0 = \"memory\" }}\n\
         [iser.lan]\naddress = \"192.168.77.1\"\nportal-group = \"p\"\n\
         [portal.tcp]\naddress = \"192.168.77.1:3260\"\ngroup = \"p\"\n",
    )
}

//! The part `nvme-rdma`: the NVMe host of Linux over its software RoCE, to a target with a UDP socket, and to one with
//! addresses of its own on links of the guest.

use anyhow::{Context, Result};

use super::authentication::{CONTROLLER_KEY, HOST, HOST_KEY, OTHER_KEY};
use super::lan::{self, LanGuest, Run};
use super::rdma::Part;
use super::sysroot;
use crate::relay::RelayFaults;
use crate::target::{Driver, Lab, Spec};

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
    // In the short form, the other guest has an address on a link as well.
    if lab.whole {
        lan::part_with(sysroot::ensure_with_rdma, (lab, driver, "nvme-rdma"), |guest| run_on_links(guest, driver))?;
    }
    Part { name: "nvme-rdma", modules, configuration: configuration(), settings }.run(lab, driver)
}

/// The addresses of the target and of the guest on their links.
const V4: [&str; 2] = ["192.168.77.1", "192.168.77.2"];
const V6: [&str; 2] = ["fd00:77::1", "fd00:77::2"];
/// The MAC addresses of the guest.
const CARDS: [&str; 2] = ["52:54:00:12:34:02", "52:54:00:12:34:03"];
/// The modules besides those of all guests. Software RoCE requests its check by name.
const MODULES: [&str; 3] = ["crc32_generic?", "rdma_rxe", "nvme_rdma"];

/// Runs the guest with two links, at each of which the target has an address.
fn run_on_links(guest: &LanGuest<'_>, driver: Driver) -> Result<()> {
    let (folder, mut spec) = (guest.folder(), Spec::new(driver, Vec::<String>::new())?);
    let ([target4, own4], [target6, own6], at) = (V4, V6, folder.display());
    spec.daemon = Some(guest.configure(&format!(
        "[server]\ncores = 2\nmemory = \"64M\"\ndriver = \"{}\"\nstate = \"{at}/state\"\n\
         [volume.disk]\nkind = \"file\"\npath = \"{at}/disk.img\"\nsize = \"64M\"\n\
         [portal-group.p]\ntag = 1\n[portal.one]\naddress = \"{}\"\ngroup = \"p\"\n\
         [target.main]\niqn = \"iqn.2026-01.io.lunar.conform:rdma\"\nnqn = \"{NQN}\"\nportal-groups = [\"p\"]\n\
         [group.all]\ntargets = [\"main\"]\ninitiators = [\"*\"]\nluns = {{ 0 = \"disk\" }}\n\
         [nvme-rdma.four]\naddress = \"{target4}/24\"\nlink = \"unix:{at}/target,{at}/target-relay\"\n\
         portal-group = \"p\"\nmtu = 4200\n\
         [nvme-rdma.six]\naddress = \"{target6}/64\"\nlink = \"unix:{at}/target2,{at}/target2-relay\"\n\
         portal-group = \"p\"\nmtu = 4200\n",
        driver.name().replace('_', "-"),
        spec.portal(),
    ))?);
    let modules = folder.join("modules-of-guest");
    guest.write_modules(&MODULES, &modules.join("modules"))?;
    let settings = format!("NQN={NQN}\nTARGET4={target4}\nOWN4={own4}\nTARGET6={target6}\nOWN6={own6}\n");
    let (counted, more) = ("frames were lost", Some(("test/rdma", &*modules)));
    let run = Run { script: "nvme-rdma-link.sh", macs: &CARDS, settings, counted, more };
    let calm = RelayFaults { loss: 0, duplicates: 0, late: 0 };
    let _second = guest.relay(1, calm)?;
    guest.boot(&spec, &run, &guest.relay(0, calm)?, &mut |line, relay, _| {
        line.strip_prefix("@loss ").map(|loss| {
            relay.set(RelayFaults { loss: loss.parse().context("the loss is a number")?, ..calm });
            Ok(())
        })
    })
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
         [nvme-rdma.link]\naddress = \"192.168.77.3/24\"\nlink = \"rdma1\"\nportal-group = \"p\"\n\
         [portal.tcp]\nprotocol = \"nvme-tcp\"\naddress = \"192.168.77.1:4420\"\ngroup = \"p\"\n",
    )
}

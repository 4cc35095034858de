//! The part `srp`: the initiator of Linux for SRP (ib_srp) over its software RoCE (rdma_rxe). The target runs in the
//! same guest, in a network namespace of its own, with a pair of virtual interfaces between them: its sockets are those
//! of a real kernel, which loses packets when the script says so.

use std::path::Path;

use anyhow::{Context, Result};

use super::modules::Modules;
use super::ublk::copy_program;
use super::{Script, Targets, sysroot};
use crate::target::{Driver, Lab, Spec};

/// The modules besides those of all guests, with their dependencies. Software RoCE requests its check by name.
const MODULES: [&str; 5] = ["veth", "sch_netem", "crc32_generic?", "rdma_rxe", "ib_srp"];
/// The name of the target, the GUID of its port, and the port identifier of the initiator.
const TARGET: &str = "iqn.2026-01.io.lunar.conform:srp";
const GUID: &str = "505400fffe123401";
const INITIATOR: &str = "0x0000000000000000505400fffe123402";

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("srp/{}", driver.name());
    let program = lab.built()?.to_owned();
    let mut found = None;
    lab.report.check(&part, "packages for the guest", || {
        found = Some(sysroot::ensure_with_rdma(&lab.report)?);
        Ok(())
    });
    let Some(sysroot) = found else { return Ok(()) };
    let folder = lab.scratch.join("srp");
    std::fs::create_dir_all(&folder)?;
    let more = Some(("test/srp", &*folder));
    let script = Script { name: "srp", is_service: false, part: &part, driver, sysroot: &sysroot, processors: 1, more };
    lab.report.check(&part, "guest ran to its end", || {
        copy_program(&program, &folder)?;
        write_modules(&sysroot.modules, &folder.join("modules"))?;
        std::fs::write(folder.join("lunar.toml"), configuration(driver))?;
        let settings = format!("GUID={GUID}\nINITIATOR={INITIATOR}\n");
        let nothing = Spec::new(driver, Vec::<String>::new())?;
        script.run(lab, Targets { main: None, spec: nothing, others: Vec::new(), settings, growth: None })
    });
    Ok(())
}

/// Writes the modules, with names in the order in which they are loaded.
fn write_modules(all: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for (at, module) in Modules::open(all)?.in_order(&MODULES)?.into_iter().enumerate() {
        let file = to.join(format!("{at:03}-{}.ko", module.name));
        std::fs::write(&file, module.image).with_context(|| format!("{}", file.display()))?;
    }
    Ok(())
}

/// The daemon's configuration: a volume in a file and one in memory; a volume of another initiator.
fn configuration(driver: Driver) -> String {
    format!(
        "[server]\ncores = 1\nmemory = \"64M\"\ndriver = \"{}\"\nstate = \"/tmp/state\"\n\
         [volume.disk]\nkind = \"file\"\npath = \"/tmp/disk.img\"\nsize = \"64M\"\n\
         [volume.memory]\nkind = \"ram\"\nsize = \"64M\"\n\
         [portal-group.p]\ntag = 1\n\
         [target.main]\niqn = \"{TARGET}\"\nportal-groups = [\"p\"]\n\
         [group.rdma]\ntargets = [\"main\"]\ninitiators = [\"{INITIATOR}\"]\n\
         luns = {{ 0 = \"disk\", 1 = \"memory\" }}\n\
         [group.others]\ntargets = [\"main\"]\ninitiators = [\"0x1*\"]\nluns = {{ 5 = \"memory\" }}\n\
         [srp.lan]\naddress = \"192.168.77.1\"\ntarget = \"main\"\nguid = \"{GUID}\"\n",
        driver.name().replace('_', "-"),
    )
}

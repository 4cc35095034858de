//! Guests with software RoCE of Linux (rdma_rxe). The target runs in the same guest, in a network namespace of its own,
//! with a pair of virtual interfaces between them: its sockets are those of a real kernel, which loses packets when the
//! script says so.

use anyhow::Result;

use super::modules::write_modules;
use super::ublk::copy_program;
use super::{Script, Targets, sysroot};
use crate::target::{Driver, Lab, Spec};

/// The modules besides those of all guests, with their dependencies. Software RoCE requests its check by name.
const MODULES: [&str; 4] = ["veth", "sch_netem", "crc32_generic?", "rdma_rxe"];

/// One part.
pub(super) struct Part<'a> {
    /// The name of the part and of its script.
    pub name: &'a str,
    /// The modules of the initiator.
    pub modules: &'a [&'a str],
    /// The configuration of the daemon, without its server and volumes: `disk` and `memory`, and the portal group `p`.
    pub configuration: String,
    /// Settings of the script.
    pub settings: String,
}

impl Part<'_> {
    /// Runs the part.
    pub(super) fn run(&self, lab: &Lab, driver: Driver) -> Result<()> {
        let part = format!("{}/{}", self.name, driver.name());
        let program = lab.built()?.to_owned();
        let mut found = None;
        lab.report.check(&part, "packages for the guest", || {
            found = Some(sysroot::ensure_with_rdma(&lab.report)?);
            Ok(())
        });
        let Some(sysroot) = found else { return Ok(()) };
        let folder = lab.scratch.join(self.name);
        std::fs::create_dir_all(&folder)?;
        let more = Some(("test/rdma", &*folder));
        let script =
            Script { name: self.name, is_service: false, part: &part, driver, sysroot: &sysroot, processors: 1, more };
        lab.report.check(&part, "guest ran to its end", || {
            copy_program(&program, &folder)?;
            let names: Vec<&str> = MODULES.iter().chain(self.modules).copied().collect();
            write_modules(&sysroot.modules, &names, &folder.join("modules"))?;
            std::fs::write(folder.join("lunar.toml"), self.whole_configuration(driver))?;
            let (settings, nothing) = (self.settings.clone(), Spec::new(driver, Vec::<String>::new())?);
            script.run(lab, Targets { main: None, spec: nothing, others: Vec::new(), settings, growth: None })
        });
        Ok(())
    }

    /// The daemon's configuration: a volume in a file and one in memory.
    fn whole_configuration(&self, driver: Driver) -> String {
        format!(
            "[server]\ncores = 1\nmemory = \"64M\"\ndriver = \"{}\"\nstate = \"/tmp/state\"\n\
             [api]\nsocket = \"/tmp/lunar.sock\"\n\
             [volume.disk]\nkind = \"file\"\npath = \"/tmp/disk.img\"\nsize = \"64M\"\n\
             [volume.memory]\nkind = \"ram\"\nsize = \"64M\"\n\
             [portal-group.p]\ntag = 1\n{}",
            driver.name().replace('_', "-"),
            self.configuration,
        )
    }
}

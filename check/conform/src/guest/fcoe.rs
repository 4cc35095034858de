//! The parts `fcoe` and `fabric`: the initiator of Linux for Fibre Channel over Ethernet (fcoe, libfcoe, libfc), with
//! and without a switch. The link of the guest is a pair of Unix sockets. Between them is a relay, which loses frames
//! when the script says so, or a switch.

use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::lan::{self, LanGuest, Run, Wire};
use crate::handler::{self, Handler};
use crate::relay::RelayFaults;
use crate::switch::{Event, FcoeSwitch};
use crate::target::{Driver, HOST_AS_GUEST_SEES_IT, Lab, Spec};

/// The target's name over iSCSI.
const TARGET: &str = "iqn.2026-01.io.lunar.conform:fcoe";
/// The MAC address of the guest, and the name of its port.
const GUEST: &str = "52:54:00:12:34:02";
const INITIATOR: &str = "20:00:52:54:00:12:34:02";
/// The MAC address and the port name of its second card.
const SECOND_GUEST: &str = "52:54:00:12:34:03";
const SECOND_INITIATOR: &str = "20:00:52:54:00:12:34:03";
/// Names of the target port: larger and smaller than that of the guest. The port with the larger name sends PLOGI.
const LARGER: &str = "50:00:00:00:00:12:34:01";
const SMALLER: &str = "10:00:00:00:00:12:34:01";
/// The name of the second target port.
const SECOND: &str = "50:00:00:00:00:12:34:05";

/// Runs the part `fcoe`.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    lan::part((lab, driver, "fcoe"), |guest| run(guest, driver))
}

/// Runs the part `fabric`.
pub(crate) fn fabric(lab: &Lab, driver: Driver) -> Result<()> {
    lan::part((lab, driver, "fabric"), |guest| run_fabric(guest, driver))
}

impl Wire for FcoeSwitch {
    fn count(&self) -> u64 {
        self.forwarded()
    }
}

/// Writes the daemon's configuration: a volume in a file over iSCSI and over Fibre Channel, and one in memory; without
/// a switch also one of a handler, and a second port; a volume of another initiator.
fn configure(guest: &LanGuest<'_>, spec: &Spec, wwpn: &str, mode: &str) -> Result<PathBuf> {
    let (folder, portal) = (guest.folder().display(), spec.portal());
    let (more, lun) = match mode {
        "vn2vn" => (
            format!(
                "[volume.slow]\nkind = \"handler\"\npath = \"{folder}/slow.sock\"\nsize = \"64M\"\n\
                 command-timeout = \"5s\"\n\
                 [portal-group.r]\ntag = 3\n\
                 [fcoe.second]\nlink = \"unix:{folder}/target2,{folder}/target2-relay\"\n\
                 target = \"main\"\nportal-group = \"r\"\nmtu = 2500\nwwpn = \"{SECOND}\"\n"
            ),
            ", 2 = \"slow\"",
        ),
        _ => (String::new(), ""),
    };
    let text = format!(
        "[server]\ncores = 2\nmemory = \"32M\"\ndriver = \"{}\"\nstate = \"{folder}/state\"\n\
         [volume.disk]\nkind = \"file\"\npath = \"{folder}/disk.img\"\nsize = \"64M\"\n\
         [volume.memory]\nkind = \"ram\"\nsize = \"64M\"\n\
         {more}\
         [portal-group.p]\ntag = 1\n[portal-group.q]\ntag = 2\nalua-state = \"active-non-optimized\"\n\
         [portal.one]\naddress = \"{portal}\"\nadvertise = \"{HOST_AS_GUEST_SEES_IT}:{}\"\ngroup = \"p\"\n\
         [target.main]\niqn = \"{TARGET}\"\nportal-groups = [\"p\"]\n\
         [group.iscsi]\ntargets = [\"main\"]\ninitiators = [\"iqn.*\"]\nluns = {{ 0 = \"disk\" }}\n\
         [group.channel]\ntargets = [\"main\"]\ninitiators = [\"{INITIATOR}\", \"{SECOND_INITIATOR}\"]\n\
         luns = {{ 0 = \"disk\", 1 = \"memory\"{lun} }}\n\
         [group.others]\ntargets = [\"main\"]\ninitiators = [\"21:*\"]\nluns = {{ 5 = \"memory\" }}\n\
         [fcoe.lan]\nlink = \"unix:{folder}/target,{folder}/target-relay\"\n\
         target = \"main\"\nportal-group = \"q\"\nmtu = 2500\nwwpn = \"{wwpn}\"\nmode = \"{mode}\"\n",
        spec.driver.name().replace('_', "-"),
        portal.port(),
    );
    guest.configure(&text)
}

fn run(guest: &LanGuest<'_>, driver: Driver) -> Result<()> {
    let mut spec = Spec::new(driver, Vec::<String>::new())?;
    spec.daemon = Some(configure(guest, &spec, LARGER, "vn2vn")?);
    let calm = RelayFaults { loss: 0, duplicates: 0, late: 0 };
    let port = spec.portal().port();
    let settings = format!(
        "PORTAL={HOST_AS_GUEST_SEES_IT}:{port}\nTARGET={TARGET}\nLARGER={LARGER}\nSMALLER={SMALLER}\n\
         SECOND={SECOND}\nINITIATOR={INITIATOR}\n"
    );
    let handler = Handler::on(handler::compile(guest.folder())?, guest.folder().join("slow.sock"))?;
    let counted = "frames were lost";
    let run = Run { script: "fcoe.sh", macs: &[GUEST, SECOND_GUEST], settings, counted, more: None };
    let _second = guest.relay(1, calm)?;
    guest.boot(&spec, &run, &guest.relay(0, calm)?, &mut |line, relay, target| match line {
        "@stop" => Some(handler.signal(Signal::STOP)),
        "@continue" => Some(handler.signal(Signal::CONT)),
        "@smaller" => Some(
            configure(guest, &spec, SMALLER, "vn2vn").and_then(|_| target.context("no target")?.signal(Signal::HUP)),
        ),
        line => line.strip_prefix("@loss ").map(|loss| {
            let loss = loss.parse().context("the loss is a number")?;
            relay.set(RelayFaults { loss, ..calm });
            Ok(())
        }),
    })
}

fn run_fabric(guest: &LanGuest<'_>, driver: Driver) -> Result<()> {
    let mut spec = Spec::new(driver, Vec::<String>::new())?;
    spec.daemon = Some(configure(guest, &spec, LARGER, "fabric")?);
    let settings = format!("LARGER={LARGER}\n");
    let counted = "frames were forwarded by the switch";
    let run = Run { script: "fabric.sh", macs: &[GUEST], settings, counted, more: None };
    guest.boot(&spec, &run, &FcoeSwitch::start(guest.ends(0))?, &mut |line, switch, _| {
        let event = match line {
            "@switch restart" => Event::Restart,
            "@switch clear" => Event::Clear,
            _ => return None,
        };
        switch.make(event);
        Some(Ok(()))
    })
}

//! The part `aoe`: the initiator of Linux for ATA over Ethernet. The link of the guest is a pair of Unix sockets, with
//! a relay between them that loses, duplicates and delays frames.

use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::lan::{self, LanGuest, Run};
use crate::relay::RelayFaults;
use crate::target::{Driver, HOST_AS_GUEST_SEES_IT, Lab, Spec};

/// The target's name over iSCSI.
const TARGET: &str = "iqn.2026-01.io.lunar.conform:aoe";
/// One frame of a hundred is lost, some are duplicated or overtaken.
const FAULTS: RelayFaults = RelayFaults { loss: 10, duplicates: 5, late: 5 };
/// The MAC address of the guest.
const GUEST: &str = "52:54:00:12:34:02";

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    lan::part((lab, driver, "aoe"), |guest| run(guest, driver))
}

/// Writes the daemon's configuration: a volume in a file over iSCSI and over two shelves, one of which is for
/// another station.
fn configure(guest: &LanGuest<'_>, spec: &Spec, size: &str) -> Result<PathBuf> {
    let (folder, portal) = (guest.folder().display(), spec.portal());
    let text = format!(
        "[server]\ncores = 2\nmemory = \"32M\"\ndriver = \"{}\"\nstate = \"{folder}/state\"\n\
         [volume.disk]\nkind = \"file\"\npath = \"{folder}/disk.img\"\nsize = \"{size}\"\n\
         [volume.memory]\nkind = \"ram\"\nsize = \"64M\"\n[portal-group.p]\ntag = 1\n\
         [portal.one]\naddress = \"{portal}\"\nadvertise = \"{HOST_AS_GUEST_SEES_IT}:{}\"\ngroup = \"p\"\n\
         [target.main]\niqn = \"{TARGET}\"\nportal-groups = [\"p\"]\n\
         [group.iscsi]\ntargets = [\"main\"]\ninitiators = [\"iqn.*\"]\nluns = {{ 0 = \"disk\" }}\n\
         [group.stations]\ntargets = [\"main\"]\ninitiators = [\"{GUEST}\"]\n\
         luns = {{ 0 = \"disk\", 1 = \"memory\" }}\n\
         [group.others]\ntargets = [\"main\"]\ninitiators = [\"02:*\"]\nluns = {{ 5 = \"memory\" }}\n\
         [aoe.lan]\nlink = \"unix:{folder}/target,{folder}/target-relay\"\nshelf = 7\nfirst-slot = 2\n\
         target = \"main\"\nportal-group = \"p\"\nmtu = 9000\n",
        spec.driver.name().replace('_', "-"),
        portal.port(),
    );
    guest.configure(&text)
}

fn run(guest: &LanGuest<'_>, driver: Driver) -> Result<()> {
    let mut spec = Spec::new(driver, Vec::<String>::new())?;
    spec.daemon = Some(configure(guest, &spec, "64M")?);
    let port = spec.portal().port();
    let settings = format!("PORTAL={HOST_AS_GUEST_SEES_IT}:{port}\nTARGET={TARGET}\n");
    let counted = "frames were lost, duplicated or delayed";
    let run = Run { script: "aoe.sh", macs: &[GUEST], settings, counted, more: None };
    guest.boot(&spec, &run, &guest.relay(0, FAULTS)?, &mut |line, _, target| {
        (line == "@grow")
            .then(|| configure(guest, &spec, "96M").and_then(|_| target.context("no target")?.signal(Signal::HUP)))
    })
}

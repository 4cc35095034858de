//! The target of all attacks: one core, and all transports.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::aoe::{self, Aoe, KNOWN, SHELF};
use super::iscsi::{self, Iscsi};
use super::nvme_tcp::{self, NvmeTcp};
use super::scsi_frames::{self, Protocol, ScsiFrames};
use super::vfio_user::{self, VfioUser};
use super::vhost_user::{self, VhostUser, devices};
use crate::station::MTU;
use crate::target::{Driver, Lab, Spec, Target, free_port};
use crate::vhost::Kind;

/// Names of the target and of the subsystem.
const IQN: &str = "iqn.2026-01.io.lunar:neighbours";
const NQN: &str = "nqn.2026-01.io.lunar:neighbours";
/// Data memory of the only core.
const MEMORY: &str = "64M";

/// The target, and its transports.
pub(super) struct Setup {
    pub(super) target: Target,
    pub(super) iscsi: Iscsi,
    pub(super) nvme: NvmeTcp,
    pub(super) vfio: VfioUser,
    pub(super) disk: VhostUser,
    pub(super) adapter: VhostUser,
    pub(super) aoe: Aoe,
    pub(super) fcoe: ScsiFrames,
    pub(super) st: ScsiFrames,
}

impl Setup {
    pub(super) fn start(lab: &Lab, driver: Driver) -> Result<Self> {
        let folder = lab.scratch.join("neighbours");
        std::fs::create_dir_all(&folder)?;
        let nvme = NvmeTcp { portal: free_port()?, subsystem: NQN.to_owned() };
        let mut spec = Spec::new(driver, Vec::<String>::new())?;
        let file = folder.join("lunar.toml");
        std::fs::write(&file, configuration(&folder, driver, [spec.portal(), nvme.portal]))?;
        spec.daemon = Some(file);
        // The target sends frames to the socket of the stations from the start.
        let aoe = Aoe::start(&folder)?;
        let fcoe = ScsiFrames::start(&folder, Protocol::Fcoe)?;
        let st = ScsiFrames::start(&folder, Protocol::St)?;
        let target = Target::start_daemon(lab, &spec, Target::start)?;
        let iscsi = Iscsi { portal: target.portal, target: target.name.clone() };
        let vfio = VfioUser { folder: folder.join("vm") };
        let [disk, adapter] = [Kind::Blk, Kind::Scsi].map(|kind| VhostUser { folder: folder.join("vhost"), kind });
        Ok(Self { target, iscsi, nvme, vfio, disk, adapter, aoe, fcoe, st })
    }

    /// An attack whose requests are refused is none.
    pub(super) fn check_forms(&self, lab: &Lab, part: &str) {
        let check = |transport: &str, check: &dyn Fn() -> Result<()>| {
            lab.report.check(part, &format!("the requests of {transport} attackers are valid"), check);
        };
        check("iSCSI", &|| iscsi::check_forms(&self.iscsi));
        check("NVMe/TCP", &|| nvme_tcp::check_forms(&self.nvme));
        check("vfio-user", &|| vfio_user::check_forms(&self.vfio));
        check("vhost-user-blk", &|| vhost_user::check_forms(&self.disk));
        check("vhost-user-scsi", &|| vhost_user::check_forms(&self.adapter));
        check("AoE", &|| aoe::check_forms(&self.aoe));
        check("FCoE", &|| scsi_frames::check_forms(&self.fcoe));
        check("Scheduled Transfer", &|| scsi_frames::check_forms(&self.st));
    }
}

/// The configuration of the target. LUNs are in the order of `transport::volume`.
fn configuration(folder: &Path, driver: Driver, [iscsi, nvme]: [std::net::SocketAddr; 2]) -> String {
    let driver = driver.name().replace('_', "-");
    let shown = folder.display();
    let [link, peer] = Aoe::sockets(folder).map(|path: PathBuf| path.display().to_string());
    let luns = r#"{ 0 = "victim", 1 = "small", 2 = "large", 3 = "rewritten" }"#;
    let mut text = format!(
        "[server]\ncores = 1\nmemory = \"{MEMORY}\"\ndriver = \"{driver}\"\nstate = \"{shown}/state\"\n\
         [volume.victim]\nkind = \"ram\"\nsize = \"64M\"\n\
         [volume.small]\nkind = \"ram\"\nsize = \"64M\"\n\
         [volume.large]\nkind = \"file\"\npath = \"{shown}/large.img\"\nsize = \"64G\"\n\
         [volume.rewritten]\nkind = \"ram\"\nsize = \"64M\"\n\
         [portal-group.p]\ntag = 1\n\
         [portal.iscsi]\naddress = \"{iscsi}\"\ngroup = \"p\"\n\
         [portal.nvme]\naddress = \"{nvme}\"\nprotocol = \"nvme-tcp\"\ngroup = \"p\"\n\
         [target.main]\niqn = \"{IQN}\"\nnqn = \"{NQN}\"\nportal-groups = [\"p\"]\n\
         [group.hosts]\ntargets = [\"main\"]\ninitiators = [\"iqn.*\", \"nqn.*\"]\nluns = {luns}\n\
         [group.stations]\ntargets = [\"main\"]\ninitiators = [\"{:02x}:{:02x}:*\"]\nluns = {luns}\n\
         [aoe.lan]\nlink = \"unix:{link},{peer}\"\nshelf = {SHELF}\ntarget = \"main\"\nmtu = {MTU}\n",
        KNOWN[0], KNOWN[1],
    );
    let _ = write!(
        text,
        "[group.ports]\ntargets = [\"main\"]\ninitiators = [\"{}:*\"]\nluns = {luns}\n",
        scsi_frames::WWPN_PREFIX
    );
    for protocol in [Protocol::Fcoe, Protocol::St] {
        text += &protocol.section(folder, MTU);
    }
    for name in VfioUser::names() {
        let _ = write!(text, "[vm.{name}]\ntarget = \"main\"\nsocket = \"{shown}/vm/{name}/cntrl\"\n");
    }
    for device in devices() {
        let name = &device.name;
        let kind = if device.kind == Kind::Blk { "blk" } else { "scsi" };
        let _ = write!(
            text,
            "[vhost.{name}]\ntarget = \"main\"\ndevice = \"{kind}\"\nqueues = 4\n\
             socket = \"{shown}/vhost/{name}.sock\"\n"
        );
        if let Some(lun) = device.lun {
            let _ = writeln!(text, "lun = {lun}");
        }
    }
    text
}

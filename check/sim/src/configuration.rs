//! The text of the configuration of a simulated target, and the names and addresses that its clients use.

use crate::setup::{Kept, Setup, Volume, path};
use crate::stamp::SECTOR;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The portal of iSCSI.
pub const PORTAL: SocketAddr = address(3260);
/// The portal of NVMe/TCP.
pub const NVME_PORTAL: SocketAddr = address(4420);
/// The portal that changes of the configuration add and remove.
pub const EXTRA_PORTAL: SocketAddr = address(3261);
/// The NQN of the subsystem.
pub const NQN: &str = "nqn.2026-01.io.lunar:simulated";
/// The IQN of the target.
pub const TARGET: &str = "iqn.2026-01.io.lunar:simulated";
/// The LUN that changes of the configuration add and remove, with its volume: no client uses it.
pub const EXTRA_LUN: usize = 100;

/// The sectors of that volume.
const EXTRA_SECTORS: usize = 64;

const fn address(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), port)
}

/// The UUID of the volume with this LUN.
#[must_use]
pub fn uuid(lun: usize) -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid[..4].copy_from_slice(&(lun as u32 + 1).to_be_bytes());
    // Version 4, and the variant of RFC 9562.
    (uuid[6], uuid[8]) = (0x40, 0x80);
    uuid
}

/// The configuration without any object: the one in force before the first.
#[must_use]
pub fn server(setup: &Setup) -> String {
    // The reactors of the simulator have arenas of their own sizes.
    format!("[server]\ncores = {}\ndriver = 'epoll'\ndrain = '10s'\n", setup.cores)
}

/// The configuration of a target.
#[must_use]
pub fn text(setup: &Setup) -> String {
    let changes = setup.changes;
    let mut text = server(setup);
    // Simulated initiators log in again and again from one address.
    text += "[limits]\nlogin-rate = 10000\n[portal-group.p]\ntag = 1\n";
    text += &format!("[target.t]\niqn = '{TARGET}'\nnqn = '{NQN}'\nalias = 'simulated'\nportal-groups = ['p']\n");
    let mut portals = vec![("iscsi", PORTAL, "iscsi"), ("nvme", NVME_PORTAL, "nvme-tcp")];
    portals.extend(changes.has_extra_portal.then_some(("extra", EXTRA_PORTAL, "iscsi")));
    for (name, address, protocol) in portals {
        text += &format!("[portal.{name}]\naddress = '{address}'\nprotocol = '{protocol}'\ngroup = 'p'\n");
    }
    for (lun, volume) in setup.volumes.iter().enumerate() {
        text += &volume_section(lun, volume, changes.growths);
    }
    if changes.has_extra_lun {
        let (kept, block_size) = (Kept::Ram, SECTOR as u32);
        let extra = Volume { kept, sectors: EXTRA_SECTORS, growth: 0, block_size, is_contended: false };
        text += &volume_section(EXTRA_LUN, &extra, 0);
    }
    for (number, socket) in setup.vm_sockets().iter().enumerate() {
        let socket = socket.display();
        text += &format!("[vm.vm{number}]\ntarget = 't'\nportal-group = 'p'\nsocket = '{socket}'\n");
    }
    let mut luns: Vec<String> = (0..setup.volumes.len()).map(|lun| format!("{lun} = 'v{lun}'")).collect();
    luns.extend(changes.has_extra_lun.then(|| format!("{EXTRA_LUN} = 'v{EXTRA_LUN}'")));
    text += &format!("[group.g]\ntargets = ['t']\ninitiators = ['*']\nluns = {{ {} }}\n", luns.join(", "));
    text
}

fn volume_section(lun: usize, volume: &Volume, growths: usize) -> String {
    let uuid = u128::from_be_bytes(uuid(lun));
    let digits = format!("{uuid:032x}");
    let uuid = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-");
    let (size, block) = (volume.sectors_after(growths) * SECTOR, volume.block_size);
    let mut text = format!("[volume.v{lun}]\nuuid = '{uuid}'\nsize = {size}\nblock-size = '{block}'\n");
    // A write to a `String` cannot fail.
    let _ = match &volume.kept {
        Kept::Ram => writeln!(text, "kind = 'ram'"),
        Kept::File(policy) => {
            let (path, direct, durable) = (path(lun), policy.direct.is_some(), policy.durable);
            let path = path.display();
            writeln!(text, "kind = 'file'\npath = '{path}'\ndirect = {direct}\nwrite-through = {durable}")
        }
    };
    text
}

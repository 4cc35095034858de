//! What `lunar serve` says when it is ready: what is shared, where, and how each common client connects.

use lunar_control::api::qemu;
use lunar_core::medium::MediumKind;
use lunar_core::unit::Unit;
use lunar_vfio_user::serve::Endpoint;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// One volume's line.
#[derive(Debug)]
pub struct Line {
    /// Logical unit number.
    pub lun: u16,
    /// As it was named on the command line.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
    /// What a user wants to know of it: thin, write-back, read-only ...
    pub traits: String,
}

impl Line {
    /// The line of a unit.
    #[must_use]
    pub fn of(lun: u16, name: &str, unit: &Unit) -> Self {
        let traits = unit.traits();
        let mut words = vec![format!("{}-byte blocks", unit.geometry.block_size)];
        let kind = match unit.medium.kind() {
            MediumKind::Fixed => None,
            MediumKind::Removable => Some("removable"),
            MediumKind::Optical => Some("CD/DVD"),
        };
        words.splice(0..0, kind.map(str::to_owned));
        words.extend(traits.thin.then(|| "thin".to_owned()));
        words.push(if traits.write_cache { "write-back" } else { "write-through" }.to_owned());
        words.extend(unit.protected().map(|protection| format!("protection type {}", protection.kind() as u8)));
        words.extend(unit.read_only.then(|| "read-only".to_owned()));
        Self { lun, name: name.to_owned(), bytes: unit.geometry.bytes(), traits: words.join(", ") }
    }
}

/// A size as people say it: the largest binary unit that leaves at most one decimal.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let at = ((63 - bytes.max(1).leading_zeros()) / 10).min(5) as usize;
    let tenths = (u128::from(bytes) * 10) >> (10 * at);
    match tenths % 10 {
        0 => format!("{} {}", tenths / 10, UNITS[at]),
        tenth => format!("{}.{tenth} {}", tenths / 10, UNITS[at]),
    }
}

/// Where it is shared, and over what.
#[derive(Debug, Default)]
pub struct Faces {
    /// iSCSI portals.
    pub iscsi: Vec<SocketAddr>,
    /// NVMe/TCP ports.
    pub nvme: Vec<SocketAddr>,
    /// Sockets of virtual machines.
    pub machines: Vec<Endpoint>,
    /// Whether not everybody who reaches them may use the volumes.
    pub restricted: bool,
}

impl Faces {
    /// The options that would keep to this machine what is open to others.
    fn open(&self) -> Vec<&'static str> {
        let reached = |portals: &[SocketAddr]| portals.iter().any(|portal| !portal.ip().is_loopback());
        let both = [(&self.iscsi, "--listen 127.0.0.1"), (&self.nvme, "--nvme 127.0.0.1")];
        both.into_iter().filter(|(portals, _)| reached(portals)).map(|(_, option)| option).collect()
    }
}

/// The address that the examples show: one that a client can reach, rather than "any".
fn example(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// The whole banner.
#[must_use]
pub fn banner(target: &str, nqn: &str, volumes: &[Line], faces: &Faces, advertise: Option<SocketAddr>) -> String {
    let mut text = String::new();
    let plural = if volumes.len() == 1 { "volume" } else { "volumes" };
    let names: Vec<&str> = [(&faces.iscsi, "iSCSI"), (&faces.nvme, "NVMe/TCP")]
        .into_iter()
        .filter_map(|(portals, name)| (!portals.is_empty()).then_some(name))
        .collect();
    let mut line = |text_line: String| writeln!(text, "{text_line}").expect("a String takes all");
    let shown = |portals: &[SocketAddr]| portals.iter().map(ToString::to_string).collect::<Vec<_>>().join("  ");
    let names = if faces.machines.is_empty() { names } else { [&names[..], &["vfio-user"]].concat() };
    line(format!("Lunar {} shares {} {plural} over {}", env!("CARGO_PKG_VERSION"), volumes.len(), names.join(" and ")));
    if !faces.iscsi.is_empty() {
        line(format!("  target   {target}"));
        line(format!("  portal   {}", shown(&faces.iscsi)));
    }
    if !faces.nvme.is_empty() {
        line(format!("  NQN      {nqn}"));
        line(format!("  port     {}", shown(&faces.nvme)));
    }
    for machine in &faces.machines {
        line(format!("  VM       {} at {}", machine.name, machine.path.display()));
    }
    for volume in volumes.iter().take(SHOWN_MAX) {
        line(format!("  LUN {:<4} {}  {}, {}", volume.lun, volume.name, size(volume.bytes), volume.traits));
    }
    if volumes.len() > SHOWN_MAX {
        line(format!("  ... and {} more", volumes.len() - SHOWN_MAX));
    }
    line(String::new());
    line("Connect from".to_owned());
    if let Some(portal) = advertise.filter(|_| !faces.iscsi.is_empty()).or_else(|| faces.iscsi.first().copied()) {
        over_iscsi(&mut line, target, example(portal));
    }
    if let Some(port) = faces.nvme.first() {
        let ip = advertise.map_or_else(|| port.ip(), |address| address.ip());
        over_nvme(&mut line, nqn, example(SocketAddr::new(ip, port.port())));
    }
    if let Some(machine) = faces.machines.first() {
        over_vfio_user(&mut line, machine);
    }
    line(String::new());
    let open = faces.open();
    if advertise.is_none() && !faces.restricted && !open.is_empty() {
        let (verb, open) = (if open.len() == 1 { "keeps" } else { "keep" }, open.join(" and "));
        line(format!("Whoever reaches these ports can use these volumes; {open} {verb} them to this machine."));
    }
    line("Ctrl-C finishes what is under way, flushes, and stops.".to_owned());
    line("ready".to_owned());
    text
}

fn over_iscsi(line: &mut impl FnMut(String), target: &str, at: SocketAddr) {
    let (host, port) = (at.ip(), at.port());
    line(format!("  Linux    iscsiadm -m discovery -t sendtargets -p {at}"));
    line(format!("           iscsiadm -m node -T {target} -p {at} --login"));
    line(format!("  libiscsi iscsi-ls -s iscsi://{at}"));
    line(format!("  QEMU     qemu-system-x86_64 -drive file=iscsi://{at}/{target}/0,format=raw,if=virtio"));
    line(format!("  Windows  New-IscsiTargetPortal -TargetPortalAddress {host} -TargetPortalPortNumber {port}"));
    line(format!("           Connect-IscsiTarget -NodeAddress {target}"));
}

fn over_vfio_user(line: &mut impl FnMut(String), machine: &Endpoint) {
    let mut head = "  QEMU     qemu-system-x86_64 -m 1G ".to_owned();
    let options = qemu(&machine.path);
    for (at, option) in options.iter().enumerate() {
        let end = if at + 1 == options.len() { "" } else { " \\" };
        line(format!("{head}{option}{end}"));
        head = " ".repeat(13);
    }
}

fn over_nvme(line: &mut impl FnMut(String), nqn: &str, at: SocketAddr) {
    let (host, port) = (at.ip(), at.port());
    line(format!("  Linux    nvme connect -t tcp -a {host} -s {port} -n {nqn}"));
}

/// Volumes that the banner lists one by one: a screen, not a scroll.
const SHOWN_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        let shown: Vec<String> =
            [0, 512, 1536, 1 << 20, 20 << 30, 3 << 39, u64::MAX].iter().map(|&bytes| size(bytes)).collect();
        assert_eq!(shown, ["0 bytes", "512 bytes", "1.5 KiB", "1 MiB", "20 GiB", "1.5 TiB", "16383.9 PiB"]);
    }

    #[test]
    fn the_banner_tells_how_to_connect() {
        let line = Line { lun: 0, name: "disk.img".into(), bytes: 1 << 30, traits: "thin".into() };
        let any = SocketAddr::from(([0, 0, 0, 0], 3260));
        let machines =
            crate::args::Machines { names: vec!["web".into()], folder: Some("/run/lunar/vm".into()), mode: 0 };
        let machines = machines.endpoints("nqn.x:disk").expect("short");
        let nvme = vec![SocketAddr::from(([0, 0, 0, 0], 4420))];
        let faces = Faces { iscsi: vec![any], nvme, machines, restricted: false };
        let text = banner("iqn.x:disk", "nqn.x:disk", &[line], &faces, None);
        for part in [
            "LUN 0    disk.img  1 GiB, thin",
            "iscsiadm -m node -T iqn.x:disk -p 127.0.0.1:3260 --login",
            "iscsi://127.0.0.1:3260/iqn.x:disk/0",
            "-TargetPortalAddress 127.0.0.1 -TargetPortalPortNumber 3260",
            "nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.x:disk",
            "1 volume over iSCSI and NVMe/TCP and vfio-user",
            "VM       web at /run/lunar/vm/web/cntrl",
            r#"-device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"/run/lunar/vm/web/cntrl"}}'"#,
            "--listen 127.0.0.1 and --nvme 127.0.0.1 keep them",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert!(text.ends_with("ready\n"));
        let here = vec![SocketAddr::from(([127, 0, 0, 1], 3260))];
        let faces = Faces { iscsi: here, ..faces };
        let text = banner("iqn.x:disk", "nqn.x:disk", &[], &faces, None);
        assert!(text.contains("these volumes; --nvme 127.0.0.1 keeps them"), "{text}");
        let text = banner("iqn.x:disk", "nqn.x:disk", &[], &Faces { restricted: true, ..faces }, None);
        assert!(!text.contains("Whoever"), "{text}");
    }

    #[test]
    fn an_advertised_address_is_the_one_to_use() {
        let six = SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 1], 3261));
        let faces = Faces { iscsi: vec![SocketAddr::from(([0, 0, 0, 0], 3260))], ..Faces::default() };
        let text = banner("iqn.x:disk", "nqn.x:disk", &[], &faces, Some(six));
        assert!(text.contains("-p [fd00::1]:3261") && text.contains("-TargetPortalAddress fd00::1 "), "{text}");
        assert!(!text.contains("keeps them to this machine"));
    }
}

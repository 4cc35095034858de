//! `lunar serve`: shares the volumes that a command line names, under one target, until it is told to stop.

use crate::access::Map;
use crate::args::{self, Driver, How};
use crate::banner::{Faces, Line, banner};
use crate::cores::Face;
use crate::house::{Core, Frame, House, Notice, Opening, wall_clock, why_not};
use crate::stats;
use crate::volume::Volume;
use crate::volume::keep::{of_subsystem, state_folder};
use anyhow::{Context, Result, anyhow, bail};
use lunar_core::access::{Access, Proofs};
use lunar_core::medium::{Medium, MediumKind};
use lunar_core::tally::Tally;
use lunar_core::unit::{Unit, UnitId};
use lunar_iscsi::directory::{Directory, Portal, PortalRef, TargetEntry};
use lunar_iscsi::registry::SESSIONS_MAX;
use lunar_nvme::controller::CONTROLLERS_MAX;
use lunar_nvme::history::History;
use lunar_nvme::namespace::NAMESPACES_MAX;
use lunar_nvme::{NamespaceMap, Path};
use lunar_reactor::Choice;
use lunar_reactor::linger::until_free;
use lunar_reactor::log;
use lunar_scsi::{LunMap, Mapping, PortConfig};
use lunar_vfio_user::serve::Endpoint;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::future::ready;
use std::io::Write;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Protocol identifier of iSCSI (SPC-6 7.6.1).
pub const PROTOCOL_ISCSI: u8 = 5;
/// How long a port may stay taken by a process that ended: whose it is nobody tells.
pub const PORT_PATIENCE: Duration = Duration::from_secs(3);

/// What the NVM subsystem of this name remembers, and that it is started now.
pub(crate) fn history(state: &std::path::Path, nqn: &str, firmware: &str) -> Arc<History> {
    Arc::new(History::new(of_subsystem(state, nqn), firmware, wall_clock()))
}

/// What is shared, and how.
struct Setup {
    volumes: Vec<Volume>,
    names: Vec<String>,
    target: Arc<str>,
    /// Name of the NVM subsystem.
    nqn: String,
    how: How,
    /// Where virtual machines find their controllers.
    endpoints: Vec<Endpoint>,
}

/// Serves until a signal says stop.
///
/// # Errors
/// Everything that keeps it from starting, in words that say what to do.
pub fn run(volumes: Vec<Volume>, names: Vec<String>, how: How) -> Result<()> {
    let (setup, access) = Setup::new(volumes, names, how)?;
    setup.how.without_nvme().into_iter().for_each(|why| log!("{why}"));
    // Before the threads, so that they inherit the mask and a signal during start-up is not lost.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let drain = Duration::from_secs(setup.how.drain.into());
    let audit = |notice: &Notice<'_>| log!("audit: {notice}");
    let house = House::start(setup.frame(), Directory::new(drain), Arc::new(audit))?;
    let counted = house.common().stats.clone();
    let socket = setup.how.stats.as_deref().map(|path| stats::Socket::serve(path, counted)).transpose()?;
    let (faces, lines) = furnish(&house, &setup, access)?;
    let text = banner(&setup.target, &setup.nqn, &lines, &faces, setup.how.advertise.first().copied());
    // A closed standard output is no reason to stop sharing.
    let _ = std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush());
    drop(setup);
    wait_for_stop(&mut signals);
    drop(socket);
    house.stop(&mut signals)
}

impl Setup {
    /// What a command line says, and who may log in.
    fn new(volumes: Vec<Volume>, names: Vec<String>, how: How) -> Result<(Self, Access)> {
        let target = how.name.clone().unwrap_or_else(|| args::default_name(&host_name(), &names[0]));
        let nqn = how.nqn.clone().unwrap_or_else(|| args::subsystem_of(&target));
        check_maps(&how.who.map, volumes.len())?;
        if how.metadata && volumes.iter().all(|volume| volume.protection().is_none()) {
            bail!("--metadata shows what protects blocks, and no volume keeps that: give --protection, too");
        }
        let access = how.who.access()?;
        let endpoints = how.machines.endpoints(&nqn)?;
        Ok((Self { volumes, names, target: target.as_str().into(), nqn, how, endpoints }, access))
    }

    fn frame(&self) -> Frame {
        let how = &self.how;
        let cores = how.cores.map(usize::from);
        Frame {
            cores: cores.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
            driver: match how.driver {
                Driver::Auto => Choice::Auto,
                Driver::IoUring => Choice::IoUring,
                Driver::Epoll => Choice::Epoll,
            },
            memory: (how.memory as usize) << 20,
            spin: Duration::from_micros(how.spin.into()),
            register: self.volumes.iter().any(Volume::is_direct),
            drain: Duration::from_secs(how.drain.into()),
            advertise: how.advertise.first().map(SocketAddr::ip),
            has_channels: !how.who.tls_key.is_empty(),
        }
    }

    /// What NVMe hosts find: one subsystem, with the identity of the first volume.
    fn subsystems(&self, access: &Access) -> Result<lunar_nvme::Directory> {
        let identity = self.volumes.first().context("nothing is shared")?.identity();
        let entry = lunar_nvme::directory::Entry {
            nqn: self.nqn.as_str().into(),
            serial: identity.serial.clone(),
            model: format!("{} {}", identity.vendor, identity.product),
            firmware: identity.revision.clone(),
            groups: None,
            access: Arc::new(access.clone()),
            terms: self.how.who.terms(),
            history: history(&state_folder(), &self.nqn, &identity.revision),
            controllers_max: CONTROLLERS_MAX,
            pools: std::collections::BTreeMap::new(),
        };
        let discovery = (Proofs::clone(access.discovery()), self.how.who.terms());
        let mut directory = lunar_nvme::Directory::new(vec![entry], discovery, None)?;
        directory.referrals = self.how.referral.iter().map(|other| Path::tcp(*other, 0)).collect();
        Ok(directory)
    }

    /// What there is to log in to: one target, whose portal groups are its target ports.
    fn directory(&self, access: Access) -> Directory {
        let mut directory = Directory::new(Duration::from_secs(self.how.drain.into()));
        let groups = self.how.groups();
        let told = self.how.told();
        // One for each group, so that whoever comes in by it may stay; and what they are told.
        let ways = groups.iter().map(|group| Portal {
            id: (*group).into(),
            group: *group,
            address: None,
            is_advertised: false,
        });
        let told =
            told.into_iter().map(|(group, address)| Portal { id: group.into(), group, address, is_advertised: true });
        directory.portals = ways.chain(told).collect();
        directory.discovery = access.discovery().clone();
        directory.add(TargetEntry {
            name: self.target.clone(),
            alias: alias(&self.names).into(),
            ports: groups.into_iter().map(|group| (group, group)).collect(),
            access: Arc::new(access),
            session: Arc::default(),
            sessions_max: SESSIONS_MAX,
            moved: None,
        });
        directory
    }
}

/// Has the cores serve what is shared, and listen.
fn furnish(house: &House, setup: &Setup, access: Access) -> Result<(Faces, Vec<Line>)> {
    let ports: Vec<PortConfig> =
        setup.how.groups().into_iter().map(|group| port(&setup.target, group, group)).collect();
    house.cores().ask_all(move |core| {
        core.served.target.set_ports(ports.clone());
        ready(())
    });
    let mut tickets = Vec::new();
    for (lun, volume) in setup.volumes.iter().enumerate() {
        let (unit, name) = (UnitId(lun as u32), &setup.names[lun]);
        house.common().shared.restore(unit, &**volume.keep()).with_context(|| format!("restoring {name}"))?;
        let medium =
            Medium::restored(volume.medium(), &**volume.keep()).with_context(|| format!("restoring {name}"))?;
        let tally = Tally::new(house.cores().count());
        let opening = Opening { ticket: lun as u64, unit, volume: volume.clone(), medium, tally };
        house.open(&opening).with_context(|| format!("opening {name}"))?;
        tickets.push(opening.ticket);
    }
    house.place(&tickets);
    let (maps, metadata) = (setup.how.who.map.clone(), setup.how.metadata);
    house.cores().ask_all(move |core| {
        let maps = maps.clone();
        async move {
            for Map { initiator, luns } in &maps {
                core.served.target.set_map(initiator, luns.clone(), ready(())).await;
                core.served.subsystem.set_map(initiator, namespaces(luns, metadata), ready(())).await;
            }
            show_namespaces(&core, metadata);
            if core.me == 0 {
                core.served.units.resume(core.reactor.arena());
            }
        }
    });
    house.common().board.set(setup.subsystems(&access)?);
    house.common().guard.set_directory(setup.directory(access));
    serve_machines(house, &setup.endpoints)?;
    let faces = listen_all(house, setup)?;
    let names = setup.names.clone();
    let lines = house.cores().ask(0, move |core| {
        let line =
            |(lun, name): (usize, &String)| Some(Line::of(lun as u16, name, &*core.links.unit(UnitId(lun as u32))?));
        ready(names.iter().enumerate().filter_map(line).collect())
    });
    Ok((faces, lines.wait().ok_or_else(|| anyhow!("a core ended while it started"))?))
}

/// A portal group of a target is a target port of this relative identifier (RFC 7143 4.4.3), and with those of the same
/// tag a target port group: a path that may fare otherwise than the others.
#[must_use]
pub fn port(target: &str, group: u16, relative: u16) -> PortConfig {
    let name = format!("{target},t,0x{group:04x}");
    PortConfig { relative, group, name, device: target.to_owned(), protocol: PROTOCOL_ISCSI }
}

/// Makes the sockets of virtual machines, each on one of the cores.
fn serve_machines(house: &House, endpoints: &[Endpoint]) -> Result<()> {
    for (at, endpoint) in endpoints.iter().cloned().enumerate() {
        let path = endpoint.path.clone();
        let asked = house.cores().ask(at % house.cores().count(), move |core| {
            let front = core.machines();
            let made = front.bind(&endpoint.path, endpoint.permission);
            ready(made.map(|()| front.serve(endpoint)))
        });
        let path = path.display();
        match asked.wait().ok_or_else(|| anyhow!("a core ended while it started"))? {
            Err(why) if why.kind() == std::io::ErrorKind::AddrInUse => {
                bail!("{path} is served by another process; choose another --vm or --vm-folder")
            }
            made => made.with_context(|| format!("making {path} (--vm-folder)"))?,
        }
    }
    Ok(())
}

/// Each unit is the namespace after its number.
fn show_namespaces(core: &Core, metadata: bool) {
    let is_fixed = |unit: &Rc<Unit>| unit.medium.kind() == MediumKind::Fixed;
    for unit in core.links.units().into_iter().filter(is_fixed) {
        if let Some(id) = namespace_of(unit.id.0) {
            core.served.subsystem.show(id, lunar_nvme::Mapping { metadata, ..lunar_nvme::Mapping::plain(unit.id) });
        }
    }
}

/// What NVMe hosts see behind a map.
fn namespaces(luns: &LunMap, metadata: bool) -> NamespaceMap {
    let namespace = |(lun, to): (u16, Mapping)| {
        let plain = lunar_nvme::Mapping::plain(UnitId(to.unit.into()));
        let mapping = lunar_nvme::Mapping { read_only: to.read_only, metadata, ..plain };
        Some((namespace_of(lun.into())?, mapping))
    };
    NamespaceMap::new(luns.luns().filter_map(namespace))
}

/// Maps are of volumes that there are.
fn check_maps(maps: &[Map], volumes: usize) -> Result<()> {
    for Map { initiator, luns } in maps {
        if let Some((lun, mapping)) = luns.luns().find(|(_, mapping)| usize::from(mapping.unit) >= volumes) {
            bail!("--map {initiator}: LUN {lun} is volume {}, and {} is the last", mapping.unit, volumes - 1);
        }
    }
    Ok(())
}

/// TargetAlias (RFC 7143 13.6): what is shared, in at most 255 bytes.
fn alias(names: &[String]) -> String {
    let more = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
    let first: String = names[0].chars().filter(|c| !c.is_control()).take(48).collect();
    first + &more
}

/// Waits for the first signal that means stop; SIGHUP does not, a terminal may go away.
fn wait_for_stop(signals: &mut Signals) {
    for signal in signals.forever() {
        if signal != SIGHUP {
            return;
        }
    }
}

/// The namespace of a number: there are fewer than logical units.
fn namespace_of(lun: u32) -> Option<u32> {
    lun.checked_add(1).filter(|namespace| *namespace <= NAMESPACES_MAX)
}

/// Listens for everything that is served.
fn listen_all(house: &House, setup: &Setup) -> Result<Faces> {
    let groups = setup.how.groups();
    // All addresses are one group, unless asked for one by one.
    let group = |at: usize| groups.get(at).copied().unwrap_or(groups[0]);
    let iscsi = setup.how.portals().into_iter().enumerate();
    let iscsi: Vec<_> = iscsi
        .map(|(at, portal)| (Face::Iscsi(PortalRef { portal: group(at).into(), group: group(at) }), portal))
        .collect();
    let way = |group: u16| lunar_nvme::directory::Way { portal: group.into(), group, is_secure: false };
    let nvme = setup.how.nvme_portals().into_iter().enumerate();
    let nvme: Vec<_> = nvme.map(|(at, portal)| (Face::Nvme(way(group(at))), portal)).collect();
    let mut listener = 0;
    Ok(Faces {
        iscsi: listen(house, &iscsi, ("--listen", !setup.how.listen.is_empty()), &mut listener)?,
        nvme: listen(house, &nvme, ("--nvme", !setup.how.nvme.is_empty()), &mut listener)?,
        machines: setup.endpoints.clone(),
        restricted: setup.how.who.keeps_out(),
    })
}

fn listen(
    house: &House,
    wanted: &[(Face, SocketAddr)],
    (option, asked): (&str, bool),
    listener: &mut u32,
) -> Result<Vec<SocketAddr>> {
    let mut portals = Vec::new();
    for &(face, portal) in wanted {
        *listener += 1;
        let listen = || house.listen(*listener, portal);
        match until_free(PORT_PATIENCE, listen, |why| why.kind() == std::io::ErrorKind::AddrInUse) {
            Ok(address) => {
                house.accept(*listener, face);
                portals.push(address);
            }
            // "All addresses" on a machine without IPv6 (or without IPv4) is what is there.
            Err(_) if !asked && portal.is_ipv6() && !portals.is_empty() => {}
            Err(why) => bail!(why_not(portal, &why, option)),
        }
    }
    Ok(portals)
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;

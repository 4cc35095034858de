//! An engine with all fronts, whose configuration changes.

use crate::assembly;
use lunar_control::apply::{MissingPolicy, Running as _};
use lunar_control::check::{Checked, LocalHost, check};
use lunar_control::live::Live as _;
use lunar_control::plan::Plan;
use lunar_core::unit::UnitId;
use lunar_engine::engine::{Engine, PORT_PATIENCE};
use lunar_engine::front::FrontRuntime;
use lunar_engine::vm_sockets::SocketsOnCore;
use lunar_iscsi::front::IscsiRuntime;
use lunar_reactor::linger::until_free;
use lunar_vfio_user::serve::Controllers;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A folder that is removed at the end of the test.
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lunar-engine-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub(crate) fn checked(&self, text: &str) -> Checked {
        self.checked_for("epoll", text)
    }

    fn checked_for(&self, driver: &str, text: &str) -> Checked {
        let text = format!("[server]\ncores = 2\nmemory = '8M'\ndriver = '{driver}'\ndrain = '100ms'\n{text}");
        let machine = LocalHost { config: self.0.join("lunar.toml") };
        check(&crate::schema::SCHEMA, "lunar.toml", &text, &machine).unwrap_or_else(|why| panic!("{text}\n{why}"))
    }

    fn engine(&self) -> Engine {
        assembly::start(&self.checked("").config, &self.0).expect("cores start")
    }

    /// Applies `after` to an engine with the configuration `before`.
    pub(crate) fn apply(&self, engine: &mut Engine, before: &Checked, after: &Checked) -> Result<(), String> {
        let plan = Plan::between(before, after);
        let strict = MissingPolicy {
            may_be_missing: BTreeSet::new(),
            may_lack: BTreeSet::new(),
            retry: &mut |_, _| unreachable!("nothing is forgiven"),
        };
        let done = lunar_control::apply::apply(engine, &plan, after, strict, || Ok(()));
        engine.wait_until_final();
        done.map(|absent| assert!(absent.is_empty(), "nothing is forgiven")).map_err(|why| why.to_string())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The state of the engine that clients and operators can see. Units are named by their serial numbers, because the ID
/// of a unit depends on earlier configurations.
fn seen(engine: &Engine) -> Value {
    let cores = engine.core_set().cores().ask_all(|core| {
        let who = |unit: UnitId| core.mesh.unit(unit).map_or_else(String::new, |unit| unit.identity.serial.to_string());
        let units: BTreeMap<String, Value> = core
            .mesh
            .units()
            .iter()
            .map(|unit| {
                let shared = core.units.shared().get(unit.id);
                let of = |group| shared.as_ref().map(|unit| format!("{:?}", unit.state().access().of(group).state));
                let ways = [1_u16, 2].map(of);
                let hosts = core.subsystem.unit(unit.id);
                let hosts = hosts.map(|seen| [1_u16, 2].map(|group| seen.access(group).0));
                let told = json!([unit.geometry.blocks, unit.geometry.block_size, unit.read_only, ways, hosts]);
                (unit.identity.serial.to_string(), told)
            })
            .collect();
        let maps: BTreeMap<String, Value> = core
            .target
            .maps()
            .into_iter()
            .map(|(name, map)| {
                let luns = map.luns().map(|(lun, to)| json!([lun, who(UnitId(to.unit.into())), to.read_only]));
                (name.to_string(), luns.collect())
            })
            .collect();
        let namespaces: BTreeMap<String, Value> = core
            .subsystem
            .maps()
            .into_iter()
            .map(|(name, map)| {
                let all = map.namespaces().map(|(id, to)| json!([id, who(to.unit), to.read_only, to.metadata]));
                (name.to_string(), all.collect())
            })
            .collect();
        let mut ports: Vec<String> = core.target.port_names();
        ports.sort();
        std::future::ready(json!({ "units": units, "maps": maps, "namespaces": namespaces, "ports": ports }))
    });
    let directory = iscsi(engine).authenticator().directory();
    let targets: Vec<Value> = directory
        .targets()
        .map(|target| {
            let settings = (&target.alias, target.sessions_max, target.session.window, target.moved);
            json!([target.name.to_string(), format!("{settings:?}"), format!("{:?}", target.access)])
        })
        .collect();
    let mut portals: Vec<String> =
        directory.portals.iter().map(|portal| format!("{:?} {}", portal.address, portal.group)).collect();
    portals.sort();
    let nvme = engine.core_set().shared().subsystems.directory();
    let subsystems: Vec<String> = nvme.subsystems().map(|entry| format!("{entry:?}")).collect();
    let mut told: Vec<String> =
        nvme.portals.iter().flatten().map(|one| format!("{:?} {}", one.address, one.group)).collect();
    told.sort();
    let nvme = json!([subsystems, told, vms(engine)]);
    let sessions = directory.sessions_max;
    json!({ "nvme": nvme, "cores": cores, "targets": targets, "portals": portals, "sessions": sessions })
}

/// The iSCSI front of an engine.
fn iscsi(engine: &Engine) -> &IscsiRuntime {
    let runtimes = engine.core_set().shared().fronts().iter().map(|front| &**front as &dyn FrontRuntime);
    let mut runtimes = runtimes.filter_map(|runtime| (runtime as &dyn Any).downcast_ref());
    runtimes.next().expect("iSCSI is registered")
}

/// The virtual vms that any core serves, and the owner, group and mode of their sockets.
fn vms(engine: &Engine) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let all = engine.core_set().cores().ask_all(|core| {
        let front = core.front_of::<SocketsOnCore<Controllers>>();
        std::future::ready(front.map_or_else(Vec::new, |front| front.0.endpoints()))
    });
    let of = |path: &Path| std::fs::metadata(path).expect("the socket is there");
    let permission = |path: &Path| (of(path).mode() & 0o777, of(path).uid(), of(path).gid());
    let mut all: Vec<String> =
        all.into_iter().flatten().map(|one| format!("{one:?} {:?}", permission(&one.place.path))).collect();
    all.sort();
    all
}

/// A configuration from random numbers. All configurations use the same two ports, and sockets in this folder.
fn random_configuration(dice: &[u8], ports: [u16; 2], folder: &Path) -> String {
    use std::fmt::Write;
    let mut dice = dice.iter().copied().cycle();
    let mut roll = |sides: u8| dice.next().unwrap_or_default() % sides;
    let mut text = String::new();
    let mut volumes = Vec::new();
    for n in 0..roll(4) {
        let kind = ["ram", "null"][usize::from(roll(2))];
        let (size, read_only, block) = (1 + roll(3), roll(2) == 0, [512, 4096][usize::from(roll(2))]);
        let uuid = format!("f81d4fae-7dec-41d0-a765-00a0c91e6b{n:02}");
        let _ = write!(
            text,
            "[volume.v{n}]\nkind = '{kind}'\nsize = '{size}M'\nread-only = {read_only}\nblock-size = {block}\n\
             uuid = '{uuid}'\n"
        );
        volumes.push(n);
    }
    let states = ["active-optimized", "active-non-optimized", "standby"];
    for n in 0..2 {
        let state = states[usize::from(roll(3))];
        let _ = write!(text, "[portal-group.p{n}]\ntag = {}\nalua-state = '{state}'\n", n + 1);
    }
    for (n, port) in ports.iter().enumerate() {
        if roll(3) > 0 {
            let protocol = ["iscsi", "nvme-tcp"][usize::from(roll(2))];
            let _ = write!(text, "[portal.a{n}]\naddress = '127.0.0.1:{port}'\ngroup = 'p{}'\n", roll(2));
            let _ = writeln!(text, "protocol = '{protocol}'");
        }
    }
    let (targets, mut vms) = (roll(3), String::new());
    for n in 0..targets {
        let groups = ["['p0']", "['p1']", "['p0', 'p1']"][usize::from(roll(3))];
        let _ = write!(
            text,
            "[target.t{n}]\n{}portal-groups = {groups}\nqueue-depth = {}\nenabled = {}\n",
            ["iqn = 'iqn.X'\n", "nqn = 'nqn.X'\n", "iqn = 'iqn.X'\nnqn = 'nqn.X'\n"][usize::from(roll(3))]
                .replace('X', &format!("2026-01.org.example:t{n}")),
            1 + roll(4),
            roll(4) > 0
        );
        if text.contains(&format!("nqn.2026-01.org.example:t{n}")) && roll(2) == 0 {
            let (socket, mode) = (roll(2), ["600", "660"][usize::from(roll(2))]);
            let socket = folder.join(format!("vm{n}-{socket}"));
            vms += &format!("[vm.m{n}]\ntarget = 't{n}'\nsocket = '{}'\nmode = '{mode}'\n", socket.display());
        }
    }
    for n in 0..roll(3) {
        let members = (0..targets).filter(|_| roll(2) == 0).map(|t| format!("'t{t}'")).collect::<Vec<_>>().join(", ");
        let _ = write!(
            text,
            "[group.g{n}]\ntargets = [{members}]\ninitiators = [{}]\n[group.g{n}.luns]\n",
            // NVMe hosts belong to one target: two targets might map an NSID to different volumes.
            ["'*:0', 'nqn.*'", "'iqn.*:1'"][usize::from(n)]
        );
        let shift = roll(3);
        for volume in &volumes {
            let (is_mapped, read_only) = (roll(2) == 0, roll(2) == 0);
            if is_mapped {
                let _ = writeln!(text, "{} = {{ volume = 'v{volume}', read-only = {read_only} }}", volume + shift);
            }
        }
    }
    text + &vms
}

fn dice() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 61)
}

/// Two TCP ports of this machine that are free now.
fn free_ports() -> [u16; 2] {
    let bind = || std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let listeners = [bind(), bind()];
    listeners.map(|listener| listener.local_addr().expect("an address").port())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn an_applied_change_has_the_state_of_a_fresh_start(one in dice(), other in dice()) {
        let (place, ports) = (Place::new(), free_ports());
        let [one, other] = [one, other].map(|dice| place.checked(&random_configuration(&dice, ports, &place.0)));
        let mut both = place.engine();
        place.apply(&mut both, &Checked::default(), &one).expect("it can be made");
        // A change that makes a volume smaller is refused, and nothing changes.
        let before = seen(&both);
        let changed = place.apply(&mut both, &one, &other);
        let after = seen(&both);
        both.end().expect("it ends");
        if let Err(why) = changed {
            prop_assert!(why.contains("would lose the data"), "{}", why);
            prop_assert_eq!(after, before);
            return Ok(());
        }
        let mut alone = place.engine();
        place.apply(&mut alone, &Checked::default(), &other).expect("it can be made");
        let wanted = seen(&alone);
        alone.end().expect("it ends");
        prop_assert_eq!(after, wanted, "{}", Plan::between(&one, &other));
        prop_assert!(Plan::between(&other, &other).is_empty());
    }
}

#[test]
fn a_change_that_fails_leaves_everything_as_it_was() {
    let (place, [port, taken]) = (Place::new(), free_ports());
    let _holder = std::net::TcpListener::bind(("127.0.0.1", taken)).expect("it was free");
    let usual = format!(
        "[volume.v]\nkind = 'ram'\nsize = '1M'\nuuid = 'f81d4fae-7dec-41d0-a765-00a0c91e6b00'\n\
         [portal-group.p]\ntag = 1\n[portal.a]\naddress = '127.0.0.1:{port}'\ngroup = 'p'\n"
    );
    let file = place.0.join("disk.img");
    let more = format!(
        "[volume.w]\nkind = 'file'\npath = '{}'\nsize = '1M'\nuuid = 'f81d4fae-7dec-41d0-a765-00a0c91e6b01'\n\
         [portal.b]\naddress = '127.0.0.1:{taken}'\ngroup = 'p'\n",
        file.display()
    );
    let (one, other) = (place.checked(&usual), place.checked(&(usual.replace("1M", "2M") + &more)));
    let mut engine = place.engine();
    place.apply(&mut engine, &Checked::default(), &one).expect("it can be made");
    let before = seen(&engine);
    let why = place.apply(&mut engine, &one, &other).expect_err("the port is taken");
    assert!(why.contains("in use by another program") && why.contains("nothing was changed"), "{why}");
    assert_eq!(seen(&engine), before);
    // The refused change has released the stores and ports that it opened.
    drop(_holder);
    place.apply(&mut engine, &one, &other).expect("it can be made now");
    assert!(std::net::TcpStream::connect(("127.0.0.1", taken)).is_ok());
    engine.end().expect("it ends");
}

/// A volume in a file of this folder.
fn in_file(place: &Place, name: &str, keys: &str) -> String {
    format!(
        "[volume.{name}]\nkind = 'file'\npath = '{}'\n\
         uuid = 'f81d4fae-7dec-41d0-a765-00a0c91e6b00'\n{keys}",
        place.0.join(format!("{name}.img")).display()
    )
}

#[test]
fn shared_access_to_a_volume_changes_while_initiators_use_it() {
    let place = Place::new();
    let text = |keys: &str| place.checked(&in_file(&place, "v", &format!("size = '1M'\n{keys}")));
    let mut engine = place.engine();
    let mut before = Checked::default();
    let mut unit = None;
    for (keys, is_shared) in [("", false), ("shared = true\n", true), ("shared = false\n", false)] {
        let after = text(keys);
        place.apply(&mut engine, &before, &after).expect("it can be made");
        let now = engine.unit_of("v").expect("it is served");
        assert_eq!(*unit.get_or_insert(now), now, "{keys}");
        let options = lunar_file::Options {
            size: None,
            creates: true,
            grows: false,
            mark: None,
            read_only: false,
            shared: true,
            durable: false,
            direct: false,
            block_size: 512,
        };
        let other = lunar_file::FileVolume::new(&place.0.join("v.img"), &options);
        assert_eq!(other.is_ok(), is_shared, "{keys}");
        before = after;
    }
    engine.end().expect("it ends");
}

#[test]
fn a_new_file_without_a_size_is_refused_and_the_error_names_the_key() {
    let place = Place::new();
    let wanted = place.checked(&in_file(&place, "v", ""));
    let mut engine = place.engine();
    for _is_there in [false, true] {
        let why = place.apply(&mut engine, &Checked::default(), &wanted).expect_err("it has no size");
        assert!(why.contains("add the key `size`") && !why.contains(":20G"), "{why}");
        std::fs::write(place.0.join("v.img"), b"").expect("a file without bytes");
    }
    engine.end().expect("it ends");
}

#[test]
fn a_removed_file_is_not_created_again() {
    let place = Place::new();
    let path = place.0.join("v.img");
    let wanted = place.checked(&in_file(&place, "v", "size = '1M'\n"));
    let mut engine = place.engine();
    engine.expect(["v".to_owned()].into());
    for is_there in [false, true] {
        let why = place.apply(&mut engine, &Checked::default(), &wanted).expect_err("it was served before");
        let words = ["does not exist or is empty: is its file system mounted?", "truncate -s 1M"];
        assert!(words.iter().all(|words| why.contains(words)), "{why}");
        assert_eq!(path.exists(), is_there, "looking makes nothing");
        std::fs::write(&path, b"").expect("a file without bytes");
    }
    let file = File::options().write(true).open(&path).expect("it is there");
    file.set_len(1 << 20).expect("room");
    place.apply(&mut engine, &Checked::default(), &wanted).expect("it is there again");
    // Afterwards, it is served like every other volume.
    engine.expect(BTreeSet::new());
    place.apply(&mut engine, &wanted, &Checked::default()).expect("it goes");
    std::fs::remove_file(&path).expect("it is there");
    place.apply(&mut engine, &Checked::default(), &wanted).expect("it is made");
    assert_eq!(path.metadata().expect("made").len(), 1 << 20);
    engine.end().expect("it ends");
}

#[test]
fn a_volume_never_shrinks_with_other_changes() {
    let place = Place::new();
    let text = |size: &str, keys: &str| place.checked(&in_file(&place, "v", &format!("size = '{size}'\n{keys}")));
    let mut engine = place.engine();
    let before = text("2M", "");
    place.apply(&mut engine, &Checked::default(), &before).expect("it can be made");
    let first = seen(&engine);
    for keys in ["", "product = 'OTHER'\n", "product = 'OTHER'\nread-only = true\n"] {
        let why = place.apply(&mut engine, &before, &text("1M", keys)).expect_err("half of it would be lost");
        assert!(why.contains("would lose the data"), "{why}");
        assert_eq!(seen(&engine), first);
    }
    place.apply(&mut engine, &before, &text("3M", "product = 'OTHER'\n")).expect("it grows");
    engine.end().expect("it ends");
}

#[test]
fn namespaces_of_hosts_are_seen_by_groups_that_name_their_pool() {
    let place = Place::new();
    let text = |folder: &str, group: &str, made: &str| {
        let nqn = "nqn.2026-01.org.example:t";
        let own = in_file(&place, "few-ns2", &format!("size = '1M'\npool = 'few'\nnamespace = 2\n{made}"));
        place.checked(&format!(
            "[pool.few]\nfolder = '{}/{folder}'\nspace = '3M'\n{own}[portal-group.p]\ntag = 1\n\
             [target.t]\nnqn = '{nqn}'\nportal-groups = ['p']\n\
             [group.g]\ntargets = ['t']\ninitiators = ['*']\n{group}",
            place.0.display()
        ))
    };
    let told = |engine: &Engine| {
        let directory = engine.core_set().shared().subsystems.directory();
        let pool = directory.subsystem("nqn.2026-01.org.example:t").and_then(|entry| entry.pools.get("g").cloned());
        let pool = pool.map(|pool| (pool.left, pool.private.len(), pool.of_host("NQN.x").len()));
        let mut seen = engine.core_set().cores().ask_all(|core| {
            let maps = core.subsystem.maps();
            let all = maps.iter().flat_map(|(_, map)| map.namespaces().map(|(id, to)| (id, to.sharing)));
            std::future::ready(all.collect::<Vec<_>>())
        });
        seen.dedup();
        assert_eq!(seen.len(), 1, "all cores see the same");
        (pool, seen.remove(0))
    };
    let mut engine = place.engine();
    let first = text("", "pool = 'few'\n", "");
    place.apply(&mut engine, &Checked::default(), &first).expect("it can be made");
    let unit = engine.unit_of("few-ns2").expect("it is served");
    let shared = vec![(2, Some(lunar_nvme::NamespaceSharing::Shared))];
    assert_eq!(told(&engine), (Some((2 << 20, 0, 0)), shared));
    let second = text("", "pool = 'few'\n", "private = true\nattached = ['nqn.X']\n");
    place.apply(&mut engine, &first, &second).expect("it can be changed");
    let private = vec![(2, Some(lunar_nvme::NamespaceSharing::Private))];
    assert_eq!(told(&engine), (Some((2 << 20, 1, 1)), private));
    // The operator maps it under a namespace ID; then the map no longer shows it.
    let third = text("", "pool = 'few'\nluns = { 7 = 'few-ns2' }\n", "");
    place.apply(&mut engine, &second, &third).expect("it can be changed");
    assert_eq!(told(&engine), (Some((2 << 20, 0, 0)), vec![(2, None)]));
    let last = text("", "", "");
    place.apply(&mut engine, &third, &last).expect("it can be changed");
    assert_eq!((told(&engine), engine.unit_of("few-ns2").expect("it is served")), ((None, vec![]), unit));
    let why = place.apply(&mut engine, &last, &text("none", "", "")).expect_err("there is no such folder");
    assert!(why.contains("make the folder first"), "{why}");
    engine.end().expect("it ends");
}

#[test]
fn tokens_of_a_removed_volume_do_not_match_a_new_volume() {
    use lunar_scsi::copy::tokens::Data;
    let place = Place::new();
    let text = |name: &str| {
        let uuid = format!("f81d4fae-7dec-41d0-a765-00a0c91e6b0{name}");
        place.checked(&format!("[volume.{name}]\nkind = 'ram'\nsize = '1M'\nuuid = '{uuid}'\n"))
    };
    let mut engine = place.engine();
    let (first, second) = (text("a"), text("b"));
    place.apply(&mut engine, &Checked::default(), &first).expect("it can be made");
    let unit = engine.unit_of("a").expect("it is served");
    let tokens = engine.core_set().shared().tokens.clone();
    let data = Data { unit, ranges: [(0, 4096)].into() };
    let token = tokens.make([0; 32], data, Duration::from_secs(60)).expect("random bytes");
    assert!(tokens.find(&token).is_ok());
    place.apply(&mut engine, &first, &second).expect("it can be made");
    assert_ne!(engine.unit_of("b").expect("it is served"), unit);
    assert!(tokens.find(&token).is_err(), "what it stood for is gone");
    engine.end().expect("it ends");
}

/// The number of descriptors of this process that are open at a path.
fn open_at(path: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").expect("proc is mounted");
    all.filter_map(Result::ok).filter(|one| std::fs::read_link(one.path()).is_ok_and(|link| link == path)).count()
}

#[test]
fn a_file_is_free_when_its_engine_has_ended() {
    let (place, [port, nvme]) = (Place::new(), free_ports());
    let path = place.0.join("disk.img");
    let text = format!(
        "[volume.a]\nkind = 'file'\npath = '{}'\nsize = '1M'\n\
         uuid = 'f81d4fae-7dec-41d0-a765-00a0c91e6b0a'\n[portal-group.p]\ntag = 1\n\
         [portal.a]\naddress = '127.0.0.1:{port}'\ngroup = 'p'\n\
         [portal.b]\naddress = '127.0.0.1:{nvme}'\ngroup = 'p'\nprotocol = 'nvme-tcp'\n\
         [target.t]\niqn = 'iqn.2026-01.org.example:t'\nnqn = 'nqn.2026-01.org.example:t'\nportal-groups = ['p']\n\
         [vm.v]\ntarget = 't'\nsocket = '{}'\n\
         [group.g]\ntargets = ['t']\ninitiators = ['*']\nluns = {{ 0 = 'a' }}\n",
        path.display(),
        place.0.join("vm").display()
    );
    for driver in ["epoll", "auto"].into_iter().cycle().take(4) {
        let wanted = place.checked_for(driver, &text);
        let start = || assembly::start(&place.checked_for(driver, "").config, &place.0).expect("cores start");
        let mut engine = start();
        place.apply(&mut engine, &Checked::default(), &wanted).expect("the file is free");
        let connected = [port, nvme].map(|port| std::net::TcpStream::connect(("127.0.0.1", port)).expect("a portal"));
        assert!(open_at(&path) > 0);
        engine.end().expect("it ends");
        drop(connected);
        // A worker thread that has just closed its part of the file may still run.
        let end = std::time::Instant::now() + Duration::from_secs(5);
        while open_at(&path) > 0 && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(open_at(&path), 0, "{driver}");
    }
}

#[test]
fn one_portal_replaces_several() {
    let (place, [port, taken]) = (Place::new(), free_ports());
    let portal =
        |name: &str, address: &str, port: u16| format!("[portal.{name}]\naddress = '{address}:{port}'\ngroup = 'p'\n");
    let group = "[portal-group.p]\ntag = 1\n".to_owned();
    let several = group.clone() + &portal("a", "127.0.0.1", port) + &portal("b", "127.0.0.2", port);
    let one = group + &portal("all", "0.0.0.0", port);
    let more = one.clone() + &portal("more", "127.0.0.1", taken);
    let [several, one, more] = [several, one, more].map(|text| place.checked(&text));
    let mut engine = place.engine();
    let is_heard = || ["127.0.0.1", "127.0.0.2"].map(|host| std::net::TcpStream::connect((host, port)).is_ok());
    place.apply(&mut engine, &Checked::default(), &several).expect("it can be made");
    assert_eq!(is_heard(), [true; 2]);
    // A change that fails leaves all portals as they were.
    let holder = std::net::TcpListener::bind(("127.0.0.1", taken)).expect("it was free");
    place.apply(&mut engine, &several, &more).expect_err("the other port is taken");
    assert_eq!((is_heard(), engine.troubles().len()), ([true; 2], 0));
    drop(holder);
    place.apply(&mut engine, &several, &one).expect("it can be made");
    assert_eq!((is_heard(), engine.portals().len()), ([true; 2], 1));
    place.apply(&mut engine, &one, &several).expect("and back");
    assert_eq!((is_heard(), engine.portals().len()), ([true; 2], 2));
    engine.end().expect("it ends");
}

#[test]
fn a_portal_that_cannot_listen_is_a_trouble_until_it_can() {
    let (place, [port, _]) = (Place::new(), free_ports());
    let text = |name: &str, tag: u8| {
        place.checked(&format!(
            "[portal-group.p]\ntag = {tag}\n[portal.{name}]\naddress = '127.0.0.1:{port}'\ngroup = 'p'\n"
        ))
    };
    let all = [text("a", 1), text("a", 2), text("a", 3), text("b", 3)];
    let is_heard = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    let troubles = |engine: &mut Engine| engine.troubles().len();
    for is_another_portal in [false, true] {
        let mut engine = place.engine();
        place.apply(&mut engine, &Checked::default(), &all[0]).expect("it can be made");
        // Another program binds the port in the moment in which it is free.
        let own = engine.portals()["a"];
        engine.core_set().close(own.id);
        let bind = || std::net::TcpListener::bind(("127.0.0.1", port));
        let holder = until_free(PORT_PATIENCE, bind, |why| why.kind() == ErrorKind::AddrInUse).expect("it is free");
        engine.listen_again(own, Duration::ZERO);
        assert_eq!(troubles(&mut engine), 1);
        place.apply(&mut engine, &all[0], &all[1]).expect("that is possible");
        assert_eq!(troubles(&mut engine), 1, "it is as deaf as before");
        drop(holder);
        assert!(!is_heard());
        let next = if is_another_portal { &all[3] } else { &all[2] };
        place.apply(&mut engine, &all[1], next).expect("it can be made");
        assert_eq!((troubles(&mut engine), is_heard()), (0, true));
        engine.end().expect("it ends");
    }
}

#[test]
fn an_address_moves_from_one_portal_to_another() {
    let (place, [port, _]) = (Place::new(), free_ports());
    let text = |name: &str, address: &str, tag: u8| {
        place.checked(&format!(
            "[portal-group.p]\ntag = {tag}\n[portal.{name}]\naddress = '{address}:{port}'\ngroup = 'p'\n"
        ))
    };
    let mut engine = place.engine();
    let mut before = Checked::default();
    let all = [
        text("a", "127.0.0.1", 1),
        text("b", "127.0.0.1", 1),
        text("b", "0.0.0.0", 1),
        text("c", "127.0.0.1", 2),
        text("c", "127.0.0.1", 3),
    ];
    for after in all {
        place.apply(&mut engine, &before, &after).expect("it can be made");
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        before = after;
    }
    engine.end().expect("it ends");
}

#[test]
fn sockets_of_virtual_machines_are_added_changed_and_removed() {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;
    let place = Place::new();
    let text = |target: &str, keys: &str| {
        let target_of =
            |name| format!("[target.{name}]\nnqn = 'nqn.2026-01.org.example:{name}'\nportal-groups = ['p']\n");
        place.checked(&format!(
            "[portal-group.p]\ntag = 1\n{}{}[vm.web]\ntarget = '{target}'\n{keys}",
            target_of("t"),
            target_of("u")
        ))
    };
    let (first, second) = (place.0.join("deep/first"), place.0.join("second"));
    let at = |path: &Path| format!("socket = '{}'\n", path.display());
    let mut engine = place.engine();
    let steps = [
        (text("t", &at(&first)), &first, 0o600),
        (text("t", &(at(&first) + "mode = '660'\n")), &first, 0o660),
        // The same socket path, in the section of another virtual machine.
        (text("u", &(at(&first) + "mode = '606'\n")), &first, 0o606),
        (text("u", &at(&second)), &second, 0o600),
    ];
    let mut before = Checked::default();
    for (after, path, mode) in steps {
        place.apply(&mut engine, &before, &after).expect("it can be made");
        assert_eq!(std::fs::metadata(path).expect("there").mode() & 0o777, mode);
        assert!(UnixStream::connect(path).is_ok());
        before = after;
    }
    assert!(!first.exists(), "it has moved away");
    // A change that fails leaves everything as it was.
    let _holder = std::os::unix::net::UnixListener::bind(&first).expect("nobody is there");
    let wrong = text("u", &(at(&first) + "mode = '666'\n"));
    let why = place.apply(&mut engine, &before, &wrong).expect_err("another serves it");
    assert!(why.contains("served by another process"), "{why}");
    let why = place.apply(&mut engine, &before, &text("u", &(at(&second) + "owner = 'no such user'\n")));
    assert!(why.expect_err("nobody is called so").contains("no user no such user"));
    assert_eq!(std::fs::metadata(&second).expect("there").mode() & 0o777, 0o600);
    let seen = engine.vms();
    assert!(seen.len() == 1 && seen[0].qemu[2].contains(&second.display().to_string()), "{seen:?}");
    place.apply(&mut engine, &before, &Checked::default()).expect("it can be made");
    assert!(!second.exists() && UnixStream::connect(&second).is_err());
    engine.end().expect("it ends");
}

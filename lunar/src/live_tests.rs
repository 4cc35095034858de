use super::*;
use lunar_control::apply::Leniency;
use lunar_control::check::{Machine, check};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that goes with the test.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lunar-live-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn checked(&self, text: &str) -> Checked {
        let text = format!("[server]\ncores = 2\nmemory = '8M'\ndriver = 'epoll'\ndrain = '100ms'\n{text}");
        let machine = Machine { config: self.0.join("lunar.toml") };
        check("lunar.toml", &text, &machine).unwrap_or_else(|why| panic!("{text}\n{why}"))
    }

    fn live(&self) -> Live {
        Live::start(&self.checked("").config, &self.0).expect("cores start")
    }

    /// Makes what runs `after` what runs `before`.
    fn apply(&self, live: &mut Live, before: &Checked, after: &Checked) -> Result<(), String> {
        let plan = Plan::between(before, after);
        let strict = Leniency { forgiven: BTreeSet::new(), again: &mut |_, _| unreachable!("nothing is forgiven") };
        let done = lunar_control::apply::apply(live, &plan, after, strict, || Ok(()));
        live.settled();
        done.map(|absent| assert!(absent.is_empty(), "nothing is forgiven")).map_err(|why| why.to_string())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Everything that somebody from outside could tell of what runs. Units are called by what they are: which number each
/// has depends on what was there before.
fn seen(live: &Live) -> Value {
    let cores = live.house().cores().ask_all(|core| {
        let who = |unit: UnitId| core.links.unit(unit).map_or_else(String::new, |unit| unit.identity.serial.clone());
        let units: BTreeMap<String, Value> = core
            .links
            .units()
            .iter()
            .map(|unit| {
                let shared = core.served.units.shared().get(unit.id);
                let of = |group| shared.as_ref().map(|unit| format!("{:?}", unit.state().access().of(group).state));
                let ways = [1_u16, 2].map(of);
                let hosts = core.served.subsystem.unit(unit.id);
                let hosts = hosts.map(|seen| [1_u16, 2].map(|group| seen.access(group).0));
                let told = json!([unit.geometry.blocks, unit.geometry.block_size, unit.read_only, ways, hosts]);
                (unit.identity.serial.clone(), told)
            })
            .collect();
        let maps: BTreeMap<String, Value> = core
            .served
            .target
            .maps()
            .into_iter()
            .map(|(name, map)| {
                let luns = map.luns().map(|(lun, to)| json!([lun, who(UnitId(to.unit.into())), to.read_only]));
                (name.to_string(), luns.collect())
            })
            .collect();
        let namespaces: BTreeMap<String, Value> = core
            .served
            .subsystem
            .maps()
            .into_iter()
            .map(|(name, map)| {
                let all = map.namespaces().map(|(id, to)| json!([id, who(to.unit), to.read_only, to.metadata]));
                (name.to_string(), all.collect())
            })
            .collect();
        let mut ports: Vec<String> = core.served.target.port_names();
        ports.sort();
        std::future::ready(json!({ "units": units, "maps": maps, "namespaces": namespaces, "ports": ports }))
    });
    let directory = live.house().common().guard.directory();
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
    let nvme = live.house().common().board.directory();
    let subsystems: Vec<String> = nvme.subsystems().map(|entry| format!("{entry:?}")).collect();
    let mut told: Vec<String> =
        nvme.portals.iter().flatten().map(|one| format!("{:?} {}", one.address, one.group)).collect();
    told.sort();
    let nvme = json!([subsystems, told, machines(live)]);
    let sessions = directory.sessions_max;
    json!({ "nvme": nvme, "cores": cores, "targets": targets, "portals": portals, "sessions": sessions })
}

/// The virtual machines that are served, on whichever core, and who may open their sockets.
fn machines(live: &Live) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let all = live.house().cores().ask_all(|core| {
        std::future::ready(core.served.machines.get().map_or_else(Vec::new, |front| front.endpoints()))
    });
    let mode = |path: &Path| std::fs::metadata(path).expect("the socket is there").mode() & 0o777;
    let mut all: Vec<String> = all.into_iter().flatten().map(|one| format!("{one:?} {:o}", mode(&one.path))).collect();
    all.sort();
    all
}

/// A configuration by the throw of dice; all of them want two ports of the machine, and sockets in this folder.
fn thrown(dice: &[u8], ports: [u16; 2], folder: &Path) -> String {
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
    let (targets, mut machines) = (roll(3), String::new());
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
            machines += &format!("[vm.m{n}]\ntarget = 't{n}'\nsocket = '{}'\nmode = '{mode}'\n", socket.display());
        }
    }
    for n in 0..roll(3) {
        let members = (0..targets).filter(|_| roll(2) == 0).map(|t| format!("'t{t}'")).collect::<Vec<_>>().join(", ");
        let _ = write!(
            text,
            "[group.g{n}]\ntargets = [{members}]\ninitiators = [{}]\n[group.g{n}.luns]\n",
            // NVMe hosts belong to one of them: two might not agree what an identifier means.
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
    text + &machines
}

fn dice() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 61)
}

/// Two ports of this machine that nobody has right now.
fn free_ports() -> [u16; 2] {
    let bind = || std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let listeners = [bind(), bind()];
    listeners.map(|listener| listener.local_addr().expect("an address").port())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn one_after_the_other_is_the_other(one in dice(), other in dice()) {
        let (place, ports) = (Place::new(), free_ports());
        let [one, other] = [one, other].map(|dice| place.checked(&thrown(&dice, ports, &place.0)));
        let mut both = place.live();
        place.apply(&mut both, &Checked::default(), &one).expect("it can be made");
        // A volume that would shrink is refused: then everything is as it was.
        let before = seen(&both);
        let changed = place.apply(&mut both, &one, &other);
        let after = seen(&both);
        both.end().expect("it ends");
        if let Err(why) = changed {
            prop_assert!(why.contains("would be lost"), "{}", why);
            prop_assert_eq!(after, before);
            return Ok(());
        }
        let mut alone = place.live();
        place.apply(&mut alone, &Checked::default(), &other).expect("it can be made");
        let wanted = seen(&alone);
        alone.end().expect("it ends");
        prop_assert_eq!(after, wanted, "{}", Plan::between(&one, &other));
        prop_assert!(Plan::between(&other, &other).is_empty());
    }
}

#[test]
fn what_cannot_be_made_leaves_everything_as_it_was() {
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
    let mut live = place.live();
    place.apply(&mut live, &Checked::default(), &one).expect("it can be made");
    let before = seen(&live);
    let why = place.apply(&mut live, &one, &other).expect_err("the port is taken");
    assert!(why.contains("in use by another program") && why.contains("nothing was changed"), "{why}");
    assert_eq!(seen(&live), before);
    // What was opened for it is let go.
    drop(_holder);
    place.apply(&mut live, &one, &other).expect("it can be made now");
    assert!(std::net::TcpStream::connect(("127.0.0.1", taken)).is_ok());
    live.end().expect("it ends");
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
fn who_else_may_serve_a_volume_changes_under_its_initiators() {
    let place = Place::new();
    let text = |keys: &str| place.checked(&in_file(&place, "v", &format!("size = '1M'\n{keys}")));
    let mut live = place.live();
    let mut before = Checked::default();
    let mut unit = None;
    for (keys, is_shared) in [("", false), ("shared = true\n", true), ("shared = false\n", false)] {
        let after = text(keys);
        place.apply(&mut live, &before, &after).expect("it can be made");
        let now = live.volumes["v"].unit;
        assert_eq!(*unit.get_or_insert(now), now, "{keys}");
        let options = lunar_file::Options {
            size: None,
            makes: true,
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
    live.end().expect("it ends");
}

#[test]
fn a_file_without_a_size_is_asked_for_one_in_words_of_the_configuration() {
    let place = Place::new();
    let wanted = place.checked(&in_file(&place, "v", ""));
    let mut live = place.live();
    for _is_there in [false, true] {
        let why = place.apply(&mut live, &Checked::default(), &wanted).expect_err("it has no size");
        assert!(why.contains("give it a `size`") && !why.contains(":20G"), "{why}");
        std::fs::write(place.0.join("v.img"), b"").expect("a file without bytes");
    }
    live.end().expect("it ends");
}

#[test]
fn a_file_that_is_gone_is_not_made_anew() {
    let place = Place::new();
    let path = place.0.join("v.img");
    let wanted = place.checked(&in_file(&place, "v", "size = '1M'\n"));
    let mut live = place.live();
    live.expect(["v".to_owned()].into());
    for is_there in [false, true] {
        let why = place.apply(&mut live, &Checked::default(), &wanted).expect_err("it was served before");
        assert!(why.contains("is gone: is its file system mounted?") && why.contains("truncate -s 1M"), "{why}");
        assert_eq!(path.exists(), is_there, "looking makes nothing");
        std::fs::write(&path, b"").expect("a file without bytes");
    }
    let file = File::options().write(true).open(&path).expect("it is there");
    file.set_len(1 << 20).expect("room");
    place.apply(&mut live, &Checked::default(), &wanted).expect("it is there again");
    // From then on it is one like all others.
    live.expect(BTreeSet::new());
    place.apply(&mut live, &wanted, &Checked::default()).expect("it goes");
    std::fs::remove_file(&path).expect("it is there");
    place.apply(&mut live, &Checked::default(), &wanted).expect("it is made");
    assert_eq!(path.metadata().expect("made").len(), 1 << 20);
    live.end().expect("it ends");
}

#[test]
fn a_volume_gets_no_smaller_whatever_else_changes() {
    let place = Place::new();
    let text = |size: &str, keys: &str| place.checked(&in_file(&place, "v", &format!("size = '{size}'\n{keys}")));
    let mut live = place.live();
    let before = text("2M", "");
    place.apply(&mut live, &Checked::default(), &before).expect("it can be made");
    let first = seen(&live);
    for keys in ["", "product = 'OTHER'\n", "product = 'OTHER'\nread-only = true\n"] {
        let why = place.apply(&mut live, &before, &text("1M", keys)).expect_err("half of it would be lost");
        assert!(why.contains("would be lost"), "{why}");
        assert_eq!(seen(&live), first);
    }
    place.apply(&mut live, &before, &text("3M", "product = 'OTHER'\n")).expect("it grows");
    live.end().expect("it ends");
}

#[test]
fn what_hosts_made_is_seen_where_its_pool_is_named() {
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
    let told = |live: &Live| {
        let directory = live.house().common().board.directory();
        let pool = directory.subsystem("nqn.2026-01.org.example:t").and_then(|entry| entry.pools.get("g").cloned());
        let pool = pool.map(|pool| (pool.left, pool.private.len(), pool.of_host("NQN.x").len()));
        let mut seen = live.house().cores().ask_all(|core| {
            let maps = core.served.subsystem.maps();
            let all = maps.iter().flat_map(|(_, map)| map.namespaces().map(|(id, to)| (id, to.made)));
            std::future::ready(all.collect::<Vec<_>>())
        });
        seen.dedup();
        assert_eq!(seen.len(), 1, "all cores see the same");
        (pool, seen.remove(0))
    };
    let mut live = place.live();
    let first = text("", "pool = 'few'\n", "");
    place.apply(&mut live, &Checked::default(), &first).expect("it can be made");
    let unit = live.volumes["few-ns2"].unit;
    let shared = vec![(2, Some(lunar_nvme::Made::Shared))];
    assert_eq!(told(&live), (Some((2 << 20, 0, 0)), shared));
    let second = text("", "pool = 'few'\n", "private = true\nattached = ['nqn.X']\n");
    place.apply(&mut live, &first, &second).expect("it can be changed");
    let private = vec![(2, Some(lunar_nvme::Made::Private))];
    assert_eq!(told(&live), (Some((2 << 20, 1, 1)), private));
    // The operator shows it, by its own identifier; and then nobody does.
    let third = text("", "pool = 'few'\nluns = { 7 = 'few-ns2' }\n", "");
    place.apply(&mut live, &second, &third).expect("it can be changed");
    assert_eq!(told(&live), (Some((2 << 20, 0, 0)), vec![(2, None)]));
    let last = text("", "", "");
    place.apply(&mut live, &third, &last).expect("it can be changed");
    assert_eq!((told(&live), live.volumes["few-ns2"].unit), ((None, vec![]), unit));
    let why = place.apply(&mut live, &last, &text("none", "", "")).expect_err("there is no such folder");
    assert!(why.contains("make the folder first"), "{why}");
    live.end().expect("it ends");
}

#[test]
fn a_number_comes_back_as_late_as_can_be() {
    let mut numbers = Numbers::default();
    let all = u32::from(LUNS_MAX);
    assert_eq!([numbers.take(), numbers.take()], [Some(0), Some(1)]);
    numbers.give_back(0);
    assert!((2..all).all(|number| numbers.take() == Some(number)));
    assert_eq!([numbers.take(), numbers.take()], [Some(0), None]);
    [7, 5].into_iter().for_each(|number| numbers.give_back(number));
    assert_eq!([numbers.take(), numbers.take(), numbers.take()], [Some(5), Some(7), None]);
}

#[test]
fn nothing_of_a_volume_that_is_gone_is_anothers() {
    use lunar_scsi::copy::tokens::Data;
    let place = Place::new();
    let text = |name: &str| {
        let uuid = format!("f81d4fae-7dec-41d0-a765-00a0c91e6b0{name}");
        place.checked(&format!("[volume.{name}]\nkind = 'ram'\nsize = '1M'\nuuid = '{uuid}'\n"))
    };
    let mut live = place.live();
    let (first, second) = (text("a"), text("b"));
    place.apply(&mut live, &Checked::default(), &first).expect("it can be made");
    let unit = live.volumes["a"].unit;
    let tokens = live.house().common().tokens.clone();
    let data = Data { unit, ranges: [(0, 4096)].into() };
    let token = tokens.make([0; 32], data, Duration::from_secs(60)).expect("random bytes");
    assert!(tokens.find(&token).is_ok());
    place.apply(&mut live, &first, &second).expect("it can be made");
    assert_ne!(live.volumes["b"].unit, unit);
    assert!(tokens.find(&token).is_err(), "what it stood for is gone");
    live.end().expect("it ends");
}

#[test]
fn one_portal_takes_the_place_of_several() {
    let (place, [port, taken]) = (Place::new(), free_ports());
    let portal =
        |name: &str, address: &str, port: u16| format!("[portal.{name}]\naddress = '{address}:{port}'\ngroup = 'p'\n");
    let group = "[portal-group.p]\ntag = 1\n".to_owned();
    let several = group.clone() + &portal("a", "127.0.0.1", port) + &portal("b", "127.0.0.2", port);
    let one = group + &portal("all", "0.0.0.0", port);
    let more = one.clone() + &portal("more", "127.0.0.1", taken);
    let [several, one, more] = [several, one, more].map(|text| place.checked(&text));
    let mut live = place.live();
    let is_heard = || ["127.0.0.1", "127.0.0.2"].map(|host| std::net::TcpStream::connect((host, port)).is_ok());
    place.apply(&mut live, &Checked::default(), &several).expect("it can be made");
    assert_eq!(is_heard(), [true; 2]);
    // What cannot be leaves all of them.
    let holder = std::net::TcpListener::bind(("127.0.0.1", taken)).expect("it was free");
    place.apply(&mut live, &several, &more).expect_err("the other port is taken");
    assert_eq!((is_heard(), live.settled.deaf.len()), ([true; 2], 0));
    drop(holder);
    place.apply(&mut live, &several, &one).expect("it can be made");
    assert_eq!((is_heard(), live.listeners.len()), ([true; 2], 1));
    place.apply(&mut live, &one, &several).expect("and back");
    assert_eq!((is_heard(), live.listeners.len()), ([true; 2], 2));
    live.end().expect("it ends");
}

#[test]
fn what_is_not_listened_at_stays_told_until_it_is() {
    let (place, [port, _]) = (Place::new(), free_ports());
    let text = |name: &str, tag: u8| {
        place.checked(&format!(
            "[portal-group.p]\ntag = {tag}\n[portal.{name}]\naddress = '127.0.0.1:{port}'\ngroup = 'p'\n"
        ))
    };
    let all = [text("a", 1), text("a", 2), text("a", 3), text("b", 3)];
    let is_heard = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    let troubles = |live: &mut Live| lunar_control::live::Live::troubles(live).len();
    for is_another_portal in [false, true] {
        let mut live = place.live();
        place.apply(&mut live, &Checked::default(), &all[0]).expect("it can be made");
        // Another program has the port in the moment in which it is free.
        let own = live.listeners["a"];
        live.house.close(own.id);
        let bind = || std::net::TcpListener::bind(("127.0.0.1", port));
        let holder = until_free(PORT_PATIENCE, bind, |why| why.kind() == ErrorKind::AddrInUse).expect("it is free");
        live.listen_again(own, Duration::ZERO);
        assert_eq!(troubles(&mut live), 1);
        place.apply(&mut live, &all[0], &all[1]).expect("that is possible");
        assert_eq!(troubles(&mut live), 1, "it is as deaf as before");
        drop(holder);
        assert!(!is_heard());
        let next = if is_another_portal { &all[3] } else { &all[2] };
        place.apply(&mut live, &all[1], next).expect("it can be made");
        assert_eq!((troubles(&mut live), is_heard()), (0, true));
        live.end().expect("it ends");
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
    let mut live = place.live();
    let mut before = Checked::default();
    let all = [
        text("a", "127.0.0.1", 1),
        text("b", "127.0.0.1", 1),
        text("b", "0.0.0.0", 1),
        text("c", "127.0.0.1", 2),
        text("c", "127.0.0.1", 3),
    ];
    for after in all {
        place.apply(&mut live, &before, &after).expect("it can be made");
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        before = after;
    }
    live.end().expect("it ends");
}

#[test]
fn ports_keep_their_numbers() {
    let place = Place::new();
    let text = |more: &str| {
        let text = "[portal-group.p]\ntag = 1\n[portal-group.q]\ntag = 2\n\
                    [target.b]\niqn = 'iqn.2026-01.org.example:b'\n\
                    portal-groups = ['p', 'q']\n";
        place.checked(&format!("{text}{more}"))
    };
    let mut ports = Ports::open(&place.0).expect("nothing is there");
    ports.provide(&text("").config).expect("they are written");
    let first = ports.of("iqn.2026-01.org.example:b", 2);
    assert!(first.is_some());
    let more = "[target.a]\niqn = 'iqn.2026-01.org.example:a'\nportal-groups = ['p']\n";
    ports.provide(&text(more).config).expect("they are written");
    let again = Ports::open(&place.0).expect("they are read");
    assert_eq!((&again, again.of("iqn.2026-01.org.example:b", 2)), (&ports, first));
    std::fs::write(place.0.join("ports.json"), "{").expect("a file");
    assert!(Ports::open(&place.0).is_err());
}

#[test]
fn sockets_of_virtual_machines_come_change_and_go() {
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
    let mut live = place.live();
    let steps = [
        (text("t", &at(&first)), &first, 0o600),
        (text("t", &(at(&first) + "mode = '660'\n")), &first, 0o660),
        // The same socket, for what counts as another machine.
        (text("u", &(at(&first) + "mode = '606'\n")), &first, 0o606),
        (text("u", &at(&second)), &second, 0o600),
    ];
    let mut before = Checked::default();
    for (after, path, mode) in steps {
        place.apply(&mut live, &before, &after).expect("it can be made");
        assert_eq!(std::fs::metadata(path).expect("there").mode() & 0o777, mode);
        assert!(UnixStream::connect(path).is_ok());
        before = after;
    }
    assert!(!first.exists(), "it has moved away");
    // What cannot be leaves everything as it was.
    let _holder = std::os::unix::net::UnixListener::bind(&first).expect("nobody is there");
    let wrong = text("u", &(at(&first) + "mode = '666'\n"));
    let why = place.apply(&mut live, &before, &wrong).expect_err("another serves it");
    assert!(why.contains("served by another process"), "{why}");
    let why = place.apply(&mut live, &before, &text("u", &(at(&second) + "owner = 'no such user'\n")));
    assert!(why.expect_err("nobody is called so").contains("no user no such user"));
    assert_eq!(std::fs::metadata(&second).expect("there").mode() & 0o777, 0o600);
    let seen = lunar_control::live::Live::machines(&mut live);
    assert!(seen.len() == 1 && seen[0].qemu[2].contains(&second.display().to_string()), "{seen:?}");
    place.apply(&mut live, &before, &Checked::default()).expect("it can be made");
    assert!(!second.exists() && UnixStream::connect(&second).is_err());
    live.end().expect("it ends");
}

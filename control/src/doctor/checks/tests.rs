//! Each code in both directions: the facts of a healthy target have no finding, and one change of them has exactly this
//! one.

use super::*;
use crate::check::Checked;
use crate::counters::{ClassCounters, CoreCounters, CountersView, HostCounters, TrafficCounters, VolumeCounters};
use crate::doctor::facts::*;
use crate::doctor::table::{Code, Severity};
use crate::rates::{CoreRates, Flow, HostRates, Rates};
use crate::testing::SAMPLE;
use serde_json::json;

const CONFIG: &str = "\
[server]\ncores = 2\n\
[limits]\nsessions = 100\n\
[volume.disk]\nkind = 'file'\npath = '/srv/disk.img'\nsize = '10G'\nuuid = '6ba7b810-9dad-11d1-80b4-00c04fd430c8'\n\
[volume.memory]\nkind = 'ram'\nsize = '1M'\n\
[user.esx]\nsecret = 'a secret, long enough'\n\
[portal-group.p]\ntag = 1\n\
[portal.one]\naddress = '192.0.2.1'\ngroup = 'p'\n\
[portal.two]\naddress = '198.51.100.1'\ngroup = 'p'\n\
[target.main]\niqn = 'iqn.2026-01.io.example:main'\nportal-groups = ['p']\nauthentication = 'chap'\nusers = ['esx']\n\
[discovery]\nauthentication = 'chap'\nusers = ['esx']\n\
[group.all]\ntargets = ['main']\ninitiators = ['*']\nluns = { 0 = 'disk', 1 = 'memory' }\n";

/// A target in a portal group without portals.
const ALONE: &str = "[portal-group.q]\ntag = 2\n[target.t]\niqn = 'iqn.2026-01.io.example:t'\nportal-groups = ['q']\n\
    authentication = 'chap'\nusers = ['esx']\n";

fn config(text: &str) -> crate::config::Config {
    Checked::of_version(&SAMPLE, text).config
}

fn mode(path: &str, mode: u32, owner: u32) -> FileMode {
    FileMode { path: path.into(), mode, owner, group: 0, has_acl: false }
}

fn interface(name: &str, address: [u8; 4]) -> Interface {
    Interface {
        name: name.into(),
        mtu: 9000,
        state: "UP".into(),
        addresses: vec![(address.into(), 24)],
        packets: 1_000_000,
        lost: 3,
    }
}

fn portal(name: &str, address: [u8; 4]) -> Portal {
    Portal { name: name.into(), address: (address, 3260).into(), advertise: None, connected: Some(None) }
}

fn session(source: &str) -> serde_json::Value {
    json!({ "id": source, "protocol": "iscsi", "discovery": false, "initiator": "iqn.a", "source": source,
        "target": "iqn.2026-01.io.example:main" })
}

fn rates() -> Rates {
    let core = |core, busy| CoreRates { core, busy, ..CoreRates::default() };
    Rates {
        time: 0,
        seconds: 2.0,
        total: Flow::default(),
        queue: 0,
        cores: vec![core(0, 0.7), core(1, 0.2)],
        volumes: Vec::new(),
        hidden_volumes: 0,
        stores: Vec::new(),
        hosts: vec![HostRates { host: "iqn.a".into(), target: "main".into(), logins: 1, ..HostRates::default() }],
    }
}

fn counters() -> CountersView {
    let read = ClassCounters { commands: 100_000, ..ClassCounters::default() };
    let traffic = TrafficCounters { read, ..TrafficCounters::default() };
    CountersView {
        cores: vec![CoreCounters { longest_turn_nanoseconds: 2_000_000, ..CoreCounters::default() }],
        volumes: vec![VolumeCounters { name: "disk".into(), traffic: traffic.clone(), ..VolumeCounters::default() }],
        hosts: vec![HostCounters { host: "iqn.a".into(), aborts: 9, traffic, ..HostCounters::default() }],
        ..CountersView::default()
    }
}

fn disk_file() -> Store {
    let folders = || vec![mode("/", 0o755, 0), mode("/srv", 0o755, 0)];
    let modes = folders().into_iter().chain([mode("/srv/disk.img", 0o600, 990)]).collect();
    let disk = Device {
        name: "sda".into(),
        cache: "write back".into(),
        cache_of_kernel: "write back".into(),
        ..Device::default()
    };
    Store {
        volume: "disk".into(),
        path: "/srv/disk.img".into(),
        exists: Some(true),
        size: 10 << 30,
        allocated: 1 << 30,
        modes,
        file_system: Some(1),
        direct_alignment: Some(512),
        devices: vec![disk],
        users: Vec::new(),
    }
}

fn well() -> Facts {
    Facts {
        file: "/etc/lunar/lunar.toml".into(),
        config: config(CONFIG),
        status: Some(json!({ "troubles": [], "after-restart": [] })),
        sessions: vec![session("192.0.2.9:1"), session("198.51.100.9:1")],
        statistics: Some(json!({ "task_set_full": 0, "busy_refused": 0, "digest_errors": 0 })),
        counters: Some(counters()),
        rates: Some(rates()),
        process: Some(Process { id: 7, descriptors: Some(1 << 20), locked: Some(1 << 20), ..Process::default() }),
        user: User { name: "lunar".into(), id: 990, groups: vec![990], capabilities: 0 },
        machine: ThisMachine {
            kernel: Some((6, 1)),
            io_uring_disabled: 0,
            clock: "tsc".into(),
            processors: 2,
            governors: vec![("intel_pstate".into(), "powersave".into())],
            huge_pages: "madvise".into(),
        },
        network: Network {
            interfaces: vec![interface("eth0", [192, 0, 2, 1]), interface("eth1", [198, 51, 100, 1])],
            arp_ignore: 0,
            congestion: "cubic".into(),
            first_port: 1024,
            segments: (1_000_000, 10),
        },
        portals: vec![portal("one", [192, 0, 2, 1]), portal("two", [198, 51, 100, 1])],
        ceph: Some(Ceph { program: "/usr/local/bin/lunar-rbd".into(), has_program: true, has_library: true }),
        stores: vec![disk_file()],
        file_systems: vec![FileSystem {
            number: 1,
            place: "/srv".into(),
            kind: "xfs".into(),
            options: vec!["rw".into(), "noatime".into()],
            size: 100 << 30,
            free: 50 << 30,
            punches: Some(true),
        }],
        state: Some(Store {
            path: "/var/lib/lunar".into(),
            modes: vec![mode("/var/lib/lunar", 0o700, 990)],
            file_system: Some(1),
            ..Store::default()
        }),
        secrets: vec![SecretFile {
            owner: "user esx".into(),
            path: "/etc/x".into(),
            mode: 0o100_600,
            ends_blank: Some(false),
        }],
        certificates: vec![Certificate { listener: "web".into(), path: "/etc/c.pem".into(), days: 90 }],
        ..Facts::default()
    }
}

fn of(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().map(|finding| finding.code.word()).collect()
}

fn replaced(facts: &mut Facts, old: &str, new: &str) {
    assert!(CONFIG.contains(old), "{old}");
    facts.config = config(&CONFIG.replace(old, new));
}

fn silent(facts: &mut Facts) {
    facts.silent = Some("the service is not running".into());
    (facts.status, facts.statistics, facts.counters, facts.rates) = (None, None, None, None);
    facts.sessions.clear();
    facts.portals.iter_mut().for_each(|portal| portal.connected = Some(Some("refused".into())));
}

type Change = fn(&mut Facts);

/// For each code, changes of healthy facts that have this finding, and those that come near it and have none.
fn cases(code: Code) -> (Vec<Change>, Vec<Change>) {
    match code.area() {
        crate::doctor::table::Area::State | crate::doctor::table::Area::Configuration => configured(code),
        _ if code == Code::CephMissing => (vec![|f| f.ceph = Some(Ceph::default())], vec![|f| f.ceph = None]),
        crate::doctor::table::Area::Stores => stored(code),
        crate::doctor::table::Area::Network => networked(code),
        _ => loaded(code),
    }
}

fn configured(code: Code) -> (Vec<Change>, Vec<Change>) {
    match code {
        Code::ServiceDown => (vec![silent], vec![]),
        Code::Trouble => (
            vec![|f| {
                f.status =
                    Some(json!({ "troubles": [{ "kind": "gone", "subject": "volume d", "words": "it is gone" }] }))
            }],
            vec![|f| f.status = None],
        ),
        Code::RestartPending => (vec![|f| f.status = Some(json!({ "after-restart": ["cores: 1 -> 2"] }))], vec![]),
        Code::StateNotWritable => (
            vec![|f| f.state.as_mut().expect("given").modes[0].owner = 0],
            vec![|f| {
                f.state.as_mut().expect("given").modes[0].owner = 0;
                f.user.capabilities = 1 << DAC_OVERRIDE;
            }],
        ),
        Code::StateFull => (
            vec![|f| {
                f.file_systems.push(FileSystem { number: 2, size: 1 << 30, free: 1 << 20, ..FileSystem::default() });
                f.state.as_mut().expect("given").file_system = Some(2);
            }],
            vec![|f| {
                f.file_systems.push(FileSystem { number: 2, size: 1 << 30, free: 17 << 20, ..FileSystem::default() });
                f.state.as_mut().expect("given").file_system = Some(2);
            }],
        ),
        Code::ConfigurationInvalid => (vec![|f| f.mistakes = Some("lunar.toml:1:1: wrong\nmore".into())], vec![]),
        Code::SecretReadable => (
            vec![|f| f.secrets[0].mode = 0o100_644, |f| f.secrets[0].mode = 0o640],
            vec![|f| f.secrets[0].mode = 0o400],
        ),
        Code::SecretBlank => (vec![|f| f.secrets[0].ends_blank = Some(true)], vec![|f| f.secrets[0].ends_blank = None]),
        Code::CertificateExpired => (vec![|f| f.certificates[0].days = -1], vec![]),
        Code::CertificateExpires => (
            vec![|f| f.certificates[0].days = 0, |f| f.certificates[0].days = 29],
            vec![|f| f.certificates[0].days = 30],
        ),
        code => shared(code),
    }
}

fn shared(code: Code) -> (Vec<Change>, Vec<Change>) {
    match code {
        Code::TargetWithoutPortals => (
            vec![|f| f.config = config(&format!("{CONFIG}{ALONE}"))],
            vec![|f| f.config = config(&format!("{CONFIG}{ALONE}[vm.v]\ntarget = 't'\n"))],
        ),
        Code::TargetOpen => (
            vec![|f| replaced(f, "initiators = ['*']", "initiators = ['*']\nauthentication = 'none'")],
            vec![|f| replaced(f, "initiators = ['*']", "initiators = ['iqn.a']\nauthentication = 'none'"), |f| {
                replaced(
                    f,
                    "initiators = ['*']",
                    "initiators = ['*']\nsources = ['192.0.2.0/24']\nauthentication = 'none'",
                )
            }],
        ),
        Code::UsersWithoutAuthentication => (
            vec![|f| {
                f.config =
                    config(&CONFIG.replace("authentication = 'chap'\nusers", "users").replace("['*']", "['iqn.a']"))
            }],
            vec![],
        ),
        Code::DiscoveryDiffers => {
            (vec![|f| replaced(f, "[discovery]\nauthentication = 'chap'\n", "[discovery]\n")], vec![])
        }
        Code::DiscoveryUsersDiffer => (
            vec![|f| {
                let other = "[user.finder]\nsecret = 'a secret, long enough'\n";
                let discovery = "[discovery]\nauthentication = 'chap'\nusers = ['finder']\n";
                let usual = "[discovery]\nauthentication = 'chap'\nusers = ['esx']\n";
                f.config = config(&(CONFIG.replace(usual, discovery) + other));
            }],
            vec![|f| {
                let other = "[user.finder]\nsecret = 'a secret, long enough'\n";
                let both = "[discovery]\nauthentication = 'chap'\nusers = ['esx', 'finder']\n";
                let usual = "[discovery]\nauthentication = 'chap'\nusers = ['esx']\n";
                f.config = config(&(CONFIG.replace(usual, both) + other));
            }],
        ),
        Code::LunZeroMissing => (
            vec![|f| replaced(f, "{ 0 = 'disk', 1", "{ 2 = 'disk', 1")],
            vec![|f| {
                let nvme = CONFIG.replace("iqn = 'iqn.2026-01.io.example:main'", "nqn = 'nqn.2026-01.io.example:main'");
                f.config = config(&nvme.replace("{ 0 = 'disk', 1", "{ 2 = 'disk', 1"));
            }],
        ),
        Code::NoOptimizedPath => (
            vec![|f| replaced(f, "tag = 1", "tag = 1\nalua-state = 'active-non-optimized'")],
            vec![|f| {
                let more = "[portal-group.q]\ntag = 2\nalua-state = 'standby'\n";
                f.config = config(&(CONFIG.replace("portal-groups = ['p']", "portal-groups = ['p', 'q']") + more));
            }],
        ),
        Code::VolumeUnmapped => (vec![|f| replaced(f, ", 1 = 'memory'", "")], vec![]),
        Code::GroupUnused => (
            vec![|f| {
                f.config = config(&(CONFIG.to_owned() + "[group.none]\ntargets = ['main']\ninitiators = ['iqn.b']\n"))
            }],
            vec![],
        ),
        Code::UserUnused => (
            vec![|f| f.config = config(&(CONFIG.to_owned() + "[user.gone]\nsecret = 'a secret, long enough'\n"))],
            vec![],
        ),
        code => panic!("{code} has no case"),
    }
}

fn stored(code: Code) -> (Vec<Change>, Vec<Change>) {
    match code {
        Code::StoreMissing => (vec![|f| f.stores[0].exists = Some(false)], vec![|f| f.stores[0].exists = None]),
        Code::StoreRefused => (
            vec![|f| f.stores[0].modes[2].mode = 0o400, |f| f.stores[0].modes[2].owner = 0, |f| {
                f.stores[0].modes[1].mode = 0o700
            }],
            vec![|f| f.stores[0].modes[2] = FileMode { group: 990, ..mode("/srv/disk.img", 0o660, 0) }, |f| {
                f.stores[0].modes[2] = FileMode { has_acl: true, ..mode("/srv/disk.img", 0o660, 0) }
            }],
        ),
        Code::FileSystemReadOnly => (
            vec![|f| f.file_systems[0].options[0] = "ro".into()],
            vec![|f| {
                f.file_systems[0].options[0] = "ro".into();
                replaced(f, "size = '10G'", "size = '10G'\nread-only = true");
            }],
        ),
        Code::FileSystemFull => (
            vec![|f| {
                f.stores[0].allocated = 10 << 30;
                f.file_systems[0].free = 1 << 29;
            }],
            vec![],
        ),
        Code::FileSystemAlmostFull => (
            vec![|f| {
                f.stores[0].allocated = 10 << 30;
                f.file_systems[0].free = 9 << 30;
            }],
            vec![|f| f.file_systems[0].free = 11 << 30],
        ),
        Code::OverCommitted => (vec![|f| f.stores[0].size = 60 << 30], vec![|f| f.stores[0].size = 51 << 30]),
        Code::VolatileFileSystem => (vec![|f| f.file_systems[0].kind = "tmpfs".into()], vec![]),
        Code::UnsuitedFileSystem => (vec![|f| f.file_systems[0].kind = "nfs4".into()], vec![]),
        Code::NoHolePunching => {
            (vec![|f| f.file_systems[0].punches = Some(false)], vec![|f| f.file_systems[0].punches = None])
        }
        Code::DirectUnsupported => (
            vec![
                |f| {
                    replaced(f, "size = '10G'", "size = '10G'\ndirect = true");
                    f.stores[0].direct_alignment = Some(4096);
                    f.process = None;
                },
                |f| {
                    replaced(f, "size = '10G'", "size = '10G'\ndirect = true");
                    f.stores[0].direct_alignment = Some(0);
                    f.process = None;
                },
            ],
            vec![|f| f.stores[0].direct_alignment = Some(4096)],
        ),
        Code::BarriersOff => (vec![|f| f.file_systems[0].options[1] = "nobarrier".into()], vec![]),
        Code::WriteCacheHidden => (
            vec![|f| f.stores[0].devices[0].cache_of_kernel = "write through".into()],
            vec![|f| {
                f.stores[0].devices[0].cache_of_kernel = "write through".into();
                f.stores[0].devices[0].cache = "write through".into();
            }],
        ),
        Code::DeviceErrors => {
            (vec![|f| f.stores[0].devices[0].errors = 17], vec![|f| f.stores[0].devices[0].errors = 16])
        }
        Code::RaidDegraded => (vec![|f| f.stores[0].devices[0].degraded = 1], vec![]),
        Code::DeviceInUse => (vec![|f| f.stores[0].users = vec!["used by dm-0".into()]], vec![]),
        Code::PartitionMisaligned => (vec![|f| f.stores[0].devices[0].misalignment = 512], vec![]),
        code => panic!("{code} has no case"),
    }
}

fn networked(code: Code) -> (Vec<Change>, Vec<Change>) {
    match code {
        Code::PortalUnreachable => {
            (vec![|f| f.portals[0].connected = Some(Some("refused".into()))], vec![|f| f.portals[0].connected = None])
        }
        Code::PortTaken => (
            vec![|f| {
                silent(f);
                f.portals[1].connected = Some(None);
            }],
            vec![silent],
        ),
        Code::PortForbidden => (
            vec![|f| f.portals[0].address.set_port(860)],
            vec![|f| {
                f.portals[0].address.set_port(860);
                f.user.capabilities = 1 << NET_BIND_SERVICE;
            }],
        ),
        Code::AddressMissing => (
            vec![|f| f.portals[0].address.set_ip([203, 0, 113, 1].into())],
            vec![|f| f.portals[0].address.set_ip([0, 0, 0, 0].into()), |f| f.network.interfaces.clear()],
        ),
        Code::AdvertisedMissing => (
            vec![|f| f.portals[0].advertise = Some(([203, 0, 113, 1], 3260).into())],
            vec![|f| f.portals[0].advertise = Some(([192, 0, 2, 1], 99).into())],
        ),
        Code::DuplicateAddress => (
            vec![|f| {
                let addresses = vec![([192, 0, 2, 1].into(), 32)];
                f.network.interfaces.push(Interface { addresses, ..interface("eth2", [0; 4]) });
            }],
            vec![|f| f.network.interfaces.push(interface("eth2", [203, 0, 113, 1]))],
        ),
        Code::InterfaceDown => (
            vec![|f| f.network.interfaces[0].state = "DOWN".into()],
            vec![|f| {
                f.network.interfaces.push(Interface { state: "DOWN".into(), ..interface("eth2", [203, 0, 113, 1]) });
            }],
        ),
        Code::InterfaceErrors => (
            vec![|f| f.network.interfaces[0].lost = 1_100],
            vec![|f| f.network.interfaces[0].lost = 900, |f| {
                (f.network.interfaces[0].packets, f.network.interfaces[0].lost) = (50, 5)
            }],
        ),
        Code::MtuDiffers => (
            vec![|f| f.network.interfaces[0].mtu = 1500],
            vec![|f| f.network.interfaces.push(Interface { mtu: 1500, ..interface("eth2", [203, 0, 113, 1]) })],
        ),
        code => configured_network(code),
    }
}

/// A session with so many segments sent, of which so many were lost, and others late.
fn with_tcp(sent: u64, lost: u64) -> serde_json::Value {
    let mut session = session("192.0.2.9:1");
    let late = 50;
    session["tcp"] = json!([{ "segments-sent": sent, "retransmits": lost + late, "duplicates": late }]);
    session
}

fn configured_network(code: Code) -> (Vec<Change>, Vec<Change>) {
    match code {
        Code::ArpFlux => (
            vec![|f| {
                f.network.interfaces[1].addresses = vec![([192, 0, 2, 7].into(), 24)];
                f.portals[1].address.set_ip([192, 0, 2, 7].into());
            }],
            vec![|f| {
                f.network.interfaces[1].addresses = vec![([192, 0, 2, 7].into(), 24)];
                f.portals[1].address.set_ip([192, 0, 2, 7].into());
                f.network.arp_ignore = 1;
            }],
        ),
        Code::CongestionControl => {
            (vec![|f| f.network.congestion = "bbr".into()], vec![|f| f.network.congestion = "dctcp".into()])
        }
        Code::Retransmits => (
            vec![|f| f.network.segments = (100_000, 200), |f| f.sessions[0] = with_tcp(2000, 3)],
            vec![
                |f| f.network.segments = (100_000, 90),
                |f| f.network.segments = (100, 90),
                |f| f.sessions[0] = with_tcp(2000, 1),
                |f| f.sessions[0] = with_tcp(900, 300),
            ],
        ),
        code => panic!("{code} has no case"),
    }
}

fn core_rates(facts: &mut Facts, busy: [f64; 2]) {
    let cores = &mut facts.rates.as_mut().expect("given").cores;
    cores.iter_mut().zip(busy).for_each(|(core, busy)| core.busy = busy);
}

fn loaded(code: Code) -> (Vec<Change>, Vec<Change>) {
    match code {
        Code::SinglePath => (
            vec![|f| drop(f.sessions.pop())],
            vec![|f| f.sessions.clear(), |f| {
                f.sessions.pop();
                f.config = config(&CONFIG.replace("198.51.100.1", "192.0.2.1:3261"));
            }],
        ),
        Code::LoginLoop => (
            vec![|f| f.rates.as_mut().expect("given").hosts[0].logins = 3],
            vec![|f| f.rates.as_mut().expect("given").hosts[0].logins = 2],
        ),
        Code::SilentHosts => (vec![|f| f.statistics.as_mut().expect("given")["keepalive_timeouts"] = 1.into()], vec![]),
        Code::BlockSizeEsxi => (
            vec![
                |f| {
                    let large = CONFIG.replace("size = '10G'", "size = '10G'\nblock-size = '4096'");
                    f.config = config(&large.replace("['*']", "['iqn.1998-01.com.vmware:*']"));
                },
                |f| {
                    replaced(f, "size = '10G'", "size = '10G'\nblock-size = '4096'");
                    f.sessions[0]["group"] = "all".into();
                    f.sessions.iter_mut().for_each(|one| one["initiator"] = "iqn.1998-01.com.vmware:esx1".into());
                },
            ],
            vec![|f| replaced(f, "['*']", "['iqn.1998-01.com.vmware:*']"), |f| {
                replaced(f, "size = '10G'", "size = '10G'\nblock-size = '4096'")
            }],
        ),
        Code::CommandsAborted => (
            vec![|f| f.counters.as_mut().expect("given").hosts[0].aborts = 11],
            vec![|f| f.counters.as_mut().expect("given").hosts[0].aborts = 10],
        ),
        Code::CoreSaturated => (vec![|f| core_rates(f, [0.3, 0.97])], vec![|f| core_rates(f, [0.6, 0.97])]),
        Code::CoresSaturated => (
            vec![|f| {
                core_rates(f, [0.95, 0.97]);
                f.machine.processors = 4;
            }],
            vec![|f| core_rates(f, [0.95, 0.97])],
        ),
        Code::CoreStalled => {
            (vec![|f| f.counters.as_mut().expect("given").cores[0].longest_turn_nanoseconds = 200_000_000], vec![])
        }
        Code::SlotsShort => (vec![|f| f.statistics.as_mut().expect("given")["task_set_full"] = 3.into()], vec![]),
        Code::MemoryShort => (vec![|f| f.statistics.as_mut().expect("given")["busy_refused"] = 3.into()], vec![]),
        Code::DigestErrors => (vec![|f| f.statistics.as_mut().expect("given")["digest_errors"] = 3.into()], vec![]),
        Code::Misaligned => (
            vec![|f| f.counters.as_mut().expect("given").volumes[0].misaligned = 20_000],
            vec![|f| f.counters.as_mut().expect("given").volumes[0].misaligned = 9_000],
        ),
        Code::DescriptorsLow => (
            vec![|f| f.process.as_mut().expect("given").descriptors = Some(400)],
            vec![|f| f.process.as_mut().expect("given").descriptors = Some(500)],
        ),
        Code::MemlockLow => (
            vec![|f| replaced(f, "size = '10G'", "size = '10G'\ndirect = true")],
            vec![|f| {
                replaced(f, "size = '10G'", "size = '10G'\ndirect = true");
                f.process.as_mut().expect("given").capabilities = 1 << IPC_LOCK;
            }],
        ),
        code => provided(code),
    }
}

fn provided(code: Code) -> (Vec<Change>, Vec<Change>) {
    match code {
        Code::SizeUnread => (
            vec![|f| f.status.as_mut().expect("given")["unread-sizes"] = json!({ "disk": ["iqn.a", "nqn.b"] })],
            vec![|f| f.status.as_mut().expect("given")["unread-sizes"] = json!({})],
        ),
        Code::IoUringDisabled => (
            vec![|f| f.machine.io_uring_disabled = 2, |f| f.machine.io_uring_disabled = 1],
            vec![|f| {
                f.machine.io_uring_disabled = 1;
                f.user.capabilities = 1 << SYS_ADMIN;
            }],
        ),
        Code::KernelOld => (vec![|f| f.machine.kernel = Some((5, 14))], vec![|f| f.machine.kernel = None]),
        Code::ClockSlow => (vec![|f| f.machine.clock = "hpet".into()], vec![|f| f.machine.clock = "kvm-clock".into()]),
        Code::MemorySwapped => (vec![|f| f.process.as_mut().expect("given").swapped = 1 << 20], vec![]),
        Code::CpuThrottled => (
            vec![|f| f.process.as_mut().expect("given").throttled = (9, 3_000_000)],
            vec![|f| f.process.as_mut().expect("given").throttled = (9, 3_000)],
        ),
        Code::GovernorPowersave => {
            (vec![|f| f.machine.governors[0].0 = "acpi-cpufreq".into()], vec![|f| f.machine.governors.clear()])
        }
        Code::HugePagesOff => (
            vec![|f| f.machine.huge_pages = "never".into()],
            vec![|f| {
                f.machine.huge_pages = "never".into();
                f.config = config(&CONFIG.replace("[volume.memory]\nkind = 'ram'", "[volume.memory]\nkind = 'null'"));
            }],
        ),
        code => panic!("{code} has no case"),
    }
}

#[test]
fn a_healthy_target_has_no_findings() {
    assert_eq!(of(&all(&well())), [""; 0]);
    assert_eq!(of(&all(&Facts::default())), [""; 0], "unknown facts are no findings");
}

#[test]
fn each_code_is_found_and_nothing_else() {
    for code in Code::ALL {
        let (found, _) = cases(*code);
        assert!(!found.is_empty(), "{code}");
        for (at, change) in found.into_iter().enumerate() {
            let mut facts = well();
            change(&mut facts);
            let findings = all(&facts);
            // Without the service, two things are found.
            let others: Vec<_> = of(&findings)
                .into_iter()
                .filter(|word| *word != "service-down" || *code == Code::ServiceDown)
                .collect();
            assert_eq!(others, [code.word()], "case {at} of {code}");
            let finding = findings.iter().find(|finding| finding.code == *code).expect("found");
            assert!(!finding.subject.is_empty() && !finding.command.is_empty(), "{finding:?}");
            assert!(!finding.evidence.is_empty(), "{code} has no evidence");
        }
    }
}

#[test]
fn facts_that_come_near_a_finding_are_none() {
    for code in Code::ALL {
        for (at, change) in cases(*code).1.into_iter().enumerate() {
            let mut facts = well();
            change(&mut facts);
            assert!(all(&facts).iter().all(|finding| finding.code != *code), "case {at} of {code}");
        }
    }
}

#[test]
fn the_worst_finding_is_first() {
    let mut facts = well();
    facts.machine.kernel = Some((4, 19));
    facts.portals[0].connected = Some(Some("refused".into()));
    facts.machine.clock = "hpet".into();
    let severities: Vec<_> = all(&facts).iter().map(|finding| finding.severity).collect();
    assert_eq!(severities, [Severity::Error, Severity::Warning, Severity::Advice]);
}

#[test]
fn a_new_volume_is_not_missing_before_the_start() {
    let mut facts = well();
    facts.stores[0].exists = Some(false);
    silent(&mut facts);
    assert!(of(&all(&facts)).contains(&"store-missing"), "it was served before");
    replaced(&mut facts, "uuid = '6ba7b810-9dad-11d1-80b4-00c04fd430c8'\n", "");
    assert!(!of(&all(&facts)).contains(&"store-missing"), "the start creates it");
}

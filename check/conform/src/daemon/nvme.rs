//! NVMe hosts in a configuration: they belong to the same groups as initiators, and see the changes of the file.

use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use super::fixture::{self, ACCESS, CAPACITY, Case, ConfigChange, Daemon, LIMIT, MAIN, lunar, started_as, until};
use crate::chap::secret_file;
use crate::nvme::{Completion, Conn, Connect, Entry, Host, INLINE, Received, TRANSPORT};
use crate::pdu::Digests;
use crate::process;
use crate::session::{Login, Session};
use crate::target::{Driver, Lab, free_port};
use crate::tools::tool;
use crate::vfio::{self, DATA, Guest};

const SUBSYSTEM: &str = "nqn.2026-01.io.lunar.conform:main";
const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:host";
const FEW: &str = "nqn.2014-08.org.nvmexpress:uuid:few";

const INVALID_OPCODE: u16 = 0x001;
const INVALID_NAMESPACE: u16 = 0x00b;
const OPERATION_DENIED: u16 = 0x015;
const INSUFFICIENT_CAPACITY: u16 = 0x115;
const ALREADY_ATTACHED: u16 = 0x118;
const WRITE_PROTECTED: u16 = 0x020;
const HOST_REFUSED: u16 = 0x184;
/// Dword 0 of asynchronous events.
const NAMESPACES_CHANGED: u32 = 0x0004_0002;
const DISCOVERY_CHANGED: u32 = 0x0070_f002;
const ACCESS_CHANGED: u32 = 0x000c_0302;
/// ANA state "non-optimized".
const NON_OPTIMIZED: u8 = 2;

pub(super) const CASES: [Case; 9] = [
    ("an NVMe host sees the namespaces of its group, and the data of initiators", sees_namespaces),
    ("namespaces are added, removed and grown, and controllers get an event", changes),
    ("hosts create, attach and delete namespaces if the configuration allows it", manages_namespaces),
    ("discovery lists what a host may access, and reports changes", discovers),
    ("NVMe hosts authenticate with configured keys, and a changed key applies to the next connect", authenticates),
    ("controllers that are no longer allowed end, and controllers can be listed and ended", ends_controllers),
    ("NVMe connects above the rate limit wait, and far above it are refused", limits_connect_rate),
    ("a virtual machine has a socket while it is configured", virtual_machine),
    (
        "a virtual machine gets events when its disk grows and when its access state changes",
        virtual_machine_gets_events,
    ),
];

/// A daemon with a subsystem, and its NVMe portal.
struct Hosts {
    daemon: Daemon,
    portal: SocketAddr,
}

impl Hosts {
    fn new(lab: &Lab, driver: Driver, name: &str) -> Result<Self> {
        let portal = free_port()?;
        let daemon = started_as(lab, driver, name, |daemon| text(daemon, portal, &ConfigChange::default(), ""))?;
        Ok(Self { daemon, portal })
    }

    fn change(&self, change: &ConfigChange, more: &str) -> Result<()> {
        self.daemon.write(&text(&self.daemon, self.portal, change, more))?;
        self.daemon.apply()
    }

    fn host(&self, name: &str) -> Result<Host> {
        Host::open(self.portal, SUBSYSTEM, name, Digests::default())
    }
}

/// The default configuration with a subsystem: hosts see the volumes of all initiators, and the host `FEW` sees one of
/// them, read-only.
fn text(daemon: &Daemon, portal: SocketAddr, change: &ConfigChange, more: &str) -> String {
    let main = format!("[target.main]\nnqn = \"{SUBSYSTEM}\"\n");
    daemon.text(change).replace("[target.main]\n", &main)
        + &format!(
            "[portal.nvme]\naddress = \"{portal}\"\nprotocol = \"nvme-tcp\"\ngroup = \"p\"\n\
             [group.hosts]\ntargets = [\"main\"]\ninitiators = [\"{FEW}\"]\n\
             luns = {{ 3 = {{ volume = \"disk\", read-only = true, namespace = 1 }} }}\n{more}"
        )
}

fn identify(conn: &mut Conn, what: u32, namespace: u32) -> Result<Vec<u8>> {
    let entry = Entry::new(6, conn.cid(), namespace).word(40, what).sgl(TRANSPORT, 4096);
    Ok(conn.call(&entry, &[])?.good()?.data)
}

fn log(conn: &mut Conn, page: u32, bytes: u32) -> Result<Vec<u8>> {
    let entry = Entry::new(2, conn.cid(), 0).word(40, page | (bytes / 4 - 1) << 16).sgl(TRANSPORT, bytes);
    Ok(conn.call(&entry, &[])?.good()?.data)
}

/// The active namespace IDs of a controller.
fn listed(conn: &mut Conn) -> Result<Vec<u8>> {
    let list = identify(conn, 2, 0)?;
    Ok(list.chunks(4).map(|id| id[0]).take_while(|id| *id > 0).collect())
}

/// Enables events of a controller and sends an Asynchronous Event Request; returns its command identifier.
fn listen(conn: &mut Conn, events: u32) -> Result<u16> {
    let entry = Entry::new(9, conn.cid(), 0).word(40, 0x0b).word(44, events);
    conn.call(&entry, &[])?.good()?;
    let entry = Entry::new(0x0c, conn.cid(), 0);
    conn.send(&crate::nvme::capsule(&entry, &[], conn.digests))?;
    Ok(entry.cid())
}

fn expect_event(conn: &mut Conn, request: u16, wanted: u32) -> Result<()> {
    let found = conn.wait_completion(request, &[])?.good()?.result;
    ensure!(found == wanted, "the event is {found:08x}h, not {wanted:08x}h");
    Ok(())
}

fn sees_namespaces(lab: &Lab, driver: Driver) -> Result<()> {
    let hosts = Hosts::new(lab, driver, "nvme-sees")?;
    let mut session = hosts.daemon.session(MAIN, "writer", 0)?;
    session.write(7, vec![0x5a; 512], 512)?;
    let (mut host, mut few) = (hosts.host(HOST)?, hosts.host(FEW)?);
    ensure!(
        listed(&mut host.admin)? == [1, 5] && listed(&mut few.admin)? == [1],
        "a host sees namespaces of another group"
    );
    ensure!(host.read(1, 7, 1)? == [0x5a; 512] && few.read(1, 7, 1)? == [0x5a; 512], "the written data is missing");
    host.write(1, 9, &[0xa5; 512])?;
    ensure!(session.read(9, 1, 512)? == [0xa5; 512], "an initiator does not see the data of a host");
    let write = |conn: &mut Conn, id: u32| -> Result<u16> {
        let entry = Entry::new(1, conn.cid(), id).blocks(0, 1).sgl(INLINE, 512);
        Ok(conn.call(&entry, &[0; 512])?.status)
    };
    let refused = [write(&mut few.io, 1)?, write(&mut host.io, 5)?, write(&mut few.io, 5)?];
    ensure!(refused == [WRITE_PROTECTED, WRITE_PROTECTED, INVALID_NAMESPACE], "writes end with {refused:03x?}");
    // A host without a group is refused.
    hosts
        .daemon
        .write(&text(&hosts.daemon, hosts.portal, &ConfigChange::default(), "").replace("[\"*\"]", "[\"iqn.*\"]"))?;
    hosts.daemon.apply()?;
    let connect =
        Connect { queue: 0, entries: 32, controller: 0xffff, keep_alive: 0, subsystem: SUBSYSTEM, host: HOST };
    let status = connect.execute(&mut Conn::ready(hosts.portal, Digests::default())?)?.status;
    ensure!(status == HOST_REFUSED, "a host without a group is refused with {status:03x}h");
    // The audit log has the logins of hosts and of initiators.
    let audit = lunar(lab, &hosts.daemon, &["audit"])?;
    for (line, host) in [("login accepted", FEW), ("login accepted", HOST), ("no group matches the host", HOST)] {
        let is_noted = |entry: &str| entry.contains(line) && entry.contains(&format!("host=\"{host}\""));
        ensure!(audit.lines().any(is_noted), "no entry with {line:?} and {host}:\n{audit}");
    }
    ensure!(audit.contains("initiator=\""), "no entry of an initiator:\n{audit}");
    ensure!(few.read(1, 7, 1)? == [0x5a; 512], "an unrelated host was disturbed");
    hosts.daemon.stop()
}

/// With four logins per second, four are accepted at once, twenty wait for at most five seconds, and the others are
/// refused.
fn limits_connect_rate(lab: &Lab, driver: Driver) -> Result<()> {
    let portal = free_port()?;
    let more = "[limits]\nlogin-rate = 4\n";
    let daemon =
        started_as(lab, driver, "nvme-hurries", |daemon| text(daemon, portal, &ConfigChange::default(), more))?;
    let connect =
        Connect { queue: 0, entries: 32, controller: 0xffff, keep_alive: 0, subsystem: SUBSYSTEM, host: HOST };
    let mut conns = Vec::new();
    for _ in 0..40 {
        conns.push(Conn::ready(portal, Digests::default())?);
    }
    for conn in &mut conns {
        let entry = connect.entry(conn.cid());
        conn.send(&crate::nvme::capsule(&entry, &connect.data(), conn.digests))?;
    }
    // Which connects are refused depends on the order of the cores.
    until(|| daemon.log_text().contains("too many connects from there")).context("no connect is refused")?;
    until(|| daemon.log_text().matches("login accepted").count() > 4).context("no delayed connect is accepted")?;
    daemon.stop()
}

fn changes(lab: &Lab, driver: Driver) -> Result<()> {
    let hosts = Hosts::new(lab, driver, "nvme-changes")?;
    let (mut host, mut few) = (hosts.host(HOST)?, hosts.host(FEW)?);
    let request = listen(&mut host.admin, 1 << 8)?;
    let few_request = listen(&mut few.admin, 1 << 8)?;
    let third = "[volume.third]\nkind = \"ram\"\nsize = \"1M\"\n";
    let luns = "0 = \"disk\", 4 = \"memory\", 9 = \"third\"";
    hosts.change(&ConfigChange { luns, more: third, ..ConfigChange::default() }, "")?;
    expect_event(&mut host.admin, request, NAMESPACES_CHANGED)?;
    // One namespace is writable now, and one is new.
    let changed = log(&mut host.admin, 0x04, 4096)?;
    let wanted = [5_u32, 10, 0].map(u32::to_le_bytes).concat();
    ensure!(changed[..12] == wanted, "namespaces that have changed: {:02x?}", &changed[..12]);
    ensure!(listed(&mut host.admin)? == [1, 5, 10], "{:?}", listed(&mut host.admin)?);
    host.write(10, 3, &[1; 512])?;
    host.write(5, 3, &[1; 512]).context("a namespace that is writable now")?;
    // The volume grows, and both hosts get an event.
    let entry = Entry::new(0x0c, host.admin.cid(), 0);
    host.admin.send(&crate::nvme::capsule(&entry, &[], Digests::default()))?;
    hosts.change(&ConfigChange { luns, more: third, size: "48M", ..ConfigChange::default() }, "")?;
    expect_event(&mut host.admin, entry.cid(), NAMESPACES_CHANGED)?;
    expect_event(&mut few.admin, few_request, NAMESPACES_CHANGED)?;
    let blocks = identify(&mut few.admin, 0, 1)?;
    ensure!(blocks[..8] == 98304_u64.to_le_bytes(), "it has {:02x?} blocks", &blocks[..8]);
    host.write(1, 98303, &[9; 512])?;
    hosts.change(&ConfigChange { size: "48M", ..ConfigChange::default() }, "")?;
    let gone = Entry::new(2, host.io.cid(), 10).blocks(0, 1).sgl(TRANSPORT, 512);
    let status = host.io.call(&gone, &[])?.status;
    ensure!(status == INVALID_NAMESPACE, "a removed namespace answers {status:03x}h");
    ensure!(few.read(1, 98303, 1)? == [9; 512], "an unrelated host was disturbed");
    hosts.daemon.stop()
}

/// Namespace Management, and Namespace Attachment of one controller.
fn create(conn: &mut Conn, blocks: u64) -> Result<Completion> {
    let mut fields = [blocks.to_le_bytes(); 2].concat();
    fields.resize(4096, 0);
    // NMIC: the namespace may be shared.
    fields[30] = 1;
    let entry = Entry::new(0x0d, conn.cid(), 0).sgl(TRANSPORT, 4096);
    conn.call(&entry, &fields)
}

fn attach(conn: &mut Conn, id: u32, select: u32, controller: u16) -> Result<u16> {
    let mut list = [1_u16.to_le_bytes(), controller.to_le_bytes()].concat();
    list.resize(4096, 0);
    let entry = Entry::new(0x15, conn.cid(), id).word(40, select).sgl(TRANSPORT, 4096);
    Ok(conn.call(&entry, &list)?.status)
}

fn manages_namespaces(lab: &Lab, driver: Driver) -> Result<()> {
    let portal = free_port()?;
    let pooled = |daemon: &Daemon| {
        let folder = daemon.folder.display();
        let pool = format!("[pool.lab]\nfolder = \"{folder}\"\nspace = \"8M\"\nnamespaces = 2\n");
        let own = text(daemon, portal, &ConfigChange::default(), &pool);
        own.replace("[group.hosts]\n", "[group.hosts]\npool = \"lab\"\n")
    };
    let daemon = started_as(lab, driver, "nvme-makes", pooled)?;
    let open = |name| Host::open(portal, SUBSYSTEM, name, Digests::default());
    let (mut few, mut other) = (open(FEW)?, open(HOST)?);
    let page = identify(&mut few.admin, 1, 0)?;
    let own = u16::from_le_bytes([page[78], page[79]]);
    ensure!(
        page[256] & 8 > 0 && page[280..288] == (8_u64 << 20).to_le_bytes(),
        "Identify does not report the capacity of the pool"
    );
    let status = create(&mut other.admin, 8192)?.status;
    ensure!(status == INVALID_OPCODE, "a host without a pool gets {status:03x}h");
    let status = create(&mut few.admin, 16385)?.status;
    ensure!(status == INSUFFICIENT_CAPACITY, "a namespace larger than the pool ends with {status:03x}h");
    let id = create(&mut few.admin, 8192)?.good()?.result;
    ensure!(listed(&mut few.admin)? == [1], "a new namespace must not be attached");
    let request = listen(&mut few.admin, 1 << 8)?;
    // The event goes to the attached controller, whichever controller sends the command.
    let mut second = open(FEW)?;
    let status = attach(&mut second.admin, id, 0, own)?;
    ensure!(status == 0, "attaching ends with {status:03x}h");
    expect_event(&mut few.admin, request, NAMESPACES_CHANGED)?;
    ensure!(listed(&mut second.admin)? == [1], "a controller has a namespace that was attached to another one");
    ensure!(
        listed(&mut few.admin)? == [1, id as u8] && listed(&mut other.admin)? == [1, 5],
        "the namespace is attached to the wrong controllers"
    );
    let refused = [attach(&mut few.admin, id, 0, own)?, attach(&mut few.admin, 1, 1, own)?];
    ensure!(refused == [ALREADY_ATTACHED, OPERATION_DENIED], "attaching ends with {refused:03x?}");
    few.write(id, 7, &[7; 512])?;
    // After a reconnect, the host has the namespace and its data again.
    drop(few);
    let mut few = open(FEW)?;
    ensure!(few.read(id, 7, 1)? == [7; 512], "the written data is missing");
    let volumes = lunar(lab, &daemon, &["volume", "list"])?;
    let name = format!("lab-ns{id}");
    ensure!(volumes.contains(&name), "the operator does not see {name}:\n{volumes}");
    let page = identify(&mut few.admin, 1, 0)?;
    let again = u16::from_le_bytes([page[78], page[79]]);
    let status = attach(&mut few.admin, id, 1, again)?;
    ensure!(status == 0, "detaching ends with {status:03x}h");
    let read = Entry::new(2, few.io.cid(), id).blocks(7, 1).sgl(TRANSPORT, 512);
    let status = few.io.call(&read, &[])?.status;
    ensure!(status == INVALID_NAMESPACE, "a detached namespace answers {status:03x}h");
    let all = Entry::new(0x0d, few.admin.cid(), u32::MAX).word(40, 1);
    few.admin.call(&all, &[])?.good().context("deleting all")?;
    let volumes = lunar(lab, &daemon, &["volume", "list"])?;
    ensure!(!volumes.contains(&name), "{name} is still there:\n{volumes}");
    ensure!(
        few.read(1, 7, 1).is_ok() && identify(&mut few.admin, 0x10, 0)?[4..8] == [0; 4],
        "a namespace that was not created by hosts was deleted"
    );
    daemon.stop()
}

fn discovers(lab: &Lab, driver: Driver) -> Result<()> {
    let hosts = Hosts::new(lab, driver, "nvme-discovers")?;
    let connect = |host| {
        let connect = Connect { queue: 0, entries: 32, controller: 0xffff, keep_alive: 0, subsystem: DISCOVERY, host };
        Host::admin(hosts.portal, &connect, Digests::default()).map(|(conn, _)| conn)
    };
    let mut host = connect(HOST)?;
    let found = |conn: &mut Conn| -> Result<Vec<(String, String)>> {
        let log = log(conn, 0x70, 8192)?;
        let text = |field: &[u8]| {
            let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
            String::from_utf8_lossy(&field[..end]).trim_end().to_owned()
        };
        let count = usize::from(log[8]);
        let records = log[1024..].chunks(1024).take(count);
        Ok(records.map(|record| (text(&record[256..512]), text(&record[32..64]))).collect())
    };
    let port = hosts.portal.port().to_string();
    let own = (SUBSYSTEM.to_owned(), port.clone());
    let seen = found(&mut host)?;
    ensure!(seen.contains(&own) && seen.len() == 2, "discovery lists {seen:?}");
    let request = listen(&mut host, 1 << 31)?;
    let second = free_port()?;
    let more = format!(
        "[portal.more]\naddress = \"{second}\"\nprotocol = \"nvme-tcp\"\ngroup = \"p\"\n\
         [target.third]\nnqn = \"nqn.2026-01.io.lunar.conform:third\"\nportal-groups = [\"p\"]\n\
         [group.third]\ntargets = [\"third\"]\ninitiators = [\"{FEW}\"]\nluns = {{ 0 = \"memory\" }}\n"
    );
    hosts.change(&ConfigChange::default(), &more)?;
    expect_event(&mut host, request, DISCOVERY_CHANGED)?;
    let seen = found(&mut host)?;
    ensure!(seen.contains(&(SUBSYSTEM.to_owned(), second.port().to_string())) && seen.len() == 3, "{seen:?}");
    // A new referral causes an event.
    let entry = Entry::new(0x0c, host.cid(), 0);
    host.send(&crate::nvme::capsule(&entry, &[], Digests::default()))?;
    hosts.change(&ConfigChange::default(), &format!("{more}[referral.other]\naddress = \"192.0.2.7\"\n"))?;
    expect_event(&mut host, entry.cid(), DISCOVERY_CHANGED)?;
    let seen = found(&mut host)?;
    ensure!(seen.contains(&(DISCOVERY.to_owned(), "8009".to_owned())) && seen.len() == 4, "{seen:?}");
    hosts.change(&ConfigChange::default(), &more)?;
    let seen = found(&mut connect(FEW)?)?;
    ensure!(seen.len() == 5, "a host with two groups gets {seen:?}");
    // The same volume in the other subsystem, through the other portal.
    let mut third = Host::open(second, "nqn.2026-01.io.lunar.conform:third", FEW, Digests::default())?;
    third.write(1, 5, &[3; 512])?;
    let mut main = hosts.host(HOST)?;
    ensure!(main.read(5, 5, 1)? == [3; 512], "a volume in two subsystems has different data");
    hosts.daemon.stop()
}

/// Keys in the format of `nvme gen-dhchap-key`.
const KEYS: [&str; 3] = [
    "DHHC-1:01:J0qR2WNHWlQcsHLbbnAJ90qQOCgwxh9SLRo7BIMIUsGJ8cUH:",
    "DHHC-1:00:4lrDhF+MvhKAGi36WonUxV3EeQDztu3Jqe5ZDzwrkxI0PRca:",
    "DHHC-1:03:vKvj8txAGbr1zAhiWuCqWfhElTMBuJNmbSLYzq5peMFgkVsb8mFFZA+ph2YOyBiutoSkY3L1lG7sf2IFAmhJ7neiVrc=:",
];
/// Configuration keys of a target with authentication; the smallest DH group takes the least time.
const AUTHENTICATION: &str = "authentication = \"mutual-chap\"\nusers = [\"nqn.2014-08.org.nvmexpress:uuid:host\"]\n\
                      mutual-user = \"own\"\ndhchap-groups = [\"ffdhe2048\"]";

fn authenticates(lab: &Lab, driver: Driver) -> Result<()> {
    let [first, second, own] = [0, 1, 2].map(|at| secret_file(lab, (&format!("nvme-proves-{at}"), KEYS[at])));
    let (first, second, own) = (first?, second?, own?);
    // The sandbox allows only files that exist at start.
    let (configured, portal) = (secret_file(lab, ("nvme-proves", KEYS[0]))?, free_port()?);
    let more = format!(
        "[user.\"{HOST}\"]\nsecret = {{ file = \"{configured}\" }}\n[user.own]\nsecret = {{ file = \"{own}\" }}\n"
    );
    let change = ConfigChange { main: AUTHENTICATION, ..ConfigChange::default() };
    let daemon = started_as(lab, driver, "nvme-proves", |daemon| text(daemon, portal, &change, &more))?;
    let hosts = Hosts { daemon, portal };
    let program = lab.built()?.to_str().context("a path in UTF-8")?;
    let url = format!("nvme-tcp://{}/{SUBSYSTEM}/1", hosts.portal);
    let arguments = |key: &str, time: &str| {
        let words = ["bench", &url, "--time", time, "--warmup", "0", "--host-nqn", HOST, "--host-key", key];
        words.map(str::to_owned).to_vec()
    };
    let with = |key: &str, more: &[&str]| {
        let words = arguments(key, "0.1");
        let words: Vec<&str> = words.iter().map(String::as_str).chain(more.iter().copied()).collect();
        tool(program, &words)
    };
    with(&first, &["--subsystem-key", &own])?;
    ensure!(with(&first, &["--subsystem-key", &second]).is_err(), "a subsystem with a wrong key is accepted");
    ensure!(with(&second, &[]).is_err(), "a wrong key is accepted");
    // A connection that used the old key continues. All its queues are connected when data moves.
    let read_bytes = || -> Result<u64> {
        let output = lunar(lab, &hosts.daemon, &["statistics", "--json"])?;
        let digits = |text: &str| text.trim_start().split(|c: char| !c.is_ascii_digit()).next().map(str::to_owned);
        let numbers = output.split("\"read_bytes\":").skip(1).filter_map(digits);
        Ok(numbers.filter_map(|number| number.parse::<u64>().ok()).sum())
    };
    let before = read_bytes()?;
    let mut load = process::bound(program).args(arguments(&first, "3")).stdout(Stdio::null()).spawn()?;
    until(|| read_bytes().is_ok_and(|now| now > before + (1 << 20))).context("the load moves no data")?;
    std::fs::copy(&second, &configured)?;
    hosts.daemon.reload("reloaded")?;
    ensure!(with(&first, &[]).is_err(), "a replaced key is accepted");
    with(&second, &["--subsystem-key", &own])?;
    let ended = process::wait(&mut load, LIMIT)?;
    ensure!(ended.is_some_and(|status| status.success()), "an existing connection was disturbed: {ended:?}");
    let log_text = hosts.daemon.log_text();
    for key in KEYS {
        ensure!(!log_text.contains(&key[10..]), "a key is in the log");
    }
    hosts.daemon.stop()
}

fn ends_controllers(lab: &Lab, driver: Driver) -> Result<()> {
    let hosts = Hosts::new(lab, driver, "nvme-ends")?;
    let (mut host, mut few) = (hosts.host(HOST)?, hosts.host(FEW)?);
    let program = lab.built()?.to_str().context("a path in UTF-8")?.to_owned();
    let socket = hosts.daemon.folder.join("api.sock").display().to_string();
    let ask = |words: &[&str]| tool(&program, &[words, &["--socket", &socket]].concat());
    let shown = ask(&["session", "list"])?;
    for name in [HOST, FEW, "main", "hosts"] {
        ensure!(shown.contains(name), "{name} is not listed:\n{shown}");
    }
    let is_gone = |conn: &mut Conn| matches!(conn.receive(LIMIT), Ok(Received::Closed));
    ask(&["session", "kick", "--initiator", HOST])?;
    ensure!(is_gone(&mut host.admin) && is_gone(&mut host.io), "a controller that was ended is still connected");
    ensure!(few.read(1, 0, 1)?.len() == 512, "another controller was ended");
    // The host connects again, and ends with its group.
    let mut host = hosts.host(HOST)?;
    hosts
        .daemon
        .write(&text(&hosts.daemon, hosts.portal, &ConfigChange::default(), "").replace("[\"*\"]", "[\"iqn.*\"]"))?;
    hosts.daemon.apply()?;
    ensure!(is_gone(&mut host.admin) && is_gone(&mut host.io), "a controller that is no longer allowed does not end");
    let mut session = Session::ready(hosts.daemon.portal, &Login::to(MAIN, "host"), 0)?;
    hosts.change(&ConfigChange { main: "enabled = false", ..ConfigChange::default() }, "")?;
    ensure!(is_gone(&mut few.admin), "a controller does not end with its target");
    drop(session.ping());
    until(|| ask(&["session", "list"]).is_ok_and(|shown| !shown.contains(FEW)))?;
    hosts.daemon.stop()
}

fn virtual_machine(lab: &Lab, driver: Driver) -> Result<()> {
    let hosts = Hosts::new(lab, driver, "nvme-vm")?;
    let socket = hosts.daemon.folder.join("vm/web");
    let keys = format!("[vm.web]\ntarget = \"main\"\nsocket = \"{}\"\nmode = \"660\"\n", socket.display());
    hosts.change(&ConfigChange::default(), &keys)?;
    let program = lab.built()?.to_str().context("a path in UTF-8")?.to_owned();
    let api = hosts.daemon.folder.join("api.sock").display().to_string();
    let status = tool(&program, &["status", "--socket", &api])?;
    ensure!(status.contains("vfio-user-pci") && status.contains(&socket.display().to_string()), "{status}");
    let is_closed = |stream: &mut UnixStream| -> Result<bool> {
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(stream.read(&mut [0])? == 0)
    };
    let list = || tool(&program, &["session", "list", "--json", "--socket", &api]);
    let is_listed = || list().is_ok_and(|all| all.contains("vfio-user") && all.contains(":vm:web"));
    let mut client = UnixStream::connect(&socket)?;
    until(is_listed).context("its controller is not listed")?;
    tool(&program, &["session", "kick", "--target", "main", "--socket", &api])?;
    ensure!(is_closed(&mut client)?, "a client that was ended is still connected");
    let mut client = UnixStream::connect(&socket).context("a new connection")?;
    until(is_listed).context("its new controller is not listed")?;
    hosts.change(&ConfigChange::default(), "")?;
    ensure!(!socket.exists() && is_closed(&mut client)?, "a removed virtual machine is still served");
    hosts.daemon.stop()
}

/// Changes of a volume as a guest and an initiator see them.
fn virtual_machine_gets_events(lab: &Lab, driver: Driver) -> Result<()> {
    let hosts = Hosts::new(lab, driver, "nvme-vm-told")?;
    let socket = hosts.daemon.folder.join("vm/web");
    let keys = format!("[vm.web]\ntarget = \"main\"\nportal-group = \"p\"\nsocket = \"{}\"\n", socket.display());
    hosts.change(&ConfigChange::default(), &keys)?;
    let mut session = hosts.daemon.session(MAIN, "beside", 0)?;
    let mut guest = Guest::boot(&socket, 1)?;
    let events = vfio::Entry::new(9, 0).dword(10, 0x0b).dword(11, 1 << 8 | 1 << 11);
    ensure!(guest.run(0, events)? == 0, "Set Features of the events fails");
    let expect_event = |guest: &mut Guest, change: &ConfigChange, wanted: u32| -> Result<()> {
        let request = guest.put(0, vfio::Entry::new(0x0c, 0))?;
        guest.ring(0)?;
        hosts.change(change, &keys)?;
        let found = guest.next_completion_with_result(0)?;
        ensure!(found == (request, 0, wanted), "the event is {found:x?}, not {wanted:08x}h");
        Ok(())
    };
    let page = |guest: &mut Guest, entry: vfio::Entry| -> Result<[u8; 4096]> {
        ensure!(guest.run(0, entry.pages(DATA, 0))? == 0, "a log page or Identify fails");
        let mut bytes = [0; 4096];
        guest.memory.read_exact_at(&mut bytes, DATA)?;
        Ok(bytes)
    };
    let grown = ConfigChange { size: "48M", ..ConfigChange::default() };
    expect_event(&mut guest, &grown, NAMESPACES_CHANGED)?;
    page(&mut guest, vfio::Entry::new(2, 0).dword(10, 0x04 | 1023 << 16))?;
    let blocks = page(&mut guest, vfio::Entry::new(6, 1))?;
    ensure!(blocks[..8] == 98304_u64.to_le_bytes(), "it has {:02x?} blocks", &blocks[..8]);
    fixture::expect_sense(&mut session, CAPACITY)?;
    guest.memory.write_all_at(&[0x5a; 4096], DATA)?;
    ensure!(guest.run(1, vfio::Entry::blocks(1, 1, 98296, 8).pages(DATA, 0))? == 0, "a write to the new blocks fails");
    ensure!(session.read(98303, 1, 512)? == [0x5a; 512], "an initiator does not see the data of the guest");

    let worse = ConfigChange { group: "alua-state = \"active-non-optimized\"", ..grown };
    expect_event(&mut guest, &worse, ACCESS_CHANGED)?;
    fixture::expect_sense(&mut session, ACCESS)?;
    let access = page(&mut guest, vfio::Entry::new(2, 0).dword(10, 0x0c | 1023 << 16))?;
    // The first group descriptor follows the header; its state is in byte 16.
    ensure!(access[16 + 16] & 0x0f == NON_OPTIMIZED, "the access state is {:02x?}", &access[..48]);
    ensure!(
        guest.run(1, vfio::Entry::blocks(2, 1, 98296, 8).pages(DATA, 0))? == 0,
        "a read in the non-optimized state fails"
    );
    hosts.daemon.stop()
}

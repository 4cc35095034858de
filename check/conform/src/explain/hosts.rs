//! Problems that begin on the hosts: names, secrets, sizes and LUNs that they do not ask for again, silence, TLS keys,
//! for which OpenSSL's client makes the handshake.

use std::net::Ipv4Addr;
use std::process::{Child, Stdio};

use rustix::process::Signal;

use super::*;
use crate::chap::{LoginExchange, TRANSIT, status};
use crate::nvme::{Conn, Connect, Entry, TRANSPORT};
use crate::pdu::Connection;
use crate::session::Data;

/// The name with which `lunar bench` logs in.
const BENCH: &str = "iqn.2026-01.io.lunar:bench";
/// READ CAPACITY(10).
const READ_CAPACITY: [u8; 10] = [0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The times of sessions and of versions are in whole seconds.
const SECONDS: Duration = Duration::from_secs(2);

/// The configured key, in the format of `nvme gen-tls-key`, and its bytes.
const KEY: &str = "NVMeTLSkey-1:01:EBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi9A/ow7:";
const BYTES: std::ops::RangeInclusive<u8> = 0x10..=0x2f;

pub(super) fn configuration(folder: &str) -> String {
    let memory = "luns = { 0 = \"memory\" }";
    [
        format!("[volume.grow]\nkind = \"file\"\npath = \"{folder}/grow.img\"\nsize = \"16M\"\n"),
        "[volume.large]\nkind = \"ram\"\nsize = \"4M\"\nblock-size = \"4096\"\n".to_owned(),
        target_text("lone", ""),
        group_text("lone", "*:lone", "luns = { 1 = \"memory\" }"),
        target_text("reuse", ""),
        group_text("reuse", "*:reuse", memory),
        target_text("grow", &format!("nqn = \"{NQN}grow\"")),
        group_text("grow", "*:grow?", "luns = { 0 = \"grow\" }"),
        target_text("twins", ""),
        group_text("twins", "*:twin*", memory),
        target_text("vmware", ""),
        group_text("vmware", "iqn.1998-01.com.vmware:*", "luns = { 0 = \"large\" }"),
        target_text("frozen", ""),
        group_text("frozen", BENCH, memory),
        format!(
            "[tls-key.channel]\nsecret = \"{KEY}\"\n\
             [target.tls]\nnqn = \"{NQN}tls\"\nportal-groups = [\"front\"]\n\
             [group.tls]\ntargets = [\"tls\"]\ninitiators = [\"{NQN}tls-host\"]\ntls-keys = [\"channel\"]\n\
             luns = {{ 0 = \"memory\" }}\n"
        ),
    ]
    .concat()
}

pub(super) const CASES: [Case; 17] = [
    ("a client that nobody has heard of", |daemon| {
        let client = format!("{IQN}nowhere");
        let text = daemon.lunar(&["explain", "login", &client, "--target", "vmfs"])?;
        ensure!(text.contains("no client of this name has tried to log in"), "{text}");
        Ok(())
    }),
    ("a client that sends the challenge of the target back", reflected),
    ("one secret for both directions", |daemon| {
        let words = ["target", "set", "chap", "--authentication", "mutual-chap", "--mutual-user", "backup"];
        let Err(refused) = daemon.lunar(&words) else { bail!("esx and backup have the same secret") };
        let refused = format!("{refused:#}");
        ensure!(refused.contains("backup") && refused.contains("secret"), "{refused}");
        Ok(())
    }),
    ("users without authentication", |daemon| {
        let Err(refused) = daemon.lunar(&["target", "set", "vmfs", "--users", "esx"]) else { bail!("nobody is asked") };
        let refused = format!("{refused:#}");
        ensure!(refused.contains("authentication is none") && refused.contains("did you mean"), "{refused}");
        Ok(())
    }),
    ("discovery with another user than the target", discovery),
    ("two portals at one address", |daemon| {
        let address = daemon.front.to_string();
        let words = ["portal", "create", "twice", "--address", &address, "--protocol", "iscsi", "--group", "rear"];
        let Err(refused) = daemon.lunar(&words) else { bail!("one address has two portals") };
        let refused = format!("{refused:#}");
        ensure!(refused.contains("overlaps that of portal front"), "{refused}");
        Ok(())
    }),
    ("an advertised address that no interface has", |daemon| {
        daemon.lunar(&["portal", "set", "rear", "--advertise", "198.51.100.7:3260"])?;
        let (found, _) = daemon.finding("advertised-missing", "portal rear")?.context("it is not found")?;
        ensure!(found["evidence"].to_string().contains("198.51.100.7:3260"), "{found}");
        daemon.paste(found["command"].as_str().context("a command")?)?;
        ensure!(daemon.finding("advertised-missing", "portal rear")?.is_none(), "{found}");
        Ok(())
    }),
    ("a group without LUN 0", |daemon| {
        let client = format!("{IQN}lone");
        let _session = Session::open(daemon.front, &Login::to(&format!("{IQN}lone"), "lone"))?;
        let text = daemon.lunar(&["explain", "lun", &client, "0"])?;
        ensure!(text.contains("the group has no LUN 0"), "{text}");
        daemon.found_and_mended("lun-zero-missing", "group lone")?;
        ensure!(daemon.json(&["explain", "lun", &client, "0"])?["well"] == true, "there is no LUN 0");
        Ok(())
    }),
    ("a LUN that becomes another volume while a client is logged in", reused),
    ("a size that one of two clients does not ask for", resized),
    ("a size that a host over NVMe/TCP has not read", resized_namespace),
    ("parameters that make commands slow", negotiated),
    ("two machines with one initiator name", twins),
    ("blocks of 4096 bytes for ESXi", |daemon| daemon.found_and_mended("block-size-esxi", "volume large")),
    ("a client that is frozen", frozen),
    ("an NVMe host with another TLS key", wrong_key),
    ("an NVMe host without TLS in a group that requires it", |daemon| {
        let (client, target) = (format!("{NQN}tls-host"), format!("{NQN}tls"));
        ensure!(Host::open(daemon.nvme, &target, &client, Digests::default()).is_err(), "it is admitted");
        let expected = Expected {
            explain: &["login", &client, "--target", &target],
            code: "no-channel",
            words: "the group requires TLS",
            remedy: Remedy::Client,
        };
        let commands = daemon.explained(&expected)?;
        ensure!(commands.iter().any(|command| command.ends_with("--tls")), "{commands:?}");
        Ok(())
    }),
];

fn reflected(daemon: &Daemon) -> Result<()> {
    let (client, target) = (format!("{IQN}mirror"), format!("{IQN}chap"));
    let challenged = || LoginExchange::at(Connection::open(daemon.front)?).challenged_as(&client, &target);
    // An earlier case has set the secret.
    let respond = |mut exchange: LoginExchange, own: Option<(&str, &str)>| -> Result<u16> {
        let response = exchange.response(OTHER_SECRET)?;
        let (identifier, challenge) = exchange.challenge()?;
        let identifier = identifier.to_string();
        let (identifier, challenge) = own.unwrap_or((&identifier, &challenge));
        let keys = [("CHAP_N", "esx"), ("CHAP_R", &response), ("CHAP_I", identifier), ("CHAP_C", challenge)];
        exchange.send(TRANSIT, &keys)
    };
    ensure!(respond(challenged()?, None)? == status::AUTHENTICATION_FAILURE, "the challenge of the target is accepted");
    let expected = Expected {
        explain: &["login", &client],
        code: "reflected",
        words: "the client sent a challenge of the target back",
        remedy: Remedy::First,
    };
    daemon.explained(&expected)?;
    // It mends itself with a challenge of its own.
    let accepted = respond(challenged()?, Some(("7", "0x00112233445566778899aabbccddeeff")))?;
    ensure!(accepted == 0, "{accepted:04x}h");
    Ok(())
}

/// The secret of the user of discovery: neither that of the target nor that of another user.
const FINDER_SECRET: &str = "secret-of-finder";

fn discovery(daemon: &Daemon) -> Result<()> {
    daemon.paste_with("lunar user create finder --secret -", FINDER_SECRET)?;
    daemon.lunar(&["config", "set", "discovery", "--authentication", "chap", "--users", "finder"])?;
    let discover = |user: &str, secret: &str| {
        let mut command = process::bound("iscsi-ls");
        command.args(["-i", &format!("{IQN}scout"), &format!("iscsi://{user}%{secret}@{}", daemon.front)]);
        process::run(&mut command, LIMIT)?.succeeded()
    };
    discover("finder", FINDER_SECRET)?;
    ensure!(discover("esx", OTHER_SECRET).is_err(), "discovery accepts the user of the target");
    let refusals = daemon.json(&["explain", "refusal"])?;
    let is_it = |one: &&Json| one["initiator"] == format!("{IQN}scout") && one["code"] == "unknown-user";
    let refusal = refusals.as_array().into_iter().flatten().find(is_it).with_context(|| format!("{refusals:#}"))?;
    let text = daemon.lunar(&["explain", "refusal", &refusal["number"].to_string()])?;
    for words in ["asked for discovery", "user esx has this name, and may not log in here"] {
        ensure!(text.contains(words), "no '{words}' in: {text}");
    }
    let remedy = "lunar config set discovery --users finder,esx";
    ensure!(text.contains(remedy), "{text}");
    daemon.found_and_mended("discovery-users-differ", "target chap")?;
    discover("esx", OTHER_SECRET).map(drop)
}

fn reused(daemon: &Daemon) -> Result<()> {
    let (client, login) = (format!("{IQN}reuse"), Login::to(&format!("{IQN}reuse"), "reuse"));
    let explain = ["explain", "lun", client.as_str(), "0"];
    let session = Session::ready(daemon.front, &login, 0)?;
    ensure!(daemon.json(&explain)?["well"] == true, "{:#}", daemon.json(&explain)?);
    daemon.lunar(&["group", "unmap", "reuse", "0", "--force"])?;
    daemon.lunar(&["group", "map", "reuse", "0", "spare"])?;
    let expected = Expected {
        explain: &explain[1..],
        code: "",
        words: "LUN 0 has been volume spare since the client logged in: it was volume memory",
        remedy: Remedy::Client,
    };
    let commands = daemon.explained(&expected)?;
    ensure!(commands.iter().any(|command| command.ends_with("--logout")), "{commands:?}");
    // As the remedy says.
    session.logout()?;
    std::thread::sleep(SECONDS);
    let _session = Session::ready(daemon.front, &login, 0)?;
    ensure!(daemon.json(&explain)?["well"] == true, "{:#}", daemon.json(&explain)?);
    Ok(())
}

fn resized_namespace(daemon: &Daemon) -> Result<()> {
    let client = format!("{NQN}grow3");
    let mut host = Host::open(daemon.nvme, &format!("{NQN}grow"), &client, Digests::default())?;
    let mut identify = |page: u32, namespace: u32| {
        let entry = Entry::new(6, host.admin.cid(), namespace).word(40, page).sgl(TRANSPORT, 4096);
        anyhow::Ok(host.admin.call(&entry, &[])?.good()?.data)
    };
    let blocks = |page: &[u8]| page.first_chunk().copied().map_or(0, u64::from_le_bytes);
    let before = blocks(&identify(0, 1)?);
    daemon.lunar(&["volume", "set", "grow", "--size", "40M"])?;
    let step = format!("{client} has asked for the size since it changed");
    let expected = Expected { explain: &["volume", "grow"], code: "", words: &step, remedy: Remedy::Client };
    // The active namespace list has no sizes.
    identify(2, 0)?;
    let commands = daemon.explained(&expected)?;
    ensure!(commands == ["nvme ns-rescan /dev/nvme0"], "{commands:?}");
    let status = daemon.json(&["status"])?;
    ensure!(status["unread-sizes"]["grow"] == serde_json::json!([client]), "{status:#}");
    let now = blocks(&identify(0, 1)?);
    ensure!(before * 512 != 40 << 20 && now * 512 == 40 << 20, "{before} blocks, then {now}");
    let json = daemon.json(&["explain", "volume", "grow"])?;
    ensure!(json["well"] == true, "{json:#}");
    ensure!(daemon.json(&["status"])?["unread-sizes"].is_null(), "the size is read");
    Ok(())
}

fn negotiated(daemon: &Daemon) -> Result<()> {
    let (client, target) = (format!("{IQN}grow4"), format!("{IQN}grow"));
    let login = Login::to(&target, "grow4").key("ImmediateData", "No").key("InitialR2T", "Yes");
    let _session = Session::ready(daemon.front, &login, 0)?;
    for explain in [["explain", "slow", client.as_str(), ""], ["explain", "path", client.as_str(), "grow"]] {
        let words: Vec<&str> = explain.into_iter().filter(|word| !word.is_empty()).collect();
        let text = daemon.lunar(&words)?;
        for part in ["ImmediateData No", "HeaderDigest None", "each write waits for an R2T before it sends data"] {
            ensure!(text.contains(part), "no {part:?} in:\n{text}");
        }
    }
    let json = daemon.json(&["explain", "slow", &client])?;
    let first = json["remedies"][0]["command"].as_str().unwrap_or_default();
    let update = format!("iscsiadm -m node -T {target} -o update -n node.session.iscsi.ImmediateData -v Yes");
    ensure!(first == update, "{json:#}");
    // One queue with two entries: one command at a time.
    let (subsystem, host) = (format!("{NQN}grow"), format!("{NQN}grow5"));
    let connect =
        Connect { queue: 0, entries: 32, controller: 0xffff, keep_alive: 0, subsystem: &subsystem, host: &host };
    let (_admin, controller) = Host::admin(daemon.nvme, &connect, Digests::default())?;
    let mut io = Conn::ready(daemon.nvme, Digests::default())?;
    Connect { queue: 1, entries: 2, controller, ..connect }.execute(&mut io)?.good()?;
    let text = daemon.lunar(&["explain", "slow", &host])?;
    for part in ["I/O queues 1, entries of a queue 2", "can have 1 command in progress at once", "--nr-io-queues=4"] {
        ensure!(text.contains(part), "no {part:?} in:\n{text}");
    }
    Ok(())
}

fn resized(daemon: &Daemon) -> Result<()> {
    let open = |client: &str| Session::ready(daemon.front, &Login::to(&format!("{IQN}grow"), client), 0);
    let (mut one, mut other) = (open("grow1")?, open("grow2")?);
    // The unit attention condition comes first.
    let ask = |session: &mut Session| -> Result<u64> {
        session.run(&READ_CAPACITY, Data::In(8))?.expect_sense(6, 0x2a, 0x09)?;
        let data = session.run(&READ_CAPACITY, Data::In(8))?.good()?.data;
        Ok(u64::from(u32::from_be_bytes([data[0], data[1], data[2], data[3]])) + 1)
    };
    daemon.lunar(&["volume", "set", "grow", "--size", "24M"])?;
    ensure!(ask(&mut one)? * 512 == 24 << 20, "the size is not the new one");
    let step = format!("{IQN}grow2 has asked for the size since it changed");
    let expected = Expected { explain: &["volume", "grow"], code: "", words: &step, remedy: Remedy::Client };
    let commands = daemon.explained(&expected)?;
    ensure!(commands.iter().any(|command| command.ends_with("--rescan")), "{commands:?}");
    let json = daemon.json(&["explain", "volume", "grow"])?;
    ensure!(json["words"] == "volume grow is well, and 1 client does not know its new size", "{json:#}");
    // A scan asks for the size.
    ask(&mut other)?;
    ensure!(daemon.json(&["explain", "volume", "grow"])?["well"] == true, "both have asked");
    // A client that leaves no longer has to ask.
    daemon.lunar(&["volume", "set", "grow", "--size", "32M"])?;
    ensure!(daemon.json(&["explain", "volume", "grow"])?["well"] == false, "nobody has asked");
    one.logout()?;
    drop(other);
    let end = Instant::now() + LIMIT;
    while daemon.json(&["explain", "volume", "grow"])?["well"] != true {
        ensure!(Instant::now() < end, "clients that are gone have not asked");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// A connection from another address of this machine.
fn from(last: u8, to: SocketAddr) -> Result<Connection> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0)))?;
    connect(&socket, &to)?;
    Connection::over(socket.into())
}

fn twins(daemon: &Daemon) -> Result<()> {
    let target = format!("{IQN}twins");
    let (client, login) = (format!("{IQN}twin"), Login::to(&target, "twin"));
    let sessions: Result<Vec<_>> = (0..4).map(|at| Session::over(from(70 + at % 2, daemon.front)?, &login)).collect();
    let mut sessions = sessions?;
    let expected = Expected {
        explain: &["login", &client],
        code: "duplicate-name",
        words: "127.0.0.70 and 127.0.0.71 use this name",
        remedy: Remedy::Client,
    };
    let commands = daemon.explained(&expected)?;
    ensure!(commands.iter().any(|command| command.contains("iscsi-iname")), "{commands:?}");
    let status = daemon.lunar(&["status"])?;
    ensure!(status.contains(&format!("host {client}")) && status.contains("iscsi-iname"), "{status}");
    let subject = format!("host {client}");
    let (found, is_own) = daemon.finding("trouble", &subject)?.context("`lunar doctor` does not find it")?;
    ensure!(is_own && found["remedy"].to_string().contains("iscsi-iname"), "{found}");
    let series = format!("lunar_trouble{{code=\"duplicate-name\",subject=\"{subject}\"}}");
    daemon.counted(&series)?;
    // As the remedy says: with another name, the sessions of both stay.
    let mut one = sessions.pop().context("four sessions")?;
    let mut other = Session::over(from(70, daemon.front)?, &Login::to(&target, "twin-2"))?;
    for session in [&mut one, &mut other] {
        session.run(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], Data::In(16))?.good().context("REPORT LUNS")?;
    }
    Ok(())
}

/// A process that ends with this value.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended.
        let _ = process::signal(&self.0, Signal::KILL);
        let _ = self.0.wait();
    }
}

fn frozen(daemon: &Daemon) -> Result<()> {
    ensure!(daemon.finding("silent-hosts", "hosts")?.is_none(), "a host is silent before");
    let mut command = process::bound(&daemon.program);
    let url = format!("iscsi://{}/{IQN}frozen/0", daemon.front);
    command.args(["bench", &url, "--rw", "randread", "--depth", "1", "--time", "600"]);
    let client = Client(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("cannot start a load")?);
    let has_session = || -> Result<bool> {
        let sessions = daemon.json(&["session", "list"])?;
        Ok(sessions.as_array().into_iter().flatten().any(|session| session["initiator"] == BENCH))
    };
    let until = |wanted: bool| -> Result<()> {
        let end = Instant::now() + 2 * LIMIT;
        while has_session()? != wanted {
            ensure!(Instant::now() < end, "after minutes, the session is there: {}", !wanted);
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    };
    until(true)?;
    process::signal(&client.0, Signal::STOP)?;
    until(false)?;
    daemon.counted("lunar_keepalive_timeouts_total")?;
    let target = daemon.target.as_ref().context("the daemon runs")?;
    let log = std::fs::read_to_string(&target.log)?;
    let said = log.lines().any(|line| line.contains(BENCH) && line.contains("did not answer a NOP-In"));
    ensure!(said, "the log does not say which side was silent");
    let (found, is_own) = daemon.finding("silent-hosts", "hosts")?.context("`lunar doctor` does not find it")?;
    ensure!(is_own && found["command"].to_string().contains("did not answer a NOP-In"), "{found}");
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// HMAC-SHA-256 by OpenSSL.
fn hmac(daemon: &Daemon, key: &[u8], data: &[u8]) -> Result<Vec<u8>> {
    let file = daemon.folder.join("hmac-input");
    std::fs::write(&file, data)?;
    let mut command = process::bound("openssl");
    command.args(["mac", "-digest", "SHA256", "-macopt", &format!("hexkey:{}", hex(key)), "-in"]).arg(file).arg("HMAC");
    let text = process::run(&mut command, LIMIT)?.succeeded()?;
    let digits = text.trim();
    let byte = |at: usize| Ok(u8::from_str_radix(digits.get(at..at + 2).context("an odd number of digits")?, 16)?);
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// HKDF-Extract without salt, and HKDF-Expand-Label to 32 bytes (RFC 8446 7.1).
fn derived(daemon: &Daemon, key: &[u8], label: &str, context: &str) -> Result<Vec<u8>> {
    let extracted = hmac(daemon, &[0; 32], key)?;
    let (label_len, context_len) = (u8::try_from(label.len())?, u8::try_from(context.len())?);
    let info = [&[0, 32, label_len][..], label.as_bytes(), &[context_len], context.as_bytes(), &[1]].concat();
    hmac(daemon, &extracted, &info)
}

/// Whether a handshake with this identity and key succeeds.
fn handshake(daemon: &Daemon, identity: &str, key: &[u8]) -> Result<bool> {
    let mut command = process::bound("openssl");
    command.args(["s_client", "-connect", &daemon.nvme.to_string(), "-tls1_3"]);
    command.args(["-ciphersuites", "TLS_AES_128_GCM_SHA256", "-psk_identity", identity, "-psk", &hex(key)]);
    let done = process::run(command.stdin(Stdio::null()), LIMIT)?;
    Ok(done.text.contains("Reused, TLSv1.3"))
}

fn wrong_key(daemon: &Daemon) -> Result<()> {
    if process::run(process::bound("openssl").arg("version"), LIMIT).is_err() {
        return skip("openssl is not installed");
    }
    let (client, target) = (format!("{NQN}tls-host"), format!("{NQN}tls"));
    let identity = format!("NVMe0R01 {client} {target}");
    let configured: Vec<u8> = BYTES.collect();
    let retained = derived(daemon, &configured, "tls13 HostNQN", &client)?;
    let key = derived(daemon, &retained, "tls13 nvme-tls-psk", &identity)?;
    ensure!(!handshake(daemon, &identity, &[0x5a; 32])?, "another key is accepted");
    // An identity of version 1 has a digest of the key.
    let other = format!("NVMe1R01 {client} {target} {}=", "A".repeat(43));
    ensure!(!handshake(daemon, &other, &[0x5a; 32])?, "another key is accepted");
    for (code, words) in [("tls-other-key", "the host has another TLS key"), ("tls-broken", "the TLS handshake failed")]
    {
        let refusals = daemon.json(&["explain", "refusal"])?;
        let is_it = |one: &&Json| one["initiator"] == client && one["code"] == code;
        let refusal = refusals.as_array().into_iter().flatten().find(is_it);
        let number = refusal.with_context(|| format!("no {code}: {refusals:#}"))?["number"].to_string();
        let expected = Expected { explain: &["refusal", &number], code, words, remedy: Remedy::Client };
        let commands = daemon.explained(&expected)?;
        ensure!(commands.iter().any(|command| command.contains("--insert")), "{commands:?}");
        let series = format!("lunar_logins_refused_total{{transport=\"nvme-tcp\",reason=\"{code}\"}}");
        daemon.counted(&series)?;
    }
    // With the key of the group, which the remedy inserts.
    ensure!(handshake(daemon, &identity, &key)?, "the right key is refused");
    Ok(())
}

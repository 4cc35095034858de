//! CHAP authentication: libiscsi and `lunar bench` with CHAP, and hostile clients without the secret, whose responses
//! coreutils compute.

use std::collections::HashMap;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::pdu::{Connection, IMMEDIATE, Pdu, op};
use crate::process;
use crate::session::{ANSWER_LIMIT, keys_of, text};
use crate::target::{Driver, Lab, Spec, Target};
use crate::tools::{expect_text, tool};

const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const NAME: &str = "iqn.2026-01.io.lunar.conform:chap";
/// The initiator whose LUN map has the second volume as LUN 0 and the first one, read-only, as LUN 5.
const MAPPED: &str = "iqn.2026-01.io.lunar.conform:mapped";
const USER: (&str, &str) = ("alice", "secret-of-alice");
const TARGET: (&str, &str) = ("disks", "secret-of-target");
const DISCOVERY: (&str, &str) = ("looker", "secret-of-looker");
/// A wrong response.
const WRONG: &str = "0x00112233445566778899aabbccddeeff";
/// Refused logins that the target lists per second, plus those of the next second.
const LISTED_MAX: usize = 2 * 20 + 5;

pub(crate) mod status {
    pub(crate) const AUTHENTICATION_FAILURE: u16 = 0x0201;
    pub(super) const NOT_FOUND: u16 = 0x0203;
    pub(super) const SERVICE_UNAVAILABLE: u16 = 0x0301;
}

/// Flags of a request in the security stage with a transition to the operational stage.
pub(crate) const TRANSIT: u8 = 0x81;

type Case = (&'static str, fn(&Lab, &Target) -> Result<()>);

const CASES: [Case; 12] = [
    ("libiscsi: the right secret, and wrong ones", libiscsi),
    ("libiscsi: mutual authentication", libiscsi_mutual),
    ("libiscsi: discovery has its own user", libiscsi_discovery),
    ("lunar bench: all algorithms, mutual", own_initiator),
    ("a LUN map limits its initiators to their volumes", mapped),
    ("hostile: a login without authentication", without_authentication),
    ("hostile: an unknown user and a wrong secret get the same response", same_response),
    ("hostile: a response replayed on another connection", replayed),
    ("hostile: a reflected challenge", reflected),
    ("hostile: an initiator without a group", without_group),
    ("hostile: guesses are delayed, other logins are not", guesses),
    ("hostile: a flood of failed logins is refused and counted", flood),
];

/// Runs all cases, each against a target of its own: failed logins of one case would delay the next.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    lab.built()?;
    let part = format!("chap/{}", driver.name());
    for (name, case) in CASES {
        lab.report.check(&part, name, || {
            let mut target = start(lab, driver)?;
            case(lab, &target)?;
            target.healthy()?;
            let said = std::fs::read_to_string(&target.log)?;
            for (_, secret) in [USER, TARGET, DISCOVERY] {
                ensure!(!said.contains(secret), "the log contains a secret");
            }
            target.stop()
        });
    }
    Ok(())
}

pub(crate) fn secret_file(lab: &Lab, (name, secret): (&str, &str)) -> Result<String> {
    use std::os::unix::fs::OpenOptionsExt;
    let path: PathBuf = lab.fresh(&format!("secret-{name}"))?;
    let mut file = std::fs::File::options().create(true).truncate(true).write(true).mode(0o600).open(&path)?;
    writeln!(file, "{secret}")?;
    Ok(path.to_str().context("the name of the scratch folder is not UTF-8")?.to_owned())
}

/// The options of a target with CHAP.
pub(crate) fn spec(lab: &Lab, driver: Driver) -> Result<Spec> {
    let files = (secret_file(lab, USER)?, secret_file(lab, TARGET)?, secret_file(lab, DISCOVERY)?);
    let map = format!("{MAPPED}=0:1,5:0:ro");
    let flags: [&[&str]; 5] = [
        &["--name", NAME, "--initiator", "iqn.20*"],
        &["--map", &map],
        &["--user", USER.0, "--secret-file", &files.0],
        &["--mutual-user", TARGET.0, "--mutual-secret-file", &files.1],
        &["--discovery-user", DISCOVERY.0, "--discovery-secret-file", &files.2],
    ];
    Ok(Spec::new(driver, ["ram:64M", "ram:16M"])?.flags(&flags.concat()))
}

fn start(lab: &Lab, driver: Driver) -> Result<Target> {
    Target::start_named(lab, &spec(lab, driver)?, NAME)
}

/// The users and secrets as shell variables for a guest's script.
pub(crate) fn settings() -> String {
    let each = [("CHAP", USER), ("MUTUAL", TARGET), ("DISCOVERY", DISCOVERY)];
    each.iter().map(|(key, (name, secret))| format!("{key}_USER={name}\n{key}_SECRET={secret}\n")).collect()
}

/// A libiscsi URL with a user and further options.
fn url(target: &Target, (user, secret): (&str, &str), more: &str) -> String {
    format!("iscsi://{user}%{secret}@{}/{NAME}/0{more}", target.portal)
}

fn fails(program: &str, arguments: &[&str]) -> Result<()> {
    let output = process::run(process::bound(program).args(arguments), LIMIT)?;
    ensure!(!output.status.success(), "{program} {} succeeded:\n{}", arguments.join(" "), output.text);
    Ok(())
}

fn libiscsi(_: &Lab, target: &Target) -> Result<()> {
    expect_text(&tool("iscsi-inq", &[&url(target, USER, "")])?, "DIRECT_ACCESS")?;
    for wrong in [(USER.0, "secret-of-mallory"), ("mallory", USER.1), TARGET, DISCOVERY] {
        fails("iscsi-inq", &[&url(target, wrong, "")])?;
    }
    fails("iscsi-inq", &[&target.url(0)])
}

fn libiscsi_mutual(_: &Lab, target: &Target) -> Result<()> {
    let expecting = |name: &str, secret: &str| format!("?target_user={name}&target_password={secret}");
    expect_text(&tool("iscsi-inq", &[&url(target, USER, &expecting(TARGET.0, TARGET.1))])?, "DIRECT_ACCESS")?;
    fails("iscsi-inq", &[&url(target, USER, &expecting(TARGET.0, "secret-of-others"))])
}

fn libiscsi_discovery(_: &Lab, target: &Target) -> Result<()> {
    let portal = |(user, secret): (&str, &str)| format!("iscsi://{user}%{secret}@{}", target.portal);
    expect_text(&tool("iscsi-ls", &[&portal(DISCOVERY)])?, NAME)?;
    fails("iscsi-ls", &[&portal(USER)])?;
    fails("iscsi-ls", &[&format!("iscsi://{}", target.portal)])
}

fn own_initiator(lab: &Lab, target: &Target) -> Result<()> {
    let program = lab.built()?.to_str().context("the path of the program is not UTF-8")?;
    let (user, own) = (secret_file(lab, USER)?, secret_file(lab, TARGET)?);
    let url = target.url(0);
    let common = ["bench", &url, "--time", "0.2", "--user", USER.0, "--secret-file", &user];
    for algorithm in ["5", "6", "7", "8", "5,6,7,8"] {
        let more = ["--chap", algorithm, "--mutual-user", TARGET.0, "--mutual-secret-file", &own];
        tool(program, &[&common[..], &more].concat())?;
    }
    fails(program, &[&common[..], &["--mutual-user", TARGET.0, "--mutual-secret-file", &user]].concat())?;
    fails(program, &["bench", &url, "--time", "0.2", "--user", USER.0, "--secret-file", &own])
}

fn mapped(_: &Lab, target: &Target) -> Result<()> {
    let at = |lun: u16| format!("iscsi://{}%{}@{}/{NAME}/{lun}", USER.0, USER.1, target.portal);
    let size = |initiator: &str, lun| tool("iscsi-readcapacity16", &["-s", "--initiator-name", initiator, &at(lun)]);
    expect_text(&size(MAPPED, 0)?, "16777216")?;
    expect_text(&size(MAPPED, 5)?, "67108864")?;
    expect_text(&size("iqn.2026-01.io.lunar.conform:other", 0)?, "67108864")?;
    fails("iscsi-readcapacity16", &["-s", "--initiator-name", MAPPED, &at(1)])?;
    let write = |lun: u16| {
        let image = format!(
            "driver=iscsi,transport=tcp,portal={},target={NAME},lun={lun},user={},password={},initiator-name={MAPPED}",
            target.portal, USER.0, USER.1
        );
        let commands = ["-c", "write -P 0x5a 0 4096", "-c", "read -P 0x5a 0 4096"];
        let arguments = [&["--image-opts"], &commands[..], &[image.as_str()]].concat();
        process::run(process::bound("qemu-io").args(arguments), LIMIT).map(|output| output.text)
    };
    let said = write(0)?;
    ensure!(said.contains("wrote 4096") && said.contains("read 4096") && !said.contains("fail"), "{said}");
    let said = write(5)?;
    ensure!(!said.contains("wrote 4096"), "a read-only LUN was written: {said}");
    Ok(())
}

/// A login, request by request.
pub(crate) struct LoginExchange {
    connection: Connection,
    pub(crate) answered: HashMap<String, String>,
}

impl LoginExchange {
    pub(crate) fn at(connection: Connection) -> Self {
        Self { connection, answered: HashMap::new() }
    }

    fn new(target: &Target) -> Result<Self> {
        Ok(Self::at(Connection::open(target.portal)?))
    }

    /// Sends a login request with these keys; returns the status.
    pub(crate) fn send(&mut self, flags: u8, keys: &[(&str, &str)]) -> Result<u16> {
        let request = Pdu::new(op::LOGIN | IMMEDIATE, flags).bytes(8, &[0x80, 0x12, 0x34, 0x56]).tag(1);
        self.connection.send(&request.with_data(text(keys.iter().copied())))?;
        let answer = self.connection.expect(ANSWER_LIMIT)?;
        ensure!(answer.opcode() == op::LOGIN_RESPONSE, "answered with opcode {:02x}h", answer.opcode());
        self.answered = keys_of(&answer.data).into_iter().collect();
        Ok(u16::from_be_bytes([answer.head[36], answer.head[37]]))
    }

    /// Continues the login up to the challenge.
    fn challenged(self) -> Result<Self> {
        self.challenged_as("iqn.2026-01.io.lunar.conform:mallory", NAME)
    }

    /// The same with these names.
    pub(crate) fn challenged_as(mut self, initiator: &str, target: &str) -> Result<Self> {
        let names = [("InitiatorName", initiator), ("TargetName", target)];
        ensure!(self.send(0, &[&names[..], &[("AuthMethod", "CHAP,None")]].concat())? == 0, "the method is refused");
        ensure!(self.answered.get("AuthMethod").is_some_and(|method| method == "CHAP"), "{:?}", self.answered);
        ensure!(self.send(0, &[("CHAP_A", "5")])? == 0, "the algorithm is refused");
        Ok(self)
    }

    pub(crate) fn challenge(&self) -> Result<(u8, String)> {
        let value = |key: &str| self.answered.get(key).cloned().with_context(|| format!("no {key}"));
        Ok((value("CHAP_I")?.parse()?, value("CHAP_C")?))
    }

    /// The response for this secret.
    pub(crate) fn response(&self, secret: &str) -> Result<String> {
        let (identifier, challenge) = self.challenge()?;
        let digits = challenge.strip_prefix("0x").context("the challenge is not hexadecimal")?;
        let mut bytes = vec![identifier];
        bytes.extend(secret.as_bytes());
        for at in (0..digits.len()).step_by(2) {
            bytes.push(u8::from_str_radix(&digits[at..at + 2], 16)?);
        }
        let mut sum = Command::new("md5sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        sum.stdin.take().context("a pipe")?.write_all(&bytes)?;
        let said = String::from_utf8(sum.wait_with_output()?.stdout)?;
        Ok(format!("0x{}", said.split_whitespace().next().context("md5sum prints nothing")?))
    }

    fn respond(&mut self, user: &str, response: &str) -> Result<u16> {
        self.send(TRANSIT, &[("CHAP_N", user), ("CHAP_R", response)])
    }

    /// A complete login with a wrong response.
    fn guess(connection: Connection) -> Result<u16> {
        Self::at(connection).challenged()?.respond(USER.0, WRONG)
    }
}

/// Fails unless a line of the audit log contains all of these.
fn expect_audit_line(target: &Target, wanted: &[&str]) -> Result<()> {
    let said = std::fs::read_to_string(&target.log)?;
    let found = said.lines().any(|line| line.contains("audit: ") && wanted.iter().all(|part| line.contains(part)));
    ensure!(found, "no audit line with {wanted:?}");
    Ok(())
}

fn without_authentication(_: &Lab, target: &Target) -> Result<()> {
    let names = [("InitiatorName", "iqn.2026-01.io.lunar.conform:mallory"), ("TargetName", NAME)];
    for (flags, more) in [
        (TRANSIT, vec![("AuthMethod", "None")]),
        (TRANSIT, vec![]),
        (0x83, vec![]),
        (0x87, vec![("MaxBurstLength", "512")]),
    ] {
        let found = LoginExchange::new(target)?.send(flags, &[&names[..], &more].concat())?;
        ensure!(found == status::AUTHENTICATION_FAILURE, "{flags:02x}h {more:?}: {found:04x}h");
    }
    let mut exchange = LoginExchange::new(target)?.challenged()?;
    let found = exchange.send(0x87, &[])?;
    ensure!(found >> 8 == 2, "the next stage without a response: {found:04x}h");
    expect_audit_line(target, &["login refused", "mallory"])
}

fn same_response(_: &Lab, target: &Target) -> Result<()> {
    let mut answers = Vec::new();
    for user in [USER.0, "nobody"] {
        let mut exchange = LoginExchange::new(target)?.challenged()?;
        let found = exchange.respond(user, WRONG)?;
        answers.push((found, exchange.answered));
    }
    ensure!(answers[0] == answers[1], "{answers:?}");
    ensure!(answers[0] == (status::AUTHENTICATION_FAILURE, HashMap::new()), "{answers:?}");
    expect_audit_line(target, &["login refused", "wrong secret", "user=\"alice\""])?;
    expect_audit_line(target, &["login refused", "unknown user", "user=\"nobody\""])
}

fn replayed(_: &Lab, target: &Target) -> Result<()> {
    let (mut first, mut second) =
        (LoginExchange::new(target)?.challenged()?, LoginExchange::new(target)?.challenged()?);
    ensure!(first.challenge()? != second.challenge()?, "the same challenge twice");
    let received = first.response(USER.1)?;
    let found = second.respond(USER.0, &received)?;
    ensure!(found == status::AUTHENTICATION_FAILURE, "replayed: {found:04x}h");
    let found = first.respond(USER.0, &received)?;
    ensure!(found == 0, "on its own connection: {found:04x}h");
    Ok(())
}

fn reflected(_: &Lab, target: &Target) -> Result<()> {
    let other = LoginExchange::new(target)?.challenged()?;
    for elsewhere in [false, true] {
        let mut exchange = LoginExchange::new(target)?.challenged()?;
        let response = exchange.response(USER.1)?;
        let (identifier, challenge) = if elsewhere { other.challenge()? } else { exchange.challenge()? };
        let identifier = identifier.to_string();
        let counter = [("CHAP_I", identifier.as_str()), ("CHAP_C", &challenge)];
        let found = exchange.send(TRANSIT, &[&[("CHAP_N", USER.0), ("CHAP_R", &response)][..], &counter].concat())?;
        ensure!(found == status::AUTHENTICATION_FAILURE, "other connection {elsewhere}: {found:04x}h");
        ensure!(!exchange.answered.contains_key("CHAP_R"), "the reflected challenge is answered");
    }
    // Without a valid response of the initiator, the target does not respond to its challenge.
    let mut exchange = LoginExchange::new(target)?.challenged()?;
    let keys = [("CHAP_N", USER.0), ("CHAP_R", "0x00"), ("CHAP_I", "1"), ("CHAP_C", "0x0102030405060708")];
    ensure!(exchange.send(TRANSIT, &keys)? == status::AUTHENTICATION_FAILURE, "an answer of one byte");
    ensure!(exchange.answered.is_empty(), "{:?}", exchange.answered);
    expect_audit_line(target, &["login refused", "reflected challenge"])
}

fn without_group(_: &Lab, target: &Target) -> Result<()> {
    let keys = [("InitiatorName", "eui.0123456789abcdef"), ("TargetName", NAME), ("AuthMethod", "CHAP")];
    let found = LoginExchange::new(target)?.send(0, &keys)?;
    ensure!(found == status::NOT_FOUND, "{found:04x}h");
    expect_audit_line(target, &["login refused", "no host group matches", "eui.0123456789abcdef"])
}

/// A connection from another address of this machine.
fn from_elsewhere(target: &Target) -> Result<Connection> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::new(127, 0, 0, 77), 0)))?;
    connect(&socket, &target.portal)?;
    Connection::over(socket.into())
}

fn guesses(_: &Lab, target: &Target) -> Result<()> {
    // Only the last response is timed: the machine is busy with other parts.
    let timed = |mut exchange: LoginExchange, user, response: &str| {
        let start = Instant::now();
        exchange.respond(user, response).map(|found| (found, start.elapsed()))
    };
    let mut took = Vec::new();
    for _ in 0..6 {
        let (found, wait) = timed(LoginExchange::new(target)?.challenged()?, USER.0, WRONG)?;
        ensure!(found == status::AUTHENTICATION_FAILURE, "{found:04x}h");
        took.push(wait);
    }
    ensure!(took[5] > Duration::from_millis(700), "the sixth refusal took {:?}", took[5]);
    ensure!(took[0] < took[5] / 2, "the first refusal took {:?}, the sixth {:?}", took[0], took[5]);
    // The right secret of the guessed user, from another address.
    let exchange = LoginExchange::at(from_elsewhere(target)?).challenged()?;
    let response = exchange.response(USER.1)?;
    let (found, wait) = timed(exchange, USER.0, &response)?;
    ensure!(found == 0, "the right secret is refused: {found:04x}h");
    ensure!(wait < took[5] / 2, "the right secret took {wait:?}, a guess {:?}", took[5]);
    Ok(())
}

fn flood(_: &Lab, target: &Target) -> Result<()> {
    const COUNT: usize = 400;
    let start = Instant::now();
    let guesses: Vec<_> = (0..COUNT)
        .map(|_| {
            let portal = target.portal;
            std::thread::spawn(move || LoginExchange::guess(Connection::open(portal)?))
        })
        .collect();
    let mut unavailable = 0;
    for guess in guesses {
        match guess.join().ok().context("a guess panicked")?? {
            status::AUTHENTICATION_FAILURE => {}
            status::SERVICE_UNAVAILABLE => unavailable += 1,
            found => bail!("{found:04x}h"),
        }
    }
    let took = start.elapsed();
    ensure!(unavailable > COUNT / 2, "only {unavailable} were refused at once");
    ensure!(took < Duration::from_secs(20), "the last refusal took {took:?}");
    let said = std::fs::read_to_string(&target.log)?;
    let listed = said.lines().filter(|line| line.contains("audit: login refused")).count();
    let most = LISTED_MAX + 20 * usize::try_from(took.as_secs())?;
    ensure!((20..=most).contains(&listed), "{listed} of {COUNT} refusals are listed");
    let mut exchange = LoginExchange::at(from_elsewhere(target)?).challenged()?;
    let response = exchange.response(USER.1)?;
    ensure!(exchange.respond(USER.0, &response)? == 0, "another address is refused");
    Ok(())
}

//! Proofs of names: libiscsi and our own initiator with CHAP, and those who try without the secret. Responses of the
//! hostile ones are computed by coreutils.

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
use crate::tools::{says, tool};

const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const NAME: &str = "iqn.2026-01.io.lunar.conform:chap";
/// The initiator that sees the second volume as LUN 0, and may read the first one as LUN 5.
const MAPPED: &str = "iqn.2026-01.io.lunar.conform:mapped";
const USER: (&str, &str) = ("alice", "secret-of-alice");
const TARGET: (&str, &str) = ("disks", "secret-of-target");
const LOOKER: (&str, &str) = ("looker", "secret-of-looker");
/// The response of somebody who guesses.
const WRONG: &str = "0x00112233445566778899aabbccddeeff";
/// Refused logins that the target lists in a second, and some for the second that ends meanwhile.
const LISTED_MAX: usize = 2 * 20 + 5;

mod status {
    pub(super) const AUTHENTICATION_FAILURE: u16 = 0x0201;
    pub(super) const NOT_FOUND: u16 = 0x0203;
    pub(super) const SERVICE_UNAVAILABLE: u16 = 0x0301;
}

/// Security stage, and on to the operational one.
const TRANSIT: u8 = 0x81;

type Case = (&'static str, fn(&Lab, &Target) -> Result<()>);

const CASES: [Case; 12] = [
    ("libiscsi: the right secret, and others", libiscsi),
    ("libiscsi: the target proves its name", libiscsi_mutual),
    ("libiscsi: discovery has a user of its own", libiscsi_discovery),
    ("lunar bench: all algorithms, both ways", own_initiator),
    ("a map shows its initiators their volumes, and nothing else", mapped),
    ("hostile: no proof at all", no_proof),
    ("hostile: an unknown user and a wrong secret look the same", no_difference),
    ("hostile: an answer that was heard on another connection", replayed),
    ("hostile: our own challenge, reflected", reflected),
    ("hostile: an initiator that is not named", stranger),
    ("hostile: guesses wait, others do not", guesses),
    ("hostile: a flood of wrong logins is refused and counted", flood),
];

/// Runs all cases, each against a target of its own: what one fails the next would pay for.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    lab.built()?;
    let part = format!("chap/{}", driver.name());
    for (name, case) in CASES {
        lab.report.check(&part, name, || {
            let mut target = start(lab, driver)?;
            case(lab, &target)?;
            target.healthy()?;
            let said = std::fs::read_to_string(&target.log)?;
            for (_, secret) in [USER, TARGET, LOOKER] {
                ensure!(!said.contains(secret), "the log tells a secret");
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
    Ok(path.to_str().context("the scratch folder's name is no text")?.to_owned())
}

/// A target's flags that have initiators prove their names.
pub(crate) fn spec(lab: &Lab, driver: Driver) -> Result<Spec> {
    let files = (secret_file(lab, USER)?, secret_file(lab, TARGET)?, secret_file(lab, LOOKER)?);
    let map = format!("{MAPPED}=0:1,5:0:ro");
    let flags: [&[&str]; 5] = [
        &["--name", NAME, "--initiator", "iqn.20*"],
        &["--map", &map],
        &["--user", USER.0, "--secret-file", &files.0],
        &["--mutual-user", TARGET.0, "--mutual-secret-file", &files.1],
        &["--discovery-user", LOOKER.0, "--discovery-secret-file", &files.2],
    ];
    Ok(Spec::new(driver, ["ram:64M", "ram:16M"])?.flags(&flags.concat()))
}

fn start(lab: &Lab, driver: Driver) -> Result<Target> {
    Target::start_named(lab, &spec(lab, driver)?, NAME)
}

/// What a guest's script must know, as shell variables.
pub(crate) fn settings() -> String {
    let each = [("CHAP", USER), ("MUTUAL", TARGET), ("LOOKER", LOOKER)];
    each.iter().map(|(key, (name, secret))| format!("{key}_USER={name}\n{key}_SECRET={secret}\n")).collect()
}

/// A URL as libiscsi has it, with a user, and what else it should know.
fn url(target: &Target, (user, secret): (&str, &str), more: &str) -> String {
    format!("iscsi://{user}%{secret}@{}/{NAME}/0{more}", target.portal)
}

fn fails(program: &str, arguments: &[&str]) -> Result<()> {
    let output = process::run(process::bound(program).args(arguments), LIMIT)?;
    ensure!(!output.status.success(), "{program} {} succeeded:\n{}", arguments.join(" "), output.text);
    Ok(())
}

fn libiscsi(_: &Lab, target: &Target) -> Result<()> {
    says(&tool("iscsi-inq", &[&url(target, USER, "")])?, "DIRECT_ACCESS")?;
    for wrong in [(USER.0, "secret-of-mallory"), ("mallory", USER.1), TARGET, LOOKER] {
        fails("iscsi-inq", &[&url(target, wrong, "")])?;
    }
    fails("iscsi-inq", &[&target.url(0)])
}

fn libiscsi_mutual(_: &Lab, target: &Target) -> Result<()> {
    let expecting = |name: &str, secret: &str| format!("?target_user={name}&target_password={secret}");
    says(&tool("iscsi-inq", &[&url(target, USER, &expecting(TARGET.0, TARGET.1))])?, "DIRECT_ACCESS")?;
    fails("iscsi-inq", &[&url(target, USER, &expecting(TARGET.0, "secret-of-others"))])
}

fn libiscsi_discovery(_: &Lab, target: &Target) -> Result<()> {
    let portal = |(user, secret): (&str, &str)| format!("iscsi://{user}%{secret}@{}", target.portal);
    says(&tool("iscsi-ls", &[&portal(LOOKER)])?, NAME)?;
    fails("iscsi-ls", &[&portal(USER)])?;
    fails("iscsi-ls", &[&format!("iscsi://{}", target.portal)])
}

fn own_initiator(lab: &Lab, target: &Target) -> Result<()> {
    let program = lab.built()?.to_str().context("the program's name is no text")?;
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
    says(&size(MAPPED, 0)?, "16777216")?;
    says(&size(MAPPED, 5)?, "67108864")?;
    says(&size("iqn.2026-01.io.lunar.conform:other", 0)?, "67108864")?;
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

/// A login by hand.
struct LoginExchange {
    connection: Connection,
    answered: HashMap<String, String>,
}

impl LoginExchange {
    fn at(connection: Connection) -> Self {
        Self { connection, answered: HashMap::new() }
    }

    fn new(target: &Target) -> Result<Self> {
        Ok(Self::at(Connection::open(target.portal)?))
    }

    /// Sends keys; returns the status.
    fn send(&mut self, flags: u8, keys: &[(&str, &str)]) -> Result<u16> {
        let request = Pdu::new(op::LOGIN | IMMEDIATE, flags).bytes(8, &[0x80, 0x12, 0x34, 0x56]).tag(1);
        self.connection.send(&request.with_data(text(keys.iter().copied())))?;
        let answer = self.connection.expect(ANSWER_LIMIT)?;
        ensure!(answer.opcode() == op::LOGIN_RESPONSE, "answered with opcode {:02x}h", answer.opcode());
        self.answered = keys_of(&answer.data).into_iter().collect();
        Ok(u16::from_be_bytes([answer.head[36], answer.head[37]]))
    }

    /// Up to the challenge.
    fn challenged(mut self) -> Result<Self> {
        let names = [("InitiatorName", "iqn.2026-01.io.lunar.conform:mallory"), ("TargetName", NAME)];
        ensure!(self.send(0, &[&names[..], &[("AuthMethod", "CHAP,None")]].concat())? == 0, "the method is refused");
        ensure!(self.answered.get("AuthMethod").is_some_and(|method| method == "CHAP"), "{:?}", self.answered);
        ensure!(self.send(0, &[("CHAP_A", "5")])? == 0, "the algorithm is refused");
        Ok(self)
    }

    fn challenge(&self) -> Result<(u8, String)> {
        let value = |key: &str| self.answered.get(key).cloned().with_context(|| format!("no {key}"));
        Ok((value("CHAP_I")?.parse()?, value("CHAP_C")?))
    }

    /// The answer of somebody who knows `secret`.
    fn response(&self, secret: &str) -> Result<String> {
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
        Ok(format!("0x{}", said.split_whitespace().next().context("md5sum says nothing")?))
    }

    fn respond(&mut self, user: &str, response: &str) -> Result<u16> {
        self.send(TRANSIT, &[("CHAP_N", user), ("CHAP_R", response)])
    }

    /// A login with a wrong secret, from its begin to its end.
    fn guess(connection: Connection) -> Result<u16> {
        Self::at(connection).challenged()?.respond(USER.0, WRONG)
    }
}

/// The target's log holds a line with all of these.
fn audited(target: &Target, wanted: &[&str]) -> Result<()> {
    let said = std::fs::read_to_string(&target.log)?;
    let found = said.lines().any(|line| line.starts_with("audit: ") && wanted.iter().all(|part| line.contains(part)));
    ensure!(found, "no record of {wanted:?}");
    Ok(())
}

fn no_proof(_: &Lab, target: &Target) -> Result<()> {
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
    ensure!(found >> 8 == 2, "the next stage without an answer: {found:04x}h");
    audited(target, &["login refused", "mallory"])
}

fn no_difference(_: &Lab, target: &Target) -> Result<()> {
    let mut answers = Vec::new();
    for user in [USER.0, "nobody"] {
        let mut exchange = LoginExchange::new(target)?.challenged()?;
        let found = exchange.respond(user, WRONG)?;
        answers.push((found, exchange.answered));
    }
    ensure!(answers[0] == answers[1], "{answers:?}");
    ensure!(answers[0] == (status::AUTHENTICATION_FAILURE, HashMap::new()), "{answers:?}");
    audited(target, &["login refused", "wrong secret", "user=\"alice\""])?;
    audited(target, &["login refused", "unknown user", "user=\"nobody\""])
}

fn replayed(_: &Lab, target: &Target) -> Result<()> {
    let (mut first, mut second) =
        (LoginExchange::new(target)?.challenged()?, LoginExchange::new(target)?.challenged()?);
    ensure!(first.challenge()? != second.challenge()?, "the same challenge twice");
    let received = first.response(USER.1)?;
    let found = second.respond(USER.0, &received)?;
    ensure!(found == status::AUTHENTICATION_FAILURE, "replayed: {found:04x}h");
    let found = first.respond(USER.0, &received)?;
    ensure!(found == 0, "where it belongs: {found:04x}h");
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
        ensure!(found == status::AUTHENTICATION_FAILURE, "elsewhere {elsewhere}: {found:04x}h");
        ensure!(!exchange.answered.contains_key("CHAP_R"), "it is answered");
    }
    // Whoever does not prove his own name gets no proof of ours.
    let mut exchange = LoginExchange::new(target)?.challenged()?;
    let keys = [("CHAP_N", USER.0), ("CHAP_R", "0x00"), ("CHAP_I", "1"), ("CHAP_C", "0x0102030405060708")];
    ensure!(exchange.send(TRANSIT, &keys)? == status::AUTHENTICATION_FAILURE, "an answer of one byte");
    ensure!(exchange.answered.is_empty(), "{:?}", exchange.answered);
    audited(target, &["login refused", "reflected challenge"])
}

fn stranger(_: &Lab, target: &Target) -> Result<()> {
    let keys = [("InitiatorName", "eui.0123456789abcdef"), ("TargetName", NAME), ("AuthMethod", "CHAP")];
    let found = LoginExchange::new(target)?.send(0, &keys)?;
    ensure!(found == status::NOT_FOUND, "{found:04x}h");
    audited(target, &["login refused", "no group fits", "eui.0123456789abcdef"])
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
    // What is told is timed alone: others are busy on this machine, and programs start at their own pace.
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
    ensure!(took[5] > Duration::from_millis(700), "the sixth is told after {:?}", took[5]);
    ensure!(took[0] < took[5] / 2, "the first is told after {:?}, the sixth after {:?}", took[0], took[5]);
    // The user whom they guess, from elsewhere.
    let exchange = LoginExchange::at(from_elsewhere(target)?).challenged()?;
    let response = exchange.response(USER.1)?;
    let (found, wait) = timed(exchange, USER.0, &response)?;
    ensure!(found == 0, "the right one is refused: {found:04x}h");
    ensure!(wait < took[5] / 2, "the right one had to wait for {wait:?}, who guessed for {:?}", took[5]);
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
    ensure!(took < Duration::from_secs(20), "the last was told after {took:?}");
    let said = std::fs::read_to_string(&target.log)?;
    let listed = said.lines().filter(|line| line.starts_with("audit: login refused")).count();
    let most = LISTED_MAX + 20 * usize::try_from(took.as_secs())?;
    ensure!((20..=most).contains(&listed), "{listed} of {COUNT} refusals are listed");
    let mut exchange = LoginExchange::at(from_elsewhere(target)?).challenged()?;
    let response = exchange.response(USER.1)?;
    ensure!(exchange.respond(USER.0, &response)? == 0, "another address is refused");
    Ok(())
}

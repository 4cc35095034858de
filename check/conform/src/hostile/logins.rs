//! Hostile clients during login.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::fixture::{ANSWER_LIMIT, Case, Fixture, Reaction, expect_reaction, login_refused, reaction};
use crate::pdu::{Connection, Digests, FINAL, IMMEDIATE, Pdu, Received, op};
use crate::session::{self, Login, Session, text};

/// Initiator errors (RFC 7143 11.13.5).
mod status {
    pub(super) const INITIATOR_ERROR: u16 = 0x0200;
    pub(super) const NOT_FOUND: u16 = 0x0203;
    pub(super) const VERSION: u16 = 0x0205;
    pub(super) const MISSING: u16 = 0x0207;
    pub(super) const SESSION_TYPE: u16 = 0x0209;
    pub(super) const NO_SESSION: u16 = 0x020a;
}

/// The C bit of a login: more text follows.
const CONTINUE: u8 = 0x40;
/// More text than any login has, to find targets that buffer all of it.
const TOO_MUCH: usize = 64 << 20;

/// The address of another host.
const ATTACKER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));

pub(super) const CASES: [Case; 23] = [
    ("login: discovery sessions without end", discovery_sessions),
    ("login: a command before the login", command_first),
    ("login: random bytes first", random_bytes),
    ("login: one byte at a time succeeds", byte_by_byte),
    ("login: reserved stage", |fixture| altered(fixture, status::INITIATOR_ERROR, |pdu| pdu.head[1] = FINAL | 0x0b)),
    ("login: next stage before the current one", |fixture| {
        altered(fixture, status::INITIATOR_ERROR, |pdu| pdu.head[1] = FINAL | 0x04)
    }),
    ("login: full feature as the current stage", |fixture| {
        altered(fixture, status::INITIATOR_ERROR, |pdu| pdu.head[1] = FINAL | 0x0f)
    }),
    ("login: transit and continue together", |fixture| {
        altered(fixture, status::INITIATOR_ERROR, |pdu| pdu.head[1] |= CONTINUE)
    }),
    ("login: a version that does not exist", |fixture| {
        altered(fixture, status::VERSION, |pdu| (pdu.head[2], pdu.head[3]) = (9, 9))
    }),
    ("login: a session that does not exist", |fixture| {
        altered(fixture, status::NO_SESSION, |pdu| (pdu.head[14], pdu.head[15]) = (0xab, 0xcd))
    }),
    ("login: no initiator name", no_initiator_name),
    ("login: no target name", no_target_name),
    ("login: a target that does not exist", unknown_target),
    ("login: a session type that does not exist", |fixture| {
        other_text(fixture, ("SessionType", "Sideways"), status::SESSION_TYPE)
    }),
    ("login: text without keys", |fixture| raw_text(fixture, b"no equals sign here\0".to_vec())),
    ("login: the same key twice", same_key_twice),
    ("login: a key of a thousand bytes", |fixture| {
        expect_some_reaction(fixture, format!("X-{}=1\0", "k".repeat(1000)).into_bytes())
    }),
    ("login: a value of eight thousand bytes", |fixture| {
        expect_some_reaction(fixture, format!("HeaderDigest={}\0", "x,".repeat(4000)).into_bytes())
    }),
    ("login: invalid numbers", numbers),
    ("login: a data segment beyond the limit", long_segment),
    ("login: a data segment without end", endless_segment),
    ("login: text without end", endless_text),
    ("login: requests without end", endless_rounds),
];

fn command_first(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut connection = fixture.connection()?;
    connection.send(&Pdu::new(op::COMMAND, FINAL | 0x41).tag(1))?;
    expect_reaction(&mut connection, Reaction::Closed)
}

fn random_bytes(fixture: &mut Fixture<'_>) -> Result<()> {
    for _ in 0..200 {
        let mut connection = fixture.connection()?;
        let length = 1 + usize::try_from(fixture.random.below(4000))?;
        let bytes = fixture.random.bytes(length);
        // The target may close before all is sent.
        let _ = connection.send_raw(&bytes);
    }
    Ok(())
}

/// TCP does not preserve message boundaries.
fn byte_by_byte(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut connection = fixture.connection()?;
    for byte in fixture.login().request().encode(Digests::default()) {
        connection.send_raw(&[byte])?;
    }
    match reaction(&mut connection, ANSWER_LIMIT)? {
        Reaction::Login(0) => Ok(()),
        other => bail!("{other:?}"),
    }
}

/// A valid login request with one invalid header field.
fn altered(fixture: &Fixture<'_>, status: u16, alter: impl FnOnce(&mut Pdu)) -> Result<()> {
    let mut request = fixture.login().request();
    alter(&mut request);
    let mut connection = fixture.connection()?;
    connection.send(&request)?;
    login_refused(&mut connection, status)?;
    expect_closed(&mut connection)
}

/// A refused login ends the connection.
fn expect_closed(connection: &mut Connection) -> Result<()> {
    match connection.receive(ANSWER_LIMIT)? {
        Received::Closed => Ok(()),
        other => bail!("the connection stays open after the refusal: {other:?}"),
    }
}

fn refused_with(fixture: &Fixture<'_>, login: &Login, status: u16) -> Result<()> {
    let mut connection = fixture.connection()?;
    connection.send(&login.request())?;
    login_refused(&mut connection, status)?;
    expect_closed(&mut connection)
}

fn no_initiator_name(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut connection = fixture.connection()?;
    let keys = [("SessionType", "Normal"), ("TargetName", fixture.target.name.as_str())];
    connection.send(&fixture.login().request().with_data(text(keys)))?;
    login_refused(&mut connection, status::MISSING)
}

fn no_target_name(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut connection = fixture.connection()?;
    let keys = [("SessionType", "Normal"), ("InitiatorName", "iqn.2026-01.io.lunar.conform:attacker")];
    connection.send(&fixture.login().request().with_data(text(keys)))?;
    login_refused(&mut connection, status::MISSING)
}

fn unknown_target(fixture: &mut Fixture<'_>) -> Result<()> {
    refused_with(fixture, &Login::to("iqn.2026-01.io.lunar:nobody.knows.this", "attacker"), status::NOT_FOUND)
}

fn other_text(fixture: &Fixture<'_>, (key, value): (&'static str, &str), status: u16) -> Result<()> {
    refused_with(fixture, &fixture.login().key(key, value), status)
}

/// A login whose text is malformed.
fn raw_text(fixture: &Fixture<'_>, data: Vec<u8>) -> Result<()> {
    let mut request = fixture.login().request();
    request.data.extend(data);
    let mut connection = fixture.connection()?;
    connection.send(&request)?;
    login_refused(&mut connection, status::INITIATOR_ERROR)
}

fn same_key_twice(fixture: &mut Fixture<'_>) -> Result<()> {
    raw_text(fixture, b"InitialR2T=No\0InitialR2T=Yes\0".to_vec())
}

/// Unusual text that may be valid: the target may answer, refuse or close, but must react.
fn expect_some_reaction(fixture: &Fixture<'_>, data: Vec<u8>) -> Result<()> {
    let mut request = fixture.login().request();
    request.data.extend(data);
    ensure!(request.data.len() <= 8192 + 1024, "the case itself is too long");
    let mut connection = fixture.connection()?;
    connection.send(&request)?;
    match reaction(&mut connection, ANSWER_LIMIT)? {
        Reaction::Login(_) | Reaction::Closed | Reaction::Rejected(_) => Ok(()),
        other => bail!("{other:?}"),
    }
}

fn numbers(fixture: &mut Fixture<'_>) -> Result<()> {
    for value in ["0", "-1", "511", "16777216", "99999999999999999999", "0x", "1.5", "", "many", "0x1g"] {
        for key in ["MaxRecvDataSegmentLength", "MaxBurstLength", "FirstBurstLength", "DefaultTime2Wait"] {
            let mut connection = fixture.connection()?;
            connection.send(&fixture.login().key(key, value).request())?;
            match reaction(&mut connection, ANSWER_LIMIT)? {
                Reaction::Login(_) | Reaction::Closed | Reaction::Rejected(_) => {}
                other => bail!("{key}={value}: {other:?}"),
            }
        }
    }
    Ok(())
}

/// Before MaxRecvDataSegmentLength is declared, a data segment has at most 8192 bytes (RFC 7143 13.12). The position of
/// the PDU after a longer one is not trustworthy.
fn long_segment(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut request = fixture.login().request();
    request.data.resize(100_000, 0);
    let mut connection = fixture.connection()?;
    // The target may close before all is sent.
    let _ = connection.send(&request);
    expect_reaction(&mut connection, Reaction::Closed)
}

fn endless_segment(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut request = fixture.login().request();
    request.head[5..8].copy_from_slice(&[0xff, 0xff, 0xff]);
    let mut connection = fixture.connection()?;
    connection.send_raw(&request.encode_as_is(Digests::default()))?;
    let piece = vec![b'x'; 1 << 16];
    for _ in 0..TOO_MUCH / piece.len() {
        if connection.send_raw(&piece).is_err() {
            break;
        }
    }
    expect_reaction(&mut connection, Reaction::Closed)
}

fn endless_text(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut request = fixture.login().request();
    request.head[1] = CONTINUE | 0x04;
    request.data = vec![b'x'; 8192];
    let mut connection = fixture.connection()?;
    for _ in 0..TOO_MUCH / 8192 {
        if connection.send(&request).is_err() {
            return Ok(());
        }
        match reaction(&mut connection, ANSWER_LIMIT)? {
            Reaction::Closed | Reaction::Rejected(_) => return Ok(()),
            Reaction::Login(0) => {}
            Reaction::Login(refused) if refused >> 8 >= 2 => return expect_closed(&mut connection),
            other => bail!("{other:?}"),
        }
    }
    bail!("{} MiB of text were received", TOO_MUCH >> 20)
}

/// The standard does not limit the number of requests: the target may continue or refuse.
fn endless_rounds(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut request = fixture.login().request();
    request.head[1] = 0x04;
    let mut connection = fixture.connection()?;
    for _ in 0..300 {
        if connection.send(&request).is_err() {
            return Ok(());
        }
        request = Pdu::new(op::LOGIN | IMMEDIATE, 0x04).bytes(8, &request.head[8..24]);
        match reaction(&mut connection, ANSWER_LIMIT)? {
            Reaction::Login(0) => {}
            Reaction::Login(_) | Reaction::Closed | Reaction::Rejected(_) => return Ok(()),
            other => bail!("{other:?}"),
        }
    }
    std::thread::sleep(Duration::from_millis(10));
    Ok(())
}

/// A connection from this address.
fn connection_from(source: IpAddr, fixture: &Fixture<'_>) -> Result<Connection> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::new(source, 0))?;
    connect(&socket, &fixture.target.portal)?;
    Connection::over(TcpStream::from(socket))
}

/// Discovery sessions take no place of other sessions; of too many, the oldest of the same host end.
fn discovery_sessions(fixture: &mut Fixture<'_>) -> Result<()> {
    const COUNT: usize = 200;
    /// `DISCOVERY_PER_HOST_MAX` of the target.
    const KEPT: usize = 64;
    let mut victim = Session::ready(fixture.target.portal, &Login::to(&fixture.target.name, "victim"), fixture.lun)?;
    let mut sessions = Vec::new();
    for count in 0..COUNT {
        let mut login = Login::to("", &format!("stranger{count}"));
        login.target = None;
        sessions.push(Session::over(connection_from(ATTACKER, fixture)?, &login)?);
    }
    let mut ended = 0;
    for session in &mut sessions[..COUNT - KEPT] {
        ended += usize::from(matches!(session.connection.receive(Duration::from_secs(2))?, Received::Closed));
    }
    ensure!(ended == COUNT - KEPT, "{ended} of {COUNT} discovery sessions of one host have ended");
    ensure!(matches!(sessions[COUNT - 1].connection.receive(Duration::from_millis(50))?, Received::Silence));
    victim.ping()?;
    // The victim comes again, under the same names.
    Session::ready(fixture.target.portal, &Login::to(&fixture.target.name, "victim"), fixture.lun)?.logout()?;
    ensure!(!session::discover(fixture.target.portal)?.is_empty(), "discovery of another host");
    Ok(())
}

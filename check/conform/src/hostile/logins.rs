//! What comes before a session, from peers that nobody has identified yet.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::fixture::{Case, Ground, Met, PATIENCE, login_refused, meets, met};
use crate::pdu::{Digests, FINAL, Heard, IMMEDIATE, Link, Pdu, op};
use crate::session::{Login, text};

/// Initiator errors of RFC 7143, 11.13.5.
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
/// More than any login has, and what a careless target would keep.
const TOO_MUCH: usize = 64 << 20;

pub(super) const CASES: [Case; 22] = [
    ("login: a command before it", command_first),
    ("login: random bytes first", random_bytes),
    ("login: one byte at a time succeeds", byte_by_byte),
    ("login: reserved stage", |ground| altered(ground, status::INITIATOR_ERROR, |pdu| pdu.head[1] = FINAL | 0x0b)),
    ("login: next stage before the current one", |ground| {
        altered(ground, status::INITIATOR_ERROR, |pdu| pdu.head[1] = FINAL | 0x04)
    }),
    ("login: full feature as the current stage", |ground| {
        altered(ground, status::INITIATOR_ERROR, |pdu| pdu.head[1] = FINAL | 0x0f)
    }),
    ("login: transit and continue together", |ground| {
        altered(ground, status::INITIATOR_ERROR, |pdu| pdu.head[1] |= CONTINUE)
    }),
    ("login: a version that does not exist", |ground| {
        altered(ground, status::VERSION, |pdu| (pdu.head[2], pdu.head[3]) = (9, 9))
    }),
    ("login: a session that does not exist", |ground| {
        altered(ground, status::NO_SESSION, |pdu| (pdu.head[14], pdu.head[15]) = (0xab, 0xcd))
    }),
    ("login: no initiator name", no_initiator_name),
    ("login: no target name", no_target_name),
    ("login: a target that does not exist", unknown_target),
    ("login: a session type that does not exist", |ground| {
        other_text(ground, ("SessionType", "Sideways"), status::SESSION_TYPE)
    }),
    ("login: text without keys", |ground| raw_text(ground, b"no equals sign here\0".to_vec())),
    ("login: the same key twice", same_key_twice),
    ("login: a key of a thousand bytes", |ground| bears(ground, format!("X-{}=1\0", "k".repeat(1000)).into_bytes())),
    ("login: a value of eight thousand bytes", |ground| {
        bears(ground, format!("HeaderDigest={}\0", "x,".repeat(4000)).into_bytes())
    }),
    ("login: numbers that are none", numbers),
    ("login: a data segment beyond the limit", long_segment),
    ("login: a data segment without end", endless_segment),
    ("login: text without end", endless_text),
    ("login: rounds without end", endless_rounds),
];

fn command_first(ground: &mut Ground<'_>) -> Result<()> {
    let mut link = ground.link()?;
    link.send(&Pdu::new(op::COMMAND, FINAL | 0x41).tag(1))?;
    meets(&mut link, Met::Closed)
}

fn random_bytes(ground: &mut Ground<'_>) -> Result<()> {
    for _ in 0..200 {
        let mut link = ground.link()?;
        let length = 1 + usize::try_from(ground.random.below(4000))?;
        let bytes = ground.random.bytes(length);
        // The target may close before all is sent.
        let _ = link.send_raw(&bytes);
    }
    Ok(())
}

/// TCP keeps no boundaries: nobody may rely on them.
fn byte_by_byte(ground: &mut Ground<'_>) -> Result<()> {
    let mut link = ground.link()?;
    for byte in ground.login().request().encode(Digests::default()) {
        link.send_raw(&[byte])?;
    }
    match met(&mut link, PATIENCE)? {
        Met::Login(0) => Ok(()),
        other => bail!("{other:?}"),
    }
}

/// A right login request with something wrong in its header.
fn altered(ground: &Ground<'_>, status: u16, alter: impl FnOnce(&mut Pdu)) -> Result<()> {
    let mut request = ground.login().request();
    alter(&mut request);
    let mut link = ground.link()?;
    link.send(&request)?;
    login_refused(&mut link, status)?;
    gone(&mut link)
}

/// A refused login ends the connection.
fn gone(link: &mut Link) -> Result<()> {
    match link.hear(PATIENCE)? {
        Heard::Closed => Ok(()),
        other => bail!("the connection stays open after the refusal: {other:?}"),
    }
}

fn refused_with(ground: &Ground<'_>, login: &Login, status: u16) -> Result<()> {
    let mut link = ground.link()?;
    link.send(&login.request())?;
    login_refused(&mut link, status)?;
    gone(&mut link)
}

fn no_initiator_name(ground: &mut Ground<'_>) -> Result<()> {
    let mut link = ground.link()?;
    let keys = [("SessionType", "Normal"), ("TargetName", ground.target.name.as_str())];
    link.send(&ground.login().request().with_data(text(keys)))?;
    login_refused(&mut link, status::MISSING)
}

fn no_target_name(ground: &mut Ground<'_>) -> Result<()> {
    let mut link = ground.link()?;
    let keys = [("SessionType", "Normal"), ("InitiatorName", "iqn.2026-01.io.lunar.conform:attacker")];
    link.send(&ground.login().request().with_data(text(keys)))?;
    login_refused(&mut link, status::MISSING)
}

fn unknown_target(ground: &mut Ground<'_>) -> Result<()> {
    refused_with(ground, &Login::to("iqn.2026-01.io.lunar:nobody.knows.this", "attacker"), status::NOT_FOUND)
}

fn other_text(ground: &Ground<'_>, (key, value): (&'static str, &str), status: u16) -> Result<()> {
    refused_with(ground, &ground.login().key(key, value), status)
}

/// Text in place of keys.
fn raw_text(ground: &Ground<'_>, data: Vec<u8>) -> Result<()> {
    let mut request = ground.login().request();
    request.data.extend(data);
    let mut link = ground.link()?;
    link.send(&request)?;
    login_refused(&mut link, status::INITIATOR_ERROR)
}

fn same_key_twice(ground: &mut Ground<'_>) -> Result<()> {
    raw_text(ground, b"InitialR2T=No\0InitialR2T=Yes\0".to_vec())
}

/// Odd but perhaps lawful: an answer, a refusal or a close, just no silence.
fn bears(ground: &Ground<'_>, data: Vec<u8>) -> Result<()> {
    let mut request = ground.login().request();
    request.data.extend(data);
    ensure!(request.data.len() <= 8192 + 1024, "the case itself is too long");
    let mut link = ground.link()?;
    link.send(&request)?;
    match met(&mut link, PATIENCE)? {
        Met::Login(_) | Met::Closed | Met::Rejected(_) => Ok(()),
        other => bail!("{other:?}"),
    }
}

fn numbers(ground: &mut Ground<'_>) -> Result<()> {
    for value in ["0", "-1", "511", "16777216", "99999999999999999999", "0x", "1.5", "", "many", "0x1g"] {
        for key in ["MaxRecvDataSegmentLength", "MaxBurstLength", "FirstBurstLength", "DefaultTime2Wait"] {
            let mut link = ground.link()?;
            link.send(&ground.login().key(key, value).request())?;
            match met(&mut link, PATIENCE)? {
                Met::Login(_) | Met::Closed | Met::Rejected(_) => {}
                other => bail!("{key}={value}: {other:?}"),
            }
        }
    }
    Ok(())
}

/// Before anything is agreed a data segment has 8192 bytes at most (RFC 7143, 13.12); what comes after a longer one
/// cannot be trusted.
fn long_segment(ground: &mut Ground<'_>) -> Result<()> {
    let mut request = ground.login().request();
    request.data.resize(100_000, 0);
    let mut link = ground.link()?;
    // The target may close before all is sent.
    let _ = link.send(&request);
    meets(&mut link, Met::Closed)
}

fn endless_segment(ground: &mut Ground<'_>) -> Result<()> {
    let mut request = ground.login().request();
    request.head[5..8].copy_from_slice(&[0xff, 0xff, 0xff]);
    let mut link = ground.link()?;
    link.send_raw(&request.encode_as_is(Digests::default()))?;
    let piece = vec![b'x'; 1 << 16];
    for _ in 0..TOO_MUCH / piece.len() {
        if link.send_raw(&piece).is_err() {
            break;
        }
    }
    meets(&mut link, Met::Closed)
}

fn endless_text(ground: &mut Ground<'_>) -> Result<()> {
    let mut request = ground.login().request();
    request.head[1] = CONTINUE | 0x04;
    request.data = vec![b'x'; 8192];
    let mut link = ground.link()?;
    for _ in 0..TOO_MUCH / 8192 {
        if link.send(&request).is_err() {
            return Ok(());
        }
        match met(&mut link, PATIENCE)? {
            Met::Closed | Met::Rejected(_) => return Ok(()),
            Met::Login(0) => {}
            Met::Login(refused) if refused >> 8 >= 2 => return gone(&mut link),
            other => bail!("{other:?}"),
        }
    }
    bail!("{} MiB of text were taken", TOO_MUCH >> 20)
}

/// Nothing forbids many rounds, so the target may go on; it may also have had enough.
fn endless_rounds(ground: &mut Ground<'_>) -> Result<()> {
    let mut request = ground.login().request();
    request.head[1] = 0x04;
    let mut link = ground.link()?;
    for _ in 0..300 {
        if link.send(&request).is_err() {
            return Ok(());
        }
        request = Pdu::new(op::LOGIN | IMMEDIATE, 0x04).bytes(8, &request.head[8..24]);
        match met(&mut link, PATIENCE)? {
            Met::Login(0) => {}
            Met::Login(_) | Met::Closed | Met::Rejected(_) => return Ok(()),
            other => bail!("{other:?}"),
        }
    }
    std::thread::sleep(Duration::from_millis(10));
    Ok(())
}

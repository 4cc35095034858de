//! Floods, slow clients, and clients that do not read.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::fixture::{ANSWER_LIMIT, CORES, Case, Fixture, newcomer};
use crate::pdu::{Digests, FINAL, IMMEDIATE, Pdu, RESERVED_TAG, Received, op};
use crate::session::{Data, Session, cdb};
use crate::test_data::pattern;

const HALF_OPEN: u64 = 10_000;
/// The half-open connections that a core of the target keeps (`HALF_OPEN_MAX` of `lunar_stream`).
const HALF_OPEN_KEPT: usize = 1024;
/// Open files of this program besides the connections of a flood.
const OWN_FILES: u64 = 200;

pub(super) const CASES: [Case; 11] = [
    ("flood: 10,000 connections that never log in", half_open),
    ("flood: 2,000 connections that close at once", churn),
    ("flood: 500 connections with half a login each", half_logins),
    ("flood: 300 sessions at once", many_sessions),
    ("flood: the same session again and again", reinstatement),
    ("flood: reads whose data is not received", reads_untaken),
    ("flood: a slow reader receives all data in time", slow_reader),
    ("flood: pings whose echo is not received", pings_untaken),
    ("flood: writes whose data never arrives", writes_without_data),
    ("flood: half of a long data segment, a hundred times", half_segments),
    ("flood: commands beyond the window", beyond_window),
];

/// The number of open files of the target.
fn open_files(fixture: &Fixture<'_>) -> Option<usize> {
    let pid = fixture.target.pid()?;
    Some(std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}

/// Runs a flood, and waits until the target has closed its connections.
fn run_flood(fixture: &mut Fixture<'_>, flood: impl FnOnce(&mut Fixture<'_>) -> Result<()>) -> Result<()> {
    let before = open_files(fixture);
    flood(fixture)?;
    let end = Instant::now() + ANSWER_LIMIT;
    // The writer and new logins of other cases open a few files: that is not a leak.
    while let (Some(before), Some(now)) = (before, open_files(fixture))
        && now > before + 8
    {
        ensure!(Instant::now() < end, "the target had {before} files open before, and {now} after");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Raises the limit of open files up to `wanted`; returns the limit.
fn raise_file_limit(wanted: u64) -> u64 {
    let now = getrlimit(Resource::Nofile);
    let most = now.maximum.unwrap_or(u64::MAX);
    let current = wanted.min(most).max(now.current.unwrap_or(0));
    if setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: now.maximum }).is_ok() {
        return current;
    }
    now.current.unwrap_or(1024)
}

/// A new half-open connection replaces the oldest half-open one. Logged-in sessions and new logins are not affected.
fn half_open(fixture: &mut Fixture<'_>) -> Result<()> {
    let allowed = usize::try_from(raise_file_limit(HALF_OPEN + OWN_FILES).saturating_sub(OWN_FILES).min(HALF_OPEN))?;
    if (allowed as u64) < HALF_OPEN {
        fixture.lab.report.note(&format!("this process may have {allowed} connections, not {HALF_OPEN}"));
    }
    let mut kept = 0;
    run_flood(fixture, |fixture| {
        let mut first = fixture.session(&[])?;
        let mut held = Vec::new();
        while held.len() < allowed {
            let stream = TcpStream::connect_timeout(&fixture.target.portal, Duration::from_secs(5));
            let stream = stream.with_context(|| format!("connection {} of {allowed}", held.len() + 1))?;
            stream.set_nonblocking(true)?;
            held.push(stream);
            if held.len().is_multiple_of(500) {
                let place = held.len() as u64;
                first.write(place * 8, pattern(place, 1, 4096), 512)?;
                ensure!(
                    first.read(place * 8, 8, 512)? == pattern(place, 1, 4096),
                    "an earlier session reads wrong data"
                );
            }
        }
        let most = usize::try_from(CORES)? * HALF_OPEN_KEPT;
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            kept = held.iter().filter(|stream| is_open(stream)).count();
            if kept <= most {
                break;
            }
            ensure!(Instant::now() < end, "{kept} half-open connections are kept, {most} are the limit");
            std::thread::sleep(Duration::from_millis(20));
        }
        ensure!(kept >= HALF_OPEN_KEPT.min(allowed), "only {kept} half-open connections are kept");
        newcomer(fixture.target).context("with the flood's connections open")?;
        fixture.gauge.check_limit()?;
        first.ping()?;
        ensure!(first.read(4000, 8, 512)? == pattern(500, 1, 4096), "data written during the flood is lost");
        first.logout()
    })?;
    fixture.lab.report.note(&format!("{kept} of {allowed} half-open connections were kept"));
    Ok(())
}

/// Whether the target has not closed or reset a connection on which it sends nothing.
fn is_open(mut stream: &TcpStream) -> bool {
    matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

fn churn(fixture: &mut Fixture<'_>) -> Result<()> {
    run_flood(fixture, |fixture| {
        for _ in 0..2000 {
            fixture.connection()?;
        }
        Ok(())
    })
}

fn half_logins(fixture: &mut Fixture<'_>) -> Result<()> {
    run_flood(fixture, |fixture| {
        let bytes = fixture.login().request().encode(Digests::default());
        let mut held = Vec::new();
        for at in 0..500 {
            let mut connection = fixture.connection()?;
            // The target may have closed the connection.
            let _ = connection.send_raw(&bytes[..1 + at % (bytes.len() - 1)]);
            held.push(connection);
        }
        Ok(())
    })
}

fn many_sessions(fixture: &mut Fixture<'_>) -> Result<()> {
    run_flood(fixture, |fixture| {
        let mut sessions = Vec::new();
        let mut refused = 0;
        for qualifier in 0..300 {
            match Session::ready(fixture.target.portal, &fixture.login().qualifier(qualifier), fixture.lun) {
                Ok(session) => sessions.push(session),
                Err(_) => refused += 1,
            }
        }
        ensure!(sessions.len() >= 32, "only {} sessions of one initiator at a time", sessions.len());
        for session in &mut sessions {
            session.ping()?;
        }
        fixture.lab.report.note(&format!("{} sessions at once, {refused} refused", sessions.len()));
        Ok(())
    })
}

/// A login with the same names replaces the session (RFC 7143 6.3.5): the old connection ends, the new one works.
fn reinstatement(fixture: &mut Fixture<'_>) -> Result<()> {
    run_flood(fixture, |fixture| {
        let mut sessions: Vec<Session> = Vec::new();
        for _ in 0..10 {
            let mut session = Session::ready(fixture.target.portal, &fixture.login(), fixture.lun)?;
            session.ping()?;
            sessions.push(session);
        }
        sessions.pop();
        for mut session in sessions {
            // An asynchronous message may come first.
            loop {
                match session.connection.receive(ANSWER_LIMIT)? {
                    Received::Closed => break,
                    Received::Silence => bail!("a replaced session stays open"),
                    Received::Pdu(_) => {}
                }
            }
        }
        Ok(())
    })
}

fn reads_untaken(fixture: &mut Fixture<'_>) -> Result<()> {
    run_flood(fixture, |fixture| {
        let mut sessions = Vec::new();
        for qualifier in 0..8 {
            let login = fixture.login().qualifier(qualifier);
            let mut session = Session::ready(fixture.target.portal, &login, fixture.lun)?;
            let window = session.max_cmd_sn.wrapping_sub(session.cmd_sn).wrapping_add(1).min(512);
            for _ in 0..window {
                let pdu = session.command(&cdb::read(0, 2048), 0x40, 1 << 20);
                session.connection.send(&pdu)?;
            }
            sessions.push(session);
        }
        // Gives the target time to read as much as it may into memory.
        std::thread::sleep(Duration::from_secs(2));
        Ok(())
    })
}

/// A small receive buffer and short pauses: data that did not fit must follow when there is room, not after a timeout.
fn slow_reader(fixture: &mut Fixture<'_>) -> Result<()> {
    const ROUNDS: u32 = 40;
    /// Far less than a reply, but more than a segment of the loopback: in less room, the kernel of the sender sends a
    /// piece only when its probe timer expires.
    const ROOM: usize = 128 << 10;
    let mut session = fixture.session(&[])?;
    set_socket_recv_buffer_size(&session.connection.stream, ROOM)?;
    let before = Instant::now();
    for _ in 0..ROUNDS {
        session.start(&cdb::read(0, 2048), Data::In(1 << 20))?;
        std::thread::sleep(Duration::from_millis(5));
        session.next()?.good()?;
        let took = before.elapsed();
        ensure!(took < Duration::from_secs(10), "{ROUNDS} MiB take more than {:.1} s", took.as_secs_f64());
    }
    Ok(())
}

fn pings_untaken(fixture: &mut Fixture<'_>) -> Result<()> {
    run_flood(fixture, |fixture| {
        let mut session = fixture.session(&[])?;
        session.connection.stream.set_write_timeout(Some(Duration::from_millis(500)))?;
        let nop = Pdu::new(op::NOP_OUT | IMMEDIATE, FINAL).tag(5).word(20, RESERVED_TAG).word(24, session.cmd_sn);
        let bytes = nop.word(28, session.exp_stat_sn).with_data(vec![1; 8192]).encode(Digests::default());
        // The target must stop receiving or close; it must not buffer a gigabyte.
        for _ in 0..(1 << 30) / bytes.len() {
            if session.connection.send_raw(&bytes).is_err() {
                return Ok(());
            }
        }
        bail!("a gigabyte of pings was received although no echo was read")
    })
}

fn writes_without_data(fixture: &mut Fixture<'_>) -> Result<()> {
    run_flood(fixture, |fixture| {
        let mut sessions = Vec::new();
        for qualifier in 0..32 {
            let login = fixture.login().qualifier(qualifier).key("ImmediateData", "No").key("InitialR2T", "Yes");
            let mut session = Session::ready(fixture.target.portal, &login, fixture.lun)?;
            let window = session.max_cmd_sn.wrapping_sub(session.cmd_sn).wrapping_add(1).min(64);
            for _ in 0..window {
                let pdu = session.command(&cdb::write(0, 2048), 0x20, 1 << 20);
                session.connection.send(&pdu)?;
            }
            sessions.push(session);
        }
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    })
}

fn half_segments(fixture: &mut Fixture<'_>) -> Result<()> {
    run_flood(fixture, |fixture| {
        let mut sessions = Vec::new();
        for qualifier in 0..100 {
            let mut session =
                Session::ready(fixture.target.portal, &fixture.login().qualifier(qualifier), fixture.lun)?;
            let length =
                session.answers.get("MaxRecvDataSegmentLength").and_then(|text| text.parse().ok()).unwrap_or(8192);
            let length: usize = length.min(65536);
            let pdu = session.command(&cdb::write(0, 128), 0x20, 65536).with_data(vec![3; length]);
            let bytes = pdu.encode(Digests::default());
            session.connection.send_raw(&bytes[..48 + length / 2])?;
            sessions.push(session);
        }
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    })
}

/// Commands beyond MaxCmdSN: they are dropped, the others are answered, and no memory is kept for any.
fn beyond_window(fixture: &mut Fixture<'_>) -> Result<()> {
    run_flood(fixture, |fixture| {
        let mut session = fixture.session(&[])?;
        session.connection.stream.set_write_timeout(Some(Duration::from_secs(2)))?;
        for _ in 0..20_000 {
            let pdu = session.command(&[0; 6], 0, 0);
            if session.connection.send(&pdu).is_err() {
                break;
            }
        }
        let mut answers = 0;
        while let Received::Pdu(pdu) = session.connection.receive(Duration::from_millis(300))? {
            ensure!(pdu.opcode() == op::RESPONSE, "opcode {:02x}h", pdu.opcode());
            answers += 1;
        }
        ensure!(answers > 0, "no command was answered");
        Ok(())
    })
}

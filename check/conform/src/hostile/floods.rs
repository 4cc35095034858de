//! Peers that are many, slow, or never listen.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::fixture::{CORES, Case, Fixture, PATIENCE, newcomer};
use crate::pdu::{Digests, FINAL, IMMEDIATE, Pdu, RESERVED_TAG, Received, op};
use crate::session::{Data, Session, cdb};
use crate::test_data::pattern;

const HALF_OPEN: u64 = 10_000;
/// So many of them a core of the target keeps (`HALF_OPEN_MAX` of its `stream`).
const HALF_OPEN_KEPT: usize = 1024;
/// Files that we need ourselves besides the connections of a flood.
const OWN_FILES: u64 = 200;

pub(super) const CASES: [Case; 11] = [
    ("flood: 10,000 connections that never log in", half_open),
    ("flood: 2,000 connections that close at once", churn),
    ("flood: 500 connections with half a login each", half_logins),
    ("flood: 300 sessions at once", many_sessions),
    ("flood: the same session again and again", reinstatement),
    ("flood: reads whose data nobody takes", reads_untaken),
    ("flood: a slow reader gets all of it, in time", slow_reader),
    ("flood: pings whose echo nobody takes", pings_untaken),
    ("flood: writes whose data never comes", writes_without_data),
    ("flood: half of a long data segment, a hundred times", half_segments),
    ("flood: commands beyond the window", beyond_window),
];

/// Sessions and logins of a flood are gone when their connections are.
fn files_of(fixture: &Fixture<'_>) -> Option<usize> {
    let pid = fixture.target.pid()?;
    Some(std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}

/// Runs a flood, and then waits until the target has let go of it.
fn and_over(fixture: &mut Fixture<'_>, flood: impl FnOnce(&mut Fixture<'_>) -> Result<()>) -> Result<()> {
    let before = files_of(fixture);
    flood(fixture)?;
    let end = Instant::now() + PATIENCE;
    // The witness and the newcomers of other cases come and go: a few more are no leak.
    while let (Some(before), Some(now)) = (before, files_of(fixture))
        && now > before + 8
    {
        ensure!(Instant::now() < end, "the target had {before} files open before, and {now} after");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// As many files as we may have, up to `wanted`.
fn allow_files(wanted: u64) -> u64 {
    let now = getrlimit(Resource::Nofile);
    let most = now.maximum.unwrap_or(u64::MAX);
    let current = wanted.min(most).max(now.current.unwrap_or(0));
    if setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: now.maximum }).is_ok() {
        return current;
    }
    now.current.unwrap_or(1024)
}

/// Whoever is half open makes room for the next of his kind, the oldest first; who has logged in, and who comes to log
/// in, notices nothing of them.
fn half_open(fixture: &mut Fixture<'_>) -> Result<()> {
    let allowed = usize::try_from(allow_files(HALF_OPEN + OWN_FILES).saturating_sub(OWN_FILES).min(HALF_OPEN))?;
    if (allowed as u64) < HALF_OPEN {
        fixture.lab.report.note(&format!("this process may have {allowed} connections, not {HALF_OPEN}"));
    }
    let mut kept = 0;
    and_over(fixture, |fixture| {
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
                ensure!(first.read(place * 8, 8, 512)? == pattern(place, 1, 4096), "who was here first reads nonsense");
            }
        }
        let most = usize::try_from(CORES)? * HALF_OPEN_KEPT;
        let end = Instant::now() + PATIENCE;
        loop {
            kept = held.iter().filter(|stream| is_open(stream)).count();
            if kept <= most {
                break;
            }
            ensure!(Instant::now() < end, "{kept} half-open connections are kept, {most} are the limit");
            std::thread::sleep(Duration::from_millis(20));
        }
        ensure!(kept >= HALF_OPEN_KEPT.min(allowed), "only {kept} half-open connections are kept");
        newcomer(fixture.target).context("while they are open")?;
        fixture.gauge.check_limit()?;
        first.ping()?;
        ensure!(first.read(4000, 8, 512)? == pattern(500, 1, 4096), "what was written in the flood is lost");
        first.logout()
    })?;
    fixture.lab.report.note(&format!("of {allowed} connections at once {kept} were kept"));
    Ok(())
}

/// Whether the other end has neither closed nor reset it; nobody has sent anything.
fn is_open(mut stream: &TcpStream) -> bool {
    matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

fn churn(fixture: &mut Fixture<'_>) -> Result<()> {
    and_over(fixture, |fixture| {
        for _ in 0..2000 {
            fixture.connection()?;
        }
        Ok(())
    })
}

fn half_logins(fixture: &mut Fixture<'_>) -> Result<()> {
    and_over(fixture, |fixture| {
        let bytes = fixture.login().request().encode(Digests::default());
        let mut held = Vec::new();
        for at in 0..500 {
            let mut connection = fixture.connection()?;
            // The target may have had enough and closed.
            let _ = connection.send_raw(&bytes[..1 + at % (bytes.len() - 1)]);
            held.push(connection);
        }
        Ok(())
    })
}

fn many_sessions(fixture: &mut Fixture<'_>) -> Result<()> {
    and_over(fixture, |fixture| {
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

/// A login with the same names replaces the session (RFC 7143, 6.3.5): the old connection ends, the new one works.
fn reinstatement(fixture: &mut Fixture<'_>) -> Result<()> {
    and_over(fixture, |fixture| {
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
                match session.connection.receive(PATIENCE)? {
                    Received::Closed => break,
                    Received::Silence => bail!("a session that was replaced stays open"),
                    Received::Pdu(_) => {}
                }
            }
        }
        Ok(())
    })
}

fn reads_untaken(fixture: &mut Fixture<'_>) -> Result<()> {
    and_over(fixture, |fixture| {
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
        // Time for the target to read all it may into memory.
        std::thread::sleep(Duration::from_secs(2));
        Ok(())
    })
}

/// Little room on our side, and little pauses: what did not fit at once must follow when there is room, not at some
/// time-out.
fn slow_reader(fixture: &mut Fixture<'_>) -> Result<()> {
    const ROUNDS: u32 = 40;
    /// Far less than a reply, but more than a segment of the loopback: with less room than a segment, the sender's
    /// kernel sends a piece each time its probe timer runs out.
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
    and_over(fixture, |fixture| {
        let mut session = fixture.session(&[])?;
        session.connection.stream.set_write_timeout(Some(Duration::from_millis(500)))?;
        let nop = Pdu::new(op::NOP_OUT | IMMEDIATE, FINAL).tag(5).word(20, RESERVED_TAG).word(24, session.cmd_sn);
        let bytes = nop.word(28, session.exp_stat_sn).with_data(vec![1; 8192]).encode(Digests::default());
        // The target stops taking more, or closes; it does not keep a gigabyte for us.
        for _ in 0..(1 << 30) / bytes.len() {
            if session.connection.send_raw(&bytes).is_err() {
                return Ok(());
            }
        }
        bail!("a gigabyte of pings was taken, though nobody reads the echo")
    })
}

fn writes_without_data(fixture: &mut Fixture<'_>) -> Result<()> {
    and_over(fixture, |fixture| {
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
    and_over(fixture, |fixture| {
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

/// Commands without regard to MaxCmdSN: those beyond it are dropped, the rest are answered, and no memory is kept for
/// any.
fn beyond_window(fixture: &mut Fixture<'_>) -> Result<()> {
    and_over(fixture, |fixture| {
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
        ensure!(answers > 0, "no command was answered at all");
        Ok(())
    })
}

//! A closed log: the terminal was closed, or the program at the other end of the pipe has ended. The target continues,
//! and stops as usual.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::Signal;

use crate::process;
use crate::session::{self, Login, Session};
use crate::target::{Driver, Lab, free_port};
use crate::test_data::pattern;

const LIMIT: Duration = Duration::from_secs(20);
/// More logins than cores: each core logs some.
const LOGINS: u64 = 6;

/// Commands are served, drained and flushed although every write to the log fails.
pub(crate) fn continues(lab: &Lab, driver: Driver) -> Result<()> {
    let (image, portal) = (lab.image("unread.img", 16)?, free_port()?);
    let (reader, writer) = std::io::pipe()?;
    let mut command = process::bound(lab.built()?);
    command.args(["serve", "--driver", driver.name(), "--cores", "2", "--listen", &portal.to_string(), &image]);
    command.env("STATE_DIRECTORY", lab.scratch.join("state"));
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().context("cannot start the target")?;
    // The command holds write ends of the pipe.
    drop(command);
    let ready = BufReader::new(reader).lines().any(|line| line.is_ok_and(|line| line == "ready"));
    let outcome = if ready { serves(&mut child, portal) } else { Err(anyhow!("the target did not become ready")) };
    process::signal(&child, Signal::TERM)?;
    let ended = process::wait(&mut child, LIMIT)?;
    if ended.is_none() {
        child.kill()?;
        child.wait()?;
    }
    let held = outcome?;
    ensure!(ended.is_some_and(|status| status.success()), "the target did not stop with success: {ended:?}");
    drop(held);
    let mut found = vec![0; 8192];
    for login in 0..LOGINS {
        File::open(&image)?.read_exact_at(&mut found, login * 8192)?;
        ensure!(found == pattern(login, 3, 8192), "the data of session {login} is not in the file");
    }
    Ok(())
}

/// Logs in after the pipe was closed. Returns sessions that exist when the target stops.
fn serves(child: &mut Child, portal: SocketAddr) -> Result<Vec<Session>> {
    let mut held = Vec::new();
    let name = session::discover(portal)?.into_iter().next().context("a target")?.name;
    for login in 0..LOGINS {
        let who = Login::to(&name, "unread").qualifier(u16::try_from(login)?);
        let mut session = Session::ready(portal, &who, 0).with_context(|| format!("login {login}"))?;
        session.write(login * 16, pattern(login, 3, 8192), 512)?;
        ensure!(session.read(login * 16, 16, 512)? == pattern(login, 3, 8192), "wrong data");
        match login % 2 {
            0 => session.logout()?,
            _ => held.push(session),
        }
    }
    ensure!(child.try_wait()?.is_none(), "the target has ended");
    Ok(held)
}

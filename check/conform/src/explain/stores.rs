//! A store that delays commands: a handler that is stopped for a moment.

use std::process::{Child, Stdio};

use rustix::process::Signal;

use super::*;
use crate::handler::compile;

/// How long the store does not answer, and the threshold of the slow log.
const DELAY: Duration = Duration::from_millis(700);
const SLOW: &str = "300ms";

/// The series of the slow commands of the volume.
const SERIES: &str = "lunar_volume_slow_commands_total{volume=\"slow\"}";

pub(super) fn configuration(folder: &str) -> String {
    let volume = format!("[volume.slow]\nkind = \"handler\"\npath = \"{folder}/slow.sock\"\nsize = \"16M\"\n");
    [volume, target_text("slow", ""), group_text("slow", "*:slow", "luns = { 0 = \"slow\" }")].concat()
}

pub(super) const CASES: [Case; 1] = [("a store that is slow for a moment", slow)];

/// The handler of the volume. Dropping it kills it.
struct Handler(Child);

impl Handler {
    fn start(daemon: &Daemon) -> Result<Self> {
        let image = daemon.folder.join("slow.img");
        std::fs::File::create(&image)?.set_len(16 << 20)?;
        let mut command = process::bound(compile(&daemon.folder)?);
        command.arg(daemon.folder.join("slow.sock")).arg(image).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(command.spawn().context("cannot start the handler")?))
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // It may have ended.
        let _ = process::signal(&self.0, Signal::KILL);
        let _ = self.0.wait();
    }
}

fn slow(daemon: &Daemon) -> Result<()> {
    let handler = Handler::start(daemon)?;
    let login = Login::to(&format!("{IQN}slow"), "slow");
    let end = Instant::now() + LIMIT;
    let mut session = loop {
        match Session::ready(daemon.front, &login, 0) {
            Ok(session) => break session,
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(100)),
            Err(why) => return Err(why.context("the volume is not served")),
        }
    };
    let explain = || daemon.json(&["explain", "slow", "slow"]);
    ensure!(explain()?["well"] == true, "{:#}", explain()?);
    daemon.lunar(&["config", "set", "logging", "--slow", SLOW])?;
    process::signal(&handler.0, Signal::STOP)?;
    let write = crate::session::cdb::write(0, 8);
    session.start(&write, crate::session::Data::Out(vec![7; 4096]))?;
    std::thread::sleep(DELAY);
    process::signal(&handler.0, Signal::CONT)?;
    session.next()?.good()?;
    let text = daemon.lunar(&["explain", "slow", "slow"])?;
    for words in ["1 slow commands", "look at the store", "iostat -x 1", "round trip", "congestion window"] {
        ensure!(text.contains(words), "no '{words}' in:\n{text}");
    }
    let client = format!("{IQN}slow");
    let of_client = daemon.json(&["explain", "slow", &client])?;
    ensure!(of_client["words"] == explain()?["words"], "{of_client:#}");
    daemon.counted(SERIES)?;
    let log = daemon.json(&["log", "--slow"])?;
    let own = log["commands"].as_array().into_iter().flatten().find(|one| one["volume"] == "slow");
    let times = &own.with_context(|| format!("{log:#}"))?["microseconds"];
    ensure!(times["store"].as_u64() >= Some(300_000), "{times}");
    // The store answers again: nothing more is slow.
    for at in 0..8 {
        session.write(at * 8, vec![8; 4096], 512)?;
    }
    std::thread::sleep(Duration::from_millis(1100));
    ensure!(daemon.metric(SERIES)? == 1.0, "more commands are slow");
    daemon.lunar(&["config", "set", "logging", "--slow", "0s"])?;
    session.logout()?;
    // Later cases stop the daemon, which waits for the handlers of its volumes.
    for kind in ["group", "target", "volume"] {
        daemon.lunar(&[kind, "delete", "slow", "--force"])?;
    }
    Ok(())
}

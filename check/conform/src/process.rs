//! Child processes, with a time limit each, which end with this program.

use std::io::{BufRead, BufReader, PipeReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// How often a child is checked while it ends.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// A command whose process the kernel kills when the thread that started it ends, even if this program is killed.
pub(crate) fn bound(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command.stdin(Stdio::null());
    command
}

/// Sends a signal to a child.
pub(crate) fn signal(child: &Child, signal: Signal) -> Result<()> {
    let raw = i32::try_from(child.id()).context("a process id is positive")?;
    let pid = Pid::from_raw(raw).context("a process id is not zero")?;
    kill_process(pid, signal).with_context(|| format!("signal to process {raw}"))
}

/// Waits for the end of a child; `None` if it still runs after `limit`.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// The output and the exit status of a program.
pub(crate) struct Output {
    pub status: ExitStatus,
    /// Standard output and error, in the order of their arrival.
    pub text: String,
}

impl Output {
    /// The output; an error with its last lines if the program did not succeed.
    pub(crate) fn succeeded(self) -> Result<String> {
        if self.status.success() {
            return Ok(self.text);
        }
        bail!("{}; its output ends with:\n{}", self.status, last_lines(&self.text, 15))
    }
}

/// The last `count` lines of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Runs a program to its end; an error if it takes longer than `limit`.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<Output> {
    stream(command, limit, limit, |_| ())
}

/// Like [`run`], and calls `on_line` with each line of output; an error, too, if no line comes for `silence`.
pub(crate) fn stream(
    command: &mut Command,
    limit: Duration,
    silence: Duration,
    mut on_line: impl FnMut(&str),
) -> Result<Output> {
    let name = format!("{command:?}");
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    // The command holds write ends of the pipe: close them, so that the pipe ends with the child.
    command.stdout(Stdio::null()).stderr(Stdio::null());

    let end = Instant::now() + limit;
    let mut text = String::new();
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || send_lines(reader, &sender));
    loop {
        let rest = end.saturating_duration_since(Instant::now());
        match lines.recv_timeout(rest.min(silence)) {
            Ok(line) => {
                on_line(&line);
                text.push_str(&line);
                text.push('\n');
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                child.kill()?;
                child.wait()?;
                let what = if rest > silence {
                    format!("no output for {} s", silence.as_secs())
                } else {
                    format!("still running after {} s", limit.as_secs())
                };
                bail!("{what}: {name}; its output ends with:\n{}", last_lines(&text, 15));
            }
        }
    }
    match wait(&mut child, end.saturating_duration_since(Instant::now()) + Duration::from_secs(1))? {
        Some(status) => Ok(Output { status, text }),
        None => {
            child.kill()?;
            child.wait()?;
            bail!("still running after {} s: {name}", limit.as_secs())
        }
    }
}

fn send_lines(reader: PipeReader, sender: &mpsc::Sender<String>) {
    let mut reader = BufReader::new(reader);
    let mut raw = Vec::new();
    while matches!(reader.read_until(b'\n', &mut raw), Ok(count) if count > 0) {
        let line = String::from_utf8_lossy(&raw).trim_end_matches(['\n', '\r']).to_owned();
        raw.clear();
        if sender.send(line).is_err() {
            return;
        }
    }
}

/// Resident memory of a process in bytes.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64> {
    kept_bytes(pid, "VmRSS:")
}

fn kept_bytes(pid: u32, key: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the process is gone")?;
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let line = line.with_context(|| format!("no {key} it is a zombie"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024)
}

/// Memory of a process that it shares with no other process and no file, in bytes.
pub(crate) fn private_bytes(pid: u32) -> Result<u64> {
    kept_bytes(pid, "RssAnon:")
}

/// Processor time that a process has used, user and system.
pub(crate) fn processor_time(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("the process is gone")?;
    // The fields follow the name, which may contain any character and ends with the last parenthesis.
    let (_, fields) = stat.rsplit_once(')').context("a stat line has a name")?;
    let ticks: u64 = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// How often the threads of a process have waited for something: each wait ends with a wake-up.
pub(crate) fn waits(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).context("the process is gone")? {
        // A thread that has ended meanwhile waits no more.
        let Ok(status) = std::fs::read_to_string(thread?.path().join("status")) else { continue };
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sum += count.and_then(|count| count.trim().parse::<u64>().ok()).context("a thread counts its waits")?;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_status_are_returned() {
        let output =
            run(Command::new("sh").args(["-c", "echo one; echo two >&2; exit 3"]), Duration::from_secs(10)).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(output.text, "one\ntwo\n");
        assert!(output.succeeded().unwrap_err().to_string().contains("two"));
    }

    #[test]
    fn a_program_over_its_time_limit_is_killed() {
        let before = Instant::now();
        let error = run(Command::new("sleep").arg("60"), Duration::from_millis(200)).err().unwrap();
        assert!(error.to_string().contains("still running"));
        assert!(before.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn memory_and_time_of_this_process_are_known() {
        assert!(resident_bytes(std::process::id()).unwrap() > 1 << 16);
        assert!(processor_time(std::process::id()).is_ok());
        let before = waits(std::process::id()).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        assert!(waits(std::process::id()).unwrap() > before);
    }
}

//! The statistics socket: whoever connects gets one JSON object and the end of the stream.

use anyhow::{Context, Result};
use lunar_core::stats::Stats;
use lunar_reactor::unix::clear;
use serde_json::{Map, Value};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A reader that takes no bytes for this long is dropped, so that it cannot keep others waiting.
const READER_PATIENCE: Duration = Duration::from_secs(1);

/// The sums over all cores, and `cores`: each core's own.
#[must_use]
pub fn snapshot(cores: &[Arc<Stats>]) -> Value {
    let table = |stats: &Stats| -> Map<String, Value> {
        stats.each().map(|(row, value)| (row.name.to_owned(), value.into())).collect()
    };
    let mut all = Map::new();
    for row in Stats::TABLE {
        let sum = cores.iter().flat_map(|core| core.each()).filter(|(r, _)| r.name == row.name);
        all.insert(row.name.to_owned(), sum.map(|(_, value)| value).fold(0, u64::wrapping_add).into());
    }
    all.insert("cores".to_owned(), cores.iter().map(|core| Value::Object(table(core))).collect());
    Value::Object(all)
}

/// The socket; its file is removed when it drops.
#[derive(Debug)]
pub struct Socket(PathBuf);

impl Socket {
    /// Serves the statistics at `path` from a thread of its own. A socket file that nobody serves is replaced.
    ///
    /// # Errors
    /// When the socket cannot be made there, or somebody serves it.
    pub fn serve(path: &Path, cores: Vec<Arc<Stats>>) -> Result<Self> {
        match UnixStream::connect(path) {
            Ok(_) => {
                anyhow::bail!("{} is served by another process; choose another path for --stats", path.display());
            }
            Err(why) if why.kind() == ErrorKind::ConnectionRefused => {
                clear(path).with_context(|| format!("{}; choose another path for --stats", path.display()))?;
            }
            // There is none, or none that we may know of: binding tells.
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).with_context(|| format!("statistics socket {}", path.display()))?;
        std::thread::Builder::new().name("stats".into()).spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(stream, &cores);
            }
        })?;
        Ok(Self(path.to_owned()))
    }
}

fn answer(mut stream: UnixStream, cores: &[Arc<Stats>]) {
    // A reader that went away is its own business.
    let _ = stream.set_write_timeout(Some(READER_PATIENCE));
    let _ = writeln!(stream, "{}", snapshot(cores));
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What the process behind the socket at `path` says.
///
/// # Errors
/// When nobody serves it.
pub fn read(path: &Path) -> Result<Value> {
    let mut stream = UnixStream::connect(path)
        .with_context(|| format!("no statistics at {}: is `lunar serve --stats {0}` running?", path.display()))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_cores() {
        let cores = [Arc::new(Stats::default()), Arc::new(Stats::default())];
        cores[0].commands.add(2);
        cores[1].commands.add(3);
        let value = snapshot(&cores);
        assert_eq!(value["commands"], 5);
        assert_eq!(value["cores"][1]["commands"], 3);
    }

    #[test]
    fn a_socket_answers_and_is_replaced_only_when_stale() {
        let path = std::env::temp_dir().join(format!("lunar-stats-{}", std::process::id()));
        let stats = Arc::new(Stats::default());
        stats.logins.add(7);
        let socket = Socket::serve(&path, vec![stats.clone()]).expect("fresh path");
        assert_eq!(read(&path).expect("served")["logins"], 7);
        assert!(Socket::serve(&path, vec![stats.clone()]).is_err());
        drop(socket);
        assert!(read(&path).is_err());
        drop(UnixListener::bind(&path).expect("the path is free"));
        let socket = Socket::serve(&path, vec![stats.clone()]).expect("nobody serves it");
        assert_eq!(read(&path).expect("served")["logins"], 7);
        drop(socket);
        // What is no socket is somebody's.
        std::fs::write(&path, "somebody's").expect("a file");
        let why = Socket::serve(&path, vec![stats]).expect_err("it is none").to_string();
        assert!(why.contains("choose another path"), "{why}");
        assert_eq!(std::fs::read(&path).expect("it stays"), b"somebody's");
        let _ = std::fs::remove_file(&path);
    }
}

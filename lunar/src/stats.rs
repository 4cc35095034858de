//! The statistics socket: each client gets one JSON object and the end of the stream.

use anyhow::{Context, Result};
use lunar_core::stats::Stats;
use lunar_engine::statistics::snapshot;
use lunar_reactor::unix::clear;
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A reader that takes no bytes for this long is dropped, so that it cannot keep others waiting.
const READER_PATIENCE: Duration = Duration::from_secs(1);

/// The socket; its file is removed when it drops.
#[derive(Debug)]
pub struct Socket(PathBuf);

impl Socket {
    /// Serves the statistics at `path` from a thread of its own. A socket file without a serving process is replaced.
    ///
    /// # Errors
    /// When the socket cannot be made there, or another process serves it.
    pub fn serve(path: &Path, cores: Vec<Arc<Stats>>) -> Result<Self> {
        match UnixStream::connect(path) {
            Ok(_) => {
                anyhow::bail!("{} is served by another process; choose another path for --stats", path.display());
            }
            Err(why) if why.kind() == ErrorKind::ConnectionRefused => {
                clear(path).with_context(|| format!("{}; choose another path for --stats", path.display()))?;
            }
            // The socket is missing or inaccessible: bind reports that.
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
    // A reader that has disconnected is no error.
    let _ = stream.set_write_timeout(Some(READER_PATIENCE));
    let _ = writeln!(stream, "{}", snapshot(cores));
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The statistics of the process that serves the socket at `path`.
///
/// # Errors
/// When no process serves it.
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
        let socket = Socket::serve(&path, vec![stats.clone()]).expect("the path is free");
        assert_eq!(read(&path).expect("served")["logins"], 7);
        drop(socket);
        // A file that is no socket may belong to a user: it is not removed.
        std::fs::write(&path, "a user's file").expect("a file");
        let why = Socket::serve(&path, vec![stats]).expect_err("it is none").to_string();
        assert!(why.contains("choose another path"), "{why}");
        assert_eq!(std::fs::read(&path).expect("it stays"), b"a user's file");
        let _ = std::fs::remove_file(&path);
    }
}

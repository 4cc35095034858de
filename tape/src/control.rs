//! Requests of the operator: executed on the library, by the process that has it. That process listens on a socket in
//! the folder of the library.

use crate::library::{Library, LibraryError};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most bytes of a request: a word, a bar code and a number.
const REQUEST_BYTES_MAX: u64 = 256;
/// Most bytes of an answer: the list of the largest library.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Time for a request to arrive, so that a stopped client does not stop the others.
const PATIENCE: Duration = Duration::from_secs(5);

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Lists the cartridges.
    List,
    /// Creates a cartridge outside of the library.
    Add {
        /// Bar code.
        barcode: String,
        /// Written data cannot be overwritten.
        worm: bool,
        /// Bytes.
        capacity: Option<u64>,
    },
    /// Puts a cartridge into a port.
    Insert(String),
    /// Takes a cartridge out of a port.
    Eject(String),
    /// Sets or removes the write protection of a cartridge.
    Protect(String, bool),
}

/// An error of a request.
#[derive(Debug)]
pub enum RequestError {
    /// The library.
    Library(LibraryError),
    /// The process that uses the library does not answer.
    Io(PathBuf, io::Error),
    /// The process that uses the library refused the request.
    Refused(String),
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Library(why) => why.fmt(f),
            Self::Io(path, why) => write!(f, "the process that uses the library, at {}: {why}", path.display()),
            Self::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for RequestError {}

/// The socket of the process that uses a library.
fn socket(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}

impl Request {
    /// The request as a line.
    fn emit(&self) -> String {
        match self {
            Self::List => "list".to_owned(),
            Self::Add { barcode, worm, capacity } => {
                let kind = if *worm { "worm" } else { "data" };
                let capacity = capacity.map_or_else(|| "-".to_owned(), |capacity| capacity.to_string());
                format!("add {barcode} {kind} {capacity}")
            }
            Self::Insert(barcode) => format!("insert {barcode}"),
            Self::Eject(barcode) => format!("eject {barcode}"),
            Self::Protect(barcode, true) => format!("protect {barcode} on"),
            Self::Protect(barcode, false) => format!("protect {barcode} off"),
        }
    }

    /// Parses a line.
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(match words[..] {
            ["list"] => Self::List,
            ["add", barcode, kind @ ("worm" | "data"), capacity] => {
                let capacity = if capacity == "-" { None } else { Some(capacity.parse().ok()?) };
                Self::Add { barcode: barcode.to_owned(), worm: kind == "worm", capacity }
            }
            ["insert", barcode] => Self::Insert(barcode.to_owned()),
            ["eject", barcode] => Self::Eject(barcode.to_owned()),
            ["protect", barcode, state @ ("on" | "off")] => Self::Protect(barcode.to_owned(), state == "on"),
            _ => return None,
        })
    }

    /// Executes the request; returns the text for the operator.
    ///
    /// # Errors
    /// If the library refuses it.
    pub fn execute(&self, library: &Library) -> Result<String, LibraryError> {
        match self {
            Self::List => {
                let places = library.changer().places();
                let places = places.map_err(|why| LibraryError::Io("cartridges".into(), why))?;
                let mut text = String::new();
                for place in places {
                    let _ = writeln!(text, "{:<12} {}", place.element, place.barcode);
                }
                Ok(text)
            }
            Self::Add { barcode, worm, capacity } => {
                library.add(barcode, *worm, *capacity)?;
                Ok(format!("{barcode} is outside: `lunar-tape insert` puts it into a port\n"))
            }
            Self::Insert(barcode) => {
                let place = library.changer().insert(barcode)?;
                Ok(format!("{barcode} is in {}\n", place.element))
            }
            Self::Eject(barcode) => {
                library.changer().eject(barcode)?;
                Ok(format!("{barcode} is outside\n"))
            }
            Self::Protect(barcode, is_protected) => {
                library.protect(barcode, *is_protected)?;
                let state = if *is_protected { "write-protected" } else { "writable" };
                Ok(format!("{barcode} is {state}\n"))
            }
        }
    }

    /// Executes the request on the library in a folder: by the process that uses it, or here if there is none.
    ///
    /// # Errors
    /// If it is refused, or the process does not answer.
    pub fn send(&self, folder: &Path) -> Result<String, RequestError> {
        match Library::open(folder) {
            Ok(library) => self.execute(&library).map_err(RequestError::Library),
            Err(LibraryError::InUse) => {
                let path = socket(folder);
                let answer = self.ask(&path).map_err(|why| RequestError::Io(path, why))?;
                match answer.split_once('\n') {
                    Some(("ok", text)) => Ok(text.to_owned()),
                    Some(("refused", text)) => Err(RequestError::Refused(text.trim_end().to_owned())),
                    _ => Err(RequestError::Refused("it gave no answer: look at its messages".to_owned())),
                }
            }
            Err(why) => Err(RequestError::Library(why)),
        }
    }

    fn ask(&self, path: &Path) -> io::Result<String> {
        let mut stream = UnixStream::connect(path)?;
        stream.write_all(format!("{}\n", self.emit()).as_bytes())?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
        Ok(answer)
    }
}

/// Listens for requests of the operator.
///
/// # Errors
/// If the socket cannot be made.
pub fn listen(folder: &Path) -> Result<UnixListener, RequestError> {
    let path = socket(folder);
    // The caller has locked the library: a socket that is there belongs to a process that has ended.
    if fs::symlink_metadata(&path).is_ok_and(|facts| facts.file_type().is_socket()) {
        let _ = fs::remove_file(&path);
    }
    UnixListener::bind(&path).map_err(|why| RequestError::Io(path, why))
}

/// Answers requests, one after the other, as long as the process lives.
pub fn answer_all(listener: &UnixListener, library: &Library) {
    for stream in listener.incoming() {
        // A client that has gone needs no answer.
        let _ = stream.and_then(|stream| answer(stream, library));
    }
}

fn answer(mut stream: UnixStream, library: &Library) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    (&mut stream).take(REQUEST_BYTES_MAX).read_to_string(&mut line)?;
    let text = match Request::parse(&line).map(|request| request.execute(library)) {
        Some(Ok(text)) => format!("ok\n{text}"),
        Some(Err(why)) => format!("refused\n{why}\n"),
        None => "refused\nthe request is unknown: both programs must have the same version\n".to_owned(),
    };
    stream.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Config;
    use crate::test_folder::TestFolder;

    fn library() -> TestFolder {
        let folder = TestFolder::new();
        let config = Config {
            generation: 8,
            drives: 1,
            slots: 2,
            ports: 1,
            serial: Config::new_serial(),
            compression: false,
            capacity: None,
        };
        Library::create(folder.path(), &config, 1, "LUN").unwrap();
        folder
    }

    fn requests() -> [Request; 6] {
        [
            Request::Add { barcode: "NEW".into(), worm: true, capacity: Some(1 << 30) },
            Request::Add { barcode: "NEW2".into(), worm: false, capacity: None },
            Request::Insert("NEW".into()),
            Request::Protect("NEW".into(), true),
            Request::Eject("NEW".into()),
            Request::List,
        ]
    }

    #[test]
    fn requests_are_lines() {
        for request in requests() {
            assert_eq!(Request::parse(&request.emit()), Some(request));
        }
        for line in ["", "add", "add A data x", "protect A maybe", "list all"] {
            assert_eq!(Request::parse(line), None, "{line}");
        }
    }

    #[test]
    fn requests_are_executed_here_or_by_the_process_that_has_the_library() {
        let folder = library();
        let expected = "slot 1       LUN001L8\noutside      NEW\noutside      NEW2\n";
        for request in requests() {
            request.send(folder.path()).unwrap();
        }
        assert_eq!(Request::List.send(folder.path()).unwrap(), expected);
        let library = Library::open(folder.path()).unwrap();
        let listener = listen(folder.path()).unwrap();
        std::thread::spawn(move || answer_all(&listener, &library));
        assert_eq!(Request::List.send(folder.path()).unwrap(), expected);
        assert_eq!(Request::Insert("NEW".into()).send(folder.path()).unwrap(), "NEW is in port 1\n");
        let refused = Request::Insert("NEW2".into()).send(folder.path());
        assert!(matches!(refused, Err(RequestError::Refused(why)) if why.contains("ports are full")));
        let mut stream = UnixStream::connect(socket(folder.path())).unwrap();
        stream.write_all(b"something else").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("refused\n"), "{answer}");
    }
}

use super::backend::RbdBackend;
use super::process::{ImageAccess, Started, Starter, set_starter};
use crate::tests::{LIMIT, Memory};
use lunar_engine::backend::{Backend, Opened, OpenedStore, StoreRequest};
use lunar_engine::origin::{Arguments, Origin};
use lunar_handler::serve::{Connection, Device, serve_on};
use lunar_suite::Want;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

static COMMAND_LINE: Origin = Origin::CommandLine(Arguments::none());
const SIZE: usize = 16 << 20;

/// An image, in memory.
#[derive(Debug, Default)]
struct Image {
    /// `None`: its process fails.
    bytes: Option<usize>,
    starts: u32,
    /// The connection of the process that runs.
    connection: Option<OwnedFd>,
}

static IMAGES: Mutex<BTreeMap<String, Image>> = Mutex::new(BTreeMap::new());

fn with<T>(image: &str, what: impl FnOnce(&mut Image) -> T) -> T {
    what(IMAGES.lock().expect("no test panics with it").entry(image.to_owned()).or_default())
}

/// Ends the process of an image, which closes its connection.
fn end(image: &str) {
    let connection = with(image, |image| image.connection.take()).expect("it runs");
    shutdown(&connection, Shutdown::Both).expect("it is open");
}

/// Starts processes that do nothing, and serves in threads.
#[derive(Debug)]
struct Threads;

impl Starter for Threads {
    fn start(&self, access: &ImageAccess, connection: OwnedFd) -> io::Result<Started> {
        let image = access.image.to_string_lossy().into_owned();
        let bytes = with(&image, |image| {
            image.starts += 1;
            image.connection = fcntl_dupfd_cloexec(&connection, 0).ok();
            image.bytes
        });
        // It lives until its input is closed.
        let script = if bytes.is_some() { "echo hello >&2; cat" } else { "echo '<3>no cluster' >&2" };
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let id = Pid::from_child(&child);
        let errors = child.stderr.take().expect("it is a pipe").into();
        if let Some(bytes) = bytes {
            let input = child.stdin.take();
            std::thread::spawn(move || {
                let mut device = Memory(vec![0; bytes]);
                let connection = Connection::over(connection, "threads", bytes as u64, device.features());
                let _ = serve_on(connection.expect("Lunar is there"), &mut device);
                drop(input);
            });
        }
        Ok(Started { id, handle: pidfd_open(id, PidfdFlags::empty())?, errors, child: Some(child) })
    }

    fn kill(&self, _: Pid) {}
}

fn open(image: &str, previous: Option<&Opened>) -> Result<Opened, String> {
    set_starter(Box::new(Threads));
    let request = StoreRequest::of_command_line(image, &COMMAND_LINE, Some(Path::new(image)));
    RbdBackend.open(&request, previous).map_err(|why| why.to_string())
}

fn store(opened: &Opened) -> &Arc<dyn OpenedStore> {
    opened.store().expect("it serves blocks")
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_process_of_an_image_is_started_again_and_its_size_is_followed() {
    let image = "pool/served";
    with(image, |image| image.bytes = Some(SIZE + 100));
    let opened = open(image, None).expect("its process connects");
    let traits = store(&opened).traits().clone();
    assert_eq!((traits.size, traits.write_cache, traits.thin), (SIZE as u64, false, true), "whole blocks");
    lunar_suite::conforms(&|reactor| store(&opened).open(reactor), &Want::default());
    let is_served = || store(&opened).examine().is_empty();
    assert!(is_served() && !store(&opened).has_other_size());
    with(image, |image| image.bytes = Some(2 * SIZE));
    end(image);
    until("its process is not started again", || with(image, |image| image.starts) == 2 && is_served());
    assert!(store(&opened).has_other_size());
    let larger = open(image, Some(&opened)).expect("it is served");
    store(&larger).finalize();
    assert_eq!(store(&larger).traits().size, 2 * SIZE as u64);
    assert!(!store(&larger).has_other_size());
    assert_eq!(with(image, |image| image.starts), 2, "its process serves on");
    with(image, |image| image.bytes = None);
    end(image);
    until("the reason is not a trouble", || {
        store(&larger).examine().iter().any(|trouble| trouble.words.contains("pool/served: no cluster"))
    });
    let again = open(image, Some(&larger)).expect("its size is known");
    assert_eq!(store(&again).traits().size, 2 * SIZE as u64);
}

#[test]
fn an_image_whose_process_fails_is_opened_when_the_next_one_connects() {
    let image = "pool/failing";
    let why = open(image, None).expect_err("no process serves it");
    assert_eq!(why, "no process serves pool/failing: no cluster");
    let there = || RbdBackend.is_there(Path::new(image));
    assert!(!there(), "the reason is the same");
    with(image, |image| image.bytes = Some(SIZE));
    until("its process is not started again", there);
    let opened = open(image, None).expect("its process has connected");
    assert_eq!(store(&opened).traits().size, SIZE as u64);
}

#[test]
fn a_snapshot_is_read_only_and_an_image_has_no_page_cache() {
    assert!(open("pool/image@before", None).expect_err("writable").contains("--read-only"));
    let request = StoreRequest::of_command_line("a", &COMMAND_LINE, Some(Path::new("pool/image")));
    let direct = RbdBackend.open(&StoreRequest { direct: true, ..request }, None);
    assert!(direct.expect_err("no page cache").to_string().contains("--direct"));
}

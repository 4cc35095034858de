use super::backend::RbdBackend;
use super::process::{ImageAccess, Order, Started, Starter, set_starter};
use crate::tests::{LIMIT, Memory};
use lunar_control::live::MadeStore;
use lunar_engine::backend::{Backend, Condition, Fingerprint, Opened, OpenedStore, StoreRequest};
use lunar_engine::origin::{Arguments, Origin};
use lunar_handler::making::{KEEP, MADE};
use lunar_handler::serve::{Connection, Device, serve_on};
use lunar_suite::Want;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

static COMMAND_LINE: Origin = Origin::CommandLine(Arguments::none());
const SIZE: usize = 16 << 20;

/// An image, in memory.
#[derive(Debug, Default)]
struct Image {
    /// `None`: its process fails.
    bytes: Option<usize>,
    /// Another server has it.
    is_taken: bool,
    /// Its process takes some time to end, and has more to say then than a pipe takes.
    is_slow: bool,
    /// Its identity; empty: that of an image that nobody has replaced.
    identity: String,
    starts: u32,
    /// The orders of processes that made something here, and whether it stays.
    made: Vec<(Order, bool)>,
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
        let (bytes, is_slow, identity) = with(&image, |image| {
            image.starts += 1;
            image.connection = fcntl_dupfd_cloexec(&connection, 0).ok();
            (image.bytes, image.is_slow, image.identity.clone())
        });
        let identity = if identity.is_empty() { format!("first {image}") } else { identity };
        // It lives until its input is closed.
        let script = match bytes {
            Some(_) if is_slow => "cat; head -c 300000 /dev/zero | tr '\\0' '\\n' >&2; sleep 2",
            Some(_) => "echo hello >&2; cat",
            None => "echo '<3>no cluster' >&2",
        };
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let id = Pid::from_child(&child);
        let errors = child.stderr.take().expect("it is a pipe").into();
        if let Some(order) = access.order.clone() {
            let input = child.stdin.take().filter(|_| bytes.is_some());
            std::thread::spawn(move || make(&image, order, &connection, input));
        } else if let Some(bytes) = bytes {
            let input = child.stdin.take();
            std::thread::spawn(move || {
                let mut device = Memory(vec![0; bytes]);
                if with(&image, |image| image.is_taken) {
                    let size = bytes as u64;
                    Connection::stand_by(connection.as_fd(), "threads", size, device.features(), &identity)
                        .expect("Lunar is there");
                    until("it stays taken", || !with(&image, |image| image.is_taken));
                }
                let connection = Connection::over(connection, "threads", bytes as u64, device.features(), &identity);
                let _ = serve_on(connection.expect("Lunar is there"), &mut device);
                drop(input);
            });
        }
        Ok(Started { id, handle: pidfd_open(id, PidfdFlags::empty())?, errors, child: Some(child) })
    }

    fn kill(&self, _: Pid) {}
}

/// Makes something, and lives until `input` is closed; without one, the process has failed.
fn make(image: &str, order: Order, connection: &OwnedFd, input: Option<ChildStdin>) {
    let Some(input) = input else { return };
    send(connection, MADE, SendFlags::NOSIGNAL).expect("Lunar is there");
    let mut said = [0; 16];
    let is_kept = recv(connection, &mut said, RecvFlags::empty()).is_ok_and(|(count, _)| &said[..count] == KEEP);
    with(image, |image| image.made.push((order, is_kept)));
    drop(input);
}

fn open(image: &str, previous: Option<&Opened>) -> Result<Opened, String> {
    open_known(image, previous, None)
}

/// Opens an image that must have this fingerprint.
fn open_known(image: &str, previous: Option<&Opened>, known: Option<&Fingerprint>) -> Result<Opened, String> {
    set_starter(Box::new(Threads));
    let request = StoreRequest::of_command_line(image, &COMMAND_LINE, Some(Path::new(image)));
    RbdBackend.open(&StoreRequest { known, ..request }, previous).map_err(|why| why.to_string())
}

/// Puts an image with this identity in the place of another one.
fn replace(image: &str, identity: &str) {
    with(image, |image| (image.bytes, image.identity) = (Some(SIZE), identity.to_owned()));
}

fn fingerprint(opened: &Opened) -> Fingerprint {
    store(opened).fingerprint().expect("an image has one")
}

fn is_gone(opened: &Opened) -> bool {
    store(opened).examine().iter().any(|trouble| trouble.condition == Condition::Gone)
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
fn another_image_under_the_name_of_one_that_is_served_is_not_served_until_it_is_accepted() {
    let image = "pool/replaced";
    replace(image, "old");
    let opened = open(image, None).expect("its process connects");
    let known = fingerprint(&opened);
    let there = || RbdBackend.fingerprint(Path::new(image), false);
    assert_eq!((there().as_ref(), known.mark.as_str()), (Some(&known), "rbd old"));
    replace(image, "new");
    end(image);
    until("another image is not noticed", || is_gone(&opened));
    assert_eq!(there().map(|found| found.mark).as_deref(), Some("rbd new"));
    assert!(RbdBackend.is_there(Path::new(image)));
    let why = open_known(image, Some(&opened), Some(&known)).expect_err("it is another image");
    assert!(why.contains("another one than the one that was served"), "{why}");
    // The one before comes back.
    replace(image, "old");
    until("the image is not served again", || store(&opened).examine().is_empty());
    replace(image, "new");
    end(image);
    until("another image is not noticed", || is_gone(&opened));
    let accepted = open(image, Some(&opened)).expect("an operator has accepted it");
    assert_eq!(fingerprint(&accepted).mark, "rbd new");
    store(&accepted).finalize();
    drop(opened);
    let again = open_known(image, Some(&accepted), Some(&fingerprint(&accepted))).expect("it is served");
    assert_eq!((fingerprint(&again).mark.as_str(), is_gone(&again)), ("rbd new", false));
}

#[test]
fn an_image_that_was_replaced_while_lunar_did_not_run_is_not_served_until_it_is_accepted() {
    let image = "pool/changed";
    replace(image, "new");
    let known = Fingerprint { mark: "rbd old".into(), origin: Some(String::new()) };
    let why = open_known(image, None, Some(&known)).expect_err("it is another image");
    assert!(why.contains("another one than the one that was served"), "{why}");
    assert!(RbdBackend.is_there(Path::new(image)), "an operator may accept it");
    assert_eq!(RbdBackend.fingerprint(Path::new(image), false).map(|found| found.mark).as_deref(), Some("rbd new"));
    let accepted = open(image, None).expect("an operator has accepted it");
    assert_eq!(fingerprint(&accepted).mark, "rbd new");
    drop(accepted);
    // The volume was a file when it was served last.
    let file = Fingerprint { mark: "number 07".into(), origin: None };
    assert!(open_known(image, None, Some(&file)).is_err());
}

#[test]
fn an_image_that_another_server_has_is_not_ready_until_it_is_free() {
    let image = "pool/taken";
    with(image, |image| (image.bytes, image.is_taken) = (Some(SIZE), true));
    let opened = open(image, None).expect("its size is known");
    assert_eq!(store(&opened).traits().size, SIZE as u64);
    let troubles = store(&opened).examine();
    assert!(troubles.iter().any(|trouble| trouble.condition == Condition::Gone && trouble.words.contains("stands by")));
    assert!(!RbdBackend.is_there(Path::new(image)), "it is not opened before it is free");
    let known = fingerprint(&opened);
    assert_eq!(RbdBackend.fingerprint(Path::new(image), false).as_ref(), Some(&known));
    assert!(open_known(image, Some(&opened), Some(&known)).is_ok(), "the volume may be changed");
    assert!(open(image, Some(&opened)).expect_err("it cannot be accepted").contains("another server"));
    with(image, |image| image.is_taken = false);
    until("it is not served", || store(&opened).examine().is_empty());
    assert_eq!(with(image, |image| image.starts), 1, "the process that has waited serves it");
}

#[test]
fn nobody_waits_for_the_process_of_an_image_that_is_closed_until_it_is_opened_again() {
    let image = "pool/slow";
    with(image, |image| (image.bytes, image.is_slow) = (Some(SIZE), true));
    let opened = open(image, None).expect("its process connects");
    let begun = Instant::now();
    drop(opened);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    let again = open(image, None).expect("its process connects");
    let time = begun.elapsed();
    assert!(time >= Duration::from_secs(2), "both processes have the image: {time:?}");
    assert!(time < Duration::from_secs(9), "the process was killed: {time:?}");
    drop(again);
    RbdBackend.finish();
    assert!(begun.elapsed() >= Duration::from_secs(4));
}

/// The work that makes an image or a snapshot, of `source` or of a size.
fn made(image: &str, source: Option<&Opened>, size: Option<u64>) -> Result<Box<dyn MadeStore>, String> {
    set_starter(Box::new(Threads));
    let request = StoreRequest::of_command_line(image, &COMMAND_LINE, Some(Path::new(image)));
    let request = StoreRequest { size, read_only: image.contains('@'), ..request };
    let making = RbdBackend.make(&request, source).expect("the cluster makes images");
    making().map_err(|why| why.to_string())
}

#[test]
fn an_image_that_is_made_stays_only_when_its_volume_is_created() {
    let image = "pool/made";
    assert_eq!(made(image, None, Some(1 << 20)).err().as_deref(), Some("no cluster"));
    with(image, |image| image.bytes = Some(SIZE));
    made(image, None, Some(1 << 20)).expect("it is made").keep();
    made(image, None, Some(2 << 20)).expect("it is made").remove().expect("it is removed");
    drop(made(image, None, Some(3 << 20)).expect("it is made"));
    let orders = with(image, |image| std::mem::take(&mut image.made));
    let order = |size: u64| Order::Image(size << 20);
    assert_eq!(orders, [(order(1), true), (order(2), false), (order(3), false)]);
    assert!(made(image, None, Some(1000)).err().is_some_and(|why| why.contains("not a whole number")));
    assert!(made("pool/made@a", None, Some(1 << 20)).err().is_some_and(|why| why.contains("is a snapshot")));
}

#[test]
fn copies_are_made_of_the_image_that_is_served() {
    let image = "pool/source";
    replace(image, "7/2/a");
    let source = open(image, None).expect("its process connects");
    for (copy, order) in [
        ("pool/source@now", Order::Snapshot("7/2/a".into())),
        ("pool/copy", Order::Clone(image.into(), "7/2/a".into())),
    ] {
        with(copy, |image| image.bytes = Some(SIZE));
        made(copy, Some(&source), None).expect(copy).keep();
        assert_eq!(with(copy, |image| std::mem::take(&mut image.made)), [(order, true)]);
    }
    let why = made("pool/other@now", Some(&source), None).err().expect("another image");
    assert!(why.contains("is no snapshot of pool/source"), "{why}");
}

#[test]
fn a_snapshot_is_read_only_and_an_image_has_no_page_cache() {
    assert!(open("pool/image@before", None).expect_err("writable").contains("--read-only"));
    let request = StoreRequest::of_command_line("a", &COMMAND_LINE, Some(Path::new("pool/image")));
    let direct = RbdBackend.open(&StoreRequest { direct: true, ..request }, None);
    assert!(direct.expect_err("no page cache").to_string().contains("--direct"));
}

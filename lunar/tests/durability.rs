//! The troubles that an operator is told of volumes in real files, and of a daemon that starts.

use lunar::assembly;
use lunar::daemon::{Daemon, run};
use lunar::notify::Notify;
use lunar_api::client::{Client, RequestBody};
use lunar_api::route::Method;
use lunar_control::apply::{MissingPolicy, apply};
use lunar_control::check::{Checked, LocalHost, check};
use lunar_control::live::Live as _;
use lunar_control::plan::Plan;
use lunar_core::io::{Completion, Data, Fault, Io, Op};
use lunar_core::metadata::{MetadataStore as _, VolatileMemory};
use lunar_core::range::Span;
use lunar_core::uncorrectable::{UNCORRECTABLE, Uncorrectable};
use lunar_engine::budget::HostLimits;
use lunar_engine::engine::Engine;
use lunar_engine::volume::metadata;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SIZE: u64 = 1 << 20;
/// More than the time between two looks.
const SOON: Duration = Duration::from_secs(10);

/// A folder that goes with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lunar-durability-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn disk(&self) -> PathBuf {
        self.0.join("disk.img")
    }

    fn text(&self, more: &str) -> String {
        let disk = self.disk();
        let server = "[server]\ncores = 2\nmemory = '8M'\ndriver = 'epoll'\ndrain = '100ms'\n";
        format!(
            "{server}{more}\n[volume.disk]\nkind = 'file'\npath = '{}'\nsize = '1M'\n\
            uuid = 'f81d4fae-7dec-41d0-a765-00a0c91e6b00'\n",
            disk.display()
        )
    }

    fn checked(&self, text: &str) -> Checked {
        let machine = LocalHost { config: self.0.join("lunar.toml") };
        check(&lunar::schema::SCHEMA, "lunar.toml", text, &machine).unwrap_or_else(|why| panic!("{text}\n{why}"))
    }

    /// An engine that serves the volume.
    fn engine(&self) -> Engine {
        let checked = self.checked(&self.text(""));
        let mut engine = assembly::start(&checked.config, &self.0.join("state")).expect("cores start");
        let plan = Plan::between(&Checked::empty(&lunar::schema::SCHEMA), &checked);
        let strict =
            MissingPolicy { may_be_missing: BTreeSet::new(), may_lack: BTreeSet::new(), retry: &mut |_, _| false };
        apply(&mut engine, &plan, &checked, strict, || Ok(())).expect("it can be made");
        engine.wait_until_final();
        engine
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The kinds of the troubles, once there is one.
fn kinds(engine: &mut Engine) -> Vec<&'static str> {
    let end = Instant::now() + SOON;
    loop {
        let troubles = engine.troubles();
        if !troubles.is_empty() || Instant::now() >= end {
            let is_whole = |trouble: &lunar_control::api::TroubleView| {
                trouble.subject == "volume disk" && trouble.since > 1_700_000_000 && !trouble.remedy.is_empty()
            };
            assert!(troubles.iter().all(is_whole), "{troubles:?}");
            return troubles.iter().map(|trouble| trouble.kind).collect();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Has each core read a block of the volume.
fn read(engine: &Engine, offset: u64) -> Vec<Result<u32, Fault>> {
    let unit = engine.unit_of("disk").expect("it is served");
    engine.core_set().cores().ask_all(move |core| async move {
        let unit = core.mesh.unit(unit).expect("it is served");
        let into = core.reactor.arena().take_sg(512).expect("there is memory");
        let mut completion = Completion::new();
        unit.store.submit(Io { op: Op::Read, offset, data: Data::In(into) }, completion.token());
        completion.wait().await.result
    })
}

#[test]
fn a_file_that_was_truncated_while_served_is_a_trouble_and_a_medium_error_on_all_cores() {
    let place = Place::new("truncated");
    let mut engine = place.engine();
    assert_eq!(engine.troubles(), []);
    assert_eq!(read(&engine, SIZE - 512), [Ok(512); 2]);
    let file = File::options().write(true).open(place.disk()).expect("it is there");
    file.set_len(4096).expect("it is cut off");
    assert_eq!(read(&engine, 8192), [Err(Fault::Medium); 2]);
    assert_eq!(kinds(&mut engine), ["truncated"]);
    // A file that has its size again does not have its data again.
    file.set_len(SIZE).expect("it grows");
    assert_eq!(read(&engine, 8192), [Err(Fault::Medium); 2]);
    assert_eq!(read(&engine, 0), [Ok(512); 2]);
    engine.end().expect("it ends");
}

#[test]
fn a_file_that_was_deleted_while_served_is_a_trouble_with_its_time() {
    let place = Place::new("deleted");
    let mut engine = place.engine();
    std::fs::remove_file(place.disk()).expect("it is there");
    assert_eq!(kinds(&mut engine), ["deleted"]);
    assert_eq!(read(&engine, 0), [Ok(512); 2], "its data is there until the end");
    engine.end().expect("it ends");
}

#[test]
fn a_budget_that_the_machine_cannot_meet_names_the_setting() {
    let place = Place::new("budget");
    let small = HostLimits { memory: Some(64 << 20), descriptors: Some(1024) };
    let checked = |limits: &str| place.checked(&place.text(limits));
    let demand = |checked: &Checked| {
        let has = checked.config.limits.marks.has("sessions");
        assembly::demand(&checked.config, has).check(&small).map_err(|why| why.to_string())
    };
    assert_eq!(demand(&checked("")), Ok(()), "the default number of sessions gives way");
    let why = demand(&checked("[limits]\nsessions = 2000\n")).expect_err("more sessions than open files");
    assert!(why.contains("`sessions` in [limits]"), "{why}");
    let large = place.checked("[server]\ncores = 2\nmemory = '64M'\n");
    let why = demand(&large).expect_err("more memory than there is");
    assert!(why.contains("`memory`"), "{why}");
    // The machine itself is asked when a daemon starts.
    let huge = place.0.join("huge.toml");
    std::fs::write(&huge, "[server]\ncores = 256\nmemory = '1T'\n").expect("a file");
    let started = lunar::daemon::Service::start(&huge, Some(&place.0.join("state")), || false);
    let why = started.expect_err("no machine has that").to_string();
    assert!(why.contains("`memory`"), "{why}");
}

/// The status of the daemon with this API socket, once it answers.
fn status(socket: &Path, is_wanted: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let end = Instant::now() + SOON;
    loop {
        let status = Client::local(Some(socket.to_owned())).json(Method::Get, "/v1/status", RequestBody::Nothing);
        match status {
            Ok(status) if is_wanted(&status) => return status,
            other => assert!(Instant::now() < end, "{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_daemon_that_waits_for_a_volume_says_so_and_serves_its_status() {
    let place = Place::new("starting");
    let (config, state, socket) = (place.0.join("lunar.toml"), place.0.join("state"), place.0.join("api.sock"));
    let text = place.text(&format!("patience = '4s'\n[api]\nsocket = '{}'\n", socket.display()));
    std::fs::write(&config, text).expect("a file");
    // It has been served, and then its file is gone.
    let first = lunar::daemon::Service::start(&config, Some(&state), || false).expect("it starts");
    first.end().expect("it ends");
    std::fs::remove_file(place.disk()).expect("it is there");
    let daemon = Daemon { config, state: Some(state) };
    std::thread::spawn(move || run(&daemon, &Notify::default(), lunar::operator::open));
    let kind = |status: &serde_json::Value| status["troubles"][0]["kind"].as_str().unwrap_or_default().to_owned();
    let waiting = status(&socket, |status| kind(status) == "starting" && status.to_string().contains("waiting for"));
    assert!(waiting["troubles"][0]["words"].as_str().expect("words").contains("waiting for volume"), "{waiting}");
    let started = status(&socket, |status| kind(status) != "starting");
    assert_eq!(kind(&started), "unavailable", "{started}");
    assert!(started["troubles"][0]["since"].as_u64().is_some_and(|since| since > 1_700_000_000), "{started}");
}

#[test]
fn a_copy_keeps_protection_information_and_marks_of_unreadable_blocks() {
    let place = Place::new("copy");
    let (config, state, socket) = (place.0.join("lunar.toml"), place.0.join("state"), place.0.join("api.sock"));
    let text = place.text(&format!("[api]\nsocket = '{}'\n", socket.display())) + "protection = 'type-1'\n";
    std::fs::write(&config, text).expect("a file");
    let memory = VolatileMemory::default();
    let marks = Uncorrectable::restored(&memory).expect("there are none");
    let span = Span { start: 512, end: 1024 };
    drop(marks.mark(span, 512, &memory).expect("there is room"));
    let record = memory.load(UNCORRECTABLE).expect("it is saved");
    let uuid = 0xf81d_4fae_7dec_41d0_a765_00a0_c91e_6b00_u128.to_be_bytes();
    metadata::replace(&state, uuid, &[(UNCORRECTABLE, record)]).expect("it can be written");
    let daemon = Daemon { config, state: Some(state.clone()) };
    std::thread::spawn(move || run(&daemon, &Notify::default(), lunar::operator::open));
    status(&socket, |status| status["troubles"].as_array().is_some_and(Vec::is_empty));
    let client = Client::local(Some(socket));
    let protection = place.0.join("disk.img.pi");
    std::fs::write(&protection, vec![0x5a; std::fs::metadata(&protection).expect("it is there").len() as usize])
        .expect("it can be written");
    let order = serde_json::json!({ "name": "copy", "path": place.0.join("copy.img") });
    let begun = client.json(Method::Post, "/v1/volume/disk/copy", RequestBody::Json(order)).expect("it begins");
    let (path, end) = (format!("/v1/copy/{}", begun["id"]), Instant::now() + SOON);
    let copied = loop {
        let view = client.json(Method::Get, &path, RequestBody::Nothing).expect("it is listed");
        if view["ended"] == true || Instant::now() >= end {
            break view;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(copied["ended"] == true && copied["why"].is_null(), "{copied}");
    let bytes = |name: &str| std::fs::read(place.0.join(name)).expect("it is there");
    assert!(bytes("copy.img.pi") == bytes("disk.img.pi"), "the protection information differs");
    let volumes: Vec<PathBuf> = std::fs::read_dir(state.join("units"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    assert_eq!(volumes.len(), 2, "{volumes:?}");
    for name in ["protection", "uncorrectable"] {
        let [first, second] = [0, 1].map(|at| std::fs::read(volumes[at].join(name)).expect(name));
        assert_eq!(first, second, "{name}");
    }
}

#[test]
fn the_command_copies_a_volume_to_its_own_place_and_to_a_named_one() {
    let place = Place::new("command");
    let (config, state, socket) = (place.0.join("lunar.toml"), place.0.join("state"), place.0.join("api.sock"));
    std::fs::write(&config, place.text(&format!("[api]\nsocket = '{}'\n", socket.display()))).expect("a file");
    std::fs::write(place.disk(), vec![0x5a; SIZE as usize]).expect("a file");
    let daemon = Daemon { config, state: Some(state) };
    std::thread::spawn(move || run(&daemon, &Notify::default(), lunar::operator::open));
    status(&socket, |status| status["troubles"].as_array().is_some_and(Vec::is_empty));
    let elsewhere = place.0.join("elsewhere.img").display().to_string();
    for (new, file, more) in [("one", "one.img", &[][..]), ("two", "elsewhere.img", &["--path", &elsewhere])] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_lunar"));
        command.args(["volume", "copy", "disk", new]).args(more).arg("--socket").arg(&socket);
        let done = command.output().expect("it starts");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert!(String::from_utf8_lossy(&done.stdout).contains(file), "{done:?}");
        let copied = std::fs::read(place.0.join(file)).expect("the copy");
        assert!(copied == vec![0x5a; SIZE as usize], "{file} differs");
    }
}

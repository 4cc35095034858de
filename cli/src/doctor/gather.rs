//! Gathers the facts: from the API, and with the rights of the caller from the kernel and the files of this machine.

mod machine;
mod network;
mod secrets;
mod stores;

use crate::call::Service;
use crate::failure::{EXIT_NOT_RUNNING, Failure};
use lunar_control::check::{Checked, LocalHost};
use lunar_control::counters::CountersView;
use lunar_control::doctor::examination::Unchecked;
use lunar_control::doctor::facts::{Facts, FileSystem, Process, Store};
use lunar_control::rates::Rates;
use lunar_control::value::Textual;
use lunar_control::{Schema, check};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// The configuration of an installed service.
const CONFIG: &str = "/etc/lunar/lunar.toml";
/// The state folder of an installed service.
const STATE: &str = "/var/lib/lunar";
/// How long a file system may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The facts, and what is missing of them.
#[derive(Debug, Default)]
pub struct Gathered {
    /// The facts.
    pub facts: Facts,
    /// The missing parts.
    pub unchecked: Vec<Unchecked>,
}

impl Gathered {
    fn miss(&mut self, subject: &str, reason: impl ToString) {
        self.unchecked.push(Unchecked { subject: subject.to_owned(), reason: reason.to_string() });
    }

    /// A part of the API that may be missing.
    fn ask(&mut self, service: &Service, path: &str) -> Option<Json> {
        match service.get(path) {
            Ok(answer) => Some(answer),
            Err(why) => {
                self.miss(path, why);
                None
            }
        }
    }
}

/// Gathers the facts about a service. `file`: a configuration to look at instead of the one in force. The load is
/// watched for `interval`.
///
/// # Errors
/// If the service refuses the caller.
pub fn gather(
    schema: &'static Schema,
    service: &Service,
    file: Option<&Path>,
    interval: Duration,
) -> Result<Gathered, Failure> {
    let mut all = Gathered::default();
    match service.get("/v1/status") {
        Ok(status) => all.facts.status = Some(status),
        Err(why) if why.exit == EXIT_NOT_RUNNING => all.facts.silent = Some(why.message),
        Err(why) => return Err(why),
    }
    if all.facts.is_running() {
        all.facts.sessions =
            all.ask(service, "/v1/session").and_then(|all| all.as_array().cloned()).unwrap_or_default();
        all.facts.statistics = all.ask(service, "/v1/statistics");
        load(service, interval, &mut all);
    }
    configuration(schema, service, file, &mut all);
    if service.is_local() {
        this_machine(&mut all);
    } else {
        all.miss("this machine, its network and its stores", "the service is on another machine: run it there");
    }
    Ok(all)
}

fn load(service: &Service, interval: Duration, all: &mut Gathered) {
    let read =
        |all: &mut Gathered| -> Option<CountersView> { serde_json::from_value(all.ask(service, "/v1/counters")?).ok() };
    let Some(before) = read(all) else { return };
    std::thread::sleep(interval);
    let Some(now) = read(all) else { return };
    all.facts.rates = Rates::between(&before, &now);
    all.facts.counters = Some(now);
}

/// The configuration in force, or that of the file.
fn configuration(schema: &'static Schema, service: &Service, file: Option<&Path>, all: &mut Gathered) {
    let told = all.facts.status.as_ref().and_then(|status| status["file"].as_str()).map(PathBuf::from);
    all.facts.file = file.map(Path::to_owned).or(told).unwrap_or_else(|| CONFIG.into());
    if all.facts.is_running() && file.is_none() {
        match service.text(lunar_api::route::Method::Get, "/v1/config/text", lunar_api::client::RequestBody::Nothing) {
            Ok(text) => all.facts.config = Checked::of_version(schema, &text).config,
            Err(why) => all.miss("the configuration", why),
        }
        return;
    }
    let path = all.facts.file.clone();
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(why) => return all.miss(&format!("the configuration {}", path.display()), why),
    };
    all.facts.config = Checked::of_version(schema, &text).config;
    if let Err(mistakes) = check(schema, &path.display().to_string(), &text, &LocalHost { config: path.clone() }) {
        let mistakes = mistakes.to_string();
        // Another user than that of the service cannot read its secrets.
        match mistakes.contains("Permission denied") {
            true => all.miss("the secrets of the configuration", "they cannot be read: run it as root"),
            false => all.facts.mistakes = Some(mistakes),
        }
    }
}

fn this_machine(all: &mut Gathered) {
    let id = all.facts.status.as_ref().and_then(|status| u32::try_from(status["process"].as_u64()?).ok());
    all.facts.machine = machine::read();
    match id.map(machine::process) {
        Some(Some((process, user))) => (all.facts.process, all.facts.user) = (Some(process), user),
        Some(None) => {
            all.miss(
                "the limits of the process",
                "its files in /proc cannot be read: run it as root, outside of containers",
            );
            all.facts.user = machine::user_of_service(&all.facts.file);
        }
        None => all.facts.user = machine::user_of_service(&all.facts.file),
    }
    match network::read() {
        Some(network) => all.facts.network = network,
        None => all.miss("the network interfaces", "the program `ip` is missing: install iproute2"),
    }
    all.facts.portals = network::portals(&all.facts.config);
    stores(all);
    let (secrets, certificates) = secrets::read(&all.facts.config, &all.facts.file);
    (all.facts.secrets, all.facts.certificates) = (secrets, certificates);
}

/// Looks at the stores and at the state folder. A file system that does not answer is left alone.
fn stores(all: &mut Gathered) {
    let volumes: Vec<(String, PathBuf)> = all
        .facts
        .config
        .volumes
        .iter()
        .filter_map(|(name, volume)| Some((name.clone(), volume.path.as_ref()?.path().to_owned())))
        .collect();
    let has_images = all.facts.config.volumes.values().any(|volume| volume.kind.word() == "rbd");
    let service = all.facts.process.as_ref().map(|process| process.id);
    all.facts.ceph = has_images.then(|| stores::ceph(service));
    let state = all.facts.config.server.state.as_ref().map(|path| PathBuf::from(path.text()));
    let state = state.or_else(|| all.facts.process.as_ref().and_then(state_of));
    let state = state.unwrap_or_else(|| STATE.into());
    let state = Some((String::new(), state)).filter(|(_, path)| path.exists());
    for (volume, path) in volumes.into_iter().chain(state) {
        let (sender, receiver) = mpsc::channel();
        let (name, place) = (volume.clone(), path.clone());
        let is_started = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || drop(sender.send(stores::read(&name, &place))))
            .is_ok();
        match receiver.recv_timeout(PATIENCE) {
            Ok((store, system)) => add(all, store, system),
            Err(_) if is_started => {
                all.miss(&format!("volume {volume}"), format!("{} does not answer", path.display()));
            }
            Err(_) => all.miss(&format!("volume {volume}"), "a thread cannot be started"),
        }
    }
}

fn add(all: &mut Gathered, store: Store, system: Option<FileSystem>) {
    if let Some(system) = system.filter(|new| all.facts.file_systems.iter().all(|known| known.number != new.number)) {
        all.facts.file_systems.push(system);
    }
    if store.exists.is_none() {
        all.miss(
            &format!("volume {}", store.volume),
            format!("{} cannot be seen: run it as root", store.path.display()),
        );
    }
    match store.volume.is_empty() {
        true => all.facts.state = Some(store),
        false => all.facts.stores.push(store),
    }
}

/// The state folder that systemd gave to a process.
fn state_of(process: &Process) -> Option<PathBuf> {
    let environment = std::fs::read(format!("/proc/{}/environ", process.id)).ok()?;
    let all = environment.split(|byte| *byte == 0).filter_map(|one| std::str::from_utf8(one).ok());
    let folders = all.into_iter().find_map(|one| one.strip_prefix("STATE_DIRECTORY="))?;
    folders.split(':').next().map(PathBuf::from)
}

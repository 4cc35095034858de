//! Starts the engine of the program on this machine.

use crate::isns::Isns;
use crate::jail;
use crate::registry::{Program, REGISTRY};
use anyhow::Result;
use lunar_api::system;
use lunar_control::Config;
use lunar_engine::budget::Demand;
use lunar_engine::engine::{Engine, EngineOptions, core_config};
use lunar_engine::host::{Host, StateFolder, StateLock, SystemHost};
use lunar_engine::notice::{Notice, NoticeTopic, SERVICE};
use lunar_engine::origin::Origin;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long the previous daemon may take to end: the commands in its stores must complete first, as with volumes.
const LOCK_PATIENCE: Duration = Duration::from_secs(15);

/// The folder for sockets of virtual machines without a configured path: that of the default API socket.
#[must_use]
pub fn runtime() -> PathBuf {
    let socket = system::daemon_socket();
    socket.as_deref().and_then(Path::parent).unwrap_or_else(|| Path::new("/run/lunar")).to_owned()
}

/// This machine, with this state.
fn host(state: StateFolder) -> Arc<dyn Host> {
    Arc::new(SystemHost {
        state,
        runtime: runtime(),
        allows_path: |path| Ok(jail::reaches(path)?),
        user_number: system::user_number,
        group_number: system::group_number,
    })
}

/// The limits that a configuration asks for. `are_sessions_configured`: the operator chose the number of sessions.
#[must_use]
pub fn demand(config: &Config, are_sessions_configured: bool) -> Demand {
    let cores = core_config(config);
    let listeners = config.portals.len() + config.api_listeners.len() + 1;
    Demand {
        cores: cores.cores as u64,
        memory: cores.memory as u64,
        fronts: REGISTRY.fronts.iter().map(|entry| entry.front.memory(config)).sum(),
        sessions: config.limits.sessions.get(),
        are_sessions_configured,
        volumes: config.volumes.len() as u64,
        listeners: listeners as u64,
    }
}

/// Starts an engine on threads, with its state in this folder, which no other engine may use at the same time; nothing
/// is served yet.
///
/// # Errors
/// When the cores do not start, or the state folder cannot be used.
pub fn start(config: &Config, state: &Path) -> Result<Engine> {
    let host = host(StateFolder::open(state)?);
    let lock = Some(StateLock::take(state, LOCK_PATIENCE)?);
    let mut engine =
        Engine::start(config, EngineOptions { registry: REGISTRY, host, lock, origin: Origin::Configuration })?;
    let audit = engine.core_set().shared().audit.clone();
    let tell = move |words: &str| audit(&Notice::new(NoticeTopic::Service, SERVICE, &words));
    engine.set_name_service(Box::new(Isns::new(tell)));
    Ok(engine)
}

/// Starts an engine on threads for the configuration of a command line. Several such engines share a state folder, in
/// which each keeps the metadata of its volumes and of its subsystem.
///
/// # Errors
/// When the cores do not start.
pub fn start_command_line(program: &Program, config: &Config, state: &Path, origin: Origin) -> Result<Engine> {
    let host = host(StateFolder::shared(state));
    Ok(Engine::start(config, EngineOptions { registry: program.registry, host, lock: None, origin })?)
}

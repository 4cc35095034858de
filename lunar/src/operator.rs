//! The operator's side of the daemon: its API, as a part that is configured like the others, and its jails.

use crate::daemon::{Control, Keeper, Part};
use crate::house::Notice;
use crate::jail::{self, Held, Paths};
use anyhow::{Result, anyhow};
use lunar_api::{Api, AuditLog, ControlHandle, Shared, Topic};
use lunar_control::check::Checked;
use lunar_control::value::Textual;
use lunar_iscsi::authenticator::audit::AuditRecord;
use lunar_nvme::auth::guard::Record as NvmeRecord;
use lunar_reactor::log;
use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// Starts the API of a daemon. What is returned ends nothing: the API belongs to what runs, and ends with it.
///
/// # Errors
/// Why it cannot be reached, in words that say what to do.
pub fn attach(control: &Control) -> Result<Box<dyn Any>> {
    let way = control.clone();
    let desk = ControlHandle::new(move |job| way.post(move |keeper| job(keeper)));
    let journal = AuditLog::new(|note| log!("audit: {note}"));
    let common = Shared::new(journal.clone(), env!("CARGO_PKG_VERSION"), SystemTime::now());
    let api = Api::start(desk, common.clone())?;
    let socket = control.ask(move |keeper| open(keeper, api, &common))?.map_err(|why| anyhow!(why))?;
    journal.add(Topic::Service, "lunar", &format!("is ready; its API is at {}", socket.display()));
    Ok(Box::new(()))
}

/// Puts in force what the first configuration says of the API, and makes it a part of what runs.
fn open(keeper: &mut Keeper, mut api: Api, common: &Arc<Shared>) -> Result<PathBuf, String> {
    let checked = keeper.current().clone();
    common.started_with(&checked);
    let journal = common.audit_log.clone();
    keeper.running().audit_to(Box::new(move |notice| note(&journal, notice)));
    api.open(&checked)?;
    let socket = api.socket().map(Path::to_owned).unwrap_or_default();
    keeper.running().add_part(Box::new(Remote(api)));
    Ok(socket)
}

/// Notes how a login ended, and what else operators are told.
fn note(journal: &AuditLog, notice: &Notice<'_>) {
    let topic = |is_in: bool| if is_in { Topic::Login } else { Topic::Refusal };
    let (topic, who) = match notice {
        Notice::Initiator(AuditRecord::Login(login, outcome)) => (topic(outcome.is_ok()), login.initiator.to_string()),
        Notice::Host(NvmeRecord::Login { visitor, outcome, .. }) => (topic(outcome.is_ok()), visitor.host.to_string()),
        Notice::Host(NvmeRecord::Channel { source, .. }) => (Topic::Refusal, source.ip().to_string()),
        Notice::Initiator(AuditRecord::Omitted(_)) | Notice::Host(NvmeRecord::Omitted(_)) => {
            (Topic::Refusal, "lunar".to_owned())
        }
        Notice::Isns(_) => (Topic::Service, "lunar".to_owned()),
        Notice::Made { host, .. } => (Topic::Change, (*host).to_owned()),
    };
    journal.add(topic, &who, &notice.to_string());
}

/// The API as a part of the daemon.
struct Remote(Api);

impl Part for Remote {
    fn prepare(&mut self, wanted: &Checked) -> Result<(), String> {
        self.0.prepare(wanted)
    }

    fn commit(&mut self, wanted: &Checked) {
        self.0.commit(wanted);
    }

    fn roll_back(&mut self) {
        self.0.roll_back();
    }
}

/// Goes into the jails, with what the configuration in this file asks for. A file that is not right is for the start to
/// complain about: then nothing is done. Before any thread is started.
///
/// # Errors
/// When the kernel has jails and refuses.
pub fn confine(file: &Path, state: Option<&Path>) -> Result<()> {
    let file = std::path::absolute(file)?;
    let Ok(text) = std::fs::read_to_string(&file) else { return Ok(()) };
    let outside = crate::daemon::here(file.clone());
    let Ok(checked) = lunar_control::check(&file.display().to_string(), &text, &outside) else { return Ok(()) };
    let config = &checked.config;
    let own = config.server.state.as_ref().map(|path| PathBuf::from(path.text()));
    let state = own.or_else(|| state.map(Path::to_owned)).unwrap_or_else(crate::volume::keep::state_folder);
    let socket =
        config.api.socket.as_ref().map(|path| PathBuf::from(path.text())).or_else(lunar_api::system::daemon_socket);
    // A folder that is not there yet could not be allowed.
    for folder in socket.as_deref().and_then(Path::parent).into_iter().chain([state.as_path()]) {
        std::fs::create_dir_all(folder)?;
    }
    match jail::shut(Paths::of(config, &file, &state, socket.as_deref())).map_err(|why| anyhow!(why))? {
        Held::Well => {}
        Held::Partly => log!("this kernel is older than some of what Landlock could keep this process from"),
        Held::No => log!("this kernel has no Landlock: what files this process reaches, its user alone decides"),
    }
    Ok(())
}

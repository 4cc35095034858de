//! The operator's side of the daemon: its API, as a part that is configured like the others, and its confinement.

use crate::daemon::Operator;
use crate::jail::{self, Held, Paths};
use crate::schema::SCHEMA;
use anyhow::Result;
use lunar_api::audit::RefusedLogin;
use lunar_api::examine::{Examiner, gather};
use lunar_api::service::ApiError;
use lunar_api::{Api, AuditLog, ControlHandle, Shared, Topic};
use lunar_control::check::Checked;
use lunar_control::value::Textual;
use lunar_engine::control_thread::{ControlThread, Keeper, here};
use lunar_engine::notice::{Notice, NoticeTopic};
use lunar_engine::participant::{Participant, ParticipantError};
use lunar_reactor::log;
use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

/// How often it is looked whether something is wrong, and whether commands have to be added to the history.
const TROUBLES_INTERVAL: Duration = Duration::from_secs(2);

/// The API of a daemon that starts.
struct Desk {
    api: Api,
    common: Arc<Shared>,
    journal: Arc<AuditLog>,
    checked: Checked,
    /// The control thread, once it runs.
    control: Arc<OnceLock<ControlThread>>,
}

/// Starts the API of a daemon with this file, before its volumes are open. Until then the API answers that the daemon
/// starts.
///
/// # Errors
/// Why it cannot be reached, in words that say what to do.
pub fn open(file: &Path, checked: &Checked) -> Result<Box<dyn Operator>> {
    let control = Arc::<OnceLock<ControlThread>>::default();
    let way = control.clone();
    let handle = ControlHandle::new(move |job| way.get().is_some_and(|way| way.post(move |keeper| job(keeper))));
    let journal = AuditLog::new(|note| match note.topic {
        Topic::Refusal => log!(warning, "audit: {note}"),
        _ => log!("audit: {note}"),
    });
    let common = Shared::new(&SCHEMA, journal.clone(), env!("CARGO_PKG_VERSION"), SystemTime::now());
    common.starts(&file.display().to_string(), "opening its volumes");
    let mut api = Api::start(handle, common.clone())?;
    api.open(checked)?;
    Ok(Box::new(Desk { api, common, journal, checked: checked.clone(), control }))
}

impl Operator for Desk {
    fn starts(&self, words: &str) {
        self.common.waits(words);
    }

    /// Dropping the returned value does not end the API: it belongs to the engine, and ends with it.
    fn attach(self: Box<Self>, control: &ControlThread) -> Result<Box<dyn Any>> {
        let Self { api, common, journal, checked, control: way } = *self;
        // The first is the control thread of this daemon.
        let _ = way.set(control.clone());
        let socket = api.socket().map(Path::to_owned).unwrap_or_default();
        let own = common.clone();
        control.ask(move |keeper| take_over(keeper, api, &own, &checked))??;
        common.has_started();
        journal.add(Topic::Service, "lunar", &format!("is ready; its API is at {}", socket.display()));
        let (control, common) = (control.clone(), common);
        let watch = move || {
            // It ends with the control thread.
            let (common, mut examiner) = (&common, Examiner::default());
            while {
                let common = common.clone();
                control.ask(move |keeper| drop(common.tell_troubles(keeper))).is_ok()
            } {
                if let Some(measured) = common.measured.get() {
                    common.history.tick(&**measured, Instant::now());
                }
                examiner.tick(common, Instant::now(), || {
                    let common = common.clone();
                    control.ask(move |keeper| gather(keeper, &common)).ok()
                });
                std::thread::sleep(TROUBLES_INTERVAL);
            }
        };
        std::thread::Builder::new().name("troubles".into()).spawn(watch)?;
        Ok(Box::new(()))
    }
}

/// Makes the API a part of the engine. Volumes may have got their UUIDs since the API was opened.
fn take_over(keeper: &mut Keeper, mut api: Api, common: &Arc<Shared>, opened: &Checked) -> Result<(), ApiError> {
    let checked = keeper.current().clone();
    common.started_with(&checked);
    let journal = common.audit_log.clone();
    // The first are those of this engine.
    let _ = common.measured.set(keeper.running().metrics());
    keeper.running().audit_to(Box::new(move |notice| note(&journal, notice)));
    if checked.config.api != opened.config.api || checked.config.api_listeners != opened.config.api_listeners {
        api.open(&checked)?;
    }
    keeper.running().add_participant(Box::new(Remote(api)));
    Ok(())
}

/// Writes a notice to the audit log.
fn note(journal: &AuditLog, notice: &Notice<'_>) {
    let topic = match notice.topic {
        NoticeTopic::Login => Topic::Login,
        NoticeTopic::Refusal => Topic::Refusal,
        NoticeTopic::Service => Topic::Service,
        NoticeTopic::Change => Topic::Change,
    };
    match notice.refusal {
        None => journal.add(topic, notice.subject, &notice.to_string()),
        Some(refused) => {
            let names = (notice.subject, refused.target, refused.user);
            let login = RefusedLogin::new(refused.code, refused.transport, refused.source, names);
            journal.add_refused_login(notice.subject, &notice.to_string(), login);
        }
    }
}

/// The API as a participant of transactions.
struct Remote(Api);

impl Participant for Remote {
    fn prepare(&mut self, wanted: &Checked) -> Result<(), ParticipantError> {
        Ok(self.0.prepare(wanted)?)
    }

    fn commit(&mut self, wanted: &Checked) {
        self.0.commit(wanted);
    }

    fn roll_back(&mut self) {
        self.0.roll_back();
    }
}

/// Confines the process to the configuration in this file. An invalid file is reported by the start: then nothing is
/// done. Called before any thread is started.
///
/// # Errors
/// When the kernel supports confinement and refuses it.
pub fn confine(file: &Path, state: Option<&Path>) -> Result<()> {
    let file = std::path::absolute(file)?;
    let Ok(text) = std::fs::read_to_string(&file) else { return Ok(()) };
    let outside = here(file.clone(), crate::registry::REGISTRY.backends);
    let Ok(checked) = lunar_control::check(&SCHEMA, &file.display().to_string(), &text, &outside) else {
        return Ok(());
    };
    let config = &checked.config;
    let own = config.server.state.as_ref().map(|path| PathBuf::from(path.text()));
    let state = own.or_else(|| state.map(Path::to_owned)).unwrap_or_else(lunar_engine::volume::metadata::state_folder);
    let socket =
        config.api.socket.as_ref().map(|path| PathBuf::from(path.text())).or_else(lunar_api::system::daemon_socket);
    // A missing folder could not be allowed.
    for folder in socket.as_deref().and_then(Path::parent).into_iter().chain([state.as_path()]) {
        std::fs::create_dir_all(folder)?;
    }
    if let Err(why) = jail::start_helper(&jail::secret_folders(config, &file)) {
        log!(warning, "the file helper cannot be started ({why}): new folders and devices need a restart of Lunar");
    }
    if let Err(why) = jail::start_program_helper(config) {
        log!(warning, "the program helper cannot be started ({why}): images of Ceph and zvols need a restart of Lunar");
    }
    crate::registry::REGISTRY.fronts.iter().for_each(|entry| entry.front.preload(config));
    match jail::shut(Paths::of(config, &file, &state, socket.as_deref()))? {
        Held::Well => {}
        Held::Partly => log!(
            warning,
            "this kernel supports only a part of the Landlock rules: the sandbox is weaker; use a newer kernel"
        ),
        Held::No => log!(
            warning,
            "this kernel has no Landlock: only file permissions limit which files this process can open; enable \
             Landlock (`lsm=landlock,...` on the kernel command line)"
        ),
    }
    Ok(())
}

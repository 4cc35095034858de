//! A daemon with a real API and no volumes, for tests of clients of the API.

use crate::audit::AuditLog;
use crate::control::{Control, ControlHandle, Job};
use crate::request::Shared;
use crate::service::{Api, ApiError};
use lunar_control::api::{IsnsView, MediumView, SessionView, TroubleView, VmView};
use lunar_control::apply::Running;
use lunar_control::check::{Checked, LocalHost};
use lunar_control::failure::Failure;
use lunar_control::fake_target::{FakeError, FakeTarget, MadeStores, Transaction};
use lunar_control::live::{CopySource, Later, Live, Making, MediumError, Motion, StoreNotAccepted, StoreOrigin};
use lunar_control::names::Uuid;
use lunar_control::plan::Change;
use lunar_control::scsi::{ScsiCall, ScsiError, ScsiOutcome};
use lunar_control::testing::SAMPLE;
use lunar_control::{Manager, Plan};
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::SystemTime;

/// The running configuration: a fake target and a real API.
#[derive(Debug)]
struct FakeDaemon {
    target: FakeTarget,
    api: Api,
    /// Whether the first configuration is applied.
    is_started: bool,
}

/// Why a fake daemon does not start, or refuses a step.
#[derive(Debug)]
pub enum DaemonError {
    /// A thread cannot be created.
    Thread(io::Error),
    /// The control thread has ended.
    Ended,
    /// The configuration cannot be put in force.
    Start(Failure),
    /// The API cannot be served.
    Api(ApiError),
    /// The target refuses a step.
    Target(FakeError),
}

impl fmt::Display for DaemonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Thread(why) => why.fmt(f),
            Self::Ended => f.write_str("the thread ended"),
            Self::Start(why) => why.fmt(f),
            Self::Api(why) => why.fmt(f),
            Self::Target(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for DaemonError {}

impl Running for FakeDaemon {
    type Transaction = Transaction;
    type Error = DaemonError;

    fn expect(&mut self, volumes: BTreeSet<String>) {
        self.target.expect(volumes);
    }

    fn begin(&mut self, plan: &Plan, wanted: &Checked) -> Result<Transaction, DaemonError> {
        if self.is_started {
            self.api.prepare(wanted).map_err(DaemonError::Api)?;
        }
        self.target.begin(plan, wanted).map_err(DaemonError::Target)
    }

    fn prepare(&mut self, transaction: &mut Transaction, change: &Change, wanted: &Checked) -> Result<(), DaemonError> {
        self.target.prepare(transaction, change, wanted).map_err(DaemonError::Target)
    }

    fn commit(&mut self, transaction: Transaction, plan: &Plan, wanted: &Checked) {
        self.target.commit(transaction, plan, wanted);
        self.api.commit(wanted);
    }

    fn roll_back(&mut self, transaction: Transaction) {
        self.api.roll_back();
        self.target.roll_back(transaction);
    }
}

impl Live for FakeDaemon {
    fn sessions(&mut self) -> Vec<SessionView> {
        self.target.sessions()
    }

    fn kick(&mut self, id: &str) -> Option<Later<bool>> {
        self.target.kick(id)
    }

    fn statistics(&mut self) -> Json {
        self.target.statistics()
    }

    fn scsi(&mut self, volume: &str, call: ScsiCall) -> Option<Later<Result<ScsiOutcome, ScsiError>>> {
        self.target.scsi(volume, call)
    }

    fn vms(&mut self) -> Vec<VmView> {
        self.target.vms()
    }

    fn isns(&mut self) -> Option<IsnsView> {
        self.target.isns()
    }

    fn troubles(&mut self) -> Vec<TroubleView> {
        self.target.troubles()
    }

    fn copy_source(&mut self, volume: &str) -> Option<CopySource> {
        self.target.copy_source(volume)
    }

    fn make_store(&mut self, volume: &str, wanted: &Checked, origin: StoreOrigin<'_>) -> Option<Making> {
        self.target.make_store(volume, wanted, origin)
    }

    fn set_records(&mut self, uuid: Uuid, records: &[(&'static str, Vec<u8>)]) -> io::Result<()> {
        self.target.set_records(uuid, records)
    }

    fn medium(&mut self, volume: &str) -> Option<MediumView> {
        self.target.medium(volume)
    }

    fn move_medium(&mut self, volume: &str, motion: Motion) -> Option<Later<Result<(), MediumError>>> {
        self.target.move_medium(volume, motion)
    }

    fn store_answers(&mut self, volume: &str, wanted: &Checked) -> Later<Result<(), StoreNotAccepted>> {
        self.target.store_answers(volume, wanted)
    }

    fn finalizing(&mut self) -> Option<Later<()>> {
        self.target.finalizing()
    }
}

enum ThreadMessage {
    Job(Job),
    Stop,
}

/// A daemon without volumes. It stops when it is dropped.
#[derive(Debug)]
pub struct TestService {
    /// The path of its API socket.
    pub socket: PathBuf,
    /// The audit log.
    pub audit_log: Arc<AuditLog>,
    /// The handle of its control thread.
    pub control_thread: ControlHandle,
    /// Set by a test to keep the last change from being finalized.
    pub finalizing: Arc<AtomicBool>,
    /// Set by a test to keep the places of stores from answering.
    pub silent: Arc<AtomicBool>,
    /// Set by a test to make every change fail.
    pub refuses: Arc<AtomicBool>,
    /// The stores that were made and are there.
    pub made: MadeStores,
    stop: mpsc::Sender<ThreadMessage>,
    thread: Option<JoinHandle<()>>,
}

impl TestService {
    /// Starts the daemon with the configuration `lunar.toml` in `folder` and these sessions. The state and, by default,
    /// the socket are in the same folder.
    ///
    /// # Errors
    /// The reason why the daemon cannot start.
    pub fn start(folder: &Path, sessions: Vec<SessionView>) -> Result<Self, DaemonError> {
        let (messages, received_messages) = mpsc::channel();
        let post = messages.clone();
        let control_thread = ControlHandle::new(move |job| post.send(ThreadMessage::Job(job)).is_ok());
        let audit_log = AuditLog::new(|_| ());
        let shared = Shared::new(&SAMPLE, audit_log.clone(), env!("CARGO_PKG_VERSION"), SystemTime::now());
        let (folder, for_api) = (folder.to_owned(), control_thread.clone());
        let finalizing = Arc::new(AtomicBool::new(false));
        let silent = Arc::new(AtomicBool::new(false));
        let (refuses, made) = (Arc::new(AtomicBool::new(false)), MadeStores::default());
        let for_target = (finalizing.clone(), silent.clone(), refuses.clone(), made.clone());
        let (sender, receiver) = mpsc::channel();
        let work = move || {
            let started = start(&folder, for_api, shared, sessions);
            let (mut manager, answer) = match started {
                Ok(mut manager) => {
                    let target = &mut manager.running().target;
                    (target.finalizing, target.silent, target.refuses, target.made) = for_target;
                    let socket = manager.running().api.socket().map(Path::to_owned).unwrap_or_default();
                    (manager, Ok(socket))
                }
                Err(why) => return drop(sender.send(Err(why))),
            };
            let _ = sender.send(answer);
            while let Ok(ThreadMessage::Job(job)) = received_messages.recv() {
                job(&mut manager);
            }
        };
        let thread = std::thread::Builder::new().name("control".into()).spawn(work).map_err(DaemonError::Thread)?;
        let socket = receiver.recv().map_err(|_| DaemonError::Ended)??;
        let (stop, thread) = (messages, Some(thread));
        Ok(Self { socket, audit_log, control_thread, finalizing, silent, refuses, made, stop, thread })
    }

    /// Runs `work` on the control thread and waits for its result. `None` if the thread has ended.
    pub fn with<T: Send + 'static>(&self, work: impl FnOnce(&mut dyn Control) -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = mpsc::channel();
        let posted = self.control_thread.post(move |control| drop(sender.send(work(control))));
        posted.then(|| receiver.recv().ok())?
    }
}

fn start(
    folder: &Path,
    control_thread: ControlHandle,
    shared: Arc<Shared>,
    sessions: Vec<SessionView>,
) -> Result<Manager<FakeDaemon, LocalHost>, DaemonError> {
    let file = folder.join("lunar.toml");
    let api = Api::start(control_thread, shared.clone()).map_err(DaemonError::Thread)?;
    let mut target = FakeTarget::new();
    target.sessions = sessions;
    let model = FakeDaemon { target, api, is_started: false };
    let outside = LocalHost { config: file.clone() };
    let manager =
        Manager::start(&SAMPLE, &file, &folder.join("state"), outside, model, SystemTime::now(), &mut |_, _| false);
    let mut manager = manager.map_err(DaemonError::Start)?;
    let checked = manager.current().clone();
    shared.started_with(&checked);
    manager.running().api.open(&checked).map_err(DaemonError::Api)?;
    manager.running().is_started = true;
    Ok(manager)
}

impl Drop for TestService {
    fn drop(&mut self) {
        let _ = self.stop.send(ThreadMessage::Stop);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

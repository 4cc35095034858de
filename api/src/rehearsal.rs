//! A service that is configured like any other and shares nothing: for tests of whoever speaks to the API, and for
//! whoever wants to try it.

use crate::desk::{Control, Desk, Job};
use crate::journal::Journal;
use crate::running::Api;
use crate::work::Common;
use lunar_control::api::{IsnsView, MachineView, MediumView, SessionView};
use lunar_control::apply::Running;
use lunar_control::check::{Checked, Machine};
use lunar_control::live::{Later, Live, Motion};
use lunar_control::plan::Change;
use lunar_control::rehearsal::{Ready, Rehearsal};
use lunar_control::{Manager, Plan};
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::SystemTime;

/// What runs in it: a model, and a real API.
#[derive(Debug)]
struct Model {
    things: Rehearsal,
    api: Api,
    /// Whether the first configuration is in force.
    is_open: bool,
    /// Whether the API is prepared for the plan that is being carried out.
    is_asked: bool,
}

impl Running for Model {
    type Prepared = Ready;

    fn expect(&mut self, volumes: BTreeSet<String>) {
        self.things.expect(volumes);
    }

    fn prepare(&mut self, change: &Change, wanted: &Checked) -> Result<Ready, String> {
        let is_first = !self.is_asked;
        let ready = self.things.prepare(change, wanted)?;
        if is_first && self.is_open {
            if let Err(why) = self.api.prepare(wanted) {
                self.things.roll_back(change, ready);
                return Err(why);
            }
            self.is_asked = true;
        }
        Ok(ready)
    }

    fn commit(&mut self, change: &Change, prepared: Ready) {
        self.things.commit(change, prepared);
    }

    fn settle(&mut self, _plan: &Plan, wanted: &Checked) {
        self.is_asked = false;
        self.api.commit(wanted);
    }

    fn roll_back(&mut self, change: &Change, prepared: Ready) {
        self.is_asked = false;
        self.api.roll_back();
        self.things.roll_back(change, prepared);
    }
}

impl Live for Model {
    fn sessions(&mut self) -> Vec<SessionView> {
        self.things.sessions()
    }

    fn kick(&mut self, id: &str) -> Option<Later<bool>> {
        self.things.kick(id)
    }

    fn statistics(&mut self) -> Json {
        self.things.statistics()
    }

    fn machines(&mut self) -> Vec<MachineView> {
        self.things.machines()
    }

    fn isns(&mut self) -> Option<IsnsView> {
        self.things.isns()
    }

    fn troubles(&mut self) -> Vec<String> {
        self.things.troubles()
    }

    fn medium(&mut self, volume: &str) -> Option<MediumView> {
        self.things.medium(volume)
    }

    fn move_medium(&mut self, volume: &str, motion: Motion) -> Option<Later<Result<(), String>>> {
        self.things.move_medium(volume, motion)
    }

    fn settling(&mut self) -> Option<Later<()>> {
        self.things.settling()
    }
}

enum Order {
    Job(Job),
    Stop,
}

/// A service that shares nothing. It stops when this drops.
#[derive(Debug)]
pub struct Service {
    /// Where it is.
    pub socket: PathBuf,
    /// What happened.
    pub journal: Arc<Journal>,
    /// The way to its thread.
    pub desk: Desk,
    /// Whether its last change still goes on, as whoever sets this says.
    pub settling: Arc<AtomicBool>,
    stop: mpsc::Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts it with the configuration `lunar.toml` in this folder, where it keeps everything else, too, and its
    /// socket, unless the configuration says otherwise; with these sessions.
    ///
    /// # Errors
    /// Everything that keeps it from starting.
    pub fn start(folder: &Path, sessions: Vec<SessionView>) -> Result<Self, String> {
        let (orders, incoming) = mpsc::channel();
        let post = orders.clone();
        let desk = Desk::new(move |job| post.send(Order::Job(job)).is_ok());
        let journal = Journal::new(|_| ());
        let common = Common::new(journal.clone(), env!("CARGO_PKG_VERSION"), SystemTime::now());
        let (folder, for_api) = (folder.to_owned(), desk.clone());
        let settling = Arc::new(AtomicBool::new(false));
        let for_things = settling.clone();
        let (tell, told) = mpsc::channel();
        let work = move || {
            let started = start(&folder, for_api, common, sessions);
            let (mut manager, answer) = match started {
                Ok(mut manager) => {
                    manager.running().things.settling = for_things;
                    let socket = manager.running().api.socket().map(Path::to_owned).unwrap_or_default();
                    (manager, Ok(socket))
                }
                Err(why) => return drop(tell.send(Err(why))),
            };
            let _ = tell.send(answer);
            while let Ok(Order::Job(job)) = incoming.recv() {
                job(&mut manager);
            }
        };
        let thread = std::thread::Builder::new().name("control".into()).spawn(work).map_err(|why| why.to_string())?;
        let socket = told.recv().map_err(|_| "it ended".to_owned())??;
        Ok(Self { socket, journal, desk, settling, stop: orders, thread: Some(thread) })
    }

    /// Has something done by the thread that owns what runs, and waits for it.
    pub fn with<T: Send + 'static>(&self, work: impl FnOnce(&mut dyn Control) -> T + Send + 'static) -> Option<T> {
        let (tell, told) = mpsc::channel();
        let posted = self.desk.post(move |control| drop(tell.send(work(control))));
        posted.then(|| told.recv().ok())?
    }
}

fn start(
    folder: &Path,
    desk: Desk,
    common: Arc<Common>,
    sessions: Vec<SessionView>,
) -> Result<Manager<Model, Machine>, String> {
    let file = folder.join("lunar.toml");
    let api = Api::start(desk, common.clone()).map_err(|why| why.to_string())?;
    let mut things = Rehearsal::new();
    things.sessions = sessions;
    let model = Model { things, api, is_open: false, is_asked: false };
    let outside = Machine { config: file.clone() };
    let manager = Manager::start(&file, &folder.join("state"), outside, model, SystemTime::now(), &mut |_, _| false);
    let mut manager = manager.map_err(|why| why.to_string())?;
    let checked = manager.current().clone();
    common.started_with(&checked);
    manager.running().api.open(&checked)?;
    manager.running().is_open = true;
    Ok(manager)
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.stop.send(Order::Stop);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

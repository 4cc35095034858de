//! Looks for the stores of volumes that are unavailable, on a thread of its own. A look may wait for a disk or for a
//! network file system without end: each has a thread, and a place that does not answer delays nothing but itself.

use crate::control_thread::ControlThread;
use crate::unavailable::{Found, Place};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// Time between two looks: clients retry for longer than that.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Looks in progress at most. Each is a thread; places that do not answer hold theirs.
const LOOKS_MAX: usize = 64;
/// Looks in progress at places in one folder: a network file system that does not answer leaves threads to the others.
const LOOKS_OF_FOLDER: usize = 8;

/// Starts to look when `woken` says so: see [`crate::engine::Engine::store_wake_ups`]. The thread ends with the control
/// thread or with the engine.
///
/// # Errors
/// When there is no thread for it.
pub fn start(control: ControlThread, woken: Receiver<()>) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("stores".into());
    thread.spawn(move || look(&control, &woken)).map(drop)
}

fn look(control: &ControlThread, woken: &Receiver<()>) {
    let (answer, answers) = mpsc::channel();
    // The folder of each place that is looked at.
    let mut looking: BTreeMap<Arc<str>, Option<PathBuf>> = BTreeMap::new();
    let mut patience = None;
    loop {
        let waited = match patience {
            Some(patience) => woken.recv_timeout(patience),
            None => woken.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        if waited == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        let asked = control.change(|keeper| {
            let wanted = keeper.served();
            let places = keeper.running().look_after_stores(&wanted);
            (places, keeper.running().has_unavailable_stores())
        });
        let Ok((places, is_missing)) = asked else { return };
        patience = is_missing.then_some(LOOK_INTERVAL);
        for place in places {
            let folder = place.path.parent().map(Path::to_owned);
            let beside = looking.values().filter(|other| **other == folder).count();
            let has_room = looking.len() < LOOKS_MAX && beside < LOOKS_OF_FOLDER;
            let name = place.name.clone();
            if has_room && !looking.contains_key(&name) && begin(place, answer.clone()) {
                looking.insert(name, folder);
            }
        }
        if !looking.is_empty() {
            // An answer that comes later is taken in a later turn.
            std::thread::sleep(LOOK_INTERVAL / 4);
        }
        for (name, found) in answers.try_iter() {
            looking.remove(&name);
            let told = control.change(move |keeper| {
                let wanted = keeper.served();
                keeper.running().store_found(&name, found, &wanted);
            });
            if told.is_err() {
                return;
            }
        }
    }
}

/// Looks at a place in a thread; returns whether there is one for it.
fn begin(place: Place, answer: Sender<(Arc<str>, Option<Found>)>) -> bool {
    let look = move || {
        let found = place.look();
        // The thread that waits may have ended.
        let _ = answer.send((place.name, found));
    };
    std::thread::Builder::new().name("store".into()).spawn(look).is_ok()
}

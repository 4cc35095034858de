//! The entry point of the fuzz target.

use crate::session::{Action, Session};
use crate::wire::Request;
use lunar_nvme::Status;

/// Takes anything as private data, and as the capsules of a queue. Every command is completed once.
///
/// # Panics
/// When there are more commands than entries.
pub fn capsules(bytes: &[u8]) {
    /// Entries of the queue.
    const ENTRIES: u16 = 8;
    let _ = Request::parse(bytes);
    let (mut session, mut actions) = (Session::<usize>::default(), Vec::new());
    for message in bytes.chunks(80) {
        if session.receive(message, |data| Some(data.len()), &mut actions).is_err() {
            return;
        }
        assert!(session.tasks() <= usize::from(ENTRIES));
        for action in actions.drain(..) {
            match action {
                Action::Connect(arrived) => {
                    let cid = arrived.command.sqe.cid.get();
                    assert!(session.connected(cid, Ok((1, ENTRIES, true)), 0).is_some());
                }
                Action::Command(arrived) => {
                    let sqe = arrived.command.sqe;
                    match sqe.cid.get() % 3 {
                        0 => session.park(sqe.cid.get()),
                        1 => assert!(session.complete(sqe.cid.get(), Status::SUCCESS, 0).is_some()),
                        _ => {}
                    }
                }
                Action::Fused(halves) => {
                    for half in *halves {
                        assert!(session.complete(half.command.sqe.cid.get(), Status::SUCCESS, 0).is_some());
                    }
                }
                Action::Refused(..) | Action::EventReplaced(_) => {}
            }
        }
    }
}

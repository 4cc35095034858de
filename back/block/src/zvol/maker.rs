//! Makes zvols, snapshots and clones with the program `zfs`. They are removed again unless their
//! volume is created.

use super::program::{Call, CallError, call};
use super::schema::Dataset;
use lunar_control::live::{MadeStore, StoreNotMade};
use lunar_reactor::log;
use std::fmt;
use std::time::{Duration, Instant};

/// How long a call may take: a pool of slow disks ends a transaction group within seconds. All calls of one making, and
/// those that remove it again, are within the time of a request of the API.
const CALL_TIME: Duration = Duration::from_secs(20);
/// How long udev may take to name a new device.
const DEVICE_TIME: Duration = Duration::from_secs(10);
/// Time between two looks at the device.
const LOOK: Duration = Duration::from_millis(20);

/// The kind of store that is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// An empty zvol of so many bytes.
    Zvol(u64),
    /// A snapshot of its zvol.
    Snapshot,
    /// A clone of this zvol or snapshot.
    Clone(Dataset),
}

impl Order {
    /// The calls that make `dataset`, each with the call that undoes it.
    fn calls(&self, dataset: &Dataset) -> Vec<(Call, Option<Call>)> {
        let own = dataset.clone();
        let destroy = Some(Call::Destroy(own.clone()));
        match self {
            Self::Zvol(bytes) => vec![(Call::Create(own, *bytes), destroy)],
            Self::Snapshot => vec![(Call::Snapshot(own.clone()), destroy), (Call::ShowSnapshots(own.zvol()), None)],
            Self::Clone(source) if source.is_snapshot() => vec![(Call::Clone(source.clone(), own), destroy)],
            Self::Clone(source) => {
                // ZFS removes the snapshot with the clone.
                let base = name_of_base(dataset);
                let Some(snapshot) = source.snapshot(&base) else { return Vec::new() };
                let of_snapshot = Some(Call::Destroy(snapshot.clone()));
                let later = Call::DestroyLater(snapshot.clone());
                vec![
                    (Call::Snapshot(snapshot.clone()), of_snapshot),
                    (Call::Clone(snapshot, own), destroy),
                    (later, None),
                ]
            }
        }
    }
}

/// The name of the snapshot below a clone of a zvol.
fn name_of_base(clone: &Dataset) -> String {
    let name = clone.name().rsplit('/').next().unwrap_or_default();
    format!("lunar-clone-{name}")
}

/// Why nothing was made.
#[derive(Debug)]
enum MakerError {
    /// A name is too long for ZFS.
    Name(Dataset),
    /// A call failed.
    Call(CallError),
    /// The device of what was made does not appear.
    NoDevice(Dataset),
    /// A call failed, and what was made before is left: the calls that remove it.
    Left(Box<Self>, Vec<String>),
}

impl fmt::Display for MakerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "a snapshot of {} has a name that is too long for ZFS", name.name()),
            Self::Call(why) => why.fmt(f),
            Self::NoDevice(name) => write!(
                f,
                "{} was made, and {} has not appeared within {} s: look at `zfs get volmode,snapdev {}` and at udev \
                 (`/usr/lib/udev/zvol_id`)",
                name.name(),
                name.device().display(),
                DEVICE_TIME.as_secs(),
                name.name()
            ),
            Self::Left(why, left) => write!(f, "{why}; this is left, remove it: {}", left.join("; ")),
        }
    }
}

impl std::error::Error for MakerError {}

/// A store that was made. Dropping it removes it.
#[derive(Debug)]
struct Made {
    /// The calls that remove it, in the order in which it was made.
    undo: Vec<Call>,
}

/// Makes `dataset`.
///
/// # Errors
/// In words that say what to do.
pub(super) fn make(dataset: &Dataset, order: &Order) -> Result<Box<dyn MadeStore>, StoreNotMade> {
    let mut made = Made { undo: Vec::new() };
    match made.make(dataset, order) {
        Ok(()) => Ok(Box::new(made)),
        Err(why) => Err(StoreNotMade::new(made.removed_for(why))),
    }
}

impl Made {
    fn make(&mut self, dataset: &Dataset, order: &Order) -> Result<(), MakerError> {
        let calls = order.calls(dataset);
        if calls.is_empty() {
            return Err(MakerError::Name(dataset.clone()));
        }
        for (make, undo) in calls {
            call(&make, CALL_TIME).map_err(MakerError::Call)?;
            self.undo.extend(undo);
        }
        let end = Instant::now() + DEVICE_TIME;
        while !dataset.device().exists() {
            if Instant::now() >= end {
                return Err(MakerError::NoDevice(dataset.clone()));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Removes what was made; returns the commands that an operator has left to do.
    fn undo(&mut self) -> Result<(), (CallError, Vec<String>)> {
        while let Some(next) = self.undo.pop() {
            if let Err(why) = call(&next, CALL_TIME) {
                // The others cannot be removed before it.
                let rest = std::mem::take(&mut self.undo).into_iter().rev();
                let left = std::iter::once(next).chain(rest).map(|call| format!("zfs {}", call.arguments().join(" ")));
                return Err((why, left.collect()));
            }
        }
        Ok(())
    }

    /// The error of a making, after what was made is removed.
    fn removed_for(mut self, why: MakerError) -> MakerError {
        match self.undo() {
            Ok(()) => why,
            Err((_, left)) => MakerError::Left(Box::new(why), left),
        }
    }
}

impl MadeStore for Made {
    fn keep(mut self: Box<Self>) {
        self.undo.clear();
    }

    fn remove(mut self: Box<Self>) -> Result<(), StoreNotMade> {
        let left = |(why, left)| StoreNotMade::new(MakerError::Left(Box::new(MakerError::Call(why)), left));
        self.undo().map_err(left)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Err((why, left)) = self.undo() {
            log!(error, "{why}; this is left, remove it: {}", left.join("; "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::value::Textual;

    fn dataset(name: &str) -> Dataset {
        Dataset::parse(name).expect("a name")
    }

    #[test]
    fn each_call_that_makes_something_has_one_that_removes_it() {
        let words = |order: Order, name: &str| -> Vec<String> {
            let calls = order.calls(&dataset(name)).into_iter();
            let words = |call: Call| call.arguments().join(" ");
            calls.map(|(make, undo)| format!("{} | {}", words(make), undo.map(words).unwrap_or_default())).collect()
        };
        assert_eq!(words(Order::Zvol(4096), "tank/a"), ["create -s -V 4096 tank/a | destroy tank/a"]);
        assert_eq!(
            words(Order::Snapshot, "tank/a@b"),
            ["snapshot tank/a@b | destroy tank/a@b", "set snapdev=visible tank/a | "]
        );
        assert_eq!(words(Order::Clone(dataset("tank/a@b")), "tank/c"), ["clone tank/a@b tank/c | destroy tank/c"]);
        assert_eq!(
            words(Order::Clone(dataset("tank/a")), "tank/vm/c"),
            [
                "snapshot tank/a@lunar-clone-c | destroy tank/a@lunar-clone-c",
                "clone tank/a@lunar-clone-c tank/vm/c | destroy tank/vm/c",
                "destroy -d tank/a@lunar-clone-c | "
            ]
        );
        let long = dataset(&format!("tank/{}", "x".repeat(245)));
        assert_eq!(Order::Clone(long).calls(&dataset("tank/c")), []);
    }
}

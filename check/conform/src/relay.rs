//! A link between two Unix datagram sockets that carries one Ethernet frame per datagram, and loses, duplicates and
//! delays frames.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

/// The longest frame.
pub(crate) const FRAME_MAX: usize = 16 << 10;
/// Time between two checks whether a relay has ended.
pub(crate) const LOOK: Duration = Duration::from_millis(200);

/// The odds of faults, in parts of a thousand frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RelayFaults {
    pub loss: u64,
    pub duplicates: u64,
    /// Frames that are overtaken by the next one.
    pub late: u64,
}

/// A relay, until it is dropped.
pub(crate) struct Relay {
    ended: Arc<AtomicBool>,
    /// Frames that were lost, duplicated or delayed.
    faults: Arc<AtomicU64>,
    odds: Arc<Mutex<RelayFaults>>,
    threads: Vec<JoinHandle<()>>,
}

/// One end of the relay: its own socket, and that of the station at this end.
pub(crate) struct RelayEnd {
    pub own: PathBuf,
    pub station: PathBuf,
}

impl Relay {
    /// Starts a relay with two ends.
    pub(crate) fn start(ends: [RelayEnd; 2], faults: RelayFaults, seed: u64) -> Result<Self> {
        let [one, other] = ends.each_ref().map(|end| socket(&end.own));
        let (one, other) = (Arc::new(one?), Arc::new(other?));
        let [near, far] = ends.map(|end| end.station);
        let (ended, count) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let odds = Arc::new(Mutex::new(faults));
        let ways = [(one.clone(), other.clone(), far, seed | 1), (other, one, near, !seed | 1)];
        let threads = ways.map(|(from, through, to, random)| {
            let (ended, count, odds) = (ended.clone(), count.clone(), odds.clone());
            std::thread::spawn(move || carry(&from, (&through, &to), &odds, random, (&ended, &count)))
        });
        Ok(Self { ended, faults: count, odds, threads: threads.into() })
    }

    /// Changes the odds of faults.
    pub(crate) fn set(&self, faults: RelayFaults) {
        *lock(&self.odds) = faults;
    }

    /// The number of frames that were lost, duplicated or delayed.
    pub(crate) fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed why.
            let _ = thread.join();
        }
    }
}

fn lock(odds: &Mutex<RelayFaults>) -> MutexGuard<'_, RelayFaults> {
    // Every change is one assignment.
    odds.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn socket(path: &Path) -> Result<UnixDatagram> {
    let _ = std::fs::remove_file(path);
    let socket = UnixDatagram::bind(path).with_context(|| format!("{}", path.display()))?;
    socket.set_read_timeout(Some(LOOK))?;
    Ok(socket)
}

/// Carries frames one way. The random numbers are those of xorshift, which is enough for odds.
fn carry(
    from: &UnixDatagram,
    (through, to): (&UnixDatagram, &Path),
    odds: &Mutex<RelayFaults>,
    mut random: u64,
    (ended, count): (&AtomicBool, &AtomicU64),
) {
    let mut frame = vec![0; FRAME_MAX];
    let mut late: Option<Vec<u8>> = None;
    // The station may not be there yet, or its queue may be full: then the frame is lost.
    let send = |frame: &[u8]| drop(through.send_to(frame, to));
    while !ended.load(Ordering::Relaxed) {
        let Ok(len) = from.recv(&mut frame) else {
            late.take().iter().for_each(|late| send(late));
            continue;
        };
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let (draw, odds) = (random % 1000, *lock(odds));
        let is_fault = draw < odds.loss + odds.duplicates + odds.late;
        count.fetch_add(u64::from(is_fault), Ordering::Relaxed);
        if draw >= odds.loss {
            let is_late = is_fault && draw >= odds.loss + odds.duplicates;
            if is_late && late.is_none() {
                late = Some(frame[..len].to_vec());
                continue;
            }
            send(&frame[..len]);
            if is_fault && !is_late {
                send(&frame[..len]);
            }
        }
        late.take().iter().for_each(|late| send(late));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_carried_both_ways_with_faults() {
        let folder = std::env::temp_dir().join(format!("lunar-relay-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = |name: &str| folder.join(name);
        let stations = ["a", "b"].map(|name| socket(&path(name)).expect("a socket"));
        let ends = ["a", "b"].map(|name| RelayEnd { own: path(&format!("{name}-relay")), station: path(name) });
        let odds = RelayFaults { loss: 100, duplicates: 100, late: 100 };
        let relay = Relay::start(ends, odds, 7).expect("it starts");
        let (mut received, mut frame) = (Vec::new(), [0; 8]);
        for number in 0..500_u32 {
            stations[0].send_to(&number.to_be_bytes(), path("a-relay")).expect("sent");
            while let Ok(4) = stations[1].recv(&mut frame) {
                received.push(u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]));
                if received.len().is_multiple_of(2) {
                    break;
                }
            }
        }
        stations[1].send_to(b"back", path("b-relay")).expect("sent");
        while let Ok(count) = stations[1].recv(&mut frame) {
            received.push(u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]));
            assert_eq!(count, 4);
        }
        assert!(relay.faults() > 50, "{}", relay.faults());
        assert!((300..600).contains(&received.len()), "{}", received.len());
        assert!(!received.is_sorted(), "some frames are overtaken");
        drop(relay);
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}

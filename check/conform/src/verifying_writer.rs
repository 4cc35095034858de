//! A session that follows the protocol while hostile clients run: it writes, reads back, and verifies in the end that
//! no acknowledged data is lost.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::session::{Login, Session};
use crate::test_data::{Random, pattern};

/// Bytes of one write: more than the smallest first burst, so that it needs R2Ts.
const PIECE: usize = 96 << 10;
/// The region of the volume that only this session writes, from the first block on.
pub(crate) const REGION: u64 = 16 << 20;
const PIECES: u64 = REGION / PIECE as u64;
/// How long the session may make no progress.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Writes and reads that succeeded.
    done: AtomicU64,
    error: Mutex<Option<String>>,
}

/// The session and its thread.
pub(crate) struct VerifyingWriter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Vec<u64>>>,
    portal: SocketAddr,
    name: String,
    lun: u16,
}

impl VerifyingWriter {
    pub(crate) fn start(portal: SocketAddr, name: &str, lun: u16, seed: u64) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut session = Session::ready(portal, &Login::to(name, "writer"), lun)?;
        let (_, block) = session.capacity()?;
        let thread_state = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let mut generations = vec![0; usize::try_from(PIECES).unwrap_or_default()];
            if let Err(error) = work(&mut session, block, &thread_state, &mut generations, seed) {
                *thread_state.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{error:#}"));
            }
            generations
        });
        Ok(Self { shared, thread: Some(thread), portal, name: name.to_owned(), lun })
    }

    /// An error unless the session makes progress from now on.
    pub(crate) fn expect_progress(&self) -> Result<()> {
        let before = self.shared.done.load(Ordering::Relaxed);
        let end = Instant::now() + ANSWER_LIMIT;
        while self.shared.done.load(Ordering::Relaxed) < before + 4 {
            if let Some(error) = self.shared.error.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
                bail!("the verifying session failed: {error}");
            }
            ensure!(Instant::now() < end, "the verifying session made no progress for {} s", ANSWER_LIMIT.as_secs());
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Ends the session, and verifies all acknowledged data through another one.
    pub(crate) fn finish(mut self) -> Result<u64> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("the thread is joined once")?;
        let Ok(generations) = thread.join() else { bail!("the writer panicked") };
        if let Some(error) = self.shared.error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            bail!("the verifying session failed: {error}");
        }
        let mut session = Session::ready(self.portal, &Login::to(&self.name, "writer"), self.lun)?;
        let (_, block) = session.capacity()?;
        for (place, generation) in (0..).zip(generations).filter(|(_, generation)| *generation > 0) {
            read_back(&mut session, block, place, generation)?;
        }
        session.logout()?;
        Ok(self.shared.done.load(Ordering::Relaxed))
    }
}

impl Drop for VerifyingWriter {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

fn work(session: &mut Session, block: usize, shared: &Shared, generations: &mut [u64], seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    while !shared.stop.load(Ordering::Relaxed) {
        let place = random.below(PIECES);
        let generation = &mut generations[usize::try_from(place)?];
        let data = pattern(place, *generation + 1, PIECE);
        session.write(place * (PIECE / block) as u64, data, block).context("write")?;
        *generation += 1;
        let generation = *generation;
        read_back(session, block, place, generation)?;
        shared.done.fetch_add(1, Ordering::Relaxed);
        // The session verifies; it must not load the machine.
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn read_back(session: &mut Session, block: usize, place: u64, generation: u64) -> Result<()> {
    let blocks = u32::try_from(PIECE / block)?;
    let data = session.read(place * u64::from(blocks), blocks, block).context("read")?;
    if data != pattern(place, generation, PIECE) {
        let at = data.iter().zip(pattern(place, generation, PIECE)).position(|(found, wanted)| *found != wanted);
        bail!("acknowledged data is lost: place {place}, generation {generation}, first difference at {at:?}");
    }
    Ok(())
}

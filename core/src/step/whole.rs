//! A rewrite of the whole medium, for FORMAT UNIT, SANITIZE, Format NVM and Sanitize. No command of any command set
//! uses the medium meanwhile.

use super::blocks::{fill, flush, zero};
use super::kinds::{Failure, SlotContext};
use crate::io::Fault;
use crate::mem::Sg;
use crate::port::Transfer;
use crate::unit::{Admitted, Unit};
use std::future::poll_fn;
use std::task::Poll;

/// Bytes written between two reports of progress, at which other tasks run.
const CHUNK_BYTES: u64 = 8 << 20;

/// The transfer of a rewrite, which has no peer: nothing is sent or received, and nothing aborts it.
struct NoTransfer;

impl Transfer for NoTransfer {
    async fn room(&self) -> Result<(), Fault> {
        Ok(())
    }

    async fn pull(&self, _offset: usize, _len: usize) -> Result<Sg, Fault> {
        Err(Fault::Protocol)
    }

    fn push(&self, _offset: usize, _data: Sg) -> Result<(), Fault> {
        Err(Fault::Protocol)
    }

    fn aborted(&self) -> bool {
        false
    }
}

/// Writes `pattern`, which is one block, to every block, and flushes. An empty pattern stands for zeroes, whose space
/// may be given back if `unmap`. The protection store is not written: [`blank`](super::blank) does that. After each
/// part `progress` is called with the bytes written and awaited, so that other tasks run.
///
/// # Errors
/// [`Failure`]. Some parts may have been written.
pub async fn rewrite_medium(
    unit: &Unit,
    pattern: &[u8],
    unmap: bool,
    slot: &mut SlotContext,
    mut progress: impl AsyncFnMut(u64),
) -> Result<(), Failure> {
    let unit = Admitted::to(unit);
    let size = unit.geometry.bytes();
    let mut offset = 0;
    while offset < size {
        let len = CHUNK_BYTES.min(size - offset);
        match pattern {
            [] => zero(unit, offset, len, unmap, &NoTransfer, slot).await?,
            block => fill(unit, offset, len, block, &NoTransfer, slot).await?,
        }
        offset += len;
        progress(offset).await;
    }
    flush(unit, slot).await
}

/// Lets the other tasks of the core run once.
pub async fn yield_once() {
    let mut waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

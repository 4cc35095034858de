//! A whole medium written anew, while no command of any command set touches it: what FORMAT UNIT, SANITIZE and
//! Format NVM are made of.

use super::{Failure, Tools, fill, flush, zero};
use crate::io::Fault;
use crate::mem::Sg;
use crate::port::Transfer;
use crate::unit::{Admitted, Unit};
use std::future::poll_fn;
use std::task::Poll;

/// Bytes written between two looks at who waits: progress is told and other tasks have their turn.
const CHUNK_BYTES: u64 = 8 << 20;

/// Nobody sends or gets data, and nobody aborts: a medium that is written anew by half helps nobody.
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

/// Writes `pattern`, one block (empty: zeroes, for which the space may be given back if `unmap`), over and over, and
/// brings it to the medium. Only the blocks, whatever protects them: see [`super::blank`]. `told` hears after each part
/// how many bytes are written, and is waited for: that is when others have their [`turn`].
///
/// # Errors
/// [`Failure`]; parts are written then.
pub async fn rewrite(
    unit: &Unit,
    pattern: &[u8],
    unmap: bool,
    tools: &mut Tools,
    mut told: impl AsyncFnMut(u64),
) -> Result<(), Failure> {
    let unit = Admitted::to(unit);
    let size = unit.geometry.bytes();
    let mut offset = 0;
    while offset < size {
        let len = CHUNK_BYTES.min(size - offset);
        match pattern {
            [] => zero(unit, offset, len, unmap, &NoTransfer, tools).await?,
            block => fill(unit, offset, len, block, &NoTransfer, tools).await?,
        }
        offset += len;
        told(offset).await;
    }
    flush(unit, tools).await
}

/// Lets others have their turn.
pub async fn turn() {
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

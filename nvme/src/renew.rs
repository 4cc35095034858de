//! Format NVM: a whole namespace is written anew, while no command of any command set touches its medium.

use crate::command::{Refusal, Status};
use crate::fault;
use crate::namespace::Namespace;
use crate::subsystem::{Renewing, Subsystem};
use lunar_core::io::Fault;
use lunar_core::mem::Sg;
use lunar_core::port::Transfer;
use lunar_core::range::Span;
use lunar_core::step::{Failure, Step, Tail, Tools, carry_out};
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

impl Subsystem {
    /// Writes zeroes over a namespace, and brings them to the medium. Returns when it is done.
    ///
    /// # Errors
    /// How the command ends that could not do it, or not all of it.
    pub(crate) async fn format(&self, namespace: &Namespace, tools: &mut Tools) -> Result<(), Refusal> {
        let unit = &namespace.unit;
        let Some(work) = unit.medium.begin() else { return Err(Status::FORMATTING.into()) };
        self.everywhere.renewing(unit.id, Renewing::Begun).await;
        let size = unit.geometry.bytes();
        // Nobody is admitted any more; who was before is waited for.
        drop(unit.exclusive.hold(unit.id, Span { start: 0, end: size }).await);
        let mut result = Ok(());
        let mut offset = 0;
        while offset < size && result.is_ok() {
            let len = CHUNK_BYTES.min(size - offset);
            let fill = Step::Fill { offset, len, pattern: Vec::new(), unmap: namespace.deallocates() };
            result = carry_out(unit, fill, &NoTransfer, tools, &mut Tail::default()).await;
            offset += len;
            work.set_progress(offset, size);
            turn().await;
        }
        if result.is_ok() {
            result = carry_out(unit, Step::Flush, &NoTransfer, tools, &mut Tail::default()).await;
        }
        let state = if result.is_ok() { Renewing::Done } else { Renewing::Failed };
        self.everywhere.renewing(unit.id, state).await;
        drop(work);
        result.map_err(|failure: Failure| fault::status(failure, true).into())
    }
}

/// Lets others have their turn.
async fn turn() {
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

//! Format NVM: a whole namespace is written anew, while no command of any command set touches its medium.

use crate::command::{Refusal, Status};
use crate::fault;
use crate::namespace::Namespace;
use crate::subsystem::{Renewing, Subsystem};
use lunar_core::io::Fault;
use lunar_core::medium::{Content, Work};
use lunar_core::mem::Sg;
use lunar_core::port::Transfer;
use lunar_core::range::Span;
use lunar_core::step::{Failure, Step, Tail, Tools, blank, carry_out_plain};
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
        // Before anything is gone.
        self.everywhere.keep(unit.id, Renewing::Begun).await.map_err(fault::transfer)?;
        unit.medium.set_content(Content::Unformatted);
        self.everywhere.renewing(unit.id, Renewing::Begun).await;
        // Nobody is admitted any more; who was before is waited for.
        drop(unit.exclusive.hold(unit.id, Span { start: 0, end: unit.geometry.bytes() }).await);
        let mut result = rewrite(namespace, &work, tools).await;
        // A work that nobody knows to be done would have to be done again.
        if result.is_ok() {
            let kept = self.everywhere.keep(unit.id, Renewing::Done).await;
            result = kept.map_err(|fault| Failure::Fault { fault, at: 0 });
        }
        let state = if result.is_ok() { Renewing::Done } else { Renewing::Failed };
        match state {
            Renewing::Done => unit.medium.set_content(Content::Whole),
            // Where that cannot be kept either, it counts as interrupted.
            _ => drop(self.everywhere.keep(unit.id, state).await),
        }
        self.everywhere.renewing(unit.id, state).await;
        drop(work);
        result.map_err(|failure| fault::status(failure, true).into())
    }
}

/// Zeroes, which no protection information protects, up to the medium. What is kept beside goes first: whenever this
/// ends, no block that is left fails a check.
async fn rewrite(namespace: &Namespace, work: &Work, tools: &mut Tools) -> Result<(), Failure> {
    let unit = &namespace.unit;
    let size = unit.geometry.bytes();
    blank(unit, tools).await?;
    let mut offset = 0;
    while offset < size {
        let len = CHUNK_BYTES.min(size - offset);
        let fill = Step::Fill { offset, len, pattern: Vec::new(), unmap: namespace.deallocates() };
        carry_out_plain(unit, fill, &NoTransfer, tools, &mut Tail::default()).await?;
        offset += len;
        work.set_progress(offset, size);
        turn().await;
    }
    carry_out_plain(unit, Step::Flush, &NoTransfer, tools, &mut Tail::default()).await
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

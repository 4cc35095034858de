//! A stream whose writes have a deadline: a peer that does not read its answer loses its connection, and with it the
//! place that the connection occupies.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Bytes that a peer takes at least until a deadline: so a peer that reads byte by byte does not hold a connection. An
/// answer with less ends before the deadline.
const BYTES_MIN: usize = 16 << 10;

/// A stream with a deadline for writes.
pub(crate) struct WriteDeadline<S> {
    stream: S,
    time: Duration,
    deadline: Pin<Box<Sleep>>,
    /// While the peer does not receive: the bytes that it has received since the deadline was set.
    taken: Option<usize>,
}

impl<S> WriteDeadline<S> {
    /// Ends writes with `TimedOut` when the peer takes too little within `time`.
    pub(crate) fn new(stream: S, time: Duration) -> Self {
        Self { stream, time, deadline: Box::pin(sleep(time)), taken: None }
    }

    /// The outcome of an attempt to send. `taken` are the bytes that the peer took, and whether nothing is left.
    fn after<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
        taken: impl Fn(&T) -> (usize, bool),
    ) -> Poll<io::Result<T>> {
        match &outcome {
            Poll::Ready(Ok(value)) => {
                let (bytes, is_all) = taken(value);
                self.taken = match self.taken {
                    Some(before) if !is_all && before + bytes < BYTES_MIN => Some(before + bytes),
                    _ => None,
                };
                outcome
            }
            Poll::Ready(Err(_)) => outcome,
            Poll::Pending => {
                if self.taken.is_none() {
                    self.taken = Some(0);
                    let end = Instant::now() + self.time;
                    self.deadline.as_mut().reset(end);
                }
                ready!(self.deadline.as_mut().poll(cx));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteDeadline<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteDeadline<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.after(cx, outcome, |written| (*written, *written == bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        // The flushed bytes may be a part of an answer, so this ends no deadline.
        self.after(cx, outcome, |()| (0, false))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.after(cx, outcome, |()| (0, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    const TIME: Duration = Duration::from_millis(200);

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(test);
    }

    #[test]
    fn a_peer_that_does_not_read_its_answer_loses_the_connection() {
        run(async {
            let (own, _peer) = duplex(64);
            let begun = Instant::now();
            let why = WriteDeadline::new(own, TIME).write_all(&[7; 1000]).await.expect_err("nobody reads");
            assert_eq!(why.kind(), io::ErrorKind::TimedOut);
            assert!(begun.elapsed() >= TIME);
        });
    }

    #[test]
    fn a_peer_that_reads_byte_by_byte_loses_the_connection() {
        run(async {
            let (own, mut peer) = duplex(64);
            let slow = tokio::spawn(async move {
                while peer.read_u8().await.is_ok() {
                    sleep(TIME / 20).await;
                }
            });
            let _end = Ends(slow);
            let why = WriteDeadline::new(own, TIME).write_all(&[7; 10_000]).await.expect_err("it reads too slowly");
            assert_eq!(why.kind(), io::ErrorKind::TimedOut);
        });
    }

    struct Ends(tokio::task::JoinHandle<()>);

    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.abort();
        }
    }

    #[test]
    fn a_peer_that_reads_and_a_pause_between_answers_are_no_matter() {
        run(async {
            let (own, mut peer) = duplex(64);
            let reader = tokio::spawn(async move {
                let mut all = Vec::new();
                let _ = peer.read_to_end(&mut all).await;
                all.len()
            });
            let mut stream = WriteDeadline::new(own, TIME);
            for _ in 0..2 {
                stream.write_all(&[7; 100_000]).await.expect("it is read");
                stream.flush().await.expect("it is read");
                sleep(TIME * 2).await;
            }
            stream.shutdown().await.expect("it is read");
            drop(stream);
            assert_eq!(reader.await.expect("it ends"), 200_000);
        });
    }
}

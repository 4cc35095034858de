//! Exchanges the bytes of a client over the simulated network, for any protocol.

use lunar_core::outgoing::Outgoing;
use lunar_core::time::Instant;
use lunar_reactor::Reactor;
use lunar_reactor::sim::Peer;
use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::pin;
use std::task::Poll;

/// The reason for which a client wakes up.
#[derive(Debug)]
pub enum Woken {
    /// Bytes were received.
    Bytes(Vec<u8>),
    /// The connection ended.
    Ended,
    /// The time has come.
    Time,
}

/// Appends some of the bytes to send to `out`. Returns their number.
pub fn take(output: &Outgoing, out: &mut Vec<u8>) -> usize {
    let mut slices = [IoSlice::new(&[]); 16];
    let filled = output.slices(&mut slices);
    let before = out.len();
    slices[..filled].iter().for_each(|slice| out.extend_from_slice(slice));
    out.len() - before
}

/// Sends and receives, each if it is allowed to, until at most `most` bytes were received or the time has come.
pub async fn exchange(
    core: &Reactor,
    peer: &Peer,
    out: &mut Vec<u8>,
    until: Instant,
    (reads, sends): (bool, bool),
    most: usize,
) -> Woken {
    let mut timer = pin!(core.sleep_until(until));
    poll_fn(|cx| {
        while sends && !out.is_empty() {
            match peer.poll_send(cx, out) {
                Poll::Ready(Ok(count)) => drop(out.drain(..count)),
                // Bytes that were received before the end of the connection are delivered first.
                Poll::Ready(Err(_)) if !reads => return Poll::Ready(Woken::Ended),
                Poll::Ready(Err(_)) | Poll::Pending => break,
            }
        }
        if reads && let Poll::Ready(received) = peer.poll_receive(cx, most) {
            return Poll::Ready(match received {
                Ok(bytes) if !bytes.is_empty() => Woken::Bytes(bytes),
                _ => Woken::Ended,
            });
        }
        timer.as_mut().poll(cx).map(|()| Woken::Time)
    })
    .await
}

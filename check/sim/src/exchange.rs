//! A client's bytes over the simulated network, whatever it speaks.

use lunar_core::outgoing::Outgoing;
use lunar_core::time::Instant;
use lunar_reactor::Reactor;
use lunar_reactor::sim::Peer;
use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::pin;
use std::task::Poll;

/// What woke a client.
#[derive(Debug)]
pub enum Woken {
    /// This came.
    Bytes(Vec<u8>),
    /// The connection ended.
    Ended,
    /// It is time.
    Time,
}

/// Takes some of what waits to be sent, behind what is in `out`; tells how many bytes.
pub fn take(output: &Outgoing, out: &mut Vec<u8>) -> usize {
    let mut slices = [IoSlice::new(&[]); 16];
    let filled = output.slices(&mut slices);
    let before = out.len();
    slices[..filled].iter().for_each(|slice| out.extend_from_slice(slice));
    out.len() - before
}

/// Sends, if it may, and receives, if it may, at most `most` bytes, until something came or it is time.
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
                // What was received before the end still counts.
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

//! Sending a batch through a socket that does not block.

use super::batch::{BATCH_MAX, Counters, Datagram, SendBatch};
use super::messages::Messages;
use libc::{sockaddr_storage, socklen_t};

/// A socket that sends datagrams.
pub(super) trait Sender {
    /// Writes the address of a datagram's receiver; returns its length, 0 for none, and `None` if the socket cannot
    /// reach such an address.
    fn address(&self, datagram: &Datagram, into: &mut sockaddr_storage) -> Option<socklen_t>;

    /// Sends the first `number` datagrams of `messages` without waiting; returns how many. The error is the errno, and
    /// concerns the first.
    fn send(&mut self, messages: &mut Messages, number: usize) -> Result<usize, i32>;
}

/// Sends as many datagrams as there is room for: `Ok` when none is left. The error is the errno: EAGAIN when there is
/// no room, else one that concerns the socket. A datagram that cannot be sent is dropped and counted, as a network
/// would drop it.
pub(super) fn send(
    sender: &mut impl Sender,
    batch: &mut SendBatch,
    messages: &mut Messages,
    counters: &mut Counters,
) -> Result<(), i32> {
    while !batch.is_empty() {
        messages.begin();
        let mut left = batch.left();
        let mut fits = |number: &usize| {
            let message = Datagram::message(left);
            left = &left[message.len()..];
            let Some(first) = message.first() else { return false };
            messages.add(*number, message, |into| sender.address(first, into)).is_ok()
        };
        let number = (0..BATCH_MAX).take_while(|number| fits(number)).count();
        let result = if number == 0 { Err(libc::EDESTADDRREQ) } else { sender.send(messages, number) };
        let datagrams = |messages| {
            let left = batch.left();
            (0..messages).fold(0, |begin, _| begin + Datagram::message(&left[begin..]).len())
        };
        match result {
            Ok(sent) => {
                let sent = datagrams(sent);
                batch.advance(sent);
                counters.sent += sent as u64;
            }
            Err(errno) if is_of_socket(errno) => return Err(errno),
            Err(_) => {
                let dropped = datagrams(1);
                batch.drop_first(dropped);
                counters.send_drops += dropped as u64;
            }
        }
    }
    Ok(())
}

/// Whether an error concerns the socket, and not the datagram that was to be sent or its receiver.
pub(super) fn is_of_socket(errno: i32) -> bool {
    matches!(errno, libc::EAGAIN | libc::EBADF | libc::ENOTSOCK | libc::ENXIO | libc::ENODEV | libc::EBADFD)
}

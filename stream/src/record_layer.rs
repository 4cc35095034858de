//! The layer between the bytes of a session and those of its socket: none, or the records of TLS. A value without I/O.

use lunar_core::mem::{Arena, Sg, Slice};

/// Encrypts and decrypts the bytes of a connection. The type is known at compile time, so [`Plain`] costs nothing.
pub trait RecordLayer: 'static {
    /// Whether bytes pass unchanged: payload then is received directly to its place.
    fn is_plain(&self) -> bool;

    /// Takes bytes of the socket and calls `hand_on` with the bytes of the session that they contain, if any yet.
    /// Returns whether the connection may go on.
    fn open(&self, bytes: Slice, arena: &Arena, hand_on: impl FnMut(Slice)) -> bool;

    /// The bytes to send for `data`, which may be none, and `data` may be empty; `None`: the connection has to end.
    fn seal(&self, data: Sg, arena: &Arena) -> Option<Sg>;

    /// Bytes of the record layer that wait to be sent: [`RecordLayer::seal`] puts them before the next ones.
    fn queued_bytes(&self) -> usize;
}

/// No encryption.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl RecordLayer for Plain {
    #[inline]
    fn is_plain(&self) -> bool {
        true
    }

    #[inline]
    fn open(&self, bytes: Slice, _arena: &Arena, mut hand_on: impl FnMut(Slice)) -> bool {
        hand_on(bytes);
        true
    }

    #[inline]
    fn seal(&self, data: Sg, _arena: &Arena) -> Option<Sg> {
        Some(data)
    }

    #[inline]
    fn queued_bytes(&self) -> usize {
        0
    }
}

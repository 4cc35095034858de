//! What lies between the bytes of a session and those on the wire: nothing, or a secure record_layer. A value without I/O.

use lunar_core::mem::{Arena, Sg, Slice};

/// What becomes of a connection's bytes on their data_path. Which one it is, is known at compile time: nothing costs nothing.
pub trait RecordLayer: 'static {
    /// Whether bytes go as they are: then payload is received straight to its place.
    fn is_plain(&self) -> bool;

    /// Takes what came from the wire, and hands on what it means to the session, if anything yet. Returns whether the
    /// connection may go on.
    fn open(&self, bytes: Slice, arena: &Arena, hand_on: impl FnMut(Slice)) -> bool;

    /// What goes to the wire for what the session sends, which may be nothing; `None`: the connection cannot go on.
    fn seal(&self, data: Sg, arena: &Arena) -> Option<Sg>;

    /// Bytes of its own that wait to be sent: [`RecordLayer::seal`] puts them before the next.
    fn queued_bytes(&self) -> usize;
}

/// Nothing lies between.
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

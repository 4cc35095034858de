//! Entry points of the fuzz target.

use crate::wire::{Login, Unit};

/// Takes bytes apart as private data of a connection, and as an information unit.
pub fn formats(bytes: &[u8]) {
    let _ = Login::parse(bytes);
    if let Some(Unit::Command(command)) = Unit::parse(bytes, Some(68)) {
        assert_eq!(command.immediate.is_some(), bytes[5] == 0x30, "data is in the command if its format says so");
    }
    if let Some(Unit::Command(command)) = Unit::parse(bytes, None)
        && let Ok(Some(buffer)) = command.buffer
        && buffer.table().is_none()
    {
        let total: usize = buffer.range(0, buffer.len as usize, usize::MAX).map(|(_, len)| len).sum();
        assert_eq!(total, buffer.len as usize, "a buffer has all of its bytes");
    }
}

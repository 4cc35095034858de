//! The buffers of READ BUFFER and WRITE BUFFER. Each I_T_L nexus has its own.

use std::cell::RefCell;

/// Bytes of the data buffer and of the echo buffer: a page each, for every I_T_L nexus may use both.
pub const BUFFER_BYTES: usize = 4096;

/// The buffers of one I_T_L nexus. Memory is allocated at the first write.
#[derive(Debug, Default)]
pub struct Buffers {
    data: RefCell<Vec<u8>>,
    echo: RefCell<Vec<u8>>,
}

impl Buffers {
    /// Writes to the data buffer. The command has checked that the range lies within [`BUFFER_BYTES`].
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let mut data = self.data.borrow_mut();
        data.resize(BUFFER_BYTES, 0);
        if let Some(to) = data.get_mut(offset..offset + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }

    /// Reads the data buffer from `offset` to its end. Bytes that were never written are zero.
    pub fn read(&self, offset: usize, then: impl FnOnce(&[u8])) {
        const FRESH: [u8; BUFFER_BYTES] = [0; BUFFER_BYTES];
        let data = self.data.borrow();
        let all = if data.is_empty() { &FRESH } else { &data[..] };
        then(all.get(offset..).unwrap_or_default());
    }

    /// Replaces the content of the echo buffer.
    pub fn set_echo(&self, bytes: &[u8]) {
        *self.echo.borrow_mut() = bytes.to_vec();
    }

    /// Reads the echo buffer: the bytes of the latest write; empty before the first.
    pub fn echo(&self, then: impl FnOnce(&[u8])) {
        then(&self.echo.borrow());
    }
}

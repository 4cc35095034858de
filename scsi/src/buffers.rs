//! What READ BUFFER and WRITE BUFFER read and write: memory of one I_T_L nexus, that no other sees.

use std::cell::RefCell;

/// Bytes of the data buffer and of the echo buffer, each: a page, for every nexus may have both.
pub const BUFFER_BYTES: usize = 4096;

/// The buffers of one I_T_L nexus. They take memory once they are written to.
#[derive(Debug, Default)]
pub struct Buffers {
    data: RefCell<Vec<u8>>,
    echo: RefCell<Vec<u8>>,
}

impl Buffers {
    /// Writes to the data buffer; all of it must lie within [`BUFFER_BYTES`], which the command checks.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let mut data = self.data.borrow_mut();
        data.resize(BUFFER_BYTES, 0);
        if let Some(to) = data.get_mut(offset..offset + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }

    /// Reads the data buffer from `offset` to its end; zeroes where nothing was written.
    pub fn read(&self, offset: usize, then: impl FnOnce(&[u8])) {
        const FRESH: [u8; BUFFER_BYTES] = [0; BUFFER_BYTES];
        let data = self.data.borrow();
        let all = if data.is_empty() { &FRESH } else { &data[..] };
        then(all.get(offset..).unwrap_or_default());
    }

    /// Replaces what is in the echo buffer.
    pub fn set_echo(&self, bytes: &[u8]) {
        *self.echo.borrow_mut() = bytes.to_vec();
    }

    /// Reads the echo buffer: what was written to it last, and no more. Empty before.
    pub fn echo(&self, then: impl FnOnce(&[u8])) {
        then(&self.echo.borrow());
    }
}

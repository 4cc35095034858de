//! The PDUs that wait to be sent, with padding and digests.

use lunar_core::outgoing::{Data, Outgoing};
use lunar_iscsi::wire::{Bhs, Digest, digest, padded};
use zerocopy::IntoBytes;

/// The queue of PDUs to send.
#[derive(Debug, Default)]
pub(crate) struct Output {
    queue: Outgoing,
    /// Whether headers are followed by a digest.
    pub(crate) header_digest: bool,
    /// Whether data segments are followed by a digest.
    pub(crate) data_digest: bool,
}

impl Output {
    /// The bytes to send.
    pub(crate) fn queue(&self) -> &Outgoing {
        &self.queue
    }

    /// Removes the first `count` bytes, which were sent.
    pub(crate) fn sent(&mut self, count: usize) {
        self.queue.sent(count);
    }

    /// Appends a header with its additional header segments and the header digest. The caller sets the lengths in it.
    pub(crate) fn header(&mut self, header: &Bhs, ahs: &[u8]) {
        let has_digest = self.header_digest;
        self.queue.append(|buffer| {
            let start = buffer.len();
            buffer.extend_from_slice(header.as_bytes());
            buffer.extend_from_slice(ahs);
            if has_digest {
                let digest = digest(&buffer[start..]);
                buffer.extend_from_slice(&digest);
            }
        });
    }

    /// Appends a data segment with padding and data digest.
    pub(crate) fn segment(&mut self, data: &Data) {
        if !data.is_empty() {
            self.queue.data(data);
            self.trailer(data.bytes());
        }
    }

    /// Appends a short data segment; copies it.
    pub(crate) fn text(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.queue.append(|buffer| buffer.extend_from_slice(bytes));
            self.trailer(bytes);
        }
    }

    fn trailer(&mut self, bytes: &[u8]) {
        let (pad, has_digest) = (padded(bytes.len()) - bytes.len(), self.data_digest);
        self.queue.append(|buffer| {
            buffer.extend_from_slice(&[0; 3][..pad]);
            if has_digest {
                let digest = Digest::new().update(bytes).pad(bytes.len()).bytes();
                buffer.extend_from_slice(&digest);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_iscsi::wire::{DataOut, Pdu};

    #[test]
    fn digests_cover_header_and_padded_data() {
        let mut output = Output { header_digest: true, data_digest: true, ..Output::default() };
        output.header(DataOut::blank().bhs(), &[]);
        output.segment(&Data::new([1u8, 2, 3, 4, 5].into()));
        let bytes = output.queue().to_vec();
        assert_eq!(bytes.len(), 48 + 4 + 8 + 4);
        assert_eq!(bytes[48..52], digest(&bytes[..48]));
        assert_eq!(bytes[52..60], [1, 2, 3, 4, 5, 0, 0, 0]);
        assert_eq!(bytes[60..], digest(&bytes[52..60]));
    }
}

//! The PDUs that wait to be sent, with padding and digests.

use lunar_core::outgoing::{Data, Outgoing};
use lunar_core::wire::round_up;
use lunar_nvme_tcp::wire::{Common, DATA_DIGEST, DIGEST_LEN, HEADER_DIGEST, Pdu, digest};
use zerocopy::FromBytes;

/// The queue of PDUs to send.
#[derive(Debug)]
pub(crate) struct Output {
    /// The bytes to send.
    pub(crate) queue: Outgoing,
    /// Whether headers are followed by a digest.
    pub(crate) header_digest: bool,
    /// Whether data is followed by a digest.
    pub(crate) data_digest: bool,
    /// The alignment of data within a PDU, in bytes (CPDA).
    pub(crate) alignment: usize,
}

impl Default for Output {
    fn default() -> Self {
        Self { queue: Outgoing::default(), header_digest: false, data_digest: false, alignment: 4 }
    }
}

impl Output {
    /// Appends a PDU with its data.
    pub(crate) fn pdu<P: Pdu>(&mut self, mut pdu: P, data: Option<&Data>) {
        let data = data.filter(|data| !data.is_empty());
        let head = size_of::<P>() + if self.header_digest { DIGEST_LEN } else { 0 };
        let start = if data.is_some() { round_up(head, self.alignment) } else { head };
        let trailer = if data.is_some() && self.data_digest { DIGEST_LEN } else { 0 };
        if let Ok((common, _)) = Common::mut_from_prefix(pdu.as_mut_bytes()) {
            let len = start + data.map_or(0, Data::len) + trailer;
            // The data offset is at most 128 + 4, and one PDU is far shorter than 4 GiB.
            common.data_offset = if data.is_some() { start as u8 } else { 0 };
            common.len = (len as u32).into();
            common.flags |= if self.header_digest { HEADER_DIGEST } else { 0 };
            common.flags |= if trailer > 0 { DATA_DIGEST } else { 0 };
        }
        let has_digest = self.header_digest;
        self.queue.append(|buffer| {
            let from = buffer.len();
            buffer.extend_from_slice(pdu.as_bytes());
            if has_digest {
                buffer.extend_from_slice(&digest(pdu.as_bytes()));
            }
            buffer.resize(from + start, 0);
        });
        let Some(data) = data else { return };
        self.queue.data(data);
        if trailer > 0 {
            self.queue.append(|buffer| buffer.extend_from_slice(&digest(data.bytes())));
        }
    }

    /// Appends a PDU that is already encoded.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.queue.append(|buffer| buffer.extend_from_slice(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_nvme_tcp::wire::{CapsuleCmd, H2cData};

    #[test]
    fn lengths_digests_and_padding() {
        let mut output = Output { header_digest: true, data_digest: true, alignment: 16, ..Output::default() };
        output.pdu(H2cData::blank(0), Some(&Data::new([1u8, 2, 3, 4, 5].into())));
        output.pdu(CapsuleCmd::blank(0), None);
        let bytes = output.queue.to_vec();
        assert_eq!((bytes.len(), &bytes[..8]), (41 + 76, &[6, 3, 24, 32, 41, 0, 0, 0][..]));
        assert_eq!((&bytes[24..28], &bytes[28..32]), (&digest(&bytes[..24])[..], &[0; 4][..]));
        assert_eq!((&bytes[32..37], &bytes[37..41]), (&[1, 2, 3, 4, 5][..], &digest(&[1, 2, 3, 4, 5])[..]));
        assert_eq!(&bytes[41..49], &[4, 1, 72, 0, 76, 0, 0, 0]);
    }
}

//! Features without which no device is used.

use crate::Defect;
use lunar_vhost_user::wire::{feature, protocol};

/// A feature and its name.
pub(crate) type Needed = (u64, &'static str);

/// Those of every device.
pub(crate) const VIRTIO: [Needed; 2] =
    [(feature::VERSION_1, "virtio 1"), (feature::PROTOCOL_FEATURES, "the features of vhost-user")];

/// The feature of the protocol that tells whether a ring has started.
pub(crate) const ACKNOWLEDGEMENTS: Needed = (protocol::REPLY_ACK, "acknowledgements");

/// Checks that all these features are offered.
pub(crate) fn require(offered: u64, needed: &[Needed]) -> Result<(), Defect> {
    match needed.iter().find(|(bit, _)| offered & bit == 0) {
        Some((_, what)) => Err(Defect::Lacks(what)),
        None => Ok(()),
    }
}

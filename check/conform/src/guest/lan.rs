//! Guests whose Ethernet link is a pair of Unix sockets, with a relay between them and the target.

use std::path::Path;

use anyhow::Result;

use crate::relay::{Relay, RelayEnd, RelayFaults};

/// Starts the relay between the sockets `target` and `guest` of a folder.
pub(super) fn relay(folder: &Path, faults: RelayFaults, seed: u64) -> Result<Relay> {
    let end = |name: &str| RelayEnd { own: folder.join(format!("{name}-relay")), station: folder.join(name) };
    Relay::start([end("target"), end("guest")], faults, seed)
}

/// The arguments of the emulator for the network card of the link, with this MAC address.
pub(super) fn card(folder: &Path, mac: &str) -> Vec<String> {
    let net = format!(
        "dgram,id=lan,local.type=unix,local.path={},remote.type=unix,remote.path={}",
        folder.join("guest").display(),
        folder.join("guest-relay").display()
    );
    // Behind the cards of the other networks.
    let card = format!("virtio-net-pci,netdev=lan,romfile=,mac={mac},addr=0x1c,host_mtu=9000");
    ["-netdev", &net, "-device", &card].map(str::to_owned).to_vec()
}

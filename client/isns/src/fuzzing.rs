//! Entry point of the fuzz target: a server that sends arbitrary bytes at arbitrary times while the registration
//! changes.

use crate::client::{Action, Client};
use crate::registration::{Node, Registration};
use lunar_core::time::Instant;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// The most actions that one event may cause: a request, a close, a new connection, and a report of each.
const ACTIONS_MAX: usize = 8;

/// A registration of `targets` targets.
#[must_use]
pub fn sample(targets: u8) -> Registration {
    let node = |number: u8| {
        let portals = BTreeMap::from([(([127, 0, 0, 1], 3260).into(), 1), (([0, 0, 0, 0], 3261).into(), 2)]);
        (format!("iqn.2026-01.org.example:{number}").into(), Node { alias: "disk".into(), portals })
    };
    Registration { entity: "host.example.org".into(), period: 300, nodes: (0..targets).map(node).collect() }
}

/// Runs a client against an arbitrary server. The first byte of each piece selects the event, the second the number of
/// bytes that it takes.
///
/// # Panics
/// If the client causes more actions or buffers more bytes than it may.
pub fn any_server(mut data: &[u8]) {
    let (mut client, mut now) = (Client::new(), Instant(1_000_000_000));
    client.set_desired(Some(sample(2)), now);
    let mut last = Vec::new();
    while let [what, length, rest @ ..] = data {
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        data = rest;
        match what % 8 {
            0 => client.set_desired((*length > 0).then(|| sample(length % 4)), now),
            1 => client.lost("connection refused", now),
            2 => now = now + Duration::from_millis(u64::from(*length) * 100),
            // A response to the current request, as far as its header goes.
            3 => client.received(&answer_to(&last, piece), now),
            _ => client.received(piece, now),
        }
        client.tick(now);
        for _ in 0..ACTIONS_MAX {
            match client.next_action() {
                None => break,
                Some(Action::Connect) if what.is_multiple_of(2) => {
                    client.connected(IpAddr::V4(Ipv4Addr::LOCALHOST), now)
                }
                Some(Action::Connect) => client.lost("connection refused", now),
                Some(Action::Send(bytes)) => last = bytes,
                Some(Action::Close | Action::Report(_)) => {}
            }
        }
        assert!(client.next_action().is_none(), "one event causes too many actions");
        assert!(
            client.waiting() <= crate::wire::HEADER_LEN + crate::wire::PAYLOAD_MAX,
            "the client buffers more than one PDU"
        );
    }
}

/// The response to `request` with this payload.
fn answer_to(request: &[u8], payload: &[u8]) -> Vec<u8> {
    let Some(header) = request.first_chunk::<{ crate::wire::HEADER_LEN }>() else { return Vec::new() };
    let mut answer = header.to_vec();
    let payload = &payload[..payload.len() / 4 * 4];
    answer[2] |= 0x80;
    // The payload has at most 255 bytes.
    answer[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    answer.extend_from_slice(payload);
    answer
}

//! Any bytes from a server, in any pieces, at any time, while what is wanted changes.

use crate::client::{Action, Client};
use crate::registration::{Node, Registration};
use lunar_core::time::Instant;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Actions that one event may cause at most: a request, a close, a new connection, and what is told of each.
const ACTIONS_MAX: usize = 8;

/// A registration of so many targets.
#[must_use]
pub fn sample(targets: u8) -> Registration {
    let node = |number: u8| {
        let portals = BTreeMap::from([(([127, 0, 0, 1], 3260).into(), 1), (([0, 0, 0, 0], 3261).into(), 2)]);
        (format!("iqn.2026-01.org.example:{number}").into(), Node { alias: "disk".into(), portals })
    };
    Registration { entity: "host.example.org".into(), period: 300, nodes: (0..targets).map(node).collect() }
}

/// Plays a server that says what it likes. The first byte of each piece says what happens, the second how much of the
/// rest it takes.
///
/// # Panics
/// When a client does what it must not.
pub fn any_server(mut data: &[u8]) {
    let (mut client, mut now) = (Client::new(), Instant(1_000_000_000));
    client.want(Some(sample(2)), now);
    let mut last = Vec::new();
    while let [what, length, rest @ ..] = data {
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        data = rest;
        match what % 8 {
            0 => client.want((*length > 0).then(|| sample(length % 4)), now),
            1 => client.lost("it is away", now),
            2 => now = now + Duration::from_millis(u64::from(*length) * 100),
            // An answer to what was asked, as far as its header goes.
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
                Some(Action::Connect) => client.lost("nobody listens", now),
                Some(Action::Send(bytes)) => last = bytes,
                Some(Action::Close | Action::Tell(_)) => {}
            }
        }
        assert!(client.next_action().is_none(), "one event has consequences without end");
        assert!(client.waiting() <= crate::wire::HEADER_LEN + crate::wire::PAYLOAD_MAX, "it keeps all that comes");
    }
}

/// The last request turned into an answer with this payload.
fn answer_to(request: &[u8], payload: &[u8]) -> Vec<u8> {
    let Some(header) = request.first_chunk::<{ crate::wire::HEADER_LEN }>() else { return Vec::new() };
    let mut answer = header.to_vec();
    let payload = &payload[..payload.len() / 4 * 4];
    answer[2] |= 0x80;
    // A piece is short.
    answer[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    answer.extend_from_slice(payload);
    answer
}

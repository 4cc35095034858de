//! What fuzzers call.

use crate::command::{self, ANY_CONTROLLER, Connect};
use crate::queue::{Command, Event, Offer, Queue};
use lunar_core::outgoing::{Data, Moves};
use lunar_nvme_tcp::wire::{CapsuleResp, IcResp, Pdu};
use zerocopy::IntoBytes;

/// Bytes of the write that is under way.
const WRITTEN: usize = 20_000;
/// Room of the read that is.
const READ: u32 = 4096;

/// Any bytes from a controller. The first byte says which digests were asked for, and whether there is a queue
/// already, with a read and a write under way.
pub fn controller(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    let digests = choice & 3;
    let offer = Offer { header_digest: digests & 1 != 0, data_digest: digests & 2 != 0, in_capsule: 0 };
    let connect = Connect {
        queue: 1,
        entries: 32,
        controller: ANY_CONTROLLER,
        keep_alive: 0,
        flow_control: false,
        subsystem: "nqn.2026-01.io.lunar:x".to_owned(),
        host: "nqn.2026-01.io.lunar:y".to_owned(),
        host_id: [7; 16],
    };
    let mut queue = Queue::new(offer, connect);
    let mut bytes = Vec::new();
    if choice & 4 != 0 {
        let answer = IcResp { digests, max_h2c_data: 4096.into(), ..IcResp::blank(0) };
        bytes.extend_from_slice(answer.as_bytes());
        // Connect has the first identifier; with digests its answer is up to the fuzzer.
        if digests & 1 == 0 {
            bytes.extend_from_slice(CapsuleResp::blank(0).as_bytes());
        }
    }
    let mut received = 0;
    let mut on = |event: Event<'_>| {
        if let Event::Data { bytes, .. } = event {
            received += bytes.len();
        }
    };
    let _ = queue.receive(&bytes, &mut on);
    for moves in [Moves::In(READ), Moves::Out(Data::new(vec![7; WRITTEN].into()))] {
        // Without a queue there is no room.
        let sqe = match moves {
            Moves::Out(_) => command::write(1, 0, 1, false),
            _ => command::read(1, 0, 1, false),
        };
        let _ = queue.submit(Command { cookie: 1, sqe, moves });
    }
    let _ = queue.receive(data, &mut on);
    // The write is asked for once at most, and a read brings no more than it has room for.
    assert!(received <= READ as usize && queue.output().len() < 2 * WRITTEN + 4096);
}

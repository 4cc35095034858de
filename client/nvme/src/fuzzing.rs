//! Entry points of the fuzz targets.

use crate::command::{self, ANY_CONTROLLER, Connect};
use crate::queue::{Command, Event, Offer, Queue};
use crate::rings::{DoorbellMode, PAGE, Pair};
use crate::vfio::{self, Conversation};
use lunar_core::mem::Region;
use lunar_core::outgoing::{Data, Moves};
use lunar_guest::window::Window;
use lunar_nvme_tcp::wire::{CapsuleResp, IcResp, Pdu};
use lunar_vfio_user::wire::{Code, HEADER_LEN};
use zerocopy::IntoBytes;

/// The length of the write, in bytes.
const WRITTEN: usize = 20_000;
/// The length of the read, in bytes.
const READ: u32 = 4096;

/// Parses arbitrary vfio-user replies, and runs commands while arbitrary bytes are written to the shared memory:
/// doorbells, event indexes and completions.
///
/// # Panics
/// If more commands end than were started.
pub fn memory(data: &[u8]) {
    const ENTRIES: u16 = 8;
    let Some((head, data)) = data.split_first_chunk::<HEADER_LEN>() else { return };
    let mut talk = Conversation::default();
    let _ = talk.command(Code::REGION_INFO, &vfio::registers_info(), true);
    if let Ok(len) = talk.reply(head) {
        assert!(len <= vfio::REPLY_MAX);
    }
    let _ = (vfio::doorbells(data), vfio::read_data(data, usize::from(head[0])));
    let (rings, pages) = (Region::zeroed(Pair::bytes(ENTRIES).iter().sum()), Region::zeroed(2 * PAGE));
    let [Some(doorbells), Some(events)] = [0, PAGE].map(|at| Window::new(&pages, at, PAGE)) else { return };
    let Some(mut pair) = Pair::new(1, ENTRIES, &rings, 0, DoorbellMode::Shadow(doorbells, events)) else { return };
    let (mut started, mut ended) = (0, 0);
    for step in data.chunks(8) {
        let at = usize::from(step[0]) * 16 + usize::from(step[1 % step.len()] % 16);
        match step[step.len() - 1] % 4 {
            0 => started += usize::from(pair.submit(&command::read(1, 0, 1, false))),
            1 => assert!(pair.ring().iter().flatten().all(|(offset, _)| (0x1008..0x1010).contains(offset))),
            2 => _ = rings.write(PAGE + at % (usize::from(ENTRIES) * 16), step),
            _ => _ = pages.write(at % (2 * PAGE), step),
        }
        ended += std::iter::from_fn(|| pair.take()).count();
        assert!(ended <= started && usize::from(pair.room()) == usize::from(ENTRIES) - 1 - (started - ended));
    }
}

/// Receives arbitrary bytes from a controller. The first byte selects the requested digests, and whether the queue is
/// already connected and has a read and a write outstanding.
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
        // Connect has CID 0. With header digests, the fuzzer has to make the completion.
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
        // Fails if the queue is not connected.
        let sqe = match moves {
            Moves::Out(_) => command::write(1, 0, 1, false),
            _ => command::read(1, 0, 1, false),
        };
        let _ = queue.submit(Command { cookie: 1, sqe, moves });
    }
    let _ = queue.receive(data, &mut on);
    // The data of the write is requested at most once, and a read returns no more than its length.
    assert!(received <= READ as usize && queue.output().len() < 2 * WRITTEN + 4096);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_in_shared_memory_are_accepted() {
        let mut state = 1_u32;
        for round in 0..200 {
            let bytes = |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            memory(&(0..round * 8).map(bytes).collect::<Vec<u8>>());
        }
    }
}

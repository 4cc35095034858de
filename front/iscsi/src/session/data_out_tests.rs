use super::*;
use lunar_core::mem::{Arena, BLOCK_MAX};
use proptest::prelude::*;

const TOTAL: u32 = 10_000;

fn memory(arena: &Arena, len: usize) -> SgMut {
    arena.take_sg(len).expect("room")
}

/// Sends `len` bytes of the sequence `ttt` from `offset` on; the value of each byte follows from its offset.
fn send(state: &mut DataOutState, ttt: u32, data_sn: u32, offset: u32, len: usize, last: bool) {
    let Destination::Memory(mut memory) = state.begin_pdu(ttt, data_sn, offset, len) else {
        panic!("the PDU is expected")
    };
    let bytes: Vec<u8> = (offset..).take(len).map(|at| u8::try_from(at % 251).expect("small")).collect();
    memory.copy_from(0, &bytes);
    state.end_pdu(ttt, Some(memory.share()), true, last, false);
}

proptest! {
    #[test]
    fn data_arrives_as_it_was_sent(
        first in 0..3000usize, unsolicited in 0..2000usize, burst_max in 512..4000u32, limit in 1..4u32,
        segment in 1..3000usize, pulls in prop::collection::vec(1..4000usize, 1..10),
    ) {
        let arena = Arena::new(BLOCK_MAX);
        let mut state = DataOutState::default();
        let mut immediate = memory(&arena, first);
        let bytes: Vec<u8> = (0..TOTAL).map(|at| u8::try_from(at % 251).expect("small")).collect();
        immediate.copy_from(0, &bytes);
        state.add_immediate(immediate.share());
        state.expect_unsolicited(memory(&arena, unsolicited));
        send(&mut state, NO_TAG, 0, u32::try_from(first).expect("small"), unsolicited, true);
        let (mut at, mut next_tag) = (0, 1);
        for len in pulls.into_iter().cycle() {
            let len = len.min(TOTAL as usize - at);
            if len == 0 {
                break;
            }
            let pulled = loop {
                match state.pull(at, len, TOTAL) {
                    Pulled::Ready(data) => break data.to_vec(),
                    Pulled::NeedsMemory(wanted) => state.supply(memory(&arena, wanted), TOTAL, burst_max),
                    Pulled::Pending => {
                        let mut requests = Vec::new();
                        while let Some(request) = state.next_r2t(next_tag, limit) {
                            prop_assert!(request.len <= burst_max);
                            requests.push((next_tag, request));
                            next_tag += 1;
                        }
                        prop_assert!(!requests.is_empty() && requests.len() <= limit as usize);
                        for (ttt, R2tRequest { offset, len, .. }) in requests {
                            let starts = (0..len).step_by(segment);
                            for (sn, start) in (0..).zip(starts) {
                                let count = segment.min((len - start) as usize);
                                let is_last = start as usize + count == len as usize;
                                send(&mut state, ttt, sn, offset + start, count, is_last);
                            }
                        }
                        prop_assert!(!state.has_open_sequence());
                    }
                    Pulled::Failed => panic!("the data is intact"),
                }
            };
            prop_assert_eq!(&pulled[..], &bytes[at..at + len]);
            at += len;
        }
        prop_assert_eq!((state.unsolicited(), state.failure()), (0, None));
        state.reset();
        prop_assert_eq!(arena.used(), 0);
    }
}

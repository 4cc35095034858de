use super::*;
use lunar_core::mem::{Arena, BLOCK_MAX};
use proptest::prelude::*;

const TOTAL: u32 = 10_000;

fn memory(arena: &Arena, len: usize) -> SgMut {
    arena.take_sg(len).expect("room")
}

/// Sends `len` bytes, counted up from `offset`, of the sequence `ttt`.
fn send(inflow: &mut Inflow, ttt: u32, data_sn: u32, offset: u32, len: usize, last: bool) {
    let Opened::Fill(mut memory) = inflow.open(ttt, data_sn, offset, len) else { panic!("it is expected") };
    let bytes: Vec<u8> = (offset..).take(len).map(|at| u8::try_from(at % 251).expect("small")).collect();
    memory.copy_from(0, &bytes);
    inflow.close(ttt, Some(memory.share()), true, last, false);
}

proptest! {
    #[test]
    fn data_arrives_as_it_was_sent(
        first in 0..3000usize, unsolicited in 0..2000usize, burst_max in 512..4000u32, limit in 1..4u32,
        segment in 1..3000usize, pulls in prop::collection::vec(1..4000usize, 1..10),
    ) {
        let arena = Arena::new(BLOCK_MAX);
        let mut inflow = Inflow::default();
        let mut immediate = memory(&arena, first);
        let bytes: Vec<u8> = (0..TOTAL).map(|at| u8::try_from(at % 251).expect("small")).collect();
        immediate.copy_from(0, &bytes);
        inflow.immediate(immediate.share());
        inflow.unsolicited(memory(&arena, unsolicited));
        send(&mut inflow, NO_TAG, 0, u32::try_from(first).expect("small"), unsolicited, true);
        let (mut at, mut next_tag) = (0, 1);
        for len in pulls.into_iter().cycle() {
            let len = len.min(TOTAL as usize - at);
            if len == 0 {
                break;
            }
            let pulled = loop {
                match inflow.pull(at, len, TOTAL) {
                    Pulled::Ready(data) => break data.to_vec(),
                    Pulled::Memory(wanted) => inflow.supply(memory(&arena, wanted), TOTAL, burst_max),
                    Pulled::Pending => {
                        let mut asked = Vec::new();
                        while let Some(burst) = inflow.ask(next_tag, limit) {
                            prop_assert!(burst.len <= burst_max);
                            asked.push((next_tag, burst));
                            next_tag += 1;
                        }
                        prop_assert!(!asked.is_empty() && asked.len() <= limit as usize);
                        for (ttt, R2tRequest { offset, len, .. }) in asked {
                            let starts = (0..len).step_by(segment);
                            for (sn, start) in (0..).zip(starts) {
                                let count = segment.min((len - start) as usize);
                                let is_last = start as usize + count == len as usize;
                                send(&mut inflow, ttt, sn, offset + start, count, is_last);
                            }
                        }
                        prop_assert!(!inflow.owes());
                    }
                    Pulled::Failed => panic!("nothing was wrong"),
                }
            };
            prop_assert_eq!(&pulled[..], &bytes[at..at + len]);
            at += len;
        }
        prop_assert_eq!((inflow.unasked(), inflow.failure()), (0, None));
        inflow.reset();
        prop_assert_eq!(arena.used(), 0);
    }
}

//! Entry point of the fuzz target: a back-end that writes any bytes to the shared memory.

use crate::blk::{Blk, DiskRequest};
use crate::disk::Shape;
use crate::form::Form;
use crate::lane::{Answer, Lane};
use crate::layout::Layout;
use crate::message;
use crate::scsi::{CommandData, Scsi, ScsiCommand};
use lunar_blk::Code;
use lunar_core::mem::Region;
use lunar_core::time::Instant;
use lunar_vhost_user::wire::HEADER_LEN;
use std::time::Duration;

/// Slots with data, and bytes of each.
const SLOTS: u16 = 5;
const BUFFER: usize = 8192;
/// Bytes of one step of the input.
const STEP: usize = 8;

/// Runs requests while arbitrary bytes are written to the shared memory.
///
/// # Panics
/// When a request has more than one answer, or a slot is lost.
pub fn back_end(data: &[u8]) {
    if let Some((head, rest)) = data.split_first_chunk::<HEADER_LEN>() {
        let _ = (message::reply(head), message::notice(head), message::number(rest));
        if let Ok(space) = message::space(rest) {
            let features = u64::from_le_bytes(std::array::from_fn(|at| head[at]));
            let _ = Shape::of(features, &space);
        }
    }
    if let Some(layout) = Layout::new(1, SLOTS, BUFFER) {
        let codes = [Code::Read, Code::Write, Code::Flush, Code::Discard, Code::Identify];
        run::<Blk>(data, layout, |[kind, len]| {
            let code = codes[usize::from(kind) % codes.len()];
            DiskRequest { code, offset: 0, len: 512 << (len % 8), unmap: false }
        });
    }
    if let Some(layout) = Scsi::layout(1, SLOTS, BUFFER) {
        run::<Scsi>(data, layout, |[kind, len]| {
            let len = 512 << (len % 8);
            let kinds = [CommandData::Nothing, CommandData::In(len), CommandData::Out(len)];
            let data = kinds[usize::from(kind) % kinds.len()];
            ScsiCommand { lun: [0; 8], tag: 0, cdb: [kind; 16], data }
        });
    }
}

/// Runs requests of this form: `request` makes one of two bytes.
fn run<F: Form>(data: &[u8], layout: Layout, request: impl Fn([u8; 2]) -> F::Request) {
    let memory = Region::zeroed(layout.len());
    let Some(mut lane) = Lane::<F>::new(&memory, &layout, 0, 4096) else { return };
    let mut open = [false; SLOTS as usize + 1];
    let mut now = Instant::default();
    for step in data.chunks_exact(STEP) {
        let (what, slot) = (step[0] % 8, u16::from(step[1]) % (SLOTS + 1));
        now = now + Duration::from_secs((step[2] % 8).into());
        match what {
            0 | 1 => {
                let was_free = lane.is_free(slot);
                if lane.begin(slot, &request([step[3], step[4]]), now) {
                    assert!(was_free && !open[usize::from(slot)]);
                    open[usize::from(slot)] = true;
                }
            }
            2 => _ = lane.send(),
            3 => lane.lose(),
            4 => lane.restart(),
            5 => _ = lane.expire(now, Duration::from_secs(20), |_| {}),
            _ => {
                let index = usize::from(step[3]) | usize::from(step[4]) << 8;
                let [_, _, used] = layout.ring(0);
                // Indices, entries and answers of the back-end, and any other byte of the rings.
                let at = if what == 6 { used + index % 512 } else { index % layout.place(0, 0).data };
                let _ = memory.write(at, &step[5..]);
            }
        }
        // A back-end that breaks the rules loses its connection.
        if lane.collect(|_| {}).is_err() {
            lane.restart();
        }
        for slot in 0..=SLOTS {
            if let Some(answer) = lane.take(slot) {
                assert!(std::mem::take(&mut open[usize::from(slot)]), "an answer without a request: {answer:?}");
                assert!(lane.is_free(slot) || matches!(answer, Answer::Expired));
            }
        }
        assert_eq!(lane.unanswered(), open.iter().filter(|is_open| **is_open).count());
    }
    lane.restart();
    lane.expire(now, Duration::ZERO, |_| {});
    assert!((0..=SLOTS).all(|slot| lane.is_free(slot)), "no slot is lost");
}

//! Entry point of the fuzz target: a kernel with any answers.

use crate::life::{
    Claim, DiskRequest, Kernel, Key, Rights, claim, discard_left, left_behind, recover, resize, set_params, start,
};
use crate::params::params;
use crate::tag::{Next, Tag};
use crate::user::DiskUser;
use crate::wire::{COMMIT_AND_FETCH_REQ, ControlCommand, Descriptor, FETCH_REQ, SECTOR};
use lunar_blk::testing::{Rig, at_once};
use lunar_blk::{Code, Limits};
use lunar_core::io::Fault;
use std::cell::Cell;
use std::time::Duration;

/// Memory of a tag.
const BUFFER: usize = 8192;
/// Bytes of an answer to the command of a tag: a fault or none, the operation with its flags, sectors, the first one.
const ANSWER: usize = 9;
/// The most answers to control commands: a process asks again and again, for as long as the kernel is busy.
const ANSWERS_MAX: u32 = 1 << 14;
/// The process.
const PID: u32 = 77;

/// A kernel whose answers to control commands are the bytes of an input, which are repeated.
struct AnyKernel<'a> {
    bytes: &'a [u8],
    at: Cell<usize>,
    answers: Cell<u32>,
    rights: Rights,
}

impl AnyKernel<'_> {
    fn byte(&self) -> u8 {
        let at = self.at.get();
        self.at.set(at + 1);
        self.bytes.get(at % self.bytes.len().max(1)).copied().unwrap_or_default()
    }
}

impl Kernel for AnyKernel<'_> {
    fn rights(&self) -> Rights {
        self.rights
    }

    async fn call(&self, _command: ControlCommand, memory: &mut [u8]) -> Result<u32, Fault> {
        self.answers.set(self.answers.get() + 1);
        if self.answers.get() > ANSWERS_MAX {
            return Err(Fault::Gone);
        }
        match self.byte() {
            // More successes than errors, so that later steps are reached.
            errno @ 1..=127 if errno % 4 == 0 => return Err(Fault::from_errno(i32::from(errno / 4))),
            code if code % 2 == 0 => memory.iter_mut().for_each(|byte| *byte = self.byte()),
            // The memory stays as it is: zeroes, or what the command contained.
            _ => {}
        }
        Ok(0)
    }

    async fn pause(&self, _time: Duration) {}

    fn lives(&self, _pid: u32) -> bool {
        self.byte() & 1 == 1
    }

    fn user_of(&self, _number: u32) -> Option<DiskUser> {
        (self.byte() & 1 == 1).then(|| DiskUser::Swap("ublkb1".to_owned()))
    }
}

/// Makes, recovers, resizes and removes a device on a kernel with any answers.
///
/// # Panics
/// When a claim is one that cannot be served.
pub fn control(bytes: &[u8]) {
    let rights = if bytes.len().is_multiple_of(2) { Rights::Privileged } else { Rights::Unprivileged };
    let kernel = AnyKernel { bytes, at: Cell::default(), answers: Cell::default(), rights };
    let request = DiskRequest {
        name: "data".to_owned(),
        key: Key::of("data", [7; 16]),
        number: (kernel.byte() & 1 == 1).then_some(3),
        queues: 2,
        depth: 4,
        survives: kernel.byte() & 1 == 1,
    };
    let rig = Rig::default();
    let limits = Limits::of(&rig.unit, false);
    at_once(async {
        if let Ok(claim) = claim(&kernel, &request, PID).await {
            serve(&kernel, &claim, &limits).await;
        }
        if let Ok(left) = left_behind(&kernel, &["data".to_owned()]).await {
            for found in left {
                let _ = discard_left(&kernel, found.number).await;
            }
        }
    });
}

async fn serve(kernel: &AnyKernel<'_>, claim: &Claim, limits: &Limits) {
    let params = params(limits, claim.buffer_bytes);
    let Ok(in_force) = set_params(kernel, claim, &params).await else { return };
    assert!(claim.is_old || in_force.sectors == params.sectors, "a new device has the size of its volume");
    if claim.is_old && recover(kernel, claim).await.is_err() {
        return;
    }
    if start(kernel, claim, PID).await.is_ok() {
        let _ = resize(kernel, claim, params.sectors).await;
    }
}

/// Gives a tag the requests of an input, and executes them on a small unit.
///
/// # Panics
/// When a request is not answered exactly once, moves more bytes than its tag has memory for, or returns or changes
/// bytes that it does not name.
pub fn requests(bytes: &[u8]) {
    let (rig, mut tag) = (Rig::default(), Tag::new(1, 3, BUFFER));
    let mut expected = rig.memory.bytes();
    let mut number = FETCH_REQ;
    for (at, answer) in bytes.chunks_exact(ANSWER).enumerate() {
        let command = tag.command().expect("each request was answered");
        assert_eq!((command.number, command.queue, command.tag), (number, 1, 3));
        number = COMMIT_AND_FETCH_REQ;
        match tag.answered(answered(answer)) {
            Next::Execute(request) => {
                assert!(tag.command().is_none() && request.moves() <= BUFFER as u64);
                let data = vec![at as u8 | 1; if request.code == Code::Write { request.moves() as usize } else { 0 }];
                let ended = rig.run(&request.request(), &data);
                let ranges = request.request().ranges;
                let whole = ranges.first().map_or(0..0, |range| {
                    range.offset as usize..range.offset.saturating_add(range.len).min(expected.len() as u64) as usize
                });
                match (request.code, ended.result) {
                    (Code::Write, Ok(())) => expected[whole].copy_from_slice(&data),
                    (Code::WriteZeroes | Code::Discard, Ok(())) => expected[whole].fill(0),
                    (Code::Read, Ok(())) => assert_eq!(ended.data, expected[whole], "{request:?}"),
                    _ => {}
                }
                assert!(rig.memory.bytes() == expected, "{request:?}");
                tag.finish(ended.result);
                let result = tag.command().expect("it has ended").result;
                assert!(
                    ended.result.map_or(result < 0, |()| result as u64 == request.moves()),
                    "{request:?}: {result}"
                );
            }
            Next::Refuse => assert!(tag.command().expect("it is answered").result < 0),
            Next::Stopped | Next::Broken(_) => {
                assert!(tag.command().is_none());
                return;
            }
        }
    }
}

/// The answer of the kernel in some bytes. Most requests lie near the unit.
fn answered(bytes: &[u8]) -> Result<Descriptor, Fault> {
    let [code, flags, operation, s0, s1, a, b, c, far] = *bytes else { return Err(Fault::Gone) };
    if code == 0xff {
        return Err(Fault::from_errno(i32::from(flags)));
    }
    let sectors = if code & 1 == 0 {
        u32::from(s0) % (2 * BUFFER as u32 / SECTOR as u32)
    } else {
        u32::from_ne_bytes([s0, s1, a, b])
    };
    let near = u64::from(u16::from_ne_bytes([a, b]) >> 4);
    let start = if code & 2 == 0 { near } else { u64::from_be_bytes([far, c, s0, s1, a, b, c, far]) };
    let op_flags = u32::from_ne_bytes([operation, flags, c, far]);
    Ok(Descriptor { op_flags, sectors, start })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_answer_of_a_kernel_harms(bytes in vec(any::<u8>(), 0..512)) {
            control(&bytes);
            requests(&bytes);
        }

        #[test]
        fn requests_near_the_unit_do_what_they_say(
            all in vec((0_u8..2, any::<u8>(), 0_u8..6, any::<[u8; 6]>()), 0..64)
        ) {
            let bytes: Vec<u8> =
                all.iter().flat_map(|(code, flags, op, rest)| [&[code * 4, *flags, *op][..], rest].concat()).collect();
            requests(&bytes);
        }
    }
}

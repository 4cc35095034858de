//! Entry points of the fuzz targets: a simulated target that logs a session in, gets a read and a write, and sends the
//! PDUs that the fuzzer chooses.

use crate::config::{DigestOffer, Offer};
use crate::session::{Command, Event, Moves, Session};
use lunar_core::outgoing::Data;
use lunar_iscsi::text;
use lunar_iscsi::wire::{
    BHS_LEN, Bhs, DataIn, LoginResponse, NO_TAG, NopIn, Pdu, R2t, Reject, ScsiResponse, Stage, U24, login_flags, padded,
};
use std::rc::Rc;
use zerocopy::IntoBytes;

/// MaxCmdSN of the target: a command window of eight.
const MAX_CMD_SN: u32 = 8;
/// The length of the read and of the write, in bytes.
const LEN: u32 = 64 << 10;
/// The first StatSN of the target.
const FIRST_STAT_SN: u32 = 7;

/// A simulated target and the session that is connected to it.
struct Target {
    session: Session,
    stat_sn: u32,
    /// The bytes that the session passed on, by cookie.
    moved: [u64; 2],
    /// The cookies of the commands that ended.
    ended: Vec<u32>,
}

/// Receives arbitrary bytes from the start of the login on.
pub fn first(data: &[u8]) {
    let mut target = Target::new(offer());
    // The test is that nothing panics: any result is fine.
    let _ = target.receive(data);
}

/// Runs a read and a write on a session that is logged in. The first byte selects the negotiated parameters. Each
/// group of eight bytes after it is a PDU of the target, mostly one that the commands expect.
pub fn commands(data: &[u8]) {
    let Some((agreed, data)) = data.split_first() else { return };
    let mut target = Target::new(offer());
    if target.log_in(*agreed).is_err() {
        return;
    }
    let bytes: Rc<[u8]> = vec![7; LEN as usize].into();
    let read = target.start(0, Moves::In(LEN));
    let write = target.start(1, Moves::Out(Data::new(bytes)));
    let mut sns = [0_u32; 2];
    let mut at = 0;
    for step in data.chunks_exact(8) {
        let [what, flags, low, high, status, shift, sn, odd] = *step else { return };
        let len = u32::from(u16::from_le_bytes([low, high]));
        let itt = match odd {
            0xff => u32::from(shift),
            0xfe => NO_TAG,
            _ if (what & 8 == 0) == matches!(what & 7, 1..=3) => write,
            _ => read,
        };
        let moved = u32::from(shift) << 9;
        let result = match what & 7 {
            0 | 4 | 5 => {
                let (data_sn, offset) = if sn == 0 { (sns[0], at) } else { (sn.into(), moved) };
                at = offset.wrapping_add(len);
                sns[0] = data_sn.wrapping_add(1);
                target.data_in(itt, (data_sn, offset), flags, status, &vec![sn; len as usize])
            }
            1 | 2 => {
                sns[1] += 1;
                target.r2t(itt, sns[1] - u32::from(sn == 0), moved, len)
            }
            3 => target.response(itt, status, flags, len),
            6 => target.reject(itt, status),
            _ => target.nop(itt, low),
        };
        target.take();
        if result.is_err() {
            break;
        }
    }
    assert!(target.moved.iter().all(|moved| *moved <= u64::from(LEN)), "more data than was asked for");
    assert!(matches!(target.ended[..], [] | [_] | [0, 1] | [1, 0]), "a command ends once");
}

fn offer() -> Offer {
    let (header_digest, data_digest) = (DigestOffer::Never, DigestOffer::Never);
    Offer { target: Some("iqn.2026-01.io.lunar:x".to_owned()), header_digest, data_digest, ..Offer::default() }
}

impl Target {
    fn new(offer: Offer) -> Self {
        Self { session: Session::new(offer), stat_sn: FIRST_STAT_SN, moved: [0; 2], ended: Vec::new() }
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), crate::Error> {
        let (moved, ended) = (&mut self.moved, &mut self.ended);
        self.session.receive(bytes, &mut |event| match event {
            Event::Data { cookie, bytes, .. } => moved[cookie as usize] += bytes.len() as u64,
            Event::Done { cookie, .. } => ended.push(cookie),
            Event::Rejected { cookie, .. } => ended.extend(cookie),
            _ => {}
        })
    }

    /// Removes and returns the bytes that the session sent.
    fn take(&mut self) -> Vec<u8> {
        let bytes = self.session.output().to_vec();
        self.session.sent(bytes.len());
        bytes
    }

    fn receive_pdu<P: Pdu>(&mut self, mut pdu: P, data: &[u8], has_status: bool) -> Result<(), crate::Error> {
        pdu.as_mut_bytes()[5..8].copy_from_slice(U24::new(data.len()).as_bytes());
        if has_status {
            pdu.as_mut_bytes()[24..28].copy_from_slice(&self.stat_sn.to_be_bytes());
            self.stat_sn = self.stat_sn.wrapping_add(1);
        }
        let mut bytes = [pdu.as_bytes(), data].concat();
        bytes.resize(bytes.len() + padded(data.len()) - data.len(), 0);
        self.receive(&bytes)
    }

    fn log_in(&mut self, agreed: u8) -> Result<(), crate::Error> {
        let yes = |bit: u8| text::yes_or_no(agreed & bit != 0);
        let length = |bit: u8| if agreed & bit != 0 { "4096" } else { "16384" };
        let keys = [
            ("InitialR2T", yes(1)),
            ("ImmediateData", yes(2)),
            ("FirstBurstLength", length(4)),
            ("MaxBurstLength", length(8)),
            ("MaxRecvDataSegmentLength", length(16)),
        ];
        for (stage, next, keys) in [
            (Stage::SECURITY, Stage::OPERATIONAL, &[("AuthMethod", "None")][..]),
            (Stage::OPERATIONAL, Stage::FULL_FEATURE, &keys[..]),
        ] {
            self.take();
            let mut text = Vec::new();
            keys.iter().for_each(|(key, value)| text::put(&mut text, key, value));
            let mut answer = LoginResponse::blank();
            answer.flags = login_flags(stage, Some(next));
            answer.tsih.set(1);
            answer.exp_cmd_sn.set(1);
            answer.max_cmd_sn.set(MAX_CMD_SN);
            self.receive_pdu(answer, &text, true)?;
        }
        self.take();
        Ok(())
    }

    /// Starts a command; returns its tag.
    fn start(&mut self, cookie: u32, moves: Moves) -> u32 {
        let opcode = if matches!(moves, Moves::In(_)) { 0x28 } else { 0x2a };
        let started = self.session.submit(Command { cookie, lun: [0; 8], cdb: &[opcode; 10], moves });
        started.expect("the window has room for both");
        let sent = self.take();
        sent.get(..BHS_LEN).and_then(Bhs::peek).map_or(NO_TAG, |header| header.itt.get())
    }

    fn data_in(
        &mut self,
        itt: u32,
        (data_sn, offset): (u32, u32),
        flags: u8,
        status: u8,
        data: &[u8],
    ) -> Result<(), crate::Error> {
        const STATUS: u8 = 0x01;
        let mut pdu = DataIn::blank();
        (pdu.flags, pdu.status) = (flags, status & 0x02);
        pdu.itt.set(itt);
        pdu.ttt.set(NO_TAG);
        pdu.data_sn.set(data_sn);
        pdu.offset.set(offset);
        pdu.max_cmd_sn.set(MAX_CMD_SN);
        self.receive_pdu(pdu, data, flags & STATUS != 0)
    }

    fn r2t(&mut self, itt: u32, r2t_sn: u32, offset: u32, len: u32) -> Result<(), crate::Error> {
        let mut pdu = R2t::blank();
        pdu.itt.set(itt);
        pdu.ttt.set(5);
        pdu.r2t_sn.set(r2t_sn);
        pdu.offset.set(offset);
        pdu.desired_len.set(len);
        pdu.max_cmd_sn.set(MAX_CMD_SN);
        pdu.as_mut_bytes()[24..28].copy_from_slice(&self.stat_sn.to_be_bytes());
        self.receive_pdu(pdu, &[], false)
    }

    fn response(&mut self, itt: u32, status: u8, flags: u8, residual: u32) -> Result<(), crate::Error> {
        let mut pdu = ScsiResponse::blank();
        pdu.itt.set(itt);
        pdu.status = status;
        pdu.as_mut_bytes()[1] = 0x80 | flags;
        pdu.as_mut_bytes()[44..48].copy_from_slice(&residual.to_be_bytes());
        pdu.max_cmd_sn.set(MAX_CMD_SN);
        let sense = vec![status; usize::from(flags)];
        self.receive_pdu(pdu, &sense, true)
    }

    fn reject(&mut self, itt: u32, reason: u8) -> Result<(), crate::Error> {
        let mut pdu = Reject::blank();
        pdu.as_mut_bytes()[2] = reason;
        let mut rejected = [0; BHS_LEN];
        rejected[16..20].copy_from_slice(&itt.to_be_bytes());
        self.receive_pdu(pdu, &rejected, true)
    }

    fn nop(&mut self, itt: u32, ttt: u8) -> Result<(), crate::Error> {
        let mut pdu = NopIn::blank();
        pdu.itt.set(itt);
        pdu.ttt.set(ttt.into());
        pdu.max_cmd_sn.set(MAX_CMD_SN);
        self.receive_pdu(pdu, &[], ttt & 1 == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn no_target_makes_a_session_panic(data in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            first(&data);
            commands(&data);
        }
    }

    /// A target that follows the protocol completes both commands.
    #[test]
    fn both_commands_complete_with_a_correct_target() {
        let mut target = Target::new(offer());
        target.log_in(1).expect("a good login");
        let (read, bytes) = (target.start(0, Moves::In(1000)), vec![7; 1000]);
        let write = target.start(1, Moves::Out(Data::new(Rc::<[u8]>::from(bytes))));
        target.data_in(read, (0, 0), 0x81, 0, &[1; 1000]).expect("a valid Data-In");
        target.r2t(write, 0, 0, 1000).expect("a valid R2T");
        assert!(target.take().len() > 1000, "the data of the write");
        target.response(write, 0, 0, 0).expect("a valid response");
        assert_eq!((target.moved, target.ended), ([1000, 0], vec![0, 1]));
    }
}

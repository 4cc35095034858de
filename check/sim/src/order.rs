//! Checks the sequence numbers of a connection, PDU by PDU (RFC 7143 4.2.2), also where an initiator need not check
//! them.

use lunar_iscsi::wire::{BHS_LEN, DIGEST_LEN, Opcode, Stage, TRANSIT, padded};
use lunar_iscsi_initiator::config::Agreed;

/// Byte 1 of a login response: the stage that it leads to (11.13).
const NEXT_STAGE: u8 = 0x03;

/// Checks the bytes that are received from the target.
#[derive(Debug, Default)]
pub struct Order {
    pending: Vec<u8>,
    exp_cmd_sn: Option<u32>,
    max_cmd_sn: Option<u32>,
    header_digest: bool,
    data_digest: bool,
}

/// Whether serial number `a` is before `b` (RFC 1982).
fn is_before(a: u32, b: u32) -> bool {
    a != b && b.wrapping_sub(a) < 1 << 31
}

impl Order {
    /// Checks received bytes. `sent`: CmdSN of the next command, which the target must not acknowledge yet; `agreed`:
    /// the parameters in force after the login in these bytes.
    ///
    /// # Errors
    /// The rule that was broken.
    pub fn receive(&mut self, bytes: &[u8], sent: u32, agreed: &Agreed) -> Result<(), String> {
        self.pending.extend_from_slice(bytes);
        while let Some(len) = self.pdu_len() {
            let header: Vec<u8> = self.pending[..BHS_LEN].to_vec();
            self.pending.drain(..len);
            if Opcode(header[0] & 0x3f) == Opcode::LOGIN_RESPONSE {
                // 11.13.4: a login that is refused or goes on need not count yet. Digests begin behind its end.
                if header[1] & TRANSIT != 0 && header[1] & NEXT_STAGE == Stage::FULL_FEATURE.0 {
                    (self.header_digest, self.data_digest) = (agreed.header_digest, agreed.data_digest);
                }
                continue;
            }
            self.check(&header, sent)?;
        }
        Ok(())
    }

    /// Bytes of the first PDU, if it is complete.
    fn pdu_len(&self) -> Option<usize> {
        let header = self.pending.get(..BHS_LEN)?;
        let data = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let digests = [self.header_digest, self.data_digest && data > 0];
        let digests = digests.iter().filter(|digest| **digest).count() * DIGEST_LEN;
        let len = BHS_LEN + usize::from(header[4]) * 4 + padded(data) + digests;
        (self.pending.len() >= len).then_some(len)
    }

    fn check(&mut self, header: &[u8], sent: u32) -> Result<(), String> {
        let opcode = Opcode(header[0] & 0x3f);
        let field = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (exp, max) = (field(28), field(32));
        let wrong = |what: &str| Err(format!("{opcode:?}: {what} (ExpCmdSN {exp}, MaxCmdSN {max}, next {sent})"));
        if is_before(max, exp.wrapping_sub(1)) {
            return wrong("MaxCmdSN is before ExpCmdSN - 1");
        }
        if is_before(sent, exp) {
            return wrong("a command is acknowledged that was not sent");
        }
        if self.exp_cmd_sn.is_some_and(|before| is_before(exp, before)) {
            return wrong("ExpCmdSN goes back");
        }
        if self.max_cmd_sn.is_some_and(|before| is_before(max, before)) {
            return wrong("MaxCmdSN goes back");
        }
        (self.exp_cmd_sn, self.max_cmd_sn) = (Some(exp), Some(max));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pdu(opcode: u8, exp: u32, max: u32, data: usize) -> Vec<u8> {
        let mut bytes = vec![0; BHS_LEN + padded(data)];
        bytes[0] = opcode;
        bytes[7] = data as u8;
        bytes[28..32].copy_from_slice(&exp.to_be_bytes());
        bytes[32..36].copy_from_slice(&max.to_be_bytes());
        bytes
    }

    fn run(pdus: &[Vec<u8>]) -> Result<(), String> {
        let mut order = Order::default();
        pdus.concat().chunks(7).try_for_each(|chunk| order.receive(chunk, 10, &Agreed::default()))
    }

    #[test]
    fn numbers_that_grow_are_in_order() {
        assert_eq!(run(&[pdu(0x21, 1, 5, 3), pdu(0x25, 1, 5, 0), pdu(0x21, 10, 12, 200)]), Ok(()));
        assert_eq!(run(&[pdu(0x21, 10, 9, 0)]), Ok(()), "a shut window");
    }

    #[test]
    fn broken_rules_are_found() {
        for pdus in [
            vec![pdu(0x21, 11, 20, 0)],
            vec![pdu(0x21, 9, 7, 0)],
            vec![pdu(0x21, 5, 20, 1), pdu(0x21, 4, 20, 0)],
            vec![pdu(0x21, 5, 20, 1), pdu(0x21, 5, 19, 0)],
        ] {
            assert!(run(&pdus).is_err());
        }
    }

    #[test]
    fn digests_are_counted_once_agreed() {
        let agreed = Agreed { header_digest: true, data_digest: true, ..Agreed::default() };
        let mut login = pdu(0x23, 0, 0, 1);
        login[1] = TRANSIT | 4 | Stage::FULL_FEATURE.0;
        let mut bytes = pdu(0x21, 1, 5, 3);
        bytes.splice(BHS_LEN..BHS_LEN, [0xff; 4]);
        bytes.extend([0xff; 4]);
        bytes.extend(pdu(0x21, 11, 20, 0));
        bytes.extend([0xff; 4]);
        let mut order = Order::default();
        assert!(order.receive(&login, 10, &agreed).is_ok());
        assert!(order.receive(&bytes[..64], 10, &agreed).is_ok());
        assert!(order.receive(&bytes[64..], 10, &agreed).is_err());
    }
}

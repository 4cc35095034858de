use super::*;
use zerocopy::FromZeros;

/// The tests of each format: golden bytes are parsed; a header overwrites a buffer of `0xa5` completely; it is parsed
/// as it was built.
fn check_format<P: Pdu + PartialEq + std::fmt::Debug>(golden: &[u8], built: P) {
    assert_eq!(P::of(golden), Some(&built));
    let mut buffer = vec![0xa5; golden.len()];
    let (place, _) = P::mut_from_prefix(&mut buffer).expect("as long");
    *place = built;
    assert_eq!(buffer, golden);
    assert_eq!(P::of(&golden[..golden.len() - 1]), None);
}

fn padded(head: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = head.to_vec();
    bytes.resize(len, 0);
    bytes
}

#[test]
fn initialize_connection_and_termination_formats() {
    let golden = padded(&[0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 3, 1, 7, 0, 0, 0], 128);
    check_format(&golden, IcReq { alignment: 3, digests: 1, max_r2t: 7.into(), ..IcReq::blank(0) });
    let golden = padded(&[1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 3, 0, 0, 4, 0], 128);
    check_format(&golden, IcResp { digests: 3, max_h2c_data: 0x4_0000.into(), ..IcResp::blank(0) });
    let golden = padded(&[3, 0, 24, 0, 24, 0, 0, 0, 1, 0, 12, 0, 0, 0], 24);
    check_format(&golden, TermReq { status: 1.into(), information: 12.into(), ..TermReq::blank(0) });
}

#[test]
fn capsule_formats() {
    let mut golden = padded(&[4, 0, 72, 0, 72, 0, 0, 0, 2, 0x40, 7, 0, 1], 72);
    golden[48] = 9;
    let mut sqe = Sqe::new_zeroed();
    (sqe.opcode, sqe.flags, sqe.cid, sqe.nsid) = (2, 0x40, 7.into(), 1.into());
    sqe.cdw10[0] = 9.into();
    check_format(&golden, CapsuleCmd { sqe, ..CapsuleCmd::blank(0) });
    let golden = [5, 0, 24, 0, 24, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 2, 0, 7, 0, 2, 0x80];
    let built = CapsuleResp {
        result: 0x0807_0605_0403_0201.into(),
        sq_head: 9.into(),
        sq_id: 2.into(),
        cid: 7.into(),
        status: 0x8002.into(),
        ..CapsuleResp::blank(0)
    };
    check_format(&golden, built);
}

#[test]
fn data_transfer_formats() {
    let golden = [6, 4, 24, 0, 24, 0, 0, 0, 7, 0, 3, 0, 0, 16, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0];
    let (cid, tag, offset, data_len) = (7.into(), 3.into(), 4096.into(), 8192.into());
    check_format(&golden, H2cData { cid, tag, offset, data_len, ..H2cData::blank(LAST) });
    let golden = [7, 12, 24, 0, 24, 0, 0, 0, 7, 0, 0, 0, 0, 16, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0];
    check_format(&golden, C2hData { cid, offset, data_len, ..C2hData::blank(LAST | SUCCESS) });
    let golden = [9, 0, 24, 0, 24, 0, 0, 0, 7, 0, 3, 0, 0, 16, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0];
    check_format(&golden, R2t { cid, tag, offset, data_len, ..R2t::blank(0) });
}

#[test]
fn digests_match_the_vectors_of_rfc_3720() {
    assert_eq!(digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
    assert_eq!(digest(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
}

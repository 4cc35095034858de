use super::*;
use proptest::prelude::*;

/// The bytes of a string of hexadecimal digits.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter_map(|c| c.to_digit(16)).map(|d| u8::try_from(d).expect("a digit")).collect();
    digits.chunks(2).map(|pair| pair[0] * 16 + pair[1]).collect()
}

/// The four tests of a format: each field is at the offset of the standard; a header overwrites whatever was there; it
/// is recognized by its opcode; a parsed header is emitted unchanged.
macro_rules! golden {
    ($name:ident: $format:ident, $bytes:literal, { $($field:ident: $value:expr),* $(,)? }) => {
        mod $name {
            use super::*;

            fn value() -> $format {
                $format { $($field: $value,)* ..$format::blank() }
            }

            #[test]
            fn deconstruct() {
                let bytes = hex($bytes);
                let view = $format::ref_from_bytes(&bytes).expect("48 bytes");
                $(assert_eq!(view.$field, $value, stringify!($field));)*
            }

            #[test]
            fn construct() {
                let mut bytes = [0xa5; BHS_LEN];
                let view = $format::mut_from_bytes(&mut bytes).expect("48 bytes");
                *view = $format::blank();
                $(view.$field = $value;)*
                assert_eq!(bytes[..], hex($bytes)[..]);
            }

            #[test]
            fn parse() {
                let mut bytes = hex($bytes);
                let header = Bhs::peek(&bytes).expect("48 bytes");
                assert_eq!(header.opcode(), $format::OPCODE);
                assert_eq!(header.as_pdu::<$format>(), Some(&value()));
                assert!(Bhs::peek(&bytes[..47]).is_none());
                bytes[0] ^= 0x01;
                assert!(Bhs::peek(&bytes).and_then(|header| header.as_pdu::<$format>()).is_none());
            }

            #[test]
            fn emit() {
                assert_eq!(value().as_bytes(), hex($bytes));
                assert_eq!(value().bhs().as_bytes(), hex($bytes));
            }
        }
    };
}

const LUN: [u8; 8] = [0, 1, 0, 0, 0, 0, 0, 0];

fn n(value: u32) -> U32 {
    U32::new(value)
}

golden!(scsi_command: ScsiCommand,
    "01a10000 00000200 0001000000000000 1a2b3c4d 00001000 00000011 00000022 2a000000 01000000 08000000 00000000", {
    flags: FINAL | WRITE | 1,
    data_len: U24::new(512),
    lun: LUN,
    itt: n(0x1a2b_3c4d),
    expected_len: n(4096),
    cmd_sn: n(0x11),
    exp_stat_sn: n(0x22),
    cdb: [0x2a, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0],
});
golden!(scsi_response: ScsiResponse,
    "21820102 00000014 0000000000000000 1a2b3c4d 00000000 00000022 00000012 00000091 00000003 00000000 00000e00", {
    flags: FINAL | UNDERFLOW,
    response: Response::TARGET_FAILURE,
    status: 2,
    data_len: U24::new(20),
    itt: n(0x1a2b_3c4d),
    stat_sn: n(0x22),
    exp_cmd_sn: n(0x12),
    max_cmd_sn: n(0x91),
    exp_data_sn: n(3),
    residual: n(3584),
});
golden!(task_management_request: TaskManagementRequest,
    "42810000 00000000 0001000000000000 1a2b3c4e 1a2b3c4d 00000012 00000023 00000011 00000004 0000000000000000", {
    first: First::new(Opcode::TASK_MANAGEMENT_REQUEST).immediately(),
    flags: FINAL | Function::ABORT_TASK.0,
    lun: LUN,
    itt: n(0x1a2b_3c4e),
    referenced_tag: n(0x1a2b_3c4d),
    cmd_sn: n(0x12),
    exp_stat_sn: n(0x23),
    ref_cmd_sn: n(0x11),
    exp_data_sn: n(4),
});
golden!(task_management_response: TaskManagementResponse,
    "22800500 00000000 162a090000000000 1a2b3c4e 00000000 00000023 00000012 00000091 000000000000000000000000", {
    response: FunctionResponse::NOT_SUPPORTED,
    information: [0x16, 0x2a, 0x09],
    itt: n(0x1a2b_3c4e),
    stat_sn: n(0x23),
    exp_cmd_sn: n(0x12),
    max_cmd_sn: n(0x91),
});
golden!(data_out: DataOut,
    "05800000 00000400 0001000000000000 1a2b3c4d 00000007 00000000 00000022 00000000 00000001 00000c00 00000000", {
    data_len: U24::new(1024),
    lun: LUN,
    itt: n(0x1a2b_3c4d),
    ttt: n(7),
    exp_stat_sn: n(0x22),
    data_sn: n(1),
    offset: n(3072),
});
golden!(data_in: DataIn,
    "25850018 00000200 0000000000000000 1a2b3c4d ffffffff 00000022 00000012 00000091 00000002 00000400 00000100", {
    flags: FINAL | OVERFLOW | STATUS,
    status: 0x18,
    data_len: U24::new(512),
    itt: n(0x1a2b_3c4d),
    ttt: n(NO_TAG),
    stat_sn: n(0x22),
    exp_cmd_sn: n(0x12),
    max_cmd_sn: n(0x91),
    data_sn: n(2),
    offset: n(1024),
    residual: n(256),
});
golden!(r2t: R2t,
    "31800000 00000000 0001000000000000 1a2b3c4d 00000007 00000022 00000012 00000091 00000001 00010000 00040000", {
    lun: LUN,
    itt: n(0x1a2b_3c4d),
    ttt: n(7),
    stat_sn: n(0x22),
    exp_cmd_sn: n(0x12),
    max_cmd_sn: n(0x91),
    r2t_sn: n(1),
    offset: n(65_536),
    desired_len: n(262_144),
});
golden!(async_message: AsyncMessage,
    "32800000 00000000 0001000000000000 ffffffff 00000000 00000022 00000012 00000091 01990102 03040506 00000000", {
    lun: LUN,
    itt: n(NO_TAG),
    stat_sn: n(0x22),
    exp_cmd_sn: n(0x12),
    max_cmd_sn: n(0x91),
    event: AsyncEvent::REQUEST_LOGOUT,
    vendor_code: 0x99,
    parameter1: U16::new(0x0102),
    parameter2: U16::new(0x0304),
    parameter3: U16::new(0x0506),
});
golden!(text_request: TextRequest,
    "04800000 00000010 0001000000000000 1a2b3c4d ffffffff 00000012 00000023 00000000000000000000000000000000", {
    data_len: U24::new(16),
    lun: LUN,
    itt: n(0x1a2b_3c4d),
    ttt: n(NO_TAG),
    cmd_sn: n(0x12),
    exp_stat_sn: n(0x23),
});
golden!(text_response: TextResponse,
    "24400000 00002000 0001000000000000 1a2b3c4d 00000009 00000023 00000012 00000091 000000000000000000000000", {
    flags: CONTINUE,
    data_len: U24::new(8192),
    lun: LUN,
    itt: n(0x1a2b_3c4d),
    ttt: n(9),
    stat_sn: n(0x23),
    exp_cmd_sn: n(0x12),
    max_cmd_sn: n(0x91),
});
golden!(login_request: LoginRequest,
    "43870201 00000080 400102030405 0607 1a2b3c4d 00030000 00000012 00000023 00000000000000000000000000000000", {
    first: First::new(Opcode::LOGIN_REQUEST).immediately(),
    flags: login_flags(Stage::OPERATIONAL, Some(Stage::FULL_FEATURE)),
    version_max: 2,
    version_min: 1,
    data_len: U24::new(128),
    isid: [0x40, 1, 2, 3, 4, 5],
    tsih: U16::new(0x0607),
    itt: n(0x1a2b_3c4d),
    cid: U16::new(3),
    cmd_sn: n(0x12),
    exp_stat_sn: n(0x23),
});
golden!(login_response: LoginResponse,
    "23810201 00000080 400102030405 0607 1a2b3c4d 00000000 00000023 00000012 00000091 02070000 0000000000000000", {
    flags: login_flags(Stage::SECURITY, Some(Stage::OPERATIONAL)),
    version_max: 2,
    version_active: 1,
    data_len: U24::new(128),
    isid: [0x40, 1, 2, 3, 4, 5],
    tsih: U16::new(0x0607),
    itt: n(0x1a2b_3c4d),
    stat_sn: n(0x23),
    exp_cmd_sn: n(0x12),
    max_cmd_sn: n(0x91),
    status: U16::new(LoginStatus::MISSING_PARAMETER.0),
});
golden!(logout_request: LogoutRequest,
    "46810000 00000000 0000000000000000 1a2b3c4d 00030000 00000012 00000023 00000000000000000000000000000000", {
    first: First::new(Opcode::LOGOUT_REQUEST).immediately(),
    flags: FINAL | LogoutReason::CLOSE_CONNECTION.0,
    itt: n(0x1a2b_3c4d),
    cid: U16::new(3),
    cmd_sn: n(0x12),
    exp_stat_sn: n(0x23),
});
golden!(logout_response: LogoutResponse,
    "26800100 00000000 0000000000000000 1a2b3c4d 00000000 00000023 00000012 00000091 00000000 00020014 00000000", {
    response: LogoutOutcome::NO_CONNECTION,
    itt: n(0x1a2b_3c4d),
    stat_sn: n(0x23),
    exp_cmd_sn: n(0x12),
    max_cmd_sn: n(0x91),
    time_to_wait: U16::new(2),
    time_to_retain: U16::new(20),
});
golden!(snack: Snack,
    "10810000 00000000 0001000000000000 1a2b3c4d ffffffff 00000000 00000023 0000000000000000 00000004 00000002", {
    flags: FINAL | 1,
    lun: LUN,
    itt: n(0x1a2b_3c4d),
    ttt: n(NO_TAG),
    exp_stat_sn: n(0x23),
    first_missing: n(4),
    run_len: n(2),
});
golden!(reject: Reject,
    "3f800400 00000030 0000000000000000 ffffffff 00000000 00000023 00000012 00000091 00000005 0000000000000000", {
    reason: RejectReason::PROTOCOL_ERROR,
    data_len: U24::new(48),
    itt: n(NO_TAG),
    stat_sn: n(0x23),
    exp_cmd_sn: n(0x12),
    max_cmd_sn: n(0x91),
    data_sn: n(5),
});
golden!(nop_out: NopOut,
    "40800000 00000000 0001000000000000 ffffffff 00000008 00000012 00000023 00000000000000000000000000000000", {
    first: First::new(Opcode::NOP_OUT).immediately(),
    lun: LUN,
    itt: n(NO_TAG),
    ttt: n(8),
    cmd_sn: n(0x12),
    exp_stat_sn: n(0x23),
});
golden!(nop_in: NopIn,
    "20800000 00000004 0001000000000000 1a2b3c4d ffffffff 00000023 00000012 00000091 000000000000000000000000", {
    data_len: U24::new(4),
    lun: LUN,
    itt: n(0x1a2b_3c4d),
    ttt: n(NO_TAG),
    stat_sn: n(0x23),
    exp_cmd_sn: n(0x12),
    max_cmd_sn: n(0x91),
});

#[test]
fn unknown_codes_are_printed_as_numbers() {
    assert_eq!(format!("{:?} {:?}", Opcode::R2T, Opcode(0x3e)), "R2T Opcode(0x3e)");
    assert_eq!(format!("{:?}", LoginStatus(0x0242)), "LoginStatus(0x242)");
    let mut bytes = [0u8; BHS_LEN];
    bytes[0] = 0x7e;
    bytes[4] = 2;
    bytes[7] = 9;
    let header = Bhs::peek(&bytes).expect("48 bytes");
    assert_eq!(format!("{header:?}"), "Opcode(0x3e)! flags=00 itt=00000000 ahs=8 data=9");
    assert_eq!((header.ahs_len(), header.padded_len()), (8, 12));
    assert!(header.first.is_immediate());
}

#[test]
fn three_byte_numbers_are_big_endian() {
    assert_eq!((U24::new(0x01_0203).get(), U24::new(U24::MAX).get()), (0x01_0203, 0xff_ffff));
    assert_eq!(U24::new(0x01_0203).as_bytes(), [1, 2, 3]);
}

#[test]
#[should_panic(expected = "does not fit")]
fn a_number_of_more_than_three_bytes_panics() {
    let _ = U24::new(U24::MAX + 1);
}

#[test]
fn stages_are_at_the_bits_of_the_standard() {
    assert_eq!(login_flags(Stage::SECURITY, None), 0x00);
    assert_eq!(login_flags(Stage::OPERATIONAL, None), 0x04);
    assert_eq!(login_flags(Stage::OPERATIONAL, Some(Stage::FULL_FEATURE)), 0x87);
    let request = LoginRequest { flags: 0x87, ..LoginRequest::blank() };
    assert_eq!((request.stage(), request.next_stage()), (Stage::OPERATIONAL, Stage::FULL_FEATURE));
    let response = LoginResponse { flags: 0x81, ..LoginResponse::blank() };
    assert_eq!((response.stage(), response.next_stage()), (Stage::SECURITY, Stage::OPERATIONAL));
}

#[test]
fn additional_headers_are_iterated() {
    let mut bytes = hex("0011 01 00 000102030405060708090a0b0c0d0e0f");
    bytes.extend(hex("0005 02 00 00001000"));
    bytes.extend(hex("0001 3f 00"));
    let segments: Result<Vec<_>, _> = AhsWalk::new(&bytes).collect();
    let cdb: Vec<u8> = (0..16).collect();
    assert_eq!(segments, Ok(vec![Ahs::ExtendedCdb(&cdb), Ahs::BidiReadLen(4096), Ahs::Unknown(0x3f)]));
}

#[test]
fn additional_headers_with_wrong_lengths_are_errors() {
    for bad in [
        "00",
        "0000",
        "0010 01 00",
        "0005 02 00 000010",
        "0004 02 00 000010",
        "0000 01 00",
        "0001 01 00",
        "0006 02 00 0000100000",
        "ffff 01 00",
    ] {
        let mut walk = AhsWalk::new(&hex(bad)).map(|s| s.map(|_| ())).collect::<Vec<_>>();
        assert_eq!(walk.pop(), Some(Err(BadAhs)), "{bad}");
        assert!(walk.iter().all(Result::is_ok));
    }
    assert_eq!(AhsWalk::new(&[]).count(), 0);
}

#[test]
fn a_long_cdb_has_an_additional_header() {
    let cdb: Vec<u8> = (0..32).collect();
    let bytes = extended_cdb(&cdb);
    assert_eq!(bytes, hex("0011 01 00 101112131415161718191a1b1c1d1e1f"));
    assert_eq!(extended_cdb(&cdb[..16]), [0_u8; 0]);
    let bytes = extended_cdb(&cdb[..17]);
    assert_eq!(bytes, hex("0002 01 00 10000000"));
    assert_eq!(AhsWalk::new(&bytes).collect::<Vec<_>>(), [Ok(Ahs::ExtendedCdb(&[16]))]);
    assert_eq!(extended_cdb(&[0; 260]).len(), 248);
}

#[test]
fn digests_match_the_vectors_of_rfc_7143() {
    // RFC 7143 appendix A.4 has these.
    assert_eq!(digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
    assert_eq!(digest(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
    let rising: Vec<u8> = (0..32).collect();
    assert_eq!(digest(&rising), [0x4e, 0x79, 0xdd, 0x46]);
    let mut parts = Digest::new();
    parts.update(&rising[..5]).update(&rising[5..]).pad(32);
    assert_eq!(parts.bytes(), digest(&rising));
    assert_eq!(Digest::new().update(b"a").pad(1).bytes(), digest(b"a\0\0\0"));
}

proptest! {
    #[test]
    fn any_additional_headers_are_iterated_to_an_end(bytes: Vec<u8>) {
        prop_assert!(AhsWalk::new(&bytes).count() <= bytes.len() + 1);
    }

    #[test]
    fn a_long_cdb_is_parsed_as_it_was_built(rest in prop::collection::vec(any::<u8>(), 1..244)) {
        let cdb = [&[0; 16][..], &rest].concat();
        let bytes = extended_cdb(&cdb);
        let segments: Result<Vec<_>, _> = AhsWalk::new(&bytes).collect();
        prop_assert_eq!(segments, Ok(vec![Ahs::ExtendedCdb(&rest)]));
    }
}

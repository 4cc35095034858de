use super::*;
use std::fmt::Debug;

/// Formats are parsed from golden bytes and emitted as the same bytes.
fn golden<T: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + PartialEq + Debug>(bytes: &[u8], value: &T) {
    assert_eq!(T::ref_from_bytes(bytes).ok(), Some(value));
    let mut out = vec![0xa5; bytes.len()];
    value.write_to(&mut out[..]).expect("as long as the format");
    assert_eq!(out, bytes);
    assert!(T::ref_from_bytes(&bytes[1..]).is_err());
}

#[test]
fn formats_have_the_bytes_of_the_standard() {
    let address = Address { shelf: 1, slot: 2 };
    let request = Header::request(address, Command::ATA, 0x02ec_5540);
    golden(&[0x10, 0, 0, 1, 2, 0, 2, 0xec, 0x55, 0x40], &request);
    golden(&[0x18, 0, 0, 1, 2, 0, 2, 0xec, 0x55, 0x40], &request.response(address, None));
    golden(&[0x1c, 6, 0, 1, 2, 0, 2, 0xec, 0x55, 0x40], &request.response(address, Some(ErrorCode::TARGET_RESERVED)));
    golden(
        &[0x41, 0, 1, 0x34, 8, 7, 6, 5, 4, 3, 0, 0],
        &AtaPart::request(AtaCommand::WRITE_SECTORS_EXT, 0x0304_0506_0708, 1),
    );
    let config = ConfigPart {
        buffers: 16.into(),
        firmware: 0x4019.into(),
        sectors: 2,
        version_and_command: 0x13,
        len: 0x0102.into(),
    };
    golden(&[0, 16, 0x40, 0x19, 2, 0x13, 1, 2], &config);
    assert_eq!(config.command(), ConfigCommand::SET);
    golden(&[0, 1, 2, 3], &MaskPart { reserved: 0, command: 1, error: 2, count: 3 });
    golden(&[0, 2, 1, 2, 3, 4, 5, 6], &Directive { reserved: 0, command: 2, mac: [1, 2, 3, 4, 5, 6] });
    golden(&[2, 3], &ReservePart { command: 2, count: 3 });
    assert_eq!((HEADER_LEN, ATA_LEN), (24, 36));
}

#[test]
fn an_lba_has_28_or_48_bits() {
    let part = AtaPart::request(AtaCommand::READ_SECTORS_EXT, 0xffee_ddcc_bbaa, 1);
    assert_eq!((part.lba48(), part.lba28()), (0xffee_ddcc_bbaa, 0x0dcc_bbaa & 0x0fff_ffff));
}

#[test]
fn addresses_name_one_target_or_several() {
    let of = |shelf, slot| Address { shelf, slot };
    let target = of(1, 2);
    for (address, names, is_wildcard) in [
        (of(1, 2), true, false),
        (of(ALL_SHELVES, 2), true, true),
        (of(1, ALL_SLOTS), true, true),
        (Address::ALL, true, true),
        (of(1, 3), false, false),
        (of(2, ALL_SLOTS), false, true),
    ] {
        assert_eq!((address.names(target), address.is_wildcard()), (names, is_wildcard), "{address}");
    }
    assert_eq!(("17.3".parse(), target.to_string()), (Ok(of(17, 3)), "1.2".to_owned()));
    for text in ["", "1", "1.256", "65536.0", "a.b", "1.2.3"] {
        assert!(text.parse::<Address>().is_err(), "{text}");
    }
}

#[test]
fn mac_addresses_are_written_with_colons() {
    assert_eq!(mac_of("52:54:00:aB:34:02"), Some(MacAddress([0x52, 0x54, 0, 0xab, 0x34, 2])));
    for text in ["", "52:54:00:12:34", "52:54:00:12:34:02:", "52-54-00-12-34-02", "5:54:00:12:34:02"] {
        assert_eq!(mac_of(text), None, "{text}");
    }
}

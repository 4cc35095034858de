use super::*;
use proptest::prelude::*;

/// Decodes hexadecimal digits.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter_map(|c| c.to_digit(16)).map(|d| u8::try_from(d).expect("a digit")).collect();
    digits.chunks(2).map(|pair| pair[0] * 16 + pair[1]).collect()
}

/// The header of a registration request of one PDU with the replace flag.
const HEADER: &str = "0001 0001 0078 9c00 0007 0000";

fn header() -> Header {
    let flags = FROM_CLIENT | REPLACE | LAST | FIRST;
    Header {
        version: VERSION.into(),
        function: Function::DEV_ATTR_REG.0.into(),
        length: 0x78.into(),
        flags: flags.into(),
        transaction: 7.into(),
        sequence: 0.into(),
    }
}

#[test]
fn golden_bytes_are_a_header() {
    let bytes = hex(HEADER);
    let view = Header::ref_from_bytes(&bytes).expect("12 bytes");
    assert_eq!((view.version.get(), view.function(), view.length.get()), (1, Function::DEV_ATTR_REG, 0x78));
    assert_eq!((view.transaction.get(), view.sequence.get()), (7, 0));
    assert!(view.has(FROM_CLIENT) && view.has(REPLACE) && view.has(FIRST) && view.has(LAST));
    assert!(!view.has(FROM_SERVER) && !view.has(SIGNED));
}

#[test]
fn a_header_is_built_over_any_bytes() {
    let mut bytes = [0xa5; HEADER_LEN];
    let view = Header::mut_from_bytes(&mut bytes).expect("12 bytes");
    *view = header();
    assert_eq!(bytes[..], hex(HEADER)[..]);
}

#[test]
fn a_header_is_parsed() {
    let bytes = hex(HEADER);
    assert_eq!(Header::read_from_prefix(&bytes).map(|(header, rest)| (header, rest.len())), Ok((header(), 0)));
    assert!(Header::read_from_prefix(&bytes[..11]).is_err());
    assert_eq!(header().function().response(), Function::DEV_ATTR_REG_RSP);
}

#[test]
fn a_header_is_emitted_as_it_was_parsed() {
    assert_eq!(header().as_bytes(), hex(HEADER));
}

/// An iSCSI name of 18 bytes with its NUL, padded to 20; a portal at 192.0.2.7, port 3260; a delimiter; a portal group
/// tag without a value.
const ATTRIBUTES: &str = "00000020 00000014 69716e2e 32303236 2d30312e 6f72672e 783a0000
    00000010 00000010 00000000 00000000 0000ffff c0000207  00000011 00000004 00000cbc
    00000000 00000000  00000033 00000000";

fn attributes() -> Payload {
    let mut payload = Payload::default();
    payload.text(Tag::ISCSI_NAME, "iqn.2026-01.org.x:", NAME_MAX);
    payload.address(Tag::PORTAL_ADDRESS, [192, 0, 2, 7].into()).number(Tag::PORTAL_PORT, 3260);
    payload.empty(Tag::DELIMITER).empty(Tag::PG_TAG);
    payload
}

#[test]
fn golden_bytes_are_attributes() {
    let bytes = hex(ATTRIBUTES);
    let all: Result<Vec<_>, _> = Attributes::of(&bytes).collect();
    let all = all.expect("well formed");
    let tags: Vec<Tag> = all.iter().map(|attribute| attribute.tag).collect();
    let desired = [Tag::ISCSI_NAME, Tag::PORTAL_ADDRESS, Tag::PORTAL_PORT, Tag::DELIMITER, Tag::PG_TAG];
    assert_eq!(tags, desired);
    assert_eq!((all[0].text(), all[2].number()), (Some("iqn.2026-01.org.x:"), Some(3260)));
    assert_eq!((all[0].number(), all[4].number(), all[4].text()), (None, None, Some("")));
}

#[test]
fn attributes_are_encoded() {
    assert_eq!(attributes().bytes(), hex(ATTRIBUTES));
}

#[test]
fn the_length_of_a_value_may_exclude_its_padding() {
    let bytes = hex("00000020 00000005 61626364 65000000 00000006 00000004 0000003c");
    let all: Result<Vec<_>, _> = Attributes::of(&bytes).collect();
    let all = all.expect("well formed");
    assert_eq!((all[0].text(), all[1].number()), (Some("abcde"), Some(60)));
}

#[test]
fn a_malformed_attribute_ends_the_list() {
    for bytes in ["00000020 00000005 61626364", "00000020 ffffffff 61626364", "00000020 000000", "00000020 0000fffd 00"]
    {
        let found: Vec<_> = Attributes::of(&hex(bytes)).map(|attribute| attribute.is_ok()).collect();
        assert_eq!(found, [false], "{bytes}");
    }
    let cut = Attribute { tag: Tag::ISCSI_NAME, value: &[0xff, 0xfe] };
    assert_eq!(cut.text(), None);
}

#[test]
fn texts_are_cut_at_character_boundaries() {
    let mut payload = Payload::default();
    payload.text(Tag::ISCSI_ALIAS, &"ü".repeat(200), ALIAS_MAX);
    let alias = Attributes::of(payload.bytes()).next().and_then(Result::ok).expect("it is there");
    assert_eq!((alias.value.len(), alias.text().map(str::len)), (256, Some(254)));
}

#[test]
fn a_request_is_one_pdu() {
    let bytes = request(Function::DEV_DEREG, 0, 9, &attributes());
    let (header, payload) = Header::read_from_prefix(&bytes).expect("a header");
    assert_eq!((header.function(), header.flags.get()), (Function::DEV_DEREG, FROM_CLIENT | FIRST | LAST));
    assert_eq!((usize::from(header.length.get()), payload), (payload.len(), attributes().bytes()));
}

proptest! {
    #[test]
    fn any_bytes_are_a_bounded_list(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Attributes::of(&bytes).count() <= bytes.len() / 8 + 1);
    }
}

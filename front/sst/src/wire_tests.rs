use super::*;
use proptest::prelude::*;

const NAME: &str = "iqn.2026-01.org.example:host";

fn command(cdb: &[u8]) -> CommandBlock<'_> {
    let command = fcp::Command { lun: [0, 1, 2, 3, 4, 5, 6, 7], attribute: 2, task: 0, cdb, data_in: 512, data_out: 0 };
    CommandBlock { command, tag: 0x1234_5678, transfer: 0x9abc, flags: flags::DATA_IN, name: name_hash(NAME) }
}

#[test]
fn commands_have_their_fields_at_these_places() {
    let mut cdb = [0; 16];
    cdb[0] = 0x88;
    let bytes = command(&cdb).bytes();
    assert_eq!(bytes[..8], [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((bytes[9], bytes[10], bytes[11], bytes[12]), (2, 0, 2, 0x88));
    assert_eq!(bytes[28..32], [0, 0, 2, 0]);
    assert_eq!(bytes[32..48], [0; 16]);
    assert_eq!(bytes[48..56], [0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0, 2]);
    assert_eq!(CommandBlock::parse(&bytes), Ok(command(&cdb)));
    let long = [0x7f; 32];
    let bytes = command(&long).bytes();
    assert_eq!((bytes[11] >> 2, &bytes[44..48]), (4, &[0, 0, 2, 0][..]));
    assert_eq!(CommandBlock::parse(&bytes), Ok(command(&long)));
}

#[test]
fn commands_whose_parts_contradict_each_other_are_refused() {
    let cdb = [0; 16];
    let good = command(&cdb);
    for bad in [
        CommandBlock { transfer: 0, ..good },
        CommandBlock { flags: flags::DATA_OUT, ..good },
        CommandBlock { flags: 0, ..good },
        CommandBlock { command: fcp::Command { data_in: 0, ..good.command }, ..good },
        CommandBlock { command: fcp::Command { data_in: DATA_MAX + 1, ..good.command }, ..good },
    ] {
        assert_eq!(CommandBlock::parse(&bad.bytes()), Err(BadCommand { tag: good.tag }), "{bad:?}");
    }
    let mut long = good.bytes();
    long[11] |= 5 << 2;
    assert!(CommandBlock::parse(&long).is_err(), "a CDB of 36 bytes");
}

#[test]
fn logins_have_plain_names() {
    let login = Login { depth: 32, initiator: NAME, target: "iqn.2026-01.org.example:t" };
    let bytes = login.bytes();
    assert_eq!(bytes[..8], [0, 1, 0, 32, 28, 25, 0, 0]);
    assert_eq!(Login::parse(&bytes), Ok(login.clone()));
    let parse = |initiator: &str, target: &str| Login::parse(&Login { depth: 1, initiator, target }.bytes()).map(drop);
    assert_eq!(parse("naa.1", ""), Ok(()));
    for (initiator, target) in [("", ""), ("host", ""), ("iqn.a,i,0x1", ""), ("iqn.a b", ""), ("iqn.a", "b\n")] {
        assert_eq!(parse(initiator, target), Err(LoginStatus::MALFORMED), "{initiator} {target}");
    }
    let mut other = bytes.clone();
    other[1] = 2;
    assert_eq!(Login::parse(&other), Err(LoginStatus::VERSION));
    assert_eq!(Login::parse(&bytes[..bytes.len() - 1]), Err(LoginStatus::MALFORMED));
    let answer = LoginAnswer::new(LoginStatus::GOOD, 7);
    assert_eq!(answer.as_bytes(), [0, 0, 0, 7, 0, 4, 0, 0]);
    assert_eq!(LoginAnswer::parse(answer.as_bytes()), Some(answer));
}

proptest! {
    #[test]
    fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
        crate::fuzzing::formats(&bytes);
    }
}

use super::*;
use crate::slot::MASKS_MAX;
use crate::wire::{ALL_SHELVES, ALL_SLOTS, EXTENDED, MaskDirective, RESPONSE, WRITE};
use proptest::prelude::*;

const STATION: MacAddress = MacAddress([0x52, 0x54, 0, 0x12, 0x34, 2]);
const OTHER: MacAddress = MacAddress([0x52, 0x54, 0, 0x12, 0x34, 9]);
const ADDRESS: Address = Address { shelf: 1, slot: 2 };

/// The bytes of a frame behind the Ethernet header, as recorded between the initiator of Linux 6.12 and vblade.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&String::from_utf8_lossy(pair), 16).expect("digits")).collect()
}

fn state(string: &str, masks: &[MacAddress]) -> SlotState {
    SlotState { string: string.into(), masks: masks.to_vec() }
}

fn verdict_of(payload: &[u8], state: &SlotState) -> Option<Verdict> {
    let request = Request::parse(STATION, payload)?;
    Some(decide(&request, &Target { address: ADDRESS, state, sectors: 2 }))
}

fn verdict(payload: &[u8]) -> Verdict {
    verdict_of(payload, &SlotState::default()).expect("a request")
}

fn request(command: Command, address: Address, rest: &[u8]) -> Vec<u8> {
    [Header::request(address, command, 7).as_bytes(), rest].concat()
}

fn ata_request(command: AtaCommand, lba: u64, count: u8, data: usize) -> Vec<u8> {
    let part = AtaPart::request(command, lba, count);
    request(Command::ATA, ADDRESS, &[part.as_bytes(), &vec![0x5a; data][..]].concat())
}

fn config_request(command: ConfigCommand, address: Address, string: &[u8]) -> Vec<u8> {
    let part = ConfigPart {
        buffers: 0.into(),
        firmware: 0.into(),
        sectors: 0,
        version_and_command: 0x10 | command.0,
        len: (string.len() as u16).into(),
    };
    request(Command::CONFIG, address, &[part.as_bytes(), string].concat())
}

fn error_of(verdict: &Verdict) -> Option<u8> {
    match verdict {
        Verdict::Answer(answer) if answer[0] & 4 != 0 => Some(answer[1]),
        _ => None,
    }
}

#[test]
fn the_query_of_linux_is_answered_as_vblade_does() {
    let recorded = hex("1000 ffff ff 01 00000000 0000000000000000");
    let Verdict::Answer(answer) = verdict(&recorded) else { panic!("no answer") };
    // vblade: 1800 0001 02 01 00000000 0010 4019 02 10 0000, with its own buffers and firmware.
    assert_eq!(answer[..10], hex("1800 0001 02 01 00000000"));
    assert_eq!(answer[10..18], hex("0040 0001 02 10 0000"));
    assert_eq!((answer.len(), &answer[18..]), (FRAME_MIN - 14, &[0; 28][..]));
    let announced = config_answer(None, &Target { address: ADDRESS, state: &SlotState::default(), sectors: 17 }, b"x");
    assert_eq!(announced[..19], hex("1800 0001 02 01 00000000 0040 0001 11 10 0001 78"));
}

#[test]
fn the_ata_commands_of_linux_are_understood() {
    let identify = hex("1000 0001 02 00 0001ec4e 000001ec 000000a00000 0000");
    assert_eq!(verdict(&identify), Verdict::Ata(Ata::Identify));
    let read = hex("1000 0001 02 00 0002ec55 40000224 000000000000 0000");
    assert_eq!(verdict(&read), Verdict::Ata(Ata::Read(Sectors { lba: 0, count: 2 })));
    let write = [hex("1000 0001 02 00 000fec8d 41000134 080000000000 0000"), vec![0x41; 512]].concat();
    assert_eq!(verdict(&write), Verdict::Ata(Ata::Write(Sectors { lba: 8, count: 1 })));
    let request = Request::parse(STATION, &write).expect("a request");
    let (part, _) = AtaPart::ref_from_prefix(request.body).expect("whole");
    let answer = ata_answer(request.header, ADDRESS, part, Registers::GOOD);
    assert_eq!(answer[..], hex("1800 0001 02 00 000fec8d 41000040 080000000000 0000"), "as recorded");
}

#[test]
fn ata_commands_have_their_registers() {
    use AtaCommand as C;
    let registers = |payload: &[u8]| match verdict(payload) {
        Verdict::Answer(answer) => (answer[13], answer[11], answer[12]),
        other => panic!("{other:?}"),
    };
    let part = |command: AtaCommand, lba: [u8; 6], count| {
        let part =
            AtaPart { flags: 0, feature_or_error: 0, count, command_or_status: command.0, lba, reserved: [0; 2] };
        request(Command::ATA, ADDRESS, part.as_bytes())
    };
    // The high four bits of the fourth byte are no part of an LBA of 28 bits.
    let short = Verdict::Ata(Ata::Read(Sectors { lba: 0x0403_0201, count: 1 }));
    assert_eq!(verdict(&part(C::READ_SECTORS, [1, 2, 3, 0xe4, 5, 6], 1)), short);
    assert_eq!(verdict(&ata_request(C::FLUSH_CACHE, 0, 0, 0)), Verdict::Ata(Ata::Flush));
    assert_eq!(verdict(&ata_request(C::FLUSH_CACHE_EXT, 0, 0, 0)), Verdict::Ata(Ata::Flush));
    let verify = Verdict::Ata(Ata::Verify(Sectors { lba: 9, count: 200 }));
    assert_eq!(verdict(&ata_request(C::READ_VERIFY_SECTORS_EXT, 9, 200, 0)), verify);
    assert_eq!(registers(&ata_request(C::CHECK_POWER_MODE, 0, 0, 0)), (0x40, 0, 0xff));
    assert_eq!(registers(&ata_request(C::IDLE_IMMEDIATE, 0, 0, 0)), (0x40, 0, 0));
    for aborted in [
        ata_request(C(0xb0), 0, 1, 0),
        ata_request(C::NOP, 0, 0, 0),
        ata_request(C::IDENTIFY_DEVICE, 0, 2, 0),
        ata_request(C::READ_SECTORS_EXT, 0, 3, 0),
        ata_request(C::READ_SECTORS_EXT, 0, 0, 0),
        ata_request(C::WRITE_SECTORS_EXT, 0, 3, 3 * SECTOR),
        ata_request(C::WRITE_SECTORS_EXT, 0, 0, 0),
    ] {
        assert_eq!(registers(&aborted).0, 0x41);
        assert_eq!(registers(&aborted).1, ABORTED);
    }
    assert_eq!((EXTENDED | WRITE, sectors_of(1500), sectors_of(9000), sectors_of(9216)), (0x41, 2, 17, 17));
}

#[test]
fn a_frame_without_all_bytes_of_its_command_is_ignored() {
    let whole = ata_request(AtaCommand::WRITE_SECTORS_EXT, 0, 2, 2 * SECTOR);
    assert!(matches!(verdict(&whole), Verdict::Ata(_)));
    for len in 10..whole.len() {
        assert_eq!(verdict(&whole[..len]), Verdict::Ignore, "{len}");
    }
    assert!(Request::parse(STATION, &whole[..9]).is_none());
    let set = config_request(ConfigCommand::FORCE_SET, ADDRESS, b"name");
    assert_eq!(verdict(&set[..set.len() - 1]), Verdict::Ignore);
    let edit = request(Command::MASK, ADDRESS, &[0, 1, 0, 2, 0, 1, 2, 0, 0, 0, 0, 1]);
    assert_eq!(verdict(&edit), Verdict::Ignore);
    assert_eq!(verdict(&request(Command::RESERVE, ADDRESS, &[1, 1, 2, 0, 0, 0, 0])), Verdict::Ignore);
}

#[test]
fn responses_other_versions_and_unknown_commands() {
    let mut response = config_request(ConfigCommand::READ, ADDRESS, b"");
    response[0] |= 8;
    assert_eq!(verdict_of(&response, &SlotState::default()), None);
    let mut version = config_request(ConfigCommand::READ, ADDRESS, b"");
    version[0] = 0x20;
    assert_eq!(error_of(&verdict(&version)), Some(5));
    assert_eq!(error_of(&verdict(&request(Command(0xf0), ADDRESS, &[]))), Some(1));
    let all = Address { shelf: ALL_SHELVES, slot: ALL_SLOTS };
    version[2..5].fill(0xff);
    for silent in [version, request(Command(0xf0), all, &[]), request(Command::RESERVE, all, &[0, 0])] {
        assert_eq!(verdict(&silent), Verdict::Ignore, "only a query is answered by several targets");
    }
}

#[test]
fn configuration_strings_are_tested_and_set() {
    use ConfigCommand as C;
    let (empty, named) = (state("", &[]), state("name", &[]));
    let decide =
        |command, string: &[u8], state| verdict_of(&config_request(command, ADDRESS, string), state).expect("one");
    let is_answer = |verdict: Verdict| {
        matches!(&verdict, Verdict::Answer(answer) if error_of(&verdict).is_none()
        && answer[18..].starts_with(b"name"))
    };
    assert!(is_answer(decide(C::READ, b"", &named)));
    assert!(is_answer(decide(C::TEST_EXACT, b"name", &named)));
    assert!(is_answer(decide(C::TEST_PREFIX, b"na", &named)));
    assert_eq!(decide(C::TEST_EXACT, b"na", &named), Verdict::Ignore);
    assert_eq!(decide(C::TEST_PREFIX, b"x", &named), Verdict::Ignore);
    assert_eq!(decide(C::SET, b"new", &empty), Verdict::SetString(b"new".to_vec()));
    assert!(is_answer(decide(C::SET, b"name", &named)), "it equals the string in force");
    assert_eq!(error_of(&decide(C::SET, b"new", &named)), Some(4));
    assert_eq!(decide(C::FORCE_SET, b"", &named), Verdict::SetString(Vec::new()));
    assert_eq!(error_of(&decide(C(9), b"", &named)), Some(2));
    assert_eq!(error_of(&decide(C::FORCE_SET, &[0; CONFIG_STRING_MAX + 1], &named)), Some(2));
    let all = Address { shelf: 1, slot: ALL_SLOTS };
    assert_eq!(verdict(&config_request(C::FORCE_SET, all, b"x")), Verdict::Ignore);
}

#[test]
fn a_mask_list_hides_the_target_and_is_edited() {
    let hidden = state("", &[OTHER]);
    for payload in
        [config_request(ConfigCommand::READ, ADDRESS, b""), ata_request(AtaCommand::IDENTIFY_DEVICE, 0, 1, 0)]
    {
        assert_eq!(verdict_of(&payload, &hidden), Some(Verdict::Ignore));
    }
    let directive = |command: MaskDirective| [&[0, command.0][..], &STATION.0].concat();
    let edit = |directive: &[u8]| request(Command::MASK, ADDRESS, &[&[0, 1, 0, 1][..], directive].concat());
    let admitted = state("", &[STATION, OTHER]);
    assert_eq!(verdict(&edit(&directive(MaskDirective::ADD))), Verdict::SetMasks(vec![STATION]));
    let deleted = verdict_of(&edit(&directive(MaskDirective::DELETE)), &admitted);
    assert_eq!(deleted, Some(Verdict::SetMasks(vec![OTHER])));
    let Verdict::Answer(answer) = verdict(&edit(&directive(MaskDirective(7)))) else { panic!("no answer") };
    assert_eq!((answer[0], &answer[10..14]), (0x18, &[0, 1, MaskError::BAD_DIRECTIVE.0, 0][..]));
    let read = request(Command::MASK, ADDRESS, &[0, 0, 0, 0]);
    let Some(Verdict::Answer(answer)) = verdict_of(&read, &admitted) else { panic!("no answer") };
    assert_eq!(answer[10..14], [0, 0, 0, 2]);
    assert_eq!(answer[14..30], [&[0, 0][..], &STATION.0, &[0, 0], &OTHER.0].concat());
    assert_eq!(error_of(&verdict(&request(Command::MASK, ADDRESS, &[0, 5, 0, 0]))), Some(2));
    let full = state("", &[STATION; MASKS_MAX]);
    let Some(Verdict::Answer(answer)) = verdict_of(&read, &full) else { panic!("no answer") };
    assert!(answer.len() <= 1500, "{}", answer.len());
}

#[test]
fn reservations_are_read_and_set() {
    let reserve = |command, macs: &[[u8; 6]]| {
        request(Command::RESERVE, ADDRESS, &[&[command, macs.len() as u8][..], macs.as_flattened()].concat())
    };
    assert_eq!(verdict(&reserve(0, &[])), Verdict::ReadReservation);
    let set = Verdict::Reserve { stations: vec![STATION, OTHER], force: false };
    assert_eq!(verdict(&reserve(1, &[OTHER.0, STATION.0, OTHER.0])), set);
    assert_eq!(verdict(&reserve(2, &[])), Verdict::Reserve { stations: Vec::new(), force: true });
    assert_eq!(error_of(&verdict(&reserve(1, &[[0xff; 6]]))), Some(2));
    assert_eq!(error_of(&verdict(&reserve(3, &[]))), Some(2));
    let payload = reserve(1, &[STATION.0]);
    let request = Request::parse(STATION, &payload).expect("a request");
    let answer = reserve_answer(&request, ADDRESS, &[OTHER], Some(ErrorCode::TARGET_RESERVED));
    assert_eq!((answer[0], answer[1], &answer[10..18]), (0x1c, 6, &[&[1, 1][..], &OTHER.0].concat()[..]));
    let answer = reserve_answer(&request, ADDRESS, &[OTHER; 300], None);
    assert!(answer.len() <= 1500, "{}", answer.len());
}

proptest! {
    /// No answer is longer than a frame, and none but those of a read is much longer than its request.
    #[test]
    fn answers_are_bounded(payload in prop::collection::vec(any::<u8>(), 0..1600), command in 0_u8..5) {
        let mut payload = payload;
        if let Some(place) = payload.get_mut(5) {
            *place = command;
        }
        let state = state("a string", &[]);
        if let Some(Verdict::Answer(answer)) = verdict_of(&payload, &state) {
            prop_assert!(answer.len() <= payload.len().max(FRAME_MIN) + state.string.len());
            prop_assert_eq!(answer[0] & RESPONSE, RESPONSE);
        }
    }
}

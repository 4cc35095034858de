use super::*;
use crate::testing::started;

fn chain_of(sent: &[u8], room: u32) -> (crate::virtio::VirtioDevice, Chain) {
    let (mut device, mut driver) = started(0, 8);
    driver.write(0x4000, sent);
    let mut pieces = vec![(0x4000, sent.len() as u32, false)];
    if room > 0 {
        pieces.push((0x6000, room, true));
    }
    driver.offer(&pieces, false).expect("there is room");
    let chain = device.take(0.into()).expect("good").expect("one");
    (device, chain)
}

fn parsed(sent: &[u8], room: u32) -> Result<Parsed, Broken> {
    let (device, chain) = chain_of(sent, room);
    parse(&device.memory, &chain)
}

fn header(lun: [u8; 8], attribute: u8, cdb: &[u8]) -> Vec<u8> {
    let mut bytes = [0; CDB_LEN];
    bytes[..cdb.len()].copy_from_slice(cdb);
    let (priority, reference) = (0, 0);
    CommandHeader { lun, tag: 0x1234_5678_9abc.into(), attribute, priority, reference, cdb: bytes }.as_bytes().to_vec()
}

#[test]
fn formats_have_their_lengths() {
    assert_eq!((HEADER_LEN, ANSWER_LEN, size_of::<TaskManagement>(), size_of::<Event>()), (51, 108, 24, 16));
    assert_eq!(size_of::<Notification>(), 16);
    let answer = answer(Response::OK, 2, &[0x70, 0, 5], 7);
    assert_eq!(answer.as_bytes()[..16], [3, 0, 0, 0, 7, 0, 0, 0, 0, 0, 2, 0, 0x70, 0, 5, 0]);
}

#[test]
fn logical_units_are_addressed_in_one_target() {
    assert_eq!(lun_of([1, 0, 0x40, 5, 0, 0, 0, 0]), Some(Lun::from_number(5)));
    assert_eq!(lun_of([1, 0, 0x41, 5, 0, 0, 0, 0]), Some(Lun::from_number(261)));
    assert_eq!(lun_of([1, 0, 0, 5, 0, 0, 0, 0]), Some(Lun::from_number(5)));
    assert_eq!(lun_of([0xc1, 1, 0, 0, 0, 0, 0, 0]), Some(Lun::REPORT_LUNS));
    for other in [[1, 1, 0x40, 0, 0, 0, 0, 0], [0; 8], [1, 0, 0x40, 0, 1, 0, 0, 0], [0xff; 8]] {
        assert_eq!(lun_of(other), None);
    }
    for lun in [0, 1, 255, 256, 16383] {
        assert_eq!(lun_of(address_of(lun)), Some(Lun::from_number(lun)));
    }
}

#[test]
fn commands_are_taken_apart() {
    let sent = [header(address_of(3), 2, &[0x2a, 0, 0, 0, 0, 9]), vec![7; 512]].concat();
    let Ok(Parsed::Command(command)) = parsed(&sent, 108) else { panic!("a command") };
    assert_eq!((command.lun, command.attribute), (Lun::from_number(3), TaskAttribute::HEAD_OF_QUEUE));
    assert_eq!((command.data_out, command.data_in, command.tag), (512, 0, 0x1234_5678_9abc));
    assert_eq!(command.cdb.bytes()[..6], [0x2a, 0, 0, 0, 0, 9]);
    let Ok(Parsed::Command(command)) = parsed(&header(address_of(0), 0, &[0x12]), 144) else { panic!("a command") };
    assert_eq!((command.data_out, command.data_in), (0, 36));
    let refused = parsed(&header([1, 9, 0x40, 0, 0, 0, 0, 0], 0, &[0x12]), 144);
    assert!(matches!(refused, Ok(Parsed::Refused(Response::BAD_TARGET))));
    assert_eq!(parsed(&header(address_of(0), 0, &[0x12]), 107).err(), Some(Broken::Short));
    assert_eq!(parsed(&header(address_of(0), 0, &[0x12])[..50], 108).err(), Some(Broken::Short));
}

#[test]
fn commands_that_must_not_run_twice_are_not_repeated() {
    for (code, is_unsure) in [(0x2a, false), (0x89, true), (0x5f, true), (0x83, true)] {
        let (device, mut chain) = chain_of(&header(address_of(0), 0, &[code]), 108);
        assert!(matches!(parse(&device.memory, &chain), Ok(Parsed::Command(_))));
        chain.is_repeated = true;
        assert_eq!(matches!(parse(&device.memory, &chain), Ok(Parsed::Unsure)), is_unsure);
    }
    assert_eq!((unsure()[0], unsure()[2]), (0x70, 0x0b));
}

#[test]
fn control_requests_are_taken_apart() {
    let control = |sent: &[u8], room: u32| {
        let (device, chain) = chain_of(sent, room);
        parse_control(&device.memory, &chain)
    };
    let function = |kind: u32, function: u32| {
        let (lun, tag) = (address_of(2), 77.into());
        TaskManagement { kind: kind.into(), function: function.into(), lun, tag }.as_bytes().to_vec()
    };
    let lun = Lun::from_number(2);
    assert_eq!(control(&function(0, 0), 1), Ok(Control::Function(TaskFunction::ABORT_TASK, lun, 77)));
    assert_eq!(control(&function(0, 5), 1), Ok(Control::Function(TaskFunction::LOGICAL_UNIT_RESET, lun, 77)));
    assert_eq!(control(&function(0, 8), 1), Ok(Control::Refused(Response::FUNCTION_REJECTED)));
    assert_eq!(control(&function(9, 0), 1), Ok(Control::Refused(Response::FUNCTION_REJECTED)));
    assert_eq!(control(&function(1, 0)[..16], 5), Ok(Control::NoNotifications));
    assert_eq!(control(&function(1, 0)[..16], 4), Err(Broken::Short));
    assert_eq!(control(&function(0, 0), 0), Err(Broken::Short));
    assert_eq!(control(&function(0, 0)[..23], 1), Err(Broken::Short));
}

#[test]
fn events_say_what_has_changed() {
    let event = changed(1, Asc::CAPACITY_DATA_CHANGED);
    assert_eq!(event.as_bytes(), [3, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0x2a, 9, 0, 0]);
    assert_eq!(moved(258, RESCAN).as_bytes(), [1, 0, 0, 0, 1, 0, 0x41, 2, 0, 0, 0, 0, 1, 0, 0, 0]);
}

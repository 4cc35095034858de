use super::*;
use crate::command::Status;
use crate::lun::Lun;
use crate::peripheral::PeripheralType;
use crate::policy::{
    ADDITIONAL_LENGTH_AT, Alua, Code, Effect, Forwarding, Gate, LONG_ACTION_AT, OpCode, Persistent, Policy,
};
use crate::row::{Flow, Row};
use crate::sbc::block_range::PROTECTION_TYPE_2;
use crate::sense::{Asc, Sense, SenseKey};
use crate::testing::{Ended, Rig, every_row};
use lunar_core::wire::Writer;
use lunar_unit::AccessState;
use lunar_unit::reserve::Held;
use proptest::prelude::*;

/// The rows of the device types of addressable logical units.
fn unit_rows() -> impl Iterator<Item = (&'static DeviceType, &'static Row)> {
    every_row().filter(|(device, _)| !device.media.is_empty())
}

/// The rows of disks.
fn disk_rows() -> impl Iterator<Item = &'static Row> {
    DISK.commands.rows().iter()
}

fn usage_of(row: &Row) -> Vec<u8> {
    let mut bytes = vec![0xa5; row.length];
    let mut writer = Writer::new(&mut bytes);
    row.usage(&mut writer);
    assert_eq!(writer.written(), row.length, "{}", row.policy.name);
    bytes
}

/// The plainest valid CDB of a command: zeroes except for its code and fields that must not be zero.
fn plain(row: &Row) -> Vec<u8> {
    let usage = usage_of(row);
    let mut cdb = vec![0; row.length];
    row.name(&mut cdb);
    match row.policy.code {
        Code { op: OpCode::MODE_SENSE_6 | OpCode::MODE_SENSE_10, .. } => cdb[2] = 0x3f,
        Code { op: OpCode::MAINTENANCE_IN, action: Some(0x0d) } => cdb[9] = 16,
        Code { op: OpCode::WRITE_SAME_10, .. } => cdb[8] = 1,
        Code { op: OpCode::GET_EVENT_STATUS_NOTIFICATION, .. } => cdb[1] = 1,
        Code { op: OpCode::READ_CD_MSF, .. } => (cdb[4], cdb[7]) = (2, 2),
        Code { op: OpCode::SANITIZE, action: Some(1) } => cdb[8] = 8,
        Code { op: OpCode::WRITE_BUFFER | OpCode::READ_BUFFER_10 | OpCode::READ_BUFFER_16, .. } => cdb[1] = 0x02,
        Code { op: OpCode::WRITE_SAME_16, .. } => cdb[13] = 1,
        Code { op: OpCode::VARIABLE_LENGTH, action: Some(0x0d) } => cdb[31] = 1,
        Code { op: OpCode::PERSISTENT_RESERVE_OUT, .. } => {
            cdb[2] = 1;
            cdb[8] = u8::try_from(data_out(row).len()).expect("short");
        }
        _ => {}
    }
    assert!(cdb.iter().zip(&usage).skip(1).all(|(bits, mask)| bits & !mask == 0));
    cdb
}

/// Data-Out for the plainest CDB.
fn data_out(row: &Row) -> Vec<u8> {
    match (row.policy.code, row.flow) {
        (Code { op: OpCode::PERSISTENT_RESERVE_OUT, action: Some(7) }, _) => {
            [&[KEY; 16][..], &[0, 0, 0, 1, 0, 0, 0, 24, 0x45, 0, 0, 20], b"iqn.b,i,0x1\0\0\0\0\0\0\0\0\0"].concat()
        }
        (Code { op: OpCode::PERSISTENT_RESERVE_OUT, .. }, _) => [[KEY; 16], [0; 16]].concat()[..24].to_vec(),
        (Code { op: OpCode::SANITIZE, action: Some(1) }, _) => vec![1, 0, 0, 4, 0, 0, 0, 0],
        (_, Flow::Block) => vec![0; 512],
        _ => Vec::new(),
    }
}

/// Every byte of a key.
const KEY: u8 = 7;

/// A logical unit of this device type that has the command.
fn fresh(device: &DeviceType, row: &Row) -> Rig {
    match device.code {
        PeripheralType::CD_DVD if row.policy.code.op == OpCode::READ_DISC_STRUCTURE => Rig::dvd(),
        PeripheralType::CD_DVD => Rig::of(MediumKind::Optical),
        _ => Rig::default().for_row(row),
    }
}

/// Whether units with removable media may have a command: protection information is for fixed media.
fn is_for_removable(row: &Row) -> bool {
    row.policy.admission.needs != Some(&PROTECTION_TYPE_2)
}

/// A rig on which the plainest CDB of a command runs.
fn rig(device: &DeviceType, row: &Row) -> Rig {
    prepared(fresh(device, row), row)
}

/// Registers and reserves before a command that needs it.
fn prepared(rig: Rig, row: &Row) -> Rig {
    if row.policy.code.op == OpCode::PERSISTENT_RESERVE_OUT {
        for before in DISK
            .commands
            .rows_of(row.policy.code.op.0)
            .iter()
            .filter(|row| matches!(row.policy.code.action, Some(1 | 6)))
            .rev()
        {
            assert_eq!(run(&rig, before).status, Status::GOOD);
        }
    }
    rig
}

fn run(rig: &Rig, row: &Row) -> Ended {
    rig.run(&plain(row), &data_out(row), 65536)
}

/// Whether a command looks for a copy by its list identifier, which does not exist.
fn asks_after_a_copy(row: &Row) -> bool {
    match row.policy.code {
        Code { op: OpCode::THIRD_PARTY_COPY_IN, action } => !matches!(action, Some(3 | 8)),
        Code { op: OpCode::THIRD_PARTY_COPY_OUT, action } => action == Some(0x1c),
        _ => false,
    }
}

/// No condition stopped a command: it ended with GOOD, or did not find its copy.
fn assert_passed(row: &Row, ended: &Ended, why: &str) {
    let name = row.policy.name;
    match asks_after_a_copy(row) {
        true => assert_eq!(sense(ended), (SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_CDB), "{name} {why}"),
        false => assert_eq!((ended.status, ended.sense.len()), (Status::GOOD, 0), "{name} {why}"),
    }
}

/// A reservation stopped a command, or not.
fn assert_stopped_or_passed(row: &Row, ended: &Ended, stops: bool, why: &str) {
    match stops {
        true => assert_eq!(ended.status, Status::RESERVATION_CONFLICT, "{} {why}", row.policy.name),
        false => assert_passed(row, ended, why),
    }
}

/// Sense key and additional sense code of fixed format sense data.
fn sense(ended: &Ended) -> (SenseKey, Asc) {
    assert_eq!((ended.status, ended.sense.len()), (Status::CHECK_CONDITION, 18), "{ended:?}");
    (SenseKey(ended.sense[2]), Asc(u16::from_be_bytes([ended.sense[12], ended.sense[13]])))
}

#[test]
fn every_command_is_executed_if_no_condition_stops_it() {
    for (device, row) in unit_rows() {
        assert_passed(row, &run(&rig(device, row), row), "without conditions");
    }
}

#[test]
fn a_lookup_finds_every_row_of_its_device_type_and_no_other() {
    for (device, row) in every_row() {
        let found = device.find(&plain(row)).expect("the row exists");
        assert_eq!(found.policy, row.policy);
        let same = |other: &&Row| other.policy.code == row.policy.code;
        assert_eq!(device.commands.rows_of(row.policy.code.op.0).iter().filter(same).count(), 1);
    }
    for device in DEVICE_TYPES {
        let known = |op: u8| device.commands.rows().iter().any(|row| row.policy.code.op.0 == op);
        for op in (0..=255).filter(|op| !known(*op)) {
            assert_eq!(device.find(&[op; 16]).err(), Some(Sense::illegal(device.unsupported)));
            assert!(device.commands.rows_of(op).is_empty());
        }
        assert_eq!(device.find(&[]).err(), Some(Sense::illegal(device.unsupported)));
    }
    assert_eq!(DISK.find(&[0xa3, 0x1f, 0, 0]).err(), Some(Sense::bit_in_cdb(1, 4)));
    assert_eq!(DISK.find(&[0xa3]).err(), Some(Sense::in_cdb(1)));
}

#[test]
fn every_device_type_is_registered_once_and_every_unit_has_one() {
    for device in DEVICE_TYPES {
        assert_eq!(DEVICE_TYPES.iter().filter(|other| other.code == device.code).count(), 1, "{device:?}");
        assert!(usize::from(device.code.0) < PeripheralType::COUNT);
        device.media.iter().for_each(|kind| assert_eq!(of_medium(*kind).code, device.code));
        assert!(device.vpd.is_sorted_by_key(|row| row.page), "{device:?}");
        assert!(device.mode.is_sorted_by_key(|row| (row.page, row.subpage)), "{device:?}");
        assert!(device.log.is_sorted_by_key(|row| (row.page, row.subpage)), "{device:?}");
    }
}

#[test]
fn a_long_cdb_must_have_the_length_of_its_service_action() {
    for row in disk_rows().filter(|row| row.policy.code.is_long()) {
        let cdb = plain(row);
        for length in (0..=u8::MAX).filter(|length| usize::from(*length) + 8 != row.length) {
            let mut wrong = cdb.clone();
            wrong[7] = length;
            assert_eq!(DISK.find(&wrong).err(), Some(Sense::in_cdb(7)), "{} of {length}", row.policy.name);
        }
        for length in 1..10 {
            assert_eq!(DISK.find(&cdb[..length]).err(), Some(Sense::in_cdb(length)), "{}", row.policy.name);
        }
    }
    assert_eq!(DISK.find(&[[0x7f; 16], [0xff; 16]].concat()).err(), Some(Sense::in_cdb(8)));
}

#[test]
fn usage_masks_contain_the_code_and_no_naca() {
    for (_, row) in every_row() {
        let usage = usage_of(row);
        assert_eq!(usage[0], row.policy.code.op.0, "{}", row.policy.name);
        let mut named = usage.clone();
        row.name(&mut named);
        assert_eq!(named, usage, "{}", row.policy.name);
        let control = if row.policy.code.is_long() { 1 } else { row.length - 1 };
        assert_eq!(usage[control], 0, "CONTROL of {}: NACA is not supported", row.policy.name);
        assert!(OpCode::KNOWN.iter().any(|(op, _)| *op == row.policy.code.op));
    }
}

#[test]
fn the_fields_of_each_policy_are_consistent() {
    for (device, row) in every_row() {
        let Policy { name, clause, effect, admission, .. } = row.policy;
        let writes = matches!(effect, Effect::Write | Effect::Rewrite);
        assert_eq!(writes, admission.write_protect == Gate::Stops, "{name}");
        if effect != Effect::None {
            assert_eq!(
                (admission.spc2, admission.not_ready, admission.attention),
                (Gate::Stops, Gate::Stops, Gate::Stops)
            );
            assert_eq!(admission.alua, Alua::Active, "{name}");
            assert!(!device.media.is_empty(), "{name}: only addressable logical units have a medium");
            assert!(!writes || device.code == PeripheralType::DISK, "{name}");
            assert_eq!(writes, admission.persistent == Persistent::Conflict, "{name}");
            assert_ne!(admission.forwarded, Forwarding::Lunar, "{name}: only the device can access the medium");
        }
        assert!(["SPC-", "SBC-", "MMC-"].iter().any(|standard| clause.starts_with(standard)), "{name}");
    }
}

#[test]
fn unevaluated_bits_are_refused_with_a_field_pointer() {
    for (device, row) in unit_rows() {
        let usage = usage_of(row);
        for at in 1..row.length {
            for bit in 0..8 {
                let is_action = match (row.policy.code.action, row.policy.code.is_long()) {
                    (Some(_), false) => at == 1 && bit < 5,
                    (_, is_long) => is_long && (ADDITIONAL_LENGTH_AT..LONG_ACTION_AT + 2).contains(&at),
                };
                if usage[at] & 1 << bit != 0 || is_action {
                    continue;
                }
                let mut cdb = plain(row);
                cdb[at] |= 1 << bit;
                let ended = fresh(device, row).run(&cdb, &data_out(row), 65536);
                assert_eq!(sense(&ended), (SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_CDB));
                let pointer = [0xc8 | bit, 0, u8::try_from(at).expect("short")];
                assert_eq!(ended.sense[15..], pointer, "{} byte {at} bit {bit}", row.policy.name);
            }
        }
    }
}

#[test]
fn a_short_cdb_is_refused() {
    for (device, row) in unit_rows() {
        let cdb = plain(row);
        for length in 1..row.length {
            let ended = fresh(device, row).run(&cdb[..length], &data_out(row), 65536);
            assert_eq!(sense(&ended).0, SenseKey::ILLEGAL_REQUEST, "{} of {length} bytes", row.policy.name);
        }
    }
}

#[test]
fn bytes_after_the_cdb_are_ignored() {
    for (device, row) in unit_rows() {
        let mut cdb = plain(row);
        cdb.resize(32, 0xff);
        assert_passed(row, &rig(device, row).run(&cdb, &data_out(row), 65536), "with trailing bytes");
    }
}

#[test]
fn a_unit_attention_stops_commands_by_their_policy() {
    for (device, row) in unit_rows() {
        let rig = rig(device, row);
        let itl = rig.nexus.itl(0).expect("LUN exists");
        itl.establish_unit_attention(Asc::CAPACITY_DATA_CHANGED);
        let ended = run(&rig, row);
        match row.policy.admission.attention {
            Gate::Stops => {
                assert_eq!(sense(&ended), (SenseKey::UNIT_ATTENTION, Asc::CAPACITY_DATA_CHANGED));
                assert_passed(row, &run(&rig, row), "after the unit attention was reported");
            }
            Gate::Passes => assert_passed(row, &ended, "with a pending unit attention"),
        }
        let kept =
            [OpCode::INQUIRY, OpCode::REPORT_LUNS, OpCode::GET_CONFIGURATION, OpCode::GET_EVENT_STATUS_NOTIFICATION]
                .contains(&row.policy.code.op);
        assert_eq!(itl.attention().is_some(), kept, "{}", row.policy.name);
    }
}

#[test]
fn write_protection_stops_commands_by_their_policy() {
    for (device, row) in unit_rows() {
        let protected = match device.code {
            PeripheralType::CD_DVD => fresh(device, row),
            _ => Rig::new(lunar_core::io::Traits { read_only: true, ..Rig::traits() }).for_row(row),
        };
        let ended = run(&prepared(protected, row), row);
        match row.policy.admission.write_protect {
            Gate::Stops => assert_eq!(sense(&ended), (SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED)),
            Gate::Passes => assert_passed(row, &ended, "on a write-protected unit"),
        }
    }
}

#[test]
fn a_stopped_unit_stops_commands_by_their_policy() {
    const STOP: [u8; 6] = [0x1b, 0, 0, 0, 0, 0];
    const START: [u8; 6] = [0x1b, 0, 0, 0, 1, 0];
    for row in disk_rows() {
        let rig = rig(&DISK, row);
        assert_eq!(rig.run(&STOP, &[], 0).status, Status::GOOD);
        let ended = run(&rig, row);
        match row.policy.admission.not_ready {
            Gate::Stops => {
                assert_eq!(rig.run(&START, &[], 0).status, Status::GOOD);
                assert_eq!(sense(&ended), (SenseKey::NOT_READY, Asc::NOT_READY_START_REQUIRED));
                assert_passed(row, &run(&rig, row), "after START");
            }
            Gate::Passes => assert_passed(row, &ended, "on a stopped unit"),
        }
    }
}

/// Every row on every kind of medium: the command is executed, or the unit does not support it.
#[test]
fn each_kind_of_medium_has_the_commands_of_its_device_type() {
    for kind in [MediumKind::Fixed, MediumKind::Removable, MediumKind::Optical] {
        for (_, row) in unit_rows().filter(|(_, row)| is_for_removable(row)) {
            let rig = match row.policy.code.op {
                OpCode::READ_DISC_STRUCTURE if kind == MediumKind::Optical => Rig::dvd(),
                _ => Rig::of(kind),
            };
            if of_medium(kind).commands.has(row.policy.code) {
                assert_passed(row, &run(&prepared(rig, row), row), "on a unit that supports it");
                continue;
            }
            let mut cdb = plain(row);
            for flags in [cdb[1], cdb[1] ^ 0x1f] {
                cdb[1] = flags;
                let ended = rig.run(&cdb, &data_out(row), 65536);
                let refused = (SenseKey::ILLEGAL_REQUEST, Asc::INVALID_COMMAND_OPERATION_CODE);
                assert_eq!(sense(&ended), refused, "{} {kind:?}", row.policy.name);
            }
        }
    }
}

#[test]
fn a_missing_medium_stops_commands_by_their_policy() {
    for kind in [MediumKind::Removable, MediumKind::Optical] {
        let device = of_medium(kind);
        for row in device.commands.rows().iter().filter(|row| is_for_removable(row)) {
            let rig = match kind {
                MediumKind::Optical => fresh(device, row),
                _ => Rig::of(kind),
            };
            let rig = prepared(rig, row);
            assert_eq!(rig.run(&[0x1b, 0, 0, 0, 2, 0], &[], 0).status, Status::GOOD);
            let ended = run(&rig, row);
            match row.policy.admission.not_ready {
                Gate::Stops => {
                    assert_eq!(sense(&ended), (SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT_TRAY_OPEN));
                    assert_eq!(rig.run(&[0x1b, 0, 0, 0, 3, 0], &[], 0).status, Status::GOOD);
                    assert_passed(row, &run(&rig, row), "after the medium was loaded");
                }
                Gate::Passes => assert_passed(row, &ended, "without a medium"),
            }
        }
    }
}

#[test]
fn reservations_of_other_nexuses_stop_commands_by_their_policy() {
    for (device, row) in unit_rows() {
        let admission = row.policy.admission;
        let expected = [
            (Held::Spc2, admission.spc2 == Gate::Stops),
            (Held::WriteExclusive, admission.persistent == Persistent::Conflict),
            (Held::ExclusiveAccess, admission.persistent != Persistent::Passes),
        ];
        for (held, stops) in expected {
            let rig = rig(device, row);
            rig.nexus.itl(0).expect("LUN exists").set_held(held);
            let ended = run(&rig, row);
            match stops {
                true => assert_eq!(ended.status, Status::RESERVATION_CONFLICT, "{} under {held:?}", row.policy.name),
                false => assert_passed(row, &ended, "on a reserved unit"),
            }
        }
    }
}

/// The relation of the nexus to the reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relation {
    Unregistered,
    Registered,
    Holder,
}

/// Commands that a reservation admits by keys and registrations instead of by its type.
fn is_about_reservations(row: &Row) -> bool {
    use OpCode as Op;
    let all = [Op::RESERVE_6, Op::RELEASE_6, Op::RESERVE_10, Op::RELEASE_10];
    all.contains(&row.policy.code.op) || row.policy.code.op == Op::PERSISTENT_RESERVE_OUT
}

/// SPC-4 table 62, SBC-3 table 13: all commands under all reservation types, set by PERSISTENT RESERVE OUT.
#[test]
fn every_persistent_reservation_type_stops_commands_by_their_policy() {
    use Relation::{Holder, Registered, Unregistered};
    for row in disk_rows().filter(|row| !is_about_reservations(row)) {
        for (kind, reads_stop, registered_pass) in
            [(1, false, false), (3, true, false), (5, false, true), (6, true, true), (7, false, true), (8, true, true)]
        {
            for relation in [Unregistered, Registered, Holder] {
                let rig = Rig::default().for_row(row);
                let holder = rig.target.nexus(Rig::name("holder"));
                holder.each(|itl| while itl.take_attention().is_some() {});
                let out = |nexus, action, kind| {
                    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
                    let list = [[0; 8], [1; 8], [0; 8]].concat();
                    let keyed = [[1; 8], [0; 8], [0; 8]].concat();
                    rig.run_as(nexus, &cdb, if action == 6 { &list } else { &keyed }, 0).status
                };
                let by = if relation == Holder { &rig.nexus } else { &holder };
                assert_eq!(out(by, 6, 0), Status::GOOD);
                if relation == Registered {
                    assert_eq!(out(&rig.nexus, 6, 0), Status::GOOD);
                }
                assert_eq!(out(by, 1, kind), Status::GOOD);
                let in_it = relation == Holder || relation == Registered && registered_pass;
                let stops = !in_it
                    && match row.policy.admission.persistent {
                        Persistent::Conflict => true,
                        Persistent::WriteExclusivePasses => reads_stop,
                        Persistent::Passes => false,
                    };
                let why = format!("type {kind}, {relation:?}");
                assert_stopped_or_passed(row, &run(&rig, row), stops, &why);
            }
        }
    }
}

#[test]
fn an_spc2_reservation_stops_commands_by_their_policy() {
    for row in disk_rows() {
        let rig = fresh(&DISK, row);
        let holder = rig.target.nexus(Rig::name("holder"));
        holder.each(|itl| while itl.take_attention().is_some() {});
        assert_eq!(rig.run_as(&holder, &[0x16, 0, 0, 0, 0, 0], &[], 0).status, Status::GOOD);
        let stops = row.policy.admission.spc2 == Gate::Stops;
        assert_stopped_or_passed(row, &run(&rig, row), stops, "reserved by another nexus");
        let own = rig.run_as(&holder, &plain(row), &data_out(row), 65536);
        let persistent = [OpCode::PERSISTENT_RESERVE_IN, OpCode::PERSISTENT_RESERVE_OUT];
        assert_stopped_or_passed(row, &own, persistent.contains(&row.policy.code.op), "reserved by this nexus");
    }
}

#[test]
fn asymmetric_access_states_stop_commands_by_their_policy() {
    let refusals = [
        (AccessState::Standby, Asc::NOT_READY_STANDBY),
        (AccessState::Unavailable, Asc::NOT_READY_UNAVAILABLE),
        (AccessState::Offline, Asc::NOT_READY_OFFLINE),
        (AccessState::Transitioning, Asc::NOT_READY_TRANSITION),
    ];
    for (device, row) in unit_rows() {
        let ready = rig(device, row);
        ready.nexus.itl(0).expect("LUN exists").set_access(AccessState::ActiveNonOptimized);
        assert_passed(row, &run(&ready, row), "in active/non-optimized state");
        for (state, asc) in refusals {
            let rig = rig(device, row);
            rig.nexus.itl(0).expect("LUN exists").set_access(state);
            let admits = row.policy.admission.alua;
            let ended = run(&rig, row);
            let enough = match state {
                AccessState::Standby => &[Alua::Standby, Alua::Settled, Alua::Every][..],
                AccessState::Transitioning => &[Alua::Every],
                _ => &[Alua::Settled, Alua::Every],
            };
            if enough.contains(&admits) {
                assert_passed(row, &ended, "in this state");
            } else {
                assert_eq!(sense(&ended), (SenseKey::NOT_READY, asc), "{}", row.policy.name);
            }
        }
    }
}

#[test]
fn a_lun_without_a_logical_unit_answers_inquiry_and_request_sense_only() {
    for row in disk_rows() {
        for lun in [Lun::from_number(7), Lun::from_number(300), Lun([0xff; 8])] {
            let rig = Rig::default().for_row(row);
            rig.lun.set(lun);
            let ended = run(&rig, row);
            if matches!(row.policy.code.op, OpCode::INQUIRY | OpCode::REQUEST_SENSE) {
                assert_eq!(ended.status, Status::GOOD, "{}", row.policy.name);
            } else {
                assert_eq!(sense(&ended), (SenseKey::ILLEGAL_REQUEST, Asc::LOGICAL_UNIT_NOT_SUPPORTED));
            }
        }
    }
}

#[test]
fn the_well_known_logical_unit_has_four_commands() {
    let answered: Vec<_> = disk_rows()
        .filter(|row| {
            let rig = Rig::default().for_row(row);
            rig.lun.set(Lun::REPORT_LUNS);
            run(&rig, row).status == Status::GOOD
        })
        .map(|row| row.policy.code.op)
        .collect();
    assert_eq!(answered, [OpCode::TEST_UNIT_READY, OpCode::REQUEST_SENSE, OpCode::INQUIRY, OpCode::REPORT_LUNS]);
}

#[test]
fn an_aborted_command_is_not_answered() {
    for (device, row) in unit_rows() {
        let rig = fresh(device, row);
        rig.aborted.set(true);
        let ended = run(&rig, row);
        assert_eq!((ended.status, ended.data.len()), (Status::TASK_ABORTED, 0), "{}", row.policy.name);
    }
}

proptest! {
    #[test]
    fn any_bytes_do_no_harm(data in prop::collection::vec(any::<u8>(), 0..2000)) {
        crate::testing::fuzz::raw(&data);
    }

    #[test]
    fn any_masked_cdb_does_no_harm(data in prop::collection::vec(any::<u8>(), 0..2000)) {
        crate::testing::fuzz::cdb(&data);
    }

    #[test]
    fn any_small_cdb_does_no_harm(pick in any::<u8>(), bytes in prop::collection::vec(0u8..20, 0..600)) {
        let mut data = vec![pick];
        data.extend(bytes);
        crate::testing::fuzz::cdb(&data);
    }
}

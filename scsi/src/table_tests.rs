use super::*;
use crate::access::AluaState;
use crate::command::Status;
use crate::fuzzing::{Ended, Rig};
use crate::lun::Lun;
use crate::nexus::Held;
use crate::sense::SenseKey;
use lunar_core::medium::MediumKind;
use proptest::prelude::*;

fn usage_of(row: &Row) -> Vec<u8> {
    let mut bytes = vec![0xa5; row.length];
    let mut writer = Writer::new(&mut bytes);
    row.usage(&mut writer);
    assert_eq!(writer.written(), row.length, "{}", row.policy.name);
    bytes
}

/// The plainest CDB of a command: all zeroes but for its code, and what it cannot be without.
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

/// Data-Out that suits the plainest CDB.
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

/// A device that has the command.
fn fresh(row: &Row) -> Rig {
    match row.policy.gates.reach {
        Reach::Optical if row.policy.code.op == OpCode::READ_DISC_STRUCTURE => Rig::dvd(),
        Reach::Optical => Rig::of(MediumKind::Optical),
        _ => Rig::default().for_row(row),
    }
}

/// The commands that a unit may have whose medium can be taken out: only those that cannot are protected.
fn removable_rows() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().filter(|row| row.policy.gates.needs != Needs::TypeTwo)
}

/// A rig on which the plainest CDB of a command runs.
fn rig(row: &Row) -> Rig {
    prepared(fresh(row), row)
}

/// Registers and reserves for those who must have done so.
fn prepared(rig: Rig, row: &Row) -> Rig {
    if row.policy.code.op == OpCode::PERSISTENT_RESERVE_OUT {
        for before in
            rows(row.policy.code.op.0).iter().filter(|row| matches!(row.policy.code.action, Some(1 | 6))).rev()
        {
            assert_eq!(run(&rig, before).status, Status::GOOD);
        }
    }
    rig
}

fn run(rig: &Rig, row: &Row) -> Ended {
    rig.run(&plain(row), &data_out(row), 65536)
}

/// Whether a command asks after a copy, of which there is none.
fn asks_after_a_copy(row: &Row) -> bool {
    match row.policy.code {
        Code { op: OpCode::THIRD_PARTY_COPY_IN, action } => !matches!(action, Some(3 | 8)),
        Code { op: OpCode::THIRD_PARTY_COPY_OUT, action } => action == Some(0x1c),
        _ => false,
    }
}

/// Nothing stopped a command: it ran, or did not find the copy that it asks after.
fn assert_passed(row: &Row, ended: &Ended, why: &str) {
    let name = row.policy.name;
    match asks_after_a_copy(row) {
        true => assert_eq!(sense(ended), (SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_CDB), "{name} {why}"),
        false => assert_eq!((ended.status, ended.sense.len()), (Status::GOOD, 0), "{name} {why}"),
    }
}

/// A reservation stopped a command, or did not.
fn assert_stopped_or_passed(row: &Row, ended: &Ended, stops: bool, why: &str) {
    match stops {
        true => assert_eq!(ended.status, Status::RESERVATION_CONFLICT, "{} {why}", row.policy.name),
        false => assert_passed(row, ended, why),
    }
}

/// Key and code of fixed format sense data.
fn sense(ended: &Ended) -> (SenseKey, Asc) {
    assert_eq!((ended.status, ended.sense.len()), (Status::CHECK_CONDITION, 18), "{ended:?}");
    (SenseKey(ended.sense[2]), Asc(u16::from_be_bytes([ended.sense[12], ended.sense[13]])))
}

#[test]
fn every_command_runs_when_nothing_is_in_its_way() {
    for row in TABLE {
        assert_passed(row, &run(&rig(row), row), "alone");
    }
}

#[test]
fn dispatch_finds_every_row_and_nothing_else() {
    for row in TABLE {
        let found = find(&plain(row)).expect("in the table");
        assert_eq!(found.policy, row.policy);
        assert_eq!(rows(row.policy.code.op.0).iter().filter(|other| other.policy == row.policy).count(), 1);
    }
    let known = |op: u8| TABLE.iter().any(|row| row.policy.code.op.0 == op);
    for op in (0..=255).filter(|op| !known(*op)) {
        assert_eq!(find(&[op; 16]).err().map(|sense| sense.asc), Some(Asc::INVALID_COMMAND_OPERATION_CODE));
        assert!(rows(op).is_empty());
    }
    assert_eq!(find(&[0xa3, 0x1f, 0, 0]).err(), Some(Sense::bit_in_cdb(1, 4)));
    assert_eq!(find(&[0xa3]).err(), Some(Sense::in_cdb(1)));
}

#[test]
fn a_long_cdb_says_how_long_it_is() {
    for row in TABLE.iter().filter(|row| row.policy.code.is_long()) {
        let cdb = plain(row);
        for length in (0..=u8::MAX).filter(|length| usize::from(*length) + 8 != row.length) {
            let mut wrong = cdb.clone();
            wrong[7] = length;
            assert_eq!(find(&wrong).err(), Some(Sense::in_cdb(7)), "{} of {length}", row.policy.name);
        }
        for length in 1..10 {
            assert_eq!(find(&cdb[..length]).err(), Some(Sense::in_cdb(length)), "{}", row.policy.name);
        }
    }
    assert_eq!(find(&[[0x7f; 16], [0xff; 16]].concat()).err(), Some(Sense::in_cdb(8)));
}

#[test]
fn usage_masks_begin_with_the_code() {
    for row in TABLE {
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
fn policies_agree_with_themselves() {
    for row in TABLE {
        let Policy { name, clause, effect, gates, .. } = row.policy;
        let writes = matches!(effect, Effect::Write | Effect::Renew);
        assert_eq!(writes, gates.write_protect == Gate::Stops, "{name}");
        if effect != Effect::None {
            assert_eq!((gates.spc2, gates.not_ready, gates.attention), (Gate::Stops, Gate::Stops, Gate::Stops));
            assert_eq!(gates.alua, Alua::Active, "{name}");
            assert!(matches!(gates.reach, Reach::Disk | Reach::Optical | Reach::Unit), "{name}");
            assert!(!writes || gates.reach == Reach::Disk, "{name}");
            assert_eq!(writes, gates.persistent == Persistent::Conflict, "{name}");
        }
        assert!(["SPC-", "SBC-", "MMC-"].iter().any(|standard| clause.starts_with(standard)), "{name}");
    }
}

#[test]
fn a_bit_that_is_not_evaluated_is_refused_with_its_place() {
    for row in TABLE {
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
                let ended = fresh(row).run(&cdb, &data_out(row), 65536);
                assert_eq!(sense(&ended), (SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_CDB));
                let pointer = [0xc8 | bit, 0, u8::try_from(at).expect("short")];
                assert_eq!(ended.sense[15..], pointer, "{} byte {at} bit {bit}", row.policy.name);
            }
        }
    }
}

#[test]
fn a_short_cdb_is_refused() {
    for row in TABLE {
        let cdb = plain(row);
        for length in 1..row.length {
            let ended = fresh(row).run(&cdb[..length], &data_out(row), 65536);
            assert_eq!(sense(&ended).0, SenseKey::ILLEGAL_REQUEST, "{} of {length} bytes", row.policy.name);
        }
    }
}

#[test]
fn a_longer_cdb_is_taken_by_its_first_bytes() {
    for row in TABLE {
        let mut cdb = plain(row);
        cdb.resize(32, 0xff);
        assert_passed(row, &rig(row).run(&cdb, &data_out(row), 65536), "with more bytes");
    }
}

#[test]
fn a_unit_attention_stops_all_but_those_that_say_so() {
    for row in TABLE {
        let rig = rig(row);
        let itl = rig.nexus.itl(0).expect("there");
        itl.attend(Asc::CAPACITY_DATA_CHANGED);
        let ended = run(&rig, row);
        match row.policy.gates.attention {
            Gate::Stops => {
                assert_eq!(sense(&ended), (SenseKey::UNIT_ATTENTION, Asc::CAPACITY_DATA_CHANGED));
                assert_passed(row, &run(&rig, row), "after it was told");
            }
            Gate::Passes => assert_passed(row, &ended, "before it is told"),
        }
        let kept =
            [OpCode::INQUIRY, OpCode::REPORT_LUNS, OpCode::GET_CONFIGURATION, OpCode::GET_EVENT_STATUS_NOTIFICATION]
                .contains(&row.policy.code.op);
        assert_eq!(itl.attention().is_some(), kept, "{}", row.policy.name);
    }
}

#[test]
fn write_protection_stops_writes() {
    for row in TABLE {
        let protected = match row.policy.gates.reach {
            Reach::Optical => fresh(row),
            _ => Rig::new(lunar_core::io::Traits { read_only: true, ..Rig::traits() }).for_row(row),
        };
        let ended = run(&prepared(protected, row), row);
        match row.policy.gates.write_protect {
            Gate::Stops => assert_eq!(sense(&ended), (SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED)),
            Gate::Passes => assert_passed(row, &ended, "although writes are refused"),
        }
    }
}

#[test]
fn a_stopped_unit_answers_not_ready() {
    const STOP: [u8; 6] = [0x1b, 0, 0, 0, 0, 0];
    const START: [u8; 6] = [0x1b, 0, 0, 0, 1, 0];
    for row in TABLE.iter().filter(|row| row.policy.gates.reach.covers(MediumKind::Fixed)) {
        let rig = rig(row);
        assert_eq!(rig.run(&STOP, &[], 0).status, Status::GOOD);
        let ended = run(&rig, row);
        match row.policy.gates.not_ready {
            Gate::Stops => {
                assert_eq!(rig.run(&START, &[], 0).status, Status::GOOD);
                assert_eq!(sense(&ended), (SenseKey::NOT_READY, Asc::NOT_READY_START_REQUIRED));
                assert_passed(row, &run(&rig, row), "after a start");
            }
            Gate::Passes => assert_passed(row, &ended, "although it was stopped"),
        }
    }
}

/// Every row on every sort of unit: it runs, or the unit does not have it.
#[test]
fn each_sort_of_unit_has_its_commands() {
    for kind in [MediumKind::Fixed, MediumKind::Removable, MediumKind::Optical] {
        for row in removable_rows() {
            let rig = match row.policy.code.op {
                OpCode::READ_DISC_STRUCTURE if kind == MediumKind::Optical => Rig::dvd(),
                _ => Rig::of(kind),
            };
            if row.policy.gates.reach.covers(kind) {
                assert_passed(row, &run(&prepared(rig, row), row), "on what has it");
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
fn without_its_medium_a_unit_answers_not_ready() {
    for kind in [MediumKind::Removable, MediumKind::Optical] {
        for row in removable_rows().filter(|row| row.policy.gates.reach.covers(kind)) {
            let rig = match kind {
                MediumKind::Optical if row.policy.gates.reach == Reach::Optical => fresh(row),
                _ => Rig::of(kind),
            };
            let rig = prepared(rig, row);
            assert_eq!(rig.run(&[0x1b, 0, 0, 0, 2, 0], &[], 0).status, Status::GOOD);
            let ended = run(&rig, row);
            match row.policy.gates.not_ready {
                Gate::Stops => {
                    assert_eq!(sense(&ended), (SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT_TRAY_OPEN));
                    assert_eq!(rig.run(&[0x1b, 0, 0, 0, 3, 0], &[], 0).status, Status::GOOD);
                    assert_passed(row, &run(&rig, row), "after a load");
                }
                Gate::Passes => assert_passed(row, &ended, "although there is no medium"),
            }
        }
    }
}

#[test]
fn reservations_of_others_stop_what_they_should() {
    for row in TABLE {
        let gates = row.policy.gates;
        let expected = [
            (Held::Spc2, gates.spc2 == Gate::Stops),
            (Held::WriteExclusive, gates.persistent == Persistent::Conflict),
            (Held::ExclusiveAccess, gates.persistent != Persistent::Passes),
        ];
        for (held, stops) in expected {
            let rig = rig(row);
            rig.nexus.itl(0).expect("there").set_held(held);
            let ended = run(&rig, row);
            match stops {
                true => assert_eq!(ended.status, Status::RESERVATION_CONFLICT, "{} under {held:?}", row.policy.name),
                false => assert_passed(row, &ended, "although it is reserved"),
            }
        }
    }
}

/// What a nexus has done before the command comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Stranger,
    Registered,
    Holder,
}

/// Commands that a persistent reservation itself decides about, by keys and standing, and not by its type.
fn is_about_reservations(row: &Row) -> bool {
    use OpCode as Op;
    let all = [Op::RESERVE_6, Op::RELEASE_6, Op::RESERVE_10, Op::RELEASE_10];
    all.contains(&row.policy.code.op) || row.policy.code.op == Op::PERSISTENT_RESERVE_OUT
}

/// Whether units that have a command can be reserved: drives cannot.
fn can_be_reserved(row: &Row) -> bool {
    row.policy.gates.reach != Reach::Optical
}

/// SPC-4 table 62, SBC-3 table 13: all commands, all types, by requests that a peer sends.
#[test]
fn all_commands_under_all_types_of_persistent_reservations() {
    use Standing::{Holder, Registered, Stranger};
    for row in TABLE.iter().filter(|row| !is_about_reservations(row) && can_be_reserved(row)) {
        for (kind, reads_stop, registered_pass) in
            [(1, false, false), (3, true, false), (5, false, true), (6, true, true), (7, false, true), (8, true, true)]
        {
            for standing in [Stranger, Registered, Holder] {
                let rig = Rig::default().for_row(row);
                let holder = rig.target.nexus(Rig::name("holder"));
                holder.each(|itl| while itl.take_attention().is_some() {});
                let out = |nexus, action, kind| {
                    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
                    let list = [[0; 8], [1; 8], [0; 8]].concat();
                    let keyed = [[1; 8], [0; 8], [0; 8]].concat();
                    rig.run_as(nexus, &cdb, if action == 6 { &list } else { &keyed }, 0).status
                };
                let by = if standing == Holder { &rig.nexus } else { &holder };
                assert_eq!(out(by, 6, 0), Status::GOOD);
                if standing == Registered {
                    assert_eq!(out(&rig.nexus, 6, 0), Status::GOOD);
                }
                assert_eq!(out(by, 1, kind), Status::GOOD);
                let in_it = standing == Holder || standing == Registered && registered_pass;
                let stops = !in_it
                    && match row.policy.gates.persistent {
                        Persistent::Conflict => true,
                        Persistent::WriteExclusivePasses => reads_stop,
                        Persistent::Passes => false,
                    };
                let why = format!("type {kind}, {standing:?}");
                assert_stopped_or_passed(row, &run(&rig, row), stops, &why);
            }
        }
    }
}

#[test]
fn all_commands_under_an_spc2_reservation() {
    for row in TABLE.iter().filter(|row| can_be_reserved(row)) {
        let rig = fresh(row);
        let holder = rig.target.nexus(Rig::name("holder"));
        holder.each(|itl| while itl.take_attention().is_some() {});
        assert_eq!(rig.run_as(&holder, &[0x16, 0, 0, 0, 0, 0], &[], 0).status, Status::GOOD);
        let stops = row.policy.gates.spc2 == Gate::Stops;
        assert_stopped_or_passed(row, &run(&rig, row), stops, "of another");
        let own = rig.run_as(&holder, &plain(row), &data_out(row), 65536);
        let persistent = [OpCode::PERSISTENT_RESERVE_IN, OpCode::PERSISTENT_RESERVE_OUT];
        assert_stopped_or_passed(row, &own, persistent.contains(&row.policy.code.op), "of the holder");
    }
}

#[test]
fn states_of_asymmetric_access_admit_what_they_should() {
    let refusals = [
        (AluaState::STANDBY, Asc::NOT_READY_STANDBY),
        (AluaState::UNAVAILABLE, Asc::NOT_READY_UNAVAILABLE),
        (AluaState::OFFLINE, Asc::NOT_READY_OFFLINE),
        (AluaState::TRANSITIONING, Asc::NOT_READY_TRANSITION),
    ];
    for row in TABLE {
        let ready = rig(row);
        ready.nexus.itl(0).expect("there").set_alua(AluaState::ACTIVE_NON_OPTIMIZED);
        assert_passed(row, &run(&ready, row), "in a state that is active");
        for (state, asc) in refusals {
            let rig = rig(row);
            rig.nexus.itl(0).expect("there").set_alua(state);
            let admits = row.policy.gates.alua;
            let ended = run(&rig, row);
            let enough = match state {
                AluaState::STANDBY => &[Alua::Standby, Alua::Settled, Alua::Every][..],
                AluaState::TRANSITIONING => &[Alua::Every],
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
fn a_lun_that_nobody_has_is_refused_but_for_those_that_say_so() {
    for row in TABLE {
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
fn the_well_known_unit_answers_what_it_must() {
    let answered: Vec<_> = TABLE
        .iter()
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
    for row in TABLE {
        let rig = fresh(row);
        rig.aborted.set(true);
        let ended = run(&rig, row);
        assert_eq!((ended.status, ended.data.len()), (Status::TASK_ABORTED, 0), "{}", row.policy.name);
    }
}

proptest! {
    #[test]
    fn any_bytes_do_no_harm(data in prop::collection::vec(any::<u8>(), 0..2000)) {
        crate::fuzzing::raw(&data);
    }

    #[test]
    fn any_masked_cdb_does_no_harm(data in prop::collection::vec(any::<u8>(), 0..2000)) {
        crate::fuzzing::cdb(&data);
    }

    #[test]
    fn any_small_cdb_does_no_harm(pick in any::<u8>(), bytes in prop::collection::vec(0u8..20, 0..600)) {
        let mut data = vec![pick];
        data.extend(bytes);
        crate::fuzzing::cdb(&data);
    }
}

use super::*;
use proptest::prelude::*;

const DATA_BYTES: usize = 64 << 10;

/// A device that echoes, and notes what it hears.
#[derive(Default)]
struct Echo {
    heard: Vec<String>,
    residual: usize,
    sense: Vec<u8>,
    /// How many bytes of Data-In it fills; all of them otherwise.
    fills: Option<usize>,
}

impl ScsiDevice for Echo {
    fn name(&self) -> &str {
        "echo"
    }

    fn device_type(&self) -> u8 {
        3
    }

    fn attach(&mut self, nexus: &Nexus) {
        self.heard.push(format!("attach {} {} {}", nexus.id, nexus.initiator, nexus.target_port));
    }

    fn detach(&mut self, nexus: u64) {
        self.heard.push(format!("detach {nexus}"));
    }

    fn reset(&mut self) {
        self.heard.push("reset".into());
    }

    fn execute(&mut self, command: &ScsiCommand<'_>, data_in: &mut DataIn<'_>) -> Outcome {
        let filled = self.fills.unwrap_or(data_in.len());
        data_in.put(0, &vec![command.cdb[0]; filled]);
        let ScsiCommand { nexus, cdb, data_out, .. } = *command;
        self.heard.push(format!("{cdb:02x?} of {nexus}, {} out, {} in", data_out.len(), data_in.len()));
        Outcome { status: CHECK_CONDITION, sense: self.sense.clone(), residual: self.residual }
    }
}

fn submission(operation: Operation, flags: u8, nexus: u64, length: u64, data: u64) -> Submission {
    let mut command = Submission::new_zeroed();
    (command.operation, command.flags) = (operation.0, flags);
    (command.offset, command.length, command.data) = (nexus.into(), length.into(), data.into());
    command
}

struct Bench {
    data: Region,
    attached: Attached,
    device: Echo,
}

impl Bench {
    fn new() -> Self {
        let data = Region::zeroed(DATA_BYTES);
        Self { data, attached: Attached::new(), device: Echo::default() }
    }

    fn frame(&self, at: usize, cdb: &[u8]) {
        let mut frame = Frame::new_zeroed();
        frame.cdb[..cdb.len()].copy_from_slice(cdb);
        frame.cdb_length = cdb.len() as u8;
        assert!(self.data.write(at, frame.as_bytes()));
    }

    fn run(&mut self, command: &Submission) -> Result<ScsiEnd, Status> {
        let Self { data, attached, device } = self;
        execute(command, Place { queue: 1, data, attached }, device)
    }

    fn bytes(&self, at: usize, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        assert!(self.data.read(at, &mut bytes));
        bytes
    }
}

#[test]
fn a_command_moves_its_data_and_its_sense_data() {
    let mut bench = Bench::new();
    bench.frame(8192, &[0x12, 0, 0, 0, 9, 0]);
    (bench.device.residual, bench.device.sense) = (3, vec![0x70; 300]);
    let end = bench.run(&submission(Operation::SCSI, flags::DATA_IN, 7, 9, 8192));
    let wanted = ScsiEnd { status: CHECK_CONDITION, moved: 6, sense_length: SENSE_BYTES_MAX as u16 };
    assert_eq!(end, Ok(wanted));
    assert_eq!(bench.bytes(8192 + FRAME_BYTES, 6), [0x12; 6]);
    assert_eq!(bench.bytes(8192 + 64, SENSE_BYTES_MAX + 1)[SENSE_BYTES_MAX - 1..], [0x70, 0]);
    bench.frame(0, &[0x0a, 0, 0, 0, 5, 0]);
    assert_eq!(bench.run(&submission(Operation::SCSI, 0, 7, 5, 0)).map(|end| end.moved), Ok(2));
    assert_eq!(bench.device.heard[1], "[0a, 00, 00, 00, 05, 00] of 7, 5 out, 0 in");
}

#[test]
fn memory_that_a_device_has_not_filled_has_no_data_of_an_earlier_command() {
    let mut bench = Bench::new();
    assert!(bench.data.write(FRAME_BYTES, &[0x55; 9000]));
    bench.frame(0, &[0x12, 0, 0, 0, 9, 0]);
    (bench.device.residual, bench.device.fills) = (10, Some(3));
    let end = bench.run(&submission(Operation::SCSI, flags::DATA_IN, 7, 8900, 0));
    assert_eq!(end.map(|end| end.moved), Ok(8890));
    let bytes = bench.bytes(FRAME_BYTES, 8892);
    assert!(bytes[..3] == [0x12; 3] && bytes[3..8890].iter().all(|byte| *byte == 0) && bytes[8890..] == [0x55; 2]);
}

#[test]
fn nexuses_begin_and_end_and_those_of_a_closed_queue_end() {
    let mut bench = Bench::new();
    let mut names = NexusNames::new_zeroed();
    names.target_port = 2.into();
    names.initiator_length = 5.into();
    names.initiator[..5].copy_from_slice(b"iqn.a");
    assert!(bench.data.write(4096, names.as_bytes()));
    for nexus in [1, 2] {
        assert!(bench.run(&submission(Operation::ATTACH, 0, nexus, 0, 4096)).is_ok());
    }
    assert!(bench.run(&submission(Operation::DETACH, 0, 1, 0, 0)).is_ok());
    assert!(bench.run(&submission(Operation::DETACH, 0, 1, 0, 0)).is_ok(), "it has ended");
    assert!(bench.run(&submission(Operation::RESET, 0, 0, 0, 0)).is_ok());
    detach_all(9, &mut bench.attached, &mut bench.device);
    detach_all(1, &mut bench.attached, &mut bench.device);
    let wanted = ["attach 1 iqn.a 2", "attach 2 iqn.a 2", "detach 1", "reset", "detach 2"];
    assert_eq!(bench.device.heard, wanted);
    assert!(bench.attached.is_empty());
}

#[test]
fn operations_of_blocks_are_not_supported() {
    let mut bench = Bench::new();
    for operation in [Operation::READ, Operation::FLUSH, Operation(200)] {
        assert_eq!(bench.run(&submission(operation, 0, 0, 512, 0)), Err(Status::UNSUPPORTED));
    }
    assert_eq!(bench.run(&submission(Operation::SCSI, 0, 0, 0, 0)), Err(Status::FAILED), "a CDB without bytes");
}

#[test]
fn operations_of_both_levels_are_told_apart() {
    let blocks = Operation::KNOWN.iter().filter(|(operation, _)| operation.is_of_blocks());
    assert_eq!(blocks.count(), 6);
    for (operation, name) in Operation::KNOWN {
        let mut bench = Bench::new();
        bench.frame(0, &[0; 6]);
        let is_ours = bench.run(&submission(*operation, 0, 0, 0, 0)) != Err(Status::UNSUPPORTED);
        assert_ne!(is_ours, operation.is_of_blocks(), "{name}");
    }
}

proptest! {
    #[test]
    fn any_command_is_answered(
        operation in 0u8..13, flags: u8, nexus: u64, length in prop_oneof![0u64..100_000, any::<u64>()],
        data in prop_oneof![0u64..100_000, any::<u64>()], frame in prop::collection::vec(any::<u8>(), 400),
        residual in prop_oneof![0usize..100, any::<usize>()],
    ) {
        let mut bench = Bench::new();
        assert!(bench.data.write(0, &frame));
        bench.device.residual = residual;
        if let Ok(end) = bench.run(&submission(Operation(operation), flags, nexus, length, data)) {
            prop_assert!(u64::from(end.moved) <= length);
        }
    }
}

//! One unit behind all three command sets: space that one of them deallocates reads as zeroes for the others.

use lunar_blk::testing::{Rig as Block, client};
use lunar_blk::{Answer, Attachment, ByteRange, Code, Request};
use lunar_core::io::Extent;
use lunar_core::medium::Medium;
use lunar_core::mem::Arena;
use lunar_core::metadata::VolatileMemory;
use lunar_core::range::Ranges;
use lunar_core::tally::Tally;
use lunar_core::unit::{Geometry, Identity, OneCore, Unit, UnitId};
use lunar_iscsi_initiator::cdb;
use lunar_nvme::fuzzing::Rig as Nvme;
use lunar_nvme::{Sqe, Status as NvmeStatus};
use lunar_nvme_host::command;
use lunar_ram::RamVolume;
use lunar_reactor::Reactor;
use lunar_reactor::sim::{Host, World};
use lunar_scsi::Status as ScsiStatus;
use lunar_scsi::testing::Rig as Scsi;
use std::rc::Rc;
use std::sync::Arc;

const BLOCK: usize = 512;
/// Blocks of the unit.
const BLOCKS: u64 = 2048;
/// Blocks of what space is given back in.
const GRAIN: u64 = 128;
/// The identifier of its namespace: the rig has two of its own.
const NAMESPACE: u32 = 3;

/// A device server, a subsystem and a block client, all with the same unit.
struct All {
    scsi: Scsi,
    nvme: Nvme,
    block: Block,
    client: Rc<Attachment>,
    _core: Reactor,
}

impl All {
    fn new() -> Self {
        let core = Reactor::with_driver(World::new(1).core(Host(1)), Arena::new(1 << 20), Arc::default());
        let store = RamVolume::new(BLOCKS * BLOCK as u64, false).and_then(|volume| volume.open(&core)).expect("small");
        assert_eq!(u64::from(store.traits().unmap_granularity), GRAIN * BLOCK as u64);
        let ranges = Rc::new(Ranges::default());
        let identity = Identity {
            vendor: "LUNAR".into(),
            product: "BOTH".into(),
            revision: "1".into(),
            serial: "9".into(),
            uuid: [9; 16],
            naa: [0x39; 8],
        };
        let unit = Rc::new(Unit {
            id: UnitId(9),
            identity: Arc::new(identity),
            geometry: Geometry::of(store.traits(), BLOCK as u32).expect("whole blocks"),
            read_only: false,
            store,
            ranges: ranges.clone(),
            protection: None,
            medium: Medium::default(),
            tally: Tally::default(),
            exclusive: Rc::new(OneCore(ranges)),
            metadata: Arc::new(VolatileMemory::default()),
        });
        let (scsi, nvme, block) = (Scsi::default(), Nvme::default(), Block::default());
        scsi.target.add_unit(0, unit.clone());
        nvme.subsystem.add_namespace(NAMESPACE, unit.clone());
        block.set.add_unit(unit);
        let client = block.set.attach(UnitId(9), client(false)).expect("the unit was added");
        // The unit attentions of the new unit come first.
        while scsi.run(&[0; 6], &[], 0).status != ScsiStatus::GOOD {}
        Self { scsi, nvme, block, client, _core: core }
    }

    fn scsi(&self, cdb: &[u8], out: &[u8], room: u64) -> Vec<u8> {
        let ended = self.scsi.run(cdb, out, room as u32);
        assert_eq!(ended.status, ScsiStatus::GOOD, "{cdb:02x?}: {:02x?}", ended.sense);
        ended.data
    }

    fn nvme(&self, mut sqe: Sqe, out: &[u8]) -> Vec<u8> {
        // Room for all that it may ask for.
        sqe.sgl.length = u32::MAX.into();
        let ended = self.nvme.run(&self.nvme.io, &sqe, out);
        assert_eq!(ended.status, NvmeStatus::SUCCESS, "{sqe:?}");
        ended.data
    }

    /// The data and the answer of a request about these blocks.
    fn block(&self, code: Code, first: u64, count: u64, out: &[u8]) -> (Vec<u8>, Answer) {
        let range = [ByteRange { offset: first * BLOCK as u64, len: count * BLOCK as u64 }];
        let ended = self.block.run_for(&self.client, &Request::new(code, &range), out);
        assert_eq!(ended.result, Ok(()), "{code:?}");
        (ended.data, ended.answer)
    }

    /// The data of these blocks, which is the same for all three.
    fn reads(&self, first: u64, count: u64) -> Vec<u8> {
        let bytes = self.scsi(&cdb::read(first, count as u32, false)[..10], &[], count * BLOCK as u64);
        assert!(self.nvme(command::read(NAMESPACE, first, count as u32, false), &[]) == bytes, "NVMe reads the same");
        assert!(self.block(Code::Read, first, count, &[]).0 == bytes, "a block client reads the same");
        bytes
    }

    /// Runs of blocks, by GET LBA STATUS and by the extents of a block client: how many, and whether they are mapped.
    fn mapped(&self) -> Vec<(u32, bool)> {
        let room = 1000_u32;
        let cdb = [&[0x9e, 0x12][..], &[0; 8], &room.to_be_bytes(), &[0, 0]].concat();
        let told = self.scsi(&cdb, &[], room.into());
        let number = |bytes: &[u8]| u32::from_be_bytes(*bytes.first_chunk().expect("four bytes"));
        let runs: Vec<_> =
            told[8..].chunks(16).map(|descriptor| (number(&descriptor[8..]), descriptor[12] == 0)).collect();
        let extent = |(blocks, mapped)| Extent { len: u64::from(blocks) * BLOCK as u64, mapped };
        let extents = runs.iter().copied().map(extent).collect();
        assert_eq!(
            self.block(Code::Extents, 0, BLOCKS, &[]).1,
            Answer::Extents(extents),
            "a block client sees the same"
        );
        runs
    }

    fn unmap(&self, first: u64, count: u64) {
        let list = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &first.to_be_bytes(), &(count as u32).to_be_bytes(), &[0; 4]];
        assert!(self.scsi(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list.concat(), 0).is_empty());
    }

    fn deallocate(&self, first: u64, count: u64) {
        let (sqe, range) = command::deallocate(NAMESPACE, first, count as u32);
        assert!(self.nvme(sqe, &range).is_empty());
    }
}

#[test]
fn space_that_one_command_set_deallocates_reads_as_zeroes_for_all() {
    let sets = All::new();
    let (all, rest) = (8 * GRAIN, (BLOCKS - 8 * GRAIN) as u32);
    let grain = GRAIN as u32;
    let sevens = vec![7; (all as usize) * BLOCK];
    assert_eq!(sets.mapped(), [(BLOCKS as u32, false)]);
    sets.scsi(&cdb::write(0, all as u32, false)[..10], &sevens, 0);
    assert_eq!((sets.reads(0, all) == sevens, sets.mapped()), (true, vec![(8 * grain, true), (rest, false)]));

    let zeroes = |grains: usize| vec![0; grains * GRAIN as usize * BLOCK];
    sets.unmap(GRAIN, GRAIN);
    assert!(sets.reads(GRAIN, GRAIN) == zeroes(1));
    assert_eq!(sets.mapped(), [(grain, true), (grain, false), (6 * grain, true), (rest, false)]);

    sets.deallocate(4 * GRAIN, 2 * GRAIN);
    assert!(sets.reads(4 * GRAIN, 2 * GRAIN) == zeroes(2));
    let holes = [(grain, true), (grain, false), (2 * grain, true), (2 * grain, false), (2 * grain, true)];
    assert_eq!(sets.mapped(), [&holes[..], &[(rest, false)]].concat());

    // Blocks that another command set writes are mapped again.
    let nines = vec![9; GRAIN as usize * BLOCK];
    sets.nvme(command::write(NAMESPACE, GRAIN, grain, false), &nines);
    sets.scsi(&cdb::write(4 * GRAIN, 2 * grain, false)[..10], &nines.repeat(2), 0);
    assert_eq!((sets.reads(GRAIN, GRAIN) == nines, sets.reads(4 * GRAIN, GRAIN) == nines), (true, true));
    assert_eq!(sets.mapped(), [(8 * grain, true), (rest, false)]);
    // The same with a block client.
    sets.block(Code::Discard, 2 * GRAIN, GRAIN, &[]);
    assert!(sets.reads(2 * GRAIN, GRAIN) == zeroes(1));
    assert_eq!(sets.mapped(), [(2 * grain, true), (grain, false), (5 * grain, true), (rest, false)]);
    sets.block(Code::Write, 2 * GRAIN, GRAIN, &nines);
    sets.block(Code::WriteZeroes, 3 * GRAIN, GRAIN, &[]);
    assert!(sets.reads(2 * GRAIN, GRAIN) == nines && sets.reads(3 * GRAIN, GRAIN) == zeroes(1));
    sets.unmap(0, BLOCKS);
    assert_eq!((sets.reads(0, all) == zeroes(8), sets.mapped()), (true, vec![(BLOCKS as u32, false)]));
}

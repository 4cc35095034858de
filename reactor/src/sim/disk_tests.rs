use super::*;
use lunar_core::mem::Arena;

fn read(disk: &Disk, offset: usize, len: usize) -> Vec<u8> {
    let mut into = Arena::new(1).take_sg(len).expect("a fresh arena");
    into.fill_from(0, 0xa5);
    disk.read(offset, &mut into);
    into.share().to_vec()
}

#[test]
fn fresh_files_and_bytes_after_their_end_read_as_zeroes() {
    let mut disk = Disk::new(1024);
    disk.write(1000, &[7; 24]);
    assert_eq!(read(&disk, 990, 50)[..], [&[0; 10][..], &[7; 24], &[0; 16]].concat());
    assert_eq!(read(&disk, 5000, 3), [0; 3]);
}

#[test]
fn a_write_behind_the_end_grows_the_file() {
    let mut disk = Disk::new(512);
    disk.write(5000, &[1; 10]);
    assert_eq!(read(&disk, 4999, 12)[..], [&[0; 1][..], &[1; 10], &[0; 1]].concat());
}

#[test]
fn synced_data_survives_every_crash() {
    for seed in 0..100 {
        let mut disk = Disk::new(4096);
        disk.write(0, &[1; 4096]);
        disk.sync(disk.mark());
        disk.crash(&mut Chance::new(seed));
        assert_eq!(read(&disk, 0, 4096), [1; 4096]);
    }
}

#[test]
fn a_durable_write_survives_and_its_neighbours_need_not() {
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..100 {
        let mut disk = Disk::new(4096);
        disk.write(0, &[1; 1024]);
        disk.write(512, &[2; 512]);
        disk.harden(512..1024);
        disk.crash(&mut Chance::new(seed));
        assert_eq!(read(&disk, 512, 512), [2; 512]);
        match read(&disk, 0, 1)[0] {
            0 => lost += 1,
            _ => kept += 1,
        }
    }
    assert!(kept > 10 && lost > 10, "{kept} kept, {lost} lost");
}

#[test]
fn a_sync_covers_only_earlier_writes() {
    let mut older_survived = false;
    for seed in 0..200 {
        let mut disk = Disk::new(512);
        disk.write(0, &[1; 512]);
        let mark = disk.mark();
        disk.write(0, &[2; 512]);
        disk.sync(mark);
        disk.crash(&mut Chance::new(seed));
        let byte = read(&disk, 0, 1)[0];
        assert!(byte == 1 || byte == 2, "{byte} was synced away");
        older_survived |= byte == 1;
    }
    assert!(older_survived);
}

#[test]
fn a_sync_that_failed_is_not_mended_by_the_next() {
    let (mut kept, mut lost, mut seen_until_crash) = (0, 0, 0);
    for seed in 0..100 {
        let (mut disk, mut chance) = (Disk::new(512), Chance::new(seed));
        disk.write(0, &[1; 512]);
        disk.fail_sync(disk.mark(), &mut chance);
        disk.sync(disk.mark());
        let before = read(&disk, 0, 1)[0];
        disk.crash(&mut chance);
        let after = read(&disk, 0, 1)[0];
        kept += usize::from(after == 1);
        lost += usize::from(after == 0);
        seen_until_crash += usize::from(before == 1 && after == 0);
    }
    let mut disk = Disk::new(1024);
    disk.write(0, &[1; 512]);
    while disk.seen()[0] == 1 && disk.firm[0] == 0 {
        disk.write(0, &[1; 512]);
        disk.fail_sync(disk.mark(), &mut Chance::new(disk.mark()));
    }
    disk.write(512, &[2; 512]);
    disk.reopen();
    assert_eq!((disk.seen[0], disk.seen[512]), (disk.firm[0], 2));
    assert!(kept > 30 && lost > 30 && seen_until_crash > 10, "{kept} {lost} {seen_until_crash}");
}

#[test]
fn loose_sectors_tear_but_never_mix_bytes() {
    let mut torn = false;
    for seed in 0..200 {
        let mut disk = Disk::new(4096);
        disk.write(0, &[1; 4096]);
        disk.sync(disk.mark());
        disk.write(0, &[2; 4096]);
        disk.write(0, &[3; 4096]);
        disk.crash(&mut Chance::new(seed));
        let all = read(&disk, 0, 4096);
        for sector in all.chunks(SECTOR) {
            assert!(sector.iter().all(|byte| *byte == sector[0]) && (1..=3).contains(&sector[0]));
        }
        torn |= all.iter().any(|byte| *byte != all[0]);
    }
    assert!(torn);
}

#[test]
fn extents_match_allocated_space() {
    let mut disk = Disk::new(5 * SPACE_BLOCK);
    disk.write(SPACE_BLOCK + 5, &[1; SPACE_BLOCK]);
    assert_eq!(disk.takes(), 2);
    assert_eq!(disk.wants(0..3 * SPACE_BLOCK), 1);
    assert_eq!(disk.extent(0, 5 * SPACE_BLOCK), Extent { len: SPACE_BLOCK as u64, mapped: false });
    assert_eq!(disk.extent(SPACE_BLOCK, 100), Extent { len: 100, mapped: true });
    assert_eq!(disk.extent(SPACE_BLOCK + 1, 1 << 20), Extent { len: 2 * SPACE_BLOCK as u64 - 1, mapped: true });
    disk.zero(0..2 * SPACE_BLOCK + 7, true);
    assert_eq!(disk.takes(), 1);
    assert_eq!(read(&disk, 2 * SPACE_BLOCK, 9)[..], [0; 9]);
    assert_eq!(disk.extent(3 * SPACE_BLOCK, 1 << 20), Extent { len: 2 * SPACE_BLOCK as u64, mapped: false });
    assert_eq!(disk.extent(50 * SPACE_BLOCK, 10), Extent { len: 10, mapped: false });
}

#[test]
fn a_block_whose_data_comes_back_is_no_hole() {
    let (mut has_come_back, whole) = ([false; 2], SPACE_BLOCK as u64);
    for seed in 0..50 {
        let mut disk = Disk::new(SPACE_BLOCK);
        disk.write(0, &[1; SPACE_BLOCK]);
        disk.sync(disk.mark());
        disk.zero(0..SPACE_BLOCK, true);
        assert_eq!(disk.extent(0, SPACE_BLOCK), Extent { len: whole, mapped: false });
        disk.fail_sync(disk.mark(), &mut Chance::new(seed));
        for come_back in &mut has_come_back {
            let has_data = read(&disk, 0, SPACE_BLOCK).iter().any(|byte| *byte != 0);
            assert_eq!(disk.extent(0, SPACE_BLOCK), Extent { len: whole, mapped: has_data });
            *come_back |= has_data;
            disk.reopen();
        }
    }
    assert_eq!(has_come_back, [true; 2]);
}

use super::*;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, memfd_create};

fn file() -> File {
    memfd_create("data", MemfdFlags::CLOEXEC).expect("a memfd").into()
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().expect("a memfd").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("read");
    bytes
}

/// A region with these bytes behind the first hundred.
fn region(bytes: &[u8]) -> Region {
    let region = Region::zeroed(bytes.len() + 100);
    assert!(region.write(100, bytes));
    region
}

fn counted(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn shared_and_own_data_are_written_behind_a_head() {
    let bytes = counted(3 * PIECE_BYTES + 5);
    let region = region(&bytes);
    let shared = DataOut::shared(&region, 100, bytes.len()).expect("within");
    for data in [shared, DataOut::from(&bytes[..])] {
        let file = file();
        let part = data.get(7..data.len()).expect("a part");
        part.write_at(&file, b"head", b"tail", 3).expect("written");
        assert_eq!(content(&file), [b"\0\0\0head", &bytes[7..], b"tail"].concat());
        assert!(data.get(0..bytes.len() + 1).is_none());
        #[expect(clippy::reversed_empty_ranges, reason = "a defective handler may say it")]
        let reversed = data.get(2..1);
        assert!(reversed.is_none());
        data.get(0..0).expect("an empty part").write_at(&file, b"x", b"", 0).expect("written");
        assert_eq!((content(&file)[..4].to_vec(), data.to_vec() == bytes), (b"x\0\0h".to_vec(), true));
    }
    assert!(DataOut::shared(&region, 101, bytes.len()).is_none());
}

#[test]
fn memory_is_filled_from_a_file_and_what_is_before_it_is_zero() {
    let (file, bytes) = (file(), counted(2 * PIECE_BYTES));
    file.write_all_at(&bytes, 10).expect("written");
    let len = bytes.len() + 20;
    let (region, mut own) = (region(&vec![0xa5; len]), vec![0xa5; len]);
    let mut found = vec![0; len];
    {
        let shared = DataIn::shared(&region, 100, len).expect("within");
        for mut data in [shared, DataIn::from(&mut own[..])] {
            assert_eq!(data.put(len - 1, b"abc"), 1, "as much as fits");
            assert_eq!((data.put(len, b"abc"), data.put(0, b"")), (0, 0));
            data.read_at(20..len, &file, 10).expect("read");
            let mut looked: Vec<u8> = Vec::new();
            data.pieces(19..len, |piece| looked.extend(piece));
            assert!(looked[0] == 0 && looked[1..] == bytes);
            let why = data.read_at(0..10, &file, bytes.len() as u64 + 1).expect_err("the file ends");
            assert_eq!(why.kind(), ErrorKind::UnexpectedEof);
        }
    }
    assert!(region.read(100, &mut found) && found[20..] == own[20..] && found[9..20] == [0; 11]);
}

proptest! {
    #[test]
    fn chunks_are_parts_in_order(len in 0..70_000_usize, chunk in 1..70_000_usize) {
        let bytes = counted(len);
        let region = region(&bytes);
        let shared = DataOut::shared(&region, 100, len).expect("within");
        for data in [shared, DataOut::from(&bytes[..])] {
            let all: Vec<_> = data.chunks(chunk).map(|part| part.to_vec()).collect();
            prop_assert!(all.iter().map(Vec::as_slice).eq(bytes.chunks(chunk)));
        }
    }
}

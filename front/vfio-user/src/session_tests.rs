use super::*;
use zerocopy::FromZeros;

fn message(code: Code, flags: u32, payload: &[u8]) -> [u8; HEADER_LEN] {
    let header = Header {
        id: 7.into(),
        code: code.0.into(),
        size: ((HEADER_LEN + payload.len()) as u32).into(),
        flags: flags.into(),
        errno: 0.into(),
    };
    *header.as_bytes().first_chunk().expect("16 bytes")
}

#[test]
fn headers_of_no_command_are_refused() {
    assert_eq!(head(&message(Code::RESET, 0, &[])).map(|head| (head.len, head.is_answered)), Ok((0, true)));
    assert_eq!(head(&message(Code::RESET, NO_REPLY, &[0; 9])).map(|head| (head.len, head.is_answered)), Ok((9, false)));
    assert!(head(&message(Code::RESET, REPLY, &[])).is_err());
    assert!(head(&message(Code::RESET, 0, &[0; MESSAGE_MAX])).is_err());
    let mut short = message(Code::RESET, 0, &[]);
    short[4] = 15;
    assert!(head(&short).is_err());
}

#[test]
fn versions_and_capabilities_are_negotiated() {
    let answer = |bytes: &[u8]| match parse(Code::VERSION, bytes) {
        Ok(Request::Version { answer, has_capabilities }) => {
            Ok((answer[2], String::from_utf8_lossy(&answer[4..]).into_owned(), has_capabilities))
        }
        Ok(other) => panic!("{other:?}"),
        Err(why) => Err(why),
    };
    let (minor, text, has_capabilities) = answer(&[0, 0, 1, 0]).expect("no capabilities");
    assert_eq!((minor, has_capabilities), (1, false));
    assert!(text.ends_with("}\0") && !text.contains("write_multiple"));
    let (minor, text, has_capabilities) =
        answer(b"\0\0\x02\0{\"capabilities\":{\"write_multiple\":true}}\0").expect("some");
    assert_eq!((minor, has_capabilities, text.contains("\"write_multiple\":true")), (1, true, true));
    assert_eq!(answer(b"\0\0\0\0{}\0").expect("none").0, 0);
    for bad in [&b"\x01\0\0\0"[..], b"\0\0", b"\0\0\x01\0{}", b"\0\0\x01\0{\0", b"\0\0\x01\0\xff\0"] {
        assert_eq!(answer(bad), Err(Errno::INVAL), "{bad:?}");
    }
}

#[test]
fn malformed_messages_are_refused() {
    for code in 1..=20 {
        let empty = parse(Code(code), &[]);
        assert_eq!(empty.is_ok(), matches!(Code(code), Code::DEVICE_INFO | Code::RESET), "{code}");
    }
    let mut unmap = DmaUnmap::new_zeroed();
    unmap.flags = UNMAP_ALL.into();
    assert!(matches!(parse(Code::DMA_UNMAP, unmap.as_bytes()), Ok(Request::Unmap(_, None))));
    unmap.size = 1.into();
    assert_eq!(parse(Code::DMA_UNMAP, unmap.as_bytes()), Err(Errno::INVAL));
    unmap.flags = UNMAP_DIRTY.into();
    assert_eq!(parse(Code::DMA_UNMAP, unmap.as_bytes()), Err(Errno::NOTSUP));
    let mut access = Access::new_zeroed();
    access.count = 5.into();
    assert_eq!(parse(Code::REGION_WRITE, &[access.as_bytes(), &[0; 4]].concat()), Err(Errno::INVAL));
    access.count = u32::MAX.into();
    assert_eq!(parse(Code::REGION_READ, access.as_bytes()), Err(Errno::INVAL));
    let many = |count: u64, write: &ShortWrite| [&count.to_le_bytes(), write.as_bytes()].concat();
    let mut write = ShortWrite::new_zeroed();
    write.access.count = 8.into();
    let bytes = many(1, &write);
    assert!(matches!(parse(Code::REGION_WRITE_MULTI, &bytes), Ok(Request::WriteMany(writes)) if writes.len() == 1));
    assert_eq!(parse(Code::REGION_WRITE_MULTI, &many(u64::MAX, &write)), Err(Errno::INVAL));
    write.access.count = 9.into();
    assert_eq!(parse(Code::REGION_WRITE_MULTI, &many(1, &write)), Err(Errno::INVAL));
}

/// vfio-user 0.1: mappings are whole pages of a size in `pgsizes`, and a device reads only memory that it may read.
#[test]
fn memory_that_is_not_whole_readable_pages_is_not_mapped() {
    let map = |flags: u32, [address, size, offset]: [u64; 3]| {
        let argsz = (size_of::<DmaMap>() as u32).into();
        let (flags, offset) = (flags.into(), offset.into());
        let map = DmaMap { argsz, flags, offset, address: address.into(), size: size.into() };
        parse(Code::DMA_MAP, map.as_bytes()).map(|_| ())
    };
    for flags in [MAP_READABLE, MAP_READABLE | MAP_WRITABLE] {
        assert_eq!(map(flags, [0x10_0000, 0x1000, 0x2000]), Ok(()));
        for bad in [[0x10_0200, 0x1000, 0], [0x10_0000, 0x1001, 0], [0x10_0000, 0x200, 0], [0, 0x1000, 8], [0, 0, 0]] {
            assert_eq!(map(flags, bad), Err(Errno::INVAL), "{bad:x?}");
        }
    }
    for flags in [0, MAP_WRITABLE, MAP_READABLE | 4] {
        assert_eq!(map(flags, [0x10_0000, 0x1000, 0]), Err(Errno::INVAL), "{flags}");
    }
}

/// vfio-user 0.1: `max_data_xfer_size` holds for both directions.
#[test]
fn no_access_is_larger_than_announced() {
    let mut access = Access::new_zeroed();
    for (count, fits) in [(TRANSFER_MAX, true), (TRANSFER_MAX + 1, false)] {
        access.count = count.into();
        let write = [access.as_bytes(), &vec![0; count as usize]].concat();
        assert_eq!(parse(Code::REGION_WRITE, &write).is_ok(), fits, "{count} bytes are written");
        assert_eq!(parse(Code::REGION_READ, access.as_bytes()).is_ok(), fits, "{count} bytes are read");
    }
}

#[test]
fn doorbells_are_offered_to_clients_that_map_them() {
    let mut asked = RegionInfo::new_zeroed();
    asked.argsz = 32.into();
    let (info, file) = region_info(&asked, false).expect("BAR 0");
    assert_eq!((info.len(), file, info[4], info[16..20].to_vec()), (32, false, 3, vec![0, 0x40, 0, 0]));
    let (info, file) = region_info(&asked, true).expect("BAR 0");
    assert_eq!((info.len(), file, info[0], info[4]), (32, false, 64, 15), "more room is asked for");
    asked.argsz = 64.into();
    let (info, file) = region_info(&asked, true).expect("BAR 0");
    assert_eq!((info.len(), file, info[12]), (64, true, 32));
    asked.index = 8.into();
    assert_eq!(region_info(&asked, true).map(|(info, _)| info[4]), Ok(0));
    asked.index = 9.into();
    assert_eq!(region_info(&asked, true), Err(Errno::INVAL));
}

#[test]
fn accesses_stay_within_their_region() {
    let access = |region: u32, offset: u64, count: u32| Access {
        offset: offset.into(),
        region: region.into(),
        count: count.into(),
    };
    assert_eq!(within(&access(REGION_CONFIG, 4092, 4)), Ok(4092));
    for bad in [access(7, 4093, 4), access(7, u64::MAX, 4), access(6, 0, 1), access(0, 0x4000, 1)] {
        assert_eq!(within(&bad), Err(Errno::INVAL), "{bad:?}");
    }
    let answer = reply(&Header::new_zeroed(), &Err(Errno::INVAL));
    assert_eq!((answer.len(), answer[8], answer[12]), (16, 0x21, 22));
}

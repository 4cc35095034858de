use super::*;
use crate::ring::chain::Chain;
use crate::testing::{DriverRing, Piece, started};
use lunar_blk::limits;

fn limits() -> Limits {
    Limits {
        capacity: 1 << 30,
        block_size: 4096,
        physical_block_size: 16384,
        optimal_io_size: 1 << 20,
        transfer_bytes_max: TRANSFER_BYTES_MAX,
        segments_max: limits::SEGMENTS_MAX,
        discard_bytes_max: limits::DISCARD_BYTES_MAX,
        discard_ranges_max: DISCARD_RANGES_MAX,
        discard_granularity: 65536,
        write_zeroes_bytes_max: limits::WRITE_ZEROES_BYTES_MAX,
        write_zeroes_may_unmap: true,
        read_only: false,
        has_write_cache: true,
        is_rotational: false,
    }
}

#[test]
fn the_configuration_space_has_the_limits_of_the_unit() {
    let space = config_space(&limits(), 4, true);
    let mut golden = vec![0; 60];
    golden[..8].copy_from_slice(&(1_u64 << 21).to_le_bytes());
    golden[8..12].copy_from_slice(&0x4_1000_u32.to_le_bytes());
    golden[12..16].copy_from_slice(&126_u32.to_le_bytes());
    golden[20..24].copy_from_slice(&4096_u32.to_le_bytes());
    golden[24..32].copy_from_slice(&[2, 0, 1, 0, 0, 1, 0, 0]);
    golden[32..36].copy_from_slice(&[1, 0, 4, 0]);
    golden[36..40].copy_from_slice(&(1_u32 << 21).to_le_bytes());
    golden[40..44].copy_from_slice(&32_u32.to_le_bytes());
    golden[44..48].copy_from_slice(&128_u32.to_le_bytes());
    golden[48..52].copy_from_slice(&(1_u32 << 20).to_le_bytes());
    golden[52..57].copy_from_slice(&[1, 0, 0, 0, 1]);
    assert_eq!(space.as_bytes()[..60], golden);
    assert_eq!(space.as_bytes().len(), 96);
    assert_eq!(std::mem::offset_of!(ConfigSpace, writeback), WRITEBACK_AT);
    assert_eq!(config_space(&limits(), 1, false).writeback, 0);
}

#[test]
fn a_segment_of_every_size_fits_into_a_request() {
    assert_eq!(SEGMENT_BYTES_MAX, 0x4_1000);
    assert!(u64::from(SEGMENT_BYTES_MAX) * u64::from(SEGMENTS_MAX) <= TRANSFER_BYTES_MAX);
}

#[test]
fn a_read_only_unit_offers_no_changes() {
    let all = features(&limits(), 2);
    assert_eq!(all & (feature::RO | feature::MQ), feature::MQ);
    assert_ne!(all & feature::DISCARD, 0);
    let limits = Limits { read_only: true, ..limits() };
    let changes = feature::DISCARD | feature::WRITE_ZEROES;
    assert_eq!(features(&limits, 1) & (changes | feature::RO | feature::MQ), feature::RO);
    let limits = Limits { discard_bytes_max: 0, read_only: false, ..limits };
    assert_eq!(features(&limits, 1) & changes, feature::WRITE_ZEROES);
}

fn header(kind: Type, sector: u64) -> Vec<u8> {
    let header = Header { kind: kind.0.into(), priority: 7.into(), sector: sector.into() };
    header.as_bytes().to_vec()
}

/// The result of [`parse`] for a request whose readable part has these bytes, and whose writable part has this length.
fn parsed(sent: &[u8], room: u32) -> Result<Parsed, Broken> {
    let (mut device, mut driver): (_, DriverRing) = started(0, 8);
    driver.write(0x4000, sent);
    // Headers and data may be split anywhere.
    let cut = (sent.len() / 3) as u32;
    let mut pieces: Vec<Piece> = vec![(0x4000, cut, false), (0x4000 + u64::from(cut), sent.len() as u32 - cut, false)];
    if room > 0 {
        pieces.push((0x6000, room, true));
    }
    driver.offer(&pieces, false).expect("there is room");
    let chain: Chain = device.take(0.into()).expect("good").expect("one");
    parse(&device.memory, &chain)
}

fn requested(parsed: Result<Parsed, Broken>) -> (Code, Vec<ByteRange>, bool, u64) {
    match parsed {
        Ok(Parsed::Block(BlockRequest { code, ranges, unmap, returned })) => (code, ranges.to_vec(), unmap, returned),
        other => panic!("a request: {other:?}"),
    }
}

#[test]
fn requests_are_taken_apart() {
    let range = |offset, len| ByteRange { offset, len };
    assert_eq!(requested(parsed(&header(Type::IN, 8), 1025)), (Code::Read, vec![range(4096, 1024)], false, 1024));
    let write = [header(Type::OUT, 1), vec![9; 512]].concat();
    assert_eq!(requested(parsed(&write, 1)), (Code::Write, vec![range(512, 512)], false, 0));
    assert_eq!(requested(parsed(&header(Type::FLUSH, 0), 1)), (Code::Flush, vec![], false, 0));
    assert_eq!(requested(parsed(&header(Type::GET_ID, 0), 21)), (Code::Identify, vec![], false, 20));
    for (room, returned) in [(8, 8), (35, 20), (36, 36), (512, 36)] {
        assert_eq!(requested(parsed(&header(Type::GET_ID, 0), room + 1)).3, returned);
    }
    let segment = |sector: u64, sectors: u32, flags: u32| {
        Segment { sector: sector.into(), sectors: sectors.into(), flags: flags.into() }.as_bytes().to_vec()
    };
    let discard = [header(Type::DISCARD, 0), segment(2, 3, 0), segment(10, 1, 0)].concat();
    assert_eq!(requested(parsed(&discard, 1)), (Code::Discard, vec![range(1024, 1536), range(5120, 512)], false, 0));
    let zeroes = |flags| [header(Type::WRITE_ZEROES, 0), segment(2, 3, flags)].concat();
    assert_eq!(requested(parsed(&zeroes(1), 1)), (Code::WriteZeroes, vec![range(1024, 1536)], true, 0));
    assert!(!requested(parsed(&zeroes(0), 1)).2);
    let refused = |sent: &[u8]| match parsed(sent, 1) {
        Ok(Parsed::Refused(status)) => status,
        other => panic!("a refusal: {other:?}"),
    };
    assert_eq!(refused(&zeroes(2)), Status::UNSUPP);
    assert_eq!(refused(&[header(Type::DISCARD, 0), segment(2, 3, 1)].concat()), Status::UNSUPP);
    assert_eq!(refused(&[zeroes(0), segment(0, 1, 0)].concat()), Status::IOERR, "two ranges");
    assert_eq!(refused(&[header(Type::DISCARD, 0), vec![0; 15]].concat()), Status::IOERR);
    assert_eq!(refused(&header(Type::DISCARD, 0)), Status::IOERR, "no range");
    assert_eq!(refused(&[header(Type::DISCARD, 0), segment(u64::MAX, 1, 0)].concat()), Status::IOERR);
    assert_eq!(refused(&header(Type::IN, u64::MAX / 2)), Status::IOERR);
    assert_eq!(refused(&header(Type(14), 0)), Status::UNSUPP);
}

#[test]
fn a_request_without_header_or_status_ends_its_ring() {
    assert_eq!(parsed(&header(Type::FLUSH, 0), 0), Err(Broken::Short));
    assert_eq!(parsed(&header(Type::FLUSH, 0)[..15], 1), Err(Broken::Short));
}

#[test]
fn errors_have_their_status() {
    for why in [Error::IoError, Error::ReadOnly, Error::NoSpace, Error::Conflict, Error::NotReady, Error::Invalid] {
        assert_eq!(Status::from(why), Status::IOERR);
    }
    assert_eq!(Status::from(Error::Unsupported), Status::UNSUPP);
}

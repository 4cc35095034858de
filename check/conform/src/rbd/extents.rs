//! Which blocks of an image are mapped.

use anyhow::{Context, Result, ensure};

use crate::session::{Data, Session, cdb};

/// Blocks of an object of 4 MiB.
pub(super) const OBJECT_BLOCKS: u64 = 8192;
const BLOCK: usize = 512;

/// The extents from a block on, each with its first block, its blocks, and whether they are mapped.
pub(super) fn extents(session: &mut Session, from: u64) -> Result<Vec<(u64, u64, bool)>> {
    let status = session.run(&cdb::get_lba_status(from), Data::In(8 + 16 * 16))?.good()?;
    // PARAMETER DATA LENGTH counts the bytes behind it.
    let end = u32::from_be_bytes(*status.data.first_chunk().context("the data has a length")?) as usize + 4;
    let descriptors = status.data.get(8..end).context("the data is shorter than it says")?;
    let found = descriptors.chunks_exact(16).map(|descriptor| {
        let first = u64::from_be_bytes(*descriptor.first_chunk().context("a descriptor has a first block")?);
        let blocks = u32::from_be_bytes(*descriptor[8..].first_chunk().context("and a number of blocks")?);
        Ok((first, u64::from(blocks), descriptor[12] & 0x0f == 0))
    });
    found.collect()
}

/// Objects 8 to 11 of an image are not there: one of them is written, and released.
pub(super) fn holes(session: &mut Session) -> Result<()> {
    let (blocks, _) = session.capacity()?;
    let first = 8 * OBJECT_BLOCKS;
    let is_hole = |found: &[(u64, u64, bool)]| found == [(first, blocks - first, false)];
    let found = extents(session, first)?;
    ensure!(is_hole(&found), "before the first write: {found:?}");
    let written = first + OBJECT_BLOCKS + 100;
    session.run(&cdb::write(written, 1), Data::Out(vec![7; BLOCK]))?.good()?;
    let found = extents(session, first)?;
    let second = first + OBJECT_BLOCKS;
    let third = second + OBJECT_BLOCKS;
    let expected = [(first, OBJECT_BLOCKS, false), (second, OBJECT_BLOCKS, true), (third, blocks - third, false)];
    ensure!(found == expected, "after a write to one object: {found:?}");
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend(second.to_be_bytes());
    list.extend(u32::try_from(OBJECT_BLOCKS)?.to_be_bytes());
    list.extend([0; 4]);
    // UNMAP.
    session.run(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], Data::Out(list))?.good()?;
    let found = extents(session, first)?;
    ensure!(is_hole(&found), "after UNMAP: {found:?}");
    ensure!(session.read(written, 1, BLOCK)? == [0; BLOCK], "a hole has data");
    Ok(())
}

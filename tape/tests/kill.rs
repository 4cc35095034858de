//! A process that writes to a cartridge is killed: all records that it reported are there.

use lunar_tape::cartridge::{Cartridge, Found, NewCartridge};
use lunar_tape::generation::Generation;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Environment variable of the process that the test kills.
const CHILD: &str = "LUNAR_TAPE_TEST_CHILD";
/// Numbers in a block.
const NUMBERS: usize = 2000;

/// The process that [`all_synchronized_records_survive_kill_9`] kills: a block and a filemark, again and again.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let mut cartridge = Cartridge::open(Path::new(&path)).unwrap();
    cartridge.space_to_end().unwrap();
    // The process before this one may have been killed behind a block: blocks have even numbers.
    if !cartridge.position().object.is_multiple_of(2) {
        cartridge.write_filemarks(1).unwrap();
    }
    loop {
        let block = cartridge.position().object.to_le_bytes().repeat(NUMBERS);
        assert!(cartridge.write_blocks(&block, block.len(), false).stopped.is_none());
        cartridge.write_filemarks(1).unwrap();
        cartridge.synchronize().unwrap();
        println!("synchronized {}", cartridge.end().object);
    }
}

#[test]
fn all_synchronized_records_survive_kill_9() {
    if std::env::var_os(CHILD).is_some() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("lunar-tape-kill-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("A.tape");
    let new = NewCartridge { barcode: "A".into(), generation: Generation::Lto8, capacity: None, is_worm: false };
    Cartridge::create(&path, &new).unwrap();
    for round in 0..6 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "child_that_writes_until_it_is_killed"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut synchronized = lines.filter_map(|line| line.split_once("synchronized ")?.1.parse::<u64>().ok());
        let last = synchronized.by_ref().nth(5 + round * 3).unwrap();
        child.kill().unwrap();
        let last = synchronized.last().unwrap_or(last);
        child.wait().unwrap();
        let mut cartridge = Cartridge::open(&path).unwrap();
        assert!(cartridge.end().object >= last, "{} objects, {last} were synchronized", cartridge.end().object);
        let mut block = [0; NUMBERS * 8];
        for object in 0..cartridge.end().object {
            let found = cartridge.read(&mut block).unwrap();
            if object.is_multiple_of(2) {
                assert_eq!((found, &block[..]), (Found::Block(NUMBERS * 8), &object.to_le_bytes().repeat(NUMBERS)[..]));
            } else {
                assert_eq!(found, Found::Filemark);
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

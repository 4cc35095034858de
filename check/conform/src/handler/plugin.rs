//! Plug-ins of tcmu-runner, which `lunar-tcmu` serves: that of its package for images of QEMU, and an asynchronous one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::daemon::{Daemon, TARGET};
use super::running::{BLOCK, Handler, LIMIT};
use crate::process::run;
use crate::report::skip;
use crate::session::{Data, cdb};
use crate::target::Lab;
use crate::test_data::{Random, pattern};
use crate::verifying_writer::VerifyingWriter;

/// Blocks of a piece of data, and the first block of each: behind the region of the verifying writer.
const PIECE: u32 = 100;
const PIECES: [u64; 3] = [40_001, 77_777, 131_072 - PIECE as u64];

fn program(lab: &Lab) -> Result<PathBuf> {
    let program = lab.built()?.with_file_name("lunar-tcmu");
    if !program.exists() {
        return skip("lunar-tcmu is not built beside the target: cargo build -p lunar-tcmu");
    }
    Ok(program)
}

fn qemu_img(words: &[&str], files: &[&Path]) -> Result<String> {
    match run(Command::new("qemu-img").args(words).args(files), LIMIT) {
        Err(_) => skip("there is no qemu-img: apt install qemu-utils"),
        Ok(output) => output.succeeded(),
    }
}

/// An image of QEMU: the data of an initiator is in it, and outlives processes that are killed.
pub(super) fn image(lab: &Lab, (daemon, lun): (&Daemon, u16), kills: u64) -> Result<()> {
    let (program, image) = (program(lab)?, daemon.folder.join("image.qcow2"));
    // The plug-in is not consistent when it is killed while it allocates a cluster: the clusters exist before.
    qemu_img(&["create", "-q", "-f", "qcow2", "-o", "preallocation=metadata"], &[&image, Path::new("64M")])?;
    let words =
        |size: &str| vec!["qcow".into(), image.clone().into(), daemon.socket(lun).into(), "--size".into(), size.into()];
    let refused = run(Command::new(&program).args(words("32M")), LIMIT)?;
    if refused.text.contains("there is no handler_qcow.so") {
        return skip("there is no plug-in for images: apt install tcmu-runner");
    }
    ensure!(!refused.status.success() && refused.text.contains("cannot open its data"), "{}", refused.text);
    let mut handler = Handler::with(program, words("64M"))?;
    daemon.until_state(lun, "connected")?;
    let mut session = daemon.session(lun)?;
    let data = |at: u64| pattern(at, 1, PIECE as usize * BLOCK);
    for at in PIECES {
        session.write(at, data(at), BLOCK)?;
    }
    session.synchronize()?;
    qemu_img(&["check", "-q", "-U"], &[&image])?;
    let raw = daemon.folder.join("image.raw");
    qemu_img(&["convert", "-U", "-f", "qcow2", "-O", "raw"], &[&image, &raw])?;
    let found = std::fs::read(&raw)?;
    for at in PIECES {
        let begin = usize::try_from(at)? * BLOCK;
        ensure!(found[begin..begin + data(at).len()] == data(at), "block {at} of the image has other data");
    }
    let writer = VerifyingWriter::start(daemon.portal, TARGET, lun, lab.seed)?;
    let mut random = Random::new(lab.seed);
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(20 + random.below(150)));
        handler.kill()?;
        handler.start()?;
        writer.expect_progress()?;
    }
    writer.finish()?;
    for at in PIECES {
        ensure!(session.read(at, PIECE, BLOCK)? == data(at), "block {at} has changed");
    }
    session.synchronize()?;
    handler.signal(Signal::TERM)?;
    handler.ended()?;
    qemu_img(&["check", "-q"], &[&image])?;
    session.logout()
}

/// An asynchronous plug-in: reads, writes, flushes and unmaps; and the refusal of a configuration.
pub(super) fn asynchronous(lab: &Lab, (daemon, lun): (&Daemon, u16)) -> Result<()> {
    let (program, plugin) = (program(lab)?, daemon.folder.join("handler_memory.so"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tcmu/tests/memory_plugin.c");
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-o"]);
    run(command.arg(&plugin).arg(&source), LIMIT)?.succeeded()?;
    let words = |config: &str| {
        let socket = daemon.socket(lun).into();
        vec![plugin.clone().into(), config.into(), socket, "--size".into(), "64M".into()]
    };
    let refused = run(Command::new(&program).args(words("other")), LIMIT)?;
    ensure!(!refused.status.success() && refused.text.contains("its only configuration is zero"), "{}", refused.text);
    let _handler = Handler::with(program, words("zero"))?;
    daemon.until_state(lun, "connected")?;
    let mut session = daemon.session(lun)?;
    for (generation, at) in (1..).zip(PIECES) {
        let data = pattern(at, generation, PIECE as usize * BLOCK);
        session.write(at, data.clone(), BLOCK)?;
        ensure!(session.read(at, PIECE, BLOCK)? == data, "block {at} has other data");
    }
    session.synchronize()?;
    // UNMAP with one descriptor (SBC-4 5.35).
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend(PIECES[0].to_be_bytes());
    list.extend(PIECE.to_be_bytes());
    list.extend([0; 4]);
    session.run(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], Data::Out(list))?.good()?;
    ensure!(session.read(PIECES[0], PIECE, BLOCK)?.iter().all(|byte| *byte == 0), "blocks are not unmapped");
    session.synchronize()?;
    session.run(&cdb::read(131_072, 1), Data::In(BLOCK))?.expect_sense(0x05, 0x21, 0x00)?;
    session.logout()
}

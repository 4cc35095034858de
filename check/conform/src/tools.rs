//! Tools that users have: libiscsi's programs, qemu-img and qemu-io; and `lunar bench`.

use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::process;
use crate::target::{Driver, Lab, Spec, Subject, Target, free_port};

const LIMIT: Duration = Duration::from_secs(120);
/// Size of the volume that qemu-img copies: more than any buffer in between holds.
const IMAGE_MIB: u64 = 256;

/// Runs a tool that must succeed; returns its output.
pub(crate) fn tool(program: &str, arguments: &[&str]) -> Result<String> {
    process::run(process::bound(program).args(arguments), LIMIT)?
        .succeeded()
        .with_context(|| format!("{program} {}", arguments.join(" ")))
}

pub(crate) fn expect_text(text: &str, wanted: &str) -> Result<()> {
    ensure!(text.contains(wanted), "\"{wanted}\" is missing in:\n{text}");
    Ok(())
}

/// Runs the part: all tools against one target.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("tools/{}", driver.name());
    let mut target = None;
    lab.report.check(&part, "target starts", || {
        let spec = Spec::new(driver, [lab.image("tools.img", IMAGE_MIB)?, "ram:16M".to_owned()])?;
        target = Some(Target::start(lab, &spec)?);
        Ok(())
    });
    let Some(mut target) = target else { return Ok(()) };
    small_programs(lab, &part, &target);
    images(lab, &part, &target);
    patterns(lab, &part, &target);
    if matches!(lab.subject, Subject::Built(_)) {
        lab.report.check(&part, "an optical disc is read back unchanged", || disc(lab, driver));
        lab.report.check(&part, "lunar bench over all protocols on one volume", || our_clients(lab, driver));
    }
    lab.report.check(&part, "target stops in time", || {
        target.healthy()?;
        target.stop()
    });
    Ok(())
}

/// The subsystem of [`our_clients`], with options and loads. An RDMA port takes fewer connections than TCP.
const NQN: &str = "nqn.2026-01.io.lunar:own";
const DIGESTS: [&str; 4] = ["--header-digest", "crc32c", "--data-digest", "crc32c"];
const RDMA_LOADS: [&[&str]; 4] = [
    &["--rw", "randrw", "--sessions", "4", "--flush-every", "100"],
    &["--rw", "randrw", "--bs", "16k", "--fua", "--flow-control"],
    &["--rw", "rw", "--bs", "256k", "--depth", "4", "--sessions", "2"],
    &["--rw", "randrw", "--depth", "100", "--idle-sessions", "8", "--spin"],
];

/// Loads of vhost-user devices.
const VHOST_LOADS: [&[&str]; 4] = [
    &["--rw", "randrw", "--sessions", "4", "--flush-every", "100"],
    &["--rw", "randrw", "--bs", "16k", "--depth", "1"],
    &["--rw", "rw", "--bs", "1M", "--depth", "4", "--sessions", "2"],
    &["--rw", "randrw", "--depth", "700", "--sessions", "3"],
];

/// Two addresses of the loopback for this port: RDMA has one UDP port, so both ends need addresses of their own.
fn loopback_pair(port: u16) -> [String; 2] {
    let [high, low] = port.to_be_bytes();
    [1, 2].map(|net| Ipv4Addr::new(127, net, high, low).to_string())
}

/// Runs `lunar bench` over all protocols: each reads and verifies what another wrote, with all options that change how
/// data moves, and with as many queues as a controller has.
fn our_clients(lab: &Lab, driver: Driver) -> Result<()> {
    let port = free_port()?;
    let (at, [rdma_address, source]) = (port.to_string(), loopback_pair(port.port()));
    let folder = lab.scratch.join(format!("own-{}", driver.name()));
    let sockets = folder.to_str().context("the scratch folder's name is not UTF-8")?;
    let flags = ["--cores", "2", "--nvme", &at, "--nqn", NQN, "--vm", "own", "--vm-folder", sockets];
    let devices = ["--vhost-blk", "own", "--vhost-scsi", "adapter", "--vhost-folder", sockets];
    let ports = ["--nvme-rdma", &rdma_address];
    let spec = Spec::new(driver, [lab.image("own.img", 64)?])?.flags(&flags).flags(&devices).flags(&ports);
    let mut target = Target::start(lab, &spec)?;
    let program = lab.built()?.to_str().context("the program's name is not UTF-8")?;
    let (iscsi, nvme) = (target.url(0), format!("nvme-tcp://{at}/{NQN}/1"));
    expect_text(&tool(program, &["bench", "--list", &format!("nvme-tcp://{at}")])?, NQN)?;
    let rdma = format!("nvme-rdma://{rdma_address}/{NQN}/1");
    expect_text(
        &tool(program, &["bench", "--list", &format!("nvme-rdma://{rdma_address}"), "--source", &source])?,
        NQN,
    )?;
    let bench = |url: &str, more: &[&str]| {
        let common = ["bench", url, "--warmup", "0", "--verify", "--size", "16M", "--timeout", "10"];
        let own = ["--source", &source];
        tool(program, &[&common, more, &own[..if url == rdma { 2 } else { 0 }]].concat())
    };
    let (vm, disk) = (format!("vfio-user:{sockets}/own"), format!("vhost-user:{sockets}/own.sock"));
    let adapter = format!("vhost-scsi:{sockets}/adapter.sock#0");
    let (write_time, read_time, time) = if lab.whole { ("3", "1", "0.5") } else { ("1", "0.5", "0.2") };
    // Each pair has a seed of its own, so data that an earlier pair wrote does not verify.
    let pairs = [(&iscsi, &nvme), (&nvme, &iscsi), (&vm, &iscsi), (&nvme, &vm), (&disk, &nvme), (&iscsi, &disk)];
    let pairs = pairs.into_iter().chain([(&rdma, &iscsi), (&iscsi, &rdma), (&adapter, &disk), (&nvme, &adapter)]);
    for (seed, (writer, reader)) in (7_u32..).zip(pairs) {
        let seed = seed.to_string();
        bench(writer, &["--rw", "write", "--bs", "64k", "--seed", &seed, "--time", write_time])?;
        bench(reader, &["--rw", "randread", "--bs", "4k", "--seed", &seed, "--time", read_time])?;
    }
    for more in [
        &["--rw", "randrw", "--sessions", "4", "--flush-every", "100"][..],
        &["--rw", "randrw", "--bs", "16k", "--fua", "--flow-control"],
        &["--rw", "rw", "--bs", "256k", "--depth", "4", "--sessions", "2"],
        &["--rw", "randwrite", "--depth", "1", "--sessions", "128"],
        &["--rw", "randrw", "--depth", "700", "--idle-sessions", "64", "--idle-queues", "2", "--spin"],
    ] {
        bench(&nvme, &[more, &["--time", time]].concat())?;
        bench(&nvme, &[more, &["--time", time], &DIGESTS].concat())?;
    }
    for more in RDMA_LOADS {
        bench(&rdma, &[more, &["--time", time]].concat())?;
    }
    for doorbells in ["told", "shadow", "mapped"] {
        for more in [
            &["--rw", "randrw", "--sessions", "4", "--flush-every", "100"][..],
            &["--rw", "randrw", "--bs", "16k", "--fua", "--depth", "1"],
            &["--rw", "rw", "--bs", "1M", "--depth", "4", "--sessions", "2"],
            &["--rw", "randrw", "--depth", "700", "--sessions", "3"],
        ] {
            let common = ["--time", time, "--doorbells", doorbells];
            bench(&vm, &[more, &common].concat())?;
            bench(&vm, &[more, &common, &["--spin"]].concat())?;
        }
    }
    for more in VHOST_LOADS {
        for device in [&disk, &adapter] {
            bench(device, &[more, &["--time", time]].concat())?;
            bench(device, &[more, &["--time", time, "--spin"]].concat())?;
        }
    }
    target.healthy()?;
    target.stop()
}

fn small_programs(lab: &Lab, part: &str, target: &Target) {
    let url = target.url(0);
    let portal = format!("iscsi://{}", target.portal);
    lab.report.check(part, "iscsi-ls", || expect_text(&tool("iscsi-ls", &["--show-luns", &portal])?, &target.name));
    lab.report.check(part, "iscsi-inq", || {
        let text = tool("iscsi-inq", &[&url])?;
        expect_text(&text, "Peripheral Device Type:DIRECT_ACCESS").or_else(|_| expect_text(&text, "Direct Access"))
    });
    for page in ["0x00", "0x80", "0x83", "0xb0", "0xb1", "0xb2"] {
        lab.report.check(part, &format!("iscsi-inq page {page}"), || {
            expect_text(&tool("iscsi-inq", &["--evpd=1", &format!("--pagecode={page}"), &url])?, "Page")
        });
    }
    lab.report.check(part, "iscsi-readcapacity16", || {
        let text = tool("iscsi-readcapacity16", &[&url])?;
        expect_text(&text, "LENGTH IN BYTES:512")
    });
    if matches!(lab.subject, Subject::Built(_)) {
        lab.report.check(part, "iscsi-ls shows both volumes", || {
            let text = tool("iscsi-ls", &["--show-luns", &portal])?;
            ensure!(text.matches("Lun:").count() == 2, "not two LUNs in:\n{text}");
            Ok(())
        });
    }
}

/// Writes an image of random bytes: all blocks differ, and none can be compressed.
fn random_image(path: &Path, mib: u64) -> Result<()> {
    let mut random = File::open("/dev/urandom")?.take(mib << 20);
    std::io::copy(&mut random, &mut File::create(path)?)?;
    Ok(())
}

/// Makes an ISO image with one file; returns the volume argument and the file's SHA-256.
pub(crate) fn image_of_disc(lab: &Lab, name: &str) -> Result<(String, String)> {
    let folder = lab.scratch.join(format!("{name}-content"));
    std::fs::create_dir_all(&folder)?;
    let file = folder.join("random");
    random_image(&file, 8)?;
    let image = lab.fresh(&format!("{name}.iso"))?.display().to_string();
    let content = folder.display().to_string();
    tool("genisoimage", &["-quiet", "-rational-rock", "-volid", "LUNAR", "-output", &image, &content])?;
    let sum = tool("sha256sum", &[&file.display().to_string()])?;
    let sum = sum.split_whitespace().next().context("sha256sum printed nothing")?.to_owned();
    Ok((format!("cd:{image}"), sum))
}

/// Checks what libiscsi's programs and QEMU see of an optical disc.
fn disc(lab: &Lab, driver: Driver) -> Result<()> {
    let (volume, _) = image_of_disc(lab, "tools")?;
    let mut target = Target::start(lab, &Spec::new(driver, [volume.clone()])?)?;
    let url = target.url(0);
    let text = tool("iscsi-inq", &[&url])?;
    expect_text(&text, "Peripheral Device Type:MMC").or_else(|_| expect_text(&text, "CD"))?;
    expect_text(&text, "Removable:1")?;
    let back = lab.fresh("back.iso")?.display().to_string();
    tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", &url, &back])?;
    tool("cmp", &[volume.trim_start_matches("cd:"), &back])?;
    target.healthy()?;
    target.stop()
}

fn images(lab: &Lab, part: &str, target: &Target) {
    let url = target.url(0);
    lab.report.check(part, "qemu-img info", || expect_text(&tool("qemu-img", &["info", &url])?, "virtual size"));
    lab.report.check(part, "qemu-img convert in, out, compare", || {
        let (source, back) = (lab.fresh("random.img")?, lab.fresh("back.img")?);
        random_image(&source, IMAGE_MIB)?;
        let (source, back) = (source.display().to_string(), back.display().to_string());
        tool("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &source, &url])?;
        tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &source, &url])?;
        tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", &url, &back])?;
        tool("cmp", &[&source, &back])?;
        std::fs::remove_file(source)?;
        std::fs::remove_file(back)?;
        Ok(())
    });
    for (name, arguments) in [
        ("qemu-img bench, reads", ["bench", "-f", "raw", "-c", "2000", "-d", "32", "-s", "4096"].as_slice()),
        ("qemu-img bench, writes", &["bench", "-f", "raw", "-w", "-c", "1000", "-d", "32", "-s", "65536"]),
        (
            "qemu-img bench, writes with flush",
            &["bench", "-f", "raw", "-w", "-c", "200", "-d", "8", "--flush-interval", "16"],
        ),
    ] {
        lab.report.check(part, name, || tool("qemu-img", &[arguments, &[url.as_str()]].concat()).map(drop));
    }
}

/// Runs qemu-io commands in order. Its `read -P` verifies the pattern, and a difference is printed as an error.
fn qemu_io(url: &str, commands: &[&str]) -> Result<()> {
    let mut arguments = vec!["-f", "raw"];
    for command in commands {
        arguments.extend(["-c", command]);
    }
    arguments.push(url);
    let text = tool("qemu-io", &arguments)?;
    for line in text.lines() {
        // Without GET LBA STATUS, QEMU prints this message and takes every block as mapped, which is correct.
        let complaint = !line.contains("GET_LBA_STATUS failed") && (line.contains("failed") || line.contains("rror"));
        ensure!(!complaint, "{text}");
    }
    Ok(())
}

fn patterns(lab: &Lab, part: &str, target: &Target) {
    let url = target.url(0);
    for (name, commands) in [
        ("one block", ["write -P 0x11 0 512", "read -P 0x11 0 512"].as_slice()),
        (
            "not aligned to pages",
            &["write -P 0x22 512 3584", "write -P 0x23 5120 1536", "read -P 0x22 512 3584", "read -P 0x23 5120 1536"],
        ),
        ("8 MiB in one request", &["write -P 0x33 1M 8M", "read -P 0x33 1M 8M"]),
        ("scatter and gather", &["writev -P 0x44 16M 4096 512 65536 1024", "readv -P 0x44 16M 65536 1024 4096 512"]),
        ("forced unit access", &["write -f -P 0x55 32M 1M", "read -P 0x55 32M 1M", "flush"]),
        ("zeroes", &["write -P 0x66 40M 2M", "write -z 40M 1M", "read -P 0 40M 1M", "read -P 0x66 41M 1M"]),
        (
            "zeroes that may unmap",
            &["write -P 0x67 44M 2M", "write -z -u 44M 1M", "read -P 0 44M 1M", "read -P 0x67 45M 1M"],
        ),
        ("discard", &["write -P 0x77 48M 4M", "discard 48M 2M", "read -P 0x77 50M 2M"]),
        (
            "several writes outstanding",
            &[
                "aio_write -P 1 64M 1M",
                "aio_write -P 2 65M 64k",
                "aio_write -P 3 66M 4k",
                "aio_write -P 4 67M 2M",
                "aio_flush",
                "read -P 1 64M 1M",
                "read -P 2 65M 64k",
                "read -P 3 66M 4k",
                "read -P 4 67M 2M",
            ],
        ),
        ("the last block", &["write -P 0x88 268434944 512", "read -P 0x88 268434944 512"]),
    ] {
        lab.report.check(part, &format!("qemu-io, {name}"), || qemu_io(&url, commands));
    }
}

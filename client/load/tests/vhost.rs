//! The load generator against disks and SCSI host adapters of Lunar over vhost-user: real sockets, shared memory.

use clap::Parser;
use lunar_blk::testing::{Rig, UNIT};
use lunar_core::io::Fault;
use lunar_core::time::Instant;
use lunar_engine::vm_sockets::{Endpoint, Place, Role};
use lunar_load::{Options, Report, run};
use lunar_reactor::unix::Permission;
use lunar_reactor::{Choice, Config, Reactor};
use lunar_scsi::{Clock, LunMap, Mapping, PortConfig, Target, TargetConfig, Tokens};
use lunar_vhost_user::serve::{DeviceView, Disk, ScsiPort, Tenant, sockets};
use std::future::pending;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// The LUN at which the host adapter shows the unit, and the number of the unit in the target.
const LUN: u16 = 300;
const NUMBER: u16 = 1;
/// Queues of the disk, and of the host adapter.
const QUEUES: [usize; 2] = [3, 2];

#[derive(Parser)]
#[command(args_override_self = true)]
struct CommandLine {
    #[command(flatten)]
    options: Options,
}

fn bench(url: &str, args: &str) -> anyhow::Result<Report> {
    let line = ["bench", url, "--time", "0.2", "--warmup", "0.05", "--timeout", "20", "--size", "256k"];
    run(&CommandLine::parse_from(line.into_iter().chain(args.split_whitespace())).options)
}

fn target(rig: &Rig) -> Rc<Target> {
    let port = PortConfig { relative: 1, group: 1, name: "p".into(), device: "d".into(), protocol: 5 };
    let target = Target::new(TargetConfig {
        ports: vec![port],
        clock: Clock(Rc::new(|| 0)),
        stats: Arc::default(),
        units: rig.core_units.clone(),
        tokens: Tokens::new(Box::new(|_| true), Box::new(Instant::default)),
    });
    target.add_unit(NUMBER, rig.unit.clone());
    target
}

/// Runs `test` on a thread of its own, with the folder of the sockets `disk` and `adapter`.
fn with_devices(prepare: impl FnOnce(&Rig), test: impl FnOnce(&Path) + Send + 'static) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder: PathBuf = std::env::temp_dir().join(format!("lunar-load-vhost-{}-{number}", std::process::id()));
    let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
    let rig = Rig::default();
    prepare(&rig);
    let target = target(&rig);
    let map = LunMap::new([(LUN, Mapping { unit: NUMBER, read_only: false })]).expect("one unit");
    reactor.run(target.set_map(&"g".into(), map, pending()));
    let front = sockets(&reactor, (&rig.set, &target), &Arc::default(), Duration::from_secs(1));
    let disk = DeviceView::Blk(Some(Disk { unit: UNIT, read_only: false }));
    let adapter = DeviceView::Scsi(Some(ScsiPort { relative: 1 }));
    for (name, device, queues) in [("disk", disk, QUEUES[0]), ("adapter", adapter, QUEUES[1])] {
        let place = Place { path: folder.join(name), role: Role::Server };
        front.open(place.clone(), Permission { mode: 0o600, owner: None, group: None }).expect("a socket");
        let tenant = Tenant { host: "iqn.x".into(), group: Some("g".into()), tag: 0, queues, device };
        front.serve(Endpoint { name: name.into(), place, tenant }, Vec::new());
    }
    let place = folder.clone();
    let thread = std::thread::spawn(move || test(&place));
    let begun = reactor.now();
    reactor.run(async {
        while !thread.is_finished() {
            assert!(reactor.now().since(begun) < PATIENCE, "the load does not end");
            reactor.sleep(Duration::from_millis(1)).await;
        }
        front.drain();
        front.drained().await;
    });
    thread.join().expect("the test succeeds");
    std::fs::remove_dir_all(folder).expect("it is our own");
}

fn disk_url(folder: &Path) -> String {
    format!("vhost-user:{}/disk", folder.display())
}

fn adapter_url(folder: &Path, lun: u16) -> String {
    format!("vhost-scsi:{}/adapter#{lun}", folder.display())
}

#[test]
fn loads_of_a_host_adapter_are_verified() {
    with_devices(
        |_| {},
        |folder| {
            for args in [
                "--rw randrw --depth 8 --sessions 2 --flush-every 10",
                "--rw randrw --depth 8 --sessions 2 --spin",
                "--rw randrw --bs 512 --depth 1 --fua",
                "--rw write --bs 64k --depth 2",
            ] {
                let report = bench(&adapter_url(folder, LUN), &format!("--verify {args}")).expect("a report");
                let found = report.verified.clone().expect("verified");
                assert!(report.is_good() && report.total_commands > 0 && found.checked_blocks > 0, "{args}: {report}");
                assert_eq!((report.blocks, report.block_size), (2048, 512));
            }
            let report = bench(&adapter_url(folder, LUN), "--rw randread --depth 8").expect("a report");
            assert!(report.is_good() && report.negotiated.window() == 8, "{report}");
        },
    );
}

#[test]
fn loads_of_a_disk_are_verified() {
    with_devices(
        |_| {},
        |folder| {
            for args in ["--rw randrw --depth 8 --sessions 2 --flush-every 10", "--rw write --bs 64k --depth 2 --spin"]
            {
                let report = bench(&disk_url(folder), &format!("--verify {args}")).expect("a report");
                let found = report.verified.clone().expect("verified");
                assert!(report.is_good() && report.total_commands > 0 && found.checked_blocks > 0, "{args}: {report}");
            }
        },
    );
}

#[test]
fn a_command_that_fails_is_reported_with_its_sense_data() {
    with_devices(
        |rig| rig.memory.fault.set(Some(Fault::Medium)),
        |folder| {
            let report = bench(&adapter_url(folder, LUN), "--depth 1").expect("a report");
            assert!(!report.is_good() && report.errors == 1, "{report}");
            assert!(report.first_errors[0].contains("MEDIUM_ERROR"), "{}", report.first_errors[0]);
        },
    );
}

#[test]
fn a_run_that_cannot_start_reports_the_reason() {
    with_devices(
        |_| {},
        |folder| {
            let why = |url: &str, args: &str| format!("{:#}", bench(url, args).expect_err("it cannot be"));
            let adapter = adapter_url(folder, LUN);
            let found = why(&adapter_url(folder, 0), "");
            assert!(found.contains("the unit is not ready: ILLEGAL_REQUEST 25h/00h"), "{found}");
            let found = why(&adapter, "--sessions 3");
            assert!(found.contains("the device has only 2 queues"), "{found}");
            assert!(why(&adapter, "--idle-sessions 1").contains("one host adapter"));
            // Each kind of device at the socket of the other one.
            let found = why(&format!("vhost-scsi:{}/disk", folder.display()), "");
            assert!(found.contains("no response: is it a host adapter (virtio-scsi)?"), "{found}");
            let found = why(&format!("vhost-user:{}/adapter", folder.display()), "");
            assert!(found.contains("it does not offer a configuration space"), "{found}");
        },
    );
}

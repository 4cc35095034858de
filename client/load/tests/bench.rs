//! The load generator against a small iSCSI target on a socket: counting, verification, retries and crash tests.

mod disk;

use clap::Parser;
use disk::{Disk, Faults};
use lunar_load::{Options, Report, discover, run};
use std::path::PathBuf;

#[derive(Parser)]
#[command(args_override_self = true)]
struct CommandLine {
    #[command(flatten)]
    options: Options,
}

/// Seconds to measure. A longer time is used if the shorter one was not enough, as on a stalled host.
const TIMES: [&str; 3] = ["0.1", "1", "10"];

fn options(url: &str, args: &str) -> Options {
    let line = ["bench", url, "--time", "0.3", "--warmup", "0.05", "--timeout", "5"];
    CommandLine::parse_from(line.into_iter().chain(args.split_whitespace())).options
}

fn bench(disk: &Disk, args: &str) -> Report {
    run(&options(&disk.url(), args)).expect("a report")
}

/// Measures for longer and longer times until the report has `enough`.
fn until(disk: &Disk, args: &str, enough: impl Fn(&Report) -> bool) -> Report {
    let mut reports = TIMES.iter().map(|time| bench(disk, &format!("{args} --time {time}")));
    reports.find(enough).unwrap_or_else(|| panic!("{args}: never enough in {TIMES:?} seconds"))
}

fn measured(disk: &Disk, args: &str) -> Report {
    until(disk, args, |report| report.iops > 0.0)
}

fn log_file(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("lunar-bench-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

#[test]
fn reads_are_counted() {
    let report = measured(&Disk::start(Faults::default()), "--sessions 3 --depth 8 --bs 8k");
    assert!(report.is_good() && report.reads.count > 0 && report.writes.count == 0, "{report}");
    assert_eq!((report.blocks, report.block_size, report.negotiated.window()), (8192, 512, 32));
    assert!(report.latency_us.p50 > 0.0 && report.latency_us.p50 <= report.latency_us.p999);
    assert!(report.total_commands >= report.reads.count && report.retries == 0);
}

#[test]
fn a_tape_is_written_and_read_from_its_beginning() {
    let tape = Disk::start(Faults { is_tape: true, ..Faults::default() });
    let written = measured(&tape, "--rw write --bs 100k --depth 1 --flush-every 5");
    assert!(written.is_good() && written.flushes.count > 0 && written.block_size == 100 << 10, "{written}");
    // Reads end with an error at the end of what was written.
    let read = measured(&tape, "--rw read --bs 100k --depth 1 --time 0.02 --warmup 0");
    assert!(read.reads.count > 0, "{read}");
    let refused = run(&options(&tape.url(), "--rw randread")).expect_err("a tape has no random reads");
    assert!(format!("{refused:#}").contains("the unit is a tape"), "{refused:#}");
}

#[test]
fn all_access_patterns_are_verified_with_all_kinds_of_data_transfer() {
    let disk = Disk::start(Faults::default());
    for shape in ["randread", "randwrite", "randrw", "rw", "read", "write"] {
        for args in [
            "--bs 1k --depth 8",
            "--bs 4k --depth 4 --no-immediate-data --sessions 2",
            "--bs 64k --depth 1 --initial-r2t",
            "--bs 64k --depth 1",
        ] {
            let seed = if shape.ends_with("read") { "--seed 9" } else { "" };
            if !seed.is_empty() {
                // A read-only load needs a region that was written completely.
                let fill = "--rw write --verify --seed 9 --size 256k --bs 64k --depth 1";
                assert!(until(&disk, fill, |fill| fill.total_commands > 4).is_good());
            }
            let report = measured(&disk, &format!("--verify --rw {shape} --size 256k {seed} {args}"));
            let found = report.verified.clone().expect("verified");
            assert!(report.is_good() && found.checked_blocks > 0, "{shape} {args}: {report}");
        }
    }
}

#[test]
fn a_lost_write_is_detected() {
    // Hiding a lost write would take far more chunks than there are writes in this time: each chunk is written again
    // and again, so the reads between the writes must detect it.
    let mut reports = TIMES.iter().map(|time| {
        let disk = Disk::start(Faults { loses_write: 50, ..Faults::default() });
        bench(&disk, &format!("--verify --rw randrw --mix 80 --size 64k --depth 4 --time {time}"))
    });
    let report = reports.find(|report| !report.is_good()).expect("a bad block");
    let found = report.verified.clone().expect("verified");
    assert!(found.bad_blocks > 0, "{report}");
    assert!(found.bad[0].starts_with("LBA "), "{}", found.bad[0]);
}

#[test]
fn blocks_of_another_run_are_detected() {
    let disk = Disk::start(Faults::default());
    let fill = "--rw write --verify --seed 3 --size 256k --bs 4k";
    assert!(until(&disk, fill, |fill| fill.total_commands > 64).is_good());
    assert!(measured(&disk, "--rw randread --verify --seed 3 --size 256k --bs 2k").is_good());
    let report = until(&disk, "--rw randread --verify --seed 4 --size 256k", |report| report.total_commands > 0);
    assert!(report.verified.expect("verified").bad[0].contains("another run (seed 3)"));
}

#[test]
fn busy_targets_are_retried_and_errors_are_counted() {
    let disk = Disk::start(Faults { busy: true, ..Faults::default() });
    let report = until(&disk, "--verify --rw randrw --size 1M", |report| report.retries > 0);
    assert!(report.is_good(), "{report}");
    let disk = Disk::start(Faults { bad_medium: true, ..Faults::default() });
    let report = until(&disk, "", |report| report.errors > 0);
    assert!(!report.is_good() && report.iops == 0.0, "{report}");
    assert!(report.first_errors[0].contains("MEDIUM_ERROR 11h/00h"), "{}", report.first_errors[0]);
}

#[test]
fn idle_sessions_are_opened_and_counted() {
    let report = bench(&Disk::start(Faults::default()), "--idle-sessions 100");
    let logins = report.logins.clone().expect("told");
    assert!(report.is_good() && logins.sessions == 100 && logins.per_second > 1.0);
}

#[test]
fn flushes_are_sent_and_counted() {
    let disk = Disk::start(Faults::default());
    let report = until(&disk, "--rw randwrite --flush-every 10 --size 1M --verify", |report| report.flushes.count > 0);
    assert!(report.is_good(), "{report}");
    assert!(report.writes.count / report.flushes.count >= 9, "{report}");
}

/// Writes with an acknowledgement log until the simulated power failure; then checks the unit.
fn crash(name: &str, faults: Faults, args: &str, check: &str) -> Report {
    let path = log_file(name);
    let disk = Disk::start(Faults { fails_at_write: 500, ..faults });
    let report = bench(&disk, &format!("--rw randwrite --size 512k --time 60 {args} --ack-log {}", path.display()));
    assert!(report.lost.is_some(), "the connection was lost: {report}");
    let report = bench(&disk.restart(), &format!("--check-ack-log {} {check}", path.display()));
    std::fs::remove_file(&path).expect("written");
    report
}

#[test]
fn a_crash_that_loses_no_durable_write_passes() {
    for (name, args) in [("fua", "--fua"), ("flush", "--flush-every 7"), ("both", "--fua --flush-every 7 --sessions 2")]
    {
        let report = crash(name, Faults::default(), args, "");
        let found = report.verified.clone().expect("verified");
        assert!(report.is_good() && found.checked_blocks > 0, "{name}: {report}");
    }
}

#[test]
fn volatile_writes_that_are_lost_are_reported_but_are_no_errors() {
    let report = crash("volatile", Faults::default(), "", "");
    let found = report.verified.clone().expect("verified");
    assert!(report.is_good() && found.checked_blocks == 0 && found.volatile_lost_blocks > 0, "{report}");
    let report = crash("all", Faults::default(), "", "--all");
    assert!(!report.is_good(), "with --all everything acknowledged must be there: {report}");
}

#[test]
fn a_crash_that_loses_durable_writes_is_detected() {
    let lying_fua = Faults { fua_lies: true, ..Faults::default() };
    let report = crash("fua-lies", lying_fua, "--fua", "");
    assert!(!report.is_good(), "{report}");
    let lying_flush = Faults { flush_lies: true, ..Faults::default() };
    let report = crash("flush-lies", lying_flush, "--flush-every 7", "");
    assert!(!report.is_good(), "{report}");
}

#[test]
fn targets_are_discovered_and_redirections_are_followed() {
    let disk = Disk::start(Faults::default());
    let portal = format!("iscsi://{}", disk.address);
    let report = run(&options(&portal, "")).expect("a report");
    assert_eq!(report.url, disk.url());
    let line = options(&portal, "");
    let found = discover(&line).expect("found");
    assert_eq!((found.len(), &*found[0].name, &found[0].addresses[0]), (1, disk::NAME, &format!("{},1", disk.address)));
    let door = Disk::start(Faults { moved_to: Some(disk.address.port()), ..Faults::default() });
    assert_eq!(bench(&door, "--sessions 2").url, disk.url());
}

#[test]
fn a_run_that_cannot_start_reports_the_reason() {
    let disk = Disk::start(Faults::default());
    let why = |url: &str, args: &str| format!("{:#}", run(&options(url, args)).expect_err("cannot be"));
    assert!(why(&format!("iscsi://{}/iqn.nobody/0", disk.address), "").contains("NOT_FOUND"));
    assert!(why(&disk.url(), "--size 1G").contains("beyond the end of the unit (4 MiB)"));
    assert!(why(&disk.url(), "--offset 100").contains("multiple of 512"));
    assert!(why(&disk.url(), "--size 2k").contains("smaller than --bs"));
    assert!(why(&disk.url(), "--check-ack-log /nonexistent").contains("/nonexistent"));
    assert!(why("iscsi://127.0.0.1:1/iqn.x/0", "").contains("connecting"));
    let crash = Disk::start(Faults { fails_at_write: 10, ..Faults::default() });
    assert!(why(&crash.url(), "--rw write").contains("lost"));
}

use super::*;
use lunar_control::metrics::Format;
use lunar_control::trouble::TroubleCode;
use lunar_core::access::refusal::RefusalCode;
use lunar_core::counters::Counters;
use lunar_core::hosts::{CoreHosts, Hosts};
use lunar_core::stats::Stats;
use lunar_core::tally::{Event, SharedTally, Tally};
use lunar_core::traffic::Class;
use lunar_core::unit::{Identity, UnitId};
use lunar_unit::SharedUnits;
use std::collections::{BTreeMap, BTreeSet};

fn volume(tally: &SharedTally) -> VolumeFacts {
    let identity = Identity {
        vendor: "LUNAR".into(),
        product: "DISK".into(),
        revision: "1".into(),
        serial: "s1".into(),
        uuid: [7; 16],
        naa: [0x37, 0, 0, 0, 0, 0, 0, 1],
    };
    VolumeFacts {
        unit: UnitId(1),
        tally: tally.clone(),
        identity: Arc::new(identity),
        kind: "file",
        block_size: 512,
        size: Some(1 << 30),
        is_read_only: false,
    }
}

/// A page with a command of each class, a refusal and a volume that is unavailable.
fn sample() -> (String, Arc<Hosts>) {
    let (hosts, tally) = (Hosts::new(1), Tally::default());
    let core = CoreHosts { hosts: hosts.clone(), core: 0 };
    let session = core.session("iscsi", "iqn.target", "iqn.a\"\n}");
    let counters = Counters { unit: Some(&tally), host: Some(&session) };
    for class in Class::ALL {
        counters.ended(*class, 20_000, 4096);
    }
    counters.failed(Class::Read, 5_000_000_000, Some(Event::Conflict));
    core.refused("iscsi", "wrong-secret", "", "");
    let mut page = Page::new(Format::Prometheus);
    let names = BTreeMap::from([("iqn.target".into(), "disks".to_owned())]);
    cores::write(&mut page, &[Arc::new(Stats::default())]);
    hosts::write(&mut page, &hosts, &names);
    let unavailable = TroubleView::told(TroubleCode::Unavailable, "volume gone", "no file".to_owned());
    let all = BTreeMap::from([("disk1".into(), volume(&tally))]);
    volumes::write(&mut page, &all, &SharedUnits::default(), &[unavailable]);
    (page.finish(), hosts)
}

#[test]
fn a_command_is_in_the_metrics_of_its_volume_its_host_and_its_transport() {
    let (text, _) = sample();
    for line in [
        "lunar_volume_commands_total{volume=\"disk1\",class=\"read\"} 2",
        "lunar_volume_bytes_total{volume=\"disk1\",direction=\"write\"} 8192",
        "lunar_volume_command_seconds_bucket{volume=\"disk1\",class=\"read\",le=\"0.000016\"} 0",
        "lunar_volume_command_seconds_bucket{volume=\"disk1\",class=\"read\",le=\"0.000064\"} 1",
        "lunar_volume_command_seconds_bucket{volume=\"disk1\",class=\"read\",le=\"+Inf\"} 2",
        "lunar_volume_command_seconds_sum{volume=\"disk1\",class=\"read\"} 5.00002",
        "lunar_volume_command_seconds_count{volume=\"disk1\",class=\"other\"} 4",
        "lunar_volume_errors_total{volume=\"disk1\",kind=\"conflict\"} 1",
        "lunar_volume_up{volume=\"disk1\"} 1",
        "lunar_volume_up{volume=\"gone\"} 0",
        "lunar_volume_state{volume=\"gone\",state=\"unavailable\"} 1",
        "lunar_commands_total{transport=\"iscsi\",class=\"unmap\"} 1",
        "lunar_command_seconds_bucket{transport=\"iscsi\",class=\"write\",le=\"0.000032\"} 1",
        "lunar_command_seconds_bucket{transport=\"iscsi\",class=\"read\",le=\"8.388608\"} 2",
        "lunar_sessions{transport=\"iscsi\",target=\"disks\"} 1",
        "lunar_logins_total{transport=\"iscsi\",target=\"disks\",result=\"ok\"} 1",
        "lunar_logins_refused_total{transport=\"iscsi\",reason=\"wrong-secret\"} 1",
        "lunar_host_commands_total{host=\"iqn.a\\\\\\\"\\\\n}\",target=\"disks\",transport=\"iscsi\",class=\"copy\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn every_refusal_has_its_code_in_the_metrics() {
    let hosts = Hosts::new(1);
    let core = CoreHosts { hosts: hosts.clone(), core: 0 };
    RefusalCode::ALL.iter().for_each(|code| core.refused("nvme-tcp", code.word(), "", ""));
    let mut page = Page::new(Format::Prometheus);
    hosts::write(&mut page, &hosts, &BTreeMap::new());
    let text = page.finish();
    for code in RefusalCode::ALL {
        let line = format!("lunar_logins_refused_total{{transport=\"nvme-tcp\",reason=\"{}\"}} 1", code.word());
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn no_two_series_have_the_same_labels_and_each_family_is_declared_once() {
    let (text, _) = sample();
    let mut series = BTreeSet::new();
    for line in text.lines() {
        let name = if line.starts_with('#') { line } else { line.rsplit_once(' ').expect("a value").0 };
        assert!(series.insert(name), "{name} is there twice");
    }
    let declared: BTreeSet<_> =
        table::all().map(|family| format!("# HELP {} {}", family.samples(), family.help)).collect();
    for line in text.lines().filter(|line| line.starts_with("# HELP")) {
        assert!(declared.contains(line), "{line}");
    }
}

#[test]
fn a_flood_of_hosts_makes_a_bounded_page() {
    let (_, hosts) = sample();
    let core = CoreHosts { hosts: hosts.clone(), core: 0 };
    for at in 0..20_000 {
        drop(core.session("nvme-tcp", "nqn.target", &format!("nqn.{at}")));
    }
    let mut page = Page::new(Format::OpenMetrics);
    hosts::write(&mut page, &hosts, &BTreeMap::new());
    let text = page.finish();
    let paths = text.lines().filter(|line| line.starts_with("lunar_host_paths{")).count();
    // All, and the other hosts of each transport.
    assert_eq!(paths, lunar_core::hosts::HOSTS_MAX + 2);
    assert!(text.contains("lunar_host_logins_total{host=\"other\",target=\"other\",transport=\"nvme-tcp\"} "));
    assert!(text.contains("lunar_logins_total{transport=\"nvme-tcp\",target=\"other\",result=\"ok\"} "));
}

#[test]
fn the_counters_are_those_of_the_metrics() {
    let (text, hosts) = sample();
    let tally = Tally::default();
    for class in Class::ALL {
        tally.ended(*class, 20_000, 4096);
    }
    tally.ended(Class::Read, 5_000_000_000, 0);
    tally.add(Event::Conflict, 1);
    let all = BTreeMap::from([("disk1".into(), volume(&tally))]);
    let unavailable = TroubleView::told(TroubleCode::Unavailable, "volume gone", "no file".to_owned());
    let (rows, hidden) = counters::volumes(&all, &SharedUnits::default(), &[unavailable], &BTreeMap::new());
    let [disk, gone] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((disk.name.as_str(), disk.state.as_str(), disk.size, hidden), ("disk1", "up", Some(1 << 30), 0));
    assert_eq!((gone.name.as_str(), gone.state.as_str(), gone.size), ("gone", "unavailable", None));
    let of = |class: &lunar_control::counters::ClassCounters| (class.commands, class.bytes, class.nanoseconds);
    let traffic = &disk.traffic;
    assert_eq!((of(&traffic.read), of(&traffic.write)), ((2, 4096, 5_000_020_000), (2, 8192, 40_000)));
    assert_eq!((of(&traffic.other), disk.errors), ((3, 12_288, 60_000), 1));
    assert_eq!((traffic.write.cells.clone(), traffic.read.cells.len()), (vec![0, 0, 2], CELLS - 1));
    assert!(text.contains("lunar_volume_bytes_total{volume=\"disk1\",direction=\"write\"} 8192"));
    let names = BTreeMap::from([("iqn.target".into(), "disks".to_owned())]);
    let [host] = &counters::hosts(&hosts, &names)[..] else { panic!("one host") };
    assert_eq!((host.target.as_str(), host.target_name.as_str(), host.sessions), ("disks", "iqn.target", 0));
    assert_eq!(host.traffic.read.commands, 2);
}

#[test]
fn too_many_volumes_are_left_out_and_counted() {
    let busy = Tally::default();
    busy.ended(Class::Read, 0, 1);
    let most = lunar_control::counters::VOLUMES_MAX;
    let mut all: BTreeMap<_, _> =
        (0..most + 5).map(|at| (Arc::from(format!("v{at:05}")), volume(&Tally::default()))).collect();
    all.insert("z".into(), volume(&busy));
    let (rows, hidden) = counters::volumes(&all, &SharedUnits::default(), &[], &BTreeMap::new());
    assert_eq!((rows.len(), hidden, rows.last().map(|row| row.name.as_str())), (most, 6, Some("z")));
}

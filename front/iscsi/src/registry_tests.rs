use super::*;

fn candidate(initiator: &str, isid: u8, tsih: u16) -> Candidate {
    Candidate {
        initiator: initiator.into(),
        alias: None,
        target: Some("iqn.2026-01.io.lunar:t".into()),
        discovery: false,
        isid: [0, 0, 0, 0, 0, isid],
        tsih,
        cid: 0,
        transport: Transport::Tcp,
    }
}

fn discovery(initiator: &str) -> Candidate {
    Candidate { discovery: true, ..candidate(initiator, 1, 0) }
}

fn record(candidate: &Candidate, port: u16, host: u8, location: SessionLocation) -> SessionRecord {
    let login = LoginDetails::new(candidate, ([192, 0, 2, host], 4000).into());
    let (since, parameters) = (Instant::default(), Parameters::initial());
    SessionRecord { candidate: candidate.clone(), login, group: 1, port, location, since, parameters }
}

fn enter(
    registry: &Registry,
    candidate: &Candidate,
    port: u16,
    location: SessionLocation,
) -> Result<RegisteredSession, LoginStatus> {
    registry.register(record(candidate, port, 1, location), SESSIONS_MAX, SESSIONS_MAX)
}

const HERE: SessionLocation = at(0, 1);
const THERE: SessionLocation = at(1, 7);

const fn at(core: usize, connection: u64) -> SessionLocation {
    SessionLocation { core, connection, transport: Transport::Tcp }
}

#[test]
fn a_session_of_the_same_nexus_is_replaced_and_another_is_not() {
    let registry = Registry::new();
    let first = enter(&registry, &candidate("a", 1, 0), 1, HERE).expect("room");
    assert_eq!(first.replaced, None);
    assert_eq!(enter(&registry, &candidate("a", 2, 0), 1, HERE).expect("room").replaced, None);
    let second = enter(&registry, &candidate("a", 1, 0), 1, THERE).expect("room");
    assert_eq!(second.replaced, Some(HERE));
    assert_ne!(first.tsih, second.tsih);
    let elsewhere = enter(&registry, &candidate("a", 1, 0), 2, HERE).expect("room");
    assert_eq!(elsewhere.replaced, None, "another target port is another nexus");
    registry.remove(elsewhere.tsih, HERE);
    registry.remove(first.tsih, HERE);
    assert_eq!(enter(&registry, &candidate("a", 1, 0), 1, HERE).expect("room").replaced, Some(THERE));
}

#[test]
fn a_discovery_session_replaces_no_session() {
    let registry = Registry::new();
    let _ = enter(&registry, &candidate("a", 1, 0), 1, HERE).expect("room");
    let registered = enter(&registry, &discovery("a"), 1, THERE).expect("room");
    assert_eq!(registered.replaced, None);
    registry.remove(registered.tsih, THERE);
    assert_eq!(registry.len(), 1);
}

#[test]
fn a_tsih_of_other_names_does_not_exist() {
    // RFC 7143 11.13.5, status 020ah: the session does not exist. A stranger must not learn that it does.
    let registry = Registry::new();
    let tsih = enter(&registry, &candidate("a", 1, 0), 1, HERE).expect("room").tsih;
    let other_target = Candidate { target: Some("iqn.2026-01.io.lunar:u".into()), ..candidate("a", 1, tsih) };
    for (candidate, port) in [
        (candidate("a", 1, tsih + 1), 1),
        (candidate("b", 1, tsih), 1),
        (candidate("a", 2, tsih), 1),
        (candidate("a", 1, tsih), 2),
        (Candidate { discovery: true, ..candidate("a", 1, tsih) }, 1),
        (other_target, 3),
        (Candidate { transport: Transport::Rdma, ..candidate("a", 1, tsih) }, 1),
    ] {
        assert_eq!(registry.check_tsih(&candidate, port), Err(LoginStatus::NO_SUCH_SESSION), "{candidate:?}");
        let registered = enter(&registry, &candidate, port, THERE).map(|registered| registered.tsih);
        assert_eq!(registered, Err(LoginStatus::NO_SUCH_SESSION));
    }
    let second = Candidate { cid: 1, ..candidate("a", 1, tsih) };
    assert_eq!(registry.check_tsih(&second, 1), Err(LoginStatus::TOO_MANY_CONNECTIONS), "MaxConnections is 1");
    assert_eq!(registry.check_tsih(&candidate("a", 1, 0), 1), Ok(None));
}

#[test]
fn a_login_with_the_same_tsih_and_cid_reinstates_the_connection() {
    // RFC 7143 6.3.4.
    let registry = Registry::new();
    let mut first = record(&candidate("a", 1, 0), 1, 1, HERE);
    first.parameters.initial_r2t = false;
    let parameters = first.parameters;
    let tsih = registry.register(first, 1, 1).expect("room").tsih;
    let again = candidate("a", 1, tsih);
    assert_eq!(registry.check_tsih(&again, 1), Ok(Some(parameters)));
    let second = registry.register(record(&again, 1, 1, THERE), 1, 1).expect("it needs no place");
    assert_eq!((second.tsih, second.replaced), (tsih, Some(HERE)));
    registry.remove(tsih, HERE);
    assert_eq!(registry.record(tsih).map(|record| record.location), Some(THERE), "the old connection has ended");
    registry.remove(tsih, THERE);
    assert!(registry.is_empty());
    assert_eq!(registry.check_tsih(&again, 1), Err(LoginStatus::NO_SUCH_SESSION));
    assert!(registry.register(record(&candidate("b", 1, 0), 1, 1, HERE), 1, 1).is_ok(), "its place is free");
}

#[test]
fn sessions_are_limited_and_tsihs_are_reused() {
    let registry = Registry::new();
    // Of many hosts: one host alone may not have all of them.
    let enter = |count: usize, initiator: &str| {
        let record = record(&candidate(initiator, 1, 0), 1, (count % 250) as u8, HERE);
        registry.register(record, SESSIONS_MAX, SESSIONS_MAX).map(|registered| registered.tsih)
    };
    let registered: Vec<u16> =
        (0..SESSIONS_MAX).map(|count| enter(count, &format!("i{count}")).expect("room")).collect();
    assert!(!registered.contains(&0));
    assert_eq!(enter(251, "b"), Err(LoginStatus::OUT_OF_RESOURCES));
    assert!(enter(0, "i0").is_ok(), "it replaces its own session");
    registry.remove(registered[0], HERE);
    registry.remove(registered[1], HERE);
    assert!(enter(251, "b").is_ok());
}

#[test]
fn discovery_sessions_take_no_places_and_a_host_ends_its_own() {
    let registry = Registry::new();
    let enter = |host: u8, connection: u64| {
        let location = at(0, connection);
        registry.register(record(&discovery("a"), 0, host, location), 1, 1).expect("there is always room")
    };
    let of_one: Vec<_> = (0..DISCOVERY_PER_HOST_MAX as u64).map(|connection| enter(1, connection)).collect();
    assert!(of_one.iter().all(|registered| registered.replaced.is_none()));
    let beyond = enter(1, 1000).replaced.expect("the oldest of the same host ends");
    assert_eq!(beyond.connection, 0);
    assert_eq!(enter(1, 1001).replaced.map(|location| location.connection), Some(1), "though that has not ended yet");
    let normal = registry.register(record(&candidate("b", 1, 0), 1, 1, HERE), 1, 1).expect("discovery takes no place");
    // As many as there may be, of sixteen hosts: the next one is taken from the host with the most.
    registry.remove(of_one[2].tsih, at(0, 2));
    let hosts = (DISCOVERY_MAX / DISCOVERY_PER_HOST_MAX) as u8;
    for host in 2..=hosts {
        (0..DISCOVERY_PER_HOST_MAX as u64).for_each(|connection| _ = enter(host, connection + 2000));
    }
    assert_eq!(enter(100, 1).replaced, None);
    assert!(enter(101, 2).replaced.is_some_and(|location| location.connection >= 2000));
    registry.remove(normal.tsih, HERE);
    assert_eq!(registry.register(record(&candidate("b", 1, 0), 1, 1, HERE), 1, 1).map(|r| r.replaced), Ok(None));
}

#[test]
fn one_host_leaves_places_for_sessions_to_others() {
    let registry = Registry::new();
    let enter = |host: u8, isid: u8, initiator: &str| {
        registry.register(record(&candidate(initiator, isid, 0), 1, host, HERE), SESSIONS_MAX, 512)
    };
    let taken = (0..1000).filter(|count| enter(1, 1, &format!("i{count}")).is_ok()).count();
    assert_eq!(taken, 512 - 512 / RESERVE_PART);
    // Eight hosts, each with the few sessions of its paths.
    let found = (10..18).flat_map(|host| (0..8).map(move |isid| (host, isid)));
    assert!(found.into_iter().all(|(host, isid)| enter(host, isid, &format!("h{host}")).is_ok()));
    assert!(enter(1, 1, "i0").is_ok(), "reinstatement needs no place");
}

#[test]
fn a_target_has_its_own_limit_and_a_replacement_is_within_it() {
    let registry = Registry::new();
    let enter = |initiator: &str| {
        let record = record(&candidate(initiator, 1, 0), 1, 1, HERE);
        registry.register(record, 2, SESSIONS_MAX).map(|registered| registered.tsih)
    };
    let first = enter("a").expect("room");
    assert!(enter("b").is_ok());
    assert_eq!(enter("c"), Err(LoginStatus::OUT_OF_RESOURCES));
    assert!(enter("a").is_ok(), "it replaces its own session");
    registry.remove(first, HERE);
    assert_eq!((registry.len(), registry.locations("iqn.2026-01.io.lunar:t").len()), (2, 2));
    assert!(registry.locations("iqn.2026-01.io.lunar:u").is_empty());
}

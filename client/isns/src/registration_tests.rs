use super::*;
use crate::fuzzing::sample;
use crate::wire::Attributes;

const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

fn tags(payload: &Payload) -> Vec<Tag> {
    Attributes::of(payload.bytes()).map(|attribute| attribute.expect("well formed").tag).collect()
}

/// The numbers of targets, portals and portal groups after the delimiter, counted by their first attributes.
fn counts(requests: &[Request]) -> [usize; 3] {
    let behind = |request: &Request| tags(&request.payload).into_iter().skip_while(|tag| *tag != Tag::DELIMITER);
    let count = |tag| requests.iter().flat_map(behind).filter(|found| *found == tag).count();
    [count(Tag::ISCSI_NAME), count(Tag::PORTAL_ADDRESS), count(Tag::PG_ISCSI_NAME)]
}

fn seen(targets: u8) -> Registration {
    sample(targets).resolved_for(LOCAL).expect("targets")
}

#[test]
fn the_unspecified_address_becomes_the_local_address() {
    let portals: Vec<String> = seen(1).portals().iter().map(ToString::to_string).collect();
    assert_eq!(portals, ["127.0.0.1:3260", "192.0.2.1:3261"]);
    let mapped: IpAddr = "::ffff:192.0.2.1".parse().expect("an address");
    assert_eq!(sample(1).resolved_for(mapped), sample(1).resolved_for(LOCAL));
    // Over IPv6 it is unknown which IPv4 address is meant.
    let other = sample(1).resolved_for("2001:db8::1".parse().expect("an address")).expect("one portal");
    assert_eq!(other.portals().len(), 1);
    let mut none = sample(1);
    none.nodes.values_mut().for_each(|node| node.portals.retain(|portal, _| portal.ip().is_unspecified()));
    assert_eq!(none.resolved_for("2001:db8::1".parse().expect("an address")), None);
}

#[test]
fn a_registration_has_the_order_of_the_standard() {
    let requests = seen(1).all(true);
    assert_eq!((requests.len(), requests[0].function, requests[0].flags), (1, Function::DEV_ATTR_REG, REPLACE));
    let group = [Tag::PG_ISCSI_NAME, Tag::PG_PORTAL_ADDRESS, Tag::PG_PORTAL_PORT, Tag::PG_TAG];
    let desired = [
        &[Tag::ISCSI_NAME, Tag::ENTITY_IDENTIFIER, Tag::DELIMITER][..],
        &[Tag::ENTITY_IDENTIFIER, Tag::ENTITY_PROTOCOL, Tag::REGISTRATION_PERIOD],
        &[Tag::PORTAL_ADDRESS, Tag::PORTAL_PORT, Tag::PORTAL_ADDRESS, Tag::PORTAL_PORT],
        &[Tag::ISCSI_NAME, Tag::ISCSI_NODE_TYPE, Tag::ISCSI_ALIAS],
        &group,
        &group,
    ];
    assert_eq!(tags(&requests[0].payload), desired.concat());
}

#[test]
fn only_differences_are_sent() {
    let (one, three) = (seen(1), seen(3));
    assert_eq!(counts(&three.changes(&one)), [2, 0, 4]);
    let gone = one.changes(&three);
    assert_eq!((gone.len(), gone[0].function, counts(&gone)), (1, Function::DEV_DEREG, [2, 0, 0]));
    assert!(one.changes(&one).is_empty());
    // A portal of one target only: the other targets get no portal group there.
    let mut more = three.clone();
    let first = more.nodes.values_mut().next().expect("there are three");
    first.portals.insert(([192, 0, 2, 9], 3260).into(), 7);
    let requests = more.changes(&three);
    assert_eq!(counts(&requests), [0, 1, 3]);
    let values = Attributes::of(requests[0].payload.bytes()).flatten().filter(|found| found.tag == Tag::PG_TAG);
    let values: Vec<Option<u32>> = values.map(|found| found.number()).collect();
    assert_eq!(values, [Some(7), None, None]);
    assert_eq!(counts(&three.changes(&more)), [0, 1, 0]);
    // Another alias, another period.
    let mut other = one.clone();
    other.nodes.values_mut().for_each(|node| node.alias = "other".into());
    assert_eq!(counts(&other.changes(&one)), [1, 0, 0]);
    assert_eq!(Registration { period: 60, ..one.clone() }.changes(&one).len(), 1);
}

#[test]
fn the_source_attribute_is_a_target_that_remains() {
    let name = |request: &Request| {
        let first = Attributes::of(request.payload.bytes()).next().and_then(Result::ok).expect("there is one");
        (first.tag, first.text().map(str::to_owned))
    };
    let mut rest = seen(3);
    let gone = rest.nodes.pop_first().map(|(name, _)| name).expect("there are three");
    let requests = rest.changes(&seen(3));
    let asked = name(requests.last().expect("one goes"));
    assert_eq!(asked.0, Tag::ISCSI_NAME);
    assert!(asked.1.is_some_and(|asked| *asked != *gone));
    assert_eq!(name(&rest.deregistration()).0, Tag::ISCSI_NAME);
}

#[test]
fn many_targets_are_split_into_several_requests() {
    let node = sample(1).nodes.into_values().next().expect("one");
    let nodes = (0..1000).map(|number| (format!("iqn.2026-01.org.example:{number}").into(), node.clone()));
    let many = Registration { nodes: nodes.collect(), ..sample(0) }.resolved_for(LOCAL).expect("targets");
    let requests = many.all(true);
    assert!(requests.len() > 5 && requests.iter().all(|request| request.payload.bytes().len() <= REQUEST_BYTES));
    assert_eq!(counts(&requests), [1000, 2, 2000]);
    let flags: Vec<u16> = requests.iter().map(|request| request.flags).collect();
    assert!(flags[0] == REPLACE && flags[1..].iter().all(|flags| *flags == 0), "the later ones add to the first");
}

use super::*;
use std::time::Duration;

fn address(number: u32) -> IpAddr {
    (0xc000_0200 + number).to_be_bytes().into()
}

fn mac(number: u32) -> MacAddress {
    let [a, b, c, d] = number.to_be_bytes();
    MacAddress([2, 0, a, b, c, d])
}

fn at(milliseconds: u64) -> Instant {
    Instant(1) + Duration::from_millis(milliseconds)
}

fn answer(number: u32, station: u32) -> Binding {
    Binding { address: address(number), mac: Some(mac(station)), is_solicited: true, overrides: true }
}

/// The questions at a time.
fn asked(neighbours: &mut Neighbours, now: Instant) -> Vec<Question> {
    let mut questions = Vec::new();
    neighbours.expire(now, |question| {
        questions.push(question);
        true
    });
    questions
}

#[test]
fn a_neighbour_is_asked_and_what_waits_for_it_is_sent() {
    let mut neighbours = Neighbours::default();
    assert_eq!(neighbours.find(address(1), at(0)), None);
    (0..WAITING_MAX + 3).for_each(|_| neighbours.wait(address(1), (address(1), Wrapped::default())));
    let question = Question { address: address(1), mac: None };
    assert_eq!((neighbours.deadline(), asked(&mut neighbours, at(0))), (Some(at(0)), vec![question]));
    assert_eq!(asked(&mut neighbours, at(500)), []);
    assert_eq!(asked(&mut neighbours, at(1000)), [question]);
    let (known, waiting) = neighbours.learn(answer(1, 7), at(1100)).expect("it is a neighbour");
    assert_eq!((known, waiting.len(), neighbours.take_dropped()), (mac(7), WAITING_MAX, 3));
    assert_eq!((neighbours.find(address(1), at(1200)), neighbours.counts()), (Some(mac(7)), (1, 0, 0)));
    assert_eq!(asked(&mut neighbours, at(5000)), []);
}

#[test]
fn a_neighbour_that_does_not_answer_is_forgotten() {
    let mut neighbours = Neighbours::default();
    neighbours.find(address(1), at(0));
    neighbours.wait(address(1), (address(1), Wrapped::default()));
    let times: Vec<u64> = (0..9000).step_by(250).filter(|now| !asked(&mut neighbours, at(*now)).is_empty()).collect();
    assert_eq!(times, [0, 1000, 2000]);
    assert_eq!((neighbours.counts(), neighbours.take_dropped(), neighbours.deadline()), ((0, 0, 0), 1, None));
}

#[test]
fn a_mac_address_is_asked_for_again_while_it_is_used() {
    let mut neighbours = Neighbours::default();
    neighbours.find(address(1), at(0));
    neighbours.learn(answer(1, 7), at(10));
    asked(&mut neighbours, at(10));
    assert_eq!(neighbours.find(address(1), at(30_005)), Some(mac(7)));
    assert_eq!(asked(&mut neighbours, at(30_009)), []);
    assert_eq!(neighbours.find(address(1), at(30_010)), Some(mac(7)));
    assert_eq!(asked(&mut neighbours, at(30_010)), [Question { address: address(1), mac: Some(mac(7)) }]);
    neighbours.learn(answer(1, 7), at(30_020));
    assert_eq!(neighbours.find(address(1), at(60_000)), Some(mac(7)));
    assert_eq!(asked(&mut neighbours, at(60_000)), []);
    // Without an answer it is used for three seconds more, and then all stations are asked.
    for now in (61_000..64_000).step_by(1000) {
        assert_eq!(neighbours.find(address(1), at(now)), Some(mac(7)));
        assert_eq!(asked(&mut neighbours, at(now)).len(), 1, "{now}");
    }
    assert_eq!(asked(&mut neighbours, at(64_000)), []);
    assert_eq!(neighbours.find(address(1), at(64_000)), None);
}

#[test]
fn a_neighbour_that_is_not_used_is_forgotten() {
    let mut neighbours = Neighbours::default();
    neighbours.find(address(1), at(0));
    neighbours.learn(answer(1, 7), at(0));
    neighbours.find(address(1), at(20_000));
    asked(&mut neighbours, at(600_000));
    assert_eq!((neighbours.counts(), neighbours.deadline()), ((1, 0, 0), Some(at(620_000))));
    asked(&mut neighbours, at(620_000));
    assert_eq!((neighbours.counts(), neighbours.deadline()), ((0, 0, 0), None));
}

#[test]
fn stations_that_nothing_is_sent_to_are_not_remembered() {
    let mut neighbours = Neighbours::default();
    for number in 0..1000 {
        assert!(neighbours.learn(answer(number, number), at(0)).is_none());
    }
    assert_eq!((neighbours.counts(), neighbours.deadline()), ((0, 0, 0), None));
}

#[test]
fn a_known_mac_address_changes_as_the_flags_say() {
    let mut neighbours = Neighbours::default();
    neighbours.find(address(1), at(0));
    neighbours.learn(answer(1, 7), at(0));
    let other = Binding { overrides: false, ..answer(1, 8) };
    assert!(neighbours.learn(other, at(10)).is_none());
    assert_eq!(neighbours.find(address(1), at(10)), Some(mac(7)));
    let told = Binding { is_solicited: false, ..answer(1, 8) };
    assert!(neighbours.learn(told, at(20)).is_some());
    assert_eq!(neighbours.find(address(1), at(20)), Some(mac(8)));
    // The same MAC address, untold: a confirmation only if it is an answer.
    neighbours.learn(Binding { mac: None, ..told }, at(29_000));
    neighbours.find(address(1), at(30_020));
    assert_eq!(asked(&mut neighbours, at(30_020)).len(), 1);
    let mut unknown = Neighbours::default();
    unknown.find(address(2), at(0));
    assert!(unknown.learn(Binding { mac: None, ..answer(2, 0) }, at(0)).is_none());
}

#[test]
fn numbers_are_bounded_and_known_neighbours_stay() {
    let mut neighbours = Neighbours::default();
    neighbours.find(address(0), at(0));
    neighbours.learn(answer(0, 7), at(0));
    for number in 1..5000 {
        neighbours.find(address(number), at(number.into()));
        neighbours.wait(address(number), (address(number), Wrapped::default()));
    }
    assert_eq!(neighbours.counts(), (1, UNRESOLVED_MAX, UNRESOLVED_MAX));
    assert_eq!(neighbours.take_dropped(), 4999 - UNRESOLVED_MAX as u64);
    assert_eq!(neighbours.find(address(0), at(5000)), Some(mac(7)));
    assert_eq!(neighbours.find(address(4999), at(5000)), None, "it still waits");
    // Stations that answer for many addresses displace those that were used least recently.
    for number in 10_000..12_000 {
        let now = at(number.into());
        neighbours.find(address(number), now);
        neighbours.learn(answer(number, number), now);
        neighbours.find(address(0), now);
    }
    assert_eq!(neighbours.counts().0, NEIGHBOURS_MAX);
    assert_eq!(neighbours.find(address(0), at(12_000)), Some(mac(7)));
    assert_eq!(neighbours.find(address(10_000), at(12_000)), None);
}

#[test]
fn datagrams_that_wait_are_bounded_in_all() {
    let mut neighbours = Neighbours::default();
    for number in 0..10 {
        neighbours.find(address(number), at(0));
        (0..WAITING_MAX).for_each(|_| neighbours.wait(address(number), (address(number), Wrapped::default())));
    }
    assert_eq!(neighbours.counts(), (0, 10, WAITING_TOTAL_MAX));
    assert_eq!(neighbours.take_dropped(), (10 * WAITING_MAX - WAITING_TOTAL_MAX) as u64);
}

#[test]
fn a_question_that_cannot_be_sent_is_not_counted() {
    let mut neighbours = Neighbours::default();
    neighbours.find(address(1), at(0));
    for now in 0..10 {
        neighbours.expire(at(now * 1000), |_| false);
    }
    assert_eq!(neighbours.counts(), (0, 1, 0));
    assert_eq!(asked(&mut neighbours, at(10_000)).len(), 1);
}

use super::*;
use proptest::prelude::*;
use std::pin::{Pin, pin};
use std::task::Context;

fn address(host: u8) -> IpAddr {
    [192, 0, 2, host].into()
}

fn is_ready(wait: Pin<&mut (impl Future<Output = Share> + ?Sized)>) -> Option<Share> {
    match wait.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(share) => Some(share),
        Poll::Pending => None,
    }
}

/// Takes units one by one as long as it gets some.
fn take_all(member: &Member) -> Vec<Share> {
    std::iter::from_fn(|| member.take(1)).collect()
}

#[test]
fn one_host_has_half_and_one_session_of_it_a_fifth_of_that() {
    let shares = PeerShares::new(2048);
    let (one, other) = (shares.join(address(1)), shares.join(address(1)));
    let first = take_all(&one);
    assert_eq!(first.len(), 1024 / 5);
    let second = take_all(&other);
    assert_eq!(second.len(), (1024 - first.len()) / 5, "of what the first left");
    let many: Vec<_> = (0..64).map(|_| shares.join(address(1))).collect();
    let _more: Vec<_> = many.iter().flat_map(take_all).collect();
    assert!((1000..=1024).contains(&shares.held()), "half is left to other hosts");
    drop((first, second));
    let of_other = (2048 - shares.held()) / 2;
    assert_eq!(take_all(&shares.join(address(2))).len(), of_other / 5);
}

#[test]
fn so_many_newcomers_as_are_told_find_something() {
    let shares = PeerShares::new(256);
    let mut held = Vec::new();
    for (host, amount, most) in [(1, 1, 100), (2, 3, 100), (3, 40, 100), (1, 1, 5), (4, 1, 100), (2, 1, 100)] {
        let told = shares.newcomers(address(host), amount);
        let found = (0..most).map_while(|_| shares.join(address(host)).take(amount));
        let found: Vec<_> = found.collect();
        assert_eq!(found.len(), told.min(most), "{amount} for host {host}");
        held.push(found);
    }
    assert_eq!(shares.newcomers(address(9), 300), 0);
}

#[test]
fn newcomers_find_their_part_whatever_the_others_hold() {
    let shares = PeerShares::new(2048);
    // Four hosts with sixteen sessions each.
    let greedy: Vec<_> = (0..64).map(|session| shares.join(address(session / 16))).collect();
    let _held: Vec<_> = greedy.iter().flat_map(take_all).collect();
    assert!(shares.held() >= 2048 - 2048 / RESERVE_PART - 32, "all but the reserve, {} of 2048", shares.held());
    let newcomers: Vec<_> = (10..26).map(|host| shares.join(address(host))).collect();
    let found: Vec<_> = newcomers.iter().map(take_all).collect();
    assert!(found.iter().all(|found| !found.is_empty()) && found[0].len() >= 2);
}

#[test]
fn a_new_session_of_a_busy_host_finds_its_part() {
    let shares = PeerShares::new(2048);
    let greedy: Vec<_> = (0..24).map(|_| shares.join(address(1))).collect();
    let _held: Vec<_> = greedy.iter().flat_map(take_all).collect();
    assert!(take_all(&shares.join(address(1))).len() >= 2);
}

#[test]
fn requests_that_wait_leave_the_reserve_once_their_member_holds_nothing() {
    let shares = PeerShares::new(2048);
    let of_host = 1024;
    let members: Vec<_> = (0..20).map(|_| shares.join(address(1))).collect();
    let small: Vec<_> = members.iter().map(|member| member.take(1).expect("room")).collect();
    let others: Vec<_> = (0..64).map(|_| shares.join(address(1))).collect();
    let held: Vec<_> = others.iter().flat_map(take_all).collect();
    let mut waits: Vec<_> = members.iter().map(|member| Box::pin(member.wait_first(64, 1))).collect();
    assert!(waits.iter_mut().all(|wait| is_ready(wait.as_mut()).is_none()), "their members hold something");
    drop((small, held));
    let granted: Vec<_> = waits.iter_mut().filter_map(|wait| is_ready(wait.as_mut())).collect();
    assert!(granted.len() == 20 && granted.iter().any(|share| share.amount() == 1), "{granted:?}");
    assert!(of_host - shares.held() >= of_host / RESERVE_PART - 20, "{} are held", shares.held());
}

#[test]
fn addresses_of_one_ipv6_network_are_one_host() {
    let shares = PeerShares::new(64);
    let sessions: Vec<_> = (0..200_u16).map(|n| shares.join([0x2001, 0xdb8, 0, 0, n, n, n, n].into())).collect();
    let _held: Vec<_> = sessions.iter().flat_map(take_all).collect();
    assert_eq!(shares.0.hosts.borrow().len(), 1);
    assert!(shares.held() <= 32);
}

#[test]
fn a_request_larger_than_the_capacity_is_granted_alone() {
    let shares = PeerShares::new(10);
    let (one, other) = (shares.join(address(1)), shares.join(address(2)));
    let large = one.take(100).expect("nothing else is held");
    assert!(other.take(1).is_none() && one.take(1).is_none());
    drop(large);
    let small = other.take(1);
    let mut waits = pin!(one.wait(100));
    assert!(small.is_some() && is_ready(waits.as_mut()).is_none());
    drop(small);
    assert!(is_ready(waits.as_mut()).is_some());
}

#[test]
fn sessions_that_wait_are_served_in_turn_and_not_overtaken_by_their_own_requests() {
    let shares = PeerShares::new(4);
    let (one, other) = (shares.join(address(1)), shares.join(address(2)));
    let full = shares.join(address(3)).take(4);
    let (mut a, mut b, mut c) = (pin!(one.wait(2)), pin!(one.wait(1)), pin!(other.wait(2)));
    assert!(is_ready(a.as_mut()).is_none() && is_ready(b.as_mut()).is_none() && is_ready(c.as_mut()).is_none());
    drop(full);
    assert!(one.take(1).is_none(), "one of its own waits");
    let (first, third) = (is_ready(a.as_mut()), is_ready(c.as_mut()));
    assert!(first.is_some() && third.is_some() && is_ready(b.as_mut()).is_none());
    drop(first);
    assert!(is_ready(b.as_mut()).is_some());
}

#[test]
fn a_turn_that_is_given_up_goes_to_the_next() {
    let shares = PeerShares::new(4);
    let (one, other) = (shares.join(address(1)), shares.join(address(2)));
    let full = one.take(4);
    let mut granted = Box::pin(other.wait(4));
    let mut behind = pin!(other.wait(1));
    assert!(is_ready(granted.as_mut()).is_none() && is_ready(behind.as_mut()).is_none());
    drop(full);
    assert!(is_ready(behind.as_mut()).is_none());
    drop(granted);
    assert!(is_ready(behind.as_mut()).is_some());
    assert_eq!((shares.held(), shares.0.waiting.borrow().len()), (0, 0));
}

#[test]
fn a_share_grows_and_shrinks() {
    let shares = PeerShares::new(64);
    let member = shares.join(address(1));
    let mut share = member.empty_share();
    assert!(share.grow(4) && share.grow(2) && !share.grow(1), "a tenth");
    share.shrink(4);
    assert_eq!((share.amount(), member.held(), shares.held()), (2, 2, 2));
    share.shrink(100);
    assert_eq!(shares.held(), 0);
}

#[test]
fn a_share_follows_a_counter_beyond_the_capacity() {
    let shares = PeerShares::new(64);
    let (member, other) = (shares.join(address(1)), shares.join(address(2)));
    let mut share = member.empty_share();
    share.absorb(member.take(10).expect("room"));
    share.follow(100);
    assert_eq!((share.amount(), shares.held()), (100, 100));
    assert!(!member.has_room(1) && other.take(1).is_none());
    share.follow(20);
    assert!(!member.has_room(1) && other.has_room(1));
    drop(share);
    assert_eq!(shares.held(), 0);
}

/// One step of a history: of this session, with this amount.
#[derive(Clone, Copy, Debug)]
enum Act {
    Take(usize, usize),
    Wait(usize, usize),
    Drop(usize),
    GiveUp(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = (0..4_u8, 0..12_usize, 1..=40_usize).prop_map(|(kind, session, amount)| match kind {
        0 => Act::Take(session, amount),
        1 => Act::Wait(session, amount),
        2 => Act::Drop(session * 7 + amount),
        _ => Act::GiveUp(session + amount),
    });
    prop::collection::vec(act, 1..300)
}

proptest! {
    #[test]
    fn nothing_is_lost_and_nobody_waits_for_what_is_there(acts in acts()) {
        let shares = PeerShares::new(640);
        // Three sessions of each of four hosts.
        let members: Vec<_> = (0..12_u8).map(|session| shares.join(address(session / 3))).collect();
        let mut held: Vec<Share> = Vec::new();
        let mut waits: Vec<Pin<Box<dyn Future<Output = Share>>>> = Vec::new();
        for act in acts {
            match act {
                Act::Take(session, amount) => held.extend(members[session].take(amount)),
                Act::Wait(session, amount) => {
                    let member = members[session].clone();
                    waits.push(Box::pin(async move { member.wait(amount).await }));
                }
                Act::Drop(at) if !held.is_empty() => drop(held.swap_remove(at % held.len())),
                Act::GiveUp(at) if !waits.is_empty() => drop(waits.swap_remove(at % waits.len())),
                Act::Drop(_) | Act::GiveUp(_) => {}
            }
            let mut left = Vec::new();
            for mut wait in waits {
                match is_ready(wait.as_mut()) {
                    Some(share) => held.push(share),
                    None => left.push(wait),
                }
            }
            waits = left;
            prop_assert_eq!(shares.held(), held.iter().map(Share::amount).sum::<usize>());
            prop_assert!(shares.held() <= shares.capacity());
            // A host has at most half of what the others leave, or the little that may come out of the reserve.
            let of_host = |host: usize| (0..3).map(|session| members[host * 3 + session].held()).sum::<usize>();
            prop_assert!((0..4).all(|host| of_host(host) <= 320 + 40));
            // No request waits that there is room for.
            for account in shares.0.waiting.borrow().iter() {
                let first = account.waiters.borrow().front().map(|waiter| waiter.amount);
                prop_assert!(first.is_some_and(|amount| !account.admits(amount)));
            }
        }
        drop(held);
        // Everything that waits is served one after the other.
        while let Some(mut wait) = waits.pop() {
            match is_ready(wait.as_mut()) {
                Some(share) => drop(share),
                None => waits.insert(0, wait),
            }
        }
        prop_assert_eq!((shares.held(), shares.0.waiting.borrow().len()), (0, 0));
    }

    #[test]
    fn a_newcomer_gets_its_part_at_once(amounts in prop::collection::vec((0..4_u8, 1..=10_usize), 1..400)) {
        let shares = PeerShares::new(640);
        let greedy: Vec<_> = (0..4_u8).map(|host| shares.join(address(host))).collect();
        let held: Vec<_> =
            amounts.into_iter().filter_map(|(host, amount)| greedy[usize::from(host)].take(amount)).collect();
        let newcomer = shares.join(address(200)).take(10);
        prop_assert!(newcomer.is_some(), "{:?} with {} shares", shares, held.len());
    }
}

#[test]
fn the_rules_admit_every_request_while_little_is_held() {
    for capacity in [16, 17, 31, 32, 33, 47, 48, 100, 255, 256, 1000] {
        let plenty = capacity / PLENTY_PART;
        for elsewhere in 0..=plenty {
            for by_host in 0..=plenty - elsewhere {
                for by_session in 0..=by_host {
                    for amount in 0..=plenty - elsewhere - by_host {
                        let of_host = (capacity - elsewhere) / (1 + HOST_FACTOR);
                        let by_hosts = admits(by_host, elsewhere + by_host, capacity, amount, HOST_FACTOR);
                        let by_sessions = admits(by_session, by_host, of_host, amount, SESSION_FACTOR);
                        let case = (capacity, elsewhere, by_host, by_session, amount);
                        assert!(by_hosts && by_sessions, "capacity, elsewhere, host, session, amount: {case:?}");
                    }
                }
            }
        }
    }
}

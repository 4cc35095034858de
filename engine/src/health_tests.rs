use super::*;

const MINUTE: Instant = Instant(60_000_000_000);

fn found(condition: Condition) -> StoreTrouble {
    StoreTrouble { condition, words: "it is wrong".to_owned(), remedy: "mend it".to_owned() }
}

fn watched(tally: &SharedTally) -> Watched {
    Watched { stores: [None, None], device: None, tally: tally.clone(), found: None }
}

#[test]
fn a_trouble_is_told_once_and_keeps_its_time() {
    let mut watched = watched(&SharedTally::new(1));
    let begun = watched.update("disk", vec![found(Condition::Deleted)], 1000);
    assert_eq!(
        (begun.len(), begun[0].kind, begun[0].subject.as_str(), begun[0].since),
        (1, "deleted", "volume disk", 1000)
    );
    assert_eq!(begun[0].to_string(), "volume disk: it is wrong; mend it");
    let both = vec![found(Condition::Deleted), found(Condition::Gone)];
    let begun = watched.update("disk", both, 2000);
    assert_eq!(begun.iter().map(|trouble| trouble.kind).collect::<Vec<_>>(), ["gone"]);
    let since: Vec<u64> = watched.found().troubles.values().map(|trouble| trouble.since).collect();
    assert_eq!(since, [1000, 2000]);
    assert_eq!(watched.update("disk", Vec::new(), 3000), []);
    assert_eq!(watched.update("disk", vec![found(Condition::Gone)], 4000)[0].since, 4000, "it came back");
}

#[test]
fn full_and_failing_disks_are_troubles_until_they_are_quiet() {
    let tally = SharedTally::new(2).of_core(0);
    let mut watched = watched(&tally);
    let mut kinds = |now| -> Vec<(&str, String)> {
        watched.counted(now).into_iter().map(|found| (found.condition.code().word(), found.words)).collect()
    };
    assert_eq!(kinds(MINUTE), []);
    tally.add(Event::SpaceError, 3);
    let full = "3 writes failed because its file system or its device has no space".to_owned();
    assert_eq!(kinds(MINUTE), [("no-space", full.clone())]);
    tally.of_core(1).add(Event::WriteError, 1);
    tally.add(Event::ReadError, 1);
    let failing = ("medium-errors", "2 commands ended with a medium error".to_owned());
    let later = MINUTE + QUIET / 2;
    assert_eq!(kinds(later), [failing.clone(), ("no-space", full)]);
    assert_eq!(kinds(MINUTE + QUIET), [failing], "there was room again");
    // A host resets the counters: that is no error, and what comes then counts.
    tally.reset();
    assert_eq!(kinds(later + QUIET), []);
    tally.add(Event::SpaceError, 1);
    assert_eq!(kinds(later + QUIET).len(), 1);
    watched.found().spaces = vec![PoolSpace { noun: "Ceph pool", inspection: "ceph df".to_owned(), ..pool(0) }];
    let full = watched.counted(later + QUIET).remove(0);
    assert_eq!(full.words, "1 writes failed because its Ceph pool has no space");
    assert_eq!(full.remedy, "make room there (`ceph df`), or move the volume");
}

#[test]
fn the_medium_errors_of_a_truncated_file_are_its_truncation() {
    let tally = SharedTally::new(1).of_core(0);
    let mut watched = watched(&tally);
    tally.add(Event::ReadError, 7);
    tally.add(Event::SpaceError, 1);
    let mut kinds = |condition| -> Vec<&str> {
        watched.all(vec![found(condition)], MINUTE).iter().map(|found| found.condition.code().word()).collect()
    };
    assert_eq!(kinds(Condition::Truncated), ["truncated", "no-space"]);
    assert_eq!(kinds(Condition::Deleted), ["deleted", "medium-errors", "no-space"]);
}

fn pool(free: u64) -> PoolSpace {
    PoolSpace {
        pool: 5,
        noun: "file system",
        place: "/srv".to_owned(),
        inspection: "df /srv".to_owned(),
        free,
        size: 1 << 30,
        allocated: 0,
        missing: 10 << 20,
    }
}

#[test]
fn an_over_committed_pool_is_told_once_until_it_has_space() {
    let watchlist = Watchlist::default();
    let space = |free| vec![pool(free)];
    let begun = watchlist.update_pools(space(1 << 20), 1000);
    assert_eq!((begun.len(), begun[0].kind, begun[0].since), (1, "over-committed", 1000));
    assert_eq!(watchlist.update_pools(space(2 << 20), 2000), []);
    let known = watchlist.lock().pools[&5].clone();
    assert_eq!((known.since, known.words.contains("2 MiB are free")), (1000, true));
    assert_eq!(watchlist.update_pools(space(20 << 20), 3000), []);
    assert!(watchlist.lock().pools.is_empty());
    assert_eq!(watchlist.update_pools(space(1 << 20), 4000)[0].since, 4000);
}

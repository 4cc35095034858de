//! Random sequences of requests, compared with an array.

use crate::bench::{Bench, Place, fill};
use lunar_core::io::{Fault, Op};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Bytes of a store that a sequence uses.
pub(crate) const BYTES: u64 = 320 << 10;

#[derive(Clone, Copy, Debug)]
enum Act {
    Read { place: Place, piece: usize, skew: usize },
    Write { place: Place, piece: usize, skew: usize, durable: bool, seed: u64 },
    Unmap(Place),
    Zero(Place, bool),
    Extents,
    Flush,
}

/// A byte in the model: unknown after an unmap without a promise.
type Known = Option<u8>;

fn places(block: u64) -> impl Strategy<Value = Place> {
    let blocks = BYTES / block;
    // Mostly short ones, so that they meet borders; sometimes a long one, so that they overlap.
    let len = prop_oneof![3 => 1..=8.min(blocks), 2 => 1..=64.min(blocks), 1 => 1..=blocks];
    (0..blocks, len).prop_map(move |(at, len)| Place { at: at * block, len: len.min(blocks - at) * block })
}

fn acts(block: u64) -> impl Strategy<Value = Act> {
    let piece = prop_oneof![Just(512_usize), Just(4096), Just(1 << 20), 40_usize..3000];
    let skew = prop_oneof![Just(0_usize), Just(48), 0_usize..4096];
    let memory = (piece, skew).boxed();
    prop_oneof![
        4 => (places(block), memory.clone()).prop_map(|(place, (piece, skew))| Act::Read { place, piece, skew }),
        5 => (places(block), memory, any::<bool>(), any::<u64>()).prop_map(|(place, (piece, skew), durable, seed)| {
            Act::Write { place, piece, skew, durable, seed }
        }),
        2 => places(block).prop_map(Act::Unmap),
        2 => (places(block), any::<bool>()).prop_map(|(place, unmap)| Act::Zero(place, unmap)),
        1 => Just(Act::Extents),
        1 => Just(Act::Flush),
    ]
}

/// Executes random sequences in the store's bytes from `base` on.
pub(crate) fn compare(bench: &Bench<'_>, base: u64) {
    let config = Config { cases: bench.want.cases, failure_persistence: None, ..Config::default() };
    let sequences = prop::collection::vec(acts(bench.want.block), 1..40);
    let result = TestRunner::new(config).run(&sequences, |sequence| {
        bench.reactor.run(play(bench, base, &sequence));
        Ok(())
    });
    if let Err(why) = result {
        panic!("{why}");
    }
}

async fn play(bench: &Bench<'_>, base: u64, sequence: &[Act]) {
    let mut model: Vec<Known> = vec![Some(0); BYTES as usize];
    bench.write(base, &vec![0; BYTES as usize], false).await.expect("a write");
    for act in sequence {
        step(bench, base, *act, &mut model).await;
    }
    check(bench, base, Place { at: 0, len: BYTES }, (1 << 20, 0), &model).await;
}

fn slice(place: Place) -> std::ops::Range<usize> {
    place.at as usize..(place.at + place.len) as usize
}

async fn step(bench: &Bench<'_>, base: u64, act: Act, model: &mut [Known]) {
    match act {
        Act::Read { place, piece, skew } => check(bench, base, place, (piece, skew), model).await,
        Act::Write { place, piece, skew, durable, seed } => {
            let bytes = fill(place.len, seed);
            let (piece, skew) = bounded(place, piece, skew);
            let data = bench.gather(&bytes, piece, skew);
            bench.write_sg(base + place.at, data, durable).await.expect("a write without a fault");
            model[slice(place)].iter_mut().zip(bytes).for_each(|(known, byte)| *known = Some(byte));
        }
        Act::Unmap(place) => match bench.ask(Op::Unmap { len: place.len }, base + place.at).await.result {
            Ok(_) if bench.store.traits().unmap_zeroes => model[slice(place)].fill(Some(0)),
            Ok(_) => model[slice(place)].fill(None),
            Err(why) => assert_eq!(why, Fault::Unsupported),
        },
        Act::Zero(place, unmap) => match bench.ask(Op::Zero { len: place.len, unmap }, base + place.at).await.result {
            Ok(_) => model[slice(place)].fill(Some(0)),
            Err(why) => assert_eq!(why, Fault::Unsupported),
        },
        Act::Extents => extents(bench, base, model).await,
        Act::Flush => {
            bench.ask(Op::Flush, 0).await.result.expect("a flush without a fault");
        }
    }
}

/// A large request in tiny pieces would take more pages than the arena has, and more vectors than one call takes.
fn bounded(place: Place, piece: usize, skew: usize) -> (usize, usize) {
    (piece.max(place.len as usize / 64), skew)
}

async fn check(bench: &Bench<'_>, base: u64, place: Place, memory: (usize, usize), model: &[Known]) {
    let (piece, skew) = bounded(place, memory.0, memory.1);
    let into = bench.scatter(place.len as usize, piece, skew);
    let here = Place { at: base + place.at, len: place.len };
    let found = bench.read_into(here, into).await.expect("a read without a fault");
    let wrong =
        found.iter().zip(&model[slice(place)]).position(|(byte, known)| known.is_some_and(|known| known != *byte));
    if let Some(at) = wrong {
        panic!("byte {at} of {here:?} is {}, not {:?}", found[at], model[slice(place)][at]);
    }
}

/// Extents follow each other, and unmapped bytes read as zeroes, if that is promised.
async fn extents(bench: &Bench<'_>, base: u64, model: &[Known]) {
    let mut at = 0;
    while at < BYTES {
        let outcome = bench.ask(Op::Extent { len: BYTES - at }, base + at).await;
        outcome.result.expect("an answer");
        let extent = outcome.extent;
        assert!(extent.len > 0 && extent.len <= BYTES - at, "{extent:?} at {at}");
        if !extent.mapped {
            let hole = &model[slice(Place { at, len: extent.len })];
            assert!(hole.iter().all(|known| known.unwrap_or(0) == 0), "data in a hole: {extent:?} at {at}");
        }
        at += extent.len;
    }
}

//! Extents and the space of pools, as handlers tell them.

use crate::tests::{Folder, LIMIT, SIZE, answer, connected_by, next, play, start};
use lunar_core::io::{Data, Extent, Io, Op, Store};
use lunar_engine::backend::OpenedStore;
use lunar_handler::serve::Connection;
use lunar_handler::wire::{Message, Operation, Space, Status, features, name_field, space_flags};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn connected(socket: &Path, features: u64) -> Connection {
    connected_by(|| Connection::open(socket, "script", SIZE, features))
}

/// Asks for the extent of 1 MiB at 4 MiB.
async fn asked(store: &dyn Store) -> Extent {
    let asked = start(store, Io { op: Op::Extent { len: 1 << 20 }, offset: 4 << 20, data: Data::None });
    let outcome = asked.wait().await;
    assert_eq!(outcome.result, Ok(0), "an extent is always told");
    outcome.extent
}

const ALL_MAPPED: Extent = Extent { len: 1 << 20, mapped: true };

#[test]
fn an_extent_is_what_the_handler_says_and_mapped_if_that_cannot_be() {
    let folder = Folder::new("extent");
    let volume = folder.volume(|_| {});
    let hole = |len| Extent { len, mapped: false };
    let said =
        [hole(4096), hole(1 << 20), Extent { len: 512, mapped: true }, hole(0), hole((1 << 20) + 1), hole(u64::MAX)];
    let script = move |socket: PathBuf| {
        let mut handler = connected(&socket, features::ALL);
        for extent in said {
            let command = next(&mut handler);
            let place = (command.offset.get(), command.length.get());
            assert_eq!((Operation(command.operation), place), (Operation::EXTENT, (4 << 20, 1 << 20)));
            handler.queues[0].ring.complete_extent(&command, extent);
            handler.queues[0].wake_lunar().expect("the eventfd is there");
        }
        for status in [Status::UNSUPPORTED, Status::NOT_READY, Status(77)] {
            let command = next(&mut handler);
            answer(&mut handler, &command, status);
        }
    };
    play(&folder, &volume, script, async |reactor, store| {
        while volume.life().shared().state().connected.is_none() {
            reactor.sleep(Duration::from_millis(1)).await;
        }
        // The core has its queue when a command comes back.
        let mut found = Vec::new();
        while found.len() < said.len() + 3 {
            let extent = asked(store).await;
            if !found.is_empty() || extent != ALL_MAPPED {
                found.push(extent);
            } else {
                reactor.sleep(Duration::from_millis(1)).await;
            }
        }
        assert_eq!(found[..3], said[..3]);
        assert_eq!(found[3..], [ALL_MAPPED; 6]);
    });
}

#[test]
fn an_extent_waits_for_no_handler_and_goes_to_no_second_one() {
    let folder = Folder::new("extent-lost");
    let volume = folder.volume(|_| {});
    let (tell, told) = mpsc::channel();
    let script = move |socket: PathBuf| {
        told.recv_timeout(LIMIT).expect("an extent was told without a handler");
        let mut first = connected(&socket, features::ALL);
        assert_eq!(Operation(next(&mut first).operation), Operation::EXTENT);
        drop(first);
        let mut second = connected(&socket, features::ALL & !features::EXTENT);
        let mut seen = Vec::new();
        let begun = Instant::now();
        while told.try_recv().is_err() {
            assert!(begun.elapsed() < LIMIT, "the test goes on");
            while let Some(command) = second.queues[0].ring.take().expect("the rings are sound") {
                seen.push(Operation(command.operation));
                answer(&mut second, &command, Status::GOOD);
            }
            std::thread::yield_now();
        }
        seen
    };
    let seen = play(&folder, &volume, script, async |reactor, store| {
        assert_eq!(asked(store).await, ALL_MAPPED);
        tell.send(()).expect("the script waits");
        let connections = |wanted| volume.life().view(volume.unit()).connections >= wanted;
        while !connections(2) {
            assert_eq!(asked(store).await, ALL_MAPPED);
            reactor.sleep(Duration::from_millis(1)).await;
        }
        let flush = Io { op: Op::Flush, offset: 0, data: Data::None };
        assert_eq!(start(store, flush).wait().await.result, Ok(0));
        assert_eq!(asked(store).await, ALL_MAPPED, "the second handler does not tell them");
        tell.send(()).expect("the script waits");
    });
    assert_eq!(seen, [Operation::FLUSH]);
    assert_eq!(volume.life().view(volume.unit()).replayed, 0);
}

#[test]
fn the_space_of_a_pool_is_told_by_handlers_that_have_said_so() {
    let folder = Folder::new("space-told");
    let volume = folder.volume(|_| {});
    let space = Message::Space(Space {
        flags: space_flags::ALLOCATED.into(),
        free: 1000.into(),
        size: 5000.into(),
        allocated: (SIZE / 4).into(),
        pool: name_field("7/2"),
        name: name_field("poolname"),
    });
    let mut silent = Connection::open(&folder.socket(), "silent", SIZE, 0).expect("Lunar listens");
    assert!(matches!(silent.receive(), Ok(Some(Message::Welcome(_)))));
    silent.send(&space).expect("Lunar listens");
    drop(silent);
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let end = Instant::now() + LIMIT;
        while !is_so() {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until("the handler has not gone", &|| volume.life().view(volume.unit()).state == "missing");
    assert_eq!(volume.pool_space(), None, "it has not said that it tells its space");
    let open = connected_to(&folder.socket());
    open.as_ref().expect("it is accepted").send(&space).expect("Lunar listens");
    until("the space does not arrive", &|| volume.pool_space().is_some());
    let told = volume.pool_space().expect("it has arrived");
    assert_eq!((&*told.place, told.free, told.size), ("poolname", 1000, 5000));
    assert_eq!((told.allocated, told.missing), (SIZE / 4, SIZE - SIZE / 4));
}

/// A handler that has been welcomed, and tells its space.
fn connected_to(socket: &Path) -> Option<Connection> {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        let Ok(mut connection) = Connection::open(socket, "telling", SIZE, features::SPACE) else { continue };
        if matches!(connection.receive(), Ok(Some(Message::Welcome(_)))) {
            return Some(connection);
        }
    }
    None
}

//! Tests of the drivers of real kernels: the same on io_uring and on epoll.

use crate::op::{Allocate, Handle, How, Incoming, Op};
use crate::testing::hanging_file::HangingFile;
use crate::{Choice, Config, Reactor, Spin};
use lunar_core::io::{Completion, Data, Extent, Fault, Outcome};
use lunar_core::mem::{Arena, PAGE, Sg, SgMut};
use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

const ARENA: usize = 32 << 20;

fn reactor(driver: Choice) -> Reactor {
    Reactor::new(Config { driver, arena_bytes: ARENA, ..Config::default() }).expect("a driver")
}

/// Runs a test on one driver; all memory must be free when it ends.
fn on<F: Future<Output = ()>>(driver: Choice, test: impl FnOnce(Reactor) -> F) {
    let reactor = reactor(driver);
    let arena = reactor.arena().clone();
    reactor.run(test(reactor.clone()));
    drop(reactor);
    assert_eq!(arena.used(), 0, "memory did not come back");
}

macro_rules! both {
    ($($(#[$meta:meta])* $name:ident;)*) => {
        mod io_uring { $($(#[$meta])* #[test] fn $name() { super::on(crate::Choice::IoUring, super::$name); })* }
        mod epoll { $($(#[$meta])* #[test] fn $name() { super::on(crate::Choice::Epoll, super::$name); })* }
    };
}

both! {
    bytes_go_round_in_many_pieces;
    a_slow_reader_gets_all_of_a_big_send;
    sends_on_one_socket_keep_their_order;
    a_peer_that_never_pauses_is_served_several_times_a_turn;
    a_closed_peer_reads_as_zero_bytes;
    cancel_ends_waiting_operations;
    a_cancelled_socket_works_on;
    dropping_the_future_of_a_receive_loses_no_memory;
    a_listener_accepts_many;
    a_listener_that_is_dropped_lets_the_address_go;
    an_address_in_use_is_an_error;
    shutdown_comes_after_sends_in_progress;
    files_return_written_data;
    reads_past_the_end_are_faults;
    reads_of_uncached_data;
    pieces_beyond_one_call_are_moved;
    durable_writes_and_syncs_answer;
    holes_are_punched_zeroed_and_found;
    files_are_copied_by_the_kernel;
    device_requests_on_a_file_are_unsupported;
    a_device_that_hangs_does_not_delay_another;
    a_core_ends_although_a_device_hangs;
    many_file_operations_at_once;
    more_operations_than_the_rings_hold;
    direct_reads_and_writes;
    a_missing_file_is_an_error;
    operations_under_way_at_the_end_are_harmless;
    statistics_count_bytes;
}

/// Two ends of a connection, both on this core.
async fn pair(reactor: &Reactor) -> (Handle, Handle) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (far, _) = listener.accept().expect("a connection");
    (join(reactor, near), join(reactor, far))
}

fn join(reactor: &Reactor, stream: TcpStream) -> Handle {
    let (handle, local, peer) = reactor.driver().join(Incoming::Socket(OwnedFd::from(stream))).expect("joined");
    assert!(local.ip().is_loopback() && peer.ip().is_loopback());
    handle
}

fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}

/// `len` bytes of the pattern from `from` on, cut into pieces of `piece`.
fn data(arena: &Arena, from: usize, len: usize, piece: usize) -> Sg {
    let mut sg = Sg::default();
    let mut at = 0;
    while at < len {
        let mut buf = arena.take(piece.min(len - at)).expect("room");
        for (i, byte) in buf.iter_mut().enumerate() {
            *byte = pattern(from + at + i);
        }
        at += buf.len();
        sg.push(buf.share());
    }
    sg
}

fn memory(arena: &Arena, len: usize, piece: usize) -> SgMut {
    let mut sg = SgMut::default();
    while sg.len() < len {
        sg.push(arena.take(piece.min(len - sg.len())).expect("room"));
    }
    sg
}

/// Receives until `len` bytes of the pattern have arrived.
async fn receive_pattern(reactor: &Reactor, socket: &Handle, len: usize, room: usize, piece: usize) {
    let mut completion = Completion::new();
    let mut at = 0;
    while at < len {
        let (result, sg) = reactor.receive(socket, memory(reactor.arena(), room, piece), &mut completion).await;
        let got = result.expect("received");
        assert!(got > 0, "the peer closed after {at} bytes");
        let mut bytes = vec![0; got];
        sg.share().copy_to(0, &mut bytes);
        assert!(bytes.iter().enumerate().all(|(i, b)| *b == pattern(at + i)), "wrong bytes near {at}");
        at += got;
    }
    assert_eq!(at, len);
}

async fn run_op(reactor: &Reactor, op: Op) -> Outcome {
    let mut completion = Completion::new();
    reactor.submit(op, completion.token());
    completion.wait().await
}

async fn bytes_go_round_in_many_pieces(reactor: Reactor) {
    let (near, far) = pair(&reactor).await;
    for (len, piece, room, into) in
        [(1, 1, 4096, 4096), (1000, 7, 100, 13), (300_000, 5000, 65536, 4096), (5000, 4, 9000, 3000)]
    {
        let sg = data(reactor.arena(), 0, len, piece);
        let other = reactor.clone();
        let near = near.clone();
        reactor.spawn(async move {
            let mut completion = Completion::new();
            assert_eq!(other.send(&near, sg, &mut completion).await, Ok(len));
        });
        receive_pattern(&reactor, &far, len, room, into).await;
    }
}

async fn a_slow_reader_gets_all_of_a_big_send(reactor: Reactor) {
    let (near, far) = pair(&reactor).await;
    let len = 12 << 20;
    let sg = data(reactor.arena(), 0, len, 1 << 20);
    let (other, socket) = (reactor.clone(), near.clone());
    let sent = Rc::new(Cell::new(false));
    let flag = sent.clone();
    reactor.spawn(async move {
        let mut completion = Completion::new();
        assert_eq!(other.send(&socket, sg, &mut completion).await, Ok(len));
        flag.set(true);
    });
    reactor.sleep(Duration::from_millis(50)).await;
    assert!(!sent.get(), "the send cannot have found room yet");
    receive_pattern(&reactor, &far, len, 1 << 20, 65536).await;
    reactor.sleep(Duration::from_millis(1)).await;
    assert!(sent.get());
}

async fn sends_on_one_socket_keep_their_order(reactor: Reactor) {
    let (near, far) = pair(&reactor).await;
    let (count, len) = (10, 1 << 20);
    let mut completions: Vec<Completion> = (0..count).map(|_| Completion::new()).collect();
    for (i, completion) in completions.iter_mut().enumerate() {
        let data = data(reactor.arena(), i * len, len, 100_000);
        reactor.submit(Op::Send { socket: near.clone(), data }, completion.token());
    }
    receive_pattern(&reactor, &far, count * len, 1 << 20, 1 << 20).await;
    for completion in &completions {
        assert_eq!(completion.wait().await.result, Ok(len as u32));
    }
}

async fn a_closed_peer_reads_as_zero_bytes(reactor: Reactor) {
    let (near, far) = pair(&reactor).await;
    let mut completion = Completion::new();
    let sent = reactor.send(&near, data(reactor.arena(), 0, 10, 10), &mut completion).await;
    assert_eq!(sent, Ok(10));
    drop(near);
    receive_pattern(&reactor, &far, 10, 100, 100).await;
    for _ in 0..2 {
        let (result, sg) = reactor.receive(&far, memory(reactor.arena(), 100, 100), &mut completion).await;
        assert_eq!((result, sg.len()), (Ok(0), 100));
    }
    // The first send after that may find a socket that still accepts data; the reset that it provokes ends the
    // following sends.
    let mut last = Ok(0);
    for _ in 0..10 {
        last = reactor.send(&far, data(reactor.arena(), 0, 10, 10), &mut completion).await;
        reactor.sleep(Duration::from_millis(5)).await;
    }
    assert!(matches!(last, Err(Fault::Os(libc::EPIPE | libc::ECONNRESET))), "{last:?}");
}

async fn cancel_ends_waiting_operations(reactor: Reactor) {
    let (near, far) = pair(&reactor).await;
    let mut completions: Vec<Completion> = (0..5).map(|_| Completion::new()).collect();
    for (i, completion) in completions.iter_mut().enumerate() {
        let token = completion.token();
        let op = match i {
            0..3 => Op::Receive { socket: near.clone(), into: memory(reactor.arena(), 100, 10), at_once: false },
            _ => Op::Send { socket: near.clone(), data: data(reactor.arena(), 0, 10 << 20, 1 << 20) },
        };
        reactor.submit(op, token);
    }
    reactor.sleep(Duration::from_millis(5)).await;
    reactor.driver().cancel(&near);
    for completion in &completions {
        let outcome = completion.wait().await;
        assert_eq!(outcome.result, Err(Fault::Aborted));
        assert!(!outcome.data.is_empty(), "the memory comes back");
    }
    drop(far);
}

async fn a_cancelled_socket_works_on(reactor: Reactor) {
    let (near, far) = pair(&reactor).await;
    for _ in 0..3 {
        let mut completion = Completion::new();
        let token = completion.token();
        reactor.submit(
            Op::Receive { socket: far.clone(), into: memory(reactor.arena(), 100, 100), at_once: false },
            token,
        );
        reactor.driver().cancel(&far);
        assert_eq!(completion.wait().await.result, Err(Fault::Aborted));
        let sent = reactor.send(&near, data(reactor.arena(), 0, 100, 100), &mut completion).await;
        assert_eq!(sent, Ok(100));
        receive_pattern(&reactor, &far, 100, 100, 100).await;
    }
}

async fn dropping_the_future_of_a_receive_loses_no_memory(reactor: Reactor) {
    let (near, far) = pair(&reactor).await;
    let mut completion = Completion::new();
    {
        let future = reactor.receive(&far, memory(reactor.arena(), 8192, 4096), &mut completion);
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| {
            assert!(future.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
    }
    assert_eq!(reactor.arena().used(), 8192);
    let sent = reactor.send(&near, data(reactor.arena(), 0, 100, 100), &mut completion).await;
    assert_eq!(sent, Ok(100));
    reactor.sleep(Duration::from_millis(20)).await;
    assert_eq!(reactor.arena().used(), 0, "the operation owned the memory until its end");
}

async fn a_listener_accepts_many(reactor: Reactor) {
    const COUNT: usize = 300;
    let (listener, address) = reactor.driver().listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("listening");
    let clients = std::thread::spawn(move || {
        let all: Vec<TcpStream> = (0..COUNT).map(|_| TcpStream::connect(address).expect("connected")).collect();
        for mut stream in all {
            stream.write_all(b"hello").expect("sent");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).expect("received");
            assert_eq!(answer, b"hello");
        }
    });
    reactor.sleep(Duration::from_millis(20)).await;
    let left = Rc::new(Cell::new(COUNT));
    for _ in 0..COUNT {
        let incoming = reactor.accept(&listener).await.expect("accepted");
        let (socket, local, _) = reactor.driver().join(incoming).expect("joined");
        assert_eq!(local, address);
        let (reactor, left) = (reactor.clone(), left.clone());
        reactor.clone().spawn(async move {
            let mut completion = Completion::new();
            let (result, mut sg) = reactor.receive(&socket, memory(reactor.arena(), 64, 64), &mut completion).await;
            let hello = sg.split_to(result.expect("received")).share();
            reactor.send(&socket, hello, &mut completion).await.expect("sent");
            left.set(left.get() - 1);
        });
    }
    while left.get() > 0 {
        reactor.sleep(Duration::from_millis(1)).await;
    }
    clients.join().expect("all were answered");
}

async fn a_listener_that_is_dropped_lets_the_address_go(reactor: Reactor) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (listener, address) = reactor.driver().listen(any).expect("listening");
    let mut completion = Completion::new();
    reactor.submit(Op::Accept { listener: listener.clone() }, completion.token());
    reactor.sleep(Duration::from_millis(1)).await;
    reactor.driver().cancel(&listener);
    assert_eq!(completion.wait().await.result, Err(Fault::Aborted));
    let mut again = Completion::new();
    reactor.submit(Op::Accept { listener: listener.clone() }, again.token());
    let stream = TcpStream::connect(address).expect("connected");
    assert_eq!(again.wait().await.result, Ok(0));
    assert!(reactor.driver().accepted(&listener).is_some());
    assert!(reactor.driver().accepted(&listener).is_none());
    drop((listener, stream));
    reactor.sleep(Duration::from_millis(5)).await;
    let second = reactor.driver().listen(address).expect("the address is free");
    drop(second);
}

async fn an_address_in_use_is_an_error(reactor: Reactor) {
    let (_listener, address) = reactor.driver().listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("listening");
    let error = reactor.driver().listen(address).expect_err("in use");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

async fn shutdown_comes_after_sends_in_progress(reactor: Reactor) {
    let (near, far) = pair(&reactor).await;
    let len = 8 << 20;
    let mut completion = Completion::new();
    let token = completion.token();
    reactor.submit(Op::Send { socket: near.clone(), data: data(reactor.arena(), 0, len, 1 << 20) }, token);
    reactor.driver().shutdown(&near);
    receive_pattern(&reactor, &far, len, 1 << 20, 1 << 20).await;
    assert_eq!(completion.wait().await.result, Ok(len as u32));
    let (result, _) = reactor.receive(&far, memory(reactor.arena(), 10, 10), &mut completion).await;
    assert_eq!(result, Ok(0));
    // The other direction is still open.
    assert_eq!(reactor.send(&far, data(reactor.arena(), 0, 10, 10), &mut completion).await, Ok(10));
    receive_pattern(&reactor, &near, 10, 10, 10).await;
}

/// A file that is removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lunar-reactor-{}-{number}", std::process::id()));
        std::fs::write(&path, b"").expect("a file");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn write(reactor: &Reactor, file: &Handle, offset: u64, data: Sg) -> Result<u32, Fault> {
    run_op(reactor, Op::Write { file: file.clone(), offset, data, durable: false }).await.result
}

async fn read(reactor: &Reactor, file: &Handle, offset: u64, len: usize, piece: usize) -> Vec<u8> {
    let mut into = memory(reactor.arena(), len, piece);
    into.fill_from(0, 0xa5);
    let outcome = run_op(reactor, Op::Read { file: file.clone(), offset, into }).await;
    assert_eq!(outcome.result, Ok(len as u32));
    outcome.data.into_in().share().to_vec()
}

async fn files_return_written_data(reactor: Reactor) {
    let scratch = Scratch::new();
    let file = reactor.driver().open(&scratch.0, How::default()).expect("open");
    assert_eq!(write(&reactor, &file, 4096, data(reactor.arena(), 0, 100_000, 100_000)).await, Ok(100_000));
    assert_eq!(write(&reactor, &file, 200_000, data(reactor.arena(), 7, 5000, 17)).await, Ok(5000));
    let expected: Vec<u8> = (0..100_000).map(pattern).collect();
    assert_eq!(read(&reactor, &file, 4096, 100_000, 100_000).await, expected);
    assert_eq!(read(&reactor, &file, 4096, 100_000, 333).await, expected);
    assert_eq!(read(&reactor, &file, 200_000, 5000, 5000).await, (7..5007).map(pattern).collect::<Vec<u8>>());
    assert_eq!(read(&reactor, &file, 0, 4096, 4096).await, vec![0; 4096]);
    assert_eq!(read(&reactor, &file, 0, 0, 1).await, vec![0; 0]);
}

async fn reads_past_the_end_are_faults(reactor: Reactor) {
    let scratch = Scratch::new();
    let file = reactor.driver().open(&scratch.0, How::default()).expect("open");
    let past = async |offset, len, piece| {
        let into = memory(reactor.arena(), len, piece);
        let outcome = run_op(&reactor, Op::Read { file: file.clone(), offset, into }).await;
        (outcome.result, outcome.data.len())
    };
    assert_eq!(past(0, 100, 7).await, (Err(Fault::Medium), 100));
    assert_eq!(write(&reactor, &file, 0, data(reactor.arena(), 0, 100, 100)).await, Ok(100));
    assert_eq!(read(&reactor, &file, 50, 50, 13).await, (50..100).map(pattern).collect::<Vec<u8>>());
    assert_eq!(past(50, 51, 51).await, (Err(Fault::Medium), 51));
    assert_eq!(past(50, 5000, 13).await, (Err(Fault::Medium), 5000));
    assert_eq!(past(1 << 40, 5000, 5000).await, (Err(Fault::Medium), 5000));
    drop(file);
    let how = How { read_only: true, ..How::default() };
    let file = reactor.driver().open(&scratch.0, how).expect("open");
    assert_eq!(write(&reactor, &file, 0, data(reactor.arena(), 0, 10, 10)).await, Err(Fault::Gone));
}

async fn reads_of_uncached_data(reactor: Reactor) {
    const LEN: usize = 1 << 20;
    let scratch = Scratch::new();
    let file = reactor.driver().open(&scratch.0, How::default()).expect("open");
    assert_eq!(write(&reactor, &file, 0, data(reactor.arena(), 0, LEN, LEN)).await, Ok(LEN as u32));
    assert_eq!(run_op(&reactor, Op::Sync { file: file.clone() }).await.result, Ok(0));
    let expected: Vec<u8> = (0..LEN).map(pattern).collect();
    let other = std::fs::File::open(&scratch.0).expect("open");
    // All of it, its second half, its middle.
    for (offset, len) in [(0, LEN), (LEN / 2, LEN / 2), (LEN / 4, LEN / 2)] {
        let advice = rustix::fs::Advice::DontNeed;
        let len = std::num::NonZeroU64::new(len as u64);
        rustix::fs::fadvise(&other, offset as u64, len, advice).expect("advised");
        assert_eq!(read(&reactor, &file, 0, LEN, 100_000).await, expected);
    }
}

async fn pieces_beyond_one_call_are_moved(reactor: Reactor) {
    let len = 3000;
    let scratch = Scratch::new();
    let file = reactor.driver().open(&scratch.0, How::default()).expect("open");
    assert_eq!(write(&reactor, &file, 3, data(reactor.arena(), 0, len, 1)).await, Ok(len as u32));
    let expected: Vec<u8> = (0..len).map(pattern).collect();
    assert_eq!(read(&reactor, &file, 3, len, 1).await, expected);
    let (near, far) = pair(&reactor).await;
    let mut completion = Completion::new();
    let sent = reactor.send(&near, data(reactor.arena(), 0, len, 1), &mut completion).await;
    assert_eq!(sent, Ok(len));
    receive_pattern(&reactor, &far, len, 2000, 1).await;
}

async fn durable_writes_and_syncs_answer(reactor: Reactor) {
    let scratch = Scratch::new();
    let file = reactor.driver().open(&scratch.0, How::default()).expect("open");
    for piece in [100, 8192] {
        let data = data(reactor.arena(), 0, 8192, piece);
        let outcome = run_op(&reactor, Op::Write { file: file.clone(), offset: 0, data, durable: true }).await;
        assert_eq!(outcome.result, Ok(8192));
        assert!(matches!(outcome.data, Data::Out(sg) if sg.len() == 8192));
    }
    assert_eq!(run_op(&reactor, Op::Sync { file: file.clone() }).await.result, Ok(0));
    let how = How { durable: true, ..How::default() };
    let file = reactor.driver().open(&scratch.0, how).expect("open");
    assert_eq!(write(&reactor, &file, 0, data(reactor.arena(), 0, 100, 100)).await, Ok(100));
}

async fn extent(reactor: &Reactor, file: &Handle, offset: u64, len: u64) -> Extent {
    let outcome = run_op(reactor, Op::Extent { file: file.clone(), offset, len }).await;
    assert_eq!(outcome.result, Ok(0));
    outcome.extent
}

async fn holes_are_punched_zeroed_and_found(reactor: Reactor) {
    const MIB: u64 = 1 << 20;
    let scratch = Scratch::new();
    let file = reactor.driver().open(&scratch.0, How::default()).expect("open");
    assert_eq!(write(&reactor, &file, 0, data(reactor.arena(), 0, 3 << 20, 1 << 20)).await, Ok(3 << 20));
    assert_eq!(extent(&reactor, &file, 0, 10 * MIB).await, Extent { len: 3 * MIB, mapped: true });
    assert_eq!(extent(&reactor, &file, 0, MIB).await, Extent { len: MIB, mapped: true });
    assert_eq!(extent(&reactor, &file, 5 * MIB, MIB).await, Extent { len: MIB, mapped: false });
    for (how, offset) in [(Allocate::Punch, MIB), (Allocate::Zero, 2 * MIB)] {
        let result = run_op(&reactor, Op::Allocate { file: file.clone(), how, offset, len: MIB }).await.result;
        // Not every file system can zero a range without writing.
        assert!(result == Ok(0) || (how == Allocate::Zero && result == Err(Fault::Unsupported)), "{result:?}");
        if result == Ok(0) {
            assert!(read(&reactor, &file, offset, 1 << 20, 1 << 20).await.iter().all(|b| *b == 0));
        }
    }
    let outcome = run_op(&reactor, Op::Space { file: file.clone() }).await;
    let Data::Space(space) = outcome.data else { panic!("the answer is {outcome:?}") };
    assert!(outcome.result == Ok(0) && space.used >= MIB && space.available > 0, "{space:?}");
    assert_eq!(extent(&reactor, &file, 0, 3 * MIB).await, Extent { len: MIB, mapped: true });
    let hole = extent(&reactor, &file, MIB, MIB).await;
    assert_eq!(hole, Extent { len: MIB, mapped: false });
    assert_eq!(read(&reactor, &file, 0, 10, 10).await, (0..10).map(pattern).collect::<Vec<u8>>());
}

async fn files_are_copied_by_the_kernel(reactor: Reactor) {
    let (one, other) = (Scratch::new(), Scratch::new());
    let from = reactor.driver().open(&one.0, How::default()).expect("open");
    let file = reactor.driver().open(&other.0, How::default()).expect("open");
    assert_eq!(write(&reactor, &from, 4096, data(reactor.arena(), 0, 1 << 20, 1 << 20)).await, Ok(1 << 20));
    let op = Op::Copy { from: from.clone(), at: 4096, file: file.clone(), offset: 8192, len: 1 << 20 };
    match run_op(&reactor, op).await.result {
        Ok(_) => {}
        Err(Fault::Unsupported) => return eprintln!("skipped: this kernel does not copy here"),
        Err(why) => panic!("{why:?}"),
    }
    let copy = read(&reactor, &file, 8192, 1 << 20, 1 << 20).await;
    assert!(copy == read(&reactor, &from, 4096, 1 << 20, 1 << 20).await);
    // Within a file, without alignment; and past the end of the file.
    let within = |at, len| Op::Copy { from: file.clone(), at, file: file.clone(), offset: 4 << 20, len };
    assert_eq!(run_op(&reactor, within(8193, 1000)).await.result, Ok(0));
    assert!(read(&reactor, &file, 4 << 20, 1000, 1000).await == copy[1..1001]);
    assert_eq!(run_op(&reactor, within(9 << 20, 1000)).await.result, Err(Fault::Medium));
    // The caller does not keep the source open; the operation does.
    let mut completion = Completion::new();
    reactor.submit(Op::Copy { from, at: 4096, file: file.clone(), offset: 0, len: 4096 }, completion.token());
    assert_eq!(completion.wait().await.result, Ok(0));
    assert!(read(&reactor, &file, 0, 4096, 4096).await == copy[..4096]);
}

async fn device_requests_on_a_file_are_unsupported(reactor: Reactor) {
    let scratch = Scratch::new();
    let file = reactor.driver().open(&scratch.0, How::default()).expect("open");
    for how in [Allocate::Discard, Allocate::ZeroOut] {
        let result = run_op(&reactor, Op::Allocate { file: file.clone(), how, offset: 0, len: 4096 }).await.result;
        assert_eq!(result, Err(Fault::Unsupported));
    }
}

/// Operations that worker threads execute, on both drivers.
fn blocking_ops(file: &Handle) -> [Op; 3] {
    [
        Op::Extent { file: file.clone(), offset: 0, len: 4096 },
        Op::Allocate { file: file.clone(), how: Allocate::Punch, offset: 0, len: 4096 },
        Op::Extent { file: file.clone(), offset: 4096, len: 4096 },
    ]
}

async fn a_device_that_hangs_does_not_delay_another(reactor: Reactor) {
    let scratch = Scratch::new();
    let hanging = match HangingFile::mount(&scratch.0.with_extension("hanging")) {
        Ok(hanging) => hanging,
        Err(why) => return eprintln!("skipped: a FUSE file system cannot be mounted here: {why}"),
    };
    let stuck = reactor.driver().open(&hanging.path, How::default()).expect("open");
    let file = reactor.driver().open(&scratch.0, How::default()).expect("open");
    assert_eq!(write(&reactor, &file, 0, data(reactor.arena(), 0, 8192, 8192)).await, Ok(8192));
    let (other, answers) = (reactor.clone(), Rc::new(RefCell::new(Vec::new())));
    let all: Vec<Op> = (0..4).flat_map(|_| blocking_ops(&stuck)).collect();
    let count = all.len();
    for op in all {
        let (reactor, answers) = (other.clone(), answers.clone());
        other.spawn(async move {
            let result = run_op(&reactor, op).await.result;
            answers.borrow_mut().push(result);
        });
    }
    while hanging.held() == 0 {
        reactor.sleep(Duration::from_millis(1)).await;
    }
    for _ in 0..10 {
        for op in blocking_ops(&file) {
            assert_eq!(run_op(&reactor, op).await.result, Ok(0));
        }
        assert_eq!(write(&reactor, &file, 0, data(reactor.arena(), 0, 100, 100)).await, Ok(100));
        assert_eq!(read(&reactor, &file, 0, 100, 100).await.len(), 100);
    }
    assert!(answers.borrow().is_empty(), "the device that hangs answered");
    reactor.driver().cancel(&stuck);
    reactor.end_of_turn().await;
    let cancelled = answers.borrow().len();
    assert!(cancelled > 0 && cancelled < count, "{cancelled} of {count} had not begun");
    assert!(answers.borrow().iter().all(|result| *result == Err(Fault::Aborted)));
    hanging.release();
    while answers.borrow().len() < count {
        reactor.sleep(Duration::from_millis(1)).await;
    }
    assert!(answers.borrow().iter().all(Result::is_err));
}

async fn a_core_ends_although_a_device_hangs(reactor: Reactor) {
    let scratch = Scratch::new();
    let hanging = match HangingFile::mount(&scratch.0.with_extension("hanging")) {
        Ok(hanging) => hanging,
        Err(why) => return eprintln!("skipped: a FUSE file system cannot be mounted here: {why}"),
    };
    let stuck = reactor.driver().open(&hanging.path, How::default()).expect("open");
    let [extent, ..] = blocking_ops(&stuck);
    drop(stuck);
    let mut completion = Completion::new();
    reactor.submit(extent, completion.token());
    while hanging.held() == 0 {
        reactor.sleep(Duration::from_millis(1)).await;
    }
    // The driver waits for the worker thread; the answer comes before the timeout.
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(hanging);
    });
}

async fn many_file_operations_at_once(reactor: Reactor) {
    let scratch = Scratch::new();
    let file = reactor.driver().open(&scratch.0, How::default()).expect("open");
    let count = 2500;
    let mut completions: Vec<Completion> = (0..count).map(|_| Completion::new()).collect();
    for round in 0..2 {
        for (i, completion) in completions.iter_mut().enumerate() {
            let (offset, file) = ((i * PAGE) as u64, file.clone());
            let op = match round {
                0 => Op::Write { file, offset, data: data(reactor.arena(), i, PAGE, PAGE), durable: false },
                _ => Op::Read { file, offset, into: memory(reactor.arena(), PAGE, PAGE) },
            };
            reactor.submit(op, completion.token());
        }
        for (i, completion) in completions.iter().enumerate() {
            let outcome = completion.wait().await;
            assert_eq!(outcome.result, Ok(PAGE as u32));
            if let Data::In(sg) = outcome.data {
                assert!(sg.share().to_vec().iter().enumerate().all(|(at, b)| *b == pattern(i + at)));
            }
        }
    }
}

async fn more_operations_than_the_rings_hold(reactor: Reactor) {
    const COUNT: usize = 20_000;
    let null = reactor.driver().open("/dev/null".as_ref(), How::default()).expect("open");
    let (near, far) = pair(&reactor).await;
    let byte = data(reactor.arena(), 0, 1, 1);
    let mut completions: Vec<Completion> = (0..COUNT).map(|_| Completion::new()).collect();
    let mut refused = 0;
    for (i, completion) in completions.iter_mut().enumerate() {
        let op = match i % 2 {
            0 => Op::Write { file: null.clone(), offset: 0, data: byte.clone(), durable: false },
            _ => Op::Send { socket: near.clone(), data: byte.clone() },
        };
        reactor.submit(op, completion.token());
    }
    for completion in &completions {
        match completion.wait().await.result {
            // The queue of the workers is bounded.
            Err(Fault::NoMemory) => refused += 1,
            result => assert_eq!(result, Ok(1)),
        }
    }
    assert!(refused == 0 || reactor.driver().name() == "epoll");
    let mut completion = Completion::new();
    let mut left = COUNT / 2;
    while left > 0 {
        let (result, _) = reactor.receive(&far, memory(reactor.arena(), 65536, 65536), &mut completion).await;
        left -= result.expect("received");
    }
}

async fn direct_reads_and_writes(reactor: Reactor) {
    let scratch = Scratch::new();
    let how = How { direct: true, ..How::default() };
    // Some file systems cannot.
    let Ok(file) = reactor.driver().open(&scratch.0, how) else { return };
    assert_eq!(write(&reactor, &file, 0, data(reactor.arena(), 0, 4 * PAGE, PAGE)).await, Ok(4 * PAGE as u32));
    std::fs::OpenOptions::new().append(true).open(&scratch.0).and_then(|mut f| f.write_all(b"tail")).expect("a tail");
    let expected: Vec<u8> = (0..4 * PAGE).map(pattern).collect();
    assert_eq!(read(&reactor, &file, 0, 4 * PAGE, 4 * PAGE).await, expected);
    assert_eq!(read(&reactor, &file, 0, 4 * PAGE, 2 * PAGE).await, expected);
    for piece in [2 * PAGE, 8 * PAGE] {
        let into = memory(reactor.arena(), 8 * PAGE, piece);
        let outcome = run_op(&reactor, Op::Read { file: file.clone(), offset: 0, into }).await;
        assert_eq!(outcome.result, Err(Fault::Medium), "the file ends inside a sector");
    }
}

async fn a_missing_file_is_an_error(reactor: Reactor) {
    let error = reactor.driver().open("/nonexistent/file".as_ref(), How::default()).expect_err("missing");
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

async fn operations_under_way_at_the_end_are_harmless(reactor: Reactor) {
    let (near, far) = pair(&reactor).await;
    let scratch = Scratch::new();
    let file = reactor.driver().open(&scratch.0, How::default()).expect("open");
    let (listener, _) = reactor.driver().listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("listening");
    let outcomes = Rc::new(RefCell::new(Vec::new()));
    let ops = [
        Op::Receive { socket: near.clone(), into: memory(reactor.arena(), 10_000, 100), at_once: false },
        Op::Receive { socket: near.clone(), into: memory(reactor.arena(), 10_000, 100), at_once: false },
        Op::Send { socket: near, data: data(reactor.arena(), 0, 10 << 20, 1 << 20) },
        Op::Accept { listener },
        Op::Read { file: file.clone(), offset: 0, into: memory(reactor.arena(), 10_000, 100) },
        Op::Extent { file, offset: 0, len: 100 },
    ];
    for op in ops {
        let (reactor, outcomes) = (reactor.clone(), outcomes.clone());
        reactor.clone().spawn(async move {
            let outcome = run_op(&reactor, op).await;
            outcomes.borrow_mut().push(outcome);
        });
    }
    reactor.end_of_turn().await;
    drop(far);
}

async fn statistics_count_bytes(reactor: Reactor) {
    let (near, far) = pair(&reactor).await;
    let mut completion = Completion::new();
    for i in 0..3 {
        let sent = reactor.send(&near, data(reactor.arena(), i * 100, 100, 100), &mut completion).await;
        assert_eq!(sent, Ok(100));
    }
    receive_pattern(&reactor, &far, 300, 1000, 1000).await;
    reactor.sleep(Duration::from_millis(1)).await;
    let stats = reactor.stats();
    assert_eq!((stats.sends.get(), stats.sent_bytes.get(), stats.received_bytes.get()), (3, 300, 300));
    assert!(stats.receives.get() >= 1 && stats.turns.get() > 0 && stats.busy_nanoseconds.get() > 0);
}

async fn a_peer_that_never_pauses_is_served_several_times_a_turn(reactor: Reactor) {
    const ROOM: usize = 64;
    const COUNT: usize = 1000;
    let (near, far) = pair(&reactor).await;
    let mut completion = Completion::new();
    for at_once in [true, false] {
        let all = data(reactor.arena(), 0, COUNT * ROOM, COUNT * ROOM);
        assert_eq!(reactor.send(&near, all, &mut completion).await, Ok(COUNT * ROOM));
        let (mut turns, mut in_row, mut rows) = (0, 0, Vec::new());
        for _ in 0..COUNT {
            let into = memory(reactor.arena(), ROOM, ROOM);
            let (result, _) = reactor.receive_in_row(&far, into, at_once, &mut completion).await;
            assert_eq!(result, Ok(ROOM));
            if turns != reactor.stats().turns.get() {
                turns = reactor.stats().turns.get();
                rows.push(std::mem::take(&mut in_row));
            }
            in_row += 1;
        }
        rows.push(in_row);
        let longest = rows.into_iter().max().expect("the last");
        assert!(
            longest <= 1 + u32::from(crate::endpoint::stream::RECEIVES_AT_ONCE),
            "other sockets waited for {longest} receives"
        );
        assert!(!at_once || longest > 1, "each took a turn");
    }
}

#[test]
fn memory_of_a_read_that_never_ends_is_not_freed_with_the_core() {
    let scratch = Scratch::new();
    let hanging = match HangingFile::mount(&scratch.0.with_extension("hanging")) {
        Ok(hanging) => hanging,
        Err(why) => return eprintln!("skipped: a FUSE file system cannot be mounted here: {why}"),
    };
    let reactor = reactor(Choice::Epoll);
    let arena = reactor.arena().clone();
    let file = reactor.driver().open(&hanging.path, How::default()).expect("open");
    let mut completion = Completion::new();
    let into = memory(&arena, PAGE, PAGE);
    reactor.submit(Op::Read { file: file.clone(), offset: 0, into }, completion.token());
    reactor.run(async {
        while hanging.held() == 0 {
            reactor.sleep(Duration::from_millis(1)).await;
        }
    });
    drop((file, reactor));
    assert_eq!(arena.used(), PAGE, "the worker thread may still write to it");
}

/// Prevents this thread from creating rings, as container profiles do.
fn forbid_io_uring() {
    let statement = |code: u32, k: u32, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        // The number of the call is the first word of the data of a filter.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_io_uring_setup as u32, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program, whose length is stated correctly.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(result, 0);
}

#[test]
fn where_io_uring_is_refused_epoll_takes_its_place() {
    let refused = || {
        forbid_io_uring();
        let config = |driver| Config { driver, arena_bytes: 1 << 20, ..Config::default() };
        assert!(Reactor::new(config(Choice::IoUring)).is_err());
        let reactor = Reactor::new(config(Choice::Auto)).expect("epoll");
        assert_eq!(reactor.driver().name(), "epoll");
        reactor.run(reactor.sleep(Duration::from_millis(1)));
    };
    std::thread::spawn(refused).join().expect("no panic");
    let config = Config { driver: Choice::Auto, arena_bytes: 1 << 20, ..Config::default() };
    assert_eq!(Reactor::new(config).expect("io_uring").driver().name(), "io_uring");
}

/// Processor time of this thread.
pub(super) fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that the call may write.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn an_idle_core_costs_nothing() {
    for driver in [Choice::IoUring, Choice::Epoll] {
        let reactor = reactor(driver);
        reactor.run(async {
            let (near, far) = pair(&reactor).await;
            let mut completion = Completion::new();
            let token = completion.token();
            reactor.submit(
                Op::Receive { socket: far.clone(), into: memory(reactor.arena(), 100, 100), at_once: false },
                token,
            );
            let before = thread_time();
            reactor.sleep(Duration::from_secs(1)).await;
            let used = thread_time() - before;
            assert!(used < Duration::from_millis(10), "{driver:?}: {used:?}");
            drop(near);
        });
    }
}

#[test]
fn a_load_is_polled_for_and_its_end_is_not() {
    for driver in [Choice::IoUring, Choice::Epoll] {
        let spin = Spin { limit: Duration::from_millis(2) };
        let config = Config { driver, arena_bytes: ARENA, spin, ..Config::default() };
        let reactor = Reactor::new(config).expect("a driver");
        reactor.run(async {
            let (near, far) = pair(&reactor).await;
            let mut completion = Completion::new();
            for _ in 0..200 {
                let sent = reactor.send(&near, data(reactor.arena(), 0, 100, 100), &mut completion).await;
                assert_eq!(sent, Ok(100));
                receive_pattern(&reactor, &far, 100, 100, 100).await;
                reactor.sleep(Duration::from_micros(100)).await;
            }
            let sleeps = reactor.stats().sleeps.get();
            assert!(sleeps < 150, "{driver:?}: slept {sleeps} times");
            let before = thread_time();
            reactor.sleep(Duration::from_millis(300)).await;
            let used = thread_time() - before;
            assert!(used < Duration::from_millis(20), "{driver:?}: {used:?}");
        });
    }
}

//! Hosts that hold commands back, and their neighbours on the same core.

use super::*;
use crate::fuzzing::{capsule, h2c_data};
use crate::wire::{CapsuleResp, IcReq, LAST, Pdu, R2t};
use lunar_core::mem::Arena;
use lunar_core::time::Instant;
use lunar_nvme::command::Sqe;
use lunar_nvme::fuzzing::{NQN, Rig as Nvme, connect_data, connect_sqe, entry};
use lunar_reactor::op::Handle;
use lunar_reactor::sim::{Host, Peer, World};
use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use zerocopy::IntoBytes;

const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 4420);
/// Commands of a queue of 128 entries.
const DEPTH: u16 = 127;
const BYTES: u32 = 128 << 10;
const READ: u8 = 0x02;
const WRITE: u8 = 0x01;
/// Longer than the front waits for data that it has asked for.
const TOO_LATE: Duration = Duration::from_secs(70);

struct Rig {
    world: World,
    core: Reactor,
    listener: Handle,
    front: Rc<Front>,
    nvme: Nvme,
}

/// A host at one queue.
struct Queue {
    peer: Peer,
    received: Vec<u8>,
    controller: u16,
}

impl Queue {
    async fn send(&self, bytes: &[u8]) {
        self.peer.send(bytes).await.expect("the connection is there");
    }

    /// The next so many bytes.
    async fn take(&mut self, count: usize) -> Vec<u8> {
        while self.received.len() < count {
            let more = self.peer.receive(1 << 20).await.expect("the connection was not reset");
            assert!(!more.is_empty(), "the connection was closed");
            self.received.extend(more);
        }
        self.received.drain(..count).collect()
    }

    /// The status of the next completion; data and requests before it are dropped.
    async fn status(&mut self) -> u16 {
        loop {
            let head = self.take(8).await;
            let len = u32::from_le_bytes(*head[4..].first_chunk().expect("four bytes")) as usize;
            let pdu = [head, self.take(len - 8).await].concat();
            if let Some(response) = CapsuleResp::of(&pdu).filter(|response| response.common.kind == 5) {
                self.controller = response.result.get() as u16;
                return response.status.get() >> 1;
            }
            if let Some(r2t) = R2t::of(&pdu).filter(|r2t| r2t.common.kind == 9) {
                let data = vec![7; r2t.data_len.get() as usize];
                self.send(&h2c_data(r2t.cid.get(), r2t.tag.get(), r2t.offset.get(), &data, LAST, 0)).await;
            }
        }
    }

    async fn call(&mut self, sqe: &Sqe, data: &[u8]) -> u16 {
        self.send(&capsule(sqe, data, 0)).await;
        self.status().await
    }
}

/// A command of so many bytes, whose data, if it sends some, comes with it or is asked for.
fn command(opcode: u8, cid: u16, bytes: u32, in_capsule: bool) -> Sqe {
    let mut sqe = entry(opcode, 1, &[0, 0, bytes / 512 - 1]);
    (sqe.flags, sqe.cid, sqe.sgl.length) = (0x40, cid.into(), bytes.into());
    sqe.sgl.kind = if in_capsule { 0x01 } else { 0x5a };
    sqe
}

impl Rig {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        world.set_deadline(Instant(0) + Duration::from_secs(3600));
        let core = Reactor::with_driver(world.core(Host(1)), Arena::new(64 << 20), Arc::default());
        let (listener, _) = core.driver().listen(ADDRESS).expect("the address is free");
        let nvme = Nvme::default();
        // Commands take slots.
        nvme.memories.iter().for_each(|memory| memory.is_slow.set(true));
        let settings = Settings { advertise: None, tls: None, drain: Duration::from_secs(1) };
        let front = Front::new(&core, &nvme.subsystem, settings);
        Self { world, core, listener, front, nvme }
    }

    fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let (result, has_ended) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(false)));
        let (to, ended) = (result.clone(), has_ended.clone());
        self.core.spawn(async move {
            to.set(Some(future.await));
            ended.set(true);
        });
        self.world.run(&[&self.core], || has_ended.get());
        result.take().expect("the future has ended")
    }

    /// A queue of this host; of a new controller if there is none.
    fn connect(&self, host: u8, queue: u16, controller: u16) -> Queue {
        let peer = self.world.connect(ADDRESS);
        let (core, listener) = (self.core.clone(), self.listener.clone());
        let incoming = self.run(async move { core.accept(&listener).await.expect("a connection") });
        self.front.serve(incoming, PortalRef::default());
        self.run(async move {
            let mut queue_end = Queue { peer, received: Vec::new(), controller };
            queue_end.send(IcReq::blank(0).as_bytes()).await;
            queue_end.take(128).await;
            let mut sqe = connect_sqe(queue, DEPTH);
            (sqe.flags, sqe.sgl.kind) = (0x40, 0x01);
            let data = connect_data(host, controller, NQN);
            assert_eq!(queue_end.call(&sqe, data.as_bytes()).await, 0, "Connect");
            queue_end
        })
    }

    /// A host with an admin queue and so many I/O queues.
    fn host(&self, host: u8, queues: u16) -> (Queue, Vec<Queue>) {
        let mut admin = self.connect(host, 0, 0xffff);
        let controller = admin.controller;
        let admin = self.run(async move {
            let mut enable = entry(0x7f, 0, &[0, 0x14, 0x46_0001, 0]);
            (enable.flags, enable.sgl.length) = (0x40, 0.into());
            assert_eq!(admin.call(&enable, &[]).await, 0, "Property Set of CC.EN");
            admin
        });
        (admin, (1..=queues).map(|queue| self.connect(host, queue, controller)).collect())
    }

    /// Checks that the commands of another host succeed in time.
    fn neighbour_is_well(&self, told: &str) {
        let begun = self.core.now();
        let (mut admin, mut queues) = self.host(200, 1);
        let mut io = queues.remove(0);
        self.run(async move {
            let mut property = entry(0x7f, 4, &[0, 0x1c]);
            (property.flags, property.sgl.length) = (0x40, 0.into());
            for cid in 0..100 {
                assert_eq!(admin.call(&property, &[]).await, 0, "Property Get of CSTS");
                assert_eq!(io.call(&command(READ, cid, 4096, false), &[]).await, 0, "read {cid}");
                assert_eq!(io.call(&command(WRITE, cid, 4096, true), &[9; 4096]).await, 0, "write {cid}");
                assert_eq!(io.call(&command(WRITE, cid, 65536, false), &[]).await, 0, "large write {cid}");
            }
        });
        let took = self.core.now().since(begun);
        assert!(took < Duration::from_secs(5), "{told}: 400 commands took {took:?}");
    }

    /// Has each queue send a full queue of commands, whatever comes back.
    fn flood(&self, queues: Vec<Queue>, opcode: u8) -> Vec<Queue> {
        self.run(async move {
            for queue in &queues {
                for cid in 0..DEPTH {
                    queue.send(&capsule(&command(opcode, cid, BYTES, false), &[], 0)).await;
                }
            }
            queues
        })
    }

    fn idle(&self, time: Duration) {
        let core = self.core.clone();
        self.run(async move { core.sleep(time).await });
    }
}

#[test]
fn a_host_that_does_not_read_leaves_slots_and_memory_to_the_others() {
    for seed in 0..2 {
        let rig = Rig::new(seed);
        // All of them come from one address, as the neighbour does.
        let (_admin, queues) = rig.host(1, 17);
        let _queues = rig.flood(queues, READ);
        rig.idle(Duration::from_millis(100));
        assert!(rig.front.slots.free() > SLOTS / 2, "reads that have no room take no slots: {:?}", rig.front.slots);
        rig.neighbour_is_well("unread reads");
        assert_eq!(rig.core.stats().task_set_full.get(), 0);
    }
}

#[test]
fn a_host_that_does_not_answer_r2ts_leaves_slots_and_memory_to_the_others_and_is_ended() {
    for seed in 0..2 {
        let rig = Rig::new(seed);
        let (_admin, queues) = rig.host(1, 20);
        let queues = rig.flood(queues, WRITE);
        rig.idle(Duration::from_millis(100));
        rig.neighbour_is_well("unanswered R2Ts");
        assert_eq!(rig.core.stats().task_set_full.get(), 0);
        rig.idle(Duration::from_secs(5));
        assert_eq!(rig.front.connections(), 21, "the neighbour has left");
        rig.idle(3 * TOO_LATE);
        assert_eq!(rig.front.connections(), 1, "the admin queue is left after the deadline for H2CData");
        drop(queues);
        rig.neighbour_is_well("later");
    }
}

#[test]
fn commands_that_wait_for_a_slot_are_aborted_and_leave_with_their_connection() {
    let rig = Rig::new(7);
    let (admin, queues) = rig.host(1, 20);
    let queues = rig.flood(queues, WRITE);
    rig.idle(Duration::from_millis(100));
    assert!(rig.core.stats().slot_waits.get() > 0 && rig.front.shares.waiting.held() > 0);
    drop((admin, queues));
    rig.idle(Duration::from_secs(5));
    assert_eq!((rig.front.connections(), rig.front.shares.waiting.held(), rig.front.shares.io.held()), (0, 0, 0));
    assert_eq!(rig.core.arena().unsolicited(), 0);
    assert!(rig.nvme.subsystem.queues().len() <= 2, "those of the rig");
    assert!(rig.core.now() > Instant(0));
}

use super::*;
use crate::command;
use lunar_nvme_tcp::wire::digest;
use std::rc::Rc;

/// A queue and its simulated controller.
struct Conversation {
    queue: Queue,
    digests: u8,
}

/// The events of a queue, as owned values.
#[derive(Default, PartialEq, Eq, Debug)]
struct Events {
    controller: Option<u16>,
    data: Vec<(u32, u32, Vec<u8>)>,
    done: Vec<(u32, Status, bool, u64)>,
}

fn connect() -> Connect {
    Connect {
        queue: 1,
        entries: 8,
        controller: 5,
        keep_alive: 0,
        flow_control: false,
        subsystem: "nqn.x".into(),
        host: "nqn.h".into(),
        host_id: [7; 16],
    }
}

/// The bytes of a PDU that a controller sends.
fn emit<P: Pdu>(pdu: P, data: &[u8], digests: u8) -> Vec<u8> {
    let mut output = Output { header_digest: digests & 1 != 0, data_digest: digests & 2 != 0, ..Output::default() };
    output.pdu(pdu, Some(&Data::new(data.into())));
    output.queue.to_vec()
}

fn response(cid: u16, status: u16, result: u64) -> CapsuleResp {
    CapsuleResp { cid: cid.into(), status: (status << 1).into(), result: result.into(), ..CapsuleResp::blank(0) }
}

fn c2h(cid: u16, offset: u32, len: u32, flags: u8) -> C2hData {
    C2hData { cid: cid.into(), offset: offset.into(), data_len: len.into(), ..C2hData::blank(flags) }
}

fn r2t(cid: u16, tag: u16, offset: u32, len: u32) -> R2t {
    R2t { cid: cid.into(), tag: tag.into(), offset: offset.into(), data_len: len.into(), ..R2t::blank(0) }
}

impl Conversation {
    fn start(digests: u8) -> Self {
        let offer = Offer { header_digest: digests & 1 != 0, data_digest: digests & 2 != 0, in_capsule: 4096 };
        Self { queue: Queue::new(offer, connect()), digests }
    }

    fn live(digests: u8) -> Self {
        let mut conversation = Self::start(digests);
        let request = conversation.sent();
        assert_eq!((request.len(), &request[..12]), (128, &[0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, digests][..]));
        let answer = IcResp { digests, max_h2c_data: 8192.into(), ..IcResp::blank(0) };
        assert_eq!(conversation.receive(answer.as_bytes()), Ok(Events::default()));
        let asked = conversation.sent();
        let start = if digests & 1 == 0 { 72 } else { 76 };
        // Connect with its in-capsule data.
        assert_eq!((asked[0], asked[8], asked[12], asked[8 + 39]), (4, 0x7f, 1, AT_OFFSET));
        assert_eq!(
            (asked.len(), &asked[start..start + 16]),
            (start + 1024 + if digests & 2 == 0 { 0 } else { 4 }, &[7; 16][..])
        );
        let events = conversation.receive(&emit(response(0, 0, 5), &[], digests)).expect("connected");
        assert_eq!(events.controller, Some(5));
        conversation
    }

    fn sent(&mut self) -> Vec<u8> {
        let bytes = self.queue.output().to_vec();
        self.queue.sent(bytes.len());
        bytes
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<Events, Error> {
        let mut events = Events::default();
        self.queue.receive(bytes, &mut |event| match event {
            Event::Connected { controller } => events.controller = Some(controller),
            Event::Data { cookie, offset, bytes } => events.data.push((cookie, offset, bytes.to_vec())),
            Event::Done { cookie, status, retry, result } => events.done.push((cookie, status, retry, result)),
        })?;
        Ok(events)
    }

    /// Starts a command; returns its CID and the bytes that were sent.
    fn start_command(&mut self, cookie: u32, sqe: Sqe, moves: Moves) -> (u16, Vec<u8>) {
        self.queue.submit(Command { cookie, sqe, moves }).expect("room");
        let sent = self.sent();
        let capsule = CapsuleCmd::of(&sent).expect("a capsule");
        assert_eq!((capsule.common.kind, capsule.sqe.flags), (4, BY_LIST));
        (capsule.sqe.cid.get(), sent)
    }

    fn answer<P: Pdu>(&mut self, pdu: P, data: &[u8]) -> Result<Events, Error> {
        let bytes = emit(pdu, data, self.digests);
        self.receive(&bytes)
    }
}

#[test]
fn a_read_ends_with_its_last_c2h_data_or_with_a_response_capsule() {
    for digests in 0..4 {
        let mut conversation = Conversation::live(digests);
        let (cid, sent) = conversation.start_command(9, command::read(1, 0, 2, false), Moves::In(1024));
        assert_eq!((sent[8 + 39], &sent[8 + 32..8 + 36]), (BY_TRANSPORT, &[0, 4, 0, 0][..]));
        let events = conversation.answer(c2h(cid, 0, 512, 0), &[1; 512]).expect("good");
        assert_eq!((events.data.len(), events.done.len(), conversation.queue.outstanding()), (1, 0, 1));
        let events = conversation.answer(c2h(cid, 512, 512, LAST | SUCCESS), &[2; 512]).expect("good");
        assert_eq!((events.data, events.done), (vec![(9, 512, vec![2; 512])], vec![(9, Status::SUCCESS, false, 0)]));
        let (cid, _) = conversation.start_command(4, command::read(1, 0, 1, false), Moves::In(512));
        assert!(conversation.answer(c2h(cid, 0, 512, LAST), &[1; 512]).expect("good").done.is_empty());
        let events = conversation.answer(response(cid, 0, 0), &[]).expect("good");
        assert_eq!((events.done, conversation.queue.outstanding()), (vec![(4, Status::SUCCESS, true, 0)], 0));
    }
}

#[test]
fn short_writes_use_in_capsule_data_and_long_ones_wait_for_r2t() {
    for digests in 0..4 {
        let mut conversation = Conversation::live(digests);
        let data: Rc<[u8]> = (0..20_000_u32).map(|at| (at >> 4) as u8).collect();
        let small = Data::new(data.clone()).part(0..4096);
        let (cid, sent) = conversation.start_command(1, command::write(1, 0, 8, false), Moves::Out(small));
        let start = if digests & 1 == 0 { 72 } else { 76 };
        assert_eq!((sent[8 + 39], &sent[start..start + 4096]), (AT_OFFSET, &data[..4096]));
        assert_eq!(
            conversation.answer(response(cid, 0x4083, 0), &[]).expect("good").done,
            [(1, Status(0x083), false, 0)]
        );
        let (cid, sent) =
            conversation.start_command(2, command::write(1, 0, 40, false), Moves::Out(Data::new(data.clone())));
        assert_eq!((sent.len(), sent[8 + 39]), (start, BY_TRANSPORT));
        let mut got = Vec::new();
        for (tag, offset, len) in [(7, 0, 10_000), (8, 10_000, 10_000)] {
            conversation.answer(r2t(cid, tag, offset, len), &[]).expect("good");
            let bytes = conversation.sent();
            let mut at = 0;
            while at < bytes.len() {
                let pdu = H2cData::of(&bytes[at..]).expect("data");
                assert_eq!((pdu.common.kind, pdu.cid.get(), pdu.tag.get()), (6, cid, tag));
                assert_eq!(pdu.offset.get() as usize, got.len());
                let (start, count) = (at + usize::from(pdu.common.data_offset), pdu.data_len.get() as usize);
                assert!(count <= 8192);
                got.extend_from_slice(&bytes[start..start + count]);
                assert_eq!(pdu.common.flags & LAST != 0, got.len() == (offset + len) as usize);
                at += pdu.common.len.get() as usize;
            }
        }
        assert_eq!(got, *data);
        assert_eq!(conversation.answer(response(cid, 0, 3), &[]).expect("good").done, [(2, Status::SUCCESS, true, 3)]);
    }
}

#[test]
fn a_queue_is_full_when_one_entry_is_left() {
    let mut conversation = Conversation::start(0);
    assert_eq!(conversation.queue.room(), 0);
    assert!(conversation.queue.submit(Command { cookie: 0, sqe: command::flush(1), moves: Moves::Nothing }).is_err());
    let mut conversation = Conversation::live(0);
    for left in (0..7).rev() {
        conversation.start_command(left, command::flush(1), Moves::Nothing);
        assert_eq!(conversation.queue.room(), left);
    }
    assert!(conversation.queue.submit(Command { cookie: 0, sqe: command::flush(1), moves: Moves::Nothing }).is_err());
}

#[test]
fn connection_parameters_that_were_not_requested_end_the_queue() {
    let answered = |answer: IcResp| Conversation::start(1).receive(answer.as_bytes()).expect_err("refused");
    let good = IcResp { digests: 1, max_h2c_data: 4096.into(), ..IcResp::blank(0) };
    assert_eq!(Conversation::start(1).receive(good.as_bytes()), Ok(Events::default()));
    assert_eq!(answered(IcResp { digests: 0, ..good }), Error::Digests);
    assert!(matches!(answered(IcResp { version: 1.into(), ..good }), Error::Protocol(_)));
    assert!(matches!(answered(IcResp { max_h2c_data: 4094.into(), ..good }), Error::Protocol(_)));
    assert!(matches!(answered(IcResp { alignment: 32, ..good }), Error::Protocol(_)));
    let early = Conversation::start(0).receive(&emit(response(0, 0, 0), &[], 0));
    assert!(matches!(early, Err(Error::Protocol(_))));
    let mut conversation = Conversation::live(0);
    assert!(matches!(conversation.receive(IcResp::blank(0).as_bytes()), Err(Error::Protocol(_))));
    let mut refused = Conversation::start(0);
    refused.receive(IcResp { digests: 0, ..good }.as_bytes()).expect("good");
    let why = refused.receive(&emit(response(0, 0x182, 0x1_0010), &[], 0));
    assert_eq!(why, Err(Error::Connect(Status::CONNECT_PARAMETERS, 0x1_0010)));
}

#[test]
fn protocol_errors_of_the_controller_are_detected() {
    let read = |conversation: &mut Conversation| {
        conversation.start_command(1, command::read(1, 0, 2, false), Moves::In(1024)).0
    };
    let broken = |pdu: fn(u16) -> Vec<u8>| {
        let mut conversation = Conversation::live(0);
        let cid = read(&mut conversation);
        let bytes = pdu(cid);
        assert!(matches!(conversation.receive(&bytes), Err(Error::Protocol(_))), "{bytes:02x?}");
    };
    broken(|cid| emit(c2h(cid + 1, 0, 512, 0), &[0; 512], 0));
    broken(|cid| emit(c2h(cid, 512, 512, 0), &[0; 512], 0));
    broken(|cid| emit(c2h(cid, 0, 511, 0), &[0; 512], 0));
    broken(|cid| emit(c2h(cid, 0, 2048, 0), &[0; 2048], 0));
    broken(|cid| emit(c2h(cid, 0, 1024, SUCCESS), &[0; 1024], 0));
    broken(|cid| emit(c2h(cid, 0, 512, LAST | SUCCESS), &[0; 512], 0));
    broken(|cid| emit(response(cid, 0, 0), &[], 0));
    broken(|cid| emit(r2t(cid, 0, 0, 512), &[], 0));
    let mut conversation = Conversation::live(0);
    let data = Data::new(vec![0; 8192].into());
    let (cid, _) = conversation.start_command(1, command::write(1, 0, 16, false), Moves::Out(data));
    for wrong in [r2t(cid, 0, 0, 0), r2t(cid, 0, 4, 4), r2t(cid, 0, 0, 8196), r2t(cid + 1, 0, 0, 4)] {
        assert!(conversation.answer(wrong, &[]).is_err(), "{wrong:?}");
    }
    assert!(conversation.answer(c2h(cid, 0, 4, 0), &[0; 4]).is_err(), "data for a write");
}

#[test]
fn a_termination_request_reports_its_status() {
    let mut conversation = Conversation::live(3);
    let mut request = TermReq { status: 2.into(), information: 8.into(), ..TermReq::blank(0) };
    request.common.len = (24 + 72).into();
    let bytes = [request.as_bytes(), &[0x55; 72]].concat();
    assert_eq!(conversation.receive(&bytes), Err(Error::Terminated(FatalStatus::SEQUENCE, 8)));
}

#[test]
fn a_data_digest_mismatch_is_detected() {
    let mut conversation = Conversation::live(2);
    let (cid, _) = conversation.start_command(1, command::read(1, 0, 1, false), Moves::In(512));
    let mut bytes = emit(c2h(cid, 0, 512, LAST | SUCCESS), &[3; 512], 2);
    assert_eq!(bytes[24 + 512..], digest(&[3; 512]));
    bytes[100] ^= 1;
    assert_eq!(conversation.receive(&bytes), Err(Error::DataDigest));
}

proptest::proptest! {
    #[test]
    fn no_bytes_cause_a_panic(digests in 0u8..4, data in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
        let mut conversation = Conversation::live(digests);
        conversation.start_command(1, command::read(1, 0, 1, false), Moves::In(512));
        let _ = conversation.receive(&data);
        let _ = Conversation::start(digests).receive(&data);
        crate::fuzzing::controller(&data);
    }
}

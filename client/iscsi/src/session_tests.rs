use super::*;
use lunar_iscsi::text;
use lunar_iscsi::wire::{BHS_LEN, DIGEST_LEN, Digest, LoginStatus, LogoutOutcome, Stage, TRANSIT, digest, padded};
use std::rc::Rc;
use zerocopy::IntoBytes;

/// A session and the state of its simulated target.
struct Conversation {
    session: Session,
    stat_sn: u32,
    digests: (bool, bool),
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Done {
    cookie: u32,
    status: u8,
    residual: Residual,
    sense: Vec<u8>,
}

/// The events of a session, as owned values.
#[derive(Default, PartialEq, Eq, Debug)]
struct Events {
    data: Vec<(u32, u32, Vec<u8>)>,
    done: Vec<Done>,
    other: Vec<String>,
}

impl Conversation {
    /// A session in the full feature phase, whose target sent the keys `answers`. MaxCmdSN is 8.
    fn with(offer: Offer, answers: &[(&str, &str)]) -> Self {
        let mut conversation = Self { session: Session::new(offer), stat_sn: 7, digests: (false, false) };
        let [first] = &conversation.sent()[..] else { panic!("one request") };
        assert_eq!(LoginRequest::of(&first.0).flags, login_flags(Stage::SECURITY, Some(Stage::OPERATIONAL)));
        conversation.answer_login(Stage::SECURITY, Stage::OPERATIONAL, &[("AuthMethod", "None")]).expect("accepted");
        let [second] = &conversation.sent()[..] else { panic!("one request") };
        let second = LoginRequest::of(&second.0);
        assert_eq!((second.exp_stat_sn.get(), second.cmd_sn.get()), (8, FIRST_CMD_SN));
        assert!(second.first.is_immediate());
        let events = conversation.answer_login(Stage::OPERATIONAL, Stage::FULL_FEATURE, answers).expect("accepted");
        assert_eq!(events.other, ["LoggedIn"]);
        conversation.digests = (conversation.session.agreed().header_digest, conversation.session.agreed().data_digest);
        conversation
    }

    fn new() -> Self {
        Self::with(
            offer(),
            &[("InitialR2T", "No"), ("FirstBurstLength", "16384"), ("MaxRecvDataSegmentLength", "8192")],
        )
    }

    fn answer_login(&mut self, stage: Stage, next: Stage, keys: &[(&str, &str)]) -> Result<Events, Error> {
        let mut text = Vec::new();
        keys.iter().for_each(|(key, value)| text::put(&mut text, key, value));
        let mut answer = LoginResponse::blank();
        answer.flags = login_flags(stage, Some(next));
        answer.tsih.set(1);
        answer.max_cmd_sn.set(8);
        answer.exp_cmd_sn.set(1);
        self.receive_status(answer, &text)
    }

    /// Sends a PDU with the next StatSN.
    fn receive_status<P: Pdu>(&mut self, pdu: P, data: &[u8]) -> Result<Events, Error> {
        let mut bytes = pdu;
        bytes.as_mut_bytes()[24..28].copy_from_slice(&self.stat_sn.to_be_bytes());
        self.stat_sn += 1;
        self.receive_pdu(bytes, data)
    }

    fn receive_pdu<P: Pdu>(&mut self, pdu: P, data: &[u8]) -> Result<Events, Error> {
        let bytes = self.bytes(pdu, data);
        self.receive(&bytes)
    }

    fn bytes<P: Pdu>(&self, mut pdu: P, data: &[u8]) -> Vec<u8> {
        pdu.as_mut_bytes()[5..8].copy_from_slice(U24::new(data.len()).as_bytes());
        let mut bytes = pdu.as_bytes().to_vec();
        if self.digests.0 {
            bytes.extend(digest(pdu.as_bytes()));
        }
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len() + padded(data.len()) - data.len(), 0);
        if self.digests.1 && !data.is_empty() {
            bytes.extend(Digest::new().update(data).pad(data.len()).bytes());
        }
        bytes
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<Events, Error> {
        let mut events = Events::default();
        self.session.receive(bytes, &mut |event| match event {
            Event::Data { cookie, offset, bytes } => events.data.push((cookie, offset, bytes.to_vec())),
            Event::Done { cookie, status, residual, sense, .. } => {
                events.done.push(Done { cookie, status, residual, sense: sense.to_vec() });
            }
            Event::Targets(text) => events.other.push(String::from_utf8_lossy(text).replace('\0', ";")),
            other => events.other.push(format!("{other:?}")),
        })?;
        Ok(events)
    }

    /// Takes the PDUs that the session sent since the last call; checks their digests.
    fn sent(&mut self) -> Vec<(Bhs, Vec<u8>)> {
        let bytes = self.session.output().to_vec();
        self.session.sent(bytes.len());
        let (mut rest, mut pdus) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let (header, after) = rest.split_at(BHS_LEN);
            let header = *Bhs::peek(header).expect("48 bytes");
            rest = after;
            if self.digests.0 {
                assert_eq!(rest[..DIGEST_LEN], digest(header.as_bytes()));
                rest = &rest[DIGEST_LEN..];
            }
            let (len, whole) = (header.data_len.get(), header.ahs_len() + header.padded_len());
            let data = rest[..header.ahs_len() + len].to_vec();
            if self.digests.1 && len > 0 {
                assert_eq!(rest[whole..whole + DIGEST_LEN], digest(&rest[..whole]));
                rest = &rest[DIGEST_LEN..];
            }
            rest = &rest[whole..];
            pdus.push((header, data));
        }
        pdus
    }

    fn read(&mut self, cookie: u32, len: u32) -> u32 {
        let command = Command { cookie, lun: [0; 8], cdb: &[0x28; 10], moves: Moves::In(len) };
        self.session.submit(command).expect("room");
        self.sent()[0].0.itt.get()
    }

    /// Starts a write; returns its tag and the PDUs that were sent.
    fn write(&mut self, cookie: u32, len: usize) -> (u32, Vec<(Bhs, Vec<u8>)>) {
        let command = Command { cookie, lun: [0, 3, 0, 0, 0, 0, 0, 0], cdb: &[0x2a; 10], moves: Moves::Out(data(len)) };
        self.session.submit(command).expect("room");
        let sent = self.sent();
        (sent[0].0.itt.get(), sent)
    }
}

fn offer() -> Offer {
    Offer { target: Some("iqn.x".into()), ..Offer::default() }
}

fn data(len: usize) -> Data {
    Data::new((0..len).map(|at| (at % 253) as u8).collect::<Rc<[u8]>>())
}

fn data_in(itt: u32, data_sn: u32, offset: u32, flags: u8) -> DataIn {
    let mut pdu = DataIn::blank();
    pdu.flags = flags;
    pdu.itt.set(itt);
    pdu.ttt.set(NO_TAG);
    pdu.data_sn.set(data_sn);
    pdu.offset.set(offset);
    pdu.max_cmd_sn.set(8);
    pdu
}

fn response(itt: u32, status: u8) -> ScsiResponse {
    let mut pdu = ScsiResponse::blank();
    pdu.itt.set(itt);
    pdu.status = status;
    pdu.max_cmd_sn.set(8);
    pdu
}

fn r2t(itt: u32, ttt: u32, r2t_sn: u32, offset: u32, len: u32) -> R2t {
    let mut pdu = R2t::blank();
    pdu.itt.set(itt);
    pdu.ttt.set(ttt);
    pdu.lun = [0, 3, 0, 0, 0, 0, 0, 0];
    pdu.r2t_sn.set(r2t_sn);
    pdu.offset.set(offset);
    pdu.desired_len.set(len);
    pdu.max_cmd_sn.set(8);
    pdu
}

fn protocol(result: Result<Events, Error>) -> &'static str {
    match result {
        Err(Error::Protocol(what)) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_login_request_has_the_layout_of_the_standard() {
    let mut conversation = Conversation {
        session: Session::new(Offer { isid: [0x80, 1, 2, 3, 4, 5], ..offer() }),
        stat_sn: 0,
        digests: (false, false),
    };
    assert_eq!(
        (
            conversation.session.room(),
            conversation.session.submit(Command { cookie: 0, lun: [0; 8], cdb: &[0; 6], moves: Moves::Nothing })
        ),
        (0, Err(NotNow))
    );
    let [(header, text)] = &conversation.sent()[..] else { panic!("one request") };
    let mut want = [0u8; 48];
    want[0] = 0x43; // immediate, login request
    want[1] = TRANSIT | 0x01; // from security to operational
    want[7] = u8::try_from(text.len()).expect("short");
    want[8..14].copy_from_slice(&[0x80, 1, 2, 3, 4, 5]);
    want[27] = 1; // CmdSN
    assert_eq!(header.as_bytes(), want);
    let names =
        b"InitiatorName=iqn.2026-01.io.lunar:initiator\0SessionType=Normal\0TargetName=iqn.x\0AuthMethod=None\0";
    assert_eq!(&text[..], names);
}

#[test]
fn a_refused_login_reports_the_status() {
    let mut conversation = Conversation { session: Session::new(offer()), stat_sn: 0, digests: (false, false) };
    let mut answer = LoginResponse::blank();
    answer.status.set(LoginStatus::NOT_FOUND.0);
    assert_eq!(conversation.receive_pdu(answer, &[]), Err(Error::Login(LoginStatus::NOT_FOUND, None)));
    let mut conversation = Conversation { session: Session::new(offer()), stat_sn: 0, digests: (false, false) };
    assert!(protocol(conversation.receive_pdu(NopIn::blank(), &[])).contains("login"));
}

#[test]
fn a_read_ends_with_the_status_in_its_last_data_in() {
    let mut conversation = Conversation::new();
    let itt = conversation.read(5, 1000);
    assert_eq!(
        conversation.receive_pdu(data_in(itt, 0, 0, 0), &[1; 600]).map(|t| t.data),
        Ok(vec![(5, 0, vec![1; 600])])
    );
    let events = conversation.receive_status(data_in(itt, 1, 600, FINAL | STATUS), &[2; 400]).expect("good");
    assert_eq!(events.data, [(5, 600, vec![2; 400])]);
    assert_eq!(events.done, [Done { cookie: 5, status: 0, residual: Residual::None, sense: vec![] }]);
    assert_eq!(conversation.session.outstanding(), 0);
}

#[test]
fn data_is_passed_on_in_place_and_as_it_arrives() {
    let mut conversation = Conversation::new();
    let itt = conversation.read(5, 8);
    let mut bytes = conversation.bytes(data_in(itt, 0, 0, FINAL | STATUS), &[1, 2, 3, 4, 5, 6, 7, 8]);
    bytes[24..28].copy_from_slice(&conversation.stat_sn.to_be_bytes());
    let range = bytes.as_ptr_range();
    let (front, back) = bytes.split_at(51);
    let mut seen = Vec::new();
    for part in [front, back] {
        conversation
            .session
            .receive(part, &mut |event| {
                if let Event::Data { offset, bytes, .. } = event {
                    assert!(range.contains(&bytes.as_ptr()));
                    seen.push((offset, bytes.len()));
                }
            })
            .expect("good");
    }
    assert_eq!(seen, [(0, 3), (3, 5)]);
}

#[test]
fn residual_counts_are_reported() {
    let mut conversation = Conversation::new();
    let itt = conversation.read(1, 1000);
    let mut pdu = data_in(itt, 0, 0, FINAL | STATUS | UNDERFLOW);
    pdu.residual.set(900);
    let events = conversation.receive_status(pdu, &[0; 100]).expect("good");
    assert_eq!(events.done[0].residual, Residual::Under(900));
    let itt = conversation.read(2, 4);
    conversation.receive_pdu(data_in(itt, 0, 0, FINAL), &[0; 4]).expect("good");
    let mut pdu = response(itt, 0);
    pdu.flags |= OVERFLOW;
    pdu.residual.set(60);
    assert_eq!(conversation.receive_status(pdu, &[]).expect("good").done[0].residual, Residual::Over(60));
}

#[test]
fn status_good_without_all_data_is_an_error() {
    let mut conversation = Conversation::new();
    let itt = conversation.read(1, 1000);
    assert!(
        protocol(conversation.receive_status(data_in(itt, 0, 0, FINAL | STATUS), &[0; 999])).contains("do not make up")
    );
    let mut conversation = Conversation::new();
    let itt = conversation.read(1, 1000);
    assert!(protocol(conversation.receive_status(response(itt, 0), &[])).contains("do not make up"));
    let mut conversation = Conversation::new();
    let (itt, _) = conversation.write(1, 20_000);
    assert!(
        protocol(conversation.receive_status(response(itt, 0), &[])).contains("do not make up"),
        "the rest was never requested"
    );
}

#[test]
fn sense_data_is_cut_to_its_length() {
    let mut conversation = Conversation::new();
    let itt = conversation.read(1, 512);
    let events = conversation.receive_status(response(itt, 2), &[0, 3, 0x72, 6, 0x29, 0xff]).expect("good");
    assert_eq!(events.done, [Done { cookie: 1, status: 2, residual: Residual::None, sense: vec![0x72, 6, 0x29] }]);
    let itt = conversation.read(1, 512);
    assert_eq!(conversation.receive_status(response(itt, 2), &[0xff, 0xff, 0x72]).expect("good").done[0].sense, [0x72]);
    let itt = conversation.read(1, 512);
    assert_eq!(conversation.receive_status(response(itt, 8), &[9]).expect("good").done[0].sense.len(), 0);
}

#[test]
fn a_write_sends_immediate_unsolicited_and_solicited_data() {
    let mut conversation = Conversation::new();
    let (itt, sent) = conversation.write(1, 20_000);
    let [(command, immediate), (out, unsolicited)] = &sent[..] else { panic!("{sent:?}") };
    let command = ScsiCommand::of(command);
    assert_eq!((command.flags, command.expected_len.get(), immediate.len()), (WRITE | SIMPLE, 20_000, 8192));
    assert_eq!((command.lun[1], command.cmd_sn.get()), (3, 1));
    let out = DataOut::of(out);
    assert_eq!((out.flags, out.itt.get(), out.ttt.get(), out.lun), (FINAL, itt, NO_TAG, [0; 8]));
    assert_eq!((out.data_sn.get(), out.offset.get(), unsolicited.len()), (0, 8192, 8192));
    assert_eq!(unsolicited[..], data(20_000).bytes()[8192..16_384]);
    conversation.receive_pdu(r2t(itt, 9, 0, 16_384, 3616), &[]).expect("good");
    let sent = conversation.sent();
    assert_eq!((DataOut::of(&sent[0].0).ttt.get(), &sent[0].1[..]), (9, &data(20_000).bytes()[16_384..]));
    assert_eq!(conversation.receive_status(response(itt, 0), &[]).expect("good").done.len(), 1);
}

#[test]
fn unsolicited_data_depends_on_the_negotiated_parameters() {
    let segment = ("MaxRecvDataSegmentLength", "4096");
    let (yes, no) = (("InitialR2T", "Yes"), ("InitialR2T", "No"));
    let burst = ("FirstBurstLength", "8192");
    for (initial_r2t, immediate, pdus, last) in [
        (yes, "Yes", vec![4096], true),
        (yes, "No", vec![0], true),
        (no, "No", vec![0, 4096, 4096], false),
        (no, "Yes", vec![4096, 4096], false),
    ] {
        let mut conversation =
            Conversation::with(offer(), &[segment, initial_r2t, burst, ("ImmediateData", immediate)]);
        let (_, sent) = conversation.write(1, 10_000);
        assert_eq!(sent.iter().map(|(_, data)| data.len()).collect::<Vec<_>>(), pdus);
        assert_eq!(sent[0].0.flags & FINAL != 0, last);
        let finals: Vec<bool> = sent.iter().map(|(header, _)| header.flags & FINAL != 0).collect();
        assert!(finals.ends_with(&[true]) && finals.iter().filter(|last| **last).count() == 1);
    }
}

#[test]
fn a_short_write_is_immediate_data_only() {
    let mut conversation = Conversation::new();
    let (_, sent) = conversation.write(1, 512);
    assert_eq!((sent.len(), sent[0].1.len(), sent[0].0.flags & FINAL), (1, 512, FINAL));
}

#[test]
fn each_of_several_outstanding_r2ts_is_answered_with_its_tag() {
    let mut conversation = Conversation::with(
        offer(),
        &[("MaxRecvDataSegmentLength", "1024"), ("MaxOutstandingR2T", "4"), ("ImmediateData", "No")],
    );
    let (itt, sent) = conversation.write(1, 6000);
    assert_eq!((sent.len(), sent[0].1.len()), (1, 0));
    let asked = [r2t(itt, 50, 0, 0, 2000), r2t(itt, 51, 1, 2000, 2500), r2t(itt, 52, 2, 4500, 1500)];
    let bytes: Vec<u8> = asked.iter().flat_map(|pdu| conversation.bytes(*pdu, &[])).collect();
    conversation.receive(&bytes).expect("good");
    let sent = conversation.sent();
    let seen: Vec<_> = sent.iter().map(|(header, data)| (DataOut::of(header), data.len())).collect();
    let seen: Vec<_> = seen
        .iter()
        .map(|(out, len)| (out.ttt.get(), out.data_sn.get(), out.offset.get(), *len, out.flags & FINAL != 0))
        .collect();
    let want = [
        (50, 0, 0, 1024, false),
        (50, 1, 1024, 976, true),
        (51, 0, 2000, 1024, false),
        (51, 1, 3024, 1024, false),
        (51, 2, 4048, 452, true),
        (52, 0, 4500, 1024, false),
        (52, 1, 5524, 476, true),
    ];
    assert_eq!(seen, want);
    assert!(sent.iter().all(|(header, _)| DataOut::of(header).lun[1] == 3));
    let all: Vec<u8> = sent.iter().flat_map(|(_, data)| data.clone()).collect();
    assert_eq!(all, data(6000).bytes());
}

#[test]
fn invalid_r2ts_are_errors() {
    let bad = [
        ("is not the next one", r2t(0, 1, 1, 0, 100)),
        ("invalid range", r2t(0, 1, 0, 100, 100)),
        ("invalid range", r2t(0, 1, 0, 0, 6001)),
        ("invalid range", r2t(0, 1, 0, 0, 0)),
        ("invalid range", r2t(0, 1, 0, 0, 5000)),
    ];
    for (why, mut pdu) in bad {
        let mut conversation = Conversation::with(offer(), &[("MaxBurstLength", "4096"), ("ImmediateData", "No")]);
        let (itt, _) = conversation.write(1, 6000);
        pdu.itt.set(itt);
        let got = protocol(conversation.receive_pdu(pdu, &[]));
        assert!(got.contains(why), "{got}");
    }
    let mut conversation = Conversation::new();
    let itt = conversation.read(1, 512);
    assert!(protocol(conversation.receive_pdu(r2t(itt, 1, 0, 0, 512), &[])).contains("not a write"));
}

#[test]
fn data_in_out_of_order_is_an_error() {
    for (at, sn, len, why) in [(1, 0, 10, "order"), (0, 1, 10, "DataSN"), (0, 0, 513, "exceeds")] {
        let mut conversation = Conversation::new();
        let itt = conversation.read(1, 512);
        let got = protocol(conversation.receive_pdu(data_in(itt, sn, at, 0), &vec![0; len]));
        assert!(got.contains(why), "{got}");
    }
    let mut conversation = Conversation::new();
    assert!(protocol(conversation.receive_pdu(data_in(77, 0, 0, 0), &[0; 4])).contains("no outstanding task"));
    let (itt, _) = conversation.write(1, 512);
    assert!(protocol(conversation.receive_pdu(data_in(itt, 0, 0, 0), &[0; 4])).contains("not a read"));
}

#[test]
fn a_stat_sn_other_than_the_next_is_an_error() {
    let mut conversation = Conversation::new();
    let itt = conversation.read(1, 512);
    conversation.stat_sn += 1;
    assert!(protocol(conversation.receive_status(response(itt, 2), &[])).contains("StatSN"));
}

#[test]
fn commands_start_while_the_window_is_open() {
    let mut conversation = Conversation::new();
    assert_eq!(conversation.session.room(), 8);
    let tags: Vec<u32> = (0..8).map(|cookie| conversation.read(cookie, 4)).collect();
    assert_eq!(conversation.session.room(), 0);
    let command = Command { cookie: 9, lun: [0; 8], cdb: &[0; 6], moves: Moves::Nothing };
    assert_eq!(conversation.session.submit(command), Err(NotNow));
    let mut pdu = data_in(tags[0], 0, 0, FINAL | STATUS);
    pdu.max_cmd_sn.set(10);
    conversation.receive_status(pdu, &[0; 4]).expect("good");
    assert_eq!(conversation.session.room(), 2);
    let mut older = data_in(tags[1], 0, 0, FINAL | STATUS);
    older.max_cmd_sn.set(9);
    conversation.receive_status(older, &[0; 4]).expect("good");
    assert_eq!(conversation.session.room(), 2, "a window never shrinks");
}

#[test]
fn cmd_sn_wraps() {
    let mut conversation = Conversation::new();
    (conversation.session.core.cmd_sn, conversation.session.core.max_cmd_sn) = (u32::MAX, 0);
    assert_eq!(conversation.session.room(), 2);
    conversation.read(1, 4);
    conversation.read(2, 4);
    assert_eq!((conversation.session.room(), conversation.session.core.cmd_sn), (0, 1));
    assert!(is_after(0, u32::MAX) && !is_after(u32::MAX, 0) && !is_after(3, 3));
}

#[test]
fn a_nop_in_is_answered_with_its_tag() {
    let mut conversation = Conversation::new();
    let mut ping = NopIn::blank();
    ping.itt.set(NO_TAG);
    ping.ttt.set(0x1234);
    ping.lun = [0, 7, 0, 0, 0, 0, 0, 0];
    ping.max_cmd_sn.set(8);
    conversation.receive_pdu(ping, b"ping").expect("good");
    let sent = conversation.sent();
    let pong = NopOut::of(&sent[0].0);
    assert_eq!((pong.itt.get(), pong.ttt.get(), pong.lun[1], pong.first.is_immediate()), (NO_TAG, 0x1234, 7, true));
    ping.ttt.set(NO_TAG);
    conversation.receive_pdu(ping, &[]).expect("good");
    assert!(conversation.sent().is_empty());
    ping.itt.set(1);
    assert!(protocol(conversation.receive_pdu(ping, &[])).contains("NOP-In"));
}

#[test]
fn the_number_of_unsent_nop_out_replies_is_limited() {
    let mut conversation = Conversation::new();
    let mut ping = NopIn::blank();
    ping.itt.set(NO_TAG);
    ping.max_cmd_sn.set(8);
    for _ in 0..PINGS_MAX {
        conversation.receive_pdu(ping, &[]).expect("good");
    }
    assert!(protocol(conversation.receive_pdu(ping, &[])).contains("too many NOP-Ins"));
    let waiting = conversation.session.output().len();
    conversation.session.sent(waiting);
    conversation.receive_pdu(ping, &[]).expect("replies are sent again");
}

#[test]
fn a_rejected_command_ends_and_a_command_with_rejected_data_does_not() {
    let mut conversation = Conversation::new();
    conversation.session.submit(Command { cookie: 6, lun: [0; 8], cdb: &[0; 6], moves: Moves::Nothing }).expect("room");
    let command = conversation.sent()[0].0;
    let mut reject = Reject::blank();
    reject.reason = RejectReason::PROTOCOL_ERROR;
    reject.itt.set(NO_TAG);
    let events = conversation.receive_status(reject, command.as_bytes()).expect("good");
    assert_eq!(events.other, ["Rejected { reason: PROTOCOL_ERROR, cookie: Some(6) }"]);
    assert_eq!(conversation.session.outstanding(), 0);
    let (itt, sent) = conversation.write(7, 16_384);
    let events = conversation.receive_status(reject, sent[1].0.as_bytes()).expect("good");
    assert_eq!(events.other, ["Rejected { reason: PROTOCOL_ERROR, cookie: None }"]);
    assert_eq!(conversation.receive_status(response(itt, 2), &[]).expect("good").done[0].cookie, 7);
}

#[test]
fn digests_are_sent_and_checked() {
    let digests = || {
        let offer = Offer {
            header_digest: crate::config::DigestOffer::Require,
            data_digest: crate::config::DigestOffer::Prefer,
            ..offer()
        };
        Conversation::with(
            offer,
            &[
                ("HeaderDigest", "CRC32C"),
                ("DataDigest", "CRC32C"),
                ("InitialR2T", "No"),
                ("MaxRecvDataSegmentLength", "8192"),
            ],
        )
    };
    let mut conversation = digests();
    assert_eq!(conversation.digests, (true, true));
    // Short data is copied, long data is referenced, and padding is part of the digest: `sent` checks all digests.
    for len in [512, 5, 6001] {
        assert_eq!(conversation.write(1, len).1[0].1, data(len).bytes());
    }
    let itt = conversation.read(2, 5);
    let events = conversation.receive_status(data_in(itt, 0, 0, FINAL | STATUS), &[1, 2, 3, 4, 5]).expect("good");
    assert_eq!((events.data.len(), events.done.len()), (1, 1));
    for (at, want) in [(9, Error::HeaderDigest), (53, Error::DataDigest)] {
        let mut conversation = digests();
        let itt = conversation.read(2, 5);
        let mut bytes = conversation.bytes(data_in(itt, 0, 0, FINAL | STATUS), &[1, 2, 3, 4, 5]);
        bytes[at] ^= 0x10;
        assert_eq!(conversation.receive(&bytes), Err(want));
    }
}

#[test]
fn a_task_management_function_references_its_task() {
    let mut conversation = Conversation::new();
    let itt = conversation.read(4, 512);
    conversation.session.manage_task(90, Function::ABORT_TASK, [0; 8], Some(4)).expect("known");
    let sent = conversation.sent();
    let request = TaskManagementRequest::of(&sent[0].0);
    assert_eq!((request.flags, request.referenced_tag.get(), request.ref_cmd_sn.get()), (0x81, itt, 1));
    assert!(request.first.is_immediate());
    assert_eq!(request.cmd_sn.get(), 2, "it takes no number");
    let mut answer = TaskManagementResponse::blank();
    answer.itt = request.itt;
    assert_eq!(
        conversation.receive_status(answer, &[]).expect("good").other,
        ["FunctionDone { cookie: 90, response: COMPLETE }"]
    );
    assert_eq!(conversation.session.manage_task(91, Function::ABORT_TASK, [0; 8], Some(99)), Err(NotNow));
}

#[test]
fn a_continued_text_response_is_joined() {
    let mut conversation = Conversation::with(Offer::default(), &[]);
    conversation.session.discover().expect("room");
    let [(first, text)] = &conversation.sent()[..] else { panic!("one request") };
    assert_eq!((TextRequest::of(first).ttt.get(), &text[..]), (NO_TAG, &b"SendTargets=All\0"[..]));
    let mut answer = TextResponse::blank();
    answer.flags = CONTINUE;
    answer.itt = first.itt;
    answer.ttt.set(5);
    answer.max_cmd_sn.set(8);
    assert_eq!(conversation.receive_status(answer, b"TargetName=iqn.a\0Targ").expect("good"), Events::default());
    let [(second, text)] = &conversation.sent()[..] else { panic!("one request") };
    assert_eq!((TextRequest::of(second).ttt.get(), text.len()), (5, 0));
    (answer.flags, answer.itt) = (FINAL, second.itt);
    answer.ttt.set(NO_TAG);
    let events = conversation.receive_status(answer, b"etAddress=h:1,1\0").expect("good");
    assert_eq!(events.other, ["TargetName=iqn.a;TargetAddress=h:1,1;"]);
}

#[test]
fn a_logout_ends_the_session() {
    let mut conversation = Conversation::new();
    conversation.session.log_out().expect("room");
    let [(request, _)] = &conversation.sent()[..] else { panic!("one request") };
    assert_eq!((request.opcode(), request.flags), (Opcode::LOGOUT_REQUEST, FINAL));
    let mut answer = LogoutResponse::blank();
    answer.itt = request.itt;
    answer.response = LogoutOutcome::CLOSED;
    assert_eq!(conversation.receive_status(answer, &[]).expect("good").other, ["LoggedOut"]);
    assert_eq!(conversation.session.room(), 0);
}

#[test]
fn long_cdbs_are_sent_in_an_additional_header_segment() {
    let mut conversation = Conversation::new();
    let cdb: Vec<u8> = (0..32).collect();
    conversation.session.submit(Command { cookie: 1, lun: [0; 8], cdb: &cdb, moves: Moves::Nothing }).expect("room");
    let [(header, ahs)] = &conversation.sent()[..] else { panic!("one command") };
    assert_eq!(ScsiCommand::of(header).cdb, cdb[..16]);
    assert_eq!((header.ahs_words, &ahs[..5], &ahs[4..20]), (5, &[0, 17, 1, 0, 16][..], &cdb[16..]));
}

#[test]
fn pdus_that_targets_do_not_send_are_errors() {
    let mut conversation = Conversation::new();
    assert!(protocol(conversation.receive_pdu(ScsiCommand::blank(), &[])).contains("do not send"));
    assert!(protocol(conversation.receive_status(response(0x55, 0), &[])).contains("no outstanding task"));
}

mod hostile {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_accepted_or_refused(bytes: Vec<u8>, logged_in: bool) {
            let mut conversation = Conversation::new();
            if !logged_in {
                conversation.session = Session::new(offer());
            }
            let _ = conversation.receive(&bytes);
        }

        #[test]
        fn any_pdu_is_accepted_or_refused(
            opcode in prop::sample::select(vec![0x20u8, 0x21, 0x22, 0x24, 0x25, 0x26, 0x31, 0x32, 0x3f]),
            mut header in prop::collection::vec(any::<u8>(), 48),
            data in prop::collection::vec(any::<u8>(), 0..64),
            tag in 0u32..4,
        ) {
            let mut conversation = Conversation::new();
            conversation.read(1, 4096);
            conversation.write(2, 30_000);
            header[0] = opcode;
            header[4] = 0;
            header[5..8].copy_from_slice(U24::new(data.len()).as_bytes());
            header[16..20].copy_from_slice(&tag.to_be_bytes());
            header[24..28].copy_from_slice(&conversation.stat_sn.to_be_bytes());
            header.extend_from_slice(&data);
            header.resize(padded(header.len()), 0);
            let _ = conversation.receive(&header);
        }
    }
}

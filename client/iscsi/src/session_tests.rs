use super::*;
use lunar_iscsi::text;
use lunar_iscsi::wire::{BHS_LEN, DIGEST_LEN, Digest, LoginStatus, LogoutOutcome, Stage, TRANSIT, digest, padded};
use std::rc::Rc;
use zerocopy::IntoBytes;

/// A session and what a target would know of it.
struct Talk {
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

/// What a session told, without borrowing.
#[derive(Default, PartialEq, Eq, Debug)]
struct Told {
    data: Vec<(u32, u32, Vec<u8>)>,
    done: Vec<Done>,
    other: Vec<String>,
}

impl Talk {
    /// A session in its full-feature phase, whose target answered these keys. The window is commands 1 to 8.
    fn with(offer: Offer, answers: &[(&str, &str)]) -> Self {
        let mut talk = Self { session: Session::new(offer), stat_sn: 7, digests: (false, false) };
        let [first] = &talk.sent()[..] else { panic!("one request") };
        assert_eq!(LoginRequest::of(&first.0).flags, login_flags(Stage::SECURITY, Some(Stage::OPERATIONAL)));
        talk.answer_login(Stage::SECURITY, Stage::OPERATIONAL, &[("AuthMethod", "None")]).expect("accepted");
        let [second] = &talk.sent()[..] else { panic!("one request") };
        let second = LoginRequest::of(&second.0);
        assert_eq!((second.exp_stat_sn.get(), second.cmd_sn.get()), (8, FIRST_CMD_SN));
        assert!(second.first.is_immediate());
        let told = talk.answer_login(Stage::OPERATIONAL, Stage::FULL_FEATURE, answers).expect("accepted");
        assert_eq!(told.other, ["LoggedIn"]);
        talk.digests = (talk.session.agreed().header_digest, talk.session.agreed().data_digest);
        talk
    }

    fn new() -> Self {
        Self::with(
            offer(),
            &[("InitialR2T", "No"), ("FirstBurstLength", "16384"), ("MaxRecvDataSegmentLength", "8192")],
        )
    }

    fn answer_login(&mut self, stage: Stage, next: Stage, keys: &[(&str, &str)]) -> Result<Told, Error> {
        let mut text = Vec::new();
        keys.iter().for_each(|(key, value)| text::put(&mut text, key, value));
        let mut answer = LoginResponse::blank();
        answer.flags = login_flags(stage, Some(next));
        answer.tsih.set(1);
        answer.max_cmd_sn.set(8);
        answer.exp_cmd_sn.set(1);
        self.status(answer, &text)
    }

    /// Sends a PDU that takes a StatSN.
    fn status<P: Pdu>(&mut self, pdu: P, data: &[u8]) -> Result<Told, Error> {
        let mut bytes = pdu;
        bytes.as_mut_bytes()[24..28].copy_from_slice(&self.stat_sn.to_be_bytes());
        self.stat_sn += 1;
        self.hear(bytes, data)
    }

    fn hear<P: Pdu>(&mut self, pdu: P, data: &[u8]) -> Result<Told, Error> {
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

    fn receive(&mut self, bytes: &[u8]) -> Result<Told, Error> {
        let mut told = Told::default();
        self.session.receive(bytes, &mut |event| match event {
            Event::Data { cookie, offset, bytes } => told.data.push((cookie, offset, bytes.to_vec())),
            Event::Done { cookie, status, residual, sense, .. } => {
                told.done.push(Done { cookie, status, residual, sense: sense.to_vec() });
            }
            Event::Targets(text) => told.other.push(String::from_utf8_lossy(text).replace('\0', ";")),
            other => told.other.push(format!("{other:?}")),
        })?;
        Ok(told)
    }

    /// What the session sent since last asked, PDU by PDU; digests must be right.
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

    /// Starts a write; gives its tag and the PDUs that went out.
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

fn protocol(result: Result<Told, Error>) -> &'static str {
    match result {
        Err(Error::Protocol(what)) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_request_is_as_the_standard_has_it() {
    let mut talk = Talk {
        session: Session::new(Offer { isid: [0x80, 1, 2, 3, 4, 5], ..offer() }),
        stat_sn: 0,
        digests: (false, false),
    };
    assert_eq!(
        (
            talk.session.room(),
            talk.session.submit(Command { cookie: 0, lun: [0; 8], cdb: &[0; 6], moves: Moves::Nothing })
        ),
        (0, Err(NotNow))
    );
    let [(header, text)] = &talk.sent()[..] else { panic!("one request") };
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
fn a_refused_login_says_why() {
    let mut talk = Talk { session: Session::new(offer()), stat_sn: 0, digests: (false, false) };
    let mut answer = LoginResponse::blank();
    answer.status.set(LoginStatus::NOT_FOUND.0);
    assert_eq!(talk.hear(answer, &[]), Err(Error::Login(LoginStatus::NOT_FOUND, None)));
    let mut talk = Talk { session: Session::new(offer()), stat_sn: 0, digests: (false, false) };
    assert!(protocol(talk.hear(NopIn::blank(), &[])).contains("login"));
}

#[test]
fn a_read_in_two_segments_with_status_on_the_last() {
    let mut talk = Talk::new();
    let itt = talk.read(5, 1000);
    assert_eq!(talk.hear(data_in(itt, 0, 0, 0), &[1; 600]).map(|t| t.data), Ok(vec![(5, 0, vec![1; 600])]));
    let told = talk.status(data_in(itt, 1, 600, FINAL | STATUS), &[2; 400]).expect("good");
    assert_eq!(told.data, [(5, 600, vec![2; 400])]);
    assert_eq!(told.done, [Done { cookie: 5, status: 0, residual: Residual::None, sense: vec![] }]);
    assert_eq!(talk.session.outstanding(), 0);
}

#[test]
fn data_is_handed_on_in_place_and_as_it_arrives() {
    let mut talk = Talk::new();
    let itt = talk.read(5, 8);
    let mut bytes = talk.bytes(data_in(itt, 0, 0, FINAL | STATUS), &[1, 2, 3, 4, 5, 6, 7, 8]);
    bytes[24..28].copy_from_slice(&talk.stat_sn.to_be_bytes());
    let range = bytes.as_ptr_range();
    let (front, back) = bytes.split_at(51);
    let mut seen = Vec::new();
    for part in [front, back] {
        talk.session
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
fn residuals_are_told() {
    let mut talk = Talk::new();
    let itt = talk.read(1, 1000);
    let mut pdu = data_in(itt, 0, 0, FINAL | STATUS | UNDERFLOW);
    pdu.residual.set(900);
    let told = talk.status(pdu, &[0; 100]).expect("good");
    assert_eq!(told.done[0].residual, Residual::Under(900));
    let itt = talk.read(2, 4);
    talk.hear(data_in(itt, 0, 0, FINAL), &[0; 4]).expect("good");
    let mut pdu = response(itt, 0);
    pdu.flags |= OVERFLOW;
    pdu.residual.set(60);
    assert_eq!(talk.status(pdu, &[]).expect("good").done[0].residual, Residual::Over(60));
}

#[test]
fn good_without_all_data_is_an_error() {
    let mut talk = Talk::new();
    let itt = talk.read(1, 1000);
    assert!(protocol(talk.status(data_in(itt, 0, 0, FINAL | STATUS), &[0; 999])).contains("neither all data"));
    let mut talk = Talk::new();
    let itt = talk.read(1, 1000);
    assert!(protocol(talk.status(response(itt, 0), &[])).contains("neither all data"));
    let mut talk = Talk::new();
    let (itt, _) = talk.write(1, 20_000);
    assert!(protocol(talk.status(response(itt, 0), &[])).contains("neither all data"), "never asked for the rest");
}

#[test]
fn sense_data_comes_with_its_length() {
    let mut talk = Talk::new();
    let itt = talk.read(1, 512);
    let told = talk.status(response(itt, 2), &[0, 3, 0x72, 6, 0x29, 0xff]).expect("good");
    assert_eq!(told.done, [Done { cookie: 1, status: 2, residual: Residual::None, sense: vec![0x72, 6, 0x29] }]);
    let itt = talk.read(1, 512);
    assert_eq!(talk.status(response(itt, 2), &[0xff, 0xff, 0x72]).expect("good").done[0].sense, [0x72]);
    let itt = talk.read(1, 512);
    assert_eq!(talk.status(response(itt, 8), &[9]).expect("good").done[0].sense.len(), 0);
}

#[test]
fn immediate_data_and_an_unsolicited_burst() {
    let mut talk = Talk::new();
    let (itt, sent) = talk.write(1, 20_000);
    let [(command, immediate), (out, unsolicited)] = &sent[..] else { panic!("{sent:?}") };
    let command = ScsiCommand::of(command);
    assert_eq!((command.flags, command.expected_len.get(), immediate.len()), (WRITE | SIMPLE, 20_000, 8192));
    assert_eq!((command.lun[1], command.cmd_sn.get()), (3, 1));
    let out = DataOut::of(out);
    assert_eq!((out.flags, out.itt.get(), out.ttt.get(), out.lun), (FINAL, itt, NO_TAG, [0; 8]));
    assert_eq!((out.data_sn.get(), out.offset.get(), unsolicited.len()), (0, 8192, 8192));
    assert_eq!(unsolicited[..], data(20_000).bytes()[8192..16_384]);
    talk.hear(r2t(itt, 9, 0, 16_384, 3616), &[]).expect("good");
    let sent = talk.sent();
    assert_eq!((DataOut::of(&sent[0].0).ttt.get(), &sent[0].1[..]), (9, &data(20_000).bytes()[16_384..]));
    assert_eq!(talk.status(response(itt, 0), &[]).expect("good").done.len(), 1);
}

#[test]
fn what_is_unsolicited_depends_on_what_was_agreed() {
    let segment = ("MaxRecvDataSegmentLength", "4096");
    let (yes, no) = (("InitialR2T", "Yes"), ("InitialR2T", "No"));
    let burst = ("FirstBurstLength", "8192");
    for (initial_r2t, immediate, pdus, last) in [
        (yes, "Yes", vec![4096], true),
        (yes, "No", vec![0], true),
        (no, "No", vec![0, 4096, 4096], false),
        (no, "Yes", vec![4096, 4096], false),
    ] {
        let mut talk = Talk::with(offer(), &[segment, initial_r2t, burst, ("ImmediateData", immediate)]);
        let (_, sent) = talk.write(1, 10_000);
        assert_eq!(sent.iter().map(|(_, data)| data.len()).collect::<Vec<_>>(), pdus);
        assert_eq!(sent[0].0.flags & FINAL != 0, last);
        let finals: Vec<bool> = sent.iter().map(|(header, _)| header.flags & FINAL != 0).collect();
        assert!(finals.ends_with(&[true]) && finals.iter().filter(|last| **last).count() == 1);
    }
}

#[test]
fn a_write_shorter_than_everything_goes_with_its_command() {
    let mut talk = Talk::new();
    let (_, sent) = talk.write(1, 512);
    assert_eq!((sent.len(), sent[0].1.len(), sent[0].0.flags & FINAL), (1, 512, FINAL));
}

#[test]
fn several_r2ts_outstanding_are_answered_each_with_its_tag() {
    let mut talk = Talk::with(
        offer(),
        &[("MaxRecvDataSegmentLength", "1024"), ("MaxOutstandingR2T", "4"), ("ImmediateData", "No")],
    );
    let (itt, sent) = talk.write(1, 6000);
    assert_eq!((sent.len(), sent[0].1.len()), (1, 0));
    let asked = [r2t(itt, 50, 0, 0, 2000), r2t(itt, 51, 1, 2000, 2500), r2t(itt, 52, 2, 4500, 1500)];
    let bytes: Vec<u8> = asked.iter().flat_map(|pdu| talk.bytes(*pdu, &[])).collect();
    talk.receive(&bytes).expect("good");
    let sent = talk.sent();
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
fn r2ts_that_ask_for_what_they_may_not() {
    let bad = [
        ("is not the next one", r2t(0, 1, 1, 0, 100)),
        ("may not", r2t(0, 1, 0, 100, 100)),
        ("may not", r2t(0, 1, 0, 0, 6001)),
        ("may not", r2t(0, 1, 0, 0, 0)),
        ("may not", r2t(0, 1, 0, 0, 5000)),
    ];
    for (why, mut pdu) in bad {
        let mut talk = Talk::with(offer(), &[("MaxBurstLength", "4096"), ("ImmediateData", "No")]);
        let (itt, _) = talk.write(1, 6000);
        pdu.itt.set(itt);
        let got = protocol(talk.hear(pdu, &[]));
        assert!(got.contains(why), "{got}");
    }
    let mut talk = Talk::new();
    let itt = talk.read(1, 512);
    assert!(protocol(talk.hear(r2t(itt, 1, 0, 0, 512), &[])).contains("no write"));
}

#[test]
fn data_in_that_is_not_in_order() {
    for (at, sn, len, why) in [(1, 0, 10, "order"), (0, 1, 10, "DataSN"), (0, 0, 513, "more")] {
        let mut talk = Talk::new();
        let itt = talk.read(1, 512);
        let got = protocol(talk.hear(data_in(itt, sn, at, 0), &vec![0; len]));
        assert!(got.contains(why), "{got}");
    }
    let mut talk = Talk::new();
    assert!(protocol(talk.hear(data_in(77, 0, 0, 0), &[0; 4])).contains("nothing"));
    let (itt, _) = talk.write(1, 512);
    assert!(protocol(talk.hear(data_in(itt, 0, 0, 0), &[0; 4])).contains("no read"));
}

#[test]
fn a_status_number_that_is_not_the_next_one() {
    let mut talk = Talk::new();
    let itt = talk.read(1, 512);
    talk.stat_sn += 1;
    assert!(protocol(talk.status(response(itt, 2), &[])).contains("StatSN"));
}

#[test]
fn the_window_opens_and_shuts() {
    let mut talk = Talk::new();
    assert_eq!(talk.session.room(), 8);
    let tags: Vec<u32> = (0..8).map(|cookie| talk.read(cookie, 4)).collect();
    assert_eq!(talk.session.room(), 0);
    let command = Command { cookie: 9, lun: [0; 8], cdb: &[0; 6], moves: Moves::Nothing };
    assert_eq!(talk.session.submit(command), Err(NotNow));
    let mut pdu = data_in(tags[0], 0, 0, FINAL | STATUS);
    pdu.max_cmd_sn.set(10);
    talk.status(pdu, &[0; 4]).expect("good");
    assert_eq!(talk.session.room(), 2);
    let mut older = data_in(tags[1], 0, 0, FINAL | STATUS);
    older.max_cmd_sn.set(9);
    talk.status(older, &[0; 4]).expect("good");
    assert_eq!(talk.session.room(), 2, "a window never shrinks");
}

#[test]
fn numbers_wrap() {
    let mut talk = Talk::new();
    (talk.session.core.cmd_sn, talk.session.core.max_cmd_sn) = (u32::MAX, 0);
    assert_eq!(talk.session.room(), 2);
    talk.read(1, 4);
    talk.read(2, 4);
    assert_eq!((talk.session.room(), talk.session.core.cmd_sn), (0, 1));
    assert!(is_after(0, u32::MAX) && !is_after(u32::MAX, 0) && !is_after(3, 3));
}

#[test]
fn a_ping_is_answered_with_its_tag() {
    let mut talk = Talk::new();
    let mut ping = NopIn::blank();
    ping.itt.set(NO_TAG);
    ping.ttt.set(0x1234);
    ping.lun = [0, 7, 0, 0, 0, 0, 0, 0];
    ping.max_cmd_sn.set(8);
    talk.hear(ping, b"ping").expect("good");
    let sent = talk.sent();
    let pong = NopOut::of(&sent[0].0);
    assert_eq!((pong.itt.get(), pong.ttt.get(), pong.lun[1], pong.first.is_immediate()), (NO_TAG, 0x1234, 7, true));
    ping.ttt.set(NO_TAG);
    talk.hear(ping, &[]).expect("good");
    assert!(talk.sent().is_empty());
    ping.itt.set(1);
    assert!(protocol(talk.hear(ping, &[])).contains("NOP-In"));
}

#[test]
fn pings_of_a_target_that_takes_nothing_fill_no_memory() {
    let mut talk = Talk::new();
    let mut ping = NopIn::blank();
    ping.itt.set(NO_TAG);
    ping.max_cmd_sn.set(8);
    for _ in 0..PINGS_MAX {
        talk.hear(ping, &[]).expect("good");
    }
    assert!(protocol(talk.hear(ping, &[])).contains("pings"));
    let waiting = talk.session.output().len();
    talk.session.sent(waiting);
    talk.hear(ping, &[]).expect("it takes answers again");
}

#[test]
fn a_rejected_command_is_over_and_rejected_data_is_not() {
    let mut talk = Talk::new();
    talk.session.submit(Command { cookie: 6, lun: [0; 8], cdb: &[0; 6], moves: Moves::Nothing }).expect("room");
    let command = talk.sent()[0].0;
    let mut reject = Reject::blank();
    reject.reason = RejectReason::PROTOCOL_ERROR;
    reject.itt.set(NO_TAG);
    let told = talk.status(reject, command.as_bytes()).expect("good");
    assert_eq!(told.other, ["Rejected { reason: PROTOCOL_ERROR, cookie: Some(6) }"]);
    assert_eq!(talk.session.outstanding(), 0);
    let (itt, sent) = talk.write(7, 16_384);
    let told = talk.status(reject, sent[1].0.as_bytes()).expect("good");
    assert_eq!(told.other, ["Rejected { reason: PROTOCOL_ERROR, cookie: None }"]);
    assert_eq!(talk.status(response(itt, 2), &[]).expect("good").done[0].cookie, 7);
}

#[test]
fn digests_go_both_ways_and_a_wrong_one_ends_the_session() {
    let digests = || {
        let offer = Offer {
            header_digest: crate::config::DigestOffer::Require,
            data_digest: crate::config::DigestOffer::Prefer,
            ..offer()
        };
        Talk::with(
            offer,
            &[
                ("HeaderDigest", "CRC32C"),
                ("DataDigest", "CRC32C"),
                ("InitialR2T", "No"),
                ("MaxRecvDataSegmentLength", "8192"),
            ],
        )
    };
    let mut talk = digests();
    assert_eq!(talk.digests, (true, true));
    // Short data is copied, long data is not, padding counts: `sent` checks the digests of all.
    for len in [512, 5, 6001] {
        assert_eq!(talk.write(1, len).1[0].1, data(len).bytes());
    }
    let itt = talk.read(2, 5);
    let told = talk.status(data_in(itt, 0, 0, FINAL | STATUS), &[1, 2, 3, 4, 5]).expect("good");
    assert_eq!((told.data.len(), told.done.len()), (1, 1));
    for (at, want) in [(9, Error::HeaderDigest), (53, Error::DataDigest)] {
        let mut talk = digests();
        let itt = talk.read(2, 5);
        let mut bytes = talk.bytes(data_in(itt, 0, 0, FINAL | STATUS), &[1, 2, 3, 4, 5]);
        bytes[at] ^= 0x10;
        assert_eq!(talk.receive(&bytes), Err(want));
    }
}

#[test]
fn functions_name_their_task() {
    let mut talk = Talk::new();
    let itt = talk.read(4, 512);
    talk.session.manage(90, Function::ABORT_TASK, [0; 8], Some(4)).expect("known");
    let sent = talk.sent();
    let request = TaskManagementRequest::of(&sent[0].0);
    assert_eq!((request.flags, request.referenced_tag.get(), request.ref_cmd_sn.get()), (0x81, itt, 1));
    assert!(request.first.is_immediate());
    assert_eq!(request.cmd_sn.get(), 2, "it takes no number");
    let mut answer = TaskManagementResponse::blank();
    answer.itt = request.itt;
    assert_eq!(talk.status(answer, &[]).expect("good").other, ["Managed { cookie: 90, response: COMPLETE }"]);
    assert_eq!(talk.session.manage(91, Function::ABORT_TASK, [0; 8], Some(99)), Err(NotNow));
}

#[test]
fn discovery_in_two_answers() {
    let mut talk = Talk::with(Offer::default(), &[]);
    talk.session.discover().expect("room");
    let [(first, text)] = &talk.sent()[..] else { panic!("one request") };
    assert_eq!((TextRequest::of(first).ttt.get(), &text[..]), (NO_TAG, &b"SendTargets=All\0"[..]));
    let mut answer = TextResponse::blank();
    answer.flags = CONTINUE;
    answer.itt = first.itt;
    answer.ttt.set(5);
    answer.max_cmd_sn.set(8);
    assert_eq!(talk.status(answer, b"TargetName=iqn.a\0Targ").expect("good"), Told::default());
    let [(second, text)] = &talk.sent()[..] else { panic!("one request") };
    assert_eq!((TextRequest::of(second).ttt.get(), text.len()), (5, 0));
    (answer.flags, answer.itt) = (FINAL, second.itt);
    answer.ttt.set(NO_TAG);
    let told = talk.status(answer, b"etAddress=h:1,1\0").expect("good");
    assert_eq!(told.other, ["TargetName=iqn.a;TargetAddress=h:1,1;"]);
}

#[test]
fn logging_out() {
    let mut talk = Talk::new();
    talk.session.log_out().expect("room");
    let [(request, _)] = &talk.sent()[..] else { panic!("one request") };
    assert_eq!((request.opcode(), request.flags), (Opcode::LOGOUT_REQUEST, FINAL));
    let mut answer = LogoutResponse::blank();
    answer.itt = request.itt;
    answer.response = LogoutOutcome::CLOSED;
    assert_eq!(talk.status(answer, &[]).expect("good").other, ["LoggedOut"]);
    assert_eq!(talk.session.room(), 0);
}

#[test]
fn long_cdbs_travel_in_an_additional_header_segment() {
    let mut talk = Talk::new();
    let cdb: Vec<u8> = (0..32).collect();
    talk.session.submit(Command { cookie: 1, lun: [0; 8], cdb: &cdb, moves: Moves::Nothing }).expect("room");
    let [(header, ahs)] = &talk.sent()[..] else { panic!("one command") };
    assert_eq!(ScsiCommand::of(header).cdb, cdb[..16]);
    assert_eq!((header.ahs_words, &ahs[..5], &ahs[4..20]), (5, &[0, 17, 1, 0, 16][..], &cdb[16..]));
}

#[test]
fn what_no_target_sends() {
    let mut talk = Talk::new();
    assert!(protocol(talk.hear(ScsiCommand::blank(), &[])).contains("no target sends"));
    assert!(protocol(talk.status(response(0x55, 0), &[])).contains("nothing"));
}

mod hostile {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_end(bytes: Vec<u8>, logged_in: bool) {
            let mut talk = Talk::new();
            if !logged_in {
                talk.session = Session::new(offer());
            }
            let _ = talk.receive(&bytes);
        }

        #[test]
        fn any_pdu_ends(
            opcode in prop::sample::select(vec![0x20u8, 0x21, 0x22, 0x24, 0x25, 0x26, 0x31, 0x32, 0x3f]),
            mut header in prop::collection::vec(any::<u8>(), 48),
            data in prop::collection::vec(any::<u8>(), 0..64),
            tag in 0u32..4,
        ) {
            let mut talk = Talk::new();
            talk.read(1, 4096);
            talk.write(2, 30_000);
            header[0] = opcode;
            header[4] = 0;
            header[5..8].copy_from_slice(U24::new(data.len()).as_bytes());
            header[16..20].copy_from_slice(&tag.to_be_bytes());
            header[24..28].copy_from_slice(&talk.stat_sn.to_be_bytes());
            header.extend_from_slice(&data);
            header.resize(padded(header.len()), 0);
            let _ = talk.receive(&header);
        }
    }
}

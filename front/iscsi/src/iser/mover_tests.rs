use super::super::wire::Header;
use super::*;
use crate::wire::{FINAL, READ, ScsiCommand, ScsiResponse, U24, WRITE};
use lunar_core::mem::{Arena, BLOCK_MAX};
use zerocopy::IntoBytes;

const MEMORY: Remote = Remote { address: 0x1000, key: 0xabc };

fn command(flags: u8, tags: &Tags, data: &[u8]) -> Vec<u8> {
    let command = ScsiCommand {
        flags: FINAL | flags,
        itt: 7.into(),
        expected_len: 8192.into(),
        data_len: U24::new(data.len()),
        ..ScsiCommand::blank()
    };
    [Header::of_initiator(tags).as_bytes(), command.as_bytes(), data].concat()
}

/// Delivers a command to a mover.
fn deliver(mover: &mut DataMover, message: &[u8]) -> Vec<u8> {
    match received(message).expect("a message") {
        Received::Pdu(pdu, named) => {
            mover.deliver(named);
            pdu
        }
        Received::Hello(_) => panic!("a PDU"),
    }
}

fn send(mover: &mut DataMover, pdus: &[&[u8]], tags_all_data: bool) -> Result<Vec<Operation>, Violation> {
    let arena = Arena::new(BLOCK_MAX);
    let bytes = arena.copy(&pdus.concat()).expect("room");
    let mut operations = Vec::new();
    mover.send(bytes.into(), tags_all_data, &mut operations).map(|()| operations)
}

fn response() -> ScsiResponse {
    ScsiResponse { flags: FINAL, itt: 7.into(), ..ScsiResponse::blank() }
}

#[test]
fn messages_have_whole_pdus() {
    let tags = Tags { read: Some(MEMORY), write: None };
    let message = command(READ, &tags, b"12345");
    let named = Named { itt: 7, tags, immediate: 5 };
    let padded = [&message[28..], &[0; 3]].concat();
    assert_eq!(received(&message), Ok(Received::Pdu(padded.clone(), Some(named))));
    let with_padding = [&message[..], &[0; 3]].concat();
    assert_eq!(received(&with_padding), Ok(Received::Pdu(padded, Some(named))));
    for wrong in [&message[..message.len() - 1], &[&message[..], &[0; 4]].concat(), &message[..75], &[], &[0x10; 28]] {
        assert_eq!(received(wrong), Err(Violation::Malformed));
    }
}

#[test]
fn data_in_is_written_and_the_response_invalidates_the_key() {
    for (allowed, key) in [(true, Some(MEMORY.key)), (false, None)] {
        let mut mover = DataMover::new(allowed);
        deliver(&mut mover, &command(READ, &Tags { read: Some(MEMORY), write: None }, &[]));
        let data_in = DataIn { itt: 7.into(), offset: 512.into(), data_len: U24::new(5), ..DataIn::blank() };
        let response = response();
        let pdus = [data_in.as_bytes(), b"hello\0\0\0", response.as_bytes()];
        let operations = send(&mut mover, &pdus, false).expect("memory");
        let [Operation::Write(to, data), Operation::Send(sent, invalidated)] = &operations[..] else {
            panic!("{operations:?}")
        };
        assert_eq!((*to, data.to_vec(), *invalidated), (MEMORY.plus(512), b"hello".to_vec(), key));
        assert_eq!((sent.to_vec(), mover.commands()), (response.as_bytes().to_vec(), 0));
    }
}

#[test]
fn an_r2t_reads_behind_the_immediate_data() {
    let r2t = R2t { itt: 7.into(), offset: 4096.into(), desired_len: 4096.into(), ..R2t::blank() };
    for (tags_all_data, at) in [(false, 96), (true, 4096)] {
        let mut mover = DataMover::new(true);
        deliver(&mut mover, &command(WRITE, &Tags { write: Some(MEMORY), read: None }, &[0; 4000]));
        let operations = send(&mut mover, &[r2t.as_bytes()], tags_all_data).expect("memory");
        assert!(matches!(&operations[..], [Operation::Read(sent, from)] if *sent == r2t && *from == MEMORY.plus(at)));
    }
}

#[test]
fn a_command_with_both_tags_or_none_invalidates_nothing() {
    for tags in [Tags { write: Some(MEMORY), read: Some(MEMORY) }, Tags::default()] {
        let mut mover = DataMover::new(true);
        deliver(&mut mover, &command(WRITE, &tags, &[0; 8]));
        let operations = send(&mut mover, &[response().as_bytes()], false).expect("memory");
        assert!(matches!(&operations[..], [Operation::Send(_, None)]));
    }
}

#[test]
fn a_command_without_memory_ends_the_connection() {
    let mut mover = DataMover::new(true);
    deliver(&mut mover, &command(READ | WRITE, &Tags::default(), &[]));
    for pdu in
        [DataIn { itt: 7.into(), ..DataIn::blank() }.as_bytes(), R2t { itt: 7.into(), ..R2t::blank() }.as_bytes()]
    {
        assert_eq!(send(&mut mover, &[pdu], false).map(|operations| operations.len()), Err(Violation::NoMemory));
    }
}

#[test]
fn the_memory_of_aborted_commands_is_forgotten() {
    let mut mover = DataMover::new(true);
    for itt in 0..200 {
        mover.deliver(Some(Named { itt, tags: Tags::default(), immediate: 0 }));
    }
    mover.forget_ended(200 - STALE_MAX, |_| false);
    assert_eq!(mover.commands(), 200);
    mover.forget_ended(2, |itt| itt < 2);
    assert_eq!(mover.commands(), 3, "two live ones, and the one that is received");
}

#[test]
fn no_more_reads_are_agreed_than_either_end_has_resources_for() {
    for (of_initiator, agreed) in
        [(Some(2), Some(2)), (Some(4), Some(4)), (Some(0x100), Some(4)), (Some(0), None), (None, None)]
    {
        assert_eq!(agreed_reads(of_initiator, 4), agreed, "{of_initiator:?}");
    }
}

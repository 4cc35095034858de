//! Sends Transfers from one process to another, and checks every byte.
//!
//! ```text
//! lunar-st receive LINK[,LINK...]                 listens until a sender has gone
//! lunar-st send LINK[,LINK...] PEER[,PEER...] BYTES COUNT
//! lunar-st addresses LINK[,LINK...]               prints the MAC addresses of Unix links
//! ```
//!
//! A link is `udp:ADDRESS:PORT`, an interface such as `eth0`, or `unix:PATH;PEER` (with a semicolon here, as the comma
//! separates links). A peer is the address with the port, or the MAC address, of the receiver on the link at the same
//! place of the list.

#![allow(missing_docs, reason = "a program has no public interface")]

use lunar_link::MacAddress;
use lunar_st::host::{Host, Options, StError};
use lunar_st::port::LinkSpec;
use lunar_st::{Peer, Reason, Ulp};
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

/// The port of the Transfers.
const PORT: u16 = 1;
/// The most bytes of a Transfer that the receiver has memory for.
const MOST: usize = 1 << 30;

/// The words of a Transfer: those of another number differ.
fn words(number: usize) -> impl Iterator<Item = [u8; 8]> {
    let mut value = number as u64;
    std::iter::repeat_with(move || {
        value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        value.to_le_bytes()
    })
}

fn pattern(number: usize, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    words(number).take(len.div_ceil(8)).for_each(|word| bytes.extend(&word[..(len - bytes.len()).min(8)]));
    bytes
}

fn is_whole(number: usize, bytes: &[u8]) -> bool {
    bytes.chunks(8).zip(words(number)).all(|(chunk, word)| *chunk == word[..chunk.len()])
}

fn host(text: &str) -> Result<Host, Box<dyn Error>> {
    let links = text.split(',').map(|text| text.replace(';', ",").parse());
    let links: Vec<LinkSpec> = links.collect::<Result<_, _>>()?;
    Ok(Host::start(&links)?)
}

fn peer(text: &str) -> Result<Peer, Box<dyn Error>> {
    if let Ok(address) = text.parse() {
        return Ok(Peer::Ip(address));
    }
    let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>()?;
    let mac = bytes.try_into().map_err(|_| format!("{text} is neither an address with a port nor a MAC address"))?;
    Ok(Peer::Station(MacAddress(mac)))
}

fn receive(links: &str) -> Result<(), Box<dyn Error>> {
    let host = host(links)?;
    let listener = host.listen(PORT, Ulp::SOCKET, Options::default())?;
    if let Some(address) = host.local(0) {
        println!("listening at {address}");
    }
    let connection = listener.accept()?;
    for number in 0.. {
        match connection.read(MOST) {
            Ok(bytes) if is_whole(number, &bytes) => {}
            Ok(bytes) => return Err(format!("Transfer {number} of {} bytes is damaged", bytes.len()).into()),
            Err(StError::Ended(Reason::NONE)) => {
                println!("received {number} Transfers");
                return Ok(());
            }
            Err(why) => return Err(why.into()),
        }
    }
    Ok(())
}

/// Prints the MAC addresses of links without an interface, for senders.
fn addresses(links: &str) -> Result<(), Box<dyn Error>> {
    let mac = |text: &str| -> Result<String, Box<dyn Error>> {
        match text.replace(';', ",").parse()? {
            LinkSpec::Frames(config) if config.address.interface().is_none() => {
                Ok(config.address.derived_mac().to_string())
            }
            _ => Err(format!("{text} has the address of its interface: see 'ip address'").into()),
        }
    };
    let all: Vec<String> = links.split(',').map(mac).collect::<Result<_, _>>()?;
    println!("{}", all.join(","));
    Ok(())
}

fn send(links: &str, peers: &str, len: usize, count: usize) -> Result<(), Box<dyn Error>> {
    let host = host(links)?;
    let peers: Vec<Peer> = peers.split(',').map(peer).collect::<Result<_, _>>()?;
    let paths: Vec<(u8, Peer)> = (0..).zip(peers).collect();
    let connection = host.connect(&paths, (PORT, Ulp::SOCKET), Options::default())?;
    let started = Instant::now();
    for number in 0..count {
        connection.write(pattern(number, len))?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let rate = (len * count) as f64 / seconds / f64::from(1 << 20);
    println!("sent {count} Transfers of {len} bytes in {seconds:.3} s: {rate:.1} MiB/s");
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["receive", links] => receive(links),
        ["addresses", links] => addresses(links),
        ["send", links, peers, len, count] => match (len.parse(), count.parse()) {
            (Ok(len), Ok(count)) => send(links, peers, len, count),
            _ => Err("BYTES and COUNT are numbers".into()),
        },
        _ => {
            Err("use: lunar-st receive LINKS | lunar-st addresses LINKS | lunar-st send LINKS PEERS BYTES COUNT".into())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

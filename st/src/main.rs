//! Sends Transfers from one process to another, and checks every byte, or measures how fast they move.
//!
//! ```text
//! lunar-st receive LINK[,LINK...]                 listens until a sender has gone
//! lunar-st send LINK[,LINK...] PEER[,PEER...] BYTES COUNT
//! lunar-st addresses LINK[,LINK...]               prints the MAC addresses of Unix links
//! lunar-st sink LINK[,LINK...] BYTES [touch]      receives Transfers of so many bytes; adds their words up
//! lunar-st source LINK[,LINK...] PEER[,PEER...] BYTES SECONDS
//! ```
//!
//! A link is `udp:ADDRESS:PORT`, an interface such as `eth0` or `xdp:eth0`, or `unix:PATH;PEER` (with a semicolon
//! here, as the comma separates links). A peer is the address with the port, or the MAC address, of the receiver on the
//! link at the same place of the list.

#![allow(missing_docs, reason = "a program has no public interface")]

use lunar_link::MacAddress;
use lunar_st::host::{Connection, Host, Options, StError};
use lunar_st::port::LinkSpec;
use lunar_st::{Peer, Reason, Ulp};
use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The port of the Transfers.
const PORT: u16 = 1;
/// The most bytes of a Transfer that the receiver has memory for.
const MOST: usize = 1 << 30;

/// Calls in progress when the speed is measured: the next Transfer begins while the last one ends.
const AT_ONCE: usize = 2;

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

fn number(text: &str) -> Result<usize, Box<dyn Error>> {
    text.parse().map_err(|_| "BYTES is a number".into())
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
    match host.local(0) {
        Some(address) => println!("listening at {address}"),
        None => println!("listening"),
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
            LinkSpec::Frames(config) if !config.address.has_own_mac() => Ok(config.address.derived_mac().to_string()),
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

/// Receives Transfers of so many bytes until the sender has gone, and adds their words up or does not look at them.
fn sink(links: &str, len: usize, touches: bool) -> Result<(), Box<dyn Error>> {
    let host = host(links)?;
    let connection = host.listen(PORT, Ulp::SOCKET, Options::default())?.accept()?;
    let (received, sum) = (AtomicU64::new(0), AtomicU64::new(0));
    at_once(|| {
        let mut memory = vec![0; len];
        loop {
            match connection.read_into(memory) {
                Ok(bytes) => {
                    received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    if touches {
                        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
                        sum.fetch_add(words.fold(0, u64::wrapping_add), Ordering::Relaxed);
                    }
                    memory = bytes;
                    memory.resize(len, 0);
                }
                Err(StError::Ended(Reason::NONE)) => return Ok(()),
                Err(why) => return Err(why),
            }
        }
    })?;
    println!("received {} bytes, sum {:x}", received.into_inner(), sum.into_inner());
    Ok(())
}

/// Sends Transfers of so many bytes for so many seconds.
fn source(links: &str, peers: &str, len: usize, seconds: f64) -> Result<(), Box<dyn Error>> {
    let host = host(links)?;
    let peers: Vec<Peer> = peers.split(',').map(peer).collect::<Result<_, _>>()?;
    let paths: Vec<(u8, Peer)> = (0..).zip(peers).collect();
    let connection: Connection = host.connect(&paths, (PORT, Ulp::SOCKET), Options::default())?;
    let (started, sent) = (Instant::now(), AtomicU64::new(0));
    let end = started + Duration::try_from_secs_f64(seconds)?;
    at_once(|| {
        let mut memory = vec![0; len];
        while Instant::now() < end {
            memory = connection.write(memory)?;
            sent.fetch_add(len as u64, Ordering::Relaxed);
        }
        Ok(())
    })?;
    println!("sent {} bytes in {:.3} s", sent.into_inner(), started.elapsed().as_secs_f64());
    Ok(())
}

/// Does the same work in some threads; returns the first error.
fn at_once(work: impl Fn() -> Result<(), StError> + Sync) -> Result<(), Box<dyn Error>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(&work)).collect();
        let ended =
            threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread has panicked")?.map_err(Into::into));
        ended.collect()
    })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["receive", links] => receive(links),
        ["addresses", links] => addresses(links),
        ["sink", links, len] => number(len).and_then(|len| sink(links, len, false)),
        ["sink", links, len, "touch"] => number(len).and_then(|len| sink(links, len, true)),
        ["source", links, peers, len, seconds] => match (len.parse(), seconds.parse()) {
            (Ok(len), Ok(seconds)) => source(links, peers, len, seconds),
            _ => Err("BYTES and SECONDS are numbers".into()),
        },
        ["send", links, peers, len, count] => match (len.parse(), count.parse()) {
            (Ok(len), Ok(count)) => send(links, peers, len, count),
            _ => Err("BYTES and COUNT are numbers".into()),
        },
        _ => Err("use: lunar-st receive LINKS | lunar-st addresses LINKS | lunar-st send LINKS PEERS BYTES COUNT | \
                 lunar-st sink LINKS BYTES [touch] | lunar-st source LINKS PEERS BYTES SECONDS"
            .into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

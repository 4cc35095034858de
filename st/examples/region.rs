//! Memory regions in one program: one end grants a region; the other one writes into it, reads from it, and counts
//! in it.

#![allow(missing_docs, reason = "a program has no public interface")]

use lunar_st::host::{Host, Options};
use lunar_st::{Access, FetchCode, FetchRequest, Peer, Ulp};
use std::error::Error;
use std::time::Duration;

/// The port of the region.
const PORT: u16 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let link = "udp:127.0.0.1:0".parse()?;
    let (server, client) = (Host::start(std::slice::from_ref(&link))?, Host::start(&[link])?);
    let listener = server.listen(PORT, Ulp::RAW, Options::default())?;
    let address = server.local(0).ok_or("a UDP link has an address")?;
    let near = client.connect(&[(0, Peer::Ip(address))], (PORT, Ulp::RAW), Options::default())?;
    let far = listener.accept()?;
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        // The owner of the memory grants it once.
        let granting = scope.spawn(|| far.grant_region(Access::ALL, 4096));
        let region = near.request_region(Access::ALL, 4096)?;
        let memory = granting.join().map_err(|_| "the thread has panicked")??;
        // Then its program does nothing: it is only told of a Put.
        region.put(100, b"hello".to_vec(), 7)?;
        let put = memory.poll(Duration::from_secs(1))?;
        println!("{} bytes at {} with {}: {:?}", put.len, put.offset, put.opaque, memory.read(100, 5)?);
        println!("read back: {:?}", region.get(100, 5)?);
        let add = FetchRequest { region: 0, offset: 8, code: FetchCode::ADD, is_wide: true, operand: 5, expected: 0 };
        println!("the counter was {}, then {}", region.fetch(add)?, region.fetch(add)?);
        Ok(())
    })
}

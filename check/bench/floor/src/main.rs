//! What sockets alone cost on this machine: the floor that no target gets below.
//!
//! `floor serve` and `floor drive` exchange messages of the sizes that a storage protocol has (48 bytes of header, and
//! payload) in batches as they come, and do nothing else. `floor iscsi` and `floor nvme` speak just enough of a
//! protocol that an initiator or a host takes them for an empty disk: the least that the protocol costs.

mod drive;
mod iscsi;
mod net;
mod nvme;
mod output;
mod serve;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use lunar_load::cost::pin;
use lunar_load::options::size;
use std::net::SocketAddr;

/// Bytes of a message without payload: an iSCSI header, and near enough to those of other protocols.
const HEADER: usize = 48;
/// Bytes of payload that a message may have.
const PAYLOAD_MAX: u64 = 1 << 20;

#[derive(Parser)]
#[command(name = "floor", about = "What sockets alone cost")]
struct Line {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Answer every request with a reply
    Serve(Serve),
    /// Keep requests outstanding, and count
    Drive(drive::Drive),
    /// An iSCSI target with an empty disk that forgets what is written
    Iscsi(iscsi::Iscsi),
    /// An NVMe/TCP controller with an empty namespace that forgets what is written
    Nvme(nvme::Nvme),
}

/// How a server runs.
#[derive(Args, Clone, Debug)]
struct Server {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1:3299")]
    listen: SocketAddr,
    /// Run on this CPU
    #[arg(long)]
    cpu: Option<usize>,
    /// Poll the sockets instead of sleeping
    #[arg(long)]
    spin: bool,
}

/// What messages look like.
#[derive(Args, Clone, Debug)]
struct Sizes {
    /// Bytes of payload of a request
    #[arg(long, default_value = "0", value_parser = payload)]
    request: usize,
    /// Bytes of payload of a reply
    #[arg(long, default_value = "4k", value_parser = payload)]
    reply: usize,
}

#[derive(Args, Clone, Debug)]
struct Serve {
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    sizes: Sizes,
}

fn payload(text: &str) -> Result<usize, String> {
    size(text)?
        .try_into()
        .ok()
        .filter(|bytes| *bytes as u64 <= PAYLOAD_MAX)
        .ok_or_else(|| format!("{text} is too much"))
}

fn main() -> Result<()> {
    match Line::parse().what {
        What::Serve(Serve { server, sizes }) => {
            server.cpu.map_or(Ok(()), pin)?;
            net::run(&server, || serve::Connection::new(&sizes))
        }
        What::Iscsi(iscsi) => {
            iscsi.server.cpu.map_or(Ok(()), pin)?;
            net::run(&iscsi.server, || iscsi::Connection::new(&iscsi))
        }
        What::Nvme(nvme) => {
            nvme.server.cpu.map_or(Ok(()), pin)?;
            net::run(&nvme.server, || nvme::Connection::new(&nvme))
        }
        What::Drive(drive) => {
            drive.cpu.map_or(Ok(()), pin)?;
            drive::run(&drive)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// Serves from a thread that ends with the test's process; gives the address once it is there.
    fn start(args: &[&str]) -> SocketAddr {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("bound");
        drop(free);
        let listen = address.to_string();
        let line = Line::parse_from(["floor"].iter().chain(args).copied().chain(["--listen", &listen]));
        std::thread::spawn(move || match line.what {
            What::Serve(Serve { server, sizes }) => net::run(&server, || serve::Connection::new(&sizes)),
            What::Iscsi(iscsi) => net::run(&iscsi.server, || iscsi::Connection::new(&iscsi)),
            What::Nvme(nvme) => net::run(&nvme.server, || nvme::Connection::new(&nvme)),
            What::Drive(_) => Ok(()),
        });
        while std::net::TcpStream::connect(address).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        address
    }

    #[derive(Parser)]
    struct Load {
        #[command(flatten)]
        options: lunar_load::Options,
    }

    #[test]
    fn an_initiator_takes_it_for_a_disk() {
        let url = format!("iscsi://{}", start(&["iscsi", "--size", "1G"]));
        for args in [
            "--bs 512 --depth 64",
            "--bs 64k --sessions 2",
            "--bs 3M --depth 2",
            "--bs 64k --initial-r2t --no-immediate-data",
        ] {
            takes_for_a_disk(&url, args);
        }
    }

    #[test]
    fn a_host_takes_it_for_a_disk() {
        let url = format!("nvme-tcp://{}/nqn.2026-01.io.lunar:floor/1", start(&["nvme", "--size", "1G"]));
        for args in ["--bs 512 --depth 64", "--bs 16k --depth 3", "--bs 64k --sessions 2", "--bs 1M --depth 2"] {
            takes_for_a_disk(&url, args);
        }
    }

    fn takes_for_a_disk(url: &str, args: &str) {
        for rw in ["randrw", "write"] {
            let line = ["load", url, "--time", "0.1", "--warmup", "0", "--timeout", "5", "--rw", rw];
            let load = Load::parse_from(line.into_iter().chain(args.split_whitespace()));
            let report = lunar_load::run(&load.options).expect("a report");
            assert!(report.is_good() && report.iops > 0.0, "{args}: {report}");
            assert_eq!(report.blocks, 2 << 20);
        }
    }

    #[test]
    fn requests_are_answered() {
        for sizes in [["--request", "0", "--reply", "4k"], ["--request", "100k", "--reply", "7"]] {
            let address = start(&[&["serve"][..], &sizes].concat()).to_string();
            let line = ["floor", "drive", &address, "--time", "0.1", "--warmup", "0.01", "--sessions", "2"];
            let What::Drive(drive) = Line::parse_from(line.iter().chain(&sizes).copied()).what else { panic!("drive") };
            drive::run(&drive).expect("a report");
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Line::command().debug_assert();
    }
}

//! Measures what the sockets of this host cost without a storage target: the floor that no target gets below.
//!
//! `floor serve` and `floor drive` exchange messages of the sizes of a storage protocol (a header of 48 bytes, and
//! payload) and do nothing else. `floor iscsi` and `floor nvme` implement just enough of a protocol that an initiator
//! or host uses them as an empty disk: the lowest cost of the protocol.

mod drive;
mod iscsi;
mod net;
mod nvme;
mod options;
mod output;
mod serve;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use lunar_load::cost::pin;
use options::{Server, Sizes};

#[derive(Parser)]
#[command(name = "floor", about = "Measures the cost of sockets without a storage target")]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answers each request with a reply
    Serve(Serve),
    /// Keeps requests outstanding and measures
    Drive(drive::Drive),
    /// An iSCSI target with an empty disk that discards writes
    Iscsi(iscsi::Iscsi),
    /// An NVMe/TCP controller with an empty namespace that discards writes
    Nvme(nvme::Nvme),
}

#[derive(Args, Clone, Debug)]
struct Serve {
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    sizes: Sizes,
}

fn main() -> Result<()> {
    match CommandLine::parse().command {
        Command::Serve(Serve { server, sizes }) => {
            server.cpu.map_or(Ok(()), pin)?;
            net::run(&server, || serve::Connection::new(&sizes))
        }
        Command::Iscsi(iscsi) => {
            iscsi.server.cpu.map_or(Ok(()), pin)?;
            net::run(&iscsi.server, || iscsi::Connection::new(&iscsi))
        }
        Command::Nvme(nvme) => {
            nvme.server.cpu.map_or(Ok(()), pin)?;
            net::run(&nvme.server, || nvme::Connection::new(&nvme))
        }
        Command::Drive(drive) => {
            drive.cpu.map_or(Ok(()), pin)?;
            drive::run(&drive)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::net::SocketAddr;

    /// Runs a server on a thread that ends with the test's process; returns its address when it listens.
    fn start(args: &[&str]) -> SocketAddr {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("bound");
        drop(free);
        let listen = address.to_string();
        let line = CommandLine::parse_from(["floor"].iter().chain(args).copied().chain(["--listen", &listen]));
        std::thread::spawn(move || match line.command {
            Command::Serve(Serve { server, sizes }) => net::run(&server, || serve::Connection::new(&sizes)),
            Command::Iscsi(iscsi) => net::run(&iscsi.server, || iscsi::Connection::new(&iscsi)),
            Command::Nvme(nvme) => net::run(&nvme.server, || nvme::Connection::new(&nvme)),
            Command::Drive(_) => Ok(()),
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
    fn an_initiator_uses_the_iscsi_server_as_a_disk() {
        let url = format!("iscsi://{}", start(&["iscsi", "--size", "1G"]));
        for args in [
            "--bs 512 --depth 64",
            "--bs 64k --sessions 2",
            "--bs 3M --depth 2",
            "--bs 64k --initial-r2t --no-immediate-data",
        ] {
            check_disk(&url, args);
        }
    }

    #[test]
    fn a_host_uses_the_nvme_server_as_a_disk() {
        let url = format!("nvme-tcp://{}/nqn.2026-01.io.lunar:floor/1", start(&["nvme", "--size", "1G"]));
        for args in ["--bs 512 --depth 64", "--bs 16k --depth 3", "--bs 64k --sessions 2", "--bs 1M --depth 2"] {
            check_disk(&url, args);
        }
    }

    fn check_disk(url: &str, args: &str) {
        for rw in ["randrw", "write"] {
            let line = ["load", url, "--time", "0.1", "--warmup", "0", "--timeout", "5", "--rw", rw];
            let load = Load::parse_from(line.into_iter().chain(args.split_whitespace()));
            let report = lunar_load::run(&load.options).expect("a report");
            assert!(report.is_good() && report.iops > 0.0, "{args}: {report}");
            assert_eq!(report.blocks, 2 << 20);
        }
    }

    #[test]
    fn requests_are_answered_with_replies() {
        for sizes in [["--request", "0", "--reply", "4k"], ["--request", "100k", "--reply", "7"]] {
            let address = start(&[&["serve"][..], &sizes].concat()).to_string();
            let line = ["floor", "drive", &address, "--time", "0.1", "--warmup", "0.01", "--sessions", "2"];
            let Command::Drive(drive) = CommandLine::parse_from(line.iter().chain(&sizes).copied()).command else {
                panic!("drive")
            };
            drive::run(&drive).expect("a report");
        }
    }

    #[test]
    fn the_options_are_consistent() {
        CommandLine::command().debug_assert();
    }
}

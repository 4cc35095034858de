//! The options that the commands share, and the sizes of messages.

use clap::Args;
use lunar_load::options::size;
use std::net::SocketAddr;

/// The length of a message without payload, in bytes: an iSCSI header; other protocols have similar ones.
pub(crate) const HEADER: usize = 48;
/// The longest payload of a message, in bytes.
const PAYLOAD_MAX: u64 = 1 << 20;

/// The options of a server.
#[derive(Args, Clone, Debug)]
pub(crate) struct Server {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1:3299")]
    pub(crate) listen: SocketAddr,
    /// CPU to run on
    #[arg(long)]
    pub(crate) cpu: Option<usize>,
    /// Poll the sockets instead of sleeping
    #[arg(long)]
    pub(crate) spin: bool,
}

/// The sizes of messages.
#[derive(Args, Clone, Debug)]
pub(crate) struct Sizes {
    /// Payload of a request, in bytes
    #[arg(long, default_value = "0", value_parser = payload)]
    pub(crate) request: usize,
    /// Payload of a reply, in bytes
    #[arg(long, default_value = "4k", value_parser = payload)]
    pub(crate) reply: usize,
}

fn payload(text: &str) -> Result<usize, String> {
    size(text)?
        .try_into()
        .ok()
        .filter(|bytes| *bytes as u64 <= PAYLOAD_MAX)
        .ok_or_else(|| format!("{text} is too large"))
}

//! The contract between a front and the command line of `lunar serve`.
//!
//! * [`draft`]: the configuration that the options become, in memory
//! * [`address`]: addresses as options name them; [`secret`]: files with secrets; [`mistake`]: mistakes in options
//! * here: the declarations of each front: its options, its part of the configuration, and its part of the banner
//!
//! A front declares its options in its own folder. The program adds them to its own, reads the configuration out of the
//! draft, and prints the banner; it names no front.

pub mod address;
pub mod draft;
pub mod mistake;
pub mod secret;

pub use draft::{Draft, Keys, Listen};
pub use mistake::OptionMistake;

use clap::{ArgMatches, Command};
use lunar_core::access::Secret;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::Path;

/// Name of the one target of a command line in its draft.
pub const TARGET: &str = "served";

/// The options of a front.
pub trait FrontOptions: Sync {
    /// Adds the options to a command.
    fn declare(&self, command: Command) -> Command;

    /// Reads them.
    ///
    /// # Errors
    /// When an option is missing that another one needs.
    fn read(&self, matches: &ArgMatches) -> Result<Box<dyn FrontRequest>, clap::Error>;
}

/// A client that has credentials of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Client {
    /// Its name.
    pub name: String,
    /// The key by which it authenticates.
    pub key: Option<Secret>,
    /// The key by which the subsystem authenticates to it.
    pub own: Option<Secret>,
    /// The pre-shared key of its TLS connections.
    pub tls_key: Option<Secret>,
}

/// The other options that a front uses.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// The names of the portal groups, in the order of their tags; at least one.
    pub groups: &'a [String],
    /// Whether an option gives an address to any front: then no front listens at addresses of its own choice.
    pub is_addressed: bool,
    /// `--advertise`.
    pub advertise: &'a [SocketAddr],
    /// Whether an option that belongs to no front restricts which clients may log in, or asks for authentication.
    pub is_restricted: bool,
    /// The secret of `--user`.
    pub user: Option<&'a Secret>,
}

/// The lines of a banner about a front.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Shown {
    /// Name of the transport.
    pub transport: &'static str,
    /// Its addresses, as labelled lines: `portal   127.0.0.1:3260`.
    pub places: Vec<String>,
    /// How common clients connect.
    pub connect: Vec<String>,
    /// The option that would restrict it to this machine, if other machines reach it.
    pub keeps_local: Option<&'static str>,
}

/// A front's part of one command line.
pub trait FrontRequest: Debug + Send + Sync {
    /// Whether its options give it addresses.
    fn is_addressed(&self) -> bool;

    /// The number of portal groups of its addresses; every target has one at least.
    fn portal_groups(&self) -> usize {
        1
    }

    /// Clients with credentials of their own.
    fn clients(&self) -> Vec<Client>;

    /// The names of clients that reach it on this machine, without a network.
    fn local_clients(&self) -> Vec<String>;

    /// Adds its part of the configuration.
    ///
    /// # Errors
    /// A mistake in its options.
    fn configure(&self, given: &Given<'_>, draft: &mut Draft) -> Result<(), OptionMistake>;

    /// Remarks for the operator before it serves.
    fn remarks(&self, given: &Given<'_>) -> Vec<String> {
        let _ = given;
        Vec::new()
    }

    /// Its part of the banner; `None` if it serves nothing.
    fn shown(&self, serving: &Serving<'_>) -> Option<Shown>;
}

/// The service, as the banner describes it.
#[derive(Clone, Copy, Debug)]
pub struct Serving<'a> {
    /// The iSCSI name of the target.
    pub iqn: &'a str,
    /// The NQN of the NVM subsystem.
    pub nqn: &'a str,
    /// The portals by their names in the draft, with the addresses at which they listen.
    pub portals: &'a BTreeMap<String, SocketAddr>,
    /// The first `--advertise`.
    pub advertise: Option<SocketAddr>,
    /// The sockets of the draft, by the names of their sections, and the places that fronts have chosen themselves.
    pub sockets: &'a BTreeMap<String, Box<Path>>,
}

impl Serving<'_> {
    /// The addresses at which the portals of a protocol listen, in the order of the command line.
    #[must_use]
    pub fn listening(&self, protocol: &str) -> Vec<SocketAddr> {
        let is_own = |name: &str| name.strip_prefix(protocol).is_some_and(|rest| rest.starts_with('-'));
        self.portals.iter().filter(|(name, _)| is_own(name)).map(|(_, address)| *address).collect()
    }
}

/// Addresses as a banner lists them.
#[must_use]
pub fn listed(portals: &[SocketAddr]) -> String {
    portals.iter().map(ToString::to_string).collect::<Vec<_>>().join("  ")
}

/// The option, if other machines reach one of these addresses.
#[must_use]
pub fn keeps_local(portals: &[SocketAddr], option: &'static str) -> Option<&'static str> {
    portals.iter().any(|portal| !portal.ip().is_loopback()).then_some(option)
}

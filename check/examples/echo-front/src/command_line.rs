//! The option of `lunar serve` for echo.

use crate::{NAME, PORT};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use lunar_engine::command_line::address::parse;
use lunar_engine::command_line::{
    Client, Draft, FrontOptions, FrontRequest, Given, Listen, OptionMistake, Serving, Shown, keeps_local, listed,
};
use std::net::SocketAddr;

/// The options of echo.
#[derive(Clone, Copy, Debug)]
pub struct EchoOptions;

/// The options, as they were given.
#[derive(Args, Debug)]
struct EchoRequest {
    /// Where to listen for echo, ADDRESS[:PORT]; without this option, nowhere
    #[arg(long, value_name = "ADDRESS", value_parser = parse::<PORT>)]
    echo: Vec<SocketAddr>,
}

impl FrontOptions for EchoOptions {
    fn declare(&self, command: Command) -> Command {
        EchoRequest::augment_args(command)
    }

    fn read(&self, matches: &ArgMatches) -> Result<Box<dyn FrontRequest>, clap::Error> {
        Ok(Box::new(EchoRequest::from_arg_matches(matches)?))
    }
}

impl FrontRequest for EchoRequest {
    fn is_addressed(&self) -> bool {
        !self.echo.is_empty()
    }

    fn clients(&self) -> Vec<Client> {
        Vec::new()
    }

    fn local_clients(&self) -> Vec<String> {
        Vec::new()
    }

    fn configure(&self, given: &Given<'_>, draft: &mut Draft) -> Result<(), OptionMistake> {
        for &address in &self.echo {
            draft.listen(&Listen {
                protocol: NAME,
                option: "--echo",
                address,
                group: &given.groups[0],
                advertise: None,
                is_listed: true,
                is_optional: false,
            })?;
        }
        Ok(())
    }

    fn shown(&self, serving: &Serving<'_>) -> Option<Shown> {
        let portals = serving.listening(NAME);
        let first = portals.first()?;
        Some(Shown {
            transport: NAME,
            places: vec![format!("echo     {}", listed(&portals))],
            connect: vec![format!("echo     nc {} {}", first.ip(), first.port())],
            keeps_local: keeps_local(&portals, "--echo 127.0.0.1"),
        })
    }
}

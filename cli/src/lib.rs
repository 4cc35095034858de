//! What an operator types: one word per thing, and the same words as in the configuration. Everything that asks or
//! changes a service does it through its API, and nothing else.
//!
//! * [`declare`]: the commands and their options, made from the declarations of the configuration's keys
//! * [`act`]: what they do; [`call`]: with which service
//! * [`show`]: what is said to people, in colour on a terminal
//! * [`local`]: what needs no service: explaining, checking
//! * [`install`], [`manual`]: units, manual pages, completions

pub mod act;
pub mod call;
pub mod declare;
pub mod install;
pub mod local;
pub mod manual;
pub mod show;

use clap::{ArgMatches, Command};
use std::fmt;

/// What the process ends with if the service is not running.
pub const EXIT_NOT_RUNNING: u8 = 3;
/// What the process ends with if who asks may not.
pub const EXIT_NOT_ALLOWED: u8 = 4;

/// Why a command did not do what it was told to, in words that say what to do.
#[derive(Debug)]
pub struct Failure {
    /// What the process ends with.
    pub exit: u8,
    /// In words; empty if all was said.
    pub words: String,
}

impl Failure {
    /// A failure of the usual sort.
    #[must_use]
    pub fn new(words: impl fmt::Display) -> Self {
        Self { exit: 1, words: words.to_string() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Failure {}

impl From<lunar_api::client::Trouble> for Failure {
    fn from(why: lunar_api::client::Trouble) -> Self {
        use lunar_api::client::Trouble;
        let exit = match &why {
            Trouble::NotRunning(_) => EXIT_NOT_RUNNING,
            Trouble::NotAllowed(_) => EXIT_NOT_ALLOWED,
            Trouble::Refused(..) | Trouble::Broken(_) => 1,
        };
        Self { exit, words: why.to_string() }
    }
}

/// The commands of an operator.
#[must_use]
pub fn commands() -> Vec<Command> {
    let mut all = declare::nouns();
    all.extend(declare::whole());
    all.extend([local::command(), install::command(), manual::completions(), manual::pages()]);
    all
}

/// Does what the command of this name is told to; `None` if there is no such command here. `program` is the whole
/// command line, for manual pages and completions.
#[must_use]
pub fn run(name: &str, matches: &ArgMatches, program: &Command) -> Option<Result<(), Failure>> {
    Some(match name {
        "config" => local::run(matches),
        "install" => install::run(matches, program),
        "completions" => manual::print_completions(matches, program),
        "manual" => manual::write_pages(matches, program),
        name => return act::run(name, matches),
    })
}

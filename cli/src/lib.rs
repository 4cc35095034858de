//! The operator's commands. Their words are those of the configuration. Commands that concern a service use its API and
//! nothing else.
//!
//! * [`declare`]: the commands and their options, derived from the declarations of the configuration's keys
//! * [`act`]: the commands that use the API; [`call`]: the selection of the service
//! * [`show`], [`explained`]: the output for people
//! * [`top`]: the load on a terminal; [`doctor`]: the examination of a target
//! * [`attach`]: `lunar attach`, `lunar detach`; [`scsi`]: `lunar scsi`; `web`: `lunar web`
//! * [`local`]: `lunar config`
//! * [`install`], [`manual`]: `lunar install`, manual pages and completions
//! * [`failure`]: failures and exit codes

pub mod act;
pub mod attach;
pub mod call;
pub mod declare;
pub mod doctor;
pub mod explained;
pub mod failure;
pub mod install;
pub mod local;
pub mod manual;
pub mod scsi;
pub mod show;
pub mod top;
mod web;

pub use failure::{EXIT_NOT_ALLOWED, EXIT_NOT_RUNNING, Failure};

use clap::{ArgMatches, Command};
use lunar_control::Schema;

/// The commands of an operator.
#[must_use]
pub fn commands(schema: &'static Schema) -> Vec<Command> {
    let mut all = declare::resource_commands(schema);
    all.extend(declare::service_commands());
    all.extend([
        top::command(),
        doctor::command(),
        scsi::command(),
        local::command(schema),
        install::command(),
        manual::completions(),
        manual::pages(),
    ]);
    all.extend(attach::commands());
    all
}

/// Runs the command of this name; `None` if it is not one of these. `program` is the whole command line, from which
/// manual pages and completions are generated.
#[must_use]
pub fn run(
    schema: &'static Schema,
    name: &str,
    matches: &ArgMatches,
    program: &Command,
) -> Option<Result<(), Failure>> {
    Some(match name {
        "config" => local::run(schema, matches),
        "install" => install::run(matches, program),
        "completions" => manual::print_completions(matches, program),
        "manual" => manual::write_pages(matches, program),
        name => return act::run(schema, name, matches),
    })
}

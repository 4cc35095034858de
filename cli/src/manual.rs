//! Shell completions and manual pages, made from the commands themselves.

use crate::{Failure, show};
use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;
use std::path::{Path, PathBuf};

/// `lunar completions`
#[must_use]
pub fn completions() -> Command {
    Command::new("completions")
        .about("Print completions for a shell: `source <(lunar completions bash)`")
        .arg(Arg::new("shell").value_name("SHELL").required(true).value_parser(value_parser!(Shell)))
}

/// `lunar manual`
#[must_use]
pub fn pages() -> Command {
    let folder = Arg::new("folder").value_name("FOLDER").required(true).value_parser(value_parser!(PathBuf));
    Command::new("manual").about("Write the manual pages into a folder").arg(folder.help("It has to be there"))
}

/// Prints them.
///
/// # Errors
/// When nobody takes them.
pub fn print_completions(matches: &ArgMatches, program: &Command) -> Result<(), Failure> {
    let Some(shell) = matches.get_one::<Shell>("shell") else { return Err(Failure::new("for which shell?")) };
    show::print(&script(*shell, program)).map_err(Failure::new)
}

/// Writes them.
///
/// # Errors
/// When the folder does not take them.
pub fn write_pages(matches: &ArgMatches, program: &Command) -> Result<(), Failure> {
    let Some(folder) = matches.get_one::<PathBuf>("folder") else { return Err(Failure::new("into which folder?")) };
    into_folder(folder, program)
}

/// The completions for a shell.
#[must_use]
pub fn script(shell: Shell, program: &Command) -> String {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut program.clone(), program.get_name().to_owned(), &mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Writes a page for each command into a folder.
///
/// # Errors
/// When it does not take them.
pub fn into_folder(folder: &Path, program: &Command) -> Result<(), Failure> {
    let unable = |why: std::io::Error| Failure::new(format!("{}: {why}", folder.display()));
    clap_mangen::generate_to(program.clone(), folder).map_err(unable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_shell_completes_a_key_and_every_command_has_a_page() {
        let program = Command::new("lunar").subcommands(crate::commands());
        for shell in Shell::value_variants() {
            assert!(script(*shell, &program).contains("block-size"), "{shell}");
        }
        let folder = std::env::temp_dir().join(format!("lunar-manual-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        into_folder(&folder, &program).expect("it takes them");
        let page = std::fs::read_to_string(folder.join("lunar-volume-create.1"));
        std::fs::remove_dir_all(&folder).expect("it is ours");
        assert!(page.expect("there is one").contains("block"));
    }
}

//! Shell completions and manual pages, generated from the commands.

use crate::failure::Failure;
use crate::show;
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
    Command::new("manual").about("Write the manual pages to a folder").arg(folder.help("An existing folder"))
}

/// Prints the completions.
///
/// # Errors
/// If they cannot be written to standard output.
pub fn print_completions(matches: &ArgMatches, program: &Command) -> Result<(), Failure> {
    let Some(shell) = matches.get_one::<Shell>("shell") else { return Err(Failure::new("the shell is missing")) };
    show::print(&script(*shell, program)).map_err(Failure::new)
}

/// Writes the manual pages.
///
/// # Errors
/// If the folder cannot be written.
pub fn write_pages(matches: &ArgMatches, program: &Command) -> Result<(), Failure> {
    let Some(folder) = matches.get_one::<PathBuf>("folder") else { return Err(Failure::new("the folder is missing")) };
    into_folder(folder, program)
}

/// The completions for a shell.
#[must_use]
pub fn script(shell: Shell, program: &Command) -> String {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut program.clone(), program.get_name().to_owned(), &mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Writes a manual page for each command into a folder.
///
/// # Errors
/// If the folder cannot be written.
pub fn into_folder(folder: &Path, program: &Command) -> Result<(), Failure> {
    let unable = |why: std::io::Error| Failure::new(format!("{}: {why}", folder.display()));
    clap_mangen::generate_to(program.clone(), folder).map_err(unable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_shell_completes_keys_and_every_command_has_a_manual_page() {
        let program = Command::new("lunar").subcommands(crate::commands(&lunar_control::testing::SAMPLE));
        for shell in Shell::value_variants() {
            assert!(script(*shell, &program).contains("block-size"), "{shell}");
        }
        let folder = std::env::temp_dir().join(format!("lunar-manual-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        into_folder(&folder, &program).expect("written");
        let page = std::fs::read_to_string(folder.join("lunar-volume-create.1"));
        std::fs::remove_dir_all(&folder).expect("our folder");
        assert!(page.expect("a page").contains("block"));
    }
}

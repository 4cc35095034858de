//! `lunar install`: what a system needs to run the service: the unit, its user, its folders, a configuration to begin
//! with, manual pages and completions.

use crate::{Failure, manual, show};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use clap_complete::Shell;
use std::fmt::Write;
use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The unit, with the place of the program left open.
const UNIT: &str = include_str!("../files/lunar.service");
/// The user that it runs as (sysusers.d).
const USER: &str = include_str!("../files/sysusers.conf");
/// Whose its folders are (tmpfiles.d).
const FOLDERS: &str = include_str!("../files/tmpfiles.conf");
/// The configuration to begin with.
const CONFIG: &str = include_str!("../files/lunar.toml");
/// Where the program goes that is started from elsewhere: a build, a download.
const OWN: &str = "/usr/local/bin/lunar";
/// Where the system keeps programs: what is there stays there.
const SYSTEM: [&str; 2] = ["/usr", "/opt"];
/// What the service does not see (`ProtectHome` and `PrivateTmp` in the unit): it could not start from there.
const HIDDEN: [&str; 5] = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];
/// What stands in the unit for the program.
const PROGRAM: &str = "@PROGRAM@";
/// What makes the system see what was written, and why.
const AFTERWARDS: [(&str, &[&str]); 3] = [
    ("systemd-sysusers", &["lunar.conf"]),
    ("systemd-tmpfiles", &["--create", "lunar.conf"]),
    ("systemctl", &["daemon-reload"]),
];

/// The command.
#[must_use]
pub fn command() -> Command {
    let path = |name: &'static str| Arg::new(name).long(name).value_parser(value_parser!(PathBuf));
    Command::new("install")
        .about("Write the systemd unit, its user, a configuration to begin with, manual pages and completions")
        .after_help("A configuration that is there already stays as it is.")
        .args([
            path("root").value_name("DIR").help("Write below this folder, and start nothing: for packages"),
            path("program").value_name("PATH").help(
                "The program that the unit starts [default: this one, which is copied to /usr/local/bin unless it \
                     is below /usr or /opt; /usr/bin/lunar with --root]",
            ),
            Arg::new("dry-run").long("dry-run").action(ArgAction::SetTrue).help("Only print what would be written"),
        ])
}

/// A file to write.
#[derive(Debug)]
struct New {
    /// From the root.
    path: &'static str,
    text: String,
    mode: u32,
    /// Whether it stays as it is if it is there.
    keep: bool,
}

fn files(program: &Path, commands: &Command) -> Vec<New> {
    let new = |path, text: String| New { path, text, mode: 0o644, keep: false };
    let script = |shell| manual::script(shell, commands);
    vec![
        new("usr/lib/systemd/system/lunar.service", UNIT.replace(PROGRAM, &program.display().to_string())),
        new("usr/lib/sysusers.d/lunar.conf", USER.to_owned()),
        new("usr/lib/tmpfiles.d/lunar.conf", FOLDERS.to_owned()),
        New { path: "etc/lunar/lunar.toml", text: CONFIG.to_owned(), mode: 0o600, keep: true },
        new("usr/share/bash-completion/completions/lunar", script(Shell::Bash)),
        new("usr/share/zsh/site-functions/_lunar", script(Shell::Zsh)),
        new("usr/share/fish/vendor_completions.d/lunar.fish", script(Shell::Fish)),
    ]
}

/// Where manual pages are, from the root.
const PAGES: &str = "usr/share/man/man1";

/// Does it.
///
/// # Errors
/// What could not be written.
pub fn run(matches: &ArgMatches, commands: &Command) -> Result<(), Failure> {
    let root = matches.get_one::<PathBuf>("root");
    let this = if root.is_none() { std::env::current_exe().ok() } else { None };
    let program = Program::of(matches.get_one::<PathBuf>("program"), this).map_err(Failure::new)?;
    let files = files(&program.path, commands);
    if matches.get_flag("dry-run") {
        let copy = program.from.as_ref().map(|from| format!("# {OWN}, mode 0755: {}\n\n", from.display()));
        return say(&(copy.unwrap_or_default() + &printed(&files)));
    }
    let mut told = String::new();
    if let Some(from) = &program.from {
        copy(from, &program.path).map_err(|why| unable(&program.path, &why))?;
        let _ = writeln!(told, "wrote {}", program.path.display());
    }
    let folder = root.map_or_else(|| Path::new("/"), PathBuf::as_path);
    told += &write(folder, &files)?;
    let pages = folder.join(PAGES);
    std::fs::create_dir_all(&pages).map_err(|why| unable(&pages, &why))?;
    manual::into_folder(&pages, commands)?;
    let _ = writeln!(told, "wrote {}/lunar*.1", pages.display());
    if root.is_some() {
        return say(&told);
    }
    let failed = afterwards(&mut told);
    if !failed.is_empty() {
        say(&told)?;
        let failed = failed.join(", ");
        return Err(Failure::new(format!(
            "the service cannot start like this: mend what {failed} says, and install again"
        )));
    }
    told.push_str(match is_active() {
        true => "\nnow `systemctl restart lunar` has the new one serve: the one that runs is as it was\n",
        false => "\nnow `systemctl enable --now lunar` starts it, and `lunar status` shows it\n",
    });
    say(&told)
}

/// Whether the service runs.
fn is_active() -> bool {
    let asked = std::process::Command::new("systemctl").args(["is-active", "--quiet", "lunar"]).status();
    asked.is_ok_and(|status| status.success())
}

/// The program that the unit starts.
#[derive(PartialEq, Eq, Debug)]
struct Program {
    path: PathBuf,
    /// What is copied there.
    from: Option<PathBuf>,
}

impl Program {
    /// The one that is asked for, or this one; without either, that of a package.
    fn of(asked: Option<&PathBuf>, this: Option<PathBuf>) -> Result<Self, String> {
        let is_below = |path: &Path, folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
        match (asked, this) {
            (Some(path), _) => {
                let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                if is_below(path, &HIDDEN) || is_below(&real, &HIDDEN) {
                    let folders = HIDDEN.join(", ");
                    return Err(format!(
                        "{}: the service could not start from there, for it sees nothing of {folders}; without \
                         --program this one is copied to {OWN}",
                        real.display()
                    ));
                }
                Ok(Self { path: path.clone(), from: None })
            }
            (None, Some(this)) if !is_below(&this, &SYSTEM) => Ok(Self { path: OWN.into(), from: Some(this) }),
            (None, Some(this)) => Ok(Self { path: this, from: None }),
            (None, None) => Ok(Self { path: "/usr/bin/lunar".into(), from: None }),
        }
    }
}

/// Copies a program: beside its place first, for the one that is there may run.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let folder = to.parent().unwrap_or_else(|| Path::new("/"));
    std::fs::create_dir_all(folder)?;
    let unfinished = to.with_extension("new");
    let put = || {
        std::fs::copy(from, &unfinished)?;
        std::fs::set_permissions(&unfinished, Permissions::from_mode(0o755))?;
        std::fs::File::open(&unfinished)?.sync_all()?;
        std::fs::rename(&unfinished, to)
    };
    put().inspect_err(|_| drop(std::fs::remove_file(&unfinished)))
}

fn say(text: &str) -> Result<(), Failure> {
    show::print(text).map_err(Failure::new)
}

fn unable(path: &Path, why: &std::io::Error) -> Failure {
    let hint = if why.kind() == std::io::ErrorKind::PermissionDenied { "; use sudo, or --root DIR" } else { "" };
    Failure::new(format!("{} cannot be written: {why}{hint}", path.display()))
}

/// What would be written, but for completions: they are long, and another command prints them.
fn printed(files: &[New]) -> String {
    let mut text = String::new();
    for New { path, text: content, mode, .. } in files {
        let shown = if path.starts_with("usr/share") { "(as `lunar completions` prints it)\n" } else { content };
        // A string takes all that is written to it.
        let _ = write!(text, "# /{path}, mode {mode:04o}\n{shown}\n");
    }
    let _ = writeln!(text, "# /{PAGES}: a page for each command");
    text
}

fn write(root: &Path, files: &[New]) -> Result<String, Failure> {
    let mut told = String::new();
    for New { path, text, mode, keep } in files {
        let path = root.join(path);
        if *keep && path.exists() {
            let _ = writeln!(told, "kept  {}", path.display());
            continue;
        }
        let put = || {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(*mode).open(&path)?;
            std::io::Write::write_all(&mut file, text.as_bytes())?;
            file.set_permissions(Permissions::from_mode(*mode))
        };
        put().map_err(|why| unable(&path, &why))?;
        let _ = writeln!(told, "wrote {}", path.display());
    }
    Ok(told)
}

/// Makes the user and the folders, and has systemd read the unit; tells how that went, and gives those that failed.
/// What cannot be run is none of them: a system without systemd has other ways.
fn afterwards(told: &mut String) -> Vec<&'static str> {
    let mut failed = Vec::new();
    for (program, arguments) in AFTERWARDS {
        let line = format!("{program} {}", arguments.join(" "));
        let ended = std::process::Command::new(program).args(arguments).output();
        let how = match ended {
            Ok(output) if output.status.success() => "done".to_owned(),
            Ok(output) => {
                failed.push(program);
                String::from_utf8_lossy(&output.stderr).trim().to_owned()
            }
            Err(why) => why.to_string(),
        };
        let _ = writeln!(told, "{line}: {how}");
    }
    failed
}

#[cfg(test)]
#[path = "install_tests.rs"]
mod tests;

//! `lunar install`: installs the systemd unit, its user and folders, a first configuration, manual pages and shell
//! completions.

use crate::failure::Failure;
use crate::{manual, show};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use clap_complete::Shell;
use lunar_durable::{Access, replace_with};
use std::fmt::{self, Write};
use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The systemd unit, with a placeholder for the program.
const UNIT: &str = include_str!("../files/lunar.service");
/// The template of the units of handlers.
const HANDLER_UNIT: &str = include_str!("../files/lunar-handler@.service");
/// The template of the units of ublk disks with a process of their own, with a placeholder for the program.
const UBLK_UNIT: &str = include_str!("../files/lunar-ublk@.service");
/// The rules for udev of ublk disks of ordinary users, with a placeholder for the program.
const UBLK_RULES: &str = include_str!("../files/lunar-ublk.rules");
/// The user of the service (sysusers.d).
const USER: &str = include_str!("../files/sysusers.conf");
/// The folders of the service (tmpfiles.d).
const FOLDERS: &str = include_str!("../files/tmpfiles.conf");
/// The first configuration.
const CONFIG: &str = include_str!("../files/lunar.toml");
/// The path to which a program from elsewhere, such as a build or a download, is copied.
const OWN: &str = "/usr/local/bin/lunar";
/// The program beside it that serves images of Ceph.
const RBD: &str = "lunar-rbd";
/// The folders of installed programs, which are used where they are.
const SYSTEM: [&str; 2] = ["/usr", "/opt"];
/// Folders that the service cannot access (`ProtectHome` and `PrivateTmp` in the unit), so it cannot start from there.
const HIDDEN: [&str; 5] = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];
/// The placeholder for the program in the unit.
const PROGRAM: &str = "@PROGRAM@";
/// The commands that make the system use the installed files.
const ACTIVATION: [(&str, &[&str]); 3] = [
    ("systemd-sysusers", &["lunar.conf"]),
    ("systemd-tmpfiles", &["--create", "lunar.conf"]),
    ("systemctl", &["daemon-reload"]),
];

/// The command.
#[must_use]
pub fn command() -> Command {
    let path = |name: &'static str| Arg::new(name).long(name).value_parser(value_parser!(PathBuf));
    Command::new("install")
        .about("Install the systemd unit, its user, a first configuration, manual pages and completions")
        .after_help("An existing configuration is not changed.")
        .args([
            path("root").value_name("DIR").help("Install below this folder and run no commands, for packages"),
            path("program").value_name("PATH").help(
                "Program that the unit starts [default: this one, which is copied to /usr/local/bin unless it \
                     is in /usr or /opt; /usr/bin/lunar with --root]",
            ),
            Arg::new("dry-run")
                .long("dry-run")
                .action(ArgAction::SetTrue)
                .help("Only print the files that would be written"),
        ])
}

/// A file to install.
#[derive(Debug)]
struct FileToInstall {
    /// The path from the root.
    path: &'static str,
    text: String,
    mode: u32,
    /// Whether an existing file is kept.
    keep_existing: bool,
}

fn files(program: &Path, commands: &Command) -> Vec<FileToInstall> {
    let new = |path, text: String| FileToInstall { path, text, mode: 0o644, keep_existing: false };
    let script = |shell| manual::script(shell, commands);
    let starts = |text: &str| text.replace(PROGRAM, &program.display().to_string());
    vec![
        new("usr/lib/systemd/system/lunar.service", starts(UNIT)),
        new("usr/lib/systemd/system/lunar-handler@.service", HANDLER_UNIT.to_owned()),
        new("usr/lib/systemd/system/lunar-ublk@.service", starts(UBLK_UNIT)),
        new("usr/lib/udev/rules.d/60-lunar-ublk.rules", starts(UBLK_RULES)),
        new("usr/lib/sysusers.d/lunar.conf", USER.to_owned()),
        new("usr/lib/tmpfiles.d/lunar.conf", FOLDERS.to_owned()),
        FileToInstall { path: "etc/lunar/lunar.toml", text: CONFIG.to_owned(), mode: 0o600, keep_existing: true },
        new("usr/share/bash-completion/completions/lunar", script(Shell::Bash)),
        new("usr/share/zsh/site-functions/_lunar", script(Shell::Zsh)),
        new("usr/share/fish/vendor_completions.d/lunar.fish", script(Shell::Fish)),
    ]
}

/// The folder of manual pages, from the root.
const PAGES: &str = "usr/share/man/man1";

/// Runs the command.
///
/// # Errors
/// The file that could not be written, or the command that failed.
pub fn run(matches: &ArgMatches, commands: &Command) -> Result<(), Failure> {
    let root = matches.get_one::<PathBuf>("root");
    let this = if root.is_none() { std::env::current_exe().ok() } else { None };
    let program = Program::of(matches.get_one::<PathBuf>("program"), this).map_err(Failure::new)?;
    let files = files(&program.path, commands);
    if matches.get_flag("dry-run") {
        let copy = program.from.as_ref().map(|from| format!("# {OWN}, mode 0755: {}\n\n", from.display()));
        return say(&(copy.unwrap_or_default() + &printed(&files)));
    }
    if root.is_none() {
        require_systemd(Path::new(SYSTEMD_RUNS))?;
    }
    let mut report = String::new();
    if let Some(from) = &program.from {
        copy(from, &program.path).map_err(|why| write_error(&program.path, &why))?;
        let _ = writeln!(report, "wrote {}", program.path.display());
        let beside = (from.with_file_name(RBD), program.path.with_file_name(RBD));
        if beside.0.exists() {
            copy(&beside.0, &beside.1).map_err(|why| write_error(&beside.1, &why))?;
            let _ = writeln!(report, "wrote {}", beside.1.display());
        }
    }
    let folder = root.map_or_else(|| Path::new("/"), PathBuf::as_path);
    report += &write(folder, &files)?;
    let pages = folder.join(PAGES);
    std::fs::create_dir_all(&pages).map_err(|why| write_error(&pages, &why))?;
    manual::into_folder(&pages, commands)?;
    let _ = writeln!(report, "wrote {}/lunar*.1", pages.display());
    if root.is_some() {
        return say(&report);
    }
    let failed = activate(&mut report);
    if !failed.is_empty() {
        say(&report)?;
        let failed = failed.join(", ");
        return Err(Failure::new(format!(
            "the service cannot start: correct the error of {failed}, then install again"
        )));
    }
    report.push_str(match is_active() {
        true => "\nthe running service still uses the old program: run `systemctl restart lunar`\n",
        false => "\nstart the service with `systemctl enable --now lunar`, then see `lunar status`\n",
    });
    say(&report)
}

/// The folder that exists if systemd runs (sd_booted(3)).
const SYSTEMD_RUNS: &str = "/run/systemd/system";

/// Checks that systemd runs, before anything is written.
fn require_systemd(folder: &Path) -> Result<(), Failure> {
    if folder.is_dir() {
        return Ok(());
    }
    Err(Failure::new(
        "this system does not run systemd, so the service cannot be installed, and nothing was written: run `lunar \
         daemon --config FILE` under its own service manager, or write the files with --root DIR",
    ))
}

/// Whether the service is running.
fn is_active() -> bool {
    let asked = std::process::Command::new("systemctl").args(["is-active", "--quiet", "lunar"]).status();
    asked.is_ok_and(|status| status.success())
}

/// The program that the unit starts.
#[derive(PartialEq, Eq, Debug)]
struct Program {
    path: PathBuf,
    /// The program to copy to `path`.
    from: Option<PathBuf>,
}

/// The service has no access to the program at this path.
#[derive(PartialEq, Eq, Debug)]
struct HiddenProgram(PathBuf);

impl fmt::Display for HiddenProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, folders) = (self.0.display(), HIDDEN.join(", "));
        write!(
            f,
            "{path}: the service cannot start from there, because it has no access to {folders}; without --program, \
             this program is copied to {OWN}"
        )
    }
}

impl std::error::Error for HiddenProgram {}

impl Program {
    /// The given program, or this one; without either, the program of a package.
    fn of(asked: Option<&PathBuf>, this: Option<PathBuf>) -> Result<Self, HiddenProgram> {
        let is_below = |path: &Path, folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
        match (asked, this) {
            (Some(path), _) => {
                let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                if is_below(path, &HIDDEN) || is_below(&real, &HIDDEN) {
                    return Err(HiddenProgram(real));
                }
                Ok(Self { path: path.clone(), from: None })
            }
            (None, Some(this)) if !is_below(&this, &SYSTEM) => Ok(Self { path: OWN.into(), from: Some(this) }),
            (None, Some(this)) => Ok(Self { path: this, from: None }),
            (None, None) => Ok(Self { path: "/usr/bin/lunar".into(), from: None }),
        }
    }
}

/// Copies a program. The copy is renamed into place, because the old program may be running.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let folder = to.parent().unwrap_or_else(|| Path::new("/"));
    std::fs::create_dir_all(folder)?;
    let fill = |file: &mut File| std::io::copy(&mut File::open(from)?, file).map(drop);
    replace_with(to, Access::Exactly(0o755, None), fill).map_err(|failed| failed.why)
}

fn say(text: &str) -> Result<(), Failure> {
    show::print(text).map_err(Failure::new)
}

fn write_error(path: &Path, why: &std::io::Error) -> Failure {
    let hint = if why.kind() == std::io::ErrorKind::PermissionDenied { "; use sudo, or --root DIR" } else { "" };
    Failure::new(format!("cannot write {}: {why}{hint}", path.display()))
}

/// The files that would be written. Completions are left out: they are long, and `lunar completions` prints them.
fn printed(files: &[FileToInstall]) -> String {
    let mut text = String::new();
    for FileToInstall { path, text: content, mode, .. } in files {
        let shown = if path.starts_with("usr/share") { "(as `lunar completions` prints it)\n" } else { content };
        // Writing to a string cannot fail.
        let _ = write!(text, "# /{path}, mode {mode:04o}\n{shown}\n");
    }
    let _ = writeln!(text, "# /{PAGES}: a manual page for each command");
    text
}

fn write(root: &Path, files: &[FileToInstall]) -> Result<String, Failure> {
    let mut report = String::new();
    for FileToInstall { path, text, mode, keep_existing } in files {
        let path = root.join(path);
        if *keep_existing && path.exists() {
            let _ = writeln!(report, "kept  {}", path.display());
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
        put().map_err(|why| write_error(&path, &why))?;
        let _ = writeln!(report, "wrote {}", path.display());
    }
    Ok(report)
}

/// Creates the user and the folders and reloads systemd. Returns the commands that failed. A command that does not
/// exist is not among them: a system without systemd is set up in other ways.
fn activate(report: &mut String) -> Vec<&'static str> {
    let mut failed = Vec::new();
    for (program, arguments) in ACTIVATION {
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
        let _ = writeln!(report, "{line}: {how}");
    }
    failed
}

#[cfg(test)]
#[path = "install_tests.rs"]
mod tests;

//! The part `docs`: runs the commands of the documentation against an example server, and checks that the tables of the
//! performance model are current.
//!
//! The first words of a fenced block say what is done with it: `console run` has commands behind `$ ` and lines that
//! their output must contain, `sh run` is a script, `toml check` is a configuration, and `not-run: REASON` is for other
//! systems.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::process;
use crate::report::skip;
use crate::target::{Driver, Lab};

const LIMIT: Duration = Duration::from_secs(120);
/// The configuration of the example server.
const EXAMPLE: &str = include_str!("docs/example.toml");
/// Runs the commands of a page.
const SCRIPT: &str = include_str!("docs/page.sh");
/// The paths of an installed server that are in the folder of the test instead.
const PATHS: [&str; 4] = ["/etc/lunar", "/srv/lunar", "/var/lib/lunar", "/run/lunar"];
/// The files with secrets that pages name.
const SECRETS: [(&str, &str); 2] =
    [("alice.secret", "the secret of alice"), ("prometheus.token", "the token of prometheus")];
/// The languages of blocks whose treatment must be stated.
const LANGUAGES: [&str; 5] = ["console", "sh", "powershell", "toml", "yaml"];
/// Stands for any text in an expected line.
const ANY: &str = "...";

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("docs/{}", driver.name());
    let program = lab.built()?;
    let mut all = Vec::new();
    find_pages(&root().join("docs"), &mut all)?;
    all.sort();
    for path in &all {
        let text = std::fs::read_to_string(path)?;
        let name = path.strip_prefix(root())?.display().to_string();
        let blocks = blocks(&text);
        if blocks.iter().all(|block| block.treatment.is_none()) {
            continue;
        }
        lab.report.check(&part, &name, || run_page(lab, driver, program, &name, &blocks));
    }
    for (name, arguments) in [
        ("the tables of the performance model are current", &["check/bench/model", "fresh"][..]),
        ("the tests of the performance model", &["python3", "-m", "unittest", "discover", "check/bench/tests"]),
    ] {
        lab.report.check(&part, name, || {
            let mut command = process::bound(arguments[0]);
            command.args(&arguments[1..]).current_dir(root()).env("PYTHONDONTWRITEBYTECODE", "1");
            process::run(&mut command, LIMIT)?.succeeded().map(drop)
        });
    }
    Ok(())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn find_pages(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find_pages(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    Ok(())
}

/// How a block is treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Treatment {
    Run,
    Check,
    NotRun,
}

/// A fenced block of a page.
#[derive(PartialEq, Eq, Debug)]
struct Block<'a> {
    /// The number of its first line of text.
    line: usize,
    language: &'a str,
    /// `None` if the page does not say it.
    treatment: Option<Treatment>,
    /// The lines, without the indentation of the block.
    lines: Vec<&'a str>,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut all = Vec::new();
    let mut open: Option<(usize, Block<'_>)> = None;
    for (at, line) in page.lines().enumerate() {
        let text = line.trim_start();
        let Some(info) = text.strip_prefix("```") else {
            if let Some((indent, block)) = &mut open {
                block.lines.push(line.get(*indent..).unwrap_or(text));
            }
            continue;
        };
        match open.take() {
            Some((_, block)) => all.push(block),
            None => {
                let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
                let treatment = match rest {
                    "run" => Some(Treatment::Run),
                    "check" => Some(Treatment::Check),
                    _ if rest.starts_with("not-run: ") => Some(Treatment::NotRun),
                    _ => None,
                };
                open = Some((line.len() - text.len(), Block { line: at + 2, language, treatment, lines: Vec::new() }));
            }
        }
    }
    all
}

/// A command, and lines that its output must contain in this order.
#[derive(PartialEq, Eq, Debug)]
struct Step<'a> {
    line: usize,
    command: String,
    expected: Vec<&'a str>,
}

fn steps<'a>(block: &Block<'a>) -> Vec<Step<'a>> {
    if block.language != "console" {
        return vec![Step { line: block.line, command: block.lines.join("\n"), expected: Vec::new() }];
    }
    let mut all: Vec<Step<'a>> = Vec::new();
    for (at, line) in block.lines.iter().enumerate() {
        match (line.strip_prefix("$ "), all.last_mut()) {
            (Some(command), _) => {
                all.push(Step { line: block.line + at, command: command.to_owned(), expected: Vec::new() });
            }
            (None, Some(last)) if last.command.ends_with('\\') => {
                last.command.push('\n');
                last.command.push_str(line);
            }
            (None, Some(last)) => last.expected.push(line),
            (None, None) => {}
        }
    }
    all
}

/// Whether a line is an expected one: `...` stands for any text, and runs of spaces are equal.
fn matches(line: &str, expected: &str) -> bool {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (line, expected) = (plain(line), plain(expected));
    let mut parts = expected.split(ANY);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        let found = if parts.peek().is_none() {
            rest.ends_with(part).then_some("")
        } else {
            rest.split_once(part).map(|(_, after)| after)
        };
        let Some(after) = found else { return false };
        rest = after;
    }
    true
}

/// The first expected line that the output does not contain behind the ones before it.
fn missing<'a>(output: &str, expected: &[&'a str]) -> Option<&'a str> {
    let mut lines = output.lines();
    expected
        .iter()
        .filter(|line| line.trim() != ANY && !line.trim().is_empty())
        .copied()
        .find(|wanted| !lines.any(|line| matches(line, wanted)))
}

fn run_page(lab: &Lab, driver: Driver, program: &Path, name: &str, blocks: &[Block<'_>]) -> Result<()> {
    for block in blocks.iter().filter(|block| LANGUAGES.contains(&block.language)) {
        ensure!(
            block.treatment.is_some(),
            "line {}: the block does not say whether it is tested: `run`, `check` or `not-run: REASON`",
            block.line
        );
    }
    let folder = lab.scratch.join(name.replace(['/', '.'], "-"));
    let place = |text: &str| {
        PATHS.iter().fold(text.to_owned(), |text, path| text.replace(path, &format!("{}{path}", folder.display())))
    };
    let of = |treatment| blocks.iter().filter(move |block| block.treatment == Some(treatment));
    let all: Vec<Step<'_>> = of(Treatment::Run).flat_map(steps).collect();
    write_files(&folder, &place(&EXAMPLE.replace("@DRIVER@", &driver.name().replace('_', "-"))))?;
    let mut script = String::new();
    for (number, block) in of(Treatment::Check).enumerate() {
        ensure!(block.language == "toml", "line {}: only configurations can be checked", block.line);
        let file = folder.join(format!("block-{number}.toml"));
        write_private(&file, &place(&block.lines.join("\n")))?;
        writeln!(
            script,
            "lunar config check {} || {{ echo 'line {}: refused'; exit 1; }}",
            file.display(),
            block.line
        )?;
    }
    for (number, step) in all.iter().enumerate() {
        let (command, line) = (place(&step.command), step.line);
        writeln!(script, "{{\n{command}\n}} >output-{number} 2>&1 </dev/null || {{")?;
        writeln!(script, "    echo \"line {line}: status $?\"; cat output-{number}; exit 1\n}}")?;
    }
    if script.is_empty() {
        return Ok(());
    }
    std::fs::write(folder.join("commands.sh"), script)?;
    std::fs::write(folder.join("page.sh"), SCRIPT)?;
    let mut own = process::bound("unshare");
    own.arg("--net").args((!rustix::process::geteuid().is_root()).then_some("--map-root-user"));
    own.args(["sh", "page.sh"])
        .args([&folder, &std::fs::canonicalize(program)?, &folder.join("commands.sh")])
        .current_dir(&folder);
    let ended = process::run(&mut own, LIMIT)?;
    if !folder.join("log").exists() {
        return skip(format!("no network namespace can be created here: {}", ended.text.trim()));
    }
    ended.succeeded()?;
    for (number, step) in all.iter().enumerate() {
        let output = std::fs::read_to_string(folder.join(format!("output-{number}")))?;
        let output = output.replace(&folder.display().to_string(), "");
        if let Some(line) = missing(&output, &step.expected) {
            bail!("line {}: `{}` does not print `{line}`, but:\n{output}", step.line, step.command);
        }
    }
    Ok(())
}

/// Writes the files of the example server.
fn write_files(folder: &Path, config: &str) -> Result<()> {
    for path in PATHS.iter().copied().chain(["/bin"]) {
        let path = folder.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(&path).with_context(|| format!("{}", path.display()))?;
    }
    let etc = folder.join("etc/lunar");
    for (name, secret) in SECRETS {
        write_private(&etc.join(name), secret)?;
    }
    write_private(&etc.join("lunar.toml"), config)
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)?;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_a_language_and_a_treatment() {
        let page =
            "a\n```console run\n$ b\nc\n```\n1. d\n\n   ```sh not-run: e\n   f\n     g\n   ```\n```toml\nh\n```\n";
        let found = blocks(page);
        let told: Vec<_> = found.iter().map(|block| (block.line, block.language, block.treatment)).collect();
        let wanted = [(3, "console", Some(Treatment::Run)), (9, "sh", Some(Treatment::NotRun)), (13, "toml", None)];
        assert_eq!(told, wanted);
        assert_eq!(found[1].lines, ["f", "  g"]);
    }

    #[test]
    fn commands_are_followed_by_their_output() {
        let page = "```console run\n$ a \\\n    b\nc\n...\n$ d\n```\n```sh run\ne\nf\n```\n";
        let found: Vec<Step<'_>> = blocks(page).iter().flat_map(steps).collect();
        let step = |line, command: &str, expected| Step { line, command: command.to_owned(), expected };
        assert_eq!(found, [step(2, "a \\\n    b", vec!["c", "..."]), step(6, "d", vec![]), step(9, "e\nf", vec![])]);
    }

    #[test]
    fn expected_lines_match_with_wildcards_and_in_order() {
        assert!(matches("a   b", "a b"));
        assert!(matches("1 step, done", "... done"));
        assert!(matches("x{a=\"1\",b=\"2\"} 7", "x{...,b=\"2\"} ..."));
        assert!(!matches("x{a=\"1\",b=\"3\"} 7", "x{...,b=\"2\"} ..."));
        assert!(!matches("a b c", "a b"));
        assert_eq!(missing("one\ntwo\nthree\n", &["one", "...", "three"]), None);
        assert_eq!(missing("one\ntwo\n", &["two", "one"]), Some("one"));
    }
}

//! The part `service`: a machine with systemd, on which a script runs the commands of docs/five-minutes.md word for
//! word, installs the service with them and tests it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::sysroot::{self, Sysroot};
use super::{Script, Targets, packages};
use crate::process;
use crate::target::{Driver, Lab, Spec};
use crate::tools;

/// The page whose commands are tested.
const PAGE: &str = include_str!("../../../../docs/five-minutes.md");
/// The limit of copying the program without its symbols.
const COPY_LIMIT: Duration = Duration::from_secs(60);

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("service/{}", driver.name());
    let program = lab.built()?.to_owned();
    let Some(sysroot) = packages(lab, &part) else { return Ok(()) };
    let folder = lab.scratch.join("service");
    std::fs::create_dir_all(&folder)?;
    lab.report.check(&part, "guest ran to its end", || {
        write_files(lab, &program, &folder)?;
        boot(lab, driver, (&part, &sysroot, &folder), "")
    });
    lab.report.check(&part, "a guest with a local disk ran to its end", || {
        let sysroot = sysroot::ensure_with_ublk(&lab.report)?;
        boot(lab, driver, (&part, &sysroot, &folder), "LOCAL_DISK=yes\n")
    });
    Ok(())
}

/// Boots the guest with more settings.
fn boot(lab: &Lab, driver: Driver, (part, sysroot, folder): (&str, &Sysroot, &Path), more: &str) -> Result<()> {
    let more_files = Some(("test/service", folder));
    let script = Script { name: "service", is_service: true, part, driver, sysroot, processors: 1, more: more_files };
    let settings = format!("DRIVER={}\n{more}", driver.name().replace('_', "-"));
    let nothing = Spec::new(driver, Vec::<String>::new())?;
    script.run(lab, Targets { main: None, spec: nothing, others: Vec::new(), settings, growth: None })
}

/// Writes what the guest gets besides its packages: the program, the commands of the page, and an ISO image.
fn write_files(lab: &Lab, program: &Path, folder: &Path) -> Result<()> {
    // The initramfs is in the guest's memory: leave out the debug information.
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(folder.join("lunar")).arg(program);
    process::run(&mut strip, COPY_LIMIT)?.succeeded().context("copying the program")?;
    let own = sections(PAGE).into_iter().find(|section| section.name == "Lunar");
    let Section { count, commands, .. } = own.context("docs/five-minutes.md has no section on Lunar")?;
    ensure!(count == Some(commands.len()), "the heading says {count:?} commands, and there are {}", commands.len());
    std::fs::write(folder.join("commands"), commands.join("\n") + "\n")?;
    let (disc, sum) = tools::image_of_disc(lab, "service")?;
    std::fs::copy(disc.trim_start_matches("cd:"), folder.join("disc.iso"))?;
    Ok(std::fs::write(folder.join("disc.sum"), sum)?)
}

/// A section of the page: the commands with which one product does the task.
struct Section<'a> {
    name: &'a str,
    /// The number of commands that its heading states.
    count: Option<usize>,
    commands: Vec<&'a str>,
}

fn sections(page: &str) -> Vec<Section<'_>> {
    let mut all = Vec::new();
    for text in page.split("\n## ").skip(1) {
        let (heading, text) = text.split_once('\n').unwrap_or((text, ""));
        let (name, rest) = heading.split_once(':').unwrap_or((heading, ""));
        let count = rest.split_whitespace().next().and_then(|count| count.parse().ok());
        // Only the first block of commands is part of the task.
        let lines = text.lines().map(|line| line.strip_prefix("    "));
        let commands = lines.skip_while(Option::is_none).map_while(|line| line).collect();
        all.push(Section { name, count, commands });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str = include_str!("../../../../README.md");

    #[test]
    fn headings_state_the_number_of_commands_and_no_section_has_fewer_than_lunar() {
        let all = sections(PAGE);
        let names: Vec<&str> = all.iter().map(|section| section.name).collect();
        assert_eq!(names, ["Lunar", "targetcli (LIO)", "SCST", "SPDK"]);
        for section in &all {
            assert_eq!(section.count, Some(section.commands.len()), "{}", section.name);
            assert!(section.count >= all[0].count, "{} has fewer commands than Lunar", section.name);
        }
    }

    #[test]
    fn the_readme_has_the_same_commands_as_the_page() {
        let own = sections(PAGE);
        let plain = |line: &str| {
            let line = line.strip_prefix("    ")?.strip_prefix("sudo ")?;
            Some(line.split("  #").next().unwrap_or(line).trim_end().to_owned())
        };
        let text = README.split("\n## As a service").nth(1).and_then(|text| text.split("\n## ").next());
        let commands: Vec<String> = text.expect("README.md has the section").lines().filter_map(plain).collect();
        assert_eq!(commands, own[0].commands);
    }
}

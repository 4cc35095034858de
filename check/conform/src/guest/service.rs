//! A whole machine with systemd, on which somebody follows the page of the five minutes, word for word.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Script, Targets, packages};
use crate::process;
use crate::target::{Driver, Lab, Spec};
use crate::tools;

/// The page: its commands are what is tested.
const PAGE: &str = include_str!("../../../../docs/five-minutes.md");
/// The unit that the script is.
const UNIT: &str = include_str!("../../guest/test.service");
/// Copying a program without its symbols takes less.
const COPY_LIMIT: Duration = Duration::from_secs(60);

/// Boots the machine, which gets the program, the commands of the page, and a disc.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("service/{}", driver.name());
    let program = lab.built()?.to_owned();
    let Some(sysroot) = packages(lab, &part) else { return Ok(()) };
    let folder = lab.scratch.join("service");
    std::fs::create_dir_all(&folder)?;
    let script = Script {
        name: "service",
        is_service: true,
        part: &part,
        driver,
        sysroot: &sysroot,
        more: Some(("test/service", &folder)),
    };
    lab.report.check(&part, "guest ran to its end", || {
        furnish(lab, &program, &folder)?;
        let settings = format!("DRIVER={}\n", driver.name().replace('_', "-"));
        let nothing = Spec::new(driver, Vec::<String>::new())?;
        script.run(lab, Targets { main: None, spec: nothing, others: Vec::new(), settings, grows: None })
    });
    Ok(())
}

/// What the machine gets besides its packages.
fn furnish(lab: &Lab, program: &Path, folder: &Path) -> Result<()> {
    // All of it is in the guest's memory: what helps debuggers stays outside.
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(folder.join("lunar")).arg(program);
    process::run(&mut strip, COPY_LIMIT)?.succeeded().context("copying the program")?;
    std::fs::write(folder.join("test.service"), UNIT)?;
    let own = sections(PAGE).into_iter().find(|section| section.name == "Lunar");
    let Section { count, commands, .. } = own.context("the page has no section on Lunar")?;
    ensure!(count == Some(commands.len()), "the heading counts {count:?}, and there are {} commands", commands.len());
    std::fs::write(folder.join("commands"), commands.join("\n") + "\n")?;
    let (disc, sum) = tools::image_of_disc(lab, "service")?;
    std::fs::copy(disc.trim_start_matches("cd:"), folder.join("disc.iso"))?;
    Ok(std::fs::write(folder.join("disc.sum"), sum)?)
}

/// A section of the page: somebody's way to do the task.
struct Section<'a> {
    name: &'a str,
    /// How many commands its heading says it takes.
    count: Option<usize>,
    commands: Vec<&'a str>,
}

fn sections(page: &str) -> Vec<Section<'_>> {
    let mut all = Vec::new();
    for text in page.split("\n## ").skip(1) {
        let (heading, text) = text.split_once('\n').unwrap_or((text, ""));
        let (name, rest) = heading.split_once(':').unwrap_or((heading, ""));
        let count = rest.split_whitespace().next().and_then(|count| count.parse().ok());
        // The first block: what comes after it goes beyond the task.
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
    fn headings_count_right_and_ours_is_the_shortest() {
        let all = sections(PAGE);
        let names: Vec<&str> = all.iter().map(|section| section.name).collect();
        assert_eq!(names, ["Lunar", "targetcli (LIO)", "SCST", "SPDK"]);
        for section in &all {
            assert_eq!(section.count, Some(section.commands.len()), "{}", section.name);
            assert!(section.count >= all[0].count, "{} takes less than ours", section.name);
        }
    }

    #[test]
    fn the_first_page_says_the_same() {
        let own = sections(PAGE);
        let plain = |line: &str| {
            let line = line.strip_prefix("    ")?.strip_prefix("sudo ")?;
            Some(line.split("  #").next().unwrap_or(line).trim_end().to_owned())
        };
        let text = README.split("\n## As a service").nth(1).and_then(|text| text.split("\n## ").next());
        let commands: Vec<String> = text.expect("it has the section").lines().filter_map(plain).collect();
        assert_eq!(commands, own[0].commands);
    }
}

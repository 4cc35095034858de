//! The part `blktests`: the group `nvme` of blktests. The environment variable `LUNAR_BLKTESTS` names a checkout, which
//! the user has to provide. Of the cases, those run that get their target from a program (`NVME_TARGET_CONTROL`).

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::{Script, nvme_targets, packages};
use crate::report::skip;
use crate::target::{Driver, Lab};

/// The environment variable that names the checkout.
const FOLDER: &str = "LUNAR_BLKTESTS";

/// Runs the part.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("blktests/{}", driver.name());
    lab.built()?;
    let mut found = None;
    lab.report.check(&part, "a checkout of blktests is available", || {
        match std::env::var_os(FOLDER).map(PathBuf::from) {
            Some(folder) => {
                ensure!(folder.join("tests/nvme/rc").is_file(), "{} is not a checkout of blktests", folder.display());
                found = Some(folder);
                Ok(())
            }
            None => skip(format!("{FOLDER} is not set to a checkout of blktests")),
        }
    });
    let (Some(folder), Some(sysroot)) = (found, packages(lab, &part)) else { return Ok(()) };
    let more = Some(("test/blktests", &*folder));
    let script =
        Script { name: "blktests", is_service: false, part: &part, driver, sysroot: &sysroot, processors: 1, more };
    // The suite expects one namespace.
    lab.report.check(&part, "guest ran to its end", || script.run(lab, nvme_targets(lab, driver, &[])?));
    Ok(())
}

#[cfg(test)]
mod tests {
    const PAGE: &str = include_str!("../../../../docs/conformance.md");
    const SCRIPT: &str = include_str!("../../guest/blktests.sh");

    /// Returns the case numbers in a text.
    fn cases(text: &str) -> Vec<&str> {
        text.split_whitespace()
            .filter(|word| word.len() == 3 && word.bytes().all(|byte| byte.is_ascii_digit()))
            .collect()
    }

    #[test]
    fn the_page_lists_every_case_once_and_the_script_runs_those_that_apply() {
        let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| 0").and_then(|_| line[2..].split_once(" | ")));
        let rows: Vec<(Vec<&str>, &str)> = rows.map(|(numbers, why)| (cases(numbers), why)).collect();
        let sorted = |wanted: fn(&str) -> bool| {
            let mut all: Vec<&str> = rows.iter().filter(|row| wanted(row.1)).flat_map(|row| row.0.clone()).collect();
            all.sort_unstable();
            all
        };
        let line = SCRIPT.lines().find_map(|line| line.strip_prefix("CASES=\"")).expect("the script names its cases");
        assert_eq!(sorted(|why| !why.starts_with("not applicable")), cases(line.trim_end_matches('"')));
        let all = sorted(|_| true);
        assert!(all.is_sorted_by(|one, next| one < next), "a case is listed twice: {all:?}");
    }
}

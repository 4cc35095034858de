//! The checks: pure functions from facts to findings.

mod configuration;
mod environment;
mod hosts;
mod load;
mod network;
mod state;
mod stores;
mod words;

use super::facts::Facts;
use super::finding::Finding;

/// All findings, the worst first.
#[must_use]
pub fn all(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for check in [
        state::check,
        configuration::check,
        stores::check,
        network::check,
        hosts::check,
        load::check,
        environment::check,
    ] {
        check(facts, &mut findings);
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

#[cfg(test)]
mod tests;

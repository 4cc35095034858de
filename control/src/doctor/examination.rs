//! The result of an examination, for programs.

use super::checks;
use super::facts::Facts;
use super::finding::Finding;
use super::table::Severity;
use schemars::JsonSchema;
use serde::Serialize;

/// The result of an examination.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "examination")]
pub struct ExaminationView {
    /// The severity of the worst finding; null without findings.
    pub worst: Option<Severity>,
    /// The findings, the worst first.
    pub findings: Vec<Finding>,
    /// Parts that were not checked.
    pub unchecked: Vec<Unchecked>,
}

impl ExaminationView {
    /// Examines these facts, without the parts that could not be gathered.
    #[must_use]
    pub fn of(facts: &Facts, unchecked: Vec<Unchecked>) -> Self {
        let findings = checks::all(facts);
        Self { worst: findings.iter().map(|finding| finding.severity).max(), findings, unchecked }
    }
}

/// Something that was not checked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "unchecked")]
pub struct Unchecked {
    /// The part.
    pub subject: String,
    /// The reason.
    pub reason: String,
}

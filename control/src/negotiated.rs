//! The negotiated parameters of a session, and the cost of those that make commands slow. Each transport declares its
//! own.

use crate::explain::{Place, RemedyView, command};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// A negotiated parameter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "parameter")]
pub struct ParameterView {
    /// Its name, as its standard has it.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// Its cost; absent if its value does not make commands slow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostView>,
}

/// The cost of a parameter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "cost")]
pub struct CostView {
    /// The effect on commands.
    pub words: String,
    /// The commands that change the parameter, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remedies: Vec<RemedyView>,
}

impl ParameterView {
    /// A parameter that costs nothing.
    #[must_use]
    pub fn new(name: &'static str, value: impl fmt::Display) -> Self {
        Self { name, value: value.to_string(), cost: None }
    }

    /// A parameter that is on or off, in the words of iSCSI.
    #[must_use]
    pub fn switch(name: &'static str, is_on: bool) -> Self {
        Self::new(name, if is_on { "Yes" } else { "No" })
    }

    /// A digest.
    #[must_use]
    pub fn digest(name: &'static str, is_used: bool) -> Self {
        Self::new(name, if is_used { "CRC32C" } else { "None" })
    }

    /// With a cost, if it `is_slow`.
    #[must_use]
    pub fn costs(mut self, is_slow: bool, words: impl Into<String>) -> Self {
        self.cost = is_slow.then(|| CostView { words: words.into(), remedies: Vec::new() });
        self
    }

    /// With a command for the client that reduces its cost, if it has one. A command that a shell cannot take is left
    /// out.
    #[must_use]
    pub fn mended<'a>(mut self, words: &str, line: impl IntoIterator<Item = &'a str>) -> Self {
        let Some(cost) = &mut self.cost else { return self };
        let view = |command| RemedyView { place: Place::Client, words: words.to_owned(), command };
        cost.remedies.extend(command::line(line).map(view));
        self
    }
}

impl fmt::Display for ParameterView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.value)
    }
}

/// The queues of a client in its own memory or over a network: commands that it may have in progress at once below
/// which their number limits it.
pub const DEPTH_MIN: u32 = 4;

/// The words about a client that may have few commands in progress.
#[must_use]
pub fn shallow(depth: u32) -> String {
    let commands = if depth == 1 { "1 command".to_owned() } else { format!("{depth} commands") };
    format!("the client can have {commands} in progress at once: it waits for each answer before it sends more")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_parameter_without_cost_has_no_remedy() {
        let of = |is_slow| {
            let parameter = ParameterView::switch("ImmediateData", false).costs(is_slow, "it waits");
            parameter.mended("sets it", ["iscsiadm", "-v", "a b"]).mended("not for a shell", ["a\nb"])
        };
        assert_eq!(json!(of(false)), json!({ "name": "ImmediateData", "value": "No" }));
        let remedies = json!([{ "place": "client", "words": "sets it", "command": "iscsiadm -v 'a b'" }]);
        assert_eq!(json!(of(true))["cost"], json!({ "words": "it waits", "remedies": remedies }));
        assert_eq!(of(true).to_string(), "ImmediateData No");
    }
}

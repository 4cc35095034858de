//! Explanations and refusals, for people.

use crate::show::{BOLD, GREEN, RED, YELLOW, styled, table, text_of, time, width};
use serde_json::Value as Json;

/// An explanation: the answer, its steps, what comes close, and what to do.
#[must_use]
pub fn explanation(explanation: &Json) -> String {
    let list = |key: &str| explanation[key].as_array().cloned().unwrap_or_default();
    let well = explanation["well"] == true;
    let (mark, style) = if well { ("yes:", GREEN) } else { ("no:", RED) };
    let topic = text_of(&explanation["topic"]);
    // A volume or a reservation is a state, and no question.
    let mark = if ["login", "lun", "path"].contains(&topic.as_str()) { format!("{mark} ") } else { String::new() };
    let code = explanation["code"].as_str().map(|code| format!(" [{code}]")).unwrap_or_default();
    let mut text = format!("{}\n", styled(style, &format!("{mark}{}{code}", text_of(&explanation["words"]))));
    for step in list("steps") {
        let (mark, style) = if step["passed"] == true { ("ok ", GREEN) } else { ("NOT", RED) };
        text.push_str(&format!("  {} {}\n", styled(style, mark), text_of(&step["words"])));
    }
    for near in list("near") {
        text.push_str(&format!("  {}\n", styled(YELLOW, &text_of(&near))));
    }
    for remedy in list("remedies") {
        let place = if remedy["place"] == "client" { "on the client" } else { "here" };
        let words = text_of(&remedy["words"]);
        let colon = if words.is_empty() { "" } else { ", " };
        text.push_str(&format!("{place}{colon}{words}:\n  {}\n", styled(BOLD, &text_of(&remedy["command"]))));
    }
    // The list of one refusal is in its words.
    let refused = if topic == "refusal" { Vec::new() } else { list("refusals") };
    if !refused.is_empty() {
        text.push_str("refused before:\n");
        text.push_str(&refusals(&Json::Array(refused)));
    }
    if let (Some(code), Some(link)) = (explanation["code"].as_str(), explanation["paragraph"]["link"].as_str()) {
        text.push_str(&format!("more about {code}: {link}\n"));
    }
    text
}

/// Refused logins, the latest first.
#[must_use]
pub fn refusals(all: &Json) -> String {
    let all: Vec<&Json> = all.as_array().into_iter().flatten().collect();
    if all.is_empty() {
        return "no login was refused\n".into();
    }
    let heads = ["number", "code", "initiator", "source", "target", "user", "count", "last"].map(str::to_owned);
    let row = |refusal: &&Json| {
        let cell = |head: &String| if head == "last" { time(&refusal[head]) } else { text_of(&refusal[head]) };
        heads.iter().map(cell).collect()
    };
    table(&heads, &all.iter().map(row).collect::<Vec<Vec<_>>>(), width())
}

/// The reservations of a volume.
#[must_use]
pub fn reservation(name: &str, state: &Json) -> String {
    let names = |key: &str| {
        let all = state[key].as_array().into_iter().flatten().map(text_of);
        all.map(|name| format!("  {name}\n")).collect::<String>()
    };
    let mut text = match state["type"].as_str() {
        Some(kind) => format!("volume {name} is reserved ({kind}) by\n{}", names("holders")),
        None => format!("volume {name} is not reserved\n"),
    };
    let registrants = names("registrants");
    if !registrants.is_empty() {
        text.push_str(&format!("registered:\n{registrants}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_explanation_has_the_answer_first_and_the_command_on_a_line_of_its_own() {
        let shown = explanation(&json!({
            "topic": "login", "subject": "iqn.x:esx-3", "well": false, "code": "not-shown",
            "words": "iqn.x:esx-3 may not log in to iqn.x:vmfs: no group of the target lists the client",
            "steps": [{ "passed": true, "words": "the target exists" }, { "passed": false, "words": "a group" }],
            "near": ["group esx lists iqn.x:esx3: 1 character differs"],
            "remedies": [{ "place": "server", "words": "if it is one of esx", "command": "lunar group set esx" }],
            "paragraph": { "link": "docs/troubleshooting.md#not-shown", "words": "A client may log in only if." },
        }));
        let plain = anstream::adapter::strip_str(&shown).to_string();
        let lines: Vec<&str> = plain.lines().collect();
        assert!(lines[0].starts_with("no: iqn.x:esx-3 may not log in") && lines[0].ends_with("[not-shown]"), "{plain}");
        assert_eq!(lines[1..3], ["  ok  the target exists", "  NOT a group"]);
        assert_eq!(lines[4..6], ["here, if it is one of esx:", "  lunar group set esx"]);
        assert_eq!(lines[6], "more about not-shown: docs/troubleshooting.md#not-shown");
    }

    #[test]
    fn reservations_and_refusals_are_listed() {
        assert_eq!(reservation("a", &json!({ "holders": [], "registrants": [] })), "volume a is not reserved\n");
        let held = json!({ "type": "write-exclusive", "holders": ["iqn.x,i,0x1"], "registrants": ["iqn.x,i,0x1"] });
        assert!(reservation("a", &held).starts_with("volume a is reserved (write-exclusive) by\n  iqn.x,i,0x1\n"));
        assert_eq!(refusals(&json!([])), "no login was refused\n");
        let one = json!([{ "number": 3, "code": "not-shown", "initiator": "iqn.x", "source": "192.0.2.1", "last": 0 }]);
        let plain = anstream::adapter::strip_str(&refusals(&one)).to_string();
        assert!(plain.contains("3") && plain.contains("not-shown") && plain.contains("1970-01-01"), "{plain}");
    }
}

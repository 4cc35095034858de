use super::*;
use crate::testing::SAMPLE;

#[test]
fn keys_are_explained() {
    let size = explain(&SAMPLE, "volume.size").expect("it is a key");
    for words in ["volume.size: The size.", "20G", "default: none", "clients are notified"] {
        assert!(size.contains(words), "{size}");
    }
    assert_eq!(explain(&SAMPLE, "volume.disk1.size").as_ref(), Ok(&size));
    assert!(explain(&SAMPLE, "volume").expect("it is a section").contains("block-size"));
    assert!(explain(&SAMPLE, "login_rate").expect("one section has it").contains("logins per second"));
    for (name, words) in [
        ("volume.siez", "did you mean 'size'?"),
        ("volum.size", "did you mean 'volume'?"),
        ("users", "target.users, group.users"),
        ("", "there is no section"),
    ] {
        let why = explain(&SAMPLE, name).expect_err(name).to_string();
        assert!(why.contains(words), "{name}: {why}");
    }
}

#[test]
fn every_key_is_described_and_its_default_can_be_read() {
    for kind in SAMPLE.kinds() {
        assert!(SAMPLE.words(kind).ends_with('.'), "{kind}");
        for key in SAMPLE.keys(kind) {
            assert!(key.words().ends_with('.'), "{kind} {}", key.name());
            assert!(!key.words().contains('|'), "{kind} {}", key.name());
        }
    }
}

#[test]
fn the_schema_has_all_keys() {
    let schema = json_schema(&SAMPLE);
    for kind in SAMPLE.kinds() {
        let object = &schema["$defs"][kind.section()];
        assert_eq!(object["additionalProperties"], json!(false), "{kind}");
        for key in SAMPLE.keys(kind) {
            let property = &object["properties"][key.name()];
            assert!(property["description"].is_string(), "{kind} {}", key.name());
            let required = object["required"].as_array().is_some_and(|list| list.contains(&json!(key.name())));
            assert_eq!(required, (key.default)(&SAMPLE).is_none(), "{kind} {}", key.name());
        }
    }
    let volume = &schema["$defs"]["volume"]["properties"];
    assert_eq!(volume["kind"]["enum"], json!(["file", "block", "ram", "null", "image"]));
    assert_eq!((&volume["block-size"]["default"], &volume["read-only"]["default"]), (&json!("512"), &json!(false)));
}

use super::*;
use std::path::Path;

#[test]
fn the_page_in_the_repository_is_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    if std::env::var_os("LUNAR_REGENERATE").is_some() {
        std::fs::write(&path, configuration()).expect("docs/ is there");
    }
    let page = std::fs::read_to_string(&path).expect("docs/configuration.md is there");
    assert_eq!(page, configuration(), "run LUNAR_REGENERATE=1 cargo test -p lunar-control docs");
}

#[test]
fn keys_are_explained() {
    let size = explain("volume.size").expect("it is a key");
    for words in ["volume.size: How large it is.", "20G", "default: none", "initiators are told"] {
        assert!(size.contains(words), "{size}");
    }
    assert_eq!(explain("volume.disk1.size").as_ref(), Ok(&size));
    assert!(explain("volume").expect("it is a section").contains("block-size"));
    assert!(explain("login_rate").expect("one section has it").contains("logins per second"));
    for (name, words) in [
        ("volume.siez", "did you mean 'size'?"),
        ("volum.size", "did you mean 'volume'?"),
        ("users", "target.users, group.users"),
        ("", "there is no section"),
    ] {
        let why = explain(name).expect_err(name);
        assert!(why.contains(words), "{name}: {why}");
    }
}

#[test]
fn every_key_is_described_and_its_default_can_be_read() {
    for kind in Kind::ALL {
        assert!(kind.words().ends_with('.'), "{kind}");
        for key in kind.keys() {
            assert!(key.words().ends_with('.'), "{kind} {}", key.name());
            assert!(!key.words().contains('|'), "{kind} {}", key.name());
        }
    }
}

#[test]
fn the_schema_has_all_keys() {
    let schema = schema();
    for kind in Kind::ALL {
        let object = &schema["$defs"][kind.section()];
        assert_eq!(object["additionalProperties"], json!(false), "{kind}");
        for key in kind.keys() {
            let property = &object["properties"][key.name()];
            assert!(property["description"].is_string(), "{kind} {}", key.name());
            let required = object["required"].as_array().is_some_and(|list| list.contains(&json!(key.name())));
            assert_eq!(required, (key.default)().is_none(), "{kind} {}", key.name());
        }
    }
    let volume = &schema["$defs"]["volume"]["properties"];
    assert_eq!(volume["kind"]["enum"], json!(["file", "block", "ram", "null"]));
    assert_eq!((&volume["block-size"]["default"], &volume["read-only"]["default"]), (&json!("512"), &json!(false)));
}

//! The schema of the configuration: the declarations of the fronts and stores of this program.

use crate::registry::REGISTRY;
use lunar_control::Schema;
use std::sync::LazyLock;

/// The schema of `lunar`.
pub static SCHEMA: LazyLock<Schema> = LazyLock::new(|| REGISTRY.schema());

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_api::openapi;
    use lunar_api::routes::routes;
    use lunar_control::check::{Outside, OutsideError, check};
    use lunar_control::docs;
    use lunar_core::access::Secret;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    const HOST_KEY: &str = "DHHC-1:01:J0qR2WNHWlQcsHLbbnAJ90qQOCgwxh9SLRo7BIMIUsGJ8cUH:";
    const TLS_KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

    /// Compares a page of the repository with the page of the program; writes it if that is asked for.
    fn check_page(name: &str, page: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
        if std::env::var_os("LUNAR_REGENERATE").is_some() {
            std::fs::write(&path, page).expect("docs/ exists");
        }
        let stored = std::fs::read_to_string(&path).expect("the page exists");
        assert!(stored == page, "docs/{name} is out of date: run LUNAR_REGENERATE=1 cargo test -p lunar fresh");
    }

    #[test]
    fn the_page_of_the_configuration_is_fresh() {
        check_page("configuration.md", &docs::configuration(&SCHEMA));
    }

    #[test]
    fn the_pages_of_the_api_are_fresh() {
        let routes = routes(&SCHEMA);
        check_page("api.md", &lunar_api::docs::page(&SCHEMA, &routes));
        check_page("openapi.json", &openapi::page(&SCHEMA, &routes));
    }

    #[test]
    fn the_page_of_metrics_is_fresh() {
        let target = lunar_engine::metrics::table::all();
        check_page("metrics.md", &lunar_control::metrics::page(target.chain(lunar_api::metrics::FAMILIES)));
    }

    #[test]
    fn the_page_on_troubleshooting_is_fresh() {
        check_page("troubleshooting.md", &lunar_control::trouble::page());
    }

    #[test]
    fn the_page_of_the_doctor_is_fresh() {
        check_page("doctor.md", &lunar_control::doctor::table::page());
    }

    /// A machine with the files of secrets that the example names.
    struct Secrets;

    impl Outside for Secrets {
        fn config_mode(&self) -> Option<u32> {
            Some(0o100_600)
        }

        fn mode(&self, _path: &Path) -> Result<u32, OutsideError> {
            Ok(0o100_600)
        }

        fn read(&self, path: &Path) -> Result<Vec<u8>, OutsideError> {
            let secret = match path.to_str() {
                Some("/etc/lunar/secrets/esx") => "twelve bytes, at least\n",
                Some("/etc/lunar/secrets/lunar") => "another secret of the target",
                Some("/etc/lunar/secrets/monitoring") => "0123456789abcdef\r\n",
                Some("/credentials/backup") => "the secret of backup",
                Some("/etc/lunar/secrets/db1.dhchap") => HOST_KEY,
                Some("/etc/lunar/secrets/db1.tls") => TLS_KEY,
                _ => return Err(OutsideError::Missing),
            };
            Ok(secret.into())
        }

        fn credential(&self, name: &str) -> Result<PathBuf, OutsideError> {
            Ok(Path::new("/credentials").join(name))
        }

        fn random(&self) -> Result<[u8; 16], OutsideError> {
            Ok([7; 16])
        }
    }

    #[test]
    fn the_example_is_right() {
        let text = include_str!("../../docs/lunar.example.toml");
        let checked = check(&SCHEMA, "lunar.example.toml", text, &Secrets).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(checked.user_secret("esx"), Some(&Secret::of_any_length(b"twelve bytes, at least".to_vec())));
        assert_eq!(checked.who_has(b"0123456789abcdef"), Some("monitoring"));
        assert_eq!(checked.who_has(b"0123456789abcdeX"), None);
        let archive = checked.config.volumes["archive"].identity("1.0").expect("it has a UUID");
        assert_eq!((archive.serial.as_str(), archive.vendor.as_str()), ("600140521A8F", "LIO-ORG"));
        assert_eq!(archive.naa, [0x50, 0x01, 0x40, 0x5a, 0x1b, 0x2c, 0x3d, 0x4e]);
        let disk = checked.config.volumes["disk1"].identity("1.0").expect("it has a UUID");
        assert_eq!((disk.serial.as_str(), disk.revision.as_str()), ("f81d4fae7dec41d0a76500a0c91e6bf6", "1.0"));
        assert_eq!(disk.naa, [0x37, 0x65, 0, 0xa0, 0xc9, 0x1e, 0x6b, 0xf6]);
    }

    #[test]
    fn an_image_of_ceph_takes_the_place_of_a_path() {
        let read = |keys: &str| {
            let volume = |name: &str| format!("[volume.{name}]\nkind = 'rbd'\n{keys}\n");
            check(&SCHEMA, "a", &(volume("one") + &volume("two")), &Secrets).expect_err(keys).to_string()
        };
        let twice = read("image = 'rbd/disk'");
        assert!(twice.contains("image") && twice.contains("is also that of volume one"), "{twice}");
        assert!(read("").contains("image"));
        let path = read("image = 'rbd/disk'\npath = '/srv/disk'");
        assert!(path.contains("a volume of kind rbd has no path"), "{path}");
        let size = read("image = 'rbd/disk'\nsize = '1G'");
        assert!(size.contains("has its own size"), "{size}");
        let one = check(&SCHEMA, "a", "[volume.one]\nkind = 'rbd'\nimage = 'rbd/disk'\n", &Secrets);
        let one = one.unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(one.config.volumes["one"].place(), Some(Path::new("rbd/disk")));
    }

    #[test]
    fn the_installed_configuration_is_valid() {
        let text = include_str!("../../cli/files/lunar.toml");
        let checked = check(&SCHEMA, "lunar.toml", text, &Secrets).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!((checked.config.portals.len(), checked.config.targets.len()), (1, 0));
    }

    #[test]
    fn every_key_is_described_and_in_the_json_schema() {
        let json = docs::json_schema(&SCHEMA);
        for kind in SCHEMA.kinds() {
            assert!(SCHEMA.words(kind).ends_with('.'), "{kind}");
            let properties = &json["$defs"][kind.section()]["properties"];
            for key in SCHEMA.keys(kind) {
                let words = key.words();
                assert!(words.ends_with('.') && !words.contains('|'), "{kind} {}", key.name());
                assert!(properties[key.name()]["description"].is_string(), "{kind} {}", key.name());
            }
        }
        let kinds = &json["$defs"]["volume"]["properties"]["kind"]["enum"];
        assert_eq!(
            *kinds,
            serde_json::json!(["file", "block", "zvol", "nvme", "ram", "null", "scsi", "handler", "rbd", "st"])
        );
    }

    #[test]
    fn routes_are_unique_and_references_have_targets() {
        let all = routes(&SCHEMA);
        let paths: BTreeSet<_> = all.iter().map(|route| (route.path.as_str(), route.method.word())).collect();
        let names: BTreeSet<_> = all.iter().map(|route| route.name.as_str()).collect();
        assert_eq!((paths.len(), names.len()), (all.len(), all.len()));
        let document = openapi::document(&SCHEMA, &all);
        let mut values = vec![&document];
        let mut count = 0;
        while let Some(value) = values.pop() {
            if let Some(pointer) = value.get("$ref").and_then(|target| target.as_str()?.strip_prefix('#')) {
                assert!(document.pointer(pointer).is_some(), "{pointer} does not exist");
                count += 1;
            }
            values.extend(value.as_object().into_iter().flat_map(|object| object.values()));
            values.extend(value.as_array().into_iter().flatten());
        }
        assert!(count > 100, "{count} references");
    }

    #[test]
    fn words_and_sections_are_unique() {
        let stores: BTreeSet<_> = SCHEMA.store_words().into_iter().collect();
        let protocols: BTreeSet<_> = SCHEMA.protocol_words().into_iter().collect();
        let sections: BTreeSet<_> = SCHEMA.kinds().into_iter().map(|kind| kind.section()).collect();
        assert_eq!(stores.len(), SCHEMA.stores.len());
        assert_eq!(protocols.len(), SCHEMA.portals().count());
        assert_eq!(sections.len(), SCHEMA.kinds().len());
    }
}

//! The systemd unit of the service, for the advice in refusals.

use std::path::Path;

/// The advice about a folder that the unit of the service may protect from writes; empty if no unit started this
/// process.
#[must_use]
pub fn write_advice(folder: &Path) -> String {
    let is_unit = ["INVOCATION_ID", "NOTIFY_SOCKET"].iter().any(|name| std::env::var_os(name).is_some());
    write_advice_if(is_unit, folder)
}

fn write_advice_if(is_unit: bool, folder: &Path) -> String {
    if !is_unit {
        return String::new();
    }
    let folder = folder.display();
    format!(
        "; its unit lets it write to its own folders only: `systemctl edit lunar`, [Service], ReadWritePaths=-{folder}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_mention_the_unit_of_the_service() {
        let folder = Path::new("/data");
        assert_eq!(write_advice_if(false, folder), "");
        assert!(write_advice_if(true, folder).ends_with("ReadWritePaths=-/data"));
    }
}

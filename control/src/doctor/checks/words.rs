//! Words of findings that several checks use.

use crate::value::{Size, Textual};

/// Bytes.
pub(super) const MIB: u64 = 1 << 20;

/// A number of bytes for people: in whole MiB, because they change with every write.
pub(super) fn mib(bytes: u64) -> String {
    Size(bytes / MIB * MIB).text()
}

/// A part in percent.
pub(super) fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// The command that sets a key of the unit.
pub(super) fn unit_setting(setting: &str) -> String {
    let folder = "/etc/systemd/system/lunar.service.d";
    let name = setting.split('=').next().unwrap_or_default().to_lowercase();
    format!(
        "mkdir -p {folder} && printf '[Service]\\n{setting}\\n' > {folder}/{name}.conf && \
         systemctl daemon-reload && systemctl restart lunar"
    )
}

//! The banner of `lunar serve`: the volumes, the portals, and how each common client connects.

use lunar_core::medium::MediumKind;
use lunar_core::unit::Unit;
use lunar_engine::command_line::Shown;
use std::fmt::Write;

/// The line of a volume.
#[derive(Debug)]
pub struct VolumeLine {
    /// Logical unit number.
    pub lun: u16,
    /// Its text on the command line.
    pub name: String,
    /// Bytes; `None`: only the device knows them.
    pub bytes: Option<u64>,
    /// Its properties: thin, write-back, read-only ...
    pub traits: String,
}

impl VolumeLine {
    /// The line of a unit.
    #[must_use]
    pub fn of(lun: u16, name: &str, unit: &Unit) -> Self {
        let traits = unit.traits();
        let mut words = vec![format!("{}-byte blocks", unit.geometry.block_size)];
        let kind = match unit.medium.kind() {
            MediumKind::Fixed => None,
            MediumKind::Removable => Some("removable"),
            MediumKind::Optical => Some("CD/DVD"),
        };
        words.splice(0..0, kind.map(str::to_owned));
        words.extend(traits.thin.then(|| "thin".to_owned()));
        words.push(if traits.write_cache { "write-back" } else { "write-through" }.to_owned());
        words.extend(unit.protected().map(|protection| format!("protection type {}", protection.kind() as u8)));
        words.extend(unit.read_only.then(|| "read-only".to_owned()));
        Self { lun, name: name.to_owned(), bytes: Some(unit.geometry.bytes()), traits: words.join(", ") }
    }

    /// The line of a device to which commands are forwarded.
    #[must_use]
    pub fn of_device(lun: u16, name: &str) -> Self {
        Self {
            lun,
            name: name.to_owned(),
            bytes: None,
            traits: "a device that executes its commands itself".to_owned(),
        }
    }
}

/// A size in the largest binary unit that needs at most one decimal.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let at = ((63 - bytes.max(1).leading_zeros()) / 10).min(5) as usize;
    let tenths = (u128::from(bytes) * 10) >> (10 * at);
    match tenths % 10 {
        0 => format!("{} {}", tenths / 10, UNITS[at]),
        tenth => format!("{}.{tenth} {}", tenths / 10, UNITS[at]),
    }
}

/// The whole banner. `is_open`: any client that reaches a portal may use the volumes.
#[must_use]
pub fn banner(volumes: &[VolumeLine], fronts: &[Shown], is_open: bool) -> String {
    let mut text = String::new();
    let mut line = |text_line: String| writeln!(text, "{text_line}").expect("a String takes all");
    let plural = if volumes.len() == 1 { "volume" } else { "volumes" };
    let names: Vec<&str> = fronts.iter().map(|front| front.transport).collect();
    line(format!("Lunar {} serves {} {plural} over {}", env!("CARGO_PKG_VERSION"), volumes.len(), names.join(" and ")));
    for place in fronts.iter().flat_map(|front| &front.places) {
        line(format!("  {place}"));
    }
    for volume in volumes.iter().take(SHOWN_MAX) {
        let bytes = volume.bytes.map_or_else(String::new, |bytes| format!("{}, ", size(bytes)));
        line(format!("  LUN {:<4} {}  {bytes}{}", volume.lun, volume.name, volume.traits));
    }
    if volumes.len() > SHOWN_MAX {
        line(format!("  ... and {} more", volumes.len() - SHOWN_MAX));
    }
    line(String::new());
    line("Connect from".to_owned());
    for how in fronts.iter().flat_map(|front| &front.connect) {
        line(format!("  {how}"));
    }
    line(String::new());
    let options: Vec<&str> = fronts.iter().filter_map(|front| front.keeps_local).collect();
    if is_open && !options.is_empty() {
        let (verb, options) = (if options.len() == 1 { "keeps" } else { "keep" }, options.join(" and "));
        line(format!(
            "Any client that reaches these ports can use these volumes; {options} {verb} them to this machine."
        ));
    }
    line("Ctrl-C lets commands in progress finish, flushes, and stops.".to_owned());
    line("ready".to_owned());
    text
}

/// Volumes that the banner lists one by one, so that it fits a screen.
const SHOWN_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        let shown: Vec<String> =
            [0, 512, 1536, 1 << 20, 20 << 30, 3 << 39, u64::MAX].iter().map(|&bytes| size(bytes)).collect();
        assert_eq!(shown, ["0 bytes", "512 bytes", "1.5 KiB", "1 MiB", "20 GiB", "1.5 TiB", "16383.9 PiB"]);
    }

    #[test]
    fn the_banner_lists_volumes_and_fronts() {
        let line = VolumeLine { lun: 0, name: "disk.img".into(), bytes: Some(1 << 30), traits: "thin".into() };
        let front = |transport, keeps_local| Shown {
            transport,
            places: vec![format!("place    of {transport}")],
            connect: vec![format!("Linux    by {transport}")],
            keeps_local,
        };
        let fronts =
            [front("one", Some("--one 127.0.0.1")), front("two", Some("--two 127.0.0.1")), front("three", None)];
        let text = banner(&[line], &fronts, true);
        for part in [
            "1 volume over one and two and three\n",
            "  place    of two\n",
            "LUN 0    disk.img  1 GiB, thin",
            "  Linux    by three\n",
            "these volumes; --one 127.0.0.1 and --two 127.0.0.1 keep them to this machine",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert!(text.ends_with("ready\n"));
        assert!(banner(&[], &fronts[..1], true).contains("--one 127.0.0.1 keeps them"));
        assert!(!banner(&[], &fronts, false).contains("Any client"));
    }
}

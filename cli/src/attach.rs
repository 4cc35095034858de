//! `lunar attach` and `lunar detach`: volumes as disks of the service's machine.

use crate::call::Service;
use crate::failure::Failure;
use crate::{declare, show};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use lunar_api::client::{RequestBody, encoded};
use lunar_api::route::Method;
use serde_json::{Map, Value as Json};
use std::time::{Duration, Instant};

/// The resources that are disks of the machine.
const DISKS: &str = "/v1/ublk";
/// The resources that are volumes.
const VOLUMES: &str = "/v1/volume";
/// How volumes of another Lunar begin: the word of their kind.
const REMOTE: &str = "st:";
/// How long a disk may take to appear: as long as the service waits for the kernel.
const PATIENCE: Duration = Duration::from_secs(35);
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of a name that is made of the text of a volume: within what names may have.
const NAME_BYTES_MAX: usize = 60;

/// The commands.
#[must_use]
pub fn commands() -> [Command; 2] {
    let number = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("N").value_parser(value_parser!(u16)).help(help)
    };
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    let attach =
        declare::api_command("attach", "Make a volume a disk of the service's machine, /dev/ublkbN (Linux ublk)")
            .args([
                Arg::new("volume")
                    .value_name("VOLUME")
                    .help("Name of the volume, or a volume of another Lunar: st:udp:ADDRESS:PORT[#LUN]"),
                Arg::new("name").long("name").value_name("NAME").help("Name of the disk [default: that of the volume]"),
                number("number", "N of /dev/ublkbN [default: the lowest that is free]"),
                flag("read-only", "Refuse writes of this machine"),
                number("queues", "Queues, each served by one core [default: one for each core, 4 at most]"),
                number("depth", "Requests in progress in each queue [default: 64]"),
                Arg::new("block-size")
                    .long("block-size")
                    .value_name("BYTES")
                    .value_parser(["512", "4096"])
                    .help("Bytes of a logical block of a volume of another Lunar [default: 512]"),
                Arg::new("initiator-name")
                    .long("initiator-name")
                    .value_name("NAME")
                    .help("Name by which the target of a volume of another Lunar knows this machine"),
                flag("list", "List the disks").conflicts_with_all(["volume", "features"]),
                flag("features", "List the features that the kernel offers, and those in use").conflicts_with("volume"),
            ])
            .args(declare::change_options())
            .group(clap::ArgGroup::new("which").args(["volume", "list", "features"]).required(true));
    let detach = declare::api_command("detach", "Remove a disk of the service's machine; unmount it before")
        .arg(Arg::new("disk").value_name("DISK").required(true).help("Name of the disk, or of its volume"))
        .args(declare::change_options());
    [attach, detach]
}

/// Runs `lunar attach`.
///
/// # Errors
/// Why there is no disk.
pub(crate) fn attach(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    if matches.get_flag("features") {
        let all = service.get("/v1/local-disk")?;
        return service.print(&all, features(&all));
    }
    let Some(volume) = matches.get_one::<String>("volume") else {
        let all = service.get("/v1/local-disk")?;
        return service.print(&all["disks"], list(&all["disks"], show::width()));
    };
    let remote = volume.strip_prefix(REMOTE);
    let name = matches.get_one::<String>("name").cloned();
    let name = &name.unwrap_or_else(|| remote.map_or_else(|| volume.clone(), |_| name_of(volume)));
    let connected = match remote {
        Some(remote) => Some(connect(service, matches, (name, remote))?),
        None => None,
    };
    if let Some(Connected::Planned(plan)) = &connected {
        return service.print(plan, show::plan(plan, false));
    }
    let volume = match &connected {
        Some(Connected::Known(known)) => known,
        Some(_) => name,
        None => volume,
    };
    let mut keys = Map::new();
    keys.insert("volume".to_owned(), volume.as_str().into());
    for key in ["number", "queues", "depth"] {
        if let Some(number) = matches.get_one::<u16>(key) {
            keys.insert(key.to_owned(), (*number).into());
        }
    }
    if matches.get_flag("read-only") {
        keys.insert("read-only".to_owned(), true.into());
    }
    let path = format!("{DISKS}/{}{}", encoded(name), declare::change_query(matches));
    let plan = service.request(Method::Post, &path, RequestBody::Json(Json::Object(keys)));
    if let (Err(_), Some(Connected::New)) = (&plan, &connected) {
        // The reason is that of the disk.
        let _ = service.request(Method::Delete, &format!("{VOLUMES}/{}", encoded(name)), RequestBody::Nothing);
    }
    let plan = plan?;
    if matches.get_flag("dry-run") {
        return service.print(&plan, show::plan(&plan, false));
    }
    let disk = until_there(service, name)?;
    let words = format!("volume {volume} is {}", place(&disk));
    service.print(&disk, format!("{words}\n"))
}

/// A volume of another Lunar.
enum Connected {
    /// It is there, under this name.
    Known(String),
    /// It was made.
    New,
    /// It would be made by this plan.
    Planned(Json),
}

/// Connects to a volume of another Lunar, unless that is done.
fn connect(service: &Service, matches: &ArgMatches, (name, remote): (&str, &str)) -> Result<Connected, Failure> {
    let all = service.get(VOLUMES)?;
    let known = all.as_array().into_iter().flatten().find(|volume| volume["keys"]["remote"] == remote);
    if let Some(known) = known.and_then(|volume| volume["name"].as_str()) {
        return Ok(Connected::Known(known.to_owned()));
    }
    let mut keys = Map::new();
    keys.insert("kind".to_owned(), REMOTE.trim_end_matches(':').into());
    keys.insert("remote".to_owned(), remote.into());
    for key in ["block-size", "initiator-name"] {
        if let Some(value) = matches.get_one::<String>(key) {
            keys.insert(key.to_owned(), value.as_str().into());
        }
    }
    if matches.get_flag("read-only") {
        keys.insert("read-only".to_owned(), true.into());
    }
    let path = format!("{VOLUMES}/{}{}", encoded(name), declare::change_query(matches));
    let plan = service.request(Method::Post, &path, RequestBody::Json(Json::Object(keys)))?;
    Ok(if matches.get_flag("dry-run") { Connected::Planned(plan) } else { Connected::New })
}

/// The name of a volume of another Lunar, and of its disk: its text, in characters that names have.
fn name_of(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' };
    text.chars().map(plain).take(NAME_BYTES_MAX).collect()
}

/// The words about a volume of another Lunar whose disk was removed: it stays connected.
fn left_behind(volumes: &Json, volume: &Json) -> Option<String> {
    let found = volumes.as_array()?.iter().find(|other| other["name"] == *volume)?;
    let is_remote = found["keys"]["kind"] == REMOTE.trim_end_matches(':');
    let name = volume.as_str().filter(|_| is_remote)?;
    Some(format!("volume {name} stays connected to its target; `lunar volume delete {name}` ends that\n"))
}

/// Waits until a disk is served.
fn until_there(service: &Service, name: &str) -> Result<Json, Failure> {
    let end = Instant::now() + PATIENCE;
    loop {
        let all = service.get("/v1/local-disk")?;
        let disks = all["disks"].as_array().into_iter().flatten();
        if let Some(disk) = disks.into_iter().find(|disk| disk["name"] == name) {
            return match disk["trouble"].as_str() {
                None => Ok(disk.clone()),
                Some(why) => {
                    Err(Failure::new(format!("{why}; `lunar detach {name}` removes the disk from the configuration")))
                }
            };
        }
        if Instant::now() >= end {
            return Err(Failure::new(format!("the disk {name} does not appear: `lunar status` says why")));
        }
        std::thread::sleep(PAUSE);
    }
}

/// The places of a disk.
fn place(disk: &Json) -> String {
    let device = disk["device"].as_str().unwrap_or_default();
    disk["link"].as_str().map_or_else(|| device.to_owned(), |link| format!("{device}, {link}"))
}

/// Runs `lunar detach`.
///
/// # Errors
/// Why the disk stays.
pub(crate) fn detach(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let wanted = matches.get_one::<String>("disk").cloned().unwrap_or_default();
    let all = service.get(DISKS)?;
    let name = found(&all, &wanted)?;
    let path = format!("{DISKS}/{}{}", encoded(&name), declare::change_query(matches));
    let is_done = !matches.get_flag("dry-run");
    let plan = service.request(Method::Delete, &path, RequestBody::Nothing)?;
    let disk = all.as_array().into_iter().flatten().find(|disk| disk["name"] == name.as_str());
    let left = match disk.map(|disk| &disk["keys"]["volume"]).filter(|_| is_done) {
        Some(volume) => left_behind(&service.get(VOLUMES)?, volume),
        None => None,
    };
    service.print(&plan, show::plan(&plan, is_done) + &left.unwrap_or_default())
}

/// The name of the disk that has this name, or that is the only one of this volume.
fn found(all: &Json, wanted: &str) -> Result<String, Failure> {
    let names = |is_it: &dyn Fn(&Json) -> bool| -> Vec<String> {
        let all = all.as_array().into_iter().flatten().filter(|disk| is_it(disk));
        all.filter_map(|disk| disk["name"].as_str().map(str::to_owned)).collect()
    };
    let by_name = names(&|disk| disk["name"] == wanted);
    let by_volume = names(&|disk| disk["keys"]["volume"] == wanted);
    match (&by_name[..], &by_volume[..]) {
        ([name], _) | ([], [name]) => Ok(name.clone()),
        (_, []) => Err(Failure::new(format!("there is no disk {wanted}; `lunar attach --list` lists the disks"))),
        (_, several) => {
            let several = several.join(", ");
            Err(Failure::new(format!("volume {wanted} is several disks: name one of them: {several}")))
        }
    }
}

/// The disks for people, in lines of at most `width` columns.
fn list(disks: &Json, width: usize) -> String {
    let disks: Vec<&Json> = disks.as_array().into_iter().flatten().collect();
    if disks.is_empty() {
        return "no volume is a disk of the service's machine\n".into();
    }
    let keys = ["name", "volume", "device", "link", "host", "read-only", "trouble"];
    let cell = |disk: &Json, key: &str| match &disk[key] {
        Json::String(text) => text.clone(),
        Json::Bool(is_so) => if *is_so { "yes" } else { "no" }.to_owned(),
        _ => String::new(),
    };
    let rows: Vec<Vec<String>> = disks.iter().map(|disk| keys.map(|key| cell(disk, key)).to_vec()).collect();
    show::table(&keys.map(str::to_owned), &rows, width)
}

/// The features for people.
fn features(all: &Json) -> String {
    let names = |key: &str| -> Vec<String> {
        all[key].as_array().into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect()
    };
    if let Some(why) = all["trouble"].as_str() {
        return format!("the kernel offers no disks: {why}\n");
    }
    let (offered, used) = (names("offered"), names("used"));
    let line = |name: &String| format!("{name}{}\n", if used.contains(name) { ", used" } else { "" });
    let text: String = offered.iter().map(line).collect();
    if text.is_empty() { "the service serves no disks of its machine\n".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_disk_is_found_by_its_name_or_its_volume() {
        let disk = |name: &str, volume: &str| json!({ "name": name, "keys": { "volume": volume } });
        let all = json!([disk("a", "v"), disk("v", "w"), disk("b", "x"), disk("c", "x")]);
        let found = |wanted: &str| found(&all, wanted).map_err(|why| why.message);
        assert_eq!((found("a"), found("v"), found("w")), (Ok("a".into()), Ok("v".into()), Ok("v".into())));
        assert!(found("x").is_err_and(|why| why.contains("b, c")));
        assert!(found("y").is_err_and(|why| why.contains("attach --list")));
    }

    #[test]
    fn a_volume_of_another_lunar_gets_a_name_and_is_told_of_when_it_is_left() {
        assert_eq!(name_of("st:udp:192.0.2.1:18181#1"), "st-udp-192.0.2.1-18181-1");
        assert_eq!(name_of(&"st:udp:[2001:db8::1]:18181,".repeat(9)).len(), NAME_BYTES_MAX);
        let volume = |name: &str, kind: &str| json!({ "name": name, "keys": { "kind": kind } });
        let all = json!([volume("a", "file"), volume("b", "st")]);
        assert_eq!(left_behind(&all, &json!("a")), None);
        assert!(left_behind(&all, &json!("b")).is_some_and(|words| words.contains("lunar volume delete b")));
        assert_eq!(left_behind(&all, &Json::Null), None);
    }

    #[test]
    fn disks_and_features_are_shown() {
        let disks = json!([{ "name": "data", "volume": "v", "device": "/dev/ublkb3", "link": "/run/lunar/ublk/data",
            "host": "iqn.x", "read-only": true, "features": [] }]);
        assert!(list(&disks, 200).contains("/run/lunar/ublk/data") && list(&disks, 200).contains("yes"));
        assert_eq!(place(&disks[0]), "/dev/ublkb3, /run/lunar/ublk/data");
        assert!(list(&json!([]), 80).starts_with("no volume"));
        let all = json!({ "offered": ["USER_RECOVERY", "ZONED"], "used": ["USER_RECOVERY"] });
        assert_eq!(features(&all), "USER_RECOVERY, used\nZONED\n");
        let none = json!({ "offered": [], "used": [], "trouble": "load the module" });
        assert!(features(&none).contains("load the module"));
    }
}

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
/// How long a disk may take to appear: as long as the service waits for the kernel.
const PATIENCE: Duration = Duration::from_secs(35);
const PAUSE: Duration = Duration::from_millis(100);

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
                Arg::new("volume").value_name("VOLUME").help("Name of the volume"),
                Arg::new("name").long("name").value_name("NAME").help("Name of the disk [default: that of the volume]"),
                number("number", "N of /dev/ublkbN [default: the lowest that is free]"),
                flag("read-only", "Refuse writes of this machine"),
                number("queues", "Queues, each served by one core [default: one for each core, 4 at most]"),
                number("depth", "Requests in progress in each queue [default: 64]"),
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
    let name = matches.get_one::<String>("name").unwrap_or(volume);
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
    let plan = service.request(Method::Post, &path, RequestBody::Json(Json::Object(keys)))?;
    if matches.get_flag("dry-run") {
        return service.print(&plan, show::plan(&plan, false));
    }
    let disk = until_there(service, name)?;
    let words = format!("volume {volume} is {}", place(&disk));
    service.print(&disk, format!("{words}\n"))
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
    let plan = service.request(Method::Delete, &path, RequestBody::Nothing)?;
    service.print(&plan, show::plan(&plan, !matches.get_flag("dry-run")))
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

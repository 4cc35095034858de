//! `lunar web`: a one-time link to the page.

use crate::call::Service;
use crate::failure::Failure;
use clap::ArgMatches;
use lunar_api::client::{Address, RequestBody};
use lunar_api::forward::Forwarder;
use lunar_api::route::Method;
use serde_json::{Value as Json, json};

/// Prints a link. Browsers cannot use the Unix socket, so requests are forwarded to it until the process ends. A
/// service on the network has an address of its own.
pub(crate) fn run(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let port = matches.get_one::<u16>("port").copied();
    match service.address() {
        Address::Url(_) if port.is_some() => {
            Err(Failure::new("--port is for the Unix socket: browsers use the address of the service itself"))
        }
        Address::Url(url) => {
            let link = make(service)?;
            let place = url.to_string();
            print(service, place.trim_end_matches('/'), &link, None)
        }
        Address::Socket(socket) => {
            let port = port.unwrap_or_default();
            let used = |why| Failure::new(format!("port {port} of this host: {why}; choose another --port"));
            let forwarder = Forwarder::bind(port, socket).map_err(used)?;
            let address = forwarder.address().map_err(Failure::new)?;
            let link = make(service)?;
            print(service, &format!("http://{address}"), &link, Some(address.port()))?;
            match forwarder.run() {
                Ok(never) => match never {},
                Err(why) => Err(Failure::new(why)),
            }
        }
    }
}

fn make(service: &Service) -> Result<Json, Failure> {
    service.request(Method::Post, "/v1/login/link", RequestBody::Nothing)
}

fn print(service: &Service, place: &str, link: &Json, port: Option<u16>) -> Result<(), Failure> {
    let (key, seconds) = (link["key"].as_str().unwrap_or_default(), link["seconds"].as_u64().unwrap_or_default());
    let url = format!("{place}/#link={key}");
    let text = text(&url, seconds / 60, port);
    service.print(&json!({ "url": url, "seconds": seconds }), text)
}

fn text(url: &str, minutes: u64, port: Option<u16>) -> String {
    let mut text =
        format!("Open this link within {minutes} minutes. It works once and gives your rights:\n\n    {url}\n\n");
    if let Some(port) = port {
        text.push_str(&format!(
            "The page works until you press Ctrl-C here. For a browser on another machine, first run there:\n    \
             ssh -L {port}:127.0.0.1:{port} THIS_HOST\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_is_on_a_line_of_its_own() {
        let shown = text("http://127.0.0.1:4711/#link=ab", 5, Some(4711));
        assert!(shown.lines().any(|line| line.trim() == "http://127.0.0.1:4711/#link=ab"), "{shown}");
        assert!(shown.contains("within 5 minutes") && shown.contains("ssh -L 4711:127.0.0.1:4711"), "{shown}");
        assert!(!text("https://storage.example:3280/#link=ab", 5, None).contains("ssh"));
    }
}

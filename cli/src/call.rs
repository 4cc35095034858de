//! The service that the commands use.

use crate::failure::Failure;
use clap::ArgMatches;
use lunar_api::client::{Address, Client, ClientError, RequestBody, Token, encoded};
use lunar_api::route::Method;
use lunar_api::system;
use lunar_control::scsi::{ScsiOrder, ScsiOutcome};
use serde_json::Value as Json;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// A client of the service, and the output format.
#[derive(Clone, Debug)]
pub struct Service {
    client: Client,
    /// Whether to print JSON.
    pub json: bool,
}

fn from_environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Service {
    /// The service that options and environment variables select.
    ///
    /// # Errors
    /// A message that says which of them is wrong.
    pub fn of(matches: &ArgMatches) -> Result<Self, Failure> {
        let json = matches.get_flag("json");
        let path = |option: &str, variable: &str| {
            matches.get_one::<PathBuf>(option).cloned().or_else(|| from_environment(variable).map(PathBuf::from))
        };
        let socket = matches.get_one::<PathBuf>("socket").cloned();
        let url = matches.get_one::<String>("url").cloned();
        let url = url.or_else(|| from_environment("LUNAR_URL").filter(|_| socket.is_none()));
        let Some(url) = url else {
            let socket = socket.or_else(|| from_environment("LUNAR_SOCKET").map(PathBuf::from));
            let address = Address::Socket(socket.unwrap_or_else(system::client_socket));
            return Ok(Self { client: Client { address, token: None, trusted: None }, json });
        };
        let parsed = url.parse::<lunar_api::client::Uri>().ok();
        let parsed = parsed.filter(|url| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some());
        let parsed =
            parsed.ok_or_else(|| Failure::new(format!("{url} is not a URL such as https://storage.example:3280")))?;
        let token = path("token-file", "LUNAR_TOKEN_FILE").map(|file| token(&file)).transpose()?;
        Ok(Self {
            client: Client { address: Address::Url(parsed), token, trusted: path("trust", "LUNAR_TRUST") },
            json,
        })
    }

    /// Whether the service is on this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match &self.client.address {
            Address::Socket(_) => true,
            Address::Url(url) => {
                let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
            }
        }
    }

    /// The address of the service.
    pub(crate) fn address(&self) -> &Address {
        &self.client.address
    }

    /// Sends a GET request and returns the JSON response.
    ///
    /// # Errors
    /// Why the request failed.
    pub fn get(&self, path: &str) -> Result<Json, Failure> {
        Ok(self.client.json(Method::Get, path, RequestBody::Nothing)?)
    }

    /// Sends a request and returns the JSON response.
    ///
    /// # Errors
    /// Why the request failed.
    pub fn request(&self, method: Method, path: &str, body: RequestBody) -> Result<Json, Failure> {
        Ok(self.client.json(method, path, body)?)
    }

    /// Executes a SCSI command at a volume.
    ///
    /// # Errors
    /// Why it was not executed.
    pub fn scsi(&self, volume: &str, order: &ScsiOrder) -> Result<ScsiOutcome, Failure> {
        Ok(self.client.scsi(volume, order)?)
    }

    /// Ends a session. Returns the session.
    pub(crate) fn end_session(&self, id: &str, is_forced: bool) -> Result<Json, ClientError> {
        let query = if is_forced { "?force=true" } else { "" };
        self.client.json(Method::Delete, &format!("/v1/session/{}{query}", encoded(id)), RequestBody::Nothing)
    }

    /// Sends a request and returns the response as text.
    ///
    /// # Errors
    /// Why the request failed.
    pub fn text(&self, method: Method, path: &str, body: RequestBody) -> Result<String, Failure> {
        let body = self.client.call(method, path, body)?;
        String::from_utf8(body).map_err(|_| Failure::new("the response is not UTF-8 text"))
    }

    /// Follows the event stream; `each` is called with each event until it returns `false`.
    ///
    /// # Errors
    /// Why the stream failed.
    pub fn follow(&self, each: impl FnMut(&str) -> bool) -> Result<(), Failure> {
        Ok(self.client.follow("/v1/events", each)?)
    }
}

fn token(file: &Path) -> Result<Token, Failure> {
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|why| Failure::new(format!("the token in {} cannot be read: {why}", file.display())))?;
    Ok(Token(text.trim_end_matches(['\r', '\n']).to_owned()))
}

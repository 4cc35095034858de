//! Which service is asked.

use crate::Failure;
use clap::ArgMatches;
use lunar_api::client::{Address, Client, Sent, Token, Trouble};
use lunar_api::place;
use lunar_api::routes::Method;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

/// A service, and whether it is to be said in JSON what it answers.
#[derive(Debug)]
pub struct Service {
    client: Client,
    /// Whether whoever asks wants JSON.
    pub json: bool,
}

fn from_environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Service {
    /// The one that options and the environment name.
    ///
    /// # Errors
    /// When they make no sense.
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
            let address = Address::Socket(socket.unwrap_or_else(place::to_call));
            return Ok(Self { client: Client { address, token: None, trusted: None }, json });
        };
        let parsed = url.parse::<lunar_api::client::Uri>().ok();
        let parsed = parsed.filter(|url| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some());
        let parsed =
            parsed.ok_or_else(|| Failure::new(format!("{url} is no URL such as https://storage.example:3280")))?;
        let token = path("token-file", "LUNAR_TOKEN_FILE").map(|file| token(&file)).transpose()?;
        Ok(Self {
            client: Client { address: Address::Url(parsed), token, trusted: path("trust", "LUNAR_TRUST") },
            json,
        })
    }

    /// What it answers to a question.
    ///
    /// # Errors
    /// Why it does not.
    pub fn get(&self, path: &str) -> Result<Json, Failure> {
        Ok(self.client.json(Method::Get, path, Sent::Nothing)?)
    }

    /// What it answers when it shall do something.
    ///
    /// # Errors
    /// Why it does not.
    pub fn ask(&self, method: Method, path: &str, sent: Sent) -> Result<Json, Failure> {
        Ok(self.client.json(method, path, sent)?)
    }

    /// Ends a session; what it was.
    pub(crate) fn end(&self, id: &str) -> Result<Json, Trouble> {
        self.client.json(Method::Delete, &format!("/v1/session/{}", encoded(id)), Sent::Nothing)
    }

    /// An answer that is text.
    ///
    /// # Errors
    /// Why there is none.
    pub fn text(&self, method: Method, path: &str, sent: Sent) -> Result<String, Failure> {
        let body = self.client.call(method, path, sent)?;
        String::from_utf8(body).map_err(|_| Failure::new("the answer is no text"))
    }

    /// Follows the stream of events.
    ///
    /// # Errors
    /// Why there is none.
    pub fn follow(&self, each: impl FnMut(&str) -> bool) -> Result<(), Failure> {
        Ok(self.client.follow("/v1/events", each)?)
    }
}

fn token(file: &Path) -> Result<Token, Failure> {
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|why| Failure::new(format!("the token in {} cannot be read: {why}", file.display())))?;
    Ok(Token(text.trim_end_matches(['\r', '\n']).to_owned()))
}

/// A name as a part of a path (RFC 3986 2.1).
#[must_use]
pub fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
    let one = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    // A path of one dot means where one is already.
    if name == "." || name == ".." { name.replace('.', "%2E") } else { name.bytes().map(one).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_one_part_of_a_path() {
        assert_eq!(encoded("disk-1.a_b:c@d"), "disk-1.a_b:c@d");
        assert_eq!(
            (encoded("a/b?c"), encoded("ü"), encoded("..")),
            ("a%2Fb%3Fc".into(), "%C3%BC".into(), "%2E%2E".into())
        );
    }
}

//! Requests of browsers. A browser sends requests for any page that its user opens, so its requests are checked more
//! than those of programs: the name of the service (against DNS rebinding), the page that sent it (against requests
//! forged by other pages), and the cookie of a login, because a connection to a forwarded socket says nothing about the
//! user.

use axum::http::header::{COOKIE, HOST, HeaderName, ORIGIN, USER_AGENT};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use lunar_control::api::ProblemDetails;
use std::net::IpAddr;
use std::sync::Arc;
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::server::ParsedCertificate;

use crate::logins::{Key, SESSION_TIME_MAX};
use crate::route::Method;

/// The field by which `lunar web` marks the requests that it forwards. It takes rights and gives none.
pub const FORWARDED: HeaderName = HeaderName::from_static("lunar-browser");
/// The field that the page adds to requests that change something. A page of another origin cannot add it.
const FROM_PAGE: HeaderName = HeaderName::from_static("lunar-page");
/// The relation of the page that sent a request to its destination (W3C, Fetch Metadata).
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The beginning of the user agent of all browsers.
const BROWSERS: &[u8] = b"Mozilla/";

/// The certificate of the listener that a connection uses.
#[derive(Clone, Debug)]
pub struct Encrypted(pub(crate) Arc<CertificateDer<'static>>);

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Whether a browser has sent the request, as far as it can be seen.
pub(crate) fn is_browser(headers: &HeaderMap) -> bool {
    let is_marked = [FORWARDED, ORIGIN, SEC_FETCH_SITE].iter().any(|name| headers.contains_key(name));
    is_marked || headers.get(USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(BROWSERS))
}

/// A host and a port, as a Host field has them (RFC 9110 7.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Authority<'a> {
    host: &'a str,
    port: Option<u16>,
}

impl<'a> Authority<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let host_end = text.rfind(']').map_or_else(|| text.find(':').unwrap_or(text.len()), |end| end + 1);
        let (host, rest) = text.split_at_checked(host_end)?;
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(port.parse().ok()?),
            None if rest.is_empty() => None,
            None => return None,
        };
        Some(Self { host, port })
    }

    /// Whether no other party can make this name lead here: an address, this host, or a name of the certificate.
    fn is_own(self, encrypted: Option<&Encrypted>) -> bool {
        let bare = self.host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(self.host);
        if bare.parse::<IpAddr>().is_ok() || bare.eq_ignore_ascii_case("localhost") {
            return true;
        }
        let Some(Encrypted(certificate)) = encrypted else { return false };
        let (Ok(name), Ok(parsed)) = (ServerName::try_from(bare), ParsedCertificate::try_from(&**certificate)) else {
            return false;
        };
        verify_server_name(&parsed, &name).is_ok()
    }
}

/// Checks that the request is addressed to this service.
///
/// # Errors
/// Status 421 (RFC 9110 15.5.20).
pub(crate) fn check_host(parts: &Parts) -> Result<(), ProblemDetails> {
    let authority = text(&parts.headers, &HOST).and_then(Authority::of);
    if authority.is_some_and(|authority| authority.is_own(parts.extensions.get())) {
        return Ok(());
    }
    let why = "this name may be one of another site: use the address of Lunar, localhost, or a name of its certificate";
    Err(ProblemDetails::new("/problems/host", "The host is not known", 421, why.to_owned()))
}

/// Checks that the own page has sent the request, and not a page of another origin.
///
/// # Errors
/// Status 403 or 421.
pub(crate) fn check_origin(parts: &Parts) -> Result<(), ProblemDetails> {
    check_host(parts)?;
    let headers = &parts.headers;
    let is_own = match (text(headers, &SEC_FETCH_SITE), text(headers, &ORIGIN)) {
        (Some(site), _) => ["same-origin", "none"].contains(&site),
        (None, Some(origin)) => {
            let authority = origin.split_once("://").map(|(_, authority)| authority);
            authority.is_some_and(|authority| text(headers, &HOST).is_some_and(|host| host == authority))
        }
        (None, None) => true,
    };
    let is_change = parts.method != Method::Get.word();
    if is_own && (!is_change || headers.contains_key(FROM_PAGE)) {
        return Ok(());
    }
    let why = "another page has sent this request: only the page of Lunar itself may use a login";
    Err(ProblemDetails::new("/problems/origin", "The origin is not known", 403, why.to_owned()))
}

/// The name of the cookie. Cookies are not separated by port, so the name has it. With TLS the prefix prevents a cookie
/// of another host of the domain (draft-ietf-httpbis-rfc6265bis 4.1.3.2).
fn cookie_name(parts: &Parts) -> String {
    let port = text(&parts.headers, &HOST).and_then(Authority::of).and_then(|authority| authority.port);
    let is_encrypted = parts.extensions.get::<Encrypted>().is_some();
    let port = port.unwrap_or(if is_encrypted { 443 } else { 80 });
    format!("{}lunar-{port}", if is_encrypted { "__Host-" } else { "" })
}

/// The key in the cookie of the request.
pub(crate) fn cookie(parts: &Parts) -> Option<&str> {
    let name = cookie_name(parts);
    let fields = parts.headers.get_all(COOKIE).iter().filter_map(|field| field.to_str().ok());
    let mut pairs = fields.flat_map(|field| field.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(known, _)| *known == name).map(|(_, key)| key)
}

/// The Set-Cookie field that gives a key to the browser, or without one removes it.
pub(crate) fn set_cookie(parts: &Parts, key: Option<&Key>) -> Option<HeaderValue> {
    let (name, value) = (cookie_name(parts), key.map(Key::text).unwrap_or_default());
    let age = if key.is_some() { SESSION_TIME_MAX.as_secs() } else { 0 };
    // Browsers may refuse `Secure` from an address without TLS, even a loopback address.
    let secure = if parts.extensions.get::<Encrypted>().is_some() { "; Secure" } else { "" };
    let field = format!("{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::try_from(field).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logins::Logins;
    use crate::rights::Credentials;
    use std::time::Instant;

    fn parts(method: &str, fields: &[(&str, &str)]) -> Parts {
        let request = axum::http::Request::builder().method(method).uri("/v1/status");
        let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn a_name_of_another_site_is_refused() {
        let status = |host: &str| check_host(&parts("GET", &[("host", host)])).map_err(|why| why.status);
        for own in
            ["127.0.0.1", "127.0.0.1:3280", "192.0.2.1:3280", "[::1]:3280", "[2001:db8::1]", "localhost:1", "LocalHost"]
        {
            assert_eq!(status(own), Ok(()), "{own}");
        }
        for foreign in [
            "",
            "evil.example",
            "evil.example:3280",
            "127.0.0.1.evil.example",
            "localhost.evil.example:1",
            "[::1",
            "127.0.0.1:99999",
            "::1",
            "localhost:",
        ] {
            assert_eq!(status(foreign), Err(421), "{foreign}");
        }
        assert_eq!(check_host(&parts("GET", &[])).map_err(|why| why.status), Err(421), "no name at all");
    }

    #[test]
    fn a_request_of_another_page_is_refused() {
        let host = ("host", "127.0.0.1:3280");
        let status = |method, fields: &[(&str, &str)]| {
            let fields = [&[host], fields].concat();
            check_origin(&parts(method, &fields)).map_err(|why| why.status)
        };
        let page = ("lunar-page", "1");
        assert_eq!(status("GET", &[]), Ok(()));
        assert_eq!(status("GET", &[("sec-fetch-site", "same-origin")]), Ok(()));
        assert_eq!(status("POST", &[("origin", "http://127.0.0.1:3280"), page]), Ok(()));
        assert_eq!(status("POST", &[("sec-fetch-site", "same-origin"), page]), Ok(()));
        for site in ["cross-site", "same-site", "x"] {
            assert_eq!(status("GET", &[("sec-fetch-site", site)]), Err(403), "{site}");
            assert_eq!(status("POST", &[("sec-fetch-site", site), page]), Err(403), "{site}");
        }
        for origin in
            ["null", "http://evil.example", "http://127.0.0.1:3281", "http://127.0.0.1", "http://evil.example:3280"]
        {
            assert_eq!(status("POST", &[("origin", origin), page]), Err(403), "{origin}");
        }
        assert_eq!(status("DELETE", &[("sec-fetch-site", "same-origin")]), Err(403), "a form cannot add the field");
        assert_eq!(status("POST", &[]), Err(403));
    }

    #[test]
    fn the_cookie_is_for_the_page_only() {
        let key =
            Logins::default().begin(Credentials::User { user: 1, group: 1 }, Instant::now()).expect("random bytes");
        let plain = parts("GET", &[("host", "127.0.0.1:3280")]);
        let field = set_cookie(&plain, Some(&key)).expect("a field");
        let expected = format!("lunar-3280={}; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict", key.text());
        assert_eq!(field, expected.as_str());
        assert_eq!(
            set_cookie(&plain, None).expect("a field"),
            "lunar-3280=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"
        );
        let mut encrypted = parts("GET", &[("host", "storage.example")]);
        encrypted.extensions.insert(Encrypted(Arc::new(CertificateDer::from(Vec::new()))));
        let field = set_cookie(&encrypted, Some(&key)).expect("a field");
        let field = field.to_str().expect("text");
        assert!(
            field.starts_with("__Host-lunar-443=") && field.ends_with("; HttpOnly; SameSite=Strict; Secure"),
            "{field}"
        );
        let sent = |cookies: &[(&str, &str)]| {
            let fields = [&[("host", "127.0.0.1:3280")], cookies].concat();
            cookie(&parts("GET", &fields)).map(str::to_owned)
        };
        assert_eq!(sent(&[("cookie", "a=b; lunar-3280=key; c")]), Some("key".into()));
        assert_eq!(sent(&[("cookie", "lunar-3281=key")]), None, "the cookie of another service of this host");
        assert_eq!(sent(&[("cookie", "x"), ("cookie", "lunar-3280=")]), Some(String::new()));
    }

    #[test]
    fn browsers_are_recognized() {
        for mark in [
            ("origin", "null"),
            ("sec-fetch-site", "none"),
            ("user-agent", "Mozilla/5.0 (X11)"),
            ("lunar-browser", "1"),
        ] {
            assert!(is_browser(&parts("GET", &[mark]).headers), "{mark:?}");
        }
        assert!(!is_browser(&parts("GET", &[("user-agent", "curl/8"), ("host", "lunar"), ("accept", "*/*")]).headers));
    }
}

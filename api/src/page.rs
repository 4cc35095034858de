//! The page for browsers: its files, which are part of the program. They contain no data: the page is a client of the
//! API, like any other.

use crate::browser;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};
use std::future::ready;

/// The content security policy: the page loads only its own files and this API, no inline script or style, no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'none'; base-uri 'none'; frame-ancestors 'none'";
const CROSS_ORIGIN_OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

/// A file of the page.
#[derive(Debug)]
pub(crate) struct Asset {
    /// Its path.
    pub(crate) path: &'static str,
    media: &'static str,
    bytes: &'static [u8],
}

macro_rules! assets {
    ($($path:literal $media:ident $file:literal;)*) => {
        /// All files, by path.
        pub(crate) static ASSETS: &[Asset] = &[
            $(Asset { path: $path, media: $media, bytes: include_bytes!(concat!("../page/", $file)) },)*
        ];
    };
}

assets! {
    "/" HTML "index.html";
    "/page/style.css" STYLE "style.css";
    "/page/icon.svg" PICTURE "icon.svg";
    "/page/app.js" SCRIPT "app.js";
    "/page/client.js" SCRIPT "client.js";
    "/page/summary.js" SCRIPT "summary.js";
    "/page/widgets.js" SCRIPT "widgets.js";
    "/page/forms.js" SCRIPT "forms.js";
    "/page/overview.js" SCRIPT "overview.js";
    "/page/topology.js" SCRIPT "topology.js";
    "/page/volumes.js" SCRIPT "volumes.js";
    "/page/hosts.js" SCRIPT "hosts.js";
    "/page/session.js" SCRIPT "session.js";
    "/page/maps.js" SCRIPT "maps.js";
    "/page/settings.js" SCRIPT "settings.js";
    "/page/events.js" SCRIPT "events.js";
    "/page/explain.js" SCRIPT "explain.js";
    "/page/refused.js" SCRIPT "refused.js";
    "/page/slow.js" SCRIPT "slow.js";
    "/page/configuration.js" SCRIPT "configuration.js";
    "/page/health.js" SCRIPT "health.js";
    "/page/vendor/htm-preact.js" SCRIPT "vendor/htm-preact.js";
    "/page/vendor/uplot.js" SCRIPT "vendor/uplot.js";
    "/page/vendor/uplot.css" STYLE "vendor/uplot.css";
}

/// Adds the files of the page to a router. `count` counts a response.
pub(crate) fn add(router: Router, count: impl Fn(StatusCode) + Clone + Send + Sync + 'static) -> Router {
    ASSETS.iter().fold(router, |router, asset| {
        let count = count.clone();
        let tag = tag(asset.bytes);
        router.route(
            asset.path,
            get(move |request: Request| {
                let response = answer(asset, tag.clone(), request);
                count(response.status());
                ready(response)
            }),
        )
    })
}

/// A validator of a content (RFC 9110 8.8.3).
fn tag(bytes: &[u8]) -> HeaderValue {
    let digest: String = Sha256::digest(bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    // Quoted hexadecimal digits are a field value.
    HeaderValue::try_from(format!("\"{digest}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}

fn answer(asset: &Asset, tag: HeaderValue, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    if let Err(why) = browser::check_host(&parts) {
        let status = StatusCode::from_u16(why.status).unwrap_or(StatusCode::MISDIRECTED_REQUEST);
        return (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], why.detail).into_response();
    }
    let is_known = parts.headers.get_all(IF_NONE_MATCH).iter().any(|known| *known == tag);
    let (status, body) = match is_known {
        true => (StatusCode::NOT_MODIFIED, Body::empty()),
        false => (StatusCode::OK, Body::from(asset.bytes)),
    };
    let mut response = (status, body).into_response();
    let fields = response.headers_mut();
    let of = HeaderValue::from_static;
    fields.insert(CONTENT_TYPE, of(asset.media));
    fields.insert(ETAG, tag);
    // Another version of Lunar has other files.
    fields.insert(CACHE_CONTROL, of("no-cache"));
    fields.insert(CONTENT_SECURITY_POLICY, of(POLICY));
    fields.insert(X_CONTENT_TYPE_OPTIONS, of("nosniff"));
    fields.insert(REFERRER_POLICY, of("no-referrer"));
    fields.insert(CROSS_ORIGIN_OPENER_POLICY, of("same-origin"));
    fields.insert(CROSS_ORIGIN_RESOURCE_POLICY, of("same-origin"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn request(fields: &[(&str, &str)]) -> Request {
        let request = axum::http::Request::builder().uri("/");
        let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(Body::empty()).expect("a request")
    }

    #[test]
    fn a_file_has_a_strict_policy_and_a_validator() {
        let first = &ASSETS[0];
        let response = answer(first, tag(first.bytes), request(&[("host", "127.0.0.1:3280")]));
        assert_eq!(
            (response.status(), &response.headers()[CONTENT_TYPE]),
            (StatusCode::OK, &HeaderValue::from_static(HTML))
        );
        let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().expect("text");
        assert!(policy.starts_with("default-src 'none'; ") && policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("data:"), "{policy}");
        assert_eq!(response.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
        let known = response.headers()[ETAG].to_str().expect("text").to_owned();
        let fields = [("host", "localhost"), ("if-none-match", known.as_str())];
        assert_eq!(answer(first, tag(first.bytes), request(&fields)).status(), StatusCode::NOT_MODIFIED);
        let fields = [("host", "localhost"), ("if-none-match", "\"other\"")];
        assert_eq!(answer(first, tag(first.bytes), request(&fields)).status(), StatusCode::OK);
        let foreign = answer(first, tag(first.bytes), request(&[("host", "evil.example")]));
        assert_eq!(foreign.status(), StatusCode::MISDIRECTED_REQUEST);
    }

    /// The files below a folder, without those that nothing loads: licences and notes.
    fn files(folder: &Path, into: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("the folder of the page") {
            let path = entry.expect("an entry").path();
            match path.extension().and_then(|end| end.to_str()) {
                _ if path.is_dir() => files(&path, into),
                Some("html" | "js" | "css" | "svg") => drop(into.insert(path.display().to_string())),
                _ => {}
            }
        }
    }

    #[test]
    fn the_list_of_libraries_has_their_digests() {
        let list = include_str!("../page/vendor/README.md");
        for asset in ASSETS.iter().filter(|asset| asset.path.contains("/vendor/")) {
            let digest: String = Sha256::digest(asset.bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            let name = asset.path.rsplit('/').next().expect("a name");
            let row = list.lines().find(|line| line.starts_with(&format!("| `{name}`"))).expect(name);
            assert!(row.contains(&digest), "{name}");
        }
    }

    #[test]
    fn every_file_is_served_and_loads_nothing_from_elsewhere() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        let (mut there, mut served) = (BTreeSet::new(), BTreeSet::new());
        files(&root, &mut there);
        for asset in ASSETS {
            let name =
                if asset.path == "/" { "index.html" } else { asset.path.strip_prefix("/page/").expect("a path") };
            served.insert(root.join(name).display().to_string());
            let text = std::str::from_utf8(asset.bytes).expect("text");
            if asset.path.contains("/vendor/") {
                continue;
            }
            for word in ["http://", "https://", "innerHTML", "eval(", "document.write", " style=\""] {
                let is_name = word.starts_with("http") && asset.media == PICTURE;
                assert!(!text.contains(word) || is_name, "{} contains {word}", asset.path);
            }
        }
        assert_eq!(there, served);
        let page = std::str::from_utf8(ASSETS[0].bytes).expect("text");
        for inline in ["<style", " on", "javascript:"] {
            assert!(!page.contains(inline), "the policy refuses {inline}");
        }
        let loaded = page.split(['"']).filter(|word| word.starts_with("/page/"));
        assert!(loaded.clone().count() > 3);
        for path in loaded {
            assert!(ASSETS.iter().any(|asset| asset.path == path), "{path}");
        }
    }
}

//! The other side: asks a service, over its socket or over the network, and waits for the answer.

use crate::place;
use crate::routes::Method;
use http_body_util::{BodyExt, Full};
pub use hyper::Uri;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustix::fs::{Access, access};
use serde_json::Value as Json;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, version};

/// How long somebody waits for a connection.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// How long somebody waits for an answer: a little longer than the service lets anything take.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(150);
/// Bytes of an answer at most: all there is of the largest configuration as JSON.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Where Linux systems keep the certificates of those whom they trust.
const SYSTEM_ROOTS: [&str; 2] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// Where a service is.
#[derive(Clone, Debug)]
pub enum Address {
    /// On this machine.
    Socket(PathBuf),
    /// On the network: `https://HOST:PORT`, or `http://` for a service on this machine.
    Url(Uri),
}

/// How to reach a service, and as whom.
#[derive(Clone, Debug)]
pub struct Client {
    /// Where it is.
    pub address: Address,
    /// The token that says who asks over the network.
    pub token: Option<Token>,
    /// Certificates that are trusted, in PEM; without, those of the system.
    pub trusted: Option<PathBuf>,
}

/// A token, which nobody is shown.
#[derive(Clone)]
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Why there is no answer, in words that say what to do.
#[derive(Debug)]
pub enum Trouble {
    /// Nobody listens there.
    NotRunning(String),
    /// The caller may not.
    NotAllowed(String),
    /// The service says no: HTTP status, `detail` of the problem, and the whole of it.
    Refused(u16, String, Json),
    /// The connection broke, or what came is no answer.
    Broken(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRunning(why) | Self::NotAllowed(why) | Self::Refused(_, why, _) | Self::Broken(why) => {
                f.write_str(why)
            }
        }
    }
}

impl std::error::Error for Trouble {}

/// What is sent along with a request.
#[derive(Clone, Debug)]
pub enum Sent {
    /// Nothing.
    Nothing,
    /// Keys.
    Json(Json),
    /// The text of a configuration.
    Text(String),
}

impl Client {
    /// A client of the service on this machine.
    #[must_use]
    pub fn local(socket: Option<PathBuf>) -> Self {
        Self { address: Address::Socket(socket.unwrap_or_else(place::to_call)), token: None, trusted: None }
    }

    /// Asks, and waits for the answer: its body.
    ///
    /// # Errors
    /// Why there is none.
    pub fn call(&self, method: Method, path: &str, sent: Sent) -> Result<Vec<u8>, Trouble> {
        run(async {
            let response = self.send(method, path, sent).await?;
            let collect = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
            let body = timeout(ANSWER_TIME_MAX, collect).await.map_err(|_| Trouble::Broken(late()))?;
            Ok(body.map_err(|why| Trouble::Broken(format!("the answer broke off: {why}")))?.to_bytes().into())
        })
    }

    /// As [`Client::call`], for an answer in JSON.
    ///
    /// # Errors
    /// As that.
    pub fn json(&self, method: Method, path: &str, sent: Sent) -> Result<Json, Trouble> {
        let body = self.call(method, path, sent)?;
        serde_json::from_slice(&body).map_err(|why| Trouble::Broken(format!("the answer is no JSON: {why}")))
    }

    /// Follows a stream of events: `each` gets the data of each until it says that it has enough, or the stream ends.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn follow(&self, path: &str, mut each: impl FnMut(&str) -> bool) -> Result<(), Trouble> {
        run(async {
            let mut body = self.send(Method::Get, path, Sent::Nothing).await?.into_body();
            let mut held = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|why| Trouble::Broken(format!("the stream broke off: {why}")))?;
                held.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                while let Some(end) = held.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = held.drain(..=end).collect();
                    let data = std::str::from_utf8(&line).ok().and_then(|line| line.strip_prefix("data:"));
                    if data.is_some_and(|data| !each(data.trim())) {
                        return Ok(());
                    }
                }
                if held.len() > ANSWER_BYTES_MAX {
                    return Err(Trouble::Broken("a line of the stream has no end".into()));
                }
            }
            Ok(())
        })
    }

    async fn send(&self, method: Method, path: &str, sent: Sent) -> Result<Response<Incoming>, Trouble> {
        let request = self.request(method, path, sent)?;
        let response = match &self.address {
            Address::Socket(socket) => {
                let stream = UnixStream::connect(socket).await.map_err(|why| no_socket(socket, &why))?;
                ask(stream, request).await
            }
            Address::Url(url) => self.ask_over_network(url, request).await,
        }?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let body = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|why| Trouble::Broken(format!("the answer broke off: {why}")))?.to_bytes();
        let problem: Json = serde_json::from_slice(&body).unwrap_or_default();
        let words = problem["detail"].as_str().map_or_else(|| format!("the service answers {status}"), str::to_owned);
        Err(match status {
            401 | 403 => Trouble::NotAllowed(words),
            _ => Trouble::Refused(status, words, problem),
        })
    }

    fn request(&self, method: Method, path: &str, sent: Sent) -> Result<Request<Full<Bytes>>, Trouble> {
        let host = match &self.address {
            Address::Socket(_) => "lunar",
            Address::Url(url) => url.authority().map_or("lunar", |authority| authority.as_str()),
        };
        let mut request = Request::builder().method(method.word()).uri(path).header(HOST, host).header(ACCEPT, "*/*");
        if let Some(Token(token)) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let (media, body) = match sent {
            Sent::Nothing => (None, Vec::new()),
            Sent::Json(value) => (Some("application/json"), value.to_string().into_bytes()),
            Sent::Text(text) => (Some("application/toml"), text.into_bytes()),
        };
        if let Some(media) = media {
            request = request.header(CONTENT_TYPE, media);
        }
        request
            .body(Full::new(body.into()))
            .map_err(|why| Trouble::Broken(format!("{path} cannot be asked for: {why}")))
    }

    async fn ask_over_network(&self, url: &Uri, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Trouble> {
        let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = url.port_u16().unwrap_or(lunar_control::model::API_PORT);
        let unreachable = |why: &dyn fmt::Display| {
            Trouble::NotRunning(format!(
                "nobody answers at {host} port {port}: {why}; does [api-listener] name this address?"
            ))
        };
        let is_near = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
        if url.scheme_str() == Some("http") && self.token.is_some() && !is_near {
            return Err(Trouble::NotAllowed("a token goes to other machines over https:// only".into()));
        }
        let stream = timeout(CONNECT_TIME_MAX, TcpStream::connect((host.as_str(), port))).await;
        let stream = stream.map_err(|_| unreachable(&"it takes too long"))?.map_err(|why| unreachable(&why))?;
        if url.scheme_str() == Some("http") {
            return ask(stream, request).await;
        }
        let name = ServerName::try_from(host.clone()).map_err(|why| Trouble::Broken(format!("{host}: {why}")))?;
        let tls = TlsConnector::from(Arc::new(self.tls()?));
        let stream = timeout(CONNECT_TIME_MAX, tls.connect(name, stream)).await;
        let stream =
            stream.map_err(|_| unreachable(&"the handshake takes too long"))?.map_err(|why| unreachable(&why))?;
        ask(stream, request).await
    }

    fn tls(&self) -> Result<ClientConfig, Trouble> {
        let found = || SYSTEM_ROOTS.iter().map(PathBuf::from).find(|path| path.exists());
        let file = self.trusted.clone().or_else(found);
        let file = file.ok_or_else(|| Trouble::Broken("this system has no certificates: name some".into()))?;
        let of = |why: &dyn fmt::Display| Trouble::Broken(format!("{}: {why}", file.display()));
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(&file).map_err(|why| of(&why))? {
            roots.add(certificate.map_err(|why| of(&why))?).map_err(|why| of(&why))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(|why| of(&why))?;
        Ok(config.with_root_certificates(roots).with_no_client_auth())
    }
}

fn late() -> String {
    "the service takes too long to answer: `lunar status`, and the log, tell more".into()
}

fn run<T>(work: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|why| Trouble::Broken(format!("the system has no room: {why}")))?.block_on(work)
}

async fn ask<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Trouble>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let broken = |why: hyper::Error| Trouble::Broken(format!("the connection broke off: {why}"));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // It carries the body of the answer, too.
    tokio::spawn(connection);
    let answer = timeout(ANSWER_TIME_MAX, sender.send_request(request)).await;
    answer.map_err(|_| Trouble::Broken(late()))?.map_err(broken)
}

/// Why there is no way in by a socket, and what to do.
fn no_socket(socket: &Path, why: &io::Error) -> Trouble {
    let shown = socket.display();
    match why.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => Trouble::NotRunning(format!(
            "Lunar is not running here (nobody serves {shown}): start it with `systemctl start lunar`, or \
             `lunar daemon --config FILE`"
        )),
        ErrorKind::PermissionDenied => {
            let user = place::user_name(rustix::process::geteuid().as_raw());
            let group =
                std::fs::metadata(socket).ok().filter(|found| found.mode() & 0o060 == 0o060).map(|found| found.gid());
            let way_in = match group.map(place::group_name) {
                Some(group) => format!("join the group {group} (`sudo usermod -aG {group} {user}`, then log in again)"),
                None if access(socket.parent().unwrap_or(socket), Access::EXEC_OK).is_err() => {
                    "its folder is closed to you: use sudo".into()
                }
                None => "use sudo, or set `group` in [api] of the configuration".into(),
            };
            Trouble::NotAllowed(format!("{user} may not use {shown}: {way_in}"))
        }
        _ => Trouble::Broken(format!("{shown}: {why}")),
    }
}

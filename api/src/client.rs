//! A blocking client of the API, over the Unix socket or the network.

use crate::route::Method;
use crate::system;
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

/// The longest time for a connection.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// The longest time for a response: a little longer than the server's limit.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(150);
/// The longest response, in bytes: more than the largest configuration as JSON.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// The files in which Linux distributions keep the trusted root certificates.
const SYSTEM_ROOTS: [&str; 2] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// The address of a service.
#[derive(Clone, Debug)]
pub enum Address {
    /// The path of a Unix socket.
    Socket(PathBuf),
    /// A URL `https://HOST:PORT`, or `http://` for a service on this host.
    Url(Uri),
}

/// A client.
#[derive(Clone, Debug)]
pub struct Client {
    /// The address of the service.
    pub address: Address,
    /// The token for authentication over the network.
    pub token: Option<Token>,
    /// The file with trusted certificates, in PEM; without it, those of the system.
    pub trusted: Option<PathBuf>,
}

/// A token; `Debug` does not show it.
#[derive(Clone)]
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Why a request failed, as a message that says what to do.
#[derive(Debug)]
pub enum ClientError {
    /// No service listens at the address.
    NotRunning(String),
    /// The caller lacks a right.
    NotAllowed(String),
    /// The service refused the request: HTTP status, `detail` of the problem report, and the whole report.
    Refused(u16, String, Json),
    /// The connection failed, or the response is invalid.
    Broken(String),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRunning(why) | Self::NotAllowed(why) | Self::Refused(_, why, _) | Self::Broken(why) => {
                f.write_str(why)
            }
        }
    }
}

impl std::error::Error for ClientError {}

/// The body of a request.
#[derive(Clone, Debug)]
pub enum RequestBody {
    /// No body.
    Nothing,
    /// JSON.
    Json(Json),
    /// A configuration, as TOML.
    Text(String),
}

impl Client {
    /// A client of the service on this host; without a path, at its default socket.
    #[must_use]
    pub fn local(socket: Option<PathBuf>) -> Self {
        Self { address: Address::Socket(socket.unwrap_or_else(system::client_socket)), token: None, trusted: None }
    }

    /// Sends a request and waits for the response. Returns the body.
    ///
    /// # Errors
    /// Why the request failed.
    pub fn call(&self, method: Method, path: &str, body: RequestBody) -> Result<Vec<u8>, ClientError> {
        run_blocking(async {
            let response = self.send(method, path, body).await?;
            let collect = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
            let body = timeout(ANSWER_TIME_MAX, collect).await.map_err(|_| ClientError::Broken(timeout_message()))?;
            Ok(body
                .map_err(|why| ClientError::Broken(format!("the response was interrupted: {why}")))?
                .to_bytes()
                .into())
        })
    }

    /// As [`Client::call`], and parses the response as JSON.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn json(&self, method: Method, path: &str, body: RequestBody) -> Result<Json, ClientError> {
        let body = self.call(method, path, body)?;
        serde_json::from_slice(&body)
            .map_err(|why| ClientError::Broken(format!("the response is not valid JSON: {why}")))
    }

    /// Reads an event stream. `each` is called with the data of each event until it returns `false` or the stream ends.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn follow(&self, path: &str, mut each: impl FnMut(&str) -> bool) -> Result<(), ClientError> {
        run_blocking(async {
            let mut body = self.send(Method::Get, path, RequestBody::Nothing).await?.into_body();
            let mut buffer = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|why| ClientError::Broken(format!("the stream was interrupted: {why}")))?;
                buffer.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = buffer.drain(..=end).collect();
                    let data = std::str::from_utf8(&line).ok().and_then(|line| line.strip_prefix("data:"));
                    if data.is_some_and(|data| !each(data.trim())) {
                        return Ok(());
                    }
                }
                if buffer.len() > ANSWER_BYTES_MAX {
                    return Err(ClientError::Broken("a line of the stream is too long".into()));
                }
            }
            Ok(())
        })
    }

    async fn send(&self, method: Method, path: &str, body: RequestBody) -> Result<Response<Incoming>, ClientError> {
        let request = self.request(method, path, body)?;
        let response = match &self.address {
            Address::Socket(socket) => {
                let stream = UnixStream::connect(socket).await.map_err(|why| connection_error(socket, &why))?;
                send_request(stream, request).await
            }
            Address::Url(url) => self.send_over_network(url, request).await,
        }?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let body = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|why| ClientError::Broken(format!("the response was interrupted: {why}")))?.to_bytes();
        let problem: Json = serde_json::from_slice(&body).unwrap_or_default();
        let words = problem["detail"]
            .as_str()
            .map_or_else(|| format!("the service returned HTTP status {status}"), str::to_owned);
        Err(match status {
            401 | 403 => ClientError::NotAllowed(words),
            _ => ClientError::Refused(status, words, problem),
        })
    }

    fn request(&self, method: Method, path: &str, body: RequestBody) -> Result<Request<Full<Bytes>>, ClientError> {
        let host = match &self.address {
            Address::Socket(_) => "lunar",
            Address::Url(url) => url.authority().map_or("lunar", |authority| authority.as_str()),
        };
        let mut request = Request::builder().method(method.word()).uri(path).header(HOST, host).header(ACCEPT, "*/*");
        if let Some(Token(token)) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let (media, body) = match body {
            RequestBody::Nothing => (None, Vec::new()),
            RequestBody::Json(value) => (Some("application/json"), value.to_string().into_bytes()),
            RequestBody::Text(text) => (Some("application/toml"), text.into_bytes()),
        };
        if let Some(media) = media {
            request = request.header(CONTENT_TYPE, media);
        }
        request
            .body(Full::new(body.into()))
            .map_err(|why| ClientError::Broken(format!("invalid request path {path}: {why}")))
    }

    async fn send_over_network(
        &self,
        url: &Uri,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, ClientError> {
        let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = url.port_u16().unwrap_or(lunar_control::model::API_PORT);
        let unreachable = |why: &dyn fmt::Display| {
            ClientError::NotRunning(format!(
                "no service answers at {host} port {port}: {why}; check the address in [api-listener]"
            ))
        };
        let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
        if url.scheme_str() == Some("http") && self.token.is_some() && !is_local {
            return Err(ClientError::NotAllowed("a token is sent to other hosts over https:// only".into()));
        }
        let stream = timeout(CONNECT_TIME_MAX, TcpStream::connect((host.as_str(), port))).await;
        let stream = stream.map_err(|_| unreachable(&"the connection timed out"))?.map_err(|why| unreachable(&why))?;
        if url.scheme_str() == Some("http") {
            return send_request(stream, request).await;
        }
        let name = ServerName::try_from(host.clone()).map_err(|why| ClientError::Broken(format!("{host}: {why}")))?;
        let tls = TlsConnector::from(Arc::new(self.tls()?));
        let stream = timeout(CONNECT_TIME_MAX, tls.connect(name, stream)).await;
        let stream =
            stream.map_err(|_| unreachable(&"the TLS handshake timed out"))?.map_err(|why| unreachable(&why))?;
        send_request(stream, request).await
    }

    fn tls(&self) -> Result<ClientConfig, ClientError> {
        let found = || SYSTEM_ROOTS.iter().map(PathBuf::from).find(|path| path.exists());
        let file = self.trusted.clone().or_else(found);
        let file = file.ok_or_else(|| {
            ClientError::Broken("this system has no trusted certificates: give a file with --trust".into())
        })?;
        let error = |why: &dyn fmt::Display| ClientError::Broken(format!("{}: {why}", file.display()));
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(&file).map_err(|why| error(&why))? {
            roots.add(certificate.map_err(|why| error(&why))?).map_err(|why| error(&why))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(|why| error(&why))?;
        Ok(config.with_root_certificates(roots).with_no_client_auth())
    }
}

fn timeout_message() -> String {
    "the service does not answer in time: see `lunar status` and the log".into()
}

fn run_blocking<T>(work: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|why| ClientError::Broken(format!("cannot start the runtime: {why}")))?.block_on(work)
}

async fn send_request<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let broken = |why: hyper::Error| ClientError::Broken(format!("the connection broke off: {why}"));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // This task also receives the body of the response.
    tokio::spawn(connection);
    let answer = timeout(ANSWER_TIME_MAX, sender.send_request(request)).await;
    answer.map_err(|_| ClientError::Broken(timeout_message()))?.map_err(broken)
}

/// The error of a connection to the socket, with what to do.
fn connection_error(socket: &Path, why: &io::Error) -> ClientError {
    let shown = socket.display();
    match why.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => ClientError::NotRunning(format!(
            "Lunar is not running (no process serves {shown}): start it with `systemctl start lunar`, or \
             `lunar daemon --config FILE`"
        )),
        ErrorKind::PermissionDenied => {
            let user = system::user_name(rustix::process::geteuid().as_raw());
            let group =
                std::fs::metadata(socket).ok().filter(|found| found.mode() & 0o060 == 0o060).map(|found| found.gid());
            let remedy = match group.map(system::group_name) {
                Some(group) => format!("join the group {group} (`sudo usermod -aG {group} {user}`, then log in again)"),
                None if access(socket.parent().unwrap_or(socket), Access::EXEC_OK).is_err() => {
                    "you cannot enter its folder: use sudo".into()
                }
                None => "use sudo, or set `group` in [api] of the configuration".into(),
            };
            ClientError::NotAllowed(format!("{user} may not use {shown}: {remedy}"))
        }
        _ => ClientError::Broken(format!("{shown}: {why}")),
    }
}

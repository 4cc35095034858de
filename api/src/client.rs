//! A blocking client of the API, over the Unix socket or the network.

pub use crate::client_error::ClientError;

use crate::client_error::{Broken, NotAllowed, NotRunning, Unreachable};
use crate::route::Method;
use crate::system;
use http_body_util::{BodyExt, Full};
pub use hyper::Uri;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value as Json;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
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
            let body = timeout(ANSWER_TIME_MAX, collect).await.map_err(|_| Broken::Timeout)?;
            Ok(body.map_err(Broken::Response)?.to_bytes().into())
        })
    }

    /// As [`Client::call`], and parses the response as JSON.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn json(&self, method: Method, path: &str, body: RequestBody) -> Result<Json, ClientError> {
        let body = self.call(method, path, body)?;
        Ok(serde_json::from_slice(&body).map_err(Broken::Json)?)
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
                let frame = frame.map_err(Broken::Stream)?;
                buffer.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = buffer.drain(..=end).collect();
                    let data = std::str::from_utf8(&line).ok().and_then(|line| line.strip_prefix("data:"));
                    if data.is_some_and(|data| !each(data.trim())) {
                        return Ok(());
                    }
                }
                if buffer.len() > ANSWER_BYTES_MAX {
                    return Err(Broken::LongLine.into());
                }
            }
            Ok(())
        })
    }

    async fn send(&self, method: Method, path: &str, body: RequestBody) -> Result<Response<Incoming>, ClientError> {
        let request = self.request(method, path, body)?;
        let response = match &self.address {
            Address::Socket(socket) => {
                let stream = UnixStream::connect(socket).await.map_err(|why| ClientError::of_socket(socket, why))?;
                send_request(stream, request).await
            }
            Address::Url(url) => self.send_over_network(url, request).await,
        }?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let body = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(Broken::Response)?.to_bytes();
        let problem: Json = serde_json::from_slice(&body).unwrap_or_default();
        let words = problem["detail"]
            .as_str()
            .map_or_else(|| format!("the service returned HTTP status {status}"), str::to_owned);
        Err(match status {
            401 | 403 => NotAllowed::ByService(words).into(),
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
        Ok(request.body(Full::new(body.into())).map_err(|why| Broken::Path(path.to_owned(), why))?)
    }

    async fn send_over_network(
        &self,
        url: &Uri,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, ClientError> {
        let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = url.port_u16().unwrap_or(lunar_control::common_sections::API_PORT);
        let unreachable = |why| NotRunning::Network { host: host.clone(), port, why };
        let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
        if url.scheme_str() == Some("http") && self.token.is_some() && !is_local {
            return Err(NotAllowed::TokenInClear.into());
        }
        let stream = timeout(CONNECT_TIME_MAX, TcpStream::connect((host.as_str(), port))).await;
        let stream = stream.map_err(|_| unreachable(Unreachable::ConnectTimeout))?;
        let stream = stream.map_err(|why| unreachable(Unreachable::Io(why)))?;
        if url.scheme_str() == Some("http") {
            return send_request(stream, request).await;
        }
        let name = ServerName::try_from(host.clone()).map_err(|why| Broken::Host(host.clone(), why))?;
        let tls = TlsConnector::from(Arc::new(self.tls()?));
        let stream = timeout(CONNECT_TIME_MAX, tls.connect(name, stream)).await;
        let stream = stream.map_err(|_| unreachable(Unreachable::TlsTimeout))?;
        let stream = stream.map_err(|why| unreachable(Unreachable::Io(why)))?;
        send_request(stream, request).await
    }

    fn tls(&self) -> Result<ClientConfig, ClientError> {
        let found = || SYSTEM_ROOTS.iter().map(PathBuf::from).find(|path| path.exists());
        let file = self.trusted.clone().or_else(found);
        let file = file.ok_or(Broken::NoCertificates)?;
        let malformed = |why| Broken::Certificates(file.clone(), why);
        let unfit = |why| Broken::Certificate(file.clone(), why);
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(&file).map_err(malformed)? {
            roots.add(certificate.map_err(malformed)?).map_err(unfit)?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(unfit)?;
        Ok(config.with_root_certificates(roots).with_no_client_auth())
    }
}

fn run_blocking<T>(work: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Broken::Runtime)?.block_on(work)
}

async fn send_request<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(Broken::Connection)?;
    // This task also receives the body of the response.
    tokio::spawn(connection);
    let answer = timeout(ANSWER_TIME_MAX, sender.send_request(request)).await;
    Ok(answer.map_err(|_| Broken::Timeout)?.map_err(Broken::Connection)?)
}

/// Percent-encodes a name as a segment of a path (RFC 3986 2.1).
#[must_use]
pub fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
    let one = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    // Dot segments would be resolved.
    if name == "." || name == ".." { name.replace('.', "%2E") } else { name.bytes().map(one).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_encoded_as_one_path_segment() {
        assert_eq!(encoded("disk-1.a_b:c@d"), "disk-1.a_b:c@d");
        assert_eq!(
            (encoded("a/b?c"), encoded("ü"), encoded("..")),
            ("a%2Fb%3Fc".into(), "%C3%BC".into(), "%2E%2E".into())
        );
    }
}
